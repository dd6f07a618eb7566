/* SPDX-License-Identifier: MIT */
/* The scheduler as a pure structure over a virtual clock: both currencies, fair order, queue places, batch
 * choice, deadlines, and random workloads with conservation of pages and slots. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "leakcheck.h"
#include "scheduler.h"

struct fix {
    struct sched *s;
    void *mem;
    struct sched_config cfg;
};

static void fix_open(struct fix *f, uint32_t jobs, uint32_t running, uint32_t pages, uint32_t slots) {
    uint64_t bytes = 0;

    f->cfg = (struct sched_config){ .max_jobs = jobs, .max_running = running, .n_pages = pages, .n_slots = slots,
                                    .page_tokens = 256, .aging_ns = 1000 };
    ck_assert_int_eq(sched_bytes(&f->cfg, &bytes), 0);
    ck_assert_int_eq(posix_memalign(&f->mem, 16, bytes), 0);
    memset(f->mem, 0xa5, bytes); /* init may not lean on zeroed memory */
    ck_assert_int_eq(sched_init(&f->cfg, f->mem, bytes, &f->s), 0);
}

static void fix_close(struct fix *f) {
    free(f->mem);
}

static int add(struct fix *f, uint32_t job, uint32_t uid, uint32_t prompt, uint32_t budget) {
    struct sched_job j = { .uid = uid, .prompt_tokens = prompt, .budget_tokens = budget,
                           .deadline_ns = SCHED_NEVER };

    return sched_add(f->s, job, &j, 0);
}

static int add_within(struct fix *f, uint32_t job, uint32_t uid, uint32_t prompt, uint32_t budget,
                      uint64_t user_tokens) {
    struct sched_job j = { .uid = uid, .prompt_tokens = prompt, .budget_tokens = budget,
                           .deadline_ns = SCHED_NEVER, .user_tokens = user_tokens };

    return sched_add(f->s, job, &j, 0);
}

static uint32_t admit(struct fix *f) {
    uint32_t job = UINT32_MAX;

    return sched_admit(f->s, 0, &job) < 0 ? UINT32_MAX : job;
}

START_TEST(test_bad) {
    struct fix f;
    uint64_t n;

    fix_open(&f, 4, 2, 4, 2);
    ck_assert_int_eq(sched_bytes(&(struct sched_config){ .max_jobs = 1 }, &n), -EINVAL);
    ck_assert_int_eq(add(&f, 4, 1, 1, 1), -EINVAL);
    ck_assert_int_eq(add(&f, 0, 1, 0, 1), -EINVAL);
    ck_assert_int_eq(add(&f, 0, 1, 1, 1), 0);
    ck_assert_int_eq(add(&f, 0, 1, 1, 1), -EEXIST);
    ck_assert_uint_eq(sched_largest(f.s), 1024);
    ck_assert_int_eq(add(&f, 1, 1, 1000, 24), 0);
    ck_assert_int_eq(add(&f, 2, 1, 1000, 25), -E2BIG);
    ck_assert_int_eq(add(&f, 2, 1, UINT32_MAX, UINT32_MAX), -E2BIG);
    sched_remove(f.s, 3);
    sched_remove(f.s, 77);
    fix_close(&f);
}
END_TEST

/* 257 tokens take two pages: rounding down would promise memory that is not there. */
START_TEST(test_pages) {
    struct sched_counts c;
    struct fix f;

    fix_open(&f, 8, 8, 4, 8);
    ck_assert_int_eq(add(&f, 0, 1, 200, 57), 0);
    ck_assert_int_eq(add(&f, 1, 1, 256, 0), 0);
    ck_assert_int_eq(add(&f, 2, 1, 257, 0), 0);
    ck_assert_uint_eq(admit(&f), 0);
    ck_assert_uint_eq(sched_job_pages(f.s, 0), 2);
    ck_assert_uint_eq(admit(&f), 1);
    ck_assert_uint_eq(sched_job_pages(f.s, 1), 1);
    ck_assert_uint_eq(admit(&f), UINT32_MAX); /* one page is left, two are needed */
    sched_get_counts(f.s, &c);
    ck_assert_uint_eq(c.free_pages, 1);
    ck_assert_uint_eq(c.free_slots, 6);
    ck_assert_uint_eq(c.queued, 1);
    sched_remove(f.s, 0);
    ck_assert_uint_eq(admit(&f), 2);
    sched_remove(f.s, 1);
    sched_remove(f.s, 2);
    sched_get_counts(f.s, &c);
    ck_assert_uint_eq(c.free_pages, 4);
    ck_assert_uint_eq(c.free_slots, 8);
    fix_close(&f);
}
END_TEST

/* A user's own quota holds up that user alone, in order, and is given back whole. */
START_TEST(test_user_tokens) {
    struct fix f;

    fix_open(&f, 16, 16, 100, 16);
    ck_assert_int_eq(add_within(&f, 0, 1, 600, 401, 1000), -E2BIG);
    for (int round = 0; round < 3; round++) {
        ck_assert_int_eq(add_within(&f, 0, 1, 400, 200, 1000), 0);
        ck_assert_int_eq(add_within(&f, 1, 1, 400, 1, 1000), 0);
        ck_assert_int_eq(add_within(&f, 2, 1, 10, 10, 1000), 0); /* would fit, but came later */
        ck_assert_int_eq(add_within(&f, 3, 2, 500, 500, 1000), 0);
        ck_assert_int_eq(add(&f, 4, 3, 5000, 500), 0);
        for (uint32_t n = 0, job; n < 3; n++) {
            job = admit(&f);
            ck_assert_msg(job == 0 || job == 3 || job == 4, "job %u", job);
        }
        ck_assert_uint_eq(admit(&f), UINT32_MAX);
        sched_remove(f.s, 3); /* somebody else's */
        ck_assert_uint_eq(admit(&f), UINT32_MAX);
        sched_remove(f.s, 0);
        ck_assert_uint_eq(admit(&f), 1);
        ck_assert_uint_eq(admit(&f), 2);
        ck_assert_uint_eq(admit(&f), UINT32_MAX);
        for (uint32_t i = 1; i < 5; i++)
            sched_remove(f.s, i);
    }
    fix_close(&f);
}
END_TEST

START_TEST(test_slots) {
    struct fix f;

    fix_open(&f, 8, 8, 100, 2);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_int_eq(add(&f, i, 1, 1, 1), 0);
    ck_assert_uint_eq(admit(&f), 0);
    ck_assert_uint_eq(admit(&f), 1);
    ck_assert_uint_eq(admit(&f), UINT32_MAX);
    sched_remove(f.s, 1);
    ck_assert_uint_eq(admit(&f), 2);
    fix_close(&f);
}
END_TEST

/* A job that waits for pages is not overtaken by a small one behind it. */
START_TEST(test_no_overtaking) {
    struct fix f;

    fix_open(&f, 8, 8, 4, 8);
    ck_assert_int_eq(add(&f, 0, 1, 512, 0), 0);
    ck_assert_uint_eq(admit(&f), 0);
    ck_assert_int_eq(add(&f, 1, 1, 1024, 0), 0);
    ck_assert_int_eq(add(&f, 2, 1, 1, 0), 0);
    ck_assert_uint_eq(admit(&f), UINT32_MAX);
    sched_remove(f.s, 0);
    ck_assert_uint_eq(admit(&f), 1);
    fix_close(&f);
}
END_TEST

/* Four users, one of whom floods the queue first: tokens are shared, not requests. */
START_TEST(test_shares) {
    uint64_t served[4] = { 0 };
    struct fix f;
    uint32_t n = 0;

    fix_open(&f, 256, 1, 1000, 1);
    for (uint32_t i = 0; i < 200; i++)
        ck_assert_int_eq(add(&f, n++, i < 150 ? 0 : 1 + i % 3, i < 150 ? 10 : 40, 10), 0);
    for (uint32_t k = 0; k < 60; k++) {
        uint32_t j = admit(&f), uid = j < 150 ? 0 : 1 + j % 3, prompt = j < 150 ? 10 : 40;

        ck_assert_uint_ne(j, UINT32_MAX);
        sched_filled(f.s, j, prompt, 0);
        sched_served(f.s, j, 10);
        served[uid] += prompt + 10;
        sched_remove(f.s, j);
    }
    for (uint32_t u = 1; u < 4; u++) {
        ck_assert_uint_le(served[u], served[0] + 60);
        ck_assert_uint_ge(served[u] + 60, served[0]);
    }
    fix_close(&f);
}
END_TEST

/* Idle for long is no credit: the user who comes back is on a par with the one who stayed. */
START_TEST(test_no_hoarding) {
    struct fix f;
    uint32_t old = 0, back = 0;

    fix_open(&f, 64, 1, 1000, 1);
    ck_assert_int_eq(add(&f, 0, 7, 1, 1), 0);
    ck_assert_uint_eq(admit(&f), 0);
    sched_remove(f.s, 0); /* user 7 was here once */
    for (uint32_t i = 1; i <= 20; i++)
        ck_assert_int_eq(add(&f, i, 8, 100, 0), 0);
    for (uint32_t i = 1; i <= 10; i++) {
        uint32_t j = admit(&f);

        sched_filled(f.s, j, 100, 0);
        sched_remove(f.s, j);
    }
    for (uint32_t i = 30; i < 40; i++)
        ck_assert_int_eq(add(&f, i, 7, 100, 0), 0);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t j = admit(&f);

        if (j >= 30)
            back++;
        else
            old++;
        sched_filled(f.s, j, 100, 0);
        sched_remove(f.s, j);
    }
    ck_assert_uint_ge(old, 3);
    ck_assert_uint_ge(back, 3);
    fix_close(&f);
}
END_TEST

/* A prompt that is cancelled unread is not charged. */
START_TEST(test_refund) {
    struct fix f;

    fix_open(&f, 8, 1, 100, 1);
    ck_assert_int_eq(add(&f, 0, 1, 1000, 0), 0);
    ck_assert_int_eq(add(&f, 1, 1, 10, 0), 0);
    ck_assert_int_eq(add(&f, 2, 2, 10, 0), 0);
    ck_assert_uint_eq(admit(&f), 0);
    sched_remove(f.s, 0);
    ck_assert_uint_eq(admit(&f), 1); /* user 1 again: nothing was served to either */
    fix_close(&f);
}
END_TEST

static int pick_fill(struct fix *f, uint64_t now, uint32_t *ret_job) {
    struct sched_part p;

    if (!sched_plan_chunk(f->s, now, 64, 64, &p, 1))
        return -EAGAIN;
    *ret_job = p.job;
    return 0;
}

static void note_place(void *ctx, uint32_t job, uint32_t place, uint64_t wait_ns) {
    (void)wait_ns;
    ((uint32_t *)ctx)[place] = job;
}

START_TEST(test_places) {
    uint32_t at[9] = { 0 };
    struct fix f;

    fix_open(&f, 16, 1, 1000, 1);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_int_eq(add(&f, i, 1, 100, 0), 0);
    for (uint32_t i = 4; i < 8; i++)
        ck_assert_int_eq(add(&f, i, 2, 50, 0), 0);
    sched_positions(f.s, 0, note_place, at);
    for (uint32_t p = 1; p <= 8; p++) {
        uint32_t j = admit(&f);

        ck_assert_uint_eq(j, at[p]); /* the places told are the order that follows */
        sched_filled(f.s, j, j < 4 ? 100 : 50, 0);
        sched_remove(f.s, j);
    }
    ck_assert_uint_eq(at[1], 0);
    ck_assert_uint_eq(at[2], 4);
    ck_assert_uint_eq(at[3], 5);
    ck_assert_uint_eq(at[4], 1);
    fix_close(&f);
}
END_TEST

START_TEST(test_batches) {
    uint32_t jobs[8], j;
    struct fix f;

    fix_open(&f, 8, 4, 100, 4);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(add(&f, i, 1, i == 2 ? 64 : 200, 10), 0);
        ck_assert_uint_eq(admit(&f), i);
    }
    ck_assert_uint_eq(sched_pick_decode(f.s, jobs, 8), 0);
    ck_assert_int_eq(pick_fill(&f, 0, &j), 0);
    ck_assert_uint_eq(j, 2); /* the shortest */
    sched_filled(f.s, 2, 64, 500);
    ck_assert_int_eq(sched_job_state(f.s, 2), SCHED_DECODE);
    sched_filled(f.s, 1, 100, 900);
    ck_assert_int_eq(pick_fill(&f, 950, &j), 0);
    ck_assert_uint_eq(j, 1);
    ck_assert_int_eq(pick_fill(&f, 1000, &j), 0);
    ck_assert_uint_eq(j, 0); /* waited a whole aging time */
    sched_skip(f.s, 0, true, 1000);
    ck_assert_int_eq(pick_fill(&f, 1000, &j), 0);
    ck_assert_uint_eq(j, 3);
    sched_filled(f.s, 1, 100, 1000);
    sched_filled(f.s, 3, 200, 1000);
    ck_assert_uint_eq(sched_pick_decode(f.s, jobs, 8), 3);
    ck_assert_uint_eq(jobs[0], 1);
    ck_assert_uint_eq(jobs[2], 3);
    sched_skip(f.s, 2, true, 1000);
    ck_assert_uint_eq(sched_pick_decode(f.s, jobs, 8), 2);
    ck_assert_uint_eq(sched_pick_decode(f.s, jobs, 1), 1);
    ck_assert_int_eq(pick_fill(&f, 1000, &j), -EAGAIN);
    fix_close(&f);
}
END_TEST

START_TEST(test_deadlines) {
    struct sched_job a = { .uid = 1, .prompt_tokens = 1, .deadline_ns = 100 }, b = a;
    struct fix f;
    uint32_t j;

    fix_open(&f, 8, 1, 100, 1);
    ck_assert_uint_eq(sched_next_event(f.s), SCHED_NEVER);
    b.deadline_ns = 50;
    ck_assert_int_eq(sched_add(f.s, 0, &a, 0), 0);
    ck_assert_int_eq(sched_add(f.s, 1, &b, 0), 0);
    ck_assert_uint_eq(admit(&f), 0);
    ck_assert_uint_eq(sched_next_event(f.s), 50);
    ck_assert_int_eq(sched_pick_expired(f.s, 49, &j), -EAGAIN);
    ck_assert_int_eq(sched_pick_expired(f.s, 50, &j), 0);
    ck_assert_uint_eq(j, 1);
    sched_remove(f.s, 1);
    ck_assert_uint_eq(sched_next_event(f.s), 100);
    ck_assert_int_eq(sched_pick_expired(f.s, 1000, &j), 0);
    ck_assert_uint_eq(j, 0);
    fix_close(&f);
}
END_TEST

/* Random workloads against plain books kept by the test. */
static void simulate(unsigned seed) {
    enum { JOBS = 40 };
    uint32_t pages[JOBS] = { 0 }, prompt[JOBS], done[JOBS], held = 0, running = 0, live = 0;
    struct sched_counts c;
    struct fix f;

    fix_open(&f, JOBS, 6, 30, 5);
    for (uint32_t k = 0; k < 400; k++) {
        uint32_t j = (uint32_t)rand_r(&seed) % JOBS;
        enum sched_state st = sched_job_state(f.s, j);

        switch (rand_r(&seed) % 4) {
        case 0:
            if (st != SCHED_FREE)
                break;
            prompt[j] = 1 + (uint32_t)rand_r(&seed) % 3000;
            done[j] = 0;
            ck_assert_int_eq(add(&f, j, (uint32_t)rand_r(&seed) % 90, prompt[j], (uint32_t)rand_r(&seed) % 4000),
                             0);
            live++;
            break;
        case 1:
            if (sched_admit(f.s, k, &j) < 0)
                break;
            pages[j] = sched_job_pages(f.s, j);
            ck_assert_uint_ge(pages[j] * 256, prompt[j]);
            held += pages[j];
            running++;
            break;
        case 2:
            if (pick_fill(&f, k, &j) < 0)
                break;
            done[j] += 512;
            sched_filled(f.s, j, 512, k);
            ck_assert_int_eq(sched_job_state(f.s, j), done[j] >= prompt[j] ? SCHED_DECODE : SCHED_FILL);
            break;
        default:
            if (st == SCHED_FREE || rand_r(&seed) % 3)
                break;
            if (st != SCHED_QUEUED) {
                held -= pages[j];
                running--;
            }
            live--;
            sched_remove(f.s, j);
        }
        sched_get_counts(f.s, &c);
        ck_assert_uint_eq(c.free_pages, 30 - held);
        ck_assert_uint_eq(c.free_slots, 5 - running);
        ck_assert_uint_eq(c.running, running);
        ck_assert_uint_eq(c.queued + c.running, live);
        ck_assert_uint_eq(c.filling + c.decoding, running);
    }
    for (uint32_t j = 0; j < JOBS; j++)
        sched_remove(f.s, j);
    sched_get_counts(f.s, &c);
    ck_assert_uint_eq(c.free_pages, 30);
    ck_assert_uint_eq(c.free_slots, 5);
    fix_close(&f);
}

START_TEST(test_simulate) {
    for (unsigned seed = 1; seed <= 300; seed++)
        simulate(seed);
}
END_TEST

int main(void) {
    Suite *s = suite_create("sched_admit");
    TCase *tc = tcase_create("sched");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_bad);
    tcase_add_test(tc, test_pages);
    tcase_add_test(tc, test_slots);
    tcase_add_test(tc, test_user_tokens);
    tcase_add_test(tc, test_no_overtaking);
    tcase_add_test(tc, test_shares);
    tcase_add_test(tc, test_no_hoarding);
    tcase_add_test(tc, test_refund);
    tcase_add_test(tc, test_places);
    tcase_add_test(tc, test_batches);
    tcase_add_test(tc, test_deadlines);
    tcase_add_test(tc, test_simulate);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
