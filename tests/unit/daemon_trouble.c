/* SPDX-License-Identifier: MIT */
/* Trouble around a real daemon: clients that stop reading, standard descriptors that are missing, a socket
 * that somebody replaced, and users that are to be forgotten. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "conn_impl.h"
#include "daemonfix.h"
#include "leakcheck.h"
#include "rawclient.h"
#include "runprog.h"

static const char endless[] = "vocab 100\nstop 2\nstep-us 500\nloop\nrequest\ntokens 10 11 12\nrepeat\n";

static void start(struct daemonfix *f, int loop, const char *conf) {
    daemonfix_init(f);
    snprintf(f->backend, sizeof f->backend, "%s", loop ? "uring" : "epoll");
    daemonfix_script(f, endless);
    daemonfix_start(f, conf);
}

static struct rawclient small_client(const struct daemonfix *f) {
    struct hello_msg h = raw_hello();
    struct rawclient c;

    h.u.hello.tq_log2 = 6;
    raw_open(&c, f->socket, &h);
    return c;
}

static void expect_text(struct rawclient *c, const struct glmw_rec *r, const char *want) {
    char text[GLMW_SPAN_MAX + 1] = "";

    if (r->flags & GLMW_RF_INLINE)
        memcpy(text, r->u.text, r->text_len);
    else
        memcpy(text, (const char *)c->view.d + c->welcome.txt_off + r->text_off, r->text_len);
    ck_assert_msg(strstr(text, want) != NULL, "%s", text);
}

/* One place in the batch, and the client that has it does not read: it loses the place, in words; a slow
 * reader keeps it; another client waits no longer than the stall time. */
START_TEST(stopped_client_loses_its_place) {
    struct rawclient stopped, other;
    struct daemonfix f;
    struct glmw_entry e;
    struct glmw_rec r;
    uint32_t tokens, seq = 0;
    bool told = false;

    start(&f, _i, "MaxSequences=1\n[IPC]\nStallTimeoutSec=2\n");
    stopped = small_client(&f);
    raw_open(&other, f.socket, NULL);
    e = raw_request(&stopped, 1);
    raw_submit(&stopped, &e);
    for (int i = 0; i < 40; i++) { /* four seconds, now and then a record: slow is not stopped */
        struct glmw_entry nop = {.opcode = GLMW_OP_NOP};

        ck_assert(raw_record(&stopped, &r, 5000, false));
        ck_assert_uint_eq(r.seq, seq++);
        ck_assert_uint_ne(r.type, GLMW_REC_END);
        if (glmw_fetch32(&stopped.view.d->credit_wanted))
            raw_submit(&stopped, &nop);
        usleep(100000);
    }
    e = raw_request(&other, 7);
    e.max_tokens = 3;
    raw_submit(&other, &e);
    ck_assert_int_eq(raw_until_end(&other, 7, &tokens), 0);
    ck_assert_uint_eq(tokens, 3);
    daemonfix_expect_log(&f, "the client does not read its answers");
    do {
        ck_assert(raw_record(&stopped, &r, 5000, true));
        ck_assert_uint_eq(r.seq, seq++);
        if (r.type == GLMW_REC_ERROR) {
            ck_assert_int_eq((int32_t)r.token, -ETIMEDOUT);
            expect_text(&stopped, &r, "nobody read the answer");
            told = true;
        }
        glmw_give_back(&stopped.tq, &stopped.view.d->credit_wanted);
    } while (r.type != GLMW_REC_END);
    ck_assert(told);
    ck_assert_int_eq(r.u.end.status, -ETIMEDOUT);
    e = raw_request(&stopped, 1); /* and is as welcome as before */
    e.max_tokens = 3;
    raw_submit(&stopped, &e);
    ck_assert_int_eq(raw_until_end(&stopped, 1, &tokens), 0);
    raw_close(&stopped);
    raw_close(&other);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* The ring runs full and the client reads it again; how long until it is full once more, by what the client
 * sends when its credit is asked for. */
static uint64_t refill_us(struct rawclient *c, uint32_t kind) {
    const struct glmw_entry nop = {.opcode = GLMW_OP_NOP}, other = {.opcode = GLMW_OP_CANCEL, .tag = 999};
    uint64_t began = clock_now_ns();

    for (;;) {
        struct glmw_rec r;
        int n;

        usleep(2000);
        ck_assert_uint_lt(clock_now_ns() - began, 60000000000u);
        n = glmw_peek(&c->tq);
        ck_assert_int_ge(n, 0);
        if (n < 32 || !__atomic_load_n(&c->view.d->credit_wanted, __ATOMIC_RELAXED))
            continue; /* not full yet, or what was sent is not seen yet */
        while (n-- > 0)
            glmw_take(&c->tq, &r);
        ck_assert(glmw_give_back(&c->tq, &c->view.d->credit_wanted));
        if (kind < 2)
            raw_submit(c, kind ? &other : &nop);
        else
            raw_bell(c);
        return (clock_now_ns() - began) / 1000;
    }
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* A stream that waits for room goes on with whatever the client sends next, be it no NOP; no timer of 100 ms
 * has to find it. Compared with NOPs in the same run, so that a busy machine slows both. */
START_TEST(any_entry_gives_credit) {
    enum { KINDS = 3, ROUNDS = 15 };
    uint64_t us[KINDS][ROUNDS];
    struct daemonfix f;
    struct rawclient c;
    struct glmw_entry e;
    struct glmw_status st;

    start(&f, _i, NULL);
    c = small_client(&f);
    e = raw_request(&c, 1);
    raw_submit(&c, &e);
    refill_us(&c, 0);
    /* a time says how long what was sent before it took to work */
    for (uint32_t i = 0, kind = 0; i < KINDS * ROUNDS; i++) {
        uint32_t next = (i + 1) % KINDS;

        us[kind][i / KINDS] = refill_us(&c, next);
        kind = next;
    }
    for (uint32_t i = 0; i < KINDS; i++)
        qsort(us[i], ROUNDS, sizeof us[i][0], by_size);
    for (uint32_t i = 1; i < KINDS; i++)
        ck_assert_msg(us[i][ROUNDS / 2] < us[0][ROUNDS / 2] * 8 / 5, "%s: %llu us, a NOP: %llu us",
                      i == 1 ? "another entry" : "the bell alone", (unsigned long long)us[i][ROUNDS / 2],
                      (unsigned long long)us[0][ROUNDS / 2]);
    ck_assert_int_eq(glmw_status_read(&c.view.d->status, &st), 0);
    ck_assert_uint_eq(st.my_safety_wakes, 0);
    raw_close(&c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(standard_descriptors_are_missing) {
    struct daemonfix f;
    struct rawclient c;
    struct glmw_entry e;
    char path[64], to[64];

    daemonfix_init(&f);
    snprintf(f.backend, sizeof f.backend, "%s", _i ? "uring" : "epoll");
    daemonfix_script(&f, endless);
    f.no_stdio = true;
    daemonfix_spawn(&f, NULL);
    for (int i = 0; i < 10000 && access(f.socket, F_OK) != 0; i++)
        usleep(1000);
    usleep(20000); /* the name exists a moment before somebody listens */
    raw_open(&c, f.socket, NULL);
    for (int i = 0; i < 3; i++) {
        ssize_t n;

        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)f.pid, i);
        n = readlink(path, to, sizeof to - 1);
        ck_assert_int_gt(n, 0);
        to[n] = 0;
        ck_assert_str_eq(to, "/dev/null");
    }
    e = raw_request(&c, 1);
    e.max_tokens = 3;
    raw_submit(&c, &e);
    ck_assert_int_eq(raw_until_end(&c, 1, NULL), 0);
    raw_close(&c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* Somebody cleaned up the directory of a running daemon, and another daemon was started: the first must not
 * take the socket of the second with it. */
START_TEST(replaced_socket_is_left_alone) {
    struct daemonfix f, g;
    struct rawclient c;
    char lock[128];

    start(&f, _i, NULL);
    snprintf(lock, sizeof lock, "%s.lock", f.socket);
    ck_assert_int_eq(unlink(f.socket), 0);
    ck_assert_int_eq(unlink(lock), 0);
    g = f;
    snprintf(g.log, sizeof g.log, "%s/log2", f.dir);
    daemonfix_start(&g, NULL);
    daemonfix_stop(&f);
    raw_open(&c, g.socket, NULL);
    raw_close(&c);
    daemonfix_stop(&g);
    ck_assert_int_ne(access(g.socket, F_OK), 0);
    daemonfix_done(&g);
}
END_TEST

/* A client that tries all the time while daemons come and go finds no socket or a listener, never a socket
 * that refuses. */
START_TEST(the_name_appears_with_the_listener) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct daemonfix f;

    daemonfix_init(&f);
    snprintf(f.backend, sizeof f.backend, "epoll");
    daemonfix_script(&f, endless);
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s", f.socket);
    for (int round = 0; round < 10; round++) {
        int fd, r;

        daemonfix_spawn(&f, NULL);
        do {
            fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
            ck_assert_int_ge(fd, 0);
            r = connect(fd, (const struct sockaddr *)&sa, sizeof sa) < 0 ? errno : 0;
            close(fd);
            ck_assert_msg(r == 0 || r == ENOENT, "connect: %s", strerror(r));
        } while (r);
        daemonfix_stop(&f);
    }
    daemonfix_done(&f);
}
END_TEST

START_TEST(stray_words_are_named) {
    static const char *const argv[] = {TEST_BUILD "/test/glmd", "build/models/nano", NULL};
    struct runprog p;

    ck_assert_int_eq(runprog(&p, argv, NULL, false, NULL), 2);
    ck_assert_msg(strstr(p.err_text, "unexpected argument \"build/models/nano\"") != NULL, "%s", p.err_text);
}
END_TEST

/* Somebody appends an option to a line that has it already: neither wins. */
START_TEST(options_given_twice) {
    static const char *const twice[][2] = {{"--socket", "/tmp/x"}, {"--model", "script:x"},
                                           {"--config", "/tmp/x"}, {"--io-backend", "epoll"},
                                           {"--threads", "1"},     {"--log-level", "debug"}};
    char want[80];
    struct runprog p;

    for (size_t i = 0; i < sizeof twice / sizeof twice[0]; i++) {
        const char *const argv[] = {
            TEST_BUILD "/test/glmd", twice[i][0], twice[i][1], twice[i][0], twice[i][1], NULL};

        ck_assert_int_eq(runprog(&p, argv, NULL, false, NULL), 2);
        snprintf(want, sizeof want, "glmd: option %s is there twice; give it once", twice[i][0]);
        ck_assert_msg(strstr(p.err_text, want) != NULL, "%s", p.err_text);
    }
}
END_TEST

START_TEST(users_are_forgotten) {
    struct server s = {0};
    uint64_t now = clock_now_ns();
    struct user *u;

    for (uint32_t uid = 1; uid <= 1000; uid++)
        ck_assert_ptr_nonnull(user_get(&s, uid));
    user_get(&s, 5)->connections = 1;
    user_get(&s, 6)->refused_until_ns = now + 60 * CLOCK_NS_PER_SEC;
    u = user_get(&s, 7);
    u->faults = 1;
    u->faults_since_ns = now;
    user_get(&s, 8)->rate.since_ns = now;
    users_sweep(&s);
    for (uint32_t want = 8; want >= 5; want--) {
        ck_assert_ptr_nonnull(s.users);
        ck_assert_uint_eq(s.users->uid, want);
        u = s.users;
        s.users = u->next;
        free(u);
    }
    ck_assert_ptr_null(s.users);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_trouble");
    TCase *tc = tcase_create("trouble");
    SRunner *sr;
    int failed, loops = daemonfix_loops();

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, stopped_client_loses_its_place, 0, loops);
    tcase_add_loop_test(tc, any_entry_gives_credit, 0, loops);
    tcase_add_loop_test(tc, standard_descriptors_are_missing, 0, loops);
    tcase_add_loop_test(tc, replaced_socket_is_left_alone, 0, loops);
    tcase_add_test(tc, the_name_appears_with_the_listener);
    tcase_add_test(tc, options_given_twice);
    tcase_add_test(tc, stray_words_are_named);
    tcase_add_test(tc, users_are_forgotten);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
