/* SPDX-License-Identifier: MIT */
/* The tensors a model consists of, derived from its description: which parts each layer has, their shapes,
 * and how they are kept. One table serves the pack bookkeeping, the backends' layouts and the loader's
 * checks. Pure functions, any thread. */
#include "backend.h"

#include <errno.h>

enum dim {
    D_1,
    D_3,
    D_VOCAB,
    D_E,
    D_2E,
    D_HC_ROWS,
    D_HC_E,
    D_P,
    D_KDA_DIM,
    D_KDA_HEADS,
    D_CONV,
    D_Q_RANK,
    D_Q_OUT,
    D_KVA,
    D_KV_RANK,
    D_KVB,
    D_KB,
    D_O_IN,
    D_IDX_Q,
    D_IDX_DIM,
    D_IDX_HEADS,
    D_NOPE,
    D_KPOOL,
    D_DENSE,
    D_EXPERTS,
    D_EXPERT,
    D_SHARED,
    D_N
};

enum group {
    G_NONE,
    G_GLOBAL,
    G_LAYER,
    G_MHC,
    G_KDA,
    G_MLA,
    G_MLA_KVB,   /* kv_b as one tensor */
    G_MLA_SPLIT, /* as two */
    G_INDEX,
    G_POOL, /* only where pools hold more than one token */
    G_DENSE,
    G_MOE,
    G_EXPERT,
    G_SHARED,
    G_DRAFT
};

struct rule {
    uint8_t group, rows, cols;
    bool matrix;
    const char *name;
};

static const struct rule rules[KERN_PART_END] = {
    [KERN_EMBED] = {G_GLOBAL, D_VOCAB, D_E, true, "embed_tokens"},
    [KERN_HEAD] = {G_GLOBAL, D_VOCAB, D_E, true, "lm_head"},
    [KERN_FINAL_NORM] = {G_GLOBAL, D_E, D_1, false, "norm"},

    [KERN_IN_NORM] = {G_LAYER, D_E, D_1, false, "input_layernorm"},
    [KERN_POST_NORM] = {G_LAYER, D_E, D_1, false, "post_attention_layernorm"},
    [KERN_HC_ATTN_FN] = {G_MHC, D_HC_ROWS, D_HC_E, true, "hc_attn_fn"},
    [KERN_HC_ATTN_BASE] = {G_MHC, D_HC_ROWS, D_1, false, "hc_attn_base"},
    [KERN_HC_ATTN_SCALE] = {G_MHC, D_3, D_1, false, "hc_attn_scale"},
    [KERN_HC_FFN_FN] = {G_MHC, D_HC_ROWS, D_HC_E, true, "hc_ffn_fn"},
    [KERN_HC_FFN_BASE] = {G_MHC, D_HC_ROWS, D_1, false, "hc_ffn_base"},
    [KERN_HC_FFN_SCALE] = {G_MHC, D_3, D_1, false, "hc_ffn_scale"},

    [KERN_KDA_Q] = {G_KDA, D_P, D_E, true, "kda.q_proj"},
    [KERN_KDA_K] = {G_KDA, D_P, D_E, true, "kda.k_proj"},
    [KERN_KDA_V] = {G_KDA, D_P, D_E, true, "kda.v_proj"},
    [KERN_KDA_QCONV] = {G_KDA, D_P, D_CONV, false, "kda.q_conv1d"},
    [KERN_KDA_KCONV] = {G_KDA, D_P, D_CONV, false, "kda.k_conv1d"},
    [KERN_KDA_VCONV] = {G_KDA, D_P, D_CONV, false, "kda.v_conv1d"},
    [KERN_KDA_FA] = {G_KDA, D_KDA_DIM, D_E, true, "kda.f_a_proj"},
    [KERN_KDA_FB] = {G_KDA, D_P, D_KDA_DIM, true, "kda.f_b_proj"},
    [KERN_KDA_GA] = {G_KDA, D_KDA_DIM, D_E, true, "kda.g_a_proj"},
    [KERN_KDA_GB] = {G_KDA, D_P, D_KDA_DIM, true, "kda.g_b_proj"},
    [KERN_KDA_B] = {G_KDA, D_KDA_HEADS, D_E, true, "kda.b_proj"},
    [KERN_KDA_A_LOG] = {G_KDA, D_KDA_HEADS, D_1, false, "kda.A_log"},
    [KERN_KDA_DT_BIAS] = {G_KDA, D_P, D_1, false, "kda.dt_bias"},
    [KERN_KDA_O_NORM] = {G_KDA, D_KDA_DIM, D_1, false, "kda.o_norm"},
    [KERN_KDA_O] = {G_KDA, D_E, D_P, true, "kda.o_proj"},

    [KERN_MLA_QA] = {G_MLA, D_Q_RANK, D_E, true, "mla.q_a_proj"},
    [KERN_MLA_QA_NORM] = {G_MLA, D_Q_RANK, D_1, false, "mla.q_a_layernorm"},
    [KERN_MLA_QB] = {G_MLA, D_Q_OUT, D_Q_RANK, true, "mla.q_b_proj"},
    [KERN_MLA_KVA] = {G_MLA, D_KVA, D_E, true, "mla.kv_a_proj_with_mqa"},
    [KERN_MLA_KVA_NORM] = {G_MLA, D_KV_RANK, D_1, false, "mla.kv_a_layernorm"},
    [KERN_MLA_KVB] = {G_MLA_KVB, D_KVB, D_KV_RANK, true, "mla.kv_b_proj"},
    [KERN_MLA_O] = {G_MLA, D_E, D_O_IN, true, "mla.o_proj"},

    [KERN_IDX_QB] = {G_INDEX, D_IDX_Q, D_Q_RANK, true, "indexer.wq_b"},
    [KERN_IDX_K] = {G_INDEX, D_IDX_DIM, D_E, true, "indexer.wk"},
    [KERN_IDX_KNORM_W] = {G_INDEX, D_IDX_DIM, D_1, false, "indexer.k_norm.weight"},
    [KERN_IDX_KNORM_B] = {G_INDEX, D_IDX_DIM, D_1, false, "indexer.k_norm.bias"},
    [KERN_IDX_W] = {G_INDEX, D_IDX_HEADS, D_E, true, "indexer.weights_proj"},
    [KERN_IDX_APE] = {G_POOL, D_KPOOL, D_IDX_DIM, false, "indexer.index_kpool_compress_ape"},
    [KERN_IDX_GATE] = {G_POOL, D_IDX_DIM, D_E, true, "indexer.index_kpool_compress_gate"},

    [KERN_MLP_GATE] = {G_DENSE, D_DENSE, D_E, true, "mlp.gate_proj"},
    [KERN_MLP_UP] = {G_DENSE, D_DENSE, D_E, true, "mlp.up_proj"},
    [KERN_MLP_DOWN] = {G_DENSE, D_E, D_DENSE, true, "mlp.down_proj"},

    [KERN_ROUTER] = {G_MOE, D_EXPERTS, D_E, true, "mlp.gate"},
    [KERN_ROUTER_BIAS] = {G_MOE, D_EXPERTS, D_1, false, "mlp.gate.e_score_correction_bias"},
    [KERN_EXP_GATE] = {G_EXPERT, D_EXPERT, D_E, true, "mlp.experts.gate_proj"},
    [KERN_EXP_UP] = {G_EXPERT, D_EXPERT, D_E, true, "mlp.experts.up_proj"},
    [KERN_EXP_DOWN] = {G_EXPERT, D_E, D_EXPERT, true, "mlp.experts.down_proj"},
    [KERN_SH_GATE] = {G_SHARED, D_SHARED, D_E, true, "mlp.shared_experts.gate_proj"},
    [KERN_SH_UP] = {G_SHARED, D_SHARED, D_E, true, "mlp.shared_experts.up_proj"},
    [KERN_SH_DOWN] = {G_SHARED, D_E, D_SHARED, true, "mlp.shared_experts.down_proj"},

    [KERN_DRAFT_ENORM] = {G_DRAFT, D_E, D_1, false, "enorm"},
    [KERN_DRAFT_HNORM] = {G_DRAFT, D_E, D_1, false, "hnorm"},
    [KERN_DRAFT_EH] = {G_DRAFT, D_E, D_2E, true, "eh_proj"},
    [KERN_DRAFT_NORM] = {G_DRAFT, D_E, D_1, false, "shared_head.norm"},

    [KERN_MLA_KB] = {G_MLA_SPLIT, D_KB, D_NOPE, true, "mla.k_b_proj"},
    [KERN_MLA_VB] = {G_MLA_SPLIT, D_O_IN, D_KV_RANK, true, "mla.v_b_proj"},
};

static uint64_t dim_of(const struct kern_model_desc *m, uint32_t d) {
    uint64_t p = (uint64_t)m->kda_heads * m->kda_dim;
    switch (d) {
    case D_1:
        return 1;
    case D_3:
        return 3;
    case D_VOCAB:
        return m->vocab_rows;
    case D_E:
        return m->hidden;
    case D_2E:
        return 2 * (uint64_t)m->hidden;
    case D_HC_ROWS:
        return (uint64_t)m->hc_mult * (2 + (uint64_t)m->hc_mult);
    case D_HC_E:
        return (uint64_t)m->hc_mult * m->hidden;
    case D_P:
        return p;
    case D_KDA_DIM:
        return m->kda_dim;
    case D_KDA_HEADS:
        return m->kda_heads;
    case D_CONV:
        return m->conv_width;
    case D_Q_RANK:
        return m->q_rank;
    case D_Q_OUT:
        return (uint64_t)m->mla_heads * (m->nope_dim + (uint64_t)m->rope_dim);
    case D_KVA:
        return m->kv_rank + (uint64_t)m->rope_dim;
    case D_KV_RANK:
        return m->kv_rank;
    case D_KVB:
        return (uint64_t)m->mla_heads * (m->nope_dim + (uint64_t)m->v_dim);
    case D_KB:
        return (uint64_t)m->mla_heads * m->kv_rank;
    case D_NOPE:
        return m->nope_dim;
    case D_O_IN:
        return (uint64_t)m->mla_heads * m->v_dim;
    case D_IDX_Q:
        return (uint64_t)m->index_heads * m->index_dim;
    case D_IDX_DIM:
        return m->index_dim;
    case D_IDX_HEADS:
        return m->index_heads;
    case D_KPOOL:
        return m->index_kpool;
    case D_DENSE:
        return m->dense_width;
    case D_EXPERTS:
        return m->n_experts;
    case D_EXPERT:
        return m->expert_width;
    case D_SHARED:
        return (uint64_t)m->n_shared * m->expert_width;
    default:
        return 0;
    }
}

static bool group_applies(const struct kern_model_desc *m, uint32_t group, uint32_t layer) {
    const struct kern_layer_desc *l = &m->layer[layer];
    switch (group) {
    case G_GLOBAL:
        return layer == 0;
    case G_LAYER:
        return true;
    case G_MHC:
        return l->resid == KERN_RESID_MHC;
    case G_KDA:
        return l->mix == KERN_MIX_KDA;
    case G_MLA:
        return l->mix == KERN_MIX_MLA;
    case G_MLA_KVB:
        return l->mix == KERN_MIX_MLA && !l->kvb_split;
    case G_MLA_SPLIT:
        return l->mix == KERN_MIX_MLA && l->kvb_split;
    case G_INDEX:
        return l->mix == KERN_MIX_MLA && l->index == KERN_INDEX_FULL;
    case G_POOL:
        return l->mix == KERN_MIX_MLA && l->index == KERN_INDEX_FULL && m->index_kpool > 1;
    case G_DENSE:
        return l->mlp == KERN_MLP_DENSE;
    case G_MOE:
    case G_EXPERT:
        return l->mlp == KERN_MLP_MOE;
    case G_SHARED:
        return l->mlp == KERN_MLP_MOE && m->n_shared > 0;
    case G_DRAFT:
        return layer >= m->n_layers;
    default:
        return false;
    }
}

bool kern_part_info(const struct kern_model_desc *m, uint32_t part, uint32_t layer,
                    struct kern_part_info *ret) {
    if (part >= KERN_PART_END || layer >= KERN_MAX_LAYERS || layer >= kern_total_layers(m))
        return false;
    const struct rule *r = &rules[part];
    if (!group_applies(m, r->group, layer))
        return false;
    *ret = (struct kern_part_info){.rows = dim_of(m, r->rows),
                                   .cols = dim_of(m, r->cols),
                                   .experts = r->group == G_EXPERT ? m->n_experts : 1,
                                   .matrix = r->matrix};
    return true;
}

int kern_part_shape(const struct kern_model_desc *m, const struct kern_tensor_id *id, uint64_t *ret_rows,
                    uint64_t *ret_cols, bool *ret_matrix) {
    struct kern_part_info info;
    if (!kern_part_info(m, id->part, id->layer, &info) || id->expert >= info.experts)
        return -ENOENT;
    *ret_rows = info.rows;
    *ret_cols = info.cols;
    *ret_matrix = info.matrix;
    return 0;
}

const char *kern_part_name(uint32_t part) {
    return part < KERN_PART_END && rules[part].name ? rules[part].name : "?";
}

/* Bookkeeping slots: per layer one for each part, then one for each of the three tensors of every expert. */
static uint64_t slots_per_layer(const struct kern_model_desc *m) {
    return KERN_PART_END + 3 * (uint64_t)m->n_experts;
}

uint64_t kern_part_count(const struct kern_model_desc *m) {
    return kern_total_layers(m) * slots_per_layer(m);
}

uint64_t kern_part_slot(const struct kern_model_desc *m, const struct kern_tensor_id *id) {
    uint64_t base = id->layer * slots_per_layer(m);
    if (id->part >= KERN_EXP_GATE && id->part <= KERN_EXP_DOWN)
        return base + KERN_PART_END + (id->part - KERN_EXP_GATE) * (uint64_t)m->n_experts + id->expert;
    return base + id->part;
}

struct kern_store kern_matrix_store(const struct kern_config *cfg, const struct kern_tensor_id *id) {
    return cfg->stores ? cfg->stores[kern_part_slot(&cfg->model, id)] : kern_store_plain(KERN_BF16);
}
