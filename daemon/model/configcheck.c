/* SPDX-License-Identifier: MIT */
/* What a config.json must not contradict, whichever model of the family it describes. Start-up only, on the loading
 * thread; never logs. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "configread.h"

static int contradiction(const struct cread *c, const char *key, uint32_t found, const char *expected) {
    return xerr_set(c->e, -EINVAL, "%s: %s%s: found %u, expected %s", c->file, c->prefix, key, found,
                    expected);
}

int cread_numbers(const struct cread *c, const struct model_config *cfg) {
    char want[96];

    if (cfg->first_k_dense_replace > cfg->num_hidden_layers) {
        snprintf(want, sizeof want, "at most num_hidden_layers (%u)", cfg->num_hidden_layers);
        return contradiction(c, "first_k_dense_replace", cfg->first_k_dense_replace, want);
    }
    if (cfg->num_experts_per_tok > cfg->n_routed_experts) {
        snprintf(want, sizeof want, "at most n_routed_experts (%u)", cfg->n_routed_experts);
        return contradiction(c, "num_experts_per_tok", cfg->num_experts_per_tok, want);
    }
    if (cfg->num_key_value_heads != cfg->num_attention_heads) {
        snprintf(want, sizeof want, "num_attention_heads (%u)", cfg->num_attention_heads);
        return contradiction(c, "num_key_value_heads", cfg->num_key_value_heads, want);
    }
    if (cfg->qk_head_dim != cfg->qk_nope_head_dim + cfg->qk_rope_head_dim) {
        snprintf(want, sizeof want, "qk_nope_head_dim + qk_rope_head_dim (%u)",
                 cfg->qk_nope_head_dim + cfg->qk_rope_head_dim);
        return contradiction(c, "qk_head_dim", cfg->qk_head_dim, want);
    }
    if (cfg->index_topk % cfg->index_kpool != 0) {
        snprintf(want, sizeof want, "a multiple of index_kpool (%u)", cfg->index_kpool);
        return contradiction(c, "index_topk", cfg->index_topk, want);
    }
    if (cfg->pad_token_id >= cfg->vocab_size) {
        snprintf(want, sizeof want, "an id below vocab_size (%u)", cfg->vocab_size);
        return contradiction(c, "pad_token_id", cfg->pad_token_id, want);
    }
    return 0;
}

/* RoPE parameters that carry a scaling type change more than the angles: the softmax scale too. */
int cread_rope_type(const struct cread *c, const char *key, const char *expected) {
    const json_t *v = json_object_get(c->obj, key), *type = json_object_get(v, "rope_type");
    const json_t *old = json_object_get(v, "type"); /* its older name; where both are, both count */

    if (!v || json_is_null(v))
        return 0;
    if (!type || (old && !FAULT(rope_type_unseen) && !json_equal(type, old)))
        type = old;
    if (!type || !json_is_string(type) || strcmp(json_string_value(type), "default") != 0)
        return cread_refuse(c, -ENOTSUP, key, type ? type : v, "%s", expected);
    return 0;
}

/* A prompt of this family has no begin token; an id here would mean another prompt format. */
int cread_no_bos(const struct cread *c) {
    const json_t *v = json_object_get(c->obj, "bos_token_id");

    if (v && !json_is_null(v))
        return cread_refuse(c, -ENOTSUP, "bos_token_id", v, "null or no such key");
    return 0;
}

/* What it says is compared with the tensors (quantconf.c); here it only has to be an object. */
int cread_quantization(const struct cread *c) {
    const json_t *v = json_object_get(c->obj, "quantization_config");

    return v && !json_is_null(v) && !json_is_object(v)
               ? cread_refuse(c, -EINVAL, "quantization_config", v, "an object")
               : 0;
}

/* An older name of dtype. */
int cread_torch_dtype(const struct cread *c) {
    const json_t *v = json_object_get(c->obj, "torch_dtype");

    if (v && !json_is_null(v) && (!json_is_string(v) || strcmp(json_string_value(v), "bfloat16") != 0))
        return cread_refuse(c, -EINVAL, "torch_dtype", v, "no such key, or \"bfloat16\" as dtype");
    return 0;
}
