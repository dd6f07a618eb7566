/* SPDX-License-Identifier: MIT */
/* glm-pack --numbers and --compare: a pack answers as the plain numbers do that its format stands for, whatever the
 * daemon's reader and the backend make of names, scales and blocks on the way. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"
#include "packtest.h"

static json_t *compare(const char *a, const char *b, const char *backend) {
    const char *argv[] = { TEST_BUILD "/glm-pack", "--compare", a,        b,     "--text", packtest_out("text"),
                           "--backend",            backend,     "--json", NULL };
    ck_assert_msg(runprog(&packtest_prog, argv, NULL, false, NULL) == 0, "%s", packtest_prog.err_text);
    json_t *doc = json_loads(packtest_prog.out_text, 0, NULL);
    ck_assert_msg(doc != NULL, "no JSON: %s", packtest_prog.out_text);
    return doc;
}

static double of_text(const json_t *doc, const char *key) {
    return json_number_value(json_object_get(json_object_get(doc, "text"), key));
}

/* One format of each family and of each way of scaling. */
static const struct {
    const char *model, *word, *backend;
} PACKS[] = {
    { "nano", "nvfp4", "cpu" },   { "nano", "nvfp4-ct", "cpu" }, { "nano", "int4", "cpu" },
    { "nano", "mxfp4", "cpu" },   { "nano", "fp8", "cpu" },      { "nano", "q4_k", "cpu" },
    { "nano", "iq3_xxs", "cpu" }, { "twin-a", "exl3-4", "ref" },
};

START_TEST(pack_is_its_numbers) {
    /* trellises and lattices are searched slowly: a part of the experts is enough of them */
    static const char *const exl3[] = { "--part", "experts=bf16", "--part",
                                        "*.layers.1.mlp.experts.[01].*=exl3-4" };
    static const char *const iq3[] = { "--part", "experts=bf16", "--part", "*.layers.4.mlp.experts.*=iq3_xxs" };
    const char *more[] = { NULL, NULL, NULL, NULL, NULL, NULL };
    int n = 0;
    static const char line[] = "The daemon keeps a prefix. Za\xc5\xbc\xc3\xb3\xc5\x82\xc4\x87 "
                               "g\xc4\x99\xc5\x9bl\xc4\x85 ja\xc5\xba\xc5\x84: 12, 345.\nWhat is not said is "
                               "not heard; write it down, twice. ";
    char in[256], pack[256], plain[256];
    const char *word = PACKS[_i].word, *backend = PACKS[_i].backend;
    struct stat st;
    if (strcmp(word, "exl3-4") == 0 || strcmp(word, "iq3_xxs") == 0) {
        memcpy(more, word[0] == 'e' ? exl3 : iq3, sizeof exl3);
        n = sizeof exl3 / sizeof *exl3;
    }
    snprintf(in, sizeof in, "%s", ckpt_model(PACKS[_i].model));
    snprintf(pack, sizeof pack, "%s", packtest_out("pack"));
    snprintf(plain, sizeof plain, "%s", packtest_out("plain"));
    ckpt_write(&packtest_dir, "text", line, sizeof line - 1);
    ck_assert_msg(packtest(in, pack, word, more) == 0, "%s", packtest_prog.err_text);
    more[n] = "--numbers";
    ck_assert_msg(packtest(in, plain, word, more) == 0, "%s", packtest_prog.err_text);
    ck_assert_msg(stat(packtest_out("plain/hf_quant_config.json"), &st) < 0, "numbers have no quantisation");
    json_t *same = compare(plain, pack, backend), *other = compare(in, pack, backend);
    ck_assert_int_gt(of_text(same, "positions"), 40);
    ck_assert_msg(of_text(same, "kl") < 1e-6 && of_text(same, "same") == 1, "%s: KL %g, same %g", word,
                  of_text(same, "kl"), of_text(same, "same"));
    ck_assert_msg(of_text(other, "kl") > 1e-5, "%s: the format changed nothing: KL %g", word, of_text(other, "kl"));
    json_decref(same);
    json_decref(other);
}
END_TEST

static int wrong(const char *const *argv) {
    return runprog(&packtest_prog, argv, NULL, false, NULL);
}

/* Options that do not go together, each in words. */
START_TEST(wrong_together) {
    static const char pack[] = TEST_BUILD "/glm-pack";
    const char *writes[] = { pack, "--compare", "a", "b", "--text", "t", "--numbers", NULL };
    const char *no_text[] = { pack, "--compare", "a", "b", NULL };
    const char *one[] = { pack, "--compare", "a", "--text", "t", NULL };
    const char *check[] = { pack, "--check", "a", "--compare", NULL };
    ck_assert_int_eq(wrong(writes), 2);
    PACKTEST_SAYS("--compare writes nothing");
    ck_assert_int_eq(wrong(no_text), 2);
    PACKTEST_SAYS("expected two directories and --text FILE");
    ck_assert_int_eq(wrong(one), 2);
    ck_assert_int_eq(wrong(check), 2);
    PACKTEST_SAYS("--check stands alone");
}
END_TEST

int main(void) {
    Suite *s = suite_create("pack_numbers");
    TCase *t = tcase_create("numbers");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, packtest_setup, packtest_teardown);
    tcase_add_loop_test(t, pack_is_its_numbers, 0, sizeof PACKS / sizeof *PACKS);
    tcase_add_test(t, wrong_together);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
