/* SPDX-License-Identifier: MIT */
/* Waiting, being woken, other threads, and fewer wake-ups on request. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "clienttest.h"
#include "fakedaemon.h"

struct other {
    glmd_conn *c;
    uint64_t tag;
};

static void *cancel_elsewhere(void *arg) {
    struct other *o = arg;
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(glmd_cancel_async(o->c, o->tag + 1), 0);
    ck_assert_int_eq(glmd_cancel_async(o->c, o->tag), 0);
    return NULL;
}

START_TEST(cancel_from_another_thread) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmw_entry e;
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    struct other o = {c, tag};
    pthread_t t;
    ck_assert_int_eq(pthread_create(&t, NULL, cancel_elsewhere, &o), 0);
    while (!fake_pop(&f, &e))
        ck_assert_int_ge(glmd_wait(c, 1000000000), 0);
    ck_assert_int_eq(e.opcode, GLMW_OP_CANCEL);
    ck_assert_uint_eq(e.tag, tag);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

static void *wake_elsewhere(void *arg) {
    struct timespec t = {0, 20000000};
    nanosleep(&t, NULL);
    glmd_wakeup(arg);
    return NULL;
}

static void on_alarm(int sig) {
    (void)sig;
}

START_TEST(waiting) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct timespec a, b;
    pthread_t t;
    clock_gettime(CLOCK_MONOTONIC, &a);
    ck_assert_int_eq(glmd_wait(c, 30000000), 0);
    clock_gettime(CLOCK_MONOTONIC, &b);
    ck_assert_int_ge((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000, 29);
    ck_assert_int_eq(glmd_wait(c, 0), 0);
    ck_assert_int_eq(pthread_create(&t, NULL, wake_elsewhere, c), 0);
    ck_assert_int_eq(glmd_wait(c, -1), 0);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    /* a wake-up before the wait is not lost */
    ck_assert_int_eq(glmd_wakeup(c), 0);
    ck_assert_int_eq(glmd_wait(c, -1), 0);
    ck_assert_int_eq(ct_readable(c, 0), 0);
    struct sigaction sa = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &sa, NULL);
    ualarm(20000, 0);
    ck_assert_int_eq(glmd_wait(c, -1), -EINTR);
    uint64_t tag = ct_submit(c, "x");
    fake_accept(&f, tag);
    fake_flush(&f, false);
    ck_assert_int_eq(glmd_wait(c, -1), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(coalescing) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmd_event e = {.size = sizeof e};
    uint64_t tag = ct_submit(c, "x"), when;
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_text(&f, tag, 0, "first");
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_set_coalesce(c, 4, 200000), 0);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    while (glmd_next(c, &e) == 1) {
    }
    /* three records stay silent, the fourth rings */
    for (uint32_t i = 0; i < 3; i++) {
        fake_text(&f, tag, i, "t");
        fake_flush(&f, false);
        ck_assert_int_eq(ct_readable(c, 0), 0);
    }
    ck_assert_int_eq(glmd_get_timeout(c, &when), 0);
    ck_assert(when != UINT64_MAX);
    fake_text(&f, tag, 3, "t");
    fake_flush(&f, false);
    ck_assert_int_eq(ct_readable(c, 0), 1);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    while (glmd_next(c, &e) == 1) {
    }
    /* fewer than four: the timer makes the descriptor readable */
    fake_text(&f, tag, 4, "t");
    fake_flush(&f, false);
    ck_assert_int_eq(ct_readable(c, 0), 0);
    int tries = 0;
    while (ct_readable(c, 2000) == 1 && glmd_dispatch(c) == 0)
        ck_assert_int_lt(tries++, 3);
    ct_next_text(c, tag, "t");
    ck_assert_int_eq(glmd_next(c, &e), 0);
    /* urgent records ring although the mark lies ahead */
    fake_end(&f, tag, 0, GLMW_END_STOP);
    fake_flush(&f, true);
    ck_assert_int_eq(ct_readable(c, 0), 1);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_END, tag);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(coalescing_pauses_when_nothing_flows) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmd_event e = {.size = sizeof e};
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_set_coalesce(c, 8, 5000), 0);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    while (glmd_next(c, &e) == 1) {
    }
    ck_assert_int_eq(ct_readable(c, 1000), 1);
    ck_assert_int_eq(glmd_dispatch(c), 0);
    ck_assert_int_eq(glmd_next(c, &e), 0);
    /* no timer runs now, and the next record rings at once */
    ck_assert_int_eq(ct_readable(c, 30), 0);
    fake_text(&f, tag, 0, "t");
    fake_flush(&f, false);
    ck_assert_int_eq(ct_readable(c, 0), 1);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("client_wait");
    TCase *t = ct_case(s, "wait", 20);
    tcase_add_test(t, cancel_from_another_thread);
    tcase_add_test(t, waiting);
    tcase_add_test(t, coalescing);
    tcase_add_test(t, coalescing_pauses_when_nothing_flows);
    return ct_main(s);
}
