/* SPDX-License-Identifier: MIT */
/* Random stored matrices; see kernstores.h. Single thread. */
#include "kernstores.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host_unpack.h"

#define SCALED(f, kind, br, bc)                                                                              \
    { .format = KERN_##f, .scale = KERN_SCALE_##kind, .block_rows = br, .block_cols = bc }
#define FIXED(f, kind, bc) SCALED(f, kind, 1, bc)
#define PLAIN(f)                                                                                             \
    { .format = KERN_##f }
#define EXL3(b, book)                                                                                        \
    { .format = KERN_EXL3, .bits = b, .codebook = KERN_CODEBOOK_##book }

const struct kern_store ks_all[] = {
    PLAIN(F32),
    PLAIN(F16),
    SCALED(FP8, F32, 128, 128),
    SCALED(FP8, BF16, 5, 7), /* blocks that end anywhere */
    SCALED(FP8, F16, 1, 0),
    SCALED(FP8, F32, 0, 0),
    SCALED(INT8, BF16, 1, 128),
    SCALED(INT8, F32, 1, 0),
    SCALED(INT4, F16, 1, 32),
    SCALED(INT4, BF16, 1, 128),
    FIXED(NVFP4, E4M3, 16),
    FIXED(MXFP8, E8M0, 32),
    FIXED(MXFP4, E8M0, 32),
    PLAIN(Q8_0),
    PLAIN(Q2_K),
    PLAIN(Q3_K),
    PLAIN(Q4_K),
    PLAIN(Q5_K),
    PLAIN(Q6_K),
    PLAIN(IQ1_S),
    PLAIN(IQ1_M),
    PLAIN(IQ2_XXS),
    PLAIN(IQ2_XS),
    PLAIN(IQ2_S),
    PLAIN(IQ3_XXS),
    PLAIN(IQ3_S),
    PLAIN(IQ4_NL),
    PLAIN(IQ4_XS),
    PLAIN(GGUF_MXFP4),
    PLAIN(GGUF_NVFP4),
    SCALED(GGUF_NVFP4, F32, 0, 0),
    EXL3(2, 3INST),
    EXL3(4, MCG),
    EXL3(5, MUL1),
};
const uint32_t ks_count = sizeof(ks_all) / sizeof(ks_all[0]);

struct kern_store *ks_stores(const struct kern_model_desc *m, const struct kern_store *s, uint32_t *ret_used) {
    struct kern_store *stores = calloc(kern_part_count(m), sizeof(*stores));
    bool plain = s->format == KERN_F32 || s->format == KERN_F16;
    ck_assert_ptr_nonnull(stores);
    *ret_used = 0;
    for (uint32_t l = 0; l < kern_total_layers(m); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (!kern_part_info(m, part, l, &info) || !info.matrix)
                continue;
            bool chooses = part == KERN_ROUTER || part == KERN_HC_ATTN_FN || part == KERN_HC_FFN_FN;
            uint64_t bytes;
            bool fits = kern_store_bytes(s, info.rows, info.cols, &bytes) == 0 && (plain || !chooses) &&
                        !(part == KERN_EMBED && s->format == KERN_EXL3);
            for (uint32_t e = 0; e < info.experts; e++) {
                const struct kern_tensor_id id = {.part = part, .layer = l, .expert = e};
                stores[kern_part_slot(m, &id)] = fits ? *s : kern_store_plain(KERN_BF16);
                *ret_used += fits;
            }
        }
    return stores;
}

/* ---- numbers ---- */

static void put16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}
static void put32(uint8_t *p, float v) {
    memcpy(p, &v, 4);
}

/* The usual length of a number when codes are uniform. */
static float code_rms(uint32_t format) {
    switch (format) {
    case KERN_FP8:
    case KERN_MXFP8:
        return 123.0f;
    case KERN_INT8:
        return 74.0f;
    case KERN_INT4:
        return 4.6f;
    default:
        return 2.9f; /* E2M1 */
    }
}

static void put_scale(const struct kern_store *s, uint8_t *p, float v) {
    switch (s->scale) {
    case KERN_SCALE_F32:
        put32(p, v);
        break;
    case KERN_SCALE_BF16:
        put16(p, host_bf16(v));
        break;
    case KERN_SCALE_F16:
        put16(p, host_f16(v));
        break;
    case KERN_SCALE_E4M3:
        *p = host_e4m3(v);
        break;
    default:
        *p = (uint8_t)(127 + (int)lrintf(log2f(v)));
    }
}

static void random_numbers(const struct kern_store *s, uint64_t n, float dev, struct km_rng *rng, uint8_t *p) {
    for (uint64_t i = 0; i < n; i++) {
        float v = dev * km_normal(rng);
        if (s->format == KERN_F32)
            put32(p + 4 * i, v);
        else
            put16(p + 2 * i, s->format == KERN_F16 ? host_f16(v) : host_bf16(v));
    }
}

/* ---- GGUF blocks ---- */

/* Where a block keeps its F16 factor and the one of its minimum, 255: none. */
static void factors_at(uint32_t format, uint32_t *d, uint32_t *dmin) {
    *dmin = 255;
    switch (format) {
    case KERN_Q2_K:
        *d = 80, *dmin = 82;
        break;
    case KERN_Q3_K:
        *d = 108;
        break;
    case KERN_Q4_K:
    case KERN_Q5_K:
        *d = 0, *dmin = 2;
        break;
    case KERN_Q6_K:
        *d = 208;
        break;
    default:
        *d = 0; /* Q8_0 and all IQ but IQ1_M */
    }
}

static void set_factor(uint32_t format, uint8_t *b, float v, struct km_rng *rng) {
    uint32_t d, dmin;
    uint16_t h = host_f16(v);
    if (format == KERN_IQ1_M) { /* a nibble in each of four words */
        for (int i = 0; i < 4; i++)
            b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | ((h >> (4 * i)) & 15) << 4);
    } else if (format == KERN_GGUF_MXFP4) {
        b[0] = (uint8_t)(128 + (int)lrintf(log2f(v)));
    } else if (format == KERN_GGUF_NVFP4) {
        for (int i = 0; i < 4; i++)
            b[i] = (uint8_t)(host_e4m3(v * (0.5f + km_uniform(rng))) & 0x7f);
    } else {
        factors_at(format, &d, &dmin);
        put16(b + d, h);
        if (dmin != 255)
            put16(b + dmin, host_f16(v * (0.5f + km_uniform(rng))));
    }
}

static void random_blocks(uint32_t format, uint64_t n, uint32_t bytes, uint32_t weights, float dev,
                          struct km_rng *rng, uint8_t *p) {
    float w[256], first = format == KERN_GGUF_NVFP4 ? 1.0f : 0.5f;
    for (uint64_t i = 0; i < n; i++, p += bytes) {
        double sum = 0;
        set_factor(format, p, first, rng);
        host_unpack_block(format, p, w);
        for (uint32_t j = 0; j < weights; j++)
            sum += (double)w[j] * (double)w[j];
        float v = dev * first / sqrtf((float)(sum / weights) + 1e-12f);
        set_factor(format, p, format == KERN_GGUF_NVFP4 && v < 0.02f ? 0.02f : v, rng);
    }
}

void ks_random(const struct kern_store *s, uint64_t rows, uint64_t cols, float dev, struct km_rng *rng,
               uint8_t *piece[KERN_PIECES]) {
    uint64_t bytes[KERN_PIECES];
    uint32_t unit[KERN_PIECES], bw, bb;
    for (uint32_t i = 0; i < KERN_PIECES; i++) {
        struct kern_piece_info p;
        ck_assert_int_eq(kern_store_piece(s, rows, cols, (enum kern_piece)i, &p), 0);
        bytes[i] = p.rows * p.row_bytes;
        unit[i] = p.unit;
        piece[i] = bytes[i] ? malloc(bytes[i]) : NULL;
        ck_assert(!bytes[i] || piece[i]);
        for (uint64_t j = 0; j < bytes[i]; j++)
            piece[i][j] = (uint8_t)(km_u64(rng) >> 40);
    }
    if (s->format <= KERN_F16) {
        random_numbers(s, rows * cols, dev, rng, piece[0]);
        return;
    }
    if (s->format == KERN_EXL3) {
        for (int side = KERN_PIECE_SUH; side <= KERN_PIECE_SVH; side++)
            for (uint64_t i = 0; i < bytes[side] / 2; i++) {
                float v = (side == KERN_PIECE_SVH ? dev : 0.8f) * (0.5f + km_uniform(rng));
                put16(piece[side] + 2 * i, host_f16(km_below(rng, 2) ? v : -v));
            }
        return;
    }
    if (s->format >= KERN_Q8_0) {
        ck_assert_int_eq(kern_store_block(s, &bw, &bb), 0);
        random_blocks(s->format, bytes[0] / bb, bb, bw, s->scale ? 1 : dev, rng, piece[0]);
        if (piece[KERN_PIECE_GLOBAL])
            put32(piece[KERN_PIECE_GLOBAL], dev * 0.7f);
        return;
    }
    for (uint64_t j = 0; j < bytes[0]; j++) /* E4M3 has two codes that are no numbers */
        if ((s->format == KERN_FP8 || s->format == KERN_MXFP8) && (piece[0][j] & 0x7f) == 0x7f)
            piece[0][j] = 0x31;
    bool global = s->format == KERN_NVFP4;
    for (uint64_t i = 0; i < bytes[1] / unit[1]; i++)
        put_scale(s, piece[1] + i * unit[1], (global ? 1.0f : dev / code_rms(s->format)) * (0.5f + km_uniform(rng)));
    if (global)
        put32(piece[KERN_PIECE_GLOBAL], dev / code_rms(s->format));
}

float *ks_numbers(const struct kern_store *s, uint64_t rows, uint64_t cols, uint8_t *const piece[KERN_PIECES]) {
    const void *from[KERN_PIECES];
    float *w = malloc(rows * cols * sizeof(float));
    ck_assert_ptr_nonnull(w);
    for (uint32_t i = 0; i < KERN_PIECES; i++)
        from[i] = piece[i];
    host_unpack_rows(s, rows, cols, from, 0, rows, w);
    uint64_t bad = 0; /* each assertion is a system call */
    for (uint64_t i = 0; i < rows * cols; i++)
        bad += !isfinite(w[i]);
    ck_assert_uint_eq(bad, 0);
    return w;
}
