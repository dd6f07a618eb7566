/* SPDX-License-Identifier: MIT */
/* Incremental detokenisation: token bytes in, whole UTF-8 characters out. Keeps at most 3 bytes (a
 * sequence that may still become valid); bytes that no longer can are shown as one U+FFFD per maximal
 * invalid part, at once. Fixed state, no allocation: made for the emit thread. One struct per stream and
 * channel. */
#ifndef GLMD_DETOK_H
#define GLMD_DETOK_H

#include <stddef.h>
#include <stdint.h>

struct detok {
    uint8_t tail[4];
    uint8_t tail_bytes;
    uint64_t replaced; /* U+FFFD written because of invalid bytes: the symptom of broken weights or kernels */
};

/* Most bytes one push of n bytes can write. */
#define DETOK_BOUND(n) (3 * ((size_t)(n) + 3))

void detok_init(struct detok *d);

/* Returns the bytes written to out, which must hold DETOK_BOUND(n): every piece is whole characters. */
size_t detok_push(struct detok *d, const uint8_t *bytes, size_t n, char *out);

/* The same without a copy where nothing is kept and the bytes are whole characters, as those of most tokens are:
 * returns bytes or out. */
const char *detok_view(struct detok *d, const uint8_t *bytes, size_t n, char *out, size_t *ret_n);

/* End of the text: an unfinished sequence becomes one U+FFFD. out must hold 3 bytes. */
size_t detok_finish(struct detok *d, char *out);

/* End of the text where a leftover must not show (after a stop string). */
void detok_drop(struct detok *d);

#endif
