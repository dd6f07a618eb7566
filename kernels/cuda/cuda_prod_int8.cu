/* SPDX-License-Identifier: MIT */
/* cuda_prod_int8.cu: products with matrices of INT8. */
#include "cuda_prod_bytes.cuh"

/* q + 128 as seven bits and their weight, both on top of BF16's 128 .. 256, where a step is one. */
struct prod_q8 {
    struct seen {
        __device__ __forceinline__ void look(const uint4 &, const uint4 &) {}
        template <int NB> __device__ __forceinline__ void finish(float[NB][4]) {}
    };
    __device__ static __forceinline__ uint32_t second(uint32_t w) {
        return ptx_bf16x2_sub((w & 0x007f007f) | 0x43004300, (~w & 0x00800080) | 0x43004300);
    }
    __device__ static __forceinline__ uint32_t first(uint32_t w) { return second(w >> 8); }
};

cudaError_t prod_int8(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s) {
    return prod_bytes_start<struct prod_q8>(a, blocks, nb, t, s);
}
