/* SPDX-License-Identifier: MIT */
/* The check vectors of every weight format: what published decoders make of given bytes, as checksums and
 * numbers. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "crc32test.h"
#include "host_lattice.h"
#include "host_unpack.h"

/* ---- EXL3 ---- */

static const uint16_t STATES[] = {0, 1, 2, 0x1234, 0x7fff, 0x8000, 0xabcd, 0xffff};
static const struct {
    uint32_t codebook, crc;
    uint16_t value[8];
} CODEBOOKS[] = {
    {KERN_CODEBOOK_3INST, 0x4c83d524, {0x3a25, 0xbb5b, 0x3b74, 0xc066, 0xba96, 0xb7f8, 0xb98e, 0xb110}},
    {KERN_CODEBOOK_MCG, 0xd2d13c52, {0x3f60, 0x304e, 0xba13, 0x3e0f, 0x4172, 0xb915, 0x35e7, 0x3acd}},
    {KERN_CODEBOOK_MUL1, 0x2bdf05c5, {0xc2e8, 0x3921, 0xb72d, 0xb89e, 0x3fca, 0xbaf2, 0xbd42, 0xb936}},
};

START_TEST(exl3_codebooks) {
    static uint8_t all[65536 * 2];
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_uint_eq(host_exl3_value(CODEBOOKS[_i].codebook, STATES[i]), CODEBOOKS[_i].value[i]);
    for (uint32_t s = 0; s < 65536; s++) {
        uint16_t v = host_exl3_value(CODEBOOKS[_i].codebook, (uint16_t)s);
        all[2 * s] = (uint8_t)v;
        all[2 * s + 1] = (uint8_t)(v >> 8);
    }
    ck_assert_uint_eq(crc32_of(all, sizeof(all)), CODEBOOKS[_i].crc);
}
END_TEST

static const struct {
    uint32_t bits, mcg, mul1;
    uint16_t state[9];
} TILES[] = {
    {2, 0x5fe79a38, 0x456a9cd9, {0x6e42, 0xb909, 0xe427, 0x909e, 0x9e37, 0x78dd, 0xf372, 0xcdcb, 0x9b90}},
    {3, 0x0e26ebc2, 0x7c8a6cbb, {0x4ac4, 0x5627, 0xb13c, 0x89e3, 0x3779, 0xbbcd, 0x6d2b, 0x695b, 0x6958}},
    {4, 0x23e0220a, 0xb1712676, {0x7209, 0x209e, 0x09e3, 0x9e37, 0x79b9, 0x9b93, 0xe6e4, 0x6e41, 0x3720}},
    {5, 0x708fd12e, 0x952a7392, {0x9d13, 0xa278, 0x4f1b, 0xe377, 0xb93c, 0x278d, 0x609d, 0x13b6, 0x04e8}},
};

static uint32_t tile_crc(uint32_t codebook, uint32_t bits, const uint8_t *words, uint16_t tile[256]) {
    uint8_t bytes[512];
    host_exl3_tile(codebook, bits, words, tile);
    for (uint32_t i = 0; i < 256; i++) {
        bytes[2 * i] = (uint8_t)tile[i];
        bytes[2 * i + 1] = (uint8_t)(tile[i] >> 8);
    }
    return crc32_of(bytes, sizeof(bytes));
}

START_TEST(exl3_tiles) {
    static const uint32_t at[9] = {0, 1, 2, 3, 7, 8, 31, 32, 255};
    uint32_t bits = TILES[_i].bits;
    uint8_t words[32 * 8];
    uint16_t tile[256];
    for (uint32_t i = 0; i < 8 * bits; i++) {
        uint32_t w = 0x9E3779B9u * (i + 1);
        for (uint32_t b = 0; b < 4; b++)
            words[4 * i + b] = (uint8_t)(w >> (8 * b));
    }
    for (uint32_t i = 0; i < 9; i++)
        ck_assert_uint_eq(host_exl3_state(words, bits, at[i]), TILES[_i].state[i]);
    ck_assert_uint_eq(tile_crc(KERN_CODEBOOK_MUL1, bits, words, tile), TILES[_i].mul1);
    ck_assert_uint_eq(tile_crc(KERN_CODEBOOK_MCG, bits, words, tile), TILES[_i].mcg);
    if (bits == 4) {
        const uint16_t corner[] = {0xb73e, 0xbce9, 0xb790, 0xac90};
        for (uint32_t i = 0; i < 4; i++)
            ck_assert_uint_eq(tile[i], corner[i]);
        ck_assert_uint_eq(tile[16], 0x4009);
        ck_assert_uint_eq(tile[8 * 16], 0xc293);
        ck_assert_uint_eq(tile[8], 0x2b30);
        ck_assert_uint_eq(tile[255], 0x394f);
    }
}
END_TEST

/* Rows of a whole matrix against y = diag(svh) H (T^T (H diag(suh) x)) as it is written, with a unit vector
 * for x. */
START_TEST(exl3_rows) {
    enum { N = 256, K = 128, BITS = 3 };
    static uint8_t trellis[K / 16 * (N / 16) * 32 * BITS], suh[2 * K], svh[2 * N];
    static float w[N * K];
    static double x[K], y[N];
    const void *piece[KERN_PIECES] = {
        [KERN_PIECE_CODES] = trellis, [KERN_PIECE_SUH] = suh, [KERN_PIECE_SVH] = svh};
    const struct kern_store s = {.format = KERN_EXL3, .bits = BITS, .codebook = KERN_CODEBOOK_MCG};
    for (uint32_t i = 0; i < sizeof(trellis); i++)
        trellis[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint32_t i = 0; i < K + N; i++) {
        uint8_t *to = i < K ? suh + 2 * i : svh + 2 * (i - K);
        uint16_t v = host_f16((i % 3 ? 1.0f : -1.0f) * (0.01f + (float)(i % 7) / 64));
        to[0] = (uint8_t)v;
        to[1] = (uint8_t)(v >> 8);
    }
    host_unpack_rows(&s, N, K, piece, 0, N, w);
    for (uint32_t k = 0; k < K; k += 37) {
        for (uint32_t i = 0; i < K; i++) /* H diag(suh) e_k */
            x[i] =
                (double)host_f16_f32(host_le16(suh + 2 * k)) * (__builtin_parity(i & k) ? -1 : 1) / sqrt(128);
        memset(y, 0, sizeof(y));
        for (uint32_t kt = 0; kt < K / 16; kt++)
            for (uint32_t nt = 0; nt < N / 16; nt++)
                for (uint32_t t = 0; t < 256; t++) {
                    uint16_t st = host_exl3_state(trellis + (kt * (N / 16) + nt) * 32 * BITS, BITS, t);
                    y[16 * nt + host_exl3_col(t)] +=
                        x[16 * kt + host_exl3_row(t)] * (double)host_f16_f32(host_exl3_value(s.codebook, st));
                }
        for (uint32_t n = 0; n < N; n++) {
            double sum = 0;
            for (uint32_t j = 0; j < 128; j++)
                sum += (__builtin_parity(n % 128 & j) ? -1 : 1) * y[n / 128 * 128 + j] / sqrt(128);
            sum *= (double)host_f16_f32(host_le16(svh + 2 * n));
            ck_assert_double_eq_tol((double)w[n * K + k], sum, 1e-7 * fabs(sum) + 1e-12);
        }
    }
    /* a part is what the whole has there */
    static float part[128 * K];
    host_unpack_rows(&s, N, K, piece, 128, 128, part);
    ck_assert(memcmp(part, w + 128 * K, sizeof(part)) == 0);
}
END_TEST

/* ---- lattices ---- */

static uint32_t lattice_crc(const uint16_t *point, uint32_t n, const void *level, uint32_t step_bits) {
    static uint8_t bytes[2048 * 8];
    uint32_t each = 16 / step_bits;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t e = 0; e < each; e++)
            bytes[i * each + e] =
                ((const uint8_t *)level)[point[i] >> (step_bits * e) & ((1u << step_bits) - 1)];
    return crc32_of(bytes, n * each);
}

START_TEST(lattices) {
    uint8_t signs[128];
    ck_assert_uint_eq(lattice_crc(host_iq2xxs, 256, host_iq2_level, 2), 0x9924ff02);
    ck_assert_uint_eq(lattice_crc(host_iq2xs, 512, host_iq2_level, 2), 0xfa1e1bfd);
    ck_assert_uint_eq(lattice_crc(host_iq2s, 1024, host_iq2_level, 2), 0x25ae5bf1);
    ck_assert_uint_eq(lattice_crc(host_iq3xxs, 256, host_iq3xxs_level, 4), 0x07ba9ed0);
    ck_assert_uint_eq(lattice_crc(host_iq3s, 512, host_iq3s_level, 4), 0xf576e4f3);
    ck_assert_uint_eq(lattice_crc(host_iq1s, 2048, host_iq1_level, 2), 0xb85e6ccf);
    for (uint32_t i = 0; i < 128; i++)
        signs[i] = host_iq_signs(i);
    ck_assert_uint_eq(crc32_of(signs, sizeof(signs)), 0xffab7940);
}
END_TEST

/* ---- GGUF blocks ---- */

static const struct {
    uint32_t format, crc;
    int d, dmin; /* where the two factors are, -1: nowhere */
    float first[4], last;
} BLOCKS[] = {
    {KERN_Q8_0, 0x331dae17, 0, -1, {21.25f, 30.5f, -24.25f, -15}, -12},
    {KERN_Q2_K, 0xa5817826, 80, 82, {8.25f, 0, 2.75f, 5.5f}, 1.125f},
    {KERN_Q3_K, 0x09680a6f, 108, -1, {20.25f, -27, 6.75f, -13.5f}, 10.5f},
    {KERN_Q4_K, 0x4a0ff77d, 0, 2, {78.875f, -6.375f, 32.375f, 71.125f}, 12.125f},
    {KERN_Q5_K, 0x885bbff6, 0, 2, {202.875f, -6.375f, 156.375f, 71.125f}, 27.125f},
    {KERN_Q6_K, 0xa4c1436a, 208, -1, {-357.75f, 424, 145.75f, -132.5f}, -15},
    {KERN_IQ2_XXS, 0x53f990b1, 0, -1, {-14.78125f, 14.78125f, 8.59375f, -8.59375f}, -20.15625f},
    {KERN_IQ2_XS, 0x0c73f81b, 0, -1, {-2.75f, 8.59375f, -2.75f, -14.78125f}, -4.75f},
    {KERN_IQ2_S, 0x7a93bb00, 0, -1, {-36.28125f, 21.09375f, -6.75f, 6.75f}, 19.53125f},
    {KERN_IQ3_XXS, 0xbdaca764, 0, -1, {-3.25f, 2.25f, -1.75f, 0.75f}, -3.75f},
    {KERN_IQ3_S, 0x1b552a97, 0, -1, {-20.25f, 60.75f, -87.75f, -47.25f}, 56.25f},
    {KERN_IQ1_S, 0xa6497da8, 0, -1, {-0.65625f, 0.09375f, 0.84375f, 0.84375f}, -1.09375f},
    {KERN_IQ1_M, 0x748950c2, -1, -1, {52920, -370440, 52920, 52920}, 113400},
    {KERN_IQ4_NL, 0xa700b6cc, 0, -1, {-8.75f, 6.25f, 28.25f, -12.25f}, 0.25f},
    {KERN_IQ4_XS, 0xd58f833b, 0, -1, {16.25f, -0.25f, -17.25f, 20.75f}, -4},
    {KERN_GGUF_MXFP4, 0x22b4b7ca, -1, -1, {0, 0.75f, -0.25f, -1.5f}, 0.75f},
    {KERN_GGUF_NVFP4, 0x62b4fe4a, -1, -1, {-6, 2, -0.5f, -4}, 224},
};
enum { N_BLOCKS = sizeof(BLOCKS) / sizeof(BLOCKS[0]) };

static void block_bytes(uint32_t i, uint8_t *p, uint32_t bytes) {
    for (uint32_t b = 0; b < bytes; b++)
        p[b] = (uint8_t)(37 * b + 11);
    if (BLOCKS[i].d >= 0) {
        p[BLOCKS[i].d] = 0;
        p[BLOCKS[i].d + 1] = 0x34;
    }
    if (BLOCKS[i].dmin >= 0) {
        p[BLOCKS[i].dmin] = 0;
        p[BLOCKS[i].dmin + 1] = 0x30;
    }
    if (BLOCKS[i].format == KERN_GGUF_MXFP4)
        p[0] = 0x7d;
    if (BLOCKS[i].format == KERN_GGUF_NVFP4)
        memcpy(p, (const uint8_t[]){0x38, 0x01, 0x40, 0x7e}, 4);
}

START_TEST(gguf_blocks) {
    const struct kern_store s = kern_store_plain(BLOCKS[_i].format);
    uint32_t weights, bytes;
    uint8_t p[256];
    float v[256];
    ck_assert_int_eq(kern_store_block(&s, &weights, &bytes), 0);
    block_bytes((uint32_t)_i, p, bytes);
    host_unpack_block(s.format, p, v);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_msg(v[i] == BLOCKS[_i].first[i], "weight %u: %g", i, (double)v[i]);
    ck_assert_msg(v[weights - 1] == BLOCKS[_i].last, "last weight: %g", (double)v[weights - 1]);
    ck_assert_uint_eq(crc32_of(v, weights * sizeof(v[0])), BLOCKS[_i].crc);
    /* and as rows of a matrix: the third of three, of two blocks, beside bytes that are not its own */
    static uint8_t m[3 * 2 * 256];
    const void *piece[KERN_PIECES] = {[KERN_PIECE_CODES] = m};
    float row[512];
    memset(m, 0x5a, sizeof(m));
    memcpy(m + 4 * bytes, p, bytes);
    memcpy(m + 5 * bytes, p, bytes);
    host_unpack_rows(&s, 3, 2 * weights, piece, 2, 1, row);
    ck_assert(memcmp(row, v, weights * sizeof(v[0])) == 0 &&
              memcmp(row + weights, v, weights * sizeof(v[0])) == 0);
}
END_TEST

/* The limits of the two block-scaled ones: what the file's own scale cannot be elsewhere. */
START_TEST(gguf_scales_at_their_ends) {
    uint8_t p[36] = {0};
    float v[64];
    p[1] = 0x71; /* 0.5 and 6 */
    for (uint32_t e = 0; e < 256; e++) {
        p[0] = (uint8_t)e;
        host_unpack_block(KERN_GGUF_MXFP4, p, v);
        ck_assert_msg(v[0] == ldexpf(1, (int)e - 128) && v[16] == ldexpf(12, (int)e - 128), "e %u: %g %g", e,
                      (double)v[0], (double)v[16]);
    }
    memset(p, 0x22, sizeof(p));
    for (uint32_t d = 0; d < 256; d++) {
        p[0] = (uint8_t)d;
        host_unpack_block(KERN_GGUF_NVFP4, p, v);
        float want = d == 0 || d == 0x7f ? 0
                     : (d & 0x78)        ? ldexpf(1 + (float)(d & 7) / 8, (int)(d >> 3 & 15) - 7)
                                         : ldexpf((float)(d & 7), -9);
        ck_assert_msg(v[0] == want, "d %u: %g, expected %g", d, (double)v[0], (double)want);
    }
}
END_TEST

/* ---- safetensors formats ---- */

static void rows_of(struct kern_store s, uint64_t rows, uint64_t cols, const void *codes, const void *scale,
                    const void *global, float *out) {
    const void *piece[KERN_PIECES] = {
        [KERN_PIECE_CODES] = codes, [KERN_PIECE_SCALE] = scale, [KERN_PIECE_GLOBAL] = global};
    struct kern_piece_info info;
    ck_assert_int_eq(kern_store_piece(&s, rows, cols, KERN_PIECE_CODES, &info), 0);
    host_unpack_rows(&s, rows, cols, piece, 0, rows, out);
}

START_TEST(nvfp4) {
    static const uint8_t codes[] = {0x0b, 0x30, 0x55, 0x7a, 0x9f, 0xc4, 0xe9, 0x0e};
    static const float want[] = {-1.5f, 0, 0, 1.5f, 3, 3, -1, 6, -6, -0.5f, 2, -2, -0.5f, -4, -4, 0};
    const uint8_t one = 0x38, scale = 0x41;
    const float unit = 1, small = 0x1p-12f, odd = 1.0f / 3;
    float v[16];
    struct kern_store s = kern_store_plain(KERN_NVFP4);
    rows_of(s, 1, 16, codes, &one, &unit, v);
    for (uint32_t i = 0; i < 16; i++)
        ck_assert(v[i] == want[i]);
    rows_of(s, 1, 16, codes, &scale, &small, v);
    ck_assert(v[0] == -0.000823974609375f);
    /* the factors are multiplied first: the order shows in the last bit */
    rows_of(s, 1, 16, codes, &scale, &odd, v);
    ck_assert(v[0] == -1.5f * (2.25f * odd) && v[7] == 6 * (2.25f * odd));
}
END_TEST

START_TEST(e4m3) {
    const uint8_t code[] = {0x01, 0x08, 0x38, 0x40, 0x7e, 0xb8, 0x7f, 0xff};
    const float want[] = {0x1p-9f, 0x1p-6f, 1, 2, 448, -1, NAN, NAN}, one = 1;
    struct kern_store s = {.format = KERN_FP8, .scale = KERN_SCALE_F32};
    float v[8];
    rows_of(s, 1, 8, code, &one, NULL, v);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert(v[i] == want[i] || (isnan(v[i]) && isnan(want[i])));
}
END_TEST

/* Which scale serves which weight, edges of partial blocks included, in each spelling of FP8. */
START_TEST(fp8_grids) {
    enum { N = 131, K = 259 };
    static uint8_t codes[N * K];
    static float scale[N * K], v[N * K];
    static const struct { uint16_t rows, cols; } grid[] = {{128, 128}, {1, 0}, {0, 0}, {0, 128}, {64, 32}};
    uint32_t br = grid[_i].rows ? grid[_i].rows : N, bc = grid[_i].cols ? grid[_i].cols : K;
    uint32_t across = (K + bc - 1) / bc;
    struct kern_store s = {.format = KERN_FP8,
                           .scale = KERN_SCALE_F32,
                           .block_rows = grid[_i].rows,
                           .block_cols = grid[_i].cols};
    memset(codes, 0x38, sizeof(codes));
    for (uint32_t i = 0; i < N * K; i++)
        scale[i] = (float)(i + 1);
    rows_of(s, N, K, codes, scale, NULL, v);
    for (uint32_t n = 0; n < N; n++)
        for (uint32_t k = 0; k < K; k++)
            ck_assert(v[n * K + k] == (float)(n / br * across + k / bc + 1));
}
END_TEST

START_TEST(scales_of_each_kind) {
    const uint8_t code[] = {0x38, 0xb8};
    const struct {
        uint8_t kind;
        uint8_t bytes[4];
        float want;
    } c[] = {{KERN_SCALE_F32, {0, 0, 0x40, 0x40}, 3},
             {KERN_SCALE_BF16, {0x40, 0x40}, 3},
             {KERN_SCALE_F16, {0, 0x42}, 3},
             {KERN_SCALE_F16, {1, 0}, 0x1p-24f}};
    float v[2];
    for (uint32_t i = 0; i < 4; i++) {
        struct kern_store s = {.format = KERN_FP8, .scale = c[i].kind};
        rows_of(s, 1, 2, code, c[i].bytes, NULL, v);
        ck_assert(v[0] == c[i].want && v[1] == -c[i].want);
    }
}
END_TEST

START_TEST(mx) {
    enum { N = 2, K = 64 };
    uint8_t codes[N * K], scale[N * K / 32] = {127, 128, 0, 255};
    float v[N * K];
    memset(codes, 0x40, sizeof(codes)); /* MXFP8: 2; MXFP4: 0 and 2 */
    rows_of(kern_store_plain(KERN_MXFP8), N, K, codes, scale, NULL, v);
    ck_assert(v[0] == 2 && v[31] == 2 && v[32] == 4 && v[64] == 0x1p-126f && isnan(v[96]));
    rows_of(kern_store_plain(KERN_MXFP4), N, K, codes, scale, NULL, v);
    ck_assert(v[0] == 0 && v[1] == 2 && v[33] == 4 && v[65] == 0x1p-126f && isnan(v[127]));
}
END_TEST

START_TEST(integers) {
    enum { N = 2, K = 6 };
    const uint8_t eight[N * K] = {0, 1, 127, 128, 129, 255, 128, 130, 128, 128, 128, 126};
    const uint8_t four[N * K / 2] = {0x10, 0x87, 0xf9, 0x98, 0x08, 0x80};
    const uint16_t scale[N * 2] = {0x3f80, 0x4000, 0x4040, 0x4080}; /* 1 2 3 4, groups of 4 */
    struct kern_store s = {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 4};
    const float want8[] = {-128, -127, -1, 0, 2, 254, 0, 6, 0, 0, 0, -8};
    const float want4[] = {-8, -7, -1, 0, 2, 14, 0, 3, 0, -24, -32, 0};
    float v[N * K];
    rows_of(s, N, K, eight, scale, NULL, v);
    for (uint32_t i = 0; i < N * K; i++)
        ck_assert_msg(v[i] == want8[i], "%u: %g", i, (double)v[i]);
    s.format = KERN_INT4;
    rows_of(s, N, K, four, scale, NULL, v);
    for (uint32_t i = 0; i < N * K; i++)
        ck_assert_msg(v[i] == want4[i], "%u: %g", i, (double)v[i]);
}
END_TEST

/* F16 both ways: all 65,536, the middles between neighbours and the numbers beside them, and the ends. */
START_TEST(half_precision) {
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t e = h >> 10 & 31, m = h & 1023, mag = h & 0x7fff, even = mag & 1 ? mag + 1 : mag;
        float v = host_f16_f32((uint16_t)h),
              want = e ? ldexpf(1 + (float)m / 1024, (int)e - 15) : ldexpf((float)m, -24);
        if (e == 31)
            want = m ? NAN : INFINITY;
        want = h & 0x8000 ? -want : want;
        bool good = isnan(want) ? isnan(v) && (host_f16(v) & 0x7fff) > 0x7c00
                                : memcmp(&v, &want, 4) == 0 && host_f16(v) == h;
        if (e != 31) {
            float next = fabsf(host_f16_f32((uint16_t)(h + 1)));
            float middle = mag == 0x7bff ? 65520 : (fabsf(v) + next) / 2;
            good = good && host_f16(middle) == even && host_f16(nextafterf(middle, 0)) == mag &&
                   host_f16(nextafterf(middle, INFINITY)) == mag + 1 && host_f16(-middle) == (0x8000 | even);
        }
        if (!good)
            ck_abort_msg("0x%04x is %g", h, (double)v);
    }
    ck_assert_uint_eq(host_f16(1e30f), 0x7c00);
    ck_assert_uint_eq(host_f16(-1e-30f), 0x8000);
}
END_TEST

int main(void) {
    Suite *s = suite_create("format_vectors");
    TCase *t = tcase_create("vectors");
    tcase_add_loop_test(t, exl3_codebooks, 0, 3);
    tcase_add_loop_test(t, exl3_tiles, 0, 4);
    tcase_add_test(t, exl3_rows);
    tcase_add_test(t, lattices);
    tcase_add_loop_test(t, gguf_blocks, 0, N_BLOCKS);
    tcase_add_test(t, gguf_scales_at_their_ends);
    tcase_add_test(t, nvfp4);
    tcase_add_test(t, e4m3);
    tcase_add_loop_test(t, fp8_grids, 0, 5);
    tcase_add_test(t, scales_of_each_kind);
    tcase_add_test(t, mx);
    tcase_add_test(t, integers);
    tcase_add_test(t, half_precision);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
