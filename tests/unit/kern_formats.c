/* SPDX-License-Identifier: MIT */
/* The oracle with weights stored in each format, against the formulas on the numbers they stand for. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernnaive.h"
#include "kernstores.h"

/* Widths that every format can hold: 256 inputs for the K formats, 128 outputs for EXL3. */
static void wide(struct kern_config *c) {
    km_config_small(c);
    c->model.hidden = 256;
    c->model.dense_width = c->model.expert_width = 256;
    c->model.n_experts = 2;
    c->model.n_top = 2;
    c->model.vocab_rows = c->model.vocab_tokens = 256;
    c->model.kda_heads = 2;
    c->model.kda_dim = 128;
    c->model.mla_heads = 2;
    c->model.q_rank = c->model.kv_rank = c->model.nope_dim = 256;
    c->model.v_dim = 128;
    c->model.index_dim = 128;
    c->model.index_topk = 512; /* everything is chosen: no choice that a last bit could turn */
    c->model.swiglu_limit = 0;
    km_layers(&c->model, "Kd Fms Nd", NULL);
}

static void compare(struct kern_config *c, const struct kern_store *s, uint32_t least_used, uint64_t seed) {
    enum { N = 4 };
    uint32_t ids[N], used;
    struct kern_store *stores = ks_stores(&c->model, s, &used);
    struct km_rng r = {seed + 1};
    char name[40];
    ck_assert_msg(used >= least_used, "%s: %u matrices", kern_store_name(s, name, sizeof(name)), used);
    c->stores = stores;
    struct kernmodel *m = km_new(c, seed);
    for (int i = 0; i < N; i++)
        ids[i] = km_below(&r, c->model.vocab_tokens);
    struct naive *v = naive_new(m, ids, N);
    struct km_inst *i = km_open(m, "ref", NULL);
    struct km_plan *p = km_plan_new(i);
    float logits[256];
    km_prefill(i, p, 0, ids, 2, 64);
    for (uint32_t at = 2; at < N; at++) {
        km_decode(i, p, 0, at, ids[at], logits);
        double e = naive_error(logits, v->logits + at * (uint64_t)c->model.vocab_rows, c->model.vocab_rows);
        ck_assert_msg(e < 2e-5, "%s, position %u: relative error %g", kern_store_name(s, name, sizeof(name)), at, e);
    }
    naive_free(v);
    km_plan_free(p);
    km_close(i);
    km_free(m);
    free(stores);
}

START_TEST(each_format) {
    struct kern_config c;
    wide(&c);
    compare(&c, &ks_all[_i], 20, 700 + (uint64_t)_i);
}
END_TEST

/* What odd shapes can be stored as. */
START_TEST(odd_shapes) {
    static const struct kern_store s[] = {
        {.format = KERN_F16},
        {.format = KERN_F32},
        {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 16, .block_cols = 16},
        {.format = KERN_FP8, .scale = KERN_SCALE_BF16, .block_rows = 1},
        {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 32},
        {.format = KERN_INT4, .scale = KERN_SCALE_F32, .block_rows = 1, .block_cols = 32},
    };
    struct kern_config c;
    km_config_small(&c);
    c.model.index_topk = 512;
    compare(&c, &s[_i], 10, 800 + (uint64_t)_i);
}
END_TEST

static void pack_zeros(struct kern *k, const struct kern_tensor_id *id, const struct kern_part_info *info) {
    const struct kern_tensor t = {.store = info->matrix ? kern_matrix_store(&k->cfg, id) : kern_store_plain(KERN_F16),
                                  .rows = info->rows,
                                  .cols = info->cols};
    struct kern_piece_info p;
    ck_assert_int_eq(kern_store_piece(&t.store, info->rows, info->cols, (enum kern_piece)id->piece, &p), 0);
    if (!p.rows)
        return;
    void *zeros = calloc(p.rows, p.row_bytes);
    ck_assert_ptr_nonnull(zeros);
    ck_assert_msg(kern_pack(k, id, &t, 0, zeros, p.rows * p.row_bytes) == 0, "%s", kern_last_error(k));
    free(zeros);
}

/* A matrix is there when all of its pieces are, and the refusal says which is not. */
START_TEST(every_piece_is_awaited) {
    static const char *const backends[] = {"ref", "cpu"};
    const struct kern_store s = kern_store_plain(KERN_NVFP4);
    const struct kern_tensor_id late = {.part = KERN_MLP_UP, .piece = KERN_PIECE_SCALE};
    struct kern_config c;
    struct kern_block mem[KERN_MEM_N];
    struct kern_part_info info;
    uint64_t bytes[KERN_MEM_N];
    uint32_t used;
    struct kern *k;
    wide(&c);
    struct kern_store *stores = ks_stores(&c.model, &s, &used);
    c.stores = stores;
    ck_assert_int_eq(kern_query(backends[_i], &c, bytes), 0);
    for (int i = 0; i < KERN_MEM_N; i++)
        ck_assert_int_eq(kern_mem_alloc(backends[_i], (enum kern_mem)i, bytes[i], &mem[i]), 0);
    ck_assert_int_eq(kern_open(backends[_i], &c, mem, &k), 0);
    free(stores); /* copied */
    for (uint32_t l = 0; l < kern_total_layers(&c.model); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            if (!kern_part_info(&c.model, part, l, &info))
                continue;
            for (uint32_t e = 0; e < info.experts * KERN_PIECES; e++) {
                struct kern_tensor_id id = {part, l, e / KERN_PIECES, e % KERN_PIECES};
                if ((info.matrix || !id.piece) && memcmp(&id, &late, sizeof(id)))
                    pack_zeros(k, &id, &info);
            }
        }
    ck_assert_int_eq(kern_pack_done(k), -ENODATA);
    ck_assert_msg(strstr(kern_last_error(k), "mlp.up_proj expert 0 scales: 0 of 4096 bytes") != NULL, "%s",
                  kern_last_error(k));
    ck_assert(kern_part_info(&c.model, late.part, 0, &info));
    pack_zeros(k, &late, &info);
    ck_assert_msg(kern_pack_done(k) == 0, "%s", kern_last_error(k));
    kern_close(k);
    for (int i = 0; i < KERN_MEM_N; i++)
        kern_mem_free(backends[_i], (enum kern_mem)i, &mem[i]);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_formats");
    TCase *t = tcase_create("formats");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, each_format, 0, (int)ks_count);
    tcase_add_loop_test(t, odd_shapes, 0, 6);
    tcase_add_loop_test(t, every_piece_is_awaited, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
