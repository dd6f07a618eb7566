/* SPDX-License-Identifier: MIT */
/* What becomes of kept streams: how long and how many are kept, whose they are, what ends them; and the way
 * to them through libglmd and glmctl. A real daemon with scripted models. */
#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conn_impl.h"
#include "daemonfix.h"
#include "leakcheck.h"
#include "rawclient.h"
#include "runprog.h"

#define TOOL TEST_BUILD "/glmctl"

static const char endless[] = "vocab 100\nstep-us 2000\nrequest\ntokens 11 12 13 14 15\nrepeat\n";
static const char short_answer[] =
    "vocab 100\nstop 2\nstep-us 2000\nloop\nrequest\ntokens 11 12 13 14 15 2\n";

static struct daemonfix f;
static struct rawclient c;
static struct runprog p;

static void start(const char *script, const char *conf) {
    daemonfix_init(&f);
    daemonfix_script(&f, script);
    daemonfix_start(&f, conf);
}

static void finish(void) {
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

/* The record must be of this type and tag. */
static struct glmw_rec next(struct rawclient *on, uint64_t tag, unsigned type) {
    struct glmw_rec r;

    ck_assert_msg(raw_record(on, &r, 10000, false), "no record of type %u", type);
    ck_assert_uint_eq(r.tag, tag);
    ck_assert_msg(r.type == type, "type %u, not %u", r.type, type);
    return r;
}

static uint64_t submit(struct rawclient *to, uint64_t tag, uint32_t deadline_ms) {
    struct glmw_entry e = raw_request(to, tag);
    struct glmw_rec r;

    e.flags = GLMW_ENT_KEEP | GLMW_ENT_QUIET;
    e.deadline_ms = deadline_ms;
    raw_submit(to, &e);
    do
        ck_assert(raw_record(to, &r, 10000, false));
    while (r.tag != tag); /* others of the connection may be on their way */
    ck_assert_uint_eq(r.type, GLMW_REC_ACCEPTED);
    return r.u.accepted.stream_id;
}

static void resume(struct rawclient *on, uint64_t tag, uint64_t stream_id) {
    struct glmw_entry e = {.opcode = GLMW_OP_RESUME, .tag = tag, .payload_off = stream_id};

    raw_submit(on, &e);
}

/* Status of the END of a tag that is attached somewhere in its stream, or refused. */
static int end_of(struct rawclient *on, uint64_t tag) {
    struct glmw_rec r;
    uint32_t seq = 0;
    bool any = false;

    do {
        ck_assert(raw_record(on, &r, 15000, false));
        if (r.type == GLMW_REC_NOTICE)
            continue;
        ck_assert_uint_eq(r.tag, tag);
        ck_assert(!any || r.seq == seq);
        any = true;
        seq = r.seq + 1;
    } while (r.type != GLMW_REC_END);
    return r.u.end.status;
}

static void wait_running(struct rawclient *on, uint32_t want) {
    struct glmw_status st = {0};

    for (int i = 0; i < 200; i++) {
        glmw_status_read(&on->view.d->status, &st);
        if (st.running + st.queued == want)
            return;
        usleep(100000);
    }
    ck_abort_msg("%u requests run or wait, not %u", st.running + st.queued, want);
}

/* ---- how long --------------------------------------------------------------------------------------------
 */

/* Nobody comes back: it is cancelled, can be fetched for as long again, and is then unknown. */
START_TEST(nobody_comes_back) {
    struct rawclient other;
    uint64_t id;

    /* slow enough for all its records to be kept */
    start("vocab 100\nstep-us 20000\nrequest\ntokens 11\nrepeat\n", "[IPC]\nKeepDisconnectedSec=2\n");
    raw_open(&other, f.socket, NULL);
    raw_open(&c, f.socket, NULL);
    id = submit(&c, 1, 0);
    ck_assert_uint_ne(id, 0);
    next(&c, 1, GLMW_REC_TOKEN);
    raw_close(&c);
    wait_running(&other, 1);
    wait_running(&other, 0);
    resume(&other, 5, id);
    ck_assert_int_eq(end_of(&other, 5), -ECANCELED);
    for (int i = 0; i < 100; i++) {
        usleep(200000);
        resume(&other, 6, id);
        if (end_of(&other, 6) == -ENODATA)
            break;
    }
    resume(&other, 6, id);
    ck_assert_int_eq(end_of(&other, 6), -ENODATA);
    raw_close(&other);
    finish();
}
END_TEST

/* Its deadline is the engine's to keep, whoever looks on. */
START_TEST(deadline_without_a_client) {
    uint64_t id;

    start(endless, NULL);
    raw_open(&c, f.socket, NULL);
    id = submit(&c, 1, 300);
    raw_close(&c);
    raw_open(&c, f.socket, NULL);
    resume(&c, 2, id);
    ck_assert_int_eq(end_of(&c, 2), -ETIMEDOUT);
    raw_close(&c);
    finish();
}
END_TEST

/* CANCEL_ALL means the tags of a connection; whoever resumes can cancel. */
START_TEST(cancelled_only_by_its_tag) {
    const struct glmw_entry all = {.opcode = GLMW_OP_CANCEL_ALL}, one = {.opcode = GLMW_OP_CANCEL, .tag = 2};
    struct glmw_rec r;
    uint64_t id;

    start(endless, NULL);
    raw_open(&c, f.socket, NULL);
    id = submit(&c, 1, 0);
    raw_close(&c);
    raw_open(&c, f.socket, NULL);
    raw_submit(&c, &all);
    resume(&c, 2, id);
    next(&c, 2, GLMW_REC_ACCEPTED);
    for (int i = 0; i < 50; i++)
        next(&c, 2, GLMW_REC_TOKEN);
    raw_submit(&c, &one);
    ck_assert_int_eq(end_of(&c, 2), -ECANCELED);
    ck_assert(!raw_record(&c, &r, 50, false));
    /* it has ended, and an ended one has nothing to cancel */
    resume(&c, 2, id);
    raw_submit(&c, &one);
    ck_assert_int_eq(end_of(&c, 2), -ECANCELED);
    ck_assert(!raw_record(&c, &r, 50, false));
    raw_close(&c);
    finish();
}
END_TEST

/* A client that does not read loses its tag, and not the answer. */
START_TEST(stalled_reader_loses_only_its_tag) {
    struct hello_msg small = raw_hello();
    struct rawclient other;
    uint32_t seq = 1;
    struct glmw_rec r;
    uint64_t id;

    small.u.hello.tq_log2 = GLMW_TQ_LOG2_MIN;
    start("vocab 100\nstop 2\nrequest\ntokens 11 12 13 14 15\nrepeat\n", "[IPC]\nStallTimeoutSec=1\n");
    raw_open(&c, f.socket, &small);
    raw_open(&other, f.socket, NULL);
    {
        struct glmw_entry e = raw_request(&c, 1);

        e.flags = GLMW_ENT_KEEP | GLMW_ENT_QUIET;
        e.max_tokens = 500;
        raw_submit(&c, &e);
    }
    id = next(&c, 1, GLMW_REC_ACCEPTED).u.accepted.stream_id;
    daemonfix_expect_log(&f, "the client does not read its answers");
    do {
        ck_assert(raw_record(&c, &r, 5000, false));
        ck_assert_uint_eq(r.seq, seq++);
        if (r.type == GLMW_REC_ERROR)
            ck_assert_int_eq((int32_t)r.token, -ETIMEDOUT);
    } while (r.type != GLMW_REC_END);
    ck_assert_int_eq(r.u.end.status, -ETIMEDOUT);
    resume(&other, 1, id);
    next(&other, 1, GLMW_REC_ACCEPTED);
    for (uint32_t i = 0; i < 500; i++)
        ck_assert_uint_eq(next(&other, 1, GLMW_REC_TOKEN).token, 11 + i % 5);
    ck_assert_int_eq(end_of(&other, 1), 0);
    raw_close(&c);
    raw_close(&other);
    finish();
}
END_TEST

/* A daemon told to stop lets a stream without a client end within its drain time, or ends it. */
START_TEST(drain_with_kept_streams) {
    uint64_t began = test_now_ms();

    start(_i ? endless : short_answer, _i ? "[Service]\nDrainTimeoutSec=1\n" : NULL);
    raw_open(&c, f.socket, NULL);
    for (uint64_t tag = 1; tag <= 3; tag++)
        ck_assert_uint_ne(submit(&c, tag * 100, 0), 0);
    raw_close(&c);
    raw_open(&c, f.socket, NULL); /* and one with one */
    ck_assert_uint_ne(submit(&c, 4, 0), 0);
    ck_assert_int_eq(kill(f.pid, SIGTERM), 0);
    ck_assert_int_eq(end_of(&c, 4), _i ? -ESHUTDOWN : 0);
    finish();
    ck_assert_uint_lt(test_now_ms() - began, 25000); /* not the 60 s they would be kept */
    raw_close(&c);
}
END_TEST

/* ---- how many, and whose ---------------------------------------------------------------------------------
 */

/* The quota of a user: running ones keep their place, the oldest ended one gives way. */
START_TEST(quota) {
    uint64_t a, b, last;

    start(short_answer, "[Quota]\nMaxKeptStreamsPerUid=2\n");
    raw_open(&c, f.socket, NULL);
    a = submit(&c, 1, 0);
    ck_assert_int_eq(end_of(&c, 1), 0);
    b = submit(&c, 2, 0);
    ck_assert_int_eq(end_of(&c, 2), 0);
    last = submit(&c, 3, 0);
    ck_assert_uint_ne(a, 0);
    ck_assert_uint_ne(b, 0);
    ck_assert_uint_ne(last, 0);
    ck_assert_int_eq(end_of(&c, 3), 0);
    resume(&c, 4, a);
    ck_assert_int_eq(end_of(&c, 4), -ENODATA);
    resume(&c, 5, b);
    ck_assert_int_eq(end_of(&c, 5), 0);
    resume(&c, 6, last);
    ck_assert_int_eq(end_of(&c, 6), 0);
    raw_close(&c);
    finish();

    start(endless, "MaxSequences=4\n[Quota]\nMaxKeptStreamsPerUid=2\n");
    raw_open(&c, f.socket, NULL);
    ck_assert_uint_ne(submit(&c, 1, 0), 0);
    raw_close(&c);
    raw_open(&c, f.socket, NULL);
    ck_assert_uint_ne(submit(&c, 1, 0), 0);
    raw_close(&c);
    raw_open(&c, f.socket, NULL);
    ck_assert_uint_eq(submit(&c, 1, 0), 0); /* it runs and is not kept */
    next(&c, 1, GLMW_REC_TOKEN);
    raw_close(&c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(not_offered) {
    struct glmw_entry e;

    start(short_answer, "[IPC]\nMaxKeptStreams=0\n");
    raw_open(&c, f.socket, NULL);
    ck_assert(!(c.welcome.features & GLMW_FEAT_RESUME));
    e = raw_request(&c, 1);
    e.flags = GLMW_ENT_KEEP;
    raw_submit(&c, &e);
    ck_assert_int_eq(end_of(&c, 1), -EOPNOTSUPP);
    raw_close(&c);
    finish();
}
END_TEST

/* A connection that would not understand the records of a stream does not get it. */
START_TEST(fewer_features) {
    struct hello_msg plain = raw_hello();
    uint64_t id;

    plain.u.hello.features_wanted =
        GLMW_FEAT_RESUME | GLMW_FEAT_LOGPROBS | GLMW_FEAT_TOOL_EVENTS; /* no ALTS */
    start(short_answer, NULL);
    raw_open(&c, f.socket, NULL);
    id = submit(&c, 1, 0);
    raw_close(&c);
    raw_open(&c, f.socket, &plain);
    resume(&c, 1, id);
    ck_assert_int_eq(end_of(&c, 1), -EOPNOTSUPP);
    raw_close(&c);
    plain.u.hello.features_wanted |= GLMW_FEAT_ALTS; /* those of other things do not matter */
    raw_open(&c, f.socket, &plain);
    resume(&c, 1, id);
    ck_assert_int_eq(end_of(&c, 1), 0);
    raw_close(&c);
    finish();
}
END_TEST

/* Numbers can be tried no faster than requests be sent. */
START_TEST(guesses_are_counted) {
    int no_data = 0, over = 0;

    start(short_answer, "[Quota]\nSubmitRateLimit=1\n");
    raw_open(&c, f.socket, NULL);
    for (uint64_t tag = 1; tag <= 30; tag++) {
        struct glmw_entry e = {.opcode = GLMW_OP_RESUME, .tag = tag, .payload_off = tag * 77};

        ck_assert_int_eq(glmw_put(&c.sq, &e), 0);
    }
    glmw_publish(&c.sq, true);
    raw_bell(&c);
    for (uint64_t tag = 1; tag <= 30; tag++) {
        int status = end_of(&c, tag);

        ck_assert(status == -ENODATA || status == -EDQUOT);
        no_data += status == -ENODATA;
        over += status == -EDQUOT;
    }
    ck_assert_int_ge(no_data, 1);
    ck_assert_int_ge(over, 10);
    daemonfix_expect_log(&f, "SubmitRateLimit");
    raw_close(&c);
    finish();
}
END_TEST

/* A request that waits for room in the ring of its answers is counted once, however often it is looked at. */
START_TEST(waiting_entry_is_counted_once) {
    struct hello_msg small = raw_hello();
    const struct glmw_entry refused = {.opcode = GLMW_OP_EMBED, .tag = 50};
    struct glmw_entry e;
    struct glmw_rec r;

    small.u.hello.tq_log2 = GLMW_TQ_LOG2_MIN;
    start("vocab 100\nrequest\ntokens 11\nrepeat\n", "[Quota]\nSubmitRateLimit=1\n");
    raw_open(&c, f.socket, &small);
    e = raw_request(&c, 1);
    raw_submit(&c, &e);
    /* of 64 slots 3 are kept back and 5 do for no token more; a refusal takes 2, and then 4 are not there */
    while (glmw_peek(&c.tq) < 56)
        usleep(10000);
    raw_submit(&c, &refused);
    while (glmw_peek(&c.tq) < 58)
        usleep(10000);
    usleep(1200000);
    e = raw_request(&c, 2);
    raw_submit(&c, &e);
    for (int i = 0; i < 10; i++) {
        usleep(10000);
        raw_bell(&c);
    }
    do {
        ck_assert(raw_record(&c, &r, 5000, false));
        if (glmw_fetch32(&c.view.d->credit_wanted))
            raw_bell(&c);
    } while (r.tag != 2);
    ck_assert_msg(r.type == GLMW_REC_ACCEPTED, "refused: %d", (int32_t)r.token);
    raw_close(&c);
    finish();
}
END_TEST

/* The comparison itself, which needs no second user. */
START_TEST(whose_it_is) {
    struct user me = {.uid = 1000};
    struct kept k = {.id = 77, .user = &me}, none = {0};

    ck_assert(kept_is(&k, 77, 1000));
    ck_assert(!kept_is(&k, 77, 1001));
    ck_assert(!kept_is(&k, 77, 0)); /* nor is root everybody */
    ck_assert(!kept_is(&k, 78, 1000));
    ck_assert(!kept_is(&k, 0, 1000));
    ck_assert(!kept_is(&none, 0, 1000));
}
END_TEST

/* And with one: the answer is the same as for a number that never was. Only root can be somebody else. */
START_TEST(another_user) {
    uint64_t id;
    int status;
    pid_t pid;

    start(endless, NULL);
    ck_assert_int_eq(chmod(f.dir, 0755), 0);
    ck_assert_int_eq(chmod(f.socket, 0666), 0);
    raw_open(&c, f.socket, NULL);
    id = submit(&c, 1, 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct rawclient thief;
        uint64_t wrong = id ^ 1;
        struct glmw_rec r[2][2];

        if (geteuid() == 0 && setuid(65534) < 0)
            _exit(1);
        raw_open(&thief, f.socket, NULL);
        resume(&thief, 1, geteuid() == getuid() && getuid() == 65534 ? id : wrong);
        r[0][0] = next(&thief, 1, GLMW_REC_ERROR);
        r[0][1] = next(&thief, 1, GLMW_REC_END);
        resume(&thief, 1, wrong);
        r[1][0] = next(&thief, 1, GLMW_REC_ERROR);
        r[1][1] = next(&thief, 1, GLMW_REC_END);
        _exit(r[0][1].u.end.status == -ENODATA && r[0][0].text_len == r[1][0].text_len &&
                      r[1][1].u.end.status == -ENODATA
                  ? 0
                  : 2);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    next(&c, 1, GLMW_REC_TOKEN);
    raw_close(&c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

/* ---- the library and the tool ----------------------------------------------------------------------------
 */

static glmd_req *kept_request(glmd_conn *on) {
    static const uint32_t prompt[] = {5, 6, 7};
    glmd_req *r = request_tokens(on, prompt, 3);

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_KEEP, 2), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_KEEP, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_QUIET, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 40), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_ALTERNATIVES, 12), 0);
    return r;
}

/* The next event; fails the test when there is none. */
static struct glmd_event event(glmd_conn *from) {
    struct glmd_event e = {.size = sizeof e};

    while (glmd_next(from, &e) != 1)
        ck_assert_int_eq(glmd_wait(from, 10000000000), 1);
    return e;
}

/* With seq + 1 of the last event, whatever it was: alternatives are records that an event hides. */
START_TEST(library_goes_on) {
    struct glmd_info info = {.size = sizeof info};
    struct glmd_event e;
    uint32_t tokens = 0, last;
    uint64_t id, tag;
    glmd_conn *lib;

    start(endless, NULL);
    lib = daemonfix_connect(&f, NULL);
    ck_assert_int_eq(glmd_get_info(lib, &info), 0);
    ck_assert(info.features & GLMD_FEATURE_RESUME);
    ck_assert_int_eq(glmd_submit(lib, kept_request(lib), &tag), 0);
    e = event(lib);
    ck_assert_int_eq(e.type, GLMD_EV_ACCEPTED);
    id = e.stream_id;
    last = e.seq;
    ck_assert_uint_ne(id, 0);
    for (uint32_t stop = 0; stop < 38; stop += 5) {
        for (; tokens < stop; tokens++) {
            e = event(lib);
            ck_assert_int_eq(e.type, GLMD_EV_TOKEN);
            ck_assert_uint_eq(e.token, 11 + tokens % 5);
            ck_assert_uint_eq(e.n_alts, 12);
            last = e.seq;
        }
        glmd_close(lib);
        lib = daemonfix_connect(&f, NULL);
        ck_assert_int_eq(glmd_resume(lib, id, last + 1, &tag), 0);
        e = event(lib);
        ck_assert_int_eq(e.type, GLMD_EV_ACCEPTED);
        ck_assert_uint_eq(e.stream_id, id);
        ck_assert_uint_eq(e.tag, tag);
    }
    while ((e = event(lib)).type == GLMD_EV_TOKEN)
        ck_assert_uint_eq(e.token, 11 + tokens++ % 5);
    ck_assert_uint_eq(tokens, 40);
    ck_assert_int_eq(e.type, GLMD_EV_END);
    ck_assert_int_eq(e.reason, GLMD_REASON_LENGTH);
    ck_assert_uint_eq(e.usage->completion_tokens, 40);
    ck_assert_int_eq(glmd_resume(lib, id ^ 1, 0, &tag), 0);
    ck_assert_int_eq(event(lib).type, GLMD_EV_ERROR);
    ck_assert_int_eq((e = event(lib)).type, GLMD_EV_END);
    ck_assert_int_eq(e.status, -ENODATA);
    ck_assert_ptr_null(e.usage);
    glmd_close(lib);
    finish();
}
END_TEST

static int tool(const char *const *argv) {
    char sock[160];
    const char *const env[] = {sock, NULL};

    snprintf(sock, sizeof sock, "GLMD_SOCKET=%s", f.socket);
    return runprog(&p, argv, env, false, NULL);
}

/* glmctl is killed in the middle, and another one shows the answer. */
START_TEST(tool_goes_on) {
    static const char *const run[] = {TOOL, "run", "--keep", "--max-tokens", "40", "--tokens", "5,6,7", NULL};
    char sock[160], id[32] = "", *at;
    const char *const env[] = {sock, NULL};
    int n = 0;

    start(endless, NULL);
    snprintf(sock, sizeof sock, "GLMD_SOCKET=%s", f.socket);
    runprog_start(&p, run, env, false, true);
    runprog_expect(&p, "glmctl resume ");
    ck_assert_int_eq(kill(p.pid, SIGKILL), 0);
    at = strstr(p.out_text, "glmctl resume ") + 14;
    memcpy(id, at, 16);
    runprog_finish(&p);
    ck_assert_int_eq(tool((const char *const[]){TOOL, "resume", "--json", id, NULL}), 0);
    for (at = p.out_text; (at = strstr(at, "{\"event\":\"token\"")); at++, n++)
        ;
    ck_assert_int_eq(n, 40);
    ck_assert_ptr_nonnull(strstr(p.out_text, id));
    ck_assert_ptr_nonnull(strstr(p.out_text, "\"reason\":\"length\""));
    ck_assert_int_eq(tool((const char *const[]){TOOL, "resume", "--json", id, "39", NULL}), 0);
    ck_assert_ptr_null(strstr(p.out_text, "\"seq\":37"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "\"seq\":39"));
    ck_assert_int_eq(tool((const char *const[]){TOOL, "resume", "123", NULL}), 1);
    ck_assert_ptr_nonnull(strstr(p.err_text, "no such stream can be resumed"));
    ck_assert_int_eq(tool((const char *const[]){TOOL, "resume", "12x", NULL}), 2);
    ck_assert_int_eq(tool((const char *const[]){TOOL, "resume", NULL}), 2);
    ck_assert_int_eq(tool((const char *const[]){TOOL, "resume", id, "-1", NULL}), 2);
    finish();
    start(short_answer, "[IPC]\nMaxKeptStreams=0\n");
    ck_assert_int_eq(tool(run), 1);
    ck_assert_ptr_nonnull(strstr(p.err_text, "keeps no answers"));
    finish();
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_kept");
    TCase *tc = tcase_create("kept");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, nobody_comes_back);
    tcase_add_test(tc, deadline_without_a_client);
    tcase_add_test(tc, cancelled_only_by_its_tag);
    tcase_add_test(tc, stalled_reader_loses_only_its_tag);
    tcase_add_loop_test(tc, drain_with_kept_streams, 0, 2);
    tcase_add_test(tc, quota);
    tcase_add_test(tc, not_offered);
    tcase_add_test(tc, fewer_features);
    tcase_add_test(tc, guesses_are_counted);
    tcase_add_test(tc, waiting_entry_is_counted_once);
    tcase_add_test(tc, whose_it_is);
    tcase_add_test(tc, another_user);
    tcase_add_test(tc, library_goes_on);
    tcase_add_test(tc, tool_goes_on);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
