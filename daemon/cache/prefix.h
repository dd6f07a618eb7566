/* SPDX-License-Identifier: MIT */
/* The prefix cache: which beginnings of prompts need not be read again. A tree over token ids, one root per
 * sharing domain, whose nodes are pages of the latent pool and on which checkpoints of the recurrent state hang.
 * A hit is possible only where a checkpoint lies: rows alone are useless, and no function makes a recurrent state
 * from them.
 *
 * A node is one page: up to 256 ids, which are stored and compared; no hash decides anything. No node's ids are
 * the beginning of a sibling's. Under every node hangs at least one checkpoint. The rows of a node's page up to
 * its number of ids are written and never change; behind them a sequence that runs may still write, which is why
 * who continues in the middle of a page copies it. A checkpoint is a state slot that holds the state after
 * exactly `pos` tokens, a multiple of KERN_GRID.
 *
 * Exact means: what a cold run over the same ids would compute, bit for bit. What a decode step wrote is equal
 * within rounding only; rows and states carry that with them, and an exact newcomer replaces what is not.
 *
 * A pure structure: no threads, no clock (time is the count of its own calls), no compute, nothing allocated
 * after prefix_init. It is a holder of its pages (mem_page_keep) and owns its slots. The engine thread owns it. */
#ifndef GLMD_CACHE_PREFIX_H
#define GLMD_CACHE_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

#include "idpool.h"

enum { PREFIX_MISSES = 10, PREFIX_GHOSTS = 64 };

#define PREFIX_NONE UINT32_MAX

struct prefix;

struct prefix_config {
    uint32_t max_checkpoints; /* > 0 */
    uint32_t max_pages;       /* > 0, of the pool */
    uint64_t slot_bytes, page_bytes; /* what a checkpoint and a page cost */
    uint64_t max_bytes;       /* of both together; 0 = what the pools have */
};

/* A prompt, and behind it what was answered. */
struct prefix_text {
    const uint32_t *ids;
    uint32_t n_ids;
    const uint32_t *more;
    uint32_t n_more;
};

/* Why a checkpoint lies where it lies. */
enum prefix_kind {
    PREFIX_SYSTEM = 1, /* end of the system block */
    PREFIX_TURN,       /* a message boundary */
    PREFIX_END,        /* shortly before the prompt's end */
    PREFIX_REPLY,      /* the end of an answer */
    PREFIX_FORK,       /* where another prompt went its own way */
    PREFIX_LONG,       /* one of those on the way through a very long prompt */
};

struct prefix_hit {
    uint32_t checkpoint; /* PREFIX_NONE: a miss, pos is 0 */
    uint32_t pos;        /* tokens that need not be read */
    struct mem_slot slot; /* state after them */
    bool exact;          /* so would a cold run have it */
    uint32_t exact_rows; /* leading rows of which that is true */
    uint32_t shared;     /* leading ids equal to kept ones, with or without a checkpoint */
    uint32_t full_pages; /* of pos: shared by reference */
    uint32_t idle_pages; /* of all its pages: nobody else holds them at present */
};

/* The deepest checkpoint at most n - 1 tokens into the text. Changes nothing. */
void prefix_find(const struct prefix *t, uint64_t domain, const struct prefix_text *x, struct prefix_hit *ret);
/* Takes a reference on each page of the checkpoint's tokens for the caller (the last may be partly filled) and
 * pins the checkpoint: neither it nor its slot goes away before prefix_release. Returns the number of pages. */
uint32_t prefix_hold(struct prefix *t, uint32_t checkpoint, struct mem_page *ret_pages);
void prefix_release(struct prefix *t, uint32_t checkpoint);

struct prefix_new {
    uint64_t domain;
    struct prefix_text text;
    uint32_t pos;   /* > 0, on the grid, within the text */
    uint32_t exact; /* leading tokens that were read as a cold run would */
    enum prefix_kind kind;
    struct mem_slot slot;          /* state after pos tokens */
    const struct mem_page *pages;  /* that hold them, of a sequence that keeps its own references */
};
/* 0: kept, the slot is the cache's. Otherwise the slot stays the caller's: -EEXIST there is one already (it counts
 * as used just now), -ENOSPC the budgets do not allow it even after evictions, -EINVAL. */
int prefix_insert(struct prefix *t, const struct prefix_new *n);
/* The checkpoint that the last prefix_insert() added; PREFIX_NONE: it added none, it failed or replaced one. */
uint32_t prefix_newest(const struct prefix *t);
/* Whoever left it has better ones: it goes, unless it is pinned or gone already. */
bool prefix_drop(struct prefix *t, uint32_t checkpoint, uint64_t serial);

enum prefix_want { PREFIX_WANT_SLOT = 1, PREFIX_WANT_PAGE };
/* Gives up the checkpoint of least value, and the pages only it needed. PAGE: prefers those that free some. False:
 * nothing is left to give up. */
bool prefix_evict(struct prefix *t, enum prefix_want want);
void prefix_clear(struct prefix *t); /* everything that is not pinned */

/* ---- numbers ---- */

enum prefix_why {
    PREFIX_WHY_HIT = 0,
    PREFIX_WHY_NEW,      /* nothing kept begins like it */
    PREFIX_WHY_EVICTED,  /* there was a checkpoint further on */
    PREFIX_WHY_DOMAIN,   /* somebody else's prompt begins like it */
    PREFIX_WHY_DIVERGED, /* other ids from token `shared` on, before the next checkpoint */
    PREFIX_WHY_SHORT,    /* shorter than the grid */
    PREFIX_WHY_REFUSED,  /* the request wished no cache */
    PREFIX_WHY_N
};

/* A prompt of which less than half was found. */
struct prefix_miss {
    uint64_t when; /* as the caller counts */
    uint64_t domain;
    uint32_t prompt, hit, shared;
    enum prefix_why why;
};

struct prefix_counts {
    uint64_t lookups, hits, prompt_tokens, hit_tokens;
    uint64_t kept, evicted, replaced; /* checkpoints; replaced: by exact ones */
    uint64_t refused;                 /* checkpoints the budgets did not allow */
    uint64_t why[PREFIX_WHY_N];
    uint32_t checkpoints, pinned, pages, domains;
    uint64_t bytes;
};

/* Counts a lookup whose result was used, and says why it missed; `refused`: none was made because the request wished
 * so. */
enum prefix_why prefix_count(struct prefix *t, uint64_t domain, const struct prefix_text *x,
                             const struct prefix_hit *hit, bool refused, uint64_t when);
void prefix_get_counts(const struct prefix *t, struct prefix_counts *ret);
/* The last misses, newest first. Returns how many. */
uint32_t prefix_get_misses(const struct prefix *t, struct prefix_miss ret[PREFIX_MISSES]);
const char *prefix_why_name(enum prefix_why why); /* "diverged", … */

/* What is kept, for a tier below and for tests. checkpoint: 0 .. max_checkpoints-1. False: there is none. */
struct prefix_info {
    uint64_t domain;
    uint32_t pos, hits, pins;
    enum prefix_kind kind;
    bool exact; /* state and all rows */
    uint64_t serial; /* no other checkpoint ever has the same */
    struct mem_slot slot;
};
bool prefix_get(const struct prefix *t, uint32_t checkpoint, struct prefix_info *ret);
void prefix_get_ids(const struct prefix *t, uint32_t checkpoint, uint32_t *ret_ids); /* [pos] */

/* Bytes prefix_init needs. -EINVAL, -EOVERFLOW. */
int prefix_bytes(const struct prefix_config *cfg, uint64_t *ret_bytes);
/* mem: zeroed, 64-aligned, borrowed, as the pools are. */
int prefix_init(const struct prefix_config *cfg, void *mem, uint64_t bytes, struct mem_page_pool *pages,
                struct mem_slot_pool *slots, struct prefix **ret);

/* Whether everything adds up: links, counts, references, the rule about siblings. 0, or -EBADMSG and what does not.
 * For tests: it takes as long as the cache is large. */
int prefix_check(const struct prefix *t, const char **ret_what);

#endif
