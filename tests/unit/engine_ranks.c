/* SPDX-License-Identifier: MIT */
/* A checkpoint served by several ranks: golden values, the answers of one rank, kept and spilled states of all
 * ranks, bytes of each in the plan; a rank that is gone ends every request with an error, and what cannot be cut is
 * refused. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "engine_priv.h"
#include "engrun.h"
#include "evalgold.h"
#include "leakcheck.h"
#include "ranks_priv.h"
#include "spilltest.h"

enum { TEXT = 700, STREAMS = 5 };

/* The thread sanitizer and an emulated processor cost a factor of thirty: the same paths are walked with less. */
#if defined(__SANITIZE_THREAD__) || defined(TEST_EMULATED)
enum { SLOW = 1, ANSWER = 4, STEP = 40 };
#else
enum { SLOW = 0, ANSWER = 24, STEP = 130 };
#endif

static const uint32_t counts[] = { 2, 4 };
static const char *const backends[] = { "cpu", "ref" };

static void golden_case(struct engine *e, const char *name) {
    const struct eval_options o = { .tolerance = 1e-4 };
    struct gold_result res;
    struct xerr err = { 0 };
    struct st_file *f;
    struct gold g;

    ck_assert_int_eq(st_open(&f, "tests/golden/golden-nano.safetensors", NULL, &err), 0);
    ck_assert_int_eq(gold_read(f, name, &g, &err), 0);
    ck_assert_msg(gold_run(e, &g, &o, &res, &err) == 0, "%s", err.msg);
    ck_assert_msg(res.within, "%s: logits %g top1 %u/%u mtp %u/%u greedy %u/%u", name, res.logits, res.top1_same,
                  res.n_top1, res.mtp_same, res.n_mtp, res.greedy_same, res.n_greedy);
    gold_done(&g);
    st_close(f);
}

/* _i: ranks and backend */
START_TEST(golden) {
    struct engine_options o = { .model = ckpt_model("nano"), .backend = backends[_i / 2], .ranks = counts[_i % 2],
                                .max_seqs = 1, .score = true, .draft = true, .context_tokens = 512 };
    struct engine_info info;
    struct xerr err = { 0 };
    struct engine *e = NULL;
    uint64_t all = 0;

    ck_assert_msg(engine_open(&o, &e, &err) == 0, "%s", err.msg);
    engine_get_info(e, &info);
    ck_assert_uint_eq(info.ranks, o.ranks);
    for (uint32_t r = 0; r < info.ranks; r++) {
        ck_assert_uint_gt(info.rank_bytes[r], 0);
        all += info.rank_bytes[r];
    }
    ck_assert_uint_gt(all, info.weight_bytes);
    ck_assert_msg(engine_load(e, NULL, NULL, &err) == 0, "%s", err.msg);
    golden_case(e, "count");
    if (!_i && !SLOW) {
        golden_case(e, "len133");
        golden_case(e, "len257");
    }
    engine_close(e);
}
END_TEST

/* ---- serving ---- */

static struct engine_options options(uint32_t ranks) {
    return (struct engine_options){ .backend = "cpu", .ranks = ranks, .threads = 2, .context_tokens = 1024,
                                    .max_seqs = 3, .cache_slots = 6, .prefill_tokens = 128 };
}

/* Requests side by side, sampled and greedy, with prompts that begin alike; the answers go to ret. */
static void serve(struct engrun *r, uint32_t gen, uint32_t ret[STREAMS][ANSWER]) {
    static uint32_t text[STREAMS][TEXT];
    struct sched_req q[STREAMS];

    for (uint32_t i = 0; i < STREAMS; i++) {
        spilltest_text(i < 3 ? 8 + i : 40 + i, text[i], TEXT);
        q[i] = engrun_req(i, text[i], 150 + STEP * i, ANSWER);
        q[i].stream.gen = gen;
        q[i].uid = 7;
        q[i].ignore_eos = true;
        q[i].sampling.seed = 5 + i;
        q[i].sampling.temperature = i % 2 ? 0.8f : 0;
        q[i].sampling.top_p = i % 2 ? 0.9f : 1;
        engrun_submit(r, &q[i]);
    }
    for (uint32_t i = 0; i < STREAMS; i++) {
        const struct engrun_stream *s = engrun_wait_gen(r, i, gen);

        ck_assert_int_eq(s->end.status, 0);
        ck_assert_uint_eq(s->n_tokens, ANSWER);
        memcpy(ret[i], s->tokens, sizeof ret[i]);
    }
}

/* What one rank answers. */
static void of_one(uint32_t ret[STREAMS][ANSWER]) {
    static struct engrun run;
    const struct engine_options o = options(1);

    engrun_open(&run, ckpt_model("nano"), &o);
    engrun_start(&run);
    serve(&run, 1, ret);
    ck_assert_int_eq(engrun_close(&run), 0);
}

START_TEST(answers_of_one_rank) {
    static uint32_t one[STREAMS][ANSWER], many[STREAMS][ANSWER];
    static struct engrun run;
    const struct engine_options o = options(counts[_i]);

    of_one(one);
    engrun_open(&run, ckpt_model("nano"), &o);
    engrun_start(&run);
    serve(&run, 1, many);
    ck_assert(!memcmp(one, many, sizeof one));
    serve(&run, 2, many); /* now their beginnings are kept */
    ck_assert(!memcmp(one, many, sizeof one));
    ck_assert_int_eq(engrun_close(&run), 0);
}
END_TEST

/* All ranks' states and pages go to disk and come back after a restart; another number of ranks does not take them. */
START_TEST(spilled_states) {
    static uint32_t before[STREAMS][ANSWER], after[STREAMS][ANSWER];
    static struct engrun run;
    static struct spilltest t;
    struct engine_options o = options(2);
    struct engine_tier tier;

    spilltest_init(&t, NULL);
    o.spill_dir = t.dir;
    o.spill_bytes = 1 << 30;
    o.spill_min_tokens = 128;
    o.spill_survive = true;
    for (int round = 0; round < 3; round++) {
        o.ranks = round < 2 ? 4 : 2;
        engrun_open(&run, ckpt_model("nano"), &o);
        engrun_start(&run);
        serve(&run, 1, round ? after : before);
        engine_get_tier(run.e, &tier);
        ck_assert_msg(tier.on, "%s", tier.text);
        ck_assert(round == 1 ? tier.read > 0 : tier.read == 0);
        ck_assert_uint_eq(tier.damaged, 0);
        ck_assert(round == 2 ? tier.foreign > 0 : tier.foreign == 0); /* blocks of four ranks */
        ck_assert_int_eq(engrun_close(&run), 0);
        ck_assert(!round || !memcmp(before, after, sizeof before));
    }
    spilltest_done(&t);
}
END_TEST

/* Prompts that end between the slices of a chunk, beside one that is answered: plans that were loaded and never run,
 * slots and pages that go on to others. Who comes after them is answered as ever. */
START_TEST(cancelled_prompts) {
    static uint32_t one[STREAMS][ANSWER], many[STREAMS][ANSWER], text[TEXT];
    static struct engrun run;
    static struct sched_req long_one, short_one;
    struct engine_options o = options(2);

    of_one(one);
    o.target_gap_ms = 1; /* thin slices */
    engrun_open(&run, ckpt_model("nano"), &o);
    engrun_start(&run);
    spilltest_text(90, text, TEXT);
    long_one = engrun_req(8, text, 60, 500);
    long_one.ignore_eos = long_one.no_cache = true;
    engrun_submit(&run, &long_one);
    engrun_wait_tokens(&run, 8, 2);
    for (uint32_t i = 0; i < (SLOW ? 3 : 12); i++) {
        short_one = engrun_req(9, text, TEXT - i, 5);
        short_one.stream.gen = i + 1;
        short_one.no_cache = true;
        engrun_submit(&run, &short_one);
        engrun_sleep_ms(i);
        engine_cancel(run.e, short_one.stream);
        engrun_wait_gen(&run, 9, i + 1);
    }
    serve(&run, 1, many);
    ck_assert(!memcmp(one, many, sizeof one));
    ck_assert_int_eq(engrun_wait_end(&run, 8)->end.status, 0);
    ck_assert_int_eq(engrun_close(&run), 0);
}
END_TEST

/* ---- trouble ---- */

static void all_end(struct engrun *run, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const struct engrun_stream *s = engrun_wait_end(run, i);

        ck_assert_int_eq(s->end.reason, STREAM_END_ERROR);
        ck_assert_int_eq(s->end.status, -EIO);
    }
    ck_assert_int_eq(engrun_close(run), -EIO);
}

static void begin(struct engrun *run, uint32_t timeout_ms, uint32_t n) {
    struct engine_options o = options(2);
    static uint32_t text[TEXT];
    static struct sched_req q[STREAMS];

    o.rank_timeout_ms = timeout_ms;
    o.max_seqs = n;
    spilltest_text(3, text, TEXT);
    engrun_open(run, ckpt_model("nano"), &o);
    engrun_start(run);
    for (uint32_t i = 0; i < n; i++) {
        q[i] = engrun_req(i, text, 100, 800);
        q[i].ignore_eos = true;
        engrun_submit(run, &q[i]);
    }
    engrun_wait_tokens(run, 0, 3);
}

/* One that does not do what it is told any more. */
START_TEST(rank_that_is_gone) {
    static struct engrun run;

    begin(&run, 400, 3);
    ranks_tell(&run.e->ranks.rank[1], &(struct rank_command){ .op = OP_QUIT });
    all_end(&run, 3);
}
END_TEST

/* One that says so, while the others wait. */
START_TEST(rank_that_fails) {
    static struct engrun run;

    begin(&run, 60000, 3);
    ranks_tell(&run.e->ranks.rank[1], &(struct rank_command){ .op = OP_LAUNCH, .a = 100000 });
    all_end(&run, 3);
}
END_TEST

/* Bytes that one rank refuses end nothing. */
START_TEST(refused_bytes) {
    struct engine_options o = options(2);
    static struct engrun run;
    struct ranks *g;
    char *bytes;

    engrun_open(&run, ckpt_model("nano"), &o);
    g = &run.e->ranks;
    bytes = calloc(1, ranks_slot_bytes(g));
    ck_assert_uint_eq(ranks_slot_bytes(g), kern_slot_bytes(g->rank[0].k) + kern_slot_bytes(g->rank[1].k));
    ck_assert_int_eq(ranks_slot_read(g, 0, bytes, ranks_slot_bytes(g)), 0);
    ck_assert_int_eq(ranks_slot_write(g, 1, bytes, ranks_slot_bytes(g)), 0);
    bytes[kern_slot_bytes(g->rank[0].k)] ^= 1; /* the second's */
    ck_assert_int_eq(ranks_slot_write(g, 1, bytes, ranks_slot_bytes(g)), -EBADMSG);
    ck_assert_int_eq(ranks_slot_write(g, 1, bytes, 1), -EINVAL);
    bytes[kern_slot_bytes(g->rank[0].k)] ^= 1;
    ck_assert_int_eq(ranks_slot_write(g, 1, bytes, ranks_slot_bytes(g)), 0);
    ck_assert_int_eq(ranks_page_read(g, 0, bytes, ranks_page_bytes(g)), 0);
    ck_assert_int_eq(ranks_page_write(g, 1, bytes, ranks_page_bytes(g)), 0);
    free(bytes);
    engrun_start(&run);
    ck_assert_int_eq(engrun_close(&run), 0);
}
END_TEST

START_TEST(refused) {
    static const struct {
        uint32_t ranks;
        const char *words[2];
    } cases[] = { { 8, { "kda_heads is 4", "start with 4 at most" } }, { 9, { "found 9", "1 to 8" } } };
    struct engine *e = NULL;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct xerr err = { 0 };
        const struct engine_options o = { .model = ckpt_model("nano"), .ranks = cases[i].ranks, .context_tokens = 256 };

        ck_assert_int_eq(engine_open(&o, &e, &err), -EINVAL);
        for (int w = 0; w < 2; w++)
            ck_assert_msg(strstr(err.msg, cases[i].words[w]) != NULL, "%s", err.msg);
    }
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("engine_ranks");
    TCase *tc = tcase_create("ranks");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, golden, 0, SLOW ? 1 : 4);
    tcase_add_loop_test(tc, answers_of_one_rank, 0, 2);
    tcase_add_test(tc, spilled_states);
    tcase_add_test(tc, cancelled_prompts);
    tcase_add_test(tc, rank_that_is_gone);
    tcase_add_test(tc, rank_that_fails);
    tcase_add_test(tc, refused_bytes);
    tcase_add_test(tc, refused);
    suite_add_tcase(s, tc);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
