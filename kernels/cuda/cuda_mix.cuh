/* SPDX-License-Identifier: MIT */
/* cuda_mix.cuh: what the kernels of KDA, MLA and the indexer share: tables of a step, sums of a warp and a block in a
 * fixed order, rotary angles, rows of the cache.
 *
 * Layout of a layer's part of a page. Latents: 256 rows of latent_bytes, as host.h lays a row out. Pooled keys: rows
 * one behind the other, in FP8 their codes only (index_dim, to a multiple of four), and then one factor for
 * each of them; so that rows of codes begin at multiples of their width. */
#ifndef GLMD_CUDA_MIX_CUH
#define GLMD_CUDA_MIX_CUH

#include "cuda_ptx.cuh"

#include "cuda_dev.h"

enum { MIX_ALL = 0xffffffffu, MIX_MAX_PAIRS = 64 };

/* ---- tables --------------------------------------------------------------------------------------------- */

__device__ static __forceinline__ const struct cuda_row *mix_rows(const struct cuda_step *s, uint32_t table) {
    return (const struct cuda_row *)((const char *)s + s->rows[table]);
}
__device__ static __forceinline__ const struct cuda_seq *mix_seqs(const struct cuda_step *s, uint32_t table) {
    return (const struct cuda_seq *)((const char *)s + s->seqs[table]);
}
__device__ static __forceinline__ const uint32_t *mix_pages(const struct cuda_step *s, const struct cuda_seq *q) {
    return (const uint32_t *)((const char *)s + s->pages) + q->page0;
}

/* ---- arithmetic ----------------------------------------------------------------------------------------- */

/* Never contracted, so that two places in the code that compute the same give the same bits. */
__device__ static __forceinline__ float mix_mul(float a, float b) {
#ifdef CUDA_SIM
    return a * b;
#else
    return __fmul_rn(a, b);
#endif
}
__device__ static __forceinline__ float mix_sub(float a, float b) {
#ifdef CUDA_SIM
    return a - b;
#else
    return __fsub_rn(a, b);
#endif
}

__device__ static __forceinline__ float mix_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

__device__ static __forceinline__ float mix_warp_sum(float v) {
#pragma unroll
    for (int m = 16; m; m >>= 1)
        v += __shfl_xor_sync(MIX_ALL, v, m);
    return v;
}
__device__ static __forceinline__ uint32_t mix_warp_max(uint32_t v) {
#pragma unroll
    for (int m = 16; m; m >>= 1) {
        uint32_t o = __shfl_xor_sync(MIX_ALL, v, m);
        v = o > v ? o : v;
    }
    return v;
}

/* Sum over a block; all threads call, all get it. room: 32 numbers of shared memory; may be used again at once. */
__device__ static __forceinline__ float mix_block_sum(float v, float *room) {
    const uint32_t warps = blockDim.x / 32;
    v = mix_warp_sum(v);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (uint32_t i = 0; i < warps; i++)
        v += room[i];
    __syncthreads();
    return v;
}
__device__ static __forceinline__ uint32_t mix_block_max(uint32_t v, uint32_t *room) {
    const uint32_t warps = blockDim.x / 32;
    v = mix_warp_max(v);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (uint32_t i = 0; i < warps; i++)
        v = room[i] > v ? room[i] : v;
    __syncthreads();
    return v;
}

/* ---- rotary numbers ------------------------------------------------------------------------------------- */

/* Turns a position makes of each pair: theta^(-2i / rope) / 2 pi. In double, because a position of a million turns the
 * first pair 160,000 times, of which only the fraction counts. */
struct mix_rope {
    uint32_t pairs;
    double turn[MIX_MAX_PAIRS];
};
struct mix_rope mix_rope_of(const struct cuda_dims *d);

/* Cosines and sines of a position into at[2 * pairs]; all threads of the block call, a barrier follows. */
__device__ static __forceinline__ void mix_angles(const struct mix_rope *r, uint32_t pos, float *at) {
    for (uint32_t i = threadIdx.x; i < r->pairs; i += blockDim.x) {
        const double t = pos * r->turn[i];
        const float half = (float)(2.0 * (t - rint(t))); /* of a half turn */
#ifdef CUDA_SIM
        at[2 * i] = (float)cos(M_PI * half);
        at[2 * i + 1] = (float)sin(M_PI * half);
#else
        at[2 * i] = cospif(half);
        at[2 * i + 1] = sinpif(half);
#endif
    }
}

/* ---- rows of the cache ---------------------------------------------------------------------------------- */

__device__ static __forceinline__ float mix_fp8_scale(uint32_t top_bits) {
    const float top = ptx_bits_f32(top_bits);
    if (top_bits >= 0x7f800000u)
        return ptx_bits_f32(0x7fc00000u);
    return top / 448.0f < 0x1p-126f ? 0x1p-126f : top / 448.0f;
}

/* The same byte as host_e4m3(): pages of all backends hold the same codes. */
__device__ static __forceinline__ uint8_t mix_e4m3(float v) {
    uint32_t u = ptx_f32_bits(v);
    const uint32_t sign = u >> 24 & 0x80;
    u &= 0x7fffffffu;
    const uint32_t normal = ((u + 0x7ffffu + (u >> 20 & 1)) >> 20) - (120u << 3);
    v = ptx_bits_f32(u);
    const uint32_t small = ptx_f32_bits((v < 0x1p-6f ? v : 0x1p-6f) + 0x1p14f) - ptx_f32_bits(0x1p14f);
    return (uint8_t)(sign | (v < 0x1p-6f ? small : v < 448.0f ? normal : 0x7e));
}

/* Number i of a row as it lies in a page. factor: what FP8 divides by. */
__device__ static __forceinline__ void mix_store(uint32_t cache, char *row, uint32_t i, float v, float factor) {
    if (cache == KERN_CACHE_F32)
        ((float *)row)[i] = v;
    else if (cache == KERN_CACHE_BF16)
        ((uint16_t *)row)[i] = ptx_f32_bf16(v);
    else
        ((uint8_t *)row)[i] = mix_e4m3(v / factor);
}

/* Two codes in bits 0..7 and 8..15 as BF16, exactly. */
__device__ static __forceinline__ uint32_t mix_e4m3x2_bf16x2(uint32_t two) {
    const uint32_t w = ptx_prmt(two, 0, 0x1404); /* each code in the upper byte of a half */
    /* sign, then the exponent with a bias too small by 120, which the factor adds; numbers below 2^-6 come out right */
    return ptx_bf16x2_mul((w & 0x80008000u) | (w >> 4 & 0x07f007f0u), 0x7b807b80u);
}

/* Numbers c .. c+7 of a stored row as four BF16 pairs; zero from n on. FAST: n is a multiple of 8 and rows begin at
 * multiples of 8 numbers. */
template <uint32_t CACHE, bool FAST>
__device__ static __forceinline__ uint4 mix_load8(const char *row, uint32_t c, uint32_t n) {
    uint4 r = {0, 0, 0, 0};
    if (FAST && c >= n)
        return r;
    if (FAST && CACHE == KERN_CACHE_BF16)
        return *(const uint4 *)(row + 2 * c);
    if (FAST && CACHE == KERN_CACHE_F32) {
        const float4 a = ((const float4 *)row)[c / 4], b = ((const float4 *)row)[c / 4 + 1];
        r.x = ptx_f32x2_bf16x2(a.x, a.y);
        r.y = ptx_f32x2_bf16x2(a.z, a.w);
        r.z = ptx_f32x2_bf16x2(b.x, b.y);
        r.w = ptx_f32x2_bf16x2(b.z, b.w);
        return r;
    }
    if (FAST) {
        const uint2 a = *(const uint2 *)(row + c);
        r.x = mix_e4m3x2_bf16x2(a.x);
        r.y = mix_e4m3x2_bf16x2(a.x >> 16);
        r.z = mix_e4m3x2_bf16x2(a.y);
        r.w = mix_e4m3x2_bf16x2(a.y >> 16);
        return r;
    }
    uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t h = 0;
        if (c + i < n && CACHE == KERN_CACHE_F32)
            h = ptx_f32_bf16(((const float *)row)[c + i]);
        else if (c + i < n && CACHE == KERN_CACHE_BF16)
            h = ((const uint16_t *)row)[c + i];
        else if (c + i < n)
            h = mix_e4m3x2_bf16x2(((const uint8_t *)row)[c + i]) & 0xffff;
        w[i / 2] |= h << 16 * (i % 2);
    }
    return uint4{w[0], w[1], w[2], w[3]};
}

__device__ static __forceinline__ uint32_t mix_fp8_at(uint32_t n) {
    return (n + 3) & ~3u;
}

/* ---- pooled keys ---------------------------------------------------------------------------------------- */

struct mix_keys {
    uint64_t at; /* of the layer's keys, in a page */
    uint32_t cache, dim, per_page;
};

__device__ static __forceinline__ uint32_t mix_key_stride(const struct mix_keys *k) {
    return k->cache == KERN_CACHE_FP8 ? mix_fp8_at(k->dim) : k->dim * (k->cache == KERN_CACHE_BF16 ? 2 : 4);
}
__device__ static __forceinline__ char *mix_key_row(const struct mix_keys *k, char *page, uint32_t slot) {
    return page + k->at + (uint64_t)slot * mix_key_stride(k);
}
__device__ static __forceinline__ float *mix_key_factor(const struct mix_keys *k, char *page, uint32_t slot) {
    return (float *)(page + k->at + (uint64_t)k->per_page * mix_key_stride(k)) + slot;
}

#endif
