/* SPDX-License-Identifier: MIT */
/* The table of tensors. It is the whole contract with a checkpoint: what it does not name is refused, because
 * a tensor without a place (a bias, a scale, one more norm) means that the file is another model. Constant
 * data. */
#include "parts.h"

#include <stddef.h>
#include <stdio.h>

enum on {
    ON_ALL, /* trunk and MTP */
    ON_MHC, /* trunk layers with hyper-connections */
    ON_KDA,
    ON_DSA, /* and MTP */
    ON_KVB, /* of those, where kv_b is one tensor */
    ON_KVB_SPLIT,
    ON_INDEXER, /* DSA layers with an indexer of their own, and MTP */
    ON_POOLS,   /* of those, where an index key stands for several tokens */
    ON_DENSE,
    ON_SPARSE, /* and MTP */
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
    D_KB,
    D_NOPE,
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

const struct model_row model_rows[] = {
    {"embed_tokens.weight",
     "token_embd.weight",
     MODEL_ON_GLOBAL,
     ON_ALL,
     KERN_EMBED,
     MODEL_MATRIX,
     {D_VOCAB, D_E}},
    {"norm.weight",
     "output_norm.weight",
     MODEL_ON_GLOBAL,
     ON_ALL,
     KERN_FINAL_NORM,
     MODEL_VECTOR,
     {D_E}},
    {"lm_head.weight", "output.weight", MODEL_ON_GLOBAL, ON_ALL, KERN_HEAD, MODEL_MATRIX, {D_VOCAB, D_E}},
    {"input_layernorm.weight", "attn_norm.weight", MODEL_ON_LAYER, ON_ALL, KERN_IN_NORM, MODEL_VECTOR, {D_E}},
    {"post_attention_layernorm.weight",
     "ffn_norm.weight",
     MODEL_ON_LAYER,
     ON_ALL,
     KERN_POST_NORM,
     MODEL_VECTOR,
     {D_E}},
    {"hc_attn_fn",
     "hc_attn_fn.weight|hc_attn_fn",
     MODEL_ON_LAYER,
     ON_MHC,
     KERN_HC_ATTN_FN,
     MODEL_FULL,
     {D_HC_ROWS, D_HC_COLS}},
    {"hc_attn_base",
     "hc_attn_base.weight|hc_attn_base",
     MODEL_ON_LAYER,
     ON_MHC,
     KERN_HC_ATTN_BASE,
     MODEL_VECTOR_F32,
     {D_HC_ROWS}},
    {"hc_attn_scale",
     "hc_attn_scale.weight|hc_attn_scale",
     MODEL_ON_LAYER,
     ON_MHC,
     KERN_HC_ATTN_SCALE,
     MODEL_VECTOR_F32,
     {D_3}},
    {"hc_ffn_fn",
     "hc_ffn_fn.weight|hc_ffn_fn",
     MODEL_ON_LAYER,
     ON_MHC,
     KERN_HC_FFN_FN,
     MODEL_FULL,
     {D_HC_ROWS, D_HC_COLS}},
    {"hc_ffn_base",
     "hc_ffn_base.weight|hc_ffn_base",
     MODEL_ON_LAYER,
     ON_MHC,
     KERN_HC_FFN_BASE,
     MODEL_VECTOR_F32,
     {D_HC_ROWS}},
    {"hc_ffn_scale",
     "hc_ffn_scale.weight|hc_ffn_scale",
     MODEL_ON_LAYER,
     ON_MHC,
     KERN_HC_FFN_SCALE,
     MODEL_VECTOR_F32,
     {D_3}},
    {"self_attn.q_proj.weight",
     "attn_q.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_Q,
     MODEL_MATRIX,
     {D_KDA_P, D_E}},
    {"self_attn.k_proj.weight",
     "attn_k.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_K,
     MODEL_MATRIX,
     {D_KDA_P, D_E}},
    {"self_attn.v_proj.weight",
     "attn_v.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_V,
     MODEL_MATRIX,
     {D_KDA_P, D_E}},
    {"self_attn.q_conv1d.weight",
     "ssm_conv1d_q.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_QCONV,
     MODEL_VECTOR,
     {D_KDA_P, D_1, D_CONV}},
    {"self_attn.k_conv1d.weight",
     "ssm_conv1d_k.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_KCONV,
     MODEL_VECTOR,
     {D_KDA_P, D_1, D_CONV}},
    {"self_attn.v_conv1d.weight",
     "ssm_conv1d_v.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_VCONV,
     MODEL_VECTOR,
     {D_KDA_P, D_1, D_CONV}},
    {"self_attn.f_a_proj.weight",
     "ssm_f_a.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_FA,
     MODEL_MATRIX,
     {D_KDA_DIM, D_E}},
    {"self_attn.f_b_proj.weight",
     "ssm_f_b.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_FB,
     MODEL_MATRIX,
     {D_KDA_P, D_KDA_DIM}},
    {"self_attn.g_a_proj.weight",
     "ssm_g_a.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_GA,
     MODEL_MATRIX,
     {D_KDA_DIM, D_E}},
    {"self_attn.g_b_proj.weight",
     "ssm_g_b.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_GB,
     MODEL_MATRIX,
     {D_KDA_P, D_KDA_DIM}},
    {"self_attn.b_proj.weight",
     "ssm_beta.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_B,
     MODEL_MATRIX,
     {D_KDA_HEADS, D_E}},
    {"self_attn.A_log",
     "ssm_a|ssm_a.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_A_LOG,
     MODEL_VECTOR_F32,
     {D_KDA_HEADS}},
    {"self_attn.dt_bias",
     "ssm_dt.bias",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_DT_BIAS,
     MODEL_VECTOR_F32,
     {D_KDA_P}},
    {"self_attn.o_norm.weight",
     "ssm_norm.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_O_NORM,
     MODEL_VECTOR,
     {D_KDA_DIM}},
    {"self_attn.o_proj.weight",
     "attn_output.weight",
     MODEL_ON_LAYER,
     ON_KDA,
     KERN_KDA_O,
     MODEL_MATRIX,
     {D_E, D_KDA_P}},
    {"self_attn.q_a_proj.weight",
     "attn_q_a.weight",
     MODEL_ON_LAYER,
     ON_DSA,
     KERN_MLA_QA,
     MODEL_MATRIX,
     {D_Q_RANK, D_E}},
    {"self_attn.q_a_layernorm.weight",
     "attn_q_a_norm.weight",
     MODEL_ON_LAYER,
     ON_DSA,
     KERN_MLA_QA_NORM,
     MODEL_VECTOR,
     {D_Q_RANK}},
    {"self_attn.q_b_proj.weight",
     "attn_q_b.weight",
     MODEL_ON_LAYER,
     ON_DSA,
     KERN_MLA_QB,
     MODEL_MATRIX,
     {D_Q, D_Q_RANK}},
    {"self_attn.kv_a_proj_with_mqa.weight",
     "attn_kv_a_mqa.weight",
     MODEL_ON_LAYER,
     ON_DSA,
     KERN_MLA_KVA,
     MODEL_MATRIX,
     {D_KVA, D_E}},
    {"self_attn.kv_a_layernorm.weight",
     "attn_kv_a_norm.weight",
     MODEL_ON_LAYER,
     ON_DSA,
     KERN_MLA_KVA_NORM,
     MODEL_VECTOR,
     {D_KV_RANK}},
    {"self_attn.kv_b_proj.weight",
     "attn_kv_b.weight",
     MODEL_ON_LAYER,
     ON_KVB,
     KERN_MLA_KVB,
     MODEL_MATRIX,
     {D_KV, D_KV_RANK}},
    /* GGUF: a matrix for each head, the key half of kv_b transposed; found as [heads,kv_rank,nope] */
    {NULL, "attn_k_b.weight", MODEL_ON_LAYER, ON_KVB_SPLIT, KERN_MLA_KB, MODEL_MATRIX, {D_KB, D_NOPE}},
    {NULL, "attn_v_b.weight", MODEL_ON_LAYER, ON_KVB_SPLIT, KERN_MLA_VB, MODEL_MATRIX, {D_V, D_KV_RANK}},
    {"self_attn.o_proj.weight",
     "attn_output.weight",
     MODEL_ON_LAYER,
     ON_DSA,
     KERN_MLA_O,
     MODEL_MATRIX,
     {D_E, D_V}},
    {"self_attn.indexer.wq_b.weight",
     "indexer.attn_q_b.weight",
     MODEL_ON_LAYER,
     ON_INDEXER,
     KERN_IDX_QB,
     MODEL_MATRIX,
     {D_IDX_Q, D_Q_RANK}},
    {"self_attn.indexer.wk.weight",
     "indexer.attn_k.weight",
     MODEL_ON_LAYER,
     ON_INDEXER,
     KERN_IDX_K,
     MODEL_MATRIX,
     {D_IDX_DIM, D_E}},
    {"self_attn.indexer.k_norm.weight",
     "indexer.k_norm.weight",
     MODEL_ON_LAYER,
     ON_INDEXER,
     KERN_IDX_KNORM_W,
     MODEL_VECTOR,
     {D_IDX_DIM}},
    {"self_attn.indexer.k_norm.bias",
     "indexer.k_norm.bias",
     MODEL_ON_LAYER,
     ON_INDEXER,
     KERN_IDX_KNORM_B,
     MODEL_VECTOR,
     {D_IDX_DIM}},
    {"self_attn.indexer.weights_proj.weight",
     "indexer.proj.weight",
     MODEL_ON_LAYER,
     ON_INDEXER,
     KERN_IDX_W,
     MODEL_MATRIX,
     {D_IDX_HEADS, D_E}},
    {"self_attn.indexer.index_kpool_compress_ape",
     "indexer_compressor_ape.weight|indexer_compressor_ape",
     MODEL_ON_LAYER,
     ON_POOLS,
     KERN_IDX_APE,
     MODEL_VECTOR,
     {D_KPOOL, D_IDX_DIM}},
    {"self_attn.indexer.index_kpool_compress_gate",
     "indexer_compressor_gate.weight|indexer_compressor_gate",
     MODEL_ON_LAYER,
     ON_POOLS,
     KERN_IDX_GATE,
     MODEL_MATRIX,
     {D_IDX_DIM, D_E}},
    {"mlp.gate_proj.weight",
     "ffn_gate.weight",
     MODEL_ON_LAYER,
     ON_DENSE,
     KERN_MLP_GATE,
     MODEL_MATRIX,
     {D_DENSE, D_E}},
    {"mlp.up_proj.weight",
     "ffn_up.weight",
     MODEL_ON_LAYER,
     ON_DENSE,
     KERN_MLP_UP,
     MODEL_MATRIX,
     {D_DENSE, D_E}},
    {"mlp.down_proj.weight",
     "ffn_down.weight",
     MODEL_ON_LAYER,
     ON_DENSE,
     KERN_MLP_DOWN,
     MODEL_MATRIX,
     {D_E, D_DENSE}},
    {"mlp.gate.weight",
     "ffn_gate_inp.weight",
     MODEL_ON_LAYER,
     ON_SPARSE,
     KERN_ROUTER,
     MODEL_FULL,
     {D_EXPERTS, D_E}},
    {"mlp.gate.e_score_correction_bias",
     "exp_probs_b.bias|exp_probs_b",
     MODEL_ON_LAYER,
     ON_SPARSE,
     KERN_ROUTER_BIAS,
     MODEL_VECTOR_F32,
     {D_EXPERTS}},
    {"mlp.shared_experts.gate_proj.weight",
     "ffn_gate_shexp.weight",
     MODEL_ON_LAYER,
     ON_SPARSE,
     KERN_SH_GATE,
     MODEL_MATRIX,
     {D_SHARED, D_E}},
    {"mlp.shared_experts.up_proj.weight",
     "ffn_up_shexp.weight",
     MODEL_ON_LAYER,
     ON_SPARSE,
     KERN_SH_UP,
     MODEL_MATRIX,
     {D_SHARED, D_E}},
    {"mlp.shared_experts.down_proj.weight",
     "ffn_down_shexp.weight",
     MODEL_ON_LAYER,
     ON_SPARSE,
     KERN_SH_DOWN,
     MODEL_MATRIX,
     {D_E, D_SHARED}},
    {"gate_proj.weight",
     "ffn_gate_exps.weight",
     MODEL_ON_EXPERT,
     ON_SPARSE,
     KERN_EXP_GATE,
     MODEL_MATRIX,
     {D_EXPERT, D_E}},
    {"up_proj.weight",
     "ffn_up_exps.weight",
     MODEL_ON_EXPERT,
     ON_SPARSE,
     KERN_EXP_UP,
     MODEL_MATRIX,
     {D_EXPERT, D_E}},
    {"down_proj.weight",
     "ffn_down_exps.weight",
     MODEL_ON_EXPERT,
     ON_SPARSE,
     KERN_EXP_DOWN,
     MODEL_MATRIX,
     {D_E, D_EXPERT}},
    {"enorm.weight", "nextn.enorm.weight", MODEL_ON_LAYER, ON_DRAFT, KERN_DRAFT_ENORM, MODEL_VECTOR, {D_E}},
    {"hnorm.weight", "nextn.hnorm.weight", MODEL_ON_LAYER, ON_DRAFT, KERN_DRAFT_HNORM, MODEL_VECTOR, {D_E}},
    {"eh_proj.weight",
     "nextn.eh_proj.weight",
     MODEL_ON_LAYER,
     ON_DRAFT,
     KERN_DRAFT_EH,
     MODEL_MATRIX,
     {D_E, D_2E}},
    {"shared_head.norm.weight",
     "nextn.shared_head_norm.weight",
     MODEL_ON_LAYER,
     ON_DRAFT,
     KERN_DRAFT_NORM,
     MODEL_VECTOR,
     {D_E}},
};
const size_t model_n_rows = sizeof model_rows / sizeof *model_rows;

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
    case D_KB:
        return heads * c->kv_lora_rank;
    case D_NOPE:
        return c->qk_nope_head_dim;
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

void model_row_name(const struct model_config *c, const struct model_row *row, uint32_t layer, uint32_t expert,
                    char *buf, size_t len) {
    if (row->where == MODEL_ON_EXPERT)
        snprintf(buf, len, "%slayers.%u.mlp.experts.%u.%s", model_text_prefix(c), layer, expert, row->name);
    else if (row->where == MODEL_ON_LAYER)
        snprintf(buf, len, "%slayers.%u.%s", model_text_prefix(c), layer, row->name);
    else
        snprintf(buf, len, "%s%s", row->part == KERN_HEAD ? "" : model_text_prefix(c), row->name);
}

bool model_row_applies(const struct model_config *c, const struct model_row *row, uint32_t layer) {
    bool draft = layer >= c->num_hidden_layers;
    bool dsa = draft || c->layer[layer].mix == MODEL_MIX_DSA;
    bool sparse = draft || c->layer[layer].mlp == MODEL_MLP_SPARSE;

    switch ((enum on)row->on) {
    case ON_ALL:
        return true;
    case ON_MHC:
        return !draft && c->family == MODEL_GLM53_FLASH;
    case ON_KDA:
        return !dsa;
    case ON_DSA:
        return dsa;
    case ON_KVB:
        return dsa && !c->layer[layer].kvb_split;
    case ON_KVB_SPLIT:
        return dsa && c->layer[layer].kvb_split;
    case ON_INDEXER:
        return dsa && (draft || !c->layer[layer].index_shared);
    case ON_POOLS:
        return dsa && (draft || !c->layer[layer].index_shared) && c->index_kpool > 1;
    case ON_DENSE:
        return !sparse;
    case ON_SPARSE:
        return sparse;
    case ON_DRAFT:
        return draft;
    }
    return false;
}

void model_row_shape(const struct model_config *c, const struct model_row *row, uint64_t ret_shape[3],
                     uint32_t *ret_n) {
    uint32_t n = 0;

    while (n < 3 && row->dim[n] != D_NONE) {
        ret_shape[n] = dim_of(c, (enum dim)row->dim[n]);
        n++;
    }
    *ret_n = n;
}
