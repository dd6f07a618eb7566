/* SPDX-License-Identifier: MIT */
/* What may not change a single bit of the CPU backend's results: the number of threads, the instruction set,
 * what else is in the step, where prefill is cut, and whether rows were accepted from a pending window or
 * decoded one by one. Everything is compared with memcmp. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernmodel.h"

enum { MAX_TOKENS = 512 };

/* Formats of the cache, the last two with a model of GLM-5.3's kind. */
static const uint32_t formats[] = {KERN_CACHE_F32, KERN_CACHE_FP8, KERN_CACHE_BF16, KERN_CACHE_F32, KERN_CACHE_FP8};
enum { SHAPES = 5, ROTARY = 3 };

static void small(struct kern_config *cfg, int shape) {
    if (shape >= ROTARY) {
        km_config_glm53(cfg);
        cfg->cache = formats[shape];
        return;
    }
    km_config_small(cfg);
    cfg->cache = formats[shape];
    /* whole and odd vectors in one model; more than one block of rows, heads and experts */
    cfg->model.kda_dim = 48;
    cfg->model.hidden = 84;
    cfg->model.kv_rank = 80;
    cfg->model.index_topk = 32;
    cfg->model.mla_heads = 5;
    km_layers(&cfg->model, "Kd Fm Sm Km Nd", "Fm");
}

static void random_ids(uint32_t *ids, uint32_t n, const struct kern_config *cfg, uint64_t seed) {
    struct km_rng r = {seed};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = km_below(&r, cfg->model.vocab_rows);
}

/* Logits of every row and the slot's bytes, gathered while a text is computed. */
struct record {
    float *logits; /* [MAX_TOKENS][vocab] */
    float *draft;  /* [MAX_TOKENS][hidden] */
    void *slot;
    uint64_t slot_bytes;
    struct kern_counters sum;
};

static void record_new(struct record *r, const struct km_inst *i) {
    r->logits = calloc(MAX_TOKENS * i->cfg.model.vocab_rows, sizeof(float));
    r->draft = calloc(MAX_TOKENS * i->cfg.model.hidden, sizeof(float));
    r->slot_bytes = kern_slot_bytes(i->k);
    r->slot = calloc(1, r->slot_bytes);
    memset(&r->sum, 0, sizeof(r->sum));
    ck_assert(r->logits && r->draft && r->slot);
}

static void record_free(struct record *r) {
    free(r->logits);
    free(r->draft);
    free(r->slot);
}

static void record_same(const struct km_inst *i, const struct record *a, const struct record *b,
                        const char *what) {
    const struct kern_model_desc *m = &i->cfg.model;
    for (uint32_t t = 0; t < MAX_TOKENS; t++) {
        ck_assert_msg(
            !memcmp(a->logits + t * m->vocab_rows, b->logits + t * m->vocab_rows, m->vocab_rows * 4),
            "%s: logits of position %u differ", what, t);
        ck_assert_msg(!memcmp(a->draft + t * m->hidden, b->draft + t * m->hidden, m->hidden * 4),
                      "%s: draft hidden of position %u differs", what, t);
    }
    ck_assert_uint_eq(a->slot_bytes, b->slot_bytes);
    ck_assert_msg(!memcmp(a->slot, b->slot, a->slot_bytes), "%s: slots differ", what);
}

/* The rows of the plan's sequence `seq`, after a run. */
static void record_rows(struct km_inst *i, struct km_plan *p, uint32_t lane, uint32_t seq, struct record *r) {
    const struct kern_model_desc *m = &i->cfg.model;
    const struct kern_seq *s = &p->seq[seq];
    struct kern_counters c;
    for (uint32_t j = 0; j < s->n_rows; j++) {
        km_peek(i, lane, KERN_PEEK_LOGITS, s->row0 + j, 1, r->logits + (s->pos0 + j) * m->vocab_rows);
        if (p->row[s->row0 + j].next != KERN_NONE)
            km_peek(i, lane, KERN_PEEK_DRAFT, s->row0 + j, 1, r->draft + (s->pos0 + j) * m->hidden);
    }
    ck_assert_int_eq(kern_counters(i->k, lane, &c), 0);
    r->sum.weight_bytes += c.weight_bytes;
    r->sum.state_bytes += c.state_bytes;
    r->sum.latent_rows += c.latent_rows;
    r->sum.pooled_keys += c.pooled_keys;
    r->sum.cache_bytes += c.cache_bytes;
    r->sum.expert_bytes += c.expert_bytes;
    r->sum.experts += c.experts;
    r->sum.flops += c.flops;
}

/* Adds rows of a text to a plan, each with its sample: entries are in row order. */
static void add_rows(struct km_plan *p, uint32_t slot, const uint32_t *ids, uint32_t total, uint32_t pos0,
                     uint32_t n, uint32_t keep, uint32_t flags) {
    uint32_t next[MAX_TOKENS] = {0};
    for (uint32_t j = 0; j < n; j++)
        next[j] = pos0 + j + 1 < total ? ids[pos0 + j + 1] : KERN_NONE;
    uint32_t row0 =
        km_plan_seq(p, slot, pos0, keep, flags | KERN_SEQ_DRAFT | (pos0 || keep ? 0 : KERN_SEQ_RESET),
                    ids + pos0, n, next);
    for (uint32_t j = 0; j < n; j++)
        km_plan_sample(p, row0 + j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
}

/* Prefill of the first `prefill` tokens in chunks, the rest one by one; chunk 0: everything one by one. */
static void compute(struct km_inst *i, const uint32_t *ids, uint32_t n, uint32_t prefill, uint32_t chunk,
                    struct record *r) {
    struct km_plan *p = km_plan_new(i);
    record_new(r, i);
    for (uint32_t at = 0; at < n;) {
        bool pre = at < prefill;
        uint32_t now = !pre ? 1 : prefill - at < chunk ? prefill - at : chunk;
        uint32_t lane = pre ? KERN_LANE_PREFILL : KERN_LANE_DECODE;
        km_plan_clear(p, lane);
        add_rows(p, 0, ids, n, at, now, 0, KERN_SEQ_COMMIT | (pre ? KERN_SEQ_PREFILL : 0u));
        km_run(i, p);
        record_rows(i, p, lane, 0, r);
        at += now;
    }
    ck_assert_int_eq(kern_slot_read(i->k, 0, r->slot, r->slot_bytes), 0);
    km_plan_free(p);
}

START_TEST(threads_and_instruction_sets) {
    struct kern_config cfg;
    enum { N = 90 };
    uint32_t ids[N];
    small(&cfg, _i);
    struct kernmodel *m = km_new(&cfg, 5);
    random_ids(ids, N, &cfg, 6);
    struct record want;
    cfg.isa = "scalar";
    cfg.threads = 1;
    struct km_inst *i = km_open(m, "cpu", &cfg);
    compute(i, ids, N, 80, 64, &want);
    uint32_t tried = 0;
    const char *const isa[] = {"scalar", "avx2", "avx512", "neon", NULL};
    for (int s = 0; s < 5; s++)
        for (uint32_t threads = 1; threads <= 4; threads++) {
            uint64_t bytes[KERN_MEM_N];
            cfg.isa = isa[s];
            cfg.threads = threads;
            if (isa[s] && kern_query("cpu", &cfg, bytes))
                continue; /* this machine has no such instructions: kern_open_error() says so */
            struct km_inst *o = km_open(m, "cpu", &cfg);
            struct record got;
            compute(o, ids, N, 80, 64, &got);
            record_same(o, &want, &got, kern_name(o->k));
            ck_assert_mem_eq(&want.sum, &got.sum, sizeof(want.sum));
            record_free(&got);
            km_close(o);
            tried++;
        }
    ck_assert_uint_ge(tried, 8);
    record_free(&want);
    km_close(i);
    km_free(m);
}
END_TEST

START_TEST(prefill_cuts) {
    struct kern_config cfg;
    enum { N = 330 };
    uint32_t ids[N];
    small(&cfg, _i);
    struct kernmodel *m = km_new(&cfg, 7);
    random_ids(ids, N, &cfg, 8);
    struct km_inst *i = km_open(m, "cpu", &cfg);
    struct record want, got;
    compute(i, ids, N, N - 3, 512, &want);
    const uint32_t chunk[] = {64, 128, 192, 256, 320};
    for (int c = 0; c < 5; c++) {
        compute(i, ids, N, N - 3, chunk[c], &got);
        record_same(i, &want, &got, "cuts");
        ck_assert_uint_eq(got.sum.latent_rows, want.sum.latent_rows);
        record_free(&got);
    }
    /* this backend runs the same recurrence for both: token by token gives the same too */
    compute(i, ids, N, 0, 0, &got);
    record_same(i, &want, &got, "token by token");
    record_free(&got);
    record_free(&want);
    km_close(i);
    km_free(m);
}
END_TEST

/* Sequences of different lengths and windows in one step, in changing order, against each one alone. */
START_TEST(batch_is_alone) {
    struct kern_config cfg;
    enum { N = 120, SEQS = 5 };
    uint32_t ids[SEQS][N], at[SEQS] = {0}, keep[SEQS] = {0};
    struct km_rng rng = {9};
    small(&cfg, _i);
    struct kernmodel *m = km_new(&cfg, 10);
    struct km_inst *i = km_open(m, "cpu", &cfg);
    struct record alone[SEQS], got[SEQS];
    struct km_plan *p = km_plan_new(i);
    for (uint32_t s = 0; s < SEQS; s++) {
        random_ids(ids[s], N, &cfg, 20 + s);
        compute(i, ids[s], N, 0, 0, &alone[s]);
        record_new(&got[s], i);
    }
    for (;;) {
        uint32_t left = 0, of[SEQS], n = 0, turn = km_below(&rng, SEQS);
        km_plan_clear(p, KERN_LANE_DECODE);
        for (uint32_t j = 0; j < SEQS; j++) {
            uint32_t s = (turn + j) % SEQS, rows = 1 + km_below(&rng, 12);
            left += N - at[s];
            if (at[s] == N || km_below(&rng, 4) == 0)
                continue;
            rows = rows < N - at[s] ? rows : N - at[s];
            add_rows(p, s + 1, ids[s], N, at[s], rows, keep[s], KERN_SEQ_COMMIT);
            at[s] += rows;
            of[n++] = s;
        }
        if (!left)
            break;
        if (!n)
            continue;
        km_run(i, p);
        for (uint32_t j = 0; j < n; j++)
            record_rows(i, p, KERN_LANE_DECODE, j, &got[of[j]]);
    }
    for (uint32_t s = 0; s < SEQS; s++) {
        ck_assert_int_eq(kern_slot_read(i->k, s + 1, got[s].slot, got[s].slot_bytes), 0);
        record_same(i, &alone[s], &got[s], "batch");
        record_free(&alone[s]);
        record_free(&got[s]);
    }
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

/* One window of a sequence: `good` right tokens, then wrong ones. Returns the rows. */
static uint32_t add_window(struct km_plan *p, struct km_rng *rng, uint32_t slot, const uint32_t *ids,
                           uint32_t at, uint32_t keep, uint32_t end, uint32_t *ret_good) {
    uint32_t tokens[KERN_MAX_WINDOW], next[KERN_MAX_WINDOW];
    uint32_t rows = 1 + km_below(rng, KERN_MAX_WINDOW), good = 1 + km_below(rng, rows);
    if (good > end - at)
        good = end - at;
    for (uint32_t j = 0; j < rows; j++)
        tokens[j] = j < good ? ids[at + j] : km_below(rng, p->cfg->model.vocab_rows);
    for (uint32_t j = 0; j + 1 < rows; j++)
        next[j] = tokens[j + 1];
    next[rows - 1] = KERN_NONE;
    next[good - 1] = ids[at + good];
    uint32_t row0 =
        km_plan_seq(p, slot, at, keep, KERN_SEQ_DRAFT | (at ? 0 : KERN_SEQ_RESET), tokens, rows, next);
    for (uint32_t j = 0; j < rows; j++)
        km_plan_sample(p, row0 + j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
    *ret_good = good;
    return rows;
}

/* Windows of right and wrong tokens; some rows of each are kept, the rest forgotten; then a commit without
 * rows and a stretch of plain decoding, after which even the slots are the same. Two sequences side by side.
 */
START_TEST(pending_windows) {
    struct kern_config cfg;
    enum { N = 150, WINDOWS = 130, SEQS = 2 };
    uint32_t ids[SEQS][N], at[SEQS] = {0}, keep[SEQS] = {0};
    small(&cfg, _i % SHAPES);
    struct kernmodel *m = km_new(&cfg, 11);
    struct km_inst *i = km_open(m, "cpu", &cfg);
    struct record alone[SEQS], got[SEQS];
    struct km_plan *p = km_plan_new(i);
    struct km_rng rng = {12 + (uint64_t)_i};
    for (uint32_t s = 0; s < SEQS; s++) {
        random_ids(ids[s], N, &cfg, 30 + s);
        compute(i, ids[s], N, 0, 0, &alone[s]);
        record_new(&got[s], i);
    }
    while (at[0] < WINDOWS || at[1] < WINDOWS) {
        uint32_t good[SEQS], of[SEQS], n = 0;
        km_plan_clear(p, KERN_LANE_DECODE);
        for (uint32_t s = 0; s < SEQS; s++)
            if (at[s] < WINDOWS) {
                add_window(p, &rng, s + 1, ids[s], at[s], keep[s], WINDOWS, &good[s]);
                of[n++] = s;
            }
        km_run(i, p);
        for (uint32_t j = 0; j < n; j++) {
            uint32_t s = of[j];
            p->seq[j].n_rows = good[s]; /* only what is kept is looked at */
            record_rows(i, p, KERN_LANE_DECODE, j, &got[s]);
            keep[s] = good[s];
            at[s] += good[s];
        }
    }
    void *early = malloc(got[0].slot_bytes);
    ck_assert_int_eq(kern_slot_read(i->k, 1, early, got[0].slot_bytes), -EBUSY);
    free(early);
    km_plan_clear(p, KERN_LANE_DECODE);
    for (uint32_t s = 0; s < SEQS; s++)
        km_plan_seq(p, s + 1, WINDOWS, keep[s], KERN_SEQ_COMMIT, NULL, 0, NULL);
    km_run(i, p);
    for (uint32_t t = WINDOWS; t < N; t++) {
        km_plan_clear(p, KERN_LANE_DECODE);
        for (uint32_t s = 0; s < SEQS; s++)
            add_rows(p, s + 1, ids[s], N, t, 1, 0, KERN_SEQ_COMMIT);
        km_run(i, p);
        for (uint32_t s = 0; s < SEQS; s++)
            record_rows(i, p, KERN_LANE_DECODE, s, &got[s]);
    }
    for (uint32_t s = 0; s < SEQS; s++) {
        ck_assert_int_eq(kern_slot_read(i->k, s + 1, got[s].slot, got[s].slot_bytes), 0);
        record_same(i, &alone[s], &got[s], "windows");
        record_free(&alone[s]);
        record_free(&got[s]);
    }
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

/* A slot's bytes and its pages carry a sequence to another slot, also through memory. */
START_TEST(slots_and_pages_move) {
    struct kern_config cfg;
    enum { N = 100, HALF = 70 };
    uint32_t ids[N];
    small(&cfg, _i);
    struct kernmodel *m = km_new(&cfg, 13);
    random_ids(ids, N, &cfg, 14);
    struct km_inst *i = km_open(m, "cpu", &cfg);
    struct record want, got;
    struct km_plan *p = km_plan_new(i);
    compute(i, ids, N, 0, 0, &want);
    record_new(&got, i);
    for (uint32_t t = 0; t < HALF; t++) {
        km_plan_clear(p, KERN_LANE_DECODE);
        add_rows(p, 0, ids, N, t, 1, 0, KERN_SEQ_COMMIT);
        km_run(i, p);
    }
    for (uint32_t g = 0; g < i->pages_per_slot; g++)
        ck_assert_int_eq(kern_page_copy(i->k, 3 * i->pages_per_slot + g, g), 0);
    void *bytes = malloc(kern_slot_bytes(i->k));
    ck_assert_int_eq(kern_slot_copy(i->k, 2, 0), 0);
    ck_assert_int_eq(kern_slot_read(i->k, 2, bytes, kern_slot_bytes(i->k)), 0);
    ck_assert_int_eq(kern_slot_write(i->k, 3, bytes, kern_slot_bytes(i->k)), 0);
    free(bytes);
    record_free(&got);
    record_new(&got, i);
    for (uint32_t t = HALF; t < N; t++) {
        km_plan_clear(p, KERN_LANE_DECODE);
        add_rows(p, 3, ids, N, t, 1, 0, KERN_SEQ_COMMIT);
        km_run(i, p);
        record_rows(i, p, KERN_LANE_DECODE, 0, &got);
    }
    const uint32_t vocab = cfg.model.vocab_rows;
    ck_assert_mem_eq(got.logits + HALF * vocab, want.logits + HALF * vocab, (N - HALF) * vocab * 4ul);
    ck_assert_int_eq(kern_slot_read(i->k, 3, got.slot, got.slot_bytes), 0);
    ck_assert_mem_eq(got.slot, want.slot, got.slot_bytes);
    record_free(&want);
    record_free(&got);
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

/* A prefill chunk, half a layer at a time, with decode steps of another sequence in between and both lanes
 * launched ahead: neither sees the other. */
START_TEST(lanes_interleave) {
    struct kern_config cfg;
    enum { N = 100, CHUNK = 64 };
    uint32_t a[N], b[N];
    small(&cfg, _i);
    struct kernmodel *m = km_new(&cfg, 15);
    random_ids(a, N, &cfg, 16);
    random_ids(b, N, &cfg, 17);
    struct km_inst *i = km_open(m, "cpu", &cfg);
    struct record alone_a, alone_b, got_b;
    struct km_plan *p = km_plan_new(i), *q = km_plan_new(i);
    uint32_t steps = 0;
    const uint32_t vocab = cfg.model.vocab_rows;
    float *last = malloc(vocab * sizeof(float));
    ck_assert_ptr_nonnull(last);
    compute(i, a, CHUNK, CHUNK, CHUNK, &alone_a);
    compute(i, b, N, 0, 0, &alone_b);
    record_new(&got_b, i);
    km_plan_clear(p, KERN_LANE_PREFILL);
    km_plan_seq(p, 1, 0, 0, KERN_SEQ_COMMIT | KERN_SEQ_PREFILL | KERN_SEQ_RESET, a, CHUNK, NULL);
    km_plan_sample(p, CHUNK - 1, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
    struct kern_plan *built = km_plan_build(p);
    ck_assert_int_eq(kern_plan_load(i->k, built, built->bytes), 0);
    ck_assert_int_eq(kern_launch(i->k, i->embed[1]), 0);
    for (uint32_t h = 0; h < 2 * cfg.model.n_layers; h++) {
        ck_assert_int_eq(kern_launch(i->k, i->half[1][h / 2][h % 2]), 0);
        km_plan_clear(q, KERN_LANE_DECODE);
        add_rows(q, 2, b, N, steps, 1, 0, KERN_SEQ_COMMIT);
        km_run(i, q);
        record_rows(i, q, KERN_LANE_DECODE, 0, &got_b);
        steps++;
        if (h % 3 == 2)
            ck_assert_int_eq(kern_wait(i->k, KERN_LANE_PREFILL), 0);
    }
    ck_assert_int_eq(kern_launch(i->k, i->final[1]), 0);
    ck_assert_int_eq(kern_launch(i->k, i->head[1]), 0);
    ck_assert_int_eq(kern_wait(i->k, KERN_LANE_PREFILL), 0);
    km_peek(i, KERN_LANE_PREFILL, KERN_PEEK_LOGITS, 0, 1, last);
    ck_assert_mem_eq(last, alone_a.logits + (CHUNK - 1) * vocab, vocab * sizeof(float));
    ck_assert_uint_eq(steps, 2 * cfg.model.n_layers);
    ck_assert_mem_eq(got_b.logits, alone_b.logits, steps * vocab * sizeof(float));
    free(last);
    record_free(&alone_a);
    record_free(&alone_b);
    record_free(&got_b);
    km_plan_free(p);
    km_plan_free(q);
    km_close(i);
    km_free(m);
}
END_TEST

/* A token that stays on the device, drawn and fed back, is the token the host would have fed. */
START_TEST(last_token_stays) {
    struct kern_config cfg;
    enum { STEPS = 40 };
    small(&cfg, _i);
    struct kernmodel *m = km_new(&cfg, 18);
    struct km_inst *i = km_open(m, "cpu", &cfg);
    struct km_plan *p = km_plan_new(i);
    uint32_t drawn[2][STEPS];
    for (uint32_t slot = 0; slot < 2; slot++)
        for (uint32_t t = 0; t < STEPS; t++) {
            uint32_t token = !t ? 7 : slot ? KERN_TOKEN_LAST : drawn[0][t - 1], next = KERN_TOKEN_LAST;
            km_plan_clear(p, KERN_LANE_DECODE);
            km_plan_seq(p, slot, t, 0, KERN_SEQ_COMMIT | KERN_SEQ_DRAFT | (t ? 0u : KERN_SEQ_RESET), &token,
                        1, &next);
            struct kern_sample *s = km_plan_sample(p, 0, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
            s->temperature = 1.5f;
            s->seed = 99;
            km_plan_sample(p, 0, KERN_SAMPLE_SCORE, KERN_SOURCE_DRAFT);
            km_run(i, p);
            drawn[slot][t] = km_results(i, KERN_LANE_DECODE)[0].token;
        }
    ck_assert_mem_eq(drawn[0], drawn[1], sizeof(drawn[0]));
    uint32_t distinct = 0;
    for (uint32_t t = 1; t < STEPS; t++)
        distinct += drawn[0][t] != drawn[0][t - 1];
    ck_assert_uint_gt(distinct, STEPS / 2);
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cpu_same");
    TCase *tc = tcase_create("same");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, threads_and_instruction_sets, 0, SHAPES);
    tcase_add_loop_test(tc, prefill_cuts, 0, SHAPES);
    tcase_add_loop_test(tc, batch_is_alone, 0, SHAPES);
    tcase_add_loop_test(tc, pending_windows, 0, SHAPES + 1);
    tcase_add_loop_test(tc, slots_and_pages_move, 0, SHAPES);
    tcase_add_loop_test(tc, lanes_interleave, 0, SHAPES);
    tcase_add_loop_test(tc, last_token_stays, 0, SHAPES);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
