/* SPDX-License-Identifier: MIT */
/* Class of a code point for the pre-tokenizer's pattern: two table reads. The tables are generated. */
#ifndef GLMD_UNICODE_TABLE_H
#define GLMD_UNICODE_TABLE_H

#include <stdint.h>

enum uctab_class_id {
    UC_OTHER = 0,
    UC_LETTER = 1, /* \p{L} */
    UC_NUMBER = 2, /* \p{N} */
    UC_SPACE = 3,  /* \s: White_Space */
};

extern const char uctab_unicode_version[];
extern const uint8_t uctab_block[0x110000 / 256];
extern const uint8_t uctab_class[][64]; /* 256 code points a row, two bits each */

static inline enum uctab_class_id uctab_of(uint32_t cp) {
    unsigned row = uctab_class[uctab_block[cp >> 8]][(cp & 255) / 4];

    return (enum uctab_class_id)(row >> cp % 4 * 2 & 3);
}

#endif
