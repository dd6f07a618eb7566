/* SPDX-License-Identifier: MIT */
/* Kept streams of a real daemon: whoever comes back gets every record, in order, once, as if nothing had
 * happened; nobody else gets any. Most tests run on both loops, with and without the emit thread. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "recordlog.h"
#include "tokenizer.h"

enum { VARIANTS = 4, N_ALTS = 8 };

static struct daemonfix f;
static struct rawclient c;
static struct recordlog quiet, log_of[16];
static struct tlvbuf payload;

/* 0: epoll inline, 1: epoll emit thread, 2: uring inline, 3: uring emit thread */
static const char *variant(int i, const char *conf) {
    static char text[512];

    snprintf(f.backend, sizeof f.backend, "%s", i & 2 ? "uring" : "epoll");
    snprintf(text, sizeof text, "[IPC]\nInlineConnections=%d\n%s", i & 1 ? 0 : 8, conf);
    return text;
}

/* A prompt of token ids; alternatives beside every token, and a stop string that holds text back long enough
 * to make it longer than a record. */
static void make_payload(uint32_t first_id, bool full) {
    struct glmw_sampling s = {.size = sizeof s};
    uint32_t ids[3] = {first_id, 6, 7};

    payload.len = 0;
    tlv_put(&payload, GLMW_TLV_TOKENS, ids, sizeof ids);
    if (!full)
        return;
    s.has = GLMW_HAS_N_ALTS | GLMW_HAS_TEMPERATURE;
    s.flags = GLMW_SAMP_LOGPROBS;
    s.n_alts = N_ALTS;
    tlv_put(&payload, GLMW_TLV_SAMPLING, &s, sizeof s);
    tlv_text(&payload, GLMW_TLV_STOP, "lazy dogs that sleep and sleep in the sunshinE");
}

/* A scripted answer of real text, so that parser, text and arena have their part. */
static void text_script(const char *settings, int sentences) {
    static const char sentence[] =
        "The qu\xc3\xad"
        "ck brown fox \xf0\x9f\xa6\x8a jumps over lazy dogs that sleep and sleep in the sunshine. ";
    static char script[65536];
    char dir[300];
    uint32_t ids[256];
    struct tok_scratch *scratch;
    struct tok *tok;
    struct xerr err;
    size_t n, at;

    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    strcat(dir, "/nano");
    ck_assert_msg(tok_open(dir, &tok, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(tok_scratch_new(0, &scratch), 0);
    ck_assert_int_eq(tok_encode(tok, scratch, sentence, sizeof sentence - 1, 0, ids, 256, &n), 0);
    at = (size_t)snprintf(script, sizeof script, "model %s\n%sloop\nrequest\ntokens", dir, settings);
    for (int k = 0; k < sentences; k++)
        for (size_t i = 0; i < n; i++)
            at += (size_t)snprintf(script + at, sizeof script - at, " %u", ids[i]);
    snprintf(script + at, sizeof script - at, " %lld\n", (long long)tok_id(tok, "<|user|>"));
    daemonfix_script(&f, script);
    tok_scratch_free(scratch);
    tok_free(tok);
}

static void submit(struct rawclient *to, uint64_t tag, uint8_t flags) {
    struct glmw_entry e = recordlog_submit(to, tag, flags, &payload);

    raw_submit(to, &e);
}

static void resume(struct rawclient *on, uint64_t tag, uint64_t stream_id, uint32_t from_seq) {
    struct glmw_entry e = recordlog_resume(tag, stream_id, from_seq);

    raw_submit(on, &e);
}

/* What nobody disturbs: the measure of all others. */
static void quiet_run(void) {
    raw_open(&c, f.socket, NULL);
    recordlog_begin(&quiet);
    submit(&c, 1, GLMW_ENT_QUIET);
    ck_assert(recordlog_read(&c, 1, 0, &quiet));
    ck_assert_int_eq(quiet.status, 0);
    ck_assert_uint_eq(quiet.stream_id, 0);
    raw_close(&c);
}

static void begin_kept(uint32_t read_first, struct recordlog *l) {
    raw_open(&c, f.socket, NULL);
    recordlog_begin(l);
    submit(&c, 1, GLMW_ENT_QUIET | GLMW_ENT_KEEP);
    recordlog_read(&c, 1, read_first, l);
    ck_assert_uint_ne(l->stream_id, 0);
}

static void refused(struct rawclient *on, uint64_t tag, int status, char *ret_text) {
    struct glmw_rec r;

    ck_assert(raw_record(on, &r, 10000, true));
    ck_assert_uint_eq(r.tag, tag);
    ck_assert_msg(r.type == GLMW_REC_ERROR, "type %u instead of ERROR", r.type);
    ck_assert_uint_eq(r.seq, 0);
    ck_assert_int_eq((int32_t)r.token, status);
    if (ret_text) {
        memcpy(ret_text, (const char *)on->view.d + on->view.geom.txt_off + r.text_off, r.text_len);
        ret_text[r.text_len] = 0;
    }
    ck_assert(raw_record(on, &r, 10000, false));
    ck_assert_uint_eq(r.type, GLMW_REC_END);
    ck_assert_uint_eq(r.seq, 1);
    ck_assert_int_eq(r.u.end.status, status);
}

static void nothing_more(struct rawclient *on) {
    struct glmw_rec r;

    ck_assert_msg(!raw_record(on, &r, 20, false), "a record of type %u after the last word", r.type);
}

static void finish(void) {
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

/* ---- the records ----------------------------------------------------------------------------------------
 */

/* A client that breaks off at any point, up to four times, and comes back. */
START_TEST(cut_anywhere) {
    struct ipc_rng rng = {.s = 0x9e3779b97f4a7c15u + (uint64_t)_i};

    daemonfix_init(&f);
    text_script("step-us 150\n", 3);
    daemonfix_start(&f, variant(_i, ""));
    make_payload(5, true);
    quiet_run();
    ck_assert_uint_gt(quiet.n, 200);
    for (int round = 0; round < 24; round++) {
        struct recordlog *l = &log_of[0];
        bool ended;

        begin_kept(1 + ipc_below(&rng, quiet.n - 1), l);
        ended = l->status != 1;
        for (int cuts = 0; !ended; cuts++) {
            uint64_t id = l->stream_id;

            raw_close(&c);
            usleep(ipc_below(&rng, 4) * 2000);
            raw_open(&c, f.socket, NULL);
            resume(&c, 7, id, recordlog_next(l));
            ended = recordlog_read(&c, 7, cuts < 3 ? 1 + ipc_below(&rng, quiet.n / 2) : 0, l);
            ck_assert_uint_eq(l->stream_id, id);
        }
        nothing_more(&c);
        raw_close(&c);
        recordlog_expect_same(l, &quiet);
    }
    finish();
}
END_TEST

/* The same where the client is a process that is killed. */
START_TEST(client_is_killed) {
    daemonfix_init(&f);
    text_script("step-us 2000\n", 2);
    daemonfix_start(&f, variant(_i, ""));
    make_payload(5, true);
    quiet_run();
    for (uint32_t n = 1; n < 60; n += 19) {
        struct recordlog *l = &log_of[0];
        int pipes[2], status;
        pid_t pid;

        ck_assert_int_eq(pipe(pipes), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            begin_kept(n, l);
            if (write(pipes[1], l, sizeof *l) == (ssize_t)sizeof *l)
                raise(SIGKILL);
            _exit(1);
        }
        close(pipes[1]);
        for (size_t at = 0; at < sizeof *l;) {
            ssize_t got = read(pipes[0], (char *)l + at, sizeof *l - at);

            ck_assert_int_gt(got, 0);
            at += (size_t)got;
        }
        close(pipes[0]);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        raw_open(&c, f.socket, NULL);
        resume(&c, 2, l->stream_id, recordlog_next(l));
        ck_assert(recordlog_read(&c, 2, 0, l));
        nothing_more(&c);
        raw_close(&c);
        recordlog_expect_same(l, &quiet);
    }
    finish();
}
END_TEST

/* From every record of an ended stream; from the alternatives of a token, behind them. */
START_TEST(ended_stream_from_anywhere) {
    struct recordlog *l = &log_of[0];
    uint32_t end;
    uint64_t id;

    daemonfix_init(&f);
    text_script("", 1);
    daemonfix_start(&f, variant(_i, ""));
    make_payload(5, true);
    begin_kept(0, l);
    ck_assert_int_eq(l->status, 0);
    end = l->n - 1;
    id = l->stream_id;
    quiet = *l;
    for (uint32_t from = 0; from <= end; from++) {
        uint32_t start = from ? from : 1;
        struct glmw_rec r;

        while (quiet.rec[start].type == GLMW_REC_ALTS)
            start++;
        resume(&c, 100 + from, id, from);
        ck_assert(raw_record(&c, &r, 10000, false));
        ck_assert_uint_eq(r.type, GLMW_REC_ACCEPTED);
        ck_assert_uint_eq(r.seq, start - 1);
        ck_assert_uint_eq(r.u.accepted.stream_id, id);
        l->n = start;
        l->n_text = quiet.text_at[start];
        ck_assert(recordlog_read(&c, 100 + from, 0, l));
        recordlog_expect_same(l, &quiet);
    }
    resume(&c, 90, id, end + 1);
    refused(&c, 90, -ENODATA, NULL);
    resume(&c, 91, id, UINT32_MAX);
    refused(&c, 91, -ENODATA, NULL);
    nothing_more(&c);
    raw_close(&c);
    finish();
}
END_TEST

/* 64 KiB are 1024 records without text: one more is too old, and a running stream's oldest fall out too. */
START_TEST(too_old) {
    struct recordlog *l = &log_of[0];
    uint64_t id;

    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 100\nrequest\ntokens 11 12 13\nrepeat\n");
    daemonfix_start(&f, variant(_i, ""));
    make_payload(5, false);
    raw_open(&c, f.socket, NULL);
    recordlog_begin(l);
    {
        struct glmw_entry e = recordlog_submit(&c, 1, GLMW_ENT_QUIET | GLMW_ENT_KEEP, &payload);

        e.max_tokens = 3000;
        raw_submit(&c, &e);
    }
    ck_assert(recordlog_read(&c, 1, 0, l));
    id = l->stream_id;
    quiet = *l;
    resume(&c, 2, id, l->n - 1025);
    refused(&c, 2, -ENODATA, NULL);
    resume(&c, 3, id, 0);
    refused(&c, 3, -ENODATA, NULL);
    l->n -= 1024;
    resume(&c, 4, id, l->n);
    ck_assert(recordlog_read(&c, 4, 0, l));
    recordlog_expect_same(l, &quiet);
    raw_close(&c);
    finish();
}
END_TEST

/* A reader with the smallest ring and arena, that pauses: the rest of the answer waits for it. */
START_TEST(slow_reader_of_a_replay) {
    struct hello_msg small = raw_hello();
    struct recordlog *l = &log_of[0];
    uint64_t id;

    small.u.hello.tq_log2 = GLMW_TQ_LOG2_MIN;
    small.u.hello.txt_log2 = GLMW_TXT_LOG2_MIN;
    daemonfix_init(&f);
    text_script("step-us 100\n", 6);
    daemonfix_start(&f, variant(_i, ""));
    make_payload(5, false);
    quiet_run();
    begin_kept(3, l);
    id = l->stream_id;
    raw_close(&c);
    usleep(5000);
    raw_open(&c, f.socket, &small);
    resume(&c, 2, id, l->n);
    while (!recordlog_read(&c, 2, 40, l)) {
        usleep(3000);
        raw_bell(&c);
    }
    recordlog_expect_same(l, &quiet);
    nothing_more(&c);
    raw_close(&c);
    finish();
}
END_TEST

/* ---- who has it ------------------------------------------------------------------------------------------
 */

static void expect_taken_away(struct rawclient *from, uint64_t tag, uint32_t seq, int status,
                              unsigned reason) {
    struct glmw_rec r;

    do {
        ck_assert(raw_record(from, &r, 10000, false));
        ck_assert_uint_eq(r.tag, tag);
        ck_assert_uint_eq(r.seq, seq++);
    } while (r.type != GLMW_REC_ERROR);
    ck_assert_int_eq((int32_t)r.token, status);
    ck_assert(raw_record(from, &r, 10000, false));
    ck_assert_uint_eq(r.type, GLMW_REC_USAGE);
    ck_assert_uint_eq(r.seq, seq++);
    ck_assert(raw_record(from, &r, 10000, false));
    ck_assert_uint_eq(r.type, GLMW_REC_END);
    ck_assert_uint_eq(r.seq, seq);
    ck_assert_int_eq(r.u.end.status, status);
    ck_assert_uint_eq(r.u.end.reason, reason);
}

/* The old tag gets its one END and is free; the new one gets the answer whole. Also on the same connection.
 */
START_TEST(taken_from_a_live_tag) {
    struct recordlog *l = &log_of[0];
    struct rawclient other;
    uint32_t seq;

    daemonfix_init(&f);
    text_script("step-us 1000\n", 2);
    daemonfix_start(&f, variant(_i, ""));
    make_payload(5, true);
    quiet_run();
    begin_kept(10, l);
    seq = l->n;
    raw_open(&other, f.socket, NULL);
    resume(&other, 1, l->stream_id, recordlog_next(l));
    recordlog_read(&other, 1, 10, l);
    expect_taken_away(&c, 1, seq, -ECANCELED, GLMW_END_CANCELED);
    seq = l->n;
    resume(&other, 2, l->stream_id, recordlog_next(l));
    expect_taken_away(&other, 1, seq, -ECANCELED, GLMW_END_CANCELED);
    ck_assert(recordlog_read(&other, 2, 0, l));
    recordlog_expect_same(l, &quiet);
    nothing_more(&other);
    /* the tag that lost it is free: not free would end the connection */
    submit(&c, 1, GLMW_ENT_QUIET);
    ck_assert_int_eq(raw_until_end(&c, 1, NULL), 0);
    nothing_more(&c);
    raw_close(&c);
    raw_close(&other);
    finish();
}
END_TEST

/* Sixteen streams handed from connection to connection while they run. */
START_TEST(storm) {
    enum { STREAMS = 12, CONNS = 3 };
    struct ipc_rng rng = {.s = 0xabcdef + (uint64_t)_i};
    struct rawclient conns[CONNS];
    uint64_t tags = 100;
    int before, left = STREAMS;

    daemonfix_init(&f);
    text_script("step-us 200\n", 4);
    daemonfix_start(&f, variant(_i, ""));
    before = daemonfix_resources(&f);
    make_payload(5, true);
    quiet_run();
    for (int i = 0; i < CONNS; i++)
        raw_open(&conns[i], f.socket, NULL);
    for (int i = 0; i < STREAMS; i++) {
        recordlog_begin(&log_of[i]);
        submit(&conns[i % CONNS], (uint64_t)i + 1, GLMW_ENT_QUIET | GLMW_ENT_KEEP);
        /* tags are read one after the other, so each connection has one that is read to its ACCEPTED */
        recordlog_read(&conns[i % CONNS], (uint64_t)i + 1, 1, &log_of[i]);
    }
    while (left > 0) {
        int k = (int)ipc_below(&rng, CONNS);

        raw_close(&conns[k]);
        raw_open(&conns[k], f.socket, NULL);
        for (int n = 0; n < 3; n++) {
            struct recordlog *l = &log_of[ipc_below(&rng, STREAMS)];

            if (l->status != 1)
                continue;
            resume(&conns[k], ++tags, l->stream_id, recordlog_next(l));
            left -= recordlog_read(&conns[k], tags, 1 + ipc_below(&rng, quiet.n), l);
        }
    }
    for (int i = 0; i < STREAMS; i++)
        recordlog_expect_same(&log_of[i], &quiet);
    for (int i = 0; i < CONNS; i++)
        raw_close(&conns[i]);
    daemonfix_expect_resources(&f, before);
    finish();
}
END_TEST

/* Numbers that were never given, with one that was: all get the same answer, and no stream is touched. */
START_TEST(guesses) {
    struct ipc_rng rng = {.s = 77};
    char first[4097] = "", text[4097];
    struct recordlog *l = &log_of[0];
    struct rawclient guesser;

    daemonfix_init(&f);
    text_script("step-us 500\n", 1);
    daemonfix_start(&f, NULL);
    make_payload(5, true);
    quiet_run();
    begin_kept(5, l);
    raw_open(&guesser, f.socket, NULL);
    for (uint64_t i = 0; i < 500; i++) {
        uint64_t id = i < 64 ? l->stream_id ^ UINT64_C(1) << i : i == 64 ? 0 : ipc_rand(&rng);

        resume(&guesser, i + 1, id, 1);
        refused(&guesser, i + 1, -ENODATA, i ? text : first);
        if (i)
            ck_assert_str_eq(text, first);
    }
    daemonfix_expect_log(&f, "unknown or not this user's (process ");
    /* one that exists, from a record that does not: nobody can tell it from the others */
    resume(&guesser, 1000, l->stream_id, 1000000);
    refused(&guesser, 1000, -ENODATA, text);
    ck_assert_str_eq(text, first);
    ck_assert(recordlog_read(&c, 1, 0, l));
    recordlog_expect_same(l, &quiet);
    raw_close(&c);
    raw_close(&guesser);
    finish();
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_resume");
    TCase *tc = tcase_create("resume");
    int n = daemonfix_loops() == 2 ? VARIANTS : VARIANTS / 2;
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, cut_anywhere, 0, n);
    tcase_add_loop_test(tc, client_is_killed, 0, 2);
    tcase_add_loop_test(tc, ended_stream_from_anywhere, 0, 2);
    tcase_add_loop_test(tc, too_old, 0, 2);
    tcase_add_loop_test(tc, slow_reader_of_a_replay, 0, n);
    tcase_add_loop_test(tc, taken_from_a_live_tag, 0, n);
    tcase_add_loop_test(tc, storm, 0, n);
    tcase_add_test(tc, guesses);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
