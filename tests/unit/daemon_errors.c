/* SPDX-License-Identifier: MIT */
/* Bad requests to a real daemon: each ends with an error that names what is wrong, and the daemon lives on.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemonfix.h"
#include "leakcheck.h"

static struct daemonfix f;
static glmd_conn *c;
static struct answer a;

static void setup(void) {
    char dir[300], script[1000];

    daemonfix_init(&f);
    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    snprintf(script, sizeof script,
             "model %s/nano\ncontext 2048\nloop\nrequest\ntokens 300 301 302\nrepeat\n", dir);
    daemonfix_script(&f, script);
    daemonfix_start(&f, "[IPC]\nPayloadBytes=16M\n");
    c = daemonfix_connect(&f,
                          &(struct glmd_options){.size = sizeof(struct glmd_options), .payload_log2 = 24});
}

/* Whatever came before, an ordinary request is answered, and the daemon ends well. */
static void teardown(void) {
    glmd_req *r = request_text(c, "hello");

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 3), 0);
    answer_submit(c, &a, r);
    answers_wait(c, &a, 1, 10000);
    ck_assert_uint_eq(a.n_tokens, 3);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

static void refused(glmd_req *r, int status, const char *text) {
    answer_submit(c, &a, r);
    answers_wait(c, &a, 1, 150000);
    ck_assert_msg(a.status == status, "status %d, text: %s", a.status, a.error);
    ck_assert_msg(strstr(a.error, text) != NULL, "text: %s", a.error);
    ck_assert_uint_eq(a.n_tokens, 0);
}

START_TEST(empty_message_list) {
    glmd_req *r;

    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    refused(r, -EBADMSG, "message");
}
END_TEST

START_TEST(invalid_utf8) {
    refused(request_text(c, "broken \xc3\x28 text"), -EILSEQ, "text of a message at byte");
}
END_TEST

START_TEST(prompt_longer_than_context) {
    static uint32_t ids[3000];
    static char text[40001];

    for (int i = 0; i < 3000; i++)
        ids[i] = 300;
    refused(request_tokens(c, ids, 3000), -EOVERFLOW,
            "the prompt has 3000 tokens, but the context of this daemon takes 2048");
    for (int i = 0; i < 20000; i++)
        memcpy(text + 2 * i, "a ", 2);
    refused(request_text(c, text), -EOVERFLOW, "but the context of this daemon takes 2048");
}
END_TEST

/* Ten megabytes are read, tokenized and refused, in bounded time. */
START_TEST(ten_megabyte_message) {
    size_t n = 10u << 20;
    char *text = malloc(n + 1);
    uint64_t before;

    ck_assert_ptr_nonnull(text);
    for (size_t i = 0; i < n; i++)
        text[i] = i % 7 ? (char)('a' + i % 23) : ' ';
    text[n] = 0;
    before = test_now_ms();
    refused(request_text(c, text), -EOVERFLOW, "but the context of this daemon takes 2048");
    ck_assert_uint_lt(test_now_ms() - before, 150000); /* a second or two; sanitizers need many times that */
    free(text);
}
END_TEST

START_TEST(sampling_out_of_range) {
    static const struct {
        int key;
        double value;
    } bad[] = {
        {GLMD_KEY_TEMPERATURE, NAN},
        {GLMD_KEY_TEMPERATURE, -1.0},
        {GLMD_KEY_TOP_P, 0.0},
        {GLMD_KEY_TOP_P, NAN},
        {GLMD_KEY_MIN_P, -0.5},
        {GLMD_KEY_REPETITION_PENALTY, -2.0},
        {GLMD_KEY_TEMPERATURE, INFINITY},
        {GLMD_KEY_PRESENCE_PENALTY, NAN},
        {GLMD_KEY_FREQUENCY_PENALTY, 1e9},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        glmd_req *r = request_text(c, "x");

        ck_assert_int_eq(glmd_req_set_f64(r, bad[i].key, bad[i].value), 0);
        refused(r, -EINVAL, "sampling settings at byte");
    }
}
END_TEST

START_TEST(ids_out_of_range) {
    static const uint32_t ids[] = {300, 5000000};
    glmd_req *r = request_text(c, "x");

    refused(request_tokens(c, ids, 2), -EINVAL, "prompt tokens");
    ck_assert_int_eq(glmd_req_bias(r, 5000000, 1.0), 0);
    refused(r, -EINVAL, "logit bias");
}
END_TEST

/* Wishes about calls that no answer could meet. */
START_TEST(impossible_calls) {
    static const char tool[] = "{\"name\": \"wx\"}";
    glmd_req *r = request_text(c, "x");

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_TOOL_CHOICE, GLMD_TOOL_CHOICE_REQUIRED), 0);
    refused(r, -EBADMSG, "no tool is defined");
    r = request_text(c, "x");
    ck_assert_int_eq(glmd_req_tool(r, tool, strlen(tool)), 0);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_TOOL_NAME, "nx", 2), 0);
    refused(r, -EINVAL, "\"nx\", which is none of the 1 tools");
}
END_TEST

START_TEST(tool_that_is_no_object) {
    glmd_req *r = request_text(c, "x");

    ck_assert_int_eq(glmd_req_tool(r, "[1, 2", 5), 0);
    answer_submit(c, &a, r);
    answers_wait(c, &a, 1, 10000);
    ck_assert_int_lt(a.status, 0);
    ck_assert_ptr_nonnull(strstr(a.error, "tool"));
}
END_TEST

START_TEST(deadline_passes) {
    glmd_req *r = request_text(c, "x");
    struct daemonfix slow;
    glmd_conn *sc;

    daemonfix_init(&slow);
    daemonfix_script(&slow, "vocab 100\nstop 2\nstep-us 20000\nloop\nrequest\ntokens 10\nrepeat\n");
    daemonfix_start(&slow, NULL);
    sc = daemonfix_connect(&slow, NULL);
    glmd_req_free(r);
    r = request_tokens(sc, (const uint32_t[]){5}, 1);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_DEADLINE_MS, 300), 0);
    answer_submit(sc, &a, r);
    answers_wait(sc, &a, 1, 5000);
    ck_assert_int_eq(a.status, -ETIMEDOUT);
    ck_assert_uint_eq(a.reason, GLMD_REASON_DEADLINE);
    ck_assert_uint_gt(a.n_tokens, 0);
    glmd_close(sc);
    daemonfix_stop(&slow);
    daemonfix_done(&slow);
}
END_TEST

START_TEST(count_and_tokenize) {
    static const char text[] = "The quick brown fox jumps over the lazy dog, again and again and again.";
    uint64_t tag;
    uint32_t n = 0;
    struct glmd_event ev = {.size = sizeof ev};
    glmd_req *r = request_text(c, text);

    ck_assert_int_eq(glmd_count(c, r, &tag), 0);
    memset(&a, 0, sizeof a);
    a.tag = tag;
    answers_wait(c, &a, 1, 10000);
    ck_assert_int_eq(a.status, 0);
    ck_assert_uint_gt(a.usage.prompt_tokens, 20);
    r = request_text(c, text);
    ck_assert_int_eq(glmd_tokenize(c, r, &tag), 0);
    for (ev.type = 0; ev.type != GLMD_EV_END;) {
        ck_assert_int_ge(glmd_wait(c, 5000000000), 1);
        while (glmd_next(c, &ev) == 1 && ev.type != GLMD_EV_END)
            if (ev.type == GLMD_EV_IDS)
                n += ev.n_ids;
    }
    ck_assert_uint_eq(n, a.usage.prompt_tokens);
}
END_TEST

START_TEST(too_many_live_requests) {
    static struct answer many[65];
    struct daemonfix q;
    glmd_conn *qc;
    uint32_t refused_n = 0;

    daemonfix_init(&q);
    daemonfix_script(&q, "vocab 100\nstop 2\nstep-us 500\nloop\nrequest\ntokens 10\nrepeat\n");
    daemonfix_start(&q, "[Quota]\nMaxRequestsPerUid=3\n");
    qc = daemonfix_connect(&q, NULL);
    for (int i = 0; i < 6; i++) {
        glmd_req *r = request_tokens(qc, (const uint32_t[]){5}, 1);

        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 400), 0);
        answer_submit(qc, &many[i], r);
    }
    answers_wait(qc, many, 6, 20000);
    for (int i = 0; i < 6; i++)
        if (many[i].status == -EDQUOT) {
            ck_assert_ptr_nonnull(strstr(many[i].error, "quota"));
            ck_assert(!many[i].accepted);
            refused_n++;
        } else {
            ck_assert_uint_eq(many[i].n_tokens, 400);
        }
    ck_assert_uint_eq(refused_n, 3);
    daemonfix_expect_log(&q, "[Quota] MaxRequestsPerUid conn=1 uid=");
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&q), " tag="));
    glmd_close(qc);
    daemonfix_stop(&q);
    daemonfix_done(&q);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_errors");
    TCase *tc = tcase_create("errors");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 200);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, empty_message_list);
    tcase_add_test(tc, invalid_utf8);
    tcase_add_test(tc, prompt_longer_than_context);
    tcase_add_test(tc, ten_megabyte_message);
    tcase_add_test(tc, sampling_out_of_range);
    tcase_add_test(tc, ids_out_of_range);
    tcase_add_test(tc, impossible_calls);
    tcase_add_test(tc, tool_that_is_no_object);
    tcase_add_test(tc, deadline_passes);
    tcase_add_test(tc, count_and_tokenize);
    tcase_add_test(tc, too_many_live_requests);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
