/* SPDX-License-Identifier: MIT */
/* Walks over tries inside one string or one member's name. There a byte changes little: each alternative has
 * a place in its list, its automaton or its declared names, and those places are all that is kept for each
 * byte of a token. What comes behind the closing quote, or behind a backslash, is found once for each way in
 * which it can differ. Any thread, no allocation. */
#include "grampriv.h"

#include <string.h>

static int byte_at(const struct grammar *g, const struct gname *n, uint32_t len) {
    return n->len <= len ? -1 : (uint8_t)g->text[n->off + len];
}

/* The first of a .. hi whose byte behind len bytes is b or more, from a on, which is less; it is mostly near. */
static uint32_t first_from(const struct grammar *g, const struct gname *n, uint32_t len, int b, uint32_t a,
                           uint32_t hi) {
    uint32_t step = 1, z;

    while (step < hi - a && byte_at(g, &n[a + step], len) < b) {
        a += step;
        step *= 2;
    }
    z = step < hi - a ? a + step : hi;
    for (a++; a < z;) {
        uint32_t mid = a + (z - a) / 2;

        if (byte_at(g, &n[mid], len) < b)
            a = mid + 1;
        else
            z = mid;
    }
    return a;
}

/* x is cut to declared texts lo .. hi, which agree in len bytes; cur comes before the first byte that may follow. */
static void set_span(const struct grammar *g, struct gspan *x, uint32_t len, uint32_t lo, uint32_t hi) {
    const struct gname *n = g->name + x->leaf->name0;

    x->lo = x->cur = lo;
    x->hi = hi;
    x->next = lo < hi ? byte_at(g, &n[lo], len) : 256;
    if (x->next < 0) { /* one that ends here, the first of all */
        x->cur++;
        x->next = x->cur < hi ? byte_at(g, &n[x->cur], len) : 256;
    }
}

/* Those of a span that go on with b. Bytes come in ascending order, as siblings of a trie do. */
static void narrow(const struct grammar *g, struct gspan *from, struct gspan *to, uint32_t len, uint8_t b) {
    const struct gname *n = g->name + from->leaf->name0;
    uint32_t lo;

    if (from->next < b) {
        from->cur = first_from(g, n, len, b, from->cur, from->hi);
        from->next = from->cur < from->hi ? byte_at(g, &n[from->cur], len) : 256;
    }
    to->lo = to->hi = 0;
    to->next = 256;
    if (from->next != b)
        return;
    lo = from->cur;
    from->cur = first_from(g, n, len, b + 1, lo, from->hi);
    from->next = from->cur < from->hi ? byte_at(g, &n[from->cur], len) : 256;
    set_span(g, to, len + 1, lo, from->cur);
}

/* Counts the span behind the last one of a spot in, which is x; chars: of the string so far. */
static void add_span(struct gspot *at, uint32_t chars) {
    const struct gspan *x = &at->span[at->n];
    bool loose = x->any && (x->how == ALT_NAME ? x->lo == x->hi
                                               : x->leaf->max == GRAM_NONE &&
                                                     (chars >= x->leaf->min || FAULT(grammar_loose_short)));

    at->any = at->any || x->any;
    if (loose) {
        at->loose |= UINT32_C(1) << x->which;
        return;
    }
    at->lists = (uint8_t)(at->lists + ((x->how == ALT_NAME && x->lo < x->hi) || x->how == ALT_LIST));
    at->n++;
}

/* all: every alternative of s; otherwise those that gram_walk_inside() is for. */
static void begin(const struct grammar *g, const struct grammar_state *s, struct gpath *p, uint32_t depth, bool all) {
    const struct glevel *l = &s->level[s->depth];
    struct gspot *at = &p->at[depth - 1];
    uint32_t n = s->mode == MODE_IN_KEY ? l->n : s->n_scalars;

    at->base = depth - 1;
    at->chars = 0;
    at->n = at->lists = 0;
    at->loose = 0;
    at->any = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct gthread *t = &s->thread[l->first + i];
        const struct gscalar *v = &s->scalar[i];
        struct gspan *x = &at->span[at->n];

        x->which = (uint8_t)i;
        if (s->mode == MODE_IN_KEY) {
            if (!(l->alive >> i & 1))
                continue;
            x->leaf = &g->leaf[t->leaf];
            x->how = ALT_NAME;
            x->any = gram_fits(g, s, x->leaf->other);
            set_span(g, x, s->len, t->lo, t->hi);
        } else {
            x->leaf = &g->leaf[v->leaf];
            x->any = x->leaf->how == HOW_FREE;
            x->how = x->any ? ALT_FREE : x->leaf->how == HOW_DFA ? ALT_DFA : ALT_LIST;
            if (!all && (x->any || (x->how == ALT_DFA && g->dfa[x->leaf->dfa].state[v->lo].wide != GRAM_NONE)))
                continue;
            x->lo = v->lo;
            x->hi = v->hi;
            if (x->how == ALT_LIST)
                set_span(g, x, s->len, v->lo, v->hi);
        }
        add_span(at, s->chars);
    }
}

void gram_path_begin(const struct grammar *g, const struct grammar_state *s, struct gpath *p, uint32_t depth) {
    begin(g, s, p, depth, true);
}

static bool name_possible(const struct grammar *g, const struct grammar_state *s, const struct gspan *x) {
    struct gthread t = s->thread[s->level[s->depth].first + x->which];

    t.lo = x->lo;
    t.hi = x->hi;
    return gram_member_possible(g, s, &t);
}

bool gram_path_step(const struct grammar *g, const struct grammar_state *s, struct gpath *p, uint32_t depth,
                    uint8_t b) {
    struct gspot *from = &p->at[depth - 1], *to = &p->at[depth];
    uint32_t len = s->len + depth - 1 - from->base;

    to->base = from->base;
    to->chars = from->chars + ((b & 0xc0) != 0x80);
    to->n = to->lists = 0;
    to->loose = from->loose;
    to->any = to->loose != 0;
    for (uint32_t k = 0; k < from->n; k++) {
        struct gspan *x = &to->span[to->n], *y = &from->span[k];
        bool goes_on = true;

        x->leaf = y->leaf;
        x->how = y->how;
        x->any = y->any;
        x->which = y->which;
        switch (y->how) {
        case ALT_LIST:
            narrow(g, y, x, len, b);
            goes_on = x->lo < x->hi;
            break;
        case ALT_DFA:
            x->lo = gram_next(&g->dfa[y->leaf->dfa], y->lo, b);
            x->hi = y->hi;
            goes_on = x->lo != GRAM_NONE;
            break;
        case ALT_NAME:
            narrow(g, y, x, len, b);
            goes_on = x->any || (x->lo < x->hi && name_possible(g, s, x));
            break;
        default:
            x->lo = y->lo;
            x->hi = y->hi;
            goes_on = s->chars + to->chars <= y->leaf->max;
        }
        if (goes_on)
            add_span(to, s->chars + to->chars);
    }
    return to->n > 0 || to->loose;
}

static bool inside_string(uint8_t b) {
    return b >= 0x20 && b != '"' && b != '\\';
}

void gram_walk_inside(const struct grammar *g, struct grammar_work *w, const struct grammar_state *s,
                      uint32_t *words) {
    const struct gtrie *t = &g->vocab->all;
    struct gpath *p = &w->path;

    begin(g, s, p, 1, false);
    for (uint32_t i = 0; i < t->n && (p->at[0].n || p->at[0].loose);) {
        const struct gnode *n = &t->node[i];

        if (!gram_spend(w, gram_path_cost(&p->at[n->depth - 1])))
            return;
        if (n->depth > w->most_bytes || !inside_string(n->byte) || !gram_path_step(g, s, p, n->depth, n->byte)) {
            i = n->skip;
            continue;
        }
        for (uint32_t k = 0; k < n->n_here; k++)
            gram_set(words, t->order[n->first + k]);
        i++;
    }
}

void gram_path_put(const struct grammar_state *s, const struct gpath *p, uint32_t depth, struct grammar_state *ret) {
    const struct gspot *at = &p->at[depth];
    struct glevel *l = &ret->level[ret->depth];
    uint8_t n = 0;

    ret->chars = s->chars + at->chars;
    ret->len = s->len + depth - at->base;
    if (s->mode == MODE_IN_KEY) {
        l->alive = at->loose;
        for (uint32_t i = 0; i < l->n; i++)
            if (at->loose >> i & 1)
                ret->thread[l->first + i].lo = ret->thread[l->first + i].hi = 0;
        for (uint32_t k = 0; k < at->n; k++) {
            struct gthread *t = &ret->thread[l->first + at->span[k].which];

            l->alive |= UINT32_C(1) << at->span[k].which;
            t->lo = at->span[k].lo;
            t->hi = at->span[k].hi;
        }
        return;
    }
    for (uint32_t i = 0, k = 0; i < s->n_scalars; i++) { /* n <= i: ret may be s */
        bool spans = k < at->n && at->span[k].which == i;

        if (!spans && !(at->loose >> i & 1))
            continue;
        ret->scalar[n] = s->scalar[i];
        if (spans) {
            ret->scalar[n].lo = at->span[k].lo;
            ret->scalar[n].hi = at->span[k++].hi;
        }
        n++;
    }
    ret->n_scalars = n;
}

/* ---- what leaves the string ---- */

static uint32_t parents_of(const struct grammar *g, const struct grammar_state *s, const struct gpath *p,
                           uint32_t depth) {
    const struct gspot *at = &p->at[depth];
    uint32_t parents = 0, len = s->len + depth - at->base;

    for (uint32_t k = 0; k < at->n; k++) {
        const struct gleaf *x = at->span[k].leaf;
        bool ends;

        if (x->how == HOW_LIST)
            ends = g->name[x->name0 + at->span[k].lo].len == len;
        else if (x->how == HOW_DFA)
            ends = g->dfa[x->dfa].state[at->span[k].lo].accepts;
        else
            ends = s->chars + at->chars >= x->min;
        if (ends)
            parents |= s->scalar[at->span[k].which].parents;
    }
    for (uint32_t i = 0; i < s->n_scalars; i++)
        if (at->loose >> i & 1)
            parents |= s->scalar[i].parents;
    return parents;
}

/* Every alternative takes any name, and no declared one begins like this. */
static bool free_name(const struct gpath *p, uint32_t depth) {
    return !p->at[depth].n && p->at[depth].loose;
}

/* What may follow a backslash depends on k alone. False: on lengths or places in a list as well. */
static bool escape_key(const struct grammar_state *s, const struct gpath *p, uint32_t depth, struct gmemo *k) {
    const struct gspot *at = &p->at[depth];
    uint32_t chars = s->chars + at->chars;

    k->n = at->n;
    k->parents = at->loose;
    for (uint32_t i = 0; i < at->n; i++) {
        const struct gspan *a = &at->span[i];
        const struct gleaf *x = a->leaf;

        k->which[i] = a->which;
        if (a->how == ALT_LIST)
            return false;
        if (a->how == ALT_FREE &&
            (chars < x->min || (x->max != GRAM_NONE && x->max - chars < GRAMMAR_MAX_TOKEN_BYTES)))
            return false;
        k->state[i] = a->how == ALT_DFA ? a->lo : 0;
    }
    return true;
}

static bool same_memo(const struct gmemo *a, const struct gmemo *b) {
    return a->kind == b->kind &&
           ((a->parents == b->parents && a->n == b->n && memcmp(a->which, b->which, a->n) == 0 &&
             memcmp(a->state, b->state, a->n * sizeof *a->state) == 0) ||
            FAULT(grammar_memo_any));
}

/* The rests that may follow, for key: found before or now, from scratch. NULL: no room is left for it. */
static const uint32_t *rests_of(const struct grammar *g, struct grammar_work *w, struct grammar_state *scratch,
                                const struct gmemo *key) {
    const struct gtrie *t = &g->vocab->rest;
    uint32_t at = 0;
    struct gmemo *m;

    while (at < w->n_memo && !same_memo(&w->memo[at], key))
        at++;
    m = &w->memo[at];
    if (at < w->n_memo)
        return m->rests;
    if (at == GRAM_MEMOS)
        return NULL;
    w->n_memo++;
    memcpy(m, key, offsetof(struct gmemo, rests));
    memset(m->rests, 0, (t->n_order / 32 + 1) * sizeof *m->rests);
    for (uint32_t i = 0; i < t->n; i = t->node[i].skip)
        if (key->kind == MEMO_ALL || t->node[i].byte == (key->kind == MEMO_END ? '"' : '\\'))
            gram_walk(g, w, scratch, t, i, t->node[i].skip, m->rests);
    return m->rests;
}

static void mark_rests(const struct grammar_vocab *v, struct grammar_work *w, const uint32_t *rests, uint32_t from,
                       uint32_t to, uint32_t *words) {
    if (!gram_spend(w, (int32_t)((to - from) / 2)))
        return;
    for (uint32_t k = from; k < to; k++)
        if (gram_has(rests, v->rest_of[k]))
            gram_set(words, v->quote.order[k]);
}

/* The subtree of node i of the quote trie, which begins with a quote or backslash. */
static void leave(const struct grammar *g, struct grammar_work *w, const struct grammar_state *s, struct gpath *p,
                  uint32_t i, uint32_t *words) {
    const struct gtrie *t = &g->vocab->quote;
    const struct gnode *n = &t->node[i];
    struct grammar_state *scratch = &w->copy;
    struct gmemo *key = &w->key;
    const uint32_t *rests = NULL;
    bool known = false;

    gram_path_put(s, p, n->depth - 1u, scratch);
    key->kind = MEMO_ESCAPE;
    key->parents = 0;
    key->n = 0;
    if (s->mode == MODE_STRING && n->byte == '"') {
        key->kind = MEMO_END;
        key->parents = parents_of(g, s, p, n->depth - 1u);
        if (!key->parents)
            return;
        known = true;
        /* whatever the string was, it ends here for these */
        scratch->n_scalars = 1;
        scratch->scalar[0] = (struct gscalar){.leaf = g->free_string, .parents = key->parents};
    } else if (s->mode == MODE_STRING) {
        known = escape_key(s, p, n->depth - 1u, key);
    }
    if (known && g->vocab->rest_of)
        rests = rests_of(g, w, scratch, key);
    if (rests)
        mark_rests(g->vocab, w, rests, n->first, t->node[n->skip].first, words);
    else
        gram_walk(g, w, scratch, t, i, n->skip, words);
}

/* One string with nothing but lengths: what each token makes of them was counted beforehand. */
static void mark_by_length(const struct grammar *g, struct grammar_work *w, const struct grammar_state *s,
                           const uint32_t *rests, uint32_t *words) {
    const struct grammar_vocab *v = g->vocab;
    const struct gleaf *x = &g->leaf[s->scalar[0].leaf];

    if (!gram_spend(w, (int32_t)v->quote.n_order))
        return;
    for (uint32_t k = 0; k < v->quote.n_order; k++) {
        uint32_t chars = s->chars + (FAULT(grammar_lengths_uncounted) ? 0 : v->quote_chars[k] & 0x7fffu);

        if (chars <= x->max && (!(v->quote_chars[k] & GRAM_CLOSES) || chars >= x->min) &&
            gram_has(rests, v->rest_of[k]))
            gram_set(words, v->quote.order[k]);
    }
}

/* Strings that take any character: true when that is all there is. */
static bool leave_free(const struct grammar *g, struct grammar_work *w, const struct grammar_state *s,
                       uint32_t *words) {
    struct gmemo *key = &w->key;
    bool lengths = false;

    if (!g->vocab->rest_of || s->mode != MODE_STRING)
        return false;
    for (uint32_t i = 0; i < s->n_scalars; i++) {
        const struct gleaf *x = &g->leaf[s->scalar[i].leaf];

        if (x->how != HOW_FREE)
            return false;
        lengths |= s->chars < x->min || (x->max != GRAM_NONE && x->max - s->chars < GRAMMAR_MAX_TOKEN_BYTES);
    }
    if (lengths && s->n_scalars > 1)
        return false;
    if (lengths)
        w->copy.scalar[0].leaf = g->free_string;
    key->kind = MEMO_ALL;
    key->parents = 0;
    key->n = 0;
    if (lengths)
        mark_by_length(g, w, s, rests_of(g, w, &w->copy, key), words);
    else
        mark_rests(g->vocab, w, rests_of(g, w, &w->copy, key), 0, g->vocab->quote.n_order, words);
    return true;
}

/* Of names that have deviated from all declared ones. NULL: none can. */
static const uint32_t *free_name_rests(const struct grammar *g, struct grammar_work *w,
                                       const struct grammar_state *s) {
    struct glevel *l = &w->copy.level[w->copy.depth];
    const uint32_t *rests = NULL;
    struct gmemo *key = &w->key;

    if (s->mode != MODE_IN_KEY || !g->vocab->rest_of)
        return NULL;
    for (uint32_t i = 0; i < l->n; i++) {
        struct gthread *t = &w->copy.thread[l->first + i];

        if (l->alive >> i & 1 && !gram_fits(g, s, g->leaf[t->leaf].other))
            l->alive &= ~(UINT32_C(1) << i);
        t->lo = t->hi = 0;
    }
    if (l->alive) {
        key->kind = MEMO_ALL;
        key->parents = 0;
        key->n = 0;
        rests = rests_of(g, w, &w->copy, key);
    }
    return rests;
}

void gram_walk_quote(const struct grammar *g, struct grammar_work *w, const struct grammar_state *s,
                     uint32_t *words) {
    const struct gtrie *t = &g->vocab->quote;
    struct gpath *p = &w->path;
    const uint32_t *free_rests;

    w->n_memo = 0;
    grammar_copy(&w->copy, s);
    if (!t->n || leave_free(g, w, s, words))
        return;
    free_rests = free_name_rests(g, w, s);
    gram_path_begin(g, s, p, 1);
    if (free_rests && free_name(p, 0)) {
        mark_rests(g->vocab, w, free_rests, 0, t->n_order, words);
        return;
    }
    for (uint32_t i = 0; i < t->n;) {
        const struct gnode *n = &t->node[i];

        if (!gram_spend(w, gram_path_cost(&p->at[n->depth - 1])))
            return;
        if (n->depth > w->most_bytes) {
            i = n->skip;
        } else if (!inside_string(n->byte)) {
            leave(g, w, s, p, i, words);
            i = n->skip;
        } else if (!gram_path_step(g, s, p, n->depth, n->byte)) {
            i = n->skip;
        } else if (free_rests && free_name(p, n->depth)) {
            mark_rests(g->vocab, w, free_rests, n->first, t->node[n->skip].first, words);
            i = n->skip;
        } else {
            i++;
        }
    }
}
