/* SPDX-License-Identifier: MIT */
/* What a refused request leaves as it was: kept answers, the log of broken rules; and what is cut and not refused. A
 * real daemon with scripted models. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clienttest.h"
#include "daemonfix.h"
#include "log.h"
#include "rawclient.h"

static struct daemonfix f;
static struct rawclient c;

static void start(const char *script, const char *conf) {
    daemonfix_init(&f);
    daemonfix_script(&f, script);
    daemonfix_start(&f, conf);
    raw_open(&c, f.socket, NULL);
}

static void finish(void) {
    raw_close(&c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

/* The next record of this tag that is of this type; those of others may lie between. */
static struct glmw_rec next(uint64_t tag, unsigned type) {
    struct glmw_rec r;

    do
        ck_assert_msg(raw_record(&c, &r, 15000, false), "no record of type %u", type);
    while (r.tag != tag || (r.type != type && r.type != GLMW_REC_END));
    ck_assert_msg(r.type == type, "END with status %d in place of type %u", r.u.end.status, type);
    return r;
}

static void submit(uint64_t tag, uint16_t flags) {
    struct glmw_entry e = raw_request(&c, tag);

    e.flags = flags | GLMW_ENT_QUIET;
    raw_submit(&c, &e);
}

static void resume(uint64_t tag, uint64_t stream_id) {
    raw_submit(&c, &(struct glmw_entry){.opcode = GLMW_OP_RESUME, .tag = tag, .payload_off = stream_id});
}

/* A request that finds no room takes nothing away: what it would have pushed out can still be fetched; one that is
 * accepted pushes it out. */
START_TEST(pushes_nothing_out) {
    uint64_t id;

    start("vocab 100\nstop 2\nstep-us 2000\nrequest\ntokens 11 12 2\nrequest\ntokens 13\nrepeat\nrequest\ntokens 2\n",
          "MaxSequences=1\nMaxRequests=1\n[Quota]\nMaxKeptStreamsPerUid=1\n");
    submit(1, GLMW_ENT_KEEP);
    id = next(1, GLMW_REC_ACCEPTED).u.accepted.stream_id;
    ck_assert_uint_ne(id, 0);
    ck_assert_int_eq(next(1, GLMW_REC_END).u.end.status, 0);
    submit(2, 0);
    next(2, GLMW_REC_ACCEPTED);
    submit(3, GLMW_ENT_KEEP);
    ck_assert_int_eq(next(3, GLMW_REC_END).u.end.status, -EBUSY);
    raw_submit(&c, &(struct glmw_entry){.opcode = GLMW_OP_CANCEL, .tag = 2});
    ck_assert_int_eq(next(2, GLMW_REC_END).u.end.status, -ECANCELED);
    resume(4, id);
    ck_assert_uint_eq(next(4, GLMW_REC_TOKEN).token, 11);
    ck_assert_uint_eq(next(4, GLMW_REC_TOKEN).token, 12);
    ck_assert_int_eq(next(4, GLMW_REC_END).u.end.status, 0);
    submit(5, GLMW_ENT_KEEP);
    ck_assert_int_eq(next(5, GLMW_REC_END).u.end.status, 0);
    resume(6, id);
    ck_assert_int_eq(next(6, GLMW_REC_END).u.end.status, -ENODATA);
    finish();
}
END_TEST

/* However many streams somebody asks for in vain, the rule that is broken then is still named. */
START_TEST(guesses_hide_no_fault) {
    start("vocab 100\nstop 2\nloop\nrequest\ntokens 11 2\n", NULL);
    for (uint64_t i = 0; i < LOG_RATE_BURST + 5; i++) {
        resume(1, 1000 + i);
        ck_assert_int_eq(next(1, GLMW_REC_END).u.end.status, -ENODATA);
    }
    raw_submit(&c, &(struct glmw_entry){.opcode = GLMW_OP_SUBMIT});
    ck_assert_int_eq(raw_expect_close(c.fd), -EPROTO);
    daemonfix_expect_log(&f, "a submission entry without a tag");
    finish();
}
END_TEST

/* An answer longer than the context takes is no error, but its END says what it met. */
START_TEST(cut_by_the_context) {
    struct glmw_entry e;
    struct glmw_rec r;

    start("vocab 100\ncontext 64\nstop 2\nloop\nrequest\ntokens 11\nrepeat\n", NULL);
    for (uint32_t i = 0; i < 3; i++) {
        static const uint32_t max[] = {UINT32_MAX, 0, 7};

        e = raw_request(&c, i + 1);
        e.max_tokens = max[i];
        raw_submit(&c, &e);
        r = next(i + 1, GLMW_REC_END);
        ck_assert_int_eq(r.u.end.status, 0);
        ck_assert_uint_eq(r.u.end.reason, max[i] == 7 ? GLMW_END_LENGTH : GLMW_END_CONTEXT);
        ck_assert_uint_eq(r.u.end.completion_tokens, max[i] == 7 ? 7 : 61);
    }
    finish();
}
END_TEST

/* A directory that a mistyped path made is not found by surprise. */
START_TEST(made_directory_is_told) {
    char text[160], sub[80];

    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 100\nrequest\ntokens 11\n");
    snprintf(sub, sizeof sub, "%s/sub", f.dir);
    snprintf(f.socket, sizeof f.socket, "%s/glmd.sock", sub);
    daemonfix_start(&f, NULL);
    snprintf(text, sizeof text, "made the directory %s for the socket", sub);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), text));
    daemonfix_stop(&f);
    unlink(f.socket);
    snprintf(text, sizeof text, "%s.lock", f.socket);
    unlink(text);
    ck_assert_int_eq(rmdir(sub), 0);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_refuse");
    TCase *t = ct_case(s, "refuse", 60);

    tcase_add_test(t, pushes_nothing_out);
    tcase_add_test(t, guesses_hide_no_fault);
    tcase_add_test(t, cut_by_the_context);
    tcase_add_test(t, made_directory_is_told);
    return ct_main(s);
}
