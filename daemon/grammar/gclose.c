/* SPDX-License-Identifier: MIT */
/* The end of a compilation: what each schema lets through as one set of leaves, how deep it must nest at
 * least, and how many alternatives can stand side by side, which bounds the state of a sequence. Text workers
 * only; allocates. */
#include "gcomp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Several lists of one kind in a union are one list. */
static int merge_lists(struct gcomp *c, uint32_t leaf0, enum gleaf_kind kind) {
    struct grammar *g = c->g;
    uint32_t n = 0, name0 = g->n_name, at = leaf0;
    int64_t leaf;
    int r = 0;

    for (uint32_t i = leaf0; i < g->n_closure; i++)
        n += g->leaf[g->closure[i]].kind == kind && g->leaf[g->closure[i]].how == HOW_LIST;
    if (n < 2)
        return 0;
    for (uint32_t i = leaf0; i < g->n_closure; i++) {
        struct gleaf x = g->leaf[g->closure[i]];

        if (x.kind != kind || x.how != HOW_LIST) {
            g->closure[at++] = g->closure[i];
            continue;
        }
        if (!gcomp_room(c, &g->name, g->n_name, x.n_names, &c->cap_name, sizeof *g->name))
            return c->err->code;
        memcpy(g->name + g->n_name, g->name + x.name0, x.n_names * sizeof *g->name);
        g->n_name += x.n_names;
        if (!gcomp_work(c, 64 * (uint64_t)x.n_names))
            return c->err->code;
    }
    leaf = gcomp_leaf(c, kind);
    if (leaf < 0)
        return (int)leaf;
    g->leaf[leaf].how = HOW_LIST;
    g->leaf[leaf].name0 = name0;
    g->leaf[leaf].n_names = gcomp_sort_names(c, name0, g->n_name - name0);
    if (g->leaf[leaf].n_names > GCOMP_MAX_LIST)
        r = xerr_set(c->err, -E2BIG, "%s: %u values of one type side by side, at most %d are possible",
                     c->what, g->leaf[leaf].n_names, GCOMP_MAX_LIST);
    g->closure[at++] = (uint32_t)leaf;
    g->n_closure = at;
    return r;
}

/* Everything reachable over alternatives from place i, into closure. */
static int close_place(struct gcomp *c, uint32_t i, uint32_t *seen, uint32_t *stack) {
    struct grammar *g = c->g;
    uint32_t leaf0 = g->n_closure, n = 0, count[LEAF_WORD + 1] = {0};
    int r;

    stack[n++] = i;
    seen[i] = i + 1;
    while (n > 0) {
        const struct gplace *p = &c->place[stack[--n]];

        if (!gcomp_work(c, 16 + p->n_leaves + p->n_alts) ||
            !gcomp_room(c, &g->closure, g->n_closure, p->n_leaves, &c->cap_closure, sizeof *g->closure))
            return c->err->code;
        for (uint32_t k = 0; k < p->n_leaves; k++)
            g->closure[g->n_closure++] = p->leaf0 + k;
        for (uint32_t k = 0; k < p->n_alts; k++) {
            uint32_t to = c->alt[p->alt0 + k];

            if (seen[to] != i + 1) {
                seen[to] = i + 1;
                stack[n++] = to;
            }
        }
    }
    r = merge_lists(c, leaf0, LEAF_STRING);
    if (r == 0)
        r = merge_lists(c, leaf0, LEAF_NUMBER);
    for (uint32_t k = leaf0; k < g->n_closure && r == 0; k++)
        if (++count[g->leaf[g->closure[k]].kind] > GRAM_SIDE)
            r = gcomp_fail(c, -E2BIG, c->place[i].text,
                           "more than %d alternatives of one JSON type side by side", GRAM_SIDE);
    g->schema[i] = (struct gschema){.leaf0 = leaf0, .n_leaves = g->n_closure - leaf0, .height = GRAM_ENDLESS};
    return r;
}

static uint8_t height_of(const struct grammar *g, uint32_t schema) {
    return schema == GRAM_NONE ? GRAM_ENDLESS : g->schema[schema].height;
}

static uint8_t above(uint8_t h) {
    return h >= GRAM_DEPTH ? GRAM_ENDLESS : (uint8_t)(h + 1);
}

static uint8_t leaf_height(const struct grammar *g, const struct gleaf *x) {
    uint8_t h = 0;

    switch (x->kind) {
    case LEAF_OBJECT:
        for (uint32_t k = 0; k < x->n_names; k++) {
            uint8_t m = height_of(g, g->name[x->name0 + k].schema);

            if (x->required[k / 64] >> k % 64 & 1 && m > h)
                h = m;
        }
        return above(h);
    case LEAF_ARRAY:
        if (x->min > x->max)
            return GRAM_ENDLESS;
        for (uint32_t k = 0; k < x->min && k <= x->n_items; k++) {
            uint8_t m = height_of(g, k < x->n_items ? g->item[x->item0 + k] : x->other);

            if (m > h)
                h = m;
        }
        return above(h);
    case LEAF_STRING:
        return x->how != HOW_LIST && x->min > x->max ? GRAM_ENDLESS : 0;
    case LEAF_NUMBER:
        return x->how == HOW_FREE && !gram_number_possible(x) ? GRAM_ENDLESS : 0;
    default:
        return 0;
    }
}

/* The least nesting of everything, from the leaves up until nothing changes. */
static int find_heights(struct gcomp *c) {
    struct grammar *g = c->g;
    bool changed = true;

    while (changed) {
        changed = false;
        if (!gcomp_work(c, g->n_leaf + g->n_closure + g->n_name + g->n_item))
            return c->err->code;
        for (uint32_t i = 0; i < g->n_leaf; i++) {
            uint8_t h = leaf_height(g, &g->leaf[i]);

            changed |= h != g->leaf[i].height;
            g->leaf[i].height = h;
        }
        for (uint32_t i = 0; i < g->n_schema; i++) {
            struct gschema *s = &g->schema[i];

            for (uint32_t k = 0; k < s->n_leaves; k++) {
                uint8_t h = g->leaf[g->closure[s->leaf0 + k]].height;

                changed |= h < s->height;
                s->height = h < s->height ? h : s->height;
            }
        }
    }
    return 0;
}

/* Containers of one kind that can be open side by side. */
struct side {
    uint8_t n;
    bool object;
    uint32_t leaf[GRAM_SIDE]; /* sorted */
};

struct sides {
    struct side *set;
    uint32_t n, cap;
};

/* The containers of a kind among schemas, as one set, if it is new. */
static int add_side(struct gcomp *c, struct sides *s, const uint32_t *schemas, uint32_t n,
                    enum gleaf_kind kind) {
    struct grammar *g = c->g;
    struct side x = {.object = kind == LEAF_OBJECT};

    for (uint32_t i = 0; i < n; i++) {
        const struct gschema *h = schemas[i] == GRAM_NONE ? NULL : &g->schema[schemas[i]];

        if (!gcomp_work(c, h ? h->n_leaves + 1 : 1))
            return c->err->code;
        for (uint32_t k = 0; h && k < h->n_leaves; k++) {
            uint32_t id = g->closure[h->leaf0 + k], at = 0;

            if (g->leaf[id].kind != kind || g->leaf[id].height == GRAM_ENDLESS)
                continue;
            while (at < x.n && x.leaf[at] < id)
                at++;
            if (at < x.n && x.leaf[at] == id)
                continue;
            if (x.n == GRAM_SIDE)
                return xerr_set(c->err, -E2BIG,
                                "%s: more than %d of its alternatives can begin alike, and would have "
                                "to be followed side by side",
                                c->what, GRAM_SIDE);
            memmove(x.leaf + at + 1, x.leaf + at, (x.n - at) * sizeof *x.leaf);
            x.leaf[at] = id;
            x.n++;
        }
    }
    if (x.n > g->side)
        g->side = x.n;
    if (x.n == 0 || (kind != LEAF_OBJECT && kind != LEAF_ARRAY))
        return 0;
    if (!gcomp_work(c, s->n))
        return c->err->code;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->set[i].n == x.n && s->set[i].object == x.object &&
            memcmp(s->set[i].leaf, x.leaf, x.n * sizeof *x.leaf) == 0)
            return 0;
    if (s->n == GCOMP_MAX_SETS)
        return xerr_set(c->err, -E2BIG, "%s: its alternatives mix in more than %d ways", c->what,
                        GCOMP_MAX_SETS);
    if (!gcomp_room(c, &s->set, s->n, 1, &s->cap, sizeof *s->set))
        return c->err->code;
    s->set[s->n++] = x;
    return 0;
}

static int add_sides(struct gcomp *c, struct sides *s, const uint32_t *schemas, uint32_t n) {
    int r = 0;

    for (int kind = LEAF_OBJECT; kind <= LEAF_WORD && r == 0; kind++)
        r = add_side(c, s, schemas, n, (enum gleaf_kind)kind);
    return r;
}

static uint32_t member_schema(const struct grammar *g, const struct gleaf *x, const struct gname *name) {
    uint32_t lo = 0, hi = x->n_names;

    for (uint32_t k = 0; k < name->len; k++)
        gram_narrow(g, x->name0, k, (uint8_t)g->text[name->off + k], &lo, &hi);
    return lo < hi && g->name[x->name0 + lo].len == name->len ? g->name[x->name0 + lo].schema : x->other;
}

/* What can be written inside one set: every declared name, any other name, every element. */
static int look_inside(struct gcomp *c, struct sides *s, struct side x) {
    struct grammar *g = c->g;
    uint32_t schemas[GRAM_SIDE], last = 0;
    int r = 0;

    if (!x.object) {
        for (uint32_t i = 0; i < x.n; i++)
            last = g->leaf[x.leaf[i]].n_items > last ? g->leaf[x.leaf[i]].n_items : last;
        for (uint32_t at = 0; at <= last && r == 0; at++) {
            for (uint32_t i = 0; i < x.n; i++) {
                const struct gleaf *l = &g->leaf[x.leaf[i]];

                schemas[i] = at < l->n_items ? g->item[l->item0 + at] : l->other;
            }
            r = add_sides(c, s, schemas, x.n);
        }
        return r;
    }
    for (uint32_t from = 0; from < x.n && r == 0; from++) {
        const struct gleaf *f = &g->leaf[x.leaf[from]];

        for (uint32_t k = 0; k < f->n_names && r == 0; k++) {
            if (!gcomp_work(c, x.n * (uint64_t)g->name[f->name0 + k].len))
                return c->err->code;
            for (uint32_t i = 0; i < x.n; i++)
                schemas[i] = member_schema(g, &g->leaf[x.leaf[i]], &g->name[f->name0 + k]);
            r = add_sides(c, s, schemas, x.n);
        }
    }
    for (uint32_t i = 0; i < x.n; i++)
        schemas[i] = g->leaf[x.leaf[i]].other;
    return r < 0 ? r : add_sides(c, s, schemas, x.n);
}

static int count_sides(struct gcomp *c, const uint32_t *roots, uint32_t n_roots) {
    struct sides s = {0};
    int r = 0;

    for (uint32_t i = 0; i < n_roots && r == 0; i++)
        r = add_sides(c, &s, &roots[i], 1);
    for (uint32_t i = 0; i < s.n && r == 0; i++)
        r = look_inside(c, &s, s.set[i]);
    c->g->bytes -= s.cap * sizeof *s.set;
    free(s.set);
    c->g->depth = c->g->side ? GRAM_POOL / c->g->side : GRAM_DEPTH;
    if (c->g->depth > GRAM_DEPTH)
        c->g->depth = GRAM_DEPTH;
    return r;
}

int gcomp_close(struct gcomp *c, const uint32_t *roots, uint32_t n_roots) {
    uint32_t *marks = calloc(2 * (size_t)c->n_place, sizeof *marks);
    int r = 0;

    if (!marks)
        return xerr_set(c->err, -ENOMEM, "%s: no memory to compile it", c->what);
    if (!gcomp_room(c, &c->g->schema, 0, c->n_place, &c->cap_schema, sizeof *c->g->schema))
        r = c->err->code;
    for (uint32_t i = 0; i < c->n_place && r == 0; i++)
        r = close_place(c, i, marks, marks + c->n_place);
    c->g->n_schema = c->n_place;
    free(marks);
    if (r == 0)
        r = find_heights(c);
    return r < 0 ? r : count_sides(c, roots, n_roots);
}
