/* SPDX-License-Identifier: MIT */
/* convert.h: weights that come in BF16 and are kept smaller, sixteen rows at a time between loader and packing. */
#ifndef GLMD_ENGINE_CONVERT_H
#define GLMD_ENGINE_CONVERT_H

#include "loader.h"

struct convert {
    model_sink *sink; /* the shape of the loader's own */
    void *sink_ctx;
    struct kern_tensor_id id; /* of the matrix at work */
    uint64_t next, row, filled; /* its next byte; rows done; bytes waiting */
    uint8_t *in;                /* sixteen rows as they came */
    float *numbers;
    uint8_t *codes, *scales;
    void *scratch;
};

/* What it works in for the widest matrix that is converted; 0: none is. */
uint64_t convert_bytes(const struct model_directory *d, const struct kern_model_desc *m,
                       const struct kern_store *stores);
/* memory: convert_bytes(), zeroed, 64-byte aligned, borrowed. */
void convert_begin(struct convert *c, const struct model_directory *d, const struct kern_model_desc *m,
                   const struct kern_store *stores, void *memory);
/* A window of a matrix in BF16 that is kept as `to`; windows of one matrix come in order, one matrix after the other.
 * The rows that are complete go on to the sink. -EPROTO: out of order; what the sink returned. */
int convert_window(struct convert *c, const struct kern_tensor_id *id, const struct kern_tensor *t,
                   const struct kern_store *to, uint64_t offset, const void *bytes, uint64_t n);

#endif
