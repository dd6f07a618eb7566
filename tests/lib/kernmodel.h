/* SPDX-License-Identifier: MIT */
/* kernmodel.h: a small random model for any backend, and plans to drive it. Weights come from a fixed seed
 * and are the same for every backend; they can be read back as the exact numbers that were packed, so a test
 * may compute its own answer. Everything aborts the test (Check's ck_assert) on failure. */
#ifndef GLMD_TEST_KERNMODEL_H
#define GLMD_TEST_KERNMODEL_H

#include "kern.h"

/* ---- a deterministic generator ---- */

struct km_rng {
    uint64_t s;
};
uint64_t km_u64(struct km_rng *r);
uint32_t km_below(struct km_rng *r, uint32_t n); /* 0 .. n-1 */
float km_uniform(struct km_rng *r);              /* [0, 1) */
float km_normal(struct km_rng *r);

/* ---- models ---- */

struct kernmodel {
    struct kern_config cfg;
    uint64_t n;     /* tensors */
    float **weight; /* [kern part slots], NULL where the model has none */
    uint8_t **piece; /* [kern part slots][KERN_PIECES]: stored matrices as packed, when cfg.stores is given */
    struct kern_store *stores; /* copy of cfg.stores, or NULL */
};

/* Layers as a string, one word per layer: mixer K (KDA), F (MLA, own index), S (MLA, shared selection), N
 * (MLA without index), then feed-forward d (dense) or m (experts), then s where kv_b is two tensors:
 * "Kd Fm Sms Km". The draft layer, if any, is
 * "Fm". */
void km_layers(struct kern_model_desc *m, const char *trunk, const char *draft);
/* Odd sizes everywhere, clamps that fire, 24 padding rows, top-k of 4 pools, layers "Kd Fm Sm Km Fd" and a
 * draft layer. Engine side: 2 slots' worth of everything for n_slots sequences of max_context tokens, F32
 * cache. */
void km_config_small(struct kern_config *cfg);
/* The same of GLM-5.3's kind: MLA with rotary positions everywhere, plain residuals, a per-token index that layers
 * share, no clamp: "Fd Fd Sm Fm Sm Sm" and a draft layer with its own index. The base is small, so that every pair
 * turns far in a few hundred tokens. */
void km_config_glm53(struct kern_config *cfg);
/* With cfg->stores, matrices that are not BF16 have random codes and scales, and weight is what they stand for. */
struct kernmodel *km_new(const struct kern_config *cfg, uint64_t seed);
void km_free(struct kernmodel *m);
/* rows x cols numbers exactly as packed; NULL when the model has no such part */
const float *km_weight(const struct kernmodel *m, uint32_t part, uint32_t layer, uint32_t expert);

/* ---- an open backend ---- */

struct km_inst {
    const struct kernmodel *model; /* NULL: the weights are a checkpoint's (ckptinst.h) */
    struct kern_config cfg;
    char backend[16];
    struct kern *k;
    struct kern_block mem[KERN_MEM_N];
    /* Programs of each lane: the whole trunk up to hidden; the head; the draft layer with its head. */
    struct kern_prog *trunk[KERN_LANES], *head[KERN_LANES], *draft[KERN_LANES];
    /* For each trunk layer up to the mixer's merge, then up to the feed-forward's merge; embed and final
     * apart. */
    struct kern_prog *embed[KERN_LANES], *half[KERN_LANES][KERN_MAX_LAYERS][2], *final[KERN_LANES];
    uint32_t pages_per_slot;
};

/* Every tensor of the model in windows of 1 to `most` bytes in random order, then kern_pack_done(). */
void km_pack_shuffled(const struct kernmodel *m, struct kern *k, uint64_t most, uint64_t seed);
/* cfg NULL: the model's own; otherwise another engine side (threads, isa, cache, lanes) for the same model.
 * Packs in windows of odd length. */
struct km_inst *km_open(const struct kernmodel *m, const char *backend, const struct kern_config *cfg);
void km_close(struct km_inst *i);
/* The two halves around packing: i->cfg, backend and pages_per_slot are set; memory and the object, then programs. */
void km_start(struct km_inst *i);
void km_capture(struct km_inst *i);

/* ---- plans ---- */

enum {
    KM_MAX_ROWS = 4096,
    KM_MAX_SEQS = 64,
    KM_MAX_SAMPLES = 4096,
    KM_MAX_PAGES = 4096,
    KM_MAX_LIST = 1 << 14
};

struct km_plan {
    const struct kern_config *cfg;
    uint32_t pages_per_slot;
    struct kern_plan head; /* counts */
    struct kern_row row[KM_MAX_ROWS];
    struct kern_seq seq[KM_MAX_SEQS];
    struct kern_sample sample[KM_MAX_SAMPLES];
    uint32_t page[KM_MAX_PAGES];
    struct kern_bias bias[KM_MAX_LIST];
    struct kern_seen seen[KM_MAX_LIST];
    uint32_t ban[KM_MAX_LIST], mask[KM_MAX_LIST];
    float *embed; /* n_embeds rows, borrowed */
    struct kern_plan *built;
    uint64_t cap;
};

struct km_plan *km_plan_new(const struct km_inst *i);
struct km_plan *km_plan_new_cfg(const struct kern_config *cfg);
void km_plan_free(struct km_plan *p);
void km_plan_clear(struct km_plan *p, uint32_t lane);
/* A sequence over the slot's own pages (slot * pages_per_slot + i). next: tokens at pos + 1 for the draft
 * stages or NULL. Returns the index of its first row. */
uint32_t km_plan_seq(struct km_plan *p, uint32_t slot, uint32_t pos0, uint32_t keep, uint32_t flags,
                     const uint32_t *tokens, uint32_t n, const uint32_t *next);
/* Greedy draw with every cut off; change the fields of the returned entry before km_plan_build. */
struct kern_sample *km_plan_sample(struct km_plan *p, uint32_t row, uint32_t mode, uint32_t source);
/* Lays the plan out and seals it; valid until the next clear or build. */
struct kern_plan *km_plan_build(struct km_plan *p);

/* Loads, launches trunk, head when there are trunk samples, the draft programs when a sequence asks for them,
 * waits. */
void km_run(struct km_inst *i, struct km_plan *p);
void km_launch_wait(struct km_inst *i, uint32_t lane, struct kern_prog *prog);
const struct kern_result *km_results(struct km_inst *i, uint32_t lane);
/* Feeds tokens[0 .. n) from an empty slot: prefill chunks of `chunk` tokens (a multiple of 64) on lane 1, the
 * rest below the last full grid cell included. With drafts when next is known from the array. */
void km_prefill(struct km_inst *i, struct km_plan *p, uint32_t slot, const uint32_t *tokens, uint32_t n,
                uint32_t chunk);
/* One decode step of one committed token on lane 0, a SCORE sample; logits to dst[vocab_rows] when not NULL.
 */
void km_decode(struct km_inst *i, struct km_plan *p, uint32_t slot, uint32_t pos, uint32_t token, float *dst);
void km_peek(struct km_inst *i, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n, float *dst);

#endif
