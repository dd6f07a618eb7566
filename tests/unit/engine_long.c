/* SPDX-License-Identifier: MIT */
/* The prefix cache and long prompts, on nano with the cpu backend: checkpoints on the way, which of them stay, and a
 * prompt that is longer than the distance between them. */
#include <check.h>
#include <string.h>

#include "ckpt.h"
#include "engine_priv.h"
#include "engrun.h"
#include "leakcheck.h"

enum { MOST = 1600, OUT = 200 };

static struct engrun run;
static uint32_t gens[ENGRUN_STREAMS];

static void setup(void) {
    leakcheck_setup();
    memset(gens, 0, sizeof gens);
}

static void open_nano(const char *backend, struct engine_options o) {
    o.backend = backend;
    o.context_tokens = o.context_tokens ? o.context_tokens : 2048;
    o.max_seqs = o.max_seqs ? o.max_seqs : 2;
    o.cache_slots = o.cache_slots ? o.cache_slots : 24;
    engrun_open(&run, ckpt_model("nano"), &o);
    engrun_start(&run);
}

/* The engine sleeps: whatever the requests took is free again or the cache's, and the tree adds up. */
static void check_idle(void) {
    const char *what = "";
    struct engine_stats st;
    struct engine_info in;

    engine_get_info(run.e, &in);
    for (int i = 0; i < 2000; i++) {
        engine_get_stats(run.e, &st);
        if (st.asleep && st.free_pages == in.n_pages)
            break;
        engrun_sleep_ms(1);
    }
    ck_assert_uint_eq(st.free_pages, in.n_pages);
    ck_assert_uint_eq(st.free_slots, in.n_slots);
    ck_assert_uint_eq(run.e->n_rolling, 0);
    if (run.e->prefix)
        ck_assert_msg(prefix_check(run.e->prefix, &what) == 0, "%s", what);
}

static void close_nano(void) {
    check_idle();
    ck_assert_int_eq(engrun_close(&run), 0);
    leakcheck_teardown();
}

/* ---- requests ---- */

struct out {
    uint32_t n, tokens[OUT], cached;
    float logprob;
    struct stream_alt alts[STREAM_MAX_ALTS];
};

struct ask {
    uint32_t uid, n_ids, max_tokens;
    const uint32_t *ids, *marks;
    uint32_t n_marks;
    bool no_cache;
};

static struct sched_req request(uint32_t stream, const struct ask *a) {
    struct sched_req q = engrun_req(stream, a->ids, a->n_ids, a->max_tokens ? a->max_tokens : 2);

    q.stream.gen = ++gens[stream];
    q.uid = a->uid ? a->uid : 1000;
    q.marks = a->marks;
    q.n_marks = a->n_marks;
    q.no_cache = a->no_cache;
    q.ignore_eos = true;
    q.sampling.logprobs = true;
    q.sampling.n_alts = STREAM_MAX_ALTS;
    return q;
}

static struct out result(uint32_t stream) {
    const struct engrun_stream *s = engrun_wait_gen(&run, stream, gens[stream]);
    struct out o = { .n = s->n_tokens, .cached = s->end.u.usage.cached, .logprob = s->logprob };

    ck_assert_int_eq(s->end.status, 0);
    ck_assert_uint_le(s->n_tokens, OUT);
    memcpy(o.tokens, s->tokens, s->n_tokens * sizeof *o.tokens);
    memcpy(o.alts, s->alts, sizeof o.alts);
    return o;
}

static struct out ask(const struct ask *a) {
    struct sched_req q = request(0, a);

    engrun_submit(&run, &q);
    return result(0);
}

static void same_bits(const struct out *a, const struct out *b) {
    ck_assert_uint_eq(a->n, b->n);
    ck_assert_mem_eq(a->tokens, b->tokens, a->n * sizeof *a->tokens);
    ck_assert_mem_eq(&a->logprob, &b->logprob, sizeof a->logprob);
    ck_assert_mem_eq(a->alts, b->alts, sizeof a->alts);
}

static void noise(uint32_t *ids, uint32_t n, uint64_t seed) {
    struct ckpt_rng g = { .s = seed * 77 + 1 };

    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(ckpt_rand(&g) % 4000);
}

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
        open_nano("cpu", (struct engine_options){ .prefill_tokens = 128 });
        run.e->long_tokens = 192;
        ask(&a);
        check_idle();
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
        close_nano();
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
    open_nano("cpu", (struct engine_options){ .context_tokens = N + 64, .max_seqs = 1 });
    q = request(0, &a);
    engrun_submit(&run, &q);
    while (!has_ended(0))
        engrun_sleep_ms(20);
    whole = result(0);
    ck_assert_uint_eq(whole.cached, 0);
    check_idle();
    for (uint32_t i = 0; i < run.e->opt.cache_slots; i++)
        there |= prefix_get(run.e->prefix, i, &in) && in.pos == ECACHE_LONG && in.kind == PREFIX_LONG;
    ck_assert(there);
    o = ask(&a);
    ck_assert_uint_gt(o.cached, ECACHE_LONG);
    same_bits(&o, &whole);
    noise(ids + ECACHE_LONG + 30, N - ECACHE_LONG - 30, 5);
    ck_assert_uint_eq(ask(&a).cached, ECACHE_LONG);
    close_nano();
}
END_TEST

/* On the way through a very long prompt there is a checkpoint at fixed distances, besides its own marks. */
START_TEST(marks_of_a_long_prompt) {
    struct eng_seq q = { .cache = { .on = true, .n_marks = 2,
                                    .marks = { { 640, PREFIX_TURN }, { 40000, PREFIX_END } } } };

    open_nano("cpu", (struct engine_options){ 0 });
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, 0), 640);
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, 640), ECACHE_LONG);
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, ECACHE_LONG), 2 * ECACHE_LONG);
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, 2 * ECACHE_LONG), 40000);
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, UINT32_MAX - 63), UINT32_MAX);
    q.cache.on = false;
    ck_assert_uint_eq(ecache_next_mark(run.e, &q, 0), UINT32_MAX);
    close_nano();
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
