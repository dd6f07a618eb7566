/* SPDX-License-Identifier: MIT */
/* GLM-5.3 from its files to glm-eval's verdict, against the scalar oracle (tests/lib/oracle53.h): activations
 * of every layer, logits, drafts, continuations through the serving loop, rows that decode instead of
 * reading. glm53_oracle does the same below the engine. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "goldmake.h"
#include "leakcheck.h"
#include "score.h"
#include "twin53.h"

static struct o53_model model;
static struct ckpt dir;

static void setup(void) {
    leakcheck_setup();
    ckpt_empty(&dir);
}

static void teardown(void) {
    twin53_done(&model);
    ckpt_remove(&dir);
    leakcheck_teardown();
}

/* A short name for each thing that a configuration of this family may say. */
static const struct twin {
    const char *name, *stored;
    int wide;      /* the release's inner widths, fewer layers */
    uint64_t seed; /* one whose decisions are clear */
} TWINS[] = {{"bf16", "bf16", 0, 3}, {"fp8", "fp8", 0, 3}, {"wide", "bf16", 1, 3}};

static const struct twin53_case CASES[] = {
    {"one", 1, 0}, {"few", 3, 1}, {"room", 24, 1}, {"edge", 25, 0}, {"long", 97, 3},
};

static void make(const struct twin *t) {
    struct o53_dims d = twin53_dims();

    if (t->wide) {
        d.hidden = 128;
        d.heads = 2;
        d.layers = 5;
        d.q_lora = 128;
        d.kv_lora = 512;
        d.nope = 192;
        d.rope = 64;
        d.v = 256;
        d.index_dim = 128;
        d.experts = 4;
    }
    twin53_make(&model, &d, t->seed, t->stored);
    twin53_write(&model, &dir, t->stored);
}

START_TEST(test_golden) {
    struct eval_options o = {.model = dir.dir, .tolerance = 1e-4};
    struct o53_out gaps;
    const char *golden;

    make(&TWINS[_i]);
    golden = ckpt_path(&dir, "golden.safetensors");
    twin53_golden(&model, &dir, "golden.safetensors", CASES, sizeof CASES / sizeof *CASES, &gaps);
    /* otherwise two right programs may choose differently, and nothing is proved */
    ck_assert_msg(gaps.sparse_rows > 100 && gaps.index_gap > 1e-5 && gaps.router_gap > 1e-5,
                  "%u rows, gaps %g and %g", gaps.sparse_rows, gaps.index_gap, gaps.router_gap);
    for (int run = 0; run < 3; run++) {
        o.backend = run == 0 ? "ref" : "cpu";
        o.chunk_tokens = run == 2 ? 512 : 64;
        ck_assert_msg(goldmake_eval(&o, golden) == EVAL_OK, "%s on %s: %s", TWINS[_i].name, o.backend,
                      goldmake_said);
    }
}
END_TEST

/* ---- decode ---- */

struct rows {
    const struct o53_out *want;
    uint32_t vocab, seen;
    double worst;
};

static void on_logits(void *ctx, uint32_t pos, const float *v) {
    struct rows *r = ctx;
    const double *want = r->want->logits + (size_t)pos * r->vocab;
    double top = 0, far = 0;
    uint32_t a = 0, b = 0;

    for (uint32_t i = 0; i < r->vocab; i++) {
        top = fmax(top, fabs(want[i]));
        far = fmax(far, fabs((double)v[i] - want[i]));
        a = want[i] > want[a] ? i : a;
        b = v[i] > v[b] ? i : b;
    }
    ck_assert_msg(a == b && far / top < 1e-4, "position %u: off by %g, most likely %u, expected %u", pos,
                  far / top, b, a);
    r->worst = fmax(r->worst, far / top);
    r->seen++;
}

/* Every row of a prompt whose last ids go through decode steps. */
static void fed(const char *backend, const uint32_t *ids, uint32_t n, uint32_t fed_tokens,
                const struct o53_out *want) {
    struct engine_options o = {.model = dir.dir,
                               .backend = backend,
                               .max_seqs = 1,
                               .max_streams = 1,
                               .score = true,
                               .context_tokens = n + 1,
                               .draft = true};
    struct rows seen = {.want = want, .vocab = model.d.vocab};
    struct score_query q = {
        .ids = ids, .n_ids = n, .fed_tokens = fed_tokens, .logits = on_logits, .ctx = &seen};
    struct score_row *row = calloc(n, sizeof *row);
    struct score_out out = {.rows = row};
    struct xerr err = {0};
    struct engine *e = NULL;

    ck_assert_msg(engine_open(&o, &e, &err) == 0, "%s: %s", backend, err.msg);
    ck_assert_msg(engine_load(e, NULL, NULL, &err) == 0, "%s: %s", backend, err.msg);
    ck_assert_msg(score_prompt(e, &q, &out, &err) == 0, "%s: %s", backend, err.msg);
    ck_assert_uint_eq(seen.seen, n);
    engine_close(e);
    free(row);
}

START_TEST(test_decode) {
    static const uint32_t FED[] = {1, 40, 75};
    enum { N = 76 };
    struct ckpt_rng rng = {7};
    uint32_t ids[N];
    struct o53_out want;

    make(&TWINS[_i]);
    for (uint32_t i = 0; i < N; i++)
        ids[i] = (uint32_t)(ckpt_rand(&rng) % 4060);
    oracle53_run(&model, (const int32_t *)ids, N, &want);
    ck_assert(want.index_gap > 1e-5 && want.router_gap > 1e-5);
    for (size_t i = 0; i < sizeof FED / sizeof *FED; i++)
        fed("cpu", ids, N, FED[i], &want);
    fed("ref", ids, N, FED[1], &want);
    oracle53_done(&want);
}
END_TEST

int main(void) {
    Suite *s = suite_create("glm53_eval");
    TCase *t = tcase_create("oracle");
    SRunner *sr;
    int failed;

    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, test_golden, 0, sizeof TWINS / sizeof *TWINS);
    tcase_add_loop_test(t, test_decode, 0, sizeof TWINS / sizeof *TWINS);
    suite_add_tcase(s, t);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
