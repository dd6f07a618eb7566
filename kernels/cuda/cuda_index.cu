/* SPDX-License-Identifier: MIT */
/* cuda_index.cu: scores of pools, and their order's histogram, for rows that have to choose.
 *
 * A warp takes 16 pools at a time as the rows of matrix products whose columns are the indexer's heads; the score is
 * summed over heads in their order in each of four lanes and then over those, so it depends on nothing but the row's
 * query and the pool's key. Of every 32 numbers of a key or query a lane has eight neighbours, in whatever order the
 * products sum them. */
#include "cuda_mla.cuh"

enum { SCORE_THREADS = 256, SCORE_WARPS = SCORE_THREADS / 32, SCORE_POOLS = 16 * SCORE_WARPS, SCORE_BLOCKS = 264 };

struct score_room {
    uint32_t hist[MLA_BINS];
    uint4 query[1]; /* [head tile][chunk][lane] BF16 of eight heads; behind it omega of all heads */
};

__device__ static void score_queries(const struct mla_args &a, uint32_t row, uint32_t tiles, uint32_t chunks,
                                     struct score_room *room) {
    const float *q = a.wide + (uint64_t)row * a.ld_wide + a.heads * (a.nope + a.n_rope);
    float *omega = (float *)(room->query + tiles * chunks * 32);
    for (uint32_t i = threadIdx.x; i < tiles * chunks * 32; i += SCORE_THREADS) {
        const uint32_t lane = i % 32, chunk = i / 32 % chunks, head = i / 32 / chunks * 8 + lane / 4;
        uint32_t w[4];
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t c = chunk * 32 + lane % 4 * 8 + 2 * j;
            const float *x = q + (uint64_t)head * a.index_dim + c;
            w[j] = ptx_f32x2_bf16x2(head < a.index_heads && c < a.index_dim ? x[0] : 0.0f,
                                    head < a.index_heads && c + 1 < a.index_dim ? x[1] : 0.0f);
        }
        room->query[i] = uint4{w[0], w[1], w[2], w[3]};
    }
    for (uint32_t i = threadIdx.x; i < tiles * 8; i += SCORE_THREADS)
        omega[i] = i < a.index_heads ? a.omegas[(uint64_t)row * a.ld_omega + i] : 0.0f;
    for (uint32_t i = threadIdx.x; i < MLA_BINS; i += SCORE_THREADS)
        room->hist[i] = 0;
}

__device__ static __forceinline__ float score_add(float sum, float omega, float dot) {
    return dot > 0 ? fmaf(omega, dot, sum) : sum;
}

/* Scores of pools p and p + 8 of this lane's group, whose keys are at k[0] and k[1]. CHUNKS 0: any width. */
template <uint32_t CACHE, uint32_t CHUNKS>
__device__ static __forceinline__ void score_pools(const struct mla_args &a, const struct score_room *room,
                                                   uint32_t tiles, uint32_t chunks, const char *const k[2],
                                                   const float factor[2], float sum[2]) {
    const uint32_t lane = threadIdx.x % 32;
    const float *omega = (const float *)(room->query + tiles * chunks * 32);
    uint4 key[CHUNKS ? CHUNKS : 1][2];
#pragma unroll
    for (uint32_t c = 0; CHUNKS > 0 && c < CHUNKS; c++) {
        key[c][0] = mix_load8<CACHE, true>(k[0], c * 32 + lane % 4 * 8, CHUNKS * 32);
        key[c][1] = mix_load8<CACHE, true>(k[1], c * 32 + lane % 4 * 8, CHUNKS * 32);
    }
    sum[0] = sum[1] = 0;
    for (uint32_t t = 0; t < tiles; t++) {
        float d[4] = {0, 0, 0, 0};
        const uint4 *q = room->query + t * chunks * 32 + lane;
#pragma unroll
        for (uint32_t c = 0; c < (CHUNKS ? CHUNKS : chunks); c++) {
            if (!CHUNKS) {
                key[0][0] = mix_load8<CACHE, false>(k[0], c * 32 + lane % 4 * 8, a.index_dim);
                key[0][1] = mix_load8<CACHE, false>(k[1], c * 32 + lane % 4 * 8, a.index_dim);
            }
            const uint4 x = key[CHUNKS ? c : 0][0], y = key[CHUNKS ? c : 0][1], b = q[c * 32];
            const uint32_t lo[4] = {x.x, y.x, x.y, y.y}, hi[4] = {x.z, y.z, x.w, y.w};
            ptx_mma_bf16(d, lo, b.x, b.y);
            ptx_mma_bf16(d, hi, b.z, b.w);
        }
        const float w0 = omega[t * 8 + lane % 4 * 2], w1 = omega[t * 8 + lane % 4 * 2 + 1];
        sum[0] = score_add(score_add(sum[0], w0, d[0] * factor[0]), w1, d[1] * factor[0]);
        sum[1] = score_add(score_add(sum[1], w0, d[2] * factor[1]), w1, d[3] * factor[1]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(MIX_ALL, sum[i], 1);
        sum[i] += __shfl_xor_sync(MIX_ALL, sum[i], 2);
    }
}

template <uint32_t CACHE, uint32_t CHUNKS>
__global__ void __launch_bounds__(SCORE_THREADS) mla_scores(struct mla_args a) {
    CUDA_SMEM(struct score_room, room);
    const uint32_t group = blockIdx.y, row = a.row0 + group, lane = threadIdx.x % 32;
    if (row >= a.step->n_rows[a.table])
        return;
    const struct cuda_row *t = &mix_rows(a.step, a.table)[row];
    const struct cuda_seq *s = &mix_seqs(a.step, a.table)[t->seq];
    const uint32_t n = mla_pools(a, t->pos);
    if (!mla_chooses(a, t->pos) || blockIdx.x * SCORE_POOLS >= n)
        return;
    const uint32_t tiles = (a.index_heads + 7) / 8, chunks = (a.index_dim + 31) / 32;
    score_queries(a, row, tiles, chunks, room);
    __syncthreads();
    for (uint32_t p = blockIdx.x * SCORE_POOLS; p < n; p += gridDim.x * SCORE_POOLS) {
        float sum[2], factor[2] = {1, 1};
        const char *k[2];
        uint32_t own[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            own[i] = p + threadIdx.x / 32 * 16 + i * 8 + lane / 4;
            const uint32_t pool = own[i] < n ? own[i] : n - 1, slot = pool % a.keys.per_page;
            char *page = mla_pool_page(a, s, pool);
            k[i] = mix_key_row(&a.keys, page, slot);
            if (CACHE == KERN_CACHE_FP8)
                factor[i] = *mix_key_factor(&a.keys, page, slot);
        }
        score_pools<CACHE, CHUNKS>(a, room, tiles, chunks, k, factor, sum);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (lane % 4 == 0 && own[i] < n) {
                a.scores[(uint64_t)group * a.max_pools + own[i]] = sum[i];
                atomicAdd(&room->hist[mla_order(sum[i]) >> MLA_BIN_SHIFT], 1u);
            }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < MLA_BINS; i += SCORE_THREADS)
        if (room->hist[i])
            atomicAdd(&a.hist[group * CUDA_HIST + i], room->hist[i]);
}

template <uint32_t CACHE> static cudaError_t score_launch(const struct mla_args &a, dim3 grid, size_t smem,
                                                          cudaStream_t s) {
    const bool usual = a.index_dim == 128 && a.keys.at % 16 == 0 && a.page_bytes % 16 == 0;
    return usual ? CUDA_LAUNCH((mla_scores<CACHE, 4>), grid, dim3(SCORE_THREADS), smem, s, a)
                 : CUDA_LAUNCH((mla_scores<CACHE, 0>), grid, dim3(SCORE_THREADS), smem, s, a);
}

cudaError_t mla_score(const struct mla_args &a, cudaStream_t s) {
    const uint32_t tiles = (a.index_heads + 7) / 8, chunks = (a.index_dim + 31) / 32;
    const uint32_t blocks = (a.max_pools + SCORE_POOLS - 1) / SCORE_POOLS;
    const dim3 grid(blocks < SCORE_BLOCKS ? blocks : (uint32_t)SCORE_BLOCKS, a.rows);
    const size_t queries = tiles * chunks * 32 * sizeof(uint4), omegas = tiles * 8 * sizeof(float);
    const size_t smem = offsetof(struct score_room, query) + queries + omegas;
    switch (a.cache) {
    case KERN_CACHE_F32:
        return score_launch<KERN_CACHE_F32>(a, grid, smem, s);
    case KERN_CACHE_BF16:
        return score_launch<KERN_CACHE_BF16>(a, grid, smem, s);
    default:
        return score_launch<KERN_CACHE_FP8>(a, grid, smem, s);
    }
}

extern "C" cudaError_t cuda_index(const struct cuda_run *r) {
    struct mla_args a = mla_args_of(r);
    cudaError_t e = cudaSuccess;
    if (a.max_pools <= a.sel_pools)
        return e; /* no row will ever choose */
    for (a.row0 = 0; a.row0 < r->rows && e == cudaSuccess; a.row0 += a.rows) {
        a.rows = mla_group(r->rows - a.row0);
        e = mla_score(a, r->stream);
        if (e == cudaSuccess)
            e = mla_choose(a, r->stream);
    }
    return e;
}
