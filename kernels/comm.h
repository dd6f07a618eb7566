/* SPDX-License-Identifier: MIT */
/* comm.h: what ranks tell each other inside a step. Plain C; knows bytes and ranks, nothing of models.
 *
 * All ranks make the same exchanges in the same order. In one, each rank has a part: it writes it into its slot,
 * sends it, does other work if it has some, waits, and then has the parts of all ranks, in rank order, to read where
 * they lie. A sum over ranks is made by its consumer, adding in rank order: the same bits on every rank. Parts of an
 * exchange stay until the next one's wait returns; the slot for the next part is free at once.
 *
 * Every exchange has a tag, which says what it belongs to. Ranks whose tags differ do not run the same step: each of
 * them says so and stops. No wait is endless, and what ends one names the rank that was missing or failed. After the
 * first failure every call of every rank fails with it.
 *
 * Slots belong to comm: a transport registers, pins or maps them once, before the first step. Nothing is allocated
 * later. Each endpoint is used by one thread at a time. */
#ifndef GLMD_COMM_H
#define GLMD_COMM_H

#include <stdint.h>

enum { COMM_MAX_RANKS = 64 };

struct comm;

struct comm_ops {
    /* Where this rank's part of the next exchange is written: slot_bytes, 64-aligned. */
    void *(*slot)(struct comm *c);
    /* The first `bytes` of the slot are this rank's part. Returns at once. -EMSGSIZE */
    int (*send)(struct comm *c, uint64_t tag, uint64_t bytes);
    /* Until all ranks have sent: ret_part[r] is rank r's. -ETIMEDOUT, -EBADMSG (tags differ), -EPIPE (a rank has
     * failed); c->error is one sentence. */
    int (*wait)(struct comm *c, const void *ret_part[]);
    /* This rank cannot go on: every rank's waits end with -EPIPE and `why`. The first failure counts. */
    void (*give_up)(struct comm *c, const char *why);
};

/* One rank's end, first member of the transport's own. */
struct comm {
    const struct comm_ops *ops;
    uint32_t rank, n;
    uint64_t slot_bytes;
    char error[320];
};

/* ---- ranks that are threads of this process (comm_local.c) ---- */

/* Bytes for n ranks, whose slots are slot_bytes each; 0: too many. */
uint64_t comm_local_bytes(uint32_t n, uint64_t slot_bytes);
/* Places everything into mem, 64-aligned, borrowed for as long as an endpoint is used. ret[r] is rank r's. */
int comm_local_open(void *mem, uint64_t bytes, uint32_t n, uint64_t slot_bytes, uint32_t timeout_ms,
                    struct comm *ret[]);

#endif
