/* SPDX-License-Identifier: MIT */
/* Kept streams move between connections, which come and go, while the engine publishes and the emit thread
 * works: no record is lost, doubled or out of order, each tag has one END, and no freed connection is touched
 * (the address sanitizer would tell). Then the store alone, record by record. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emit_impl.h"
#include "emittest.h"
#include "ipctest.h"
#include "leakcheck.h"

enum { STREAMS = 6, TOKENS = 6000, SLOTS = 3 };

static struct et_client clients[SLOTS];
static struct stream_id ids[STREAMS];
static uint32_t seq_of[STREAMS];  /* next record wanted */
static uint32_t next_of[STREAMS]; /* next token wanted */
static uint64_t tag_of[STREAMS];
static int at_of[STREAMS]; /* the client that has it, -1 = nobody */
static bool ended[STREAMS];
static _Atomic bool gone[STREAMS];
static _Atomic uint32_t moves;

enum { MOVES = 24 }; /* before any stream ends, however the threads are scheduled */

static void *engine(void *ctx) {
    uint32_t sent[STREAMS] = {0};
    bool all = false;

    (void)ctx;
    while (!all) {
        struct stream_event ev[STREAMS + 1];
        uint32_t n = 0;

        all = true;
        for (int i = 0; i < STREAMS; i++) {
            if (sent[i] > TOKENS)
                continue;
            all = false;
            if (sent[i] == TOKENS - 1 && atomic_load(&moves) < MOVES)
                continue;
            if (atomic_load(&et_sink.credit[ids[i].index].records) < stream_token_records(0) &&
                et_sink.refresh(et_sink.ctx, ids[i], 0) < stream_token_records(0))
                continue;
            ev[n++] = sent[i] < TOKENS ? et_token(ids[i], sent[i]) : et_end(ids[i], STREAM_END_LENGTH, 0);
            if (sent[i]++ == TOKENS - 1) { /* the last token and the end in one step */
                ev[n++] = et_end(ids[i], STREAM_END_LENGTH, 0);
                sent[i]++;
            }
            if (n >= STREAMS)
                break;
        }
        if (n)
            et_sink.publish(et_sink.ctx, ev, n);
        if (n == 0 || sent[0] % 16 == 0) { /* io comes to move something now and then */
            struct timespec ts = {.tv_nsec = 20000};

            nanosleep(&ts, NULL);
        }
    }
    return NULL;
}

static void on_retired(void *ctx, void *owner) {
    (void)ctx;
    atomic_store(&gone[(uintptr_t)owner - 1], true);
    et_on_retired(ctx, owner);
}

static int stream_of_tag(uint64_t tag) {
    for (int i = 0; i < STREAMS; i++)
        if (tag_of[i] == tag)
            return i;
    return -1;
}

/* Everything this client can read now. A tag that lost its stream gets ERROR, USAGE and END in its turn. */
static void read_all(int k) {
    struct glmw_rec r;

    while (et_take(&clients[k], &r)) {
        int i = stream_of_tag(r.tag);

        if (i < 0 || at_of[i] != k)
            continue; /* the last words of a tag that is no more */
        if (r.type == GLMW_REC_ACCEPTED) {
            ck_assert_uint_eq(r.seq, seq_of[i] - 1);
            continue;
        }
        ck_assert_msg(r.seq == seq_of[i], "stream %d: seq %u instead of %u", i, r.seq, seq_of[i]);
        seq_of[i]++;
        if (r.type == GLMW_REC_TOKEN)
            ck_assert_uint_eq(r.token, next_of[i]++);
        if (r.type == GLMW_REC_END) {
            ck_assert_msg(next_of[i] == TOKENS, "stream %d: %u tokens, END %d reason %u seq %u", i,
                          next_of[i], r.u.end.status, r.u.end.reason, r.seq);
            ck_assert(!ended[i]);
            ended[i] = true;
        }
    }
    if (glmw_fetch32(&clients[k].view.d->credit_wanted))
        emit_conn_resume(clients[k].conn);
}

static void detach(int i, int status) {
    emit_stream_detach(et_emit, ids[i], status, "taken away for the sake of this test");
    at_of[i] = -1;
}

/* False: what it needs has fallen out, which the test does not let happen, or there is no room. */
static void attach(int i, int k, uint64_t tag) {
    struct emit_accept a = {.tag = tag, .stream_id = 1000 + (uint64_t)i, .store = (uint32_t)i};
    int r = -ESTALE;

    if (!gone[i])
        r = emit_stream_attach(clients[k].conn, ids[i], &a, seq_of[i]);
    if (r == -ESTALE) {
        emit_take_retired(et_emit, on_retired, NULL);
        ck_assert(gone[i]);
        a.owner = (void *)(uintptr_t)(i + 1);
        r = emit_conn_replay(clients[k].conn, &a, seq_of[i], &ids[i]);
        gone[i] = r != 0;
    }
    if (r == -ENOBUFS || r == -EBUSY)
        return;
    ck_assert_msg(r == 0, "stream %d from %u: %d", i, seq_of[i], r);
    tag_of[i] = tag;
    at_of[i] = k;
}

static void reopen(int k) {
    for (int i = 0; i < STREAMS; i++)
        if (at_of[i] == k)
            detach(i, 0);
    emit_take_retired(et_emit, on_retired, NULL);
    et_close(&clients[k]);
    et_open(&clients[k], 7, 16);
}

START_TEST(streams_move_while_they_run) {
    struct ipc_rng rng = {.s = 4711 + (uint64_t)_i};
    uint64_t tags = 1;
    uint32_t left = STREAMS;
    pthread_t t;

    atomic_store(&moves, 0);

    et_begin((uint32_t)_i, false); /* 0: emit thread, 3: inline with io in the way */
    for (int k = 0; k < SLOTS; k++)
        et_open(&clients[k], 7, 16);
    for (int i = 0; i < STREAMS; i++) {
        struct emit_accept a = {.tag = tags,
                                .stream_id = 1000 + (uint64_t)i,
                                .store = (uint32_t)i,
                                .owner = (void *)(uintptr_t)(i + 1)};

        ck_assert_int_eq(emit_conn_accept(clients[i % SLOTS].conn, &a, &ids[i]), 0);
        emit_stream_bind(et_emit, ids[i], &(struct emit_bind){0});
        tag_of[i] = tags++;
        at_of[i] = i % SLOTS;
        seq_of[i] = 1;
        next_of[i] = 0;
        ended[i] = gone[i] = false;
    }
    ck_assert_int_eq(pthread_create(&t, NULL, engine, NULL), 0);
    while (left > 0) {
        int i = (int)ipc_below(&rng, STREAMS), k = (int)ipc_below(&rng, SLOTS);

        if (ipc_below(&rng, 20) == 0)
            reopen(k);
        if (!ended[i] && ipc_below(&rng, 2)) {
            atomic_fetch_add(&moves, 1);
            if (at_of[i] >= 0)
                detach(i, ipc_below(&rng, 2) ? -ECANCELED : 0);
            attach(i, k, tags++);
        }
        left = 0;
        for (int n = 0; n < SLOTS; n++)
            read_all(n);
        for (int n = 0; n < STREAMS; n++) {
            left += !ended[n];
            /* nobody keeps a stream for long: its store would lose what was not read */
            if (at_of[n] < 0 && !ended[n])
                attach(n, (int)ipc_below(&rng, SLOTS), tags++);
        }
    }
    pthread_join(t, NULL);
    emit_stop(et_emit);
    ck_assert_uint_ge(atomic_load(&moves), MOVES);
    for (int k = 0; k < SLOTS; k++) {
        ck_assert_int_eq(emit_conn_error(clients[k].conn), 0);
        et_close(&clients[k]);
    }
    et_finish();
}
END_TEST

static void *free_soon(void *held) {
    struct timespec ts = {.tv_nsec = 30000000};

    nanosleep(&ts, NULL);
    econn_unlock(held);
    return NULL;
}

/* A slow emit thread, thousands of tokens on the way to it, their client gone, and a new one with a small ring: it
 * waits for the thread, because what comes while the stream moves must fit its outbox. */
START_TEST(many_on_the_way) {
    enum { MANY = 3900, FIRST = 5 };
    static struct stream_event ev[MANY];
    struct emit_accept a = {.tag = 1, .stream_id = 1000, .owner = (void *)(uintptr_t)1};
    struct emit_accept b = {.tag = 2, .stream_id = 1000};
    struct glmw_rec r = {0};
    struct stream_id id, other;
    uint32_t want = 0;
    pthread_t t;

    et_begin(0, false);
    et_open(&clients[0], 13, 16);
    et_open(&clients[1], 7, 16);
    et_open(&clients[2], 7, 16);
    ck_assert_int_eq(emit_conn_accept(clients[0].conn, &a, &id), 0);
    emit_stream_bind(et_emit, id, &(struct emit_bind){0});
    other = et_accept(&clients[1], 9, 0, false);
    for (uint32_t i = 0; i < MANY; i++)
        ev[i] = et_token(id, i);
    et_sink.publish(et_sink.ctx, ev, FIRST);
    while (atomic_load(&et_emit->streams[id.index].on_the_way))
        sched_yield();
    econn_lock(clients[1].conn); /* the thread hangs here */
    et_sink.publish(et_sink.ctx, &(struct stream_event){.stream = other, .type = STREAM_EV_TOKEN}, 1);
    et_sink.publish(et_sink.ctx, ev + FIRST, MANY - FIRST);
    ck_assert(emit_stream_detach(et_emit, id, 0, NULL));
    ck_assert_uint_eq(atomic_load(&et_sink.credit[id.index].records), 0); /* there are enough of it */
    ck_assert_int_eq(pthread_create(&t, NULL, free_soon, clients[1].conn), 0);
    ck_assert_int_eq(emit_stream_attach(clients[2].conn, id, &b, 1), 0);
    pthread_join(t, NULL);
    while (atomic_load(&et_emit->streams[id.index].on_the_way)) /* nobody reads meanwhile */
        sched_yield();
    ev[0] = et_end(id, STREAM_END_LENGTH, 0);
    et_sink.publish(et_sink.ctx, ev, 1);
    while (r.type != GLMW_REC_END) {
        if (!et_take(&clients[2], &r)) {
            emit_conn_resume(clients[2].conn);
            continue;
        }
        if (r.type == GLMW_REC_TOKEN)
            ck_assert_uint_eq(r.token, want++);
    }
    ck_assert_int_eq(r.u.end.status, 0);
    ck_assert_uint_eq(want, MANY);
    ev[0] = et_end(other, STREAM_END_LENGTH, 0);
    et_sink.publish(et_sink.ctx, ev, 1);
    emit_stop(et_emit);
    for (int k = 0; k < SLOTS; k++)
        et_close(&clients[k]);
    et_finish();
}
END_TEST

/* ---- the store -------------------------------------------------------------------------------------------
 */

static struct estore st;
static uint8_t mem[4096];

static uint32_t text_len(uint32_t seq) {
    return seq * 37 % 300;
}

static struct glmw_rec rec(uint32_t seq, uint8_t type) {
    struct glmw_rec r = {.type = type, .seq = seq, .tag = 9};

    if (type == GLMW_REC_TEXT) {
        r.text_len = (uint16_t)text_len(seq);
        r.flags = r.text_len <= GLMW_INLINE_BYTES ? GLMW_RF_INLINE : 0;
    }
    return r;
}

static void add(uint32_t seq, uint8_t type) {
    struct glmw_rec r = rec(seq, type);
    char text[300];

    memset(text, (int)seq, sizeof text);
    estore_add(&st, &r, text);
}

/* Whatever is found comes out as it went in, up to the last; older ones are not found. */
START_TEST(store_keeps_the_last) {
    st = (struct estore){.buf = mem, .cap = sizeof mem};
    estore_reset(&st);
    for (uint32_t n = 1; n <= 500; n++) {
        struct estore_at at;
        uint32_t oldest = 0;

        add(n, GLMW_REC_TEXT);
        for (uint32_t from = 1; from <= n; from++) {
            if (!estore_find(&st, from, &at)) {
                ck_assert_uint_eq(oldest, 0);
                continue;
            }
            oldest = oldest ? oldest : from;
            ck_assert_uint_eq(at.seq, from);
            if (from != oldest && from != n)
                continue;
            for (; at.seq <= n; at.seq++) {
                struct glmw_rec r, want = rec(at.seq, GLMW_REC_TEXT);
                uint8_t text[GLMW_SPAN_MAX];

                at.pos += estore_read(&st, at.pos, &r, text);
                ck_assert_int_eq(memcmp(&r, &want, sizeof r), 0);
                for (uint32_t i = 0; i < r.text_len && !(r.flags & GLMW_RF_INLINE); i++)
                    ck_assert_uint_eq(text[i], (uint8_t)at.seq);
            }
        }
        ck_assert(estore_find(&st, n + 1, &at));
        ck_assert(!estore_find(&st, n + 2, &at));
        ck_assert(n < 8 || oldest > 0);
        ck_assert_uint_ge(n - oldest + 1, n < 10 ? 1 : 10); /* no more than is needed falls out */
    }
}
END_TEST

/* The alternatives of a token are skipped by whoever asks for one of them, wherever they lie. */
START_TEST(store_goes_on_behind_alternatives) {
    struct estore_at at;

    st = (struct estore){.buf = mem, .cap = sizeof mem};
    estore_reset(&st);
    for (uint32_t seq = 1; seq <= 300; seq++)
        add(seq, seq % 4 == 1 ? GLMW_REC_TOKEN : GLMW_REC_ALTS);
    for (uint32_t seq = 300 - 60; seq <= 300; seq++) {
        ck_assert(estore_find(&st, seq, &at));
        ck_assert_uint_eq(at.seq, (seq + 2) / 4 * 4 + 1);
    }
    /* 64 records fit; the oldest may be one of them without its token */
    ck_assert(!estore_find(&st, 300 - 64, &at));
}
END_TEST

int main(void) {
    Suite *s = suite_create("emit_move");
    TCase *tc = tcase_create("move");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, streams_move_while_they_run, 0, 1);
    tcase_add_loop_test(tc, streams_move_while_they_run, 3, 5);
    tcase_add_test(tc, many_on_the_way);
    tcase_add_test(tc, store_keeps_the_last);
    tcase_add_test(tc, store_goes_on_behind_alternatives);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
