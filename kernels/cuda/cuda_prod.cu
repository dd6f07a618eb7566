/* SPDX-License-Identifier: MIT */
/* cuda_prod.cu: lists of products to launches: those of one format share one. Host code. */
#include "cuda_prod_list.h"

#include <string.h>

static uint32_t divided(uint32_t n, uint32_t by) {
    return (n + by - 1) / by;
}

void prod_matrix(struct prod_job *j, const char *weights, const struct cuda_mat *m, const struct cuda_mat *second) {
    const struct cuda_mat *both[2] = {m, second};
    for (int i = 0; i < 2 && both[i]; i++) {
        struct prod_side *s = &j->side[i];
        s->codes = weights + both[i]->codes;
        s->scale = weights + both[i]->scale;
        s->global = (const float *)(weights + both[i]->global);
        s->stride = both[i]->stride;
    }
    j->head_codes = tile_code_bytes(m);
    j->head_scale = tile_scale_bytes(m);
    j->n = m->n;
    j->tiles = m->n_pad / 16;
    j->chunks = m->k_pad / TILE_CHUNK;
    j->heads = m->heads ? m->heads : 1;
    j->split_log = tile_split_log(&m->store, m->k_pad);
    j->scale_kind = m->store.scale;
    j->groups = tile_groups(&m->store, m->transposed ? m->n : m->k);
    j->block_rows = tile_scale_rows(m) ? 0 : m->store.block_rows ? m->store.block_rows : 1u << 30;
    j->block_cols = m->store.block_cols < (m->transposed ? m->n : m->k) ? m->store.block_cols : 0;
    j->group_log = j->block_cols ? PROD_ODD : 31;
    for (uint32_t log = 1; log < 31; log++)
        if (j->block_cols == (uint64_t)TILE_CHUNK << log)
            j->group_log = log;
    j->k_pad = m->k_pad;
    j->format = m->store.format;
    j->bits = m->store.bits;
    j->mul1 = m->store.codebook == KERN_CODEBOOK_MUL1;
    j->mul = j->mul1 ? 0x83DCD12Du : m->store.codebook == KERN_CODEBOOK_MCG ? 0xCBAC1FEDu : 89226354u;
    j->add = m->store.codebook == KERN_CODEBOOK_3INST ? 64248484u : 0;
    j->x_div = j->x_div ? j->x_div : 1;
    j->out_div = j->out_div ? j->out_div : 1;
    j->tile_blocks = divided(j->tiles * j->heads, PROD_WARPS >> j->split_log);
}

/* Matrices that are read across their codes are products of their own. */
static prod_start_fn *kernel_of(const struct cuda_mat *m) {
    switch (m->store.format) {
    case KERN_BF16:
        return prod_bf16;
    case KERN_FP8:
        return m->transposed ? prod_turned : prod_fp8;
    case KERN_INT8:
        return m->transposed ? prod_turned : prod_int8;
    case KERN_NVFP4:
        return m->transposed ? prod_turned : prod_nvfp4;
    case KERN_EXL3:
        return m->transposed ? prod_exl3_turned : prod_exl3;
    default:
        return NULL;
    }
}

/* One kernel reads both: bits and rule of EXL3 are a kernel's own. */
static bool together(const struct prod_list *l, uint32_t a, uint32_t b) {
    const struct kern_store *x = &l->m[a]->store, *y = &l->m[b]->store;
    return kernel_of(l->m[a]) == kernel_of(l->m[b]) && x->bits == y->bits &&
           (x->codebook == KERN_CODEBOOK_MUL1) == (y->codebook == KERN_CODEBOOK_MUL1);
}

cudaError_t prod_launch(const struct cuda_run *r, struct prod_list *l) {
    const uint32_t nb = r->rows <= 8 ? 1 : 2;
    bool done[PROD_JOBS] = {false};
    for (uint32_t i = 0; i < l->n; i++) {
        struct prod_args a = {};
        uint32_t blocks = 0;
        if (done[i])
            continue;
        a.step = r->lane->step;
        a.is_draft = r->is_draft;
        for (uint32_t j = i; j < l->n; j++)
            if (!done[j] && together(l, i, j)) {
                done[j] = true;
                l->job[j].first_block = blocks;
                blocks += l->job[j].tile_blocks * (l->job[j].items ? l->items : divided(r->rows, 8 * nb));
                a.job[a.n_jobs++] = l->job[j];
            }
        prod_start_fn *start = kernel_of(l->m[i]);
        cudaError_t err = start ? start(a, blocks, (int)nb, l->gated ? 2 : 1, r->stream) : cudaErrorInvalidValue;
        if (err != cudaSuccess)
            return err;
    }
    return cudaSuccess;
}

/* ---- transforms around EXL3 ------------------------------------------------------------------------------- */

/* Room in had and had_out that a list's matrices take one after another; bound: entries. */
struct room {
    uint16_t *had;
    float *raw;
    uint64_t bound;
};

static struct exl3_rows rows_of(const struct cuda_run *r, const struct prod_job *j) {
    struct exl3_rows rows = {};
    rows.step = r->lane->step;
    rows.is_draft = r->is_draft;
    rows.per_row = j->items ? r->d->n_top : 1;
    rows.count = j->count;
    rows.expert = j->items ? r->lane->top_id : NULL;
    return rows;
}

/* The transform of a job's inputs, which the job reads from then on. */
static struct exl3_in inputs_of(const struct cuda_run *r, struct prod_job *j, const struct cuda_mat *m,
                                struct room *room) {
    struct exl3_in in = {};
    in.x = j->x;
    in.ldx = j->ldx;
    in.head_ldx = j->head_ldx;
    in.x_div = j->x_div;
    in.k = m->k;
    in.heads = j->heads;
    in.head_suh = m->transposed ? m->k : 0;
    in.suh = (const uint16_t *)(r->weights + m->suh);
    in.stride = m->stride;
    in.had = room->had;
    j->x = room->had;
    j->head_ldx = exl3_had_ld(m->k);
    j->ldx = j->heads * j->head_ldx;
    j->x_div = 1;
    room->had += room->bound * j->ldx;
    return in;
}

/* Where a job's sums go until they are outputs: F32 outputs are made where they lie. */
static const float *raw_of(struct prod_job *j, const struct cuda_mat *m, struct room *room) {
    float *raw = room->raw;
    j->weight = NULL;
    if (!j->out16)
        return NULL;
    j->out = raw;
    j->out16 = NULL;
    j->ldo = j->heads * m->n;
    j->head_ldo = m->n;
    j->ld_place = j->out_at = 0;
    j->out_div = 1;
    j->place = NULL;
    room->raw += room->bound * j->ldo;
    return raw;
}

static void side_of(struct exl3_out *o, uint32_t side, const struct cuda_run *r, const struct cuda_mat *m) {
    bool trellis = m->store.format == KERN_EXL3;
    o->svh[side] = trellis ? (const uint16_t *)(r->weights + m->svh) : NULL;
    o->stride[side] = m->stride;
    o->head_svh = m->transposed ? 0 : m->n;
}

static struct exl3_out outputs_of(const struct prod_job *j) {
    struct exl3_out o = {};
    o.n = j->n;
    o.heads = j->heads;
    o.out = j->out;
    o.out16 = j->out16;
    o.ldo = j->ldo;
    o.ld_place = j->ld_place;
    o.out_div = j->out_div;
    o.out_at = j->out_at;
    o.head_ldo = j->head_ldo;
    o.place = j->place;
    o.weight = j->weight;
    o.limit = j->limit;
    return o;
}

/* Jobs [from, to), which have the same rows: transforms, products, transforms. */
static cudaError_t around(const struct cuda_run *r, const struct prod_list *from, uint32_t first, uint32_t n) {
    const struct exl3_rows rows = rows_of(r, &from->job[first]);
    struct prod_list l = {};
    struct exl3_in in[PROD_JOBS];
    struct exl3_out out[PROD_JOBS];
    struct room room = {r->lane->had, r->lane->had_out, (uint64_t)r->rows * rows.per_row};
    uint32_t n_in = 0;
    l.items = from->items;
    for (uint32_t i = 0; i < n; i++) {
        const struct prod_job *j = &from->job[first + i];
        out[i] = outputs_of(j);
        out[i].gated = from->gated;
        for (uint32_t side = 0; side < 1 + from->gated; side++) {
            const struct cuda_mat *m = side ? from->up[first + i] : from->m[first + i];
            struct prod_job *to = &l.job[l.n];
            *to = *j;
            prod_matrix(to, r->weights, m, NULL);
            side_of(&out[i], side, r, m);
            if (m->store.format == KERN_EXL3)
                in[n_in++] = inputs_of(r, to, m, &room);
            out[i].raw[side] = raw_of(to, m, &room);
            l.m[l.n++] = m;
        }
    }
    cudaError_t err = exl3_inputs(r->stream, &rows, r->rows, in, n_in);
    if (err == cudaSuccess)
        err = prod_launch(r, &l);
    return err != cudaSuccess ? err : exl3_outputs(r->stream, &rows, r->rows, out, n);
}

static bool same_rows(const struct prod_list *l, uint32_t a, uint32_t b) {
    return l->job[a].count == l->job[b].count && l->job[a].items == l->job[b].items;
}

/* Jobs that need the way around go in runs of equal rows, as many as had has room for. */
static cudaError_t all_around(const struct cuda_run *r, const struct prod_list *l) {
    const uint32_t most = PROD_JOBS / (1 + l->gated);
    for (uint32_t i = 0, n; i < l->n; i += n) {
        for (n = 1; i + n < l->n && n < most && same_rows(l, i, i + n); n++)
            ;
        cudaError_t err = around(r, l, i, n);
        if (err != cudaSuccess)
            return err;
    }
    return cudaSuccess;
}

static void add(struct prod_list *l, const struct prod_list *from, uint32_t i) {
    l->gated = from->gated;
    l->items = from->items;
    l->job[l->n] = from->job[i];
    l->m[l->n] = from->m[i];
    l->up[l->n++] = from->up[i];
}

/* A kernel multiplies both halves of a gate only where they are stored alike. */
static bool direct(const struct prod_list *l, uint32_t i) {
    const struct kern_store *a = &l->m[i]->store, *b = l->gated ? &l->up[i]->store : a;
    return a->format != KERN_EXL3 && !memcmp(a, b, sizeof(*a));
}

cudaError_t prod_run(const struct cuda_run *r, struct prod_list *l) {
    struct prod_list plain = {}, rest = {};
    for (uint32_t i = 0; i < l->n; i++)
        add(direct(l, i) ? &plain : &rest, l, i);
    cudaError_t err = prod_launch(r, &plain);
    return err != cudaSuccess ? err : all_around(r, &rest);
}

/* The most that one run of jobs takes, over all the stages' lists; raw: outputs that are no F32, or gates. */
extern "C" void cuda_around_room(const struct cuda_dims *d, uint64_t rows, uint64_t *ret_had, uint64_t *ret_raw) {
    const uint64_t top = d->n_top, heads = d->mla_heads, pad = 8;
    const uint64_t had[] = {PROD_JOBS * (d->hidden + pad),
                            2 * (d->q_rank + pad),
                            2 * (d->kda_dim + pad),
                            heads * (d->nope + pad),
                            heads * (d->kv_rank + pad),
                            heads * d->v_dim + pad,
                            d->kda_p + pad,
                            2 * d->hidden + pad,
                            d->dense_width + pad,
                            d->shared_width + pad,
                            2 * top * (d->hidden + pad),
                            top * (d->expert_width + pad)};
    const uint64_t raw[] = {2ull * d->kda_dim, heads * d->v_dim, heads * d->kv_rank, 2ull * d->dense_width,
                            2ull * d->shared_width, 2 * top * d->expert_width};
    *ret_had = *ret_raw = 0;
    for (uint32_t i = 0; i < sizeof(had) / sizeof(had[0]); i++)
        *ret_had = had[i] > *ret_had ? had[i] : *ret_had;
    for (uint32_t i = 0; i < sizeof(raw) / sizeof(raw[0]); i++)
        *ret_raw = raw[i] > *ret_raw ? raw[i] : *ret_raw;
    *ret_had *= rows * sizeof(uint16_t);
    *ret_raw *= rows * sizeof(float);
}

/* ---- what stages call ------------------------------------------------------------------------------------- */

static void product(struct prod_list *l, const struct cuda_run *r, const struct cuda_prod *p) {
    struct prod_job *j = &l->job[l->n];
    l->m[l->n++] = p->m;
    prod_matrix(j, r->weights, p->m, NULL);
    j->x = p->x;
    j->ldx = p->ldx;
    j->head_ldx = p->head_ldx;
    j->out = p->out;
    j->out16 = p->out16;
    j->ldo = p->ldo;
    j->out_at = p->out_at;
    j->head_ldo = p->head_ldo ? p->head_ldo : p->m->n;
    j->count = p->count;
    j->place = p->place;
}

extern "C" cudaError_t cuda_products(const struct cuda_run *r, const struct cuda_prod *p, uint32_t n) {
    struct prod_list l = {};
    if (n > PROD_JOBS)
        return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < n; i++)
        product(&l, r, &p[i]);
    return prod_run(r, &l);
}

void prod_gate_up(struct prod_list *l, const struct cuda_run *r, const struct cuda_mat *gate, const struct cuda_mat *up,
                  const uint16_t *x, uint32_t ldx, uint16_t *act, uint32_t ld_act) {
    struct prod_job *j = &l->job[l->n];
    l->up[l->n] = up;
    l->m[l->n++] = gate;
    l->gated = 1;
    prod_matrix(j, r->weights, gate, up);
    j->x = x;
    j->ldx = ldx;
    j->out16 = act;
    j->ldo = ld_act;
    j->limit = r->d->swiglu_limit;
}

extern "C" cudaError_t cuda_gate_up(const struct cuda_run *r, const struct cuda_mat *gate, const struct cuda_mat *up,
                                    const uint16_t *x, uint32_t ldx, uint16_t *act, uint32_t ld_act) {
    struct prod_list l = {};
    prod_gate_up(&l, r, gate, up, x, ldx, act, ld_act);
    return prod_run(r, &l);
}
