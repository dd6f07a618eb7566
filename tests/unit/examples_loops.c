/* SPDX-License-Identifier: MIT */
/* The examples of client/examples, each in its own event loop, against a real daemon: the text is the
 * daemon's, Ctrl-C cancels, a daemon's death is told, nobody spins, and other sources of the loop are not
 * starved. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "clienttest.h"
#include "daemonfix.h"
#include "examplefix.h"
#include "leakcheck.h"
#include "runprog.h"

static const char *const programs[] = {TEST_BUILD "/examples/glmd_epoll", TEST_BUILD "/examples/glmd_uv",
                                       TEST_BUILD "/examples/glmd_glib", "client/examples/glmd_asyncio.py"};

#ifdef __SANITIZE_THREAD__
#define FLOOD 300 /* tokens of each of eight answers */
#else
#define FLOOD 1500
#endif

/* An emulator has neither GLib nor libuv nor Python of its machine. */
static int n_programs(void) {
    return getenv("GLMD_EMULATED") ? 1 : 4;
}

/* The sanitizer of this program, if it has one: a library made for it cannot be loaded into a Python without.
 */
static void preload(char *ret, size_t size) {
    FILE *o = fopen("/proc/self/maps", "re");
    char line[512], *at;

    ret[0] = 0;
    while (o && fgets(line, sizeof line, o)) {
        line[strcspn(line, "\n")] = 0;
        at = strchr(line, '/');
        if (at && (strstr(at, "/libasan.so") || strstr(at, "/libtsan.so")))
            snprintf(ret, size, "%s", at);
    }
    if (o)
        fclose(o);
}

/* The program with this number, options and prompts up to a NULL. */
static void start_program(struct runprog *p, int which, const char *const *args) {
    static const char path[] = "LD_LIBRARY_PATH=" TEST_BUILD;
    const char *argv[40] = {NULL}, *env[4] = {NULL};
    int n = 0;
    char lib[512], set[600];
    bool python = strstr(programs[which], ".py") != NULL;

    if (python)
        argv[n++] = "/usr/bin/python3"; /* the package's: others cannot always be loaded with a sanitizer */
    argv[n++] = programs[which];
    for (int i = 0; i < 30 && args[i]; i++)
        argv[n++] = args[i];
    preload(lib, sizeof lib);
    snprintf(set, sizeof set, "LD_PRELOAD=%s", lib);
    if (python) {
        env[0] = path;
        if (lib[0]) {
            env[1] = set;
            env[2] = "ASAN_OPTIONS=detect_leaks=0"; /* Python keeps what it has to the end */
        }
    }
    runprog_start(p, argv, env, python, false);
}

/* Lines of one answer out of the output of several, without their number. */
static void lines_of(const char *out, int number, char *ret) {
    char head[16];
    size_t n = (size_t)snprintf(head, sizeof head, "%d: ", number);

    *ret = 0;
    while (*out) {
        size_t len = strcspn(out, "\n");

        if (strncmp(out, head, n) == 0) {
            if (*ret)
                strcat(ret, "\n");
            strncat(ret, out + n, len - n);
        }
        out += len + (out[len] == '\n');
    }
}

static void expect_answers(const struct runprog *p, int from, int to) {
    char got[1024];

    for (int i = from; i <= to; i++) {
        lines_of(p->out_text, i, got);
        ck_assert_msg(strcmp(got, EXAMPLE_TEXT) == 0, "answer %d is \"%s\" in \"%s\"", i, got, p->out_text);
    }
}

static void loop_numbers(const struct runprog *p, unsigned long *ret_takes, unsigned long *ret_ticks,
                         long *ret_ms) {
    const char *at = strstr(p->err_text, ": ");

    while (at && sscanf(at, ": %lu dispatches, %lu ticks, %ld ms", ret_takes, ret_ticks, ret_ms) != 3)
        at = strstr(at + 2, ": ");
    ck_assert_msg(at != NULL, "no numbers in \"%s\"", p->err_text);
}

/* One answer as it is, four of them line by line; both as this program's own client gets it. */
START_TEST(text_is_the_daemons) {
    struct daemonfix f;
    struct answer a;
    struct runprog p;
    glmd_conn *c;

    example_daemon(&f, "step-us 2000\nrequest\ntokens " THOUGHT SKY "4060\n");
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a, request_text(c, "x"));
    answers_wait(c, &a, 1, 10000);
    ck_assert_str_eq(a.content, EXAMPLE_TEXT);
    glmd_close(c);

    start_program(&p, _i, (const char *const[]){"-s", f.socket, "Why?", NULL});
    ck_assert_int_eq(runprog_finish(&p), 0);
    ck_assert_msg(strncmp(p.out_text, EXAMPLE_TEXT, strlen(EXAMPLE_TEXT)) == 0 &&
                      strcmp(p.out_text + strlen(EXAMPLE_TEXT), "\n") == 0,
                  "\"%s\" / %s", p.out_text, p.err_text);
    ck_assert_str_eq(p.err_text, "");

    start_program(&p, _i, (const char *const[]){"-s", f.socket, "a", "b", "c", "d", NULL});
    ck_assert_int_eq(runprog_finish(&p), 0);
    expect_answers(&p, 1, 4);
    ck_assert_str_eq(p.err_text, "");

    start_program(&p, _i, (const char *const[]){"-s", f.socket, NULL});
    ck_assert_int_eq(runprog_finish(&p), 2);
    ck_assert_ptr_nonnull(strstr(p.err_text, "usage: "));
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(interrupt_cancels) {
    struct glmd_info info = {.size = sizeof info};
    struct daemonfix f;
    struct runprog p;
    uint64_t until;
    glmd_conn *c;

    example_daemon(&f, "step-us 2000\nrequest\ntokens 4082 " SKY "198\nrepeat\n");
    c = daemonfix_connect(&f, NULL);
    start_program(&p, _i, (const char *const[]){"-s", f.socket, "a", "b", NULL});
    runprog_expect(&p, "1: Light from the sun."); /* long before the end */
    runprog_expect(&p, "2: Light from the sun.");
    ck_assert_int_eq(kill(p.pid, SIGINT), 0);
    ck_assert_int_eq(runprog_finish(&p), 130);
    ck_assert_msg(strstr(p.err_text, glmd_strerror(-ECANCELED)) != NULL, "%s", p.err_text);
    until = test_now_ms() + 10000;
    do {
        ck_assert_int_eq(glmd_get_info(c, &info), 0);
        ck_assert_uint_lt(test_now_ms(), until);
    } while (info.running + info.queued > 0);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(death_is_told) {
    struct daemonfix f;
    struct runprog p;

    example_daemon(&f, "step-us 2000\nrequest\ntokens 4082 " SKY "198\nrepeat\n");
    start_program(&p, _i, (const char *const[]){"-s", f.socket, "a", "b", NULL});
    runprog_expect(&p, "2: Light from the sun.");
    kill(f.pid, SIGKILL);
    ck_assert_int_eq(runprog_finish(&p), 4);
    ck_assert_msg(strstr(p.err_text, glmd_strerror(-EPIPE)) != NULL, "%s", p.err_text);
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 128 + SIGKILL);

    start_program(&p, _i, (const char *const[]){"-s", f.socket, "a", NULL});
    ck_assert_int_eq(runprog_finish(&p), 3);
    ck_assert_msg(strstr(p.err_text, f.socket) != NULL, "%s", p.err_text);
    daemonfix_done(&f);
}
END_TEST

/* Two daemons in one loop.  One is killed; the answer of the other is whole. */
START_TEST(two_connections_in_one_loop) {
    struct daemonfix f[2];
    struct runprog p;

    example_daemon(&f[0], "step-us 20000\nrequest\ntokens 4082 " SKY "4060\n");
    example_daemon(&f[1], "step-us 1000\nrequest\ntokens 4082 " SKY "198\nrepeat\n");
    start_program(&p, _i, (const char *const[]){"-s", f[0].socket, "-s", f[0].socket, "a", "b", "c", NULL});
    ck_assert_int_eq(runprog_finish(&p), 0);
    expect_answers(&p, 1, 3);

    start_program(&p, _i, (const char *const[]){"-s", f[0].socket, "-s", f[1].socket, "a", "b", NULL});
    runprog_expect(&p, "2: Light from the sun.");
    kill(f[1].pid, SIGKILL);
    ck_assert_int_eq(runprog_finish(&p), 4);
    expect_answers(&p, 1, 1);
    ck_assert_int_eq(daemonfix_wait(&f[1], 10000), 128 + SIGKILL);
    daemonfix_stop(&f[0]);
    daemonfix_done(&f[0]);
    daemonfix_done(&f[1]);
}
END_TEST

/* Processor time of a process so far. */
static uint64_t run_ns(pid_t pid) {
    unsigned long long ns = 0;
    char path[64];
    FILE *o;

    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    o = fopen(path, "re");
    ck_assert_ptr_nonnull(o);
    ck_assert_int_eq(fscanf(o, "%llu", &ns), 1);
    fclose(o);
    return ns;
}

/* Between tokens that are a quarter of a second apart: a handful of dispatches, next to no processor time
 * (one that spins gets more even on a busy machine), and a timer of the same loop goes on. */
START_TEST(idle_loop_sleeps) {
    unsigned long takes, ticks, before, used;
    struct daemonfix f;
    struct runprog p;
    long ms;

    example_daemon(&f, "step-us 250000\nrequest\ntokens 4082 712 1168 88 318 876 4060\n");
    start_program(&p, _i, (const char *const[]){"-v", "-i", "20", "-s", f.socket, "a", NULL});
    runprog_expect(&p, "The");
    before = run_ns(p.pid) / 1000000;
    runprog_expect(&p, "The sky is bl");
    used = run_ns(p.pid) / 1000000 - before;
    ck_assert_int_eq(runprog_finish(&p), 0);
    loop_numbers(&p, &takes, &ticks, &ms);
    ck_assert_msg(takes >= 6 && takes <= 40, "%lu dispatches for 7 tokens", takes);
    ck_assert_msg(used < 100, "%lu ms of processor time in a second of waiting", used);
    ck_assert_msg(ticks > 5, "%lu ticks of a timer of 20 ms", ticks);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

static void nap_us(long us) {
    struct timespec t = {0, us * 1000};

    nanosleep(&t, NULL);
}

static bool has_ended(pid_t pid) {
    siginfo_t si = {0};

    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &si, WEXITED | WNOHANG | WNOWAIT), 0);
    return si.si_pid == pid;
}

/* Stopped again and again, so that it finds a full ring each time it goes on: it takes a bounded number of
 * events before the rest of its loop has a turn. */
START_TEST(flood_comes_in_portions) {
    unsigned long takes, ticks;
    uint64_t before;
    struct daemonfix f;
    struct runprog p;
    char tokens[16];
    long ms;

    snprintf(tokens, sizeof tokens, "%d", FLOOD);
    example_daemon(&f, "step-us 0\nrequest\ntokens 39 334 593\nrepeat\n");
    start_program(&p, _i,
                  (const char *const[]){"-v", "-i", "2", "-n", tokens, "-s", f.socket, "a", "b", "c", "d",
                                        "e", "f", "g", "h", NULL});
    while (!has_ended(p.pid)) {
        kill(p.pid, SIGSTOP);
        nap_us(30000);
        kill(p.pid, SIGCONT);
        before = run_ns(p.pid); /* on a busy machine a moment later it may not even have run */
        for (int i = 0; i < 200 && run_ns(p.pid) == before; i++)
            nap_us(100);
    }
    ck_assert_int_eq(runprog_finish(&p), 0);
    loop_numbers(&p, &takes, &ticks, &ms);
    ck_assert_msg(takes >= 8 * FLOOD / 64, "%lu dispatches for %d events", takes, 8 * FLOOD);
    ck_assert_msg(ticks > 5, "%lu ticks", ticks);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("examples_loops");
    TCase *tc = ct_case(s, "loops", 60);

    tcase_add_loop_test(tc, text_is_the_daemons, 0, n_programs());
    tcase_add_loop_test(tc, interrupt_cancels, 0, n_programs());
    tcase_add_loop_test(tc, death_is_told, 0, n_programs());
    tcase_add_loop_test(tc, two_connections_in_one_loop, 0, n_programs());
    tcase_add_loop_test(tc, idle_loop_sleeps, 0, n_programs());
    tcase_add_loop_test(tc, flood_comes_in_portions, 0, n_programs());
    return ct_main(s);
}
