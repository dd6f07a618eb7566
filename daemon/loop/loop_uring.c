/* SPDX-License-Identifier: MIT */
/* The loop on io_uring: one ring of one issuer, completions run on this thread (DEFER_TASKRUN), multishot
 * poll for every descriptor and multishot accept for listening sockets; liburing 2.3, kernel 6.1. The ring
 * allows only the operations named below. io thread only; the thread that calls loop_new must be the one that
 * runs the loop.
 *
 * A source may be freed only after the last completion of each of its operations: s->ops counts them. */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "loop_impl.h"
#include "uring_limit.h"

enum { ENTRIES = 256 };

struct impl {
    struct io_uring ring;
    bool rearm;                /* some source asks for it */
    bool again;                /* something found no room in the ring: the next turn tries, soon */
    uint64_t refused_since_ns; /* the kernel takes and gives nothing; 0 = it does */
};

#define AGAIN_NS   (10 * CLOCK_NS_PER_MS)
#define GIVE_UP_NS (10 * CLOCK_NS_PER_SEC)

/* The kernel gives user_data back in every completion: the source for an operation of its own, NULL for
 * cancellations, whose result says nothing we need. */
static struct io_uring_sqe *get_sqe(struct impl *m) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&m->ring);

    if (!sqe) {
        if (io_uring_submit(&m->ring) < 0)
            return NULL;
        sqe = io_uring_get_sqe(&m->ring);
    }
    return sqe;
}

static int arm(struct impl *m, struct loop_source *s) {
    struct io_uring_sqe *sqe = get_sqe(m);

    if (!sqe)
        return -EBUSY;
    if (s->accept)
        io_uring_prep_multishot_accept(sqe, s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    else
        io_uring_prep_poll_multishot(sqe, s->fd, POLLIN | POLLRDHUP);
    io_uring_sqe_set_data(sqe, s);
    s->armed = true;
    s->rearm = false;
    s->ops++;
    return 0;
}

static void cancel(struct impl *m, struct loop_source *s) {
    struct io_uring_sqe *sqe;

    if (!s->armed)
        return;
    sqe = get_sqe(m);
    if (!sqe) {
        if (!FAULT(loop_cancel_lost))
            s->uncancelled = m->again = true;
        return;
    }
    s->uncancelled = false;
    io_uring_prep_cancel(sqe, s, 0);
    io_uring_sqe_set_data(sqe, NULL);
}

static const uint8_t allowed_ops[] = {IORING_OP_POLL_ADD, IORING_OP_ACCEPT, IORING_OP_ASYNC_CANCEL,
                                      IORING_OP_NOP};

static int uring_open(struct loop *l) {
    struct impl *m = calloc(1, sizeof *m);
    struct io_uring_params p = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED |
                 IORING_SETUP_CQSIZE,
        .cq_entries = ENTRIES * 8,
    };
    int r;

    if (!m)
        return -ENOMEM;
    r = io_uring_queue_init_params(ENTRIES, &m->ring, &p);
    if (r < 0) {
        free(m);
        return r;
    }
    if (!(p.features & IORING_FEAT_EXT_ARG) || !(p.features & IORING_FEAT_NODROP))
        r = -ENOSYS;
    if (r == 0)
        r = uring_limit(&m->ring, allowed_ops, sizeof allowed_ops);
    if (r < 0) {
        io_uring_queue_exit(&m->ring);
        free(m);
        return r;
    }
    l->impl = m;
    return 0;
}

static void uring_close(struct loop *l) {
    struct impl *m = l->impl;

    io_uring_queue_exit(&m->ring);
    free(m);
}

static int uring_add(struct loop *l, struct loop_source *s) {
    return arm(l->impl, s);
}

static void uring_del(struct loop *l, struct loop_source *s) {
    struct impl *m = l->impl;

    cancel(m, s);
    /* The descriptor may be closed as soon as loop_del returns, and a poll keeps a file alive: the peer must
     * see the end now, so the cancellation is not left for the next turn. With deferred task work its last
     * step runs only when this thread asks for completions. */
    io_uring_submit_and_get_events(&m->ring);
}

static int uring_pause(struct loop *l, struct loop_source *s, bool pause) {
    struct impl *m = l->impl;

    if (pause) {
        cancel(m, s);
        return 0;
    }
    if (s->armed) {
        /* the cancelled operation is still ending: its last completion re-arms */
        s->rearm = true;
        m->rearm = true;
        return 0;
    }
    return arm(m, s);
}

static void complete(struct impl *m, struct loop_source *s, int res, unsigned flags) {
    if (!(flags & IORING_CQE_F_MORE)) {
        s->ops--;
        s->armed = false;
        /* an overflowing completion queue ends multishot operations; those nobody stopped go on */
        if (!s->dead && (!s->paused || s->rearm)) {
            s->rearm = true;
            m->rearm = true;
        }
    }
    if (s->dead || s->paused || res == -ECANCELED) {
        if (s->accept && res >= 0)
            close(res);
        return;
    }
    if (s->accept) {
        s->accept(s->ctx, res);
    } else if (res < 0) {
        s->io(s->ctx, LOOP_HUP);
    } else {
        unsigned ev = 0;

        if (res & POLLIN)
            ev |= LOOP_IN;
        if (res & (POLLHUP | POLLRDHUP | POLLERR))
            ev |= LOOP_HUP;
        if (ev)
            s->io(s->ctx, ev);
    }
}

static void rearm_all(struct loop *l) {
    struct impl *m = l->impl;

    if (!m->rearm && !m->again)
        return;
    m->rearm = m->again = false;
    for (struct loop_source *s = l->sources; s; s = s->next) {
        if (s->uncancelled)
            cancel(m, s);
        if (!s->rearm || s->dead)
            continue;
        if (s->armed)
            m->rearm = true; /* still ending */
        else if (!s->paused && arm(m, s) < 0)
            m->rearm = m->again = true;
    }
}

/* The kernel is out of memory, as a rule for a moment, in which the turn waits in its place. A daemon that
 * hears nothing for long is better started afresh. */
static bool is_refused_for_good(struct impl *m) {
    struct timespec ts = {.tv_nsec = (long)CLOCK_NS_PER_MS};
    uint64_t now = clock_now_ns();

    if (!m->refused_since_ns)
        m->refused_since_ns = now;
    nanosleep(&ts, NULL);
    return now - m->refused_since_ns > GIVE_UP_NS;
}

static int uring_turn(struct loop *l, uint64_t timeout_ns) {
    struct impl *m = l->impl;
    struct __kernel_timespec ts, *tsp = NULL;
    struct io_uring_cqe *cqe;
    unsigned head, n = 0;
    int r;

    if (m->again && timeout_ns > AGAIN_NS)
        timeout_ns = AGAIN_NS;
    if (timeout_ns != UINT64_MAX) {
        ts.tv_sec = (long long)(timeout_ns / CLOCK_NS_PER_SEC);
        ts.tv_nsec = (long long)(timeout_ns % CLOCK_NS_PER_SEC);
        tsp = &ts;
    }
    r = io_uring_submit_and_wait_timeout(&m->ring, &cqe, 1, tsp, NULL);
    if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY)
        return r;
    /* Callbacks may add and cancel operations, which never touches the completion queue, so the entries stay
     * valid until cq_advance. */
    io_uring_for_each_cqe(&m->ring, head, cqe) {
        struct loop_source *s = io_uring_cqe_get_data(cqe);

        n++;
        if (s)
            complete(m, s, cqe->res, cqe->flags);
    }
    io_uring_cq_advance(&m->ring, n);
    if (n > 0 || (r != -EAGAIN && r != -EBUSY))
        m->refused_since_ns = 0;
    else if (is_refused_for_good(m))
        return r;
    rearm_all(l);
    return 0;
}

const struct loop_ops loop_ops_uring = {
    .name = "uring",
    .open = uring_open,
    .close = uring_close,
    .add = uring_add,
    .del = uring_del,
    .pause = uring_pause,
    .turn = uring_turn,
};
