/* SPDX-License-Identifier: MIT */
/* kern_format.c: which stores are valid, how many bytes each of their pieces has, and what people call them.
 * Arithmetic on descriptions only: no weight is read here. Pure functions, any thread. */
#include "format.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum scales {
    S_NONE,
    S_FLOATS, /* F32, BF16 or F16 as the store says, one for block_rows x block_cols */
    S_FIXED,  /* the format's own kind, one for 1 x block_cols */
    S_GLOBAL, /* none, or F32: then the matrix has a factor of its own */
};

/* One block of codes along a row has `weights` weights in `bytes` bytes. */
struct format {
    const char *word, *name;
    uint16_t weights, bytes;
    uint8_t unit, scales, fixed; /* fixed: the enum kern_scale of S_FIXED */
    uint8_t group;               /* weights of a row that share a scale, S_FIXED */
};

static const struct format formats[KERN_FORMAT_END] = {
    [KERN_F32] = {"f32", "F32", 1, 4, 4, S_NONE, 0, 0},
    [KERN_BF16] = {"bf16", "BF16", 1, 2, 2, S_NONE, 0, 0},
    [KERN_F16] = {"f16", "F16", 1, 2, 2, S_NONE, 0, 0},
    [KERN_FP8] = {"fp8", "FP8", 1, 1, 1, S_FLOATS, 0, 0},
    [KERN_NVFP4] = {"nvfp4", "NVFP4", 2, 1, 1, S_FIXED, KERN_SCALE_E4M3, 16},
    [KERN_MXFP8] = {"mxfp8", "MXFP8", 1, 1, 1, S_FIXED, KERN_SCALE_E8M0, 32},
    [KERN_MXFP4] = {"mxfp4", "MXFP4", 2, 1, 1, S_FIXED, KERN_SCALE_E8M0, 32},
    [KERN_INT8] = {"int8", "INT8", 1, 1, 1, S_FLOATS, 0, 0},
    [KERN_INT4] = {"int4", "INT4", 2, 1, 1, S_FLOATS, 0, 0},
    [KERN_EXL3] = {"exl3", "EXL3", 0, 0, 2, S_NONE, 0, 0},
    [KERN_Q8_0] = {"q8_0", "Q8_0", 32, 34, 1, S_NONE, 0, 0},
    [KERN_Q2_K] = {"q2_k", "Q2_K", 256, 84, 1, S_NONE, 0, 0},
    [KERN_Q3_K] = {"q3_k", "Q3_K", 256, 110, 1, S_NONE, 0, 0},
    [KERN_Q4_K] = {"q4_k", "Q4_K", 256, 144, 1, S_NONE, 0, 0},
    [KERN_Q5_K] = {"q5_k", "Q5_K", 256, 176, 1, S_NONE, 0, 0},
    [KERN_Q6_K] = {"q6_k", "Q6_K", 256, 210, 1, S_NONE, 0, 0},
    [KERN_IQ1_S] = {"iq1_s", "IQ1_S", 256, 50, 1, S_NONE, 0, 0},
    [KERN_IQ1_M] = {"iq1_m", "IQ1_M", 256, 56, 1, S_NONE, 0, 0},
    [KERN_IQ2_XXS] = {"iq2_xxs", "IQ2_XXS", 256, 66, 1, S_NONE, 0, 0},
    [KERN_IQ2_XS] = {"iq2_xs", "IQ2_XS", 256, 74, 1, S_NONE, 0, 0},
    [KERN_IQ2_S] = {"iq2_s", "IQ2_S", 256, 82, 1, S_NONE, 0, 0},
    [KERN_IQ3_XXS] = {"iq3_xxs", "IQ3_XXS", 256, 98, 1, S_NONE, 0, 0},
    [KERN_IQ3_S] = {"iq3_s", "IQ3_S", 256, 110, 1, S_NONE, 0, 0},
    [KERN_IQ4_NL] = {"iq4_nl", "IQ4_NL", 32, 18, 1, S_NONE, 0, 0},
    [KERN_IQ4_XS] = {"iq4_xs", "IQ4_XS", 256, 136, 1, S_NONE, 0, 0},
    [KERN_GGUF_MXFP4] = {"gguf_mxfp4", "GGUF MXFP4", 32, 17, 1, S_NONE, 0, 0},
    [KERN_GGUF_NVFP4] = {"gguf_nvfp4", "GGUF NVFP4", 64, 36, 1, S_GLOBAL, 0, 0},
};

static const struct format *find(const struct kern_store *s) {
    return s->format && s->format < KERN_FORMAT_END ? &formats[s->format] : NULL;
}

static uint32_t scale_unit(uint32_t scale) {
    switch (scale) {
    case KERN_SCALE_F32:
        return 4;
    case KERN_SCALE_BF16:
    case KERN_SCALE_F16:
        return 2;
    case KERN_SCALE_E4M3:
    case KERN_SCALE_E8M0:
        return 1;
    default:
        return 0;
    }
}

static bool scales_valid(const struct kern_store *s, const struct format *f) {
    bool floats = s->scale == KERN_SCALE_F32 || s->scale == KERN_SCALE_BF16 || s->scale == KERN_SCALE_F16;
    switch (f->scales) {
    case S_FLOATS: /* two codes of a byte have one scale; only FP8 has grids over rows */
        return floats && s->block_cols % f->weights == 0 && (s->format == KERN_FP8 || s->block_rows == 1);
    case S_FIXED:
        return s->scale == f->fixed && s->block_rows == 1 && s->block_cols == f->group;
    case S_GLOBAL:
        return (s->scale == KERN_SCALE_NONE || s->scale == KERN_SCALE_F32) && !s->block_rows && !s->block_cols;
    default:
        return s->scale == KERN_SCALE_NONE && !s->block_rows && !s->block_cols;
    }
}

static bool store_valid(const struct kern_store *s, const struct format *f) {
    if (!f || !scales_valid(s, f))
        return false;
    if (s->format != KERN_EXL3)
        return !s->bits && !s->codebook;
    return s->bits >= 1 && s->bits <= 8 && s->codebook >= KERN_CODEBOOK_3INST && s->codebook <= KERN_CODEBOOK_MUL1;
}

static uint64_t blocks(uint64_t n, uint32_t block) {
    return block ? n / block + (n % block != 0) : 1;
}

static int codes(const struct kern_store *s, const struct format *f, uint64_t rows, uint64_t cols,
                 struct kern_piece_info *p) {
    p->unit = f->unit;
    if (s->format == KERN_EXL3) {
        p->rows = cols / 16;
        return __builtin_mul_overflow(rows / 16, 32u * s->bits, &p->row_bytes) ? -EOVERFLOW : 0;
    }
    p->rows = rows;
    return __builtin_mul_overflow(cols / f->weights, f->bytes, &p->row_bytes) ? -EOVERFLOW : 0;
}

static int vector(uint64_t n, uint32_t unit, struct kern_piece_info *p) {
    *p = (struct kern_piece_info){.rows = 1, .unit = unit};
    return __builtin_mul_overflow(n, unit, &p->row_bytes) ? -EOVERFLOW : 0;
}

static int piece_of(const struct kern_store *s, const struct format *f, uint64_t rows, uint64_t cols,
                    enum kern_piece piece, struct kern_piece_info *p) {
    switch (piece) {
    case KERN_PIECE_CODES:
        return codes(s, f, rows, cols, p);
    case KERN_PIECE_SCALE:
        if (f->scales != S_FLOATS && f->scales != S_FIXED)
            return 0;
        p->unit = scale_unit(s->scale);
        p->rows = blocks(rows, s->block_rows);
        return __builtin_mul_overflow(blocks(cols, s->block_cols), p->unit, &p->row_bytes) ? -EOVERFLOW : 0;
    case KERN_PIECE_GLOBAL:
        return s->format == KERN_NVFP4 || (f->scales == S_GLOBAL && s->scale) ? vector(1, 4, p) : 0;
    case KERN_PIECE_SUH:
        return s->format == KERN_EXL3 ? vector(cols, 2, p) : 0;
    case KERN_PIECE_SVH:
        return s->format == KERN_EXL3 ? vector(rows, 2, p) : 0;
    default:
        return -EINVAL;
    }
}

/* Can this shape be cut into the format's blocks? */
static bool shape_fits(const struct kern_store *s, const struct format *f, uint64_t rows, uint64_t cols) {
    if (!rows || !cols)
        return false;
    if (s->format == KERN_EXL3)
        return rows % 128 == 0 && cols % 128 == 0;
    return cols % f->weights == 0 && (f->scales != S_FIXED || cols % f->group == 0);
}

int kern_store_piece(const struct kern_store *s, uint64_t rows, uint64_t cols, enum kern_piece piece,
                     struct kern_piece_info *ret) {
    const struct format *f = find(s);
    if (!store_valid(s, f) || !shape_fits(s, f, rows, cols))
        return -EINVAL;
    struct kern_piece_info p = {0};
    int r = piece_of(s, f, rows, cols, piece, &p);
    uint64_t bytes;
    if (!r && __builtin_mul_overflow(p.rows, p.row_bytes, &bytes))
        r = -EOVERFLOW;
    if (!r)
        *ret = p;
    return r;
}

int kern_store_bytes(const struct kern_store *s, uint64_t rows, uint64_t cols, uint64_t *ret) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < KERN_PIECES; i++) {
        struct kern_piece_info p;
        int r = kern_store_piece(s, rows, cols, (enum kern_piece)i, &p);
        if (r)
            return r;
        if (__builtin_add_overflow(sum, p.rows * p.row_bytes, &sum))
            return -EOVERFLOW;
    }
    *ret = sum;
    return 0;
}

int kern_store_block(const struct kern_store *s, uint32_t *ret_weights, uint32_t *ret_bytes) {
    const struct format *f = find(s);
    if (!store_valid(s, f) || s->format == KERN_EXL3)
        return -EINVAL;
    *ret_weights = f->weights;
    *ret_bytes = f->bytes;
    return 0;
}

/* What the scales of FP8, INT8 and INT4 stand for, as a word: " 128x128", " g128", " channel", " tensor". */
static void blocks_name(const struct kern_store *s, char *buf, size_t len) {
    if (!s->block_rows && !s->block_cols)
        snprintf(buf, len, " tensor");
    else if (s->block_rows == 1 && !s->block_cols)
        snprintf(buf, len, " channel");
    else if (s->block_rows == 1)
        snprintf(buf, len, " g%u", s->block_cols);
    else
        snprintf(buf, len, " %ux%u", s->block_rows, s->block_cols);
}

const char *kern_store_name(const struct kern_store *s, char *buf, size_t len) {
    static const char *const codebook[] = {"?", "3inst", "mcg", "mul1"};
    const struct format *f = find(s);
    char b[32] = "";
    if (!f) {
        snprintf(buf, len, "format %u", s->format);
    } else if (s->format == KERN_EXL3) {
        snprintf(buf, len, "EXL3 %u bits %s", s->bits, s->codebook < 4 ? codebook[s->codebook] : "?");
    } else if (f->scales == S_FLOATS) {
        blocks_name(s, b, sizeof(b));
        snprintf(buf, len, "%s%s%s", f->name, b,
                 s->scale == KERN_SCALE_BF16  ? " (BF16)"
                 : s->scale == KERN_SCALE_F16 ? " (F16)"
                                              : "");
    } else {
        snprintf(buf, len, "%s", f->name);
    }
    return buf;
}

const char *kern_format_word(uint32_t format) {
    return format < KERN_FORMAT_END ? formats[format].word : NULL;
}

uint32_t kern_format_find(const char *word) {
    for (uint32_t i = 1; i < KERN_FORMAT_END; i++)
        if (!strcmp(word, formats[i].word))
            return i;
    return 0;
}
