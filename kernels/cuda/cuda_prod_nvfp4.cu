/* SPDX-License-Identifier: MIT */
/* cuda_prod_nvfp4.cu: products with matrices of NVFP4. A code times its group's scale has five bits: exact as BF16. The
 * matrix's own factor is applied to the sum. */
#include "cuda_prod.cuh"

struct prod_of_nvfp4 {
    enum { CHUNKS = TILE_SCALE_CHUNKS, ALIGN = TILE_SCALE_CHUNKS, ZEROS = 1, SIDES = 2 };
    template <int NB> struct state {};
    struct batch {
        uint4 w[4];
        uint2 scale; /* [chunk][row g, row g + 8] */
        __device__ __forceinline__ void load(const struct prod_job &j, const struct prod_tile &t, uint32_t c,
                                             uint32_t end) {
            uint64_t unit = (uint64_t)t.tile * ((j.chunks + 3) / 4) + c / 4;
            scale = make_uint2(0, 0);
            if (c < end)
                scale = ptx_stream8(t.scale + unit * 256 + t.lane * 8);
#pragma unroll
            for (int p = 0; p < 4; p++)
                w[p] = prod_stream16(t.codes + (size_t)(c + p) * 512, c + p < end);
        }
    };
    __device__ static __forceinline__ size_t tile_at(const struct prod_job &j, uint32_t tile, uint32_t lane) {
        return (size_t)tile * j.chunks * 512 + lane * 16;
    }
    /* Two codes in the highest bits of each half: as BF16 they are 2^-126 times the numbers; scale has 2^118. */
    __device__ static __forceinline__ uint32_t pair(uint32_t t, uint32_t scale) {
        return ptx_bf16x2_mul((t & 0x80008000) | (t >> 6 & 0x01c001c0), scale);
    }
    template <int NB>
    __device__ static __forceinline__ void multiply(const struct prod_job &, const struct prod_tile &, const batch &w,
                                                    int p, uint32_t, const prod_x<NB> &x, state<NB> &,
                                                    float acc[NB][4]) {
        const uint32_t two = ptx_e4m3x2_f16x2((p & 2 ? w.scale.y : w.scale.x) >> 16 * (p & 1) & 0xffff);
        const float s0 = ptx_f16_f32(two) * 0x1p118f, s1 = ptx_f16_f32(two >> 16) * 0x1p118f;
        const uint32_t lo = ptx_f32x2_bf16x2(s0, s0);
        const uint32_t hi = FAULT(cuda_scale_of_other_row) ? lo : ptx_f32x2_bf16x2(s1, s1);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint32_t up = m & 1 ? 8 : 0;
            const uint32_t a0 = prod_word(w.w[p], m >> 1) << up, a1 = prod_word(w.w[p], 2 + (m >> 1)) << up;
            const uint32_t a[4] = {pair(a0 << 4, lo), pair(a1 << 4, hi), pair(a0, lo), pair(a1, hi)};
#pragma unroll
            for (int b = 0; b < NB; b++) /* even inputs first, then the odd ones, as the codes lie */
                ptx_mma_bf16(acc[b], a, ptx_prmt(x.w[b][2 * m], x.w[b][2 * m + 1], 0x5410),
                             ptx_prmt(x.w[b][2 * m], x.w[b][2 * m + 1], 0x7632));
        }
    }
    __device__ static __forceinline__ void begin(const struct prod_job &, struct prod_tile *) {}
    template <int NB> __device__ static __forceinline__ void finish(const state<NB> &, float[NB][4]) {}
    __device__ static __forceinline__ float factor(const struct prod_job &j, int side, uint32_t expert, uint32_t,
                                                   uint32_t) {
        const struct prod_side &s = j.side[side];
        return *(const float *)((const char *)s.global + expert * s.stride) * 256.0f;
    }
};

cudaError_t prod_nvfp4(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s) {
    return prod_start<prod_of_nvfp4>(a, blocks, nb, t, s);
}
