/* SPDX-License-Identifier: MIT */
/* The indexer: keys of pools, or of single tokens where a pool holds one; those need no ring and no gate. Raw keys
 * and gates of the newest positions live in the slot's ring, a pool's key in the page of its tokens. A pool is written
 * whenever the row that completes it runs, so what a rejected draft left behind is replaced before anybody may see it:
 * visibility is by position. */
#include <math.h>

#include "ref.h"

/* Raw key (gate: + index_dim) of a position: from this step's rows, or from the ring. */
static const float *raw_at(const struct ref_ctx *x, const struct kern_seq *s, uint32_t pos) {
    const uint64_t two = 2 * (uint64_t)x->r->m->index_dim;
    if (pos >= s->pos0)
        return x->l->kraw + (s->row0 + (pos - s->pos0)) * two;
    const float *ring =
        (const float *)(const void *)(x->r->slots + s->slot * x->r->slot_bytes + x->r->ring_at[x->layer]);
    return ring + pos % KERN_TAIL_RING * two;
}

static void key_and_gate(struct ref_ctx *x, uint32_t row, uint32_t pos) {
    const struct kern_model_desc *m = x->r->m;
    const uint32_t n = m->index_dim;
    const float *u = x->l->x + (uint64_t)row * m->hidden;
    const float *w = ref_vector(x->r, KERN_IDX_KNORM_W, x->layer),
                *b = ref_vector(x->r, KERN_IDX_KNORM_B, x->layer);
    float *k = x->l->kraw + row * 2ull * n;
    ref_linear(x, KERN_IDX_K, 0, u, k);
    double mean = 0, var = 0;
    for (uint32_t c = 0; c < n; c++)
        mean += (double)k[c];
    mean /= n;
    for (uint32_t c = 0; c < n; c++)
        var += ((double)k[c] - mean) * ((double)k[c] - mean);
    double scale = 1.0 / sqrt(var / n + 1e-6);
    for (uint32_t c = 0; c < n; c++)
        k[c] = (float)(((double)k[c] - mean) * scale * (double)w[c] + (double)b[c]);
    ref_rope(m, FAULT(index_rope_last) ? k + n - m->rope_dim : k, pos);
    if (m->index_kpool > 1)
        ref_linear(x, KERN_IDX_GATE, 0, u, k + n);
    else
        memset(k + n, 0, n * sizeof(*k));
}

static char *pool_key(const struct ref_ctx *x, const struct kern_seq *s, uint32_t pool) {
    const struct kern_model_desc *m = x->r->m;
    uint32_t pos = pool * m->index_kpool;
    return (char *)ref_page(x, s, pos) + x->r->pooled_at[x->layer] +
           pos % KERN_PAGE_TOKENS / m->index_kpool * x->r->key_bytes;
}

static void make_pool(struct ref_ctx *x, const struct kern_seq *s, uint32_t pool) {
    const struct kern_model_desc *m = x->r->m;
    const uint32_t n = m->index_dim, kp = m->index_kpool;
    const float *ape = kp > 1 ? ref_vector(x->r, KERN_IDX_APE, x->layer) : NULL;
    float *out = x->r->tmp[0];
    for (uint32_t c = 0; c < n; c++) {
        double w[KERN_MAX_KPOOL], top = -INFINITY, sum = 0, mean = 0;
        for (uint32_t j = 0; j < kp; j++) {
            w[j] = (double)raw_at(x, s, pool * kp + j)[n + c];
            if (ape && !FAULT(ape_after))
                w[j] += (double)ape[j * n + c];
            top = fmax(top, w[j]);
        }
        for (uint32_t j = 0; j < kp; j++)
            sum += w[j] = exp(w[j] - top);
        for (uint32_t j = 0; j < kp; j++) {
            double share = w[j] / sum;
            if (ape && FAULT(ape_after))
                share += (double)ape[j * n + c];
            mean += share * (double)raw_at(x, s, pool * kp + j)[c];
        }
        out[c] = (float)mean;
    }
    ref_store_row(x->r, pool_key(x, s, pool), out, n);
}

/* ---- selection ---- */

/* Is pool a worse than pool b? Smaller score, or the larger id at equal scores (-0 equals +0). */
static bool worse(const double *score, uint32_t a, uint32_t b) {
    return score[a] < score[b] || (score[a] == score[b] && a > b);
}

static void sink(const double *score, uint32_t *heap, uint32_t at, uint32_t n) {
    uint32_t v = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && worse(score, heap[child + 1], heap[child]))
            child++;
        if (!worse(score, heap[child], v))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = v;
}

/* The k best of n pools, ascending: a heap with the worst of them on top. */
static void best_pools(const double *score, uint32_t n, uint32_t k, uint32_t *heap, uint32_t *ret) {
    for (uint32_t i = 0; i < k; i++)
        heap[i] = i;
    for (uint32_t i = k / 2; i-- > 0;)
        sink(score, heap, i, k);
    for (uint32_t i = k; i < n; i++)
        if (worse(score, heap[0], i)) {
            heap[0] = i;
            sink(score, heap, 0, k);
        }
    /* ids leave in score order; place them by insertion, k is small */
    for (uint32_t i = 0; i < k; i++) {
        uint32_t at = i;
        for (; at > 0 && ret[at - 1] > heap[i]; at--)
            ret[at] = ret[at - 1];
        ret[at] = heap[i];
    }
}

static void select_row(struct ref_ctx *x, const struct kern_seq *s, uint32_t i) {
    const struct kern_model_desc *m = x->r->m;
    const uint32_t row = s->row0 + i, n = m->index_dim, visible = s->pos0 + i + 1;
    const uint32_t pools = visible / m->index_kpool, want = m->index_topk / m->index_kpool;
    float *omega = x->r->tmp[0], *q = x->r->tmp[1], *buf = x->r->tmp[2];
    if (pools <= want) {
        x->l->sel_n[row] = REF_ALL;
        return;
    }
    ref_linear(x, KERN_IDX_QB, 0, x->l->cq + row * (uint64_t)m->q_rank, q);
    ref_linear(x, KERN_IDX_W, 0, x->l->x + (uint64_t)row * m->hidden, omega);
    for (uint32_t h = 0; h < m->index_heads; h++)
        ref_rope(m, q + (uint64_t)h * n + (FAULT(index_rope_last) ? n - m->rope_dim : 0), s->pos0 + i);
    memmove(q, ref_input(x->r, q, (uint64_t)m->index_heads * n), (uint64_t)m->index_heads * n * sizeof(float));
    for (uint32_t p = 0; p < pools; p++) {
        double sum = 0;
        const float *key = ref_load_row(x->r, pool_key(x, s, p), n, buf);
        if (x->r->k->cfg.cache == KERN_CACHE_F32)
            key = ref_input(x->r, key, n);
        for (uint32_t h = 0; h < m->index_heads; h++) {
            double dot = ref_dot(q + h * n, key, n);
            if (dot > 0)
                sum += (double)omega[h] * dot;
        }
        /* the two positive scales, 1/sqrt(dim) and 1/sqrt(heads), do not change the order */
        x->r->scores[p] = sum;
    }
    x->c->pooled_keys += pools;
    x->c->cache_bytes += pools * x->r->key_bytes;
    best_pools(x->r->scores, pools, want, x->r->heap, x->l->sel + row * (uint64_t)want);
    x->l->sel_n[row] = want;
}

/* A prompt's rows are shared among the ranks, each of which has the whole indexer: a rank selects for its own and
 * learns the others'. Where all rows see everything there is nothing to tell. */
static int select_shared(struct ref_ctx *x, const struct kern_seq *s, uint32_t rows) {
    const struct kern_config *c = &x->r->k->cfg;
    const uint32_t want = x->r->m->index_topk / x->r->m->index_kpool, words = want + 1;
    const void *part[COMM_MAX_RANKS];
    if ((s->pos0 + rows) / x->r->m->index_kpool <= want) {
        for (uint32_t i = 0; i < rows; i++)
            x->l->sel_n[s->row0 + i] = REF_ALL;
        return 0;
    }
    uint32_t *own = kern_part_slot_of(x->r->k), lo = (uint32_t)((uint64_t)rows * c->rank / c->n_ranks),
             hi = (uint32_t)((uint64_t)rows * (c->rank + 1) / c->n_ranks);
    for (uint32_t i = lo; i < hi; i++, own += words) {
        const uint64_t row = s->row0 + i;
        select_row(x, s, i);
        own[0] = x->l->sel_n[row];
        if (own[0] != REF_ALL)
            memcpy(own + 1, x->l->sel + row * want, want * sizeof(*own));
    }
    int r = kern_exchange(x->r->k, x->p->lane, x->stage, (uint64_t)(hi - lo) * words * sizeof(*own), part);
    for (uint32_t rank = 0, i = 0; !r && rank < c->n_ranks; rank++)
        for (const uint32_t *from = part[rank]; i < (uint64_t)rows * (rank + 1) / c->n_ranks; i++, from += words) {
            x->l->sel_n[s->row0 + i] = from[0];
            if (from[0] != REF_ALL)
                memcpy(x->l->sel + (s->row0 + i) * (uint64_t)want, from + 1, want * sizeof(*from));
        }
    return r;
}

int ref_index(struct ref_ctx *x, const struct kern_seq *s) {
    const struct kern_model_desc *m = x->r->m;
    const uint32_t rows = ref_seq_rows(x, s), kp = m->index_kpool;
    const uint64_t two = 2 * (uint64_t)m->index_dim;
    float *ring = (float *)(void *)(x->r->slots + s->slot * x->r->slot_bytes + x->r->ring_at[x->layer]);
    for (uint32_t i = 0; i < rows; i++)
        key_and_gate(x, s->row0 + i, s->pos0 + i);
    for (uint32_t i = 0; i < rows; i++)
        if ((s->pos0 + i + 1) % kp == 0)
            make_pool(x, s, (s->pos0 + i) / kp);
    /* only now: pools may still have needed what the ring held */
    for (uint32_t i = rows > KERN_TAIL_RING ? rows - KERN_TAIL_RING : 0; i < rows && kp > 1; i++)
        memcpy(ring + (s->pos0 + i) % KERN_TAIL_RING * two, x->l->kraw + (s->row0 + i) * two,
               two * sizeof(float));
    if (kern_is_cut(x->r->k) && (s->flags & KERN_SEQ_PREFILL))
        return select_shared(x, s, rows);
    for (uint32_t i = 0; i < rows; i++)
        select_row(x, s, i);
    return 0;
}
