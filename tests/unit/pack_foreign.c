/* SPDX-License-Identifier: MIT */
/* Packs of a writer that shares nothing with ours: in every spelling of a published pack, the daemon's
 * answers are those of the numbers that the tests' own decoder finds in it. Reader, unpacker and products are
 * all on one side of the comparison; nothing of them is on the other, where plain F32 is computed. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptgguf.h"
#include "crc32test.h"
#include "goldmake.h"
#include "leakcheck.h"
#include "packtest.h"
#include "twin53.h"

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

/* The set spelt so, in `pack`; its numbers in `plain`, and what those say in plain/golden.safetensors. Both
 * are copies of a directory already. */
static void make_of(struct ckpt_set *s, const char *part, enum ckpt_spelling how, size_t at_least) {
    struct ckpt_rng rng = {(uint64_t)how};
    struct ckpt_set gold = {.n = 0};
    uint32_t ids[IDS];
    size_t n = ckpt_spell_all(s, part, how);

    ck_assert_uint_ge(n, at_least);
    ckpt_set_write(s, &pack);
    ck_assert_uint_eq(ckpt_plain_all(s), how > CKPT_F32 ? n : 0);
    ckpt_set_write(s, &plain);
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = (uint32_t)(ckpt_rand(&rng) % 4060);
    goldmake_engine(&gold, "text", plain.dir, "cpu", ids, IDS, GREEDY);
    ckpt_set_save(&gold, ckpt_path(&plain, "golden.safetensors"));
    ckpt_set_done(&gold);
}

static void make(const char *model, const char *part, enum ckpt_spelling how) {
    ckpt_set_load(&set, model);
    ckpt_copy(&pack, model);
    ckpt_copy(&plain, model);
    make_of(&set, part, how, 51);
}

/* GLM-5.3, with widths that every format can have. */
static void make53(enum ckpt_spelling how) {
    struct o53_dims d = twin53_dims();
    struct o53_model m;

    d.hidden = 128;
    d.layers = 5;
    d.heads = 2;
    d.q_lora = 128;
    d.kv_lora = 128;
    d.nope = 48;
    d.rope = 16;
    d.v = 64;
    d.index_dim = 64;
    d.experts = 4;
    d.dense_width = d.moe_width = 128;
    ckpt_empty(&pack);
    ckpt_empty(&plain);
    twin53_make(&m, &d, 11, "bf16");
    twin53_write(&m, &pack, "bf16");
    twin53_write(&m, &plain, "bf16");
    twin53_done(&m);
    ckpt_set_load_dir(&set, pack.dir);
    make_of(&set, "", how, 60);
}

/* The same with a GGUF file: blocks in `pack`, F32 in `plain`. */
static void make_gguf(const char *part, const struct ckpt_block *b) {
    struct ckpt_rng rng = {b->type};
    struct ckpt_set gold = {.n = 0};
    struct ckpt_gguf g[2];
    struct ckpt from;
    uint32_t ids[IDS];
    json_t *config, *tok;

    snprintf(from.dir, sizeof from.dir, "%s", ckpt_model("nano"));
    config = ckpt_json(&from, "config.json");
    tok = ckpt_json(&from, "tokenizer.json");
    ckpt_set_load(&set, "nano");
    for (int i = 0; i < 2; i++) {
        ckpt_gguf_init(&g[i]);
        ckpt_gguf_model(&g[i], &set, config);
        ckpt_gguf_tokenizer(&g[i], tok, config);
    }
    ck_assert_uint_gt(ckpt_gguf_spell(&g[0], &g[1], part, b), 11);
    ckpt_empty(&pack);
    ckpt_empty(&plain);
    ckpt_gguf_write(&g[0], &pack, "nano.gguf");
    ckpt_gguf_write(&g[1], &plain, "nano.gguf");
    for (int i = 0; i < 2; i++)
        ckpt_gguf_done(&g[i]);
    json_decref(config);
    json_decref(tok);
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = (uint32_t)(ckpt_rand(&rng) % 4060);
    goldmake_engine(&gold, "text", plain.dir, "cpu", ids, IDS, GREEDY);
    ckpt_set_save(&gold, ckpt_path(&plain, "golden.safetensors"));
    ckpt_set_done(&gold);
}

static void judge(const char *backend, const char *name) {
    int r = goldmake_judge(pack.dir, backend, ckpt_path(&plain, "golden.safetensors"), 1e-3);

    ck_assert_msg(r == 0, "%s on %s: %s", name, backend, goldmake_said);
    if (getenv("GLMD_FOREIGN"))
        printf("%s: %s", name, goldmake_said);
}

/* Signs without a scale make numbers around one: in attention they saturate everything, and any rounding
 * grows to 1e-3, so they stay with the experts. */
static const char *where(enum ckpt_spelling how) {
    return how == CKPT_EXL3_SIGNS ? "mlp.experts" : "";
}

/* Every kind of code and of scale once. */
static const enum ckpt_spelling HOW[] = {
    CKPT_FP8_BLOCK, CKPT_FP8_CHANNEL, CKPT_FP8_TENSOR, CKPT_NVFP4_MODELOPT, CKPT_NVFP4_CT,   CKPT_MXFP8,
    CKPT_MXFP4_CT,  CKPT_INT8,        CKPT_INT4,       CKPT_EXL3,           CKPT_EXL3_SIGNS, CKPT_EXL3_3INST,
};

START_TEST(test_spelling) {
    const enum ckpt_spelling how = HOW[_i];

    make("twin-a", where(how), how);
    judge("cpu", ckpt_spelling_name[how]);
    ckpt_remove(&pack);
    ckpt_remove(&plain);
}
END_TEST

/* The release is in FP8 blocks; an INT4 and INT8 mixture of it is public, and these cover the kinds of scale.
 */
static const enum ckpt_spelling HOW53[] = {CKPT_FP8_BLOCK_CT, CKPT_NVFP4_CT, CKPT_MXFP8, CKPT_INT8,
                                           CKPT_EXL3};

START_TEST(test_glm53) {
    make53(HOW53[_i]);
    judge("cpu", ckpt_spelling_name[HOW53[_i]]);
    ckpt_remove(&pack);
    ckpt_remove(&plain);
}
END_TEST

/* GLMD_FOREIGN=all: every spelling, both models, both backends; minutes. */
START_TEST(test_all) {
    const enum ckpt_spelling how = (enum ckpt_spelling)(_i / 2);

    make(_i % 2 ? "nano" : "twin-a", where(how), how);
    judge("cpu", ckpt_spelling_name[how]);
    judge("ref", ckpt_spelling_name[how]);
    ckpt_remove(&pack);
    ckpt_remove(&plain);
}
END_TEST

/* The tests' decoder itself, by checksums of what the formats' own library makes of the same bytes. */
START_TEST(test_vectors) {
    static const struct {
        const char *name;
        uint32_t crc;
    } V[] = {{"Q8_0", 0x331dae17}, {"Q4_K", 0x4a0ff77d},   {"Q5_K", 0x885bbff6},
             {"Q6_K", 0xa4c1436a}, {"IQ4_NL", 0xa700b6cc}, {"MXFP4", 0x22b4b7ca}};
    const struct ckpt_block *b = &CKPT_BLOCKS[_i];
    unsigned char p[256];
    float y[256];

    ck_assert_str_eq(V[_i].name, b->name);
    for (uint32_t i = 0; i < b->bytes; i++)
        p[i] = (unsigned char)(37 * i + 11);
    if (b->type == 39) {
        p[0] = 0x7d;
    } else {
        memcpy(p + (b->type == 14 ? 208 : 0), "\0\x34", 2);
        if (b->type == 12 || b->type == 13)
            memcpy(p + 2, "\0\x30", 2);
    }
    ckpt_block_read(b, p, y);
    for (uint32_t i = 0; i < b->numbers; i++)
        y[i] = b->type == 39 && y[i] == 0 ? 0 : y[i]; /* code 8 of MXFP4 is +0 there */
    ck_assert_msg(crc32_of(y, b->numbers * 4) == V[_i].crc, "%s: %08x, expected %08x", b->name,
                  crc32_of(y, b->numbers * 4), V[_i].crc);
}
END_TEST

/* The other way: what glm-pack writes, read by the tests' decoder, is what glm-pack says that it stands for.
 */
static const struct {
    const char *format, *part;
} OURS[] = {
    {"fp8", NULL},
    {"fp8-channel", NULL},
    {"fp8-tensor", NULL},
    {"int8", NULL},
    {"mxfp8", NULL},
    {"nvfp4", NULL},
    {"nvfp4-ct", NULL},
    {"mxfp4", NULL},
    {"int4", NULL},
    {"bf16", "*layers.1.mlp.experts.0.*=exl3-2"},
    {"bf16", "*layers.2.mlp.experts.4.down_proj=exl3-5"},
};

START_TEST(test_ours) {
    const char *part[] = {"--part", OURS[_i].part, "--numbers", NULL};
    struct ckpt_set want = {.n = 0};
    uint64_t far = 0;
    size_t n;

    packtest_setup();
    for (int numbers = 0; numbers < 2; numbers++) {
        const char **more = OURS[_i].part ? part : part + 2;

        part[2] = numbers ? "--numbers" : NULL;
        ck_assert_msg(packtest(ckpt_model("twin-a"), packtest_out(numbers ? "numbers" : "pack"),
                               OURS[_i].format, more) == 0,
                      "%s", packtest_prog.err_text);
    }
    ckpt_set_load_dir(&set, packtest_out("pack"));
    ckpt_set_load_dir(&want, packtest_out("numbers"));
    n = ckpt_plain_all(&set);
    ck_assert_uint_ge(n, OURS[_i].part ? 1 : 70);
    for (size_t i = 0; i < want.n; i++) {
        const struct ckpt_tensor *b = &want.t[i], *a = ckpt_set_get(&set, b->name);

        ck_assert_msg(a->n == b->n && strcmp(a->dtype, b->dtype) == 0, "%s: %s and %s", b->name, a->dtype,
                      b->dtype);
        for (size_t k = 0; strcmp(b->dtype, "F32") == 0 && k < b->n / 4; k++) {
            float x, y;

            memcpy(&x, a->bytes + 4 * k, 4);
            memcpy(&y, b->bytes + 4 * k, 4);
            far += !(fabsf(x - y) <= 2e-6f * fabsf(y) + (OURS[_i].part ? 1e-6f : 0));
        }
        ck_assert_msg(far == 0, "%s as %s: %llu numbers differ", b->name, OURS[_i].format,
                      (unsigned long long)far);
    }
    ckpt_set_done(&want);
    packtest_teardown();
}
END_TEST

START_TEST(test_gguf) {
    make_gguf(getenv("GLMD_FOREIGN") ? "ffn_" : "_exps", &CKPT_BLOCKS[_i]);
    judge("cpu", CKPT_BLOCKS[_i].name);
    if (getenv("GLMD_FOREIGN") || CKPT_BLOCKS[_i].type == 12)
        judge("ref", CKPT_BLOCKS[_i].name);
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
    tcase_add_loop_test(t, test_glm53, 0, sizeof HOW53 / sizeof *HOW53);
    tcase_add_loop_test(t, test_vectors, 0, (int)CKPT_N_BLOCKS);
    tcase_add_loop_test(t, test_ours, 0, sizeof OURS / sizeof *OURS);
    tcase_add_loop_test(t, test_gguf, 0, (int)CKPT_N_BLOCKS);
    suite_add_tcase(s, t);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
