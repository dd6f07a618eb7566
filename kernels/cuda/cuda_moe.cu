/* SPDX-License-Identifier: MIT */
/* cuda_moe.cu: the feed-forward stages. Router in F32; the experts of a row by score plus bias, larger first, then the
 * smaller id; rows grouped by expert, so that each chosen expert is read once for up to 16 of its rows. */
#include "cuda_prod_list.h"

#include <math.h>

enum { ROUTER_WARPS = 8, ROUTER_SPLIT = 4, ROUTER_ROWS = 8, ROUTER_RUN = 8, TOP_WARPS = 16, TOP_MAX = 64 };
enum { TOP_ENTRIES = 128 }; /* so many are grouped by comparing each with all */

/* ---- router ----------------------------------------------------------------------------------------------- */

struct router_args {
    const struct cuda_step *step;
    const char *w; /* [n][k] */
    const float *x; /* [rows][k] */
    float *out;     /* [rows][n]: sigmoid */
    uint32_t is_draft, format, n, k;
};

/* Four numbers of a row from k on; the row may begin anywhere and end between them. */
__device__ static __forceinline__ void router_weights(const struct router_args &a, size_t row, uint32_t k, float w[4]) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        w[i] = 0;
        if (k + i >= a.k)
            continue;
        if (a.format == KERN_F32)
            w[i] = __ldg((const float *)a.w + row + k + i);
        else {
            uint32_t h = __ldg((const uint16_t *)a.w + row + k + i);
            w[i] = a.format == KERN_BF16 ? ptx_bf16_f32(h) : ptx_f16_f32(h);
        }
    }
}

/* The same where rows begin at whole 16 bytes, in two steps: as it lies there, then widened. */
__device__ static __forceinline__ uint4 router_raw(const struct router_args &a, size_t at) {
    if (a.format == KERN_F32)
        return ptx_stream16((const float *)a.w + at);
    const uint2 v = ptx_stream8((const uint16_t *)a.w + at);
    return make_uint4(v.x, v.y, 0, 0);
}

__device__ static __forceinline__ void router_widen(uint32_t format, uint4 v, float w[4]) {
    if (format == KERN_F32) {
        w[0] = ptx_bits_f32(v.x), w[1] = ptx_bits_f32(v.y), w[2] = ptx_bits_f32(v.z), w[3] = ptx_bits_f32(v.w);
    } else if (format == KERN_BF16) {
        w[0] = ptx_bf16_f32(v.x & 0xffff), w[1] = ptx_bf16_f32(v.x >> 16);
        w[2] = ptx_bf16_f32(v.y & 0xffff), w[3] = ptx_bf16_f32(v.y >> 16);
    } else {
        w[0] = ptx_f16_f32(v.x), w[1] = ptx_f16_f32(v.x >> 16), w[2] = ptx_f16_f32(v.y), w[3] = ptx_f16_f32(v.y >> 16);
    }
}

/* A warp's share of an expert: its numbers of the first ROUTER_RUN steps are on their way (raw). Whole loads: k % 8 is
 * 0. The order of each row's sum is that of the numbers, whatever n_rows is. */
__device__ static __forceinline__ void router_run(const struct router_args &a, size_t row, uint32_t k, uint32_t k1,
                                                  uint32_t row0, uint32_t n_rows, uint4 (&raw)[ROUTER_RUN],
                                                  float (&sum)[ROUTER_ROWS]) {
    while (k < k1) {
#pragma unroll
        for (uint32_t r = 0; r < ROUTER_ROWS; r++) {
            float4 x[ROUTER_RUN];
            if (r >= n_rows)
                break;
#pragma unroll
            for (uint32_t u = 0; u < ROUTER_RUN; u++)
                x[u] = k + 128 * u < k1 ? *(const float4 *)(a.x + (size_t)(row0 + r) * a.k + k + 128 * u)
                                        : make_float4(0, 0, 0, 0);
#pragma unroll
            for (uint32_t u = 0; u < ROUTER_RUN; u++) {
                float w[4];
                router_widen(a.format, raw[u], w);
                sum[r] = fmaf(w[0], x[u].x, sum[r]);
                sum[r] = fmaf(w[1], x[u].y, sum[r]);
                sum[r] = fmaf(w[2], x[u].z, sum[r]);
                sum[r] = fmaf(w[3], x[u].w, sum[r]);
            }
        }
        k += 128 * ROUTER_RUN;
#pragma unroll
        for (uint32_t u = 0; u < ROUTER_RUN; u++)
            raw[u] = k + 128 * u < k1 ? router_raw(a, row + k + 128 * u) : make_uint4(0, 0, 0, 0);
    }
}

/* Four warps share the inputs of an expert, in quarters of whole 128s. */
__global__ static void __launch_bounds__(32 * ROUTER_WARPS)
    router_kernel(const __grid_constant__ struct router_args a) {
    __shared__ float part[ROUTER_WARPS][ROUTER_ROWS];
    const uint32_t rows = a.step->n_rows[a.is_draft], row0 = blockIdx.y * ROUTER_ROWS;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp % ROUTER_SPLIT;
    const uint32_t e = blockIdx.x * (ROUTER_WARPS / ROUTER_SPLIT) + warp / ROUTER_SPLIT;
    const uint32_t units = (a.k + 127) / 128, k1 = e < a.n ? min(a.k, units * (split + 1) / ROUTER_SPLIT * 128) : 0;
    const uint32_t k0 = units * split / ROUTER_SPLIT * 128 + lane * 4;
    const size_t row = (size_t)e * a.k;
    const bool whole = a.k % 8 == 0;
    uint4 raw[ROUTER_RUN];
    if (whole) /* on their way before the number of rows is here */
#pragma unroll
        for (uint32_t u = 0; u < ROUTER_RUN; u++)
            raw[u] = k0 + 128 * u < k1 ? router_raw(a, row + k0 + 128 * u) : make_uint4(0, 0, 0, 0);
    if (row0 >= rows)
        return;
    const uint32_t n_rows = min(rows - row0, (uint32_t)ROUTER_ROWS);
    float sum[ROUTER_ROWS] = {};
    if (whole)
        router_run(a, row, k0, k1, row0, n_rows, raw, sum);
    else
        for (uint32_t k = k0; k < k1; k += 128) {
            float w[4];
            router_weights(a, row, k, w);
#pragma unroll
            for (uint32_t r = 0; r < ROUTER_ROWS; r++) {
                const float *x = a.x + (size_t)(row0 + r) * a.k + k;
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    if (r < n_rows && k + i < a.k)
                        sum[r] = fmaf(w[i], x[i], sum[r]);
            }
        }
#pragma unroll
    for (uint32_t r = 0; r < ROUTER_ROWS; r++) {
        for (int h = 16; h; h /= 2)
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], h);
        if (lane == 0)
            part[warp][r] = sum[r];
    }
    __syncthreads();
    if (e >= a.n || split || lane >= n_rows)
        return;
    const float z = (part[warp][lane] + part[warp + 1][lane]) + (part[warp + 2][lane] + part[warp + 3][lane]);
    a.out[(size_t)(row0 + lane) * a.n + e] = z >= 0 ? 1.0f / (1.0f + expf(-z)) : expf(z) / (1.0f + expf(z));
}

/* ---- choice and groups ------------------------------------------------------------------------------------ */

struct top_args {
    const struct cuda_step *step;
    struct cuda_report *report;
    const float *score, *bias; /* [rows][n], [n] */
    uint32_t *id, *items, *item_rows;
    float *w;
    uint32_t is_draft, n, n_top, item_max;
    float scale;
};

/* Order: what is no number is chosen last, +0 equals -0, then larger scores, then smaller ids. */
__device__ static __forceinline__ uint32_t order_key(float f) {
    const uint32_t u = ptx_f32_bits(f + 0.0f);
    if (f != f)
        return 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* One row, one warp: the best n_top times; their ids go to shared memory as bits, so that they come out ascending. */
__device__ static void choose(const struct top_args &a, uint32_t row, uint32_t lane, uint32_t *taken) {
    const float *score = a.score + (size_t)row * a.n;
    uint32_t *id = a.id + (size_t)row * a.n_top;
    float *w = a.w + (size_t)row * a.n_top;
    const uint32_t words = (a.n + 31) / 32;
    for (uint32_t i = lane; i < words; i += 32)
        taken[i] = 0;
    __syncwarp();
    for (uint32_t j = 0; j < a.n_top; j++) {
        uint32_t best = 0, at = 0xffffffffu;
        for (uint32_t e = lane; e < a.n; e += 32)
            if (!(taken[e / 32] >> e % 32 & 1)) {
                const uint32_t key = order_key(score[e] + a.bias[e]);
                if (key > best || at == 0xffffffffu) {
                    best = key;
                    at = e;
                }
            }
        const uint32_t top = __reduce_max_sync(0xffffffffu, best);
        if (FAULT(cuda_tie_larger_id))
            at = __reduce_max_sync(0xffffffffu, best == top && at != 0xffffffffu ? at : 0);
        else
            at = __reduce_min_sync(0xffffffffu, best == top ? at : 0xffffffffu);
        if (lane == 0)
            taken[at / 32] |= 1u << at % 32;
        __syncwarp();
    }
    uint32_t n = 0;
    float sum = 0;
    for (uint32_t i = 0; i < words; i++) /* every lane alike */
        for (uint32_t bits = taken[i]; bits; bits &= bits - 1) {
            const uint32_t e = 32 * i + (uint32_t)__ffs((int)bits) - 1;
            sum += score[e];
            if (lane == 0)
                id[n] = e;
            n++;
        }
    __syncwarp();
    for (uint32_t j = lane; j < a.n_top; j += 32)
        w[j] = score[id[j]] / (sum + 1e-20f) * a.scale;
    __syncwarp();
}

/* The same with all of a row's experts in registers, E a lane. chosen: TOP_MAX numbers of this warp. The ids also go to
 * ids, where that is not NULL. */
template <int E>
__device__ static void choose_fast(const struct top_args &a, uint32_t row, uint32_t lane, float *chosen,
                                   uint32_t *ids) {
    const float *from = a.score + (size_t)row * a.n;
    uint32_t key[E], mine = 0, place = 0;
    float score[E], bias[E], sum = 0;
#pragma unroll
    for (int i = 0; i < E; i++) {
        const uint32_t e = lane + 32 * i;
        score[i] = e < a.n ? from[e] : 0.0f;
        bias[i] = e < a.n ? a.bias[e] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < E; i++) { /* 0: not there, or taken; no other key is 0 but that of what is no number */
        key[i] = order_key(score[i] + bias[i]);
        key[i] = lane + 32 * i >= a.n ? 0 : key[i] ? key[i] : 1;
    }
    for (uint32_t j = 0; j < a.n_top; j++) {
        uint32_t best = 0, at = 0xffffffffu;
#pragma unroll
        for (int i = 0; i < E; i++)
            best = key[i] > best ? key[i] : best;
        best = __reduce_max_sync(0xffffffffu, best);
#pragma unroll
        for (int i = E - 1; i >= 0; i--)
            at = key[i] == best ? lane + 32 * i : at;
        at = __reduce_min_sync(0xffffffffu, at);
#pragma unroll
        for (int i = 0; i < E; i++)
            if (at == lane + 32 * i) {
                key[i] = 0;
                mine |= 1u << i;
            }
    }
#pragma unroll
    for (int i = 0; i < E; i++) {
        const uint32_t taken = __ballot_sync(0xffffffffu, mine >> i & 1);
        if (mine >> i & 1) {
            const uint32_t j = place + (uint32_t)__popc(taken & ((1u << lane) - 1));
            a.id[(size_t)row * a.n_top + j] = lane + 32 * i;
            if (ids)
                ids[row * a.n_top + j] = lane + 32 * i;
            chosen[j] = score[i];
        }
        place += (uint32_t)__popc(taken);
    }
    __syncwarp();
    for (uint32_t j = 0; j < a.n_top; j++)
        sum += chosen[j];
    for (uint32_t j = lane; j < a.n_top; j += 32)
        a.w[(size_t)row * a.n_top + j] = chosen[j] / (sum + 1e-20f) * a.scale;
    __syncwarp();
}

/* Entries by expert: experts ascending, rows ascending in each; at most item_max of them in an item. One block. */
__device__ static void group(const struct top_args &a, uint32_t rows, uint32_t *start) {
    const uint32_t n = rows * a.n_top, lane = threadIdx.x % 32;
    for (uint32_t e = threadIdx.x; e < a.n; e += blockDim.x)
        start[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        atomicAdd(&start[a.id[i]], 1u);
    __syncthreads();
    if (threadIdx.x < 32) { /* counts to beginnings, a run of 32 experts at a time */
        uint32_t entries = 0, items = 0, touched = 0;
        for (uint32_t e0 = 0; e0 < a.n; e0 += 32) {
            const uint32_t e = e0 + lane, count = e < a.n ? start[e] : 0;
            const uint32_t own = (count + a.item_max - 1) / a.item_max;
            uint32_t before = count, items_before = own;
            for (uint32_t h = 1; h < 32; h *= 2) {
                const uint32_t x = __shfl_up_sync(0xffffffffu, before, h);
                const uint32_t y = __shfl_up_sync(0xffffffffu, items_before, h);
                before += lane >= h ? x : 0;
                items_before += lane >= h ? y : 0;
            }
            for (uint32_t i = 0; i < own; i++) {
                uint32_t *item = a.items + 1 + 3 * (items + items_before - own + i);
                const uint32_t first = FAULT(cuda_items_overlap) ? 0 : i * a.item_max;
                item[0] = e;
                item[1] = entries + before - count + first;
                item[2] = min(count - first, a.item_max);
            }
            if (e < a.n)
                start[e] = entries + before - count;
            entries += __shfl_sync(0xffffffffu, before, 31);
            items += __shfl_sync(0xffffffffu, items_before, 31);
            touched += (uint32_t)__popc(__ballot_sync(0xffffffffu, count > 0));
        }
        if (lane == 0) {
            a.items[0] = items;
            a.report->experts += touched; /* stages follow each other: nobody else writes it now */
        }
        __syncwarp();
        for (uint32_t row = 0; row < rows; row++) { /* the experts of a row are different ones */
            for (uint32_t j = lane; j < a.n_top; j += 32)
                a.item_rows[start[a.id[row * a.n_top + j]]++] = row * a.n_top + j;
            __syncwarp();
        }
    }
}

/* The same of at most TOP_ENTRIES entries: each finds its place by comparing with all. An item begins with every
 * item_max-th entry of an expert. */
__device__ static void group_few(const struct top_args &a, uint32_t n, const uint32_t *ids, uint8_t *begins) {
    const uint32_t i = threadIdx.x, e = i < n ? ids[i] : 0;
    uint32_t place = 0, nth = 0, count = 0, item = 0;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t other = ids[k];
        place += other < e || (other == e && k < i);
        nth += other == e && k < i;
        count += other == e;
    }
    const bool first = i < n && nth % a.item_max == 0;
    if (i < n) {
        begins[place] = first;
        a.item_rows[place] = i;
    }
    const int items = __syncthreads_count(first), touched = __syncthreads_count(i < n && nth == 0);
    if (first) {
        for (uint32_t k = 0; k < place; k++)
            item += begins[k];
        uint32_t *to = a.items + 1 + 3 * item;
        to[0] = e;
        to[1] = place;
        to[2] = min(count - nth, a.item_max);
    }
    if (i == 0) {
        a.items[0] = (uint32_t)items;
        a.report->experts += (uint32_t)touched; /* stages follow each other: nobody else writes it now */
    }
}

__global__ static void __launch_bounds__(32 * TOP_WARPS) top_kernel(const __grid_constant__ struct top_args a) {
    CUDA_SMEM(uint32_t, room);
    __shared__ uint32_t ids[TOP_ENTRIES];
    __shared__ float chosen[TOP_WARPS][TOP_MAX];
    __shared__ uint8_t begins[TOP_ENTRIES];
    const uint32_t rows = a.step->n_rows[a.is_draft], words = (a.n + 31) / 32, warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const bool fast = words <= 16 && a.n_top <= TOP_MAX, few = fast && rows * a.n_top <= TOP_ENTRIES;
    for (uint32_t row = warp; row < rows; row += TOP_WARPS)
        if (!fast)
            choose(a, row, lane, room + warp * words);
        else if (words <= 4)
            choose_fast<4>(a, row, lane, chosen[warp], few ? ids : NULL);
        else if (words <= 9)
            choose_fast<9>(a, row, lane, chosen[warp], few ? ids : NULL);
        else
            choose_fast<16>(a, row, lane, chosen[warp], few ? ids : NULL);
    __syncthreads();
    if (few)
        group_few(a, rows * a.n_top, ids, begins);
    else
        group(a, rows, room);
}

/* ---- stages ----------------------------------------------------------------------------------------------- */

static cudaError_t route(const struct cuda_run *r, uint32_t item_max) {
    const struct cuda_dims *d = r->d;
    const struct cuda_layer *l = r->layer;
    struct router_args a = {};
    struct top_args t = {};
    const uint32_t per_block = ROUTER_WARPS / ROUTER_SPLIT, words = (d->n_experts + 31) / 32;
    const uint32_t room = TOP_WARPS * words > d->n_experts ? TOP_WARPS * words : d->n_experts;
    a.step = t.step = r->lane->step;
    a.is_draft = t.is_draft = r->is_draft;
    a.w = r->weights + l->router;
    a.x = r->lane->u_f;
    a.out = r->lane->router;
    a.format = l->router_format;
    a.n = t.n = d->n_experts;
    a.k = d->hidden;
    t.report = r->lane->report;
    t.score = r->lane->router;
    t.bias = (const float *)(r->weights + l->router_bias);
    t.id = r->lane->top_id;
    t.w = r->lane->top_w;
    t.items = r->lane->items;
    t.item_rows = r->lane->item_rows;
    t.n_top = d->n_top;
    t.item_max = item_max;
    t.scale = d->routed_scale;
    cudaError_t err = CUDA_LAUNCH(
        router_kernel, dim3((d->n_experts + per_block - 1) / per_block, (r->rows + ROUTER_ROWS - 1) / ROUTER_ROWS),
        dim3(32 * ROUTER_WARPS), 0, r->stream, a);
    return err != cudaSuccess
               ? err
               : CUDA_LAUNCH(top_kernel, dim3(1), dim3(32 * TOP_WARPS), room * sizeof(uint32_t), r->stream, t);
}

/* Outputs of a down product: part `place` of y, or the entry's own. */
static struct prod_job *down(struct prod_list *l, const struct cuda_run *r, const struct cuda_mat *m, const uint16_t *x,
                             uint32_t ldx, uint32_t place) {
    struct prod_job *j = &l->job[l->n];
    l->m[l->n++] = m;
    prod_matrix(j, r->weights, m, NULL);
    j->x = x;
    j->ldx = ldx;
    j->out = r->lane->y;
    j->ldo = r->y_parts * r->d->hidden;
    j->out_at = place * r->d->hidden;
    j->head_ldo = m->n;
    return j;
}

static void by_items(struct prod_job *j, const struct cuda_run *r) {
    j->items = r->lane->items;
    j->item_rows = r->lane->item_rows;
}

extern "C" cudaError_t cuda_moe(const struct cuda_run *r) {
    const struct cuda_dims *d = r->d;
    const struct cuda_layer *l = r->layer;
    const uint32_t item_max = r->rows <= 8 ? 8 : 16, ld = (d->expert_width + CUDA_PAD_K - 1) / CUDA_PAD_K * CUDA_PAD_K;
    const uint32_t entries = r->rows * d->n_top;
    uint16_t *shared = r->lane->mid + r->mid->shared;
    struct prod_list in = {}, out = {};
    cudaError_t err = route(r, item_max);
    if (err != cudaSuccess)
        return err;
    prod_gate_up(&in, r, &l->exp_gate, &l->exp_up, r->lane->u, d->hidden_pad, r->lane->act, ld);
    by_items(&in.job[0], r);
    in.job[0].x_div = d->n_top;
    /* an item for each expert and 16 rows: no more than entries, and than experts with those that do not fill one */
    in.items = out.items = entries < d->n_experts + entries / item_max ? entries : d->n_experts + entries / item_max;
    struct prod_job *j = down(&out, r, &l->exp_down, r->lane->act, ld, 0);
    by_items(j, r);
    j->out_div = d->n_top;
    j->ld_place = d->hidden;
    j->weight = r->lane->top_w;
    if (l->gate.n) {
        prod_gate_up(&in, r, &l->gate, &l->up, r->lane->u, d->hidden_pad, shared, r->mid->ld);
        down(&out, r, &l->down, shared, r->mid->ld, d->n_top);
    }
    err = prod_run(r, &in);
    return err != cudaSuccess ? err : prod_run(r, &out);
}

extern "C" cudaError_t cuda_dense(const struct cuda_run *r) {
    struct prod_list in = {}, out = {};
    uint16_t *act = r->lane->mid + r->mid->dense;
    prod_gate_up(&in, r, &r->layer->gate, &r->layer->up, r->lane->u, r->d->hidden_pad, act, r->mid->ld);
    down(&out, r, &r->layer->down, act, r->mid->ld, 0);
    cudaError_t err = prod_run(r, &in);
    return err != cudaSuccess ? err : prod_run(r, &out);
}
