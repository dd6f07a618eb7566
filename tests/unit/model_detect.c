/* SPDX-License-Identifier: MIT */
/* How one matrix is stored, told from its tensors: every spelling that published packs use, and every way in
 * which a set can be incomplete, doubled or of the wrong shape. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckptset.h"
#include "detect.h"
#include "leakcheck.h"

#define M "model.language_model.layers.0.mlp.down_proj" /* [128,384] */

static struct ckpt dir;
static struct ckpt_set set;
static struct xerr err;
static struct model_index *x;
static struct model_module m;

static void setup(void) {
    leakcheck_setup();
    memset(&err, 0, sizeof err);
    memset(&m, 0, sizeof m);
    memset(&set, 0, sizeof set);
    x = NULL;
    ckpt_empty(&dir);
}

static void teardown(void) {
    x = model_index_close(x);
    ckpt_set_done(&set);
    ckpt_remove(&dir);
    leakcheck_teardown();
}

/* A set of one matrix with small numbers, of the size of M. */
static void one(enum ckpt_spelling how, uint64_t rows, uint64_t cols) {
    struct ckpt_tensor *t = ckpt_set_put(&set, M ".weight", "BF16", NULL, 2, rows, cols);
    struct ckpt_rng rng = {7};

    for (size_t i = 0; i < t->n; i += 2) {
        t->bytes[i] = (unsigned char)ckpt_rand(&rng);
        t->bytes[i + 1] = 0x3c | (unsigned char)(ckpt_rand(&rng) & 0x80);
    }
    ck_assert_int_eq(ckpt_spell(&set, M ".weight", how), 0);
}

static int detect(uint64_t rows, uint64_t cols) {
    ckpt_set_write(&set, &dir);
    ck_assert_msg(model_index_open(&x, dir.dir, NULL, &err) == 0, "%s", err.msg);
    return model_detect(x, M ".weight", rows, cols, &m, &err);
}

static const struct {
    enum ckpt_spelling how;
    struct kern_store store;
    uint32_t n, n_seen;
    struct {
        const char *suffix;
        uint8_t piece, conv, number, rule;
    } piece[4];
} FINE[] = {
    {CKPT_BF16, {KERN_BF16, 0, 0, 0, 0, 0}, 1, 1, {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_BF16, 0}}},
    {CKPT_F16, {KERN_F16, 0, 0, 0, 0, 0}, 1, 1, {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_F16, 0}}},
    {CKPT_F32, {KERN_F32, 0, 0, 0, 0, 0}, 1, 1, {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_F32, 0}}},
    {CKPT_FP8_BLOCK,
     {KERN_FP8, 0, KERN_SCALE_F32, 0, 128, 128},
     2,
     2,
     {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_E4M3, 0},
      {"weight_scale_inv", KERN_PIECE_SCALE, 0, MODEL_NUM_F32, MODEL_RULE_SCALE}}},
    {CKPT_FP8_BLOCK_CT,
     {KERN_FP8, 0, KERN_SCALE_BF16, 0, 128, 128},
     2,
     2,
     {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_E4M3, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_BF16, MODEL_RULE_SCALE}}},
    {CKPT_FP8_BLOCK_PB,
     {KERN_FP8, 0, KERN_SCALE_F32, 0, 128, 128},
     2,
     2,
     {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_E4M3, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_F32, MODEL_RULE_SCALE}}},
    {CKPT_FP8_CHANNEL,
     {KERN_FP8, 0, KERN_SCALE_F32, 0, 1, 0},
     2,
     2,
     {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_E4M3, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_F32, MODEL_RULE_SCALE}}},
    {CKPT_FP8_TENSOR,
     {KERN_FP8, 0, KERN_SCALE_F32, 0, 0, 0},
     2,
     2,
     {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_E4M3, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_F32, MODEL_RULE_FACTOR}}},
    {CKPT_NVFP4_MODELOPT,
     {KERN_NVFP4, 0, KERN_SCALE_E4M3, 0, 1, 16},
     3,
     4,
     {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_BYTES, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_E4M3, MODEL_RULE_SCALE},
      {"weight_scale_2", KERN_PIECE_GLOBAL, MODEL_CONV_NONE, MODEL_NUM_F32, MODEL_RULE_SMALL}}},
    {CKPT_NVFP4_CT,
     {KERN_NVFP4, 0, KERN_SCALE_E4M3, 0, 1, 16},
     3,
     3,
     {{"weight_packed", KERN_PIECE_CODES, 0, MODEL_NUM_BYTES, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_E4M3, MODEL_RULE_SCALE},
      {"weight_global_scale", KERN_PIECE_GLOBAL, MODEL_CONV_RECIPROCAL, MODEL_NUM_F32, MODEL_RULE_LARGE}}},
    {CKPT_MXFP8,
     {KERN_MXFP8, 0, KERN_SCALE_E8M0, 0, 1, 32},
     2,
     2,
     {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_E4M3, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_E8M0, 0}}},
    {CKPT_MXFP4_CT,
     {KERN_MXFP4, 0, KERN_SCALE_E8M0, 0, 1, 32},
     2,
     2,
     {{"weight_packed", KERN_PIECE_CODES, 0, MODEL_NUM_BYTES, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_E8M0, 0}}},
    {CKPT_MXFP4_MODELOPT,
     {KERN_MXFP4, 0, KERN_SCALE_E8M0, 0, 1, 32},
     2,
     2,
     {{"weight", KERN_PIECE_CODES, 0, MODEL_NUM_BYTES, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_E8M0, 0}}},
    {CKPT_INT8,
     {KERN_INT8, 0, KERN_SCALE_BF16, 0, 1, 128},
     3,
     3,
     {{"weight_packed", KERN_PIECE_CODES, 0, MODEL_NUM_BYTES, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_BF16, MODEL_RULE_SCALE},
      {"weight_shape", MODEL_PIECE_NONE, 0, MODEL_NUM_I64, MODEL_RULE_SHAPE}}},
    {CKPT_INT4,
     {KERN_INT4, 0, KERN_SCALE_BF16, 0, 1, 128},
     3,
     3,
     {{"weight_packed", KERN_PIECE_CODES, 0, MODEL_NUM_BYTES, 0},
      {"weight_scale", KERN_PIECE_SCALE, 0, MODEL_NUM_BF16, MODEL_RULE_SCALE},
      {"weight_shape", MODEL_PIECE_NONE, 0, MODEL_NUM_I64, MODEL_RULE_SHAPE}}},
    {CKPT_EXL3,
     {KERN_EXL3, 4, 0, KERN_CODEBOOK_MCG, 0, 0},
     4,
     4,
     {{"trellis", KERN_PIECE_CODES, 0, MODEL_NUM_BYTES, 0},
      {"suh", KERN_PIECE_SUH, 0, MODEL_NUM_F16, 0},
      {"svh", KERN_PIECE_SVH, 0, MODEL_NUM_F16, 0},
      {"mcg", MODEL_PIECE_NONE, 0, MODEL_NUM_I32, MODEL_RULE_MCG}}},
    {CKPT_EXL3_SIGNS,
     {KERN_EXL3, 3, 0, KERN_CODEBOOK_MUL1, 0, 0},
     4,
     4,
     {{"trellis", KERN_PIECE_CODES, 0, MODEL_NUM_BYTES, 0},
      {"su", KERN_PIECE_SUH, MODEL_CONV_SIGNS, MODEL_NUM_BYTES, 0},
      {"sv", KERN_PIECE_SVH, MODEL_CONV_SIGNS, MODEL_NUM_BYTES, 0},
      {"mul1", MODEL_PIECE_NONE, 0, MODEL_NUM_I32, MODEL_RULE_MUL1}}},
    {CKPT_EXL3_3INST,
     {KERN_EXL3, 2, 0, KERN_CODEBOOK_3INST, 0, 0},
     3,
     3,
     {{"trellis", KERN_PIECE_CODES, 0, MODEL_NUM_BYTES, 0},
      {"suh", KERN_PIECE_SUH, 0, MODEL_NUM_F16, 0},
      {"svh", KERN_PIECE_SVH, 0, MODEL_NUM_F16, 0}}},
};
#define N_FINE ((int)(sizeof FINE / sizeof *FINE))

START_TEST(every_spelling) {
    const char *label = ckpt_spelling_name[FINE[_i].how];
    uint64_t rows = 256, cols = 384, bytes;

    ck_assert_int_eq(N_FINE, CKPT_SPELLINGS);
    one(FINE[_i].how, rows, cols);
    ck_assert_msg(detect(rows, cols) == 0, "%s: %s", label, err.msg);
    ck_assert_msg(memcmp(&m.store, &FINE[_i].store, sizeof m.store) == 0,
                  "%s: format %u bits %u scale %u codebook %u blocks %ux%u", label, m.store.format,
                  m.store.bits, m.store.scale, m.store.codebook, m.store.block_rows, m.store.block_cols);
    ck_assert_msg(m.n == FINE[_i].n && m.n_seen == FINE[_i].n_seen, "%s: %u pieces, %u seen", label, m.n,
                  m.n_seen);
    for (uint32_t i = 0; i < m.n; i++) {
        const struct model_piece *p = &m.piece[i];
        struct kern_piece_info info = {0};

        ck_assert_str_eq(p->en->t->name + strlen(M) + 1, FINE[_i].piece[i].suffix);
        ck_assert_msg(p->piece == FINE[_i].piece[i].piece && p->conv == FINE[_i].piece[i].conv &&
                          p->number == FINE[_i].piece[i].number && p->rule == FINE[_i].piece[i].rule,
                      "%s: %s: piece %u conv %u number %u rule %u", label, p->en->t->name, p->piece, p->conv,
                      p->number, p->rule);
        if (p->piece == MODEL_PIECE_NONE)
            continue;
        /* what is read is what kernels expect of this piece */
        ck_assert_int_eq(kern_store_piece(&m.store, rows, cols, p->piece, &info), 0);
        bytes = info.rows * info.row_bytes / (p->conv == MODEL_CONV_SIGNS ? 16 : 1);
        ck_assert_msg(bytes == p->en->t->bytes, "%s: %s: %llu bytes, expected %llu", label, p->en->t->name,
                      (unsigned long long)p->en->t->bytes, (unsigned long long)bytes);
    }
}
END_TEST

START_TEST(nothing_there) {
    one(CKPT_BF16, 128, 384);
    ckpt_set_put(&set, "other.weight", "BF16", NULL, 2, (uint64_t)4, (uint64_t)4);
    ckpt_set_drop(&set, M ".weight");
    ck_assert_int_eq(detect(128, 384), -ENODATA);
    ck_assert_int_eq(err.code, 0);
    ck_assert_int_eq(model_detect(x, "other", 4, 4, &m, &err), -ENODATA);
    ck_assert_int_eq(model_detect(x, ".weight", 4, 4, &m, &err), -ENODATA);
}
END_TEST

/* A scale of [1,3] is the grid of a matrix of 128 rows, and one of [128,1] a channel scale; neither is the
 * other. */
START_TEST(grids_and_channels_are_told_apart) {
    one(CKPT_FP8_BLOCK_CT, 64, 384);
    ck_assert_int_eq(detect(64, 384), 0);
    ck_assert_uint_eq(m.store.block_rows, 128);
    x = model_index_close(x);
    ckpt_set_done(&set);
    one(CKPT_FP8_CHANNEL, 3, 384);
    ck_assert_int_eq(detect(3, 384), 0);
    ck_assert_uint_eq(m.store.block_rows, 1);
    x = model_index_close(x);
    ckpt_set_done(&set);
    one(CKPT_FP8_BLOCK, 100, 100); /* one block, not filled */
    ck_assert_int_eq(detect(100, 100), 0);
    ck_assert_uint_eq(m.store.block_rows, 128);
}
END_TEST

struct spoil {
    const char *label;
    enum ckpt_spelling how;
    const char *drop, *put, *dtype;
    uint32_t n_dims;
    uint64_t dim[4];
    int code;
    const char *has[4];
};

static const struct spoil SPOILS[] = {
    {"FP8, no scale",
     CKPT_FP8_BLOCK,
     "weight_scale_inv",
     NULL,
     NULL,
     0,
     {0},
     -ENODATA,
     {"weight F8_E4M3 without a scale", "weight_scale_inv or weight_scale"}},
    {"FP8, scale alone",
     CKPT_FP8_BLOCK,
     "weight",
     NULL,
     NULL,
     0,
     {0},
     -ENODATA,
     {"found weight_scale_inv F32 [2,3]", "expected weight", "shard missing"}},
    {"FP8, grid turned",
     CKPT_FP8_BLOCK,
     NULL,
     "weight_scale_inv",
     "F32",
     2,
     {3, 2},
     -EINVAL,
     {"found weight_scale_inv F32 [3,2]", "[2,3]", "128x128"}},
    {"FP8, blocks of 64",
     CKPT_FP8_BLOCK,
     NULL,
     "weight_scale_inv",
     "F32",
     2,
     {4, 6},
     -EINVAL,
     {"[4,6]", "128x128"}},
    {"FP8, both scales",
     CKPT_FP8_BLOCK,
     NULL,
     "weight_scale",
     "F32",
     2,
     {2, 3},
     -EINVAL,
     {"weight_scale F32", "only"}},
    {"FP8, scale of channels called inv",
     CKPT_FP8_CHANNEL,
     "weight_scale",
     "weight_scale_inv",
     "F32",
     2,
     {256, 1},
     -EINVAL,
     {"[256,1]"}},
    {"FP8, scale in I32", CKPT_FP8_BLOCK, NULL, "weight_scale_inv", "I32", 2, {2, 3}, -EINVAL, {"I32"}},
    {"FP8, weight of another shape",
     CKPT_FP8_BLOCK,
     NULL,
     "weight",
     "F8_E4M3",
     2,
     {384, 256},
     -EINVAL,
     {"weight F8_E4M3 [384,256]", "[256,384]"}},
    {"FP8 of the other kind", CKPT_FP8_BLOCK, NULL, "weight", "F8_E5M2", 2, {256, 384}, -EINVAL, {"F8_E5M2"}},
    {"BF16 with a scale",
     CKPT_BF16,
     NULL,
     "weight_scale",
     "F32",
     2,
     {256, 1},
     -EINVAL,
     {"weight_scale", "unquantised"}},
    {"BF16 and packed", CKPT_BF16, NULL, "weight_packed", "U8", 2, {256, 192}, -EINVAL, {"two sets"}},
    {"BF16 and trellis", CKPT_BF16, NULL, "trellis", "I16", 3, {24, 16, 64}, -EINVAL, {"two sets"}},
    {"BF16 turned", CKPT_BF16, NULL, "weight", "BF16", 2, {384, 256}, -EINVAL, {"[384,256]", "[256,384]"}},
    {"I8 alone", CKPT_BF16, NULL, "weight", "I8", 2, {256, 384}, -EINVAL, {"weight I8", "BF16"}},
    {"NVFP4, no block scale",
     CKPT_NVFP4_MODELOPT,
     "weight_scale",
     NULL,
     NULL,
     0,
     {0},
     -ENODATA,
     {"no weight_scale", "weight_scale F8_E4M3 [256,24]", "ModelOpt"}},
    {"NVFP4, no factor",
     CKPT_NVFP4_MODELOPT,
     "weight_scale_2",
     NULL,
     NULL,
     0,
     {0},
     -ENODATA,
     {"no weight_scale_2"}},
    {"NVFP4, a factor a row",
     CKPT_NVFP4_MODELOPT,
     NULL,
     "weight_scale_2",
     "F32",
     1,
     {256},
     -EINVAL,
     {"weight_scale_2 F32 [256]", "one number"}},
    {"NVFP4, factor in BF16",
     CKPT_NVFP4_MODELOPT,
     NULL,
     "weight_scale_2",
     "BF16",
     0,
     {0},
     -EINVAL,
     {"BF16 []"}},
    {"NVFP4, both factors",
     CKPT_NVFP4_MODELOPT,
     NULL,
     "weight_global_scale",
     "F32",
     1,
     {1},
     -EINVAL,
     {"weight_global_scale"}},
    {"NVFP4, half the scales",
     CKPT_NVFP4_CT,
     NULL,
     "weight_scale",
     "F8_E4M3",
     2,
     {256, 12},
     -EINVAL,
     {"[256,12]", "[256,24]", "compressed-tensors"}},
    {"NVFP4 ct, no divisor",
     CKPT_NVFP4_CT,
     "weight_global_scale",
     NULL,
     NULL,
     0,
     {0},
     -ENODATA,
     {"no weight_global_scale"}},
    {"NVFP4 AWQ",
     CKPT_NVFP4_MODELOPT,
     NULL,
     "pre_quant_scale",
     "BF16",
     1,
     {384},
     -ENOTSUP,
     {"pre_quant_scale", "AWQ"}},
    {"NVFP4 with zero points",
     CKPT_NVFP4_CT,
     NULL,
     "weight_zero_point",
     "I8",
     2,
     {256, 24},
     -EINVAL,
     {"weight_zero_point"}},
    {"MXFP4, blocks of 16",
     CKPT_MXFP4_CT,
     NULL,
     "weight_scale",
     "U8",
     2,
     {256, 24},
     -EINVAL,
     {"[256,24]", "[256,12]"}},
    {"MXFP8, blocks of 16",
     CKPT_MXFP8,
     NULL,
     "weight_scale",
     "U8",
     2,
     {256, 24},
     -EINVAL,
     {"[256,24]", "[256,12]"}},
    {"MXFP4 with a factor",
     CKPT_MXFP4_MODELOPT,
     NULL,
     "weight_scale_2",
     "F32",
     0,
     {0},
     -EINVAL,
     {"weight_scale_2"}},
    {"INT4, zero points",
     CKPT_INT4,
     NULL,
     "weight_zero_point",
     "I32",
     2,
     {32, 3},
     -ENOTSUP,
     {"weight_zero_point"}},
    {"INT4, order of activations",
     CKPT_INT4,
     NULL,
     "weight_g_idx",
     "I32",
     1,
     {384},
     -ENOTSUP,
     {"weight_g_idx"}},
    {"INT8, no shape", CKPT_INT8, "weight_shape", NULL, NULL, 0, {0}, -ENODATA, {"no weight_shape"}},
    {"INT8, no scale", CKPT_INT8, "weight_scale", NULL, NULL, 0, {0}, -ENODATA, {"no weight_scale"}},
    {"INT8, groups that do not divide",
     CKPT_INT8,
     NULL,
     "weight_scale",
     "BF16",
     2,
     {256, 5},
     -EINVAL,
     {"[256,5]"}},
    {"INT4, groups of three",
     CKPT_INT4,
     NULL,
     "weight_scale",
     "BF16",
     2,
     {256, 128},
     -EINVAL,
     {"[256,128]", "whole bytes"}},
    {"INT8, no groups", CKPT_INT8, NULL, "weight_scale", "BF16", 2, {256, 0}, -EINVAL, {"[256,0]"}},
    {"INT8, half the words",
     CKPT_INT8,
     NULL,
     "weight_packed",
     "I32",
     2,
     {256, 95},
     -EINVAL,
     {"[256,95]", "[256,96]"}},
    {"GPTQ", CKPT_BF16, "weight", "qweight", "I32", 2, {48, 256}, -ENOTSUP, {"qweight", "pack-quantized"}},
    {"packed floats",
     CKPT_BF16,
     "weight",
     "weight_packed",
     "F32",
     2,
     {256, 48},
     -EINVAL,
     {"weight_packed F32"}},
    {"EXL3, no suh",
     CKPT_EXL3,
     "suh",
     NULL,
     NULL,
     0,
     {0},
     -ENODATA,
     {"no su", "suh F16 [384]", "su I16 [24]"}},
    {"EXL3, short svh", CKPT_EXL3, NULL, "svh", "F16", 1, {128}, -EINVAL, {"svh F16 [128]", "[256]"}},
    {"EXL3, suh and su", CKPT_EXL3, NULL, "su", "I16", 1, {24}, -EINVAL, {"suh", "either"}},
    {"EXL3, both markers", CKPT_EXL3, NULL, "mul1", "I32", 0, {0}, -EINVAL, {"mcg and mul1"}},
    {"EXL3, marker of two", CKPT_EXL3, NULL, "mcg", "I32", 1, {2}, -EINVAL, {"mcg I32 [2]"}},
    {"EXL3, cut trellis",
     CKPT_EXL3,
     NULL,
     "trellis",
     "I16",
     3,
     {23, 16, 64},
     -EINVAL,
     {"[23,16,64]", "[24,16,"}},
    {"EXL3, half a bit", CKPT_EXL3, NULL, "trellis", "I16", 3, {24, 16, 40}, -EINVAL, {"[24,16,40]"}},
    {"EXL3, no bits", CKPT_EXL3, NULL, "trellis", "I16", 3, {24, 16, 0}, -EINVAL, {"[24,16,0]"}},
    {"EXL3, nine bits", CKPT_EXL3, NULL, "trellis", "I16", 3, {24, 16, 144}, -EINVAL, {"[24,16,144]"}},
    {"EXL3, other tiles", CKPT_EXL3, NULL, "tile_order", "I32", 0, {0}, -ENOTSUP, {"tile_order"}},
    {"EXL3 with a scale", CKPT_EXL3, NULL, "weight_scale", "F32", 0, {0}, -EINVAL, {"weight_scale", "EXL3"}},
};

static void put(const struct spoil *s) {
    char name[160];

    snprintf(name, sizeof name, M ".%s", s->put);
    ckpt_set_put(&set, name, s->dtype, NULL, s->n_dims, s->dim[0], s->dim[1], s->dim[2], s->dim[3]);
}

START_TEST(refusals) {
    const struct spoil *s = &SPOILS[_i];
    const char *has[7] = {"model.safetensors", M, s->has[0], s->has[1], s->has[2], s->has[3], NULL};
    struct model_module before = m;
    char name[160];

    one(s->how, 256, 384);
    if (s->drop) {
        snprintf(name, sizeof name, M ".%s", s->drop);
        ckpt_set_drop(&set, name);
    }
    if (s->put)
        put(s);
    ckpt_expect(s->label, detect(256, 384), s->code, &err, has);
    ck_assert_int_eq(memcmp(&before, &m, sizeof m), 0);
}
END_TEST

START_TEST(shapes_a_format_cannot_hold) {
    static const struct {
        enum ckpt_spelling how;
        uint64_t rows, cols;
        const char *dtype, *suffix, *has;
        uint64_t a, b;
    } cases[] = {
        {CKPT_NVFP4_CT, 4, 24, "U8", "weight_packed", "multiple of 16", 4, 12},
        {CKPT_MXFP4_CT, 4, 48, "U8", "weight_packed", "multiple of 32", 4, 24},
        {CKPT_MXFP8, 4, 48, "F8_E4M3", "weight", "multiple of 32", 4, 48},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[160];

        snprintf(name, sizeof name, M ".%s", cases[i].suffix);
        ckpt_set_put(&set, name, cases[i].dtype, NULL, 2, cases[i].a, cases[i].b);
        if (cases[i].how == CKPT_NVFP4_CT)
            ckpt_set_put(&set, M ".weight_scale", "F8_E4M3", NULL, 2, cases[i].rows, (uint64_t)1);
        else
            ckpt_set_put(&set, M ".weight_scale", "U8", NULL, 2, cases[i].rows, (uint64_t)1);
        ckpt_expect("shape", detect(cases[i].rows, cases[i].cols), -EINVAL, &err,
                    (const char *const[]){"module " M, cases[i].has, NULL});
        x = model_index_close(x);
        ckpt_set_done(&set);
    }
    ckpt_set_put(&set, M ".trellis", "I16", NULL, 3, (uint64_t)12, (uint64_t)8, (uint64_t)64);
    ckpt_expect("EXL3", detect(128, 192), -EINVAL, &err, (const char *const[]){"multiples of 128", NULL});
}
END_TEST

int main(void) {
    Suite *s = suite_create("model_detect");
    TCase *tc = tcase_create("detect");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, every_spelling, 0, N_FINE);
    tcase_add_test(tc, nothing_there);
    tcase_add_test(tc, grids_and_channels_are_told_apart);
    tcase_add_loop_test(tc, refusals, 0, (int)(sizeof SPOILS / sizeof *SPOILS));
    tcase_add_test(tc, shapes_a_format_cannot_hold);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
