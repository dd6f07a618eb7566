/* SPDX-License-Identifier: MIT */
/* Rows made smaller while they are loaded come in windows of any length: the loader cuts where its buffer ends, which a
 * small model never sees. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckptset.h"
#include "convert.h"
#include "host_quant.h"
#include "kernmodel.h"

struct taken {
    uint8_t *bytes[2][KERN_PIECES]; /* of each matrix */
    uint64_t n[2][KERN_PIECES];
};

static int take(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                const void *bytes, uint64_t n) {
    struct taken *k = ctx;
    uint32_t which = id->part == KERN_MLP_GATE;
    struct kern_piece_info info;
    ck_assert_int_eq(kern_store_piece(&t->store, t->rows, t->cols, (enum kern_piece)id->piece, &info), 0);
    ck_assert_uint_le(offset + n, info.rows * info.row_bytes);
    memcpy(k->bytes[which][id->piece] + offset, bytes, n);
    k->n[which][id->piece] += n;
    return 0;
}

/* Two matrices one behind the other, cut anywhere: inside a number, a row, a panel of sixteen rows, the last few rows.
 * They become what all their rows become at once, and no byte beside the memory that was asked for is touched. */
START_TEST(windows_of_any_length) {
    static const struct kern_store to[] = {
        {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128},
        {.format = KERN_INT4, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128},
        {.format = KERN_MXFP8, .scale = KERN_SCALE_E8M0, .block_rows = 1, .block_cols = 32}};
    static const uint64_t rows[2] = {53, 16}, cols[2] = {256, 640};
    enum { EDGE = 4096 };
    const struct kern_store *s = &to[_i % 3];
    struct km_rng rng = {(uint64_t)_i + 1};
    struct kern_config cfg;
    struct model_item item[2];
    struct taken got = {.n = {{0}}};
    memset(item, 0, sizeof item);
    km_config_small(&cfg);
    km_layers(&cfg.model, "Kd", NULL);
    struct kern_store *stores = calloc(kern_part_count(&cfg.model), sizeof *stores);
    uint16_t *source[2];
    void *want[2][KERN_PIECES] = {{NULL}}, *scratch = calloc(1, HOST_QUANT_SCRATCH);
    for (int i = 0; i < 2; i++) {
        item[i].id = (struct kern_tensor_id){.part = i ? KERN_MLP_GATE : KERN_HEAD, .piece = KERN_PIECE_CODES};
        item[i].k = (struct kern_tensor){
            .store = kern_store_plain(KERN_BF16), .rows = rows[i], .cols = cols[i]};
        stores[kern_part_slot(&cfg.model, &item[i].id)] = *s;
        float *f = malloc(rows[i] * cols[i] * sizeof *f);
        source[i] = malloc(rows[i] * cols[i] * 2);
        for (uint64_t at = 0; at < rows[i] * cols[i]; at++) {
            source[i][at] = ckpt_to_bf16((double)km_normal(&rng));
            f[at] = (float)ckpt_bf16(source[i][at]);
        }
        for (uint32_t p = KERN_PIECE_CODES; p <= KERN_PIECE_SCALE; p++) {
            struct kern_piece_info info;
            ck_assert_int_eq(kern_store_piece(s, rows[i], cols[i], (enum kern_piece)p, &info), 0);
            want[i][p] = calloc(info.rows, info.row_bytes);
            got.bytes[i][p] = calloc(info.rows, info.row_bytes);
        }
        ck_assert_int_eq(host_quant_rows(s, rows[i], cols[i], f, 0, rows[i], 0, want[i], scratch), 0);
        free(f);
    }
    const struct model_directory d = {.item = item, .n_items = 2};
    uint64_t bytes = convert_bytes(&d, &cfg.model, stores);
    ck_assert_uint_ge(bytes, 16 * 640 * (2 + 4) + HOST_QUANT_SCRATCH);
    uint8_t *memory = aligned_alloc(64, bytes + EDGE);
    memset(memory, 0, bytes);
    memset(memory + bytes, 0xa5, EDGE);
    struct convert c = {.sink = take, .sink_ctx = &got};
    convert_begin(&c, &d, &cfg.model, stores, memory);
    ck_assert((uint8_t *)c.scratch + HOST_QUANT_SCRATCH <= memory + bytes);
    for (int i = 0; i < 2; i++)
        for (uint64_t at = 0, all = rows[i] * cols[i] * 2, n; at < all; at += n) {
            n = 1 + km_below(&rng, _i < 3 ? 700 : 30000);
            n = n < all - at ? n : all - at;
            ck_assert_int_eq(convert_window(&c, &item[i].id, &item[i].k, s, at, (uint8_t *)source[i] + at, n), 0);
        }
    for (uint32_t at = 0; at < EDGE; at++)
        ck_assert_uint_eq(memory[bytes + at], 0xa5);
    for (int i = 0; i < 2; i++)
        for (uint32_t p = KERN_PIECE_CODES; p <= KERN_PIECE_SCALE; p++) {
            struct kern_piece_info info;
            ck_assert_int_eq(kern_store_piece(s, rows[i], cols[i], (enum kern_piece)p, &info), 0);
            ck_assert_uint_eq(got.n[i][p], info.rows * info.row_bytes);
            ck_assert_msg(!memcmp(got.bytes[i][p], want[i][p], got.n[i][p]), "matrix %d, piece %u", i, p);
            free(want[i][p]);
            free(got.bytes[i][p]);
        }
    /* out of order, another matrix in between, and more than there is */
    ck_assert_int_eq(convert_window(&c, &item[0].id, &item[0].k, s, 0, source[0], 2), 0);
    ck_assert_int_eq(convert_window(&c, &item[0].id, &item[0].k, s, 4, source[0], 2), -EPROTO);
    ck_assert_int_eq(convert_window(&c, &item[1].id, &item[1].k, s, 2, source[1], 2), -EPROTO);
    ck_assert_int_eq(convert_window(&c, &item[1].id, &item[1].k, s, 0, source[1], 2), -EPROTO);
    free(memory);
    free(scratch);
    free(stores);
    free(source[0]);
    free(source[1]);
}
END_TEST

int main(void) {
    Suite *s = suite_create("convert_windows");
    TCase *t = tcase_create("windows");
    tcase_add_loop_test(t, windows_of_any_length, 0, 6);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
