/* SPDX-License-Identifier: MIT */
/* Checkpoints in every spelling, from the file to the sink: each piece's bytes arrive as kernels want them,
 * numbers that cannot be right are refused, and what is odd is counted. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptset.h"
#include "leakcheck.h"
#include "loader.h"

#define T "model.language_model."

static struct ckpt dir;
static struct ckpt_set set;
static struct xerr err;
static struct model_config cfg;
static struct model_index *x;
static struct model_directory d;
static struct model_findings found;
static unsigned char **got; /* per tensor and piece */
static uint64_t *got_n;

static void close_model(void) {
    for (size_t i = 0; got && i < d.n_tensors * KERN_PIECES; i++)
        free(got[i]);
    free(got);
    free(got_n);
    got = NULL;
    got_n = NULL;
    model_directory_done(&d);
    x = model_index_close(x);
}

static void setup(void) {
    leakcheck_setup();
    memset(&err, 0, sizeof err);
    memset(&d, 0, sizeof d);
    memset(&set, 0, sizeof set);
    x = NULL;
    ckpt_copy(&dir, "twin-a");
    ckpt_set_load(&set, "twin-a");
}

static void teardown(void) {
    close_model();
    ckpt_set_done(&set);
    ckpt_remove(&dir);
    leakcheck_teardown();
}

static int build(void) {
    int r;

    ckpt_set_write(&set, &dir);
    ck_assert_msg(model_config_read(dir.dir, &cfg, &err) == 0, "%s", err.msg);
    ck_assert_msg(model_index_open(&x, dir.dir, NULL, &err) == 0, "%s", err.msg);
    r = model_directory_build(&d, &cfg, x, &err);
    if (r == 0) {
        got = calloc(d.n_tensors * KERN_PIECES + 1, sizeof *got);
        got_n = calloc(d.n_tensors * KERN_PIECES + 1, sizeof *got_n);
    }
    return r;
}

static const struct model_tensor *tensor_of(const struct kern_tensor_id *id) {
    for (size_t i = 0; i < d.n_tensors; i++)
        if (d.tensor[i].id.part == id->part && d.tensor[i].id.layer == id->layer &&
            d.tensor[i].id.expert == id->expert)
            return &d.tensor[i];
    ck_abort_msg("part %u of layer %u is not in the directory", id->part, id->layer);
}

static int sink(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                const void *bytes, uint64_t n) {
    const struct model_tensor *m = tensor_of(id);
    size_t i = (size_t)(m - d.tensor) * KERN_PIECES + id->piece;
    struct kern_piece_info info = {0};
    uint64_t all = m->k.rows * m->k.cols * (t->store.format == KERN_F32 ? 4 : 2);

    (void)ctx;
    ck_assert_uint_lt(id->piece, KERN_PIECES);
    ck_assert_int_eq(memcmp(&t->store, &m->k.store, sizeof t->store), 0);
    if (m->is_matrix) {
        ck_assert_int_eq(kern_store_piece(&t->store, t->rows, t->cols, id->piece, &info), 0);
        all = info.rows * info.row_bytes;
    }
    if (!got[i])
        got[i] = malloc(all);
    ck_assert_uint_eq(offset, got_n[i]); /* in order, without gaps */
    ck_assert_uint_le(offset + n, all);
    memcpy(got[i] + offset, bytes, n);
    got_n[i] += n;
    return 0;
}

static int load(uint64_t staging_bytes) {
    struct model_load l = {.staging_bytes = staging_bytes, .sink = sink, .findings = &found};
    int r;

    memset(&found, 0xee, sizeof found);
    ck_assert_int_eq(posix_memalign(&l.staging, 64, staging_bytes), 0);
    for (size_t i = 0; i < d.n_tensors * KERN_PIECES; i++)
        got_n[i] = 0;
    r = model_load(x, &d, &l, &err);
    free(l.staging);
    return r;
}

/* Every tensor has all its pieces, whole, and their bytes are those of the plan. */
static void check_complete(void) {
    uint64_t all = 0;

    for (size_t i = 0; i < d.n_tensors; i++) {
        const struct model_tensor *t = &d.tensor[i];
        uint64_t bytes = 0, want = 0;

        for (uint32_t p = 0; p < KERN_PIECES; p++)
            bytes += got_n[i * KERN_PIECES + p];
        all += t->bytes;
        if (!t->is_matrix)
            continue;
        ck_assert_int_eq(kern_store_bytes(&t->k.store, t->k.rows, t->k.cols, &want), 0);
        ck_assert_msg(bytes == want && t->bytes == want,
                      "part %u of layer %u: %llu bytes came, %llu planned, %llu expected", t->id.part,
                      t->id.layer, (unsigned long long)bytes, (unsigned long long)t->bytes,
                      (unsigned long long)want);
    }
    ck_assert_uint_eq(d.resident, all);
}

static const unsigned char *piece(uint32_t part, uint32_t layer, uint32_t expert, uint32_t p) {
    struct kern_tensor_id id = {.part = part, .layer = layer, .expert = expert};

    return got[(size_t)(tensor_of(&id) - d.tensor) * KERN_PIECES + p];
}

static void same(const char *suffix, uint32_t p) {
    char name[160];
    const struct ckpt_tensor *t;

    snprintf(name, sizeof name, T "layers.1.mlp.experts.3.down_proj.%s", suffix);
    t = ckpt_set_get(&set, name);
    ck_assert_msg(memcmp(piece(KERN_EXP_DOWN, 1, 3, p), t->bytes, t->n) == 0, "%s differs", suffix);
}

START_TEST(every_spelling_loads) {
    enum ckpt_spelling how = (enum ckpt_spelling)_i;
    size_t n = ckpt_spell_all(&set, "", how);

    ck_assert_msg(n > 60, "%s: %zu matrices", ckpt_spelling_name[how], n);
    ck_assert_msg(build() == 0, "%s: %s", ckpt_spelling_name[how], err.msg);
    ck_assert_msg(load(_i % 2 ? 4096 : 1 << 20) == 0, "%s: %s", ckpt_spelling_name[how], err.msg);
    check_complete();
    ck_assert_uint_eq(found.unequal, found.pairs ? found.unequal : 0);
    ck_assert_uint_eq(found.pairs, how == CKPT_NVFP4_CT || how == CKPT_NVFP4_MODELOPT ? 4 * 6 : 0);
    if (how <= CKPT_F32)
        same("weight", KERN_PIECE_CODES);
    if (how >= CKPT_FP8_BLOCK && how <= CKPT_FP8_TENSOR) {
        same("weight", KERN_PIECE_CODES);
        same(how == CKPT_FP8_BLOCK ? "weight_scale_inv" : "weight_scale", KERN_PIECE_SCALE);
    }
    if (how == CKPT_INT8 || how == CKPT_INT4 || how == CKPT_MXFP4_CT || how == CKPT_NVFP4_CT) {
        same("weight_packed", KERN_PIECE_CODES);
        same("weight_scale", KERN_PIECE_SCALE);
    }
    if (how == CKPT_NVFP4_MODELOPT)
        same("weight_scale_2", KERN_PIECE_GLOBAL);
    if (how == CKPT_EXL3) {
        same("trellis", KERN_PIECE_CODES);
        same("suh", KERN_PIECE_SUH);
        same("svh", KERN_PIECE_SVH);
    }
}
END_TEST

/* 1 / weight_global_scale, once, in F32. */
START_TEST(divisors_become_factors) {
    const float divisors[] = {1.0f, 3.0f, 2688.0f / 0.7f, 12345.678f, 3e38f};

    for (size_t i = 0; i < 5; i++) {
        float v, want = 1.0f / divisors[i];

        if (i == 0)
            ckpt_spell_all(&set, "mlp.experts", CKPT_NVFP4_CT);
        ckpt_set_put(&set, T "layers.1.mlp.experts.3.down_proj.weight_global_scale", "F32", &divisors[i], 1,
                     (uint64_t)1);
        ck_assert_msg(build() == 0, "%s", err.msg);
        ck_assert_msg(load(1 << 20) == 0, "%s", err.msg);
        memcpy(&v, piece(KERN_EXP_DOWN, 1, 3, KERN_PIECE_GLOBAL), 4);
        ck_assert_msg(memcmp(&v, &want, 4) == 0, "1/%g: found %g", (double)divisors[i], (double)v);
        close_model();
    }
}
END_TEST

START_TEST(signs_become_numbers) {
    const struct ckpt_tensor *t;
    const unsigned char *p;

    ckpt_spell_all(&set, "mlp.experts", CKPT_EXL3_SIGNS);
    ck_assert_msg(build() == 0, "%s", err.msg);
    ck_assert_msg(load(4096) == 0, "%s", err.msg);
    t = ckpt_set_get(&set, T "layers.1.mlp.experts.3.down_proj.su");
    p = piece(KERN_EXP_DOWN, 1, 3, KERN_PIECE_SUH);
    for (size_t i = 0; i < 8 * t->n; i++) {
        unsigned word = t->bytes[i / 16 * 2] | (unsigned)t->bytes[i / 16 * 2 + 1] << 8;

        ck_assert_uint_eq(p[2 * i], 0);
        ck_assert_uint_eq(p[2 * i + 1], word >> (i % 16) & 1 ? 0xbc : 0x3c);
    }
}
END_TEST

/* ---- numbers that cannot be right ---- */

static const struct {
    const char *label;
    enum ckpt_spelling how;
    const char *suffix;
    uint32_t at, n;
    unsigned char bytes[8];
    bool fine;
    const char *has;
} NUMBERS[] = {
    {"NaN in F16", CKPT_F16, "weight", 6, 2, {0x01, 0x7e}, false, "number 3"},
    {"infinity in F16", CKPT_F16, "weight", 6, 2, {0x00, 0xfc}, false, "number 3"},
    {"65504 in F16", CKPT_F16, "weight", 6, 2, {0xff, 0x7b}, true, NULL},
    {"NaN code", CKPT_FP8_BLOCK, "weight", 9, 1, {0x7f}, false, "number 9"},
    {"negative NaN code", CKPT_FP8_BLOCK, "weight", 15, 1, {0xff}, false, "number 15"},
    {"the largest code", CKPT_FP8_BLOCK, "weight", 15, 1, {0xfe}, true, NULL},
    {"NaN in the grid", CKPT_FP8_BLOCK, "weight_scale_inv", 0, 4, {0, 0, 0xc0, 0x7f}, false, "number 0"},
    {"negative in the grid",
     CKPT_FP8_BLOCK,
     "weight_scale_inv",
     0,
     4,
     {0, 0, 0x80, 0xbf},
     false,
     "-1 as number 0"},
    {"zero in the grid", CKPT_FP8_BLOCK, "weight_scale_inv", 0, 4, {0, 0, 0, 0}, true, NULL},
    {"negative channel", CKPT_FP8_CHANNEL, "weight_scale", 8, 4, {0, 0, 0x80, 0xbf}, false, "number 2"},
    {"zero for all", CKPT_FP8_TENSOR, "weight_scale", 0, 4, {0, 0, 0, 0}, false, "above 0"},
    {"infinite BF16 scale", CKPT_FP8_BLOCK_CT, "weight_scale", 0, 2, {0x80, 0x7f}, false, "number 0"},
    {"NaN block scale", CKPT_NVFP4_CT, "weight_scale", 5, 1, {0x7f}, false, "number 5"},
    {"negative block scale", CKPT_NVFP4_CT, "weight_scale", 5, 1, {0xb8}, false, "-1 as number 5"},
    {"zero block scale", CKPT_NVFP4_CT, "weight_scale", 5, 1, {0}, true, NULL},
    {"zero factor", CKPT_NVFP4_MODELOPT, "weight_scale_2", 0, 4, {0, 0, 0, 0}, false, "above 0"},
    {"negative factor", CKPT_NVFP4_MODELOPT, "weight_scale_2", 0, 4, {0, 0, 0x80, 0xb9}, false, "above 0"},
    {"infinite factor", CKPT_NVFP4_MODELOPT, "weight_scale_2", 0, 4, {0, 0, 0x80, 0x7f}, false, "above 0"},
    {"a divisor called factor",
     CKPT_NVFP4_MODELOPT,
     "weight_scale_2",
     0,
     4,
     {0, 0, 0x80, 0x45},
     false,
     "weight_global_scale"},
    {"a factor called divisor",
     CKPT_NVFP4_CT,
     "weight_global_scale",
     0,
     4,
     {0, 0, 0x80, 0x39},
     false,
     "weight_scale_2"},
    {"zero divisor", CKPT_NVFP4_CT, "weight_global_scale", 0, 4, {0, 0, 0, 0}, false, "at least 1"},
    {"infinite divisor", CKPT_NVFP4_CT, "weight_global_scale", 0, 4, {0, 0, 0x80, 0x7f}, false, "at least 1"},
    {"E8M0 255", CKPT_MXFP4_CT, "weight_scale", 11, 1, {255}, false, "number 11"},
    {"E8M0 254", CKPT_MXFP4_CT, "weight_scale", 11, 1, {254}, true, NULL},
    {"E8M0 0", CKPT_MXFP8, "weight_scale", 11, 1, {0}, true, NULL},
    {"MXFP8 255", CKPT_MXFP8, "weight_scale", 2, 1, {255}, false, "number 2"},
    {"INT8, NaN scale", CKPT_INT8, "weight_scale", 4, 2, {0xc0, 0x7f}, false, "number 2"},
    {"INT4, negative scale", CKPT_INT4, "weight_scale", 4, 2, {0x80, 0xbf}, false, "-1 as number 2"},
    {"INT8, another shape", CKPT_INT8, "weight_shape", 0, 1, {64}, false, "rows and columns"},
    {"INT8, columns of another shape", CKPT_INT8, "weight_shape", 8, 1, {64}, false, "number 1"},
    {"EXL3, another marker", CKPT_EXL3, "mcg", 0, 1, {0xee}, false, "-877912083"},
    {"EXL3, NaN scale", CKPT_EXL3, "suh", 20, 2, {0, 0x7e}, false, "number 10"},
    {"EXL3, negative scale", CKPT_EXL3, "svh", 20, 2, {0, 0xbc}, true, NULL},
};

START_TEST(numbers) {
    struct ckpt_tensor *t;
    char name[160];

    ck_assert_int_eq(ckpt_spell(&set, T "layers.1.mlp.experts.3.down_proj.weight", NUMBERS[_i].how), 0);
    snprintf(name, sizeof name, T "layers.1.mlp.experts.3.down_proj.%s", NUMBERS[_i].suffix);
    t = ckpt_set_get(&set, name);
    ck_assert_uint_le(NUMBERS[_i].at + NUMBERS[_i].n, t->n);
    memcpy(t->bytes + NUMBERS[_i].at, NUMBERS[_i].bytes, NUMBERS[_i].n);
    ck_assert_msg(build() == 0, "%s: %s", NUMBERS[_i].label, err.msg);
    if (NUMBERS[_i].fine)
        ck_assert_msg(load(65536) == 0, "%s: %s", NUMBERS[_i].label, err.msg);
    else
        ckpt_expect(
            NUMBERS[_i].label, load(65536), -EBADMSG, &err,
            (const char *const[]){"model.safetensors", name, "found ", "expected ", NUMBERS[_i].has, NULL});
}
END_TEST

/* ---- what is odd ---- */

static void scale_up(const char *base, float by) {
    char name[160];
    struct ckpt_tensor *t;
    float v;

    snprintf(name, sizeof name, T "%s.weight_scale_2", base);
    t = ckpt_set_get(&set, name);
    memcpy(&v, t->bytes, 4);
    v *= by;
    memcpy(t->bytes, &v, 4);
}

START_TEST(halves_of_different_factors) {
    float one = 0x1p-10f;
    char name[160];

    ckpt_spell_all(&set, "mlp.experts", CKPT_NVFP4_MODELOPT);
    for (unsigned l = 1; l <= 4; l++)
        for (unsigned e = 0; e < 6; e++)
            for (unsigned p = 0; p < 2; p++) {
                snprintf(name, sizeof name, T "layers.%u.mlp.experts.%u.%s_proj.weight_scale_2", l, e,
                         p ? "up" : "gate");
                ckpt_set_put(&set, name, "F32", &one, 0);
            }
    scale_up("layers.1.mlp.experts.2.up_proj", 4);
    scale_up("layers.4.mlp.experts.5.gate_proj", 1.0000001f);
    ck_assert_msg(build() == 0, "%s", err.msg);
    ck_assert_msg(load(1 << 20) == 0, "%s", err.msg);
    ck_assert_uint_eq(found.pairs, 24);
    ck_assert_uint_eq(found.unequal, 2);
    ck_assert_double_eq(found.worst_ratio, 4.0);
    ck_assert_uint_eq(found.absurd, 0);
}
END_TEST

START_TEST(experts_of_absurd_scales) {
    ckpt_spell_all(&set, "mlp.experts", CKPT_NVFP4_MODELOPT);
    scale_up("layers.2.mlp.experts.1.down_proj", 1.0f / 3000);
    ck_assert_msg(build() == 0, "%s", err.msg);
    ck_assert_msg(load(1 << 20) == 0, "%s", err.msg);
    ck_assert_uint_eq(found.absurd, 1);
    ck_assert_uint_eq(found.absurd_layer, 2);
    ck_assert_uint_eq(found.absurd_part, KERN_EXP_DOWN);
    ck_assert(found.absurd_ratio > 1000 && found.absurd_ratio < 20000);
}
END_TEST

/* A -0 among the scales, which is one, hides none of the others. */
START_TEST(minus_zero_is_the_smallest) {
    static const struct {
        enum ckpt_spelling how;
        const char *suffix, *zero;
        size_t n;
    } kinds[] = {{CKPT_NVFP4_MODELOPT, "weight_scale", "\x80", 1},
                 {CKPT_FP8_CHANNEL, "weight_scale", "\0\0\0\x80", 4},
                 {CKPT_INT8, "weight_scale", "\0\x80", 2}};
    char name[160];

    ckpt_spell_all(&set, "mlp.experts", kinds[_i].how);
    snprintf(name, sizeof name, T "layers.2.mlp.experts.1.down_proj.%s", kinds[_i].suffix);
    struct ckpt_tensor *t = ckpt_set_get(&set, name);
    /* thousands of times smaller than the other experts' */
    if (kinds[_i].n == 1) {
        scale_up("layers.2.mlp.experts.1.down_proj", 1.0f / 3000);
    } else {
        for (size_t i = 0; i + kinds[_i].n <= t->n; i += kinds[_i].n) /* the exponent, by 2^-12 */
            t->bytes[i + kinds[_i].n - 1] = (unsigned char)(t->bytes[i + kinds[_i].n - 1] - 6);
    }
    memcpy(t->bytes + t->n - kinds[_i].n, kinds[_i].zero, kinds[_i].n);
    ck_assert_msg(build() == 0, "%s", err.msg);
    ck_assert_msg(load(1 << 20) == 0, "%s", err.msg);
    ck_assert_uint_eq(found.absurd, 1);
    ck_assert_uint_eq(found.absurd_layer, 2);
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

int main(void) {
    Suite *s = suite_create("model_formats");
    TCase *tc = tcase_create("formats");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, every_spelling_loads, 0, CKPT_SPELLINGS);
    tcase_add_test(tc, divisors_become_factors);
    tcase_add_test(tc, signs_become_numbers);
    tcase_add_loop_test(tc, numbers, 0, COUNT(NUMBERS));
    tcase_add_test(tc, halves_of_different_factors);
    tcase_add_test(tc, experts_of_absurd_scales);
    tcase_add_loop_test(tc, minus_zero_is_the_smallest, 0, 3);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
