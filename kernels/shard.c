/* SPDX-License-Identifier: MIT */
/* shard.c: the cuts of a model among ranks. Arithmetic on descriptions only: no weight is read here. Pure functions,
 * any thread. */
#include "shard.h"
#include "backend.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* How a part lies along its axis: the tensor's rows or columns, so many for one head (or column) of the axis. */
struct lie {
    uint8_t axis;
    bool cols;
    uint32_t per;
};

static struct lie lie_of(const struct kern_model_desc *m, uint32_t part) {
    const uint32_t nope = m->nope_dim, v = m->v_dim, rank = m->kv_rank;
    switch (part) {
    case KERN_EMBED:
    case KERN_HEAD:
        return (struct lie){KERN_AXIS_VOCAB, false, 1};
    case KERN_KDA_Q:
    case KERN_KDA_K:
    case KERN_KDA_V:
    case KERN_KDA_QCONV:
    case KERN_KDA_KCONV:
    case KERN_KDA_VCONV:
    case KERN_KDA_FB:
    case KERN_KDA_GB:
    case KERN_KDA_DT_BIAS:
        return (struct lie){KERN_AXIS_KDA, false, m->kda_dim};
    case KERN_KDA_B:
    case KERN_KDA_A_LOG:
        return (struct lie){KERN_AXIS_KDA, false, 1};
    case KERN_KDA_O:
        return (struct lie){KERN_AXIS_KDA, true, m->kda_dim};
    case KERN_MLA_QB:
        return (struct lie){KERN_AXIS_MLA, false, nope + m->rope_dim};
    case KERN_MLA_KVB:
        return (struct lie){KERN_AXIS_MLA, false, nope + v};
    case KERN_MLA_KB:
        return (struct lie){KERN_AXIS_MLA, false, rank};
    case KERN_MLA_VB:
        return (struct lie){KERN_AXIS_MLA, false, v};
    case KERN_MLA_O:
        return (struct lie){KERN_AXIS_MLA, true, v};
    case KERN_MLP_GATE:
    case KERN_MLP_UP:
        return (struct lie){KERN_AXIS_DENSE, false, 1};
    case KERN_MLP_DOWN:
        return (struct lie){KERN_AXIS_DENSE, true, 1};
    case KERN_EXP_GATE:
    case KERN_EXP_UP:
        return (struct lie){KERN_AXIS_EXPERT, false, 1};
    case KERN_EXP_DOWN:
        return (struct lie){KERN_AXIS_EXPERT, true, 1};
    case KERN_SH_GATE:
    case KERN_SH_UP:
        return (struct lie){KERN_AXIS_EXPERT, false, m->n_shared};
    case KERN_SH_DOWN:
        return (struct lie){KERN_AXIS_EXPERT, true, m->n_shared};
    default:
        return (struct lie){KERN_AXIS_NONE, false, 0};
    }
}

static const char *axis_name(uint32_t axis) {
    static const char *const name[KERN_AXIS_N] = {"", "kda_heads", "mla_heads", "dense_width", "expert_width",
                                                  "vocab_rows"};
    return name[axis];
}

uint32_t kern_shard_at(const struct kern_shard *s, enum kern_axis axis, uint32_t rank) {
    const uint64_t unit = s->unit[axis], units = unit ? (s->width[axis] + unit - 1) / unit : 0;
    uint64_t at = units * rank / (s->n_ranks ? s->n_ranks : 1) * unit;
    return at < s->width[axis] ? (uint32_t)at : s->width[axis];
}

uint32_t kern_shard_most(const struct kern_shard *s, enum kern_axis axis) {
    uint32_t most = 0;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        uint32_t n = kern_shard_at(s, axis, r + 1) - kern_shard_at(s, axis, r);
        most = n > most ? n : most;
    }
    return most;
}

uint32_t kern_shard_owner(const struct kern_shard *s, enum kern_axis axis, uint32_t i) {
    uint32_t r = 0;
    while (r + 1 < s->n_ranks && kern_shard_at(s, axis, r + 1) <= i)
        r++;
    return r;
}

/* ---- where an axis may be cut ---- */

/* One way in which matrices lie along an axis; most of a model's matrices share one. */
struct way {
    struct kern_tensor_id id; /* the first of them, to be named */
    struct kern_store store;
    struct lie lie;
    uint64_t rows, cols;
};
enum { MAX_WAYS = 256 };
struct ways {
    struct way way[MAX_WAYS];
    uint32_t n;
};

static bool same_way(const struct way *a, const struct way *b) {
    return !memcmp(&a->store, &b->store, sizeof(a->store)) && a->lie.axis == b->lie.axis &&
           a->lie.cols == b->lie.cols && a->lie.per == b->lie.per && a->rows == b->rows && a->cols == b->cols;
}

/* false: no room for one more. */
static bool add_way(struct ways *w, const struct way *x) {
    for (uint32_t i = 0; i < w->n; i++)
        if (same_way(&w->way[i], x))
            return true;
    if (w->n == MAX_WAYS)
        return false;
    w->way[w->n++] = *x;
    return true;
}

static int find_ways(const struct kern_config *c, uint32_t axis, struct ways *w, char *err, size_t err_len) {
    const struct kern_model_desc *m = &c->model;
    w->n = 0;
    for (uint32_t l = 0; l < kern_total_layers(m); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            struct way x = {.id = {.part = part, .layer = l}, .lie = lie_of(m, part)};
            if (x.lie.axis != axis || !kern_part_info(m, part, l, &info) || !info.matrix)
                continue;
            x.rows = info.rows;
            x.cols = info.cols;
            for (x.id.expert = 0; x.id.expert < info.experts; x.id.expert++) {
                x.store = kern_matrix_store(c, &x.id);
                if (add_way(w, &x))
                    continue;
                snprintf(err, err_len, "ranks: matrices along %s are stored in more than %d ways; expected fewer",
                         axis_name(axis), MAX_WAYS);
                return -EINVAL;
            }
        }
    return 0;
}

/* Is a scale never shared with a part that another rank has, but where it serves all of this one's? */
static bool between_scales(uint64_t lo, uint64_t hi, uint32_t block) {
    return !block || lo % block == 0 || lo / block == (hi - 1) / block;
}

static bool can_cut(const struct way *w, uint64_t lo, uint64_t hi) {
    uint64_t bytes, a = lo * w->lie.per, b = hi * w->lie.per;
    if (a == b)
        return false;
    /* blocks of codes lie along the columns (of EXL3 along both): widths of whole blocks begin at whole blocks */
    if (kern_store_bytes(&w->store, w->lie.cols ? w->rows : b - a, w->lie.cols ? b - a : w->cols, &bytes))
        return false;
    return between_scales(a, b, w->lie.cols ? w->store.block_cols : w->store.block_rows);
}

static const struct way *refused_by(const struct kern_shard *s, uint32_t axis, const struct ways *w) {
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t r = 0; r < s->n_ranks; r++)
            if (!can_cut(&w->way[i], kern_shard_at(s, axis, r), kern_shard_at(s, axis, r + 1)))
                return &w->way[i];
    return NULL;
}

static int plan_axis(const struct kern_config *c, struct kern_shard *s, uint32_t axis, char *err, size_t err_len) {
    struct ways w;
    char name[40];
    int r = find_ways(c, axis, &w, err, err_len);
    s->unit[axis] = 1;
    if (r || !w.n)
        return r;
    if (s->width[axis] < s->n_ranks) {
        snprintf(err, err_len, "ranks: found %u, but %s is %u: each rank needs one; start with %u at most", s->n_ranks,
                 axis_name(axis), s->width[axis], s->width[axis]);
        return -EINVAL;
    }
    const struct way *first = refused_by(s, axis, &w);
    /* up to the largest unit that leaves the last rank something, if only a block that is not whole */
    for (uint32_t u = 2; first && u <= (s->width[axis] - 1) / (s->n_ranks - 1); u++) {
        s->unit[axis] = u;
        if (!refused_by(s, axis, &w))
            return 0;
    }
    if (!first)
        return 0;
    snprintf(err, err_len,
             "ranks: layer %u %s is stored as %s, whose blocks do not let its %llu %s (%s %u) be cut into %u parts; "
             "start with fewer ranks",
             first->id.layer, kern_part_name(first->id.part), kern_store_name(&first->store, name, sizeof(name)),
             (unsigned long long)(first->lie.cols ? first->cols : first->rows), first->lie.cols ? "columns" : "rows",
             axis_name(axis), s->width[axis], s->n_ranks);
    return -EINVAL;
}

int kern_shard_plan(const struct kern_config *cfg, struct kern_shard *ret, char *err, size_t err_len) {
    const struct kern_model_desc *m = &cfg->model;
    struct kern_shard s = {.n_ranks = cfg->n_ranks,
                           .width = {[KERN_AXIS_KDA] = m->kda_heads,
                                     [KERN_AXIS_MLA] = m->mla_heads,
                                     [KERN_AXIS_DENSE] = m->dense_width,
                                     [KERN_AXIS_EXPERT] = m->expert_width,
                                     [KERN_AXIS_VOCAB] = m->vocab_rows}};
    for (uint32_t axis = KERN_AXIS_KDA; axis < KERN_AXIS_N; axis++) {
        s.unit[axis] = 1;
        int r = cfg->n_ranks > 1 ? plan_axis(cfg, &s, axis, err, err_len) : 0;
        if (r)
            return r;
    }
    *ret = s;
    return 0;
}

void kern_shard_model(const struct kern_model_desc *whole, const struct kern_shard *s, uint32_t rank,
                      struct kern_model_desc *ret) {
    uint32_t n[KERN_AXIS_N];
    for (uint32_t axis = KERN_AXIS_KDA; axis < KERN_AXIS_N; axis++)
        n[axis] = kern_shard_at(s, (enum kern_axis)axis, rank + 1) - kern_shard_at(s, (enum kern_axis)axis, rank);
    *ret = *whole;
    ret->kda_heads = n[KERN_AXIS_KDA];
    ret->mla_heads = n[KERN_AXIS_MLA];
    ret->dense_width = n[KERN_AXIS_DENSE];
    ret->expert_width = n[KERN_AXIS_EXPERT];
    ret->vocab_rows = n[KERN_AXIS_VOCAB];
}

/* ---- pieces ---- */

/* Elements lo .. hi-1 of a piece's axis that has one element for `block` of the tensor's (0: one for all). */
static void narrow(uint64_t *first, uint64_t *n, uint64_t lo, uint64_t hi, uint64_t block, uint64_t size) {
    if (!block)
        return;
    *first = lo / block * size;
    *n = ((hi + block - 1) / block - lo / block) * size;
}

int kern_shard_piece(const struct kern_model_desc *whole, const struct kern_shard *s, uint32_t rank,
                     const struct kern_tensor_id *id, const struct kern_store *store, struct kern_cut *ret) {
    struct kern_part_info info;
    struct kern_piece_info p;
    uint32_t weights = 1, bytes = 1;
    if (!kern_part_info(whole, id->part, id->layer, &info) || id->expert >= info.experts)
        return -ENOENT;
    int r = kern_store_piece(store, info.rows, info.cols, (enum kern_piece)id->piece, &p);
    if (r || !p.rows)
        return r ? r : -ENOENT;
    struct kern_cut c = {.row_bytes = p.row_bytes, .rows = p.rows, .bytes = p.row_bytes};
    const struct lie lie = lie_of(whole, id->part);
    bool exl3 = store->format == KERN_EXL3;
    uint64_t lo = kern_shard_at(s, (enum kern_axis)lie.axis, rank) * (uint64_t)lie.per;
    uint64_t hi = kern_shard_at(s, (enum kern_axis)lie.axis, rank + 1) * (uint64_t)lie.per;
    if (lie.axis == KERN_AXIS_NONE || id->piece == KERN_PIECE_GLOBAL) {
        *ret = c;
        return 0;
    }
    if (id->piece == KERN_PIECE_CODES && exl3) { /* tiles of 16 x 16, the tensor's columns first */
        if (lie.cols)
            narrow(&c.row0, &c.rows, lo, hi, 16, 1);
        else
            narrow(&c.at, &c.bytes, lo, hi, 16, 32ull * store->bits);
    } else if (id->piece == KERN_PIECE_CODES) {
        kern_store_block(store, &weights, &bytes);
        if (lie.cols)
            narrow(&c.at, &c.bytes, lo, hi, weights, bytes);
        else
            narrow(&c.row0, &c.rows, lo, hi, 1, 1);
        if (FAULT(shard_first_columns) && lie.cols)
            c.at = 0;
        if (FAULT(shard_first_taps) && id->part >= KERN_KDA_QCONV && id->part <= KERN_KDA_VCONV)
            c.row0 = 0;
    } else if (id->piece == KERN_PIECE_SCALE) {
        if (lie.cols)
            narrow(&c.at, &c.bytes, lo, hi, store->block_cols, p.unit);
        else
            narrow(&c.row0, &c.rows, lo, hi, store->block_rows, 1);
    } else if ((id->piece == KERN_PIECE_SUH) == lie.cols) { /* one factor a column, or one a row */
        narrow(&c.at, &c.bytes, lo, hi, 1, p.unit);
    }
    *ret = c;
    return 0;
}

uint64_t kern_cut_next(const struct kern_cut *c, uint64_t offset, uint64_t end, uint64_t *ret_from, uint64_t *ret_to) {
    const uint64_t first = c->row0 * c->row_bytes + c->at;
    const uint64_t last = c->rows ? (c->row0 + c->rows - 1) * c->row_bytes + c->at + c->bytes : first;
    if (offset < first)
        offset = first;
    if (end > last)
        end = last;
    if (offset >= end || !c->bytes)
        return 0;
    if (c->bytes == c->row_bytes) { /* whole rows follow each other */
        *ret_from = offset;
        *ret_to = offset - c->row0 * c->row_bytes;
        return end - offset;
    }
    uint64_t row = offset / c->row_bytes, b = offset % c->row_bytes;
    if (b < c->at) {
        b = c->at;
    } else if (b >= c->at + c->bytes) {
        row++;
        b = c->at;
    }
    if (row * c->row_bytes + b >= end)
        return 0;
    uint64_t n = c->at + c->bytes - b, left = end - (row * c->row_bytes + b);
    *ret_from = row * c->row_bytes + b;
    *ret_to = (row - c->row0) * c->bytes + b - c->at;
    return n < left ? n : left;
}
