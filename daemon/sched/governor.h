/* SPDX-License-Identifier: MIT */
/* How prefill and decode share one device: how many rows a chunk has, and how many of its programs (layers)
 * run before the next decode step. A pure structure over times the caller measured; the engine thread owns it,
 * and the simulator runs the same code.
 *
 * The time decode steps took is a debt to the prefill; a slice spends what is owed, so each side gets about half of
 * the device whatever a step or a layer costs. Step and slice together stay within target_gap_ns, as long as that
 * leaves the prefill a quarter of the time, as far as whole programs fill it; chunks are made so small that the longest
 * of their programs fits. A program cannot be cut, so one that is longer than all that waits until half of its time is
 * owed, and no longer. Where a step is slower behind a slice, because its weights have left the caches, slices are
 * fewer and longer, within the gap, and that loss is owed to nobody. Without decoding streams a slice is bounded only
 * so that a cancellation does not wait long. */
#ifndef GLMD_SCHED_GOVERNOR_H
#define GLMD_SCHED_GOVERNOR_H

#include <stdbool.h>
#include <stdint.h>

enum {
    GOVERNOR_SIZES = 14, /* chunks of 1 to 8192 rows, by powers of two */
    GOVERNOR_PROGS = 132 /* of a chunk: layers, and what ends it; those behind share the last place */
};

struct governor {
    uint64_t target_gap_ns;
    double debt_ns;     /* decode time the prefill has not yet been given back; below 0: the other way round */
    uint64_t decode_ns; /* of the last decode step */
    double warm_ns, cold_ns; /* steps behind another step, and behind a slice; 0 = not known */
    bool after_slice;
    double program_ns[GOVERNOR_SIZES]; /* the mean program of a chunk of at most 2^i rows; 0 = not known */
    double program_rows[GOVERNOR_SIZES]; /* how many rows those had that were measured */
    uint64_t measured[GOVERNOR_SIZES], n_measured; /* which slice was the last of each, of how many */
    double part[GOVERNOR_PROGS];         /* what each program takes, in means */
    uint32_t n_parts;                    /* of which something was measured */
};

void governor_init(struct governor *g, uint64_t target_gap_ns);
/* A decode step took ns. */
void governor_decoded(struct governor *g, uint64_t ns);
/* Rows of the next chunk, of `left` that are to be read: at most max_rows, a multiple of grid unless it is all
 * that is left. */
uint32_t governor_rows(struct governor *g, bool busy, uint32_t left, uint32_t max_rows, uint32_t grid);
/* Programs to launch now of a chunk of `rows` rows, from its program `first` on, of n_left that are to run; 0: none
 * before the next decode step. busy: decode steps wait between the slices. Takes the step's time into the debt, so
 * once a round. */
uint32_t governor_slice(struct governor *g, bool busy, uint32_t rows, uint32_t first, uint32_t n_left);
/* Whether prompts that end with `rows` rows should be read by themselves, before a chunk of `all` rows that has them
 * would be done: not where a chunk costs nearly the same whatever its size. */
bool governor_splits(const struct governor *g, uint32_t rows, uint32_t all);
/* That slice took ns for n programs from `first` on; n = 0: a time that says nothing about programs. */
void governor_sliced(struct governor *g, uint32_t rows, uint32_t first, uint32_t n, uint64_t ns);

#endif
