/* SPDX-License-Identifier: MIT */
/* The forward pass from the formulas; see kernnaive.h. */
#include "kernnaive.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *zeros(uint64_t n) {
    double *p = calloc(n ? n : 1, sizeof(double));
    ck_assert_ptr_nonnull(p);
    return p;
}

/* y[t] = W x[t], W is [out][in] */
static double *linear(const float *w, const double *x, uint32_t n, uint64_t in, uint64_t out) {
    ck_assert_ptr_nonnull(w);
    double *y = zeros(n * out);
    for (uint32_t t = 0; t < n; t++)
        for (uint64_t o = 0; o < out; o++)
            for (uint64_t i = 0; i < in; i++)
                y[t * out + o] += (double)w[o * in + i] * x[t * in + i];
    return y;
}

static double sigma(double z) {
    return 1 / (1 + exp(-z));
}

static double *rms(const double *x, const float *w, uint32_t n, uint64_t e, double eps) {
    double *y = zeros(n * e);
    for (uint32_t t = 0; t < n; t++) {
        double s = 0;
        for (uint64_t i = 0; i < e; i++)
            s += x[t * e + i] * x[t * e + i];
        for (uint64_t i = 0; i < e; i++)
            y[t * e + i] = (double)w[i] * (x[t * e + i] / sqrt(s / (double)e + eps));
    }
    return y;
}

/* ---- KDA ---- */

static double *short_conv(const float *w, const double *z, uint32_t n, uint32_t p, uint32_t width) {
    double *y = zeros((uint64_t)n * p);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t c = 0; c < p; c++) {
            double s = 0;
            for (uint32_t j = 0; j < width; j++)
                if (t + j + 1 >= width)
                    s += (double)w[c * width + j] * z[(uint64_t)(t + j + 1 - width) * p + c];
            y[(uint64_t)t * p + c] = s * sigma(s);
        }
    return y;
}

static void unit(double *x, uint32_t dim, double scale) {
    double s = 0;
    for (uint32_t c = 0; c < dim; c++)
        s += x[c] * x[c];
    for (uint32_t c = 0; c < dim; c++)
        x[c] = x[c] / sqrt(s + 1e-6) * scale;
}

struct kda_io {
    const double *q, *k, *v, *a, *b; /* [n][P], b [n][heads]: logits of beta */
    double *o;
};

static void kda_head(const struct kern_model_desc *m, const float *a_log, const float *dt,
                     const struct kda_io *x, uint32_t h, uint32_t n) {
    const uint32_t d = m->kda_dim, p = m->kda_heads * d;
    double *s = zeros((uint64_t)d * d);
    for (uint32_t t = 0; t < n; t++) {
        const uint64_t at = (uint64_t)t * p + h * d;
        double beta = sigma(x->b[t * m->kda_heads + h]);
        for (uint32_t c = 0; c < d; c++) {
            double g =
                (double)m->gate_bound * sigma(exp((double)a_log[h]) * (x->a[at + c] + (double)dt[h * d + c]));
            for (uint32_t j = 0; j < d; j++)
                s[c * d + j] *= exp(g);
        }
        for (uint32_t j = 0; j < d; j++) {
            double pred = 0;
            for (uint32_t c = 0; c < d; c++)
                pred += s[c * d + j] * x->k[at + c];
            double delta = beta * (x->v[at + j] - pred);
            for (uint32_t c = 0; c < d; c++)
                s[c * d + j] += x->k[at + c] * delta;
        }
        for (uint32_t j = 0; j < d; j++)
            for (uint32_t c = 0; c < d; c++)
                x->o[at + j] += s[c * d + j] * x->q[at + c];
    }
    free(s);
}

static double *kda(const struct kernmodel *km, uint32_t l, const double *u, uint32_t n) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t d = m->kda_dim, p = m->kda_heads * d, e = m->hidden;
#define W(part) km_weight(km, part, l, 0)
    double *zq = linear(W(KERN_KDA_Q), u, n, e, p), *zk = linear(W(KERN_KDA_K), u, n, e, p);
    double *zv = linear(W(KERN_KDA_V), u, n, e, p);
    double *q = short_conv(W(KERN_KDA_QCONV), zq, n, p, m->conv_width);
    double *k = short_conv(W(KERN_KDA_KCONV), zk, n, p, m->conv_width);
    double *v = short_conv(W(KERN_KDA_VCONV), zv, n, p, m->conv_width);
    double *fa = linear(W(KERN_KDA_FA), u, n, e, d), *a = linear(W(KERN_KDA_FB), fa, n, d, p);
    double *ga = linear(W(KERN_KDA_GA), u, n, e, d), *gate = linear(W(KERN_KDA_GB), ga, n, d, p);
    double *b = linear(W(KERN_KDA_B), u, n, e, m->kda_heads), *o = zeros((uint64_t)n * p);
    for (uint32_t i = 0; i < n * m->kda_heads; i++) {
        unit(q + (uint64_t)i * d, d, pow(d, -0.5));
        unit(k + (uint64_t)i * d, d, 1);
    }
    const struct kda_io io = {q, k, v, a, b, o};
    for (uint32_t h = 0; h < m->kda_heads; h++)
        kda_head(m, W(KERN_KDA_A_LOG), W(KERN_KDA_DT_BIAS), &io, h, n);
    const float *w = W(KERN_KDA_O_NORM);
    double *normed = rms(o, w, n * m->kda_heads, d, (double)m->rms_eps);
    for (uint64_t i = 0; i < (uint64_t)n * p; i++)
        normed[i] *= sigma(gate[i]);
    double *y = linear(W(KERN_KDA_O), normed, n, p, e);
    double *all[] = {zq, zk, zv, q, k, v, fa, a, ga, gate, b, o, normed};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    return y;
}

/* ---- MLA and indexer ---- */

static double *index_keys(const struct kernmodel *km, uint32_t l, const double *u, uint32_t n) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t d = m->index_dim;
    double *k = linear(W(KERN_IDX_K), u, n, m->hidden, d);
    for (uint32_t t = 0; t < n; t++) {
        double mean = 0, var = 0, *x = k + (uint64_t)t * d;
        for (uint32_t c = 0; c < d; c++)
            mean += x[c] / d;
        for (uint32_t c = 0; c < d; c++)
            var += (x[c] - mean) * (x[c] - mean) / d;
        for (uint32_t c = 0; c < d; c++)
            x[c] = (x[c] - mean) / sqrt(var + 1e-6) * (double)W(KERN_IDX_KNORM_W)[c] +
                   (double)W(KERN_IDX_KNORM_B)[c];
    }
    return k;
}

static double *pool_keys(const struct kernmodel *km, uint32_t l, const double *u, uint32_t n) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t d = m->index_dim, kp = m->index_kpool;
    double *k = index_keys(km, l, u, n);
    if (kp == 1)
        return k;
    double *gate = linear(W(KERN_IDX_GATE), u, n, m->hidden, d), *pool = zeros((uint64_t)(n / kp + 1) * d);
    for (uint32_t p = 0; p < n / kp; p++)
        for (uint32_t c = 0; c < d; c++) {
            double sum = 0;
            for (uint32_t j = 0; j < kp; j++)
                sum += exp(gate[(p * kp + j) * d + c] + (double)W(KERN_IDX_APE)[j * d + c]);
            for (uint32_t j = 0; j < kp; j++)
                pool[p * d + c] += exp(gate[(p * kp + j) * d + c] + (double)W(KERN_IDX_APE)[j * d + c]) /
                                   sum * k[(p * kp + j) * d + c];
        }
    free(k);
    free(gate);
    return pool;
}

/* chosen[t][j]: does row t attend to position j? */
static void choose(const struct kernmodel *km, uint32_t l, const double *u, const double *cq, uint32_t n,
                   bool *chosen) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t d = m->index_dim, kp = m->index_kpool, heads = m->index_heads;
    double *pool = pool_keys(km, l, u, n), *score = zeros(n);
    double *q = linear(W(KERN_IDX_QB), cq, n, m->q_rank, (uint64_t)heads * d);
    double *omega = linear(W(KERN_IDX_W), u, n, m->hidden, heads);
    for (uint32_t t = 0; t < n; t++) {
        uint32_t np = (t + 1) / kp, ns = m->index_topk / kp < np ? m->index_topk / kp : np;
        for (uint32_t p = 0; p < np; p++) {
            score[p] = 0;
            for (uint32_t h = 0; h < heads; h++) {
                double dot = 0;
                for (uint32_t c = 0; c < d; c++)
                    dot += q[((uint64_t)t * heads + h) * d + c] * pool[p * d + c];
                score[p] += omega[t * heads + h] * pow(heads, -0.5) * fmax(dot * pow(d, -0.5), 0);
            }
        }
        for (uint32_t i = 0; i < ns; i++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t p = 0; p < np; p++)
                if (!chosen[t * n + p * kp] && (best == UINT32_MAX || score[p] > score[best]))
                    best = p;
            for (uint32_t j = 0; j < kp; j++)
                chosen[t * n + best * kp + j] = true;
        }
        for (uint32_t j = np * kp; j <= t; j++)
            chosen[t * n + j] = true;
    }
    free(pool);
    free(score);
    free(q);
    free(omega);
}

/* Keys and values of each head from the two halves of kv_b. */
static double *split_kv(const struct kernmodel *km, uint32_t l, const double *c, uint32_t n) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint64_t dk = m->nope_dim, dv = m->v_dim, heads = m->mla_heads, rank = m->kv_rank;
    const float *kb = W(KERN_MLA_KB), *vb = W(KERN_MLA_VB);
    double *kv = zeros(n * heads * (dk + dv));
    for (uint64_t t = 0; t < n; t++)
        for (uint64_t h = 0; h < heads; h++)
            for (uint64_t i = 0; i < dk + dv; i++)
                for (uint64_t j = 0; j < rank; j++)
                    kv[(t * heads + h) * (dk + dv) + i] +=
                        c[t * rank + j] *
                        (double)(i < dk ? kb[(h * rank + j) * dk + i] : vb[(h * dv + i - dk) * rank + j]);
    return kv;
}

static double *attention(const struct kernmodel *km, uint32_t l, const double *u, uint32_t n, bool *chosen,
                         const bool *shared) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t dk = m->nope_dim, dv = m->v_dim, heads = m->mla_heads, rank = m->kv_rank;
    double *cq0 = linear(W(KERN_MLA_QA), u, n, m->hidden, m->q_rank);
    double *cq = rms(cq0, W(KERN_MLA_QA_NORM), n, m->q_rank, (double)m->rms_eps);
    double *q = linear(W(KERN_MLA_QB), cq, n, m->q_rank, (uint64_t)heads * dk);
    double *c0 = linear(W(KERN_MLA_KVA), u, n, m->hidden, rank);
    double *c = rms(c0, W(KERN_MLA_KVA_NORM), n, rank, (double)m->rms_eps);
    double *kv = m->layer[l].kvb_split ? split_kv(km, l, c, n)
                                       : linear(W(KERN_MLA_KVB), c, n, rank, (uint64_t)heads * (dk + dv));
    double *o = zeros((uint64_t)n * heads * dv), *s = zeros(n);
    if (m->layer[l].index == KERN_INDEX_FULL)
        choose(km, l, u, cq, n, chosen);
    else
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t j = 0; j <= t; j++)
                chosen[t * n + j] = m->layer[l].index == KERN_INDEX_NONE || shared[t * n + j];
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < heads; h++) {
            double top = -INFINITY, sum = 0;
            for (uint32_t j = 0; j <= t; j++) {
                s[j] = 0;
                for (uint32_t i = 0; i < dk; i++)
                    s[j] +=
                        q[((uint64_t)t * heads + h) * dk + i] * kv[((uint64_t)j * heads + h) * (dk + dv) + i];
                s[j] /= sqrt(dk);
                if (chosen[t * n + j])
                    top = fmax(top, s[j]);
            }
            for (uint32_t j = 0; j <= t; j++)
                sum += chosen[t * n + j] ? exp(s[j] - top) : 0;
            for (uint32_t j = 0; j <= t; j++)
                for (uint32_t i = 0; i < dv && chosen[t * n + j]; i++)
                    o[((uint64_t)t * heads + h) * dv + i] +=
                        exp(s[j] - top) / sum * kv[((uint64_t)j * heads + h) * (dk + dv) + dk + i];
        }
    double *y = linear(W(KERN_MLA_O), o, n, (uint64_t)heads * dv, m->hidden);
    double *all[] = {cq0, cq, q, c0, c, kv, o, s};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    return y;
}

/* ---- feed-forward ---- */

static double *ffn(const struct kernmodel *km, uint32_t gate, uint32_t l, uint32_t expert, uint64_t width,
                   const double *x, uint32_t n) {
    const struct kern_model_desc *m = &km->cfg.model;
    const double lim = m->swiglu_limit > 0 ? (double)m->swiglu_limit : INFINITY;
    double *g = linear(km_weight(km, gate, l, expert), x, n, m->hidden, width);
    double *u = linear(km_weight(km, gate + 1, l, expert), x, n, m->hidden, width);
    for (uint64_t i = 0; i < n * width; i++) {
        double a = g[i] > lim ? lim : g[i], b = u[i] > lim ? lim : u[i] < -lim ? -lim : u[i];
        g[i] = a * sigma(a) * b;
    }
    double *y = linear(km_weight(km, gate + 2, l, expert), g, n, width, m->hidden);
    free(g);
    free(u);
    return y;
}

static double *moe(const struct kernmodel *km, uint32_t l, const double *x, uint32_t n) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t e = m->hidden, ne = m->n_experts;
    double *y = m->n_shared ? ffn(km, KERN_SH_GATE, l, 0, (uint64_t)m->n_shared * m->expert_width, x, n)
                            : zeros((uint64_t)n * e);
    double *score = linear(W(KERN_ROUTER), x, n, e, ne), *share = zeros((uint64_t)n * ne);
    for (uint32_t t = 0; t < n; t++) {
        double sum = 1e-20;
        for (uint32_t i = 0; i < ne; i++)
            score[t * ne + i] = sigma(score[t * ne + i]);
        for (uint32_t i = 0; i < m->n_top; i++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t k = 0; k < ne; k++)
                if (share[t * ne + k] == 0 &&
                    (best == UINT32_MAX || score[t * ne + k] + (double)W(KERN_ROUTER_BIAS)[k] >
                                               score[t * ne + best] + (double)W(KERN_ROUTER_BIAS)[best]))
                    best = k;
            share[t * ne + best] = 1;
            sum += score[t * ne + best];
        }
        for (uint32_t k = 0; k < ne; k++)
            share[t * ne + k] *= score[t * ne + k] / sum * (double)m->routed_scale;
    }
    for (uint32_t k = 0; k < ne; k++) {
        double *f = ffn(km, KERN_EXP_GATE, l, k, m->expert_width, x, n);
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t i = 0; i < e; i++)
                y[(uint64_t)t * e + i] += share[t * ne + k] * f[(uint64_t)t * e + i];
        free(f);
    }
    free(score);
    free(share);
    return y;
}

static double *feed_forward(const struct kernmodel *km, uint32_t l, const double *x, uint32_t n) {
    const struct kern_model_desc *m = &km->cfg.model;
    return m->layer[l].mlp == KERN_MLP_DENSE ? ffn(km, KERN_MLP_GATE, l, 0, m->dense_width, x, n)
                                             : moe(km, l, x, n);
}

/* ---- sites ---- */

struct site {
    double *x, *post, *comb; /* [n][E], [n][hc], [n][hc][hc] */
};

static struct site enter(const struct kernmodel *km, uint32_t l, int ffn_site, const double *r, uint32_t n) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t hc = m->hc_mult, e = m->hidden, rows = hc * (2 + hc);
    const float *base = W(ffn_site ? KERN_HC_FFN_BASE : KERN_HC_ATTN_BASE);
    const float *scale = W(ffn_site ? KERN_HC_FFN_SCALE : KERN_HC_ATTN_SCALE);
    const double eps = (double)m->hc_eps;
    float *ones = malloc(hc * e * sizeof(float));
    for (uint32_t i = 0; i < hc * e; i++)
        ones[i] = 1;
    double *f = rms(r, ones, n, (uint64_t)hc * e, (double)m->rms_eps);
    double *mm = linear(W(ffn_site ? KERN_HC_FFN_FN : KERN_HC_ATTN_FN), f, n, (uint64_t)hc * e, rows);
    struct site s = {zeros((uint64_t)n * e), zeros((uint64_t)n * hc), zeros((uint64_t)n * hc * hc)};
    for (uint32_t t = 0; t < n; t++) {
        const double *v = mm + t * rows;
        double *c = s.comb + t * hc * hc;
        for (uint32_t i = 0; i < hc; i++) {
            double pre = sigma(v[i] * (double)scale[0] + (double)base[i]) + eps, sum = 0;
            for (uint32_t d = 0; d < e; d++)
                s.x[(uint64_t)t * e + d] += pre * r[((uint64_t)t * hc + i) * e + d];
            s.post[t * hc + i] = 2 * sigma(v[hc + i] * (double)scale[1] + (double)base[hc + i]);
            for (uint32_t j = 0; j < hc; j++)
                sum += c[i * hc + j] =
                    exp(v[2 * hc + hc * i + j] * (double)scale[2] + (double)base[2 * hc + hc * i + j]);
            for (uint32_t j = 0; j < hc; j++)
                c[i * hc + j] = c[i * hc + j] / sum + eps;
        }
        for (uint32_t pass = 0; pass < m->hc_iters; pass++) {
            for (uint32_t i = 0; i < hc && pass; i++) {
                double sum = eps;
                for (uint32_t j = 0; j < hc; j++)
                    sum += c[i * hc + j];
                for (uint32_t j = 0; j < hc; j++)
                    c[i * hc + j] /= sum;
            }
            for (uint32_t j = 0; j < hc; j++) {
                double sum = eps;
                for (uint32_t i = 0; i < hc; i++)
                    sum += c[i * hc + j];
                for (uint32_t i = 0; i < hc; i++)
                    c[i * hc + j] /= sum;
            }
        }
    }
    free(ones);
    free(f);
    free(mm);
    return s;
}

static void leave(const struct kernmodel *km, struct site *s, const double *y, const double *r, double *out,
                  uint32_t n) {
    const uint32_t hc = km->cfg.model.hc_mult, e = km->cfg.model.hidden;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t j = 0; j < hc; j++)
            for (uint32_t d = 0; d < e; d++) {
                double v = s->post[t * hc + j] * y[(uint64_t)t * e + d];
                for (uint32_t i = 0; i < hc; i++)
                    v += s->comb[(t * hc + i) * hc + j] * r[((uint64_t)t * hc + i) * e + d];
                out[((uint64_t)t * hc + j) * e + d] = v;
            }
    free(s->x);
    free(s->post);
    free(s->comb);
}

static void half_layer(const struct kernmodel *km, struct naive *v, uint32_t l, int ffn_site, const double *r,
                       double *out, const bool **shared) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t n = v->n, e = m->hidden;
    bool *chosen = v->chosen + (uint64_t)l * v->n_max * v->n_max;
    bool mhc = m->layer[l].resid == KERN_RESID_MHC;
    struct site s = {0};
    if (mhc)
        s = enter(km, l, ffn_site, r, n);
    double *x = rms(mhc ? s.x : r, W(ffn_site ? KERN_POST_NORM : KERN_IN_NORM), n, e, (double)m->rms_eps), *y;
    if (ffn_site)
        y = feed_forward(km, l, x, n);
    else if (m->layer[l].mix == KERN_MIX_KDA)
        y = kda(km, l, x, n);
    else
        y = attention(km, l, x, n, chosen, *shared);
    if (!ffn_site && m->layer[l].index == KERN_INDEX_FULL)
        *shared = chosen;
    if (mhc)
        leave(km, &s, y, r, out, n);
    else
        for (uint64_t i = 0; i < (uint64_t)n * e; i++)
            out[i] = r[i] + y[i];
    free(x);
    free(y);
}

static void draft(const struct kernmodel *km, struct naive *v, const uint32_t *ids) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t l = m->n_layers, n = v->n - 1, e = m->hidden, rows = v->n;
    const bool *none = NULL;
    double *emb = zeros((uint64_t)n * e), *both = zeros(2 * (uint64_t)n * e);
    for (uint64_t i = 0; i < (uint64_t)n * e; i++)
        emb[i] = (double)km_weight(km, KERN_EMBED, 0, 0)[(uint64_t)ids[i / e + 1] * e + i % e];
    double *a = rms(emb, W(KERN_DRAFT_ENORM), n, e, (double)m->rms_eps);
    double *b = rms(v->hidden, W(KERN_DRAFT_HNORM), n, e, (double)m->rms_eps);
    for (uint32_t t = 0; t < n; t++) {
        memcpy(both + 2 * (uint64_t)t * e, a + (uint64_t)t * e, e * sizeof(double));
        memcpy(both + (2 * (uint64_t)t + 1) * e, b + (uint64_t)t * e, e * sizeof(double));
    }
    double *x = linear(W(KERN_DRAFT_EH), both, n, 2 * (uint64_t)e, e), *y = zeros((uint64_t)n * e);
    v->n = n;
    half_layer(km, v, l, 0, x, y, &none);
    half_layer(km, v, l, 1, y, x, &none);
    v->n = rows;
    v->draft = rms(x, W(KERN_DRAFT_NORM), n, e, (double)m->rms_eps);
    v->draft_logits = linear(km_weight(km, KERN_HEAD, 0, 0), v->draft, n, e, m->vocab_rows);
    double *all[] = {emb, both, a, b, x, y};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

struct naive *naive_new(const struct kernmodel *km, const uint32_t *ids, uint32_t n) {
    const struct kern_model_desc *m = &km->cfg.model;
    const uint32_t hc = m->hc_mult, e = m->hidden;
    const uint64_t step = (uint64_t)n * hc * e;
    const bool *shared = NULL;
    struct naive *v = calloc(1, sizeof(*v));
    v->n = v->n_max = n;
    v->streams = zeros((2 * m->n_layers + 1) * step);
    v->chosen = calloc((uint64_t)(m->n_layers + m->n_draft) * n * n, sizeof(bool));
    ck_assert_ptr_nonnull(v->chosen);
    for (uint64_t i = 0; i < step; i++)
        v->streams[i] = (double)km_weight(km, KERN_EMBED, 0, 0)[(uint64_t)ids[i / (hc * e)] * e + i % e];
    for (uint32_t l = 0; l < m->n_layers; l++)
        for (int s = 0; s < 2; s++)
            half_layer(km, v, l, s, v->streams + (2 * l + (uint32_t)s) * step,
                       v->streams + (2 * l + (uint32_t)s + 1) * step, &shared);
    double *mean = zeros((uint64_t)n * e);
    for (uint64_t i = 0; i < step; i++)
        mean[i / (hc * e) * e + i % e] += v->streams[2 * m->n_layers * step + i] / hc;
    v->hidden = rms(mean, km_weight(km, KERN_FINAL_NORM, 0, 0), n, e, (double)m->rms_eps);
    v->logits = linear(km_weight(km, KERN_HEAD, 0, 0), v->hidden, n, e, m->vocab_rows);
    free(mean);
    if (m->n_draft && n > 1)
        draft(km, v, ids);
    return v;
}

void naive_free(struct naive *v) {
    free(v->streams);
    free(v->hidden);
    free(v->logits);
    free(v->draft);
    free(v->draft_logits);
    free(v->chosen);
    free(v);
}

double naive_error(const float *got, const double *want, uint64_t n) {
    double d = 0, w = 0;
    for (uint64_t i = 0; i < n; i++) {
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w += want[i] * want[i];
    }
    return sqrt(d / w);
}
