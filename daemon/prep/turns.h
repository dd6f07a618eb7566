/* SPDX-License-Identifier: MIT */
/* The answers that the model wrote lately, by user: the ids, and what the client was shown of them. When a client
 * sends one back as history, its ids stand in the new prompt again, so that what was computed for them can be
 * used again. Bounded by bytes, the longest unused go first; nothing of one user is ever found for another.
 *
 * Text workers; one lock, held while answers are compared and copied, which allocates nothing but ids. */
#ifndef GLMD_TURNS_H
#define GLMD_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "siphash.h"
#include "tbuf.h"

struct turns;

enum { TURNS_MAX_ANSWER = 65536, TURNS_MAX_CALLS = 256 };

struct turn_call {
    struct tstr name;
    struct tstr args; /* canonical */
    struct tstr id;   /* of a message: the client's, may be empty */
};

struct turn { /* all borrowed; texts without white space around them */
    struct siphash before; /* of the prompt it followed */
    bool open;             /* that prompt ended inside the think block */
    const uint32_t *ids;
    uint32_t n_ids;
    uint32_t body_at; /* where in the ids its reasoning is over; UINT32_MAX: not to be told */
    struct tstr think, body;
    const struct turn_call *calls;
    uint32_t n_calls;
};

struct turn_query { /* an assistant message */
    struct siphash after_open, after_closed;
    bool cleared, has_think;
    struct tstr think, body;
    const struct turn_call *calls;
    uint32_t n_calls;
};

struct turn_found {
    bool whole; /* else from where the reasoning is over */
    bool open;
    uint32_t n_ids;
};

int turns_new(uint64_t max_bytes, uint64_t max_bytes_per_uid, struct turns **ret);
struct turns *turns_free(struct turns *t); /* NULL ok */
struct siphash turns_key(const struct turns *t); /* for the hashes of prompts */
uint32_t turns_answer_cap(const struct turns *t); /* longer answers are not remembered */

/* -E2BIG: more than one user may have; -ENOMEM. */
int turns_add(struct turns *t, uint32_t uid, const struct turn *turn);
bool turns_any(struct turns *t, uint32_t uid); /* whether there is anything to find */
/* True: *ids, which is grown as needed and the caller's to free, holds them. Never more than max_ids. */
bool turns_find(struct turns *t, uint32_t uid, const struct turn_query *q, uint32_t max_ids, uint32_t **ids,
                uint32_t *cap, struct turn_found *ret);

struct turns_stats {
    uint64_t bytes, answers, users; /* now */
    uint64_t added, whole, body, missed, evicted;
};
void turns_get_stats(struct turns *t, struct turns_stats *ret);

#endif
