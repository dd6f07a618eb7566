/* SPDX-License-Identifier: MIT */
/* Strict UTF-8 for text that crosses the wire. */
#ifndef GLMD_UTF8CHK_H
#define GLMD_UTF8CHK_H

#include <stddef.h>

/* Bytes of the longest valid prefix: len when all of s is UTF-8 (no surrogates, no overlong forms, nothing
 * above U+10FFFF). NUL is valid. */
size_t utf8chk_prefix(const void *s, size_t len);

#endif
