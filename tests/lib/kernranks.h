/* SPDX-License-Identifier: MIT */
/* kernranks.h: one random model computed by several ranks of this process, each an instance of its own with a thread
 * while it waits. Everything aborts the test on failure. */
#ifndef GLMD_TEST_KERNRANKS_H
#define GLMD_TEST_KERNRANKS_H

#include "comm.h"
#include "kernmodel.h"

enum { KR_MAX = 8, KR_TIMEOUT_MS = 30000 };

struct kern_ranks {
    uint32_t n;
    void *mem; /* of the exchange */
    struct comm *end[COMM_MAX_RANKS];
    struct km_inst *rank[KR_MAX];
};

/* cfg: as for km_open(); its ranks are set here. */
struct kern_ranks *kr_open(const struct kernmodel *m, const char *backend, const struct kern_config *cfg, uint32_t n,
                           uint32_t timeout_ms);
void kr_close(struct kern_ranks *r);
/* Loads the plan and launches trunk, head and drafts on every rank, as km_run() does. */
void kr_launch(struct kern_ranks *r, struct km_plan *p);
/* kern_wait() on all ranks at once; ret[rank], or all must be 0. */
void kr_wait(struct kern_ranks *r, uint32_t lane, int ret[]);
void kr_run(struct kern_ranks *r, struct km_plan *p);
/* Rows of an activation, which must have the same bits on every rank. */
void kr_peek(struct kern_ranks *r, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n, float *dst);
/* Results, which must be the same on every rank. */
const struct kern_result *kr_results(struct kern_ranks *r, uint32_t lane);

#endif
