/* SPDX-License-Identifier: MIT */
/* Looks every tensor of the table (parts.c) up in the files. Start-up only; never logs. */
#include "directory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"
#include "show.h"
#include "size.h"

struct builder {
    const struct model_config *cfg;
    const struct model_index *index;
    bool is_gguf;
    struct xerr *e;
    struct model_item *item;
    size_t n, cap;
    struct model_tensor *tensor;
    size_t n_t, cap_t;
    uint8_t *used; /* per entry of the index */
};

static const char *file_of(struct show *s, const struct builder *b, uint32_t file) {
    return show_path(s, st_path(model_index_file(b->index, file)));
}

static int no_memory(const struct builder *b, size_t n) {
    struct show f;

    return xerr_set(b->e, -ENOMEM, "%s: no memory for %zu tensors", show_path(&f, model_index_dir(b->index)),
                    n);
}

static void mark(struct builder *b, const struct model_entry *en) {
    b->used[en - model_index_at(b->index, 0)] = 1;
}

static int grow(struct builder *b) {
    size_t cap = b->cap ? 2 * b->cap : 1024, cap_t = b->cap_t ? 2 * b->cap_t : 1024;

    if (b->n + MODEL_MAX_PIECES > b->cap) {
        struct model_item *grown = reallocarray(b->item, cap, sizeof *grown);

        if (!grown)
            return no_memory(b, cap);
        b->item = grown;
        b->cap = cap;
    }
    if (b->n_t == b->cap_t) {
        struct model_tensor *grown = reallocarray(b->tensor, cap_t, sizeof *grown);

        if (!grown)
            return no_memory(b, cap_t);
        b->tensor = grown;
        b->cap_t = cap_t;
    }
    return 0;
}

/* ---- words ---- */

static const char *kind_text(const struct model_row *row) {
    return row->kind == MODEL_VECTOR_F32 ? "F32" : "BF16, F16 or F32";
}

static bool is_wide(enum st_dtype d, const struct model_row *row) {
    return d == ST_F32 || (row->kind != MODEL_VECTOR_F32 && (d == ST_BF16 || d == ST_F16));
}

static int wrong(const struct builder *b, const struct model_row *row, const struct model_entry *en,
                 const struct st_tensor *want) {
    struct show f, s;
    char is[48], should[48];

    return xerr_set(b->e, -EINVAL, "%s: tensor %s: found %s %s, expected %s %s", file_of(&f, b, en->file),
                    show_str(&s, en->t->name), st_dtype_name(en->t->dtype),
                    st_shape_text(en->t, is, sizeof is),
                    is_wide(en->t->dtype, row) ? st_dtype_name(en->t->dtype) : kind_text(row),
                    st_shape_text(want, should, sizeof should));
}

static int missing(const struct builder *b, const struct model_row *row, const char *name,
                   const struct st_tensor *want) {
    struct show f, s;
    char should[48];

    return xerr_set(b->e, -ENODATA, "%s: tensor %s: found nothing, expected %s %s; is a shard missing?",
                    show_path(&f, model_index_dir(b->index)), show_str(&s, name),
                    row->kind == MODEL_MATRIX ? "a matrix" : kind_text(row),
                    st_shape_text(want, should, sizeof should));
}

/* ---- one tensor of the model ---- */

static struct st_tensor wanted(const struct builder *b, const struct model_row *row) {
    struct st_tensor want = {.dtype = ST_F32};

    model_row_shape(b->cfg, row, want.shape, &want.n_dims);
    return want;
}

/* Adds the tensor and, piece by piece, what is read of it. `part` of n equal parts of each entry: of a stack
 * of experts, else 0 of 1. */
static int add(struct builder *b, const struct model_row *row, const struct model_module *m, uint32_t layer,
               uint32_t expert, const struct st_tensor *want, uint64_t part, uint64_t n) {
    struct model_tensor *t;
    int r = grow(b);

    if (r < 0)
        return r;
    t = &b->tensor[b->n_t++];
    *t = (struct model_tensor){.id = {.part = row->part, .layer = layer, .expert = expert},
                               .is_matrix = row->kind == MODEL_MATRIX || row->kind == MODEL_FULL};
    t->k.store = m->store;
    t->k.rows = want->shape[0];
    t->k.cols = want->n_dims > 1 ? want->shape[want->n_dims - 1] : 1;
    for (uint32_t i = 0; i < m->n; i++) {
        const struct model_piece *p = &m->piece[i];
        struct model_item *it = &b->item[b->n++];

        *it = (struct model_item){.t = p->en->t,
                                  .file = p->en->file,
                                  .bytes = p->en->t->bytes / n,
                                  .conv = p->conv,
                                  .number = p->number,
                                  .rule = p->rule,
                                  .id = t->id,
                                  .k = t->k};
        it->at = p->en->t->offset + part * it->bytes;
        it->id.piece = p->piece;
        if (p->piece != MODEL_PIECE_NONE)
            t->bytes += p->conv == MODEL_CONV_SIGNS ? 16 * it->bytes : it->bytes;
        mark(b, p->en);
    }
    for (uint32_t i = 0; i < m->n_seen; i++)
        mark(b, m->seen[i]);
    if (!t->is_matrix)
        t->bytes = t->k.rows * t->k.cols * sizeof(float);
    return 0;
}

/* A tensor that stands alone and must have exactly this shape. */
static int add_plain(struct builder *b, const struct model_row *row, const struct model_entry *en,
                     uint32_t layer, uint32_t expert) {
    struct st_tensor want = wanted(b, row);
    struct model_module m = {.n = 1};

    if (en->t->n_dims != want.n_dims ||
        (memcmp(en->t->shape, want.shape, want.n_dims * sizeof *want.shape) != 0 &&
         !FAULT(directory_transposed)))
        return wrong(b, row, en, &want);
    if (row->kind != MODEL_MATRIX && !is_wide(en->t->dtype, row))
        return wrong(b, row, en, &want);
    if (model_detect_plain(en, &m.store, &m.piece[0]) < 0)
        return wrong(b, row, en, &want);
    if (row->part == KERN_KDA_A_LOG && b->is_gguf) {
        m.piece[0].conv = MODEL_CONV_A_LOG;
        m.piece[0].rule = MODEL_RULE_BELOW_0;
    }
    return add(b, row, &m, layer, expert, &want, 0, 1);
}

static int add_safetensors(struct builder *b, const struct model_row *row, const char *name, uint32_t layer,
                           uint32_t expert) {
    struct st_tensor want = wanted(b, row);
    const struct model_entry *en;
    struct model_module m;
    int r = -ENODATA;

    b->e->code = 0;
    if (row->kind == MODEL_MATRIX) {
        r = model_detect(b->index, name, want.shape[0], want.shape[1], &m, b->e);
        if (r == 0)
            return add(b, row, &m, layer, expert, &want, 0, 1);
        if (b->e->code)
            return r;
    }
    en = model_index_find(b->index, name);
    return en ? add_plain(b, row, en, layer, expert) : missing(b, row, name, &want);
}

/* ---- GGUF ---- */

/* The entry under one of the names of a row; *ret_name gets the first, for messages. */
static const struct model_entry *find_gguf(const struct builder *b, const struct model_row *row,
                                           uint32_t layer, char name[160]) {
    const struct model_entry *en = NULL;
    char first[160] = "";

    for (const char *p = row->gguf; p && !en;) {
        const char *bar = strchr(p, '|');
        int n = bar ? (int)(bar - p) : (int)strlen(p);

        if (row->where == MODEL_ON_GLOBAL)
            snprintf(name, 160, "%.*s", n, p);
        else
            snprintf(name, 160, "blk.%u.%.*s", layer, n, p);
        if (!first[0])
            memcpy(first, name, sizeof first);
        en = model_index_find(b->index, name);
        p = bar ? bar + 1 : NULL;
    }
    if (!en)
        memcpy(name, first, sizeof first);
    return en;
}

/* The factor of a GGUF NVFP4 tensor, one for each of its n parts. */
static int gguf_factor(struct builder *b, const struct model_entry *en, uint64_t n, struct model_module *m) {
    const struct model_entry *f;
    char name[160];
    size_t len = strlen(en->t->name);
    struct show file, s;

    if (len < 7 || len >= sizeof name || strcmp(en->t->name + len - 7, ".weight") != 0)
        return 0;
    snprintf(name, sizeof name, "%.*s.scale", (int)len - 7, en->t->name);
    f = model_index_find(b->index, name);
    if (!f)
        return 0;
    if (m->store.format != KERN_GGUF_NVFP4 || f->t->dtype != ST_F32 || f->t->bytes != 4 * n)
        return xerr_set(b->e, -EINVAL,
                        "%s: tensor %s: found %s of %llu bytes, expected F32, %llu numbers, and only beside "
                        "NVFP4",
                        file_of(&file, b, f->file), show_str(&s, name), st_dtype_name(f->t->dtype),
                        (unsigned long long)f->t->bytes, (unsigned long long)n);
    m->store.scale = KERN_SCALE_F32;
    m->piece[m->n++] =
        (struct model_piece){f, KERN_PIECE_GLOBAL, MODEL_CONV_NONE, MODEL_NUM_F32, MODEL_RULE_FACTOR};
    return 0;
}

/* All experts of a layer: one tensor, an expert behind the other. */
static int add_stack(struct builder *b, const struct model_row *row, const struct model_entry *en,
                     uint32_t layer) {
    struct st_tensor want = wanted(b, row), all = want;
    uint64_t n = b->cfg->n_routed_experts;
    struct model_module m = {.n = 1};
    int r;

    all.n_dims = 3;
    all.shape[0] = n;
    all.shape[1] = want.shape[0];
    all.shape[2] = want.shape[1];
    if (en->t->n_dims != 3 || memcmp(en->t->shape, all.shape, 3 * sizeof *all.shape) != 0)
        return wrong(b, row, en, &all);
    if (model_detect_plain(en, &m.store, &m.piece[0]) < 0)
        return wrong(b, row, en, &all);
    r = gguf_factor(b, en, n, &m);
    for (uint32_t i = 0; i < n && r == 0; i++)
        r = add(b, row, &m, layer, i, &want, FAULT(directory_expert_off) ? 0 : i, n);
    return r;
}

static int add_gguf(struct builder *b, const struct model_row *row, uint32_t layer) {
    struct st_tensor want = wanted(b, row), all;
    struct model_module m = {.n = 1};
    const struct model_entry *en;
    char name[160];
    int r;

    en = find_gguf(b, row, layer, name);
    if (!en)
        return missing(b, row, name, &want);
    if (row->where == MODEL_ON_EXPERT)
        return add_stack(b, row, en, layer);
    if (row->kind != MODEL_MATRIX)
        return add_plain(b, row, en, layer, 0);
    all = want;
    if (row->part == KERN_MLA_KB || row->part == KERN_MLA_VB) {
        all.n_dims = 3;
        all.shape[0] = b->cfg->num_attention_heads;
        all.shape[1] = want.shape[0] / all.shape[0];
        all.shape[2] = want.shape[1];
    }
    if (en->t->n_dims != all.n_dims || memcmp(en->t->shape, all.shape, all.n_dims * sizeof *all.shape) != 0 ||
        model_detect_plain(en, &m.store, &m.piece[0]) < 0)
        return wrong(b, row, en, &all);
    r = gguf_factor(b, en, 1, &m);
    return r < 0 ? r : add(b, row, &m, layer, 0, &want, 0, 1);
}

/* ---- all of them ---- */

static int add_row(struct builder *b, const struct model_row *row, uint32_t layer) {
    uint32_t n = row->where == MODEL_ON_EXPERT ? b->cfg->n_routed_experts : 1;
    char name[192];
    int r = 0;

    if (b->is_gguf)
        return add_gguf(b, row, layer);
    for (uint32_t x = 0; x < n && r == 0; x++) {
        model_row_name(b->cfg, row, layer, x, name, sizeof name);
        r = add_safetensors(b, row, name, layer, x);
    }
    return r;
}

static int add_layer(struct builder *b, uint32_t layer) {
    int r = 0;

    for (size_t i = 0; i < model_n_rows && r == 0; i++)
        if (model_rows[i].where != MODEL_ON_GLOBAL && model_row_applies(b->cfg, &model_rows[i], layer))
            r = add_row(b, &model_rows[i], layer);
    return r;
}

/* Publishers strip the MTP layer or leave it out; then all of it is gone, and drafts are simply off. */
static bool has_layer(const struct builder *b, uint32_t layer) {
    const struct model_entry *en;
    char prefix[64];

    if (b->is_gguf)
        snprintf(prefix, sizeof prefix, "blk.%u.", layer);
    else
        snprintf(prefix, sizeof prefix, "%slayers.%u.", model_text_prefix(b->cfg), layer);
    en = model_index_at(b->index, model_index_from(b->index, prefix));
    return en && strncmp(en->t->name, prefix, strlen(prefix)) == 0;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Scales of a cache in FP8, one number each: ours is scaled anew for every token. */
static bool is_cache_scale(const struct st_tensor *t) {
    return t->dtype == ST_F32 && t->bytes == 4 &&
           (ends_with(t->name, ".self_attn.k_proj.k_scale") ||
            ends_with(t->name, ".self_attn.v_proj.v_scale"));
}

static int unplaced(const struct builder *b, const struct model_entry *en) {
    struct show f, s;
    const char *name = en->t->name;
    char prefix[96], *module;

    file_of(&f, b, en->file);
    show_str(&s, name);
    for (uint32_t l = 0; l < b->cfg->num_hidden_layers; l++) {
        snprintf(prefix, sizeof prefix, "%slayers.%u.self_attn.indexer.", model_text_prefix(b->cfg), l);
        if (b->cfg->layer[l].index_shared && strncmp(name, prefix, strlen(prefix)) == 0)
            return xerr_set(
                b->e, -EINVAL,
                "%s: tensor %s: found it, expected none: config.json: %sindexer_types[%u] is \"shared\"%s",
                f.s, s.s, model_text_key(b->cfg), l,
                b->cfg->family == MODEL_GLM53 ? " or follows from index_topk_freq" : "");
    }
    module = strstr(name, "_scale");
    if (module && !strstr(name, ".hc_"))
        return xerr_set(
            b->e, -EINVAL,
            "%s: tensor %s: found a quantisation scale, expected none: its weight is no matrix that may be "
            "quantised",
            f.s, s.s);
    return xerr_set(b->e, -EINVAL,
                    "%s: tensor %s: found %s, expected only tensors this configuration has a place for", f.s,
                    s.s, st_dtype_name(en->t->dtype));
}

static int by_place(const void *a, const void *b) {
    const struct model_item *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* What is left must be the vision tower's, or of no use. */
static int check_left(const struct builder *b, struct model_directory *d) {
    for (size_t i = 0; i < model_index_count(b->index); i++) {
        const struct model_entry *en = model_index_at(b->index, i);

        if (b->used[i])
            continue;
        if (is_cache_scale(en->t)) {
            d->n_unused++;
        } else if (strncmp(en->t->name, MODEL_VISUAL_PREFIX, strlen(MODEL_VISUAL_PREFIX)) == 0) {
            d->n_visual++;
            d->visual_bytes += en->t->bytes;
        } else {
            return unplaced(b, en);
        }
    }
    return 0;
}

int model_directory_build(struct model_directory *ret, const struct model_config *cfg,
                          const struct model_index *index, struct xerr *e) {
    struct xerr own;
    struct builder b = {
        .cfg = cfg, .index = index, .is_gguf = model_index_gguf(index) != NULL, .e = e ? e : &own};
    struct model_directory d = {0};
    size_t n = model_index_count(index);
    int r = 0;

    b.used = calloc(n ? n : 1, 1);
    if (!b.used)
        return no_memory(&b, n);
    for (size_t i = 0; i < model_n_rows && r == 0; i++)
        if (model_rows[i].where == MODEL_ON_GLOBAL)
            r = add_row(&b, &model_rows[i], 0);
    for (uint32_t l = 0; l < cfg->num_hidden_layers && r == 0; l++)
        r = add_layer(&b, l);
    d.has_draft = cfg->num_nextn_predict_layers > 0 && has_layer(&b, cfg->num_hidden_layers);
    for (uint32_t l = 0; d.has_draft && l < cfg->num_nextn_predict_layers && r == 0; l++)
        r = add_layer(&b, cfg->num_hidden_layers + l);
    if (r == 0)
        r = check_left(&b, &d);
    free(b.used);
    if (r < 0) {
        free(b.item);
        free(b.tensor);
        return r;
    }
    qsort(b.item, b.n, sizeof *b.item, by_place);
    d.item = b.item;
    d.n_items = b.n;
    d.tensor = b.tensor;
    d.n_tensors = b.n_t;
    for (size_t i = 0; i < b.n; i++)
        d.bytes += b.item[i].bytes;
    for (size_t i = 0; i < b.n_t; i++)
        d.resident += b.tensor[i].bytes;
    *ret = d;
    return 0;
}

void model_directory_done(struct model_directory *d) {
    free(d->item);
    free(d->tensor);
    memset(d, 0, sizeof *d);
}
