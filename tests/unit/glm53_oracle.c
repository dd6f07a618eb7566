/* SPDX-License-Identifier: MIT */
/* Both backends over small checkpoints of GLM-5.3's shape, read as the daemon reads them, against the scalar oracle:
 * every layer, every position's logits and drafts, in prefill chunks and token by token. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckptinst.h"
#include "twin53.h"

static const char *const backends[] = {"ref", "cpu"};
static const char *const stored[] = {"bf16", "fp8"};

enum { N = 150, PREFILL = 128 };

struct bench {
    struct o53_model m;
    struct o53_out want;
    int32_t ids[N];
    struct km_inst *i;
    struct km_plan *p;
    float *got; /* room for whatever is compared */
    double tolerance;
};

static void setup(struct bench *b, const struct o53_dims *d, const char *how, const char *backend, uint32_t cache) {
    const struct kern_config c = {.n_ranks = 1,
                                  .threads = 2,
                                  .cache = cache,
                                  .n_pages = 2,
                                  .n_slots = 2,
                                  .max_seqs = 2,
                                  .max_rows = {8, 128},
                                  .max_samples = 256,
                                  .max_context = 256,
                                  .max_plan_bytes = 1 << 20};
    struct ckpt dir;
    struct km_rng rng = {5301};
    ckpt_empty(&dir);
    twin53_make(&b->m, d, 5302, how);
    twin53_write(&b->m, &dir, how);
    for (int t = 0; t < N; t++)
        b->ids[t] = (int32_t)km_below(&rng, d->vocab);
    oracle53_run(&b->m, b->ids, N, &b->want);
    b->i = ckptinst_open(dir.dir, backend, &c);
    ckpt_remove(&dir);
    b->p = km_plan_new(b->i);
    b->got = malloc((size_t)c.max_rows[1] * d->vocab * sizeof(float));
    ck_assert_ptr_nonnull(b->got);
    b->tolerance = 2e-5;
}

static void teardown(struct bench *b) {
    km_plan_free(b->p);
    km_close(b->i);
    oracle53_done(&b->want);
    twin53_done(&b->m);
    free(b->got);
}

/* How far n numbers are from the oracle's, as a share of their length. */
static double distance(const float *got, const double *want, uint64_t n) {
    double d = 0, w = 0;
    for (uint64_t i = 0; i < n; i++) {
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w += want[i] * want[i];
    }
    return sqrt(d / w);
}

static void near(struct bench *b, const char *what, uint32_t at, const double *want, uint64_t n) {
    double d = distance(b->got, want, n);
    ck_assert_msg(d < b->tolerance, "%s %s %u: relative error %g", b->i->backend, what, at, d);
}

static uint32_t best(const double *v, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = v[i] > v[best] ? i : best;
    return best;
}

/* Positions pos0 .. pos0+n-1, a layer at a time. */
static void compare_rows(struct bench *b, uint32_t lane, uint32_t pos0, uint32_t n) {
    const struct o53_dims *d = &b->m.d;
    uint32_t ids[N], next[N], drafts = 0;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (uint32_t)b->ids[pos0 + i];
        next[i] = pos0 + i + 1 < N ? (uint32_t)b->ids[pos0 + i + 1] : KERN_NONE;
        drafts += next[i] != KERN_NONE;
    }
    km_plan_clear(b->p, lane);
    km_plan_seq(b->p, 0, pos0, 0,
                KERN_SEQ_COMMIT | KERN_SEQ_DRAFT | (lane ? KERN_SEQ_PREFILL : 0u) | (pos0 ? 0u : KERN_SEQ_RESET), ids,
                n, next);
    for (uint32_t i = 0; i < n; i++)
        km_plan_sample(b->p, i, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
    for (uint32_t i = 0; i < drafts; i++)
        km_plan_sample(b->p, i, KERN_SAMPLE_SCORE, KERN_SOURCE_DRAFT);
    struct kern_plan *plan = km_plan_build(b->p);
    int r = kern_plan_load(b->i->k, plan, plan->bytes);
    ck_assert_msg(r == 0, "%s", kern_last_error(b->i->k));
    km_launch_wait(b->i, lane, b->i->embed[lane]);
    for (uint32_t l = 0; l <= d->layers; l++) {
        const double *want = b->want.hidden + ((size_t)l * N + pos0) * d->hidden;
        if (l == d->layers)
            km_launch_wait(b->i, lane, b->i->final[lane]);
        km_peek(b->i, lane, l == d->layers ? KERN_PEEK_HIDDEN : KERN_PEEK_STREAMS, 0, n, b->got);
        near(b, "before layer", l, want, (uint64_t)n * d->hidden);
        for (int s = 0; s < 2 && l < d->layers; s++)
            km_launch_wait(b->i, lane, b->i->half[lane][l][s]);
    }
    km_launch_wait(b->i, lane, b->i->head[lane]);
    km_launch_wait(b->i, lane, b->i->draft[lane]);
    const struct kern_result *result = km_results(b->i, lane);
    for (uint32_t i = 0; i < n + drafts; i++) {
        const bool draft = i >= n;
        const uint32_t pos = pos0 + (draft ? i - n : i);
        const double *want = (draft ? b->want.draft : b->want.logits) + (size_t)pos * d->vocab;
        km_peek(b->i, lane, KERN_PEEK_LOGITS, i, 1, b->got);
        near(b, draft ? "draft logits at" : "logits at", pos, want, d->vocab);
        ck_assert_msg(b->tolerance > 1e-4 || result[i].top1 == best(want, d->vocab), "%s: top-1 at %u",
                      draft ? "draft" : "trunk", pos);
    }
}

static void compare(struct bench *b) {
    compare_rows(b, KERN_LANE_PREFILL, 0, 64);
    compare_rows(b, KERN_LANE_PREFILL, 64, PREFILL - 64);
    for (uint32_t at = PREFILL, n = 1; at < N; at += n, n = n % 4 + 1)
        compare_rows(b, KERN_LANE_DECODE, at, n < N - at ? n : N - at);
}

START_TEST(every_layer_and_logit) {
    struct bench b;
    const struct o53_dims d = twin53_dims();
    setup(&b, &d, stored[_i % 2], backends[_i / 2], KERN_CACHE_F32);
    /* decisions that rounding could turn would be nobody's fault */
    ck_assert_msg(b.want.index_gap > 1e-6 && b.want.router_gap > 1e-6, "gaps %g and %g", b.want.index_gap,
                  b.want.router_gap);
    ck_assert_uint_gt(b.want.sparse_rows, 500);
    compare(&b);
    teardown(&b);
}
END_TEST

/* Odd widths everywhere; no layer but the first has an index; a mixture of all experts from the first layer on. */
START_TEST(odd_widths) {
    struct bench b;
    struct o53_dims d = twin53_dims();
    d.hidden = 77;
    d.layers = 5;
    d.heads = 5;
    d.q_lora = 41;
    d.kv_lora = 37;
    d.nope = 13;
    d.rope = 6;
    d.v = 11;
    d.index_heads = 3;
    d.index_dim = 19;
    d.index_topk = 17;
    d.index_freq = 9;
    d.index_offset = 1;
    d.dense_layers = 0;
    d.experts = 3;
    d.moe_width = 29;
    d.vocab = 4096;
    d.theta = 500;
    setup(&b, &d, stored[_i % 2], backends[_i / 2], KERN_CACHE_F32);
    ck_assert_msg(b.want.index_gap > 1e-6, "gap %g", b.want.index_gap);
    compare(&b);
    teardown(&b);
}
END_TEST

/* What a narrow cache costs. All tokens and all experts are chosen, so that no choice can hide or make a difference. */
START_TEST(narrow_caches) {
    struct bench b;
    struct o53_dims d = twin53_dims();
    d.index_topk = 256;
    d.active = d.experts;
    d.layers = 4; /* each further layer of random numbers makes what came before louder */
    setup(&b, &d, "bf16", backends[_i / 2], _i % 2 ? KERN_CACHE_FP8 : KERN_CACHE_BF16);
    b.tolerance = _i % 2 ? 0.4 : 0.03;
    compare(&b);
    km_peek(b.i, KERN_LANE_DECODE, KERN_PEEK_HIDDEN, 0, 1, b.got);
    ck_assert_double_gt(distance(b.got, b.want.hidden + ((size_t)d.layers * N + N - 1) * d.hidden, d.hidden), 1e-5);
    teardown(&b);
}
END_TEST

/* A decoded row reads topk latents in each layer, and scores keys where a list is made and nowhere else. */
START_TEST(what_is_read) {
    struct bench b;
    struct kern_counters c;
    const struct o53_dims d = twin53_dims();
    uint32_t full = 1; /* the draft layer's */
    setup(&b, &d, "bf16", backends[_i], KERN_CACHE_FP8);
    for (uint32_t l = 0; l < d.layers; l++)
        full += (uint32_t)oracle53_full(&d, l);
    for (uint32_t t = 0; t < N - 1; t++) {
        const uint32_t id = (uint32_t)b.ids[t], next = (uint32_t)b.ids[t + 1], n = t + 1;
        km_plan_clear(b.p, KERN_LANE_DECODE);
        km_plan_seq(b.p, 0, t, 0, KERN_SEQ_COMMIT | KERN_SEQ_DRAFT | (t ? 0u : KERN_SEQ_RESET), &id, 1, &next);
        km_run(b.i, b.p);
        ck_assert_int_eq(kern_counters(b.i->k, KERN_LANE_DECODE, &c), 0);
        const uint32_t seen = n < d.index_topk ? n : d.index_topk, scored = n > d.index_topk ? n * full : 0;
        ck_assert_uint_eq(c.latent_rows, seen * (d.layers + 1));
        ck_assert_uint_eq(c.pooled_keys, scored);
        ck_assert_uint_eq(c.state_bytes, 0);
        /* 64 numbers, a factor and 8 rotary numbers a latent; a key has 32 and a factor */
        if (_i == 0)
            ck_assert_uint_eq(c.cache_bytes, c.latent_rows * (80 + 16) + c.pooled_keys * 36);
    }
    ck_assert_uint_le(kern_slot_bytes(b.i->k), 128); /* no state, nothing half done */
    teardown(&b);
}
END_TEST

int main(void) {
    Suite *s = suite_create("glm53_oracle");
    TCase *t = tcase_create("oracle");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, every_layer_and_logit, 0, 4);
    tcase_add_loop_test(t, odd_widths, 0, 4);
    tcase_add_loop_test(t, narrow_caches, 0, 4);
    tcase_add_loop_test(t, what_is_read, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
