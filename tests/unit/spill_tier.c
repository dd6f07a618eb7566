/* SPDX-License-Identifier: MIT */
/* The spill tier on a real directory: what is put in comes out, also for the next daemon, and only for the same
 * tokens of the same user; its limits hold; directories that cannot be used are refused with a sentence; a daemon that
 * is killed at any moment leaves nothing that is given out wrong. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipctest.h"
#include "leakcheck.h"
#include "spilltest.h"

static struct spilltest t;
static uint32_t ids[SPILLTEST_MAX_TOKENS], other[SPILLTEST_MAX_TOKENS];

static void setup(void) {
    leakcheck_setup();
    spilltest_init(&t, NULL);
    spilltest_text(1, ids, SPILLTEST_MAX_TOKENS);
    spilltest_text(100, other, SPILLTEST_MAX_TOKENS);
}

static void teardown(void) {
    spilltest_done(&t);
    leakcheck_teardown();
}

static void open_it(void) {
    ck_assert_msg(spilltest_open(&t) == 0, "%s", t.err.msg);
}

static void reopen(void) {
    spilltest_close(&t);
    open_it();
}

/* ---- in and out ---- */

START_TEST(what_is_put_in_comes_out) {
    struct stat st;
    char path[400];

    t.o.plain = _i;
    open_it();
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 200), 0);
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 100)); /* seven pages, the last of four tokens */
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 200), 100);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 99), 0);
    ck_assert_uint_eq(spilltest_get(t.s, 7, other, 200), 0);
    ck_assert(!spilltest_put(t.s, 7, SPILL_EXACT, ids, 100)); /* there already */
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 160));
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 4));
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 160);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 159), 100);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 50), 4);
    for (int i = 0; i < 2; i++) {
        ck_assert(spilltest_first(&t, i ? ".state" : ".page", path, sizeof path));
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert_int_eq(st.st_mode & 07777, 0600);
    }
    /* the next daemon has all of it */
    reopen();
    ck_assert_msg(!t.note.msg[0], "%s", t.note.msg);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 160);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 159), 100);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 50), 4);
    ck_assert(!spilltest_put(t.s, 7, SPILL_EXACT, ids, 160));
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, other, 32)); /* names do not clash */
    ck_assert_uint_eq(spilltest_files(&t, ".tmp"), 0);
}
END_TEST

START_TEST(pages_are_shared) {
    open_it();
    memcpy(other, ids, 64 * sizeof *ids); /* a branch: four pages in common */
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 96));
    ck_assert_uint_eq(spilltest_files(&t, ".page"), 6);
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, other, 96));
    ck_assert_uint_eq(spilltest_files(&t, ".page"), 8);
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 64));
    ck_assert_uint_eq(spilltest_files(&t, ".page"), 8);
    ck_assert_uint_eq(spilltest_get(t.s, 7, other, 255), 96);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 96);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 80), 64);
}
END_TEST

static uint64_t read_bytes(void) {
    struct spill_stats st;

    spill_get_stats(t.s, &st);
    return st.read_bytes;
}

/* Pages that the caller has are not read, and not believed either: their ids are. */
START_TEST(what_the_caller_has) {
    uint64_t all, payload = spilltest_options("").shape.page_bytes, before;

    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 160)); /* ten pages */
    reopen();
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 160);
    all = read_bytes();
    for (uint32_t from = 0; from <= 10; from++) {
        before = read_bytes();
        ck_assert_uint_eq(spilltest_get_from(t.s, 7, ids, 255, from), 160);
        ck_assert_uint_eq(read_bytes() - before,
                          all - from * ((payload + SPILL_ALIGN - 1) / SPILL_ALIGN * SPILL_ALIGN));
    }
}
END_TEST

START_TEST(users_do_not_share) {
    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 64));
    ck_assert_uint_eq(spilltest_get(t.s, 8, ids, 255), 0);
    reopen();
    ck_assert_uint_eq(spilltest_get(t.s, 8, ids, 255), 0);
    ck_assert(spilltest_put(t.s, 8, SPILL_EXACT, ids, 32));
    ck_assert_uint_eq(spilltest_get(t.s, 8, ids, 255), 32);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 64);
}
END_TEST

/* What decode steps wrote never serves one that wants the bits of a fresh reading. */
START_TEST(qualities) {
    struct spill_found f;

    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_NEAR, ids, 64));
    ck_assert(spill_find(t.s, 7, ids, 0, 255, SPILLTEST_GRID, &f) && f.pos == 64);
    ck_assert_uint_eq(f.quality, SPILL_NEAR);
    ck_assert_uint_eq(spilltest_files(&t, ".page"), 4);
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 64)); /* its pages too are written anew */
    ck_assert_uint_eq(spilltest_files(&t, ".page"), 8);
    reopen();
    ck_assert(spill_find(t.s, 7, ids, 0, 255, SPILLTEST_GRID, &f) && f.pos == 64);
    ck_assert_uint_eq(f.quality, SPILL_EXACT);
    ck_assert(!spilltest_put(t.s, 7, SPILL_NEAR, ids, 64)); /* the better one is there */
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 64);
}
END_TEST

START_TEST(ends_without_leaving_anything) {
    t.o.survive = false;
    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 64));
    ck_assert_uint_eq(spilltest_files(&t, ".page"), 4);
    spilltest_close(&t);
    ck_assert_uint_eq(spilltest_files(&t, ".page") + spilltest_files(&t, ".state"), 0);
    /* and what a killed one left is not used */
    t.o.survive = true;
    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 64));
    spilltest_close(&t);
    t.o.survive = false;
    open_it();
    ck_assert_uint_eq(spilltest_files(&t, ".page") + spilltest_files(&t, ".state"), 0);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 0);
}
END_TEST

START_TEST(both_ways_at_once_and_given_up) {
    struct spill_piece in, out;
    int r, pieces = 0;

    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 200));
    for (int stop = 0; stop < 16; stop++) {
        uint32_t pos = 100 + 4 * (uint32_t)stop;
        bool put = spill_put(t.s, 9, SPILL_EXACT, 0, other, pos) == 1;

        ck_assert(put);
        ck_assert_int_eq(spill_put(t.s, 9, SPILL_EXACT, 0, other, pos), -EBUSY);
        ck_assert_int_eq(spill_get(t.s, 7, ids, 200, 0), 0);
        ck_assert_int_eq(spill_get(t.s, 7, ids, 200, 0), -EBUSY);
        for (pieces = 0; pieces < stop; pieces++) {
            r = spill_put_next(t.s, &in);
            if (r == 1 && pieces + 1 < stop) {
                spilltest_fill(t.s, &in, 9, other, pos);
                spill_put_filled(t.s);
            }
            r = spill_get_next(t.s, &out);
            if (r == 1) {
                ck_assert(spilltest_is_right(t.s, &out, 7, ids, 200));
                spill_get_taken(t.s);
            } else if (r == -EAGAIN) {
                usleep(200);
            }
        }
        spill_put_abort(t.s);
        spill_get_abort(t.s);
        spilltest_settle(t.s);
    }
    ck_assert_uint_eq(spilltest_get(t.s, 9, other, 255), 0);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 200);
    ck_assert(spilltest_put(t.s, 9, SPILL_EXACT, other, 200));
    ck_assert_uint_eq(spilltest_get(t.s, 9, other, 255), 200);
    spilltest_close(&t);
    ck_assert_uint_eq(spilltest_files(&t, ".page"), 26);
    ck_assert_uint_eq(spilltest_files(&t, ".state"), 2);
    ck_assert_uint_eq(spilltest_files(&t, ".tmp"), 0);
}
END_TEST

/* ---- limits ---- */

START_TEST(the_limit_holds_and_the_least_worth_goes) {
    struct ipc_rng r = { .s = 3 };
    uint32_t deep = 0;
    struct spill_stats st;

    t.o.max_bytes = 40 * 12288;
    open_it();
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t pos = 4 * (1 + ipc_below(&r, 40));

        spilltest_text(i % 20, ids, pos);
        spilltest_put(t.s, i % 3, SPILL_EXACT, ids, pos);
        deep += spilltest_get(t.s, i % 3, ids, pos) == pos;
        spill_get_stats(t.s, &st);
        ck_assert_uint_le(st.bytes, t.o.max_bytes);
    }
    ck_assert_uint_eq(deep, 60); /* the newest is always there */
    ck_assert_uint_gt(st.thrown_out, 10);
    spilltest_close(&t);
    ck_assert_uint_le(spilltest_bytes(&t), t.o.max_bytes);
    t.o.max_bytes /= 2; /* the administrator wants less */
    open_it();
    spilltest_close(&t);
    ck_assert_uint_le(spilltest_bytes(&t), t.o.max_bytes);
}
END_TEST

START_TEST(what_is_being_read_is_not_thrown_out) {
    struct spill_piece p;

    t.o.max_bytes = 12 * 12288 + 16384;
    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 64));
    ck_assert_int_eq(spill_get(t.s, 7, ids, 64, 0), 0);
    for (uint32_t i = 8; i < 30; i++) {
        spilltest_text(i * 8, other, 32);
        /* the buffer of states is the reader's until it takes it, so the pages alone are put */
        if (spill_put(t.s, 7, SPILL_EXACT, 0, other, 32) == 1) {
            while (spill_put_next(t.s, &p) == 1) {
                spilltest_fill(t.s, &p, 7, other, 32);
                spill_put_filled(t.s);
            }
            spill_put_abort(t.s);
            while (spill_put_busy(t.s)) {
                spill_poll(t.s);
                usleep(50);
            }
        }
        spilltest_files(&t, ".page");
    }
    spill_get_abort(t.s);
    spilltest_settle(t.s);
    ck_assert_int_eq(spill_get(t.s, 7, ids, 64, 0), 0);
    /* a put that needs all the room takes what is not held */
    ck_assert_int_eq(spill_put(t.s, 7, SPILL_EXACT, 0, other, 200), 1);
    for (int i = 0; i < 100000 && spill_put_busy(t.s); i++) {
        int r = spill_put_next(t.s, &p);

        if (r == 1) {
            spilltest_fill(t.s, &p, 7, other, 200);
            spill_put_filled(t.s);
        } else {
            usleep(50);
        }
    }
    ck_assert(!spill_put_busy(t.s));
    for (;;) {
        int r = spill_get_next(t.s, &p);

        ck_assert_int_ne(r, -ENOENT);
        if (r == 0)
            break;
        if (r == 1) {
            ck_assert(spilltest_is_right(t.s, &p, 7, ids, 64));
            spill_get_taken(t.s);
        }
    }
    ck_assert_ptr_nonnull(strstr(spilltest_log(&t), "larger than [Cache] SpillBytes"));
}
END_TEST

START_TEST(a_full_disk_is_said_once) {
    struct spill_stats st;
    const char *log;

    t.o.keep_free = UINT64_MAX;
    open_it();
    for (uint32_t i = 0; i < 40; i++) {
        spilltest_text(i, ids, 64);
        ck_assert(!spilltest_put(t.s, 7, SPILL_EXACT, ids, 64));
    }
    spill_get_stats(t.s, &st);
    ck_assert_uint_gt(st.refused, 2);
    ck_assert_uint_lt(st.refused, 10); /* tried less and less often */
    ck_assert_uint_eq(st.writing_stopped, 0);
    ck_assert_uint_ne(st.error, 0);
    ck_assert_uint_eq(st.blocks, 0);
    log = strstr(spilltest_log(&t), "is full");
    ck_assert_ptr_nonnull(log);
    ck_assert_ptr_null(strstr(log + 1, "is full"));
    ck_assert_uint_eq(spilltest_files(&t, ".tmp") + spilltest_files(&t, ".page"), 0);
}
END_TEST

START_TEST(errors_of_writing_are_said_once_and_end_it) {
    struct rlimit old, small = { .rlim_cur = 14000, .rlim_max = RLIM_INFINITY }; /* a page fits, a state does not */
    struct spill_stats st;
    const char *log;

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    t.o.plain = _i;
    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, other, 64));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint32_t i = 0; i < 700; i++) {
        spilltest_text(i, ids, 32);
        ck_assert(!spilltest_put(t.s, 7, SPILL_EXACT, ids, 32));
    }
    setrlimit(RLIMIT_FSIZE, &old);
    spill_get_stats(t.s, &st);
    ck_assert_uint_eq(st.writing_stopped, 1);
    ck_assert_uint_ne(st.error, 0);
    ck_assert_uint_eq(st.states, 1);
    ck_assert_uint_eq(spilltest_get(t.s, 7, other, 255), 64); /* what is there is still read */
    log = strstr(spilltest_log(&t), "cannot be written: File too large");
    ck_assert_ptr_nonnull(log);
    ck_assert_ptr_null(strstr(log + 1, "cannot be written: "));
    ck_assert_ptr_nonnull(strstr(log, "nothing is written there any more"));
    spilltest_close(&t);
    ck_assert_uint_eq(spilltest_files(&t, ".page"), 4);
    ck_assert_uint_eq(spilltest_files(&t, ".tmp"), 0);
}
END_TEST

/* ---- directories ---- */

static void refused(int code, const char *says) {
    ck_assert_int_eq(spilltest_open(&t), code);
    ck_assert_msg(strstr(t.err.msg, says) != NULL, "%s", t.err.msg);
    ck_assert_ptr_nonnull(strstr(t.err.msg, t.o.dir));
    ck_assert_ptr_null(t.s);
}

START_TEST(directories_that_cannot_be_used) {
    struct spilltest second = t;
    struct xerr note, err = { 0 };
    char path[200];

    snprintf(path, sizeof path, "%s/nowhere", t.dir);
    t.o.dir = path;
    refused(-ENOENT, "create it");
    t.o.dir = t.log;
    refused(-ENOTDIR, "Not a directory");
    t.o.dir = t.dir;
    ck_assert_int_eq(chmod(t.dir, 0777), 0);
    refused(-EPERM, "mode 777");
    ck_assert_int_eq(chmod(t.dir, 0700), 0);
    open_it();
    second.o.dir = t.dir;
    ck_assert_int_eq(spill_open(&second.o, &second.s, &note, &err), -EBUSY);
    ck_assert_ptr_nonnull(strstr(err.msg, "another glmd uses it"));
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 64)); /* the first one is not disturbed */
    spilltest_close(&t);
    t.o.shape.state_bytes = UINT64_MAX;
    refused(-EINVAL, "too large");
}
END_TEST

START_TEST(a_directory_without_rights) {
    int status;
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        int r;

        if (geteuid() == 0 && (chown(t.dir, 65534, 65534) < 0 || setuid(65534) < 0))
            _exit(2);
        chmod(t.dir, 0500);
        r = spilltest_open(&t);
        chmod(t.dir, 0700);
        _exit(r == -EACCES && strstr(t.err.msg, "nothing can be written there") ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(chown(t.dir, geteuid(), getegid()), 0);
}
END_TEST

START_TEST(blocks_of_another_model) {
    struct spill_stats st;

    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 64));
    spilltest_close(&t);
    strcpy(t.o.shape.lineage, "nano|ref|2");
    open_it();
    ck_assert_ptr_nonnull(strstr(t.note.msg, "5 blocks (0 MiB) of another model or version"));
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 0);
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 32));
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 32);
    spilltest_close(&t);
    strcpy(t.o.shape.lineage, "nano|ref|1"); /* back to the first, whose blocks are still there */
    open_it();
    ck_assert_ptr_nonnull(strstr(t.note.msg, "3 blocks"));
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 64);
    spilltest_close(&t);
    /* and where space is short they go before anything else */
    t.o.max_bytes = spilltest_bytes(&t) + 16384;
    open_it();
    for (uint32_t i = 0, deep = 64; i < 8; i++) {
        spilltest_text(i * 8, other, 16);
        ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, other, 16));
        spill_get_stats(t.s, &st);
        ck_assert_uint_lt(st.foreign, 3);
        deep = spilltest_get(t.s, 7, ids, 255);
        ck_assert(deep == 64 || st.foreign == 0);
    }
    ck_assert_uint_eq(st.foreign, 0);
}
END_TEST

START_TEST(files_that_are_not_ours_are_left_alone) {
    static const char *const names[] = { "notes.txt", "0123.page", "0123456789abcdef0123456789abcdeX.state",
                                         "0123456789abcdef0123456789abcdef.pages" };
    char path[400];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", t.dir, names[i]);
        close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    }
    snprintf(path, sizeof path, "%s/0123456789abcdef0123456789abcdef.page.tmp", t.dir); /* ours, never finished */
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    t.o.survive = false;
    open_it();
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 64));
    spilltest_close(&t);
    ck_assert_int_lt(access(path, F_OK), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", t.dir, names[i]);
        ck_assert_msg(access(path, F_OK) == 0, "%s is gone", names[i]);
    }
}
END_TEST

/* ---- killed ---- */

static void child(uint32_t seed) {
    struct ipc_rng r = { .s = seed };

    if (spilltest_open(&t) < 0)
        _exit(1);
    for (;;) {
        uint32_t n = ipc_below(&r, 24), pos = 4 * (1 + ipc_below(&r, 50));

        spilltest_text(n, ids, SPILLTEST_MAX_TOKENS);
        spilltest_put(t.s, n % 2, SPILL_EXACT, ids, pos);
        spilltest_get(t.s, n % 2, ids, 200);
    }
}

START_TEST(killed_at_any_moment) {
    uint32_t found = 0;

    t.o.max_bytes = 200 * 12288;
    t.o.plain = _i & 1;
    for (uint32_t round = 0; round < 6; round++) {
        struct ipc_rng r = { .s = round + (uint64_t)_i * 100 };
        pid_t pid = fork();
        int status;

        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            child(round);
        usleep(20000 + ipc_below(&r, 60000));
        kill(pid, SIGKILL);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %x", status);
        open_it(); /* the lock went with the process */
        ck_assert_msg(!strstr(t.note.msg, "damaged"), "%s", t.note.msg);
        for (uint32_t n = 0; n < 24; n++) {
            spilltest_text(n, ids, SPILLTEST_MAX_TOKENS);
            found += spilltest_get(t.s, n % 2, ids, 200) > 0; /* and what is found is right */
        }
        ck_assert_uint_eq(spilltest_files(&t, ".tmp"), 0);
        spilltest_close(&t);
        ck_assert_uint_le(spilltest_bytes(&t), t.o.max_bytes);
    }
    ck_assert_uint_gt(found, 0);
}
END_TEST

int main(void) {
    Suite *s = suite_create("spill_tier");
    TCase *tc = tcase_create("tier");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, what_is_put_in_comes_out, 0, 2);
    tcase_add_test(tc, pages_are_shared);
    tcase_add_test(tc, what_the_caller_has);
    tcase_add_test(tc, users_do_not_share);
    tcase_add_test(tc, qualities);
    tcase_add_test(tc, ends_without_leaving_anything);
    tcase_add_test(tc, both_ways_at_once_and_given_up);
    tcase_add_test(tc, the_limit_holds_and_the_least_worth_goes);
    tcase_add_test(tc, what_is_being_read_is_not_thrown_out);
    tcase_add_test(tc, a_full_disk_is_said_once);
    tcase_add_loop_test(tc, errors_of_writing_are_said_once_and_end_it, 0, 2);
    tcase_add_test(tc, directories_that_cannot_be_used);
    tcase_add_test(tc, a_directory_without_rights);
    tcase_add_test(tc, blocks_of_another_model);
    tcase_add_test(tc, files_that_are_not_ours_are_left_alone);
    tcase_add_loop_test(tc, killed_at_any_moment, 0, 2);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
