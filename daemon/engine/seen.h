/* SPDX-License-Identifier: MIT */
/* Which tokens a sequence has seen and how often its output used them: the table behind the repetition,
 * presence and frequency penalties. Memory is given once; filling and clearing never allocate. Engine
 * thread only. */
#ifndef GLMD_ENGINE_SEEN_H
#define GLMD_ENGINE_SEEN_H

#include <stdint.h>

#include "kern.h"

struct seen {
    uint32_t *place;         /* [vocab] 1 + index into list, 0 = not seen */
    struct kern_seen *list;  /* [vocab] in order of first sight */
    uint32_t vocab, n;
};

static inline uint64_t seen_bytes(uint32_t vocab) {
    return (uint64_t)vocab * (sizeof(uint32_t) + sizeof(struct kern_seen));
}

/* mem: seen_bytes(vocab), zeroed, 8-aligned */
void seen_init(struct seen *s, void *mem, uint32_t vocab);
void seen_reset(struct seen *s);
void seen_add(struct seen *s, uint32_t token, uint32_t output_count);

#endif
