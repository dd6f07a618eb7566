/* SPDX-License-Identifier: MIT */
/* cpu_pack.c: from row-major checkpoint windows to panels.
 *
 * Runs on any number of loader threads at once; each element has a place of its own, so windows that do not
 * overlap never meet. A window may begin and end inside an element: its bytes are placed one by one there.
 * kern.c has checked shape, format and range. */
#include "cpu.h"
#include "host_unpack.h"

#include <string.h>

enum place_kind {
    PLACE_PANEL, /* 16 outputs interleaved, BF16 */
    PLACE_ROWS,  /* rows as rows, 16-groups in pair order, BF16 */
    PLACE_PLAIN, /* rows as rows, natural order */
    PLACE_FLOAT, /* float, row * row_step + col * col_step */
    PLACE_KVB,   /* PLACE_PANEL twice: key rows transposed, value rows as they are */
};

struct place {
    enum place_kind kind;
    const struct cpu_mat *mat; /* panels: the matrix; which of its segments: */
    uint32_t skip_segs;
    uint32_t size; /* PLACE_PLAIN: bytes of a number */
    uint64_t off;
    uint32_t k;                     /* panel inputs, or padded row length */
    uint32_t n0;                    /* first output in a shared matrix */
    uint32_t block, block_pad;      /* outputs come in blocks (heads) of this many, padded to that many */
    uint32_t cblock, cblock_pad;    /* the same for inputs */
    uint32_t panel_step, panel_add; /* gate and up panels alternate */
    uint64_t row_step, col_step;    /* PLACE_FLOAT */
    uint64_t off2;                  /* PLACE_KVB: the value matrix; off is the key matrix */
    uint32_t k2;
};

static struct place in_panels(const struct cpu_mat *m, uint32_t n0, uint32_t block, uint32_t cblock) {
    uint32_t whole = 1u << 30;
    return (struct place){.kind = PLACE_PANEL,
                          .mat = m,
                          .off = m->off,
                          .k = m->k,
                          .n0 = n0,
                          .block = block ? block : whole,
                          .block_pad = block ? (uint32_t)pad16(block) : whole,
                          .cblock = cblock ? cblock : whole,
                          .cblock_pad = cblock ? (uint32_t)pad16(cblock) : whole,
                          .panel_step = 1};
}

static struct place alternating(const struct cpu_mat *m, uint32_t add) {
    struct place p = in_panels(m, 0, 0, 0);
    p.panel_step = 2;
    p.panel_add = add;
    return p;
}

static struct place floats(uint64_t off, uint64_t row_step, uint64_t col_step, uint32_t block) {
    uint32_t whole = 1u << 30;
    return (struct place){.kind = PLACE_FLOAT,
                          .off = off,
                          .row_step = row_step,
                          .col_step = col_step,
                          .block = block ? block : whole,
                          .block_pad = block ? (uint32_t)pad16(block) : whole};
}

static struct place rows(uint64_t off, enum place_kind kind, uint32_t k, uint32_t cblock) {
    return (struct place){
        .kind = kind, .size = 2, .off = off, .k = k, .cblock = cblock, .cblock_pad = (uint32_t)pad16(cblock)};
}

/* Rows for dot products. */
static struct place dot_rows(const struct cpu *c, const struct kern_tensor_id *id, uint64_t off, uint32_t k) {
    const struct kern_store s = kern_matrix_store(&c->k->cfg, id);
    struct place p = rows(off, s.format == KERN_BF16 ? PLACE_ROWS : PLACE_PLAIN, k, c->k->cfg.model.hidden);
    p.size = (uint32_t)cpu_plain_size(&s);
    return p;
}

static struct place place_kda(const struct cpu *c, const struct cpu_layer *l, uint32_t part) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    const struct cpu_dims *d = &c->l.d;
    uint32_t dim = m->kda_dim;
    uint64_t conv = (uint64_t)m->conv_width * d->kda_all * sizeof(float);
    switch (part) {
    case KERN_KDA_Q:
        return in_panels(&l->in, 0, dim, 0);
    case KERN_KDA_K:
        return in_panels(&l->in, d->kda_all, dim, 0);
    case KERN_KDA_V:
        return in_panels(&l->in, 2 * d->kda_all, dim, 0);
    case KERN_KDA_QCONV:
        return floats(l->conv, 1, d->kda_all, dim);
    case KERN_KDA_KCONV:
        return floats(l->conv + conv, 1, d->kda_all, dim);
    case KERN_KDA_VCONV:
        return floats(l->conv + 2 * conv, 1, d->kda_all, dim);
    case KERN_KDA_FA:
        return in_panels(&l->in, d->z_fa, 0, 0);
    case KERN_KDA_GA:
        return in_panels(&l->in, d->z_ga, 0, 0);
    case KERN_KDA_B:
        return in_panels(&l->in, d->z_b, 0, 0);
    case KERN_KDA_FB:
        return in_panels(&l->fb, 0, dim, 0);
    case KERN_KDA_GB:
        return in_panels(&l->gb, 0, dim, 0);
    case KERN_KDA_A_LOG:
        return floats(l->a_log, 1, 0, 0);
    case KERN_KDA_DT_BIAS:
        return floats(l->dt_bias, 1, 0, dim);
    case KERN_KDA_O_NORM:
        return floats(l->o_norm, 1, 0, 0);
    default:
        return in_panels(&l->out, 0, 0, dim); /* KERN_KDA_O */
    }
}

static struct place place_mla(const struct cpu *c, const struct cpu_layer *l, uint32_t part) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    const struct cpu_dims *d = &c->l.d;
    struct place p;
    switch (part) {
    case KERN_MLA_QA:
        return in_panels(&l->in, 0, 0, 0);
    case KERN_MLA_QA_NORM:
        return floats(l->qa_norm, 1, 0, 0);
    case KERN_MLA_QB:
        return in_panels(&l->cq, 0, m->nope_dim + m->rope_dim, 0);
    case KERN_MLA_KVA:
        return in_panels(&l->in, d->z_kv, 0, 0);
    case KERN_MLA_KVA_NORM:
        return floats(l->kva_norm, 1, 0, 0);
    case KERN_MLA_KVB:
        p = in_panels(&l->uk, 0, 0, 0);
        p.kind = PLACE_KVB;
        p.off2 = l->uv.off;
        p.k2 = l->uv.k;
        return p;
    case KERN_MLA_KB:
        return in_panels(&l->uk, 0, m->kv_rank, 0);
    case KERN_MLA_VB:
        return in_panels(&l->uv, 0, m->v_dim, 0);
    case KERN_IDX_QB:
        return in_panels(&l->cq, d->q_all, m->index_dim, 0);
    case KERN_IDX_K:
        return in_panels(&l->in, d->z_key, 0, 0);
    case KERN_IDX_GATE:
        return in_panels(&l->in, d->z_gate, 0, 0);
    case KERN_IDX_W:
        return in_panels(&l->in, d->z_w, 0, 0);
    case KERN_IDX_KNORM_W:
        return floats(l->knorm_w, 1, 0, 0);
    case KERN_IDX_KNORM_B:
        return floats(l->knorm_b, 1, 0, 0);
    case KERN_IDX_APE:
        return floats(l->ape, d->idx_dim, 1, 0);
    default:
        return in_panels(&l->out, 0, 0, m->v_dim); /* KERN_MLA_O */
    }
}

static struct place place_mlp(const struct cpu *c, const struct cpu_layer *l,
                              const struct kern_tensor_id *id) {
    const struct cpu_dims *d = &c->l.d;
    struct place p;
    switch (id->part) {
    case KERN_MLP_GATE:
    case KERN_SH_GATE:
        return alternating(&l->gate_up, 0);
    case KERN_MLP_UP:
    case KERN_SH_UP:
        return alternating(&l->gate_up, 1);
    case KERN_MLP_DOWN:
    case KERN_SH_DOWN:
        return in_panels(&l->down, 0, 0, 0);
    case KERN_ROUTER:
        return dot_rows(c, id, l->router, d->e);
    case KERN_ROUTER_BIAS:
        return floats(l->router_bias, 1, 0, 0);
    case KERN_EXP_GATE:
        p = alternating(&l->exp_gate_up, 0);
        break;
    case KERN_EXP_UP:
        p = alternating(&l->exp_gate_up, 1);
        break;
    default:
        p = in_panels(&l->exp_down, 0, 0, 0);
        break; /* KERN_EXP_DOWN */
    }
    p.off += id->expert * l->exp_stride;
    p.skip_segs = 3 * id->expert;
    return p;
}

static struct place place_of(const struct cpu *c, const struct kern_tensor_id *id) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    const struct cpu_dims *d = &c->l.d;
    const struct cpu_layer *l = &c->l.layer[id->layer];
    uint32_t part = id->part;
    if (part >= KERN_KDA_Q && part <= KERN_KDA_O)
        return place_kda(c, l, part);
    if ((part >= KERN_MLA_QA && part <= KERN_IDX_GATE) || part == KERN_MLA_KB || part == KERN_MLA_VB)
        return place_mla(c, l, part);
    if (part >= KERN_MLP_GATE && part <= KERN_SH_DOWN)
        return place_mlp(c, l, id);
    switch (part) {
    case KERN_EMBED:
        return rows(c->l.embed, PLACE_PLAIN, d->e, m->hidden);
    case KERN_HEAD:
        return in_panels(&c->l.head, 0, 0, 0);
    case KERN_FINAL_NORM:
        return floats(c->l.final_norm, 1, 0, 0);
    case KERN_IN_NORM:
        return floats(l->in_norm, 1, 0, 0);
    case KERN_POST_NORM:
        return floats(l->post_norm, 1, 0, 0);
    case KERN_HC_ATTN_FN:
        return dot_rows(c, id, l->hc_fn[0], d->hc * d->e);
    case KERN_HC_ATTN_BASE:
        return floats(l->hc_base[0], 1, 0, 0);
    case KERN_HC_ATTN_SCALE:
        return floats(l->hc_scale[0], 1, 0, 0);
    case KERN_HC_FFN_FN:
        return dot_rows(c, id, l->hc_fn[1], d->hc * d->e);
    case KERN_HC_FFN_BASE:
        return floats(l->hc_base[1], 1, 0, 0);
    case KERN_HC_FFN_SCALE:
        return floats(l->hc_scale[1], 1, 0, 0);
    case KERN_DRAFT_ENORM:
        return floats(l->enorm, 1, 0, 0);
    case KERN_DRAFT_HNORM:
        return floats(l->hnorm, 1, 0, 0);
    case KERN_DRAFT_NORM:
        return floats(l->draft_norm, 1, 0, 0);
    default:
        return in_panels(&l->eh, 0, 0, m->hidden); /* KERN_DRAFT_EH */
    }
}

/* Byte offset of input k of output n in a panel matrix of kk inputs: word lane n % 8, upper half from 8 on.
 */
static uint64_t panel_at(uint64_t off, uint64_t kk, uint64_t panel, uint64_t n, uint64_t k) {
    return off + ((panel * kk + k) * 8 + n % 8) * 4 + (n % 16 >= 8 ? 2 : 0);
}

/* First byte of an element's place. */
static uint64_t element_at(const struct cpu *c, const struct place *p, uint64_t r, uint64_t col) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    uint64_t n, k;
    switch (p->kind) {
    case PLACE_FLOAT:
        n = r / p->block * p->block_pad + r % p->block;
        return p->off + (n * p->row_step + col * p->col_step) * sizeof(float);
    case PLACE_KVB: {
        uint64_t per = m->nope_dim + (uint64_t)m->v_dim, h = r / per, i = r % per;
        if (i < m->nope_dim) {
            n = h * c->l.d.kv_rank + col;
            return panel_at(p->off, p->k, n / 16, n, i);
        }
        n = h * c->l.d.v + i - m->nope_dim;
        return panel_at(p->off2, p->k2, n / 16, n, col);
    }
    case PLACE_PANEL:
        n = p->n0 + r / p->block * p->block_pad + r % p->block;
        k = col / p->cblock * p->cblock_pad + col % p->cblock;
        return panel_at(p->off, p->k, n / 16 * p->panel_step + p->panel_add, n, k);
    default:
        k = col / p->cblock * p->cblock_pad + col % p->cblock;
        if (p->kind == PLACE_PLAIN)
            return p->off + (r * p->k + k) * p->size;
        return p->off + r * p->k * 2 + k / 16 * 32 + k % 8 * 4 + (k % 16 >= 8 ? 2 : 0);
    }
}

/* How the columns after (r, col) continue: `n` more elements either a fixed distance apart, or in 16-groups
 * in pair order, groups a fixed distance apart. */
struct run {
    uint64_t n, step;
    bool groups;
};

static struct run run_from(const struct cpu *c, const struct place *p, uint64_t r, uint64_t col,
                           uint64_t cols) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    uint64_t left = cols - col;
    if (p->kind == PLACE_FLOAT)
        return (struct run){.n = left, .step = p->col_step * sizeof(float)};
    if (p->kind == PLACE_KVB) {
        bool key = r % (m->nope_dim + (uint64_t)m->v_dim) < m->nope_dim;
        return (struct run){.n = left, .step = key ? p->k * 32ull : 32, .groups = key};
    }
    uint64_t block = p->cblock - col % p->cblock;
    return (struct run){.n = left < block ? left : block,
                        .step = p->kind == PLACE_PLAIN ? p->size : 32,
                        .groups = p->kind == PLACE_ROWS};
}

/* 16 BF16 as one group in pair order. */
static void put_group(uint8_t *to, const uint8_t *src) {
    uint16_t in[16], out[16];
    memcpy(in, src, sizeof(in));
    for (int i = 0; i < 8; i++) {
        out[2 * i] = in[i];
        out[2 * i + 1] = in[i + 8];
    }
    memcpy(to, out, sizeof(out));
}

/* Whole elements of one run; `put` bytes each. */
static void put_run(uint8_t *base, uint64_t at, const struct run *run, uint64_t lane, const uint8_t *src,
                    uint64_t n, uint64_t put) {
    if (run->step == put) {
        memcpy(base + at, src, n * put);
        return;
    }
    if (!run->groups) {
        for (uint64_t i = 0; i < n; i++)
            memcpy(base + at + i * run->step, src + i * put, put);
        return;
    }
    uint64_t group = at - (lane % 8 * 4 + (lane >= 8 ? 2 : 0));
    for (uint64_t i = 0; i < n; i++, lane++) {
        if (lane == 16) {
            lane = 0;
            group += run->step;
        }
        for (; !lane && n - i >= 16 && put == 2; i += 16, group += run->step)
            put_group(base + group, src + i * 2);
        if (i == n)
            break;
        memcpy(base + group + lane % 8 * 4 + (lane >= 8 ? 2 : 0), src + i * put, put);
    }
}

/* What is not kept as plain numbers: segments of matrices, and an embedding as it lies on disk. */
static bool pack_stored(struct cpu *c, const struct place *p, const struct kern_tensor_id *id, uint64_t offset,
                        const void *bytes, uint64_t n) {
    const struct cpu_layout *l = &c->l;
    const struct kern_store s = kern_matrix_store(&c->k->cfg, id);
    if (id->part == KERN_EMBED && s.format != KERN_BF16) {
        const uint64_t at[] = {l->embed, l->embed_scale, l->embed_global};
        memcpy((uint8_t *)c->k->mem[KERN_MEM_WEIGHTS].base + at[id->piece] + offset, bytes, n);
        return true;
    }
    if (!p->mat || !p->mat->n_segs)
        return false;
    struct cpu_mat m = *p->mat;
    m.first_seg += p->skip_segs;
    if (id->part == KERN_MLA_KVB)
        cpu_pack_seg(c, cpu_seg_of(l, &l->layer[id->layer].uv, id->part), cpu_seg_of(l, &m, id->part), id->piece,
                     offset, bytes, n);
    else
        cpu_pack_seg(c, cpu_seg_of(l, &m, id->part), NULL, id->piece, offset, bytes, n);
    return true;
}

/* Are 16 rows from r on a panel of BF16 by themselves, without paddings between their inputs? Rows keep their order, so
 * the first and the last tell. */
static bool is_panel(const struct cpu *c, const struct place *p, uint64_t r, uint64_t cols) {
    if (p->kind != PLACE_PANEL || (p->cblock != p->cblock_pad && p->cblock < cols))
        return false;
    uint64_t a = element_at(c, p, r, 0);
    return (a - p->off) % (p->k * 32ull) == 0 && element_at(c, p, r + 15, 0) == a + 30;
}

static int pack_window(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                       const void *bytes, uint64_t n) {
    struct cpu *c = k->impl;
    const struct place p = place_of(c, id);
    const uint8_t *src = bytes;
    uint8_t *base = k->mem[KERN_MEM_WEIGHTS].base;
    uint64_t size = t->store.format == KERN_F32 ? 4 : 2;
    uint64_t up = p.kind == PLACE_FLOAT ? 4 - size : 0; /* BF16 kept as float: its bytes are the upper ones */
    if (pack_stored(c, &p, id, offset, bytes, n))
        return 0;
    while (n) {
        uint64_t r = offset / size / t->cols, col = offset / size % t->cols, b = offset % size;
        uint64_t at = element_at(c, &p, r, col) + up, done;
        if (!b && !col && n >= 32 * t->cols && is_panel(c, &p, r, t->cols)) {
            c->ops->panel(base + at, src, 2 * t->cols, 2 * t->cols, 2, 1);
            done = 32 * t->cols;
        } else if (b || n < size) {
            done = size - b < n ? size - b : n;
            memcpy(base + at + b, src, done);
        } else {
            struct run run = run_from(c, &p, r, col, t->cols);
            uint64_t whole = n / size < run.n ? n / size : run.n;
            /* Blocks begin on a group boundary, and a head's latent columns are one block. */
            put_run(base, at, &run, p.kind == PLACE_ROWS ? col % p.cblock % 16 : col % 16, src, whole, size);
            done = whole * size;
        }
        src += done;
        offset += done;
        n -= done;
    }
    return 0;
}

int cpu_pack(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
             const void *bytes, uint64_t n) {
    for (int i = 0; FAULT(cpu_packs_again) && i < 3; i++) /* the handicap of `make bench-formats` */
        pack_window(k, id, t, offset, bytes, n);
    return pack_window(k, id, t, offset, bytes, n);
}

/* A vector that came as F16 lies in the upper halves, as BF16 does; its numbers are widened when all are there. */
static void widen_f16(struct cpu *c, const struct kern_tensor_id *id, const struct kern_part_info *info) {
    const struct place p = place_of(c, id);
    uint8_t *base = c->k->mem[KERN_MEM_WEIGHTS].base;
    for (uint64_t r = 0; r < info->rows; r++)
        for (uint64_t col = 0; col < info->cols; col++) {
            uint8_t *v = base + element_at(c, &p, r, col);
            float f = host_f16_f32(host_le16(v + 2));
            memcpy(v, &f, sizeof(f));
        }
}

int cpu_pack_done(struct kern *k) {
    const struct kern_model_desc *m = &k->cfg.model;
    for (uint32_t l = 0; l < kern_total_layers(m); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            const struct kern_tensor_id id = {.part = part, .layer = l};
            struct kern_part_info info;
            if (kern_part_info(m, part, l, &info) && !info.matrix && kern_packed_format(k, &id) == KERN_F16)
                widen_f16(k->impl, &id, &info);
        }
    return 0;
}

/* ---- paddings: memory may hold anything when we get it, and zeros are part of the layout ---- */

static void clear(struct cpu *c, uint64_t off, uint64_t bytes) {
    memset((char *)c->k->mem[KERN_MEM_WEIGHTS].base + off, 0, bytes);
}

static void clear_mat(struct cpu *c, const struct cpu_mat *m, bool all) {
    uint64_t panel = (uint64_t)m->k * 32;
    if (!m->panels || FAULT(cpu_stale_panel_tail))
        return;
    for (uint32_t i = 0; i < m->n_segs; i++)
        cpu_clear_seg(c, &c->l.seg[m->first_seg + i]);
    if (m->n_segs)
        return;
    if (all)
        clear(c, m->off, m->bytes);
    else
        clear(c, m->off + (m->panels - 1) * panel, panel);
}

static void clear_rows(struct cpu *c, uint32_t part, uint32_t layer, uint64_t off, uint64_t numbers) {
    const struct kern_store s = cpu_store(&c->k->cfg, part, layer);
    clear(c, off, numbers * cpu_plain_size(&s));
}

/* Matrices without inner paddings only need their last panel cleared (two where gate and up alternate); the
 * fused ones and those with padded heads or inputs are cleared whole, so are all vectors. */
static void clear_layer(struct cpu *c, const struct cpu_layer *l, uint32_t i) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    const struct cpu_dims *d = &c->l.d;
    bool kda = m->layer[i].mix == KERN_MIX_KDA;
    clear(c, l->in_norm, d->e * 4ull);
    clear(c, l->post_norm, d->e * 4ull);
    for (int s = 0; m->layer[i].resid == KERN_RESID_MHC && s < 2; s++) {
        if (d->e != m->hidden)
            clear_rows(c, s ? KERN_HC_FFN_FN : KERN_HC_ATTN_FN, i, l->hc_fn[s], (uint64_t)d->hc_rows * d->hc * d->e);
        clear(c, l->hc_base[s], pad16(d->hc_rows) * 4);
        clear(c, l->hc_scale[s], 64);
    }
    if (i >= m->n_layers) {
        clear(c, l->enorm, d->e * 4ull);
        clear(c, l->hnorm, d->e * 4ull);
        clear(c, l->draft_norm, d->e * 4ull);
        clear_mat(c, &l->eh, d->e != m->hidden);
    }
    clear_mat(c, &l->in, true);
    clear_mat(c, &l->out, kda ? d->kda_dim != m->kda_dim : d->v != m->v_dim);
    if (kda) {
        clear(c, l->conv, 3ull * m->conv_width * d->kda_all * 4);
        clear(c, l->dt_bias, d->kda_all * 4ull);
        clear(c, l->o_norm, d->kda_dim * 4ull);
        clear(c, l->a_log, pad16(m->kda_heads) * 4);
        clear_mat(c, &l->fb, d->kda_dim != m->kda_dim);
        clear_mat(c, &l->gb, d->kda_dim != m->kda_dim);
    } else {
        clear(c, l->qa_norm, d->q_rank * 4ull);
        clear(c, l->kva_norm, d->kv_rank * 4ull);
        clear_mat(c, &l->cq, true);
        clear_mat(c, &l->uk, d->kv_rank != m->kv_rank);
        clear_mat(c, &l->uv, d->v != m->v_dim);
    }
    if (m->layer[i].index == KERN_INDEX_FULL) {
        clear(c, l->knorm_w, d->idx_dim * 4ull);
        clear(c, l->knorm_b, d->idx_dim * 4ull);
        if (m->index_kpool > 1)
            clear(c, l->ape, (uint64_t)m->index_kpool * d->idx_dim * 4);
    }
}

static void clear_mlp(struct cpu *c, const struct cpu_layer *l, uint32_t i) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    const struct cpu_dims *d = &c->l.d;
    bool moe = m->layer[i].mlp == KERN_MLP_MOE;
    uint32_t width = moe ? m->n_shared * m->expert_width : m->dense_width;
    clear_mat(c, &l->gate_up, width % 16 != 0);
    clear_mat(c, &l->down, false);
    if (!moe)
        return;
    if (d->e != m->hidden)
        clear_rows(c, KERN_ROUTER, i, l->router, (uint64_t)m->n_experts * d->e);
    clear(c, l->router_bias, pad16(m->n_experts) * 4);
    for (uint32_t x = 0; x < m->n_experts; x++) {
        struct cpu_mat gu = l->exp_gate_up, down = l->exp_down;
        gu.off += x * l->exp_stride;
        down.off += x * l->exp_stride;
        gu.first_seg += 3 * x;
        down.first_seg += 3 * x;
        clear_mat(c, &gu, d->expert != m->expert_width);
        clear_mat(c, &down, false);
    }
}

void cpu_clear_paddings(struct cpu *c) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    for (uint32_t i = 0; i < kern_total_layers(m); i++) {
        clear_layer(c, &c->l.layer[i], i);
        clear_mlp(c, &c->l.layer[i], i);
    }
    clear(c, c->l.final_norm, c->l.d.e * 4ull);
    if (c->l.d.e != m->hidden && cpu_store(&c->k->cfg, KERN_EMBED, 0).format == KERN_BF16)
        clear(c, c->l.embed, (uint64_t)m->vocab_rows * c->l.d.e * 2);
    clear_mat(c, &c->l.head, false);
}
