/* SPDX-License-Identifier: MIT */
#include "benchcpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "benchlib.h"
#include "engine_priv.h"
#include "score.h"

/* ---- two threads at once ---- */

struct share {
    void (*fn)(void *arg, int member);
    void *arg;
    int member;
    pthread_barrier_t *start;
    uint64_t begin_ns, end_ns;
};

static void *share_main(void *arg) {
    struct share *s = arg;

    pthread_barrier_wait(s->start);
    s->begin_ns = bench_now_ns();
    s->fn(s->arg, s->member);
    s->end_ns = bench_now_ns();
    return NULL;
}

/* Seconds from the first member's start to the last one's end. */
static double together(void (*fn)(void *arg, int member), void *arg) {
    struct share s[BENCH_THREADS];
    pthread_t t[BENCH_THREADS];
    pthread_barrier_t start;
    uint64_t begin = UINT64_MAX, end = 0;

    pthread_barrier_init(&start, NULL, BENCH_THREADS);
    for (int i = 0; i < BENCH_THREADS; i++) {
        s[i] = (struct share){.fn = fn, .arg = arg, .member = i, .start = &start};
        if (i && pthread_create(&t[i], NULL, share_main, &s[i]) != 0)
            abort();
    }
    share_main(&s[0]);
    for (int i = 0; i < BENCH_THREADS; i++) {
        if (i)
            pthread_join(t[i], NULL);
        begin = s[i].begin_ns < begin ? s[i].begin_ns : begin;
        end = s[i].end_ns > end ? s[i].end_ns : end;
    }
    pthread_barrier_destroy(&start);
    return (double)(end - begin) / 1e9;
}

/* ---- the reader ---- */

/* WIDTH-byte registers; a line of 64 bytes is one or two loads of them. */
#define READ_BODY(WIDTH)                                                                                     \
    typedef uint64_t v __attribute__((vector_size(WIDTH)));                                                  \
    const v *p = at;                                                                                         \
    v a[4] = {{0}};                                                                                          \
    uint64_t sum = 0, n = bytes / WIDTH;                                                                     \
    for (uint32_t k = 0; k < passes; k++) {                                                                  \
        uint64_t i = 0;                                                                                      \
        for (; i + 4 <= n; i += 4)                                                                           \
            _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) a[j] ^= p[i + (uint64_t)j];                  \
        for (; i < n; i++)                                                                                   \
            a[0] ^= p[i];                                                                                    \
        __asm__ volatile("" ::: "memory"); /* every pass reads again */                                      \
    }                                                                                                        \
    a[0] ^= a[1] ^ a[2] ^ a[3];                                                                              \
    for (unsigned i = 0; i < WIDTH / 8; i++)                                                                 \
        sum ^= a[0][i];                                                                                      \
    return sum

#if defined(__x86_64__)
#define ON(TARGET) __attribute__((noinline, target(TARGET), optimize("O3,fp-contract=fast")))
#else
#define ON(TARGET) __attribute__((noinline, optimize("O3,fp-contract=fast")))
#endif

typedef uint64_t read_fn(const void *at, uint64_t bytes, uint32_t passes);

#if defined(__x86_64__)
ON("avx512f") static uint64_t read_512(const void *at, uint64_t bytes, uint32_t passes) {
    READ_BODY(64);
}
ON("avx2") static uint64_t read_256(const void *at, uint64_t bytes, uint32_t passes) {
    READ_BODY(32);
}
static read_fn *reader(void) {
    return __builtin_cpu_supports("avx512f") ? read_512 : read_256;
}
#else
ON("") static uint64_t read_128(const void *at, uint64_t bytes, uint32_t passes) {
    READ_BODY(16);
}
static read_fn *reader(void) {
    return read_128;
}
#endif

struct read_job {
    read_fn *fn;
    const char *at;
    uint64_t half; /* bytes */
    uint32_t passes;
    uint64_t sink[BENCH_THREADS * 8]; /* a cache line each */
};

static void read_share(void *arg, int member) {
    struct read_job *j = arg;

    j->sink[member * 8] = j->fn(j->at + (uint64_t)member * j->half, j->half, j->passes);
}

double bench_read(const void *buffer, uint64_t bytes, uint32_t passes) {
    struct read_job j = {
        .fn = reader(), .at = buffer, .half = bytes / BENCH_THREADS / 64 * 64, .passes = passes};

    return together(read_share, &j) / passes;
}

static uint64_t map_bytes(uint64_t bytes) {
    return (bytes + (2u << 20)) & ~((2ull << 20) - 1);
}

void *bench_map(uint64_t bytes) {
    void *p = mmap(NULL, map_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    (void)madvise(p, map_bytes(bytes), MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

void bench_unmap(void *p, uint64_t bytes) {
    if (p)
        munmap(p, map_bytes(bytes));
}

/* ---- fused multiply-adds ---- */

/* CHAINS accumulators of WIDTH floats: more than latency times ports, no more than the registers hold. */
#define FMA_BODY(WIDTH, CHAINS)                                                                              \
    typedef float v __attribute__((vector_size(WIDTH * 4)));                                                 \
    v acc[CHAINS], m, c;                                                                                     \
    float s = 0;                                                                                             \
    for (int j = 0; j < WIDTH; j++) {                                                                        \
        m[j] = 0.999f;                                                                                       \
        c[j] = 0.001f;                                                                                       \
    }                                                                                                        \
    for (int i = 0; i < CHAINS; i++)                                                                         \
        acc[i] = c;                                                                                          \
    for (uint64_t k = 0; k < n; k++)                                                                         \
        _Pragma("GCC unroll 24") for (int i = 0; i < CHAINS; i++) acc[i] = acc[i] * m + c;                   \
    for (int i = 0; i < CHAINS; i++)                                                                         \
        for (int j = 0; j < WIDTH; j++)                                                                      \
            s += acc[i][j];                                                                                  \
    return s

#if defined(__x86_64__)
ON("avx512f") static float fma_512(uint64_t n) {
    FMA_BODY(16, 24);
}
ON("avx2,fma") static float fma_256(uint64_t n) {
    FMA_BODY(8, 12);
}
#else
ON("") static float fma_128(uint64_t n) {
    FMA_BODY(4, 24);
}
#endif

struct fma_job {
    float (*fn)(uint64_t n);
    uint64_t n;
    float sink[BENCH_THREADS * 16];
};

static void fma_share(void *arg, int member) {
    struct fma_job *j = arg;

    j->sink[member * 16] += j->fn(j->n);
}

struct fma_kind {
    const char *name;
    float (*fn)(uint64_t n);
    double flops; /* of one iteration */
};

static struct fma_kind fma_best(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return (struct fma_kind){"avx512", fma_512, 24 * 16 * 2};
    return (struct fma_kind){"avx2", fma_256, 12 * 8 * 2};
#else
    return (struct fma_kind){"neon", fma_128, 24 * 4 * 2};
#endif
}

const char *bench_fma_name(void) {
    return fma_best().name;
}

double bench_fma(double seconds) {
    static uint64_t n;
    struct fma_kind k = fma_best();
    struct fma_job j = {.fn = k.fn, .n = 1000};

    while (!n) { /* once: how many iterations take that long */
        double t = together(fma_share, &j);
        if (t > seconds / 4)
            n = (uint64_t)((double)j.n * seconds / t) + 1;
        else
            j.n *= 2;
    }
    j.n = n;
    return (double)BENCH_THREADS * (double)n * k.flops / together(fma_share, &j);
}

/* ---- the engine ---- */

/* The handicap holds up the engine's own thread, once a step: it takes four times as long, or as many times as it has
 * tokens when those are more. Counted from where the last one was let go: a delay must not be taken for work. */
static void hold_up(struct bench_engine *b, const struct stream_event *ev, uint32_t tokens) {
    const struct bench_stream *s = &b->s[ev->stream.index];
    uint64_t from = b->let_go_ns, times = tokens > 4 ? tokens : 4;

    if (!s->n_tokens && s->begin_ns > from)
        from = s->begin_ns;
    while (from && ev->t_ns > from && bench_now_ns() < from + times * (ev->t_ns - from))
        ;
    b->let_go_ns = bench_now_ns();
}

/* A bench that is slowed down by a planted fault instead (bench_main) is not held up as well. */
static int holds_up(void) {
    const char *fault = getenv("GLMD_FAULT");

    return bench_handicap() && (!fault || strcmp(fault, "bench_holds_up") == 0);
}

static void on_events(void *ctx, const struct stream_event *ev, uint32_t n) {
    struct bench_engine *b = ctx;
    uint32_t tokens = 0, first = n;

    for (uint32_t i = 0; i < n; i++) {
        if (ev[i].type == STREAM_EV_TOKEN && !tokens++)
            first = i;
    }
    if (tokens <= BENCH_MAX_STREAMS)
        (void)kern_counters(b->e->k, KERN_LANE_DECODE, &b->counters[tokens]);
    if (tokens && b->holds_up)
        hold_up(b, &ev[first], tokens);
    for (uint32_t i = 0; i < n; i++) {
        struct bench_stream *s = &b->s[ev[i].stream.index];

        if (ev[i].type == STREAM_EV_TOKEN && s->n_tokens < b->cap)
            s->token_ns[s->n_tokens++] = b->holds_up ? b->let_go_ns : ev[i].t_ns;
        if (ev[i].type != STREAM_EV_END)
            continue;
        pthread_mutex_lock(&b->lock);
        s->status = ev[i].status;
        s->ended = 1;
        pthread_cond_signal(&b->done);
        pthread_mutex_unlock(&b->lock);
    }
}

static uint32_t on_refresh(void *ctx, struct stream_id id, uint32_t wanted) {
    (void)wanted;
    (void)ctx;
    (void)id;
    return 1u << 30;
}

int bench_engine_open(struct bench_engine *b, const char *model, uint32_t context, uint32_t prefill_tokens,
                      uint32_t streams) {
    const struct engine_options opt = {.model = model,
                                       .backend = "cpu",
                                       .threads = BENCH_THREADS,
                                       .context_tokens = context,
                                       .max_seqs = streams,
                                       .max_streams = streams,
                                       .prefill_tokens = prefill_tokens};
    static struct stream_credit credit[BENCH_MAX_STREAMS];
    struct xerr err = {0};

    memset(b, 0, sizeof *b);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->done, NULL);
    b->cap = context;
    b->holds_up = holds_up();
    b->n_streams = streams;
    if (streams > BENCH_MAX_STREAMS || engine_open(&opt, &b->e, &err) < 0 ||
        engine_load(b->e, NULL, NULL, &err) < 0) {
        fprintf(stderr, "bench: %s\n", err.msg);
        return -1;
    }
    for (uint32_t i = 0; i < streams; i++) {
        atomic_store(&credit[i].records, 1u << 30);
        if (!(b->s[i].token_ns = calloc(context, sizeof *b->s[i].token_ns)))
            return -1;
    }
    engine_set_sink(b->e, &(struct stream_sink){
                              .ctx = b, .publish = on_events, .refresh = on_refresh, .credit = credit});
    return 0;
}

static int counters_of(struct bench_engine *b, const uint32_t *ids, uint32_t n, uint32_t fed,
                       struct kern_counters *c) {
    const struct score_query q = {.ids = ids, .n_ids = n, .fed_tokens = fed};
    struct xerr err = {0};

    if (score_prompt(b->e, &q, &(struct score_out){.counters = c}, &err) < 0) {
        fprintf(stderr, "bench: %s\n", err.msg);
        return -1;
    }
    return 0;
}

int bench_engine_step_bytes(struct bench_engine *b, const uint32_t *ids, uint32_t n, uint64_t *ret_bytes) {
    struct kern_counters c;

    if (counters_of(b, ids, n, 1, &c) < 0)
        return -1;
    /* the state is counted read and written; a reader touches its bytes once */
    *ret_bytes = c.weight_bytes + c.state_bytes / 2 + c.cache_bytes;
    return 0;
}

int bench_engine_prefill_flops(struct bench_engine *b, const uint32_t *ids, uint32_t n, double *ret_flops) {
    struct kern_counters c;

    /* counters are those of the last chunk: the engine must take the prompt in one */
    if (n > b->e->opt.prefill_tokens || counters_of(b, ids, n, 0, &c) < 0)
        return -1;
    *ret_flops = (double)c.flops;
    return 0;
}

static void *engine_main(void *arg) {
    struct bench_engine *b = arg;

    (void)engine_run(b->e);
    return NULL;
}

int bench_engine_run(struct bench_engine *b) {
    if (pthread_create(&b->thread, NULL, engine_main, b) != 0)
        return -1;
    b->running = 1;
    return 0;
}

int bench_engine_submit(struct bench_engine *b, uint32_t stream, const uint32_t *ids, uint32_t n,
                        uint32_t max_tokens) {
    struct bench_stream *s = &b->s[stream];
    struct sched_req *req = &s->req;
    int r;

    *req = (struct sched_req){.stream = {.index = stream, .gen = ++s->gen},
                              .ids = ids,
                              .n_ids = n,
                              .max_tokens = max_tokens,
                              .ignore_eos = true,
                              .quiet = true,
                              .no_cache = true, /* the same prompt again is computed again */
                              .sampling = {.top_p = 1.0f, .repetition = 1.0f},
                              .received_ns = bench_now_ns()};
    s->ended = 0;
    s->n_tokens = 0;
    s->begin_ns = req->received_ns;
    while ((r = engine_submit(b->e, req)) == -EAGAIN)
        ; /* the previous request is being put away */
    if (r < 0)
        fprintf(stderr, "bench: the request was refused: %s\n", strerror(-r));
    return r < 0 ? -1 : 0;
}

int bench_engine_wait(struct bench_engine *b, uint32_t stream) {
    struct bench_stream *s = &b->s[stream];
    int r;

    pthread_mutex_lock(&b->lock);
    while (!s->ended)
        pthread_cond_wait(&b->done, &b->lock);
    r = s->status;
    pthread_mutex_unlock(&b->lock);
    if (r < 0)
        fprintf(stderr, "bench: the request failed: %s\n", strerror(-r));
    return r < 0 ? -1 : 0;
}

int bench_engine_request(struct bench_engine *b, const uint32_t *ids, uint32_t n, uint32_t max_tokens) {
    return bench_engine_submit(b, 0, ids, n, max_tokens) < 0 ? -1 : bench_engine_wait(b, 0);
}

void bench_engine_close(struct bench_engine *b) {
    if (b->running) {
        engine_stop(b->e, 0);
        pthread_join(b->thread, NULL);
    }
    engine_close(b->e);
    for (uint32_t i = 0; i < b->n_streams; i++)
        free(b->s[i].token_ns);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->done);
}
