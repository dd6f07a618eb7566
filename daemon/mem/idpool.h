/* SPDX-License-Identifier: MIT */
/* Free lists of latent pages and of state slots. Fixed arrays made before READY; taking and giving allocates
 * nothing. One thread (the engine) uses a pool; counters may be read from any.
 *
 * A page is counted: it has as many holders as were ever told of it by take and ref, and is free again when the
 * last one gives it. A page may also be kept: one of its holders is the prefix cache, which parts with it when
 * asked. A kept page without another holder is idle, so free + idle is what can be had. */
#ifndef GLMD_MEM_IDPOOL_H
#define GLMD_MEM_IDPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "account.h"
#include "units.h"

struct mem_ids {    /* room-private; use the typed pools */
    uint32_t *free; /* stack of ids */
    uint32_t *refs; /* by id, 0 = free: a give too many is our own error and stops the daemon */
    uint8_t *kept;
    uint32_t n;
    _Atomic uint32_t n_used, high, idle;
    uint64_t bytes;
    struct mem_account *account;
};

struct mem_page_pool {
    struct mem_ids ids;
};

struct mem_slot_pool {
    struct mem_ids ids;
};

struct mem_pool_usage {
    uint32_t n, used, high; /* ids */
    uint32_t idle;          /* used by the prefix cache alone; 0 for slots */
};

/* The pool's own tables are charged to MEM_OTHER, which the call plans itself. -EINVAL: no ids. */
int mem_page_pool_init(struct mem_page_pool *p, struct mem_account *a, uint32_t n_pages);
void mem_page_pool_done(struct mem_page_pool *p);
/* All n or none: -ENOBUFS. The last given is the first taken, so that warm pages are used again. */
int mem_pages_take(struct mem_page_pool *p, uint32_t n, struct mem_page *ret);
/* One more holder for each. */
void mem_pages_ref(struct mem_page_pool *p, uint32_t n, const struct mem_page *pages);
/* One holder less for each; without holders a page is free. */
void mem_pages_give(struct mem_page_pool *p, uint32_t n, const struct mem_page *pages);
/* The prefix cache becomes a holder of the page, and stops being one. */
void mem_page_keep(struct mem_page_pool *p, struct mem_page page);
void mem_page_unkeep(struct mem_page_pool *p, struct mem_page page);
uint32_t mem_page_refs(const struct mem_page_pool *p, struct mem_page page);
bool mem_page_idle(const struct mem_page_pool *p, struct mem_page page);
struct mem_pool_usage mem_page_pool_read(const struct mem_page_pool *p);

int mem_slot_pool_init(struct mem_slot_pool *p, struct mem_account *a, uint32_t n_slots);
void mem_slot_pool_done(struct mem_slot_pool *p);
int mem_slot_take(struct mem_slot_pool *p, struct mem_slot *ret); /* -ENOBUFS */
void mem_slot_give(struct mem_slot_pool *p, struct mem_slot slot);
struct mem_pool_usage mem_slot_pool_read(const struct mem_slot_pool *p);

#endif
