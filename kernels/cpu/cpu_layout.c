/* SPDX-License-Identifier: MIT */
/* cpu_layout.c: where everything lies in the five memory blocks. Pure arithmetic on a checked configuration;
 * kern_query() and kern_open() use the same function, so they cannot disagree. */
#include "cpu.h"
#include "host.h"

#include <errno.h>
#include <unistd.h>

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t r = *at;
    *at = (r + bytes + 63) & ~63ull;
    return r;
}

/* real: outputs without paddings; real_k: inputs without */
static struct cpu_mat mat(uint64_t *at, uint64_t outputs, uint64_t k, uint64_t real, uint64_t real_k) {
    struct cpu_mat m = {
        .k = (uint32_t)k, .panels = (uint32_t)(pad16(outputs) / 16), .weights = real * real_k};
    m.off = take(at, mat_bytes(&m));
    return m;
}

static uint64_t vec(uint64_t *at, uint64_t n) {
    return take(at, pad16(n) * sizeof(float));
}

uint32_t cpu_threads(const struct kern_config *cfg) {
    long n = cfg->threads ? (long)cfg->threads : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > POOL_MAX_THREADS ? POOL_MAX_THREADS : (uint32_t)n;
}

static void layout_dims(const struct kern_config *cfg, struct cpu_dims *d) {
    const struct kern_model_desc *m = &cfg->model;
    d->e = (uint32_t)pad16(m->hidden);
    d->hc = m->hc_mult;
    d->hc_rows = m->hc_mult * (2 + m->hc_mult);
    d->kda_dim = (uint32_t)pad16(m->kda_dim);
    d->kda_all = m->kda_heads * d->kda_dim;
    d->z_fa = 3 * d->kda_all;
    d->z_ga = d->z_fa + d->kda_dim;
    d->z_b = d->z_ga + d->kda_dim;
    d->kda_z = d->z_b + (uint32_t)pad16(m->kda_heads);
    d->q_rank = (uint32_t)pad16(m->q_rank);
    d->kv_rank = (uint32_t)pad16(m->kv_rank);
    d->nope = (uint32_t)pad16(m->nope_dim);
    d->v = (uint32_t)pad16(m->v_dim);
    d->q_all = m->mla_heads * d->nope;
    d->qa_all = m->mla_heads * d->kv_rank;
    d->v_all = m->mla_heads * d->v;
    d->idx_dim = (uint32_t)pad16(m->index_dim);
    d->idx_all = m->index_heads * d->idx_dim;
    d->z_kv = d->q_rank;
    d->z_key = d->z_kv + d->kv_rank;
    d->z_gate = d->z_key + d->idx_dim;
    d->z_w = d->z_gate + (m->index_kpool > 1 ? d->idx_dim : 0);
    d->mla_z = d->z_w + (uint32_t)pad16(m->index_heads);
    d->cq_n = d->q_all + d->idx_all;
    d->dense = (uint32_t)pad16(m->dense_width);
    d->expert = (uint32_t)pad16(m->expert_width);
    d->shared = (uint32_t)pad16((uint64_t)m->n_shared * m->expert_width);
    d->vocab = (uint32_t)pad16(m->vocab_rows);
    d->max_pools = m->index_kpool ? cfg->max_context / m->index_kpool + 1 : 1;
    d->sel = m->index_kpool ? m->index_topk / m->index_kpool : 0;
    if (d->sel > d->max_pools)
        d->sel = d->max_pools;
}

static void layout_mix(const struct kern_model_desc *m, const struct cpu_dims *d, struct cpu_layer *l,
                       uint32_t i, uint64_t *at) {
    uint64_t e = m->hidden, p = (uint64_t)m->kda_heads * m->kda_dim, heads = m->mla_heads;
    if (m->layer[i].mix == KERN_MIX_KDA) {
        l->in = mat(at, d->kda_z, e, 3 * p + 2ull * m->kda_dim + m->kda_heads, e);
        l->conv = vec(at, 3ull * m->conv_width * d->kda_all);
        l->dt_bias = vec(at, d->kda_all);
        l->o_norm = vec(at, d->kda_dim);
        l->a_log = vec(at, m->kda_heads);
        l->fb = mat(at, d->kda_all, m->kda_dim, p, m->kda_dim);
        l->gb = mat(at, d->kda_all, m->kda_dim, p, m->kda_dim);
        l->out = mat(at, e, d->kda_all, e, p);
        return;
    }
    bool index = m->layer[i].index == KERN_INDEX_FULL;
    uint64_t own = index ? (m->index_kpool > 1 ? 2ull : 1ull) * m->index_dim + m->index_heads : 0;
    uint64_t own_q = index ? (uint64_t)m->index_heads * m->index_dim : 0;
    l->in = mat(at, index ? d->mla_z : d->z_key, e, (uint64_t)m->q_rank + m->kv_rank + own, e);
    l->qa_norm = vec(at, d->q_rank);
    l->kva_norm = vec(at, d->kv_rank);
    l->cq = mat(at, index ? d->cq_n : d->q_all, m->q_rank, heads * m->nope_dim + own_q, m->q_rank);
    l->uk = mat(at, d->qa_all, m->nope_dim, heads * m->kv_rank, m->nope_dim);
    l->uv = mat(at, d->v_all, m->kv_rank, heads * m->v_dim, m->kv_rank);
    l->out = mat(at, e, d->v_all, e, heads * m->v_dim);
    if (index) {
        l->knorm_w = vec(at, d->idx_dim);
        l->knorm_b = vec(at, d->idx_dim);
        l->ape = vec(at, (uint64_t)m->index_kpool * d->idx_dim);
    }
}

static void layout_mlp(const struct kern_model_desc *m, const struct cpu_dims *d, struct cpu_layer *l,
                       uint32_t i, uint64_t *at) {
    if (m->layer[i].mlp == KERN_MLP_DENSE) {
        l->gate_up = mat(at, 2ull * d->dense, m->hidden, 2ull * m->dense_width, m->hidden);
        l->down = mat(at, m->hidden, m->dense_width, m->hidden, m->dense_width);
        return;
    }
    l->router = take(at, (uint64_t)m->n_experts * d->e * 2);
    l->router_bias = vec(at, m->n_experts);
    uint64_t first = *at;
    l->exp_gate_up = mat(at, 2ull * d->expert, m->hidden, 2ull * m->expert_width, m->hidden);
    l->exp_down = mat(at, m->hidden, m->expert_width, m->hidden, m->expert_width);
    l->exp_stride = *at - first;
    *at += (m->n_experts - 1) * l->exp_stride;
    if (m->n_shared) {
        uint64_t width = (uint64_t)m->n_shared * m->expert_width;
        l->gate_up = mat(at, 2ull * d->shared, m->hidden, 2 * width, m->hidden);
        l->down = mat(at, m->hidden, width, m->hidden, width);
    }
}

static void layout_weights(const struct kern_model_desc *m, struct cpu_layout *l) {
    const struct cpu_dims *d = &l->d;
    uint64_t at = 0;
    for (uint32_t i = 0; i < kern_total_layers(m); i++) {
        struct cpu_layer *x = &l->layer[i];
        x->in_norm = vec(&at, d->e);
        x->post_norm = vec(&at, d->e);
        for (int s = 0; m->layer[i].resid == KERN_RESID_MHC && s < 2; s++) {
            x->hc_fn[s] = take(&at, (uint64_t)d->hc_rows * d->hc * d->e * 2);
            x->hc_base[s] = vec(&at, d->hc_rows);
            x->hc_scale[s] = vec(&at, 3);
        }
        if (i >= m->n_layers) {
            x->enorm = vec(&at, d->e);
            x->hnorm = vec(&at, d->e);
            x->draft_norm = vec(&at, d->e);
            x->eh = mat(&at, m->hidden, 2ull * d->e, m->hidden, 2ull * m->hidden);
        }
        layout_mix(m, d, x, i, &at);
        layout_mlp(m, d, x, i, &at);
    }
    l->final_norm = vec(&at, d->e);
    l->head = mat(&at, m->vocab_rows, m->hidden, m->vocab_rows, m->hidden);
    l->embed = take(&at, (uint64_t)m->vocab_rows * d->e * 2);
    l->weight_bytes = at;
}

/* A slot: what counts as its content first (per KDA layer the state and the convolution window, per indexed
 * layer the ring of raw keys and gates), then the pending rows. A page: per MLA layer latents, then keys. */
static void layout_state(const struct kern_config *cfg, struct cpu_layout *l) {
    const struct kern_model_desc *m = &cfg->model;
    const struct cpu_dims *d = &l->d;
    uint64_t slot = 0, page = 0;
    l->latent_bytes = host_latent_bytes(cfg->cache, d->kv_rank);
    l->key_bytes = host_key_bytes(cfg->cache, d->idx_dim);
    l->pend = (struct cpu_pend){.k = 0,
                                .v = d->kda_all,
                                .a = 2 * d->kda_all,
                                .z = 3 * d->kda_all,
                                .b = 6 * d->kda_all,
                                .size = 6 * d->kda_all + (uint32_t)pad16(m->kda_heads)};
    for (uint32_t i = 0; i < kern_total_layers(m); i++) {
        struct cpu_layer *x = &l->layer[i];
        if (m->layer[i].mix == KERN_MIX_KDA) {
            uint64_t state = (uint64_t)d->kda_all * d->kda_dim, win = (m->conv_width - 1) * 3ull * d->kda_all;
            x->slot = take(&slot, (state + win) * sizeof(float));
        } else {
            x->page = take(&page, KERN_PAGE_TOKENS * l->latent_bytes);
            if (m->layer[i].index == KERN_INDEX_FULL) {
                take(&page, KERN_PAGE_TOKENS / m->index_kpool * l->key_bytes);
                x->slot = take(&slot, (uint64_t)KERN_TAIL_RING * 2 * d->idx_dim * sizeof(float));
            }
        }
    }
    l->slot_bytes = slot;
    for (uint32_t i = 0; i < kern_total_layers(m); i++)
        if (m->layer[i].mix == KERN_MIX_KDA)
            l->layer[i].pend = take(&slot, (uint64_t)KERN_MAX_WINDOW * l->pend.size * sizeof(float));
    l->slot_stride = slot;
    l->page_bytes = page;
}

static uint64_t max64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void layout_lane(const struct kern_config *cfg, const struct cpu_dims *d, uint64_t rows,
                        struct cpu_lane_layout *x) {
    const struct kern_model_desc *m = &cfg->model;
    uint64_t at = 0, f = sizeof(float);
    x->streams = take(&at, rows * d->hc * d->e * f);
    x->plain = take(&at, m->n_draft ? rows * d->e * f : 0);
    x->u = take(&at, rows * d->e * f);
    x->y = take(&at, rows * d->e * f);
    x->z = take(&at, rows * max64(d->kda_z, d->mla_z) * f);
    x->hc_mix = take(&at, rows * pad16(d->hc_rows + 1ull) * f);
    x->hc_coef = take(&at, rows * (d->hc + (uint64_t)d->hc * d->hc) * f);
    x->wide = take(&at, rows * max64(d->cq_n, 2 * max64(d->dense, d->shared)) * f);
    x->qa = take(&at, rows * d->qa_all * f);
    x->attn_out = take(&at, rows * max64(d->kda_all, d->v_all) * f);
    x->sel = take(&at, rows * d->sel * sizeof(uint32_t));
    x->n_sel = take(&at, rows * sizeof(uint32_t));
    x->act = take(&at, rows * max64(d->dense, d->shared) * f);
    x->router = take(&at, rows * m->n_experts * f);
    x->top_id = take(&at, rows * m->n_top * sizeof(uint32_t));
    x->top_w = take(&at, rows * m->n_top * f);
    x->expert_act = take(&at, rows * m->n_top * 3 * d->expert * f);
    x->hidden = take(&at, rows * d->e * f);
    x->draft = take(&at, m->n_draft ? rows * d->e * f : 0);
    x->gather = take(&at, (uint64_t)cfg->max_samples * d->e * f);
    x->eh_in = take(&at, m->n_draft ? rows * 2 * d->e * f : 0);
    x->logits = take(&at, (uint64_t)cfg->max_samples * d->vocab * f);
    x->logits_at = take(&at, cfg->max_samples * (uint64_t)sizeof(uint32_t));
    x->plan_rows =
        take(&at, 2 * (cfg->max_seqs * (uint64_t)sizeof(struct cpu_seq) + 3 * rows * sizeof(uint32_t)));
    x->bytes = at;
}

/* Floats of one member's scratch: the largest of what the stages ask for. */
static uint64_t scratch_floats(const struct kern_config *cfg, const struct cpu_dims *d) {
    uint64_t n = pad16(cpu_kda_scratch(d->kda_dim)) + cpu_kda_gates(d->kda_dim);
    n = max64(n, cpu_attn_scratch(d->kv_rank));
    /* scores and ranks of all pools, widened keys */
    n = max64(n, pad16(d->max_pools) * 3 + CPU_KEY_TILE * (uint64_t)d->idx_dim);
    n = max64(n, CPU_ROW_BLOCK * 128ull);                  /* an expert's share of the output */
    /* scores, biased scores and ranks of the experts */
    n = max64(n, 2 * pad16(cfg->model.n_experts) + 2 * (uint64_t)cfg->model.n_experts);
    n = max64(n, (host_sample_scratch(cfg->model.vocab_rows) + 3) / 4 + 16);
    return pad16(n);
}

int cpu_layout(const struct kern_config *cfg, uint32_t threads, struct cpu_layout *l) {
    memset(l, 0, sizeof(*l));
    layout_dims(cfg, &l->d);
    layout_weights(&cfg->model, l);
    layout_state(cfg, l);
    uint64_t at = 0, most = 0;
    for (int i = 0; i < KERN_LANES; i++) {
        layout_lane(cfg, &l->d, cfg->max_rows[i], &l->lane[i]);
        l->lane_at[i] = take(&at, l->lane[i].bytes);
        most = max64(most, cfg->max_rows[i]);
    }
    l->thread_group = scratch_floats(cfg, &l->d) * sizeof(float);
    l->thread_bytes = (l->thread_group + cpu_expert_group_words(cfg, (uint32_t)most) * 4 + 127) & ~127ull;
    l->thread_at = (at + 127) & ~127ull;
    l->work_bytes = l->thread_at + threads * l->thread_bytes;
    return 0;
}
