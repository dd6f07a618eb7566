/* SPDX-License-Identifier: MIT */
/* The CUDA backend's feed-forwards: router, choice, groups, experts and shared expert, and the dense one, against
 * double precision over what the weights stand for. */
#include "cudaprod.h"

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
    Suite *s = suite_create("cuda_ffn");
    TCase *t = tcase_create("all");
    SRunner *r;
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, experts, 0, 6);
    tcase_add_test(t, dense);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
