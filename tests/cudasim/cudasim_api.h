/* SPDX-License-Identifier: MIT */
/* cudasim_api.h: what the halves of the simulated runtime share. Everything in here is touched in one's turn only. */
#ifndef CUDASIM_API_H
#define CUDASIM_API_H

#include <pthread.h>

#include "cudasim.h"

enum cudasim_kind { CUDASIM_DEVICE, CUDASIM_PINNED, CUDASIM_REGISTERED };

struct cudasim_range {
    struct cudasim_range *next;
    char *at, *map;
    size_t bytes, map_bytes;
    enum cudasim_kind kind;
};

struct cudasim_state {
    int order;
    bool eager, fail_for_ever;
    uint64_t calls, fail_in, total, launches;
    cudaError_t fail_with, lost; /* lost: every call answers so */
    struct cudasim_live live;
    struct cudasim_range *ranges;
    struct CUstream_st *streams;
    uint32_t capturing; /* streams */
};
extern struct cudasim_state cs;

void cudasim_lock(void);
cudaError_t cudasim_unlock(cudaError_t e);
/* Takes the turn, counts the call, and says whether it is one that shall fail. cudasim_unlock() follows always. */
cudaError_t cudasim_begin(void);
void cudasim_flush(void); /* runs everything that was enqueued */
const struct cudasim_range *cudasim_find(const void *p);
bool cudasim_valid(const void *p, size_t n, bool device, bool host);

#endif
