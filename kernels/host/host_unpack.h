/* SPDX-License-Identifier: MIT */
/* host_unpack.h: the scalar rule of every format of format.h, bit for bit: what a stored matrix is worth.
 * Whoever has a faster way (an instruction set, a device) is compared with this one. Pure functions over the
 * caller's memory; any thread; nothing is allocated. The check vectors are in tests/unit/format_vectors.c. */
#ifndef GLMD_HOST_UNPACK_H
#define GLMD_HOST_UNPACK_H

#include "format.h"
#include "host.h"

/* Rows that are unpacked together: 1, and 128 for EXL3, whose rows are mixed by a transform. */
static inline uint32_t host_unpack_unit(const struct kern_store *s) {
    return s->format == KERN_EXL3 ? 128 : 1;
}

/* Rows [row0, row0 + n) of W [rows, cols] as F32, row after row. piece[p] is the first byte of that piece of
 * the whole matrix, of no particular alignment, NULL where the store has none. The store is one that
 * kern_store_piece() takes for this shape, row0 and n are multiples of the unit. Every product is rounded to
 * F32 in the order format.h writes it: first the factors of a block among themselves, then the code with that
 * factor. Sums do not occur but for the minimum of Q2_K, Q4_K, Q5_K and the delta of IQ1. EXL3 is transformed
 * in double precision and rounded at the end. What a code or scale does not define (E4M3 0x7f, E8M0 255) is
 * NaN. */
void host_unpack_rows(const struct kern_store *s, uint64_t rows, uint64_t cols,
                      const void *const piece[KERN_PIECES], uint64_t row0, uint64_t n, float *out);

/* One block of a GGUF format (kern_store_block()): its weights to out. */
void host_unpack_block(uint32_t format, const uint8_t *block, float *out);

/* ---- numbers ---- */

static inline uint16_t host_le16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t host_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline float host_bits_f32(uint32_t u) {
    float v;
    memcpy(&v, &u, sizeof(v));
    return v;
}

static inline float host_f16_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00) /* infinity, NaN */
        return host_bits_f32(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    if (rest < 0x400) {
        float v = (float)rest * 0x1p-24f;
        return sign ? -v : v;
    }
    return host_bits_f32(sign | ((rest << 13) + (112u << 23)));
}

/* Nearest even, overflow to infinity, NaN stays NaN. */
static inline uint16_t host_f16(float v) {
    uint32_t u, sign;
    memcpy(&u, &v, sizeof(u));
    sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00);
    if (u < 113u << 23) { /* below the smallest normal: steps of 2^-24, which are those of F32 above 2^-1 */
        float low = host_bits_f32(u) + 0.5f;
        uint32_t b;
        memcpy(&b, &low, sizeof(b));
        return (uint16_t)(sign | (b - 0x3f000000u));
    }
    u += 0xfff + (u >> 13 & 1);
    if (u >= 143u << 23)
        return (uint16_t)(sign | 0x7c00);
    return (uint16_t)(sign | ((u - (112u << 23)) >> 13));
}

/* E4M3 as stored weights and scales have it: unlike in the cache, the code of NaN may occur. */
static inline float host_fp8_f32(uint8_t b) {
    return (b & 0x7f) == 0x7f ? NAN : host_e4m3_f32(b);
}

/* E2M1: sign, two bits of exponent with bias 1, one of fraction: 0 0.5 1 1.5 2 3 4 6 */
static inline float host_e2m1_f32(uint32_t code) {
    static const float value[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    return value[code & 15];
}

/* E8M0: a power of two */
static inline float host_e8m0_f32(uint8_t e) {
    return e == 255 ? NAN : host_bits_f32(e ? (uint32_t)e << 23 : 0x00400000u);
}

/* ---- EXL3 ---- */

/* The value a state of the trellis stands for, as F16 bits. */
uint16_t host_exl3_value(uint32_t codebook, uint16_t state);
/* State t of a tile of 256 weights: sixteen bits of its circular stream of 256 * bits. words: 8 * bits
 * little-endian u32, of any alignment. */
uint16_t host_exl3_state(const uint8_t *words, uint32_t bits, uint32_t t);
/* Where weight t of a tile lies: row = input, column = output. */
static inline uint32_t host_exl3_row(uint32_t t) {
    return 2 * (t / 8 % 4) + (t & 1) + 8 * (t >> 1 & 1);
}
static inline uint32_t host_exl3_col(uint32_t t) {
    return t / 32 + 8 * (t >> 2 & 1);
}
/* A tile as [16 inputs][16 outputs] of F16 bits. */
void host_exl3_tile(uint32_t codebook, uint32_t bits, const uint8_t *words, uint16_t ret[256]);

#endif
