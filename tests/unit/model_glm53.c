/* SPDX-License-Identifier: MIT */
/* config.json and the tensors of GLM-5.3 (glm_moe_dsa): what the release says, that nothing is assumed, and that its
 * FP8 matrices are taken as they were published. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "directory.h"
#include "leakcheck.h"
#include "quantconf.h"
#include "traps.h"
#include "twin53.h"

static struct ckpt dir, base; /* base: one twin for all tests that only read config.json */
static struct xerr err;
static struct model_config cfg;

static void write_twin(const struct ckpt *to, const char *stored) {
    const struct o53_dims d = twin53_dims();
    struct o53_model m;
    twin53_make(&m, &d, 5310, stored);
    twin53_write(&m, to, stored);
    twin53_done(&m);
}

static void once(void) {
    ckpt_empty(&base);
    write_twin(&base, "bf16");
}

static void at_the_end(void) {
    ckpt_remove(&base);
}

static void setup(void) {
    size_t n;
    char *text;

    leakcheck_setup();
    memset(&err, 0, sizeof err);
    ckpt_empty(&dir);
    text = ckpt_read(&base, "config.json", &n);
    ckpt_write(&dir, "config.json", text, n);
    free(text);
}

static void setup_tensors(void) {
    leakcheck_setup();
    memset(&err, 0, sizeof err);
    ckpt_empty(&dir);
    write_twin(&dir, "bf16");
}

static void teardown(void) {
    ckpt_remove(&dir);
    leakcheck_teardown();
}

static int read_config(void) {
    memset(&err, 0, sizeof err);
    return model_config_read(dir.dir, &cfg, &err);
}

static void edit(const char *path, const char *json) {
    json_t *root = ckpt_json(&dir, "config.json");
    json_t *v = json ? json_loads(json, JSON_DECODE_ANY, NULL) : NULL;
    ck_assert_msg(!json || v, "%s", json ? json : "");
    ckpt_set(root, path, v);
    ckpt_write_json(&dir, "config.json", root);
    json_decref(root);
}

/* ---- configuration ---- */

static int build(struct model_index **x, struct model_directory *d) {
    ck_assert_msg(read_config() == 0, "%s", err.msg);
    ck_assert_msg(model_index_open(x, dir.dir, NULL, &err) == 0, "%s", err.msg);
    return model_directory_build(d, &cfg, *x, &err);
}

/* The release's own numbers, on the frame of the twin's file; its layers by frequency alone. */
static void release_config(void) {
    static const struct {
        const char *key;
        int value;
    } VALUES[] = {
        {"vocab_size", 154880},        {"hidden_size", 6144},         {"num_hidden_layers", 78},
        {"num_attention_heads", 64},   {"num_key_value_heads", 64},   {"q_lora_rank", 2048},
        {"kv_lora_rank", 512},         {"qk_nope_head_dim", 192},     {"qk_rope_head_dim", 64},
        {"qk_head_dim", 256},          {"v_head_dim", 256},           {"head_dim", 192},
        {"index_n_heads", 32},         {"index_head_dim", 128},       {"index_topk", 2048},
        {"index_topk_freq", 4},        {"index_skip_topk_offset", 3}, {"first_k_dense_replace", 3},
        {"intermediate_size", 12288},  {"moe_intermediate_size", 2048}, {"n_routed_experts", 256},
        {"num_experts_per_tok", 8},    {"pad_token_id", 154820},
    };
    json_t *root = ckpt_json(&dir, "config.json");

    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++)
        json_object_set_new(root, VALUES[i].key, json_integer(VALUES[i].value));
    json_object_del(root, "indexer_types");
    json_object_del(root, "mlp_layer_types");
    json_object_set_new(root, "eos_token_id", json_pack("[i,i,i]", 154820, 154827, 154829));
    ckpt_write_json(&dir, "config.json", root);
    json_decref(root);
}

START_TEST(release_values) {
    struct kern_model_desc d;
    uint32_t full = 0;

    release_config();
    ck_assert_msg(read_config() == 0, "%s", err.msg);
    ck_assert_int_eq(cfg.family, MODEL_GLM53);
    ck_assert_uint_eq(cfg.n_eos, 3);
    ck_assert_uint_eq(cfg.eos_token_id[2], 154829);
    ck_assert_uint_eq(cfg.max_position_embeddings, 1048576);
    ck_assert(!cfg.has_vision && cfg.image_token_id == MODEL_NO_ID);
    ck_assert_int_eq(model_config_describe(&cfg, 154856, true, &d, &err), 0);
    ck_assert_uint_eq(d.n_layers, 78);
    ck_assert_uint_eq(d.n_draft, 1);
    ck_assert_uint_eq(d.nope_dim, 192);
    ck_assert_uint_eq(d.rope_dim, 64);
    ck_assert_float_eq(d.rope_theta, 8e6f);
    ck_assert_uint_eq(d.index_kpool, 1);
    ck_assert_uint_eq(d.hc_mult, 1);
    ck_assert_float_eq(d.swiglu_limit, 0);
    ck_assert_float_eq(d.routed_scale, 2.5f);
    for (uint32_t i = 0; i < 79; i++) {
        bool own = i < 3 || i % 4 == 2 || i == 78;
        full += d.layer[i].index == KERN_INDEX_FULL;
        ck_assert_uint_eq(d.layer[i].mix, KERN_MIX_MLA);
        ck_assert_uint_eq(d.layer[i].index, own ? KERN_INDEX_FULL : KERN_INDEX_SHARED);
        ck_assert_uint_eq(d.layer[i].resid, KERN_RESID_PLAIN);
        ck_assert_uint_eq(d.layer[i].mlp, i < 3 ? KERN_MLP_DENSE : KERN_MLP_MOE);
    }
    ck_assert_uint_eq(full, 22);
}
END_TEST

/* ---- the release's tensors, by name, shape and type; their bytes are a hole in a file ---- */

struct header {
    FILE *f;
    uint64_t at;
    uint32_t n, n_fp8;
};

static void entry(struct header *h, const char *name, const char *dtype, uint64_t size, uint64_t rows, uint64_t cols) {
    uint64_t bytes = rows * (cols ? cols : 1) * size;
    fprintf(h->f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu", h->n++ ? "," : "", name, dtype,
            (unsigned long long)rows);
    if (cols)
        fprintf(h->f, ",%llu", (unsigned long long)cols);
    fprintf(h->f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)h->at, (unsigned long long)(h->at + bytes));
    h->at += bytes;
}

/* how: b BF16, f FP8 with its scales, w F32; cols 0: a vector */
static void put(struct header *h, uint32_t layer, const char *name, char how, uint64_t rows, uint64_t cols) {
    char full[128], scale[160];
    snprintf(full, sizeof full, "model.layers.%u.%s", layer, name);
    entry(h, full, how == 'f' ? "F8_E4M3" : how == 'w' ? "F32" : "BF16", how == 'f' ? 1 : how == 'w' ? 4 : 2, rows,
          cols);
    if (how != 'f')
        return;
    h->n_fp8++;
    snprintf(scale, sizeof scale, "%s_scale_inv", full);
    entry(h, scale, "F32", 4, (rows + 127) / 128, (cols + 127) / 128);
}

static void put_mlp(struct header *h, uint32_t layer, const char *module, uint64_t width) {
    static const char *const names[] = {"gate", "up", "down"};
    char name[96];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s.%s_proj.weight", module, names[i]);
        put(h, layer, name, 'f', i < 2 ? width : 6144, i < 2 ? 6144 : width);
    }
}

static void put_layer(struct header *h, uint32_t l) {
    char module[64];
    put(h, l, "input_layernorm.weight", 'b', 6144, 0);
    put(h, l, "post_attention_layernorm.weight", 'b', 6144, 0);
    put(h, l, "self_attn.q_a_proj.weight", 'f', 2048, 6144);
    put(h, l, "self_attn.q_a_layernorm.weight", 'b', 2048, 0);
    put(h, l, "self_attn.q_b_proj.weight", 'f', 16384, 2048);
    put(h, l, "self_attn.kv_a_proj_with_mqa.weight", 'f', 576, 6144);
    put(h, l, "self_attn.kv_a_layernorm.weight", 'b', 512, 0);
    put(h, l, "self_attn.kv_b_proj.weight", 'f', 28672, 512);
    put(h, l, "self_attn.o_proj.weight", 'f', 6144, 16384);
    if (l < 3 || l % 4 == 2 || l == 78) {
        put(h, l, "self_attn.indexer.wq_b.weight", 'f', 4096, 2048);
        put(h, l, "self_attn.indexer.wk.weight", 'f', 128, 6144);
        put(h, l, "self_attn.indexer.k_norm.weight", 'b', 128, 0);
        put(h, l, "self_attn.indexer.k_norm.bias", 'b', 128, 0);
        put(h, l, "self_attn.indexer.weights_proj.weight", 'b', 32, 6144);
    }
    if (l < 3)
        put_mlp(h, l, "mlp", 12288);
    for (uint32_t x = 0; l >= 3 && x < 256; x++) {
        snprintf(module, sizeof module, "mlp.experts.%u", x);
        put_mlp(h, l, module, 2048);
    }
    if (l >= 3) {
        put_mlp(h, l, "mlp.shared_experts", 2048);
        put(h, l, "mlp.gate.weight", 'b', 256, 6144);
        put(h, l, "mlp.gate.e_score_correction_bias", 'w', 256, 0);
    }
    if (l == 78) {
        put(h, l, "enorm.weight", 'b', 6144, 0);
        put(h, l, "hnorm.weight", 'b', 6144, 0);
        put(h, l, "eh_proj.weight", 'b', 6144, 12288);
        put(h, l, "shared_head.norm.weight", 'b', 6144, 0);
    }
}

/* 59,585 tensors, 59,044 of them in FP8, 755.6 GB: all have a place, and nothing needs a permission. */
START_TEST(release_tensors) {
    static const struct model_allow none = {false, ""};
    struct model_index *x = NULL;
    struct model_directory d = {0};
    struct header h = {0};
    char *text = NULL;
    size_t n = 0;
    release_config();
    h.f = open_memstream(&text, &n);
    ck_assert_ptr_nonnull(h.f);
    fputc('{', h.f);
    entry(&h, "model.embed_tokens.weight", "BF16", 2, 154880, 6144);
    entry(&h, "model.norm.weight", "BF16", 2, 6144, 0);
    entry(&h, "lm_head.weight", "BF16", 2, 154880, 6144);
    for (uint32_t l = 0; l < 79; l++)
        put_layer(&h, l);
    fputc('}', h.f);
    while (ftell(h.f) % 8)
        fputc(' ', h.f);
    fclose(h.f);
    ck_assert_uint_eq(h.n - h.n_fp8, 59585);
    ck_assert_uint_eq(h.n_fp8, 59044);
    const uint64_t head = n;
    const char *path = ckpt_path(&dir, "model.safetensors");
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert(fwrite(&head, 8, 1, f) == 1 && fwrite(text, 1, n, f) == n && fclose(f) == 0);
    ck_assert_int_eq(truncate(path, (off_t)(8 + n + h.at)), 0);
    free(text);
    ck_assert_msg(build(&x, &d) == 0, "%s", err.msg);
    ck_assert(d.has_draft);
    ck_assert_uint_eq(d.n_tensors, 59585);
    ck_assert_uint_eq(d.bytes, 755617140416ull);
    ck_assert_msg(model_quant_check(dir.dir, &d, &err) == 0, "%s", err.msg);
    ck_assert_msg(model_allowed(dir.dir, &cfg, &d, 79, &none, &err) == 0, "%s", err.msg);
    model_directory_done(&d);
    model_index_close(x);
}
END_TEST

/* Keys a file may lack: they say again what others say, or concern nothing here. */
static bool may_be_absent(const char *key) {
    static const char *const keys[] = {
        "attention_dropout", "initializer_range", "transformers_version", "use_cache",          "ep_size",
        "pretraining_tp",    "moe_layer_freq",    "moe_router_dtype",     "qk_head_dim",        "head_dim",
        "mlp_layer_types",   "indexer_types",     "index_topk_freq",      "index_topk_pattern",
        "index_skip_topk_offset"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

START_TEST(every_key_is_read) {
    json_t *root = ckpt_json(&dir, "config.json"), *copy, *v;
    const char *key;
    int n = 0;
    json_object_foreach(root, key, v) {
        if (may_be_absent(key))
            continue;
        copy = json_deep_copy(root);
        ckpt_set(copy, key, _i ? json_pack("[[]]") : NULL);
        ckpt_write_json(&dir, "config.json", copy);
        json_decref(copy);
        int r = read_config(), code = strcmp(key, "rope_parameters") || !_i ? -EINVAL : -ENOTSUP;
        if (strcmp(key, "architectures") == 0 && _i)
            code = -ENOTSUP;
        ckpt_expect(key, r, code, &err, (const char *const[]){"config.json", key, "found ", "expected ", NULL});
        n++;
    }
    ck_assert_int_gt(n, 30);
    json_decref(root);
}
END_TEST

#define FOUR     "\"full\",\"full\",\"full\",\"full\""
#define SPARSE "\"deepseek_sparse_attention\","
#define ONE_LINEAR \
    "[" SPARSE SPARSE SPARSE SPARSE SPARSE SPARSE SPARSE SPARSE SPARSE SPARSE SPARSE "\"linear_attention\"]"
#define ALL_FULL "[" FOUR "," FOUR "," FOUR "]"

static const struct {
    const char *label, *path, *json;
    int code;
    const char *has[4];
} EDITS[] = {
    {"model_type", "model_type", "\"glm5_next\"", -ENOTSUP, {"model_type", "\"glm5_next\"", "\"glm_moe_dsa\""}},
    {"layers", "num_hidden_layers", "128", -EINVAL, {"num_hidden_layers", "found 128", "from 1 to 127"}},
    {"dense layers", "first_k_dense_replace", "128", -EINVAL, {"first_k_dense_replace", "found 128", "0 to 127"}},
    {"halves", "rope_interleave", "false", -ENOTSUP, {"rope_interleave", "found false", "expected true"}},
    {"halves of keys", "indexer_rope_interleave", "false", -ENOTSUP, {"indexer_rope_interleave", "false", "true"}},
    {"yarn", "rope_parameters.rope_type", "\"yarn\"", -ENOTSUP, {"rope_parameters", "yarn", "default"}},
    {"scaling", "rope_scaling", "{\"type\":\"yarn\"}", -ENOTSUP, {"rope_scaling", "yarn", "default"}},
    {"no theta", "rope_parameters.rope_theta", NULL, -EINVAL, {"rope_theta", "nothing", "never assumed"}},
    {"theta 1", "rope_parameters.rope_theta", "1", -EINVAL, {"rope_theta", "found 1", "above 1"}},
    {"another theta", "rope_theta", "10000", -EINVAL, {"rope_theta", "found 10000", "8e+06"}},
    {"a larger theta", "rope_theta", "9000000", -EINVAL, {"rope_theta", "found 9000000", "8e+06"}},
    {"part of a head", "rope_parameters.partial_rotary_factor", "0.5", -ENOTSUP, {"partial_rotary_factor", "0.5"}},
    {"other angles", "rope_parameters.factor", "4.0", -ENOTSUP, {"rope_parameters.factor", "no such key"}},
    {"no rope", "qk_rope_head_dim", "0", -EINVAL, {"qk_rope_head_dim", "found 0", "from 2"}},
    {"wider than keys", "index_head_dim", "6", -EINVAL, {"qk_rope_head_dim", "found 8", "index_head_dim (6)"}},
    {"clamp", "swiglu_limit", "10.0", -ENOTSUP, {"swiglu_limit", "found 10", "no such key"}},
    {"pools", "index_kpool", "4", -ENOTSUP, {"index_kpool", "found 4", "no such key"}},
    {"streams", "mhc", "true", -ENOTSUP, {"mhc", "found true", "false"}},
    {"list against frequency", "indexer_types", ALL_FULL, -EINVAL, {"index_topk_freq", "layer 3 full"}},
    {"frequency", "index_topk_freq", "3", -EINVAL, {"index_topk_freq", "found 3", "layer 5 shared"}},
    {"no frequency", "index_topk_freq", "0", -EINVAL, {"index_topk_freq", "found 0", "from 1"}},
    {"frequency of no model", "index_topk_freq", "129", -EINVAL, {"index_topk_freq", "found 129", "1 to 128"}},
    {"half of it", "index_topk_freq", NULL, -EINVAL, {"index_topk_freq", "nothing", "never assumed"}},
    {"two types", "rope_parameters.type", "\"yarn\"", -ENOTSUP, {"rope_parameters", "yarn", "default"}},
    {"two types of scaling",
     "rope_scaling",
     "{\"rope_type\":\"default\",\"type\":\"linear\"}",
     -ENOTSUP,
     {"rope_scaling", "linear", "default"}},
    {"scaled all the same",
     "rope_scaling",
     "{\"type\":\"default\",\"factor\":8}",
     -ENOTSUP,
     {"rope_scaling.factor", "found 8", "no such key"}},
    {"pattern", "index_topk_pattern", "\"FFFSSSFSSSFF\"", -EINVAL, {"index_topk_pattern", "layer 11 shared"}},
    {"short pattern", "index_topk_pattern", "\"FFF\"", -EINVAL, {"index_topk_pattern", "FFF", "12 layers"}},
    {"pattern begins shared", "index_topk_pattern", "\"SFFSSSFSSSFS\"", -EINVAL, {"index_topk_pattern", "F first"}},
    {"first shares", "indexer_types.0", "\"shared\"", -EINVAL, {"indexer_types[0]", "\"full\""}},
    {"dense", "mlp_layer_types.3", "\"dense\"", -EINVAL, {"mlp_layer_types[3]", "first_k_dense_replace is 3"}},
    {"some layers sparse", "moe_layer_freq", "2", -ENOTSUP, {"moe_layer_freq", "found 2", "expected 1"}},
    {"linear layers", "layer_types", "[\"x\"]", -EINVAL, {"layer_types", "a list of 12"}},
    {"one linear layer", "layer_types", ONE_LINEAR, -ENOTSUP, {"layer_types", "linear_attention", "deepseek_sparse"}},
    {"qk sum", "qk_head_dim", "33", -EINVAL, {"qk_head_dim", "found 33", "(32)"}},
    {"unknown", "attn_output_gate", "true", -ENOTSUP, {"attn_output_gate", "no such key"}},
    {"begin token", "bos_token_id", "1", -ENOTSUP, {"bos_token_id", "found 1"}},
    {"quantised by a word", "quantization_config", "\"fp8\"", -EINVAL, {"quantization_config", "an object"}},
    {"no dtype", "torch_dtype", "5", -EINVAL, {"torch_dtype", "found 5"}},
    {"old dtype", "torch_dtype", "\"float16\"", -EINVAL, {"torch_dtype", "float16"}},
};

START_TEST(refusals) {
    const char *has[8] = {"config.json: ", "found ", "expected "};
    memcpy(has + 3, EDITS[_i].has, sizeof EDITS[_i].has);
    edit(EDITS[_i].path, EDITS[_i].json);
    ckpt_expect(EDITS[_i].label, read_config(), EDITS[_i].code, &err, has);
}
END_TEST

static const struct {
    const char *path, *json;
} FINE[] = {
    {"indexer_types", NULL},
    {"mlp_layer_types", NULL},
    {"index_topk_pattern", "\"FFFSSSFSSSFS\""},
    {"qk_head_dim", NULL},
    {"torch_dtype", "\"bfloat16\""},
    {"torch_dtype", "null"},
    {"head_dim", "8"},
    {"head_dim", NULL},
    {"moe_router_dtype", NULL},
    {"rope_theta", "8000000"},
    {"rope_parameters.partial_rotary_factor", "1.0"},
    {"rope_parameters.type", "\"default\""},
    {"rope_scaling", "{\"type\":\"default\"}"},
    {"swiglu_limit", "null"},
    {"mhc", "false"},
    {"auto_map", "{}"},
};

START_TEST(harmless) {
    edit(FINE[_i].path, FINE[_i].json);
    ck_assert_msg(read_config() == 0, "%s: %s", FINE[_i].path, err.msg);
    ck_assert_uint_eq(cfg.qk_head_dim, 32);
    ck_assert_double_eq(cfg.rope_theta, 8e6);
    for (uint32_t i = 0; i < 12; i++)
        ck_assert_int_eq(cfg.layer[i].index_shared, i > 2 && i % 4 != 2);
}
END_TEST

START_TEST(numbers_turn_in_pairs) {
    edit("qk_head_dim", NULL);
    edit("qk_rope_head_dim", "7");
    ckpt_expect("odd", read_config(), -EINVAL, &err,
                (const char *const[]){"qk_rope_head_dim", "found 7", "an even number", NULL});
}
END_TEST

/* Without a list the pattern and the frequency must still agree, and be what they should be. */
START_TEST(pattern_and_frequency) {
    edit("indexer_types", NULL);
    edit("index_topk_pattern", "\"FFFSSSFSSSFS\"");
    ck_assert_msg(read_config() == 0, "%s", err.msg);
    ck_assert(cfg.layer[3].index_shared && !cfg.layer[6].index_shared);
    edit("index_topk_freq", "7");
    ckpt_expect("disagree", read_config(), -EINVAL, &err,
                (const char *const[]){"index_topk_freq", "found 7", "as index_topk_pattern says", NULL});
    edit("index_topk_freq", "\"4\"");
    ckpt_expect("a word", read_config(), -EINVAL, &err,
                (const char *const[]){"index_topk_freq", "found \"4\"", "an integer", NULL});
    edit("index_topk_freq", NULL);
    edit("index_skip_topk_offset", NULL);
    ck_assert_msg(read_config() == 0, "%s", err.msg);
    ck_assert(cfg.layer[3].index_shared && !cfg.layer[6].index_shared);
}
END_TEST

/* A file that gives the list alone, or only a frequency of everything. */
START_TEST(one_form_is_enough) {
    edit("index_topk_freq", NULL);
    edit("index_skip_topk_offset", NULL);
    ck_assert_msg(read_config() == 0, "%s", err.msg);
    ck_assert(cfg.layer[3].index_shared && !cfg.layer[6].index_shared);
    edit("indexer_types", NULL);
    ckpt_expect("neither", read_config(), -EINVAL, &err,
                (const char *const[]){"index_topk_freq", "found nothing", "indexer_types", NULL});
    edit("index_topk_freq", "1");
    edit("index_skip_topk_offset", "1");
    ck_assert_msg(read_config() == 0, "%s", err.msg);
    for (uint32_t i = 0; i < 12; i++)
        ck_assert(!cfg.layer[i].index_shared);
}
END_TEST

/* ---- tensors ---- */

/* 13 layers' attention and norms, 5 full ones' and the draft's indexers, 3 dense, 10 of experts, 4 and 3. */
START_TEST(tensors) {
    static const struct model_allow none = {false, ""};
    struct model_index *x = NULL;
    struct model_directory d = {0};
    ckpt_remove(&dir);
    ckpt_empty(&dir);
    write_twin(&dir, _i ? "fp8" : "bf16");
    ck_assert_msg(build(&x, &d) == 0, "%s", err.msg);
    ck_assert(d.has_draft);
    ck_assert_uint_eq(d.n_tensors, 13 * 9 + 6 * 5 + 3 * 3 + 10 * (2 + 3 + 7 * 3) + 4 + 3);
    ck_assert_msg(model_quant_check(dir.dir, &d, &err) == 0, "%s", err.msg);
    ck_assert_msg(model_allowed(dir.dir, &cfg, &d, 13, &none, &err) == 0, "%s", err.msg);
    model_directory_done(&d);
    model_index_close(x);
}
END_TEST

/* A list that says a layer shares, and a file that has an indexer for it; and the other way round. */
START_TEST(tensors_of_shared_layers) {
    struct model_index *x = NULL;
    struct model_directory d = {0};
    json_t *root = ckpt_json(&dir, "config.json");
    json_object_del(root, "indexer_types");
    json_object_set_new(root, "index_skip_topk_offset", json_integer(_i ? 4 : 2));
    ckpt_write_json(&dir, "config.json", root);
    json_decref(root);
    if (_i) /* 3 is full now, 6 is shared */
        ckpt_expect("more", build(&x, &d), -ENODATA, &err,
                    (const char *const[]){"model.layers.3.self_attn.indexer.wq_b.weight", "found nothing", NULL});
    else /* 5 is full, so is 9; 2 and 6 are shared */
        ckpt_expect("less", build(&x, &d), -ENODATA, &err,
                    (const char *const[]){"model.layers.5.self_attn.indexer.wq_b.weight", "found nothing", NULL});
    model_index_close(x);
}
END_TEST

START_TEST(indexer_of_a_shared_layer) {
    struct model_index *x = NULL;
    struct model_directory d = {0};
    json_t *root = ckpt_json(&dir, "config.json");
    ckpt_set(root, "indexer_types.10", json_string("shared"));
    json_object_del(root, "index_topk_freq");
    json_object_del(root, "index_skip_topk_offset");
    ckpt_write_json(&dir, "config.json", root);
    json_decref(root);
    ckpt_expect("left over", build(&x, &d), -EINVAL, &err,
                (const char *const[]){"model.layers.10.self_attn.indexer.", "expected none", "indexer_types[10]",
                                      NULL});
    model_index_close(x);
}
END_TEST

/* ---- what may be in eight bits ---- */

static const struct {
    uint32_t part, format, block;
    enum model_family family;
    int code;
} STORED[] = {
    {KERN_MLA_KVB, KERN_FP8, 128, MODEL_GLM53, 0},
    {KERN_IDX_QB, KERN_FP8, 128, MODEL_GLM53, 0},
    {KERN_IDX_K, KERN_FP8, 128, MODEL_GLM53, 0},
    {KERN_IDX_W, KERN_FP8, 128, MODEL_GLM53, -EPERM}, /* the release has it in BF16 */
    {KERN_EMBED, KERN_FP8, 128, MODEL_GLM53, -EPERM},
    {KERN_MLA_KVB, KERN_FP8, 1, MODEL_GLM53, -EPERM},
    {KERN_MLA_KVB, KERN_MXFP8, 32, MODEL_GLM53, -EPERM},
    {KERN_IDX_K, KERN_NVFP4, 16, MODEL_GLM53, -EPERM},
    {KERN_MLA_KVB, KERN_FP8, 128, MODEL_GLM53_FLASH, -EPERM},
    {KERN_IDX_QB, KERN_FP8, 128, MODEL_GLM53_FLASH, -EPERM},
};

START_TEST(published_fp8) {
    static const struct model_allow none = {false, ""};
    struct model_tensor t = {.id.part = STORED[_i].part, .is_matrix = true, .bytes = 256 * 256};
    struct model_directory d = {.tensor = &t, .n_tensors = 1};
    t.k.rows = t.k.cols = 256;
    t.k.store.format = (uint8_t)STORED[_i].format;
    t.k.store.block_rows = (uint16_t)STORED[_i].block;
    t.k.store.block_cols = (uint16_t)STORED[_i].block;
    memset(&cfg, 0, sizeof cfg);
    cfg.family = STORED[_i].family;
    cfg.num_hidden_layers = 1;
    ck_assert_int_eq(model_allowed("x", &cfg, &d, 1, &none, &err), STORED[_i].code);
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

int main(void) {
    Suite *s = suite_create("model_glm53");
    TCase *t = tcase_create("glm53");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_unchecked_fixture(t, once, at_the_end);
    tcase_add_test(t, release_values);
    tcase_add_test(t, release_tensors);
    tcase_add_loop_test(t, every_key_is_read, 0, 2);
    tcase_add_loop_test(t, refusals, 0, COUNT(EDITS));
    tcase_add_loop_test(t, harmless, 0, COUNT(FINE));
    tcase_add_test(t, pattern_and_frequency);
    tcase_add_test(t, one_form_is_enough);
    tcase_add_test(t, numbers_turn_in_pairs);
    tcase_add_loop_test(t, published_fp8, 0, COUNT(STORED));
    suite_add_tcase(s, t);
    t = tcase_create("tensors");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup_tensors, teardown);
    tcase_add_loop_test(t, tensors, 0, 2);
    tcase_add_loop_test(t, tensors_of_shared_layers, 0, 2);
    tcase_add_test(t, indexer_of_a_shared_layer);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
