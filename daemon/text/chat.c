/* SPDX-License-Identifier: MIT */
/* The prompt format. Text workers and tools only (allocates inside struct chat_out). */
#include "chatpriv.h"

#include "chattmpl.h"
#include "tokgguf.h"
#include "utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_TEMPLATE_BYTES (4 << 20)

static const char *const control_names[CC_COUNT] = {
    [CC_GMASK] = "[gMASK]",
    [CC_SOP] = "<sop>",
    [CC_SYSTEM] = "<|system|>",
    [CC_USER] = "<|user|>",
    [CC_ASSISTANT] = "<|assistant|>",
    [CC_OBSERVATION] = "<|observation|>",
    [CC_THINK] = "<think>",
    [CC_THINK_END] = "</think>",
    [CC_CALL] = "<tool_call>",
    [CC_CALL_END] = "</tool_call>",
    [CC_KEY] = "<arg_key>",
    [CC_KEY_END] = "</arg_key>",
    [CC_VALUE] = "<arg_value>",
    [CC_VALUE_END] = "</arg_value>",
    [CC_RESPONSE] = "<tool_response>",
    [CC_RESPONSE_END] = "</tool_response>",
    [CC_IMAGE_BEGIN] = "<|begin_of_image|>",
    [CC_IMAGE] = "<|image|>",
    [CC_IMAGE_END] = "<|end_of_image|>",
    [CC_VIDEO_BEGIN] = "<|begin_of_video|>",
    [CC_VIDEO] = "<|video|>",
    [CC_VIDEO_END] = "<|end_of_video|>",
};

/* 0 with the file's text, 1 when there is no usable file (*ret_why), or an error. */
static int read_template(const char *path, char **ret, size_t *ret_n, const char **ret_why) {
    struct stat st;
    /* O_NONBLOCK: a pipe put in the file's place must not hang the start. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    char *p;
    size_t n;

    if (fd < 0 && errno == ENOENT) {
        *ret_why = "is missing";
        return 1;
    }
    if (!f) {
        int r = -errno;

        if (fd >= 0)
            close(fd);
        return r;
    }
    if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > MAX_TEMPLATE_BYTES) {
        fclose(f);
        *ret_why = "is not a regular file of at most 4 MiB";
        return 1;
    }
    p = malloc(MAX_TEMPLATE_BYTES + 1);
    n = p ? fread(p, 1, MAX_TEMPLATE_BYTES, f) : 0;
    if (!p || ferror(f)) {
        free(p);
        fclose(f);
        return p ? -EIO : -ENOMEM;
    }
    fclose(f);
    *ret = p;
    *ret_n = n;
    return 0;
}

static int take(struct tbuf *from, char **ret, size_t *ret_n) {
    if (from->n == 0)
        return 0;
    *ret = malloc(from->n + 1);
    if (!*ret)
        return -ENOMEM;
    memcpy(*ret, from->p, from->n);
    (*ret)[from->n] = 0;
    *ret_n = from->n;
    return 0;
}

static int load_template(struct chat *c, const char *dir, const char *path, struct xerr *err) {
    struct chattmpl t;
    const char *why = NULL;
    char *text = NULL;
    size_t n = 0;
    int r = read_template(path, &text, &n, &why), from_gguf = 0;

    if (r > 0 && access(path, F_OK) < 0 && errno == ENOENT) /* a GGUF model brings its own */
        from_gguf = tokgguf_template(dir, &text, &n, err);
    if (from_gguf < 0)
        return from_gguf;
    if (from_gguf)
        r = 0;
    if (r < 0)
        return xerr_set(err, r, "%s: cannot be read: %s", path, strerror(-r));
    if (r > 0) {
        if (asprintf(
                &c->warning,
                "chat_template.jinja %s; requests with tools are refused, all other structure is written in "
                "code",
                why) >= 0)
            return 0;
        c->warning = NULL;
        return xerr_set(err, -ENOMEM, "%s: not enough memory", path);
    }
    r = chattmpl_read(text, n, &t);
    n = 0;
    if (r == 0)
        r = take(&t.head, &c->head, &c->head_n);
    if (r == 0)
        r = take(&t.tail, &c->tail, &c->tail_n);
    if (r == 0)
        r = take(&t.warn, &c->warning, &n);
    chattmpl_done(&t);
    free(text);
    return r < 0 ? xerr_set(err, r, "%s: not enough memory", path) : 0;
}

int chat_open(const char *dir, const struct tok *tok, struct chat **ret, struct xerr *err) {
    struct chat *c = calloc(1, sizeof *c);
    char *path = NULL;
    int r;

    if (!c || asprintf(&path, "%s/chat_template.jinja", dir) < 0) {
        free(c);
        return xerr_set(err, -ENOMEM, "%s: not enough memory", dir);
    }
    c->tok = tok;
    for (unsigned k = 0; k < CC_COUNT; k++) {
        int64_t id = tok_id(tok, control_names[k]);

        if (id < 0) {
            r = xerr_set(
                err, -EINVAL,
                "%s/tokenizer.json: added_tokens: no \"%s\"; the chat format of this model family needs "
                "it",
                dir, control_names[k]);
            goto fail;
        }
        c->ids[k] = (uint32_t)id;
    }
    r = load_template(c, dir, path, err);
    if (r < 0)
        goto fail;
    free(path);
    *ret = c;
    return 0;
fail:
    free(path);
    chat_free(c);
    return r;
}

struct chat *chat_free(struct chat *c) {
    if (c) {
        free(c->head);
        free(c->tail);
        free(c->warning);
    }
    free(c);
    return NULL;
}

const char *chat_warning(const struct chat *c) {
    return c->warning;
}

bool chat_has_tools(const struct chat *c) {
    return c->head != NULL;
}

int chat_effort_from_word(const char *word, size_t n, enum chat_effort *ret_effort,
                          enum chat_thinking *ret_thinking) {
    static const struct {
        const char *word;
        enum chat_effort effort;
        enum chat_thinking thinking;
    } known[] = {
        {"low", CHAT_EFFORT_LOW, CHAT_THINK_UNSET},    {"high", CHAT_EFFORT_HIGH, CHAT_THINK_UNSET},
        {"max", CHAT_EFFORT_MAX, CHAT_THINK_UNSET},    {"minimal", CHAT_EFFORT_LOW, CHAT_THINK_UNSET},
        {"none", CHAT_EFFORT_DEFAULT, CHAT_THINK_OFF}, {"off", CHAT_EFFORT_DEFAULT, CHAT_THINK_OFF},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (tstr_is((struct tstr){word, n}, known[i].word)) {
            *ret_effort = known[i].effort;
            *ret_thinking = known[i].thinking;
            return 0;
        }
    }
    *ret_effort = CHAT_EFFORT_MAX;
    *ret_thinking = CHAT_THINK_UNSET;
    return 1;
}

void chat_out_init(struct chat_out *o, size_t max_bytes) {
    *o = (struct chat_out){0};
    tbuf_init(&o->text, max_bytes);
}

void chat_out_done(struct chat_out *o) {
    tbuf_done(&o->text);
    free(o->segs);
    o->segs = NULL;
    o->n_segs = o->cap_segs = 0;
}

static struct chat_seg *new_seg(struct chat_out *o) {
    if (o->text.err)
        return NULL;
    if (o->n_segs == o->cap_segs) {
        size_t cap = o->cap_segs ? o->cap_segs * 2 : 64;
        struct chat_seg *p = realloc(o->segs, cap * sizeof *p);

        if (!p) {
            o->text.err = -ENOMEM;
            return NULL;
        }
        o->segs = p;
        o->cap_segs = cap;
    }
    return &o->segs[o->n_segs++];
}

void chat_put_id(struct chat_out *o, uint32_t id) {
    struct chat_seg *s = new_seg(o);

    if (s)
        *s = (struct chat_seg){.control = true, .id = id};
}

void chat_put_control(const struct chat *c, struct chat_out *o, enum chat_control k) {
    chat_put_id(o, c->ids[k]);
}

/* Text next to text is one segment: the tokenizer must see it whole. */
void chat_close_text(struct chat_out *o, size_t from) {
    struct chat_seg *s;

    if (o->text.err || o->text.n == from)
        return;
    if (o->n_segs > 0 && !o->segs[o->n_segs - 1].control && !FAULT(chat_text_cut)) {
        o->segs[o->n_segs - 1].len += o->text.n - from;
        return;
    }
    s = new_seg(o);
    if (s)
        *s = (struct chat_seg){.off = from, .len = o->text.n - from};
}

void chat_put_text(struct chat_out *o, const char *p, size_t n) {
    size_t from = o->text.n;

    tbuf_put(&o->text, p, n);
    chat_close_text(o, from);
}

void chat_put_picture(const struct chat *c, struct chat_out *o) {
    chat_put_control(c, o, CC_IMAGE_BEGIN);
    chat_put_control(c, o, CC_IMAGE);
    chat_put_control(c, o, CC_IMAGE_END);
    o->n_images++;
}

void chat_put_video(const struct chat *c, struct chat_out *o) {
    chat_put_control(c, o, CC_VIDEO_BEGIN);
    chat_put_control(c, o, CC_VIDEO);
    chat_put_control(c, o, CC_VIDEO_END);
    o->n_videos++;
}

void chat_put_parts(const struct chat *c, struct chat_out *o, const struct chat_part *parts, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (parts[i].kind == CHAT_IMAGE)
            chat_put_picture(c, o);
        else if (parts[i].kind == CHAT_VIDEO)
            chat_put_video(c, o);
        else
            chat_put_text(o, parts[i].text.p, parts[i].text.n);
    }
}

static int check_text(struct tstr s, struct xerr *err, size_t msg, const char *what) {
    size_t good = s.n ? utf8_valid_prefix(s.p, s.n) : 0;

    return good == s.n
               ? 0
               : xerr_set(err, -EILSEQ, "messages[%zu].%s: invalid UTF-8 at byte %zu; expected UTF-8 text",
                          msg, what, good);
}

static int check_parts(const struct chat_part *parts, size_t n, struct xerr *err, size_t msg,
                       const char *what) {
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++) {
        if (parts[i].kind == CHAT_TEXT)
            r = check_text(parts[i].text, err, msg, what);
        else if (parts[i].kind != CHAT_IMAGE && parts[i].kind != CHAT_VIDEO)
            r = xerr_set(err, -EINVAL, "messages[%zu].%s: part %zu is of unknown kind %d", msg, what, i,
                         (int)parts[i].kind);
    }
    return r;
}

static int check_msg(const struct chat_msg *m, size_t i, struct xerr *err) {
    int r;

    if (m->role < CHAT_SYSTEM || m->role > CHAT_TOOL)
        return xerr_set(err, -EINVAL,
                        "messages[%zu].role: found %d; expected system, user, assistant or tool", i,
                        (int)m->role);
    if ((m->n_calls > 0 || m->reasoning.p) && m->role != CHAT_ASSISTANT)
        return xerr_set(err, -EINVAL,
                        "messages[%zu]: has calls or reasoning; expected them in assistant messages only", i);
    if (m->n_results > 0 && m->role != CHAT_TOOL)
        return xerr_set(err, -EINVAL, "messages[%zu]: has results; expected them in tool messages only", i);
    if (m->role == CHAT_TOOL && (m->n_results == 0 || m->n_parts > 0))
        return xerr_set(err, -EINVAL,
                        "messages[%zu]: a tool message needs at least one result and no other content", i);
    if ((r = check_parts(m->parts, m->n_parts, err, i, "content")) < 0 ||
        (r = check_text(m->reasoning, err, i, "reasoning")) < 0)
        return r;
    for (size_t k = 0; k < m->n_calls; k++) {
        if ((r = check_text(m->calls[k].name, err, i, "call.name")) < 0)
            return r; /* arguments that are not UTF-8 are not JSON either: rendered as none */
    }
    for (size_t k = 0; k < m->n_results; k++) {
        r = check_parts(m->results[k].parts, m->results[k].n_parts, err, i, "result");
        if (r < 0)
            return r;
    }
    return 0;
}

/* The first stays, of the others the last ones. */
static void put_mark(struct chat_out *o) {
    if (o->n_marks == CHAT_MAX_MARKS) {
        memmove(&o->marks[1], &o->marks[2], (CHAT_MAX_MARKS - 2) * sizeof o->marks[0]);
        o->n_marks--;
    }
    o->marks[o->n_marks++] = (struct chat_mark){.seg = o->n_segs};
}

static int render(const struct chat *c, const struct chat_req *req, struct chat_out *o, struct xerr *err) {
    static const char *const efforts[] = {"Reasoning Effort: Max", "Reasoning Effort: Low",
                                          "Reasoning Effort: High", "Reasoning Effort: Max"};
    size_t last_user = 0, turn = 0; /* one past the index of the last user and assistant message */
    bool system = true;             /* nothing else so far */
    int r = 0;

    chat_put_control(c, o, CC_GMASK);
    chat_put_control(c, o, CC_SOP);
    chat_put_control(c, o, CC_SYSTEM);
    chat_put_text(o, efforts[req->effort], strlen(efforts[req->effort]));
    chat_hash_begin(o, req->replay);
    if (req->n_tools > 0)
        r = chat_put_tools(c, req, o, err);
    for (size_t i = 0; i < req->n_msgs; i++) {
        if (req->msgs[i].role == CHAT_USER)
            last_user = i + 1;
        else if (req->msgs[i].role == CHAT_ASSISTANT)
            turn = i + 1;
    }
    for (size_t i = 0; i < req->n_msgs && r == 0; i++) {
        const struct chat_msg *m = &req->msgs[i];
        size_t end = i + 1;

        if (system ? m->role != CHAT_SYSTEM : i >= turn && !FAULT(chat_marks_first_only))
            put_mark(o);
        system = system && m->role == CHAT_SYSTEM;
        if (m->role == CHAT_ASSISTANT) {
            chat_put_assistant(c, req, o, m, req->clear_thinking && i < last_user);
        } else if (m->role == CHAT_TOOL) {
            while (end < req->n_msgs && req->msgs[end].role == CHAT_TOOL)
                end++;
            chat_put_results(c, o, req->msgs, i, end);
            i = end - 1;
        } else {
            chat_put_control(c, o, m->role == CHAT_USER ? CC_USER : CC_SYSTEM);
            chat_put_parts(c, o, m->parts, m->n_parts);
        }
    }
    if (r == 0 && req->add_generation_prompt) {
        chat_put_control(c, o, CC_ASSISTANT);
        chat_put_control(c, o, CC_THINK);
        if (req->thinking == CHAT_THINK_OFF)
            chat_put_control(c, o, CC_THINK_END);
        o->thinking_open = req->thinking != CHAT_THINK_OFF;
    }
    chat_hash(o, req->replay);
    return r;
}

int chat_render(const struct chat *c, const struct chat_req *req, struct chat_out *o, struct xerr *err) {
    int r;

    o->text.n = 0;
    o->text.err = 0;
    o->n_segs = o->n_bad_calls = o->n_images = o->n_videos = o->n_marks = o->n_replayed = 0;
    o->thinking_open = false;
    if (req->n_msgs == 0)
        return xerr_set(err, -EINVAL, "messages: the list is empty; expected at least one message");
    if (req->effort > CHAT_EFFORT_MAX || req->thinking > CHAT_THINK_OFF)
        return xerr_set(err, -EINVAL, "effort or thinking: unknown value (%d, %d)", (int)req->effort,
                        (int)req->thinking);
    for (size_t i = 0; i < req->n_msgs; i++) {
        r = check_msg(&req->msgs[i], i, err);
        if (r < 0)
            return r;
    }
    r = render(c, req, o, err);
    if (r < 0)
        return r;
    if (o->text.err == -E2BIG)
        return xerr_set(err, -E2BIG, "messages: the rendered prompt is longer than %zu bytes", o->text.max);
    return o->text.err ? xerr_set(err, o->text.err, "messages: not enough memory to render the prompt") : 0;
}

int chat_flat(const struct chat *c, const struct chat_out *o, struct tbuf *ret) {
    for (size_t i = 0; i < o->n_segs; i++) {
        const struct chat_seg *s = &o->segs[i];
        const uint8_t *bytes;
        size_t n;

        if (!s->control)
            tbuf_put(ret, o->text.p + s->off, s->len);
        else if (tok_bytes(c->tok, s->id, &bytes, &n) >= 0)
            tbuf_put(ret, bytes, n);
    }
    return ret->err;
}

int chat_encode(const struct chat *c, struct chat_out *o, struct tok_scratch *s, uint32_t *ids, size_t cap,
                size_t *ret_n) {
    size_t n = 0, mark = 0;

    for (size_t i = 0; i < o->n_segs; i++) {
        const struct chat_seg *seg = &o->segs[i];
        size_t got = 1;
        int r;

        if (mark < o->n_marks && o->marks[mark].seg == i)
            o->marks[mark++].pos = n;
        if (!seg->control) {
            r = tok_encode(c->tok, s, o->text.p + seg->off, seg->len,
                           FAULT(chat_typed_markers) ? TOK_MARKERS : 0, ids ? ids + n : NULL,
                           ids ? cap - n : 0, &got);
            if (r < 0)
                return r;
        } else if (ids) {
            if (n == cap)
                return -ENOSPC;
            ids[n] = seg->id;
        }
        n += got;
    }
    *ret_n = n;
    return 0;
}
