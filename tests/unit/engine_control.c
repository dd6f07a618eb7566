/* SPDX-License-Identifier: MIT */
/* The control automaton: stop ids, bans, stop strings over tokens and channels, limits, reasoning count; and
 * the same through the running engine. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "engrun.h"
#include "leakcheck.h"

/* Token i of 0..25 is the letter 'a'+i; then some longer ones and the marks. */
enum { T_STOP = 26, T_STO, T_P, T_EMPTY, T_THINK, T_NOTHINK, T_CALL, T_NOCALL, T_EOS, T_ASSIST, T_KEY, T_NOKEY, T_VALUE,
       T_NOVALUE, T_N };
static const char *const TEXT[T_N] = {
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v",
    "w", "x", "y", "z", "xSTOPy", "xSTO", "Pq", "", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<eos>", "<assistant>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
};
static uint8_t bytes[512];
static uint32_t offsets[T_N + 1];
static const uint32_t stop_ids[2] = { T_EOS, T_ASSIST };
static struct vocab_view vocab = { .bytes = bytes, .offsets = offsets, .n_tokens = T_N, .stop_ids = stop_ids,
                                   .n_stop_ids = 2, .think_open = T_THINK, .think_close = T_NOTHINK,
                                   .tool_open = T_CALL, .tool_close = T_NOCALL, .key_open = T_KEY, .key_close = T_NOKEY,
                                   .value_open = T_VALUE, .value_close = T_NOVALUE, .text_end = T_EOS };

static void build_vocab(void) {
    uint32_t at = 0;

    for (uint32_t i = 0; i < T_N; i++) {
        offsets[i] = at;
        memcpy(bytes + at, TEXT[i], strlen(TEXT[i]));
        at += (uint32_t)strlen(TEXT[i]);
    }
    offsets[T_N] = at;
}

static const struct sched_text STOP_STOP = { .s = "STOP", .len = 4 };

static struct control *begin(struct sched_req *q, const struct sched_text *stops, uint32_t n_stops) {
    static struct control c;

    q->stops = stops;
    q->n_stops = n_stops;
    if (!q->n_ids)
        q->n_ids = 10;
    ck_assert_int_eq(control_check(q, T_N), 0);
    control_begin(&c, &vocab, q, 1000);
    return &c;
}

/* Feeds tokens (ended by UINT32_MAX); returns the verdict of the last and demands GO before it. */
static enum control_verdict feed(struct control *c, const uint32_t *t) {
    enum control_verdict v = CONTROL_GO;

    for (; *t != UINT32_MAX; t++) {
        ck_assert_int_eq(v, CONTROL_GO);
        v = control_token(c, *t);
    }
    return v;
}
#define FEED(c, ...) feed(c, (const uint32_t[]){ __VA_ARGS__, UINT32_MAX })

START_TEST(test_limit) {
    ck_assert_uint_eq(control_limit(10, 0, 100), 90);
    ck_assert_uint_eq(control_limit(10, 5, 100), 5);
    ck_assert_uint_eq(control_limit(10, 500, 100), 90);
    ck_assert_uint_eq(control_limit(99, 0, 100), 1);
    ck_assert_uint_eq(control_limit(100, 0, 100), 0);
    ck_assert_uint_eq(control_limit(UINT32_MAX, 1, 100), 0);
}
END_TEST

START_TEST(test_stop_ids) {
    struct sched_req q = { .min_tokens = 2 };
    struct control *c = begin(&q, NULL, 0);
    struct control_next next;

    control_next(c, &next);
    ck_assert_uint_eq(next.n_ban, 2);
    ck_assert_int_eq(control_token(c, 0), CONTROL_GO);
    control_next(c, &next);
    ck_assert_uint_eq(next.n_ban, 2);
    ck_assert_int_eq(control_token(c, 0), CONTROL_GO);
    control_next(c, &next);
    ck_assert_uint_eq(next.n_ban, 0);
    ck_assert_int_eq(control_token(c, T_ASSIST), CONTROL_STOP_ID);
    ck_assert_uint_eq(c->n_out, 3);
    q = (struct sched_req){ .ignore_eos = true, .max_tokens = 3 };
    c = begin(&q, NULL, 0);
    ck_assert_int_eq(FEED(c, 0, 1, 2), CONTROL_LENGTH);
    control_next(c, &next);
    ck_assert_uint_eq(next.n_ban, 2);
}
END_TEST

START_TEST(test_stop_strings) {
    struct sched_req q = { 0 };
    struct sched_text two[2] = { { .s = "zz", .len = 2 }, { .s = "abc", .len = 3 } };

    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STOP), CONTROL_STOP_STRING); /* inside one token */
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), 0, T_STO, T_P), CONTROL_STOP_STRING); /* over two */
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STO, T_EMPTY, T_P), CONTROL_STOP_STRING);
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STO, 0, T_P), CONTROL_GO);
    ck_assert_int_eq(FEED(begin(&q, two, 2), 0, 1, 25, 25), CONTROL_STOP_STRING);
    ck_assert_int_eq(FEED(begin(&q, two, 2), 0, 0, 1, 2), CONTROL_STOP_STRING);
    ck_assert_int_eq(FEED(begin(&q, two, 2), 0, 1, 0, 2), CONTROL_GO);
    q.max_tokens = 1; /* the string wins over the limit */
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STOP), CONTROL_STOP_STRING);
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STO), CONTROL_LENGTH);
}
END_TEST

/* Asleep while a think block is open, awake right after it, also within the first token; not across marks. */
START_TEST(test_channels) {
    struct sched_req q = { .in_reasoning = true };
    struct control *c = begin(&q, &STOP_STOP, 1);

    ck_assert_int_eq(FEED(c, T_STOP, T_STO, T_P, T_NOTHINK), CONTROL_GO);
    ck_assert_uint_eq(c->n_reasoning, 4);
    ck_assert_int_eq(FEED(c, T_STOP), CONTROL_STOP_STRING);
    ck_assert_uint_eq(c->n_reasoning, 4);
    c = begin(&q, &STOP_STOP, 1);
    ck_assert_int_eq(FEED(c, T_STO, T_NOTHINK, T_P), CONTROL_GO); /* half of it was thought */
    q.in_reasoning = false;
    c = begin(&q, &STOP_STOP, 1);
    ck_assert_int_eq(FEED(c, 0, T_THINK, T_STOP, T_NOTHINK, T_STO, T_THINK, T_NOTHINK, T_P), CONTROL_GO);
    ck_assert_uint_eq(c->n_reasoning, 5);
    c = begin(&q, &STOP_STOP, 1);
    ck_assert_int_eq(FEED(c, T_CALL, T_STOP, T_NOCALL, T_STO, T_CALL, T_NOCALL, T_P), CONTROL_GO);
    ck_assert_int_eq(FEED(c, T_STOP), CONTROL_STOP_STRING);
}
END_TEST

START_TEST(test_no_marks) {
    struct vocab_view bare = vocab;
    struct sched_req q = { .n_ids = 1 };
    struct control c;

    bare.think_open = bare.think_close = bare.tool_open = bare.tool_close = UINT32_MAX;
    bare.key_open = bare.key_close = bare.value_open = bare.value_close = bare.text_end = UINT32_MAX;
    bare.n_tokens = 3; /* ids above have no bytes */
    control_begin(&c, &bare, &q, 10);
    ck_assert_int_eq(control_token(&c, T_THINK), CONTROL_GO);
    ck_assert_int_eq(c.where, CONTROL_CONTENT);
    q.stops = &STOP_STOP;
    q.n_stops = 1;
    control_begin(&c, &bare, &q, 10);
    ck_assert_int_eq(control_token(&c, T_STOP), CONTROL_GO);
}
END_TEST

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
    engine_set_vocab(r.e, &vocab);
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

int main(void) {
    Suite *s = suite_create("engine_control");
    TCase *tc = tcase_create("control");
    SRunner *sr;
    int failed;

    build_vocab();
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_limit);
    tcase_add_test(tc, test_stop_ids);
    tcase_add_test(tc, test_stop_strings);
    tcase_add_test(tc, test_channels);
    tcase_add_test(tc, test_no_marks);
    tcase_add_test(tc, test_through_engine);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
