/* SPDX-License-Identifier: MIT */
/* Into every format and back: how far Gaussian weights move, zeros, the ends of the range, numbers that are
 * none, shapes that are no multiple of a block, and matrices that come in parts. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host_quant.h"
#include "kernmodel.h"

struct form {
    struct kern_store s;
    double low, high; /* relative error of Gaussian weights: what was measured is between */
};

#define PLAIN(f, lo, hi)                                                                                     \
    { {.format = f}, lo, hi }
#define FP8(kind, br, bc, lo, hi)                                                                            \
    { {.format = KERN_FP8, .scale = kind, .block_rows = br, .block_cols = bc}, lo, hi }
#define INTS(f, bc, lo, hi)                                                                                  \
    { {.format = f, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = bc}, lo, hi }
#define EXL3(b, book, lo, hi)                                                                                \
    { {.format = KERN_EXL3, .bits = b, .codebook = book}, lo, hi }

static const struct form FORMS[] = {
    PLAIN(KERN_F32, 0, 0),
    PLAIN(KERN_F16, 1e-4, 3e-4),
    PLAIN(KERN_BF16, 1e-3, 2e-3),
    FP8(KERN_SCALE_F32, 128, 128, 0.024, 0.028),
    FP8(KERN_SCALE_BF16, 1, 0, 0.024, 0.028),
    FP8(KERN_SCALE_F16, 0, 0, 0.024, 0.028),
    FP8(KERN_SCALE_F32, 0, 128, 0.024, 0.028),
    PLAIN(KERN_NVFP4, 0.08, 0.1),
    PLAIN(KERN_MXFP8, 0.024, 0.028),
    PLAIN(KERN_MXFP4, 0.1, 0.14),
    INTS(KERN_INT8, 128, 0.0055, 0.0075),
    INTS(KERN_INT4, 128, 0.1, 0.118),
    INTS(KERN_INT8, 0, 0.006, 0.0095),
    PLAIN(KERN_Q8_0, 0.004, 0.0065),
    PLAIN(KERN_Q6_K, 0.01, 0.02),
    PLAIN(KERN_Q5_K, 0.02, 0.04),
    PLAIN(KERN_Q4_K, 0.05, 0.08),
    PLAIN(KERN_Q3_K, 0.1, 0.15),
    PLAIN(KERN_Q2_K, 0.2, 0.3),
    PLAIN(KERN_IQ4_NL, 0.06, 0.09),
    PLAIN(KERN_IQ4_XS, 0.06, 0.09),
    PLAIN(KERN_IQ3_S, 0.1, 0.17),
    PLAIN(KERN_IQ3_XXS, 0.15, 0.22),
    PLAIN(KERN_IQ2_S, 0.2, 0.33),
    PLAIN(KERN_IQ2_XS, 0.2, 0.36),
    PLAIN(KERN_IQ2_XXS, 0.3, 0.4),
    PLAIN(KERN_IQ1_M, 0.3, 0.55),
    PLAIN(KERN_IQ1_S, 0.3, 0.55),
    PLAIN(KERN_GGUF_MXFP4, 0.1, 0.14),
    {{.format = KERN_GGUF_NVFP4, .scale = KERN_SCALE_F32}, 0.08, 0.1},
    EXL3(2, KERN_CODEBOOK_MCG, 0.24, 0.33),
    EXL3(4, KERN_CODEBOOK_MCG, 0.06, 0.1),
    EXL3(4, KERN_CODEBOOK_MUL1, 0.06, 0.1),
    EXL3(6, KERN_CODEBOOK_MCG, 0.039, 0.0407), /* what the whole search of these widths gives, */
    EXL3(8, KERN_CODEBOOK_MCG, 0.0205, 0.0214), /* of which most is skipped */
    EXL3(3, KERN_CODEBOOK_3INST, 0.12, 0.19),
};
enum { N_FORMS = sizeof(FORMS) / sizeof(FORMS[0]) };

static struct kern_store store_of(int i) {
    struct kern_store s = FORMS[i].s;
    if (s.format == KERN_NVFP4 || s.format == KERN_MXFP8 || s.format == KERN_MXFP4)
        return kern_store_plain(s.format);
    return s;
}

/* Few rows where the search takes long. */
static uint64_t rows_of(const struct kern_store *s) {
    return s->format == KERN_EXL3 || s->format == KERN_FP8 ? 128 : 16;
}

struct pieces {
    void *p[KERN_PIECES];
};

static struct pieces pieces_of(const struct kern_store *s, uint64_t rows, uint64_t cols) {
    struct pieces q = {{0}};
    struct kern_piece_info info;
    for (int i = 0; i < KERN_PIECES; i++) {
        ck_assert_int_eq(kern_store_piece(s, rows, cols, (enum kern_piece)i, &info), 0);
        if (!info.rows)
            continue;
        q.p[i] = malloc(info.rows * info.row_bytes);
        memset(q.p[i], 0xa5, info.rows * info.row_bytes);
    }
    return q;
}

static void pieces_done(struct pieces *q) {
    for (int i = 0; i < KERN_PIECES; i++)
        free(q->p[i]);
}

static void unpack(const struct kern_store *s, uint64_t rows, uint64_t cols, const struct pieces *q,
                   float *out) {
    const void *piece[KERN_PIECES];
    for (int i = 0; i < KERN_PIECES; i++)
        piece[i] = q->p[i];
    host_unpack_rows(s, rows, cols, piece, 0, rows, out);
}

static int into(const struct kern_store *s, uint64_t rows, uint64_t cols, const float *w, struct pieces *q) {
    void *scratch = calloc(1, HOST_QUANT_SCRATCH);
    float amax = 0;
    int r = host_quant_scan(w, rows * cols, &amax);
    if (r == 0)
        r = host_quant_rows(s, rows, cols, w, 0, rows, amax, q->p, scratch);
    free(scratch);
    return r;
}

static float *gauss(uint64_t n, float size, uint64_t seed) {
    struct km_rng r = {seed};
    float *w = malloc(n * sizeof(*w));
    for (uint64_t i = 0; i < n; i++)
        w[i] = size * km_normal(&r);
    return w;
}

static double distance(const float *a, const float *b, uint64_t n) {
    double d = 0, s = 0;
    for (uint64_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return sqrt(d / s);
}

/* Sizes from tiny to huge give the same relative error: nothing depends on weights being about 0.02. */
START_TEST(gaussian) {
    const struct kern_store s = store_of(_i);
    uint64_t rows = rows_of(&s), cols = s.format == KERN_EXL3 ? 128 : 512;
    static const float size[] = {0.02f, 30};
    char name[64];
    for (uint32_t i = 0; i < (s.format == KERN_EXL3 ? 1 : 2); i++) {
        struct pieces q = pieces_of(&s, rows, cols);
        float *w = gauss(rows * cols, size[i], 7), *back = malloc(rows * cols * sizeof(*back));
        ck_assert_int_eq(into(&s, rows, cols, w, &q), 0);
        unpack(&s, rows, cols, &q, back);
        double e = distance(back, w, rows * cols);
        if (getenv("GLMD_SHOW"))
            printf("%-28s %g: %.5f\n", kern_store_name(&s, name, sizeof(name)), (double)size[i], e);
        ck_assert_msg(e >= FORMS[_i].low && e <= FORMS[_i].high,
                      "%s: relative error %.5f, expected %.4f to %.4f",
                      kern_store_name(&s, name, sizeof(name)), e, FORMS[_i].low, FORMS[_i].high);
        free(w);
        free(back);
        pieces_done(&q);
    }
}
END_TEST

/* Nothing but zeros stays so, also beside a block that is not; every scale is one a reader takes. */
START_TEST(zeros) {
    const struct kern_store s = store_of(_i);
    uint64_t rows = rows_of(&s), cols = s.format == KERN_EXL3 ? 128 : 256;
    struct pieces q = pieces_of(&s, rows, cols);
    float *w = calloc(rows * cols, sizeof(*w)), *back = malloc(rows * cols * sizeof(*back));
    ck_assert_int_eq(into(&s, rows, cols, w, &q), 0);
    unpack(&s, rows, cols, &q, back);
    for (uint64_t i = 0; i < rows * cols; i++)
        if (back[i] != 0)
            ck_abort_msg("weight %llu of a matrix of zeros: %g", (unsigned long long)i, (double)back[i]);
    if (q.p[KERN_PIECE_GLOBAL])
        ck_assert_float_eq(host_bits_f32(host_le32(q.p[KERN_PIECE_GLOBAL])), 1);
    free(w);
    free(back);
    pieces_done(&q);
}
END_TEST

static void poison(struct kern_store s, float v, int want) {
    uint64_t rows = rows_of(&s), cols = s.format == KERN_EXL3 ? 128 : 256;
    struct pieces q = pieces_of(&s, rows, cols);
    float *w = gauss(rows * cols, 0.02f, 3);
    char name[64];
    w[rows * cols - 77] = v;
    int r = into(&s, rows, cols, w, &q);
    ck_assert_msg(r == want, "%s with %g: %d", kern_store_name(&s, name, sizeof(name)), (double)v, r);
    free(w);
    pieces_done(&q);
}

START_TEST(not_finite) {
    poison(store_of(_i), NAN, -EDOM);
    poison(store_of(_i), INFINITY, -EDOM);
    poison(store_of(_i), -INFINITY, -EDOM);
}
END_TEST

/* The largest number of F32: kept where scales reach that far, refused where they do not, never infinite. */
START_TEST(huge) {
    const struct kern_store s = store_of(_i);
    bool f16 = s.scale == KERN_SCALE_F16 || s.format == KERN_F16 || s.format == KERN_EXL3 ||
               (s.format >= KERN_Q8_0 && s.format != KERN_GGUF_MXFP4 && s.format != KERN_GGUF_NVFP4);
    uint64_t rows = rows_of(&s), cols = s.format == KERN_EXL3 ? 128 : 256;
    struct pieces q = pieces_of(&s, rows, cols);
    float *w = gauss(rows * cols, 1e37f, 5), *back = malloc(rows * cols * sizeof(*back));
    if (f16) {
        ck_assert_int_eq(into(&s, rows, cols, w, &q), -ERANGE);
    } else {
        ck_assert_int_eq(into(&s, rows, cols, w, &q), 0);
        unpack(&s, rows, cols, &q, back);
        double e = distance(back, w, rows * cols);
        ck_assert_msg(e <= FORMS[_i].high * 1.02, "%.5f", e);
    }
    if (s.format == KERN_BF16)
        poison(s, FLT_MAX, -ERANGE);
    free(w);
    free(back);
    pieces_done(&q);
}
END_TEST

/* Denormal numbers: nothing is larger afterwards than before, and nothing is undefined. */
START_TEST(denormal) {
    const struct kern_store s = store_of(_i);
    uint64_t rows = rows_of(&s), cols = s.format == KERN_EXL3 ? 128 : 256;
    struct pieces q = pieces_of(&s, rows, cols);
    float *w = gauss(rows * cols, 1e-41f, 5), *back = malloc(rows * cols * sizeof(*back)), top = 0;
    ck_assert_int_eq(into(&s, rows, cols, w, &q), 0);
    unpack(&s, rows, cols, &q, back);
    for (uint64_t i = 0; i < rows * cols; i++)
        top = fmaxf(top, fabsf(w[i]));
    for (uint64_t i = 0; i < rows * cols; i++)
        if (!(fabsf(back[i]) <= 1.2f * top + 0x1p-126f))
            ck_abort_msg("%g became %g", (double)w[i], (double)back[i]);
    free(w);
    free(back);
    pieces_done(&q);
}
END_TEST

/* A matrix that comes in parts is the matrix that comes whole, byte for byte; its last block may be partial.
 */
START_TEST(in_parts) {
    const struct kern_store s = store_of(_i);
    uint32_t weights = 128, bytes;
    if (s.format != KERN_EXL3)
        ck_assert_int_eq(kern_store_block(&s, &weights, &bytes), 0);
    bool any = s.format == KERN_FP8 || s.format <= KERN_F16 || s.format == KERN_INT8;
    uint64_t rows = s.format == KERN_EXL3 ? 256
                    : any                 ? 259
                                          : 5,
             cols = any                     ? 259
                    : s.format == KERN_EXL3 ? 128
                                            : 256;
    uint64_t unit = host_quant_unit(&s, rows);
    struct pieces a = pieces_of(&s, rows, cols), b = pieces_of(&s, rows, cols);
    void *scratch = calloc(1, HOST_QUANT_SCRATCH);
    float *w = gauss(rows * cols, 0.5f, 11), amax = 0;
    struct kern_piece_info info;
    ck_assert_int_eq(host_quant_scan(w, rows * cols, &amax), 0);
    ck_assert_int_eq(host_quant_rows(&s, rows, cols, w, 0, rows, amax, a.p, scratch), 0);
    for (uint64_t r = 0, n; r < rows; r += n) {
        n = unit * (1 + r / unit % 2);
        n = n > rows - r ? rows - r : n;
        ck_assert_int_eq(host_quant_rows(&s, rows, cols, w + r * cols, r, n, amax, b.p, scratch), 0);
    }
    for (int i = 0; i < KERN_PIECES; i++)
        if (a.p[i]) {
            ck_assert_int_eq(kern_store_piece(&s, rows, cols, (enum kern_piece)i, &info), 0);
            ck_assert_msg(memcmp(a.p[i], b.p[i], info.rows * info.row_bytes) == 0, "piece %d", i);
        }
    free(scratch);
    free(w);
    pieces_done(&a);
    pieces_done(&b);
}
END_TEST

/* Squares in any order, in scratches that had other widths before, are the matrix that comes whole. */
START_TEST(exl3_squares) {
    const struct kern_store s = {.format = KERN_EXL3, .bits = 5, .codebook = KERN_CODEBOOK_MCG},
                            other = {.format = KERN_EXL3, .bits = 6, .codebook = KERN_CODEBOOK_MCG};
    const uint64_t n = 256;
    struct pieces a = pieces_of(&s, n, n), b = pieces_of(&s, n, n), c = pieces_of(&other, 128, 128);
    void *scratch[2] = {calloc(1, HOST_QUANT_SCRATCH), calloc(1, HOST_QUANT_SCRATCH)};
    float *w = gauss(n * n, 0.02f, 13);
    struct kern_piece_info info;
    ck_assert_int_eq(into(&s, n, n, w, &a), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(host_quant_rows(&other, 128, 128, w, 0, 128, 1, c.p, scratch[i]), 0);
    for (uint64_t row = 0; row < n; row += 128)
        ck_assert_int_eq(host_quant_exl3_scales(&s, n, w + row * n, row, b.p), 0);
    for (uint64_t i = 4; i-- > 0;) {
        uint64_t row = i / 2 * 128, col = i % 2 * 128;
        host_quant_exl3_square(&s, n, w + row * n + col, n, row, col, b.p, scratch[i % 2]);
    }
    for (int i = 0; i < KERN_PIECES; i++)
        if (a.p[i]) {
            ck_assert_int_eq(kern_store_piece(&s, n, n, (enum kern_piece)i, &info), 0);
            ck_assert_msg(memcmp(a.p[i], b.p[i], info.rows * info.row_bytes) == 0, "piece %d", i);
        }
    free(scratch[0]);
    free(scratch[1]);
    free(w);
    pieces_done(&a);
    pieces_done(&b);
    pieces_done(&c);
}
END_TEST

/* What a format can hold exactly, it keeps. */
START_TEST(kept_exactly) {
    const struct kern_store s = store_of(_i);
    uint64_t rows = rows_of(&s), cols = s.format == KERN_EXL3 ? 128 : 256;
    struct pieces q = pieces_of(&s, rows, cols);
    float *w = malloc(rows * cols * sizeof(*w)), *back = malloc(rows * cols * sizeof(*back));
    for (uint64_t i = 0; i < rows * cols; i++)
        w[i] = i % 16 == 0 ? 6 : host_e2m1_f32((uint32_t)(i * 7 % 16));
    ck_assert_int_eq(into(&s, rows, cols, w, &q), 0);
    unpack(&s, rows, cols, &q, back);
    double e = distance(back, w, rows * cols);
    ck_assert_msg(e < 1e-6, "E2M1 numbers as NVFP4, MX: %.7f", e);
    free(w);
    free(back);
    pieces_done(&q);
}
END_TEST

static const struct {
    float x;
    uint32_t code;
} ROUNDED[] = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4}, {2.5f, 4},    {3.5f, 6},  {5, 6},
               {0.26f, 1}, {0.74f, 1}, {1.24f, 2}, {1.26f, 3}, {1.74f, 3},   {2.51f, 5}, {3.49f, 5},
               {5.01f, 7}, {6, 7},     {7, 7},     {-3, 13},   {-0.75f, 10}, {-0.2f, 0}};

/* Rounding of E2M1: ties to the even code. */
START_TEST(e2m1_ties) {
    struct kern_store s = kern_store_plain(KERN_NVFP4);
    for (uint32_t i = 0; i < sizeof(ROUNDED) / sizeof(ROUNDED[0]); i++) {
        float w[16] = {0}, v[16];
        struct pieces q = pieces_of(&s, 1, 16);
        w[0] = ROUNDED[i].x;
        w[1] = 6 * 448; /* the factors are 1 and 448, then 1 and 1 in the block below */
        w[0] *= 448;
        ck_assert_int_eq(into(&s, 1, 16, w, &q), 0);
        ck_assert_msg((*(uint8_t *)q.p[KERN_PIECE_CODES] & 15) == (ROUNDED[i].x > 6 ? 7 : ROUNDED[i].code),
                      "%g: code %u", (double)ROUNDED[i].x, *(uint8_t *)q.p[KERN_PIECE_CODES] & 15);
        unpack(&s, 1, 16, &q, v);
        pieces_done(&q);
    }
}
END_TEST

static int form_index(uint32_t format) {
    for (int i = 0; i < N_FORMS; i++)
        if (FORMS[i].s.format == format)
            return i;
    return -1;
}

int main(void) {
    Suite *s = suite_create("format_quant");
    TCase *t = tcase_create("quant");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, gaussian, 0, N_FORMS);
    tcase_add_loop_test(t, zeros, 0, N_FORMS);
    tcase_add_loop_test(t, not_finite, 0, N_FORMS);
    tcase_add_loop_test(t, huge, 0, N_FORMS);
    tcase_add_loop_test(t, denormal, 0, N_FORMS);
    tcase_add_test(t, exl3_squares);
    tcase_add_loop_test(t, in_parts, 0, form_index(KERN_EXL3) + 1); /* one of EXL3 is enough */
    tcase_add_loop_test(t, kept_exactly, form_index(KERN_NVFP4), form_index(KERN_MXFP4) + 1);
    tcase_add_test(t, e2m1_ties);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
