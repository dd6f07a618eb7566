/* SPDX-License-Identifier: MIT */
/* comm_local.c: exchanges between ranks that are threads of one process. Slots are memory all of them see; a part is
 * sent by counting, and waiting is spinning for a moment and then sleeping on a futex, so that ranks that share
 * processors do not take them from each other.
 *
 * Two slots a rank suffice: a rank writes part i + 2 after its wait for i + 1, which every rank sends only when it has
 * done with the parts of i. No allocation, no lock. */
#include "comm.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPINS = 200, SLOTS = 2 };

struct local;

struct end {
    struct comm c;
    struct local *all;
    char *slot[SLOTS];
    uint64_t sent; /* exchanges; the public copy is seq */
    _Alignas(64) _Atomic uint64_t seq;
    uint64_t tag[SLOTS];
};

enum { WELL = 0, FAILING = 1, FAILED = 2 };

struct local {
    uint32_t n, timeout_ms;
    _Alignas(64) _Atomic uint32_t bell; /* rung by every part and by the failure; futex word */
    _Atomic uint32_t asleep;
    _Atomic uint32_t state; /* FAILING: words are being written */
    char words[320];
    struct end end[];
};

static struct end *end_of(struct comm *c) {
    return (struct end *)(void *)c;
}

static void ring(struct local *l) {
    atomic_fetch_add(&l->bell, 1); /* before the look at asleep: pairs with sleep_until() */
    if (atomic_load(&l->asleep))
        (void)syscall(SYS_futex, &l->bell, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

static void *local_slot(struct comm *c) {
    struct end *e = end_of(c);
    return e->slot[e->sent % SLOTS];
}

static void local_fail(struct comm *c, const char *why) {
    struct local *l = end_of(c)->all;
    uint32_t well = WELL;
    if (!atomic_compare_exchange_strong(&l->state, &well, FAILING))
        return;
    snprintf(l->words, sizeof(l->words), "%s", why);
    atomic_store(&l->state, FAILED);
    ring(l);
}

static int local_send(struct comm *c, uint64_t tag, uint64_t bytes) {
    struct end *e = end_of(c);
    if (bytes > c->slot_bytes) {
        snprintf(c->error, sizeof(c->error), "rank %u sends %llu bytes, a slot has %llu", c->rank,
                 (unsigned long long)bytes, (unsigned long long)c->slot_bytes);
        local_fail(c, c->error);
        return -EMSGSIZE;
    }
    e->tag[e->sent % SLOTS] = tag;
    e->sent++;
    /* release: who sees the count sees the part and its tag */
    atomic_store_explicit(&e->seq, e->sent, memory_order_release);
    ring(e->all);
    return 0;
}

static uint64_t now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static bool arrived(struct end *peer, uint64_t seq) {
    return atomic_load_explicit(&peer->seq, memory_order_acquire) >= seq;
}

/* Sleeps until the bell rings, the peer has sent, or the time is over. */
static void sleep_until(struct local *l, struct end *peer, uint64_t seq, uint64_t left_ms) {
    const struct timespec t = {.tv_sec = (time_t)(left_ms / 1000), .tv_nsec = (long)(left_ms % 1000) * 1000000};
    atomic_fetch_add(&l->asleep, 1); /* announced before the last look: pairs with ring() */
    uint32_t seen = atomic_load(&l->bell);
    if (!arrived(peer, seq) && atomic_load(&l->state) != FAILED)
        (void)syscall(SYS_futex, &l->bell, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
    atomic_fetch_sub(&l->asleep, 1);
}

static int failed(struct end *e) {
    snprintf(e->c.error, sizeof(e->c.error), "%s", e->all->words);
    return -EPIPE;
}

/* One peer's part of exchange seq. */
static int wait_peer(struct end *e, struct end *peer, uint64_t seq, uint64_t *deadline) {
    struct local *l = e->all;
    for (int i = 0; i < SPINS; i++)
        if (arrived(peer, seq))
            return 0;
    while (!arrived(peer, seq)) {
        if (atomic_load(&l->state) == FAILED)
            return failed(e);
        uint64_t now = now_ms();
        if (!*deadline)
            *deadline = now + l->timeout_ms;
        if (now >= *deadline) {
            snprintf(e->c.error, sizeof(e->c.error),
                     "rank %u is missing: rank %u waited %u ms for its part of exchange %llu, it has sent %llu",
                     peer->c.rank, e->c.rank, l->timeout_ms, (unsigned long long)seq,
                     (unsigned long long)atomic_load(&peer->seq));
            local_fail(&e->c, e->c.error);
            return -ETIMEDOUT;
        }
        sleep_until(l, peer, seq, *deadline - now);
    }
    return 0;
}

static int local_wait(struct comm *c, const void *ret_part[]) {
    struct end *e = end_of(c);
    const uint64_t seq = e->sent, at = (seq - 1) % SLOTS;
    uint64_t deadline = 0;
    if (!seq)
        return -EINVAL;
    for (uint32_t r = 0; r < c->n; r++) {
        struct end *peer = &e->all->end[r];
        int rc = wait_peer(e, peer, seq, &deadline);
        if (rc)
            return rc;
        if (peer->tag[at] != e->tag[at] && !FAULT(comm_tag_unchecked)) {
            snprintf(c->error, sizeof(c->error),
                     "ranks %u and %u do not run the same step: exchange %llu has tag %016llx here, %016llx there",
                     c->rank, r, (unsigned long long)seq, (unsigned long long)e->tag[at],
                     (unsigned long long)peer->tag[at]);
            local_fail(c, c->error);
            return -EBADMSG;
        }
    }
    if (atomic_load(&e->all->state) == FAILED)
        return failed(e);
    for (uint32_t r = 0; r < c->n; r++)
        ret_part[r] = e->all->end[r].slot[FAULT(comm_stale_slot) ? seq % SLOTS : at];
    return 0;
}

static const struct comm_ops local_ops = {
    .slot = local_slot, .send = local_send, .wait = local_wait, .give_up = local_fail};

static uint64_t head_bytes(uint32_t n) {
    return (sizeof(struct local) + n * sizeof(struct end) + 63) & ~63ull;
}

static uint64_t rounded(uint64_t slot_bytes) {
    return (slot_bytes + 63) & ~63ull;
}

uint64_t comm_local_bytes(uint32_t n, uint64_t slot_bytes) {
    if (!n || n > COMM_MAX_RANKS || slot_bytes > 1ull << 48)
        return 0;
    return head_bytes(n) + n * SLOTS * rounded(slot_bytes);
}

int comm_local_open(void *mem, uint64_t bytes, uint32_t n, uint64_t slot_bytes, uint32_t timeout_ms,
                    struct comm *ret[]) {
    uint64_t need = comm_local_bytes(n, slot_bytes);
    if (!need || bytes < need || ((uintptr_t)mem & 63) || !timeout_ms)
        return -EINVAL;
    struct local *l = mem;
    memset(l, 0, head_bytes(n));
    l->n = n;
    l->timeout_ms = timeout_ms;
    for (uint32_t r = 0; r < n; r++) {
        struct end *e = &l->end[r];
        e->c = (struct comm){.ops = &local_ops, .rank = r, .n = n, .slot_bytes = slot_bytes};
        e->all = l;
        for (uint32_t i = 0; i < SLOTS; i++)
            e->slot[i] = (char *)mem + head_bytes(n) + (r * (uint64_t)SLOTS + i) * rounded(slot_bytes);
        ret[r] = &e->c;
    }
    return 0;
}
