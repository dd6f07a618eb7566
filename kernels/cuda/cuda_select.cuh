/* SPDX-License-Identifier: MIT */
/* cuda_select.cuh: the rank at which a sum over the best ranks reaches what is asked for, by one block of
 * SAMPLE_THREADS. Nothing is sorted: the interval that holds the rank is cut in eight until it holds one id; once few
 * are inside they move to shared memory. Whole numbers only, so the order of summing is of no account. */
#ifndef GLMD_CUDA_SELECT_CUH
#define GLMD_CUDA_SELECT_CUH

#include "cuda_sample.cuh"

/* 60 KB of dynamic shared memory. */
struct select_room {
    uint64_t sum[SAMPLE_CUTS][SAMPLE_THREADS];
    uint64_t rank[SAMPLE_LIST], weight[SAMPLE_LIST];
    uint32_t count[SAMPLE_CUTS][SAMPLE_THREADS];
    uint64_t total[SAMPLE_CUTS];
    uint32_t counted[SAMPLE_CUTS], listed;
};

/* Sum of a thread's column by one warp; all warps call it for the columns they have. */
__device__ static inline void select_totals(struct select_room *m, bool weighted) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    if (warp < SAMPLE_CUTS) {
        uint64_t sum = 0;
        uint32_t count = 0;
        for (uint32_t i = lane; i < SAMPLE_THREADS; i += 32) {
            count += m->count[warp][i];
            if (weighted) sum += m->sum[warp][i];
        }
        for (int by = 16; by; by >>= 1) {
            count += __shfl_xor_sync(0xffffffffu, count, by);
            if (weighted) sum += __shfl_xor_sync(0xffffffffu, sum, by);
        }
        if (!lane) {
            m->counted[warp] = count;
            m->total[warp] = weighted ? sum : count;
        }
    }
    __syncthreads();
}

/* z[id]'s ranks, each with weight[id] (NULL: 1). Between lo and hi lie `inside` of them, whose weights sum up to need
 * or more, and none above hi is looked at. Returns the highest r for which those of [r, hi] reach need, or a lower one
 * that no rank lies between. Every thread gets it. */
__device__ static inline uint64_t select_rank(struct select_room *m, const float *z, const uint64_t *weight, uint32_t n,
                                              uint64_t need, uint64_t lo, uint64_t hi, uint64_t inside) {
    bool listed = false;
    uint64_t above = 0; /* weight of what is above hi by now */
    while (lo < hi && inside > 1) {
        uint64_t step = (hi - lo) / (SAMPLE_CUTS + 1) + 1, sum[SAMPLE_CUTS];
        uint32_t count[SAMPLE_CUTS];
        for (int c = 0; c < SAMPLE_CUTS; c++) sum[c] = count[c] = 0;
        for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
            uint64_t r = listed ? m->rank[i] : sample_rank(z[i], i);
            if (r < lo || r > hi) continue;
            uint64_t w = !weight ? 0 : listed ? m->weight[i] : weight[i];
#pragma unroll
            for (int c = 0; c < SAMPLE_CUTS; c++) {
                bool in = r - lo >= step * (c + 1);
                count[c] += in;
                sum[c] += in ? w : 0;
            }
        }
        for (int c = 0; c < SAMPLE_CUTS; c++) {
            m->count[c][threadIdx.x] = count[c];
            if (weight) m->sum[c][threadIdx.x] = sum[c];
        }
        select_totals(m, weight != NULL);
        int c = SAMPLE_CUTS;
        while (c > 0 && above + m->total[c - 1] < need) c--;
        /* between cut c and the next one it is */
        if (c < SAMPLE_CUTS) {
            above += m->total[c];
            hi = min(hi, lo + step * (c + 1) - 1);
        }
        inside = (c ? m->counted[c - 1] : inside) - (c < SAMPLE_CUTS ? m->counted[c] : 0);
        lo += step * c;
        if (!listed && inside <= SAMPLE_LIST && inside > 1) {
            if (!threadIdx.x) m->listed = 0;
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
                uint64_t r = sample_rank(z[i], i);
                if (r < lo || r > hi) continue;
                uint32_t at = atomicAdd(&m->listed, 1u);
                m->rank[at] = r;
                m->weight[at] = weight ? weight[i] : 1;
            }
            listed = true;
            n = (uint32_t)inside;
        }
        __syncthreads();
    }
    return lo;
}

#endif
