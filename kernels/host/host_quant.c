/* SPDX-License-Identifier: MIT */
/* Numbers into the formats of safetensors checkpoints, and the way to the others. Pure functions; any thread;
 * nothing is allocated. */
#include "host_quant_priv.h"

uint64_t host_quant_unit(const struct kern_store *s, uint64_t rows) {
    if (s->format == KERN_EXL3)
        return 128;
    if (s->format != KERN_FP8)
        return 1;
    return s->block_rows ? s->block_rows : s->block_cols ? rows : 1;
}

int host_quant_scan(const float *w, uint64_t n, float *amax) {
    int32_t top = (int32_t)quant_bits(*amax);
    for (uint64_t i = 0; i < n; i++) {
        int32_t u = (int32_t)(quant_bits(w[i]) & 0x7fffffff);
        top = u > top ? u : top;
    }
    if (top >= 0x7f800000)
        return -EDOM;
    *amax = host_bits_f32((uint32_t)top);
    return 0;
}

float host_quant_global(float amax) {
    float g = amax / 2688;
    if (amax == 0)
        return 1;
    return g < FLT_MIN ? FLT_MIN : g;
}

/* A scale in the store's kind at place i; *ret is what it is read back as. Never 0, which readers refuse. */
static int put_scale(const struct kern_store *s, uint8_t *scale, uint64_t i, float v, float *ret) {
    uint32_t u;
    if (v < (s->scale == KERN_SCALE_F16 ? 0x1p-14f : FLT_MIN))
        v = s->scale == KERN_SCALE_F16 ? 0x1p-14f : FLT_MIN;
    switch (s->scale) {
    case KERN_SCALE_F32:
        quant_put32(scale + 4 * i, quant_bits(v));
        *ret = v;
        return 0;
    case KERN_SCALE_BF16:
        u = host_bf16(v);
        quant_put16(scale + 2 * i, u);
        *ret = host_f32((uint16_t)u);
        return isfinite(*ret) ? 0 : -ERANGE;
    default:
        return quant_put_f16(scale + 2 * i, v, ret);
    }
}

/* Of numbers that are finite, whose bits without the sign are ordered as they are. */
static float amax_of(const float *w, uint64_t stride, uint64_t rows, uint64_t n) {
    int32_t top = 0;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < n; i++) {
            int32_t u = (int32_t)(quant_bits(w[r * stride + i]) & 0x7fffffff);
            top = u > top ? u : top;
        }
    return host_bits_f32((uint32_t)top);
}

/* The nearest whole number, even if there are two, within limits that are whole: what is added and taken away again
 * leaves no room for anything behind the point. A loop of it becomes vectors, one of rintf() does not. */
static inline int near_within(float v, float least, float most) {
    v = v < least ? least : v;
    v = v > most ? most : v;
    return (int)((v + 12582912.0f) - 12582912.0f);
}

static void put_nibble(uint8_t *codes, uint64_t k, uint32_t v) {
    uint8_t *p = codes + k / 2;
    *p = (uint8_t)(k % 2 ? (*p & 15u) | v << 4 : (*p & 0xf0u) | v);
}

/* n rows that share one row of scales. */
static int fp8_rows(const struct kern_store *s, uint64_t cols, const float *w, uint64_t row0, uint64_t n,
                    float amax, uint8_t *codes, uint8_t *scale) {
    uint64_t width = s->block_cols ? s->block_cols : cols, across = (cols + width - 1) / width;
    uint64_t grid_row = s->block_rows ? row0 / s->block_rows : 0;
    for (uint64_t b = 0; b < across; b++) {
        uint64_t k0 = b * width, wide = k0 + width < cols ? width : cols - k0;
        /* one scale for every row: the rows may come in parts */
        float f, top = !s->block_rows && !s->block_cols ? amax : amax_of(w + k0, cols, n, wide);
        uint8_t mine[4];
        bool there = row0 == 0 || s->block_rows; /* not the one scale of all rows, which is written already */
        int r =
            put_scale(s, there ? scale : mine, there ? grid_row * across + b : 0, top ? top / 448 : 1, &f);
        if (r < 0)
            return r;
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t k = k0; k < k0 + wide; k++)
                codes[(row0 + i) * cols + k] = host_e4m3(w[i * cols + k] / f);
    }
    return 0;
}

static int nvfp4_row(const float *w, uint64_t cols, float global, uint8_t *codes, uint8_t *scale) {
    for (uint64_t b = 0; b < cols / 16; b++) {
        float top = amax_of(w + 16 * b, 0, 1, 16), f = top / 6 / global;
        f = !top ? 1 : f < 0x1p-9f ? 0x1p-9f : f;
        scale[b] = host_e4m3(f); /* at most 448 */
        f = host_e4m3_f32(scale[b]) * global;
        for (uint64_t k = 16 * b; k < 16 * b + 16; k++)
            put_nibble(codes, k, quant_e2m1(w[k] / f));
    }
    return 0;
}

/* Squared error of 32 numbers as E2M1 under a power of two. */
static double mxfp4_error(const float *w, float f) {
    double sum = 0;
    for (uint32_t i = 0; i < 32; i++) {
        double d = (double)w[i] - (double)(host_e2m1_f32(quant_e2m1(w[i] / f)) * f);
        sum += d * d;
    }
    return sum;
}

/* The exponent under which the largest of 32 numbers is at most the largest code (MXFP8), or the better one
 * of the two around it (MXFP4, whose codes are so few that cutting the top may pay). */
static uint8_t mx_exponent(const float *w, bool four_bits) {
    float top = amax_of(w, 0, 1, 32);
    int e;
    if (top == 0)
        return 127;
    if (top < 0x1p-110f)
        return 1;
    frexpf(top / (four_bits ? 6 : 448), &e); /* 2^(e-1) <= x < 2^e */
    if (ldexpf(four_bits ? 6 : 448, e - 1) >= top)
        e--;
    if (four_bits && mxfp4_error(w, ldexpf(1, e - 1)) < mxfp4_error(w, ldexpf(1, e)))
        e--;
    return (uint8_t)(e + 127);
}

static int mx_row(const float *w, uint64_t cols, bool four_bits, uint8_t *codes, uint8_t *scale) {
    for (uint64_t b = 0; b < cols / 32; b++) {
        float f;
        scale[b] = mx_exponent(w + 32 * b, four_bits);
        f = host_e8m0_f32(scale[b]);
        for (uint64_t k = 32 * b; k < 32 * b + 32; k++)
            if (four_bits)
                put_nibble(codes, k, quant_e2m1(w[k] / f));
            else
                codes[k] = host_e4m3(w[k] / f);
    }
    return 0;
}

static int int_row(const struct kern_store *s, const float *w, uint64_t cols, uint8_t *codes, uint8_t *scale,
                   uint64_t at) {
    uint64_t width = s->block_cols ? s->block_cols : cols;
    bool four_bits = s->format == KERN_INT4;
    for (uint64_t k0 = 0; k0 < cols; k0 += width, at++) {
        uint64_t end = k0 + width < cols ? k0 + width : cols;
        float f, top = amax_of(w + k0, 0, 1, end - k0);
        int r = put_scale(s, scale, at, top ? top / (four_bits ? 7.5f : 127) : 1, &f);
        if (r < 0)
            return r;
        for (uint64_t k = k0; k < end && !four_bits; k++)
            codes[k] = (uint8_t)(near_within(w[k] / f, -127, 127) + 128);
        for (uint64_t k = k0; k < end && four_bits; k++)
            put_nibble(codes, k, (uint32_t)(near_within(w[k] / f, -8, 7) + 8));
    }
    return 0;
}

static int plain_row(uint32_t format, const float *w, uint64_t cols, uint8_t *p) {
    for (uint64_t k = 0; k < cols; k++) {
        float same;
        if (format == KERN_F32) {
            quant_put32(p + 4 * k, quant_bits(w[k]));
        } else if (format == KERN_BF16) {
            quant_put16(p + 2 * k, host_bf16(w[k]));
            if (!isfinite(host_f32(host_bf16(w[k]))))
                return -ERANGE;
        } else if (quant_put_f16(p + 2 * k, w[k], &same) < 0) {
            return -ERANGE;
        }
    }
    return 0;
}

static int gguf_row(const struct kern_store *s, const float *w, uint64_t cols, float global, uint8_t *codes,
                    uint64_t row) {
    uint32_t weights, bytes;
    float part[256];
    int r = kern_store_block(s, &weights, &bytes);
    if (r < 0)
        return r;
    codes += row * (cols / weights) * bytes;
    for (uint64_t k = 0; r == 0 && k < cols; k += weights, codes += bytes) {
        for (uint32_t i = 0; i < weights; i++)
            part[i] = w[k + i] / global;
        r = host_quant_block(s->format, part, codes);
    }
    return r;
}

static int one_row(const struct kern_store *s, uint64_t cols, const float *w, uint64_t row, float global,
                   uint8_t *codes, uint8_t *scale) {
    switch (s->format) {
    case KERN_F32:
    case KERN_BF16:
    case KERN_F16:
        return plain_row(s->format, w, cols, codes + row * cols * (s->format == KERN_F32 ? 4 : 2));
    case KERN_NVFP4:
        return nvfp4_row(w, cols, global, codes + row * cols / 2, scale + row * cols / 16);
    case KERN_MXFP8:
        return mx_row(w, cols, false, codes + row * cols, scale + row * cols / 32);
    case KERN_MXFP4:
        return mx_row(w, cols, true, codes + row * cols / 2, scale + row * cols / 32);
    case KERN_INT8:
    case KERN_INT4: {
        uint64_t width = s->block_cols ? s->block_cols : cols;
        return int_row(s, w, cols, codes + row * cols / (s->format == KERN_INT4 ? 2 : 1), scale,
                       row * ((cols + width - 1) / width));
    }
    default:
        return gguf_row(s, w, cols, global, codes, row);
    }
}

int host_quant_rows(const struct kern_store *s, uint64_t rows, uint64_t cols, const float *w, uint64_t row0,
                    uint64_t n, float amax, void *const piece[KERN_PIECES], void *scratch) {
    uint8_t *codes = piece[KERN_PIECE_CODES], *scale = piece[KERN_PIECE_SCALE];
    uint64_t unit = host_quant_unit(s, rows);
    float global = 1;
    int r = host_quant_scan(w, n * cols, &amax);
    if (r < 0)
        return r;
    if (piece[KERN_PIECE_GLOBAL]) {
        global = host_quant_global(amax);
        if (row0 == 0)
            quant_put32(piece[KERN_PIECE_GLOBAL], quant_bits(global));
    }
    for (uint64_t i = 0; r == 0 && i < n; i += unit) {
        uint64_t here = n - i < unit ? n - i : unit;
        if (s->format == KERN_EXL3)
            r = quant_exl3(s, rows, cols, w + i * cols, row0 + i, piece, scratch);
        else if (s->format == KERN_FP8)
            r = fp8_rows(s, cols, w + i * cols, row0 + i, here, amax, codes, scale);
        else
            r = one_row(s, cols, w + i * cols, row0 + i, global, codes, scale);
    }
    return r;
}
