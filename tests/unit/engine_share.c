/* SPDX-License-Identifier: MIT */
/* Several requests in one engine, its rounds driven by hand: prompts that share a chunk, one of which ends in the
 * middle; seats that are given up and come back; the queue's bound. On nano with the cpu backend, so that every
 * answer is compared, id by id, with the one the request gets alone. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "engine_priv.h"
#include "engrun.h"
#include "ipctest.h"
#include "leakcheck.h"

enum { N = 5, OUT = 12 };

static struct engrun r;
static uint32_t prompts[N][800], lengths[N] = { 30, 64, 129, 7, 700 };
static uint32_t alone[N][OUT];

static void open_nano(struct engine_options o) {
    o.context_tokens = o.context_tokens ? o.context_tokens : 1024;
    o.threads = 1;
    engrun_open(&r, ckpt_model("nano"), &o);
    engrun_attach(&r);
}

static void close_nano(void) {
    struct engine_stats st;

    engine_count_stats(r.e);
    engine_get_stats(r.e, &st);
    ck_assert_uint_eq(st.running, 0);
    ck_assert_uint_eq(st.free_slots, r.e->kc.n_slots);
    ck_assert_uint_eq(st.free_pages, r.e->kc.n_pages);
    engrun_close(&r);
}

/* What is not free is the cache's. */
static void close_cached(void) {
    uint32_t pages, slots;

    ecache_available(r.e, &pages, &slots);
    ck_assert_uint_eq(pages, r.e->kc.n_pages);
    ck_assert_uint_eq(slots, r.e->kc.n_slots);
    engrun_close(&r);
}

static struct sched_req request(uint32_t i) {
    return engrun_req(i, prompts[i], lengths[i], OUT);
}

static void submit(struct sched_req *q) {
    ck_assert_int_eq(engine_submit(r.e, q), 0);
}

static void rounds(uint32_t n) {
    while (n--)
        ck_assert_int_ge(engine_round(r.e, false), 0);
}

static void round_until_end(uint32_t stream) {
    for (uint32_t i = 0; !r.s[stream].ends; i++) {
        rounds(1);
        ck_assert_uint_lt(i, 100000);
    }
}

static void same_as_alone(uint32_t i) {
    ck_assert_uint_eq(r.s[i].ends, 1);
    ck_assert_uint_eq(r.s[i].n_tokens, OUT);
    ck_assert_mem_eq(r.s[i].tokens, alone[i], sizeof alone[i]);
}

static uint32_t slots_used(void) {
    return mem_slot_pool_read(&r.e->slots).used;
}

static void prepare(void) {
    struct ipc_rng rng = { .s = 5 };

    for (uint32_t i = 0; i < N; i++)
        for (uint32_t k = 0; k < lengths[i]; k++)
            prompts[i][k] = 20 + ipc_below(&rng, 200);
    open_nano((struct engine_options){ .max_seqs = 1 });
    for (uint32_t i = 0; i < N; i++) {
        struct sched_req q = request(i);

        q.ignore_eos = true;
        submit(&q);
        round_until_end(i);
        ck_assert_uint_eq(r.s[i].n_tokens, OUT);
        memcpy(alone[i], r.s[i].tokens, sizeof alone[i]);
    }
    close_nano();
}

/* ---- prompts in one chunk ---- */

START_TEST(short_prompts_share_a_chunk) {
    struct sched_req q[N];

    open_nano((struct engine_options){ .max_seqs = N });
    for (uint32_t i = 0; i < N; i++) {
        q[i] = request(i);
        q[i].ignore_eos = true;
        submit(&q[i]);
    }
    rounds(1);
    ck_assert_uint_eq(r.e->fill.n_parts, 4); /* those that end do not wait for the long one */
    ck_assert_uint_eq(r.e->fill.n_rows, 30 + 64 + 129 + 7);
    for (uint32_t i = 0; i < N; i++)
        round_until_end(i);
    for (uint32_t i = 0; i < N; i++)
        same_as_alone(i);
    close_nano();
}
END_TEST

/* Ended in the middle of a chunk it shares, a sequence keeps slot and pages until the chunk is done: its layers
 * still write there. The others do not notice; when all have ended the rest is not computed. */
START_TEST(ended_in_a_shared_chunk) {
    for (uint32_t victims = 1; victims <= 4; victims++) {
        struct sched_req q[4];
        uint32_t n = 0;

        open_nano((struct engine_options){ .max_seqs = 4, .cache_slots = 0 });
        for (uint32_t i = 0; i < 4; i++) {
            q[i] = request(i);
            q[i].ignore_eos = true;
            submit(&q[i]);
        }
        rounds(1); /* one program: how long they take is not known yet; on a fast machine two rounds are the chunk */
        ck_assert(r.e->fill.active);
        for (uint32_t i = 0; i < victims; i++)
            engine_cancel(r.e, q[i].stream);
        streams_take(r.e);
        if (victims < 4)
            ck_assert_uint_eq(slots_used(), 4);
        else
            ck_assert_uint_eq(slots_used(), 0);
        while (r.e->fill.active) {
            rounds(1);
            n++;
        }
        ck_assert_uint_eq(n == 0, victims == 4);
        ck_assert_uint_eq(slots_used(), 4 - victims);
        for (uint32_t i = 0; i < 4; i++) {
            round_until_end(i);
            if (i >= victims)
                same_as_alone(i);
            else
                ck_assert_uint_eq(r.s[i].end.reason, STREAM_END_CANCELLED);
        }
        close_nano();
    }
}
END_TEST

/* ---- seats ---- */

/* The reader of stream 2 stalls, with room for so many records; its seat, the only one, goes to the other, which ends.
 */
static void stall_and_serve(uint32_t other, uint32_t records) {
    uint32_t most = records + 1 - stream_token_records(0);
    static struct sched_req q[2]; /* the first lives on */

    q[0] = request(2);
    q[1] = request(other);
    open_nano((struct engine_options){ .max_seqs = 1, .cache_slots = 1, .park_ms = 1 });
    r.metered = true;
    q[0].ignore_eos = q[1].ignore_eos = true;
    atomic_store(&r.credit[2].records, records);
    submit(&q[0]);
    for (uint32_t i = 0; r.s[2].n_tokens < most && i < 1000; i++)
        rounds(1);
    submit(&q[1]);
    while (!r.s[other].ends) {
        engrun_sleep_ms(1);
        rounds(1);
        ck_assert_uint_eq(r.s[2].n_tokens, most);
    }
}

/* A reader that stalls for longer than park_ms gives its seat to one that waits; when it comes back, so does its
 * request, and goes on where it was. */
START_TEST(parked_and_back) {
    stall_and_serve(4, 6);
    same_as_alone(4);
    ck_assert_uint_eq(r.s[2].ends, 0);
    rounds(5);
    ck_assert_uint_eq(r.s[2].ends, 0);
    engrun_credit(&r, 2, 1000);
    round_until_end(2);
    same_as_alone(2);
    close_nano();
}
END_TEST

/* The moment its reader comes back it has its seat, if one is free: nobody would wake the engine for it. */
START_TEST(a_seat_at_once) {
    stall_and_serve(3, 6);
    ck_assert(sched_job_paused(r.e->sched, 2));
    engrun_credit(&r, 2, 1000);
    rounds(1);
    ck_assert(!sched_job_paused(r.e->sched, 2));
    ck_assert(!r.e->calm || r.e->n_batch == 1);
    round_until_end(2);
    same_as_alone(2);
    close_nano();
}
END_TEST

/* Room for a token is no reason to give a seat back: for half of what there ever was, and then as ever. */
START_TEST(not_for_one_token) {
    uint32_t n;

    stall_and_serve(3, 12);
    n = r.s[2].n_tokens;
    ck_assert_uint_eq(atomic_load(&r.credit[2].records), stream_token_records(0) - 1);
    engrun_credit(&r, 2, 3); /* 5: enough for 3 tokens */
    rounds(3);
    ck_assert(sched_job_paused(r.e->sched, 2));
    ck_assert_uint_eq(r.s[2].n_tokens, n);
    engrun_credit(&r, 2, 1);
    rounds(3);
    ck_assert(!sched_job_paused(r.e->sched, 2));
    ck_assert_uint_gt(r.s[2].n_tokens, n);
    engrun_credit(&r, 2, 1000);
    round_until_end(2);
    same_as_alone(2);
    close_nano();
}
END_TEST

/* An interactive request takes the seat of a background one, in its prompt or its answer; both answers are what
 * they are alone. */
START_TEST(background_gives_way) {
    for (uint32_t after = 0; after < 10; after += 4) { /* tokens of its answer */
        struct sched_req q[2] = { request(4), request(1) };
        bool paused = false;

        open_nano((struct engine_options){ .max_seqs = 1, .cache_slots = 1, .prefill_tokens = 128 });
        q[0].ignore_eos = q[1].ignore_eos = q[0].background = true;
        submit(&q[0]);
        do
            rounds(1);
        while (r.s[4].n_tokens < after);
        ck_assert_uint_eq(r.s[4].ends, 0);
        submit(&q[1]);
        for (uint32_t i = 0; !r.s[1].ends && i < 10000; i++) {
            rounds(1);
            paused |= sched_job_paused(r.e->sched, 4);
        }
        ck_assert(paused);
        ck_assert_uint_eq(r.s[4].ends, 0);
        round_until_end(4);
        same_as_alone(4);
        same_as_alone(1);
        close_nano();
    }
}
END_TEST

/* ---- memory ---- */

static void penalised(struct sched_req *q) {
    q->ignore_eos = true;
    q->max_tokens = 100;
    q->sampling.repetition = 1.3f;
    q->sampling.presence = 0.5f;
    q->sampling.frequency = 0.25f;
}

/* An interactive request that finds no pages gets those of a background one, which later reads again what the cache
 * did not keep, prompt and answer, and goes on as if nothing had happened; also when what it has said counts. */
START_TEST(background_gives_its_memory) {
    static struct engrun_stream undisturbed;
    struct sched_req q[2] = { request(4), request(2) };

    penalised(&q[0]);
    q[1].ignore_eos = q[1].no_cache = q[0].background = true;
    open_nano((struct engine_options){ .max_seqs = 2, .cache_slots = 2 });
    submit(&q[0]);
    round_until_end(4);
    undisturbed = r.s[4];
    ck_assert_uint_eq(undisturbed.n_tokens, 100);
    close_nano();
    /* in its prompt, at its answer's first token, and with states of the answer on the grid and off it */
    for (uint32_t k = 0; k < 5; k++) {
        static const uint32_t after[] = { 0, 1, 5, 70, 90 };
        struct prefix_counts c;
        bool away = false;

        open_nano((struct engine_options){ .max_seqs = 2, .cache_slots = k % 2 ? 2 : 16, .context_tokens = 1024,
                                           .n_pages = 4, .prefill_tokens = 128 });
        r.e->long_tokens = 128;
        submit(&q[0]);
        do
            rounds(1);
        while (after[k] ? r.s[4].n_tokens < after[k] : r.e->seqs[0].pos < 256);
        for (uint32_t again = 0; again < 2; again++) { /* the second time while it reads, or soon after */
            q[1].stream.gen = 1 + again;
            submit(&q[1]);
            for (uint32_t i = 0; (r.s[2].gen != 1 + again || !r.s[2].ends) && i < 100000; i++) {
                rounds(1);
                away |= r.e->seqs[0].away;
                prefix_get_counts(r.e->prefix, &c);
                ck_assert_uint_le(c.checkpoints, 4); /* all are of the one request */
            }
            same_as_alone(2);
            rounds(3);
        }
        ck_assert(away);
        ck_assert_uint_eq(r.s[4].ends, 0);
        round_until_end(4);
        prefix_get_counts(r.e->prefix, &c);
        ck_assert_uint_le(c.checkpoints, 4);
        ck_assert_uint_eq(r.s[4].n_tokens, 100);
        ck_assert_mem_eq(r.s[4].tokens, undisturbed.tokens, 100 * sizeof(uint32_t));
        ck_assert_uint_eq(r.s[4].firsts, 1);
        close_cached();
    }
}
END_TEST

/* One user's readers stand still, some before the first token, and hold all memory and all places he may have: another
 * user's request is answered after park_ms, and when the readers come back each answer is what it is alone. */
START_TEST(stalled_readers_keep_nobody_out) {
    for (uint32_t k = 0; k < 6; k++) {
        struct sched_req q[N];
        uint32_t stalled = 0;
        bool away = false;

        open_nano((struct engine_options){ .max_seqs = 2, .cache_slots = k % 3, .park_ms = 1, .n_pages = 4 });
        r.metered = true;
        for (uint32_t i = 0; i < N; i++) {
            q[i] = request(i);
            q[i].ignore_eos = true;
            q[i].no_cache = k >= 3;
            q[i].uid = i == 4;
            atomic_store(&r.credit[i].records, i == 4 ? 1000 : i % 2 ? 3 + stream_token_records(0) : 0);
        }
        for (uint32_t i = 0; i < 4; i++)
            submit(&q[i]);
        for (uint32_t i = 0; i < 40; i++) {
            engrun_sleep_ms(1);
            rounds(2);
        }
        for (uint32_t i = 0; i < 6; i++)
            stalled += r.e->seqs[i].used;
        ck_assert_uint_eq(stalled, 3); /* of six: half, and no more */
        submit(&q[4]);
        for (uint32_t i = 0; !r.s[4].ends && i < 1000; i++) {
            engrun_sleep_ms(1);
            rounds(1);
            for (uint32_t n = 0; n < 6; n++)
                away |= r.e->seqs[n].away;
        }
        same_as_alone(4);
        ck_assert(away);
        for (uint32_t i = 0; i < 4; i++)
            engrun_credit(&r, i, 1000);
        for (uint32_t i = 0; i < 4; i++) {
            round_until_end(i);
            same_as_alone(i);
        }
        if (k % 3 == 0)
            close_nano();
        else
            close_cached();
    }
}
END_TEST

/* It can be cancelled while it has nothing. */
START_TEST(cancelled_without_memory) {
    struct sched_req q[2] = { request(4), request(2) };

    penalised(&q[0]);
    q[1].ignore_eos = q[0].background = true;
    open_nano((struct engine_options){ .max_seqs = 2, .cache_slots = 2, .n_pages = 4, .prefill_tokens = 128 });
    submit(&q[0]);
    while (r.s[4].n_tokens < 3)
        rounds(1);
    submit(&q[1]);
    for (uint32_t i = 0; !r.e->seqs[0].away && i < 1000; i++)
        rounds(1);
    ck_assert(r.e->seqs[0].away);
    engine_cancel(r.e, q[0].stream);
    rounds(1);
    ck_assert_uint_eq(r.s[4].ends, 1);
    ck_assert_uint_eq(r.s[4].end.u.usage.completion, r.s[4].n_tokens);
    round_until_end(2);
    same_as_alone(2);
    close_cached();
}
END_TEST

/* ---- the queue ---- */

START_TEST(queue_is_bounded) {
    struct sched_req q[4];

    open_nano((struct engine_options){ .max_seqs = 1, .max_queued = 2, .max_streams = 8 });
    for (uint32_t i = 0; i < 4; i++) {
        q[i] = request(i);
        q[i].ignore_eos = true;
        ck_assert_int_eq(engine_submit(r.e, &q[i]), i < 3 ? 0 : -EAGAIN);
    }
    for (uint32_t i = 0; i < 3; i++)
        round_until_end(i);
    submit(&q[3]);
    round_until_end(3);
    same_as_alone(3);
    close_nano();
}
END_TEST

/* What a queued request is told: its place, and a time once something was measured. */
START_TEST(waits_are_told) {
    struct sched_req q[4];

    open_nano((struct engine_options){ .max_seqs = 1, .max_streams = 8 });
    for (uint32_t i = 0; i < 2; i++) {
        q[i] = request(i);
        q[i].ignore_eos = true;
        submit(&q[i]);
        round_until_end(i);
    }
    for (uint32_t i = 2; i < 4; i++) {
        q[i] = request(i);
        q[i].ignore_eos = true;
        q[i].quiet = false;
        submit(&q[i]);
    }
    for (uint32_t i = 0; r.s[3].n_progress == 0 && i < 1000; i++) {
        rounds(1);
        engrun_sleep_ms(1);
    }
    ck_assert_uint_eq(r.s[3].progress.queue_position, 1);
    ck_assert_uint_gt(r.s[3].progress.wait_ms, 0);
    ck_assert_uint_lt(r.s[3].progress.wait_ms, 60000);
    for (uint32_t i = 2; i < 4; i++)
        round_until_end(i);
    ck_assert_uint_eq(r.s[3].progress.wait_ms, 0);
    close_nano();
}
END_TEST

int main(void) {
    Suite *suite = suite_create("engine_share");
    TCase *tc = tcase_create("share");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_unchecked_fixture(tc, prepare, NULL);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, short_prompts_share_a_chunk);
    tcase_add_test(tc, ended_in_a_shared_chunk);
    tcase_add_test(tc, parked_and_back);
    tcase_add_test(tc, a_seat_at_once);
    tcase_add_test(tc, not_for_one_token);
    tcase_add_test(tc, background_gives_way);
    tcase_add_test(tc, background_gives_its_memory);
    tcase_add_test(tc, stalled_readers_keep_nobody_out);
    tcase_add_test(tc, cancelled_without_memory);
    tcase_add_test(tc, queue_is_bounded);
    tcase_add_test(tc, waits_are_told);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
