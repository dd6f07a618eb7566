/* SPDX-License-Identifier: MIT */
/* Quotas of a user against a real daemon: each is reached, refused with its key, and given back. */
#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "runprog.h"

static struct daemonfix f;
static struct answer answers[64];

/* section, id and keys: one of [Quota uid:…] or [Quota gid:…] more. One text worker hands prompts on in the order
 * in which they came. */
static void start(const char *script, const char *text, const char *section, unsigned id, const char *keys) {
    char conf[600];

    daemonfix_init(&f);
    snprintf(f.backend, sizeof f.backend, "epoll");
    daemonfix_script(&f, script);
    snprintf(conf, sizeof conf, "[Text]\nWorkers=1\n%s", text);
    if (section)
        snprintf(conf, sizeof conf, "[Text]\nWorkers=1\n%s[Quota %s:%u]\n%s", text, section, id, keys);
    daemonfix_start(&f, conf);
}

static void stop(void) {
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

static const char slow[] = "vocab 1000\nstop 2\nstep-us 10000\nloop\nrequest\n"
                           "tokens 10 11 12 13 14 15 16 17 18 19 10 11 12 13 14 15 16 17 18 19 2\n";
static const char fast[] = "vocab 1000\nstop 2\nloop\nrequest\ntokens 10 11 2\n";

static glmd_req *prompt(glmd_conn *c, uint32_t tokens, uint32_t max_tokens) {
    static uint32_t ids[4000];
    glmd_req *r;

    for (uint32_t i = 0; i < tokens; i++)
        ids[i] = 5 + i % 100;
    r = request_tokens(c, ids, tokens);
    if (max_tokens)
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, max_tokens), 0);
    return r;
}

/* Reads events until something of the answer is there. */
static void until_token(glmd_conn *c, size_t i, size_t n) {
    uint64_t until = test_now_ms() + 20000;
    struct glmd_event ev = {.size = sizeof ev};

    while (!answers[i].n_tokens) {
        ck_assert_msg(test_now_ms() < until, "no token");
        ck_assert_int_ge(glmd_wait(c, 100000000), 0);
        while (glmd_next(c, &ev) == 1)
            answer_take(answers, n, &ev);
    }
}

static void refused(const struct answer *a, const char *key) {
    char log[80];

    ck_assert_int_eq(a->status, -EDQUOT);
    ck_assert_msg(strstr(a->error, key) != NULL, "\"%s\" does not name %s", a->error, key);
    snprintf(log, sizeof log, "request refused: [Quota] %s", key);
    daemonfix_expect_log(&f, log);
}

/* What waits to be read counts until the engine begins with it. */
START_TEST(queued_prompt_tokens) {
    glmd_conn *c;

    start(slow, "[Memory]\nMaxSequences=1\n[Quota]\nMaxQueuedPromptTokensPerUid=1000\n", NULL, 0, NULL);
    c = daemonfix_connect(&f, NULL);
    for (int round = 0; round < 2; round++) {
        answer_submit(c, &answers[0], prompt(c, 900, 0));
        until_token(c, 0, 1);
        answer_submit(c, &answers[1], prompt(c, 600, 0));
        answer_submit(c, &answers[2], prompt(c, 401, 0));
        answer_submit(c, &answers[3], prompt(c, 400, 0));
        answers_wait(c, answers, 4, 20000);
        refused(&answers[2], "MaxQueuedPromptTokensPerUid");
        for (int i = 0; i < 4; i++)
            ck_assert_int_eq(answers[i].status, i == 2 ? -EDQUOT : 0);
        /* one that is cancelled while it waits gives its tokens back as well */
        answer_submit(c, &answers[0], prompt(c, 900, 0));
        until_token(c, 0, 1);
        answer_submit(c, &answers[1], prompt(c, 1000, 0));
        ck_assert_int_eq(glmd_cancel(c, answers[1].tag), 0);
        answers_wait(c, answers, 2, 20000);
        ck_assert_int_eq(answers[1].status, -ECANCELED);
    }
    glmd_close(c);
    stop();
}
END_TEST

/* The third waits for the user's own, although there is room for eight. */
START_TEST(cache_tokens) {
    struct glmd_event ev = {.size = sizeof ev};
    uint64_t until = test_now_ms() + 20000;
    glmd_conn *c;

    start(slow, "[Quota]\nMaxKVTokensPerUid=1000\n", NULL, 0, NULL);
    c = daemonfix_connect(&f, NULL);
    for (size_t i = 0; i < 3; i++)
        answer_submit(c, &answers[i], prompt(c, 400, 100));
    answer_submit(c, &answers[3], prompt(c, 900, 101));
    /* whichever the text workers hand on last */
    while (!answers[0].n_tokens || !answers[1].n_tokens || !answers[2].n_tokens) {
        ck_assert_msg(test_now_ms() < until, "no token");
        ck_assert_int_ge(glmd_wait(c, 100000000), 0);
        while (glmd_next(c, &ev) == 1)
            answer_take(answers, 4, &ev);
    }
    ck_assert(answers[0].ended || answers[1].ended || answers[2].ended);
    answers_wait(c, answers, 4, 20000);
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(answers[i].status, 0);
    refused(&answers[3], "MaxKVTokensPerUid");
    /* no wish: what the quota leaves */
    answer_submit(c, &answers[0], prompt(c, 990, 0));
    answers_wait(c, answers, 1, 20000);
    ck_assert_int_eq(answers[0].status, 0);
    ck_assert_uint_eq(answers[0].n_tokens, 10);
    ck_assert_uint_eq(answers[0].reason, GLMD_REASON_LENGTH);
    glmd_close(c);
    stop();
}
END_TEST

/* One place, two that may wait: the fourth is refused, and of the two the interactive one is next, although the
 * background one came first. */
START_TEST(background_goes_last) {
    glmd_conn *c;
    glmd_req *r;

    start(slow, "[Memory]\nMaxSequences=1\n[Engine]\nMaxQueued=2\n", NULL, 0, NULL);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &answers[0], prompt(c, 900, 0));
    until_token(c, 0, 1);
    r = prompt(c, 10, 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_BACKGROUND, 1), 0);
    answer_submit(c, &answers[1], r);
    answer_submit(c, &answers[2], prompt(c, 10, 0));
    answer_submit(c, &answers[3], prompt(c, 10, 0));
    until_token(c, 2, 4);
    ck_assert_uint_eq(answers[1].n_tokens, 0);
    answers_wait(c, answers, 4, 20000);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(answers[i].status, i == 3 ? -EBUSY : 0);
    ck_assert_msg(strstr(answers[3].error, "queue is full") != NULL, "\"%s\"", answers[3].error);
    glmd_close(c);
    stop();
}
END_TEST

START_TEST(submits_a_second) {
    enum { N = 40, RATE = 5 };
    struct timespec rest = {1, 100000000};
    uint64_t begin, ms;
    size_t done = 0;
    glmd_conn *c, *other;

    start(fast, "[Quota]\nSubmitRateLimit=5\n", NULL, 0, NULL);
    c = daemonfix_connect(&f, NULL);
    for (int round = 0; round < 2; round++) {
        begin = test_now_ms();
        for (size_t i = 0; i < N; i++)
            answer_submit(c, &answers[i], prompt(c, 3, 0));
        answers_wait(c, answers, N, 20000);
        ms = test_now_ms() - begin;
        done = 0;
        for (size_t i = 0; i < N; i++) {
            done += answers[i].status == 0;
            if (answers[i].status)
                refused(&answers[i], "SubmitRateLimit");
        }
        ck_assert_uint_ge(done, RATE);
        ck_assert_uint_le(done, RATE + 1 + ms * RATE / 1000);
        nanosleep(&rest, NULL); /* a second fills it up again */
    }
    /* the bucket is the user's: a new connection does not bring a full one */
    for (size_t i = 0; i < N; i++)
        answer_submit(c, &answers[i], prompt(c, 3, 0));
    answers_wait(c, answers, N, 20000);
    glmd_close(c);
    begin = test_now_ms();
    other = daemonfix_connect(&f, NULL);
    for (size_t i = 0; i < N; i++)
        answer_submit(other, &answers[i], prompt(other, 3, 0));
    answers_wait(other, answers, N, 20000);
    ms = test_now_ms() - begin + 1000; /* the loop above has taken time, too */
    done = 0;
    for (size_t i = 0; i < N; i++)
        done += answers[i].status == 0;
    ck_assert_uint_le(done, 1 + ms * RATE / 1000);
    glmd_close(other);
    stop();
}
END_TEST

/* Nobody is exempt: the section is that of whoever runs the tests, root included. */
START_TEST(section_of_the_user) {
    glmd_conn *c;

    start(slow, "[Quota]\nMaxRequestsPerUid=50\n", "uid", getuid(), "MaxRequestsPerUid=2\n");
    c = daemonfix_connect(&f, NULL);
    for (size_t i = 0; i < 3; i++)
        answer_submit(c, &answers[i], prompt(c, 3, 0));
    answers_wait(c, answers, 3, 20000);
    ck_assert_int_eq(answers[0].status, 0);
    ck_assert_int_eq(answers[1].status, 0);
    refused(&answers[2], "MaxRequestsPerUid");
    glmd_close(c);
    stop();
}
END_TEST

START_TEST(section_of_the_group) {
    struct glmd_options o = {.size = sizeof o};
    char error[300] = "";
    glmd_conn *c, *more = NULL;

    start(fast, "", "gid", getgid(), "MaxConnectionsPerUid=1\n");
    c = daemonfix_connect(&f, NULL);
    o.socket_path = f.socket;
    o.socket_path_len = strlen(f.socket);
    o.error = error;
    o.error_bytes = sizeof error;
    ck_assert_int_eq(glmd_connect(&o, &more), -EDQUOT);
    ck_assert_ptr_nonnull(strstr(error, "MaxConnectionsPerUid"));
    glmd_close(c);
    stop();
}
END_TEST

/* A reload holds for connections that are open. */
START_TEST(reload_changes_quotas) {
    glmd_conn *c;
    FILE *o;

    start(slow, "[Quota]\nMaxRequestsPerUid=50\n", NULL, 0, NULL);
    c = daemonfix_connect(&f, NULL);
    for (size_t i = 0; i < 3; i++)
        answer_submit(c, &answers[i], prompt(c, 3, 0));
    answers_wait(c, answers, 3, 20000);
    ck_assert_int_eq(answers[2].status, 0);
    o = fopen(f.conf, "we");
    ck_assert_ptr_nonnull(o);
    fprintf(o, "[Memory]\nKeepFreeBytes=0\n[Quota]\nMaxRequestsPerUid=50\n[Quota uid:%u]\nMaxRequestsPerUid=1\n",
            (unsigned)getuid());
    fclose(o);
    kill(f.pid, SIGHUP);
    daemonfix_expect_log(&f, "configuration read again: 1 values changed");
    for (size_t i = 0; i < 2; i++)
        answer_submit(c, &answers[i], prompt(c, 3, 0));
    answers_wait(c, answers, 2, 20000);
    ck_assert_int_eq(answers[0].status, 0);
    refused(&answers[1], "MaxRequestsPerUid");
    glmd_close(c);
    stop();
}
END_TEST

/* Waits for the status block, which is renewed once a second. */
static struct glmd_info until_info(glmd_conn *c, bool (*is)(const struct glmd_info *i), const char *what) {
    struct glmd_info i = {.size = sizeof i};
    struct timespec nap = {0, 10000000};
    uint64_t until = test_now_ms() + 10000;

    for (;;) {
        ck_assert_int_eq(glmd_get_info(c, &i), 0);
        if (is(&i))
            return i;
        ck_assert_msg(test_now_ms() < until, "the status never shows %s", what);
        nanosleep(&nap, NULL);
    }
}

static bool is_busy(const struct glmd_info *i) {
    return i->user_live == 2 && i->user_kv_tokens && i->user_queued_tokens && i->user_refused == 1;
}

static bool is_idle(const struct glmd_info *i) {
    return i->user_live == 0 && i->user_kv_tokens == 0 && i->user_queued_tokens == 0 && i->running == 0;
}

static const char long_one[] = "vocab 1000\nstop 2\nstep-us 100000\nloop\nrequest\n"
                               "tokens 10 11 12 13 14 15 16 17 18 19 10 11 12 13 14 15 16 17 18 19 2\n";

/* The numbers are the user's, whichever of its connections is asked, and fall back to nothing. */
START_TEST(status_shows_the_use) {
    glmd_conn *c, *other;
    struct glmd_info i;

    start(long_one, "[Memory]\nMaxSequences=1\n[Quota]\nMaxQueuedPromptTokensPerUid=1000\nMaxRequestsPerUid=7\n"
                    "MaxKVTokensPerUid=2000\nSubmitRateLimit=77\n",
          NULL, 0, NULL);
    c = daemonfix_connect(&f, NULL);
    other = daemonfix_connect(&f, NULL);
    answer_submit(c, &answers[0], prompt(c, 300, 200));
    until_token(c, 0, 1);
    answer_submit(c, &answers[1], prompt(c, 700, 100));
    answer_submit(c, &answers[2], prompt(c, 301, 100));
    i = until_info(other, is_busy, "the use");
    ck_assert_uint_eq(i.live, 0);
    ck_assert_uint_eq(i.user_kv_tokens, 500);
    ck_assert_uint_eq(i.user_queued_tokens, 700);
    ck_assert_uint_eq(i.user_kv_max, 2000);
    ck_assert_uint_eq(i.user_queued_max, 1000);
    ck_assert_uint_eq(i.user_live_max, 7);
    ck_assert_uint_eq(i.user_submits_max, 77);
    ck_assert_uint_eq(i.user_connections, 2);
    ck_assert_uint_gt(i.user_region_bytes, 2u << 20);
    ck_assert_uint_eq(i.safety_wakes, 0);
    answers_wait(c, answers, 3, 20000);
    refused(&answers[2], "MaxQueuedPromptTokensPerUid");
    glmd_close(c);
    until_info(other, is_idle, "that all was given back");
    glmd_close(other);
    stop();
}
END_TEST

START_TEST(glmctl_shows_the_use) {
    static struct runprog p;
    const char *const text[] = {TEST_BUILD "/glmctl", "status", "--socket", f.socket, NULL};
    const char *const json[] = {TEST_BUILD "/glmctl", "status", "--json", "--socket", f.socket, NULL};
    json_t *j, *user;

    start(fast, "[Quota]\nMaxRequestsPerUid=7\nMaxBulkBytesPerUid=3M\n", NULL, 0, NULL);
    ck_assert_int_eq(runprog(&p, text, NULL, false, ""), 0);
    ck_assert_ptr_nonnull(strstr(p.out_text, "0 stalls, "));
    ck_assert_ptr_nonnull(strstr(p.out_text, " wake-ups sent, "));
    ck_assert_ptr_nonnull(strstr(p.out_text, " 0 by the safety timer\n"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "\nthis user    0 of 7 requests, 1 of 32 connections, "));
    ck_assert_ptr_nonnull(strstr(p.out_text, " 0 refused for want of quota\n"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "large requests 0.0 of 3.0 MiB\n"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "prompts waiting 0 tokens of 4194304, cache 0 tokens, 10000 "));
    ck_assert_int_eq(runprog(&p, json, NULL, false, ""), 0);
    j = json_loads(p.out_text, 0, NULL);
    ck_assert_ptr_nonnull(j);
    user = json_object_get(j, "user");
    ck_assert_int_eq(json_integer_value(json_object_get(user, "requests_max")), 7);
    ck_assert_int_eq(json_integer_value(json_object_get(user, "connections")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(user, "bulk_bytes_max")), 3 << 20);
    ck_assert(json_is_null(json_object_get(user, "kv_tokens_max")));
    ck_assert(json_is_integer(json_object_get(user, "refused")));
    ck_assert(json_is_integer(json_object_get(j, "safety_wakes")));
    json_decref(j);
    stop();
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_quota");
    TCase *tc = tcase_create("quota");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 90);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, queued_prompt_tokens);
    tcase_add_test(tc, cache_tokens);
    tcase_add_test(tc, background_goes_last);
    tcase_add_test(tc, submits_a_second);
    tcase_add_test(tc, section_of_the_user);
    tcase_add_test(tc, section_of_the_group);
    tcase_add_test(tc, reload_changes_quotas);
    tcase_add_test(tc, status_shows_the_use);
    tcase_add_test(tc, glmctl_shows_the_use);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
