/* SPDX-License-Identifier: MIT */
/* cuda_topk.cu: the sel_pools best of a row's pools, ascending: larger score first, then the smaller id; exactly.
 *
 * The histogram of scores by their first 11 bits, which was counted with them, says in which bin the last chosen one
 * lies. Many blocks look at the row's scores once: what is in a better bin is chosen, what is in that bin is a
 * candidate. The block that is done last chooses among the candidates by the other 21 bits, then by id, and writes the
 * ids in order, out of one bit per pool, a range of pools after another. Places in the two lists depend on which block
 * was faster; the result does not. */
#include "cuda_mla.cuh"

enum {
    TOPK_THREADS = 512,
    TOPK_WARPS = TOPK_THREADS / 32,
    TOPK_SHARE = 4096, /* scores of a block */
    TOPK_KEPT = 6144,  /* candidates whose bits and ids fit the shared memory */
    TOPK_WORDS = 8192, /* bits of so many times 32 pools at a time */
};

struct topk_room {
    uint32_t hist[MLA_BINS];
    uint32_t warp[TOPK_WARPS];
    uint32_t bin, above; /* of the last chosen: its bin and how many are in better ones */
    uint32_t last;       /* this block is */
    uint32_t key[TOPK_KEPT], id[TOPK_KEPT];
    uint32_t bits[1]; /* of a range of the row's pools; as many words as the longest has, at most TOPK_WORDS */
};

/* What other blocks of this launch wrote. */
__device__ static __forceinline__ uint32_t topk_read(const uint32_t *p) {
#ifdef CUDA_SIM
    return *p;
#else
    return __ldcg(p);
#endif
}

/* Sum of v over the threads before this one; room for TOPK_WARPS. *all: over all threads. */
__device__ static __forceinline__ uint32_t topk_before(uint32_t v, uint32_t *room, uint32_t *all) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = v, before = 0, total = 0;
#pragma unroll
    for (uint32_t m = 1; m < 32; m <<= 1) {
        const uint32_t o = __shfl_up_sync(MIX_ALL, sum, m);
        sum += lane >= m ? o : 0;
    }
    if (lane == 31)
        room[warp] = sum;
    __syncthreads();
    for (uint32_t i = 0; i < TOPK_WARPS; i++) {
        before += i < warp ? room[i] : 0;
        total += room[i];
    }
    __syncthreads();
    *all = total;
    return before + sum - v;
}

/* In which bin, from the best on, the count reaches k. room->bin and ->above, after a barrier. */
__device__ static void topk_bin(const uint32_t *hist, bool shared, uint32_t k, struct topk_room *room) {
    constexpr uint32_t PER = (uint32_t)MLA_BINS / (uint32_t)TOPK_THREADS;
    uint32_t count[PER], sum = 0, all;
#pragma unroll
    for (uint32_t i = 0; i < PER; i++) {
        const uint32_t bin = MLA_BINS - 1 - threadIdx.x * PER - i;
        count[i] = shared ? room->hist[bin] : hist[bin];
        sum += count[i];
    }
    uint32_t before = topk_before(sum, room->warp, &all);
#pragma unroll
    for (uint32_t i = 0; i < PER; i++) {
        if (before < k && before + count[i] >= k) {
            room->bin = MLA_BINS - 1 - threadIdx.x * PER - i;
            room->above = before;
        }
        before += count[i];
    }
    __syncthreads();
}

/* This block's share of the scores. */
__device__ static void topk_share(const struct mla_args &a, uint32_t group, uint32_t n, uint32_t bin) {
    const float *score = a.scores + (uint64_t)group * a.max_pools;
    uint32_t *cand = a.cand + (uint64_t)group * a.max_pools, *count = a.hist + group * CUDA_HIST;
    uint32_t *sure = cand + a.max_pools - 1; /* backwards: both lists together have the row's pools at most */
    const uint32_t lane = threadIdx.x % 32, below = (1u << lane) - 1;
    for (uint32_t at = 0; at < TOPK_SHARE; at += TOPK_THREADS) {
        const uint32_t i = blockIdx.x * TOPK_SHARE + at + threadIdx.x;
        const uint32_t own = i < n ? mla_order(score[i]) >> MLA_BIN_SHIFT : 0;
        const uint32_t better = __ballot_sync(MIX_ALL, i < n && own > bin);
        const uint32_t equal = __ballot_sync(MIX_ALL, i < n && own == bin);
        uint32_t first[2] = {0, 0};
        if (lane == 0 && better)
            first[0] = atomicAdd(&count[MLA_SURE], (uint32_t)__popc(better));
        if (lane == 0 && equal)
            first[1] = atomicAdd(&count[MLA_CAND], (uint32_t)__popc(equal));
        first[0] = __shfl_sync(MIX_ALL, first[0], 0);
        first[1] = __shfl_sync(MIX_ALL, first[1], 0);
        if (better >> lane & 1)
            *(sure - first[0] - __popc(better & below)) = i;
        if (equal >> lane & 1)
            cand[first[1] + __popc(equal & below)] = i;
    }
}

/* A range of pools, whose chosen ones are bits. */
struct topk_range {
    uint32_t first, words;
};

__device__ static __forceinline__ void topk_set(struct topk_room *room, const struct topk_range &r, uint32_t id) {
    const uint32_t word = id / 32 - r.first / 32; /* wraps below the range */
    if (word < r.words)
        atomicOr(&room->bits[word], 1u << id % 32);
}

/* Words of a thread are neighbours. */
__device__ static __forceinline__ uint32_t topk_count(const struct topk_room *room, uint32_t lo, uint32_t hi) {
    uint32_t sum = 0;
    for (uint32_t i = lo; i < hi; i++)
        sum += __popc(room->bits[i]);
    return sum;
}

/* Of the bits set, only the first `want`; returns how many are left. */
__device__ static uint32_t topk_trim(struct topk_room *room, const struct topk_range &r, uint32_t want) {
    const uint32_t per = (r.words + TOPK_THREADS - 1) / TOPK_THREADS, lo = min(threadIdx.x * per, r.words),
                   hi = min(lo + per, r.words);
    uint32_t all, before = topk_before(topk_count(room, lo, hi), room->warp, &all);
    for (uint32_t i = lo; i < hi; i++) {
        uint32_t left = room->bits[i], kept = 0;
        for (; left && before < want; before++) {
            const uint32_t bit = FAULT(cuda_last_tie) ? 0x80000000u >> __clz((int)left) : left & (0u - left);
            kept |= bit;
            left &= ~bit;
        }
        room->bits[i] = kept;
    }
    __syncthreads();
    return min(all, want);
}

/* Ids of the bits set, ascending; returns how many. */
__device__ static uint32_t topk_write(struct topk_room *room, const struct topk_range &r, uint32_t *out) {
    const uint32_t per = (r.words + TOPK_THREADS - 1) / TOPK_THREADS, lo = min(threadIdx.x * per, r.words),
                   hi = min(lo + per, r.words);
    uint32_t all, at = topk_before(topk_count(room, lo, hi), room->warp, &all);
    for (uint32_t i = lo; i < hi; i++)
        for (uint32_t left = room->bits[i]; left; left &= left - 1)
            out[at++] = r.first + i * 32 + (uint32_t)__ffs((int)left) - 1;
    return all;
}

/* Candidate i: its id and the bits that its bin leaves open. */
struct topk_list {
    const uint32_t *id;
    const float *score;
    uint32_t n;
    const uint32_t *sure; /* ids that are chosen whatever the candidates are, backwards */
    uint32_t n_sure;
};
__device__ static __forceinline__ uint32_t topk_id(const struct topk_list &l, const struct topk_room *room,
                                                   uint32_t i) {
    return l.n <= TOPK_KEPT ? room->id[i] : topk_read(l.id + i);
}
__device__ static __forceinline__ uint32_t topk_key(const struct topk_list &l, const struct topk_room *room,
                                                    uint32_t i) {
    return l.n <= TOPK_KEPT ? room->key[i] : mla_order(l.score[topk_read(l.id + i)]) & ((1u << MLA_BIN_SHIFT) - 1);
}

enum { TOPK_LOW = 10 }; /* of the 21 bits the second digit */

/* The best `want` candidates: what is certainly among them by value is counted digit by digit; returns the value of the
 * last one, and in *want how many of those that equal it. */
__device__ static uint32_t topk_last(const struct topk_list &l, struct topk_room *room, uint32_t *want) {
    uint32_t first = 0;
    for (uint32_t digit = 0; digit < 2; digit++) {
        for (uint32_t i = threadIdx.x; i < MLA_BINS; i += TOPK_THREADS)
            room->hist[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < l.n; i += TOPK_THREADS) {
            const uint32_t key = topk_key(l, room, i);
            if (!digit)
                atomicAdd(&room->hist[key >> TOPK_LOW], 1u);
            else if (key >> TOPK_LOW == first)
                atomicAdd(&room->hist[key & ((1u << TOPK_LOW) - 1)], 1u);
        }
        __syncthreads();
        topk_bin(NULL, true, *want, room);
        first = digit ? first << TOPK_LOW | room->bin : room->bin;
        *want -= room->above;
        __syncthreads();
    }
    return first;
}

/* One range: those that equal the last one, of which the first `want` are taken, and all better ones. */
__device__ static void topk_mark(const struct topk_list &l, struct topk_room *room, const struct topk_range &r,
                                 uint32_t last, uint32_t *want) {
    for (uint32_t i = threadIdx.x; i < r.words; i += TOPK_THREADS)
        room->bits[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < l.n; i += TOPK_THREADS)
        if (topk_key(l, room, i) == last)
            topk_set(room, r, topk_id(l, room, i));
    __syncthreads();
    *want -= topk_trim(room, r, *want);
    for (uint32_t i = threadIdx.x; i < l.n; i += TOPK_THREADS)
        if (topk_key(l, room, i) > last)
            topk_set(room, r, topk_id(l, room, i));
    for (uint32_t i = threadIdx.x; i < l.n_sure; i += TOPK_THREADS)
        topk_set(room, r, topk_read(l.sure - i));
    __syncthreads();
}

__device__ static void topk_finish(const struct mla_args &a, uint32_t group, uint32_t n, struct topk_room *room) {
    uint32_t *count = a.hist + group * CUDA_HIST, *ids = a.cand + (uint64_t)group * a.max_pools;
    uint32_t *out = a.sel + (uint64_t)(a.row0 + group) * a.sel_pools;
    const struct topk_list l = {ids, a.scores + (uint64_t)group * a.max_pools, topk_read(count + MLA_CAND),
                                ids + a.max_pools - 1, topk_read(count + MLA_SURE)};
    uint32_t want = a.sel_pools - l.n_sure, written = 0;
    for (uint32_t i = threadIdx.x; l.n <= TOPK_KEPT && i < l.n; i += TOPK_THREADS) {
        room->id[i] = topk_read(l.id + i);
        room->key[i] = mla_order(l.score[room->id[i]]) & ((1u << MLA_BIN_SHIFT) - 1);
    }
    __syncthreads();
    const uint32_t last = topk_last(l, room, &want);
    for (struct topk_range r = {0, 0}; r.first < n; r.first += TOPK_WORDS * 32) {
        r.words = min((n - r.first + 31) / 32, (uint32_t)TOPK_WORDS);
        topk_mark(l, room, r, last, &want);
        written += topk_write(room, r, out + written);
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < CUDA_HIST; i += TOPK_THREADS)
        count[i] = 0; /* for the next group, layer or step */
}

__global__ void __launch_bounds__(TOPK_THREADS, 1) mla_topk(struct mla_args a) {
    CUDA_SMEM(struct topk_room, room);
    const uint32_t group = blockIdx.y, row = a.row0 + group;
    if (row >= a.step->n_rows[a.table])
        return;
    const uint32_t pos = mix_rows(a.step, a.table)[row].pos, n = mla_pools(a, pos);
    if (!mla_chooses(a, pos) || blockIdx.x * TOPK_SHARE >= n)
        return;
    uint32_t *count = a.hist + group * CUDA_HIST;
    topk_bin(count, false, a.sel_pools, room);
    topk_share(a, group, n, room->bin);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        room->last = atomicAdd(&count[MLA_DONE], 1u) == (n + TOPK_SHARE - 1) / TOPK_SHARE - 1;
    __syncthreads();
    if (!room->last)
        return;
    __threadfence();
    topk_finish(a, group, n, room);
}

cudaError_t mla_choose(const struct mla_args &a, cudaStream_t s) {
    const dim3 grid((a.max_pools + TOPK_SHARE - 1) / TOPK_SHARE, a.rows);
    const uint32_t words = (a.max_pools + 31) / 32;
    const size_t smem = offsetof(struct topk_room, bits) + min(words, (uint32_t)TOPK_WORDS) * sizeof(uint32_t);
    return CUDA_LAUNCH(mla_topk, grid, dim3(TOPK_THREADS), smem, s, a);
}
