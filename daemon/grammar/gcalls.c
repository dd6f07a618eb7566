/* SPDX-License-Identifier: MIT */
/* Calls of tools in the model's own form: <tool_call>NAME, for each argument
 * <arg_key>K</arg_key><arg_value>V</arg_value>,
 * </tool_call>. The tags are tokens of their own; text between them never holds one. Arguments are those a
 * tool declares, each once at most, the required ones always; a value is raw text where the schema admits
 * strings (of an enum of strings one of them), JSON elsewhere. grammar_new_calls allocates (text workers);
 * the rest runs anywhere. */
#include "grampriv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gcomp.h"
#include "outtools.h"

static void begin_list(const struct grammar *g, struct grammar_state *s, enum gmode mode, uint32_t leaf) {
    s->mode = (uint8_t)mode;
    s->sub = SUB_PLAIN;
    s->chars = s->len = 0;
    s->n_scalars = 1;
    s->scalar[0] = (struct gscalar){.leaf = leaf, .parents = 1, .hi = g->leaf[leaf].n_names};
}

void gram_calls_begin(const struct grammar *g, struct grammar_state *s) {
    s->depth = 0;
    s->sub = SUB_PLAIN;
    s->n_scalars = 0;
    s->mode = MODE_CALL;
    if (!g->required)
        begin_list(g, s, MODE_SAY, g->text_leaf);
}

bool gram_calls_complete(const struct grammar *g, const struct grammar_state *s) {
    (void)g;
    return (s->mode == MODE_SAY && s->sub == SUB_PLAIN) || (s->mode == MODE_CALL && s->n_calls > 0);
}

static bool is_seen(const struct grammar_state *s, uint32_t k) {
    return s->args_seen[k / 64] >> k % 64 & 1;
}

bool gram_arg_possible(const struct grammar *g, const struct grammar_state *s, uint32_t lo, uint32_t hi) {
    (void)g;
    for (uint32_t k = lo; k < hi; k++)
        if (!is_seen(s, k))
            return true;
    return false;
}

/* The name that is written is whole: its number, or -1. */
static int64_t whole_name(const struct grammar *g, const struct grammar_state *s) {
    const struct gscalar *v = &s->scalar[0];
    const struct gleaf *x = &g->leaf[v->leaf];

    if (s->sub != SUB_PLAIN || v->lo >= v->hi || g->name[x->name0 + v->lo].len != s->len)
        return -1;
    return v->lo;
}

/* Raw text, or a list, or JSON. */
static enum gmode value_mode(const struct grammar *g, uint32_t schema, uint32_t *ret_leaf) {
    const struct gschema *x = &g->schema[schema];
    enum gmode mode = MODE_VALUE;

    for (uint32_t k = 0; k < x->n_leaves; k++) {
        uint32_t id = g->closure[x->leaf0 + k];

        if (g->leaf[id].kind != LEAF_STRING)
            continue;
        if (g->leaf[id].how != HOW_LIST || x->n_leaves > 1)
            return MODE_ARG_TEXT;
        mode = MODE_ARG_RAW;
        *ret_leaf = id;
    }
    return mode;
}

static bool args_done(const struct grammar *g, const struct grammar_state *s, uint32_t tool) {
    const uint64_t *need = g->leaf[tool].required;

    for (uint32_t i = 0; i < GRAM_NAMES / 64; i++)
        if ((s->args_seen[i] & need[i]) != need[i])
            return false;
    return true;
}

/* The tool whose name or arguments are being written, GRAM_NONE when neither a call's end nor an argument may
 * come. */
static uint32_t open_tool(const struct grammar *g, const struct grammar_state *s) {
    int64_t k;

    if (s->mode == MODE_ARGS)
        return s->tool;
    k = s->mode == MODE_TOOL ? whole_name(g, s) : -1;
    return k < 0 ? GRAM_NONE : g->name[g->leaf[g->tools].name0 + k].schema;
}

static bool arg_ends(const struct grammar *g, const struct grammar_state *s) {
    switch (s->mode) {
    case MODE_ARG_TEXT:
        return s->sub == SUB_PLAIN;
    case MODE_ARG_RAW:
        return whole_name(g, s) >= 0;
    case MODE_AFTER:
    case MODE_NUMBER:
        return gram_value_complete(g, s);
    default:
        return false;
    }
}

static void begin_arg(const struct grammar *g, struct grammar_state *s) {
    uint32_t schema = g->name[g->leaf[s->tool].name0 + s->arg].schema, leaf = g->text_leaf;
    enum gmode mode = value_mode(g, schema, &leaf);

    if (mode == MODE_VALUE)
        gram_value(s, schema);
    else
        begin_list(g, s, mode, leaf);
}

static void end_call(struct grammar_state *s) {
    s->mode = MODE_CALL;
    s->blanks = 0;
    s->n_calls++;
    s->n_scalars = 0;
}

bool gram_calls_mark(const struct grammar *g, struct grammar_state *s, uint32_t id) {
    const struct vocab_view *v = g->vocab->view;
    uint32_t tool = open_tool(g, s);
    int64_t k;

    if (id == v->tool_open) {
        if (!((s->mode == MODE_SAY && s->sub == SUB_PLAIN) ||
              (s->mode == MODE_CALL && (!s->n_calls || g->many))))
            return false;
        begin_list(g, s, MODE_TOOL, g->tools);
        memset(s->args_seen, 0, sizeof s->args_seen);
    } else if (id == v->tool_close) {
        if (tool == GRAM_NONE || !args_done(g, s, tool))
            return false;
        end_call(s);
    } else if (id == v->key_open) {
        if (tool == GRAM_NONE || !gram_arg_possible(g, s, 0, g->leaf[tool].n_names))
            return false;
        s->tool = tool;
        begin_list(g, s, MODE_ARG_KEY, tool);
    } else if (id == v->key_close) {
        k = s->mode == MODE_ARG_KEY ? whole_name(g, s) : -1;
        if (k < 0 || is_seen(s, (uint32_t)k))
            return false;
        s->arg = (uint32_t)k;
        s->args_seen[k / 64] |= UINT64_C(1) << k % 64;
        s->mode = MODE_ARG;
        s->n_scalars = 0;
    } else if (id == v->value_open) {
        if (s->mode != MODE_ARG)
            return false;
        begin_arg(g, s);
    } else if (id == v->value_close) {
        if (!arg_ends(g, s))
            return false;
        s->mode = MODE_ARGS;
        s->n_scalars = 0;
    } else {
        return false;
    }
    return true;
}

void gram_calls_mask(const struct grammar *g, const struct grammar_state *s, uint32_t *words) {
    const struct vocab_view *v = g->vocab->view;
    uint32_t tool = open_tool(g, s);
    int64_t k;

    if ((s->mode == MODE_SAY && s->sub == SUB_PLAIN) || (s->mode == MODE_CALL && (!s->n_calls || g->many)))
        gram_set(words, v->tool_open);
    if (tool != GRAM_NONE && args_done(g, s, tool))
        gram_set(words, v->tool_close);
    if (tool != GRAM_NONE && gram_arg_possible(g, s, 0, g->leaf[tool].n_names))
        gram_set(words, v->key_open);
    k = s->mode == MODE_ARG_KEY ? whole_name(g, s) : -1;
    if (k >= 0 && !is_seen(s, (uint32_t)k))
        gram_set(words, v->key_close);
    if (s->mode == MODE_ARG)
        gram_set(words, v->value_open);
    if (arg_ends(g, s))
        gram_set(words, v->value_close);
}

/* ---- compiling ---- */

/* What a parameter takes when its schema cannot be compiled: any value of the types it admits. */
static int64_t plain_place(struct gcomp *c, unsigned types) {
    static const struct {
        unsigned types;
        uint8_t kind;
    } kinds[] = {
        {OUTTOOLS_OBJECT, LEAF_OBJECT},
        {OUTTOOLS_ARRAY, LEAF_ARRAY},
        {OUTTOOLS_STRING, LEAF_STRING},
        {OUTTOOLS_INTEGER | OUTTOOLS_NUMBER, LEAF_NUMBER},
        {OUTTOOLS_BOOL | OUTTOOLS_NULL, LEAF_WORD},
    };
    int64_t place = gcomp_place(c, (struct tstr){0}, false);

    if (place < 0)
        return place;
    c->place[place].leaf0 = c->g->n_leaf;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int64_t leaf;

        if (types && !(types & kinds[i].types))
            continue;
        leaf = gcomp_leaf(c, (enum gleaf_kind)kinds[i].kind);
        if (leaf < 0)
            return leaf;
        if (kinds[i].kind == LEAF_OBJECT || kinds[i].kind == LEAF_ARRAY)
            c->g->leaf[leaf].other = c->any;
        c->g->leaf[leaf].integer = kinds[i].kind == LEAF_NUMBER && !(types & OUTTOOLS_NUMBER);
        c->g->leaf[leaf].words = (uint8_t)((types & OUTTOOLS_BOOL ? WORD_TRUE | WORD_FALSE : 0) |
                                           (types & OUTTOOLS_NULL || !types ? WORD_NULL : 0));
        c->place[place].n_leaves++;
    }
    return place;
}

/* Tried alone first: a schema outside the subset leaves nothing behind. */
static bool can_compile(const struct grammar_vocab *v, struct tstr root, struct tstr schema,
                        uint64_t max_bytes) {
    struct gcomp c = {.what = "tool", .root = root};
    uint32_t at;
    int r = gcomp_begin(&c, v, max_bytes, NULL);

    if (r == 0)
        r = gcomp_root(&c, schema, &at);
    if (r == 0)
        r = gcomp_schemas(&c);
    if (r == 0)
        r = gcomp_close(&c, &at, 1);
    r = r == 0 && c.g->schema[at].height <= GRAM_MIN_DEPTH;
    gcomp_done(&c);
    return r;
}

struct calls {
    struct gcomp c;
    const struct outtools *types;
    uint32_t *roots, n_roots, cap_roots;
};

static int add_param(struct calls *k, int tool, struct tstr root, struct tstr key, struct tstr schema) {
    struct gcomp *c = &k->c;
    unsigned types = 0;
    uint32_t place;
    int64_t plain;
    int r = outtools_param(k->types, tool, key, &types);

    if (r >= 0 && can_compile(c->g->vocab, root, schema, c->g->max_bytes)) {
        c->root = root;
        r = gcomp_root(c, schema, &place);
        if (r < 0)
            return r;
    } else {
        plain = plain_place(c, types);
        if (plain < 0)
            return (int)plain;
        place = (uint32_t)plain;
    }
    if (!gcomp_room(c, &k->roots, k->n_roots, 1, &k->cap_roots, sizeof *k->roots))
        return c->err->code;
    k->roots[k->n_roots++] = place;
    return gcomp_put_text(c, key.p, key.n, place);
}

/* The leaf with the arguments of a tool. */
static int64_t add_tool(struct calls *k, int tool, struct tstr params) {
    struct gcomp *c = &k->c;
    struct tstr props = {0};
    int64_t leaf = gcomp_leaf(c, LEAF_OBJECT);
    uint32_t name0 = c->g->n_name, n;
    struct jl_iter it;
    int r = 0;

    if (leaf < 0)
        return leaf;
    if (params.p && jl_type(params) == JL_OBJECT)
        props = jl_get(params, "properties");
    for (bool more = props.p && jl_type(props) == JL_OBJECT && jl_first(&it, props); more && r == 0;
         more = jl_next(&it)) {
        struct tbuf b;

        if (c->g->n_name - name0 == GRAM_NAMES)
            break; /* further ones are not offered to be written */
        tbuf_init(&b, it.key.n + 16);
        jl_unquote(it.key, &b);
        r = b.err < 0 ? xerr_set(c->err, b.err, "%s: no memory to compile it", c->what)
                      : add_param(k, tool, params, (struct tstr){b.n ? b.p : "", b.n}, it.value);
        tbuf_done(&b);
    }
    if (r < 0)
        return r;
    n = gcomp_sort_names(c, name0, c->g->n_name - name0);
    c->g->leaf[leaf].how = HOW_LIST;
    c->g->leaf[leaf].name0 = name0;
    c->g->leaf[leaf].n_names = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct gname *m = &c->g->name[name0 + i];
        unsigned types;
        int p = outtools_param(k->types, tool, (struct tstr){c->g->text + m->off, m->len}, &types);

        if (p >= 0 && outtools_is_required(k->types, tool, p))
            c->g->leaf[leaf].required[i / 64] |= UINT64_C(1) << i % 64;
    }
    return leaf;
}

static struct tstr params_of(struct tstr tool) {
    struct tstr inner = jl_get(tool, "function"), obj = inner.p && jl_type(inner) == JL_OBJECT ? inner : tool,
                p;

    p = jl_get(obj, "parameters");
    return p.p ? p : jl_get(obj, "input_schema");
}

static int add_tools(struct calls *k, const struct grammar_text *tools, size_t n, int only) {
    struct gcomp *c = &k->c;
    int64_t *leaf = calloc(n ? n : 1, sizeof *leaf), list;
    uint32_t name0;
    int r = 0;

    if (!leaf)
        return xerr_set(c->err, -ENOMEM, "%s: no memory to compile them", c->what);
    for (size_t i = 0; i < n && r == 0; i++) {
        struct tstr obj;

        if (only >= 0 && i != (size_t)only)
            continue;
        r = jl_check(tools[i].p, tools[i].n, JL_MAX_DEPTH, &obj,
                     NULL); /* outtools_new has said what is wrong */
        if (r > 0)
            leaf[i] = add_tool(k, (int)i, params_of(obj));
        r = r < 0 ? r : leaf[i] < 0 ? (int)leaf[i] : 0;
    }
    name0 = c->g->n_name;
    for (size_t i = 0; i < n && r == 0; i++) {
        struct tstr name = outtools_name(k->types, (int)i);

        if (only < 0 || i == (size_t)only)
            r = gcomp_put_text(c, name.p, name.n, (uint32_t)leaf[i]);
    }
    free(leaf);
    list = r < 0 ? r : gcomp_leaf(c, LEAF_STRING);
    if (list < 0)
        return (int)list;
    c->g->leaf[list].how = HOW_LIST;
    c->g->leaf[list].name0 = name0;
    c->g->leaf[list].n_names = gcomp_sort_names(c, name0, c->g->n_name - name0);
    c->g->tools = (uint32_t)list;
    return 0;
}

int grammar_new_calls(const struct grammar_vocab *v, const struct grammar_text *tools, size_t n_tools,
                      enum grammar_calls how, int only, bool many, size_t max_bytes, struct grammar **ret,
                      struct xerr *err) {
    struct calls k = {.c.what = "tools"};
    struct tstr *texts = calloc(n_tools ? n_tools : 1, sizeof *texts);
    struct outtools *types = NULL;
    const struct vocab_view *w = v->view;
    const uint32_t marks[] = {w->tool_open, w->tool_close, w->key_open,
                              w->key_close, w->value_open, w->value_close};
    int64_t text;
    int r = texts ? gcomp_begin(&k.c, v, max_bytes, err)
                  : xerr_set(err, -ENOMEM, "no memory to compile the tools");

    for (size_t i = 0; i < sizeof marks / sizeof *marks && r == 0; i++)
        if (marks[i] >= w->n_tokens)
            r = xerr_set(k.c.err, -EOPNOTSUPP, "the model has no marks for calls of tools");
    if (r == 0 && (n_tools == 0 || (only >= 0 && (size_t)only >= n_tools)))
        r = xerr_set(k.c.err, -EINVAL, "no tool is offered that could be called");
    for (size_t i = 0; i < n_tools && r == 0; i++)
        texts[i] = (struct tstr){tools[i].p, tools[i].n};
    if (r == 0)
        r = outtools_new(texts, n_tools, &types, k.c.err);
    k.types = types;
    if (r == 0) {
        text = gcomp_leaf(&k.c, LEAF_STRING);
        r = text < 0 ? (int)text : 0;
        if (r == 0) {
            k.c.g->text_leaf = (uint32_t)text;
            k.c.g->leaf[text].height = 0;
        }
    }
    if (r == 0)
        r = add_tools(&k, tools, n_tools, only);
    if (r == 0)
        r = gcomp_schemas(&k.c);
    if (r == 0)
        r = gcomp_close(&k.c, k.roots, k.n_roots);
    if (r == 0) {
        k.c.g->calls = true;
        k.c.g->many = many;
        k.c.g->required = how == GRAMMAR_CALLS_REQUIRED;
        k.c.g->bytes -= k.cap_roots * sizeof *k.roots;
        r = gcomp_keep(&k.c, ret);
    }
    gcomp_done(&k.c);
    outtools_free(types);
    free(k.roots);
    free(texts);
    return r;
}
