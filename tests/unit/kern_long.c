/* SPDX-License-Identifier: MIT */
/* Long contexts at the release's limits with small widths: lengths around 2,048 selected tokens and its tail, and past
 * 4,096, cpu against the oracle; and a pool of pages larger than 4 GiB, of which only what is used is touched. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernmodel.h"

/* ---- selection at the limit ---- */

enum { TOPK = 2048, KPOOL = 4, N = 4112 };

static void long_model(struct kern_config *c) {
    km_config_small(c);
    c->n_slots = 1;
    c->max_seqs = 1;
    c->max_context = 4352;
    c->n_pages = 17;
    c->max_plan_bytes = 1 << 21;
    c->model.index_topk = TOPK;
    c->model.index_kpool = KPOOL;
    c->model.mla_heads = 1;
    c->model.kv_rank = 24;
    c->model.index_heads = 2;
    km_layers(&c->model, "Fd", NULL);
}

/* GLM-5.3's kind: each token is chosen or not, and a second layer takes the first one's list. */
static void long_model_53(struct kern_config *c) {
    struct kern_config plain;
    long_model(&plain);
    km_config_glm53(c);
    c->n_slots = c->max_seqs = 1;
    c->max_context = plain.max_context;
    c->n_pages = plain.n_pages;
    c->max_plan_bytes = plain.max_plan_bytes;
    c->model.index_topk = TOPK;
    c->model.mla_heads = 1;
    c->model.index_heads = 2;
    c->model.rope_theta = 8e6f;
    km_layers(&c->model, "Fd Sd", NULL);
    for (uint32_t l = 0; l < 2; l++)
        c->model.layer[l].resid = KERN_RESID_PLAIN;
}

static void prefill(struct km_inst *i, struct km_plan *p, const uint32_t *ids, uint32_t from, uint32_t to) {
    for (uint32_t at = from; at < to; at += 512) {
        km_plan_clear(p, KERN_LANE_PREFILL);
        km_plan_seq(p, 0, at, 0, KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | (at ? 0u : KERN_SEQ_RESET), ids + at,
                    to - at < 512 ? to - at : 512, NULL);
        km_run(i, p);
    }
}

/* A token at every length: what is seen is counted, and both backends say the same. */
static void step_by_step(struct km_inst *const i[2], struct km_plan *p, const uint32_t *ids, uint32_t from,
                         uint32_t to) {
    const uint32_t vocab = i[0]->cfg.model.vocab_rows;
    for (uint32_t t = from; t < to; t++) {
        float logits[2][256];
        double d = 0, w = 0;
        for (int b = 0; b < 2; b++) {
            struct kern_counters c;
            km_decode(i[b], p, 0, t, ids[t], logits[b]);
            ck_assert_int_eq(kern_counters(i[b]->k, KERN_LANE_DECODE, &c), 0);
            uint32_t kpool = i[b]->cfg.model.index_kpool, n = t + 1, pools = n / kpool;
            bool all = pools <= TOPK / kpool; /* up to 2,051 tokens in pools of four */
            ck_assert_uint_eq(c.latent_rows, i[b]->cfg.model.n_layers * (all ? n : TOPK + n % kpool));
            ck_assert_uint_eq(c.pooled_keys, all ? 0 : pools);
        }
        for (uint32_t v = 0; v < vocab; v++) {
            d += ((double)logits[1][v] - logits[0][v]) * ((double)logits[1][v] - logits[0][v]);
            w += (double)logits[0][v] * logits[0][v];
        }
        ck_assert_msg(sqrt(d / w) < 2e-5, "%u tokens: relative error %g", t + 1, sqrt(d / w));
    }
}

START_TEST(around_the_limits) {
    static uint32_t ids[N];
    struct kern_config c;
    struct km_rng r = {41};
    (_i ? long_model_53 : long_model)(&c);
    for (uint32_t i = 0; i < N; i++)
        ids[i] = km_below(&r, c.model.vocab_tokens);
    struct kernmodel *m = km_new(&c, 42);
    struct km_inst *const i[2] = {km_open(m, "ref", NULL), km_open(m, "cpu", NULL)};
    struct km_plan *p = km_plan_new(i[0]);
    for (int b = 0; b < 2; b++)
        prefill(i[b], p, ids, 0, 2039);
    step_by_step(i, p, ids, 2039, 2112);
    for (int b = 0; b < 2 && !_i; b++)
        prefill(i[b], p, ids, 2112, 4089);
    if (!_i)
        step_by_step(i, p, ids, 4089, N);
    km_plan_free(p);
    km_close(i[0]);
    km_close(i[1]);
    km_free(m);
}
END_TEST

/* ---- offsets of more than 32 bits ---- */

/* Slot 7's pages lie behind 4 GiB. What was written is where it belongs, and its shadow 4 GiB below stays untouched. */
START_TEST(pages_behind_four_gigabytes) {
    static const char *const backends[] = {"ref", "cpu"};
    struct kern_config c;
    struct km_rng r = {43};
    uint32_t ids[70];
    float near[256], far[256];
    km_config_small(&c);
    struct kernmodel *m = km_new(&c, 44);
    struct km_inst *small = km_open(m, backends[_i], NULL);
    uint64_t page = kern_page_bytes(small->k) - 64; /* without the head that bytes outside have */
    km_close(small);
    c.n_pages = (uint32_t)((1ull << 32) / page / 7 + 2) * 8;
    struct km_inst *i = km_open(m, backends[_i], &c);
    struct km_plan *p = km_plan_new(i);
    for (int t = 0; t < 70; t++)
        ids[t] = km_below(&r, c.model.vocab_tokens);
    for (uint32_t slot = 0; slot < 8; slot += 7) {
        km_prefill(i, p, slot, ids, 69, 64);
        km_decode(i, p, slot, 69, ids[69], slot ? far : near);
    }
    ck_assert_mem_eq(near, far, c.model.vocab_rows * sizeof(float));
    const char *base = i->mem[KERN_MEM_PAGES].base;
    uint64_t at = 7ull * i->pages_per_slot * page;
    ck_assert_uint_gt(at, UINT32_MAX);
    ck_assert_mem_eq(base + at, base, page); /* the same text, the same page */
    const char *shadow = base + (uint32_t)at;
    bool zero = true;
    for (uint64_t b = 0; b < page; b++)
        zero &= (uint32_t)at + b < page || shadow[b] == 0;
    ck_assert(zero && base[0] | base[1] | base[2] | base[3]);
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_long");
    TCase *t = tcase_create("long");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, around_the_limits, 0, 2);
    tcase_add_loop_test(t, pages_behind_four_gigabytes, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
