/* SPDX-License-Identifier: MIT */
/* A GGUF file as a file of tensors: the slowest dimension first, as everywhere here. */
#ifndef GLMD_GGUFILE_H
#define GLMD_GGUFILE_H

#include "gguf.h"
#include "safetensors.h"

/* As st_open. */
int st_open_gguf(struct st_file **ret, const char *path, const struct st_io *io, struct xerr *e);
const struct gguf *st_gguf(const struct st_file *f); /* NULL: it is safetensors */

#endif
