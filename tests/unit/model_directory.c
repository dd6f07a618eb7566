/* SPDX-License-Identifier: MIT */
/* Which tensor is which part, and that a checkpoint with anything missing, wrong or additional is refused. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt.h"
#include "directory.h"
#include "leakcheck.h"

#define SHARD "model-00001-of-00001.safetensors"
#define T     "model.language_model."

static struct ckpt dir;
static struct xerr err;
static struct model_config cfg;
static struct model_index *x;
static struct model_directory d;

static void setup(void) {
    leakcheck_setup();
    memset(&err, 0, sizeof err);
    memset(&d, 0, sizeof d);
    x = NULL;
}

static void teardown(void) {
    model_directory_done(&d);
    x = model_index_close(x);
    if (dir.dir[0])
        ckpt_remove(&dir);
    leakcheck_teardown();
}

static int open_all(const char *path) {
    int r = model_config_read(path, &cfg, &err);

    ck_assert_msg(r == 0, "%s", err.msg);
    r = model_index_open(&x, path, NULL, &err);
    ck_assert_msg(r == 0, "%s", err.msg);
    return model_directory_build(&d, &cfg, x, &err);
}

static const struct model_item *find(uint32_t part, uint32_t layer, uint32_t expert) {
    const struct model_item *it = NULL;

    for (size_t i = 0; i < d.n_items; i++)
        if (d.item[i].id.part == part && d.item[i].id.layer == layer && d.item[i].id.expert == expert) {
            ck_assert_msg(it == NULL, "part %u of layer %u twice", part, layer);
            it = &d.item[i];
        }
    return it;
}

static void expect(uint32_t part, uint32_t layer, uint32_t expert, const char *name, uint64_t rows,
                   uint64_t cols, uint32_t format) {
    const struct model_item *it = find(part, layer, expert);

    ck_assert_msg(it != NULL, "%s: not in the directory", name);
    ck_assert_str_eq(it->t->name, name);
    ck_assert_uint_eq(it->k.rows, rows);
    ck_assert_uint_eq(it->k.cols, cols);
    ck_assert_uint_eq(it->k.store.format, format);
    ck_assert_uint_eq(it->t->bytes, rows * cols * (format == KERN_F32 ? 4 : 2));
}

START_TEST(nano_parts) {
    ck_assert_msg(open_all(ckpt_model("nano")) == 0, "%s", err.msg);
    ck_assert_uint_eq(d.n_items, 440);
    ck_assert_uint_eq(d.n_visual, 0);
    ck_assert(d.has_draft);
    expect(KERN_EMBED, 0, 0, T "embed_tokens.weight", 4096, 256, KERN_BF16);
    expect(KERN_HEAD, 0, 0, "lm_head.weight", 4096, 256, KERN_BF16);
    expect(KERN_FINAL_NORM, 0, 0, T "norm.weight", 256, 1, KERN_BF16);
    expect(KERN_IN_NORM, 9, 0, T "layers.9.input_layernorm.weight", 256, 1, KERN_BF16);
    expect(KERN_HC_ATTN_FN, 8, 0, T "layers.8.hc_attn_fn", 24, 1024, KERN_BF16);
    expect(KERN_HC_FFN_SCALE, 0, 0, T "layers.0.hc_ffn_scale", 3, 1, KERN_F32);
    expect(KERN_KDA_K, 0, 0, T "layers.0.self_attn.k_proj.weight", 512, 256, KERN_BF16);
    expect(KERN_KDA_VCONV, 8, 0, T "layers.8.self_attn.v_conv1d.weight", 512, 4, KERN_BF16);
    expect(KERN_KDA_A_LOG, 4, 0, T "layers.4.self_attn.A_log", 4, 1, KERN_F32);
    expect(KERN_KDA_DT_BIAS, 4, 0, T "layers.4.self_attn.dt_bias", 512, 1, KERN_F32);
    expect(KERN_KDA_O, 0, 0, T "layers.0.self_attn.o_proj.weight", 256, 512, KERN_BF16);
    expect(KERN_MLA_O, 3, 0, T "layers.3.self_attn.o_proj.weight", 256, 1024, KERN_BF16);
    expect(KERN_MLA_KVB, 7, 0, T "layers.7.self_attn.kv_b_proj.weight", 2048, 512, KERN_BF16);
    expect(KERN_IDX_APE, 9, 0, T "layers.9.self_attn.indexer.index_kpool_compress_ape", 4, 128, KERN_BF16);
    expect(KERN_MLP_DOWN, 2, 0, T "layers.2.mlp.down_proj.weight", 256, 384, KERN_BF16);
    expect(KERN_ROUTER_BIAS, 3, 0, T "layers.3.mlp.gate.e_score_correction_bias", 8, 1, KERN_F32);
    expect(KERN_EXP_UP, 9, 7, T "layers.9.mlp.experts.7.up_proj.weight", 128, 256, KERN_BF16);
    expect(KERN_SH_DOWN, 6, 0, T "layers.6.mlp.shared_experts.down_proj.weight", 256, 128, KERN_BF16);
    expect(KERN_DRAFT_EH, 9, 0, T "layers.9.eh_proj.weight", 256, 512, KERN_BF16);
    expect(KERN_DRAFT_NORM, 9, 0, T "layers.9.shared_head.norm.weight", 256, 1, KERN_BF16);
    for (uint32_t part = 1; part < KERN_PART_END; part++) {
        size_t n = 0;

        for (size_t i = 0; i < d.n_items; i++)
            n += d.item[i].id.part == part;
        bool gguf = part == KERN_MLA_KB || part == KERN_MLA_VB;
        ck_assert_msg((n > 0) == !gguf, "%zu tensors are part %u", n, part);
    }
    ck_assert_ptr_null(find(KERN_MLP_GATE, 3, 0));
    ck_assert_ptr_null(find(KERN_ROUTER, 2, 0));
    ck_assert_ptr_null(find(KERN_HC_ATTN_FN, 9, 0));
    ck_assert_ptr_null(find(KERN_KDA_Q, 3, 0));
    for (size_t i = 1; i < d.n_items; i++)
        ck_assert(d.item[i].file > d.item[i - 1].file ||
                  (d.item[i].file == d.item[i - 1].file && d.item[i].t->offset > d.item[i - 1].t->offset));
}
END_TEST

START_TEST(twin_parts) {
    uint64_t all = 0;

    ck_assert_msg(open_all(ckpt_model("twin-a")) == 0, "%s", err.msg);
    ck_assert_uint_eq(d.n_visual, 53);
    ck_assert_uint_eq(d.n_items, 254 - 53);
    for (size_t i = 0; i < model_index_count(x); i++)
        all += model_index_at(x, i)->t->bytes;
    ck_assert_uint_eq(d.bytes + d.visual_bytes, all);
    ck_assert_ptr_nonnull(find(KERN_IDX_QB, 1, 0));
    ck_assert_ptr_null(find(KERN_IDX_QB, 2, 0)); /* shared */
    ck_assert_ptr_nonnull(find(KERN_MLA_QA, 2, 0));
    ck_assert_ptr_nonnull(find(KERN_IDX_QB, 4, 0));
}
END_TEST

/* ---- a spoilt twin-a: its header edited as JSON, its data left where it is ---- */

/* Rewrites the shard with another header and n bytes of data (sparse) and an index to match. */
static void rewrite(json_t *header, uint64_t data) {
    char *text = json_dumps(header, JSON_COMPACT);
    json_t *map = json_object(), *v;
    const char *name;

    json_object_foreach(header, name, v) {
        if (strcmp(name, "__metadata__") != 0)
            json_object_set_new(map, name, json_string(SHARD));
    }
    ckpt_write_st(&dir, SHARD, text, NULL, 0);
    ck_assert_int_eq(truncate(ckpt_path(&dir, SHARD), (off_t)(8 + strlen(text) + data)), 0);
    map = json_pack("{s:o}", "weight_map", map);
    ckpt_write_json(&dir, "model.safetensors.index.json", map);
    json_decref(map);
    free(text);
}

static json_t *header_of_twin(void) {
    size_t n;
    unsigned char *all;
    json_t *h;

    ckpt_copy(&dir, "twin-a");
    all = ckpt_read(&dir, SHARD, &n);
    h = json_loadb((char *)all + 8, (size_t)all[0] + ((size_t)all[1] << 8), 0, NULL);
    ck_assert_ptr_nonnull(h);
    free(all);
    return h;
}

static uint64_t element_bytes(const char *dtype) {
    return strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0 ? 4 : strcmp(dtype, "F8_E4M3") == 0 ? 1 : 2;
}

/* Lays all tensors out anew, in any order, so that a header stays valid after an edit. */
static uint64_t relayout(json_t *h) {
    const char *name;
    json_t *v, *s;
    uint64_t at = 0;
    size_t i;

    json_object_foreach(h, name, v) {
        uint64_t n = element_bytes(json_string_value(json_object_get(v, "dtype"))
                                       ? json_string_value(json_object_get(v, "dtype"))
                                       : "");

        if (strcmp(name, "__metadata__") == 0)
            continue;
        json_array_foreach(json_object_get(v, "shape"), i, s) n *= (uint64_t)json_integer_value(s);
        json_object_set_new(v, "data_offsets", json_pack("[I,I]", (json_int_t)at, (json_int_t)(at + n)));
        at += n;
    }
    return at;
}

struct spoil {
    const char *label, *tensor, *dtype, *shape; /* dtype NULL: delete the tensor */
    int code;
    const char *has[5];
};

static const struct spoil SPOILS[] = {
    {"embedding missing",
     T "embed_tokens.weight",
     NULL,
     NULL,
     -ENODATA,
     {"found nothing", "a matrix [4096,128]"}},
    {"head missing", "lm_head.weight", NULL, NULL, -ENODATA, {"found nothing", "a matrix [4096,128]"}},
    {"expert missing", T "layers.3.mlp.experts.5.down_proj.weight", NULL, NULL, -ENODATA, {"found nothing"}},
    {"dt_bias missing", T "layers.3.self_attn.dt_bias", NULL, NULL, -ENODATA, {"found nothing", "F32 [256]"}},
    {"part of the draft layer missing", T "layers.4.enorm.weight", NULL, NULL, -ENODATA, {"found nothing"}},
    {"indexer of the draft layer missing",
     T "layers.4.self_attn.indexer.wk.weight",
     NULL,
     NULL,
     -ENODATA,
     {"found nothing"}},
    {"wrong rows",
     T "embed_tokens.weight",
     "BF16",
     "[4095,128]",
     -EINVAL,
     {"BF16 [4095,128]", "BF16 [4096,128]"}},
    {"transposed",
     T "layers.0.mlp.up_proj.weight",
     "BF16",
     "[128,384]",
     -EINVAL,
     {"BF16 [128,384]", "BF16 [384,128]"}},
    {"one dimension less",
     T "layers.0.self_attn.q_conv1d.weight",
     "BF16",
     "[256,4]",
     -EINVAL,
     {"[256,4]", "[256,1,4]"}},
    {"one dimension more", T "norm.weight", "BF16", "[128,1]", -EINVAL, {"[128,1]", "[128]"}},
    {"FP8 norm", T "norm.weight", "F8_E4M3", "[128]", -EINVAL, {"F8_E4M3 [128]", "BF16, F16 or F32 [128]"}},
    {"FP8 taps",
     T "layers.0.self_attn.q_conv1d.weight",
     "F8_E4M3",
     "[256,1,4]",
     -EINVAL,
     {"F8_E4M3 [256,1,4]", "BF16, F16 or F32 [256,1,4]"}},
    {"FP8 router", T "layers.1.mlp.gate.weight", "F8_E4M3", "[6,128]",
     -EINVAL,
     {"F8_E4M3 [6,128]", "BF16, F16 or F32"}},
    {"router with a scale", T "layers.1.mlp.gate.weight_scale", "F32", "[6,1]", -EINVAL, {"quantisation scale"}},
    {"narrowed A_log", T "layers.0.self_attn.A_log", "BF16", "[2]", -EINVAL, {"BF16 [2]", "expected F32 [2]"}},
    {"narrowed hc_base", T "layers.0.hc_attn_base", "F16", "[24]", -EINVAL, {"F16 [24]", "expected F32 [24]"}},
    {"BF16 bias",
     T "layers.1.mlp.gate.e_score_correction_bias",
     "BF16",
     "[6]",
     -EINVAL,
     {"BF16 [6]", "F32 [6]"}},
    {"FP8 without its scale",
     T "layers.1.mlp.experts.0.up_proj.weight",
     "F8_E4M3",
     "[128,128]",
     -ENODATA,
     {"F8_E4M3 without a scale"}},
    {"FP8 scale",
     T "layers.1.mlp.experts.0.up_proj.weight_scale_inv",
     "F32",
     "[1,1]",
     -EINVAL,
     {"weight_scale_inv", "unquantised"}},
    {"a bias",
     T "layers.0.self_attn.q_proj.bias",
     "BF16",
     "[256]",
     -EINVAL,
     {"found BF16", "has a place for"}},
    {"an expert too many",
     T "layers.1.mlp.experts.6.up_proj.weight",
     "BF16",
     "[128,128]",
     -EINVAL,
     {"has a place for"}},
    {"a layer too many", T "layers.5.input_layernorm.weight", "BF16", "[128]", -EINVAL, {"has a place for"}},
    {"mHC in the draft layer", T "layers.4.hc_attn_scale", "F32", "[3]", -EINVAL, {"has a place for"}},
    {"indexer of a shared layer",
     T "layers.2.self_attn.indexer.wk.weight",
     "BF16",
     "[128,128]",
     -EINVAL,
     {"expected none", "indexer_types[2]", "\"shared\""}},
    {"unknown root", "transformer.wte.weight", "BF16", "[1]", -EINVAL, {"has a place for"}},
};

START_TEST(refusals) {
    const struct spoil *sp = &SPOILS[_i];
    json_t *h = header_of_twin();
    const char *has[8] = {"found ", "expected "};
    const char *module = strstr(sp->tensor, ".mlp.experts.0.up_proj"); /* named without the suffix */

    has[2] = module ? ".mlp.experts.0.up_proj" : sp->tensor;
    memcpy(has + 3, sp->has, 4 * sizeof *has);
    if (!sp->dtype)
        ck_assert_int_eq(json_object_del(h, sp->tensor), 0);
    else
        json_object_set_new(
            h, sp->tensor,
            json_pack("{s:s,s:o}", "dtype", sp->dtype, "shape", json_loads(sp->shape, 0, NULL)));
    rewrite(h, relayout(h));
    json_decref(h);
    d.n_items = 77;
    ckpt_expect(sp->label, open_all(dir.dir), sp->code, &err, has);
    /* The file is named: the shard for a tensor that is there, the directory for one that is not. */
    ck_assert_ptr_nonnull(strstr(err.msg, sp->dtype ? SHARD : dir.dir));
    ck_assert_uint_eq(d.n_items, 77);
    d.n_items = 0;
}
END_TEST

START_TEST(without_draft_layer) {
    json_t *h = header_of_twin(), *v;
    const char *name;
    void *tmp;

    json_object_foreach_safe(h, tmp, name, v) {
        if (strncmp(name, T "layers.4.", strlen(T "layers.4.")) == 0)
            json_object_del(h, name);
    }
    rewrite(h, relayout(h));
    json_decref(h);
    ck_assert_msg(open_all(dir.dir) == 0, "%s", err.msg);
    ck_assert(!d.has_draft);
    ck_assert_ptr_null(find(KERN_DRAFT_EH, 4, 0));
}
END_TEST

/* Tensors without a layer that wants them: the file has an MTP layer, the configuration has none. */
START_TEST(draft_layer_nobody_asked_for) {
    json_t *c;

    ckpt_copy(&dir, "nano");
    c = ckpt_json(&dir, "config.json");
    ckpt_set(c, "text_config.num_nextn_predict_layers", json_integer(0));
    ckpt_write_json(&dir, "config.json", c);
    json_decref(c);
    ckpt_expect("no draft", open_all(dir.dir), -EINVAL, &err,
                (const char *const[]){T "layers.9.", "has a place for", NULL});
}
END_TEST

/* A configuration of other widths than the tensors. */
START_TEST(configuration_of_other_widths) {
    static const struct {
        const char *path;
        int value;
        const char *tensor;
    } WIDTHS[] = {
        {"text_config.vocab_size", 8192, "embed_tokens.weight"},
        {"text_config.intermediate_size", 512, "layers.0.mlp.gate_proj.weight"},
        {"text_config.n_routed_experts", 9, "layers.3.mlp.gate.weight"},
        {"text_config.q_lora_rank", 64, "layers.3.self_attn.q_a_proj.weight"},
        {"text_config.index_n_heads", 8, "layers.3.self_attn.indexer.wq_b.weight"},
        {"text_config.index_kpool", 8, "layers.3.self_attn.indexer.index_kpool_compress_ape"},
        {"text_config.hc_mult", 2, "layers.0.hc_attn_fn"},
        {"text_config.linear_attn_config.short_conv_kernel_size", 3, "layers.0.self_attn.q_conv1d.weight"},
        {"text_config.linear_attn_config.num_heads", 2, "layers.0.self_attn.q_proj.weight"},
    };

    ckpt_copy(&dir, "nano");
    for (size_t i = 0; i < sizeof WIDTHS / sizeof *WIDTHS; i++) {
        json_t *good = ckpt_json(&dir, "config.json"), *c = json_deep_copy(good);

        ckpt_set(c, WIDTHS[i].path, json_integer(WIDTHS[i].value));
        ckpt_write_json(&dir, "config.json", c);
        ckpt_expect(WIDTHS[i].path, open_all(dir.dir), -EINVAL, &err,
                    (const char *const[]){WIDTHS[i].tensor, "found BF16 [", "expected BF16 [", NULL});
        x = model_index_close(x);
        ckpt_write_json(&dir, "config.json", good);
        json_decref(c);
        json_decref(good);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("model_directory");
    TCase *tc = tcase_create("directory");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, nano_parts);
    tcase_add_test(tc, twin_parts);
    tcase_add_loop_test(tc, refusals, 0, (int)(sizeof SPOILS / sizeof *SPOILS));
    tcase_add_test(tc, without_draft_layer);
    tcase_add_test(tc, draft_layer_nobody_asked_for);
    tcase_add_test(tc, configuration_of_other_widths);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
