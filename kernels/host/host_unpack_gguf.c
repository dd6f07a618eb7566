/* SPDX-License-Identifier: MIT */
/* Blocks of the GGUF formats as numbers: Q8_0, the K formats, and the dispatch; the formats that choose from
 * lattices are in host_unpack_iq.c. Each function writes the weights of one block, products in F32 from left
 * to right. Pure functions; any thread; nothing is allocated. */
#include "host_unpack_priv.h"

static void q8_0(const uint8_t *b, float *out) {
    float d = host_f16_f32(host_le16(b));
    for (uint32_t i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)b[2 + i];
}

/* {u8 sc[16]; u8 q[64]; f16 d; f16 dmin} */
static void q2_k(const uint8_t *b, float *out) {
    float d = host_f16_f32(host_le16(b + 80)), dmin = host_f16_f32(host_le16(b + 82));
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t h = i / 128, j = i % 128 / 32, l = i % 32, s = b[8 * h + 2 * j + l / 16];
        uint32_t v = b[16 + 32 * h + l] >> (2 * j) & 3;
        out[i] = d * (float)(s & 15) * (float)v - dmin * (float)(s >> 4);
    }
}

/* {u8 hm[32]; u8 q[64]; u8 s12[12]; f16 d} */
static void q3_k(const uint8_t *b, float *out) {
    const uint8_t *s12 = b + 96;
    float d = host_f16_f32(host_le16(b + 108));
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t h = i / 128, j = i % 128 / 32, l = i % 32, m = 8 * h + 2 * j + l / 16;
        uint32_t low = m < 8 ? s12[m] & 15 : s12[m - 8] >> 4;
        uint32_t high = s12[8 + m % 4] >> (2 * (m / 4)) & 3;
        int v = (int)(b[32 + 32 * h + l] >> (2 * j) & 3) - (b[l] >> (4 * h + j) & 1 ? 0 : 4);
        out[i] = d * (float)((int)(low | high << 4) - 32) * (float)v;
    }
}

/* Scale and minimum of sub-block j, six bits each, from the twelve bytes Q4_K and Q5_K share. */
static void k_scale(const uint8_t *s, uint32_t j, uint32_t *ret_scale, uint32_t *ret_min) {
    if (j < 4 || FAULT(q4_k_high_scales)) {
        *ret_scale = s[j] & 63;
        *ret_min = s[j + 4] & 63;
    } else {
        *ret_scale = (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
        *ret_min = (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
    }
}

/* {f16 d; f16 dmin; u8 S[12]; [u8 qh[32];] u8 q[128]} */
static void q45_k(const uint8_t *b, const uint8_t *qh, const uint8_t *q, float *out) {
    float d = host_f16_f32(host_le16(b)), dmin = host_f16_f32(host_le16(b + 2));
    for (uint32_t j = 0; j < 8; j++) {
        uint32_t scale, least;
        k_scale(b + 4, j, &scale, &least);
        float f = d * (float)scale, m = dmin * (float)least;
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t v = q[32 * (j / 2) + l] >> (4 * (j & 1)) & 15;
            if (qh)
                v += 16u * (qh[l] >> j & 1);
            out[32 * j + l] = f * (float)v - m;
        }
    }
}
static void q4_k(const uint8_t *b, float *out) {
    q45_k(b, NULL, b + 16, out);
}
static void q5_k(const uint8_t *b, float *out) {
    q45_k(b, b + 16, b + 48, out);
}

/* {u8 ql[128]; u8 qh[64]; i8 sc[16]; f16 d} */
static void q6_k(const uint8_t *b, float *out) {
    const uint8_t *qh = b + 128, *sc = b + 192;
    float d = host_f16_f32(host_le16(b + 208));
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t h = i / 128, p = i % 128 / 32, l = i % 32, code = b[64 * h + l + 32 * (p & 1)];
        uint32_t low = p < 2 ? code & 15 : code >> 4, high = qh[32 * h + l] >> (2 * p) & 3;
        out[i] = d * (float)(int8_t)sc[8 * h + 2 * p + l / 16] * (float)((int)(low | high << 4) - 32);
    }
}

/* {u8 e; u8 q[16]}: halves, not pairs; twice E2M1 and half the power of two, so that e = 254 stays finite */
static void mxfp4(const uint8_t *b, float *out) {
    float d = host_bits_f32(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t code = b[1 + i % 16] >> (i / 16 * 4) & 15;
        out[i] = (code == 8 ? 0.0f : 2 * host_e2m1_f32(code)) * d;
    }
}

/* {u8 d[4]; u8 q[32]}: four groups of 16; the scale has no sign, and its code of NaN means 0 */
static void nvfp4(const uint8_t *b, float *out) {
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t g = i / 16, l = i % 16, s = b[g] & 0x7f;
        uint32_t code = b[4 + 8 * g + l % 8] >> (l / 8 * 4) & 15;
        float d = b[g] == 0 || b[g] == 0x7f ? 0.0f : host_e4m3_f32((uint8_t)s) * 0.5f;
        out[i] = (code == 8 ? 0.0f : 2 * host_e2m1_f32(code)) * d;
    }
}

void host_unpack_block(uint32_t format, const uint8_t *block, float *out) {
    static void (*const unpack[])(const uint8_t *, float *) = {
        [KERN_Q8_0] = q8_0,
        [KERN_Q2_K] = q2_k,
        [KERN_Q3_K] = q3_k,
        [KERN_Q4_K] = q4_k,
        [KERN_Q5_K] = q5_k,
        [KERN_Q6_K] = q6_k,
        [KERN_IQ1_S] = unpack_iq1_s,
        [KERN_IQ1_M] = unpack_iq1_m,
        [KERN_IQ2_XXS] = unpack_iq2_xxs,
        [KERN_IQ2_XS] = unpack_iq2_xs,
        [KERN_IQ2_S] = unpack_iq2_s,
        [KERN_IQ3_XXS] = unpack_iq3_xxs,
        [KERN_IQ3_S] = unpack_iq3_s,
        [KERN_IQ4_NL] = unpack_iq4_nl,
        [KERN_IQ4_XS] = unpack_iq4_xs,
        [KERN_GGUF_MXFP4] = mxfp4,
        [KERN_GGUF_NVFP4] = nvfp4,
    };
    unpack[format](block, out);
}

void unpack_gguf_row(const struct kern_store *s, uint64_t cols, const uint8_t *codes, const uint8_t *global,
                     uint64_t row, float *out) {
    uint32_t weights, bytes;
    if (kern_store_block(s, &weights, &bytes) < 0)
        return; /* no store the caller may pass */
    codes += row * (cols / weights) * bytes;
    for (uint64_t k = 0; k < cols; k += weights, codes += bytes)
        host_unpack_block(s->format, codes, out + k);
    if (global)
        for (uint64_t k = 0; k < cols; k++)
            out[k] = out[k] * host_bits_f32(host_le32(global));
}
