/* SPDX-License-Identifier: MIT */
/* decode: one stream's step through the engine on nano, against two threads that read exactly as many bytes
 * as the step touches (the weights it reads with only the chosen experts, the recurrent state, the latents)
 * in 64-byte loads. Rounds of both alternate in one run; the figure is the ratio of their medians.
 *
 * Bar: at most 3.0. BENCH_HANDICAP=1 makes every step take four times as long. */
#include <stdio.h>
#include <stdlib.h>

#include "benchcpu.h"
#include "benchlib.h"

enum { ROUNDS = 21, PROMPT = 200, STEPS = 40, PASSES = 40 };

/* Seconds of a step: the median over the intervals between the tokens of one request. */
static int one_round(struct bench_engine *b, const uint32_t *ids, double *ret) {
    double gap[STEPS];
    uint32_t n = 0;

    if (bench_engine_request(b, ids, PROMPT, STEPS + 1) < 0 || b->s[0].n_tokens != STEPS + 1)
        return -1;
    for (; n < STEPS; n++)
        gap[n] = (double)(b->s[0].token_ns[n + 1] - b->s[0].token_ns[n]) / 1e9;
    *ret = bench_median(gap, n);
    return 0;
}

int main(void) {
    double step[ROUNDS], pass[ROUNDS];
    struct bench_engine b;
    uint32_t ids[PROMPT];
    uint64_t bytes = 0;
    void *buffer = NULL;
    int r = -1;

    for (uint32_t i = 0; i < PROMPT; i++)
        ids[i] = (i * 2654435761u >> 8) % 4000;
    if (bench_engine_open(&b, "build/models/nano", 2048, 512, 1) < 0 ||
        bench_engine_step_bytes(&b, ids, PROMPT, &bytes) < 0 || bench_engine_run(&b) < 0 ||
        !(buffer = bench_map(bytes)))
        return 2;
    for (int i = -2; i < ROUNDS; i++) { /* two rounds to warm up */
        double s, p;

        if ((r = one_round(&b, ids, &s)) < 0)
            break;
        p = bench_read(buffer, bytes, PASSES);
        if (i >= 0) {
            step[i] = s;
            pass[i] = p;
        }
    }
    bench_engine_close(&b);
    if (r < 0)
        return 2;
    double a = bench_median(step, ROUNDS), c = bench_median(pass, ROUNDS);
    fprintf(stderr, "decode: a step takes %.0f us, reading its %.2f MB %.0f us (%.1f GB/s)\n", a * 1e6,
            (double)bytes / 1e6, c * 1e6, (double)bytes / c / 1e9);
    return bench_verdict("decode", a / c, "x", 3.0, BENCH_AT_MOST);
}
