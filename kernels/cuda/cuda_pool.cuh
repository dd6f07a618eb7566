/* SPDX-License-Identifier: MIT */
/* cuda_pool.cuh: keys of pools and the ring of raw keys and gates, as blocks of a kernel of cuda_mla.cu run them.
 *
 * A pool is written whenever the row that completes it runs. A pool whose tokens are all of this step has a block of
 * its own; the one that began before reads the ring, so the block that then overwrites the ring makes it first. */
#ifndef GLMD_CUDA_POOL_CUH
#define GLMD_CUDA_POOL_CUH

#include "cuda_mla.cuh"

enum { POOL_MAX_DIM = 1024 };

struct pool_room {
    float value[POOL_MAX_DIM];
    uint32_t top[32];
};

/* Raw key of a position, its gate index_dim (ring) or z_gate - z_key (this step's rows) further on. */
__device__ static __forceinline__ const float *pool_raw(const struct mla_args &a, const struct cuda_seq *s,
                                                        uint32_t pos, uint32_t *gate) {
    if (pos >= s->pos0) {
        *gate = a.z_gate - a.z_key;
        return a.z + (uint64_t)(s->row0 + pos - s->pos0) * a.ldz + a.z_key;
    }
    *gate = a.index_dim;
    return (const float *)(a.slots + s->slot * a.slot_bytes + a.ring) +
           (uint64_t)((pos + FAULT(cuda_ring_late)) % KERN_TAIL_RING) * 2 * a.index_dim;
}

/* One channel of the pool that begins at p0: its keys weighted by the softmax of their gates. */
__device__ static __forceinline__ float pool_channel(const struct mla_args &a, const struct cuda_seq *s, uint32_t p0,
                                                     uint32_t c) {
    const float *ape = (const float *)(a.weights + a.ape);
    float top = ptx_bits_f32(0xff800000u), sum = 0, mean = 0;
    uint32_t gate;
    for (uint32_t j = 0; j < a.kpool; j++) {
        const float *raw = pool_raw(a, s, p0 + j, &gate);
        top = fmaxf(top, raw[gate + c] + ape[j * a.index_dim + c]);
    }
    for (uint32_t j = 0; j < a.kpool; j++) {
        const float *raw = pool_raw(a, s, p0 + j, &gate);
        const float w = expf(raw[gate + c] + ape[j * a.index_dim + c] - top);
        sum += w;
        mean = fmaf(w, raw[c], mean);
    }
    return mean / sum;
}

/* All threads of the block. */
__device__ static void pool_make(const struct mla_args &a, const struct cuda_seq *s, uint32_t pool,
                                 struct pool_room *room) {
    const uint32_t p0 = pool * a.kpool, slot = pool % a.keys.per_page;
    char *page = mla_pool_page(a, s, pool), *row = mix_key_row(&a.keys, page, slot);
    uint32_t top = 0, gate;
    for (uint32_t c = threadIdx.x; c < a.index_dim; c += blockDim.x) {
        const float v = a.kpool > 1 ? pool_channel(a, s, p0, c) : pool_raw(a, s, p0, &gate)[c];
        const uint32_t u = ptx_f32_bits(v) & 0x7fffffffu;
        room->value[c] = v; /* read by this thread only */
        top = u > top ? u : top;
    }
    float factor = 1;
    if (a.cache == KERN_CACHE_FP8) {
        factor = mix_fp8_scale(mix_block_max(top, room->top));
        if (threadIdx.x == 0)
            *mix_key_factor(&a.keys, page, slot) = factor;
    }
    for (uint32_t c = threadIdx.x; c < a.index_dim; c += blockDim.x)
        mix_store(a.cache, row, c, room->value[c], factor);
}

/* The pool that this row completes, when it began in this step. */
__device__ static void pool_of_row(const struct mla_args &a, uint32_t row, struct pool_room *room) {
    const struct cuda_row *t = &mix_rows(a.step, a.table)[row];
    const struct cuda_seq *s = &mix_seqs(a.step, a.table)[t->seq];
    if (threadIdx.x == 0)
        a.n_sel[row] = mla_chooses(a, t->pos) ? a.sel_pools : (uint32_t)KERN_NONE;
    if ((t->pos + 1) % a.kpool == 0 && t->pos + 1 - a.kpool >= s->pos0 && t->pos + 1 >= a.kpool)
        pool_make(a, s, t->pos / a.kpool, room);
}

/* The pool that this step completes and an earlier one began, then the ring. */
__device__ static void pool_of_seq(const struct mla_args &a, const struct cuda_seq *s, struct pool_room *room) {
    const uint32_t begun = s->pos0 / a.kpool;
    if (a.kpool == 1 || !s->n_rows)
        return;
    if (s->pos0 % a.kpool && s->pos0 + s->n_rows >= (begun + 1) * a.kpool)
        pool_make(a, s, begun, room);
    __syncthreads();
    float *ring = (float *)(a.slots + s->slot * a.slot_bytes + a.ring);
    const uint32_t two = 2 * a.index_dim, ring_rows = KERN_TAIL_RING,
                   n = s->n_rows < ring_rows ? s->n_rows : ring_rows;
    for (uint32_t i = threadIdx.x; i < n * two; i += blockDim.x) {
        const uint32_t row = s->n_rows - n + i / two, c = i % two;
        const float *z = a.z + (uint64_t)(s->row0 + row) * a.ldz;
        ring[(uint64_t)((s->pos0 + row) % KERN_TAIL_RING) * two + c] =
            c < a.index_dim ? z[a.z_key + c] : z[a.z_gate + c - a.index_dim];
    }
}

#endif
