/* SPDX-License-Identifier: MIT */
/* A tier of checkpoints below memory: pages and recurrent states of prefixes, as blocks in files of one directory
 * (block.h), written and read by a thread of its own. It knows token ids, positions and bytes; whose bytes they are
 * and where they go is the caller's business. What comes back from it is what was put in or nothing: every block is
 * checked when it is read, and its ids are compared one by one with those that are asked for.
 *
 * Threads: spill_open and spill_close on the starting thread, when no other uses it; everything else on one thread
 * (the engine's), where nothing blocks and nothing is allocated. The wake hook is called from the spill thread.
 *
 * One checkpoint is written at a time and one read at a time, each through staging buffers made at start: the caller
 * copies a few blocks between two rounds of its own and comes back. */
#ifndef GLMD_SPILL_H
#define GLMD_SPILL_H

#include <stdbool.h>
#include <stdint.h>

#include "block.h"
#include "xerr.h"

struct spill;

enum { SPILL_PAGE_BUFFERS = 8 }; /* half of them for each direction */

struct spill_options {
    const char *dir;      /* absolute; must be there, and be ours */
    uint64_t max_bytes;   /* of all files */
    uint64_t keep_free;   /* bytes of the file system that stay free */
    bool survive;         /* blocks of an earlier daemon are used, and ours are left behind */
    bool plain;           /* no io_uring */
    struct spill_shape shape;
    void (*wake)(void *ctx); /* something has come back: call spill_poll; may be NULL */
    void *ctx;
};

/* Bytes spill_open will allocate, for planning; UINT64_MAX: they cannot be. */
uint64_t spill_mem_bytes(const struct spill_options *o);

/* Looks through the directory and starts the thread. Failing is no reason not to serve: the sentence says what the
 * daemon does without. ret_note gets what a human should know otherwise (found blocks of another model, …), or an
 * empty text. */
int spill_open(const struct spill_options *o, struct spill **ret, struct xerr *ret_note, struct xerr *err);
struct spill *spill_close(struct spill *s); /* waits for what is on its way; NULL ok */

/* Takes in what the thread has done. The calls below do it too. */
void spill_poll(struct spill *s);

/* ---- putting a checkpoint in ---- */

/* The state behind ids[0..pos) and its pages; ids are copied. mark: why it is kept, which spill_find tells. 1: begun;
 * 0: it is there already, or was written off; -EBUSY: another one is under way; -EINVAL: longer than the shape
 * allows. */
int spill_put(struct spill *s, uint64_t domain, uint8_t quality, uint8_t mark, const uint32_t *ids,
              uint32_t pos);

struct spill_piece {
    uint8_t kind;
    uint32_t page; /* SPILL_PAGE: which of the prefix */
    void *bytes;   /* payload: page_bytes or state_bytes of the shape */
};
/* The next piece the caller has to fill; the same one until spill_put_filled. 1: there is one; 0: the put is over,
 * done or given up; -EAGAIN: later, when something has come back. */
int spill_put_next(struct spill *s, struct spill_piece *ret);
void spill_put_filled(struct spill *s);
void spill_put_abort(struct spill *s); /* what it came from is gone; no put: nothing happens */
bool spill_put_busy(const struct spill *s);

/* ---- getting one out ---- */

struct spill_found {
    uint32_t pos;
    uint8_t quality, mark;
};
/* The deepest checkpoint at above < pos <= most on the path of ids. Positions are multiples of grid. */
bool spill_find(struct spill *s, uint64_t domain, const uint32_t *ids, uint32_t above, uint32_t most,
                uint32_t grid, struct spill_found *ret);
/* Begins reading what spill_find said; ids are copied. Of the pages before from_page, which the caller has, nothing is
 * read but the ids: the chain is proven all the same. -EBUSY: another one is under way; -ENOENT: gone. */
int spill_get(struct spill *s, uint64_t domain, const uint32_t *ids, uint32_t pos, uint32_t from_page);
/* The next piece, first the state, then the pages from from_page on in order; the same one until spill_get_taken. 1:
 * there is one; 0: that was all; -EAGAIN: later; -ENOENT: what was read is not what was asked for, and the tier has
 * forgotten it. */
int spill_get_next(struct spill *s, struct spill_piece *ret);
void spill_get_taken(struct spill *s);
void spill_get_abort(struct spill *s);
bool spill_get_busy(const struct spill *s);

/* ---- what is going on; spill_stats may be called by any thread ---- */

struct spill_stats {
    uint64_t bytes, max_bytes;
    uint32_t blocks, states, foreign;
    uint64_t puts, gets;    /* checkpoints that were written, read */
    uint64_t read_bytes;
    uint64_t refused;       /* puts given up for want of space or an error of the system */
    uint64_t damaged;       /* checkpoints forgotten because of what was read */
    uint64_t thrown_out;
    uint32_t error; /* of the last writing, as errno; 0: it went well */
    uint32_t writing_stopped; /* 1: writing fails again and again, and is not tried any more */
};
void spill_get_stats(const struct spill *s, struct spill_stats *ret);
const char *spill_io_text(const struct spill *s); /* how it reads and writes */

#endif
