/* SPDX-License-Identifier: MIT */
/* The chunked form of KDA for one head and at most KERN_GRID rows that start on the absolute grid: prefill
 * cuts on the grid therefore meet the same chunks and the same F32 states between them, wherever the cuts
 * are. Exponents are differences of running sums of negative numbers, later minus earlier: never positive. */
#include <math.h>

#include "ref.h"

/* G[i][c]: running sum of the log decay inside the chunk */
static void running_decay(const struct ref_ctx *x, uint32_t row0, uint32_t n, uint32_t head, double *g) {
    const uint32_t dim = x->r->m->kda_dim;
    const uint64_t p = ref_p(x->r->m);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < dim; c++)
            g[i * dim + c] =
                (i ? g[(i - 1) * dim + c] : 0) + (double)x->l->g[(row0 + i) * p + head * dim + c];
}

void ref_kda_chunk(struct ref_ctx *x, uint32_t row0, uint32_t n, uint32_t head, float *state) {
    const uint32_t dim = x->r->m->kda_dim;
    const uint64_t p = ref_p(x->r->m);
    double *g = x->r->chunk, *d = g + KERN_GRID * dim, *a = d + KERN_GRID * dim,
           *mm = a + KERN_GRID * KERN_GRID;
    running_decay(x, row0, n, head, g);
    for (uint32_t i = 0; i < n; i++) {
        const float *q = x->l->qkv + (row0 + i) * 3 * p + head * dim, *k = q + p;
        double beta = (double)x->l->beta[(row0 + i) * x->r->m->kda_heads + head];
        for (uint32_t j = 0; j <= i; j++) {
            const float *kj = x->l->qkv + (row0 + j) * 3 * p + p + head * dim;
            double sq = 0, sk = 0;
            for (uint32_t c = 0; c < dim; c++) {
                double e = (double)kj[c] * exp(g[i * dim + c] - g[j * dim + c]);
                sq += (double)q[c] * e;
                sk += (double)k[c] * e;
            }
            mm[i * KERN_GRID + j] = sq;
            a[i * KERN_GRID + j] = beta * sk;
        }
        /* D_i by forward substitution, and the read-out of row i */
        double dq[512], dk[512];
        for (uint32_t c = 0; c < dim; c++) {
            double e = exp(g[i * dim + c]);
            dq[c] = (double)q[c] * e;
            dk[c] = (double)k[c] * e;
        }
        float *o = x->l->o + (row0 + i) * p + head * dim;
        for (uint32_t v = 0; v < dim; v++) {
            double from_state_k = 0, from_state_q = 0;
            for (uint32_t c = 0; c < dim; c++) {
                from_state_k += dk[c] * (double)state[c * dim + v];
                from_state_q += dq[c] * (double)state[c * dim + v];
            }
            double di = beta * ((double)k[p + v] - from_state_k);
            for (uint32_t j = 0; j < i; j++)
                di -= a[i * KERN_GRID + j] * d[j * dim + v];
            d[i * dim + v] = di;
            double out = from_state_q;
            for (uint32_t j = 0; j <= i; j++)
                out += mm[i * KERN_GRID + j] * d[j * dim + v];
            o[v] = (float)out;
        }
    }
    const double *last = g + (n - 1) * dim;
    for (uint32_t c = 0; c < dim; c++) {
        double scaled[KERN_GRID];
        for (uint32_t j = 0; j < n; j++)
            scaled[j] =
                (double)x->l->qkv[(row0 + j) * 3 * p + p + head * dim + c] * exp(last[c] - g[j * dim + c]);
        double e = exp(last[c]);
        for (uint32_t v = 0; v < dim; v++) {
            double s = e * (double)state[c * dim + v];
            for (uint32_t j = 0; j < n; j++)
                s += scaled[j] * d[j * dim + v];
            state[c * dim + v] = (float)s;
        }
    }
}
