/* SPDX-License-Identifier: MIT */
/* evalgold.c: runs one case through the engine's evaluation and compares. */
#include "evalgold.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Activations are compared as they are shown, chunk by chunk: sums of squares per hidden state. */
struct watch {
    const struct gold *g;
    struct score_shape shape;
    double diff[KERN_MAX_LAYERS + 1], norm[KERN_MAX_LAYERS + 1];
};

static void on_show(void *ctx, uint32_t layer, uint32_t row0, uint32_t n, const float *v) {
    struct watch *w = ctx;
    uint64_t width = layer < w->shape.n_layers ? (uint64_t)w->shape.hc_mult * w->shape.hidden : w->shape.hidden;
    const float *want;

    if (layer >= w->g->n_hidden)
        return;
    want = w->g->hidden[layer] + row0 * width;
    for (uint64_t i = 0; i < n * width; i++) {
        double d = (double)v[i] - (double)want[i];

        w->diff[layer] += d * d;
        w->norm[layer] += (double)want[i] * (double)want[i];
    }
}

static int check_shape(const struct gold *g, const struct score_shape *s, struct xerr *err) {
    if (g->vocab != s->vocab_rows)
        return xerr_set(err, -EINVAL, "case %s: found logits of %u numbers, expected %u, the model's vocabulary",
                        g->name, g->vocab, s->vocab_rows);
    if (g->n_hidden && g->n_hidden != s->n_layers + 1)
        return xerr_set(err, -EINVAL, "case %s: found %u hidden states, expected %u, one per layer and the last",
                        g->name, g->n_hidden, s->n_layers + 1);
    for (uint32_t i = 0; i < g->n_hidden; i++) {
        uint64_t width = i < s->n_layers ? (uint64_t)s->hc_mult * s->hidden : s->hidden;

        if (g->hidden_floats[i] != g->n_ids * width)
            return xerr_set(err, -EINVAL, "case %s: hidden.%u: found %llu numbers, expected %llu", g->name, i,
                            (unsigned long long)g->hidden_floats[i], (unsigned long long)(g->n_ids * width));
    }
    return 0;
}

/* Room for what the engine reports. */
struct work {
    struct score_row *rows, *draft;
    float *last, *draft_last, *a;
    uint32_t *greedy;
};

static int work_new(struct work *w, const struct gold *g, struct xerr *err) {
    w->rows = calloc(g->n_ids, sizeof *w->rows);
    w->draft = calloc(g->n_ids, sizeof *w->draft);
    w->last = calloc(g->vocab + 1, sizeof *w->last);
    w->draft_last = calloc(g->vocab + 1, sizeof *w->draft_last);
    w->a = calloc(g->n_ids, sizeof *w->a);
    w->greedy = calloc(g->n_greedy + 1, sizeof *w->greedy);
    if (w->rows && w->draft && w->last && w->draft_last && w->a && w->greedy)
        return 0;
    return xerr_set(err, -ENOMEM, "case %s: no memory", g->name);
}

static void work_done(struct work *w) {
    free(w->rows);
    free(w->draft);
    free(w->last);
    free(w->draft_last);
    free(w->a);
    free(w->greedy);
}

static void compare(const struct gold *g, struct work *w, const struct watch *seen, struct gold_result *r) {
    uint32_t n = g->n_ids;

    r->logits = eval_rel_error(w->last, g->logits_last, g->vocab);
    r->n_top1 = n;
    for (uint32_t i = 0; i < n; i++) {
        r->top1_same += w->rows[i].top1 == g->top1[i];
        w->a[i] = w->rows[i].logsumexp;
    }
    r->logsumexp = eval_max_error(w->a, g->logsumexp, n);
    for (uint32_t i = 0; i + 1 < n; i++)
        w->a[i] = w->rows[i].target;
    if (n > 1)
        r->next_logit = eval_max_error(w->a, g->next_logit, n - 1);
    if (g->mtp_top1) {
        r->n_mtp = n - 1;
        for (uint32_t i = 0; i + 1 < n; i++)
            r->mtp_same += w->draft[i].top1 == g->mtp_top1[i];
    }
    if (g->mtp_logits_last)
        r->mtp_logits = eval_rel_error(w->draft_last, g->mtp_logits_last, g->vocab);
    r->n_hidden = g->n_hidden;
    for (uint32_t i = 0; i < g->n_hidden; i++)
        r->hidden[i] = seen->norm[i] > 0 || isnan(seen->norm[i]) ? sqrt(seen->diff[i] / seen->norm[i])
                                                                 : sqrt(seen->diff[i]);
}

static bool judge(const struct gold *g, const struct gold_result *r, double tol) {
    bool ok = eval_within(r->logits, tol) && eval_within(r->logsumexp, tol) && r->top1_same == r->n_top1 &&
              r->mtp_same == r->n_mtp && r->greedy_same == r->n_greedy;

    if (g->n_ids > 1)
        ok = ok && eval_within(r->next_logit, tol);
    if (g->mtp_logits_last)
        ok = ok && eval_within(r->mtp_logits, tol);
    for (uint32_t i = 0; i < r->n_hidden; i++)
        ok = ok && eval_within(r->hidden[i], tol);
    return ok;
}

int gold_run(struct engine *e, const struct gold *g, const struct eval_options *o, struct gold_result *ret,
             struct xerr *err) {
    struct gold_result res = { .logits = -1, .logsumexp = -1, .next_logit = -1, .mtp_logits = -1 };
    struct watch seen = { .g = g };
    struct work w = { .rows = NULL };
    struct score_query q = { .ids = g->ids, .n_ids = g->n_ids, .show = g->n_hidden ? on_show : NULL, .ctx = &seen };
    struct score_out out;
    uint32_t n = 0;
    int r;

    score_get_shape(e, &seen.shape);
    if ((r = check_shape(g, &seen.shape, err)) < 0)
        return r;
    r = work_new(&w, g, err);
    out = (struct score_out){ .rows = w.rows, .logits_last = w.last,
                              .draft = g->mtp_top1 && g->n_ids > 1 ? w.draft : NULL,
                              .draft_logits_last = g->mtp_logits_last && g->n_ids > 1 ? w.draft_last : NULL };
    if (r >= 0)
        r = score_prompt(e, &q, &out, err);
    if (r >= 0) {
        compare(g, &w, &seen, &res);
        if (g->n_greedy)
            r = score_greedy(e, g->ids, g->n_ids, w.greedy, g->n_greedy, &n, err);
        if (r == -EDOM)
            r = 0; /* numbers that are none are a result, and a wrong one: the continuation ends there */
        res.n_greedy = g->n_greedy;
        while (res.greedy_same < n && w.greedy[res.greedy_same] == g->greedy[res.greedy_same])
            res.greedy_same++;
        res.within = judge(g, &res, o->tolerance);
    }
    work_done(&w);
    if (r >= 0)
        *ret = res;
    return r < 0 ? r : 0;
}
