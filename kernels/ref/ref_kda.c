/* SPDX-License-Identifier: MIT */
/* KDA: projections, short convolution, gates, the recurrence and the output of one layer.
 *
 * A slot's state is committed only when that is asked for. A decode window that may be cut back (speculation)
 * runs on a copy; its factors stay in the slot, and the next step first applies the ones that were kept, in
 * order, with the very function that a plain step uses. So kept rows give the bits of plain decoding. */
#include <math.h>

#include "ref.h"

static float *slot_at(const struct ref *r, uint32_t slot, uint64_t at) {
    return (float *)(void *)(r->slots + slot * r->slot_bytes + at);
}

/* A pending row: raw q|k|v, key, value, log decay, beta. */
struct pending {
    float *z, *k, *v, *g, *beta;
};

static struct pending pending_row(const struct ref *r, uint32_t slot, uint32_t layer, uint32_t i) {
    const uint64_t p = ref_p(r->m);
    float *at = slot_at(r, slot, r->pending_at[layer]) + i * (6 * p + r->m->kda_heads);
    return (struct pending){.z = at, .k = at + 3 * p, .v = at + 4 * p, .g = at + 5 * p, .beta = at + 6 * p};
}

void ref_kda_step(uint32_t dim, float *state, const float *q, const float *k, const float *v, const float *g,
                  float beta, float *o) {
    double decay[512], delta[512]; /* kda_dim is bounded by the configuration check */
    for (uint32_t c = 0; c < dim; c++)
        decay[c] = exp((double)g[c]);
    for (uint32_t j = 0; j < dim; j++) {
        double p = 0;
        for (uint32_t c = 0; c < dim; c++)
            p += (FAULT(decay_after) ? 1.0 : decay[c]) * (double)state[c * dim + j] * (double)k[c];
        delta[j] = (double)beta * ((double)v[j] - p);
    }
    for (uint32_t c = 0; c < dim; c++)
        for (uint32_t j = 0; j < dim; j++)
            state[c * dim + j] = (float)(decay[c] * (double)state[c * dim + j] + (double)k[c] * delta[j]);
    for (uint32_t j = 0; o && j < dim; j++) {
        double s = 0;
        for (uint32_t c = 0; c < dim; c++)
            s += (double)state[c * dim + j] * (double)q[c];
        o[j] = (float)s;
    }
}

static void step_heads(const struct ref *r, float *state, const float *q, const float *k, const float *v,
                       const float *g, const float *beta, float *o) {
    const uint32_t dim = r->m->kda_dim;
    for (uint32_t h = 0; h < r->m->kda_heads; h++) {
        uint32_t at = h * dim;
        ref_kda_step(dim, state + (uint64_t)at * dim, q ? q + at : NULL, k + at, v + at, g + at, beta[h],
                     o ? o + at : NULL);
    }
}

/* The window after `n` more raw rows: the last conv_width - 1 of both together. */
static void shift_window(const struct ref *r, float *window, const float *rows, uint64_t stride, uint32_t n) {
    const uint32_t keep = r->m->conv_width - 1;
    const uint64_t p3 = 3 * (uint64_t)ref_p(r->m);
    for (uint32_t i = 0; i < keep; i++) {
        uint32_t from = i + n; /* in the concatenation of window and rows */
        memmove(window + i * p3, from < keep ? window + from * p3 : rows + (from - keep) * stride,
                p3 * sizeof(float));
    }
}

/* Commits the kept rows of the window before. (A reset was done when the plan was loaded.) */
static void settle(struct ref_ctx *x, const struct kern_seq *s) {
    const struct ref *r = x->r;
    const uint64_t p = ref_p(r->m);
    float *state = slot_at(r, s->slot, r->state_at[x->layer]);
    float *window = slot_at(r, s->slot, r->window_at[x->layer]);
    uint32_t keep = FAULT(keep_one_less) && s->keep > 1 ? s->keep - 1 : s->keep;
    for (uint32_t i = 0; i < keep; i++) {
        struct pending w = pending_row(r, s->slot, x->layer, i);
        step_heads(r, state, NULL, w.k, w.v, w.g, w.beta, NULL);
    }
    shift_window(r, window, pending_row(r, s->slot, x->layer, 0).z, 6 * p + r->m->kda_heads, s->keep);
}

/* Convolution, SiLU and, for q and k, the norm of one row; rows before the plan come from the slot's window.
 */
static void convolve(struct ref_ctx *x, const struct kern_seq *s, uint32_t i) {
    static const uint32_t taps[3] = {KERN_KDA_QCONV, KERN_KDA_KCONV, KERN_KDA_VCONV};
    const struct kern_model_desc *m = x->r->m;
    const uint32_t w = m->conv_width, p = ref_p(m);
    const float *window = slot_at(x->r, s->slot, x->r->window_at[x->layer]);
    float *out = x->l->qkv + (s->row0 + i) * 3ull * p;
    for (uint32_t part = 0; part < 3; part++) {
        const float *tap = ref_vector(x->r, taps[part], x->layer);
        for (uint32_t c = 0; c < p; c++) {
            double y = 0;
            for (uint32_t j = 0; j < w; j++) {
                /* index from the oldest window row */
                uint32_t at = i + j;
                const float *z =
                    at < w - 1 ? window + at * 3ull * p : x->l->z + (s->row0 + at - (w - 1)) * 3ull * p;
                y += (double)tap[c * w + j] * (double)z[part * p + c];
            }
            out[part * p + c] = (float)ref_silu(y);
        }
    }
    for (uint32_t h = 0; h < 2 * m->kda_heads; h++) { /* heads of q, then of k */
        float *v = out + h * m->kda_dim;
        double scale = 1.0 / sqrt(ref_dot(v, v, m->kda_dim) + 1e-6);
        if (h < m->kda_heads)
            scale /= sqrt((double)m->kda_dim);
        for (uint32_t c = 0; c < m->kda_dim; c++)
            v[c] = (float)((double)v[c] * scale);
    }
}

/* What needs the layer's input only: raw q|k|v, log decay, beta, the output gate's argument. */
static void project(struct ref_ctx *x, uint32_t row) {
    const struct kern_model_desc *m = x->r->m;
    const uint64_t p = ref_p(m);
    const float *u = x->l->x + (uint64_t)row * m->hidden;
    const float *a_log = ref_vector(x->r, KERN_KDA_A_LOG, x->layer);
    const float *bias = ref_vector(x->r, KERN_KDA_DT_BIAS, x->layer);
    float *z = x->l->z + row * 3 * p, *g = x->l->g + row * p,
          *beta = x->l->beta + row * (uint64_t)m->kda_heads;
    ref_linear(x, KERN_KDA_Q, 0, u, z);
    ref_linear(x, KERN_KDA_K, 0, u, z + p);
    ref_linear(x, KERN_KDA_V, 0, u, z + 2 * p);
    ref_linear(x, KERN_KDA_FA, 0, u, x->r->tmp[0]);
    ref_linear(x, KERN_KDA_FB, 0, x->r->tmp[0], g);
    for (uint64_t c = 0; c < p; c++)
        g[c] = (float)((double)m->gate_bound *
                       ref_sigmoid(exp((double)a_log[c / m->kda_dim]) * ((double)g[c] + (double)bias[c])));
    ref_linear(x, KERN_KDA_B, 0, u, beta);
    for (uint32_t h = 0; h < m->kda_heads; h++)
        beta[h] = (float)ref_sigmoid((double)beta[h]);
    ref_linear(x, KERN_KDA_GA, 0, u, x->r->tmp[0]);
    ref_linear(x, KERN_KDA_GB, 0, x->r->tmp[0], x->l->e + row * p);
}

static void output(struct ref_ctx *x, uint32_t row) {
    const struct kern_model_desc *m = x->r->m;
    const uint64_t p = ref_p(m);
    float *o = x->l->o + row * p;
    const float *e = x->l->e + row * p, *w = ref_vector(x->r, KERN_KDA_O_NORM, x->layer);
    for (uint32_t h = 0; h < m->kda_heads; h++) {
        float *v = o + (uint64_t)h * m->kda_dim;
        double scale = 1.0 / sqrt(ref_dot(v, v, m->kda_dim) / m->kda_dim + (double)m->rms_eps);
        for (uint32_t c = 0; c < m->kda_dim; c++)
            v[c] = (float)((double)v[c] * scale * (double)w[c] *
                           ref_sigmoid((double)e[(uint64_t)h * m->kda_dim + c]));
    }
    ref_linear(x, KERN_KDA_O, 0, o, x->l->y + (uint64_t)row * m->hidden);
}

static void run_recurrent(struct ref_ctx *x, const struct kern_seq *s) {
    const struct ref *r = x->r;
    const struct kern_model_desc *m = r->m;
    const uint64_t p = ref_p(m), bytes = p * m->kda_dim * sizeof(float);
    bool commit = s->flags & KERN_SEQ_COMMIT;
    float *state = slot_at(r, s->slot, r->state_at[x->layer]);
    if (!commit) {
        memcpy(r->state_copy, state, bytes);
        state = r->state_copy;
    }
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const uint32_t row = s->row0 + i;
        const float *qkv = x->l->qkv + row * 3 * p, *g = x->l->g + row * p;
        const float *beta = x->l->beta + row * (uint64_t)m->kda_heads;
        step_heads(r, state, qkv, qkv + p, qkv + 2 * p, g, beta, x->l->o + row * p);
        if (commit)
            continue;
        struct pending w = pending_row(r, s->slot, x->layer, i);
        memcpy(w.z, x->l->z + row * 3 * p, 3 * p * sizeof(float));
        memcpy(w.k, qkv + p, 2 * p * sizeof(float)); /* key and value lie together on both sides */
        memcpy(w.g, g, p * sizeof(float));
        memcpy(w.beta, beta, m->kda_heads * sizeof(float));
    }
    x->c->state_bytes += (commit || s->keep ? 2 : 1) * bytes;
}

static void run_chunked(struct ref_ctx *x, const struct kern_seq *s) {
    const struct kern_model_desc *m = x->r->m;
    float *state = slot_at(x->r, s->slot, x->r->state_at[x->layer]);
    for (uint32_t i = 0; i < s->n_rows; i += KERN_GRID) {
        uint32_t n = s->n_rows - i < KERN_GRID ? s->n_rows - i : KERN_GRID;
        for (uint32_t h = 0; h < m->kda_heads; h++)
            ref_kda_chunk(x, s->row0 + i, n, h, state + (uint64_t)h * m->kda_dim * m->kda_dim);
    }
    x->c->state_bytes += 2 * ref_p(m) * (uint64_t)m->kda_dim * sizeof(float);
}

void ref_kda(struct ref_ctx *x) {
    const struct ref *r = x->r;
    for (uint32_t i = 0; i < x->n_rows; i++)
        project(x, i);
    for (uint32_t i = 0; i < x->p->n_seqs; i++) {
        const struct kern_seq *s = &plan_seqs(x->p)[i];
        settle(x, s);
        for (uint32_t j = 0; j < s->n_rows; j++)
            convolve(x, s, j);
        if (s->flags & KERN_SEQ_PREFILL)
            run_chunked(x, s);
        else
            run_recurrent(x, s);
        if (s->flags & KERN_SEQ_COMMIT)
            shift_window(r, slot_at(r, s->slot, r->window_at[x->layer]),
                         x->l->z + s->row0 * 3ull * ref_p(r->m), 3ull * ref_p(r->m), s->n_rows);
    }
    for (uint32_t i = 0; i < x->n_rows; i++)
        output(x, i);
    for (uint32_t part = KERN_KDA_Q; part <= KERN_KDA_O && x->n_rows; part++)
        ref_count(x, part, x->layer);
}
