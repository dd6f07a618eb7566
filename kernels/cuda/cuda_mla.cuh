/* SPDX-License-Identifier: MIT */
/* cuda_mla.cuh: what the kernels of an MLA layer, its indexer and its attention are told, and what they share. */
#ifndef GLMD_CUDA_MLA_CUH
#define GLMD_CUDA_MLA_CUH

#include "cuda_mix.cuh"

struct mla_args {
    const struct cuda_step *step;
    const char *weights;
    char *slots, *pages;
    uint64_t page_bytes, slot_bytes, latents, ring;
    float *z, *wide, *qa, *part, *omega, *scores;
    uint16_t *mid, *q16, *ctx;
    uint32_t *sel, *n_sel, *cand, *hist;
    const float *u;     /* F32 input of the layer */
    const float *omegas; /* [rows][ld_omega]: omega, or the product's columns of z */
    struct cuda_report *report;
    uint64_t qa_norm, kva_norm, knorm_w, knorm_b, ape, idx_w; /* weights; idx_w: plain rows */
    struct mix_keys keys;
    struct mix_rope rope;
    uint32_t table, index, idx_format; /* index: enum kern_index; idx_format 0: omega is a product's */
    uint32_t row0, rows; /* a group's first row and how many it has at most */
    uint32_t hidden, heads, q_rank, kv_rank, nope, n_rope, nope_pad, kv_pad;
    uint32_t ldz, z_qa, z_kva, z_key, z_gate, ld_wide, ldm, mid_cq, ld_omega;
    uint32_t index_heads, index_dim, kpool, sel_pools, max_pools;
    uint32_t cache, latent_bytes, rope_at;
    uint32_t splits, tile;
    float eps, scale;
};

/* Whether this layer's rows choose among pools, and how many a row may choose from. */
__device__ static __forceinline__ uint32_t mla_pools(const struct mla_args &a, uint32_t pos) {
    return a.index == KERN_INDEX_NONE ? 0 : (pos + 1) / a.kpool;
}
__device__ static __forceinline__ bool mla_chooses(const struct mla_args &a, uint32_t pos) {
    return mla_pools(a, pos) > a.sel_pools;
}
/* Positions a row attends to. */
__device__ static __forceinline__ uint32_t mla_list(const struct mla_args &a, uint32_t pos) {
    return mla_chooses(a, pos) ? a.sel_pools * a.kpool + (pos + 1) % a.kpool : pos + 1;
}

__device__ static __forceinline__ char *mla_page(const struct mla_args &a, const struct cuda_seq *s, uint32_t pos) {
    return a.pages + mix_pages(a.step, s)[pos / KERN_PAGE_TOKENS] * a.page_bytes;
}
__device__ static __forceinline__ char *mla_latent(const struct mla_args &a, const struct cuda_seq *s, uint32_t pos) {
    return mla_page(a, s, pos) + a.latents + (uint64_t)(pos % KERN_PAGE_TOKENS) * a.latent_bytes;
}
/* The page of a pool; its place there is pool modulo per_page. */
__device__ static __forceinline__ char *mla_pool_page(const struct mla_args &a, const struct cuda_seq *s,
                                                      uint32_t pool) {
    return a.pages + mix_pages(a.step, s)[pool / a.keys.per_page] * a.page_bytes;
}

/* A key whose unsigned order is the order of scores: -0 equals +0, NaN counts lowest. */
__device__ static __forceinline__ uint32_t mla_order(float v) {
    uint32_t u = ptx_f32_bits(v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0;
    if (!(u & 0x7fffffffu))
        u = 0;
    return u & 0x80000000u && !FAULT(cuda_order_raw) ? ~u : u | 0x80000000u;
}
enum { MLA_BINS = 2048, MLA_BIN_SHIFT = 21, MLA_SURE = MLA_BINS, MLA_CAND, MLA_DONE };

/* Rows of the next group, of so many that are left. */
static inline uint32_t mla_group(uint32_t left) {
    return left < CUDA_GROUP ? left : (uint32_t)CUDA_GROUP;
}

/* A group of rows through scores and choice (cuda_index.cu, cuda_topk.cu), and through the attention (cuda_attn.cu). */
cudaError_t mla_score(const struct mla_args &a, cudaStream_t s);
cudaError_t mla_choose(const struct mla_args &a, cudaStream_t s);
cudaError_t mla_attend(const struct mla_args &a, cudaStream_t s);

struct mla_args mla_args_of(const struct cuda_run *r);

#endif
