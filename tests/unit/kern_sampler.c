/* SPDX-License-Identifier: MIT */
/* The sampler against its definition: a full sort and plain sums, noise taken for every id. Then the
 * properties that a user would notice. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host.h"
#include "kernmodel.h"

static struct kern_config cfg;
static struct km_plan *plan;
static struct km_rng rng;
static float *logits;
static void *scratch;

static void prepare(uint32_t rows, uint32_t tokens) {
    km_config_small(&cfg);
    cfg.model.vocab_rows = rows;
    cfg.model.vocab_tokens = tokens;
    cfg.max_plan_bytes = 4 << 20;
    plan = km_plan_new_cfg(&cfg);
    logits = malloc(rows * sizeof(float));
    scratch = aligned_alloc(64, (host_sample_scratch(rows) + 63) / 64 * 64);
    ck_assert_ptr_nonnull(logits);
    ck_assert_ptr_nonnull(scratch);
}
static void release(void) {
    km_plan_free(plan);
    free(logits);
    free(scratch);
}

/* An empty plan with one row at `pos` and one DRAW entry to fill in. */
static struct kern_sample *begin(uint32_t pos) {
    uint32_t token = 0;
    km_plan_clear(plan, KERN_LANE_DECODE);
    km_plan_seq(plan, 0, pos, 0, KERN_SEQ_COMMIT, &token, 1, NULL);
    return km_plan_sample(plan, 0, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
}

static struct kern_result draw(void) {
    struct kern_result r;
    struct kern_plan *p = km_plan_build(plan);
    ck_assert_int_eq(kern_plan_check(&cfg, p, p->bytes), 0);
    memset(scratch, 0xa5,
           host_sample_scratch(cfg.model.vocab_rows)); /* nothing may depend on what is there */
    host_sample(&cfg.model, p, 0, logits, scratch, &r);
    return r;
}

static void random_logits(float spread, bool with_ties) {
    for (uint32_t i = 0; i < cfg.model.vocab_rows; i++) {
        logits[i] = spread * km_normal(&rng);
        if (with_ties)
            logits[i] = roundf(logits[i]);
    }
}

/* ---- the definition ---- */

struct entry {
    float z;
    double p;
    uint32_t id;
};

static int by_rank(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->z != y->z)
        return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static float bounded(float v) {
    return v > 3.402823466e38f ? 3.402823466e38f : v;
}

static uint32_t naive(const struct kern_sample *s, uint32_t position, uint32_t *ret_survivors) {
    const uint32_t n = cfg.model.vocab_tokens;
    struct entry *e = calloc(n, sizeof(*e));
    uint32_t have = 0, best = KERN_NONE;
    for (uint32_t i = 0; i < n; i++) {
        float z = logits[i];
        for (uint32_t b = 0; b < s->n_ban; b++)
            if (plan->ban[s->ban0 + b] == i)
                z = -INFINITY;
        if (s->mask0 != KERN_NONE && !(plan->mask[s->mask0 + i / 32] >> i % 32 & 1))
            z = -INFINITY;
        for (uint32_t b = 0; b < s->n_bias; b++)
            if (plan->bias[s->bias0 + b].token == i)
                z = bounded(z + plan->bias[s->bias0 + b].bias);
        for (uint32_t b = 0; b < s->n_seen; b++)
            if (plan->seen[s->seen0 + b].token == i) {
                z = bounded(z > 0 ? z / s->repetition : z * s->repetition);
                if (plan->seen[s->seen0 + b].count)
                    z -= s->presence + s->frequency * (float)plan->seen[s->seen0 + b].count;
            }
        if (z > -INFINITY)
            e[have++] = (struct entry){z + 0.0f, 0, i};
    }
    qsort(e, have, sizeof(*e), by_rank);
    if (have && s->temperature <= 0)
        have = 1;
    if (s->temperature > 0 && s->top_k && s->top_k < have)
        have = s->top_k;
    double sum = 0, cum = 0, top_score = -INFINITY;
    for (uint32_t i = 0; i < have; i++) {
        e[i].p = exp(((double)e[i].z - (double)e[0].z) * (1 / (double)s->temperature));
        sum += e[i].p;
    }
    if (s->temperature > 0 && s->top_p < 1)
        for (uint32_t i = 0; i < have; i++) {
            cum += e[i].p;
            if (cum >= (double)s->top_p * sum)
                have = i + 1;
        }
    *ret_survivors = 0;
    for (uint32_t i = 0; i < have; i++) {
        if (s->temperature > 0 && e[i].p < (double)s->min_p)
            continue;
        ++*ret_survivors;
        double score = s->temperature <= 0
                           ? 0
                           : ((double)e[i].z - (double)e[0].z) * (1 / (double)s->temperature) +
                                 host_gumbel(host_noise_bits(s->seed, position, e[i].id));
        if (score > top_score || (score == top_score && e[i].id < best)) {
            top_score = score;
            best = e[i].id;
        }
    }
    free(e);
    return best;
}

static void random_lists(struct kern_sample *s) {
    const uint32_t n = cfg.model.vocab_tokens;
    if (km_below(&rng, 2)) {
        plan->head.n_bias = s->n_bias = 1 + km_below(&rng, 5);
        for (uint32_t i = 0; i < s->n_bias; i++)
            plan->bias[i] = (struct kern_bias){km_below(&rng, n), 4 * km_normal(&rng)};
    }
    if (km_below(&rng, 2)) {
        uint32_t step = 1 + km_below(&rng, 5);
        s->repetition = 0.5f + km_uniform(&rng);
        s->presence = km_normal(&rng);
        s->frequency = km_normal(&rng);
        for (uint32_t i = 0; i < n / step && i < 200; i++)
            plan->seen[s->n_seen++] = (struct kern_seen){i * step, km_below(&rng, 4)};
        plan->head.n_seen = s->n_seen;
    }
    if (km_below(&rng, 2)) {
        plan->head.n_ban = s->n_ban = 1 + km_below(&rng, 9);
        for (uint32_t i = 0; i < s->n_ban; i++)
            plan->ban[i] = km_below(&rng, n);
    }
    if (km_below(&rng, 3) == 0) {
        s->mask0 = 1;
        plan->head.n_mask_words = 1 + (cfg.model.vocab_rows + 31) / 32;
        for (uint32_t i = 0; i < plan->head.n_mask_words; i++)
            plan->mask[i] = (uint32_t)km_u64(&rng) & (uint32_t)km_u64(&rng);
    }
}

static void random_cuts(struct kern_sample *s) {
    static const float temperatures[] = {0, 0.01f, 0.7f, 1, 1.5f, 8};
    s->temperature = temperatures[km_below(&rng, 6)];
    s->top_k = km_below(&rng, 2) ? 1 + km_below(&rng, cfg.model.vocab_tokens + 5) : 0;
    s->top_p = km_below(&rng, 2) ? fmaxf(km_uniform(&rng), 0.01f) : 1;
    s->min_p = km_below(&rng, 3) ? 0 : km_uniform(&rng) * 0.3f;
    s->seed = km_u64(&rng);
}

START_TEST(equals_the_definition) {
    static const uint32_t sizes[][2] = {{221, 197}, {40, 40}, {1500, 1480}, {3, 1}};
    uint32_t survivors, several = 0, all = 0;
    rng.s = 1 + (uint64_t)_i;
    prepare(sizes[_i][0], sizes[_i][1]);
    for (int round = 0; round < 1500; round++) {
        uint32_t pos = km_below(&rng, 500);
        struct kern_sample *s = begin(pos);
        random_logits(round % 3 ? 4.0f : 0.5f, round % 5 == 0);
        random_lists(s);
        random_cuts(s);
        uint32_t want = naive(s, pos + 1, &survivors);
        struct kern_result r = draw();
        ck_assert_msg(r.token == want, "round %d: %u instead of %u of %u", round, r.token, want, survivors);
        ck_assert_uint_eq(r.flags, want == KERN_NONE ? KERN_RESULT_EMPTY : 0);
        several += survivors > 1;
        all++;
    }
    /* the rounds must not all have been trivial */
    ck_assert(cfg.model.vocab_tokens == 1 || several * 2 > all);
    release();
}
END_TEST

/* ---- properties ---- */

START_TEST(greedy_is_argmax_with_ties) {
    rng.s = 11;
    prepare(221, 197);
    for (int round = 0; round < 500; round++) {
        random_logits(1, true);
        begin(3);
        uint32_t best = 0;
        for (uint32_t i = 1; i < 197; i++)
            if (logits[i] > logits[best])
                best = i;
        struct kern_result r = draw();
        ck_assert_uint_eq(r.token, best);
        ck_assert_uint_eq(r.top1, best);
    }
    for (uint32_t i = 0; i < 221; i++)
        logits[i] = i % 2 ? 0.0f : -0.0f; /* equal: the smaller id */
    ck_assert_uint_eq(draw().token, 0);
    release();
}
END_TEST

/* Frequencies of many draws against softmax: chi-square, 49 degrees of freedom, far beyond its 0.999 quantile
 * (85). */
static void chi_square(bool by_position) {
    enum { N = 50, DRAWS = 40000 };
    double p[N], sum = 0, chi = 0;
    uint32_t count[N] = {0};
    prepare(N, N);
    random_logits(1, false);
    for (int i = 0; i < N; i++)
        sum += p[i] = exp((double)logits[i] / 0.8);
    for (uint32_t d = 0; d < DRAWS; d++) {
        struct kern_sample *s = begin(by_position ? d % 500 : 7);
        s->temperature = 0.8f;
        s->seed = by_position ? d / 500 : d;
        struct kern_result r;
        struct kern_plan *b = km_plan_build(plan);
        host_sample(&cfg.model, b, 0, logits, scratch, &r);
        count[r.token]++;
    }
    for (int i = 0; i < N; i++) {
        double want = DRAWS * p[i] / sum;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    ck_assert_msg(chi < 85 && chi > 15, "chi-square %g", chi);
    release();
}

START_TEST(draws_follow_softmax) {
    rng.s = 21;
    chi_square(_i);
}
END_TEST

START_TEST(draw_depends_on_seed_and_position_only) {
    rng.s = 31;
    prepare(221, 197);
    uint32_t differs = 0;
    for (int round = 0; round < 200; round++) {
        random_logits(0.5f, false);
        struct kern_sample *s = begin(9);
        s->temperature = 1;
        s->seed = (uint64_t)round;
        uint32_t first = draw().token;
        ck_assert_uint_eq(draw().token, first);
        /* padding rows are nobody's business, whatever stands there */
        for (uint32_t i = 197; i < 221; i++)
            logits[i] = i % 2 ? 1e30f : NAN;
        ck_assert_uint_eq(draw().token, first);
        /* a draft row chooses the token after next: same noise as the trunk's row one later */
        s = begin(10);
        s->temperature = 1;
        s->seed = (uint64_t)round;
        uint32_t later = draw().token, next = 5;
        differs += later != first;
        km_plan_clear(plan, KERN_LANE_DECODE);
        km_plan_seq(plan, 0, 9, 0, KERN_SEQ_COMMIT | KERN_SEQ_DRAFT, (uint32_t[]){0}, 1, &next);
        s = km_plan_sample(plan, 0, KERN_SAMPLE_DRAW, KERN_SOURCE_DRAFT);
        s->temperature = 1;
        s->seed = (uint64_t)round;
        ck_assert_uint_eq(draw().token, later);
    }
    ck_assert_uint_gt(differs, 150);
    release();
}
END_TEST

/* 24 padding rows with the largest logits of all, every way of drawing: never chosen, never reported. */
START_TEST(padding_is_never_sampled) {
    rng.s = 41;
    prepare(221, 197);
    for (int round = 0; round < 1000; round++) {
        random_logits(1, false);
        for (uint32_t i = 197; i < 221; i++)
            logits[i] = 50 + (float)i;
        struct kern_sample *s = begin(2);
        random_cuts(s);
        s->n_alts = KERN_MAX_ALTS;
        if (round % 4 == 0) { /* a mask that allows everything, padding included */
            s->mask0 = 0;
            plan->head.n_mask_words = 7;
            memset(plan->mask, 0xff, 28);
        }
        if (round % 7 == 0) {
            s->mode = KERN_SAMPLE_SCORE;
        }
        struct kern_result r = draw();
        ck_assert_uint_lt(r.token, 197);
        ck_assert_uint_lt(r.top1, 197);
        for (uint32_t i = 0; i < r.n_alts; i++)
            ck_assert_uint_lt(r.alts[i].token, 197);
        ck_assert(r.logsumexp < 20);
    }
    release();
}
END_TEST

START_TEST(logprobs_are_of_the_raw_logits) {
    rng.s = 51;
    prepare(221, 197);
    for (int round = 0; round < 200; round++) {
        random_logits(3, round % 2);
        struct kern_sample *s = begin(2);
        random_lists(s);
        random_cuts(s);
        s->n_alts = km_below(&rng, KERN_MAX_ALTS + 1);
        s->target = km_below(&rng, 197);
        struct kern_result r = draw();
        double sum = 0;
        struct entry e[197];
        for (uint32_t i = 0; i < 197; i++) {
            sum += exp((double)logits[i]);
            e[i] = (struct entry){logits[i] + 0.0f, 0, i};
        }
        qsort(e, 197, sizeof(e[0]), by_rank);
        ck_assert(fabs((double)r.logsumexp - log(sum)) < 1e-5);
        ck_assert(r.target == logits[s->target]);
        if (r.token != KERN_NONE)
            ck_assert(fabs((double)r.logprob - ((double)logits[r.token] - log(sum))) < 1e-5);
        ck_assert_uint_eq(r.n_alts, s->n_alts);
        for (uint32_t i = 0; i < r.n_alts; i++) {
            ck_assert_uint_eq(r.alts[i].token, e[i].id);
            ck_assert(fabs((double)r.alts[i].logprob - ((double)e[i].z - log(sum))) < 1e-5);
        }
    }
    release();
}
END_TEST

START_TEST(forced_and_scored) {
    rng.s = 61;
    prepare(221, 197);
    random_logits(1, false);
    struct kern_sample *s = begin(2);
    s->forced = 100;
    s->n_ban = plan->head.n_ban = 1;
    plan->ban[0] = 100;
    s->temperature = 1;
    struct kern_result r = draw();
    ck_assert_uint_eq(r.token, 100);
    ck_assert(fabs((double)r.logprob - ((double)logits[100] - (double)r.logsumexp)) < 1e-5);
    s->mode = KERN_SAMPLE_SCORE;
    r = draw();
    ck_assert_uint_eq(r.token, r.top1);
    ck_assert(isnan(r.target));
    release();
}
END_TEST

START_TEST(nothing_left_is_said) {
    rng.s = 71;
    prepare(221, 197);
    random_logits(1, false);
    struct kern_sample *s = begin(2);
    s->mask0 = 0;
    plan->head.n_mask_words = 7;
    memset(plan->mask, 0, 28);
    plan->mask[6] = 0xffffffe0u; /* only padding rows allowed */
    for (int t = 0; t < 2; t++) {
        s->temperature = (float)t;
        struct kern_result r = draw();
        ck_assert_uint_eq(r.flags, KERN_RESULT_EMPTY);
        ck_assert_uint_eq(r.token, KERN_NONE);
        ck_assert_uint_lt(r.top1, 197);
        ck_assert(isnan(r.logprob));
    }
    plan->mask[6] |= 0x10; /* token 196 */
    s->temperature = 1;
    ck_assert_uint_eq(draw().token, 196);
    release();
}
END_TEST

START_TEST(nonfinite_is_said) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    rng.s = 81;
    prepare(221, 197);
    for (int i = 0; i < 3; i++)
        for (uint32_t at = 0; at < 197; at += 49) {
            random_logits(1, false);
            logits[at] = bad[i];
            begin(2)->n_alts = 3;
            struct kern_result r = draw();
            ck_assert_uint_eq(r.flags, KERN_RESULT_NONFINITE);
            ck_assert_uint_eq(r.token, KERN_NONE);
            ck_assert_uint_eq(r.top1, KERN_NONE);
            ck_assert_uint_eq(r.n_alts, 0);
        }
    /* the largest numbers there are: not an error, no overflow on the way */
    for (uint32_t i = 0; i < 221; i++)
        logits[i] = i == 9 ? 3.4e38f : -3.4e38f;
    struct kern_sample *s = begin(2);
    s->temperature = 1e-30f;
    s->repetition = 1e-4f;
    s->n_seen = plan->head.n_seen = 1;
    plan->seen[0] = (struct kern_seen){9, 1};
    struct kern_result r = draw();
    ck_assert_uint_eq(r.token, 9);
    ck_assert_uint_eq(r.flags, 0);
    release();
}
END_TEST

/* Equal logits, where sums meet the bound exactly: the smallest set that reaches top_p, lowest ids first. */
START_TEST(nucleus_reaches_and_no_more) {
    static const struct {
        float top_p;
        uint32_t equal, want;
    } cases[] = {{0.5f, 40, 20},    {0.25f, 40, 10},       {0.75f, 4, 3},        {0.5f, 1, 1},
                 {0.5f, 2, 1},      {0.51f, 40, 21},       {1e-9f, 40, 1},       {0.125f, 1024, 128},
                 {0.5f, 1500, 750}, {0.49999997f, 40, 20}, {0.99999994f, 64, 64}};
    const uint32_t n = cases[_i].equal;
    uint32_t seen = 0;
    static bool in[1500];
    prepare(1500, 1500);
    for (uint32_t i = 0; i < 1500; i++)
        logits[i] = i < 1500 - n ? -200.0f : 3.0f; /* the others have no weight at all */
    memset(in, 0, sizeof(in));
    for (uint32_t d = 0; d < 16 * n + 200; d++) {
        struct kern_sample *s = begin(5);
        s->temperature = 1;
        s->top_p = cases[_i].top_p;
        s->seed = d;
        struct kern_result r;
        host_sample(&cfg.model, km_plan_build(plan), 0, logits, scratch, &r);
        ck_assert_uint_ge(r.token, 1500 - n);
        seen += !in[r.token];
        in[r.token] = true;
    }
    ck_assert_uint_eq(seen, cases[_i].want);
    for (uint32_t i = 0; i < cases[_i].want; i++)
        ck_assert(in[1500 - n + i]);
    release();
}
END_TEST

/* Values at the ends of what a request may hold, together: a token that was allowed comes out, the best one
 * where the settings leave no other. */
START_TEST(extreme_settings) {
    static const float temperatures[] = {1e-30f, 1e-9f, 1, 1e4f}, top_ps[] = {1e-9f, 0.99999994f, 1},
                       min_ps[] = {0, 1e-30f, 1}, penalties[] = {1e-4f, 1, 1e4f};
    rng.s = 111;
    prepare(221, 197);
    for (int round = 0; round < 4 * 3 * 3 * 3 * 4; round++) {
        int at = round;
        struct kern_sample *s = begin(5);
        random_logits(4, round % 2);
        s->temperature = temperatures[at % 4], at /= 4;
        s->top_p = top_ps[at % 3], at /= 3;
        s->min_p = min_ps[at % 3], at /= 3;
        s->repetition = penalties[at % 3], at /= 3;
        s->presence = at & 1 ? 1e4f : -1e4f;
        s->frequency = at & 2 ? 1e4f : -1e4f;
        s->seed = km_u64(&rng);
        plan->head.n_seen = s->n_seen = 3;
        for (uint32_t i = 0; i < 3; i++)
            plan->seen[i] = (struct kern_seen){50 * i, i * 250};
        plan->head.n_bias = s->n_bias = 2;
        plan->bias[0] = (struct kern_bias){7, -1e4f};
        plan->bias[1] = (struct kern_bias){8, 1e4f};
        plan->head.n_ban = s->n_ban = 1;
        plan->ban[0] = 9;
        uint32_t survivors, want = naive(s, 6, &survivors);
        struct kern_result r = draw();
        ck_assert_msg(r.token == want, "round %d: %u instead of %u of %u", round, r.token, want, survivors);
        ck_assert_uint_eq(r.flags, 0);
        ck_assert(isfinite(r.logprob) && isfinite(r.logsumexp));
    }
    release();
}
END_TEST

static double sample_ms(const struct kern_plan *p, struct kern_result *ret) {
    double best = INFINITY;
    for (int i = 0; i < 7; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        host_sample(&cfg.model, p, 0, logits, scratch, ret);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        best = fmin(best, (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6);
    }
    return best;
}

/* The real vocabulary: exact, and quick wherever the cut falls: no sort of it may hide in there. */
START_TEST(full_vocabulary) {
    static const float top_ps[] = {1, 0.95f, 0.5f, 0.99999f};
    rng.s = 91;
    prepare(154880, 154856);
    uint32_t survivors;
    double plain = 0;
    for (int round = 0; round < 12; round++) {
        random_logits(round < 4 ? 2.5f : round < 8 ? 0.01f : 0.0f, false);
        struct kern_sample *s = begin(5);
        s->temperature = 1;
        s->seed = 5 + (uint64_t)round;
        s->top_p = top_ps[round % 4];
        s->top_k = round == 3 ? 50 : 0;
        uint32_t want = naive(s, 6, &survivors);
        struct kern_result r;
        double ms = sample_ms(km_plan_build(plan), &r);
        ck_assert_uint_eq(r.token, want);
        if (round % 4 == 0)
            plain = ms;
        ck_assert_msg(ms < 4 * plain, "round %d: %g ms, without a cut %g ms", round, ms, plain);
        if (getenv("KERN_SAMPLER_TIMES"))
            printf("round %d: %.2f ms, %u survivors\n", round, ms, survivors);
    }
    release();
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_sampler");
    TCase *t = tcase_create("host");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, equals_the_definition, 0, 4);
    tcase_add_test(t, greedy_is_argmax_with_ties);
    tcase_add_loop_test(t, draws_follow_softmax, 0, 2);
    tcase_add_test(t, draw_depends_on_seed_and_position_only);
    tcase_add_test(t, padding_is_never_sampled);
    tcase_add_test(t, logprobs_are_of_the_raw_logits);
    tcase_add_test(t, forced_and_scored);
    tcase_add_test(t, nothing_left_is_said);
    tcase_add_test(t, nonfinite_is_said);
    tcase_add_loop_test(t, nucleus_reaches_and_no_more, 0, 11);
    tcase_add_test(t, extreme_settings);
    tcase_add_test(t, full_vocabulary);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
