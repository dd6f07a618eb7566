/* SPDX-License-Identifier: MIT */
/* The oracle with weights stored in each format, against the formulas on the numbers they stand for. */
#include <check.h>
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

int main(void) {
    Suite *s = suite_create("kern_formats");
    TCase *t = tcase_create("formats");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, each_format, 0, (int)ks_count);
    tcase_add_loop_test(t, odd_shapes, 0, 6);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
