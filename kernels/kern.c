/* SPDX-License-Identifier: MIT */
/* Opening, packing, capture and dispatch, common to all backends. Owns struct kern, which lives at the start
 * of KERN_MEM_CTL together with the programs, the plan copies and the result blocks. One thread calls
 * everything here except kern_pack(). Allocates nothing; never logs. */
#include "backend.h"
#include "kern_private.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef GLMD_CUDA
static const struct kern_backend *const backends[] = {&kern_ref_backend, &kern_cpu_backend, &kern_cuda_backend,
                                                      &kern_script_backend};
#define BACKENDS "ref, cpu, cuda and script"
#else
static const struct kern_backend *const backends[] = {&kern_ref_backend, &kern_cpu_backend,
                                                      &kern_script_backend};
#define BACKENDS "ref, cpu and script, and cuda where it was built with GPU=cuda"
#endif

static _Thread_local char open_error[256];

static const struct kern_backend *find_backend(const char *name) {
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++)
        if (name && strcmp(backends[i]->name, name) == 0)
            return backends[i];
    snprintf(open_error, sizeof(open_error), "backend \"%s\" is unknown; known are " BACKENDS, name ? name : "");
    return NULL;
}

const char *kern_open_error(void) {
    return open_error;
}

void kern_error(struct kern *k, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&k->error_lock);
    vsnprintf(k->error, sizeof(k->error), fmt, ap);
    pthread_mutex_unlock(&k->error_lock);
    va_end(ap);
}

const char *kern_last_error(const struct kern *k) {
    /* A copy per thread: another packing thread may be writing the original. */
    static _Thread_local char copy[sizeof(k->error)];
    struct kern *w = (struct kern *)(uintptr_t)k;
    pthread_mutex_lock(&w->error_lock);
    memcpy(copy, k->error, sizeof(copy));
    pthread_mutex_unlock(&w->error_lock);
    return copy;
}

/* ---- layout of the control block ---- */

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t r = *at;
    *at = (r + bytes + 63) & ~63ull;
    return r;
}

struct ctl_layout {
    uint64_t progs, stages, plan[KERN_LANES], results[KERN_LANES], slots, stores, packed, bytes;
};

static void layout_ctl(const struct kern_config *c, bool weightless, struct ctl_layout *l) {
    uint64_t at = 0;
    take(&at, sizeof(struct kern));
    l->progs = take(&at, KERN_MAX_PROGS * sizeof(struct kern_prog));
    l->stages = take(&at, KERN_MAX_STAGES * sizeof(struct kern_stage));
    for (int i = 0; i < KERN_LANES; i++) {
        l->plan[i] = take(&at, c->max_plan_bytes);
        l->results[i] = take(&at, c->max_samples * (uint64_t)sizeof(struct kern_result));
    }
    l->slots = take(&at, c->n_slots * (uint64_t)sizeof(struct kern_slot_info));
    uint64_t parts = weightless ? 0 : kern_part_count(&c->model);
    l->stores = take(&at, parts * sizeof(struct kern_store));
    l->packed = take(&at, parts * KERN_PIECES * sizeof(uint64_t));
    l->bytes = at;
}

uint64_t kern_ctl_bytes(const struct kern_config *cfg) {
    struct ctl_layout l;
    layout_ctl(cfg, false, &l);
    return l.bytes;
}

/* ---- query, open, close ---- */

/* This rank's share of a checked configuration, as one of its own. */
static int cut(const struct kern_config *cfg, struct kern_config *ret_own, struct kern_shard *ret_shard) {
    int r = kern_shard_plan(cfg, ret_shard, open_error, sizeof(open_error));
    if (r)
        return r;
    *ret_own = *cfg;
    kern_shard_model(&cfg->model, ret_shard, cfg->rank, &ret_own->model);
    return 0;
}

int kern_query(const char *backend, const struct kern_config *cfg, uint64_t ret_bytes[KERN_MEM_N]) {
    const struct kern_backend *b = find_backend(backend);
    struct kern_config own;
    struct kern_shard shard;
    if (!b)
        return -ENOENT;
    open_error[0] = 0;
    int r = kern_config_check(cfg, b, open_error, sizeof(open_error));
    if (!r)
        r = cut(cfg, &own, &shard);
    if (r)
        return r;
    uint64_t bytes[KERN_MEM_N] = {0};
    r = b->query(&own, cfg->model.vocab_rows, bytes, open_error, sizeof(open_error));
    if (r)
        return r;
    for (int i = 0; i < KERN_MEM_N; i++)
        if (bytes[i] > 1ull << 56) {
            snprintf(open_error, sizeof(open_error), "memory class %d would need %llu bytes", i,
                     (unsigned long long)bytes[i]);
            return -EOVERFLOW;
        }
    memcpy(ret_bytes, bytes, sizeof(bytes));
    return 0;
}

static uint64_t at_least(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Rows as backends may have them: padded to 16 numbers. */
static uint64_t padded(uint64_t n) {
    return (n + 15) & ~15ull;
}

uint64_t kern_comm_bytes(const struct kern_config *cfg) {
    const struct kern_model_desc *m = &cfg->model;
    struct kern_shard s;
    if (cfg->n_ranks < 2 || kern_shard_plan(cfg, &s, open_error, sizeof(open_error)))
        return 0;
    uint64_t rows = at_least(cfg->max_rows[KERN_LANE_DECODE], cfg->max_rows[KERN_LANE_PREFILL]);
    uint64_t pools = m->index_kpool ? m->index_topk / m->index_kpool : 0;
    uint64_t most = rows * padded(m->hidden) * sizeof(float);
    most = at_least(most, cfg->max_samples * padded(kern_shard_most(&s, KERN_AXIS_VOCAB)) * sizeof(float));
    return at_least(most, rows * (pools + 1) * sizeof(uint32_t));
}

static int check_comm(const struct kern_config *cfg) {
    const struct comm *c = cfg->comm;
    if (cfg->n_ranks < 2)
        return 0;
    if (c && c->rank == cfg->rank && c->n == cfg->n_ranks && c->slot_bytes >= kern_comm_bytes(cfg))
        return 0;
    snprintf(open_error, sizeof(open_error), "rank %u of %u has no end of an exchange with slots of %llu bytes",
             cfg->rank, cfg->n_ranks, (unsigned long long)kern_comm_bytes(cfg));
    return -EINVAL;
}

int kern_mem_alloc(const char *backend, enum kern_mem cls, uint64_t bytes, struct kern_block *ret) {
    const struct kern_backend *b = find_backend(backend);
    if (!b)
        return -ENOENT;
    open_error[0] = 0;
    return b->mem_alloc ? b->mem_alloc(cls, bytes, ret, open_error, sizeof(open_error)) : kern_host_alloc(bytes, ret);
}

void kern_mem_free(const char *backend, enum kern_mem cls, struct kern_block *block) {
    const struct kern_backend *b = find_backend(backend);
    if (!b)
        return;
    if (b->mem_free)
        b->mem_free(cls, block);
    else
        kern_host_free(block);
}

int kern_mem_where(const char *backend, enum kern_mem cls, uint64_t *ret_free) {
    const struct kern_backend *b = find_backend(backend);
    if (!b)
        return -ENOENT;
    return b->mem_where ? b->mem_where(cls, ret_free, open_error, sizeof(open_error)) : 0;
}

/* What the bytes of a slot depend on, and with the whole model those of a page; field by field, because padding of a
 * struct is not defined. */
static uint64_t model_id(const struct kern_config *c, const struct kern_model_desc *m, const char *name) {
    const uint32_t dims[] = {m->hidden,    m->n_layers,   m->n_draft,   m->kda_heads,
                             m->kda_dim,   m->conv_width, m->index_dim, m->index_kpool,
                             m->mla_heads, m->kv_rank,    c->cache};
    uint64_t h = 0xcbf29ce484222325ull;
    for (const char *s = name; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3ull;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        h = (h ^ dims[i]) * 0x100000001b3ull;
    uint32_t theta;
    memcpy(&theta, &m->rope_theta, sizeof(theta));
    if (m->rope_dim) /* its latents and keys are turned by their positions */
        h = ((h ^ m->rope_dim) * 0x100000001b3ull ^ theta) * 0x100000001b3ull;
    for (uint32_t i = 0; i < kern_total_layers(m) && i < KERN_MAX_LAYERS; i++)
        h = (h ^ (m->layer[i].mix * 16u + m->layer[i].index)) * 0x100000001b3ull;
    if (c->n_ranks > 1 && m == &c->model)
        h = (h ^ (c->n_ranks * 256u + c->rank)) * 0x100000001b3ull;
    return h;
}

int kern_open(const char *backend, const struct kern_config *cfg, const struct kern_block mem[KERN_MEM_N],
              struct kern **ret) {
    uint64_t need[KERN_MEM_N];
    int r = kern_query(backend, cfg, need);
    if (!r)
        r = check_comm(cfg);
    if (r)
        return r;
    for (int i = 0; i < KERN_MEM_N; i++)
        if (mem[i].bytes < need[i] || (need[i] && ((uintptr_t)mem[i].base & 4095))) {
            snprintf(open_error, sizeof(open_error),
                     "memory class %d: %llu bytes given, %llu needed, 4096-aligned", i,
                     (unsigned long long)mem[i].bytes, (unsigned long long)need[i]);
            return -EINVAL;
        }
    const struct kern_backend *b = find_backend(backend);
    char *base = mem[KERN_MEM_CTL].base;
    struct ctl_layout l;
    layout_ctl(cfg, b->weightless, &l);
    memset(base, 0, l.bytes);
    struct kern *k = (struct kern *)(void *)base;
    k->backend = b;
    k->whole = cfg->model;
    r = cut(cfg, &k->cfg, &k->shard);
    if (r)
        return r;
    memcpy(k->mem, mem, sizeof(k->mem));
    snprintf(k->name, sizeof(k->name), "%s", b->name);
    k->capturing = -1;
    k->progs = (struct kern_prog *)(void *)(base + l.progs);
    k->stages = (struct kern_stage *)(void *)(base + l.stages);
    for (int i = 0; i < KERN_LANES; i++) {
        k->plan[i] = (struct kern_plan *)(void *)(base + l.plan[i]);
        k->results[i] = (struct kern_result *)(void *)(base + l.results[i]);
    }
    k->slots = (struct kern_slot_info *)(void *)(base + l.slots);
    for (uint32_t i = 0; i < cfg->n_slots; i++)
        k->slots[i].last = KERN_NONE;
    k->packed_bytes = (_Atomic uint64_t *)(void *)(base + l.packed);
    k->stores = (struct kern_store *)(void *)(base + l.stores);
    for (uint64_t i = 0; !b->weightless && i < kern_part_count(&cfg->model); i++)
        k->stores[i] = cfg->stores ? cfg->stores[i] : kern_store_plain(KERN_BF16);
    k->cfg.stores = b->weightless ? NULL : k->stores;
    k->model_id = model_id(&k->cfg, &k->cfg.model, b->name);
    k->page_id = model_id(&k->cfg, &k->whole, b->name);
    pthread_mutex_init(&k->error_lock, NULL);
    r = b->open(k, open_error, sizeof(open_error));
    if (r) {
        pthread_mutex_destroy(&k->error_lock);
        return r;
    }
    *ret = k;
    return 0;
}

struct kern *kern_close(struct kern *k) {
    if (k) {
        k->backend->close(k);
        pthread_mutex_destroy(&k->error_lock);
    }
    return NULL;
}

const char *kern_name(const struct kern *k) {
    return k->name;
}

/* ---- packing ---- */

#define PACK_BYTES ((1ull << 56) - 1)

/* Bytes and encoding of the piece a window belongs to. */
static int check_piece(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t,
                       const struct kern_part_info *info, struct kern_piece_info *p) {
    const struct kern_store want = kern_matrix_store(&k->cfg, id), *s = &t->store;
    char a[40], b[40];
    if (info->matrix && memcmp(s, &want, sizeof(want)))
        return kern_error(k, "layer %u %s: format %s, expected %s", id->layer, kern_part_name(id->part),
                          kern_store_name(s, a, sizeof(a)), kern_store_name(&want, b, sizeof(b))),
               -EINVAL;
    if (!info->matrix && s->format != KERN_BF16 && s->format != KERN_F16 && s->format != KERN_F32)
        return kern_error(k, "layer %u %s: format %s, expected BF16, F16 or F32", id->layer,
                          kern_part_name(id->part), kern_store_name(s, a, sizeof(a))),
               -EINVAL;
    int r = kern_store_piece(s, info->rows, info->cols, (enum kern_piece)id->piece, p);
    if (r || !p->rows)
        return kern_error(k, "layer %u %s: %s has no piece %u", id->layer, kern_part_name(id->part),
                          kern_store_name(s, a, sizeof(a)), id->piece),
               r ? r : -EINVAL;
    return 0;
}

/* This rank's part of a window: counted, and, with bytes, handed to the backend as bytes of what the rank keeps. */
static int take_own(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                    const char *bytes, uint64_t n, uint64_t *ret_kept, uint64_t *ret_total) {
    struct kern_tensor own = {.store = t->store};
    struct kern_cut c;
    bool matrix;
    uint64_t from, to, run, kept = 0;
    int r = kern_part_shape(&k->cfg.model, id, &own.rows, &own.cols, &matrix);
    if (!r)
        r = kern_shard_piece(&k->whole, &k->shard, k->cfg.rank, id, &t->store, &c);
    if (r)
        return r;
    for (uint64_t at = offset; !r && (run = kern_cut_next(&c, at, offset + n, &from, &to)); at = from + run) {
        r = bytes ? k->backend->pack(k, id, &own, to, bytes + (from - offset), run) : 0;
        kept += run;
    }
    *ret_kept = kept;
    *ret_total = c.rows * c.bytes;
    return r;
}

int kern_pack(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
              const void *bytes, uint64_t n) {
    const struct kern_model_desc *m = &k->whole;
    struct kern_part_info info;
    struct kern_piece_info p;
    if (k->backend->weightless)
        return 0;
    if (k->packed)
        return kern_error(k, "weights are complete and cannot be changed"), -EPERM;
    if (!kern_part_info(m, id->part, id->layer, &info) || id->expert >= info.experts)
        return kern_error(k, "layer %u has no tensor %s, expert %u", id->layer, kern_part_name(id->part),
                          id->expert),
               -ENOENT;
    if (t->rows != info.rows || t->cols != info.cols)
        return kern_error(k, "layer %u %s: shape is [%llu, %llu], expected [%llu, %llu]", id->layer,
                          kern_part_name(id->part), (unsigned long long)t->rows, (unsigned long long)t->cols,
                          (unsigned long long)info.rows, (unsigned long long)info.cols),
               -EINVAL;
    int r = check_piece(k, id, t, &info, &p);
    if (r)
        return r;
    uint64_t total = p.rows * p.row_bytes, n_own;
    if (n > total || offset > total - n)
        return kern_error(k, "layer %u %s: window of %llu bytes at %llu leaves the tensor's %llu", id->layer,
                          kern_part_name(id->part), (unsigned long long)n, (unsigned long long)offset,
                          (unsigned long long)total),
               -EINVAL;
    r = take_own(k, id, t, offset, NULL, n, &n_own, &total);
    if (r || !n_own)
        return r;
    _Atomic uint64_t *count = &k->packed_bytes[kern_part_slot(m, id) * KERN_PIECES + id->piece];
    uint64_t old = atomic_load_explicit(count, memory_order_relaxed), now;
    if ((old >> 56 && old >> 56 != t->store.format) || (old & PACK_BYTES) > total - n_own)
        return kern_error(k, "layer %u %s: windows overlap or change format", id->layer,
                          kern_part_name(id->part)),
               -EINVAL;
    r = take_own(k, id, t, offset, bytes, n, &n_own, &total);
    if (r)
        return r;
    /* P1: release, pairs with the acquire in kern_pack_done(): counted bytes are written bytes. */
    do
        now = (uint64_t)t->store.format << 56 | ((old & PACK_BYTES) + n_own);
    while (
        !atomic_compare_exchange_weak_explicit(count, &old, now, memory_order_release, memory_order_relaxed));
    return 0;
}

enum kern_format kern_packed_format(const struct kern *k, const struct kern_tensor_id *id) {
    uint64_t slot = kern_part_slot(&k->cfg.model, id);
    return (enum kern_format)(atomic_load_explicit(&k->packed_bytes[slot * KERN_PIECES], memory_order_relaxed) >> 56);
}

static int tensor_complete(struct kern *k, const struct kern_tensor_id *id, const struct kern_part_info *info) {
    static const char *const piece[] = {"", " scales", " factor", " suh", " svh"};
    const uint64_t slot = kern_part_slot(&k->cfg.model, id);
    for (uint32_t i = 0; i < KERN_PIECES; i++) {
        uint64_t v = atomic_load_explicit(&k->packed_bytes[slot * KERN_PIECES + i],
                                          memory_order_acquire); /* pairs with P1 */
        struct kern_store s = info->matrix ? kern_matrix_store(&k->cfg, id)
                                           : kern_store_plain(v >> 56 ? (enum kern_format)(v >> 56) : KERN_BF16);
        struct kern_piece_info p = {0};
        int r = kern_store_piece(&s, info->rows, info->cols, (enum kern_piece)i, &p);
        if (r)
            return r;
        if ((v & PACK_BYTES) != p.rows * p.row_bytes)
            return kern_error(k, "layer %u %s expert %u%s: %llu of %llu bytes received", id->layer,
                              kern_part_name(id->part), id->expert, piece[i], (unsigned long long)(v & PACK_BYTES),
                              (unsigned long long)(p.rows * p.row_bytes)),
                   -ENODATA;
        if (!info->matrix)
            break;
    }
    return 0;
}

static int part_complete(struct kern *k, uint32_t layer, uint32_t part, const struct kern_part_info *info) {
    int r = 0;
    for (uint32_t e = 0; e < info->experts && !r; e++) {
        const struct kern_tensor_id id = {.part = part, .layer = layer, .expert = e};
        r = tensor_complete(k, &id, info);
    }
    return r;
}

int kern_pack_done(struct kern *k) {
    const struct kern_model_desc *m = &k->cfg.model;
    if (k->packed)
        return 0;
    for (uint32_t l = 0; !k->backend->weightless && l < kern_total_layers(m); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            int r = kern_part_info(m, part, l, &info) ? part_complete(k, l, part, &info) : 0;
            if (r)
                return r;
        }
    int r = k->backend->pack_done ? k->backend->pack_done(k) : 0;
    if (!r)
        k->packed = true;
    return r;
}
