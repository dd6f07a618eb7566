/* SPDX-License-Identifier: MIT */
/* Index arithmetic and ordering of both rings: the only place that holds a barrier. Used by ipc and client,
 * not installed; PROTOCOL.md 5 says the same in words.
 *
 * A ring has one producer and one consumer in different processes that do not trust each other. Each side
 * keeps its own indices in private memory (the structs below, one thread each) and reads a word of the peer
 * once per call, checks it, and goes on with the checked copy. Nothing here allocates, blocks, logs or makes
 * a system call.
 *
 * Orderings, by label:
 *   R1 release of tail  pairs with A1 acquire of tail: slots are visible before the index that offers them
 *   R2 release of head  pairs with A2 acquire of head: slots are read before the index gives them back
 *   F1 full barrier between R1 and the load of event    pairs with F2 (publish against arm)
 *   F2 full barrier between the store of event and A1
 *   F3 full barrier between R2 and the load of want     pairs with F4 (give back against ask for credit)
 *   F4 full barrier between the store of want and A2
 * Release and acquire alone do not order a store of one word against a later load of another: without either
 * of F1/F2 (or F3/F4) both sides can miss each other's store and sleep for ever. */
#ifndef GLMW_RINGOPS_H
#define GLMW_RINGOPS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "wire.h"

#ifndef FAULT
#define FAULT(name) 0
#endif

/* Memory the peer writes. Under `make checker` (clang, GLMW_CHECKER) it is an address space of its own that
 * may not be dereferenced and does not convert to an ordinary pointer: every read goes through a glmw_fetch
 * or glmw_copy function below, and the casts below are the only ones. */
#if defined(GLMW_CHECKER) && defined(__clang__)
#define GLMW_FOREIGN __attribute__((noderef, address_space(1)))
#else
#define GLMW_FOREIGN
#endif

#if defined(__SANITIZE_THREAD__)
#define GLMW_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GLMW_TSAN 1
#endif
#endif

/* The barrier: stores v into our own word p (release) and orders that before every later load of a word of
 * the peer. ThreadSanitizer does not model stand-alone fences, so there the store itself is a sequentially
 * consistent exchange, and the loads that follow it (GLMW_AFTER) are sequentially consistent too. */
#ifdef GLMW_TSAN
#define GLMW_STORE_FENCED(p, v) ((void)__atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST))
#define GLMW_AFTER(order)       __ATOMIC_SEQ_CST
#else
#define GLMW_STORE_FENCED(p, v)                                                                              \
    do {                                                                                                     \
        __atomic_store_n((p), (v), __ATOMIC_RELEASE);                                                        \
        __atomic_thread_fence(__ATOMIC_SEQ_CST);                                                             \
    } while (0)
#define GLMW_AFTER(order) (order)
#endif

/* ---- into and out of foreign memory -------------------------------------------------------------------- */

/* What mmap returned is the peer's from here on. */
static inline const void GLMW_FOREIGN *glmw_foreign(const void *map) {
    return (const void GLMW_FOREIGN *)(uintptr_t)map;
}
/* For munmap and the SIGBUS guard: an address, no byte is looked at. */
static inline void *glmw_address(const void GLMW_FOREIGN *p) {
    return (void *)(uintptr_t)p;
}
/* For an event of libglmd: text is handed to the application where it lies; the library decides nothing by
 * its bytes. */
static inline const void *glmw_lend(const void GLMW_FOREIGN *p) {
    return (const void *)(uintptr_t)p;
}

/* ---- single fetches of foreign words ------------------------------------------------------------------- */

/* One load, never repeated and never split by the compiler. The result is unchecked: name it *_from_client
 * or *_from_daemon until it is. */
static inline uint32_t glmw_fetch32(const uint32_t GLMW_FOREIGN *p) {
    return __atomic_load_n((const uint32_t *)(uintptr_t)p, __ATOMIC_RELAXED);
}
static inline uint64_t glmw_fetch64(const uint64_t GLMW_FOREIGN *p) {
    return __atomic_load_n((const uint64_t *)(uintptr_t)p, __ATOMIC_RELAXED);
}
static inline uint32_t glmw_fetch32_acquire(const uint32_t GLMW_FOREIGN *p) {
    return __atomic_load_n((const uint32_t *)(uintptr_t)p, __ATOMIC_ACQUIRE);
}
static inline uint32_t glmw_fetch32_after_fence(const uint32_t GLMW_FOREIGN *p) {
    return __atomic_load_n((const uint32_t *)(uintptr_t)p, GLMW_AFTER(__ATOMIC_RELAXED));
}
static inline uint32_t glmw_fetch32_acquire_after_fence(const uint32_t GLMW_FOREIGN *p) {
    return __atomic_load_n((const uint32_t *)(uintptr_t)p, GLMW_AFTER(__ATOMIC_ACQUIRE));
}

/* Copies n aligned 32-bit words, every word fetched once. */
static inline void glmw_copy_words(void *dst, const void GLMW_FOREIGN *src, size_t n) {
    const uint32_t GLMW_FOREIGN *s = (const uint32_t GLMW_FOREIGN *)src;
    for (size_t i = 0; i < n; i++) {
        uint32_t w = glmw_fetch32(s + i);
        memcpy((uint8_t *)dst + i * sizeof(w), &w, sizeof(w));
    }
}

/* Copies one 64-byte slot into private memory, every word fetched once. */
static inline void glmw_copy_slot(void *dst, const void GLMW_FOREIGN *slot) {
    const uint64_t GLMW_FOREIGN *src = (const uint64_t GLMW_FOREIGN *)slot;
    uint64_t w[GLMW_SLOT_BYTES / 8];
    for (unsigned i = 0; i < GLMW_SLOT_BYTES / 8; i++)
        w[i] = glmw_fetch64(src + i);
    memcpy(dst, w, sizeof(w));
}

/* ---- predicates ---------------------------------------------------------------------------------------- */

/* True when the record at index `event` is among those published by moving the tail from old to new. */
static inline bool glmw_need_bell(uint32_t event, uint32_t old, uint32_t new_tail) {
    return (uint32_t)(event - old) < (uint32_t)(new_tail - old);
}

/* For urgent records (first token, END, ERROR, NOTICE): true when the peer is armed at all. */
static inline bool glmw_need_bell_urgent(uint32_t event, uint32_t old) {
    return (int32_t)(event - old) >= 0;
}

/* Where both rings of a connection begin. The mutation build can begin shortly before 2^32, so that whole programs
 * go over the wrap in their first records. */
#define GLMW_FIRST_INDEX (FAULT(ring_starts_at_the_wrap) ? 0u - 40u : 0u)

/* ---- producer ------------------------------------------------------------------------------------------ */

struct glmw_producer {
    uint8_t *slots;
    uint32_t size; /* slots, a power of two */
    uint32_t tail; /* next slot to fill; at most size ahead of head */
    uint32_t published;
    uint32_t head;       /* last checked value of the peer's head */
    uint32_t *tail_word; /* ours, shared */
    const uint32_t GLMW_FOREIGN *head_word;
    const uint32_t GLMW_FOREIGN *event_word;
};

/* Starts at index `start` (0 on the wire; tests start elsewhere to cross 2^32). */
static inline void glmw_producer_init(struct glmw_producer *p, void *slots, unsigned size_log2,
                                      uint32_t *tail_word, const uint32_t GLMW_FOREIGN *head_word,
                                      const uint32_t GLMW_FOREIGN *event_word, uint32_t start) {
    p->slots = (uint8_t *)slots;
    p->size = 1u << size_log2;
    p->tail = p->published = p->head = start;
    p->tail_word = tail_word;
    p->head_word = head_word;
    p->event_word = event_word;
}

static inline uint32_t glmw_free_slots(const struct glmw_producer *p) {
    return p->size - (uint32_t)(p->tail - p->head) + (FAULT(ring_capacity_off_by_one) ? 1u : 0u);
}

static inline int glmw_check_head(struct glmw_producer *p, uint32_t head_from_peer) {
    /* It may only move forward and never past what was published. */
    if ((uint32_t)(head_from_peer - p->head) > (uint32_t)(p->published - p->head))
        return -EPROTO;
    p->head = head_from_peer;
    return 0;
}

/* Takes over the peer's head. -EPROTO: it moved backwards or past our tail; the connection is dead. */
static inline int glmw_refresh(struct glmw_producer *p) {
    return glmw_check_head(p, glmw_fetch32_acquire(p->head_word)); /* A2: pairs with R2 in glmw_give_back() */
}

/* The slot `ahead` places after the next one, to be filled in place. Needs ahead < glmw_free_slots(). */
static inline void *glmw_slot(const struct glmw_producer *p, uint32_t ahead) {
    return p->slots + (size_t)((p->tail + ahead) & (p->size - 1)) * GLMW_SLOT_BYTES;
}

/* Fills one slot without publishing it. -ENOBUFS: no free slot at the last refresh. */
static inline int glmw_put(struct glmw_producer *p, const void *slot64) {
    if (glmw_free_slots(p) == 0)
        return -ENOBUFS;
    memcpy(glmw_slot(p, 0), slot64, GLMW_SLOT_BYTES);
    p->tail++;
    return 0;
}

/* Publishes everything put since the last time. True: the peer must be woken now. */
static inline bool glmw_publish(struct glmw_producer *p, bool urgent) {
    uint32_t old = p->published;
    if (p->tail == old)
        return false;
    if (FAULT(ring_no_producer_barrier))
        __atomic_store_n(p->tail_word, p->tail, __ATOMIC_RELEASE);
    else
        GLMW_STORE_FENCED(p->tail_word, p->tail); /* R1: pairs with A1 in glmw_peek(); F1: pairs with F2 */
    p->published = p->tail;
    uint32_t event_from_peer = glmw_fetch32_after_fence(p->event_word); /* any value is safe */
    return urgent ? glmw_need_bell_urgent(event_from_peer, old)
                  : glmw_need_bell(event_from_peer, old, p->published);
}

/* Before leaving a stream waiting for slots: asks the peer to say when it gives some back, then looks once
 * more. The caller evaluates its need again and, when that is met, calls glmw_credit_done().
 * -EPROTO as above. */
static inline int glmw_credit_ask(struct glmw_producer *p, uint32_t *want_word) {
    if (FAULT(ring_no_credit_barrier))
        __atomic_store_n(want_word, 1u, __ATOMIC_RELAXED);
    else
        GLMW_STORE_FENCED(want_word, 1u); /* F4: pairs with F3 in glmw_give_back() */
    return glmw_check_head(p, glmw_fetch32_acquire_after_fence(p->head_word)); /* A2 */
}

static inline void glmw_credit_done(uint32_t *want_word) {
    __atomic_store_n(want_word, 0u, __ATOMIC_RELAXED);
}

/* ---- consumer ------------------------------------------------------------------------------------------ */

struct glmw_consumer {
    const uint8_t GLMW_FOREIGN *slots;
    uint32_t size;
    uint32_t head;     /* next slot to read */
    uint32_t given;    /* slots before this one are the producer's again */
    uint32_t tail;     /* last checked value of the peer's tail */
    uint32_t *head_word; /* ours, shared */
    uint32_t *event_word;
    const uint32_t GLMW_FOREIGN *tail_word;
};

static inline void glmw_consumer_init(struct glmw_consumer *c, const void GLMW_FOREIGN *slots,
                                      unsigned size_log2, const uint32_t GLMW_FOREIGN *tail_word,
                                      uint32_t *head_word, uint32_t *event_word, uint32_t start) {
    c->slots = (const uint8_t GLMW_FOREIGN *)slots;
    c->size = 1u << size_log2;
    c->head = c->given = c->tail = start;
    c->head_word = head_word;
    c->event_word = event_word;
    c->tail_word = tail_word;
}

static inline int glmw_check_tail(struct glmw_consumer *c, uint32_t tail_from_peer) {
    /* It may only move forward, and what lies between given and tail fits the ring. */
    if ((uint32_t)(tail_from_peer - c->tail) > c->size - (uint32_t)(c->tail - c->given))
        return -EPROTO;
    c->tail = tail_from_peer;
    return (int)(uint32_t)(c->tail - c->head);
}

/* How many slots can be read now; -EPROTO: the peer's tail is impossible; the connection is dead. */
static inline int glmw_peek(struct glmw_consumer *c) {
    return glmw_check_tail(c, glmw_fetch32_acquire(c->tail_word)); /* A1: pairs with R1 in glmw_publish() */
}

/* Copies the next slot and steps over it. Needs a glmw_peek() that counted it. */
static inline void glmw_take(struct glmw_consumer *c, void *dst64) {
    glmw_copy_slot(dst64, c->slots + (size_t)(c->head & (c->size - 1)) * GLMW_SLOT_BYTES);
    c->head++;
}

/* Gives every slot taken so far back to the producer, and with records their text spans. True: the producer
 * asked to be told (want_word may be NULL: never). */
static inline bool glmw_give_back(struct glmw_consumer *c, const uint32_t GLMW_FOREIGN *want_word) {
    if (c->given == c->head)
        return false;
    c->given = c->head;
    if (!want_word) {
        __atomic_store_n(c->head_word, c->head, __ATOMIC_RELEASE); /* R2: pairs with A2 in glmw_refresh() */
        return false;
    }
    GLMW_STORE_FENCED(c->head_word, c->head); /* R2; F3: pairs with F4 in glmw_credit_ask() */
    return glmw_fetch32_after_fence(want_word) != 0;
}

/* Asks for a bell at the `ahead`-th slot from here (1: the next one) and looks once more.
 * 0: nothing to read, it is safe to sleep; positive: that many slots wait, do not sleep; -EPROTO as above. */
static inline int glmw_arm(struct glmw_consumer *c, uint32_t ahead) {
    uint32_t event = c->head + ahead - 1;
    if (FAULT(ring_no_consumer_barrier))
        __atomic_store_n(c->event_word, event, __ATOMIC_RELAXED);
    else
        GLMW_STORE_FENCED(c->event_word, event); /* F2: pairs with F1 in glmw_publish() */
    return glmw_check_tail(c, glmw_fetch32_acquire_after_fence(c->tail_word)); /* A1 */
}

/* Asks for silence until the next glmw_arm(), whatever was armed before: only saves wake-ups. */
static inline void glmw_disarm(struct glmw_consumer *c) {
    __atomic_store_n(c->event_word, c->given - 1, __ATOMIC_RELAXED);
}

/* ---- status block -------------------------------------------------------------------------------------- */

/* A block of words behind a sequence counter. Every word after it is stored with release and loaded with acquire,
 * which orders them against both ends of the counter without a stand-alone fence. One writer thread. */
static inline void glmw_block_write(void *dst, const void *src, unsigned bytes) {
    uint32_t *d = dst, w;
    uint32_t seq = __atomic_load_n(d, __ATOMIC_RELAXED);
    __atomic_store_n(d, seq + 1, __ATOMIC_RELAXED);
    for (unsigned i = 1; i < bytes / 4; i++) {
        memcpy(&w, (const uint8_t *)src + 4 * i, sizeof w);
        __atomic_store_n(d + i, w, __ATOMIC_RELEASE); /* S1: pairs with the loads in glmw_block_read() */
    }
    __atomic_store_n(d, seq + 2, __ATOMIC_RELEASE); /* S2 */
}

/* -EAGAIN: the writer was always in the middle (it may be dead there); what lies at ret is worth nothing. */
static inline int glmw_block_read(const void GLMW_FOREIGN *src, void *ret, unsigned bytes) {
    const uint32_t GLMW_FOREIGN *s = (const uint32_t GLMW_FOREIGN *)src;
    for (unsigned attempt = 0; attempt < 1000; attempt++) {
        uint32_t w = glmw_fetch32_acquire(s), seq = w; /* pairs with S2 */
        for (unsigned i = 0; i < bytes / 4; i++) {
            if (i)
                w = glmw_fetch32_acquire(s + i); /* pairs with S1 */
            memcpy((uint8_t *)ret + 4 * i, &w, sizeof w);
        }
        if (!(seq & 1) && glmw_fetch32(s) == seq)
            return 0;
    }
    return -EAGAIN;
}

static inline void glmw_status_write(struct glmw_status *dst, const struct glmw_status *src) {
    glmw_block_write(dst, src, sizeof *src);
}

/* -EAGAIN: as above; *ret is untouched. */
static inline int glmw_status_read(const struct glmw_status GLMW_FOREIGN *src, struct glmw_status *ret) {
    struct glmw_status s;
    int r = glmw_block_read(src, &s, sizeof s);
    if (r == 0)
        *ret = s;
    return r;
}

#endif
