/* SPDX-License-Identifier: MIT */
/* The product's pools and its prefix cache beside a simulated engine (schedsim.h): what a job finds, takes, leaves and
 * gives back, as daemon/engine/ecache.c does it, but nothing is computed or copied. One thread. */
#ifndef GLMD_TEST_SIMCACHE_H
#define GLMD_TEST_SIMCACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "idpool.h"
#include "prefix.h"

enum { SIMCACHE_MARKS = 3 };

/* What a job has of it. */
struct simcache_seq {
    uint64_t domain;
    uint32_t *ids;    /* prompt and answer */
    uint32_t prompt, system, read; /* tokens: of the prompt, of its system block, to be read before it goes on */
    uint32_t n_pages; /* of its worst case */
    struct mem_page *pages; /* [n_pages] */
    struct mem_slot slot;
    uint32_t pos, exact; /* tokens in; of them as a cold run would have them */
    uint32_t marks[SIMCACHE_MARKS], n_marks;
    uint32_t roll_pos; /* of the answer's state set aside; 0 = none */
    struct mem_slot roll;
    bool holds, looked;
    uint64_t looked_at;
};

struct simcache {
    struct mem_account account;
    struct mem_page_pool pages;
    struct mem_slot_pool slots;
    struct prefix *prefix;
    void *memory;
    uint32_t n_spare; /* slots that are for checkpoints */
    uint32_t n_seqs, n_rolling;
    struct simcache_seq **seqs; /* all that may hold something */
    uint64_t moves;
};

/* n_seats: slots that the cache leaves to running jobs. 0, or negative errno. */
int simcache_init(struct simcache *c, uint32_t n_pages, uint32_t n_slots, uint32_t n_seats, uint64_t slot_bytes,
                  uint64_t page_bytes, struct simcache_seq **seqs, uint32_t n_seqs);
void simcache_done(struct simcache *c);

/* What could be had, what the cache would give up included. */
void simcache_available(const struct simcache *c, uint32_t *ret_pages, uint32_t *ret_slots);
/* What it would take and have to read. False: nothing has changed since it was looked at. */
bool simcache_look(struct simcache *c, struct simcache_seq *q, uint32_t *ret_pages, uint32_t *ret_left);
/* Slot and pages, behind what was found: q->pos. Returns how many pages are its own; -ENOBUFS. */
int simcache_take(struct simcache *c, struct simcache_seq *q);
/* Where a chunk that begins at q->pos must end at the latest. */
uint32_t simcache_next_mark(const struct simcache_seq *q);
void simcache_filled(struct simcache *c, struct simcache_seq *q); /* q->pos has come this far: perhaps a checkpoint */
void simcache_roll(struct simcache *c, struct simcache_seq *q);   /* before a step of its answer */
void simcache_leave(struct simcache *c, struct simcache_seq *q);  /* gives all back and goes on later */
void simcache_end(struct simcache *c, struct simcache_seq *q, bool finished);

/* What does not add up, NULL: nothing. deep: every page's holders and the tree. over: no sequence holds anything; the
 * cache is emptied, and then nothing may be taken. */
const char *simcache_check(struct simcache *c, bool deep, bool over);

#endif
