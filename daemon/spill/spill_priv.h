/* SPDX-License-Identifier: MIT */
/* The tier, seen inside its room. The engine thread's, but for the two rings and what is atomic. */
#ifndef GLMD_SPILL_PRIV_H
#define GLMD_SPILL_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "spill_index.h"
#include "spill_io.h"
#include "spill.h"
#include "spsc.h"

enum {
    SPILL_SIDE_BUFFERS = SPILL_PAGE_BUFFERS / 2,
    SPILL_RING = 256,       /* commands on their way */
    SPILL_RING_SPARE = 32,  /* of them never for removals */
    SPILL_GIVE_UP_PUTS = 8, /* failed one after another, not for want of space */
    SPILL_MAX_SKIP = 64,
};

/* The one checkpoint that is being written. Its chain is kept by a hold on the last entry. */
struct spill_put {
    bool active, failed, given; /* given: the piece at `cur` is with the caller */
    uint64_t domain;
    uint8_t quality, mark;
    uint32_t pos, n_pages, next; /* next: first page not yet handed over; n_pages: the state */
    uint32_t tail, cur, state;   /* entries or SPILL_NONE */
    uint32_t outstanding;
    int error;
    uint32_t *ids;    /* [max_tokens] */
    uint64_t *hashes; /* [pages] behind each page, the last at pos */
    void *image;      /* of the piece */
};

/* The one that is being read: item 0 is the state, item 1 + i page i. */
struct spill_get {
    bool active, failed, checked; /* checked: the item at `taken` is what it should be */
    uint64_t domain;
    uint32_t pos, n_items, sent, ready, taken;
    uint32_t from_page; /* of those before it ids alone are read */
    uint32_t state;  /* entry, held */
    uint32_t broken; /* entry that must be forgotten, or SPILL_NONE */
    uint32_t outstanding;
    uint32_t *ids;   /* [max_tokens] */
    uint32_t *chain; /* [pages] entries */
};

struct spill {
    struct spill_options o;
    struct spill_io *io;
    struct spill_index ix;
    void *index_mem, *staging;
    uint64_t staging_bytes;
    uint64_t page_image_bytes, state_image_bytes; /* room for one */
    char *page_buffer[SPILL_PAGE_BUFFERS], *state_buffer;
    bool page_busy[SPILL_PAGE_BUFFERS], state_busy;
    struct spill_put put;
    struct spill_get get;
    struct spill_id last_id;
    uint32_t failures, skip, skipped; /* puts failed one after another; puts to leave out, left out */
    bool told_full, told_error;

    struct spsc commands, results; /* struct spill_op */
    pthread_t thread;
    bool has_thread, has_rings;
    _Atomic uint32_t stop;

    struct {
        _Atomic uint64_t bytes, puts, gets, read_bytes, refused, damaged, thrown_out;
        _Atomic uint32_t blocks, states, foreign, stopped, error;
    } stats;
};

static inline uint32_t spill_n_pages(const struct spill *s, uint32_t pos) {
    return (pos + s->o.shape.page_tokens - 1) / s->o.shape.page_tokens;
}
static inline void spill_count(_Atomic uint64_t *c) {
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* scan.c: what is in the directory, before the thread starts */
int spill_scan(struct spill *s, struct xerr *ret_note, struct xerr *err);
/* spill.c */
bool spill_send(struct spill *s, const struct spill_op *op);
void spill_send_removals(struct spill *s); /* as far as there is room */
/* put.c, get.c: a result of theirs has come; nothing is outstanding any more */
void spill_put_result(struct spill *s, const struct spill_op *op);
void spill_put_settle(struct spill *s);
void spill_get_result(struct spill *s, const struct spill_op *op);
void spill_get_settle(struct spill *s);

#endif
