/* SPDX-License-Identifier: MIT */
/* The two bells of a connection: an eventfd upwards, a pipe downwards. */
#ifndef GLMD_BELL_H
#define GLMD_BELL_H

#include <stdbool.h>
#include <stdint.h>

#include "ringops.h"

struct bell {
    int up_fd;  /* eventfd, also given to the client: poll it edge-triggered, never read or write it */
    int pipe_w; /* ours alone, non-blocking */
    int pipe_r; /* for the client: close it (and set -1) once it has been sent */
};

/* The process must ignore SIGPIPE: a client may close its read end at any time. */
int bell_open(struct bell *ret);
void bell_close(struct bell *b);

/* Wakes the client. 0 also when the pipe is full (it has been woken and has not drained yet);
 * -EPIPE when no reader is left. Never blocks. */
int bell_ring(int pipe_w);

struct bell_counts { /* owned by the publishing thread */
    uint64_t sent, suppressed, records;
};

/* Publishes what was put into the token ring and wakes the client if it asked. 0 or bell_ring()'s error;
 * the records are published in either case. */
int bell_publish(struct glmw_producer *tq, int pipe_w, bool urgent, struct bell_counts *counts);

#endif
