/* SPDX-License-Identifier: MIT */
/* Every stage of the oracle against the formulas (kernnaive), half a layer at a time, on random models of odd
 * sizes: prefill and decode, each kind of layer, each pool width, plain residuals, embeddings given as rows.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernnaive.h"

static const double TOLERANCE = 1e-5;

static void random_ids(uint32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed) {
    struct km_rng r = {seed};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = km_below(&r, vocab);
}

static void near(const char *what, uint32_t layer, const float *got, const double *want, uint64_t n) {
    double e = naive_error(got, want, n);
    ck_assert_msg(e < TOLERANCE, "%s %u: relative error %g", what, layer, e);
}

/* Rows pos0 .. pos0 + n of a sequence, half a layer at a time, everything compared. */
static void compare_rows(struct km_inst *i, struct km_plan *p, const struct naive *v, const uint32_t *ids,
                         uint32_t lane, uint32_t pos0, uint32_t n) {
    const struct kern_model_desc *m = &i->cfg.model;
    const uint32_t width = m->hc_mult * m->hidden;
    uint32_t next[512];
    float *got = malloc(sizeof(float) * n * (width > m->vocab_rows ? width : m->vocab_rows));
    ck_assert_ptr_nonnull(got);
    for (uint32_t j = 0; j < n; j++)
        next[j] = pos0 + j + 1 < v->n ? ids[pos0 + j + 1] : KERN_NONE;
    km_plan_clear(p, lane);
    km_plan_seq(p, 1, pos0, 0,
                KERN_SEQ_COMMIT | (lane ? KERN_SEQ_PREFILL : 0u) | (pos0 ? 0u : KERN_SEQ_RESET) |
                    (m->n_draft ? KERN_SEQ_DRAFT : 0u),
                ids + pos0, n, m->n_draft ? next : NULL);
    for (uint32_t j = 0; j < n; j++)
        km_plan_sample(p, j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
    struct kern_plan *b = km_plan_build(p);
    int r = kern_plan_load(i->k, b, b->bytes);
    ck_assert_msg(r == 0, "plan: %d %s", r, kern_last_error(i->k));
    km_launch_wait(i, lane, i->embed[lane]);
    for (uint32_t h = 0; h <= 2 * m->n_layers; h++) {
        if (h)
            km_launch_wait(i, lane, i->half[lane][(h - 1) / 2][(h - 1) % 2]);
        km_peek(i, lane, KERN_PEEK_STREAMS, 0, n, got);
        near("streams after half layer", h, got, v->streams + ((uint64_t)h * v->n + pos0) * width,
             (uint64_t)n * width);
    }
    km_launch_wait(i, lane, i->final[lane]);
    km_launch_wait(i, lane, i->head[lane]);
    km_peek(i, lane, KERN_PEEK_HIDDEN, 0, n, got);
    near("hidden", 0, got, v->hidden + (uint64_t)pos0 * m->hidden, (uint64_t)n * m->hidden);
    km_peek(i, lane, KERN_PEEK_LOGITS, 0, n, got);
    near("logits", 0, got, v->logits + (uint64_t)pos0 * m->vocab_rows, (uint64_t)n * m->vocab_rows);
    uint32_t drafts = pos0 + n == v->n ? n - 1 : n;
    if (m->n_draft) {
        km_launch_wait(i, lane, i->draft[lane]);
        km_peek(i, lane, KERN_PEEK_DRAFT, 0, drafts, got);
        if (drafts)
            near("draft", 0, got, v->draft + (uint64_t)pos0 * m->hidden, (uint64_t)drafts * m->hidden);
    }
    free(got);
}

/* n tokens: the first `prefilled` (in chunks of 64 or 128) by prefill, the rest by decode windows of 1 to 5
 * rows. */
static void compare(const struct kern_config *cfg, uint64_t seed, uint32_t n, uint32_t prefilled,
                    uint32_t chunk) {
    struct kernmodel *m = km_new(cfg, seed);
    struct km_inst *i = km_open(m, "ref", NULL);
    struct km_plan *p = km_plan_new(i);
    struct km_rng r = {seed + 1};
    uint32_t ids[512];
    random_ids(ids, n, cfg->model.vocab_tokens, seed + 2);
    struct naive *v = naive_new(m, ids, n);
    uint32_t at = 0;
    for (; at < prefilled; at += chunk)
        compare_rows(i, p, v, ids, KERN_LANE_PREFILL, at, prefilled - at < chunk ? prefilled - at : chunk);
    for (at = prefilled; at < n;) {
        uint32_t w = 1 + km_below(&r, 5);
        w = w < n - at ? w : n - at;
        compare_rows(i, p, v, ids, KERN_LANE_DECODE, at, w);
        at += w;
    }
    naive_free(v);
    km_plan_free(p);
    km_close(i);
    km_free(m);
}

START_TEST(small_model) {
    static const struct {
        uint32_t n, prefilled, chunk;
    } runs[] = {{1, 1, 64},   {3, 0, 64},   {4, 4, 64},     {5, 3, 64},    {19, 0, 64},    {23, 20, 64},
                {65, 64, 64}, {66, 65, 64}, {133, 128, 64}, {71, 70, 128}, {140, 130, 128}};
    struct kern_config c;
    km_config_small(&c);
    compare(&c, 100 + (uint64_t)_i, runs[_i].n, runs[_i].prefilled, runs[_i].chunk);
}
END_TEST

/* One kind of layer at a time, so that a failure names it. */
static const char *const kinds[] = {"Kd", "Nd", "Fd", "Fd Sd", "Nm", "Km Km", "Fm Km Sm Nm", "Fd Fd Sd", "Nds Fms"};

START_TEST(kinds_of_layers) {
    struct kern_config c;
    km_config_small(&c);
    km_layers(&c.model, kinds[_i], _i % 2 ? "Fm" : NULL);
    compare(&c, 200 + (uint64_t)_i, 75, 66, 64);
}
END_TEST

START_TEST(pool_widths) {
    static const uint32_t widths[] = {1, 2, 4, 8, 16};
    struct kern_config c;
    km_config_small(&c);
    c.model.index_kpool = widths[_i];
    c.model.index_topk = 2 * widths[_i];
    km_layers(&c.model, "Fd Kd Sd", "Fd");
    compare(&c, 300 + (uint64_t)_i, 90, 67, 64);
}
END_TEST

START_TEST(other_shapes) {
    struct kern_config c;
    km_config_small(&c);
    switch (_i) {
    case 0:
        c.model.hc_mult = 2;
        c.model.hc_iters = 1;
        break;
    case 1:
        c.model.hc_mult = 8;
        c.model.hc_iters = 3;
        break;
    case 2:
        c.model.swiglu_limit = 0;
        c.model.n_shared = 0;
        break;
    case 3:
        c.model.n_shared = 3;
        c.model.n_top = 7;
        break;
    case 4:
        c.model.conv_width = 1;
        break;
    case 5:
        c.model.conv_width = 7;
        c.model.kda_dim = 8;
        break;
    case 6:
        c.model.hc_mult = 1;
        for (uint32_t l = 0; l < c.model.n_layers; l++)
            c.model.layer[l].resid = KERN_RESID_PLAIN;
        break;
    case 7:
        c.model.rms_eps = 1e-3f;
        c.model.hc_eps = 1e-2f;
        break;
    }
    compare(&c, 400 + (uint64_t)_i, 40, 33, 64);
}
END_TEST

/* BF16 latents: the answer moves by the rounding and no more; prefill and decode see the same rounded rows.
 */
START_TEST(bf16_cache) {
    struct kern_config c;
    km_config_small(&c);
    struct kernmodel *m = km_new(&c, 500);
    uint32_t ids[80];
    random_ids(ids, 80, c.model.vocab_tokens, 501);
    struct naive *v = naive_new(m, ids, 80);
    struct kern_config half = c;
    half.cache = KERN_CACHE_BF16;
    struct km_inst *i = km_open(m, "ref", &half);
    struct km_plan *p = km_plan_new(i);
    float logits[256];
    km_prefill(i, p, 0, ids, 64, 64);
    for (uint32_t at = 64; at < 80; at++)
        km_decode(i, p, 0, at, ids[at], logits);
    double e = naive_error(logits, v->logits + 79ull * c.model.vocab_rows, c.model.vocab_rows);
    ck_assert_msg(e > 1e-6 && e < 0.05, "relative error %g", e);
    naive_free(v);
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

/* Rows given as embeddings instead of tokens (pictures): the same numbers as the tokens they were copied
 * from. */
START_TEST(embedding_rows) {
    struct kern_config c;
    km_config_small(&c);
    struct kernmodel *m = km_new(&c, 510);
    struct km_inst *i = km_open(m, "ref", NULL);
    struct km_plan *p = km_plan_new(i);
    uint32_t ids[10], wrong[10] = {0};
    float a[10 * 256], b[10 * 256], rows[10 * 64];
    random_ids(ids, 10, c.model.vocab_tokens, 511);
    for (int run = 0; run < 2; run++) {
        km_plan_clear(p, KERN_LANE_PREFILL);
        km_plan_seq(p, (uint32_t)run, 0, 0, KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | KERN_SEQ_RESET,
                    run ? wrong : ids, 10, NULL);
        for (uint32_t j = 0; run && j < 10; j++) {
            p->row[j].embed = 9 - j;
            memcpy(rows + (9 - j) * c.model.hidden,
                   km_weight(m, KERN_EMBED, 0, 0) + (uint64_t)ids[j] * c.model.hidden,
                   c.model.hidden * sizeof(float));
        }
        p->embed = rows;
        p->head.n_embeds = run ? 10 : 0;
        for (uint32_t j = 0; j < 10; j++)
            km_plan_sample(p, j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
        km_run(i, p);
        km_peek(i, KERN_LANE_PREFILL, KERN_PEEK_LOGITS, 0, 10, run ? b : a);
    }
    ck_assert_int_eq(memcmp(a, b, 10ull * c.model.vocab_rows * sizeof(float)), 0);
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_stages");
    TCase *t = tcase_create("ref");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, small_model, 0, 11);
    tcase_add_loop_test(t, kinds_of_layers, 0, 9);
    tcase_add_loop_test(t, pool_widths, 0, 5);
    tcase_add_loop_test(t, other_shapes, 0, 8);
    tcase_add_test(t, bf16_cache);
    tcase_add_test(t, embedding_rows);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
