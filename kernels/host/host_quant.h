/* SPDX-License-Identifier: MIT */
/* host_quant.h: numbers into every format of format.h: the inverse of host_unpack.h, for programs that write
 * checkpoints, for weights that are made smaller while they are loaded, and for tests. Nearest codes under
 * scales that are chosen by simple searches, without calibration data. Pure functions over the caller's
 * memory; any thread; nothing is allocated. */
#ifndef GLMD_HOST_QUANT_H
#define GLMD_HOST_QUANT_H

#include "host_unpack.h"

/* What host_quant_rows() works in: 8-aligned, zeroed before its first use, of one thread at a time. */
enum { HOST_QUANT_SCRATCH = 1 << 20 };

/* Rows that must come together: 1, the rows that share a scale, and 128 for EXL3. The last group may be
 * smaller. */
uint64_t host_quant_unit(const struct kern_store *s, uint64_t rows);

/* *amax grows to the largest magnitude of w[0 .. n). -EDOM: a number is not finite. */
int host_quant_scan(const float *w, uint64_t n, float *amax);

/* Rows [row0, row0 + n), w [n][cols], into their places in the pieces of the whole matrix; row0 is a multiple of
 * the unit, n too unless the matrix ends there. amax is that of the whole matrix: what decides the factor of the
 * whole matrix where a store has one (NVFP4, FP8 with one scale). What belongs to the whole matrix is written
 * with row 0; other rows may then be done by several threads at once. A scale of nothing but zeros is 1. Numbers
 * so small that their scale cannot be held become 0.
 * -EDOM: a number is not finite; -ERANGE: one is too large for the scales of this store. */
int host_quant_rows(const struct kern_store *s, uint64_t rows, uint64_t cols, const float *w, uint64_t row0,
                    uint64_t n, float amax, void *const piece[KERN_PIECES], void *scratch);

/* The same of EXL3 in two steps, so that one thread after the other need not do whole rows. First the scales of rows
 * [row0, row0 + 128), w [128][cols], and with row 0 the signs of the inputs. */
int host_quant_exl3_scales(const struct kern_store *s, uint64_t cols, const float *w, uint64_t row0,
                           void *const piece[KERN_PIECES]);
/* Then the codes of those rows in columns [col0, col0 + 128), in any order and by several threads; w [128], rows stride
 * apart, begins with col0. */
void host_quant_exl3_square(const struct kern_store *s, uint64_t rows, const float *w, uint64_t stride, uint64_t row0,
                            uint64_t col0, void *const piece[KERN_PIECES], void *scratch);

/* The factor of a whole NVFP4 matrix. */
float host_quant_global(float amax);

/* One block of a GGUF format, weights as kern_store_block() says. -ERANGE as above. */
int host_quant_block(uint32_t format, const float *w, uint8_t *block);

#endif
