/* SPDX-License-Identifier: MIT */
/* All tensors of a checkpoint directory under their on-disk names, whichever shard they lie in.
 * Opened by the loading thread; lookups from any thread. */
#ifndef GLMD_MODEL_INDEX_H
#define GLMD_MODEL_INDEX_H

#include "gguf.h"
#include "safetensors.h"

enum {
    MODEL_MAX_FILES = 4096,
};

struct model_entry {
    const struct st_tensor *t;
    uint32_t file;
};

struct model_index;

/* model.safetensors.index.json with its shards, model.safetensors alone, or one GGUF model in one or more files.
 * -ENOENT: none of them, or some of the files are missing (named), -EBADMSG / -EINVAL: the files disagree, or
 * there is more than one model. io as for st_open. */
int model_index_open(struct model_index **ret, const char *dir, const struct st_io *io, struct xerr *e);
/* Only if it is a GGUF model: 1, else 0 and nothing is written. */
int model_index_open_gguf(struct model_index **ret, const char *dir, struct xerr *e);
struct model_index *model_index_close(struct model_index *x); /* NULL ok; returns NULL */

const char *model_index_dir(const struct model_index *x);
uint32_t model_index_files(const struct model_index *x);
const struct st_file *model_index_file(const struct model_index *x, uint32_t file);

/* The metadata of a GGUF model; NULL: it is safetensors. */
const struct gguf *model_index_gguf(const struct model_index *x);

/* In ascending order of name. */
size_t model_index_count(const struct model_index *x);
const struct model_entry *model_index_at(const struct model_index *x, size_t i);
const struct model_entry *model_index_find(const struct model_index *x, const char *name); /* NULL: none */
/* Number of the first entry whose name is not below `name`; model_index_count() when there is none. Names that
 * begin alike stand together from there on. */
size_t model_index_from(const struct model_index *x, const char *name);

/* What is odd but harmless, one sentence for the caller to log, or NULL. */
const char *model_index_warning(const struct model_index *x);

#endif
