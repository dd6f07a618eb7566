/* SPDX-License-Identifier: MIT */
/* emit on one thread: last words always fit, text comes before END and is never overwritten before it was
 * read, stale events are dropped, tool calls become records. */
#include <check.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "daemonfix.h"
#include "emittest.h"
#include "leakcheck.h"
#include "outtools.h"
#include "stopstr.h"

/* Every stream runs until it has no credit, nobody reads, and then all end with an error: 3 records each that
 * must fit. */
START_TEST(last_words_fit) {
    struct stream_id id[8];
    struct et_client c;
    struct glmw_rec r;
    uint32_t ends = 0, errors = 0, tokens = 0, sent = 0;

    et_begin(8, false);
    et_open(&c, 6, 16);
    for (int i = 0; i < 8; i++)
        id[i] = et_accept(&c, (uint64_t)i + 1, 0, false);
    for (int round = 0; round < 200; round++)
        for (int i = 0; i < 8; i++) {
            struct stream_event ev = et_token(id[i], 40);

            if (atomic_load(&et_sink.credit[id[i].index].records) < stream_token_records(0))
                continue;
            et_sink.publish(et_sink.ctx, &ev, 1);
            sent++;
        }
    ck_assert_uint_gt(sent, 16);
    ck_assert_uint_lt(sent, 64);
    for (int i = 0; i < 8; i++) {
        struct stream_event ev = et_end(id[i], STREAM_END_ERROR, -EIO);

        et_sink.publish(et_sink.ctx, &ev, 1);
    }
    ck_assert_int_eq(emit_conn_error(c.conn), 0);
    for (int round = 0; round < 3;
         round++) { /* a token that lost a race for a slot waits, and its END behind it */
        while (et_take(&c, &r)) {
            tokens += r.type == GLMW_REC_TOKEN;
            errors += r.type == GLMW_REC_ERROR;
            ends += r.type == GLMW_REC_END;
        }
        if (round == 0)
            ck_assert_uint_ge(ends, 6);
        emit_conn_resume(c.conn);
    }
    ck_assert_uint_eq(tokens, sent);
    ck_assert_uint_eq(errors, 8);
    ck_assert_uint_eq(ends, 8);
    emit_take_retired(et_emit, et_on_retired, NULL);
    ck_assert_int_eq(et_retired, 8);
    et_close(&c);
    et_finish();
}
END_TEST

/* Room for a token and not for as much as the engine wants: it is kicked when the client has read. */
START_TEST(as_much_as_is_wanted) {
    struct stream_id id;
    struct et_client c;
    struct glmw_rec r;
    int kicks;

    et_begin(8, false);
    et_open(&c, 6, 16);
    id = et_accept(&c, 1, 0, false);
    while (atomic_load(&et_sink.credit[id.index].records) > 8) {
        struct stream_event ev = et_token(id, 40);

        et_sink.publish(et_sink.ctx, &ev, 1);
    }
    ck_assert_uint_ge(et_sink.refresh(et_sink.ctx, id, stream_token_records(0)), stream_token_records(0));
    kicks = et_kicks;
    emit_conn_resume(c.conn);
    ck_assert_int_eq(et_kicks, kicks);
    ck_assert_uint_lt(et_sink.refresh(et_sink.ctx, id, 20), 20);
    for (int i = 0; i < 30; i++)
        ck_assert(et_take(&c, &r));
    emit_conn_resume(c.conn);
    ck_assert_int_eq(et_kicks, kicks + 1);
    ck_assert_uint_ge(et_sink.refresh(et_sink.ctx, id, 20), 20);
    emit_conn_resume(c.conn);
    ck_assert_int_eq(et_kicks, kicks + 1);
    {
        struct stream_event ev = et_end(id, STREAM_END_STOP, 0);

        et_sink.publish(et_sink.ctx, &ev, 1);
    }
    et_close(&c);
    et_finish();
}
END_TEST

/* What does not fit waits in the outbox, and END waits behind it. */
START_TEST(end_comes_after_the_text) {
    struct et_client c;
    struct glmw_rec r;
    struct stream_id id;
    struct stream_event ev;
    uint32_t tokens = 0, seq = 0;
    bool ended = false;

    et_begin(8, false);
    et_open(&c, 6, 16);
    id = et_accept(&c, 5, 0, false);
    for (uint32_t i = 0; i < 100; i++) { /* an engine that does not look at credit */
        ev = et_token(id, 1000 + i);
        et_sink.publish(et_sink.ctx, &ev, 1);
    }
    ev = et_end(id, STREAM_END_LENGTH, 0);
    et_sink.publish(et_sink.ctx, &ev, 1);
    ck_assert_uint_eq(glmw_fetch32(&c.view.d->credit_wanted), 1);
    for (int round = 0; round < 10 && !ended; round++) {
        while (et_take(&c, &r)) {
            ck_assert_uint_eq(r.seq, seq);
            seq++;
            if (r.type == GLMW_REC_TOKEN) {
                ck_assert(!ended);
                ck_assert_uint_eq(r.token, 1000 + tokens);
                tokens++;
            }
            ended = ended || r.type == GLMW_REC_END;
        }
        emit_conn_resume(c.conn);
    }
    ck_assert(ended);
    ck_assert_uint_eq(tokens, 100);
    ck_assert_uint_eq(glmw_fetch32(&c.view.d->credit_wanted), 0);
    et_close(&c);
    et_finish();
}
END_TEST

/* Long pieces of text through the smallest arena, read late: every byte as it was. */
/* Times of any length: exact while all fit into 32 bits, else in a coarser unit, never cut. */
START_TEST(times_of_any_length) {
    static const uint64_t queued[] = {0, 4294967295u, 4294967296u, 36000000000123u, UINT64_MAX};
    struct et_client c;

    et_begin(8, false);
    et_open(&c, 6, 16);
    for (unsigned i = 0; i < sizeof queued / sizeof *queued; i++) {
        struct stream_id id = et_accept(&c, 5 + i, 0, false);
        struct stream_event ev = et_end(id, STREAM_END_LENGTH, 0);
        struct glmw_usage u = {0};
        struct glmw_rec r;
        uint64_t back;

        ev.u.usage.queued_ns = queued[i];
        ev.u.usage.prefill_ns = 7;
        ev.u.usage.longest_gap_ns = 12345;
        ev.u.usage.cached = 3;
        ev.u.usage.tier = 2;
        et_sink.publish(et_sink.ctx, &ev, 1);
        while (et_take(&c, &r))
            if (r.type == GLMW_REC_USAGE)
                memcpy(&u, &r, sizeof u);
        back = (uint64_t)u.queued << u.time_shift;
        ck_assert_uint_le(back, queued[i]);
        ck_assert_uint_le(queued[i] - back, queued[i] >> 31);
        ck_assert(queued[i] > UINT32_MAX || (u.time_shift == 0 && u.prefill == 7 && u.longest_gap == 12345));
        ck_assert_uint_eq((uint64_t)u.longest_gap << u.time_shift, (uint64_t)12345 >> u.time_shift << u.time_shift);
        ck_assert_uint_eq(u.cached_tokens, 3);
        ck_assert_uint_eq(u.tier_tokens, 2);
    }
    et_close(&c);
    et_finish();
}
END_TEST

START_TEST(text_is_not_overwritten) {
    static char want[1 << 20], got[1 << 20];
    static const char word[] = "The quick brown fox jumps over the lazy dog. ";
    struct tok_scratch *scratch;
    size_t n_want = 0, n_got = 0, n_ids;
    struct emit_bind b = {.thinking_open = false};
    struct emit_accept a = {.tag = 9};
    const char *stops[1];
    static struct stopstr_set set;
    static char stop[1000];
    struct stream_id id;
    struct et_client c;
    struct glmw_rec r;
    uint32_t ids[64];
    size_t lens[1];

    et_begin(8, true);
    et_open(&c, 6, 16);
    /* a stop string that nearly matches again and again: text is held back and comes in long pieces */
    for (size_t i = 0; i + sizeof word < sizeof stop; i += sizeof word - 1)
        memcpy(stop + i, word, sizeof word);
    strcat(stop, "#");
    stops[0] = stop;
    lens[0] = strlen(stop);
    ck_assert_int_eq(stopstr_set_init(&set, stops, lens, 1), 0);
    b.stop = &set;
    ck_assert_int_eq(emit_conn_accept(c.conn, &a, &id), 0);
    emit_stream_bind(et_emit, id, &b);
    ck_assert_int_eq(tok_scratch_new(0, &scratch), 0);
    ck_assert_int_eq(tok_encode(et_tok, scratch, word, strlen(word), 0, ids, 64, &n_ids), 0);
    for (int round = 0; round < 3000; round++) {
        char tail[32];
        size_t n_tail;
        uint32_t tail_ids[32];

        for (int k = 0; k < 1 + round % 21; k++) {
            for (size_t i = 0; i < n_ids; i++) {
                struct stream_event ev = et_token(id, ids[i]);

                et_sink.publish(et_sink.ctx, &ev, 1);
            }
            memcpy(want + n_want, word, strlen(word));
            n_want += strlen(word);
        }
        snprintf(tail, sizeof tail, "(%d)", round);
        ck_assert_int_eq(tok_encode(et_tok, scratch, tail, strlen(tail), 0, tail_ids, 32, &n_tail), 0);
        for (size_t i = 0; i < n_tail; i++) {
            struct stream_event ev = et_token(id, tail_ids[i]);

            et_sink.publish(et_sink.ctx, &ev, 1);
        }
        memcpy(want + n_want, tail, strlen(tail));
        n_want += strlen(tail);
        for (int k = 0; k < 400; k++) { /* never quite up to date, so that text lies about unread */
            for (int m = 0; m < 30 && et_take(&c, &r); m++) {
                memcpy(got + n_got, et_text(&c, &r), r.text_len);
                n_got += r.text_len;
            }
            if (n_want - n_got < 5000)
                break;
            emit_conn_resume(c.conn);
        }
        if (n_want > sizeof want - 4096)
            break;
    }
    for (int round = 0; round < 1000; round++) {
        while (et_take(&c, &r)) {
            memcpy(got + n_got, et_text(&c, &r), r.text_len);
            n_got += r.text_len;
        }
        emit_conn_resume(c.conn);
    }
    ck_assert_int_eq(et_cancels, 0);
    ck_assert_uint_gt(n_got, 500000);
    ck_assert_int_eq(memcmp(got, want, n_got), 0);
    ck_assert_uint_ge(n_got + strlen(stop), n_want);
    struct stream_event ev = et_end(id, STREAM_END_LENGTH, 0);
    et_sink.publish(et_sink.ctx, &ev, 1);
    et_close(&c);
    tok_scratch_free(scratch);
    et_finish();
}
END_TEST

/* No period, so that text written over other text is never the same by chance. */
static uint32_t scatter(uint32_t i) {
    return i * 2654435761u >> 16;
}

/* More text than the arena holds, in records that fit the ring: what was not given back must stay as it was.
 */
START_TEST(text_of_unread_records_stays) {
    enum { ROUNDS = 30, EACH = 300 };
    uint32_t words[64], n_words = 0, sent = 0, seen = 0;
    struct et_client c;
    struct glmw_rec r;
    struct stream_id id;
    const uint8_t *bytes;
    size_t n;

    et_begin(8, true);
    et_open(&c, 12, 16);
    /* tokens whose text is longer than a record takes inline */
    for (uint32_t i = 0; i < tok_size(et_tok) && n_words < 64; i++)
        if (tok_bytes(et_tok, i, &bytes, &n) == 0 && n > 24)
            words[n_words++] = i;
    ck_assert_msg(n_words > 1, "the tokenizer has no tokens of more than 24 bytes");
    id = et_accept(&c, 5, 0, false);
    ck_assert(et_take(&c, &r)); /* ACCEPTED */
    for (int i = 0; i < 3000; i++) {
        struct stream_event ev = et_token(id, words[scatter(sent++) % n_words]);

        et_sink.publish(et_sink.ctx, &ev, 1);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < EACH && et_take(&c, &r); i++) {
            tok_bytes(et_tok, words[scatter(seen++) % n_words], &bytes, &n);
            ck_assert_uint_eq(r.text_len, n);
            ck_assert_msg(memcmp(et_text(&c, &r), bytes, n) == 0, "record %u has another record's text",
                          seen - 1);
        }
        emit_conn_resume(c.conn);
        for (int i = 0; i < EACH; i++) {
            struct stream_event ev = et_token(id, words[scatter(sent++) % n_words]);

            et_sink.publish(et_sink.ctx, &ev, 1);
        }
    }
    ck_assert_uint_gt(seen, 5000);
    struct stream_event ev = et_end(id, STREAM_END_LENGTH, 0);
    et_sink.publish(et_sink.ctx, &ev, 1);
    et_close(&c);
    et_finish();
}
END_TEST

/* Everything the client can read is overwritten between any two publications: indices, slots, text. What the
 * daemon needs to know it has elsewhere, so each record comes where and as it should. */
START_TEST(region_d_is_never_read_back) {
    const uint8_t *bytes;
    uint32_t words[64], n_words = 0, x = 1;
    struct et_client c;
    struct glmw_rec r;
    struct stream_id id;
    size_t n;

    et_begin(8, true);
    et_open(&c, 6, 16);
    for (uint32_t i = 0; i < tok_size(et_tok) && n_words < 64; i++)
        if (tok_bytes(et_tok, i, &bytes, &n) == 0 && n > 24)
            words[n_words++] = i;
    id = et_accept(&c, 5, 0, false);
    ck_assert(et_take(&c, &r)); /* ACCEPTED */
    for (uint32_t i = 0; i < 3000; i++) {
        struct stream_event ev = et_token(id, words[i % n_words]);
        uint8_t *d = (uint8_t *)c.pair.d;

        for (size_t k = 0; k < c.pair.geom.d_bytes; k += 4, x = x * 1664525 + 1013904223)
            if (k != offsetof(struct glmw_d, credit_wanted))
                memcpy(d + k, &x, 4);
        et_sink.publish(et_sink.ctx, &ev, 1);
        ck_assert(et_take(&c, &r));
        ck_assert_uint_eq(r.type, GLMW_REC_TOKEN);
        ck_assert_uint_eq(r.seq, i + 1);
        ck_assert_uint_eq(r.token, words[i % n_words]);
        tok_bytes(et_tok, words[i % n_words], &bytes, &n);
        ck_assert_uint_eq(r.text_len, n);
        ck_assert_int_eq(memcmp(et_text(&c, &r), bytes, n), 0);
    }
    ck_assert_int_eq(emit_conn_error(c.conn), 0);
    struct stream_event ev = et_end(id, STREAM_END_LENGTH, 0);
    et_sink.publish(et_sink.ctx, &ev, 1);
    et_close(&c);
    et_finish();
}
END_TEST

START_TEST(stale_events_are_dropped) {
    struct et_client c;
    struct glmw_rec r;
    struct stream_id id, old;
    struct stream_event ev;

    et_begin(_i ? 8 : 0, false);
    et_open(&c, 8, 16);
    old = et_accept(&c, 1, 0, false);
    ev = et_end(old, STREAM_END_CANCELLED, -ECANCELED);
    et_sink.publish(et_sink.ctx, &ev, 1);
    while (et_retired < 1)
        emit_take_retired(et_emit, et_on_retired, NULL);
    do {
        id = et_accept(&c, 2, 0, false);
        if (id.index != old.index)
            emit_stream_fail(et_emit, id, -ECANCELED, NULL);
    } while (id.index != old.index);
    ck_assert_uint_ne(id.gen, old.gen);
    ev = et_token(old, 77);
    et_sink.publish(et_sink.ctx, &ev, 1);
    ev = et_end(old, STREAM_END_STOP, 0);
    et_sink.publish(et_sink.ctx, &ev, 1);
    ev = (struct stream_event){.stream = {9999, 1}, .type = STREAM_EV_TOKEN};
    et_sink.publish(et_sink.ctx, &ev, 1);
    ev = et_end(id, STREAM_END_CANCELLED, -ECANCELED);
    et_sink.publish(et_sink.ctx, &ev, 1);
    while (et_retired < ET_STREAMS + 1) /* every slot was used once, the first one twice */
        emit_take_retired(et_emit, et_on_retired, NULL);
    while (et_take(&c, &r)) {
        ck_assert_uint_ne(r.type, GLMW_REC_TOKEN);
        if (r.type == GLMW_REC_END)
            ck_assert_int_eq(r.u.end.status, -ECANCELED);
    }
    et_close(&c);
    et_finish();
}
END_TEST

static void push_text(struct stream_id id, struct tok_scratch *s, const char *text) {
    uint32_t ids[256];
    size_t n;

    ck_assert_int_eq(tok_encode(et_tok, s, text, strlen(text), TOK_MARKERS, ids, 256, &n), 0);
    for (size_t i = 0; i < n; i++) {
        struct stream_event ev = et_token(id, ids[i]);

        et_sink.publish(et_sink.ctx, &ev, 1);
    }
}

/* Without the feature the call comes as text alone, and no sequence number is missing. */
START_TEST(tool_call_records) {
    static const char tool[] =
        "{\"type\":\"function\",\"function\":{\"name\":\"wx\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}}";
    struct tstr list = {tool, sizeof tool - 1};
    struct emit_accept a = {.tag = 3};
    struct emit_bind b = {.thinking_open = true};
    struct outtools *tools;
    struct tok_scratch *scratch;
    char name[64] = "", args[256] = "", reasoning[64] = "", content[64] = "";
    uint32_t begins = 0, ends = 0, seq = 0;
    struct et_client c;
    struct glmw_rec r;
    struct stream_id id;
    struct stream_event ev;
    struct xerr err;

    et_begin(8, true);
    et_open_with(&c, 8, 16, _i ? GLMW_FEAT_TOOL_EVENTS : GLMW_FEAT_ALL & ~GLMW_FEAT_TOOL_EVENTS);
    ck_assert_int_eq(tok_scratch_new(0, &scratch), 0);
    ck_assert_int_eq(outtools_new(&list, 1, &tools, &err), 0);
    b.tools = tools;
    ck_assert_int_eq(emit_conn_accept(c.conn, &a, &id), 0);
    emit_stream_bind(et_emit, id, &b);
    push_text(id, scratch,
              "Need it.</think>Wait.<tool_call>wx<arg_key>city</arg_key><arg_value>Lima</arg_value>"
              "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>");
    ev = et_end(id, STREAM_END_STOP, 0);
    ev.token = (uint32_t)tok_id(et_tok, "<|observation|>");
    et_sink.publish(et_sink.ctx, &ev, 1);
    while (et_take(&c, &r)) {
        char *to = r.channel == GLMW_CH_TOOL_NAME   ? name
                   : r.channel == GLMW_CH_TOOL_ARGS ? args
                   : r.channel == GLMW_CH_REASONING ? reasoning
                                                    : content;

        ck_assert_uint_eq(r.seq, seq++);
        if (r.type == GLMW_REC_TOKEN || r.type == GLMW_REC_TEXT)
            strncat(to, (const char *)et_text(&c, &r), r.text_len);
        if (r.type == GLMW_REC_TOOL) {
            ck_assert_uint_eq(r.u.tool.index, 0);
            begins += r.u.tool.phase == GLMW_TOOL_BEGIN;
            ends += r.u.tool.phase == GLMW_TOOL_END;
        }
        if (r.type == GLMW_REC_END)
            ck_assert_uint_eq(r.u.end.reason, GLMW_END_TOOL_CALLS);
    }
    ck_assert_str_eq(reasoning, "Need it.");
    ck_assert_str_eq(content, "Wait.");
    ck_assert_str_eq(name, "wx");
    ck_assert_str_eq(args, "{\"city\": \"Lima\", \"days\": 2}");
    ck_assert_uint_eq(begins, (uint32_t)_i);
    ck_assert_uint_eq(ends, (uint32_t)_i);
    et_close(&c);
    outtools_free(tools);
    tok_scratch_free(scratch);
    et_finish();
}
END_TEST

/* A client that does not read for too long: what runs, what has ended behind unread text and what was only
 * accepted all end, in the slots kept back for it, and their slots in emit are free again. */
START_TEST(nobody_reads) {
    struct stream_id running, ended, accepted;
    struct stream_event ev;
    struct et_client c;
    struct glmw_rec r;
    uint32_t ends = 0, seq[4] = {0};
    uint64_t now = clock_now_ns(), later = now + UINT64_C(100) * CLOCK_NS_PER_SEC;

    et_begin(8, false);
    et_open(&c, 6, 16);
    running = et_accept(&c, 1, 0, false);
    ended = et_accept(&c, 2, 0, false);
    ck_assert_uint_eq(emit_conn_stalled_ns(c.conn, later), 0); /* nothing waits */
    for (int i = 0; i < 100; i++) {
        ev = et_token(i % 2 ? running : ended, 40);
        et_sink.publish(et_sink.ctx, &ev, 1);
    }
    ev = et_end(ended, STREAM_END_LENGTH, 0);
    et_sink.publish(et_sink.ctx, &ev, 1);
    ck_assert_uint_eq(emit_conn_stalled_ns(c.conn, later + 5), 5);
    ck_assert(et_take(&c, &r)); /* a reader, if a slow one */
    ck_assert_uint_eq(r.tag, 1);
    ck_assert_uint_eq(r.seq, seq[r.tag]++);
    ck_assert(et_take(&c, &r));
    ck_assert_uint_eq(r.tag, 2);
    ck_assert_uint_eq(r.seq, seq[r.tag]++);
    emit_conn_rescue(c.conn);
    ck_assert_uint_eq(emit_conn_stalled_ns(c.conn, later + 6), 0);
    ck_assert_uint_eq(emit_conn_stalled_ns(c.conn, later + 9), 3);
    ck_assert_uint_eq(emit_conn_give_up(c.conn), 2);
    ck_assert_uint_eq(emit_conn_live(c.conn), 1);
    for (int i = 0; i < 100; i++) { /* until its cancellation reaches the engine */
        ev = et_token(running, 40);
        et_sink.publish(et_sink.ctx, &ev, 1);
    }
    ev = et_end(running, STREAM_END_CANCELLED, -ECANCELED);
    et_sink.publish(et_sink.ctx, &ev, 1);
    ck_assert_uint_eq(emit_conn_live(c.conn), 0);
    emit_take_retired(et_emit, et_on_retired, NULL);
    ck_assert_int_eq(et_retired, 2);
    while (et_take(&c, &r)) {
        ck_assert_uint_eq(r.seq, seq[r.tag]++);
        if (r.type == GLMW_REC_ERROR)
            ck_assert_int_eq((int32_t)r.token, -ETIMEDOUT);
        if (r.type != GLMW_REC_END)
            continue;
        ends++;
        ck_assert_int_eq(r.u.end.status, -ETIMEDOUT);
        ck_assert_uint_eq(r.u.end.reason, GLMW_END_ERROR);
    }
    ck_assert_uint_eq(ends, 2);
    /* the connection itself is as good as before */
    emit_conn_resume(c.conn);
    accepted = et_accept(&c, 3, 0, false);
    ev = et_token(accepted, 40);
    et_sink.publish(et_sink.ctx, &ev, 1);
    ev = et_end(accepted, STREAM_END_LENGTH, 0);
    et_sink.publish(et_sink.ctx, &ev, 1);
    while (et_take(&c, &r))
        ck_assert_uint_eq(r.tag, 3);
    ck_assert_int_eq(r.type, GLMW_REC_END);
    ck_assert_int_eq(r.u.end.status, 0);
    et_close(&c);
    et_finish();
}
END_TEST

int main(void) {
    Suite *s = suite_create("emit_publish");
    TCase *tc = tcase_create("publish");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, last_words_fit);
    tcase_add_test(tc, as_much_as_is_wanted);
    tcase_add_test(tc, end_comes_after_the_text);
    tcase_add_test(tc, times_of_any_length);
    tcase_add_test(tc, text_is_not_overwritten);
    tcase_add_test(tc, text_of_unread_records_stays);
    tcase_add_test(tc, region_d_is_never_read_back);
    tcase_add_loop_test(tc, stale_events_are_dropped, 0, 2);
    tcase_add_loop_test(tc, tool_call_records, 0, 2);
    tcase_add_test(tc, nobody_reads);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
