/* SPDX-License-Identifier: MIT */
/* simulate: 10,000 random workloads against the scheduler, the governor, the prefix cache and the pools on a virtual
 * clock, with the costs of the real model (tests/lib/schedsim.h), shared out to the cores. Each ends in a moment; none
 * may lose a page or a slot, end a request twice or never, let one wait beyond the stated bound, or have a step wait
 * for a stalled stream.
 *
 * Bars: no workload breaks a rule; the longest wait is at most its bound. BENCH_HANDICAP=1 runs the mutation build
 * with a queue that has no bound, and with chunks that make the machine five times slower. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchlib.h"
#include "schedsim.h"

enum { WORKLOADS = 10000, FIRST = 1000, MAX_CORES = 16 };

/* What a core's part came to; memory that all share. */
static struct part {
    struct schedsim_result r;
    uint64_t looked;
    uint32_t broken;
} *parts;

/* Every n-th workload from the k-th on. */
static void simulate(uint32_t k, uint32_t n, uint32_t all) {
    struct part *p = &parts[k];

    for (uint64_t seed = FIRST + k; seed < FIRST + all; seed += n) {
        if (schedsim_run(seed, &p->r) < 0 && p->broken++ < 3)
            fprintf(stderr, "simulate: seed %lu: %s\n", (unsigned long)seed, p->r.why);
        p->looked++;
    }
}

static int bench(void) {
    cpu_set_t allowed;
    uint32_t n = 1, broken = 0, all = bench_handicap() ? WORKLOADS / 10 : WORKLOADS;
    uint64_t looked = 0;
    struct schedsim_result r = {0};
    int missed;

    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        n = (uint32_t)CPU_COUNT(&allowed) < MAX_CORES ? (uint32_t)CPU_COUNT(&allowed) : MAX_CORES;
    parts = mmap(NULL, n * sizeof *parts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (parts == MAP_FAILED)
        return 2;
    fflush(stdout);
    for (uint32_t k = 0; k < n; k++) {
        pid_t pid = fork();

        if (pid < 0)
            return 2;
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            simulate(k, n, all);
            _exit(0);
        }
    }
    while (wait(NULL) > 0)
        ;
    for (uint32_t k = 0; k < n; k++) {
        const struct part *p = &parts[k];

        r.jobs += p->r.jobs;
        r.refused += p->r.refused;
        r.hits += p->r.hits;
        r.steps += p->r.steps;
        r.chunks += p->r.chunks;
        r.parked += p->r.parked;
        r.wait_of_bound = p->r.wait_of_bound > r.wait_of_bound ? p->r.wait_of_bound : r.wait_of_bound;
        broken += p->broken;
        looked += p->looked;
    }
    broken += (uint32_t)(all - looked); /* those of a child that died */
    printf("# %lu requests, %lu refused, %lu hits, %lu steps, %lu chunks, %lu looks at paused ones\n",
           (unsigned long)r.jobs, (unsigned long)r.refused, (unsigned long)r.hits, (unsigned long)r.steps,
           (unsigned long)r.chunks, (unsigned long)r.parked);
    missed = bench_verdict("simulate", broken, "workloads", 0, BENCH_AT_MOST);
    return missed | bench_verdict("simulate-wait", r.wait_of_bound, "of the bound", 1, BENCH_AT_MOST);
}

int main(void) {
    static const struct bench_handicap h[] = {
        {"sched_queue_unbounded", "simulate"},
        {"governor_small_chunks", "simulate-wait"},
    };

    return bench_main(bench, h, sizeof h / sizeof *h);
}
