/* SPDX-License-Identifier: MIT */
/* under-fill: what a decoding stream and a prompt of 8,000 tokens leave each other. nano on the cpu backend with two
 * threads; five rounds of: the prompt alone, the stream alone, both, the stream alone again, so that what changes on
 * the machine meets all of them; the medians of the rounds' ratios. A token's time is when it is published.
 *
 * Bars: each keeps 45 % of its own rate, both together 95 %; the 95th percentile of the gaps between two tokens is
 * at most the target, the longest at most twice; under 1 % of them are shorter than 0.3 times their median.
 * BENCH_HANDICAP=1 runs the mutation build: chunks are read whole between two tokens, a prompt is given a
 * quarter of its share, the engine idles behind every slice, one token in four is published with the next. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchlib.h"
#include "engine.h"

enum { ROUNDS = 5, PROMPT = 8000, QUIET = 400, ANSWER = 16000, TARGET_MS = 25 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t t_ns[ANSWER]; /* when the stream's tokens were published */
    uint32_t n, n_ends[8];
    uint64_t first_ns; /* of the prompt's first token */
} got = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint32_t prompt[PROMPT], start[64];

static void on_publish(void *ctx, const struct stream_event *ev, uint32_t n) {
    uint64_t now = bench_now_ns();

    (void)ctx;
    pthread_mutex_lock(&got.lock);
    for (uint32_t i = 0; i < n; i++) {
        if (ev[i].type == STREAM_EV_TOKEN && ev[i].stream.index == 0 && got.n < ANSWER)
            got.t_ns[got.n++] = now;
        if (ev[i].type == STREAM_EV_TOKEN && ev[i].stream.index == 1)
            got.first_ns = now;
        got.n_ends[ev[i].stream.index] += ev[i].type == STREAM_EV_END;
    }
    pthread_cond_broadcast(&got.changed);
    pthread_mutex_unlock(&got.lock);
}

static void *engine_main(void *arg) {
    (void)engine_run(arg);
    return NULL;
}

static struct sched_req request(uint32_t stream, uint32_t gen, const uint32_t *ids, uint32_t n, uint32_t max_tokens) {
    return (struct sched_req){.stream = {.index = stream, .gen = gen},
                              .uid = stream,
                              .ids = ids,
                              .n_ids = n,
                              .max_tokens = max_tokens,
                              .ignore_eos = true,
                              .quiet = true,
                              .sampling = {.top_p = 1.0f, .repetition = 1.0f}};
}

static void wait_tokens(uint32_t n) {
    pthread_mutex_lock(&got.lock);
    while (got.n < n && !got.n_ends[0])
        pthread_cond_wait(&got.changed, &got.lock);
    pthread_mutex_unlock(&got.lock);
}

static uint32_t tokens(void) {
    uint32_t n;

    pthread_mutex_lock(&got.lock);
    n = got.n;
    pthread_mutex_unlock(&got.lock);
    return n;
}

static void wait_end(uint32_t stream, uint32_t n) {
    pthread_mutex_lock(&got.lock);
    while (got.n_ends[stream] < n)
        pthread_cond_wait(&got.changed, &got.lock);
    pthread_mutex_unlock(&got.lock);
}

struct figures {
    double decode, fill, both, p95_ms, longest_ms, short_part;
};

static double seconds(uint32_t from, uint32_t to) {
    return (double)(got.t_ns[to] - got.t_ns[from]) / 1e9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void gaps(uint32_t from, uint32_t to, struct figures *f) {
    static double gap[ANSWER];
    uint32_t n = to - from, shorter = 0;

    for (uint32_t i = 0; i < n; i++)
        gap[i] = (double)(got.t_ns[from + i + 1] - got.t_ns[from + i]) / 1e6;
    qsort(gap, n, sizeof *gap, by_value);
    for (uint32_t i = 0; i < n; i++)
        shorter += gap[i] < 0.3 * gap[n / 2];
    f->p95_ms = gap[n * 95 / 100];
    f->longest_ms = gap[n - 1];
    f->short_part = (double)shorter / n;
}

static int one_round(struct engine *e, uint32_t round, struct figures *f) {
    struct sched_req s = request(0, round, start, 64, ANSWER), p = request(1, 2 * round, prompt, PROMPT, 1);
    uint64_t begun;
    double alone, quiet;
    uint32_t from, to, end;

    for (uint32_t i = 0; i < PROMPT; i++)
        prompt[i] = 20 + (i * 7 + round * 131) % 1000;
    got.n = got.n_ends[0] = got.n_ends[1] = 0;
    begun = bench_now_ns();
    if (engine_submit(e, &p) < 0)
        return -1;
    wait_end(1, 1);
    alone = PROMPT * 1e9 / (double)(got.first_ns - begun);
    if (engine_submit(e, &s) < 0)
        return -1;
    wait_tokens(51 + QUIET);
    p.stream.gen++;
    begun = bench_now_ns();
    if (engine_submit(e, &p) < 0)
        return -1;
    wait_end(1, 2);
    end = tokens();
    wait_tokens(end + 51 + QUIET);
    engine_cancel(e, s.stream);
    wait_end(0, 1);
    if (got.n < end + 51 + QUIET)
        return -1;
    quiet = 2 * QUIET / (seconds(50, 50 + QUIET) + seconds(end + 50, end + 50 + QUIET));
    for (from = 0; from < got.n && got.t_ns[from] < begun; from++)
        ;
    for (to = from; to + 1 < got.n && got.t_ns[to + 1] <= got.first_ns; to++)
        ;
    if (to < from + 10)
        return -1;
    f->decode = (to - from) / seconds(from, to) / quiet;
    f->fill = PROMPT * 1e9 / (double)(got.first_ns - begun) / alone;
    f->both = f->decode + f->fill;
    gaps(from, to, f);
    printf("# round %u: stream alone %.0f tokens/s, prompt alone %.0f; together %.3f + %.3f; gaps p95 %.2f ms, longest "
           "%.2f ms\n",
           round, quiet, alone, f->decode, f->fill, f->p95_ms, f->longest_ms);
    return 0;
}

static double median_of(const struct figures *f, uint32_t n, size_t off) {
    double v[ROUNDS];

    for (uint32_t i = 0; i < n; i++)
        memcpy(&v[i], (const char *)&f[i] + off, sizeof v[i]);
    return bench_median(v, n);
}

static const struct {
    const char *name, *unit;
    size_t off;
    double bar;
    enum bench_sense sense;
} bars[] = {
    {"under-fill-decode", "of its own rate", offsetof(struct figures, decode), 0.45, BENCH_AT_LEAST},
    {"under-fill-prompt", "of its own rate", offsetof(struct figures, fill), 0.45, BENCH_AT_LEAST},
    {"under-fill-both", "of one", offsetof(struct figures, both), 0.95, BENCH_AT_LEAST},
    {"under-fill-gap-p95", "ms", offsetof(struct figures, p95_ms), TARGET_MS, BENCH_AT_MOST},
    {"under-fill-gap-longest", "ms", offsetof(struct figures, longest_ms), 2 * TARGET_MS, BENCH_AT_MOST},
    {"under-fill-gap-short", "of all gaps", offsetof(struct figures, short_part), 0.01, BENCH_AT_MOST},
};

static int bench(void) {
    struct engine_options o = {.model = "build/models/nano",
                               .max_seqs = 2,
                               .threads = 2,
                               .context_tokens = 16384,
                               .target_gap_ms = TARGET_MS};
    struct stream_sink sink = {.publish = on_publish};
    struct figures f[ROUNDS];
    struct xerr err = {0};
    struct engine *e;
    pthread_t t;
    uint32_t rounds = bench_handicap() ? 1 : ROUNDS;
    int missed = 0;

    bench_step_forward();
    for (uint32_t i = 0; i < 64; i++)
        start[i] = 30 + i;
    if (engine_open(&o, &e, &err) < 0 || engine_load(e, NULL, NULL, &err) < 0) {
        fprintf(stderr, "under-fill: %s\n", err.msg);
        return 2;
    }
    engine_set_sink(e, &sink);
    if (pthread_create(&t, NULL, engine_main, e) != 0)
        return 2;
    for (uint32_t i = 0; i < rounds && !missed; i++)
        missed = one_round(e, i + 1, &f[i]) < 0 ? 2 : 0;
    engine_stop(e, 0);
    pthread_join(t, NULL);
    engine_close(e);
    if (missed) {
        fprintf(stderr, "under-fill: nothing could be measured\n");
        return missed;
    }
    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++)
        missed |= bench_verdict(bars[i].name, median_of(f, rounds, bars[i].off), bars[i].unit, bars[i].bar,
                                bars[i].sense);
    return missed;
}

int main(void) {
    static const struct bench_handicap h[] = {
        {"governor_whole_chunks", "under-fill-decode under-fill-gap-p95 under-fill-gap-longest"},
        {"governor_starves", "under-fill-prompt"},
        {"fill_dawdles", "under-fill-both"},
        {"events_in_pairs", "under-fill-gap-short"},
    };

    return bench_main(bench, h, sizeof h / sizeof *h);
}
