/* SPDX-License-Identifier: MIT */
/* A real daemon with scripted models, through libglmd: answers arrive whole, in order and interleaved; each
 * test runs on both event loops, with the engine publishing itself and with the emit thread doing it. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "tokenizer.h"

enum { VARIANTS = 4 }; /* the first half is left under an emulator */

static struct answer answers[16];

/* 0: epoll inline, 1: epoll emit thread, 2: uring inline, 3: uring emit thread */
static const char *variant(struct daemonfix *f, int i, const char *conf) {
    static char text[512];

    snprintf(f->backend, sizeof f->backend, "%s", i & 2 ? "uring" : "epoll");
    snprintf(text, sizeof text, "[IPC]\nInlineConnections=%d\n%s", i & 1 ? 0 : 8, conf);
    return text;
}

START_TEST(stream_arrives) {
    static const uint32_t prompt[] = {5, 6, 7};
    struct daemonfix f;
    glmd_conn *c;

    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 1000\nstop 2\nstep-us 300\nrequest\ntokens 10 11 12 13 14 2\n");
    daemonfix_start(&f, variant(&f, _i, ""));
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &answers[0], request_tokens(c, prompt, 3));
    answers_wait(c, answers, 1, 10000);
    ck_assert(answers[0].accepted);
    ck_assert_uint_eq(answers[0].n_tokens, 5);
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_uint_eq(answers[0].tokens[i], 10 + i);
    ck_assert_int_eq(answers[0].status, 0);
    ck_assert_uint_eq(answers[0].reason, GLMD_REASON_STOP);
    ck_assert_uint_eq(answers[0].usage.prompt_tokens, 3);
    ck_assert_uint_eq(answers[0].usage.completion_tokens, 6);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* Text of an answer made of the ids that the tokenizer gives for it. */
START_TEST(text_arrives) {
    static const char text[] =
        "H\xc3\xa9llo w\xc3\xb6rld \xf0\x9f\x8e\x89 \xe4\xbd\xa0\xe5\xa5\xbd, naïve text 12345.\n";
    char dir[300], script[8192];
    uint32_t ids[256];
    struct tok_scratch *scratch;
    struct daemonfix f;
    struct tok *tok;
    struct xerr err;
    glmd_conn *c;
    glmd_req *r;
    size_t n, at;

    daemonfix_init(&f);
    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    strcat(dir, "/nano");
    ck_assert_msg(tok_open(dir, &tok, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(tok_scratch_new(0, &scratch), 0);
    ck_assert_int_eq(tok_encode(tok, scratch, text, strlen(text), 0, ids, 256, &n), 0);
    at = (size_t)snprintf(script, sizeof script, "model %s\nrequest\ntokens", dir);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(script + at, sizeof script - at, " %u", ids[i]);
    snprintf(script + at, sizeof script - at, " %lld\n", (long long)tok_id(tok, "<|user|>"));
    daemonfix_script(&f, script);
    daemonfix_start(&f, variant(&f, _i, ""));
    c = daemonfix_connect(&f, NULL);
    r = request_text(c, "say it");
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING, 0), 0);
    answer_submit(c, &answers[0], r);
    answers_wait(c, answers, 1, 10000);
    ck_assert_str_eq(answers[0].content, text);
    ck_assert_str_eq(answers[0].reasoning, "");
    ck_assert_uint_eq(answers[0].n_tokens, n);
    ck_assert_int_eq(memcmp(answers[0].tokens, ids, n * 4), 0);
    ck_assert_uint_eq(answers[0].reason, GLMD_REASON_STOP);
    glmd_close(c);
    tok_scratch_free(scratch);
    tok_free(tok);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* A stop string that begins in one token and ends in another: nothing of it is shown, and the engine goes no
 * further. The other request of the same connection has no stop string and gets everything. */
START_TEST(stop_string_cuts) {
    static const char text[] = "one two three four five six seven eight nine ten";
    char dir[300], script[8192];
    struct tok_scratch *scratch;
    struct daemonfix f;
    uint32_t ids[256];
    struct tok *tok;
    struct xerr err;
    glmd_conn *c;
    glmd_req *r;
    size_t n, at;

    daemonfix_init(&f);
    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    strcat(dir, "/nano");
    ck_assert_msg(tok_open(dir, &tok, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(tok_scratch_new(0, &scratch), 0);
    ck_assert_int_eq(tok_encode(tok, scratch, text, strlen(text), 0, ids, 256, &n), 0);
    at = (size_t)snprintf(script, sizeof script, "model %s\nloop\nrequest\ntokens", dir);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(script + at, sizeof script - at, " %u", ids[i]);
    snprintf(script + at, sizeof script - at, " %lld\n", (long long)tok_id(tok, "<|user|>"));
    daemonfix_script(&f, script);
    daemonfix_start(&f, variant(&f, _i, ""));
    c = daemonfix_connect(&f, NULL);
    r = request_text(c, "count");
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING, 0), 0);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_STOP, "zebra", 5), 0);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_STOP, "r five si", 9), 0);
    answer_submit(c, &answers[0], r);
    r = request_text(c, "count");
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING, 0), 0);
    answer_submit(c, &answers[1], r);
    answers_wait(c, answers, 2, 10000);
    ck_assert_str_eq(answers[0].content, "one two three fou");
    ck_assert_uint_eq(answers[0].reason, GLMD_REASON_STOP_TEXT);
    ck_assert_uint_lt(answers[0].usage.completion_tokens, n);
    ck_assert_str_eq(answers[1].content, text);
    glmd_close(c);
    tok_scratch_free(scratch);
    tok_free(tok);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* Twelve connections with four requests each, every answer another sequence of ids. */
START_TEST(many_interleave) {
    enum { CONNS = 12, EACH = 4, LEN = 40 };
    static struct answer a[CONNS][EACH];
    static char script[65536];
    size_t at =
        (size_t)snprintf(script, sizeof script, "vocab 20000\nstop 2\nstep-us 200\nrequest\ntokens 2\n");
    glmd_conn *c[CONNS];
    struct daemonfix f;

    daemonfix_init(&f);
    for (uint32_t i = 0; i < CONNS * EACH; i++) {
        at += (size_t)snprintf(script + at, sizeof script - at, "request first %u\ntokens", 100 + i);
        for (uint32_t k = 0; k < LEN; k++)
            at += (size_t)snprintf(script + at, sizeof script - at, " %u", 1000 + i * 100 + k);
        at += (size_t)snprintf(script + at, sizeof script - at, " 2\n");
    }
    daemonfix_script(&f, script);
    daemonfix_start(&f, variant(&f, _i, ""));
    for (uint32_t i = 0; i < CONNS; i++) {
        c[i] = daemonfix_connect(&f, NULL);
        for (uint32_t k = 0; k < EACH; k++) {
            uint32_t prompt[2] = {100 + i * EACH + k, 9};

            answer_submit(c[i], &a[i][k], request_tokens(c[i], prompt, 2));
        }
    }
    for (uint32_t i = 0; i < CONNS; i++) {
        answers_wait(c[i], a[i], EACH, 30000);
        for (uint32_t k = 0; k < EACH; k++) {
            ck_assert_uint_eq(a[i][k].n_tokens, LEN);
            ck_assert_uint_eq(a[i][k].reason, GLMD_REASON_STOP);
            for (uint32_t j = 0; j < LEN; j++)
                ck_assert_uint_eq(a[i][k].tokens[j], 1000 + (i * EACH + k) * 100 + j);
        }
        glmd_close(c[i]);
    }
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(cancel_ends_soon) {
    static const uint32_t prompt[] = {5};
    struct glmd_event ev = {.size = sizeof ev};
    struct daemonfix f;
    uint64_t before;
    glmd_conn *c;

    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 100\nstop 2\nstep-us 5000\nloop\nrequest\ntokens 10 11 12\nrepeat\n");
    daemonfix_start(&f, variant(&f, _i, ""));
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &answers[0], request_tokens(c, prompt, 1));
    answer_submit(c, &answers[1], request_tokens(c, prompt, 1));
    while (answers[0].n_tokens < 5) {
        ck_assert_int_ge(glmd_wait(c, 1000000000), 0);
        while (glmd_next(c, &ev) == 1)
            answer_take(answers, 2, &ev);
    }
    before = test_now_ms();
    ck_assert_int_eq(glmd_cancel(c, answers[0].tag), 0);
    while (!answers[0].ended) {
        ck_assert_int_ge(glmd_wait(c, 1000000000), 0);
        while (glmd_next(c, &ev) == 1)
            answer_take(answers, 2, &ev);
        ck_assert_uint_lt(test_now_ms() - before, 2000);
    }
    ck_assert_int_eq(answers[0].status, -ECANCELED);
    ck_assert_uint_eq(answers[0].reason, GLMD_REASON_CANCELED);
    ck_assert(!answers[1].ended);
    ck_assert_int_eq(glmd_cancel(c, answers[1].tag), 0);
    answers_wait(c, answers, 2, 5000);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* A client that goes away takes nothing with it and leaves nothing behind. */
START_TEST(disconnect_midstream) {
    static const uint32_t prompt[] = {5};
    struct daemonfix f;
    glmd_conn *c, *keep;
    struct glmd_info info = {.size = sizeof info};
    struct glmd_event ev = {.size = sizeof ev};
    int before;

    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 100\nstop 2\nstep-us 2000\nloop\nrequest\ntokens 10 11 12\nrepeat\n");
    daemonfix_start(&f, variant(&f, _i, ""));
    keep = daemonfix_connect(&f, NULL);
    answer_submit(keep, &answers[0], request_tokens(keep, prompt, 1));
    while (answers[0].n_tokens < 1) { /* the daemon has closed its copies of our descriptors by then */
        ck_assert_int_ge(glmd_wait(keep, 1000000000), 0);
        while (glmd_next(keep, &ev) == 1)
            answer_take(answers, 1, &ev);
    }
    before = daemonfix_resources(&f);
    for (int k = 0; k < 10; k++) {
        static struct answer gone;

        c = daemonfix_connect(&f, NULL);
        answer_submit(c, &gone, request_tokens(c, prompt, 1));
        while (gone.n_tokens < (uint32_t)k) {
            ck_assert_int_ge(glmd_wait(c, 1000000000), 0);
            while (glmd_next(c, &ev) == 1)
                answer_take(&gone, 1, &ev);
        }
        glmd_close(c);
    }
    daemonfix_expect_resources(&f, before);
    for (int k = 0; k < 40 && (info.running != 1 || k < 2);
         k++) { /* the status block is written once a second */
        usleep(100000);
        ck_assert_int_eq(glmd_get_info(keep, &info), 0);
    }
    ck_assert_uint_eq(info.running, 1);
    ck_assert_int_eq(glmd_cancel(keep, answers[0].tag), 0);
    answers_wait(keep, answers, 1, 5000);
    glmd_close(keep);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* A client with the smallest ring that does not read stalls its own stream only, and loses nothing. */
START_TEST(slow_reader_stalls_alone) {
    static const uint32_t prompt[] = {5};
    struct glmd_options small = {.size = sizeof small, .records_log2 = 6};
    struct glmd_info info = {.size = sizeof info};
    struct daemonfix f;
    glmd_conn *slow, *fast;
    glmd_req *r;

    daemonfix_init(&f);
    daemonfix_script(&f,
                     "vocab 5000\nstop 2\nstep-us 100\nloop\nrequest\ntokens 10 11 12 13 14 15 16\nrepeat\n");
    daemonfix_start(&f, variant(&f, _i, ""));
    slow = daemonfix_connect(&f, &small);
    fast = daemonfix_connect(&f, NULL);
    r = request_tokens(slow, prompt, 1);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 700), 0);
    answer_submit(slow, &answers[0], r);
    r = request_tokens(fast, prompt, 1);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 1500), 0);
    answer_submit(fast, &answers[1], r);
    answers_wait(fast, &answers[1], 1, 20000); /* the other has not read anything so far */
    ck_assert_uint_eq(answers[1].n_tokens, 1500);
    for (int k = 0; k < 40 && info.stalls == 0; k++) {
        usleep(100000);
        ck_assert_int_eq(glmd_get_info(slow, &info), 0);
    }
    ck_assert_uint_gt(info.stalls, 0);
    answers_wait(slow, answers, 1, 20000);
    ck_assert_uint_eq(answers[0].n_tokens, 700);
    for (uint32_t i = 0; i < 700; i++)
        ck_assert_uint_eq(answers[0].tokens[i], 10 + i % 7);
    ck_assert_uint_eq(answers[0].reason, GLMD_REASON_LENGTH);
    glmd_close(slow);
    glmd_close(fast);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* Alternatives and a seven-record answer a token in the smallest ring. */
START_TEST(alternatives_fit_small_rings) {
    static const uint32_t prompt[] = {5};
    struct glmd_options small = {.size = sizeof small, .records_log2 = 6};
    struct glmd_event ev = {.size = sizeof ev};
    struct daemonfix f;
    uint32_t n = 0;
    glmd_conn *c;
    glmd_req *r;
    uint64_t tag;

    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 500\nstop 2\nloop\nrequest\ntokens 10 11 12 13\nrepeat\n");
    daemonfix_start(&f, variant(&f, _i, ""));
    c = daemonfix_connect(&f, &small);
    r = request_tokens(c, prompt, 1);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 60), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_ALTERNATIVES, 20), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    for (ev.type = 0; ev.type != GLMD_EV_END;) {
        ck_assert_int_ge(glmd_wait(c, 5000000000), 1);
        while (glmd_next(c, &ev) == 1 && ev.type != GLMD_EV_END)
            if (ev.type == GLMD_EV_TOKEN) {
                ck_assert_uint_eq(ev.token, 10 + n % 4);
                ck_assert_uint_eq(ev.n_alts, 20);
                ck_assert_uint_eq(ev.alts[0].token, ev.token);
                n++;
            }
    }
    ck_assert_uint_eq(n, 60);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_stream");
    TCase *tc = tcase_create("stream");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 90);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, stream_arrives, 0, VARIANTS / 2 * daemonfix_loops());
    tcase_add_loop_test(tc, text_arrives, 0, VARIANTS / 2 * daemonfix_loops());
    tcase_add_loop_test(tc, stop_string_cuts, 0, VARIANTS / 2 * daemonfix_loops());
    tcase_add_loop_test(tc, many_interleave, 0, VARIANTS / 2 * daemonfix_loops());
    tcase_add_loop_test(tc, cancel_ends_soon, 0, VARIANTS / 2 * daemonfix_loops());
    tcase_add_loop_test(tc, disconnect_midstream, 0, VARIANTS / 2 * daemonfix_loops());
    tcase_add_loop_test(tc, slow_reader_stalls_alone, 0, VARIANTS / 2 * daemonfix_loops());
    tcase_add_loop_test(tc, alternatives_fit_small_rings, 0, VARIANTS / 2 * daemonfix_loops());
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
