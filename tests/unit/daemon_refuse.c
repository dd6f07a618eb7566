/* SPDX-License-Identifier: MIT */
/* What a refused request leaves as it was: kept answers, the log of broken rules; and what is cut and not refused. A
 * real daemon with scripted models. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

/* ---- the socket's directory ---- */

static void socket_in(const char *sub) {
    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 100\nrequest\ntokens 11\n");
    snprintf(f.socket, sizeof f.socket, "%s/%s/glmd.sock", f.dir, sub);
}

/* A mistyped path makes no directory, whoever mistypes it. */
START_TEST(missing_directory_is_not_made) {
    static const char *const subs[] = {"sub", "sub/glmd", "script"}; /* the last one is a file */
    char text[200];

    socket_in(subs[_i]);
    if (_i == 2)
        snprintf(f.socket, sizeof f.socket, "%.80s/glmd.sock", f.script);
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 20000), 1);
    snprintf(text, sizeof text, "socket directory %s/%s: No such file or directory; expected a directory: create it",
             f.dir, subs[_i]);
    if (_i == 2)
        snprintf(text, sizeof text, "glmd.sock.lock cannot be opened: Not a directory");
    ck_assert_msg(strstr(daemonfix_log(&f), text) != NULL, "%s", daemonfix_log(&f));
    snprintf(text, sizeof text, "%s/sub", f.dir);
    ck_assert_int_lt(access(text, F_OK), 0);
    daemonfix_done(&f);
}
END_TEST

/* The directory of a user's own default is made, and said; its parent is not. */
START_TEST(own_directory_is_made) {
    char text[160], sub[80];

    socket_in("glmd");
    snprintf(sub, sizeof sub, "%s/glmd", f.dir);
    f.uid = geteuid() ? 0 : 65534;
    ck_assert(geteuid() || (chown(f.dir, f.uid, (gid_t)-1) == 0 && chmod(f.dir, 0711) == 0));
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", f.dir, 1), 0);
    daemonfix_start(&f, NULL);
    snprintf(text, sizeof text, "made the directory %s for the socket", sub);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), text));
    daemonfix_stop(&f);
    snprintf(text, sizeof text, "%s.lock", f.socket);
    unlink(text);
    ck_assert_int_eq(rmdir(sub), 0);
    snprintf(text, sizeof text, "%s/run", f.dir);
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", text, 1), 0);
    snprintf(f.socket, sizeof f.socket, "%s/run/glmd/glmd.sock", f.dir);
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 20000), 1);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "/run/glmd cannot be made: No such file or directory"));
    ck_assert_int_eq(unsetenv("XDG_RUNTIME_DIR"), 0);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_refuse");
    TCase *t = ct_case(s, "refuse", 60);

    tcase_add_test(t, pushes_nothing_out);
    tcase_add_test(t, guesses_hide_no_fault);
    tcase_add_test(t, cut_by_the_context);
    tcase_add_loop_test(t, missing_directory_is_not_made, 0, 3);
    tcase_add_test(t, own_directory_is_made);
    return ct_main(s);
}
