/* SPDX-License-Identifier: MIT */
/* Pre-tokenizer of the GLM family, by hand: the pieces this regular expression finds, in order, without gaps.
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
 *   |\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * Pure function on valid UTF-8, any thread. */
#ifndef GLMD_SPLIT_H
#define GLMD_SPLIT_H

#include <stddef.h>
#include <stdint.h>

/* The pattern as tokenizer.json writes it: the only one this code is right for. */
extern const char split_pattern[];

/* Length in bytes of the piece at s; n >= 1, and s + n is the end of the whole text: what follows a run of
 * white space decides how it is cut. */
size_t split_next(const uint8_t *s, size_t n);

#endif
