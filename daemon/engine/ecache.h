/* SPDX-License-Identifier: MIT */
/* The engine's dealings with the prefix cache: what a request finds when it is admitted, where its prompt is cut so
 * that checkpoints can be taken, what it leaves behind. Engine thread, between rounds, when both lanes are idle;
 * only ecache_end may run while a prefill slice is in flight. Nothing here allocates. */
#ifndef GLMD_ENGINE_ECACHE_H
#define GLMD_ENGINE_ECACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "prefix.h"

struct engine;
struct eng_seq;
struct sched_req;

/* A request leaves at most ECACHE_MARKS checkpoints, whatever becomes of it: those of its prompt, and one of its
 * answer. On the way through a very long prompt there is one every ECACHE_LONG tokens, as long as there is room. */
enum { ECACHE_MARKS = 4, ECACHE_LONG = 16384 };

struct ecache_mark {
    uint32_t pos;
    enum prefix_kind kind;
};

/* One that a sequence has left; it may have gone since. */
struct ecache_own {
    uint64_t serial;
    uint32_t checkpoint, pos;
    enum prefix_kind kind;
};

/* A sequence's part of it. */
struct ecache_seq {
    bool on;         /* the request takes part */
    uint32_t cached; /* tokens of its prompt that were found */
    uint32_t exact;  /* leading rows that a cold run would have written; UINT32_MAX: and the state, so far */
    uint32_t n_marks, n_kept;
    struct ecache_mark marks[ECACHE_MARKS];
    uint32_t n_own;
    struct ecache_own own[ECACHE_MARKS + 1]; /* the last one only while it is decided which goes */
    uint32_t *answer; /* [max_context]: the ids behind the prompt; NULL: a script's, which goes nowhere */
    uint32_t n_answer;
    uint32_t roll_pos; /* of the state in roll; 0 = none */
    struct mem_slot roll;
};

/* ---- admission ---- */

/* What the pools could give, the cache's own included. */
void ecache_available(const struct engine *e, uint32_t *ret_pages, uint32_t *ret_slots);
/* Tells the scheduler what a queued stream would take, when that may have changed. */
void ecache_look(struct engine *e, uint32_t stream);
/* Gives the sequence, one that was away too, its slot and `total` pages, and the state of what was found: q->pos
 * tokens need not be read. -ENOBUFS: the pools do not have it; another error is the device's. */
int ecache_begin(struct engine *e, struct eng_seq *q, uint32_t total);
uint64_t ecache_domain(const struct sched_req *req); /* who may find what whom left */
/* Where this prompt and another part becomes one of its marks, if it may have one more. */
bool ecache_fork(struct eng_seq *q, uint32_t pos, uint32_t n_ids);
/* Streams whose prompt somebody else is just reading wait for the mark they share. */
void ecache_twins(struct engine *e);
void ecache_twin_new(struct engine *e, uint32_t stream); /* it has just been queued */
void ecache_changed(struct engine *e); /* somebody came, went, or passed a mark */

/* Pages, and a slot of those that are for checkpoints; both at the cost of what the cache could give up. -ENOBUFS. */
int ecache_take_pages(struct engine *e, uint32_t n, struct mem_page *ret);
int ecache_spare_slot(struct engine *e, struct mem_slot *ret);

/* ---- running ---- */

/* Where a chunk that begins at pos must end at the latest; UINT32_MAX: anywhere. */
uint32_t ecache_next_mark(struct engine *e, struct eng_seq *q, uint32_t pos);
/* The state stands at q->pos of the prompt: a checkpoint if that is a mark. */
void ecache_filled(struct engine *e, struct eng_seq *q);
void ecache_token(struct eng_seq *q, uint32_t token); /* sampled, to be fed next */
/* Before a step: states of answers that stand on the grid are set aside. */
int ecache_roll(struct engine *e);
/* The sequence gives up its slot and goes on later: its state is the cache's. */
void ecache_leave(struct engine *e, struct eng_seq *q);
/* eown.c: a sequence begins, with what was fetched for it (serial 0: nothing). */
void ecache_own_first(struct ecache_seq *c, const struct ecache_own *fetched);
/* The cache has just taken a checkpoint of the sequence. */
void ecache_own(struct engine *e, struct ecache_seq *c, uint32_t pos, enum prefix_kind kind);
/* A checkpoint on the way through its prompt would stay. */
bool ecache_own_long(struct engine *e, struct ecache_seq *c);
/* The stream ends; finished: as it should, so that its answer may come back in a prompt. */
void ecache_end(struct engine *e, struct eng_seq *q, bool finished);

#endif
