/* SPDX-License-Identifier: MIT */
/* A real checkpoint through the engine: golden values, prompts cut anywhere on the grid, decode beside
 * prefill and beside neighbours, what sparse attention reads, samplers, the self-test. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "engrun.h"
#include "evalgold.h"
#include "leakcheck.h"

/* The thread sanitizer and an emulated processor (set by tests/arm.sh) cost a factor of thirty: there the same
 * paths are walked with less. */
#if defined(__SANITIZE_THREAD__) || defined(TEST_EMULATED)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

static struct engine *open_model(const char *model, const char *backend, struct engine_options o) {
    struct xerr err = { 0 };
    struct engine *e = NULL;
    int r;

    o.model = ckpt_model(model);
    o.backend = backend;
    if (!o.max_seqs)
        o.max_seqs = 1;
    r = engine_open(&o, &e, &err);
    ck_assert_msg(r == 0, "open: %s", err.msg);
    r = engine_load(e, NULL, NULL, &err);
    ck_assert_msg(r == 0, "load: %s", err.msg);
    return e;
}

static void golden_case(struct engine *e, const char *file, const char *name) {
    const struct eval_options o = { .tolerance = 1e-4 };
    struct gold_result res;
    struct xerr err = { 0 };
    struct st_file *f;
    struct gold g;
    int r;

    r = st_open(&f, file, NULL, &err);
    ck_assert_msg(r == 0, "%s", err.msg);
    r = gold_read(f, name, &g, &err);
    ck_assert_msg(r == 0, "%s", err.msg);
    ck_assert(!g.picture);
    r = gold_run(e, &g, &o, &res, &err);
    ck_assert_msg(r == 0, "%s", err.msg);
    ck_assert_msg(res.within, "%s: logits %g top1 %u/%u lse %g next %g mtp %u/%u %g greedy %u/%u", name,
                  res.logits, res.top1_same, res.n_top1, res.logsumexp, res.next_logit, res.mtp_same, res.n_mtp,
                  res.mtp_logits, res.greedy_same, res.n_greedy);
    ck_assert(res.n_hidden || strcmp(name, "count") != 0);
    gold_done(&g);
    st_close(f);
}

START_TEST(test_golden_ref) {
    struct engine *e = open_model("nano", "ref", (struct engine_options){ .score = true, .draft = true,
                                                                          .context_tokens = 512 });

    golden_case(e, "tests/golden/golden-nano.safetensors", "count");
    if (!SLOW)
        golden_case(e, "tests/golden/golden-nano.safetensors", "len133");
    engine_close(e);
}
END_TEST

START_TEST(test_golden_cpu) {
    static const char *const names[] = { "len66", "len133", "count", "three", "json", "tool", "sort", "len131",
                                         "len132", "len257" };
    const size_t n = SLOW ? 3 : sizeof names / sizeof names[0];
    struct engine *e = open_model("nano", "cpu", (struct engine_options){ .score = true, .draft = true,
                                                                          .context_tokens = 512 });

    for (size_t i = 0; i < n; i++)
        golden_case(e, "tests/golden/golden-nano.safetensors", names[i]);
    engine_close(e);
}
END_TEST

START_TEST(test_golden_twin) {
    struct engine *e = open_model("twin-a", "cpu", (struct engine_options){ .score = true, .draft = true,
                                                                            .context_tokens = 512 });

    golden_case(e, "tests/golden/golden-twin-a.safetensors", "r35");
    if (!SLOW)
        golden_case(e, "tests/golden/golden-twin-a.safetensors", "r300");
    engine_close(e);
}
END_TEST

/* The ids of a golden case, at most cap. */
static uint32_t golden_ids(const char *name, uint32_t *ids, uint32_t cap) {
    struct xerr err = { 0 };
    const struct st_tensor *t;
    struct st_file *f;
    char key[64];
    uint32_t n;

    ck_assert_int_eq(st_open(&f, "tests/golden/golden-nano.safetensors", NULL, &err), 0);
    snprintf(key, sizeof key, "%s.ids", name);
    t = st_find(f, key);
    ck_assert_ptr_nonnull(t);
    n = (uint32_t)(t->bytes / 4) < cap ? (uint32_t)(t->bytes / 4) : cap;
    ck_assert_int_eq(st_read(f, t, 0, ids, n * 4ull, &err), 0);
    st_close(f);
    return n;
}

/* Cuts on the grid change no bit, and token by token agrees within rounding. */
START_TEST(test_cuts) {
    static const uint32_t chunks[] = { 64, 128, 192, 256, 320 };
    uint32_t ids[330], n = golden_ids("long", ids, SLOW ? 140 : 330), vocab;
    struct engine *e = open_model("nano", "cpu", (struct engine_options){ .context_tokens = 512 });
    struct score_shape shape;
    struct xerr err = { 0 };
    float *a, *b;

    score_get_shape(e, &shape);
    vocab = shape.vocab_rows;
    a = calloc(vocab, sizeof *a);
    b = calloc(vocab, sizeof *b);
    ck_assert(a && b);
    ck_assert_int_eq(score_prompt(e, &(struct score_query){ .ids = ids, .n_ids = n },
                                  &(struct score_out){ .logits_last = a }, &err), 0);
    for (size_t i = 0; i < (SLOW ? 2 : sizeof chunks / sizeof chunks[0]); i++) {
        const struct score_query q = { .ids = ids, .n_ids = n, .chunk_tokens = chunks[i] };

        memset(b, 0, vocab * sizeof *b);
        ck_assert_int_eq(score_prompt(e, &q, &(struct score_out){ .logits_last = b }, &err), 0);
        ck_assert_msg(memcmp(a, b, vocab * sizeof *a) == 0, "chunks of %u differ", chunks[i]);
    }
    for (uint32_t fed = 1; fed <= 9; fed += 4) {
        const struct score_query q = { .ids = ids, .n_ids = n, .fed_tokens = fed };

        ck_assert_int_eq(score_prompt(e, &q, &(struct score_out){ .logits_last = b }, &err), 0);
        ck_assert(eval_within(eval_rel_error(b, a, vocab), 1e-4));
    }
    free(a);
    free(b);
    engine_close(e);
}
END_TEST

/* A decode step far behind the dense limit gathers the selected rows and the tail, not the cache. */
START_TEST(test_sparse_reads) {
    enum { N = SLOW ? 340 : 600, TOPK = 128, KPOOL = 4, MLA = 2 };
    uint32_t ids[N], n = golden_ids("long", ids, N);
    struct engine *e = open_model("nano", "cpu", (struct engine_options){ .context_tokens = 1024 });
    struct kern_counters c, at[2];
    struct xerr err = { 0 };

    ck_assert_uint_eq(n, N);
    for (uint32_t i = 0; i < 2; i++) {
        const struct score_query q = { .ids = ids, .n_ids = i ? N : N / 2, .fed_tokens = 1 };

        ck_assert_int_eq(score_prompt(e, &q, &(struct score_out){ .counters = &c }, &err), 0);
        ck_assert_uint_le(c.latent_rows, MLA * (TOPK + KPOOL - 1));
        ck_assert_uint_ge(c.latent_rows, MLA * TOPK);
        ck_assert_uint_eq(c.pooled_keys, MLA * (q.n_ids / KPOOL));
        at[i] = c;
    }
    ck_assert_uint_eq(at[0].weight_bytes, at[1].weight_bytes);
    engine_close(e);
}
END_TEST

static void run_nano(struct engrun *r, struct engine_options o) {
    static char dir[256];

    snprintf(dir, sizeof dir, "%s", ckpt_model("nano"));
    o.backend = "cpu";
    if (!o.context_tokens)
        o.context_tokens = 512;
    engrun_open(r, dir, &o);
    engrun_start(r);
}

/* Eight streams at once, prompts of different lengths, prefill between decodes: each as if it were alone. */
START_TEST(test_batch_as_alone) {
    enum { N = SLOW ? 3 : 8, OUT = SLOW ? 6 : 24 };
    uint32_t ids[400], n = golden_ids("long", ids, 400);
    static uint32_t alone[N][OUT];
    struct engrun r;
    struct sched_req q[N];

    ck_assert_uint_eq(n, 400);
    for (int round = 0; round < 2; round++) {
        run_nano(&r, (struct engine_options){ .max_seqs = N, .prefill_tokens = round ? 64 : 256 });
        for (uint32_t i = 0; i < N; i++) {
            q[i] = engrun_req(i, ids + i, 20 + 45 * i, OUT);
            q[i].ignore_eos = true;
            q[i].sampling.temperature = i % 2 ? 0.9f : 0.0f;
            q[i].sampling.top_p = 0.95f;
            q[i].sampling.seed = 7 * i;
            engrun_submit(&r, &q[i]);
            if (!round)
                engrun_wait_end(&r, i);
        }
        for (uint32_t i = 0; i < N; i++) {
            const struct engrun_stream *s = engrun_wait_end(&r, i);

            ck_assert_uint_eq(s->n_tokens, OUT);
            if (!round)
                memcpy(alone[i], s->tokens, sizeof alone[i]);
            else
                ck_assert_msg(memcmp(alone[i], s->tokens, sizeof alone[i]) == 0, "stream %u differs", i);
        }
        ck_assert_int_eq(engrun_close(&r), 0);
    }
}
END_TEST

static void one(struct engrun *r, uint32_t gen, struct sched_sampling w, uint32_t *ret, uint32_t n) {
    uint32_t ids[64], len = golden_ids("sort", ids, 64);
    struct sched_req q = engrun_req(0, ids, len, n);

    q.stream.gen = gen;
    q.ignore_eos = true;
    q.sampling = w;
    engrun_submit(r, &q);
    engrun_wait_gen(r, 0, gen);
    ck_assert_uint_eq(r->s[0].n_tokens, n);
    memcpy(ret, r->s[0].tokens, n * sizeof *ret);
}

/* Seeds reproduce, differ among each other, penalties and biases act on what was seen. */
START_TEST(test_sampling) {
    enum { N = SLOW ? 12 : 20 };
    const struct sched_sampling plain = { .top_p = 1, .repetition = 1 };
    const struct sched_bias ban = { .token = 40, .bias = -1e4f };
    uint32_t a[N], b[N];
    struct sched_sampling w = plain;
    struct engrun r;

    run_nano(&r, (struct engine_options){ .max_seqs = 1 });
    w.temperature = 3.0f;
    w.seed = 11;
    one(&r, 1, w, a, N);
    one(&r, 2, w, b, N);
    ck_assert(memcmp(a, b, sizeof a) == 0);
    w.seed = 12;
    one(&r, 3, w, b, N);
    ck_assert(memcmp(a, b, sizeof a) != 0);
    one(&r, 4, plain, a, N);
    ck_assert_uint_eq(a[0], 40); /* as recorded for this prompt */
    w = plain;
    w.bias = &ban;
    w.n_bias = 1;
    one(&r, 5, w, b, N);
    ck_assert_uint_ne(b[0], 40);
    w = plain;
    w.presence = 1e4f; /* nothing twice */
    one(&r, 6, w, b, N);
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(b[i], b[j]);
    w = plain;
    w.repetition = 1e4f; /* nothing of the prompt either */
    one(&r, 7, w, b, N);
    {
        uint32_t ids[64], len = golden_ids("sort", ids, 64);

        for (uint32_t i = 0; i < N; i++)
            for (uint32_t j = 0; j < len; j++)
                ck_assert_uint_ne(b[i], ids[j]);
    }
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

START_TEST(test_self_test) {
    static const char *const models[] = { "nano", "twin-a" };
    struct xerr err = { 0 };

    for (uint32_t i = 0; i < 6; i++) {
        struct engine *e = open_model(models[i % 2], "cpu", (struct engine_options){ .context_tokens = 256,
                                                                                     .cache = i / 2 });
        int r = engine_self_test(e, &err);

        struct engine_stats st;

        ck_assert_msg(r == 0, "%s", err.msg);
        engine_get_stats(e, &st);
        ck_assert_uint_eq(st.running, 0); /* or a daemon that was never asked shows one request */
        engine_close(e);
    }
}
END_TEST

/* A checkpoint nobody has listed: prefill and decode must agree. And a known one with a damaged weight is
 * noticed. */
START_TEST(test_self_test_other) {
    struct engine_options o = { .max_seqs = 1, .backend = "cpu", .context_tokens = 256 };
    struct xerr err = { 0 };
    struct engine *e;
    struct ckpt c;
    size_t n;
    char *text;
    int r;

    ckpt_copy(&c, "nano");
    text = ckpt_read(&c, "model.safetensors.index.json", &n);
    text = realloc(text, n + 2);
    ck_assert_ptr_nonnull(text);
    text[n] = '\n';
    ckpt_write(&c, "model.safetensors.index.json", text, n + 1);
    o.model = c.dir;
    ck_assert_int_eq(engine_open(&o, &e, &err), 0);
    ck_assert_int_eq(engine_load(e, NULL, NULL, &err), 0);
    r = engine_self_test(e, &err);
    ck_assert_msg(r == 0, "%s", err.msg);
    engine_close(e);
    ckpt_write(&c, "model.safetensors.index.json", text, n);
    free(text);
    text = ckpt_read(&c, "model-00003-of-00003.safetensors", &n);
    for (size_t i = n - n / 4; i < n; i += 2) /* the last quarter of the data becomes another number */
        text[i + 1] ^= 0x04;
    ckpt_write(&c, "model-00003-of-00003.safetensors", text, n);
    free(text);
    ck_assert_int_eq(engine_open(&o, &e, &err), 0);
    ck_assert_int_eq(engine_load(e, NULL, NULL, &err), 0);
    ck_assert_int_lt(engine_self_test(e, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.msg, "self-test"));
    engine_close(e);
    ckpt_remove(&c);
}
END_TEST

/* A prompt of 8,000 tokens is read beside a running stream: nobody waits for the whole of it. Which gap is
 * longest depends on the machine; that none is a large part of the prompt's time does not. */
START_TEST(test_gaps_beside_prompt) {
#if defined(__SANITIZE_THREAD__) || defined(TEST_EMULATED)
    enum { N = 192, CHUNK = 64 };
#elif defined(__SANITIZE_ADDRESS__)
    enum { N = 1024, CHUNK = 0 };
#else
    enum { N = 8000, CHUNK = 0 };
#endif
    static uint32_t ids[N];
    uint32_t before, after;
    uint64_t began, took, gap = 0;
    struct engrun r;
    struct sched_req a, b;

    for (uint32_t i = 0; i < N; i++)
        ids[i] = (i * 2654435761u >> 7) % 4000;
    run_nano(&r, (struct engine_options){ .max_seqs = 2, .context_tokens = 16384, .prefill_tokens = CHUNK });
    a = engrun_req(0, ids, 3, 0);
    a.ignore_eos = true;
    b = engrun_req(1, ids, N, 1);
    engrun_submit(&r, &a);
    engrun_wait_tokens(&r, 0, 5);
    before = engrun_tokens(&r, 0);
    began = engrun_now_ns();
    engrun_submit(&r, &b);
    engrun_wait_end(&r, 1);
    took = engrun_now_ns() - began;
    after = engrun_tokens(&r, 0);
    pthread_mutex_lock(&r.lock);
    for (uint32_t i = before; i < after && i < ENGRUN_TOKENS; i++)
        if (r.s[0].t_ns[i] - r.s[0].t_ns[i - 1] > gap)
            gap = r.s[0].t_ns[i] - r.s[0].t_ns[i - 1];
    pthread_mutex_unlock(&r.lock);
    ck_assert_uint_ge(after - before, N / 64);
    ck_assert_msg(gap < took / 4, "%u tokens meanwhile; longest gap %llu us of %llu us", after - before,
                  (unsigned long long)gap / 1000, (unsigned long long)took / 1000);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* The refusal names a context that then opens. */
START_TEST(test_too_large) {
    struct engine_options o = { .model = NULL, .max_seqs = 1, .backend = "cpu", .context_tokens = 131072 };
    struct xerr err = { 0 };
    struct engine_info info;
    struct engine *e = NULL;
    uint64_t available = 0;
    unsigned fits = 0;
    char line[128];
    const char *p;
    FILE *f = fopen("/proc/meminfo", "r");

    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", (unsigned long long *)&available) == 1)
            break;
    fclose(f);
    available <<= 10;
    o.model = ckpt_model("nano");
    ck_assert_uint_gt(available, 400u << 20);
    o.keep_free_bytes = available - (300u << 20); /* 300 MiB for us */
    ck_assert_int_eq(engine_open(&o, &e, &err), -ENOMEM);
    p = strstr(err.msg, "largest context that fits is ");
    ck_assert_msg(p != NULL, "%s", err.msg);
    ck_assert_int_eq(sscanf(p, "largest context that fits is %u", &fits), 1);
    ck_assert_uint_gt(fits, 256);
    ck_assert_uint_lt(fits, 131072);
    o.context_tokens = fits > 8192 ? fits - 8192 : 256; /* other processes move what is available */
    ck_assert_int_eq(engine_open(&o, &e, &err), 0);
    engine_get_info(e, &info);
    ck_assert_uint_eq(info.context_tokens, o.context_tokens);
    engine_close(e);
    /* what others will take is kept back as well */
    o.others_bytes = 250u << 20;
    e = NULL;
    ck_assert_int_eq(engine_open(&o, &e, &err), -ENOMEM);
    ck_assert_msg(strstr(err.msg, "(250 MiB of them for the text of requests)") != NULL, "%s", err.msg);
    o.others_bytes = UINT64_MAX;
    ck_assert_int_eq(engine_open(&o, &e, &err), -ENOMEM);
    ck_assert_ptr_null(e);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_nano");
    TCase *tc = tcase_create("nano");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_golden_ref);
    tcase_add_test(tc, test_golden_cpu);
    tcase_add_test(tc, test_golden_twin);
    tcase_add_test(tc, test_cuts);
    tcase_add_test(tc, test_sparse_reads);
    tcase_add_test(tc, test_batch_as_alone);
    tcase_add_test(tc, test_sampling);
    tcase_add_test(tc, test_gaps_beside_prompt);
    tcase_add_test(tc, test_self_test);
    tcase_add_test(tc, test_self_test_other);
    tcase_add_test(tc, test_too_large);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
