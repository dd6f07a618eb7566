/* SPDX-License-Identifier: MIT */
/* The oracle for GLM-5.3 against answers known in closed form: what is compared with it later is only as
 * right as it is. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckptset.h"
#include "leakcheck.h"
#include "twin53.h"

static const double CLOSE = 1e-12;

#define NEAR(a, b)                                                                                           \
    ck_assert_msg(fabs((a) - (b)) < CLOSE, "%s: found %.17g, expected %.17g", #a, (double)(a), (double)(b))

/* theta 16 and 4 dims: the first pair turns by the position itself, the second by a quarter of it. */
START_TEST(test_rope) {
    double x[6] = {1, 0, 0, 2, 5, 6}, a[4] = {0.3, -1, 0.7, 2}, b[4] = {1.5, 0.2, -0.4, 1}, near, far;

    oracle53_rope(x, 4, 3, 16);
    NEAR(x[0], cos(3));
    NEAR(x[1], sin(3));
    NEAR(x[2], -2 * sin(0.75));
    NEAR(x[3], 2 * cos(0.75));
    ck_assert(x[4] == 5 && x[5] == 6);
    oracle53_rope(x, 4, 0, 16);
    NEAR(x[0], cos(3));
    /* only the distance counts */
    oracle53_rope(a, 4, 7, 16);
    oracle53_rope(b, 4, 2, 16);
    near = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
    oracle53_rope(a, 4, 90, 16);
    oracle53_rope(b, 4, 90, 16);
    far = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
    NEAR(near, far);
}
END_TEST

START_TEST(test_rmsnorm) {
    const double x[4] = {1, -2, 3, -4}, w[4] = {1, 2, 1, 0.5};
    double y[4];

    oracle53_rmsnorm(x, w, 4, 0.1, y);
    NEAR(y[0], 1 / sqrt(7.6));
    NEAR(y[1], -4 / sqrt(7.6));
    NEAR(y[3], -2 / sqrt(7.6));
}
END_TEST

/* Larger first, of equal ones the smaller number; zero has no sign; all are taken when there is room. */
START_TEST(test_select) {
    const double s[6] = {0.5, -0.0, 2, 0.0, 0, -1};
    static const char *const want[] = {"001000", "101000", "111000", "111100", "111110", "111111"};
    uint8_t got[6];
    double gap = 0;

    for (uint32_t k = 1; k <= 6; k++) {
        gap = oracle53_select(s, 6, k, got);
        for (uint32_t i = 0; i < 6; i++)
            ck_assert_msg(got[i] == want[k - 1][i] - '0', "%u of 6: number %u", k, i);
        if (k == 1)
            NEAR(gap, 0.75);
        if (k == 3)
            NEAR(gap, 1); /* two zeros at the border */
    }
    NEAR(gap, 1);
    oracle53_select(s, 6, 100, got);
    ck_assert_int_eq(got[5], 1);
}
END_TEST

/* The bias chooses and weighs nothing; the weights add up to the scale. */
START_TEST(test_route) {
    const struct o53_dims d = {.experts = 4, .active = 2, .routed_scale = 2.5};
    const double logit[4] = {log(3), 0, -log(3), 0}, bias[4] = {-1, 0, 0.6, 0};
    uint32_t id[4];
    double w[4];

    oracle53_route(&d, logit, bias, id,
                   w); /* 0.75-1, 0.5, 0.25+0.6, 0.5: the third and, of two equal, the second */
    ck_assert_uint_eq(id[0], 1);
    ck_assert_uint_eq(id[1], 2);
    NEAR(w[0], 2.5 * 0.5 / 0.75);
    NEAR(w[1], 2.5 * 0.25 / 0.75);
    NEAR(w[0] + w[1], 2.5);
}
END_TEST

START_TEST(test_full_layers) {
    const struct o53_dims d = {.index_freq = 4, .index_offset = 3};
    uint32_t n = 0;

    for (uint32_t i = 0; i < 78; i++) {
        ck_assert_msg(oracle53_full(&d, i) == (i < 3 || i % 4 == 2), "layer %u", i);
        n += oracle53_full(&d, i) != 0;
    }
    ck_assert_uint_eq(n, 21);
}
END_TEST

/* ---- a model of which everything is known ---- */

static struct o53_dims tiny(void) {
    struct o53_dims d = twin53_dims();

    d.vocab = 50;
    d.hidden = 32;
    d.q_lora = 16;
    d.kv_lora = 12;
    d.layers = 8;
    d.index_topk = 5;
    return d;
}

static struct o53_tensor *change(struct o53_model *m, const char *name) {
    return (struct o53_tensor *)(uintptr_t)oracle53_find(m, name);
}

static void zero(struct o53_model *m, const char *part) {
    for (uint32_t i = 0; i < m->n; i++)
        if (strstr(m->t[i].name, part))
            memset(m->t[i].v, 0, (size_t)m->t[i].rows * m->t[i].cols * sizeof(double));
}

static double distance(const double *a, const double *b, size_t n) {
    double d = 0;

    for (size_t i = 0; i < n; i++)
        d = fmax(d, fabs(a[i] - b[i]));
    return d;
}

static const int32_t IDS[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 49, 7, 9, 3, 23};
enum { N = sizeof IDS / sizeof *IDS };

/* With every layer silent the residual stream is the embedding, and the head sees its norm. */
START_TEST(test_residual) {
    struct o53_dims d = tiny();
    struct o53_model m;
    struct o53_out o;
    const struct o53_tensor *emb, *head;
    double y[64], sum = 0;

    twin53_make(&m, &d, 1, "bf16");
    zero(&m, "o_proj");
    zero(&m, "down_proj");
    oracle53_run(&m, IDS, N, &o);
    emb = oracle53_find(&m, "model.embed_tokens.weight");
    head = oracle53_find(&m, "lm_head.weight");
    for (uint32_t l = 0; l < d.layers; l++)
        ck_assert(memcmp(o.hidden + ((size_t)l * N + 2) * 32, emb->v + (size_t)4 * 32, 32 * sizeof(double)) ==
                  0);
    oracle53_rmsnorm(emb->v + (size_t)4 * 32, oracle53_find(&m, "model.norm.weight")->v, 32, 1e-5, y);
    for (uint32_t i = 0; i < 32; i++)
        sum += y[i] * head->v[(size_t)17 * 32 + i];
    NEAR(o.logits[2 * 50 + 17], sum);
    oracle53_done(&o);
    twin53_done(&m);
}
END_TEST

/* y += W x */
static void add(const struct o53_tensor *w, uint32_t first, uint32_t rows, const double *x, double *y) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < w->cols; i++)
            y[r] += w->v[(size_t)(first + r) * w->cols + i] * x[i];
}

static const double *weight(const struct o53_model *m, const char *name) {
    return oracle53_find(m, name)->v;
}

#define L0 "model.layers.0."

/* The value that position j of layer 0 shows to the only head. */
static void value_of(const struct o53_model *m, const double *x, double *ret) {
    double u[32], latent[20] = {0}, c[12];

    oracle53_rmsnorm(x, weight(m, L0 "input_layernorm.weight"), 32, 1e-5, u);
    add(oracle53_find(m, L0 "self_attn.kv_a_proj_with_mqa.weight"), 0, 12, u, latent);
    oracle53_rmsnorm(latent, weight(m, L0 "self_attn.kv_a_layernorm.weight"), 12, 1e-5, c);
    memset(ret, 0, 40 * sizeof *ret);
    add(oracle53_find(m, L0 "self_attn.kv_b_proj.weight"), 24, 40, c, ret);
}

/* Where queries see nothing in keys, attention is the mean of the listed values: of all while there is room,
 * of fewer afterwards; and equal index scores list the first positions. */
START_TEST(test_attention_is_a_mean) {
    struct o53_dims d = tiny();
    struct o53_model m;
    struct o53_out o;
    double value[40], mean[40], y[32], want[32];

    d.heads = 1;
    d.layers = 1;
    twin53_make(&m, &d, 2, "bf16");
    zero(&m, "q_b_proj");
    zero(&m, "weights_proj");
    zero(&m, "down_proj");
    oracle53_run(&m, IDS, N, &o);
    for (uint32_t t = 0; t < N; t++) {
        const uint32_t seen = t + 1 < 5 ? t + 1 : 5;

        memset(mean, 0, sizeof mean);
        for (uint32_t j = 0; j < seen; j++) {
            value_of(&m, o.hidden + (size_t)j * 32, value);
            for (uint32_t i = 0; i < 40; i++)
                mean[i] += value[i] / seen;
        }
        memcpy(y, o.hidden + (size_t)t * 32, sizeof y);
        add(oracle53_find(&m, L0 "self_attn.o_proj.weight"), 0, 32, mean, y);
        oracle53_rmsnorm(y, weight(&m, "model.norm.weight"), 32, 1e-5, want);
        ck_assert_msg(distance(want, o.hidden + ((size_t)N + t) * 32, 32) < CLOSE, "position %u", t);
    }
    ck_assert_uint_eq(o.sparse_rows, 2 * N - 1 - 2 * 5); /* of the layer, and of the one that drafts */
    oracle53_done(&o);
    twin53_done(&m);
}
END_TEST

/* Runs the changed model, compares the last logits with those before, and takes the change back. */
static int matters(struct o53_model *m, const struct o53_out *was, const char *name, uint32_t from,
                   uint32_t to, double factor) {
    struct o53_tensor *t = change(m, name);
    struct o53_out o;
    int r;

    for (size_t i = (size_t)from * t->cols; i < (size_t)to * t->cols; i++)
        t->v[i] *= factor;
    oracle53_run(m, IDS, N, &o);
    r = distance(o.logits, was->logits, (size_t)N * m->d.vocab) > 1e-9;
    for (size_t i = (size_t)from * t->cols; i < (size_t)to * t->cols; i++)
        t->v[i] /= factor;
    oracle53_done(&o);
    return r;
}

/* Only layer 4 may speak: it listens to the list of layer 2 and to no other. */
START_TEST(test_shared_lists) {
    static const char *const P[] = {"model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj",
                                    "model.layers.2.self_attn.o_proj", "model.layers.3.self_attn.o_proj",
                                    "model.layers.5.self_attn.o_proj", "model.layers.6.self_attn.o_proj",
                                    "model.layers.7.self_attn.o_proj", "down_proj"};
    struct o53_dims d = tiny();
    struct o53_model m;
    struct o53_out o;

    twin53_make(&m, &d, 3, "bf16");
    for (size_t i = 0; i < sizeof P / sizeof *P; i++)
        zero(&m, P[i]);
    oracle53_run(&m, IDS, N, &o);
    ck_assert_int_eq(matters(&m, &o, "model.layers.1.self_attn.indexer.weights_proj.weight", 0, 4, -1), 0);
    ck_assert_int_eq(matters(&m, &o, "model.layers.2.self_attn.indexer.weights_proj.weight", 0, 4, -1), 1);
    ck_assert_int_eq(matters(&m, &o, "model.layers.6.self_attn.indexer.weights_proj.weight", 0, 4, -1), 0);
    oracle53_done(&o);
    twin53_done(&m);
}
END_TEST

static int theta_matters(struct o53_model *m) {
    struct o53_out a, b;
    int r;

    oracle53_run(m, IDS, N, &a);
    m->d.theta = 10;
    oracle53_run(m, IDS, N, &b);
    m->d.theta = 8e6;
    r = distance(a.logits, b.logits, (size_t)N * m->d.vocab) > 1e-9;
    oracle53_done(&a);
    oracle53_done(&b);
    return r;
}

/* What turns: the last dims of a head's query, the rows of kv_a behind the latent, the first dims of the
 * index. With all of them silent the angles are nobody's business; each of them brings them back. */
START_TEST(test_what_turns) {
    struct o53_dims d = tiny();
    struct o53_model m;
    struct o53_tensor *q, *w, *b;
    struct o53_out o;

    d.heads = 1;
    d.layers = 1;
    twin53_make(&m, &d, 4, "bf16");
    q = change(&m, L0 "self_attn.q_b_proj.weight");
    w = change(&m, L0 "self_attn.indexer.k_norm.weight");
    b = change(&m, L0 "self_attn.indexer.k_norm.bias");
    memset(q->v + (size_t)24 * q->cols, 0, (size_t)8 * q->cols * sizeof(double));
    memset(w->v, 0, 8 * sizeof(double));
    memset(b->v, 0, 8 * sizeof(double));
    ck_assert_int_eq(theta_matters(&m), 0);
    oracle53_run(&m, IDS, N, &o);
    ck_assert_int_eq(matters(&m, &o, L0 "self_attn.kv_a_proj_with_mqa.weight", 12, 20, 16), 0);
    ck_assert_int_eq(matters(&m, &o, L0 "self_attn.kv_a_proj_with_mqa.weight", 11, 12, 16), 1);
    oracle53_done(&o);
    for (uint32_t i = 0; i < 8; i++)
        w->v[i] = 1;
    ck_assert_int_eq(theta_matters(&m), 1);
    memset(w->v, 0, 8 * sizeof(double));
    q->v[(size_t)30 * q->cols] = 1;
    ck_assert_int_eq(theta_matters(&m), 1);
    twin53_done(&m);
}
END_TEST

/* Nothing looks ahead: neither the trunk nor, one further, the draft. */
START_TEST(test_causal) {
    struct o53_dims d = tiny();
    int32_t other[N];
    struct o53_model m;
    struct o53_out a, b;

    twin53_make(&m, &d, 5, "bf16");
    memcpy(other, IDS, sizeof other);
    other[11] = 30;
    oracle53_run(&m, IDS, N, &a);
    oracle53_run(&m, other, N, &b);
    ck_assert(memcmp(a.logits, b.logits, (size_t)11 * 50 * sizeof(double)) == 0);
    ck_assert(distance(a.logits + (size_t)11 * 50, b.logits + (size_t)11 * 50, 50) > 1e-3);
    ck_assert(memcmp(a.draft, b.draft, (size_t)10 * 50 * sizeof(double)) == 0);
    ck_assert(distance(a.draft + (size_t)10 * 50, b.draft + (size_t)10 * 50, 50) > 1e-3);
    oracle53_done(&b);
    /* and what is there does not depend on what follows */
    oracle53_run(&m, IDS, 9, &b);
    ck_assert(memcmp(a.logits, b.logits, (size_t)9 * 50 * sizeof(double)) == 0);
    ck_assert(memcmp(a.draft, b.draft, (size_t)8 * 50 * sizeof(double)) == 0);
    oracle53_done(&a);
    oracle53_done(&b);
    twin53_done(&m);
}
END_TEST

/* The next id's embedding comes first in the pair, the head's vector second. */
START_TEST(test_draft_pair) {
    struct o53_dims d = tiny();
    struct o53_model m;
    struct o53_tensor *eh;
    struct o53_out o;

    twin53_make(&m, &d, 6, "bf16");
    zero(&m, "model.layers.8.self_attn.o_proj");
    eh = change(&m, "model.layers.8.eh_proj.weight");
    for (uint32_t r = 0; r < 32; r++)
        memset(eh->v + (size_t)r * 64 + 32, 0, 32 * sizeof(double));
    oracle53_run(&m, IDS, N, &o);
    /* ids 1 and 3 are both 1, 4 and 8 are both 5: their entries, 0 and 2, 3 and 7, are made of nothing else
     */
    ck_assert(distance(o.draft, o.draft + 2 * 50, 50) == 0);
    ck_assert(distance(o.draft + 3 * 50, o.draft + 7 * 50, 50) == 0);
    ck_assert(distance(o.draft, o.draft + 50, 50) > 1e-3);
    oracle53_done(&o);
    twin53_done(&m);
}
END_TEST

/* One expert of many: its answer has the whole scale, beside the shared one's, which has none; and no clamp.
 */
START_TEST(test_moe) {
    struct o53_dims d = tiny();
    struct o53_model m;
    struct o53_out o;
    double x[32], g[48] = {0}, u[48] = {0}, y[32], want[32];

    d.layers = 1;
    d.dense_layers = 0;
    d.active = 1;
    twin53_make(&m, &d, 7, "bf16");
    zero(&m, "o_proj");
    zero(&m, "shared_experts.down_proj");
    memset(change(&m, L0 "mlp.gate.e_score_correction_bias")->v, 0, 7 * sizeof(double));
    change(&m, L0 "mlp.gate.e_score_correction_bias")->v[5] = 2;
    for (uint32_t i = 0; i < 48; i++)
        change(&m, L0 "mlp.experts.5.up_proj.weight")->v[i * 32] *= 64;
    oracle53_run(&m, IDS, N, &o);
    oracle53_rmsnorm(o.hidden, weight(&m, L0 "post_attention_layernorm.weight"), 32, 1e-5, x);
    add(oracle53_find(&m, L0 "mlp.experts.5.gate_proj.weight"), 0, 48, x, g);
    add(oracle53_find(&m, L0 "mlp.experts.5.up_proj.weight"), 0, 48, x, u);
    for (uint32_t i = 0; i < 48; i++)
        g[i] = 2.5 * g[i] / (1 + exp(-g[i])) * u[i];
    memcpy(y, o.hidden, sizeof y);
    add(oracle53_find(&m, L0 "mlp.experts.5.down_proj.weight"), 0, 32, g, y);
    oracle53_rmsnorm(y, weight(&m, "model.norm.weight"), 32, 1e-5, want);
    ck_assert(distance(want, o.hidden + (size_t)N * 32, 32) < CLOSE);
    oracle53_done(&o);
    twin53_done(&m);
}
END_TEST

/* ---- the twin's files ---- */

static const struct twin53_case CASES[] = {{"one", 1, 0}, {"room", 24, 0}, {"long", 40, 2}};

static void same_file(const struct ckpt *a, const struct ckpt *b, const char *file) {
    size_t n, k;
    char *x = ckpt_read(a, file, &n), *y = ckpt_read(b, file, &k);

    ck_assert_msg(n == k && memcmp(x, y, n) == 0, "%s: the same seed gave other bytes", file);
    free(x);
    free(y);
}

/* Both spellings: the same bytes from the same seed, and decisions that two correct programs make alike. */
START_TEST(test_files) {
    const char *stored = _i ? "fp8" : "bf16";
    const struct o53_dims d = twin53_dims();
    struct ckpt c[2];
    struct o53_out gaps;
    struct o53_model m;

    for (int i = 0; i < 2; i++) {
        ckpt_empty(&c[i]);
        twin53_make(&m, &d, 53, stored);
        twin53_write(&m, &c[i], stored);
        if (i == 0)
            twin53_golden(&m, &c[i], "golden.safetensors", CASES, 3, &gaps);
        twin53_done(&m);
    }
    same_file(&c[0], &c[1], "model.safetensors");
    same_file(&c[0], &c[1], "config.json");
    ck_assert_uint_gt(gaps.sparse_rows, 200);
    ck_assert_msg(gaps.index_gap > 1e-5 && gaps.router_gap > 1e-5, "%s: found gaps of %.2g and %.2g", stored,
                  gaps.index_gap, gaps.router_gap);
    for (int i = 0; i < 2; i++)
        ckpt_remove(&c[i]);
}
END_TEST

int main(void) {
    Suite *s = suite_create("oracle53");
    TCase *t = tcase_create("closed forms"), *f = tcase_create("files");
    SRunner *sr;
    int failed;

    tcase_add_test(t, test_rope);
    tcase_add_test(t, test_rmsnorm);
    tcase_add_test(t, test_select);
    tcase_add_test(t, test_route);
    tcase_add_test(t, test_full_layers);
    tcase_add_test(t, test_residual);
    tcase_add_test(t, test_attention_is_a_mean);
    tcase_add_test(t, test_shared_lists);
    tcase_add_test(t, test_what_turns);
    tcase_add_test(t, test_causal);
    tcase_add_test(t, test_draft_pair);
    tcase_add_test(t, test_moe);
    tcase_add_loop_test(f, test_files, 0, 2);
    tcase_set_timeout(f, 60);
    tcase_add_checked_fixture(f, leakcheck_setup, leakcheck_teardown);
    suite_add_tcase(s, t);
    suite_add_tcase(s, f);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
