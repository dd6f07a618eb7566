/* SPDX-License-Identifier: MIT */
/* What the parts of the compiler share: bounded memory and work, places, names, errors that say where. Text
 * workers only; allocates. */
#include "gcomp.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool gcomp_room(struct gcomp *c, void *array, uint32_t n, uint32_t more, uint32_t *cap, size_t size) {
    void **at = array;
    uint64_t want = (uint64_t)n + more, new_cap = *cap ? *cap : 16;
    void *p;

    if (want <= *cap)
        return true;
    while (new_cap < want)
        new_cap *= 2;
    if (new_cap > UINT32_MAX || c->g->bytes + (new_cap - *cap) * size > c->g->max_bytes) {
        xerr_set(c->err, -E2BIG, "%s: its compiled form takes more than the %llu bytes that are possible",
                 c->what, (unsigned long long)c->g->max_bytes);
        return false;
    }
    p = realloc(*at, new_cap * size);
    if (!p) {
        xerr_set(c->err, -ENOMEM, "%s: no memory to compile it", c->what);
        return false;
    }
    *at = p;
    c->g->bytes += (new_cap - *cap) * size;
    *cap = (uint32_t)new_cap;
    return true;
}

bool gcomp_work(struct gcomp *c, uint64_t work) {
    c->work += work;
    if (c->work <= GCOMP_WORK)
        return true;
    xerr_set(c->err, -E2BIG, "%s: its references and alternatives take too much work to compile", c->what);
    return false;
}

/* The JSON pointer of the value that begins at p. */
static void pointer_of(struct tstr in, const char *p, struct tbuf *out) {
    struct tstr cur = in;

    while (cur.p != p && (jl_type(cur) == JL_OBJECT || jl_type(cur) == JL_ARRAY)) {
        struct jl_iter it;
        bool more = jl_first(&it, cur), found = false;

        for (unsigned i = 0; more; more = jl_next(&it), i++) {
            char num[16];

            if (p < it.value.p || p >= it.value.p + it.value.n)
                continue;
            tbuf_putc(out, '/');
            if (it.object) {
                tbuf_put(out, it.key.p + 1, it.key.n - 2);
            } else {
                snprintf(num, sizeof num, "%u", i);
                tbuf_puts(out, num);
            }
            cur = it.value;
            found = true;
            break;
        }
        if (!found)
            return;
    }
}

int gcomp_fail(struct gcomp *c, int code, struct tstr at, const char *fmt, ...) {
    char where[128], text[200];
    struct tbuf b;
    va_list ap;

    tbuf_init_fixed(&b, where, sizeof where);
    if (at.p && c->root.p)
        pointer_of(c->root, at.p, &b);
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return xerr_set(c->err, code, "%s at %.*s%s: %s", c->what, b.n ? (int)b.n : 7, b.n ? where : "its top",
                    b.err ? "…" : "", text);
}

static uint32_t memo_slot(const struct gcomp *c, const char *p, bool literal) {
    uint64_t h = ((uint64_t)(uintptr_t)p * 2 + literal) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t i = (uint32_t)(h >> 40) & (c->memo_size - 1);

    while (c->memo[i] &&
           (c->place[c->memo[i] - 1].text.p != p || c->place[c->memo[i] - 1].literal != literal))
        i = (i + 1) & (c->memo_size - 1);
    return i;
}

int64_t gcomp_place(struct gcomp *c, struct tstr text, bool literal) {
    uint32_t slot = 0;

    if (text.p) {
        slot = memo_slot(c, text.p, literal);
        if (c->memo[slot])
            return c->memo[slot] - 1;
    }
    if (c->n_place == GCOMP_MAX_PLACES)
        return gcomp_fail(c, -E2BIG, text, "one schema more than the %d that are possible", GCOMP_MAX_PLACES);
    if (!gcomp_room(c, &c->place, c->n_place, 1, &c->cap_place, sizeof *c->place))
        return c->err->code;
    c->place[c->n_place] = (struct gplace){.text = text, .literal = literal};
    if (text.p)
        c->memo[slot] = c->n_place + 1;
    return c->n_place++;
}

int64_t gcomp_leaf(struct gcomp *c, enum gleaf_kind kind) {
    struct grammar *g = c->g;

    if (!gcomp_room(c, &g->leaf, g->n_leaf, 1, &c->cap_leaf, sizeof *g->leaf))
        return c->err->code;
    g->leaf[g->n_leaf] = (struct gleaf){.kind = (uint8_t)kind,
                                        .other = GRAM_NONE,
                                        .max = GRAM_NONE,
                                        .dfa = GRAM_NONE,
                                        .height = GRAM_ENDLESS};
    return g->n_leaf++;
}

int gcomp_put_text(struct gcomp *c, const char *p, size_t n, uint32_t schema) {
    struct grammar *g = c->g;

    if (n > GRAMMAR_MAX_SCHEMA_BYTES)
        return xerr_set(c->err, -E2BIG, "%s: a name or string of %zu bytes", c->what, n);
    if (!gcomp_room(c, &g->text, g->n_text, (uint32_t)n + 1, &c->cap_text, 1) ||
        !gcomp_room(c, &g->name, g->n_name, 1, &c->cap_name, sizeof *g->name))
        return c->err->code;
    if (n)
        memcpy(g->text + g->n_text, p, n);
    g->name[g->n_name++] = (struct gname){g->n_text, (uint32_t)n, schema};
    g->n_text += (uint32_t)n + 1; /* two empty ones lie at different places, too */
    return 0;
}

int gcomp_put_name(struct gcomp *c, struct tstr quoted, uint32_t schema) {
    struct tbuf b;
    int r;

    tbuf_init(&b, quoted.n + 16);
    jl_unquote(quoted, &b);
    r = b.err < 0 ? xerr_set(c->err, b.err, "%s: no memory to compile it", c->what)
                  : gcomp_put_text(c, b.p, b.n, schema);
    tbuf_done(&b);
    return r;
}

static int compare_names(const char *text, const struct gname *a, const struct gname *b) {
    uint32_t n = a->len < b->len ? a->len : b->len;
    int d = n ? memcmp(text + a->off, text + b->off, n) : 0;

    if (d)
        return d;
    return a->len < b->len ? -1 : a->len > b->len;
}

static int by_text(const void *a, const void *b, void *text) {
    const struct gname *x = a, *y = b;
    int d = compare_names(text, x, y);

    return d ? d : x->off < y->off ? -1 : x->off > y->off; /* in the order they were put */
}

uint32_t gcomp_sort_names(struct gcomp *c, uint32_t name0, uint32_t n) {
    struct gname *a = c->g->name + name0;
    uint32_t m = 0;

    if (n)
        qsort_r(a, n, sizeof *a, by_text, c->g->text);
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 < n && compare_names(c->g->text, &a[i], &a[i + 1]) == 0)
            continue;
        a[m++] = a[i];
    }
    c->g->n_name = name0 + m;
    return m;
}

/* {} and true: a leaf of every type, whose members and elements are any again. */
static int make_any(struct gcomp *c) {
    int64_t place = gcomp_place(c, (struct tstr){0}, false);

    if (place < 0)
        return (int)place;
    c->any = (uint32_t)place;
    c->place[place].leaf0 = c->g->n_leaf;
    for (int kind = LEAF_OBJECT; kind <= LEAF_WORD; kind++) {
        int64_t leaf = gcomp_leaf(c, (enum gleaf_kind)kind);

        if (leaf < 0)
            return (int)leaf;
        c->g->leaf[leaf].words = WORD_TRUE | WORD_FALSE | WORD_NULL;
        if (kind == LEAF_OBJECT || kind == LEAF_ARRAY)
            c->g->leaf[leaf].other = c->any;
        if (kind == LEAF_STRING)
            c->g->free_string = (uint32_t)leaf;
        c->place[place].n_leaves++;
    }
    return 0;
}

int gcomp_begin(struct gcomp *c, const struct grammar_vocab *v, uint64_t max_bytes, struct xerr *err) {
    c->err = err ? err : &c->nobody;
    c->memo_size = 2 * GCOMP_MAX_PLACES;
    c->memo = calloc(c->memo_size, sizeof *c->memo);
    c->g = calloc(1, sizeof *c->g);
    if (!c->memo || !c->g)
        return xerr_set(c->err, -ENOMEM, "%s: no memory to compile it", c->what);
    c->g->vocab = v;
    c->g->max_bytes = max_bytes ? max_bytes : GRAMMAR_DEFAULT_BYTES;
    c->g->bytes = sizeof *c->g;
    return make_any(c);
}

int gcomp_keep(struct gcomp *c, struct grammar **ret) {
    struct grammar *g = c->g;
    uint64_t all;

    g->bytes -= c->cap_place * sizeof *c->place + c->cap_alt * sizeof *c->alt;
    all = atomic_fetch_add_explicit(g->vocab->live, g->bytes, memory_order_relaxed) + g->bytes;
    g->counted = true;
    if (all > GRAMMAR_ALL_BYTES)
        return xerr_set(c->err, -ENOBUFS,
                        "%s: the grammars of all requests would take more than the %d bytes that are "
                        "possible; try again when others have ended",
                        c->what, GRAMMAR_ALL_BYTES);
    *ret = g;
    c->g = NULL;
    return 0;
}

void gcomp_done(struct gcomp *c) {
    free(c->place);
    free(c->alt);
    free(c->memo);
    grammar_free(c->g);
}

struct grammar *grammar_free(struct grammar *g) {
    if (!g)
        return NULL;
    if (g->counted)
        atomic_fetch_sub_explicit(g->vocab->live, g->bytes, memory_order_relaxed);
    for (uint32_t i = 0; i < g->n_dfa; i++) {
        free(g->dfa[i].state);
        free(g->dfa[i].next);
    }
    free(g->dfa);
    free(g->text);
    free(g->name);
    free(g->leaf);
    free(g->schema);
    free(g->closure);
    free(g->item);
    free(g->wide);
    free(g);
    return NULL;
}

size_t grammar_bytes(const struct grammar *g) {
    return g->bytes;
}
