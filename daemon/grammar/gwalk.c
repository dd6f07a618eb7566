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
static void mark_all(const struct gtrie *t, uint32_t from, uint32_t to, uint32_t *words) {
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

static void walk_list(const struct grammar *g, const struct gtrie *t, const struct gscalar *v, uint32_t len,
                      uint32_t from, uint32_t to, uint32_t *words) {
    uint32_t lo[GRAMMAR_MAX_TOKEN_BYTES + 1], hi[GRAMMAR_MAX_TOKEN_BYTES + 1], base;

    if (from == to)
        return;
    base = t->node[from].depth - 1u;
    lo[base] = v->lo;
    hi[base] = v->hi;
    for (uint32_t i = from; i < to;) {
        const struct gnode *n = &t->node[i];
        uint32_t a = lo[n->depth - 1], z = inside_string(n->byte) ? hi[n->depth - 1] : a;

        gram_narrow(g, g->leaf[v->leaf].name0, len + n->depth - 1 - base, n->byte, &a, &z);
        if (a == z) {
            i = n->skip;
            continue;
        }
        lo[n->depth] = a;
        hi[n->depth] = z;
        mark_here(t, n, words);
        i++;
    }
}

/* Tokens with at most `chars` characters more. */
static void walk_limited(const struct gtrie *t, uint32_t chars, uint32_t from, uint32_t to, uint32_t *words) {
    uint32_t left[GRAMMAR_MAX_TOKEN_BYTES + 1];

    if (from < to)
        left[t->node[from].depth - 1] = chars;
    for (uint32_t i = from; i < to;) {
        const struct gnode *n = &t->node[i];
        uint32_t before = left[n->depth - 1], one = (n->byte & 0xc0) != 0x80;

        if (before < one || !inside_string(n->byte)) {
            i = n->skip;
            continue;
        }
        left[n->depth] = before - one;
        mark_here(t, n, words);
        i++;
    }
}

/* The subtree of node i stays inside the string that s is in. */
static void take_subtree(const struct grammar *g, const struct grammar_state *s, const struct gtrie *t,
                         uint32_t i, uint32_t *words) {
    uint32_t from = i + 1, to = t->node[i].skip;

    if (s->mode == MODE_IN_KEY) {
        mark_all(t, from, to, words);
        return;
    }
    for (uint32_t k = 0; k < s->n_scalars; k++) {
        const struct gscalar *v = &s->scalar[k];
        const struct gleaf *x = &g->leaf[v->leaf];

        if (x->how == HOW_DFA)
            gram_walk_dfa(t, &g->dfa[x->dfa], v->lo, from, to, UINT32_MAX, words);
        else if (x->how == HOW_LIST)
            walk_list(g, t, v, s->len, from, to, words);
        else if (x->max == GRAM_NONE || s->chars + (uint32_t)t->node[i].rest <= x->max)
            mark_all(t, from, to, words);
        else
            walk_limited(t, x->max - s->chars, from, to, words);
    }
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
    default:
        return false;
    }
}

/* ASCII characters inside the string, at most `more` of them, change nothing that a token could reach. */
static bool steady(const struct grammar *g, const struct grammar_state *s, uint32_t more) {
    const struct glevel *l = &s->level[s->depth];

    if (s->sub != SUB_PLAIN)
        return false;
    if (s->mode == MODE_IN_KEY) {
        for (uint32_t i = 0; i < l->n; i++) {
            const struct gthread *t = &s->thread[l->first + i];

            if (l->alive >> i & 1 && (t->lo < t->hi || !gram_fits(g, s, g->leaf[t->leaf].other)))
                return false;
        }
        return true;
    }
    for (uint32_t i = 0; i < s->n_scalars; i++) {
        const struct gleaf *x = &g->leaf[s->scalar[i].leaf];

        if (x->how == HOW_LIST)
            return false;
        if (x->how == HOW_FREE && (s->chars < x->min || (x->max != GRAM_NONE && x->max - s->chars < more)))
            return false;
    }
    return s->mode == MODE_STRING;
}

/* The automata of s stay where they are. */
static bool loops(const struct grammar *g, const struct grammar_state *s, uint8_t b) {
    for (uint32_t i = 0; s->mode == MODE_STRING && i < s->n_scalars; i++) {
        const struct gleaf *x = &g->leaf[s->scalar[i].leaf];

        if (x->how == HOW_DFA && gram_next(&g->dfa[x->dfa], s->scalar[i].lo, b) != s->scalar[i].lo)
            return false;
    }
    return true;
}

/* Where a walk stands: saved[0 .. n) are older values of s, n_at[d] of them belong to the first d bytes. */
struct path {
    uint32_t n, n_at[GRAMMAR_MAX_TOKEN_BYTES + 1];
    bool steady[GRAMMAR_MAX_TOKEN_BYTES + 1];
    bool plain[GRAMMAR_MAX_TOKEN_BYTES + 1]; /* no quote or backslash so far */
    bool kept;                               /* saved[n] is the value s has */
};

/* s takes the byte of node n, which stands behind depth - 1 bytes of the path. */
static bool take_byte(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
                      struct path *p, const struct gnode *n) {
    uint32_t before = n->depth - 1u;
    int reach;

    while (p->n > p->n_at[before]) {
        put_back(s, &w->saved[--p->n]);
        p->kept = true;
    }
    p->n_at[n->depth] = p->n;
    p->plain[n->depth] = p->plain[before] && inside_string(n->byte);
    p->steady[n->depth] = p->steady[before];
    if (p->steady[before] && inside_string(n->byte) && n->byte < 0x80 && loops(g, s, n->byte))
        return true;
    if (hopeless(s, n->byte))
        return false;
    reach = reach_of(s, n->byte);
    if (!p->kept || w->saved[p->n].reach < reach)
        save(s, &w->saved[p->n], reach);
    p->n_at[n->depth] = ++p->n;
    p->kept = false;
    if (!gram_byte(g, s, n->byte))
        return false;
    p->steady[n->depth] = (s->mode == MODE_STRING || s->mode == MODE_IN_KEY) && steady(g, s, n->rest);
    return true;
}

static void mark_rests(const struct grammar_vocab *v, const struct grammar_work *w, uint32_t from,
                       uint32_t to, uint32_t *words) {
    for (uint32_t k = from; k < to; k++)
        if (gram_has(w->rests, v->rest_of[k]))
            gram_set(words, v->quote.order[k]);
}

/* rests: t is the quote trie, and where the string has become free its tokens are looked up in w->rests. */
static void walk(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
                 const struct gtrie *t, uint32_t from, uint32_t to, bool rests, uint32_t *words) {
    struct path p = {.n = 0};

    if (from == to)
        return;
    p.n_at[t->node[from].depth - 1u] = 0;
    p.plain[t->node[from].depth - 1u] = true;
    p.steady[t->node[from].depth - 1u] =
        (s->mode == MODE_STRING || s->mode == MODE_IN_KEY) && steady(g, s, GRAMMAR_MAX_TOKEN_BYTES);
    for (uint32_t i = from; i < to;) {
        const struct gnode *n = &t->node[i];

        if (!take_byte(g, w, s, &p, n)) {
            i = n->skip;
            continue;
        }
        mark_here(t, n, words);
        if (rests && p.steady[n->depth] && p.plain[n->depth]) {
            mark_rests(g->vocab, w, n->first, t->node[n->skip].first, words);
            i = n->skip;
            continue;
        }
        if (n->clean && s->sub == SUB_PLAIN && i + 1 < n->skip && !FAULT(grammar_slow_masks) &&
            (s->mode == MODE_STRING || (s->mode == MODE_IN_KEY && gram_free_chars(g, s)))) {
            take_subtree(g, s, t, i, words);
            i = n->skip;
        } else {
            i++;
        }
    }
    while (p.n > 0)
        put_back(s, &w->saved[--p.n]);
}

void gram_walk(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
               const struct gtrie *t, uint32_t from, uint32_t to, uint32_t *words) {
    walk(g, w, s, t, from, to, false, words);
}

/* What s becomes when the string has deviated from every declared name. False: it cannot become free. */
static bool make_free(const struct grammar *g, struct grammar_state *s) {
    struct glevel *l = &s->level[s->depth];

    if (s->mode == MODE_STRING) {
        for (uint32_t i = 0; i < s->n_scalars; i++)
            if (g->leaf[s->scalar[i].leaf].how != HOW_FREE)
                return false;
        return steady(g, s, GRAMMAR_MAX_TOKEN_BYTES);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        struct gthread *t = &s->thread[l->first + i];

        if (l->alive >> i & 1 && !gram_fits(g, s, g->leaf[t->leaf].other))
            l->alive &= ~(UINT32_C(1) << i);
        t->lo = t->hi = 0;
    }
    return l->alive != 0;
}

void gram_walk_quote(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
                     uint32_t *words) {
    const struct grammar_vocab *v = g->vocab;
    bool rests = false;

    if (v->rest_of) {
        grammar_copy(&w->copy, s);
        rests = make_free(g, &w->copy);
    }
    if (rests) {
        memset(w->rests, 0, (v->rest.n_order / 32 + 1) * sizeof *w->rests);
        walk(g, w, &w->copy, &v->rest, 0, v->rest.n, false, w->rests);
        if (steady(g, s, GRAMMAR_MAX_TOKEN_BYTES)) {
            mark_rests(v, w, 0, v->quote.n_order, words);
            return;
        }
    }
    walk(g, w, s, &v->quote, 0, v->quote.n, rests, words);
}

/* Tokens that begin at most `chars` characters. */
static void take_free(const struct grammar_vocab *v, uint32_t chars, uint32_t *words) {
    const uint32_t *from =
        chars >= v->most_chars ? v->clean_all : v->clean[chars < GRAM_CLEAN_STEPS ? chars : GRAM_CLEAN_STEPS];

    for (uint32_t i = 0; i < v->n_words; i++)
        words[i] |= from[i];
    for (uint32_t i = 0; i < v->n_longer && chars < v->most_chars; i++)
        if (v->longer[i].chars <= chars)
            gram_set(words, v->longer[i].id);
}

void gram_walk_clean(const struct grammar *g, const struct grammar_state *s, uint32_t *words) {
    const struct grammar_vocab *v = g->vocab;

    if (s->mode == MODE_IN_KEY) {
        take_free(v, GRAM_NONE, words);
        return;
    }
    for (uint32_t k = 0; k < s->n_scalars; k++) {
        const struct gscalar *c = &s->scalar[k];
        const struct gleaf *x = &g->leaf[c->leaf];
        uint32_t wide;

        switch (x->how) {
        case HOW_DFA:
            wide = g->dfa[x->dfa].state[c->lo].wide;
            if (wide == GRAM_NONE)
                gram_walk_dfa(&v->all, &g->dfa[x->dfa], c->lo, 0, v->all.n, UINT32_MAX, words);
            for (uint32_t i = 0; wide != GRAM_NONE && i < v->n_words; i++)
                words[i] |= g->wide[(size_t)wide * v->n_words + i];
            break;
        case HOW_LIST:
            walk_list(g, &v->all, c, s->len, 0, v->all.n, words);
            break;
        default:
            take_free(v, x->max == GRAM_NONE ? GRAM_NONE : x->max - s->chars, words);
        }
    }
}
