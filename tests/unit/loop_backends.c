/* SPDX-License-Identifier: MIT */
/* Both event loops under the same tests: readiness, edges of a bell that is never read, accept, timers,
 * pause, removal inside callbacks, kicks from another thread. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "daemonfix.h"
#include "leakcheck.h"
#include "loop.h"

static const enum loop_want wants[] = {LOOP_EPOLL, LOOP_URING};
static const char *const names[] = {"epoll", "uring"};

static struct loop *open_loop(int i) {
    struct loop *l;
    int why = 1, r = loop_new(wants[i], &l, &why);

    ck_assert_msg(r == 0, "loop %s: %s", names[i], strerror(-r));
    ck_assert_int_eq(why, 0);
    ck_assert_str_eq(loop_name(l), names[i]);
    return l;
}

struct seen {
    struct loop *l;
    struct loop_source *s;
    int fd, n, hups, stop_after;
    char text[64];
    size_t len;
};

static void on_pipe(void *ctx, unsigned ev) {
    struct seen *x = ctx;
    ssize_t r;

    x->n++;
    if (ev & LOOP_HUP)
        x->hups++;
    while ((r = read(x->fd, x->text + x->len, sizeof x->text - x->len)) > 0)
        x->len += (size_t)r;
    if (x->n == x->stop_after || (r == 0 && ev & LOOP_HUP))
        loop_stop(x->l);
}

static void never(void *ctx) {
    (void)ctx;
    ck_abort_msg("the loop did not stop in time");
}

static struct loop_timer *guard(struct loop *l) {
    struct loop_timer *t;

    ck_assert_int_eq(loop_timer_new(l, never, NULL, &t), 0);
    loop_timer_set(t, clock_now_ns() + 5 * CLOCK_NS_PER_SEC);
    return t;
}

START_TEST(pipe_in_and_hup) {
    struct seen x = {.l = open_loop(_i), .stop_after = 1};
    int p[2];

    guard(x.l);
    ck_assert_int_eq(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    x.fd = p[0];
    ck_assert_int_eq(write(p[1], "ab", 2), 2); /* ready before it is added */
    ck_assert_int_eq(loop_add(x.l, p[0], on_pipe, &x, &x.s), 0);
    ck_assert_int_eq(loop_run(x.l), 0);
    ck_assert_uint_eq(x.len, 2);
    x.stop_after = 0;
    ck_assert_int_eq(write(p[1], "cd", 2), 2);
    close(p[1]);
    ck_assert_int_eq(loop_run(x.l), 0);
    ck_assert_int_eq(memcmp(x.text, "abcd", 4), 0);
    ck_assert_int_ge(x.hups, 1);
    loop_del(x.l, x.s);
    close(p[0]);
    loop_free(x.l);
}
END_TEST

static void on_bell(void *ctx, unsigned ev) {
    struct seen *x = ctx;

    ck_assert_uint_eq(ev, LOOP_IN);
    x->n++;
    loop_stop(x->l);
}

/* Every write is a new edge although the counter is never read. */
START_TEST(bell_is_never_read) {
    struct seen x = {.l = open_loop(_i)};
    uint64_t one = 1;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    guard(x.l);
    ck_assert_int_eq(loop_add(x.l, fd, on_bell, &x, &x.s), 0);
    for (int k = 1; k <= 50; k++) {
        ck_assert_int_eq(write(fd, &one, 8), 8);
        ck_assert_int_eq(loop_run(x.l), 0);
        ck_assert_int_eq(x.n, k);
    }
    loop_del(x.l, x.s);
    close(fd);
    loop_free(x.l);
}
END_TEST

struct accepted {
    struct loop *l;
    int n, fds[32];
};

static void on_accept(void *ctx, int res) {
    struct accepted *x = ctx;

    ck_assert_int_ge(res, 0);
    ck_assert(fcntl(res, F_GETFL) & O_NONBLOCK);
    ck_assert(fcntl(res, F_GETFD) & FD_CLOEXEC);
    x->fds[x->n++] = res;
    if (x->n == 20)
        loop_stop(x->l);
}

START_TEST(accept_many) {
    struct accepted x = {.l = open_loop(_i)};
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(sa_family_t);
    struct loop_source *s;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), client[20];

    guard(x.l);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&sa, len), 0); /* a name of the kernel's choice */
    len = sizeof sa;
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    ck_assert_int_eq(listen(fd, 32), 0);
    ck_assert_int_eq(loop_add_accept(x.l, fd, on_accept, &x, &s), 0);
    for (int k = 0; k < 20; k++) {
        client[k] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(connect(client[k], (struct sockaddr *)&sa, len), 0);
    }
    ck_assert_int_eq(loop_run(x.l), 0);
    for (int k = 0; k < 20; k++) {
        close(client[k]);
        close(x.fds[k]);
    }
    loop_del(x.l, s);
    close(fd);
    loop_free(x.l);
}
END_TEST

static int order[8], n_order;
static struct loop *timer_loop;
static struct loop_timer *timers[3];

static void on_timer0(void *ctx) {
    (void)ctx;
    order[n_order++] = 0;
    loop_timer_set(timers[2], 0); /* switched off before it fires */
}

static void on_timer1(void *ctx) {
    (void)ctx;
    order[n_order++] = 1;
    if (n_order == 4)
        loop_stop(timer_loop);
    else
        loop_timer_set(timers[1], clock_now_ns() + 5 * CLOCK_NS_PER_MS);
}

static void on_timer2(void *ctx) {
    (void)ctx;
    order[n_order++] = 2;
}

START_TEST(timers_fire_in_time) {
    uint64_t begin = clock_now_ns();

    n_order = 0;
    timer_loop = open_loop(_i);
    guard(timer_loop);
    ck_assert_int_eq(loop_timer_new(timer_loop, on_timer0, NULL, &timers[0]), 0);
    ck_assert_int_eq(loop_timer_new(timer_loop, on_timer1, NULL, &timers[1]), 0);
    ck_assert_int_eq(loop_timer_new(timer_loop, on_timer2, NULL, &timers[2]), 0);
    loop_timer_set(timers[0], begin + 5 * CLOCK_NS_PER_MS);
    loop_timer_set(timers[1], begin + 40 * CLOCK_NS_PER_MS);
    loop_timer_set(timers[2], begin + 30 * CLOCK_NS_PER_MS);
    ck_assert_int_eq(loop_run(timer_loop), 0);
    ck_assert_uint_ge(clock_now_ns() - begin, 50 * CLOCK_NS_PER_MS);
    ck_assert_int_eq(order[0], 0);
    for (int k = 1; k < 4; k++)
        ck_assert_int_eq(order[k], 1);
    loop_timer_free(timer_loop, timers[2]);
    loop_free(timer_loop);
}
END_TEST

/* A paused source is silent; resuming tells what arrived meanwhile. */
START_TEST(pause_and_resume) {
    struct seen x = {.l = open_loop(_i)};
    struct loop_timer *t;
    uint64_t one = 1;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    guard(x.l);
    ck_assert_int_eq(loop_timer_new(x.l, (loop_fn)loop_stop, x.l, &t), 0);
    ck_assert_int_eq(loop_add(x.l, fd, on_bell, &x, &x.s), 0);
    for (int k = 0; k < 10; k++) {
        ck_assert_int_eq(loop_pause(x.l, x.s, true), 0);
        ck_assert_int_eq(write(fd, &one, 8), 8);
        loop_timer_set(t, clock_now_ns() + 2 * CLOCK_NS_PER_MS);
        ck_assert_int_eq(loop_run(x.l), 0);
        ck_assert_int_eq(x.n, k);
        ck_assert_int_eq(loop_pause(x.l, x.s, false), 0);
        loop_timer_set(t, 0);
        ck_assert_int_eq(loop_run(x.l), 0);
        ck_assert_int_eq(x.n, k + 1);
    }
    /* paused and resumed without a turn in between */
    ck_assert_int_eq(loop_pause(x.l, x.s, true), 0);
    ck_assert_int_eq(loop_pause(x.l, x.s, false), 0);
    ck_assert_int_eq(write(fd, &one, 8), 8);
    ck_assert_int_eq(loop_run(x.l), 0);
    loop_del(x.l, x.s);
    close(fd);
    loop_free(x.l);
}
END_TEST

struct pair {
    struct loop *l;
    struct loop_source *a, *b;
    int n;
};

static void on_either(void *ctx, unsigned ev) {
    struct pair *x = ctx;

    (void)ev;
    x->n++;
    loop_del(x->l, x->a);
    loop_del(x->l, x->b);
    x->a = x->b = NULL;
    loop_stop(x->l);
}

/* Of two sources that are ready together the first removes both: the second must not run. */
START_TEST(removal_inside_a_callback) {
    struct loop *l = open_loop(_i);
    uint64_t one = 1;

    guard(l);
    for (int k = 0; k < 20; k++) {
        struct pair x = {.l = l};
        int a = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK), b = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);

        ck_assert_int_eq(loop_add(l, a, on_either, &x, &x.a), 0);
        ck_assert_int_eq(loop_add(l, b, on_either, &x, &x.b), 0);
        ck_assert_int_eq(loop_run(l), 0);
        ck_assert_int_eq(x.n, 1);
        ck_assert_int_eq(write(b, &one, 8), 8);
        close(a);
        close(b);
    }
    loop_free(l);
}
END_TEST

/* The peer of a removed descriptor sees the end as soon as it is closed, although the loop takes no turn. */
START_TEST(removed_socket_is_really_closed) {
    struct seen x = {.l = open_loop(_i)};
    int s[2];
    char byte;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, s), 0);
    x.fd = s[0];
    ck_assert_int_eq(loop_add(x.l, s[0], on_pipe, &x, &x.s), 0);
    loop_kick(x.l);
    loop_set_turn(x.l, NULL, NULL);
    loop_del(x.l, x.s);
    close(s[0]);
    for (int k = 0; k < 200 && read(s[1], &byte, 1) < 0; k++) {
        ck_assert_int_eq(errno, EAGAIN);
        usleep(1000);
    }
    ck_assert_int_eq(read(s[1], &byte, 1), 0);
    close(s[1]);
    loop_free(x.l);
}
END_TEST

static _Atomic int kicks_left;
static int turns;

static bool on_turn(void *ctx) {
    turns++;
    if (kicks_left == 0)
        loop_stop(ctx);
    return false;
}

static void *kicker(void *ctx) {
    for (int k = 0; k < 20000; k++)
        loop_kick(ctx);
    kicks_left = 0;
    loop_kick(ctx);
    return NULL;
}

START_TEST(kicks_from_another_thread) {
    struct loop *l = open_loop(_i);
    pthread_t t;

    guard(l);
    kicks_left = 1;
    loop_set_turn(l, on_turn, l);
    ck_assert_int_eq(pthread_create(&t, NULL, kicker, l), 0);
    ck_assert_int_eq(loop_run(l), 0);
    pthread_join(t, NULL);
    ck_assert_int_gt(turns, 0);
    loop_free(l);
}
END_TEST

static void on_signal(void *ctx, unsigned ev) {
    struct seen *x = ctx;
    struct signalfd_siginfo si;

    (void)ev;
    while (read(x->fd, &si, sizeof si) == (ssize_t)sizeof si)
        x->n++;
    loop_stop(x->l);
}

START_TEST(signals_arrive) {
    struct seen x = {.l = open_loop(_i)};
    sigset_t set;

    guard(x.l);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    x.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    ck_assert_int_eq(loop_add(x.l, x.fd, on_signal, &x, &x.s), 0);
    for (int k = 1; k <= 5; k++) {
        kill(getpid(), SIGUSR1);
        ck_assert_int_eq(loop_run(x.l), 0);
        ck_assert_int_eq(x.n, k);
    }
    loop_del(x.l, x.s);
    close(x.fd);
    loop_free(x.l);
}
END_TEST

START_TEST(auto_takes_one_and_says_why) {
    struct loop *l;
    int why = 1;

    ck_assert_int_eq(loop_new(LOOP_AUTO, &l, &why), 0);
    ck_assert(why == 0 ? strcmp(loop_name(l), "uring") == 0 : strcmp(loop_name(l), "epoll") == 0);
    ck_assert_int_le(why, 0);
    loop_free(l);
}
END_TEST

/* The kernel's answer of a container profile that forbids io_uring. */
START_TEST(auto_falls_back) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = 4, .filter = code};
    struct loop *l;
    int why = 0;

    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), 0);
    ck_assert_int_eq(loop_new(LOOP_URING, &l, &why), -EPERM);
    ck_assert_int_eq(loop_new(LOOP_AUTO, &l, &why), 0);
    ck_assert_int_eq(why, -EPERM);
    ck_assert_str_eq(loop_name(l), "epoll");
    loop_free(l);
}
END_TEST

int main(void) {
    Suite *s = suite_create("loop_backends");
    TCase *tc = tcase_create("loop");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, pipe_in_and_hup, 0, daemonfix_loops());
    tcase_add_loop_test(tc, bell_is_never_read, 0, daemonfix_loops());
    tcase_add_loop_test(tc, accept_many, 0, daemonfix_loops());
    tcase_add_loop_test(tc, timers_fire_in_time, 0, daemonfix_loops());
    tcase_add_loop_test(tc, pause_and_resume, 0, daemonfix_loops());
    tcase_add_loop_test(tc, removal_inside_a_callback, 0, daemonfix_loops());
    tcase_add_loop_test(tc, removed_socket_is_really_closed, 0, daemonfix_loops());
    tcase_add_loop_test(tc, kicks_from_another_thread, 0, daemonfix_loops());
    tcase_add_loop_test(tc, signals_arrive, 0, daemonfix_loops());
    tcase_add_test(tc, auto_takes_one_and_says_why);
    if (daemonfix_loops() == 2) /* emulators do not filter system calls */
        tcase_add_test(tc, auto_falls_back);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
