/* SPDX-License-Identifier: MIT */
/* Large requests through libglmd against a real daemon: they go by sealed memfds without the caller noticing,
 * are cancelled, refused and retried like any other, and a text of 10 MB is counted to the token. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"

static struct daemonfix f;
static struct answer answers[20];

static void start(const char *conf) {
    daemonfix_init(&f);
    snprintf(f.backend, sizeof f.backend, "epoll");
    daemonfix_script(&f, "vocab 1000\nstop 2\nstep-us 300\nloop\nrequest\ntokens 10 11 12 13 14 2\n");
    daemonfix_start(&f, conf);
}

static void stop(void) {
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

/* A prompt of three ids with one tool whose description has so many bytes. */
static glmd_req *large(glmd_conn *c, size_t bytes) {
    static const char head[] = "{\"type\":\"function\",\"function\":{\"name\":\"t\",\"description\":\"";
    static const char tail[] = "\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}";
    static const uint32_t prompt[] = {5, 6, 7};
    char *json = malloc(sizeof head + bytes + sizeof tail);
    glmd_req *r = request_tokens(c, prompt, 3);

    ck_assert_ptr_nonnull(json);
    memcpy(json, head, sizeof head - 1);
    memset(json + sizeof head - 1, 'd', bytes);
    memcpy(json + sizeof head - 1 + bytes, tail, sizeof tail);
    ck_assert_int_eq(glmd_req_tool(r, json, sizeof head - 1 + bytes + sizeof tail - 1), 0);
    free(json);
    return r;
}

static void complete(const struct answer *a) {
    ck_assert_msg(a->status == 0, "%d: %s", a->status, a->error);
    ck_assert_uint_eq(a->n_tokens, 5);
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_uint_eq(a->tokens[i], 10 + i);
}

START_TEST(large_request_streams) {
    struct glmd_info info = {.size = sizeof info};
    glmd_conn *c;
    int before;

    start(NULL);
    before = daemonfix_resources(&f);
    c = daemonfix_connect(&f, NULL);
    ck_assert_int_eq(glmd_get_info(c, &info), 0);
    ck_assert(info.features & GLMD_FEATURE_BULK);
    ck_assert_uint_eq(info.max_request_bytes, 64u << 20);
    /* beside the arena from 256 KiB on; the last two do not fit it at all */
    for (size_t i = 0; i < 4; i++) {
        answer_submit(c, &answers[i], large(c, (size_t[]){1000, 300000, 2000000, 20000000}[i]));
    }
    answers_wait(c, answers, 4, 30000);
    for (size_t i = 0; i < 4; i++)
        complete(&answers[i]);
    glmd_close(c);
    daemonfix_expect_resources(&f, before);
    stop();
}
END_TEST

/* More at once than a connection may have: the caller is told to wait, and every one is answered. */
START_TEST(as_many_as_come) {
    int full = 0, done = 0;
    glmd_conn *c;
    size_t n = 0;

    start(NULL);
    c = daemonfix_connect(&f, NULL);
    memset(answers, 0, sizeof answers);
    for (int i = 0; i < 40; i++) {
        glmd_req *r = large(c, 300000);
        struct answer *a = answers;
        int e;

        while (a->tag && !a->ended)
            a++;
        ck_assert(a < answers + 17);
        if (a->ended) {
            complete(a);
            done++;
        }
        memset(a, 0, sizeof *a);
        while ((e = glmd_submit(c, r, &a->tag)) == -ENOBUFS) {
            full++;
            ck_assert_int_ge(glmd_wait(c, 5000000), 0);
            for (struct glmd_event ev = {.size = sizeof ev}; glmd_next(c, &ev) == 1;)
                answer_take(answers, 17, &ev);
        }
        ck_assert_int_eq(e, 0);
    }
    ck_assert_int_gt(full, 0);
    while (answers[n].tag)
        n++;
    answers_wait(c, answers, n, 30000);
    for (size_t i = 0; i < n; i++, done++)
        complete(&answers[i]);
    ck_assert_int_eq(done, 40);
    glmd_close(c);
    stop();
}
END_TEST

START_TEST(refused_object_ends_its_request) {
    glmd_conn *c;

    start("[Quota]\nMaxBulkBytesPerUid=1M\n");
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &answers[0], large(c, 2000000));
    answer_submit(c, &answers[1], large(c, 600000));
    answer_submit(c, &answers[2], large(c, 1000));
    answers_wait(c, answers, 3, 10000);
    ck_assert_int_eq(answers[0].status, -EDQUOT);
    ck_assert(!answers[0].accepted);
    ck_assert_ptr_nonnull(strstr(answers[0].error, "[Quota] MaxBulkBytesPerUid"));
    complete(&answers[1]);
    complete(&answers[2]);
    glmd_close(c);
    stop();
}
END_TEST

/* Before the daemon has answered for the object it does not know the tag: the word must not be lost. */
START_TEST(cancelled_before_it_is_known) {
    glmd_conn *c;

    start("[IPC]\nTokenRingRecords=4096\n");
    c = daemonfix_connect(&f, NULL);
    for (int i = 0; i < 20; i++) {
        glmd_req *r = large(c, 400000);

        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_IGNORE_EOS, 1), 0);
        answer_submit(c, &answers[0], r);
        ck_assert_int_eq(glmd_cancel(c, answers[0].tag), 0);
        ck_assert_int_eq(glmd_cancel(c, answers[0].tag), 0);
        answers_wait(c, answers, 1, 10000);
        ck_assert_int_eq(answers[0].status, -ECANCELED);
    }
    glmd_close(c);
    stop();
}
END_TEST

START_TEST(limits_of_both_sides) {
    struct rlimit old, small = {.rlim_cur = 1 << 20};
    struct glmd_info info = {.size = sizeof info};
    glmd_conn *c;
    glmd_req *r;
    uint64_t tag = 77;

    start("[IPC]\nMaxBulkBytes=4M\n");
    c = daemonfix_connect(&f, NULL);
    r = large(c, 5 << 20);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -EMSGSIZE);
    glmd_req_free(r);
    /* a limit on file sizes is told as an error, not by a signal */
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    r = large(c, 2 << 20);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -EFBIG);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_uint_eq(tag, 77);
    memset(&answers[0], 0, sizeof answers[0]);
    ck_assert_int_eq(glmd_submit(c, r, &answers[0].tag), 0); /* the same request, now that it may */
    answers_wait(c, answers, 1, 10000);
    complete(&answers[0]);
    glmd_close(c);
    stop();

    start("[IPC]\nMaxBulkBytes=0\n");
    c = daemonfix_connect(&f, NULL);
    ck_assert_int_eq(glmd_get_info(c, &info), 0);
    ck_assert(!(info.features & GLMD_FEATURE_BULK));
    ck_assert_uint_eq(info.max_request_bytes, 1u << 20);
    r = large(c, 2 << 20);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -EMSGSIZE);
    glmd_req_free(r);
    answer_submit(c, &answers[0], large(c, 500000)); /* by the arena */
    answers_wait(c, answers, 1, 10000);
    complete(&answers[0]);
    glmd_close(c);
    stop();
}
END_TEST

/* A daemon that dies with the question open: one END, from the library. */
START_TEST(daemon_dies_before_the_answer) {
    struct glmd_event ev = {.size = sizeof ev};
    uint64_t tag;
    int ends = 0, r;
    glmd_conn *c;

    start(NULL);
    c = daemonfix_connect(&f, NULL);
    kill(f.pid, SIGSTOP);
    ck_assert_int_eq(glmd_submit(c, large(c, 300000), &tag), 0);
    kill(f.pid, SIGKILL);
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 128 + SIGKILL);
    do {
        r = glmd_wait(c, 5000000000);
        while (r >= 0 && (r = glmd_next(c, &ev)) == 1)
            if (ev.type == GLMD_EV_END) {
                ck_assert_uint_eq(ev.tag, tag);
                ck_assert_int_eq(ev.status, -EPIPE);
                ends++;
            }
    } while (r >= 0);
    ck_assert_int_eq(ends, 1);
    glmd_close(c);
    daemonfix_done(&f);
}
END_TEST

static uint64_t count(glmd_conn *c, const char *unit, size_t times) {
    size_t n = strlen(unit);
    char *text = malloc(n * times);
    glmd_req *r;

    ck_assert_ptr_nonnull(text);
    for (size_t i = 0; i < times; i++)
        memcpy(text + i * n, unit, n);
    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, text, n * times), 0);
    free(text);
    memset(&answers[0], 0, sizeof answers[0]);
    ck_assert_int_eq(glmd_count(c, r, &answers[0].tag), 0);
    answers_wait(c, answers, 1, 120000);
    ck_assert_msg(answers[0].status == 0, "%s", answers[0].error);
    return answers[0].usage.prompt_tokens;
}

/* The text repeats, so its tokens do: what small requests through the arena say gives the number of the large
 * one exactly. */
START_TEST(ten_megabytes_are_counted) {
    static const char unit[] = "The quick brown fox counts 12345 sheep.\n";
    size_t times = (10 << 20) / (sizeof unit - 1) + 1;
    uint64_t one, ten;
    char dir[300], script[400];
    glmd_conn *c;

    daemonfix_init(&f);
    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    snprintf(script, sizeof script, "model %s/nano\nrequest\ntokens 5\n", dir);
    daemonfix_script(&f, script);
    daemonfix_start(&f, NULL);
    c = daemonfix_connect(&f, NULL);
    one = count(c, unit, 1);
    ten = count(c, unit, 10);
    ck_assert_uint_eq((ten - one) % 9, 0);
    ck_assert_uint_eq(count(c, unit, times), one + (times - 1) * ((ten - one) / 9));
    glmd_close(c);
    stop();
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_bulk");
    TCase *tc = tcase_create("bulk");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 180);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, large_request_streams);
    tcase_add_test(tc, as_many_as_come);
    tcase_add_test(tc, refused_object_ends_its_request);
    tcase_add_test(tc, cancelled_before_it_is_known);
    tcase_add_test(tc, limits_of_both_sides);
    tcase_add_test(tc, daemon_dies_before_the_answer);
    tcase_add_test(tc, ten_megabytes_are_counted);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
