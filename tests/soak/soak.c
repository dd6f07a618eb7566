/* SPDX-License-Identifier: MIT */
/* `make soak`: two daemons, one on each loop, under clients that come and go, cancel, miss deadlines, leave,
 * are stopped and killed in the middle, come back, send much, and break every rule; now and then a daemon
 * itself is stopped for a moment. Every half minute they are left alone until all is quiet, and then
 * measured. It ends well when every accepted request has ended, descriptors, threads and mappings of shared
 * memory are exactly those of the first quiet moment, private memory has not grown by more than 1 MiB over
 * its highest value while warming up (a fifth of the time), and no client saw anything wrong.
 *
 * --seconds or SOAK_MINUTES (default 30) says how long; --json prints one object to standard output instead
 * of words; a picture goes to BUILD/soak.svg. A Check program, because the fixtures for daemons are made for
 * those. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "soak.h"

enum { N_DAEMONS = 2, AT_ONCE = 5, FIRST_UID = 30000, MAX_UIDS = 20000, BOUND_KB = 1024 };

static const char script[] =
    "vocab 100\nstop 2\nstep-us 300\nloop\nrequest\ntokens 10 11 12 13 14 15 16\nrepeat\n";
/* what is touched only when a client is slow (outboxes, kept answers) is little, so that all of it soon is */
static const char conf[] =
    "MaxRequests=24\n[IPC]\nMaxConnections=24\nStallTimeoutSec=1\nKeepDisconnectedSec=1\nMaxKeptStreams=8\n"
    "HandshakeTimeoutSec=2\n[Quota]\nMaxRequestsPerUid=256\n";

struct client {
    pid_t pid;
    enum act act;
    uint64_t stop_ms, go_ms, kill_ms; /* when the driver does so; 0 = never */
};

struct daemon_under {
    struct daemonfix f;
    struct soak_counts *counts;
    struct soak_track track;
    struct client client[AT_ONCE];
    glmd_conn *watch; /* open all the time: for the numbers, and proof that others are served */
    uint64_t stopped_until_ms, next_stop_ms;
    uint32_t watched;
};

static struct daemon_under d[N_DAEMONS];
static uint64_t rng = 1, seed;
static bool json, has_own_memory;
static double seconds;
static FILE *words; /* where people read */

static uint32_t below(uint32_t n) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 20) % n;
}

/* ---- clients
 * ---------------------------------------------------------------------------------------------------- */

static enum act choose(void) {
    static const uint8_t weight[ACT_COUNT] = {20, 15, 10, 15, 15, 8, 10, 4, 10};
    uint32_t all = 0, at;

    for (int i = 0; i < ACT_COUNT; i++)
        all += weight[i];
    if (geteuid() != 0)
        all -= weight[ACT_CHAOS]; /* a user that breaks rules is refused for a minute, and we have only one */
    at = below(all);
    for (int i = 0;; i++) {
        if (at < weight[i])
            return (enum act)i;
        at -= weight[i];
    }
}

static void spawn(struct daemon_under *u, struct client *c) {
    uint64_t now = test_now_ms();
    uid_t uid = (uid_t)(FIRST_UID + seed % MAX_UIDS);

    *c = (struct client){.act = choose()};
    if (c->act == ACT_KILLED)
        c->kill_ms = now + 1 + below(400);
    if (c->act == ACT_STALLED) {
        c->stop_ms = now + 1 + below(200);
        c->go_ms = c->stop_ms + 1 + below(2500);
        if (below(4) == 0)
            c->kill_ms = c->go_ms - 1; /* dies while it is stopped */
    }
    seed++;
    c->pid = fork();
    ck_assert_int_ge(c->pid, 0);
    if (c->pid)
        return;
    if (c->act == ACT_CHAOS && (setgid(uid) < 0 || setuid(uid) < 0))
        _exit(4);
    soak_client(u->f.socket, c->act, seed, u->counts);
}

static void look_after(struct client *c) {
    uint64_t now = test_now_ms();
    int status;

    if (c->kill_ms && now >= c->kill_ms) {
        kill(c->pid, SIGKILL);
        c->kill_ms = c->stop_ms = c->go_ms = 0;
    }
    if (c->stop_ms && now >= c->stop_ms) {
        kill(c->pid, SIGSTOP);
        c->stop_ms = 0;
    }
    if (c->go_ms && now >= c->go_ms) {
        kill(c->pid, SIGCONT);
        c->go_ms = 0;
    }
    if (waitpid(c->pid, &status, WNOHANG) != c->pid)
        return;
    c->pid = 0;
    ck_assert_msg((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
                      (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL &&
                       (c->act == ACT_KILLED || c->act == ACT_STALLED || c->act == ACT_CHAOS)),
                  "a client (%s) ended with status %x", soak_act_names[c->act], (unsigned)status);
}

static void stall_daemon(struct daemon_under *u) {
    uint64_t now = test_now_ms();

    if (u->stopped_until_ms && now >= u->stopped_until_ms) {
        kill(u->f.pid, SIGCONT);
        u->stopped_until_ms = 0;
        u->next_stop_ms = now + 5000 + below(20000);
    } else if (!u->stopped_until_ms && now >= u->next_stop_ms) {
        kill(u->f.pid, SIGSTOP);
        u->stopped_until_ms = now + 20 + below(300);
    }
}

static void expect_alive(struct daemon_under *u) {
    int status;

    if (waitpid(u->f.pid, &status, WNOHANG) != u->f.pid)
        return;
    u->f.pid = 0;
    ck_abort_msg("the daemon (%s) ended with status %x: %s", u->track.loop, (unsigned)status,
                 daemonfix_log(&u->f));
}

/* One request of the connection that is always open; the script says what must come. */
static void watch_once(struct daemon_under *u) {
    static struct answer a;
    const uint32_t prompt[] = {5, 6, 7};
    glmd_req *r = request_tokens(u->watch, prompt, 3);

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 14), 0);
    answer_submit(u->watch, &a, r);
    answers_wait(u->watch, &a, 1, 60000);
    if (a.status == -EBUSY)
        return;
    ck_assert_msg(a.status == 0 && a.n_tokens == 14, "%d, %u tokens", a.status, a.n_tokens);
    for (uint32_t i = 0; i < 14; i++)
        ck_assert_uint_eq(a.tokens[i], 10 + i % 7);
    u->watched++;
}

/* ---- measuring
 * -------------------------------------------------------------------------------------------------- */

static uint64_t status_number(const struct daemonfix *f, const char *name) {
    char path[64], line[256];
    unsigned long long v = 0;
    FILE *o;

    snprintf(path, sizeof path, "/proc/%d/status", (int)f->pid);
    o = fopen(path, "re");
    ck_assert_ptr_nonnull(o);
    while (fgets(line, sizeof line, o))
        if (strncmp(line, name, strlen(name)) == 0)
            sscanf(line + strlen(name), ": %llu", &v);
    fclose(o);
    return v;
}

/* Waits until nothing lives; what is still there after a while is reported by the comparison that follows. */
static struct soak_sample measure(struct daemon_under *u, double minute) {
    uint64_t until = test_now_ms() + 15000;
    struct glmd_info i = {.size = sizeof i};
    const struct soak_sample *first = &u->track.s[0];
    struct soak_sample s;

    do {
        usleep(20000);
        expect_alive(u);
        ck_assert_int_ge(glmd_dispatch(u->watch), 0);
        ck_assert_int_eq(glmd_get_info(u->watch, &i), 0);
        s = (struct soak_sample){
            .minute = minute,
            .anon_kb = status_number(&u->f, "RssAnon"),
            .shmem_kb = status_number(&u->f, "RssShmem"),
            .fds = (uint32_t)daemonfix_resources(&u->f),
            .threads = (uint32_t)status_number(&u->f, "Threads"),
            .accepted = i.requests_accepted,
            .ended = i.requests_ended,
        };
    } while (test_now_ms() < until &&
             (i.connections != 1 || s.accepted != s.ended || (u->track.n && s.fds != first->fds)));
    ck_assert_msg(s.accepted == s.ended, "%s: %llu requests accepted, %llu ended", u->track.loop,
                  (unsigned long long)s.accepted, (unsigned long long)s.ended);
    ck_assert_msg(i.connections == 1, "%s: %u connections are left", u->track.loop, i.connections);
    return s;
}

static void quiet(struct daemon_under *u, double minute, bool warming) {
    struct soak_track *t = &u->track;
    struct soak_sample s;

    for (int i = 0; i < AT_ONCE; i++)
        while (u->client[i].pid) {
            look_after(&u->client[i]);
            usleep(2000);
        }
    s = measure(u, minute);
    fprintf(words, "%6.1f min  %-5s  %8llu requests  %6llu KiB private  %6llu KiB shared  %3u descriptors\n",
            minute, t->loop, (unsigned long long)s.accepted, (unsigned long long)s.anon_kb,
            (unsigned long long)s.shmem_kb, s.fds);
    fflush(words);
    if (t->n < SOAK_MAX_SAMPLES)
        t->s[t->n++] = s;
    if (warming || t->warm == 0) {
        t->warm = t->n;
        if (s.anon_kb + BOUND_KB > t->bound_kb)
            t->bound_kb = s.anon_kb + BOUND_KB;
    }
    ck_assert_msg(s.fds == t->s[0].fds, "%s: %u descriptors, at first %u", t->loop, s.fds, t->s[0].fds);
    ck_assert_msg(s.threads == t->s[0].threads, "%s: %u threads, at first %u", t->loop, s.threads,
                  t->s[0].threads);
    if (has_own_memory)
        return; /* a sanitizer's memory is not the daemon's */
    ck_assert_msg(s.shmem_kb <= t->s[0].shmem_kb + BOUND_KB, "%s: %llu KiB of shared memory, at first %llu",
                  t->loop, (unsigned long long)s.shmem_kb, (unsigned long long)t->s[0].shmem_kb);
    ck_assert_msg(s.anon_kb <= t->bound_kb,
                  "%s: %llu KiB of private memory, at most %llu KiB after warming up", t->loop,
                  (unsigned long long)s.anon_kb, (unsigned long long)t->bound_kb);
}

/* ---- the whole
 * -------------------------------------------------------------------------------------------------- */

static void begin(struct daemon_under *u, const char *loop) {
    u->track.loop = loop;
    u->counts = mmap(NULL, sizeof *u->counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(u->counts != MAP_FAILED);
    daemonfix_init(&u->f);
    snprintf(u->f.backend, sizeof u->f.backend, "%s", loop);
    snprintf(u->f.level, sizeof u->f.level, "notice");
    daemonfix_script(&u->f, script);
    daemonfix_start(&u->f, conf);
    ck_assert_int_eq(chmod(u->f.dir, 0755), 0);
    ck_assert_int_eq(chmod(u->f.socket, 0666), 0);
    u->watch = daemonfix_connect(&u->f, NULL);
    u->next_stop_ms = test_now_ms() + 3000;
}

/* Some seconds of trouble. */
static void trouble(double for_s) {
    uint64_t next_watch_ms = 0, began_ms = test_now_ms();

    while ((double)(test_now_ms() - began_ms) < for_s * 1000) {
        for (int k = 0; k < N_DAEMONS; k++) {
            expect_alive(&d[k]);
            stall_daemon(&d[k]);
            for (int i = 0; i < AT_ONCE; i++) {
                if (d[k].client[i].pid)
                    look_after(&d[k].client[i]);
                else
                    spawn(&d[k], &d[k].client[i]);
            }
        }
        if (test_now_ms() >= next_watch_ms) {
            for (int k = 0; k < N_DAEMONS; k++)
                if (!d[k].stopped_until_ms)
                    watch_once(&d[k]);
            next_watch_ms = test_now_ms() + 1000;
        }
        usleep(3000);
    }
    for (int k = 0; k < N_DAEMONS; k++) {
        kill(d[k].f.pid, SIGCONT);
        d[k].stopped_until_ms = 0;
    }
}

START_TEST(soak) {
    static struct soak_track both[N_DAEMONS];
    const struct soak_counts *counts[N_DAEMONS];
    double step = seconds / 6 < 30 ? seconds / 6 : 30, warm = seconds < 600 ? seconds / 2 : seconds / 5;
    double at;
    uint64_t began = test_now_ms();

    seed = began; /* other clients in every run; said, so that a run can be told from another */
    fprintf(words, "soak: %.1f minutes, seed %llu, bound %d KiB\n", seconds / 60, (unsigned long long)seed,
            BOUND_KB);
    rng = seed * 2 + 1;
    begin(&d[0], "epoll");
    begin(&d[1], "uring");
    do {
        trouble(step);
        at = (double)(test_now_ms() - began) / 1000;
        for (int k = 0; k < N_DAEMONS; k++)
            quiet(&d[k], (double)(test_now_ms() - began) / 60000, at <= warm);
    } while (at < seconds);
    for (int k = 0; k < N_DAEMONS; k++) {
        ck_assert_uint_gt(d[k].watched, 0);
        for (int i = 0; i < ACT_COUNT; i++)
            ck_assert_msg(d[k].counts->clients[i] > 0 || (i == ACT_CHAOS && geteuid() != 0) || seconds < 60,
                          "no client of kind %s ever ran", soak_act_names[i]);
        glmd_close(d[k].watch);
        daemonfix_stop(&d[k].f);
        ck_assert_ptr_nonnull(strstr(daemonfix_log(&d[k].f), "stopped: "));
        daemonfix_done(&d[k].f);
        counts[k] = d[k].counts;
        both[k] = d[k].track;
        if (!json)
            soak_text(&d[k].track, d[k].counts);
    }
    ck_assert_int_eq(soak_svg(TEST_BUILD "/soak.svg", both, N_DAEMONS), 0);
    if (json)
        soak_json(both, counts, N_DAEMONS, seconds / 60, true);
    fprintf(words, "soak: accepted = ended, descriptors and memory flat; picture: " TEST_BUILD "/soak.svg\n");
}
END_TEST

int main(int argc, char **argv) {
    Suite *s = suite_create("soak");
    TCase *tc = tcase_create("soak");
    const char *minutes = getenv("SOAK_MINUTES"), *san = getenv("GLMD_SAN");
    SRunner *sr;
    int failed;

    seconds = minutes && *minutes ? atof(minutes) * 60 : 1800;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            seconds = atof(argv[++i]);
        } else {
            fprintf(stderr, "Usage: soak [--json] [--seconds N]; $SOAK_MINUTES otherwise, 30 by default\n");
            return 2;
        }
    }
    if (!(seconds >= 5 && seconds <= 1e7)) {
        fprintf(stderr, "soak: the length of time is no number from 5 seconds on\n");
        return 2;
    }
    words = json ? stderr : stdout;
    has_own_memory = san && *san;
    tcase_set_timeout(tc, seconds * 2 + 300);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, soak);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, json ? CK_SILENT : CK_ENV);
    failed = srunner_ntests_failed(sr);
    if (failed && json) {
        printf("{\"ok\":false}\n");
        fflush(stdout);
        dup2(2, 1);
        srunner_print(sr, CK_NORMAL);
    }
    srunner_free(sr);
    return failed != 0;
}
