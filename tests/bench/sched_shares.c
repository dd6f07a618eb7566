/* SPDX-License-Identifier: MIT */
/* shares: four users with weights 1, 2, 3 and 4 keep 64 requests in the queue for 400 seconds of the engine's clock,
 * which is this program's: the product's engine and scheduler over a script, where a step takes 40 ms and a token of
 * a prompt 1 ms. Prompts of 512 to 8,000 tokens, answers of 10 to 50: there is always something of each to be read, for
 * an answer takes a token a step whoever's it is.
 *
 * Bar: in no ten seconds does the part of a user, of all tokens read and written, differ from its weight's part by more
 * than five hundredths of the whole. BENCH_HANDICAP=1 runs the mutation build, where all weights
 * are one. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "benchlib.h"
#include "engine_priv.h"

#define SEC UINT64_C(1000000000)

enum { STREAMS = 72, SEATS = 8, USERS = 4, LONGEST = 8000, SECONDS = 400, SAMPLES = 40000 };

static const char script[] = "glmd-script 1\nvocab 1000\ncontext 16384\nstop 999\nlayers 45\nstep-us 40000\n"
                             "prefill-us 1000\nloop\nrequest\ntokens 1 2 3\nrepeat\n";

/* ---- the clock ---- */

static uint64_t virtual_ns; /* 0: the machine's */

/* In place of the C library's, for everything linked into this program. */
int clock_gettime(clockid_t id, struct timespec *ret) {
    if (id != CLOCK_MONOTONIC || !virtual_ns)
        return (int)syscall(SYS_clock_gettime, id, ret);
    *ret = (struct timespec){.tv_sec = (time_t)(virtual_ns / SEC), .tv_nsec = (long)(virtual_ns % SEC)};
    return 0;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *at, struct timespec *rest) {
    uint64_t ns = (uint64_t)at->tv_sec * SEC + (uint64_t)at->tv_nsec;

    if (id != CLOCK_MONOTONIC || !virtual_ns)
        return syscall(SYS_clock_nanosleep, id, flags, at, rest) < 0 ? errno : 0;
    if (flags != TIMER_ABSTIME)
        ns += virtual_ns;
    if (ns > virtual_ns)
        virtual_ns = ns;
    return 0;
}

/* ---- the users ---- */

static struct engine *e;
static uint32_t ids[LONGEST], gens[STREAMS];
static bool ended[STREAMS];
static struct sched_req req[STREAMS];
static uint64_t state = 12345;

static uint32_t rnd(uint32_t n) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

static void on_publish(void *ctx, const struct stream_event *ev, uint32_t n) {
    (void)ctx;
    for (uint32_t i = 0; i < n; i++)
        if (ev[i].type == STREAM_EV_END)
            ended[ev[i].stream.index] = true;
}

static int ask(uint32_t i) {
    uint32_t user = i % USERS, octave = 512u << rnd(4), n = octave + rnd(octave);

    req[i] = (struct sched_req){.stream = {.index = i, .gen = ++gens[i]},
                                .uid = 1000 + user,
                                .weight = 100 * (user + 1),
                                .ids = ids,
                                .n_ids = n < LONGEST ? n : LONGEST,
                                .max_tokens = 10 + rnd(40),
                                .ignore_eos = true,
                                .quiet = true,
                                .sampling = {.top_p = 1.0f, .repetition = 1.0f}};
    ended[i] = false;
    return engine_submit(e, &req[i]);
}

/* ---- the measure ---- */

static struct sample {
    uint64_t t_ns, tokens[USERS];
} samples[SAMPLES];
static uint32_t n_samples;

static void sample(void) {
    struct sample *s = &samples[n_samples++];

    s->t_ns = virtual_ns;
    for (uint32_t u = 0; u < USERS; u++)
        s->tokens[u] = sched_user_tokens(e->sched, 1000 + u);
}

/* The worst difference over every window that begins at a sample and lasts ten seconds. */
static double worst(uint64_t from_ns, uint64_t length_ns, double *ret_relative) {
    double most = 0, relative = 0;

    for (uint32_t i = 0, k = 0; i < n_samples; i++) {
        uint64_t all = 0;

        while (k < n_samples && samples[k].t_ns < samples[i].t_ns + length_ns)
            k++;
        if (k == n_samples)
            break;
        if (samples[i].t_ns < from_ns)
            continue;
        for (uint32_t u = 0; u < USERS; u++)
            all += samples[k].tokens[u] - samples[i].tokens[u];
        for (uint32_t u = 0; u < USERS; u++) {
            double part = (double)(samples[k].tokens[u] - samples[i].tokens[u]) / (double)all;
            double off = fabs(part - (u + 1) / 10.0);

            most = off > most ? off : most;
            relative = fmax(relative, off / ((u + 1) / 10.0));
        }
    }
    *ret_relative = relative;
    return most;
}

static int open_engine(void) {
    struct stream_sink sink = {.publish = on_publish};
    struct engine_options o = {.max_seqs = SEATS, .max_streams = STREAMS};
    struct xerr err = {0};
    char model[64] = "script:/tmp/glmd-bench-XXXXXX";
    int fd = mkstemp(model + 7), r;

    if (fd < 0 || write(fd, script, strlen(script)) != (ssize_t)strlen(script))
        return -1;
    close(fd);
    o.model = model;
    r = engine_open(&o, &e, &err);
    if (r == 0)
        r = engine_load(e, NULL, NULL, &err);
    unlink(model + 7);
    if (r < 0) {
        fprintf(stderr, "shares: %s\n", err.msg);
        return -1;
    }
    engine_set_sink(e, &sink);
    return 0;
}

static int bench(void) {
    uint64_t begin = UINT64_C(1000) * SEC, all[USERS + 1] = {0};
    double off, relative = 0;

    for (uint32_t i = 0; i < LONGEST; i++)
        ids[i] = i % 900;
    if (open_engine() < 0)
        return 2;
    virtual_ns = begin;
    for (uint32_t i = 0; i < STREAMS; i++)
        if (ask(i) < 0)
            return 2;
    while (virtual_ns < begin + SECONDS * SEC && n_samples < SAMPLES) {
        if (engine_round(e, false) < 0)
            return 2;
        sample();
        for (uint32_t i = 0; i < STREAMS; i++)
            if (ended[i] && ask(i) < 0)
                return 2;
    }
    for (uint32_t u = 0; u < USERS; u++)
        all[USERS] += all[u] = samples[n_samples - 1].tokens[u];
    printf("# %lu tokens:", (unsigned long)all[USERS]);
    for (uint32_t u = 0; u < USERS; u++)
        printf(" %.3f", (double)all[u] / (double)all[USERS]);
    printf("\n");
    off = worst(begin, 10 * SEC, &relative);
    printf("# of a user's own part: %.3f; a prompt is read in pieces of 64 tokens\n", relative);
    engine_stop(e, 0);
    if (engine_run(e) < 0)
        return 2;
    engine_close(e);
    return bench_verdict("shares", off, "of all tokens", 0.05, BENCH_AT_MOST);
}

int main(void) {
    static const struct bench_handicap h[] = {{"sched_no_weights", "shares"}};

    return bench_main(bench, h, sizeof h / sizeof *h);
}
