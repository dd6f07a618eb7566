/* SPDX-License-Identifier: MIT */
/* GGUF metadata -> config.json. Values that a GGUF file has no key for, because the architecture's name fixes
 * them, are written as that architecture has them; layers and heads that only tensors tell are counted there.
 * Start-up only; never logs. */
#include "ggufconfig.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "modeljson.h"

struct meta {
    const struct model_index *x;
    const struct gguf *g;
    char arch[16];
    char shown[96]; /* the first file */
    json_t *text, *linear;
    uint64_t layers, draft; /* of the trunk, and MTP */
    bool no_memory;
    struct xerr *e;
};

/* Take v, whatever comes. */
static void keep(struct meta *m, json_t *object, const char *key, json_t *v) {
    m->no_memory |= json_object_set_new(object, key, v) < 0;
}

static void append(struct meta *m, json_t *list, json_t *v) {
    m->no_memory |= json_array_append_new(list, v) < 0;
}

static void keep_same(struct meta *m, const char *key, json_t *v) {
    m->no_memory |= json_object_set(m->text, key, v) < 0;
}

enum kind { M_UINT, M_REAL, M_BOOL };

/* Keys that stand for one value each; %: behind the architecture's name. */
static const struct {
    const char *key, *to;
    enum kind kind;
    bool linear;
} KEYS[] = {
    {"embedding_length", "hidden_size", M_UINT, false},
    {"context_length", "max_position_embeddings", M_UINT, false},
    {"nextn_predict_layers", "num_nextn_predict_layers", M_UINT, false},
    {"feed_forward_length", "intermediate_size", M_UINT, false},
    {"expert_feed_forward_length", "moe_intermediate_size", M_UINT, false},
    {"leading_dense_block_count", "first_k_dense_replace", M_UINT, false},
    {"expert_count", "n_routed_experts", M_UINT, false},
    {"expert_used_count", "num_experts_per_tok", M_UINT, false},
    {"expert_shared_count", "n_shared_experts", M_UINT, false},
    {"expert_weights_scale", "routed_scaling_factor", M_REAL, false},
    {"expert_weights_norm", "norm_topk_prob", M_BOOL, false},
    {"attention.head_count", "num_attention_heads", M_UINT, false},
    {"attention.q_lora_rank", "q_lora_rank", M_UINT, false},
    {"attention.kv_lora_rank", "kv_lora_rank", M_UINT, false},
    {"attention.key_length_mla", "qk_head_dim", M_UINT, false},
    {"attention.value_length_mla", "v_head_dim", M_UINT, false},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", M_REAL, false},
    {"attention.indexer.head_count", "index_n_heads", M_UINT, false},
    {"attention.indexer.key_length", "index_head_dim", M_UINT, false},
    {"attention.indexer.top_k", "index_topk", M_UINT, false},
    {"hyper_connection.count", "hc_mult", M_UINT, false},
    {"hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters", M_UINT, false},
    {"hyper_connection.epsilon", "hc_eps", M_REAL, false},
    {"kda.head_dim", "head_dim", M_UINT, true},
    {"kda.gate_lower_bound", "gate_lower_bound", M_REAL, true},
    {"ssm.conv_kernel", "short_conv_kernel_size", M_UINT, true},
};

static const struct gguf_value *find(const struct meta *m, const char *key) {
    char name[96];

    snprintf(name, sizeof name, "%s.%s", m->arch, key);
    return gguf_find(m->g, name);
}

static int wrong(const struct meta *m, const char *key, const char *found, const char *expected) {
    return xerr_set(m->e, -EINVAL, "%s: %s.%s: found %s, expected %s", m->shown, m->arch, key, found,
                    expected);
}

static int wrong_number(const struct meta *m, const char *key, double found, double expected) {
    char a[40], b[40];

    snprintf(a, sizeof a, "%.9g", found);
    snprintf(b, sizeof b, "%.9g", expected);
    return wrong(m, key, a, b);
}

static json_t *value_of(const struct gguf_value *v, enum kind kind) {
    uint64_t u;
    double f;
    bool b;

    if (!v || v->is_array)
        return NULL;
    if (kind == M_UINT)
        return gguf_uint(v, 0, &u) && u <= INT32_MAX ? json_integer((json_int_t)u) : NULL;
    if (kind == M_REAL)
        return gguf_real(v, 0, &f) && isfinite(f) ? json_real(f) : NULL;
    return gguf_bool(v, &b) ? json_boolean(b) : NULL;
}

static int read_keys(struct meta *m) {
    static const char *const WHAT[] = {"a whole number below 2^31", "a finite number", "true or false"};

    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const struct gguf_value *v = find(m, KEYS[i].key);
        json_t *j = value_of(v, KEYS[i].kind);

        if (!j)
            return wrong(m, KEYS[i].key, v ? "another kind of value" : "nothing", WHAT[KEYS[i].kind]);
        keep(m, KEYS[i].linear ? m->linear : m->text, KEYS[i].to, j);
    }
    return 0;
}

static double number(const struct meta *m, const char *to) {
    return json_number_value(json_object_get(m->text, to));
}

/* Keys that may be there and then must say what the others imply. */
static int check_implied(const struct meta *m) {
    const struct {
        const char *key;
        double expected;
    } implied[] = {
        {"rope.dimension_count", 0},
        {"attention.key_length", number(m, "kv_lora_rank")},
        {"attention.value_length", number(m, "kv_lora_rank")},
        {"attention.layer_norm_epsilon", 1e-6},
        {"expert_shared_feed_forward_length", number(m, "moe_intermediate_size")},
        {"expert_gating_func", 2},
        {"expert_group_count", 1},
        {"expert_group_used_count", 1},
    };
    double v;

    for (size_t i = 0; i < sizeof implied / sizeof *implied; i++) {
        const struct gguf_value *g = find(m, implied[i].key);

        if (!g)
            continue;
        if (g->is_array || !gguf_real(g, 0, &v) ||
            fabs(v - implied[i].expected) > 1e-6 * fabs(implied[i].expected))
            return wrong_number(m, implied[i].key, gguf_real(g, 0, &v) ? v : NAN, implied[i].expected);
    }
    return 0;
}

/* One number for all layers. */
static int read_clamp(struct meta *m) {
    static const char *const CLAMP[] = {"swiglu_clamp_exp", "swiglu_clamp_shexp"};
    double first = NAN, v;

    for (int c = 0; c < 2; c++) {
        const struct gguf_value *g = find(m, CLAMP[c]);

        if (!g || !gguf_real(g, 0, &v))
            return wrong(m, CLAMP[c], g ? "another kind of value" : "nothing", "the clamp of each layer");
        first = isnan(first) ? v : first;
        for (uint64_t i = 0; i < g->n; i++)
            if (!gguf_real(g, i, &v) || v != first)
                return wrong_number(m, CLAMP[c], v, first);
    }
    keep(m, m->text, "swiglu_limit", json_real(first));
    return 0;
}

static const struct model_entry *tensor(const struct meta *m, uint64_t layer, const char *name) {
    char full[96];

    snprintf(full, sizeof full, "blk.%llu.%s", (unsigned long long)layer, name);
    return model_index_find(m->x, full);
}

static void append_layer(struct meta *m, json_t *list, uint64_t i) {
    append(m, list, json_integer((json_int_t)i));
}

/* head_count_kv: 0 a KDA layer, 1 one with attention. Whether such a layer has an indexer of its own, its
 * tensors tell. */
static int read_layers(struct meta *m) {
    const struct gguf_value *kv = find(m, "attention.head_count_kv"), *blocks = find(m, "block_count");
    json_t *mix = json_array(), *mlp = json_array(), *index = json_array(), *kda = json_array(),
           *full = json_array();
    uint64_t n, v, dense = (uint64_t)number(m, "first_k_dense_replace");

    keep(m, m->text, "layer_types", mix);
    keep(m, m->text, "mlp_layer_types", mlp);
    keep(m, m->text, "indexer_types", index);
    keep(m, m->linear, "kda_layers", kda);
    keep(m, m->linear, "full_attn_layers", full);
    if (m->no_memory) /* what could not be kept is gone */
        return -ENOMEM;
    m->draft = (uint64_t)number(m, "num_nextn_predict_layers");
    if (!gguf_uint(blocks, 0, &n) || n <= m->draft || n > KERN_MAX_LAYERS)
        return wrong(m, "block_count", blocks ? "another number" : "nothing",
                     "the layers, MTP included, at most 128");
    m->layers = n - m->draft;
    if (!kv || !kv->is_array || kv->n != n)
        return wrong(m, "attention.head_count_kv", kv ? "another length" : "nothing",
                     "0 or 1 for each of the layers");
    for (uint64_t i = 0; i < n; i++) {
        bool dsa;

        if (!gguf_uint(kv, i, &v) || v > 1 || (i >= m->layers && v != 1))
            return wrong(m, "attention.head_count_kv", "another number", "0 (KDA) or 1 (DSA, and MTP)");
        if (i >= m->layers)
            continue;
        dsa = v == 1;
        append(m, mix, json_string(dsa ? "deepseek_sparse_attention" : "linear_attention"));
        append(m, mlp, json_string(i < dense ? "dense" : "sparse"));
        append(m, index, json_string(!dsa || tensor(m, i, "indexer.attn_k.weight") ? "full" : "shared"));
        append_layer(m, dsa ? full : kda, i);
    }
    keep(m, m->text, "num_hidden_layers", json_integer((json_int_t)m->layers));
    return 0;
}

/* What has no key: vocabulary and heads of the recurrent layers, by the shapes of tensors. */
static int read_shapes(struct meta *m) {
    const struct model_entry *embed = model_index_find(m->x, "token_embd.weight"), *a = NULL;
    const struct gguf_value *vocab = find(m, "vocab_size");
    uint64_t v;

    if (!embed || embed->t->n_dims != 2 || embed->t->shape[0] > INT32_MAX)
        return xerr_set(m->e, -ENODATA,
                        "%s: tensor token_embd.weight: found nothing or no matrix, expected the embedding",
                        m->shown);
    if (vocab && (!gguf_uint(vocab, 0, &v) || v != embed->t->shape[0]))
        return wrong_number(m, "vocab_size", (double)v, (double)embed->t->shape[0]);
    keep(m, m->text, "vocab_size", json_integer((json_int_t)embed->t->shape[0]));
    for (uint64_t i = 0; i < m->layers && !a; i++) {
        a = tensor(m, i, "ssm_a");
        a = a ? a : tensor(m, i, "ssm_a.weight");
    }
    keep(
        m, m->linear, "num_heads",
        json_integer(a && a->t->n_dims == 1 && a->t->shape[0] <= INT32_MAX ? (json_int_t)a->t->shape[0] : 1));
    return 0;
}

static int read_pools(struct meta *m) {
    const struct gguf_value *v = find(m, "attention.indexer.kpool");
    uint64_t n = 4; /* of files older than the key */

    v = v ? v : find(m, "attention.indexer.block_size");
    if (v && (v->is_array || !gguf_uint(v, 0, &n) || n > INT32_MAX))
        return wrong(m, "attention.indexer.kpool", "another kind of value", "the tokens of a pool");
    keep(m, m->text, "index_kpool", json_integer((json_int_t)n));
    return 0;
}

static int read_ids(struct meta *m) {
    static const char *const STOP[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *eos = json_array(), *pad = NULL;
    uint64_t ids[3], n = 0, id;

    keep(m, m->text, "eos_token_id", eos);
    if (m->no_memory)
        return -ENOMEM;
    for (int i = 0; i < 3; i++) {
        const struct gguf_value *v = gguf_find(m->g, STOP[i]);
        bool twice = false;

        if (!v)
            continue;
        if (!gguf_uint(v, 0, &id) || id > INT32_MAX)
            return xerr_set(m->e, -EINVAL, "%s: %s: found no token id, expected one", m->shown, STOP[i]);
        for (uint64_t k = 0; k < n; k++)
            twice |= ids[k] == id;
        if (!twice)
            append(m, eos, json_integer((json_int_t)(ids[n++] = id)));
    }
    if (n == 0)
        return xerr_set(m->e, -EINVAL, "%s: %s: found nothing, expected the id that ends an answer", m->shown,
                        STOP[0]);
    if (gguf_uint(gguf_find(m->g, "tokenizer.ggml.padding_token_id"), 0, &id) && id <= INT32_MAX)
        pad = json_integer((json_int_t)id);
    keep(m, m->text, "pad_token_id", pad ? pad : json_integer((json_int_t)ids[0]));
    return 0;
}

/* What the architecture's name says. */
static void fixed(struct meta *m) {
    static const char *const TRUE[] = {"mla_use_nope", "index_kpool_compress",
                                       "index_kpool_always_select_tail", "index_share_for_mtp_iteration",
                                       "mhc"};
    static const char *const FALSE[] = {"attention_bias", "tie_word_embeddings"};
    static const char *const ZERO[] = {"qk_rope_head_dim", "head_dim"};
    static const char *const ONE[] = {"n_group", "topk_group"};
    static const char *const WORD[][2] = {{"model_type", "glm5_next_text"}, {"scoring_func", "sigmoid"},
                                          {"topk_method", "noaux_tc"},      {"moe_router_dtype", "float32"},
                                          {"hidden_act", "silu"},           {"dtype", "bfloat16"}};

    for (size_t i = 0; i < sizeof TRUE / sizeof *TRUE; i++)
        keep(m, m->text, TRUE[i], json_true());
    for (size_t i = 0; i < 2; i++) {
        keep(m, m->text, FALSE[i], json_false());
        keep(m, m->text, ZERO[i], json_integer(0));
        keep(m, m->text, ONE[i], json_integer(1));
    }
    for (size_t i = 0; i < sizeof WORD / sizeof *WORD; i++)
        keep(m, m->text, WORD[i][0], json_string(WORD[i][1]));
    keep_same(m, "num_key_value_heads", json_object_get(m->text, "num_attention_heads"));
    keep_same(m, "qk_nope_head_dim", json_object_get(m->text, "qk_head_dim"));
}

static int read_arch(struct meta *m) {
    const char *s;
    struct show a;
    size_t n;

    if (!gguf_string(gguf_find(m->g, "general.architecture"), &s, &n))
        return xerr_set(m->e, -EINVAL, "%s: general.architecture: found nothing, expected \"glm5next\"",
                        m->shown);
    if (!(n == 8 && memcmp(s, "glm5next", n) == 0) && !(n == 9 && memcmp(s, "glm5-next", n) == 0))
        return xerr_set(m->e, -ENOTSUP, "%s: general.architecture: found \"%s\", expected \"glm5next\"",
                        m->shown, show_name(&a, s, n));
    snprintf(m->arch, sizeof m->arch, "%.*s", (int)n, s);
    return 0;
}

static int translate(struct meta *m) {
    int r = read_arch(m);

    if (r == 0)
        r = read_keys(m);
    if (r == 0)
        r = check_implied(m);
    if (r == 0)
        r = read_clamp(m);
    if (r == 0)
        r = read_layers(m);
    if (r == 0)
        r = read_shapes(m);
    if (r == 0)
        r = read_pools(m);
    if (r == 0)
        r = read_ids(m);
    if (r == 0)
        fixed(m);
    return m->no_memory ? -ENOMEM : r;
}

int model_gguf_config(const char *dir, json_t **ret, struct model_index **ret_index, struct xerr *e) {
    struct model_index *x = NULL;
    struct meta m = {.e = e};
    struct show s;
    json_t *root;
    int r = model_index_open_gguf(&x, dir, e);

    if (r <= 0)
        return r;
    m.x = x;
    m.g = model_index_gguf(x);
    snprintf(m.shown, sizeof m.shown, "%s", show_path(&s, st_path(model_index_file(x, 0))));
    m.text = json_object();
    m.linear = json_object();
    root = json_pack("{s:[s],s:s,s:b,s:o}", "architectures", "Glm5NextForConditionalGeneration", "model_type",
                     "glm5_next", "tie_word_embeddings", 0, "text_config", m.text);
    if (!root || !m.linear) {
        json_decref(m.linear);
        r = -ENOMEM;
    } else {
        r = json_object_set_new(m.text, "linear_attn_config", m.linear) < 0 ? -ENOMEM : translate(&m);
    }
    if (r == -ENOMEM)
        xerr_set(e, -ENOMEM, "%s: no memory for its configuration", m.shown);
    if (r < 0) {
        json_decref(root);
        model_index_close(x);
        return r;
    }
    *ret = root;
    *ret_index = x;
    return 1;
}

static bool same_number(const json_t *a, const json_t *b) {
    double x = json_number_value(a), y = json_number_value(b);

    return json_is_number(a) && json_is_number(b) && fabs(x - y) <= 1e-6 * fmax(fabs(x), fabs(y));
}

static int same_object(const json_t *a, const json_t *b, const char *prefix, const char *shown,
                       struct xerr *e) {
    struct show f, g, k;
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)a, key, v) {
        const json_t *w = json_object_get(b, key);

        if (!w || json_is_null(w) || json_is_object(v) || json_equal(v, w) || same_number(v, w))
            continue;
        return xerr_set(e, -EINVAL,
                        "%s: %s%s: found %s, expected %s, which the metadata of the GGUF file says", shown,
                        prefix, show_str(&k, key), modeljson_show(&f, w), modeljson_show(&g, v));
    }
    return 0;
}

int model_gguf_same(const json_t *metadata, const json_t *config, const char *shown, struct xerr *e) {
    const json_t *a = json_object_get(metadata, "text_config"), *b = json_object_get(config, "text_config");
    int r = same_object(a, b, "text_config.", shown, e);

    return r < 0 ? r
                 : same_object(json_object_get(a, "linear_attn_config"),
                               json_object_get(b, "linear_attn_config"), "text_config.linear_attn_config.",
                               shown, e);
}

void model_gguf_tensors(const struct model_index *x, struct model_config *cfg) {
    uint32_t layers = cfg->num_hidden_layers + cfg->num_nextn_predict_layers;
    char name[64];

    cfg->from_gguf = true;
    for (uint32_t i = 0; i < layers && i < KERN_MAX_LAYERS; i++) {
        snprintf(name, sizeof name, "blk.%u.attn_k_b.weight", i);
        cfg->layer[i].kvb_split = model_index_find(x, name) != NULL;
    }
}
