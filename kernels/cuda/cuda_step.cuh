/* SPDX-License-Identifier: MIT */
/* cuda_step.cuh: what every stage does first: finds its table in the loaded step; and sums whose order is fixed. */
#ifndef GLMD_CUDA_STEP_CUH
#define GLMD_CUDA_STEP_CUH

#include "cuda_ptx.cuh"
#include "cuda_dev.h"

__device__ static __forceinline__ const struct cuda_row *step_rows(const struct cuda_step *s, uint32_t table) {
    return (const struct cuda_row *)((const char *)s + s->rows[table]);
}
__device__ static __forceinline__ const struct cuda_seq *step_seqs(const struct cuda_step *s, uint32_t table) {
    return (const struct cuda_seq *)((const char *)s + s->seqs[table]);
}

/* The same bits in every lane: the order of a butterfly does not depend on the lane. */
__device__ static __forceinline__ float step_warp_sum(float v) {
#pragma unroll
    for (int i = 16; i; i >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/* Sum over the block; room: 32 floats of shared memory, free again when the next barrier is passed. */
__device__ static __forceinline__ float step_block_sum(float v, float *room) {
    v = step_warp_sum(v);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0.0f;
    for (uint32_t i = 0; i < blockDim.x / 32; i++)
        sum += room[i];
    return sum;
}

/* Number i of a row of F32, BF16 or F16. */
__device__ static __forceinline__ float step_plain(const char *at, uint32_t format, uint64_t i) {
    if (format == KERN_F32)
        return ((const float *)at)[i];
    const uint16_t half = ((const uint16_t *)at)[i];
    return format == KERN_BF16 ? ptx_bf16_f32(half) : ptx_f16_f32(half);
}

__device__ static __forceinline__ float step_sigmoid(float z) {
    return 1.0f / (1.0f + expf(-z));
}

#endif
