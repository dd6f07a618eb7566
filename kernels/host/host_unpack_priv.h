/* SPDX-License-Identifier: MIT */
/* host_unpack_priv.h: between the files host_unpack*.c. */
#ifndef GLMD_HOST_UNPACK_PRIV_H
#define GLMD_HOST_UNPACK_PRIV_H

#include "host_unpack.h"

void unpack_exl3(const struct kern_store *s, uint64_t rows, uint64_t cols,
                 const void *const piece[KERN_PIECES], uint64_t row0, uint64_t n, float *out);
/* global: NULL when the matrix has no factor of its own. */
void unpack_gguf_row(const struct kern_store *s, uint64_t cols, const uint8_t *codes, const uint8_t *global,
                     uint64_t row, float *out);

/* Each: one block of its format, as host_unpack_block(). */
void unpack_iq1_s(const uint8_t *b, float *out);
void unpack_iq1_m(const uint8_t *b, float *out);
void unpack_iq2_xxs(const uint8_t *b, float *out);
void unpack_iq2_xs(const uint8_t *b, float *out);
void unpack_iq2_s(const uint8_t *b, float *out);
void unpack_iq3_xxs(const uint8_t *b, float *out);
void unpack_iq3_s(const uint8_t *b, float *out);
void unpack_iq4_nl(const uint8_t *b, float *out);
void unpack_iq4_xs(const uint8_t *b, float *out);

#endif
