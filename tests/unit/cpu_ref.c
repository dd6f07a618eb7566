/* SPDX-License-Identifier: MIT */
/* The CPU backend against the oracle on random models: streams after every half layer, hidden states, logits,
 * the draft layer and the counters, in prefill chunks and in decode steps, for every kind of layer and odd
 * sizes. */
#include <check.h>
#include <stdlib.h>

#include "backend.h"
#include "kernpair.h"

/* A BF16 cache rounds numbers that differ in their last bit to neighbours 2^-8 apart, now and then; FP8 to ones
 * 2^-3 apart. */
static double tolerance(const struct kern_config *cfg) {
    return cfg->cache == KERN_CACHE_FP8 ? 1e-2 : cfg->cache == KERN_CACHE_BF16 ? 1e-3 : 2e-5;
}

static void compare_model(const struct kern_config *cfg, uint64_t seed) {
    struct kp_pair p;
    kp_open(&p, cfg, seed, "cpu", false, tolerance(cfg));
    kp_text(&p, seed);
    kp_close(&p);
}

static void small(struct kern_config *cfg) {
    km_config_small(cfg);
    cfg->model.swiglu_limit = 0.5f;
}

START_TEST(odd_sizes) {
    struct kern_config cfg;
    small(&cfg);
    compare_model(&cfg, 1);
}
END_TEST

START_TEST(every_layer_kind) {
    struct kern_config cfg;
    small(&cfg);
    km_layers(&cfg.model, "Nd Kd Fm Sd Km Nm Fd Sm", "Fd");
    compare_model(&cfg, 2);
    km_layers(&cfg.model, "Fm Kd", "Nm");
    compare_model(&cfg, 3);
    km_layers(&cfg.model, "Fms Nd", "Nms");
    compare_model(&cfg, 5);
}
END_TEST

/* Whole vectors everywhere, the head width and latent of the real models, no clamp, many experts. */
START_TEST(round_sizes) {
    struct kern_config cfg;
    small(&cfg);
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
    m->n_experts = 37;
    m->n_top = 5;
    m->n_shared = 2;
    m->swiglu_limit = 0;
    m->dense_width = 320;
    km_layers(m, "Kd Fm Km", "Fm");
    compare_model(&cfg, 4);
}
END_TEST

START_TEST(pool_widths_and_streams) {
    struct kern_config cfg;
    for (uint32_t kpool = 1; kpool <= 16; kpool *= 2) {
        small(&cfg);
        cfg.model.index_kpool = kpool;
        cfg.model.index_topk = 32;
        cfg.model.hc_mult = kpool > 8 ? 8 : kpool;
        cfg.model.hc_iters = 1 + kpool;
        cfg.model.conv_width = kpool > 8 ? 8 : kpool;
        cfg.model.n_shared = kpool == 2 ? 0 : 1;
        km_layers(&cfg.model, "Kd Fm", "Fm");
        compare_model(&cfg, 10 + kpool);
    }
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
    cfg.model.index_topk = 512; /* a rounded key may win where it should not: no choosing here */
    compare_model(&cfg, 31);
}
END_TEST

START_TEST(rotary_positions) {
    struct kern_config cfg;
    km_config_glm53(&cfg);
    compare_model(&cfg, 50);
    /* the last pair's lane beside paddings, and a latent whose paddings reach beyond its rotary numbers */
    cfg.model.kv_rank = 33;
    cfg.model.rope_dim = 2;
    cfg.model.nope_dim = 17;
    cfg.model.index_dim = 2;
    compare_model(&cfg, 51);
    km_config_glm53(&cfg);
    km_layers(&cfg.model, "Kd Nms Fd", "Nms"); /* rotary numbers beside other kinds of layers */
    cfg.model.hc_mult = 4;
    cfg.model.hc_iters = 3;
    cfg.model.kda_heads = 2;
    cfg.model.kda_dim = 9;
    cfg.model.conv_width = 3;
    compare_model(&cfg, 52);
}
END_TEST

/* The widths of GLM-5.3's heads, latents and keys. */
START_TEST(rotary_positions_real_widths) {
    struct kern_config cfg;
    km_config_glm53(&cfg);
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
    compare_model(&cfg, 53);
}
END_TEST

START_TEST(rotary_narrow_caches) {
    struct kern_config cfg;
    km_config_glm53(&cfg);
    cfg.cache = _i ? KERN_CACHE_FP8 : KERN_CACHE_BF16;
    cfg.model.index_topk = 512; /* as above */
    compare_model(&cfg, 54);
}
END_TEST

/* A step in which every expert has a row reads everything but the embedding's other rows: what is counted is
 * what is packed, up to the gaps that keep areas aligned. */
START_TEST(counted_bytes_are_packed_bytes) {
    struct kern_config cfg;
    uint64_t bytes[KERN_MEM_N], tensors = 0;
    struct kern_counters c;
    small(&cfg);
    cfg.model.n_top = cfg.model.n_experts;
    km_layers(&cfg.model, "Kd Fm Sm Km Nd", NULL);
    struct kernmodel *m = km_new(&cfg, 40);
    struct km_inst *i = km_open(m, "cpu", NULL);
    struct km_plan *p = km_plan_new(i);
    for (uint32_t l = 0; l < cfg.model.n_layers; l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            tensors += kern_part_info(&cfg.model, part, l, &info) ? info.experts : 0;
        }
    ck_assert_int_eq(kern_query("cpu", &i->cfg, bytes), 0);
    km_decode(i, p, 0, 0, 5, NULL);
    ck_assert_int_eq(kern_counters(i->k, KERN_LANE_DECODE, &c), 0);
    uint64_t row = (cfg.model.hidden + 15) / 16 * 32, rest = (cfg.model.vocab_rows - 1) * row;
    ck_assert_uint_le(c.weight_bytes + rest, bytes[KERN_MEM_WEIGHTS]);
    ck_assert_uint_le(bytes[KERN_MEM_WEIGHTS], c.weight_bytes + rest + 64 * tensors);
    /* states of the KDA layers, read and written: at least the numbers themselves */
    uint64_t state = 2ull * 2 * cfg.model.kda_heads * cfg.model.kda_dim * cfg.model.kda_dim * 4;
    ck_assert_uint_ge(c.state_bytes, state);
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("cpu_ref");
    TCase *tc = tcase_create("ref");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, odd_sizes);
    tcase_add_test(tc, every_layer_kind);
    tcase_add_test(tc, round_sizes);
    tcase_add_test(tc, pool_widths_and_streams);
    tcase_add_test(tc, plain_residuals);
    tcase_add_loop_test(tc, narrow_caches, 0, 2);
    tcase_add_test(tc, rotary_positions);
    tcase_add_test(tc, rotary_positions_real_widths);
    tcase_add_loop_test(tc, rotary_narrow_caches, 0, 2);
    tcase_add_test(tc, counted_bytes_are_packed_bytes);
    suite_add_tcase(s, tc);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
