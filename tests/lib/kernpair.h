/* SPDX-License-Identifier: MIT */
/* kernpair.h: a backend beside the oracle on one random model, stage by stage: streams after every half layer, hidden
 * states, logits, the draft layer and the counters. Everything aborts the test on failure. */
#ifndef GLMD_TEST_KERNPAIR_H
#define GLMD_TEST_KERNPAIR_H

#include "kernmodel.h"

struct kp_pair {
    struct kernmodel *m;
    struct km_inst *ref, *other;
    struct km_plan *plan;
    float *a, *b;     /* room for whatever is compared */
    double tolerance; /* of the relative error of what a stage leaves, all rows together */
    bool rounds;      /* other rounds the inputs of its products to BF16, and so does the oracle; top-1 is compared
                       * where the oracle's is ahead by more than the tolerance */
};

void kp_open(struct kp_pair *p, const struct kern_config *cfg, uint64_t seed, const char *backend, bool rounds,
             double tolerance);
void kp_close(struct kp_pair *p);
/* Rows pos0 .. pos0+n-1 of slot 1, half a layer at a time, everything compared. */
void kp_rows(struct kp_pair *p, const uint32_t *ids, uint32_t total, uint32_t lane, uint32_t pos0, uint32_t n);
/* A text of 203 tokens: two prefill chunks, then decode steps of 1 to 7 rows. */
void kp_text(struct kp_pair *p, uint64_t seed);

#endif
