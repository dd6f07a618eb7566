/* SPDX-License-Identifier: MIT */
/* Records at full speed through a real daemon, on each loop: two clients of sixteen streams each read and
 * check every record, while a third is killed at random points and comes back; then the daemon is killed at
 * random points, and everything it had published is read, whole and in order, before the end shows.
 * GLMD_STRESS_DAEMON_RECORDS sets how many records the first reads on each loop (default 500,000, a tenth
 * where a sanitizer or an emulator makes each slow). */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "ipctest.h"
#include "leakcheck.h"
#include "rawclient.h"

enum { STREAMS = 16, ANSWER = 1000, FIRST = 10, N_TOKENS = 7, KILLS = 12 };

static const char script[] = "vocab 100\nstop 2\nloop\nrequest\ntokens 10 11 12 13 14 15 16\nrepeat\n";
static const char conf[] = "MaxSequences=48\nMaxRequests=128\n";

struct tag {
    uint32_t seq, tokens, answers;
    bool live;
};

struct reader {
    struct rawclient c;
    struct tag t[STREAMS];
    uint64_t records;
    bool again; /* an answer that has ended is asked for once more */
    bool gone;  /* the daemon is */
};

/* The daemon may be a whole ring of entries behind. */
static void say(struct reader *r, const struct glmw_entry *e) {
    struct pollfd p = {.fd = r->c.fd};

    for (;;) {
        glmw_refresh(&r->c.sq);
        if (glmw_free_slots(&r->c.sq) > 0)
            break;
        if (poll(&p, 1, 1) > 0) {
            r->gone = true;
            return;
        }
    }
    raw_submit(&r->c, e);
}

static void ask(struct reader *r, uint32_t i) {
    struct glmw_entry e = raw_request(&r->c, i + 1);

    e.flags = GLMW_ENT_QUIET;
    e.max_tokens = ANSWER;
    r->t[i] = (struct tag){.live = true, .answers = r->t[i].answers};
    say(r, &e);
}

static void open_reader(struct reader *r, const char *path, uint8_t tq_log2) {
    struct hello_msg h = raw_hello();

    memset(r, 0, sizeof *r);
    h.u.hello.tq_log2 = tq_log2;
    raw_open(&r->c, path, &h);
    r->again = true;
    for (uint32_t i = 0; i < STREAMS; i++)
        ask(r, i);
}

/* Check writes a line into a file for every assertion that holds: not for each of 10^8 records. */
#define must(what, ...)                                                                                      \
    do {                                                                                                     \
        if (!(what))                                                                                         \
            ck_abort_msg(__VA_ARGS__);                                                                       \
    } while (0)

static void take(struct reader *r, const struct glmw_rec *rec) {
    struct tag *t = &r->t[rec->tag - 1];

    if (rec->type == GLMW_REC_NOTICE)
        return;
    must(rec->tag >= 1 && rec->tag <= STREAMS && t->live, "a record of tag %llu",
                  (unsigned long long)rec->tag);
    must(rec->seq == t->seq, "tag %u: seq %u where %u follows", (unsigned)rec->tag, rec->seq,
                  t->seq);
    t->seq++;
    switch (rec->type) {
    case GLMW_REC_TOKEN:
        must(rec->token == FIRST + t->tokens % N_TOKENS, "token %u is %u", t->tokens, rec->token);
        t->tokens++;
        break;
    case GLMW_REC_END:
        must(rec->u.end.status == 0, "END with status %d", rec->u.end.status);
        must(t->tokens == ANSWER, "END after %u tokens", t->tokens);
        t->live = false;
        t->answers++;
        break;
    default:
        must(rec->type == GLMW_REC_ACCEPTED || rec->type == GLMW_REC_USAGE, "a record of type %u", rec->type);
    }
}

/* Everything that is there, given back in one. */
static uint32_t read_some(struct reader *r) {
    static const struct glmw_entry nop = {.opcode = GLMW_OP_NOP};
    struct glmw_rec rec;
    int n = glmw_peek(&r->c.tq);

    must(n >= 0, "the ring is broken: %d", n);
    for (int i = 0; i < n; i++) {
        glmw_take(&r->c.tq, &rec);
        take(r, &rec);
    }
    r->records += (uint64_t)n;
    if (glmw_give_back(&r->c.tq, &r->c.view.d->credit_wanted) && !r->gone)
        say(r, &nop);
    for (uint32_t i = 0; i < STREAMS && r->again && !r->gone; i++)
        if (!r->t[i].live)
            ask(r, i);
    return (uint32_t)n;
}

static void sleep_until_more(struct reader *r) {
    struct pollfd p[2] = {{.fd = r->c.fds[GLMW_FD_PIPE], .events = POLLIN},
                          {.fd = r->c.fd, .events = POLLIN}};
    char junk[4096];
    int n = glmw_arm(&r->c.tq, 1);

    ck_assert_int_ge(n, 0);
    if (n > 0)
        return;
    do
        n = poll(p, 2, 20000);
    while (n < 0 && errno == EINTR);
    ck_assert_msg(n > 0, "no bell in 20 s, with %llu records read", (unsigned long long)r->records);
    if (p[0].revents & POLLIN)
        ck_assert_int_ge(read(p[0].fd, junk, sizeof junk), 0);
    /* a packet is a notice of the state; an empty one is the end */
    if (p[0].revents & POLLHUP || (p[1].revents && recv(p[1].fd, junk, sizeof junk, MSG_DONTWAIT) <= 0))
        r->gone = true;
}

static void read_to(struct reader *r, uint64_t records) {
    while (r->records < records && !r->gone)
        if (read_some(r) == 0)
            sleep_until_more(r);
}

static void finish(struct reader *r) {
    uint32_t live;

    r->again = false;
    do {
        live = 0;
        for (uint32_t i = 0; i < STREAMS; i++)
            live += r->t[i].live;
        if (live && read_some(r) == 0)
            sleep_until_more(r);
    } while (live);
    raw_close(&r->c);
}

static pid_t fork_reader(const char *path, uint64_t records) {
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        static struct reader r;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        open_reader(&r, path, 8);
        read_to(&r, records);
        finish(&r);
        _exit(0);
    }
    return pid;
}

static void kill_victim(pid_t victim) {
    int status;

    kill(victim, SIGKILL);
    ck_assert_int_eq(waitpid(victim, &status, 0), victim);
    ck_assert_msg(WIFSIGNALED(status), "the client that is to be killed ended with status %x", (unsigned)status);
}

static uint64_t how_many(void) {
    const char *s = getenv("GLMD_STRESS_DAEMON_RECORDS"), *san = getenv("GLMD_SAN");
    bool slow = getenv("GLMD_EMULATED") || (san && *san);

    return s ? strtoull(s, NULL, 10) : slow ? 50000 : 500000;
}

static void start(struct daemonfix *f, int loop) {
    daemonfix_init(f);
    snprintf(f->backend, sizeof f->backend, "%s", loop ? "uring" : "epoll");
    daemonfix_script(f, script);
    daemonfix_start(f, conf);
}

START_TEST(clients_are_killed) {
    struct ipc_rng rng = {.s = 5 + (uint64_t)_i};
    uint64_t all = how_many(), began = test_now_ms(), done = 0;
    static struct reader r;
    struct daemonfix f;
    pid_t other, victim;
    int status, before;

    start(&f, _i);
    before = daemonfix_resources(&f);
    other = fork_reader(f.socket, all / 4);
    open_reader(&r, f.socket, 10);
    victim = fork_reader(f.socket, UINT64_MAX);
    /* one death for each twelfth of the way */
    while (done < all) {
        done += all / KILLS + 1;
        read_to(&r, done < all ? done : all);
        ck_assert(!r.gone);
        usleep(ipc_below(&rng, 3000));
        kill_victim(victim);
        victim = fork_reader(f.socket, UINT64_MAX);
    }
    finish(&r);
    kill_victim(victim);
    ck_assert_int_eq(waitpid(other, &status, 0), other);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other client ended with status %x",
                  (unsigned)status);
    printf("%s: %llu records in %llu ms by one of three clients\n", f.backend, (unsigned long long)r.records,
           (unsigned long long)(test_now_ms() - began));
    daemonfix_expect_resources(&f, before);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(daemon_is_killed) {
    struct ipc_rng rng = {.s = 50 + (uint64_t)_i};
    static struct reader r;
    struct daemonfix f;
    int status;

    start(&f, _i);
    for (int round = 0; round < KILLS; round++) {
        open_reader(&r, f.socket, 10);
        read_to(&r, 200 + ipc_below(&rng, 20000));
        usleep(ipc_below(&rng, 2000));
        kill(f.pid, SIGKILL);
        ck_assert_int_eq(waitpid(f.pid, &status, 0), f.pid);
        f.pid = 0;
        read_to(&r, UINT64_MAX);
        ck_assert(r.gone);
        while (read_some(&r))
            ;
        /* the count of its records, which live on in memory, says that none is missing */
        ck_assert_uint_eq((uint32_t)r.records, __atomic_load_n(&r.c.view.d->tq_tail, __ATOMIC_ACQUIRE));
        raw_close(&r.c);
        unlink(f.log);
        daemonfix_start(&f, conf);
    }
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_stress");
    TCase *tc = tcase_create("stress");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 7200);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, clients_are_killed, 0, daemonfix_loops());
    tcase_add_loop_test(tc, daemon_is_killed, 0, daemonfix_loops());
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
