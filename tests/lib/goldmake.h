/* SPDX-License-Identifier: MIT */
/* Golden files for glm-eval, made by tests: put together from answers that something else gave. Every failure
 * fails the running Check test. */
#ifndef GLMD_TEST_GOLDMAKE_H
#define GLMD_TEST_GOLDMAKE_H

#include "ckptset.h"
#include "eval.h"

void goldmake_floats(struct ckpt_set *s, const char *name, const char *what, const float *v, size_t n);
void goldmake_ids(struct ckpt_set *s, const char *name, const char *what, const int32_t *v, size_t n);

/* Case `name`: what the daemon's engine says with the checkpoint in dir about n ids and n_greedy that follow.
 */
void goldmake_engine(struct ckpt_set *s, const char *name, const char *dir, const char *backend,
                     const uint32_t *ids, uint32_t n, uint32_t n_greedy);

/* glm-eval's verdict about the checkpoint in dir, an exit status; what it said is in goldmake_said, and on
 * the standard output when it is not 0. */
int goldmake_judge(const char *dir, const char *backend, const char *golden, double tolerance);
int goldmake_eval(const struct eval_options *o, const char *golden); /* the same with everything chosen */
extern char goldmake_said[4096];

#endif
