/* SPDX-License-Identifier: MIT */
/* The scheduler and readers that stand still, or nearly: their requests give seats and memory to others and come back
 * when they read, and one user's never take all places. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>

#include "leakcheck.h"
#include "schedfix.h"

static void open_sched(uint32_t seats, uint32_t slots, uint32_t places, uint32_t pages) {
    schedfix_open(seats, slots, places, pages, 0);
}

/* Readers that stand still give memory to whoever waits for it, also to the background, not before their time, and
 * get it back when they read and not before. */
START_TEST(parked_gives_its_memory) {
    for (uint32_t slots = 1; slots < 9; slots += 7) { /* slots, or pages, are short */
        struct sched_job j = job_of(1, 500, 12), other = job_of(2, 1000, 24);
        uint32_t job;

        open_sched(4, slots, 12, 4);
        j.movable = true;
        other.background = slots == 1;
        add(0, j, 0);
        ck_assert_uint_eq(admit(0), 0);
        sched_filled(s, 0, 500, 0);
        add(1, other, 0);
        sched_skip(s, 0, true, 1000);
        ck_assert_uint_eq(admit(3999), UINT32_MAX);
        ck_assert_int_eq(sched_pick_release(s, &job), -EAGAIN);
        ck_assert_uint_eq(sched_next_event(s), 4000);
        ck_assert_uint_eq(admit(4000), UINT32_MAX);
        ck_assert_int_eq(sched_pick_release(s, &job), 0);
        ck_assert_uint_eq(job, 0);
        sched_requeue(s, 0, 500, 4000);
        ck_assert_uint_eq(admit(4000), 1);
        ck_assert_uint_eq(sched_next_event(s), SCHED_NEVER); /* nobody waits for its reader */
        sched_remove(s, 1);
        ck_assert_uint_eq(admit(4000), UINT32_MAX);
        sched_skip(s, 0, false, 5000);
        ck_assert_uint_eq(admit(5000), 0);
        sched_filled(s, 0, 500, 5000);
        ck_assert_int_eq(sched_job_state(s, 0), SCHED_DECODE);
        close_sched();
    }
}
END_TEST

/* It was paused for something else when its reader stopped: it is looked at again when it is parked. */
START_TEST(paused_and_then_parked) {
    struct sched_job j = job_of(1, 500, 12);
    uint32_t job;

    open_sched(1, 2, 3, 4);
    j.background = j.movable = true;
    add(0, j, 0);
    ck_assert_uint_eq(admit(0), 0);
    add(1, job_of(2, 250, 6), 0);
    ck_assert_uint_eq(admit(0), 1);
    ck_assert(sched_job_paused(s, 0));
    sched_skip(s, 0, true, 100);
    j = job_of(3, 500, 12);
    j.background = true;
    add(2, j, 200);
    ck_assert_uint_eq(admit(200), UINT32_MAX);
    ck_assert_uint_eq(sched_next_event(s), 3100);
    ck_assert_uint_eq(admit(3100), UINT32_MAX);
    ck_assert_int_eq(sched_pick_release(s, &job), 0);
    ck_assert_uint_eq(job, 0);
    close_sched();
}
END_TEST

/* A reader that takes a token now and then holds its seat no longer than one that stands still, and not again for a
 * while when it has it back. One that lets its sequence run for a third of the time is no such reader. */
START_TEST(slow_readers_are_parked) {
    uint64_t t = 1000;

    open_sched(1, 3, 12, 100);
    add(0, job_of(1, 100, 10), 0);
    ck_assert_uint_eq(admit(0), 0);
    sched_filled(s, 0, 100, 0);
    for (uint32_t i = 0; i < 10; i++, t += 2910) { /* nobody waits: it keeps its seat */
        sched_skip(s, 0, true, t);
        ck_assert_uint_eq(admit(t + 2900), UINT32_MAX);
        sched_skip(s, 0, false, t + 2900);
    }
    ck_assert(!sched_job_paused(s, 0));
    sched_skip(s, 0, true, t);
    add(1, job_of(2, 100, 10), t);
    ck_assert_uint_eq(sched_next_event(s), t + 30); /* three times the ten it has run */
    ck_assert_uint_eq(admit(t + 29), UINT32_MAX);
    ck_assert_uint_eq(admit(t + 30), 1);
    ck_assert(sched_job_paused(s, 0));
    sched_filled(s, 1, 100, t);
    t += 5000;
    sched_skip(s, 0, false, t); /* while it waits for its seat nothing is forgiven */
    sched_remove(s, 1);
    t += 5000;
    ck_assert_uint_eq(admit(t), UINT32_MAX);
    ck_assert(!sched_job_paused(s, 0));
    t += 20;
    sched_skip(s, 0, true, t);
    add(1, job_of(2, 100, 10), t);
    ck_assert_uint_eq(sched_next_event(s), t + 60);
    ck_assert_uint_eq(admit(t + 60), 1);
    close_sched();

    open_sched(1, 3, 12, 100);
    add(0, job_of(1, 100, 10), 0);
    ck_assert_uint_eq(admit(0), 0);
    sched_filled(s, 0, 100, 0);
    add(1, job_of(2, 100, 10), 0);
    for (t = 0; t < 300000; t += 1500) {
        sched_skip(s, 0, true, t);
        ck_assert_uint_eq(admit(t + 500), UINT32_MAX);
        ck_assert_uint_eq(admit(t + 1000), UINT32_MAX);
        sched_skip(s, 0, false, t + 1000);
    }
    close_sched();
}
END_TEST

/* However many requests whose readers stand still a user has, others find places, of which one of them in turn gets
 * half of those that are left; who reads has all seats at once. */
START_TEST(places_are_left_to_others) {
    static const uint32_t most[] = { 6, 3, 2, 1 };
    uint32_t job = 0, got[4] = { 0 };
    uint64_t t = 0;

    open_sched(4, 64, 12, 1000);
    for (uint32_t user = 0; user < 4; user++) {
        for (uint32_t i = 0; i < 14; i++)
            add(user * 14 + i, job_of(user, 100, 10), t);
        for (uint32_t round = 0; round < 10; round++, t += 3000) {
            while ((job = admit(t)) != UINT32_MAX) {
                ck_assert_uint_eq(job / 14, user);
                sched_filled(s, job, 100, t);
                sched_skip(s, job, true, t);
                got[user]++;
            }
            ck_assert_uint_le(got[user], round ? most[user] : 4);
        }
        ck_assert_uint_eq(got[user], most[user]);
    }
    for (uint32_t i = 0; i < 56; i++)
        sched_remove(s, i);
    for (uint32_t i = 0; i < 4; i++)
        add(i, job_of(1, 100, 10), t);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_uint_eq(admit(t), i);
    close_sched();
}
END_TEST

int main(void) {
    Suite *suite = suite_create("sched_parked");
    TCase *tc = tcase_create("parked");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, parked_gives_its_memory);
    tcase_add_test(tc, paused_and_then_parked);
    tcase_add_test(tc, slow_readers_are_parked);
    tcase_add_test(tc, places_are_left_to_others);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
