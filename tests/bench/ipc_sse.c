/* SPDX-License-Identifier: MIT */
/* cpu-vs-sse-1, -8, -64: processor time that carrying a token costs, sender plus receiver, user plus system, as a
 * multiple of ours: TCP loopback with one preformatted frame and one write per token (benchsse.c) against the
 * daemon and one client on one connection, a token for every stream each 10 ms.
 *
 * Both senders run the same engine over the same script, because a sender that makes tokens finds the carrying's
 * code and data colder than one that does not; what the engine costs with nobody to tell is measured too and taken
 * off either. The daemon counts whole: all its threads, its timers too. Receivers count whole, and sleep without a
 * timeout.
 *
 * In the same rounds the floor: one byte into a pipe a step and a reader asleep in read(). What it says of the bar is
 * printed beside the figure: nothing that wakes its reader once a step can be more times cheaper on this machine.
 *
 * Senders run on one core and receivers on another; the parts of a round follow each other in one run and the figure
 * is the median over rounds. Bars: 2, 4 and 15 times less.
 * BENCH_HANDICAP=1 runs a publisher that dawdles. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "benchipc.h"

enum { ROUNDS = 9, TRIES = 10 /* of a part, beside other work that takes the cores for a time */ };
#define WARM_NS   UINT64_C(100000000)
#define WINDOW_NS UINT64_C(500000000)
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

/* Runs one of the parts: sender NULL means the daemon, receiver NULL nobody. */
static int part(struct bench_streams *s, const struct bench_daemon *d, int (*sender)(void *), int (*receiver)(void *),
                struct cost *ret) {
    pid_t tx = d->pid, rx = 0;
    int r = 0;

    *s = (struct bench_streams){.n = s->n, .socket = d->socket, .listener = -1, .pipe = {-1, -1}};
    if (receiver == bench_sse_receiver)
        r = bench_sse_listen(s);
    else if (receiver == bench_bare_receiver)
        r = bench_bare_open(s);
    if (r < 0)
        return r;
    if (sender)
        tx = bench_child(sender, s, BENCH_SENDER);
    if (receiver)
        rx = bench_child(receiver, s, BENCH_RECEIVER);
    for (int i = 0; i < 2; i++)
        if (s->pipe[i] >= 0)
            close(s->pipe[i]);
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

enum { ENGINE, SSE, OURS, BARE, PARTS };
static const struct {
    const char *name;
    int (*sender)(void *), (*receiver)(void *);
} parts[PARTS] = {{"the engine alone", bench_alone_sender, NULL},
                  {"sse", bench_sse_sender, bench_sse_receiver},
                  {"ours", NULL, bench_streams_client},
                  {"the bare wake", bench_bare_sender, bench_bare_receiver}};

/* Medians over the rounds: of the sender without the engine, of the receiver, and of both together. */
struct medians {
    double sender, receiver, both;
};

static struct medians medians(const struct cost c[ROUNDS][PARTS], int of) {
    double tx[ROUNDS], rx[ROUNDS], both[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        tx[i] = c[i][of].sender - c[i][ENGINE].sender;
        rx[i] = c[i][of].receiver;
        both[i] = tx[i] + rx[i];
    }
    return (struct medians){bench_median(tx, ROUNDS), bench_median(rx, ROUNDS), bench_median(both, ROUNDS)};
}

static double ratio(const struct cost c[ROUNDS][PARTS], int over) {
    double v[ROUNDS];

    for (int i = 0; i < ROUNDS; i++)
        v[i] = (c[i][SSE].sender - c[i][ENGINE].sender + c[i][SSE].receiver) /
               (c[i][over].sender - c[i][ENGINE].sender + c[i][over].receiver);
    return bench_median(v, ROUNDS);
}

static int compare(struct bench_streams *s, const struct bench_daemon *d, double bar) {
    struct cost c[ROUNDS][PARTS];
    char name[32];

    for (int i = 0; i < ROUNDS; i++) {
        for (int p = 0; p < PARTS; p++) {
            int r = -1;

            for (int tries = 0; tries < TRIES && r < 0; tries++)
                r = part(s, d, parts[p].sender, parts[p].receiver, &c[i][p]);
            if (r < 0) {
                fprintf(stderr, "cpu-vs-sse-%u: round %d: %s did not run\n", s->n, i, parts[p].name);
                return -EIO;
            }
        }
    }
    printf("# us of CPU a step of %u streams, sender + receiver:", s->n);
    for (int p = SSE; p < PARTS; p++) {
        struct medians m = medians((const struct cost(*)[PARTS])c, p);

        printf(" %s %.1f + %.1f = %.1f%s", parts[p].name, m.sender * s->n, m.receiver * s->n, m.both * s->n,
               p + 1 < PARTS ? "," : "");
    }
    printf(", which is %.2f times less than sse\n", ratio((const struct cost(*)[PARTS])c, BARE));
    snprintf(name, sizeof name, "cpu-vs-sse-%u", s->n);
    return bench_verdict(name, ratio((const struct cost(*)[PARTS])c, OURS), "x", bar, BENCH_AT_LEAST);
}

/* ipc_sse [STREAMS]: one row alone, for work on it. */
int main(int argc, char **argv) {
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

        if (argc > 1 && strtoul(argv[1], NULL, 10) != rows[i].n)
            continue;
        s->n = rows[i].n;
        r = compare(s, &d, rows[i].bar);
        fail = r < 0 ? r : fail | r;
    }
    bench_daemon_stop(&d);
    return fail < 0 ? 2 : fail;
}
