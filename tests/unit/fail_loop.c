/* SPDX-License-Identifier: MIT */
/* The loop on io_uring when its submission queue is full and the kernel takes nothing: adding is refused with
 * an errno, a source that was deleted meanwhile lets go of its descriptor as soon as the kernel takes
 * something again, what was added works, and no memory is left. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "daemonfix.h"
#include "failctl.h"
#include "leakcheck.h"
#include "loop.h"

enum { PIPES = 300, DELETED = 3 };

static int pipes[PIPES][2];
static struct loop_source *sources[PIPES];
static uint32_t fired[PIPES];
static uint32_t turns;
static struct loop_timer *timer;

static void on_pipe(void *ctx, unsigned events) {
    uint32_t *n = ctx;
    char junk[16];

    (void)events;
    while (read(pipes[n - fired][0], junk, sizeof junk) > 0)
        ;
    ++*n;
}

static void on_time(void *ctx) {
    (void)ctx;
}

static bool on_turn(void *ctx) {
    if (--turns == 0)
        loop_stop(ctx);
    return true; /* does not sleep */
}

static void run(struct loop *l, uint32_t n) {
    turns = n;
    loop_timer_set(timer, 1); /* the first turn does not sleep either */
    ck_assert_int_eq(loop_run(l), 0);
}

START_TEST(a_full_ring) {
    struct failctl *ctl = failctl_self;
    int64_t blocks = ctl->blocks;
    struct loop *l;
    int n = 0, r = 0;

    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < PIPES; i++) {
        ck_assert_int_eq(pipe2(pipes[i], O_CLOEXEC | O_NONBLOCK), 0);
        fired[i] = 0;
    }
    ck_assert_int_eq(loop_new(LOOP_URING, &l, NULL), 0);
    ck_assert_int_eq(loop_timer_new(l, on_time, NULL, &timer), 0);
    loop_set_turn(l, on_turn, l);
    /* only the submissions of the library fail, from the first on */
    for (; n < PIPES && r == 0; n++) {
        if (n == DELETED)
            run(l, 5); /* those that will be deleted are the kernel's by then */
        failctl_arm(ctl, n < 200 ? FAIL_OFF : FAIL_EVER, 2);
        r = loop_add(l, pipes[n][0], on_pipe, &fired[n], &sources[n]);
    }
    failctl_disarm(ctl); /* Check allocates, too */
    n--;
    ck_assert_msg(r == -EBUSY && n > 200, "%d after %d sources", r, n);
    ck_assert_str_eq(ctl->name, "io_uring_submit");
    failctl_arm(ctl, FAIL_EVER, 1);
    for (int i = 0; i < DELETED; i++) {
        loop_del(l, sources[i]);
        close(pipes[i][0]);
        pipes[i][0] = -1;
    }
    failctl_disarm(ctl);
    run(l, 20);
    for (int i = 0; i < DELETED; i++)
        ck_assert_msg(write(pipes[i][1], "x", 1) < 0 && errno == EPIPE, "pipe %d is still read", i);
    for (int i = DELETED; i < n; i++)
        ck_assert_int_eq(write(pipes[i][1], "x", 1), 1);
    run(l, 20);
    for (int i = 0; i < PIPES; i++)
        ck_assert_msg(fired[i] == (i >= DELETED && i < n), "source %d fired %u times", i, fired[i]);
    /* the one that was refused is taken now */
    ck_assert_int_eq(loop_add(l, pipes[n][0], on_pipe, &fired[n], &sources[n]), 0);
    ck_assert_int_eq(write(pipes[n][1], "x", 1), 1);
    run(l, 20);
    ck_assert_uint_eq(fired[n], 1);
    loop_free(l);
    for (int i = 0; i < PIPES; i++)
        for (int k = 0; k < 2; k++)
            if (pipes[i][k] >= 0)
                close(pipes[i][k]);
    ck_assert_int_eq(ctl->blocks, blocks);
}
END_TEST

int main(void) {
    Suite *s = suite_create("fail_loop");
    TCase *tc = tcase_create("fail");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_set_timeout(tc, 30);
    /* an emulator has no io_uring: there the other loop is all there is, and this program has one test less
     */
    if (daemonfix_loops() == 2)
        tcase_add_test(tc, a_full_ring);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
