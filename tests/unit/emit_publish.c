/* SPDX-License-Identifier: MIT */
/* emit between a played engine and a client on the rings: last words always fit, text comes before END and is
 * never overwritten before it was read, stale events are dropped, tool calls become records, and engine, emit
 * thread and io thread may publish on one connection at once. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bell.h"
#include "busguard.h"
#include "daemonfix.h"
#include "emit.h"
#include "leakcheck.h"
#include "outtools.h"
#include "shm.h"
#include "stopstr.h"
#include "tokenizer.h"

enum { MAX_STREAMS = 32 };

struct client {
    struct shm_pair pair;
    struct bell bell;
    struct shm_view view;
    struct glmw_consumer tq;
    struct emit_conn *conn;
};

static struct emit *e;
static struct stream_sink sink;
static struct tok *tok;
static _Atomic int kicks, wakes, cancels;
static _Atomic int retired;

static void on_kick(void *ctx) {
    (void)ctx;
    kicks++;
}

static void on_wake(void *ctx) {
    (void)ctx;
    wakes++;
}

static void on_cancel(void *ctx, struct stream_id id) {
    (void)ctx;
    (void)id;
    cancels++;
}

static void on_retired(void *ctx, void *owner) {
    (void)ctx;
    (void)owner;
    retired++;
}

static void begin(uint32_t inline_conns, bool text) {
    struct emit_options o = {.max_streams = MAX_STREAMS, .inline_conns = inline_conns, .kick = on_kick,
                             .wake_io = on_wake, .cancel = on_cancel};
    uint32_t eos[1];
    char dir[300];
    struct xerr err;

    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(busguard_install(), 0);
    kicks = wakes = cancels = retired = 0;
    ck_assert_int_eq(emit_new(&o, &e), 0);
    if (text) {
        snprintf(dir, sizeof dir, "%s/nano", daemonfix_models());
        ck_assert_msg(tok_open(dir, &tok, &err) == 0, "%s", err.msg);
        eos[0] = (uint32_t)tok_id(tok, "<|user|>");
        ck_assert_msg(emit_set_text(e, tok, eos, 1, &err) == 0, "%s", err.msg);
    }
    emit_get_sink(e, &sink);
    ck_assert_int_eq(emit_start(e), 0);
}

static void finish(void) {
    emit_stop(e);
    emit_take_retired(e, on_retired, NULL);
    e = emit_free(e);
    tok = tok_free(tok);
}

static void client_open(struct client *c, unsigned tq_log2, unsigned txt_log2) {
    struct shm_ident id = {.wire = 1, .features = 5, .generation = 6, .conn_id = 7};
    struct shm_geom g;
    struct glmw_producer unused;
    struct glmw_welcome w = {.wire = 1, .features = 5, .generation = 6, .conn_id = 7};

    ck_assert_int_eq(shm_geom_init(4, tq_log2, 16, txt_log2, &g), 0);
    ck_assert_int_eq(shm_pair_create(&g, &id, &c->pair), 0);
    ck_assert_int_eq(bell_open(&c->bell), 0);
    w.u_bytes = g.u_bytes;
    w.d_bytes = g.d_bytes;
    w.sq_off = g.sq_off;
    w.pay_off = g.pay_off;
    w.tq_off = g.tq_off;
    w.txt_off = g.txt_off;
    w.sq_log2 = g.sq_log2;
    w.tq_log2 = g.tq_log2;
    w.pay_log2 = g.pay_log2;
    w.txt_log2 = g.txt_log2;
    ck_assert_int_eq(shm_view_map(&w, c->pair.u_fd, c->pair.d_fd, &c->view), 0);
    shm_view_rings(&c->view, &unused, &c->tq);
    ck_assert_int_eq(emit_conn_new(e, &c->pair, c->bell.pipe_w, &c->conn), 0);
}

static void client_close(struct client *c) {
    emit_conn_close(c->conn);
    emit_take_retired(e, on_retired, NULL);
    ck_assert_uint_eq(emit_conn_live(c->conn), 0);
    emit_conn_free(c->conn);
    shm_view_done(&c->view);
    shm_pair_done(&c->pair);
    bell_close(&c->bell);
}

/* The next record, which stays unread until the next call gives it back. */
static bool take(struct client *c, struct glmw_rec *r) {
    glmw_give_back(&c->tq, &c->view.d->credit_wanted);
    if (glmw_peek(&c->tq) <= 0)
        return false;
    glmw_take(&c->tq, r);
    return true;
}

static const uint8_t *text_of(const struct client *c, const struct glmw_rec *r) {
    if (r->flags & GLMW_RF_INLINE)
        return r->u.text;
    return (const uint8_t *)c->view.d + c->view.geom.txt_off + r->text_off;
}

static struct stream_id accept_stream(struct client *c, uint64_t tag, uint32_t n_alts, bool thinking) {
    struct emit_accept a = {.tag = tag};
    struct emit_bind b = {.n_alts = n_alts, .thinking_open = thinking};
    struct stream_id id;
    int r = emit_conn_accept(c->conn, &a, &id);

    ck_assert_msg(r == 0, "accept: %d", r);
    emit_stream_bind(e, id, &b);
    return id;
}

static struct stream_event token_event(struct stream_id id, uint32_t token) {
    return (struct stream_event){.stream = id, .type = STREAM_EV_TOKEN, .token = token, .logprob = NAN, .t_ns = 1};
}

static struct stream_event end_event(struct stream_id id, enum stream_reason reason, int status) {
    return (struct stream_event){.stream = id, .type = STREAM_EV_END, .reason = (uint16_t)reason, .status = status,
                                 .token = UINT32_MAX, .u.usage = {.prompt = 3, .completion = 9}};
}

/* Every stream runs until it has no credit, nobody reads, and then all end with an error: 3 records each that
 * must fit. */
START_TEST(last_words_fit) {
    struct stream_id id[8];
    struct client c;
    struct glmw_rec r;
    uint32_t ends = 0, errors = 0, tokens = 0, sent = 0;

    begin(8, false);
    client_open(&c, 6, 16);
    for (int i = 0; i < 8; i++)
        id[i] = accept_stream(&c, (uint64_t)i + 1, 0, false);
    for (int round = 0; round < 200; round++)
        for (int i = 0; i < 8; i++) {
            struct stream_event ev = token_event(id[i], 40);

            if (atomic_load(&sink.credit[id[i].index].records) < stream_token_records(0))
                continue;
            sink.publish(sink.ctx, &ev, 1);
            sent++;
        }
    ck_assert_uint_gt(sent, 16);
    ck_assert_uint_lt(sent, 64);
    for (int i = 0; i < 8; i++) {
        struct stream_event ev = end_event(id[i], STREAM_END_ERROR, -EIO);

        sink.publish(sink.ctx, &ev, 1);
    }
    ck_assert_int_eq(emit_conn_error(c.conn), 0);
    for (int round = 0; round < 3; round++) { /* a token that lost a race for a slot waits, and its END behind it */
        while (take(&c, &r)) {
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
    emit_take_retired(e, on_retired, NULL);
    ck_assert_int_eq(retired, 8);
    client_close(&c);
    finish();
}
END_TEST

/* What does not fit waits in the outbox, and END waits behind it. */
START_TEST(end_comes_after_the_text) {
    struct client c;
    struct glmw_rec r;
    struct stream_id id;
    struct stream_event ev;
    uint32_t tokens = 0, seq = 0;
    bool ended = false;

    begin(8, false);
    client_open(&c, 6, 16);
    id = accept_stream(&c, 5, 0, false);
    for (uint32_t i = 0; i < 100; i++) { /* an engine that does not look at credit */
        ev = token_event(id, 1000 + i);
        sink.publish(sink.ctx, &ev, 1);
    }
    ev = end_event(id, STREAM_END_LENGTH, 0);
    sink.publish(sink.ctx, &ev, 1);
    ck_assert_uint_eq(glmw_fetch32(&c.view.d->credit_wanted), 1);
    for (int round = 0; round < 10 && !ended; round++) {
        while (take(&c, &r)) {
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
    client_close(&c);
    finish();
}
END_TEST

/* Long pieces of text through the smallest arena, read late: every byte as it was. */
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
    struct client c;
    struct glmw_rec r;
    uint32_t ids[64];
    size_t lens[1];

    begin(8, true);
    client_open(&c, 6, 16);
    /* a stop string that nearly matches again and again: text is held back and comes in long pieces */
    for (size_t i = 0; i + sizeof word < sizeof stop; i += sizeof word - 1)
        memcpy(stop + i, word, sizeof word);
    strcat(stop, "#");
    stops[0] = stop;
    lens[0] = strlen(stop);
    ck_assert_int_eq(stopstr_set_init(&set, stops, lens, 1), 0);
    b.stop = &set;
    ck_assert_int_eq(emit_conn_accept(c.conn, &a, &id), 0);
    emit_stream_bind(e, id, &b);
    ck_assert_int_eq(tok_scratch_new(0, &scratch), 0);
    ck_assert_int_eq(tok_encode(tok, scratch, word, strlen(word), 0, ids, 64, &n_ids), 0);
    for (int round = 0; round < 3000; round++) {
        char tail[32];
        size_t n_tail;
        uint32_t tail_ids[32];

        for (int k = 0; k < 1 + round % 21; k++) {
            for (size_t i = 0; i < n_ids; i++) {
                struct stream_event ev = token_event(id, ids[i]);

                sink.publish(sink.ctx, &ev, 1);
            }
            memcpy(want + n_want, word, strlen(word));
            n_want += strlen(word);
        }
        snprintf(tail, sizeof tail, "(%d)", round);
        ck_assert_int_eq(tok_encode(tok, scratch, tail, strlen(tail), 0, tail_ids, 32, &n_tail), 0);
        for (size_t i = 0; i < n_tail; i++) {
            struct stream_event ev = token_event(id, tail_ids[i]);

            sink.publish(sink.ctx, &ev, 1);
        }
        memcpy(want + n_want, tail, strlen(tail));
        n_want += strlen(tail);
        for (int k = 0; k < 400; k++) { /* never quite up to date, so that text lies about unread */
            for (int m = 0; m < 30 && take(&c, &r); m++) {
                memcpy(got + n_got, text_of(&c, &r), r.text_len);
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
        while (take(&c, &r)) {
            memcpy(got + n_got, text_of(&c, &r), r.text_len);
            n_got += r.text_len;
        }
        emit_conn_resume(c.conn);
    }
    ck_assert_int_eq(cancels, 0);
    ck_assert_uint_gt(n_got, 500000);
    ck_assert_int_eq(memcmp(got, want, n_got), 0);
    ck_assert_uint_ge(n_got + strlen(stop), n_want);
    struct stream_event ev = end_event(id, STREAM_END_LENGTH, 0);
    sink.publish(sink.ctx, &ev, 1);
    client_close(&c);
    tok_scratch_free(scratch);
    finish();
}
END_TEST

/* No period, so that text written over other text is never the same by chance. */
static uint32_t scatter(uint32_t i) {
    return i * 2654435761u >> 16;
}

/* More text than the arena holds, in records that fit the ring: what was not given back must stay as it was. */
START_TEST(text_of_unread_records_stays) {
    enum { ROUNDS = 30, EACH = 300 };
    uint32_t words[64], n_words = 0, sent = 0, seen = 0;
    struct client c;
    struct glmw_rec r;
    struct stream_id id;
    const uint8_t *bytes;
    size_t n;

    begin(8, true);
    client_open(&c, 12, 16);
    /* tokens whose text is longer than a record takes inline */
    for (uint32_t i = 0; i < tok_size(tok) && n_words < 64; i++)
        if (tok_bytes(tok, i, &bytes, &n) == 0 && n > 24)
            words[n_words++] = i;
    ck_assert_msg(n_words > 1, "the tokenizer has no tokens of more than 24 bytes");
    id = accept_stream(&c, 5, 0, false);
    ck_assert(take(&c, &r)); /* ACCEPTED */
    for (int i = 0; i < 3000; i++) {
        struct stream_event ev = token_event(id, words[scatter(sent++) % n_words]);

        sink.publish(sink.ctx, &ev, 1);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < EACH && take(&c, &r); i++) {
            tok_bytes(tok, words[scatter(seen++) % n_words], &bytes, &n);
            ck_assert_uint_eq(r.text_len, n);
            ck_assert_msg(memcmp(text_of(&c, &r), bytes, n) == 0, "record %u has another record's text", seen - 1);
        }
        emit_conn_resume(c.conn);
        for (int i = 0; i < EACH; i++) {
            struct stream_event ev = token_event(id, words[scatter(sent++) % n_words]);

            sink.publish(sink.ctx, &ev, 1);
        }
    }
    ck_assert_uint_gt(seen, 5000);
    struct stream_event ev = end_event(id, STREAM_END_LENGTH, 0);
    sink.publish(sink.ctx, &ev, 1);
    client_close(&c);
    finish();
}
END_TEST

START_TEST(stale_events_are_dropped) {
    struct client c;
    struct glmw_rec r;
    struct stream_id id, old;
    struct stream_event ev;

    begin(_i ? 8 : 0, false);
    client_open(&c, 8, 16);
    old = accept_stream(&c, 1, 0, false);
    ev = end_event(old, STREAM_END_CANCELLED, -ECANCELED);
    sink.publish(sink.ctx, &ev, 1);
    while (retired < 1)
        emit_take_retired(e, on_retired, NULL);
    do {
        id = accept_stream(&c, 2, 0, false);
        if (id.index != old.index)
            emit_stream_fail(e, id, -ECANCELED, NULL);
    } while (id.index != old.index);
    ck_assert_uint_ne(id.gen, old.gen);
    ev = token_event(old, 77);
    sink.publish(sink.ctx, &ev, 1);
    ev = end_event(old, STREAM_END_STOP, 0);
    sink.publish(sink.ctx, &ev, 1);
    ev = (struct stream_event){.stream = {9999, 1}, .type = STREAM_EV_TOKEN};
    sink.publish(sink.ctx, &ev, 1);
    ev = end_event(id, STREAM_END_CANCELLED, -ECANCELED);
    sink.publish(sink.ctx, &ev, 1);
    while (retired < MAX_STREAMS + 1) /* every slot was used once, the first one twice */
        emit_take_retired(e, on_retired, NULL);
    while (take(&c, &r)) {
        ck_assert_uint_ne(r.type, GLMW_REC_TOKEN);
        if (r.type == GLMW_REC_END)
            ck_assert_int_eq(r.u.end.status, -ECANCELED);
    }
    client_close(&c);
    finish();
}
END_TEST

static void push_text(struct stream_id id, struct tok_scratch *s, const char *text) {
    uint32_t ids[256];
    size_t n;

    ck_assert_int_eq(tok_encode(tok, s, text, strlen(text), TOK_MARKERS, ids, 256, &n), 0);
    for (size_t i = 0; i < n; i++) {
        struct stream_event ev = token_event(id, ids[i]);

        sink.publish(sink.ctx, &ev, 1);
    }
}

START_TEST(tool_call_records) {
    static const char tool[] = "{\"type\":\"function\",\"function\":{\"name\":\"wx\",\"parameters\":{\"type\":\"object\","
                               "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}}";
    struct tstr list = {tool, sizeof tool - 1};
    struct emit_accept a = {.tag = 3};
    struct emit_bind b = {.thinking_open = true};
    struct outtools *tools;
    struct tok_scratch *scratch;
    char name[64] = "", args[256] = "", reasoning[64] = "", content[64] = "";
    uint32_t begins = 0, ends = 0;
    struct client c;
    struct glmw_rec r;
    struct stream_id id;
    struct stream_event ev;
    struct xerr err;

    begin(8, true);
    client_open(&c, 8, 16);
    ck_assert_int_eq(tok_scratch_new(0, &scratch), 0);
    ck_assert_int_eq(outtools_new(&list, 1, &tools, &err), 0);
    b.tools = tools;
    ck_assert_int_eq(emit_conn_accept(c.conn, &a, &id), 0);
    emit_stream_bind(e, id, &b);
    push_text(id, scratch, "Need it.</think>Wait.<tool_call>wx<arg_key>city</arg_key><arg_value>Lima</arg_value>"
                           "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>");
    ev = end_event(id, STREAM_END_STOP, 0);
    ev.token = (uint32_t)tok_id(tok, "<|observation|>");
    sink.publish(sink.ctx, &ev, 1);
    while (take(&c, &r)) {
        char *to = r.channel == GLMW_CH_TOOL_NAME ? name : r.channel == GLMW_CH_TOOL_ARGS ? args
                   : r.channel == GLMW_CH_REASONING ? reasoning : content;

        if (r.type == GLMW_REC_TOKEN || r.type == GLMW_REC_TEXT)
            strncat(to, (const char *)text_of(&c, &r), r.text_len);
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
    ck_assert_uint_eq(begins, 1);
    ck_assert_uint_eq(ends, 1);
    client_close(&c);
    outtools_free(tools);
    tok_scratch_free(scratch);
    finish();
}
END_TEST

/* ---- three publishers ------------------------------------------------------------------------------------ */

enum { CONNS = 3, PER_CONN = 3, TOKENS = 4000 };
static struct client clients[CONNS];
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
                if (atomic_load(&sink.credit[id.index].records) < stream_token_records(0) &&
                    sink.refresh(sink.ctx, id) < stream_token_records(0))
                    continue;
                ev[n++] = sent[i][k] < TOKENS ? token_event(id, sent[i][k]) : end_event(id, STREAM_END_LENGTH, 0);
                sent[i][k]++;
            }
        if (n)
            sink.publish(sink.ctx, ev, n);
    }
    engine_done = true;
    return NULL;
}

/* io refuses, resumes and asks all the while; readers read; the order of every tag must be whole. */
START_TEST(publishers_do_not_mix) {
    uint32_t next[CONNS][PER_CONN] = {{0}}, seq[CONNS][PER_CONN + 2] = {{0}}, refusals = 0, seen = 0, ended = 0;
    pthread_t t;

    begin((uint32_t)_i, false); /* 0: emit thread, 3: inline with io in the way */
    for (int i = 0; i < CONNS; i++) {
        client_open(&clients[i], 7, 16);
        for (int k = 0; k < PER_CONN; k++)
            ids_of[i][k] = accept_stream(&clients[i], (uint64_t)k + 1, 0, false);
    }
    engine_done = false;
    ck_assert_int_eq(pthread_create(&t, NULL, engine, NULL), 0);
    for (uint32_t turn = 0; ended < CONNS * PER_CONN; turn++)
        for (int i = 0; i < CONNS; i++) {
            struct emit_conn_stats st;
            struct glmw_rec r;

            if (turn % 8 == 0 && emit_conn_refuse(clients[i].conn, 99, -EBUSY, "a reason of more than 24 bytes") == 0)
                refusals++;
            if (turn % 64 == 0)
                emit_conn_get_stats(clients[i].conn, &st);
            while (take(&clients[i], &r)) {
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
    emit_stop(e);
    for (int i = 0; i < CONNS; i++) {
        struct glmw_rec r;

        while (take(&clients[i], &r))
            seen += r.type == GLMW_REC_END;
        ck_assert_int_eq(emit_conn_error(clients[i].conn), 0);
        client_close(&clients[i]);
    }
    ck_assert_uint_gt(refusals, 0);
    ck_assert_uint_eq(seen, refusals);
    finish();
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
    tcase_add_test(tc, end_comes_after_the_text);
    tcase_add_test(tc, text_is_not_overwritten);
    tcase_add_test(tc, text_of_unread_records_stays);
    tcase_add_loop_test(tc, stale_events_are_dropped, 0, 2);
    tcase_add_test(tc, tool_call_records);
    tcase_add_loop_test(tc, publishers_do_not_mix, 0, 1);
    tcase_add_loop_test(tc, publishers_do_not_mix, 3, 4);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
