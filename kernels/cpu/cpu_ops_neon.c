/* SPDX-License-Identifier: MIT */
/* cpu_ops_neon.c: the arithmetic for AArch64: a vector of 16 floats is four 128-bit registers.
 * Every AArch64 processor has what it needs. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "host_unpack.h"

typedef struct {
    float32x4_t q[4];
} v16;

#define V16_NAME      "neon"
#define V16_OPS       cpu_ops_neon
#define V16_UNROLL    _Pragma("GCC unroll 8") /* accumulators must be registers */
#define V16_ROWS      6 /* rows at once */
/* Panels at once for 1, 2, 3, 4 to 6 and more rows: at least 8 chains, no more than the registers hold. */
#define V16_TILE_1    4
#define V16_TILE_2    2
#define V16_TILE_3    1
#define V16_TILE_4    1
#define V16_STEP      2 /* panels that stay in the first-level cache over several blocks of rows */

#define V16_EACH(expr)                                                                                       \
    v16 ret_;                                                                                                \
    for (int i = 0; i < 4; i++)                                                                              \
        ret_.q[i] = (expr);                                                                                  \
    return ret_

static inline v16 v_ld(const float *p) {
    V16_EACH(vld1q_f32(p + 4 * i));
}
static inline void v_st(float *p, v16 x) {
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, x.q[i]);
}
static inline v16 v_set(float x) {
    V16_EACH(vdupq_n_f32(x));
}
static inline v16 v_add(v16 x, v16 y) {
    V16_EACH(vaddq_f32(x.q[i], y.q[i]));
}
static inline v16 v_sub(v16 x, v16 y) {
    V16_EACH(vsubq_f32(x.q[i], y.q[i]));
}
static inline v16 v_mul(v16 x, v16 y) {
    V16_EACH(vmulq_f32(x.q[i], y.q[i]));
}
static inline v16 v_div(v16 x, v16 y) {
    V16_EACH(vdivq_f32(x.q[i], y.q[i]));
}
static inline v16 v_fma(v16 x, v16 y, v16 z) {
    V16_EACH(vfmaq_f32(z.q[i], x.q[i], y.q[i]));
}
/* Of two numbers the larger; a NaN in the second wins, as in every other table. */
static inline v16 v_max(v16 x, v16 y) {
    V16_EACH(vbslq_f32(vcgtq_f32(x.q[i], y.q[i]), x.q[i], y.q[i]));
}
static inline v16 v_min(v16 x, v16 y) {
    V16_EACH(vbslq_f32(vcltq_f32(x.q[i], y.q[i]), x.q[i], y.q[i]));
}
/* x times 2 to the integer in the low bits of m (see v_exp). */
static inline v16 v_scale2(v16 x, v16 m) {
    V16_EACH(vreinterpretq_f32_u32(
        vaddq_u32(vreinterpretq_u32_f32(x.q[i]), vshlq_n_u32(vreinterpretq_u32_f32(m.q[i]), 23))));
}
/* 16 BF16 in pair order: word i holds element i below and element i + 8 above. */
static inline v16 v_ldw(const uint32_t *p) {
    uint32x4_t w0 = vld1q_u32(p), w1 = vld1q_u32(p + 4);
    uint32x4_t mask = vdupq_n_u32(0xffff0000u);
    return (v16){{vreinterpretq_f32_u32(vshlq_n_u32(w0, 16)), vreinterpretq_f32_u32(vshlq_n_u32(w1, 16)),
                  vreinterpretq_f32_u32(vandq_u32(w0, mask)), vreinterpretq_f32_u32(vandq_u32(w1, mask))}};
}
/* 16 BF16 in natural order. */
static inline v16 v_ldh(const uint16_t *p) {
    V16_EACH(vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p + 4 * i)), 16)));
}
/* A 256th of 8 E4M3 numbers: moved by 7 bits they are half precision numbers with another bias. */
static inline void ld8_half(const uint8_t *p, float32x4_t *lo, float32x4_t *hi) {
    uint16x8_t b = vmovl_u8(vld1_u8(p));
    uint16x8_t h = vorrq_u16(vshlq_n_u16(vandq_u16(b, vdupq_n_u16(0x80)), 8),
                             vshlq_n_u16(vandq_u16(b, vdupq_n_u16(0x7f)), 7));
    *lo = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h)));
    *hi = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h)));
}
static inline v16 v_ld8(const uint8_t *p) {
    v16 x;
    ld8_half(p, &x.q[0], &x.q[1]);
    ld8_half(p + 8, &x.q[2], &x.q[3]);
    return x;
}
/* 16 numbers made one by one. */
#define V16_ONE_BY_ONE(expr)                                                                                 \
    float ret_[16];                                                                                          \
    for (int i = 0; i < 16; i++)                                                                             \
        ret_[i] = (expr);                                                                                    \
    return v_ld(ret_)
/* 16 E4M3 numbers; what the two codes of NaN become is not defined. */
static inline v16 v_e4m3(const uint8_t *p) {
    return v_mul(v_ld8(p), v_set(256.0f));
}
/* Two times 16. */
static inline void v_e4m3_2(const uint8_t *p, v16 *a, v16 *b) {
    *a = v_e4m3(p);
    *b = v_e4m3(p + 16);
}
/* 16 powers of two: 0 is 2^-127, half of the smallest normal number, and 255 is NaN. */
static inline v16 v_e8m0(const uint8_t *p) {
    V16_ONE_BY_ONE(host_e8m0_f32(p[i]));
}
/* 16 bytes as numbers. */
static inline v16 v_ldu(const uint8_t *p) {
    V16_ONE_BY_ONE((float)p[i]);
}
/* Some bits of each of 16 bytes: (byte >> shift & mask) * mul + add, all of it small integers. */
static inline v16 v_bits(const uint8_t *p, int shift, const int mask, const float mul, const float add) {
    V16_ONE_BY_ONE((float)(p[i] >> shift & mask) * mul + add);
}
/* What a table says of the lowest four bits of 16 words moved right by `shift`; it repeats where fewer count. */
static inline v16 v_steps(const uint32_t *w, int shift, const float *table) {
    V16_ONE_BY_ONE(table[w[i] >> shift & 15]);
}
/* x, negative where this bit of its word is set. */
static inline v16 v_flip(v16 x, const uint32_t *w, int bit) {
    float from[16];
    v_st(from, x);
    V16_ONE_BY_ONE(w[i] >> bit & 1 ? -from[i] : from[i]);
}
/* 16 signed bytes as numbers. */
static inline v16 v_lds(const uint8_t *p) {
    V16_ONE_BY_ONE((float)(int8_t)p[i]);
}
/* What a table says of four bits of each of 16 bytes. */
static inline v16 v_lut(const uint8_t *p, int shift, const float *table) {
    V16_ONE_BY_ONE(table[p[i] >> shift & 15]);
}
/* 16 F16 numbers: in natural order, or as 16 low bytes and 16 high ones. */
static inline v16 v_ldf16(const uint8_t *p) {
    V16_ONE_BY_ONE(host_f16_f32(host_le16(p + 2 * i)));
}
static inline v16 v_ldf16b(const uint8_t *p) {
    V16_ONE_BY_ONE(host_f16_f32((uint16_t)(p[i] | p[i + 16] << 8)));
}
/* Lanes added in the fixed tree (i, i+8), (i, i+4), (i, i+2), (0, 1). */
static inline float v_sum(v16 x) {
    float32x4_t a = vaddq_f32(x.q[0], x.q[2]), b = vaddq_f32(x.q[1], x.q[3]);
    a = vaddq_f32(a, b);
    float32x2_t c = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
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
