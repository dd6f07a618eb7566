/* SPDX-License-Identifier: MIT */
/* Many clients at once that do everything at random and die in the middle of it, beside one that is honest:
 * the daemon lives, the honest stream is whole, and descriptors, threads and shared memories come back. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chaos.h"
#include "daemonfix.h"
#include "leakcheck.h"
#include "rawclient.h"

enum { CLIENTS = 150, AT_ONCE = 5, FIRST_UID = 20000 };

/* Lines of a file under /proc that hold text. */
static int count_lines(const struct daemonfix *f, const char *name, const char *text) {
    char path[64], line[600];
    int n = 0;
    FILE *o;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)f->pid, name);
    o = fopen(path, "re");
    ck_assert_msg(o != NULL, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, o))
        n += strstr(line, text) != NULL;
    fclose(o);
    return n;
}

static int threads(const struct daemonfix *f) {
    char path[64];
    struct stat st;

    snprintf(path, sizeof path, "/proc/%d/task", (int)f->pid);
    ck_assert_int_eq(stat(path, &st), 0);
    return (int)st.st_nlink;
}

/* Ten faults in a minute refuse a user, so each client is one of its own where that is possible. */
static void run_client(const struct daemonfix *f, uint64_t seed) {
    uid_t uid = (uid_t)(FIRST_UID + seed);

    if (geteuid() == 0 && (setgid(uid) < 0 || setuid(uid) < 0))
        _exit(99);
    chaos_client(f->socket, seed);
}

static void reap(int *n) {
    int status;
    pid_t p = waitpid(-1, &status, 0);

    ck_assert_int_gt(p, 0);
    ck_assert_msg((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
                      (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL),
                  "a client ended with status %x", (unsigned)status);
    --*n;
}

START_TEST(everything_at_random) {
    struct daemonfix f;
    struct rawclient honest;
    struct glmw_entry e;
    uint32_t tokens;
    int before, n_threads, n = 0;

    daemonfix_init(&f);
    snprintf(f.backend, sizeof f.backend, "%s", _i % 2 ? "uring" : "epoll");
    daemonfix_script(&f, "vocab 100\nstop 2\nstep-us 200\nloop\nrequest\ntokens 10 11 12\nrepeat\n");
    /* with one, most is handed over to the emit thread */
    daemonfix_start(&f, _i < 2 ? "MaxRequests=24\n[IPC]\nInlineConnections=1\nStallTimeoutSec=1\n" : NULL);
    ck_assert_int_eq(chmod(f.dir, 0755), 0);
    ck_assert_int_eq(chmod(f.socket, 0666), 0);
    raw_open(&honest, f.socket, NULL);
    e = raw_request(&honest, 1);
    e.max_tokens = 1;
    raw_submit(&honest, &e);
    ck_assert_int_eq(raw_until_end(&honest, 1, NULL), 0);
    before = daemonfix_resources(&f);
    n_threads = threads(&f);
    for (uint64_t seed = 0; seed < CLIENTS; seed++) {
        pid_t p = fork();

        ck_assert_int_ge(p, 0);
        if (p == 0)
            run_client(&f, (uint64_t)_i * CLIENTS + seed);
        if (++n == AT_ONCE)
            reap(&n);
        if (seed % 8 == 0) {
            /* all places may be taken by requests of the others: that is said, and no reason to end */
            int r;

            e.tag++;
            e.max_tokens = 20;
            raw_submit(&honest, &e);
            r = raw_until_end(&honest, e.tag, &tokens);
            ck_assert_msg(r == 0 || r == -EBUSY, "%d", r);
            ck_assert_uint_eq(tokens, r == 0 ? 20 : 0);
        }
    }
    while (n > 0)
        reap(&n);
    daemonfix_expect_resources(&f, before);
    ck_assert_int_eq(threads(&f), n_threads);
    ck_assert_int_eq(count_lines(&f, "maps", "memfd:glmd-"), 2);
    raw_close(&honest);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("conn_chaos");
    TCase *tc = tcase_create("chaos");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, everything_at_random, 0, daemonfix_loops() == 2 ? 4 : 1);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
