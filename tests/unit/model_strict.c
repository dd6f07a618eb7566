/* SPDX-License-Identifier: MIT */
/* config.json as a whole: each number and word of it either reaches the result or is refused when it is
 * another one; what is said twice must be said alike; features nobody here knows are named. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"
#include "config.h"
#include "leakcheck.h"

static struct ckpt dir;
static struct xerr err;
static struct model_config cfg, original;

static void setup(void) {
    leakcheck_setup();
    ckpt_copy(&dir, "nano");
    memset(&err, 0, sizeof err);
    ck_assert_int_eq(model_config_read(dir.dir, &original, &err), 0);
}

static void teardown(void) {
    ckpt_remove(&dir);
    leakcheck_teardown();
}

static int read_with(const char *path, json_t *v) {
    json_t *root = ckpt_json(&dir, "config.json"), *changed = json_deep_copy(root);
    int r;

    ckpt_set(changed, path, v);
    ckpt_write_json(&dir, "config.json", changed);
    r = model_config_read(dir.dir, &cfg, &err);
    ckpt_write_json(&dir, "config.json", root);
    json_decref(changed);
    json_decref(root);
    return r;
}

/* Another value of the same type. */
static json_t *other_value(const json_t *v, int by) {
    if (json_is_integer(v))
        return json_integer(json_integer_value(v) + by);
    if (json_is_real(v))
        return json_real(json_real_value(v) * (1 + 0.25 / by));
    if (json_is_boolean(v))
        return json_boolean(!json_is_true(v));
    return json_is_string(v) ? json_string("another") : NULL;
}

/* A value that is read but ignored would pass here unseen, and would be a model that answers wrongly. */
static void no_value_is_ignored(const char *object) {
    json_t *root = ckpt_json(&dir, "config.json"), *v;
    const char *key;
    int n = 0, stored = 0;

    json_object_foreach(ckpt_get(root, object), key, v) {
        static const int STEPS[] = {1, 4, -4, 64};
        bool seen = false;
        char path[128];

        if (json_is_object(v) || json_is_array(v) || strcmp(key, "attention_dropout") == 0)
            continue;
        snprintf(path, sizeof path, "%s.%s", object, key);
        for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++) {
            bool same;

            if (read_with(path, other_value(v, STEPS[i])) < 0) {
                seen = true;
                continue;
            }
            same = memcmp(&cfg, &original, sizeof cfg) == 0;
            ck_assert_msg(!same, "%s may change without a trace", path);
            stored++;
        }
        ck_assert(seen || stored > 0);
        n++;
    }
    ck_assert_int_ge(n, 4);
    ck_assert_int_ge(stored, 3);
    json_decref(root);
}

START_TEST(every_value_counts) {
    no_value_is_ignored("text_config");
    no_value_is_ignored("text_config.linear_attn_config");
}
END_TEST

/* The top level may repeat text_config, in whole or in part. */
START_TEST(repeated_above) {
    json_t *root = ckpt_json(&dir, "config.json"), *v;
    const char *key;
    int n = 0;

    json_object_foreach(ckpt_get(root, "text_config"), key, v) {
        json_t *wrong = json_is_array(v) || json_is_object(v) ? json_array() : other_value(v, 4);

        if (strcmp(key, "model_type") == 0 || strcmp(key, "attention_dropout") == 0) {
            json_decref(wrong);
            continue;
        }
        ck_assert_msg(read_with(key, json_deep_copy(v)) == 0, "%s", err.msg);
        ck_assert_mem_eq(&cfg, &original, sizeof cfg);
        if (read_with(key, wrong) == 0)
            ck_abort_msg("%s differs above and is taken", key);
        ck_assert_msg(strstr(err.msg, key) && strstr(err.msg, "config.json: ") && strstr(err.msg, "found ") &&
                          strstr(err.msg, "expected "),
                      "%s", err.msg);
        n++;
    }
    ck_assert_int_gt(n, 40);
    json_decref(root);
}
END_TEST

static const struct {
    const char *path, *json;
    int code;
    const char *says;
} TWICE[] = {
    {"text_config.linear_attn_config.lower_bound", "-4.0", -EINVAL, "lower_bound: found -4"},
    {"text_config.linear_attn_config.lower_bound", "\"-5\"", -EINVAL, "lower_bound: found \"-5\""},
    {"text_config.linear_attn_config.lower_bound", "-5", 0, ""},
    {"text_config.linear_attn_config.lower_bound", "null", 0, ""},
    {"text_config.torch_dtype", "\"float16\"", -EINVAL, "text_config.torch_dtype: found \"float16\""},
    {"text_config.torch_dtype", "\"bfloat16\"", 0, ""},
    {"torch_dtype", "\"float32\"", -EINVAL, "torch_dtype: found \"float32\""},
    {"torch_dtype", "\"bfloat16\"", 0, ""},
    {"vocab_size", "154880", -EINVAL, "vocab_size: found 154880"},
    {"rms_norm_eps", "0.00001", 0, ""},
};

START_TEST(said_twice) {
    int r = read_with(TWICE[_i].path, json_loads(TWICE[_i].json, JSON_DECODE_ANY, NULL));

    ck_assert_msg(r == TWICE[_i].code, "%s %s: %d %s", TWICE[_i].path, TWICE[_i].json, r, err.msg);
    if (r < 0)
        ck_assert_msg(strstr(err.msg, TWICE[_i].says) && strstr(err.msg, "expected "), "%s", err.msg);
}
END_TEST

/* What other models of this kind have, and this reader has no code for. */
static const char *const FEATURES[] = {"embed_scale",
                                       "layernorm_zero_centered",
                                       "zero_centered_gamma",
                                       "use_qk_norm",
                                       "use_bias",
                                       "mlp_bias",
                                       "attn_logit_softcapping",
                                       "attention_sink",
                                       "sinks_per_head",
                                       "query_pre_attn_scalar",
                                       "output_gate",
                                       "post_mlp_layernorm",
                                       "mup_enabled",
                                       "window_size",
                                       "swa_window",
                                       "dsa_index_heads",
                                       "kpool_stride",
                                       "lora_rank",
                                       "mscale_all_dim",
                                       "logits_scaling",
                                       "residual_multiplier",
                                       "vocab_size_per_layer_input",
                                       "expert_bias",
                                       "n_hash_layers",
                                       "chunk_size"};

START_TEST(unknown_features) {
    char path[96];

    for (size_t i = 0; i < sizeof FEATURES / sizeof *FEATURES; i++) {
        snprintf(path, sizeof path, "text_config.%s", FEATURES[i]);
        ckpt_expect(path, read_with(path, json_integer(1)), -ENOTSUP, &err,
                    (const char *const[]){path, "found 1", "no such key", NULL});
    }
}
END_TEST

/* A pipe in a file's place must not hang the start. */
START_TEST(pipes_in_place_of_files) {
    static const char *const files[] = {"config.json", "generation_config.json"};
    struct model_generation g;

    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(unlink(ckpt_path(&dir, files[i])), 0);
        ck_assert_int_eq(mkfifo(ckpt_path(&dir, files[i]), 0600), 0);
    }
    ckpt_expect("pipe", model_config_read(dir.dir, &cfg, &err), -EINVAL, &err,
                (const char *const[]){"config.json", "regular file", NULL});
    ckpt_expect("pipe", model_generation_read(dir.dir, &original, &g, &err), -EINVAL, &err,
                (const char *const[]){"generation_config.json", "regular file", NULL});
}
END_TEST

int main(void) {
    Suite *s = suite_create("model_strict");
    TCase *tc = tcase_create("config");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, every_value_counts);
    tcase_add_test(tc, repeated_above);
    tcase_add_loop_test(tc, said_twice, 0, sizeof TWICE / sizeof *TWICE);
    tcase_add_test(tc, unknown_features);
    tcase_add_test(tc, pipes_in_place_of_files);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
