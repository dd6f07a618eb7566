/* SPDX-License-Identifier: MIT */
/* First fit over a sorted list of taken spans.  At most one span per live request exists, so walking the
 * list costs less than the copy that follows.  Runs on the connection's thread. */
#include "clarena.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void cl_arena_init(struct cl_arena *a, uint64_t size_bytes) {
    *a = (struct cl_arena){.size_bytes = size_bytes & ~(uint64_t)(CL_ARENA_ALIGN_BYTES - 1)};
}

void cl_arena_done(struct cl_arena *a) {
    free(a->spans);
    *a = (struct cl_arena){0};
}

static int grow(struct cl_arena *a) {
    uint32_t cap = a->cap ? a->cap * 2 : 16;
    struct cl_span *p = realloc(a->spans, cap * sizeof *p);
    if (!p)
        return -ENOMEM;
    a->spans = p;
    a->cap = cap;
    return 0;
}

int cl_arena_take(struct cl_arena *a, uint64_t len, uint64_t *ret_off) {
    if (len > a->size_bytes)
        return -EMSGSIZE;
    uint64_t need = (len + CL_ARENA_ALIGN_BYTES - 1) & ~(uint64_t)(CL_ARENA_ALIGN_BYTES - 1);
    if (!need)
        need = CL_ARENA_ALIGN_BYTES;
    uint64_t from = 0;
    uint32_t i = 0;
    for (; i < a->n; i++) {
        if (a->spans[i].off - from >= need)
            break;
        from = a->spans[i].off + a->spans[i].len;
    }
    if (i == a->n && a->size_bytes - from < need)
        return -ENOBUFS;
    if (a->n == a->cap) {
        int r = grow(a);
        if (r < 0)
            return r;
    }
    memmove(&a->spans[i + 1], &a->spans[i], (a->n - i) * sizeof a->spans[0]);
    a->spans[i] = (struct cl_span){.off = from, .len = need};
    a->n++;
    *ret_off = from;
    return 0;
}

void cl_arena_give(struct cl_arena *a, uint64_t off) {
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->spans[i].off != off)
            continue;
        memmove(&a->spans[i], &a->spans[i + 1], (a->n - i - 1) * sizeof a->spans[0]);
        a->n--;
        return;
    }
}
