/* SPDX-License-Identifier: MIT */
/* A checkpoint as the GGUF converters write it. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptgguf.h"

enum { T_F32 = 0, T_BF16 = 30 };

static const char *const NAMES[][2] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"hc_attn_fn", "hc_attn_fn.weight"},
    {"hc_attn_base", "hc_attn_base.weight"},
    {"hc_attn_scale", "hc_attn_scale.weight"},
    {"hc_ffn_fn", "hc_ffn_fn.weight"},
    {"hc_ffn_base", "hc_ffn_base.weight"},
    {"hc_ffn_scale", "hc_ffn_scale.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.q_conv1d.weight", "ssm_conv1d_q.weight"},
    {"self_attn.k_conv1d.weight", "ssm_conv1d_k.weight"},
    {"self_attn.v_conv1d.weight", "ssm_conv1d_v.weight"},
    {"self_attn.f_a_proj.weight", "ssm_f_a.weight"},
    {"self_attn.f_b_proj.weight", "ssm_f_b.weight"},
    {"self_attn.g_a_proj.weight", "ssm_g_a.weight"},
    {"self_attn.g_b_proj.weight", "ssm_g_b.weight"},
    {"self_attn.b_proj.weight", "ssm_beta.weight"},
    {"self_attn.A_log", "ssm_a"},
    {"self_attn.dt_bias", "ssm_dt.bias"},
    {"self_attn.o_norm.weight", "ssm_norm.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_a_proj.weight", "attn_q_a.weight"},
    {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    {"self_attn.q_b_proj.weight", "attn_q_b.weight"},
    {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
    {"self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    {"self_attn.indexer.wk.weight", "indexer.attn_k.weight"},
    {"self_attn.indexer.k_norm.weight", "indexer.k_norm.weight"},
    {"self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"},
    {"self_attn.indexer.weights_proj.weight", "indexer.proj.weight"},
    {"self_attn.indexer.index_kpool_compress_ape", "indexer_compressor_ape.weight"},
    {"self_attn.indexer.index_kpool_compress_gate", "indexer_compressor_gate.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
    {"enorm.weight", "nextn.enorm.weight"},
    {"hnorm.weight", "nextn.hnorm.weight"},
    {"eh_proj.weight", "nextn.eh_proj.weight"},
    {"shared_head.norm.weight", "nextn.shared_head_norm.weight"},
};

static float value(const struct ckpt_tensor *t, uint64_t i) {
    uint32_t u;
    float v;

    if (strcmp(t->dtype, "F32") == 0) {
        memcpy(&v, t->bytes + 4 * i, 4);
        return v;
    }
    u = (uint32_t)t->bytes[2 * i] << 16 | (uint32_t)t->bytes[2 * i + 1] << 24;
    memcpy(&v, &u, 4);
    return v;
}

/* Matrices in BF16, everything else in F32. */
static void put(struct ckpt_gguf *g, const char *name, const struct ckpt_tensor *t) {
    uint64_t ne[4] = {1, 1, 1, 1}, n = 1;
    float *f;

    for (uint32_t i = 0; i < t->n_dims; i++) {
        ne[i] = t->dim[t->n_dims - 1 - i];
        n *= ne[i];
    }
    if (t->n_dims == 2 && strcmp(t->dtype, "BF16") == 0 && !strstr(name, "gate_inp") &&
        !strstr(name, "_ape")) {
        ckpt_gguf_put(g, name, T_BF16, t->bytes, t->n, 2, ne[0], ne[1]);
        return;
    }
    f = malloc(n * sizeof *f);
    for (uint64_t i = 0; i < n; i++)
        f[i] = strstr(name, "ssm_a") ? -expf(value(t, i)) : value(t, i);
    ckpt_gguf_put(g, name, T_F32, f, 4 * n, t->n_dims, ne[0], ne[1], ne[2], ne[3]);
    free(f);
}

static void stack(struct ckpt_gguf *g, struct ckpt_set *s, unsigned layer, unsigned experts, const char *part,
                  const char *to) {
    struct ckpt_buf b = {0};
    struct ckpt_tensor *t = NULL;
    char name[160];

    for (unsigned e = 0; e < experts; e++) {
        snprintf(name, sizeof name, "model.language_model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, e,
                 part);
        t = ckpt_set_find(s, name);
        if (!t)
            return;
        ckpt_buf_put(&b, t->bytes, t->n);
    }
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, to);
    ckpt_gguf_put(g, name, T_BF16, b.p, b.n, 3, t->dim[1], t->dim[0], (uint64_t)experts);
    free(b.p);
}

/* Per head the key rows, transposed, and the value rows as they are. */
static void split_kvb(struct ckpt_gguf *g, const struct ckpt_tensor *t, unsigned layer, uint64_t heads,
                      uint64_t nope) {
    uint64_t rank = t->dim[1], rows = t->dim[0] / heads, v = rows - nope;
    unsigned char *kb = malloc(heads * nope * rank * 2), *vb = malloc(heads * v * rank * 2);
    char name[80];

    for (uint64_t h = 0; h < heads; h++) {
        for (uint64_t r = 0; r < rank; r++)
            for (uint64_t n = 0; n < nope; n++)
                memcpy(kb + 2 * ((h * rank + r) * nope + n), t->bytes + 2 * ((h * rows + n) * rank + r), 2);
        memcpy(vb + 2 * h * v * rank, t->bytes + 2 * (h * rows + nope) * rank, 2 * v * rank);
    }
    snprintf(name, sizeof name, "blk.%u.attn_k_b.weight", layer);
    ckpt_gguf_put(g, name, T_BF16, kb, heads * nope * rank * 2, 3, nope, rank, heads);
    snprintf(name, sizeof name, "blk.%u.attn_v_b.weight", layer);
    ckpt_gguf_put(g, name, T_BF16, vb, heads * v * rank * 2, 3, rank, v, heads);
    free(kb);
    free(vb);
}

static uint32_t num(json_t *c, const char *key) {
    char path[96];
    json_t *v;

    snprintf(path, sizeof path, "text_config.%s", key);
    v = ckpt_get(c, path);
    ck_assert_msg(json_is_number(v), "%s", path);
    return (uint32_t)json_number_value(v);
}

static float real(json_t *c, const char *path) {
    ck_assert_msg(json_is_number(ckpt_get(c, path)), "%s", path);
    return (float)json_number_value(ckpt_get(c, path));
}

static void metadata(struct ckpt_gguf *g, json_t *c) {
    static const struct {
        const char *key, *from;
    } UINTS[] = {
        {"context_length", "max_position_embeddings"},
        {"embedding_length", "hidden_size"},
        {"feed_forward_length", "intermediate_size"},
        {"leading_dense_block_count", "first_k_dense_replace"},
        {"nextn_predict_layers", "num_nextn_predict_layers"},
        {"vocab_size", "vocab_size"},
        {"expert_count", "n_routed_experts"},
        {"expert_used_count", "num_experts_per_tok"},
        {"expert_shared_count", "n_shared_experts"},
        {"expert_feed_forward_length", "moe_intermediate_size"},
        {"expert_shared_feed_forward_length", "moe_intermediate_size"},
        {"attention.head_count", "num_attention_heads"},
        {"attention.q_lora_rank", "q_lora_rank"},
        {"attention.kv_lora_rank", "kv_lora_rank"},
        {"attention.key_length", "kv_lora_rank"},
        {"attention.value_length", "kv_lora_rank"},
        {"attention.key_length_mla", "qk_head_dim"},
        {"attention.value_length_mla", "v_head_dim"},
        {"attention.indexer.head_count", "index_n_heads"},
        {"attention.indexer.key_length", "index_head_dim"},
        {"attention.indexer.top_k", "index_topk"},
        {"attention.indexer.kpool", "index_kpool"},
        {"rope.dimension_count", "qk_rope_head_dim"},
        {"kda.head_dim", "linear_attn_config.head_dim"},
        {"ssm.conv_kernel", "linear_attn_config.short_conv_kernel_size"},
        {"hyper_connection.count", "hc_mult"},
        {"hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"},
    };
    uint32_t n = num(c, "num_hidden_layers"), all = n + num(c, "num_nextn_predict_layers"), kv[128];
    float clamp[128];
    char key[96];

    ckpt_gguf_text(g, "general.architecture", "glm5next");
    for (size_t i = 0; i < sizeof UINTS / sizeof *UINTS; i++) {
        snprintf(key, sizeof key, "glm5next.%s", UINTS[i].key);
        ckpt_gguf_uint(g, key, num(c, UINTS[i].from));
    }
    ckpt_gguf_uint(g, "glm5next.block_count", all);
    ckpt_gguf_uint(g, "glm5next.expert_gating_func", 2);
    ckpt_gguf_bool(g, "glm5next.expert_weights_norm", 1);
    ckpt_gguf_real(g, "glm5next.expert_weights_scale", real(c, "text_config.routed_scaling_factor"));
    ckpt_gguf_real(g, "glm5next.attention.layer_norm_rms_epsilon", real(c, "text_config.rms_norm_eps"));
    ckpt_gguf_real(g, "glm5next.attention.layer_norm_epsilon", 1e-6f);
    ckpt_gguf_real(g, "glm5next.hyper_connection.epsilon", real(c, "text_config.hc_eps"));
    ckpt_gguf_real(g, "glm5next.kda.gate_lower_bound",
                   real(c, "text_config.linear_attn_config.gate_lower_bound"));
    for (uint32_t i = 0; i < all; i++) {
        char path[64];

        snprintf(path, sizeof path, "text_config.layer_types.%u", i);
        kv[i] = i >= n || strcmp(json_string_value(ckpt_get(c, path)), "linear_attention") != 0;
        clamp[i] = real(c, "text_config.swiglu_limit");
    }
    ckpt_gguf_uints(g, "glm5next.attention.head_count_kv", kv, all);
    ckpt_gguf_reals(g, "glm5next.swiglu_clamp_exp", clamp, all);
    ckpt_gguf_reals(g, "glm5next.swiglu_clamp_shexp", clamp, all);
}

void ckpt_gguf_model(struct ckpt_gguf *g, struct ckpt_set *s, json_t *config) {
    static const char P[] = "model.language_model.";
    uint32_t all = num(config, "num_hidden_layers") + num(config, "num_nextn_predict_layers");
    char name[160], to[96];

    metadata(g, config);
    put(g, "token_embd.weight", ckpt_set_get(s, "model.language_model.embed_tokens.weight"));
    put(g, "output_norm.weight", ckpt_set_get(s, "model.language_model.norm.weight"));
    put(g, "output.weight", ckpt_set_get(s, "lm_head.weight"));
    for (uint32_t l = 0; l < all; l++) {
        struct ckpt_tensor *t;

        for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
            snprintf(name, sizeof name, "%slayers.%u.%s", P, l, NAMES[i][0]);
            snprintf(to, sizeof to, "blk.%u.%s", l, NAMES[i][1]);
            t = ckpt_set_find(s, name);
            if (t)
                put(g, to, t);
        }
        stack(g, s, l, num(config, "n_routed_experts"), "gate", "ffn_gate_exps");
        stack(g, s, l, num(config, "n_routed_experts"), "up", "ffn_up_exps");
        stack(g, s, l, num(config, "n_routed_experts"), "down", "ffn_down_exps");
        snprintf(name, sizeof name, "%slayers.%u.self_attn.kv_b_proj.weight", P, l);
        t = ckpt_set_find(s, name);
        if (t)
            split_kvb(g, t, l, num(config, "num_attention_heads"), num(config, "qk_nope_head_dim"));
    }
}

void ckpt_gguf_tokenizer(struct ckpt_gguf *g, json_t *tokenizer, json_t *config) {
    json_t *vocab = ckpt_get(tokenizer, "model.vocab"), *merges = ckpt_get(tokenizer, "model.merges"), *v;
    json_t *added = json_object_get(tokenizer, "added_tokens"),
           *eos = ckpt_get(config, "text_config.eos_token_id");
    uint32_t n = num(config, "vocab_size");
    const char **text = calloc(n, sizeof *text);
    int32_t *type = calloc(n, sizeof *type);
    char **joined = calloc(json_array_size(merges), sizeof *joined);
    const char *key;
    size_t i;

    for (i = 0; i < n; i++) {
        text[i] = "[PAD]";
        type[i] = 5;
    }
    json_object_foreach(vocab, key, v) {
        text[json_integer_value(v)] = key;
        type[json_integer_value(v)] = 1;
    }
    json_array_foreach(added, i, v) {
        json_int_t id = json_integer_value(json_object_get(v, "id"));

        text[id] = json_string_value(json_object_get(v, "content"));
        type[id] = json_is_true(json_object_get(v, "special")) ? 3 : 4;
    }
    json_array_foreach(merges, i, v) {
        joined[i] = malloc(256);
        snprintf(joined[i], 256, "%s %s", json_string_value(json_array_get(v, 0)),
                 json_string_value(json_array_get(v, 1)));
    }
    ckpt_gguf_text(g, "tokenizer.ggml.model", "gpt2");
    ckpt_gguf_text(g, "tokenizer.ggml.pre", "glm4");
    ckpt_gguf_texts(g, "tokenizer.ggml.tokens", text, n);
    ckpt_gguf_i32s(g, "tokenizer.ggml.token_type", type, n);
    ckpt_gguf_texts(g, "tokenizer.ggml.merges", (const char *const *)joined, json_array_size(merges));
    ckpt_gguf_uint(g, "tokenizer.ggml.eos_token_id", (uint32_t)json_integer_value(json_array_get(eos, 0)));
    ckpt_gguf_uint(g, "tokenizer.ggml.eot_token_id", (uint32_t)json_integer_value(json_array_get(eos, 1)));
    ckpt_gguf_uint(g, "tokenizer.ggml.eom_token_id", (uint32_t)json_integer_value(json_array_get(eos, 2)));
    for (i = 0; i < json_array_size(merges); i++)
        free(joined[i]);
    free(joined);
    free(text);
    free(type);
}
