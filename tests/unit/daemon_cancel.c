/* SPDX-License-Identifier: MIT */
/* Requests that nobody wants any more, at a whole daemon: cancelled or left alone at every stage, while
 * reading a long prompt, in crowds; and more connections than old system calls can count. What they held is
 * given back, and others do not wait for the dead. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "rawclient.h"

enum { LONG = 4000 }; /* tokens of a long prompt */

static uint32_t prompt[LONG];
static struct answer a[32];

static void start(struct daemonfix *f, int loop, unsigned prefill_us, const char *conf) {
    char script[300];

    daemonfix_init(f);
    snprintf(f->backend, sizeof f->backend, "%s", loop ? "uring" : "epoll");
    snprintf(script, sizeof script,
             "vocab 100\ncontext 8192\nstop 2\nprefill-us %u\nstep-us 200\nloop\nrequest\ntokens 10 11 "
             "12\nrepeat\n",
             prefill_us);
    daemonfix_script(f, script);
    daemonfix_start(f, conf);
    for (uint32_t i = 0; i < LONG; i++)
        prompt[i] = 3 + i % 90;
}

static glmd_req *request(glmd_conn *c, uint32_t prompt_tokens, uint64_t max_tokens) {
    glmd_req *r = request_tokens(c, prompt, prompt_tokens);

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, max_tokens), 0);
    return r;
}

/* Everything that a request holds is free: pages, places, queue. The status block is renewed once a second.
 */
static void expect_idle(glmd_conn *c, const struct glmd_info *idle) {
    struct glmd_info now = {.size = sizeof now};
    uint64_t until = test_now_ms() + 10000;

    for (;;) {
        ck_assert_int_eq(glmd_get_info(c, &now), 0);
        if (!now.running && !now.queued && now.slots_free == idle->slots_free &&
            now.kv_tokens_free == idle->kv_tokens_free)
            return;
        ck_assert_msg(test_now_ms() < until,
                      "%u running, %u queued, %u of %u places and %llu of %llu tokens free", now.running,
                      now.queued, now.slots_free, idle->slots_free, (unsigned long long)now.kv_tokens_free,
                      (unsigned long long)idle->kv_tokens_free);
        usleep(50000);
    }
}

static struct glmd_info idle_info(glmd_conn *c) {
    struct glmd_info i = {.size = sizeof i};

    for (uint64_t until = test_now_ms() + 10000;; usleep(50000)) {
        ck_assert_int_eq(glmd_get_info(c, &i), 0);
        if (i.slots_free && i.slots_free == i.slots_total && i.kv_tokens_free)
            return i;
        ck_assert_uint_lt(test_now_ms(), until);
    }
}

/* Crowds of requests with long and short prompts, each cancelled a random time later: in the queue, at the
 * text worker, in the prompt, in the answer, or too late. Every one has one END; everything comes back. */
START_TEST(cancels_at_every_stage) {
    enum { ROUNDS = 12, CROWD = 16 };
    struct daemonfix f;
    struct glmd_info idle;
    glmd_conn *c;
    uint32_t cancelled = 0, completed = 0;

    start(&f, _i, 10, NULL);
    c = daemonfix_connect(&f, NULL);
    idle = idle_info(c);
    srand((unsigned)_i + 7);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CROWD; i++)
            answer_submit(
                c, &a[i],
                request(c, 1 + (uint32_t)rand() % (rand() % 2 ? 10 : 1500), 1 + (uint64_t)(rand() % 40)));
        for (int i = 0; i < CROWD; i++) {
            struct glmd_event ev = {.size = sizeof ev};

            usleep((useconds_t)(rand() % 3000));
            if (rand() % 4)
                ck_assert_int_eq(glmd_cancel(c, a[i].tag), 0);
            glmd_dispatch(c);
            while (glmd_next(c, &ev) == 1)
                answer_take(a, CROWD, &ev);
        }
        answers_wait(c, a, CROWD, 60000);
        for (int i = 0; i < CROWD; i++) {
            ck_assert_msg(a[i].status == 0 || a[i].status == -ECANCELED, "%d", a[i].status);
            cancelled += a[i].status == -ECANCELED;
            completed += a[i].status == 0;
        }
    }
    ck_assert_uint_gt(cancelled, ROUNDS * CROWD / 4);
    ck_assert_uint_gt(completed, ROUNDS);
    expect_idle(c, &idle);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* The same prompt again and again from clients that are killed before its first token: twenty seconds of
 * reading each. Nobody waits for them. */
START_TEST(a_storm_of_dead_prompts) {
    struct daemonfix f;
    struct glmd_info idle;
    uint64_t began;
    glmd_conn *c;

    start(&f, _i, 5000, "MaxSequences=2\n[Engine]\nPrefillTokens=64\n");
    c = daemonfix_connect(&f, NULL);
    idle = idle_info(c);
    began = test_now_ms();
    for (int k = 0; k < 5; k++) {
        pid_t p = fork();
        int status;

        ck_assert_int_ge(p, 0);
        if (p == 0) {
            struct glmd_event ev = {.size = sizeof ev};
            glmd_conn *mine;

            prctl(PR_SET_PDEATHSIG, SIGKILL);
            mine = daemonfix_connect(&f, NULL);
            answer_submit(mine, a, request(mine, LONG, 10));
            while (!a[0].accepted) {
                glmd_wait(mine, -1);
                while (glmd_next(mine, &ev) == 1)
                    answer_take(a, 1, &ev);
            }
            usleep(100000); /* it is being read by now */
            kill(getpid(), SIGKILL);
        }
        ck_assert_int_eq(waitpid(p, &status, 0), p);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    answer_submit(c, a, request(c, 5, 3));
    answers_wait(c, a, 1, 60000);
    ck_assert_int_eq(a[0].status, 0);
    ck_assert_uint_eq(a[0].n_tokens, 3);
    expect_idle(c, &idle);
    /* all of it: one of the prompts alone would take longer */
    ck_assert_uint_lt(test_now_ms() - began, 18000);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* The connection ends while a prompt is read that takes twenty seconds, long before there is anything to
 * send: noticed all the same. */
START_TEST(closed_while_the_prompt_is_read) {
    struct daemonfix f;
    struct glmd_info idle, now = {.size = sizeof now};
    uint64_t began;
    glmd_conn *c, *watch;

    start(&f, _i, 5000, "MaxSequences=1\n");
    watch = daemonfix_connect(&f, NULL);
    idle = idle_info(watch);
    c = daemonfix_connect(&f, NULL);
    began = test_now_ms();
    answer_submit(c, a, request(c, LONG, 10));
    do {
        usleep(50000);
        ck_assert_int_eq(glmd_get_info(watch, &now), 0);
        ck_assert_uint_lt(test_now_ms() - began, 15000);
    } while (now.slots_free == idle.slots_free);
    glmd_close(c);
    expect_idle(watch, &idle);
    ck_assert_uint_lt(test_now_ms() - began, 18000);
    glmd_close(watch);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

static int highest_descriptor(const struct daemonfix *f) {
    char path[64];
    struct dirent *e;
    int highest = 0;
    DIR *d;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)f->pid);
    d = opendir(path);
    ck_assert_ptr_nonnull(d);
    while ((e = readdir(d)))
        if (atoi(e->d_name) > highest)
            highest = atoi(e->d_name);
    closedir(d);
    return highest;
}

/* Connections that do nothing, until the daemon has descriptors above 1,023: the last is served like the
 * first. */
START_TEST(more_than_1023_descriptors) {
    enum { CONNS = 300 };
    static int held[CONNS];
    struct hello_msg h = raw_hello();
    struct rawclient first, last, c;
    struct glmw_entry e;
    struct daemonfix f;
    int before;

    start(&f, _i, 0, "[IPC]\nMaxConnections=400\n[Quota]\nMaxConnectionsPerUid=400\n");
    h.u.hello.sq_log2 = GLMW_SQ_LOG2_MIN;
    h.u.hello.tq_log2 = GLMW_TQ_LOG2_MIN;
    h.u.hello.pay_log2 = GLMW_PAY_LOG2_MIN;
    h.u.hello.txt_log2 = GLMW_TXT_LOG2_MIN;
    raw_open(&first, f.socket, &h);
    e = raw_request(&first, 1);
    e.max_tokens = 1;
    raw_submit(&first, &e);
    ck_assert_int_eq(raw_until_end(&first, 1, NULL), 0); /* the daemon has closed its copies by then */
    before = daemonfix_resources(&f);
    for (int i = 0; i < CONNS; i++) {
        raw_open(&c, f.socket, &h);
        held[i] = dup(c.fd);
        ck_assert_int_ge(held[i], 0);
        raw_close(&c); /* all but the socket, so that we need few ourselves */
    }
    raw_open(&last, f.socket, &h);
    ck_assert_int_gt(highest_descriptor(&f), 1023);
    for (uint64_t tag = 1; tag <= 3; tag++) {
        struct rawclient *both[] = {&first, &last};

        for (int i = 0; i < 2; i++) {
            uint32_t tokens;

            e = raw_request(both[i], tag);
            e.max_tokens = 7;
            raw_submit(both[i], &e);
            ck_assert_int_eq(raw_until_end(both[i], tag, &tokens), 0);
            ck_assert_uint_eq(tokens, 7);
        }
    }
    for (int i = 0; i < CONNS; i++)
        close(held[i]);
    raw_close(&last);
    daemonfix_expect_resources(&f, before);
    raw_close(&first);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_cancel");
    TCase *tc = tcase_create("cancel");
    SRunner *sr;
    int failed, loops = daemonfix_loops();

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, cancels_at_every_stage, 0, loops);
    tcase_add_loop_test(tc, a_storm_of_dead_prompts, 0, loops);
    tcase_add_loop_test(tc, closed_while_the_prompt_is_read, 0, loops);
    tcase_add_loop_test(tc, more_than_1023_descriptors, 0, loops);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
