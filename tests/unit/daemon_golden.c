/* SPDX-License-Identifier: MIT */
/* The greedy answers of the golden file arrive through the ring: prompts submitted as token ids to a daemon
 * that serves the nano checkpoint, all of them at once and one by one. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "safetensors.h"

static const char *const names[] = {"count", "json", "tool", "sort"};
enum { N = sizeof names / sizeof names[0], MAX = 4096 };

static uint32_t prompt[N][MAX], want[N][MAX], n_prompt[N], n_want[N];
static struct answer a[N];

/* Milliseconds for an answer; an emulated processor needs many times as long. */
static int patience(void) {
    return getenv("GLMD_EMULATED") ? 900000 : 120000;
}

static uint32_t read_ids(struct st_file *file, const char *name, const char *key, uint32_t *ret) {
    char full[64];
    const struct st_tensor *t;
    struct xerr err;

    snprintf(full, sizeof full, "%s.%s", name, key);
    t = st_find(file, full);
    ck_assert_msg(t && t->dtype == ST_I32 && t->bytes <= MAX * 4, "golden file: %s", full);
    ck_assert_msg(st_read(file, t, 0, ret, t->bytes, &err) == 0, "%s", err.msg);
    return (uint32_t)(t->bytes / 4);
}

static void read_golden(void) {
    struct st_file *file;
    struct xerr err;

    ck_assert_msg(st_open(&file, "tests/golden/golden-nano.safetensors", NULL, &err) == 0, "%s", err.msg);
    for (int i = 0; i < N; i++) {
        n_prompt[i] = read_ids(file, names[i], "ids", prompt[i]);
        n_want[i] = read_ids(file, names[i], "greedy", want[i]);
    }
    st_close(file);
}

static glmd_req *greedy(glmd_conn *c, int i) {
    glmd_req *r = request_tokens(c, prompt[i], n_prompt[i]);

    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_TEMPERATURE, 0.0), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 300), 0);
    return r;
}

/* The stop id that ends the golden answer is not a token of the stream. */
static void compare(int i) {
    ck_assert_int_eq(a[i].status, 0);
    ck_assert_uint_eq(a[i].usage.prompt_tokens, n_prompt[i]);
    ck_assert_msg(a[i].n_tokens == n_want[i] - 1, "%s: %u tokens, expected %u", names[i], a[i].n_tokens,
                  n_want[i] - 1);
    for (uint32_t k = 0; k < a[i].n_tokens; k++)
        ck_assert_msg(a[i].tokens[k] == want[i][k], "%s: token %u is %u, expected %u", names[i], k,
                      a[i].tokens[k], want[i][k]);
    ck_assert_uint_eq(a[i].usage.completion_tokens, n_want[i]);
}

START_TEST(golden_answers_arrive) {
    struct daemonfix f;
    glmd_conn *c;

    read_golden();
    daemonfix_init(&f);
    snprintf(f.backend, sizeof f.backend, "%s", _i ? "uring" : "epoll");
    snprintf(f.model, sizeof f.model, "%s/nano", daemonfix_models());
    daemonfix_start(&f, "[Model]\nContextTokens=4096\nThreads=2\n");
    c = daemonfix_connect(&f, NULL);
    for (int i = 0; i < N; i++)
        answer_submit(c, &a[i], greedy(c, i));
    answers_wait(c, a, N, patience());
    for (int i = 0; i < N; i++)
        compare(i);
    answer_submit(c, &a[0], greedy(c, 0));
    answers_wait(c, a, 1, patience());
    compare(0);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* The format of the cache comes from the configuration, and the answers of this model survive it. */
START_TEST(cache_formats) {
    static const char *const names_of[] = {"f32", "bf16", "fp8"};
    struct daemonfix f;
    char conf[128], want_log[64];
    glmd_conn *c;

    read_golden();
    daemonfix_init(&f);
    snprintf(f.model, sizeof f.model, "%s/nano", daemonfix_models());
    snprintf(conf, sizeof conf, "[Model]\nContextTokens=1024\nThreads=2\n[Memory]\nCacheFormat=%s\n", names_of[_i]);
    daemonfix_start(&f, conf);
    snprintf(want_log, sizeof want_log, "context 1024 tokens, cache %s, ", names_of[_i]);
    daemonfix_expect_log(&f, want_log);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[3], greedy(c, 3));
    answers_wait(c, &a[3], 1, patience());
    compare(3);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* A daemon whose model is cut says so and gives the same answers, four of them at once. */
START_TEST(cut_into_ranks) {
    struct daemonfix f;
    glmd_conn *c;

    read_golden();
    daemonfix_init(&f);
    snprintf(f.model, sizeof f.model, "%s/nano", daemonfix_models());
    daemonfix_start(&f, "[Model]\nContextTokens=1024\nThreads=3\nRanks=3\n");
    daemonfix_expect_log(&f, " in 3 ranks, context 1024 tokens, ");
    c = daemonfix_connect(&f, NULL);
    for (int i = 0; i < N; i++)
        answer_submit(c, &a[i], greedy(c, i));
    answers_wait(c, a, N, patience());
    for (int i = 0; i < N; i++)
        compare(i);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_golden");
    TCase *tc = tcase_create("golden");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, patience() / 500);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, golden_answers_arrive, 0, daemonfix_loops());
    tcase_add_loop_test(tc, cache_formats, 0, 3);
    tcase_add_test(tc, cut_into_ranks);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
