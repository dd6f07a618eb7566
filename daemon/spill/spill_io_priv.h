/* SPDX-License-Identifier: MIT */
/* What spill_io.c and spill_files.c share. */
#ifndef GLMD_SPILL_IO_PRIV_H
#define GLMD_SPILL_IO_PRIV_H

#include <liburing.h>

#include "spill_io.h"

enum { SPILL_DIR_MAX = 1024 };

struct spill_io {
    struct io_uring ring;
    bool uring, direct;
    int dir_fd, lock_fd;
    uint64_t keep_free;
    struct spill_shape shape;
    char dir[SPILL_DIR_MAX];
    char name[48];
};

/* spill_io.c */
int spill_ring_open(struct spill_io *io); /* 0, or why there is none */
void spill_ring_close(struct spill_io *io);
/* The bytes of every op that has a descriptor and no error yet; errors go to its result. */
void spill_transfer(struct spill_io *io, struct spill_op *ops, uint32_t n);

#endif
