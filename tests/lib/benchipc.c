/* SPDX-License-Identifier: MIT */
#include "benchipc.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static cpu_set_t allowed;

void bench_pin(enum bench_core core) {
    cpu_set_t one;
    int want = core == BENCH_SENDER ? 0 : 1;

    if (CPU_COUNT(&allowed) == 0)
        sched_getaffinity(0, sizeof allowed, &allowed);
    if (CPU_COUNT(&allowed) < 2)
        return; /* nothing to choose from */
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &allowed) && want-- == 0)
            CPU_SET(i, &one);
    sched_setaffinity(0, sizeof one, &one);
}

void bench_unpin(void) {
    if (CPU_COUNT(&allowed))
        sched_setaffinity(0, sizeof allowed, &allowed);
}

void bench_fault(const char *name) {
    if (bench_handicap())
        setenv("GLMD_FAULT", name, 1);
}

uint64_t bench_cpu_ns(pid_t pid) {
    clockid_t id;
    struct timespec ts;

    if (clock_getcpuclockid(pid, &id) != 0 || clock_gettime(id, &ts) < 0)
        return 0;
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t bench_voluntary_switches(pid_t pid) {
    char path[64], line[128];
    uint64_t sum = 0, n;
    DIR *d;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    d = opendir(path);
    for (struct dirent *t; d && (t = readdir(d));) {
        FILE *f;

        if (t->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", (int)pid, t->d_name);
        f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "voluntary_ctxt_switches: %" SCNu64, &n) == 1)
                sum += n;
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return sum;
}

double bench_percentile(double *v, size_t n, double percent) {
    bench_median(v, n); /* sorts */
    return n ? v[(size_t)(percent / 100.0 * (double)(n - 1))] : (double)NAN;
}

void bench_sleep_ns(uint64_t ns) {
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

    while (nanosleep(&ts, &ts) < 0 && errno == EINTR)
        ;
}

void *bench_shared(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

pid_t bench_child(int (*fn)(void *arg), void *arg, enum bench_core core) {
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(core);
    _exit(fn(arg) == 0 ? 0 : 1);
}

int bench_child_end(pid_t pid) {
    int status = 0;

    if (pid <= 0 || waitpid(pid, &status, 0) != pid)
        return -ECHILD;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EIO;
}

static int (*body)(void);
static int result;

START_TEST(in_a_test) {
    result = body();
}
END_TEST

int bench_with_check(int (*fn)(void)) {
    Suite *s = suite_create("bench");
    TCase *t = tcase_create("bench");
    SRunner *r;

    body = fn;
    result = 2;
    tcase_add_test(t, in_a_test);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_SILENT);
    if (srunner_ntests_failed(r)) {
        srunner_print(r, CK_NORMAL);
        result = 2;
    }
    srunner_free(r);
    return result;
}
