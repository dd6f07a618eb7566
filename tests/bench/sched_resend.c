/* SPDX-License-Identifier: MIT */
/* sched_resend: what the prefix cache saves, in the engine over nano. A prompt of 4,000 tokens is read cold (the
 * request declines the cache) and sent again; another prompt leaves it close to its end, where a message begins and
 * where none does; a third one leaves it there too. Time from submit to END with one token of answer, medians, and
 * everything against the cold prompts of the same run.
 *
 * Bars: sent again 5 %, first branch at a message boundary 10 %, second branch at a place nobody knew 10 %, at most
 * four checkpoints a request. BENCH_HANDICAP=1 runs the mutation build with a cache that finds nothing, and with one
 * that keeps the state behind every chunk. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchlib.h"
#include "engine_priv.h"

enum { ROUNDS = 5, N = 4000, FORK = 3776, ODD = 3790 };

struct runner {
    struct engine *e;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ended, gen;
    int status;
};

static void on_publish(void *ctx, const struct stream_event *ev, uint32_t n) {
    struct runner *r = ctx;

    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < n; i++)
        if (ev[i].type == STREAM_EV_END) {
            r->ended = ev[i].stream.gen;
            r->status = ev[i].status;
        }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void *run(void *arg) {
    engine_run(((struct runner *)arg)->e);
    return NULL;
}

static int begin(struct runner *r) {
    struct engine_options o = { .model = "build/models/nano", .max_seqs = 1, .context_tokens = 4352, .cache_slots = 64,
                                .n_pages = 17 * 12 };
    struct stream_sink sink = { .ctx = r, .publish = on_publish };
    struct xerr err = { 0 };

    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    if (engine_open(&o, &r->e, &err) < 0 || engine_load(r->e, NULL, NULL, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    engine_set_sink(r->e, &sink);
    return pthread_create(&r->thread, NULL, run, r);
}

static void end(struct runner *r) {
    engine_stop(r->e, 0);
    pthread_join(r->thread, NULL);
    engine_close(r->e);
}

static const uint32_t marks[] = { 512, FORK };

/* Milliseconds until the one token of answer; negative when it failed. */
static double ask(struct runner *r, const uint32_t *ids, bool boundary, bool no_cache) {
    struct sched_req q = { .stream = { .index = 0, .gen = ++r->gen }, .uid = 1000, .ids = ids, .n_ids = N,
                           .max_tokens = 1, .quiet = true, .no_cache = no_cache, .marks = boundary ? marks : NULL,
                           .n_marks = boundary ? 2 : 0, .sampling = { .top_p = 1, .repetition = 1 } };
    uint64_t t0 = bench_now_ns();

    if (engine_submit(r->e, &q) < 0)
        return -1;
    pthread_mutex_lock(&r->lock);
    while (r->ended != r->gen)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return r->status < 0 ? -1 : (double)(bench_now_ns() - t0) / 1e6;
}

static void fill(uint32_t *ids, uint32_t from, uint32_t seed) {
    for (uint32_t i = from; i < N; i++)
        ids[i] = ((i + seed * 7919) * 2654435761u >> 7) % 4000;
}

struct times {
    double cold[ROUNDS], again[ROUNDS], boundary[ROUNDS], second[ROUNDS];
    double most_kept;
};

static uint64_t kept(const struct runner *r) {
    struct prefix_counts c;

    prefix_get_counts(r->e->prefix, &c);
    return c.kept;
}

static int measure(struct runner *r, struct times *t, uint32_t rounds) {
    static uint32_t ids[N];

    for (uint32_t i = 0; i < rounds; i++) {
        uint32_t seed = 1 + 10 * i;
        uint64_t before = kept(r);
        double first;

        fill(ids, 0, seed);
        t->cold[i] = ask(r, ids, true, true);
        if (ask(r, ids, true, false) < 0)
            return -1;
        if ((double)(kept(r) - before) > t->most_kept)
            t->most_kept = (double)(kept(r) - before);
        t->again[i] = ask(r, ids, true, false);
        fill(ids, FORK, seed + 1);
        t->boundary[i] = ask(r, ids, true, false);
        /* a prompt of its own, which two others leave where no message begins */
        fill(ids, 0, seed + 2);
        first = ask(r, ids, false, false);
        fill(ids, ODD, seed + 3);
        if (first < 0 || ask(r, ids, false, false) < 0)
            return -1;
        fill(ids, ODD, seed + 4);
        t->second[i] = ask(r, ids, false, false);
        if (t->cold[i] < 0 || t->again[i] < 0 || t->boundary[i] < 0 || t->second[i] < 0)
            return -1;
    }
    return 0;
}

static int bench(void) {
    struct runner r;
    struct times t = { 0 };
    double cold;
    uint32_t rounds = bench_handicap() ? 1 : ROUNDS;
    int missed = 0;

    bench_step_forward();
    if (begin(&r) != 0)
        return 2;
    if (measure(&r, &t, rounds) < 0) {
        fprintf(stderr, "sched_resend: a request failed\n");
        end(&r);
        return 2;
    }
    end(&r);
    cold = bench_median(t.cold, rounds);
    printf("# cold %.0f ms, again %.1f ms, boundary %.1f ms, second branch %.1f ms\n", cold,
           bench_median(t.again, rounds), bench_median(t.boundary, rounds), bench_median(t.second, rounds));
    missed += bench_verdict("resend", 100 * bench_median(t.again, rounds) / cold, "%", 5, BENCH_AT_MOST);
    missed += bench_verdict("resend-boundary", 100 * bench_median(t.boundary, rounds) / cold, "%", 10, BENCH_AT_MOST);
    missed += bench_verdict("resend-second", 100 * bench_median(t.second, rounds) / cold, "%", 10, BENCH_AT_MOST);
    missed += bench_verdict("resend-checkpoints", t.most_kept, "a request", 4, BENCH_AT_MOST);
    return missed != 0;
}

int main(void) {
    static const struct bench_handicap h[] = {
        { "ecache_finds_nothing", "resend resend-boundary resend-second" },
        { "ecache_keeps_all", "resend-checkpoints" },
    };

    return bench_main(bench, h, sizeof h / sizeof *h);
}
