/* SPDX-License-Identifier: MIT */
/* Everything at once under a real model, in pools that are too small for it: prompts with common beginnings, answers
 * that go on, background requests that give up their seats, readers that stall and come back or do not, deadlines,
 * cancellations, a tier on disk. Whoever found something has the tokens of a request that runs alone and may find
 * nothing, as has a third of the others; everybody ends once; nothing stays taken. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "ckpt.h"
#include "engine_priv.h"
#include "engrun.h"
#include "leakcheck.h"
#include "spilltest.h"

#if defined(__SANITIZE_THREAD__) || defined(TEST_EMULATED)
enum { ROUNDS = 1 };
#else
enum { ROUNDS = 3 };
#endif

enum { N = 14, MOST = 640, ALONE = N };

static struct engrun run;
static struct spilltest t;
static uint32_t gens[ENGRUN_STREAMS];
static uint32_t ids[N][MOST];
static struct ckpt_rng g;

static uint32_t below(uint32_t n) {
    return (uint32_t)(ckpt_rand(&g) % n);
}

static void noise(uint32_t *to, uint32_t n, uint64_t seed) {
    struct ckpt_rng r = { .s = seed * 77 + 1 };

    for (uint32_t i = 0; i < n; i++)
        to[i] = (uint32_t)(ckpt_rand(&r) % 4000);
}

static struct sched_req make(uint32_t i) {
    struct sched_req q;
    uint32_t cut = below(500);

    noise(ids[i], MOST, below(3));
    noise(ids[i] + cut, MOST - cut, 10 + below(4));
    q = engrun_req(i, ids[i], 20 + below(MOST - 20), 1 + below(140));
    q.stream.gen = ++gens[i];
    q.uid = 1 + below(3);
    q.share = q.uid == 3 ? 0 : 7;
    q.quiet = below(2);
    q.ignore_eos = true;
    q.background = below(3) == 0;
    q.no_cache = below(8) == 0;
    q.sampling.repetition = below(2) ? 1.3f : 1.0f;
    q.deadline_ns = below(8) ? 0 : engrun_now_ns() + below(400) * UINT64_C(1000000);
    return q;
}

static void same_alone(const struct sched_req *q, const struct engrun_stream *got, uint32_t round) {
    const struct engrun_stream *s;
    struct sched_req a = engrun_req(ALONE, q->ids, q->n_ids, q->max_tokens);

    a.stream.gen = ++gens[ALONE];
    a.ignore_eos = a.no_cache = true;
    a.sampling.repetition = q->sampling.repetition;
    engrun_submit(&run, &a);
    s = engrun_wait_gen(&run, ALONE, gens[ALONE]);
    ck_assert_msg(s->n_tokens == got->n_tokens, "round %u stream %u: %u tokens, alone %u", round, q->stream.index,
                  got->n_tokens, s->n_tokens);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        ck_assert_msg(s->tokens[i] == got->tokens[i], "round %u stream %u: token %u of %u behind %u, cached %u", round,
                      q->stream.index, i, s->n_tokens, q->n_ids, got->end.u.usage.cached);
}

/* The daemon stops in the middle of all of it. */
static void stop_at_once(struct sched_req *q, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        atomic_store(&run.credit[i].records, below(3) ? 2000 : below(20));
        q[i] = make(i);
        engrun_submit(&run, &q[i]);
    }
    engrun_sleep_ms(below(100));
    ck_assert_int_eq(engrun_close(&run), 0);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_msg(run.s[i].gen == gens[i] && run.s[i].ends == 1 && !run.s[i].late, "stream %u: %u ends", i,
                      run.s[i].ends);
}

static void stall_and_come_back(const struct sched_req *q, uint32_t n) {
    for (uint32_t k = 0; k < 60; k++) {
        uint32_t i = below(n);

        engrun_credit(&run, i, below(3) ? 8 : 60);
        if (below(12) == 0)
            engine_cancel(run.e, q[below(n)].stream);
        engrun_sleep_ms(below(8));
    }
    for (uint32_t i = 0; i < n; i++)
        engrun_credit(&run, i, 2000);
}

START_TEST(everything_at_once) {
    struct sched_req q[N];
    bool odd = _i > 0, tight = _i == 2; /* pools so small that what is being written to disk must give way */
    uint64_t seed = tight ? 23 : (uint64_t)_i;
    uint32_t n = tight ? N : 9, finished = 0;

    leakcheck_setup();
    spilltest_init(&t, NULL);
    g = (struct ckpt_rng){ .s = 9 + 1000 * seed };
    struct engine_options o = { .backend = "cpu", .max_seqs = 3, .cache_slots = tight ? 4 : 5,
                                .n_pages = tight ? 10 : 16, .cache = tight ? ENGINE_CACHE_FP8 : ENGINE_CACHE_F32,
                                .context_tokens = 1024,
                                .prefill_tokens = odd ? 128 : 256, .park_ms = 2, .patience_ms = 30,
                                .target_gap_ms = 5, .threads = tight ? 0 : 1, .spill_dir = odd ? t.dir : NULL,
                                .spill_bytes = 8 << 20, .spill_min_tokens = 64, .spill_survive = true };
    /* twin-a: every kind of layer, and a quarter of the work */
    engrun_open(&run, ckpt_model(_i == 0 ? "nano" : "twin-a"), &o);
    run.metered = true;
    engrun_start(&run);
    for (uint32_t round = 0; round < (tight ? ROUNDS : 2u); round++) {
        for (uint32_t i = 0; i < n; i++) {
            atomic_store(&run.credit[i].records, below(3) ? 2000 : below(20));
            q[i] = make(i);
            engrun_submit(&run, &q[i]);
            if (below(4) == 0)
                engrun_sleep_ms(below(20));
        }
        stall_and_come_back(q, n);
        for (uint32_t i = 0; i < n; i++)
            ck_assert_uint_eq(engrun_wait_gen(&run, i, gens[i])->ends, 1);
        engrun_settle(&run);
        atomic_store(&run.credit[ALONE].records, 100000);
        for (uint32_t i = 0; i < n; i++) {
            const struct engrun_stream *s = &run.s[i];

            ck_assert_msg(s->end.status == 0 || s->end.status == -ECANCELED || s->end.status == -ETIMEDOUT, "%d",
                          s->end.status);
            if (s->end.status)
                continue;
            finished++;
            if (s->end.u.usage.cached || i % 3 == 0) /* the others can hardly be wrong, and cost as much */
                same_alone(&q[i], s, round);
        }
    }
    ck_assert_uint_gt(finished, 1);
    stop_at_once(q, n);
    spilltest_done(&t);
    leakcheck_teardown();
}
END_TEST

/* However long they wait: what prompts have in common is found out once, not between all steps of everybody. */
START_TEST(twins_are_compared_once) {
    enum { TWINS = 12, LONG = 600, SAME = 540 };
    struct engine_options o = { .backend = "cpu", .max_seqs = 4, .cache_slots = 24, .context_tokens = 1024,
                                .prefill_tokens = 64, .threads = 1 };
    struct sched_req q[TWINS];

    leakcheck_setup();
    engrun_open(&run, ckpt_model("twin-a"), &o);
    engrun_start(&run);
    for (uint32_t i = 0; i < TWINS; i++) {
        noise(ids[i], LONG, 1);
        noise(ids[i] + SAME, LONG - SAME, 10 + i);
        q[i] = engrun_req(i, ids[i], LONG, 2);
        q[i].stream.gen = ++gens[i];
        engrun_submit(&run, &q[i]);
    }
    for (uint32_t i = 0; i < TWINS; i++)
        ck_assert_int_eq(engrun_wait_gen(&run, i, gens[i])->end.status, 0);
    ck_assert_uint_ge(run.e->twin_ids, SAME);
    ck_assert_uint_le(run.e->twin_ids, TWINS * (TWINS - 1) / 2 * SAME); /* every pair */
    engrun_settle(&run);
    ck_assert_int_eq(engrun_close(&run), 0);
    leakcheck_teardown();
}
END_TEST

/* A background prompt may be read at a chunk in ten seconds: nobody interactive waits for it. */
START_TEST(background_holds_no_twin) {
    struct engine_options o = { .backend = "cpu", .max_seqs = 2, .cache_slots = 4, .context_tokens = 1024,
                                .prefill_tokens = 64, .threads = 1 };
    struct sched_req q[2];
    uint32_t held = 0;

    leakcheck_setup();
    engrun_open(&run, ckpt_model("twin-a"), &o);
    engrun_attach(&run);
    noise(ids[0], MOST, 1);
    for (uint32_t i = 0; i < 2; i++) {
        q[i] = engrun_req(i, ids[0], MOST, 2);
        q[i].stream.gen = ++gens[i];
    }
    q[0].background = true;
    engrun_submit(&run, &q[0]);
    while (run.e->seqs[0].pos < 64)
        ck_assert_int_eq(engine_round(run.e, false), 0);
    engrun_submit(&run, &q[1]);
    while (!run.s[1].ends) {
        ck_assert_int_eq(engine_round(run.e, false), 0);
        held += run.e->n_held;
    }
    ck_assert_uint_eq(held, 0);
    while (!run.s[0].ends)
        ck_assert_int_eq(engine_round(run.e, false), 0);
    engrun_close(&run);
    leakcheck_teardown();
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_mixed");
    TCase *tc = tcase_create("mixed");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, everything_at_once, 0, 3);
    tcase_add_test(tc, twins_are_compared_once);
    tcase_add_test(tc, background_holds_no_twin);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
