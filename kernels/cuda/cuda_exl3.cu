/* SPDX-License-Identifier: MIT */
/* cuda_exl3.cu: what stands around products with EXL3: inputs times suh and outputs times svh, with Hadamard transforms
 * of 128 points between. F32 inside; inputs leave as F16, moved by a power of two so that none overflows. Raw products
 * of gates whose halves have different formats come through here, too, untransformed. */
#include "cuda_prod_list.h"

enum { WARPS = 8, JOBS = 2 * PROD_JOBS };

struct in_args {
    struct exl3_rows rows;
    struct exl3_in in[JOBS];
};
struct out_args {
    struct exl3_rows rows;
    struct exl3_out out[JOBS];
};

/* 128 numbers of a warp, four neighbours a lane, over the root of 128. */
__device__ static __forceinline__ void hadamard128(float v[4]) {
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
#pragma unroll
    for (int h = 1; h < 32; h *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float other = __shfl_xor_sync(0xffffffffu, v[i], h);
            v[i] = threadIdx.x & h ? other - v[i] : v[i] + other;
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] *= 0.08838834764831845f;
}

__device__ static __forceinline__ uint32_t entries(const struct exl3_rows &r) {
    return (r.count ? *r.count : r.step->n_rows[r.is_draft]) * r.per_row;
}

/* Four numbers from i on, times their signs and scales. */
__device__ static __forceinline__ void inputs_at(const uint16_t *x, const uint16_t *suh, uint32_t i, float v[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = ptx_bf16_f32(x[i + j]) * ptx_f16_f32(suh[i + j]);
}

/* A block for each (entry, head) of a matrix. */
__global__ static void __launch_bounds__(32 * WARPS) exl3_in_kernel(const __grid_constant__ struct in_args a) {
    __shared__ uint32_t tops[WARPS];
    const struct exl3_in &in = a.in[blockIdx.y];
    const uint32_t entry = blockIdx.x / in.heads, head = blockIdx.x % in.heads, lane = threadIdx.x % 32;
    if (entry >= entries(a.rows))
        return;
    const uint32_t expert = a.rows.expert ? a.rows.expert[entry] : 0;
    const uint16_t *x = in.x + (size_t)(entry / in.x_div) * in.ldx + (size_t)head * in.head_ldx;
    const uint16_t *suh = (const uint16_t *)((const char *)in.suh + expert * in.stride) + head * in.head_suh;
    uint16_t *to = in.had + ((size_t)entry * in.heads + head) * (in.k + 8);
    uint32_t top = 0;
    float v[4];
    for (uint32_t i = threadIdx.x * 4; i < in.k; i += 128 * WARPS) {
        inputs_at(x, suh, i, v);
#pragma unroll
        for (int j = 0; j < 4; j++)
            top = max(top, ptx_f32_bits(v[j]) & 0x7fffffff);
    }
    top = __reduce_max_sync(0xffffffffu, top);
    if (lane == 0)
        tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        top = max(top, tops[w]);
    /* sums of 128 over the root of 128 are less than 2^4 times the largest: they stay below 2^15 */
    int e = (int)(top >> 23) - 127;
    e = top >= 0x7f800000 || !top ? 0 : e < -100 ? 110 : e > 100 ? -90 : 10 - e;
    const float up = FAULT(cuda_transform_overflows) ? 1.0f : ptx_bits_f32((uint32_t)(127 + e) << 23);
    for (uint32_t i = threadIdx.x * 4; i < in.k; i += 128 * WARPS) { /* k is a multiple of 128: whole warps */
        inputs_at(x, suh, i, v);
        hadamard128(v);
        const uint32_t at = cuda_exl3_at(i), next = cuda_exl3_at(i + 2);
        *(uint32_t *)(to + at) = ptx_f32x2_f16x2(v[0] * up, v[1] * up);
        *(uint32_t *)(to + next) = ptx_f32x2_f16x2(v[2] * up, v[3] * up);
    }
    if (threadIdx.x == 0)
        *(float *)(to + in.k) = FAULT(cuda_transform_overflows) ? 1.0f : ptx_bits_f32((uint32_t)(127 - e) << 23);
}

/* A warp takes 128 outputs of an entry and head. */
__global__ static void __launch_bounds__(32 * WARPS) exl3_out_kernel(const __grid_constant__ struct out_args a) {
    const struct exl3_out &o = a.out[blockIdx.z];
    const uint32_t entry = blockIdx.x, lane = threadIdx.x % 32;
    const uint32_t per_head = (o.n + 127) / 128, unit = blockIdx.y * WARPS + threadIdx.x / 32;
    if (entry >= entries(a.rows) || unit >= per_head * o.heads)
        return;
    const uint32_t head = unit / per_head, i = unit % per_head * 128 + lane * 4;
    const uint32_t expert = a.rows.expert ? a.rows.expert[entry] : 0;
    const uint32_t row = o.place ? o.place[entry] : entry / o.out_div;
    const size_t at = (size_t)row * o.ldo + (size_t)(entry % o.out_div) * o.ld_place + o.out_at +
                      (size_t)head * o.head_ldo + i;
    float v[2][4] = {};
    for (uint32_t side = 0; side < 1 + o.gated; side++) {
        const float *raw = o.raw[side] ? o.raw[side] + ((size_t)entry * o.heads + head) * o.n + i : o.out + at;
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[side][j] = i + j < o.n ? raw[j] : 0;
        if (!o.svh[side])
            continue;
        const uint16_t *svh = (const uint16_t *)((const char *)o.svh[side] + expert * o.stride[side]) +
                              head * o.head_svh + i;
        hadamard128(v[side]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[side][j] *= ptx_f16_f32(svh[j]);
    }
    const float weight = o.weight ? o.weight[entry] : 1.0f;
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (i + j < o.n) {
            const float f = (o.gated ? prod_swiglu(v[0][j], v[1][j], o.limit) : v[0][j]) * weight;
            if (o.out16)
                o.out16[at + j] = ptx_f32_bf16(f);
            else
                o.out[at + j] = f;
        }
}

cudaError_t exl3_inputs(cudaStream_t s, const struct exl3_rows *rows, uint32_t bound, const struct exl3_in *in,
                        uint32_t n) {
    struct in_args a = {};
    uint32_t heads = 1;
    if (!n)
        return cudaSuccess;
    a.rows = *rows;
    for (uint32_t i = 0; i < n; i++) {
        a.in[i] = in[i];
        heads = in[i].heads > heads ? in[i].heads : heads;
    }
    return CUDA_LAUNCH(exl3_in_kernel, dim3(bound * rows->per_row * heads, n), dim3(32 * WARPS), 0, s, a);
}

cudaError_t exl3_outputs(cudaStream_t s, const struct exl3_rows *rows, uint32_t bound, const struct exl3_out *out,
                         uint32_t n) {
    struct out_args a = {};
    uint32_t units = 1;
    if (!n)
        return cudaSuccess;
    a.rows = *rows;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = (out[i].n + 127) / 128 * out[i].heads;
        a.out[i] = out[i];
        units = u > units ? u : units;
    }
    return CUDA_LAUNCH(exl3_out_kernel, dim3(bound * rows->per_row, (units + WARPS - 1) / WARPS, n),
                       dim3(32 * WARPS), 0, s, a);
}
