/* SPDX-License-Identifier: MIT */
/* A model computed by several ranks, by the oracle and by the CPU backend: what one rank gives within 1e-4, in prompts
 * and decode windows, for every kind of layer and formats cut on their blocks; the same bits and the same tokens on all
 * ranks; and a rank that is gone or runs another step ends the step on all of them. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernranks.h"
#include "kernstores.h"

static const char *const backends[] = {"ref", "cpu"};

struct both {
    struct kernmodel *m;
    struct km_inst *one;
    struct kern_ranks *many;
    struct km_plan *plan;
    float *a, *b;
};

static void open_both(struct both *x, const struct kern_config *cfg, const char *backend, uint32_t n, uint64_t seed) {
    x->m = km_new(cfg, seed);
    x->one = km_open(x->m, backend, NULL);
    x->many = kr_open(x->m, backend, NULL, n, KR_TIMEOUT_MS);
    x->plan = km_plan_new(x->one);
    uint64_t floats = cfg->max_rows[1] * (uint64_t)(cfg->model.hc_mult * cfg->model.hidden + cfg->model.vocab_rows);
    x->a = malloc(floats * sizeof(float));
    x->b = malloc(floats * sizeof(float));
    ck_assert(x->a && x->b);
}

static void close_both(struct both *x) {
    km_plan_free(x->plan);
    km_close(x->one);
    kr_close(x->many);
    km_free(x->m);
    free(x->a);
    free(x->b);
}

static void near(struct both *x, uint32_t lane, enum kern_peek what, uint32_t n, uint64_t width, const char *name) {
    double d = 0, w = 0;
    km_peek(x->one, lane, what, 0, n, x->a);
    kr_peek(x->many, lane, what, 0, n, x->b);
    for (uint64_t i = 0; i < n * width; i++) {
        d += ((double)x->a[i] - (double)x->b[i]) * ((double)x->a[i] - (double)x->b[i]);
        w += (double)x->a[i] * (double)x->a[i];
    }
    ck_assert_msg(sqrt(d) <= 1e-4 * sqrt(w), "%u ranks, %s: relative error %g", x->many->n, name, sqrt(d / w));
}

/* Whatever the plan says, run by one and by many. */
static void run(struct both *x) {
    const struct kern_model_desc *m = &x->m->cfg.model;
    const uint32_t lane = x->plan->head.lane, rows = x->plan->head.n_rows, n = x->plan->head.n_samples;
    uint32_t drafts = 0, trunk = 0;
    km_run(x->one, x->plan);
    kr_run(x->many, x->plan);
    near(x, lane, KERN_PEEK_STREAMS, rows, (uint64_t)m->hc_mult * m->hidden, "streams");
    near(x, lane, KERN_PEEK_HIDDEN, rows, m->hidden, "hidden");
    for (uint32_t i = 0; i < rows && x->plan->row[i].next != KERN_NONE && x->plan->head.n_seqs == 1; i++)
        drafts++;
    if (m->n_draft && drafts)
        near(x, lane, KERN_PEEK_DRAFT, drafts, m->hidden, "draft hidden");
    for (uint32_t i = 0; i < n; i++)
        trunk += x->plan->sample[i].source == KERN_SOURCE_TRUNK;
    if (n)
        near(x, lane, KERN_PEEK_LOGITS, n, m->vocab_rows, "logits");
    const struct kern_result *b = kr_results(x->many, lane), *a = km_results(x->one, lane);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(a[i].top1, b[i].top1);
        ck_assert_float_eq_tol(a[i].logsumexp, b[i].logsumexp, 1e-3f);
    }
    ck_assert(trunk <= n);
}

/* A prompt in chunks and decode windows with rows kept and dropped, every row scored. */
static void walk(struct both *x, uint64_t seed, uint32_t n, uint32_t prefilled) {
    const struct kern_model_desc *m = &x->m->cfg.model;
    struct km_rng rng = {seed};
    uint32_t ids[512], next[512];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = km_below(&rng, m->vocab_rows);
    for (uint32_t at = 0, keep = 0, w; at < n; at += w) {
        bool prompt = at < prefilled;
        uint32_t lane = prompt ? KERN_LANE_PREFILL : KERN_LANE_DECODE;
        w = prompt ? (prefilled - at < 128 ? prefilled - at : 128) : 1 + km_below(&rng, 4);
        w = w < n - at ? w : n - at;
        for (uint32_t j = 0; j < w; j++)
            next[j] = at + j + 1 < n ? ids[at + j + 1] : KERN_NONE;
        bool commit = prompt || km_below(&rng, 2);
        km_plan_clear(x->plan, lane);
        km_plan_seq(x->plan, 1, at, keep,
                    (commit ? KERN_SEQ_COMMIT : 0u) | (prompt ? KERN_SEQ_PREFILL : 0u) | (at ? 0u : KERN_SEQ_RESET) |
                        (m->n_draft ? KERN_SEQ_DRAFT : 0u),
                    ids + at, w, m->n_draft ? next : NULL);
        for (uint32_t j = 0; j < w; j++)
            km_plan_sample(x->plan, j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
        for (uint32_t j = 0; m->n_draft && j < w && next[j] != KERN_NONE; j++)
            km_plan_sample(x->plan, j, KERN_SAMPLE_SCORE, KERN_SOURCE_DRAFT);
        run(x);
        keep = commit ? 0 : w;
    }
}

/* km_config_small with a head for each of four ranks; no width divides evenly. */
static void small(struct kern_config *cfg) {
    km_config_small(cfg);
    cfg->threads = 2;
    cfg->model.kda_heads = 6;
    cfg->model.mla_heads = 5;
}

/* _i: backend and ranks. */
START_TEST(every_kind_of_layer) {
    static const uint32_t counts[] = {2, 3, 4, 8};
    struct kern_config cfg;
    struct both x;
    small(&cfg);
    if (counts[_i / 2] == 8) {
        cfg.threads = 1;
        cfg.model.kda_heads = 9;
        cfg.model.mla_heads = 8;
    }
    km_layers(&cfg.model, "Kd Fm Sms Km Nd", _i / 2 == 1 ? "Nm" : "Fm");
    open_both(&x, &cfg, backends[_i % 2], counts[_i / 2], 500 + (uint64_t)_i);
    walk(&x, 600 + (uint64_t)_i, 203, 185);
    close_both(&x);
}
END_TEST

START_TEST(plain_residuals_and_no_shared_expert) {
    struct kern_config cfg;
    struct both x;
    small(&cfg);
    cfg.threads = 1;
    cfg.model.hc_mult = 1;
    cfg.model.n_shared = 0;
    cfg.model.index_kpool = 1;
    km_layers(&cfg.model, "Km Fm", "Fd");
    for (uint32_t i = 0; i < cfg.model.n_layers; i++)
        cfg.model.layer[i].resid = KERN_RESID_PLAIN;
    open_both(&x, &cfg, backends[_i], 2, 700);
    walk(&x, 701, 90, 70);
    close_both(&x);
}
END_TEST

/* The other family: rotary positions, an index entry a token, plain residuals. */
START_TEST(rotary_positions) {
    struct kern_config cfg;
    struct both x;
    small(&cfg);
    cfg.model.hc_mult = 1;
    cfg.model.rope_dim = 6;
    cfg.model.rope_theta = 1000;
    cfg.model.index_kpool = 1;
    cfg.model.index_topk = 40;
    km_layers(&cfg.model, "Fd Sms Fm", "Nm");
    for (uint32_t i = 0; i < cfg.model.n_layers; i++)
        cfg.model.layer[i].resid = KERN_RESID_PLAIN;
    open_both(&x, &cfg, backends[_i], 3, 710);
    walk(&x, 711, 150, 140);
    close_both(&x);
}
END_TEST

/* Formats whose blocks lie across the cuts' direction, along it, and both ways: 2 and 4 ranks. */
static const struct kern_store stored[] = {
    {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128},
    {.format = KERN_FP8, .scale = KERN_SCALE_BF16, .block_rows = 1},
    {.format = KERN_NVFP4, .scale = KERN_SCALE_E4M3, .block_rows = 1, .block_cols = 16},
    {.format = KERN_MXFP8, .scale = KERN_SCALE_E8M0, .block_rows = 1, .block_cols = 32},
    {.format = KERN_INT8, .scale = KERN_SCALE_F32, .block_rows = 1, .block_cols = 128},
    {.format = KERN_INT4, .scale = KERN_SCALE_F16, .block_rows = 1, .block_cols = 32},
    {.format = KERN_Q8_0},
    {.format = KERN_Q4_K},
    {.format = KERN_IQ2_XS},
    {.format = KERN_EXL3, .bits = 3, .codebook = KERN_CODEBOOK_MCG},
};
enum { N_STORED = sizeof(stored) / sizeof(stored[0]) };

static void wide(struct kern_config *cfg) {
    small(cfg);
    struct kern_model_desc *m = &cfg->model;
    m->hidden = 256;
    m->vocab_rows = 512;
    m->vocab_tokens = 500;
    m->dense_width = m->expert_width = 1024;
    m->n_experts = 2;
    m->n_top = 1;
    m->kda_heads = 8;
    m->kda_dim = 128;
    m->mla_heads = 4;
    m->nope_dim = m->v_dim = m->q_rank = m->kv_rank = 256;
    m->index_dim = 32;
    m->index_heads = 8;
    km_layers(m, "Kd Fm", NULL);
}

START_TEST(formats) {
    const struct kern_store *s = &stored[_i / 2];
    const char *backend = backends[_i % 2];
    struct kern_config cfg;
    struct both x;
    uint32_t used;
    wide(&cfg);
    struct kern_store *stores = ks_stores(&cfg.model, s, &used);
    cfg.stores = stores;
    ck_assert_uint_gt(used, 10);
    open_both(&x, &cfg, backend, _i % 4 < 2 ? 4 : 2, 800 + (uint64_t)_i);
    if (_i % 2)
        walk(&x, 801, 70, 66);
    else
        walk(&x, 801, 5, 3); /* the oracle unpacks a row whenever it needs it */
    close_both(&x);
    free(stores);
}
END_TEST

/* A block of 128 for one rank and 72 columns of the next one for the other. */
START_TEST(blocks_that_are_not_whole) {
    static const struct kern_store of[] = {
        {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128},
        {.format = KERN_INT8, .scale = KERN_SCALE_F32, .block_rows = 1, .block_cols = 128},
        {.format = KERN_INT4, .scale = KERN_SCALE_F16, .block_rows = 1, .block_cols = 128},
    };
    struct kern_config cfg;
    struct both x;
    uint32_t used;
    wide(&cfg);
    cfg.model.dense_width = cfg.model.expert_width = 200;
    km_layers(&cfg.model, "Kd Fm", NULL);
    struct kern_store *stores = ks_stores(&cfg.model, &of[_i / 2], &used);
    cfg.stores = stores;
    ck_assert_uint_gt(used, 10);
    open_both(&x, &cfg, backends[_i % 2], 2, 850 + (uint64_t)_i);
    walk(&x, 851, _i % 2 ? 70 : 5, _i % 2 ? 66 : 3);
    close_both(&x);
    free(stores);
}
END_TEST

/* ---- drawing ---- */

/* Many sequences that draw, with every kind of cut, from their own last tokens: the same tokens on all ranks, and those
 * of one rank wherever its logits are not at a cut's edge, which these are not. */
START_TEST(drawn_tokens) {
    struct kern_config cfg;
    struct both x;
    uint32_t last = KERN_TOKEN_LAST;
    small(&cfg);
    km_layers(&cfg.model, "Kd Fm", "Fm");
    open_both(&x, &cfg, backends[_i], 4, 900);
    for (uint32_t step = 0; step < 12; step++) {
        km_plan_clear(x.plan, KERN_LANE_DECODE);
        for (uint32_t slot = 0; slot < 6; slot++) {
            uint32_t first = 7 * slot + 1, row;
            row = km_plan_seq(x.plan, slot, step, 0, KERN_SEQ_COMMIT | KERN_SEQ_DRAFT | (step ? 0u : KERN_SEQ_RESET),
                              step ? &last : &first, 1, &last);
            struct kern_sample *s = km_plan_sample(x.plan, row, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
            s->temperature = slot ? 0.9f : 0;
            s->top_p = slot % 2 ? 0.8f : 1;
            s->top_k = slot == 4 ? 20 : 0;
            s->min_p = slot == 5 ? 0.02f : 0;
            s->seed = 77 + slot;
            s->n_alts = 5;
            km_plan_sample(x.plan, row, KERN_SAMPLE_DRAW, KERN_SOURCE_DRAFT);
        }
        run(&x);
        const struct kern_result *a = km_results(x.one, 0), *b = kr_results(x.many, 0);
        for (uint32_t i = 0; i < 12; i++)
            ck_assert_uint_eq(a[i].token, b[i].token);
    }
    close_both(&x);
}
END_TEST

/* ---- what is kept ---- */

START_TEST(bytes_of_shares) {
    struct kern_config cfg;
    uint64_t one[KERN_MEM_N], part[KERN_MEM_N], weights = 0, slots = 0;
    wide(&cfg);
    ck_assert_int_eq(kern_query(backends[_i], &cfg, one), 0);
    cfg.n_ranks = 4;
    for (cfg.rank = 0; cfg.rank < 4; cfg.rank++) {
        ck_assert_int_eq(kern_query(backends[_i], &cfg, part), 0);
        weights += part[KERN_MEM_WEIGHTS];
        slots += part[KERN_MEM_SLOTS];
        ck_assert_uint_eq(part[KERN_MEM_PAGES], one[KERN_MEM_PAGES]);
        ck_assert_uint_lt(part[KERN_MEM_WEIGHTS], one[KERN_MEM_WEIGHTS] / 3);
    }
    ck_assert_uint_ge(weights, one[KERN_MEM_WEIGHTS]);
    ck_assert_uint_lt(weights, one[KERN_MEM_WEIGHTS] * 5 / 4); /* what is on every rank is small */
    ck_assert_uint_ge(slots, one[KERN_MEM_SLOTS]);
    ck_assert_uint_lt(slots, one[KERN_MEM_SLOTS] * 9 / 8);
}
END_TEST

/* A slot's and a page's bytes move between equal ranks and are refused by others. */
START_TEST(bytes_of_slots) {
    struct kern_config cfg;
    struct both x;
    uint32_t ids[70];
    small(&cfg);
    km_layers(&cfg.model, "Kd Fm", NULL);
    open_both(&x, &cfg, backends[_i], 2, 1000);
    for (uint32_t i = 0; i < 70; i++)
        ids[i] = i + 1;
    km_plan_clear(x.plan, KERN_LANE_PREFILL);
    km_plan_seq(x.plan, 1, 0, 0, KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | KERN_SEQ_RESET, ids, 70, NULL);
    run(&x);
    char *bytes[2];
    for (uint32_t r = 0; r < 2; r++) {
        struct kern *k = x.many->rank[r]->k;
        bytes[r] = malloc(kern_slot_bytes(k) + 1);
        ck_assert_int_eq(kern_slot_read(k, 1, bytes[r], kern_slot_bytes(k)), 0);
        ck_assert_int_eq(kern_slot_write(k, 2, bytes[r], kern_slot_bytes(k)), 0);
        ck_assert_int_eq(kern_page_copy(k, 2 * x.one->pages_per_slot, x.one->pages_per_slot), 0);
    }
    struct kern *k0 = x.many->rank[0]->k;
    ck_assert_int_eq(kern_slot_write(k0, 2, bytes[1], kern_slot_bytes(x.many->rank[1]->k)), -EBADMSG);
    ck_assert_int_eq(kern_slot_copy(x.one->k, 2, 1), 0);
    ck_assert_int_eq(kern_page_copy(x.one->k, 2 * x.one->pages_per_slot, x.one->pages_per_slot), 0);
    km_plan_clear(x.plan, KERN_LANE_DECODE);
    km_plan_seq(x.plan, 2, 70, 0, KERN_SEQ_COMMIT, ids, 1, NULL);
    km_plan_sample(x.plan, 0, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
    run(&x);
    free(bytes[0]);
    free(bytes[1]);
    close_both(&x);
}
END_TEST

/* ---- trouble ---- */

static void one_row(struct km_plan *p, uint32_t token) {
    km_plan_clear(p, KERN_LANE_DECODE);
    km_plan_seq(p, 0, 0, 0, KERN_SEQ_COMMIT | KERN_SEQ_RESET, &token, 1, NULL);
    km_plan_sample(p, 0, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
}

static void lost(struct kern_ranks *r, uint32_t rank, const char *words) {
    struct kern *k = r->rank[rank]->k;
    ck_assert_msg(strstr(kern_last_error(k), words) != NULL, "rank %u: \"%s\" lacks \"%s\"", rank, kern_last_error(k),
                  words);
    ck_assert_int_eq(kern_launch(k, r->rank[rank]->trunk[0]), -EIO); /* for good */
}

START_TEST(rank_that_is_gone) {
    struct kern_config cfg;
    small(&cfg);
    km_layers(&cfg.model, "Kd Fm", NULL);
    struct kernmodel *m = km_new(&cfg, 1100);
    struct kern_ranks *r = kr_open(m, backends[_i], NULL, 3, 300);
    struct km_plan *p = km_plan_new(r->rank[0]);
    int ret[KR_MAX];
    one_row(p, 5);
    kr_run(r, p);
    r->n = 2; /* the third does not come */
    one_row(p, 6);
    kr_launch(r, p);
    kr_wait(r, KERN_LANE_DECODE, ret);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(ret[i], -EIO);
        lost(r, i, "rank 2 is missing");
    }
    r->n = 3;
    km_plan_free(p);
    kr_close(r);
    km_free(m);
}
END_TEST

START_TEST(rank_with_another_plan) {
    struct kern_config cfg;
    small(&cfg);
    km_layers(&cfg.model, "Kd Fm", NULL);
    struct kernmodel *m = km_new(&cfg, 1200);
    struct kern_ranks *r = kr_open(m, backends[_i], NULL, 2, KR_TIMEOUT_MS);
    struct km_plan *p = km_plan_new(r->rank[0]);
    int ret[KR_MAX];
    for (uint32_t i = 0; i < 2; i++) {
        one_row(p, 5 + i); /* not the same bytes */
        struct kern_plan *b = km_plan_build(p);
        ck_assert_int_eq(kern_plan_load(r->rank[i]->k, b, b->bytes), 0);
        ck_assert_int_eq(kern_launch(r->rank[i]->k, r->rank[i]->trunk[0]), 0);
    }
    kr_wait(r, KERN_LANE_DECODE, ret);
    ck_assert_int_eq(ret[0], -EIO);
    ck_assert_int_eq(ret[1], -EIO);
    lost(r, 0, "do not run the same step");
    km_plan_free(p);
    kr_close(r);
    km_free(m);
}
END_TEST

START_TEST(refused) {
    struct kern_config cfg;
    uint64_t bytes[KERN_MEM_N];
    struct kern_block none[KERN_MEM_N] = {{NULL, 0}};
    struct kern *k;
    small(&cfg);
    cfg.n_ranks = 6;
    ck_assert_int_eq(kern_query(backends[_i], &cfg, bytes), -EINVAL);
    ck_assert_ptr_nonnull(strstr(kern_open_error(), "mla_heads is 5"));
    cfg.n_ranks = 2;
    cfg.rank = 2;
    ck_assert_int_eq(kern_query(backends[_i], &cfg, bytes), -EINVAL);
    cfg.rank = 1;
    ck_assert_int_eq(kern_query(backends[_i], &cfg, bytes), 0);
    ck_assert_int_eq(kern_open(backends[_i], &cfg, none, &k), -EINVAL); /* no comm */
    ck_assert_ptr_nonnull(strstr(kern_open_error(), "rank 1 of 2"));
    cfg.script = "vocab 10\n";
    ck_assert_int_eq(kern_query("script", &cfg, bytes), -EINVAL);
    ck_assert_ptr_nonnull(strstr(kern_open_error(), "backend script has nothing to cut"));
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("kern_ranks");
    TCase *tc = tcase_create("ranks");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, every_kind_of_layer, 0, 8);
    tcase_add_loop_test(tc, plain_residuals_and_no_shared_expert, 0, 2);
    tcase_add_loop_test(tc, rotary_positions, 0, 2);
    tcase_add_loop_test(tc, formats, 0, 2 * N_STORED);
    tcase_add_loop_test(tc, blocks_that_are_not_whole, 0, 6);
    tcase_add_loop_test(tc, drawn_tokens, 0, 2);
    tcase_add_loop_test(tc, bytes_of_shares, 0, 2);
    tcase_add_loop_test(tc, bytes_of_slots, 0, 2);
    tcase_add_loop_test(tc, rank_that_is_gone, 0, 2);
    tcase_add_loop_test(tc, rank_with_another_plan, 0, 2);
    tcase_add_loop_test(tc, refused, 0, 2);
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
