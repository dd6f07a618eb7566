/* SPDX-License-Identifier: MIT */
/* Packs of a writer that shares nothing with ours: in every spelling of a published pack, the daemon's
 * answers are those of the numbers that the tests' own decoder finds in it. Reader, unpacker and products are
 * all on one side of the comparison; nothing of them is on the other, where plain F32 is computed. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "goldmake.h"
#include "leakcheck.h"

enum { IDS = 40, GREEDY = 2 };

static struct ckpt pack, plain;
static struct ckpt_set set;

static void setup(void) {
    leakcheck_setup();
    memset(&set, 0, sizeof set);
}

static void teardown(void) {
    ckpt_set_done(&set);
    leakcheck_teardown();
}

/* The model in `pack` with matrices of `part` in that spelling, its numbers in `plain`, and what those say in
 * plain/golden.safetensors. */
static void make(const char *model, const char *part, enum ckpt_spelling how) {
    struct ckpt_rng rng = {(uint64_t)how};
    struct ckpt_set gold = {.n = 0};
    uint32_t ids[IDS];
    size_t n;

    ckpt_set_load(&set, model);
    n = ckpt_spell_all(&set, part, how);
    ck_assert_uint_gt(n, 50);
    ckpt_copy(&pack, model);
    ckpt_copy(&plain, model);
    ckpt_set_write(&set, &pack);
    ck_assert_uint_eq(ckpt_plain_all(&set), how > CKPT_F32 ? n : 0);
    ckpt_set_write(&set, &plain);
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = (uint32_t)(ckpt_rand(&rng) % 4060);
    goldmake_engine(&gold, "text", plain.dir, "cpu", ids, IDS, GREEDY);
    ckpt_set_save(&gold, ckpt_path(&plain, "golden.safetensors"));
    ckpt_set_done(&gold);
}

static void judge(const char *backend, enum ckpt_spelling how) {
    int r = goldmake_judge(pack.dir, backend, ckpt_path(&plain, "golden.safetensors"), 1e-3);

    ck_assert_msg(r == 0, "%s on %s: %s", ckpt_spelling_name[how], backend, goldmake_said);
    if (getenv("GLMD_FOREIGN"))
        printf("%s: %s", ckpt_spelling_name[how], goldmake_said);
}

/* Every kind of code and of scale once; EXL3 in the experts alone, and by the scalar backend. */
static const enum ckpt_spelling HOW[] = {
    CKPT_FP8_BLOCK, CKPT_FP8_CHANNEL, CKPT_FP8_TENSOR, CKPT_NVFP4_MODELOPT, CKPT_NVFP4_CT,   CKPT_MXFP8,
    CKPT_MXFP4_CT,  CKPT_INT8,        CKPT_INT4,       CKPT_EXL3,           CKPT_EXL3_SIGNS, CKPT_EXL3_3INST,
};

START_TEST(test_spelling) {
    const enum ckpt_spelling how = HOW[_i];

    make("twin-a", how < CKPT_EXL3 ? "" : "mlp.experts", how);
    judge(how < CKPT_EXL3 ? "cpu" : "ref", how);
    ckpt_remove(&pack);
    ckpt_remove(&plain);
}
END_TEST

/* GLMD_FOREIGN=all: every spelling, both models, both backends; minutes. */
START_TEST(test_all) {
    const enum ckpt_spelling how = (enum ckpt_spelling)(_i / 2);

    make(_i % 2 ? "nano" : "twin-a", "", how);
    if (how < CKPT_EXL3)
        judge("cpu", how);
    judge("ref", how);
    ckpt_remove(&pack);
    ckpt_remove(&plain);
}
END_TEST

int main(void) {
    Suite *s = suite_create("pack_foreign");
    TCase *t = tcase_create("spellings");
    SRunner *sr;
    int failed;

    tcase_set_timeout(t, 300);
    tcase_add_checked_fixture(t, setup, teardown);
    if (getenv("GLMD_FOREIGN"))
        tcase_add_loop_test(t, test_all, 2 * CKPT_F16, 2 * CKPT_SPELLINGS);
    else
        tcase_add_loop_test(t, test_spelling, 0, sizeof HOW / sizeof *HOW);
    suite_add_tcase(s, t);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
