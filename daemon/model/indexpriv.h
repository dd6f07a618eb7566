/* SPDX-License-Identifier: MIT */
/* Room-private: struct model_index while it is opened. */
#ifndef GLMD_MODEL_INDEXPRIV_H
#define GLMD_MODEL_INDEXPRIV_H

#include <limits.h>

#include "index.h"

struct model_index {
    char *dir;
    struct st_file *file[MODEL_MAX_FILES];
    const char *file_name[MODEL_MAX_FILES]; /* borrowed from the parsed index while opening */
    uint32_t n_files;
    struct model_entry *entry; /* by name */
    size_t n_entries;
    char warning[320];
};

int model_index_path(const struct model_index *x, const char *name, char path[PATH_MAX], struct xerr *e);
/* ggufindex.c: opens the GGUF files of x->dir. 1: they are open, 0: there are none. other: the name of a
 * safetensors file that is there too, NULL: none. */
int model_index_gguf_files(struct model_index *x, const char *other, const struct st_io *io, struct xerr *e);

#endif
