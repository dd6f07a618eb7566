/* SPDX-License-Identifier: MIT */
/* cpu_ops_scalar.c: the arithmetic in plain C: a vector of 16 floats is an array. Runs anywhere and gives the
 * bits of the other tables; it is the fallback and the yardstick of their tests. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "host_unpack.h"

typedef struct {
    float f[16];
} v16;

#define V16_NAME      "scalar"
#define V16_OPS       cpu_ops_scalar
#define V16_UNROLL    _Pragma("GCC unroll 1") /* nothing to gain, and sanitizers would drown in it */
#define V16_ROWS      6 /* rows at once */
#define V16_TILE_1    1
#define V16_TILE_2    1
#define V16_TILE_3    1
#define V16_TILE_4    1
#define V16_STEP      2 /* panels that stay in the first-level cache over several blocks of rows */

#define V16_EACH(expr)                                                                                       \
    v16 ret_;                                                                                                \
    _Pragma("GCC unroll 1") for (int i = 0; i < 16; i++) ret_.f[i] = (expr);                                 \
    return ret_

static inline float bits_to_float(uint32_t b) {
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}
static inline uint32_t float_to_bits(float f) {
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

static inline v16 v_ld(const float *p) {
    V16_EACH(p[i]);
}
static inline void v_st(float *p, v16 x) {
    memcpy(p, x.f, sizeof x.f);
}
static inline v16 v_set(float x) {
    V16_EACH(x);
}
static inline v16 v_add(v16 x, v16 y) {
    V16_EACH(x.f[i] + y.f[i]);
}
static inline v16 v_sub(v16 x, v16 y) {
    V16_EACH(x.f[i] - y.f[i]);
}
static inline v16 v_mul(v16 x, v16 y) {
    V16_EACH(x.f[i] * y.f[i]);
}
static inline v16 v_div(v16 x, v16 y) {
    V16_EACH(x.f[i] / y.f[i]);
}
static inline v16 v_fma(v16 x, v16 y, v16 z) {
    V16_EACH(fmaf(x.f[i], y.f[i], z.f[i]));
}
/* Of two numbers the larger; a NaN in the second wins, as in every other table. */
static inline v16 v_max(v16 x, v16 y) {
    V16_EACH(x.f[i] > y.f[i] ? x.f[i] : y.f[i]);
}
static inline v16 v_min(v16 x, v16 y) {
    V16_EACH(x.f[i] < y.f[i] ? x.f[i] : y.f[i]);
}
/* x times 2 to the integer in the low bits of m (see v_exp). */
static inline v16 v_scale2(v16 x, v16 m) {
    V16_EACH(bits_to_float(float_to_bits(x.f[i]) + (float_to_bits(m.f[i]) << 23)));
}
/* 16 BF16 in pair order: word i holds element i below and element i + 8 above. */
static inline v16 v_ldw(const uint32_t *p) {
    V16_EACH(bits_to_float(i < 8 ? p[i] << 16 : p[i - 8] & 0xffff0000u));
}
/* 16 BF16 in natural order. */
static inline v16 v_ldh(const uint16_t *p) {
    V16_EACH(bits_to_float((uint32_t)p[i] << 16));
}
/* A 256th of 16 E4M3 numbers. */
static inline v16 v_ld8(const uint8_t *p) {
    V16_EACH(host_e4m3_f32(p[i]) * 0x1p-8f);
}
/* 16 E4M3 numbers; what the two codes of NaN become is not defined. */
static inline v16 v_e4m3(const uint8_t *p) {
    V16_EACH(host_e4m3_f32(p[i]));
}
/* Two times 16. */
static inline void v_e4m3_2(const uint8_t *p, v16 *a, v16 *b) {
    *a = v_e4m3(p);
    *b = v_e4m3(p + 16);
}
/* 16 powers of two: 0 is 2^-127, half of the smallest normal number, and 255 is NaN. */
static inline v16 v_e8m0(const uint8_t *p) {
    V16_EACH(host_e8m0_f32(p[i]));
}
/* 16 bytes as numbers. */
static inline v16 v_ldu(const uint8_t *p) {
    V16_EACH((float)p[i]);
}
/* Some bits of each of 16 bytes: (byte >> shift & mask) * mul + add, all of it small integers. */
static inline v16 v_bits(const uint8_t *p, int shift, const int mask, const float mul, const float add) {
    V16_EACH((float)(p[i] >> shift & mask) * mul + add);
}
/* What a table says of the lowest four bits of 16 words moved right by `shift`; it repeats where fewer count. */
static inline v16 v_steps(const uint32_t *w, int shift, const float *table) {
    V16_EACH(table[w[i] >> shift & 15]);
}
/* x, negative where this bit of its word is set. */
static inline v16 v_flip(v16 x, const uint32_t *w, int bit) {
    V16_EACH(w[i] >> bit & 1 ? -x.f[i] : x.f[i]);
}
/* 16 signed bytes as numbers. */
static inline v16 v_lds(const uint8_t *p) {
    V16_EACH((float)(int8_t)p[i]);
}
/* What a table says of four bits of each of 16 bytes. */
static inline v16 v_lut(const uint8_t *p, int shift, const float *table) {
    V16_EACH(table[p[i] >> shift & 15]);
}
/* 16 F16 numbers: in natural order, or as 16 low bytes and 16 high ones. */
static inline v16 v_ldf16(const uint8_t *p) {
    V16_EACH(host_f16_f32(host_le16(p + 2 * i)));
}
static inline v16 v_ldf16b(const uint8_t *p) {
    V16_EACH(host_f16_f32((uint16_t)(p[i] | p[i + 16] << 8)));
}
/* Lanes added in the fixed tree (i, i+8), (i, i+4), (i, i+2), (0, 1). */
static inline float v_sum(v16 x) {
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            x.f[i] += x.f[i + w];
    return x.f[0];
}

/* 16 vectors as the columns of a matrix, to be its rows. */
static inline void v_turn(v16 m[16]) {
    float t[16][16];
    for (int i = 0; i < 16; i++) {
        float row[16];
        v_st(row, m[i]);
        for (int j = 0; j < 16; j++)
            t[j][i] = row[j];
    }
    for (int i = 0; i < 16; i++)
        m[i] = v_ld(t[i]);
}

#include "cpu_body_bytes.h"
#include "cpu_body.h"
