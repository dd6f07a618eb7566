/* SPDX-License-Identifier: MIT */
/* Whole workloads against the scheduler and the governor on a virtual clock, with the costs of the real model:
 * 148 MB a state, 6,171 B a token, a step of 30 ms and 2 ms a row, a layer of a chunk of 5.6 ms and 20 us a row.
 * A loop as the engine's, over the product's own pools and prefix cache (simcache.h); prompts, answers, users, weights,
 * deadlines, cancellations, stalled readers, conversations that begin alike and jumps of the clock are drawn from a
 * seed. Plain books beside it say what must hold. */
#ifndef GLMD_TEST_SCHEDSIM_H
#define GLMD_TEST_SCHEDSIM_H

#include <stdint.h>

struct schedsim_result {
    uint64_t jobs, steps, chunks, parked, released, hits, refused;
    double wait_of_bound; /* the worst wait, as a part of its bound */
    char why[200];        /* what did not hold */
};

/* 0, or -1 with ret->why. */
int schedsim_run(uint64_t seed, struct schedsim_result *ret);

#endif
