/* SPDX-License-Identifier: MIT */
/* Sixteen honest streams beside clients that write at random over all the memory they share with the daemon
 * (tests/lib/vandal.c). What the honest ones receive (every event, its number, token, text, alternatives and
 * END) is the same, byte for byte, as when they were alone, and nothing is left behind.
 *
 * GLMD_MUTATION_CLIENTS sets how many vandals come and go for each variant, GLMD_MUTATION_SEED the first. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chaos.h"
#include "daemonfix.h"
#include "leakcheck.h"

enum {
    CONNS = 4,
    EACH = 4,
    STREAMS = CONNS * EACH,
    TOKENS = 120,
    AT_ONCE = 6,
    CLIENTS = 700,
    FIRST_UID = 40000,
    FIRST_ID = 10,  /* of prompts: the script answers by it */
    PLAIN_ID = 200, /* answers are made of ids from here on */
    N_IDS = 900,
};

struct transcript {
    uint64_t tag;
    uint8_t bytes[TOKENS * 400];
    size_t n;
    uint32_t n_tokens, n_text;
    bool ended;
    uint32_t reason;
    int32_t status;
};

static struct transcript quiet[STREAMS], now[STREAMS];

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *s = getenv(name);

    return s && *s ? strtoull(s, NULL, 10) : otherwise;
}

static uint64_t count_clients(void) {
    const char *san = getenv("GLMD_SAN");

    /* to be started costs a process under a sanitizer ten times as much */
    return number_of("GLMD_MUTATION_CLIENTS", san && *san ? CLIENTS / 16 : CLIENTS);
}

/* Every stream has tokens of its own; each fifth output is drawn from three. */
static void write_script(struct daemonfix *f) {
    static char script[STREAMS * TOKENS * 40];
    uint32_t state = 12345;
    size_t at;
    char dir[300];

    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    at = (size_t)snprintf(script, sizeof script,
                          "model %s/nano\nstep-us 150\nloop\nrequest\ntokens 300 301\n", dir);
    for (uint32_t i = 0; i < STREAMS; i++) {
        at += (size_t)snprintf(script + at, sizeof script - at, "request first %u\ntokens", FIRST_ID + i);
        for (uint32_t k = 0; k < TOKENS; k++) {
            state = state * 1664525 + 1013904223;
            at += (size_t)snprintf(script + at, sizeof script - at, " %u", PLAIN_ID + (state >> 8) % N_IDS);
        }
        at += (size_t)snprintf(script + at, sizeof script - at, "\nrepeat\n");
        for (uint32_t k = 0; k < TOKENS; k += 5)
            at += (size_t)snprintf(script + at, sizeof script - at, "logits %u %u:2 %u:2.5 %u:1\n", k,
                                   PLAIN_ID + k, PLAIN_ID + i, PLAIN_ID + 77);
        ck_assert_uint_lt(at, sizeof script - 64);
    }
    daemonfix_script(f, script);
}

static void submit(glmd_conn *c, uint32_t i, struct transcript *t) {
    const uint32_t prompt[3] = {FIRST_ID + i, 30, 31};
    glmd_req *r = request_tokens(c, prompt, 3);

    memset(t, 0, sizeof *t);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, TOKENS), 0);
    /* the number of PROGRESS records is a matter of time, and they count */
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_QUIET, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_IGNORE_EOS, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_SEED, 1000 + i), 0);
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_TEMPERATURE, 1.0), 0);
    if (i % 3 == 0)
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_ALTERNATIVES, 1 + i), 0);
    ck_assert_int_eq(glmd_submit(c, r, &t->tag), 0);
}

static void keep(struct transcript *t, const void *p, size_t n) {
    ck_assert_uint_le(t->n + n, sizeof t->bytes);
    memcpy(t->bytes + t->n, p, n);
    t->n += n;
}

/* Everything but times. */
static void take(struct transcript *t, const struct glmd_event *ev) {
    const uint32_t words[] = {ev->type,   ev->channel,           ev->flags,  ev->seq,
                              ev->token,  (uint32_t)ev->status,  ev->reason, ev->detail,
                              ev->n_alts, (uint32_t)ev->text_len};

    ck_assert(!t->ended);
    keep(t, words, sizeof words);
    keep(t, &ev->logprob, sizeof ev->logprob);
    keep(t, ev->text, ev->text_len);
    if (ev->n_alts)
        keep(t, ev->alts, ev->n_alts * sizeof *ev->alts);
    t->n_tokens += ev->type == GLMD_EV_TOKEN && ev->token != GLMD_NO_TOKEN;
    t->n_text += (uint32_t)ev->text_len;
    if (ev->type == GLMD_EV_END) {
        t->ended = true;
        t->reason = ev->reason;
        t->status = ev->status;
        ck_assert_ptr_nonnull(ev->usage);
        keep(t, &ev->usage->prompt_tokens, sizeof ev->usage->prompt_tokens);
        keep(t, &ev->usage->completion_tokens, sizeof ev->usage->completion_tokens);
        keep(t, &ev->usage->reasoning_tokens, sizeof ev->usage->reasoning_tokens);
    }
}

static uint32_t read_events(glmd_conn *c, struct transcript *t) {
    struct glmd_event ev = {.size = sizeof ev};
    uint32_t ended = 0;
    int r;

    while ((r = glmd_next(c, &ev)) == 1) {
        uint32_t k = 0;

        while (k < EACH && t[k].tag != ev.tag)
            k++;
        ck_assert_msg(k < EACH, "an event of tag %llu, which nobody asked for", (unsigned long long)ev.tag);
        take(&t[k], &ev);
        ended += ev.type == GLMD_EV_END;
    }
    ck_assert_msg(r == 0, "an honest connection died: %d", r);
    return ended;
}

static void run_streams(glmd_conn **c, struct transcript *t) {
    struct pollfd p[CONNS];
    uint64_t until = test_now_ms() + 60000;
    uint32_t ended = 0;

    for (uint32_t i = 0; i < STREAMS; i++)
        submit(c[i / EACH], i, &t[i]);
    while (ended < STREAMS) {
        bool busy = false;

        ck_assert_msg(test_now_ms() < until, "only %u of %u streams ended", ended, STREAMS);
        for (uint32_t i = 0; i < CONNS; i++) {
            ck_assert_int_ge(glmd_dispatch(c[i]), 0);
            ended += read_events(c[i], t + i * EACH);
            p[i] = (struct pollfd){.fd = glmd_get_fd(c[i]), .events = POLLIN};
            busy |= glmd_prepare(c[i]) == 0;
        }
        if (ended < STREAMS && !busy)
            poll(p, CONNS, 1000);
    }
}

static void compare(uint32_t round) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        ck_assert_msg(now[i].status == quiet[i].status && now[i].reason == quiet[i].reason,
                      "round %u, stream %u ended with status %d, reason %u; alone with %d, %u", round, i,
                      now[i].status, now[i].reason, quiet[i].status, quiet[i].reason);
        ck_assert_msg(now[i].n == quiet[i].n && memcmp(now[i].bytes, quiet[i].bytes, now[i].n) == 0,
                      "round %u, stream %u received something else than alone: %u tokens, %u bytes of text; "
                      "alone %u, %u",
                      round, i, now[i].n_tokens, now[i].n_text, quiet[i].n_tokens, quiet[i].n_text);
    }
}

/* ---- the vandals: a process that starts them and watches how they end ---- */

static void reap(int *n) {
    int status;

    if (waitpid(-1, &status, 0) < 0)
        _exit(90);
    --*n;
    if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) &&
        !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 91);
}

static pid_t start_vandals(const struct daemonfix *f, uint64_t seed, uint64_t count) {
    pid_t parent = getpid(), p = fork();
    int n = 0;

    ck_assert_int_ge(p, 0);
    if (p > 0)
        return p;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    close_range(3, ~0u, 0); /* the honest connections are not theirs */
    for (uint64_t i = 0; i < count; i++) {
        pid_t v;

        if (n == AT_ONCE)
            reap(&n);
        v = fork();
        if (v < 0)
            _exit(92);
        if (v == 0) {
            uid_t uid = (uid_t)(FIRST_UID + (seed + i) % 20000);

            /* ten faults in a minute refuse a user, so each is one of its own where that is possible */
            if (geteuid() == 0 && (setgid(uid) < 0 || setuid(uid) < 0))
                _exit(93);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            vandal_client(f->socket, seed + i);
        }
        n++;
    }
    while (n > 0)
        reap(&n);
    _exit(0);
}

static const char *variant(struct daemonfix *f, int i) {
    static char text[400];

    snprintf(f->backend, sizeof f->backend, "%s", i % 2 ? "uring" : "epoll");
    /* places enough for everybody: being refused for want of one is another matter than being disturbed */
    snprintf(text, sizeof text,
             "MaxRequests=1024\n[IPC]\nInlineConnections=%d\nStallTimeoutSec=60\nMaxConnections=200\n"
             "[Quota]\nMaxRequestsPerConnection=16\n",
             i / 2 == (i & 1) ? 64 : 0);
    return text;
}

START_TEST(honest_streams_are_as_when_alone) {
    struct glmd_options small = {.size = sizeof small, .records_log2 = 7, .text_log2 = 16};
    uint64_t count = count_clients();
    uint64_t seed = number_of("GLMD_MUTATION_SEED", 0) + (uint64_t)_i * count;
    struct daemonfix f;
    glmd_conn *c[CONNS];
    uint32_t round = 0;
    int before, status = 0;
    pid_t vandals;

    daemonfix_init(&f);
    write_script(&f);
    daemonfix_start(&f, variant(&f, _i));
    ck_assert_int_eq(chmod(f.dir, 0755), 0);
    ck_assert_int_eq(chmod(f.socket, 0666), 0);
    for (uint32_t i = 0; i < CONNS; i++) /* one has to be waited for again and again */
        c[i] = daemonfix_connect(&f, i == 0 ? &small : NULL);
    run_streams(c, quiet);
    for (uint32_t i = 0; i < STREAMS; i++) {
        ck_assert_uint_eq(quiet[i].n_tokens, TOKENS);
        ck_assert_uint_gt(quiet[i].n_text, TOKENS / 2);
        ck_assert_uint_eq(quiet[i].reason, GLMD_REASON_LENGTH);
        for (uint32_t k = 0; k < i; k++)
            ck_assert(quiet[i].n != quiet[k].n || memcmp(quiet[i].bytes, quiet[k].bytes, quiet[i].n) != 0);
    }
    before = daemonfix_resources(&f);
    vandals = start_vandals(&f, seed, count);
    do {
        run_streams(c, now);
        compare(++round);
    } while (waitpid(vandals, &status, WNOHANG) == 0);
    ck_assert_msg(
        WIFEXITED(status) && WEXITSTATUS(status) == 0, "the vandals ended with status %x%s", (unsigned)status,
        WIFEXITED(status) && WEXITSTATUS(status) == VANDAL_GOT_THROUGH ? ": region D was written" : "");
    run_streams(c, now);
    compare(++round);
    daemonfix_expect_resources(&f, before);
    for (uint32_t i = 0; i < CONNS; i++)
        glmd_close(c[i]);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("conn_mutation");
    TCase *tc = tcase_create("mutation");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, count_clients() > CLIENTS ? 3600 : 150);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, honest_streams_are_as_when_alone, 0, daemonfix_loops() == 2 ? 4 : 1);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
