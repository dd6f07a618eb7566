/* SPDX-License-Identifier: MIT */
/* Ranges and consistency of a kern_config. After this check no product of two or three dimensions, layers and
 * page or slot counts can leave 64 bits, so that backends may size their memory with plain arithmetic; the
 * text names the first value that is wrong. Pure functions, any thread. */
#include "backend.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

struct range {
    const char *name;
    uint64_t value, lo, hi;
};

static int refuse(char *err, size_t err_len, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int refuse(char *err, size_t err_len, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err, err_len, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static int check_ranges(const struct range *r, size_t n, char *err, size_t err_len) {
    for (size_t i = 0; i < n; i++)
        if (r[i].value < r[i].lo || r[i].value > r[i].hi)
            return refuse(err, err_len, "%s is %llu, but must be between %llu and %llu", r[i].name,
                          (unsigned long long)r[i].value, (unsigned long long)r[i].lo,
                          (unsigned long long)r[i].hi);
    return 0;
}

static int check_engine(const struct kern_config *c, char *err, size_t err_len) {
    const struct kern_model_desc *m = &c->model;
    const struct range r[] = {
        {"n_ranks", c->n_ranks, 1, COMM_MAX_RANKS},
        {"rank", c->rank, 0, c->n_ranks ? c->n_ranks - 1 : 0},
        {"threads", c->threads, 0, 1024},
        {"cache", c->cache, KERN_CACHE_F32, KERN_CACHE_FP8},
        {"n_pages", c->n_pages, 1, 1u << 24},
        {"n_slots", c->n_slots, 1, 1u << 16},
        {"max_seqs", c->max_seqs, 1, 1u << 12},
        {"max_rows of the decode lane", c->max_rows[KERN_LANE_DECODE], 1, 1u << 16},
        {"max_rows of the prefill lane", c->max_rows[KERN_LANE_PREFILL], KERN_GRID, 1u << 16},
        {"max_samples", c->max_samples, 1, 1u << 16},
        {"max_context", c->max_context, 1, 1u << 24},
        {"max_plan_bytes", c->max_plan_bytes, sizeof(struct kern_plan), 1ull << 32},
        {"vocab_rows", m->vocab_rows, 1, 1u << 22},
        {"vocab_tokens", m->vocab_tokens, 1, m->vocab_rows},
        {"hidden", m->hidden, 1, 1u << 16},
        {"n_layers", m->n_layers, 1, KERN_MAX_LAYERS - 1},
        {"n_draft", m->n_draft, 0, 1},
        {"max_plan_bytes modulo 8", c->max_plan_bytes % 8, 0, 0},
        {"max_rows of the prefill lane modulo the grid", c->max_rows[KERN_LANE_PREFILL] % KERN_GRID, 0, 0},
    };
    return check_ranges(r, sizeof(r) / sizeof(r[0]), err, err_len);
}

static int check_layer(const struct kern_model_desc *m, uint32_t i, bool *full_seen, char *err,
                       size_t err_len) {
    const struct kern_layer_desc *l = &m->layer[i];
    bool draft = i >= m->n_layers;
    if (l->mix != KERN_MIX_KDA && l->mix != KERN_MIX_MLA)
        return refuse(err, err_len, "layer %u has mixer kind %u, known are 1 (KDA) and 2 (MLA)", i, l->mix);
    if (l->index > KERN_INDEX_SHARED)
        return refuse(err, err_len, "layer %u has indexer kind %u, known are 0 to 2", i, l->index);
    if (l->kvb_split > 1 || (l->kvb_split && l->mix != KERN_MIX_MLA))
        return refuse(err, err_len, "layer %u has kvb_split %u; known is 1, in MLA layers", i, l->kvb_split);
    if (l->mix == KERN_MIX_KDA && l->index != KERN_INDEX_NONE)
        return refuse(err, err_len, "layer %u is a KDA layer and cannot have an indexer", i);
    if (l->resid != KERN_RESID_MHC && l->resid != KERN_RESID_PLAIN)
        return refuse(err, err_len, "layer %u has residual kind %u, known are 1 and 2", i, l->resid);
    if (l->mlp != KERN_MLP_DENSE && l->mlp != KERN_MLP_MOE)
        return refuse(err, err_len, "layer %u has feed-forward kind %u, known are 1 and 2", i, l->mlp);
    if (!draft && l->resid != m->layer[0].resid)
        return refuse(err, err_len, "layer %u has another residual kind than layer 0", i);
    if (draft && (l->resid != KERN_RESID_PLAIN || l->mix != KERN_MIX_MLA || l->index == KERN_INDEX_SHARED))
        return refuse(err, err_len,
                      "draft layer %u must be MLA with its own or no indexer and a plain residual", i);
    if (l->index == KERN_INDEX_SHARED && !*full_seen)
        return refuse(err, err_len, "layer %u shares an index selection, but no earlier layer makes one", i);
    if (l->index == KERN_INDEX_FULL)
        *full_seen = true;
    return 0;
}

static int check_layers(const struct kern_model_desc *m, char *err, size_t err_len) {
    bool full_seen = false;
    for (uint32_t i = 0; i < kern_total_layers(m); i++) {
        int r = check_layer(m, i, &full_seen, err, err_len);
        if (r)
            return r;
    }
    if (m->layer[0].resid == KERN_RESID_PLAIN && m->hc_mult != 1)
        return refuse(err, err_len, "hc_mult is %u, but a model with plain residuals has one stream",
                      m->hc_mult);
    return 0;
}

static bool any_layer(const struct kern_model_desc *m, bool (*is)(const struct kern_layer_desc *)) {
    for (uint32_t i = 0; i < kern_total_layers(m); i++)
        if (is(&m->layer[i]))
            return true;
    return false;
}
static bool is_kda(const struct kern_layer_desc *l) {
    return l->mix == KERN_MIX_KDA;
}
static bool is_mla(const struct kern_layer_desc *l) {
    return l->mix == KERN_MIX_MLA;
}
static bool is_indexed(const struct kern_layer_desc *l) {
    return l->index == KERN_INDEX_FULL;
}
static bool is_dense(const struct kern_layer_desc *l) {
    return l->mlp == KERN_MLP_DENSE;
}
static bool is_moe(const struct kern_layer_desc *l) {
    return l->mlp == KERN_MLP_MOE;
}

/* What a rotated key means inside a pool of several is nobody's model so far. */
static int check_rope(const struct kern_model_desc *m, bool idx, char *err, size_t err_len) {
    if (m->rope_dim % 2)
        return refuse(err, err_len, "rope_dim is %u, but rotary numbers come in pairs", m->rope_dim);
    if (!(m->rope_theta > 1.0f))
        return refuse(err, err_len, "rope_theta is %g, but with a rope_dim of %u it must be above 1",
                      (double)m->rope_theta, m->rope_dim);
    if (idx && m->rope_dim > m->index_dim)
        return refuse(err, err_len, "rope_dim is %u, but the indexer's keys have %u numbers only", m->rope_dim,
                      m->index_dim);
    if (idx && m->index_kpool != 1)
        return refuse(err, err_len, "rope_dim is %u with an index_kpool of %u, but rotated keys are not pooled",
                      m->rope_dim, m->index_kpool);
    return 0;
}

static int check_dims(const struct kern_model_desc *m, char *err, size_t err_len) {
    bool kda = any_layer(m, is_kda), mla = any_layer(m, is_mla), idx = any_layer(m, is_indexed);
    bool dense = any_layer(m, is_dense), moe = any_layer(m, is_moe);
    const struct range r[] = {
        {"hc_mult", m->hc_mult, 1, KERN_MAX_HC},
        {"hc_iters", m->hc_iters, m->layer[0].resid == KERN_RESID_MHC, 1000},
        {"kda_heads", m->kda_heads, kda, 1024},
        {"kda_dim", m->kda_dim, kda, 512},
        {"conv_width", m->conv_width, kda, 8},
        {"mla_heads", m->mla_heads, mla, 1024},
        {"q_rank", m->q_rank, mla, 1u << 14},
        {"kv_rank", m->kv_rank, mla, 1u << 12},
        {"nope_dim", m->nope_dim, mla, 1u << 10},
        {"rope_dim", m->rope_dim, 0, 1u << 10},
        {"v_dim", m->v_dim, mla, 1u << 10},
        {"index_heads", m->index_heads, idx, 1024},
        {"index_dim", m->index_dim, idx, 1u << 10},
        {"index_kpool", m->index_kpool, idx, KERN_MAX_KPOOL},
        {"index_topk", m->index_topk, idx ? m->index_kpool : 0, 1u << 20},
        {"dense_width", m->dense_width, dense, 1u << 18},
        {"n_experts", m->n_experts, moe, 1u << 12},
        {"expert_width", m->expert_width, moe, 1u << 16},
        {"n_top", m->n_top, moe, m->n_experts < 64 ? m->n_experts : 64},
        {"n_shared", m->n_shared, 0, 16},
    };
    int rc = check_ranges(r, sizeof(r) / sizeof(r[0]), err, err_len);
    if (!rc && m->rope_dim)
        rc = check_rope(m, idx, err, err_len);
    if (rc || !idx)
        return rc;
    if (KERN_PAGE_TOKENS % m->index_kpool)
        return refuse(err, err_len, "index_kpool is %u, but a page of %u tokens must hold whole pools",
                      m->index_kpool, KERN_PAGE_TOKENS);
    if (m->index_topk % m->index_kpool)
        return refuse(err, err_len, "index_topk is %u, not a multiple of index_kpool %u", m->index_topk,
                      m->index_kpool);
    return 0;
}

static int check_floats(const struct kern_model_desc *m, char *err, size_t err_len) {
    const struct {
        const char *name;
        float value, lo, hi;
    } f[] = {
        {"rms_eps", m->rms_eps, 0.0f, 1.0f},           {"routed_scale", m->routed_scale, -1e4f, 1e4f},
        {"swiglu_limit", m->swiglu_limit, 0.0f, 1e6f}, {"rope_theta", m->rope_theta, 0.0f, 1e12f},
        {"gate_bound", m->gate_bound, -5.0f, 0.0f},    {"hc_eps", m->hc_eps, 0.0f, 1.0f},
    };
    for (size_t i = 0; i < sizeof(f) / sizeof(f[0]); i++)
        if (!isfinite(f[i].value) || f[i].value < f[i].lo || f[i].value > f[i].hi)
            return refuse(err, err_len, "%s is %g, but must be between %g and %g", f[i].name,
                          (double)f[i].value, (double)f[i].lo, (double)f[i].hi);
    return 0;
}

/* What a part's products are made for: small matrices that choose are kept as they come, rows of the embedding are
 * read one by one, and everything else may be stored as anything. */
static const char *why_not(const struct kern_store *s, uint32_t part) {
    bool plain = s->format == KERN_F32 || s->format == KERN_BF16 || s->format == KERN_F16;
    bool chooses = part == KERN_ROUTER || part == KERN_HC_ATTN_FN || part == KERN_HC_FFN_FN;
    if (chooses && !plain)
        return "but must be F32, BF16 or F16";
    if (part == KERN_EMBED && s->format == KERN_EXL3)
        return "which cannot be read row by row";
    return NULL;
}

static int check_store(const struct kern_config *c, const struct kern_backend *b, const struct kern_tensor_id *id,
                       const struct kern_part_info *info, char *err, size_t err_len) {
    const struct kern_store s = kern_matrix_store(c, id);
    const char *why = why_not(&s, id->part);
    char name[40];
    uint64_t bytes;
    if (!why && kern_store_bytes(&s, info->rows, info->cols, &bytes))
        why = "which cannot hold its shape";
    if (!why && !(b->formats >> s.format & 1))
        why = "which this backend does not compute";
    if (!why)
        return 0;
    return refuse(err, err_len, "layer %u %s, expert %u, is stored as %s, %s: [%llu, %llu]", id->layer,
                  kern_part_name(id->part), id->expert, kern_store_name(&s, name, sizeof(name)), why,
                  (unsigned long long)info->rows, (unsigned long long)info->cols);
}

static int check_stores(const struct kern_config *c, const struct kern_backend *b, char *err, size_t err_len) {
    int r = 0;
    for (uint32_t l = 0; l < kern_total_layers(&c->model) && c->stores; l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (!kern_part_info(&c->model, part, l, &info) || !info.matrix)
                continue;
            for (uint32_t e = 0; e < info.experts && !r; e++) {
                const struct kern_tensor_id id = {.part = part, .layer = l, .expert = e};
                r = check_store(c, b, &id, &info, err, err_len);
            }
            if (r)
                return r;
        }
    return 0;
}

int kern_config_check(const struct kern_config *cfg, const struct kern_backend *b, char *err, size_t err_len) {
    int r = check_engine(cfg, err, err_len);
    if (!r && b->weightless && cfg->n_ranks > 1)
        return refuse(err, err_len, "ranks: found %u, but backend %s has nothing to cut: start with 1", cfg->n_ranks,
                      b->name);
    if (r || b->weightless)
        return r;
    r = check_layers(&cfg->model, err, err_len);
    if (!r)
        r = check_dims(&cfg->model, err, err_len);
    if (!r)
        r = check_floats(&cfg->model, err, err_len);
    if (!r)
        r = check_stores(cfg, b, err, err_len);
    return r;
}
