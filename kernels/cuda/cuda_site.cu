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

enum { SITE_WARPS = 8, SITE_THREADS = 32 * SITE_WARPS };

/* Values of a row that are summed up by columns: fn's outputs, then the Gram matrix's upper half, row by row. */
template <int HC> struct site_shape {
    static constexpr int fn = HC * (2 + HC), gram = HC * (HC + 1) / 2;
    static constexpr int per_warp = (fn + SITE_WARPS - 1) / SITE_WARPS;
};

/* fn's numbers for this lane's column, for the outputs warp, warp + 8, ... */
template <int HC, int N>
__device__ static __forceinline__ void site_load(const struct site_args &a, uint32_t warp, uint32_t col,
                                                 float (&w)[N][HC]) {
#pragma unroll
    for (int t = 0; t < N; t++)
#pragma unroll
        for (int i = 0; i < HC; i++) {
            const uint32_t o = warp + t * SITE_WARPS;
            const uint64_t at = ((uint64_t)o * HC + i) * a.hidden + col;
            w[t][i] = o < site_shape<HC>::fn && col < a.hidden ? step_plain(a.fn, a.format, at) : 0.0f;
        }
}

/* One column of a row's streams: with the sub-layer's output merged, where there is one, and written back. */
template <int HC>
__device__ static __forceinline__ void site_merge(const struct site_args &a, uint32_t row, uint32_t col,
                                                  float (&f)[HC]) {
    float *s = a.streams + (uint64_t)row * HC * a.hidden + col;
    float in[HC], y = 0.0f;
#pragma unroll
    for (int i = 0; i < HC; i++)
        in[i] = s[(uint64_t)i * a.hidden];
    if (!a.y) {
#pragma unroll
        for (int i = 0; i < HC; i++)
            f[i] = in[i];
        return;
    }
    const float *from = a.y + (uint64_t)row * a.y_stride * a.hidden + col;
    for (uint32_t p = 0; p < a.y_parts; p++)
        y += from[(uint64_t)p * a.hidden];
    if (!a.post) {
        f[0] = in[0] + y;
        s[0] = f[0];
        return;
    }
    const float *post = a.post + (uint64_t)row * HC, *c = a.comb + (uint64_t)row * HC * HC;
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

template <int HC> __global__ void __launch_bounds__(SITE_THREADS) site_streams(struct site_args a) {
    typedef site_shape<HC> shape;
    __shared__ float f[CUDA_GROUP][HC][CUDA_HC_SLICE];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * CUDA_HC_SLICE + lane;
    const uint32_t row0 = blockIdx.y * CUDA_GROUP, all = a.step->n_rows[a.table];
    if (row0 >= all)
        return;
    const uint32_t n = all - row0 < CUDA_GROUP ? all - row0 : CUDA_GROUP;
    float w[shape::per_warp][HC];
    if (a.part && a.fn)
        site_load<HC>(a, warp, col, w);
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
    for (uint32_t r = 0; r < n; r++, part += (uint64_t)values * a.splits) {
        if (a.fn) {
#pragma unroll
            for (int t = 0; t < shape::per_warp; t++) {
                float v = 0.0f;
#pragma unroll
                for (int i = 0; i < HC; i++)
                    v = fmaf(w[t][i], f[r][i][lane], v);
                v = step_warp_sum(v);
                if (lane == 0 && warp + t * SITE_WARPS < fns)
                    part[(uint64_t)(warp + t * SITE_WARPS) * a.splits] = v;
            }
        }
        for (uint32_t g = warp, i = 0, first = 0; g < shape::gram; g += SITE_WARPS) {
            while (g - first >= HC - i) /* row i of the upper half has HC - i numbers */
                first += HC - i++;
            const float v = step_warp_sum(f[r][i][lane] * f[r][i + g - first][lane]);
            if (lane == 0)
                part[(uint64_t)(fns + g) * a.splits] = v;
        }
    }
}

/* ---- the site's input ----------------------------------------------------------------------------------- */

/* What the merge needs; one thread. */
template <int HC>
__device__ static __forceinline__ void site_coefficients(const struct site_args &a, uint32_t row, const float *m,
                                                         float r) {
    float c[HC][HC];
    for (int i = 0; i < HC; i++)
        a.post[(uint64_t)row * HC + i] = 2.0f * step_sigmoid(fmaf(m[HC + i] * r, a.scale[1], a.base[HC + i]));
#pragma unroll
    for (int i = 0; i < HC; i++) {
        float top, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < HC; j++) {
            const int at = 2 * HC + i * HC + j;
            c[i][j] = fmaf(m[at] * r, a.scale[2], a.base[at]);
            top = j == 0 || c[i][j] > top ? c[i][j] : top;
        }
#pragma unroll
        for (int j = 0; j < HC; j++)
            sum += c[i][j] = expf(c[i][j] - top);
#pragma unroll
        for (int j = 0; j < HC; j++)
            c[i][j] = c[i][j] / sum + a.hc_eps;
    }
    for (uint32_t pass = 0; pass < 2 * a.iters - 1; pass++) {
        const bool columns = pass % 2 == 0; /* columns first, columns last */
#pragma unroll
        for (int x = 0; x < HC; x++) {
            float sum = a.hc_eps;
#pragma unroll
            for (int z = 0; z < HC; z++)
                sum += columns ? c[z][x] : c[x][z];
            sum = 1.0f / sum;
#pragma unroll
            for (int z = 0; z < HC; z++) {
                c[z][x] = columns ? c[z][x] * sum : c[z][x];
                c[x][z] = columns ? c[x][z] : c[x][z] * sum;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < HC; i++)
#pragma unroll
        for (int j = 0; j < HC; j++)
            a.comb[((uint64_t)row * HC + i) * HC + j] = c[i][j];
}

/* A block makes SITE_THREADS columns of a row's input; with hyper-connections the last block of the row makes the
 * coefficients of the merge instead, which nobody waits for here. */
template <int HC> __global__ void __launch_bounds__(SITE_THREADS) site_input(struct site_args a) {
    typedef site_shape<HC> shape;
    __shared__ float m[shape::fn + shape::gram];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y;
    if (row >= a.step->n_rows[a.table])
        return;
    const uint32_t fns = a.fn ? shape::fn : 0, values = fns + shape::gram;
    const bool last = a.fn && blockIdx.x == gridDim.x - 1;
    for (uint32_t v = warp; v < values; v += SITE_WARPS) {
        const float *p = a.part + ((uint64_t)row * values + v) * a.splits;
        float sum = 0.0f;
        if (!last && v >= HC && v < fns)
            continue;
        for (uint32_t s = lane; s < a.splits; s += 32)
            sum += p[s];
        sum = step_warp_sum(sum);
        if (lane == 0)
            m[v] = sum;
    }
    __syncthreads();
    const float *gram = m + fns;
    float pre[HC], squares = 0.0f, trace = 0.0f;
    for (int i = 0, g = 0; i < HC; g += HC - i++)
        trace += gram[g];
    const float r = 1.0f / sqrtf(trace / (float)(HC * a.hidden) + a.rms_eps);
    if (last) {
        if (threadIdx.x == 0)
            site_coefficients<HC>(a, row, m, r);
        return;
    }
#pragma unroll
    for (int i = 0; i < HC; i++)
        pre[i] = a.fn ? step_sigmoid(fmaf(m[i] * r, a.scale[0], a.base[i])) + a.hc_eps : 1.0f;
#pragma unroll
    for (int i = 0, g = 0; i < HC; i++)
#pragma unroll
        for (int j = i; j < HC; j++, g++)
            squares = fmaf((i == j ? 1.0f : 2.0f) * pre[i] * pre[j], gram[g], squares);
    squares = squares < 0.0f ? 0.0f : squares; /* not fmaxf(): what is no number must stay none */
    const float norm = 1.0f / sqrtf(squares / (float)a.hidden + a.rms_eps);
    const uint32_t col = blockIdx.x * SITE_THREADS + threadIdx.x;
    if (col >= a.hidden)
        return;
    const float *s = a.streams + (uint64_t)row * HC * a.hidden + col;
    float x = 0.0f;
#pragma unroll
    for (int i = 0; i < HC; i++)
        x = fmaf(pre[i], s[(uint64_t)i * a.hidden], x);
    x = x * norm * a.norm[col];
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
