/* SPDX-License-Identifier: MIT */
/* cpu_mla.c: the MLA sub-layer in absorbed form: latents and pooled index keys into their pages, selection,
 * attention over the selected latents only. Rotary numbers stand behind each latent and behind each head's query.
 *
 * What a row sees is decided by its position alone: pools whose last token is at or before it, and the tail.
 * Raw keys and gates of the last KERN_TAIL_RING positions stay in the slot, so a pool can be built again when
 * a later step covers its positions once more. */
#include "cpu.h"
#include "host.h"

#include <math.h>

static float *z_row(const struct cpu_run *r, uint32_t row) {
    return r->lane->z + (uint64_t)row * r->c->l.d.mla_z;
}

static char *latent_at(const struct cpu_run *r, const struct cpu_layer *l, const struct cpu_seq *s,
                       uint32_t pos) {
    const struct cpu_layout *y = &r->c->l;
    return r->c->pages + s->pages[pos / KERN_PAGE_TOKENS] * y->page_bytes + l->page +
           pos % KERN_PAGE_TOKENS * y->latent_bytes;
}

static char *pool_at(const struct cpu_run *r, const struct cpu_layer *l, const struct cpu_seq *s,
                     uint32_t pool) {
    const struct cpu_layout *y = &r->c->l;
    uint32_t per = KERN_PAGE_TOKENS / r->c->k->cfg.model.index_kpool;
    return r->c->pages + s->pages[pool / per] * y->page_bytes + l->page + KERN_PAGE_TOKENS * y->latent_bytes +
           pool % per * y->key_bytes;
}

static void store_row(const struct cpu_run *r, char *at, const float *x, uint32_t n) {
    switch (r->c->k->cfg.cache) {
    case KERN_CACHE_FP8:
        r->ops->narrow8((uint8_t *)at, x, n);
        break;
    case KERN_CACHE_BF16:
        r->ops->narrow((uint16_t *)(void *)at, x, n);
        break;
    default:
        memcpy(at, x, n * sizeof(float));
    }
}

/* A stored row as floats: itself, or widened into tmp. */
static const float *load_row(const struct cpu_run *r, const char *at, float *tmp, uint32_t n) {
    switch (r->c->k->cfg.cache) {
    case KERN_CACHE_FP8:
        r->ops->widen8(tmp, (const uint8_t *)at, n);
        return tmp;
    case KERN_CACHE_BF16:
        r->ops->widen(tmp, (const uint16_t *)(const void *)at, n);
        return tmp;
    default:
        return (const float *)(const void *)at;
    }
}

/* The latent and its rotary numbers of plan row `row`, from kv_a's product, to their page. */
static void keep_latent(struct cpu_run *r, const struct cpu_layer *l, const struct cpu_seq *s, uint32_t pos,
                        uint32_t row, float *kv) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const uint32_t cache = r->c->k->cfg.cache;
    char *at = latent_at(r, l, s, pos), *turned_at = at + host_rope_at(cache, d->kv_rank);
    float *turned = r->scratch;
    uint32_t n = m->kv_rank;
    if (m->rope_dim) {
        memset(turned, 0, d->rope * sizeof(float));
        cpu_rope_turn(r, row, kv + m->kv_rank, turned);
        if (FAULT(cpu_norm_over_rope))
            n += m->rope_dim;
        else
            memset(kv + m->kv_rank, 0, (d->kv_rank - m->kv_rank) * sizeof(float));
    }
    r->ops->rms(kv, kv, cpu_vec(r, l->kva_norm), (uint32_t)pad16(n), n, m->rms_eps);
    store_row(r, at, kv, d->kv_rank);
    if (m->rope_dim && cache == KERN_CACHE_F32)
        memcpy(turned_at, turned, d->rope * sizeof(float));
    else if (m->rope_dim)
        r->ops->narrow((uint16_t *)(void *)turned_at, turned, d->rope);
}

/* A stored latent and its rotary numbers as floats. */
static const float *load_latent(const struct cpu_run *r, const char *at, float *tmp) {
    const struct cpu_dims *d = &r->c->l.d;
    if (r->c->k->cfg.cache != KERN_CACHE_FP8)
        return load_row(r, at, tmp, d->lat); /* they lie one behind the other */
    r->ops->widen8(tmp, (const uint8_t *)at, d->kv_rank);
    if (d->rope)
        r->ops->widen(tmp + d->kv_rank,
                      (const uint16_t *)(const void *)(at + host_rope_at(KERN_CACHE_FP8, d->kv_rank)), d->rope);
    return tmp;
}

/* Norms of the projections; the latent goes to its page. */
static void norms(struct cpu_run *r, const struct cpu_layer *l, const struct cpu_rows *rows, bool index) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    for (uint32_t i = share_lo(r, rows->n), hi = share_hi(r, rows->n); i < hi; i++) {
        float *z = z_row(r, i);
        r->ops->rms(z, z, cpu_vec(r, l->qa_norm), d->q_rank, m->q_rank, m->rms_eps);
        keep_latent(r, l, &rows->seq[rows->seq_of[i]], rows->pos[i], rows->row[i], z + d->z_kv);
        if (!index)
            continue;
        float *key = z + d->z_key;
        r->ops->layer_norm(key, key, cpu_vec(r, l->knorm_w), cpu_vec(r, l->knorm_b), m->index_dim, 1e-6f);
        if (FAULT(cpu_index_rope_last))
            key += m->index_dim - m->rope_dim;
        cpu_rope_turn(r, rows->row[i], key, key);
    }
}

/* The rotary numbers of the queries behind where their absorbed parts go, and the indexer's queries in place. */
static void turn_queries(struct cpu_run *r, const struct cpu_rows *rows, bool index) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const uint32_t heads = m->mla_heads, per = heads + (index ? m->index_heads : 0), n = rows->n * per;
    for (uint32_t u = share_lo(r, n), hi = share_hi(r, n); u < hi; u++) {
        const uint32_t i = u / per, h = u % per;
        float *q = r->lane->wide + (uint64_t)i * d->cq_n;
        if (h < heads) {
            float *to = r->lane->qa + (uint64_t)i * d->qa_all + (uint64_t)h * d->lat + d->kv_rank;
            memset(to + m->rope_dim, 0, (d->rope - m->rope_dim) * sizeof(float));
            cpu_rope_turn(r, rows->row[i], q + (uint64_t)h * d->q_head + m->nope_dim, to);
        } else {
            q += d->q_all + (uint64_t)(h - heads) * d->idx_dim;
            if (FAULT(cpu_index_rope_last))
                q += m->index_dim - m->rope_dim;
            cpu_rope_turn(r, rows->row[i], q, q);
        }
    }
}

/* ---- pooled keys ----------------------------------------------------------------------------------------
 */

static float *ring_at(const struct cpu_run *r, const struct cpu_layer *l, const struct cpu_seq *s,
                      uint32_t pos) {
    return (float *)(void *)slot_at(r, s->slot, l->slot) +
           (size_t)(pos % KERN_TAIL_RING) * 2 * r->c->l.d.idx_dim;
}

/* The pool that ends at row i, channels c .. c+n-1: raw keys and gates from this step's rows or from the ring.
 */
static void build_pool(const struct cpu_run *r, const struct cpu_layer *l, const struct cpu_seq *s,
                       uint32_t pos, uint32_t c, uint32_t n) {
    const struct cpu_dims *d = &r->c->l.d;
    uint32_t kpool = r->c->k->cfg.model.index_kpool, p0 = pos + 1 - kpool;
    const float *key[KERN_MAX_KPOOL] = {NULL}, *gate[KERN_MAX_KPOOL] = {NULL};
    const float *out = r->scratch;
    for (uint32_t j = 0; j < kpool; j++) {
        if (p0 + j >= s->pos0) {
            const float *z = z_row(r, s->row0 + p0 + j - s->pos0);
            key[j] = z + d->z_key + c;
            gate[j] = z + d->z_gate + c;
        } else {
            const float *ring = ring_at(r, l, s, p0 + j);
            key[j] = ring + c;
            gate[j] = ring + d->idx_dim + c;
        }
    }
    if (kpool > 1)
        r->ops->pool(r->scratch, key, gate, cpu_vec(r, l->ape) + c, d->idx_dim, kpool, n);
    else
        out = key[0];
    store_row(r, pool_at(r, l, s, pos / kpool) + c * (r->c->k->cfg.cache == KERN_CACHE_BF16 ? 2ull : 4ull), out, n);
}

/* Members share sequences and slices of 16 channels, or whole rows where they have one factor; a slice's pools are
 * read before its ring is overwritten. */
static void pools(struct cpu_run *r, const struct cpu_layer *l, const struct cpu_rows *rows) {
    const struct cpu_dims *d = &r->c->l.d;
    uint32_t kpool = r->c->k->cfg.model.index_kpool;
    uint32_t width = r->c->k->cfg.cache == KERN_CACHE_FP8 ? d->idx_dim : 16, slices = d->idx_dim / width;
    uint32_t n = rows->n_seqs * slices;
    for (uint32_t u = share_lo(r, n), hi = share_hi(r, n); u < hi; u++) {
        const struct cpu_seq *s = &rows->seq[u / slices];
        uint32_t c = u % slices * width;
        for (uint32_t i = 0; i < s->n_rows; i++)
            if ((s->pos0 + i + 1) % kpool == 0)
                build_pool(r, l, s, s->pos0 + i, c, width);
        uint32_t i = s->n_rows > KERN_TAIL_RING ? s->n_rows - KERN_TAIL_RING : 0;
        for (; i < s->n_rows && kpool > 1; i++) {
            const float *z = z_row(r, s->row0 + i);
            float *ring = ring_at(r, l, s, s->pos0 + i);
            memcpy(ring + c, z + d->z_key + c, width * sizeof(float));
            memcpy(ring + d->idx_dim + c, z + d->z_gate + c, width * sizeof(float));
        }
    }
}

/* ---- selection ------------------------------------------------------------------------------------------
 */

/* Pools a row may choose from, and whether it has to choose at all. */
static uint32_t visible_pools(const struct cpu_run *r, uint32_t pos) {
    return (pos + 1) / r->c->k->cfg.model.index_kpool;
}

/* A member's room for one row: scores of all pools, widened keys, ranks. */
struct select_room {
    float *score, *keys;
    uint64_t *rank;
};

static struct select_room room_of(const struct cpu_run *r, uint32_t member) {
    const struct cpu_dims *d = &r->c->l.d;
    float *f = cpu_scratch(r->c, member);
    return (struct select_room){
        .score = f,
        .keys = f + pad16(d->max_pools),
        .rank = (uint64_t *)(void *)(f + pad16(d->max_pools) + CPU_KEY_TILE * (size_t)d->idx_dim)};
}

/* Scores of pools p0 .. p1-1 for row i, p0 a multiple of the tile. */
static void score_pools(struct cpu_run *r, const struct cpu_layer *l, const struct cpu_rows *rows, uint32_t i,
                        uint32_t p0, uint32_t p1, float *score) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_seq *s = &rows->seq[rows->seq_of[i]];
    float scale = 1.0f / sqrtf((float)m->index_dim) / sqrtf((float)m->index_heads);
    float *tmp = room_of(r, r->me).keys;
    const float *q = r->lane->wide + (uint64_t)i * d->cq_n + d->q_all;
    for (uint32_t p = p0; p < p1; p += CPU_KEY_TILE) {
        uint32_t t = p1 - p < CPU_KEY_TILE ? p1 - p : CPU_KEY_TILE;
        const float *keys[CPU_KEY_TILE];
        for (uint32_t j = 0; j < t; j++)
            keys[j] = load_row(r, pool_at(r, l, s, p + j), tmp + j * (size_t)d->idx_dim, d->idx_dim);
        r->ops->index_scores(score + p, q, d->idx_dim, z_row(r, i) + d->z_w, scale, m->index_heads,
                             d->idx_dim, keys, t);
    }
}

struct span {
    uint32_t lo, hi;
};

/* This member's share of the units of rows all.lo .. all.hi-1, `per` units a row, counted from the first row on: those
 * whose middle lies in this member's part of the sum of all costs. Who does a unit changes little from one step to the
 * next: what a sequence keeps stays in the caches of one member (kernels/NOTES.md). */
static struct span share_by_cost(const struct cpu_run *r, const struct cpu_rows *rows, struct span all, uint32_t per,
                                 uint32_t (*cost)(const struct cpu_run *, const struct cpu_rows *, uint32_t)) {
    struct span own = {0, 0};
    uint64_t total = 0, before = 0;
    for (uint32_t i = all.lo; i < all.hi; i++)
        total += (uint64_t)per * cost(r, rows, i);
    const uint64_t from = 2 * (total * r->me / r->n), to = 2 * (total * (r->me + 1) / r->n);
    for (uint32_t i = all.lo; i < all.hi; i++) {
        const uint32_t c = cost(r, rows, i);
        for (uint32_t u = 0; u < per; u++, before += c) {
            own.lo += 2 * before + c < from;
            own.hi += 2 * before + c < to;
        }
    }
    own.lo += all.lo * per;
    own.hi += all.lo * per;
    return own;
}

/* In positions; what a row costs beside them is about as much as a tile. */
static uint32_t score_cost(const struct cpu_run *r, const struct cpu_rows *rows, uint32_t i) {
    const uint32_t n = visible_pools(r, rows->pos[i]);
    return n > r->c->l.d.sel ? n + CPU_KEY_TILE : 1;
}

/* Keeps the best pools of a row whose scores are in this member's room; KERN_NONE where all of them are seen.
 */
static void keep_best(struct cpu_run *r, const struct cpu_rows *rows, uint32_t i) {
    const struct cpu_dims *d = &r->c->l.d;
    uint32_t n = visible_pools(r, rows->pos[i]);
    struct select_room room = room_of(r, r->me);
    r->lane->n_sel[i] = n > d->sel ? d->sel : KERN_NONE;
    if (n > d->sel)
        host_topk(room.score, n, d->sel, room.rank, r->lane->sel + (uint64_t)i * d->sel);
}

/* A prompt's rows are shared among the ranks, each of which has the whole indexer, where any of them has to choose. */
static bool cut_selection(const struct cpu_run *r, const struct cpu_rows *rows) {
    if (!kern_is_cut(r->c->k) || r->lane_id != KERN_LANE_PREFILL || rows->n < KERN_GRID)
        return false;
    for (uint32_t i = 0; i < rows->n_seqs; i++) {
        const struct cpu_seq *s = &rows->seq[i];
        if (s->n_rows && visible_pools(r, s->pos0 + s->n_rows - 1) > r->c->l.d.sel)
            return true;
    }
    return false;
}

/* Many rows: a member does whole rows. Fewer rows than members: all of them score each row, then one keeps.
 */
static void select_pools(struct cpu_run *r, const struct cpu_layer *l, const struct cpu_rows *rows) {
    const struct cpu_dims *d = &r->c->l.d;
    struct span all = {0, rows->n};
    bool cut = cut_selection(r, rows);
    if (cut) {
        all.lo = cpu_rank_lo(r, rows->n, r->c->k->cfg.rank);
        all.hi = cpu_rank_lo(r, rows->n, r->c->k->cfg.rank + 1);
    }
    if (cut || rows->n >= r->n) {
        const struct span own = share_by_cost(r, rows, all, 1, score_cost);
        for (uint32_t i = own.lo; i < own.hi; i++) {
            uint32_t n = visible_pools(r, rows->pos[i]);
            if (n > d->sel)
                score_pools(r, l, rows, i, 0, n, room_of(r, r->me).score);
            keep_best(r, rows, i);
        }
        return;
    }
    for (uint32_t i = 0; i < rows->n; i++) {
        uint32_t n = visible_pools(r, rows->pos[i]), tiles = (n + CPU_KEY_TILE - 1) / CPU_KEY_TILE;
        uint32_t p0 = share_lo(r, tiles) * CPU_KEY_TILE, p1 = share_hi(r, tiles) * CPU_KEY_TILE;
        if (n > d->sel)
            score_pools(r, l, rows, i, p0, p1 < n ? p1 : n, room_of(r, i).score);
    }
    run_barrier(r);
    if (r->me < rows->n)
        keep_best(r, rows, r->me);
}

static void count_selection(struct cpu_run *r, const struct cpu_rows *rows, uint32_t index) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const bool cut = r->me == 0 && cut_selection(r, rows);
    const uint32_t rank = r->c->k->cfg.rank;
    for (uint32_t i = 0; r->me == 0 && i < rows->n; i++) {
        uint32_t n = rows->pos[i] + 1,
                 pools_seen = index == KERN_INDEX_NONE ? 0 : visible_pools(r, rows->pos[i]);
        bool sparse = pools_seen > d->sel;
        uint64_t latents = sparse ? (uint64_t)d->sel * m->index_kpool + n % m->index_kpool : n;
        bool here = !cut || (i >= cpu_rank_lo(r, rows->n, rank) && i < cpu_rank_lo(r, rows->n, rank + 1));
        uint64_t keys = index == KERN_INDEX_FULL && sparse && here ? pools_seen : 0;
        r->count->latent_rows += latents;
        r->count->pooled_keys += keys;
        r->count->cache_bytes += latents * r->c->l.latent_bytes + keys * r->c->l.key_bytes;
    }
}

/* ---- attention ------------------------------------------------------------------------------------------
 */

/* The positions a row attends to, ascending, handed out tile by tile. */
struct seen {
    const uint32_t *sel; /* NULL: everything */
    uint32_t n_sel, kpool, tail, end, at;
};

static uint32_t seen_next(struct seen *s, uint32_t *pos, uint32_t max) {
    uint32_t n = 0, chosen = s->n_sel * s->kpool;
    for (; n < max && s->at < chosen; s->at++)
        pos[n++] = s->sel[s->at / s->kpool] * s->kpool + s->at % s->kpool;
    for (; n < max && s->at >= chosen && s->tail + (s->at - chosen) < s->end; s->at++)
        pos[n++] = s->tail + (s->at - chosen);
    return n;
}

static void attend(struct cpu_run *r, const struct cpu_layer *l, const struct cpu_rows *rows, uint32_t i,
                   uint32_t head, uint32_t n_heads, bool index) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_seq *s = &rows->seq[rows->seq_of[i]];
    float *qa = r->lane->qa + (uint64_t)i * d->qa_all + (uint64_t)head * d->lat;
    float *wide = r->scratch + (size_t)CPU_HEAD_BLOCK * d->lat;
    struct cpu_attn a = {.n_heads = n_heads,
                         .rank = d->kv_rank,
                         .width = d->lat,
                         .scale = 1.0f / sqrtf((float)(m->nope_dim + m->rope_dim)),
                         .q = qa,
                         .out = qa,
                         .scratch = r->scratch};
    struct seen seen = {.end = rows->pos[i] + 1};
    if (index && r->lane->n_sel[i] != KERN_NONE)
        seen = (struct seen){.sel = r->lane->sel + (uint64_t)i * d->sel,
                             .n_sel = r->lane->n_sel[i],
                             .kpool = m->index_kpool,
                             .tail = seen.end / m->index_kpool * m->index_kpool,
                             .end = seen.end};
    uint32_t pos[CPU_KEY_TILE], n = seen_next(&seen, pos, CPU_KEY_TILE);
    const char *rows_now[CPU_KEY_TILE], *rows_next[CPU_KEY_TILE];
    for (uint32_t j = 0; j < n; j++)
        rows_next[j] = latent_at(r, l, s, pos[j]);
    a.next = rows_next;
    a.row_bytes = (uint32_t)r->c->l.latent_bytes;
    r->ops->attn_begin(&a);
    while (n > 0) {
        const float *keys[CPU_KEY_TILE];
        uint32_t now = n;
        memcpy(rows_now, rows_next, now * sizeof rows_now[0]);
        n = seen_next(&seen, pos, CPU_KEY_TILE);
        for (uint32_t j = 0; j < n; j++)
            rows_next[j] = latent_at(r, l, s, pos[j]);
        a.n_next = n;
        for (uint32_t j = 0; j < now; j++)
            keys[j] = load_latent(r, rows_now[j], wide + j * (size_t)d->lat);
        r->ops->attn_tile(&a, keys, now);
    }
    r->ops->attn_end(&a);
}

/* A product with one matrix per head, whose outputs begin out_head floats after the last one's: members share the
 * panels of all heads. */
static void head_prod(struct cpu_run *r, const struct cpu_mat *m, uint32_t per_head, const float *x,
                      size_t ldx, uint32_t x_head, uint32_t rows, float *out, size_t ldo, uint32_t out_head) {
    uint32_t panels = per_head / 16;
    for (uint32_t p = share_lo(r, m->panels), hi = share_hi(r, m->panels); rows && p < hi;) {
        uint32_t head = p / panels, end = (head + 1) * panels < hi ? (head + 1) * panels : hi;
        cpu_prod(r, m, p, end, x + (size_t)head * x_head, ldx, NULL, rows,
                 out + (size_t)head * out_head + (p - head * panels) * 16ul, ldo);
        p = end;
    }
}

static uint32_t seen_cost(const struct cpu_run *r, const struct cpu_rows *rows, uint32_t i) {
    (void)r;
    return rows->pos[i] + 1 + CPU_KEY_TILE;
}

static uint32_t chosen_cost(const struct cpu_run *r, const struct cpu_rows *rows, uint32_t i) {
    const uint32_t kpool = r->c->k->cfg.model.index_kpool;
    if (r->lane->n_sel[i] == KERN_NONE)
        return seen_cost(r, rows, i);
    return r->lane->n_sel[i] * kpool + (rows->pos[i] + 1) % kpool + CPU_KEY_TILE;
}

static void attention(struct cpu_run *r, const struct cpu_layer *l, const struct cpu_rows *rows, bool index) {
    uint32_t heads = r->c->k->cfg.model.mla_heads, block = CPU_HEAD_BLOCK;
    while (block > 1 && (uint64_t)rows->n * ((heads + block - 1) / block) < r->n)
        block /= 2; /* a head's bits do not depend on its neighbours in a block */
    const uint32_t blocks = (heads + block - 1) / block;
    const struct span own = share_by_cost(r, rows, (struct span){0, rows->n}, blocks, index ? chosen_cost : seen_cost);
    for (uint32_t u = own.lo; u < own.hi; u++) {
        uint32_t head = u % blocks * block;
        attend(r, l, rows, u / blocks, head, heads - head < block ? heads - head : block, index);
    }
}

void cpu_stage_mla(struct cpu_run *r, uint32_t layer) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_layer *l = &r->c->l.layer[layer];
    const struct cpu_rows *rows = rows_of(r, layer);
    uint32_t index = m->layer[layer].index;
    bool full = index == KERN_INDEX_FULL;
    uint32_t vectors = 2 + (m->index_kpool > 1 ? m->index_kpool : 0); /* of the indexer */
    run_prod(r, &l->in, r->lane->u, d->e, rows->n, r->lane->z, d->mla_z);
    count_mat(r, &l->in, rows->n);
    run_barrier(r);
    norms(r, l, rows, full);
    run_barrier(r);
    run_prod(r, &l->cq, r->lane->z, d->mla_z, rows->n, r->lane->wide, d->cq_n);
    count_mat(r, &l->cq, rows->n);
    if (full)
        pools(r, l, rows);
    run_barrier(r);
    if (m->rope_dim) {
        turn_queries(r, rows, full);
        if (full)
            run_barrier(r); /* select_pools() reads what others turned */
    }
    head_prod(r, &l->uk, d->kv_rank, r->lane->wide, d->cq_n, d->q_head, rows->n, r->lane->qa, d->qa_all, d->lat);
    count_mat(r, &l->uk, rows->n);
    if (full)
        select_pools(r, l, rows);
    count_selection(r, rows, index);
    if (full && cut_selection(r, rows) && !cpu_gather_selection(r, rows->n))
        return;
    run_barrier(r);
    attention(r, l, rows, index != KERN_INDEX_NONE);
    run_barrier(r);
    head_prod(r, &l->uv, d->v, r->lane->qa, d->qa_all, d->lat, rows->n, r->lane->attn_out, d->v_all, d->v);
    count_mat(r, &l->uv, rows->n);
    if (rows->n)
        count_bytes(r, (d->q_rank + d->kv_rank + (full ? vectors * d->idx_dim : 0)) * 4ull);
    run_barrier(r);
    run_prod(r, &l->out, r->lane->attn_out, d->v_all, rows->n, r->lane->y, d->e);
    count_mat(r, &l->out, rows->n);
    run_barrier(r);
}
