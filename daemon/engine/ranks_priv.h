/* SPDX-License-Identifier: MIT */
/* ranks_priv.h: between ranks.c and ranks_run.c. */
#ifndef GLMD_ENGINE_RANKS_PRIV_H
#define GLMD_ENGINE_RANKS_PRIV_H

#include "ranks.h"

/* What a rank's thread is told; those up to OP_WAIT are parts of a step. */
enum {
    OP_LOAD = 1,
    OP_LAUNCH,
    OP_WAIT,
    OP_SLOT_COPY,
    OP_PAGE_COPY,
    OP_SLOT_READ,
    OP_SLOT_WRITE,
    OP_PAGE_WRITE,
    OP_QUIT
};

void ranks_tell(struct rank *w, const struct rank_command *c);
void ranks_stop(struct ranks *g); /* ends and joins the threads there are */

#endif
