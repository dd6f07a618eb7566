/* SPDX-License-Identifier: MIT */
/* Creates both bells and is the only file that writes to a client's pipe.
 *
 * Called by the io thread (open, close) and by whichever thread publishes. May not block: the only file the
 * daemon writes is the pipe's write end, whose open file the client does not share, so its O_NONBLOCK cannot
 * be taken away. The eventfd is shared and therefore only ever polled: a peer can clear O_NONBLOCK there,
 * fill the counter, and a write would sleep for ever. */
#include "bell.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

int bell_open(struct bell *ret) {
    struct bell b = {.up_fd = -1, .pipe_w = -1, .pipe_r = -1};
    int p[2], r;

    b.up_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b.up_fd < 0)
        return -errno;
    if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0) {
        r = -errno;
        goto fail;
    }
    b.pipe_r = p[0];
    b.pipe_w = p[1];
    /* One page is the least the kernel gives; a full pipe means "already woken". */
    if (fcntl(b.pipe_w, F_SETPIPE_SZ, (int)sysconf(_SC_PAGESIZE)) < 0) {
        r = -errno;
        goto fail;
    }
    *ret = b;
    return 0;

fail:
    bell_close(&b);
    return r;
}

void bell_close(struct bell *b) {
    int *fds[] = {&b->up_fd, &b->pipe_w, &b->pipe_r};
    for (unsigned i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

int bell_ring(int pipe_w) {
    static const char one = 1;
    for (;;) {
        if (write(pipe_w, &one, 1) == 1 || errno == EAGAIN)
            return 0;
        if (errno != EINTR)
            return -errno;
    }
}

int bell_publish(struct glmw_producer *tq, int pipe_w, bool urgent, struct bell_counts *counts) {
    uint32_t n = tq->tail - tq->published;
    if (n == 0)
        return 0;
    counts->records += n;
    if (!glmw_publish(tq, urgent) && !FAULT(bell_per_record)) {
        counts->suppressed++;
        return 0;
    }
    counts->sent++;
    return bell_ring(pipe_w);
}
