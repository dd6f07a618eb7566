/* SPDX-License-Identifier: MIT */
/* UTF-8, byte by byte: the one place that decides what a well-formed sequence is (no surrogates, no overlong
 * forms, nothing above U+10FFFF). Pure functions, any thread, no allocation. */
#ifndef GLMD_UTF8_H
#define GLMD_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT       "\xef\xbf\xbd" /* U+FFFD */
#define UTF8_REPLACEMENT_BYTES 3

/* Looks at the start of s (n >= 1 bytes).
 *   > 0  length of the complete, valid sequence there; *ret_cp (NULL allowed) is its code point
 *   = 0  the n bytes are the beginning of a valid sequence that more bytes may complete
 *   < 0  the first -result bytes are a maximal part that no continuation can make valid */
int utf8_next(const uint8_t *s, size_t n, uint32_t *ret_cp);

/* Length of the longest prefix made of complete, valid sequences only. */
size_t utf8_valid_prefix(const void *s, size_t n);

static inline bool utf8_is_valid(const void *s, size_t n) {
    return utf8_valid_prefix(s, n) == n;
}

/* Writes 1..4 bytes, returns how many; a code point that has no encoding is written as U+FFFD. */
size_t utf8_put(uint32_t cp, char ret[4]);

#endif
