/* SPDX-License-Identifier: MIT */
/* MLA, absorbed form, over the paged latent cache; rotary numbers lie behind each latent, shared by all heads. Each
 * row reads the rows its selection names and no others; the counters prove it. */
#include <math.h>

#include "ref.h"

void *ref_page(const struct ref_ctx *x, const struct kern_seq *s, uint32_t pos) {
    return x->r->pages + host_page(x->p, s, pos) * x->r->page_bytes;
}

void ref_store_row(const struct ref *r, void *at, const float *x, uint32_t n) {
    uint16_t *half = at;
    uint8_t *codes = at;
    uint32_t top = 0;
    if (r->k->cfg.cache == KERN_CACHE_F32) {
        memcpy(at, x, n * sizeof(float));
        return;
    }
    for (uint32_t i = 0; i < n && r->k->cfg.cache == KERN_CACHE_BF16; i++)
        half[i] = host_bf16(x[i]);
    if (r->k->cfg.cache != KERN_CACHE_FP8)
        return;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof(u));
        u &= 0x7fffffff;
        top = u > top ? u : top;
    }
    float scale = host_fp8_scale(top);
    for (uint32_t i = 0; i < n; i++)
        codes[i] = host_e4m3(x[i] / scale);
    memcpy(codes + host_fp8_at(n), &scale, sizeof(scale));
}

const float *ref_load_row(const struct ref *r, const void *at, uint32_t n, float *buf) {
    const uint16_t *half = at;
    const uint8_t *codes = at;
    float scale;
    if (r->k->cfg.cache == KERN_CACHE_F32)
        return at;
    if (r->k->cfg.cache == KERN_CACHE_BF16) {
        for (uint32_t i = 0; i < n; i++)
            buf[i] = host_f32(half[i]);
        return buf;
    }
    memcpy(&scale, codes + host_fp8_at(n), sizeof(scale));
    if (FAULT(fp8_exponent_only))
        scale = exp2f(floorf(log2f(scale)));
    for (uint32_t i = 0; i < n; i++)
        buf[i] = host_e4m3_f32(codes[i]) * scale;
    return buf;
}

static char *latent_at(const struct ref_ctx *x, const struct kern_seq *s, uint32_t pos) {
    return (char *)ref_page(x, s, pos) + x->r->latent_at[x->layer] + pos % KERN_PAGE_TOKENS * x->r->latent_bytes;
}

/* c: the normalised latent, then the rotary numbers. */
static void store_latent(struct ref_ctx *x, const struct kern_seq *s, uint32_t pos, const float *c) {
    const uint32_t rank = x->r->m->kv_rank, rope = x->r->m->rope_dim, cache = x->r->k->cfg.cache;
    char *at = latent_at(x, s, pos), *turned = at + host_rope_at(cache, rank);
    ref_store_row(x->r, at, c, rank);
    for (uint32_t i = 0; i < rope; i++) {
        uint16_t half = host_bf16(c[rank + i]);
        if (cache == KERN_CACHE_F32)
            memcpy(turned + 4ull * i, &c[rank + i], 4);
        else
            memcpy(turned + 2ull * i, &half, 2);
    }
}

/* The latent of a position as F32: in place, or widened into buf. */
static const float *load_latent(struct ref_ctx *x, const struct kern_seq *s, uint32_t pos, float *buf) {
    const uint32_t rank = x->r->m->kv_rank, rope = x->r->m->rope_dim, cache = x->r->k->cfg.cache;
    const char *at = latent_at(x, s, pos), *turned = at + host_rope_at(cache, rank);
    const float *c = ref_load_row(x->r, at, rank, buf);
    for (uint32_t i = 0; i < rope && cache != KERN_CACHE_F32; i++) {
        uint16_t half;
        memcpy(&half, turned + 2ull * i, 2);
        buf[rank + i] = host_f32(half);
    }
    return c;
}

/* Narrower caches have no more digits than BF16 before their factor. */
static const float *stored_input(struct ref_ctx *x, const float *row, uint64_t n) {
    return x->r->k->cfg.cache == KERN_CACHE_F32 ? ref_input(x->r, row, n) : row;
}

/* ---- the positions a row attends to, in ascending order ---- */

struct walk {
    const uint32_t *pools; /* NULL: everything */
    uint32_t n_pools, kpool, tail, end;
    uint32_t n; /* positions in all */
};

static struct walk walk_of(const struct ref_ctx *x, uint32_t row, uint32_t pos) {
    const struct kern_model_desc *m = x->r->m;
    uint32_t index = m->layer[x->layer].index;
    if (index == KERN_INDEX_SHARED && FAULT(shared_sees_all))
        index = KERN_INDEX_NONE;
    if (index == KERN_INDEX_NONE || x->l->sel_n[row] == REF_ALL)
        return (struct walk){.kpool = 1, .end = pos + 1, .n = pos + 1};
    struct walk w = {.pools = x->l->sel + row * (uint64_t)(m->index_topk / m->index_kpool),
                     .n_pools = x->l->sel_n[row],
                     .kpool = m->index_kpool,
                     .end = pos + 1};
    w.tail = (pos + 1) / w.kpool * w.kpool;
    if (FAULT(pool_tail) && w.tail < w.end)
        w.tail++;
    w.n = w.n_pools * w.kpool + (w.end - w.tail);
    return w;
}

static uint32_t walk_pos(const struct walk *w, uint32_t i) {
    if (!w->pools)
        return i;
    if (i < w->n_pools * w->kpool)
        return w->pools[i / w->kpool] * w->kpool + i % w->kpool;
    return w->tail + (i - w->n_pools * w->kpool);
}

/* acc = the key half of kv_b, transposed, times a head's query. */
static void absorb_query(struct ref_ctx *x, uint32_t head, const float *q, double *acc) {
    const struct kern_model_desc *m = x->r->m;
    const uint32_t rank = m->kv_rank, nope = m->nope_dim;
    if (m->layer[x->layer].kvb_split) {
        for (uint32_t c = 0; c < rank; c++)
            acc[c] = ref_dot(ref_row(x->r, KERN_MLA_KB, x->layer, 0, (uint64_t)head * rank + c), q, nope);
        return;
    }
    for (uint32_t c = 0; c < rank; c++)
        acc[c] = 0;
    for (uint32_t d = 0; d < nope; d++) {
        const float *w = ref_row(x->r, KERN_MLA_KVB, x->layer, 0, (uint64_t)head * (nope + m->v_dim) + d);
        for (uint32_t c = 0; c < rank; c++)
            acc[c] += (double)q[d] * (double)w[c];
    }
}

/* Row d of a head's half of kv_b that makes values. */
static const float *value_row(struct ref_ctx *x, uint32_t head, uint32_t d) {
    const struct kern_model_desc *m = x->r->m;
    if (m->layer[x->layer].kvb_split)
        return ref_row(x->r, KERN_MLA_VB, x->layer, 0, (uint64_t)head * m->v_dim + d);
    return ref_row(x->r, KERN_MLA_KVB, x->layer, 0, (uint64_t)head * (m->nope_dim + m->v_dim) + m->nope_dim + d);
}

static void attend_head(struct ref_ctx *x, const struct kern_seq *s, const struct walk *w, uint32_t head,
                        const float *q, float *out) {
    const struct kern_model_desc *m = x->r->m;
    const uint32_t rank = m->kv_rank, width = rank + m->rope_dim;
    float *qa = x->r->tmp[2], *mean = x->r->tmp[3], *buf = x->r->tmp[0];
    double *score = x->r->scores, *acc = x->r->acc, top = -INFINITY, sum = 0;
    const double scale = sqrt((double)m->nope_dim + m->rope_dim);
    absorb_query(x, head, ref_input(x->r, q, m->nope_dim), acc);
    for (uint32_t c = 0; c < rank; c++) {
        qa[c] = (float)acc[c];
        acc[c] = 0;
    }
    for (uint32_t i = 0; i < m->rope_dim; i++)
        qa[rank + i] = q[m->nope_dim + i];
    memmove(qa, ref_input(x->r, qa, width), width * sizeof(float));
    for (uint32_t i = 0; i < w->n; i++) {
        score[i] = ref_dot(stored_input(x, load_latent(x, s, walk_pos(w, i), buf), width), qa, width) / scale;
        top = fmax(top, score[i]);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        const float *c = stored_input(x, load_latent(x, s, walk_pos(w, i), buf), rank);
        double p = exp(score[i] - top);
        sum += p;
        if (x->r->rounded) /* also weights are an input of tensor cores */
            p = (double)host_f32(host_bf16((float)p));
        for (uint32_t j = 0; j < rank; j++)
            acc[j] += p * (double)c[j];
    }
    for (uint32_t j = 0; j < rank; j++)
        mean[j] = (float)(acc[j] / sum);
    const float *attended = ref_input(x->r, mean, rank);
    for (uint32_t d = 0; d < m->v_dim; d++)
        out[d] = (float)ref_dot(value_row(x, head, d), attended, rank);
}

static void attend(struct ref_ctx *x, const struct kern_seq *s, uint32_t i) {
    const struct kern_model_desc *m = x->r->m;
    const uint32_t row = s->row0 + i, pos = s->pos0 + i;
    float *q = x->r->tmp[1], *out = x->r->attn;
    const struct walk w = walk_of(x, row, pos);
    x->c->latent_rows += w.n;
    x->c->cache_bytes += w.n * x->r->latent_bytes;
    ref_linear(x, KERN_MLA_QB, 0, x->l->cq + row * (uint64_t)m->q_rank, q);
    for (uint32_t h = 0; h < m->mla_heads; h++) {
        float *own = q + h * (m->nope_dim + m->rope_dim);
        ref_rope(m, own + m->nope_dim, pos);
        attend_head(x, s, &w, h, own, out + h * m->v_dim);
    }
    x->c->flops += 2ull * m->mla_heads * (m->nope_dim + m->v_dim) * m->kv_rank;
    ref_linear(x, KERN_MLA_O, 0, out, x->l->y + (uint64_t)row * m->hidden);
}

int ref_mla(struct ref_ctx *x) {
    const struct kern_model_desc *m = x->r->m;
    const float *kv_norm = ref_vector(x->r, KERN_MLA_KVA_NORM, x->layer);
    const float *q_norm = ref_vector(x->r, KERN_MLA_QA_NORM, x->layer);
    bool used = false;
    int r = 0;
    for (uint32_t i = 0; !r && i < x->p->n_seqs; i++) {
        const struct kern_seq *s = &plan_seqs(x->p)[i];
        const uint32_t n = ref_seq_rows(x, s);
        for (uint32_t j = 0; j < n; j++) {
            const float *u = x->l->x + (s->row0 + j) * (uint64_t)m->hidden;
            float *cq = x->l->cq + (s->row0 + j) * (uint64_t)m->q_rank, *c = x->r->tmp[0];
            ref_linear(x, KERN_MLA_QA, 0, u, cq);
            ref_rmsnorm(cq, q_norm, m->q_rank, m->rms_eps, cq);
            ref_linear(x, KERN_MLA_KVA, 0, u, c);
            /* the rotary numbers behind the latent have no norm */
            ref_rmsnorm(c, kv_norm, m->kv_rank + (FAULT(norm_over_rope) ? m->rope_dim : 0), m->rms_eps, c);
            ref_rope(m, c + m->kv_rank, s->pos0 + j);
            store_latent(x, s, s->pos0 + j, c);
        }
        if (m->layer[x->layer].index == KERN_INDEX_FULL)
            r = ref_index(x, s);
        for (uint32_t j = 0; !r && j < n; j++)
            attend(x, s, j);
        used |= n > 0;
    }
    for (uint32_t part = KERN_MLA_QA; part <= KERN_IDX_GATE && used; part++)
        ref_count(x, part, x->layer);
    for (uint32_t part = KERN_MLA_KB; part <= KERN_MLA_VB && used; part++)
        ref_count(x, part, x->layer);
    return r;
}
