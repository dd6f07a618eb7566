/* SPDX-License-Identifier: MIT */
/* Room-private: the parser of a safetensors header. */
#ifndef GLMD_STHEADER_H
#define GLMD_STHEADER_H

#include "safetensors.h"

/* Parses text[0 .. n) in place; names of the result point into text, which must outlive it. text[n] must be
 * writable. data0 is the file offset of the data area, data_bytes its length. *ret_tensors is malloc'ed and
 * sorted by name. file is the path as shown in messages. */
int stheader_parse(const char *file, char *text, size_t n, uint64_t data0, uint64_t data_bytes,
                   struct st_tensor **ret_tensors, size_t *ret_n, struct xerr *e);

#endif
