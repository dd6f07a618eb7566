/* SPDX-License-Identifier: MIT */
/* GLM-5.3 as it is served: a small checkpoint of its shape with the release's FP8 matrices, through the plan, the
 * engine with its prefix cache and the tier on disk, and a daemon that answers; glm53_eval judges the numbers. The
 * model has no recurrent state: what is kept of a prompt are pages, and a slot is a head without a body. */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "daemonfix.h"
#include "engine_priv.h"
#include "engrun.h"
#include "leakcheck.h"
#include "runprog.h"
#include "spilltest.h"
#include "twin53.h"

enum { LONGEST = 1200, ANSWER = 6 };

static struct ckpt base;
static struct spilltest t;
static struct engrun run;
static struct engine_options opt;
static struct sched_req requests[ENGRUN_STREAMS]; /* the engine reads them until they end */
static uint32_t gens[ENGRUN_STREAMS], ids[LONGEST];

static void once(void) {
    const struct o53_dims d = twin53_dims();
    struct o53_model m;

    if (base.dir[0])
        return; /* both cases use the same */
    ckpt_empty(&base);
    twin53_make(&m, &d, 53, "fp8");
    twin53_write(&m, &base, "fp8");
    twin53_done(&m);
}

static void at_the_end(void) {
    ckpt_remove(&base);
}

static void setup(void) {
    leakcheck_setup();
    spilltest_init(&t, NULL);
    memset(gens, 0, sizeof gens);
    spilltest_text(3, ids, LONGEST);
    opt = (struct engine_options){
        .backend = "cpu", .threads = 1, .context_tokens = 2048, .max_seqs = 4, .cache_slots = 8};
}

static void teardown(void) {
    spilltest_done(&t);
    leakcheck_teardown();
}

static void start(void) {
    engrun_open(&run, base.dir, &opt);
    engrun_start(&run);
}

static void stop(void) {
    engrun_settle(&run);
    ck_assert_int_eq(engrun_close(&run), 0);
}

/* ---- the engine ---- */

static void submit(uint32_t stream, const uint32_t *text, uint32_t n, bool no_cache) {
    struct sched_req *q = &requests[stream];

    *q = engrun_req(stream, text, n, ANSWER);
    q->stream.gen = ++gens[stream];
    q->uid = 7;
    q->ignore_eos = true;
    q->no_cache = no_cache;
    q->sampling.logprobs = true;
    engrun_submit(&run, q);
}

static struct engrun_stream answer(uint32_t stream) {
    const struct engrun_stream *s = engrun_wait_gen(&run, stream, gens[stream]);

    ck_assert_int_eq(s->end.status, 0);
    ck_assert_uint_eq(s->n_tokens, ANSWER);
    return *s;
}

static void same_answer(const struct engrun_stream *a, const struct engrun_stream *b) {
    ck_assert_mem_eq(a->tokens, b->tokens, ANSWER * sizeof a->tokens[0]);
    ck_assert_mem_eq(a->logprobs, b->logprobs, ANSWER * sizeof a->logprobs[0]);
}

/* Tokens that were found ready; the answer must be that of a request that may find nothing. */
static uint32_t found(uint32_t n) {
    static struct engrun_stream warm, cold;

    submit(0, ids, n, false);
    warm = answer(0);
    submit(1, ids, n, true);
    cold = answer(1);
    same_answer(&warm, &cold);
    ck_assert_uint_eq(cold.end.u.usage.cached, 0);
    return warm.end.u.usage.cached;
}

static const struct {
    const char *backend;
    enum engine_cache cache;
} KINDS[] = {
    {"cpu", ENGINE_CACHE_F32}, {"cpu", ENGINE_CACHE_FP8}, {"cpu", ENGINE_CACHE_BF16}, {"ref", ENGINE_CACHE_F32}};

START_TEST(found_is_cold) {
    const uint32_t n = _i == 3 ? 75 : 700; /* the oracle is slow */
    struct engine_info info;

    opt.backend = KINDS[_i].backend;
    opt.cache = KINDS[_i].cache;
    start();
    engine_get_info(run.e, &info);
    ck_assert_uint_le(info.slot_bytes, 64);
    ck_assert_uint_eq(found(n), 0);
    ck_assert_uint_eq(found(n), (n - 1) / 64 * 64);
    if (_i == 3) {
        stop();
        return;
    }
    ck_assert_uint_eq(found(n + 37), (n - 1) / 64 * 64); /* goes on in the middle of a page */
    ids[n - 100] ^= 1; /* another branch: the checkpoint before it */
    ck_assert_uint_le(found(n), n - 100);
    ck_assert_uint_eq(found(n), (n - 1) / 64 * 64);
    stop();
}
END_TEST

/* Four prompts of different lengths at once, each as it would be alone. */
START_TEST(beside_others) {
    static struct engrun_stream alone[4], beside;
    const uint32_t n[] = {70, 130, 333, 481};

    opt.cache_slots = 0;
    start();
    for (uint32_t i = 0; i < 4; i++) {
        submit(i, ids + 11 * i, n[i], true);
        alone[i] = answer(i);
    }
    for (uint32_t i = 0; i < 4; i++)
        submit(i, ids + 11 * i, n[i], true);
    for (uint32_t i = 0; i < 4; i++) {
        beside = answer(i);
        same_answer(&alone[i], &beside);
    }
    stop();
}
END_TEST

START_TEST(it_survives_a_restart) {
    opt.cache = _i ? ENGINE_CACHE_FP8 : ENGINE_CACHE_F32;
    opt.spill_dir = t.dir;
    opt.spill_bytes = 1 << 30;
    opt.spill_min_tokens = 128;
    opt.spill_survive = true;
    start();
    ck_assert_uint_eq(found(700), 0);
    stop();
    ck_assert_uint_gt(spilltest_files(&t, ".state"), 0);
    start();
    ck_assert_uint_eq(found(700), 640);
    stop();
}
END_TEST

/* ---- programs ---- */

START_TEST(plan) {
    const char *const argv[] = {TEST_BUILD "/test/glmd", "--plan", "--json", "--context", "512", "--model", base.dir,
                                "--config", "/dev/null", NULL};
    static struct runprog p;
    json_t *root, *v;
    uint64_t fp8 = 0;
    size_t i;

    ck_assert_msg(runprog(&p, argv, NULL, false, NULL) == 0, "%s", p.err_text);
    root = json_loads(p.out_text, 0, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_int_le(json_integer_value(json_object_get(root, "slot_bytes")), 64);
    /* a page: 12 layers of 72 numbers and 5 of 32 for each of 256 tokens */
    ck_assert_int_eq(json_integer_value(json_object_get(root, "page_bytes")), 256 * 4 * (12 * (64 + 16) + 5 * 32));
    json_array_foreach(json_object_get(root, "weights"), i, v)
        if (strcmp(json_string_value(json_object_get(v, "format")), "FP8 128x128") == 0)
            fp8 += (uint64_t)json_integer_value(json_object_get(v, "tensors"));
    /* without the draft layer: five of attention in 12, two of the indexer in 5, three MLPs, 9 x 8 experts */
    ck_assert_uint_eq(fp8, 12 * 5 + 5 * 2 + 3 * 3 + 9 * 8 * 3);
    json_decref(root);
}
END_TEST

/* Text in, text out: template, tokenizer and stop ids are the family's. */
START_TEST(daemon) {
    static struct answer a;
    struct daemonfix f;
    glmd_conn *c;
    glmd_req *r;

    daemonfix_init(&f);
    snprintf(f.model, sizeof f.model, "%s", base.dir);
    daemonfix_start(&f, "[Model]\nContextTokens=1024\n[Memory]\nMaxSequences=2\n");
    c = daemonfix_connect(&f, NULL);
    r = request_text(c, "Capital of Peru?");
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_TEMPERATURE, 0.0), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 20), 0);
    answer_submit(c, &a, r);
    answers_wait(c, &a, 1, 60000);
    ck_assert_int_eq(a.status, 0);
    ck_assert(a.n_tokens > 0 && a.n_tokens <= 20);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("glm53_engine");
    TCase *tc = tcase_create("engine"), *programs = tcase_create("programs");
    SRunner *r;
    int failed;

    tcase_set_timeout(tc, 240);
    tcase_add_unchecked_fixture(tc, once, NULL);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, found_is_cold, 0, 4);
    tcase_add_test(tc, beside_others);
    tcase_add_loop_test(tc, it_survives_a_restart, 0, 2);
    tcase_set_timeout(programs, 240);
    tcase_add_unchecked_fixture(programs, once, at_the_end);
    tcase_add_checked_fixture(programs, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(programs, plan);
    tcase_add_test(programs, daemon);
    suite_add_tcase(s, tc);
    suite_add_tcase(s, programs);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
