/* SPDX-License-Identifier: MIT */
/* crc32test.h: the CRC-32 of zlib and PNG, which check vectors are given in. Bit by bit; tests only, any
 * thread. */
#ifndef GLMD_TEST_CRC32_H
#define GLMD_TEST_CRC32_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t crc32_of(const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint32_t c = 0xffffffffu;
    while (n--) {
        c ^= *p++;
        for (int i = 0; i < 8; i++)
            c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
    }
    return ~c;
}

#endif
