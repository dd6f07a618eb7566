/* SPDX-License-Identifier: MIT */
/* cpu_body_gguf.h: blocks of the GGUF formats as numbers over v16, 16 rows at once, 32 weights of each at a time, with
 * the roundings of host_unpack_gguf.c and host_unpack_iq.c. Runs on the team; writes what it is handed. */
#ifndef GLMD_CPU_BODY_GGUF_H
#define GLMD_CPU_BODY_GGUF_H

enum { GGUF_GRAIN = 32 };

static const float e2m1_values[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
/* GGUF's: twice that, and no negative zero */
static const float e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const float iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* steps of the lattices' points; of the fourth, which does not occur, nothing is asked */
#define FOUR_TIMES(a, b, c) a, b, c, 0, a, b, c, 0, a, b, c, 0, a, b, c, 0
static const float iq1_steps[16] = {FOUR_TIMES(-1, 0, 1)};
static const float iq2_steps[16] = {FOUR_TIMES(8, 25, 43)};
static const float iq3xxs_steps[16] = {4, 12, 20, 28, 36, 44, 52, 62, 4, 12, 20, 28, 36, 44, 52, 62};
static const float iq3s_steps[16] = {1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15};

/* b: a block of 16 rows, byte by byte; AT(i): byte i of all. g: which 32 weights of the block. */
#define AT(i) (b + (size_t)(i) * 16)

/* ---- whole numbers with factors --------------------------------------------------------------------------- */

static void tile_q8_0(const uint8_t *b, int g, float *dst) {
    v16 d = v_ldf16b(AT(0));
    (void)g;
    for (int i = 0; i < 32; i++)
        v_st(dst + 16 * i, v_mul(d, v_lds(AT(2 + i))));
}

static void tile_q2_k(const uint8_t *b, int g, float *dst) {
    v16 d = v_ldf16b(AT(80)), least = v_ldf16b(AT(82));
    for (int s = 2 * g; s < 2 * g + 2; s++) { /* 16 weights with one scale */
        const uint8_t *q = AT(16 + 32 * (s / 8) + s % 2 * 16);
        v16 f = v_mul(d, v_bits(AT(s), 0, 15, 1, 0)), m = v_mul(least, v_bits(AT(s), 4, 15, 1, 0));
        for (int i = 0; i < 16; i++, dst += 16)
            v_st(dst, v_sub(v_mul(f, v_bits(q + i * 16, g % 4 * 2, 3, 1, 0)), m));
    }
}

static void tile_q3_k(const uint8_t *b, int g, float *dst) {
    v16 d = v_ldf16b(AT(108));
    for (int s = 2 * g; s < 2 * g + 2; s++) {
        const uint8_t *q = AT(32 + 32 * (s / 8) + s % 2 * 16), *high = AT(s % 2 * 16);
        v16 low = v_bits(AT(s < 8 ? 96 + s : 88 + s), s < 8 ? 0 : 4, 15, 1, -32);
        v16 f = v_mul(d, v_add(v_bits(AT(104 + s % 4), s / 4 * 2, 3, 16, 0), low));
        for (int i = 0; i < 16; i++, dst += 16)
            v_st(dst, v_mul(f, v_add(v_bits(q + i * 16, g % 4 * 2, 3, 1, 0), v_bits(high + i * 16, g, 1, 4, -4))));
    }
}

ALWAYS void tile_q45_k(const uint8_t *b, const int qh, const int q, int g, float *dst) {
    v16 d = v_ldf16b(AT(0)), least = v_ldf16b(AT(2)), s, m;
    if (g < 4) {
        s = v_bits(AT(4 + g), 0, 63, 1, 0);
        m = v_bits(AT(8 + g), 0, 63, 1, 0);
    } else {
        s = v_add(v_bits(AT(g), 6, 3, 16, 0), v_bits(AT(8 + g), 0, 15, 1, 0));
        m = v_add(v_bits(AT(4 + g), 6, 3, 16, 0), v_bits(AT(8 + g), 4, 15, 1, 0));
    }
    s = v_mul(d, s);
    m = v_mul(least, m);
    for (int l = 0; l < 32; l++, dst += 16) {
        v16 v = v_bits(AT(q + 32 * (g / 2) + l), g % 2 * 4, 15, 1, 0);
        if (qh)
            v = v_add(v_bits(AT(qh + l), g, 1, 16, 0), v);
        v_st(dst, v_sub(v_mul(s, v), m));
    }
}
static void tile_q4_k(const uint8_t *b, int g, float *dst) {
    tile_q45_k(b, 0, 16, g, dst);
}
static void tile_q5_k(const uint8_t *b, int g, float *dst) {
    tile_q45_k(b, 16, 48, g, dst);
}

static void tile_q6_k(const uint8_t *b, int g, float *dst) {
    v16 d = v_ldf16b(AT(208));
    for (int s = 2 * g; s < 2 * g + 2; s++) {
        const uint8_t *low = AT(64 * (g / 4) + s % 2 * 16 + 32 * (g % 2)), *high = AT(128 + 32 * (g / 4) + s % 2 * 16);
        v16 f = v_mul(d, v_lds(AT(192 + s)));
        for (int i = 0; i < 16; i++, dst += 16)
            v_st(dst, v_mul(f, v_add(v_bits(low + i * 16, g % 4 < 2 ? 0 : 4, 15, 1, -32),
                                     v_bits(high + i * 16, g % 4 * 2, 3, 16, 0))));
    }
}

/* ---- numbers from a table of sixteen ------------------------------------------------------------------------ */

/* Weights in halves: the low nibbles are the first ones. */
ALWAYS void tile_halves(const uint8_t *b, v16 f, const int half, const float *table, float *dst) {
    for (int i = 0; i < half; i++) {
        v_st(dst + 16 * i, v_mul(v_lut(AT(i), 0, table), f));
        v_st(dst + 16 * (i + half), v_mul(v_lut(AT(i), 4, table), f));
    }
}

static void tile_iq4_nl(const uint8_t *b, int g, float *dst) {
    (void)g;
    tile_halves(AT(2), v_ldf16b(AT(0)), 16, iq4_values, dst);
}

static void tile_iq4_xs(const uint8_t *b, int g, float *dst) {
    v16 s = v_add(v_bits(AT(2 + g / 4), g % 4 * 2, 3, 16, 0), v_bits(AT(4 + g / 2), g % 2 * 4, 15, 1, -32));
    tile_halves(AT(8 + 16 * g), v_mul(v_ldf16b(AT(0)), s), 16, iq4_values, dst);
}

static void tile_mxfp4(const uint8_t *b, int g, float *dst) {
    _Alignas(64) uint32_t d[16];
    (void)g;
    for (int l = 0; l < 16; l++) { /* half of 2^(e - 127), e = 0 and 1 below the normal numbers */
        uint32_t e = b[l], normal = (e - 1) << 23, low = 0x00200000u << (e & 1);
        d[l] = e < 2 ? low : normal;
    }
    tile_halves(AT(1), v_ld((const float *)(const void *)d), 16, e2m1_twice, dst);
}

static void tile_nvfp4(const uint8_t *b, int g, float *dst) {
    for (int s = 2 * g; s < 2 * g + 2; s++, dst += 256) {
        _Alignas(64) uint8_t d[16];
        for (int l = 0; l < 16; l++) /* the scale has no sign, and its code of NaN means 0 */
            d[l] = AT(s)[l] == 0x7f ? 0 : AT(s)[l] & 0x7f;
        tile_halves(AT(4 + 8 * s), v_mul(v_e4m3(d), v_set(0.5f)), 8, e2m1_twice, dst);
    }
}

/* ---- points of lattices --------------------------------------------------------------------------------------- */

/* Weights of a point of each row: their steps, lowest first, and a sign each. */
ALWAYS void eight(v16 f, const uint32_t *point, const uint32_t *signs, const float *steps, float *dst) {
    V16_FOR(e, 0, 8) {
        v_st(dst + 16 * e, v_flip(v_mul(f, v_steps(point, 2 * e, steps)), signs, e));
    }
}
ALWAYS void four(v16 f, const uint32_t *point, const uint32_t *signs, const int first, const float *steps, float *dst) {
    V16_FOR(e, 0, 4) {
        v_st(dst + 16 * e, v_flip(v_mul(f, v_steps(point, 4 * e, steps)), signs, first + e));
    }
}
ALWAYS void ternary(v16 f, v16 delta, const uint32_t *point, float *dst) {
    V16_FOR(e, 0, 8) {
        v_st(dst + 16 * e, v_mul(f, v_add(v_steps(point, 2 * e, iq1_steps), delta)));
    }
}

/* Four and two bytes of each row, the first one lowest. */
ALWAYS void words_at(const uint8_t *p, uint32_t w[16]) {
    for (int l = 0; l < 16; l++)
        w[l] = (uint32_t)p[l] | (uint32_t)p[16 + l] << 8 | (uint32_t)p[32 + l] << 16 | (uint32_t)p[48 + l] << 24;
}
ALWAYS void halves_at(const uint8_t *p, uint32_t w[16]) {
    for (int l = 0; l < 16; l++)
        w[l] = (uint32_t)p[l] | (uint32_t)p[16 + l] << 8;
}
/* d (1/2 + scale) times a power of two */
ALWAYS v16 half_scale(v16 d, v16 scale, float power) {
    return v_mul(v_mul(d, v_add(v_set(0.5f), scale)), v_set(power));
}
ALWAYS v16 top_nibbles(const uint32_t w[16]) {
    _Alignas(64) float s[16];
    for (int l = 0; l < 16; l++)
        s[l] = (float)(int)(w[l] >> 28);
    return v_ld(s);
}
/* Seven stored signs are eight: the last one makes the number of negative ones even. */
ALWAYS void signs_of(const uint32_t w[16], int shift, uint32_t signs[16]) {
    for (int l = 0; l < 16; l++) {
        uint32_t i = w[l] >> shift & 127, x = i ^ i >> 4;
        x ^= x >> 2;
        signs[l] = i | ((x ^ x >> 1) & 1) << 7;
    }
}

static void tile_iq2_xxs(const uint8_t *b, int g, float *dst) {
    _Alignas(64) uint32_t w[16], point[16], signs[16];
    words_at(AT(2 + 8 * g + 4), w);
    v16 f = half_scale(v_ldf16b(AT(0)), top_nibbles(w), 0.25f);
    for (int i = 0; i < 4; i++, dst += 128) {
        signs_of(w, 7 * i, signs);
        for (int l = 0; l < 16; l++)
            point[l] = host_iq2xxs[AT(2 + 8 * g + i)[l]];
        eight(f, point, signs, iq2_steps, dst);
    }
}

static void tile_iq2_xs(const uint8_t *b, int g, float *dst) {
    _Alignas(64) uint32_t w[16], point[16], signs[16];
    v16 d = v_ldf16b(AT(0));
    for (int i = 0; i < 4; i++, dst += 128) {
        halves_at(AT(2 + 8 * g + 2 * i), w);
        signs_of(w, 9, signs);
        for (int l = 0; l < 16; l++)
            point[l] = host_iq2xs[w[l] & 511];
        eight(half_scale(d, v_bits(AT(66 + g), i / 2 * 4, 15, 1, 0), 0.25f), point, signs, iq2_steps, dst);
    }
}

static void tile_iq2_s(const uint8_t *b, int g, float *dst) {
    _Alignas(64) uint32_t point[16], signs[16];
    v16 d = v_ldf16b(AT(0));
    for (int i = 0; i < 4; i++, dst += 128) {
        for (int l = 0; l < 16; l++) {
            point[l] = host_iq2s[AT(2 + 4 * g + i)[l] | (AT(66 + g)[l] >> (2 * i) & 3u) << 8];
            signs[l] = AT(34 + 4 * g + i)[l];
        }
        eight(half_scale(d, v_bits(AT(74 + g), i / 2 * 4, 15, 1, 0), 0.25f), point, signs, iq2_steps, dst);
    }
}

static void tile_iq3_xxs(const uint8_t *b, int g, float *dst) {
    _Alignas(64) uint32_t w[16], point[2][16], signs[16];
    words_at(AT(66 + 4 * g), w);
    v16 f = half_scale(v_ldf16b(AT(0)), top_nibbles(w), 0.5f);
    for (int i = 0; i < 4; i++, dst += 128) {
        signs_of(w, 7 * i, signs);
        for (int l = 0; l < 16; l++) {
            point[0][l] = host_iq3xxs[AT(2 + 8 * g + 2 * i)[l]];
            point[1][l] = host_iq3xxs[AT(2 + 8 * g + 2 * i + 1)[l]];
        }
        four(f, point[0], signs, 0, iq3xxs_steps, dst);
        four(f, point[1], signs, 4, iq3xxs_steps, dst + 64);
    }
}

static void tile_iq3_s(const uint8_t *b, int g, float *dst) {
    _Alignas(64) uint32_t point[2][16], signs[16];
    v16 f = v_mul(v_ldf16b(AT(0)), v_bits(AT(106 + g / 2), g % 2 * 4, 15, 2, 1));
    for (int i = 0; i < 4; i++, dst += 128) {
        for (int l = 0; l < 16; l++) {
            uint32_t high = (uint32_t)AT(66 + g)[l] >> (2 * i);
            point[0][l] = host_iq3s[AT(2 + 8 * g + 2 * i)[l] | (high & 1) << 8];
            point[1][l] = host_iq3s[AT(2 + 8 * g + 2 * i + 1)[l] | (high & 2) << 7];
            signs[l] = AT(74 + 4 * g + i)[l];
        }
        four(f, point[0], signs, 0, iq3s_steps, dst);
        four(f, point[1], signs, 4, iq3s_steps, dst + 64);
    }
}

static void tile_iq1_s(const uint8_t *b, int g, float *dst) {
    _Alignas(64) uint32_t h[16], point[16];
    halves_at(AT(34 + 2 * g), h);
    v16 f = v_mul(v_ldf16b(AT(0)), v_bits(AT(35 + 2 * g), 4, 7, 2, 1)), delta = v_flip(v_set(0.125f), h, 15);
    for (int i = 0; i < 4; i++, dst += 128) {
        for (int l = 0; l < 16; l++)
            point[l] = host_iq1s[AT(2 + 4 * g + i)[l] | (h[l] >> (3 * i) & 7) << 8];
        ternary(f, delta, point, dst);
    }
}

static void tile_iq1_m(const uint8_t *b, int g, float *dst) {
    _Alignas(64) uint32_t c[16], h[16], point[16];
    _Alignas(64) float s[16];
    uint8_t d[32]; /* the factor's four nibbles are on top of four words of scales */
    for (int l = 0; l < 16; l++) {
        d[l] = (uint8_t)(AT(49)[l] >> 4 | (AT(51)[l] & 0xf0));
        d[16 + l] = (uint8_t)(AT(53)[l] >> 4 | (AT(55)[l] & 0xf0));
    }
    halves_at(AT(48 + g / 2 * 2), c);
    for (int i = 0; i < 4; i++, dst += 128) {
        for (int l = 0; l < 16; l++) {
            h[l] = (uint32_t)AT(32 + 2 * g + i / 2)[l] >> (4 * (i & 1)) & 15u;
            point[l] = host_iq1s[AT(4 * g + i)[l] | (h[l] & 7) << 8];
            s[l] = (float)(int)(2 * (c[l] >> (6 * (g & 1) + 3 * (i / 2)) & 7) + 1);
        }
        ternary(v_mul(v_ldf16b(d), v_ld(s)), v_flip(v_set(0.125f), h, 3), point, dst);
    }
}

/* ---- columns c0 .. c1-1, both multiples of 32: dst[c1 - c0][16] ------------------------------------------------ */

static void unpack_blocks(uint32_t format, const uint8_t *codes, uint32_t c0, uint32_t c1, float *dst) {
    static const struct {
        void (*tile)(const uint8_t *b, int g, float *dst);
        uint32_t weights, bytes;
    } formats[KERN_FORMAT_END] = {
        [KERN_Q8_0] = {tile_q8_0, 32, 34},
        [KERN_Q2_K] = {tile_q2_k, 256, 84},
        [KERN_Q3_K] = {tile_q3_k, 256, 110},
        [KERN_Q4_K] = {tile_q4_k, 256, 144},
        [KERN_Q5_K] = {tile_q5_k, 256, 176},
        [KERN_Q6_K] = {tile_q6_k, 256, 210},
        [KERN_IQ1_S] = {tile_iq1_s, 256, 50},
        [KERN_IQ1_M] = {tile_iq1_m, 256, 56},
        [KERN_IQ2_XXS] = {tile_iq2_xxs, 256, 66},
        [KERN_IQ2_XS] = {tile_iq2_xs, 256, 74},
        [KERN_IQ2_S] = {tile_iq2_s, 256, 82},
        [KERN_IQ3_XXS] = {tile_iq3_xxs, 256, 98},
        [KERN_IQ3_S] = {tile_iq3_s, 256, 110},
        [KERN_IQ4_NL] = {tile_iq4_nl, 32, 18},
        [KERN_IQ4_XS] = {tile_iq4_xs, 256, 136},
        [KERN_GGUF_MXFP4] = {tile_mxfp4, 32, 17},
        [KERN_GGUF_NVFP4] = {tile_nvfp4, 64, 36},
    };
    const uint32_t weights = formats[format].weights, bytes = formats[format].bytes * 16;
    for (uint32_t c = c0; c < c1; c += GGUF_GRAIN, dst += GGUF_GRAIN * 16)
        formats[format].tile(codes + (size_t)(c / weights) * bytes, (int)(c % weights / GGUF_GRAIN), dst);
}
#undef AT

#endif
