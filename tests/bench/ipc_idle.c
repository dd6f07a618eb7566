/* SPDX-License-Identifier: MIT */
/* idle-64: processor time of a daemon with 64 connections and nothing to do, in percent of one core over ten
 * seconds. Bar: less than 0.1 %. How often its threads woke is printed beside it: the timer of one second, which
 * writes 64 status blocks, and nothing else.
 * BENCH_HANDICAP=1 runs a daemon whose timer is too fast. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "benchipc.h"

enum { CONNECTIONS = 64, SECONDS = 10 };

int main(void) {
    static const char conf[] = "[Quota]\nMaxConnectionsPerUid=64\n";
    struct glmd_options opt = {.size = sizeof opt};
    glmd_conn *c[CONNECTIONS];
    struct bench_daemon d;
    uint64_t cpu, wakes, t0;
    double percent, seconds;
    int n = 0, r = 0;

    bench_step_forward();
    if (bench_daemon_start(&d, BENCH_SCRIPT, "fast_tick", conf) < 0)
        return 2;
    opt.socket_path = d.socket;
    opt.socket_path_len = strlen(d.socket);
    /* the last look of bench_daemon_start may still be a connection */
    bench_sleep_ns(200000000);
    while (n < CONNECTIONS && r == 0)
        if ((r = glmd_connect(&opt, &c[n])) == 0)
            n++;
    if (r < 0) {
        fprintf(stderr, "idle-64: connection %d: %s\n", n, glmd_strerror(r));
        bench_daemon_stop(&d);
        return 2;
    }
    bench_sleep_ns(1500000000);
    cpu = bench_cpu_ns(d.pid);
    wakes = bench_voluntary_switches(d.pid);
    t0 = bench_now_ns();
    bench_sleep_ns(SECONDS * UINT64_C(1000000000));
    cpu = bench_cpu_ns(d.pid) - cpu;
    wakes = bench_voluntary_switches(d.pid) - wakes;
    seconds = (double)(bench_now_ns() - t0) / 1e9;
    percent = (double)cpu / 1e9 / seconds * 100;
    for (int i = 0; i < n; i++) {
        struct glmd_info info = {.size = sizeof info};

        /* all of them are there and served: their status blocks are kept current */
        if (glmd_get_info(c[i], &info) < 0 || info.heartbeat_age_ns > UINT64_C(5000000000))
            r = -EIO;
        glmd_close(c[i]);
    }
    bench_daemon_stop(&d);
    if (r < 0) {
        fprintf(stderr, "idle-64: a connection died while it was idle\n");
        return 2;
    }
    printf("# %.1f wakes a second, %.0f us of CPU each\n", (double)wakes / seconds,
           wakes ? (double)cpu / 1e3 / (double)wakes : 0);
    return bench_verdict("idle-64", percent, "%", 0.1, BENCH_AT_MOST);
}
