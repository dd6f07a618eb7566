/* SPDX-License-Identifier: MIT */
/* Files of blocks. See spill_io.h. A transfer that the ring did not do, or not whole, is done again by plain calls, so
 * every oddity of a file system has one way out. */
#include "spill_io.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "spill_io_priv.h"
#include "log.h"
#include "size.h"
#include "uring_limit.h"

enum { RING_ENTRIES = 64, RING_TRIES = 50, INTR_TRIES = 1000 };

/* One piece of one file on its way. */
struct piece {
    int fd;
    bool write;
    char *mem;
    uint64_t off, len;
    int res;
    bool done;
};

static const uint8_t allowed_ops[] = { IORING_OP_READ, IORING_OP_WRITE };

int spill_ring_open(struct spill_io *io) {
    struct io_uring_params p = { .flags = IORING_SETUP_R_DISABLED };
    int r = io_uring_queue_init_params(RING_ENTRIES, &io->ring, &p);

    if (r < 0)
        return r;
    r = uring_limit(&io->ring, allowed_ops, sizeof allowed_ops);
    if (r < 0)
        io_uring_queue_exit(&io->ring);
    else
        io->uring = true;
    return r;
}

void spill_ring_close(struct spill_io *io) {
    if (io->uring)
        io_uring_queue_exit(&io->ring);
    io->uring = false;
}

static uint32_t reap(struct spill_io *io) {
    struct io_uring_cqe *cqe;
    unsigned head;
    uint32_t n = 0;

    io_uring_for_each_cqe(&io->ring, head, cqe) {
        struct piece *p = io_uring_cqe_get_data(cqe);

        p->res = cqe->res;
        p->done = true;
        n++;
    }
    io_uring_cq_advance(&io->ring, n);
    return n;
}

/* Until every piece that the kernel took has come back: until then the memory is the kernel's. What it never took
 * is left, and the ring with it, for entries cannot be taken back. */
static void ring_wave(struct spill_io *io, struct piece *p, uint32_t n) {
    uint32_t done = 0, tries = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring); /* the ring is empty, and no smaller than a wave */

        if (p[i].write)
            io_uring_prep_write(sqe, p[i].fd, p[i].mem, (unsigned)p[i].len, p[i].off);
        else
            io_uring_prep_read(sqe, p[i].fd, p[i].mem, (unsigned)p[i].len, p[i].off);
        io_uring_sqe_set_data(sqe, &p[i]);
    }
    for (;;) {
        uint32_t waiting = io_uring_sq_ready(&io->ring);
        struct timespec ms = { .tv_nsec = 1000000 };
        struct io_uring_cqe *cqe;
        int r;

        if (done == n || (tries > RING_TRIES && done == n - waiting))
            break;
        r = tries > RING_TRIES ? -EBUSY : io_uring_submit_and_wait_timeout(&io->ring, &cqe, 1, NULL, NULL);
        if (r < 0 && r != -EINTR) {
            tries++;
            nanosleep(&ms, NULL);
        }
        done += reap(io);
    }
    if (tries > RING_TRIES) {
        spill_ring_close(io);
        log_warning("spill: the kernel takes nothing through io_uring any more; going on without it");
    }
}

/* What is left of a piece, with plain calls. 0 or an error. */
static int finish_piece(struct piece *p) {
    uint64_t at = p->done && p->res > 0 ? (uint64_t)p->res : 0;
    int intr = 0;

    if (at > p->len)
        return -EIO;
    while (at < p->len) {
        ssize_t n = p->write ? pwrite(p->fd, p->mem + at, p->len - at, (off_t)(p->off + at))
                             : pread(p->fd, p->mem + at, p->len - at, (off_t)(p->off + at));

        if (n < 0 && errno == EINTR && intr++ < INTR_TRIES)
            continue;
        if (n < 0 && errno == EINVAL) {
            int flags = fcntl(p->fd, F_GETFL);

            /* a file system may let a file be opened for direct transfers and then not like this one */
            if (flags >= 0 && flags & O_DIRECT && fcntl(p->fd, F_SETFL, flags & ~O_DIRECT) == 0)
                continue;
            return -EINVAL;
        }
        if (n < 0)
            return -errno;
        if (n == 0)
            return p->write ? -EIO : -EBADMSG; /* the file is shorter than it was a moment ago */
        at += (uint64_t)n;
    }
    return 0;
}

static void run_wave(struct spill_io *io, struct piece *p, struct spill_op **owner, uint32_t n) {
    if (io->uring && n)
        ring_wave(io, p, n);
    for (uint32_t i = 0; i < n; i++) {
        int r = finish_piece(&p[i]);

        if (r < 0 && owner[i]->result == 0)
            owner[i]->result = r;
    }
}

void spill_transfer(struct spill_io *io, struct spill_op *ops, uint32_t n) {
    struct piece p[RING_ENTRIES];
    struct spill_op *owner[RING_ENTRIES];
    uint32_t k = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (ops[i].result < 0 || ops[i].fd < 0)
            continue;
        for (uint64_t off = 0; off < ops[i].bytes; off += SPILL_CHUNK_BYTES) {
            uint64_t left = ops[i].bytes - off;

            if (k == RING_ENTRIES) {
                run_wave(io, p, owner, k);
                k = 0;
            }
            owner[k] = &ops[i];
            p[k++] = (struct piece){ .fd = ops[i].fd,
                                     .write = ops[i].type == SPILL_OP_WRITE,
                                     .mem = (char *)ops[i].image + off,
                                     .off = off,
                                     .len = left < SPILL_CHUNK_BYTES ? left : SPILL_CHUNK_BYTES };
        }
    }
    run_wave(io, p, owner, k);
}
