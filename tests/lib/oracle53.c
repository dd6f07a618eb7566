/* SPDX-License-Identifier: MIT */
#include "oracle53.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *numbers(size_t n) {
    double *v = calloc(n ? n : 1, sizeof *v);

    if (!v) {
        fprintf(stderr, "oracle53: no memory for %zu numbers\n", n);
        abort();
    }
    return v;
}

const struct o53_tensor *oracle53_find(const struct o53_model *m, const char *name) {
    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0)
            return &m->t[i];
    fprintf(stderr, "oracle53: the model has no tensor %s\n", name);
    abort();
}

/* Tensor "model.layers.L.REST". */
__attribute__((format(printf, 3, 4))) static const struct o53_tensor *
of_layer(const struct o53_model *m, uint32_t l, const char *rest, ...) {
    char name[160];
    va_list ap;
    int n = snprintf(name, sizeof name, "model.layers.%u.", l);

    va_start(ap, rest);
    vsnprintf(name + n, sizeof name - (size_t)n, rest, ap);
    va_end(ap);
    return oracle53_find(m, name);
}

/* Four sums, so that one addition need not wait for the other. */
static double dot(const double *a, const double *b, uint32_t n) {
    double s[4] = {0};
    uint32_t i = 0;

    for (; i + 4 <= n; i += 4)
        for (uint32_t k = 0; k < 4; k++)
            s[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        s[0] += a[i] * b[i];
    return s[0] + s[1] + s[2] + s[3];
}

/* One row of numbers through a matrix [out, in]. */
static void apply(const struct o53_tensor *w, const double *x, double *y) {
    for (uint32_t r = 0; r < w->rows; r++)
        y[r] = dot(w->v + (size_t)r * w->cols, x, w->cols);
}

static double sigmoid(double z) {
    return 1 / (1 + exp(-z));
}

void oracle53_rmsnorm(const double *x, const double *w, uint32_t n, double eps, double *ret) {
    double r = 1 / sqrt(dot(x, x, n) / n + eps);

    for (uint32_t i = 0; i < n; i++)
        ret[i] = w[i] * x[i] * r;
}

static void layernorm(const double *x, const double *w, const double *b, uint32_t n, double eps,
                      double *ret) {
    double mean = 0, var = 0;

    for (uint32_t i = 0; i < n; i++)
        mean += x[i] / n;
    for (uint32_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / n;
    for (uint32_t i = 0; i < n; i++)
        ret[i] = (x[i] - mean) / sqrt(var + eps) * w[i] + b[i];
}

/* Pair i is (x[2i], x[2i+1]); it turns by pos * theta^(-2i/dim). */
void oracle53_rope(double *x, uint32_t dim, uint32_t pos, double theta) {
    for (uint32_t i = 0; i < dim / 2; i++) {
        double a = pos * pow(theta, -2.0 * i / dim), c = cos(a), s = sin(a);
        double *even = &x[FAULT(o53_rope_halves) ? i : 2 * i];
        double *odd = &x[FAULT(o53_rope_halves) ? i + dim / 2 : 2 * i + 1], v = *even;

        *even = v * c - *odd * s;
        *odd = *odd * c + v * s;
    }
}

int oracle53_full(const struct o53_dims *d, uint32_t i) {
    uint32_t k = i + 1 > d->index_offset ? i + 1 - d->index_offset : 0;

    return k % d->index_freq == 0;
}

/* Larger first, then the smaller number. */
static int before(const double *score, uint32_t a, uint32_t b) {
    return score[a] > score[b] || (score[a] == score[b] && (FAULT(o53_ties_last) ? a > b : a < b));
}

double oracle53_select(const double *score, uint32_t n, uint32_t topk, uint8_t *ret) {
    double last = INFINITY, next = -INFINITY, largest = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t ahead = 0;

        for (uint32_t j = 0; j < n; j++)
            ahead += j != i && before(score, j, i);
        ret[i] = ahead < topk;
        if (ret[i] && score[i] < last)
            last = score[i];
        if (!ret[i] && score[i] > next)
            next = score[i];
        largest = fmax(largest, fabs(score[i]));
    }
    return n <= topk || last == next ? 1 : (last - next) / fmax(largest, 1e-300);
}

double oracle53_route(const struct o53_dims *d, const double *logit, const double *bias, uint32_t *ret_id,
                      double *ret_weight) {
    double s[512], biased[512] = {0}, sum = 0, gap;
    uint8_t chosen[512];
    uint32_t k = 0;

    for (uint32_t e = 0; e < d->experts; e++) {
        s[e] = sigmoid(logit[e]);
        biased[e] = s[e] + bias[e];
    }
    gap = oracle53_select(biased, d->experts, d->active, chosen);
    for (uint32_t e = 0; e < d->experts; e++)
        if (chosen[e]) {
            ret_id[k] = e;
            ret_weight[k++] = FAULT(o53_bias_weighs) ? biased[e] : s[e];
            sum += s[e];
        }
    for (uint32_t i = 0; i < k; i++)
        ret_weight[i] = ret_weight[i] / (sum + 1e-20) * d->routed_scale;
    return gap;
}

/* ---- attention ---- */

/* What a query needs of every position of its layer. */
struct seen {
    double *expanded, *key; /* each head's key and value [heads][nope + v]; the turned shared key [rope] */
    double *cq, *index_key; /* normalised query latent [q_lora]; [index_dim] */
};

static void make_seen(const struct o53_model *m, uint32_t l, const double *u, uint32_t n, struct seen *s) {
    const struct o53_dims *d = &m->d;
    const struct o53_tensor *qa = of_layer(m, l, "self_attn.q_a_proj.weight");
    const struct o53_tensor *kva = of_layer(m, l, "self_attn.kv_a_proj_with_mqa.weight");
    const double *qn = of_layer(m, l, "self_attn.q_a_layernorm.weight")->v;
    const double *kn = of_layer(m, l, "self_attn.kv_a_layernorm.weight")->v;
    const struct o53_tensor *kvb = of_layer(m, l, "self_attn.kv_b_proj.weight");
    double *a = numbers(d->q_lora), *c = numbers(d->kv_lora + d->rope), *latent = numbers(d->kv_lora);

    s->expanded = numbers((size_t)n * kvb->rows);
    s->key = numbers((size_t)n * d->rope);
    s->cq = numbers((size_t)n * d->q_lora);
    for (uint32_t t = 0; t < n; t++) {
        double *key = s->key + (size_t)t * d->rope;

        apply(qa, u + (size_t)t * d->hidden, a);
        oracle53_rmsnorm(a, qn, d->q_lora, d->eps, s->cq + (size_t)t * d->q_lora);
        apply(kva, u + (size_t)t * d->hidden, c);
        oracle53_rmsnorm(c, kn, d->kv_lora - FAULT(o53_norm_short), d->eps, latent);
        apply(kvb, latent, s->expanded + (size_t)t * kvb->rows);
        memcpy(key, c + d->kv_lora, d->rope * sizeof *key);
        oracle53_rope(key, d->rope, t, d->theta);
    }
    free(a);
    free(c);
    free(latent);
}

/* The lists of a layer with an indexer: lists[t * n + j] = 1 when query t looks at position j. */
static void make_lists(const struct o53_model *m, uint32_t l, const double *u, uint32_t n, struct seen *s,
                       uint8_t *lists, struct o53_out *out) {
    const struct o53_dims *d = &m->d;
    const struct o53_tensor *wq = of_layer(m, l, "self_attn.indexer.wq_b.weight");
    const struct o53_tensor *wk = of_layer(m, l, "self_attn.indexer.wk.weight");
    const struct o53_tensor *ww = of_layer(m, l, "self_attn.indexer.weights_proj.weight");
    const double *nw = of_layer(m, l, "self_attn.indexer.k_norm.weight")->v;
    const double *nb = of_layer(m, l, "self_attn.indexer.k_norm.bias")->v;
    double *raw = numbers(d->index_dim), *q = numbers((size_t)d->index_heads * d->index_dim);
    double *w = numbers(d->index_heads), *score = numbers(n);

    s->index_key = numbers((size_t)n * d->index_dim);
    for (uint32_t t = 0; t < n; t++) {
        double *key = s->index_key + (size_t)t * d->index_dim;

        apply(wk, u + (size_t)t * d->hidden, raw);
        layernorm(raw, nw, nb, d->index_dim, 1e-6, key);
        oracle53_rope(key + (FAULT(o53_index_turns_behind) ? d->index_dim - d->rope : 0), d->rope, t,
                      d->theta);
    }
    for (uint32_t t = 0; t < n; t++) {
        double gap;

        apply(wq, s->cq + (size_t)t * d->q_lora, q);
        for (uint32_t h = 0; h < d->index_heads; h++)
            oracle53_rope(q + (size_t)h * d->index_dim, d->rope, t, d->theta);
        apply(ww, u + (size_t)t * d->hidden, w);
        for (uint32_t j = 0; j <= t; j++) {
            score[j] = 0;
            for (uint32_t h = 0; h < d->index_heads; h++) {
                double x =
                    dot(q + (size_t)h * d->index_dim, s->index_key + (size_t)j * d->index_dim, d->index_dim);

                if (x > 0)
                    score[j] += w[h] / sqrt(d->index_heads) * x / sqrt(d->index_dim);
            }
        }
        gap = oracle53_select(score, t + 1, d->index_topk, lists + (size_t)t * n);
        if (t + 1 > d->index_topk) {
            out->index_gap = fmin(out->index_gap, gap);
            out->sparse_rows++;
        }
    }
    free(raw);
    free(q);
    free(w);
    free(score);
}

/* One head of one query. */
static void one_head(const struct o53_dims *d, uint32_t h, const struct seen *s, const double *q, uint32_t t,
                     const uint8_t *list, double *p, double *o) {
    const size_t one = d->nope + d->v, all = one * d->heads;
    double top = -INFINITY, sum = 0;

    for (uint32_t j = 0; j <= t; j++) {
        if (!list[j])
            continue;
        p[j] = dot(q, s->expanded + all * j + one * h, d->nope);
        p[j] += dot(q + d->nope, s->key + (size_t)j * d->rope, d->rope);
        p[j] /= sqrt(d->nope + d->rope);
        top = fmax(top, p[j]);
    }
    memset(o, 0, d->v * sizeof *o);
    for (uint32_t j = 0; j <= t; j++)
        if (list[j])
            sum += p[j] = exp(p[j] - top);
    for (uint32_t j = 0; j <= t; j++)
        if (list[j])
            for (uint32_t i = 0; i < d->v; i++)
                o[i] += p[j] / sum * s->expanded[all * j + one * h + d->nope + i];
}

/* x += attention(rmsnorm(x)); `lists` is written by a full layer and read by all. */
static void attention(const struct o53_model *m, uint32_t l, int full, double *x, uint32_t n, uint8_t *lists,
                      struct o53_out *out) {
    const struct o53_dims *d = &m->d;
    const struct o53_tensor *qb = of_layer(m, l, "self_attn.q_b_proj.weight");
    const struct o53_tensor *wo = of_layer(m, l, "self_attn.o_proj.weight");
    const double *norm = of_layer(m, l, "input_layernorm.weight")->v;
    const uint32_t width = d->nope + d->rope;
    struct seen s = {.index_key = NULL};
    double *u = numbers((size_t)n * d->hidden), *q = numbers((size_t)d->heads * width), *p = numbers(n);
    double *o = numbers((size_t)d->heads * d->v), *y = numbers(d->hidden);

    for (uint32_t t = 0; t < n; t++)
        oracle53_rmsnorm(x + (size_t)t * d->hidden, norm, d->hidden, d->eps, u + (size_t)t * d->hidden);
    make_seen(m, l, u, n, &s);
    if (full)
        make_lists(m, l, u, n, &s, lists, out);
    for (uint32_t t = 0; t < n; t++) {
        apply(qb, s.cq + (size_t)t * d->q_lora, q);
        for (uint32_t h = 0; h < d->heads; h++) {
            oracle53_rope(q + (size_t)h * width + d->nope, d->rope, t, d->theta);
            one_head(d, h, &s, q + (size_t)h * width, t, lists + (size_t)t * n, p, o + (size_t)h * d->v);
        }
        apply(wo, o, y);
        for (uint32_t i = 0; i < d->hidden; i++)
            x[(size_t)t * d->hidden + i] += y[i];
    }
    free(s.expanded);
    free(s.key);
    free(s.cq);
    free(s.index_key);
    free(u);
    free(q);
    free(p);
    free(o);
    free(y);
}

/* ---- feed forward ---- */

/* y += weight * Wdown( silu(Wgate x) * Wup x ): no clamp in this model. */
static void ffn(const struct o53_model *m, uint32_t l, const char *which, double weight, const double *x,
                double *y) {
    const struct o53_tensor *g = of_layer(m, l, "mlp.%sgate_proj.weight", which);
    const struct o53_tensor *u = of_layer(m, l, "mlp.%sup_proj.weight", which);
    const struct o53_tensor *w = of_layer(m, l, "mlp.%sdown_proj.weight", which);
    double *a = numbers(g->rows), *b = numbers(g->rows), *o = numbers(w->rows);

    apply(g, x, a);
    apply(u, x, b);
    for (uint32_t i = 0; i < g->rows; i++)
        a[i] = a[i] * sigmoid(a[i]) * b[i];
    apply(w, a, o);
    for (uint32_t i = 0; i < w->rows; i++)
        y[i] += weight * o[i];
    free(a);
    free(b);
    free(o);
}

static void moe(const struct o53_model *m, uint32_t l, const double *x, double *y, struct o53_out *out) {
    const struct o53_dims *d = &m->d;
    double *logit = numbers(d->experts), weight[64];
    uint32_t id[64];
    char which[32];

    apply(of_layer(m, l, "mlp.gate.weight"), x, logit);
    out->router_gap =
        fmin(out->router_gap,
             oracle53_route(d, logit, of_layer(m, l, "mlp.gate.e_score_correction_bias")->v, id, weight));
    for (uint32_t i = 0; i < d->active; i++) {
        snprintf(which, sizeof which, "experts.%u.", id[i]);
        ffn(m, l, which, weight[i], x, y);
    }
    ffn(m, l, "shared_experts.", 1, x, y);
    free(logit);
}

/* x += ffn(rmsnorm(x)) */
static void feed_forward(const struct o53_model *m, uint32_t l, double *x, uint32_t n, struct o53_out *out) {
    const struct o53_dims *d = &m->d;
    const double *norm = of_layer(m, l, "post_attention_layernorm.weight")->v;
    double *u = numbers(d->hidden), *y = numbers(d->hidden);

    for (uint32_t t = 0; t < n; t++) {
        oracle53_rmsnorm(x + (size_t)t * d->hidden, norm, d->hidden, d->eps, u);
        memset(y, 0, d->hidden * sizeof *y);
        if (l < d->dense_layers)
            ffn(m, l, "", 1, u, y);
        else
            moe(m, l, u, y, out);
        for (uint32_t i = 0; i < d->hidden; i++)
            x[(size_t)t * d->hidden + i] += y[i];
    }
    free(u);
    free(y);
}

/* ---- the whole ---- */

/* The layer behind the trunk: entry i is made of the head's vector of position i and of id i+1. */
static void draft(const struct o53_model *m, const int32_t *ids, uint32_t n, const double *last,
                  struct o53_out *out) {
    const struct o53_dims *d = &m->d;
    const struct o53_tensor *emb = oracle53_find(m, "model.embed_tokens.weight"),
                            *head = oracle53_find(m, "lm_head.weight");
    const struct o53_tensor *eh = of_layer(m, d->layers, "eh_proj.weight");
    const double *en = of_layer(m, d->layers, "enorm.weight")->v,
                 *hn = of_layer(m, d->layers, "hnorm.weight")->v;
    const double *sn = of_layer(m, d->layers, "shared_head.norm.weight")->v;
    double *x = numbers((size_t)n * d->hidden), *pair = numbers(2 * (size_t)d->hidden),
           *h = numbers(d->hidden);
    uint8_t *lists = calloc((size_t)n * n + 1, 1);

    if (!lists)
        abort();
    for (uint32_t i = 0; i < n; i++) {
        oracle53_rmsnorm(emb->v + (size_t)ids[i + 1] * d->hidden, en, d->hidden, d->eps, pair);
        oracle53_rmsnorm(last + (size_t)i * d->hidden, hn, d->hidden, d->eps, pair + d->hidden);
        apply(eh, pair, x + (size_t)i * d->hidden);
    }
    attention(m, d->layers, !FAULT(o53_draft_no_list), x, n, lists, out);
    feed_forward(m, d->layers, x, n, out);
    for (uint32_t i = 0; i < n; i++) {
        oracle53_rmsnorm(x + (size_t)i * d->hidden, sn, d->hidden, d->eps, h);
        apply(head, h, out->draft + (size_t)i * d->vocab);
    }
    free(x);
    free(pair);
    free(h);
    free(lists);
}

void oracle53_run(const struct o53_model *m, const int32_t *ids, uint32_t n, struct o53_out *ret) {
    const struct o53_dims *d = &m->d;
    const struct o53_tensor *emb = oracle53_find(m, "model.embed_tokens.weight"),
                            *head = oracle53_find(m, "lm_head.weight");
    const size_t wide = (size_t)n * d->hidden;
    struct o53_out o = {.n = n, .index_gap = 1, .router_gap = 1};
    uint8_t *lists = calloc((size_t)n * n, 1);
    double *x = numbers(wide), *last;

    if (!lists)
        abort();
    o.logits = numbers((size_t)n * d->vocab);
    o.draft = numbers((size_t)n * d->vocab);
    o.hidden = numbers(wide * (d->layers + 1));
    for (uint32_t t = 0; t < n; t++)
        memcpy(x + (size_t)t * d->hidden, emb->v + (size_t)ids[t] * d->hidden, d->hidden * sizeof *x);
    for (uint32_t l = 0; l < d->layers; l++) {
        memcpy(o.hidden + wide * l, x, wide * sizeof *x);
        attention(m, l, oracle53_full(d, l), x, n, lists, &o);
        feed_forward(m, l, x, n, &o);
    }
    last = o.hidden + wide * d->layers;
    for (uint32_t t = 0; t < n; t++) {
        oracle53_rmsnorm(x + (size_t)t * d->hidden, oracle53_find(m, "model.norm.weight")->v, d->hidden,
                         d->eps, last + (size_t)t * d->hidden);
        apply(head, last + (size_t)t * d->hidden, o.logits + (size_t)t * d->vocab);
    }
    if (n > 1)
        draft(m, ids, n - 1, last, &o);
    free(x);
    free(lists);
    *ret = o;
}

void oracle53_done(struct o53_out *o) {
    free(o->logits);
    free(o->draft);
    free(o->hidden);
    *o = (struct o53_out){.n = 0};
}
