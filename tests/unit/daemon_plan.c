/* SPDX-License-Identifier: MIT */
/* glmd --plan: what a checkpoint holds and takes, for people and for programs, and the refusals of what
 * should not be served without knowing it. */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptgguf.h"
#include "leakcheck.h"
#include "runprog.h"

#define GLMD TEST_BUILD "/test/glmd"

static struct ckpt dir;
static struct ckpt_set set;
static struct runprog p;

static void setup(void) {
    leakcheck_setup();
    memset(&set, 0, sizeof set);
    dir.dir[0] = 0;
}

static void teardown(void) {
    ckpt_set_done(&set);
    if (dir.dir[0])
        ckpt_remove(&dir);
    leakcheck_teardown();
}

/* nano with the matrices whose names contain part in another spelling. */
static void spell(const char *part, enum ckpt_spelling how) {
    ckpt_copy(&dir, "nano");
    ckpt_set_load(&set, "nano");
    ck_assert_uint_gt(ckpt_spell_all(&set, part, how), 0);
    ckpt_set_write(&set, &dir);
}

static int plan(const char *model, const char *config) {
    const char *const argv[] = {GLMD,  "--plan",  "--json", "--backend", "ref",  "--context",
                                "512", "--model", model,    "--config",  config, NULL};

    return runprog(&p, argv, NULL, false, NULL);
}

static uint64_t bytes_of(const char *part, const char *format) {
    json_t *root = json_loads(p.out_text, 0, NULL), *v;
    uint64_t bytes = 0;
    size_t i;

    ck_assert_msg(root != NULL, "%s%s", p.out_text, p.err_text);
    json_array_foreach(json_object_get(root, "weights"), i, v) {
        if ((!part || strcmp(json_string_value(json_object_get(v, "part")), part) == 0) &&
            (!format || strcmp(json_string_value(json_object_get(v, "format")), format) == 0))
            bytes += (uint64_t)json_integer_value(json_object_get(v, "bytes"));
    }
    json_decref(root);
    return bytes;
}

/* What the parts take by their formats is what the backend asked for, within a hundredth. */
static void near_the_backends(void) {
    json_t *root = json_loads(p.out_text, 0, NULL);
    uint64_t parts = bytes_of(NULL, NULL), all = 0;

    ck_assert_ptr_nonnull(root);
    all = (uint64_t)json_integer_value(json_object_get(root, "weight_bytes"));
    json_decref(root);
    ck_assert_msg(all >= parts && all <= parts + parts / 100, "%llu bytes of weights, %llu by their formats",
                  (unsigned long long)all, (unsigned long long)parts);
}

/* The line for the whole is the sum of those above it, and what the machine has stands below. */
static void sum_of_the_lines(void) {
    static const char *const part[] = {"\nweights in memory", "\ncache pages", "\nstates ", "\nwork "};
    const char *all = strstr(p.out_text, "\nin all "), *has = strstr(p.out_text, "\navailable here ");
    double sum = 0;

    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        const char *line = strstr(p.out_text, part[i]);

        ck_assert_ptr_nonnull(line);
        sum += strtod(line + strlen("\n") + 66, NULL);
    }
    ck_assert(all && has);
    ck_assert_double_eq_tol(strtod(all + strlen("\n") + 66, NULL), sum, 0.003);
    ck_assert_double_gt(strtod(has + strlen("\n") + 66, NULL), sum);
}

START_TEST(for_people_and_programs) {
    const char *const text[] = {GLMD, "--plan", "--model", ckpt_model("nano"), "--config", "/dev/null", NULL};
    static const char *const alone[] = {GLMD, "--json", NULL};
    json_t *root;

    ck_assert_msg(runprog(&p, text, NULL, false, NULL) == 0, "%s", p.err_text);
    ck_assert(strstr(p.out_text, "routed experts") && strstr(p.out_text, "BF16") &&
              strstr(p.out_text, "cache pages"));
    sum_of_the_lines();
    ck_assert_msg(plan(ckpt_model("nano"), "/dev/null") == 0, "%s", p.err_text);
    root = json_loads(p.out_text, 0, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_str_eq(json_string_value(json_object_get(root, "model")), "nano");
    ck_assert_int_eq(json_integer_value(json_object_get(root, "context_tokens")), 512);
    ck_assert_int_gt(json_integer_value(json_object_get(root, "available_bytes")), 1 << 20);
    /* 6 layers of 8 experts of three matrices of 128 x 256 */
    ck_assert_uint_eq(bytes_of("routed experts", "BF16"), 6ull * 8 * 3 * 128 * 256 * 2);
    near_the_backends();
    json_decref(root);
    ck_assert_int_eq(runprog(&p, alone, NULL, false, NULL), 2);
    ck_assert_ptr_nonnull(strstr(p.err_text, "--plan"));
}
END_TEST

/* Each rank's own bytes, which together are more than the weights; and the refusal of what cannot be cut. */
START_TEST(bytes_of_each_rank) {
    const char *argv[] = {GLMD, "--plan", "--json", "--model", ckpt_model("nano"), "--config", "/dev/null", "--ranks",
                          "4", NULL};
    uint64_t all = 0;
    json_t *root, *v;
    size_t i;

    ck_assert_msg(runprog(&p, argv, NULL, false, NULL) == 0, "%s", p.err_text);
    root = json_loads(p.out_text, 0, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "rank_bytes")), 4);
    json_array_foreach(json_object_get(root, "rank_bytes"), i, v) {
        ck_assert_int_gt(json_integer_value(v), 0);
        all += (uint64_t)json_integer_value(v);
    }
    ck_assert_uint_gt(all, (uint64_t)json_integer_value(json_object_get(root, "weight_bytes")));
    json_decref(root);
    argv[2] = "--ranks"; /* as text */
    argv[3] = "2";
    argv[4] = "--model";
    argv[5] = ckpt_model("nano");
    argv[6] = NULL;
    ck_assert_msg(runprog(&p, argv, NULL, false, NULL) == 0, "%s", p.err_text);
    ck_assert(strstr(p.out_text, "rank 0 ") && strstr(p.out_text, "rank 1 ") && !strstr(p.out_text, "rank 2 "));
    argv[3] = "8";
    ck_assert_int_eq(runprog(&p, argv, NULL, false, NULL), 1);
    ck_assert_msg(strstr(p.err_text, "kda_heads is 4") != NULL, "%s", p.err_text);
}
END_TEST

START_TEST(experts_in_four_bits) {
    spell("mlp.experts", CKPT_NVFP4_CT);
    ck_assert_msg(plan(dir.dir, "/dev/null") == 0, "%s", p.err_text);
    ck_assert_uint_eq(bytes_of("routed experts", "NVFP4"),
                      6ull * 8 * 3 * (128 * 256 / 2 + 128 * 256 / 16 + 4));
    near_the_backends();
    ck_assert_uint_eq(bytes_of("routed experts", "BF16"), 0);
}
END_TEST

START_TEST(four_bits_elsewhere_must_be_allowed) {
    spell("shared_experts", CKPT_MXFP4_CT);
    ck_assert_int_eq(plan(dir.dir, "/dev/null"), 1);
    ck_assert_msg(strstr(p.err_text, "AllowFourBitDense=yes") != NULL, "%s", p.err_text);
    ckpt_write(&dir, "glmd.conf", "[Model]\nAllowFourBitDense=yes\n", 30);
    ck_assert_msg(plan(dir.dir, ckpt_path(&dir, "glmd.conf")) == 0, "%s", p.err_text);
    ck_assert_uint_gt(bytes_of("shared experts", "MXFP4"), 0);
    near_the_backends();
}
END_TEST

START_TEST(small_parts_must_be_allowed) {
    static const char conf[] = "[Model]\nAllowLowPrecision=kv_b\n";

    spell("kv_b_proj", CKPT_FP8_BLOCK);
    ck_assert_int_eq(plan(dir.dir, "/dev/null"), 1);
    ck_assert_msg(strstr(p.err_text, "AllowLowPrecision=kv_b") != NULL, "%s", p.err_text);
    ckpt_write(&dir, "glmd.conf", conf, sizeof conf - 1);
    ck_assert_msg(plan(dir.dir, ckpt_path(&dir, "glmd.conf")) == 0, "%s", p.err_text);
    ck_assert_uint_gt(bytes_of("MLA kv_b", NULL), 0);
}
END_TEST

START_TEST(made_smaller_at_load) {
    static const char conf[] = "[Model]\nConvert=shared:int8,kda_o:mxfp8\n";

    ckpt_copy(&dir, "nano");
    ckpt_write(&dir, "glmd.conf", conf, sizeof conf - 1);
    ck_assert_msg(plan(dir.dir, ckpt_path(&dir, "glmd.conf")) == 0, "%s", p.err_text);
    ck_assert_uint_eq(bytes_of("shared experts", "INT8 g128 (BF16)"), bytes_of("shared experts", NULL));
    ck_assert_uint_gt(bytes_of("shared experts", NULL), 0);
    ck_assert_uint_gt(bytes_of("KDA projections", "MXFP8"), 0);
    ck_assert_uint_gt(bytes_of("KDA projections", "BF16"), 0);
}
END_TEST

/* Made smaller and cut: the matrices take what they take for one rank, and what the ranks keep of them is that and the
 * scales that two of them need. */
START_TEST(made_smaller_among_ranks) {
    static const char conf[] =
        "[Model]\nConvert=shared:int8,mla:mxfp8 kda_in:int8,kda_o:mxfp8,lm_head:int8\nRanks=%d\n";
    uint64_t one = 0, whole = 0;
    char text[160];

    ckpt_copy(&dir, "nano");
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        uint64_t all, weights;
        json_t *root;

        snprintf(text, sizeof text, conf, ranks);
        ckpt_write(&dir, "glmd.conf", text, strlen(text));
        ck_assert_msg(plan(dir.dir, ckpt_path(&dir, "glmd.conf")) == 0, "%d ranks: %s", ranks, p.err_text);
        all = bytes_of(NULL, NULL);
        root = json_loads(p.out_text, 0, NULL);
        weights = (uint64_t)json_integer_value(json_object_get(root, "weight_bytes"));
        ck_assert_uint_eq(json_array_size(json_object_get(root, "rank_bytes")), (size_t)ranks);
        json_decref(root);
        if (ranks == 1) {
            one = all;
            whole = weights;
        }
        ck_assert_uint_eq(all, one);
        ck_assert_uint_eq(bytes_of("shared experts", "INT8 g128 (BF16)"), 6ull * 3 * 128 * 256 * 130 / 128);
        /* a tenth of nano is on every rank, and of scales little */
        ck_assert(weights >= whole && weights <= whole + whole * (uint64_t)(ranks - 1) / 8);
    }
}
END_TEST

/* ---- what the configuration says, before a checkpoint is looked at ---- */

static const struct {
    const char *conf, *says;
} wrong_words[] = {
    {"[Model]\nThreads=1\nConvert=sharde:int8\n",
     "glmd.conf:3: [Model] Convert: found \"sharde\", expected words of: shared, dense, mla, kda_in, kda_o, lm_head"},
    {"[Model]\nConvert=shared:int8,dense:int9\n",
     "glmd.conf:2: [Model] Convert: found format \"int9\", expected one of: int8, int4, mxfp8"},
    {"[Model]\nConvert=shared\n", "glmd.conf:2: [Model] Convert: found \"shared\", expected GROUP:FORMAT"},
    {"[Model]\nConvert=mla:int8,mla:mxfp8\n", "glmd.conf:2: [Model] Convert: found mla twice"},
    {"\n[Model]\nConvert=embed:int8\n", "glmd.conf:3: [Model] Convert: found embed, which stays"},
    {"[Model]\nConvert=dense:int4\n", "glmd.conf:2: [Model] Convert: found int4, expected int8 or mxfp8"},
    {"[Model]\nAllowLowPrecision=kv_b,heads\n",
     "glmd.conf:2: [Model] AllowLowPrecision: found \"heads\", expected words of: embed, kv_b, indexer, kda_gates"},
};

START_TEST(words_refused) {
    const char *argv[] = {GLMD, "--check-config", "--config", NULL, "--model", "/nowhere", NULL};

    ckpt_empty(&dir);
    ckpt_write(&dir, "glmd.conf", wrong_words[_i].conf, strlen(wrong_words[_i].conf));
    argv[3] = ckpt_path(&dir, "glmd.conf");
    for (int i = 0; i < 3; i++) { /* whatever is asked of it */
        argv[1] = i == 0 ? "--check-config" : i == 1 ? "--plan" : "--foreground";
        ck_assert_int_eq(runprog(&p, argv, NULL, false, NULL), 2);
        ck_assert_msg(strstr(p.err_text, wrong_words[_i].says) != NULL, "%s", p.err_text);
    }
}
END_TEST

START_TEST(words_accepted) {
    static const char conf[] = "[Model]\nConvert=shared:int8, dense:int4 ,\nAllowFourBitDense=yes\n"
                               "AllowLowPrecision=kv_b, embed\n";
    const char *argv[] = {GLMD, "--check-config", "--config", NULL, NULL};

    ckpt_empty(&dir);
    ckpt_write(&dir, "glmd.conf", conf, strlen(conf));
    argv[3] = ckpt_path(&dir, "glmd.conf");
    ck_assert_msg(runprog(&p, argv, NULL, false, NULL) == 0, "%s", p.err_text);
    ck_assert(strstr(p.out_text, "glmd.conf:2\nConvert=shared:int8, dense:int4 ,\n") &&
              strstr(p.out_text, "# default\nBackend=cpu\n"));
}
END_TEST

/* A machine that is too small is told what it would take, and what is missing. */
START_TEST(without_the_memory) {
    static const char conf[] = "[Memory]\nKeepFreeBytes=1000G\n";
    uint64_t all;
    json_t *root;

    ckpt_copy(&dir, "nano");
    ckpt_write(&dir, "glmd.conf", conf, strlen(conf));
    ck_assert_msg(plan(dir.dir, "/dev/null") == 0, "%s", p.err_text);
    all = bytes_of(NULL, NULL);
    ck_assert_msg(strstr(p.out_text, "\"fits\":true") != NULL, "%s", p.out_text);
    ck_assert_int_eq(plan(dir.dir, ckpt_path(&dir, "glmd.conf")), 1);
    ck_assert_uint_eq(bytes_of(NULL, NULL), all);
    root = json_loads(p.out_text, 0, NULL);
    ck_assert(json_is_false(json_object_get(root, "fits")));
    ck_assert_int_eq(json_integer_value(json_object_get(root, "context_tokens")), 512);
    ck_assert_int_gt(json_integer_value(json_object_get(root, "page_bytes")), 0);
    json_decref(root);
    ck_assert_msg(strstr(p.err_text, "must stay free") != NULL, "%s", p.err_text);
}
END_TEST

START_TEST(gguf_alone) {
    struct ckpt_gguf g;
    struct ckpt from;
    json_t *c, *t;

    snprintf(from.dir, sizeof from.dir, "%s", ckpt_model("nano"));
    c = ckpt_json(&from, "config.json");
    t = ckpt_json(&from, "tokenizer.json");
    ckpt_empty(&dir);
    ckpt_set_load(&set, "nano");
    ckpt_gguf_init(&g);
    ckpt_gguf_model(&g, &set, c);
    ckpt_gguf_tokenizer(&g, t, c);
    ckpt_gguf_write(&g, &dir, "nano.gguf");
    ckpt_gguf_done(&g);
    json_decref(c);
    json_decref(t);
    ck_assert_msg(plan(dir.dir, "/dev/null") == 0, "%s", p.err_text);
    ck_assert_uint_eq(bytes_of("routed experts", "BF16"), 6ull * 8 * 3 * 128 * 256 * 2);
    /* the file itself, as other programs want it: said what to name */
    ck_assert_int_eq(plan(ckpt_path(&dir, "nano.gguf"), "/dev/null"), 1);
    ck_assert_msg(strstr(p.err_text, "name the directory that a GGUF model lies in") != NULL, "%s", p.err_text);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_plan");
    TCase *tc = tcase_create("plan");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, for_people_and_programs);
    tcase_add_test(tc, bytes_of_each_rank);
    tcase_add_test(tc, experts_in_four_bits);
    tcase_add_test(tc, four_bits_elsewhere_must_be_allowed);
    tcase_add_test(tc, small_parts_must_be_allowed);
    tcase_add_test(tc, made_smaller_at_load);
    tcase_add_test(tc, made_smaller_among_ranks);
    tcase_add_loop_test(tc, words_refused, 0, sizeof wrong_words / sizeof *wrong_words);
    tcase_add_test(tc, words_accepted);
    tcase_add_test(tc, gguf_alone);
    tcase_add_test(tc, without_the_memory);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
