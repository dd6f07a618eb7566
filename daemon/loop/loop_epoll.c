/* SPDX-License-Identifier: MIT */
/* The loop on epoll: edge-triggered readiness, the wait's own timeout for timers. First-class: container
 * profiles often refuse io_uring. io thread only. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "clock.h"
#include "loop_impl.h"

enum { BATCH = 64 };

struct impl {
    int fd;
    struct epoll_event ev[BATCH];
};

static int epoll_open(struct loop *l) {
    struct impl *m = calloc(1, sizeof *m);
    int r;

    if (!m)
        return -ENOMEM;
    m->fd = epoll_create1(EPOLL_CLOEXEC);
    if (m->fd < 0) {
        r = -errno;
        free(m);
        return r;
    }
    l->impl = m;
    return 0;
}

static void epoll_close(struct loop *l) {
    struct impl *m = l->impl;

    close(m->fd);
    free(m);
}

static int control(struct loop *l, int op, struct loop_source *s) {
    struct impl *m = l->impl;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = s};

    return epoll_ctl(m->fd, op, s->fd, &ev) < 0 ? -errno : 0;
}

static int epoll_add(struct loop *l, struct loop_source *s) {
    return control(l, EPOLL_CTL_ADD, s);
}

static void epoll_del(struct loop *l, struct loop_source *s) {
    if (!s->paused)
        control(l, EPOLL_CTL_DEL, s);
}

/* Adding afresh reports what is ready now, which is what resuming promises. */
static int epoll_pause(struct loop *l, struct loop_source *s, bool pause) {
    return control(l, pause ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, s);
}

static int epoll_turn(struct loop *l, uint64_t timeout_ns) {
    struct impl *m = l->impl;
    int n, ms = -1;

    if (timeout_ns != UINT64_MAX) {
        /* rounded up: waking before a timer is due would spin */
        uint64_t up = (timeout_ns + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS;

        ms = up > 3600000 ? 3600000 : (int)up;
    }
    n = epoll_wait(m->fd, m->ev, BATCH, ms);
    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    for (int i = 0; i < n; i++) {
        struct loop_source *s = m->ev[i].data.ptr;
        unsigned ev = 0;

        if (s->dead || s->paused)
            continue;
        if (s->accept) {
            loop_accept_all(s);
            continue;
        }
        if (m->ev[i].events & EPOLLIN)
            ev |= LOOP_IN;
        if (m->ev[i].events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR))
            ev |= LOOP_HUP;
        s->io(s->ctx, ev);
    }
    return 0;
}

const struct loop_ops loop_ops_epoll = {
    .name = "epoll",
    .open = epoll_open,
    .close = epoll_close,
    .add = epoll_add,
    .del = epoll_del,
    .pause = epoll_pause,
    .turn = epoll_turn,
};
