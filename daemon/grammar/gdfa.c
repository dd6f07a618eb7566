/* SPDX-License-Identifier: MIT */
/* A tree of a regular expression into a deterministic automaton over UTF-8 bytes: a nondeterministic one
 * first, then the sets of its states. The length of the string in characters may be part of a state. States
 * from which no string is accepted are cut off, and for states that let many tokens through the set of these
 * tokens is made beforehand. Text workers only; allocates. */
#include "gregex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

enum { NFA_MAX = 1 << 15, CLS_MAX = 256 };
enum nfa_kind { N_SPLIT, N_BYTE, N_BEGIN, N_END, N_MATCH };

struct nfa {
    uint8_t kind, lo, hi;
    uint32_t a, b;
};

/* A deterministic state while it is made: its set in pool, and the characters so far. */
struct dstate {
    uint32_t at, n, chars, next_same; /* next_same: chain of the hash */
};

struct dfa_build {
    struct rx *x;
    struct gcomp *c;
    struct nfa *nfa;
    uint32_t n_nfa, cap_nfa;
    struct dstate *d;
    uint32_t n_d, cap_d;
    uint32_t *pool, n_pool, cap_pool;
    uint32_t *next, cap_next;
    uint32_t *mark, stamp, *stack, *set, n_set;
    uint32_t hash[4096]; /* state + 1 */
    uint32_t min, max, cap_chars;
    uint8_t cls[256], of_cls[CLS_MAX];
    uint32_t n_cls;
};

static int64_t new_nfa(struct dfa_build *b, struct nfa n) {
    if (b->n_nfa == NFA_MAX)
        return gcomp_fail(b->c, -E2BIG, b->x->pattern, "the regular expression is too large");
    if (!gcomp_room(b->c, &b->nfa, b->n_nfa, 1, &b->cap_nfa, sizeof *b->nfa))
        return b->c->err->code;
    b->nfa[b->n_nfa] = n;
    return b->n_nfa++;
}

static int64_t split(struct dfa_build *b, int64_t x, int64_t y) {
    if (x < 0 || y < 0)
        return x < 0 ? x : y;
    return new_nfa(b, (struct nfa){.kind = N_SPLIT, .a = (uint32_t)x, .b = (uint32_t)y});
}

/* Characters lo .. hi, which all have n bytes in UTF-8, and then next: pieces whose bytes vary independently.
 */
static int64_t emit_bytes(struct dfa_build *b, uint32_t lo, uint32_t hi, int64_t next) {
    int64_t all = -1;

    while (lo <= hi) {
        char x[4], y[4];
        uint32_t end = hi;
        int64_t one = next;
        size_t n;

        /* the longest piece from lo on: whole blocks of 64, 4096, … characters below its top byte */
        for (unsigned shift = 18; shift > 0; shift -= 6) {
            uint32_t low = (UINT32_C(1) << shift) - 1;

            if ((lo & ~low) == (end & ~low))
                continue;
            if (lo & low)
                end = lo | low;
            else if ((end & low) != low)
                end = (end & ~low) - 1;
        }
        n = utf8_put(lo, x);
        utf8_put(end, y);
        for (size_t i = n; i-- > 0 && one >= 0;)
            one = new_nfa(
                b,
                (struct nfa){.kind = N_BYTE, .lo = (uint8_t)x[i], .hi = (uint8_t)y[i], .a = (uint32_t)one});
        all = all < 0 && one >= 0 ? one : split(b, one, all);
        if (all < 0)
            return all;
        lo = end + 1;
    }
    return all;
}

static int64_t emit_set(struct dfa_build *b, uint32_t first, uint32_t n, int64_t next) {
    static const uint32_t tops[] = {0x7f, 0x7ff, 0xffff, 0x10ffff};
    int64_t all = -1;

    for (uint32_t i = first; i < first + n; i++) {
        uint32_t lo = b->x->range[i].lo, hi = b->x->range[i].hi;

        for (size_t k = 0; k < 4; k++) {
            uint32_t end = hi < tops[k] ? hi : tops[k];
            int64_t one;

            if (lo > end || lo > hi)
                continue;
            one = emit_bytes(b, lo, end, next);
            all = one < 0 || all < 0 ? one : split(b, one, all);
            if (all < 0)
                return all;
            lo = end + 1;
        }
    }
    /* an empty set: a byte that never comes */
    return all >= 0 ? all : new_nfa(b, (struct nfa){.kind = N_BYTE, .lo = 1, .hi = 0, .a = (uint32_t)next});
}

static int64_t emit(struct dfa_build *b, uint32_t node, int64_t next);

static int64_t emit_repeat(struct dfa_build *b, const struct rx_node n, int64_t next) {
    int64_t cur = next;

    if (n.max == RX_INFINITE) {
        int64_t body;

        cur = new_nfa(b, (struct nfa){.kind = N_SPLIT, .b = (uint32_t)next});
        body = cur < 0 ? cur : emit(b, n.a, cur);
        if (body < 0)
            return body;
        b->nfa[cur].a = (uint32_t)body;
    } else {
        for (uint32_t i = n.min; i < n.max && cur >= 0; i++)
            cur = split(b, emit(b, n.a, cur), next);
    }
    for (uint32_t i = 0; i < n.min && cur >= 0; i++)
        cur = emit(b, n.a, cur);
    return cur;
}

/* The tree is as deep as the pattern is long on its left side: that side is followed in a loop. */
static int64_t emit(struct dfa_build *b, uint32_t node, int64_t next) {
    if (!gcomp_work(b->c, 16))
        return b->c->err->code;
    for (;;) {
        const struct rx_node n = b->x->node[node];

        if (next < 0)
            return next;
        switch (n.kind) {
        case RX_CAT:
            next = emit(b, n.b, next);
            node = n.a;
            continue;
        case RX_ALT: {
            int64_t alt = emit(b, n.b, next), all = alt;
            uint32_t left = n.a;

            for (; all >= 0 && b->x->node[left].kind == RX_ALT; left = b->x->node[left].a)
                all = split(b, emit(b, b->x->node[left].b, next), all);
            return all < 0 ? all : split(b, emit(b, left, next), all);
        }
        case RX_SET:
            return emit_set(b, n.a, n.b, next);
        case RX_REPEAT:
            return emit_repeat(b, n, next);
        case RX_BEGIN:
            return new_nfa(b, (struct nfa){.kind = N_BEGIN, .a = (uint32_t)next});
        case RX_END:
            return new_nfa(b, (struct nfa){.kind = N_END, .a = (uint32_t)next});
        default:
            return next;
        }
    }
}

/* Any characters, then next. */
static int64_t emit_any(struct dfa_build *b, int64_t next) {
    static const struct rx_range all[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    int64_t loop = next < 0 ? next : new_nfa(b, (struct nfa){.kind = N_SPLIT, .b = (uint32_t)next}), one = -1;

    for (size_t i = 0; i < 5 && loop >= 0; i++) {
        int64_t k = emit_bytes(b, all[i].lo, all[i].hi, loop);

        one = k < 0 || i == 0 ? k : split(b, k, one);
        if (one < 0)
            return one;
    }
    if (loop >= 0)
        b->nfa[loop].a = (uint32_t)one;
    return loop;
}

/* Adds what is reachable from state without a byte to the set. */
static void reach(struct dfa_build *b, uint32_t state, bool at_start, bool at_end) {
    uint32_t n = 0;

    b->stack[n++] = state;
    while (n > 0) {
        uint32_t s = b->stack[--n];
        const struct nfa *k = &b->nfa[s];

        if (b->mark[s] == b->stamp)
            continue;
        b->mark[s] = b->stamp;
        if (k->kind == N_SPLIT) {
            b->stack[n++] = k->b;
            b->stack[n++] = k->a;
        } else if ((k->kind == N_BEGIN && at_start) || (k->kind == N_END && at_end)) {
            b->stack[n++] = k->a;
        } else {
            b->set[b->n_set++] = s;
        }
    }
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* The state of b->set and chars, an old one or a new one. */
static int64_t find_state(struct dfa_build *b, uint32_t chars) {
    uint64_t h = chars;
    struct dstate *d;

    qsort(b->set, b->n_set, sizeof *b->set, by_number);
    if (!gcomp_work(b->c, 8 + b->n_set))
        return b->c->err->code;
    for (uint32_t i = 0; i < b->n_set; i++)
        h = (h ^ b->set[i]) * UINT64_C(0x9e3779b97f4a7c15);
    h >>= 52;
    for (uint32_t i = b->hash[h]; i; i = b->d[i - 1].next_same) {
        d = &b->d[i - 1];
        if (d->chars == chars && d->n == b->n_set &&
            memcmp(b->pool + d->at, b->set, d->n * sizeof *b->set) == 0)
            return i - 1;
    }
    if (b->n_d == GCOMP_MAX_DFA_STATES)
        return gcomp_fail(b->c, -E2BIG, b->x->pattern,
                          "the regular expression, with the lengths beside it, needs more "
                          "than %d states",
                          GCOMP_MAX_DFA_STATES);
    if (!gcomp_room(b->c, &b->d, b->n_d, 1, &b->cap_d, sizeof *b->d) ||
        !gcomp_room(b->c, &b->pool, b->n_pool, b->n_set, &b->cap_pool, sizeof *b->pool) ||
        !gcomp_room(b->c, &b->next, b->n_d * b->n_cls, b->n_cls, &b->cap_next, sizeof *b->next))
        return b->c->err->code;
    d = &b->d[b->n_d];
    *d = (struct dstate){.at = b->n_pool, .n = b->n_set, .chars = chars, .next_same = b->hash[h]};
    memcpy(b->pool + b->n_pool, b->set, b->n_set * sizeof *b->set);
    b->n_pool += b->n_set;
    b->hash[h] = b->n_d + 1;
    return b->n_d++;
}

static void make_classes(struct dfa_build *b) {
    bool edge[257] = {[0x80] = true, [0xc0] = true};

    for (uint32_t i = 0; i < b->n_nfa; i++) {
        if (b->nfa[i].kind != N_BYTE || b->nfa[i].lo > b->nfa[i].hi)
            continue;
        edge[b->nfa[i].lo] = true;
        edge[b->nfa[i].hi + 1] = true;
    }
    b->n_cls = 0;
    for (unsigned v = 0; v < 256; v++) {
        if (v == 0 || edge[v])
            b->of_cls[b->n_cls++] = (uint8_t)v;
        b->cls[v] = (uint8_t)(b->n_cls - 1);
    }
}

/* Where state i goes with the bytes of a class. */
static int64_t follow(struct dfa_build *b, uint32_t i, uint8_t byte) {
    bool begins = byte < 0x80 || byte >= 0xc0;
    struct dstate d = b->d[i];

    if (begins && d.chars == b->max)
        return GRAM_NONE;
    b->n_set = 0;
    b->stamp++;
    if (!gcomp_work(b->c, d.n))
        return b->c->err->code;
    for (uint32_t k = 0; k < d.n; k++) {
        const struct nfa *s = &b->nfa[b->pool[d.at + k]];

        if (s->kind == N_BYTE && byte >= s->lo && byte <= s->hi)
            reach(b, s->a, false, false);
    }
    if (!b->n_set)
        return GRAM_NONE;
    return find_state(b, begins && d.chars < b->cap_chars ? d.chars + 1 : d.chars);
}

static bool accepts(struct dfa_build *b, uint32_t i) {
    struct dstate d = b->d[i];

    if (d.chars < b->min)
        return false;
    b->n_set = 0;
    b->stamp++;
    for (uint32_t k = 0; k < d.n; k++)
        reach(b, b->pool[d.at + k], false, true);
    for (uint32_t k = 0; k < b->n_set; k++)
        if (b->nfa[b->set[k]].kind == N_MATCH)
            return true;
    return false;
}

static int make_sets(struct dfa_build *b, int64_t start) {
    int64_t r;

    b->mark = calloc(b->n_nfa, sizeof *b->mark);
    b->stack = calloc(2 * (size_t)b->n_nfa + 2, sizeof *b->stack);
    b->set = calloc(b->n_nfa, sizeof *b->set);
    if (!b->mark || !b->stack || !b->set)
        return xerr_set(b->c->err, -ENOMEM, "%s: no memory to compile it", b->c->what);
    make_classes(b);
    b->stamp = 1;
    reach(b, (uint32_t)start, true, false);
    r = find_state(b, 0);
    for (uint32_t i = 0; i < b->n_d && r >= 0; i++)
        for (uint32_t k = 0; k < b->n_cls && r >= 0; k++) {
            r = follow(b, i, b->of_cls[k]);
            if (r >= 0)
                b->next[i * b->n_cls + k] = (uint32_t)r;
        }
    return r < 0 ? (int)r : 0;
}

/* Ways into states that never accept are cut. False: too much work. */
static bool trim(struct dfa_build *b, struct gdfa *d, bool *live) {
    bool changed = true;

    for (uint32_t i = 0; i < d->n_states; i++)
        live[i] = d->state[i].accepts;
    while (changed) {
        changed = false;
        if (!gcomp_work(b->c, (uint64_t)d->n_states * d->n_cls))
            return false;
        for (uint32_t i = d->n_states; i-- > 0;)
            for (uint32_t k = 0; k < d->n_cls && !live[i]; k++) {
                uint32_t to = d->next[i * d->n_cls + k];

                if (to != GRAM_NONE && live[to])
                    live[i] = changed = true;
            }
    }
    for (uint32_t i = 0; i < d->n_states * d->n_cls; i++)
        if (d->next[i] != GRAM_NONE && !live[d->next[i]])
            d->next[i] = GRAM_NONE;
    return true;
}

/* Counts the walk as work; a node costs a fraction of what is counted elsewhere, but there are very many. */
static bool walk_counted(struct gcomp *c, const struct gdfa *d, uint32_t state, uint32_t max_nodes, uint32_t *words,
                         uint32_t *ret_seen) {
    const struct gtrie *t = &c->g->vocab->all;

    *ret_seen = gram_walk_dfa(t, d, state, 0, t->n, max_nodes, words);
    return gcomp_work(c, FAULT(grammar_walks_free) ? 0 : *ret_seen / 4);
}

/* Sets of tokens for the states between characters from which a walk for each token would take too long. */
static int make_wide(struct gcomp *c, struct gdfa *d, const bool *live, struct tstr pattern) {
    struct grammar *g = c->g;
    const struct grammar_vocab *v = g->vocab;

    for (uint32_t i = 0; i < d->n_states; i++) {
        uint32_t *words, same = 0, seen;

        d->state[i].wide = GRAM_NONE;
        if (!live[i])
            continue;
        if (!walk_counted(c, d, i, GCOMP_NARROW_NODES, NULL, &seen))
            return c->err->code;
        if (seen <= GCOMP_NARROW_NODES)
            continue;
        if (!gcomp_room(c, &g->wide, g->n_wide * v->n_words, v->n_words, &c->cap_wide, sizeof *g->wide))
            return c->err->code;
        words = g->wide + (size_t)g->n_wide * v->n_words;
        memset(words, 0, v->n_words * sizeof *words);
        if (!walk_counted(c, d, i, UINT32_MAX, words, &seen))
            return c->err->code;
        while (same < g->n_wide &&
               memcmp(g->wide + (size_t)same * v->n_words, words, v->n_words * sizeof *words) != 0)
            same++;
        d->state[i].wide = same;
        if (same == g->n_wide && ++g->n_wide > GCOMP_MAX_WIDE)
            return gcomp_fail(c, -E2BIG, pattern,
                              "the regular expressions have more than %d states in which many tokens "
                              "are possible; minLength and maxLength take fewer than counted repeats",
                              GCOMP_MAX_WIDE);
    }
    return 0;
}

static int finish(struct dfa_build *b, uint32_t *ret_dfa, bool *ret_empty) {
    struct gcomp *c = b->c;
    struct grammar *g = c->g;
    bool *live = calloc(b->n_d, sizeof *live);
    struct gdfa d = {.n_cls = b->n_cls, .n_states = b->n_d};
    int r = 0;

    d.state = calloc(b->n_d, sizeof *d.state);
    if (!live || !d.state || !gcomp_room(c, &g->dfa, g->n_dfa, 1, &c->cap_dfa, sizeof *g->dfa)) {
        free(live);
        free(d.state);
        return c->err->code ? c->err->code
                            : xerr_set(c->err, -ENOMEM, "%s: no memory to compile it", c->what);
    }
    memcpy(d.cls, b->cls, sizeof d.cls);
    for (uint32_t i = 0; i < b->n_d; i++)
        d.state[i].accepts = accepts(b, i);
    d.next = b->next;
    b->next = NULL;
    g->bytes += b->n_d * sizeof *d.state;
    if (!trim(b, &d, live))
        r = c->err->code;
    *ret_empty = !live[0];
    g->dfa[g->n_dfa] = d;
    *ret_dfa = g->n_dfa++;
    if (r == 0)
        r = make_wide(c, &g->dfa[*ret_dfa], live, b->x->pattern);
    free(live);
    return r;
}

int rx_compile(struct rx *x, uint32_t root, uint32_t min, uint32_t max, uint32_t *ret_dfa,
               uint32_t *ret_start, bool *ret_empty) {
    struct dfa_build *b = calloc(1, sizeof *b);
    int64_t start;
    int r;

    if (!b)
        return xerr_set(x->c->err, -ENOMEM, "%s: no memory to compile it", x->c->what);
    b->x = x;
    b->c = x->c;
    b->min = min;
    b->max = max;
    b->cap_chars = max != GRAM_NONE ? max : min;
    start = new_nfa(b, (struct nfa){.kind = N_MATCH});
    start = emit_any(b, emit(b, root, emit_any(b, start)));
    r = start < 0 ? (int)start : make_sets(b, start);
    if (r == 0)
        r = finish(b, ret_dfa, ret_empty);
    *ret_start = 0;
    x->c->g->bytes -= b->cap_nfa * sizeof *b->nfa + b->cap_d * sizeof *b->d + b->cap_pool * sizeof *b->pool +
                      (b->next ? b->cap_next * sizeof *b->next : 0);
    free(b->nfa);
    free(b->d);
    free(b->pool);
    free(b->next);
    free(b->mark);
    free(b->stack);
    free(b->set);
    free(b);
    return r;
}
