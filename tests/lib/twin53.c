/* SPDX-License-Identifier: MIT */
#include "twin53.h"

#include <check.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptset.h"

struct o53_dims twin53_dims(void) {
    return (struct o53_dims){
        .vocab = 4096,
        .hidden = 160,
        .layers = 12,
        .heads = 3,
        .q_lora = 96,
        .kv_lora = 64,
        .nope = 24,
        .rope = 8,
        .v = 40,
        .index_heads = 4,
        .index_dim = 32,
        .index_topk = 24,
        .index_freq = 4,
        .index_offset = 3,
        .dense_layers = 3,
        .dense_width = 144,
        .experts = 7,
        .active = 3,
        .moe_width = 48,
        .theta = 8e6,
        .eps = 1e-5,
        .routed_scale = 2.5,
    };
}

/* ---- numbers ---- */

struct maker {
    struct o53_model *m;
    struct ckpt_rng rng;
    int fp8;
};

/* Mean 0, variance 1. */
static double normal(struct ckpt_rng *r) {
    double s = -6;

    for (int i = 0; i < 12; i++)
        s += (double)(ckpt_rand(r) >> 11) * 0x1p-53;
    return s;
}

static struct o53_tensor *tensor(struct maker *k, uint32_t rows, uint32_t cols, const char *fmt, va_list ap) {
    struct o53_model *m = k->m;
    struct o53_tensor *t;

    m->t = realloc(m->t, (m->n + 1) * sizeof *m->t);
    ck_assert_ptr_nonnull(m->t);
    t = &m->t[m->n++];
    *t = (struct o53_tensor){.rows = rows, .cols = cols};
    ck_assert_int_lt(vsnprintf(t->name, sizeof t->name, fmt, ap), (int)sizeof t->name);
    t->v = malloc((size_t)rows * cols * sizeof *t->v);
    ck_assert_ptr_nonnull(t->v);
    return t;
}

/* What E4M3 with a factor for each 128 x 128 block keeps of t. The factor is a float, as in the file. */
static float block_scale(const struct o53_tensor *t, uint32_t r0, uint32_t c0) {
    double top = 0;

    for (uint32_t r = r0; r < r0 + 128 && r < t->rows; r++)
        for (uint32_t c = c0; c < c0 + 128 && c < t->cols; c++)
            top = fmax(top, fabs(t->v[(size_t)r * t->cols + c]));
    return (float)(top / 448);
}

static void through_fp8(struct o53_tensor *t) {
    for (uint32_t r0 = 0; r0 < t->rows; r0 += 128)
        for (uint32_t c0 = 0; c0 < t->cols; c0 += 128) {
            const float s = block_scale(t, r0, c0);

            for (uint32_t r = r0; r < r0 + 128 && r < t->rows; r++)
                for (uint32_t c = c0; c < c0 + 128 && c < t->cols; c++) {
                    double *v = &t->v[(size_t)r * t->cols + c];

                    *v = (double)ckpt_e4m3(ckpt_to_e4m3((float)(*v / (double)s))) * (double)s;
                }
        }
}

/* A matrix whose rows give numbers of about `gain` times those it gets. */
__attribute__((format(printf, 6, 7))) static void matrix(struct maker *k, int fp8, uint32_t rows,
                                                         uint32_t cols, double gain, const char *fmt, ...) {
    struct o53_tensor *t;
    va_list ap;

    va_start(ap, fmt);
    t = tensor(k, rows, cols, fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        t->v[i] = normal(&k->rng) * gain / sqrt(cols);
    if (fp8 && k->fp8)
        through_fp8(t);
    else
        for (size_t i = 0; i < (size_t)rows * cols; i++)
            t->v[i] = ckpt_bf16(ckpt_to_bf16(t->v[i]));
}

/* Around `mean`; BF16, or as the release has it F32 when the name says bias of the router. */
__attribute__((format(printf, 5, 6))) static void vector(struct maker *k, uint32_t n, double mean,
                                                         double spread, const char *fmt, ...) {
    struct o53_tensor *t;
    va_list ap;

    va_start(ap, fmt);
    t = tensor(k, 1, n, fmt, ap);
    va_end(ap);
    for (uint32_t i = 0; i < n; i++) {
        double v = mean + spread * normal(&k->rng);

        t->v[i] = strstr(t->name, "e_score_correction_bias") ? (double)(float)v : ckpt_bf16(ckpt_to_bf16(v));
    }
}

/* ---- the model ---- */

static void make_attention(struct maker *k, uint32_t l, int indexer) {
    const struct o53_dims *d = &k->m->d;
    char p[64];

    snprintf(p, sizeof p, "model.layers.%u.self_attn.", l);
    matrix(k, 1, d->q_lora, d->hidden, 1, "%sq_a_proj.weight", p);
    vector(k, d->q_lora, 1, 0.3, "%sq_a_layernorm.weight", p);
    matrix(k, 1, d->heads * (d->nope + d->rope), d->q_lora, 1.5, "%sq_b_proj.weight", p);
    matrix(k, 1, d->kv_lora + d->rope, d->hidden, 1, "%skv_a_proj_with_mqa.weight", p);
    vector(k, d->kv_lora, 1, 0.3, "%skv_a_layernorm.weight", p);
    matrix(k, 1, d->heads * (d->nope + d->v), d->kv_lora, 1.5, "%skv_b_proj.weight", p);
    matrix(k, 1, d->hidden, d->heads * d->v, 1, "%so_proj.weight", p);
    if (!indexer)
        return;
    matrix(k, 1, d->index_heads * d->index_dim, d->q_lora, 1, "%sindexer.wq_b.weight", p);
    matrix(k, 1, d->index_dim, d->hidden, 1, "%sindexer.wk.weight", p);
    vector(k, d->index_dim, 1, 0.3, "%sindexer.k_norm.weight", p);
    vector(k, d->index_dim, 0, 0.3, "%sindexer.k_norm.bias", p);
    matrix(k, 0, d->index_heads, d->hidden, 1, "%sindexer.weights_proj.weight", p);
}

static void make_ffn(struct maker *k, uint32_t l, uint32_t width, const char *which) {
    const struct o53_dims *d = &k->m->d;

    matrix(k, 1, width, d->hidden, 1.5, "model.layers.%u.mlp.%sgate_proj.weight", l, which);
    matrix(k, 1, width, d->hidden, 1.5, "model.layers.%u.mlp.%sup_proj.weight", l, which);
    matrix(k, 1, d->hidden, width, 1, "model.layers.%u.mlp.%sdown_proj.weight", l, which);
}

static void make_layer(struct maker *k, uint32_t l) {
    const struct o53_dims *d = &k->m->d;
    char which[32];

    vector(k, d->hidden, 1, 0.3, "model.layers.%u.input_layernorm.weight", l);
    vector(k, d->hidden, 1, 0.3, "model.layers.%u.post_attention_layernorm.weight", l);
    make_attention(k, l, l == d->layers || oracle53_full(d, l));
    if (l < d->dense_layers) {
        make_ffn(k, l, d->dense_width, "");
        return;
    }
    matrix(k, 0, d->experts, d->hidden, 1, "model.layers.%u.mlp.gate.weight", l);
    vector(k, d->experts, 0, 0.2, "model.layers.%u.mlp.gate.e_score_correction_bias", l);
    for (uint32_t e = 0; e < d->experts; e++) {
        snprintf(which, sizeof which, "experts.%u.", e);
        make_ffn(k, l, d->moe_width, which);
    }
    make_ffn(k, l, d->moe_width, "shared_experts.");
}

void twin53_make(struct o53_model *ret, const struct o53_dims *d, uint64_t seed, const char *stored) {
    struct maker k = {.m = ret, .rng = {seed}, .fp8 = strcmp(stored, "fp8") == 0};

    *ret = (struct o53_model){.d = *d};
    matrix(&k, 0, d->vocab, d->hidden, sqrt(d->hidden), "model.embed_tokens.weight");
    for (uint32_t l = 0; l <= d->layers; l++)
        make_layer(&k, l);
    vector(&k, d->hidden, 1, 0.3, "model.layers.%u.enorm.weight", d->layers);
    vector(&k, d->hidden, 1, 0.3, "model.layers.%u.hnorm.weight", d->layers);
    matrix(&k, 0, d->hidden, 2 * d->hidden, 1, "model.layers.%u.eh_proj.weight", d->layers);
    vector(&k, d->hidden, 1, 0.3, "model.layers.%u.shared_head.norm.weight", d->layers);
    vector(&k, d->hidden, 1, 0.3, "model.norm.weight");
    matrix(&k, 0, d->vocab, d->hidden, 3, "lm_head.weight");
}

void twin53_done(struct o53_model *m) {
    for (uint32_t i = 0; i < m->n; i++)
        free(m->t[i].v);
    free(m->t);
    *m = (struct o53_model){.n = 0};
}
