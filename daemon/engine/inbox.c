/* SPDX-License-Identifier: MIT */
/* inbox.c: posting from any thread, taking and sleeping on the engine thread. */
#include "inbox.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void inbox_init(struct inbox *ib, _Atomic uint32_t *cells, uint32_t max_streams) {
    atomic_init(&ib->pushed, NULL);
    ib->cancel_gen = cells;
    ib->max_streams = max_streams;
    atomic_init(&ib->cancels, 0);
    atomic_init(&ib->kicks, 0);
    atomic_init(&ib->ticket, 0);
    atomic_init(&ib->sleeping, 0);
}

void inbox_wake(struct inbox *ib) {
    atomic_fetch_add(&ib->ticket, 1); /* W1: pairs with S2 in inbox_wait() */
    if (atomic_load(&ib->sleeping))   /* W2: pairs with S1 */
        syscall(SYS_futex, &ib->ticket, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void inbox_submit(struct inbox *ib, struct sched_req *req) {
    struct sched_req *head = atomic_load_explicit(&ib->pushed, memory_order_relaxed);

    do
        req->next = head;
    while (!atomic_compare_exchange_weak_explicit(&ib->pushed, &head, req, memory_order_release,
                                                  memory_order_relaxed)); /* P1: pairs with T1 */
    inbox_wake(ib);
}

void inbox_cancel(struct inbox *ib, struct stream_id id) {
    uint32_t old;

    if (id.index >= ib->max_streams || !id.gen)
        return;
    /* A late word to a generation that is long gone must not wipe out one to its successor. */
    old = atomic_load_explicit(&ib->cancel_gen[id.index], memory_order_relaxed);
    while (!old || (int32_t)(id.gen - old) > 0)
        if (atomic_compare_exchange_weak_explicit(&ib->cancel_gen[id.index], &old, id.gen, memory_order_relaxed,
                                                  memory_order_relaxed))
            break;
    atomic_fetch_add_explicit(&ib->cancels, 1, memory_order_release); /* C1: pairs with the load in the round */
    inbox_wake(ib);
}

void inbox_kick(struct inbox *ib) {
    atomic_fetch_add_explicit(&ib->kicks, 1, memory_order_release);
    inbox_wake(ib);
}

uint32_t inbox_ticket(struct inbox *ib) {
    return atomic_load(&ib->ticket);
}

/* Taking everything at once needs no care for reuse of a node: nobody pops a single one. */
struct sched_req *inbox_take(struct inbox *ib) {
    struct sched_req *in, *out = NULL;

    if (!atomic_load_explicit(&ib->pushed, memory_order_relaxed))
        return NULL;
    in = atomic_exchange_explicit(&ib->pushed, NULL, memory_order_acquire); /* T1: pairs with P1 */
    while (in) {
        struct sched_req *next = in->next;

        in->next = out;
        out = in;
        in = next;
    }
    return out;
}

bool inbox_cancelled(struct inbox *ib, struct stream_id id) {
    return atomic_load_explicit(&ib->cancel_gen[id.index], memory_order_relaxed) == id.gen;
}

bool inbox_wait(struct inbox *ib, uint32_t ticket, uint64_t timeout_ns) {
    struct timespec ts = { .tv_sec = (time_t)(timeout_ns / 1000000000u),
                           .tv_nsec = (long)(timeout_ns % 1000000000u) };
    bool posted;

    atomic_store(&ib->sleeping, 1); /* S1: pairs with W2 */
    /* S2: the kernel compares the word again under its own lock, so a post between here and there is seen */
    if (atomic_load(&ib->ticket) == ticket)
        syscall(SYS_futex, &ib->ticket, FUTEX_WAIT_PRIVATE, ticket, timeout_ns == UINT64_MAX ? NULL : &ts, NULL,
                0);
    atomic_store(&ib->sleeping, 0);
    posted = atomic_load(&ib->ticket) != ticket;
    return posted;
}
