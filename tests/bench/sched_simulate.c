/* SPDX-License-Identifier: MIT */
/* simulate: 10,000 random workloads against the scheduler and the governor on a virtual clock, with the costs of the
 * real model (tests/lib/schedsim.h). Each ends in a moment; none may lose a page or a slot, end a request twice or
 * never, let one wait beyond the stated bound, or have a step wait for a stalled stream.
 *
 * Bars: no workload breaks a rule; the longest wait is at most its bound. BENCH_HANDICAP=1 runs the mutation build
 * with a queue that has no bound. */
#include <stdio.h>
#include <stdlib.h>

#include "benchipc.h"
#include "benchlib.h"
#include "schedsim.h"

enum { WORKLOADS = 10000, FIRST = 1000 };

int main(void) {
    struct schedsim_result r = {0};
    uint32_t broken = 0;
    int missed;

    bench_fault("sched_queue_unbounded");
    for (uint64_t seed = FIRST; seed < FIRST + WORKLOADS; seed++) {
        if (schedsim_run(seed, &r) == 0)
            continue;
        if (broken++ < 3)
            fprintf(stderr, "simulate: seed %lu: %s\n", (unsigned long)seed, r.why);
    }
    printf("# %lu requests, %lu refused, %lu hits, %lu steps, %lu chunks, %lu looks at paused ones\n",
           (unsigned long)r.jobs, (unsigned long)r.refused, (unsigned long)r.hits, (unsigned long)r.steps,
           (unsigned long)r.chunks, (unsigned long)r.parked);
    missed = bench_verdict("simulate", broken, "workloads", 0, BENCH_AT_MOST);
    missed |= bench_verdict("simulate-wait", r.wait_of_bound, "of the bound", 1, BENCH_AT_MOST);
    return missed;
}
