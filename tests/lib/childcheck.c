/* SPDX-License-Identifier: MIT */
/* The wrappers that keep forked children, and limits on file sizes, away from Check; see childcheck.h.  Test processes
 * only. */
#include "childcheck.h"

#include <check.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tmpleft.h"

void __real_srunner_run_all(SRunner *sr, enum print_output how);
void __wrap_srunner_run_all(SRunner *sr, enum print_output how);
void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);
void __real__ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...)
    __attribute__((noreturn, format(printf, 4, 5)));
void __wrap__ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

static int forks;      /* between the program's start and this process */
static int test_forks; /* as many has the process of a test */
static bool no_runner;

static bool in_child(void) {
    return forks > test_forks || no_runner;
}

void childcheck_no_runner(void) {
    no_runner = true;
}

/* A message written at the limit would be cut in the middle, and Check ends the program over it. */
static bool files_are_limited(void) {
    struct rlimit lim;

    return getrlimit(RLIMIT_FSIZE, &lim) != 0 || lim.rlim_cur != lim.rlim_max;
}

static void limit_files_no_more(void) {
    struct rlimit lim;

    if (getrlimit(RLIMIT_FSIZE, &lim) == 0) {
        lim.rlim_cur = lim.rlim_max;
        setrlimit(RLIMIT_FSIZE, &lim);
    }
}

static void child_begins(void) {
    forks++;
}

__attribute__((constructor)) static void watch(void) {
    if (pthread_atfork(NULL, NULL, child_begins) != 0)
        abort();
}

void __wrap_srunner_run_all(SRunner *sr, enum print_output how) {
    struct tmpleft *outer = tmpleft_begin();

    test_forks = forks + (srunner_fork_status(sr) == CK_FORK);
    __real_srunner_run_all(sr, how);
    if (tmpleft_end(outer) && !srunner_ntests_failed(sr))
        exit(EXIT_FAILURE);
}

void __wrap__mark_point(const char *file, int line) {
    if (!in_child() && !files_are_limited())
        __real__mark_point(file, line);
}

void __wrap__ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...) {
    char text[2048];
    va_list ap;

    snprintf(text, sizeof text, "%s", expr);
    if (msg) {
        va_start(ap, msg);
        vsnprintf(text, sizeof text, msg, ap);
        va_end(ap);
    }
    if (!in_child()) {
        limit_files_no_more();
        __real__ck_assert_failed(file, line, expr, "%s", text);
    }
    dprintf(STDERR_FILENO, "%s:%d: %s: %s\n", file, line, no_runner ? "failed" : "in a forked child", text);
    _exit(CHILD_FAILED);
}
