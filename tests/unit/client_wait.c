/* SPDX-License-Identifier: MIT */
/* Waiting, being woken, other threads, and fewer wake-ups on request. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clconn.h"
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

/* A daemon that publishes its next record the moment the reader has given the last one back: that is while
 * the reader is about to sleep, so only its second look at the ring can see it. */
struct racer {
    struct fake *f;
    uint64_t tag;
    uint32_t rounds;
};

static void pause_a_little(uint32_t *rnd, unsigned shift) {
    *rnd = *rnd * 1664525u + 1013904223u;
    for (volatile uint32_t spin = *rnd >> shift; spin; spin--) {
    }
}

static void *publish_at_the_last_moment(void *arg) {
    struct racer *r = arg;
    uint32_t rnd = 1;
    for (uint32_t i = 0; i < r->rounds; i++) {
        do {
            ck_assert_int_eq(glmw_refresh(&r->f->tq), 0);
        } while (r->f->tq.head != r->f->tq.published);
        pause_a_little(&rnd, 26);
        fake_text(r->f, r->tag, i, "t");
        fake_flush(r->f, false);
    }
    return NULL;
}

START_TEST(no_wakeup_is_lost) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct racer r = {&f, ct_submit(c, "x"), 20000};
    struct glmd_event e = {.size = sizeof e};
    pthread_t t;
    uint32_t rnd = 7;
    fake_pop_submit(&f);
    fake_accept(&f, r.tag);
    fake_flush(&f, true);
    ck_assert_int_eq(pthread_create(&t, NULL, publish_at_the_last_moment, &r), 0);
    for (uint32_t got = 0; got < r.rounds;) {
        while (glmd_next(c, &e) == 1) {
            got += e.type == GLMD_EV_TOKEN;
            /* gives the daemon its sign a moment before the next look, so that both meet there */
            glmd_release(c);
            pause_a_little(&rnd, 26);
        }
        if (got == r.rounds)
            break;
        /* no glmd_prepare(): glmd_next() has just said that it is safe to poll */
        ck_assert_msg(ct_readable(c, 3000) == 1, "asleep with record %u in the ring", got);
        ck_assert_int_ge(glmd_dispatch(c), 0);
    }
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* The same without luck: the page with the client's words is made read-only, so the store that arms the bell
 * traps, and the record is published inside the trap, before the store is done. */
static struct {
    void *page;
    size_t bytes;
    volatile uint32_t *tail;
    uint32_t value;
    volatile int traps;
} trap;

__attribute__((no_sanitize("thread"))) static void on_trap(int sig) {
    (void)sig;
    *trap.tail = trap.value;
    trap.traps++;
    syscall(SYS_mprotect, trap.page, trap.bytes, PROT_READ | PROT_WRITE);
}

START_TEST(arming_looks_again) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmd_event e = {.size = sizeof e};
    struct sigaction sa = {.sa_handler = on_trap};
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    glmd_release(c);
    fake_text(&f, tag, 1, "t");
    trap.page = c->u;
    trap.bytes = (size_t)sysconf(_SC_PAGESIZE);
    trap.tail = &f.shm.d->tq_tail;
    trap.value = f.tq.tail;
    ck_assert_int_eq(sigaction(SIGSEGV, &sa, NULL), 0);
    ck_assert_int_eq(mprotect(trap.page, trap.bytes, PROT_READ), 0);
    int r = glmd_next(c, &e);
    ck_assert_int_eq(trap.traps, 1);
    ck_assert_int_eq(r, 1);
    ck_assert_uint_eq(e.type, GLMD_EV_TOKEN);
    signal(SIGSEGV, SIG_DFL);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* A daemon that closes its end of the pipe and keeps the socket: the descriptor stays readable for ever, and the caller
 * must learn that the connection is dead instead of turning in place. */
START_TEST(closed_pipe_is_an_end) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "a");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, true);
    close(f.bell.pipe_w);
    f.bell.pipe_w = -1;
    ck_assert_int_eq(glmd_wait(c, 50000000), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    ck_assert_int_eq(glmd_wait(c, 50000000), 1);
    struct glmd_event e = ct_next(c, GLMD_EV_END, tag);
    ck_assert_int_eq(e.status, -EPIPE);
    ck_assert_int_eq(glmd_wait(c, 50000000), -EPIPE);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* Bells are edges: most stay in the pipe unread, and still each wakes, however many there are in a connection's life; a
 * pipe of 4096 that were never read would be full, and a bell that finds it full is not rung. */
START_TEST(unread_bells_wake) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "a");
    int unread, most = 0;
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, true);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    for (uint32_t i = 0; i < 10000; i++) {
        ct_none(c);
        ck_assert_int_eq(ct_readable(c, 0), i == 0); /* the bell of ACCEPTED was not looked at */
        ck_assert_int_ge(glmd_dispatch(c), 0);
        ck_assert_int_eq(glmd_prepare(c), 1);
        ck_assert_int_ge(glmw_refresh(&f.tq), 0);
        fake_text(&f, tag, 5, "b");
        fake_flush(&f, false);
        ck_assert_msg(ct_readable(c, 3000) == 1, "asleep beside token %u", i);
        ck_assert_int_eq(ct_readable(c, 0), 1); /* until it is dispatched, however often a loop polls */
        ck_assert_int_eq(glmd_dispatch(c), 1);
        ct_next_text(c, tag, "b");
        ck_assert_int_eq(ioctl(c->fd_pipe, FIONREAD, &unread), 0);
        most = unread > most ? unread : most;
    }
    ck_assert_int_gt(most, 8);
    ck_assert_int_lt(most, 256);
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
    tcase_add_test(t, no_wakeup_is_lost);
    tcase_add_test(t, arming_looks_again);
    tcase_add_test(t, unread_bells_wake);
    tcase_add_test(t, closed_pipe_is_an_end);
    return ct_main(s);
}
