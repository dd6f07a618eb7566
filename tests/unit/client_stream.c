/* SPDX-License-Identifier: MIT */
/* Streams through libglmd against a fake daemon driven step by step: what arrives, when to poll, what to give
 * back. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>

#include "clienttest.h"
#include "fakedaemon.h"

START_TEST(one_answer) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    ct_none(c);
    uint64_t tag = ct_submit(c, "hello");
    ck_assert_uint_eq(fake_bells(&f), 1);
    ck_assert_uint_eq(fake_pop_submit(&f), tag);
    ck_assert_int_eq(ct_readable(c, 0), 0);
    fake_accept(&f, tag);
    fake_progress(&f, tag, 64, 128, 2);
    fake_piece(&f, tag, GLMW_CH_REASONING, 41, "hm", 2);
    fake_text(&f, tag, 42, "A text that is longer than the inline field of a record.");
    fake_text(&f, tag, 43, "");
    fake_usage(&f, tag, 13, 3);
    fake_end(&f, tag, 0, GLMW_END_STOP);
    fake_flush(&f, false);
    ck_assert_int_eq(ct_readable(c, 1000), 1);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    struct glmd_event e = ct_next(c, GLMD_EV_ACCEPTED, tag);
    ck_assert_uint_eq(e.seq, 0);
    e = ct_next(c, GLMD_EV_PROGRESS, tag);
    ck_assert_uint_eq(e.done, 64);
    ck_assert_uint_eq(e.total, 128);
    ck_assert_uint_eq(e.queue_position, 2);
    ck_assert_uint_eq(e.wait_ms, 3000);
    ck_assert_uint_eq(e.phase, GLMD_PHASE_QUEUED);
    e = ct_next(c, GLMD_EV_TOKEN, tag);
    ck_assert_uint_eq(e.channel, GLMD_CHANNEL_REASONING);
    ck_assert_uint_eq(e.token, 41);
    ck_assert(isnan(e.logprob));
    ck_assert_mem_eq(e.text, "hm", 2);
    ct_next_text(c, tag, "A text that is longer than the inline field of a record.");
    e = ct_next(c, GLMD_EV_TOKEN, tag);
    ck_assert_uint_eq(e.text_len, 0);
    ck_assert_ptr_nonnull(e.text);
    e = ct_next(c, GLMD_EV_END, tag);
    ck_assert_int_eq(e.status, 0);
    ck_assert_uint_eq(e.reason, GLMD_REASON_STOP);
    ck_assert_ptr_nonnull(e.usage);
    ck_assert_uint_eq(e.usage->prompt_tokens, 13);
    ck_assert_uint_eq(e.usage->completion_tokens, 3);
    ck_assert_uint_eq(e.usage->cached_tokens, 6);
    ck_assert_uint_eq(e.usage->tier_tokens, 4);
    ck_assert_uint_eq(e.usage->queued_ns, 1000);
    ck_assert_uint_eq(e.usage->prefill_ns, 2000);
    ck_assert_uint_eq(e.usage->decode_ns, 3000);
    ck_assert_uint_eq(e.usage->longest_gap_ns, (uint64_t)UINT32_MAX << 2);
    ct_none(c);
    ck_assert_int_eq(glmd_dispatch(c), 0);
    ck_assert_int_eq(ct_readable(c, 0), 0);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(many_live_interleaved) {
    enum { N = 40, ROUNDS = 25 };
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag[N];
    uint32_t got[N] = {0};
    for (int i = 0; i < N; i++) {
        tag[i] = ct_submit(c, "x");
        for (int j = 0; j < i; j++)
            ck_assert(tag[i] != tag[j]);
    }
    for (int i = 0; i < N; i++) {
        ck_assert_uint_eq(fake_pop_submit(&f), tag[i]);
        fake_accept(&f, tag[i]);
    }
    for (int k = 0; k < ROUNDS; k++) {
        struct glmd_event e = {.size = sizeof e};
        for (int i = 0; i < N; i++)
            fake_piece(&f, tag[(i * 7 + k) % N], GLMW_CH_CONTENT, (uint32_t)k, "tok", 3);
        fake_flush(&f, false);
        ck_assert_int_eq(glmd_dispatch(c), 1);
        while (glmd_next(c, &e) == 1) {
            if (e.type != GLMD_EV_TOKEN)
                continue;
            int i = 0;
            while (i < N && tag[i] != e.tag)
                i++;
            ck_assert_int_lt(i, N);
            ck_assert_uint_eq(e.token, got[i]++);
        }
    }
    for (int i = 0; i < N; i++) {
        ck_assert_uint_eq(got[i], ROUNDS);
        fake_end(&f, tag[i], 0, GLMW_END_STOP);
    }
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    for (int i = 0; i < N; i++)
        ct_next(c, GLMD_EV_END, tag[i]);
    ct_none(c);
    struct glmd_info info = {.size = sizeof info};
    ck_assert_int_eq(glmd_get_info(c, &info), 0);
    ck_assert_uint_eq(info.live, 0);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* A caller that stops early must not be told to poll: the pipe is drained while records wait. */
START_TEST(early_stop_needs_prepare) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    ck_assert_int_eq(glmd_prepare(c), 1);
    fake_accept(&f, tag);
    fake_text(&f, tag, 1, "a");
    fake_text(&f, tag, 2, "b");
    fake_flush(&f, false);
    ck_assert_int_eq(ct_readable(c, 1000), 1);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    ck_assert_int_eq(ct_readable(c, 0), 0);
    ck_assert_int_eq(glmd_prepare(c), 0);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next_text(c, tag, "a");
    ct_next_text(c, tag, "b");
    /* taken to the last record but not to 0: prepare arms, and then a bell comes */
    ck_assert_int_eq(glmd_prepare(c), 1);
    fake_text(&f, tag, 3, "c");
    fake_flush(&f, false);
    ck_assert_int_eq(ct_readable(c, 1000), 1);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* A record that is published between the last look and the arming must be found by the arming itself. */
START_TEST(arm_looks_again) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, false);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    for (uint32_t i = 0; i < 200; i++) {
        /* not armed: the bell stays silent, so only a look at the ring can find it */
        uint64_t sent = f.counts.sent;
        fake_text(&f, tag, i, "t");
        fake_flush(&f, false);
        if (i % 2 == 0) {
            ck_assert_uint_eq(f.counts.sent, sent);
            ck_assert_int_eq(glmd_prepare(c), 0);
            ct_next_text(c, tag, "t");
        } else {
            ck_assert_int_eq(ct_readable(c, 1000), 1);
            ck_assert_int_eq(glmd_dispatch(c), 1);
            ct_next_text(c, tag, "t");
        }
        if (i % 2 == 0)
            ck_assert_int_eq(glmd_prepare(c), 1);
    }
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(one_bell_for_many_records) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, false);
    for (uint32_t i = 0; i < 50; i++) {
        fake_text(&f, tag, i, "t");
        fake_flush(&f, false);
    }
    ck_assert_uint_eq(f.counts.sent, 1);
    ck_assert_uint_eq(f.counts.suppressed, 50);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(alternatives) {
    struct fake f;
    const struct fake_options o = {.tq_log2 = GLMW_TQ_LOG2_MIN};
    glmd_conn *c = fake_connect(&f, &o);
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, false);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    /* 20 alternatives are four records; a ring of 64 wraps at every alignment */
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t n = 1 + round % GLMW_ALTS_MAX, done = 0;
        struct glmw_rec r = fake_rec(&f, GLMW_REC_TOKEN, tag);
        r.token = round;
        r.logprob = -0.5f;
        r.flags = GLMW_RF_ALTS_FOLLOW | GLMW_RF_INLINE | GLMW_RF_FIRST;
        r.n_alts = (uint16_t)n;
        r.text_len = 2;
        memcpy(r.u.text, "hi", 2);
        fake_put(&f, &r);
        /* the group becomes visible in two parts: no event before it is whole */
        fake_flush(&f, false);
        ct_none(c);
        while (done < n) {
            struct glmw_rec h = fake_rec(&f, GLMW_REC_ALTS, tag);
            struct glmw_alts a = {.type = GLMW_REC_ALTS, .seq = h.seq, .tag = tag};
            for (uint32_t i = 0; i < GLMW_ALTS_PER_REC; i++, done++)
                a.alt[i] = (struct glmw_alt){done < n ? 1000 + done : GLMW_TOKEN_NONE, -(float)done};
            fake_put(&f, &a);
        }
        fake_flush(&f, false);
        ck_assert_int_eq(ct_readable(c, 1000), 1);
        ck_assert_int_eq(glmd_dispatch(c), 1);
        struct glmd_event e = ct_next(c, GLMD_EV_TOKEN, tag);
        ck_assert_uint_eq(e.n_alts, n);
        ck_assert_uint_eq(e.flags, GLMD_EVF_FIRST);
        ck_assert(e.logprob == -0.5f);
        ck_assert_mem_eq(e.text, "hi", 2);
        for (uint32_t i = 0; i < n; i++) {
            ck_assert_uint_eq(e.alts[i].token, 1000 + i);
            ck_assert(e.alts[i].logprob == -(float)i);
        }
        ct_none(c);
    }
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(tools_and_ids) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    struct glmw_rec r = fake_rec(&f, GLMW_REC_TOOL, tag);
    r.u.tool.index = 2;
    r.u.tool.phase = GLMW_TOOL_BEGIN;
    fake_put(&f, &r);
    fake_piece(&f, tag, GLMW_CH_TOOL_NAME, GLMW_TOKEN_NONE, "search", 6);
    fake_piece(&f, tag, GLMW_CH_TOOL_ARGS, GLMW_TOKEN_NONE, "{}", 2);
    r = fake_rec(&f, GLMW_REC_TOOL, tag);
    r.u.tool.index = 2;
    r.u.tool.phase = GLMW_TOOL_CUT;
    fake_put(&f, &r);
    /* unknown but ignorable records are counted and skipped */
    r = fake_rec(&f, 77, tag);
    r.flags = GLMW_RF_IGNORABLE;
    fake_put(&f, &r);
    r = fake_rec(&f, GLMW_REC_IDS, tag);
    struct glmw_ids ids = {.type = GLMW_REC_IDS, .count = 12, .seq = r.seq, .tag = tag};
    for (uint32_t i = 0; i < 12; i++)
        ids.id[i] = 100 + i;
    fake_put(&f, &ids);
    r = fake_rec(&f, GLMW_REC_NOTICE, 0);
    r.token = GLMW_NOTICE_LIMITS;
    fake_put(&f, &r);
    fake_end(&f, tag, 0, GLMW_END_TOOL_CALLS);
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    struct glmd_event e = ct_next(c, GLMD_EV_TOOL, tag);
    ck_assert_uint_eq(e.phase, GLMD_PHASE_TOOL_BEGIN);
    ck_assert_uint_eq(e.index, 2);
    e = ct_next(c, GLMD_EV_TEXT, tag);
    ck_assert_uint_eq(e.channel, GLMD_CHANNEL_TOOL_NAME);
    ck_assert_uint_eq(e.token, GLMD_NO_TOKEN);
    e = ct_next(c, GLMD_EV_TEXT, tag);
    ck_assert_uint_eq(e.channel, GLMD_CHANNEL_TOOL_ARGUMENTS);
    e = ct_next(c, GLMD_EV_TOOL, tag);
    ck_assert_uint_eq(e.phase, GLMD_PHASE_TOOL_CUT);
    e = ct_next(c, GLMD_EV_IDS, tag);
    ck_assert_uint_eq(e.n_ids, 12);
    ck_assert_uint_eq(e.ids[11], 111);
    e = ct_next(c, GLMD_EV_NOTICE, 0);
    ck_assert_uint_eq(e.reason, GLMD_NOTICE_LIMITS);
    e = ct_next(c, GLMD_EV_END, tag);
    ck_assert_uint_eq(e.reason, GLMD_REASON_TOOL_CALLS);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* Records stay the reader's until they are given back, and the daemon's asking is answered once below half.
 */
START_TEST(credit_hand_back) {
    struct fake f;
    const struct fake_options o = {.tq_log2 = GLMW_TQ_LOG2_MIN};
    glmd_conn *c = fake_connect(&f, &o);
    uint64_t tag = ct_submit(c, "x");
    struct glmd_event e = {.size = sizeof e};
    struct glmw_entry n;
    fake_pop_submit(&f);
    fake_bells(&f);
    fake_accept(&f, tag);
    for (uint32_t i = 0; i < 63; i++)
        fake_text(&f, tag, i, "t");
    fake_flush(&f, false);
    ck_assert_uint_eq(glmw_free_slots(&f.tq), 0);
    ck_assert_int_eq(glmw_credit_ask(&f.tq, &f.shm.d->credit_wanted), 0);
    ck_assert_uint_eq(glmw_free_slots(&f.tq), 0);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(glmd_next(c, &e), 1);
    ck_assert_int_eq(glmw_refresh(&f.tq), 0);
    ck_assert_uint_eq(glmw_free_slots(&f.tq), 0);
    glmd_release(c);
    ck_assert_int_eq(glmw_refresh(&f.tq), 0);
    ck_assert_uint_eq(glmw_free_slots(&f.tq), 10);
    ck_assert(!fake_pop(&f, &n));
    for (int i = 0; i < 30; i++)
        ck_assert_int_eq(glmd_next(c, &e), 1);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ck_assert_int_eq(glmw_refresh(&f.tq), 0);
    ck_assert_uint_eq(glmw_free_slots(&f.tq), 40);
    ck_assert(fake_pop(&f, &n));
    ck_assert_int_eq(n.opcode, GLMW_OP_NOP);
    ck_assert_uint_eq(fake_bells(&f), 1);
    glmw_credit_done(&f.shm.d->credit_wanted);
    while (glmd_next(c, &e) == 1) {
    }
    glmd_release(c);
    ck_assert(!fake_pop(&f, &n));
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* A loop that polls after glmd_next() returned 0 holds nothing back: the daemon may be waiting for just that
 * room, and then nobody would ever wake anybody. */
START_TEST(sleeping_gives_back) {
    struct fake f;
    const struct fake_options o = {.tq_log2 = GLMW_TQ_LOG2_MIN};
    glmd_conn *c = fake_connect(&f, &o);
    struct glmd_event e = {.size = sizeof e};
    struct glmw_entry n;
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    for (uint32_t i = 0; i < 63; i++)
        fake_text(&f, tag, i, "t");
    fake_flush(&f, false);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    while (glmd_next(c, &e) == 1) {
    }
    /* the daemon finds no room after the reader went to sleep, and the room is there */
    ck_assert_int_eq(glmw_credit_ask(&f.tq, &f.shm.d->credit_wanted), 0);
    ck_assert_uint_eq(glmw_free_slots(&f.tq), 64);
    /* it asked before: the sleeper says so with an entry */
    fake_text(&f, tag, 63, "t");
    fake_flush(&f, false);
    ck_assert_int_eq(glmd_next(c, &e), 1);
    ck_assert_int_eq(glmd_prepare(c), 1);
    ck_assert(fake_pop(&f, &n));
    ck_assert_int_eq(n.opcode, GLMW_OP_NOP);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* The answer to credit_wanted finds the submission ring full: it is sent as soon as there is room, by a
 * timer. */
START_TEST(credit_owed_is_sent_later) {
    struct fake f;
    const struct fake_options o = {.tq_log2 = GLMW_TQ_LOG2_MIN, .sq_log2 = GLMW_SQ_LOG2_MIN};
    glmd_conn *c = fake_connect(&f, &o);
    struct glmd_event e = {.size = sizeof e};
    struct glmw_entry n;
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, false);
    for (int i = 0; i < 16; i++)
        ct_submit(c, "y");
    glmw_credit_ask(&f.tq, &f.shm.d->credit_wanted);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ck_assert_int_eq(glmd_next(c, &e), 1);
    ck_assert_int_eq(glmd_next(c, &e), 0);
    glmd_release(c);
    for (int i = 0; i < 16; i++)
        fake_pop_submit(&f);
    ck_assert(!fake_pop(&f, &n));
    ck_assert_int_eq(ct_readable(c, 2000), 1);
    ck_assert_int_eq(glmd_dispatch(c), 0);
    ck_assert(fake_pop(&f, &n));
    ck_assert_int_eq(n.opcode, GLMW_OP_NOP);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(rings_full) {
    struct fake f;
    const struct fake_options o = {.sq_log2 = GLMW_SQ_LOG2_MIN, .live = 100};
    glmd_conn *c = fake_connect(&f, &o);
    glmd_req *r;
    uint64_t tag[17], t = 0;
    for (int i = 0; i < 16; i++)
        tag[i] = ct_submit(c, "x");
    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, "late", 4), 0);
    ck_assert_int_eq(glmd_submit(c, r, &t), -ENOBUFS);
    ck_assert_uint_eq(t, 0);
    /* a cancel is never refused; it waits inside the library */
    ck_assert_int_eq(glmd_cancel(c, tag[3]), 0);
    for (int i = 0; i < 16; i++)
        ck_assert_uint_eq(fake_pop_submit(&f), tag[i]);
    ck_assert_int_eq(ct_readable(c, 2000), 1);
    ck_assert_int_eq(glmd_dispatch(c), 0);
    struct glmw_entry e;
    ck_assert(fake_pop(&f, &e));
    ck_assert_int_eq(e.opcode, GLMW_OP_CANCEL);
    ck_assert_uint_eq(e.tag, tag[3]);
    /* the refused request is whole and goes through now */
    ck_assert_int_eq(glmd_submit(c, r, &tag[16]), 0);
    ck_assert_uint_eq(fake_pop_submit(&f), tag[16]);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(cancel_and_end) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmw_entry e;
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    ck_assert_int_eq(glmd_cancel(c, tag + 1), 0);
    ck_assert_int_eq(glmd_cancel(c, 0), 0);
    ck_assert(!fake_pop(&f, &e));
    ck_assert_int_eq(glmd_cancel(c, tag), 0);
    ck_assert(fake_pop(&f, &e));
    ck_assert_int_eq(e.opcode, GLMW_OP_CANCEL);
    ck_assert_uint_eq(e.tag, tag);
    fake_accept(&f, tag);
    fake_usage(&f, tag, 5, 0);
    fake_end(&f, tag, -ECANCELED, GLMW_END_CANCELED);
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    struct glmd_event ev = ct_next(c, GLMD_EV_END, tag);
    ck_assert_int_eq(ev.status, -ECANCELED);
    ck_assert_uint_eq(ev.reason, GLMD_REASON_CANCELED);
    ck_assert_uint_eq(ev.usage->prompt_tokens, 5);
    ck_assert_int_eq(glmd_cancel(c, tag), 0);
    ck_assert(!fake_pop(&f, &e));
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(batches) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmd_event e[8];
    for (int i = 0; i < 8; i++)
        e[i].size = sizeof e[i];
    uint64_t tag = ct_submit(c, "x");
    ck_assert_int_eq(glmd_next_n(c, e, 8), 0);
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    for (uint32_t i = 0; i < 9; i++)
        fake_text(&f, tag, i, i % 2 ? "odd" : "even");
    fake_flush(&f, false);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ck_assert_int_eq(glmd_next_n(c, e, 8), 8);
    for (uint32_t i = 1; i < 8; i++) {
        ck_assert_uint_eq(e[i].token, i - 1);
        ck_assert_mem_eq(e[i].text, i % 2 ? "even" : "odd", e[i].text_len);
    }
    ck_assert_int_eq(glmd_next_n(c, e, 8), 2);
    ck_assert_int_eq(glmd_next_n(c, e, 0), 0);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("client_stream");
    TCase *t = ct_case(s, "stream", 20);
    tcase_add_test(t, one_answer);
    tcase_add_test(t, many_live_interleaved);
    tcase_add_test(t, early_stop_needs_prepare);
    tcase_add_test(t, arm_looks_again);
    tcase_add_test(t, one_bell_for_many_records);
    tcase_add_test(t, alternatives);
    tcase_add_test(t, tools_and_ids);
    tcase_add_test(t, credit_hand_back);
    tcase_add_test(t, sleeping_gives_back);
    tcase_add_test(t, credit_owed_is_sent_later);
    tcase_add_test(t, rings_full);
    tcase_add_test(t, cancel_and_end);
    tcase_add_test(t, batches);
    return ct_main(s);
}
