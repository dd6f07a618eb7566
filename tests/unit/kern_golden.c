/* SPDX-License-Identifier: MIT */
/* The oracle against the golden files: last logits, top-1 and logsumexp of every position, every hidden state
 * where the file has them, and the draft layer. Whole prompts in chunks, then token by token. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptinst.h"
#include "safetensors.h"

static const double TOLERANCE = 1e-5;

struct golden {
    struct km_inst *inst;
    struct st_file *file;
    struct km_plan *plan;
};

static void must(int r, const struct xerr *e) {
    ck_assert_msg(r == 0, "%d: %s", r, e->msg);
}

#define K(call) ck_assert_msg((call) == 0, "%s: %s", #call, kern_last_error(k))

static void open_golden(struct golden *g, const char *backend, const char *model) {
    const char *root = getenv("GLMD_MODELS");
    char dir[512], path[512];
    struct xerr e = {0};
    const struct kern_config c = {.n_ranks = 1,
                                  .threads = 2,
                                  .cache = KERN_CACHE_F32,
                                  .n_pages = 4,
                                  .n_slots = 2,
                                  .max_seqs = 2,
                                  .max_rows = {4, 256},
                                  .max_samples = 512,
                                  .max_context = 512,
                                  .max_plan_bytes = 1 << 20};
    memset(g, 0, sizeof(*g));
    snprintf(dir, sizeof(dir), "%s/%s", root ? root : "build/models", model);
    snprintf(path, sizeof(path), "tests/golden/golden-%s.safetensors", model);
    must(st_open(&g->file, path, NULL, &e), &e);
    g->inst = ckptinst_open(dir, backend, &c);
    g->plan = km_plan_new(g->inst);
}

static void close_golden(struct golden *g) {
    km_plan_free(g->plan);
    st_close(g->file);
    km_close(g->inst);
}

/* Whole tensor, NULL when the file has none of that name. */
static void *tensor(struct golden *g, const char *name, const char *key, uint64_t *ret_n) {
    char full[128];
    struct xerr e = {0};
    snprintf(full, sizeof(full), "%s.%s", name, key);
    const struct st_tensor *t = st_find(g->file, full);
    if (!t)
        return NULL;
    void *p = malloc(t->bytes);
    ck_assert_ptr_nonnull(p);
    must(st_read(g->file, t, 0, p, t->bytes, &e), &e);
    *ret_n = t->bytes / 4;
    return p;
}

static void *need(struct golden *g, const char *name, const char *key, uint64_t n) {
    uint64_t have = 0;
    void *p = tensor(g, name, key, &have);
    ck_assert_msg(p && have == n, "%s.%s: %llu numbers, %llu expected", name, key, (unsigned long long)have,
                  (unsigned long long)n);
    return p;
}

static void close_to(const char *what, const float *got, const float *want, uint64_t n) {
    double d = 0, w = 0;
    for (uint64_t i = 0; i < n; i++) {
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w += (double)want[i] * want[i];
    }
    double err = sqrt(d / w);
    ck_assert_msg(err < TOLERANCE, "%s: relative error %g", what, err);
}

static void check_hidden(struct golden *g, const char *name, uint32_t lane, uint32_t layer, uint32_t pos0,
                         uint32_t n) {
    const struct kern_model_desc *m = &g->inst->cfg.model;
    uint64_t have = 0, width = (uint64_t)m->hc_mult * m->hidden;
    char key[32];
    bool last = layer == m->n_layers;
    snprintf(key, sizeof(key), "hidden.%u", layer);
    float *want = tensor(g, name, key, &have);
    if (!want)
        return;
    width = last ? m->hidden : width;
    ck_assert_uint_ge(have, (pos0 + n) * width);
    float *got = malloc(n * width * sizeof(float));
    ck_assert_ptr_nonnull(got);
    km_peek(g->inst, lane, last ? KERN_PEEK_HIDDEN : KERN_PEEK_STREAMS, 0, n, got);
    close_to(key, got, want + pos0 * width, n * width);
    free(got);
    free(want);
}

struct expected {
    int32_t *ids, *top1, *mtp_top1;
    float *logits, *lse, *next_logit, *mtp_logits;
    uint64_t n;
};

static void run_rows(struct golden *g, const char *name, const struct expected *x, uint32_t lane,
                     uint32_t pos0, uint32_t n) {
    const struct kern_model_desc *m = &g->inst->cfg.model;
    uint32_t tokens[512], next[512];
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t)x->ids[pos0 + i];
        next[i] = pos0 + i + 1 < x->n ? (uint32_t)x->ids[pos0 + i + 1] : KERN_NONE;
    }
    km_plan_clear(g->plan, lane);
    km_plan_seq(g->plan, 0, pos0, 0,
                KERN_SEQ_COMMIT | KERN_SEQ_DRAFT | (lane ? KERN_SEQ_PREFILL : 0) |
                    (pos0 ? 0 : KERN_SEQ_RESET),
                tokens, n, next);
    for (uint32_t i = 0; i < n; i++)
        km_plan_sample(g->plan, i, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK)->target =
            next[i] == KERN_NONE ? KERN_NONE : next[i];
    for (uint32_t i = 0; x->mtp_top1 && i < n && next[i] != KERN_NONE; i++)
        km_plan_sample(g->plan, i, KERN_SAMPLE_SCORE, KERN_SOURCE_DRAFT);
    struct kern_plan *p = km_plan_build(g->plan);
    struct kern *k = g->inst->k;
    K(kern_plan_load(k, p, p->bytes));
    km_launch_wait(g->inst, lane, g->inst->embed[lane]);
    for (uint32_t l = 0; l < m->n_layers; l++)
        for (int s = 0; s < 2; s++) {
            km_launch_wait(g->inst, lane, g->inst->half[lane][l][s]);
            if (s && l + 1 == m->n_layers)
                km_launch_wait(g->inst, lane, g->inst->final[lane]);
            if (s)
                check_hidden(g, name, lane, l + 1, pos0, n);
        }
    km_launch_wait(g->inst, lane, g->inst->head[lane]);
    km_launch_wait(g->inst, lane, g->inst->draft[lane]);
    const struct kern_result *r = km_results(g->inst, lane);
    for (uint32_t i = 0; i < p->n_samples; i++) {
        bool draft = i >= n;
        uint32_t pos = pos0 + (draft ? i - n : i);
        ck_assert_msg(r[i].top1 == (uint32_t)(draft ? x->mtp_top1[pos] : x->top1[pos]),
                      "%s: %s top-1 at %u is %u", name, draft ? "draft" : "trunk", pos, r[i].top1);
        if (!draft) {
            ck_assert_msg(fabs((double)r[i].logsumexp - x->lse[pos]) < 1e-4, "%s: logsumexp at %u", name,
                          pos);
            if (pos + 1 < x->n)
                ck_assert_msg(fabs((double)r[i].target - x->next_logit[pos]) < 1e-4, "%s: logit at %u", name,
                              pos);
        }
        if (pos != x->n - 1 - draft)
            continue;
        float *got = malloc(m->vocab_rows * sizeof(float));
        ck_assert_ptr_nonnull(got);
        km_peek(g->inst, lane, KERN_PEEK_LOGITS, i, 1, got);
        close_to(draft ? "mtp_logits_last" : "logits_last", got, draft ? x->mtp_logits : x->logits,
                 m->vocab_rows);
        free(got);
    }
}

static void run_case(struct golden *g, const char *name, bool decode) {
    const struct kern_model_desc *m = &g->inst->cfg.model;
    struct expected x;
    x.ids = tensor(g, name, "ids", &x.n);
    ck_assert_msg(x.ids && x.n > 1 && x.n <= 512, "no case %s", name);
    x.top1 = need(g, name, "top1", x.n);
    x.lse = need(g, name, "logsumexp", x.n);
    x.next_logit = need(g, name, "next_logit", x.n - 1);
    x.logits = need(g, name, "logits_last", m->vocab_rows);
    uint64_t n = 0;
    x.mtp_top1 = tensor(g, name, "mtp_top1", &n); /* some short cases have no draft values */
    ck_assert(!x.mtp_top1 || n == x.n - 1);
    x.mtp_logits = x.mtp_top1 ? need(g, name, "mtp_logits_last", m->vocab_rows) : NULL;
    uint32_t step = decode ? 1 : 64;
    for (uint32_t at = 0; at < x.n; at += step)
        run_rows(g, name, &x, decode ? KERN_LANE_DECODE : KERN_LANE_PREFILL, at,
                 x.n - at < step ? (uint32_t)(x.n - at) : step);
    free(x.ids);
    free(x.top1);
    free(x.lse);
    free(x.next_logit);
    free(x.logits);
    free(x.mtp_top1);
    free(x.mtp_logits);
}

/* The first N_DECODE cases also token by token. The remaining cases of the files are for glm-eval. */
static const char *const cases[][2] = {{"nano", "three"}, {"nano", "count"}, {"twin-a", "r35"},
                                       {"twin-a", "r20"}, {"twin-a", "r19"}, {"nano", "len133"},
                                       {"twin-a", "r129"}};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]), N_DECODE = 5 };

START_TEST(prefill_matches) {
    struct golden g;
    open_golden(&g, "ref", cases[_i][0]);
    run_case(&g, cases[_i][1], false);
    close_golden(&g);
}
END_TEST

START_TEST(decode_matches) {
    struct golden g;
    open_golden(&g, "ref", cases[_i][0]);
    run_case(&g, cases[_i][1], true);
    close_golden(&g);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_golden");
    TCase *t = tcase_create("ref");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, prefill_matches, 0, N_CASES);
    tcase_add_loop_test(t, decode_matches, 0, N_DECODE);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
