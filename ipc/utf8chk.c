/* SPDX-License-Identifier: MIT */
/* UTF-8 validation. Pure; any thread. */
#include "utf8chk.h"

#include <stdint.h>
#include <string.h>

size_t utf8chk_prefix(const void *s, size_t len) {
    const uint8_t *p = s;
    size_t i = 0;
    while (i < len) {
        /* Most prompt text is ASCII: eight bytes at a time. */
        uint64_t w;
        if (len - i >= sizeof(w)) {
            memcpy(&w, p + i, sizeof(w));
            if ((w & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof(w);
                continue;
            }
        }
        uint8_t c = p[i];
        size_t n;
        uint8_t lo = 0x80, hi = 0xbf; /* bounds of the second byte exclude overlong forms and surrogates */
        if (c < 0x80) {
            i++;
            continue;
        }
        if (c >= 0xc2 && c <= 0xdf) {
            n = 2;
        } else if (c >= 0xe0 && c <= 0xef) {
            n = 3;
            lo = c == 0xe0 ? 0xa0 : 0x80;
            hi = c == 0xed ? 0x9f : 0xbf;
        } else if (c >= 0xf0 && c <= 0xf4) {
            n = 4;
            lo = c == 0xf0 ? 0x90 : 0x80;
            hi = c == 0xf4 ? 0x8f : 0xbf;
        } else {
            return i;
        }
        if (len - i < n || p[i + 1] < lo || p[i + 1] > hi)
            return i;
        for (size_t k = 2; k < n; k++) {
            if ((p[i + k] & 0xc0) != 0x80)
                return i;
        }
        i += n;
    }
    return len;
}
