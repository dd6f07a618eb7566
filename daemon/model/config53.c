/* SPDX-License-Identifier: MIT */
/* config.json of GLM-5.3 (glm_moe_dsa), which has no text_config: the text model is all there is. Start-up only, on the
 * loading thread; never logs. As in config.c, the table is the whole list of what is read. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "configread.h"

#define N(a) (sizeof(a) / sizeof *(a))

static const struct cread_field GLM53[] = {
    WORD(model_type, "glm_moe_dsa"),
    U32(vocab_size, 1, 1 << 21),
    U32(hidden_size, 1, 1 << 16),
    /* One slot is left for the MTP layer. */
    U32(num_hidden_layers, 1, KERN_MAX_LAYERS - 1),
    U32(num_nextn_predict_layers, 0, 1),
    U32(intermediate_size, 1, 1 << 18),
    U32(moe_intermediate_size, 1, 1 << 18),
    U32(first_k_dense_replace, 0, KERN_MAX_LAYERS - 1),
    U32(n_routed_experts, 1, 1 << 12),
    U32(num_experts_per_tok, 1, 64),
    U32(n_shared_experts, 1, 1),
    WORD(scoring_func, "sigmoid"),
    WORD(topk_method, "noaux_tc"),
    U32(n_group, 1, 1),
    U32(topk_group, 1, 1),
    IS_TRUE(norm_topk_prob),
    REAL(routed_scaling_factor, 1e-3, 1e3),
    WORD(hidden_act, "silu"),
    U32(num_attention_heads, 1, 1 << 10),
    U32(num_key_value_heads, 1, 1 << 10),
    U32(q_lora_rank, 1, 1 << 14),
    U32(kv_lora_rank, 1, 1 << 12),
    U32(qk_nope_head_dim, 1, 1 << 10),
    U32(qk_rope_head_dim, 2, 1 << 10),
    U32(v_head_dim, 1, 1 << 10),
    IS_FALSE(attention_bias),
    U32(index_n_heads, 1, 1 << 10),
    U32(index_head_dim, 1, 1 << 10),
    U32(index_topk, 1, 1 << 20),
    BOOL(index_share_for_mtp_iteration),
    /* Pairs of neighbours turn, not halves; the other reading gives a model that answers, wrongly. */
    IS_TRUE(rope_interleave),
    IS_TRUE(indexer_rope_interleave),
    REAL(rms_norm_eps, 1e-12, 1e-2),
    U32(max_position_embeddings, 1, 1 << 27),
    IS_FALSE(tie_word_embeddings),
    U32(pad_token_id, 0, (1 << 21) - 1),
    WORD(dtype, "bfloat16"),
    {"qk_head_dim", CREAD_U32, offsetof(struct model_config, qk_head_dim), 1, 1 << 12, NULL, true},
    {"moe_router_dtype", CREAD_WORD, 0, 0, 0, "float32", true},
    {"moe_layer_freq", CREAD_U32, offsetof(struct model_config, moe_layer_freq), 1, 1, NULL, true},
    {"mhc", CREAD_FALSE, 0, 0, 0, NULL, true},
    /* Files have the width without or of the rotary part alone here; the two widths above are what counts. */
    INERT(head_dim),
};

/* Keys that are read, but not by the table. */
static const char *const OTHER[] = {"mlp_layer_types",     "indexer_types",   "index_topk_freq",
                                    "index_topk_pattern",  "layer_types",     "index_skip_topk_offset",
                                    "rope_parameters",     "rope_theta",      "rope_scaling",
                                    "quantization_config", "eos_token_id",    NULL};

static const json_t *present(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);

    return json_is_null(v) ? NULL : v;
}

/* ---- rotary positions ---- */

static int theta_of(const struct cread *c, const char *key, const json_t *v, double *ret) {
    double d = json_number_value(v);

    if (!json_is_number(v) || !(d > 1 && d <= 1e12))
        return cread_refuse(c, -EINVAL, key, v, "a number above 1, at most 1e12");
    if (*ret != 0 && *ret != d)
        return cread_refuse(c, -EINVAL, key, v, "%g, as rope_parameters.rope_theta", *ret);
    *ret = d;
    return 0;
}

static int read_rope(const struct cread *c, struct model_config *cfg) {
    static const char PLAIN[] = "null or a rope_type of \"default\"";
    const json_t *p = present(c->obj, "rope_parameters"), *theta = present(c->obj, "rope_theta"), *v;
    const char *key;
    char at[96];
    int r = cread_rope_type(c, "rope_parameters", PLAIN);

    if (r == 0)
        r = cread_rope_type(c, "rope_scaling", PLAIN);
    json_object_foreach((json_t *)present(c->obj, "rope_scaling"), key, v) {
        struct show s;

        snprintf(at, sizeof at, "rope_scaling.%s", show_str(&s, key));
        if (r == 0 && strcmp(key, "rope_type") != 0 && strcmp(key, "type") != 0)
            r = cread_refuse(c, -ENOTSUP, at, v, "no such key: nothing is scaled where the rope_type is \"default\"");
    }
    json_object_foreach((json_t *)p, key, v) {
        struct show s;

        snprintf(at, sizeof at, "rope_parameters.%s", show_str(&s, key));
        if (r == 0 && strcmp(key, "rope_theta") == 0)
            r = theta_of(c, at, v, &cfg->rope_theta);
        else if (r == 0 && strcmp(key, "partial_rotary_factor") == 0 && json_number_value(v) != 1)
            r = cread_refuse(c, -ENOTSUP, at, v, "1 or no such key: qk_rope_head_dim numbers are turned");
        else if (r == 0 && strcmp(key, "rope_theta") != 0 && strcmp(key, "partial_rotary_factor") != 0 &&
                 strcmp(key, "rope_type") != 0 && strcmp(key, "type") != 0)
            r = cread_refuse(c, -ENOTSUP, at, v, "no such key: it may change the angles and glmd does not know it");
    }
    if (r == 0 && theta)
        r = theta_of(c, "rope_theta", theta, &cfg->rope_theta);
    if (r == 0 && cfg->rope_theta == 0)
        r = cread_missing(c, "rope_parameters.rope_theta", "a number above 1");
    if (r == 0 && cfg->qk_rope_head_dim % 2)
        r = cread_refuse(c, -EINVAL, "qk_rope_head_dim", json_object_get(c->obj, "qk_rope_head_dim"),
                         "an even number: the numbers turn in pairs");
    if (r == 0 && cfg->qk_rope_head_dim > cfg->index_head_dim)
        r = cread_refuse(c, -EINVAL, "qk_rope_head_dim", json_object_get(c->obj, "qk_rope_head_dim"),
                         "at most index_head_dim (%u)", cfg->index_head_dim);
    return r;
}

/* ---- which layers choose for themselves ---- */

static int count_of(const struct cread *c, const char *key, uint32_t lo, uint32_t *ret) {
    const json_t *v = present(c->obj, key);

    if (!v)
        return cread_missing(c, key, "a number of layers, or the list indexer_types");
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > KERN_MAX_LAYERS)
        return cread_refuse(c, -EINVAL, key, v, "an integer from %u to %d", lo, KERN_MAX_LAYERS);
    *ret = (uint32_t)json_integer_value(v);
    return 0;
}

/* Layer i is full when it is one of the first, or a multiple of freq behind the last of these. */
static int by_frequency(const struct cread *c, const struct model_config *cfg, bool shared[KERN_MAX_LAYERS]) {
    uint32_t freq, offset;
    int r = count_of(c, "index_topk_freq", 1, &freq);

    if (r == 0)
        r = count_of(c, "index_skip_topk_offset", 1, &offset);
    if (r == 0 && FAULT(config53_offset_late))
        offset++;
    for (uint32_t i = 0; i < cfg->num_hidden_layers && r == 0; i++)
        shared[i] = i >= offset && (i - offset + 1) % freq != 0;
    return r;
}

static int by_pattern(const struct cread *c, const struct model_config *cfg, bool shared[KERN_MAX_LAYERS]) {
    const json_t *v = present(c->obj, "index_topk_pattern");
    const char *s = json_string_value(v);

    if (!s || strlen(s) != cfg->num_hidden_layers || strspn(s, "FS") != cfg->num_hidden_layers || s[0] != 'F')
        return cread_refuse(c, -EINVAL, "index_topk_pattern", v, "null, or F or S for each of %u layers, F first",
                            cfg->num_hidden_layers);
    for (uint32_t i = 0; i < cfg->num_hidden_layers; i++)
        shared[i] = s[i] == 'S';
    return 0;
}

/* What key says is the layers' now, or must be what `said` has said of them. */
static int take_sharing(const struct cread *c, const char *key, const bool *shared, const char *said,
                        struct model_config *cfg) {
    for (uint32_t i = 0; i < cfg->num_hidden_layers; i++) {
        if (said && cfg->layer[i].index_shared != shared[i])
            return cread_refuse(c, -EINVAL, key, json_object_get(c->obj, key), "layer %u %s, as %s says", i,
                                shared[i] ? "full" : "shared", said);
        cfg->layer[i].index_shared = shared[i];
    }
    return 0;
}

/* The file says it up to three times; where it does, it must say the same. */
static int read_sharing(const struct cread *c, struct model_config *cfg) {
    const bool list = present(c->obj, "indexer_types"), pattern = present(c->obj, "index_topk_pattern");
    const bool freq = present(c->obj, "index_topk_freq") || present(c->obj, "index_skip_topk_offset");
    bool shared[KERN_MAX_LAYERS] = {false};
    const char *said = list ? "indexer_types" : NULL;
    int r = list ? cread_indexer_types(c, cfg) : 0;

    if (r == 0 && pattern && (r = by_pattern(c, cfg, shared)) == 0)
        r = take_sharing(c, "index_topk_pattern", shared, said, cfg);
    said = said ? said : pattern ? "index_topk_pattern" : NULL;
    if (r == 0 && (freq || !said) && (r = by_frequency(c, cfg, shared)) == 0)
        r = take_sharing(c, "index_topk_freq", shared, FAULT(config53_pattern_wins) && pattern ? NULL : said, cfg);
    return r;
}

/* ---- all of it ---- */

static int read_layers(const struct cread *c, struct model_config *cfg) {
    const json_t *types = present(c->obj, "layer_types");
    int r = types ? cread_list(c, "layer_types", cfg->num_hidden_layers, "num_hidden_layers", &types) : 0;

    for (uint32_t i = 0; i < cfg->num_hidden_layers && r == 0; i++) {
        const json_t *t = json_array_get(types, i);
        const char *s = json_string_value(t);

        cfg->layer[i].mix = MODEL_MIX_DSA;
        cfg->layer[i].mlp = i < cfg->first_k_dense_replace ? MODEL_MLP_DENSE : MODEL_MLP_SPARSE;
        if (types && (!s || strcmp(s, "deepseek_sparse_attention") != 0))
            r = cread_refuse(c, -ENOTSUP, "layer_types", t, "\"deepseek_sparse_attention\" for each layer");
    }
    if (r == 0 && present(c->obj, "mlp_layer_types"))
        r = cread_mlp_types(c, cfg);
    if (r == 0)
        r = read_sharing(c, cfg);
    return r;
}

int cread_glm53(const struct cread *c, struct model_config *cfg) {
    int r = cread_fields(c, GLM53, N(GLM53), cfg);

    if (r < 0)
        return r;
    cfg->index_kpool = 1;
    cfg->hc_mult = 1;
    if (!present(c->obj, "qk_head_dim"))
        cfg->qk_head_dim = cfg->qk_nope_head_dim + cfg->qk_rope_head_dim;
    cfg->image_token_id = cfg->video_token_id = MODEL_NO_ID;
    cfg->image_start_token_id = cfg->image_end_token_id = MODEL_NO_ID;
    cfg->video_start_token_id = cfg->video_end_token_id = MODEL_NO_ID;
    r = cread_quantization(c);
    if (r == 0)
        r = cread_no_bos(c);
    if (r == 0)
        r = cread_numbers(c, cfg);
    if (r == 0)
        r = read_rope(c, cfg);
    if (r == 0)
        r = cread_eos(c, cfg->vocab_size, cfg->eos_token_id, &cfg->n_eos);
    if (r == 0)
        r = cread_unknown(c, (const struct cread_field *const[]){GLM53}, (const size_t[]){N(GLM53)}, 1, OTHER);
    if (r == 0)
        r = cread_torch_dtype(c);
    if (r == 0)
        r = read_layers(c, cfg);
    return r;
}
