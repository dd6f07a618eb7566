/* SPDX-License-Identifier: MIT */
/* Which tensor of the checkpoint is which part of the model: every tensor the configuration demands, found,
 * with its shape and dtype checked, and nothing else in the files. Immutable once built. */
#ifndef GLMD_MODEL_DIRECTORY_H
#define GLMD_MODEL_DIRECTORY_H

#include "config.h"
#include "index.h"

struct model_item {
    const struct st_tensor *t;
    uint32_t file; /* of the index */
    struct kern_tensor_id id;
    struct kern_tensor k;
};

struct model_directory {
    struct model_item *item; /* ascending by file, then offset: the order they are read in */
    size_t n_items;
    uint64_t bytes;  /* of all items */
    bool has_draft;  /* the MTP layer's tensors are there (all of them) */
    size_t n_visual; /* tensors of the vision tower: known, not loaded */
    uint64_t visual_bytes;
};

/* index is borrowed and must outlive ret. -ENODATA: a tensor is missing, -EINVAL: wrong shape or dtype, or a
 * tensor the model has no place for; -ENOTSUP: quantised. The message names file and tensor. */
int model_directory_build(struct model_directory *ret, const struct model_config *cfg,
                          const struct model_index *index, struct xerr *e);
void model_directory_done(struct model_directory *d);

#endif
