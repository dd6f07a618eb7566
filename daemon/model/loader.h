/* SPDX-License-Identifier: MIT */
/* Moves every piece of a directory's tensors through a staging buffer into a sink, in the order of the files. */
#ifndef GLMD_MODEL_LOADER_H
#define GLMD_MODEL_LOADER_H

#include "watch.h"

/* A window of one piece's bytes, 64-byte aligned in memory; bytes are gone after the return. 0 or negative
 * errno, which ends the load. The shape of mem_pack_window(). */
typedef int model_sink(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t,
                       uint64_t offset, const void *bytes, uint64_t n);

struct model_load {
    void *staging;          /* 64-byte aligned */
    uint64_t staging_bytes; /* at least MODEL_MIN_STAGING; a megabyte or more is quick */
    model_sink *sink;
    void *sink_ctx;
    /* After each window; done == total at the end. Nonzero stops with -ECANCELED. NULL: none. */
    int (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
    struct model_findings *findings; /* filled at the end; NULL: not wanted */
};

enum {
    MODEL_MIN_STAGING = 4096,
};

/* -EBADMSG: a number that cannot be right, -EIO: a read failed or a file shrank, -ESTALE: a file changed
 * meanwhile, -ECANCELED, or what the sink
 * returned. */
int model_load(const struct model_index *index, const struct model_directory *d, const struct model_load *l,
               struct xerr *e);

#endif
