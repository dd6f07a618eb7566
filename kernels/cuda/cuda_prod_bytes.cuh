/* SPDX-License-Identifier: MIT */
/* cuda_prod_bytes.cuh: products with matrices of one byte a number, FP8 and INT8. C says what a byte is as BF16, which
 * is exact. The factor of a group of inputs is the outputs' in the matrix product's result: sums of a chunk of 64 are
 * multiplied by it in F32. Groups that end inside a chunk are multiplied one after another, the others' numbers being
 * zero meanwhile. */
#ifndef GLMD_CUDA_PROD_BYTES_CUH
#define GLMD_CUDA_PROD_BYTES_CUH

#include "cuda_prod.cuh"

template <class C> struct prod_of_bytes {
    enum { CHUNKS = 2, ALIGN = 1 };
    template <int NB> struct state {
        typename C::seen seen;
    };
    struct batch {
        uint4 w[4];
        float scale[2][2]; /* [chunk][row g, row g + 8] */
        __device__ __forceinline__ void load(const struct prod_job &j, const struct prod_tile &t, uint32_t c,
                                             uint32_t end) {
#pragma unroll
            for (int p = 0; p < 2; p++)
                if (c + p < end) {
                    const char *at = t.codes + (size_t)(c + p) * 1024;
                    w[2 * p] = ptx_stream16(at);
                    w[2 * p + 1] = ptx_stream16(at + 512);
                    uint32_t group = j.block_cols ? (c + p) * TILE_CHUNK / j.block_cols : 0;
                    scale[p][0] = prod_group_scale(j, t, t.lane / 4, group);
                    scale[p][1] = prod_group_scale(j, t, t.lane / 4 + 8, group);
                }
        }
    };
    __device__ static __forceinline__ size_t tile_at(const struct prod_job &j, uint32_t tile, uint32_t lane) {
        return (size_t)tile * j.chunks * 1024 + lane * 16;
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
    template <int NB>
    __device__ static __forceinline__ void multiply(const struct prod_job &j, const struct prod_tile &t, const batch &w,
                                                    int p, uint32_t chunk, const prod_x<NB> &x, state<NB> &s,
                                                    float acc[NB][4]) {
        const uint32_t k0 = chunk * TILE_CHUNK, last = j.groups - 1;
        s.seen.look(w.w[2 * p], w.w[2 * p + 1]);
        if (j.block_cols % TILE_CHUNK == 0) {
            float d[NB][4] = {};
            sums<NB>(w.w + 2 * p, 0xffffffffu, x, d);
            add<NB>(d, w.scale[p][0], w.scale[p][1], acc);
            return;
        }
        uint32_t mine = (k0 + 16 * (t.lane % 4)) / j.block_cols, end = (k0 + TILE_CHUNK - 1) / j.block_cols;
        mine = mine < last ? mine : last; /* paddings have no group, and count as zeros */
        end = end < last ? end : last;
        for (uint32_t group = k0 / j.block_cols; group <= end; group++) {
            float d[NB][4] = {};
            sums<NB>(w.w + 2 * p, mine == group ? 0xffffffffu : 0, x, d);
            add<NB>(d, prod_group_scale(j, t, t.lane / 4, group), prod_group_scale(j, t, t.lane / 4 + 8, group), acc);
        }
    }
    template <int NB> __device__ static __forceinline__ void finish(state<NB> &s, float acc[NB][4]) {
        s.seen.template finish<NB>(acc);
    }
    __device__ static __forceinline__ float factor(const struct prod_job &, int, uint32_t, uint32_t, uint32_t) {
        return 1.0f;
    }
};

#endif
