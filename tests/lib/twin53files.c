/* SPDX-License-Identifier: MIT */
/* The twin's files: weights, config.json as it was released, and what the oracle says as a golden file. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "goldmake.h"
#include "twin53.h"

enum { FIRST_ADDED = 4060 }; /* nano's control tokens begin here */

/* ---- weights ---- */

/* What the release has in E4M3: the five projections of attention, two of the indexer, every MLP. */
static int is_fp8(const char *name) {
    static const char *const suffix[] = {"q_a_proj.weight",   "q_b_proj.weight",  "kv_a_proj_with_mqa.weight",
                                         "o_proj.weight",     "kv_b_proj.weight", "indexer.wq_b.weight",
                                         "indexer.wk.weight", "gate_proj.weight", "up_proj.weight",
                                         "down_proj.weight"};

    for (size_t i = 0; i < sizeof suffix / sizeof *suffix; i++) {
        size_t n = strlen(name), m = strlen(suffix[i]);

        if (n > m && strcmp(name + n - m, suffix[i]) == 0)
            return 1;
    }
    return 0;
}

static void put_plain(struct ckpt_set *s, const struct o53_tensor *t) {
    const size_t n = (size_t)t->rows * t->cols;
    const int f32 = strstr(t->name, "e_score_correction_bias") != NULL;
    struct ckpt_tensor *to;

    if (t->rows == 1)
        to = ckpt_set_put(s, t->name, f32 ? "F32" : "BF16", NULL, 1, (uint64_t)t->cols);
    else
        to = ckpt_set_put(s, t->name, "BF16", NULL, 2, (uint64_t)t->rows, (uint64_t)t->cols);
    for (size_t i = 0; i < n; i++) {
        float f = (float)t->v[i];
        uint16_t b = ckpt_to_bf16(t->v[i]);

        if (f32)
            memcpy(to->bytes + 4 * i, &f, 4);
        else
            memcpy(to->bytes + 2 * i, &b, 2);
    }
}

/* The values went through the format when they were made: the largest of a block has the largest code, so the
 * factor is found again, and every code with it. */
static void put_fp8(struct ckpt_set *s, const struct o53_tensor *t) {
    const uint64_t gr = (t->rows + 127) / 128, gc = (t->cols + 127) / 128;
    struct ckpt_tensor *codes, *scales;
    int same = 1;
    char name[128];

    snprintf(name, sizeof name, "%s_scale_inv", t->name);
    ckpt_set_put(s, name, "F32", NULL, 2, gr, gc);
    codes = ckpt_set_put(s, t->name, "F8_E4M3", NULL, 2, (uint64_t)t->rows, (uint64_t)t->cols);
    scales = ckpt_set_get(s, name);
    for (uint32_t i = 0; i < gr * gc; i++) {
        uint32_t r0 = i / (uint32_t)gc * 128, c0 = i % (uint32_t)gc * 128;
        double top = 0;
        float f;

        for (uint32_t r = r0; r < r0 + 128 && r < t->rows; r++)
            for (uint32_t c = c0; c < c0 + 128 && c < t->cols; c++)
                top = fmax(top, fabs(t->v[(size_t)r * t->cols + c]));
        f = (float)(top / 448);
        for (uint32_t r = r0; r < r0 + 128 && r < t->rows; r++)
            for (uint32_t c = c0; c < c0 + 128 && c < t->cols; c++) {
                const size_t at = (size_t)r * t->cols + c;

                codes->bytes[at] = ckpt_to_e4m3((float)(t->v[at] / (double)f));
                same = same && t->v[at] == (double)ckpt_e4m3(codes->bytes[at]) * (double)f;
            }
        memcpy(scales->bytes + 4 * i, &f, 4);
    }
    ck_assert_msg(same, "%s: what is written is not what the oracle computes with", t->name);
}

/* ---- configuration ---- */

static void put_types(json_t *c, const struct o53_dims *d) {
    json_t *mlp = json_array(), *index = json_array();

    for (uint32_t l = 0; l < d->layers; l++) {
        json_array_append_new(mlp, json_string(l < d->dense_layers ? "dense" : "sparse"));
        json_array_append_new(index, json_string(oracle53_full(d, l) ? "full" : "shared"));
    }
    json_object_set_new(c, "mlp_layer_types", mlp);
    json_object_set_new(c, "indexer_types", index);
}

static json_t *quantization(const struct o53_dims *d) {
    json_t *keep = json_array();
    char name[96];

    json_array_append_new(keep, json_string("lm_head"));
    json_array_append_new(keep, json_string("model.embed_tokens"));
    for (uint32_t l = 0; l <= d->layers; l++) {
        snprintf(name, sizeof name, "model.layers.%u.self_attn.indexer.weights_proj", l);
        if (l == d->layers || oracle53_full(d, l))
            json_array_append_new(keep, json_string(name));
        snprintf(name, sizeof name, "model.layers.%u.mlp.gate", l);
        if (l >= d->dense_layers)
            json_array_append_new(keep, json_string(name));
    }
    snprintf(name, sizeof name, "model.layers.%u.eh_proj", d->layers);
    json_array_append_new(keep, json_string(name));
    return json_pack("{s:s, s:s, s:s, s:[i,i], s:o}", "activation_scheme", "dynamic", "fmt", "e4m3",
                     "quant_method", "fp8", "weight_block_size", 128, 128, "modules_to_not_convert", keep);
}

static json_t *numbers(const struct o53_dims *d) {
    const struct {
        const char *key;
        uint32_t v;
    } n[] = {
        {"vocab_size", d->vocab},
        {"hidden_size", d->hidden},
        {"num_hidden_layers", d->layers},
        {"num_attention_heads", d->heads},
        {"num_key_value_heads", d->heads},
        {"q_lora_rank", d->q_lora},
        {"kv_lora_rank", d->kv_lora},
        {"head_dim", d->nope}, /* 192 in the release, whose keys without their turned part are so wide */
        {"qk_nope_head_dim", d->nope},
        {"qk_rope_head_dim", d->rope},
        {"qk_head_dim", d->nope + d->rope},
        {"v_head_dim", d->v},
        {"index_n_heads", d->index_heads},
        {"index_head_dim", d->index_dim},
        {"index_topk", d->index_topk},
        {"index_topk_freq", d->index_freq},
        {"index_skip_topk_offset", d->index_offset},
        {"first_k_dense_replace", d->dense_layers},
        {"intermediate_size", d->dense_width},
        {"moe_intermediate_size", d->moe_width},
        {"n_routed_experts", d->experts},
        {"num_experts_per_tok", d->active},
        {"n_shared_experts", 1},
        {"num_nextn_predict_layers", 1},
        {"n_group", 1},
        {"topk_group", 1},
        {"moe_layer_freq", 1},
        {"ep_size", 1},
        {"pretraining_tp", 1},
        {"max_position_embeddings", 1048576},
        {"pad_token_id", FIRST_ADDED},
    };
    json_t *c = json_object();

    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        json_object_set_new(c, n[i].key, json_integer(n[i].v));
    return c;
}

static json_t *config(const struct o53_dims *d, const char *stored) {
    json_t *c = numbers(d), *rest;

    rest = json_pack("{s:[s], s:b, s:f, s:s, s:[i,i,i], s:s, s:b, s:n, s:b, s:f, s:s, s:s, s:b, s:f, s:b}",
                     "architectures", "GlmMoeDsaForCausalLM", "attention_bias", 0, "attention_dropout", 0.0,
                     "dtype", "bfloat16", "eos_token_id", FIRST_ADDED, FIRST_ADDED + 7, FIRST_ADDED + 9,
                     "hidden_act", "silu", "index_share_for_mtp_iteration", 1, "index_topk_pattern",
                     "indexer_rope_interleave", 1, "initializer_range", 0.02, "model_type", "glm_moe_dsa",
                     "moe_router_dtype", "float32", "norm_topk_prob", 1, "rms_norm_eps", d->eps,
                     "rope_interleave", 1);
    ck_assert_ptr_nonnull(rest);
    json_object_update(c, rest);
    json_decref(rest);
    rest = json_pack("{s:{s:I, s:s}, s:f, s:s, s:b, s:s, s:s, s:b}", "rope_parameters", "rope_theta",
                     (json_int_t)d->theta, "rope_type", "default", "routed_scaling_factor", d->routed_scale,
                     "scoring_func", "sigmoid", "tie_word_embeddings", 0, "topk_method", "noaux_tc",
                     "transformers_version", "5.15.0", "use_cache", 1);
    ck_assert_ptr_nonnull(rest);
    json_object_update(c, rest);
    json_decref(rest);
    put_types(c, d);
    if (strcmp(stored, "fp8") == 0)
        json_object_set_new(c, "quantization_config", quantization(d));
    return c;
}

void twin53_write(const struct o53_model *m, const struct ckpt *c, const char *stored) {
    static const char *const same[] = {"tokenizer.json", "chat_template.jinja", "generation_config.json"};
    struct ckpt_set s = {.n = 0};
    json_t *conf = config(&m->d, stored);
    char from[512];

    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(stored, "fp8") == 0 && is_fp8(m->t[i].name))
            put_fp8(&s, &m->t[i]);
        else
            put_plain(&s, &m->t[i]);
    ckpt_set_write(&s, c);
    ckpt_set_done(&s);
    ckpt_write_json(c, "config.json", conf);
    json_decref(conf);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        snprintf(from, sizeof from, "%s/%s", ckpt_model("nano"), same[i]);
        ck_assert_int_eq(symlink(from, ckpt_path(c, same[i])), 0);
    }
}

/* ---- golden values ---- */

static int32_t largest(const double *v, uint32_t n) {
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (v[i] > v[best])
            best = i;
    return (int32_t)best;
}

static void put_floats(struct ckpt_set *s, const char *name, const char *what, const double *v, size_t n) {
    float *f = malloc((n + 1) * sizeof *f);

    ck_assert_ptr_nonnull(f);
    for (size_t i = 0; i < n; i++)
        f[i] = (float)v[i];
    goldmake_floats(s, name, what, f, n);
    free(f);
}

static void put_answers(struct ckpt_set *s, const struct o53_model *m, const char *name, const int32_t *ids,
                        const struct o53_out *o) {
    const uint32_t n = o->n, v = m->d.vocab;
    const size_t wide = (size_t)n * m->d.hidden;
    double *sum = malloc(n * sizeof *sum), *next = malloc(n * sizeof *next);
    int32_t *top = malloc(n * sizeof *top);
    char what[32];

    goldmake_ids(s, name, "ids", ids, n);
    put_floats(s, name, "logits_last", o->logits + (size_t)(n - 1) * v, v);
    for (uint32_t t = 0; t < n; t++) {
        const double *l = o->logits + (size_t)t * v;

        top[t] = largest(l, v);
        sum[t] = 0;
        for (uint32_t i = 0; i < v; i++)
            sum[t] += exp(l[i] - l[top[t]]);
        sum[t] = log(sum[t]) + l[top[t]];
        next[t] = t + 1 < n ? l[ids[t + 1]] : 0;
    }
    goldmake_ids(s, name, "top1", top, n);
    put_floats(s, name, "logsumexp", sum, n);
    put_floats(s, name, "next_logit", next, n - 1);
    for (uint32_t l = 0; l <= m->d.layers; l++) {
        snprintf(what, sizeof what, "hidden.%u", l);
        put_floats(s, name, what, o->hidden + wide * l, wide);
    }
    for (uint32_t t = 0; t + 1 < n; t++)
        top[t] = largest(o->draft + (size_t)t * v, v);
    if (n > 1) {
        goldmake_ids(s, name, "mtp_top1", top, n - 1);
        put_floats(s, name, "mtp_logits_last", o->draft + (size_t)(n - 2) * v, v);
    }
    free(sum);
    free(next);
    free(top);
}

static int stops(int32_t id) {
    return id == FIRST_ADDED || id == FIRST_ADDED + 7 || id == FIRST_ADDED + 9;
}

static void note(struct o53_out *all, const struct o53_out *o) {
    all->index_gap = fmin(all->index_gap, o->index_gap);
    all->router_gap = fmin(all->router_gap, o->router_gap);
    all->sparse_rows += o->sparse_rows;
}

void twin53_golden(const struct o53_model *m, const struct ckpt *c, const char *file,
                   const struct twin53_case *cases, uint32_t n_cases, struct o53_out *ret_gaps) {
    struct o53_out gaps = {.index_gap = 1, .router_gap = 1}, o;
    struct ckpt_set s = {.n = 0};
    struct ckpt_rng rng = {53};

    for (uint32_t i = 0; i < n_cases; i++) {
        const uint32_t n = cases[i].n;
        int32_t *ids = calloc(n + cases[i].n_greedy + 1, sizeof *ids);

        for (uint32_t t = 0; t < n; t++)
            ids[t] = (int32_t)(ckpt_rand(&rng) % FIRST_ADDED);
        for (uint32_t g = 0; g <= cases[i].n_greedy; g++) {
            oracle53_run(m, ids, n + g, &o);
            note(&gaps, &o);
            if (g == 0)
                put_answers(&s, m, cases[i].name, ids, &o);
            ids[n + g] = largest(o.logits + (size_t)(n + g - 1) * m->d.vocab, m->d.vocab);
            ck_assert(!stops(ids[n + g])); /* it would end early */
            oracle53_done(&o);
        }
        if (cases[i].n_greedy)
            goldmake_ids(&s, cases[i].name, "greedy", ids + n, cases[i].n_greedy);
        free(ids);
    }
    ckpt_set_save(&s, ckpt_path(c, file));
    ckpt_set_done(&s);
    *ret_gaps = gaps;
}
