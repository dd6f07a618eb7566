/* SPDX-License-Identifier: MIT */
/* Where everything lies: one walk over the model decides the bytes of each memory class and, with base
 * addresses given, places every pointer. Also the packing, which is a copy. */
#include <errno.h>
#include <stdio.h>

#include "ref.h"

/* Offsets count up; with a base the address comes out. */
static void *take(char *base, uint64_t *at, uint64_t bytes) {
    char *r = base ? base + *at : NULL;
    *at += (bytes + 63) & ~63ull;
    return r;
}

/* A tensor's pieces behind each other. */
static uint64_t place_tensor(struct ref *r, const struct kern_config *c, const struct kern_tensor_id *id,
                             const struct kern_part_info *info, uint64_t at) {
    const struct kern_store s = info->matrix ? kern_matrix_store(c, id) : kern_store_plain(KERN_F32);
    for (uint32_t i = 0; i < KERN_PIECES; i++) {
        struct kern_piece_info p = {0};
        kern_store_piece(&s, info->rows, info->cols, (enum kern_piece)i, &p);
        if (r->offset)
            r->offset[kern_part_slot(&c->model, id) * KERN_PIECES + i] = at;
        at += (p.rows * p.row_bytes + 15) & ~15ull;
    }
    return at;
}

static void place_weights(struct ref *r, const struct kern_config *c, uint64_t *ret_bytes) {
    const struct kern_model_desc *m = &c->model;
    uint64_t at = 0;
    for (uint32_t l = 0; l < kern_total_layers(m); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (!kern_part_info(m, part, l, &info))
                continue;
            for (uint32_t e = 0; e < info.experts; e++) {
                const struct kern_tensor_id id = {.part = part, .layer = l, .expert = e};
                at = place_tensor(r, c, &id, &info, at);
            }
        }
    *ret_bytes = at;
}

static void place_pages(struct ref *r, const struct kern_config *c) {
    const struct kern_model_desc *m = &c->model;
    uint64_t at = 0;
    r->latent_bytes = host_latent_bytes(c->cache, m->kv_rank, m->rope_dim);
    r->key_bytes = host_key_bytes(c->cache, m->index_dim);
    for (uint32_t l = 0; l < kern_total_layers(m); l++) {
        if (m->layer[l].mix != KERN_MIX_MLA)
            continue;
        at = (at + 3) & ~3ull;
        r->latent_at[l] = at;
        at += KERN_PAGE_TOKENS * r->latent_bytes;
        if (m->layer[l].index == KERN_INDEX_FULL) {
            r->pooled_at[l] = at;
            at += KERN_PAGE_TOKENS / m->index_kpool * r->key_bytes;
        }
    }
    r->page_bytes =
        at ? (at + 63) & ~63ull : 64; /* never 0: a page has an address even where no layer uses it */
}

static void place_slots(struct ref *r, const struct kern_config *c) {
    const struct kern_model_desc *m = &c->model;
    uint64_t at = 0, p = ref_p(m);
    for (uint32_t l = 0; l < kern_total_layers(m); l++) {
        if (m->layer[l].mix == KERN_MIX_KDA) {
            r->state_at[l] = at;
            at += p * m->kda_dim * sizeof(float);
            r->window_at[l] = at;
            at += (m->conv_width - 1) * 3 * p * sizeof(float);
        } else if (m->layer[l].index == KERN_INDEX_FULL && m->index_kpool > 1) {
            r->ring_at[l] = at;
            at += KERN_TAIL_RING * 2 * (uint64_t)m->index_dim * sizeof(float);
        }
    }
    r->slot_committed = at;
    for (uint32_t l = 0; l < kern_total_layers(m); l++)
        if (m->layer[l].mix == KERN_MIX_KDA) {
            r->pending_at[l] = at;
            at += KERN_MAX_WINDOW * (6 * p + m->kda_heads) * sizeof(float);
        }
    r->slot_bytes = at ? (at + 63) & ~63ull : 64;
}

static uint64_t max2(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* The longest vector that any stage keeps in tmp or acc. */
static uint64_t widest(const struct kern_model_desc *m) {
    uint64_t w = max2(2 * (uint64_t)m->hidden, 3 * (uint64_t)ref_p(m));
    w = max2(w, max2(m->dense_width, max2(1, m->n_shared) * (uint64_t)m->expert_width));
    w = max2(w, (uint64_t)m->mla_heads * max2(max2(m->nope_dim, m->v_dim), m->kv_rank));
    w = max2(w, (uint64_t)m->mla_heads * ((uint64_t)m->nope_dim + m->rope_dim));
    w = max2(w, (uint64_t)m->kv_rank + m->rope_dim);
    w = max2(w, max2(m->q_rank, (uint64_t)m->index_heads * m->index_dim));
    return max2(w, m->n_experts);
}

/* What is unpacked of a matrix at a time, at most. */
static uint64_t unpacked_floats(const struct kern_config *c) {
    uint64_t most = 0;
    for (uint32_t l = 0; l < kern_total_layers(&c->model); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (!kern_part_info(&c->model, part, l, &info) || !info.matrix)
                continue;
            for (uint32_t e = 0; e < info.experts; e++) {
                const struct kern_tensor_id id = {.part = part, .layer = l, .expert = e};
                const struct kern_store s = kern_matrix_store(c, &id);
                most = max2(most, host_unpack_unit(&s) * info.cols);
            }
        }
    return most;
}

static void place_lane(struct ref_lane *l, const struct kern_config *c, uint32_t vocab_rows, uint32_t lane, char *base,
                       uint64_t *at) {
    const struct kern_model_desc *m = &c->model;
    const uint64_t rows = c->max_rows[lane], e = rows * m->hidden * sizeof(float),
                   p = rows * ref_p(m) * sizeof(float);
    l->streams = take(base, at, e * m->hc_mult);
    l->hidden = take(base, at, e);
    l->dstream = take(base, at, m->n_draft ? e : 0);
    l->dhidden = take(base, at, m->n_draft ? e : 0);
    l->x = take(base, at, e);
    l->y = take(base, at, e);
    l->post = take(base, at, rows * m->hc_mult * sizeof(float));
    l->comb = take(base, at, rows * m->hc_mult * m->hc_mult * sizeof(float));
    l->logits = take(base, at, c->max_samples * (uint64_t)vocab_rows * sizeof(float));
    l->sel = take(base, at, m->index_kpool ? rows * (m->index_topk / m->index_kpool) * sizeof(uint32_t) : 0);
    l->sel_n = take(base, at, rows * sizeof(uint32_t));
    l->draft = take(base, at, rows);
    l->z = take(base, at, 3 * p);
    l->qkv = take(base, at, 3 * p);
    l->g = take(base, at, p);
    l->e = take(base, at, p);
    l->o = take(base, at, p);
    l->beta = take(base, at, rows * m->kda_heads * sizeof(float));
    l->cq = take(base, at, rows * m->q_rank * sizeof(float));
    l->kraw = take(base, at, rows * 2 * m->index_dim * sizeof(float));
}

void ref_place(struct ref *r, const struct kern_config *c, uint32_t vocab_rows, char *const base[KERN_MEM_N],
               uint64_t ret_bytes[KERN_MEM_N]) {
    const struct kern_model_desc *m = &c->model;
    char *ctl = base[KERN_MEM_CTL], *work = base[KERN_MEM_WORK];
    uint64_t at = kern_ctl_bytes(c);
    take(ctl, &at, sizeof(*r));
    r->offset = take(ctl, &at, kern_part_count(m) * KERN_PIECES * sizeof(uint64_t));
    r->touched = take(ctl, &at, m->n_experts);
    ret_bytes[KERN_MEM_CTL] = at;

    place_weights(r, c, &ret_bytes[KERN_MEM_WEIGHTS]);
    place_pages(r, c);
    place_slots(r, c);
    ret_bytes[KERN_MEM_PAGES] = r->page_bytes * c->n_pages;
    ret_bytes[KERN_MEM_SLOTS] = r->slot_bytes * c->n_slots;
    r->weights = base[KERN_MEM_WEIGHTS];
    r->pages = base[KERN_MEM_PAGES];
    r->slots = base[KERN_MEM_SLOTS];

    at = 0;
    for (uint32_t lane = 0; lane < KERN_LANES; lane++)
        place_lane(&r->lane[lane], c, vocab_rows, lane, work, &at);
    r->state_copy = take(work, &at, (uint64_t)ref_p(m) * m->kda_dim * sizeof(float));
    r->chunk = take(work, &at, 2 * KERN_GRID * ((uint64_t)m->kda_dim + KERN_GRID) * sizeof(double));
    r->scores = take(work, &at, (c->max_context + 1ull) * sizeof(double));
    r->heap = take(work, &at, m->index_kpool ? m->index_topk / m->index_kpool * sizeof(uint32_t) : 0);
    r->acc = take(work, &at, widest(m) * sizeof(double));
    for (int i = 0; i < 4; i++)
        r->tmp[i] = take(work, &at, widest(m) * sizeof(float));
    r->rounded = take(work, &at, widest(m) * sizeof(float));
    r->unpacked = take(work, &at, unpacked_floats(c) * sizeof(float));
    r->attn = take(work, &at, (uint64_t)m->mla_heads * m->v_dim * sizeof(float));
    r->sampling = take(work, &at, host_sample_scratch(vocab_rows));
    ret_bytes[KERN_MEM_WORK] = at;
}

int ref_query(const struct kern_config *cfg, uint32_t vocab_rows, uint64_t bytes[KERN_MEM_N], char *err,
              size_t err_len) {
    (void)err;
    (void)err_len;
    struct ref r = {0};
    char *const none[KERN_MEM_N] = {0};
    ref_place(&r, cfg, vocab_rows, none, bytes);
    return 0;
}

/* BF16 that is kept as F32 is the upper half of it; a window may begin or end inside a number. F16 waits there for
 * ref_pack_done(). */
static void widen_bytes(char *dst, uint64_t offset, const char *src, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = offset + i;
        /* Each byte clears one of the two below: two windows that share a number touch different bytes. */
        char *v = dst + at / 2 * 4 + at % 2;
        v[0] = 0;
        v[2] = src[i];
    }
}

int ref_pack(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
             const void *bytes, uint64_t n) {
    struct ref *r = k->impl;
    struct kern_part_info info;
    if (!kern_part_info(r->m, id->part, id->layer, &info))
        return -ENOENT;
    char *dst = r->weights + r->offset[kern_part_slot(r->m, id) * KERN_PIECES + id->piece];
    if (!info.matrix && t->store.format != KERN_F32)
        widen_bytes(dst, offset, bytes, n);
    else
        memcpy(dst + offset, bytes, n);
    return 0;
}

int ref_pack_done(struct kern *k) {
    struct ref *r = k->impl;
    for (uint32_t l = 0; l < kern_total_layers(r->m); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            const struct kern_tensor_id id = {.part = part, .layer = l};
            struct kern_part_info info;
            if (!kern_part_info(r->m, part, l, &info) || info.matrix || kern_packed_format(k, &id) != KERN_F16)
                continue;
            char *v = r->weights + r->offset[kern_part_slot(r->m, &id) * KERN_PIECES];
            for (uint64_t i = 0; i < info.rows * info.cols; i++) {
                float f = host_f16_f32(host_le16((const uint8_t *)v + 4 * i + 2));
                memcpy(v + 4 * i, &f, sizeof(f));
            }
        }
    return 0;
}
