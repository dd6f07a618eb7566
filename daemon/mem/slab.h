/* SPDX-License-Identifier: MIT */
/* Request memory: a slab fixed before READY, cut into 64 KiB chunks, and bump allocators (arenas) over runs
 * of them. An arena has one owner at a time and is freed as a whole; io and text threads use the slab, the
 * engine and emit threads never do (a short mutex guards the chunk map). */
#ifndef GLMD_MEM_SLAB_H
#define GLMD_MEM_SLAB_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "account.h"

enum {
    MEM_CHUNK_BYTES = 64 << 10,
};

struct mem_slab {
    char *base;
    uint8_t *used; /* by chunk */
    uint32_t n_chunks, n_used, high, hint;
    uint64_t bytes;
    pthread_mutex_t lock; /* used, n_used, high, hint */
    struct mem_account *account;
};

struct mem_slab_usage {
    uint32_t chunks, used, high;
};

struct mem_arena {
    struct mem_slab *slab;
    char *run;             /* newest run; each begins with a link to the one before */
    uint64_t at, run_end;  /* bytes inside the newest run */
    uint64_t taken, limit; /* bytes of all runs */
};

/* bytes is rounded up to chunks, planned and taken as MEM_REQUESTS. */
int mem_slab_init(struct mem_slab *s, struct mem_account *a, uint64_t bytes);
void mem_slab_done(struct mem_slab *s); /* every arena must be done */
struct mem_slab_usage mem_slab_read(struct mem_slab *s);

/* limit_bytes counts whole chunks. Takes nothing yet. */
void mem_arena_init(struct mem_arena *a, struct mem_slab *s, uint64_t limit_bytes);
void mem_arena_done(struct mem_arena *a); /* frees everything at once; the arena may be used again */

/* n bytes at a power-of-two alignment of at most 64, not cleared. -EMSGSIZE: over this arena's limit,
 * -ENOBUFS: the slab has no such run left (try again when others have ended). n may be 0. */
int mem_arena_alloc(struct mem_arena *a, uint64_t n, uint64_t align, void **ret);
int mem_arena_copy(struct mem_arena *a, const void *src, uint64_t n, void **ret);

#endif
