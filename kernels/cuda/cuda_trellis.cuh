/* SPDX-License-Identifier: MIT */
/* cuda_trellis.cuh: EXL3's codebooks: what states of the trellis are worth, two at a time, as F16. The multiplier and
 * the addend of a codebook are the job's; how the product becomes a number is one of two rules. */
#ifndef GLMD_CUDA_TRELLIS_CUH
#define GLMD_CUDA_TRELLIS_CUH

#include "cuda_prod.cuh"

/* a, b: sixteen bits each, nothing above. The results are rounded as the format says. */
template <bool MUL1>
__device__ static __forceinline__ uint32_t trellis_pair(uint32_t a, uint32_t b, uint32_t mul, uint32_t add) {
    const uint32_t x = a * mul + add, y = b * mul + add;
    if (MUL1) /* 1024 + the sum of the bytes, as the bits of an F16 */
        return ptx_f16x2_fma(ptx_prmt(ptx_byte_sum(x, 0x6400), ptx_byte_sum(y, 0x6400), 0x5410), 0x1eee1eee,
                             0xc931c931);
    const uint32_t u = (x & 0x8fff8fff) ^ 0x3b603b60, v = (y & 0x8fff8fff) ^ 0x3b603b60;
    return ptx_f16x2_add(ptx_prmt(u, v, 0x5410), ptx_prmt(u, v, 0x7632));
}

/* What transformed inputs of an entry were moved by: behind its numbers. */
__device__ static __forceinline__ float trellis_factor(const struct prod_job &j, uint32_t entry, uint32_t head) {
    return *(const float *)(j.x + (size_t)(entry / j.x_div) * j.ldx + (size_t)head * j.head_ldx + j.k_pad);
}

#endif
