/* SPDX-License-Identifier: MIT */
/* What loop.c and the two backends share. */
#ifndef GLMD_LOOP_IMPL_H
#define GLMD_LOOP_IMPL_H

#include <stdatomic.h>

#include "loop.h"

struct loop_source {
    struct loop_source *prev, *next;
    int fd;
    loop_io_fn io;
    loop_accept_fn accept; /* set for listening sockets */
    void *ctx;
    bool dead; /* loop_del was called */
    bool paused;
    uint32_t ops;     /* uring: operations whose last completion has not been seen */
    bool armed;       /* uring: a multishot operation is in the ring */
    bool rearm;       /* uring: put it back at the end of the turn */
    bool uncancelled; /* uring: its cancellation found no room in the ring */
};

struct loop_timer {
    struct loop_timer *prev, *next;
    uint64_t at_ns;
    loop_fn fn;
    void *ctx;
    bool dead;
};

struct loop_ops {
    const char *name;
    int (*open)(struct loop *l);
    void (*close)(struct loop *l);
    int (*add)(struct loop *l, struct loop_source *s);
    void (*del)(struct loop *l, struct loop_source *s); /* s->dead is set; s lives until s->ops is 0 */
    int (*pause)(struct loop *l, struct loop_source *s, bool pause);
    /* waits until timeout_ns from now (UINT64_MAX = none, 0 = only look) and dispatches what is there */
    int (*turn)(struct loop *l, uint64_t timeout_ns);
};

struct loop {
    const struct loop_ops *ops;
    void *impl;
    struct loop_source *sources;
    struct loop_timer *timers;
    bool (*turn_fn)(void *ctx);
    void *turn_ctx;
    int kick_fd;
    struct loop_source *kick;
    _Atomic bool kicked;
    bool stop;
    bool sweep; /* dead sources or timers wait to be freed */
};

extern const struct loop_ops loop_ops_uring, loop_ops_epoll;

/* Accepts until -EAGAIN and calls the source's callback for each. */
void loop_accept_all(struct loop_source *s);

#endif
