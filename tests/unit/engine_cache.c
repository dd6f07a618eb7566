/* SPDX-License-Identifier: MIT */
/* The prefix cache under a real model: what begins where another prompt was read gives the same bits as one that is
 * read from its first token; agents' habits; who may find what; pools that are too small for all of it. */
#include <check.h>
#include <string.h>

#include "cachefix.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(TEST_EMULATED)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

static struct out cold(const struct ask *a) {
    struct ask b = *a;
    struct out o;

    b.no_cache = true;
    o = ask(&b);
    ck_assert_uint_eq(o.cached, 0);
    return o;
}

static uint64_t prefilled(void) {
    struct engine_stats st;

    engine_get_stats(run.e, &st);
    return st.prefill_tokens;
}

/* ---- the same bits ---- */

/* Prompts that share beginnings of any length, again and again, some with marks. */
static void random_tree(const char *backend, uint32_t rounds, uint32_t most) {
    static uint32_t ids[8][MOST];
    struct ckpt_rng g = { .s = 21 };
    uint32_t found = 0, last = 0, last_n = 0;

    open_model("nano", backend, (struct engine_options){ .cache_slots = 6 });
    for (uint32_t i = 0; i < 8; i++)
        noise(ids[i], most, i);
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t to = (uint32_t)(ckpt_rand(&g) % 8), from = (uint32_t)(ckpt_rand(&g) % 8);
        uint32_t marks[2] = { (uint32_t)(ckpt_rand(&g) % most), most - 20 };
        uint32_t n = 72 + (uint32_t)(ckpt_rand(&g) % (most - 72));
        struct out cached, fresh;
        struct ask a;

        if (round % 2) { /* the one before, grown */
            to = last;
            n = last_n + (uint32_t)(ckpt_rand(&g) % (most - last_n));
        } else if (ckpt_rand(&g) % 2) {
            memcpy(ids[to], ids[from], (ckpt_rand(&g) % most) * sizeof ids[0][0]);
        }
        last = to;
        last_n = n;
        a = (struct ask){ .ids = ids[to], .n_ids = n, .marks = marks, .n_marks = (uint32_t)(ckpt_rand(&g) % 3) };
        cached = ask(&a);
        fresh = cold(&a);
        same_bits(&cached, &fresh);
        ck_assert_uint_eq(cached.cached % KERN_GRID, 0);
        ck_assert_uint_lt(cached.cached, a.n_ids);
        found += cached.cached > 0;
    }
    ck_assert_uint_ge(found, rounds / 2);
    close_model();
}

START_TEST(random_tree_cpu) {
    random_tree("cpu", SLOW ? 8 : 18, SLOW ? 200 : 500);
}
END_TEST

START_TEST(random_tree_ref) {
    random_tree("ref", SLOW ? 3 : 4, 160);
}
END_TEST

/* What decode wrote is right within rounding, and is not taken for more than that. */
START_TEST(answers_come_back) {
    static uint32_t ids[MOST];
    uint32_t n = 100;
    struct prefix_counts c;

    noise(ids, MOST, 1);
    open_twin((struct engine_options){ 0 });
    for (int turn = 0; turn < 3; turn++) {
        struct ask a = { .ids = ids, .n_ids = n, .max_tokens = 150 };
        struct out warm = ask(&a), fresh;

        if (turn) {
            ck_assert_uint_ge(warm.cached, n - 40 - KERN_GRID); /* everything but the last message */
            a.max_tokens = 1;
            fresh = cold(&a);
            warm.logprob = ask(&a).logprob;
            ck_assert_uint_eq(warm.tokens[0], fresh.tokens[0]);
            ck_assert_float_eq_tol(warm.logprob, fresh.logprob, 1e-5f);
        }
        ck_assert_uint_eq(warm.n, 150);
        memcpy(ids + n, warm.tokens, 150 * sizeof *ids);
        n += 150 + 40;
    }
    prefix_get_counts(run.e->prefix, &c);
    ck_assert_uint_gt(c.checkpoints, 3);
    for (uint32_t i = 0; i < 24; i++) {
        struct prefix_info in;

        if (prefix_get(run.e->prefix, i, &in) && in.pos > 100)
            ck_assert(!in.exact);
    }
    close_model();
}
END_TEST

/* ---- agents ---- */

/* One long system prompt, many tasks behind it. */
START_TEST(one_system_prompt) {
    static uint32_t ids[MOST];
    const uint32_t marks[] = { 600 };
    struct ask a = { .ids = ids, .n_ids = 700, .marks = marks, .n_marks = 1 };

    noise(ids, MOST, 1);
    open_twin((struct engine_options){ 0 });
    ck_assert_uint_eq(ask(&a).cached, 0);
    for (uint32_t i = 0; i < (SLOW ? 2 : 5); i++) {
        struct out got, fresh;

        noise(ids + 600, 100, 50 + i);
        got = ask(&a);
        ck_assert_uint_eq(got.cached, 576);
        fresh = cold(&a);
        same_bits(&got, &fresh);
    }
    close_model();
}
END_TEST

/* The last message is edited: known boundaries make the first edit cheap, a place nobody knew the second. */
START_TEST(edits_at_the_end) {
    static uint32_t ids[MOST];
    const uint32_t marks[] = { 200, 640 };
    struct ask a = { .ids = ids, .n_ids = 900, .marks = marks, .n_marks = 2 };

    noise(ids, MOST, 1);
    open_twin((struct engine_options){ 0 });
    ask(&a);
    noise(ids + 645, 255, 2);
    ck_assert_uint_eq(ask(&a).cached, 640);
    /* in the middle of that message, where no boundary is */
    noise(ids + 800, 100, 3);
    ck_assert_uint_eq(ask(&a).cached, 640);
    noise(ids + 800, 100, 4);
    ck_assert_uint_eq(ask(&a).cached, 768);
    /* an effort line close to the start: nothing behind it is the same */
    ids[3]++;
    ck_assert_uint_eq(ask(&a).cached, 0);
    ids[3]--;
    ck_assert_uint_eq(ask(&a).cached, 832); /* and the old one is still there */
    close_model();
}
END_TEST

/* Sent again as it was: at most a grid and the margin are read again, whatever the length. */
START_TEST(sent_again) {
    static uint32_t ids[MOST];
    static const uint32_t lens[] = { 65, 72, 73, 128, 136, 137, 255, 256, 257, 264, 265, 700, 1024, 1500 };
    struct prefix_counts c;

    noise(ids, MOST, 1);
    open_twin((struct engine_options){ .cache_slots = 40, .n_pages = 96 });
    for (uint32_t i = 0; i < sizeof lens / sizeof *lens && (!SLOW || i < 6); i++) {
        struct ask a = { .ids = ids, .n_ids = lens[i] };
        struct out one, two;

        noise(ids, 64, 100 + i);
        one = ask(&a);
        two = ask(&a);
        same_bits(&one, &two);
        ck_assert_uint_eq(one.cached, 0);
        if (lens[i] >= 72)
            ck_assert_uint_ge(two.cached + 72, lens[i]);
    }
    prefix_get_counts(run.e->prefix, &c);
    ck_assert_uint_eq(c.evicted, 0); /* there was room */
    close_model();
}
END_TEST

/* Four sub-agents start at once over one long beginning that nobody has read yet: it is read once. */
START_TEST(twins) {
    static uint32_t ids[4][MOST];
    struct sched_req q[4];
    struct out got[4];
    uint64_t before;

    open_twin((struct engine_options){ .max_seqs = 4, .prefill_tokens = 64 });
    for (uint32_t i = 0; i < 4; i++) {
        noise(ids[i], 1000, 1);
        noise(ids[i] + 900, 100, 10 + i);
    }
    before = prefilled();
    for (uint32_t i = 0; i < 4; i++) {
        q[i] = request(i, &(struct ask){ .ids = ids[i], .n_ids = 1000 });
        engrun_submit(&run, &q[i]);
    }
    for (uint32_t i = 0; i < 4; i++)
        got[i] = result(i);
    ck_assert_uint_le(prefilled() - before, 1000 + 3 * (100 + KERN_GRID));
    for (uint32_t i = 0; i < 4; i++) {
        struct out fresh = cold(&(struct ask){ .ids = ids[i], .n_ids = 1000 });

        same_bits(&got[i], &fresh);
    }
    close_model();
}
END_TEST

/* Whom a twin waits for may go at any time; then it goes on by itself. */
START_TEST(twin_is_cancelled) {
    static uint32_t ids[MOST];
    struct sched_req a, b;
    struct out got, fresh;

    open_twin((struct engine_options){ .prefill_tokens = 64 });
    noise(ids, MOST, 1);
    a = request(0, &(struct ask){ .ids = ids, .n_ids = MOST });
    b = request(1, &(struct ask){ .ids = ids, .n_ids = MOST });
    a.quiet = false;
    engrun_submit(&run, &a);
    engrun_submit(&run, &b);
    while (!prefilled())
        engrun_sleep_ms(1);
    engine_cancel(run.e, a.stream);
    engrun_wait_gen(&run, 0, gens[0]);
    got = result(1);
    fresh = cold(&(struct ask){ .ids = ids, .n_ids = MOST });
    same_bits(&got, &fresh);
    close_model();
}
END_TEST

/* ---- who finds what ---- */

START_TEST(users_are_apart) {
    static uint32_t ids[400];
    struct ask a = { .ids = ids, .n_ids = 400 };
    struct sched_req q;

    noise(ids, 400, 1);
    open_twin((struct engine_options){ 0 });
    a.uid = 1000;
    ask(&a);
    ck_assert_uint_eq(ask(&a).cached, 384);
    a.uid = 1001;
    ck_assert_uint_eq(ask(&a).cached, 0);
    ck_assert_uint_eq(ask(&a).cached, 384);
    q = request(0, &a);
    q.quiet = false;
    engrun_submit(&run, &q);
    engrun_wait_gen(&run, 0, gens[0]);
    ck_assert_uint_eq(run.s[0].progress.cached, 384);
    /* a group that is set up to share; its number is nobody's uid */
    shares = 1000;
    a.uid = 1002;
    ck_assert_uint_eq(ask(&a).cached, 0);
    a.uid = 1003;
    ck_assert_uint_eq(ask(&a).cached, 384);
    close_model();
}
END_TEST

START_TEST(not_wished) {
    static uint32_t ids[400];
    struct ask a = { .ids = ids, .n_ids = 400, .no_cache = true };
    struct prefix_counts c;

    noise(ids, 400, 1);
    open_twin((struct engine_options){ 0 });
    ask(&a);
    prefix_get_counts(run.e->prefix, &c);
    ck_assert_uint_eq(c.checkpoints, 0);
    ck_assert_uint_eq(c.why[PREFIX_WHY_REFUSED], 1);
    a.no_cache = false;
    ck_assert_uint_eq(ask(&a).cached, 0);
    a.no_cache = true;
    ck_assert_uint_eq(ask(&a).cached, 0);
    close_model();
}
END_TEST

START_TEST(at_most_four) {
    static uint32_t ids[MOST];
    const uint32_t marks[] = { 100, 300, 600, 900 };
    struct ask a = { .ids = ids, .n_ids = 1200, .max_tokens = 150, .marks = marks, .n_marks = 4 };
    struct prefix_counts c;

    noise(ids, MOST, 1);
    open_twin((struct engine_options){ 0 });
    for (uint32_t i = 1; i <= 3; i++) {
        uint64_t before;

        prefix_get_counts(run.e->prefix, &c);
        before = c.kept;
        ask(&a);
        engrun_settle(&run);
        prefix_get_counts(run.e->prefix, &c);
        ck_assert_uint_le(c.kept - before, 4);
        ck_assert_uint_ge(c.kept - before, i == 1 ? 4 : 1);
        noise(ids + 700, 500, 5 + i);
    }
    close_model();
}
END_TEST

/* ---- too little of everything ---- */

/* The pool holds one sequence and a half: the cache gives its pages back, nobody waits for it, nothing is wrong. */
START_TEST(small_pool) {
    static uint32_t ids[6][MOST];
    struct sched_req q[6];
    struct prefix_counts c;

    open_twin((struct engine_options){ .n_pages = 6, .cache_slots = 3, .context_tokens = 1024 });
    for (uint32_t i = 0; i < 6; i++) {
        noise(ids[i], 900, i / 2);
        noise(ids[i] + 600, 300, i);
    }
    for (uint32_t round = 0; round < (SLOW ? 1 : 2); round++) {
        for (uint32_t i = 0; i < 6; i++) {
            q[i] = request(i, &(struct ask){ .ids = ids[i], .n_ids = 700 + 30 * i });
            engrun_submit(&run, &q[i]);
        }
        for (uint32_t i = 0; i < 6; i++) {
            struct out got = result(i), fresh;

            if (round)
                continue;
            fresh = cold(&(struct ask){ .ids = ids[i], .n_ids = 700 + 30 * i });
            same_bits(&got, &fresh);
        }
    }
    prefix_get_counts(run.e->prefix, &c);
    ck_assert_uint_gt(c.evicted, 0);
    close_model();
}
END_TEST

/* The whole pool is one prompt's; sent again it finds itself although there is no page to copy into. */
START_TEST(pool_of_one) {
    static uint32_t ids[MOST];
    struct ask a = { .ids = ids, .n_ids = 800, .max_tokens = 24 };
    struct out one, two;

    noise(ids, MOST, 1);
    open_twin((struct engine_options){ .n_pages = 4, .cache_slots = 2, .context_tokens = 1024, .max_seqs = 1 });
    one = ask(&a);
    for (int i = 0; i < 2; i++) {
        two = ask(&a);
        ck_assert_mem_eq(one.tokens, two.tokens, sizeof one.tokens);
    }
    noise(ids, MOST, 2);
    one = ask(&a);
    two = cold(&a);
    same_bits(&one, &two);
    close_model();
}
END_TEST

/* Penalties count the whole prompt, the found part too. */
START_TEST(penalties_see_what_was_found) {
    static uint32_t ids[400];
    struct sched_req q;
    struct out o;

    noise(ids, 400, 1);
    open_twin((struct engine_options){ 0 });
    ask(&(struct ask){ .ids = ids, .n_ids = 400 });
    q = request(0, &(struct ask){ .ids = ids, .n_ids = 400, .max_tokens = 12 });
    q.sampling.repetition = 1e4f;
    engrun_submit(&run, &q);
    o = result(0);
    ck_assert_uint_eq(o.cached, 384);
    for (uint32_t i = 0; i < o.n; i++)
        for (uint32_t k = 0; k < 400; k++)
            ck_assert_uint_ne(o.tokens[i], ids[k]);
    close_model();
}
END_TEST

/* Requests that end at any time and in any way, beside each other, over few beginnings. */
START_TEST(random_lives) {
    enum { N = 8, ROUNDS = SLOW ? 2 : 3 };
    static uint32_t ids[N][MOST];
    struct ckpt_rng g = { .s = 9 };
    struct sched_req q[N];

    open_twin((struct engine_options){ .max_seqs = 3, .cache_slots = 5, .n_pages = 14, .context_tokens = 1024,
                                              .prefill_tokens = 64 });
    for (uint32_t i = 0; i < N; i++)
        noise(ids[i], MOST, i % 3);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < N; i++) {
            uint32_t cut = (uint32_t)(ckpt_rand(&g) % 500);

            noise(ids[i] + cut, 100, ckpt_rand(&g) % 3);
            q[i] = request(i, &(struct ask){ .ids = ids[i], .n_ids = 20 + (uint32_t)(ckpt_rand(&g) % 500),
                                             .max_tokens = 1 + (uint32_t)(ckpt_rand(&g) % 90),
                                             .uid = 1 + (uint32_t)(ckpt_rand(&g) % 2) });
            engrun_submit(&run, &q[i]);
        }
        engrun_sleep_ms((uint32_t)(ckpt_rand(&g) % 30));
        for (uint32_t i = 0; i < N; i++)
            if (ckpt_rand(&g) % 3 == 0)
                engine_cancel(run.e, q[i].stream);
        for (uint32_t i = 0; i < N; i++)
            ck_assert_uint_eq(engrun_wait_gen(&run, i, gens[i])->ends, 1);
        engrun_settle(&run);
    }
    close_model();
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_cache");
    TCase *tc = tcase_create("cache");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 1200);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, random_tree_cpu);
    tcase_add_test(tc, random_tree_ref);
    tcase_add_test(tc, answers_come_back);
    tcase_add_test(tc, one_system_prompt);
    tcase_add_test(tc, edits_at_the_end);
    tcase_add_test(tc, sent_again);
    tcase_add_test(tc, twins);
    tcase_add_test(tc, twin_is_cancelled);
    tcase_add_test(tc, users_are_apart);
    tcase_add_test(tc, not_wished);
    tcase_add_test(tc, at_most_four);
    tcase_add_test(tc, small_pool);
    tcase_add_test(tc, pool_of_one);
    tcase_add_test(tc, penalties_see_what_was_found);
    tcase_add_test(tc, random_lives);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
