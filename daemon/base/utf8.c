/* SPDX-License-Identifier: MIT */
/* UTF-8 validation after the table of well-formed byte sequences in the Unicode standard (chapter 3). */
#include "utf8.h"

#include <string.h>

/* What a lead byte asks for: length, and the range of the second byte, which alone excludes overlong forms,
 * surrogates and everything above U+10FFFF. Length 0: no sequence starts with this byte. */
static unsigned lead(uint8_t b, uint8_t *ret_lo, uint8_t *ret_hi) {
    uint8_t lo = 0x80, hi = 0xbf;
    unsigned len = 0;

    if (b >= 0xc2 && b <= 0xdf) {
        len = 2;
    } else if (b >= 0xe0 && b <= 0xef) {
        len = 3;
        if (b == 0xe0)
            lo = 0xa0;
        else if (b == 0xed)
            hi = 0x9f;
    } else if (b >= 0xf0 && b <= 0xf4) {
        len = 4;
        if (b == 0xf0)
            lo = 0x90;
        else if (b == 0xf4)
            hi = 0x8f;
    }
    *ret_lo = lo;
    *ret_hi = hi;
    return len;
}

int utf8_next(const uint8_t *s, size_t n, uint32_t *ret_cp) {
    uint8_t lo, hi;
    uint32_t cp;
    unsigned len;

    if (s[0] < 0x80) {
        if (ret_cp)
            *ret_cp = s[0];
        return 1;
    }
    len = lead(s[0], &lo, &hi);
    if (len == 0)
        return -1;
    cp = s[0] & (0xffu >> (len + 1));
    for (unsigned i = 1; i < len; i++) {
        if (i >= n)
            return 0;
        if (s[i] < lo || s[i] > hi)
            return -(int)i;
        lo = 0x80;
        hi = 0xbf;
        cp = cp << 6 | (s[i] & 0x3fu);
    }
    if (ret_cp)
        *ret_cp = cp;
    return (int)len;
}

size_t utf8_valid_prefix(const void *p, size_t n) {
    const uint8_t *s = p;
    size_t i = 0;

    while (i < n) {
        uint64_t w;
        int len;

        /* plain ASCII, eight bytes at a time: most of every prompt */
        while (n - i >= 8) {
            memcpy(&w, s + i, 8);
            if (w & UINT64_C(0x8080808080808080))
                break;
            i += 8;
        }
        while (i < n && s[i] < 0x80)
            i++;
        if (i == n)
            break;
        len = utf8_next(s + i, n - i, NULL);
        if (len <= 0)
            break;
        i += (size_t)len;
    }
    return i;
}

size_t utf8_put(uint32_t cp, char ret[4]) {
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        cp = 0xfffd;
    if (cp < 0x80) {
        ret[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        ret[0] = (char)(0xc0 | cp >> 6);
        ret[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        ret[0] = (char)(0xe0 | cp >> 12);
        ret[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        ret[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    ret[0] = (char)(0xf0 | cp >> 18);
    ret[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    ret[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    ret[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}
