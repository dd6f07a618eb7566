/* SPDX-License-Identifier: MIT */
/* Grammars in the running engine: a model that draws at random writes what the schema says behind its reasoning and
 * ends by itself, calls can take the place of the text, demanded calls are calls, several sequences at once do not
 * disturb each other, and what cannot go on is an error. */
#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "engrun.h"
#include "gramtest.h"
#include "leakcheck.h"

enum { VOCAB = 2000, RUNS = 24 };

static struct gt_vocab v;

static void setup(void) {
    gt_vocab_new(&v, VOCAB, 16, 3);
    v.view.think_close = v.mark0 + GT_OTHER_MARK;
}

static void teardown(void) {
    gt_vocab_done(&v);
}

/* Every token is as likely as every other, except what a line of the script says. */
static void start(struct engrun *r, const char *lines) {
    char script[800];

    snprintf(script, sizeof script, "glmd-script 1\nvocab %u\ncontext 4096\nstop %u %u\nrequest\n%s", VOCAB, v.stops[0],
             v.stops[1], lines);
    engrun_open(r, script, NULL);
    engine_set_vocab(r->e, &v.view);
    engrun_start(r);
}

static struct grammar *schema(const char *text) {
    struct grammar *g = NULL;
    struct xerr err = { 0 };

    ck_assert_msg(grammar_new_schema(v.tables, (struct grammar_text){ text, strlen(text) }, 0, &g, &err) == 0, "%s",
                  err.msg);
    return g;
}

/* The bytes of tokens from..n, marks left out. */
static const char *text_of(const struct engrun_stream *s, uint32_t from) {
    static char text[1 << 16];
    size_t n = 0;

    for (uint32_t i = from; i < s->n_tokens; i++) {
        uint32_t at = v.offsets[s->tokens[i]], len = v.offsets[s->tokens[i] + 1] - at;

        ck_assert_uint_lt(s->tokens[i], v.mark0);
        ck_assert_uint_lt(n + len, sizeof text);
        memcpy(text + n, v.bytes + at, len);
        n += len;
    }
    text[n] = 0;
    return text;
}

static const char SCHEMA[] = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", \"minimum\": 0, "
                             "\"maximum\": 999}, \"b\": {\"enum\": [\"x\", \"yes\", null]}, \"c\": {\"type\": "
                             "\"array\", \"items\": {\"type\": \"boolean\"}, \"maxItems\": 4}}, \"required\": [\"a\", "
                             "\"b\"], \"additionalProperties\": false}";

static void check_document(const char *text) {
    json_error_t e;
    json_t *doc = json_loads(text, JSON_REJECT_DUPLICATES, &e), *a, *b, *c;

    ck_assert_msg(doc != NULL, "%s: %s", text, e.text);
    a = json_object_get(doc, "a");
    b = json_object_get(doc, "b");
    c = json_object_get(doc, "c");
    ck_assert_msg(json_is_integer(a) && json_integer_value(a) >= 0 && json_integer_value(a) < 1000, "%s", text);
    ck_assert_msg(json_is_null(b) || !strcmp(json_string_value(b), "x") || !strcmp(json_string_value(b), "yes"), "%s",
                  text);
    ck_assert_msg(json_object_size(doc) == 2u + (c != NULL), "%s", text);
    ck_assert_msg(!c || (json_is_array(c) && json_array_size(c) <= 4), "%s", text);
    json_decref(doc);
}

START_TEST(random_walks_are_documents) {
    static const uint32_t prompt[1] = { 1 };
    struct grammar *g = schema(SCHEMA);
    const struct engrun_stream *s;
    struct sched_req q[RUNS];
    struct engrun r;
    uint32_t from;

    start(&r, "logits 0 5:1\n");
    for (uint32_t i = 0; i < RUNS; i++) {
        q[i] = engrun_req(i, prompt, 1, 0);
        q[i].sampling.temperature = 50.0f;
        q[i].sampling.seed = i;
        q[i].control.grammar = i % 4 == 3 ? NULL : g;
        q[i].max_tokens = i % 4 == 3 ? 40 : 0;
        q[i].in_reasoning = i % 2;
        q[i].ignore_eos = i % 3 == 0; /* the document's end is an end all the same */
        q[i].control.has_budget = true;
        q[i].control.budget = 7;
        engrun_submit(&r, &q[i]);
    }
    for (uint32_t i = 0; i < RUNS; i++) {
        s = engrun_wait_end(&r, i);
        if (i % 4 == 3)
            continue;
        ck_assert_int_eq(s->end.status, 0);
        ck_assert_uint_eq(s->end.reason, STREAM_END_STOP);
        ck_assert(s->end.token == v.stops[0] || s->end.token == v.stops[1]);
        for (from = 0; i % 2 && s->tokens[from] != v.view.think_close;)
            ck_assert_uint_lt(++from, 8u);
        check_document(text_of(s, from + i % 2));
    }
    ck_assert_int_eq(engrun_close(&r), 0);
    grammar_free(g);
}
END_TEST

/* In front of the text a call may stand where tools are offered, and then nothing or the text. */
START_TEST(calls_or_text) {
    static const uint32_t prompt[1] = { 1 };
    struct grammar *g = schema(SCHEMA);
    const struct engrun_stream *s;
    char lines[400];
    struct sched_req q[3];
    struct engrun r;

    snprintf(lines, sizeof lines,
             "logits 0 %u:50\nlogits 1 101:50\nlogits 2 %u:50\nlogits 3 %u:50\nlogits 4 %u:50\n", v.view.tool_open,
             v.view.tool_close, v.stops[1], v.view.tool_open);
    start(&r, lines);
    for (uint32_t i = 0; i < 3; i++) {
        q[i] = engrun_req(i, prompt, 1, 0);
        q[i].control.grammar = g;
        q[i].control.tools_offered = i > 0;
        q[i].control.tools = i == 2 ? SCHED_TOOLS_NONE : SCHED_TOOLS_FREE;
        q[i].sampling.temperature = i == 1 ? 0.0f : 1.0f;
        engrun_submit(&r, &q[i]);
    }
    s = engrun_wait_end(&r, 1);
    ck_assert_uint_eq(s->n_tokens, 3);
    ck_assert_uint_eq(s->end.token, v.stops[1]);
    for (uint32_t i = 0; i < 3; i += 2) {
        s = engrun_wait_end(&r, i);
        ck_assert_uint_eq(s->end.reason, STREAM_END_STOP);
        check_document(text_of(s, 0));
    }
    ck_assert_int_eq(engrun_close(&r), 0);
    grammar_free(g);
}
END_TEST

/* A stop string ends the text all the same, wherever it stands. */
START_TEST(stop_string_in_document) {
    static const uint32_t prompt[1] = { 1 };
    static const struct sched_text stop = { .s = "\"a\"", .len = 3 };
    struct grammar *g = schema(SCHEMA);
    const struct engrun_stream *s;
    struct sched_req q[4];
    struct engrun r;

    start(&r, "logits 0 5:1\n");
    for (uint32_t i = 0; i < 4; i++) {
        q[i] = engrun_req(i, prompt, 1, 0);
        q[i].sampling.temperature = 50.0f;
        q[i].sampling.seed = i;
        q[i].control.grammar = g;
        q[i].stops = &stop;
        q[i].n_stops = 1;
        engrun_submit(&r, &q[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        s = engrun_wait_end(&r, i);
        ck_assert_uint_eq(s->end.reason, STREAM_END_STOP_STRING);
        ck_assert_ptr_nonnull(strstr(text_of(s, 0), "\"a\""));
    }
    ck_assert_int_eq(engrun_close(&r), 0);
    grammar_free(g);
}
END_TEST

START_TEST(demanded_calls) {
    static const char tool[] = "{\"name\": \"go\", \"parameters\": {\"type\": \"object\", \"properties\": {\"n\": "
                               "{\"type\": \"integer\", \"maximum\": 99, \"minimum\": 0}}, \"required\": [\"n\"], "
                               "\"additionalProperties\": false}}";
    static const uint32_t prompt[1] = { 1 };
    const struct grammar_text tools = { tool, strlen(tool) };
    struct grammar *g = NULL;
    struct xerr err = { 0 };
    const struct engrun_stream *s;
    struct sched_req q[8];
    struct engrun r;

    ck_assert_msg(grammar_new_calls(v.tables, &tools, 1, GRAMMAR_CALLS_REQUIRED, -1, false, 0, &g, &err) == 0, "%s",
                  err.msg);
    start(&r, "logits 0 5:1\n");
    for (uint32_t i = 0; i < 8; i++) {
        q[i] = engrun_req(i, prompt, 1, 0);
        q[i].sampling.temperature = 50.0f;
        q[i].sampling.seed = i;
        q[i].in_reasoning = i % 2;
        q[i].control = (struct sched_control){ .grammar = g, .tools = SCHED_TOOLS_MUST, .tools_offered = true,
                                               .one_call = i % 4 < 2, .has_budget = true, .budget = 3 };
        q[i].control.names = (struct sched_names){ .ids = prompt, .offsets = (const uint32_t[]){ 0, 1 }, .n = 1 };
        engrun_submit(&r, &q[i]);
    }
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t opened = 0, closed = 0, values = 0;

        s = engrun_wait_end(&r, i);
        ck_assert_int_eq(s->end.status, 0);
        ck_assert_uint_eq(s->end.reason, STREAM_END_STOP);
        for (uint32_t k = 0; k < s->n_tokens; k++) {
            opened += s->tokens[k] == v.view.tool_open;
            closed += s->tokens[k] == v.view.tool_close;
            values += s->tokens[k] == v.view.value_open;
        }
        ck_assert_uint_eq(opened, 1);
        ck_assert_uint_eq(closed, 1);
        ck_assert_uint_ge(values, 1);
        if (q[i].control.one_call)
            ck_assert_uint_eq(s->tokens[s->n_tokens - 1], v.view.tool_close);
    }
    ck_assert_int_eq(engrun_close(&r), 0);
    grammar_free(g);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_grammar");
    TCase *tc = tcase_create("grammar");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, random_walks_are_documents);
    tcase_add_test(tc, calls_or_text);
    tcase_add_test(tc, stop_string_in_document);
    tcase_add_test(tc, demanded_calls);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
