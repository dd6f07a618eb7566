/* SPDX-License-Identifier: MIT */
/* prefill: 1,500 tokens through the engine on nano, one chunk, against the multiply-adds two threads can do
 * on registers. FLOPs are 2 x weights used x tokens (of the experts only those a token was sent to); rounds
 * of both alternate in one run; the figure is the ratio of the medians in percent.
 *
 * Bar: at least 25 %. BENCH_HANDICAP=1 makes the prompt take four times as long. */
#include <stdio.h>
#include <stdlib.h>

#include "benchcpu.h"
#include "benchlib.h"

enum { ROUNDS = 9, PROMPT = 1500, CHUNK = 1536 };

int main(void) {
    double rate[ROUNDS], peak[ROUNDS], flops = 0;
    struct bench_engine b;
    static uint32_t ids[PROMPT];
    int r = -1;

    for (uint32_t i = 0; i < PROMPT; i++)
        ids[i] = (i * 2654435761u >> 8) % 4000;
    if (bench_engine_open(&b, "build/models/nano", 2048, CHUNK, 1) < 0 ||
        bench_engine_prefill_flops(&b, ids, PROMPT, &flops) < 0 || bench_engine_run(&b) < 0)
        return 2;
    for (int i = -1; i < ROUNDS; i++) { /* one round to warm up */
        if ((r = bench_engine_request(&b, ids, PROMPT, 1)) < 0)
            break;
        double f = bench_fma(0.2);
        if (i >= 0) {
            rate[i] = flops / ((double)(b.s[0].token_ns[0] - b.s[0].begin_ns) / 1e9);
            peak[i] = f;
        }
    }
    bench_engine_close(&b);
    if (r < 0)
        return 2;
    double a = bench_median(rate, ROUNDS), p = bench_median(peak, ROUNDS);
    fprintf(stderr, "prefill: %.1f GFLOP in %.0f ms, %.1f GFLOP/s; peak (%s, %d threads) %.1f GFLOP/s\n",
            flops / 1e9, flops / a * 1e3, a / 1e9, bench_fma_name(), BENCH_THREADS, p / 1e9);
    return bench_verdict("prefill", a / p * 100, "%", 25.0, BENCH_AT_LEAST);
}
