/* SPDX-License-Identifier: MIT */
/* publish: from the sample on the host to its record visible in the client's ring, seen by a client that reads
 * the ring without pause on another core.
 *
 * publish        nano on one compute thread, which publishes itself, awake from its step: median 5 us or less.
 * publish-woken  another thread publishes and is woken for each step; a scripted model gives a token every 3 ms,
 *                so that a core is free for it: median at most one futex wake, measured between the rounds on the
 *                same cores, plus 5 us.
 * BENCH_HANDICAP=1 runs the mutation build with a publisher that dawdles. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "benchlib.h"
#include "clconn.h"
#include "glmd.h"
#include "ringops.h"

enum { TOKENS = 120, ROUNDS = 3, WAKES = 120 };

static void nap_us(long us) {
    struct timespec ts = {.tv_sec = 0, .tv_nsec = us * 1000};

    nanosleep(&ts, NULL);
}

struct waker {
    _Atomic uint32_t word;
    _Atomic uint64_t awake_ns;
};

static void *sleeper(void *arg) {
    struct waker *w = arg;

    for (uint32_t i = 0; i < WAKES; i++) {
        while (atomic_load(&w->word) == i)
            syscall(SYS_futex, &w->word, FUTEX_WAIT_PRIVATE, i, NULL, NULL, 0);
        atomic_store(&w->awake_ns, bench_now_ns());
    }
    return NULL;
}

/* Median time from the call that wakes to the sleeper running, sleeper parked for 3 ms before each; one core
 * is kept busy by a spinning thread as in the measured case. */
static atomic_bool spin_on;
static void *spinner(void *arg) {
    (void)arg;
    while (atomic_load_explicit(&spin_on, memory_order_relaxed))
        ;
    return NULL;
}

static double futex_wake_us(void) {
    static double t[WAKES];
    struct waker w = {0};
    pthread_t th, sp;

    atomic_store(&spin_on, true);
    if (pthread_create(&sp, NULL, spinner, NULL) || pthread_create(&th, NULL, sleeper, &w))
        return -1;
    for (uint32_t i = 0; i < WAKES; i++) {
        uint64_t t0;

        nap_us(3000);
        t0 = bench_now_ns();
        atomic_store(&w.word, i + 1);
        syscall(SYS_futex, &w.word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        /* as the engine does: the waker goes to sleep at once and leaves its core */
        while (!atomic_load(&w.awake_ns))
            nap_us(200);
        t[i] = (double)(atomic_exchange(&w.awake_ns, 0) - t0) / 1e3;
    }
    pthread_join(th, NULL);
    atomic_store(&spin_on, false);
    pthread_join(sp, NULL);
    return bench_median(t, WAKES);
}

/* One answer of TOKENS tokens. The reader looks at the ring itself between events, so that it adds nothing of
 * its own to the lag; appends that of every token but the first. */
static int stream(glmd_conn *c, double *lag, int *n_lag) {
    const uint32_t prompt[] = {57, 1001, 367};
    struct glmd_event ev = {.size = sizeof ev};
    uint64_t tag, until = bench_now_ns() + UINT64_C(60000000000);
    glmd_req *r;
    int n, tokens = 0;

    if ((n = glmd_req_new(c, &r)) < 0)
        return n;
    if ((n = glmd_req_tokens(r, prompt, 3)) < 0 || (n = glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, TOKENS)) < 0 ||
        (n = glmd_req_set_u64(r, GLMD_KEY_IGNORE_EOS, 1)) < 0 || (n = glmd_submit(c, r, &tag)) < 0) {
        glmd_req_free(r);
        return n;
    }
    for (;;) {
        uint64_t now;

        while ((n = glmw_peek(&c->tq)) == 0)
            if (bench_now_ns() > until)
                return -ETIMEDOUT;
        now = bench_now_ns();
        n = glmd_next(c, &ev);
        if (n < 0)
            return n;
        if (n == 0)
            continue;
        if (ev.type == GLMD_EV_TOKEN && tokens++ > 0)
            lag[(*n_lag)++] = ((double)now - (double)ev.t_sampled_ns) / 1e3;
        if (ev.type == GLMD_EV_END)
            return ev.status < 0 ? ev.status : tokens == TOKENS ? 0 : -EPROTO;
        glmd_release(c);
    }
}

static int measure(const char *model, const char *inline_conns, double *ret_median, double *ret_wake) {
    static double lag[TOKENS * ROUNDS];
    double wake[ROUNDS];
    struct bench_daemon d;
    struct glmd_options opt = {.size = sizeof opt};
    glmd_conn *c;
    int n, n_lag = 0;
    char conf[128];

    snprintf(conf, sizeof conf, "[Model]\nThreads=1\n[IPC]\nInlineConnections=%s\n", inline_conns);
    if (bench_daemon_start(&d, model, "slow_publish", conf) < 0)
        return -1;
    opt.socket_path = d.socket;
    opt.socket_path_len = strlen(d.socket);
    n = glmd_connect(&opt, &c);
    for (int i = 0; n == 0 && i < ROUNDS; i++) {
        wake[i] = futex_wake_us();
        n = stream(c, lag, &n_lag);
    }
    if (n < 0)
        fprintf(stderr, "publish: %s\n", glmd_strerror(n));
    else
        glmd_close(c);
    bench_daemon_stop(&d);
    if (n < 0)
        return n;
    *ret_median = bench_median(lag, (size_t)n_lag);
    *ret_wake = bench_median(wake, ROUNDS);
    return 0;
}

int main(void) {
    double awake, woken, wake;
    int fail;

    bench_step_forward();
    if (measure("build/models/nano", "8", &awake, &wake) < 0)
        return 2;
    fail = bench_verdict("publish", awake, "us", 5.0, BENCH_AT_MOST);
    if (measure("script:tests/bench/publish.script", "0", &woken, &wake) < 0)
        return 2;
    printf("# one futex wake in this run: %.1f us\n", wake);
    fail |= bench_verdict("publish-woken", woken, "us", wake + 5.0, BENCH_AT_MOST);
    return fail;
}
