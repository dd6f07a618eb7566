/* SPDX-License-Identifier: MIT */
/* engrun.c: an engine with its thread and a recording sink. */
#include "engrun.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine_priv.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SILENCE_S = 240 };
#else
enum { SILENCE_S = 120 };
#endif

uint64_t engrun_now_ns(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void engrun_sleep_ms(uint32_t ms) {
    struct timespec ts = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

    while (nanosleep(&ts, &ts) < 0 && errno == EINTR)
        ;
}

static void record_end(struct engrun *r, struct engrun_stream *s, const struct stream_event *ev) {
    s->ends++;
    s->end = *ev;
    r->total_ends++;
}

static void record_token(struct engrun *r, struct engrun_stream *s, const struct stream_event *ev) {
    if (s->n_tokens < ENGRUN_TOKENS) {
        s->t_ns[s->n_tokens] = ev->t_ns;
        s->logprobs[s->n_tokens] = ev->logprob;
        s->tokens[s->n_tokens++] = ev->token;
    }
    s->firsts += ev->first;
    s->n_forced += ev->forced;
    s->logprob = ev->logprob;
    s->n_alts = ev->n_alts;
    memcpy(s->alts, ev->alts, sizeof s->alts);
    if (r->metered)
        atomic_fetch_sub(&r->credit[ev->stream.index].records, 1);
}

static void on_publish(void *ctx, const struct stream_event *ev, uint32_t n) {
    struct engrun *r = ctx;

    pthread_mutex_lock(&r->lock);
    r->published++;
    for (uint32_t i = 0; i < n; i++) {
        struct engrun_stream *s = &r->s[ev[i].stream.index];

        if (ev[i].stream.gen != s->gen)
            *s = (struct engrun_stream){ .gen = ev[i].stream.gen };
        s->late += s->ends != 0;
        if (ev[i].type == STREAM_EV_END)
            record_end(r, s, &ev[i]);
        else if (ev[i].type == STREAM_EV_TOKEN)
            record_token(r, s, &ev[i]);
        if (ev[i].type == STREAM_EV_PROGRESS) {
            s->n_progress++;
            s->progress = ev[i].u.progress;
            if (s->progress.queue_position > s->max_place)
                s->max_place = s->progress.queue_position;
        }
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static uint32_t on_refresh(void *ctx, struct stream_id id, uint32_t wanted) {
    struct engrun *r = ctx;
    uint32_t n;

    (void)wanted;
    pthread_mutex_lock(&r->lock);
    r->refreshes++;
    n = r->hidden_credit[id.index];
    r->hidden_credit[id.index] = 0;
    pthread_mutex_unlock(&r->lock);
    return atomic_fetch_add(&r->credit[id.index].records, n) + n;
}

void engrun_open(struct engrun *r, const char *script, const struct engine_options *opt) {
    struct engine_options o = opt ? *opt : (struct engine_options){ 0 };
    struct xerr err = { 0 };
    char model[80];
    int rc;

    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    if (strchr(script, '\n')) {
        int fd;

        snprintf(r->path, sizeof r->path, "/tmp/glmd-test-XXXXXX");
        fd = mkstemp(r->path);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, script, strlen(script)), (ssize_t)strlen(script));
        close(fd);
        snprintf(model, sizeof model, "script:%s", r->path);
        o.model = model;
    } else {
        o.model = script;
    }
    rc = engine_open(&o, &r->e, &err);
    ck_assert_msg(rc == 0, "engine_open: %d %s", rc, err.msg);
    rc = engine_load(r->e, NULL, NULL, &err);
    ck_assert_msg(rc == 0, "engine_load: %d %s", rc, err.msg);
    if (r->path[0])
        unlink(r->path);
    for (uint32_t i = 0; i < ENGRUN_STREAMS; i++)
        atomic_init(&r->credit[i].records, 1u << 30);
}

static void *run_thread(void *arg) {
    struct engrun *r = arg;

    r->result = engine_run(r->e);
    return NULL;
}

void engrun_attach(struct engrun *r) {
    struct stream_sink sink = { .ctx = r, .publish = on_publish, .refresh = on_refresh, .credit = r->credit };

    engine_set_sink(r->e, &sink);
}

void engrun_start(struct engrun *r) {
    engrun_attach(r);
    ck_assert_int_eq(pthread_create(&r->thread, NULL, run_thread, r), 0);
    r->running = true;
}

int engrun_close(struct engrun *r) {
    if (r->running) {
        engine_stop(r->e, 0);
        pthread_join(r->thread, NULL);
    }
    engine_close(r->e);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    return r->result;
}

struct sched_req engrun_req(uint32_t stream, const uint32_t *ids, uint32_t n_ids, uint32_t max_tokens) {
    return (struct sched_req){ .stream = { .index = stream, .gen = 1 }, .uid = 1000, .ids = ids, .n_ids = n_ids,
                               .max_tokens = max_tokens, .quiet = true,
                               .sampling = { .top_p = 1.0f, .repetition = 1.0f } };
}

void engrun_submit(struct engrun *r, struct sched_req *req) {
    int rc = engine_submit(r->e, req);

    ck_assert_msg(rc == 0, "engine_submit: %d", rc);
}

static void wait_for(struct engrun *r, bool (*done)(const struct engrun_stream *s, uint32_t n), uint32_t stream,
                     uint32_t n, const char *what) {
    uint64_t last;
    int rc = 0;

    pthread_mutex_lock(&r->lock);
    do { /* a machine with much else to do is slow, and no failure */
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += getenv("GLMD_EMULATED") ? 10 * SILENCE_S : SILENCE_S;
        last = r->published;
        for (rc = 0; !done(&r->s[stream], n) && rc == 0;)
            rc = pthread_cond_timedwait(&r->changed, &r->lock, &until);
    } while (rc != 0 && r->published != last);
    pthread_mutex_unlock(&r->lock);
    ck_assert_msg(rc == 0, "stream %u: no %s (%u) in time", stream, what, n);
}

static bool has_end(const struct engrun_stream *s, uint32_t n) {
    (void)n;
    return s->ends != 0;
}

static bool has_tokens(const struct engrun_stream *s, uint32_t n) {
    return s->n_tokens >= n;
}

static bool has_gen_end(const struct engrun_stream *s, uint32_t gen) {
    return s->gen == gen && s->ends != 0;
}

const struct engrun_stream *engrun_wait_gen(struct engrun *r, uint32_t stream, uint32_t gen) {
    wait_for(r, has_gen_end, stream, gen, "END of that generation");
    return &r->s[stream];
}

const struct engrun_stream *engrun_wait_end(struct engrun *r, uint32_t stream) {
    wait_for(r, has_end, stream, 0, "END");
    return &r->s[stream];
}

void engrun_wait_tokens(struct engrun *r, uint32_t stream, uint32_t n) {
    wait_for(r, has_tokens, stream, n, "tokens");
}

uint32_t engrun_tokens(struct engrun *r, uint32_t stream) {
    uint32_t n;

    pthread_mutex_lock(&r->lock);
    n = r->s[stream].n_tokens;
    pthread_mutex_unlock(&r->lock);
    return n;
}

void engrun_credit(struct engrun *r, uint32_t stream, uint32_t records) {
    pthread_mutex_lock(&r->lock);
    r->hidden_credit[stream] += records;
    pthread_mutex_unlock(&r->lock);
    engine_kick(r->e);
}

void engrun_settle(struct engrun *r) {
    const char *what = "";
    struct engine_stats st;
    struct engine_info in;

    engine_get_info(r->e, &in);
    for (int i = 0; i < 1000 * SILENCE_S; i++) {
        engine_get_stats(r->e, &st);
        if (st.asleep && st.free_pages == in.n_pages && st.free_slots == in.n_slots)
            break;
        engrun_sleep_ms(1);
    }
    ck_assert_uint_eq(st.free_pages, in.n_pages);
    ck_assert_uint_eq(st.free_slots, in.n_slots);
    ck_assert_uint_eq(r->e->n_rolling, 0);
    ck_assert_uint_eq(r->e->n_held, 0);
    ck_assert_uint_eq(r->e->spill.n_fetching, 0);
    if (r->e->prefix)
        ck_assert_msg(prefix_check(r->e->prefix, &what) == 0, "%s", what);
}
