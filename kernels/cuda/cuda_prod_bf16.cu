/* SPDX-License-Identifier: MIT */
/* cuda_prod_bf16.cu: products with matrices of BF16: what is loaded is the operand. */
#include "cuda_prod.cuh"

struct prod_of_bf16 {
    enum { CHUNKS = 1, ALIGN = 1, ZEROS = 1, SIDES = 2 };
    template <int NB> struct state {};
    struct batch {
        uint4 w[4];
        __device__ __forceinline__ void load(const struct prod_job &, const struct prod_tile &t, uint32_t c,
                                             uint32_t end) {
#pragma unroll
            for (int m = 0; m < 4; m++)
                w[m] = prod_stream16(t.codes + (size_t)c * 2048 + m * 512, c < end);
        }
    };
    __device__ static __forceinline__ size_t tile_at(const struct prod_job &j, uint32_t tile, uint32_t lane) {
        return (size_t)tile * j.chunks * 2048 + lane * 16;
    }
    template <int NB>
    __device__ static __forceinline__ void multiply(const struct prod_job &, const struct prod_tile &, const batch &w,
                                                    int, uint32_t, const prod_x<NB> &x, state<NB> &, float acc[NB][4]) {
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint32_t a[4] = {w.w[m].x, w.w[m].y, w.w[m].z, w.w[m].w};
#pragma unroll
            for (int b = 0; b < NB; b++)
                ptx_mma_bf16(acc[b], a, x.w[b][2 * m], x.w[b][2 * m + 1]);
        }
    }
    __device__ static __forceinline__ void begin(const struct prod_job &, struct prod_tile *) {}
    template <int NB> __device__ static __forceinline__ void finish(const state<NB> &, float[NB][4]) {}
    __device__ static __forceinline__ float factor(const struct prod_job &, int, uint32_t, uint32_t, uint32_t) {
        return 1.0f;
    }
};

cudaError_t prod_bf16(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s) {
    return prod_start<prod_of_bf16>(a, blocks, nb, t, s);
}
