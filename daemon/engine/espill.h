/* SPDX-License-Identifier: MIT */
/* The engine's dealings with the tier on disk (daemon/spill): checkpoints of the prefix cache are written there in the
 * background, and what a queued request would find there, further on than in memory, is brought back into the cache
 * while it waits. Engine thread, between rounds, when both lanes are idle; a few blocks are copied between two rounds
 * and no more. Opening and closing on the starting thread. */
#ifndef GLMD_ENGINE_ESPILL_H
#define GLMD_ENGINE_ESPILL_H

#include <stdbool.h>
#include <stdint.h>

#include "spill.h"
#include "units.h"
#include "xerr.h"

struct engine;

struct espill {
    struct spill *tier; /* NULL: none */
    bool wanted;
    char text[320]; /* how it works, or why there is none */
    uint64_t weights; /* digest of what was loaded */
    uint64_t charged; /* bytes of the tier's own memory in the account */
    bool more; /* there is something to do at once: the next round is soon, and not a calm one */

    /* the checkpoint that is being written */
    uint64_t *offered; /* [cache_slots] serials of those that were written or need not be */
    uint32_t *ids;     /* [max_context] */
    struct mem_page *out_pages; /* [pages of a context] references held */
    uint32_t out_point, out_n; /* held checkpoint or PREFIX_NONE */
    struct mem_slot out_slot;
    uint64_t looked_at; /* the cache, when nothing was found that is to be written */

    /* the one that is being read */
    struct mem_page *in_pages; /* [pages of a context] taken */
    uint32_t in_stream, in_n; /* ENGINE_NONE: none */
    struct mem_slot in_slot;
    struct spill_found in_found;
    uint32_t n_fetching; /* streams that wait for something from there */
    uint64_t progress_ns; /* when something came from there, or the first began to wait */
    bool stuck;           /* a read was given up and has not come back */
};

bool espill_is_wanted(const struct engine *e); /* and there is a cache to serve */
/* Bytes it will take beyond the arena, for planning, with blocks of these sizes. */
uint64_t espill_bytes(const struct engine *e, uint64_t page_bytes, uint64_t slot_bytes);
void espill_open(struct engine *e); /* after the weights; what goes wrong is said, and the engine does without */
void espill_close(struct engine *e);
/* One window of the weights, for the digest; any thread. */
uint64_t espill_mix(uint32_t part, uint32_t layer, uint32_t expert, uint64_t offset, const void *bytes, uint64_t n);

void espill_look(struct engine *e, uint32_t stream); /* it has just been queued */
void espill_gone(struct engine *e, uint32_t stream); /* it ends */
uint64_t espill_next_event(const struct engine *e);  /* UINT64_MAX: none */
/* What is being written stays in memory no longer: its pages may have been replaced in the cache meanwhile, and these
 * count as to be had. False: nothing was. */
bool espill_give_way(struct engine *e);
int espill_round(struct engine *e);                  /* an error is the device's */
void espill_flush(struct engine *e); /* the last round was: what is to survive is written, for some seconds at most */

#endif
