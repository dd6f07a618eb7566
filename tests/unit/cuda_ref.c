/* SPDX-License-Identifier: MIT */
/* The CUDA backend against the oracle on random models, stage by stage. Both round to BF16 what enters a product;
 * they differ where a number lies so close to the middle between two that the last bit of a sum decides (2^-8 of it
 * then, in one of thousands), and attention rounds its weights beside the largest of the tile before the largest of
 * all is known (1e-3 of an output). Such differences go through all that is behind them: a layer alone is held to
 * 5e-3 (one number of one row's 60 makes 2e-3, most steps 1e-7), a model of up to eight layers to 3e-2 (2.2e-2 is
 * the most that was seen), with a cache that rounds what differs once more to 6e-2 (4e-2). Where they decide which
 * expert or pool is taken, everything behind is another number: what is compared stage by stage has nothing to
 * choose, and choices are measured apart. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernpair.h"
#include "kernstores.h"

static double tolerance(const struct kern_config *cfg) {
    return cfg->cache == KERN_CACHE_F32 ? 3e-2 : 6e-2;
}

static void no_choices(struct kern_config *cfg) {
    cfg->model.n_top = cfg->model.n_experts;
    cfg->model.index_topk = 512;
}

static void small(struct kern_config *cfg) {
    km_config_small(cfg);
    no_choices(cfg);
}

static void compare_model(const struct kern_config *cfg, uint64_t seed) {
    struct kp_pair p;
    kp_open(&p, cfg, seed, "cuda", true, tolerance(cfg));
    kp_text(&p, seed);
    kp_close(&p);
}

START_TEST(odd_sizes) {
    struct kern_config cfg;
    small(&cfg);
    compare_model(&cfg, 1);
}
END_TEST

static const char *const kinds[][2] = {{"Nd Kd Fm Sd Km Nm Fd Sm", "Fd"}, {"Fm Kd", "Nm"}, {"Fms Nd", "Nms"}};

START_TEST(every_layer_kind) {
    struct kern_config cfg;
    small(&cfg);
    km_layers(&cfg.model, kinds[_i][0], kinds[_i][1]);
    compare_model(&cfg, 2 + (uint64_t)_i);
}
END_TEST

/* One kind of layer at a time, where nothing amplifies a fault or hides it. */
static const char *const alone[] = {"Kd", "Km", "Kd Kd", "Nd", "Nm", "Fd", "Fms"};

START_TEST(layers_alone) {
    enum { N = 100, PREFILL = 67 };
    struct kern_config cfg;
    struct kp_pair p;
    struct km_rng r = {80 + (uint64_t)_i};
    uint32_t ids[N];
    small(&cfg);
    km_layers(&cfg.model, alone[_i], NULL);
    for (int i = 0; i < N; i++)
        ids[i] = km_below(&r, cfg.model.vocab_tokens);
    kp_open(&p, &cfg, 80 + (uint64_t)_i, "cuda", true, 5e-3);
    kp_rows(&p, ids, N, KERN_LANE_PREFILL, 0, 64);
    kp_rows(&p, ids, N, KERN_LANE_PREFILL, 64, PREFILL - 64);
    for (uint32_t at = PREFILL, n = 1; at < N; at += n, n = n % 9 + 1)
        kp_rows(&p, ids, N, KERN_LANE_DECODE, at, n < N - at ? n : N - at);
    kp_close(&p);
}
END_TEST

/* The head width, latent and keys of the real models, no clamp, many experts. */
START_TEST(round_sizes) {
    struct kern_config cfg;
    km_config_small(&cfg);
    struct kern_model_desc *m = &cfg.model;
    m->hidden = 64;
    m->kda_dim = 128;
    m->kda_heads = 2;
    m->kv_rank = 512;
    m->nope_dim = 64;
    m->v_dim = 64;
    m->mla_heads = 6;
    m->index_dim = 128;
    m->index_heads = 5;
    m->n_experts = 21;
    m->n_shared = 2;
    m->swiglu_limit = 0;
    m->dense_width = 320;
    no_choices(&cfg);
    km_layers(m, "Kd Fm Km", "Fm");
    compare_model(&cfg, 6);
}
END_TEST

START_TEST(pool_widths_and_streams) {
    struct kern_config cfg;
    uint32_t kpool = 1u << _i;
    small(&cfg);
    cfg.model.index_kpool = kpool;
    cfg.model.hc_mult = kpool > 8 ? 8 : kpool;
    cfg.model.hc_iters = 1 + kpool;
    cfg.model.conv_width = kpool > 8 ? 8 : kpool;
    cfg.model.n_shared = kpool == 2 ? 0 : 1;
    km_layers(&cfg.model, "Kd Fm", "Fm");
    compare_model(&cfg, 10 + kpool);
}
END_TEST

START_TEST(plain_residuals) {
    struct kern_config cfg;
    small(&cfg);
    cfg.model.hc_mult = 1;
    km_layers(&cfg.model, "Kd Fm", "Fm");
    for (uint32_t i = 0; i < cfg.model.n_layers; i++)
        cfg.model.layer[i].resid = KERN_RESID_PLAIN;
    compare_model(&cfg, 30);
}
END_TEST

START_TEST(narrow_caches) {
    struct kern_config cfg;
    small(&cfg);
    cfg.cache = _i ? KERN_CACHE_FP8 : KERN_CACHE_BF16;
    compare_model(&cfg, 31);
}
END_TEST

START_TEST(rotary_positions) {
    struct kern_config cfg;
    km_config_glm53(&cfg);
    no_choices(&cfg);
    cfg.cache = _i == 1 ? KERN_CACHE_BF16 : _i == 2 ? KERN_CACHE_FP8 : KERN_CACHE_F32;
    if (_i == 3) { /* the widths of GLM-5.3's heads, latents and keys */
        struct kern_model_desc *m = &cfg.model;
        m->hidden = 96;
        m->mla_heads = 9;
        m->kv_rank = 512;
        m->nope_dim = 192;
        m->rope_dim = 64;
        m->v_dim = 64;
        m->index_heads = 9;
        m->index_dim = 128;
        m->rope_theta = 8e6f;
    }
    if (_i == 4) { /* rotary numbers beside other kinds of layers */
        km_layers(&cfg.model, "Kd Nms Fd", "Nms");
        cfg.model.hc_mult = 4;
        cfg.model.hc_iters = 3;
        cfg.model.kda_heads = 2;
        cfg.model.kda_dim = 9;
        cfg.model.conv_width = 3;
    }
    compare_model(&cfg, 50 + (uint64_t)_i);
}
END_TEST

/* ---- formats -------------------------------------------------------------------------------------------------- */

static const struct kern_store stores[] = {
    {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128},
    {.format = KERN_FP8, .scale = KERN_SCALE_BF16, .block_rows = 1},
    {.format = KERN_FP8, .scale = KERN_SCALE_F32},
    {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128},
    {.format = KERN_INT8, .scale = KERN_SCALE_F32, .block_rows = 1},
    {.format = KERN_INT8, .scale = KERN_SCALE_F16, .block_rows = 1, .block_cols = 32},
    {.format = KERN_NVFP4, .scale = KERN_SCALE_E4M3, .block_rows = 1, .block_cols = 16},
    {.format = KERN_EXL3, .bits = 4, .codebook = KERN_CODEBOOK_3INST},
    {.format = KERN_EXL3, .bits = 4, .codebook = KERN_CODEBOOK_MCG},
    {.format = KERN_EXL3, .bits = 4, .codebook = KERN_CODEBOOK_MUL1},
    {.format = KERN_EXL3, .bits = 2, .codebook = KERN_CODEBOOK_MCG},
    {.format = KERN_EXL3, .bits = 5, .codebook = KERN_CODEBOOK_MUL1},
};
enum { STORES = sizeof(stores) / sizeof(stores[0]) };

/* Every width a multiple of 128, so that every matrix can have every format. */
START_TEST(each_format) {
    struct kern_config cfg;
    uint32_t used, ids[12];
    struct km_rng r = {60 + (uint64_t)_i};
    small(&cfg);
    struct kern_model_desc *m = &cfg.model;
    m->vocab_rows = m->vocab_tokens = 256;
    m->hidden = m->dense_width = m->expert_width = m->q_rank = m->kv_rank = m->kda_dim = m->index_dim = 128;
    m->nope_dim = m->v_dim = 128;
    m->n_experts = m->n_top = 3;
    m->kda_heads = m->mla_heads = m->index_heads = 2;
    km_layers(m, "Kd Fm", "Fm");
    struct kern_store *all = ks_stores(m, &stores[_i], &used);
    ck_assert_uint_ge(used, 20);
    cfg.stores = all;
    for (int i = 0; i < 12; i++)
        ids[i] = km_below(&r, m->vocab_tokens);
    struct kp_pair p;
    kp_open(&p, &cfg, 60 + (uint64_t)_i, "cuda", true, tolerance(&cfg));
    kp_rows(&p, ids, 12, KERN_LANE_PREFILL, 0, 5);
    kp_rows(&p, ids, 12, KERN_LANE_DECODE, 5, 1);
    kp_rows(&p, ids, 12, KERN_LANE_DECODE, 6, 6);
    kp_close(&p);
    free(all);
}
END_TEST

/* ---- choices -------------------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double distance(const float *a, const float *b, uint32_t n) {
    double d = 0, w = 0;
    for (uint32_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        w += (double)b[i] * b[i];
    }
    return sqrt(d / w);
}

/* Experts and pools of random models are close to each other, and rounding alone makes other choices. It makes no more
 * of them here than between the oracle that rounds and the one that does not: by the middle one of the rows' errors,
 * and by top-1. */
START_TEST(choices_change_by_rounding_alone) {
    enum { N = 140, FROM = 80, ROWS = N - FROM };
    struct kern_config cfg, rounds;
    uint32_t ids[N], same[2] = {0};
    double error[2][ROWS];
    struct km_rng r = {70 + (uint64_t)_i};
    (_i ? km_config_glm53 : km_config_small)(&cfg);
    for (int i = 0; i < N; i++)
        ids[i] = km_below(&r, cfg.model.vocab_tokens);
    rounds = cfg;
    rounds.isa = "bf16";
    struct kernmodel *m = km_new(&cfg, 71);
    struct km_inst *want = km_open(m, "ref", &rounds),
                   *other[2] = {km_open(m, "ref", NULL), km_open(m, "cuda", NULL)};
    struct km_plan *p = km_plan_new(want);
    float x[256], y[256];
    km_prefill(want, p, 0, ids, FROM, 64);
    for (int k = 0; k < 2; k++)
        km_prefill(other[k], p, 0, ids, FROM, 64);
    for (uint32_t t = FROM; t < N; t++) {
        km_decode(want, p, 0, t, ids[t], x);
        uint32_t top = km_results(want, KERN_LANE_DECODE)->top1;
        for (int k = 0; k < 2; k++) {
            km_decode(other[k], p, 0, t, ids[t], y);
            same[k] += km_results(other[k], KERN_LANE_DECODE)->top1 == top;
            error[k][t - FROM] = distance(y, x, cfg.model.vocab_rows);
        }
    }
    for (int k = 0; k < 2; k++)
        qsort(error[k], ROWS, sizeof(error[k][0]), by_size);
    if (getenv("KERN_PAIR_ERRORS"))
        printf("top-1 %u and %u of %d, median error %.2e and %.2e\n", same[0], same[1], ROWS, error[0][ROWS / 2],
               error[1][ROWS / 2]);
    ck_assert_msg(error[1][ROWS / 2] < 1.25 * error[0][ROWS / 2] + 3e-2, "median relative error %g, of rounding %g",
                  error[1][ROWS / 2], error[0][ROWS / 2]);
    ck_assert_msg(same[1] + ROWS / 10 >= same[0], "top-1 is the oracle's in %u of %d, without rounding in %u", same[1],
                  ROWS, same[0]);
    km_plan_free(p);
    km_close(want);
    km_close(other[0]);
    km_close(other[1]);
    km_free(m);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cuda_ref");
    TCase *t = tcase_create("cuda");
    tcase_set_timeout(t, 240);
    tcase_add_test(t, odd_sizes);
    tcase_add_loop_test(t, every_layer_kind, 0, 3);
    tcase_add_loop_test(t, layers_alone, 0, 7);
    tcase_add_test(t, round_sizes);
    tcase_add_loop_test(t, pool_widths_and_streams, 0, 5);
    tcase_add_test(t, plain_residuals);
    tcase_add_loop_test(t, narrow_caches, 0, 2);
    tcase_add_loop_test(t, rotary_positions, 0, 5);
    tcase_add_loop_test(t, each_format, 0, STORES);
    tcase_add_loop_test(t, choices_change_by_rounding_alone, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
