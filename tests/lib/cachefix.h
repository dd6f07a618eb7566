/* SPDX-License-Identifier: MIT */
/* Fixture of the test programs of the prefix cache: an engine over a model with a cache, requests in short,
 * answers compared bit by bit. twin-a has every kind of layer and a quarter of nano's work: what looks at the
 * cache takes it. */
#ifndef GLMD_TEST_CACHEFIX_H
#define GLMD_TEST_CACHEFIX_H

#include <check.h>
#include <string.h>

#include "ckpt.h"
#include "engine_priv.h"
#include "engrun.h"
#include "leakcheck.h"

enum { MOST = 1600, OUT = 200 };

static struct engrun run;
static uint32_t gens[ENGRUN_STREAMS];
static uint32_t shares; /* set by a test: group of all its requests */

static inline void setup(void) {
    leakcheck_setup();
    memset(gens, 0, sizeof gens);
    shares = 0;
}

static inline void open_model(const char *model, const char *backend, struct engine_options o) {
    o.backend = backend;
    o.threads = 1; /* a team that shares the cores with other programs mostly waits for its members */
    o.context_tokens = o.context_tokens ? o.context_tokens : 2048;
    o.max_seqs = o.max_seqs ? o.max_seqs : 2;
    o.cache_slots = o.cache_slots ? o.cache_slots : 24;
    engrun_open(&run, ckpt_model(model), &o);
    engrun_start(&run);
}

static inline void open_twin(struct engine_options o) {
    open_model("twin-a", "cpu", o);
}

static inline void close_model(void) {
    engrun_settle(&run);
    ck_assert_int_eq(engrun_close(&run), 0);
    leakcheck_teardown();
}

/* ---- requests ---- */

struct out {
    uint32_t n, tokens[OUT], cached;
    float logprob;
    struct stream_alt alts[STREAM_MAX_ALTS];
};

struct ask {
    uint32_t uid, n_ids, max_tokens;
    const uint32_t *ids, *marks;
    uint32_t n_marks;
    bool no_cache;
};

static inline struct sched_req request(uint32_t stream, const struct ask *a) {
    struct sched_req q = engrun_req(stream, a->ids, a->n_ids, a->max_tokens ? a->max_tokens : 2);

    q.stream.gen = ++gens[stream];
    q.uid = a->uid ? a->uid : 1000;
    q.share = shares;
    q.marks = a->marks;
    q.n_marks = a->n_marks;
    q.no_cache = a->no_cache;
    q.ignore_eos = true;
    q.sampling.logprobs = true;
    q.sampling.n_alts = STREAM_MAX_ALTS;
    return q;
}

static inline struct out result(uint32_t stream) {
    const struct engrun_stream *s = engrun_wait_gen(&run, stream, gens[stream]);
    struct out o = { .n = s->n_tokens, .cached = s->end.u.usage.cached, .logprob = s->logprob };

    ck_assert_int_eq(s->end.status, 0);
    ck_assert_uint_le(s->n_tokens, OUT);
    memcpy(o.tokens, s->tokens, s->n_tokens * sizeof *o.tokens);
    memcpy(o.alts, s->alts, sizeof o.alts);
    return o;
}

static inline struct out ask(const struct ask *a) {
    struct sched_req q = request(0, a);

    engrun_submit(&run, &q);
    return result(0);
}

static inline void same_bits(const struct out *a, const struct out *b) {
    ck_assert_uint_eq(a->n, b->n);
    ck_assert_mem_eq(a->tokens, b->tokens, a->n * sizeof *a->tokens);
    ck_assert_mem_eq(&a->logprob, &b->logprob, sizeof a->logprob);
    ck_assert_mem_eq(a->alts, b->alts, sizeof a->alts);
}

static inline void noise(uint32_t *ids, uint32_t n, uint64_t seed) {
    struct ckpt_rng g = { .s = seed * 77 + 1 };

    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(ckpt_rand(&g) % 4000);
}

#endif
