/* SPDX-License-Identifier: MIT */
/* synthetic.c: shapes and formats of a model without files. Its numbers: synthfill.c. */
#include "synthetic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "show.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))
#define SHAPES "glm-5.3-flash, glm-5.3, nano"
#define FORMATS "bf16, fp8, int8, int4, mxfp8, mxfp4, nvfp4, exl3-1 to exl3-8"

/* What the two families share, then each shape: config.json of the published checkpoints, as numbers. */
#define FAMILY                                                                                                         \
    .num_nextn_predict_layers = 1, .first_k_dense_replace = 3, .n_shared_experts = 1, .n_group = 1, .topk_group = 1,   \
    .moe_layer_freq = 1, .routed_scaling_factor = 2.5, .index_share_for_mtp_iteration = true, .rms_norm_eps = 1e-5,    \
    .image_token_id = MODEL_NO_ID, .video_token_id = MODEL_NO_ID, .image_start_token_id = MODEL_NO_ID,                 \
    .image_end_token_id = MODEL_NO_ID, .video_start_token_id = MODEL_NO_ID, .video_end_token_id = MODEL_NO_ID
#define FLASH                                                                                                          \
    .family = MODEL_GLM53_FLASH, .swiglu_limit = 10.0, .kv_lora_rank = 512, .qk_nope_head_dim = 256,                   \
    .qk_head_dim = 256, .v_head_dim = 256, .index_head_dim = 128, .index_kpool = 4, .linear_head_dim = 128,            \
    .linear_conv_kernel = 4, .gate_lower_bound = -5.0, .hc_mult = 4, .hc_sinkhorn_iters = 20, .hc_eps = 1e-6
#define PUBLISHED_IDS                                                                                                  \
    .vocab_size = 154880, .max_position_embeddings = 1048576, .pad_token_id = 154820,                                  \
    .eos_token_id = {154820, 154827, 154829}, .n_eos = 3

static const struct {
    const char *word;
    struct model_config cfg;
} SHAPE[] = {
    {"glm-5.3-flash",
     {FAMILY, FLASH, PUBLISHED_IDS, .hidden_size = 4096, .num_hidden_layers = 45, .intermediate_size = 12288,
      .moe_intermediate_size = 2048, .n_routed_experts = 288, .num_experts_per_tok = 8, .num_attention_heads = 64,
      .num_key_value_heads = 64, .q_lora_rank = 1536, .index_n_heads = 32, .index_topk = 2048, .linear_num_heads = 64}},
    {"glm-5.3",
     {FAMILY, PUBLISHED_IDS, .family = MODEL_GLM53, .hidden_size = 6144, .num_hidden_layers = 78,
      .intermediate_size = 12288, .moe_intermediate_size = 2048, .n_routed_experts = 256, .num_experts_per_tok = 8,
      .num_attention_heads = 64, .num_key_value_heads = 64, .q_lora_rank = 2048, .kv_lora_rank = 512,
      .qk_nope_head_dim = 192, .qk_rope_head_dim = 64, .qk_head_dim = 256, .v_head_dim = 256, .rope_theta = 8e6,
      .index_n_heads = 32, .index_head_dim = 128, .index_topk = 2048, .index_kpool = 1, .hc_mult = 1}},
    {"nano",
     {FAMILY, FLASH, .vocab_size = 4096, .hidden_size = 256, .num_hidden_layers = 9, .intermediate_size = 384,
      .moe_intermediate_size = 128, .n_routed_experts = 8, .num_experts_per_tok = 2, .num_attention_heads = 4,
      .num_key_value_heads = 4, .q_lora_rank = 128, .index_n_heads = 4, .index_topk = 128, .linear_num_heads = 4,
      .max_position_embeddings = 131072, .pad_token_id = 4060, .eos_token_id = {4060, 4067, 4069}, .n_eos = 3}},
};

const char *model_synthetic_name(const struct model_config *cfg) {
    for (size_t i = 0; i < N(SHAPE); i++)
        if (SHAPE[i].cfg.hidden_size == cfg->hidden_size)
            return SHAPE[i].word;
    return "";
}

/* Flash: three linear layers, then a sparse one. GLM-5.3: the first three and every fourth from the seventh on have an
 * indexer of their own. */
static void lay_layers(struct model_config *c) {
    for (uint32_t i = 0; i < c->num_hidden_layers; i++) {
        struct model_layer *l = &c->layer[i];

        l->mlp = i < c->first_k_dense_replace ? MODEL_MLP_DENSE : MODEL_MLP_SPARSE;
        l->mix = c->family == MODEL_GLM53 || i % 4 == 3 ? MODEL_MIX_DSA : MODEL_MIX_KDA;
        l->index_shared = c->family == MODEL_GLM53 && i > 2 && i % 4 != 2;
    }
}

/* ---- the words ---- */

static const struct {
    const char *word;
    struct kern_store store;
} FORMAT[] = {
    {"bf16", {.format = KERN_BF16}},
    {"fp8", {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128}},
    {"int8", {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128}},
    {"int4", {.format = KERN_INT4, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128}},
    {"mxfp8", {.format = KERN_MXFP8, .scale = KERN_SCALE_E8M0, .block_rows = 1, .block_cols = 32}},
    {"mxfp4", {.format = KERN_MXFP4, .scale = KERN_SCALE_E8M0, .block_rows = 1, .block_cols = 32}},
    {"nvfp4", {.format = KERN_NVFP4, .scale = KERN_SCALE_E4M3, .block_rows = 1, .block_cols = 16}},
};

static int find_format(const char *key, const char *text, size_t n, struct kern_store *ret, struct xerr *e) {
    struct show s;

    if (n == 6 && memcmp(text, "exl3-", 5) == 0 && text[5] >= '1' && text[5] <= '8') {
        *ret = (struct kern_store){
            .format = KERN_EXL3, .bits = (uint8_t)(text[5] - '0'), .codebook = KERN_CODEBOOK_MCG};
        return 0;
    }
    for (size_t i = 0; i < N(FORMAT); i++)
        if (strlen(FORMAT[i].word) == n && memcmp(FORMAT[i].word, text, n) == 0) {
            *ret = FORMAT[i].store;
            return 0;
        }
    return xerr_set(e, -EINVAL, "model synthetic: %s: found \"%s\", expected one of: " FORMATS, key,
                    show_name(&s, text, n));
}

static int find_shape(const char *text, size_t n, struct model_config *ret, struct xerr *e) {
    struct show s;

    for (size_t i = 0; i < N(SHAPE); i++)
        if (strlen(SHAPE[i].word) == n && memcmp(SHAPE[i].word, text, n) == 0) {
            *ret = SHAPE[i].cfg;
            return 0;
        }
    return xerr_set(e, -EINVAL, "model synthetic: found shape \"%s\", expected one of: " SHAPES,
                    show_name(&s, text, n));
}

struct words {
    struct kern_store experts, dense;
    uint32_t layers; /* 0: all */
};

static int set_layers(const char *text, size_t n, const struct model_config *c, struct words *w, struct xerr *e) {
    struct show s;
    uint32_t v = 0;

    for (size_t i = 0; i < n && v <= c->num_hidden_layers; i++)
        v = text[i] >= '0' && text[i] <= '9' ? v * 10 + (uint32_t)(text[i] - '0') : UINT32_MAX;
    if (!v || v > c->num_hidden_layers)
        return xerr_set(e, -EINVAL, "model synthetic: layers: found \"%s\", expected 1 to %u", show_name(&s, text, n),
                        c->num_hidden_layers);
    w->layers = v;
    return 0;
}

static int set_word(const char *text, size_t n, const struct model_config *c, struct words *w, struct xerr *e) {
    const char *eq = memchr(text, '=', n);
    size_t key = eq ? (size_t)(eq - text) : n, value = n - key - (eq ? 1 : 0);
    struct show s;

    if (eq && key == 7 && memcmp(text, "experts", 7) == 0)
        return find_format("experts", eq + 1, value, &w->experts, e);
    if (eq && key == 5 && memcmp(text, "dense", 5) == 0)
        return find_format("dense", eq + 1, value, &w->dense, e);
    if (eq && key == 6 && memcmp(text, "layers", 6) == 0)
        return set_layers(eq + 1, value, c, w, e);
    return xerr_set(e, -EINVAL, "model synthetic: found \"%s\", expected experts=FORMAT, dense=FORMAT or layers=N",
                    show_name(&s, text, n));
}

/* ---- the tensors ---- */

static struct kern_store store_of(uint32_t part, const struct words *w) {
    switch (part) {
    case KERN_EXP_GATE:
    case KERN_EXP_UP:
    case KERN_EXP_DOWN:
        return w->experts;
    case KERN_KDA_Q:
    case KERN_KDA_K:
    case KERN_KDA_V:
    case KERN_KDA_O:
    case KERN_MLA_QB:
    case KERN_MLA_O:
    case KERN_MLP_GATE:
    case KERN_MLP_UP:
    case KERN_MLP_DOWN:
    case KERN_SH_GATE:
    case KERN_SH_UP:
    case KERN_SH_DOWN:
    case KERN_HEAD:
        return w->dense;
    default:
        return kern_store_plain(KERN_BF16);
    }
}

static int add(struct model_directory *d, const struct kern_model_desc *m, struct kern_tensor_id id,
               const struct words *w, struct xerr *e) {
    struct model_tensor t = {.id = id};
    char name[40];

    if (kern_part_shape(m, &id, &t.k.rows, &t.k.cols, &t.is_matrix) < 0)
        return 0; /* no tensor of this layer */
    t.k.store = t.is_matrix ? store_of(id.part, w) : kern_store_plain(KERN_F32);
    if (kern_store_bytes(&t.k.store, t.k.rows, t.k.cols, &t.bytes) < 0)
        return xerr_set(e, -EINVAL, "model synthetic: %s of layer %u is %llu x %llu, which %s cannot hold",
                        kern_part_name(id.part), id.layer, (unsigned long long)t.k.rows, (unsigned long long)t.k.cols,
                        kern_store_name(&t.k.store, name, sizeof name));
    d->tensor[d->n_tensors++] = t;
    d->resident += t.bytes;
    d->bytes += t.bytes;
    return 0;
}

static bool is_expert(uint32_t part) {
    return part == KERN_EXP_GATE || part == KERN_EXP_UP || part == KERN_EXP_DOWN;
}

static int add_all(struct model_directory *d, const struct kern_model_desc *m, const struct words *w, struct xerr *e) {
    int r = 0;

    for (uint32_t l = 0; l < m->n_layers + m->n_draft; l++)
        for (uint32_t part = 1; part < KERN_PART_END && r == 0; part++)
            for (uint32_t x = 0; x < (is_expert(part) ? m->n_experts : 1) && r == 0; x++)
                r = add(d, m, (struct kern_tensor_id){.part = part, .layer = l, .expert = x}, w, e);
    return r;
}

int model_synthetic_open(const char *spec, struct model_config *ret_cfg, struct model_directory *ret, struct xerr *e) {
    struct words w = {0};
    struct model_directory d = {.has_draft = true};
    struct model_config cfg;
    struct kern_model_desc m;
    size_t n = strcspn(spec, ",");
    int r = find_shape(spec, n, &cfg, e);

    w.experts = FORMAT[N(FORMAT) - 1].store;
    w.dense = FORMAT[2].store;
    for (const char *p = spec + n; r == 0 && *p; p += n) {
        n = strcspn(++p, ",");
        r = set_word(p, n, &cfg, &w, e);
    }
    if (r < 0)
        return r;
    lay_layers(&cfg);
    cfg.num_hidden_layers = w.layers ? w.layers : cfg.num_hidden_layers;
    if ((r = model_config_describe(&cfg, cfg.vocab_size, true, &m, e)) < 0)
        return r;
    d.tensor = calloc(kern_part_count(&m), sizeof *d.tensor);
    if (!d.tensor)
        return xerr_set(e, -ENOMEM, "model synthetic: no memory to describe its tensors");
    r = add_all(&d, &m, &w, e);
    if (r < 0) {
        free(d.tensor);
        return r;
    }
    *ret = d;
    *ret_cfg = cfg;
    return 0;
}
