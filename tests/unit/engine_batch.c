/* SPDX-License-Identifier: MIT */
/* What runs beside a request changes no bit of it: golden cases in a batch of eight with random neighbours, alone and
 * together, on both backends that compute and with an FP8 cache. And a prompt may be split anywhere between what is
 * read at once and what goes through decode steps. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "engrun.h"
#include "evalgold.h"
#include "kernmodel.h"
#include "leakcheck.h"

/* The thread sanitizer and an emulated processor cost a factor of thirty. */
#if defined(__SANITIZE_THREAD__) || defined(TEST_EMULATED)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

static void read_gold(const char *name, struct gold *g) {
    struct xerr err = {0};
    struct st_file *f;
    ck_assert_msg(st_open(&f, "tests/golden/golden-nano.safetensors", NULL, &err) == 0, "%s", err.msg);
    ck_assert_msg(gold_read(f, name, g, &err) == 0, "%s", err.msg);
    st_close(f);
}

/* ---- batches ---- */

enum { SEATS = 8, MAX_OUT = 128, NEIGHBOUR_IDS = 150 };

static const struct kind {
    const char *backend, *name;
    uint32_t cache;
    uint32_t rounds;
} kinds[] = {
    {"cpu", "count", ENGINE_CACHE_F32, 1}, {"cpu", "json", ENGINE_CACHE_F32, 1}, {"cpu", "sort", ENGINE_CACHE_F32, 2},
    {"cpu", "tool", ENGINE_CACHE_F32, 1},  {"cpu", "json", ENGINE_CACHE_FP8, 1}, {"ref", "sort", ENGINE_CACHE_F32, 1},
};
enum { N_KINDS = SLOW ? 1 : sizeof kinds / sizeof kinds[0] };

struct record {
    uint32_t n, tokens[MAX_OUT];
    float logprobs[MAX_OUT];
};

static void take(struct record *r, const struct engrun_stream *s) {
    ck_assert_int_eq(s->end.status, 0);
    ck_assert_uint_le(s->n_tokens, MAX_OUT);
    r->n = s->n_tokens;
    memcpy(r->tokens, s->tokens, r->n * sizeof r->tokens[0]);
    memcpy(r->logprobs, s->logprobs, r->n * sizeof r->logprobs[0]);
}

static struct sched_req golden_req(uint32_t stream, uint32_t gen, const struct gold *g) {
    struct sched_req q = engrun_req(stream, g->ids, g->n_ids, g->n_greedy);
    q.stream.gen = gen;
    q.sampling.logprobs = true;
    q.no_cache = true; /* computed, not remembered */
    return q;
}

/* A neighbour: any prompt of any length, any sampling, as long as the golden case and longer. */
static struct sched_req neighbour(struct km_rng *rng, uint32_t most, uint32_t stream, uint32_t gen, uint32_t *ids,
                                  uint32_t out) {
    uint32_t n = 1 + km_below(rng, km_below(rng, 2) ? most : 20);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = km_below(rng, 4000);
    struct sched_req q = engrun_req(stream, ids, n, out + km_below(rng, 10));
    q.stream.gen = gen;
    q.ignore_eos = true;
    q.no_cache = km_below(rng, 2);
    q.sampling.temperature = km_below(rng, 2) ? km_uniform(rng) * 2 : 0;
    q.sampling.top_p = 0.5f + km_uniform(rng) / 2;
    q.sampling.presence = (float)km_below(rng, 2);
    q.sampling.seed = km_u64(rng);
    return q;
}

START_TEST(golden_in_a_batch_of_eight) {
    static uint32_t ids[SEATS][NEIGHBOUR_IDS];
    static struct record alone, beside;
    const struct kind *k = &kinds[_i];
    uint32_t most = strcmp(k->backend, "ref") == 0 ? 20 : NEIGHBOUR_IDS; /* the oracle takes a hundred times as long */
    struct engine_options o = {.backend = k->backend, .max_seqs = SEATS, .context_tokens = 512, .prefill_tokens = 64,
                               .cache = k->cache, .threads = _i ? 1 : 0};
    struct km_rng rng = {900 + (uint64_t)_i};
    struct sched_req q[SEATS];
    struct engrun r;
    struct gold g;
    char dir[256];

    read_gold(k->name, &g);
    snprintf(dir, sizeof dir, "%s", ckpt_model("nano"));
    engrun_open(&r, dir, &o);
    engrun_start(&r);
    q[0] = golden_req(0, 1, &g);
    engrun_submit(&r, &q[0]);
    engrun_wait_gen(&r, 0, 1);
    take(&alone, &r.s[0]);
    ck_assert_uint_eq(alone.n, g.n_greedy - 1); /* the stop id is not reported */
    ck_assert_mem_eq(alone.tokens, g.greedy, alone.n * sizeof alone.tokens[0]);
    for (uint32_t round = 0; round < k->rounds; round++) {
        uint32_t place = km_below(&rng, SEATS), gen = 2 + round; /* some neighbours come before, some after */
        for (uint32_t s = 0; s < SEATS; s++) {
            q[s] = s == place ? golden_req(s, gen, &g) : neighbour(&rng, most, s, gen, ids[s], g.n_greedy);
            engrun_submit(&r, &q[s]);
        }
        for (uint32_t s = 0; s < SEATS; s++)
            engrun_wait_gen(&r, s, gen);
        take(&beside, &r.s[place]);
        ck_assert_uint_eq(beside.n, alone.n);
        for (uint32_t i = 0; i < alone.n; i++) {
            ck_assert_msg(beside.tokens[i] == alone.tokens[i], "%s on %s: token %u is %u, alone %u", k->name,
                          k->backend, i, beside.tokens[i], alone.tokens[i]);
            ck_assert_msg(memcmp(&beside.logprobs[i], &alone.logprobs[i], sizeof(float)) == 0,
                          "%s on %s: logprob %u is %.9g, alone %.9g", k->name, k->backend, i,
                          (double)beside.logprobs[i], (double)alone.logprobs[i]);
        }
    }
    ck_assert_int_eq(engrun_close(&r), 0);
    gold_done(&g);
}
END_TEST

/* ---- splits ---- */

/* The last 0 to 9 ids through decode steps, so that what is read at once ends at every residue of a pool, before and
 * behind the grid, and the rest in chunks or whole. On cpu every split has the same bits; the oracle's two forms
 * agree within rounding. Either is as near to the golden logits as the whole prompt is. */
START_TEST(splits_at_every_residue) {
    static const char *const names[] = {"len66", "len67", "len68", "len130", "len131", "len132", "len133"};
    static const char *const backends[] = {"cpu", "ref"};
    const bool cpu = _i == 0;
    struct engine_options o = {.model = ckpt_model("nano"), .backend = backends[_i], .max_seqs = 1, .max_streams = 1,
                               .context_tokens = 256, .score = true, .threads = 1};
    uint32_t n_names = SLOW ? 1 : cpu ? sizeof names / sizeof names[0] : 1, residues = 0;
    struct xerr err = {0};
    struct engine *e;

    ck_assert_msg(engine_open(&o, &e, &err) == 0, "%s", err.msg);
    ck_assert_msg(engine_load(e, NULL, NULL, &err) == 0, "%s", err.msg);
    for (uint32_t c = 0; c < n_names; c++) {
        struct gold g;
        read_gold(names[c], &g);
        float *whole = calloc(g.vocab, sizeof *whole), *split = calloc(g.vocab, sizeof *split);
        ck_assert(whole && split);
        for (uint32_t fed = 0; fed < (cpu ? 10u : 5u); fed++)
            for (uint32_t chunk = 64; chunk <= (cpu ? 128u : 64u); chunk *= 2) {
                const struct score_query q = {.ids = g.ids, .n_ids = g.n_ids, .fed_tokens = fed, .chunk_tokens = chunk};
                float *to = fed || chunk > 64 ? split : whole;
                ck_assert_msg(score_prompt(e, &q, &(struct score_out){.logits_last = to}, &err) == 0, "%s", err.msg);
                double far = eval_rel_error(to, g.logits_last, g.vocab);
                ck_assert_msg(far < 1e-5, "%s on %s, %u fed: %g from the golden logits", names[c], o.backend, fed, far);
                residues |= 1u << (g.n_ids - fed) % 4;
                if (cpu && to == split)
                    ck_assert_msg(memcmp(whole, split, g.vocab * sizeof *whole) == 0,
                                  "%s: %u fed, chunks of %u: another bit", names[c], fed, chunk);
            }
        free(whole);
        free(split);
        gold_done(&g);
    }
    ck_assert_uint_eq(residues, 15);
    engine_close(e);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_batch");
    TCase *t = tcase_create("bits");
    tcase_set_timeout(t, 300);
    tcase_add_checked_fixture(t, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(t, golden_in_a_batch_of_eight, 0, N_KINDS);
    tcase_add_loop_test(t, splits_at_every_residue, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
