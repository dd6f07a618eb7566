/* SPDX-License-Identifier: MIT */
/* cpu_body_bytes.h: vectors of 16 bytes without instructions of their own, for the tables that have no wider ones
 * (scalar, neon), and what such tables do number by number. Pure functions. */
#ifndef GLMD_CPU_BODY_BYTES_H
#define GLMD_CPU_BODY_BYTES_H

#include <stdint.h>
#include <string.h>

#include "host_unpack.h"

typedef uint8_t vb __attribute__((vector_size(16)));
typedef uint16_t vb_16 __attribute__((vector_size(16)));
typedef uint32_t vb_32 __attribute__((vector_size(16)));
enum { VB_BYTES = 16 };

static inline vb vb_ld(const uint8_t *p) {
    vb v;
    memcpy(&v, p, sizeof(v));
    return v;
}
/* Has one of n codes of E4M3 all bits but the sign? n: a multiple of 16 */
static inline int vb_e4m3_nan(const uint8_t *p, size_t n) {
    const uint64_t ones = 0x0101010101010101u;
    uint64_t any = 0, w;
    for (size_t i = 0; i < n; i += sizeof(w)) {
        memcpy(&w, p + i, sizeof(w));
        any |= (w & 0x7f * ones) + ones;
    }
    return (any & 0x80 * ones) != 0;
}
/* Elements of `unit` bytes of both, one after the other; the lower halves, or the higher ones. */
static inline vb vb_zip_lo(vb a, vb b, const uint32_t unit) {
    if (unit == 1)
        return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    if (unit == 2)
        return (vb)__builtin_shufflevector((vb_16)a, (vb_16)b, 0, 8, 1, 9, 2, 10, 3, 11);
    return (vb)__builtin_shufflevector((vb_32)a, (vb_32)b, 0, 4, 1, 5);
}
static inline vb vb_zip_hi(vb a, vb b, const uint32_t unit) {
    if (unit == 1)
        return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    if (unit == 2)
        return (vb)__builtin_shufflevector((vb_16)a, (vb_16)b, 4, 12, 5, 13, 6, 14, 7, 15);
    return (vb)__builtin_shufflevector((vb_32)a, (vb_32)b, 2, 6, 3, 7);
}
/* Four vectors behind each other. */
static inline void vb_put(uint8_t *p, const vb *v) {
    memcpy(p, v, 4 * sizeof(*v));
}
static inline void vb_fence(void) {
}

/* 16 words of an EXL3 tile: of each of its 8 rows 32 bits from bit s on, then from bit t on. w[1] is word 0. */
typedef struct {
    uint32_t u[16];
} vi;
static inline vi vi_zero(void) {
    return (vi){{0}};
}
static inline void vi_row(uint32_t *to, const uint8_t *p) {
    memcpy(to, p, 32);
}
/* Each word in the place of the next one, the last one first. */
static inline void vi_row_before(uint32_t *to, const uint8_t *p) {
    memcpy(to, p + 28, 4);
    memcpy(to + 1, p, 28);
}
static inline vi vi_window(const uint32_t (*w)[8], int s, int t) {
    vi v;
    for (int n = 0; n < 16; n++) {
        int at = (n < 8 ? s : t) + 32;
        uint64_t both = (uint64_t)w[at / 32][n % 8] << 32 | w[at / 32 + 1][n % 8];
        v.u[n] = (uint32_t)(both >> (32 - at % 32));
    }
    return v;
}
/* What the states in 16 bits of the words stand for, those from bit `right` on. */
static inline v16 vi_value(vi w, int right, const uint32_t codebook) {
    _Alignas(64) float f[16];
    for (int n = 0; n < 16; n++)
        f[n] = host_f16_f32(host_exl3_value(codebook, (uint16_t)(w.u[n] >> right)));
    return v_ld(f);
}
/* Each number in the place of its neighbour at distance h: 1, 2, 4 or 8. */
static inline v16 v_swap(v16 x, const int h) {
    _Alignas(64) float from[16], to[16];
    v_st(from, x);
    for (int n = 0; n < 16; n++)
        to[n] = from[n ^ h];
    return v_ld(to);
}

#endif
