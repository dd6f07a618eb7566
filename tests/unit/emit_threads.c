/* SPDX-License-Identifier: MIT */
/* Engine, emit thread and io thread publish on the same connections at once: the records of every tag keep
 * their order, nothing is lost, and no stream sleeps for ever. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "emit_impl.h"
#include "emittest.h"
#include "leakcheck.h"

enum { CONNS = 3, PER_CONN = 3, TOKENS = 4000 };
static struct et_client clients[CONNS];
static struct stream_id ids_of[CONNS][PER_CONN];
static _Atomic bool engine_done;

static void *engine(void *ctx) {
    uint32_t sent[CONNS][PER_CONN] = {{0}};
    bool all = false;

    (void)ctx;
    while (!all) {
        struct stream_event ev[CONNS * PER_CONN];
        uint32_t n = 0;

        all = true;
        for (int i = 0; i < CONNS; i++)
            for (int k = 0; k < PER_CONN; k++) {
                struct stream_id id = ids_of[i][k];

                if (sent[i][k] > TOKENS)
                    continue;
                all = false;
                if (atomic_load(&et_sink.credit[id.index].records) < stream_token_records(0) &&
                    et_sink.refresh(et_sink.ctx, id, 0) < stream_token_records(0))
                    continue;
                ev[n++] = sent[i][k] < TOKENS ? et_token(id, sent[i][k]) : et_end(id, STREAM_END_LENGTH, 0);
                sent[i][k]++;
            }
        if (n)
            et_sink.publish(et_sink.ctx, ev, n);
    }
    engine_done = true;
    return NULL;
}

/* io refuses, resumes and asks all the while; readers read; the order of every tag must be whole. */
START_TEST(publishers_do_not_mix) {
    uint32_t next[CONNS][PER_CONN] = {{0}}, seq[CONNS][PER_CONN + 2] = {{0}}, refusals = 0, seen = 0,
             ended = 0;
    pthread_t t;

    et_begin((uint32_t)_i, false); /* 0: emit thread, 3: inline with io in the way */
    for (int i = 0; i < CONNS; i++) {
        et_open(&clients[i], 7, 16);
        for (int k = 0; k < PER_CONN; k++)
            ids_of[i][k] = et_accept(&clients[i], (uint64_t)k + 1, 0, false);
    }
    engine_done = false;
    ck_assert_int_eq(pthread_create(&t, NULL, engine, NULL), 0);
    for (uint32_t turn = 0; ended < CONNS * PER_CONN; turn++)
        for (int i = 0; i < CONNS; i++) {
            struct emit_conn_stats st;
            struct glmw_rec r;

            if (turn % 8 == 0 &&
                emit_conn_refuse(clients[i].conn, 99, -EBUSY, "a reason of more than 24 bytes") == 0)
                refusals++;
            if (turn % 64 == 0)
                emit_conn_get_stats(clients[i].conn, &st);
            while (et_take(&clients[i], &r)) {
                if (r.tag == 99) {
                    seen += r.type == GLMW_REC_END;
                    continue;
                }
                ck_assert_uint_eq(r.seq, seq[i][r.tag - 1]);
                seq[i][r.tag - 1]++;
                if (r.type == GLMW_REC_TOKEN) {
                    ck_assert_uint_eq(r.token, next[i][r.tag - 1]);
                    next[i][r.tag - 1]++;
                }
                if (r.type == GLMW_REC_END) {
                    ck_assert_uint_eq(next[i][r.tag - 1], TOKENS);
                    ended++;
                }
            }
            if (glmw_fetch32(&clients[i].view.d->credit_wanted))
                emit_conn_resume(clients[i].conn);
        }
    pthread_join(t, NULL);
    emit_stop(et_emit);
    for (int i = 0; i < CONNS; i++) {
        struct glmw_rec r;

        while (et_take(&clients[i], &r))
            seen += r.type == GLMW_REC_END;
        ck_assert_int_eq(emit_conn_error(clients[i].conn), 0);
        et_close(&clients[i]);
    }
    ck_assert_uint_gt(refusals, 0);
    ck_assert_uint_eq(seen, refusals);
    et_finish();
}
END_TEST

static void end_streams(const struct stream_id *id, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct stream_event ev = et_end(id[i], STREAM_END_LENGTH, 0);

        et_sink.publish(et_sink.ctx, &ev, 1);
    }
    while (et_retired < (int)n) {
        emit_take_retired(et_emit, et_on_retired, NULL);
        sched_yield();
    }
    et_retired = 0;
}

/* Of an event only what says something is handed over: all alternatives of a token, however many, and of its last words
 * every number, where tokens with other alternatives lay before. */
START_TEST(events_come_over_whole) {
    struct glmw_usage last = {0};
    struct et_client c;
    struct stream_id id;
    struct glmw_rec r;

    et_begin(0, false);
    et_open(&c, 10, 16);
    id = et_accept(&c, 1, STREAM_MAX_ALTS, false);
    for (uint32_t i = 0; i <= STREAM_MAX_ALTS; i++) {
        struct stream_event ev = et_token(id, i);

        ev.n_alts = (i * 11) % (STREAM_MAX_ALTS + 1); /* every number once, not in order */
        for (uint32_t k = 0; k < ev.n_alts; k++)
            ev.alts[k] = (struct stream_alt){1000 * i + k, (float)k};
        et_sink.publish(et_sink.ctx, &ev, 1);
    }
    end_streams(&id, 1);
    ck_assert(et_take(&c, &r) && r.type == GLMW_REC_ACCEPTED);
    for (uint32_t i = 0; i <= STREAM_MAX_ALTS; i++) {
        uint32_t n = (i * 11) % (STREAM_MAX_ALTS + 1), k = 0;

        ck_assert(et_take(&c, &r) && r.type == GLMW_REC_TOKEN);
        ck_assert_uint_eq(r.token, i);
        ck_assert_uint_eq(r.n_alts, n);
        while (k < n) {
            struct glmw_alts a;

            ck_assert(et_take(&c, &r) && r.type == GLMW_REC_ALTS);
            memcpy(&a, &r, sizeof a);
            for (uint32_t j = 0; j < GLMW_ALTS_PER_REC && k < n; j++, k++) {
                ck_assert_uint_eq(a.alt[j].token, 1000 * i + k);
                ck_assert(a.alt[j].logprob == (float)k);
            }
        }
    }
    ck_assert(et_take(&c, &r) && r.type == GLMW_REC_USAGE);
    memcpy(&last, &r, sizeof last);
    ck_assert_uint_eq(last.prompt_tokens, 3);
    ck_assert_uint_eq(last.completion_tokens, 9);
    ck_assert_uint_eq(last.tier_tokens | last.cached_tokens | last.queued | last.longest_gap, 0);
    ck_assert(et_take(&c, &r) && r.type == GLMW_REC_END);
    et_close(&c);
    et_finish();
}
END_TEST

/* ---- who publishes: the engine's thread itself, or the emit thread ---- */

/* Handed over is what is estimated to hold the engine up for 12 us a step longer than one bell: 48 streams of one
 * connection are not, 64 are; few of two are not, three sleeping clients are. When they have ended everything is as
 * before. */
START_TEST(costly_steps_are_handed_over) {
    struct stream_id id[ET_STREAMS];
    struct et_client c[3];
    uint64_t tag = 0;

    et_begin(8, false);
    for (int i = 0; i < 3; i++)
        et_open(&c[i], 10, 16);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 48; i++)
            id[i] = et_accept(&c[0], ++tag, 0, false);
        ck_assert(!et_sink.hands_over(et_sink.ctx));
        for (uint32_t i = 48; i < 64; i++)
            id[i] = et_accept(&c[0], ++tag, 0, false);
        ck_assert(et_sink.hands_over(et_sink.ctx));
        end_streams(id, 64);
        for (uint32_t i = 0; i < 16; i++)
            id[i] = et_accept(&c[i % 2], ++tag, 0, false);
        ck_assert(!et_sink.hands_over(et_sink.ctx));
        id[16] = et_accept(&c[2], ++tag, 0, false);
        ck_assert(et_sink.hands_over(et_sink.ctx));
        end_streams(id, 17);
        for (uint32_t i = 0; i < 30; i++)
            id[i] = et_accept(&c[i % 2], ++tag, 0, false);
        ck_assert(et_sink.hands_over(et_sink.ctx));
        end_streams(id, 30);
    }
    for (int i = 0; i < 3; i++)
        et_close(&c[i]);
    et_finish();
}
END_TEST

/* Handing over wakes a thread as a bell does, so it gains nothing for one client, however slow the machine is. Clients
 * without a request do not count; with one they do. */
START_TEST(one_client_is_told_directly) {
    struct stream_id id[16];
    struct et_client c[4];

    et_begin(1, false);
    for (int i = 0; i < 4; i++)
        et_open(&c[i], 10, 16);
    et_emit->pace = 4 * PACE_ONE;
    for (uint32_t i = 0; i < 12; i++) {
        id[i] = et_accept(&c[0], 1 + i, 0, false);
        ck_assert(!et_sink.hands_over(et_sink.ctx));
    }
    et_emit->pace = PACE_ONE / 4;
    id[12] = et_accept(&c[1], 1, 0, false);
    ck_assert(et_sink.hands_over(et_sink.ctx)); /* two are more than one, whatever it costs */
    end_streams(id + 12, 1);
    ck_assert(!et_sink.hands_over(et_sink.ctx));
    end_streams(id, 12);
    for (int i = 0; i < 4; i++)
        et_close(&c[i]);
    et_finish();
}
END_TEST

/* What publishing costs is measured, and corrects the estimate: a machine that is slower hands over what the estimate
 * allows, and one step in 64 shows whether it still is. */
START_TEST(what_it_costs_is_measured) {
    struct stream_event ev[ET_STREAMS];
    struct stream_id id[ET_STREAMS];
    struct et_client c;
    struct glmw_rec r;
    int direct = 0;

    ck_assert_uint_eq(emit_pace_next(256, 8000, 8000), 256);
    ck_assert_uint_gt(emit_pace_next(256, 8800, 8000), 256);
    ck_assert_uint_lt(emit_pace_next(256, 7200, 8000), 256);
    ck_assert_uint_eq(emit_pace_next(256, 1000000000, 8000), emit_pace_next(256, 32000, 8000)); /* one says little */
    et_measuring = true;
    et_begin(8, false);
    et_open(&c, 10, 16);
    for (uint32_t i = 0; i < ET_STREAMS; i++)
        id[i] = et_accept(&c, 1 + i, 0, false);
    et_emit->pace = 1;
    for (uint32_t step = 0; step < 3 * 64; step++) {
        if (step == 64) {
            ck_assert_uint_gt(et_emit->pace, 32); /* the least that it can have come to */
            et_emit->pace = 4 * PACE_ONE;
        }
        while (!spsc_is_drained(&et_emit->handover))
            sched_yield();
        direct += step >= 64 && !et_sink.hands_over(et_sink.ctx);
        for (uint32_t i = 0; i < ET_STREAMS; i++)
            ev[i] = et_token(id[i], 11);
        et_sink.publish(et_sink.ctx, ev, ET_STREAMS);
        while (et_take(&c, &r))
            ;
    }
    ck_assert_int_eq(direct, 2);
    end_streams(id, ET_STREAMS);
    et_close(&c);
    et_finish();
    et_measuring = false;
}
END_TEST

int main(void) {
    Suite *s = suite_create("emit_threads");
    TCase *tc = tcase_create("threads");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, publishers_do_not_mix, 0, 1);
    tcase_add_loop_test(tc, publishers_do_not_mix, 3, 4);
    tcase_add_test(tc, events_come_over_whole);
    tcase_add_test(tc, costly_steps_are_handed_over);
    tcase_add_test(tc, one_client_is_told_directly);
    tcase_add_test(tc, what_it_costs_is_measured);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
