/* SPDX-License-Identifier: MIT */
/* cuda_site.cu: the residual sites: hyper-connections and plain streams. Model.md's formulas, in F32.
 *
 * A site's products fn (f r) and the norm of the mixed input need sums over whole rows of streams. They are made where
 * the streams are written, by columns: a block merges the sub-layer's output into CUDA_HC_SLICE columns of up to
 * CUDA_GROUP rows and leaves for each row the partial products of the next site's fn with these columns and of the
 * streams with each other (their Gram matrix). site_in adds the partial sums up in order; the sum of squares of the
 * mixed input x = sum pre[i] f[i] follows from the Gram matrix, so its norm needs no pass of its own. Where the sums
 * are cut depends on the hidden width alone, and a merge makes the bits that a pass over stored streams would make. */
#include "cuda_step.cuh"

struct site_args {
    const struct cuda_step *step;
    float *streams;         /* [rows][hc][hidden] */
    const float *y;         /* [rows][y_stride][hidden]; NULL: nothing to merge */
    float *part;            /* [rows][values][splits]; NULL in site_out: not wanted */
    float *post, *comb;     /* NULL: plain */
    const char *fn;         /* of the site whose products are made; NULL: its Gram matrix alone */
    const float *base, *scale, *norm;
    float *u_f;
    uint16_t *u;
    uint32_t table, format, hidden, hidden_pad, y_parts, y_stride, splits, iters;
    float hc_eps, rms_eps;
};

enum { SITE_WARPS = 8, SITE_THREADS = 32 * SITE_WARPS, SITE_PARTS = 12 }; /* parts of y on their way together */

/* Values of a row that are summed up by columns: fn's outputs, then the Gram matrix's upper half, row by row. */
template <int HC> struct site_shape {
    static constexpr int fn = HC * (2 + HC), gram = HC * (HC + 1) / 2;
    static constexpr int per_warp = (fn + SITE_WARPS - 1) / SITE_WARPS;
    static constexpr int gram_per_warp = (gram + SITE_WARPS - 1) / SITE_WARPS;
};

/* fn's numbers for this lane's column, for the outputs warp, warp + 8, ..., as they lie there. The format is asked once
 * and nothing is widened here: a load whose value is looked at holds up all loads behind it. */
template <int HC, int N>
__device__ static __forceinline__ void site_load(const struct site_args &a, uint32_t warp, uint32_t col,
                                                 uint32_t (&w)[N][HC]) {
    const bool wide = a.format == KERN_F32;
    if (wide) {
#pragma unroll
        for (int t = 0; t < N; t++)
#pragma unroll
            for (int i = 0; i < HC; i++) {
                const uint32_t o = warp + t * SITE_WARPS;
                const uint64_t at = ((uint64_t)o * HC + i) * a.hidden + col;
                w[t][i] = o < site_shape<HC>::fn && col < a.hidden ? __ldg((const uint32_t *)a.fn + at) : 0;
            }
        return;
    }
#pragma unroll
    for (int t = 0; t < N; t++)
#pragma unroll
        for (int i = 0; i < HC; i++) {
            const uint32_t o = warp + t * SITE_WARPS;
            const uint64_t at = ((uint64_t)o * HC + i) * a.hidden + col;
            w[t][i] = o < site_shape<HC>::fn && col < a.hidden ? __ldg((const uint16_t *)a.fn + at) : 0;
        }
}

__device__ static __forceinline__ float site_widen(uint32_t format, uint32_t bits) {
    return format == KERN_F32 ? ptx_bits_f32(bits) : format == KERN_BF16 ? ptx_bf16_f32(bits) : ptx_f16_f32(bits);
}

/* One column of a row's streams: with the sub-layer's output merged, where there is one, and written back. Everything
 * is loaded before anything is added up. */
template <int HC>
__device__ static __forceinline__ void site_merge(const struct site_args &a, uint32_t row, uint32_t col,
                                                  float (&f)[HC]) {
    float *s = a.streams + (uint64_t)row * HC * a.hidden + col;
    float in[HC], post[HC], c[HC * HC], part[SITE_PARTS], y = 0.0f;
#pragma unroll
    for (int i = 0; i < HC; i++)
        in[i] = s[(uint64_t)i * a.hidden];
    if (!a.y) {
#pragma unroll
        for (int i = 0; i < HC; i++)
            f[i] = in[i];
        return;
    }
    if (a.post) {
#pragma unroll
        for (int i = 0; i < HC; i++)
            post[i] = a.post[(uint64_t)row * HC + i];
#pragma unroll
        for (int i = 0; i < HC * HC; i++)
            c[i] = a.comb[(uint64_t)row * HC * HC + i];
    }
    const float *from = a.y + (uint64_t)row * a.y_stride * a.hidden + col;
    for (uint32_t p = 0; p < a.y_parts; p += SITE_PARTS) {
#pragma unroll
        for (uint32_t i = 0; i < SITE_PARTS; i++)
            part[i] = p + i < a.y_parts ? from[(uint64_t)(p + i) * a.hidden] : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < SITE_PARTS; i++)
            y += part[i];
    }
    if (!a.post) {
        f[0] = in[0] + y;
        s[0] = f[0];
        return;
    }
#pragma unroll
    for (int j = 0; j < HC; j++) {
        float v = post[j] * y;
#pragma unroll
        for (int i = 0; i < HC; i++)
            v = fmaf(c[i * HC + j], in[i], v);
        f[j] = v;
        s[(uint64_t)j * a.hidden] = v;
    }
}

/* Sums over the warp of N numbers a lane, all on their way together. */
template <int N> __device__ static __forceinline__ void site_warp_sums(float (&v)[N]) {
#pragma unroll
    for (int h = 16; h; h >>= 1)
#pragma unroll
        for (int t = 0; t < N; t++)
            v[t] += __shfl_xor_sync(0xffffffffu, v[t], h);
}

template <int HC> __global__ void __launch_bounds__(SITE_THREADS) site_streams(struct site_args a) {
    typedef site_shape<HC> shape;
    __shared__ float f[CUDA_GROUP][HC][CUDA_HC_SLICE];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * CUDA_HC_SLICE + lane;
    const uint32_t row0 = blockIdx.y * CUDA_GROUP, all = a.step->n_rows[a.table];
    uint32_t w[shape::per_warp][HC];
    if (a.part && a.fn) /* comes from memory, the rest from the cache: it goes first */
        site_load<HC>(a, warp, col, w);
    if (row0 >= all)
        return;
    const uint32_t n = all - row0 < CUDA_GROUP ? all - row0 : CUDA_GROUP;
    for (uint32_t r = warp; r < n; r += SITE_WARPS) {
        float v[HC] = {};
        if (col < a.hidden)
            site_merge<HC>(a, row0 + r, col, v);
#pragma unroll
        for (int i = 0; i < HC; i++)
            f[r][i][lane] = v[i];
    }
    __syncthreads();
    if (!a.part)
        return;
    const uint32_t fns = a.fn ? shape::fn : 0, values = fns + shape::gram;
    float *part = a.part + (uint64_t)row0 * values * a.splits + blockIdx.x;
    uint32_t first[shape::gram_per_warp], second[shape::gram_per_warp];
#pragma unroll
    for (int t = 0; t < shape::gram_per_warp; t++) {
        uint32_t g = warp + t * SITE_WARPS, i = 0;
        while (i < HC && g >= HC - i) /* row i of the upper half has HC - i numbers */
            g -= HC - i++;
        first[t] = i < HC ? i : 0;
        second[t] = i < HC ? i + g : 0;
    }
    for (uint32_t r = 0; r < n; r++, part += (uint64_t)values * a.splits) {
        float v[shape::per_warp + shape::gram_per_warp] = {};
        if (a.fn) {
#pragma unroll
            for (int t = 0; t < shape::per_warp; t++)
#pragma unroll
                for (int i = 0; i < HC; i++)
                    v[t] = fmaf(site_widen(a.format, w[t][i]), f[r][i][lane], v[t]);
        }
#pragma unroll
        for (int t = 0; t < shape::gram_per_warp; t++)
            v[shape::per_warp + t] = f[r][first[t]][lane] * f[r][second[t]][lane];
        site_warp_sums(v);
        if (lane)
            continue;
#pragma unroll
        for (int t = 0; t < shape::per_warp; t++)
            if (warp + t * SITE_WARPS < fns)
                part[(uint64_t)(warp + t * SITE_WARPS) * a.splits] = v[t];
#pragma unroll
        for (int t = 0; t < shape::gram_per_warp; t++)
            if (warp + t * SITE_WARPS < shape::gram)
                part[(uint64_t)(fns + warp + t * SITE_WARPS) * a.splits] = v[shape::per_warp + t];
    }
}

/* ---- the site's input ----------------------------------------------------------------------------------- */

/* What the merge needs beside post; one thread. Its passes follow each other, so what counts is how long one takes:
 * columns and rows have code of their own, and the reciprocals are those of the hardware (1 ulp; what the passes
 * converge to corrects it). */
template <int HC>
__device__ static __forceinline__ void site_combine(const struct site_args &a, uint32_t row, const float *m,
                                                    const float *base, float scale, float r) {
    float c[HC][HC];
#pragma unroll
    for (int i = 0; i < HC; i++) {
        float top, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < HC; j++) {
            const int at = 2 * HC + i * HC + j;
            c[i][j] = fmaf(m[at] * r, scale, base[at]);
            top = j == 0 || c[i][j] > top ? c[i][j] : top;
        }
#pragma unroll
        for (int j = 0; j < HC; j++)
            sum += c[i][j] = expf(c[i][j] - top);
        sum = ptx_rcp(sum);
#pragma unroll
        for (int j = 0; j < HC; j++)
            c[i][j] = fmaf(c[i][j], sum, a.hc_eps);
    }
#pragma unroll 1
    for (uint32_t pass = 0;; pass++) { /* columns first, columns last */
#pragma unroll
        for (int j = 0; j < HC; j++) {
            float sum = a.hc_eps;
#pragma unroll
            for (int i = 0; i < HC; i++)
                sum += c[i][j];
            sum = ptx_rcp(sum);
#pragma unroll
            for (int i = 0; i < HC; i++)
                c[i][j] *= sum;
        }
        if (pass + 1 >= a.iters)
            break;
#pragma unroll
        for (int i = 0; i < HC; i++) {
            float sum = a.hc_eps;
#pragma unroll
            for (int j = 0; j < HC; j++)
                sum += c[i][j];
            sum = ptx_rcp(sum);
#pragma unroll
            for (int j = 0; j < HC; j++)
                c[i][j] *= sum;
        }
    }
#pragma unroll
    for (int i = 0; i < HC; i++)
#pragma unroll
        for (int j = 0; j < HC; j++)
            a.comb[((uint64_t)row * HC + i) * HC + j] = c[i][j];
}

__device__ static __forceinline__ float site_sigmoid(float z) {
    return ptx_rcp(1.0f + expf(-z));
}

/* A block makes SITE_THREADS columns of a row's input; with hyper-connections the last block of the row makes the
 * coefficients of the merge instead, which nobody waits for here. All loads are issued before the first is used, also
 * those of rows that the step does not have: they lie in the lane's memory and are dropped. */
template <int HC> __global__ void __launch_bounds__(SITE_THREADS) site_input(struct site_args a) {
    typedef site_shape<HC> shape;
    enum { EACH = (shape::fn + shape::gram + SITE_WARPS - 1) / SITE_WARPS, RUN = 4 };
    __shared__ float m[shape::fn + shape::gram], base[shape::fn];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y;
    const uint32_t all = a.step->n_rows[a.table], fns = a.fn ? shape::fn : 0, values = fns + shape::gram;
    const bool last = a.fn && blockIdx.x == gridDim.x - 1;
    /* of fn's outputs all but the last block need the first HC */
    const uint32_t left_out = last || !a.fn ? 0 : shape::fn - HC, wanted = values - left_out;
    const uint32_t col = blockIdx.x * SITE_THREADS + threadIdx.x;
    float in[HC], gain = 0.0f, scale[3] = {}, offset = 0.0f, sum[EACH] = {};
    if (!last) {
        const float *s = a.streams + (uint64_t)row * HC * a.hidden + col;
#pragma unroll
        for (int i = 0; i < HC; i++)
            in[i] = col < a.hidden ? s[(uint64_t)i * a.hidden] : 0.0f;
        gain = col < a.hidden ? a.norm[col] : 0.0f;
    }
    if (a.fn) {
#pragma unroll
        for (int i = 0; i < 3; i++)
            scale[i] = a.scale[i];
        if (threadIdx.x < shape::fn)
            offset = a.base[threadIdx.x];
    }
    for (uint32_t s0 = lane; s0 < a.splits; s0 += RUN * 32) {
        float p[EACH][RUN];
#pragma unroll
        for (int t = 0; t < EACH; t++) {
            const uint32_t k = warp + t * SITE_WARPS, v = a.fn && k >= HC ? k + left_out : k;
            const float *from = a.part + ((uint64_t)row * values + v) * a.splits + s0;
#pragma unroll
            for (uint32_t u = 0; u < RUN; u++)
                p[t][u] = k < wanted && s0 + u * 32 < a.splits ? from[u * 32] : 0.0f;
        }
#pragma unroll
        for (int t = 0; t < EACH; t++)
#pragma unroll
            for (int u = 0; u < RUN; u++)
                sum[t] += p[t][u];
    }
    if (row >= all)
        return;
    site_warp_sums(sum);
#pragma unroll
    for (int t = 0; t < EACH; t++) {
        const uint32_t k = warp + t * SITE_WARPS;
        if (lane == 0 && k < wanted)
            m[a.fn && k >= HC ? k + left_out : k] = sum[t];
    }
    if (threadIdx.x < shape::fn)
        base[threadIdx.x] = offset;
    __syncthreads();
    const float *gram = m + fns;
    float pre[HC], squares = 0.0f, trace = 0.0f;
#pragma unroll
    for (int i = 0, g = 0; i < HC; g += HC - i++)
        trace += gram[g];
    const float r = rsqrtf(trace / (float)(HC * a.hidden) + a.rms_eps);
    if (last) {
        const uint32_t i = threadIdx.x - 32;
        if (i < HC)
            a.post[(uint64_t)row * HC + i] = 2.0f * site_sigmoid(fmaf(m[HC + i] * r, scale[1], base[HC + i]));
        if (threadIdx.x == 0)
            site_combine<HC>(a, row, m, base, scale[2], r);
        return;
    }
#pragma unroll
    for (int i = 0; i < HC; i++)
        pre[i] = a.fn ? site_sigmoid(fmaf(m[i] * r, scale[0], base[i])) + a.hc_eps : 1.0f;
#pragma unroll
    for (int i = 0, g = 0; i < HC; i++)
#pragma unroll
        for (int j = i; j < HC; j++, g++)
            squares = fmaf((i == j ? 1.0f : 2.0f) * pre[i] * pre[j], gram[g], squares);
    squares = squares < 0.0f ? 0.0f : squares; /* not fmaxf(): what is no number must stay none */
    const float norm = rsqrtf(squares / (float)a.hidden + a.rms_eps);
    if (col >= a.hidden)
        return;
    float x = 0.0f;
#pragma unroll
    for (int i = 0; i < HC; i++)
        x = fmaf(pre[i], in[i], x);
    x = x * norm * gain;
    a.u_f[(uint64_t)row * a.hidden + col] = x;
    a.u[(uint64_t)row * a.hidden_pad + col] = ptx_f32_bf16(x);
}

/* ---- host ----------------------------------------------------------------------------------------------- */

static bool is_mhc(const struct cuda_run *r) {
    return r->desc->resid == KERN_RESID_MHC;
}

static const float *vector_at(const struct cuda_run *r, uint64_t at) {
    return (const float *)(r->weights + at);
}

/* layer, site: the one whose products are made. */
static struct site_args args_of(const struct cuda_run *r, const struct cuda_layer *layer, uint32_t site) {
    struct site_args a = {};
    a.step = r->lane->step;
    a.streams = r->is_draft ? r->lane->plain : r->lane->streams;
    a.part = r->lane->hc_part;
    a.table = r->is_draft;
    a.hidden = r->d->hidden;
    a.hidden_pad = r->d->hidden_pad;
    a.y_stride = r->y_parts;
    a.splits = r->hc_splits;
    a.iters = r->d->hc_iters;
    a.hc_eps = r->d->hc_eps;
    a.rms_eps = r->d->rms_eps;
    a.u_f = r->lane->u_f;
    a.u = r->lane->u;
    if (is_mhc(r)) {
        a.post = r->lane->post;
        a.comb = r->lane->comb;
    }
    if (is_mhc(r) && layer) {
        a.fn = r->weights + layer->hc_fn[site];
        a.format = layer->hc_format[site];
        a.base = vector_at(r, layer->hc_base[site]);
        a.scale = vector_at(r, layer->hc_scale[site]);
    }
    if (layer)
        a.norm = vector_at(r, site == KERN_SITE_ATTN ? layer->in_norm : layer->post_norm);
    return a;
}

template <int HC> static cudaError_t streams_of(const struct cuda_run *r, const struct site_args &a) {
    const dim3 grid(a.splits, (r->rows + CUDA_GROUP - 1) / CUDA_GROUP);
    return CUDA_LAUNCH(site_streams<HC>, grid, dim3(SITE_THREADS), 0, r->stream, a);
}

template <int HC> static cudaError_t input_of(const struct cuda_run *r, const struct site_args &a) {
    const dim3 grid((a.hidden + SITE_THREADS - 1) / SITE_THREADS + (a.fn ? 1 : 0), r->rows);
    return CUDA_LAUNCH(site_input<HC>, grid, dim3(SITE_THREADS), 0, r->stream, a);
}

#define BY_STREAMS(call)                                                                                               \
    switch (is_mhc(r) ? r->d->hc : 1) {                                                                                \
    case 1: return call<1>(r, a);                                                                                      \
    case 2: return call<2>(r, a);                                                                                      \
    case 3: return call<3>(r, a);                                                                                      \
    case 4: return call<4>(r, a);                                                                                      \
    case 5: return call<5>(r, a);                                                                                      \
    case 6: return call<6>(r, a);                                                                                      \
    case 7: return call<7>(r, a);                                                                                      \
    case 8: return call<8>(r, a);                                                                                      \
    default: return cudaErrorInvalidValue;                                                                             \
    }

static cudaError_t launch_streams(const struct cuda_run *r, const struct site_args &a) {
    BY_STREAMS(streams_of)
}
static cudaError_t launch_input(const struct cuda_run *r, const struct site_args &a) {
    BY_STREAMS(input_of)
}

extern "C" cudaError_t cuda_site_in(const struct cuda_run *r, uint32_t site, int partials_done) {
    const struct site_args a = args_of(r, r->layer, site);
    const cudaError_t e = partials_done ? cudaSuccess : launch_streams(r, a);
    return e == cudaSuccess ? launch_input(r, a) : e;
}

extern "C" cudaError_t cuda_site_out(const struct cuda_run *r, uint32_t y_parts, const struct cuda_layer *next,
                                     uint32_t next_site) {
    struct site_args a = args_of(r, next, next_site);
    a.y = r->lane->y;
    a.y_parts = y_parts;
    if (!next)
        a.part = NULL;
    return launch_streams(r, a);
}
