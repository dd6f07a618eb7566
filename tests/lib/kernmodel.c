/* SPDX-License-Identifier: MIT */
/* The random model and its plans; see kernmodel.h. Single thread. */
#include "kernmodel.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernstores.h"

/* ---- generator ---- */

uint64_t km_u64(struct km_rng *r) {
    uint64_t z = (r->s += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
uint32_t km_below(struct km_rng *r, uint32_t n) {
    return (uint32_t)((km_u64(r) >> 32) * n >> 32);
}
float km_uniform(struct km_rng *r) {
    return (float)(km_u64(r) >> 40) * 0x1p-24f;
}
float km_normal(struct km_rng *r) {
    double u = ((double)(km_u64(r) >> 12) + 0.5) * 0x1p-52, v = (double)(km_u64(r) >> 12) * 0x1p-52;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

/* ---- description ---- */

static void one_layer(struct kern_layer_desc *l, const char *w, bool draft) {
    ck_assert_msg(strlen(w) >= 2, "layer word \"%s\"", w);
    l->mix = w[0] == 'K' ? KERN_MIX_KDA : KERN_MIX_MLA;
    l->index = w[0] == 'F' ? KERN_INDEX_FULL : w[0] == 'S' ? KERN_INDEX_SHARED : KERN_INDEX_NONE;
    l->resid = draft ? KERN_RESID_PLAIN : KERN_RESID_MHC;
    l->mlp = w[1] == 'd' ? KERN_MLP_DENSE : KERN_MLP_MOE;
    l->kvb_split = w[2] == 's';
}

static uint32_t layers_of(struct kern_layer_desc *to, const char *text, bool draft) {
    char copy[512], *save = NULL;
    uint32_t n = 0;
    ck_assert(strlen(text) < sizeof(copy));
    strcpy(copy, text);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        one_layer(&to[n++], w, draft);
    return n;
}

void km_layers(struct kern_model_desc *m, const char *trunk, const char *draft) {
    memset(m->layer, 0, sizeof(m->layer));
    m->n_layers = layers_of(m->layer, trunk, false);
    m->n_draft = draft ? layers_of(m->layer + m->n_layers, draft, true) : 0;
}

void km_config_small(struct kern_config *cfg) {
    *cfg = (struct kern_config){
        .n_ranks = 1,
        .threads = 2,
        .cache = KERN_CACHE_F32,
        .n_pages = 16,
        .n_slots = 8,
        .max_seqs = 8,
        .max_rows = {64, 512},
        .max_samples = 512,
        .max_context = 512,
        .max_plan_bytes = 1 << 20,
    };
    cfg->model = (struct kern_model_desc){
        .vocab_rows = 221,
        .vocab_tokens = 197,
        .hidden = 60,
        .rms_eps = 1e-5f,
        .dense_width = 77,
        .expert_width = 37,
        .n_experts = 7,
        .n_top = 3,
        .n_shared = 1,
        .routed_scale = 2.5f,
        .swiglu_limit = 0.5f,
        .mla_heads = 3,
        .q_rank = 29,
        .kv_rank = 44,
        .nope_dim = 20,
        .v_dim = 18,
        .index_heads = 3,
        .index_dim = 21,
        .index_topk = 16,
        .index_kpool = 4,
        .kda_heads = 3,
        .kda_dim = 13,
        .conv_width = 4,
        .gate_bound = -5.0f,
        .hc_mult = 4,
        .hc_iters = 20,
        .hc_eps = 1e-6f,
    };
    km_layers(&cfg->model, "Kd Fm Sm Km Fd", "Fm");
}

void km_config_glm53(struct kern_config *cfg) {
    km_config_small(cfg);
    struct kern_model_desc *m = &cfg->model;
    m->swiglu_limit = 0;
    m->rope_dim = 10;
    m->rope_theta = 300;
    m->index_kpool = 1;
    m->hc_mult = 1;
    m->hc_iters = 0;
    m->kda_heads = m->kda_dim = m->conv_width = 0;
    km_layers(m, "Fd Fd Sm Fm Sm Sm", "Fm");
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->layer[i].resid = KERN_RESID_PLAIN;
}

/* ---- weights ---- */

static float bf16(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    u += 0x7fff + ((u >> 16) & 1);
    u &= 0xffff0000u;
    memcpy(&v, &u, 4);
    return v;
}

/* Scales chosen so that no term hides: gates away from saturation, biases that change selections, norms and
 * streams small enough for every epsilon to matter. */
static void scale_of(uint32_t part, uint64_t cols, float *mean, float *dev) {
    *mean = 0;
    *dev = 1.0f / sqrtf((float)cols);
    switch (part) {
    case KERN_EMBED:
        *dev = 0.03f;
        break;
    case KERN_HEAD:
        *dev *= 3;
        break;
    case KERN_FINAL_NORM:
    case KERN_IN_NORM:
    case KERN_POST_NORM:
    case KERN_MLA_QA_NORM:
    case KERN_MLA_KVA_NORM:
    case KERN_KDA_O_NORM:
    case KERN_IDX_KNORM_W:
    case KERN_DRAFT_ENORM:
    case KERN_DRAFT_HNORM:
    case KERN_DRAFT_NORM:
        *mean = 1;
        *dev = 0.25f;
        break;
    case KERN_IDX_KNORM_B:
        *dev = 0.25f;
        break;
    case KERN_HC_ATTN_BASE:
    case KERN_HC_FFN_BASE:
        *dev = 0.7f;
        break;
    case KERN_HC_ATTN_SCALE:
    case KERN_HC_FFN_SCALE:
        *mean = 0.8f;
        *dev = 0.3f;
        break;
    case KERN_KDA_QCONV:
    case KERN_KDA_KCONV:
    case KERN_KDA_VCONV:
        *dev = 0.5f;
        break;
    case KERN_KDA_A_LOG:
        *dev = 0.5f;
        break;
    case KERN_KDA_DT_BIAS:
        *mean = -2;
        *dev = 1.5f;
        break;
    case KERN_IDX_APE:
        *dev = 0.8f;
        break;
    case KERN_IDX_GATE:
        *dev *= 2;
        break;
    case KERN_ROUTER_BIAS:
        *dev = 0.3f;
        break;
    case KERN_MLP_GATE:
    case KERN_EXP_GATE:
    case KERN_SH_GATE:
        *dev *= 1.5f;
        break;
    default:
        break;
    }
}

struct kernmodel *km_new(const struct kern_config *cfg, uint64_t seed) {
    struct kernmodel *m = calloc(1, sizeof(*m));
    ck_assert_ptr_nonnull(m);
    m->cfg = *cfg;
    m->n = kern_part_count(&cfg->model);
    m->weight = calloc(m->n, sizeof(*m->weight));
    ck_assert_ptr_nonnull(m->weight);
    m->piece = calloc(m->n * KERN_PIECES, sizeof(*m->piece));
    ck_assert_ptr_nonnull(m->piece);
    if (cfg->stores) {
        m->stores = malloc(m->n * sizeof(*m->stores));
        ck_assert_ptr_nonnull(m->stores);
        memcpy(m->stores, cfg->stores, m->n * sizeof(*m->stores));
        m->cfg.stores = m->stores;
    }
    struct km_rng rng = {seed};
    for (uint32_t l = 0; l < kern_total_layers(&cfg->model); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (!kern_part_info(&cfg->model, part, l, &info))
                continue;
            float mean, dev;
            scale_of(part, info.cols, &mean, &dev);
            for (uint32_t e = 0; e < info.experts; e++) {
                struct kern_tensor_id id = {.part = part, .layer = l, .expert = e};
                const struct kern_store s = kern_matrix_store(cfg, &id);
                if (info.matrix && s.format != KERN_BF16) {
                    uint8_t **piece = m->piece + kern_part_slot(&cfg->model, &id) * KERN_PIECES;
                    ks_random(&s, info.rows, info.cols, dev, &rng, piece);
                    m->weight[kern_part_slot(&cfg->model, &id)] = ks_numbers(&s, info.rows, info.cols, piece);
                    continue;
                }
                float *w = malloc(info.rows * info.cols * sizeof(float));
                ck_assert_ptr_nonnull(w);
                for (uint64_t i = 0; i < info.rows * info.cols; i++) {
                    float v = mean + dev * km_normal(&rng);
                    w[i] = info.matrix ? bf16(v) : v;
                }
                m->weight[kern_part_slot(&cfg->model, &id)] = w;
            }
        }
    return m;
}

void km_free(struct kernmodel *m) {
    for (uint64_t i = 0; i < m->n; i++)
        free(m->weight[i]);
    for (uint64_t i = 0; i < m->n * KERN_PIECES; i++)
        free(m->piece[i]);
    free(m->piece);
    free(m->stores);
    free(m->weight);
    free(m);
}

const float *km_weight(const struct kernmodel *m, uint32_t part, uint32_t layer, uint32_t expert) {
    struct kern_part_info info;
    if (!kern_part_info(&m->cfg.model, part, layer, &info) || expert >= info.experts)
        return NULL;
    struct kern_tensor_id id = {.part = part, .layer = layer, .expert = expert};
    return m->weight[kern_part_slot(&m->cfg.model, &id)];
}

/* ---- opening ---- */

/* The bytes of one piece as packed: those of the model, or its numbers as BF16 and F32. */
static char *piece_bytes(const struct kernmodel *m, const struct kern_tensor_id *id, const struct kern_part_info *info,
                         const struct kern_store *s, uint64_t *ret_n) {
    const uint64_t slot = kern_part_slot(&m->cfg.model, id);
    struct kern_piece_info p;
    ck_assert_int_eq(kern_store_piece(s, info->rows, info->cols, (enum kern_piece)id->piece, &p), 0);
    *ret_n = p.rows * p.row_bytes;
    char *bytes = malloc(*ret_n + 1);
    ck_assert_ptr_nonnull(bytes);
    if (m->piece[slot * KERN_PIECES + id->piece])
        return memcpy(bytes, m->piece[slot * KERN_PIECES + id->piece], *ret_n);
    for (uint64_t i = 0; *ret_n && i < info->rows * info->cols; i++)
        if (s->format == KERN_BF16)
            memcpy(bytes + 2 * i, (const char *)&m->weight[slot][i] + 2, 2); /* little-endian: the upper half */
        else
            memcpy(bytes + 4 * i, &m->weight[slot][i], 4);
    return bytes;
}

/* One piece in windows: of `most` bytes in order, or, with a generator, of 1 to `most` bytes in random order. */
static void pack_piece(const struct kernmodel *m, struct kern *k, const struct kern_tensor_id *id,
                       const struct kern_part_info *info, uint64_t most, struct km_rng *rng) {
    const struct kern_tensor t = {.store = info->matrix ? kern_matrix_store(&m->cfg, id) : kern_store_plain(KERN_F32),
                                  .rows = info->rows,
                                  .cols = info->cols};
    uint64_t bytes, n = 0;
    char *src = piece_bytes(m, id, info, &t.store, &bytes);
    uint64_t *cut = malloc((bytes + 2) * sizeof(*cut));
    ck_assert_ptr_nonnull(cut);
    for (uint64_t at = 0; at < bytes; at += rng ? 1 + km_below(rng, (uint32_t)most) : most)
        cut[n++] = at;
    cut[n] = bytes;
    uint64_t *order = malloc((n + 1) * sizeof(*order));
    ck_assert_ptr_nonnull(order);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t j = rng ? km_below(rng, (uint32_t)i + 1) : i;
        order[i] = order[j];
        order[j] = i;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = cut[order[i]];
        int r = kern_pack(k, id, &t, at, src + at, cut[order[i] + 1] - at);
        ck_assert_msg(r == 0, "kern_pack: %d %s", r, kern_last_error(k));
    }
    free(order);
    free(cut);
    free(src);
}

static void pack_all(const struct kernmodel *m, struct kern *k, uint64_t most, struct km_rng *rng) {
    for (uint32_t l = 0; l < kern_total_layers(&m->cfg.model); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (!kern_part_info(&m->cfg.model, part, l, &info))
                continue;
            for (uint32_t e = 0; e < info.experts * KERN_PIECES; e++) {
                struct kern_tensor_id id = {
                    .part = part, .layer = l, .expert = e / KERN_PIECES, .piece = e % KERN_PIECES};
                bool big = info.rows * info.cols > 1 << 19;
                if (info.matrix || !id.piece)
                    pack_piece(m, k, &id, &info, big && !rng ? 1 << 16 | 1 : most, rng);
            }
        }
    int r = kern_pack_done(k);
    ck_assert_msg(r == 0, "kern_pack_done: %d %s", r, kern_last_error(k));
}

void km_pack_shuffled(const struct kernmodel *m, struct kern *k, uint64_t most, uint64_t seed) {
    struct km_rng rng = {seed};
    pack_all(m, k, most, &rng);
}

#define OK(call) ck_assert_msg((call) == 0, "%s: %s", #call, kern_last_error(k))

static void half_stages(struct kern *k, uint32_t layer, enum kern_site site) {
    OK(kern_site_in(k, layer, site));
    OK(site == KERN_SITE_ATTN ? kern_mix(k, layer) : kern_mlp(k, layer));
    OK(kern_site_out(k, layer, site));
}

static void capture(struct km_inst *i, uint32_t lane) {
    const struct kern_model_desc *m = &i->cfg.model;
    struct kern *k = i->k;
    OK(kern_capture_begin(k, lane));
    OK(kern_embed(k));
    for (uint32_t l = 0; l < m->n_layers; l++) {
        half_stages(k, l, KERN_SITE_ATTN);
        half_stages(k, l, KERN_SITE_FFN);
    }
    OK(kern_final(k));
    OK(kern_capture_end(k, &i->trunk[lane]));
    OK(kern_capture_begin(k, lane));
    OK(kern_head(k, KERN_SOURCE_TRUNK));
    OK(kern_capture_end(k, &i->head[lane]));
    if (m->n_draft) {
        uint32_t d = m->n_layers;
        OK(kern_capture_begin(k, lane));
        OK(kern_draft_in(k, d));
        half_stages(k, d, KERN_SITE_ATTN);
        half_stages(k, d, KERN_SITE_FFN);
        OK(kern_draft_out(k, d));
        OK(kern_head(k, KERN_SOURCE_DRAFT));
        OK(kern_capture_end(k, &i->draft[lane]));
    }
    OK(kern_capture_begin(k, lane));
    OK(kern_embed(k));
    OK(kern_capture_end(k, &i->embed[lane]));
    OK(kern_capture_begin(k, lane));
    OK(kern_final(k));
    OK(kern_capture_end(k, &i->final[lane]));
    for (uint32_t l = 0; l < m->n_layers; l++)
        for (int s = 0; s < 2; s++) {
            OK(kern_capture_begin(k, lane));
            half_stages(k, l, (enum kern_site)s);
            OK(kern_capture_end(k, &i->half[lane][l][s]));
        }
}

void km_start(struct km_inst *i) {
    uint64_t bytes[KERN_MEM_N];
    int r = kern_query(i->backend, &i->cfg, bytes);
    ck_assert_msg(r == 0, "kern_query: %d %s", r, kern_open_error());
    for (int c = 0; c < KERN_MEM_N; c++)
        ck_assert_int_eq(kern_mem_alloc(i->backend, (enum kern_mem)c, bytes[c], &i->mem[c]), 0);
    r = kern_open(i->backend, &i->cfg, i->mem, &i->k);
    ck_assert_msg(r == 0, "kern_open: %d %s", r, kern_open_error());
}

void km_capture(struct km_inst *i) {
    for (uint32_t lane = 0; lane < KERN_LANES; lane++)
        capture(i, lane);
}

struct km_inst *km_open(const struct kernmodel *m, const char *backend, const struct kern_config *cfg) {
    struct km_inst *i = calloc(1, sizeof(*i));
    ck_assert_ptr_nonnull(i);
    i->model = m;
    i->cfg = cfg ? *cfg : m->cfg;
    i->cfg.model = m->cfg.model;
    i->cfg.stores = m->cfg.stores;
    snprintf(i->backend, sizeof(i->backend), "%s", backend);
    i->pages_per_slot = i->cfg.n_pages / i->cfg.n_slots;
    km_start(i);
    pack_all(m, i->k, 977, NULL);
    km_capture(i);
    return i;
}

void km_close(struct km_inst *i) {
    kern_close(i->k);
    for (int c = 0; c < KERN_MEM_N; c++)
        kern_mem_free(i->backend, (enum kern_mem)c, &i->mem[c]);
    free(i);
}
