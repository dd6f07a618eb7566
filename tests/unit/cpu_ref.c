/* SPDX-License-Identifier: MIT */
/* The CPU backend against the oracle on random models: streams after every half layer, hidden states, logits,
 * the draft layer and the counters, in prefill chunks and in decode steps, for every kind of layer and odd
 * sizes. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernmodel.h"

/* A BF16 cache rounds numbers that differ in their last bit to neighbours 2^-8 apart, now and then; FP8 to ones
 * 2^-3 apart. */
static double tolerance(const struct kern_config *cfg) {
    return cfg->cache == KERN_CACHE_FP8 ? 1e-2 : cfg->cache == KERN_CACHE_BF16 ? 1e-3 : 2e-5;
}

struct pair {
    struct kernmodel *m;
    struct km_inst *ref, *cpu;
    struct km_plan *plan;
    float *a, *b; /* room for whatever is compared */
};

static void open_pair(struct pair *p, const struct kern_config *cfg, uint64_t seed) {
    p->m = km_new(cfg, seed);
    p->ref = km_open(p->m, "ref", NULL);
    p->cpu = km_open(p->m, "cpu", NULL);
    p->plan = km_plan_new(p->ref);
    uint64_t n =
        cfg->max_rows[1] * (uint64_t)(cfg->model.hc_mult * cfg->model.hidden + cfg->model.vocab_rows);
    p->a = malloc(n * sizeof(float));
    p->b = malloc(n * sizeof(float));
    ck_assert(p->a && p->b);
}

static void close_pair(struct pair *p) {
    km_plan_free(p->plan);
    km_close(p->ref);
    km_close(p->cpu);
    km_free(p->m);
    free(p->a);
    free(p->b);
}

static void near(const struct pair *p, const char *what, uint32_t at, uint64_t n) {
    double d = 0, w = 0;
    for (uint64_t i = 0; i < n; i++) {
        d += ((double)p->a[i] - p->b[i]) * ((double)p->a[i] - p->b[i]);
        w += (double)p->a[i] * p->a[i];
    }
    ck_assert_msg(n && sqrt(d) <= tolerance(&p->m->cfg) * sqrt(w), "%s %u: relative error %g", what, at,
                  sqrt(d / w));
}

static void peek_both(struct pair *p, uint32_t lane, enum kern_peek what, uint32_t n, const char *name,
                      uint32_t at) {
    const struct kern_model_desc *m = &p->m->cfg.model;
    uint64_t width = what == KERN_PEEK_STREAMS  ? m->hc_mult * m->hidden
                     : what == KERN_PEEK_LOGITS ? m->vocab_rows
                                                : m->hidden;
    km_peek(p->ref, lane, what, 0, n, p->a);
    km_peek(p->cpu, lane, what, 0, n, p->b);
    near(p, name, at, n * width);
}

static void both(struct pair *p, uint32_t lane, struct kern_prog *a, struct kern_prog *b) {
    km_launch_wait(p->ref, lane, a);
    km_launch_wait(p->cpu, lane, b);
}

static void same_counters(struct pair *p, uint32_t lane) {
    struct kern_counters a, b;
    ck_assert_int_eq(kern_counters(p->ref->k, lane, &a), 0);
    ck_assert_int_eq(kern_counters(p->cpu->k, lane, &b), 0);
    ck_assert_uint_eq(a.latent_rows, b.latent_rows);
    ck_assert_uint_eq(a.pooled_keys, b.pooled_keys);
    ck_assert_uint_eq(a.experts, b.experts);
    /* an expert's three matrices; the oracle's have no paddings, nor have its rows of the cache */
    const struct kern_model_desc *m = &p->m->cfg.model;
    ck_assert_uint_eq(a.expert_bytes, a.experts * 3ull * m->expert_width * m->hidden * 2);
    ck_assert_uint_ge(b.expert_bytes, a.expert_bytes);
    ck_assert_uint_le(b.expert_bytes, b.weight_bytes);
    ck_assert_uint_ge(b.cache_bytes, a.cache_bytes);
    ck_assert_uint_ge(a.cache_bytes, a.latent_rows * m->kv_rank);
    /* the oracle leaves out index queries of rows that see everything; no other difference */
    ck_assert_uint_ge(b.flops, a.flops);
    ck_assert_uint_le(b.flops, a.flops + a.flops / 20);
}

/* Rows pos0 .. pos0+n-1 of slot 1, half a layer at a time, everything compared. */
static void compare_rows(struct pair *p, const uint32_t *ids, uint32_t total, uint32_t lane, uint32_t pos0,
                         uint32_t n) {
    const struct kern_model_desc *m = &p->m->cfg.model;
    uint32_t next[512], drafts = 0;
    for (uint32_t j = 0; j < n; j++) {
        next[j] = pos0 + j + 1 < total ? ids[pos0 + j + 1] : KERN_NONE;
        drafts += next[j] != KERN_NONE;
    }
    km_plan_clear(p->plan, lane);
    km_plan_seq(p->plan, 1, pos0, 0,
                KERN_SEQ_COMMIT | (lane ? KERN_SEQ_PREFILL : 0u) | (pos0 ? 0u : KERN_SEQ_RESET) |
                    (m->n_draft ? KERN_SEQ_DRAFT : 0u),
                ids + pos0, n, m->n_draft ? next : NULL);
    for (uint32_t j = 0; j < n; j++)
        km_plan_sample(p->plan, j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
    struct kern_plan *b = km_plan_build(p->plan);
    ck_assert_int_eq(kern_plan_load(p->ref->k, b, b->bytes), 0);
    ck_assert_int_eq(kern_plan_load(p->cpu->k, b, b->bytes), 0);
    both(p, lane, p->ref->embed[lane], p->cpu->embed[lane]);
    peek_both(p, lane, KERN_PEEK_STREAMS, n, "embedding", 0);
    for (uint32_t l = 0; l < m->n_layers; l++)
        for (int s = 0; s < 2; s++) {
            both(p, lane, p->ref->half[lane][l][s], p->cpu->half[lane][l][s]);
            peek_both(p, lane, KERN_PEEK_STREAMS, n,
                      s ? "streams after the feed-forward of layer" : "streams after the mixer of layer", l);
        }
    both(p, lane, p->ref->final[lane], p->cpu->final[lane]);
    peek_both(p, lane, KERN_PEEK_HIDDEN, n, "hidden", 0);
    both(p, lane, p->ref->head[lane], p->cpu->head[lane]);
    peek_both(p, lane, KERN_PEEK_LOGITS, n, "logits", 0);
    for (uint32_t j = 0; j < n; j++) {
        const struct kern_result *x = km_results(p->ref, lane) + j, *y = km_results(p->cpu, lane) + j;
        ck_assert_uint_eq(x->top1, y->top1);
        ck_assert_float_eq_tol(x->logsumexp, y->logsumexp, (float)tolerance(&p->m->cfg) * 10);
    }
    if (m->n_draft) {
        both(p, lane, p->ref->draft[lane], p->cpu->draft[lane]);
        if (drafts)
            peek_both(p, lane, KERN_PEEK_DRAFT, drafts, "draft hidden", 0);
    }
    same_counters(p, lane);
}

static void compare_model(const struct kern_config *cfg, uint64_t seed) {
    struct pair p;
    enum { N = 203, PREFILL = 185 };
    uint32_t ids[N];
    struct km_rng rng = {seed};
    open_pair(&p, cfg, seed);
    for (int i = 0; i < N; i++)
        ids[i] = km_below(&rng, cfg->model.vocab_rows);
    compare_rows(&p, ids, N, KERN_LANE_PREFILL, 0, 128);
    compare_rows(&p, ids, N, KERN_LANE_PREFILL, 128, PREFILL - 128);
    for (uint32_t at = PREFILL, n = 1; at < N; at += n, n = n % 7 + 1)
        compare_rows(&p, ids, N, KERN_LANE_DECODE, at, n < N - at ? n : N - at);
    close_pair(&p);
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
