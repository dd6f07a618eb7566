/* SPDX-License-Identifier: MIT */
/* cpu_body_unpack.h: stored weights of a panel as numbers over v16: 16 rows at once, each lane doing for its row
 * what host_unpack.h does for one, with the same roundings in the same order. The lattice formats go through the
 * scalar rule, row by row. */
#ifndef GLMD_CPU_BODY_UNPACK_H
#define GLMD_CPU_BODY_UNPACK_H

static const float e2m1_values[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
/* GGUF's: twice that, and no negative zero */
static const float e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const float iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* ---- scales --------------------------------------------------------------------------------------------- */

static float scale_number(uint32_t kind, const uint8_t *p) {
    switch (kind) {
    case KERN_SCALE_F32:
        return host_bits_f32(host_le32(p));
    case KERN_SCALE_BF16:
        return host_f32(host_le16(p));
    case KERN_SCALE_F16:
        return host_f16_f32(host_le16(p));
    case KERN_SCALE_E4M3:
        return host_fp8_f32(*p);
    default:
        return host_e8m0_f32(*p);
    }
}

/* The factors of 16 rows in block column b: of rows by themselves, or from a grid. */
static v16 panel_scales(const struct cpu_packed *m, const uint8_t *weights, uint32_t p, uint32_t b) {
    _Alignas(64) float f[16];
    const uint8_t *s = weights + m->scale;
    uint32_t kind = m->s.scale, unit = m->scale_unit;
    if (m->s.block_rows == 1) {
        s += ((size_t)p * m->scale_cols + b) * 16 * unit;
        if (kind == KERN_SCALE_F32)
            return v_ld((const float *)(const void *)s);
        if (kind == KERN_SCALE_BF16)
            return v_ldh((const uint16_t *)(const void *)s);
        if (kind == KERN_SCALE_F16)
            return v_ldf16(s);
        for (uint32_t l = 0; l < 16; l++)
            f[l] = scale_number(kind, s + l);
        return v_ld(f);
    }
    for (uint32_t l = 0; l < 16; l++) {
        uint32_t n = p * 16 + l, i = n % m->rblock_pad, row = n / m->rblock_pad * m->rstride + m->roff + i;
        uint32_t g = m->s.block_rows ? row / m->s.block_rows : 0;
        f[l] = i < m->rblock && row < m->rows ? scale_number(kind, s + ((size_t)g * m->scale_cols + b) * unit) : 0.0f;
    }
    return v_ld(f);
}

/* ---- codes with factors ----------------------------------------------------------------------------------- */

/* E4M3 has two codes that are no numbers; the load does not know them. */
ALWAYS v16 fp8_codes(const uint8_t *p) {
    v16 v = v_mul(v_ld8(p), v_set(256.0f));
    uint64_t a, b;
    memcpy(&a, p, 8);
    memcpy(&b, p + 8, 8);
    const uint64_t ones = 0x0101010101010101u, seven = 0x7f * ones;
    if (__builtin_expect((((a & seven) + ones) | ((b & seven) + ones)) & 0x80 * ones, 0)) {
        _Alignas(64) float f[16];
        v_st(f, v);
        for (int l = 0; l < 16; l++)
            f[l] = host_fp8_f32(p[l]);
        v = v_ld(f);
    }
    return v;
}

ALWAYS v16 code_values(const uint32_t format, const uint8_t *row, uint32_t k) {
    switch (format) {
    case KERN_FP8:
        return fp8_codes(row + (size_t)k * 16);
    case KERN_INT8:
        return v_sub(v_ldu(row + (size_t)k * 16, 0, 255), v_set(128.0f));
    case KERN_INT4:
        return v_sub(v_ldu(row + (size_t)(k / 2) * 16, k % 2 * 4, 15), v_set(8.0f));
    default:
        return v_lut(row + (size_t)(k / 2) * 16, FAULT(cpu_high_nibble_first) ? 4 - k % 2 * 4 : k % 2 * 4,
                     e2m1_values);
    }
}

ALWAYS void unpack_scaled(const struct cpu_packed *m, const uint8_t *weights, const uint32_t format, uint32_t p,
                          uint32_t c0, uint32_t c1, float *dst) {
    const uint8_t *row = weights + m->codes + (size_t)p * m->row_bytes * 16;
    uint32_t block = m->s.block_cols ? m->s.block_cols : m->cols;
    for (uint32_t c = c0; c < c1;) {
        uint32_t b = c / block, end = (b + 1) * block < c1 ? (b + 1) * block : c1;
        v16 f = panel_scales(m, weights, p, FAULT(cpu_scale_of_next) && b + 1 < m->scale_cols ? b + 1 : b);
        if (m->has_global)
            f = v_mul(f, v_set(host_bits_f32(host_le32(weights + m->global))));
        for (; c < end; c++, dst += 16)
            v_st(dst, v_mul(code_values(format, row, c), f));
    }
}

/* ---- GGUF blocks ------------------------------------------------------------------------------------------ */

/* b: a block of 16 rows, byte by byte; at(i): byte i. */
#define AT(i) (b + (size_t)(i) * 16)

static void tile_q8_0(const uint8_t *b, float *dst) {
    v16 d = v_ldf16b(AT(0));
    for (int i = 0; i < 32; i++)
        v_st(dst + 16 * i, v_mul(d, v_lds(AT(2 + i))));
}

static void tile_q2_k(const uint8_t *b, float *dst) {
    v16 d = v_ldf16b(AT(80)), least = v_ldf16b(AT(82));
    for (int g = 0; g < 16; g++) { /* 16 weights with one scale */
        int h = g / 8, j = g / 2 % 4, l = g % 2 * 16;
        v16 f = v_mul(d, v_ldu(AT(g), 0, 15)), m = v_mul(least, v_ldu(AT(g), 4, 15));
        for (int i = 0; i < 16; i++, dst += 16)
            v_st(dst, v_sub(v_mul(f, v_ldu(AT(16 + 32 * h + l + i), 2 * j, 3)), m));
    }
}

static void tile_q3_k(const uint8_t *b, float *dst) {
    v16 d = v_ldf16b(AT(108));
    for (int g = 0; g < 16; g++) {
        int h = g / 8, j = g / 2 % 4, l = g % 2 * 16;
        v16 low = g < 8 ? v_ldu(AT(96 + g), 0, 15) : v_ldu(AT(88 + g), 4, 15);
        v16 s = v_fma(v_set(16.0f), v_ldu(AT(104 + g % 4), 2 * (g / 4), 3), low);
        v16 f = v_mul(d, v_sub(s, v_set(32.0f)));
        for (int i = 0; i < 16; i++, dst += 16) {
            v16 high = v_mul(v_set(4.0f), v_ldu(AT(l + i), 4 * h + j, 1));
            v16 v = v_sub(v_add(v_ldu(AT(32 + 32 * h + l + i), 2 * j, 3), high), v_set(4.0f));
            v_st(dst, v_mul(f, v));
        }
    }
}

ALWAYS void tile_q45_k(const uint8_t *b, const int qh, const int q, float *dst) {
    v16 d = v_ldf16b(AT(0)), least = v_ldf16b(AT(2));
    for (int j = 0; j < 8; j++) {
        v16 s, m;
        if (j < 4) {
            s = v_ldu(AT(4 + j), 0, 63);
            m = v_ldu(AT(8 + j), 0, 63);
        } else {
            s = v_fma(v_set(16.0f), v_ldu(AT(j), 6, 3), v_ldu(AT(8 + j), 0, 15));
            m = v_fma(v_set(16.0f), v_ldu(AT(4 + j), 6, 3), v_ldu(AT(8 + j), 4, 15));
        }
        s = v_mul(d, s);
        m = v_mul(least, m);
        for (int l = 0; l < 32; l++, dst += 16) {
            v16 v = v_ldu(AT(q + 32 * (j / 2) + l), 4 * (j % 2), 15);
            if (qh)
                v = v_fma(v_set(16.0f), v_ldu(AT(qh + l), j, 1), v);
            v_st(dst, v_sub(v_mul(s, v), m));
        }
    }
}

static void tile_q6_k(const uint8_t *b, float *dst) {
    v16 d = v_ldf16b(AT(208));
    for (int g = 0; g < 16; g++) {
        int h = g / 8, p = g / 2 % 4, l = g % 2 * 16;
        v16 f = v_mul(d, v_lds(AT(192 + g)));
        for (int i = 0; i < 16; i++, dst += 16) {
            v16 low = v_ldu(AT(64 * h + l + i + 32 * (p % 2)), p < 2 ? 0 : 4, 15);
            v16 v = v_fma(v_set(16.0f), v_ldu(AT(128 + 32 * h + l + i), 2 * p, 3), low);
            v_st(dst, v_mul(f, v_sub(v, v_set(32.0f))));
        }
    }
}

/* 32 weights in halves: the low nibbles are the first 16. */
ALWAYS void tile_halves(const uint8_t *b, v16 f, const int half, const float *table, float *dst) {
    for (int i = 0; i < 2 * half; i++)
        v_st(dst + 16 * i, v_mul(v_lut(AT(i % half), i / half * 4, table), f));
}

static void tile_iq4_xs(const uint8_t *b, float *dst) {
    v16 d = v_ldf16b(AT(0));
    for (int g = 0; g < 8; g++) {
        v16 s = v_fma(v_set(16.0f), v_ldu(AT(2 + g / 4), 2 * (g % 4), 3), v_ldu(AT(4 + g / 2), 4 * (g % 2), 15));
        tile_halves(AT(8 + 16 * g), v_mul(d, v_sub(s, v_set(32.0f))), 16, iq4_values, dst + 512 * g);
    }
}

static void tile_mxfp4(const uint8_t *b, float *dst) {
    _Alignas(64) float d[16];
    for (int l = 0; l < 16; l++)
        d[l] = host_bits_f32(b[l] < 2 ? 0x00200000u << b[l] : (uint32_t)(b[l] - 1) << 23);
    tile_halves(AT(1), v_ld(d), 16, e2m1_twice, dst);
}

static void tile_nvfp4(const uint8_t *b, float *dst) {
    for (int g = 0; g < 4; g++) {
        _Alignas(64) float d[16];
        const uint8_t *s = AT(g);
        for (int l = 0; l < 16; l++)
            d[l] = s[l] == 0 || s[l] == 0x7f ? 0.0f : host_e4m3_f32(s[l] & 0x7f) * 0.5f;
        tile_halves(AT(4 + 8 * g), v_ld(d), 8, e2m1_twice, dst + 256 * g);
    }
}

/* Any format: the rows one after the other. */
static void tile_any(uint32_t format, uint32_t bytes, uint32_t weights, const uint8_t *b, float *dst) {
    uint8_t block[256];
    float w[256];
    for (uint32_t l = 0; l < 16; l++) {
        for (uint32_t i = 0; i < bytes; i++)
            block[i] = b[(size_t)i * 16 + l];
        host_unpack_block(format, block, w);
        for (uint32_t i = 0; i < weights; i++)
            dst[(size_t)i * 16 + l] = w[i];
    }
}

static void tile_block(uint32_t format, uint32_t bytes, uint32_t weights, const uint8_t *b, float *dst) {
    switch (format) {
    case KERN_Q8_0:
        tile_q8_0(b, dst);
        break;
    case KERN_Q2_K:
        tile_q2_k(b, dst);
        break;
    case KERN_Q3_K:
        tile_q3_k(b, dst);
        break;
    case KERN_Q4_K:
        tile_q45_k(b, 0, 16, dst);
        break;
    case KERN_Q5_K:
        tile_q45_k(b, 16, 48, dst);
        break;
    case KERN_Q6_K:
        tile_q6_k(b, dst);
        break;
    case KERN_IQ4_NL:
        tile_halves(AT(2), v_ldf16b(AT(0)), 16, iq4_values, dst);
        break;
    case KERN_IQ4_XS:
        tile_iq4_xs(b, dst);
        break;
    case KERN_GGUF_MXFP4:
        tile_mxfp4(b, dst);
        break;
    case KERN_GGUF_NVFP4:
        tile_nvfp4(b, dst);
        break;
    default:
        tile_any(format, bytes, weights, b, dst);
    }
}

static void unpack_blocks(const struct cpu_packed *m, const uint8_t *weights, uint32_t p, uint32_t c0, uint32_t c1,
                          float *dst) {
    uint32_t per = 0, bytes = 0;
    kern_store_block(&m->s, &per, &bytes);
    const uint8_t *row = weights + m->codes + (size_t)p * m->row_bytes * 16;
    for (uint32_t c = c0; c < c1; c += per, dst += (size_t)per * 16) {
        tile_block(m->s.format, bytes, per, row + (size_t)(c / per) * bytes * 16, dst);
        if (!m->has_global)
            continue;
        v16 f = v_set(host_bits_f32(host_le32(weights + m->global)));
        for (uint32_t i = 0; i < per; i++)
            v_st(dst + i * 16, v_mul(v_ld(dst + i * 16), f));
    }
}
#undef AT

/* ---- columns c0 .. c1-1 of panel p, both at block borders: dst[c1 - c0][16] ---------------------------------- */

static void unpack_cols(const struct cpu_packed *m, const uint8_t *weights, uint32_t p, uint32_t c0, uint32_t c1,
                        float *dst) {
    const uint8_t *row = weights + m->codes + (size_t)p * m->row_bytes * 16;
    switch (m->s.format) {
    case KERN_F32:
        memcpy(dst, row + (size_t)c0 * 64, (size_t)(c1 - c0) * 64);
        break;
    case KERN_F16:
        for (uint32_t c = c0; c < c1; c++, dst += 16)
            v_st(dst, v_ldf16(row + (size_t)c * 32));
        break;
    case KERN_BF16:
        for (uint32_t c = c0; c < c1; c++, dst += 16)
            v_st(dst, v_ldh((const uint16_t *)(const void *)(row + (size_t)c * 32)));
        break;
    case KERN_FP8:
    case KERN_MXFP8:
        unpack_scaled(m, weights, KERN_FP8, p, c0, c1, dst);
        break;
    case KERN_INT8:
        unpack_scaled(m, weights, KERN_INT8, p, c0, c1, dst);
        break;
    case KERN_INT4:
        unpack_scaled(m, weights, KERN_INT4, p, c0, c1, dst);
        break;
    case KERN_NVFP4:
    case KERN_MXFP4:
        unpack_scaled(m, weights, KERN_NVFP4, p, c0, c1, dst);
        break;
    default:
        unpack_blocks(m, weights, p, c0, c1, dst);
    }
}

#endif
