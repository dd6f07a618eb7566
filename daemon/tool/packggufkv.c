/* SPDX-License-Identifier: MIT */
/* packggufkv.c: the metadata of a GGUF file: the model's numbers from config.json, its tokenizer from
 * tokenizer.json. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eval.h"
#include "packgguf.h"

enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

void ggbuf_put(struct ggbuf *b, const void *bytes, size_t n) {
    if (b->failed || !n)
        return;
    if (n > b->cap - b->n) {
        size_t cap = (b->cap + n) * 2 + 4096;
        char *grown = realloc(b->p, cap);

        if (!grown) {
            b->failed = true;
            return;
        }
        b->p = grown;
        b->cap = cap;
    }
    memcpy(b->p + b->n, bytes, n);
    b->n += n;
}

void ggbuf_u64(struct ggbuf *b, uint64_t v) {
    char c[8];

    for (int i = 0; i < 8; i++)
        c[i] = (char)(v >> (8 * i));
    ggbuf_put(b, c, 8);
}

void ggbuf_u32(struct ggbuf *b, uint32_t v) {
    char c[4];

    for (int i = 0; i < 4; i++)
        c[i] = (char)(v >> (8 * i));
    ggbuf_put(b, c, 4);
}

void ggbuf_string(struct ggbuf *b, const char *s, size_t n) {
    ggbuf_u64(b, n);
    ggbuf_put(b, s, n);
}

/* ---- keys ---- */

struct meta {
    struct ggbuf *b;
    uint64_t n;
};

static void key(struct meta *m, const char *name, uint32_t type) {
    ggbuf_string(m->b, name, strlen(name));
    ggbuf_u32(m->b, type);
    m->n++;
}

/* Keys of the architecture. */
static void arch_key(struct meta *m, const char *name, uint32_t type) {
    char full[96];

    snprintf(full, sizeof full, "glm5next.%s", name);
    key(m, full, type);
}

static void number(struct meta *m, const char *name, uint32_t v) {
    arch_key(m, name, GGUF_U32);
    ggbuf_u32(m->b, v);
}

static void real(struct meta *m, const char *name, double v) {
    float f = (float)v;
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    arch_key(m, name, GGUF_F32);
    ggbuf_u32(m->b, u);
}

static void text(struct meta *m, const char *name, const char *s, size_t n) {
    key(m, name, GGUF_STRING);
    ggbuf_string(m->b, s, n);
}

static void array(struct meta *m, const char *name, uint32_t type, uint64_t n) {
    key(m, name, GGUF_ARRAY);
    ggbuf_u32(m->b, type);
    ggbuf_u64(m->b, n);
}

static void model_keys(struct meta *m, const struct model_config *c) {
    uint32_t layers = c->num_hidden_layers + c->num_nextn_predict_layers;
    float clamp = (float)c->swiglu_limit;
    uint32_t bits;

    memcpy(&bits, &clamp, sizeof bits);
    text(m, "general.architecture", "glm5next", 8);
    key(m, "general.alignment", GGUF_U32);
    ggbuf_u32(m->b, GGUF_PACK_ALIGN);
    number(m, "block_count", layers);
    number(m, "nextn_predict_layers", c->num_nextn_predict_layers);
    number(m, "context_length", c->max_position_embeddings);
    number(m, "embedding_length", c->hidden_size);
    number(m, "feed_forward_length", c->intermediate_size);
    number(m, "leading_dense_block_count", c->first_k_dense_replace);
    number(m, "vocab_size", c->vocab_size);
    number(m, "attention.head_count", c->num_attention_heads);
    array(m, "glm5next.attention.head_count_kv", GGUF_U32, layers);
    for (uint32_t i = 0; i < layers; i++)
        ggbuf_u32(m->b, i >= c->num_hidden_layers || c->layer[i].mix == MODEL_MIX_DSA);
    number(m, "attention.q_lora_rank", c->q_lora_rank);
    number(m, "attention.kv_lora_rank", c->kv_lora_rank);
    number(m, "attention.key_length", c->kv_lora_rank);
    number(m, "attention.value_length", c->kv_lora_rank);
    number(m, "attention.key_length_mla", c->qk_nope_head_dim + c->qk_rope_head_dim);
    number(m, "attention.value_length_mla", c->v_head_dim);
    real(m, "attention.layer_norm_rms_epsilon", c->rms_norm_eps);
    real(m, "attention.layer_norm_epsilon", 1e-6);
    number(m, "rope.dimension_count", c->qk_rope_head_dim);
    number(m, "attention.indexer.head_count", c->index_n_heads);
    number(m, "attention.indexer.key_length", c->index_head_dim);
    number(m, "attention.indexer.top_k", c->index_topk);
    number(m, "attention.indexer.kpool", c->index_kpool);
    number(m, "kda.head_dim", c->linear_head_dim);
    real(m, "kda.gate_lower_bound", c->gate_lower_bound);
    number(m, "ssm.conv_kernel", c->linear_conv_kernel);
    number(m, "hyper_connection.count", c->hc_mult);
    number(m, "hyper_connection.sinkhorn_iterations", c->hc_sinkhorn_iters);
    real(m, "hyper_connection.epsilon", c->hc_eps);
    number(m, "expert_count", c->n_routed_experts);
    number(m, "expert_used_count", c->num_experts_per_tok);
    number(m, "expert_feed_forward_length", c->moe_intermediate_size);
    number(m, "expert_shared_count", c->n_shared_experts);
    number(m, "expert_shared_feed_forward_length", c->moe_intermediate_size * c->n_shared_experts);
    real(m, "expert_weights_scale", c->routed_scaling_factor);
    arch_key(m, "expert_weights_norm", GGUF_BOOL);
    ggbuf_put(m->b, "\1", 1);
    number(m, "expert_gating_func", 2);
    for (int i = 0; i < 2; i++) {
        array(m, i ? "glm5next.swiglu_clamp_shexp" : "glm5next.swiglu_clamp_exp", GGUF_F32, layers);
        for (uint32_t k = 0; k < layers; k++)
            ggbuf_u32(m->b, bits);
    }
}

/* ---- tokenizer ---- */

static void token_id(struct meta *m, const char *name, uint32_t id) {
    key(m, name, GGUF_U32);
    ggbuf_u32(m->b, id);
}

static int tokens(struct meta *m, const json_t *doc, const struct model_config *c, struct xerr *e) {
    uint32_t n = c->vocab_size;
    const char **word = calloc(n + 1u, sizeof *word);
    uint8_t *type = calloc(n + 1u, 1);
    const json_t *v, *added = json_object_get(doc, "added_tokens");
    const char *name;
    size_t at;
    int r = word && type ? 0 : xerr_set(e, -ENOMEM, "tokenizer.json: no memory");

    json_object_foreach((json_t *)json_object_get(json_object_get(doc, "model"), "vocab"), name, v) {
        json_int_t id = json_integer_value(v);

        if (r >= 0 && (id < 0 || id >= n))
            r = xerr_set(e, -EINVAL, "tokenizer.json: found id %lld, expected below %u", (long long)id, n);
        if (r >= 0) {
            word[id] = name;
            type[id] = NORMAL;
        }
    }
    json_array_foreach((json_t *)added, at, v) {
        json_int_t id = json_integer_value(json_object_get(v, "id"));

        if (r >= 0 && (id < 0 || id >= n || !json_is_string(json_object_get(v, "content"))))
            r = xerr_set(e, -EINVAL,
                         "tokenizer.json: added_tokens: found id %lld, expected below %u and a content",
                         (long long)id, n);
        if (r < 0)
            break;
        word[id] = json_string_value(json_object_get(v, "content"));
        type[id] = json_is_true(json_object_get(v, "special")) ? CONTROL : USER_DEFINED;
        if (strcmp(word[id], "[gMASK]") == 0)
            token_id(m, "tokenizer.ggml.bos_token_id", (uint32_t)id);
    }
    if (r >= 0) {
        array(m, "tokenizer.ggml.tokens", GGUF_STRING, n);
        for (uint32_t i = 0; i < n; i++) {
            char pad[24];

            snprintf(pad, sizeof pad, "[PAD%u]", i);
            ggbuf_string(m->b, word[i] ? word[i] : pad, strlen(word[i] ? word[i] : pad));
        }
        array(m, "tokenizer.ggml.token_type", GGUF_I32, n);
        for (uint32_t i = 0; i < n; i++)
            ggbuf_u32(m->b, word[i] ? type[i] : UNUSED);
    }
    free(word);
    free(type);
    return r;
}

/* "left right", or a pair of strings. */
static int merges(struct meta *m, const json_t *doc, struct xerr *e) {
    const json_t *list = json_object_get(json_object_get(doc, "model"), "merges"), *v;
    size_t i;

    array(m, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(list));
    json_array_foreach((json_t *)list, i, v) {
        const char *a = json_string_value(json_array_get(v, 0)), *b = json_string_value(json_array_get(v, 1));

        if (json_is_string(v)) {
            ggbuf_string(m->b, json_string_value(v), json_string_length(v));
        } else if (a && b) {
            ggbuf_u64(m->b, strlen(a) + 1 + strlen(b));
            ggbuf_put(m->b, a, strlen(a));
            ggbuf_put(m->b, " ", 1);
            ggbuf_put(m->b, b, strlen(b));
        } else {
            return xerr_set(e, -EINVAL, "tokenizer.json: merges: entry %zu is neither a string nor a pair",
                            i);
        }
    }
    return 0;
}

/* A model may have none; one that is there and cannot be read is missed by whoever loads the file. */
static int chat_template(struct meta *m, const char *dir, struct xerr *e) {
    char path[4200], *bytes;
    uint64_t n = 0;

    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return 0;
    bytes = eval_read_file(path, &n);
    if (!bytes)
        return xerr_set(e, -EIO, "%s: cannot be read", path);
    text(m, "tokenizer.chat_template", bytes, n);
    free(bytes);
    return 0;
}

int gguf_metadata(struct ggbuf *b, const char *dir, const struct model_config *c, uint64_t *ret_n,
                  struct xerr *e) {
    static const char *const stops[] = { "eos", "eot", "eom" };
    struct meta m = { .b = b };
    json_error_t je;
    char path[4200], name[64], *bytes;
    uint64_t n = 0;
    json_t *doc;
    int r;

    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    bytes = eval_read_file(path, &n);
    if (!bytes)
        return xerr_set(e, -EIO, "%s: cannot be read", path);
    doc = json_loadb(bytes, (size_t)n, JSON_ALLOW_NUL, &je);
    free(bytes);
    if (!doc)
        return xerr_set(e, -EBADMSG, "%s: line %d: expected JSON, found: %s", path, je.line, je.text);
    model_keys(&m, c);
    text(&m, "tokenizer.ggml.model", "gpt2", 4);
    text(&m, "tokenizer.ggml.pre", "glm4", 4);
    r = tokens(&m, doc, c, e);
    if (r >= 0)
        r = merges(&m, doc, e);
    for (uint32_t i = 0; i < c->n_eos && i < 3; i++) {
        snprintf(name, sizeof name, "tokenizer.ggml.%s_token_id", stops[i]);
        token_id(&m, name, c->eos_token_id[i]);
    }
    if (r >= 0)
        r = chat_template(&m, dir, e);
    json_decref(doc);
    *ret_n = m.n;
    return r;
}
