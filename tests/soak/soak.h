/* SPDX-License-Identifier: MIT */
/* What the parts of `make soak` share: the clients' side runs in child processes (soak_client.c), the driver
 * and its measurements in the parent (soak.c), the words and the picture at the end in soak_report.c. */
#ifndef GLMD_TEST_SOAK_H
#define GLMD_TEST_SOAK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum act {
    ACT_HONEST,     /* reads every answer to its end */
    ACT_CANCEL,     /* asks for an early end */
    ACT_DEADLINE,   /* is ended by the clock */
    ACT_DISCONNECT, /* leaves in the middle */
    ACT_KILLED,     /* is killed in the middle */
    ACT_STALLED,    /* is stopped for a while, and reads on or is killed */
    ACT_RESUME,     /* comes back on another connection */
    ACT_BULK,       /* sends more than the arena holds */
    ACT_CHAOS,      /* breaks every rule (only when the driver may change users) */
    ACT_COUNT
};

/* Shared by the driver and all clients of one daemon. */
struct soak_counts {
    _Atomic uint64_t clients[ACT_COUNT];
    _Atomic uint64_t submitted, ended, tokens;
    _Atomic uint64_t refused; /* -EBUSY and -EDQUOT: all places were taken */
};

extern const char *const soak_act_names[ACT_COUNT];

/* In a child: one client's life. The exit status is 0, or 3 after a line on standard error. */
_Noreturn void soak_client(const char *socket_path, enum act act, uint64_t seed, struct soak_counts *counts);

struct soak_sample {
    double minute;
    uint64_t anon_kb, shmem_kb;
    uint32_t fds, threads;
    uint64_t accepted, ended;
};

enum { SOAK_MAX_SAMPLES = 4096 };

struct soak_track { /* one daemon over time */
    const char *loop;
    uint32_t n;
    struct soak_sample s[SOAK_MAX_SAMPLES];
    uint32_t warm; /* samples that belong to the warming-up */
    uint64_t bound_kb;
};

/* A picture of memory and descriptors; 0 or a negative errno. */
int soak_svg(const char *path, const struct soak_track *t, uint32_t n);
void soak_json(const struct soak_track *t, const struct soak_counts *const *c, uint32_t n, double minutes,
               bool ok);
void soak_text(const struct soak_track *t, const struct soak_counts *c);

#endif
