/* SPDX-License-Identifier: MIT */
/* config.json and generation_config.json -> struct model_config. Start-up only, on the loading thread; never
 * logs. The tables below are the whole list of what is read; a key that is not in them and looks like part
 * of the computation is refused (configread.c). */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "configread.h"
#include "ggufconfig.h"

enum {
    CONFIG_MAX_BYTES = 4 << 20,
};

/* Upper bounds are far above any member of the family; they keep every product of two of them in 64 bits. */
static const struct cread_field TEXT[] = {
    WORD(model_type, "glm5_next_text"),
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
    WORD(moe_router_dtype, "float32"),
    REAL(swiglu_limit, 1e-3, 1e6),
    WORD(hidden_act, "silu"),
    U32(num_attention_heads, 1, 1 << 10),
    U32(num_key_value_heads, 1, 1 << 10),
    U32(q_lora_rank, 1, 1 << 16),
    U32(kv_lora_rank, 1, 1 << 16),
    U32(qk_nope_head_dim, 1, 1 << 12),
    U32(qk_rope_head_dim, 0, 0),
    U32(qk_head_dim, 1, 1 << 12),
    U32(v_head_dim, 1, 1 << 12),
    /* The reference takes its RoPE width from here. */
    U32(head_dim, 0, 0),
    IS_TRUE(mla_use_nope),
    IS_FALSE(attention_bias),
    U32(index_n_heads, 1, 1 << 10),
    U32(index_head_dim, 1, 1 << 12),
    U32(index_topk, 1, 1 << 20),
    U32(index_kpool, 2, KERN_MAX_KPOOL),
    IS_TRUE(index_kpool_compress),
    IS_TRUE(index_kpool_always_select_tail),
    BOOL(index_share_for_mtp_iteration),
    IS_TRUE(mhc),
    U32(hc_mult, 1, KERN_MAX_HC),
    U32(hc_sinkhorn_iters, 1, 1000),
    REAL(hc_eps, 1e-12, 1e-2),
    REAL(rms_norm_eps, 1e-12, 1e-2),
    U32(max_position_embeddings, 1, 1 << 27),
    IS_FALSE(tie_word_embeddings),
    U32(pad_token_id, 0, (1 << 21) - 1),
    WORD(dtype, "bfloat16"),
    /* With a RoPE width of 0 these rotate nothing. */
    INERT(indexer_rope_interleave),
    INERT(rope_interleave),
    INERT(rope_theta),
    INERT(partial_rotary_factor),
};

static const struct cread_field LINEAR[] = {
    U32_AS(num_heads, linear_num_heads, 1, 1 << 10),
    U32_AS(head_dim, linear_head_dim, 1, 1 << 12),
    U32_AS(short_conv_kernel_size, linear_conv_kernel, 2, 16),
    /* Absent, another gate (softplus) would be meant. Below -5, sixteen tokens of decay overflow a float. */
    REAL(gate_lower_bound, -5.0, -1e-3),
};

static const struct cread_field TOP[] = {
    WORD(model_type, "glm5_next"),
};

#define N(a) (sizeof(a) / sizeof *(a))

/* Keys of text_config that are read, but not by the table. */
static const char *const TEXT_OTHER[] = {"layer_types",  "mlp_layer_types",     "indexer_types",
                                         "eos_token_id", "linear_attn_config",  "rope_parameters",
                                         "rope_scaling", "quantization_config", NULL};

static bool is_text_key(const char *key) {
    for (size_t i = 0; i < N(TEXT); i++)
        if (strcmp(TEXT[i].key, key) == 0)
            return true;
    for (size_t i = 0; TEXT_OTHER[i]; i++)
        if (strcmp(TEXT_OTHER[i], key) == 0 && strcmp(key, "eos_token_id") != 0 &&
            strcmp(key, "quantization_config") != 0)
            return true;
    return false;
}

static int same_eos(const struct cread *c, const struct model_config *cfg) {
    uint32_t ids[MODEL_MAX_EOS], n;
    const json_t *v = json_object_get(c->obj, "eos_token_id");
    int r = cread_eos(c, cfg->vocab_size, ids, &n);

    if (r < 0)
        return r;
    if (n != cfg->n_eos || memcmp(ids, cfg->eos_token_id, n * sizeof *ids) != 0)
        return cread_refuse(c, -EINVAL, "eos_token_id", v, "the %u ids of %seos_token_id in config.json", cfg->n_eos,
                            model_text_key(cfg));
    return 0;
}

static int same_pad(const struct cread *c, const struct model_config *cfg) {
    const json_t *v = json_object_get(c->obj, "pad_token_id");

    if (v && (!json_is_integer(v) || json_integer_value(v) != (json_int_t)cfg->pad_token_id))
        return cread_refuse(c, -EINVAL, "pad_token_id", v, "%u, as %spad_token_id in config.json", cfg->pad_token_id,
                            model_text_key(cfg));
    return 0;
}

/* The reference looks for another name than the files have, and falls back to a default: both must agree. */
static int same_bound(const struct cread *c, const struct model_config *cfg) {
    const json_t *v = json_object_get(c->obj, "lower_bound");

    if (v && !json_is_null(v) && !(json_is_number(v) && json_number_value(v) == cfg->gate_lower_bound))
        return cread_refuse(c, -EINVAL, "lower_bound", v, "no such key, or %g as gate_lower_bound",
                            cfg->gate_lower_bound);
    return 0;
}

static bool same_value(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* What the top level repeats of text_config, it must repeat: which of the two counts differs between readers.
 */
static int same_repeats(const struct cread *top, const json_t *text) {
    void *it;

    for (it = json_object_iter((json_t *)top->obj); it; it = json_object_iter_next((json_t *)top->obj, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *v = json_object_iter_value(it), *t = json_object_get(text, key);
        bool read = is_text_key(key) && strcmp(key, "model_type") != 0;

        if (read && !json_is_null(v) && !(t && same_value(v, t)))
            return cread_refuse(top, -EINVAL, key, v, "no such key here, or the value of text_config.%s",
                                key);
    }
    return 0;
}

static int read_text(struct cread *c, const char *file, const json_t *root, struct model_config *cfg) {
    static const char *const LINEAR_OTHER[] = {"kda_layers", "full_attn_layers", "lower_bound", NULL};
    struct cread top = {file, "", root, c->e};
    struct cread linear = {file, "text_config.linear_attn_config.", NULL, c->e};
    int r;

    c->obj = json_object_get(root, "text_config");
    if (!c->obj)
        return cread_missing(&top, "text_config", "an object");
    if (!json_is_object(c->obj))
        return cread_refuse(&top, -EINVAL, "text_config", c->obj, "an object");
    r = cread_quantization(c);
    if (r == 0)
        r = cread_fields(c, TEXT, N(TEXT), cfg);
    if (r == 0)
        r = cread_no_bos(c);
    if (r == 0)
        r = cread_numbers(c, cfg);
    if (r == 0)
        r = cread_rope_type(c, "rope_parameters", "null or a rope_type of \"default\": this model has no RoPE");
    if (r == 0)
        r = cread_rope_type(c, "rope_scaling", "null or a rope_type of \"default\": this model has no RoPE");
    if (r == 0)
        r = cread_eos(c, cfg->vocab_size, cfg->eos_token_id, &cfg->n_eos);
    if (r == 0)
        r = cread_unknown(c, (const struct cread_field *const[]){TEXT}, (const size_t[]){N(TEXT)}, 1,
                          TEXT_OTHER);
    if (r == 0)
        r = cread_torch_dtype(c);
    if (r < 0)
        return r;

    linear.obj = json_object_get(c->obj, "linear_attn_config");
    if (!linear.obj)
        return cread_missing(c, "linear_attn_config", "an object");
    if (!json_is_object(linear.obj))
        return cread_refuse(c, -EINVAL, "linear_attn_config", linear.obj, "an object");
    r = cread_fields(&linear, LINEAR, N(LINEAR), cfg);
    if (r == 0)
        r = same_bound(&linear, cfg);
    if (r == 0)
        r = cread_unknown(&linear, (const struct cread_field *const[]){LINEAR}, (const size_t[]){N(LINEAR)},
                          1, LINEAR_OTHER);
    if (r == 0)
        r = cread_layers(c, &linear, cfg);
    return r;
}

static int optional_id(const struct cread *c, const char *key, uint32_t vocab, int64_t *ret) {
    const json_t *v = json_object_get(c->obj, key);

    *ret = MODEL_NO_ID;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)vocab)
        return cread_refuse(c, -EINVAL, key, v, "an id below vocab_size (%u)", vocab);
    *ret = json_integer_value(v);
    return 0;
}

static int read_ids(const struct cread *c, struct model_config *cfg) {
    const struct {
        const char *key;
        int64_t *out;
    } ids[] = {
        {"image_token_id", &cfg->image_token_id},
        {"video_token_id", &cfg->video_token_id},
        {"image_start_token_id", &cfg->image_start_token_id},
        {"image_end_token_id", &cfg->image_end_token_id},
        {"video_start_token_id", &cfg->video_start_token_id},
        {"video_end_token_id", &cfg->video_end_token_id},
    };
    int r = 0;

    for (size_t i = 0; i < N(ids) && r == 0; i++)
        r = optional_id(c, ids[i].key, cfg->vocab_size, ids[i].out);
    return r;
}

static int read_family(const struct cread *c, enum model_family *ret) {
    static const char WANTED[] = "[\"Glm5NextForConditionalGeneration\"] or [\"GlmMoeDsaForCausalLM\"]";
    const json_t *v = json_object_get(c->obj, "architectures");
    const json_t *a = json_array_get(v, 0);
    const char *word = json_array_size(v) == 1 ? json_string_value(a) : NULL;

    if (!v)
        return cread_missing(c, "architectures", WANTED);
    if (word && strcmp(word, "Glm5NextForConditionalGeneration") == 0)
        *ret = MODEL_GLM53_FLASH;
    else if (word && strcmp(word, "GlmMoeDsaForCausalLM") == 0)
        *ret = MODEL_GLM53;
    else
        return cread_refuse(c, json_is_array(v) ? -ENOTSUP : -EINVAL, "architectures", a ? a : v, "%s", WANTED);
    return 0;
}

/* Values that may be repeated at the top level must repeat, not correct. */
static int check_top(const struct cread *c, struct model_config *cfg) {
    const json_t *tie = json_object_get(c->obj, "tie_word_embeddings");
    const json_t *dtype = json_object_get(c->obj, "dtype");
    const json_t *vision = json_object_get(c->obj, "vision_config");
    int r = cread_quantization(c);

    if (r == 0)
        r = cread_no_bos(c);
    if (r == 0 && json_object_get(c->obj, "eos_token_id"))
        r = same_eos(c, cfg);
    if (r == 0)
        r = same_pad(c, cfg);
    if (r < 0)
        return r;
    if (tie && !json_is_false(tie))
        return cread_refuse(c, json_is_true(tie) ? -ENOTSUP : -EINVAL, "tie_word_embeddings", tie, "false");
    if (dtype && (!json_is_string(dtype) || strcmp(json_string_value(dtype), "bfloat16") != 0))
        return cread_refuse(c, -EINVAL, "dtype", dtype, "\"bfloat16\", as in text_config");
    if (vision && !json_is_null(vision) && !json_is_object(vision))
        return cread_refuse(c, -EINVAL, "vision_config", vision, "an object");
    cfg->has_vision = json_is_object(vision);
    r = read_ids(c, cfg);
    if (r == 0)
        r = cread_torch_dtype(c);
    if (r == 0)
        r = same_repeats(c, json_object_get(c->obj, "text_config"));
    if (r == 0)
        r = cread_unknown(c, (const struct cread_field *const[]){TOP, TEXT},
                          (const size_t[]){N(TOP), N(TEXT)}, 2, TEXT_OTHER);
    return r;
}

static int join(char path[PATH_MAX], const char *dir, const char *name, struct xerr *e) {
    int n = snprintf(path, PATH_MAX, "%s/%s", dir, name);

    return n < 0 || n >= PATH_MAX ? xerr_set(e, -ENAMETOOLONG, "model directory: the path is too long") : 0;
}

static int read_root(const json_t *root, const char *shown, struct model_config *ret, struct xerr *e) {
    struct cread top = {shown, "", root, e}, text = {shown, "text_config.", NULL, e};
    struct model_config cfg;
    int r;

    memset(&cfg, 0, sizeof cfg);
    r = read_family(&top, &cfg.family);
    if (r == 0 && cfg.family == MODEL_GLM53) {
        r = cread_glm53(&top, &cfg);
        if (r == 0)
            *ret = cfg;
        return r;
    }
    if (r == 0)
        r = cread_fields(&top, TOP, N(TOP), &cfg);
    if (r == 0)
        r = read_text(&text, shown, root, &cfg);
    if (r == 0)
        r = check_top(&top, &cfg);
    if (r == 0)
        *ret = cfg;
    return r;
}

/* A GGUF model brings its configuration; a config.json beside it must say the same. */
static int read_gguf(const json_t *metadata, const struct model_index *x, const char *path, struct model_config *ret,
                     struct xerr *e) {
    struct model_config cfg;
    json_t *root = NULL;
    struct show p, g;
    int r = 0;

    if (access(path, F_OK) == 0 || errno != ENOENT) {
        r = modeljson_load(path, CONFIG_MAX_BYTES, &root, e);
        if (r == 0)
            r = model_gguf_same(metadata, root, show_path(&p, path), e);
        json_decref(root);
    }
    if (r == 0)
        r = read_root(metadata, show_path(&g, st_path(model_index_file(x, 0))), &cfg, e);
    if (r < 0)
        return r;
    model_gguf_tensors(x, &cfg);
    *ret = cfg;
    return 0;
}

int model_config_read(const char *dir, struct model_config *ret, struct xerr *e) {
    struct model_index *x = NULL;
    char path[PATH_MAX];
    struct show p;
    json_t *root;
    int r = join(path, dir, "config.json", e);

    if (r < 0)
        return r;
    r = model_gguf_config(dir, &root, &x, e);
    if (r < 0)
        return r;
    if (r > 0) {
        r = read_gguf(root, x, path, ret, e);
        model_index_close(x);
    } else {
        r = modeljson_load(path, CONFIG_MAX_BYTES, &root, e);
        if (r < 0)
            return r;
        r = read_root(root, show_path(&p, path), ret, e);
    }
    json_decref(root);
    return r;
}

static int optional_real(const struct cread *c, const char *key, double lo, double hi, bool *has,
                         double *ret) {
    const json_t *v = json_object_get(c->obj, key);
    double d = json_number_value(v);

    *has = v && !json_is_null(v);
    if (!*has)
        return 0;
    if (!json_is_number(v) || !(d >= lo && d <= hi))
        return cread_refuse(c, -EINVAL, key, v, "a number from %g to %g", lo, hi);
    *ret = d;
    return 0;
}

int model_generation_read(const char *dir, const struct model_config *cfg, struct model_generation *ret,
                          struct xerr *e) {
    char path[PATH_MAX];
    struct show p;
    struct model_generation g;
    struct cread c = {NULL, "", NULL, e};
    double top_k = 0;
    const json_t *v;
    json_t *root;
    int r = join(path, dir, "generation_config.json", e);

    if (r < 0)
        return r;
    memset(&g, 0, sizeof g);
    if (cfg->from_gguf && access(path, F_OK) < 0 && errno == ENOENT) { /* nothing is suggested */
        *ret = g;
        return 0;
    }
    r = modeljson_load(path, CONFIG_MAX_BYTES, &root, e);
    if (r < 0)
        return r;
    c.file = show_path(&p, path);
    c.obj = root;
    r = same_eos(&c, cfg);
    if (r == 0)
        r = same_pad(&c, cfg);
    if (r == 0)
        r = cread_no_bos(&c);
    v = json_object_get(root, "do_sample");
    g.has_do_sample = v && !json_is_null(v);
    g.do_sample = json_is_true(v);
    if (r == 0 && g.has_do_sample && !json_is_boolean(v))
        r = cread_refuse(&c, -EINVAL, "do_sample", v, "true or false");
    if (r == 0)
        r = optional_real(&c, "temperature", 0, 100, &g.has_temperature, &g.temperature);
    if (r == 0)
        r = optional_real(&c, "top_p", 1e-9, 1, &g.has_top_p, &g.top_p);
    if (r == 0)
        r = optional_real(&c, "min_p", 0, 1, &g.has_min_p, &g.min_p);
    if (r == 0)
        r = optional_real(&c, "repetition_penalty", 1e-3, 100, &g.has_repetition_penalty,
                          &g.repetition_penalty);
    if (r == 0)
        r = optional_real(&c, "top_k", 0, cfg->vocab_size, &g.has_top_k, &top_k);
    v = json_object_get(root, "top_k");
    if (r == 0 && g.has_top_k && !json_is_integer(v))
        r = cread_refuse(&c, -EINVAL, "top_k", v, "an integer");
    g.top_k = (uint32_t)top_k;
    json_decref(root);
    if (r == 0)
        *ret = g;
    return r;
}

static uint8_t index_of(const struct model_layer *l) {
    if (l->mix != MODEL_MIX_DSA)
        return KERN_INDEX_NONE;
    return l->index_shared ? KERN_INDEX_SHARED : KERN_INDEX_FULL;
}

int model_config_describe(const struct model_config *cfg, uint32_t vocab_tokens, bool with_draft,
                          struct kern_model_desc *ret, struct xerr *e) {
    struct kern_model_desc d;

    if (vocab_tokens == 0 || vocab_tokens > cfg->vocab_size)
        return xerr_set(
            e, -EINVAL,
            "config.json: %svocab_size: found %u rows, expected at least the tokenizer's %u tokens",
            model_text_key(cfg), cfg->vocab_size, vocab_tokens);
    memset(&d, 0, sizeof d);
    d.vocab_rows = cfg->vocab_size;
    d.vocab_tokens = vocab_tokens;
    d.hidden = cfg->hidden_size;
    d.n_layers = cfg->num_hidden_layers;
    d.n_draft = with_draft ? cfg->num_nextn_predict_layers : 0;
    d.rms_eps = (float)cfg->rms_norm_eps;
    d.dense_width = cfg->intermediate_size;
    d.expert_width = cfg->moe_intermediate_size;
    d.n_experts = cfg->n_routed_experts;
    d.n_top = cfg->num_experts_per_tok;
    d.n_shared = cfg->n_shared_experts;
    d.routed_scale = (float)cfg->routed_scaling_factor;
    d.swiglu_limit = (float)cfg->swiglu_limit;
    d.mla_heads = cfg->num_attention_heads;
    d.q_rank = cfg->q_lora_rank;
    d.kv_rank = cfg->kv_lora_rank;
    d.nope_dim = cfg->qk_nope_head_dim;
    d.rope_dim = cfg->qk_rope_head_dim;
    d.rope_theta = (float)cfg->rope_theta;
    d.v_dim = cfg->v_head_dim;
    d.index_heads = cfg->index_n_heads;
    d.index_dim = cfg->index_head_dim;
    d.index_topk = cfg->index_topk;
    d.index_kpool = cfg->index_kpool;
    d.kda_heads = cfg->linear_num_heads;
    d.kda_dim = cfg->linear_head_dim;
    d.conv_width = cfg->linear_conv_kernel;
    d.gate_bound = (float)cfg->gate_lower_bound;
    d.hc_mult = cfg->hc_mult;
    d.hc_iters = cfg->hc_sinkhorn_iters;
    d.hc_eps = (float)(FAULT(config_swapped_eps) ? cfg->rms_norm_eps : cfg->hc_eps);
    for (uint32_t i = 0; i < d.n_layers; i++) {
        d.layer[i].mix = cfg->layer[i].mix == MODEL_MIX_KDA ? KERN_MIX_KDA : KERN_MIX_MLA;
        d.layer[i].index = index_of(&cfg->layer[i]);
        d.layer[i].resid = cfg->family == MODEL_GLM53 ? KERN_RESID_PLAIN : KERN_RESID_MHC;
        d.layer[i].kvb_split = cfg->layer[i].kvb_split;
        d.layer[i].mlp = cfg->layer[i].mlp == MODEL_MLP_DENSE ? KERN_MLP_DENSE : KERN_MLP_MOE;
    }
    /* The MTP layer has no list entry: sparse attention with its own indexer, experts, plain residuals. */
    for (uint32_t i = d.n_layers; i < d.n_layers + d.n_draft; i++)
        d.layer[i] = (struct kern_layer_desc){
            .mix = KERN_MIX_MLA, .index = KERN_INDEX_FULL, .resid = KERN_RESID_PLAIN, .mlp = KERN_MLP_MOE,
            .kvb_split = cfg->layer[i].kvb_split};
    *ret = d;
    return 0;
}
