/* SPDX-License-Identifier: MIT */
/* The files of the configuration as files: broken JSON, generation_config.json, long paths, random damage. */
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
static struct model_generation gen;

static void setup(void) {
    leakcheck_setup();
    ckpt_copy(&dir, "nano");
    memset(&err, 0, sizeof err);
}

static void teardown(void) {
    ckpt_remove(&dir);
    leakcheck_teardown();
}

struct edit {
    const char *label, *path, *json; /* json NULL: delete */
    int code;
    const char *has[4];
};

static void apply(const char *file, const struct edit *ed) {
    json_t *root = ckpt_json(&dir, file);

    ckpt_set(root, ed->path, ed->json ? json_loads(ed->json, JSON_DECODE_ANY, NULL) : NULL);
    ckpt_write_json(&dir, file, root);
    json_decref(root);
}

START_TEST(generation_values) {
    static const char *const models[] = {"nano", "twin-a"};

    for (int i = 0; i < 2; i++) {
        const char *m = ckpt_model(models[i]);

        ck_assert_int_eq(model_config_read(m, &cfg, &err), 0);
        ck_assert_msg(model_generation_read(m, &cfg, &gen, &err) == 0, "%s", err.msg);
        ck_assert(gen.has_temperature && gen.has_top_p && gen.has_do_sample);
        ck_assert_double_eq(gen.temperature, 1.0);
        ck_assert_double_eq(gen.top_p, 0.95);
        ck_assert(gen.do_sample);
        ck_assert(!gen.has_top_k && !gen.has_min_p && !gen.has_repetition_penalty);
    }
}
END_TEST
static const struct edit GEN_EDITS[] = {
    {"eos missing", "eos_token_id", NULL, -EINVAL, {"eos_token_id", "nothing"}},
    {"eos differs", "eos_token_id", "4060", -EINVAL, {"eos_token_id", "found 4060", "the 3 ids"}},
    {"pad differs", "pad_token_id", "4061", -EINVAL, {"pad_token_id", "found 4061", "4060"}},
    {"bos", "bos_token_id", "0", -ENOTSUP, {"bos_token_id", "found 0", "null"}},
    {"negative temperature", "temperature", "-0.5", -EINVAL, {"temperature", "-0.5", "from 0"}},
    {"temperature a word", "temperature", "\"hot\"", -EINVAL, {"temperature", "\"hot\"", "a number"}},
    {"top_p above 1", "top_p", "1.5", -EINVAL, {"top_p", "found 1.5", "from 1e-09 to 1"}},
    {"top_p of nothing", "top_p", "0", -EINVAL, {"top_p", "found 0", "from 1e-09 to 1"}},
    {"min_p negative", "min_p", "-1", -EINVAL, {"min_p", "found -1", "from 0 to 1"}},
    {"top_k fractional", "top_k", "1.5", -EINVAL, {"top_k", "found 1.5", "integer"}},
    {"top_k beyond", "top_k", "5000", -EINVAL, {"top_k", "found 5000", "4096"}},
    {"no penalty", "repetition_penalty", "0", -EINVAL, {"repetition_penalty", "found 0"}},
    {"do_sample a number", "do_sample", "1", -EINVAL, {"do_sample", "found 1", "true or false"}},
};

START_TEST(generation_refusals) {
    const struct edit *ed = &GEN_EDITS[_i];
    const char *has[8] = {"generation_config.json: ", "found ", "expected "};

    memcpy(has + 3, ed->has, sizeof ed->has);
    ck_assert_int_eq(model_config_read(dir.dir, &cfg, &err), 0);
    apply("generation_config.json", ed);
    ckpt_expect(ed->label, model_generation_read(dir.dir, &cfg, &gen, &err), ed->code, &err, has);
}
END_TEST

static const struct {
    const char *label, *text;
    int code;
    const char *has[3];
} BROKEN[] = {
    {"empty", "", -EBADMSG, {"config.json", "line"}},
    {"not JSON", "model", -EBADMSG, {"line 1", "strict JSON"}},
    {"a list", "[]", -EBADMSG, {"array", "an object"}},
    {"trailing", "{} {}", -EBADMSG, {"line 1", "strict JSON"}},
    {"comment", "{}//x", -EBADMSG, {"strict JSON"}},
    {"duplicate key",
     "{\"model_type\":\"glm5_next\",\n\"model_type\":\"glm5_next\"}",
     -EBADMSG,
     {"line 2", "duplicate"}},
    {"duplicate inside", "{\"text_config\":{\"hc_mult\":4,\"hc_mult\":5}}", -EBADMSG, {"duplicate"}},
    {"NaN", "{\"a\":NaN}", -EBADMSG, {"strict JSON"}},
    {"infinity", "{\"a\":1e999}", -EBADMSG, {"strict JSON", "overflow"}},
    {"huge integer", "{\"a\":123456789012345678901234567890}", -EBADMSG, {"strict JSON", "too big"}},
    {"not UTF-8", "{\"a\":\"\xff\"}", -EBADMSG, {"unable to decode byte 0xff"}},
    {"NUL inside", "{\"a\":\"\\u0000\"}", -EBADMSG, {"strict JSON"}},
    {"deep", "{\"a\":[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}", -EBADMSG, {"nesting", "16"}},
    {"brackets in a string",
     "{\"a\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[\"}",
     -EINVAL,
     {"architectures", "nothing"}},
};

START_TEST(broken_json) {
    const char *has[8] = {"config.json: "};

    memcpy(has + 1, BROKEN[_i].has, sizeof BROKEN[_i].has);
    ckpt_write(&dir, "config.json", BROKEN[_i].text, strlen(BROKEN[_i].text));
    ckpt_expect(BROKEN[_i].label, model_config_read(dir.dir, &cfg, &err), BROKEN[_i].code, &err, has);
}
END_TEST

START_TEST(files) {
    char *big;

    ck_assert_int_eq(unlink(ckpt_path(&dir, "config.json")), 0);
    ckpt_expect("missing", model_config_read(dir.dir, &cfg, &err), -ENOENT, &err,
                (const char *const[]){"config.json", "cannot open", NULL});
    ckpt_expect("a directory", model_config_read("/dev/null", &cfg, &err), -ENOTDIR, &err,
                (const char *const[]){"/dev/null/config.json", "cannot open", NULL});
    big = malloc(5 << 20);
    memset(big, ' ', 5 << 20);
    ckpt_write(&dir, "config.json", big, 5 << 20);
    free(big);
    ckpt_expect("too large", model_config_read(dir.dir, &cfg, &err), -EFBIG, &err,
                (const char *const[]){"config.json", "5242880", "4194304", NULL});
    ck_assert_int_eq(unlink(ckpt_path(&dir, "generation_config.json")), 0);
    ckpt_expect("missing", model_generation_read(dir.dir, &cfg, &gen, &err), -ENOENT, &err,
                (const char *const[]){"generation_config.json", NULL});
}
END_TEST

/* A long directory must not push the fault out of the message. */
START_TEST(long_paths) {
    char path[2100];
    size_t n = 0;

    n += (size_t)snprintf(path, sizeof path, "%s", dir.dir);
    for (int i = 0; i < 900; i++)
        n += (size_t)snprintf(path + n, sizeof path - n, "/.");
    apply("config.json", &(struct edit){.path = "text_config.hc_mult", .json = "99"});
    ckpt_expect(
        "long path", model_config_read(path, &cfg, &err), -EINVAL, &err,
        (const char *const[]){"/config.json: text_config.hc_mult: found 99, expected", "\xe2\x80\xa6", NULL});
}
END_TEST

/* Random edits of the text: anything but a crash or a leak; what still reads must still describe. */
START_TEST(random_damage) {
    struct ckpt_rng g = {.s = 5};
    size_t n;
    char *text = ckpt_read(&dir, "config.json", &n), *copy = malloc(n);
    int ok = 0;

    for (int round = 0; round < 4000; round++) {
        struct kern_model_desc d;
        size_t edits = 1 + ckpt_rand(&g) % 3, len = n;
        int r;

        memcpy(copy, text, n);
        for (size_t k = 0; k < edits; k++) {
            size_t at = ckpt_rand(&g) % n;

            copy[at] = ckpt_rand(&g) % 2 ? (char)ckpt_rand(&g) : text[ckpt_rand(&g) % n];
        }
        if (ckpt_rand(&g) % 8 == 0)
            len = ckpt_rand(&g) % n;
        ckpt_write(&dir, "config.json", copy, len);
        r = model_config_read(dir.dir, &cfg, &err);
        if (r == 0) {
            ok++;
            ck_assert_int_eq(model_config_describe(&cfg, cfg.vocab_size, true, &d, &err), 0);
        } else {
            ck_assert(r == -EINVAL || r == -ENOTSUP || r == -EBADMSG);
            ck_assert_ptr_nonnull(strstr(err.msg, "config.json: "));
        }
    }
    ck_assert_int_gt(ok, 50); /* white space and digits of ids leave some readable */
    free(copy);
    free(text);
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

int main(void) {
    Suite *s = suite_create("model_configfile");
    TCase *tc = tcase_create("files");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, generation_values);
    tcase_add_loop_test(tc, generation_refusals, 0, COUNT(GEN_EDITS));
    tcase_add_loop_test(tc, broken_json, 0, COUNT(BROKEN));
    tcase_add_test(tc, files);
    tcase_add_test(tc, long_paths);
    tcase_add_test(tc, random_damage);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
