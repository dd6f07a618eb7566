/* SPDX-License-Identifier: MIT */
/* cuda_select.cuh: what a block of SAMPLE_THREADS does together, and the rank at which a sum over the best ranks of a
 * list reaches what is asked for. Whole numbers only, so the order of a list and of summing is of no account. */
#ifndef GLMD_CUDA_SELECT_CUH
#define GLMD_CUDA_SELECT_CUH

#include "cuda_sample.cuh"

enum { SAMPLE_WARPS = SAMPLE_THREADS / 32 };

struct select_room {
    uint64_t best[SAMPLE_WARPS];
    uint64_t rank[SAMPLE_THREADS], weight[SAMPLE_THREADS];
    uint64_t sum[SAMPLE_CUTS][SAMPLE_WARPS];
    uint32_t count[SAMPLE_CUTS][SAMPLE_WARPS], listed;
};

__device__ static __forceinline__ uint64_t warp_best(uint64_t v) {
    uint32_t hi = (uint32_t)(v >> 32), top = __reduce_max_sync(0xffffffffu, hi);
    return (uint64_t)top << 32 | __reduce_max_sync(0xffffffffu, hi == top ? (uint32_t)v : 0u);
}

__device__ static __forceinline__ uint64_t warp_total(uint64_t v) {
    for (int by = 16; by; by >>= 1) v += __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}

/* The largest of the block's, for all threads. */
__device__ static __forceinline__ uint64_t block_best(uint64_t *room, uint64_t v) {
    v = warp_best(v);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    v = room[0];
#pragma unroll
    for (int i = 1; i < SAMPLE_WARPS; i++) v = max(v, room[i]);
    __syncthreads();
    return v;
}

__device__ static __forceinline__ uint64_t block_total(uint64_t *room, uint64_t v) {
    v = warp_total(v);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
#pragma unroll
    for (int i = 0; i < SAMPLE_WARPS; i++) v += room[i];
    __syncthreads();
    return v;
}

/* To a list of ranks, those of a warp behind each other. */
__device__ static __forceinline__ void list_add(uint64_t *list, uint32_t *n, bool in, uint64_t rank) {
    uint32_t who = __ballot_sync(0xffffffffu, in), lane = threadIdx.x % 32, at = 0;
    if (!who) return;
    if (!lane) at = atomicAdd(n, (uint32_t)__popc(who));
    at = __shfl_sync(0xffffffffu, at, 0);
    if (in) list[at + (uint32_t)__popc(who & ((1u << lane) - 1))] = rank;
}

struct select_ones {
    __device__ uint64_t operator()(uint64_t) const {
        return 1;
    }
};

/* Whole weights of the ranks from `from` on; the others have none. */
struct select_weights {
    double scale;
    uint64_t from;
    float top;
    int bits;
    __device__ uint64_t operator()(uint64_t rank) const {
        double lp = sample_lp(sample_rank_value(rank), top, scale);
        return rank >= from && lp > -45.0 ? sample_whole(lp, bits) : 0;
    }
};

/* Part of the interval [lo, hi] that the cut lies in, an eighth of it: until few are inside. */
struct select_range {
    uint64_t lo, hi, above;
    uint32_t inside;
};

template <class W>
__device__ static void select_narrow(struct select_room *m, const uint64_t *list, uint32_t n, const W &weight,
                                     uint64_t need, struct select_range *s) {
    uint64_t step = (s->hi - s->lo) / (SAMPLE_CUTS + 1) + 1, sum[SAMPLE_CUTS] = {};
    uint32_t count[SAMPLE_CUTS] = {}, warp = threadIdx.x / 32;
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        uint64_t r = list[i];
        if (r < s->lo || r > s->hi) continue;
        uint64_t w = weight(r);
#pragma unroll
        for (int c = 0; c < SAMPLE_CUTS; c++) {
            bool in = r - s->lo >= step * (c + 1);
            count[c] += in;
            sum[c] += in ? w : 0;
        }
    }
#pragma unroll
    for (int c = 0; c < SAMPLE_CUTS; c++) {
        uint64_t total = warp_total(sum[c]);
        uint32_t counted = __reduce_add_sync(0xffffffffu, count[c]);
        if (threadIdx.x % 32) continue;
        m->sum[c][warp] = total;
        m->count[c][warp] = counted;
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < SAMPLE_CUTS; c++) {
        sum[c] = count[c] = 0;
        for (int i = 0; i < SAMPLE_WARPS; i++) {
            sum[c] += m->sum[c][i];
            count[c] += m->count[c][i];
        }
    }
    /* the last cut whose sum is enough, and the next one */
    uint64_t lo = s->lo, hi = s->hi, above = s->above;
    uint32_t least = s->inside, most = 0;
#pragma unroll
    for (int c = 0; c < SAMPLE_CUTS; c++) {
        if (s->above + sum[c] >= need) {
            lo = s->lo + step * (c + 1);
            least = count[c];
        } else if (!most && hi == s->hi) {
            above = s->above + sum[c];
            hi = min(s->hi, s->lo + step * (c + 1) - 1);
            most = count[c];
        }
    }
    s->lo = lo;
    s->hi = hi;
    s->above = above;
    s->inside = least - most;
    __syncthreads();
}

/* A list's ranks, each with weight(rank), that sum up to need or more. Returns the highest r for which those from r on
 * reach need. Every thread gets it. */
template <class W>
__device__ static uint64_t select_rank(struct select_room *m, const uint64_t *list, uint32_t n, const W &weight,
                                       uint64_t need) {
    struct select_range s = {0, ~0ull, 0, n};
    uint64_t rank = 0, better;
    if (n > SAMPLE_THREADS) {
        uint64_t lo = ~0ull, hi = 0;
        for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
            lo = min(lo, list[i]);
            hi = max(hi, list[i]);
        }
        s.lo = ~block_best(m->best, ~lo);
        s.hi = block_best(m->best, hi);
    }
    while (s.inside > SAMPLE_THREADS) select_narrow(m, list, n, weight, need, &s);
    if (!threadIdx.x) m->listed = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        uint64_t r = list[i];
        if (r < s.lo || r > s.hi) continue;
        uint32_t at = atomicAdd(&m->listed, 1u);
        m->rank[at] = r;
        m->weight[at] = weight(r);
    }
    __syncthreads();
    bool in = threadIdx.x < s.inside;
    if (in) rank = m->rank[threadIdx.x];
    better = s.above;
#pragma unroll 4
    for (uint32_t i = 0; i < s.inside; i++) better += m->rank[i] > rank ? m->weight[i] : 0;
    return ~block_best(m->best, in && better < need ? ~rank : 0);
}

#endif
