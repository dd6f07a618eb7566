/* SPDX-License-Identifier: MIT */
/* Values of enum and const into leaves: strings and numbers become one sorted list each, objects and arrays
 * schemas that fix every member. Text workers only; allocates. */
#include "gcomp.h"

#include <errno.h>

static int list_leaf(struct gcomp *c, enum gleaf_kind kind, uint32_t name0) {
    int64_t leaf;

    if (c->g->n_name == name0)
        return 0;
    leaf = gcomp_leaf(c, kind);
    if (leaf < 0)
        return (int)leaf;
    c->g->leaf[leaf].how = HOW_LIST;
    c->g->leaf[leaf].name0 = name0;
    c->g->leaf[leaf].n_names = gcomp_sort_names(c, name0, c->g->n_name - name0);
    return 0;
}

static int word_leaf(struct gcomp *c, unsigned words) {
    int64_t leaf = words ? gcomp_leaf(c, LEAF_WORD) : 0;

    if (leaf < 0)
        return (int)leaf;
    if (words)
        c->g->leaf[leaf].words = (uint8_t)words;
    return 0;
}

static unsigned word_of(struct tstr v) {
    return v.p[0] == 't' ? WORD_TRUE : v.p[0] == 'f' ? WORD_FALSE : WORD_NULL;
}

static int object_literal(struct gcomp *c, struct tstr v) {
    int64_t leaf = gcomp_leaf(c, LEAF_OBJECT);
    uint32_t name0 = c->g->n_name, n;
    struct jl_iter it;
    int r = 0;

    if (leaf < 0)
        return (int)leaf;
    for (bool more = jl_first(&it, v); more && r == 0; more = jl_next(&it)) {
        int64_t place = gcomp_place(c, it.value, true);

        r = place < 0 ? (int)place : gcomp_put_name(c, it.key, (uint32_t)place);
        if (c->g->n_name - name0 > 4 * GRAM_NAMES)
            break;
    }
    if (r < 0)
        return r;
    n = gcomp_sort_names(c, name0, c->g->n_name - name0);
    if (n > GRAM_NAMES)
        return gcomp_fail(c, -E2BIG, v, "%u members or more, at most %d are possible", n, GRAM_NAMES);
    c->g->leaf[leaf].name0 = name0;
    c->g->leaf[leaf].n_names = n;
    for (uint32_t k = 0; k < n; k++)
        c->g->leaf[leaf].required[k / 64] |= UINT64_C(1) << k % 64;
    return 0;
}

static int array_literal(struct gcomp *c, struct tstr v) {
    int64_t leaf = gcomp_leaf(c, LEAF_ARRAY);
    uint32_t item0 = c->g->n_item, n = 0;
    struct jl_iter it;

    if (leaf < 0)
        return (int)leaf;
    for (bool more = jl_first(&it, v); more; more = jl_next(&it), n++) {
        int64_t place = gcomp_place(c, it.value, true);

        if (place < 0)
            return (int)place;
        if (!gcomp_room(c, &c->g->item, c->g->n_item, 1, &c->cap_item, sizeof *c->g->item))
            return c->err->code;
        c->g->item[c->g->n_item++] = (uint32_t)place;
    }
    c->g->leaf[leaf].item0 = item0;
    c->g->leaf[leaf].n_items = n;
    c->g->leaf[leaf].min = c->g->leaf[leaf].max = n;
    return 0;
}

/* The place's own leaves; called for one value, or for each container of an enum through a place of its own.
 */
int gcomp_literal(struct gcomp *c, uint32_t self) {
    struct tstr v = c->place[self].text;
    uint32_t name0 = c->g->n_name;
    int r;

    if (!gcomp_work(c, v.n))
        return c->err->code;
    switch (jl_type(v)) {
    case JL_OBJECT:
        return object_literal(c, v);
    case JL_ARRAY:
        return array_literal(c, v);
    case JL_STRING:
        r = gcomp_put_name(c, v, GRAM_NONE);
        return r < 0 ? r : list_leaf(c, LEAF_STRING, name0);
    case JL_NUMBER:
        r = gcomp_put_text(c, v.p, v.n, GRAM_NONE);
        return r < 0 ? r : list_leaf(c, LEAF_NUMBER, name0);
    default:
        return word_leaf(c, word_of(v));
    }
}

static unsigned type_of(struct tstr v) {
    switch (jl_type(v)) {
    case JL_OBJECT:
        return T_OBJECT;
    case JL_ARRAY:
        return T_ARRAY;
    case JL_STRING:
        return T_STRING;
    case JL_NUMBER:
        return jl_is_integer(v) ? T_NUMBER | T_INTEGER : T_NUMBER;
    case JL_BOOL:
        return T_BOOL;
    default:
        return T_NULL;
    }
}

/* Strings or numbers of the list into one leaf. */
static int scalars(struct gcomp *c, struct tstr list, enum jl_type type, unsigned types) {
    uint32_t name0 = c->g->n_name;
    struct jl_iter it;
    int r = 0;

    for (bool more = jl_first(&it, list); more && r == 0; more = jl_next(&it)) {
        if (jl_type(it.value) != type || !(type_of(it.value) & types))
            continue;
        if (c->g->n_name - name0 == GCOMP_MAX_LIST)
            return gcomp_fail(c, -E2BIG, list, "more than the %d values of one type that are possible",
                              GCOMP_MAX_LIST);
        r = type == JL_STRING ? gcomp_put_name(c, it.value, GRAM_NONE)
                              : gcomp_put_text(c, it.value.p, it.value.n, GRAM_NONE);
    }
    return r < 0 ? r : list_leaf(c, type == JL_STRING ? LEAF_STRING : LEAF_NUMBER, name0);
}

/* As a place of its own, which self is a union with. */
static int literal_place(struct gcomp *c, uint32_t self, struct tstr v) {
    int64_t place = gcomp_place(c, v, true);

    return place < 0 ? (int)place : gcomp_alt(c, self, (uint32_t)place);
}

int gcomp_enum(struct gcomp *c, uint32_t self, struct tstr list, unsigned types, bool single) {
    struct jl_iter it;
    unsigned words = 0;
    int r;

    if (single) {
        if (!(type_of(list) & types))
            return 0;
        return literal_place(c, self, list);
    }
    if (jl_type(list) != JL_ARRAY)
        return gcomp_fail(c, -EINVAL, list, "expected a list of values");
    r = scalars(c, list, JL_STRING, types);
    if (r == 0)
        r = scalars(c, list, JL_NUMBER, types);
    for (bool more = jl_first(&it, list); more && r == 0; more = jl_next(&it)) {
        unsigned type = type_of(it.value);

        if (type & types & (T_BOOL | T_NULL))
            words |= word_of(it.value);
        if (type & types & (T_OBJECT | T_ARRAY))
            r = literal_place(c, self, it.value);
    }
    return r < 0 ? r : word_leaf(c, words);
}
