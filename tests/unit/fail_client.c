/* SPDX-License-Identifier: MIT */
/* The library when calls of its process fail: over connect, build, submit, read, cancel, complete and close
 * the N-th fails, for N = 1, 2, 3 … until the whole takes fewer calls, each in a process of its own. Nothing
 * crashes, every tag ends once, what fails returns a negative errno and says why, close gives everything
 * back, and the same process then does it all without an error. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "failctl.h"
#include "leakcheck.h"

static const char script[] = "vocab 100\nstop 2\nstep-us 100\nloop\n"
                             "request first 5\ntokens 10 11 12\nrepeat\nrequest first 6\ntokens 20 21 22\n"
                             "request\ntokens 30\n";

enum { WRONG = 3, MORE = 4, OVER = 5, TRIES = 40 };

struct life {
    const char *path;
    enum fail_mode mode;
    bool must_work;
    uint64_t tag[3];
    uint32_t ends[3], tokens[3];
    int32_t status[3];
};

static __attribute__((format(printf, 1, 2))) _Noreturn void wrong(const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "%s: ", failctl_text(failctl_self, (enum fail_mode)atomic_load(&failctl_self->mode)));
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    _exit(WRONG);
}

/* What a call returned: fine, or an error that may be. */
static bool ok(const struct life *l, const char *what, int r) {
    if (r >= 0)
        return true;
    if (l->must_work)
        wrong("%s: %d where nothing failed", what, r);
    if (r <= -4096)
        wrong("%s: %d is no errno", what, r);
    return false;
}

static void read_events(struct life *l, glmd_conn *c, uint32_t want) {
    uint64_t until = test_now_ms() + 20000;
    int bad = 0;

    for (;;) {
        struct glmd_event ev = {.size = sizeof ev};
        uint32_t ended = 0, all = 0;
        int r;

        while ((r = glmd_next(c, &ev)) == 1)
            for (int i = 0; i < 3; i++) {
                if (!l->tag[i] || l->tag[i] != ev.tag)
                    continue;
                if (l->ends[i])
                    wrong("an event after END");
                l->tokens[i] += ev.type == GLMD_EV_TOKEN && ev.token != GLMD_NO_TOKEN;
                if (ev.type == GLMD_EV_END) {
                    l->ends[i]++;
                    l->status[i] = ev.status;
                }
            }
        for (int i = 0; i < 3; i++) {
            all += l->tag[i] != 0;
            ended += l->ends[i];
        }
        if (ended == all || (want && l->tokens[0] >= want))
            return;
        if (r < 0)
            wrong("dead with %d, and %u of %u requests never ended", r, all - ended, all);
        r = glmd_wait(c, 100000000);
        if (r < 0 && ++bad > TRIES) /* it never gets better by itself */
            failctl_disarm(failctl_self);
        if (test_now_ms() > until)
            wrong("%u of %u requests do not end", all - ended, all);
    }
}

/* NULL: it could not be made, and nothing is left of it. */
static glmd_req *request(const struct life *l, glmd_conn *c, uint32_t first, uint64_t max) {
    char stop[700];
    glmd_req *r = NULL;
    bool fine;

    memset(stop, 'x', sizeof stop);
    if (!ok(l, "glmd_req_new", glmd_req_new(c, &r)))
        return NULL;
    fine = ok(l, "glmd_req_tokens", glmd_req_tokens(r, &first, 1)) &&
           ok(l, "max", glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, max)) &&
           ok(l, "bias", glmd_req_bias(r, 50, 1.0)) &&
           ok(l, "stop", glmd_req_set_str(r, GLMD_KEY_STOP, stop, sizeof stop));
    if (fine)
        return r;
    if (glmd_req_set_u64(r, GLMD_KEY_TOP_K, 1) == 0 && glmd_submit(c, r, &(uint64_t){0}) != -ENOMEM)
        wrong("a request that lacks a part was taken");
    glmd_req_free(r);
    return NULL;
}

static void submit(struct life *l, glmd_conn *c, int i, uint64_t max) {
    glmd_req *r = request(l, c, 5 + (uint32_t)i, max);
    int e;

    if (!r)
        return;
    e = i == 2 ? glmd_count(c, r, &l->tag[i]) : glmd_submit(c, r, &l->tag[i]);
    if (ok(l, "glmd_submit", e))
        return;
    l->tag[i] = 0;
    /* what is only a moment's trouble is gone; a request that ran out of memory stays so */
    if (l->mode == FAIL_ONCE && glmd_get_error(c, NULL) == 0) {
        e = glmd_submit(c, r, &l->tag[i]);
        if (e == 0)
            return;
        if (e != -ENOMEM)
            wrong("the second attempt to submit: %d", e);
        l->tag[i] = 0;
    }
    glmd_req_free(r);
}

static void whole_life(struct life *l) {
    char error[300] = "";
    struct glmd_options o = {
        .size = sizeof o, .timeout_ms = 10000, .error = error, .error_bytes = sizeof error};
    struct glmd_info info = {.size = sizeof info};
    glmd_conn *c = NULL;
    char *text = NULL;
    glmd_req *r;
    size_t len;
    int e;

    memset(l->tag, 0, sizeof l->tag);
    memset(l->ends, 0, sizeof l->ends);
    memset(l->tokens, 0, sizeof l->tokens);
    o.socket_path = l->path;
    o.socket_path_len = strlen(l->path);
    o.client_name = "fail";
    o.client_name_len = 4;
    if (!ok(l, "glmd_connect", glmd_connect(&o, &c))) {
        if (!error[0] || c)
            wrong("a connection refused without a word, or half made");
        return;
    }
    ok(l, "glmd_get_info", glmd_get_info(c, &info));
    submit(l, c, 0, 100000);
    submit(l, c, 1, 10);
    submit(l, c, 2, 10);
    if (l->tag[0])
        read_events(l, c, 3);
    ok(l, "glmd_cancel_async", glmd_cancel_async(c, l->tag[1]));
    ok(l, "glmd_cancel", glmd_cancel(c, l->tag[0]));
    read_events(l, c, 0);
    if (l->must_work &&
        (l->status[0] != -ECANCELED || (l->status[1] && l->status[1] != -ECANCELED) || l->status[2]))
        wrong("ended with %d, %d, %d", l->status[0], l->status[1], l->status[2]);
    r = request(l, c, 6, 10);
    if (r) {
        e = glmd_complete(c, r, &text, &len, NULL);
        if (l->mode != FAIL_INTR || e != -EINTR)
            ok(l, "glmd_complete", e);
        if (e >= 0)
            glmd_free(text);
    }
    glmd_close(c);
}

static int count_fds(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d))
        n++;
    closedir(d);
    return n;
}

/* In a child, whose library was never used before. */
static _Noreturn void try_one(const char *path, enum fail_mode mode, uint64_t n) {
    struct life l = {.path = path, .mode = mode, .must_work = mode >= FAIL_INTR};
    struct failctl *ctl = failctl_self;
    int64_t blocks = ctl->blocks, maps = ctl->maps;
    int fds = count_fds();
    uint64_t failed;

    failctl_arm(ctl, mode, n);
    whole_life(&l);
    failctl_disarm(ctl);
    failed = ctl->failed;
    atomic_store(&ctl->mode, FAIL_OFF);
    if (ctl->blocks != blocks || ctl->maps != maps || count_fds() != fds)
        wrong("%lld blocks, %lld mappings, %d descriptors are left", (long long)(ctl->blocks - blocks),
              (long long)(ctl->maps - maps), count_fds() - fds);
    l.mode = FAIL_OFF;
    l.must_work = true;
    whole_life(&l);
    if (ctl->blocks != blocks || ctl->maps != maps || count_fds() != fds)
        wrong("something is left after a life without failures");
    _exit(failed ? MORE : OVER);
}

START_TEST(every_call_fails) {
    static const uint64_t least[FAIL_MODES] = {0, 25, 25, 25, 10, 0};
    static const enum fail_mode modes[] = {FAIL_ONCE, FAIL_EVER, FAIL_WHILE, FAIL_INTR};
    enum fail_mode mode = modes[_i];
    struct daemonfix f;
    uint64_t n = 0;
    int status;

    daemonfix_init(&f);
    daemonfix_script(&f, script);
    daemonfix_start(&f, NULL);
    do {
        pid_t pid = fork();

        n++;
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            try_one(f.socket, mode, n);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFEXITED(status) && (WEXITSTATUS(status) == MORE || WEXITSTATUS(status) == OVER),
                      "call %d, %s: status %x", (int)n, failctl_mode_name(mode), (unsigned)status);
    } while (WEXITSTATUS(status) == MORE);
    ck_assert_msg(n >= least[mode], "%s: only %d calls", failctl_mode_name(mode), (int)n);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("fail_client");
    TCase *tc = tcase_create("fail");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, every_call_fails, 0, 4);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
