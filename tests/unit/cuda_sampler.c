/* SPDX-License-Identifier: MIT */
/* The sampler of the CUDA backend against the hosts' (kernels/host/host_sample.c) over the same logits: the same token,
 * whatever the settings, the logits and the neighbours; probabilities within rounding. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_dev.h"
#include "host.h"
#include "kernmodel.h"

enum { SAMPLES = 12, SLOTS = 6 };

static struct kern_config cfg;
static struct km_plan *plan;
static struct km_rng rng;
static float *logits; /* [SAMPLES][vocab_rows] */
static struct kern_result *results; /* pinned */
static struct cuda_dims dims;
static struct cuda_lane lane;
static uint32_t *last, last_host[SLOTS];
static uint64_t step_cap;

#define OK(call) ck_assert_msg((call) == cudaSuccess, "%s", #call)

static void prepare(uint32_t rows, uint32_t tokens) {
    km_config_small(&cfg);
    cfg.model.vocab_rows = rows;
    cfg.model.vocab_tokens = tokens;
    cfg.max_plan_bytes = 4 << 20;
    cfg.max_seqs = cfg.n_slots = SLOTS;
    cfg.n_pages = 64;
    cfg.max_samples = SAMPLES;
    plan = km_plan_new_cfg(&cfg);
    logits = malloc((uint64_t)SAMPLES * rows * sizeof(float));
    ck_assert_ptr_nonnull(logits);
    dims.vocab_rows = rows;
    dims.vocab_tokens = tokens;
    step_cap = cfg.max_plan_bytes + sizeof(struct cuda_step) + SAMPLES * sizeof(uint32_t);
    OK(cudaMalloc((void **)&lane.step, step_cap));
    OK(cudaMalloc((void **)&lane.logits, (uint64_t)SAMPLES * rows * sizeof(float)));
    OK(cudaMalloc(&lane.sampling, SAMPLES * cuda_sample_scratch(rows)));
    OK(cudaMalloc((void **)&last, sizeof(last_host)));
    OK(cudaHostAlloc((void **)&results, SAMPLES * sizeof(*results), cudaHostAllocMapped));
    OK(cudaHostGetDevicePointer((void **)&lane.results, results, 0));
}

static void release(void) {
    km_plan_free(plan);
    free(logits);
    OK(cudaFree(lane.step));
    OK(cudaFree(lane.logits));
    OK(cudaFree(lane.sampling));
    OK(cudaFree(last));
    OK(cudaFreeHost(results));
}

/* A sequence of three rows, and one row each for the other slots. */
static void rows(uint32_t pos) {
    uint32_t tokens[3] = {1, 2, 3}, next[3] = {2, 3, 4};
    km_plan_clear(plan, KERN_LANE_DECODE);
    for (uint32_t s = 0; s < SLOTS; s++)
        km_plan_seq(plan, s, pos + 7 * s, 0, KERN_SEQ_COMMIT | KERN_SEQ_DRAFT, tokens, s ? 1 : 3, next);
}

/* What the upload makes of a plan, as far as the sampler reads it. */
static void upload(const struct kern_plan *p) {
    char *bytes = calloc(1, step_cap);
    ck_assert_ptr_nonnull(bytes);
    struct cuda_step *s = (struct cuda_step *)(void *)bytes;
    uint32_t at = sizeof(*s);
    for (uint32_t source = 0; source < 2; source++) {
        s->samples[source] = at;
        for (uint32_t i = 0; i < p->n_samples; i++)
            if (plan_samples(p)[i].source == source) {
                memcpy(bytes + at, &i, sizeof(i));
                at += sizeof(i);
                s->n_samples[source]++;
            }
    }
    s->plan = at = (at + 7) & ~7u;
    ck_assert_uint_le(at + p->bytes, step_cap);
    memcpy(bytes + at, p, p->bytes);
    OK(cudaMemcpy(lane.step, bytes, at + p->bytes, cudaMemcpyHostToDevice));
    free(bytes);
}

static void sample_all(const struct kern_plan *p) {
    struct cuda_run run = {.d = &dims, .lane = &lane, .last = last, .rows = SAMPLES, .max_samples = SAMPLES};
    memset(last_host, 0xff, sizeof(last_host));
    memset(results, 0xa5, SAMPLES * sizeof(*results)); /* nothing may depend on what is there */
    upload(p);
    OK(cudaMemcpy(lane.logits, logits, (uint64_t)p->n_samples * cfg.model.vocab_rows * sizeof(float),
                  cudaMemcpyHostToDevice));
    OK(cudaMemset(lane.sampling, 0xa5, SAMPLES * cuda_sample_scratch(cfg.model.vocab_rows)));
    OK(cudaMemcpy(last, last_host, sizeof(last_host), cudaMemcpyHostToDevice));
    OK(cuda_sample(&run, KERN_SOURCE_TRUNK));
    OK(cuda_sample(&run, KERN_SOURCE_DRAFT));
    OK(cudaMemcpy(last_host, last, sizeof(last_host), cudaMemcpyDeviceToHost));
    OK(cudaDeviceSynchronize());
}

static bool near(float a, float b) {
    return isnan(a) ? isnan(b) : a == b || fabsf(a - b) <= 3e-6f * (1 + fabsf(b));
}

static void compare(const struct kern_plan *p, const char *what) {
    uint64_t room = (host_sample_scratch(cfg.model.vocab_rows) + 63) / 64 * 64;
    void *scratch = aligned_alloc(64, room);
    uint32_t want_last[SLOTS];
    ck_assert_ptr_nonnull(scratch);
    memset(want_last, 0xff, sizeof(want_last));
    for (uint32_t i = 0; i < p->n_samples; i++) {
        const struct kern_sample *s = &plan_samples(p)[i];
        const struct kern_result *got = &results[i];
        struct kern_result want;
        host_sample(&cfg.model, p, i, logits + (uint64_t)i * cfg.model.vocab_rows, scratch, &want);
        ck_assert_msg(got->token == want.token, "%s, sample %u (t %g k %u p %g m %g): token %u, the host's %u", what, i,
                      (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p, got->token, want.token);
        ck_assert_uint_eq(got->sample, i);
        ck_assert_uint_eq(got->top1, want.top1);
        ck_assert_uint_eq(got->flags, want.flags);
        ck_assert_uint_eq(got->n_alts, want.n_alts);
        ck_assert_msg(near(got->logsumexp, want.logsumexp), "%s: logsumexp %.9g, the host's %.9g", what,
                      (double)got->logsumexp, (double)want.logsumexp);
        ck_assert_msg(near(got->logprob, want.logprob), "%s: logprob %.9g, the host's %.9g", what,
                      (double)got->logprob, (double)want.logprob);
        ck_assert(isnan(want.target) ? isnan(got->target) : got->target == want.target);
        for (uint32_t k = 0; k < KERN_MAX_ALTS; k++) {
            ck_assert_uint_eq(got->alts[k].token, want.alts[k].token);
            ck_assert(near(got->alts[k].logprob, want.alts[k].logprob));
        }
        if (s->mode == KERN_SAMPLE_DRAW && s->source == KERN_SOURCE_TRUNK && want.token != KERN_NONE)
            want_last[plan_seqs(p)[plan_rows(p)[s->row].seq].slot] = want.token;
    }
    ck_assert_msg(!memcmp(want_last, last_host, sizeof(want_last)), "%s: tokens kept for the next step", what);
    free(scratch);
}

static void check_plan(const char *what) {
    struct kern_plan *p = km_plan_build(plan);
    ck_assert_int_eq(kern_plan_check(&cfg, p, p->bytes), 0);
    sample_all(p);
    compare(p, what);
}

/* ---- what is drawn from -------------------------------------------------------------------------------------- */

static void fill(float *z, uint32_t kind) {
    static const float spreads[] = {2.5f, 0.3f, 10, 1e-3f};
    float spread = spreads[km_below(&rng, 4)], shift = km_normal(&rng) * 5;
    for (uint32_t i = 0; i < cfg.model.vocab_rows; i++) {
        float v = shift + spread * km_normal(&rng);
        if (kind == 1) v = roundf(v);                         /* many ties */
        if (kind == 2) v = -1.5f;                             /* nothing but ties */
        if (kind == 3) v = km_below(&rng, 2) ? 0.0f : -0.0f;
        if (kind == 4) v *= 1e37f;                            /* penalties overflow */
        if (kind == 5) v *= 1e-39f;                           /* denormal */
        if (kind == 6) v = km_below(&rng, 50) ? v - 60 : v;   /* most weights are nothing */
        z[i] = v;
    }
    uint32_t at = km_below(&rng, cfg.model.vocab_tokens);
    if (kind == 7) z[at] += 80;
    if (kind == 8) z[at] = km_below(&rng, 2) ? NAN : km_below(&rng, 2) ? INFINITY : -INFINITY;
    for (uint32_t i = cfg.model.vocab_tokens; i < cfg.model.vocab_rows; i++)
        z[i] = km_below(&rng, 2) ? NAN : 1e30f; /* padding rows are not looked at */
}

static void settings(struct kern_sample *s) {
    static const float temperatures[] = {0, 1, 0.7f, 0.01f, 1e-38f, 1e4f, 1.3f}, top_ps[] = {1, 0.95f, 0.5f, 1e-9f,
                                                                                          0.99999f, 0.9f};
    static const float min_ps[] = {0, 0, 0.05f, 1, 0.5f, 1e-30f};
    static const uint32_t top_ks[] = {0, 0, 1, 2, 40, 1000, 1u << 31};
    uint32_t n = cfg.model.vocab_tokens;
    s->temperature = temperatures[km_below(&rng, 7)];
    s->top_p = top_ps[km_below(&rng, 6)];
    s->min_p = min_ps[km_below(&rng, 6)];
    s->top_k = top_ks[km_below(&rng, 7)];
    s->seed = km_u64(&rng);
    s->n_alts = km_below(&rng, 3) ? 0 : km_below(&rng, KERN_MAX_ALTS + 1);
    if (!km_below(&rng, 4)) s->target = km_below(&rng, n);
    if (!km_below(&rng, 12)) s->forced = km_below(&rng, n);
    if (!km_below(&rng, 10)) s->mode = KERN_SAMPLE_SCORE;
    s->bias0 = plan->head.n_bias;
    if (!km_below(&rng, 2)) s->n_bias = km_below(&rng, 30); /* the same token may come twice */
    for (uint32_t i = 0; i < s->n_bias; i++)
        plan->bias[plan->head.n_bias++] = (struct kern_bias){km_below(&rng, n / 4 + 1), 4 * km_normal(&rng)};
    s->seen0 = plan->head.n_seen;
    if (!km_below(&rng, 2)) {
        s->repetition = km_below(&rng, 4) ? 1.2f : 1e4f;
        s->presence = km_normal(&rng);
        s->frequency = km_normal(&rng);
        for (uint32_t t = km_below(&rng, 5); t < cfg.model.vocab_rows && s->n_seen < 700; t += 1 + km_below(&rng, 9)) {
            plan->seen[plan->head.n_seen++] = (struct kern_seen){t, km_below(&rng, 3)};
            s->n_seen++;
        }
    }
    s->ban0 = plan->head.n_ban;
    if (!km_below(&rng, 3)) s->n_ban = km_below(&rng, 20);
    for (uint32_t i = 0; i < s->n_ban; i++) plan->ban[plan->head.n_ban++] = km_below(&rng, cfg.model.vocab_rows);
}

static void mask(struct kern_sample *s, uint32_t kind) {
    uint32_t words = (cfg.model.vocab_rows + 31) / 32;
    s->mask0 = plan->head.n_mask_words;
    for (uint32_t i = 0; i < words; i++)
        plan->mask[plan->head.n_mask_words++] = kind == 0   ? 0
                                                : kind == 1 ? (uint32_t)km_u64(&rng)
                                                : kind == 2 ? (i == words / 2 ? 1u << 7 : 0)
                                                            : UINT32_MAX;
}

static const uint32_t vocabs[][2] = {{97, 91}, {1000, 1000}, {4096, 4095}, {4097, 4097}, {9001, 8997}};

START_TEST(equals_the_host) {
    const char *more = getenv("CUDA_SAMPLER_ROUNDS");
    uint32_t rounds = more ? (uint32_t)strtoul(more, NULL, 10) : 12;
    char what[64];
    rng.s = 77 + (uint64_t)_i;
    prepare(vocabs[_i][0], vocabs[_i][1]);
    for (uint32_t round = 0; round < rounds; round++) {
        rows(round * 3);
        for (uint32_t i = 0; i < SAMPLES; i++) {
            uint32_t row = km_below(&rng, SLOTS + 2);
            struct kern_sample *s = km_plan_sample(plan, row, KERN_SAMPLE_DRAW, km_below(&rng, 3) == 0);
            settings(s);
            if (!km_below(&rng, 3)) mask(s, km_below(&rng, 4));
            fill(logits + (uint64_t)i * cfg.model.vocab_rows, km_below(&rng, 9));
        }
        snprintf(what, sizeof(what), "vocabulary %u, round %u", cfg.model.vocab_rows, round);
        check_plan(what);
    }
    release();
}
END_TEST

/* The bits of a result depend on the sample alone. */
START_TEST(alone_and_beside_others) {
    static struct kern_result alone;
    rng.s = 5;
    prepare(9001, 8997);
    rows(64);
    fill(logits, 0);
    settings(km_plan_sample(plan, 3, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK));
    plan->sample[0].mode = KERN_SAMPLE_DRAW;
    plan->sample[0].n_alts = 5;
    sample_all(km_plan_build(plan));
    alone = results[0];
    for (uint32_t i = 1; i < SAMPLES; i++) {
        settings(km_plan_sample(plan, km_below(&rng, SLOTS), KERN_SAMPLE_DRAW, i % 2));
        fill(logits + (uint64_t)i * cfg.model.vocab_rows, i % 9);
    }
    sample_all(km_plan_build(plan));
    ck_assert(!memcmp(&alone, &results[0], sizeof(alone)));
    release();
}
END_TEST

/* The real vocabulary, flat and peaked. */
START_TEST(full_vocabulary) {
    rng.s = 91;
    prepare(154880, 154856);
    for (uint32_t round = 0; round < 2; round++) {
        rows(5);
        for (uint32_t i = 0; i < 4; i++) {
            struct kern_sample *s = km_plan_sample(plan, i, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
            s->temperature = 1;
            s->seed = 5 + i + 4 * round;
            s->top_p = i % 2 ? 0.95f : 1;
            s->top_k = i == 3 ? 50 : 0;
            s->n_alts = i == 2 ? 20 : 0;
            fill(logits + (uint64_t)i * cfg.model.vocab_rows, round ? 2 : 0);
        }
        check_plan(round ? "all equal" : "full vocabulary");
    }
    release();
}
END_TEST

/* Said, and nothing is kept for the next step. */
START_TEST(nothing_to_draw) {
    rng.s = 3;
    prepare(97, 91);
    rows(1);
    mask(km_plan_sample(plan, 0, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK), 0);
    fill(logits, 0);
    struct kern_sample *s = km_plan_sample(plan, 1, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
    s->temperature = 1;
    mask(s, 0);
    fill(logits + cfg.model.vocab_rows, 0);
    check_plan("everything masked");
    ck_assert_uint_eq(results[0].flags, KERN_RESULT_EMPTY);
    ck_assert_uint_eq(results[1].flags, KERN_RESULT_EMPTY);
    release();
}
END_TEST

int main(void) {
    Suite *s = suite_create("cuda_sampler");
    TCase *t = tcase_create("device");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, equals_the_host, 0, 5);
    tcase_add_test(t, alone_and_beside_others);
    tcase_add_test(t, full_vocabulary);
    tcase_add_test(t, nothing_to_draw);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
