/* SPDX-License-Identifier: MIT */
/* The three things a sequence counts in, as types of their own: a page of the pool, a state slot, a row of
 * the cache (a token's position in its sequence). Passing one for another does not compile. */
#ifndef GLMD_MEM_UNITS_H
#define GLMD_MEM_UNITS_H

#include <stdint.h>

#include "kern.h"

struct mem_page {
    uint32_t id; /* of the pool, 0 .. n_pages-1 */
};

struct mem_slot {
    uint32_t id; /* 0 .. n_slots-1 */
};

struct mem_row {
    uint32_t pos; /* absolute position in the sequence */
};

/* Index into a sequence's page table, not a page of the pool. */
static inline uint32_t mem_row_table_index(struct mem_row r) {
    return r.pos / KERN_PAGE_TOKENS;
}

static inline uint32_t mem_row_in_page(struct mem_row r) {
    return r.pos % KERN_PAGE_TOKENS;
}

/* Pages that hold rows 0 .. n_rows-1. */
static inline uint32_t mem_pages_for(uint32_t n_rows) {
    return n_rows / KERN_PAGE_TOKENS + (n_rows % KERN_PAGE_TOKENS != 0);
}

#endif
