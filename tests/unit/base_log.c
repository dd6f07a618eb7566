/* SPDX-License-Identifier: MIT */
/* Log lines: prefix form, journal form, one line whatever the message holds, levels, rate limit; and the
 * hand-over ring and the SIGBUS guard, which have nowhere else to be tested. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <termios.h>
#include <unistd.h>

#include "busguard.h"
#include "leakcheck.h"
#include "log.h"
#include "spsc.h"

static int p[2];

static void setup(void) {
    ck_assert_int_eq(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    unsetenv("JOURNAL_STREAM");
    log_init(p[1], NULL);
    log_set_level(LOG_LEVEL_DEBUG);
}

static void teardown(void) {
    unsetenv("JOURNAL_STREAM");
    log_init(2, NULL);
    close(p[0]);
    close(p[1]);
}

static const char *got(int fd) {
    static char text[8192];
    ssize_t n = read(fd, text, sizeof text - 1);

    text[n > 0 ? n : 0] = 0;
    return text;
}

START_TEST(prefix_lines) {
    struct log_fields f = {.conn = 7, .uid = 1000, .tag = 99};

    log_warning("hello %d", 5);
    ck_assert_str_eq(got(p[0]), "<4>hello 5\n");
    log_full(LOG_LEVEL_INFO, &f, NULL, "x");
    ck_assert_str_eq(got(p[0]), "<6>x conn=7 uid=1000 tag=99\n");
    f = (struct log_fields){.uid = LOG_NO_UID};
    log_full(LOG_LEVEL_ERROR, &f, NULL, "two\nlines\x1b[31m");
    ck_assert_str_eq(got(p[0]), "<3>two?lines?[31m\n");
    errno = 42;
    log_error("errno is kept");
    ck_assert_int_eq(errno, 42);
}
END_TEST

/* A person at a terminal gets words. */
START_TEST(terminal_lines) {
    int master, tty;
    struct termios t;

    ck_assert_int_eq(openpty(&master, &tty, NULL, NULL, NULL), 0);
    ck_assert_int_eq(tcgetattr(tty, &t), 0);
    t.c_oflag &= ~(tcflag_t)OPOST;
    ck_assert_int_eq(tcsetattr(tty, TCSANOW, &t), 0);
    log_init(tty, NULL);
    log_error("e");
    ck_assert_str_eq(got(master), "glmd: error: e\n");
    log_warning("w");
    ck_assert_str_eq(got(master), "glmd: warning: w\n");
    log_notice("n %d", 1);
    ck_assert_str_eq(got(master), "glmd: n 1\n");
    close(master);
    close(tty);
}
END_TEST

START_TEST(levels) {
    enum log_level l;

    log_set_level(LOG_LEVEL_NOTICE);
    got(p[0]);
    log_info("not this");
    log_notice("but this");
    ck_assert_str_eq(got(p[0]), "<5>but this\n");
    ck_assert_int_eq(log_level_from_name("debug", &l), 0);
    ck_assert_int_eq(l, LOG_LEVEL_DEBUG);
    ck_assert_int_eq(log_level_from_name("loud", &l), -EINVAL);
}
END_TEST

START_TEST(long_lines_end_in_a_newline) {
    char text[5000];
    const char *s;

    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    log_error("%s", text);
    s = got(p[0]);
    ck_assert_uint_lt(strlen(s), 2048);
    ck_assert_int_eq(s[strlen(s) - 1], '\n');
}
END_TEST

START_TEST(one_source_cannot_fill_the_log) {
    struct log_rate a = {0}, b = {0};
    int lines = 0;

    for (int i = 0; i < 1000; i++)
        log_full(LOG_LEVEL_INFO, NULL, &a, "noise");
    for (const char *s = got(p[0]); (s = strchr(s, '\n')); s++)
        lines++;
    ck_assert_int_eq(lines, LOG_RATE_BURST);
    ck_assert_uint_eq(a.dropped, 1000 - LOG_RATE_BURST);
    log_full(LOG_LEVEL_INFO, NULL, &b, "another source");
    ck_assert_str_eq(got(p[0]), "<6>another source\n");
    a.since_ns -= LOG_RATE_NS;
    log_full(LOG_LEVEL_INFO, NULL, &a, "later");
    ck_assert_str_eq(got(p[0]), "<6>980 lines of this source were left out\n<6>later\n");
}
END_TEST

START_TEST(journal_fields) {
    struct log_fields f = {.event = LOG_EV_QUOTA, .conn = 3, .uid = 12};
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    char dir[] = "/tmp/glmd-log-XXXXXX", stream[64];
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct stat st;
    const char *t;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s/j", dir);
    ck_assert_int_eq(bind(s, (struct sockaddr *)&sa, sizeof sa), 0);
    fstat(p[1], &st);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_init(p[1], sa.sun_path);
    log_full(LOG_LEVEL_NOTICE, &f, NULL, "full");
    t = got(s);
    ck_assert_ptr_nonnull(strstr(t, "MESSAGE=full\nPRIORITY=5\n"));
    ck_assert_ptr_nonnull(strstr(t, "\nMESSAGE_ID=e56007d5942466625b734f53b28d26ba\n"));
    ck_assert_ptr_nonnull(strstr(t, "\nGLMD_CONN=3\nGLMD_UID=12\n"));
    ck_assert_ptr_nonnull(strstr(t, "\nCODE_FILE=tests/unit/base_log.c\n"));
    ck_assert_str_eq(got(p[0]), "");
    /* the variable of another stream: standard error is not the journal */
    setenv("JOURNAL_STREAM", "1:2", 1);
    log_init(p[1], sa.sun_path);
    log_notice("here");
    ck_assert_str_eq(got(p[0]), "<5>here\n");
    close(s);
    unlink(sa.sun_path);
    rmdir(dir);
}
END_TEST

/* ---- the hand-over ring ----------------------------------------------------------------------------------
 */

enum { RECORDS = 300000 };
static struct spsc ring;
static _Atomic uint32_t finished;

static void *produce(void *ctx) {
    (void)ctx;
    for (uint64_t i = 0; i < RECORDS; i++) {
        uint64_t rec[2] = {i, ~i};

        while (!spsc_push(&ring, rec))
            spsc_wake(&ring);
        if (i % 7 == 0)
            spsc_wake(&ring);
    }
    atomic_store(&finished, 1);
    spsc_wake(&ring);
    return NULL;
}

START_TEST(ring_between_threads) {
    uint64_t next = 0, *rec;
    pthread_t t;

    ck_assert_int_eq(spsc_init(&ring, 100, 16), -EINVAL);
    ck_assert_int_eq(spsc_init(&ring, 128, 16), 0);
    ck_assert(spsc_is_drained(&ring));
    finished = 0;
    ck_assert_int_eq(pthread_create(&t, NULL, produce, NULL), 0);
    while (next < RECORDS) {
        uint32_t n = 0;

        while ((rec = spsc_peek_at(&ring, n))) {
            ck_assert_uint_eq(rec[0], next);
            ck_assert_uint_eq(rec[1], ~next);
            next++;
            n++;
        }
        spsc_advance(&ring, n);
        if (!n && next < RECORDS)
            spsc_wait(&ring, NULL, 0); /* without a bound: a lost wake-up hangs here */
    }
    pthread_join(t, NULL);
    ck_assert(spsc_is_drained(&ring));
    ck_assert_uint_eq(spsc_room(&ring), 128);
    spsc_done(&ring);
}
END_TEST

START_TEST(ring_is_bounded) {
    uint64_t rec[2] = {0};

    ck_assert_int_eq(spsc_init(&ring, 4, 16), 0);
    for (int i = 0; i < 4; i++)
        ck_assert(spsc_push(&ring, rec));
    ck_assert(!spsc_push(&ring, rec));
    ck_assert_ptr_null(spsc_peek_at(&ring, 4));
    spsc_advance(&ring, 1);
    ck_assert(spsc_push(&ring, rec));
    spsc_done(&ring);
}
END_TEST

/* ---- SIGBUS ----------------------------------------------------------------------------------------------
 */

/* A file mapping beyond the file's end raises SIGBUS, twice in a row, and normal memory goes on working. */
START_TEST(fault_inside_the_guard) {
    int fd = memfd_create("short", MFD_CLOEXEC);
    volatile int faults = 0;
    volatile uint8_t *m;
    struct busguard g;

    ck_assert_int_eq(busguard_install(), 0);
    m = mmap(NULL, 1 << 16, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne((void *)(uintptr_t)m, MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        if (busguard_enter(&g, (const void *)(uintptr_t)m, 1 << 16)) {
            ck_assert_uint_eq(m[4096], 1);
            busguard_leave(&g);
        } else {
            faults++;
        }
    }
    ck_assert_int_eq(faults, 2);
    ck_assert_int_eq(ftruncate(fd, 1 << 16), 0);
    ck_assert(busguard_enter(&g, (const void *)(uintptr_t)m, 1 << 16));
    ck_assert_uint_eq(m[4096], 0);
    busguard_leave(&g);
    munmap((void *)(uintptr_t)m, 1 << 16);
    close(fd);
}
END_TEST

START_TEST(fault_outside_the_guard_is_fatal) {
    int fd = memfd_create("short", MFD_CLOEXEC);
    volatile uint8_t *m = mmap(NULL, 1 << 16, PROT_READ, MAP_SHARED, fd, 0);
    struct busguard g;

    ck_assert_int_eq(busguard_install(), 0);
    if (busguard_enter(&g, (const void *)(uintptr_t)m, 4096))
        ck_assert_uint_eq(m[8192], 1);
}
END_TEST

/* A supervisor that stops reading loses lines; the daemon goes on, and says how many when it can again. */
START_TEST(a_reader_that_stops_cannot_block_us) {
    static char text[1 << 18];
    size_t n = 0;
    int ends[2];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    log_init(ends[1], NULL);
    for (int i = 0; i < 4000; i++)
        log_notice("line %d of a daemon whose log nobody reads any more, long enough to fill a pipe", i);
    log_error("an error waits a moment, not for ever");
    for (int round = 0; round < 2; round++) {
        ssize_t got;

        ck_assert_int_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
        while ((got = read(ends[0], text + n, sizeof text - 1 - n)) > 0)
            n += (size_t)got;
        if (round == 0)
            log_notice("it is read again");
    }
    text[n] = 0;
    ck_assert_ptr_nonnull(strstr(text, "line 100 of"));
    ck_assert_ptr_null(strstr(text, "line 3999 of"));
    ck_assert_ptr_nonnull(strstr(text, "log lines were lost: nobody read them\n<5>it is read again\n"));
    log_init(2, NULL);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

int main(void) {
    Suite *s = suite_create("base_log");
    TCase *tc = tcase_create("log"), *ring_tc = tcase_create("ring"), *bus = tcase_create("sigbus");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, prefix_lines);
    tcase_add_test(tc, terminal_lines);
    tcase_add_test(tc, levels);
    tcase_add_test(tc, long_lines_end_in_a_newline);
    tcase_add_test(tc, one_source_cannot_fill_the_log);
    tcase_add_test(tc, journal_fields);
    tcase_add_test(tc, a_reader_that_stops_cannot_block_us);
    suite_add_tcase(s, tc);
    tcase_set_timeout(ring_tc, 60);
    tcase_add_test(ring_tc, ring_between_threads);
    tcase_add_test(ring_tc, ring_is_bounded);
    suite_add_tcase(s, ring_tc);
    tcase_add_test(bus, fault_inside_the_guard);
    tcase_add_test_raise_signal(bus, fault_outside_the_guard_is_fatal, SIGBUS);
    suite_add_tcase(s, bus);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
