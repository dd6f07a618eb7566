/* SPDX-License-Identifier: MIT */
/* cudasim.h: CUDA on a host without one, for tests. Kernels are compiled as host C++ (g++ -x c++ -DCUDA_SIM, with this
 * directory in the include path instead of the toolkit's) and computed by one host thread.
 *
 * A block's threads are fibers: a thread runs until it waits at a barrier or a collective of its warp, then the next
 * of its warp runs, then the next warp. Blocks run one after the other. What the device leaves undefined stops the
 * program here, with the kernel, block and thread: a thread that ended while others wait at a barrier, lanes at
 * different collectives, a mask that is not full, dynamic shared memory past its end (a guard page). Device memory (of
 * large blocks a part), and dynamic shared memory of a grid's first block, begin as 0xff bytes, so that numbers read
 * before they are written are NaN; other blocks, and static __shared__ arrays, have what the block before left.
 *
 * Work on streams is deferred: nothing runs before something waits for it (a synchronisation, a query, a copy that
 * waits), so that results read too early, and host memory reused too early, show. Each query runs one operation.
 *
 * Calls of any host thread; they take turns. */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDASIM_WARP = 32, CUDASIM_SMEM_MAX = 101376, CUDASIM_SMEM_STATIC = 49152 };

/* ---- what tests steer ----------------------------------------------------------------------------------- */

/* 0: warps, lanes and blocks ascending; 1: all descending. Results must not depend on it. At the start the variable
 * CUDASIM_ORDER. */
void cudasim_order(int order);
/* true: streams run at once (also CUDASIM_EAGER=1), for programs that wait by reading memory. */
void cudasim_eager(bool eager);
/* The n-th runtime call from now on (1: the next) fails with e; for_ever: and all after it, as after a lost device.
 * n = 0: none. Queries of errors, releases and the calls of this header are not counted. */
void cudasim_fail(uint64_t n, cudaError_t e, bool for_ever);
uint64_t cudasim_calls(void); /* counted so far */
void cudasim_memory(uint64_t bytes); /* of the device; cudaMalloc beyond it fails. At the start 16 GiB. */
struct cudasim_live {
    uint64_t device_bytes, host_bytes;
    uint32_t blocks, streams, events, graphs, execs;
};
void cudasim_live(struct cudasim_live *ret); /* what was made and not released */
uint64_t cudasim_launches(void); /* kernels run so far, replays counted */

/* ---- what cuda_runtime.h builds on ------------------------------------------------------------------------ */

/* fn(args) is run by every thread of every block; n bytes at args are copied now. key: the kernel's address, to look up
 * what cudaFuncSetAttribute() said of it; NULL: not looked up. name: static. */
cudaError_t cudasim_launch_raw(const char *name, const void *key, dim3 grid, dim3 block, size_t smem, cudaStream_t s,
                               void (*fn)(const void *args), const void *args, size_t n);
void *cudasim_smem(void); /* the block's dynamic shared memory */
/* A collective of a warp: the last of the 32 lanes to come calls fn with what each handed in, by lane; then all go on.
 * Lanes that come with different fn stop the program. */
void cudasim_warp_all(void *mine, void (*fn)(void *const lane[CUDASIM_WARP]));
/* n threads (a multiple of 32) meet at barrier id, 0 .. 15; n = 0: the block. Returns how many gave a true value. */
unsigned cudasim_barrier(unsigned id, unsigned n, bool value);
__attribute__((noreturn)) void cudasim_die(const char *what);
unsigned cudasim_lane(void);

#ifdef __cplusplus
}
#endif
#endif
