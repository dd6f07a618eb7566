/* SPDX-License-Identifier: MIT */
/* The team of threads: every job runs once on every member, barriers hold everybody, what was written before
 * one is seen after it, sleepers wake, and nothing is left behind. */
#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu_pool.h"
#include "leakcheck.h"

enum { PHASES = 200, MAX = 5 };

struct team {
    struct pool pool;
    uint32_t n;
    uint32_t cell[MAX]; /* written by its member only, read by all after a barrier: plain memory on purpose */
    uint32_t order[256], n_order;
    uint32_t wrong;
    int nap; /* member 1 sleeps before its first barrier of a job */
};

static void phases(void *arg, uint32_t job, uint32_t member) {
    struct team *t = arg;
    if (t->nap && member == 1)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    if (member == 0)
        t->order[t->n_order++] = job;
    for (uint32_t ph = 0; ph < PHASES; ph++) {
        t->cell[member] = job * 1000 + ph;
        pool_barrier(&t->pool, member);
        for (uint32_t i = 0; i < t->n; i++)
            if (t->cell[i] != job * 1000 + ph)
                __atomic_fetch_add(&t->wrong, 1, __ATOMIC_RELAXED);
        pool_barrier(&t->pool, member);
    }
}

static struct team *team_new(uint32_t n) {
    struct team *t = aligned_alloc(64, (sizeof(*t) + 63) / 64 * 64);
    ck_assert_ptr_nonnull(t);
    memset(t, 0, sizeof(*t));
    t->n = n;
    ck_assert_int_eq(pool_start(&t->pool, n, phases, t), 0);
    return t;
}

START_TEST(barriers_hold) {
    struct team *t = team_new((uint32_t)_i);
    for (uint32_t job = 0; job < 10; job++) {
        pool_post(&t->pool, job);
        pool_join(&t->pool);
    }
    ck_assert_uint_eq(t->wrong, 0);
    pool_stop(&t->pool);
    free(t);
}
END_TEST

START_TEST(jobs_keep_their_order) {
    struct team *t = team_new(3);
    uint32_t next = 0, joined = 0;
    while (joined < 200) {
        while (next < 200 && !pool_full(&t->pool))
            pool_post(&t->pool, next++);
        ck_assert(next == 200 || pool_pending(&t->pool) == POOL_JOBS);
        for (int i = 0; i < 3 && pool_pending(&t->pool); i++, joined++)
            pool_join(&t->pool);
    }
    for (uint32_t i = 0; i < 200; i++)
        ck_assert_uint_eq(t->order[i], i);
    ck_assert_uint_eq(t->wrong, 0);
    pool_stop(&t->pool);
    free(t);
}
END_TEST

/* Long waits end in sleep, on both sides: a late member, and workers between far-apart jobs. */
START_TEST(sleepers_wake) {
    struct team *t = team_new(3);
    t->nap = 1;
    for (uint32_t job = 0; job < 20; job++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pool_post(&t->pool, job);
        pool_join(&t->pool);
    }
    ck_assert_uint_eq(t->wrong, 0);
    pool_stop(&t->pool);
    free(t);
}
END_TEST

/* Between jobs the team uses no processor time. */
START_TEST(idle_costs_nothing) {
    struct team *t = team_new(4);
    struct timespec a, b;
    pool_post(&t->pool, 0);
    pool_join(&t->pool);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    ck_assert_msg(used < 0.02, "%g s of processor time in 0.2 s of idling", used);
    pool_stop(&t->pool);
    free(t);
}
END_TEST

START_TEST(stop_with_work_posted) {
    for (int round = 0; round < 50; round++) {
        struct team *t = team_new(4);
        for (uint32_t i = 0; i < (uint32_t)round % 4; i++)
            pool_post(&t->pool, i);
        pool_stop(&t->pool);
        ck_assert_uint_eq(t->wrong, 0);
        ck_assert_uint_eq(t->n_order, (uint32_t)round % 4);
        free(t);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("cpu_pool");
    TCase *tc = tcase_create("pool");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, barriers_hold, 1, MAX + 1);
    tcase_add_test(tc, jobs_keep_their_order);
    tcase_add_test(tc, sleepers_wake);
    tcase_add_test(tc, idle_costs_nothing);
    tcase_add_test(tc, stop_with_work_posted);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
