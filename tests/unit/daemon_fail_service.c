/* SPDX-License-Identifier: MIT */
/* A running daemon that meets trouble: over connect, submit, stream, cancel, close and a reload the N-th call
 * fails, for N = 1, 2, 3 … until the whole takes fewer calls, once and for ever, interrupted and half done.
 * The daemon lives; every request whose connection lives ends once; afterwards the next request works, on a
 * connection from before and on a new one, and descriptors, memory and mappings are what they were. Then the
 * same with its last minute, with too few descriptors, and with a device that fails at its N-th step. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "failctl.h"
#include "leakcheck.h"

static const char script[] = "vocab 100\nstop 2\nstep-us 100\nloop\n"
                             "request first 5\ntokens 10 11 12\nrepeat\nrequest first 6\ntokens 20 21 22\n"
                             "request\ntokens 30\n";
static const char conf[] = "[IPC]\nKeepDisconnectedSec=1\n[Text]\nWorkers=1\n";

enum { PATIENCE_MS = 150, N_REQUESTS = 5, BULK_IDS = 20000 };

struct world {
    struct daemonfix f;
    struct failctl *ctl;
    glmd_conn *before; /* a connection that is open all the time */
    int resources;
    int64_t blocks, maps;
    const char *text;    /* of the failure tried */
    struct rlimit limit; /* to be given back when the trouble is over; rlim_max 0: none */
};

struct req {
    uint64_t tag;
    uint32_t tokens, ends;
    int32_t status;
    char error[200];
    uint64_t stream_id;
};

static void world_open(struct world *w, int loop, const char *model_script) {
    memset(w, 0, sizeof *w);
    daemonfix_init(&w->f);
    snprintf(w->f.backend, sizeof w->f.backend, "%s", loop ? "uring" : "epoll");
    daemonfix_script(&w->f, model_script);
    snprintf(w->f.fail, sizeof w->f.fail, "%s/fail", w->f.dir);
    w->ctl = failctl_open(w->f.fail);
    ck_assert_ptr_nonnull(w->ctl);
    daemonfix_start(&w->f, conf);
}

static void world_close(struct world *w) {
    failctl_close(w->ctl);
    daemonfix_done(&w->f);
}

static void trouble_over(struct world *w) {
    failctl_disarm(w->ctl);
    if (w->limit.rlim_max)
        ck_assert_int_eq(prlimit(w->f.pid, RLIMIT_NOFILE, &w->limit, NULL), 0);
}

static void expect_alive(struct world *w) {
    int status;

    if (waitpid(w->f.pid, &status, WNOHANG) != w->f.pid)
        return;
    w->f.pid = 0;
    ck_abort_msg("%s: the daemon ended with status %x: %s", w->text, (unsigned)status, daemonfix_log(&w->f));
}

/* The request of number i: endless, short, to be counted, too large for the arena (and for the context),
 * kept. */
static glmd_req *request(glmd_conn *c, uint32_t i, uint64_t max_tokens) {
    static uint32_t ids[BULK_IDS];
    glmd_req *r;

    ids[0] = 5 + i;
    r = request_tokens(c, ids, i == 3 ? BULK_IDS : 1);
    if (i == 4)
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_KEEP, 1), 0);

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, max_tokens), 0);
    ck_assert_int_eq(glmd_req_bias(r, 50, 1.0), 0);
    return r;
}

/* Reads events until every request has ended (true), the connection is dead (true), `want` tokens of the
 * first came (true), or time is up. */
static bool read_events(struct world *w, glmd_conn *c, struct req *q, uint32_t want, int timeout_ms) {
    uint64_t until = test_now_ms() + (uint64_t)timeout_ms;

    for (;;) {
        struct glmd_event ev = {.size = sizeof ev};
        uint32_t ended = 0, all = 0;
        int r;

        while ((r = glmd_next(c, &ev)) == 1)
            for (int i = 0; i < N_REQUESTS; i++) {
                if (!q[i].tag || q[i].tag != ev.tag)
                    continue;
                ck_assert_msg(q[i].ends == 0, "%s: an event after END", w->text);
                q[i].tokens += ev.type == GLMD_EV_TOKEN && ev.token != GLMD_NO_TOKEN;
                q[i].ends += ev.type == GLMD_EV_END;
                if (ev.type == GLMD_EV_ACCEPTED)
                    q[i].stream_id = ev.stream_id;
                if (ev.type == GLMD_EV_ERROR)
                    snprintf(q[i].error, sizeof q[i].error, "%.*s", (int)ev.text_len, ev.text);
                if (ev.type == GLMD_EV_END)
                    q[i].status = ev.status;
            }
        for (int i = 0; i < N_REQUESTS; i++) {
            all += q[i].tag != 0;
            ended += q[i].ends;
        }
        if (ended == all || (want && q[0].tokens >= want))
            return true;
        ck_assert_msg(r == 0, "%s: the connection died, and %u of %u requests never ended", w->text,
                      all - ended, all);
        if (test_now_ms() >= until)
            return false;
        r = glmd_wait(c, 20000000);
        ck_assert_msg(r >= 0 || glmd_get_error(c, NULL) < 0, "%s: wait: %d", w->text, r);
    }
}

/* The kept answer once more, on a new connection; the trouble is over, or was harmless. */
static void come_back(struct world *w, const struct glmd_options *o, uint64_t stream_id) {
    struct req q[N_REQUESTS] = {{0}};
    glmd_conn *c;
    int r = glmd_connect(o, &c);

    ck_assert_msg(r == 0, "%s: connect: %d %s", w->text, r, o->error);
    ck_assert_int_eq(glmd_resume(c, stream_id, 0, &q[0].tag), 0);
    ck_assert_msg(read_events(w, c, q, 0, 10000), "%s: the resumed answer does not end", w->text);
    ck_assert_msg(q[0].status == 0 && q[0].tokens == 1,
                  "%s: the resumed answer ended with %d %s after %u tokens", w->text, q[0].status, q[0].error,
                  q[0].tokens);
    glmd_close(c);
}

/* One client's whole life, while calls of the daemon fail. Whatever is refused is refused with an error, and
 * soon unless the trouble stays. */
static void client_life(struct world *w, enum fail_mode mode) {
    char error[300] = "";
    bool must_work = mode == FAIL_OFF || mode >= FAIL_INTR;
    struct glmd_options o = {.size = sizeof o, .timeout_ms = mode == FAIL_EVER ? 2 * PATIENCE_MS : 10000};
    static const int32_t want[N_REQUESTS] = {-ECANCELED, 0, 0, -EOVERFLOW, 0};
    struct req q[N_REQUESTS] = {{0}};
    glmd_conn *c = NULL;
    int r;

    o.socket_path = w->f.socket;
    o.socket_path_len = strlen(w->f.socket);
    o.payload_log2 = 16;
    o.error = error;
    o.error_bytes = sizeof error;
    r = glmd_connect(&o, &c);
    ck_assert_msg(r == 0 || !must_work, "%s: connect: %d %s", w->text, r, error);
    if (r < 0) {
        ck_assert_msg(error[0] && r > -4096 && (r != -ETIMEDOUT || mode == FAIL_EVER),
                      "%s: connect: %d \"%s\"", w->text, r, error);
        trouble_over(w);
        return;
    }
    for (int i = 0; i < N_REQUESTS; i++) {
        glmd_req *m = request(c, (uint32_t)i, i == 0 ? 100000 : 10);

        r = i != 2 ? glmd_submit(c, m, &q[i].tag) : glmd_count(c, m, &q[i].tag);
        if (r < 0)
            glmd_req_free(m);
        ck_assert_msg(r == 0 || r == -EPIPE || glmd_get_error(c, NULL) < 0, "%s: submit: %d", w->text, r);
    }
    read_events(w, c, q, 3, must_work ? 10000 : PATIENCE_MS);
    ck_assert_int_eq(glmd_cancel(c, q[0].tag), 0);
    read_events(w, c, q, 0, must_work ? 10000 : PATIENCE_MS);
    trouble_over(w);
    /* the trouble is over: what has not ended yet ends now */
    ck_assert_msg(read_events(w, c, q, 0, 10000), "%s: a request never ends: %s", w->text,
                  daemonfix_log(&w->f));
    for (int i = 0; must_work && i < N_REQUESTS; i++)
        ck_assert_msg(q[i].status == want[i] && q[1].tokens == 3,
                      "%s: request %d ended with %d %s, not with %d", w->text, i, q[i].status, q[i].error,
                      want[i]);
    ck_assert_msg(mode != FAIL_ONCE || strcmp(w->ctl->name, "write") != 0 || glmd_get_error(c, NULL) == 0,
                  "%s: a bell that is late costs the connection", w->text);
    if (glmd_get_error(c, NULL) == 0 && q[4].stream_id && q[4].status == 0)
        come_back(w, &o, q[4].stream_id);
    glmd_close(c);
}

static void reload(struct world *w, bool must_work) {
    uint64_t until = test_now_ms() + 10000;
    const char *log;

    kill(w->f.pid, SIGHUP);
    do {
        usleep(500);
        log = daemonfix_log(&w->f);
        ck_assert_msg(test_now_ms() < until, "%s: nothing is said about a reload: %s", w->text, log);
    } while (!strstr(log, "configuration"));
    ck_assert_msg(!must_work || strstr(log, "configuration read again"), "%s: %s", w->text, log);
}

static void expect_well(struct world *w) {
    uint64_t until = test_now_ms() + 10000;
    struct req q[N_REQUESTS] = {{0}};

    ck_assert_int_eq(glmd_submit(w->before, request(w->before, 1, 10), &q[0].tag), 0);
    ck_assert_msg(read_events(w, w->before, q, 0, 10000), "%s: the next request hangs", w->text);
    ck_assert_msg(q[0].status == 0 && q[0].tokens == 3,
                  "%s: the next request ended with %d after %u tokens: %s", w->text, q[0].status, q[0].tokens,
                  daemonfix_log(&w->f));
    client_life(w, FAIL_OFF);
    while (daemonfix_resources(&w->f) != w->resources || w->ctl->blocks != w->blocks ||
           w->ctl->maps != w->maps) {
        ck_assert_msg(
            test_now_ms() < until,
            "%s: %d descriptors and children, %lld blocks, %lld mappings; before %d, %lld, %lld: %s", w->text,
            daemonfix_resources(&w->f), (long long)w->ctl->blocks, (long long)w->ctl->maps, w->resources,
            (long long)w->blocks, (long long)w->maps, daemonfix_log(&w->f));
        usleep(2000);
    }
}

static void settle(struct world *w) {
    w->text = "no failure at all";
    w->before = daemonfix_connect(&w->f, NULL);
    client_life(w, FAIL_OFF);
    reload(w, true);
    usleep(100000);
    w->resources = daemonfix_resources(&w->f);
    w->blocks = w->ctl->blocks;
    w->maps = w->ctl->maps;
    expect_well(w);
}

START_TEST(service_meets_trouble) {
    static const uint64_t least[FAIL_MODES] = {0, 40, 40, 40, 30, 3};
    enum fail_mode mode = FAIL_ONCE + _i % (FAIL_MODES - 1);
    bool harmless = mode >= FAIL_INTR;
    uint64_t n = 1, failed;
    struct world w;

    world_open(&w, _i / (FAIL_MODES - 1), script);
    settle(&w);
    do {
        ck_assert_int_eq(truncate(w.f.log, 0), 0);
        failctl_arm(w.ctl, mode, n);
        w.text = failctl_text(w.ctl, mode);
        reload(&w, harmless);
        client_life(&w, mode);
        failed = w.ctl->failed;
        w.text = failctl_text(w.ctl, mode);
        expect_alive(&w);
        expect_well(&w);
        ck_assert_msg(!strstr(daemonfix_log(&w.f), "refused for a minute"), "%s: the client is blamed: %s",
                      w.text, daemonfix_log(&w.f));
        n++;
    } while (failed);
    ck_assert_msg(n >= least[mode], "%s: only %d calls", failctl_mode_name(mode), (int)n);
    glmd_close(w.before);
    daemonfix_stop(&w.f);
    world_close(&w);
}
END_TEST

/* So many descriptors more than it has. */
START_TEST(descriptors_are_scarce) {
    char text[64];
    struct world w;

    world_open(&w, _i, script);
    settle(&w);
    w.text = text;
    for (int more = 0; more <= 14; more++) {
        struct rlimit few;

        snprintf(text, sizeof text, "room for %d descriptors", more);
        ck_assert_int_eq(truncate(w.f.log, 0), 0);
        ck_assert_int_eq(prlimit(w.f.pid, RLIMIT_NOFILE, NULL, &w.limit), 0);
        few = (struct rlimit){.rlim_cur = (rlim_t)(w.resources + more), .rlim_max = w.limit.rlim_max};
        ck_assert_int_eq(prlimit(w.f.pid, RLIMIT_NOFILE, &few, NULL), 0);
        client_life(&w, FAIL_EVER);
        expect_alive(&w);
        expect_well(&w);
        ck_assert_ptr_null(strstr(daemonfix_log(&w.f), "refused for a minute"));
    }
    glmd_close(w.before);
    daemonfix_stop(&w.f);
    world_close(&w);
}
END_TEST

/* SIGTERM, and then: the stream that runs still gets its END, and the daemon ends as asked. */
START_TEST(last_minute_meets_trouble) {
    static const enum fail_mode modes[] = {FAIL_ONCE, FAIL_EVER, FAIL_WHILE, FAIL_INTR};
    enum fail_mode mode = modes[_i % 4];
    uint64_t n = 0, failed;
    struct world w;

    do {
        struct req q[N_REQUESTS] = {{0}};

        n++;
        world_open(&w, _i / 4, script);
        w.text = "before the end";
        w.before = daemonfix_connect(&w.f, NULL);
        ck_assert_int_eq(glmd_submit(w.before, request(w.before, 0, 100000), &q[0].tag), 0);
        ck_assert(read_events(&w, w.before, q, 3, 10000));
        failctl_arm(w.ctl, mode, n);
        kill(w.f.pid, SIGTERM);
        if (mode != FAIL_EVER)
            daemonfix_expect_log(&w.f, "draining");
        else
            usleep(50000);
        kill(w.f.pid, SIGTERM);  /* and does not wait for it */
        if (mode == FAIL_EVER) { /* so long that it has to live with it, not so long that it gives up */
            usleep(200000);
            failctl_disarm(w.ctl);
        }
        ck_assert_int_eq(daemonfix_wait(&w.f, 10000), 0);
        failed = w.ctl->failed;
        w.text = failctl_text(w.ctl, mode);
        ck_assert_msg(read_events(&w, w.before, q, 0, 10000), "%s: no END", w.text);
        /* a connection that broke in that minute says so instead */
        ck_assert_msg(q[0].status == -ESHUTDOWN || (failed && q[0].status < 0), "%s: END says %d", w.text,
                      q[0].status);
        ck_assert_msg(strstr(daemonfix_log(&w.f), "stopped: 1 requests accepted, 1 ended"), "%s: %s", w.text,
                      daemonfix_log(&w.f));
        glmd_close(w.before);
        world_close(&w);
    } while (failed);
    ck_assert_uint_gt(n, mode == FAIL_INTR ? 2 : 1);
}
END_TEST

/* The device is lost at step N, or gives numbers that are none: every request ends once, with an error where
 * its answer is not whole, and the daemon serves on or ends with status 1 and a sentence. */
START_TEST(device_fails_at_every_step) {
    bool lost = _i % 2;

    for (uint32_t n = 1;; n++) {
        struct req q[N_REQUESTS] = {{0}};
        char text[300];
        uint32_t bad = 0;
        struct world w;

        snprintf(text, sizeof text,
                 "vocab 100\nstop 2\nstep-us 100\nfail-step %u %s\nloop\nrequest\ntokens 20 21 22 23 24 25\n",
                 n, lost ? "lost" : "nan");
        world_open(&w, _i / 2, text);
        w.text = text;
        w.before = daemonfix_connect(&w.f, NULL);
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(glmd_submit(w.before, request(w.before, 1, 10), &q[i].tag), 0);
        ck_assert_msg(read_events(&w, w.before, q, 0, 10000), "%s: a request does not end", text);
        for (int i = 0; i < 3; i++) {
            bad += q[i].status != 0;
            ck_assert_msg(q[i].status == 0 ? q[i].tokens == 6 : q[i].tokens <= 6,
                          "%s: END says %d after %u tokens", text, q[i].status, q[i].tokens);
        }
        if (lost && bad) {
            ck_assert_int_eq(daemonfix_wait(&w.f, 10000), 1);
            ck_assert_ptr_nonnull(strstr(daemonfix_log(&w.f), "<3>the engine stopped"));
            glmd_close(w.before);
        } else {
            glmd_close(w.before);
            daemonfix_stop(&w.f);
        }
        world_close(&w);
        if (!bad) {
            ck_assert_uint_gt(n, 4);
            break;
        }
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_fail_service");
    TCase *tc = tcase_create("fail");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 900);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, service_meets_trouble, 0, daemonfix_loops() * (FAIL_MODES - 1));
    tcase_add_loop_test(tc, last_minute_meets_trouble, 0, daemonfix_loops() * 4);
    tcase_add_loop_test(tc, descriptors_are_scarce, 0, daemonfix_loops());
    tcase_add_loop_test(tc, device_fails_at_every_step, 0, daemonfix_loops() * 2);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
