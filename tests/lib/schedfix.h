/* SPDX-License-Identifier: MIT */
/* Fixture of the scheduler's test programs: one scheduler with small times, jobs in short. One thread. */
#ifndef GLMD_TEST_SCHEDFIX_H
#define GLMD_TEST_SCHEDFIX_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler.h"

static struct sched *s;
static void *mem;

/* Pages of 256 tokens; a job is parked after 3000, a prompt ages in 1000, the background waits 6000. places: 0 = as
 * many as slots; max_queued: 0 = no bound. */
static inline void schedfix_open(uint32_t seats, uint32_t slots, uint32_t places, uint32_t pages,
                                 uint32_t max_queued) {
    struct sched_config cfg = { .max_jobs = 64, .max_running = seats, .n_pages = pages, .n_slots = slots,
                                .n_places = places, .page_tokens = 256, .aging_ns = 1000, .park_ns = 3000,
                                .patience_ns = 6000, .max_queued = max_queued };
    uint64_t bytes = 0;

    ck_assert_int_eq(sched_bytes(&cfg, &bytes), 0);
    ck_assert_int_eq(posix_memalign(&mem, 16, bytes), 0);
    memset(mem, 0xa5, bytes);
    ck_assert_int_eq(sched_init(&cfg, mem, bytes, &s), 0);
}

static inline void close_sched(void) {
    free(mem);
}

static inline struct sched_job job_of(uint32_t uid, uint32_t prompt, uint32_t budget) {
    return (struct sched_job){ .uid = uid, .prompt_tokens = prompt, .budget_tokens = budget,
                               .deadline_ns = SCHED_NEVER };
}

static inline void add(uint32_t job, struct sched_job j, uint64_t now) {
    ck_assert_int_eq(sched_add(s, job, &j, now), 0);
}

/* UINT32_MAX: nobody */
static inline uint32_t admit(uint64_t now) {
    uint32_t job;

    return sched_admit(s, now, &job) < 0 ? UINT32_MAX : job;
}

#endif
