/* SPDX-License-Identifier: MIT */
/* What the tier holds: one entry per file, in tables of a size fixed at start. A pure structure: no files, no clock,
 * no allocation after init. The engine thread owns it (the starting thread before it runs).
 *
 * Pages form chains towards the front of their prefix; a state hangs at its last page. An entry lives as long as
 * something refers to it (a later page, a state, whoever holds it); states are what is thrown out, and pages go with
 * the last state that needs them. A prefix is found by a 64-bit hash, which only says where to look: what is found is
 * compared token by token when it has been read. */
#ifndef GLMD_SPILL_INDEX_H
#define GLMD_SPILL_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "block.h"

#define SPILL_NONE UINT32_MAX

enum spill_entry_state {
    SPILL_E_FREE = 0,
    SPILL_E_WRITING, /* not yet in its file */
    SPILL_E_READY,
    SPILL_E_DOOMED, /* its file is to be removed */
};

struct spill_entry {
    struct spill_id id;
    uint64_t domain, hash, bytes;
    uint64_t value; /* states and foreign ones: the least is thrown out first */
    uint32_t pos;
    uint32_t parent; /* entry, or SPILL_NONE */
    uint32_t refs;   /* entries whose parent it is, and holders */
    uint32_t next;   /* in its bucket, or in the list of free or doomed ones */
    uint32_t before, after; /* in the list of what can be thrown out */
    uint8_t kind, quality, state, bad; /* bad: found damaged, not to be found again */
    uint8_t mark; /* states */
};

struct spill_index {
    struct spill_entry *e;
    uint32_t *buckets; /* a power of two */
    uint32_t n, mask;
    uint32_t free, doomed, first; /* heads of lists */
    uint32_t n_used, n_states, n_foreign;
    uint64_t bytes; /* of files that are not doomed */
    uint64_t floor; /* value of what was thrown out last: what comes now counts from there */
};

uint64_t spill_index_bytes(uint32_t max_entries);
void spill_index_init(struct spill_index *ix, void *mem, uint32_t max_entries); /* mem: 8-aligned, zeroed */

/* A prefix one token longer; 0 to begin with. */
static inline uint64_t spill_hash_step(uint64_t h, uint32_t id) {
    h = (h ^ id) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    return h ^ h >> 29;
}

/* Takes an entry for what `e` says: kind, quality, mark, state, pos, parent, domain, hash, id,
 * bytes. Its parent gains a
 * reference. SPILL_NONE: no room. */
uint32_t spill_index_add(struct spill_index *ix, const struct spill_entry *e);
/* Not in the list of doomed ones yet and not bad. parent SPILL_NONE finds states with any parent. */
uint32_t spill_index_find(const struct spill_index *ix, uint8_t kind, uint64_t domain, uint32_t pos, uint64_t hash,
                          uint32_t parent, uint8_t worst_quality);

void spill_index_hold(struct spill_index *ix, uint32_t i);
/* Lets go; a page that nothing refers to any more is doomed, and so on along its chain. */
void spill_index_release(struct spill_index *ix, uint32_t i);
void spill_index_used(struct spill_index *ix, uint32_t i); /* a state was of use */
/* Dooms an entry that nothing refers to, and the pages that only it needed. */
void spill_index_drop(struct spill_index *ix, uint32_t i);
/* A damaged entry, which the caller does not hold: it and every state behind it go, as soon as nobody holds them. */
void spill_index_condemn(struct spill_index *ix, uint32_t i);
/* What is worth least and held by nobody; SPILL_NONE: nothing can go. */
uint32_t spill_index_victim(const struct spill_index *ix);

/* Takes one doomed entry out for good; its id and kind go to ret. False: there is none. */
bool spill_index_reap(struct spill_index *ix, struct spill_entry *ret);

/* 0, or the number of a rule that does not hold (tests). */
int spill_index_audit(const struct spill_index *ix);

#endif
