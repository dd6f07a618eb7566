/* SPDX-License-Identifier: MIT */
#include "goldmake.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "score.h"

void goldmake_floats(struct ckpt_set *s, const char *name, const char *what, const float *v, size_t n) {
    char full[160];

    snprintf(full, sizeof full, "%s.%s", name, what);
    ckpt_set_put(s, full, "F32", v, 1, (uint64_t)n);
}

void goldmake_ids(struct ckpt_set *s, const char *name, const char *what, const int32_t *v, size_t n) {
    char full[160];

    snprintf(full, sizeof full, "%s.%s", name, what);
    ckpt_set_put(s, full, "I32", v, 1, (uint64_t)n);
}

static struct engine *open_model(const char *dir, const char *backend, uint32_t context) {
    struct engine_options o = {.model = dir,
                               .backend = backend,
                               .max_seqs = 1,
                               .max_streams = 1,
                               .score = true,
                               .draft = true,
                               .context_tokens = context,
                               .allow_four_bit = true,
                               .allow_low = "embed,kv_b,indexer,kda_gates"};
    struct xerr err = {0};
    struct engine *e = NULL;

    ck_assert_msg(engine_open(&o, &e, &err) == 0, "%s", err.msg);
    ck_assert_msg(engine_load(e, NULL, NULL, &err) == 0, "%s", err.msg);
    return e;
}

static void put_rows(struct ckpt_set *s, const char *name, const struct score_row *row,
                     const struct score_row *draft, uint32_t n) {
    float *sum = calloc(n, sizeof *sum), *next = calloc(n, sizeof *next);
    int32_t *top = calloc(n, sizeof *top), *mtp = calloc(n, sizeof *mtp);

    for (uint32_t i = 0; i < n; i++) {
        sum[i] = row[i].logsumexp;
        next[i] = row[i].target;
        top[i] = (int32_t)row[i].top1;
        mtp[i] = (int32_t)draft[i].top1;
    }
    goldmake_floats(s, name, "logsumexp", sum, n);
    goldmake_floats(s, name, "next_logit", next, n - 1);
    goldmake_ids(s, name, "top1", top, n);
    goldmake_ids(s, name, "mtp_top1", mtp, n - 1);
    free(sum);
    free(next);
    free(top);
    free(mtp);
}

void goldmake_engine(struct ckpt_set *s, const char *name, const char *dir, const char *backend,
                     const uint32_t *ids, uint32_t n, uint32_t n_greedy) {
    struct engine *e = open_model(dir, backend, n + n_greedy + 1);
    struct score_row *row = calloc(n, sizeof *row), *draft = calloc(n, sizeof *draft);
    uint32_t *greedy = calloc(n_greedy + 1, sizeof *greedy), made = 0;
    struct score_query q = {.ids = ids, .n_ids = n};
    struct score_out out = {.rows = row, .draft = draft};
    struct score_shape shape;
    struct xerr err = {0};

    score_get_shape(e, &shape);
    out.logits_last = calloc(shape.vocab_rows, sizeof(float));
    out.draft_logits_last = calloc(shape.vocab_rows, sizeof(float));
    ck_assert_msg(score_prompt(e, &q, &out, &err) == 0, "%s", err.msg);
    goldmake_ids(s, name, "ids", (const int32_t *)ids, n);
    goldmake_floats(s, name, "logits_last", out.logits_last, shape.vocab_rows);
    goldmake_floats(s, name, "mtp_logits_last", out.draft_logits_last, shape.vocab_rows);
    put_rows(s, name, row, draft, n);
    if (n_greedy) {
        ck_assert_msg(score_greedy(e, ids, n, greedy, n_greedy, &made, &err) == 0, "%s", err.msg);
        goldmake_ids(s, name, "greedy", (const int32_t *)greedy, made);
    }
    engine_close(e);
    free(out.logits_last);
    free(out.draft_logits_last);
    free(row);
    free(draft);
    free(greedy);
}

char goldmake_said[4096];

int goldmake_eval(const struct eval_options *o, const char *golden) {
    FILE *t = tmpfile();
    int out = dup(1), err = dup(2), r;

    ck_assert_ptr_nonnull(t);
    fflush(stdout);
    fflush(stderr);
    dup2(fileno(t), 1);
    dup2(fileno(t), 2);
    r = eval_golden(o, golden);
    fflush(stdout);
    fflush(stderr);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    rewind(t);
    goldmake_said[fread(goldmake_said, 1, sizeof goldmake_said - 1, t)] = 0;
    fclose(t);
    if (r)
        printf("%s", goldmake_said);
    return r;
}

int goldmake_judge(const char *dir, const char *backend, const char *golden, double tolerance) {
    const struct eval_options o = {.model = dir, .backend = backend, .tolerance = tolerance};

    return goldmake_eval(&o, golden);
}
