/* SPDX-License-Identifier: MIT */
/* One JSON schema after the other into leaves. Places that a schema names are put behind the others and
 * compiled in turn, each once: neither nesting nor references grow the stack, and schemas that share parts
 * cost no more than their text. Text workers only; allocates. */
#include "gcomp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum word {
    W_NOTE, /* says nothing about the text */
    W_TYPE,
    W_ENUM,
    W_CONST,
    W_ANYOF,
    W_ONEOF,
    W_ALLOF,
    W_REF,
    W_NULLABLE,
    W_UNIQUE,
    W_PROPERTIES,
    W_REQUIRED,
    W_ADDITIONAL,
    W_ITEMS,
    W_PREFIX,
    W_MORE_ITEMS,
    W_MIN_ITEMS,
    W_MAX_ITEMS,
    W_MIN_LENGTH,
    W_MAX_LENGTH,
    W_PATTERN,
    W_MINIMUM,
    W_MAXIMUM,
    W_ABOVE,
    W_BELOW,
    W_N
};

static const struct {
    const char *text;
    enum word word;
} keywords[] = {
    {"type", W_TYPE},
    {"enum", W_ENUM},
    {"const", W_CONST},
    {"anyOf", W_ANYOF},
    {"oneOf", W_ONEOF},
    {"allOf", W_ALLOF},
    {"$ref", W_REF},
    {"nullable", W_NULLABLE},
    {"uniqueItems", W_UNIQUE},
    {"properties", W_PROPERTIES},
    {"required", W_REQUIRED},
    {"additionalProperties", W_ADDITIONAL},
    {"items", W_ITEMS},
    {"prefixItems", W_PREFIX},
    {"additionalItems", W_MORE_ITEMS},
    {"minItems", W_MIN_ITEMS},
    {"maxItems", W_MAX_ITEMS},
    {"minLength", W_MIN_LENGTH},
    {"maxLength", W_MAX_LENGTH},
    {"pattern", W_PATTERN},
    {"minimum", W_MINIMUM},
    {"maximum", W_MAXIMUM},
    {"exclusiveMinimum", W_ABOVE},
    {"exclusiveMaximum", W_BELOW},
    {"title", W_NOTE},
    {"description", W_NOTE},
    {"default", W_NOTE},
    {"examples", W_NOTE},
    {"example", W_NOTE},
    {"format", W_NOTE},
    {"$schema", W_NOTE},
    {"$comment", W_NOTE},
    {"$defs", W_NOTE},
    {"definitions", W_NOTE},
    {"deprecated", W_NOTE},
    {"readOnly", W_NOTE},
    {"writeOnly", W_NOTE},
    {"contentEncoding", W_NOTE},
    {"contentMediaType", W_NOTE},
};

struct words {
    struct tstr at[W_N]; /* .p NULL: not there */
};

static int read_words(struct gcomp *c, struct tstr schema, struct words *w) {
    struct jl_iter it;

    memset(w, 0, sizeof *w);
    if (!gcomp_work(c, schema.n))
        return c->err->code;
    for (bool more = jl_first(&it, schema); more; more = jl_next(&it)) {
        size_t k = 0, n = sizeof keywords / sizeof *keywords;

        while (k < n && !jl_str_is(it.key, keywords[k].text, strlen(keywords[k].text)))
            k++;
        if (k < n)
            w->at[keywords[k].word] = it.value;
        else if (!jl_str_is(it.key, "$id", 3) || schema.p != c->root.p)
            return gcomp_fail(c, -EOPNOTSUPP, it.value,
                              "the keyword %.*s is outside the subset of JSON schema that is "
                              "possible here",
                              it.key.n > 60 ? 60 : (int)it.key.n, it.key.p);
    }
    return 0;
}

static const struct {
    const char *name;
    unsigned bit;
} types[] = {
    {"object", T_OBJECT},   {"array", T_ARRAY},  {"string", T_STRING}, {"number", T_NUMBER},
    {"integer", T_INTEGER}, {"boolean", T_BOOL}, {"null", T_NULL},
};

static int one_type(struct gcomp *c, struct tstr name, unsigned *bits) {
    size_t n = sizeof types / sizeof *types;

    for (size_t i = 0; i < n && jl_type(name) == JL_STRING; i++)
        if (jl_str_is(name, types[i].name, strlen(types[i].name))) {
            *bits |= types[i].bit;
            return 0;
        }
    return gcomp_fail(c, -EINVAL, name, "found %.*s, expected the name of a JSON type",
                      name.n > 60 ? 60 : (int)name.n, name.p);
}

static int read_types(struct gcomp *c, const struct words *w, unsigned *ret) {
    struct tstr t = w->at[W_TYPE];
    struct jl_iter it;
    unsigned bits = 0;
    int r = 0;

    if (!t.p)
        bits = T_ALL;
    else if (jl_type(t) != JL_ARRAY)
        r = one_type(c, t, &bits);
    else
        for (bool more = jl_first(&it, t); more && r == 0; more = jl_next(&it))
            r = one_type(c, it.value, &bits);
    if (r == 0 && w->at[W_NULLABLE].p) {
        if (jl_type(w->at[W_NULLABLE]) != JL_BOOL)
            return gcomp_fail(c, -EINVAL, w->at[W_NULLABLE], "expected true or false");
        if (w->at[W_NULLABLE].p[0] == 't')
            bits |= T_NULL;
    }
    if (r == 0)
        *ret = bits;
    return r;
}

/* A count: a whole number of at most 2^31. */
static int read_count(struct gcomp *c, struct tstr v, uint32_t *ret) {
    uint64_t n = 0;
    size_t i = 0;

    if (!v.p)
        return 0;
    for (; i < v.n && v.p[i] >= '0' && v.p[i] <= '9' && n <= UINT32_MAX; i++)
        n = n * 10 + (uint64_t)(v.p[i] - '0');
    if (jl_type(v) != JL_NUMBER || !jl_is_integer(v) || n > INT32_MAX || v.p[0] == '-')
        return gcomp_fail(c, -EINVAL, v, "found %.*s, expected a whole number from 0 to %d",
                          v.n > 60 ? 60 : (int)v.n, v.p, INT32_MAX);
    *ret = (uint32_t)n;
    return 0;
}

static int read_bound(struct gcomp *c, struct tstr v, bool *ret_has, int64_t *ret) {
    char text[24];
    char *end;
    long long n;

    if (!v.p)
        return 0;
    errno = 0;
    if (jl_type(v) == JL_NUMBER && jl_is_integer(v)) {
        size_t len = 0;

        while (len < v.n && v.p[len] != '.')
            len++;
        if (len < sizeof text) {
            memcpy(text, v.p, len);
            text[len] = 0;
            n = strtoll(text, &end, 10);
            if (errno == 0 && end == text + len) {
                *ret_has = true;
                *ret = n;
                return 0;
            }
        }
    }
    return gcomp_fail(c, -EOPNOTSUPP, v, "found %.*s, expected a whole number of at most 64 bits as a bound",
                      v.n > 60 ? 60 : (int)v.n, v.p);
}

/* minimum and exclusiveMinimum, or their counterparts: the narrower one counts. sign 1: lower, -1: upper. */
static int read_bounds(struct gcomp *c, struct tstr in, struct tstr out, int sign, bool *ret_has,
                       bool *ret_out, int64_t *ret) {
    bool has_in = false, has_out = false;
    int64_t a = 0, b = 0;
    int r = read_bound(c, in, &has_in, &a);

    if (r == 0)
        r = read_bound(c, out, &has_out, &b);
    if (r < 0)
        return r;
    *ret_has = has_in || has_out;
    *ret_out = has_out && (!has_in || (sign > 0 ? b >= a : b <= a));
    *ret = *ret_out ? b : a;
    return 0;
}

static int number_leaf(struct gcomp *c, const struct words *w, bool integer) {
    int64_t leaf = gcomp_leaf(c, LEAF_NUMBER);
    struct gleaf x;
    int r;

    if (leaf < 0)
        return (int)leaf;
    x = c->g->leaf[leaf];
    x.integer = integer;
    r = read_bounds(c, w->at[W_MINIMUM], w->at[W_ABOVE], 1, &x.has_low, &x.low_out, &x.low);
    if (r == 0)
        r = read_bounds(c, w->at[W_MAXIMUM], w->at[W_BELOW], -1, &x.has_high, &x.high_out, &x.high);
    c->g->leaf[leaf] = x;
    return r;
}

static int string_leaf(struct gcomp *c, const struct words *w) {
    int64_t leaf = gcomp_leaf(c, LEAF_STRING);
    uint32_t min = 0, max = GRAM_NONE, dfa, start;
    bool empty;
    int r;

    if (leaf < 0)
        return (int)leaf;
    r = read_count(c, w->at[W_MIN_LENGTH], &min);
    if (r == 0)
        r = read_count(c, w->at[W_MAX_LENGTH], &max);
    if (r == 0 && w->at[W_PATTERN].p) {
        if (jl_type(w->at[W_PATTERN]) != JL_STRING)
            return gcomp_fail(c, -EINVAL, w->at[W_PATTERN], "expected a string with a regular expression");
        r = gcomp_pattern(c, w->at[W_PATTERN], min, max, &dfa, &start, &empty);
        if (r == 0) {
            c->g->leaf[leaf].how = HOW_DFA;
            c->g->leaf[leaf].dfa = dfa;
            c->g->leaf[leaf].start = start;
            if (empty)
                min = 1, max = 0;
        }
    }
    c->g->leaf[leaf].min = min;
    c->g->leaf[leaf].max = max;
    return r;
}

static int place_of(struct gcomp *c, struct tstr schema, uint32_t *ret) {
    int64_t place;

    if (jl_type(schema) != JL_OBJECT && jl_type(schema) != JL_BOOL)
        return gcomp_fail(c, -EINVAL, schema, "expected a schema: an object, true or false");
    if (schema.p[0] == 'f') {
        *ret = GRAM_NONE;
        return 0;
    }
    place = schema.p[0] == 't' ? (int64_t)c->any : gcomp_place(c, schema, false);
    if (place < 0)
        return (int)place;
    *ret = (uint32_t)place;
    return 0;
}

int gcomp_root(struct gcomp *c, struct tstr schema, uint32_t *ret) {
    int r = place_of(c, schema, ret);

    if (r == 0 && *ret == GRAM_NONE)
        r = gcomp_fail(c, -EDOM, schema, "nothing satisfies false");
    return r;
}

static int array_leaf(struct gcomp *c, const struct words *w) {
    struct tstr first = w->at[W_PREFIX], rest = w->at[W_ITEMS];
    int64_t leaf = gcomp_leaf(c, LEAF_ARRAY);
    uint32_t min = 0, max = GRAM_NONE, item0 = c->g->n_item, n = 0, other = c->any;
    struct jl_iter it;
    int r;

    if (leaf < 0)
        return (int)leaf;
    if (!first.p && rest.p && jl_type(rest) == JL_ARRAY) { /* as it was written before prefixItems */
        first = rest;
        rest = w->at[W_MORE_ITEMS];
    }
    if (first.p && jl_type(first) != JL_ARRAY)
        return gcomp_fail(c, -EINVAL, first, "expected a list of schemas");
    if (w->at[W_UNIQUE].p && w->at[W_UNIQUE].p[0] != 'f')
        return gcomp_fail(c, -EOPNOTSUPP, w->at[W_UNIQUE],
                          "uniqueItems is outside the subset that is possible here");
    r = read_count(c, w->at[W_MIN_ITEMS], &min);
    if (r == 0)
        r = read_count(c, w->at[W_MAX_ITEMS], &max);
    if (r == 0 && rest.p)
        r = place_of(c, rest, &other);
    for (bool more = r == 0 && first.p && jl_first(&it, first); more && r == 0; more = jl_next(&it), n++) {
        uint32_t place;

        r = place_of(c, it.value, &place);
        if (r == 0 && !gcomp_room(c, &c->g->item, c->g->n_item, 1, &c->cap_item, sizeof *c->g->item))
            r = c->err->code;
        if (r == 0)
            c->g->item[c->g->n_item++] = place;
    }
    c->g->leaf[leaf].item0 = item0;
    c->g->leaf[leaf].n_items = n;
    c->g->leaf[leaf].other = other;
    c->g->leaf[leaf].min = min;
    c->g->leaf[leaf].max = max;
    return r;
}

static bool same_name(const struct grammar *g, const struct gname *a, const struct gname *b) {
    return a->len == b->len && memcmp(g->text + a->off, g->text + b->off, a->len) == 0;
}

/* The number of the declared member with the name that stands last in g->name; that one is taken off again.
 */
static uint32_t take_back(struct grammar *g, const struct gleaf *x, bool keep_new) {
    const struct gname *last = &g->name[g->n_name - 1];
    uint32_t k = 0;

    while (k < x->n_names && !same_name(g, last, &g->name[x->name0 + k]))
        k++;
    if (k < x->n_names || !keep_new) {
        g->n_name--;
        g->n_text -= last->len + 1;
    }
    return k;
}

/* Marks the required names; those that are not declared are declared now, as additionalProperties says. */
static int read_required(struct gcomp *c, struct tstr list, struct gleaf *x) {
    struct grammar *g = c->g;
    struct jl_iter it;
    int r = 0;

    if (jl_type(list) != JL_ARRAY)
        return gcomp_fail(c, -EINVAL, list, "expected a list of names");
    for (bool more = jl_first(&it, list); more && r == 0; more = jl_next(&it)) {
        if (jl_type(it.value) != JL_STRING)
            return gcomp_fail(c, -EINVAL, it.value, "expected a name as a string");
        if (g->n_name - x->name0 > 4 * GRAM_NAMES)
            return gcomp_fail(c, -E2BIG, list, "more than the %d names that are possible", GRAM_NAMES);
        r = gcomp_put_name(c, it.value, x->other);
        if (r == 0)
            take_back(g, x, true);
    }
    if (r < 0)
        return r;
    x->n_names = gcomp_sort_names(c, x->name0, g->n_name - x->name0);
    for (bool more = jl_first(&it, list); more && r == 0 && x->n_names <= GRAM_NAMES; more = jl_next(&it)) {
        uint32_t k;

        r = gcomp_put_name(c, it.value, GRAM_NONE);
        if (r == 0) {
            k = take_back(g, x, false);
            x->required[k / 64] |= UINT64_C(1) << k % 64;
        }
    }
    return r;
}

static int object_leaf(struct gcomp *c, const struct words *w) {
    struct grammar *g = c->g;
    struct tstr props = w->at[W_PROPERTIES], required = w->at[W_REQUIRED];
    int64_t leaf = gcomp_leaf(c, LEAF_OBJECT);
    struct gleaf x;
    struct jl_iter it;
    int r = 0;

    if (leaf < 0)
        return (int)leaf;
    x = g->leaf[leaf];
    x.other = c->any;
    if (w->at[W_ADDITIONAL].p)
        r = place_of(c, w->at[W_ADDITIONAL], &x.other);
    if (props.p && jl_type(props) != JL_OBJECT)
        return gcomp_fail(c, -EINVAL, props, "expected an object of schemas");
    x.name0 = g->n_name;
    for (bool more = r == 0 && props.p && jl_first(&it, props); more && r == 0; more = jl_next(&it)) {
        uint32_t place;

        if (g->n_name - x.name0 > 4 * GRAM_NAMES)
            return gcomp_fail(c, -E2BIG, props, "more than the %d members that are possible", GRAM_NAMES);
        r = place_of(c, it.value, &place);
        if (r == 0)
            r = gcomp_put_name(c, it.key, place);
        if (r == 0 && memchr(g->text + g->name[g->n_name - 1].off, 0, g->name[g->n_name - 1].len))
            r = gcomp_fail(c, -EOPNOTSUPP, it.value, "a name with a NUL character");
    }
    if (r < 0)
        return r;
    x.n_names = gcomp_sort_names(c, x.name0, g->n_name - x.name0);
    if (required.p)
        r = read_required(c, required, &x);
    if (r == 0 && x.n_names > GRAM_NAMES)
        r = gcomp_fail(c, -E2BIG, props.p ? props : required, "%u members, at most %d are possible",
                       x.n_names, GRAM_NAMES);
    g->leaf[leaf] = x;
    return r;
}

/* The value a reference inside the document points to. */
static int follow(struct gcomp *c, struct tstr quoted, struct tstr *ret) {
    struct tstr cur = c->root;
    struct tbuf b;
    size_t at = 0;
    int r = 0;

    tbuf_init(&b, quoted.n + 16);
    if (jl_type(quoted) == JL_STRING)
        jl_unquote(quoted, &b);
    if (b.err < 0 || b.n == 0 || b.p[0] != '#' || (b.n > 1 && b.p[1] != '/'))
        r = -EINVAL;
    for (at = 1; r == 0 && at < b.n;) {
        char *seg = b.p + at + 1;
        size_t n = 0, len = 0;
        struct jl_iter it;
        struct tstr found = {0};

        while (at + 1 + n < b.n && seg[n] != '/')
            n++;
        at += 1 + n;
        for (size_t i = 0; i < n; i++) { /* ~0 and ~1, in place */
            if (seg[i] == '~' && i + 1 < n && (seg[i + 1] == '0' || seg[i + 1] == '1'))
                seg[len++] = seg[++i] == '0' ? '~' : '/';
            else
                seg[len++] = seg[i];
        }
        if (!gcomp_work(c, cur.n)) {
            r = c->err->code;
            break;
        }
        if (jl_type(cur) == JL_OBJECT) {
            for (bool more = jl_first(&it, cur); more; more = jl_next(&it))
                if (jl_str_is(it.key, seg, len))
                    found = it.value;
        } else if (jl_type(cur) == JL_ARRAY && len > 0 && len < 8) {
            unsigned long i = 0, want = 0;

            for (size_t k = 0; k < len; k++)
                want = seg[k] >= '0' && seg[k] <= '9' ? want * 10 + (unsigned long)(seg[k] - '0') : 100000000;
            for (bool more = jl_first(&it, cur); more; more = jl_next(&it), i++)
                if (i == want)
                    found = it.value;
        }
        if (!found.p)
            r = -ENOENT;
        else
            cur = found;
    }
    tbuf_done(&b);
    if (r == -EINVAL || r == -ENOENT)
        return gcomp_fail(c, -EINVAL, quoted,
                          "found %.*s, expected \"#\" or \"#/…\" to a schema of this document",
                          quoted.n > 80 ? 80 : (int)quoted.n, quoted.p);
    if (r == 0)
        *ret = cur;
    return r;
}

int gcomp_alt(struct gcomp *c, uint32_t self, uint32_t other) {
    struct gplace *p;

    if (other == GRAM_NONE)
        return 0;
    if (!gcomp_room(c, &c->alt, c->n_alt, 1, &c->cap_alt, sizeof *c->alt))
        return c->err->code;
    p = &c->place[self];
    if (!p->n_alts)
        p->alt0 = c->n_alt;
    c->alt[c->n_alt++] = other;
    p->n_alts++;
    return 0;
}

static int union_of(struct gcomp *c, uint32_t self, struct tstr list) {
    struct jl_iter it;
    uint32_t place;
    int r = 0;

    if (jl_type(list) != JL_ARRAY || !jl_first(&it, list))
        return gcomp_fail(c, -EINVAL, list, "expected a list of at least one schema");
    for (bool more = jl_first(&it, list); more && r == 0; more = jl_next(&it)) {
        r = place_of(c, it.value, &place);
        if (r == 0)
            r = gcomp_alt(c, self, place);
    }
    return r;
}

/* anyOf, $ref and the like stand alone: what stands beside them would have to hold as well. */
static int combined(struct gcomp *c, uint32_t self, const struct words *w, enum word by) {
    struct tstr target;
    struct jl_iter it;
    uint32_t place;
    int r;

    for (int k = W_TYPE; k < W_N; k++)
        if (w->at[k].p && k != (int)by)
            return gcomp_fail(c, -EOPNOTSUPP, w->at[k],
                              "beside $ref, anyOf, oneOf or allOf no other keyword that "
                              "limits the value is possible");
    if (by == W_ANYOF || by == W_ONEOF)
        return union_of(c, self, w->at[by]);
    if (by == W_ALLOF) {
        if (jl_type(w->at[by]) != JL_ARRAY || !jl_first(&it, w->at[by]) || (target = it.value, jl_next(&it)))
            return gcomp_fail(c, -EOPNOTSUPP, w->at[by], "allOf is possible with exactly one schema");
    } else {
        r = follow(c, w->at[by], &target);
        if (r < 0)
            return r;
    }
    r = place_of(c, target, &place);
    return r < 0 ? r : gcomp_alt(c, self, place);
}

static int typed(struct gcomp *c, const struct words *w, unsigned bits) {
    int64_t leaf;
    int r = 0;

    if (bits & T_OBJECT)
        r = object_leaf(c, w);
    if (r == 0 && bits & T_ARRAY)
        r = array_leaf(c, w);
    if (r == 0 && bits & T_STRING)
        r = string_leaf(c, w);
    if (r == 0 && bits & (T_NUMBER | T_INTEGER))
        r = number_leaf(c, w, !(bits & T_NUMBER));
    if (r == 0 && bits & (T_BOOL | T_NULL)) {
        leaf = gcomp_leaf(c, LEAF_WORD);
        if (leaf < 0)
            return (int)leaf;
        c->g->leaf[leaf].words =
            (uint8_t)((bits & T_BOOL ? WORD_TRUE | WORD_FALSE : 0) | (bits & T_NULL ? WORD_NULL : 0));
    }
    return r;
}

static int compile(struct gcomp *c, uint32_t self) {
    static const enum word combining[] = {W_REF, W_ANYOF, W_ONEOF, W_ALLOF};
    struct tstr schema = c->place[self].text;
    struct words w;
    unsigned bits = 0;
    int r = read_words(c, schema, &w);

    for (size_t i = 0; i < sizeof combining / sizeof *combining && r == 0; i++)
        if (w.at[combining[i]].p)
            return combined(c, self, &w, combining[i]);
    if (r == 0)
        r = read_types(c, &w, &bits);
    if (r < 0)
        return r;
    if (w.at[W_ENUM].p || w.at[W_CONST].p) {
        for (int k = W_UNIQUE; k < W_N; k++)
            if (w.at[k].p)
                return gcomp_fail(c, -EOPNOTSUPP, w.at[k], "beside enum or const only type is possible");
        if (w.at[W_ENUM].p && w.at[W_CONST].p)
            return gcomp_fail(c, -EOPNOTSUPP, w.at[W_CONST], "either enum or const is possible, not both");
        r = gcomp_enum(c, self, w.at[W_ENUM].p ? w.at[W_ENUM] : w.at[W_CONST], bits, w.at[W_CONST].p);
    } else {
        r = typed(c, &w, bits);
    }
    return r;
}

int gcomp_schemas(struct gcomp *c) {
    int r = 0;

    for (uint32_t i = c->n_done; i < c->n_place && r == 0; i++) {
        uint32_t leaf0 = c->g->n_leaf;

        c->n_done = i + 1;
        if (!c->place[i].text.p)
            continue;
        r = c->place[i].literal ? gcomp_literal(c, i) : compile(c, i);
        c->place[i].leaf0 = leaf0;
        c->place[i].n_leaves = c->g->n_leaf - leaf0;
    }
    return r;
}
