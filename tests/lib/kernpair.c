/* SPDX-License-Identifier: MIT */
#include "kernpair.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void kp_open(struct kp_pair *p, const struct kern_config *cfg, uint64_t seed, const char *backend, bool rounds,
             double tolerance) {
    p->m = km_new(cfg, seed);
    struct kern_config c = *cfg;
    c.isa = rounds ? "bf16" : NULL;
    p->ref = km_open(p->m, "ref", &c);
    p->other = km_open(p->m, backend, NULL);
    p->plan = km_plan_new(p->ref);
    p->tolerance = tolerance;
    p->rounds = rounds;
    uint64_t n = cfg->max_rows[1] * (uint64_t)(cfg->model.hc_mult * cfg->model.hidden + cfg->model.vocab_rows);
    p->a = malloc(n * sizeof(float));
    p->b = malloc(n * sizeof(float));
    ck_assert(p->a && p->b);
}

void kp_close(struct kp_pair *p) {
    km_plan_free(p->plan);
    km_close(p->ref);
    km_close(p->other);
    km_free(p->m);
    free(p->a);
    free(p->b);
}

static void near(const struct kp_pair *p, const char *what, uint32_t at, uint64_t n) {
    double d = 0, w = 0;
    for (uint64_t i = 0; i < n; i++) {
        d += ((double)p->a[i] - p->b[i]) * ((double)p->a[i] - p->b[i]);
        w += (double)p->a[i] * p->a[i];
    }
    if (getenv("KERN_PAIR_ERRORS"))
        printf("%s %u: %.2e\n", what, at, sqrt(d / w));
    ck_assert_msg(n && sqrt(d) <= p->tolerance * sqrt(w), "%s %u: relative error %g", what, at, sqrt(d / w));
}

static void peek_both(struct kp_pair *p, uint32_t lane, enum kern_peek what, uint32_t n, const char *name,
                      uint32_t at) {
    const struct kern_model_desc *m = &p->m->cfg.model;
    uint64_t width = what == KERN_PEEK_STREAMS  ? m->hc_mult * m->hidden
                     : what == KERN_PEEK_LOGITS ? m->vocab_rows
                                                : m->hidden;
    km_peek(p->ref, lane, what, 0, n, p->a);
    km_peek(p->other, lane, what, 0, n, p->b);
    near(p, name, at, n * width);
}

static void both(struct kp_pair *p, uint32_t lane, struct kern_prog *a, struct kern_prog *b) {
    km_launch_wait(p->ref, lane, a);
    km_launch_wait(p->other, lane, b);
}

static void same_counters(struct kp_pair *p, uint32_t lane, uint32_t rows) {
    struct kern_counters a, b;
    ck_assert_int_eq(kern_counters(p->ref->k, lane, &a), 0);
    ck_assert_int_eq(kern_counters(p->other->k, lane, &b), 0);
    ck_assert_uint_eq(a.latent_rows, b.latent_rows);
    ck_assert_uint_eq(a.pooled_keys, b.pooled_keys);
    ck_assert_uint_eq(a.experts, b.experts);
    /* an expert's three matrices; the oracle's have no paddings, nor have its rows of the cache */
    const struct kern_model_desc *m = &p->m->cfg.model;
    if (!p->m->stores)
        ck_assert_uint_eq(a.expert_bytes, a.experts * 3ull * m->expert_width * m->hidden * 2);
    ck_assert_uint_ge(b.expert_bytes, a.expert_bytes);
    ck_assert_uint_le(b.expert_bytes, b.weight_bytes);
    ck_assert_uint_ge(b.cache_bytes, a.cache_bytes);
    ck_assert_uint_ge(a.cache_bytes, a.latent_rows * m->kv_rank);
    /* the oracle leaves out index queries of rows that see everything; no other difference */
    uint64_t queries = 0;
    for (uint32_t l = 0; l < m->n_layers + m->n_draft; l++)
        queries += m->layer[l].mix == KERN_MIX_MLA && m->layer[l].index == KERN_INDEX_FULL;
    queries *= 2ull * rows * m->index_heads * (m->q_rank * m->index_dim + m->hidden);
    ck_assert_uint_ge(b.flops, a.flops);
    ck_assert_uint_le(b.flops, a.flops + queries);
}

/* The oracle's largest logit is ahead of the other's choice by no more than both may be off. */
static void same_choice(const struct kp_pair *p, const struct kern_result *x, const struct kern_result *y,
                        const float *logits) {
    float most = 0;
    for (uint32_t i = 0; i < p->m->cfg.model.vocab_tokens; i++)
        most = fmaxf(most, fabsf(logits[i]));
    ck_assert_uint_lt(y->top1, p->m->cfg.model.vocab_tokens);
    ck_assert_msg(logits[x->top1] - logits[y->top1] <= 4 * (float)p->tolerance * most, "top-1 is %u, not %u: %g and %g",
                  y->top1, x->top1, (double)logits[y->top1], (double)logits[x->top1]);
}

void kp_rows(struct kp_pair *p, const uint32_t *ids, uint32_t total, uint32_t lane, uint32_t pos0, uint32_t n) {
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
    ck_assert_int_eq(kern_plan_load(p->other->k, b, b->bytes), 0);
    both(p, lane, p->ref->embed[lane], p->other->embed[lane]);
    peek_both(p, lane, KERN_PEEK_STREAMS, n, "embedding", 0);
    for (uint32_t l = 0; l < m->n_layers; l++)
        for (int s = 0; s < 2; s++) {
            both(p, lane, p->ref->half[lane][l][s], p->other->half[lane][l][s]);
            peek_both(p, lane, KERN_PEEK_STREAMS, n,
                      s ? "streams after the feed-forward of layer" : "streams after the mixer of layer", l);
        }
    both(p, lane, p->ref->final[lane], p->other->final[lane]);
    peek_both(p, lane, KERN_PEEK_HIDDEN, n, "hidden", 0);
    both(p, lane, p->ref->head[lane], p->other->head[lane]);
    peek_both(p, lane, KERN_PEEK_LOGITS, n, "logits", 0);
    for (uint32_t j = 0; j < n; j++) {
        const struct kern_result *x = km_results(p->ref, lane) + j, *y = km_results(p->other, lane) + j;
        if (p->rounds)
            same_choice(p, x, y, p->a + (uint64_t)j * m->vocab_rows);
        else
            ck_assert_uint_eq(x->top1, y->top1);
        ck_assert_float_eq_tol(x->logsumexp, y->logsumexp, (float)p->tolerance * 10);
    }
    if (m->n_draft) {
        both(p, lane, p->ref->draft[lane], p->other->draft[lane]);
        if (drafts)
            peek_both(p, lane, KERN_PEEK_DRAFT, drafts, "draft hidden", 0);
    }
    same_counters(p, lane, n);
}

void kp_text(struct kp_pair *p, uint64_t seed) {
    enum { N = 203, PREFILL = 185 };
    uint32_t ids[N];
    struct km_rng rng = {seed};
    for (int i = 0; i < N; i++)
        ids[i] = km_below(&rng, p->m->cfg.model.vocab_rows);
    kp_rows(p, ids, N, KERN_LANE_PREFILL, 0, 128);
    kp_rows(p, ids, N, KERN_LANE_PREFILL, 128, PREFILL - 128);
    for (uint32_t at = PREFILL, n = 1; at < N; at += n, n = n % 7 + 1)
        kp_rows(p, ids, N, KERN_LANE_DECODE, at, n < N - at ? n : N - at);
}
