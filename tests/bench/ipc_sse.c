/* SPDX-License-Identifier: MIT */
/* cpu-vs-sse-1, -8, -64: processor time that carrying a token costs, sender plus receiver, user plus system, as a
 * multiple of ours: TCP loopback with one preformatted frame and one write per token (benchsse.c) against the
 * daemon and one client on one connection, a token for every stream each 10 ms.
 *
 * Both senders do more than carry: ours runs a model, and both sleep until the next token is due. So each is
 * measured a second time with everything but the carrying, the daemon as its engine over the same script with
 * nobody to tell, the yardstick as its loop without the writes, and the difference counts. The daemon counts
 * whole: all its threads, its timers too. Receivers count whole.
 *
 * Senders run on one core and receivers on another; the four parts of a round follow each other in one run and
 * the figure is the median over rounds. Bars: 2, 4 and 15 times less.
 * BENCH_HANDICAP=1 runs a publisher that dawdles. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "benchipc.h"

enum { ROUNDS = 5 };
#define WARM_NS   UINT64_C(200000000)
#define WINDOW_NS UINT64_C(1000000000)
#define WAIT_NS   UINT64_C(20000000000)

/* us of CPU per token that arrived, of a pair of processes in a window of time; receiver 0: there is none. */
struct cost {
    double sender, receiver;
};

static int window(struct bench_streams *s, pid_t sender, pid_t receiver, struct cost *ret) {
    uint64_t until = bench_now_ns() + WAIT_NS, cpu[2], tokens;

    while (atomic_load(&s->tokens) < 4 * (uint64_t)s->n) {
        if (bench_now_ns() > until)
            return -ETIMEDOUT;
        bench_sleep_ns(WARM_NS / 20);
    }
    bench_sleep_ns(WARM_NS);
    cpu[0] = bench_cpu_ns(sender);
    cpu[1] = receiver ? bench_cpu_ns(receiver) : 0;
    tokens = atomic_load(&s->tokens);
    bench_sleep_ns(WINDOW_NS);
    cpu[0] = bench_cpu_ns(sender) - cpu[0];
    cpu[1] = receiver ? bench_cpu_ns(receiver) - cpu[1] : 0;
    tokens = atomic_load(&s->tokens) - tokens;
    /* a token that is late is no fault; half of them missing is */
    if (tokens < s->n * (WINDOW_NS / BENCH_STEP_NS) / 2)
        return -ETIMEDOUT;
    *ret = (struct cost){(double)cpu[0] / 1e3 / (double)tokens, (double)cpu[1] / 1e3 / (double)tokens};
    return 0;
}

/* Runs one of the four parts: sender NULL means the daemon, receiver NULL nobody. */
static int part(struct bench_streams *s, const struct bench_daemon *d, int (*sender)(void *), int (*receiver)(void *),
                struct cost *ret) {
    pid_t tx = d->pid, rx = 0;
    int r = 0;

    *s = (struct bench_streams){.n = s->n, .socket = d->socket, .listener = -1};
    if (receiver == bench_sse_receiver && (r = bench_sse_listen(s)) < 0)
        return r;
    if (sender)
        tx = bench_child(sender, s, BENCH_SENDER);
    if (receiver)
        rx = bench_child(receiver, s, BENCH_RECEIVER);
    r = window(s, tx, rx, ret);
    atomic_store(&s->stop, 1);
    if (s->listener >= 0)
        close(s->listener);
    if (sender && bench_child_end(tx) < 0)
        r = -EIO;
    if (receiver && bench_child_end(rx) < 0)
        r = -EIO;
    return r;
}

static int compare(struct bench_streams *s, const struct bench_daemon *d, double bar) {
    double ratio[ROUNDS], ours[ROUNDS], sse[ROUNDS];
    struct cost w = {0}, a = {0}, y = {0}, z = {0}, sum = {0}, sum_sse = {0};
    double model = 0, idle = 0;
    char name[32];

    for (int i = 0; i < ROUNDS; i++) {
        if (part(s, d, bench_sse_sender, bench_sse_receiver, &y) < 0 ||
            part(s, d, NULL, bench_streams_client, &w) < 0 || part(s, d, bench_streams_engine, NULL, &a) < 0 ||
            part(s, d, bench_sse_sender, NULL, &z) < 0) {
            fprintf(stderr, "cpu-vs-sse-%u: a part of round %d did not run\n", s->n, i);
            return -EIO;
        }
        ours[i] = w.sender - a.sender + w.receiver;
        sse[i] = y.sender - z.sender + y.receiver;
        ratio[i] = sse[i] / ours[i];
        sum.sender += w.sender / ROUNDS;
        sum.receiver += w.receiver / ROUNDS;
        sum_sse.sender += y.sender / ROUNDS;
        sum_sse.receiver += y.receiver / ROUNDS;
        model += a.sender / ROUNDS;
        idle += z.sender / ROUNDS;
    }
    printf("# us of CPU per token, %u streams: sse %.2f (sender %.2f of which its clock %.2f, receiver %.2f), "
           "ours %.2f (daemon %.2f of which its model %.2f, client %.2f)\n",
           s->n, bench_median(sse, ROUNDS), sum_sse.sender, idle, sum_sse.receiver, bench_median(ours, ROUNDS),
           sum.sender, model, sum.receiver);
    snprintf(name, sizeof name, "cpu-vs-sse-%u", s->n);
    return bench_verdict(name, bench_median(ratio, ROUNDS), "x", bar, BENCH_AT_LEAST);
}

int main(void) {
    const struct {
        uint32_t n;
        double bar;
    } rows[] = {{1, 2.0}, {8, 4.0}, {64, 15.0}};
    struct bench_streams *s = bench_shared(sizeof *s);
    struct bench_daemon d;
    int fail = 0;

    if (!s)
        return 2;
    bench_step_forward();
    bench_pin(BENCH_SENDER);
    if (bench_daemon_start(&d, BENCH_SCRIPT, "slow_publish", "[Memory]\nMaxSequences=64\n") < 0)
        return 2;
    bench_unpin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows && fail >= 0; i++) {
        int r;

        s->n = rows[i].n;
        r = compare(s, &d, rows[i].bar);
        fail = r < 0 ? r : fail | r;
    }
    bench_daemon_stop(&d);
    return fail < 0 ? 2 : fail;
}
