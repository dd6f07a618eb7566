/* SPDX-License-Identifier: MIT */
/* host_quant_priv.h: between the files host_quant*.c. */
#ifndef GLMD_HOST_QUANT_PRIV_H
#define GLMD_HOST_QUANT_PRIV_H

#include <errno.h>

#include "host_quant.h"

/* Rows [row0, row0 + 128) of an EXL3 matrix. */
int quant_exl3(const struct kern_store *s, uint64_t rows, uint64_t cols, const float *w, uint64_t row0,
               void *const piece[KERN_PIECES], void *scratch);

/* Each: one block, as host_quant_block(). */
int quant_iq1_s(const float *w, uint8_t *b);
int quant_iq1_m(const float *w, uint8_t *b);
int quant_iq2_xxs(const float *w, uint8_t *b);
int quant_iq2_xs(const float *w, uint8_t *b);
int quant_iq2_s(const float *w, uint8_t *b);
int quant_iq3_xxs(const float *w, uint8_t *b);
int quant_iq3_s(const float *w, uint8_t *b);
int quant_iq4_nl(const float *w, uint8_t *b);
int quant_iq4_xs(const float *w, uint8_t *b);

static inline void quant_put16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}
static inline void quant_put32(uint8_t *p, uint32_t v) {
    quant_put16(p, v);
    quant_put16(p + 2, v >> 16);
}
static inline uint32_t quant_bits(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof(u));
    return u;
}

/* Nearest whole number within [lo, hi]. */
static inline int quant_near(float v, int lo, int hi) {
    if (!(v > (float)lo))
        return lo;
    return v >= (float)hi ? hi : (int)rintf(v);
}

/* A factor as F16 at p; *ret_d is what it is read back as. */
static inline int quant_put_f16(uint8_t *p, float d, float *ret_d) {
    uint16_t h = host_f16(d);
    if ((h & 0x7fff) >= 0x7c00)
        return -ERANGE;
    quant_put16(p, h);
    *ret_d = host_f16_f32(h);
    return 0;
}

/* 1 / d, and 0 for a factor of nothing. */
static inline float quant_inverse(float d) {
    return d != 0 && isfinite(1 / d) ? 1 / d : 0;
}

/* The nearest E2M1 code, ties to the even one. */
static inline uint32_t quant_e2m1(float v) {
    static const float middle[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    float a = fabsf(v);
    uint32_t c = 0;
    while (c < 7 && (a > middle[c] || (a == middle[c] && (c % 2 || FAULT(quant_ties_away)))))
        c++;
    return c && v < 0 ? 8 | c : c;
}

#endif
