/* SPDX-License-Identifier: MIT */
/* glm-pack and what should not be there: FIFOs in place of files, checkpoints the daemon would refuse, stacks of
 * experts that differ, paths that are no text. Every refusal comes before anything is written and says what is
 * wrong. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckptset.h"
#include "packtest.h"
#include "twin53.h"

static const char PROG[] = TEST_BUILD "/glm-pack";

static void make_fifo(const struct ckpt *c, const char *name) {
    unlink(ckpt_path(c, name));
    ck_assert_int_eq(mkfifo(ckpt_path(c, name), 0644), 0);
}

/* A FIFO without a writer hangs whoever opens it as a file. */
START_TEST(fifos_do_not_hang) {
    static const char *const file[] = { "config.json", "tokenizer.json" };
    const char *check[] = { PROG, "--check", NULL, NULL };
    const char *compare[] = { PROG, "--compare", NULL, NULL, "--text", NULL, NULL };
    for (int i = 0; i < 2; i++) {
        struct ckpt c;
        ckpt_copy(&c, "twin-a");
        make_fifo(&c, file[i]);
        ck_assert_int_eq(packtest(c.dir, packtest_out("o"), "q8_0", NULL), 2);
        PACKTEST_SAYS("regular file");
        PACKTEST_SAYS(file[i]);
        ckpt_remove(&c);
    }
    struct ckpt c;
    ckpt_copy(&c, "twin-a");
    make_fifo(&c, "glm-pack.json");
    check[2] = c.dir;
    ck_assert_int_eq(runprog(&packtest_prog, check, NULL, false, NULL), 1);
    PACKTEST_SAYS("glm-pack.json: found something that is not a regular file");
    make_fifo(&packtest_dir, "text");
    compare[5] = packtest_out("text");
    compare[2] = compare[3] = ckpt_model("twin-a");
    ck_assert_int_eq(runprog(&packtest_prog, compare, NULL, false, NULL), 2);
    PACKTEST_SAYS("expected a regular file");
    ckpt_remove(&c);
}
END_TEST

static int pack_set(const struct ckpt_set *s, const struct ckpt *c, const char *format, const char *const *more) {
    ckpt_set_write(s, c);
    return packtest(c->dir, packtest_out("o"), format, more);
}

/* What the daemon refuses is refused before a byte is converted, in every family of formats. */
START_TEST(only_what_the_daemon_reads) {
    static const char EXPERT[] = "model.language_model.layers.1.mlp.experts.3.up_proj.weight";
    static const char A_LOG[] = "model.language_model.layers.0.self_attn.A_log";
    static const char *const format[] = { "nvfp4", "q8_0" };
    const char *word = format[_i];
    struct ckpt_set s = { .n = 0 };
    struct ckpt c;
    ckpt_copy(&c, "twin-a");
    ckpt_set_load(&s, "twin-a");
    /* as many bytes, another matrix */
    uint64_t rows = ckpt_set_get(&s, EXPERT)->dim[0], cols = ckpt_set_get(&s, EXPERT)->dim[1];
    ckpt_set_put(&s, EXPERT, "BF16", NULL, 2, rows / 2, 2 * cols);
    ck_assert_int_eq(pack_set(&s, &c, word, NULL), 2);
    PACKTEST_SAYS("experts.3.up_proj.weight");
    PACKTEST_SAYS("expected BF16 [");
    ckpt_set_put(&s, EXPERT, "BF16", NULL, 5, (uint64_t)1, (uint64_t)1, (uint64_t)1, rows, cols);
    ck_assert_int_eq(pack_set(&s, &c, word, NULL), 2);
    PACKTEST_SAYS("experts.3.up_proj.weight");
    ckpt_set_put(&s, EXPERT, "BF16", NULL, 2, rows, cols);
    uint64_t heads = ckpt_set_get(&s, A_LOG)->dim[0];
    ckpt_set_put(&s, A_LOG, "BF16", NULL, 1, heads); /* would have been written without its exponential */
    ck_assert_int_eq(pack_set(&s, &c, word, NULL), 2);
    PACKTEST_SAYS("self_attn.A_log: found BF16");
    ckpt_set_drop(&s, A_LOG);
    ck_assert_int_eq(pack_set(&s, &c, word, NULL), 2);
    PACKTEST_SAYS("self_attn.A_log: found nothing, expected F32");
    ck_assert_msg(access(packtest_out("o"), F_OK) < 0, "a refusal left something behind");
    ckpt_write(&c, "config.json", "[]", 2);
    ck_assert_int_eq(packtest(c.dir, packtest_out("o"), word, NULL), 2);
    PACKTEST_SAYS("config.json: found a JSON array, expected an object");
    ck_assert_msg(access(packtest_out("o"), F_OK) < 0, "a refusal left something behind");
    ckpt_set_done(&s);
    ckpt_remove(&c);
}
END_TEST

/* Experts that stay as they are stand behind each other in one tensor of one type. */
START_TEST(stacks_of_one_type) {
    static const char *const raw[] = { "--part", "experts=bf16", NULL };
    static const struct {
        const char *dtype;
        int expert;
    } cases[] = { { "F32", 1 }, { "F16", 1 }, { "F32", 0 } };
    char name[120], want[160];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ckpt_set s = { .n = 0 };
        struct ckpt c;
        ckpt_copy(&c, "twin-a");
        ckpt_set_load(&s, "twin-a");
        snprintf(name, sizeof name, "model.language_model.layers.1.mlp.experts.%d.up_proj.weight", cases[i].expert);
        uint64_t rows = ckpt_set_get(&s, name)->dim[0], cols = ckpt_set_get(&s, name)->dim[1];
        ckpt_set_put(&s, name, cases[i].dtype, NULL, 2, rows, cols);
        ck_assert_int_eq(pack_set(&s, &c, "q8_0", raw), 2);
        snprintf(want, sizeof want, "experts.1.up_proj.weight: found %s, expected the type of expert 0",
                 cases[i].expert ? cases[i].dtype : "BF16");
        PACKTEST_SAYS(want);
        ck_assert(access(packtest_out("o/model.gguf"), F_OK) < 0);
        ckpt_set_done(&s);
        ckpt_remove(&c);
        packtest_teardown();
        packtest_setup();
    }
}
END_TEST

/* Another vocabulary is no lack of memory. */
START_TEST(other_vocabulary) {
    const char *argv[] = { PROG, "--compare", ckpt_model("twin-a"), NULL, "--text", "README.md", NULL };
    struct o53_dims d = twin53_dims();
    struct o53_model m;
    struct ckpt other;
    d.vocab += 64;
    ckpt_empty(&other);
    twin53_make(&m, &d, 5391, "bf16");
    twin53_write(&m, &other, "bf16");
    twin53_done(&m);
    argv[3] = other.dir;
    ck_assert_int_eq(runprog(&packtest_prog, argv, NULL, false, NULL), 2);
    PACKTEST_SAYS("expected 4096 as ");
    PACKTEST_SAYS("only answers over the same tokens are compared");
    ckpt_remove(&other);
}
END_TEST

/* A text that is none, and names that are empty. */
START_TEST(no_text_and_no_name) {
    const char *compare[] = { PROG, "--compare", NULL, NULL, "--text", NULL, NULL };
    const char *check[] = { PROG, "--check", "", NULL };
    char model[256], text[300];
    snprintf(model, sizeof model, "%s", ckpt_model("twin-a"));
    snprintf(text, sizeof text, "%s", packtest_out("text"));
    ckpt_write(&packtest_dir, "text", "caf\xe9 au lait", 12);
    compare[2] = compare[3] = model;
    compare[5] = text;
    ck_assert_int_eq(runprog(&packtest_prog, compare, NULL, false, NULL), 2);
    PACKTEST_SAYS("text: cannot be tokenized: found bytes that are no UTF-8");
    compare[2] = "";
    ck_assert_int_eq(runprog(&packtest_prog, compare, NULL, false, NULL), 2);
    PACKTEST_SAYS("a directory without a name");
    ck_assert_int_eq(packtest(model, "", "int8", NULL), 2);
    PACKTEST_SAYS("a directory without a name");
    ck_assert_int_eq(runprog(&packtest_prog, check, NULL, false, NULL), 2);
    PACKTEST_SAYS("a directory without a name");
}
END_TEST

/* Two directories whose names are no UTF-8 are two: work on one is not continued with the other. */
START_TEST(paths_that_are_no_text) {
    const char *argv[] = { PROG, NULL, NULL, "--format", "nvfp4", "--json", NULL };
    const char *check[] = { PROG, "--check", NULL, "--json", NULL };
    char a[300], b[300], o[300];
    struct ckpt_set s = { .n = 0 };
    struct ckpt in;
    ckpt_copy(&in, "twin-a");
    ckpt_set_load(&s, "twin-a");
    ckpt_set_write(&s, &in);
    ckpt_set_done(&s);
    snprintf(a, sizeof a, "%s", packtest_out("a\xff"));
    snprintf(b, sizeof b, "%s", packtest_out("b\xff"));
    ck_assert_int_eq(symlink(in.dir, a), 0);
    ck_assert_int_eq(symlink(in.dir, b), 0);
    snprintf(o, sizeof o, "%s", packtest_out("o"));
    argv[1] = a;
    argv[2] = o;
    ck_assert_msg(runprog(&packtest_prog, argv, NULL, false, NULL) == 0, "%s", packtest_prog.err_text);
    json_t *doc = json_loads(packtest_prog.out_text, 0, NULL);
    ck_assert_msg(json_is_string(json_object_get(doc, "source")), "%s", packtest_prog.out_text);
    json_decref(doc);
    ck_assert_int_eq(rename(packtest_out("o/glm-pack.json"), packtest_out("o/glm-pack.partial")), 0);
    argv[1] = b;
    ck_assert_int_eq(runprog(&packtest_prog, argv, NULL, false, NULL), 2);
    PACKTEST_SAYS("unfinished work of other options or another source");
    check[2] = a;
    ck_assert_int_eq(unlink(ckpt_path(&in, "config.json")), 0);
    ck_assert_int_eq(runprog(&packtest_prog, check, NULL, false, NULL), 1);
    doc = json_loads(packtest_prog.out_text, 0, NULL);
    ck_assert_msg(json_is_false(json_object_get(doc, "good")), "%s", packtest_prog.out_text);
    ck_assert_str_ne(json_string_value(json_object_get(doc, "error")), "");
    json_decref(doc);
    ckpt_remove(&in);
}
END_TEST

int main(void) {
    Suite *s = suite_create("pack_hostile");
    TCase *t = tcase_create("hostile");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, packtest_setup, packtest_teardown);
    tcase_add_test(t, fifos_do_not_hang);
    tcase_add_loop_test(t, only_what_the_daemon_reads, 0, 2);
    tcase_add_test(t, stacks_of_one_type);
    tcase_add_test(t, other_vocabulary);
    tcase_add_test(t, no_text_and_no_name);
    tcase_add_test(t, paths_that_are_no_text);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
