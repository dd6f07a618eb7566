/* SPDX-License-Identifier: MIT */
/* cuda_prod_bytes.cuh: products with matrices of one byte a number, FP8 and INT8. C says what a byte is as BF16, which
 * is exact. The factor of a group of inputs is the outputs' in the matrix product's result: sums of 128 inputs are
 * multiplied by it in F32. Groups that are no multiples of that are multiplied one after another, the others' numbers
 * being zero meanwhile. */
#ifndef GLMD_CUDA_PROD_BYTES_CUH
#define GLMD_CUDA_PROD_BYTES_CUH

#include "cuda_prod.cuh"

/* ODD: groups are anything but 128 inputs times a power of two. */
template <class C, bool ODD> struct prod_of_bytes {
    enum { CHUNKS = 2, ALIGN = 2, ZEROS = 1, SIDES = 1 };
    template <int NB> struct state {
        typename C::seen seen;
        float d[NB][4]; /* sums of a batch, which has one scale */
    };
    struct batch {
        uint4 w[4];
        float scale[2]; /* row g, row g + 8 */
        __device__ __forceinline__ void load(const struct prod_job &j, const struct prod_tile &t, uint32_t c,
                                             uint32_t end) {
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const char *at = t.codes + (size_t)(c + p) * 1024;
                w[2 * p] = prod_stream16(at, c + p < end);
                w[2 * p + 1] = prod_stream16(at + 512, c + p < end);
            }
            scale[0] = scale[1] = 0;
            if (!ODD && c < end) {
                const uint32_t at = (c >> j.group_log) * t.step;
                scale[0] = prod_scale(t.scale + at, j.scale_kind);
                scale[1] = prod_scale(t.scale + at + t.second, j.scale_kind);
            }
        }
    };
    __device__ static __forceinline__ size_t tile_at(const struct prod_job &j, uint32_t tile, uint32_t lane) {
        return (size_t)tile * j.chunks * 1024 + lane * 16;
    }
    /* The scales of the lane's two rows: t.step bytes from a group to the next, t.second from row g to row g + 8. */
    __device__ static __forceinline__ void begin(const struct prod_job &j, struct prod_tile *t) {
        const uint32_t unit = j.scale_kind == KERN_SCALE_F32 ? 4 : 2, n = t->lane / 4;
        if (!j.block_rows) {
            t->scale += ((uint64_t)t->tile * j.groups * 16 + n) * unit;
            t->step = 16 * unit;
            t->second = 8 * unit;
            return;
        }
        const uint32_t lo = (t->tile * 16 + n) / j.block_rows, hi = (t->tile * 16 + n + 8) / j.block_rows;
        const uint32_t last = (j.n - 1) / j.block_rows; /* rows of padding have no band */
        const uint32_t first = lo < last ? lo : last;
        t->scale += (uint64_t)first * j.groups * unit;
        t->step = unit;
        t->second = ((hi < last ? hi : last) - first) * j.groups * unit;
    }
    /* mine: all ones, or zero where the lane's numbers are of another group */
    template <int NB>
    __device__ static __forceinline__ void sums(const uint4 w[2], uint32_t mine, const prod_x<NB> &x, float d[NB][4]) {
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint32_t lo = prod_word(w[m >> 1], 2 * (m & 1)), hi = prod_word(w[m >> 1], 2 * (m & 1) + 1);
            const uint32_t a[4] = {C::first(lo) & mine, C::first(hi) & mine, C::second(lo) & mine,
                                   C::second(hi) & mine};
#pragma unroll
            for (int b = 0; b < NB; b++)
                ptx_mma_bf16(d[b], a, x.w[b][2 * m], x.w[b][2 * m + 1]);
        }
    }
    template <int NB>
    __device__ static __forceinline__ void add(const float d[NB][4], float lo, float hi, float acc[NB][4]) {
#pragma unroll
        for (int b = 0; b < NB; b++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[b][i] = fmaf(d[b][i], i < 2 ? lo : hi, acc[b][i]);
    }
    template <int NB> __device__ static __forceinline__ void clear(float d[NB][4]) {
#pragma unroll
        for (int b = 0; b < NB; b++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                d[b][i] = 0;
    }
    template <int NB>
    __device__ static __forceinline__ void multiply(const struct prod_job &j, const struct prod_tile &t, const batch &w,
                                                    int p, uint32_t chunk, const prod_x<NB> &x, state<NB> &s,
                                                    float acc[NB][4]) {
        s.seen.look(w.w[2 * p], w.w[2 * p + 1]);
        if (!ODD) {
            if (p == 0)
                clear<NB>(s.d);
            sums<NB>(w.w + 2 * p, 0xffffffffu, x, s.d);
            if (p == CHUNKS - 1)
                add<NB>(s.d, w.scale[0], w.scale[1], acc);
            return;
        }
        const uint32_t k0 = chunk * TILE_CHUNK, last = j.groups - 1; /* paddings are as the last group, and zeros */
        uint32_t mine = (k0 + 16 * (t.lane % 4)) / j.block_cols, end = (k0 + TILE_CHUNK - 1) / j.block_cols;
        mine = mine < last ? mine : last;
        end = end < last ? end : last;
        for (uint32_t group = min(k0 / j.block_cols, last); group <= end; group++) {
            const char *at = t.scale + (uint64_t)group * t.step;
            clear<NB>(s.d);
            sums<NB>(w.w + 2 * p, mine == group ? 0xffffffffu : 0, x, s.d);
            add<NB>(s.d, prod_scale(at, j.scale_kind), prod_scale(at + t.second, j.scale_kind), acc);
        }
    }
    template <int NB> __device__ static __forceinline__ void finish(state<NB> &s, float acc[NB][4]) {
        s.seen.template finish<NB>(acc);
    }
    __device__ static __forceinline__ float factor(const struct prod_job &, int, uint32_t, uint32_t, uint32_t) {
        return 1.0f;
    }
};

template <class C>
static cudaError_t prod_bytes_start(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s) {
    for (uint32_t i = 0; i < a.n_jobs; i++)
        if (a.job[i].group_log == PROD_ODD)
            return prod_start<prod_of_bytes<C, true>>(a, blocks, nb, t, s);
    return prod_start<prod_of_bytes<C, false>>(a, blocks, nb, t, s);
}

#endif
