/* SPDX-License-Identifier: MIT */
/* governor.c: chunk sizes and slice lengths from measured times. Owned by the engine thread; looks at no clock,
 * allocates nothing.
 *
 * What a program takes is kept by the size of its chunk, in powers of two: a single row costs nearly what sixteen
 * do, because the weights have to be read for it as well. */
#include "governor.h"

/* A clock that jumps must not be taken for a program that takes an hour. */
#define MOST_NS       UINT64_C(10000000000)
#define IDLE_SLICE_NS 50e6

void governor_init(struct governor *g, uint64_t target_gap_ns) {
    *g = (struct governor){ .target_gap_ns = target_gap_ns };
}

static uint64_t bounded(uint64_t ns) {
    return ns > MOST_NS ? MOST_NS : ns;
}

void governor_decoded(struct governor *g, uint64_t ns) {
    double *known = g->after_slice ? &g->cold_ns : &g->warm_ns;

    g->decode_ns = bounded(ns);
    *known = *known > 0 ? *known * 0.75 + (double)g->decode_ns * 0.25 : (double)g->decode_ns;
    g->after_slice = false;
}

static uint32_t bucket(uint32_t rows) {
    uint32_t i = 0;

    while (i < GOVERNOR_SIZES - 1 && rows > 1u << i)
        i++;
    return i;
}

/* 0: nothing is known. */
static double program_ns(const struct governor *g, uint32_t rows) {
    uint32_t i = bucket(rows);

    if (g->program_ns[i] > 0)
        return g->program_ns[i];
    for (uint32_t j = i; j-- > 0;)
        if (g->program_ns[j] > 0)
            return g->program_ns[j] * (double)(1u << (i - j));
    for (uint32_t j = i + 1; j < GOVERNOR_SIZES; j++)
        if (g->program_ns[j] > 0)
            return g->program_ns[j];
    return 0;
}

/* The longest slice between two decode steps. */
static double slice_most(const struct governor *g) {
    double step = g->cold_ns > (double)g->decode_ns ? g->cold_ns : (double)g->decode_ns;
    double least = step / 3, gap = (double)g->target_gap_ns - step;

    return gap > least ? gap : least;
}

/* What a step would have taken without slices. */
static double step_alone(const struct governor *g) {
    double ns = (double)g->decode_ns;

    return g->warm_ns > 0 && g->warm_ns < ns && !FAULT(governor_owes_misses) ? g->warm_ns : ns;
}

/* So long that what the step behind it loses is a twentieth of both. */
static double slice_least(const struct governor *g, double most) {
    double loss = g->warm_ns > 0 && g->cold_ns > g->warm_ns ? g->cold_ns - g->warm_ns : 0;

    return FAULT(governor_owes_misses) ? 0 : loss * 10 < most ? loss * 10 : most;
}

uint32_t governor_rows(struct governor *g, bool busy, uint32_t left, uint32_t max_rows, uint32_t grid) {
    double most, floor_ns;
    uint32_t rows = max_rows;

    if (!busy || FAULT(governor_whole_chunks))
        return left < rows ? left : rows;
    floor_ns = program_ns(g, grid);
    if (floor_ns <= 0)
        return left < grid ? left : grid; /* nothing is known: a small one tells */
    most = slice_most(g);
    /* below a size where reading the weights is all there is, a smaller chunk is no faster */
    if (most < floor_ns * 1.25)
        most = floor_ns * 1.25;
    while (rows > grid && program_ns(g, rows) > most) {
        /* what is never tried again would stay known as slow for ever */
        g->program_ns[bucket(rows)] *= 0.99;
        rows = rows / 2 / grid * grid;
    }
    if (rows < grid)
        rows = grid;
    return left < rows ? left : rows;
}

bool governor_splits(const struct governor *g, uint32_t rows, uint32_t all) {
    double whole = program_ns(g, all);

    return whole <= 0 || program_ns(g, rows) < whole / 2;
}

uint32_t governor_slice(struct governor *g, bool busy, uint32_t rows, uint32_t n_left) {
    double one = program_ns(g, rows), most = slice_most(g), want;

    if (!busy) {
        g->debt_ns = 0;
        want = one > 0 ? IDLE_SLICE_NS / one : 1;
    } else {
        double cap = FAULT(fill_debt_capped) || one / 2 < most ? most : one / 2;

        g->debt_ns += step_alone(g);
        if (g->debt_ns > cap)
            g->debt_ns = cap;
        if (one <= 0)
            return n_left ? 1 : 0;
        if (g->debt_ns < one / 2 || g->debt_ns < slice_least(g, most))
            return 0;
        want = g->debt_ns / one + 0.5;
        if (want > most / one)
            want = most / one;
    }
    if (want < 1)
        return n_left ? 1 : 0;
    return want < n_left ? (uint32_t)want : n_left;
}

void governor_sliced(struct governor *g, uint32_t rows, uint32_t n, uint64_t ns) {
    double *known = &g->program_ns[bucket(rows)], took = (double)bounded(ns), one, lowest;

    g->debt_ns -= took;
    g->after_slice = true;
    if (!n)
        return;
    one = took / n;
    lowest = -(one > slice_most(g) ? one : slice_most(g));
    if (g->debt_ns < lowest)
        g->debt_ns = lowest;
    if (*known > 0 && one > *known * 8) /* somebody else had the machine for a moment */
        one = *known * 8;
    *known = *known > 0 ? *known * 0.75 + one * 0.25 : one;
}
