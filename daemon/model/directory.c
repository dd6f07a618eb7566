/* SPDX-License-Identifier: MIT */
/* The tensors a configuration demands, by on-disk name, from one table. Start-up only; never logs.
 *
 * The table is the whole contract with the checkpoint: what it does not name is refused, because a tensor
 * without a place (a bias, a scale, one more norm) means that the file is another model. */
#include "directory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "modelshow.h"

#define TEXT_PREFIX   "model.language_model."
#define VISUAL_PREFIX "model.visual."

enum where {
    ON_GLOBAL, /* once; the row has the whole name */
    ON_ALL,    /* trunk and MTP */
    ON_TRUNK,
    ON_KDA,
    ON_DSA,     /* and MTP */
    ON_INDEXER, /* DSA layers with an indexer of their own, and MTP */
    ON_DENSE,
    ON_SPARSE, /* and MTP */
    ON_EXPERT, /* as ON_SPARSE, once per routed expert; the name has %u for it */
    ON_DRAFT,
};

enum dim {
    D_NONE,
    D_1,
    D_3,
    D_VOCAB,
    D_E,
    D_2E,
    D_HC_ROWS,
    D_HC_COLS,
    D_KDA_P,
    D_KDA_DIM,
    D_KDA_HEADS,
    D_CONV,
    D_Q_RANK,
    D_KV_RANK,
    D_KVA,
    D_Q,
    D_KV,
    D_V,
    D_IDX_Q,
    D_IDX_DIM,
    D_IDX_HEADS,
    D_KPOOL,
    D_DENSE,
    D_EXPERT,
    D_SHARED,
    D_EXPERTS,
};

struct row {
    const char *name; /* after TEXT_PREFIX layers.N. */
    enum where where;
    enum kern_part part;
    enum st_dtype dtype;
    enum dim dim[3];
};

static const struct row ROWS[] = {
    {TEXT_PREFIX "embed_tokens.weight", ON_GLOBAL, KERN_EMBED, ST_BF16, {D_VOCAB, D_E}},
    {TEXT_PREFIX "norm.weight", ON_GLOBAL, KERN_FINAL_NORM, ST_BF16, {D_E}},
    {"lm_head.weight", ON_GLOBAL, KERN_HEAD, ST_BF16, {D_VOCAB, D_E}},

    {"input_layernorm.weight", ON_ALL, KERN_IN_NORM, ST_BF16, {D_E}},
    {"post_attention_layernorm.weight", ON_ALL, KERN_POST_NORM, ST_BF16, {D_E}},
    {"hc_attn_fn", ON_TRUNK, KERN_HC_ATTN_FN, ST_BF16, {D_HC_ROWS, D_HC_COLS}},
    {"hc_attn_base", ON_TRUNK, KERN_HC_ATTN_BASE, ST_F32, {D_HC_ROWS}},
    {"hc_attn_scale", ON_TRUNK, KERN_HC_ATTN_SCALE, ST_F32, {D_3}},
    {"hc_ffn_fn", ON_TRUNK, KERN_HC_FFN_FN, ST_BF16, {D_HC_ROWS, D_HC_COLS}},
    {"hc_ffn_base", ON_TRUNK, KERN_HC_FFN_BASE, ST_F32, {D_HC_ROWS}},
    {"hc_ffn_scale", ON_TRUNK, KERN_HC_FFN_SCALE, ST_F32, {D_3}},

    {"self_attn.q_proj.weight", ON_KDA, KERN_KDA_Q, ST_BF16, {D_KDA_P, D_E}},
    {"self_attn.k_proj.weight", ON_KDA, KERN_KDA_K, ST_BF16, {D_KDA_P, D_E}},
    {"self_attn.v_proj.weight", ON_KDA, KERN_KDA_V, ST_BF16, {D_KDA_P, D_E}},
    {"self_attn.q_conv1d.weight", ON_KDA, KERN_KDA_QCONV, ST_BF16, {D_KDA_P, D_1, D_CONV}},
    {"self_attn.k_conv1d.weight", ON_KDA, KERN_KDA_KCONV, ST_BF16, {D_KDA_P, D_1, D_CONV}},
    {"self_attn.v_conv1d.weight", ON_KDA, KERN_KDA_VCONV, ST_BF16, {D_KDA_P, D_1, D_CONV}},
    {"self_attn.f_a_proj.weight", ON_KDA, KERN_KDA_FA, ST_BF16, {D_KDA_DIM, D_E}},
    {"self_attn.f_b_proj.weight", ON_KDA, KERN_KDA_FB, ST_BF16, {D_KDA_P, D_KDA_DIM}},
    {"self_attn.g_a_proj.weight", ON_KDA, KERN_KDA_GA, ST_BF16, {D_KDA_DIM, D_E}},
    {"self_attn.g_b_proj.weight", ON_KDA, KERN_KDA_GB, ST_BF16, {D_KDA_P, D_KDA_DIM}},
    {"self_attn.b_proj.weight", ON_KDA, KERN_KDA_B, ST_BF16, {D_KDA_HEADS, D_E}},
    {"self_attn.A_log", ON_KDA, KERN_KDA_A_LOG, ST_F32, {D_KDA_HEADS}},
    {"self_attn.dt_bias", ON_KDA, KERN_KDA_DT_BIAS, ST_F32, {D_KDA_P}},
    {"self_attn.o_norm.weight", ON_KDA, KERN_KDA_O_NORM, ST_BF16, {D_KDA_DIM}},
    {"self_attn.o_proj.weight", ON_KDA, KERN_KDA_O, ST_BF16, {D_E, D_KDA_P}},

    {"self_attn.q_a_proj.weight", ON_DSA, KERN_MLA_QA, ST_BF16, {D_Q_RANK, D_E}},
    {"self_attn.q_a_layernorm.weight", ON_DSA, KERN_MLA_QA_NORM, ST_BF16, {D_Q_RANK}},
    {"self_attn.q_b_proj.weight", ON_DSA, KERN_MLA_QB, ST_BF16, {D_Q, D_Q_RANK}},
    {"self_attn.kv_a_proj_with_mqa.weight", ON_DSA, KERN_MLA_KVA, ST_BF16, {D_KVA, D_E}},
    {"self_attn.kv_a_layernorm.weight", ON_DSA, KERN_MLA_KVA_NORM, ST_BF16, {D_KV_RANK}},
    {"self_attn.kv_b_proj.weight", ON_DSA, KERN_MLA_KVB, ST_BF16, {D_KV, D_KV_RANK}},
    {"self_attn.o_proj.weight", ON_DSA, KERN_MLA_O, ST_BF16, {D_E, D_V}},

    {"self_attn.indexer.wq_b.weight", ON_INDEXER, KERN_IDX_QB, ST_BF16, {D_IDX_Q, D_Q_RANK}},
    {"self_attn.indexer.wk.weight", ON_INDEXER, KERN_IDX_K, ST_BF16, {D_IDX_DIM, D_E}},
    {"self_attn.indexer.k_norm.weight", ON_INDEXER, KERN_IDX_KNORM_W, ST_BF16, {D_IDX_DIM}},
    {"self_attn.indexer.k_norm.bias", ON_INDEXER, KERN_IDX_KNORM_B, ST_BF16, {D_IDX_DIM}},
    {"self_attn.indexer.weights_proj.weight", ON_INDEXER, KERN_IDX_W, ST_BF16, {D_IDX_HEADS, D_E}},
    {"self_attn.indexer.index_kpool_compress_ape", ON_INDEXER, KERN_IDX_APE, ST_BF16, {D_KPOOL, D_IDX_DIM}},
    {"self_attn.indexer.index_kpool_compress_gate", ON_INDEXER, KERN_IDX_GATE, ST_BF16, {D_IDX_DIM, D_E}},

    {"mlp.gate_proj.weight", ON_DENSE, KERN_MLP_GATE, ST_BF16, {D_DENSE, D_E}},
    {"mlp.up_proj.weight", ON_DENSE, KERN_MLP_UP, ST_BF16, {D_DENSE, D_E}},
    {"mlp.down_proj.weight", ON_DENSE, KERN_MLP_DOWN, ST_BF16, {D_E, D_DENSE}},

    {"mlp.gate.weight", ON_SPARSE, KERN_ROUTER, ST_BF16, {D_EXPERTS, D_E}},
    {"mlp.gate.e_score_correction_bias", ON_SPARSE, KERN_ROUTER_BIAS, ST_F32, {D_EXPERTS}},
    {"mlp.shared_experts.gate_proj.weight", ON_SPARSE, KERN_SH_GATE, ST_BF16, {D_SHARED, D_E}},
    {"mlp.shared_experts.up_proj.weight", ON_SPARSE, KERN_SH_UP, ST_BF16, {D_SHARED, D_E}},
    {"mlp.shared_experts.down_proj.weight", ON_SPARSE, KERN_SH_DOWN, ST_BF16, {D_E, D_SHARED}},
    {"gate_proj.weight", ON_EXPERT, KERN_EXP_GATE, ST_BF16, {D_EXPERT, D_E}},
    {"up_proj.weight", ON_EXPERT, KERN_EXP_UP, ST_BF16, {D_EXPERT, D_E}},
    {"down_proj.weight", ON_EXPERT, KERN_EXP_DOWN, ST_BF16, {D_E, D_EXPERT}},

    {"enorm.weight", ON_DRAFT, KERN_DRAFT_ENORM, ST_BF16, {D_E}},
    {"hnorm.weight", ON_DRAFT, KERN_DRAFT_HNORM, ST_BF16, {D_E}},
    {"eh_proj.weight", ON_DRAFT, KERN_DRAFT_EH, ST_BF16, {D_E, D_2E}},
    {"shared_head.norm.weight", ON_DRAFT, KERN_DRAFT_NORM, ST_BF16, {D_E}},
};
#define N_ROWS (sizeof ROWS / sizeof *ROWS)

/* Products stay far below 2^64 by the bounds of config.c. */
static uint64_t dim_of(const struct model_config *c, enum dim d) {
    const uint64_t heads = c->num_attention_heads;

    switch (d) {
    case D_NONE:
        return 0;
    case D_1:
        return 1;
    case D_3:
        return 3;
    case D_VOCAB:
        return c->vocab_size;
    case D_E:
        return c->hidden_size;
    case D_2E:
        return 2 * (uint64_t)c->hidden_size;
    case D_HC_ROWS:
        return (uint64_t)c->hc_mult * (2 + c->hc_mult);
    case D_HC_COLS:
        return (uint64_t)c->hc_mult * c->hidden_size;
    case D_KDA_P:
        return (uint64_t)c->linear_num_heads * c->linear_head_dim;
    case D_KDA_DIM:
        return c->linear_head_dim;
    case D_KDA_HEADS:
        return c->linear_num_heads;
    case D_CONV:
        return c->linear_conv_kernel;
    case D_Q_RANK:
        return c->q_lora_rank;
    case D_KV_RANK:
        return c->kv_lora_rank;
    case D_KVA:
        return (uint64_t)c->kv_lora_rank + c->qk_rope_head_dim;
    case D_Q:
        return heads * c->qk_head_dim;
    case D_KV:
        return heads * ((uint64_t)c->qk_nope_head_dim + c->v_head_dim);
    case D_V:
        return heads * c->v_head_dim;
    case D_IDX_Q:
        return (uint64_t)c->index_n_heads * c->index_head_dim;
    case D_IDX_DIM:
        return c->index_head_dim;
    case D_IDX_HEADS:
        return c->index_n_heads;
    case D_KPOOL:
        return c->index_kpool;
    case D_DENSE:
        return c->intermediate_size;
    case D_EXPERT:
        return c->moe_intermediate_size;
    case D_SHARED:
        return (uint64_t)c->n_shared_experts * c->moe_intermediate_size;
    case D_EXPERTS:
        return c->n_routed_experts;
    }
    return 0;
}

struct builder {
    const struct model_config *cfg;
    const struct model_index *index;
    struct xerr *e;
    struct model_item *item;
    size_t n, cap;
    uint8_t *used; /* per entry of the index */
};

static const char *file_of(struct show *s, const struct builder *b, uint32_t file) {
    return show_path(s, st_path(model_index_file(b->index, file)));
}

static bool applies(const struct model_config *c, enum where w, uint32_t layer) {
    bool draft = layer >= c->num_hidden_layers;
    bool dsa = draft || c->layer[layer].mix == MODEL_MIX_DSA;
    bool sparse = draft || c->layer[layer].mlp == MODEL_MLP_SPARSE;

    switch (w) {
    case ON_GLOBAL:
        return false;
    case ON_ALL:
        return true;
    case ON_TRUNK:
        return !draft;
    case ON_KDA:
        return !dsa;
    case ON_DSA:
        return dsa;
    case ON_INDEXER:
        return dsa && (draft || !c->layer[layer].index_shared);
    case ON_DENSE:
        return !sparse;
    case ON_SPARSE:
    case ON_EXPERT:
        return sparse;
    case ON_DRAFT:
        return draft;
    }
    return false;
}

static int wrong(const struct builder *b, const struct model_entry *en, const struct st_tensor *want) {
    struct show f, s;
    char is[48], should[48];
    bool coded = st_dtype_bits(en->t->dtype) <= 8;

    return xerr_set(b->e, coded ? -ENOTSUP : -EINVAL, "%s: tensor %s: found %s %s, expected %s %s%s",
                    file_of(&f, b, en->file), show_str(&s, en->t->name), st_dtype_name(en->t->dtype),
                    st_shape_text(en->t, is, sizeof is), st_dtype_name(want->dtype),
                    st_shape_text(want, should, sizeof should),
                    coded ? "; quantised checkpoints cannot be loaded" : "");
}

static int add(struct builder *b, const struct row *row, const char *name, uint32_t layer, uint32_t expert) {
    const struct model_entry *en = model_index_find(b->index, name);
    struct st_tensor want = {.dtype = row->dtype};
    struct model_item *it;
    struct show f;

    while (want.n_dims < 3 && row->dim[want.n_dims] != D_NONE) {
        want.shape[want.n_dims] = dim_of(b->cfg, row->dim[want.n_dims]);
        want.n_dims++;
    }
    if (!en) {
        char should[48];

        return xerr_set(b->e, -ENODATA, "%s: tensor %s: found nothing, expected %s %s; is a shard missing?",
                        show_path(&f, model_index_dir(b->index)), name, st_dtype_name(want.dtype),
                        st_shape_text(&want, should, sizeof should));
    }
    if (en->t->dtype != want.dtype || en->t->n_dims != want.n_dims ||
        (memcmp(en->t->shape, want.shape, want.n_dims * sizeof *want.shape) != 0 &&
         !FAULT(directory_transposed)))
        return wrong(b, en, &want);
    if (b->n == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 1024;
        struct model_item *grown = reallocarray(b->item, cap, sizeof *grown);

        if (!grown)
            return xerr_set(b->e, -ENOMEM, "%s: no memory for %zu tensors",
                            show_path(&f, model_index_dir(b->index)), cap);
        b->item = grown;
        b->cap = cap;
    }
    b->used[en - model_index_at(b->index, 0)] = 1;
    it = &b->item[b->n++];
    *it = (struct model_item){.t = en->t, .file = en->file};
    it->id = (struct kern_tensor_id){.part = row->part, .layer = layer, .expert = expert};
    it->k.store = kern_store_plain(row->dtype == ST_F32 ? KERN_F32 : KERN_BF16);
    it->k.rows = want.shape[0];
    it->k.cols = want.n_dims > 1 ? want.shape[want.n_dims - 1] : 1;
    return 0;
}

static int add_layer(struct builder *b, uint32_t layer) {
    char name[160];
    int r = 0;

    for (size_t i = 0; i < N_ROWS && r == 0; i++) {
        const struct row *row = &ROWS[i];

        if (!applies(b->cfg, row->where, layer))
            continue;
        if (row->where != ON_EXPERT) {
            snprintf(name, sizeof name, TEXT_PREFIX "layers.%u.%s", layer, row->name);
            r = add(b, row, name, layer, 0);
            continue;
        }
        for (uint32_t x = 0; x < b->cfg->n_routed_experts && r == 0; x++) {
            snprintf(name, sizeof name, TEXT_PREFIX "layers.%u.mlp.experts.%u.%s", layer, x, row->name);
            r = add(b, row, name, layer, x);
        }
    }
    return r;
}

/* Publishers strip the MTP layer or leave it out; then all of it is gone, and drafts are simply off. */
static bool has_layer(const struct model_index *index, uint32_t layer) {
    char prefix[64];

    snprintf(prefix, sizeof prefix, TEXT_PREFIX "layers.%u.", layer);
    for (size_t i = 0; i < model_index_count(index); i++)
        if (strncmp(model_index_at(index, i)->t->name, prefix, strlen(prefix)) == 0)
            return true;
    return false;
}

static int unplaced(const struct builder *b, const struct model_entry *en) {
    struct show f, s;
    const char *name = en->t->name;
    char prefix[96];

    file_of(&f, b, en->file);
    show_str(&s, name);
    for (uint32_t l = 0; l < b->cfg->num_hidden_layers; l++) {
        snprintf(prefix, sizeof prefix, TEXT_PREFIX "layers.%u.self_attn.indexer.", l);
        if (b->cfg->layer[l].index_shared && strncmp(name, prefix, strlen(prefix)) == 0)
            return xerr_set(
                b->e, -EINVAL,
                "%s: tensor %s: found it, expected none: config.json: text_config.indexer_types[%u] "
                "is \"shared\"",
                f.s, s.s, l);
    }
    if (strstr(name, "_scale") && !strstr(name, ".hc_"))
        return xerr_set(
            b->e, -ENOTSUP,
            "%s: tensor %s: found a quantisation scale, expected none: quantised checkpoints cannot be "
            "loaded",
            f.s, s.s);
    return xerr_set(b->e, -EINVAL,
                    "%s: tensor %s: found %s, expected only tensors this configuration has a place for", f.s,
                    s.s, st_dtype_name(en->t->dtype));
}

static int by_place(const void *a, const void *b) {
    const struct model_item *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->t->offset < y->t->offset ? -1 : x->t->offset > y->t->offset;
}

int model_directory_build(struct model_directory *ret, const struct model_config *cfg,
                          const struct model_index *index, struct xerr *e) {
    struct builder b = {.cfg = cfg, .index = index, .e = e};
    struct model_directory d = {0};
    size_t n = model_index_count(index);
    struct show s;
    int r = 0;

    b.used = calloc(n ? n : 1, 1);
    if (!b.used)
        return xerr_set(e, -ENOMEM, "%s: no memory for %zu tensors", show_path(&s, model_index_dir(index)),
                        n);
    for (size_t i = 0; i < N_ROWS && r == 0; i++)
        if (ROWS[i].where == ON_GLOBAL)
            r = add(&b, &ROWS[i], ROWS[i].name, 0, 0);
    for (uint32_t l = 0; l < cfg->num_hidden_layers && r == 0; l++)
        r = add_layer(&b, l);
    d.has_draft = cfg->num_nextn_predict_layers > 0 && has_layer(index, cfg->num_hidden_layers);
    for (uint32_t l = 0; d.has_draft && l < cfg->num_nextn_predict_layers && r == 0; l++)
        r = add_layer(&b, cfg->num_hidden_layers + l);
    for (size_t i = 0; i < n && r == 0; i++) {
        const struct model_entry *en = model_index_at(index, i);

        if (b.used[i])
            continue;
        if (strncmp(en->t->name, VISUAL_PREFIX, strlen(VISUAL_PREFIX)) != 0) {
            r = unplaced(&b, en);
            break;
        }
        d.n_visual++;
        d.visual_bytes += en->t->bytes;
    }
    free(b.used);
    if (r < 0) {
        free(b.item);
        return r;
    }
    qsort(b.item, b.n, sizeof *b.item, by_place);
    d.item = b.item;
    d.n_items = b.n;
    for (size_t i = 0; i < b.n; i++)
        d.bytes += b.item[i].t->bytes;
    *ret = d;
    return 0;
}

void model_directory_done(struct model_directory *d) {
    free(d->item);
    memset(d, 0, sizeof *d);
}
