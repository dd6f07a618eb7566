/* SPDX-License-Identifier: MIT */
/* Room-private: an open file of tensors, whichever container it is. */
#ifndef GLMD_STFILE_H
#define GLMD_STFILE_H

#include <sys/stat.h>

#include "gguf.h"
#include "safetensors.h"

struct st_file {
    int fd;
    char *path;
    char *header;        /* of safetensors: names live in it */
    struct gguf *gguf;   /* of GGUF: the same */
    struct st_tensor *t; /* by name */
    size_t n_t;
    uint64_t data_bytes;
    struct stat opened;
    struct st_io io;
};

/* A regular file, opened, with nothing read yet. */
int stfile_open(struct st_file **ret, const char *path, const struct st_io *io, struct xerr *e);
/* All n bytes, or -EIO or the errno. */
int stfile_read(const struct st_file *f, uint64_t at, void *buf, uint64_t n);

#endif
