/* SPDX-License-Identifier: MIT */
/* The governor on devices of all speeds: halves, gaps, programs longer than any gap, clocks that jump. */
#include <check.h>

#include "governor.h"
#include "leakcheck.h"

enum { PROGRAMS = 40 };

struct device {
    double row_ns, flat_ns, step_ns; /* of a program */
    double cold; /* times as long takes a step behind a slice */
    double uneven; /* times as long takes every fourth program */
};

static double program(const struct device *d, uint32_t rows, uint32_t i) {
    return (d->flat_ns + rows * d->row_ns) * (i % 4 == 3 ? d->uneven : 1);
}

static double lost_part; /* of all time, by cold steps */

/* A prompt beside a decoder for n rounds: the decoder's part of the time, and the longest gap. */
static double share(struct governor *g, const struct device *d, uint32_t n, double *ret_gap) {
    double decode = 0, fill = 0, gap = 0, slices = 0, lost = 0;
    uint32_t rows = 0, left = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t k;

        double step = d->step_ns * (d->cold > 1 && slices > 0 ? d->cold : 1);

        governor_decoded(g, (uint64_t)step);
        decode += d->step_ns;
        lost += step - d->step_ns;
        if (step + slices > gap && i > n / 2)
            gap = step + slices;
        slices = 0;
        if (!left) {
            rows = governor_rows(g, true, 1u << 20, 2048, 64);
            left = PROGRAMS;
        }
        k = governor_slice(g, true, rows, PROGRAMS - left, left);
        double took = 0;
        for (uint32_t p = PROGRAMS - left; p < PROGRAMS - left + k; p++)
            took += program(d, rows, p);
        if (k)
            governor_sliced(g, rows, PROGRAMS - left, k, (uint64_t)took);
        left -= k;
        fill += took;
        slices += took;
    }
    *ret_gap = gap;
    lost_part = lost / (decode + fill + lost);
    return decode / (decode + fill);
}

START_TEST(governor_halves) {
    static const struct device d[] = {
        { 1000, 100000, 1000000, 1, 1 }, { 20000, 5600000, 32000000, 1, 1 }, { 100000, 0, 3000000, 1, 1 },
        { 500, 3000000, 1000000, 1, 1 },
        { 60000, 1000000, 50000000, 1, 1 },
    };

    for (uint32_t i = 0; i < sizeof d / sizeof *d; i++) {
        struct governor g;
        double gap, part;

        governor_init(&g, 200000000);
        part = share(&g, &d[i], 4000, &gap);
        ck_assert_msg(part > 0.47 && part < 0.53, "device %u: decode has %.3f", i, part);
        ck_assert_msg(gap <= 200e6, "device %u: a gap of %.1f ms", i, gap / 1e6);
    }
}
END_TEST

/* A step behind a slice takes two and a half times as long: few and long slices lose little by it. */
START_TEST(governor_and_cold_caches) {
    struct device d = { 1000, 500000, 1800000, 2.5, 1 };
    struct governor g;
    double gap, part;

    governor_init(&g, 60000000);
    for (uint32_t i = 0; i < 20; i++)
        governor_decoded(&g, 1800000);
    part = share(&g, &d, 6000, &gap);
    ck_assert_msg(part > 0.46 && part < 0.54, "decode has %.3f", part);
    ck_assert_msg(lost_part < 0.06, "%.3f of the time is lost", lost_part);
    ck_assert_msg(gap <= 61e6, "a gap of %.1f ms", gap / 1e6);
}
END_TEST

/* A program longer than any gap allowed: it runs, and the time is still halved. */
START_TEST(governor_long_programs) {
    struct device d = { 8000000, 0, 10000000, 1, 1 };
    struct governor g;
    double gap, part;

    governor_init(&g, 200000000);
    part = share(&g, &d, 4000, &gap);
    ck_assert_msg(part > 0.47 && part < 0.53, "decode has %.3f", part);
}
END_TEST

/* A short target makes chunks small; a step that is nearly as long leaves the prompt a quarter, as far as whole
 * programs fill it. */
START_TEST(governor_keeps_the_gap) {
    struct device d = { 20000, 1000000, 30000000, 1, 1 };
    struct governor g;
    double gap, part;

    governor_init(&g, 40000000);
    part = share(&g, &d, 4000, &gap);
    ck_assert_msg(gap <= 40.5e6, "a gap of %.1f ms", gap / 1e6);
    ck_assert_msg(part <= 0.86, "decode has %.3f", part);
    ck_assert_uint_lt(governor_rows(&g, true, 1u << 20, 2048, 64), 2048);
    ck_assert_uint_eq(governor_rows(&g, false, 1u << 20, 2048, 64), 2048);
    ck_assert_uint_eq(governor_rows(&g, true, 17, 2048, 64), 17);
}
END_TEST

/* Layers that attend to all that was read take several times what the others do: the longest one decides how large a
 * chunk may be, and no slice is taken for shorter than it is. */
START_TEST(governor_and_uneven_programs) {
    static const struct device d[] = {
        { 70000, 0, 2000000, 1, 3 },
        { 20000, 1000000, 2000000, 1, 6 },
        { 1000, 100000, 1000000, 1, 2 },
    };

    for (uint32_t i = 0; i < sizeof d / sizeof *d; i++) {
        struct governor g;
        double gap, part;

        governor_init(&g, 25000000);
        part = share(&g, &d[i], 6000, &gap);
        ck_assert_msg(part > 0.47 && part < 0.53, "device %u: decode has %.3f", i, part);
        ck_assert_msg(gap <= 25e6, "device %u: a gap of %.1f ms", i, gap / 1e6);
    }
}
END_TEST

/* A prompt's last chunk is small. What its programs take does not make full ones look short: the next prompt would
 * begin with a chunk far too large. */
START_TEST(governor_knows_sizes) {
    struct device d = { 80000, 0, 2000000, 1, 1 };
    struct governor g;

    governor_init(&g, 25000000);
    governor_sliced(&g, 64, 0, PROGRAMS, (uint64_t)(PROGRAMS * program(&d, 64, 0)));
    for (uint32_t i = 0; i < 20; i++)
        governor_sliced(&g, 512, 0, PROGRAMS, (uint64_t)(PROGRAMS * program(&d, 512, 0)));
    for (uint32_t i = 0; i < PROGRAMS; i++)
        governor_sliced(&g, 272, i, 1, (uint64_t)program(&d, 272, i));
    governor_decoded(&g, 2000000);
    ck_assert_uint_lt(governor_rows(&g, true, 1u << 20, 512, 64), 512);
}
END_TEST

/* One absurd measurement is not believed for long, and nothing divides by it. */
START_TEST(governor_and_a_jumping_clock) {
    struct device d = { 20000, 5600000, 32000000, 1, 1 };
    struct governor g;
    double gap, part;

    governor_init(&g, 200000000);
    share(&g, &d, 500, &gap);
    governor_decoded(&g, UINT64_MAX);
    governor_sliced(&g, 2048, 0, 1, UINT64_MAX);
    governor_sliced(&g, 64, 0, 3, UINT64_MAX);
    governor_sliced(&g, 64, 0, 3, 0);
    share(&g, &d, 1000, &gap);
    part = share(&g, &d, 4000, &gap);
    ck_assert_msg(part > 0.45 && part < 0.55, "decode has %.3f", part);
    ck_assert_msg(gap <= 200e6, "a gap of %.1f ms", gap / 1e6);
}
END_TEST

/* What ends is read first where that is quicker, and not where a chunk costs the same whatever its size. */
START_TEST(governor_splits_chunks) {
    struct governor g;

    governor_init(&g, 200000000);
    ck_assert(governor_splits(&g, 10, 512));
    governor_sliced(&g, 512, 0, 10, 100000000);
    governor_sliced(&g, 10, 0, 10, 10000000);
    ck_assert(governor_splits(&g, 10, 512));
    for (int i = 0; i < 30; i++)
        governor_sliced(&g, 10, 0, 10, 80000000);
    ck_assert(!governor_splits(&g, 10, 512));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("sched_governor");
    TCase *tc = tcase_create("governor");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, governor_halves);
    tcase_add_test(tc, governor_and_cold_caches);
    tcase_add_test(tc, governor_long_programs);
    tcase_add_test(tc, governor_keeps_the_gap);
    tcase_add_test(tc, governor_and_uneven_programs);
    tcase_add_test(tc, governor_knows_sizes);
    tcase_add_test(tc, governor_and_a_jumping_clock);
    tcase_add_test(tc, governor_splits_chunks);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
