/* SPDX-License-Identifier: MIT */
/* hand-over-64: what a step of 64 streams costs the engine's thread beside deciding over its tokens: the calls of
 * the emit room's sink, from the events to the records in the clients' rings and their bells, or to the emit
 * thread that is told to do it. The sink is the daemon's own, with its default of connections that the engine
 * serves itself, parsers and text of nano, and clients that sleep at their pipes whenever they have read all.
 *
 * The 64 streams belong to 1, 8, 9 and 64 connections in turn: both ends of the range that the engine serves
 * itself and of the range that it hands over. The figure is the worst of the four medians; bar: 20 us.
 * BENCH_HANDICAP=1 runs a publisher that dawdles. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "benchipc.h"
#include "conf.h"
#include "emittest.h"

enum { STREAMS = 64, STEPS = 300, WARM = 30 };

static struct et_client clients[STREAMS];
static uint32_t n_clients;
static _Atomic uint64_t tokens_read;
static atomic_bool stop;
static int failed;

/* Reads all of one client's records; true when it may sleep. */
static bool read_all(struct et_client *c) {
    struct glmw_rec r;
    int n;

    while ((n = glmw_peek(&c->tq)) > 0) {
        uint64_t tokens = 0;

        for (; n > 0; n--) {
            glmw_take(&c->tq, &r);
            if (r.type == GLMW_REC_TOKEN) {
                tokens++;
                failed |= r.text_len == 0;
            }
        }
        glmw_give_back(&c->tq, &c->view.d->credit_wanted);
        atomic_fetch_add_explicit(&tokens_read, tokens, memory_order_relaxed);
    }
    failed |= n < 0;
    return n == 0 && glmw_arm(&c->tq, 1) == 0;
}

static void *reader(void *arg) {
    int ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev[STREAMS];
    char junk[512];

    (void)arg;
    bench_pin(BENCH_RECEIVER);
    for (uint32_t i = 0; i < n_clients; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = i};

        failed |= epoll_ctl(ep, EPOLL_CTL_ADD, clients[i].bell.pipe_r, &e) < 0;
        while (!read_all(&clients[i]))
            ;
    }
    while (!atomic_load(&stop)) {
        int n = epoll_wait(ep, ev, STREAMS, 20);

        for (int i = 0; i < n; i++) {
            struct et_client *c = &clients[ev[i].data.u32];

            if (read(c->bell.pipe_r, junk, sizeof junk) <= 0)
                failed = 1;
            while (!read_all(c))
                ;
        }
    }
    close(ep);
    return NULL;
}

/* Steps with all streams; appends the time of each but the first ones. */
static void run_steps(const struct stream_id *id, double *us) {
    static const uint32_t words[] = {39, 334, 593};
    static struct stream_event ev[STREAMS];

    for (int step = -WARM; step < STEPS; step++) {
        uint64_t t0;

        for (uint32_t i = 0; i < STREAMS; i++) {
            ev[i] = et_token(id[i], words[(uint32_t)(step + WARM) % 3]);
            ev[i].t_ns = bench_now_ns();
        }
        t0 = bench_now_ns();
        et_sink.hands_over(et_sink.ctx); /* the engine asks before every publication */
        et_sink.publish(et_sink.ctx, ev, STREAMS);
        if (step >= 0)
            us[step] = (double)(bench_now_ns() - t0) / 1e3;
        bench_sleep_ns(3000000);
    }
}

static int measure(uint32_t n_conns, uint32_t inline_conns, double *ret_median) {
    struct stream_id id[STREAMS];
    double us[STEPS];
    pthread_t th;

    n_clients = n_conns;
    atomic_store(&tokens_read, 0);
    atomic_store(&stop, false);
    et_begin(inline_conns, true);
    for (uint32_t i = 0; i < n_conns; i++)
        et_open(&clients[i], 10, 16);
    for (uint32_t i = 0; i < STREAMS; i++)
        id[i] = et_accept(&clients[i % n_conns], 1 + i, 0, false);
    if (pthread_create(&th, NULL, reader, NULL) != 0)
        return -1;
    bench_pin(BENCH_SENDER);
    run_steps(id, us);
    bench_unpin();
    for (int i = 0; i < 100 && atomic_load(&tokens_read) < STREAMS * (STEPS + WARM); i++) {
        bench_sleep_ns(20000000);
        for (uint32_t k = 0; k < n_conns; k++) /* io's part, where a reader without a core let its ring fill up */
            emit_conn_resume(clients[k].conn);
    }
    atomic_store(&stop, true);
    pthread_join(th, NULL);
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct stream_event end = et_end(id[i], STREAM_END_LENGTH, 0);

        et_sink.publish(et_sink.ctx, &end, 1);
    }
    emit_stop(et_emit);
    for (uint32_t i = 0; i < n_conns; i++)
        et_close(&clients[i]);
    et_finish();
    if (failed || atomic_load(&tokens_read) != STREAMS * (STEPS + WARM)) {
        fprintf(stderr, "hand-over-64: the clients read %lu tokens of %d, or wrong ones\n",
                (unsigned long)atomic_load(&tokens_read), STREAMS * (STEPS + WARM));
        return -1;
    }
    printf("# 64 streams of %u connections: %.1f us a step, 90 %% within %.1f us\n", n_conns,
           bench_percentile(us, STEPS, 50), bench_percentile(us, STEPS, 90));
    *ret_median = bench_median(us, STEPS);
    return 0;
}

static int run(void) {
    uint32_t inline_conns = 8;
    const uint32_t layouts[] = {1, inline_conns, inline_conns + 1, STREAMS};
    double worst = 0;

    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        double us;

        if (measure(layouts[i], inline_conns, &us) < 0)
            return 2;
        worst = us > worst ? us : worst;
    }
    return bench_verdict("hand-over-64", worst, "us", 20.0, BENCH_AT_MOST);
}

int main(void) {
    bench_fault("slow_publish");
    et_measuring = true;
    bench_step_forward();
    return bench_with_check(run);
}
