/* SPDX-License-Identifier: MIT */
/* cuda_mla.cu: the MLA sub-layer in absorbed form: its products, the norms between them, and the order of its kernels.
 * Latents go to their pages as soon as they are normalised; visibility is by position, so that what a rejected draft
 * left behind is replaced before anybody may see it. */
#include "cuda_pool.cuh"

#include <math.h>

/* ---- norms ---------------------------------------------------------------------------------------------- */

enum { MLA_THREADS = 256, MLA_WARPS = MLA_THREADS / 32 };

__device__ static __forceinline__ float mla_rms(const struct mla_args &a, const float *x, uint32_t n, float *room) {
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum = fmaf(x[i], x[i], sum);
    return 1.0f / sqrtf(mix_block_sum(sum, room) / (float)n + a.eps);
}

__device__ static void mla_norm_q(const struct mla_args &a, uint32_t row, float *room) {
    const float *x = a.z + (uint64_t)row * a.ldz + a.z_qa, *w = (const float *)(a.weights + a.qa_norm);
    uint16_t *out = a.mid + (uint64_t)row * a.ldm + a.mid_cq;
    const float scale = mla_rms(a, x, a.q_rank, room);
    for (uint32_t i = threadIdx.x; i < a.q_rank; i += blockDim.x)
        out[i] = ptx_f32_bf16(x[i] * scale * w[i]);
}

/* The latent to its page, and behind it the rotary numbers, which have no norm and no factor. */
__device__ static void mla_norm_latent(const struct mla_args &a, uint32_t row, float *room, float *angle) {
    const struct cuda_row *t = &mix_rows(a.step, a.table)[row];
    const float *x = a.z + (uint64_t)row * a.ldz + a.z_kva, *w = (const float *)(a.weights + a.kva_norm);
    char *at = mla_latent(a, &mix_seqs(a.step, a.table)[t->seq], t->pos);
    const float scale = mla_rms(a, x, a.kv_rank, room);
    float factor = 1;
    mix_angles(&a.rope, t->pos, angle);
    if (a.cache == KERN_CACHE_FP8) {
        uint32_t top = 0;
        for (uint32_t i = threadIdx.x; i < a.kv_rank; i += blockDim.x) {
            const uint32_t u = ptx_f32_bits(x[i] * scale * w[i]) & 0x7fffffffu;
            top = u > top ? u : top;
        }
        factor = mix_fp8_scale(mix_block_max(top, (uint32_t *)room));
        if (threadIdx.x == 0)
            *(float *)(at + mix_fp8_at(a.kv_rank)) = factor;
    }
    for (uint32_t i = threadIdx.x; i < a.kv_rank; i += blockDim.x)
        mix_store(a.cache, at, i, x[i] * scale * w[i], factor);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_rope; i += blockDim.x) {
        const float c = angle[i & ~1u], s = angle[i | 1], re = x[a.kv_rank + (i & ~1u)], im = x[a.kv_rank + (i | 1)];
        const float v = i & 1 ? im * c + re * s : re * c - im * s;
        mix_store(a.cache == KERN_CACHE_F32 ? KERN_CACHE_F32 : KERN_CACHE_BF16, at + a.rope_at, i, v, 1);
    }
}

/* LayerNorm of the indexer's key, then its first numbers turned; in place. */
__device__ static void mla_norm_key(const struct mla_args &a, uint32_t row, float *room, float *angle) {
    const float *w = (const float *)(a.weights + a.knorm_w), *b = (const float *)(a.weights + a.knorm_b);
    const uint32_t n = a.index_dim;
    float *x = a.z + (uint64_t)row * a.ldz + a.z_key, sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[i];
    const float mean = mix_block_sum(sum, room) / (float)n;
    sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum = fmaf(x[i] - mean, x[i] - mean, sum);
    const float scale = 1.0f / sqrtf(mix_block_sum(sum, room) / (float)n + 1e-6f);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = fmaf((x[i] - mean) * scale, w[i], b[i]);
    mix_angles(&a.rope, mix_rows(a.step, a.table)[row].pos, angle);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.rope.pairs; i += blockDim.x) {
        const float re = x[2 * i], im = x[2 * i + 1];
        x[2 * i] = re * angle[2 * i] - im * angle[2 * i + 1];
        x[2 * i + 1] = im * angle[2 * i] + re * angle[2 * i + 1];
    }
}

__device__ static __forceinline__ float mla_plain(const char *w, uint32_t format, uint64_t i) {
    return format == KERN_F32    ? ((const float *)w)[i]
           : format == KERN_BF16 ? ptx_bf16_f32(((const uint16_t *)w)[i])
                                 : ptx_f16_f32(((const uint16_t *)w)[i]);
}

/* The weight of one indexer head for one row: rounding it would let near pools change places. One warp. */
__device__ static void mla_omega(const struct mla_args &a, uint32_t row, uint32_t head) {
    const uint32_t lane = threadIdx.x % 32;
    const float *u = a.u + (uint64_t)row * a.hidden;
    const char *w = a.weights + a.idx_w;
    float sum = 0;
    if (a.idx_format == KERN_BF16 && a.hidden % 8 == 0) {
        for (uint32_t i = lane * 8; i < a.hidden; i += 256) {
            const uint4 v = *(const uint4 *)(w + ((uint64_t)head * a.hidden + i) * 2);
            const float4 x = *(const float4 *)(u + i), y = *(const float4 *)(u + i + 4);
            sum = fmaf(ptx_bf16_f32(v.x & 0xffff), x.x, sum);
            sum = fmaf(ptx_bf16_f32(v.x >> 16), x.y, sum);
            sum = fmaf(ptx_bf16_f32(v.y & 0xffff), x.z, sum);
            sum = fmaf(ptx_bf16_f32(v.y >> 16), x.w, sum);
            sum = fmaf(ptx_bf16_f32(v.z & 0xffff), y.x, sum);
            sum = fmaf(ptx_bf16_f32(v.z >> 16), y.y, sum);
            sum = fmaf(ptx_bf16_f32(v.w & 0xffff), y.z, sum);
            sum = fmaf(ptx_bf16_f32(v.w >> 16), y.w, sum);
        }
    } else {
        for (uint32_t i = lane; i < a.hidden; i += 32)
            sum = fmaf(mla_plain(w, a.idx_format, (uint64_t)head * a.hidden + i), u[i], sum);
    }
    sum = mix_warp_sum(sum);
    if (lane == 0)
        a.omega[(uint64_t)row * a.index_heads + head] = sum;
}

/* Block (part, row): the query's norm, the latent's, the index key's, then eight heads' omega each. */
__global__ void __launch_bounds__(MLA_THREADS, 4) mla_norms(struct mla_args a) {
    __shared__ float room[32], angle[2 * MIX_MAX_PAIRS];
    const uint32_t row = blockIdx.y, part = blockIdx.x;
    if (row >= a.step->n_rows[a.table])
        return;
    if (part == 0)
        mla_norm_q(a, row, room);
    else if (part == 1)
        mla_norm_latent(a, row, room, angle);
    else if (part == 2)
        mla_norm_key(a, row, room, angle);
    else if (mla_chooses(a, mix_rows(a.step, a.table)[row].pos)) {
        const uint32_t head = (part - 3) * MLA_WARPS + threadIdx.x / 32;
        if (head < a.index_heads)
            mla_omega(a, row, head);
    }
}

/* ---- queries -------------------------------------------------------------------------------------------- */

__device__ static __forceinline__ void mla_turn(const struct mla_args &a, const float *angle, const float *q,
                                                float *to) {
    for (uint32_t i = threadIdx.x % 32; i < a.rope.pairs; i += 32) {
        const float re = q[2 * i], im = q[2 * i + 1];
        to[2 * i] = re * angle[2 * i] - im * angle[2 * i + 1];
        to[2 * i + 1] = im * angle[2 * i] + re * angle[2 * i + 1];
    }
}

/* A head's query: its first numbers as BF16 for the absorbing product, the others turned, behind where the absorbed
 * ones will be. One warp. */
__device__ static void mla_query(const struct mla_args &a, uint32_t row, uint32_t head, const float *angle) {
    const float *q = a.wide + (uint64_t)row * a.ld_wide + (uint64_t)head * (a.nope + a.n_rope);
    const uint64_t at = (uint64_t)row * a.heads + head;
    for (uint32_t i = threadIdx.x % 32; i < a.nope; i += 32)
        a.q16[at * a.nope_pad + i] = ptx_f32_bf16(q[i]);
    mla_turn(a, angle, q + a.nope, a.qa + at * (a.kv_rank + a.n_rope) + a.kv_rank);
}

/* What the step's rows read, counted by one block. */
__device__ static void mla_count(const struct mla_args &a) {
    __shared__ unsigned long long latents[MLA_THREADS], keys[MLA_THREADS];
    const struct cuda_row *rows = mix_rows(a.step, a.table);
    unsigned long long l = 0, k = 0;
    for (uint32_t i = threadIdx.x; i < a.step->n_rows[a.table]; i += MLA_THREADS) {
        l += mla_list(a, rows[i].pos);
        k += a.index == KERN_INDEX_FULL && mla_chooses(a, rows[i].pos) ? mla_pools(a, rows[i].pos) : 0;
    }
    latents[threadIdx.x] = l;
    keys[threadIdx.x] = k;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (uint32_t i = 1; i < MLA_THREADS; i++) {
        l += latents[i];
        k += keys[i];
    }
    atomicAdd((unsigned long long *)&a.report->latent_rows, l);
    if (k)
        atomicAdd((unsigned long long *)&a.report->pooled_keys, k);
}

/* Block (part, row): first eight heads' queries each, then, with an indexer, eight of its heads each where there are
 * rotary numbers, the row's pool, and of the sequence of that number what it keeps. */
__global__ void __launch_bounds__(MLA_THREADS) mla_queries(struct mla_args a) {
    __shared__ float angle[2 * MIX_MAX_PAIRS];
    __shared__ struct pool_room room;
    const uint32_t heads = (a.heads + MLA_WARPS - 1) / MLA_WARPS;
    const uint32_t turned = a.rope.pairs ? (a.index_heads + MLA_WARPS - 1) / MLA_WARPS : 0;
    const uint32_t row = blockIdx.y, part = blockIdx.x;
    if (part == 0 && row == 0)
        mla_count(a);
    if (part > heads + turned) {
        for (uint32_t i = row; i < a.step->n_seqs[a.table]; i += gridDim.y)
            pool_of_seq(a, &mix_seqs(a.step, a.table)[i], &room);
        return;
    }
    if (row >= a.step->n_rows[a.table])
        return;
    if (part == heads + turned) {
        pool_of_row(a, row, &room);
        return;
    }
    mix_angles(&a.rope, mix_rows(a.step, a.table)[row].pos, angle);
    __syncthreads();
    const uint32_t head = part * MLA_WARPS + threadIdx.x / 32;
    if (part < heads && head < a.heads)
        mla_query(a, row, head, angle);
    const uint32_t key_head = (part - heads) * MLA_WARPS + threadIdx.x / 32;
    if (part >= heads && key_head < a.index_heads) {
        float *q = a.wide + (uint64_t)row * a.ld_wide + a.heads * (a.nope + a.n_rope);
        mla_turn(a, angle, q + (uint64_t)key_head * a.index_dim, q + (uint64_t)key_head * a.index_dim);
    }
}

/* ---- order ---------------------------------------------------------------------------------------------- */

struct mix_rope mix_rope_of(const struct cuda_dims *d) {
    struct mix_rope r = {};
    r.pairs = d->rope / 2;
    for (uint32_t i = 0; i < r.pairs; i++)
        r.turn[i] = pow((double)d->rope_theta, -2.0 * i / d->rope) / (2.0 * 3.14159265358979323846);
    return r;
}

static bool mla_plain_store(const struct cuda_mat *m) {
    return m->store.format == KERN_F32 || m->store.format == KERN_BF16 || m->store.format == KERN_F16;
}

static uint32_t mla_pad(uint32_t n) {
    return (n + CUDA_PAD_K - 1) / CUDA_PAD_K * CUDA_PAD_K;
}

static void mla_args_layer(const struct cuda_run *r, struct mla_args *a) {
    const struct cuda_layer *l = r->layer;
    a->latents = l->latents;
    a->ring = l->ring;
    a->qa_norm = l->qa_norm;
    a->kva_norm = l->kva_norm;
    a->knorm_w = l->knorm_w;
    a->knorm_b = l->knorm_b;
    a->ape = l->ape;
    a->idx_w = l->idx_w.codes;
    a->index = r->desc->index;
    a->idx_format = mla_plain_store(&l->idx_w) ? l->idx_w.store.format : 0;
    a->omegas = a->idx_format ? r->lane->omega : r->lane->z + r->z->w;
    a->ld_omega = a->idx_format ? r->d->index_heads : r->z->ld;
    a->keys.at = l->keys;
    a->keys.cache = r->d->cache;
    a->keys.dim = r->d->index_dim;
    a->keys.per_page = KERN_PAGE_TOKENS / (r->d->index_kpool ? r->d->index_kpool : 1);
}

static void mla_args_dims(const struct cuda_run *r, struct mla_args *a) {
    const struct cuda_dims *d = r->d;
    a->page_bytes = d->page_bytes;
    a->slot_bytes = d->slot_bytes;
    a->rope = mix_rope_of(d);
    a->hidden = d->hidden;
    a->heads = d->mla_heads;
    a->q_rank = d->q_rank;
    a->kv_rank = d->kv_rank;
    a->nope = d->nope;
    a->n_rope = d->rope;
    a->nope_pad = mla_pad(d->nope);
    a->kv_pad = mla_pad(d->kv_rank);
    a->index_heads = d->index_heads;
    a->index_dim = d->index_dim;
    a->kpool = d->index_kpool ? d->index_kpool : 1;
    a->sel_pools = d->sel_pools;
    a->max_pools = d->max_pools;
    a->cache = d->cache;
    a->latent_bytes = d->latent_bytes;
    a->rope_at = d->rope_at;
    a->eps = d->rms_eps;
    a->scale = 1.0f / sqrtf((float)(d->nope + d->rope));
}

struct mla_args mla_args_of(const struct cuda_run *r) {
    const struct cuda_lane *w = r->lane;
    struct mla_args a = {};
    a.step = w->step;
    a.weights = r->weights;
    a.slots = r->slots;
    a.pages = r->pages;
    a.z = w->z;
    a.wide = w->wide;
    a.qa = w->qa;
    a.part = w->attn_part;
    a.omega = w->omega;
    a.scores = w->scores;
    a.mid = w->mid;
    a.q16 = w->q16;
    a.ctx = w->ctx;
    a.sel = w->sel;
    a.n_sel = w->n_sel;
    a.cand = w->cand;
    a.hist = w->hist;
    a.u = w->u_f;
    a.report = w->report;
    a.table = r->is_draft;
    a.ldz = r->z->ld;
    a.z_qa = r->z->qa;
    a.z_kva = r->z->kva;
    a.z_key = r->z->key;
    a.z_gate = r->z->gate;
    a.ld_wide = r->wide_ld;
    a.ldm = r->mid->ld;
    a.mid_cq = r->mid->cq;
    a.splits = r->attn_splits;
    a.tile = r->attn_tile;
    mla_args_dims(r, &a);
    mla_args_layer(r, &a);
    return a;
}

static struct cuda_prod mla_prod(const struct cuda_mat *m, const uint16_t *x, uint32_t ldx, float *out, uint32_t ldo,
                                 uint32_t at) {
    struct cuda_prod p = {};
    p.m = m;
    p.x = x;
    p.ldx = ldx;
    p.out = out;
    p.ldo = ldo;
    p.out_at = at;
    return p;
}

/* Everything that reads the layer's input. */
static cudaError_t mla_inputs(const struct cuda_run *r, const struct mla_args &a) {
    const struct cuda_layer *l = r->layer;
    const uint32_t ldx = r->d->hidden_pad;
    struct cuda_prod p[5];
    uint32_t n = 0;
    p[n++] = mla_prod(&l->qa, r->lane->u, ldx, a.z, a.ldz, a.z_qa);
    p[n++] = mla_prod(&l->kva, r->lane->u, ldx, a.z, a.ldz, a.z_kva);
    if (a.index == KERN_INDEX_FULL) {
        p[n++] = mla_prod(&l->idx_k, r->lane->u, ldx, a.z, a.ldz, a.z_key);
        if (a.kpool > 1)
            p[n++] = mla_prod(&l->idx_gate, r->lane->u, ldx, a.z, a.ldz, a.z_gate);
        if (!a.idx_format)
            p[n++] = mla_prod(&l->idx_w, r->lane->u, ldx, a.z, a.ldz, r->z->w);
    }
    const uint32_t omegas = (a.index_heads + MLA_WARPS - 1) / MLA_WARPS;
    const dim3 grid(a.index == KERN_INDEX_FULL ? 3 + (a.idx_format ? omegas : 0) : 2, r->rows);
    cudaError_t e = cuda_products(r, p, n);
    return e == cudaSuccess ? CUDA_LAUNCH(mla_norms, grid, dim3(MLA_THREADS), 0, r->stream, a) : e;
}

/* Queries of the heads and of the indexer, and the heads' absorbed. */
static cudaError_t mla_make_queries(const struct cuda_run *r, const struct mla_args &a) {
    const struct cuda_layer *l = r->layer;
    const uint16_t *cq = a.mid + a.mid_cq;
    const uint32_t q_all = a.heads * (a.nope + a.n_rope), full = a.index == KERN_INDEX_FULL;
    struct cuda_prod p[2];
    p[0] = mla_prod(&l->qb, cq, a.ldm, a.wide, a.ld_wide, 0);
    if (full)
        p[1] = mla_prod(&l->idx_qb, cq, a.ldm, a.wide, a.ld_wide, q_all);
    cudaError_t e = cuda_products(r, p, 1 + full);
    if (e != cudaSuccess)
        return e;
    const uint32_t turned = a.rope.pairs ? (a.index_heads + MLA_WARPS - 1) / MLA_WARPS : 0;
    const dim3 grid((a.heads + MLA_WARPS - 1) / MLA_WARPS + (full ? turned + 2 : 0), r->rows);
    e = CUDA_LAUNCH(mla_queries, grid, dim3(MLA_THREADS), 0, r->stream, a);
    if (e != cudaSuccess)
        return e;
    p[0] = mla_prod(&l->uk, a.q16, a.heads * a.nope_pad, a.qa, a.heads * (a.kv_rank + a.n_rope), 0);
    p[0].head_ldx = a.nope_pad;
    p[0].head_ldo = a.kv_rank + a.n_rope;
    return cuda_products(r, p, 1);
}

extern "C" cudaError_t cuda_mla(const struct cuda_run *r) {
    const struct cuda_layer *l = r->layer;
    struct mla_args a = mla_args_of(r);
    cudaError_t e = mla_inputs(r, a);
    if (e == cudaSuccess)
        e = mla_make_queries(r, a);
    if (e == cudaSuccess && a.index == KERN_INDEX_FULL)
        e = cuda_index(r);
    for (a.row0 = 0; a.row0 < r->rows && e == cudaSuccess; a.row0 += a.rows) {
        a.rows = mla_group(r->rows - a.row0);
        e = mla_attend(a, r->stream);
    }
    if (e != cudaSuccess)
        return e;
    struct cuda_prod uv = mla_prod(&l->uv, a.ctx, a.heads * a.kv_pad, NULL, a.ldm, r->mid->attn);
    uv.head_ldx = a.kv_pad;
    uv.out16 = a.mid;
    e = cuda_products(r, &uv, 1);
    if (e != cudaSuccess)
        return e;
    const struct cuda_prod out =
        mla_prod(&l->mla_o, a.mid + r->mid->attn, a.ldm, r->lane->y, r->y_parts * r->d->hidden, 0);
    return cuda_products(r, &out, 1);
}
