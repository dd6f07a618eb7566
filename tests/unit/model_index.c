/* SPDX-License-Identifier: MIT */
/* Shards and their index: they must say the same. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"
#include "index.h"
#include "leakcheck.h"

#define INDEX "model.safetensors.index.json"

static struct ckpt dir;
static struct xerr err;
static struct model_index *x;

static void setup(void) {
    leakcheck_setup();
    memset(&err, 0, sizeof err);
    x = NULL;
}

static void teardown(void) {
    x = model_index_close(x);
    if (dir.dir[0])
        ckpt_remove(&dir);
    leakcheck_teardown();
}

START_TEST(real_models) {
    static const struct {
        const char *name;
        uint32_t files;
        size_t tensors;
    } REAL[] = {{"nano", 3, 440}, {"twin-a", 1, 254}};

    for (int i = 0; i < 2; i++) {
        const struct model_entry *en;

        ck_assert_msg(model_index_open(&x, ckpt_model(REAL[i].name), NULL, &err) == 0, "%s", err.msg);
        ck_assert_uint_eq(model_index_files(x), REAL[i].files);
        ck_assert_uint_eq(model_index_count(x), REAL[i].tensors);
        ck_assert_ptr_null(model_index_warning(x));
        for (size_t k = 0; k < model_index_count(x); k++) {
            en = model_index_at(x, k);
            ck_assert_ptr_eq(model_index_find(x, en->t->name), en);
            ck_assert_ptr_eq(st_find(model_index_file(x, en->file), en->t->name), en->t);
        }
        en = model_index_find(x, "lm_head.weight");
        ck_assert_ptr_nonnull(en);
        ck_assert_uint_eq(en->file, REAL[i].files - 1);
        ck_assert_ptr_null(model_index_find(x, "lm_head"));
        ck_assert_ptr_null(model_index_at(x, REAL[i].tensors));
        ck_assert_ptr_null(model_index_file(x, REAL[i].files));
        x = model_index_close(x);
    }
}
END_TEST

static void write_index(json_t *v) {
    ckpt_write_json(&dir, INDEX, v);
    json_decref(v);
}

#define U8_TENSOR(name) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}"

static void two_shards(void) {
    ckpt_empty(&dir);
    ckpt_write_st(&dir, "s1.safetensors", "{" U8_TENSOR("a") "}", NULL, 1);
    ckpt_write_st(&dir, "s2.safetensors", "{" U8_TENSOR("b") "}", NULL, 1);
}

START_TEST(single_file) {
    ckpt_empty(&dir);
    ckpt_write_st(&dir, "model.safetensors", "{" U8_TENSOR("a") "}", NULL, 1);
    ck_assert_msg(model_index_open(&x, dir.dir, NULL, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(model_index_count(x), 1);
    ck_assert_uint_eq(model_index_files(x), 1);
}
END_TEST

START_TEST(nothing_there) {
    ckpt_empty(&dir);
    ckpt_expect("empty", model_index_open(&x, dir.dir, NULL, &err), -ENOENT, &err,
                (const char *const[]){dir.dir, "neither", INDEX, "model.safetensors", NULL});
}
END_TEST

static const struct {
    const char *label, *index;
    int code;
    const char *has[4];
} BAD[] = {
    {"no weight_map", "{}", -EINVAL, {"weight_map", "found nothing", "an object"}},
    {"weight_map a list", "{\"weight_map\":[]}", -EINVAL, {"weight_map", "a list of 0", "an object"}},
    {"empty weight_map", "{\"weight_map\":{}}", -EINVAL, {"weight_map", "no tensors"}},
    {"file a number", "{\"weight_map\":{\"a\":1}}", -EINVAL, {"tensor a", "found 1", "plain file name"}},
    {"file empty", "{\"weight_map\":{\"a\":\"\"}}", -EINVAL, {"tensor a", "\"\"", "plain file name"}},
    {"absolute",
     "{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
     -EINVAL,
     {"tensor a", "/etc/passwd", "plain file name"}},
    {"in a folder",
     "{\"weight_map\":{\"a\":\"x/s1.safetensors\"}}",
     -EINVAL,
     {"tensor a", "plain file name"}},
    {"parent", "{\"weight_map\":{\"a\":\"..\"}}", -EINVAL, {"tensor a", "\"..\"", "plain file name"}},
    {"backslash", "{\"weight_map\":{\"a\":\"x\\\\s1\"}}", -EINVAL, {"tensor a", "plain file name"}},
    {"dot", "{\"weight_map\":{\"a\":\".\"}}", -EINVAL, {"tensor a", "plain file name"}},
    {"NUL", "{\"weight_map\":{\"a\":\"s1\\u0000\"}}", -EBADMSG, {"strict JSON"}},
    {"name twice",
     "{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}",
     -EBADMSG,
     {"duplicate"}},
    {"missing shards",
     "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s9\",\"c\":\"s8\"}}",
     -ENOENT,
     {"found 1 of 3", "s8", "s9"}},
    {"name absent from its shard",
     "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\",\"c\":\"s2.safetensors\"}}",
     -EINVAL,
     {"weight_map", "tensor c", "s2.safetensors", "none"}},
    {"name in the other shard",
     "{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}",
     -EINVAL,
     {"tensor ", "which holds it", "s1.safetensors", "s2.safetensors"}},
    {"metadata a number",
     "{\"metadata\":1,\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}",
     -EINVAL,
     {"metadata", "found 1", "an object"}},
    {"total a word",
     "{\"metadata\":{\"total_size\":\"2\"},\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}"
     "}",
     -EINVAL,
     {"metadata.total_size", "\"2\"", "a number"}},
};

START_TEST(refusals) {
    const char *has[8] = {INDEX};

    memcpy(has + 1, BAD[_i].has, sizeof BAD[_i].has);
    two_shards();
    ckpt_write(&dir, INDEX, BAD[_i].index, strlen(BAD[_i].index));
    ckpt_expect(BAD[_i].label, model_index_open(&x, dir.dir, NULL, &err), BAD[_i].code, &err, has);
    ck_assert_ptr_null(x);
}
END_TEST

START_TEST(shard_tensor_not_listed) {
    two_shards();
    ckpt_write_st(&dir, "s2.safetensors",
                  "{" U8_TENSOR("b") ",\"extra\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                  NULL, 2);
    write_index(json_pack("{s:{s:s,s:s}}", "weight_map", "a", "s1.safetensors", "b", "s2.safetensors"));
    ckpt_expect("not listed", model_index_open(&x, dir.dir, NULL, &err), -EINVAL, &err,
                (const char *const[]){"s2.safetensors", "found tensor extra", "expected only", INDEX, NULL});
}
END_TEST

START_TEST(name_in_two_shards) {
    two_shards();
    ckpt_write_st(&dir, "s2.safetensors", "{" U8_TENSOR("a") "}", NULL, 1);
    write_index(json_pack("{s:{s:s,s:s}}", "weight_map", "a", "s1.safetensors", "b", "s2.safetensors"));
    ckpt_expect("in two", model_index_open(&x, dir.dir, NULL, &err), -EBADMSG, &err,
                (const char *const[]){"tensor a", "s1.safetensors", "s2.safetensors", "in one shard", NULL});
}
END_TEST

START_TEST(total_size_warns) {
    two_shards();
    write_index(json_pack("{s:{s:i},s:{s:s,s:s}}", "metadata", "total_size", 3, "weight_map", "a",
                          "s1.safetensors", "b", "s2.safetensors"));
    ck_assert_msg(model_index_open(&x, dir.dir, NULL, &err) == 0, "%s", err.msg);
    ck_assert_ptr_nonnull(model_index_warning(x));
    ck_assert_ptr_nonnull(strstr(model_index_warning(x), "total_size: found 3, expected 2"));
}
END_TEST

/* A cache of downloads keeps shards as links to blobs; a link to nothing is a missing shard. */
START_TEST(links) {
    two_shards();
    write_index(json_pack("{s:{s:s,s:s}}", "weight_map", "a", "s1.safetensors", "b", "s2.safetensors"));
    ck_assert_int_eq(rename(ckpt_path(&dir, "s2.safetensors"), ckpt_path(&dir, "blob")), 0);
    ck_assert_int_eq(symlink("blob", ckpt_path(&dir, "s2.safetensors")), 0);
    ck_assert_msg(model_index_open(&x, dir.dir, NULL, &err) == 0, "%s", err.msg);
    x = model_index_close(x);
    ck_assert_int_eq(unlink(ckpt_path(&dir, "blob")), 0);
    ckpt_expect("dangling", model_index_open(&x, dir.dir, NULL, &err), -ENOENT, &err,
                (const char *const[]){INDEX, "found 1 of 2", "missing: s2.safetensors", NULL});
}
END_TEST

START_TEST(missing_real_shard) {
    ckpt_copy(&dir, "nano");
    ck_assert_int_eq(unlink(ckpt_path(&dir, "model-00002-of-00003.safetensors")), 0);
    ckpt_expect(
        "missing", model_index_open(&x, dir.dir, NULL, &err), -ENOENT, &err,
        (const char *const[]){INDEX, "found 2 of 3 shards", "model-00002-of-00003.safetensors", NULL});
}
END_TEST

START_TEST(truncated_real_shard) {
    size_t n;
    char *all;

    ckpt_copy(&dir, "twin-a");
    all = ckpt_read(&dir, "model-00001-of-00001.safetensors", &n);
    ckpt_write(&dir, "model-00001-of-00001.safetensors", all, n - 1);
    free(all);
    ckpt_expect("truncated", model_index_open(&x, dir.dir, NULL, &err), -EBADMSG, &err,
                (const char *const[]){"model-00001-of-00001.safetensors", "found 12831695 bytes",
                                      "expected 12831696", "truncated", NULL});
}
END_TEST

START_TEST(unreadable_index) {
    two_shards();
    ck_assert_int_eq(mkdir(ckpt_path(&dir, INDEX), 0700), 0);
    ckpt_expect("a directory", model_index_open(&x, dir.dir, NULL, &err), -EINVAL, &err,
                (const char *const[]){INDEX, "not a regular file", NULL});
}
END_TEST

START_TEST(random_damage) {
    static const char GOOD[] = "{\"metadata\":{\"total_size\":2},\"weight_map\":{\"a\":\"s1.safetensors\","
                               "\"b\":\"s2.safetensors\"}}";
    struct ckpt_rng g = {.s = 8};
    char copy[sizeof GOOD];
    int ok = 0;

    two_shards();
    for (int round = 0; round < 4000; round++) {
        size_t edits = 1 + ckpt_rand(&g) % 2;
        int r;

        memcpy(copy, GOOD, sizeof GOOD);
        for (size_t k = 0; k < edits; k++)
            copy[ckpt_rand(&g) % (sizeof GOOD - 1)] =
                ckpt_rand(&g) % 2 ? (char)ckpt_rand(&g) : GOOD[ckpt_rand(&g) % (sizeof GOOD - 1)];
        ckpt_write(&dir, INDEX, copy, sizeof GOOD - 1);
        r = model_index_open(&x, dir.dir, NULL, &err);
        ok += r == 0;
        ck_assert_msg(r == 0 || r == -EINVAL || r == -EBADMSG || r == -ENOENT, "%d: %s", r, err.msg);
        x = model_index_close(x);
    }
    ck_assert_int_gt(ok, 10);
}
END_TEST

int main(void) {
    Suite *s = suite_create("model_index");
    TCase *tc = tcase_create("index");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, real_models);
    tcase_add_test(tc, single_file);
    tcase_add_test(tc, nothing_there);
    tcase_add_loop_test(tc, refusals, 0, (int)(sizeof BAD / sizeof *BAD));
    tcase_add_test(tc, shard_tensor_not_listed);
    tcase_add_test(tc, name_in_two_shards);
    tcase_add_test(tc, total_size_warns);
    tcase_add_test(tc, links);
    tcase_add_test(tc, missing_real_shard);
    tcase_add_test(tc, truncated_real_shard);
    tcase_add_test(tc, unreadable_index);
    tcase_add_test(tc, random_damage);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
