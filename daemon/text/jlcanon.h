/* SPDX-License-Identifier: MIT */
/* One text for all spellings of a JSON value, so that equal values are equal bytes. Text workers (allocates). */
#ifndef GLMD_JLCANON_H
#define GLMD_JLCANON_H

#include "jsonlite.h"

/* Appends the canonical text of a checked value. Spacing, escapes, the order of keys, all but the last of equal
 * keys and the spelling of a number (1, 1.0 and 10e-1 are one value, exactly, whatever its size) make no
 * difference; everything else does. Failures stick in out->err. */
void jl_canon(struct tstr value, struct tbuf *out);

#endif
