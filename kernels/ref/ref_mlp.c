/* SPDX-License-Identifier: MIT */
/* Dense feed-forward, router, experts and shared expert. Rows are independent; the experts of a row are
 * summed in the order of their ids, so that nothing depends on what runs beside. */
#include <math.h>

#include "ref.h"

/* h = silu(min(gate, limit)) * clamp(up, +-limit); the gate is clamped above only */
static void swiglu(const struct kern_model_desc *m, const float *gate, const float *up, uint64_t n,
                   float *h) {
    const double limit = m->swiglu_limit == 0 && FAULT(clamp_without_limit) ? 0.5 : (double)m->swiglu_limit;
    for (uint64_t i = 0; i < n; i++) {
        double g = (double)gate[i], u = (double)up[i];
        if (limit > 0) {
            /* not fmin() and fmax(): what is no number must stay none, or a broken weight would go unseen */
            g = g > limit || (FAULT(clamp_hides_nan) && isnan(g)) ? limit : g;
            if (FAULT(gate_clamp_both))
                g = fmax(g, -limit);
            u = u > limit ? limit : u < -limit ? -limit : u;
        }
        h[i] = (float)(ref_silu(g) * u);
    }
}

static void ffn(struct ref_ctx *x, uint32_t gate, uint64_t width, uint32_t expert, const float *in,
                float *out) {
    float **t = x->r->tmp; /* gate, up and down follow each other in enum kern_part */
    ref_linear(x, gate, expert, in, t[0]);
    ref_linear(x, gate + 1, expert, in, t[1]);
    swiglu(x->r->m, t[0], t[1], width, t[2]);
    ref_linear(x, gate + 2, expert, t[2], out);
}

static void count_ffn(struct ref_ctx *x, uint32_t gate, uint32_t expert) {
    for (uint32_t part = gate; part < gate + 3; part++)
        ref_count_expert(x, part, expert);
}

/* The n_top experts of one row, ascending by id, and their weights. */
static void route(struct ref_ctx *x, const float *in, uint32_t *ids, double *weights) {
    const struct kern_model_desc *m = x->r->m;
    const float *bias = ref_vector(x->r, KERN_ROUTER_BIAS, x->layer);
    float *scores = x->r->tmp[3];
    bool taken[1 << 12] = {0}; /* n_experts is bounded by the configuration check */
    ref_linear(x, KERN_ROUTER, 0, in, scores);
    for (uint32_t e = 0; e < m->n_experts; e++)
        scores[e] = (float)ref_sigmoid((double)scores[e]);
    for (uint32_t i = 0; i < m->n_top; i++) {
        uint32_t best = KERN_NONE;
        for (uint32_t e = 0; e < m->n_experts; e++)
            if (!taken[e] && (best == KERN_NONE || scores[e] + bias[e] > scores[best] + bias[best]))
                best = e;
        taken[best] = true;
    }
    double sum = 1e-20;
    uint32_t n = 0;
    for (uint32_t e = 0; e < m->n_experts; e++)
        if (taken[e]) {
            weights[n] = (double)(FAULT(router_biased) ? scores[e] + bias[e] : scores[e]);
            sum += weights[n];
            ids[n++] = e;
        }
    for (uint32_t i = 0; i < n; i++)
        weights[i] = weights[i] / sum * (double)m->routed_scale;
}

static void moe_row(struct ref_ctx *x, const float *in, float *out) {
    const struct kern_model_desc *m = x->r->m;
    uint32_t ids[64];
    double weights[64];
    double *acc = x->r->acc;
    route(x, in, ids, weights);
    for (uint32_t d = 0; d < m->hidden; d++)
        acc[d] = 0;
    for (uint32_t i = 0; i < m->n_top; i++) {
        if (!x->r->touched[ids[i]]) {
            x->r->touched[ids[i]] = 1;
            uint64_t before = x->c->weight_bytes;
            x->c->experts++;
            count_ffn(x, KERN_EXP_GATE, ids[i]);
            x->c->expert_bytes += x->c->weight_bytes - before;
        }
        ffn(x, KERN_EXP_GATE, m->expert_width, ids[i], in, out);
        for (uint32_t d = 0; d < m->hidden; d++)
            acc[d] += weights[i] * (double)out[d];
    }
    if (m->n_shared) {
        ffn(x, KERN_SH_GATE, (uint64_t)m->n_shared * m->expert_width, 0, in, out);
        for (uint32_t d = 0; d < m->hidden; d++)
            acc[d] += (double)out[d];
    }
    for (uint32_t d = 0; d < m->hidden; d++)
        out[d] = (float)acc[d];
}

void ref_mlp(struct ref_ctx *x) {
    const struct kern_model_desc *m = x->r->m;
    bool moe = m->layer[x->layer].mlp == KERN_MLP_MOE, used = false;
    memset(x->r->touched, 0, m->n_experts);
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const float *in = x->l->x + (uint64_t)i * m->hidden;
        float *out = x->l->y + (uint64_t)i * m->hidden;
        if (!ref_active(x, i))
            continue;
        used = true;
        if (moe)
            moe_row(x, in, out);
        else
            ffn(x, KERN_MLP_GATE, m->dense_width, 0, in, out);
    }
    if (!used)
        return;
    if (moe) {
        ref_count(x, KERN_ROUTER, x->layer);
        ref_count(x, KERN_ROUTER_BIAS, x->layer);
        if (m->n_shared)
            count_ffn(x, KERN_SH_GATE, 0);
    } else {
        count_ffn(x, KERN_MLP_GATE, 0);
    }
}
