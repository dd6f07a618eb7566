/* SPDX-License-Identifier: MIT */
/* Rows of a stored matrix as numbers: the formats whose codes are numbers by themselves, and the way to the
 * others. Pure functions; any thread; nothing is allocated. */
#include "host_unpack.h"
#include "host_unpack_priv.h"

struct matrix {
    const struct kern_store *s;
    uint64_t cols;
    const uint8_t *codes, *scale, *global;
};

static float scale_at(const struct matrix *m, uint64_t i) {
    switch (m->s->scale) {
    case KERN_SCALE_F32:
        return host_bits_f32(host_le32(m->scale + 4 * i));
    case KERN_SCALE_BF16:
        return host_f32(host_le16(m->scale + 2 * i));
    case KERN_SCALE_F16:
        return host_f16_f32(host_le16(m->scale + 2 * i));
    case KERN_SCALE_E4M3:
        return host_fp8_f32(m->scale[i]);
    default:
        return host_e8m0_f32(m->scale[i]);
    }
}

static uint32_t nibble(const uint8_t *row, uint64_t k) {
    return row[k / 2] >> ((FAULT(unpack_high_nibble_first) ? 1 - k % 2 : k % 2) * 4) & 15;
}

static float code_at(const struct matrix *m, const uint8_t *row, uint64_t k) {
    switch (m->s->format) {
    case KERN_FP8:
    case KERN_MXFP8:
        return host_fp8_f32(row[k]);
    case KERN_INT8:
        return (float)(row[k] - 128);
    case KERN_INT4:
        return (float)((int)nibble(row, k) - 8);
    default:
        return host_e2m1_f32(nibble(row, k));
    }
}

static void plain_row(const struct matrix *m, uint64_t row, float *out) {
    uint64_t n = m->cols, bytes = m->s->format == KERN_F32 ? 4 : 2;
    const uint8_t *p = m->codes + row * n * bytes;
    if (m->s->format == KERN_F32)
        memcpy(out, p, n * sizeof(float));
    else if (m->s->format == KERN_BF16)
        for (uint64_t k = 0; k < n; k++)
            out[k] = host_f32(host_le16(p + 2 * k));
    else
        for (uint64_t k = 0; k < n; k++)
            out[k] = host_f16_f32(host_le16(p + 2 * k));
}

/* One row of codes with factors: a factor serves `width` codes in a row, and `tall` rows. */
static void scaled_row(const struct matrix *m, uint64_t row, float *out) {
    const struct kern_store *s = m->s;
    bool halves = s->format == KERN_NVFP4 || s->format == KERN_MXFP4 || s->format == KERN_INT4;
    const uint8_t *p = m->codes + row * (halves ? m->cols / 2 : m->cols);
    uint64_t width = s->block_cols, tall = 1, per_row;
    if (s->format == KERN_NVFP4)
        width = 16;
    else if (s->format == KERN_MXFP8 || s->format == KERN_MXFP4)
        width = 32;
    else if (s->format == KERN_FP8)
        tall = s->block_rows ? s->block_rows : row + 1; /* one factor for all rows: always the first */
    if (!width || width > m->cols)
        width = m->cols;
    per_row = (m->cols + width - 1) / width;
    for (uint64_t b = 0; b < per_row; b++) {
        uint64_t end = (b + 1) * width < m->cols ? (b + 1) * width : m->cols;
        float f =
            scale_at(m, row / tall * per_row + (FAULT(unpack_scale_of_next) && b + 1 < per_row ? b + 1 : b));
        if (m->global && !FAULT(unpack_no_global))
            f = f * host_bits_f32(host_le32(m->global));
        for (uint64_t k = b * width; k < end; k++)
            out[k] = code_at(m, p, k) * f;
    }
}

void host_unpack_rows(const struct kern_store *s, uint64_t rows, uint64_t cols,
                      const void *const piece[KERN_PIECES], uint64_t row0, uint64_t n, float *out) {
    const struct matrix m = {.s = s,
                             .cols = cols,
                             .codes = piece[KERN_PIECE_CODES],
                             .scale = piece[KERN_PIECE_SCALE],
                             .global = piece[KERN_PIECE_GLOBAL]};
    if (s->format == KERN_EXL3) {
        unpack_exl3(s, rows, cols, piece, row0, n, out);
        return;
    }
    for (uint64_t r = 0; r < n; r++, out += cols) {
        if (s->format <= KERN_F16)
            plain_row(&m, row0 + r, out);
        else if (s->format < KERN_Q8_0)
            scaled_row(&m, row0 + r, out);
        else
            unpack_gguf_row(s, cols, m.codes, m.global, row0 + r, out);
    }
}
