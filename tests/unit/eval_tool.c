/* SPDX-License-Identifier: MIT */
/* glm-eval's judgement: what passes, what differs, what could not be run; each with what it prints. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt.h"
#include "eval.h"
#include "leakcheck.h"
#include "safetensors.h"

#define GOLDEN "tests/golden/golden-nano.safetensors"

/* Output of one call, both streams together. */
static char said[8192];

static int call(int (*fn)(const struct eval_options *o, const char *file), const struct eval_options *o,
                const char *file) {
    FILE *t = tmpfile();
    int out = dup(1), err = dup(2), r;
    size_t n;

    ck_assert_ptr_nonnull(t);
    fflush(stdout);
    fflush(stderr);
    dup2(fileno(t), 1);
    dup2(fileno(t), 2);
    r = fn(o, file);
    fflush(stdout);
    fflush(stderr);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    rewind(t);
    n = fread(said, 1, sizeof said - 1, t);
    said[n] = 0;
    fclose(t);
    return r;
}

#define SAID(text) ck_assert_msg(strstr(said, (text)) != NULL, "found \"%s\", expected \"%s\"", said, (text))

static struct eval_options options(const char *only) {
    static char dir[256];

    snprintf(dir, sizeof dir, "%s", ckpt_model("nano"));
    return (struct eval_options){ .model = dir, .backend = "cpu", .only = only, .tolerance = 1e-4 };
}

/* A golden file with some bytes changed: `patch` gets the tensor's bytes. */
static void spoil(const struct ckpt *c, const char *tensor, void (*patch)(char *p, uint64_t n)) {
    struct xerr err = { 0 };
    const struct st_tensor *t;
    struct st_file *f;
    uint64_t n = 0;
    char *all = eval_read_file(GOLDEN, &n);

    ck_assert_ptr_nonnull(all);
    ck_assert_int_eq(st_open(&f, GOLDEN, NULL, &err), 0);
    t = st_find(f, tensor);
    ck_assert_ptr_nonnull(t);
    patch(all + t->offset, t->bytes);
    st_close(f);
    ckpt_write(c, "golden.safetensors", all, n);
    free(all);
}

static void one_id(char *p, uint64_t n) {
    int32_t v;

    memcpy(&v, p + n - 4, 4);
    v ^= 1;
    memcpy(p + n - 4, &v, 4);
}

static void one_nan(char *p, uint64_t n) {
    const float v = NAN;

    memcpy(p + n / 8 * 4, &v, 4);
}

static void slightly(char *p, uint64_t n) {
    for (uint64_t i = 0; i + 4 <= n; i += 4) {
        float v;

        memcpy(&v, p + i, 4);
        v *= 1.0f + 3e-4f;
        memcpy(p + i, &v, 4);
    }
}

START_TEST(test_judgement) {
    static const struct {
        const char *tensor;
        void (*patch)(char *p, uint64_t n);
    } bad[] = {
        { "three.logits_last", slightly }, { "three.logits_last", one_nan }, { "three.top1", one_id },
        { "three.logsumexp", slightly },   { "three.logsumexp", one_nan },   { "three.next_logit", slightly },
        { "three.mtp_top1", one_id },      { "three.mtp_logits_last", slightly },
    };
    struct eval_options o = options("three");
    struct ckpt c;

    ck_assert_int_eq(call(eval_golden, &o, GOLDEN), EVAL_OK);
    SAID("three      ok   ids 3 ");
    SAID("1 ok, 0 beyond");
    ckpt_empty(&c);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        spoil(&c, bad[i].tensor, bad[i].patch);
        ck_assert_msg(call(eval_golden, &o, ckpt_path(&c, "golden.safetensors")) == EVAL_DIFFERS, "%zu: %s", i,
                      said);
        SAID("three      FAIL");
    }
    o.tolerance = 1e-3; /* what was beyond 1e-4 is within 1e-3 */
    spoil(&c, "three.logits_last", slightly);
    ck_assert_int_eq(call(eval_golden, &o, ckpt_path(&c, "golden.safetensors")), EVAL_OK);
    ckpt_remove(&c);
}
END_TEST

START_TEST(test_hidden_and_greedy) {
    struct eval_options o = options("count");
    struct ckpt c;

    ckpt_empty(&c);
    spoil(&c, "count.hidden.4", slightly);
    ck_assert_int_eq(call(eval_golden, &o, ckpt_path(&c, "golden.safetensors")), EVAL_DIFFERS);
    SAID("(worst: 4 of 0-9)");
    spoil(&c, "count.greedy", one_id);
    ck_assert_int_eq(call(eval_golden, &o, ckpt_path(&c, "golden.safetensors")), EVAL_DIFFERS);
    SAID("greedy 84/85");
    ckpt_remove(&c);
}
END_TEST

/* A rounded cache moves every number a little, and --cache says which rounding. */
START_TEST(test_cache_formats) {
    static const double tolerance[] = { 1e-5, 3e-3, 3e-2 };
    struct eval_options o = options("polish");

    for (uint32_t i = 0; i < 3; i++) {
        o.cache = i;
        o.tolerance = tolerance[i];
        ck_assert_msg(call(eval_golden, &o, GOLDEN) == EVAL_OK, "%u: %s", i, said);
        o.tolerance = i ? tolerance[i - 1] : 0;
        ck_assert_msg(call(eval_golden, &o, GOLDEN) == EVAL_DIFFERS, "%u: %s", i, said);
    }
}
END_TEST

START_TEST(test_json) {
    struct eval_options o = options("three");
    json_error_t e;
    json_t *doc;

    o.json = true;
    ck_assert_int_eq(call(eval_golden, &o, GOLDEN), EVAL_OK);
    doc = json_loads(said, 0, &e);
    ck_assert_msg(doc != NULL, "%s", e.text);
    ck_assert(json_is_true(json_object_get(doc, "within")));
    ck_assert_str_eq(json_string_value(ckpt_get(doc, "cases.0.case")), "three");
    ck_assert_int_eq(json_integer_value(ckpt_get(doc, "cases.0.top1.0")), 3);
    json_decref(doc);
}
END_TEST

START_TEST(test_pictures) {
    struct eval_options o = options("image_56x56");
    static char dir[256];

    snprintf(dir, sizeof dir, "%s", ckpt_model("twin-a"));
    o.model = dir;
    /* nothing was compared, so nothing is right */
    ck_assert_int_eq(call(eval_golden, &o, "tests/golden/golden-twin-a.safetensors"), EVAL_TROUBLE);
    SAID("a picture case: not yet supported");
    SAID("nothing was compared");
    o.json = true;
    ck_assert_int_eq(call(eval_golden, &o, "tests/golden/golden-twin-a.safetensors"), EVAL_TROUBLE);
    SAID("\"within\": false");
}
END_TEST

START_TEST(test_trouble) {
    struct eval_options o = options("four");
    struct ckpt c;

    ck_assert_int_eq(call(eval_golden, &o, GOLDEN), EVAL_TROUBLE);
    SAID("found no case \"four\"");
    o.only = NULL;
    ck_assert_int_eq(call(eval_golden, &o, "/nonexistent"), EVAL_TROUBLE);
    SAID("/nonexistent");
    ckpt_empty(&c);
    ckpt_write_st(&c, "g.safetensors", "{\"x\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}", NULL, 4);
    ck_assert_int_eq(call(eval_golden, &o, ckpt_path(&c, "g.safetensors")), EVAL_TROUBLE);
    SAID("found no case");
    ckpt_write_st(&c, "g.safetensors", "{\"x.ids\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}", NULL,
                  4);
    ck_assert_int_eq(call(eval_golden, &o, ckpt_path(&c, "g.safetensors")), EVAL_TROUBLE);
    SAID("found no x.logits_last");
    ckpt_write_st(&c, "g.safetensors", "{\"x.ids\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", NULL,
                  4);
    ck_assert_int_eq(call(eval_golden, &o, ckpt_path(&c, "g.safetensors")), EVAL_TROUBLE);
    SAID("found F32, expected I32");
    o.model = c.dir;
    ck_assert_int_eq(call(eval_golden, &o, GOLDEN), EVAL_TROUBLE);
    SAID("config.json");
    ckpt_remove(&c);
}
END_TEST

/* One tensor of a shard changed in a copy of the checkpoint. */
static void spoil_weights(const struct ckpt *c, const char *tensor, void (*patch)(char *p, uint64_t n)) {
    for (int i = 1; i <= 3; i++) {
        struct xerr err = { 0 };
        const struct st_tensor *t;
        struct st_file *f;
        char file[64];
        char *all;
        size_t n;

        snprintf(file, sizeof file, "model-%05d-of-00003.safetensors", i);
        ck_assert_int_eq(st_open(&f, ckpt_path(c, file), NULL, &err), 0);
        t = st_find(f, tensor);
        if (t) {
            all = ckpt_read(c, file, &n);
            patch(all + t->offset, t->bytes);
            ckpt_write(c, file, all, n);
            free(all);
            st_close(f);
            return;
        }
        st_close(f);
    }
    ck_abort_msg("no tensor %s", tensor);
}

/* BF16: one number's sign, or half a vector's size. */
static void one_sign(char *p, uint64_t n) {
    p[n / 4 * 2 + 1] ^= (char)0x80;
}

static void last_exponent(char *p, uint64_t n) {
    p[n - 1] ^= 0x01;
}

static void too_large(char *p, uint64_t n) {
    const uint16_t huge = 0x7f7f; /* the largest number there is */

    for (uint64_t i = 0; i + 2 <= n; i += 2)
        memcpy(p + i, &huge, 2);
}

/* Wrong weights are told from right ones, one number of them, too; numbers beyond all bounds are a difference
 * and no crash, and the cases after it are still run. */
START_TEST(test_wrong_weights) {
    static const struct {
        const char *tensor;
        void (*patch)(char *p, uint64_t n);
    } bad[] = {
        { "model.language_model.layers.5.input_layernorm.weight", last_exponent },
        { "lm_head.weight", one_sign },
        { "model.language_model.layers.0.mlp.down_proj.weight", one_sign },
    };
    struct eval_options o = options("three");

    for (size_t i = 0; i <= sizeof bad / sizeof bad[0]; i++) {
        struct ckpt c;

        ckpt_copy(&c, "nano");
        o.model = c.dir;
        if (i < sizeof bad / sizeof bad[0]) {
            spoil_weights(&c, bad[i].tensor, bad[i].patch);
        } else {
            o.only = "count";
            spoil_weights(&c, "model.language_model.norm.weight", too_large);
        }
        ck_assert_msg(call(eval_golden, &o, GOLDEN) == EVAL_DIFFERS, "%zu: %s", i, said);
        SAID("FAIL");
        SAID("1 beyond tolerance");
        ckpt_remove(&c);
    }
}
END_TEST

/* Golden files made to let something through. */
START_TEST(test_hostile) {
    static const struct {
        const char *header;
        int32_t n;
        const char *says;
    } bad[] = {
#define X(key, dtype, at) "\"x." key "\":{\"dtype\":\"" dtype "\",\"shape\":[1],\"data_offsets\":" at "}"
#define BASE X("ids", "I32", "[0,4]") "," X("logits_last", "F32", "[4,8]") "," X("top1", "I32", "[8,12]") "," \
             X("logsumexp", "F32", "[12,16]")
        { "{" BASE "}", 16, "found logits of 1 numbers" },
        { "{" BASE "," X("hidden.1", "F32", "[16,20]") "}", 20, "found x.hidden.1" },
        { "{" BASE "," X("hidden.0", "F32", "[16,20]") "," X("hidden.2", "F32", "[20,24]") "}", 24,
          "found x.hidden.2" },
        { "{" BASE "," X("gredy", "I32", "[16,20]") "}", 20, "found x.gredy" },
        { "{" BASE "," X("mtp_logits_last", "F32", "[16,20]") "}", 20, "leaves nothing to draft" },
        { "{" BASE "," X("greedy", "I32", "[16,20]") "}", -20, "x.greedy: found -1" },
        { "{" BASE "," X("greedy", "F32", "[16,20]") "}", 20, "found F32, expected I32" },
        { "{" X("ids", "I32", "[0,4]") "," X("top1", "I32", "[4,8]") "," X("logsumexp", "F32", "[8,12]") "}", 12,
          "found no x.logits_last" },
        { "{\"x\\u001b[2J.ids\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "a byte 0x1b" },
    };
    struct eval_options o = options(NULL);
    struct ckpt c;
    char *all;
    size_t n;

    ckpt_empty(&c);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int32_t data[8] = { 0 }, size = abs(bad[i].n);

        if (bad[i].n < 0)
            data[size / 4 - 1] = -1;
        ckpt_write_st(&c, "g.safetensors", bad[i].header, data, (size_t)size);
        ck_assert_msg(call(eval_golden, &o, ckpt_path(&c, "g.safetensors")) == EVAL_TROUBLE, "%zu: %s", i, said);
        SAID(bad[i].says);
    }
    ckpt_write(&c, "g.safetensors", "", 0);
    ck_assert_int_eq(call(eval_golden, &o, ckpt_path(&c, "g.safetensors")), EVAL_TROUBLE);
    all = eval_read_file(GOLDEN, &n);
    ckpt_write(&c, "g.safetensors", all, n - 4);
    free(all);
    ck_assert_int_eq(call(eval_golden, &o, ckpt_path(&c, "g.safetensors")), EVAL_TROUBLE);
    o.only = "three";
    o.tolerance = 0; /* no two sums are the same to the last bit */
    ck_assert_int_eq(call(eval_golden, &o, GOLDEN), EVAL_DIFFERS);
    SAID("three      FAIL");
    ckpt_remove(&c);
}
END_TEST

START_TEST(test_pairs) {
    static const struct {
        const char *text;
        int code;
        const char *says;
    } tok[] = {
        { "[]", EVAL_TROUBLE, "the file holds no pair" },
        { "{}", EVAL_TROUBLE, "expected an array" },
        { "[1]", EVAL_TROUBLE, "pair 0: expected an object" },
        { "[{\"text\":\"a\"}]", EVAL_TROUBLE, "expected an object with" },
        { "[{\"text\":\"a\",\"ids\":[1.5]}]", EVAL_TROUBLE, "no token id" },
        { "[{\"text\":\"a\",\"ids\":[9999999]}]", EVAL_TROUBLE, "does not have" },
        { "[{\"text\":\"\",\"ids\":[]},{\"text\":\"Hello, world!\",\"ids\":[39,334,593,11,880,1092,0]}]", EVAL_OK,
          "2 pairs, 0 differ" },
        { "[{\"text\":\"Hello, world!\",\"ids\":[39,334,593,11,880,1092,1]}]", EVAL_DIFFERS,
          "encode: id 6 is 0, expected 1" },
        { "[{\"text\":\"Hello, world!\",\"ids\":[39,334,593,11,880,1092]}]", EVAL_DIFFERS,
          "encode: found 7 ids, expected fewer" },
        { "[{\"text\":\"Hello, world!\",\"ids\":[39,334,593,11,880,1092,0,0]}]", EVAL_DIFFERS,
          "encode: found 7 ids, expected more" },
    };
    static const struct {
        const char *text;
        int code;
        const char *says;
    } chat[] = {
        { "[{\"request\":{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]},\"prompt\":"
          "\"[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi<|assistant|><think>\"}]",
          EVAL_OK, "1 pairs, 0 differ" },
        { "[{\"request\":{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]},\"prompt\":"
          "\"[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Ho<|assistant|><think>\"}]",
          EVAL_DIFFERS, "first difference at byte 52" },
        { "[{\"request\":{\"messages\":[]},\"prompt\":\"\"}]", EVAL_TROUBLE, "pair 0" },
    };
    struct eval_options o = options(NULL);
    struct ckpt c;

    ckpt_empty(&c);
    for (size_t i = 0; i < sizeof tok / sizeof tok[0]; i++) {
        ckpt_write(&c, "t.json", tok[i].text, strlen(tok[i].text));
        ck_assert_msg(call(eval_tokens, &o, ckpt_path(&c, "t.json")) == tok[i].code, "%zu: %s", i, said);
        SAID(tok[i].says);
    }
    for (size_t i = 0; i < sizeof chat / sizeof chat[0]; i++) {
        ckpt_write(&c, "t.json", chat[i].text, strlen(chat[i].text));
        ck_assert_msg(call(eval_chat, &o, ckpt_path(&c, "t.json")) == chat[i].code, "%zu: %s", i, said);
        SAID(chat[i].says);
    }
    ckpt_remove(&c);
}
END_TEST

START_TEST(test_numbers) {
    const float a[3] = { 1, 2, 3 }, b[3] = { 1, 2, 3 }, far[3] = { 1, 2, 100 }, none[3] = { 1, NAN, 3 };

    ck_assert(eval_rel_error(a, b, 3) == 0);
    ck_assert(fabs(eval_max_error(a, far, 3) - 0.97) < 1e-6);
    ck_assert(!eval_within(eval_rel_error(a, none, 3), 1e9));
    ck_assert(!eval_within(eval_rel_error(none, a, 3), 1e9));
    ck_assert(!eval_within(eval_max_error(a, none, 3), 1e9));
    ck_assert(!eval_within(eval_max_error(none, a, 3), 1e9));
}
END_TEST

int main(void) {
    Suite *s = suite_create("eval_tool");
    TCase *tc = tcase_create("eval");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_judgement);
    tcase_add_test(tc, test_hidden_and_greedy);
    tcase_add_test(tc, test_cache_formats);
    tcase_add_test(tc, test_json);
    tcase_add_test(tc, test_pictures);
    tcase_add_test(tc, test_trouble);
    tcase_add_test(tc, test_wrong_weights);
    tcase_add_test(tc, test_hostile);
    tcase_add_test(tc, test_pairs);
    tcase_add_test(tc, test_numbers);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
