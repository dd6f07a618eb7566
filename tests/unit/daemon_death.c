/* SPDX-License-Identifier: MIT */
/* Death on both sides of a connection, with a real daemon, on both event loops:
 *
 *     client exits or is killed        killed_clients_leave_nothing, kills_are_no_faults
 *     client forks, child keeps all    copies_of_the_socket_keep_the_connection,
 * children_of_a_program_do_no_harm client is stopped                stopped_too_long_gets_its_end,
 * stopped_for_a_moment_loses_nothing client breaks a rule             conn_hostile, conn_rules daemon dies
 * published_records_come_before_the_error daemon hangs                     a_hanging_daemon_is_news daemon is
 * started again          a_new_daemon_knows_nothing_of_the_old */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clconn.h"
#include "daemonfix.h"
#include "leakcheck.h"
#include "rawclient.h"

static struct answer a[8];

/* Prompts that begin with 7 have an end, all others go on for ever. */
static const char script[] =
    "vocab 5000\nstop 2\nstep-us 300\nloop\nrequest\ntokens 10 11 12 13 14 15 16\nrepeat\n"
    "request first 7\ntokens 20 21 22 23 24 2\n";

static void start(struct daemonfix *f, int loop, const char *conf) {
    daemonfix_init(f);
    snprintf(f->backend, sizeof f->backend, "%s", loop ? "uring" : "epoll");
    daemonfix_script(f, script);
    daemonfix_start(f, conf);
}

static void stop(struct daemonfix *f) {
    daemonfix_stop(f);
    daemonfix_done(f);
}

static glmd_req *endless(glmd_conn *c, uint64_t max_tokens) {
    static const uint32_t prompt[] = {5, 6};
    glmd_req *r = request_tokens(c, prompt, 2);

    if (max_tokens)
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, max_tokens), 0);
    return r;
}

static void expect_tokens(const struct answer *t) {
    for (uint32_t i = 0; i < t->n_tokens; i++)
        ck_assert_uint_eq(t->tokens[i], 10 + i % 7);
}

static void read_until_tokens(glmd_conn *c, struct answer *t, size_t n, uint32_t tokens) {
    struct glmd_event ev = {.size = sizeof ev};

    while (t->n_tokens < tokens) {
        ck_assert_int_ge(glmd_wait(c, 10000000000), 1);
        while (glmd_next(c, &ev) == 1)
            answer_take(t, n, &ev);
    }
}

static pid_t fork_child(void) {
    pid_t parent = getpid(), p = fork();

    ck_assert_int_ge(p, 0);
    if (p == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
    }
    return p;
}

static int end_of(pid_t p) {
    int status;

    ck_assert_int_eq(waitpid(p, &status, 0), p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- clients that die -----------------------------------------------------------------------------------
 */

enum point {
    CONNECTED,    /* nothing said */
    HELLO_SENT,   /* WELCOME is on its way, or not */
    WELCOMED,     /* nothing asked */
    ENTRY_FILLED, /* but not offered */
    TAIL_STORED,  /* without the bell */
    BELL_RUNG,
    ACCEPTED,
    IN_THE_STREAM,
    RING_FULL,  /* and its credit asked for */
    QUEUE_FULL, /* more requests than places, and more entries than are taken */
    CANCELLING,
    N_POINTS
};

/* Goes as far as `point` and some random time further, and is killed. */
static _Noreturn void die_at(const struct daemonfix *f, enum point point, unsigned seed) {
    struct hello_msg h = raw_hello();
    struct glmw_entry e;
    struct rawclient c;
    struct glmw_rec r;
    int fd;

    srand(seed);
    if (point == CONNECTED || point == HELLO_SENT) {
        fd = raw_socket(f->socket);
        if (point == HELLO_SENT)
            raw_send(fd, &h, NULL, 0);
        goto die;
    }
    h.u.hello.tq_log2 = 6;
    h.u.hello.sq_log2 = 4;
    raw_open(&c, f->socket, &h);
    e = raw_request(&c, 1);
    if (point == ENTRY_FILLED || point == TAIL_STORED)
        ck_assert_int_eq(glmw_put(&c.sq, &e), 0);
    if (point == TAIL_STORED)
        glmw_publish(&c.sq, true);
    if (point >= BELL_RUNG)
        raw_submit(&c, &e);
    for (int n = point == ACCEPTED ? 1 : point == IN_THE_STREAM ? 3 + rand() % 60 : 0; n > 0; n--) {
        struct glmw_entry nop = {.opcode = GLMW_OP_NOP};

        ck_assert(raw_record(&c, &r, 10000, false));
        glmw_refresh(&c.sq);
        if (!glmw_fetch32(&c.view.d->credit_wanted))
            continue;
        if (glmw_free_slots(&c.sq)) /* a slow daemon: earlier ones are still there */
            raw_submit(&c, &nop);
        else
            raw_bell(&c);
    }
    while (point == RING_FULL && !glmw_fetch32(&c.view.d->credit_wanted))
        usleep(500);
    if (point == QUEUE_FULL) {
        for (e.tag = 2; glmw_put(&c.sq, &e) == 0; e.tag++)
            continue;
        glmw_publish(&c.sq, true);
        raw_bell(&c);
    }
    if (point == CANCELLING) {
        e = (struct glmw_entry){.opcode = GLMW_OP_CANCEL_ALL};
        raw_submit(&c, &e);
    }
die:
    usleep((useconds_t)(rand() % 4000));
    kill(getpid(), SIGKILL);
    _exit(1);
}

/* At every point of a client's life, with random delays, while another client's stream goes on: everything it
 * had comes back, and dying is no breach of a rule. */
START_TEST(killed_clients_leave_nothing) {
    enum { ROUNDS = 5, TOKENS = 3000 };
    struct glmd_info idle = {.size = sizeof idle}, info = {.size = sizeof info};
    struct daemonfix f;
    glmd_conn *c;
    int before;

    start(&f, _i, NULL);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, a, endless(c, 3));
    answers_wait(c, a, 1, 10000);
    for (uint64_t until = test_now_ms() + 10000; idle.slots_free == 0 || idle.running; usleep(50000)) {
        ck_assert_uint_lt(test_now_ms(), until);
        ck_assert_int_eq(glmd_get_info(c, &idle), 0);
    }
    before = daemonfix_resources(&f);
    for (unsigned round = 0; round < ROUNDS; round++) {
        pid_t p[N_POINTS];

        answer_submit(c, a, endless(c, TOKENS / ROUNDS));
        for (int i = 0; i < N_POINTS; i++) {
            p[i] = fork_child();
            if (p[i] == 0)
                die_at(&f, (enum point)i, round * N_POINTS + (unsigned)i + 1);
        }
        answers_wait(c, a, 1, 30000);
        ck_assert_uint_eq(a[0].n_tokens, TOKENS / ROUNDS);
        ck_assert_uint_eq(a[0].reason, GLMD_REASON_LENGTH);
        expect_tokens(a);
        for (int i = 0; i < N_POINTS; i++)
            ck_assert_int_eq(end_of(p[i]), 128 + SIGKILL);
    }
    daemonfix_expect_resources(&f, before);
    /* the status block is renewed once a second */
    for (uint64_t until = test_now_ms() + 10000;; usleep(50000)) {
        ck_assert_int_eq(glmd_get_info(c, &info), 0);
        if (!info.running && !info.queued && info.connections == 1 && info.slots_free == idle.slots_free &&
            info.kv_tokens_free == idle.kv_tokens_free)
            break;
        ck_assert_msg(test_now_ms() < until, "%u running, %u queued, %u connections, %u of %u slots free",
                      info.running, info.queued, info.connections, info.slots_free, idle.slots_free);
    }
    ck_assert_ptr_null(strstr(daemonfix_log(&f), "refused"));
    ck_assert_ptr_null(strstr(daemonfix_log(&f), "<4>"));
    glmd_close(c);
    stop(&f);
}
END_TEST

/* The kernel closes the descriptors of a dead process in an order of its own: the pipe may be gone a moment
 * before the socket is. Ten such deaths are no reason to refuse the user. */
START_TEST(kills_are_no_faults) {
    struct daemonfix f;
    struct rawclient c;
    struct glmw_entry e;

    start(&f, _i, NULL);
    for (int k = 0; k < 12; k++) {
        raw_open(&c, f.socket, NULL);
        glmw_arm(&c.tq, 1);
        e = raw_request(&c, 1);
        close(c.fds[GLMW_FD_PIPE]);
        c.fds[GLMW_FD_PIPE] = dup(c.fd);
        raw_submit(&c, &e);
        ck_assert_int_eq(raw_expect_close(c.fd), -EPIPE);
        raw_close(&c);
    }
    raw_open(&c, f.socket, NULL);
    e = raw_request(&c, 1);
    e.max_tokens = 3;
    raw_submit(&c, &e);
    ck_assert_int_eq(raw_until_end(&c, 1, NULL), 0);
    raw_close(&c);
    daemonfix_expect_log(&f, "the read end of the notify pipe was closed");
    stop(&f);
}
END_TEST

/* ---- clients that fork ----------------------------------------------------------------------------------
 */

/* The client ends without a word, but a child holds copies of its descriptors: the stream goes on, the child
 * can even read it, and everything is given back when the child ends too. */
START_TEST(copies_of_the_socket_keep_the_connection) {
    struct daemonfix f;
    struct rawclient c;
    struct glmw_entry e;
    struct glmw_rec r;
    struct glmw_consumer was;
    int before, told[2];
    char byte = 0;
    pid_t p;

    start(&f, _i, NULL);
    ck_assert_int_eq(pipe(told), 0);
    before = daemonfix_resources(&f);
    raw_open(&c, f.socket, NULL);
    e = raw_request(&c, 1);
    e.max_tokens = 2000;
    raw_submit(&c, &e);
    for (int i = 0; i < 5; i++)
        ck_assert(raw_record(&c, &r, 10000, false));
    was = c.tq;
    p = fork_child();
    if (p == 0) {
        uint32_t seq = 5;

        if (read(told[0], &byte, 1) != 1)
            _exit(2);
        /* the regions are not inherited, the descriptors are */
        if (shm_view_map(&c.welcome, c.fds[GLMW_FD_U], c.fds[GLMW_FD_D], &c.view) < 0)
            _exit(3);
        shm_view_rings(&c.view, &c.sq, &c.tq);
        c.tq.head = was.head;
        c.tq.given = was.given;
        c.tq.tail = was.tail;
        do {
            if (!raw_record(&c, &r, 10000, false) || r.seq != seq++)
                _exit(4);
        } while (r.type != GLMW_REC_END);
        _exit(r.u.end.status == 0 ? 0 : 5);
    }
    raw_close(&c);
    usleep(100000);
    ck_assert_int_gt(daemonfix_resources(&f), before);
    ck_assert_int_eq(write(told[1], &byte, 1), 1);
    ck_assert_int_eq(end_of(p), 0);
    daemonfix_expect_resources(&f, before);
    close(told[0]);
    close(told[1]);
    stop(&f);
}
END_TEST

/* A program with a stream forks again and again; its children try the library and end. */
START_TEST(children_of_a_program_do_no_harm) {
    struct daemonfix f;
    glmd_conn *c;

    start(&f, _i, NULL);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, a, endless(c, 1500));
    for (uint32_t k = 0; k < 20; k++) {
        pid_t p;

        read_until_tokens(c, a, 1, 20 * (k + 1));
        p = fork_child();
        if (p == 0) {
            struct glmd_event ev = {.size = sizeof ev};
            int bad = 0;

            bad |= (glmd_next(c, &ev) != -ECHILD) << 0;
            bad |= (glmd_cancel(c, a[0].tag) != -ECHILD) << 1;
            bad |= (glmd_wait(c, 0) != -ECHILD) << 2;
            glmd_close(c);
            _exit(bad);
        }
        ck_assert_int_eq(end_of(p), 0);
    }
    answers_wait(c, a, 1, 30000);
    ck_assert_uint_eq(a[0].n_tokens, 1500);
    ck_assert_uint_eq(a[0].reason, GLMD_REASON_LENGTH);
    expect_tokens(a);
    glmd_close(c);
    stop(&f);
}
END_TEST

/* ---- clients that are stopped ---------------------------------------------------------------------------
 */

enum { SLOW_TOKENS = 1500 };

/* Reads a few tokens, says so, and goes on to the END, whatever happens to the process meanwhile. Exit
 * status: 0 complete, 1 timed out and served again afterwards, else a line's number. */
static _Noreturn void be_stopped(const struct daemonfix *f, int told) {
    struct glmd_options o = {.size = sizeof o, .records_log2 = 6};
    glmd_conn *c = daemonfix_connect(f, &o);
    int end;

    answer_submit(c, a, endless(c, SLOW_TOKENS));
    read_until_tokens(c, a, 1, 20);
    if (write(told, "x", 1) != 1)
        _exit(10);
    answers_wait(c, a, 1, 60000);
    expect_tokens(a);
    end = a[0].status == 0 && a[0].n_tokens == SLOW_TOKENS                ? 0
          : a[0].status == -ETIMEDOUT && a[0].reason == GLMD_REASON_ERROR ? 1
                                                                          : 11;
    if (!a[0].accepted || (end == 1 && !strstr(a[0].error, "nobody read")))
        _exit(12);
    answer_submit(c, a, endless(c, 30));
    answers_wait(c, a, 1, 60000);
    if (a[0].status != 0 || a[0].n_tokens != 30)
        _exit(13);
    glmd_close(c);
    _exit(end);
}

static pid_t stop_a_client(struct daemonfix *f) {
    int told[2];
    char byte;
    pid_t p;

    ck_assert_int_eq(pipe(told), 0);
    p = fork_child();
    if (p == 0)
        be_stopped(f, told[1]);
    close(told[1]);
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    close(told[0]);
    ck_assert_int_eq(kill(p, SIGSTOP), 0);
    return p;
}

START_TEST(stopped_too_long_gets_its_end) {
    struct daemonfix f;
    glmd_conn *c;
    pid_t p;

    start(&f, _i, "[IPC]\nStallTimeoutSec=1\n");
    p = stop_a_client(&f);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[1], endless(c, 2000));
    answers_wait(c, &a[1], 1, 60000);
    ck_assert_uint_eq(a[1].n_tokens, 2000);
    expect_tokens(&a[1]);
    daemonfix_expect_log(&f, "the client does not read its answers");
    ck_assert_int_eq(kill(p, SIGCONT), 0);
    ck_assert_int_eq(end_of(p), 1);
    glmd_close(c);
    stop(&f);
}
END_TEST

START_TEST(stopped_for_a_moment_loses_nothing) {
    struct daemonfix f;
    glmd_conn *c;
    pid_t p;

    start(&f, _i, NULL);
    p = stop_a_client(&f);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[1], endless(c, 1000)); /* its stream is full long before these are through */
    answers_wait(c, &a[1], 1, 60000);
    ck_assert_uint_eq(a[1].n_tokens, 1000);
    expect_tokens(&a[1]);
    ck_assert_int_eq(kill(p, SIGCONT), 0);
    ck_assert_int_eq(end_of(p), 0);
    glmd_close(c);
    stop(&f);
}
END_TEST

/* ---- daemons that die, hang and come back ---------------------------------------------------------------
 */

/* Two connections with three requests each; the daemon is killed a random time later. Every record it had
 * published is delivered, in order; then each live tag ends once, with -EPIPE; the error stays. */
START_TEST(published_records_come_before_the_error) {
    static const uint32_t short_prompt[] = {7, 8};
    struct daemonfix f;
    glmd_conn *c[2];
    uint64_t tag;
    uint32_t lost = 0;

    for (unsigned seed = 0; seed < 8; seed++) {
        start(&f, _i % 2, _i / 2 ? "[IPC]\nInlineConnections=0\n" : NULL);
        srand(seed * 4 + (unsigned)_i + 1);
        for (int k = 0; k < 2; k++) {
            c[k] = daemonfix_connect(&f, NULL);
            answer_submit(c[k], &a[3 * k], endless(c[k], 0));
            answer_submit(c[k], &a[3 * k + 1], request_tokens(c[k], short_prompt, 2));
            answer_submit(c[k], &a[3 * k + 2], endless(c[k], 0));
        }
        if (seed)
            read_until_tokens(c[0], a, 3, (uint32_t)(rand() % 60));
        usleep((useconds_t)(rand() % 10000));
        kill(f.pid, SIGKILL);
        ck_assert_int_eq(daemonfix_wait(&f, 10000), 128 + SIGKILL);
        for (int k = 0; k < 2; k++) {
            struct glmd_event ev = {.size = sizeof ev};
            struct answer *t = &a[3 * k];
            glmd_req *r;
            int ret;

            ck_assert_int_ge(glmd_wait(c[k], 10000000000), 0);
            while ((ret = glmd_next(c[k], &ev)) >= 0)
                if (ret == 1)
                    answer_take(t, 3, &ev); /* fails on anything after an END */
                else
                    glmd_wait(c[k], 10000000000);
            ck_assert_int_eq(ret, -EPIPE);
            ck_assert_uint_eq(c[k]->tq.head, glmw_fetch32(&c[k]->d->tq_tail)); /* all of it */
            for (int i = 0; i < 3; i++) {
                ck_assert_msg(t[i].ended, "no END for tag %llu", (unsigned long long)t[i].tag);
                ck_assert(t[i].status == -EPIPE || (i == 1 && t[i].status == 0 && t[i].n_tokens == 5));
                lost += t[i].status == -EPIPE;
            }
            expect_tokens(&t[0]);
            expect_tokens(&t[2]);
            ck_assert_int_eq(glmd_next(c[k], &ev), -EPIPE);
            ck_assert_int_eq(glmd_get_error(c[k], NULL), -EPIPE);
            r = endless(c[k], 0);
            ck_assert_int_eq(glmd_submit(c[k], r, &tag), -EPIPE);
            glmd_req_free(r);
            glmd_close(c[k]);
        }
        daemonfix_done(&f);
    }
    ck_assert_uint_ge(lost, 8 * 4);
}
END_TEST

static uint32_t wait_for_notice(glmd_conn *c, struct answer *t) {
    uint64_t until = test_now_ms() + 30000;
    struct glmd_event ev = {.size = sizeof ev};

    for (;;) {
        while (glmd_next(c, &ev) == 1) {
            if (ev.type == GLMD_EV_NOTICE && ev.reason >= GLMD_NOTICE_HANG)
                return ev.reason;
            answer_take(t, 1, &ev);
        }
        ck_assert_uint_lt(test_now_ms(), until);
        ck_assert_int_ge(glmd_wait(c, 1000000000), 0);
    }
}

/* One daemon of each loop, stopped at the same time: five seconds without a heartbeat and two without an
 * answer have to pass. */
START_TEST(a_hanging_daemon_is_news) {
    struct daemonfix f[2];
    glmd_conn *c[2];
    int n = daemonfix_loops();

    for (int i = 0; i < n; i++) {
        start(&f[i], i, NULL);
        c[i] = daemonfix_connect(&f[i], NULL);
        answer_submit(c[i], &a[i], endless(c[i], 3000));
        read_until_tokens(c[i], &a[i], 1, 10);
        kill(f[i].pid, SIGSTOP);
    }
    for (int i = 0; i < n; i++)
        ck_assert_uint_eq(wait_for_notice(c[i], &a[i]), GLMD_NOTICE_HANG);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(glmd_get_error(c[i], NULL), 0);
        kill(f[i].pid, SIGCONT);
        ck_assert_uint_eq(wait_for_notice(c[i], &a[i]), GLMD_NOTICE_ALIVE);
        answers_wait(c[i], &a[i], 1, 60000);
        ck_assert_int_eq(a[i].status, 0);
        ck_assert_uint_eq(a[i].n_tokens, 3000);
        expect_tokens(&a[i]);
        glmd_close(c[i]);
        stop(&f[i]);
    }
}
END_TEST

/* The same socket, another daemon: told apart by its generation. Tags of the old one mean nothing to it. */
START_TEST(a_new_daemon_knows_nothing_of_the_old) {
    struct glmd_info first = {.size = sizeof first}, second = {.size = sizeof second};
    struct glmd_event ev = {.size = sizeof ev};
    struct daemonfix f;
    glmd_conn *old, *c;
    int r;

    start(&f, _i, NULL);
    old = daemonfix_connect(&f, NULL);
    ck_assert_int_eq(glmd_get_info(old, &first), 0);
    answer_submit(old, a, endless(old, 0));
    read_until_tokens(old, a, 1, 5);
    kill(f.pid, SIGKILL);
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 128 + SIGKILL);
    for (int k = 0; k < 6; k++) { /* as fast as a service manager would */
        ck_assert_int_eq(unlink(f.log), 0);
        daemonfix_start(&f, NULL);
        c = daemonfix_connect(&f, NULL);
        if (k == 5)
            break;
        kill(f.pid, SIGKILL);
        ck_assert_int_eq(daemonfix_wait(&f, 10000), 128 + SIGKILL);
        glmd_close(c);
    }
    ck_assert_int_eq(glmd_get_info(c, &second), 0);
    ck_assert_uint_ne(first.generation, 0);
    ck_assert_uint_ne(second.generation, 0);
    ck_assert_uint_ne(first.generation, second.generation);
    answer_submit(c, &a[1], endless(c, 500));
    ck_assert_int_eq(glmd_cancel(c, a[0].tag ^ (UINT64_C(1) << 40)), 0);
    while ((r = glmd_next(old, &ev)) >= 0)
        if (r == 1)
            answer_take(a, 1, &ev);
        else
            glmd_wait(old, 10000000000);
    ck_assert_int_eq(r, -EPIPE);
    ck_assert(a[0].ended);
    ck_assert_int_eq(a[0].status, -EPIPE);
    answers_wait(c, &a[1], 1, 30000);
    ck_assert_int_eq(a[1].status, 0);
    ck_assert_uint_eq(a[1].n_tokens, 500);
    glmd_close(old);
    glmd_close(c);
    stop(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_death");
    TCase *tc = tcase_create("death");
    SRunner *sr;
    int failed, loops = daemonfix_loops();

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, killed_clients_leave_nothing, 0, loops);
    tcase_add_loop_test(tc, kills_are_no_faults, 0, loops);
    tcase_add_loop_test(tc, copies_of_the_socket_keep_the_connection, 0, loops);
    tcase_add_loop_test(tc, children_of_a_program_do_no_harm, 0, loops);
    tcase_add_loop_test(tc, stopped_too_long_gets_its_end, 0, loops);
    tcase_add_loop_test(tc, stopped_for_a_moment_loses_nothing, 0, loops);
    tcase_add_loop_test(tc, published_records_come_before_the_error, 0, loops == 2 ? 4 : 1);
    tcase_add_test(tc, a_hanging_daemon_is_news);
    tcase_add_loop_test(tc, a_new_daemon_knows_nothing_of_the_old, 0, loops);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
