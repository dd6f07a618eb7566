/* SPDX-License-Identifier: MIT */
/* Our side of cpu-vs-sse: the client, and the daemon's engine without anything that carries, or with what it is
 * compared with. See benchipc.h. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "benchipc.h"
#include "engine.h"

static const uint32_t prompt[] = {57, 101, 67};
enum { MAX_TOKENS = 4000 };

static int submit_all(glmd_conn *c, uint32_t n) {
    uint64_t tag;
    int r = 0;

    for (uint32_t i = 0; i < n && r >= 0; i++) {
        glmd_req *q;

        if ((r = glmd_req_new(c, &q)) < 0)
            break;
        if ((r = glmd_req_tokens(q, prompt, 3)) < 0 ||
            (r = glmd_req_set_u64(q, GLMD_KEY_MAX_TOKENS, MAX_TOKENS)) < 0 ||
            (r = glmd_req_set_u64(q, GLMD_KEY_IGNORE_EOS, 1)) < 0 ||
            (r = glmd_req_set_f64(q, GLMD_KEY_TEMPERATURE, 0)) < 0 || (r = glmd_submit(c, q, &tag)) < 0)
            glmd_req_free(q);
    }
    return r < 0 ? r : 0;
}

/* One of the script's three words, with its text. */
static int token_is_right(const struct glmd_event *ev) {
    switch (ev->token) {
    case 258:
        return ev->text_len == 4 && memcmp(ev->text, " the", 4) == 0;
    case 262:
        return ev->text_len == 5 && memcmp(ev->text, " mill", 5) == 0;
    case 267:
        return ev->text_len == 6 && memcmp(ev->text, " river", 6) == 0;
    default:
        return 0;
    }
}

static int read_streams(glmd_conn *c, struct bench_streams *s) {
    struct glmd_event ev = {.size = sizeof ev};
    uint64_t tokens = 0;
    int r = 0;

    while (r >= 0 && !atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        if ((r = glmd_wait(c, -1)) < 0)
            return r;
        while ((r = glmd_next(c, &ev)) == 1) {
            if (ev.type == GLMD_EV_TOKEN && !token_is_right(&ev))
                return -EBADMSG;
            if (ev.type == GLMD_EV_ERROR || ev.type == GLMD_EV_END)
                return ev.status < 0 ? ev.status : -EPROTO;
            tokens += ev.type == GLMD_EV_TOKEN;
        }
        atomic_store_explicit(&s->tokens, tokens, memory_order_relaxed);
        if (s->info[0].size == 0 && tokens >= 2 * (uint64_t)s->n) {
            s->info[0].size = sizeof s->info[0];
            glmd_get_info(c, &s->info[0]);
        }
    }
    s->info[1].size = sizeof s->info[1];
    return r < 0 ? r : glmd_get_info(c, &s->info[1]);
}

int bench_streams_client(void *streams) {
    struct bench_streams *s = streams;
    struct glmd_options opt = {
        .size = sizeof opt, .socket_path = s->socket, .socket_path_len = strlen(s->socket)};
    glmd_conn *c;
    int r = glmd_connect(&opt, &c);

    if (r == 0) {
        r = submit_all(c, s->n);
        if (r == 0)
            r = read_streams(c, s);
        glmd_close(c);
    }
    if (r < 0)
        fprintf(stderr, "bench: the client of %u streams: %s\n", s->n, glmd_strerror(r));
    return r;
}

/* ---- the engine alone ---- */

static struct stream_credit credit[BENCH_MAX_STREAMS];

static bench_carry carry_to;
static _Atomic int carry_error; /* by the engine's thread, the first */

static void on_events(void *ctx, const struct stream_event *ev, uint32_t n) {
    struct bench_streams *s = ctx;
    int r = 0, none = 0;

    if (!carry_to)
        atomic_store_explicit(&s->tokens, s->tokens + n, memory_order_relaxed);
    else if ((r = carry_to(s, ev, n)) < 0)
        atomic_compare_exchange_strong(&carry_error, &none, r);
}

static uint32_t on_refresh(void *ctx, struct stream_id id, uint32_t wanted) {
    (void)wanted;
    (void)ctx;
    (void)id;
    return 1u << 30;
}

static void *engine_main(void *e) {
    return engine_run(e) < 0 ? e : NULL;
}

/* What the daemon tells its engine of the letters' tokenizer: it decides which ids are banned in every step. */
static const uint32_t stop_ids[] = {268, 275, 277, 276};
static const struct vocab_view vocab = {.stop_ids = stop_ids,
                                        .n_stop_ids = sizeof stop_ids / sizeof *stop_ids,
                                        .think_open = 289,
                                        .think_close = 290,
                                        .tool_open = 291,
                                        .tool_close = 292,
                                        .key_open = 295,
                                        .key_close = 296,
                                        .value_open = 297,
                                        .value_close = 298,
                                        .text_end = 268};

static int run_engine(struct bench_streams *s, struct engine *e) {
    struct sched_req req[BENCH_MAX_STREAMS];
    struct stream_sink sink = {.ctx = s, .publish = on_events, .refresh = on_refresh, .credit = credit};
    pthread_t th;
    void *lost = NULL;
    int r = 0;

    for (uint32_t i = 0; i < BENCH_MAX_STREAMS; i++)
        atomic_store(&credit[i].records, 1u << 30);
    engine_set_vocab(e, &vocab);
    engine_set_sink(e, &sink);
    if (pthread_create(&th, NULL, engine_main, e) != 0)
        return -EAGAIN;
    for (uint32_t i = 0; i < s->n && r == 0; i++) {
        req[i] = (struct sched_req){.stream = {.index = i, .gen = 1},
                                    .ids = prompt,
                                    .n_ids = 3,
                                    .max_tokens = MAX_TOKENS,
                                    .ignore_eos = true,
                                    .quiet = true,
                                    .sampling = {.top_p = 1.0f, .repetition = 1.0f},
                                    .received_ns = bench_now_ns()};
        r = engine_submit(e, &req[i]);
    }
    while (r == 0 && !atomic_load(&s->stop) && (r = atomic_load(&carry_error)) == 0)
        bench_sleep_ns(BENCH_STEP_NS * 10);
    engine_stop(e, 0);
    pthread_join(th, &lost);
    return lost ? -EIO : r;
}

int bench_streams_engine(struct bench_streams *s, bench_carry carry) {
    struct engine_options opt = {.model = BENCH_SCRIPT,
                                 .context_tokens = 4096,
                                 .max_seqs = BENCH_MAX_STREAMS,
                                 .max_streams = BENCH_MAX_STREAMS};
    struct xerr err = {0};
    struct engine *e = NULL;
    int r = engine_open(&opt, &e, &err);

    carry_to = carry;
    if (r == 0)
        r = engine_load(e, NULL, NULL, &err);
    if (r == 0)
        r = run_engine(s, e);
    if (r < 0)
        fprintf(stderr, "bench: the engine alone: %s %s\n", strerror(-r), err.msg);
    engine_close(e);
    return r;
}

int bench_alone_sender(void *streams) {
    return bench_streams_engine(streams, NULL);
}
