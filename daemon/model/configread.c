/* SPDX-License-Identifier: MIT */
/* Field reader behind config.c: types, ranges, and the refusal of unknown keys. Pure functions over a parsed
 * object; start-up only; never logs. */
#include "configread.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int cread_refuse(const struct cread *c, int code, const char *key, const json_t *found, const char *expected,
                 ...) {
    struct show f, k;
    char want[120];
    va_list ap;

    va_start(ap, expected);
    vsnprintf(want, sizeof want, expected, ap);
    va_end(ap);
    return xerr_set(c->e, code, "%s: %s%s: found %s, expected %s", c->file, c->prefix, show_str(&k, key),
                    modeljson_show(&f, found), want);
}

int cread_missing(const struct cread *c, const char *key, const char *expected) {
    return xerr_set(c->e, -EINVAL, "%s: %s%s: found nothing, expected %s; the value is never assumed",
                    c->file, c->prefix, key, expected);
}

static void expected_text(const struct cread_field *f, char *buf, size_t n) {
    switch (f->kind) {
    case CREAD_U32:
        if (f->lo == f->hi)
            snprintf(buf, n, "%.0f", f->lo);
        else
            snprintf(buf, n, "an integer from %.0f to %.0f", f->lo, f->hi);
        break;
    case CREAD_REAL:
        snprintf(buf, n, "a number from %g to %g", f->lo, f->hi);
        break;
    case CREAD_BOOL:
        snprintf(buf, n, "true or false");
        break;
    case CREAD_TRUE:
        snprintf(buf, n, "true");
        break;
    case CREAD_FALSE:
        snprintf(buf, n, "false");
        break;
    case CREAD_WORD:
        snprintf(buf, n, "\"%s\"", f->word);
        break;
    case CREAD_INERT:
        snprintf(buf, n, "a number, true, false or null");
        break;
    }
}

/* Whether v fits f; the value is stored through out where f stores one. `type_ok` tells a wrong type from a
 * value that is merely not supported. */
static bool fits(const struct cread_field *f, const json_t *v, void *out, bool *type_ok) {
    *type_ok = true;
    switch (f->kind) {
    case CREAD_U32:
        if (!(*type_ok = json_is_integer(v)))
            return false;
        if ((double)json_integer_value(v) < f->lo || (double)json_integer_value(v) > f->hi)
            return false;
        *(uint32_t *)out = (uint32_t)json_integer_value(v);
        return true;
    case CREAD_REAL: {
        double d = json_number_value(v);

        if (!(*type_ok = json_is_number(v)))
            return false;
        if (!isfinite(d) || d < f->lo || d > f->hi)
            return false;
        *(double *)out = d;
        return true;
    }
    case CREAD_BOOL:
        if (!(*type_ok = json_is_boolean(v)))
            return false;
        *(bool *)out = json_is_true(v);
        return true;
    case CREAD_TRUE:
        return json_is_true(v) || !(*type_ok = json_is_boolean(v));
    case CREAD_FALSE:
        return json_is_false(v) || !(*type_ok = json_is_boolean(v));
    case CREAD_WORD:
        if (!(*type_ok = json_is_string(v)))
            return false;
        return strcmp(json_string_value(v), f->word) == 0;
    case CREAD_INERT:
        return *type_ok = json_is_number(v) || json_is_boolean(v) || json_is_null(v);
    }
    return false;
}

/* A value that only another model of the family would have is "unsupported", anything else is "invalid". */
static bool is_fixed(const struct cread_field *f) {
    return f->kind == CREAD_TRUE || f->kind == CREAD_FALSE || f->kind == CREAD_WORD ||
           (f->kind == CREAD_U32 && f->lo == f->hi);
}

int cread_fields(const struct cread *c, const struct cread_field *f, size_t n, void *base) {
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(c->obj, f[i].key);
        char want[96];
        bool type_ok, ok;

        if (f[i].optional && (!v || (json_is_null(v) && f[i].kind != CREAD_INERT)))
            continue;
        expected_text(&f[i], want, sizeof want);
        if (!v)
            return cread_missing(c, f[i].key, want);
        ok = fits(&f[i], v, (char *)base + f[i].at, &type_ok) && type_ok;
        if (!ok)
            return cread_refuse(c, type_ok && is_fixed(&f[i]) ? -ENOTSUP : -EINVAL, f[i].key, v, "%s", want);
    }
    return 0;
}

int cread_list(const struct cread *c, const char *key, uint32_t n, const char *n_from, const json_t **ret) {
    const json_t *v = json_object_get(c->obj, key);
    char want[96];

    snprintf(want, sizeof want, "a list of %u (%s)", n, n_from);
    if (!v)
        return cread_missing(c, key, want);
    if (!json_is_array(v) || json_array_size(v) != n)
        return cread_refuse(c, -EINVAL, key, v, "%s", want);
    *ret = v;
    return 0;
}

static int eos_one(const struct cread *c, const json_t *v, uint32_t vocab, uint32_t *ids, uint32_t *n) {
    uint32_t id, at;

    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)vocab)
        return cread_refuse(c, -EINVAL, "eos_token_id", v, "token ids below vocab_size (%u)", vocab);
    id = (uint32_t)json_integer_value(v);
    for (at = 0; at < *n && ids[at] < id; at++)
        ;
    if (at < *n && ids[at] == id)
        return cread_refuse(c, -EINVAL, "eos_token_id", v, "each token id once");
    memmove(ids + at + 1, ids + at, (*n - at) * sizeof *ids);
    ids[at] = id;
    ++*n;
    return 0;
}

int cread_eos(const struct cread *c, uint32_t vocab, uint32_t ids[MODEL_MAX_EOS], uint32_t *ret_n) {
    const json_t *v = json_object_get(c->obj, "eos_token_id");
    uint32_t got[MODEL_MAX_EOS + 1], n = 0;
    int r;

    if (!v)
        return cread_missing(c, "eos_token_id", "a token id or a list of them");
    if (!json_is_array(v)) {
        r = eos_one(c, v, vocab, got, &n);
        if (r < 0)
            return r;
    } else {
        if (json_array_size(v) == 0 || json_array_size(v) > MODEL_MAX_EOS)
            return cread_refuse(c, -EINVAL, "eos_token_id", v, "1 to %d token ids", MODEL_MAX_EOS);
        for (size_t i = 0; i < json_array_size(v); i++) {
            r = eos_one(c, json_array_get(v, i), vocab, got, &n);
            if (r < 0)
                return r;
        }
    }
    memcpy(ids, got, n * sizeof *ids);
    *ret_n = n;
    return 0;
}

/* Names that begin like the values the forward pass is made of. A new key among them is a feature this
 * reader does not know, and running without it would give a model that answers, wrongly. */
static const char *const FAMILIES[] = {
    "activation", "alibi",       "attention_",    "attn_",         "bias",        "chunk",
    "clamp",      "compress",    "conv_",         "cross_",        "decay",       "depth_",
    "dense",      "dsa",         "dual_",         "embed",         "expert",      "ffn",
    "final_",     "first_k_",    "gate",          "gating",        "hc_",         "head_",
    "hidden_",    "index",       "intermediate_", "kda_",          "key_",        "kpool",
    "kv_",        "layer_",      "layernorm",     "linear_",       "lm_head",     "logit",
    "lora",       "lower_bound", "max_position",  "mhc",           "mixer",       "mla_",
    "mlp_",       "moe_",        "mscale",        "mtp_",          "mup",         "n_",
    "nope",       "norm",        "num_",          "o_proj",        "output_gate", "output_mult",
    "partial_",   "per_layer",   "position_",     "post_",         "pre_norm",    "q_",
    "qk_",        "qkv",         "quant",         "query_",        "recurrent",   "residual",
    "rms_",       "rope",        "routed_",       "router_",       "sandwich",    "scale_",
    "scoring_",   "shared_",     "short_",        "sinkhorn",      "sinks",       "sliding",
    "softcap",    "softmax",     "sparse",        "ssm",           "swa",         "swiglu",
    "tie_",       "topk_",       "upper_bound",   "use_",          "v_head",      "value_",
    "vocab",      "window",      "yarn",          "zero_centered",
};

/* Members of those families that concern training, logging or generation only. */
static const char *const HARMLESS[] = {
    "attention_dropout",    "num_return_sequences", "num_beams",       "num_beam_groups",
    "router_aux_loss_coef", "router_z_loss_coef",   "mtp_loss_weight", "num_logits_to_keep",
    "hidden_dropout",       "position_ids",         "use_cache",       "use_bfloat16",
    "embd_pdrop",
};

static bool starts_with_any(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strncmp(key, list[i], strlen(list[i])) == 0)
            return true;
    return false;
}

static bool is_one_of(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}

int cread_unknown(const struct cread *c, const struct cread_field *const tables[], const size_t sizes[],
                  size_t n_tables, const char *const other[]) {
    void *it;

    for (it = json_object_iter((json_t *)c->obj); it; it = json_object_iter_next((json_t *)c->obj, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *v = json_object_iter_value(it);
        bool known = json_is_null(v) || is_one_of(key, HARMLESS, sizeof HARMLESS / sizeof *HARMLESS);

        for (size_t t = 0; t < n_tables && !known; t++)
            for (size_t i = 0; i < sizes[t] && !known; i++)
                known = strcmp(tables[t][i].key, key) == 0;
        for (size_t i = 0; other[i] && !known; i++)
            known = strcmp(other[i], key) == 0;
        if (!known && starts_with_any(key, FAMILIES, sizeof FAMILIES / sizeof *FAMILIES))
            return cread_refuse(c, -ENOTSUP, key, v,
                                "no such key: it may change the computation and glmd does not know it");
    }
    return 0;
}
