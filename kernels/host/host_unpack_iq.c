/* SPDX-License-Identifier: MIT */
/* Blocks of the IQ formats as numbers. Each function writes the 256 (IQ4_NL: 32) weights of one block,
 * products in F32 from left to right. Pure functions; any thread; nothing is allocated. */
#include "host_lattice.h"
#include "host_unpack_priv.h"

/* Eight weights: factor times the steps of a point, negative where its sign bit is set. */
static void eight(float f, uint16_t point, uint32_t signs, float *out) {
    for (uint32_t e = 0; e < 8; e++) {
        float v = f * (float)host_iq2_level[point >> (2 * e) & 3];
        out[e] = signs >> e & 1 ? -v : v;
    }
}
static void four(float f, uint16_t point, const uint8_t level[8], uint32_t signs, float *out) {
    for (uint32_t e = 0; e < 4; e++) {
        float v = f * (float)level[point >> (4 * e) & 7];
        out[e] = signs >> e & 1 ? -v : v;
    }
}

/* {f16 d; u16 q[32]}: of 32 weights four indices, then four times seven signs and a scale */
void unpack_iq2_xxs(const uint8_t *b, float *out) {
    float d = host_f16_f32(host_le16(b));
    for (uint32_t g = 0; g < 8; g++) {
        const uint8_t *q = b + 2 + 8 * g;
        uint32_t w = host_le32(q + 4);
        float f = d * (0.5f + (float)(w >> 28)) * 0.25f;
        for (uint32_t l = 0; l < 4; l++)
            eight(f, host_iq2xxs[q[l]], host_iq_signs(w >> (7 * l) & 127), out + 32 * g + 8 * l);
    }
}

/* {f16 d; u16 q[32]; u8 sc[8]} */
void unpack_iq2_xs(const uint8_t *b, float *out) {
    float d = host_f16_f32(host_le16(b));
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t q = host_le16(b + 2 + 2 * i), s = b[66 + i / 4] >> (i % 4 / 2 * 4) & 15;
        eight(d * (0.5f + (float)s) * 0.25f, host_iq2xs[q & 511], host_iq_signs(q >> 9), out + 8 * i);
    }
}

/* {f16 d; u8 idx[32]; u8 sg[32]; u8 qh[8]; u8 sc[8]} */
void unpack_iq2_s(const uint8_t *b, float *out) {
    float d = host_f16_f32(host_le16(b));
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t at = b[2 + i] | ((uint32_t)b[66 + i / 4] >> (2 * (i % 4)) & 3u) << 8,
                 s = b[74 + i / 4] >> (i % 4 / 2 * 4) & 15;
        eight(d * (0.5f + (float)s) * 0.25f, host_iq2s[at], b[34 + i], out + 8 * i);
    }
}

/* {f16 d; u8 idx[64]; u8 ss[32]} */
void unpack_iq3_xxs(const uint8_t *b, float *out) {
    float d = host_f16_f32(host_le16(b));
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t w = host_le32(b + 66 + 4 * g);
        float f = d * (0.5f + (float)(w >> 28)) * 0.5f;
        for (uint32_t q = 0; q < 8; q++)
            four(f, host_iq3xxs[b[2 + 8 * g + q]], host_iq3xxs_level,
                 (uint32_t)host_iq_signs(w >> (7 * (q / 2)) & 127) >> (4 * (q & 1)), out + 32 * g + 4 * q);
    }
}

/* {f16 d; u8 idx[64]; u8 qh[8]; u8 sg[32]; u8 sc[4]} */
void unpack_iq3_s(const uint8_t *b, float *out) {
    float d = host_f16_f32(host_le16(b));
    for (uint32_t g = 0; g < 8; g++) {
        float f = d * (float)(1 + 2 * (b[106 + g / 2] >> (4 * (g & 1)) & 15));
        for (uint32_t q = 0; q < 8; q++)
            four(f, host_iq3s[b[2 + 8 * g + q] | (b[66 + g] >> q & 1u) << 8], host_iq3s_level,
                 (uint32_t)b[74 + 4 * g + q / 2] >> (4 * (q & 1)), out + 32 * g + 4 * q);
    }
}

static void ternary(float f, uint32_t point, float delta, float *out) {
    for (uint32_t e = 0; e < 8; e++)
        out[e] = f * ((float)host_iq1_level[host_iq1s[point] >> (2 * e) & 3] + delta);
}

/* {f16 d; u8 q[32]; u16 qh[8]} */
void unpack_iq1_s(const uint8_t *b, float *out) {
    float d = host_f16_f32(host_le16(b));
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t h = host_le16(b + 34 + i / 4 * 2);
        ternary(d * (float)(2 * (h >> 12 & 7) + 1), b[2 + i] | (h >> (3 * (i % 4)) & 7) << 8,
                h & 0x8000 ? -0.125f : 0.125f, out + 8 * i);
    }
}

/* {u8 q[32]; u8 qh[16]; u8 sc[8]}: the factor's four nibbles are on top of four words of scales */
void unpack_iq1_m(const uint8_t *b, float *out) {
    uint32_t c[4], bits;
    for (uint32_t i = 0; i < 4; i++)
        c[i] = host_le16(b + 48 + 2 * i);
    bits = c[0] >> 12 | (c[1] >> 8 & 0xf0) | (c[2] >> 4 & 0xf00) | (c[3] & 0xf000);
    float d = host_f16_f32((uint16_t)bits);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t g = i / 4, s = c[g / 2] >> (6 * (g & 1) + 3 * (i % 4 / 2)) & 7;
        uint32_t h = (uint32_t)b[32 + i / 2] >> (4 * (i & 1)) & 15u;
        ternary(d * (float)(2 * s + 1), b[i] | (h & 7) << 8, h & 8 ? -0.125f : 0.125f, out + 8 * i);
    }
}

static void levels(float f, const uint8_t q[16], float *out) {
    for (uint32_t i = 0; i < 32; i++)
        out[i] = f * (float)host_iq4_level[q[i % 16] >> (i / 16 * 4) & 15];
}

/* {f16 d; u8 q[16]} */
void unpack_iq4_nl(const uint8_t *b, float *out) {
    levels(host_f16_f32(host_le16(b)), b + 2, out);
}

/* {f16 d; u16 sh; u8 sl[4]; u8 q[128]} */
void unpack_iq4_xs(const uint8_t *b, float *out) {
    float d = host_f16_f32(host_le16(b));
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t high = (uint32_t)host_le16(b + 2) >> (2 * g) & 3u;
        uint32_t s = ((uint32_t)b[4 + g / 2] >> (4 * (g & 1)) & 15u) | high << 4;
        levels(d * (float)((int)s - 32), b + 8 + 16 * g, out + 32 * g);
    }
}
