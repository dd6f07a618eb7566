/* SPDX-License-Identifier: MIT */
/* How many bytes each format takes: against the counts of the published packs, and what no store may be. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "format.h"

static uint64_t bytes_of(struct kern_store s, uint64_t rows, uint64_t cols) {
    uint64_t n = 0;
    ck_assert_int_eq(kern_store_bytes(&s, rows, cols, &n), 0);
    return n;
}

static void piece_is(struct kern_store s, uint64_t rows, uint64_t cols, enum kern_piece piece, uint64_t want_rows,
                     uint64_t want_bytes, uint32_t unit) {
    struct kern_piece_info p = {9, 9, 9};
    ck_assert_int_eq(kern_store_piece(&s, rows, cols, piece, &p), 0);
    ck_assert_uint_eq(p.rows, want_rows);
    ck_assert_uint_eq(p.row_bytes, want_bytes);
    ck_assert_uint_eq(p.unit, unit);
}

static const struct kern_store fp8_block = {
    .format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128};
static const struct kern_store fp8_channel = {.format = KERN_FP8, .scale = KERN_SCALE_BF16, .block_rows = 1};
static const struct kern_store fp8_tensor = {.format = KERN_FP8, .scale = KERN_SCALE_F32};
static const struct kern_store int8_g128 = {
    .format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128};
static const struct kern_store int4_g128 = {
    .format = KERN_INT4, .scale = KERN_SCALE_F16, .block_rows = 1, .block_cols = 128};

static struct kern_store exl3(uint8_t bits) {
    return (struct kern_store){.format = KERN_EXL3, .bits = bits, .codebook = KERN_CODEBOOK_MCG};
}

/* One expert of GLM-5.3-Flash: gate and up [2048, 4096], down [4096, 2048]. */
START_TEST(expert_bytes) {
    ck_assert_uint_eq(2 * bytes_of(fp8_block, 2048, 4096) + bytes_of(fp8_block, 4096, 2048), 25171968);
    struct kern_store nvfp4 = kern_store_plain(KERN_NVFP4);
    piece_is(nvfp4, 2048, 4096, KERN_PIECE_CODES, 2048, 2048, 1);
    piece_is(nvfp4, 2048, 4096, KERN_PIECE_SCALE, 2048, 256, 1);
    piece_is(nvfp4, 4096, 2048, KERN_PIECE_CODES, 4096, 1024, 1);
    piece_is(nvfp4, 4096, 2048, KERN_PIECE_SCALE, 4096, 128, 1);
    piece_is(nvfp4, 4096, 2048, KERN_PIECE_GLOBAL, 1, 4, 4);
    piece_is(nvfp4, 4096, 2048, KERN_PIECE_SUH, 0, 0, 0);
    ck_assert_uint_eq(bytes_of(nvfp4, 2048, 4096), 2048 * 2048 + 2048 * 256 + 4);
    for (uint8_t bits = 1; bits <= 8; bits++)
        ck_assert_uint_eq(bytes_of(exl3(bits), 2048, 4096), 2048ull * 4096 * bits / 8 + 12288);
    piece_is(exl3(4), 2048, 4096, KERN_PIECE_CODES, 256, 128 * 128, 2);
    piece_is(exl3(4), 2048, 4096, KERN_PIECE_SUH, 1, 8192, 2);
    piece_is(exl3(4), 2048, 4096, KERN_PIECE_SVH, 1, 4096, 2);
}
END_TEST

/* Bits per weight as the public lists give them, times 1000 and cut. */
START_TEST(bits_per_weight) {
    const struct {
        struct kern_store s;
        uint32_t bits;
    } want[] = {
        {kern_store_plain(KERN_F32), 32000},
        {kern_store_plain(KERN_BF16), 16000},
        {kern_store_plain(KERN_F16), 16000},
        {fp8_block, 8001},
        {kern_store_plain(KERN_MXFP8), 8250},
        {int8_g128, 8125},
        {int4_g128, 4125},
        {kern_store_plain(KERN_NVFP4), 4500},
        {kern_store_plain(KERN_MXFP4), 4250},
        {exl3(4), 4011},
        {exl3(3), 3011},
        {exl3(2), 2011},
        {kern_store_plain(KERN_Q8_0), 8500},
        {kern_store_plain(KERN_Q2_K), 2625},
        {kern_store_plain(KERN_Q3_K), 3437},
        {kern_store_plain(KERN_Q4_K), 4500},
        {kern_store_plain(KERN_Q5_K), 5500},
        {kern_store_plain(KERN_Q6_K), 6562},
        {kern_store_plain(KERN_IQ1_S), 1562},
        {kern_store_plain(KERN_IQ1_M), 1750},
        {kern_store_plain(KERN_IQ2_XXS), 2062},
        {kern_store_plain(KERN_IQ2_XS), 2312},
        {kern_store_plain(KERN_IQ2_S), 2562},
        {kern_store_plain(KERN_IQ3_XXS), 3062},
        {kern_store_plain(KERN_IQ3_S), 3437},
        {kern_store_plain(KERN_IQ4_NL), 4500},
        {kern_store_plain(KERN_IQ4_XS), 4250},
        {kern_store_plain(KERN_GGUF_MXFP4), 4250},
        {kern_store_plain(KERN_GGUF_NVFP4), 4500},
    };
    bool seen[KERN_FORMAT_END] = {0};
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        uint64_t n = bytes_of(want[i].s, 2048, 4096);
        ck_assert_uint_eq(n * 8 * 1000 / (2048ull * 4096), want[i].bits);
        seen[want[i].s.format] = true;
    }
    for (uint32_t i = 1; i < KERN_FORMAT_END; i++)
        ck_assert_msg(seen[i], "%s has no line", kern_format_word(i));
}
END_TEST

START_TEST(edge_blocks) {
    piece_is(fp8_block, 129, 300, KERN_PIECE_SCALE, 2, 12, 4);
    piece_is(fp8_channel, 129, 300, KERN_PIECE_SCALE, 129, 2, 2);
    piece_is(fp8_tensor, 129, 300, KERN_PIECE_SCALE, 1, 4, 4);
    piece_is(int8_g128, 7, 129, KERN_PIECE_SCALE, 7, 4, 2);
    piece_is(int8_g128, 7, 129, KERN_PIECE_CODES, 7, 129, 1);
    struct kern_store g = kern_store_plain(KERN_GGUF_NVFP4);
    piece_is(g, 3, 64, KERN_PIECE_GLOBAL, 0, 0, 0);
    piece_is(g, 3, 64, KERN_PIECE_SCALE, 0, 0, 0);
    g.scale = KERN_SCALE_F32;
    piece_is(g, 3, 64, KERN_PIECE_GLOBAL, 1, 4, 4);
    piece_is(g, 3, 64, KERN_PIECE_SCALE, 0, 0, 0);
    uint32_t w, b;
    struct kern_store q = kern_store_plain(KERN_Q4_K), e = exl3(4);
    ck_assert_int_eq(kern_store_block(&q, &w, &b), 0);
    ck_assert(w == 256 && b == 144);
    ck_assert_int_eq(kern_store_block(&int4_g128, &w, &b), 0);
    ck_assert(w == 2 && b == 1);
    ck_assert_int_eq(kern_store_block(&e, &w, &b), -EINVAL);
}
END_TEST

static void refused(struct kern_store s, uint64_t rows, uint64_t cols, int want) {
    struct kern_piece_info p = {7, 7, 7};
    uint64_t n = 7;
    ck_assert_int_eq(kern_store_bytes(&s, rows, cols, &n), want);
    ck_assert_uint_eq(n, 7);
    ck_assert_int_eq(kern_store_piece(&s, rows, cols, KERN_PIECE_CODES, &p), want);
    ck_assert(p.rows == 7 && p.row_bytes == 7 && p.unit == 7);
}

START_TEST(what_no_store_is) {
    struct kern_store ok = kern_store_plain(KERN_BF16), s;
    refused((struct kern_store){0}, 1, 1, -EINVAL);
    refused((struct kern_store){.format = KERN_FORMAT_END}, 1, 1, -EINVAL);
    refused((struct kern_store){.format = 255}, 1, 1, -EINVAL);
    refused(ok, 0, 1, -EINVAL);
    refused(ok, 1, 0, -EINVAL);
    refused(ok, 1, UINT64_MAX, -EOVERFLOW);
    s = ok, s.scale = KERN_SCALE_F32, refused(s, 1, 1, -EINVAL);
    s = ok, s.bits = 4, refused(s, 1, 1, -EINVAL);
    s = ok, s.codebook = 1, refused(s, 1, 1, -EINVAL);
    s = ok, s.block_cols = 1, refused(s, 1, 1, -EINVAL);
    s = fp8_block, s.scale = KERN_SCALE_NONE, refused(s, 1, 1, -EINVAL);
    s = fp8_block, s.scale = KERN_SCALE_E8M0, refused(s, 1, 1, -EINVAL);
    s = int8_g128, s.block_rows = 2, refused(s, 2, 2, -EINVAL);
    s = int8_g128, s.block_rows = 0, refused(s, 2, 2, -EINVAL);
    s = int4_g128, s.block_cols = 3, refused(s, 2, 2, -EINVAL);
    refused(int4_g128, 2, 3, -EINVAL);
    s = kern_store_plain(KERN_NVFP4);
    refused(s, 2, 24, -EINVAL);
    s.scale = KERN_SCALE_E8M0, refused(s, 2, 32, -EINVAL);
    s = kern_store_plain(KERN_NVFP4), s.block_cols = 32, refused(s, 2, 32, -EINVAL);
    refused(kern_store_plain(KERN_MXFP8), 2, 48, -EINVAL);
    refused(kern_store_plain(KERN_MXFP4), 2, 48, -EINVAL);
    refused(kern_store_plain(KERN_Q4_K), 1, 128, -EINVAL);
    refused(kern_store_plain(KERN_Q8_0), 1, 48, -EINVAL);
    refused(exl3(0), 128, 128, -EINVAL);
    refused(exl3(9), 128, 128, -EINVAL);
    refused(exl3(4), 64, 128, -EINVAL);
    refused(exl3(4), 128, 192, -EINVAL);
    s = exl3(4), s.codebook = 0, refused(s, 128, 128, -EINVAL);
    s = exl3(4), s.codebook = 4, refused(s, 128, 128, -EINVAL);
    /* two dimensions that fit, and whose product does not */
    refused(ok, UINT64_MAX / 4, 8, -EOVERFLOW);
    struct kern_piece_info p;
    ck_assert_int_eq(kern_store_piece(&ok, 1, 1, KERN_PIECES, &p), -EINVAL);
    /* each piece fits, their sum does not */
    s = (struct kern_store){.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 1, .block_cols = 4};
    uint64_t n;
    ck_assert_int_eq(kern_store_bytes(&s, 1ull << 32, (1ull << 32) - 4, &n), -EOVERFLOW);
}
END_TEST

START_TEST(names) {
    char buf[40];
    struct kern_store s = int8_g128;
    ck_assert_str_eq(kern_store_name(&fp8_block, buf, sizeof(buf)), "FP8 128x128");
    ck_assert_str_eq(kern_store_name(&fp8_channel, buf, sizeof(buf)), "FP8 channel (BF16)");
    ck_assert_str_eq(kern_store_name(&fp8_tensor, buf, sizeof(buf)), "FP8 tensor");
    ck_assert_str_eq(kern_store_name(&s, buf, sizeof(buf)), "INT8 g128 (BF16)");
    s.block_cols = 0;
    ck_assert_str_eq(kern_store_name(&s, buf, sizeof(buf)), "INT8 channel (BF16)");
    ck_assert_str_eq(kern_store_name(&int4_g128, buf, sizeof(buf)), "INT4 g128 (F16)");
    s = exl3(4);
    ck_assert_str_eq(kern_store_name(&s, buf, sizeof(buf)), "EXL3 4 bits mcg");
    s = kern_store_plain(KERN_Q4_K);
    ck_assert_str_eq(kern_store_name(&s, buf, sizeof(buf)), "Q4_K");
    s.format = 200;
    ck_assert_str_eq(kern_store_name(&s, buf, sizeof(buf)), "format 200");
    for (uint32_t i = 1; i < KERN_FORMAT_END; i++) {
        ck_assert_ptr_nonnull(kern_format_word(i));
        ck_assert_uint_eq(kern_format_find(kern_format_word(i)), i);
    }
    ck_assert_ptr_null(kern_format_word(0));
    ck_assert_ptr_null(kern_format_word(KERN_FORMAT_END));
    ck_assert_uint_eq(kern_format_find("BF16"), 0);
    ck_assert_uint_eq(kern_format_find(""), 0);
}
END_TEST

int main(void) {
    Suite *s = suite_create("format_sizes");
    TCase *t = tcase_create("format_sizes");
    tcase_add_test(t, expert_bytes);
    tcase_add_test(t, bits_per_weight);
    tcase_add_test(t, edge_blocks);
    tcase_add_test(t, what_no_store_is);
    tcase_add_test(t, names);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
