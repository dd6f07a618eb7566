/* SPDX-License-Identifier: MIT */
/* kernnaive.h: the whole forward pass written once more, from the formulas, in the plainest way: double
 * everywhere, all tokens at once, no cache, no state, expanded attention, the recurrence token by token.
 * Shares no code with any backend. For short sequences of the random model. */
#ifndef GLMD_TEST_KERNNAIVE_H
#define GLMD_TEST_KERNNAIVE_H

#include "kernmodel.h"

struct naive {
    uint32_t n, n_max;
    /* after each half layer: [2 * n_layers + 1][n][hc][E]; 0 is the embedding */
    double *streams;
    double *hidden, *logits;      /* [n][E], [n][vocab_rows] */
    double *draft, *draft_logits; /* [n - 1] rows, when the model has a draft layer */
    /* what the rows of each layer selected: [layers][n_max * n_max], rows of n, in the draft layer of n - 1
     */
    bool *chosen;
};

struct naive *naive_new(const struct kernmodel *m, const uint32_t *ids, uint32_t n);
void naive_free(struct naive *v);
/* ||got - want|| / ||want|| */
double naive_error(const float *got, const double *want, uint64_t n);

#endif
