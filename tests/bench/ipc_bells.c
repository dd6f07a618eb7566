/* SPDX-License-Identifier: MIT */
/* bells-8: pipe writes of the daemon per token, from its own counters in the status block, while 8 streams of one
 * connection get a token each 10 ms and their client sleeps in glmd_wait() whenever it has read all: one bell a step is
 * 0.125. Bar: 0.2.
 * BENCH_HANDICAP=1 runs a daemon that rings for every record. */
#include <errno.h>
#include <stdio.h>

#include "benchipc.h"

#define WINDOW_NS UINT64_C(4000000000)
enum { STREAMS = 8 };

int main(void) {
    struct bench_streams *s = bench_shared(sizeof *s);
    const struct glmd_info *from = &s->info[0], *to = &s->info[1];
    struct bench_daemon d;
    uint64_t tokens, until = bench_now_ns() + UINT64_C(20000000000);
    pid_t client;

    if (!s)
        return 2;
    bench_step_forward();
    if (bench_daemon_start(&d, BENCH_SCRIPT, "bell_per_record", "[Memory]\nMaxSequences=8\n") < 0)
        return 2;
    *s = (struct bench_streams){.n = STREAMS, .socket = d.socket};
    client = bench_child(bench_streams_client, s, BENCH_RECEIVER);
    while (atomic_load(&s->tokens) < 4 * STREAMS && bench_now_ns() < until)
        bench_sleep_ns(BENCH_STEP_NS);
    bench_sleep_ns(WINDOW_NS);
    atomic_store(&s->stop, 1);
    if (bench_child_end(client) < 0) {
        bench_daemon_stop(&d);
        return 2;
    }
    bench_daemon_stop(&d);
    /* the status block is written once a second: both readings are whole and from the same moments */
    tokens = to->records - from->records;
    if (!tokens) {
        fprintf(stderr, "bells-8: no token between the two looks at the status block\n");
        return 2;
    }
    printf("# %lu records of %d streams, %lu bells, %lu publications without one\n", (unsigned long)tokens, STREAMS,
           (unsigned long)(to->bells_sent - from->bells_sent),
           (unsigned long)(to->bells_suppressed - from->bells_suppressed));
    return bench_verdict("bells-8", (double)(to->bells_sent - from->bells_sent) / (double)tokens, "bells/token", 0.2,
                         BENCH_AT_MOST);
}
