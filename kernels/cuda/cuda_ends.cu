/* SPDX-License-Identifier: MIT */
/* cuda_ends.cu: what stands before and behind the layers: embedding, final mean and norm, the draft layer's ends. F32;
 * a block takes a row, and sums in an order that depends on the width alone. */
#include "cuda_step.cuh"

enum { ENDS_THREADS = 512, ENDS_EACH = 12 }; /* columns that a thread keeps of a row; wider rows take more passes */

/* Rows of the embedding, as stored. */
struct ends_table {
    const char *codes, *scale;
    const float *global;
    struct kern_store store;
    uint32_t rows, cols;
};

__device__ static __forceinline__ float ends_scale(const struct ends_table &t, uint32_t row, uint32_t col) {
    const uint32_t br = t.store.block_rows, bc = t.store.block_cols;
    const uint64_t per_row = bc ? (t.cols + bc - 1) / bc : 1, at = (br ? row / br : 0) * per_row + (bc ? col / bc : 0);
    switch (t.store.scale) {
    case KERN_SCALE_F32: return step_plain(t.scale, KERN_F32, at);
    case KERN_SCALE_BF16: return step_plain(t.scale, KERN_BF16, at);
    case KERN_SCALE_F16: return step_plain(t.scale, KERN_F16, at);
    default: return ptx_f16_f32(ptx_e4m3x2_f16x2(((const uint8_t *)t.scale)[at]) & 0xffff);
    }
}

__device__ static __forceinline__ float ends_embedding(const struct ends_table &t, uint32_t row, uint32_t col) {
    const uint64_t at = (uint64_t)row * t.cols + col;
    const uint8_t *bytes = (const uint8_t *)t.codes;
    switch (t.store.format) {
    case KERN_FP8:
        return ptx_f16_f32(ptx_e4m3x2_f16x2(bytes[at]) & 0xffff) * ends_scale(t, row, col);
    case KERN_INT8:
        return (float)((int)bytes[at] - 128) * ends_scale(t, row, col);
    case KERN_NVFP4: {
        const uint32_t c = bytes[at / 2] >> 4 * (at % 2) & 15, e = c >> 1 & 3, m = c & 1;
        const float v = e ? (float)((2 + m) << e) * 0.25f : (float)m * 0.5f;
        return (c & 8 ? -v : v) * (ends_scale(t, row, col) * t.global[0]);
    }
    default:
        return step_plain(t.codes, t.store.format, at);
    }
}

/* Ids come from a checked plan, but a slot may have drawn nothing (masks left no token): its rows then compute
 * something harmless. */
__device__ static __forceinline__ uint32_t ends_token(const struct cuda_step *s, const struct cuda_row *row,
                                                      uint32_t table, const uint32_t *last, uint32_t rows) {
    uint32_t t = row->token;
    if (t == KERN_TOKEN_LAST)
        t = last[step_seqs(s, table)[row->seq].slot];
    return t < rows ? t : 0;
}

__global__ void __launch_bounds__(ENDS_THREADS)
    ends_embed(const struct cuda_step *step, struct ends_table t, const uint32_t *last, float *streams, uint32_t hc) {
    const uint32_t i = blockIdx.y, col = blockIdx.x * ENDS_THREADS + threadIdx.x;
    if (i >= step->n_rows[0] || col >= t.cols)
        return;
    const struct cuda_row *row = step_rows(step, 0) + i;
    const struct kern_plan *plan = (const struct kern_plan *)((const char *)step + step->plan);
    float v;
    if (row->embed != KERN_NONE)
        v = ((const float *)((const char *)plan + plan->embeds))[(uint64_t)row->embed * t.cols + col];
    else
        v = ends_embedding(t, ends_token(step, row, 0, last, t.rows), col);
    for (uint32_t j = 0; j < hc; j++)
        streams[((uint64_t)row->plan_row * hc + j) * t.cols + col] = v;
}

__global__ void __launch_bounds__(ENDS_THREADS)
    ends_final(const struct cuda_step *step, const float *streams, const float *w, float *hidden, uint32_t hc,
               uint32_t n, float eps) {
    __shared__ float room[32];
    const uint32_t i = blockIdx.x;
    if (i >= step->n_rows[0])
        return;
    const uint64_t row = step_rows(step, 0)[i].plan_row;
    const float *f = streams + row * hc * n;
    float *out = hidden + row * n, squares = 0.0f, gain[ENDS_EACH], mean[ENDS_EACH];
    const float part = 1.0f / (float)hc;
#pragma unroll
    for (uint32_t e = 0; e < ENDS_EACH; e++) {
        const uint32_t d = threadIdx.x + e * ENDS_THREADS;
        gain[e] = d < n ? w[d] : 0.0f;
        mean[e] = 0.0f;
    }
    /* streams outside, so that the columns of one are on their way together */
    for (uint32_t h = 0; h < hc; h++)
#pragma unroll
        for (uint32_t e = 0; e < ENDS_EACH; e++) {
            const uint32_t d = threadIdx.x + e * ENDS_THREADS;
            mean[e] += d < n ? f[(uint64_t)h * n + d] : 0.0f;
        }
#pragma unroll
    for (uint32_t e = 0; e < ENDS_EACH; e++) {
        mean[e] *= part;
        squares = fmaf(mean[e], mean[e], squares);
    }
    for (uint32_t d = threadIdx.x + ENDS_EACH * ENDS_THREADS; d < n; d += ENDS_THREADS) {
        float s = 0.0f;
        for (uint32_t h = 0; h < hc; h++)
            s += f[(uint64_t)h * n + d];
        s *= part;
        out[d] = s; /* the same thread reads it again */
        squares = fmaf(s, s, squares);
    }
    const float scale = 1.0f / sqrtf(step_block_sum(squares, room) / (float)n + eps);
#pragma unroll
    for (uint32_t e = 0; e < ENDS_EACH; e++) {
        const uint32_t d = threadIdx.x + e * ENDS_THREADS;
        if (d < n)
            out[d] = mean[e] * scale * gain[e];
    }
    for (uint32_t d = threadIdx.x + ENDS_EACH * ENDS_THREADS; d < n; d += ENDS_THREADS)
        out[d] = out[d] * scale * w[d];
}

struct ends_draft {
    const struct cuda_step *step;
    struct ends_table t;
    const uint32_t *last;
    const float *hidden, *enorm, *hnorm; /* hidden: of plan rows */
    uint16_t *x; /* [rows][ld]: the next token's embedding, then the trunk's hidden */
    uint32_t ld;
    float eps;
};

__global__ void __launch_bounds__(ENDS_THREADS) ends_draft_in(struct ends_draft a) {
    __shared__ float room[2][32];
    const uint32_t i = blockIdx.x, n = a.t.cols;
    if (i >= a.step->n_rows[1])
        return;
    const struct cuda_row *row = step_rows(a.step, 1) + i;
    const uint32_t token = ends_token(a.step, row, 1, a.last, a.t.rows);
    const float *h = a.hidden + (uint64_t)row->plan_row * n;
    uint16_t *x = a.x + (uint64_t)i * a.ld;
    float se = 0.0f, sh = 0.0f;
    for (uint32_t d = threadIdx.x; d < n; d += ENDS_THREADS) {
        const float e = ends_embedding(a.t, token, d);
        se = fmaf(e, e, se);
        sh = fmaf(h[d], h[d], sh);
    }
    se = 1.0f / sqrtf(step_block_sum(se, room[0]) / (float)n + a.eps);
    sh = 1.0f / sqrtf(step_block_sum(sh, room[1]) / (float)n + a.eps);
    for (uint32_t d = threadIdx.x; d < n; d += ENDS_THREADS) {
        x[d] = ptx_f32_bf16(ends_embedding(a.t, token, d) * se * a.enorm[d]);
        x[n + d] = ptx_f32_bf16(h[d] * sh * a.hnorm[d]);
    }
}

__global__ void __launch_bounds__(ENDS_THREADS)
    ends_draft_out(const struct cuda_step *step, const float *plain, const float *w, float *out, uint32_t n,
                   float eps) {
    __shared__ float room[32];
    const uint32_t i = blockIdx.x;
    if (i >= step->n_rows[1])
        return;
    const float *f = plain + (uint64_t)i * n;
    float *to = out + (uint64_t)step_rows(step, 1)[i].plan_row * n, squares = 0.0f;
    for (uint32_t d = threadIdx.x; d < n; d += ENDS_THREADS)
        squares = fmaf(f[d], f[d], squares);
    const float scale = 1.0f / sqrtf(step_block_sum(squares, room) / (float)n + eps);
    for (uint32_t d = threadIdx.x; d < n; d += ENDS_THREADS)
        to[d] = f[d] * scale * w[d];
}

__global__ void __launch_bounds__(ENDS_THREADS) ends_halves(float *at, uint64_t n) {
    const uint64_t i = (uint64_t)blockIdx.x * ENDS_THREADS + threadIdx.x;
    if (i < n)
        at[i] = ptx_f16_f32(((const uint16_t *)at)[2 * i + 1]);
}

/* ---- host ----------------------------------------------------------------------------------------------- */

static struct ends_table table_of(const struct cuda_run *r, uint64_t table, const struct kern_store *store,
                                  uint64_t scale, uint64_t global) {
    struct ends_table t = {};
    t.codes = r->weights + table;
    t.scale = r->weights + scale;
    t.global = (const float *)(r->weights + global);
    t.store = *store;
    t.rows = r->d->own_vocab;
    t.cols = r->d->hidden;
    return t;
}

static const float *vector_at(const struct cuda_run *r, uint64_t at) {
    return (const float *)(r->weights + at);
}

extern "C" cudaError_t cuda_embed(const struct cuda_run *r, uint64_t table, const struct kern_store *store,
                                  uint64_t scale, uint64_t global) {
    const struct ends_table t = table_of(r, table, store, scale, global);
    const dim3 grid((t.cols + ENDS_THREADS - 1) / ENDS_THREADS, r->rows);
    return CUDA_LAUNCH(ends_embed, grid, dim3(ENDS_THREADS), 0, r->stream, r->lane->step, t, r->last, r->lane->streams,
                       r->d->hc);
}

extern "C" cudaError_t cuda_final(const struct cuda_run *r, uint64_t norm) {
    return CUDA_LAUNCH(ends_final, dim3(r->rows), dim3(ENDS_THREADS), 0, r->stream, r->lane->step, r->lane->streams,
                       vector_at(r, norm), r->lane->hidden_f, r->d->hc, r->d->hidden, r->d->rms_eps);
}

extern "C" cudaError_t cuda_draft_in(const struct cuda_run *r, uint64_t table, const struct kern_store *store,
                                     uint64_t scale, uint64_t global) {
    struct ends_draft a = {};
    a.step = r->lane->step;
    a.t = table_of(r, table, store, scale, global);
    a.last = r->last;
    a.hidden = r->lane->hidden_f;
    a.enorm = vector_at(r, r->layer->enorm);
    a.hnorm = vector_at(r, r->layer->hnorm);
    a.x = r->lane->mid + r->mid->eh;
    a.ld = r->mid->ld;
    a.eps = r->d->rms_eps;
    const cudaError_t e = CUDA_LAUNCH(ends_draft_in, dim3(r->rows), dim3(ENDS_THREADS), 0, r->stream, a);
    struct cuda_prod p = {};
    p.m = &r->layer->eh;
    p.x = a.x;
    p.ldx = a.ld;
    p.out = r->lane->plain;
    p.ldo = r->d->hidden;
    return e == cudaSuccess ? cuda_products(r, &p, 1) : e;
}

extern "C" cudaError_t cuda_draft_out(const struct cuda_run *r) {
    return CUDA_LAUNCH(ends_draft_out, dim3(r->rows), dim3(ENDS_THREADS), 0, r->stream, r->lane->step, r->lane->plain,
                       vector_at(r, r->layer->draft_norm), r->lane->draft_f, r->d->hidden, r->d->rms_eps);
}

extern "C" cudaError_t cuda_widen_halves(cudaStream_t s, float *at, uint64_t n) {
    const dim3 grid((unsigned)((n + ENDS_THREADS - 1) / ENDS_THREADS));
    return CUDA_LAUNCH(ends_halves, grid, dim3(ENDS_THREADS), 0, s, at, n);
}
