/* SPDX-License-Identifier: MIT */
/* cuda_attn.cu: attention over the positions a row's selection names, and over no others.
 *
 * A row's list is cut into splits of its own entries; a block has 16 heads and one split, which it takes 128 positions
 * at a time. Scores: each warp multiplies the heads' queries with 16 latents, over their whole width. Sums: each warp
 * has 64 of the latents' numbers, over all 128 positions. Latents come as they are stored, 16 bytes a lane where the
 * format allows it, and are widened in registers; the second reading finds them in a cache. Numbers that a product
 * wants side by side are neighbours in a latent, in whatever order the product sums them.
 *
 * Splits lie on the list's own grid, so a row's sums depend on its list alone; they are joined in their order. */
#include "cuda_mla.cuh"

enum {
    ATTN_THREADS = 256,
    ATTN_WARPS = ATTN_THREADS / 32,
    ATTN_HEADS = 16,
    ATTN_KEYS = CUDA_ATTN_TILE,
    ATTN_P = ATTN_KEYS / 2 + 4, /* words of a row of weights: rows lie in different banks */
    ATTN_DIMS = 64,         /* of a latent, for a warp's sums at a time */
};

struct attn_room {
    const char *latent[ATTN_KEYS];
    float factor[ATTN_KEYS];
    float top[ATTN_WARPS][ATTN_HEADS], sum[ATTN_WARPS][ATTN_HEADS];
    float before[2][ATTN_HEADS]; /* maximum and weight of the positions before */
    float shrink[ATTN_HEADS];    /* what their sums are multiplied with */
    uint32_t p[ATTN_HEADS][ATTN_P]; /* weights of two positions as BF16 */
    uint4 query[1]; /* [chunk of 32 numbers][half][lane] */
};

/* Entry i of a row's list, ascending. */
__device__ static __forceinline__ uint32_t attn_pos(const struct mla_args &a, uint32_t row, uint32_t pos, uint32_t i) {
    if (!mla_chooses(a, pos))
        return i;
    const uint32_t chosen = a.sel_pools * a.kpool;
    if (i >= chosen)
        return (pos + 1) / a.kpool * a.kpool + (i - chosen);
    return a.sel[(uint64_t)row * a.sel_pools + i / a.kpool] * a.kpool + i % a.kpool;
}

/* The heads' queries as the product takes them: latent part, then the turned part, each padded to whole chunks. */
__device__ static void attn_queries(const struct mla_args &a, uint32_t row, uint32_t head0, struct attn_room *room) {
    const uint32_t width = a.kv_rank + a.n_rope, lat = (a.kv_rank + 31) / 32, all = lat + (a.n_rope + 31) / 32;
    const float *q = a.qa + (uint64_t)row * a.heads * width;
    for (uint32_t i = threadIdx.x; i < all * 64; i += ATTN_THREADS) {
        const uint32_t lane = i % 32, half = i / 32 % 2, chunk = i / 64;
        const uint32_t n = chunk < lat ? a.kv_rank : a.n_rope, from = chunk < lat ? 0 : a.kv_rank;
        uint32_t w[4];
        for (uint32_t j = 0; j < 4; j++) { /* rows g, g + 8 of the first pair, then of the second */
            const uint32_t head = head0 + lane / 4 + j % 2 * 8;
            const uint32_t c = (chunk < lat ? chunk : chunk - lat) * 32 + lane % 4 * 8 + half * 4 + j / 2 * 2;
            const float *x = q + (uint64_t)head * width + from + c;
            w[j] = ptx_f32x2_bf16x2(head < a.heads && c < n ? x[0] : 0.0f, head < a.heads && c + 1 < n ? x[1] : 0.0f);
        }
        room->query[i] = uint4{w[0], w[1], w[2], w[3]};
    }
}

/* Where `n` positions of the list lie, from entry `from` on; places behind them repeat the first one, whose weight
 * there is 0. */
template <uint32_t CACHE>
__device__ static void attn_places(const struct mla_args &a, uint32_t row, uint32_t from, uint32_t n,
                                   struct attn_room *room) {
    const struct cuda_row *t = &mix_rows(a.step, a.table)[row];
    const struct cuda_seq *s = &mix_seqs(a.step, a.table)[t->seq];
    for (uint32_t i = threadIdx.x; i < ATTN_KEYS; i += ATTN_THREADS) {
        const char *at = mla_latent(a, s, attn_pos(a, row, t->pos, from + (i < n ? i : 0)));
        room->latent[i] = at;
        room->factor[i] = CACHE == KERN_CACHE_FP8 ? *(const float *)(at + mix_fp8_at(a.kv_rank)) : 1.0f;
    }
}

/* Scores of this warp's 16 positions: s[tile][0, 1] head g, positions 2q and 2q + 1 of eight; s[tile][2, 3] head
 * g + 8. */
template <uint32_t CACHE, bool FAST>
__device__ static __forceinline__ void attn_scores(const struct mla_args &a, const struct attn_room *room,
                                                   float s[2][4]) {
    const uint32_t lane = threadIdx.x % 32, key = threadIdx.x / 32 * 16, col = lane % 4 * 8;
    const uint32_t lat = (a.kv_rank + 31) / 32, turned = (a.n_rope + 31) / 32;
    const char *const k0 = room->latent[key + lane / 4], *const k1 = room->latent[key + 8 + lane / 4];
    const uint4 *q = room->query + lane;
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[0][i] = s[1][i] = 0;
#pragma unroll(FAST ? 8 : 1)
    for (uint32_t c = 0; c < lat; c++) {
        const uint4 x = mix_load8<CACHE, FAST>(k0, c * 32 + col, a.kv_rank);
        const uint4 y = mix_load8<CACHE, FAST>(k1, c * 32 + col, a.kv_rank);
        const uint4 lo = q[c * 64], hi = q[c * 64 + 32];
        const uint32_t ql[4] = {lo.x, lo.y, lo.z, lo.w}, qh[4] = {hi.x, hi.y, hi.z, hi.w};
        ptx_mma_bf16(s[0], ql, x.x, x.y);
        ptx_mma_bf16(s[1], ql, y.x, y.y);
        ptx_mma_bf16(s[0], qh, x.z, x.w);
        ptx_mma_bf16(s[1], qh, y.z, y.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[0][i] *= room->factor[key + lane % 4 * 2 + i % 2];
        s[1][i] *= room->factor[key + 8 + lane % 4 * 2 + i % 2];
    }
    constexpr uint32_t KIND = CACHE == KERN_CACHE_F32 ? KERN_CACHE_F32 : KERN_CACHE_BF16;
#pragma unroll 1
    for (uint32_t c = 0; c < turned; c++) {
        const uint4 x = mix_load8<KIND, FAST>(k0 + a.rope_at, c * 32 + col, a.n_rope);
        const uint4 y = mix_load8<KIND, FAST>(k1 + a.rope_at, c * 32 + col, a.n_rope);
        const uint4 lo = q[(lat + c) * 64], hi = q[(lat + c) * 64 + 32];
        const uint32_t ql[4] = {lo.x, lo.y, lo.z, lo.w}, qh[4] = {hi.x, hi.y, hi.z, hi.w};
        ptx_mma_bf16(s[0], ql, x.x, x.y);
        ptx_mma_bf16(s[1], ql, y.x, y.y);
        ptx_mma_bf16(s[0], qh, x.z, x.w);
        ptx_mma_bf16(s[1], qh, y.z, y.w);
    }
}

/* Scores to weights: of n positions, on top of those before in this split. Ends with a barrier. */
__device__ static __forceinline__ void attn_weights(const struct mla_args &a, uint32_t n, bool first, float s[2][4],
                                                    struct attn_room *room) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, key = warp * 16 + lane % 4 * 2, g = lane / 4;
    const float lowest = ptx_bits_f32(0xff800000u);
    float top[2] = {lowest, lowest}, sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t tile = i / 4, j = i % 4;
        s[tile][j] = key + tile * 8 + j % 2 < n ? s[tile][j] * a.scale : lowest;
        top[j / 2] = fmaxf(top[j / 2], s[tile][j]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(MIX_ALL, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(MIX_ALL, top[i], 2));
        if (lane % 4 == 0)
            room->top[warp][g + 8 * i] = top[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = first ? lowest : room->before[0][g + 8 * i];
        for (uint32_t w = 0; w < ATTN_WARPS; w++)
            top[i] = fmaxf(top[i], room->top[w][g + 8 * i]);
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const uint32_t tile = i / 4, half = i % 4 / 2, at = key + tile * 8;
        const float x = expf(s[tile][half * 2] - top[half]), y = expf(s[tile][half * 2 + 1] - top[half]);
        sum[half] += x;
        sum[half] += y;
        room->p[g + 8 * half][at / 2] = ptx_f32x2_bf16x2(x * room->factor[at], y * room->factor[at + 1]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(MIX_ALL, sum[i], 1);
        sum[i] += __shfl_xor_sync(MIX_ALL, sum[i], 2);
        if (lane % 4 == 0)
            room->sum[warp][g + 8 * i] = sum[i];
    }
    __syncthreads();
    if (threadIdx.x < ATTN_HEADS) {
        const uint32_t h = threadIdx.x;
        float most = first ? lowest : room->before[0][h], weight = 0;
        for (uint32_t w = 0; w < ATTN_WARPS; w++) {
            most = fmaxf(most, room->top[w][h]);
            weight += room->sum[w][h];
        }
        room->shrink[h] = first ? 0.0f : expf(room->before[0][h] - most);
        room->before[1][h] = first ? weight : fmaf(room->before[1][h], room->shrink[h], weight);
        room->before[0][h] = most;
    }
    __syncthreads();
}

/* Weighted sums of 64 numbers, from number `dim` on: d[i][0, 1] head g, numbers 16q + i and 16q + 8 + i; d[i][2, 3]
 * head g + 8. */
template <uint32_t CACHE, bool FAST>
__device__ static __forceinline__ void attn_sums(const struct mla_args &a, const struct attn_room *room, uint32_t n,
                                                 uint32_t dim, float d[8][4]) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; i++)
        d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0;
#pragma unroll(FAST ? 2 : 1)
    for (uint32_t k = 0; k < n; k += 16) {
        const uint32_t *w = &room->p[g][(k + q) / 2], p[4] = {w[0], w[8 * ATTN_P], w[4], w[8 * ATTN_P + 4]};
        uint32_t v[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 x = mix_load8<CACHE, FAST>(room->latent[k + q + i % 2 + i / 2 * 8], dim + g * 8, a.kv_rank);
            v[i][0] = x.x, v[i][1] = x.y, v[i][2] = x.z, v[i][3] = x.w;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t pick = i % 2 ? 0x7632 : 0x5410;
            ptx_mma_bf16(d[i], p, ptx_prmt(v[0][i / 2], v[1][i / 2], pick), ptx_prmt(v[2][i / 2], v[3][i / 2], pick));
        }
    }
}

__device__ static __forceinline__ void attn_keep(const struct mla_args &a, const struct attn_room *room, float *part,
                                                 uint32_t head0, uint32_t dim, bool first, const float d[8][4]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t own = lane / 4 + half * 8, head = head0 + own;
        float *to = part + (uint64_t)head * a.kv_rank + dim + lane % 4 * 16;
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (head < a.heads && dim + lane % 4 * 16 + i < a.kv_rank) {
                const float v = d[i % 8][half * 2 + i / 8];
                to[i] = first ? v : fmaf(to[i], room->shrink[own], v);
            }
    }
}

template <uint32_t CACHE, bool FAST> __global__ void __launch_bounds__(ATTN_THREADS) mla_attention(struct mla_args a) {
    CUDA_SMEM(struct attn_room, room);
    const uint32_t row = a.row0 + blockIdx.z, head0 = blockIdx.y * ATTN_HEADS, from = blockIdx.x * a.tile;
    if (row >= a.step->n_rows[a.table])
        return;
    const uint32_t all = mla_list(a, mix_rows(a.step, a.table)[row].pos);
    if (from >= all)
        return;
    const uint32_t to = all - from < a.tile ? all : from + a.tile;
    float *part = a.part + ((uint64_t)blockIdx.z * a.splits + blockIdx.x) * a.heads * (a.kv_rank + 2);
    attn_queries(a, row, head0, room);
    for (uint32_t at = from; at < to; at += ATTN_KEYS) {
        const uint32_t n = to - at < ATTN_KEYS ? to - at : (uint32_t)ATTN_KEYS;
        float s[2][4];
        attn_places<CACHE>(a, row, at, n, room);
        __syncthreads();
        attn_scores<CACHE, FAST>(a, room, s);
        attn_weights(a, n, at == from, s, room);
        for (uint32_t dim = threadIdx.x / 32 * ATTN_DIMS; dim < a.kv_rank; dim += ATTN_WARPS * ATTN_DIMS) {
            float d[8][4];
            attn_sums<CACHE, FAST>(a, room, n, dim, d);
            attn_keep(a, room, part, head0, dim, at == from, d);
        }
        __syncthreads();
    }
    if (threadIdx.x < ATTN_HEADS && head0 + threadIdx.x < a.heads) {
        float *end = part + (uint64_t)a.heads * a.kv_rank + 2 * (head0 + threadIdx.x);
        end[0] = room->before[0][threadIdx.x];
        end[1] = room->before[1][threadIdx.x];
    }
}

/* Splits of one head and row, in their order. */
__global__ void __launch_bounds__(128) mla_combine(struct mla_args a) {
    __shared__ float scale[64];
    const uint32_t head = blockIdx.x, row = a.row0 + blockIdx.y;
    if (row >= a.step->n_rows[a.table])
        return;
    const uint64_t stride = (uint64_t)a.heads * (a.kv_rank + 2);
    const uint32_t n = (mla_list(a, mix_rows(a.step, a.table)[row].pos) + a.tile - 1) / a.tile;
    const float *part = a.part + (uint64_t)blockIdx.y * a.splits * stride;
    const float *end = part + (uint64_t)a.heads * a.kv_rank + 2 * head;
    float top = ptx_bits_f32(0xff800000u), weight = 0;
    for (uint32_t i = 0; i < n; i++)
        top = fmaxf(top, end[i * stride]);
    for (uint32_t i = 0; i < n; i++)
        weight = fmaf(expf(end[i * stride] - top), end[i * stride + 1], weight);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        scale[i] = FAULT(cuda_splits_alike) ? 1.0f / (float)n : expf(end[i * stride] - top) / weight;
    __syncthreads();
    uint16_t *out = a.ctx + ((uint64_t)row * a.heads + head) * a.kv_pad;
    part += (uint64_t)head * a.kv_rank;
    for (uint32_t c = threadIdx.x; c < a.kv_rank; c += blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (uint32_t i = 0; i < n; i++)
            sum = fmaf(scale[i], part[i * stride + c], sum);
        out[c] = ptx_f32_bf16(sum);
    }
}

template <uint32_t CACHE> static cudaError_t attn_launch(const struct mla_args &a, dim3 grid, size_t smem,
                                                         cudaStream_t s) {
    const bool fast = a.kv_rank % 64 == 0 && a.n_rope % 8 == 0 && a.latents % 16 == 0 && a.page_bytes % 16 == 0 &&
                      a.latent_bytes % 16 == 0 && a.rope_at % 16 == 0;
    return fast ? CUDA_LAUNCH((mla_attention<CACHE, true>), grid, dim3(ATTN_THREADS), smem, s, a)
                : CUDA_LAUNCH((mla_attention<CACHE, false>), grid, dim3(ATTN_THREADS), smem, s, a);
}

cudaError_t mla_attend(const struct mla_args &a, cudaStream_t s) {
    const dim3 grid(a.splits, (a.heads + ATTN_HEADS - 1) / ATTN_HEADS, a.rows);
    const uint32_t chunks = (a.kv_rank + 31) / 32 + (a.n_rope + 31) / 32;
    const size_t smem = offsetof(struct attn_room, query) + chunks * 64 * sizeof(uint4);
    cudaError_t e = a.cache == KERN_CACHE_F32    ? attn_launch<KERN_CACHE_F32>(a, grid, smem, s)
                    : a.cache == KERN_CACHE_BF16 ? attn_launch<KERN_CACHE_BF16>(a, grid, smem, s)
                                                 : attn_launch<KERN_CACHE_FP8>(a, grid, smem, s);
    return e == cudaSuccess ? CUDA_LAUNCH(mla_combine, dim3(a.heads, a.rows), dim3(128), 0, s, a) : e;
}
