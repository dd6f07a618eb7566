/* SPDX-License-Identifier: MIT */
/* The checkpoint's config.json and generation_config.json as numbers. Every value is read from the files;
 * nothing has a default. Plain data once read, so any thread may look at it. */
#ifndef GLMD_MODEL_CONFIG_H
#define GLMD_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "kern.h"
#include "xerr.h"

enum {
    MODEL_MAX_EOS = 8,
    MODEL_NO_ID = -1,
};

enum model_family {
    MODEL_GLM53_FLASH = 1, /* glm5_next */
    MODEL_GLM53,           /* glm_moe_dsa: MLA with rotary positions in every layer, plain residuals */
};
enum model_mix { MODEL_MIX_KDA = 1, MODEL_MIX_DSA = 2 };
enum model_mlp { MODEL_MLP_DENSE = 1, MODEL_MLP_SPARSE = 2 };

struct model_layer {
    enum model_mix mix;
    enum model_mlp mlp;
    bool index_shared; /* DSA layers: reuses the selection of the previous full DSA layer */
    bool kvb_split;    /* DSA and MTP layers: the file has kv_b as two tensors (GGUF) */
};

/* Names follow the file. Words that have one supported value (scoring_func, hidden_act, …) are checked, not
 * stored. */
struct model_config {
    enum model_family family; /* what it lacks is 0 below: no clamp, no streams, no linear attention; index_kpool 1 */
    uint32_t vocab_size, hidden_size;
    uint32_t num_hidden_layers, num_nextn_predict_layers;
    uint32_t intermediate_size, moe_intermediate_size;
    uint32_t first_k_dense_replace;
    uint32_t n_routed_experts, num_experts_per_tok, n_shared_experts;
    uint32_t n_group, topk_group, moe_layer_freq;
    double routed_scaling_factor, swiglu_limit;

    uint32_t num_attention_heads, num_key_value_heads;
    uint32_t q_lora_rank, kv_lora_rank;
    uint32_t qk_nope_head_dim, qk_rope_head_dim, qk_head_dim, v_head_dim, head_dim;
    uint32_t index_n_heads, index_head_dim, index_topk, index_kpool;
    bool index_share_for_mtp_iteration;
    double rope_theta;

    uint32_t linear_num_heads, linear_head_dim, linear_conv_kernel;
    double gate_lower_bound;

    uint32_t hc_mult, hc_sinkhorn_iters;
    double hc_eps, rms_norm_eps;

    uint32_t max_position_embeddings;
    uint32_t pad_token_id;
    uint32_t eos_token_id[MODEL_MAX_EOS]; /* ascending */
    uint32_t n_eos;

    struct model_layer layer[KERN_MAX_LAYERS]; /* num_hidden_layers of them; of the MTP layers only kvb_split */

    /* Top level. Ids are MODEL_NO_ID where the file has none. */
    bool from_gguf; /* the files are GGUF: other names, and no other JSON file need be there */
    bool has_vision;
    int64_t image_token_id, video_token_id;
    int64_t image_start_token_id, image_end_token_id, video_start_token_id, video_end_token_id;
};

/* What the publisher suggests for sampling. A value the file does not have is not invented: has_* says so. */
struct model_generation {
    bool has_do_sample, has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    bool do_sample;
    double temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
};

/* Where the file has the keys of the text model: "text_config." or "". For messages. */
static inline const char *model_text_key(const struct model_config *cfg) {
    return cfg->family == MODEL_GLM53 ? "" : "text_config.";
}

/* Reads DIR/config.json. *ret is written only on success. -EINVAL: missing, mistyped or contradictory,
 * -ENOTSUP: well-formed but another model or scheme, -EBADMSG: not JSON; the message names file, key, what
 * was found and what was expected. */
int model_config_read(const char *dir, struct model_config *ret, struct xerr *e);

/* Reads DIR/generation_config.json and compares its stop ids with cfg's. */
int model_generation_read(const char *dir, const struct model_config *cfg, struct model_generation *ret,
                          struct xerr *e);

/* The description kernels work from. vocab_tokens: ids the tokenizer knows; rows from there on are padding.
 * with_draft: false leaves the MTP layers out (a checkpoint may lack their tensors). -EINVAL when
 * vocab_tokens exceeds vocab_size or is zero. */
int model_config_describe(const struct model_config *cfg, uint32_t vocab_tokens, bool with_draft,
                          struct kern_model_desc *ret, struct xerr *e);

#endif
