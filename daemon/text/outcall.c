/* SPDX-License-Identifier: MIT */
/* One tool call: its name, then its arguments as JSON under construction. There is one writer, so the
 * pieces always add up to the same bytes. Emit thread: no allocation; everything lies in struct outparse. */
#include "outpriv.h"

#include "jsonlite.h"
#include "utf8.h"

#include <errno.h>

#define VALUE_DEPTH 64

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct tstr trim(struct tstr s) {
    while (s.n > 0 && is_blank(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n > 0 && is_blank(s.p[s.n - 1]))
        s.n--;
    return s;
}

static void put_args(struct outparse *p, const char *text, size_t n) {
    struct outparse_ev ev = {.kind = OUT_EV_ARGS,
                             .channel = OUT_TOOL_ARGS,
                             .call = p->result.n_calls,
                             .tool = p->tool,
                             .text = text,
                             .n = n};

    if (n > 0)
        p->req.sink(p->req.arg, &ev);
}

/* As the inside of a JSON string, in pieces of whole characters that fit the escape buffer. */
static void put_escaped(struct outparse *p, const char *text, size_t n) {
    while (n > 0) {
        size_t len = n < p->esc_cap / 6 ? n : p->esc_cap / 6;
        struct tbuf b;

        while (len < n && ((uint8_t)text[len] & 0xc0) == 0x80)
            len--;
        tbuf_init_fixed(&b, p->esc, p->esc_cap);
        jl_escape(text, len, &b);
        put_args(p, b.p, b.n);
        text += len;
        n -= len;
    }
}

static void announce(struct outparse *p, int tool) {
    struct tstr name = outtools_name(p->req.tools, tool);
    struct outparse_ev ev = {.kind = OUT_EV_CALL,
                             .channel = OUT_TOOL_NAME,
                             .call = p->result.n_calls,
                             .tool = tool,
                             .text = name.p,
                             .n = name.n};

    p->tool = tool;
    p->open = true;
    p->n_pairs = 0;
    p->n_required_seen = 0;
    memset(p->seen, 0, sizeof p->seen);
    p->req.sink(p->req.arg, &ev);
}

static void close_call(struct outparse *p, bool complete) {
    struct outparse_ev ev = {.kind = OUT_EV_CALL_END,
                             .channel = OUT_TOOL_ARGS,
                             .call = p->result.n_calls,
                             .tool = p->tool,
                             .complete = complete};

    p->req.sink(p->req.arg, &ev);
    p->open = false;
    if (complete) {
        p->result.n_calls++;
        if (p->home == ST_REASONING)
            p->result.flags |= OUT_CALL_IN_THINK;
    } else {
        p->result.flags |= OUT_CALL_CUT;
    }
}

void out_call_as_text(struct outparse *p) {
    enum outparse_channel ch = p->home == ST_REASONING ? OUT_REASONING : OUT_CONTENT;
    const uint8_t *tag;
    size_t n;

    p->result.flags |= OUT_CALL_AS_TEXT;
    if (tok_bytes(p->req.vocab->tok, p->req.vocab->call, &tag, &n) >= 0)
        out_text(p, ch, (const char *)tag, n);
    out_text(p, ch, p->hold, p->hold_n);
    p->hold_n = 0;
    p->place = CALL_NAME;
    p->state = ST_BLOCK;
}

void out_name_begin(struct outparse *p) {
    p->hold_n = 0;
    p->open = false;
    p->tool = -1;
    p->state = ST_NAME;
}

void out_name_text(struct outparse *p, const char *text, size_t n) {
    if (n <= p->lim.hold_bytes - p->hold_n) {
        memcpy(p->hold + p->hold_n, text, n);
        p->hold_n += n;
        return;
    }
    p->result.flags |= OUT_OVER_HOLD;
    out_call_as_text(p);
    out_text(p, p->home == ST_REASONING ? OUT_REASONING : OUT_CONTENT, text, n);
}

int out_name_tool(const struct outparse *p) {
    return outtools_find(p->req.tools, trim((struct tstr){p->hold, p->hold_n}));
}

bool out_name_end(struct outparse *p) {
    int tool = out_name_tool(p);

    if (tool < 0) {
        out_call_as_text(p);
        return false;
    }
    announce(p, tool);
    p->state = ST_ARGS;
    return true;
}

/* The offered tool whose name begins s; the longest, but one whose rest is a parameter of it goes first. */
static int tool_prefix(const struct outparse *p, struct tstr s, struct tstr *ret_rest) {
    int best = -ENOENT;
    bool best_known = false;
    size_t best_n = 0;

    for (size_t i = 0; i < outtools_count(p->req.tools); i++) {
        struct tstr name = outtools_name(p->req.tools, (int)i), rest;
        unsigned types;
        bool known;

        if (name.n > s.n || memcmp(name.p, s.p, name.n) != 0)
            continue;
        rest = trim((struct tstr){s.p + name.n, s.n - name.n});
        known = outtools_param(p->req.tools, (int)i, rest, &types) >= 0;
        if (best >= 0 && (best_known > known || (best_known == known && best_n >= name.n)))
            continue;
        best = (int)i;
        best_known = known;
        best_n = name.n;
        *ret_rest = rest;
    }
    return best;
}

bool out_name_with_key(struct outparse *p) {
    struct tstr rest = {0};
    int tool = tool_prefix(p, trim((struct tstr){p->hold, p->hold_n}), &rest);

    if (tool < 0)
        return false;
    p->result.flags |= OUT_CALL_REPAIRED;
    announce(p, tool);
    p->state = ST_ARGS;
    if (rest.n > 0) {
        out_key_begin(p);
        out_key_text(p, rest.p, rest.n);
        p->state = ST_BETWEEN;
    }
    return true;
}

/* {"name": ..., "arguments": {...}} instead of tags */
static int json_call(const struct outparse *p, struct tstr s, struct tstr *ret_args) {
    struct tstr object, name, args;

    if (jl_check(s.p, s.n, VALUE_DEPTH, &object, NULL) != JL_OBJECT)
        return -ENOENT;
    name = jl_get(object, "name");
    args = jl_get(object, "arguments");
    if (!name.p || jl_type(name) != JL_STRING || !args.p || jl_type(args) != JL_OBJECT)
        return -ENOENT;
    for (size_t i = 0; i < outtools_count(p->req.tools); i++) {
        struct tstr tool = outtools_name(p->req.tools, (int)i);

        if (jl_str_is(name, tool.p, tool.n)) {
            *ret_args = args;
            return (int)i;
        }
    }
    return -ENOENT;
}

bool out_name_is_call(struct outparse *p) {
    struct tstr s = trim((struct tstr){p->hold, p->hold_n}), args = {0};
    int tool = outtools_find(p->req.tools, s);

    if (tool >= 0) {
        announce(p, tool);
        out_call_complete(p);
        return true;
    }
    tool = tool_prefix(p, s, &args);
    if (tool < 0 || args.n == 0 || jl_check(args.p, args.n, VALUE_DEPTH, &args, NULL) != JL_OBJECT)
        tool = json_call(p, s, &args);
    if (tool < 0)
        return false;
    p->result.flags |= OUT_CALL_REPAIRED;
    announce(p, tool);
    put_args(p, args.p, args.n);
    close_call(p, true);
    p->state = p->home;
    return true;
}

void out_key_begin(struct outparse *p) {
    p->key_n = 0;
    p->key_over = false;
    p->state = ST_KEY;
}

void out_key_text(struct outparse *p, const char *text, size_t n) {
    if (p->key_over || n > p->lim.key_bytes - p->key_n) {
        p->key_over = true;
        return;
    }
    memcpy(p->key + p->key_n, text, n);
    p->key_n += n;
}

static void put_pair_begin(struct outparse *p) {
    put_args(p, p->n_pairs == 0 ? "{\"" : ", \"", p->n_pairs == 0 ? 2 : 3);
    p->n_pairs++;
    put_escaped(p, p->key, p->key_n);
    put_args(p, "\": ", 3);
}

static void stream_begin(struct outparse *p) {
    put_pair_begin(p);
    put_args(p, "\"", 1);
    p->streams = true;
}

void out_value_begin(struct outparse *p) {
    struct tstr key = {p->key, p->key_n}, trimmed = trim(key);
    unsigned types;
    int param;

    if (p->key_over) {
        p->result.flags |= OUT_OVER_KEY;
        p->state = ST_DROP;
        return;
    }
    param = outtools_param(p->req.tools, p->tool, key, &p->types);
    if (param < 0 && trimmed.n != key.n) {
        param = outtools_param(p->req.tools, p->tool, trimmed, &types);
        if (param >= 0) {
            p->types = types;
            memmove(p->key, trimmed.p, trimmed.n);
            p->key_n = trimmed.n;
            p->result.flags |= OUT_CALL_REPAIRED;
        }
    }
    if (param >= 0 && !(p->seen[param / 8] >> param % 8 & 1)) {
        p->seen[param / 8] |= (uint8_t)(1u << param % 8);
        p->n_required_seen += outtools_is_required(p->req.tools, p->tool, param);
    }
    p->hold_n = 0;
    p->streams = false;
    p->state = ST_VALUE;
    if (p->types & OUTTOOLS_STRING && !FAULT(outparse_json_first))
        stream_begin(p);
}

void out_value_text(struct outparse *p, const char *text, size_t n) {
    if (!p->streams && n <= p->lim.hold_bytes - p->hold_n) {
        memcpy(p->hold + p->hold_n, text, n);
        p->hold_n += n;
        return;
    }
    if (!p->streams) { /* does not fit: goes out as a string, and the result says so */
        p->result.flags |= OUT_OVER_HOLD;
        stream_begin(p);
        put_escaped(p, p->hold, p->hold_n);
    }
    put_escaped(p, text, n);
}

static bool admitted(unsigned types, int type, struct tstr v) {
    switch (type) {
    case JL_NUMBER:
        return types & (jl_is_integer(v) ? OUTTOOLS_INTEGER | OUTTOOLS_NUMBER : OUTTOOLS_NUMBER);
    case JL_BOOL:
        return types & OUTTOOLS_BOOL;
    case JL_NULL:
        return types & OUTTOOLS_NULL;
    case JL_ARRAY:
        return types & OUTTOOLS_ARRAY;
    case JL_OBJECT:
        return types & OUTTOOLS_OBJECT;
    default:
        return false; /* a quoted string where none is admitted, or no JSON at all */
    }
}

void out_value_end(struct outparse *p) {
    struct tstr v = {0};
    int type;

    if (!p->streams) {
        type = jl_check(p->hold, p->hold_n, VALUE_DEPTH, &v, NULL);
        if (type > 0 && admitted(p->types, type, v)) {
            put_pair_begin(p);
            put_args(p, v.p, v.n);
            p->state = ST_ARGS;
            return;
        }
        stream_begin(p);
        put_escaped(p, p->hold, p->hold_n);
    }
    put_args(p, "\"", 1);
    p->state = ST_ARGS;
}

bool out_has_required(const struct outparse *p) {
    return p->n_required_seen == outtools_required(p->req.tools, p->tool);
}

void out_call_complete(struct outparse *p) {
    if (p->n_pairs == 0)
        put_args(p, "{}", 2);
    else
        put_args(p, "}", 1);
    close_call(p, true);
    p->state = p->home;
}

void out_call_void(struct outparse *p) {
    if (p->open)
        close_call(p, false);
    p->result.flags |= OUT_CALL_CUT;
    p->state = p->home;
}
