/* SPDX-License-Identifier: MIT */
/* The one clock of the daemon: CLOCK_MONOTONIC in nanoseconds, the same base the wire and the engine use.
 * Any thread. */
#ifndef GLMD_CLOCK_H
#define GLMD_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_NS_PER_SEC UINT64_C(1000000000)
#define CLOCK_NS_PER_MS  UINT64_C(1000000)
#define CLOCK_NS_PER_US  UINT64_C(1000)

static inline uint64_t clock_now_ns(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * CLOCK_NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

static inline struct timespec clock_timespec(uint64_t ns) {
    struct timespec ts;

    ts.tv_sec = (time_t)(ns / CLOCK_NS_PER_SEC);
    ts.tv_nsec = (long)(ns % CLOCK_NS_PER_SEC);
    return ts;
}

#endif
