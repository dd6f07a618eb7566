/* SPDX-License-Identifier: MIT */
/* cpu_pool.h: a fixed team of threads that run one program of stages together.
 *
 * The team is the calling thread (member 0) and n-1 workers. pool_post() hands a job to the workers at once;
 * the caller joins with pool_join() and every member runs the same function. Inside a job the members meet at
 * pool_barrier(). Waiting spins for some microseconds, then sleeps on a futex, so that a team on a busy
 * machine costs its neighbours nothing; workers without a job wait in the same way, because between two steps
 * there is less time than a wake takes. Nothing is allocated: the pool lives in memory the caller gives. */
#ifndef GLMD_CPU_POOL_H
#define GLMD_CPU_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { POOL_MAX_THREADS = 256, POOL_JOBS = 64 /* posted and not yet joined, power of two */ };

typedef void (*pool_fn)(void *arg, uint32_t job, uint32_t member);

struct pool_worker {
    pthread_t thread;
    struct pool *pool;
    uint32_t member;
};

/* How far a member is; written by it alone. A line of its own: its arrival is one line's way to each of the others
 * (220 ns between two dies), where a common counter took three ways. */
struct pool_place {
    _Alignas(64) _Atomic uint32_t phase; /* barriers arrived at; futex word of those who wait for this member */
    _Atomic uint32_t asleep;             /* members asleep on it */
};

struct pool {
    uint32_t n;       /* members */
    uint32_t started; /* workers running */
    pool_fn fn;
    void *arg;

    _Alignas(64) _Atomic uint32_t posted; /* jobs handed out so far; futex word of idle workers */
    _Atomic uint32_t idle;                /* workers asleep on posted */
    _Atomic uint32_t quit;
    uint32_t joined; /* jobs the caller has finished; caller only */
    uint32_t job[POOL_JOBS];

    struct pool_place place[POOL_MAX_THREADS];

    struct pool_worker worker[POOL_MAX_THREADS];
};

int pool_start(struct pool *p, uint32_t n, pool_fn fn, void *arg);
void pool_stop(struct pool *p);

/* One more job may be posted without joining first? */
static inline int pool_full(const struct pool *p) {
    return atomic_load_explicit(&p->posted, memory_order_relaxed) - p->joined >= POOL_JOBS;
}
void pool_post(struct pool *p, uint32_t job);
/* Runs the oldest unjoined job as member 0 and returns when every member has finished it. */
void pool_join(struct pool *p);
static inline uint32_t pool_pending(const struct pool *p) {
    return atomic_load_explicit(&p->posted, memory_order_relaxed) - p->joined;
}

/* All members arrive before any leaves; everything written before is seen by all after. */
void pool_barrier(struct pool *p, uint32_t member);

#endif
