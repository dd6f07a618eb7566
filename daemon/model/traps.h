/* SPDX-License-Identifier: MIT */
/* What is stored in which format, part by part, and which of it is known to spoil answers. */
#ifndef GLMD_MODEL_TRAPS_H
#define GLMD_MODEL_TRAPS_H

#include "directory.h"

enum {
    MODEL_MAX_ROWS = 256,
};

/* One line of the histogram: a group of parts ("routed experts") in one format. */
struct model_summary_row {
    const char *group;
    char format[48];
    uint64_t matrices, weights, bytes; /* bytes: once loaded */
};

/* layers: those that are loaded (without the MTP layer, or with it). Returns the rows, in a fixed order of
 * groups; at most MODEL_MAX_ROWS. */
size_t model_summary(const struct model_directory *d, const struct model_config *cfg, uint32_t layers,
                     struct model_summary_row ret[MODEL_MAX_ROWS]);

struct model_allow {
    bool four_bit_dense;       /* [Model] AllowFourBitDense */
    const char *low_precision; /* [Model] AllowLowPrecision: words of MODEL_LOW_WORDS with commas, or "" */
};

#define MODEL_LOW_WORDS "embed, kv_b, indexer, kda_gates"

/* Refuses what nobody should run without knowing it: matrices outside of the routed experts in four bits or
 * fewer, and anything below 16 bits where a small error becomes a large one. -EPERM: not allowed, the message
 * says what would allow it; -EINVAL: a word in `low_precision` that is none. dir: for the message. */
int model_allowed(const char *dir, const struct model_config *cfg, const struct model_directory *d, uint32_t layers,
                  const struct model_allow *allow, struct xerr *e);
/* -EINVAL: a word in `list` is none of MODEL_LOW_WORDS. */
int model_allowed_words(const char *list, struct xerr *e);

#endif
