/* SPDX-License-Identifier: MIT */
/* sched_batch: eight streams decoding at once on nano against one, two threads. Rounds of one stream, of eight and
 * of the reader alternate in one run; figures are medians.
 *
 * Bars: `batch-8`: eight streams make at least 2.5 times the tokens of one in the same time, and `batch-8-decode`
 * one stream's step is at most 3.0 times the reader's pass over its bytes, as in `decode`. `batch-8-bytes`: what a
 * step of eight reads of everything but the routed experts is at most 1.3 times what a step of one reads; counted.
 * BENCH_HANDICAP=1 makes a step four times as long, or eight times with eight tokens (benchcpu.c); and runs the
 * mutation build with products that read their weights for each row anew. */
#include <stdio.h>
#include <stdlib.h>

#include "benchcpu.h"
#include "benchlib.h"

enum { STREAMS = 8, ROUNDS = 9, PROMPT = 200, STEPS = 40, MORE = 400, PASSES = 40, CAP = 2048 };

static uint32_t ids[STREAMS][PROMPT];

/* Seconds of a step, the median over the steps in which all n streams got a token. */
static int one_round(struct bench_engine *b, uint32_t n, uint32_t round, double *ret) {
    static double gap[CAP];
    uint64_t from = 0, to = UINT64_MAX;
    uint32_t tokens = n == 1 ? STEPS + 1 : STEPS + MORE, k = 0;

    for (uint32_t s = 0; s < n; s++) {
        for (uint32_t i = 0; i < PROMPT; i++)
            ids[s][i] = ((i * 2654435761u + (round * STREAMS + s) * 40503u) >> 8) % 4000;
        if (bench_engine_submit(b, s, ids[s], PROMPT, tokens) < 0)
            return -1;
    }
    for (uint32_t s = 0; s < n; s++)
        if (bench_engine_wait(b, s) < 0 || b->s[s].n_tokens != tokens)
            return -1;
    for (uint32_t s = 0; s < n; s++) {
        from = b->s[s].token_ns[0] > from ? b->s[s].token_ns[0] : from;
        to = b->s[s].token_ns[tokens - 1] < to ? b->s[s].token_ns[tokens - 1] : to;
    }
    for (uint32_t i = 1; i < tokens; i++)
        if (b->s[0].token_ns[i - 1] >= from && b->s[0].token_ns[i] <= to)
            gap[k++] = (double)(b->s[0].token_ns[i] - b->s[0].token_ns[i - 1]) / 1e9;
    if (k < STEPS) {
        fprintf(stderr, "sched_batch: only %u steps had all %u streams\n", k, n);
        return -1;
    }
    *ret = bench_median(gap, k);
    return 0;
}

static int verdicts(struct bench_engine *b, double *one, double *eight, double *pass, size_t n, uint64_t bytes) {
    const struct kern_counters *c1 = &b->counters[1], *c8 = &b->counters[STREAMS];
    double s1 = bench_median(one, n), s8 = bench_median(eight, n), p = bench_median(pass, n);
    double d1 = (double)(c1->weight_bytes - c1->expert_bytes), d8 = (double)(c8->weight_bytes - c8->expert_bytes);
    int r;

    fprintf(stderr, "batch-8: a step of one takes %.0f us, of eight %.0f us; reading %.2f MB %.0f us\n", s1 * 1e6,
            s8 * 1e6, (double)bytes / 1e6, p * 1e6);
    fprintf(stderr, "batch-8: weight bytes of a step of one %.2f MB, %.2f of them dense; of eight %.2f, %.2f\n",
            (double)c1->weight_bytes / 1e6, d1 / 1e6, (double)c8->weight_bytes / 1e6, d8 / 1e6);
    r = bench_verdict("batch-8", STREAMS * s1 / s8, "x", 2.5, BENCH_AT_LEAST);
    r |= bench_verdict("batch-8-decode", s1 / p, "x", 3.0, BENCH_AT_MOST);
    return r | bench_verdict("batch-8-bytes", d1 > 0 ? d8 / d1 : 1e9, "x", 1.3, BENCH_AT_MOST);
}

static int bench(void) {
    double one[ROUNDS], eight[ROUNDS], pass[ROUNDS];
    int rounds = bench_handicap() ? 1 : ROUNDS;
    struct bench_engine b;
    uint64_t bytes = 0;
    void *buffer = NULL;
    int r = -1;

    bench_step_forward();
    if (bench_engine_open(&b, "build/models/nano", CAP, 512, STREAMS) < 0)
        return 2;
    for (uint32_t i = 0; i < PROMPT; i++)
        ids[0][i] = (i * 2654435761u >> 8) % 4000;
    if (bench_engine_step_bytes(&b, ids[0], PROMPT, &bytes) < 0 || bench_engine_run(&b) < 0 ||
        !(buffer = bench_map(bytes)))
        return 2;
    for (int i = -2; i < rounds; i++) { /* two rounds to warm up */
        double s1, s8, p;

        if ((r = one_round(&b, 1, (uint32_t)(2 * i + 10), &s1)) < 0 ||
            (r = one_round(&b, STREAMS, (uint32_t)(2 * i + 11), &s8)) < 0)
            break;
        p = bench_read(buffer, bytes, PASSES);
        if (i >= 0) {
            one[i] = s1;
            eight[i] = s8;
            pass[i] = p;
        }
    }
    r = r < 0 ? 2 : verdicts(&b, one, eight, pass, (size_t)rounds, bytes);
    bench_engine_close(&b);
    return r;
}

int main(void) {
    static const struct bench_handicap h[] = {
        {"bench_holds_up", "batch-8 batch-8-decode"},
        {"cpu_row_by_row", "batch-8-bytes"},
    };

    return bench_main(bench, h, sizeof h / sizeof *h);
}
