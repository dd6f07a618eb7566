/* SPDX-License-Identifier: MIT */
/* What the bench programs of the rings share: processes of their own on cores of their own, their CPU time, a
 * client that reads streams, and the yardstick: server-sent events over TCP loopback. */
#ifndef GLMD_TEST_BENCHIPC_H
#define GLMD_TEST_BENCHIPC_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "benchlib.h"
#include "glmd.h"

/* Whoever sends runs on one core and whoever receives on another, in ours and in what it is compared with. */
enum bench_core { BENCH_SENDER, BENCH_RECEIVER };
void bench_pin(enum bench_core core); /* this thread and what it starts */
void bench_unpin(void);

/* Under BENCH_HANDICAP=1 switches a planted fault on in this program, which is then the mutation build. */
void bench_fault(const char *name);

/* User and system time of a process, all threads, by the scheduler's own count. */
uint64_t bench_cpu_ns(pid_t pid);
/* Number of times the process's threads gave up their core of themselves. */
uint64_t bench_voluntary_switches(pid_t pid);
double bench_percentile(double *v, size_t n, double percent); /* sorts v */
void bench_sleep_ns(uint64_t ns);

/* Zeroed memory that children made later share; NULL: none. */
void *bench_shared(size_t bytes);
/* A child that runs fn on a core of its own and ends with it, or when this process dies. */
pid_t bench_child(int (*fn)(void *arg), void *arg, enum bench_core core);
/* Waits for it; 0 when fn returned 0. */
int bench_child_end(pid_t pid);

/* Runs fn as a test of its own, in this process: what the tests' libraries assert needs one. Returns what fn
 * returned, or 2 after a failed assertion, which is printed. */
int bench_with_check(int (*fn)(void));

/* ---- streams: the ways of carrying tokens look alike, so that their costs can be compared ---- */

enum { BENCH_MAX_STREAMS = 64, BENCH_SSE_BYTES = 256 };

struct stream_event;
struct bench_streams {
    uint32_t n;              /* streams, all given a token at each step of tests/bench/ipc.script */
    const char *socket;      /* ours: the daemon's */
    int listener;            /* the yardstick's, made before the fork; -1: none */
    int pipe[2];             /* the bare wake's, made before the fork; -1: none */
    _Atomic uint64_t tokens; /* received and found right; without a receiver: made */
    _Atomic uint32_t stop;
    struct glmd_info info[2]; /* ours: of the connection, when all streams ran and at the end */
};
#define BENCH_STEP_NS UINT64_C(10000000) /* as the script says */
#define BENCH_SCRIPT  "script:tests/bench/ipc.script"

/* Ours. A client: n requests on one connection, that sleeps in glmd_wait() when it has read all. */
int bench_streams_client(void *streams);

/* What is compared with it, and what that is compared with: the daemon's engine in a process of its own, over the same
 * script with as many requests. It gives each step's events to the last argument and ends once `stop` is set; 0 or
 * negative errno. NULL: nobody gets the tokens. */
typedef int (*bench_carry)(struct bench_streams *s, const struct stream_event *ev, uint32_t n);
int bench_streams_engine(struct bench_streams *s, bench_carry carry);
int bench_alone_sender(void *streams);

/* The yardstick in its cheapest correct form. Sender: one frame made ready beforehand, one write per token on the
 * stream's own connection, TCP_NODELAY, by the thread that made the token. Receiver: edge-triggered epoll over all
 * connections, one buffer, frames counted and their ends checked. */
int bench_sse_listen(struct bench_streams *s);
int bench_sse_sender(void *streams);
int bench_sse_receiver(void *streams);

/* The floor of all that rings a bell: one byte into a pipe a step, and a reader that sleeps in read() and gets no
 * token at all. Those it counts are as many as were made meanwhile. */
int bench_bare_open(struct bench_streams *s);
int bench_bare_sender(void *streams);
int bench_bare_receiver(void *streams);

#endif
