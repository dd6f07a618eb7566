/* SPDX-License-Identifier: MIT */
/* Schemas to type masks. Runs on a text worker; what it makes is never changed again. A schema is a hint
 * here: what is not understood admits everything, so a string stays a string. */
#include "outtools.h"

#include "jsonlite.h"

#include <errno.h>
#include <stdlib.h>

#define SCHEMA_DEPTH 64
/* Levels of anyOf, $ref ... followed, and bytes of schema looked at in one request: references may
 * multiply. */
#define NEST_MAX     12
#define BUDGET_BYTES ((size_t)32 << 20)
#define MAX_REQUIRED 4096

struct param {
    size_t off, len; /* key in names */
    unsigned types;
    bool required;
};

struct tool {
    size_t off, len; /* name in names */
    size_t first, n; /* in params */
    size_t n_required;
    unsigned other_types;
};

struct outtools {
    struct tool *tools;
    size_t n;
    struct param *params;
    size_t n_params, cap_params;
    struct tbuf names;
};

static unsigned type_by_name(struct tstr quoted) {
    static const struct {
        const char *name;
        unsigned types;
    } all[] = {{"string", OUTTOOLS_STRING},
               {"integer", OUTTOOLS_INTEGER},
               {"number", OUTTOOLS_INTEGER | OUTTOOLS_NUMBER},
               {"boolean", OUTTOOLS_BOOL},
               {"null", OUTTOOLS_NULL},
               {"array", OUTTOOLS_ARRAY},
               {"object", OUTTOOLS_OBJECT}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (jl_str_is(quoted, all[i].name, strlen(all[i].name)))
            return all[i].types;
    }
    return OUTTOOLS_ALL;
}

static unsigned type_of_value(struct tstr v) {
    switch (jl_type(v)) {
    case JL_STRING:
        return OUTTOOLS_STRING;
    case JL_NUMBER:
        return jl_is_integer(v) ? OUTTOOLS_INTEGER : OUTTOOLS_INTEGER | OUTTOOLS_NUMBER;
    case JL_BOOL:
        return OUTTOOLS_BOOL;
    case JL_NULL:
        return OUTTOOLS_NULL;
    case JL_ARRAY:
        return OUTTOOLS_ARRAY;
    default:
        return OUTTOOLS_OBJECT;
    }
}

/* "#/a/b" inside root; absent when it leads nowhere. */
static struct tstr resolve(struct tstr ref, struct tstr root) {
    const char *p = ref.p + 1, *end = ref.p + ref.n - 1;
    char key[128];

    if (end - p < 1 || *p != '#')
        return (struct tstr){0};
    for (p++; p < end && root.p && jl_type(root) == JL_OBJECT;) {
        const char *slash = memchr(p + 1, '/', (size_t)(end - p - 1));
        size_t n = (size_t)((slash ? slash : end) - p - 1);

        if (*p != '/' || n >= sizeof key || memchr(p, '\\', n + 1) || memchr(p, '~', n + 1))
            return (struct tstr){0};
        memcpy(key, p + 1, n);
        key[n] = 0;
        root = jl_get(root, key);
        p += n + 1;
    }
    return p < end ? (struct tstr){0} : root;
}

static unsigned types_of(struct tstr s, struct tstr root, unsigned nest, size_t *budget);

/* The union of what a list's members admit, or the intersection for allOf. */
static unsigned types_of_list(struct tstr list, bool all, struct tstr root, unsigned nest, size_t *budget) {
    unsigned types = all ? OUTTOOLS_ALL : 0;
    struct jl_iter it;

    if (!list.p || jl_type(list) != JL_ARRAY)
        return OUTTOOLS_ALL;
    for (bool more = jl_first(&it, list); more; more = jl_next(&it)) {
        unsigned one = types_of(it.value, root, nest, budget);

        types = all ? types & one : types | one;
    }
    return types;
}

static unsigned types_of_type(struct tstr type) {
    unsigned types = 0;
    struct jl_iter it;

    if (type.p && jl_type(type) == JL_STRING)
        return type_by_name(type);
    if (!type.p || jl_type(type) != JL_ARRAY)
        return OUTTOOLS_ALL;
    for (bool more = jl_first(&it, type); more; more = jl_next(&it))
        types |= jl_type(it.value) == JL_STRING ? type_by_name(it.value) : OUTTOOLS_ALL;
    return types;
}

static unsigned types_of_enum(struct tstr list, struct tstr constant) {
    unsigned types = 0;
    struct jl_iter it;

    if (constant.p)
        return type_of_value(constant);
    if (!list.p || jl_type(list) != JL_ARRAY)
        return OUTTOOLS_ALL;
    for (bool more = jl_first(&it, list); more; more = jl_next(&it))
        types |= type_of_value(it.value);
    return types;
}

/* Bounded: nest falls with every level, budget with every byte. */
static unsigned types_of(struct tstr s, struct tstr root, unsigned nest, size_t *budget) {
    unsigned types;
    struct tstr ref;

    if (jl_type(s) != JL_OBJECT || nest == 0 || *budget < s.n)
        return OUTTOOLS_ALL;
    *budget -= s.n;
    types = types_of_type(jl_get(s, "type"));
    if (tstr_is(jl_get(s, "nullable"), "true"))
        types |= OUTTOOLS_NULL;
    types &= types_of_enum(jl_get(s, "enum"), jl_get(s, "const"));
    types &= types_of_list(jl_get(s, "anyOf"), false, root, nest - 1, budget);
    types &= types_of_list(jl_get(s, "oneOf"), false, root, nest - 1, budget);
    types &= types_of_list(jl_get(s, "allOf"), true, root, nest - 1, budget);
    ref = jl_get(s, "$ref");
    if (ref.p && jl_type(ref) == JL_STRING) {
        ref = resolve(ref, root);
        if (ref.p && *budget >= root.n) {
            *budget -= root.n; /* finding it cost that much */
            types &= types_of(ref, root, nest - 1, budget);
        }
    }
    return types ? types : OUTTOOLS_ALL; /* contradictory: no opinion */
}

static struct param *add_param(struct outtools *t, struct tool *tool, struct tstr quoted, unsigned types) {
    struct param *p;
    size_t off = t->names.n;

    jl_unquote(quoted, &t->names);
    for (size_t i = 0; i < tool->n; i++) {
        p = &t->params[tool->first + i];
        if (p->len == t->names.n - off &&
            (p->len == 0 || memcmp(t->names.p + p->off, t->names.p + off, p->len) == 0)) {
            t->names.n = off;
            return p;
        }
    }
    if (tool->n == OUTTOOLS_MAX_PARAMS) {
        t->names.n = off;
        return NULL;
    }
    if (t->n_params == t->cap_params) {
        size_t cap = t->cap_params ? t->cap_params * 2 : 64;

        p = realloc(t->params, cap * sizeof *p);
        if (!p) {
            t->names.err = -ENOMEM;
            return NULL;
        }
        t->params = p;
        t->cap_params = cap;
    }
    p = &t->params[t->n_params++];
    *p = (struct param){.off = off, .len = t->names.n - off, .types = types};
    tool->n++;
    return p;
}

static void compile_schema(struct outtools *t, struct tool *tool, struct tstr schema, size_t *budget) {
    struct tstr props, required, other;
    struct jl_iter it;
    size_t n = 0;

    if (!schema.p || jl_type(schema) != JL_OBJECT)
        return;
    other = jl_get(schema, "additionalProperties");
    if (other.p && jl_type(other) == JL_OBJECT)
        tool->other_types = types_of(other, schema, NEST_MAX, budget);
    props = jl_get(schema, "properties");
    if (props.p && jl_type(props) == JL_OBJECT) {
        for (bool more = jl_first(&it, props); more; more = jl_next(&it)) {
            struct param *p = add_param(t, tool, it.key, OUTTOOLS_ALL);

            if (p)
                p->types = types_of(it.value, schema, NEST_MAX, budget);
        }
    }
    required = jl_get(schema, "required");
    if (!required.p || jl_type(required) != JL_ARRAY)
        return;
    for (bool more = jl_first(&it, required); more && n < MAX_REQUIRED; more = jl_next(&it), n++) {
        struct param *p =
            jl_type(it.value) == JL_STRING ? add_param(t, tool, it.value, tool->other_types) : NULL;

        if (p && !p->required) {
            p->required = true;
            tool->n_required++;
        }
    }
}

static int compile_tool(struct outtools *t, struct tstr text, size_t i, size_t *budget, struct xerr *err) {
    struct jl_fault f = {0};
    struct tstr obj, inner, name, schema;
    struct tool *tool = &t->tools[t->n];
    int type = jl_check(text.p, text.n, SCHEMA_DEPTH, &obj, &f);

    if (type < 0)
        return xerr_set(err, type, "tools[%zu]: not JSON: %s at byte %zu; expected one object", i, f.why,
                        f.at);
    if (type == JL_OBJECT) {
        inner = jl_get(obj, "function");
        if (inner.p && jl_type(inner) == JL_OBJECT)
            obj = inner;
        name = jl_get(obj, "name");
    }
    if (type != JL_OBJECT || !name.p || jl_type(name) != JL_STRING || name.n <= 2)
        return xerr_set(err, -EINVAL,
                        "tools[%zu].name: missing, empty or not a text; expected the tool's name", i);
    *tool = (struct tool){
        .off = t->names.n, .first = t->n_params, .other_types = OUTTOOLS_ALL & ~(unsigned)OUTTOOLS_STRING};
    jl_unquote(name, &t->names);
    tool->len = t->names.n - tool->off;
    schema = jl_get(obj, "parameters");
    if (!schema.p)
        schema = jl_get(obj, "input_schema");
    compile_schema(t, tool, schema, budget);
    t->n++;
    return 0;
}

int outtools_new(const struct tstr *tools, size_t n, struct outtools **ret, struct xerr *err) {
    struct outtools *t;
    size_t budget = BUDGET_BYTES;
    int r = 0;

    if (n > OUTTOOLS_MAX_TOOLS)
        return xerr_set(err, -E2BIG, "tools: found %zu; expected at most %d", n, OUTTOOLS_MAX_TOOLS);
    t = calloc(1, sizeof *t);
    if (!t)
        return xerr_set(err, -ENOMEM, "tools: not enough memory");
    tbuf_init(&t->names, SIZE_MAX / 2);
    tbuf_reserve(&t->names, 1);
    t->tools = calloc(n + 1, sizeof *t->tools);
    if (!t->tools)
        t->names.err = -ENOMEM;
    for (size_t i = 0; i < n && r == 0 && t->names.err == 0; i++)
        r = compile_tool(t, tools[i], i, &budget, err);
    if (r == 0 && t->names.err)
        r = xerr_set(err, t->names.err, "tools: not enough memory");
    if (r < 0)
        outtools_free(t);
    else
        *ret = t;
    return r;
}

struct outtools *outtools_free(struct outtools *t) {
    if (t) {
        free(t->tools);
        free(t->params);
        tbuf_done(&t->names);
    }
    free(t);
    return NULL;
}

int outtools_find(const struct outtools *t, struct tstr name) {
    for (size_t i = 0; t && i < t->n; i++) {
        if (tstr_eq(name, outtools_name(t, (int)i)))
            return (int)i;
    }
    return -ENOENT;
}

struct tstr outtools_name(const struct outtools *t, int tool) {
    return (struct tstr){t->names.p + t->tools[tool].off, t->tools[tool].len};
}

size_t outtools_count(const struct outtools *t) {
    return t ? t->n : 0;
}

int outtools_param(const struct outtools *t, int tool, struct tstr key, unsigned *ret_types) {
    const struct tool *o = &t->tools[tool];

    for (size_t i = 0; i < o->n; i++) {
        const struct param *p = &t->params[o->first + i];

        if (tstr_eq(key, (struct tstr){t->names.p + p->off, p->len})) {
            *ret_types = p->types;
            return (int)i;
        }
    }
    *ret_types = o->other_types;
    return -ENOENT;
}

size_t outtools_required(const struct outtools *t, int tool) {
    return t->tools[tool].n_required;
}

bool outtools_is_required(const struct outtools *t, int tool, int param) {
    return t->params[t->tools[tool].first + (size_t)param].required;
}
