/* SPDX-License-Identifier: MIT */
/* The scheduler beyond the plain queue: seats given and taken, background jobs, weights, needs after a hit, holds,
 * the queue's bound, waiting times, clocks that jump; and whole workloads
 * (schedsim.h). */
#include <check.h>
#include <errno.h>
#include <stdlib.h>

#include "leakcheck.h"
#include "schedfix.h"
#include "schedsim.h"

static void open_sched(uint32_t seats, uint32_t slots, uint32_t pages, uint32_t max_queued) {
    schedfix_open(seats, slots, 0, pages, max_queued);
}

static void add_background(uint32_t job, uint32_t uid, uint32_t prompt, uint64_t now) {
    struct sched_job j = job_of(uid, prompt, 10);

    j.background = true;
    add(job, j, now);
}

static uint32_t pick(uint64_t now) {
    struct sched_part p;

    return sched_plan_chunk(s, now, 64, 64, &p, 1) ? p.job : UINT32_MAX;
}

/* ---- seats ---- */

/* A stalled job loses its seat to one that waits, not before its time, and not for nothing; it goes on where it
 * was when there is a seat again. */
START_TEST(parked_when_somebody_waits) {
    uint32_t jobs[4];

    open_sched(1, 3, 100, 0);
    add(0, job_of(1, 100, 10), 0);
    ck_assert_uint_eq(admit(0), 0);
    sched_filled(s, 0, 100, 0);
    sched_skip(s, 0, true, 1000);
    ck_assert_uint_eq(sched_next_event(s), SCHED_NEVER); /* nobody waits */
    ck_assert_uint_eq(admit(100000), UINT32_MAX);
    ck_assert(!sched_job_paused(s, 0));
    sched_skip(s, 0, false, 100000);
    sched_skip(s, 0, true, 200000);
    add(1, job_of(2, 100, 10), 200000);
    ck_assert_uint_eq(sched_next_event(s), 203000);
    ck_assert_uint_eq(admit(202999), UINT32_MAX);
    ck_assert_uint_eq(admit(203000), 1);
    ck_assert(sched_job_paused(s, 0));
    ck_assert_int_eq(sched_job_state(s, 0), SCHED_DECODE);
    sched_filled(s, 1, 100, 203000);
    ck_assert_uint_eq(sched_pick_decode(s, jobs, 4), 1);
    ck_assert_uint_eq(jobs[0], 1);
    sched_skip(s, 0, false, 204000);
    ck_assert_uint_eq(admit(204000), UINT32_MAX); /* not stalled any more, but 1 has the seat */
    ck_assert(sched_job_paused(s, 0));
    add(2, job_of(3, 1, 1), 204000);
    sched_remove(s, 1);
    ck_assert_uint_eq(admit(205000), UINT32_MAX); /* the one that holds memory goes before the one that waits */
    ck_assert(!sched_job_paused(s, 0));
    ck_assert_uint_eq(sched_pick_decode(s, jobs, 4), 1);
    ck_assert_uint_eq(jobs[0], 0);
    sched_remove(s, 0);
    ck_assert_uint_eq(admit(205000), 2);
    close_sched();
}
END_TEST

/* A wait that parking cannot help must not make the caller look again and again. */
START_TEST(parking_is_looked_at_once) {
    open_sched(2, 2, 4, 0);
    add(0, job_of(1, 1000, 24), 0);
    ck_assert_uint_eq(admit(0), 0);
    sched_skip(s, 0, true, 0);
    add(1, job_of(2, 100, 10), 0); /* waits for pages */
    ck_assert_uint_eq(sched_next_event(s), 3000);
    ck_assert_uint_eq(admit(3000), UINT32_MAX);
    ck_assert_uint_eq(sched_next_event(s), SCHED_NEVER);
    close_sched();
}
END_TEST

/* An interactive job takes the seat of the background job admitted last, and gives it back by ending. */
START_TEST(background_yields_its_seat) {
    open_sched(2, 4, 100, 0);
    add_background(0, 1, 100, 0);
    add_background(1, 1, 100, 0);
    ck_assert_uint_eq(admit(0), 0);
    ck_assert_uint_eq(admit(0), 1);
    add_background(2, 2, 100, 0);
    ck_assert_uint_eq(admit(0), UINT32_MAX); /* its equals keep theirs */
    add(3, job_of(2, 100, 10), 10);
    ck_assert_uint_eq(admit(10), 3);
    ck_assert(!sched_job_paused(s, 0));
    ck_assert(sched_job_paused(s, 1));
    ck_assert_uint_eq(pick(10), 3); /* and its prompt goes first */
    ck_assert_uint_eq(admit(20), UINT32_MAX);
    sched_remove(s, 3);
    ck_assert_uint_eq(admit(30), UINT32_MAX);
    ck_assert(!sched_job_paused(s, 1)); /* before job 2, which is new */
    close_sched();
}
END_TEST

/* Sequences that were begun and have no memory keep their places: they come back before new ones of the background
 * begin, nobody is sent after them in vain, and when all places are theirs they still come back. */
START_TEST(who_is_away_comes_back) {
    struct sched_job j = job_of(1, 500, 12), large = job_of(2, 1000, 24);
    uint32_t job;

    open_sched(1, 2, 4, 0);
    j.background = j.movable = true;
    add(0, j, 0);
    ck_assert_uint_eq(admit(0), 0);
    add(1, j, 0);
    add(2, large, 0);
    ck_assert_uint_eq(admit(0), UINT32_MAX);
    ck_assert_int_eq(sched_pick_release(s, &job), 0);
    ck_assert_uint_eq(job, 0);
    sched_requeue(s, 0, 500, 0);
    ck_assert_uint_eq(admit(0), 2);
    sched_remove(s, 2);
    ck_assert_uint_eq(admit(0), 0); /* not job 1, which was queued before it */
    sched_requeue(s, 0, 500, 0);
    sched_hold(s, 0, true);
    ck_assert_uint_eq(admit(0), 1);
    add(2, large, 0);
    ck_assert_uint_eq(admit(0), UINT32_MAX);
    ck_assert_int_eq(sched_pick_release(s, &job), -EAGAIN); /* memory would be there, a place would not */
    sched_requeue(s, 1, 500, 0);
    sched_hold(s, 0, false);
    ck_assert_uint_eq(admit(0), 0);
    sched_remove(s, 0);
    ck_assert_uint_eq(admit(0), 2);
    sched_set_places(s, 0);
    sched_remove(s, 2);
    add(2, large, 0);
    ck_assert_uint_eq(admit(0), 1);
    close_sched();
}
END_TEST

/* Two background jobs that do not fit together run one after the other, however long the second has waited. */
START_TEST(background_does_not_chase_itself) {
    struct sched_job j = job_of(1, 500, 12);
    uint32_t job;

    open_sched(2, 4, 3, 0);
    j.background = j.movable = true;
    add(0, j, 0);
    add(1, j, 0);
    ck_assert_uint_eq(admit(0), 0);
    for (uint64_t t = 0; t < 40; t++) {
        ck_assert_uint_eq(admit(t * 100000), UINT32_MAX);
        ck_assert_int_eq(sched_pick_release(s, &job), -EAGAIN);
    }
    sched_remove(s, 0);
    ck_assert_uint_eq(admit(4000000), 1);
    close_sched();
}
END_TEST

/* Memory for an interactive job: from movable background jobs, the last admitted first, and only if it then fits. */
START_TEST(background_yields_its_memory) {
    struct sched_job j = job_of(1, 1000, 24);
    uint32_t job;

    open_sched(4, 4, 12, 0);
    j.background = j.movable = true;
    add(0, j, 0);
    add(1, j, 0);
    j.movable = false;
    add(2, j, 0);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(admit(0), i);
    ck_assert_int_eq(sched_pick_release(s, &job), -EAGAIN); /* nobody waits */
    add(3, job_of(2, 2500, 60), 0);                          /* ten pages, and eight can be had */
    ck_assert_uint_eq(admit(0), UINT32_MAX);
    ck_assert_int_eq(sched_pick_release(s, &job), -EAGAIN);
    sched_remove(s, 3);
    add(3, job_of(2, 1500, 36), 0);
    sched_filled(s, 1, 1000, 0);
    ck_assert_uint_eq(admit(0), UINT32_MAX);
    ck_assert_int_eq(sched_pick_release(s, &job), 0);
    ck_assert_uint_eq(job, 1);
    sched_requeue(s, 1, 1004, 0);
    ck_assert_uint_eq(admit(0), UINT32_MAX);
    ck_assert_int_eq(sched_pick_release(s, &job), 0);
    ck_assert_uint_eq(job, 0);
    sched_requeue(s, 0, 1000, 0);
    ck_assert_uint_eq(admit(0), 3);
    ck_assert_uint_eq(admit(0), UINT32_MAX);
    ck_assert_int_eq(sched_pick_release(s, &job), -EAGAIN); /* background jobs do not chase each other */
    sched_remove(s, 3);
    ck_assert_uint_eq(admit(0), 1);
    sched_filled(s, 1, 1000, 0);
    ck_assert_int_eq(sched_job_state(s, 1), SCHED_FILL);
    sched_filled(s, 1, 4, 0);
    ck_assert_int_eq(sched_job_state(s, 1), SCHED_DECODE);
    close_sched();
}
END_TEST

/* No slot for one more: nobody is paused for a job that could not be admitted anyway. */
START_TEST(no_pause_without_memory) {
    open_sched(1, 1, 100, 0);
    add_background(0, 1, 100, 0);
    ck_assert_uint_eq(admit(0), 0);
    add(1, job_of(2, 100, 10), 0);
    ck_assert_uint_eq(admit(0), UINT32_MAX);
    ck_assert(!sched_job_paused(s, 0));
    close_sched();
}
END_TEST

/* Interactive jobs without end: a background one gets its turn after patience_ns, keeps it for as long, and a paused
 * one comes back the same way. */
START_TEST(background_does_not_starve) {
    uint32_t first = 0, n = 1;
    uint64_t paused_at = 0, back_at = 0;

    open_sched(1, 3, 1000, 0);
    add_background(0, 1, 100, 0);
    for (uint64_t t = 0; t < 60000; t += 100) {
        uint32_t job;

        if (sched_job_state(s, n) == SCHED_FREE)
            add(n, job_of(2, 100, 10), t);
        while ((job = admit(t)) != UINT32_MAX) {
            if (job == 0 && !first)
                first = (uint32_t)t;
        }
        if (!paused_at && sched_job_paused(s, 0))
            paused_at = t;
        if (paused_at && !back_at && !sched_job_paused(s, 0))
            back_at = t;
        if (sched_job_state(s, n) == SCHED_FILL && !sched_job_paused(s, n)) {
            sched_filled(s, n, 100, t);
            sched_remove(s, n);
            n = n % 60 + 1;
        }
    }
    ck_assert_uint_ge(first, 6000);
    ck_assert_uint_le(first, 6200);
    ck_assert_uint_ge(paused_at, first + 6000);
    ck_assert_uint_le(paused_at, first + 6200);
    ck_assert_uint_ge(back_at, paused_at + 6000);
    ck_assert_uint_le(back_at, paused_at + 6200);
    close_sched();
}
END_TEST

/* ---- fairness ---- */

/* Two users with weights 1 and 3 keep the queue full: tokens are served by weight, whatever their requests' sizes
 * are. */
START_TEST(weights) {
    uint64_t served[3] = { 0 };
    uint32_t job;

    open_sched(4, 4, 1000, 0);
    for (uint32_t i = 0; i < 64; i++) {
        struct sched_job j = job_of(1 + i % 2, i % 2 ? 300 : 3000, 10);

        j.weight = i % 2 ? 300 : 100;
        add(i, j, 0);
    }
    for (uint32_t k = 0; k < 4000; k++) {
        while (admit(0) != UINT32_MAX) {
        }
        job = pick(0);
        ck_assert_uint_ne(job, UINT32_MAX);
        sched_filled(s, job, 60, 0);
        served[1 + job % 2] += 60;
        if (sched_job_state(s, job) == SCHED_DECODE) {
            struct sched_job j = job_of(1 + job % 2, job % 2 ? 300 : 3000, 10);

            j.weight = job % 2 ? 300 : 100;
            sched_remove(s, job);
            add(job, j, 0);
        }
    }
    ck_assert_uint_eq(sched_user_tokens(s, 1), served[1]);
    ck_assert_uint_ge(served[2] * 100, served[1] * 290);
    ck_assert_uint_le(served[2] * 100, served[1] * 310);
    close_sched();
}
END_TEST

/* A user whose stream only decodes for long is not owed the prompts others read meanwhile. */
START_TEST(no_lead_from_decoding) {
    uint32_t mine = 0;

    open_sched(4, 4, 4000, 0);
    add(0, job_of(1, 100, 10), 0);
    ck_assert_uint_eq(admit(0), 0);
    sched_filled(s, 0, 100, 0);
    add(1, job_of(2, 500000, 10), 0);
    ck_assert_uint_eq(admit(0), 1);
    for (uint32_t i = 0; i < 200; i++) {
        ck_assert_uint_eq(pick(0), 1);
        sched_filled(s, 1, 1000, 0);
    }
    add(2, job_of(1, 100000, 10), 0);
    ck_assert_uint_eq(admit(0), 2);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t job = pick(0);

        sched_filled(s, job, 1000, 0);
        mine += job == 2;
    }
    ck_assert_uint_ge(mine, 9);
    ck_assert_uint_le(mine, 11);
    close_sched();
}
END_TEST

/* A short prompt goes before a long one of somebody else; a flood of short ones does not keep the long one out. */
START_TEST(short_prompts_first) {
    uint32_t longs = 0;

    open_sched(4, 4, 4000, 0);
    add(0, job_of(1, 100000, 10), 0);
    ck_assert_uint_eq(admit(0), 0);
    sched_filled(s, 0, 500, 0);
    add(1, job_of(2, 1000, 10), 0);
    ck_assert_uint_eq(admit(0), 1);
    sched_filled(s, 1, 500, 0); /* user 2 has had as much */
    ck_assert_uint_eq(pick(0), 1);
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t job = pick(0);

        sched_filled(s, job, 500, 0);
        longs += job == 0;
        if (job == 1 && sched_job_state(s, 1) == SCHED_DECODE) {
            sched_remove(s, 1);
            add(1, job_of(2, 1000, 10), 0);
            ck_assert_uint_eq(admit(0), 1);
        }
    }
    ck_assert_uint_ge(longs, 40);
    ck_assert_uint_le(longs, 60);
    close_sched();
}
END_TEST

/* A cached prompt is as long as what is left of it to compute. */
START_TEST(needs_after_a_hit) {
    struct sched_counts c;
    uint32_t job;

    open_sched(4, 4, 8, 0);
    add(0, job_of(1, 1024, 256), 0);
    add(1, job_of(1, 1024, 256), 0);
    ck_assert_uint_eq(admit(0), 0);
    ck_assert_int_eq(sched_peek(s, 0, &job), 0);
    ck_assert_uint_eq(job, 1);
    ck_assert_uint_eq(admit(0), UINT32_MAX); /* 3 pages are left of 5 */
    sched_set_need(s, 1, 3, 100);
    sched_available(s, 2, 4);
    ck_assert_uint_eq(admit(0), UINT32_MAX); /* the engine says there are fewer */
    sched_available(s, 3, 4);
    ck_assert_uint_eq(admit(0), 1);
    ck_assert_uint_eq(sched_job_pages(s, 1), 3);
    sched_get_counts(s, &c);
    ck_assert_uint_eq(c.free_pages, 0);
    ck_assert_uint_eq(pick(0), 1);
    sched_filled(s, 1, 100, 0);
    ck_assert_int_eq(sched_job_state(s, 1), SCHED_DECODE);
    ck_assert_uint_eq(sched_user_tokens(s, 1), 100); /* what was not computed is not charged */
    close_sched();
}
END_TEST

START_TEST(held_jobs_hold_up_nobody) {
    open_sched(4, 4, 100, 0);
    add(0, job_of(1, 100, 10), 0);
    add(1, job_of(1, 100, 10), 0);
    sched_hold(s, 0, true);
    ck_assert_uint_eq(admit(0), 1);
    ck_assert_uint_eq(admit(0), UINT32_MAX);
    sched_hold(s, 0, false);
    ck_assert_uint_eq(admit(0), 0);
    close_sched();
}
END_TEST

START_TEST(queue_is_bounded) {
    struct sched_job j = job_of(1, 100, 10);

    open_sched(2, 2, 100, 3);
    for (uint32_t i = 0; i < 5; i++)
        add(i, j, 0);
    ck_assert_int_eq(sched_add(s, 5, &j, 0), -EBUSY);
    ck_assert_uint_eq(admit(0), 0);
    ck_assert_int_eq(sched_add(s, 5, &j, 0), -EBUSY);
    sched_remove(s, 0);
    ck_assert_int_eq(sched_add(s, 5, &j, 0), 0);
    close_sched();
}
END_TEST

/* ---- waiting times ---- */

static uint64_t waits[64];
static uint32_t places[64];

static void note(void *ctx, uint32_t job, uint32_t place, uint64_t wait_ns) {
    (void)ctx;
    waits[job] = wait_ns;
    places[job] = place;
}

/* One seat, known speeds: what is told is what comes. */
START_TEST(estimates) {
    uint64_t now = 0;

    open_sched(1, 1, 1000, 0);
    add(0, job_of(1, 1000, 100), 0);
    add(1, job_of(1, 500, 100), 0);
    sched_positions(s, 0, note, NULL);
    ck_assert_uint_eq(waits[0], 0); /* nothing is known */
    ck_assert_uint_eq(sched_retry_ns(s), 0);
    ck_assert_uint_eq(admit(0), 0);
    sched_measured_fill(s, 1000, 1000000);
    sched_filled(s, 0, 1000, 1000000);
    for (uint32_t i = 0; i < 100; i++) {
        sched_measured_token(s, 10000);
        sched_served(s, 0, 1);
    }
    sched_remove(s, 0);
    now = 2000000;
    for (uint32_t i = 2; i < 5; i++)
        add(i, job_of(1, 500, 400), now);
    ck_assert_uint_eq(admit(now), 1);
    sched_positions(s, now, note, NULL);
    /* 500 tokens at 1 us, then 100 at 10 us, as the one before: 1.5 ms each */
    for (uint32_t i = 2; i < 5; i++) {
        ck_assert_uint_eq(places[i], i - 1);
        ck_assert_uint_ge(waits[i], (i - 1) * UINT64_C(1480000));
        ck_assert_uint_le(waits[i], (i - 1) * UINT64_C(1520000));
    }
    ck_assert_uint_ge(sched_retry_ns(s), 1480000);
    ck_assert_uint_le(sched_retry_ns(s), 1520000);
    close_sched();
}
END_TEST

/* Waiting for memory counts too: two seats, pages for one. */
START_TEST(estimates_know_memory) {
    open_sched(2, 2, 4, 0);
    sched_measured_fill(s, 1000, 1000000);
    sched_measured_token(s, 10000);
    add(0, job_of(1, 900, 100), 0);
    ck_assert_uint_eq(admit(0), 0);
    add(1, job_of(1, 900, 100), 0);
    sched_positions(s, 0, note, NULL);
    ck_assert_uint_ge(waits[1], 1800000);
    ck_assert_uint_le(waits[1], 2000000);
    close_sched();
}
END_TEST

/* ---- clocks ---- */

/* Set back by an hour, a clock does not make anybody wait for that hour again; set forward, it ends nobody. */
START_TEST(clock_jumps) {
    uint64_t hour = UINT64_C(3600000000000), t = 2 * hour;

    open_sched(1, 3, 1000, 0);
    add(0, job_of(1, 100, 10), t);
    ck_assert_uint_eq(admit(t), 0);
    sched_skip(s, 0, true, t);
    add_background(1, 2, 100, t);
    t -= hour;
    ck_assert_uint_eq(admit(t), UINT32_MAX);
    ck_assert_uint_eq(admit(t + 2999), UINT32_MAX);
    ck_assert_uint_eq(admit(t + 3000), 1);
    ck_assert(sched_job_paused(s, 0));
    t += 5 * hour;
    add(2, job_of(1, 100, 10), t);
    sched_skip(s, 0, false, t);
    while (admit(t) != UINT32_MAX) {
    }
    ck_assert_int_eq(sched_job_state(s, 0), SCHED_FILL);
    ck_assert_int_eq(sched_job_state(s, 1), SCHED_FILL);
    close_sched();
}
END_TEST

/* ---- whole workloads ---- */

START_TEST(workloads) {
    struct schedsim_result r = { 0 };

    for (uint64_t seed = 1; seed <= 400; seed++)
        ck_assert_msg(schedsim_run(seed, &r) == 0, "seed %lu: %s", (unsigned long)seed, r.why);
    ck_assert_uint_gt(r.hits, 100);
    ck_assert_uint_gt(r.parked, 100);
    ck_assert_uint_gt(r.refused, 10);
    ck_assert_uint_gt(r.released, 50);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("sched_seats");
    TCase *tc = tcase_create("seats");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, parked_when_somebody_waits);
    tcase_add_test(tc, parking_is_looked_at_once);
    tcase_add_test(tc, background_yields_its_seat);
    tcase_add_test(tc, background_yields_its_memory);
    tcase_add_test(tc, who_is_away_comes_back);
    tcase_add_test(tc, background_does_not_chase_itself);
    tcase_add_test(tc, no_pause_without_memory);
    tcase_add_test(tc, background_does_not_starve);
    tcase_add_test(tc, weights);
    tcase_add_test(tc, no_lead_from_decoding);
    tcase_add_test(tc, short_prompts_first);
    tcase_add_test(tc, needs_after_a_hit);
    tcase_add_test(tc, held_jobs_hold_up_nobody);
    tcase_add_test(tc, queue_is_bounded);
    tcase_add_test(tc, estimates);
    tcase_add_test(tc, estimates_know_memory);
    tcase_add_test(tc, clock_jumps);
    tcase_add_test(tc, workloads);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
