/* SPDX-License-Identifier: MIT */
/* The CUDA backend against the golden files, whose numbers are of F32 activations: of all positions of all cases,
 * nearly all have the recorded top-1, and the middle one of the errors of last logits is the rounding to BF16. nano is
 * a model of BF16 weights that knows what it says; twin-a's logits are random and close to each other. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptinst.h"
#include "safetensors.h"

enum { MOST_TOKENS = 1536, MOST_CASES = 32, CHUNK = 64 };

static const struct {
    const char *model;
    double top1; /* share of positions */
    const char *cases[12];
} models[] = {
    {"nano", 0.99, {"three", "count", "sort", "len66", "len131", "polish", "json", "tool", "len257", "long"}},
    {"twin-a", 0.95, {"r3", "r18", "r19", "r20", "r35", "r64", "r129", "r300"}},
};
static const double MEDIAN = 2e-2;

struct score {
    uint32_t same, n, cases;
    double error[2 * MOST_CASES];
};

static void *tensor(struct st_file *f, const char *name, const char *key, uint64_t *ret_n) {
    char full[128];
    struct xerr e = {0};
    snprintf(full, sizeof(full), "%s.%s", name, key);
    const struct st_tensor *t = st_find(f, full);
    ck_assert_msg(t != NULL, "%s is missing", full);
    void *p = malloc(t->bytes);
    ck_assert_ptr_nonnull(p);
    ck_assert_msg(st_read(f, t, 0, p, t->bytes, &e) == 0, "%s", e.msg);
    *ret_n = t->bytes / 4;
    return p;
}

static double distance(const float *got, const float *want, uint32_t n) {
    double d = 0, w = 0;
    for (uint32_t i = 0; i < n; i++) {
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w += (double)want[i] * want[i];
    }
    return sqrt(d / w);
}

/* In chunks, or row by row. */
static void run_case(struct km_inst *i, struct km_plan *p, struct st_file *f, const char *name, uint32_t step,
                     struct score *s) {
    const uint32_t vocab = i->cfg.model.vocab_rows, lane = step > 1 ? KERN_LANE_PREFILL : KERN_LANE_DECODE;
    uint64_t n, n_top, n_logits;
    int32_t *ids = tensor(f, name, "ids", &n), *top1 = tensor(f, name, "top1", &n_top);
    float *want = tensor(f, name, "logits_last", &n_logits), *got = malloc(vocab * sizeof(float));
    ck_assert_ptr_nonnull(got);
    ck_assert_uint_eq(n, n_top);
    ck_assert_uint_eq(n_logits, vocab);
    ck_assert_uint_le(n, MOST_TOKENS);
    for (uint32_t at = 0; at < n; at += step) {
        uint32_t now = n - at < step ? (uint32_t)(n - at) : step;
        km_plan_clear(p, lane);
        km_plan_seq(p, 0, at, 0,
                    KERN_SEQ_COMMIT | (at ? 0 : KERN_SEQ_RESET) | (lane == KERN_LANE_PREFILL ? KERN_SEQ_PREFILL : 0u),
                    (const uint32_t *)ids + at, now, NULL);
        for (uint32_t j = 0; j < now; j++)
            km_plan_sample(p, j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
        km_run(i, p);
        for (uint32_t j = 0; j < now; j++)
            s->same += km_results(i, lane)[j].top1 == (uint32_t)top1[at + j];
        s->n += now;
        if (at + now == n)
            km_peek(i, lane, KERN_PEEK_LOGITS, now - 1, 1, got);
    }
    s->error[s->cases++] = distance(got, want, vocab);
    if (getenv("CUDA_GOLDEN_ERRORS"))
        printf("%s by %u: logits %.2e\n", name, step, s->error[s->cases - 1]);
    free(ids);
    free(top1);
    free(want);
    free(got);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* CUDA_GOLDEN_CASES: how many of each model; a simulated device takes seconds for a hundred tokens. */
START_TEST(golden) {
    const char *root = getenv("GLMD_MODELS"), *more = getenv("CUDA_GOLDEN_CASES");
    uint32_t cases = more ? (uint32_t)strtoul(more, NULL, 10) : 4;
    char dir[512], path[512];
    struct xerr e = {0};
    struct st_file *f;
    struct score s = {0};
    const struct kern_config c = {.n_ranks = 1,
                                  .threads = 1,
                                  .cache = KERN_CACHE_F32,
                                  .n_pages = 8,
                                  .n_slots = 1,
                                  .max_seqs = 1,
                                  .max_rows = {1, CHUNK},
                                  .max_samples = CHUNK,
                                  .max_context = MOST_TOKENS,
                                  .max_plan_bytes = 1 << 20};
    snprintf(dir, sizeof(dir), "%s/%s", root ? root : "build/models", models[_i].model);
    snprintf(path, sizeof(path), "tests/golden/golden-%s.safetensors", models[_i].model);
    ck_assert_msg(st_open(&f, path, NULL, &e) == 0, "%s", e.msg);
    struct km_inst *i = ckptinst_open(dir, "cuda", &c);
    struct km_plan *p = km_plan_new(i);
    for (uint32_t k = 0; k < cases && models[_i].cases[k]; k++) {
        run_case(i, p, f, models[_i].cases[k], CHUNK, &s);
        if (k < 4)
            run_case(i, p, f, models[_i].cases[k], 1, &s);
    }
    qsort(s.error, s.cases, sizeof(s.error[0]), by_size);
    printf("%s: top-1 %u of %u, median error %.2e, worst %.2e\n", models[_i].model, s.same, s.n, s.error[s.cases / 2],
           s.error[s.cases - 1]);
    ck_assert_msg(s.same >= models[_i].top1 * s.n, "top-1 is the recorded one at %u of %u positions", s.same, s.n);
    ck_assert_msg(s.error[s.cases / 2] < MEDIAN, "median relative error %g", s.error[s.cases / 2]);
    km_plan_free(p);
    km_close(i);
    st_close(f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cuda_golden");
    TCase *t = tcase_create("cuda");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, golden, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
