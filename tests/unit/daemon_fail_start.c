/* SPDX-License-Identifier: MIT */
/* A daemon whose start meets trouble: the N-th call fails, for N = 1, 2, 3 … until a start makes fewer calls,
 * once and for ever, interrupted and half done. It starts and answers all the same, or ends with status 1 or
 * 2 and a sentence that says why, and leaves nothing at its socket's place. (Under an emulator or a sanitizer
 * every 16th N.)
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "failctl.h"
#include "leakcheck.h"

static const char script[] = "vocab 100\nstop 2\nstep-us 100\nloop\nrequest\ntokens 10 11 12\n";
static struct answer a;

static void nap_ms(long ms) {
    usleep((useconds_t)ms * 1000);
}

/* 0: ready; else how it ended: the exit status, or 128 + signal. */
static int until_decided(struct daemonfix *f) {
    uint64_t until = test_now_ms() + (getenv("GLMD_EMULATED") ? 300000 : 20000);
    int status;

    for (;;) {
        bool ready = strstr(daemonfix_log(f), "ready after") != NULL;

        if (waitpid(f->pid, &status, WNOHANG) == f->pid) {
            f->pid = 0;
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        if (ready)
            return 0;
        ck_assert_msg(test_now_ms() < until, "neither ready nor ended: %s", daemonfix_log(f));
        nap_ms(2);
    }
}

static void expect_answer(struct daemonfix *f) {
    glmd_conn *c = daemonfix_connect(f, NULL);
    const uint32_t prompt[] = {5};

    glmd_req *r = request_tokens(c, prompt, 1);

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 3), 0);
    answer_submit(c, &a, r);
    answers_wait(c, &a, 1, 10000);
    ck_assert_int_eq(a.status, 0);
    ck_assert_uint_gt(a.n_tokens, 0);
    glmd_close(c);
}

/* What a daemon that did not start may leave: its lock file; its socket only where it can look at nothing any
 * more, and so cannot tell whether it is its own. */
static void expect_clean_directory(const struct daemonfix *f, enum fail_mode mode, const char *text) {
    static const char *const known[] = {".",   "..", "log", "glmd.conf", "model.script", "glmd.sock.lock",
                                        "fail"};
    DIR *d = opendir(f->dir);
    struct dirent *e;

    ck_assert_ptr_nonnull(d);
    while ((e = readdir(d))) {
        bool found = mode != FAIL_ONCE && strcmp(e->d_name, "glmd.sock") == 0 && unlink(f->socket) == 0;

        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            found = found || strcmp(e->d_name, known[i]) == 0;
        ck_assert_msg(found, "%s left behind after %s", e->d_name, text);
    }
    closedir(d);
}

/* False: the start makes fewer calls. */
static bool start_with(struct daemonfix *f, struct failctl *c, enum fail_mode mode, uint64_t n) {
    const char *text;
    bool failed;
    int r;

    unlink(f->log);
    atomic_store(&c->blocks, 0);
    atomic_store(&c->maps, 0);
    failctl_arm(c, mode, n);
    /* a model by two ranks, so that the second's thread fails to start, too */
    daemonfix_spawn(f, strncmp(f->model, "script:", 7) ? "[Model]\nRanks=2\n" : NULL);
    r = until_decided(f);
    failctl_disarm(c);
    failed = c->failed > 0;
    text = failctl_text(c, mode);
    if (r == 0) {
        expect_answer(f);
        kill(f->pid, SIGTERM);
        r = daemonfix_wait(f, 10000);
        ck_assert_msg(r == 0, "%s: started, then ended with %d: %s", text, r, daemonfix_log(f));
        return failed;
    }
    ck_assert_msg(failed, "the daemon ended with %d without a reason: %s", r, daemonfix_log(f));
    ck_assert_msg(r == 1 || r == 2, "%s: ended with %d: %s", text, r, daemonfix_log(f));
    ck_assert_msg(mode < FAIL_INTR, "%s: an interruption is no reason to end: %s", text, daemonfix_log(f));
    ck_assert_msg(strstr(daemonfix_log(f), "<3>") || strstr(daemonfix_log(f), "glmd: "),
                  "%s: ended with %d and said nothing: \"%s\"", text, r, daemonfix_log(f));
    expect_clean_directory(f, mode, text);
    return true;
}

static bool is_slow(void) {
    const char *san = getenv("GLMD_SAN");

    return daemonfix_loops() != 2 || (san && *san);
}

static void sweep(int i, bool real) {
    /* what a start does at least, so that a sweep that ends early is seen; byte moves are few without a model
     */
    static const uint64_t least[2][FAIL_MODES] = {{0, 40, 40, 40, 8, 2}, {0, 120, 120, 120, 30, 15}};
    enum fail_mode mode = FAIL_ONCE + i % (FAIL_MODES - 1);
    uint64_t n = 1, step = is_slow() ? 16 : 1;
    struct daemonfix f;
    struct failctl *c;

    daemonfix_init(&f);
    snprintf(f.backend, sizeof f.backend, "%s", i / (FAIL_MODES - 1) ? "uring" : "epoll");
    daemonfix_script(&f, script);
    if (real) /* several files once; then one, of a third of the bytes: there are a thousand starts */
        snprintf(f.model, sizeof f.model, "%s/%s", daemonfix_models(), i ? "twin-a" : "nano");
    snprintf(f.fail, sizeof f.fail, "%s/fail", f.dir);
    c = failctl_open(f.fail);
    ck_assert_ptr_nonnull(c);
    while (start_with(&f, c, mode, n))
        n += step;
    ck_assert_msg(n >= least[real][mode], "%s: only %d calls", failctl_mode_name(mode), (int)n);
    failctl_close(c);
    daemonfix_done(&f);
}

START_TEST(start_meets_trouble) {
    sweep(_i, false);
}
END_TEST

START_TEST(start_with_a_model_meets_trouble) {
    sweep(_i, true);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_fail_start");
    TCase *tc = tcase_create("fail");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 900);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, start_meets_trouble, 0, daemonfix_loops() * (FAIL_MODES - 1));
    tcase_add_loop_test(tc, start_with_a_model_meets_trouble, 0, FAIL_MODES - 1);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
