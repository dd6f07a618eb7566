/* SPDX-License-Identifier: MIT */
/* cuda_prod.cuh: the product of packed matrices with up to 16 rows; each format instantiates it in a file of its own.
 *
 * A block has eight warps. 2^split_log of them share the inputs of a tile of 16 outputs, cut by the matrix's shape
 * alone, and their sums are added in order; so a row's bits depend neither on the rows beside it nor on the grid. A
 * launch is a list of jobs: matrices that read the same rows, or all experts of a layer that some row chose. A block
 * whose rows do not exist in this step ends at once. */
#ifndef GLMD_CUDA_PROD_CUH
#define GLMD_CUDA_PROD_CUH

#include "cuda_ptx.cuh"
#include "cuda_tile.h"

enum { PROD_ODD = 255, PROD_WARPS = 8, PROD_THREADS = 32 * PROD_WARPS, PROD_JOBS = CUDA_MAX_GROUP_MATS };

struct prod_side { /* a matrix, and with a gate the one that is multiplied by it */
    const char *codes, *scale;
    const float *global;
    uint64_t stride;
};

struct prod_job {
    struct prod_side side[2];
    uint64_t head_codes, head_scale; /* bytes from a head to the next one */
    uint32_t first_block, tile_blocks; /* of one pass over the rows */
    uint32_t n, tiles, chunks, heads, split_log;
    uint32_t scale_kind, groups, block_rows, block_cols; /* block_rows 0: a scale a row; block_cols a multiple of 16 */
    uint32_t group_log; /* a scale serves 64 << group_log inputs, 128 at least; or PROD_ODD */
    uint32_t k_pad, format, bits, mul1, mul, add; /* the last four: EXL3 */
    /* rows: those of the table, or *count of them, or entries of items (cuda_lane.items) */
    const uint32_t *count, *items, *item_rows;
    const uint16_t *x;
    uint32_t ldx, head_ldx, x_div; /* entry e reads row e / x_div */
    float *out; /* one of them */
    uint16_t *out16;
    uint32_t ldo, ld_place, out_div, out_at, head_ldo; /* entry e: row e / out_div, place e % out_div */
    const uint32_t *place; /* by entry: the row of out; NULL: the same */
    const float *weight;   /* by entry; NULL: 1 */
    float limit; /* of the gate */
};

struct prod_args {
    const struct cuda_step *step;
    uint32_t is_draft, n_jobs;
    struct prod_job job[PROD_JOBS];
};

/* ---- operands ------------------------------------------------------------------------------------------- */

/* What a warp reads of one tile: pointers are the lane's. */
struct prod_tile {
    const char *codes;
    const char *scale; /* of the head, until the format's begin() moves it */
    uint32_t tile, lane, step, second;
};

__device__ static __forceinline__ float prod_scale(const char *p, uint32_t kind) {
    if (kind == KERN_SCALE_F32)
        return __ldg((const float *)p);
    uint32_t h = __ldg((const uint16_t *)p);
    return kind == KERN_SCALE_BF16 ? ptx_bf16_f32(h) : ptx_f16_f32(h);
}

/* The lane's sixteen numbers of a chunk, of its column's row. */
template <int NB> struct prod_x {
    uint32_t w[NB][8];
    /* there: false: zeros. A format whose codes of nothing are zeros need not ask. */
    __device__ __forceinline__ void load(const uint16_t *const x[NB], uint32_t chunk, bool there) {
#pragma unroll
        for (int b = 0; b < NB; b++) {
            const uint4 *p = (const uint4 *)(x[b] + (size_t)chunk * TILE_CHUNK);
            uint4 lo = {0, 0, 0, 0}, hi = {0, 0, 0, 0};
            if (there) {
                lo = __ldg(p);
                hi = __ldg(p + 1);
            }
            w[b][0] = lo.x, w[b][1] = lo.y, w[b][2] = lo.z, w[b][3] = lo.w;
            w[b][4] = hi.x, w[b][5] = hi.y, w[b][6] = hi.z, w[b][7] = hi.w;
        }
    }
};

__device__ static __forceinline__ uint32_t prod_word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* ---- the kernel ----------------------------------------------------------------------------------------- */

/* Which of the rows a block computes. */
struct prod_rows {
    uint32_t first, n; /* n = 0: none */
    uint32_t expert;
    const uint32_t *entries; /* NULL: first, first + 1, ... */
};

template <int NB>
__device__ static __forceinline__ struct prod_rows prod_rows_of(const struct prod_args &a, const struct prod_job &j,
                                                                uint32_t pass) {
    struct prod_rows r = {0, 0, 0, NULL};
    if (j.items) {
        if (pass < j.items[0]) {
            r.expert = FAULT(cuda_wrong_expert) ? 0 : j.items[1 + 3 * pass];
            r.entries = j.item_rows + j.items[2 + 3 * pass];
            r.n = j.items[3 + 3 * pass];
        }
        return r;
    }
    uint32_t n = j.count ? *j.count : a.step->n_rows[a.is_draft];
    r.first = pass * 8 * NB;
    if (r.first < n)
        r.n = n - r.first < 8 * NB ? n - r.first : 8 * NB;
    return r;
}

__device__ static __forceinline__ uint32_t prod_entry(const struct prod_rows &r, uint32_t i) {
    return r.entries ? r.entries[i] : r.first + i;
}

/* silu(min(gate, limit)) * clamp(up): what is no number stays none */
__device__ static __forceinline__ float prod_swiglu(float g, float u, float limit) {
    if (limit > 0) {
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
    }
    return g / (1.0f + expf(-g)) * u;
}

__device__ static __forceinline__ void prod_store(const struct prod_job &j, uint32_t entry, uint32_t head, uint32_t n,
                                                  float v) {
    const uint32_t row = j.place ? j.place[entry] : entry / j.out_div;
    size_t at = (size_t)row * j.ldo + (size_t)(entry % j.out_div) * j.ld_place + j.out_at +
                (size_t)head * j.head_ldo + n;
    if (j.weight)
        v *= j.weight[entry];
    if (j.out16)
        j.out16[at] = ptx_f32_bf16(v);
    else
        j.out[at] = v;
}

/* 16 bytes of weights; zeros where there are none. */
__device__ static __forceinline__ uint4 prod_stream16(const char *p, bool there) {
    uint4 v = {0, 0, 0, 0};
    if (there)
        v = ptx_stream16(p);
    return v;
}

/* One warp's share of the sums of a tile. F: the format; T: 2 with a gate. A batch of F::CHUNKS is on its way while the
 * one before is multiplied; what lies behind the share's end counts as zeros, so that nothing branches. */
template <class F, int NB, int T>
__device__ static __forceinline__ void prod_warp(const struct prod_job &j, const struct prod_tile t[T],
                                                 const uint16_t *const x[NB], uint32_t c0, uint32_t c1,
                                                 float acc[T][NB][4]) {
    typename F::template state<NB> s[T];
    typename F::batch now[T], next[T];
#pragma unroll
    for (int i = 0; i < T; i++)
        now[i].load(j, t[i], c0, c1);
    for (uint32_t c = c0; c < c1; c += F::CHUNKS) {
#pragma unroll
        for (int i = 0; i < T; i++)
            next[i].load(j, t[i], c + F::CHUNKS, c1);
#pragma unroll
        for (int p = 0; p < F::CHUNKS; p++) {
            prod_x<NB> b;
            const bool there = c + p < c1;
            b.load(x, F::ZEROS && !there ? c1 - 1 : c + p, F::ZEROS || there);
#pragma unroll
            for (int i = 0; i < T; i++)
                F::template multiply<NB>(j, t[i], now[i], p, c + p, b, s[i], acc[i]);
        }
#pragma unroll
        for (int i = 0; i < T; i++)
            now[i] = next[i];
    }
#pragma unroll
    for (int i = 0; i < T; i++)
        F::template finish<NB>(s[i], acc[i]);
}

/* Sums of the warps: [warp][side][column][output]; columns 20 words apart, so that lanes meet in no bank. */
enum { PROD_LD = 20 };

template <class F, int NB, int T>
__device__ static __forceinline__ void prod_outputs(const struct prod_job &j, const struct prod_rows &r,
                                                    uint32_t tile_block, const float *sums) {
    const uint32_t split = 1u << j.split_log, groups = PROD_WARPS >> j.split_log;
    for (uint32_t i = threadIdx.x; i < groups * NB * 128; i += PROD_THREADS) {
        uint32_t n = i & 15, col = i >> 4 & (8 * NB - 1), group = i / (NB * 128);
        uint32_t at = tile_block * groups + group, head = at / j.tiles, row = at % j.tiles * 16 + n;
        if (at >= j.tiles * j.heads || row >= j.n || col >= r.n)
            continue;
        const uint32_t entry = prod_entry(r, col);
        float v[T];
#pragma unroll
        for (int t = 0; t < T; t++) {
            v[t] = 0;
            for (uint32_t s = 0; s < split; s++)
                v[t] += sums[((((group << j.split_log) + s) * T + t) * 8 * NB + col) * PROD_LD + n];
            v[t] *= F::factor(j, t, r.expert, entry, head);
        }
        prod_store(j, entry, head, row, T == 2 ? prod_swiglu(v[0], v[T - 1], j.limit) : v[0]);
    }
}

/* Two blocks a multiprocessor, one where more sides than F::SIDES, or two of 16 rows, would leave too few registers. */
template <class F, int NB, int T>
__global__ void __launch_bounds__(PROD_THREADS, NB * T == 4 || T > F::SIDES ? 1 : 2)
    prod_kernel(const __grid_constant__ struct prod_args a) {
    __shared__ float sums[PROD_WARPS * T * 8 * NB * PROD_LD];
    uint32_t which = 0;
    while (which + 1 < a.n_jobs && blockIdx.x >= a.job[which + 1].first_block)
        which++;
    const struct prod_job &j = a.job[which];
    const uint32_t local = blockIdx.x - j.first_block, tile_block = local % j.tile_blocks;
    const struct prod_rows r = prod_rows_of<NB>(a, j, local / j.tile_blocks);
    if (!r.n)
        return;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t part = warp & ((1u << j.split_log) - 1);
    const uint32_t at = tile_block * (PROD_WARPS >> j.split_log) + (warp >> j.split_log);
    float acc[T][NB][4] = {};
    if (at < j.tiles * j.heads) {
        const uint32_t head = at / j.tiles, tile = at % j.tiles;
        const uint32_t units = (j.chunks + F::ALIGN - 1) / F::ALIGN;
        const uint32_t c0 = (units * part >> j.split_log) * F::ALIGN;
        const uint32_t end = (units * (part + 1) >> j.split_log) * F::ALIGN;
        const uint16_t *x[NB];
        struct prod_tile t[T];
#pragma unroll
        for (int b = 0; b < NB; b++) {
            uint32_t col = 8 * b + lane / 4; /* columns without a row repeat the first, and nobody reads them */
            x[b] = j.x + (size_t)(prod_entry(r, col < r.n ? col : 0) / j.x_div) * j.ldx + (size_t)head * j.head_ldx +
                   16 * (lane % 4);
        }
#pragma unroll
        for (int i = 0; i < T; i++) {
            const struct prod_side &s = j.side[i];
            t[i].lane = lane;
            t[i].tile = tile;
            t[i].codes = s.codes + r.expert * s.stride + head * j.head_codes + F::tile_at(j, tile, lane);
            t[i].scale = s.scale + r.expert * s.stride + head * j.head_scale;
            F::begin(j, &t[i]);
        }
        prod_warp<F, NB, T>(j, t, x, c0, end < j.chunks ? end : j.chunks, acc);
    }
#pragma unroll
    for (int t = 0; t < T; t++)
#pragma unroll
        for (int b = 0; b < NB; b++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[((warp * T + t) * 8 * NB + 8 * b + 2 * (lane % 4) + (i & 1)) * PROD_LD + lane / 4 + 8 * (i >> 1)] =
                    acc[t][b][i];
    __syncthreads();
    prod_outputs<F, NB, T>(j, r, tile_block, sums);
}

/* ---- launches ------------------------------------------------------------------------------------------- */

/* blocks: of all jobs. nb: blocks of eight rows, 1 or 2. t: 2 with a gate. */
template <class F>
static cudaError_t prod_start(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s) {
    if (t == 2)
        return nb == 1 ? CUDA_LAUNCH(prod_kernel<F, 1, 2>, dim3(blocks), dim3(PROD_THREADS), 0, s, a)
                       : CUDA_LAUNCH(prod_kernel<F, 2, 2>, dim3(blocks), dim3(PROD_THREADS), 0, s, a);
    return nb == 1 ? CUDA_LAUNCH(prod_kernel<F, 1, 1>, dim3(blocks), dim3(PROD_THREADS), 0, s, a)
                   : CUDA_LAUNCH(prod_kernel<F, 2, 1>, dim3(blocks), dim3(PROD_THREADS), 0, s, a);
}

typedef cudaError_t prod_start_fn(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s);
prod_start_fn prod_bf16, prod_fp8, prod_int8, prod_nvfp4, prod_turned, prod_exl3, prod_exl3_turned;

#endif
