/* SPDX-License-Identifier: MIT */
/* Request JSON to struct chat_req, for offline tools and tests. Decoded strings never outgrow the text
 * they come from, so one buffer of the text's size holds them all and nothing moves. */
#include "chatreq.h"

#include "jsonlite.h"

#include <errno.h>
#include <stdlib.h>

#define REQUEST_DEPTH 100

struct block {
    struct block *next;
    max_align_t data[];
};

struct chatreq {
    struct chat_req req;
    struct block *blocks;
    struct tbuf strings;
    struct xerr *err;
};

static void *grab(struct chatreq *r, size_t n, size_t size) {
    struct block *b;

    if (n > (SIZE_MAX / 2) / size)
        return NULL;
    b = calloc(1, sizeof *b + n * size);
    if (!b)
        return NULL;
    b->next = r->blocks;
    r->blocks = b;
    return b->data;
}

static struct tstr decoded(struct chatreq *r, struct tstr quoted) {
    size_t from = r->strings.n;

    jl_unquote(quoted, &r->strings);
    return (struct tstr){r->strings.p + from, r->strings.n - from};
}

/* A string's content; absent for null, another type or nothing. */
static struct tstr text_of(struct chatreq *r, struct tstr v) {
    return v.p && jl_type(v) == JL_STRING ? decoded(r, v) : (struct tstr){0};
}

static size_t count(struct tstr v) {
    struct jl_iter it;
    size_t n = 0;

    if (!v.p || (jl_type(v) != JL_ARRAY && jl_type(v) != JL_OBJECT))
        return 0;
    for (bool more = jl_first(&it, v); more; more = jl_next(&it))
        n++;
    return n;
}

static bool is_type(struct tstr object, const char *a, const char *b) {
    struct tstr t = jl_get(object, "type");

    return t.p && jl_type(t) == JL_STRING && (jl_str_is(t, a, strlen(a)) || jl_str_is(t, b, strlen(b)));
}

static int parse_part(struct chatreq *r, struct tstr v, struct chat_part *ret) {
    *ret = (struct chat_part){.kind = CHAT_TEXT};
    if (jl_type(v) == JL_STRING) {
        ret->text = decoded(r, v);
        return 0;
    }
    if (jl_type(v) != JL_OBJECT)
        return xerr_set(r->err, -EINVAL, "content: a part is neither text nor an object");
    if (is_type(v, "image", "image_url"))
        ret->kind = CHAT_IMAGE;
    else if (is_type(v, "video", "video_url"))
        ret->kind = CHAT_VIDEO;
    else if (is_type(v, "text", "text"))
        ret->text = text_of(r, jl_get(v, "text"));
    else
        return xerr_set(
            r->err, -EINVAL,
            "content: a part of unknown type; expected text, image, image_url, video or video_url");
    return 0;
}

static int parse_content(struct chatreq *r, struct tstr v, const struct chat_part **ret, size_t *ret_n) {
    struct chat_part *parts;
    struct jl_iter it;
    size_t n = 0;
    bool list = v.p && jl_type(v) == JL_ARRAY;

    *ret_n = 0;
    if (!v.p || jl_type(v) == JL_NULL)
        return 0;
    if (!list && jl_type(v) != JL_STRING)
        return xerr_set(r->err, -EINVAL, "content: neither text nor a list of parts");
    parts = grab(r, list ? count(v) + 1 : 1, sizeof *parts);
    if (!parts)
        return -ENOMEM;
    if (!list) {
        parts[n++] = (struct chat_part){CHAT_TEXT, decoded(r, v)};
    } else {
        for (bool more = jl_first(&it, v); more; more = jl_next(&it)) {
            int e = parse_part(r, it.value, &parts[n++]);

            if (e < 0)
                return e;
        }
    }
    *ret = parts;
    *ret_n = n;
    return 0;
}

static int parse_calls(struct chatreq *r, struct tstr v, struct chat_msg *m) {
    struct chat_call *calls;
    struct jl_iter it;
    size_t n = 0;

    if (!v.p || jl_type(v) != JL_ARRAY)
        return 0;
    calls = grab(r, count(v) + 1, sizeof *calls);
    if (!calls)
        return -ENOMEM;
    for (bool more = jl_first(&it, v); more; more = jl_next(&it)) {
        struct tstr f, args;

        if (jl_type(it.value) != JL_OBJECT)
            return xerr_set(r->err, -EINVAL, "tool_calls: an entry is not an object");
        f = jl_get(it.value, "function");
        if (!f.p || jl_type(f) != JL_OBJECT)
            f = it.value;
        args = jl_get(f, "arguments");
        calls[n++] = (struct chat_call){
            .id = text_of(r, jl_get(it.value, "id")),
            .name = text_of(r, jl_get(f, "name")),
            .arguments = args.p && jl_type(args) == JL_STRING ? decoded(r, args) : args,
        };
    }
    m->calls = calls;
    m->n_calls = n;
    return 0;
}

static int parse_msg(struct chatreq *r, struct tstr v, struct chat_msg *m) {
    static const struct {
        const char *word;
        enum chat_role role;
    } roles[] = {{"system", CHAT_SYSTEM},
                 {"developer", CHAT_SYSTEM},
                 {"user", CHAT_USER},
                 {"assistant", CHAT_ASSISTANT},
                 {"tool", CHAT_TOOL}};
    struct tstr role;
    struct chat_result *res;
    int e;

    if (jl_type(v) != JL_OBJECT)
        return xerr_set(r->err, -EINVAL, "messages: an entry is not an object");
    role = jl_get(v, "role");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (role.p && jl_type(role) == JL_STRING && jl_str_is(role, roles[i].word, strlen(roles[i].word)))
            m->role = roles[i].role;
    }
    if (m->role == 0)
        return xerr_set(r->err, -EINVAL,
                        "messages: unknown role; expected system, developer, user, assistant or tool");
    if (m->role == CHAT_TOOL) {
        res = grab(r, 1, sizeof *res);
        if (!res)
            return -ENOMEM;
        res->id = text_of(r, jl_get(v, "tool_call_id"));
        m->results = res;
        m->n_results = 1;
        return parse_content(r, jl_get(v, "content"), &res->parts, &res->n_parts);
    }
    e = parse_content(r, jl_get(v, "content"), &m->parts, &m->n_parts);
    if (e < 0 || m->role != CHAT_ASSISTANT)
        return e;
    m->reasoning = text_of(r, jl_get(v, "reasoning_content"));
    if (!m->reasoning.p)
        m->reasoning = text_of(r, jl_get(v, "reasoning"));
    return parse_calls(r, jl_get(v, "tool_calls"), m);
}

static int parse_lists(struct chatreq *r, struct tstr root) {
    struct tstr list = jl_get(root, "messages"), tools_v = jl_get(root, "tools");
    struct chat_msg *msgs;
    struct tstr *tools;
    struct jl_iter it;
    size_t n = 0;

    if (!list.p || jl_type(list) != JL_ARRAY)
        return xerr_set(r->err, -EINVAL, "messages: missing, or not a list");
    msgs = grab(r, count(list) + 1, sizeof *msgs);
    tools = grab(r, count(tools_v) + 1, sizeof *tools);
    if (!msgs || !tools)
        return -ENOMEM;
    for (bool more = jl_first(&it, list); more; more = jl_next(&it)) {
        int e = parse_msg(r, it.value, &msgs[n++]);

        if (e < 0)
            return e;
    }
    r->req.msgs = msgs;
    r->req.n_msgs = n;
    n = 0;
    if (tools_v.p && jl_type(tools_v) == JL_ARRAY) {
        for (bool more = jl_first(&it, tools_v); more; more = jl_next(&it))
            tools[n++] = it.value;
    }
    r->req.tools = tools;
    r->req.n_tools = n;
    return 0;
}

static void parse_options(struct chatreq *r, struct tstr root) {
    struct tstr thinking = jl_get(root, "thinking"), enable = jl_get(root, "enable_thinking");
    struct tstr effort = text_of(r, jl_get(root, "reasoning_effort"));
    bool on = tstr_is(thinking, "true") || tstr_is(enable, "true");

    r->req.thinking = CHAT_THINK_UNSET;
    if (effort.p)
        chat_effort_from_word(effort.p, effort.n, &r->req.effort, &r->req.thinking);
    if (thinking.p && jl_type(thinking) == JL_OBJECT)
        on = on || is_type(thinking, "enabled", "adaptive");
    if ((thinking.p && jl_type(thinking) != JL_NULL) || (enable.p && jl_type(enable) != JL_NULL))
        r->req.thinking = on ? CHAT_THINK_ON : CHAT_THINK_OFF;
    r->req.clear_thinking = tstr_is(jl_get(root, "clear_thinking"), "true");
    r->req.add_generation_prompt = !tstr_is(jl_get(root, "add_generation_prompt"), "false");
}

int chatreq_parse(const char *text, size_t n, struct chatreq **ret, struct xerr *err) {
    struct jl_fault f = {0};
    struct tstr root;
    struct chatreq *r;
    char *strings;
    int e = jl_check(text, n, REQUEST_DEPTH, &root, &f);

    if (e < 0)
        return xerr_set(err, e, "request: %s at byte %zu", f.why, f.at);
    if (e != JL_OBJECT)
        return xerr_set(err, -EINVAL, "request: not an object");
    r = calloc(1, sizeof *r);
    if (!r)
        return xerr_set(err, -ENOMEM, "request: not enough memory");
    r->err = err;
    strings = grab(r, n + 1, 1);
    if (!strings) {
        chatreq_free(r);
        return xerr_set(err, -ENOMEM, "request: not enough memory");
    }
    tbuf_init_fixed(&r->strings, strings, n + 1);
    parse_options(r, root);
    e = parse_lists(r, root);
    if (e < 0) {
        chatreq_free(r);
        return e == -ENOMEM ? xerr_set(err, e, "request: not enough memory") : e;
    }
    *ret = r;
    return 0;
}

struct chatreq *chatreq_free(struct chatreq *r) {
    struct block *b;

    while (r && (b = r->blocks)) {
        r->blocks = b->next;
        free(b);
    }
    free(r);
    return NULL;
}

const struct chat_req *chatreq_get(const struct chatreq *r) {
    return &r->req;
}
