/* SPDX-License-Identifier: MIT */
/* What other threads say to the engine thread: new requests, cancellations, "credit may be back", stop. Any
 * number of threads may post; one thread (the engine's) takes and sleeps. Posting never blocks, never
 * allocates and cannot fail: requests are linked through the request itself, a cancellation is a cell per
 * stream, the rest are words.
 *
 * Sleeping: take a ticket, look at everything, sleep only while the ticket is current. A post changes the
 * word first and looks for a sleeper second; the sleeper announces itself first and looks at the word
 * second; all four accesses are sequentially consistent, so one of the two always sees the other. */
#ifndef GLMD_ENGINE_INBOX_H
#define GLMD_ENGINE_INBOX_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "sched_req.h"

struct inbox {
    _Atomic(struct sched_req *) pushed; /* newest first */
    _Atomic uint32_t *cancel_gen;       /* [max_streams] newest generation asked to end, 0 = none */
    uint32_t max_streams;
    _Atomic uint32_t cancels, kicks; /* counters; the engine compares */
    alignas(128) _Atomic uint32_t ticket;
    _Atomic uint32_t sleeping;
};

/* cells: [max_streams], zeroed */
void inbox_init(struct inbox *ib, _Atomic uint32_t *cells, uint32_t max_streams);

/* any thread */
void inbox_submit(struct inbox *ib, struct sched_req *req);
void inbox_cancel(struct inbox *ib, struct stream_id id);
void inbox_kick(struct inbox *ib);
void inbox_wake(struct inbox *ib);

/* engine thread */
uint32_t inbox_ticket(struct inbox *ib);
/* All requests posted so far, oldest first, linked by next; NULL when none. */
struct sched_req *inbox_take(struct inbox *ib);
bool inbox_cancelled(struct inbox *ib, struct stream_id id);
/* Sleeps until a post after the ticket, or until timeout_ns has passed (UINT64_MAX: no limit). Returns true
 * when there was a post; may return early. */
bool inbox_wait(struct inbox *ib, uint32_t ticket, uint64_t timeout_ns);

#endif
