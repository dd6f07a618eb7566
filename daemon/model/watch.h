/* SPDX-License-Identifier: MIT */
/* What is odd about the scales of a checkpoint, seen while it is read: nothing here refuses. */
#ifndef GLMD_MODEL_WATCH_H
#define GLMD_MODEL_WATCH_H

#include "directory.h"

struct model_findings {
    /* experts whose gate and up halves each have a factor, and those of which the two differ: a kernel that
     * takes one factor for both would compute wrong tokens (ours take two) */
    uint64_t pairs, unequal;
    double worst_ratio;
    /* groups of experts (one part of one layer) whose scales differ by more than MODEL_ABSURD: some were
     * never calibrated */
    uint32_t absurd, absurd_layer, absurd_part;
    double absurd_ratio; /* of the worst */
};

#define MODEL_ABSURD 1000.0

struct model_watch;

/* NULL: no memory. */
struct model_watch *model_watch_new(const struct model_directory *d);
struct model_watch *model_watch_free(struct model_watch *w); /* NULL ok; returns NULL */
/* A window of an item's bytes, converted. */
void model_watch_see(struct model_watch *w, const struct model_item *it, const void *bytes, uint64_t n);
void model_watch_report(const struct model_watch *w, struct model_findings *ret);

#endif
