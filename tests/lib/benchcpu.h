/* SPDX-License-Identifier: MIT */
/* Yardsticks for the speed bars, run by two threads at once, and an engine of our own. */
#ifndef GLMD_TEST_BENCHCPU_H
#define GLMD_TEST_BENCHCPU_H

#include <pthread.h>
#include <stdint.h>

#include "engine.h"
#include "kern.h"

enum { BENCH_THREADS = 2 };

/* Seconds one pass over the whole buffer takes two threads, each reading its half in 64-byte loads. bytes: a
 * multiple of 128; mean over `passes`. */
double bench_read(const void *buffer, uint64_t bytes, uint32_t passes);
/* Fused multiply-adds on registers, both threads, for about `seconds`: FLOP/s, two per multiply-add. The
 * widest instructions this machine has. */
double bench_fma(double seconds);
const char *bench_fma_name(void);
/* Memory from the system, zeroed, large pages when they can be had. NULL when there is none. */
void *bench_map(uint64_t bytes);
void bench_unmap(void *p, uint64_t bytes); /* NULL ok */

enum { BENCH_MAX_STREAMS = 16 };

struct bench_stream {
    struct sched_req req; /* the engine's until its end */
    uint32_t gen, n_tokens;
    int ended, status;
    uint64_t begin_ns;  /* when the request was made */
    uint64_t *token_ns; /* when each token was made; under BENCH_HANDICAP=1 held up (benchcpu.c) */
};

/* One loaded engine on the CPU backend with two threads. */
struct bench_engine {
    struct engine *e;
    pthread_t thread;
    int running;
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint32_t cap, n_streams;
    struct bench_stream s[BENCH_MAX_STREAMS];
    /* Of the newest decode step with this many tokens, taken on the engine's thread: read them after a wait. */
    struct kern_counters counters[BENCH_MAX_STREAMS + 1];
    int holds_up;
    uint64_t let_go_ns; /* the handicap's, the engine's thread alone: when the last step's delay was over */
};

/* 0, or -1 with the reason on stderr. prefill_tokens: rows of a chunk; streams: how many may run at once. */
int bench_engine_open(struct bench_engine *b, const char *model, uint32_t context, uint32_t prefill_tokens,
                      uint32_t streams);
/* Weight, state and cache bytes of the step that decodes the last of ids; before bench_engine_run. */
int bench_engine_step_bytes(struct bench_engine *b, const uint32_t *ids, uint32_t n, uint64_t *ret_bytes);
/* FLOPs of prefilling ids: 2 x weights used x tokens; before bench_engine_run. */
int bench_engine_prefill_flops(struct bench_engine *b, const uint32_t *ids, uint32_t n, double *ret_flops);
int bench_engine_run(struct bench_engine *b);
/* Prompt ids, then max_tokens tokens whatever they are. ids stay until the wait is over. */
int bench_engine_submit(struct bench_engine *b, uint32_t stream, const uint32_t *ids, uint32_t n,
                        uint32_t max_tokens);
int bench_engine_wait(struct bench_engine *b, uint32_t stream);
/* Both, for stream 0. */
int bench_engine_request(struct bench_engine *b, const uint32_t *ids, uint32_t n, uint32_t max_tokens);
void bench_engine_close(struct bench_engine *b);

#endif
