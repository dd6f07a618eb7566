/* SPDX-License-Identifier: MIT */
/* Files of blocks: a batch of them written, read or removed at a time, over io_uring or with plain calls, past the
 * page cache where the file system can. The spill thread only (the starting thread before there is one). Blocks the
 * caller; allocates only in open.
 *
 * A block is written under a name of its own, brought to the disk, and only then renamed: what has a block's name was
 * complete once. What has become of it since, spill_block_check sees when it is read. */
#ifndef GLMD_SPILL_IO_H
#define GLMD_SPILL_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "block.h"
#include "xerr.h"

enum { SPILL_BATCH = 16, SPILL_NAME_MAX = 48 };

enum spill_op_type { SPILL_OP_WRITE = 1, SPILL_OP_READ, SPILL_OP_REMOVE };

struct spill_op {
    enum spill_op_type type;
    uint8_t kind; /* of the block; SPILL_FOREIGN: removed whichever it is */
    uint32_t ref; /* the caller's */
    struct spill_id id;
    void *image; /* SPILL_ALIGN-aligned, the caller's until the batch is done; sealed here before it is written */
    uint64_t bytes, file_bytes; /* file_bytes: reads; more than bytes: head and ids alone are wanted */
    int result;
    int fd; /* inside a batch */
};

struct spill_io;

struct spill_io_options {
    const char *dir;
    uint64_t keep_free; /* bytes the file system must have left behind a write: -ENOSPC otherwise */
    bool plain;         /* no io_uring */
    struct spill_shape shape;
};

/* Looks at the directory, takes its lock. The error's sentence says what is wrong with it. */
int spill_io_open(const struct spill_io_options *o, struct spill_io **ret, struct xerr *err);
struct spill_io *spill_io_close(struct spill_io *io); /* NULL ok */

/* All of the batch, one after another as far as order matters to the caller: removals first, then reads and writes
 * side by side. Each op gets its result; a read's image has been checked, against its name too. */
void spill_io_run(struct spill_io *io, struct spill_op *ops, uint32_t n);

const char *spill_io_name(const struct spill_io *io); /* "io_uring, direct", … */
const char *spill_io_dir(const struct spill_io *io);

/* The file's name without its directory. */
void spill_name(char ret[SPILL_NAME_MAX], uint8_t kind, const struct spill_id *id);
/* The other way round; false: no such name. */
bool spill_name_parse(const char *name, uint8_t *ret_kind, struct spill_id *ret_id);
/* The head of a file, as far as it can be believed: what spill_head_check says, or an error of the system. */
int spill_io_head(struct spill_io *io, const char *name, struct spill_head *ret, uint64_t *ret_bytes);
void spill_io_remove(struct spill_io *io, const char *name);

#endif
