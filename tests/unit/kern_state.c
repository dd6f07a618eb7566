/* SPDX-License-Identifier: MIT */
/* What a sequence carries from step to step: chunked and recurrent form agree, kept rows give the bits of
 * plain decoding whatever was rejected, prefill cuts and neighbours do not matter, slots and pages can be
 * copied. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernmodel.h"

#ifndef BACKEND
#define BACKEND "ref"
#endif

struct bench {
    struct kern_config cfg;
    struct kernmodel *m;
    struct km_inst *i;
    struct km_plan *p;
    uint32_t ids[512];
};

static void setup_layers(struct bench *b, uint64_t seed, const char *layers) {
    struct km_rng r = {seed};
    km_config_small(&b->cfg);
    if (layers)
        km_layers(&b->cfg.model, layers, NULL);
    b->m = km_new(&b->cfg, seed + 1);
    b->i = km_open(b->m, BACKEND, NULL);
    b->p = km_plan_new(b->i);
    for (int i = 0; i < 512; i++)
        b->ids[i] = km_below(&r, b->cfg.model.vocab_tokens);
}

static void setup(struct bench *b, uint64_t seed) {
    setup_layers(b, seed, NULL);
}

static void teardown(struct bench *b) {
    km_plan_free(b->p);
    km_close(b->i);
    km_free(b->m);
}

static char *slot_bytes(struct bench *b, uint32_t slot) {
    uint64_t n = kern_slot_bytes(b->i->k);
    char *p = malloc(n);
    ck_assert_ptr_nonnull(p);
    int r = kern_slot_read(b->i->k, slot, p, n);
    ck_assert_msg(r == 0, "kern_slot_read: %d %s", r, kern_last_error(b->i->k));
    return p;
}

static void same_slots(struct bench *b, uint32_t one, uint32_t two) {
    char *x = slot_bytes(b, one), *y = slot_bytes(b, two);
    ck_assert_int_eq(memcmp(x, y, kern_slot_bytes(b->i->k)), 0);
    free(x);
    free(y);
}

static void same_logits(const float *a, const float *b, uint32_t n, uint32_t pos) {
    ck_assert_msg(memcmp(a, b, n * sizeof(float)) == 0, "logits at %u differ", pos);
}

static double distance(const float *a, const float *b, uint32_t n) {
    double d = 0, w = 0;
    for (uint32_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        w += (double)b[i] * b[i];
    }
    return sqrt(d / w);
}

/* ---- forms ---- */

START_TEST(chunked_equals_recurrent) {
    static const uint32_t lengths[] = {1, 2, 17, 63, 64, 65, 128, 150};
    struct bench b;
    float a[256], c[256];
    const uint32_t n = lengths[_i];
    setup_layers(&b, 10, "Kd");
    km_prefill(b.i, b.p, 0, b.ids, n, 64);
    km_decode(b.i, b.p, 0, n, b.ids[n], a);
    for (uint32_t t = 0; t <= n; t++)
        km_decode(b.i, b.p, 1, t, b.ids[t], c);
    double e = distance(a, c, b.cfg.model.vocab_rows);
    ck_assert_msg(e < 1e-6, "after %u tokens: %g", n, e);
    teardown(&b);
}
END_TEST

/* Cuts at any multiple of the grid: the same bits in logits and state. */
START_TEST(prefill_cuts) {
    struct bench b;
    float want[256], got[256];
    const uint32_t n = 300;
    setup(&b, 20);
    km_prefill(b.i, b.p, 0, b.ids, n, 512);
    km_prefill(b.i, b.p, 1, b.ids, n, 64);
    km_prefill(b.i, b.p, 2, b.ids, n, 192);
    same_slots(&b, 0, 1);
    same_slots(&b, 0, 2);
    km_decode(b.i, b.p, 0, n, b.ids[n], want);
    for (uint32_t slot = 1; slot < 3; slot++) {
        km_decode(b.i, b.p, slot, n, b.ids[n], got);
        same_logits(want, got, b.cfg.model.vocab_rows, n);
    }
    teardown(&b);
}
END_TEST

/* ---- windows ---- */

/* Windows of drafts, of which a random number is kept; the drafts beyond are other tokens. Every kept row's
 * logits and the state at the end are those of plain decoding. */
static void speculate(struct bench *b, uint32_t prefix, uint32_t n, uint64_t seed) {
    const uint32_t vocab = b->cfg.model.vocab_rows;
    struct km_rng r = {seed};
    float *want = malloc(n * vocab * sizeof(float)), *got = malloc(KERN_MAX_WINDOW * vocab * sizeof(float));
    ck_assert_ptr_nonnull(want);
    ck_assert_ptr_nonnull(got);
    for (uint32_t slot = 0; slot < 2; slot++)
        if (prefix)
            km_prefill(b->i, b->p, slot, b->ids, prefix, 64);
    for (uint32_t t = prefix; t < n; t++)
        km_decode(b->i, b->p, 0, t, b->ids[t], want + t * vocab);
    uint32_t keep = 0;
    for (uint32_t at = prefix; at < n;) {
        uint32_t rows = 1 + km_below(&r, KERN_MAX_WINDOW), tokens[KERN_MAX_WINDOW],
                 good = 1 + km_below(&r, rows);
        good = good < n - at ? good : n - at;
        for (uint32_t j = 0; j < rows; j++)
            tokens[j] = j < good ? b->ids[at + j] : (b->ids[at + j] + 1) % b->cfg.model.vocab_tokens;
        km_plan_clear(b->p, KERN_LANE_DECODE);
        km_plan_seq(b->p, 1, at, keep, at ? 0 : KERN_SEQ_RESET, tokens, rows, NULL);
        for (uint32_t j = 0; j < good; j++)
            km_plan_sample(b->p, j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
        km_run(b->i, b->p);
        km_peek(b->i, KERN_LANE_DECODE, KERN_PEEK_LOGITS, 0, good, got);
        for (uint32_t j = 0; j < good; j++)
            same_logits(want + (at + j) * vocab, got + j * vocab, vocab, at + j);
        at += good;
        keep = good;
    }
    /* a checkpoint needs the pending rows resolved; a sequence without rows does that */
    char *scratch = malloc(kern_slot_bytes(b->i->k));
    ck_assert_int_eq(kern_slot_read(b->i->k, 1, scratch, kern_slot_bytes(b->i->k)), -EBUSY);
    ck_assert_int_eq(kern_slot_copy(b->i->k, 2, 1), -EBUSY);
    free(scratch);
    km_plan_clear(b->p, KERN_LANE_DECODE);
    km_plan_seq(b->p, 1, n, keep, KERN_SEQ_COMMIT, NULL, 0, NULL);
    km_run(b->i, b->p);
    same_slots(b, 0, 1);
    free(want);
    free(got);
}

START_TEST(kept_rows_are_plain_decoding) {
    static const uint32_t prefix[] = {0, 64, 130, 0, 65, 128};
    struct bench b;
    setup(&b, 30);
    speculate(&b, prefix[_i], prefix[_i] + 70, 1000 + (uint64_t)_i);
    teardown(&b);
}
END_TEST

/* The same window committed at once instead of pending: same state as row by row. */
START_TEST(committed_windows) {
    struct bench b;
    setup(&b, 40);
    for (uint32_t t = 0; t < 48; t++)
        km_decode(b.i, b.p, 0, t, b.ids[t], NULL);
    for (uint32_t at = 0; at < 48; at += 16) {
        km_plan_clear(b.p, KERN_LANE_DECODE);
        km_plan_seq(b.p, 1, at, 0, KERN_SEQ_COMMIT | (at ? 0 : KERN_SEQ_RESET), b.ids + at, 16, NULL);
        km_run(b.i, b.p);
    }
    same_slots(&b, 0, 1);
    teardown(&b);
}
END_TEST

/* ---- neighbours ---- */

/* Sequences of different lengths decoded together, in changing order, with windows: the bits of each alone.
 */
START_TEST(batch_equals_alone) {
    struct bench b;
    const uint32_t len[3] = {70, 5, 131};
    float alone[3][8][256], got[16 * 256];
    setup(&b, 50);
    const uint32_t vocab = b.cfg.model.vocab_rows;
    for (uint32_t s = 0; s < 3; s++) {
        const uint32_t *ids = b.ids + 100 * s;
        km_prefill(b.i, b.p, s, ids, len[s], 64);
        km_prefill(b.i, b.p, 3 + s, ids, len[s], 64);
        for (uint32_t t = 0; t < 8; t++)
            km_decode(b.i, b.p, s, len[s] + t, ids[len[s] + t], alone[s][t]);
    }
    for (uint32_t t = 0; t < 8; t += 2) {
        km_plan_clear(b.p, KERN_LANE_DECODE);
        for (uint32_t j = 0; j < 3; j++) {
            uint32_t s = (j + t) % 3;
            km_plan_seq(b.p, 3 + s, len[s] + t, 0, KERN_SEQ_COMMIT, b.ids + 100 * s + len[s] + t, 2, NULL);
        }
        for (uint32_t j = 0; j < 6; j++)
            km_plan_sample(b.p, j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
        km_run(b.i, b.p);
        km_peek(b.i, KERN_LANE_DECODE, KERN_PEEK_LOGITS, 0, 6, got);
        for (uint32_t j = 0; j < 6; j++)
            same_logits(alone[(j / 2 + t) % 3][t + j % 2], got + j * vocab, vocab, t + j % 2);
    }
    for (uint32_t s = 0; s < 3; s++)
        same_slots(&b, s, 3 + s);
    teardown(&b);
}
END_TEST

/* A prefill chunk cut into layer slices, with decode steps of another sequence between the slices. */
START_TEST(lanes_do_not_disturb) {
    struct bench b;
    float want[2][256], got[256];
    setup(&b, 60);
    const uint32_t vocab = b.cfg.model.vocab_rows;
    km_prefill(b.i, b.p, 0, b.ids, 100, 128);
    km_decode(b.i, b.p, 0, 100, b.ids[100], want[0]);
    for (uint32_t t = 0; t < 11; t++)
        km_decode(b.i, b.p, 1, t, b.ids[200 + t], want[1]);
    struct km_plan *q = km_plan_new(b.i);
    km_plan_clear(q, KERN_LANE_PREFILL);
    km_plan_seq(q, 2, 0, 0, KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | KERN_SEQ_RESET, b.ids, 100, NULL);
    struct kern_plan *plan = km_plan_build(q);
    ck_assert_int_eq(kern_plan_load(b.i->k, plan, plan->bytes), 0);
    km_launch_wait(b.i, KERN_LANE_PREFILL, b.i->embed[KERN_LANE_PREFILL]);
    for (uint32_t h = 0; h < 2 * b.cfg.model.n_layers; h++) {
        km_launch_wait(b.i, KERN_LANE_PREFILL, b.i->half[KERN_LANE_PREFILL][h / 2][h % 2]);
        km_decode(b.i, b.p, 3, h, b.ids[200 + h], got);
    }
    km_decode(b.i, b.p, 3, 10, b.ids[210], got);
    same_logits(want[1], got, vocab, 10);
    km_decode(b.i, b.p, 2, 100, b.ids[100], got);
    same_logits(want[0], got, vocab, 100);
    km_plan_free(q);
    teardown(&b);
}
END_TEST

/* ---- copies ---- */

START_TEST(slots_and_pages_move) {
    struct bench b;
    float want[256], got[256];
    setup(&b, 70);
    struct kern *k = b.i->k;
    const uint32_t vocab = b.cfg.model.vocab_rows, per = b.i->pages_per_slot;
    km_prefill(b.i, b.p, 0, b.ids, 301, 128);
    ck_assert_int_eq(kern_slot_copy(k, 3, 0), 0);
    char *bytes = slot_bytes(&b, 0);
    ck_assert_int_eq(kern_slot_write(k, 5, bytes, kern_slot_bytes(k)), 0);
    for (uint32_t page = 0; page < per; page++) {
        ck_assert_int_eq(kern_page_copy(k, 3 * per + page, page), 0);
        ck_assert_int_eq(kern_page_copy(k, 5 * per + page, page), 0);
    }
    same_slots(&b, 0, 3);
    same_slots(&b, 0, 5);
    for (uint32_t t = 301; t < 310; t++) {
        km_decode(b.i, b.p, 0, t, b.ids[t], want);
        km_decode(b.i, b.p, 3, t, b.ids[t], got);
        same_logits(want, got, vocab, t);
        km_decode(b.i, b.p, 5, t, b.ids[t], got);
        same_logits(want, got, vocab, t);
    }
    /* a later reset forgets everything */
    for (uint32_t t = 0; t < 9; t++) {
        km_decode(b.i, b.p, 0, t, b.ids[t], want);
        km_decode(b.i, b.p, 7, t, b.ids[t], got);
        same_logits(want, got, vocab, t);
    }
    same_slots(&b, 0, 7);
    bytes[0] ^= 1;
    ck_assert_int_eq(kern_slot_write(k, 5, bytes, kern_slot_bytes(k)), -EBADMSG);
    bytes[0] ^= 1;
    ck_assert_int_eq(kern_slot_write(k, 5, bytes, kern_slot_bytes(k) - 1), -EBADMSG);
    ck_assert_int_eq(kern_slot_read(k, 0, bytes, kern_slot_bytes(k) - 1), -EINVAL);
    ck_assert_int_eq(kern_slot_read(k, 8, bytes, kern_slot_bytes(k)), -EINVAL);
    ck_assert_int_eq(kern_slot_copy(k, 8, 0), -EINVAL);
    ck_assert_int_eq(kern_page_copy(k, 0, 16), -EINVAL);
    free(bytes);
    teardown(&b);
}
END_TEST

/* A shared prefix: two sequences read the same pages and write their own last one. */
START_TEST(shared_pages) {
    struct bench b;
    float want[256], got[256];
    setup(&b, 80);
    const uint32_t vocab = b.cfg.model.vocab_rows;
    km_prefill(b.i, b.p, 0, b.ids, 256, 128);
    ck_assert_int_eq(kern_slot_copy(b.i->k, 1, 0), 0);
    for (uint32_t t = 256; t < 262; t++)
        km_decode(b.i, b.p, 0, t, b.ids[t], want);
    for (uint32_t t = 256; t < 262; t++) {
        km_plan_clear(b.p, KERN_LANE_DECODE);
        km_plan_seq(b.p, 1, t, 0, KERN_SEQ_COMMIT, &b.ids[t], 1, NULL);
        b.p->page[0] = 0; /* the first sequence's page */
        km_plan_sample(b.p, 0, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
        km_run(b.i, b.p);
        km_peek(b.i, KERN_LANE_DECODE, KERN_PEEK_LOGITS, 0, 1, got);
    }
    same_logits(want, got, vocab, 261);
    teardown(&b);
}
END_TEST

/* ---- order of steps ---- */

static int load(struct bench *b, uint32_t slot, uint32_t pos0, uint32_t keep, uint32_t flags, uint32_t n) {
    km_plan_clear(b->p, KERN_LANE_DECODE);
    km_plan_seq(b->p, slot, pos0, keep, flags, b->ids, n, NULL);
    struct kern_plan *p = km_plan_build(b->p);
    return kern_plan_load(b->i->k, p, p->bytes);
}

START_TEST(stale_plans_are_refused) {
    struct bench b;
    uint32_t pos, pending, last = KERN_TOKEN_LAST;
    setup(&b, 90);
    km_decode(b.i, b.p, 0, 0, 1, NULL);
    ck_assert_int_eq(load(&b, 0, 2, 0, KERN_SEQ_COMMIT, 1), -ESTALE);
    ck_assert_int_eq(load(&b, 0, 0, 0, KERN_SEQ_COMMIT, 1), -ESTALE);
    ck_assert_int_eq(load(&b, 0, 1, 1, KERN_SEQ_COMMIT, 1), -ESTALE);
    ck_assert_int_eq(load(&b, 0, 1, 0, 0, 5), 0);
    km_launch_wait(b.i, 0, b.i->trunk[0]);
    ck_assert_int_eq(kern_slot_state(b.i->k, 0, &pos, &pending), 0);
    ck_assert_uint_eq(pos, 1);
    ck_assert_uint_eq(pending, 5);
    ck_assert_int_eq(load(&b, 0, 7, 6, 0, 1), -ESTALE);
    ck_assert_int_eq(load(&b, 0, 5, 3, 0, 1), -ESTALE);
    ck_assert_int_eq(load(&b, 0, 4, 3, KERN_SEQ_COMMIT, 1), 0);
    km_launch_wait(b.i, 0, b.i->trunk[0]);
    ck_assert_int_eq(kern_slot_state(b.i->k, 0, &pos, &pending), 0);
    ck_assert_uint_eq(pos, 5);
    ck_assert_uint_eq(pending, 0);
    /* nothing was drawn for slot 0 yet */
    km_plan_clear(b.p, KERN_LANE_DECODE);
    km_plan_seq(b.p, 0, 5, 0, KERN_SEQ_COMMIT, &last, 1, NULL);
    struct kern_plan *p = km_plan_build(b.p);
    ck_assert_int_eq(kern_plan_load(b.i->k, p, p->bytes), -ESTALE);
    teardown(&b);
}
END_TEST

/* The token drawn on the device feeds the next step and the draft of the same step. */
START_TEST(last_token_stays_inside) {
    struct bench b;
    float want[256], got[256];
    setup(&b, 95);
    const uint32_t vocab = b.cfg.model.vocab_rows;
    uint32_t token = 3, last = KERN_TOKEN_LAST;
    for (uint32_t t = 0; t < 12; t++) {
        for (uint32_t slot = 0; slot < 2; slot++) {
            uint32_t id = slot && t ? KERN_TOKEN_LAST : token;
            km_plan_clear(b.p, KERN_LANE_DECODE);
            km_plan_seq(b.p, slot, t, 0, KERN_SEQ_COMMIT | KERN_SEQ_DRAFT | (t ? 0 : KERN_SEQ_RESET), &id, 1,
                        &last);
            struct kern_sample *s = km_plan_sample(b.p, 0, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
            s->temperature = 1;
            s->seed = 7;
            km_plan_sample(b.p, 0, KERN_SAMPLE_DRAW, KERN_SOURCE_DRAFT);
            km_run(b.i, b.p);
            km_peek(b.i, KERN_LANE_DECODE, KERN_PEEK_LOGITS, 1, 1, slot ? got : want);
        }
        token = km_results(b.i, 0)[0].token;
        ck_assert_uint_lt(token, b.cfg.model.vocab_tokens);
        same_logits(want, got, vocab, t);
    }
    teardown(&b);
}
END_TEST

/* ---- counters ---- */

START_TEST(only_selected_rows_are_read) {
    struct bench b;
    struct kern_counters c;
    setup(&b, 97);
    const uint32_t n = 450, topk = b.cfg.model.index_topk;
    km_prefill(b.i, b.p, 0, b.ids, n, 512);
    for (uint32_t t = n; t < n + 4; t++) {
        km_decode(b.i, b.p, 0, t, b.ids[t], NULL);
        ck_assert_int_eq(kern_counters(b.i->k, KERN_LANE_DECODE, &c), 0);
        /* three MLA layers, of which two score and one shares */
        ck_assert_uint_eq(c.latent_rows, 3 * (topk + (t + 1) % 4));
        ck_assert_uint_eq(c.pooled_keys, 2 * ((t + 1) / 4));
        ck_assert_uint_eq(c.experts, 3 * b.cfg.model.n_top);
    }
    /* two rows of one sequence: experts and matrices count once a stage, not once a row */
    struct kern_counters two;
    km_plan_clear(b.p, KERN_LANE_DECODE);
    km_plan_seq(b.p, 0, n + 4, 0, KERN_SEQ_COMMIT, (uint32_t[]){5, 5}, 2, NULL);
    km_run(b.i, b.p);
    ck_assert_int_eq(kern_counters(b.i->k, KERN_LANE_DECODE, &two), 0);
    ck_assert_uint_le(two.experts, 3ull * b.cfg.model.n_experts);
    ck_assert_uint_lt(two.weight_bytes, 2 * c.weight_bytes);
    ck_assert_uint_gt(two.flops, c.flops);
    teardown(&b);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_state");
    TCase *t = tcase_create(BACKEND);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, chunked_equals_recurrent, 0, 8);
    tcase_add_test(t, prefill_cuts);
    tcase_add_loop_test(t, kept_rows_are_plain_decoding, 0, 6);
    tcase_add_test(t, committed_windows);
    tcase_add_test(t, batch_equals_alone);
    tcase_add_test(t, lanes_do_not_disturb);
    tcase_add_test(t, slots_and_pages_move);
    tcase_add_test(t, shared_pages);
    tcase_add_test(t, stale_plans_are_refused);
    tcase_add_test(t, last_token_stays_inside);
    tcase_add_test(t, only_selected_rows_are_read);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
