/* SPDX-License-Identifier: MIT */
/* Which tensor of the checkpoint is which part of the model: every tensor the configuration demands, found,
 * in whatever format it is stored, with the shapes and dtypes of all its pieces checked, and nothing else in
 * the files. Immutable once built. */
#ifndef GLMD_MODEL_DIRECTORY_H
#define GLMD_MODEL_DIRECTORY_H

#include "config.h"
#include "detect.h"
#include "index.h"

/* A run of bytes of a file that is read: one piece of one tensor, or something that is only looked at. */
struct model_item {
    const struct st_tensor *t;
    uint32_t file;              /* of the index */
    uint64_t at, bytes;         /* of the file */
    uint8_t conv, number, rule; /* detect.h */
    struct kern_tensor_id id;   /* piece MODEL_PIECE_NONE: handed to nobody */
    struct kern_tensor k;
};

/* One tensor of the model, whatever it is made of. */
struct model_tensor {
    struct kern_tensor_id id;
    struct kern_tensor k;
    bool is_matrix;
    uint64_t bytes; /* once loaded: of its pieces; vectors are kept in F32 */
};

struct model_directory {
    struct model_item *item; /* ascending by file, then offset: the order they are read in */
    size_t n_items;
    struct model_tensor *tensor;
    size_t n_tensors;
    uint64_t bytes;    /* of the files, of all items */
    uint64_t resident; /* of all tensors */
    bool has_draft;    /* the MTP layer's tensors are there (all of them) */
    size_t n_visual;   /* tensors of the vision tower: known, not loaded */
    uint64_t visual_bytes;
    size_t n_unused; /* scales of activations and caches: known, not needed */
};

/* index is borrowed and must outlive ret. -ENODATA: a tensor is missing, -EINVAL: wrong shape or dtype, or a
 * tensor the model has no place for; -ENOTSUP: a format or spelling that is not read. The message names file
 * and tensor. */
int model_directory_build(struct model_directory *ret, const struct model_config *cfg,
                          const struct model_index *index, struct xerr *e);
void model_directory_done(struct model_directory *d);

#endif
