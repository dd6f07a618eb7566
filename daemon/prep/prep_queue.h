/* SPDX-License-Identifier: MIT */
/* The order in which text workers take requests: fair by user, weighted by the bytes of text, and never all workers
 * with large ones. A plain structure; prep.c holds its lock around every call. No thread and no clock of its own. */
#ifndef GLMD_PREP_QUEUE_H
#define GLMD_PREP_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

struct prep_req;

/* A request that is being worked on: on the worker's stack, because the request itself may be gone before the worker
 * hears of it. */
struct prep_turn {
    struct prep_turn *next;
    uint32_t uid;
    uint64_t finish;
    bool large;
};

struct prep_queue {
    struct prep_req *first; /* by start, then by age */
    struct prep_turn *turns;
    uint64_t now;     /* the start of what was taken last: bytes served, of each user who had something to do */
    uint32_t n_large; /* of the turns */
    uint32_t most_large;
};

void prep_queue_init(struct prep_queue *q, uint32_t workers);
void prep_queue_push(struct prep_queue *q, struct prep_req *r);
/* Something may be taken: with large ones alone in the queue and as many in work as may be, nothing. */
bool prep_queue_ready(const struct prep_queue *q);
/* NULL: as above. Otherwise end the turn with prep_queue_done(). */
struct prep_req *prep_queue_take(struct prep_queue *q, struct prep_turn *turn);
void prep_queue_done(struct prep_queue *q, struct prep_turn *turn);
bool prep_queue_remove(struct prep_queue *q, struct prep_req *r); /* false: it is not there */

#endif
