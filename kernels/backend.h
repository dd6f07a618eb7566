/* SPDX-License-Identifier: MIT */
/* backend.h: what a backend implements; seen inside kernels/ only. kern.c checks arguments and plans once
 * for all backends and dispatches through this table. */
#ifndef GLMD_KERN_BACKEND_H
#define GLMD_KERN_BACKEND_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm.h"
#include "kern.h"
#include "shard.h"

enum kern_stage_op {
    KERN_OP_EMBED = 1,
    KERN_OP_SITE_IN,
    KERN_OP_MIX,
    KERN_OP_MLP,
    KERN_OP_SITE_OUT,
    KERN_OP_FINAL,
    KERN_OP_DRAFT_IN,
    KERN_OP_DRAFT_OUT,
    KERN_OP_HEAD,
};

struct kern_stage {
    uint16_t op;    /* enum kern_stage_op */
    uint16_t arg;   /* site or source */
    uint32_t layer;
};

enum { KERN_MAX_PROGS = 4 * KERN_MAX_LAYERS, KERN_MAX_STAGES = 16 * KERN_MAX_LAYERS };

struct kern_prog {
    uint32_t lane;
    uint32_t first, n; /* slice of the instance's stage list */
};

struct kern_backend {
    const char *name;
    bool caller_computes; /* kern_caller_computes() */
    bool weightless; /* "script": no tensor is packed, any shape is fine */
    uint32_t formats; /* bit per enum kern_format: what its products read */
    /* cfg: this rank's share, as a model of its own; vocab_rows: of the whole model, whose logits every rank has */
    int (*query)(const struct kern_config *cfg, uint32_t vocab_rows, uint64_t bytes[KERN_MEM_N], char *err,
                 size_t err_len);
    /* k->ctl … are set; the backend fills k->impl */
    int (*open)(struct kern *k, char *err, size_t err_len);
    void (*close)(struct kern *k);
    int (*pack)(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                const void *bytes, uint64_t n);
    int (*pack_done)(struct kern *k);
    int (*capture)(struct kern *k, const struct kern_prog *prog); /* called at capture_end; may refuse */
    int (*plan_load)(struct kern *k, uint32_t lane);              /* plan already checked and copied */
    /* The engine's order is kept by the backend; -EAGAIN when its queue is full. */
    int (*launch)(struct kern *k, const struct kern_prog *prog);
    int (*wait)(struct kern *k, uint32_t lane);
    uint64_t (*slot_bytes)(const struct kern *k);
    int (*slot_read)(struct kern *k, uint32_t slot, void *dst);
    int (*slot_write)(struct kern *k, uint32_t slot, const void *src);
    int (*slot_copy)(struct kern *k, uint32_t dst, uint32_t src);
    int (*page_copy)(struct kern *k, uint32_t dst, uint32_t src);
    uint64_t (*page_bytes)(const struct kern *k);
    int (*page_read)(struct kern *k, uint32_t page, void *dst);
    int (*page_write)(struct kern *k, uint32_t page, const void *src);
    int (*peek)(struct kern *k, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n, float *dst);
    /* NULL: host mapping */
    int (*mem_alloc)(enum kern_mem cls, uint64_t bytes, struct kern_block *ret, char *err, size_t err_len);
    void (*mem_free)(enum kern_mem cls, struct kern_block *block);
    int (*mem_where)(enum kern_mem cls, uint64_t *ret_free, char *err, size_t err_len); /* NULL: the machine's */
};

/* What kern.c knows of a slot; kept on the host for every backend. A head that draws a trunk token stores it in
 * `last` (host backends; a device backend keeps its own copy where the stages read it). */
struct kern_slot_info {
    uint32_t pos;     /* committed tokens */
    uint32_t pending; /* rows whose factors wait in the slot */
    uint32_t last;    /* token last drawn, or KERN_NONE */
    bool has_last;    /* a plan with a trunk draw for this slot was loaded */
};

/* Lives at the start of KERN_MEM_CTL; kern.c owns it, the backend's own object follows it. */
struct kern {
    const struct kern_backend *backend;
    struct kern_config cfg;         /* this rank's share, as a model of its own: what a backend computes */
    struct kern_model_desc whole;   /* the model itself: what plans, results and logits are about */
    struct kern_shard shard;
    struct kern_block mem[KERN_MEM_N];
    char name[32];
    char error[256];
    void *impl;
    bool packed, running, lost;
    int capturing; /* lane, or -1 */
    pthread_mutex_t error_lock; /* kern_pack() may fail on several threads at once */
    uint32_t n_progs, n_stages;
    struct kern_prog *progs;   /* [KERN_MAX_PROGS] */
    struct kern_stage *stages; /* [KERN_MAX_STAGES] */
    struct kern_plan *plan[KERN_LANES]; /* copies, max_plan_bytes each */
    struct kern_result *results[KERN_LANES]; /* [max_samples] */
    struct kern_counters counters[KERN_LANES];
    bool loaded[KERN_LANES];
    uint32_t in_flight[KERN_LANES]; /* launches since the last kern_wait */
    struct kern_slot_info *slots;   /* [n_slots] */
    struct kern_store *stores;      /* cfg.stores: [kern_part_count()] */
    _Atomic uint64_t *packed_bytes; /* [kern_part_count()][KERN_PIECES]: format << 56 | bytes received */
    uint64_t model_id, page_id;     /* digests of what a slot's and a page's bytes depend on */
};

/* ---- parts (kern_parts.c) ---- */

struct kern_part_info {
    uint64_t rows, cols;
    uint32_t experts; /* tensors of this part in the layer: 1, or n_experts */
    bool matrix;      /* kept as its store says; otherwise kept as F32 */
};

/* false: the layer (0 for the global parts) has no such part */
bool kern_part_info(const struct kern_model_desc *m, uint32_t part, uint32_t layer, struct kern_part_info *ret);
/* Range and consistency of every value, common to all backends; err says which. */
int kern_config_check(const struct kern_config *cfg, const struct kern_backend *b, char *err, size_t err_len);

/* Bytes kern.c itself needs at the start of KERN_MEM_CTL; a backend's query adds its own after it. */
uint64_t kern_ctl_bytes(const struct kern_config *cfg);
/* The format a vector came in, once all of it is there. */
enum kern_format kern_packed_format(const struct kern *k, const struct kern_tensor_id *id);
void kern_error(struct kern *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- ranks (kern_run.c) ---- */

static inline bool kern_is_cut(const struct kern *k) {
    return k->cfg.n_ranks > 1;
}
/* Where this rank writes its part of the next exchange. */
static inline void *kern_part_slot_of(const struct kern *k) {
    return k->cfg.comm->ops->slot(k->cfg.comm);
}
/* The exchange of a stage: the first `bytes` of the slot are this rank's part, ret_part[r] is rank r's. -EIO: a rank is
 * lost, which the sentence says. */
int kern_exchange(struct kern *k, uint32_t lane, const struct kern_stage *s, uint64_t bytes,
                  const void *ret_part[COMM_MAX_RANKS]);
/* The rank's first id, and whose an id is. */
static inline uint32_t kern_vocab_at(const struct kern *k, uint32_t rank) {
    return kern_shard_at(&k->shard, KERN_AXIS_VOCAB, rank);
}
static inline uint32_t kern_vocab_owner(const struct kern *k, uint32_t id) {
    return kern_shard_owner(&k->shard, KERN_AXIS_VOCAB, id);
}

extern const struct kern_backend kern_ref_backend;
extern const struct kern_backend kern_cpu_backend;
extern const struct kern_backend kern_script_backend;
extern const struct kern_backend kern_cuda_backend; /* in builds with GLMD_CUDA */

static inline uint32_t kern_total_layers(const struct kern_model_desc *m) {
    return m->n_layers + m->n_draft;
}

/* Typed access to a checked plan. */
static inline const struct kern_row *plan_rows(const struct kern_plan *p) {
    return (const struct kern_row *)(const void *)((const char *)p + p->rows);
}
static inline const struct kern_seq *plan_seqs(const struct kern_plan *p) {
    return (const struct kern_seq *)(const void *)((const char *)p + p->seqs);
}
static inline const struct kern_sample *plan_samples(const struct kern_plan *p) {
    return (const struct kern_sample *)(const void *)((const char *)p + p->samples);
}
static inline const uint32_t *plan_pages(const struct kern_plan *p) {
    return (const uint32_t *)(const void *)((const char *)p + p->pages);
}
static inline const struct kern_bias *plan_bias(const struct kern_plan *p) {
    return (const struct kern_bias *)(const void *)((const char *)p + p->bias);
}
static inline const struct kern_seen *plan_seen(const struct kern_plan *p) {
    return (const struct kern_seen *)(const void *)((const char *)p + p->seen);
}
static inline const uint32_t *plan_ban(const struct kern_plan *p) {
    return (const uint32_t *)(const void *)((const char *)p + p->ban);
}
static inline const uint32_t *plan_mask(const struct kern_plan *p) {
    return (const uint32_t *)(const void *)((const char *)p + p->mask);
}
static inline const float *plan_embeds(const struct kern_plan *p) {
    return (const float *)(const void *)((const char *)p + p->embeds);
}

#endif
