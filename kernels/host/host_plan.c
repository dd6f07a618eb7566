/* SPDX-License-Identifier: MIT */
/* Facts about a checked plan that several backends need. Pure functions, any thread. */
#include "host.h"

uint32_t host_draft_rows(const struct kern_plan *p, const struct kern_seq *s) {
    uint32_t n = 0;
    if (!(s->flags & KERN_SEQ_DRAFT))
        return 0;
    while (n < s->n_rows && plan_rows(p)[s->row0 + n].next != KERN_NONE)
        n++;
    return n;
}
