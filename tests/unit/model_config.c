/* SPDX-License-Identifier: MIT */
/* config.json: what the real files say, and that nothing is assumed. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt.h"
#include "config.h"
#include "leakcheck.h"

static struct ckpt dir;
static struct xerr err;
static struct model_config cfg;

static void setup(void) {
    leakcheck_setup();
    ckpt_copy(&dir, "nano");
    memset(&err, 0, sizeof err);
}

static void teardown(void) {
    ckpt_remove(&dir);
    leakcheck_teardown();
}

START_TEST(nano_values) {
    struct kern_model_desc d;

    ck_assert_msg(model_config_read(dir.dir, &cfg, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(cfg.vocab_size, 4096);
    ck_assert_uint_eq(cfg.hidden_size, 256);
    ck_assert_uint_eq(cfg.num_hidden_layers, 9);
    ck_assert_uint_eq(cfg.num_nextn_predict_layers, 1);
    ck_assert_uint_eq(cfg.intermediate_size, 384);
    ck_assert_uint_eq(cfg.moe_intermediate_size, 128);
    ck_assert_uint_eq(cfg.first_k_dense_replace, 3);
    ck_assert_uint_eq(cfg.n_routed_experts, 8);
    ck_assert_uint_eq(cfg.num_experts_per_tok, 2);
    ck_assert_uint_eq(cfg.n_shared_experts, 1);
    ck_assert_uint_eq(cfg.n_group, 1);
    ck_assert_uint_eq(cfg.topk_group, 1);
    ck_assert_double_eq(cfg.routed_scaling_factor, 2.5);
    ck_assert_double_eq(cfg.swiglu_limit, 10.0);
    ck_assert_uint_eq(cfg.num_attention_heads, 4);
    ck_assert_uint_eq(cfg.num_key_value_heads, 4);
    ck_assert_uint_eq(cfg.q_lora_rank, 128);
    ck_assert_uint_eq(cfg.kv_lora_rank, 512);
    ck_assert_uint_eq(cfg.qk_nope_head_dim, 256);
    ck_assert_uint_eq(cfg.qk_rope_head_dim, 0);
    ck_assert_uint_eq(cfg.qk_head_dim, 256);
    ck_assert_uint_eq(cfg.v_head_dim, 256);
    ck_assert_uint_eq(cfg.index_n_heads, 4);
    ck_assert_uint_eq(cfg.index_head_dim, 128);
    ck_assert_uint_eq(cfg.index_topk, 128);
    ck_assert_uint_eq(cfg.index_kpool, 4);
    ck_assert(cfg.index_share_for_mtp_iteration);
    ck_assert_uint_eq(cfg.linear_num_heads, 4);
    ck_assert_uint_eq(cfg.linear_head_dim, 128);
    ck_assert_uint_eq(cfg.linear_conv_kernel, 4);
    ck_assert_double_eq(cfg.gate_lower_bound, -5.0);
    ck_assert_uint_eq(cfg.hc_mult, 4);
    ck_assert_uint_eq(cfg.hc_sinkhorn_iters, 20);
    ck_assert_double_eq(cfg.hc_eps, 1e-6);
    ck_assert_double_eq(cfg.rms_norm_eps, 1e-5);
    ck_assert_uint_eq(cfg.max_position_embeddings, 131072);
    ck_assert_uint_eq(cfg.pad_token_id, 4060);
    ck_assert_uint_eq(cfg.n_eos, 3);
    ck_assert_uint_eq(cfg.eos_token_id[0], 4060);
    ck_assert_uint_eq(cfg.eos_token_id[1], 4067);
    ck_assert_uint_eq(cfg.eos_token_id[2], 4069);
    ck_assert(!cfg.has_vision);
    ck_assert_int_eq(cfg.image_token_id, 4094);
    ck_assert_int_eq(cfg.video_end_token_id, 4073);

    ck_assert_msg(model_config_describe(&cfg, 4096, true, &d, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(d.vocab_rows, 4096);
    ck_assert_uint_eq(d.vocab_tokens, 4096);
    ck_assert_uint_eq(d.hidden, 256);
    ck_assert_uint_eq(d.n_layers, 9);
    ck_assert_uint_eq(d.n_draft, 1);
    ck_assert_float_eq(d.rms_eps, 1e-5f);
    ck_assert_float_eq(d.hc_eps, 1e-6f);
    ck_assert_float_eq(d.routed_scale, 2.5f);
    ck_assert_float_eq(d.swiglu_limit, 10.0f);
    ck_assert_float_eq(d.gate_bound, -5.0f);
    ck_assert_float_eq(d.rope_theta, 0.0f);
    for (uint32_t i = 0; i < 10; i++) {
        bool mla = i == 3 || i == 7 || i == 9;

        ck_assert_uint_eq(d.layer[i].mix, mla ? KERN_MIX_MLA : KERN_MIX_KDA);
        ck_assert_uint_eq(d.layer[i].index, mla ? KERN_INDEX_FULL : KERN_INDEX_NONE);
        ck_assert_uint_eq(d.layer[i].mlp, i < 3 ? KERN_MLP_DENSE : KERN_MLP_MOE);
        ck_assert_uint_eq(d.layer[i].resid, i == 9 ? KERN_RESID_PLAIN : KERN_RESID_MHC);
    }
    ck_assert_int_eq(model_config_describe(&cfg, 4072, false, &d, &err), 0);
    ck_assert_uint_eq(d.vocab_tokens, 4072);
    ck_assert_uint_eq(d.n_draft, 0);
    ckpt_expect("more tokens than rows", model_config_describe(&cfg, 4097, true, &d, &err), -EINVAL, &err,
                (const char *const[]){"vocab_size", "4096", "4097", NULL});
    ck_assert_int_eq(model_config_describe(&cfg, 0, true, &d, &err), -EINVAL);
}
END_TEST

START_TEST(twin_values) {
    struct kern_model_desc d;

    ck_assert_msg(model_config_read(ckpt_model("twin-a"), &cfg, &err) == 0, "%s", err.msg);
    ck_assert(cfg.has_vision);
    ck_assert_double_eq(cfg.swiglu_limit, 0.5);
    ck_assert_int_eq(model_config_describe(&cfg, 4096, true, &d, &err), 0);
    ck_assert_uint_eq(d.layer[0].index, KERN_INDEX_NONE);
    ck_assert_uint_eq(d.layer[1].index, KERN_INDEX_FULL);
    ck_assert_uint_eq(d.layer[2].index, KERN_INDEX_SHARED);
    ck_assert_uint_eq(d.layer[3].index, KERN_INDEX_NONE);
    ck_assert_uint_eq(d.layer[4].index, KERN_INDEX_FULL);
}
END_TEST

/* The published model's own numbers, on the frame of nano's file. */
START_TEST(release_values) {
    static const struct {
        const char *key;
        int value;
    } VALUES[] = {
        {"vocab_size", 154880},
        {"hidden_size", 4096},
        {"intermediate_size", 12288},
        {"num_hidden_layers", 45},
        {"moe_intermediate_size", 2048},
        {"n_routed_experts", 288},
        {"num_experts_per_tok", 8},
        {"num_attention_heads", 64},
        {"num_key_value_heads", 64},
        {"q_lora_rank", 1536},
        {"index_n_heads", 32},
        {"index_topk", 2048},
        {"max_position_embeddings", 1048576},
        {"pad_token_id", 154820},
    };
    json_t *root = ckpt_json(&dir, "config.json"), *text = json_object_get(root, "text_config");
    json_t *lin = json_object_get(text, "linear_attn_config");
    json_t *kda = json_array(), *full = json_array(), *mix = json_array(), *mlp = json_array(),
           *idx = json_array();
    struct kern_model_desc d;

    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++)
        json_object_set_new(text, VALUES[i].key, json_integer(VALUES[i].value));
    for (int i = 0; i < 45; i++) {
        json_array_append_new(i % 4 == 3 ? full : kda, json_integer(i));
        json_array_append_new(mix,
                              json_string(i % 4 == 3 ? "deepseek_sparse_attention" : "linear_attention"));
        json_array_append_new(mlp, json_string(i < 3 ? "dense" : "sparse"));
        json_array_append_new(idx, json_string("full"));
    }
    json_object_set_new(text, "layer_types", mix);
    json_object_set_new(text, "mlp_layer_types", mlp);
    json_object_set_new(text, "indexer_types", idx);
    json_object_set_new(text, "indexer_rope_interleave", json_true());
    json_object_set_new(text, "eos_token_id", json_pack("[i,i,i]", 154820, 154827, 154829));
    json_object_set_new(lin, "num_heads", json_integer(64));
    json_object_set_new(lin, "kda_layers", kda);
    json_object_set_new(lin, "full_attn_layers", full);
    json_object_del(root, "eos_token_id");
    json_object_del(root, "pad_token_id");
    ckpt_write_json(&dir, "config.json", root);
    json_decref(root);
    ck_assert_msg(model_config_read(dir.dir, &cfg, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(model_config_describe(&cfg, 154856, true, &d, &err), 0);
    ck_assert_uint_eq(d.n_layers, 45);
    ck_assert_uint_eq(d.layer[43].mix, KERN_MIX_MLA);
    ck_assert_uint_eq(d.layer[44].mix, KERN_MIX_KDA);
    ck_assert_uint_eq(d.layer[45].resid, KERN_RESID_PLAIN);
}
END_TEST

/* Keys that may be absent, because nothing in the forward pass is made of them. Everything else that nano's
 * file has in text_config must be demanded. */
static bool may_be_absent(const char *key) {
    return strcmp(key, "attention_dropout") == 0;
}

static void check_every_key(const char *object, bool delete) {
    json_t *root = ckpt_json(&dir, "config.json"), *copy, *obj = ckpt_get(root, object);
    const char *key;
    json_t *v;
    int n = 0;

    ck_assert(json_is_object(obj));
    json_object_foreach(obj, key, v) {
        char path[128], label[160];

        if (may_be_absent(key))
            continue;
        copy = json_deep_copy(root);
        snprintf(path, sizeof path, "%s.%s", object, key);
        snprintf(label, sizeof label, "%s %s", delete ? "without" : "mistyped", path);
        /* A type no value of these files has: a list of a list. */
        ckpt_set(copy, path, delete ? NULL : json_pack("[[]]"));
        ckpt_write_json(&dir, "config.json", copy);
        json_decref(copy);
        cfg.vocab_size = 77;
        ckpt_expect(label, model_config_read(dir.dir, &cfg, &err), -EINVAL, &err,
                    (const char *const[]){"config.json", path, delete ? "found nothing" : "found ",
                                          "expected ", NULL});
        ck_assert_uint_eq(cfg.vocab_size, 77); /* untouched on failure */
        n++;
    }
    ck_assert_int_gt(n, 5);
    ckpt_write_json(&dir, "config.json", root);
    json_decref(root);
}

START_TEST(every_key_is_read) {
    check_every_key("text_config", true);
    check_every_key("text_config.linear_attn_config", true);
}
END_TEST

START_TEST(every_type_is_checked) {
    check_every_key("text_config", false);
    check_every_key("text_config.linear_attn_config", false);
}
END_TEST

struct edit {
    const char *label, *path, *json; /* json NULL: delete */
    int code;
    const char *has[4];
};

#define TEXT "text_config."
#define LIN  "text_config.linear_attn_config."

static const struct edit EDITS[] = {
    /* another model */
    {"architecture",
     "architectures",
     "[\"Glm4MoeForCausalLM\"]",
     -ENOTSUP,
     {"architectures", "Glm4Moe", "Glm5Next", "GlmMoeDsa"}},
    {"the larger model's architecture",
     "architectures",
     "[\"GlmMoeDsaForCausalLM\"]",
     -ENOTSUP,
     {"model_type", "\"glm5_next\"", "\"glm_moe_dsa\""}},
    {"two architectures",
     "architectures",
     "[\"Glm5NextForConditionalGeneration\",\"X\"]",
     -ENOTSUP,
     {"architectures"}},
    {"no architectures", "architectures", NULL, -EINVAL, {"architectures", "nothing"}},
    {"model_type", "model_type", "\"glm_moe_dsa\"", -ENOTSUP, {"model_type", "glm_moe_dsa", "\"glm5_next\""}},
    {"text model_type",
     TEXT "model_type",
     "\"x\"",
     -ENOTSUP,
     {TEXT "model_type", "\"x\"", "\"glm5_next_text\""}},
    {"no text_config", "text_config", NULL, -EINVAL, {"text_config", "nothing", "an object"}},
    {"text_config a list", "text_config", "[1]", -EINVAL, {"text_config", "a list of 1", "an object"}},
    {"quantised by a word",
     "quantization_config",
     "\"fp8\"",
     -EINVAL,
     {"quantization_config", "\"fp8\"", "an object"}},
    {"quantised by a list inside",
     TEXT "quantization_config",
     "[1]",
     -EINVAL,
     {TEXT "quantization_config", "a list of 1", "an object"}},
    {"tied head",
     TEXT "tie_word_embeddings",
     "true",
     -ENOTSUP,
     {TEXT "tie_word_embeddings", "true", "false"}},
    {"tied head above", "tie_word_embeddings", "true", -ENOTSUP, {"tie_word_embeddings", "true", "false"}},
    {"activation", TEXT "hidden_act", "\"gelu\"", -ENOTSUP, {"hidden_act", "\"gelu\"", "\"silu\""}},
    {"scoring", TEXT "scoring_func", "\"softmax\"", -ENOTSUP, {"scoring_func", "softmax", "sigmoid"}},
    {"topk_method", TEXT "topk_method", "\"greedy\"", -ENOTSUP, {"topk_method", "greedy", "noaux_tc"}},
    {"norm_topk_prob",
     TEXT "norm_topk_prob",
     "false",
     -ENOTSUP,
     {"norm_topk_prob", "false", "expected true"}},
    {"router dtype", TEXT "moe_router_dtype", "\"bfloat16\"", -ENOTSUP, {"moe_router_dtype", "float32"}},
    {"groups", TEXT "n_group", "8", -ENOTSUP, {"n_group", "found 8", "expected 1"}},
    {"topk_group", TEXT "topk_group", "4", -ENOTSUP, {"topk_group", "found 4", "expected 1"}},
    {"two shared experts",
     TEXT "n_shared_experts",
     "2",
     -ENOTSUP,
     {"n_shared_experts", "found 2", "expected 1"}},
    {"rope width", TEXT "qk_rope_head_dim", "64", -ENOTSUP, {"qk_rope_head_dim", "found 64", "expected 0"}},
    {"head_dim", TEXT "head_dim", "192", -ENOTSUP, {"head_dim", "found 192", "expected 0"}},
    {"mla_use_nope", TEXT "mla_use_nope", "false", -ENOTSUP, {"mla_use_nope", "false", "true"}},
    {"attention_bias", TEXT "attention_bias", "true", -ENOTSUP, {"attention_bias", "true", "false"}},
    {"compress", TEXT "index_kpool_compress", "false", -ENOTSUP, {"index_kpool_compress", "false", "true"}},
    {"tail",
     TEXT "index_kpool_always_select_tail",
     "false",
     -ENOTSUP,
     {"always_select_tail", "false", "true"}},
    {"mhc off", TEXT "mhc", "false", -ENOTSUP, {TEXT "mhc", "false", "true"}},
    {"dtype", TEXT "dtype", "\"float16\"", -ENOTSUP, {TEXT "dtype", "float16", "bfloat16"}},
    {"dtype above", "dtype", "\"float32\"", -EINVAL, {"dtype", "float32", "bfloat16"}},
    {"bos", TEXT "bos_token_id", "1", -ENOTSUP, {TEXT "bos_token_id", "found 1", "null"}},
    {"bos above", "bos_token_id", "1", -ENOTSUP, {"bos_token_id", "found 1", "null"}},
    {"yarn",
     TEXT "rope_scaling",
     "{\"type\":\"yarn\",\"factor\":4}",
     -ENOTSUP,
     {"rope_scaling", "yarn", "default"}},
    {"yarn new",
     TEXT "rope_parameters",
     "{\"rope_type\":\"yarn\"}",
     -ENOTSUP,
     {"rope_parameters", "yarn", "default"}},
    {"rope a number", TEXT "rope_scaling", "2", -ENOTSUP, {"rope_scaling", "found 2", "default"}},
    {"rope untyped",
     TEXT "rope_parameters",
     "{\"factor\":2}",
     -ENOTSUP,
     {"rope_parameters", "an object", "default"}},
    /* features this reader does not know */
    {"index_topk_freq",
     TEXT "index_topk_freq",
     "4",
     -ENOTSUP,
     {TEXT "index_topk_freq", "found 4", "no such key"}},
    {"sliding window", TEXT "sliding_window", "4096", -ENOTSUP, {"sliding_window", "4096", "no such key"}},
    {"rope family", TEXT "rope_theta_local", "1.0", -ENOTSUP, {"rope_theta_local", "no such key"}},
    {"soft cap",
     TEXT "final_logit_softcapping",
     "30.0",
     -ENOTSUP,
     {"final_logit_softcapping", "no such key"}},
    {"linear family", LIN "gate_upper_bound", "1.0", -ENOTSUP, {LIN "gate_upper_bound", "no such key"}},
    {"top family", "logit_scale", "0.5", -ENOTSUP, {"logit_scale", "no such key"}},
    /* ranges */
    {"no layers", TEXT "num_hidden_layers", "0", -EINVAL, {"num_hidden_layers", "found 0", "from 1 to 127"}},
    {"too many layers",
     TEXT "num_hidden_layers",
     "128",
     -EINVAL,
     {"num_hidden_layers", "found 128", "from 1 to 127"}},
    {"two drafts", TEXT "num_nextn_predict_layers", "2", -EINVAL, {"num_nextn_predict_layers", "found 2"}},
    {"huge vocab", TEXT "vocab_size", "4294967297", -EINVAL, {"vocab_size", "4294967297", "2097152"}},
    {"negative hidden", TEXT "hidden_size", "-1", -EINVAL, {"hidden_size", "found -1", "from 1 to 65536"}},
    {"real hidden", TEXT "hidden_size", "256.0", -EINVAL, {"hidden_size", "found 256", "integer"}},
    {"string hidden", TEXT "hidden_size", "\"256\"", -EINVAL, {"hidden_size", "\"256\"", "integer"}},
    {"kpool 1", TEXT "index_kpool", "1", -EINVAL, {"index_kpool", "found 1", "from 2 to 16"}},
    {"no streams", TEXT "hc_mult", "0", -EINVAL, {"hc_mult", "found 0", "from 1 to 8"}},
    {"many streams", TEXT "hc_mult", "9", -EINVAL, {"hc_mult", "found 9", "from 1 to 8"}},
    {"no sinkhorn", TEXT "hc_sinkhorn_iters", "0", -EINVAL, {"hc_sinkhorn_iters", "found 0"}},
    {"zero eps", TEXT "rms_norm_eps", "0", -EINVAL, {"rms_norm_eps", "found 0", "a number from"}},
    {"negative eps", TEXT "hc_eps", "-1e-6", -EINVAL, {"hc_eps", "a number from"}},
    {"no clamp", TEXT "swiglu_limit", "null", -EINVAL, {"swiglu_limit", "found null", "a number from"}},
    {"negative clamp", TEXT "swiglu_limit", "-10.0", -EINVAL, {"swiglu_limit", "found -10", "a number from"}},
    {"gate bound missing",
     LIN "gate_lower_bound",
     NULL,
     -EINVAL,
     {LIN "gate_lower_bound", "nothing", "never assumed"}},
    {"gate bound null",
     LIN "gate_lower_bound",
     "null",
     -EINVAL,
     {LIN "gate_lower_bound", "found null", "from -5"}},
    {"gate bound positive",
     LIN "gate_lower_bound",
     "5.0",
     -EINVAL,
     {LIN "gate_lower_bound", "found 5", "from -5"}},
    {"gate bound too low",
     LIN "gate_lower_bound",
     "-6.0",
     -EINVAL,
     {LIN "gate_lower_bound", "found -6", "from -5"}},
    {"conv width", LIN "short_conv_kernel_size", "1", -EINVAL, {"short_conv_kernel_size", "found 1"}},
    /* contradictions */
    {"experts per token",
     TEXT "num_experts_per_tok",
     "9",
     -EINVAL,
     {"num_experts_per_tok", "found 9", "n_routed_experts (8)"}},
    {"kv heads",
     TEXT "num_key_value_heads",
     "2",
     -EINVAL,
     {"num_key_value_heads", "found 2", "num_attention_heads (4)"}},
    {"qk sum", TEXT "qk_head_dim", "320", -EINVAL, {"qk_head_dim", "found 320", "qk_rope_head_dim (256)"}},
    {"topk of kpool",
     TEXT "index_topk",
     "130",
     -EINVAL,
     {"index_topk", "found 130", "multiple of index_kpool (4)"}},
    {"pad beyond vocab",
     TEXT "pad_token_id",
     "4096",
     -EINVAL,
     {"pad_token_id", "found 4096", "vocab_size (4096)"}},
    {"pad differs", "pad_token_id", "1", -EINVAL, {"pad_token_id", "found 1", "4060"}},
    {"eos beyond vocab",
     TEXT "eos_token_id",
     "[4060,4096]",
     -EINVAL,
     {"eos_token_id", "found 4096", "vocab_size (4096)"}},
    {"eos negative", TEXT "eos_token_id", "[-1]", -EINVAL, {"eos_token_id", "found -1"}},
    {"eos twice", TEXT "eos_token_id", "[4060,4067,4060]", -EINVAL, {"eos_token_id", "found 4060", "once"}},
    {"eos empty", TEXT "eos_token_id", "[]", -EINVAL, {"eos_token_id", "a list of 0", "1 to 8"}},
    {"eos many",
     TEXT "eos_token_id",
     "[1,2,3,4,5,6,7,8,9]",
     -EINVAL,
     {"eos_token_id", "a list of 9", "1 to 8"}},
    {"eos differs", "eos_token_id", "[4060,4067]", -EINVAL, {"eos_token_id", "a list of 2", "the 3 ids"}},
    {"eos differs by one", "eos_token_id", "[4060,4067,4068]", -EINVAL, {"eos_token_id", "the 3 ids"}},
    {"image id beyond",
     "image_token_id",
     "4096",
     -EINVAL,
     {"image_token_id", "found 4096", "vocab_size (4096)"}},
    {"vision a number", "vision_config", "1", -EINVAL, {"vision_config", "found 1", "an object"}},
    {"short layer list",
     TEXT "layer_types.8",
     NULL,
     -EINVAL,
     {"layer_types", "a list of 8", "9 (num_hidden_layers)"}},
    {"long layer list",
     TEXT "layer_types.9",
     "\"linear_attention\"",
     -EINVAL,
     {"layer_types", "a list of 10", "a list of 9"}},
    {"unknown layer",
     TEXT "layer_types.4",
     "\"full_attention\"",
     -ENOTSUP,
     {"layer_types[4]", "\"full_attention\"", "\"linear_attention\" or"}},
    {"layer a number",
     TEXT "layer_types.4",
     "4",
     -ENOTSUP,
     {"layer_types[4]", "found 4", "\"linear_attention\" or"}},
    {"short mlp list",
     TEXT "mlp_layer_types.0",
     NULL,
     -EINVAL,
     {"mlp_layer_types", "a list of 8", "a list of 9"}},
    {"unknown mlp",
     TEXT "mlp_layer_types.4",
     "\"moe\"",
     -ENOTSUP,
     {"mlp_layer_types[4]", "\"moe\"", "\"dense\" or"}},
    {"dense too late",
     TEXT "mlp_layer_types.3",
     "\"dense\"",
     -EINVAL,
     {"mlp_layer_types[3]", "\"dense\"", "\"sparse\", as first_k_dense_replace is 3"}},
    {"sparse too early",
     TEXT "mlp_layer_types.2",
     "\"sparse\"",
     -EINVAL,
     {"mlp_layer_types[2]", "first_k_dense_replace is 3"}},
    {"first_k differs",
     TEXT "first_k_dense_replace",
     "2",
     -EINVAL,
     {"mlp_layer_types[2]", "first_k_dense_replace is 2"}},
    {"first_k beyond",
     TEXT "first_k_dense_replace",
     "10",
     -EINVAL,
     {"first_k_dense_replace", "found 10", "num_hidden_layers (9)"}},
    {"short indexer list",
     TEXT "indexer_types.0",
     NULL,
     -EINVAL,
     {"indexer_types", "a list of 8", "a list of 9"}},
    {"unknown indexer",
     TEXT "indexer_types.0",
     "\"none\"",
     -ENOTSUP,
     {"indexer_types[0]", "\"none\"", "\"full\" or"}},
    {"shared with nothing",
     TEXT "indexer_types.3",
     "\"shared\"",
     -EINVAL,
     {"indexer_types[3]", "\"shared\"", "\"full\""}},
    {"kda list short", LIN "kda_layers.6", NULL, -EINVAL, {LIN "kda_layers", "a list of 6", "layer 8"}},
    {"kda list wrong",
     LIN "kda_layers.0",
     "3",
     -EINVAL,
     {LIN "kda_layers", "found 3", "\"linear_attention\""}},
    {"kda list twice", LIN "kda_layers.0", "1", -EINVAL, {LIN "kda_layers", "found 1", "each once"}},
    {"kda list beyond", LIN "kda_layers.0", "9", -EINVAL, {LIN "kda_layers", "found 9", "below 9"}},
    {"kda list negative", LIN "kda_layers.0", "-1", -EINVAL, {LIN "kda_layers", "found -1", "below 9"}},
    {"full list short",
     LIN "full_attn_layers.1",
     NULL,
     -EINVAL,
     {LIN "full_attn_layers", "a list of 1", "layer 7"}},
    {"full list wrong",
     LIN "full_attn_layers.0",
     "0",
     -EINVAL,
     {LIN "full_attn_layers", "found 0", "deepseek_sparse"}},
    {"layer types differ",
     TEXT "layer_types.0",
     "\"deepseek_sparse_attention\"",
     -EINVAL,
     {LIN "kda_layers", "found 0", "\"linear_attention\""}},
};

static void apply(const char *file, const struct edit *ed) {
    json_t *root = ckpt_json(&dir, file);

    ckpt_set(root, ed->path, ed->json ? json_loads(ed->json, JSON_DECODE_ANY, NULL) : NULL);
    ckpt_write_json(&dir, file, root);
    json_decref(root);
}

START_TEST(refusals) {
    const struct edit *ed = &EDITS[_i];
    const char *has[8] = {"config.json: ", "found ", "expected "};

    memcpy(has + 3, ed->has, sizeof ed->has);
    apply("config.json", ed);
    ckpt_expect(ed->label, model_config_read(dir.dir, &cfg, &err), ed->code, &err, has);
}
END_TEST

/* What a real configuration may carry beside the computation. */
static const struct edit FINE[] = {
    {.path = "text_config.use_cache", .json = "true"},
    {.path = "text_config.initializer_range", .json = "0.02"},
    {.path = "text_config.attention_dropout", .json = "0.1"},
    {.path = "text_config.router_aux_loss_coef", .json = "0.001"},
    {.path = "text_config.indexer_rope_interleave", .json = "true"},
    {.path = "text_config.rope_theta", .json = "8000000"},
    {.path = "text_config.rope_interleave", .json = "true"},
    {.path = "text_config.rope_scaling", .json = "null"},
    {.path = "text_config.rope_parameters", .json = "{\"rope_type\":\"default\",\"rope_theta\":1e6}"},
    {.path = "text_config.sliding_window", .json = "null"},
    {.path = "text_config.bos_token_id", .json = "null"},
    {.path = "text_config.num_nextn_predict_layers", .json = "0"},
    {.path = "text_config.swiglu_limit", .json = "10"},
    {.path = "text_config.indexer_types.7", .json = "\"shared\""},
    {.path = "text_config.indexer_types.0", .json = "\"shared\""},
    {.path = "quantization_config", .json = "null"},
    {.path = "quantization_config", .json = "{\"quant_method\":\"fp8\"}"},
    {.path = TEXT "quantization_config", .json = "{}"},
    {.path = "vision_config", .json = "{\"hidden_act\":\"gelu\"}"},
    {.path = "transformers_version", .json = NULL},
    {.path = "eos_token_id", .json = "[4069,4060,4067]"},
    {.path = "eos_token_id", .json = NULL},
    {.path = "image_token_id", .json = NULL},
    {.path = "note", .json = "{\"a\":[1]}"},
};

START_TEST(harmless) {
    apply("config.json", &FINE[_i]);
    ck_assert_msg(model_config_read(dir.dir, &cfg, &err) == 0, "%s: %s", FINE[_i].path, err.msg);
    ck_assert_uint_eq(cfg.n_eos, 3);
    ck_assert_uint_eq(cfg.eos_token_id[2], 4069);
    if (strcmp(FINE[_i].path, "image_token_id") == 0)
        ck_assert_int_eq(cfg.image_token_id, MODEL_NO_ID);
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

int main(void) {
    Suite *s = suite_create("model_config");
    TCase *tc = tcase_create("config");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, nano_values);
    tcase_add_test(tc, twin_values);
    tcase_add_test(tc, release_values);
    tcase_add_test(tc, every_key_is_read);
    tcase_add_test(tc, every_type_is_checked);
    tcase_add_loop_test(tc, refusals, 0, COUNT(EDITS));
    tcase_add_loop_test(tc, harmless, 0, COUNT(FINE));
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
