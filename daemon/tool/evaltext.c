/* SPDX-License-Identifier: MIT */
/* evaltext.c: tokenizer and chat rendering against recorded pairs. Each file is a JSON array of objects; the
 * first difference is shown, the rest counted. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chatreq.h"
#include "eval.h"
#include "jsonlite.h"
#include "tokenizer.h"

enum { MAX_RENDER = 64 << 20, CONTEXT_BYTES = 32 };

struct pairs {
    const char *file;
    char *text;
    struct tstr array;
    struct tok *tok;
    struct chat *chat;
    uint32_t n, wrong;
    struct tbuf a, b;
    uint32_t *ids;
    size_t cap;
    struct tok_scratch *scratch;
};

static int trouble(const struct pairs *p, const char *what) {
    fprintf(stderr, "glm-eval: %s: pair %u: %s\n", p->file, p->n, what);
    return EVAL_TROUBLE;
}

/* Bytes fit for a terminal: what is not plain ASCII is shown as \xNN. */
static void show(const char *label, const char *s, size_t n, size_t at) {
    size_t from = at > CONTEXT_BYTES ? at - CONTEXT_BYTES : 0, to = at + CONTEXT_BYTES < n ? at + CONTEXT_BYTES : n;

    printf("    %-8s ", label);
    for (size_t i = from; i < to; i++) {
        unsigned char c = (unsigned char)s[i];

        if (i == at)
            printf("[>]");
        if (c >= 0x20 && c < 0x7f)
            putchar(c);
        else
            printf("\\x%02x", c);
    }
    if (at >= n)
        printf("[>] (end)");
    printf("\n");
}

/* True when equal; shows the first difference of the whole run. */
static bool same_text(struct pairs *p, const char *what, struct tstr found, struct tstr want) {
    size_t at = 0, n = found.n < want.n ? found.n : want.n;

    if (tstr_eq(found, want))
        return true;
    while (at < n && found.p[at] == want.p[at])
        at++;
    if (!p->wrong) {
        printf("%s: pair %u: %s: first difference at byte %zu\n", p->file, p->n, what, at);
        show("found", found.p, found.n, at);
        show("expected", want.p, want.n, at);
    }
    return false;
}

static bool parse_id(struct tstr v, uint32_t *ret) {
    uint64_t x = 0;

    if (jl_type(v) != JL_NUMBER || !v.n || v.n > 10)
        return false;
    for (size_t i = 0; i < v.n; i++) {
        if (v.p[i] < '0' || v.p[i] > '9')
            return false;
        x = x * 10 + (uint64_t)(v.p[i] - '0');
    }
    if (x >= UINT32_MAX)
        return false;
    *ret = (uint32_t)x;
    return true;
}

static bool room(struct pairs *p, size_t n) {
    uint32_t *ids;

    if (n <= p->cap)
        return true;
    ids = realloc(p->ids, n * sizeof *ids);
    if (!ids)
        return false;
    p->ids = ids;
    p->cap = n;
    return true;
}

static bool same_ids(struct pairs *p, struct tstr list, size_t n) {
    struct jl_iter it;
    size_t i = 0;
    bool more = jl_first(&it, list);

    for (; more && i < n; i++, more = jl_next(&it)) {
        uint32_t want = 0;

        if (!parse_id(it.value, &want) || want != p->ids[i]) {
            if (!p->wrong)
                printf("%s: pair %u: encode: id %zu is %u, expected %.*s\n", p->file, p->n, i, p->ids[i],
                       (int)it.value.n, it.value.p);
            return false;
        }
    }
    if (!more && i == n)
        return true;
    if (!p->wrong)
        printf("%s: pair %u: encode: found %zu ids, expected %s\n", p->file, p->n, n, more ? "more" : "fewer");
    return false;
}

/* The recorded ids as bytes into p->b. */
static int decode(struct pairs *p, struct tstr list) {
    struct jl_iter it;

    p->b.n = 0;
    for (bool more = jl_first(&it, list); more; more = jl_next(&it)) {
        const uint8_t *bytes;
        size_t len;
        uint32_t id;

        if (!parse_id(it.value, &id))
            return trouble(p, "\"ids\" holds something that is no token id");
        if (tok_bytes(p->tok, id, &bytes, &len) < 0)
            return trouble(p, "\"ids\" holds an id this tokenizer does not have");
        tbuf_put(&p->b, bytes, len);
    }
    return p->b.err ? trouble(p, "too long") : EVAL_OK;
}

static int one_tokens(struct pairs *p, struct tstr object) {
    struct tstr text = jl_get(object, "text"), ids = jl_get(object, "ids");
    size_t n = 0;
    int r;

    if (!text.p || jl_type(text) != JL_STRING || !ids.p || jl_type(ids) != JL_ARRAY)
        return trouble(p, "expected an object with \"text\" (a string) and \"ids\" (an array)");
    p->a.n = 0;
    jl_unquote(text, &p->a);
    if (p->a.err || !room(p, p->a.n + 1))
        return trouble(p, "no memory");
    r = tok_encode(p->tok, p->scratch, p->a.n ? p->a.p : "", p->a.n, TOK_MARKERS, p->ids, p->cap, &n);
    if (r < 0)
        return trouble(p, strerror(-r));
    if ((r = decode(p, ids)) != EVAL_OK)
        return r;
    if (!same_ids(p, ids, n) ||
        !same_text(p, "decode", (struct tstr){ p->b.n ? p->b.p : "", p->b.n },
                   (struct tstr){ p->a.n ? p->a.p : "", p->a.n }))
        p->wrong++;
    return EVAL_OK;
}

static int one_chat(struct pairs *p, struct tstr object) {
    struct tstr request = jl_get(object, "request"), prompt = jl_get(object, "prompt");
    struct chatreq *q = NULL;
    struct chat_out out;
    struct xerr err = { 0 };
    int r;

    if (!request.p || jl_type(request) != JL_OBJECT || !prompt.p || jl_type(prompt) != JL_STRING)
        return trouble(p, "expected an object with \"request\" (an object) and \"prompt\" (a string)");
    p->a.n = p->b.n = 0;
    jl_unquote(prompt, &p->a);
    chat_out_init(&out, MAX_RENDER);
    r = chatreq_parse(request.p, request.n, &q, &err);
    if (r >= 0)
        r = chat_render(p->chat, chatreq_get(q), &out, &err);
    if (r >= 0)
        r = chat_flat(p->chat, &out, &p->b);
    if (r >= 0 && !same_text(p, "prompt", (struct tstr){ p->b.n ? p->b.p : "", p->b.n },
                             (struct tstr){ p->a.n ? p->a.p : "", p->a.n }))
        p->wrong++;
    chat_out_done(&out);
    chatreq_free(q);
    if (r < 0)
        return trouble(p, err.msg[0] ? err.msg : strerror(-r));
    return p->a.err || p->b.err ? trouble(p, "too long") : EVAL_OK;
}

static int load(struct pairs *p, const struct eval_options *o, bool chat) {
    struct jl_fault fault = { 0 };
    struct xerr err = { 0 };
    uint64_t n = 0;
    int r;

    p->text = eval_read_file(p->file, &n);
    if (!p->text)
        return EVAL_TROUBLE;
    r = jl_check(p->text, n, JL_MAX_DEPTH, &p->array, &fault);
    if (r < 0 || r != JL_ARRAY) {
        fprintf(stderr, "glm-eval: %s: %s at byte %zu\n", p->file,
                r < 0 && fault.why ? fault.why : "expected an array of objects", fault.at);
        return EVAL_TROUBLE;
    }
    r = tok_open(o->model, &p->tok, &err);
    if (r >= 0 && chat)
        r = chat_open(o->model, p->tok, &p->chat, &err);
    if (r >= 0 && (r = tok_scratch_new(0, &p->scratch)) < 0)
        xerr_set(&err, r, "no memory");
    if (r < 0) {
        fprintf(stderr, "glm-eval: %s\n", err.msg);
        return EVAL_TROUBLE;
    }
    if (chat && chat_warning(p->chat))
        fprintf(stderr, "glm-eval: warning: %s\n", chat_warning(p->chat));
    return EVAL_OK;
}

static int run_pairs(const struct eval_options *o, const char *file, bool chat) {
    struct pairs p = { .file = file };
    struct jl_iter it;
    int r;

    tbuf_init(&p.a, MAX_RENDER);
    tbuf_init(&p.b, MAX_RENDER);
    r = load(&p, o, chat);
    if (r == EVAL_OK) {
        for (bool more = jl_first(&it, p.array); more && r == EVAL_OK; more = jl_next(&it), p.n++) {
            if (jl_type(it.value) != JL_OBJECT)
                r = trouble(&p, "expected an object");
            else
                r = chat ? one_chat(&p, it.value) : one_tokens(&p, it.value);
        }
        if (r == EVAL_OK && !p.n)
            r = trouble(&p, "the file holds no pair");
        if (r == EVAL_OK)
            printf("%s: %u pairs, %u differ\n", file, p.n, p.wrong);
    }
    tbuf_done(&p.a);
    tbuf_done(&p.b);
    free(p.ids);
    tok_scratch_free(p.scratch);
    chat_free(p.chat);
    tok_free(p.tok);
    free(p.text);
    return r != EVAL_OK ? r : p.wrong ? EVAL_DIFFERS : EVAL_OK;
}

int eval_tokens(const struct eval_options *o, const char *file) {
    return run_pairs(o, file, false);
}

int eval_chat(const struct eval_options *o, const char *file) {
    return run_pairs(o, file, true);
}
