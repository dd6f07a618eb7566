/* SPDX-License-Identifier: MIT */
/* Strings and member names, byte by byte. Escapes are decoded here, so that declared names, lists, automata
 * and lengths see characters whatever way they were written. Any thread, no allocation. */
#include "grampriv.h"

#include <string.h>

#include "utf8.h"

bool gram_member_possible(const struct grammar *g, const struct grammar_state *s, const struct gthread *t) {
    const struct gleaf *x = &g->leaf[t->leaf];

    for (uint32_t i = t->lo; i < t->hi; i++)
        if (!(t->seen[i / 64] >> i % 64 & 1) && gram_fits(g, s, g->name[x->name0 + i].schema))
            return true;
    return false;
}

/* The range lo .. hi of a sorted list whose members agree in len bytes is cut to those that go on with b. */
void gram_narrow(const struct grammar *g, uint32_t name0, uint32_t len, uint8_t b, uint32_t *lo,
                 uint32_t *hi) {
    const struct gname *n = g->name + name0;
    uint32_t a = *lo, z = *hi;

    for (uint32_t x = z; a < x;) { /* the first that goes on with b or more */
        uint32_t mid = a + (x - a) / 2;

        if (n[mid].len <= len || (uint8_t)g->text[n[mid].off + len] < b)
            a = mid + 1;
        else
            x = mid;
    }
    for (uint32_t x = a; x < z;) { /* the first that goes on with more than b */
        uint32_t mid = x + (z - x) / 2;

        if ((uint8_t)g->text[n[mid].off + len] <= b)
            x = mid + 1;
        else
            z = mid;
    }
    *lo = a;
    *hi = z;
}

static bool in_key(const struct grammar_state *s) {
    return s->mode == MODE_IN_KEY;
}

/* Some alternative takes any character next. */
bool gram_free_chars(const struct grammar *g, const struct grammar_state *s) {
    if (in_key(s)) {
        const struct glevel *l = &s->level[s->depth];

        for (uint32_t i = 0; i < l->n; i++)
            if (l->alive >> i & 1 && gram_fits(g, s, g->leaf[s->thread[l->first + i].leaf].other))
                return true;
        return false;
    }
    for (uint32_t i = 0; i < s->n_scalars; i++) {
        const struct gleaf *x = &g->leaf[s->scalar[i].leaf];

        if (x->how == HOW_FREE && s->chars < x->max)
            return true;
    }
    return false;
}

/* Names of one alternative after one more byte. False: none is left, and no other is allowed. */
static bool key_step(const struct grammar *g, const struct grammar_state *s, struct gthread *t, uint8_t b) {
    const struct gleaf *x = &g->leaf[t->leaf];

    gram_narrow(g, x->name0, s->len, b, &t->lo, &t->hi);
    return gram_fits(g, s, x->other) || gram_member_possible(g, s, t);
}

static bool scalar_step(const struct grammar *g, const struct grammar_state *s, struct gscalar *v,
                        uint8_t b) {
    const struct gleaf *x = &g->leaf[v->leaf];

    switch (x->how) {
    case HOW_LIST:
        gram_narrow(g, x->name0, s->len, b, &v->lo, &v->hi);
        return v->lo < v->hi;
    case HOW_DFA:
        v->lo = gram_next(&g->dfa[x->dfa], v->lo, b);
        return v->lo != GRAM_NONE;
    default:
        return true;
    }
}

/* A decoded byte. */
static bool put_byte(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    uint32_t n = 0;

    if (in_key(s)) {
        struct glevel *l = &s->level[s->depth];

        for (uint32_t i = 0; i < l->n; i++)
            if (l->alive >> i & 1 && !key_step(g, s, &s->thread[l->first + i], b))
                l->alive &= ~(UINT32_C(1) << i);
        s->len++;
        return l->alive != 0;
    }
    for (uint32_t i = 0; i < s->n_scalars; i++)
        if (scalar_step(g, s, &s->scalar[i], b))
            s->scalar[n++] = s->scalar[i];
    s->n_scalars = (uint8_t)n;
    s->len++;
    return n > 0;
}

/* One more character: alternatives that are full end here. */
static bool begin_char(const struct grammar *g, struct grammar_state *s) {
    uint32_t n = 0;

    s->chars++;
    if (in_key(s))
        return true;
    for (uint32_t i = 0; i < s->n_scalars; i++) {
        const struct gleaf *x = &g->leaf[s->scalar[i].leaf];

        if (x->how != HOW_FREE || s->chars <= x->max)
            s->scalar[n++] = s->scalar[i];
    }
    s->n_scalars = (uint8_t)n;
    return n > 0;
}

static bool put_char(const struct grammar *g, struct grammar_state *s, uint32_t cp) {
    char out[4];
    size_t n = utf8_put(cp, out);

    if (!begin_char(g, s) || (in_key(s) && cp == 0))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!put_byte(g, s, (uint8_t)out[i]))
            return false;
    s->sub = SUB_PLAIN;
    return true;
}

/* Some alternative that fixes its characters takes c next. */
static bool takes(const struct grammar *g, const struct grammar_state *s, uint8_t c) {
    if (in_key(s)) {
        const struct glevel *l = &s->level[s->depth];

        for (uint32_t i = 0; i < l->n; i++) {
            struct gthread t = s->thread[l->first + i];

            if (l->alive >> i & 1 && key_step(g, s, &t, c))
                return true;
        }
        return false;
    }
    for (uint32_t i = 0; i < s->n_scalars; i++) {
        struct gscalar v = s->scalar[i];

        if (g->leaf[v.leaf].how != HOW_FREE && scalar_step(g, s, &v, c))
            return true;
    }
    return false;
}

static bool has_short_form(uint8_t c) {
    return c && strchr("\b\f\n\r\t", c);
}

/* An escape may begin, or go on with its first n_hex digits, where every alternative fixes its characters:
 * those that cannot be written otherwise alone, in their short form where there is one. */
static bool fixed_escape(const struct grammar *g, const struct grammar_state *s, bool hex) {
    for (uint8_t c = 0; c < 0x20; c++) {
        if (hex && (has_short_form(c) || (uint32_t)c >> (16 - 4 * s->n_hex) != s->hex))
            continue;
        if (takes(g, s, c))
            return true;
    }
    return !hex && (takes(g, s, '"') || takes(g, s, '\\'));
}

static bool escape_byte(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    static const char from[] = "\"\\bfnrt/", to[] = "\"\\\b\f\n\r\t/";
    const char *at;
    bool any = gram_free_chars(g, s);

    if (b == 'u') {
        s->sub = SUB_HEX;
        s->n_hex = 0;
        s->hex = 0;
        return any || fixed_escape(g, s, true);
    }
    at = memchr(from, b, sizeof from - 1);
    if (!at || (b == '/' && !any))
        return false;
    return put_char(g, s, (uint8_t)to[at - from]);
}

static int hex_value(uint8_t b) {
    if (b >= '0' && b <= '9')
        return b - '0';
    b |= 0x20;
    return b >= 'a' && b <= 'f' ? b - 'a' + 10 : -1;
}

/* The digits of \uXXXX; a pair of surrogates is one character, and one alone is none. */
static bool hex_byte(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    int v = hex_value(b);
    uint32_t top;

    if (v < 0)
        return false;
    s->hex = s->hex << 4 | (uint32_t)v;
    s->n_hex++;
    top = s->hex << (16 - 4 * s->n_hex);
    if (s->sub == SUB_LOW) {
        if (s->n_hex == 1 ? top != 0xd000 : top < 0xdc00 || top > 0xdfff)
            return false;
        return s->n_hex < 4 || put_char(g, s, 0x10000 + ((s->high - 0xd800) << 10) + (s->hex - 0xdc00));
    }
    if (!gram_free_chars(g, s))
        return fixed_escape(g, s, true) && (s->n_hex < 4 || put_char(g, s, s->hex));
    if (s->n_hex >= 2 && top >= 0xdc00 && top <= 0xdfff)
        return FAULT(grammar_lone_surrogate) && (s->n_hex < 4 || put_char(g, s, s->hex));
    if (s->n_hex < 4)
        return true;
    if (s->hex < 0xd800 || s->hex > 0xdbff)
        return put_char(g, s, s->hex);
    s->high = s->hex;
    s->sub = SUB_HIGH;
    return true;
}

static bool utf8_byte(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    int len;

    if (s->sub != SUB_CHAR) {
        s->n_utf8 = 0;
        if (!begin_char(g, s))
            return false;
        s->sub = SUB_CHAR;
    }
    s->utf8[s->n_utf8++] = b;
    len = utf8_next(s->utf8, s->n_utf8, NULL);
    if (len < 0 || !put_byte(g, s, b))
        return false;
    if (len > 0)
        s->sub = SUB_PLAIN;
    return true;
}

bool gram_key_begin(const struct grammar *g, struct grammar_state *s) {
    struct glevel *l = &s->level[s->depth];

    s->mode = MODE_IN_KEY;
    s->sub = SUB_PLAIN;
    s->chars = s->len = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        struct gthread *t = &s->thread[l->first + i];
        const struct gleaf *x = &g->leaf[t->leaf];

        t->lo = 0;
        t->hi = x->n_names;
        if (l->alive >> i & 1 && !gram_member_possible(g, s, t) && !gram_fits(g, s, x->other))
            l->alive &= ~(UINT32_C(1) << i);
    }
    return l->alive != 0;
}

/* The name is written: which member is it? */
static bool key_end(const struct grammar *g, struct grammar_state *s) {
    struct glevel *l = &s->level[s->depth];

    for (uint32_t i = 0; i < l->n; i++) {
        struct gthread *t = &s->thread[l->first + i];
        const struct gleaf *x = &g->leaf[t->leaf];

        if (!(l->alive >> i & 1))
            continue;
        t->member = GRAM_NONE;
        t->child = x->other;
        if (t->lo < t->hi && g->name[x->name0 + t->lo].len == s->len) {
            t->member = t->lo;
            t->child = g->name[x->name0 + t->lo].schema;
            if (t->seen[t->lo / 64] >> t->lo % 64 & 1)
                t->child = GRAM_NONE;
        }
        if (!gram_fits(g, s, t->child))
            l->alive &= ~(UINT32_C(1) << i);
    }
    s->mode = MODE_COLON;
    return l->alive != 0;
}

uint32_t gram_string_parents(const struct grammar *g, const struct grammar_state *s) {
    uint32_t parents = 0;

    if (s->sub != SUB_PLAIN)
        return 0;
    for (uint32_t i = 0; i < s->n_scalars; i++) {
        const struct gscalar *v = &s->scalar[i];
        const struct gleaf *x = &g->leaf[v->leaf];
        bool ends;

        if (x->how == HOW_LIST)
            ends = v->lo < v->hi && g->name[x->name0 + v->lo].len == s->len;
        else if (x->how == HOW_DFA)
            ends = g->dfa[x->dfa].state[v->lo].accepts;
        else
            ends = s->chars >= x->min;
        if (ends)
            parents |= v->parents;
    }
    return parents;
}

static bool plain_byte(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    return b < 0x80 ? begin_char(g, s) && put_byte(g, s, b) : utf8_byte(g, s, b);
}

int gram_string_byte(const struct grammar *g, struct grammar_state *s, uint8_t b, uint32_t *ret_parents) {
    bool good;

    switch (s->sub) {
    case SUB_CHAR:
        good = utf8_byte(g, s, b);
        break;
    case SUB_ESC:
        good = escape_byte(g, s, b);
        break;
    case SUB_HEX:
    case SUB_LOW:
        good = hex_byte(g, s, b);
        break;
    case SUB_HIGH:
        s->sub = SUB_HIGH_U;
        good = b == '\\';
        break;
    case SUB_HIGH_U:
        s->sub = SUB_LOW;
        s->n_hex = 0;
        s->hex = 0;
        good = b == 'u';
        break;
    default:
        if (b == '"') {
            if (in_key(s))
                return key_end(g, s) ? 0 : -1;
            *ret_parents = gram_string_parents(g, s);
            return *ret_parents ? 1 : -1;
        }
        if (b == '\\') {
            s->sub = SUB_ESC;
            good = gram_free_chars(g, s) || fixed_escape(g, s, false);
        } else {
            good = b >= 0x20 && plain_byte(g, s, b);
        }
    }
    return good ? 0 : -1;
}

bool gram_raw_byte(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    if (s->sub == SUB_CHAR ? !utf8_byte(g, s, b) : !plain_byte(g, s, b))
        return false;
    return s->mode != MODE_ARG_KEY || gram_arg_possible(g, s, s->scalar[0].lo, s->scalar[0].hi);
}
