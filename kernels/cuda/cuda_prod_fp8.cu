/* SPDX-License-Identifier: MIT */
/* cuda_prod_fp8.cu: products with matrices of FP8. */
#include "cuda_prod_bytes.cuh"

/* E4M3 to BF16: sign, then exponent and fraction four bits further down, are 2^-120 times the number, which is right
 * for the small ones too. The one code that is no number would become 480: a row that has it is none as a whole. */
struct prod_e4m3 {
    struct seen {
        uint32_t row[2] = {0, 0}; /* highest bits: some byte was 0x7f or 0xff */
        __device__ __forceinline__ void look(const uint4 &a, const uint4 &b) {
            row[0] |= nan(a.x) | nan(a.z) | nan(b.x) | nan(b.z);
            row[1] |= nan(a.y) | nan(a.w) | nan(b.y) | nan(b.w);
        }
        __device__ static __forceinline__ uint32_t nan(uint32_t w) { return (w & 0x7f7f7f7f) + 0x01010101; }
        template <int NB> __device__ __forceinline__ void finish(float acc[NB][4]) {
#pragma unroll
            for (int h = 0; h < 2; h++) { /* four lanes share a row's inputs, and each has some of its sums */
                row[h] |= __shfl_xor_sync(0xffffffffu, row[h], 1);
                row[h] |= __shfl_xor_sync(0xffffffffu, row[h], 2);
                if ((row[h] & 0x80808080) && !FAULT(cuda_code_hides_nan))
#pragma unroll
                    for (int b = 0; b < NB; b++)
                        acc[b][2 * h] = acc[b][2 * h + 1] = ptx_bits_f32(0x7fffffff);
            }
        }
    };
    __device__ static __forceinline__ uint32_t first(uint32_t w) {
        return ptx_bf16x2_mul((w & 0x80008000) | (w >> 4 & 0x07f007f0), 0x7b807b80); /* 2^120 */
    }
    __device__ static __forceinline__ uint32_t second(uint32_t w) { return first(w << 8); }
};

cudaError_t prod_fp8(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s) {
    return prod_bytes_start<struct prod_e4m3>(a, blocks, nb, t, s);
}
