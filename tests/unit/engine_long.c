/* SPDX-License-Identifier: MIT */
/* The prefix cache and long prompts, with the cpu backend: checkpoints on the way, which of them stay, and a
 * prompt that is longer than the distance between them. */
#include <check.h>
#include <string.h>

#include "cachefix.h"

/* On the way through a long prompt too, which then has them where most is saved, and with the marks it has. */
START_TEST(at_most_four_of_a_long_prompt) {
    static uint32_t ids[MOST];
    const uint32_t marks[] = { 128, 1400 };
    struct prefix_info in;
    struct prefix_counts c;

    noise(ids, MOST, 3);
    for (uint32_t with = 0; with < 2; with++) {
        struct ask a = { .uid = 10 + with, .ids = ids, .n_ids = MOST, .max_tokens = with ? 100 : 2,
                         .marks = with ? marks : NULL, .n_marks = with ? 2 : 0 };
        uint32_t n = 0, system = 0, end = 0, furthest = 0, on_the_way = 0;

        if (with)
            setup();
        open_twin((struct engine_options){ .prefill_tokens = 128 });
        run.e->long_tokens = 192;
        ask(&a);
        engrun_settle(&run);
        prefix_get_counts(run.e->prefix, &c);
        ck_assert_uint_gt(c.kept, 4); /* or there was nothing to choose from */
        for (uint32_t i = 0; i < run.e->opt.cache_slots; i++) {
            if (!prefix_get(run.e->prefix, i, &in))
                continue;
            n++;
            system += in.kind == PREFIX_SYSTEM;
            end += in.kind == PREFIX_END;
            on_the_way += in.kind == PREFIX_LONG;
            furthest = in.kind == PREFIX_LONG && in.pos > furthest ? in.pos : furthest;
        }
        ck_assert_uint_eq(n, 4);
        ck_assert_uint_eq(end, 1);
        ck_assert_uint_eq(system, with);
        ck_assert_uint_eq(on_the_way, with ? 0 : 3);
        if (!with)
            ck_assert_uint_ge(furthest, MOST / 2);
        a.n_ids -= 3;
        ck_assert_uint_ge(ask(&a).cached, 1500); /* its end is found */
        close_model();
    }
}
END_TEST

static bool has_ended(uint32_t stream) {
    bool ended;

    pthread_mutex_lock(&run.lock);
    ended = run.s[stream].gen == gens[stream] && run.s[stream].ends;
    pthread_mutex_unlock(&run.lock);
    return ended;
}

/* Further than ECACHE_LONG, with real numbers: what begins at its checkpoint is what a cold run gives. */
START_TEST(longer_than_the_distance) {
    enum { N = ECACHE_LONG + 200 };
    static uint32_t ids[N];
    struct ask a = { .ids = ids, .n_ids = N, .max_tokens = 8 };
    struct prefix_info in;
    struct sched_req q;
    bool there = false;
    struct out o, whole;

    noise(ids, N, 4);
    open_twin((struct engine_options){ .context_tokens = N + 64, .max_seqs = 1 });
    q = request(0, &a);
    engrun_submit(&run, &q);
    while (!has_ended(0))
        engrun_sleep_ms(20);
    whole = result(0);
    ck_assert_uint_eq(whole.cached, 0);
    engrun_settle(&run);
    for (uint32_t i = 0; i < run.e->opt.cache_slots; i++)
        there |= prefix_get(run.e->prefix, i, &in) && in.pos == ECACHE_LONG && in.kind == PREFIX_LONG;
    ck_assert(there);
    o = ask(&a);
    ck_assert_uint_gt(o.cached, ECACHE_LONG);
    same_bits(&o, &whole);
    noise(ids + ECACHE_LONG + 30, N - ECACHE_LONG - 30, 5);
    ck_assert_uint_eq(ask(&a).cached, ECACHE_LONG);
    close_model();
}
END_TEST

/* On the way through a very long prompt there is a checkpoint at fixed distances, besides its own marks. */
START_TEST(marks_of_a_long_prompt) {
    struct eng_seq q = { .cache = { .on = true, .n_marks = 2,
                                    .marks = { { 640, PREFIX_TURN }, { 40000, PREFIX_END } } } };

    open_twin((struct engine_options){ 0 });
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, 0), 640);
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, 640), ECACHE_LONG);
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, ECACHE_LONG), 2 * ECACHE_LONG);
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, 2 * ECACHE_LONG), 40000);
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, UINT32_MAX - 63), UINT32_MAX);
    q.cache.on = false;
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, 0), UINT32_MAX);
    close_model();
}
END_TEST

int main(void) {
    Suite *suite = suite_create("engine_long");
    TCase *tc = tcase_create("long");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 600);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, marks_of_a_long_prompt);
    tcase_add_test(tc, at_most_four_of_a_long_prompt);
    tcase_add_test(tc, longer_than_the_distance);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
