/* SPDX-License-Identifier: MIT */
/* A random checkpoint of GLM-5.3's shape, small and with every structural feature: dense layers before
 * mixtures of experts, indexers in layers 0, 1, 2, 6 and 10 whose lists the others reuse, keys with a turned
 * part, a layer that drafts. Names, types and config.json are those of the release. The same seed gives the
 * same bytes. Needs build/models/nano for the tokenizer. Every failure fails the running Check test. */
#ifndef GLMD_TEST_TWIN53_H
#define GLMD_TEST_TWIN53_H

#include "ckpt.h"
#include "oracle53.h"

/* The dimensions to begin with; a test may change them before twin53_make(). */
struct o53_dims twin53_dims(void);

/* stored: "bf16", or "fp8" with the matrices which the release has in E4M3 blocks of 128 x 128. */
void twin53_make(struct o53_model *ret, const struct o53_dims *d, uint64_t seed, const char *stored);
void twin53_done(struct o53_model *m);

/* Into a directory of ckpt_empty(): weights, configuration, tokenizer, template. stored: as it was made. */
void twin53_write(const struct o53_model *m, const struct ckpt *c, const char *stored);

/* What the oracle says of n random ids and n_greedy more, as case `name` of a golden file. */
struct twin53_case {
    const char *name;
    uint32_t n, n_greedy;
};
/* The smallest gaps of all cases (see struct o53_out) are for the test to judge. */
void twin53_golden(const struct o53_model *m, const struct ckpt *c, const char *file,
                   const struct twin53_case *cases, uint32_t n_cases, struct o53_out *ret_gaps);

#endif
