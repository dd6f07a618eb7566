/* SPDX-License-Identifier: MIT */
/* The simulated device itself (tests/cudasim): what waits for what, what is deferred, what graphs replay, and that what
 * a device leaves undefined stops the program with a sentence. */
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cudasim.h"

#define OK(call) ck_assert_msg((call) == cudaSuccess, "%s", #call)

extern uint3 cudasim_thread, cudasim_block;
extern dim3 cudasim_block_dim;

static cudaError_t launch(const char *name, unsigned blocks, unsigned threads, size_t smem, cudaStream_t s,
                          void (*fn)(const void *), const void *args, size_t n) {
    return cudasim_launch_raw(name, NULL, (dim3){blocks, 1, 1}, (dim3){threads, 1, 1}, smem, s, fn, args, n);
}

/* ---- threads ------------------------------------------------------------------------------------------------- */

struct lane {
    unsigned in, out;
};

static void add_up(void *const lane[CUDASIM_WARP]) {
    unsigned sum = 0;
    for (int i = 0; i < CUDASIM_WARP; i++)
        sum += ((struct lane *)lane[i])->in;
    for (int i = 0; i < CUDASIM_WARP; i++)
        ((struct lane *)lane[i])->out = sum;
}

static bool first_block;

/* Each warp sums up, then the warps over shared memory: out[block] = the sum over all threads of block + thread. */
static void sum_block(const void *args) {
    unsigned *out = *(unsigned *const *)args, *shared = cudasim_smem(), t = cudasim_thread.x;
    struct lane l = {cudasim_block.x + t, 0};
    cudasim_warp_all(&l, add_up);
    if (t % 32 == 0) {
        if (cudasim_block.x == (first_block ? 0u : 2u))
            ck_assert_uint_eq(shared[t / 32], UINT32_MAX); /* as poisoned */
        shared[t / 32] = l.out;
    }
    unsigned votes = cudasim_barrier(0, 0, t % 3 == 0);
    if (t == 0) {
        unsigned sum = 0;
        for (unsigned w = 0; w < cudasim_block_dim.x / 32; w++)
            sum += shared[w];
        out[cudasim_block.x] = sum;
        ck_assert_uint_eq(votes, (cudasim_block_dim.x + 2) / 3);
    }
    cudasim_barrier(0, 0, false);
}

START_TEST(barriers_and_collectives) {
    enum { BLOCKS = 3, THREADS = 256 };
    unsigned *out, got[BLOCKS];
    cudasim_order(_i);
    first_block = !_i;
    OK(cudaMalloc((void **)&out, sizeof(got)));
    OK(launch("sum_block", BLOCKS, THREADS, 64, NULL, sum_block, &out, sizeof(out)));
    OK(cudaMemcpy(got, out, sizeof(got), cudaMemcpyDeviceToHost));
    for (unsigned b = 0; b < BLOCKS; b++)
        ck_assert_uint_eq(got[b], THREADS * b + THREADS * (THREADS - 1) / 2);
    OK(cudaFree(out));
}
END_TEST

/* ---- what a device leaves undefined ---------------------------------------------------------------------------- */

static void one_ends(const void *args) {
    (void)args;
    if (cudasim_thread.x != 70)
        cudasim_barrier(0, 0, false);
}
static void others(void *const lane[CUDASIM_WARP]) {
    (void)lane;
}
static void two_collectives(const void *args) {
    struct lane l = {0, 0};
    (void)args;
    cudasim_warp_all(&l, cudasim_thread.x == 5 ? others : add_up);
}
static void lane_elsewhere(const void *args) {
    struct lane l = {0, 0};
    (void)args;
    if (cudasim_thread.x == 40)
        cudasim_barrier(0, 0, false);
    else
        cudasim_warp_all(&l, add_up);
}
static void past_the_end(const void *args) {
    (void)args;
    ((volatile char *)cudasim_smem())[64 + cudasim_thread.x] = 1;
}
static void part_of_a_warp(const void *args) {
    struct lane l = {0, 0};
    (void)args;
    cudasim_warp_all(&l, add_up);
}

static const struct {
    void (*fn)(const void *);
    unsigned threads;
} undefined[] = {
    {one_ends, 128}, {two_collectives, 32}, {lane_elsewhere, 64}, {past_the_end, 32}, {part_of_a_warp, 40}};
enum { UNDEFINED = sizeof(undefined) / sizeof(undefined[0]) };

START_TEST(undefined_is_said) {
    OK(launch("undefined", 1, undefined[_i].threads, 64, NULL, undefined[_i].fn, NULL, 0));
    OK(cudaDeviceSynchronize());
}
END_TEST

/* ---- streams and graphs ---------------------------------------------------------------------------------------- */

static void count(const void *args) {
    unsigned *n = *(unsigned *const *)args;
    if (!cudasim_thread.x)
        ++*n;
}

START_TEST(nothing_runs_before_it_is_waited_for) {
    unsigned *n, *seen;
    cudaStream_t s, t;
    cudaEvent_t e;
    OK(cudaMalloc((void **)&n, sizeof(*n)));
    OK(cudaHostAlloc((void **)&seen, sizeof(*seen), cudaHostAllocMapped));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    *seen = 99;
    OK(cudaMemsetAsync(n, 0, sizeof(*n), s));
    OK(launch("count", 1, 1, 0, s, count, &n, sizeof(n)));
    OK(cudaEventRecord(e, s));
    OK(launch("count", 1, 1, 0, s, count, &n, sizeof(n)));
    OK(cudaStreamWaitEvent(t, e, 0));
    OK(cudaMemcpyAsync(seen, n, sizeof(*n), cudaMemcpyDeviceToHost, t));
    ck_assert_uint_eq(*seen, 99);
    ck_assert_int_eq(cudaEventQuery(e), cudaErrorNotReady);
    OK(cudaStreamSynchronize(t));
    ck_assert_uint_eq(*seen, 1); /* what is behind the event has not run */
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(seen, n, sizeof(*n), cudaMemcpyDeviceToHost));
    ck_assert_uint_eq(*seen, 2);
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
    OK(cudaFree(n));
    OK(cudaFreeHost(seen));
}
END_TEST

START_TEST(graphs_replay) {
    unsigned *n, *in, *out;
    cudaStream_t s, t;
    cudaEvent_t fork, join;
    cudaGraph_t g;
    cudaGraphExec_t x;
    size_t nodes;
    OK(cudaMalloc((void **)&n, sizeof(*n)));
    OK(cudaHostAlloc((void **)&in, sizeof(*in), 0));
    OK(cudaHostAlloc((void **)&out, sizeof(*out), 0));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemcpyAsync(n, in, sizeof(*n), cudaMemcpyHostToDevice, s));
    OK(cudaEventRecord(fork, s));
    OK(cudaStreamWaitEvent(t, fork, 0));
    OK(launch("count", 1, 32, 0, t, count, &n, sizeof(n)));
    OK(cudaEventRecord(join, t));
    OK(cudaStreamWaitEvent(s, join, 0));
    OK(cudaMemcpyAsync(out, n, sizeof(*n), cudaMemcpyDeviceToHost, s));
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
    OK(cudaStreamEndCapture(s, &g));
    OK(cudaGraphGetNodes(g, NULL, &nodes));
    ck_assert_uint_eq(nodes, 3);
    OK(cudaGraphInstantiate(&x, g, 0));
    OK(cudaGraphDestroy(g));
    for (unsigned i = 5; i < 8; i++) {
        *in = i;
        OK(cudaGraphLaunch(x, s));
        OK(cudaStreamSynchronize(s));
        ck_assert_uint_eq(*out, i + 1);
    }
    OK(cudaGraphExecDestroy(x));
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
    OK(cudaFree(n));
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
    struct cudasim_live l;
    cudasim_live(&l);
    ck_assert(!l.device_bytes && !l.host_bytes && !l.blocks && !l.streams && !l.events && !l.graphs && !l.execs);
}
END_TEST

START_TEST(calls_fail_when_told) {
    void *p = NULL, *q = NULL;
    cudasim_fail(2, cudaErrorMemoryAllocation, false);
    OK(cudaMalloc(&p, 100));
    ck_assert_int_eq(cudaMalloc(&q, 100), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&q, 100));
    OK(cudaFree(q));
    cudasim_memory(150);
    ck_assert_int_eq(cudaMalloc(&q, 100), cudaErrorMemoryAllocation);
    cudasim_memory(1 << 20);
    cudasim_fail(1, cudaErrorIllegalAddress, true); /* a lost device stays lost */
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaMemset(p, 0, 100), cudaErrorIllegalAddress);
    cudasim_fail(0, cudaSuccess, false);
    OK(cudaMemset(p, 0, 100));
    ck_assert_int_eq(cudaMemset(p, 0, 101), cudaErrorInvalidValue);
    OK(cudaFree(p));
    ck_assert_int_eq(cudaFree(p), cudaErrorInvalidValue);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cudasim_run");
    TCase *t = tcase_create("simulation");
    tcase_add_loop_test(t, barriers_and_collectives, 0, 2);
    tcase_add_loop_test_raise_signal(t, undefined_is_said, SIGABRT, 0, UNDEFINED);
    tcase_add_test(t, nothing_runs_before_it_is_waited_for);
    tcase_add_test(t, graphs_replay);
    tcase_add_test(t, calls_fail_when_told);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
