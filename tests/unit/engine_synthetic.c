/* SPDX-License-Identifier: MIT */
/* Models without files: they load in every format and compute finite numbers, their bytes do not depend on how they are
 * cut, no two rows of a matrix are equal (equal rows would be ties everywhere), the published sizes come out, and a
 * name that is none is refused with what was expected. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "engine_priv.h"
#include "synthetic.h"

static const char *const FORMATS[] = {"bf16",  "fp8",   "int8",   "int4",   "mxfp8",
                                      "mxfp4", "nvfp4", "exl3-1", "exl3-4", "exl3-8"};

static struct engine *opened(const char *name, bool plan_only) {
    const struct engine_options opt = {.model = name,
                                       .backend = "cpu",
                                       .threads = 2,
                                       .context_tokens = 512,
                                       .max_seqs = 2,
                                       .max_streams = 2,
                                       .draft = true,
                                       .plan_only = plan_only};
    struct engine *e = NULL;
    struct xerr err = {0};
    int r = engine_open(&opt, &e, &err);
    ck_assert_msg(r == 0, "%s: %d %s", name, r, err.msg);
    return e;
}

START_TEST(computes) {
    char name[80];
    struct xerr err = {0};
    snprintf(name, sizeof name, "synthetic:nano,experts=%s,dense=%s", FORMATS[_i], FORMATS[_i]);
    struct engine *e = opened(name, false);
    int r = engine_load(e, NULL, NULL, &err);
    ck_assert_msg(r == 0, "%s: %d %s", name, r, err.msg);
    r = engine_self_test(e, &err); /* wants finite logits that do not depend on how the prompt is read */
    ck_assert_msg(r == 0, "%s: %d %s", name, r, err.msg);
    engine_close(e);
}
END_TEST

/* All bytes of one tensor, and a digest of all. */
struct taken {
    uint32_t part;
    uint8_t *bytes;
    uint64_t n, room, all;
    uint64_t sum;
};

static int take(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                const void *bytes, uint64_t n) {
    struct taken *k = ctx;
    const uint8_t *b = bytes;
    (void)t;
    for (uint64_t i = 0; i < n; i++)
        k->sum += (b[i] + 1u) * (offset + i + 1) * (id->part * 131u + id->layer * 31u + id->expert * 7u + id->piece);
    if (id->part == k->part && id->layer == 3 && !id->expert && id->piece == KERN_PIECE_CODES) {
        ck_assert_uint_le(offset + n, k->room);
        memcpy(k->bytes + offset, bytes, n);
        k->n += n;
    }
    k->all += n;
    return 0;
}

static void load_all(const char *spec, uint64_t staging, struct taken *k) {
    static _Alignas(64) uint8_t room[1 << 16];
    struct model_config cfg;
    struct model_directory d;
    struct xerr err = {0};
    struct model_load l = {.staging = room, .staging_bytes = staging, .sink = take, .sink_ctx = k};
    ck_assert_int_eq(model_synthetic_open(spec, &cfg, &d, &err), 0);
    int r = model_synthetic_load(&d, &l, &err);
    ck_assert_msg(r == 0, "%s", err.msg);
    ck_assert_uint_eq(k->all, d.resident);
    model_directory_done(&d);
}

START_TEST(cuts_change_nothing) {
    struct taken a = {0}, b = {0};
    load_all("nano,layers=4", 1 << 16, &a);
    load_all("nano,layers=4", MODEL_MIN_STAGING, &b);
    ck_assert_uint_eq(a.sum, b.sum);
}
END_TEST

START_TEST(no_row_twice) {
    static const uint32_t PARTS[] = {KERN_ROUTER, KERN_EXP_DOWN, KERN_SH_UP};
    static const uint64_t ROW[] = {2 * 256, 64, 256}; /* bytes */
    for (int i = 0; i < 3; i++) {
        struct taken k = {.part = PARTS[i], .room = 1 << 20};
        k.bytes = malloc(k.room);
        load_all("nano,layers=4", 1 << 16, &k);
        ck_assert_uint_gt(k.n, ROW[i]);
        for (uint64_t r = 0; r < k.n / ROW[i]; r++)
            for (uint64_t s = 0; s < r; s++)
                ck_assert_msg(memcmp(k.bytes + r * ROW[i], k.bytes + s * ROW[i], ROW[i]) != 0,
                              "part %u: rows %u and %u", PARTS[i], (unsigned)s, (unsigned)r);
        free(k.bytes);
    }
}
END_TEST

static uint64_t of_part(const struct engine *e, uint32_t part, uint64_t *ret_numbers, uint64_t *ret_n) {
    uint64_t bytes = *ret_numbers = *ret_n = 0;
    for (size_t i = 0; i < e->directory.n_tensors; i++)
        if (e->directory.tensor[i].id.part == part) {
            bytes += e->directory.tensor[i].bytes;
            *ret_numbers += e->directory.tensor[i].k.rows * e->directory.tensor[i].k.cols;
            ++*ret_n;
        }
    return bytes;
}

/* The counts of the published checkpoints: parameters of the text model with its draft layer. */
START_TEST(published_sizes) {
    static const struct {
        const char *name;
        uint64_t numbers;
    } CASE[] = {{"synthetic:glm-5.3-flash", 313326811966ull + 7432592416ull}, {"synthetic:glm-5.3", 753329940480ull}};
    uint64_t all = 0, numbers, n;
    struct engine *e = opened(CASE[_i].name, true);
    for (size_t i = 0; i < e->directory.n_tensors; i++)
        all += e->directory.tensor[i].k.rows * e->directory.tensor[i].k.cols;
    ck_assert_uint_eq(all, CASE[_i].numbers);
    uint64_t bytes = of_part(e, KERN_EXP_UP, &numbers, &n);
    ck_assert_uint_eq(bytes, numbers * 9 / 16 + 4 * n); /* 4.5 bits, and the factor of each */
    engine_close(e);
}
END_TEST

START_TEST(words_refused) {
    static const struct {
        const char *spec, *found;
    } CASE[] = {{"", "shape \"\""},
                {"glm-5.4", "\"glm-5.4\""},
                {"nano,", "found \"\""},
                {"nano,experts", "\"experts\""},
                {"nano,experts=", "experts: found \"\""},
                {"nano,experts=exl3-9", "\"exl3-9\""},
                {"nano,dense=q4_k", "dense: found \"q4_k\""},
                {"nano,layers=0", "layers: found \"0\""},
                {"nano,layers=10", "layers: found \"10\""},
                {"nano,layers=4294967297", "layers: found \"4294967297\""},
                {"nano,layers=-1", "layers: found \"-1\""},
                {"nano,experts=fp8,,", "found \"\""}};
    struct model_config cfg;
    struct model_directory d;
    for (size_t i = 0; i < sizeof CASE / sizeof CASE[0]; i++) {
        struct xerr err = {0};
        ck_assert_int_eq(model_synthetic_open(CASE[i].spec, &cfg, &d, &err), -EINVAL);
        ck_assert_msg(strstr(err.msg, CASE[i].found) && strstr(err.msg, "expected"), "%s: %s", CASE[i].spec, err.msg);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_synthetic");
    TCase *t = tcase_create("synthetic");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, computes, 0, sizeof FORMATS / sizeof FORMATS[0]);
    tcase_add_test(t, cuts_change_nothing);
    tcase_add_test(t, no_row_twice);
    tcase_add_loop_test(t, published_sizes, 0, 2);
    tcase_add_test(t, words_refused);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
