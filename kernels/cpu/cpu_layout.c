/* SPDX-License-Identifier: MIT */
/* cpu_layout.c: where everything lies in the five memory blocks. Pure arithmetic on a checked configuration;
 * kern_query() and kern_open() use the same function, so they cannot disagree. */
#include "cpu.h"
#include "host.h"

#include <errno.h>
#include <unistd.h>

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t r = *at;
    *at = (r + bytes + 63) & ~63ull;
    return r;
}

/* The walk that gives every weight its place. */
struct placing {
    const struct kern_config *cfg;
    struct cpu_layout *l;
    uint64_t at;
    uint32_t layer, expert;
};

/* One tensor of a matrix: where its outputs begin, the heads its outputs and inputs are padded by (0: none), and
 * whether its panels alternate with another's. */
struct tensor {
    uint32_t part, n0, block, cblock, step;
};

static uint64_t take_here(struct placing *w, uint64_t bytes) {
    return take(&w->at, bytes);
}

/* A seg's pieces in panels. whole: another seg of the same matrix, which has what belongs to the whole of it. */
static void place_pieces(struct placing *w, struct cpu_seg *s, uint64_t panel_rows, const struct cpu_packed *whole) {
    struct cpu_packed *m = &s->m;
    struct kern_piece_info p;
    uint64_t rows = panel_rows;
    if (m->s.format == KERN_EXL3) { /* tiles and both vectors, however many panels heads make of them */
        m->row_bytes = m->cols / 8 * m->s.bits;
        m->codes = take_here(w, (uint64_t)m->rows * m->row_bytes);
        m->suh = take_here(w, m->cols * 2ull);
        m->svh = take_here(w, m->rows * 2ull);
        return;
    }
    kern_store_piece(&m->s, m->rows, m->cols, KERN_PIECE_CODES, &p);
    m->row_bytes = (uint32_t)p.row_bytes;
    m->codes = take_here(w, rows * p.row_bytes * (FAULT(cpu_codes_as_bf16) ? 2 : 1));
    kern_store_piece(&m->s, m->rows, m->cols, KERN_PIECE_SCALE, &p);
    m->scale_unit = (uint16_t)p.unit;
    m->scale_cols = p.unit ? (uint32_t)(p.row_bytes / p.unit) : 0;
    if (p.unit && m->s.block_rows == 1)
        m->scale = take_here(w, rows * p.row_bytes);
    else if (p.unit)
        m->scale = whole ? whole->scale : take_here(w, p.rows * p.row_bytes);
    kern_store_piece(&m->s, m->rows, m->cols, KERN_PIECE_GLOBAL, &p);
    m->has_global = p.rows != 0;
    if (p.rows)
        m->global = whole ? whole->global : take_here(w, p.row_bytes);
}

static struct cpu_seg seg_of(const struct placing *w, const struct tensor *t) {
    const struct kern_tensor_id id = {.part = t->part, .layer = w->layer, .expert = w->expert};
    struct kern_part_info info = {0};
    uint32_t whole = 1u << 30;
    kern_part_info(&w->cfg->model, t->part, w->layer, &info);
    struct cpu_seg s = {.part = t->part, .out0 = t->n0 / 16, .step = t->step ? t->step : 1};
    s.m = (struct cpu_packed){.s = kern_matrix_store(w->cfg, &id),
                              .rows = (uint32_t)info.rows,
                              .cols = (uint32_t)info.cols,
                              .cblock = t->cblock ? t->cblock : whole,
                              .cblock_pad = t->cblock ? (uint32_t)pad16(t->cblock) : whole,
                              .rblock = t->block ? t->block : whole,
                              .rblock_pad = t->block ? (uint32_t)pad16(t->block) : whole,
                              .rstride = t->block};
    s.m.k = t->cblock ? s.m.cols / t->cblock * s.m.cblock_pad : s.m.cols;
    s.panels = (uint32_t)(t->block ? info.rows / t->block * (s.m.rblock_pad / 16) : pad16(info.rows) / 16);
    return s;
}

static void keep_seg(struct placing *w, struct cpu_mat *m, struct cpu_seg *s, uint64_t before) {
    s->bytes = w->at - before;
    m->bytes += s->bytes;
    if (w->l->seg)
        w->l->seg[w->l->n_segs] = *s;
    w->l->n_segs++;
    m->n_segs++;
}

static void count_seg(struct placing *w, struct cpu_mat *m, uint64_t bytes) {
    m->bytes = bytes;
    if (w->l->seg)
        w->l->seg[m->first_seg].bytes = bytes;
}

static bool is_bf16(const struct placing *w, uint32_t part) {
    const struct kern_tensor_id id = {.part = part, .layer = w->layer, .expert = w->expert};
    return kern_matrix_store(w->cfg, &id).format == KERN_BF16;
}

/* outputs, k: with paddings; real: weights without */
static struct cpu_mat mat(struct placing *w, uint64_t outputs, uint64_t k, uint64_t real, const struct tensor *t,
                          uint32_t n) {
    struct cpu_mat m = {.k = (uint32_t)k, .panels = (uint32_t)(pad16(outputs) / 16), .weights = real};
    bool plain = true;
    for (uint32_t i = 0; i < n; i++)
        plain = plain && is_bf16(w, t[i].part);
    if (plain) {
        m.bytes = (uint64_t)m.panels * m.k * 32;
        m.off = take_here(w, m.bytes);
        return m;
    }
    m.first_seg = w->l->n_segs;
    for (uint32_t i = 0; i < n; i++) {
        struct cpu_seg s = seg_of(w, &t[i]);
        uint64_t before = w->at;
        place_pieces(w, &s, s.panels * 16ull, NULL);
        keep_seg(w, &m, &s, before);
    }
    return m;
}

static struct cpu_mat one(struct placing *w, uint64_t outputs, uint64_t k, uint64_t real, uint32_t part, uint32_t block,
                          uint32_t cblock) {
    const struct tensor t = {.part = part, .block = block, .cblock = cblock};
    return mat(w, outputs, k, real, &t, 1);
}

static uint64_t vec(uint64_t *at, uint64_t n) {
    return take(at, pad16(n) * sizeof(float));
}

uint32_t cpu_threads(const struct kern_config *cfg) {
    long n = cfg->threads ? (long)cfg->threads : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > POOL_MAX_THREADS ? POOL_MAX_THREADS : (uint32_t)n;
}

static void layout_dims(const struct kern_config *cfg, uint32_t vocab_rows, struct cpu_dims *d) {
    const struct kern_model_desc *m = &cfg->model;
    d->e = (uint32_t)pad16(m->hidden);
    d->hc = m->hc_mult;
    d->hc_rows = m->hc_mult * (2 + m->hc_mult);
    d->kda_dim = (uint32_t)pad16(m->kda_dim);
    d->kda_all = m->kda_heads * d->kda_dim;
    d->z_fa = 3 * d->kda_all;
    d->z_ga = d->z_fa + d->kda_dim;
    d->z_b = d->z_ga + d->kda_dim;
    d->kda_z = d->z_b + (uint32_t)pad16(m->kda_heads);
    d->q_rank = (uint32_t)pad16(m->q_rank);
    d->kv_rank = (uint32_t)pad16(m->kv_rank);
    d->rope = (uint32_t)pad16(m->rope_dim);
    d->q_head = (uint32_t)pad16((uint64_t)m->nope_dim + m->rope_dim);
    d->lat = d->kv_rank + d->rope;
    d->v = (uint32_t)pad16(m->v_dim);
    d->q_all = m->mla_heads * d->q_head;
    d->qa_all = m->mla_heads * d->lat;
    d->v_all = m->mla_heads * d->v;
    d->idx_dim = (uint32_t)pad16(m->index_dim);
    d->idx_all = m->index_heads * d->idx_dim;
    d->z_kv = d->q_rank;
    d->z_key = d->z_kv + (uint32_t)pad16((uint64_t)m->kv_rank + m->rope_dim);
    d->z_gate = d->z_key + d->idx_dim;
    d->z_w = d->z_gate + (m->index_kpool > 1 ? d->idx_dim : 0);
    d->mla_z = d->z_w + (uint32_t)pad16(m->index_heads);
    d->cq_n = d->q_all + d->idx_all;
    d->dense = (uint32_t)pad16(m->dense_width);
    d->expert = (uint32_t)pad16(m->expert_width);
    d->shared = (uint32_t)pad16((uint64_t)m->n_shared * m->expert_width);
    d->vocab = (uint32_t)pad16(m->vocab_rows);
    d->logits = (uint32_t)pad16(vocab_rows);
    d->max_pools = m->index_kpool ? cfg->max_context / m->index_kpool + 1 : 1;
    d->sel = m->index_kpool ? m->index_topk / m->index_kpool : 0;
    if (d->sel > d->max_pools)
        d->sel = d->max_pools;
}

static void layout_kda(struct placing *w, struct cpu_layer *l) {
    const struct kern_model_desc *m = &w->cfg->model;
    const struct cpu_dims *d = &w->l->d;
    const uint32_t dim = m->kda_dim;
    const uint64_t e = m->hidden, p = (uint64_t)m->kda_heads * dim;
    const struct tensor in[] = {
        {.part = KERN_KDA_Q, .n0 = 0, .block = dim},
        {.part = KERN_KDA_K, .n0 = d->kda_all, .block = dim},
        {.part = KERN_KDA_V, .n0 = 2 * d->kda_all, .block = dim},
        {.part = KERN_KDA_FA, .n0 = d->z_fa},
        {.part = KERN_KDA_GA, .n0 = d->z_ga},
        {.part = KERN_KDA_B, .n0 = d->z_b},
    };
    l->in = mat(w, d->kda_z, e, (3 * p + 2ull * dim + m->kda_heads) * e, in, 6);
    l->conv = vec(&w->at, 3ull * m->conv_width * d->kda_all);
    l->dt_bias = vec(&w->at, d->kda_all);
    l->o_norm = vec(&w->at, d->kda_dim);
    l->a_log = vec(&w->at, m->kda_heads);
    l->fb = one(w, d->kda_all, dim, p * dim, KERN_KDA_FB, dim, 0);
    l->gb = one(w, d->kda_all, dim, p * dim, KERN_KDA_GB, dim, 0);
    l->out = one(w, e, d->kda_all, e * p, KERN_KDA_O, 0, dim);
}

/* kv_b in EXL3: of what is there once, each product counts its share. */
static void layout_kvb_once(struct placing *w, struct cpu_layer *l, struct cpu_seg *key) {
    const struct kern_model_desc *m = &w->cfg->model;
    uint64_t before = w->at;
    place_pieces(w, key, 0, NULL);
    struct cpu_seg value = *key;
    value.m.transposed = 0;
    value.m.k = m->kv_rank;
    value.m.rblock = m->v_dim;
    value.m.rblock_pad = (uint32_t)pad16(m->v_dim);
    value.m.roff = m->nope_dim;
    value.panels = l->uv.panels;
    uint64_t bytes = w->at - before, keys = bytes * m->nope_dim / (m->nope_dim + (uint64_t)m->v_dim);
    keep_seg(w, &l->uk, key, before);
    l->uv.first_seg = w->l->n_segs;
    keep_seg(w, &l->uv, &value, before);
    count_seg(w, &l->uk, keys);
    count_seg(w, &l->uv, bytes - keys);
}

/* kv_b as one tensor: the key rows of each head in panels of their own, for a product with their transpose, and the
 * value rows in others. What belongs to the whole matrix is there once. */
static void layout_kvb(struct placing *w, struct cpu_layer *l) {
    const struct kern_model_desc *m = &w->cfg->model;
    const struct cpu_dims *d = &w->l->d;
    const struct tensor t = {.part = KERN_MLA_KVB};
    struct cpu_seg key = seg_of(w, &t), value = key;
    const uint32_t per = m->nope_dim + m->v_dim;
    uint64_t before = w->at;
    key.m.transposed = 1;
    key.m.k = m->nope_dim;
    key.m.rblock = m->nope_dim;
    key.m.rblock_pad = (uint32_t)pad16(m->nope_dim);
    key.m.rstride = per;
    key.panels = l->uk.panels;
    if (key.m.s.format == KERN_EXL3) /* rows are mixed by 128: both products read the same */
        return layout_kvb_once(w, l, &key);
    place_pieces(w, &key, (uint64_t)m->mla_heads * key.m.rblock_pad, NULL);
    keep_seg(w, &l->uk, &key, before);
    before = w->at;
    value.m.rblock = m->v_dim;
    value.m.rblock_pad = d->v;
    value.m.rstride = per;
    value.m.roff = m->nope_dim;
    value.panels = l->uv.panels;
    place_pieces(w, &value, value.panels * 16ull, &key.m);
    l->uv.first_seg = w->l->n_segs;
    keep_seg(w, &l->uv, &value, before);
}

static void layout_absorbed(struct placing *w, struct cpu_layer *l) {
    const struct kern_model_desc *m = &w->cfg->model;
    const struct cpu_dims *d = &w->l->d;
    const uint64_t heads = m->mla_heads, nk = (uint64_t)m->nope_dim * m->kv_rank, nv = (uint64_t)m->v_dim * m->kv_rank;
    const uint32_t uk_all = m->mla_heads * d->kv_rank;
    if (m->layer[w->layer].kvb_split) {
        l->uk = one(w, uk_all, m->nope_dim, heads * nk, KERN_MLA_KB, m->kv_rank, 0);
        l->uv = one(w, d->v_all, m->kv_rank, heads * nv, KERN_MLA_VB, m->v_dim, 0);
    } else if (is_bf16(w, KERN_MLA_KVB)) {
        l->uk = one(w, uk_all, m->nope_dim, heads * nk, KERN_MLA_KVB, 0, 0);
        l->uv = one(w, d->v_all, m->kv_rank, heads * nv, KERN_MLA_KVB, 0, 0);
    } else {
        l->uk = (struct cpu_mat){
            .k = m->nope_dim, .panels = uk_all / 16, .weights = heads * nk, .first_seg = w->l->n_segs};
        l->uv = (struct cpu_mat){.k = m->kv_rank, .panels = d->v_all / 16, .weights = heads * nv};
        layout_kvb(w, l);
    }
}

static void layout_mla(struct placing *w, struct cpu_layer *l) {
    const struct kern_model_desc *m = &w->cfg->model;
    const struct cpu_dims *d = &w->l->d;
    const uint64_t e = m->hidden, heads = m->mla_heads;
    const uint32_t q_dim = m->nope_dim + m->rope_dim;
    bool index = m->layer[w->layer].index == KERN_INDEX_FULL, pools = m->index_kpool > 1;
    uint64_t own = index ? (pools ? 2ull : 1ull) * m->index_dim + m->index_heads : 0;
    uint64_t own_q = index ? (uint64_t)m->index_heads * m->index_dim : 0;
    const struct tensor in[] = {
        {.part = KERN_MLA_QA, .n0 = 0},
        {.part = KERN_MLA_KVA, .n0 = d->z_kv},
        {.part = KERN_IDX_K, .n0 = d->z_key},
        {.part = KERN_IDX_W, .n0 = d->z_w},
        {.part = KERN_IDX_GATE, .n0 = d->z_gate},
    };
    const struct tensor cq[] = {
        {.part = KERN_MLA_QB, .n0 = 0, .block = q_dim},
        {.part = KERN_IDX_QB, .n0 = d->q_all, .block = m->index_dim},
    };
    l->in = mat(w, index ? d->mla_z : d->z_key, e, ((uint64_t)m->q_rank + m->kv_rank + m->rope_dim + own) * e, in,
                index ? (pools ? 5 : 4) : 2);
    l->qa_norm = vec(&w->at, d->q_rank);
    l->kva_norm = vec(&w->at, d->kv_rank);
    l->cq = mat(w, index ? d->cq_n : d->q_all, m->q_rank, (heads * q_dim + own_q) * m->q_rank, cq, index ? 2 : 1);
    layout_absorbed(w, l);
    l->out = one(w, e, d->v_all, e * heads * m->v_dim, KERN_MLA_O, 0, m->v_dim);
    if (index) {
        l->knorm_w = vec(&w->at, d->idx_dim);
        l->knorm_b = vec(&w->at, d->idx_dim);
        l->ape = vec(&w->at, pools ? (uint64_t)m->index_kpool * d->idx_dim : 0);
    }
}

static struct cpu_mat gate_up(struct placing *w, uint32_t gate, uint64_t padded, uint64_t width) {
    const struct tensor t[] = {{.part = gate, .n0 = 0, .step = 2}, {.part = gate + 1, .n0 = 16, .step = 2}};
    return mat(w, 2 * padded, w->cfg->model.hidden, 2 * width * w->cfg->model.hidden, t, 2);
}

static void layout_experts(struct placing *w, struct cpu_layer *l) {
    const struct kern_model_desc *m = &w->cfg->model;
    const struct cpu_dims *d = &w->l->d;
    const uint64_t e = m->hidden, first = w->at;
    bool plain = true;
    for (w->expert = 0; w->expert < m->n_experts && plain; w->expert++)
        plain = is_bf16(w, KERN_EXP_GATE) && is_bf16(w, KERN_EXP_UP) && is_bf16(w, KERN_EXP_DOWN);
    w->expert = 0;
    if (plain) {
        l->exp_gate_up = gate_up(w, KERN_EXP_GATE, d->expert, m->expert_width);
        l->exp_down = one(w, e, m->expert_width, e * m->expert_width, KERN_EXP_DOWN, 0, 0);
        l->exp_stride = w->at - first;
        w->at += (m->n_experts - 1) * l->exp_stride;
        return;
    }
    /* three segments each, whatever their formats, so that expert x has those from 3 x on */
    for (; w->expert < m->n_experts; w->expert++) {
        struct cpu_mat gu = {.k = m->hidden, .panels = 2 * d->expert / 16, .weights = 2 * e * m->expert_width},
                       down = {.k = m->expert_width, .panels = d->e / 16, .weights = e * m->expert_width};
        const struct tensor t[] = {{.part = KERN_EXP_GATE, .n0 = 0, .step = 2},
                                   {.part = KERN_EXP_UP, .n0 = 16, .step = 2},
                                   {.part = KERN_EXP_DOWN}};
        gu.first_seg = w->l->n_segs;
        down.first_seg = gu.first_seg + 2;
        for (uint32_t i = 0; i < 3; i++) {
            struct cpu_seg s = seg_of(w, &t[i]);
            uint64_t before = w->at;
            place_pieces(w, &s, s.panels * 16ull, NULL);
            keep_seg(w, i < 2 ? &gu : &down, &s, before);
        }
        if (!w->expert) {
            l->exp_gate_up = gu;
            l->exp_down = down;
        }
    }
    w->expert = 0;
}

static void layout_mlp(struct placing *w, struct cpu_layer *l) {
    const struct kern_model_desc *m = &w->cfg->model;
    const struct cpu_dims *d = &w->l->d;
    const uint64_t e = m->hidden;
    if (m->layer[w->layer].mlp == KERN_MLP_DENSE) {
        l->gate_up = gate_up(w, KERN_MLP_GATE, d->dense, m->dense_width);
        l->down = one(w, e, m->dense_width, e * m->dense_width, KERN_MLP_DOWN, 0, 0);
        return;
    }
    const struct kern_store router = cpu_store(w->cfg, KERN_ROUTER, w->layer);
    l->router = take_here(w, (uint64_t)m->n_experts * d->e * cpu_plain_size(&router));
    l->router_bias = vec(&w->at, m->n_experts);
    layout_experts(w, l);
    if (m->n_shared) {
        uint64_t width = (uint64_t)m->n_shared * m->expert_width;
        l->gate_up = gate_up(w, KERN_SH_GATE, d->shared, width);
        l->down = one(w, e, width, e * width, KERN_SH_DOWN, 0, 0);
    }
}

/* The embedding is read row by row: BF16 rows are padded, others lie as on disk. */
static void layout_embed(struct placing *w) {
    const struct kern_model_desc *m = &w->cfg->model;
    const struct kern_store s = cpu_store(w->cfg, KERN_EMBED, 0);
    struct kern_piece_info p = {0};
    if (s.format == KERN_BF16) {
        w->l->embed = take_here(w, (uint64_t)m->vocab_rows * w->l->d.e * 2);
        return;
    }
    kern_store_piece(&s, m->vocab_rows, m->hidden, KERN_PIECE_CODES, &p);
    w->l->embed = take_here(w, p.rows * p.row_bytes);
    kern_store_piece(&s, m->vocab_rows, m->hidden, KERN_PIECE_SCALE, &p);
    w->l->embed_scale = take_here(w, p.rows * p.row_bytes);
    kern_store_piece(&s, m->vocab_rows, m->hidden, KERN_PIECE_GLOBAL, &p);
    w->l->embed_global = take_here(w, p.rows * p.row_bytes);
}

static void layout_weights(const struct kern_config *cfg, struct cpu_layout *l) {
    const struct kern_model_desc *m = &cfg->model;
    const struct cpu_dims *d = &l->d;
    struct placing w = {.cfg = cfg, .l = l};
    for (uint32_t i = 0; i < kern_total_layers(m); i++) {
        struct cpu_layer *x = &l->layer[i];
        w.layer = i;
        x->in_norm = vec(&w.at, d->e);
        x->post_norm = vec(&w.at, d->e);
        for (int s = 0; m->layer[i].resid == KERN_RESID_MHC && s < 2; s++) {
            const struct kern_store fn = cpu_store(cfg, s ? KERN_HC_FFN_FN : KERN_HC_ATTN_FN, i);
            x->hc_fn[s] = take_here(&w, (uint64_t)d->hc_rows * d->hc * d->e * cpu_plain_size(&fn));
            x->hc_base[s] = vec(&w.at, d->hc_rows);
            x->hc_scale[s] = vec(&w.at, 3);
        }
        if (i >= m->n_layers) {
            x->enorm = vec(&w.at, d->e);
            x->hnorm = vec(&w.at, d->e);
            x->draft_norm = vec(&w.at, d->e);
            x->eh = one(&w, m->hidden, 2ull * d->e, 2ull * m->hidden * m->hidden, KERN_DRAFT_EH, 0, m->hidden);
        }
        if (m->layer[i].mix == KERN_MIX_KDA)
            layout_kda(&w, x);
        else
            layout_mla(&w, x);
        layout_mlp(&w, x);
    }
    w.layer = 0;
    l->final_norm = vec(&w.at, d->e);
    l->head = one(&w, m->vocab_rows, m->hidden, (uint64_t)m->vocab_rows * m->hidden, KERN_HEAD, 0, 0);
    layout_embed(&w);
    l->weight_bytes = w.at;
}

/* A slot: what counts as its content first (per KDA layer the state and the convolution window, per indexed
 * layer the ring of raw keys and gates, where pools have several tokens), then the pending rows. A page: per MLA layer
 * latents, then keys. */
static void layout_state(const struct kern_config *cfg, struct cpu_layout *l) {
    const struct kern_model_desc *m = &cfg->model;
    const struct cpu_dims *d = &l->d;
    uint64_t slot = 0, page = 0;
    l->latent_bytes = host_latent_bytes(cfg->cache, d->kv_rank, d->rope);
    l->key_bytes = host_key_bytes(cfg->cache, d->idx_dim);
    l->pend = (struct cpu_pend){.k = 0,
                                .v = d->kda_all,
                                .a = 2 * d->kda_all,
                                .z = 3 * d->kda_all,
                                .b = 6 * d->kda_all,
                                .size = 6 * d->kda_all + (uint32_t)pad16(m->kda_heads)};
    for (uint32_t i = 0; i < kern_total_layers(m); i++) {
        struct cpu_layer *x = &l->layer[i];
        if (m->layer[i].mix == KERN_MIX_KDA) {
            uint64_t state = (uint64_t)d->kda_all * d->kda_dim, win = (m->conv_width - 1) * 3ull * d->kda_all;
            x->slot = take(&slot, (state + win) * sizeof(float));
        } else {
            x->page = take(&page, KERN_PAGE_TOKENS * l->latent_bytes);
            if (m->layer[i].index == KERN_INDEX_FULL) {
                take(&page, KERN_PAGE_TOKENS / m->index_kpool * l->key_bytes);
                if (m->index_kpool > 1)
                    x->slot = take(&slot, (uint64_t)KERN_TAIL_RING * 2 * d->idx_dim * sizeof(float));
            }
        }
    }
    l->slot_bytes = slot;
    for (uint32_t i = 0; i < kern_total_layers(m); i++)
        if (m->layer[i].mix == KERN_MIX_KDA)
            l->layer[i].pend = take(&slot, (uint64_t)KERN_MAX_WINDOW * l->pend.size * sizeof(float));
    l->slot_stride = slot ? slot : 64; /* never 0: whoever divides memory by slots or pages finds something */
    l->page_bytes = page ? page : 64;
}

static uint64_t max64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void layout_lane(const struct kern_config *cfg, const struct cpu_dims *d, uint64_t rows,
                        struct cpu_lane_layout *x) {
    const struct kern_model_desc *m = &cfg->model;
    uint64_t at = 0, f = sizeof(float);
    x->streams = take(&at, rows * d->hc * d->e * f);
    x->plain = take(&at, m->n_draft ? rows * d->e * f : 0);
    x->u = take(&at, rows * d->e * f);
    x->y = take(&at, rows * d->e * f);
    x->z = take(&at, rows * max64(d->kda_z, d->mla_z) * f);
    x->hc_mix = take(&at, rows * pad16(d->hc_rows + 1ull) * f);
    x->hc_coef = take(&at, rows * (d->hc + (uint64_t)d->hc * d->hc) * f);
    x->wide = take(&at, rows * max64(d->cq_n, 2 * max64(d->dense, d->shared)) * f);
    x->qa = take(&at, rows * d->qa_all * f);
    x->attn_out = take(&at, rows * max64(d->kda_all, d->v_all) * f);
    x->sel = take(&at, rows * d->sel * sizeof(uint32_t));
    x->n_sel = take(&at, rows * sizeof(uint32_t));
    x->act = take(&at, rows * max64(d->dense, d->shared) * f);
    x->router = take(&at, rows * m->n_experts * f);
    x->top_id = take(&at, rows * m->n_top * sizeof(uint32_t));
    x->top_w = take(&at, rows * m->n_top * f);
    x->expert_act = take(&at, rows * m->n_top * 3 * d->expert * f);
    x->hidden = take(&at, rows * d->e * f);
    x->draft = take(&at, m->n_draft ? rows * d->e * f : 0);
    x->gather = take(&at, (uint64_t)cfg->max_samples * d->e * f);
    x->eh_in = take(&at, m->n_draft ? rows * 2 * d->e * f : 0);
    x->logits = take(&at, (uint64_t)cfg->max_samples * d->logits * f);
    x->logits_at = take(&at, cfg->max_samples * (uint64_t)sizeof(uint32_t));
    x->turn = take(&at, rows * m->rope_dim * f);
    x->plan_rows =
        take(&at, 2 * (cfg->max_seqs * (uint64_t)sizeof(struct cpu_seq) + 3 * rows * sizeof(uint32_t)));
    x->bytes = at;
}

/* Floats of one member's scratch: the largest of what the stages ask for. */
static uint64_t scratch_floats(const struct kern_config *cfg, uint32_t vocab_rows, const struct cpu_dims *d) {
    uint64_t n = pad16(cpu_kda_scratch(d->kda_dim)) + cpu_kda_gates(d->kda_dim);
    n = max64(n, cpu_attn_scratch(d->lat));
    /* scores and ranks of all pools, widened keys */
    n = max64(n, pad16(d->max_pools) * 3 + CPU_KEY_TILE * (uint64_t)d->idx_dim);
    n = max64(n, CPU_ROW_BLOCK * 128ull);                  /* an expert's share of the output */
    /* scores, biased scores and ranks of the experts */
    n = max64(n, 2 * pad16(cfg->model.n_experts) + 2 * (uint64_t)cfg->model.n_experts);
    n = max64(n, (host_sample_scratch(vocab_rows) + 3) / 4 + 16);
    return pad16(n);
}

void cpu_layout(const struct kern_config *cfg, uint32_t vocab_rows, uint32_t threads, struct cpu_seg *segs,
                struct cpu_layout *l) {
    memset(l, 0, sizeof(*l));
    l->seg = segs;
    layout_dims(cfg, vocab_rows, &l->d);
    layout_weights(cfg, l);
    layout_state(cfg, l);
    uint64_t at = 0, most = 0;
    for (int i = 0; i < KERN_LANES; i++) {
        layout_lane(cfg, &l->d, cfg->max_rows[i], &l->lane[i]);
        l->lane_at[i] = take(&at, l->lane[i].bytes);
        most = max64(most, cfg->max_rows[i]);
    }
    l->thread_group = scratch_floats(cfg, vocab_rows, &l->d) * sizeof(float);
    l->thread_room = (l->thread_group + cpu_expert_group_words(cfg, (uint32_t)most) * 4 + 127) & ~127ull;
    l->thread_bytes = l->thread_room + (l->n_segs ? CPU_PACKED_ROOM * sizeof(float) : 0);
    l->thread_at = (at + 127) & ~127ull;
    l->work_bytes = l->thread_at + threads * l->thread_bytes;
}
