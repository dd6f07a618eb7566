/* SPDX-License-Identifier: MIT */
/* What libglmd sent, read back with the daemon's own decoder: a fake daemon's next entry and its payload.  Test
 * processes only. */
#ifndef GLMD_REQBACK_H
#define GLMD_REQBACK_H

#include "fakedaemon.h"
#include "reqdec.h"

struct reqback {
    struct glmw_entry e;
    void *payload;
    void *mem;
    struct reqdec_req q;
};

extern const struct glmw_limits reqback_limits;

/* With the features that the fake granted.  0 or what the decoder refused it with; reqback_drop() in either case. */
int reqback(struct fake *f, struct reqback *ret, struct reqdec_err *ret_err);
/* The same of one that must be right. */
void reqback_ok(struct fake *f, struct reqback *ret);
void reqback_drop(struct reqback *b);

#endif
