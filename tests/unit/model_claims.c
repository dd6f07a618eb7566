/* SPDX-License-Identifier: MIT */
/* What the configuration claims about the formats is compared with the tensors, and what should not be run without
 * knowing it is refused. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "ckptset.h"
#include "leakcheck.h"
#include "quantconf.h"
#include "traps.h"

static struct ckpt dir;
static struct ckpt_set set;
static struct xerr err;
static struct model_config cfg;
static struct model_index *x;
static struct model_directory d;

static void setup(void) {
    leakcheck_setup();
    memset(&err, 0, sizeof err);
    memset(&d, 0, sizeof d);
    memset(&set, 0, sizeof set);
    x = NULL;
    ckpt_copy(&dir, "twin-a");
    ckpt_set_load(&set, "twin-a");
}

static void teardown(void) {
    model_directory_done(&d);
    x = model_index_close(x);
    ckpt_set_done(&set);
    ckpt_remove(&dir);
    leakcheck_teardown();
}

static int build(void) {
    ckpt_set_write(&set, &dir);
    ck_assert_msg(model_config_read(dir.dir, &cfg, &err) == 0, "%s", err.msg);
    ck_assert_msg(model_index_open(&x, dir.dir, NULL, &err) == 0, "%s", err.msg);
    return model_directory_build(&d, &cfg, x, &err);
}

/* ---- what the configuration claims ---- */

static const struct {
    const char *label;
    enum ckpt_spelling how;
    const char *json, *hf;
    int code;
    const char *has[3];
} CLAIMS[] = {
    {"none", CKPT_NVFP4_CT, NULL, NULL, 0, {NULL}},
    {"released FP8",
     CKPT_FP8_BLOCK,
     "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":["
     "128,128]}",
     NULL,
     0,
     {NULL}},
    {"FP8 said, NVFP4 there",
     CKPT_NVFP4_CT,
     "{\"quant_method\":\"fp8\"}",
     NULL,
     -EINVAL,
     {"\"fp8\"", "NVFP4"}},
    {"FP8 said, nothing there",
     CKPT_BF16,
     "{\"quant_method\":\"fp8\"}",
     NULL,
     -EINVAL,
     {"\"fp8\"", "none of them"}},
    {"FP8 in blocks of 64",
     CKPT_FP8_BLOCK,
     "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]}",
     NULL,
     -ENOTSUP,
     {"[128, 128]"}},
    {"FP8 blocks said, channels there",
     CKPT_FP8_CHANNEL,
     "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}",
     NULL,
     -EINVAL,
     {"other blocks"}},
    {"e5m2", CKPT_FP8_BLOCK, "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", NULL, -ENOTSUP, {"e4m3"}},
    {"modelopt NVFP4",
     CKPT_NVFP4_MODELOPT,
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"group_size\":16}",
     "{\"quantization\":{\"quant_algo\":\"W4A16_NVFP4\",\"group_size\":16,\"exclude_modules\":[\"*\"]}}",
     0,
     {NULL}},
    {"modelopt, the second file says FP8",
     CKPT_NVFP4_MODELOPT,
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}",
     "{\"quantization\":{\"quant_algo\":\"FP8\"}}",
     -EINVAL,
     {"hf_quant_config.json", "\"FP8\"", "NVFP4"}},
    {"modelopt AWQ",
     CKPT_NVFP4_MODELOPT,
     NULL,
     "{\"quantization\":{\"quant_algo\":\"NVFP4_AWQ\"}}",
     -ENOTSUP,
     {"pre_quant_scale"}},
    {"modelopt, groups of 32",
     CKPT_NVFP4_MODELOPT,
     NULL,
     "{\"quantization\":{\"quant_algo\":\"NVFP4\",\"group_size\":32}}",
     -ENOTSUP,
     {"32", "16"}},
    {"modelopt mixed",
     CKPT_NVFP4_MODELOPT,
     NULL,
     "{\"quantization\":{\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{\"a\":{\"quant_algo\":"
     "\"NVFP4\"},"
     "\"b\":{\"quant_algo\":\"FP8\"}}}}",
     0,
     {NULL}},
    {"modelopt mixed without it",
     CKPT_NVFP4_MODELOPT,
     NULL,
     "{\"quantization\":{\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{\"b\":{\"quant_algo\":"
     "\"FP8\"}}}}",
     -EINVAL,
     {"MIXED_PRECISION", "NVFP4"}},
    {"modelopt unknown",
     CKPT_NVFP4_MODELOPT,
     NULL,
     "{\"quantization\":{\"quant_algo\":\"NVFP3\"}}",
     -ENOTSUP,
     {"NVFP3"}},
    {"compressed-tensors NVFP4",
     CKPT_NVFP4_CT,
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\",\"quantization_status\":"
     "\"compressed\","
     "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":"
     "\"float\","
     "\"strategy\":\"tensor_group\",\"group_size\":16,\"symmetric\":true},\"input_activations\":null}}}",
     NULL,
     0,
     {NULL}},
    {"compressed-tensors says FP8",
     CKPT_NVFP4_CT,
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"}",
     NULL,
     -EINVAL,
     {"float-quantized", "NVFP4"}},
    {"compressed-tensors INT8 in groups of 64",
     CKPT_INT8,
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{"
     "\"weights\":"
     "{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":64,\"symmetric\":true}}}}",
     NULL,
     -EINVAL,
     {"another group size"}},
    {"compressed-tensors INT8",
     CKPT_INT8,
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{"
     "\"weights\":"
     "{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128,\"symmetric\":true}}}}",
     NULL,
     0,
     {NULL}},
    {"compressed-tensors INT4 said",
     CKPT_INT8,
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{"
     "\"weights\":"
     "{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128,\"symmetric\":true}}}}",
     NULL,
     -EINVAL,
     {"INT8", "another format"}},
    {"not symmetric",
     CKPT_INT8,
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{"
     "\"weights\":"
     "{\"num_bits\":8,\"type\":\"int\",\"symmetric\":false}}}}",
     NULL,
     -ENOTSUP,
     {"symmetric"}},
    {"compressed-tensors unknown",
     CKPT_INT8,
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"sparse-24\"}",
     NULL,
     -ENOTSUP,
     {"sparse-24"}},
    {"not compressed",
     CKPT_INT8,
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"quantization_status\":"
     "\"calibration\"}",
     NULL,
     -ENOTSUP,
     {"calibration"}},
    {"EXL3",
     CKPT_EXL3,
     "{\"quant_method\":\"exl3\",\"version\":\"0.0.43\",\"bits\":4.0,\"head_bits\":16,\"codebook\":\"mcg\"}",
     NULL,
     0,
     {NULL}},
    {"EXL3 of another codebook",
     CKPT_EXL3,
     "{\"quant_method\":\"exl3\",\"codebook\":\"mul1\"}",
     NULL,
     -EINVAL,
     {"another codebook"}},
    {"EXL3 in another order",
     CKPT_EXL3,
     "{\"quant_method\":\"exl3\",\"tile_order\":\"sm70_colmajor\"}",
     NULL,
     -ENOTSUP,
     {"tile_order", "sm70_colmajor"}},
    {"MXFP4 of Quark", CKPT_MXFP4_CT, "{\"quant_method\":\"quark\"}", NULL, 0, {NULL}},
    {"GPTQ", CKPT_BF16, "{\"quant_method\":\"gptq\"}", NULL, -ENOTSUP, {"gptq"}},
    {"no method", CKPT_BF16, "{\"bits\":4}", NULL, -EINVAL, {"quant_method"}},
};

START_TEST(claims) {
    json_t *c = ckpt_json(&dir, "config.json");
    const char *where = _i % 3 == 2 ? "text_config.quantization_config" : "quantization_config";
    int r;

    if (CLAIMS[_i].json)
        ckpt_set(c, where, json_loads(CLAIMS[_i].json, 0, NULL));
    ckpt_write_json(&dir, "config.json", c);
    json_decref(c);
    if (CLAIMS[_i].hf)
        ckpt_write(&dir, "hf_quant_config.json", CLAIMS[_i].hf, strlen(CLAIMS[_i].hf));
    ckpt_spell_all(&set, "mlp.experts", CLAIMS[_i].how);
    ck_assert_msg(build() == 0, "%s: %s", CLAIMS[_i].label, err.msg);
    r = model_quant_check(dir.dir, &d, &err);
    if (CLAIMS[_i].code == 0)
        ck_assert_msg(r == 0, "%s: %s", CLAIMS[_i].label, err.msg);
    else
        ckpt_expect(CLAIMS[_i].label, r, CLAIMS[_i].code, &err,
                    (const char *const[]){"found ", "expected ", CLAIMS[_i].has[0], CLAIMS[_i].has[1],
                                          CLAIMS[_i].has[2], NULL});
}
END_TEST

/* ---- what should not be run without knowing it ---- */

static const struct {
    const char *label, *part;
    enum ckpt_spelling how;
    struct model_allow allow;
    int code;
    const char *has;
} TRAPS[] = {
    {"experts in four bits", "mlp.experts", CKPT_NVFP4_CT, {false, ""}, 0, NULL},
    {"experts in two bits", "mlp.experts", CKPT_EXL3_3INST, {false, NULL}, 0, NULL},
    {"shared experts in four", "shared_experts", CKPT_NVFP4_CT, {false, ""}, -EPERM, "AllowFourBitDense=yes"},
    {"shared experts in four, allowed", "shared_experts", CKPT_NVFP4_CT, {true, ""}, 0, NULL},
    {"shared experts in eight", "shared_experts", CKPT_INT8, {false, ""}, 0, NULL},
    {"dense MLP in INT4", "layers.0.mlp", CKPT_INT4, {false, ""}, -EPERM, "INT4"},
    {"query in EXL3 3", "q_b_proj", CKPT_EXL3_SIGNS, {false, ""}, -EPERM, "EXL3"},
    {"kv_b in FP8", "kv_b_proj", CKPT_FP8_BLOCK, {false, ""}, -EPERM, "AllowLowPrecision=kv_b"},
    {"kv_b in FP8, allowed", "kv_b_proj", CKPT_FP8_BLOCK, {false, "kv_b"}, 0, NULL},
    {"kv_b in FP8, others allowed", "kv_b_proj", CKPT_FP8_BLOCK, {true, "embed, indexer"}, -EPERM, "kv_b"},
    {"kv_b in F16", "kv_b_proj", CKPT_F16, {false, ""}, 0, NULL},
    {"indexer in FP8",
     "weights_proj",
     CKPT_FP8_CHANNEL,
     {false, "kv_b"},
     -EPERM,
     "AllowLowPrecision=indexer"},
    {"gates in MXFP8", "f_a_proj", CKPT_MXFP8, {false, ""}, -EPERM, "AllowLowPrecision=kda_gates"},
    {"everything in NVFP4", "", CKPT_NVFP4_CT, {true, "embed,kv_b,indexer,kda_gates"}, 0, NULL},
    {"everything in NVFP4, refused", "", CKPT_NVFP4_CT, {true, ""}, -EPERM, "kv_b,indexer,kda_gates"},
    {"no such word", "mlp.experts", CKPT_NVFP4_CT, {false, "kv_b,router"}, -EINVAL, "\"router\""},
};

START_TEST(traps) {
    int r;

    ck_assert_uint_gt(ckpt_spell_all(&set, TRAPS[_i].part, TRAPS[_i].how), 0);
    ck_assert_msg(build() == 0, "%s: %s", TRAPS[_i].label, err.msg);
    r = model_allowed(dir.dir, &cfg, &d, 5, &TRAPS[_i].allow, &err);
    if (TRAPS[_i].code == 0)
        ck_assert_msg(r == 0, "%s: %s", TRAPS[_i].label, err.msg);
    else
        ckpt_expect(TRAPS[_i].label, r, TRAPS[_i].code, &err,
                    (const char *const[]){"found ", "expected ", TRAPS[_i].has, NULL});
}
END_TEST

START_TEST(summary) {
    struct model_summary_row rows[MODEL_MAX_ROWS];
    uint64_t bytes = 0, tensors = 0;
    size_t n, experts = 0;

    ckpt_spell_all(&set, "layers.1.mlp.experts", CKPT_NVFP4_CT);
    ckpt_spell_all(&set, "layers.4.mlp.experts", CKPT_INT8);
    ck_assert_msg(build() == 0, "%s", err.msg);
    n = model_summary(&d, &cfg, 5, rows);
    for (size_t i = 0; i < n; i++) {
        bytes += rows[i].bytes;
        tensors += rows[i].matrices;
        if (strcmp(rows[i].group, "routed experts") == 0) {
            experts++;
            if (strcmp(rows[i].format, "NVFP4") == 0) {
                ck_assert_uint_eq(rows[i].matrices, 18);
                ck_assert_uint_eq(rows[i].weights, 18 * 128 * 128);
                ck_assert_uint_eq(rows[i].bytes, 18 * (128 * 128 / 2 + 128 * 128 / 16 + 4));
            }
        }
        for (size_t k = 0; k < i; k++)
            ck_assert(strcmp(rows[i].group, rows[k].group) != 0 ||
                      strcmp(rows[i].format, rows[k].format) != 0);
    }
    ck_assert_uint_eq(experts, 2); /* NVFP4 of layer 1, BF16 of the others; INT8 is the draft layer's */
    ck_assert_uint_eq(bytes, d.resident);
    ck_assert_uint_eq(tensors, d.n_tensors);
    n = model_summary(&d, &cfg, 4, rows);
    for (size_t i = 0; i < n; i++)
        ck_assert_str_ne(rows[i].group, "MTP routed experts");
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

int main(void) {
    Suite *s = suite_create("model_claims");
    TCase *tc = tcase_create("claims");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, claims, 0, COUNT(CLAIMS));
    tcase_add_loop_test(tc, traps, 0, COUNT(TRAPS));
    tcase_add_test(tc, summary);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
