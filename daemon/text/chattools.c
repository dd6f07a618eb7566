/* SPDX-License-Identifier: MIT */
/* The parts of a prompt that come from JSON: tool definitions, calls of the history, results in call
 * order. History is never refused: what does not parse is rendered as no arguments and counted. Text
 * workers only (allocates). */
#include "chatpriv.h"

#include "jsonlite.h"

#include <errno.h>
#include <stdlib.h>

static int put_tool(struct chat_out *o, struct tstr text, size_t index, struct xerr *err) {
    struct jl_fault f = {0};
    struct tstr tool, inner, defer;
    struct jl_iter it;
    size_t from;
    bool first = true;
    int type = jl_check(text.p, text.n, CHAT_JSON_DEPTH, &tool, &f);

    if (type < 0)
        return xerr_set(err, type, "tools[%zu]: not JSON: %s at byte %zu; expected one object", index, f.why,
                        f.at);
    if (type != JL_OBJECT)
        return xerr_set(err, -EINVAL, "tools[%zu]: not a JSON object; expected a tool definition", index);
    defer = jl_get(tool, "defer_loading");
    if (tstr_is(defer, "true"))
        return 0;
    inner = jl_get(tool, "function");
    if (inner.p) {
        if (jl_type(inner) != JL_OBJECT)
            return xerr_set(err, -EINVAL, "tools[%zu].function: not a JSON object", index);
        tool = inner;
        defer = jl_get(tool, "defer_loading");
        if (tstr_is(defer, "true"))
            return 0;
    }
    from = o->text.n;
    tbuf_putc(&o->text, '{');
    for (bool more = jl_first(&it, tool); more; more = jl_next(&it)) {
        if (jl_str_is(it.key, "strict", 6) || jl_str_is(it.key, "defer_loading", 13))
            continue;
        if (!first)
            tbuf_puts(&o->text, ", ");
        first = false;
        jl_rewrite(it.key, &o->text);
        tbuf_puts(&o->text, ": ");
        jl_rewrite(it.value, &o->text);
    }
    tbuf_puts(&o->text, "}\n");
    chat_close_text(o, from);
    return 0;
}

/* The template's own words may hold markers (its example call): those are control, as the reference
 * encodes them. */
static void put_words(const struct chat *c, struct chat_out *o, const char *p, size_t n) {
    size_t from = 0, len;

    for (size_t at = 0; at < n;) {
        int64_t id = tok_marker_at(c->tok, p + at, n - at, &len);

        if (id < 0) {
            at++;
            continue;
        }
        chat_put_text(o, p + from, at - from);
        chat_put_id(o, (uint32_t)id);
        at += len;
        from = at;
    }
    chat_put_text(o, p + from, n - from);
}

int chat_put_tools(const struct chat *c, const struct chat_req *req, struct chat_out *o, struct xerr *err) {
    if (!c->head)
        return xerr_set(
            err, -ENOTSUP,
            "tools: this checkpoint's chat_template.jinja has no tool block that could be found; send the "
            "request without tools or use a checkpoint with the GLM-5.3 template");
    put_words(c, o, c->head, c->head_n);
    for (size_t i = 0; i < req->n_tools; i++) {
        int r = put_tool(o, req->tools[i], i, err);

        if (r < 0)
            return r;
    }
    put_words(c, o, c->tail, c->tail_n);
    return 0;
}

struct arg {
    size_t key_off, key_n; /* decoded, in the keys buffer */
    size_t order;
    struct tstr value;
    bool skip;
};

static int by_key(const void *pa, const void *pb, void *keys) {
    const struct arg *a = *(struct arg *const *)pa, *b = *(struct arg *const *)pb;
    size_t n = a->key_n < b->key_n ? a->key_n : b->key_n;
    int r = n ? memcmp((const char *)keys + a->key_off, (const char *)keys + b->key_off, n) : 0;

    if (r == 0 && a->key_n != b->key_n)
        return a->key_n < b->key_n ? -1 : 1;
    return r ? r : a->order < b->order ? -1 : 1;
}

/* A key given twice keeps its first place and its last value. Sorting keeps this fast for any number of
 * keys. */
static void drop_doubles(struct arg *args, struct arg **sorted, size_t n, char *keys) {
    for (size_t i = 0; i < n; i++)
        sorted[i] = &args[i];
    qsort_r(sorted, n, sizeof *sorted, by_key, keys);
    for (size_t i = 0, first = 0; i < n; i++) {
        struct arg *a = sorted[first], *b = sorted[i];

        if (i == first)
            continue;
        if (a->key_n == b->key_n && memcmp(keys + a->key_off, keys + b->key_off, a->key_n) == 0) {
            a->value = b->value;
            b->skip = true;
        } else {
            first = i;
        }
    }
}

static void put_args(const struct chat *c, struct chat_out *o, struct tstr object) {
    struct tbuf keys;
    struct jl_iter it;
    struct arg *args;
    size_t n = 0, i = 0;

    for (bool more = jl_first(&it, object); more; more = jl_next(&it))
        n++;
    if (n == 0)
        return;
    tbuf_init(&keys, object.n + 1);
    tbuf_reserve(&keys, 1); /* all keys may be empty */
    args = calloc(n, sizeof *args + sizeof(struct arg *));
    for (bool more = args && jl_first(&it, object); more; more = jl_next(&it), i++) {
        args[i] = (struct arg){.key_off = keys.n, .order = i, .value = it.value};
        jl_unquote(it.key, &keys);
        args[i].key_n = keys.n - args[i].key_off;
    }
    if (!args || keys.err) {
        o->text.err = -ENOMEM;
        n = 0;
    } else {
        drop_doubles(args, (struct arg **)(void *)(args + n), n, keys.p);
    }
    for (i = 0; i < n; i++) {
        size_t from;

        if (args[i].skip)
            continue;
        chat_put_control(c, o, CC_KEY);
        chat_put_text(o, keys.p + args[i].key_off, args[i].key_n);
        chat_put_control(c, o, CC_KEY_END);
        chat_put_control(c, o, CC_VALUE);
        from = o->text.n;
        if (jl_type(args[i].value) == JL_STRING)
            jl_unquote(args[i].value, &o->text);
        else
            jl_rewrite(args[i].value, &o->text);
        chat_close_text(o, from);
        chat_put_control(c, o, CC_VALUE_END);
    }
    free(args);
    tbuf_done(&keys);
}

int chat_call_args(const struct chat_call *call, struct tbuf *inner, struct tstr *ret) {
    int type = call->arguments.n
                   ? jl_check(call->arguments.p, call->arguments.n, CHAT_JSON_DEPTH, ret, NULL)
                   : -EINVAL;

    if (type == JL_STRING) { /* an object that somebody encoded twice */
        tbuf_init(inner, call->arguments.n + 1);
        jl_unquote(*ret, inner);
        type = inner->n && !inner->err ? jl_check(inner->p, inner->n, CHAT_JSON_DEPTH, ret, NULL) : -EINVAL;
    }
    return type == JL_OBJECT ? 0 : -EINVAL;
}

void chat_put_call(const struct chat *c, struct chat_out *o, const struct chat_call *call) {
    struct tstr args = {0};
    struct tbuf inner = {0};
    int r = chat_call_args(call, &inner, &args);

    chat_put_control(c, o, CC_CALL);
    chat_put_text(o, call->name.p, call->name.n);
    if (r == 0)
        put_args(c, o, args);
    if (r < 0 || call->name.n == 0)
        o->n_bad_calls++;
    chat_put_control(c, o, CC_CALL_END);
    tbuf_done(&inner);
}

struct ordered {
    struct tstr id;
    size_t call; /* position of the call */
    const struct chat_result *result;
};

static int by_id(const void *pa, const void *pb) {
    const struct ordered *a = pa, *b = pb;
    size_t n = a->id.n < b->id.n ? a->id.n : b->id.n;
    int r = n ? memcmp(a->id.p, b->id.p, n) : 0;

    return r ? r : (a->id.n > b->id.n) - (a->id.n < b->id.n);
}

static int by_call(const void *pa, const void *pb) {
    const struct ordered *a = pa, *b = pb;

    return (a->call > b->call) - (a->call < b->call);
}

/* True when every call and every result has an id, none twice, and every result answers a call; then
 * results are in call order. */
static bool sort_results(const struct chat_msg *calls, struct ordered *by, struct ordered *res, size_t n) {
    for (size_t i = 0; i < calls->n_calls; i++) {
        if (calls->calls[i].id.n == 0)
            return false;
        by[i] = (struct ordered){.id = calls->calls[i].id, .call = i};
    }
    qsort(by, calls->n_calls, sizeof *by, by_id);
    for (size_t i = 1; i < calls->n_calls; i++) {
        if (by_id(&by[i - 1], &by[i]) == 0)
            return false;
    }
    for (size_t i = 0; i < n; i++) {
        const struct ordered *hit;

        if (res[i].id.n == 0)
            return false;
        hit = bsearch(&res[i], by, calls->n_calls, sizeof *by, by_id);
        if (!hit)
            return false;
        res[i].call = hit->call;
    }
    qsort(res, n, sizeof *res, by_call);
    for (size_t i = 1; i < n; i++) {
        if (res[i - 1].call == res[i].call)
            return false;
    }
    return true;
}

static void put_result(const struct chat *c, struct chat_out *o, const struct chat_result *r) {
    chat_put_control(c, o, CC_RESPONSE);
    chat_put_parts(c, o, r->parts, r->n_parts);
    chat_put_control(c, o, CC_RESPONSE_END);
}

void chat_put_results(const struct chat *c, struct chat_out *o, const struct chat_msg *msgs, size_t first,
                      size_t end) {
    const struct chat_msg *calls =
        first > 0 && msgs[first - 1].role == CHAT_ASSISTANT ? &msgs[first - 1] : NULL;
    struct ordered *all = NULL;
    size_t n = 0, at = 0, n_calls = calls ? calls->n_calls : 0;

    chat_put_control(c, o, CC_OBSERVATION);
    for (size_t i = first; i < end; i++)
        n += msgs[i].n_results;
    if (n_calls > 0 && n > 1) {
        all = calloc(n_calls + n, sizeof *all);
        if (!all) {
            o->text.err = -ENOMEM;
            return;
        }
        for (size_t i = first; i < end; i++) {
            for (size_t k = 0; k < msgs[i].n_results; k++)
                all[n_calls + at++] =
                    (struct ordered){.id = msgs[i].results[k].id, .result = &msgs[i].results[k]};
        }
        if (sort_results(calls, all, all + n_calls, n)) {
            for (size_t i = 0; i < n; i++)
                put_result(c, o, all[n_calls + i].result);
            free(all);
            return;
        }
        free(all);
    }
    for (size_t i = first; i < end; i++) {
        for (size_t k = 0; k < msgs[i].n_results; k++)
            put_result(c, o, &msgs[i].results[k]);
    }
}
