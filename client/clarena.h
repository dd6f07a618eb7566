/* SPDX-License-Identifier: MIT */
/* Who owns which bytes of the payload arena of region U.  Book-keeping only: it never touches the arena,
 * so nothing the daemon does can disturb it.  Used by the thread that owns the connection. */
#ifndef GLMD_CLARENA_H
#define GLMD_CLARENA_H

#include <stdint.h>

/* Spans start on cache lines, so that two payloads never share one. */
#define CL_ARENA_ALIGN_BYTES 64u

struct cl_span {
    uint64_t off;
    uint64_t len;
};

struct cl_arena {
    uint64_t size_bytes;
    struct cl_span *spans; /* taken, in order of off */
    uint32_t n;
    uint32_t cap;
};

void cl_arena_init(struct cl_arena *a, uint64_t size_bytes);
void cl_arena_done(struct cl_arena *a);

/* -EMSGSIZE: can never fit; -ENOBUFS: does not fit now; -ENOMEM */
int cl_arena_take(struct cl_arena *a, uint64_t len, uint64_t *ret_off);
void cl_arena_give(struct cl_arena *a, uint64_t off);

#endif
