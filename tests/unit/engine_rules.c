/* SPDX-License-Identifier: MIT */
/* Control through the running engine: what it forces, bans, masks and ends comes out of the sampler. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "controltest.h"
#include "engrun.h"
#include "leakcheck.h"

static const struct sched_text STOP_STOP = { .s = "STOP", .len = 4 };
static const uint32_t CLOSE[2] = { 13, 11 };
/* ab, abc, b and bd as names: 0 = a ... */
static const uint32_t NAME_IDS[] = { 0, 1, 0, 1, 2, 1, 1, 3 };
static const uint32_t NAME_OFFS[] = { 0, 2, 5, 6, 8 };

#define HEAD "glmd-script 1\nvocab 40\ncontext 512\nstop 34 35\n"

/* The engine reports the token that completes the string, then the end; and bans through the sampler. */
START_TEST(test_through_engine) {
    static const uint32_t prompt[2] = { 1, 2 };
    const struct engrun_stream *s;
    struct sched_req q[5];
    struct engrun r;

    engrun_open(&r, HEAD "request first 1\ntokens 0 27 28 3 4\n"
                         "request first 2\nlogits 0 34:5 7:4\nlogits 1 34:5 8:4\nlogits 2 34:5 9:4\n"
                         "request\ntokens 30 26 31 26\n",
                NULL);
    engine_set_vocab(r.e, &controltest_vocab);
    engrun_start(&r);
    q[0] = engrun_req(0, prompt, 1, 0);
    q[0].stops = &STOP_STOP;
    q[0].n_stops = 1;
    q[1] = engrun_req(1, prompt + 1, 1, 0);
    q[1].min_tokens = 2;
    q[2] = engrun_req(2, prompt + 1, 1, 5);
    q[2].ignore_eos = true;
    q[3] = engrun_req(3, (const uint32_t[]){ 9 }, 1, 0);
    q[3].stops = &STOP_STOP;
    q[3].n_stops = 1;
    for (uint32_t i = 0; i < 4; i++)
        engrun_submit(&r, &q[i]);
    s = engrun_wait_end(&r, 0);
    ck_assert_uint_eq(s->n_tokens, 3);
    ck_assert_uint_eq(s->tokens[2], T_P);
    ck_assert_uint_eq(s->end.reason, STREAM_END_STOP_STRING);
    ck_assert_uint_eq(s->end.u.usage.completion, 3);
    s = engrun_wait_end(&r, 1);
    ck_assert_uint_eq(s->n_tokens, 2);
    ck_assert_uint_eq(s->tokens[0], 7);
    ck_assert_uint_eq(s->tokens[1], 8);
    ck_assert_uint_eq(s->end.reason, STREAM_END_STOP);
    ck_assert_uint_eq(s->end.token, T_EOS);
    s = engrun_wait_end(&r, 2);
    ck_assert_uint_eq(s->n_tokens, 5);
    ck_assert_uint_eq(s->tokens[2], 9);
    ck_assert_uint_eq(s->end.reason, STREAM_END_LENGTH);
    s = engrun_wait_end(&r, 3);
    ck_assert_uint_eq(s->n_tokens, 4);
    ck_assert_uint_eq(s->end.reason, STREAM_END_STOP_STRING);
    ck_assert_uint_eq(s->end.u.usage.reasoning, 3);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* Through the sampler: forced ids are sampled whatever the logits say, in the prompt's own sample too, a mask
 * leaves only names, and a mask whose ids are all banned ends with an error. */
START_TEST(test_rules_through_engine) {
    static const uint32_t prompt[3] = { 1, 2, 3 };
    const struct engrun_stream *s;
    struct sched_req q[4];
    struct engrun r;

    engrun_open(&r, HEAD "request first 1\ntokens 5 6 7 8 9 10 4 34\n"
                         "request first 2\nlogits 0 7:5\nlogits 1 7:5 1:4 0:3\nlogits 2 7:5 34:4 3:2 36:1\n"
                         "logits 3 8:5 36:1\nlogits 4 34:5 33:4\nlogits 5 32:5 4:4\n"
                         "request\nrepeat\ntokens 3 4 5\n",
                NULL);
    engine_set_vocab(r.e, &controltest_vocab);
    engrun_start(&r);
    q[0] = engrun_req(0, prompt, 1, 0);
    q[0].in_reasoning = true;
    q[0].control = (struct sched_control){ .has_budget = true, .budget = 2, .close = CLOSE, .n_close = 2 };
    q[1] = engrun_req(1, prompt + 1, 1, 0);
    q[1].control = (struct sched_control){ .tools = SCHED_TOOLS_MUST, .tools_offered = true, .one_call = true,
                                           .names = { .ids = NAME_IDS, .offsets = NAME_OFFS, .n = 4 } };
    q[2] = engrun_req(2, prompt + 2, 1, 0);
    q[2].control = (struct sched_control){ .loop_guard = true };
    q[3] = engrun_req(3, prompt, 1, 0);
    q[3].in_reasoning = true;
    q[3].control = (struct sched_control){ .has_budget = true };
    for (uint32_t i = 0; i < 4; i++)
        engrun_submit(&r, &q[i]);
    s = engrun_wait_end(&r, 0);
    ck_assert_uint_eq(s->n_tokens, 7);
    ck_assert_int_eq(memcmp(s->tokens, (uint32_t[]){ 5, 6, 13, 11, T_NOTHINK, 10, 4 }, 28), 0);
    ck_assert_uint_eq(s->n_forced, 3);
    ck_assert_uint_eq(s->end.u.usage.reasoning, 5);
    ck_assert_uint_eq(s->end.u.usage.completion, 8);
    ck_assert(s->end.u.usage.budget_closed && !s->end.u.usage.loop_closed);
    s = engrun_wait_end(&r, 1);
    ck_assert_uint_eq(s->n_tokens, 5);
    ck_assert_int_eq(memcmp(s->tokens, (uint32_t[]){ T_CALL, 1, 3, T_KEY, T_NOCALL }, 20), 0);
    ck_assert_uint_eq(s->n_forced, 1);
    ck_assert_uint_eq(s->end.reason, STREAM_END_STOP);
    s = engrun_wait_end(&r, 2);
    ck_assert_uint_eq(s->end.reason, STREAM_END_LOOP);
    ck_assert_int_eq(s->end.status, 0);
    ck_assert_uint_eq(s->n_tokens, 256);
    ck_assert(s->end.u.usage.loop_closed);
    s = engrun_wait_end(&r, 3);
    ck_assert_uint_eq(s->tokens[0], T_NOTHINK);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* A mask that the vocabulary cannot meet is an error, never a hang. */
START_TEST(test_nothing_left) {
    static const uint32_t prompt[1] = { 1 }, ids[2] = { 0, 1 }, offs[3] = { 0, 1, 2 };
    struct vocab_view bare = controltest_vocab;
    const struct engrun_stream *s;
    struct sched_req q;
    struct engrun r;

    bare.key_open = bare.tool_close = UINT32_MAX; /* nothing can follow the name */
    engrun_open(&r, HEAD "request\nrepeat\ntokens 3\n", NULL);
    engine_set_vocab(r.e, &bare);
    engrun_start(&r);
    q = engrun_req(0, prompt, 1, 0);
    q.control = (struct sched_control){ .tools = SCHED_TOOLS_MUST, .tools_offered = true,
                                        .names = { .ids = ids, .offsets = offs, .n = 2 } };
    engrun_submit(&r, &q);
    s = engrun_wait_end(&r, 0);
    ck_assert_uint_eq(s->end.reason, STREAM_END_ERROR);
    ck_assert_int_eq(s->end.status, -ENODATA);
    ck_assert_uint_eq(s->n_tokens, 2);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_rules");
    TCase *tc = tcase_create("rules");
    SRunner *sr;
    int failed;

    controltest_setup();
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_through_engine);
    tcase_add_test(tc, test_rules_through_engine);
    tcase_add_test(tc, test_nothing_left);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
