/* SPDX-License-Identifier: MIT */
/* Builds step plans: collects sequences, rows and sampling entries in arrays of fixed size, then lays them
 * out as one flat plan with its digest. The same builder serves decode steps, prefill chunks and evaluation.
 * All memory is given at init; nothing here allocates. Engine thread only. */
#ifndef GLMD_ENGINE_PLAN_H
#define GLMD_ENGINE_PLAN_H

#include <stdint.h>

#include "kern.h"
#include "units.h"

/* Most that one plan of either lane may hold. */
struct plan_limits {
    uint32_t rows, seqs, samples, pages, bias, seen, ban, mask_words;
};

struct plan {
    const struct kern_config *cfg;
    struct plan_limits max;
    struct kern_plan *out; /* cfg->max_plan_bytes */
    struct kern_row *rows;
    struct kern_seq *seqs;
    struct kern_sample *samples;
    uint32_t *pages;
    struct kern_bias *bias;
    struct kern_seen *seen;
    uint32_t *ban, *mask;
    uint32_t lane;
    uint64_t step;
    uint32_t n_rows, n_seqs, n_samples, n_pages, n_bias, n_seen, n_ban, n_mask_words;
};

/* Words of one mask of allowed ids. */
uint32_t plan_mask_words(const struct kern_config *cfg);
/* kern_config.max_plan_bytes for these limits; 0 when no plan can be that large. */
uint64_t plan_max_bytes(const struct kern_config *cfg, const struct plan_limits *max);
/* Bytes of memory plan_init needs; cfg->max_plan_bytes is set. -EOVERFLOW. */
int plan_mem_bytes(const struct kern_config *cfg, const struct plan_limits *max, uint64_t *ret_bytes);
/* mem: zeroed, 64-aligned, borrowed; cfg borrowed. */
int plan_init(struct plan *p, const struct kern_config *cfg, const struct plan_limits *max, void *mem,
              uint64_t bytes);

void plan_begin(struct plan *p, uint32_t lane, uint64_t step);

/* The add calls return -ENOSPC when a limit is reached; the plan is then unusable until plan_begin. */

/* Opens a sequence; rows added next belong to it. pages: those that hold positions below the end of its
 * rows. */
int plan_seq(struct plan *p, struct mem_slot slot, uint32_t pos0, uint32_t keep, uint32_t flags,
             const struct mem_page *pages, uint32_t n_pages);
/* next: token at the following position for the draft stages, or KERN_NONE. Returns the row's index. */
int plan_row(struct plan *p, uint32_t token, uint32_t next);

/* An entry that draws greedily with everything switched off, for row `row`; the caller changes what it
 * needs before plan_end. NULL when full. */
struct kern_sample *plan_sample(struct plan *p, uint32_t row, enum kern_sample_mode mode,
                                enum kern_source source);
/* Attach slices to an entry. */
int plan_bias(struct plan *p, struct kern_sample *s, const struct kern_bias *bias, uint32_t n);
int plan_seen(struct plan *p, struct kern_sample *s, const struct kern_seen *seen, uint32_t n);
int plan_ban(struct plan *p, struct kern_sample *s, const uint32_t *ids, uint32_t n);
/* The entry may only draw ids whose bit is set: words of plan_mask_words(), zeroed, to be filled before the next
 * call of this file. NULL when full. */
uint32_t *plan_mask_of(struct plan *p, struct kern_sample *s);

/* Lays the plan out with its digest. */
int plan_end(struct plan *p, const struct kern_plan **ret, uint64_t *ret_bytes);

#endif
