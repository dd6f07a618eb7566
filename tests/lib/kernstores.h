/* SPDX-License-Identifier: MIT */
/* kernstores.h: matrices of the random model in any format: random codes and scales of the size the weights should
 * have, and the numbers they stand for by the scalar rule. Everything aborts the test on failure. */
#ifndef GLMD_TEST_KERNSTORES_H
#define GLMD_TEST_KERNSTORES_H

#include "backend.h"
#include "kernmodel.h"

/* Every store a test of formats goes through: each format, and each kind of scale and block. */
extern const struct kern_store ks_all[];
extern const uint32_t ks_count;

/* For cfg->stores: s for every matrix that a backend may keep so and whose shape it can hold, BF16 for the others.
 * ret_used: how many matrices are stored as s. Freed by the caller. */
struct kern_store *ks_stores(const struct kern_model_desc *m, const struct kern_store *s, uint32_t *ret_used);

/* Random pieces of a matrix with numbers of about `dev`: piece[i] allocated, NULL where there is none. */
void ks_random(const struct kern_store *s, uint64_t rows, uint64_t cols, float dev, struct km_rng *rng,
               uint8_t *piece[KERN_PIECES]);
/* What they stand for; allocated. */
float *ks_numbers(const struct kern_store *s, uint64_t rows, uint64_t cols, uint8_t *const piece[KERN_PIECES]);

#endif
