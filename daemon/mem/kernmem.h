/* SPDX-License-Identifier: MIT */
/* The memory of a kernel backend: asked for, planned, allocated, filled with weights. The only daemon room
 * besides the engine that calls kernels/, and only for allocation and packing. */
#ifndef GLMD_MEM_KERNMEM_H
#define GLMD_MEM_KERNMEM_H

#include "account.h"
#include "kern.h"

struct mem_kern {
    char backend[32];
    uint64_t bytes[KERN_MEM_N];
    struct kern_block block[KERN_MEM_N];
    struct mem_account *account;
};

/* Step 1: what the backend needs for cfg goes into the plan of a. Nothing is allocated. */
int mem_kern_plan(struct mem_kern *m, struct mem_account *a, const char *backend,
                  const struct kern_config *cfg, struct xerr *e);
/* Step 2, after mem_check(): the blocks, ready for kern_open(). */
int mem_kern_alloc(struct mem_kern *m, struct xerr *e);
void mem_kern_free(struct mem_kern *m); /* after kern_close(); a half-made one is fine */

/* The sink of the loader: ctx is a struct mem_pack. Any number of threads at once for different windows. */
struct mem_pack {
    struct kern *k;
    _Atomic uint64_t bytes; /* handed over so far */
};

int mem_pack_window(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                    const void *bytes, uint64_t n);
/* Every part there? */
int mem_pack_done(struct mem_pack *p, struct xerr *e);

#endif
