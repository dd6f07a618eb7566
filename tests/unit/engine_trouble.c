/* SPDX-License-Identifier: MIT */
/* What goes wrong around the engine: clients that do not read, a device that is lost, numbers that are none,
 * models and sizes that are refused. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engrun.h"
#include "leakcheck.h"

#define HEAD "glmd-script 1\nvocab 300\ncontext 4096\nstop 299\n"

static const uint32_t PROMPT[3] = { 7, 8, 9 };

/* One client does not read: its stream waits, the other is not delayed, nothing is lost, and the kick alone
 * brings it back. */
START_TEST(test_credit) {
    struct engine_stats st;
    struct engrun r;
    struct sched_req a = engrun_req(0, PROMPT, 3, 40), b = engrun_req(1, PROMPT, 3, 40);

    engrun_open(&r, HEAD "step-us 500\nrequest\ntokens 1 2 3 4 5 6 7 8 9 10\nrepeat\n", NULL);
    r.metered = true;
    atomic_store(&r.credit[0].records, 10);
    engrun_start(&r);
    engrun_submit(&r, &a);
    engrun_submit(&r, &b);
    engrun_wait_end(&r, 1);
    ck_assert_uint_eq(r.s[1].n_tokens, 40);
    ck_assert_uint_eq(engrun_tokens(&r, 0), 8); /* a token may need three records: 10 .. 3 */
    engrun_sleep_ms(30);
    ck_assert_uint_eq(engrun_tokens(&r, 0), 8);
    engrun_credit(&r, 0, 12);
    engrun_wait_tokens(&r, 0, 20);
    engrun_sleep_ms(30);
    ck_assert_uint_eq(engrun_tokens(&r, 0), 20);
    engrun_credit(&r, 0, 1000);
    engrun_wait_end(&r, 0);
    ck_assert_uint_eq(r.s[0].n_tokens, 40);
    for (uint32_t i = 0; i < 40; i++)
        ck_assert_uint_eq(r.s[0].tokens[i], i % 10 + 1);
    engine_get_stats(r.e, &st);
    ck_assert_uint_ge(st.skips, 2);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* All streams skipped: the thread sleeps but for the safety timer, and a kick wakes it at once. */
START_TEST(test_all_skipped) {
    struct engine_stats a, b;
    struct engrun r;
    struct sched_req q = engrun_req(0, PROMPT, 3, 5);

    engrun_open(&r, HEAD "request\ntokens 1\nrepeat\n", NULL);
    r.metered = true;
    atomic_store(&r.credit[0].records, 0);
    engrun_start(&r);
    engrun_submit(&r, &q);
    do {
        engrun_sleep_ms(5);
        engine_get_stats(r.e, &a);
    } while (!a.skips || !a.asleep);
    engrun_sleep_ms(450);
    engine_get_stats(r.e, &b);
    ck_assert_uint_ge(b.sleeps - a.sleeps, 1);
    ck_assert_uint_le(b.sleeps - a.sleeps, 5);
    ck_assert_uint_eq(b.safety_wakes, 0);
    ck_assert_uint_eq(engrun_tokens(&r, 0), 0);
    engrun_credit(&r, 0, 100);
    engrun_wait_end(&r, 0);
    engine_get_stats(r.e, &b);
    ck_assert_uint_eq(b.safety_wakes, 0);
    ck_assert_uint_eq(r.s[0].n_tokens, 5);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* The ring fills up while the prompt is being read: the first token waits for room instead of getting lost or
 * holding up the next prompt. */
START_TEST(test_full_after_prompt) {
    static uint32_t ids[400];
    struct engrun r;
    struct sched_req a = engrun_req(0, ids, 400, 3), b = engrun_req(1, ids, 20, 3);

    engrun_open(&r, HEAD "layers 40\nprefill-us 1500\nrequest\ntokens 1 2 3\n", NULL);
    engrun_start(&r);
    engrun_submit(&r, &a);
    engrun_sleep_ms(50); /* a's 600 ms have begun */
    engrun_submit(&r, &b);
    atomic_store(&r.credit[0].records, 0);
    engrun_wait_end(&r, 1);
    ck_assert_uint_eq(engrun_tokens(&r, 0), 0);
    atomic_store(&r.credit[0].records, 0);
    engrun_credit(&r, 0, 100);
    engrun_wait_end(&r, 0);
    ck_assert_uint_eq(r.s[0].n_tokens, 3);
    ck_assert_uint_eq(r.s[0].tokens[0], 1);
    ck_assert_uint_eq(r.s[0].firsts, 1);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* A lost kick is made good by the timer, and counted. */
START_TEST(test_safety_timer) {
    struct engine_stats st;
    struct engrun r;
    struct sched_req q = engrun_req(0, PROMPT, 3, 5);

    engrun_open(&r, HEAD "request\ntokens 1\nrepeat\n", NULL);
    r.metered = true;
    atomic_store(&r.credit[0].records, 0);
    engrun_start(&r);
    engrun_submit(&r, &q);
    do {
        engrun_sleep_ms(2);
        engine_get_stats(r.e, &st);
    } while (!st.skips);
    pthread_mutex_lock(&r.lock);
    r.hidden_credit[0] = 100; /* no kick */
    pthread_mutex_unlock(&r.lock);
    engrun_wait_end(&r, 0);
    engine_get_stats(r.e, &st);
    ck_assert_uint_eq(st.safety_wakes, 1);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* Skipped streams still end by deadline and by cancellation. */
START_TEST(test_skipped_ends) {
    struct engrun r;
    struct sched_req a = engrun_req(0, PROMPT, 3, 5), b = engrun_req(1, PROMPT, 3, 5);

    engrun_open(&r, HEAD "request\ntokens 1\nrepeat\n", NULL);
    r.metered = true;
    atomic_store(&r.credit[0].records, 0);
    atomic_store(&r.credit[1].records, 0);
    engrun_start(&r);
    a.deadline_ns = engrun_now_ns() + 50000000;
    engrun_submit(&r, &a);
    engrun_submit(&r, &b);
    ck_assert_uint_eq(engrun_wait_end(&r, 0)->end.reason, STREAM_END_DEADLINE);
    engine_cancel(r.e, b.stream);
    ck_assert_uint_eq(engrun_wait_end(&r, 1)->end.reason, STREAM_END_CANCELLED);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

START_TEST(test_device_lost) {
    struct engrun r;
    struct sched_req q[6], late = engrun_req(9, PROMPT, 3, 5);
    struct engine_options o = { .max_seqs = 3 };

    engrun_open(&r, HEAD "step-us 500\nfail-step 10 lost\nrequest\ntokens 1\nrepeat\n", &o);
    engrun_start(&r);
    for (uint32_t i = 0; i < 6; i++) {
        q[i] = engrun_req(i, PROMPT, 3, 0);
        engrun_submit(&r, &q[i]);
    }
    for (uint32_t i = 0; i < 6; i++) {
        const struct engrun_stream *s = engrun_wait_end(&r, i);

        ck_assert_uint_eq(s->end.reason, STREAM_END_ERROR);
        ck_assert_int_eq(s->end.status, -EIO);
        ck_assert_uint_eq(s->ends, 1);
    }
    ck_assert_int_eq(engine_submit(r.e, &late), -EIO);
    pthread_join(r.thread, NULL); /* returns by itself */
    r.running = false;
    ck_assert_int_eq(engrun_close(&r), -EIO);
    ck_assert_uint_eq(r.total_ends, 6);
}
END_TEST

/* Lost while a prompt is on its way through the layers. */
START_TEST(test_lost_in_prompt) {
    static uint32_t ids[3000];
    struct engrun r;
    struct sched_req a = engrun_req(0, PROMPT, 3, 0), b = engrun_req(1, ids, 3000, 0);

    engrun_open(&r, HEAD "layers 50\nprefill-us 100\nstep-us 1000\nfail-step 30 lost\nrequest\ntokens 1\nrepeat\n",
                NULL);
    engrun_start(&r);
    engrun_submit(&r, &a);
    engrun_submit(&r, &b);
    ck_assert_int_eq(engrun_wait_end(&r, 0)->end.status, -EIO);
    ck_assert_int_eq(engrun_wait_end(&r, 1)->end.status, -EIO);
    ck_assert_int_eq(engrun_close(&r), -EIO);
    ck_assert_uint_eq(r.total_ends, 2);
}
END_TEST

/* Numbers that are none end the one stream, without a token of that step; the others go on. */
START_TEST(test_nan) {
    struct engrun r;
    struct sched_req a = engrun_req(0, PROMPT, 1, 0), b = engrun_req(1, PROMPT + 1, 1, 12);

    engrun_open(&r, HEAD "step-us 500\nrequest first 7\ntokens 1 2 3 4 5 6\nfail 3 nan\nrequest\ntokens 1\nrepeat\n",
                NULL);
    engrun_start(&r);
    engrun_submit(&r, &b);
    engrun_submit(&r, &a);
    ck_assert_uint_eq(engrun_wait_end(&r, 0)->end.reason, STREAM_END_ERROR);
    ck_assert_int_eq(r.s[0].end.status, -EDOM);
    ck_assert_uint_eq(r.s[0].n_tokens, 3);
    ck_assert_uint_eq(engrun_wait_end(&r, 1)->end.reason, STREAM_END_LENGTH);
    ck_assert_uint_eq(r.s[1].n_tokens, 12);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* Every token banned: an error, not a token. */
START_TEST(test_nothing_left) {
    struct engrun r;
    struct sched_req q = engrun_req(0, PROMPT, 3, 4);

    engrun_open(&r, "glmd-script 1\nvocab 10\nstop 0 1 2 3 4 5 6 7 8 9\nrequest\ntokens 1\n", NULL);
    engrun_start(&r);
    q.ignore_eos = true;
    engrun_submit(&r, &q);
    ck_assert_int_eq(engrun_wait_end(&r, 0)->end.status, -ENODATA);
    ck_assert_uint_eq(r.s[0].n_tokens, 0);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

START_TEST(test_self_test) {
    struct xerr err = { 0 };
    struct engine_stats st;
    struct engine_info info;
    struct sched_req q = engrun_req(0, PROMPT, 3, 0);
    struct engrun r;

    engrun_open(&r, HEAD "request\ntokens 11\nrequest\ntokens 22\n", NULL);
    ck_assert_int_eq(engine_self_test(r.e, &err), 0);
    engine_get_stats(r.e, &st);
    engine_get_info(r.e, &info);
    ck_assert_uint_eq(st.running, 0);
    ck_assert_uint_eq(st.free_slots, info.n_slots);
    ck_assert_uint_eq(st.free_pages, info.n_pages);
    engrun_start(&r);
    engrun_submit(&r, &q);
    engrun_wait_end(&r, 0);
    ck_assert_uint_eq(r.s[0].tokens[0], 11); /* the self-test used nothing up */
    ck_assert_int_eq(engrun_close(&r), 0);
    engrun_open(&r, HEAD "request\ntokens 11\nfail 0 nan\n", NULL);
    ck_assert_int_eq(engine_self_test(r.e, &err), 0); /* what the script asks for is no fault of ours */
    engrun_close(&r);
}
END_TEST

static void expect_open(const struct engine_options *o, int code, const char *text) {
    struct engine *e = NULL;
    struct xerr err = { 0 };
    int r = engine_open(o, &e, &err);

    ck_assert_msg(r == code, "found %d (%s), expected %d", r, err.msg, code);
    ck_assert_msg(strstr(err.msg, text), "found \"%s\", expected \"%s\"", err.msg, text);
    ck_assert_ptr_null(e);
}

START_TEST(test_open_refused) {
    struct engine_options o = { 0 };
    char model[80];
    int fd;

    expect_open(&o, -EINVAL, "found nothing");
    o.model = "script:/nonexistent/x";
    expect_open(&o, -ENOENT, "/nonexistent/x: cannot be read");
    o.model = "/nonexistent";
    expect_open(&o, -ENOENT, "config.json");
    o.prefill_tokens = 100;
    expect_open(&o, -EINVAL, "multiple of 64");
    snprintf(model, sizeof model, "script:/tmp/glmd-test-XXXXXX");
    fd = mkstemp(model + 7);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "glmd-script 1\nvocab 10\nrequest\nspeed 9\n", 39), 39);
    close(fd);
    o = (struct engine_options){ .model = model };
    expect_open(&o, -EINVAL, "line 4: unknown word \"speed\"");
    fd = open(model + 7, O_WRONLY | O_TRUNC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "glmd-script 1\nvocab 10\ncontext 100000\nrequest\n", 46), 46);
    close(fd);
    o.context_tokens = 100001;
    expect_open(&o, -EINVAL, "expected at most 100000, the model's maximum");
    o.context_tokens = 1000;
    o.n_pages = 2;
    expect_open(&o, -EINVAL, "at most the 512 of the page pool");
    o = (struct engine_options){ .model = model, .vocab_tokens = 11 };
    expect_open(&o, -EINVAL, "found a tokenizer of 11 tokens");
    o = (struct engine_options){ .model = model, .keep_free_bytes = UINT64_MAX / 2 };
    expect_open(&o, -ENOMEM, "for any context");
    unlink(model + 7);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_trouble");
    TCase *tc = tcase_create("trouble");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_credit);
    tcase_add_test(tc, test_all_skipped);
    tcase_add_test(tc, test_full_after_prompt);
    tcase_add_test(tc, test_safety_timer);
    tcase_add_test(tc, test_skipped_ends);
    tcase_add_test(tc, test_device_lost);
    tcase_add_test(tc, test_lost_in_prompt);
    tcase_add_test(tc, test_nan);
    tcase_add_test(tc, test_nothing_left);
    tcase_add_test(tc, test_self_test);
    tcase_add_test(tc, test_open_refused);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
