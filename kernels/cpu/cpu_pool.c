/* SPDX-License-Identifier: MIT */
/* cpu_pool.c: the team of threads behind the CPU backend: posting, joining, the barrier.
 *
 * Runs on the caller and on the workers. Two rules carry the memory order: a job number is published by the
 * release on `posted` and taken by the acquire in the worker; results of a phase are published by the
 * release on each member's `phase` and taken by the acquire of all others. Sleeping uses the pattern "announce,
 * look again, sleep" on both sides with sequentially consistent accesses, so a wake-up cannot be lost. */
#include "cpu_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_CHECK = 32,      /* pauses between looks at the clock */
    SPIN_ALONE_NS = 5000, /* at a barrier; a yield takes 1.2 us on some machines */
    SPIN_NS = 50000,      /* longest spin for a member that has not arrived, or for the next job */
    CROWDED_NS = 200000,  /* a yield that takes longer met somebody who works, not a client that reads a token */
    CROWDED_JOBS = 64     /* so many jobs a worker then sleeps for at once */
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

/* Returns when *word is no longer `seen`: spins for `limit` ns, the first `alone` of them without yielding, then
 * sleeps. true: a yield took so long that others want this processor. */
static bool wait_change(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *asleep, uint64_t alone,
                        uint64_t limit) {
    uint64_t from = 0;
    bool crowded = false;
    while (limit) {
        for (int i = 0; i < SPIN_CHECK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen)
                return crowded;
            relax();
        }
        uint64_t now = now_ns();
        if (!from)
            from = now;
        if (now - from >= limit)
            break;
        if (now - from >= alone) {
            (void)sched_yield();
            crowded |= now_ns() - now > CROWDED_NS;
        }
    }
    atomic_fetch_add(asleep, 1); /* announced before the last look: pairs with the waker's store and load */
    while (atomic_load(word) == seen)
        futex_wait(word, seen);
    atomic_fetch_sub(asleep, 1);
    return crowded;
}

static void publish_change(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *asleep) {
    atomic_store(word, value); /* before the look at asleep: pairs with wait_change */
    if (atomic_load(asleep))
        futex_wake_all(word);
}

void pool_barrier(struct pool *p, uint32_t member) {
    uint32_t before = atomic_load_explicit(&p->place[member].phase, memory_order_relaxed);
    publish_change(&p->place[member].phase, before + 1, &p->place[member].asleep);
    /* Another member may be one barrier ahead already, never two: it waits for this one. */
    for (uint32_t i = FAULT(pool_leaves_early) ? 1 : 0; i < p->n; i++)
        if (i != member)
            (void)wait_change(&p->place[i].phase, before, &p->place[i].asleep, SPIN_ALONE_NS, SPIN_NS);
}

/* Between two steps a client may want this processor: a waiting worker yields at once. On a busy machine who yields
 * waits for a turn, and who sleeps is let in when woken: there it does not spin at all for a while. */
static void *worker_main(void *arg) {
    struct pool_worker *w = arg;
    struct pool *p = w->pool;
    uint32_t done = 0, rest = 0;
    for (;;) {
        if (wait_change(&p->posted, done, &p->idle, 0, rest ? 0 : SPIN_NS))
            rest = CROWDED_JOBS;
        else if (rest)
            rest--;
        if (atomic_load_explicit(&p->quit, memory_order_relaxed)) /* stored before the last post */
            return NULL;
        p->fn(p->arg, p->job[done % POOL_JOBS], w->member);
        done++;
        pool_barrier(p, w->member);
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
    pool_barrier(p, 0);
}
