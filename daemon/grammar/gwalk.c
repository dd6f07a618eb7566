/* SPDX-License-Identifier: MIT */
/* Walks over the tries of the vocabulary: which tokens may follow. A byte that may not follow cuts its whole
 * subtree off; a subtree that stays inside a string is taken at once where the string is free. Any thread, no
 * allocation; the state that is walked with is put back byte by byte. */
#include "grampriv.h"

#include <string.h>

static bool inside_string(uint8_t b) {
    return b >= 0x20 && b != '"' && b != '\\';
}

static void mark_here(const struct gtrie *t, const struct gnode *n, uint32_t *words) {
    for (uint32_t k = 0; k < n->n_here; k++)
        gram_set(words, t->order[n->first + k]);
}

/* Every token in nodes from .. to. */
static void mark_all(struct grammar_work *w, const struct gtrie *t, uint32_t from, uint32_t to, uint32_t *words) {
    if (!gram_spend(w, (int32_t)((t->node[to].first - t->node[from].first) / 2)))
        return;
    for (uint32_t k = t->node[from].first; k < t->node[to].first; k++)
        gram_set(words, t->order[k]);
}

uint32_t gram_walk_dfa(const struct gtrie *t, const struct gdfa *d, uint32_t state, uint32_t from,
                       uint32_t to, uint32_t max_nodes, uint32_t *words) {
    uint32_t at[GRAMMAR_MAX_TOKEN_BYTES + 1], n_seen = 0;

    if (from < to)
        at[t->node[from].depth - 1] = state;
    for (uint32_t i = from; i < to;) {
        const struct gnode *n = &t->node[i];
        uint32_t next = inside_string(n->byte) ? gram_next(d, at[n->depth - 1], n->byte) : GRAM_NONE;

        if (n_seen++ == max_nodes)
            break;
        at[n->depth] = next;
        if (next != GRAM_NONE && words)
            mark_here(t, n, words);
        i = next == GRAM_NONE ? n->skip : i + 1;
    }
    return n_seen;
}

/* How much of the state byte b can change: 0 what stands in front, 1 the innermost level too, 2 the one below
 * it. */
static int reach_of(const struct grammar_state *s, uint8_t b) {
    if (b == '}' || b == ']')
        return 2;
    return s->mode == MODE_STRING && b != '"' ? 0 : 1;
}

static void save(const struct grammar_state *s, struct gsaved *to, int reach) {
    const struct glevel *b = &s->level[s->depth], *a = reach > 1 && s->depth ? b - 1 : b;

    memcpy(to->small, s, sizeof to->small);
    memcpy(to->scalar, s->scalar, s->n_scalars * sizeof *s->scalar);
    to->reach = reach;
    if (!reach)
        return;
    to->level[0] = *a;
    to->level[1] = *b;
    memcpy(to->thread, s->thread + a->first, (size_t)(b->first + b->n - a->first) * sizeof *s->thread);
}

static void put_back(struct grammar_state *s, const struct gsaved *from) {
    const struct glevel *a = &from->level[0], *b = &from->level[1];

    memcpy(s, from->small, sizeof from->small);
    memcpy(s->scalar, from->scalar, s->n_scalars * sizeof *s->scalar);
    if (!from->reach)
        return;
    s->level[from->reach > 1 && s->depth ? s->depth - 1u : s->depth] = *a;
    s->level[s->depth] = *b;
    memcpy(s->thread + a->first, from->thread, (size_t)(b->first + b->n - a->first) * sizeof *s->thread);
}

/* b cannot come, whatever the alternatives: most bytes behind a quote, found out without touching the state.
 */
static bool hopeless(const struct grammar_state *s, uint8_t b) {
    bool blank = b == ' ' || b == '\n' || b == '\t' || b == '\r';

    switch (s->mode) {
    case MODE_AFTER:
        return !blank && b != ',' && b != '}' && b != ']';
    case MODE_COLON:
        return !blank && b != ':';
    case MODE_KEY:
        return !blank && b != '"';
    case MODE_KEY_OR_END:
        return !blank && b != '"' && b != '}';
    case MODE_VALUE:
        return !blank && !memchr("\"{[-0123456789tfn", b, 17);
    case MODE_ELEMENT_OR_END:
        return !blank && !memchr("]\"{[-0123456789tfn", b, 18);
    case MODE_NUMBER:
        return !blank && !memchr("0123456789.eE+-,]}", b, 18);
    default:
        return false;
    }
}

/* Where a walk stands: saved[0 .. n) are older values of s, n_at[d] of them belong to the first d bytes. */
struct path {
    uint32_t n, n_at[GRAMMAR_MAX_TOKEN_BYTES + 1];
    bool inside[GRAMMAR_MAX_TOKEN_BYTES + 1]; /* s is older: it goes on at w->inner.at[d] */
    bool clean[GRAMMAR_MAX_TOKEN_BYTES + 1];  /* of the node there */
    bool kept;                                /* saved[n] is the value s has */
};

/* What a byte costs: alternatives that are looked at, and for an escape of fixed characters all that may be meant. */
static int32_t cost(const struct grammar *g, const struct grammar_state *s, uint8_t b) {
    const struct glevel *l = &s->level[s->depth];
    int32_t alternatives = s->mode == MODE_STRING || s->mode == MODE_NUMBER ? s->n_scalars : l->n, one = 3;

    if (s->mode == MODE_NUMBER)
        one = 4;
    if ((s->mode == MODE_STRING || s->mode == MODE_IN_KEY) &&
        (s->sub == SUB_PLAIN ? b == '\\' : s->sub != SUB_CHAR) && !gram_free_chars(g, s))
        one = 32;
    return 25 + one * alternatives;
}

static void keep(struct grammar_work *w, const struct grammar_state *s, struct path *p, uint32_t depth, int reach) {
    if (!p->kept || w->saved[p->n].reach < reach)
        save(s, &w->saved[p->n], reach);
    p->n_at[depth] = ++p->n;
    p->kept = false;
}

/* s takes the byte of node n, which stands behind depth - 1 bytes of the path. */
static bool take_byte(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
                      struct path *p, const struct gnode *n) {
    uint32_t before = n->depth - 1u;
    const struct gspot *at = &w->inner.at[before];

    while (p->n > p->n_at[before]) {
        put_back(s, &w->saved[--p->n]);
        p->kept = true;
    }
    p->n_at[n->depth] = p->n;
    p->inside[n->depth] = false;
    p->clean[n->depth] = n->clean;
    if (p->inside[before]) {
        if (!gram_spend(w, gram_path_cost(at)))
            return false;
        /* lists and automata know what UTF-8 is, what takes any character does not */
        if (inside_string(n->byte) && (n->byte < 0x80 || p->clean[before] || !at->any)) {
            p->inside[n->depth] = gram_path_step(g, s, &w->inner, n->depth, n->byte);
            return p->inside[n->depth];
        }
        if (n->byte < 0x20)
            return false;
        keep(w, s, p, n->depth, 1);
        gram_path_put(s, &w->inner, before, s);
    } else if (hopeless(s, n->byte)) {
        gram_spend(w, 2);
        return false;
    } else {
        keep(w, s, p, n->depth, reach_of(s, n->byte));
    }
    if (!gram_spend(w, cost(g, s, n->byte)) || !gram_byte(g, s, n->byte))
        return false;
    if ((s->mode == MODE_STRING || s->mode == MODE_IN_KEY) && s->sub == SUB_PLAIN && n->rest &&
        n->depth < GRAMMAR_MAX_TOKEN_BYTES && !FAULT(grammar_steps_free)) {
        gram_path_begin(g, s, &w->inner, n->depth + 1u);
        p->inside[n->depth] = true;
    }
    return true;
}

/* Every token below node n stays inside the string or name and is let through. */
static bool all_below(const struct grammar_work *w, const struct grammar_state *s, const struct gnode *n) {
    const struct gspot *at = &w->inner.at[n->depth];

    if (!n->clean || !at->any)
        return false;
    if (at->loose)
        return true;
    for (uint32_t k = 0; k < at->n && s->mode == MODE_STRING; k++) {
        const struct gspan *a = &at->span[k];

        if (a->any && (a->leaf->max == GRAM_NONE || s->chars + at->chars + n->rest <= a->leaf->max))
            return true;
    }
    return s->mode == MODE_IN_KEY;
}

void gram_walk(const struct grammar *g, struct grammar_work *w, struct grammar_state *s, const struct gtrie *t,
               uint32_t from, uint32_t to, uint32_t *words) {
    struct path p;

    if (from == to)
        return;
    p.n = 0;
    p.kept = false;
    p.n_at[t->node[from].depth - 1u] = 0;
    p.inside[t->node[from].depth - 1u] = false;
    for (uint32_t i = from; i < to && w->left >= 0;) {
        const struct gnode *n = &t->node[i];

        if (n->depth > w->most_bytes || !take_byte(g, w, s, &p, n)) {
            i = n->skip;
            continue;
        }
        mark_here(t, n, words);
        if (p.inside[n->depth] && i + 1 < n->skip && all_below(w, s, n)) {
            mark_all(w, t, i + 1, n->skip, words);
            i = n->skip;
        } else {
            i++;
        }
    }
    while (p.n > 0)
        put_back(s, &w->saved[--p.n]);
}

/* Tokens that begin at most `chars` characters. */
static void take_free(const struct grammar_vocab *v, struct grammar_work *w, uint32_t chars, uint32_t *words) {
    const uint32_t *from =
        chars >= v->most_chars ? v->clean_all : v->clean[chars < GRAM_CLEAN_STEPS ? chars : GRAM_CLEAN_STEPS];

    if (!gram_spend(w, (int32_t)(v->n_words / 4)))
        return;
    for (uint32_t i = 0; i < v->n_words; i++)
        words[i] |= from[i];
    for (uint32_t i = 0; i < v->n_longer && chars < v->most_chars; i++)
        if (v->longer[i].chars <= chars)
            gram_set(words, v->longer[i].id);
}

void gram_walk_clean(const struct grammar *g, struct grammar_work *w, const struct grammar_state *s,
                     uint32_t *words) {
    const struct grammar_vocab *v = g->vocab;
    uint32_t most = 0;
    bool any = false;

    if (s->mode == MODE_IN_KEY && gram_free_chars(g, s)) {
        take_free(v, w, GRAM_NONE, words);
        return;
    }
    for (uint32_t k = 0; k < s->n_scalars && s->mode == MODE_STRING; k++) {
        const struct gscalar *c = &s->scalar[k];
        const struct gleaf *x = &g->leaf[c->leaf];
        uint32_t wide = x->how == HOW_DFA ? g->dfa[x->dfa].state[c->lo].wide : GRAM_NONE,
                 chars = x->max == GRAM_NONE ? GRAM_NONE : x->max - s->chars;

        if (x->how == HOW_FREE) {
            any = true;
            most = chars > most ? chars : most;
        }
        if (wide == GRAM_NONE || !gram_spend(w, (int32_t)(v->n_words / 4)))
            continue;
        for (uint32_t i = 0; i < v->n_words; i++)
            words[i] |= g->wide[(size_t)wide * v->n_words + i];
    }
    if (any)
        take_free(v, w, most, words);
    if (!any || most < GRAMMAR_MAX_TOKEN_BYTES)
        gram_walk_inside(g, w, s, words);
}
