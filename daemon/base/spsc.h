/* SPDX-License-Identifier: MIT */
/* A bounded ring of fixed records between one producer thread and one consumer thread of this process, with
 * a futex word on which the consumer may sleep. Hand-over between threads goes through such rings, never
 * through shared mutable structures.
 *
 * Ordering: spsc_push publishes the record with a release store of tail; spsc_pop reads tail with acquire.
 * The sleeper announces itself in `sleeping`, executes a full barrier and looks at tail once more; the
 * producer stores tail, executes a full barrier and looks at `sleeping`. With both barriers one of the two
 * always sees the other, so no wake-up is lost and an awake consumer costs the producer one load.
 *
 * No function here allocates except spsc_init. */
#ifndef GLMD_SPSC_H
#define GLMD_SPSC_H

#include <errno.h>
#include <linux/futex.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct spsc {
    uint8_t *slots;
    uint32_t mask;
    uint32_t size; /* bytes of a record */
    /* 128 bytes apart: adjacent lines are fetched in pairs */
    alignas(128) _Atomic uint32_t tail;     /* producer */
    alignas(128) _Atomic uint32_t head;     /* consumer */
    alignas(128) _Atomic uint32_t sleeping; /* consumer: 1 while it may be asleep */
};

/* count: a power of two */
static inline int spsc_init(struct spsc *q, uint32_t count, uint32_t record_bytes) {
    if (!count || (count & (count - 1)) || !record_bytes)
        return -EINVAL;
    memset(q, 0, sizeof *q);
    q->slots = calloc(count, record_bytes);
    if (!q->slots)
        return -ENOMEM;
    q->mask = count - 1;
    q->size = record_bytes;
    return 0;
}

static inline void spsc_done(struct spsc *q) {
    free(q->slots);
    q->slots = NULL;
}

/* A full barrier that TSan also understands: it does not model stand-alone fences. */
static inline void spsc_fence(struct spsc *q) {
#if defined(__SANITIZE_THREAD__)
    atomic_fetch_add_explicit(&q->sleeping, 0, memory_order_seq_cst);
#else
    (void)q;
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static inline uint32_t spsc_room(const struct spsc *q) {
    uint32_t tail = atomic_load_explicit(&((struct spsc *)(uintptr_t)q)->tail, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&((struct spsc *)(uintptr_t)q)->head, memory_order_acquire);

    return q->mask + 1 - (tail - head);
}

/* Producer, of a record of which the first bytes alone matter; the others are what lay there. False when full. Does
 * not wake: call spsc_wake once after a batch. */
static inline bool spsc_push_part(struct spsc *q, const void *record, uint32_t bytes) {
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);

    if (tail - atomic_load_explicit(&q->head, memory_order_acquire) > q->mask)
        return false;
    memcpy(q->slots + (size_t)(tail & q->mask) * q->size, record, bytes);
    atomic_store_explicit(&q->tail, tail + 1, memory_order_release);
    return true;
}

static inline bool spsc_push(struct spsc *q, const void *record) {
    return spsc_push_part(q, record, q->size);
}

static inline void spsc_wake(struct spsc *q) {
    spsc_fence(q);
    if (atomic_load_explicit(&q->sleeping, memory_order_relaxed)) {
        atomic_store_explicit(&q->sleeping, 0, memory_order_relaxed);
        syscall(SYS_futex, &q->sleeping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

/* Consumer. A pointer to the oldest record, valid until spsc_advance; NULL when empty. */
static inline void *spsc_peek(struct spsc *q) {
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);

    if (head == atomic_load_explicit(&q->tail, memory_order_acquire))
        return NULL;
    return q->slots + (size_t)(head & q->mask) * q->size;
}

/* The record `ahead` places behind the oldest, NULL when there is none. */
static inline void *spsc_peek_at(struct spsc *q, uint32_t ahead) {
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);

    if (atomic_load_explicit(&q->tail, memory_order_acquire) - head <= ahead)
        return NULL;
    return q->slots + (size_t)((head + ahead) & q->mask) * q->size;
}

static inline void spsc_advance(struct spsc *q, uint32_t n) {
    atomic_store_explicit(&q->head, atomic_load_explicit(&q->head, memory_order_relaxed) + n,
                          memory_order_release);
}

/* Everything pushed has been consumed *and* advanced past: what the consumer did before spsc_advance is
 * visible to the caller. Producer side. */
static inline bool spsc_is_drained(struct spsc *q) {
    return atomic_load_explicit(&q->head, memory_order_acquire) ==
           atomic_load_explicit(&q->tail, memory_order_relaxed);
}

/* Consumer: sleeps until there is a record, spsc_wake is called, or timeout_ns (0 = none) has passed. May
 * return early. `extra` is looked at after announcing: when it is non-zero the caller has other work. */
static inline void spsc_wait(struct spsc *q, _Atomic uint32_t *extra, uint64_t timeout_ns) {
    struct timespec ts;

    atomic_store_explicit(&q->sleeping, 1, memory_order_relaxed);
    spsc_fence(q);
    if (spsc_peek(q) || (extra && atomic_load_explicit(extra, memory_order_acquire))) {
        atomic_store_explicit(&q->sleeping, 0, memory_order_relaxed);
        return;
    }
    ts.tv_sec = (time_t)(timeout_ns / 1000000000u);
    ts.tv_nsec = (long)(timeout_ns % 1000000000u);
    syscall(SYS_futex, &q->sleeping, FUTEX_WAIT_PRIVATE, 1, timeout_ns ? &ts : NULL, NULL, 0);
    atomic_store_explicit(&q->sleeping, 0, memory_order_relaxed);
}

#endif
