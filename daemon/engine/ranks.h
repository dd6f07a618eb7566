/* SPDX-License-Identifier: MIT */
/* ranks.h: the instances that compute one model together, seen as one. Rank 0 is the engine thread's own; each of the
 * others has a thread, which is told what to load, launch, wait for and copy, in the order in which rank 0 does it.
 * All get the same bytes of each plan, and programs by their numbers.
 *
 * The engine thread (before it runs: the starting thread) calls everything. With one rank every function is rank 0's
 * kern_ function and nothing else. After ranks_start() nothing is allocated. A step that fails on one rank has failed
 * on all: no further call but ranks_close() is meaningful then. */
#ifndef GLMD_ENGINE_RANKS_H
#define GLMD_ENGINE_RANKS_H

#include <pthread.h>

#include "comm.h"
#include "kern.h"
#include "kernmem.h"

enum { RANKS_MAX = 8, RANKS_COMMANDS = 256, RANKS_TIMEOUT_MS = 30000 };

struct rank_command {
    uint32_t op, a, b;
    void *to;
    const void *from;
    uint64_t bytes;
};

struct rank {
    struct kern *k;
    struct mem_kern mem;
    struct ranks *group;
    uint32_t no;
    /* the thread's; none for rank 0 */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t told, done;
    uint64_t n_told, n_done; /* commands, under lock */
    int failed;              /* under lock: the first error of a step; none is done any more */
    int result;              /* under lock: of the last copy, read or write */
    struct rank_command command[RANKS_COMMANDS];
};

struct ranks {
    uint32_t n;
    uint32_t timeout_ms;
    struct rank rank[RANKS_MAX];
    struct comm *end[COMM_MAX_RANKS];
    void *comm_mem;
    uint64_t comm_bytes; /* 0: one rank */
    struct kern_plan *plan[KERN_LANES]; /* what the others read */
    uint64_t plan_bytes;
    bool unread[KERN_LANES]; /* perhaps not yet */
    uint64_t bytes[KERN_MEM_N]; /* of all ranks */
    struct mem_account *account;
    char error[320];
};

/* What all ranks of the configuration need, in sum; *ret_more: what they share. Errors as kern_query(). */
int ranks_query(const char *backend, const struct kern_config *cfg, uint64_t ret_bytes[KERN_MEM_N], uint64_t *ret_more);
/* Everything goes into the plan of a. cfg->n_ranks 1 .. RANKS_MAX; its rank and comm are not looked at. */
int ranks_plan(struct ranks *g, struct mem_account *a, const char *backend, const struct kern_config *cfg,
               struct xerr *err);
int ranks_alloc(struct ranks *g, struct xerr *err);
int ranks_open(struct ranks *g, const char *backend, const struct kern_config *cfg, struct xerr *err);
/* The loader's sink, and its end; any number of threads at once for different windows. */
int ranks_pack(struct ranks *g, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
               const void *bytes, uint64_t n);
int ranks_pack_done(struct ranks *g, struct xerr *err);
/* After every rank has captured the same programs. */
int ranks_start(struct ranks *g, struct xerr *err);
void ranks_close(struct ranks *g); /* joins the threads and closes the instances; a half-made group is fine */
void ranks_free(struct ranks *g);  /* gives the memory back */

/* ---- what kern.h does for one instance ---- */

int ranks_plan_load(struct ranks *g, const struct kern_plan *plan, uint64_t bytes);
int ranks_launch(struct ranks *g, const struct kern_prog *prog); /* one of rank 0's */
int ranks_wait(struct ranks *g, uint32_t lane);
const char *ranks_error(const struct ranks *g);

int ranks_slot_copy(struct ranks *g, uint32_t dst, uint32_t src);
int ranks_page_copy(struct ranks *g, uint32_t dst, uint32_t src);
/* A slot's bytes are those of all ranks, in order. A page's are any rank's. */
uint64_t ranks_slot_bytes(const struct ranks *g);
int ranks_slot_read(struct ranks *g, uint32_t slot, void *dst, uint64_t bytes);
int ranks_slot_write(struct ranks *g, uint32_t slot, const void *src, uint64_t bytes);
uint64_t ranks_page_bytes(const struct ranks *g);
int ranks_page_read(struct ranks *g, uint32_t page, void *dst, uint64_t bytes);
int ranks_page_write(struct ranks *g, uint32_t page, const void *src, uint64_t bytes);

#endif
