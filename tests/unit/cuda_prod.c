/* SPDX-License-Identifier: MIT */
/* Products of the CUDA backend with packed matrices: checkpoint bytes in windows of any kind through cuda_scatter(),
 * then rows of BF16 numbers against sums in double precision over what the bytes stand for. */
#include <stdio.h>

#include "cudaprod.h"

/* Rounding of the activations to F16 after EXL3's transform; elsewhere sums in F32 only. */
static double bound(const struct kern_store *s) {
    return s->format == KERN_EXL3 ? 5e-4 : 2e-6;
}

/* ---- one matrix ------------------------------------------------------------------------------------------- */

/* out[rows][n] of a product by `n` rows. */
static float *product(const struct cuda_mat *m, const uint16_t *x, uint32_t ldx, uint32_t bound_rows, uint32_t n) {
    const uint64_t bytes = (uint64_t)n * m->n * sizeof(float);
    uint16_t *dx = device((uint64_t)n * ldx * 2);
    float *out = device(bytes);
    const struct cuda_prod p = {.m = m, .x = dx, .ldx = ldx, .out = out, .ldo = m->n};
    OK(cudaMemcpy(dx, x, (uint64_t)n * ldx * 2, cudaMemcpyHostToDevice));
    OK(cudaMemset(out, 0xff, bytes));
    set_rows(bound_rows, n);
    OK(cuda_products(&run, &p, 1));
    float *y = back(out, bytes);
    OK(cudaFree(dx));
    OK(cudaFree(out));
    return y;
}

static void check_matrix(const struct kern_store *s, uint32_t n, uint32_t k) {
    static const uint32_t rows[] = {1, 8, 5, 16, MOST};
    struct cuda_mat m = {.heads = 1};
    uint8_t *piece[KERN_PIECES];
    uint64_t bytes;
    char name[64], what[128];
    ck_assert_int_eq(cuda_mat_layout(s, n, k, &m, &bytes), 0);
    ks_random(s, n, k, 0.1f, &rng, piece);
    float *w = ks_numbers(s, n, k, piece);
    weights = device(bytes + 256);
    run.weights = weights;
    pack(weights + 256, &m, 0, 0, 0, n, k, piece);
    move(&m, 256);
    uint32_t ldx = padded(k, PAD);
    uint16_t *x = rows_of(MOST, ldx, k, 1.0f);
    float *all = product(&m, x, ldx, MOST, MOST);
    struct error e = {0, 0};
    for (uint32_t r = 0; r < MOST; r++)
        for (uint32_t i = 0; i < n; i++)
            count(&e, (double)all[(size_t)r * n + i], dot(w + (size_t)i * k, x + (size_t)r * ldx, k));
    snprintf(what, sizeof(what), "%s [%u, %u]", kern_store_name(s, name, sizeof(name)), n, k);
    small(&e, bound(s), what);
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) { /* a row's bits are its own */
        uint32_t first = MOST - rows[i];
        float *y = product(&m, x + (size_t)first * ldx, ldx, rows[i], rows[i]);
        ck_assert_msg(!memcmp(y, all + (size_t)first * n, (size_t)rows[i] * n * sizeof(float)), "%s: %u rows alone",
                      what, rows[i]);
        free(y);
    }
    free(all);
    free(x);
    free(w);
    free_pieces(piece);
    OK(cudaFree(weights));
}

static bool readable(const struct kern_store *s) {
    struct cuda_mat m = {.heads = 1};
    uint64_t bytes;
    return cuda_mat_layout(s, 256, 256, &m, &bytes) == 0;
}

static const struct kern_store more[] = {
    {.format = KERN_BF16},
    {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 16, .block_cols = 16},
    {.format = KERN_FP8, .scale = KERN_SCALE_BF16, .block_rows = 5, .block_cols = 48},
    {.format = KERN_INT8, .scale = KERN_SCALE_F16, .block_rows = 1, .block_cols = 32},
    {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 80},
};
enum { N_MORE = sizeof(more) / sizeof(more[0]) };

START_TEST(each_store) {
    const struct kern_store *s = (uint32_t)_i < N_MORE ? &more[_i] : &ks_all[_i - N_MORE];
    begin((uint64_t)_i + 1);
    if (readable(s)) {
        bool blocks = s->format == KERN_EXL3;
        check_matrix(s, blocks ? 128 : 40, blocks ? 256 : 336);
        check_matrix(s, blocks ? 256 : 17, blocks ? 128 : s->format == KERN_NVFP4 ? 80 : 72);
        if (!blocks)
            check_matrix(s, 16, 2048);
    } else {
        ck_assert(s->format == KERN_F32 || s->format == KERN_F16 || s->format == KERN_INT4 ||
                  s->format == KERN_MXFP8 || s->format == KERN_MXFP4 || s->format >= KERN_Q8_0 ||
                  (s->format == KERN_FP8 && s->block_cols == 7));
    }
    end();
}
END_TEST

START_TEST(each_trellis) {
    const struct kern_store s = {
        .format = KERN_EXL3, .bits = (uint8_t)(1 + _i / 3), .codebook = (uint8_t)(KERN_CODEBOOK_3INST + _i % 3)};
    begin((uint64_t)_i + 100);
    check_matrix(&s, 128, 128);
    end();
}
END_TEST

/* ---- what is no number, and what is large ------------------------------------------------------------------- */

/* Rows of a matrix with a code or scale that is no number are none, and no other row is. */
static void check_nan(const struct kern_store *s, enum kern_piece where, uint32_t bad_row) {
    enum { N = 40, K = 128 };
    struct cuda_mat m = {.heads = 1};
    uint8_t *piece[KERN_PIECES];
    uint64_t bytes;
    ck_assert_int_eq(cuda_mat_layout(s, N, K, &m, &bytes), 0);
    ks_random(s, N, K, 0.1f, &rng, piece);
    struct kern_piece_info p;
    ck_assert_int_eq(kern_store_piece(s, N, K, where, &p), 0);
    piece[where][bad_row * p.row_bytes + p.row_bytes - 1] = 0x7f;
    weights = device(bytes);
    run.weights = weights;
    pack(weights, &m, 0, 0, 0, N, K, piece);
    uint16_t *x = rows_of(3, K, K, 1.0f);
    float *y = product(&m, x, K, 8, 3);
    for (uint32_t i = 0; i < 3 * N; i++)
        ck_assert_int_eq(!isnan(y[i]), i % N != bad_row);
    free(y), free(x);
    free_pieces(piece);
    OK(cudaFree(weights));
}

START_TEST(no_number_stays_none) {
    static const struct kern_store fp8 = {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128,
                                          .block_cols = 128},
                                   nvfp4 = {.format = KERN_NVFP4, .scale = KERN_SCALE_E4M3, .block_rows = 1,
                                            .block_cols = 16};
    begin(500);
    check_nan(&fp8, KERN_PIECE_CODES, 3);
    check_nan(&fp8, KERN_PIECE_CODES, 28);
    check_nan(&nvfp4, KERN_PIECE_SCALE, 12);
    end();
}
END_TEST

/* EXL3's transform meets inputs that F16 could not hold, and rows of nothing. */
START_TEST(large_and_small_inputs) {
    static const struct kern_store s = {.format = KERN_EXL3, .bits = 4, .codebook = KERN_CODEBOOK_MCG};
    static const float dev[] = {1e6f, 1e-9f, 1.0f, 0.0f};
    enum { N = 128, K = 256, R = 4 };
    struct cuda_mat m = {.heads = 1};
    uint8_t *piece[KERN_PIECES];
    uint64_t bytes;
    begin(501);
    ck_assert_int_eq(cuda_mat_layout(&s, N, K, &m, &bytes), 0);
    ks_random(&s, N, K, 0.1f, &rng, piece);
    float *w = ks_numbers(&s, N, K, piece);
    weights = device(bytes);
    run.weights = weights;
    pack(weights, &m, 0, 0, 0, N, K, piece);
    uint16_t *x = calloc(R * K, sizeof(*x));
    ck_assert_ptr_nonnull(x);
    for (uint32_t i = 0; i < R * K; i++)
        x[i] = host_bf16(dev[i / K] * km_normal(&rng));
    float *y = product(&m, x, K, 8, R);
    for (uint32_t r = 0; r < R; r++) {
        struct error e = {0, 0};
        for (uint32_t i = 0; i < N; i++) {
            if (dev[r] == 0)
                ck_assert(y[r * N + i] == 0);
            count(&e, (double)y[r * N + i], dot(w + i * K, x + r * K, K));
        }
        if (dev[r] != 0)
            small(&e, 5e-4, "inputs of another size");
    }
    free(y), free(x), free(w);
    free_pieces(piece);
    OK(cudaFree(weights));
    end();
}
END_TEST

/* ---- kv_b: two halves of one tensor, a head after the other ------------------------------------------------ */

static void check_heads(const struct kern_store *s, uint32_t heads, uint32_t nope, uint32_t v, uint32_t rank) {
    enum { ROWS = 3 };
    struct cuda_mat uk = {.heads = heads, .transposed = 1}, uv = {.heads = heads};
    const uint32_t rows = heads * (nope + v), nope_pad = padded(nope, PAD), rank_pad = padded(rank, PAD);
    uint64_t uk_bytes, uv_bytes;
    uint8_t *piece[KERN_PIECES];
    char name[64];
    ck_assert_int_eq(cuda_mat_layout(s, rank, nope, &uk, &uk_bytes), 0);
    ck_assert_int_eq(cuda_mat_layout(s, v, rank, &uv, &uv_bytes), 0);
    ks_random(s, rows, rank, 0.1f, &rng, piece);
    float *w = ks_numbers(s, rows, rank, piece);
    weights = device(uk_bytes + uv_bytes);
    run.weights = weights;
    pack(weights, &uk, 0, nope, v, rows, rank, piece);
    pack(weights + uk_bytes, &uv, 0, nope, v, rows, rank, piece);
    move(&uv, uk_bytes);
    uint16_t *q = rows_of(ROWS * heads, nope_pad, nope, 1.0f), *c = rows_of(ROWS * heads, rank_pad, rank, 1.0f);
    uint16_t *dq = device(ROWS * heads * nope_pad * 2ull), *dc = device(ROWS * heads * rank_pad * 2ull);
    const uint32_t ldo = heads * (rank + 5), ldv = heads * v + 64;
    float *out = device(ROWS * ldo * 4ull);
    uint16_t *out16 = device(ROWS * ldv * 2ull);
    OK(cudaMemcpy(dq, q, ROWS * heads * nope_pad * 2ull, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(dc, c, ROWS * heads * rank_pad * 2ull, cudaMemcpyHostToDevice));
    set_rows(8, ROWS);
    const struct cuda_prod absorb = {.m = &uk, .x = dq, .ldx = heads * nope_pad, .head_ldx = nope_pad, .out = out,
                                     .ldo = ldo, .out_at = 2, .head_ldo = rank + 5};
    const struct cuda_prod values = {.m = &uv, .x = dc, .ldx = heads * rank_pad, .head_ldx = rank_pad, .out16 = out16,
                                     .ldo = ldv, .out_at = 64};
    OK(cuda_products(&run, &absorb, 1));
    OK(cuda_products(&run, &values, 1));
    float *y = back(out, ROWS * ldo * 4ull);
    uint16_t *z = back(out16, ROWS * ldv * 2ull);
    struct error ey = {0, 0}, ez = {0, 0};
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < heads; h++) {
            const float *head = w + (size_t)h * (nope + v) * rank;
            const uint16_t *x = q + (size_t)(r * heads + h) * nope_pad, *l = c + (size_t)(r * heads + h) * rank_pad;
            for (uint32_t i = 0; i < rank; i++) {
                double sum = 0;
                for (uint32_t j = 0; j < nope; j++)
                    sum += (double)head[(size_t)j * rank + i] * (double)host_f32(x[j]);
                count(&ey, (double)y[r * ldo + 2 + h * (rank + 5) + i], sum);
            }
            for (uint32_t i = 0; i < v; i++)
                count(&ez, (double)host_f32(z[r * ldv + 64 + h * v + i]),
                      dot(head + (size_t)(nope + i) * rank, l, rank));
        }
    kern_store_name(s, name, sizeof(name));
    small(&ey, s->format == KERN_EXL3 ? 5e-4 : 1e-5, name);
    small(&ez, 3e-3, name); /* outputs are BF16 */
    void *dev[] = {weights, dq, dc, out, out16};
    for (int i = 0; i < 5; i++)
        OK(cudaFree(dev[i]));
    free(q), free(c), free(y), free(z), free(w);
    free_pieces(piece);
}

START_TEST(each_store_by_heads) {
    const struct kern_store *s = (uint32_t)_i < N_MORE ? &more[_i] : &ks_all[_i - N_MORE];
    begin((uint64_t)_i + 200);
    if (s->format == KERN_EXL3)
        check_heads(s, 2, 128, 128, 128);
    else if (readable(s))
        check_heads(s, 3, 24, 40, 96);
    end();
}
END_TEST

int main(void) {
    Suite *s = suite_create("cuda_prod");
    TCase *t = tcase_create("all");
    SRunner *r;
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, each_store, 0, (int)(N_MORE + ks_count));
    tcase_add_loop_test(t, each_trellis, 0, 24);
    tcase_add_loop_test(t, each_store_by_heads, 0, (int)(N_MORE + ks_count));
    tcase_add_test(t, no_number_stays_none);
    tcase_add_test(t, large_and_small_inputs);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
