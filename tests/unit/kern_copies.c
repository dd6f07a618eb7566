/* SPDX-License-Identifier: MIT */
/* Slots and pages as bytes, and copied inside, on every backend: what was moved goes on with the bits of what
 * stayed, and bytes that are not this model's, or cut, are refused and change nothing. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernmodel.h"

/* cuda_copies.c is this file for other backends. */
#ifndef BACKENDS
#define BACKENDS "ref", "cpu", "script"
#endif
static const char *const backends[] = {BACKENDS};
enum { N_BACKENDS = sizeof(backends) / sizeof(backends[0]) };

static const char script[] = "glmd-script 1\nvocab 197\nrequest first 3\ntokens 9 8 7 6 5\n"
                             "request\ntokens 1 2\nrequest\ntokens 11 12 13 14\n";

struct bench {
    struct kern_config cfg;
    struct kernmodel *m;
    struct km_inst *i;
    struct km_plan *p;
    uint32_t ids[512];
};

static void setup(struct bench *b, const char *backend) {
    struct km_rng r = {7};
    km_config_small(&b->cfg);
    b->cfg.script = script;
    b->m = km_new(&b->cfg, 8);
    b->i = km_open(b->m, backend, NULL);
    b->p = km_plan_new(b->i);
    for (int i = 0; i < 512; i++)
        b->ids[i] = km_below(&r, b->cfg.model.vocab_tokens);
}

static void teardown(struct bench *b) {
    km_plan_free(b->p);
    km_close(b->i);
    km_free(b->m);
}

static void *room(uint64_t n) {
    void *p = malloc(n);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* n tokens drawn one after another, each fed to the next step; the last logits' numbers come along. */
static void answer(struct bench *b, uint32_t slot, uint32_t pos, uint32_t token, uint32_t n,
                   struct kern_result *ret) {
    for (uint32_t i = 0; i < n; i++) {
        km_plan_clear(b->p, KERN_LANE_DECODE);
        km_plan_seq(b->p, slot, pos + i, 0, KERN_SEQ_COMMIT, i ? &ret[i - 1].token : &token, 1, NULL);
        struct kern_sample *s = km_plan_sample(b->p, 0, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
        s->temperature = 1;
        s->seed = 5;
        s->n_alts = 4;
        km_run(b->i, b->p);
        ret[i] = *km_results(b->i, KERN_LANE_DECODE);
    }
}

static void same_answers(const struct kern_result *a, const struct kern_result *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(a[i].token, b[i].token);
        ck_assert_int_eq(memcmp(&a[i].logprob, &b[i].logprob, sizeof(float)), 0);
        ck_assert_int_eq(memcmp(&a[i].logsumexp, &b[i].logsumexp, sizeof(float)), 0);
        ck_assert_int_eq(memcmp(a[i].alts, b[i].alts, 4 * sizeof(a[i].alts[0])), 0);
    }
}

/* Slot 0 with its pages: to slot 2 by copies, to slot 4 as bytes, and through a second instance and back. */
START_TEST(moved_goes_on) {
    struct bench b;
    struct kern_result want[5], got[5];
    setup(&b, backends[_i]);
    struct kern *k = b.i->k;
    struct km_inst *other = km_open(b.m, backends[_i], NULL);
    const uint32_t per = b.i->pages_per_slot;
    uint64_t sn = kern_slot_bytes(k), pn = kern_page_bytes(k);
    char *s = room(sn), *s2 = room(sn), *p = room(pn), *p2 = room(pn);
    b.ids[0] = 3;
    km_prefill(b.i, b.p, 0, b.ids, 301, 128);
    ck_assert_int_eq(kern_slot_copy(k, 2, 0), 0);
    ck_assert_int_eq(kern_slot_read(k, 0, s, sn), 0);
    ck_assert_int_eq(kern_slot_write(other->k, 7, s, sn), 0);
    ck_assert_int_eq(kern_slot_read(other->k, 7, s2, sn), 0);
    ck_assert_int_eq(kern_slot_write(k, 4, s2, sn), 0);
    for (uint32_t g = 0; g < per; g++) {
        ck_assert_int_eq(kern_page_copy(k, 2 * per + g, g), 0);
        ck_assert_int_eq(kern_page_read(k, g, p, pn), 0);
        ck_assert_int_eq(kern_page_write(other->k, 3, p, pn), 0);
        ck_assert_int_eq(kern_page_read(other->k, 3, p2, pn), 0);
        ck_assert_int_eq(memcmp(p, p2, pn), 0);
        ck_assert_int_eq(kern_page_write(k, 4 * per + g, p2, pn), 0);
    }
    answer(&b, 0, 301, b.ids[301], 5, want);
    answer(&b, 2, 301, b.ids[301], 5, got);
    same_answers(want, got, 5);
    answer(&b, 4, 301, b.ids[301], 5, got);
    same_answers(want, got, 5);
    km_close(other);
    free(s);
    free(s2);
    free(p);
    free(p2);
    teardown(&b);
}
END_TEST

/* A slot that sits still while its neighbours run, and one that was never left alone: the same bits. */
START_TEST(paused_goes_on) {
    struct bench b;
    struct kern_result want[24], got[24];
    setup(&b, backends[_i]);
    b.ids[0] = 3;
    for (uint32_t slot = 0; slot < 2; slot++)
        km_prefill(b.i, b.p, slot, b.ids, 70, 64);
    answer(&b, 0, 70, b.ids[70], 24, want);
    answer(&b, 1, 70, b.ids[70], 2, got);
    km_prefill(b.i, b.p, 5, b.ids + 20, 200, 64);
    answer(&b, 5, 200, 1, 20, got + 2);
    answer(&b, 1, 72, got[1].token, 22, got + 2);
    same_answers(want, got, 24);
    teardown(&b);
}
END_TEST

static void refused(struct kern *k, const char *page, uint64_t bytes) {
    ck_assert_int_eq(kern_page_write(k, 1, page, bytes), -EBADMSG);
    ck_assert_str_ne(kern_last_error(k), "");
}

START_TEST(foreign_pages) {
    struct bench b;
    setup(&b, backends[_i]);
    struct kern *k = b.i->k;
    uint64_t n = kern_page_bytes(k);
    char *p = room(n), *before = room(n);
    km_prefill(b.i, b.p, 0, b.ids, 301, 128);
    ck_assert_int_eq(kern_page_read(k, 0, p, n), 0);
    ck_assert_int_eq(kern_page_read(k, 1, before, n), 0);
    for (int at = 0; at < 24; at++) { /* magic, model, bytes */
        p[at] ^= 1;
        refused(k, p, n);
        p[at] ^= 1;
    }
    refused(k, p, n - 1);
    refused(k, p, n + 1);
    refused(k, p, 0);
    char *slot = room(kern_slot_bytes(k));
    ck_assert_int_eq(kern_slot_read(k, 0, slot, kern_slot_bytes(k)), 0);
    if (kern_slot_bytes(k) >= n)
        refused(k, slot, n);
    ck_assert_int_eq(kern_slot_write(k, 0, p, n), -EBADMSG);
    ck_assert_int_eq(kern_page_read(k, 0, p, n - 1), -EINVAL);
    ck_assert_int_eq(kern_page_read(k, 16, p, n), -EINVAL);
    ck_assert_int_eq(kern_page_write(k, 16, p, n), -EINVAL);
    ck_assert_int_eq(kern_page_copy(k, 16, 0), -EINVAL);
    ck_assert_int_eq(kern_page_copy(k, 0, 16), -EINVAL);
    ck_assert_int_eq(kern_page_read(k, 1, p, n), 0);
    ck_assert_int_eq(memcmp(p, before, n), 0);
    free(p);
    free(before);
    free(slot);
    teardown(&b);
}
END_TEST

/* Bytes of another backend, cache format or shape. */
START_TEST(foreign_models) {
    struct bench b;
    setup(&b, backends[_i]);
    struct kern_config half = b.cfg;
    half.cache = KERN_CACHE_BF16;
    const char *other = backends[(_i + 1) % N_BACKENDS];
    struct km_inst *x[2] = {km_open(b.m, other, NULL), km_open(b.m, backends[_i], &half)};
    for (int i = 0; i < 2; i++) {
        uint64_t n = kern_page_bytes(x[i]->k);
        char *p = room(n);
        ck_assert_int_eq(kern_page_read(x[i]->k, 0, p, n), 0);
        refused(b.i->k, p, n);
        km_close(x[i]);
        free(p);
    }
    teardown(&b);
}
END_TEST

/* On the script, text that was taken over begins a request: its own answer from the start. */
START_TEST(script_begins_again) {
    static const uint32_t first[] = {3, 20}, second[][2] = {{9, 8}, {11, 12}};
    for (int i = 0; i < 2; i++) {
        struct bench b;
        struct kern_result r[2];
        setup(&b, "script");
        b.ids[0] = first[i];
        km_prefill(b.i, b.p, 0, b.ids, 64, 64);
        answer(&b, 0, 64, b.ids[64], 2, r);
        ck_assert_int_eq(kern_slot_copy(b.i->k, 6, 0), 0);
        answer(&b, 6, 66, b.ids[66], 2, r);
        ck_assert_uint_eq(r[0].token, second[i][0]);
        ck_assert_uint_eq(r[1].token, second[i][1]);
        /* where it came from goes on as if nothing was taken */
        answer(&b, 0, 66, b.ids[66], 1, r);
        ck_assert_uint_eq(r[0].token, i ? 2 : 7);
        teardown(&b);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_copies");
    TCase *t = tcase_create("backends");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, moved_goes_on, 0, N_BACKENDS);
    tcase_add_loop_test(t, paused_goes_on, 0, N_BACKENDS);
    tcase_add_loop_test(t, foreign_pages, 0, N_BACKENDS);
    tcase_add_loop_test(t, foreign_models, 0, N_BACKENDS);
    tcase_add_test(t, script_begins_again);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
