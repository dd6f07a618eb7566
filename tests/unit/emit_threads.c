/* SPDX-License-Identifier: MIT */
/* Engine, emit thread and io thread publish on the same connections at once: the records of every tag keep
 * their order, nothing is lost, and no stream sleeps for ever. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

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
                    et_sink.refresh(et_sink.ctx, id) < stream_token_records(0))
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

int main(void) {
    Suite *s = suite_create("emit_threads");
    TCase *tc = tcase_create("threads");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, publishers_do_not_mix, 0, 1);
    tcase_add_loop_test(tc, publishers_do_not_mix, 3, 4);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
