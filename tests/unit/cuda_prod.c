/* SPDX-License-Identifier: MIT */
/* Products of the CUDA backend with packed matrices: checkpoint bytes in windows of any kind through cuda_scatter(),
 * then rows of BF16 numbers against sums in double precision over what the bytes stand for. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_dev.h"
#include "host.h"
#include "kernstores.h"

#define OK(call) ck_assert_msg((call) == cudaSuccess, "%s", #call)

enum { MOST = 21, PAD = 64 };

static struct km_rng rng;
static struct cuda_dims dims;
static struct cuda_lane lane;
static struct cuda_run run;
static struct cuda_layer layer;
static struct cuda_mid mid;
static char *weights;

static uint32_t padded(uint32_t n, uint32_t to) {
    return (n + to - 1) / to * to;
}

static void *device(uint64_t bytes) {
    void *p;
    OK(cudaMalloc(&p, bytes ? bytes : 1));
    OK(cudaMemset(p, 0, bytes ? bytes : 1));
    return p;
}

static void *back(const void *p, uint64_t bytes) {
    void *h = malloc(bytes);
    ck_assert_ptr_nonnull(h);
    OK(cudaMemcpy(h, p, bytes, cudaMemcpyDeviceToHost));
    return h;
}

static void set_rows(uint32_t bound, uint32_t n) {
    struct cuda_step s = {.n_rows = {n, 0}};
    OK(cudaMemcpy(lane.step, &s, sizeof(s), cudaMemcpyHostToDevice));
    run.rows = bound;
}

/* A lane for products alone: a step, and room for transforms. */
static void begin(uint64_t seed) {
    uint64_t had, raw;
    rng.s = seed;
    memset(&dims, 0, sizeof(dims));
    memset(&lane, 0, sizeof(lane));
    memset(&run, 0, sizeof(run));
    dims.hidden = 1024;
    dims.mla_heads = 8;
    dims.nope = dims.kv_rank = dims.v_dim = 128;
    dims.dense_width = dims.expert_width = dims.shared_width = 256;
    dims.n_top = 3;
    cuda_around_room(&dims, MOST, &had, &raw);
    lane.step = device(sizeof(struct cuda_step));
    lane.had = device(had);
    lane.had_out = device(raw);
    run.d = &dims;
    run.lane = &lane;
    run.layer = &layer;
    run.mid = &mid;
    run.max_rows = MOST;
}

static void end(void) {
    OK(cudaFree(lane.step));
    OK(cudaFree(lane.had));
    OK(cudaFree(lane.had_out));
}

/* ---- matrices --------------------------------------------------------------------------------------------- */

/* One piece, in windows that begin and end anywhere, last ones first. */
static void scatter(char *to, const struct cuda_dest *d, const uint8_t *bytes, uint64_t n) {
    uint8_t *from = device(n + 16);
    for (uint64_t at = n; at > 0;) {
        uint64_t size = 1 + km_below(&rng, 5000), shift = km_below(&rng, 16);
        size = size < at ? size : at;
        at -= size;
        OK(cudaMemcpy(from + shift, bytes + at, size, cudaMemcpyHostToDevice));
        OK(cuda_scatter(NULL, to, d, at, from + shift, size));
        OK(cudaStreamSynchronize(NULL));
    }
    OK(cudaFree(from));
}

/* All pieces of a tensor [rows, cols] to `to`, for one matrix or, m2 given, two that share it. */
static void pack(char *to, const struct cuda_mat *m, uint32_t expert, uint32_t nope, uint32_t v, uint64_t rows,
                 uint64_t cols, uint8_t *const piece[KERN_PIECES]) {
    for (uint32_t i = 0; i < KERN_PIECES; i++) {
        struct kern_piece_info p;
        ck_assert_int_eq(kern_store_piece(&m->store, rows, cols, (enum kern_piece)i, &p), 0);
        const struct cuda_dest d = {
            .m = *m, .rows = rows, .cols = cols, .piece = i, .expert = expert, .kvb_nope = nope, .kvb_v = v};
        if (p.rows)
            scatter(to, &d, piece[i], p.rows * p.row_bytes);
    }
}

static void free_pieces(uint8_t *piece[KERN_PIECES]) {
    for (uint32_t i = 0; i < KERN_PIECES; i++)
        free(piece[i]);
}

static uint64_t moved(uint64_t at, uint64_t by) {
    return at + by;
}

/* A matrix at an offset of the weights. */
static void move(struct cuda_mat *m, uint64_t by) {
    m->codes = moved(m->codes, by);
    m->scale = moved(m->scale, by);
    m->global = moved(m->global, by);
    m->suh = moved(m->suh, by);
    m->svh = moved(m->svh, by);
}

static uint16_t *rows_of(uint32_t rows, uint32_t ld, uint32_t k, float dev) {
    uint16_t *x = calloc((size_t)rows * ld, sizeof(*x));
    ck_assert_ptr_nonnull(x);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < k; i++)
            x[(size_t)r * ld + i] = host_bf16(dev * km_normal(&rng));
    return x;
}

/* Of two vectors: the length of the difference to the length of what it should be. */
struct error {
    double diff, norm;
};
static void count(struct error *e, double got, double want) {
    e->diff += (got - want) * (got - want);
    e->norm += want * want;
}
static void small(const struct error *e, double most, const char *what) {
    double r = sqrt(e->diff / e->norm);
    ck_assert_msg(r <= most, "%s: relative error %g, at most %g", what, r, most);
}

/* Rounding of the activations to F16 after EXL3's transform; elsewhere sums in F32 only. */
static double bound(const struct kern_store *s) {
    return s->format == KERN_EXL3 ? 5e-4 : 2e-6;
}

static double dot(const float *w, const uint16_t *x, uint32_t k) {
    double sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += (double)w[i] * (double)host_f32(x[i]);
    return sum;
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

/* ---- feed-forwards ---------------------------------------------------------------------------------------- */

static double swiglu(double g, double u, double limit) {
    g = limit > 0 && g > limit ? limit : g;
    u = limit > 0 && fabs(u) > limit ? copysign(limit, u) : u;
    return g / (1 + exp(-g)) * u;
}

/* gate, up, down of `experts` experts, or of one. */
struct ffn {
    struct cuda_mat m[3];
    float *w[3]; /* [experts][n][k] */
    uint32_t width, hidden;
};

static uint64_t ffn_make(struct ffn *f, const struct kern_store s[3], uint32_t experts, uint32_t width, uint32_t hidden,
                         uint64_t at, bool really) {
    f->width = width;
    f->hidden = hidden;
    for (int i = 0; i < 3; i++) {
        uint32_t n = i == 2 ? hidden : width, k = i == 2 ? width : hidden;
        uint64_t bytes;
        f->m[i] = (struct cuda_mat){.heads = 1};
        ck_assert_int_eq(cuda_mat_layout(&s[i], n, k, &f->m[i], &bytes), 0);
        f->m[i].stride = bytes;
        move(&f->m[i], at);
        at += experts * bytes;
        if (!really)
            continue;
        f->w[i] = malloc((size_t)experts * n * k * sizeof(float));
        ck_assert_ptr_nonnull(f->w[i]);
        for (uint32_t e = 0; e < experts; e++) {
            uint8_t *piece[KERN_PIECES];
            ks_random(&s[i], n, k, 2.0f / sqrtf((float)k), &rng, piece);
            float *one = ks_numbers(&s[i], n, k, piece);
            memcpy(f->w[i] + (size_t)e * n * k, one, (size_t)n * k * sizeof(float));
            pack(weights, &f->m[i], e, 0, 0, n, k, piece);
            free(one);
            free_pieces(piece);
        }
    }
    return at;
}

/* y += weight x ffn(x) */
static void ffn_add(const struct ffn *f, uint32_t e, const uint16_t *x, double limit, double weight, double *y) {
    double *h = malloc(f->width * sizeof(*h));
    const size_t nk = (size_t)f->width * f->hidden;
    ck_assert_ptr_nonnull(h);
    for (uint32_t i = 0; i < f->width; i++)
        h[i] = swiglu(dot(f->w[0] + e * nk + (size_t)i * f->hidden, x, f->hidden),
                      dot(f->w[1] + e * nk + (size_t)i * f->hidden, x, f->hidden), limit);
    for (uint32_t i = 0; i < f->hidden; i++)
        for (uint32_t j = 0; j < f->width; j++)
            y[i] += weight * (double)f->w[2][e * nk + (size_t)i * f->width + j] * h[j];
    free(h);
}

static void ffn_free(struct ffn *f) {
    for (int i = 0; i < 3; i++)
        free(f->w[i]);
}

struct moe {
    uint32_t hidden, expert, shared, experts, top, rows;
    bool equal; /* all experts score alike */
    struct ffn routed, one;
    float *router, *bias, *u_f;
    uint16_t *u;
};

/* The experts of a row: larger score plus bias first, then the smaller id. */
static void choose(const struct moe *m, uint32_t row, double *weight) {
    double *score = malloc(m->experts * sizeof(*score)), sum = 1e-20;
    ck_assert_ptr_nonnull(score);
    for (uint32_t e = 0; e < m->experts; e++) {
        double z = 0;
        for (uint32_t i = 0; i < m->hidden; i++)
            z += (double)m->router[(size_t)e * m->hidden + i] * (double)m->u_f[(size_t)row * m->hidden + i];
        score[e] = 1 / (1 + exp(-z));
        weight[e] = 0;
    }
    for (uint32_t j = 0; j < m->top; j++) {
        uint32_t best = m->experts;
        for (uint32_t e = 0; e < m->experts; e++)
            if (weight[e] == 0 &&
                (best == m->experts || score[e] + (double)m->bias[e] > score[best] + (double)m->bias[best]))
                best = e;
        weight[best] = score[best];
        sum += score[best];
    }
    for (uint32_t e = 0; e < m->experts; e++)
        weight[e] *= (double)dims.routed_scale / sum;
    free(score);
}

static void moe_dims(const struct moe *m) {
    dims.hidden = m->hidden;
    dims.hidden_pad = padded(m->hidden, PAD);
    dims.expert_width = m->expert;
    dims.shared_width = dims.dense_width = m->shared;
    dims.n_experts = m->experts;
    dims.n_top = m->top;
    dims.n_shared = m->shared ? 1 : 0;
    dims.routed_scale = 2.5f;
    dims.swiglu_limit = 1.5f;
    run.y_parts = m->top + 1;
    mid.dense = 0;
    mid.shared = padded(m->shared, PAD);
    mid.ld = 2 * padded(m->shared, PAD);
}

static void moe_lane(struct moe *m) {
    const uint64_t entries = (uint64_t)m->rows * m->top, pad = padded(m->expert, PAD);
    lane.u = device((uint64_t)m->rows * dims.hidden_pad * 2);
    lane.u_f = device((uint64_t)m->rows * m->hidden * 4);
    lane.y = device((uint64_t)m->rows * run.y_parts * m->hidden * 4);
    lane.mid = device((uint64_t)m->rows * mid.ld * 2);
    lane.router = device((uint64_t)m->rows * m->experts * 4);
    lane.top_id = device(entries * 4);
    lane.top_w = device(entries * 4);
    lane.items = device((1 + 3 * entries) * 4);
    lane.item_rows = device(entries * 4);
    lane.act = device(entries * pad * 2);
    lane.report = device(sizeof(*lane.report));
    m->u = rows_of(m->rows, dims.hidden_pad, m->hidden, 1.0f);
    m->u_f = malloc((size_t)m->rows * m->hidden * sizeof(float));
    ck_assert_ptr_nonnull(m->u_f);
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t i = 0; i < m->hidden; i++)
            m->u_f[(size_t)r * m->hidden + i] = host_f32(m->u[(size_t)r * dims.hidden_pad + i]);
    OK(cudaMemcpy(lane.u, m->u, (uint64_t)m->rows * dims.hidden_pad * 2, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(lane.u_f, m->u_f, (uint64_t)m->rows * m->hidden * 4, cudaMemcpyHostToDevice));
}

static void moe_weights(struct moe *m, const struct kern_store s[3]) {
    uint64_t at = ffn_make(&m->routed, s, m->experts, m->expert, m->hidden, 0, false);
    if (m->shared)
        at = ffn_make(&m->one, s, 1, m->shared, m->hidden, at, false);
    const uint64_t router = at, bias = router + (uint64_t)m->experts * m->hidden * 4;
    weights = device(bias + m->experts * 4ull);
    run.weights = weights;
    at = ffn_make(&m->routed, s, m->experts, m->expert, m->hidden, 0, true);
    if (m->shared)
        ffn_make(&m->one, s, 1, m->shared, m->hidden, at, true);
    m->router = malloc((size_t)m->experts * m->hidden * sizeof(float));
    m->bias = malloc(m->experts * sizeof(float));
    ck_assert(m->router && m->bias);
    for (uint32_t i = 0; i < m->experts * m->hidden; i++)
        m->router[i] = m->equal ? 0 : km_normal(&rng) / sqrtf((float)m->hidden);
    for (uint32_t i = 0; i < m->experts; i++)
        m->bias[i] = m->equal ? 0 : 0.3f * km_normal(&rng);
    OK(cudaMemcpy(weights + router, m->router, (uint64_t)m->experts * m->hidden * 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(weights + bias, m->bias, m->experts * 4ull, cudaMemcpyHostToDevice));
    layer = (struct cuda_layer){.exp_gate = m->routed.m[0], .exp_up = m->routed.m[1], .exp_down = m->routed.m[2],
                                .router = router, .router_bias = bias, .router_format = KERN_F32};
    if (m->shared) {
        layer.gate = m->one.m[0];
        layer.up = m->one.m[1];
        layer.down = m->one.m[2];
    }
}

static void moe_free(struct moe *m) {
    void *dev[] = {weights,     lane.u,     lane.u_f,  lane.y,         lane.mid, lane.router,
                   lane.top_id, lane.top_w, lane.items, lane.item_rows, lane.act, lane.report};
    for (size_t i = 0; i < sizeof(dev) / sizeof(dev[0]); i++)
        OK(cudaFree(dev[i]));
    ffn_free(&m->routed);
    if (m->shared)
        ffn_free(&m->one);
    free(m->router), free(m->bias), free(m->u), free(m->u_f);
}

static void check_moe(struct moe *m, const struct kern_store s[3], double most) {
    char name[64];
    moe_dims(m);
    moe_weights(m, s);
    moe_lane(m);
    set_rows(m->rows, m->rows);
    OK(cuda_moe(&run));
    const uint32_t parts = run.y_parts, used = m->top + (m->shared ? 1 : 0);
    float *y = back(lane.y, (uint64_t)m->rows * parts * m->hidden * 4);
    double *want = malloc(m->hidden * sizeof(*want)), *weight = malloc(m->experts * sizeof(*weight));
    struct error e = {0, 0};
    uint32_t *touched = calloc(m->experts, sizeof(*touched)), n_touched = 0;
    ck_assert(want && weight && touched);
    for (uint32_t r = 0; r < m->rows; r++) {
        uint32_t part = 0;
        choose(m, r, weight);
        for (uint32_t x = 0; x <= m->experts; x++) {
            if (x < m->experts ? weight[x] == 0 : !m->shared)
                continue;
            memset(want, 0, m->hidden * sizeof(*want));
            ffn_add(x < m->experts ? &m->routed : &m->one, x < m->experts ? x : 0,
                    m->u + (size_t)r * dims.hidden_pad, (double)dims.swiglu_limit, x < m->experts ? weight[x] : 1,
                    want);
            for (uint32_t i = 0; i < m->hidden; i++)
                count(&e, (double)y[((size_t)r * parts + part) * m->hidden + i], want[i]);
            part++;
            if (x < m->experts && !touched[x]++)
                n_touched++;
        }
        ck_assert_uint_eq(part, used);
    }
    small(&e, most, kern_store_name(&s[0], name, sizeof(name)));
    struct cuda_report *report = back(lane.report, sizeof(*report));
    ck_assert_uint_eq(report->experts, n_touched);
    free(report), free(y), free(want), free(weight), free(touched);
    moe_free(m);
}

START_TEST(experts) {
    static const struct kern_store bf16 = {.format = KERN_BF16},
                                   fp8 = {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128,
                                          .block_cols = 128},
                                   nvfp4 = {.format = KERN_NVFP4, .scale = KERN_SCALE_E4M3, .block_rows = 1,
                                            .block_cols = 16},
                                   exl3 = {.format = KERN_EXL3, .bits = 4, .codebook = KERN_CODEBOOK_MCG};
    const struct kern_store stores[][3] = {
        {bf16, bf16, bf16}, {fp8, fp8, fp8}, {nvfp4, nvfp4, nvfp4}, {exl3, exl3, exl3}, {fp8, bf16, nvfp4},
        {bf16, bf16, bf16}};
    static const uint32_t rows[] = {1, 7, 13, 20, 3, 20};
    bool wide = _i == 3;
    struct moe m = {.hidden = wide ? 256 : 80, .expert = wide ? 128 : 48, .shared = wide ? 128 : _i == 1 ? 0 : 112,
                    .experts = 37, .top = 3, .rows = rows[_i], .equal = _i == 5};
    begin((uint64_t)_i + 300);
    check_moe(&m, stores[_i], 4e-3); /* what is between the products is BF16 */
    end();
}
END_TEST

START_TEST(dense) {
    static const struct kern_store s[3] = {
        {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 16},
        {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 16},
        {.format = KERN_BF16}};
    struct moe m = {.hidden = 72, .expert = 16, .shared = 104, .experts = 4, .top = 2, .rows = 9};
    begin(400);
    moe_dims(&m);
    moe_weights(&m, s);
    moe_lane(&m);
    set_rows(16, m.rows);
    OK(cuda_dense(&run));
    float *y = back(lane.y, (uint64_t)m.rows * run.y_parts * m.hidden * 4);
    struct error e = {0, 0};
    for (uint32_t r = 0; r < m.rows; r++) {
        double want[72] = {0};
        ffn_add(&m.one, 0, m.u + (size_t)r * dims.hidden_pad, (double)dims.swiglu_limit, 1, want);
        for (uint32_t i = 0; i < m.hidden; i++)
            count(&e, (double)y[(size_t)r * run.y_parts * m.hidden + i], want[i]);
    }
    small(&e, 4e-3, "dense");
    free(y);
    moe_free(&m);
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
    tcase_add_loop_test(t, experts, 0, 6);
    tcase_add_test(t, no_number_stays_none);
    tcase_add_test(t, large_and_small_inputs);
    tcase_add_test(t, dense);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
