/* SPDX-License-Identifier: MIT */
/* Requests through the running engine over the script backend: tokens, ends, interleaving, cancellation,
 * deadlines, limits, and one END per request whatever happens. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engrun.h"
#include "inbox.h"
#include "leakcheck.h"

#define HEAD "glmd-script 1\nvocab 300\ncontext 4096\nstop 299 298\n"

static const uint32_t PROMPT[3] = { 7, 8, 9 };

START_TEST(test_one_stream) {
    struct engrun r;
    struct sched_req q = engrun_req(3, PROMPT, 3, 0);
    const struct engrun_stream *s;
    uint32_t answer[3] = { 0, 0, 77 };

    engrun_open(&r, HEAD "request\ntokens 11 12 13\n", NULL);
    engrun_start(&r);
    q.quiet = false;
    q.answer = answer; /* with room for two of the three */
    q.answer_cap = 2;
    engrun_submit(&r, &q);
    s = engrun_wait_end(&r, 3);
    ck_assert_uint_eq(s->n_tokens, 3);
    ck_assert_uint_eq(s->tokens[0], 11);
    ck_assert_uint_eq(s->tokens[2], 13);
    ck_assert_uint_eq(s->firsts, 1);
    ck_assert(isnan(s->logprob));
    ck_assert_uint_eq(s->n_alts, 0);
    ck_assert_uint_eq(s->end.reason, STREAM_END_STOP);
    ck_assert_int_eq(s->end.status, 0);
    ck_assert_uint_eq(s->end.token, 299);
    ck_assert_uint_eq(s->end.first, 0);
    ck_assert_uint_eq(s->end.u.usage.prompt, 3);
    ck_assert_uint_eq(s->end.u.usage.completion, 4);
    ck_assert_uint_ge(s->n_progress, 1);
    ck_assert_uint_eq(s->progress.done, 3);
    ck_assert_uint_eq(s->progress.total, 3);
    ck_assert_uint_eq(q.n_answer, 3);
    ck_assert_uint_eq(answer[0], 11);
    ck_assert_uint_eq(answer[1], 12);
    ck_assert_uint_eq(answer[2], 77);
    ck_assert_uint_eq(q.ended, STREAM_END_STOP);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

START_TEST(test_logprobs) {
    struct engrun r;
    struct sched_req q = engrun_req(0, PROMPT, 3, 1);
    const struct engrun_stream *s;

    engrun_open(&r, HEAD "request\nlogits 0 5:2 6:1 7:0\n", NULL);
    engrun_start(&r);
    q.sampling.n_alts = 3;
    engrun_submit(&r, &q);
    s = engrun_wait_end(&r, 0);
    ck_assert_uint_eq(s->tokens[0], 5);
    ck_assert_uint_eq(s->n_alts, 3);
    ck_assert_uint_eq(s->alts[0].token, 5);
    ck_assert_uint_eq(s->alts[1].token, 6);
    ck_assert_uint_eq(s->alts[2].token, 7);
    ck_assert(fabsf(s->logprob - (2.0f - logf(expf(2) + expf(1) + 1))) < 1e-4f);
    ck_assert_uint_eq(s->end.reason, STREAM_END_LENGTH);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* Every stream gets its own answer although four run at once and the others queue. */
START_TEST(test_interleaved) {
    enum { N = 40 };
    struct engine_options o = { .max_seqs = 4, .max_streams = 64, .prefill_tokens = 64 };
    struct sched_req q[N];
    uint32_t ids[N][200];
    char text[8192];
    struct engrun r;
    size_t at = (size_t)snprintf(text, sizeof text, HEAD "step-us 100\nrequest\ntokens 1\n");

    for (uint32_t i = 0; i < N; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "request first %u\ntokens %u %u %u %u\n", 100 + i,
                               i + 1, i + 2, i + 3, i + 4);
    engrun_open(&r, text, &o);
    /* all of them before the first step, so that there is a queue however the threads are scheduled */
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t j = 0; j < 200; j++)
            ids[i][j] = j ? j : 100 + i;
        q[i] = engrun_req(i, ids[i], 1 + i * 5, 0);
        q[i].uid = i % 3;
        q[i].quiet = i % 2;
        engrun_submit(&r, &q[i]);
    }
    engrun_start(&r);
    for (uint32_t i = 0; i < N; i++) {
        const struct engrun_stream *s = engrun_wait_end(&r, i);

        ck_assert_uint_eq(s->n_tokens, 4);
        for (uint32_t j = 0; j < 4; j++)
            ck_assert_uint_eq(s->tokens[j], i + 1 + j);
        ck_assert_uint_eq(s->end.reason, STREAM_END_STOP);
        ck_assert_uint_eq(s->ends, 1);
        ck_assert_uint_eq(s->late, 0);
        ck_assert(!q[i].quiet || !s->n_progress);
    }
    ck_assert_uint_gt(r.s[38].max_place, 1);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

START_TEST(test_cancel_running) {
    struct engrun r;
    struct sched_req q = engrun_req(0, PROMPT, 3, 0);
    const struct engrun_stream *s;
    uint32_t then;

    engrun_open(&r, HEAD "step-us 20000\nrequest\ntokens 1\nrepeat\n", NULL);
    engrun_start(&r);
    engrun_submit(&r, &q);
    engrun_wait_tokens(&r, 0, 2);
    engine_cancel(r.e, q.stream);
    then = engrun_tokens(&r, 0);
    s = engrun_wait_end(&r, 0);
    /* the step in flight, and one made but not yet published */
    ck_assert_uint_le(s->n_tokens - then, 2);
    ck_assert_uint_eq(s->end.reason, STREAM_END_CANCELLED);
    ck_assert_int_eq(s->end.status, -ECANCELED);
    ck_assert_uint_eq(s->ends, 1);
    engrun_sleep_ms(50);
    ck_assert_uint_eq(s->late, 0);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* A prompt at 4 ms a token, in chunks of 512: a cancellation waits for a slice, not for the two seconds of a
 * chunk. */
START_TEST(test_cancel_in_prompt) {
    static uint32_t ids[4000];
    struct engrun r;
    struct sched_req q = engrun_req(0, ids, 4000, 0);
    uint64_t asked;

    engrun_open(&r, HEAD "layers 64\nprefill-us 4000\nrequest\ntokens 1\n", NULL);
    engrun_start(&r);
    engrun_submit(&r, &q);
    engrun_sleep_ms(150);
    asked = engrun_now_ns();
    engine_cancel(r.e, q.stream);
    engrun_wait_end(&r, 0);
    ck_assert_uint_lt(engrun_now_ns() - asked, 1500000000);
    ck_assert_uint_eq(r.s[0].n_tokens, 0);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* The same request ended, cancelled late, and an unknown one: nothing happens. */
START_TEST(test_cancel_late) {
    struct engrun r;
    struct sched_req q = engrun_req(0, PROMPT, 3, 0), q2;

    engrun_open(&r, HEAD "request\ntokens 1 2\n", NULL);
    engrun_start(&r);
    engrun_submit(&r, &q);
    engrun_wait_end(&r, 0);
    engine_cancel(r.e, q.stream);
    engine_cancel(r.e, (struct stream_id){ .index = 9, .gen = 5 });
    engine_cancel(r.e, (struct stream_id){ .index = 1u << 30, .gen = 5 });
    engine_cancel(r.e, (struct stream_id){ .index = 1, .gen = 0 });
    q2 = engrun_req(0, PROMPT, 3, 0);
    q2.stream.gen = 2;
    engrun_submit(&r, &q2);
    ck_assert_uint_eq(engrun_wait_gen(&r, 0, 2)->end.reason, STREAM_END_STOP);
    ck_assert_uint_eq(r.total_ends, 2);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

START_TEST(test_deadlines) {
    struct engine_options o = { .max_seqs = 1 };
    struct engrun r;
    struct sched_req q[3];
    uint64_t now;

    engrun_open(&r, HEAD "step-us 5000\nrequest\ntokens 1\nrepeat\n", &o);
    engrun_start(&r);
    now = engrun_now_ns();
    for (uint32_t i = 0; i < 3; i++) {
        q[i] = engrun_req(i, PROMPT, 3, 0);
        q[i].deadline_ns = now + (i == 1 ? 60000000u : 200000000u);
        engrun_submit(&r, &q[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        const struct engrun_stream *s = engrun_wait_end(&r, i);

        ck_assert_uint_eq(s->end.reason, STREAM_END_DEADLINE);
        ck_assert_int_eq(s->end.status, -ETIMEDOUT);
        ck_assert_uint_ge(s->end.t_ns, q[i].deadline_ns);
        ck_assert_uint_lt(s->end.t_ns, q[i].deadline_ns + 2000000000u);
        ck_assert(i == 0 ? s->n_tokens > 2 : s->n_tokens == 0); /* what was made is kept, the rest queued */
    }
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

START_TEST(test_limits) {
    struct engine_options o = { .context_tokens = 64, .n_pages = 1 };
    static const uint32_t ids[64] = { 1 };
    struct engrun r;
    struct sched_req q[4];

    engrun_open(&r, HEAD "request\ntokens 1\nrepeat\n", &o);
    engrun_start(&r);
    q[0] = engrun_req(0, ids, 60, 0);  /* the context leaves 4 */
    q[1] = engrun_req(1, ids, 60, 3);
    q[2] = engrun_req(2, ids, 63, 99); /* the last place */
    for (uint32_t i = 0; i < 3; i++)
        engrun_submit(&r, &q[i]);
    for (uint32_t i = 0; i < 3; i++) {
        const struct engrun_stream *s = engrun_wait_end(&r, i);

        ck_assert_uint_eq(s->n_tokens, i == 0 ? 4 : i == 1 ? 3 : 1);
        ck_assert_uint_eq(s->end.reason, i == 1 ? STREAM_END_LENGTH : STREAM_END_CONTEXT);
    }
    q[3] = engrun_req(3, ids, 64, 1);
    ck_assert_int_eq(engine_submit(r.e, &q[3]), -EOVERFLOW);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

START_TEST(test_refused) {
    struct engrun r;
    const uint32_t bad[2] = { 1, 300 };
    const float wrong[] = { NAN, -1.0f, INFINITY, 1e9f };
    const struct sched_bias nan_bias = { .token = 1, .bias = NAN }, far = { .token = 300, .bias = 1 };
    const struct sched_text empty = { .s = "", .len = 0 };
    struct sched_req q = engrun_req(0, bad, 2, 1);

    engrun_open(&r, HEAD "request\ntokens 1\n", NULL);
    ck_assert_int_eq(engine_submit(r.e, &q), -EINVAL);
    q = engrun_req(0, PROMPT, 0, 1);
    ck_assert_int_eq(engine_submit(r.e, &q), -EINVAL);
    q = engrun_req(256, PROMPT, 3, 1);
    ck_assert_int_eq(engine_submit(r.e, &q), -EINVAL);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        q = engrun_req(0, PROMPT, 3, 1);
        q.sampling.temperature = wrong[i];
        ck_assert_int_eq(engine_submit(r.e, &q), -EINVAL);
        q = engrun_req(0, PROMPT, 3, 1);
        q.sampling.top_p = wrong[i];
        ck_assert_int_eq(engine_submit(r.e, &q), -EINVAL);
    }
    q = engrun_req(0, PROMPT, 3, 1);
    q.sampling.bias = &nan_bias;
    q.sampling.n_bias = 1;
    ck_assert_int_eq(engine_submit(r.e, &q), -EINVAL);
    q.sampling.bias = &far;
    ck_assert_int_eq(engine_submit(r.e, &q), -EINVAL);
    q.sampling.n_bias = SCHED_MAX_BIAS + 1;
    ck_assert_int_eq(engine_submit(r.e, &q), -E2BIG);
    q = engrun_req(0, PROMPT, 3, 1);
    q.stops = &empty;
    q.n_stops = 1;
    ck_assert_int_eq(engine_submit(r.e, &q), -EINVAL);
    q.n_stops = 17;
    ck_assert_int_eq(engine_submit(r.e, &q), -E2BIG);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

START_TEST(test_queue_full) {
    struct engine_options o = { .max_seqs = 1, .max_streams = 4 };
    struct engrun r;
    struct sched_req q[5];

    engrun_open(&r, HEAD "step-us 2000\nrequest\ntokens 1\nrepeat\n", &o);
    engrun_start(&r);
    for (uint32_t i = 0; i < 4; i++) {
        q[i] = engrun_req(i, PROMPT, 3, 0);
        engrun_submit(&r, &q[i]);
    }
    q[4] = engrun_req(0, PROMPT, 3, 0);
    q[4].stream.gen = 2;
    ck_assert_int_eq(engine_submit(r.e, &q[4]), -EAGAIN);
    engine_cancel(r.e, q[3].stream);
    engrun_wait_end(&r, 3);
    q[4].stream.index = 3;
    engrun_submit(&r, &q[4]);
    ck_assert_int_eq(engrun_close(&r), 0);
    ck_assert_uint_eq(r.total_ends, 5); /* closing ended the other four */
    ck_assert_uint_eq(r.s[0].end.reason, STREAM_END_DRAIN);
    ck_assert_int_eq(r.s[0].end.status, -ESHUTDOWN);
}
END_TEST

START_TEST(test_drain_finishes) {
    struct engrun r;
    struct sched_req q = engrun_req(0, PROMPT, 3, 20), q2 = engrun_req(1, PROMPT, 3, 20);

    engrun_open(&r, HEAD "step-us 2000\nrequest\ntokens 1\nrepeat\n", NULL);
    engrun_start(&r);
    engrun_submit(&r, &q);
    engine_stop(r.e, engrun_now_ns() + 5000000000u);
    ck_assert_int_eq(engine_submit(r.e, &q2), -ESHUTDOWN);
    ck_assert_uint_eq(engrun_wait_end(&r, 0)->end.reason, STREAM_END_LENGTH);
    pthread_join(r.thread, NULL); /* by itself: nothing is left */
    r.running = false;
    ck_assert_int_eq(engrun_close(&r), 0);
    ck_assert_uint_eq(r.total_ends, 1);
}
END_TEST

/* An idle engine does not wake up. */
START_TEST(test_idle) {
    struct engrun r;
    struct sched_req q = engrun_req(0, PROMPT, 3, 0);
    struct engine_stats a, b;

    engrun_open(&r, HEAD "request\ntokens 1\n", NULL);
    engrun_start(&r);
    engrun_submit(&r, &q);
    engrun_wait_end(&r, 0);
    do {
        engrun_sleep_ms(10);
        engine_get_stats(r.e, &a);
    } while (!a.asleep);
    engrun_sleep_ms(300);
    engine_get_stats(r.e, &b);
    ck_assert_uint_eq(a.sleeps, b.sleeps);
    ck_assert_uint_eq(a.heartbeat_ns, b.heartbeat_ns);
    ck_assert_uint_eq(b.asleep, 1);
    ck_assert_uint_eq(b.running, 0);
    ck_assert_uint_eq(b.free_slots, 8);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* While a long prompt is read, a running stream keeps getting tokens. */
START_TEST(test_prompt_beside_decode) {
    static uint32_t ids[2000];
    struct engrun r;
    struct sched_req a = engrun_req(0, PROMPT, 3, 0), b = engrun_req(1, ids, 2000, 1);
    uint32_t before, after;

    engrun_open(&r, HEAD "layers 32\nprefill-us 100\nstep-us 2000\nrequest\ntokens 1\nrepeat\n", NULL);
    engrun_start(&r);
    engrun_submit(&r, &a);
    engrun_wait_tokens(&r, 0, 5);
    before = engrun_tokens(&r, 0);
    engrun_submit(&r, &b); /* 200 ms of device time */
    engrun_wait_end(&r, 1);
    after = engrun_tokens(&r, 0);
    /* half of the device: about 100 steps on a quiet machine; chunks in one piece would leave a handful */
    ck_assert_uint_gt(after - before, 12);
    ck_assert_uint_lt(r.s[1].end.u.usage.prefill_ns, 10000000000u);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* A word to a generation that is long gone, said late by another thread, does not wipe out the one to its
 * successor. */
START_TEST(test_cancel_stale) {
    _Atomic uint32_t cells[2];
    struct inbox ib;

    atomic_init(&cells[0], 0);
    atomic_init(&cells[1], 0);
    inbox_init(&ib, cells, 2);
    inbox_cancel(&ib, (struct stream_id){ .index = 1, .gen = 6 });
    inbox_cancel(&ib, (struct stream_id){ .index = 1, .gen = 5 });
    ck_assert(inbox_cancelled(&ib, (struct stream_id){ .index = 1, .gen = 6 }));
    inbox_cancel(&ib, (struct stream_id){ .index = 1, .gen = 7 });
    ck_assert(inbox_cancelled(&ib, (struct stream_id){ .index = 1, .gen = 7 }));
    ck_assert(!inbox_cancelled(&ib, (struct stream_id){ .index = 1, .gen = 6 }));
    ck_assert(!inbox_cancelled(&ib, (struct stream_id){ .index = 0, .gen = 6 }));
    inbox_cancel(&ib, (struct stream_id){ .index = 0, .gen = UINT32_MAX });
    inbox_cancel(&ib, (struct stream_id){ .index = 0, .gen = 1 }); /* the numbers begin anew */
    ck_assert(inbox_cancelled(&ib, (struct stream_id){ .index = 0, .gen = 1 }));
}
END_TEST

/* A lone stream's steps go without any housekeeping; whatever happens meanwhile is seen by the next step all the
 * same: a request, its end, a cancellation, a deadline, the drain. */
START_TEST(test_calm_sees_all) {
    struct engrun r;
    struct sched_req a = engrun_req(0, PROMPT, 3, 0), b = engrun_req(1, PROMPT, 3, 3),
                     c = engrun_req(2, PROMPT, 3, 0), d = engrun_req(3, PROMPT, 3, 0);
    uint32_t then;

    engrun_open(&r, HEAD "step-us 5000\nrequest\ntokens 1\nrepeat\n", NULL);
    engrun_start(&r);
    engrun_submit(&r, &a);
    engrun_wait_tokens(&r, 0, 5);
    engrun_submit(&r, &b);
    then = engrun_tokens(&r, 0);
    engrun_wait_end(&r, 1);
    ck_assert_uint_eq(r.s[1].n_tokens, 3);
    ck_assert_uint_le(engrun_tokens(&r, 0) - then, 40); /* 5 on a quiet machine */
    engrun_wait_tokens(&r, 0, engrun_tokens(&r, 0) + 5);
    engine_cancel(r.e, a.stream);
    then = engrun_tokens(&r, 0);
    engrun_wait_end(&r, 0);
    ck_assert_uint_le(r.s[0].n_tokens - then, 2);
    c.deadline_ns = engrun_now_ns() + 150000000u;
    engrun_submit(&r, &c);
    engrun_wait_end(&r, 2);
    ck_assert_uint_eq(r.s[2].end.reason, STREAM_END_DEADLINE);
    ck_assert_uint_ge(r.s[2].end.t_ns, c.deadline_ns);
    ck_assert_uint_le(r.s[2].n_tokens, 31);
    engrun_submit(&r, &d);
    engrun_wait_tokens(&r, 3, 5);
    engine_stop(r.e, engrun_now_ns() + 50000000u);
    engrun_wait_end(&r, 3);
    ck_assert_uint_eq(r.s[3].end.reason, STREAM_END_DRAIN);
    ck_assert_int_eq(engrun_close(&r), 0);
    ck_assert_uint_eq(r.total_ends, 4);
}
END_TEST

/* A layer that takes longer than the prefill can ever be owed at once is not put off for ever: half a second
 * for each of two. The other answer goes on meanwhile: a prompt that waits for its end, twenty seconds, is caught
 * however slow the machine is. */
START_TEST(test_slow_layers) {
    static uint32_t ids[512];
    struct engrun r;
    struct sched_req a = engrun_req(0, PROMPT, 3, 0), b = engrun_req(1, ids, 512, 1);

    engrun_open(&r, HEAD "layers 2\nprefill-us 2000\nstep-us 5000\nrequest\ntokens 1\nrepeat\n", NULL);
    engrun_start(&r);
    engrun_submit(&r, &a);
    engrun_wait_tokens(&r, 0, 5);
    engrun_submit(&r, &b);
    engrun_wait_end(&r, 1);
    pthread_mutex_lock(&r.lock);
    ck_assert_uint_eq(r.s[1].n_tokens, 1);
    ck_assert_msg(!r.s[0].ends, "the prompt was read when the answer beside it had ended");
    pthread_mutex_unlock(&r.lock);
    ck_assert_int_eq(engrun_close(&r), 0);
}
END_TEST

/* Four threads submit and cancel at random over 48 stream places; each request has exactly one END. */
enum { W_THREADS = 4, W_PER = 12, W_ROUNDS = 25 };
struct worker {
    struct engrun *r;
    unsigned seed;
    uint32_t base, submitted;
};

static void *random_client(void *arg) {
    struct worker *w = arg;
    struct sched_req q[W_PER];
    uint32_t gen[W_PER] = { 0 };

    for (uint32_t k = 0; k < W_ROUNDS * W_PER; k++) {
        uint32_t i = (uint32_t)rand_r(&w->seed) % W_PER, s = w->base + i;

        if (gen[i]) {
            pthread_mutex_lock(&w->r->lock);
            while (w->r->s[s].gen != gen[i] || !w->r->s[s].ends) {
                pthread_mutex_unlock(&w->r->lock);
                if (rand_r(&w->seed) % 3 == 0)
                    engine_cancel(w->r->e, q[i].stream);
                engrun_sleep_ms(1);
                pthread_mutex_lock(&w->r->lock);
            }
            pthread_mutex_unlock(&w->r->lock);
        }
        q[i] = engrun_req(s, PROMPT, 1 + (uint32_t)rand_r(&w->seed) % 3, (uint32_t)rand_r(&w->seed) % 6);
        q[i].stream.gen = ++gen[i];
        q[i].uid = (uint32_t)rand_r(&w->seed) % 3;
        q[i].quiet = rand_r(&w->seed) % 2;
        if (rand_r(&w->seed) % 4 == 0)
            q[i].deadline_ns = engrun_now_ns() + (uint64_t)rand_r(&w->seed) % 3000000;
        while (engine_submit(w->r->e, &q[i]) == -EAGAIN)
            engrun_sleep_ms(1);
        w->submitted++;
        if (rand_r(&w->seed) % 3 == 0)
            engine_cancel(w->r->e, q[i].stream);
        if (rand_r(&w->seed) % 8 == 0)
            engine_kick(w->r->e);
    }
    for (uint32_t i = 0; i < W_PER; i++)
        if (gen[i])
            for (;;) {
                bool done;

                pthread_mutex_lock(&w->r->lock);
                done = w->r->s[w->base + i].gen == gen[i] && w->r->s[w->base + i].ends;
                pthread_mutex_unlock(&w->r->lock);
                if (done)
                    break;
                engrun_sleep_ms(1);
            }
    return NULL;
}

START_TEST(test_random_schedule) {
    struct engine_options o = { .max_seqs = 3, .max_streams = 48 };
    struct worker w[W_THREADS];
    pthread_t t[W_THREADS];
    struct engine_stats st;
    struct engrun r;
    uint32_t total = 0;

    engrun_open(&r, HEAD "step-us 50\nrequest\ntokens 1 2 3 4 5 6 7 8\n", &o);
    engrun_start(&r);
    for (uint32_t i = 0; i < W_THREADS; i++) {
        w[i] = (struct worker){ .r = &r, .seed = 17 + i, .base = i * W_PER };
        ck_assert_int_eq(pthread_create(&t[i], NULL, random_client, &w[i]), 0);
    }
    for (uint32_t i = 0; i < W_THREADS; i++) {
        pthread_join(t[i], NULL);
        total += w[i].submitted;
    }
    engrun_sleep_ms(20);
    engine_get_stats(r.e, &st);
    ck_assert_uint_eq(r.total_ends, total);
    for (uint32_t i = 0; i < W_THREADS * W_PER; i++) {
        ck_assert_uint_le(r.s[i].ends, 1);
        ck_assert_uint_eq(r.s[i].late, 0);
    }
    ck_assert_uint_eq(st.running, 0);
    ck_assert_uint_eq(st.queued, 0);
    ck_assert_uint_eq(st.free_slots, 3);
    ck_assert_int_eq(engrun_close(&r), 0);
    ck_assert_uint_eq(r.total_ends, total);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_stream");
    TCase *tc = tcase_create("stream");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_one_stream);
    tcase_add_test(tc, test_logprobs);
    tcase_add_test(tc, test_interleaved);
    tcase_add_test(tc, test_cancel_running);
    tcase_add_test(tc, test_cancel_in_prompt);
    tcase_add_test(tc, test_cancel_late);
    tcase_add_test(tc, test_deadlines);
    tcase_add_test(tc, test_limits);
    tcase_add_test(tc, test_refused);
    tcase_add_test(tc, test_queue_full);
    tcase_add_test(tc, test_drain_finishes);
    tcase_add_test(tc, test_idle);
    tcase_add_test(tc, test_prompt_beside_decode);
    tcase_add_test(tc, test_cancel_stale);
    tcase_add_test(tc, test_calm_sees_all);
    tcase_add_test(tc, test_slow_layers);
    tcase_add_test(tc, test_random_schedule);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
