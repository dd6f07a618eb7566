/* SPDX-License-Identifier: MIT */
/* governor.c: chunk sizes and slice lengths from measured times. Owned by the engine thread; looks at no clock,
 * allocates nothing.
 *
 * What a program takes is kept as the mean of a chunk's programs by the size of the chunk, in powers of two: a single
 * row costs nearly what sixteen do, because the weights have to be read for it as well. Beside it stands, by the
 * program's place and for chunks of all sizes, how many times the mean each one takes: a layer that attends to all
 * that was read takes several times what one with a state takes, and more the further a prompt has come. */
#include "governor.h"

/* A clock that jumps must not be taken for a program that takes an hour. */
#define MOST_NS       UINT64_C(10000000000)
#define IDLE_SLICE_NS 50e6
#define LEAST_PART    0.01

void governor_init(struct governor *g, uint64_t target_gap_ns) {
    *g = (struct governor){ .target_gap_ns = target_gap_ns };
    for (uint32_t i = 0; i < GOVERNOR_PROGS; i++)
        g->part[i] = 1;
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

/* The mean program of a chunk of so many rows: as it was measured, or in proportion to smaller ones, which is the most
 * it can be, where they were measured later or alone. 0: nothing is known. */
static double program_ns(const struct governor *g, uint32_t rows) {
    uint32_t i = bucket(rows);
    uint64_t when = 0;
    double ns = 0;

    for (uint32_t j = 0; j <= i; j++) {
        double size = j < i ? (double)(1u << j) : rows, own = g->program_ns[j];

        ns *= j ? size / (double)(1u << (j - 1)) : 1;
        if (own <= 0)
            continue;
        if (size > g->program_rows[j] && !FAULT(governor_one_size))
            own *= size / g->program_rows[j];
        if (ns <= 0 || own < ns || g->measured[j] > when)
            ns = own;
        when = g->measured[j] > when ? g->measured[j] : when;
    }
    for (uint32_t j = i + 1; j < GOVERNOR_SIZES && ns <= 0; j++)
        ns = g->program_ns[j];
    return ns;
}

/* ---- programs by their place ---- */

/* Of program i, in means. */
static double *part_of(struct governor *g, uint32_t i) {
    return &g->part[i < GOVERNOR_PROGS ? i : GOVERNOR_PROGS - 1];
}

static double longest_part(const struct governor *g) {
    double most = 1;

    for (uint32_t i = 0; i < g->n_parts && !FAULT(governor_means_alone); i++)
        most = g->part[i] > most ? g->part[i] : most;
    return most;
}

/* Their mean is 1, else a machine that got slower would be all of its programs getting longer than the mean. */
static void parts_level(struct governor *g) {
    double sum = 0;

    for (uint32_t i = 0; i < g->n_parts; i++)
        sum += g->part[i];
    for (uint32_t i = 0; i < g->n_parts; i++)
        g->part[i] *= g->n_parts / sum;
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

/* So long that what the step behind it loses is an eightieth of both. */
static double slice_least(const struct governor *g, double most) {
    double loss = g->warm_ns > 0 && g->cold_ns > g->warm_ns ? g->cold_ns - g->warm_ns : 0;

    return FAULT(governor_owes_misses) ? 0 : loss * 40 < most ? loss * 40 : most;
}

uint32_t governor_rows(struct governor *g, bool busy, uint32_t left, uint32_t max_rows, uint32_t grid) {
    double most, floor_ns, longest = longest_part(g);
    uint32_t rows = max_rows;

    if (FAULT(governor_small_chunks))
        return left < grid ? left : grid;
    if (!busy || FAULT(governor_whole_chunks))
        return left < rows ? left : rows;
    floor_ns = program_ns(g, grid) * longest;
    if (floor_ns <= 0)
        return left < grid ? left : grid; /* nothing is known: a small one tells */
    most = slice_most(g);
    /* below a size where reading the weights is all there is, a smaller chunk is no faster */
    if (most < floor_ns * 1.25)
        most = floor_ns * 1.25;
    while (rows > grid && program_ns(g, rows) * longest > most) {
        /* what is never tried again would stay known as slow for ever */
        g->program_ns[bucket(rows)] *= 0.998;
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

/* How many programs from `first` on take about `ns` together, and no more than `most` if more than one. */
static uint32_t programs_in(struct governor *g, uint32_t first, uint32_t n_left, double mean, double ns, double most) {
    double sum = 0;
    uint32_t n = 0;

    for (; n < n_left; n++) {
        double one = mean * *part_of(g, first + n);

        if (n && (sum + one / 2 > ns || sum + one > most))
            break;
        sum += one;
    }
    return n;
}

uint32_t governor_slice(struct governor *g, bool busy, uint32_t rows, uint32_t first, uint32_t n_left) {
    double mean = program_ns(g, rows), most = slice_most(g), one = mean * *part_of(g, first), cap;

    if (!busy) {
        g->debt_ns = 0;
        return mean > 0 ? programs_in(g, first, n_left, mean, IDLE_SLICE_NS, IDLE_SLICE_NS) : n_left != 0;
    }
    if (FAULT(governor_whole_chunks))
        return n_left;
    cap = FAULT(fill_debt_capped) || one / 2 < most ? most : one / 2;
    g->debt_ns += FAULT(governor_starves) ? step_alone(g) / 4 : step_alone(g);
    if (g->debt_ns > cap)
        g->debt_ns = cap;
    if (mean <= 0)
        return n_left != 0;
    if (g->debt_ns < one / 2 || g->debt_ns < slice_least(g, most))
        return 0;
    return programs_in(g, first, n_left, mean, g->debt_ns, most);
}

void governor_sliced(struct governor *g, uint32_t rows, uint32_t first, uint32_t n, uint64_t ns) {
    double *known = &g->program_ns[bucket(rows)], *known_rows = &g->program_rows[bucket(rows)];
    double took = (double)bounded(ns), one, lowest, sum = 0, expected;

    g->debt_ns -= took;
    g->after_slice = true;
    if (!n)
        return;
    one = took / n;
    lowest = -(one > slice_most(g) ? one : slice_most(g));
    if (g->debt_ns < lowest)
        g->debt_ns = lowest;
    for (; g->n_parts < first + n && g->n_parts < GOVERNOR_PROGS; g->n_parts++)
        g->part[g->n_parts] = 1;
    for (uint32_t i = first; i < first + n; i++)
        sum += *part_of(g, i);
    one = took / sum;
    if (*known > 0 && one > *known * 8) /* somebody else had the machine for a moment */
        one = *known * 8;
    expected = program_ns(g, rows);
    for (uint32_t i = first; i < first + n && *known > 0; i++) {
        double *part = part_of(g, i);

        *part *= 0.75 + 0.25 * (one < expected * 2 ? one / expected : 2);
        *part = *part < LEAST_PART ? LEAST_PART : *part;
    }
    g->measured[bucket(rows)] = ++g->n_measured;
    *known_rows = *known > 0 ? *known_rows * 0.75 + rows * 0.25 : rows;
    *known = *known > 0 ? *known * 0.75 + one * 0.25 : one;
    parts_level(g);
}
