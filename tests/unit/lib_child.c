/* SPDX-License-Identifier: MIT */
/* The test library's own promises (tests/lib/childcheck.h): forked children may say ck_ whatever the threads of the
 * test are doing, and die in the middle of it; and a test may say it under a limit on file sizes. A test that fails or
 * is killed leaves no temporary file, and one that passes may not (tests/lib/tmpleft.h). */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "childcheck.h"
#include "clienttest.h"

enum { CHILDREN = 300 };

static atomic_bool stop;

/* Holds Check's lock most of the time. */
static void *chatter(void *arg) {
    while (!atomic_load(&stop))
        ck_assert(arg == NULL);
    return NULL;
}

START_TEST(beside_a_thread_that_asserts) {
    pthread_t th;
    int status;

    ck_assert_int_eq(pthread_create(&th, NULL, chatter, NULL), 0);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t p = fork();

        ck_assert_int_ge(p, 0);
        if (p == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(20);
            for (int k = 0; k < 10; k++)
                ck_assert_int_eq(k, k);
            _exit(5);
        }
        ck_assert_int_eq(waitpid(p, &status, 0), p);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 5, "child %d: status %x", i, (unsigned)status);
    }
    atomic_store(&stop, true);
    pthread_join(th, NULL);
}
END_TEST

/* Of all open files but the three of every process: Check's is among them. */
static off_t bytes_in_files(void) {
    off_t sum = 0;
    struct stat st;

    for (int fd = 3; fd < 1024; fd++)
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
            sum += st.st_size;
    return sum;
}

/* A child killed in the middle of a message would leave half of it to the test. */
START_TEST(nothing_reaches_the_message_file) {
    off_t before = bytes_in_files();
    int status;

    ck_assert(before >= 0);
    ck_assert_msg(bytes_in_files() > before, "the message file is not found");
    pid_t p = fork();
    if (p == 0) {
        before = bytes_in_files();
        for (int k = 0; k < 10; k++)
            ck_assert_int_eq(k, k);
        _exit(bytes_in_files() == before ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(p, &status, 0), p);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(what_fails_is_seen_by_the_parent) {
    char said[200] = "";
    int status, out[2];

    ck_assert_int_eq(pipe(out), 0);
    pid_t p = fork();
    if (p == 0) {
        dup2(out[1], STDERR_FILENO);
        ck_assert_msg(p != 0, "number %d", 12);
        _exit(0);
    }
    ck_assert_int_ge(p, 0);
    ck_assert_int_eq(waitpid(p, &status, 0), p);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == CHILD_FAILED, "status %x", (unsigned)status);
    ck_assert_int_gt((int)read(out[0], said, sizeof said - 1), 0);
    ck_assert_msg(strstr(said, "lib_child.c:") && strstr(said, ": in a forked child: number 12\n"), "%s", said);
    close(out[0]);
    close(out[1]);
}
END_TEST

/* The limits pass through every byte of a message or two, so one of them would be cut whatever its length is. */
START_TEST(a_limit_on_file_sizes_cuts_no_message) {
    off_t before = bytes_in_files();
    struct rlimit old, lim;

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    lim = old;
    for (int k = 0; k < 200; k++) {
        lim.rlim_cur = (rlim_t)(before + k);
        setrlimit(RLIMIT_FSIZE, &lim);
        for (int i = 0; i < 8; i++)
            ck_assert_int_eq(i, i);
        setrlimit(RLIMIT_FSIZE, &old);
    }
    ck_assert_int_gt((int)(bytes_in_files() - before), 0);
}
END_TEST

enum { FAILS, IS_KILLED, FORGETS, CLEANS_UP, WAYS };

static char (*made)[64]; /* shared with the processes of the inner tests */

START_TEST(makes_two) {
    char path[100];
    int fd;

    for (int i = 0; i < 2; i++)
        strcpy(made[i], "/tmp/glmd-left-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(made[0]));
    fd = mkstemp(made[1]);
    ck_assert_int_ge(fd, 0);
    close(fd);
    snprintf(path, sizeof path, "%s/within", made[0]);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_ne(_i, FAILS);
    if (_i == IS_KILLED)
        raise(SIGKILL);
    if (_i == CLEANS_UP) {
        rmdir(path);
        rmdir(made[0]);
        unlink(made[1]);
    }
}
END_TEST

static void run_inner(int way) {
    Suite *s = suite_create("inner");
    TCase *t = tcase_create("inner");
    SRunner *r;

    close(STDERR_FILENO); /* it names what it removes */
    alarm(20);
    tcase_add_loop_test(t, makes_two, way, way + 1);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_SILENT);
    way = srunner_ntests_failed(r);
    srunner_free(r);
    _exit(way ? 3 : 0);
}

START_TEST(no_temporary_file_is_left) {
    static const int wants[WAYS] = {[FAILS] = 3, [IS_KILLED] = 3, [FORGETS] = EXIT_FAILURE, [CLEANS_UP] = 0};
    int status;
    pid_t p;

    made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(made != MAP_FAILED);
    p = fork();
    ck_assert_int_ge(p, 0);
    if (p == 0)
        run_inner(_i);
    ck_assert_int_eq(waitpid(p, &status, 0), p);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == wants[_i], "status %x", (unsigned)status);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(made[i][0] == '/' && access(made[i], F_OK) < 0, "%s", made[i]);
    munmap(made, 4096);
}
END_TEST

int main(void) {
    Suite *s = suite_create("lib_child");
    TCase *t = ct_case(s, "child", 60);

    tcase_add_test(t, beside_a_thread_that_asserts);
    tcase_add_test(t, nothing_reaches_the_message_file);
    tcase_add_test(t, what_fails_is_seen_by_the_parent);
    tcase_add_test(t, a_limit_on_file_sizes_cuts_no_message);
    tcase_add_loop_test(t, no_temporary_file_is_left, 0, WAYS);
    return ct_main(s);
}
