/* SPDX-License-Identifier: MIT */
/* cpu_body_unpack.h: stored weights of a panel as numbers over v16: 16 rows at once, each lane doing for its row
 * what host_unpack.h does for one, with the same roundings in the same order. Runs on the team; writes what it is
 * handed and nothing else. */
#ifndef GLMD_CPU_BODY_UNPACK_H
#define GLMD_CPU_BODY_UNPACK_H

/* A panel that is being read. */
struct panel {
    const struct cpu_packed *m;
    const uint8_t *weights, *codes;
    const uint8_t *scales; /* of its rows, or the grid's row that serves all of them; NULL: several of the grid */
    uint32_t p;
    float global;
    uint32_t grid[16]; /* where scales is NULL: each row's row of the grid; NO_GRID: it is padding */
};
#define NO_GRID UINT32_MAX

/* A grid's rows may end anywhere; the divisions are made once a panel, not once for each of its blocks. */
static void grid_rows(struct panel *q) {
    const struct cpu_packed *m = q->m;
    for (uint32_t l = 0; l < 16; l++) {
        uint32_t n = q->p * 16 + l, i = n % m->rblock_pad, row = n / m->rblock_pad * m->rstride + m->roff + i;
        uint32_t g = m->s.block_rows ? row / m->s.block_rows : 0;
        q->grid[l] = i < m->rblock && row < m->rows ? g : NO_GRID;
    }
}

static struct panel panel_open(const struct cpu_packed *m, const uint8_t *weights, uint32_t p) {
    struct panel q = {.m = m, .weights = weights, .p = p, .codes = weights + m->codes + (size_t)p * m->row_bytes * 16};
    if (m->has_global)
        q.global = host_bits_f32(host_le32(weights + m->global));
    if (!m->scale_unit)
        return q;
    const uint8_t *s = weights + m->scale;
    if (m->s.block_rows == 1) {
        q.scales = s + (size_t)p * m->scale_cols * 16 * m->scale_unit;
    } else {
        uint32_t n = p * 16, i = n % m->rblock_pad, row = n / m->rblock_pad * m->rstride + m->roff + i;
        uint32_t g = m->s.block_rows ? row / m->s.block_rows : 0;
        uint32_t h = m->s.block_rows ? (row + 15) / m->s.block_rows : 0;
        if (g == h && i + 16 <= m->rblock && row + 16 <= m->rows)
            q.scales = s + (size_t)g * m->scale_cols * m->scale_unit;
        else
            grid_rows(&q);
    }
    return q;
}

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

/* E4M3 has two codes that are no numbers. */
static v16 fp8_slowly(const uint8_t *p) {
    _Alignas(64) float f[16];
    for (int l = 0; l < 16; l++)
        f[l] = host_fp8_f32(p[l]);
    return v_ld(f);
}

static v16 grid_scales(const struct panel *q, uint32_t b) {
    const struct cpu_packed *m = q->m;
    const uint8_t *scales = q->weights + m->scale + (size_t)b * m->scale_unit;
    const size_t row_bytes = (size_t)m->scale_cols * m->scale_unit;
    _Alignas(64) float f[16];
    for (uint32_t l = 0; l < 16; l++)
        f[l] = q->grid[l] == NO_GRID ? 0.0f : scale_number(m->s.scale, scales + q->grid[l] * row_bytes);
    return v_ld(f);
}

/* The factors of 16 rows in block column b: of rows by themselves, or from a grid. */
ALWAYS v16 panel_scales(const struct panel *q, uint32_t b) {
    const struct cpu_packed *m = q->m;
    if (!q->scales)
        return grid_scales(q, b);
    if (m->s.block_rows != 1)
        return v_set(scale_number(m->s.scale, q->scales + (size_t)b * m->scale_unit));
    const uint8_t *s = q->scales + (size_t)b * 16 * m->scale_unit;
    switch (m->s.scale) {
    case KERN_SCALE_F32:
        return v_ld((const float *)(const void *)s);
    case KERN_SCALE_BF16:
        return v_ldh((const uint16_t *)(const void *)s);
    case KERN_SCALE_F16:
        return v_ldf16(s);
    case KERN_SCALE_E4M3:
        return vb_e4m3_nan(s, 16) ? fp8_slowly(s) : v_e4m3(s);
    default:
        return v_e8m0(s);
    }
}

/* ---- codes with factors ----------------------------------------------------------------------------------- */

ALWAYS void codes_of(const uint32_t format, const uint8_t *row, uint32_t c, uint32_t end, v16 f, float *dst) {
    const int high = FAULT(cpu_high_nibble_first) ? 0 : 4;
    switch (format) {
    case KERN_FP8:
        for (; c + 2 <= end; c += 2, dst += 32) {
            v16 a, b;
            v_e4m3_2(row + (size_t)c * 16, &a, &b);
            v_st(dst, v_mul(a, f));
            v_st(dst + 16, v_mul(b, f));
        }
        if (c < end)
            v_st(dst, v_mul(v_e4m3(row + (size_t)c * 16), f));
        break;
    case KERN_INT8:
        for (; c < end; c++, dst += 16)
            v_st(dst, v_mul(v_sub(v_ldu(row + (size_t)c * 16), v_set(128.0f)), f));
        break;
    case KERN_INT4: /* blocks of scales, and what is asked for, hold whole bytes */
        for (; c < end; c += 2, dst += 32) {
            v_st(dst, v_mul(v_bits(row + (size_t)c * 8, 0, 15, 1, -8), f));
            v_st(dst + 16, v_mul(v_bits(row + (size_t)c * 8, 4, 15, 1, -8), f));
        }
        break;
    default:
        for (; c < end; c += 2, dst += 32) {
            v_st(dst, v_mul(v_lut(row + (size_t)c * 8, 4 - high, e2m1_values), f));
            v_st(dst + 16, v_mul(v_lut(row + (size_t)c * 8, high, e2m1_values), f));
        }
    }
}

/* block: weights with one factor, where the format fixes it. */
ALWAYS void unpack_scaled(const struct panel *q, const uint32_t format, const uint32_t fixed, uint32_t c0, uint32_t c1,
                          float *dst) {
    const struct cpu_packed *m = q->m;
    uint32_t block = fixed ? fixed : m->s.block_cols ? m->s.block_cols : m->cols, b = c0 / block;
    int slow = format == KERN_FP8 && vb_e4m3_nan(q->codes + (size_t)c0 * 16, (size_t)(c1 - c0) * 16);
    for (uint32_t c = c0; c < c1; b++) {
        uint32_t end = (b + 1) * block < c1 ? (b + 1) * block : c1;
        v16 f = panel_scales(q, FAULT(cpu_scale_of_next) && b + 1 < m->scale_cols ? b + 1 : b);
        if (m->has_global)
            f = v_mul(f, v_set(q->global));
        for (uint32_t i = c; slow && i < end; i++)
            v_st(dst + (size_t)(i - c) * 16, v_mul(fp8_slowly(q->codes + (size_t)i * 16), f));
        if (!slow)
            codes_of(format, q->codes, c, end, f, dst);
        dst += (size_t)(end - c) * 16;
        c = end;
    }
}

/* ---- columns c0 .. c1-1 of panel p, both at borders of unpack_grain(): dst[c1 - c0][16] ----------------------- */

static uint32_t unpack_grain(const struct kern_store *s) {
    uint32_t weights = 1, bytes;
    if (s->format >= KERN_Q8_0)
        return GGUF_GRAIN;
    if (s->format == KERN_EXL3)
        return 16;
    kern_store_block(s, &weights, &bytes);
    return weights;
}

static void unpack_cols(const struct panel *q, uint32_t c0, uint32_t c1, float *dst) {
    const struct cpu_packed *m = q->m;
    switch (m->s.format) {
    case KERN_F32:
        memcpy(dst, q->codes + (size_t)c0 * 64, (size_t)(c1 - c0) * 64);
        break;
    case KERN_F16:
        for (uint32_t c = c0; c < c1; c++, dst += 16)
            v_st(dst, v_ldf16(q->codes + (size_t)c * 32));
        break;
    case KERN_BF16:
        for (uint32_t c = c0; c < c1; c++, dst += 16)
            v_st(dst, v_ldh((const uint16_t *)(const void *)(q->codes + (size_t)c * 32)));
        break;
    case KERN_FP8:
        unpack_scaled(q, KERN_FP8, 0, c0, c1, dst);
        break;
    case KERN_MXFP8:
        unpack_scaled(q, KERN_FP8, 32, c0, c1, dst);
        break;
    case KERN_INT8:
        unpack_scaled(q, KERN_INT8, 0, c0, c1, dst);
        break;
    case KERN_INT4:
        unpack_scaled(q, KERN_INT4, 0, c0, c1, dst);
        break;
    case KERN_NVFP4:
        unpack_scaled(q, KERN_NVFP4, 16, c0, c1, dst);
        break;
    case KERN_MXFP4:
        unpack_scaled(q, KERN_NVFP4, 32, c0, c1, dst);
        break;
    default:
        unpack_blocks(m->s.format, q->codes, c0, c1, dst);
        for (uint32_t i = 0; m->has_global && i < c1 - c0; i++)
            v_st(dst + i * 16, v_mul(v_ld(dst + i * 16), v_set(q->global)));
    }
}

#endif
