/* SPDX-License-Identifier: MIT */
/* The automaton, byte by byte: values, containers, words. The nesting of a text is known whatever the schema,
 * so the alternatives of a schema run side by side as small sets, one for each open level; each alternative
 * names those of the level below that it serves. Any thread, no allocation. */
#include "grampriv.h"

#include <string.h>

static bool is_blank(uint8_t b) {
    return b == ' ' || b == '\n' || b == '\t' || b == '\r';
}

bool gram_fits(const struct grammar *g, const struct grammar_state *s, uint32_t schema) {
    return schema != GRAM_NONE && g->schema[schema].height + (uint32_t)s->depth <= g->depth;
}

static uint32_t child_of(const struct grammar *g, const struct grammar_state *s, const struct gthread *t) {
    const struct glevel *l = &s->level[s->depth];
    const struct gleaf *x;

    if (s->depth == 0 || l->object)
        return t->child;
    x = &g->leaf[t->leaf];
    return l->count < x->n_items ? g->item[x->item0 + l->count] : x->other;
}

void gram_value(struct grammar_state *s, uint32_t schema) {
    s->depth = 0;
    s->mode = MODE_VALUE;
    s->blanks = 0;
    s->n_scalars = 0;
    s->level[0] = (struct glevel){.n = 1, .alive = 1};
    s->thread[0] = (struct gthread){.leaf = GRAM_NONE, .child = schema, .member = GRAM_NONE};
}

/* The leaves of a kind that may begin here, each with the alternatives it serves, into s->scalar. */
static bool collect(const struct grammar *g, struct grammar_state *s, enum gleaf_kind kind) {
    const struct glevel *l = &s->level[s->depth];
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->n; i++) {
        const struct gschema *c;
        uint32_t child;

        if (!(l->alive >> i & 1))
            continue;
        child = child_of(g, s, &s->thread[l->first + i]);
        if (child == GRAM_NONE)
            continue;
        c = &g->schema[child];
        for (uint32_t k = 0; k < c->n_leaves; k++) {
            uint32_t id = g->closure[c->leaf0 + k], at = 0;

            if (g->leaf[id].kind != kind || g->leaf[id].height + (uint32_t)s->depth > g->depth)
                continue;
            while (at < n && s->scalar[at].leaf != id)
                at++;
            if (at == GRAM_SIDE)
                return false; /* the compiler has counted: cannot be */
            if (at == n)
                s->scalar[n++] = (struct gscalar){.leaf = id};
            s->scalar[at].parents |= UINT32_C(1) << i;
        }
    }
    s->n_scalars = (uint8_t)n;
    return n > 0;
}

static bool open_level(const struct grammar *g, struct grammar_state *s, bool object) {
    struct glevel *l = &s->level[s->depth], *top = l + 1;

    if (s->depth == GRAM_DEPTH || !collect(g, s, object ? LEAF_OBJECT : LEAF_ARRAY))
        return false;
    *top = (struct glevel){.first = (uint16_t)(l->first + l->n), .n = s->n_scalars, .object = object};
    if (top->first + top->n > GRAM_POOL + 1)
        return false;
    for (uint32_t i = 0; i < top->n; i++)
        s->thread[top->first + i] = (struct gthread){.leaf = s->scalar[i].leaf,
                                                     .parents = s->scalar[i].parents,
                                                     .child = GRAM_NONE,
                                                     .member = GRAM_NONE};
    top->alive = top->n == 32 ? UINT32_MAX : (UINT32_C(1) << top->n) - 1;
    s->n_scalars = 0;
    s->depth++;
    s->mode = object ? MODE_KEY_OR_END : MODE_ELEMENT_OR_END;
    return true;
}

static bool begin_string(const struct grammar *g, struct grammar_state *s) {
    if (!collect(g, s, LEAF_STRING))
        return false;
    for (uint32_t i = 0; i < s->n_scalars; i++) {
        const struct gleaf *x = &g->leaf[s->scalar[i].leaf];

        s->scalar[i].lo = x->how == HOW_DFA ? x->start : 0;
        s->scalar[i].hi = x->n_names;
    }
    s->mode = MODE_STRING;
    s->sub = SUB_PLAIN;
    s->chars = s->len = 0;
    return true;
}

static const char *const words[] = {"true", "false", "null"};

static bool begin_word(const struct grammar *g, struct grammar_state *s, uint32_t word) {
    uint32_t parents = 0;

    if (!collect(g, s, LEAF_WORD))
        return false;
    for (uint32_t i = 0; i < s->n_scalars; i++)
        if (g->leaf[s->scalar[i].leaf].words >> word & 1)
            parents |= s->scalar[i].parents;
    s->scalar[0] = (struct gscalar){.leaf = GRAM_NONE, .parents = parents};
    s->n_scalars = 1;
    s->mode = MODE_WORD;
    s->word = (uint8_t)word;
    s->at = 1;
    return parents != 0;
}

/* The value is written; parents are the alternatives of the innermost level that it satisfies. */
static bool value_done(struct grammar_state *s, uint32_t parents) {
    struct glevel *l = &s->level[s->depth];

    s->n_scalars = 0;
    s->mode = MODE_AFTER;
    l->alive &= parents;
    l->count++;
    if (s->depth > 0 && l->object) {
        for (uint32_t i = 0; i < l->n; i++) {
            struct gthread *t = &s->thread[l->first + i];

            if (t->member != GRAM_NONE && !FAULT(grammar_member_twice))
                t->seen[t->member / 64] |= UINT64_C(1) << t->member % 64;
            t->member = GRAM_NONE;
        }
    }
    return l->alive != 0;
}

static bool begin_value(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    switch (b) {
    case '{':
        return open_level(g, s, true);
    case '[':
        return open_level(g, s, false);
    case '"':
        return begin_string(g, s);
    case 't':
        return begin_word(g, s, 0);
    case 'f':
        return begin_word(g, s, 1);
    case 'n':
        return begin_word(g, s, 2);
    default:
        if (b != '-' && (b < '0' || b > '9'))
            return false;
        return collect(g, s, LEAF_NUMBER) && gram_number_begin(g, s, b);
    }
}

static bool may_close(const struct gleaf *x, const struct gthread *t, const struct glevel *l) {
    if (!l->object)
        return l->count >= x->min;
    for (uint32_t i = 0; i < GRAM_NAMES / 64; i++)
        if ((t->seen[i] & x->required[i]) != x->required[i])
            return FAULT(grammar_required_missed);
    return true;
}

static bool close_level(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    const struct glevel *l = &s->level[s->depth];
    uint32_t parents = 0;

    if (s->depth == 0 || b != (l->object ? '}' : ']'))
        return false;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct gthread *t = &s->thread[l->first + i];

        if (l->alive >> i & 1 && may_close(&g->leaf[t->leaf], t, l))
            parents |= t->parents;
    }
    if (!parents)
        return false;
    s->depth--;
    return value_done(s, parents);
}

static bool comma(const struct grammar *g, struct grammar_state *s) {
    struct glevel *l = &s->level[s->depth];

    if (s->depth == 0)
        return false;
    for (uint32_t i = 0; i < l->n; i++) {
        struct gthread *t = &s->thread[l->first + i];
        const struct gleaf *x = &g->leaf[t->leaf];
        bool more;

        if (!(l->alive >> i & 1))
            continue;
        if (l->object) {
            t->lo = 0;
            t->hi = x->n_names;
            more = gram_member_possible(g, s, t) || gram_fits(g, s, x->other);
        } else {
            more = l->count < x->max && gram_fits(g, s, child_of(g, s, t));
        }
        if (!more)
            l->alive &= ~(UINT32_C(1) << i);
    }
    s->mode = l->object ? MODE_KEY : MODE_VALUE;
    return l->alive != 0;
}

static bool after_value(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    return b == ',' ? comma(g, s) : close_level(g, s, b);
}

/* An array with no element yet: alternatives that take one. */
static bool first_element(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    struct glevel *l = &s->level[s->depth];

    for (uint32_t i = 0; i < l->n; i++) {
        const struct gthread *t = &s->thread[l->first + i];

        if (!g->leaf[t->leaf].max || !gram_fits(g, s, child_of(g, s, t)))
            l->alive &= ~(UINT32_C(1) << i);
    }
    return l->alive && begin_value(g, s, b);
}

static bool blank(struct grammar_state *s) {
    if ((s->mode == MODE_AFTER && s->depth == 0) || s->mode == MODE_ARGS || s->mode == MODE_ARG)
        return false;
    return ++s->blanks <= GRAM_BLANKS || FAULT(grammar_blanks_endless);
}

bool gram_byte(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    uint32_t parents;
    int r;

    switch (s->mode) {
    case MODE_IN_KEY:
    case MODE_STRING:
        r = gram_string_byte(g, s, b, &parents);
        return r > 0 ? value_done(s, parents) : r == 0;
    case MODE_NUMBER:
        r = gram_number_byte(g, s, b);
        if (r)
            return r > 0;
        if (!value_done(s, gram_number_parents(g, s)))
            return false;
        s->blanks = 0;
        return is_blank(b) ? blank(s) : after_value(g, s, b);
    case MODE_WORD:
        if (b != (uint8_t)words[s->word][s->at])
            return false;
        if (words[s->word][++s->at])
            return true;
        return value_done(s, s->scalar[0].parents);
    case MODE_ARG_TEXT:
    case MODE_ARG_RAW:
    case MODE_SAY:
    case MODE_TOOL:
    case MODE_ARG_KEY:
        return gram_raw_byte(g, s, b);
    default:
        break;
    }
    if (is_blank(b))
        return blank(s);
    s->blanks = 0;
    switch (s->mode) {
    case MODE_VALUE:
        return begin_value(g, s, b);
    case MODE_ELEMENT_OR_END:
        return b == ']' ? close_level(g, s, b) : first_element(g, s, b);
    case MODE_KEY_OR_END:
        if (b == '}')
            return close_level(g, s, b);
        return b == '"' && gram_key_begin(g, s);
    case MODE_KEY:
        return b == '"' && gram_key_begin(g, s);
    case MODE_COLON:
        s->mode = MODE_VALUE;
        return b == ':';
    case MODE_AFTER:
        return after_value(g, s, b);
    default: /* MODE_CALL, MODE_ARGS, MODE_ARG: marks only, apart from blanks before a call */
        return false;
    }
}

bool gram_value_complete(const struct grammar *g, const struct grammar_state *s) {
    return s->depth == 0 && (s->mode == MODE_AFTER || (s->mode == MODE_NUMBER && gram_number_parents(g, s)));
}
