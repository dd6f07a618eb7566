/* SPDX-License-Identifier: MIT */
/* cpu_pool.c: the team of threads behind the CPU backend: posting, joining, the barrier.
 *
 * Runs on the caller and on the workers. Two rules carry the memory order: a job number is published by the
 * release on `posted` and taken by the acquire in the worker; results of a phase are published by the
 * acq_rel arrival counter and the release on `phase`. Sleeping uses the pattern "announce, look again,
 * sleep" on both sides with sequentially consistent accesses, so a wake-up cannot be lost. */
#include "cpu_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_CHECK = 64,        /* pauses between looks at the clock */
    SPIN_BARRIER_NS = 50000 /* longest spin for a member that has not arrived */
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

static uint64_t now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Returns when *word is no longer `seen`: spin briefly, then sleep. */
static void wait_change(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *asleep) {
    uint64_t until = 0;
    for (;;) {
        for (int i = 0; i < SPIN_CHECK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen)
                return;
            relax();
        }
        /* On a busy machine the late member may be waiting for this very processor. */
        (void)sched_yield();
        uint64_t now = now_ns();
        if (!until)
            until = now + SPIN_BARRIER_NS;
        else if (now >= until)
            break;
    }
    atomic_fetch_add(asleep, 1); /* announced before the last look: pairs with the waker's store and load */
    while (atomic_load(word) == seen)
        futex_wait(word, seen);
    atomic_fetch_sub(asleep, 1);
}

static void publish_change(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *asleep) {
    atomic_store(word, value); /* before the look at asleep: pairs with wait_change */
    if (atomic_load(asleep))
        futex_wake_all(word);
}

void pool_barrier(struct pool *p) {
    if (p->n == 1) {
        atomic_store_explicit(&p->next, 0, memory_order_relaxed);
        return;
    }
    uint32_t phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 == p->n) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&p->next, 0, memory_order_relaxed);
        publish_change(&p->phase, phase + 1, &p->sleepers);
        return;
    }
    wait_change(&p->phase, phase, &p->sleepers);
}

static void *worker_main(void *arg) {
    struct pool_worker *w = arg;
    struct pool *p = w->pool;
    uint32_t done = 0;
    for (;;) {
        while (atomic_load_explicit(&p->posted, memory_order_acquire) == done) {
            atomic_fetch_add(&p->idle, 1); /* announced before the last look: pairs with publish_change */
            while (atomic_load(&p->posted) == done)
                futex_wait(&p->posted, done);
            atomic_fetch_sub(&p->idle, 1);
        }
        if (atomic_load_explicit(&p->quit, memory_order_relaxed)) /* stored before the last post */
            return NULL;
        p->fn(p->arg, p->job[done % POOL_JOBS], w->member);
        done++;
        pool_barrier(p);
    }
}

int pool_start(struct pool *p, uint32_t n, pool_fn fn, void *arg) {
    memset(p, 0, sizeof *p);
    p->n = n;
    p->fn = fn;
    p->arg = arg;
    /* Signals belong to the program's own threads. */
    sigset_t all, old;
    sigfillset(&all);
    int err = pthread_sigmask(SIG_SETMASK, &all, &old);
    if (err)
        return -err;
    for (uint32_t i = 1; i < n && !err; i++) {
        struct pool_worker *w = &p->worker[i];
        w->pool = p;
        w->member = i;
        err = pthread_create(&w->thread, NULL, worker_main, w);
        if (!err)
            p->started++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err)
        pool_stop(p);
    return -err;
}

void pool_stop(struct pool *p) {
    while (pool_pending(p) && p->started + 1 == p->n)
        pool_join(p); /* posted work holds workers inside its barriers: finish it */
    atomic_store_explicit(&p->quit, 1, memory_order_relaxed);
    pool_post(p, 0); /* the release of posted carries quit */
    for (uint32_t i = 1; i <= p->started; i++)
        (void)pthread_join(p->worker[i].thread, NULL);
    p->started = 0;
}

void pool_post(struct pool *p, uint32_t job) {
    uint32_t at = atomic_load_explicit(&p->posted, memory_order_relaxed);
    p->job[at % POOL_JOBS] = job;
    publish_change(&p->posted, at + 1, &p->idle);
}

void pool_join(struct pool *p) {
    p->fn(p->arg, p->job[p->joined % POOL_JOBS], 0);
    p->joined++;
    pool_barrier(p);
}
