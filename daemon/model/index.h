/* SPDX-License-Identifier: MIT */
/* All tensors of a checkpoint directory under their on-disk names, whichever shard they lie in.
 * Opened by the loading thread; lookups from any thread. */
#ifndef GLMD_MODEL_INDEX_H
#define GLMD_MODEL_INDEX_H

#include "safetensors.h"

enum {
    MODEL_MAX_FILES = 4096,
};

struct model_entry {
    const struct st_tensor *t;
    uint32_t file;
};

struct model_index;

/* model.safetensors.index.json with its shards, or model.safetensors alone. -ENOENT: neither, or listed
 * shards are missing (named), -EBADMSG / -EINVAL: index and shards disagree. io as for st_open. */
int model_index_open(struct model_index **ret, const char *dir, const struct st_io *io, struct xerr *e);
struct model_index *model_index_close(struct model_index *x); /* NULL ok; returns NULL */

const char *model_index_dir(const struct model_index *x);
uint32_t model_index_files(const struct model_index *x);
const struct st_file *model_index_file(const struct model_index *x, uint32_t file);

/* In ascending order of name. */
size_t model_index_count(const struct model_index *x);
const struct model_entry *model_index_at(const struct model_index *x, size_t i);
const struct model_entry *model_index_find(const struct model_index *x, const char *name); /* NULL: none */

/* What is odd but harmless, one sentence for the caller to log, or NULL. */
const char *model_index_warning(const struct model_index *x);

#endif
