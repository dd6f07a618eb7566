/* SPDX-License-Identifier: MIT */
/* cuda_prod.cu: lists of products to launches: those of one format share one. Host code. */
#include "cuda_prod_list.h"

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
    j->k_pad = m->k_pad;
    j->format = m->store.format;
    j->bits = m->store.bits;
    j->x_div = j->out_div = 1;
    j->tile_blocks = divided(j->tiles * j->heads, PROD_WARPS >> j->split_log);
}

/* Matrices that are read across their codes are products of their own. */
static bool turned(const struct cuda_mat *m) {
    return m->transposed && m->store.format != KERN_BF16;
}

static prod_start_fn *kernel_of(const struct cuda_mat *m) {
    if (turned(m))
        return m->store.format == KERN_EXL3 ? NULL : prod_turned;
    switch (m->store.format) {
    case KERN_BF16:
        return prod_bf16;
    case KERN_FP8:
        return prod_fp8;
    case KERN_INT8:
        return prod_int8;
    case KERN_NVFP4:
        return prod_nvfp4;
    default:
        return NULL;
    }
}

cudaError_t prod_run(const struct cuda_run *r, struct prod_list *l) {
    prod_start_fn *fn[PROD_JOBS];
    const int nb = r->rows <= 8 ? 1 : 2;
    for (uint32_t i = 0; i < l->n; i++)
        if (!(fn[i] = kernel_of(l->m[i])))
            return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!fn[i])
            continue;
        struct prod_args a = {};
        uint32_t blocks = 0;
        prod_start_fn *start = fn[i];
        a.step = r->lane->step;
        a.is_draft = r->is_draft;
        for (uint32_t j = i; j < l->n; j++)
            if (fn[j] == start) {
                fn[j] = NULL;
                l->job[j].first_block = blocks;
                blocks += l->job[j].tile_blocks * (l->job[j].items ? l->items : divided(r->rows, 8 * (uint32_t)nb));
                a.job[a.n_jobs++] = l->job[j];
            }
        cudaError_t err = start(a, blocks, nb, l->gated ? 2 : 1, r->stream);
        if (err != cudaSuccess)
            return err;
    }
    return cudaSuccess;
}

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
}

extern "C" cudaError_t cuda_products(const struct cuda_run *r, const struct cuda_prod *p, uint32_t n) {
    struct prod_list plain = {}, trellis = {};
    for (uint32_t i = 0; i < n; i++)
        product(p[i].m->store.format == KERN_EXL3 ? &trellis : &plain, r, &p[i]);
    cudaError_t err = prod_run(r, &plain);
    return err != cudaSuccess || !trellis.n ? err : exl3_products(r, &trellis);
}

extern "C" cudaError_t cuda_gate_up(const struct cuda_run *r, const struct cuda_mat *gate, const struct cuda_mat *up,
                                    const uint16_t *x, uint32_t ldx, uint16_t *act, uint32_t ld_act) {
    struct prod_list l = {};
    prod_gate_up(&l, r, gate, up, x, ldx, act, ld_act);
    return prod_gated(r, &l);
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
