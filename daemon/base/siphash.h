/* SPDX-License-Identifier: MIT */
/* SipHash-2-4 with 128 bits of output: a hash of bytes from outside that nobody without the key can aim at.
 * Pure; any thread. */
#ifndef GLMD_SIPHASH_H
#define GLMD_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct siphash {
    uint64_t h[2];
};

static inline uint64_t siphash_rotl(uint64_t x, unsigned n) {
    return x << n | x >> (64 - n);
}

static inline void siphash_rounds(uint64_t v[4], int n) {
    while (n-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = siphash_rotl(v[1], 13) ^ v[0];
        v[3] = siphash_rotl(v[3], 16) ^ v[2];
        v[0] = siphash_rotl(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = siphash_rotl(v[1], 17) ^ v[2];
        v[3] = siphash_rotl(v[3], 21) ^ v[0];
        v[2] = siphash_rotl(v[2], 32);
    }
}

/* The 16 bytes of output as two little-endian words. p may be NULL with n == 0. */
static inline struct siphash siphash(struct siphash key, const void *p, size_t n) {
    uint64_t v[4] = {0x736f6d6570736575u ^ key.h[0], 0x646f72616e646f6du ^ key.h[1] ^ 0xee,
                     0x6c7967656e657261u ^ key.h[0], 0x7465646279746573u ^ key.h[1]};
    const uint8_t *b = p;
    struct siphash r;
    uint64_t m;

    for (size_t i = 0; i <= n / 8; i++) {
        size_t left = n - i * 8;

        m = left < 8 ? (uint64_t)(n & 0xff) << 56 : 0; /* the last word holds the length */
        for (size_t k = 0; k < 8 && k < left; k++)
            m |= (uint64_t)b[i * 8 + k] << (8 * k);
        v[3] ^= m;
        siphash_rounds(v, 2);
        v[0] ^= m;
    }
    v[2] ^= 0xee;
    siphash_rounds(v, 4);
    r.h[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    siphash_rounds(v, 4);
    r.h[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
    return r;
}

static inline int siphash_eq(struct siphash a, struct siphash b) {
    return a.h[0] == b.h[0] && a.h[1] == b.h[1];
}

#endif
