/* SPDX-License-Identifier: MIT */
/* What a client sees of the prefix cache: a prompt that begins like an earlier one is found, a request that wishes
 * none finds nothing and leaves nothing, and the configuration switches it off. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemonfix.h"
#include "leakcheck.h"

enum { N = 300 };

static uint32_t ids[N];
static struct answer a;

static uint32_t cached(glmd_conn *c, uint32_t n, bool no_cache) {
    glmd_req *r = request_tokens(c, ids, n);

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 2), 0);
    if (no_cache)
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_NO_CACHE, 1), 0);
    answer_submit(c, &a, r);
    answers_wait(c, &a, 1, getenv("GLMD_EMULATED") ? 900000 : 120000);
    ck_assert_int_eq(a.status, 0);
    ck_assert_uint_eq(a.usage.prompt_tokens, n);
    return a.usage.cached_tokens;
}

static glmd_conn *start(struct daemonfix *f, const char *conf) {
    for (uint32_t i = 0; i < N; i++)
        ids[i] = (i * 2654435761u >> 7) % 4000;
    daemonfix_init(f);
    snprintf(f->model, sizeof f->model, "%s/nano", daemonfix_models());
    daemonfix_start(f, conf);
    return daemonfix_connect(f, NULL);
}

static void stop(struct daemonfix *f, glmd_conn *c) {
    glmd_close(c);
    daemonfix_stop(f);
    daemonfix_done(f);
}

START_TEST(found_again) {
    struct daemonfix f;
    glmd_conn *c = start(&f, "[Model]\nContextTokens=1024\nThreads=1\n");

    daemonfix_expect_log(&f, "prefix cache: 32 states of");
    ck_assert_uint_eq(cached(c, N, true), 0);
    ck_assert_uint_eq(cached(c, N, false), 0); /* the first one left nothing */
    ck_assert_uint_eq(cached(c, N, false), 256);
    ck_assert_uint_eq(cached(c, N, true), 0);
    glmd_close(c);
    c = daemonfix_connect(&f, NULL); /* what a user left is the user's, whatever its connection */
    ck_assert_uint_eq(cached(c, N - 20, false), 256);
    stop(&f, c);
}
END_TEST

START_TEST(switched_off) {
    struct daemonfix f;
    glmd_conn *c = start(&f, "[Model]\nContextTokens=1024\nThreads=1\n[Cache]\nSlots=0\nSpillSurvive=yes\n");

    daemonfix_expect_log(&f, "prefix cache: off ([Cache] Slots=0)");
    daemonfix_expect_log(&f, "SpillSurvive=yes keeps nothing over a restart, because SpillDirectory is not set");
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(cached(c, N, false), 0);
    stop(&f, c);
    /* an option that does nothing says so */
    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 100\nrequest\ntokens 1 2 3\n");
    daemonfix_start(&f, NULL);
    daemonfix_expect_log(&f, "prefix cache: off: a scripted model has no state to keep");
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_cache");
    TCase *tc = tcase_create("cache");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 1800);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, found_again);
    tcase_add_test(tc, switched_off);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
