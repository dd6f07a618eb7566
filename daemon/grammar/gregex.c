/* SPDX-License-Identifier: MIT */
/* Reads a regular expression into a tree; see gregex.h for what is possible. Groups nest RX_DEPTH deep at
 * most, which bounds the recursion. Text workers only; allocates. */
#include "gregex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

static int64_t refuse(struct rx *x, const char *why) {
    return gcomp_fail(x->c, -EOPNOTSUPP, x->pattern, "the regular expression, at its byte %zu: %s", x->at,
                      why);
}

static int64_t new_node(struct rx *x, struct rx_node n) {
    if (!gcomp_room(x->c, &x->node, x->n_node, 1, &x->cap_node, sizeof *x->node))
        return x->c->err->code;
    x->node[x->n_node] = n;
    return x->n_node++;
}

static int add_range(struct rx *x, uint32_t lo, uint32_t hi) {
    if (lo > hi)
        return 0;
    if (!gcomp_room(x->c, &x->range, x->n_range, 1, &x->cap_range, sizeof *x->range))
        return x->c->err->code;
    x->range[x->n_range++] = (struct rx_range){lo, hi};
    return 0;
}

static int by_lo(const void *a, const void *b) {
    const struct rx_range *x = a, *y = b;

    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Ranges from first on: sorted, joined, turned round when `not`, without surrogates. */
static int64_t new_set(struct rx *x, uint32_t first, bool not ) {
    struct rx_range *a = x->range + first;
    uint32_t n = x->n_range - first, m = 0, from = 0, old = n;
    int r = 0;

    if (n)
        qsort(a, n, sizeof *a, by_lo);
    for (uint32_t i = 0; i < n; i++) {
        if (m > 0 && a[i].lo <= a[m - 1].hi + 1)
            a[m - 1].hi = a[i].hi > a[m - 1].hi ? a[i].hi : a[m - 1].hi;
        else
            a[m++] = a[i];
    }
    x->n_range = first + m;
    if (not ) {
        /* the gaps go behind the ranges, and then to their place */
        for (uint32_t i = 0; i <= m && r == 0; i++) {
            uint32_t lo = from, hi = i < m ? x->range[first + i].lo : 0x110000;

            from = i < m ? x->range[first + i].hi + 1 : 0;
            if (hi > lo)
                r = add_range(x, lo, hi - 1);
        }
        memmove(x->range + first, x->range + first + m, (x->n_range - first - m) * sizeof *x->range);
        x->n_range -= m;
    }
    old = x->n_range;
    for (uint32_t i = first; i < old && r == 0; i++) {
        struct rx_range *k = &x->range[i];

        if (k->hi < 0xd800 || k->lo > 0xdfff)
            continue;
        if (k->hi > 0xdfff) {
            r = add_range(x, 0xe000, k->hi);
            k = &x->range[i];
        }
        k->hi = 0xd7ff; /* empty when it began inside */
    }
    if (r < 0)
        return r;
    return new_node(x, (struct rx_node){.kind = RX_SET, .a = first, .b = x->n_range - first});
}

static int class_ranges(struct rx *x, char which) {
    static const struct rx_range digit[] = {{'0', '9'}},
                                 word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                 space[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},
                                            {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                            {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                            {0xfeff, 0xfeff}};
    const struct rx_range *r = (which | 0x20) == 'd' ? digit : (which | 0x20) == 'w' ? word : space;
    size_t n = r == digit ? 1 : r == word ? 4 : sizeof space / sizeof *space;
    uint32_t from = 0;
    int err = 0;

    for (size_t i = 0; i < n && err == 0; i++) {
        if (which & 0x20)
            err = add_range(x, r[i].lo, r[i].hi);
        else if (r[i].lo > from)
            err = add_range(x, from, r[i].lo - 1);
        from = r[i].hi + 1;
    }
    return err == 0 && !(which & 0x20) ? add_range(x, from, 0x10ffff) : err;
}

static uint32_t take_char(struct rx *x) {
    uint32_t cp = 0;
    int len = utf8_next(x->text + x->at, x->n - x->at, &cp);

    x->at += len > 0 ? (size_t)len : 1;
    return cp;
}

static bool peek(const struct rx *x, char c) {
    return x->at < x->n && x->text[x->at] == (uint8_t)c;
}

static int hex_digits(struct rx *x, unsigned n, uint32_t *ret) {
    uint32_t v = 0;

    for (unsigned i = 0; i < n; i++, x->at++) {
        uint8_t b = x->at < x->n ? x->text[x->at] : 0, low = b | 0x20;

        if (b >= '0' && b <= '9')
            v = v << 4 | (uint32_t)(b - '0');
        else if (low >= 'a' && low <= 'f')
            v = v << 4 | (uint32_t)(low - 'a' + 10);
        else
            return -EINVAL;
    }
    *ret = v;
    return 0;
}

/* Behind \u: XXXX, a pair of them, or {X…}. */
static int64_t unicode_escape(struct rx *x) {
    uint32_t v = 0, low = 0;

    if (peek(x, '{')) {
        unsigned n = 0;

        while (x->at + 1 + n < x->n && x->text[x->at + 1 + n] != '}')
            n++;
        x->at++;
        if (n < 1 || n > 6 || hex_digits(x, n, &v) < 0 || !peek(x, '}') || v > 0x10ffff)
            return refuse(x, "\\u{…} without a code point");
        x->at++;
    } else if (hex_digits(x, 4, &v) < 0) {
        return refuse(x, "\\u without four hexadecimal digits");
    }
    if (v >= 0xd800 && v < 0xdc00 && x->at + 1 < x->n && x->text[x->at] == '\\' &&
        x->text[x->at + 1] == 'u') {
        x->at += 2;
        if (hex_digits(x, 4, &low) < 0 || low < 0xdc00 || low > 0xdfff)
            return refuse(x, "half of a surrogate pair");
        v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
    }
    if (v >= 0xd800 && v < 0xe000)
        return refuse(x, "half of a surrogate pair");
    return v;
}

/* Behind a backslash: a code point, or -1 with *ret_class set. */
static int64_t escape(struct rx *x, bool in_class, char *ret_class) {
    static const char from[] = "tnvfr", to[] = "\t\n\v\f\r";
    const char *at;
    uint32_t c, v;

    *ret_class = 0;
    if (x->at == x->n)
        return refuse(x, "a backslash at the end");
    c = take_char(x);
    if (c < 0x80 && c && strchr("dwsDWS", (int)c)) {
        *ret_class = (char)c;
        return 0;
    }
    at = c && c < 0x80 ? strchr(from, (int)c) : NULL;
    if (at)
        return to[at - from];
    if (c == '0' && !(x->at < x->n && x->text[x->at] >= '0' && x->text[x->at] <= '9'))
        return 0;
    if (c == 'b' && in_class)
        return '\b';
    if (c == 'x')
        return hex_digits(x, 2, &v) < 0 ? refuse(x, "\\x without two hexadecimal digits") : (int64_t)v;
    if (c == 'u')
        return unicode_escape(x);
    if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        return refuse(x, "this escape is not possible here");
    return c;
}

/* Behind [. */
static int64_t parse_class(struct rx *x) {
    uint32_t first = x->n_range;
    bool not = false;

    if (peek(x, '^')) {
        not = true;
        x->at++;
    }
    while (!peek(x, ']')) {
        int64_t lo, hi;
        char cls = 0;
        int r;

        if (x->at == x->n)
            return refuse(x, "[ without ]");
        lo = take_char(x);
        if (lo == '\\')
            lo = escape(x, true, &cls);
        if (lo < 0)
            return lo;
        hi = lo;
        if (!cls && peek(x, '-') && x->at + 1 < x->n && x->text[x->at + 1] != ']') {
            char end = 0;

            x->at++;
            hi = take_char(x);
            if (hi == '\\')
                hi = escape(x, true, &end);
            if (hi < 0)
                return hi;
            if (end || hi < lo)
                return refuse(x, "a range that is none");
        }
        r = cls ? class_ranges(x, cls) : add_range(x, (uint32_t)lo, (uint32_t)hi);
        if (r < 0)
            return r;
    }
    x->at++;
    return new_set(x, first, not );
}

static int64_t one_char(struct rx *x, uint32_t lo) {
    uint32_t first = x->n_range;
    int r = add_range(x, lo, lo);

    return r < 0 ? r : new_set(x, first, false);
}

static int64_t parse_alternatives(struct rx *x);

static int64_t parse_group(struct rx *x) {
    int64_t r;

    if (peek(x, '?')) {
        x->at++;
        if (peek(x, ':')) {
            x->at++;
        } else if (peek(x, '<') && x->at + 1 < x->n && x->text[x->at + 1] != '=' &&
                   x->text[x->at + 1] != '!') {
            while (x->at < x->n && !peek(x, '>'))
                x->at++;
            x->at += x->at < x->n;
        } else {
            return refuse(x, "looking ahead or behind, or a flag, is not possible here");
        }
    }
    if (++x->depth > RX_DEPTH)
        return refuse(x, "groups nest too deep");
    r = parse_alternatives(x);
    x->depth--;
    if (r >= 0 && !peek(x, ')'))
        return refuse(x, "( without )");
    x->at++;
    return r;
}

static int64_t parse_atom(struct rx *x) {
    uint32_t first = x->n_range, c = take_char(x);
    int64_t v;
    char cls;
    int r;

    switch (c) {
    case '(':
        return parse_group(x);
    case '[':
        return parse_class(x);
    case '^':
        return new_node(x, (struct rx_node){.kind = RX_BEGIN});
    case '$':
        return new_node(x, (struct rx_node){.kind = RX_END});
    case '.':
        r = add_range(x, '\n', '\n');
        if (r == 0)
            r = add_range(x, '\r', '\r');
        if (r == 0)
            r = add_range(x, 0x2028, 0x2029);
        return r < 0 ? r : new_set(x, first, true);
    case '*':
    case '+':
    case '?':
        return refuse(x, "nothing to repeat");
    case '\\':
        v = escape(x, false, &cls);
        if (v < 0)
            return v;
        if (!cls)
            return one_char(x, (uint32_t)v);
        r = class_ranges(x, cls);
        return r < 0 ? r : new_set(x, first, false);
    default:
        return one_char(x, c);
    }
}

static bool number(const struct rx *x, size_t *at, uint32_t *ret) {
    size_t from = *at;
    uint32_t v = 0;

    for (; *at < x->n && x->text[*at] >= '0' && x->text[*at] <= '9'; (*at)++)
        v = v < 100000 ? v * 10 + (uint32_t)(x->text[*at] - '0') : v;
    *ret = v;
    return *at > from;
}

/* *, +, ?, {n}, {n,}, {n,m} behind an atom. False: none stands here. */
static bool quantifier(struct rx *x, uint32_t *min, uint32_t *max) {
    size_t at = x->at + 1;

    *min = peek(x, '+') ? 1 : 0;
    *max = peek(x, '?') ? 1 : RX_INFINITE;
    if (peek(x, '{')) {
        if (!number(x, &at, min))
            return false;
        *max = *min;
        if (at < x->n && x->text[at] == ',') {
            at++;
            if (!number(x, &at, max))
                *max = RX_INFINITE;
        }
        if (at == x->n || x->text[at] != '}')
            return false;
        at++;
    } else if (!peek(x, '*') && !peek(x, '+') && !peek(x, '?')) {
        return false;
    }
    x->at = at;
    if (peek(x, '?'))
        x->at++; /* lazy: the same strings */
    return true;
}

static int64_t parse_sequence(struct rx *x) {
    int64_t all = -1;

    while (x->at < x->n && !peek(x, '|') && !peek(x, ')')) {
        int64_t one = parse_atom(x);
        uint32_t min, max;

        if (one < 0)
            return one;
        if (quantifier(x, &min, &max)) {
            if (x->node[one].kind == RX_BEGIN || x->node[one].kind == RX_END)
                return refuse(x, "nothing to repeat");
            if (min > 10000 || (max > 10000 && max != RX_INFINITE) || min > max)
                return refuse(x, "a count above 10000, or the wrong way round");
            one = new_node(
                x, (struct rx_node){
                       .kind = RX_REPEAT, .a = (uint32_t)one, .min = (uint16_t)min, .max = (uint16_t)max});
        }
        if (one >= 0)
            all = all < 0
                      ? one
                      : new_node(x, (struct rx_node){.kind = RX_CAT, .a = (uint32_t)all, .b = (uint32_t)one});
        if (one < 0 || all < 0)
            return x->c->err->code;
    }
    return all < 0 ? new_node(x, (struct rx_node){.kind = RX_EMPTY}) : all;
}

static int64_t parse_alternatives(struct rx *x) {
    int64_t all = parse_sequence(x);

    while (all >= 0 && peek(x, '|')) {
        int64_t one;

        x->at++;
        one = parse_sequence(x);
        all = one < 0 ? one
                      : new_node(x, (struct rx_node){.kind = RX_ALT, .a = (uint32_t)all, .b = (uint32_t)one});
    }
    return all;
}

int64_t rx_parse(struct rx *x) {
    int64_t r = parse_alternatives(x);

    return r >= 0 && x->at < x->n ? refuse(x, ") without (") : r;
}

int gcomp_pattern(struct gcomp *c, struct tstr quoted, uint32_t min, uint32_t max, uint32_t *ret_dfa,
                  uint32_t *ret_start, bool *ret_empty) {
    struct rx x = {.c = c, .pattern = quoted};
    struct tbuf b;
    int64_t root;
    int r;

    tbuf_init(&b, quoted.n + 16);
    jl_unquote(quoted, &b);
    if (b.err < 0) {
        tbuf_done(&b);
        return xerr_set(c->err, b.err, "%s: no memory to compile it", c->what);
    }
    x.text = (const uint8_t *)b.p;
    x.n = b.n;
    root = rx_parse(&x);
    r = root < 0 ? (int)root : rx_compile(&x, (uint32_t)root, min, max, ret_dfa, ret_start, ret_empty);
    tbuf_done(&b);
    c->g->bytes -= x.cap_node * sizeof *x.node + x.cap_range * sizeof *x.range;
    free(x.node);
    free(x.range);
    return r;
}
