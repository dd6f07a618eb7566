/* SPDX-License-Identifier: MIT */
/* A ring that was made disabled is limited to the operations its owner needs and switched on, because seccomp cannot
 * see what goes through a ring. Before the first submission, on the thread that made the ring. */
#ifndef GLMD_LOOP_URING_LIMIT_H
#define GLMD_LOOP_URING_LIMIT_H

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { URING_LIMIT_MAX = 8 };

static inline int uring_limit(struct io_uring *ring, const uint8_t *ops, unsigned n_ops) {
    struct io_uring_restriction res[URING_LIMIT_MAX + 1];
    unsigned n = 0;

    if (n_ops > URING_LIMIT_MAX)
        return -EINVAL;
    memset(res, 0, sizeof res);
    for (; n < n_ops; n++) {
        res[n].opcode = IORING_RESTRICTION_SQE_OP;
        res[n].sqe_op = ops[n];
    }
    res[n].opcode = IORING_RESTRICTION_REGISTER_OP;
    res[n++].register_op = IORING_REGISTER_ENABLE_RINGS;
    /* liburing 2.3 declares wrappers for both calls but does not export them */
    if (syscall(__NR_io_uring_register, ring->ring_fd, IORING_REGISTER_RESTRICTIONS, res, n) < 0)
        return -errno;
    return syscall(__NR_io_uring_register, ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0 ? -errno : 0;
}

#endif
