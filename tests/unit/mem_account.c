/* SPDX-License-Identifier: MIT */
/* The books: plans, high-water marks, and the check against the machine. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "account.h"
#include "ckpt.h"
#include "leakcheck.h"
#include "meminfo.h"

static struct mem_account a;
static struct xerr err;

static void setup(void) {
    leakcheck_setup();
    mem_account_init(&a);
    memset(&err, 0, sizeof err);
}

static void teardown(void) {
    leakcheck_teardown();
}

static void expect(enum mem_class c, uint64_t planned, uint64_t used, uint64_t high) {
    struct mem_usage u = mem_account_read(&a, c);

    ck_assert_uint_eq(u.planned, planned);
    ck_assert_uint_eq(u.used, used);
    ck_assert_uint_eq(u.high, high);
}

START_TEST(to_the_byte) {
    ck_assert_int_eq(mem_account_take(&a, MEM_PAGES, 1), -ENOMEM); /* nothing planned */
    ck_assert_int_eq(mem_account_plan(&a, MEM_PAGES, 1000), 0);
    ck_assert_int_eq(mem_account_plan(&a, MEM_PAGES, 1), 0);
    expect(MEM_PAGES, 1001, 0, 0);
    ck_assert_int_eq(mem_account_take(&a, MEM_PAGES, 600), 0);
    ck_assert_int_eq(mem_account_take(&a, MEM_PAGES, 402), -ENOMEM);
    expect(MEM_PAGES, 1001, 600, 600);
    ck_assert_int_eq(mem_account_take(&a, MEM_PAGES, 401), 0);
    expect(MEM_PAGES, 1001, 1001, 1001);
    mem_account_give(&a, MEM_PAGES, 1000);
    expect(MEM_PAGES, 1001, 1, 1001);
    ck_assert_int_eq(mem_account_take(&a, MEM_PAGES, 10), 0);
    expect(MEM_PAGES, 1001, 11, 1001);
    expect(MEM_SLOTS, 0, 0, 0);
    ck_assert_int_eq(mem_account_plan(&a, MEM_WEIGHTS, 5), 0);
    ck_assert_uint_eq(mem_account_total(&a).planned, 1006);
    ck_assert_uint_eq(mem_account_total(&a).used, 11);
    ck_assert_uint_eq(mem_account_total(&a).high, 1001);
}
END_TEST

START_TEST(sums_that_wrap) {
    ck_assert_int_eq(mem_account_plan(&a, MEM_WORK, UINT64_MAX), -EOVERFLOW);
    ck_assert_int_eq(mem_account_plan(&a, MEM_WORK, UINT64_MAX / 2), 0);
    ck_assert_int_eq(mem_account_plan(&a, MEM_PAGES, 1), -EOVERFLOW);
    ck_assert_int_eq(mem_account_take(&a, MEM_WORK, 10), 0);
    ck_assert_int_eq(mem_account_take(&a, MEM_WORK, UINT64_MAX - 5), -ENOMEM);
    expect(MEM_WORK, UINT64_MAX / 2, 10, 10);
}
END_TEST

START_TEST(names) {
    for (int c = 0; c < MEM_CLASSES; c++)
        for (int k = 0; k < c; k++)
            ck_assert_str_ne(mem_class_name((enum mem_class)c), mem_class_name((enum mem_class)k));
    ck_assert_str_eq(mem_class_name(MEM_WEIGHTS), "weights");
    ck_assert_str_eq(mem_class_name(MEM_CLASSES), "?");
}
END_TEST

START_TEST(given_too_much) {
    ck_assert_int_eq(mem_account_plan(&a, MEM_WORK, 10), 0);
    ck_assert_int_eq(mem_account_take(&a, MEM_WORK, 5), 0);
    mem_account_give(&a, MEM_WORK, 6); /* aborts: the test expects the signal */
}
END_TEST

START_TEST(mapping) {
    unsigned char *p = NULL;

    ck_assert_int_eq(mem_map(&a, MEM_STAGING, 100000, (void **)&p), -ENOMEM);
    ck_assert_ptr_null(p);
    ck_assert_int_eq(mem_account_plan(&a, MEM_STAGING, UINT64_MAX / 2), 0);
    ck_assert_int_eq(mem_map(&a, MEM_STAGING, 0, (void **)&p), -EINVAL);
    ck_assert_int_eq(mem_map(&a, MEM_STAGING, UINT64_C(1) << 62, (void **)&p), -ENOMEM);
    expect(MEM_STAGING, UINT64_MAX / 2, 0, 0); /* a failure leaves no mark */
    ck_assert_int_eq(mem_map(&a, MEM_STAGING, 100000, (void **)&p), 0);
    ck_assert_uint_eq((uintptr_t)p % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    for (int i = 0; i < 100000; i++)
        ck_assert_uint_eq(p[i], 0);
    p[99999] = 1;
    mem_unmap(&a, MEM_STAGING, p, 100000);
    mem_unmap(&a, MEM_STAGING, NULL, 5);
    ck_assert_uint_eq(mem_account_read(&a, MEM_STAGING).used, 0);
}
END_TEST

static void *hammer(void *arg) {
    (void)arg;
    for (int i = 0; i < 20000; i++)
        if (mem_account_take(&a, MEM_REQUESTS, 7) == 0)
            mem_account_give(&a, MEM_REQUESTS, 7);
    return NULL;
}

START_TEST(many_threads) {
    pthread_t t[4];
    struct mem_usage u;

    ck_assert_int_eq(mem_account_plan(&a, MEM_REQUESTS, 15), 0); /* room for two of four */
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, hammer, NULL), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_join(t[i], NULL), 0);
    u = mem_account_read(&a, MEM_REQUESTS);
    ck_assert_uint_eq(u.used, 0);
    ck_assert(u.high == 7 || u.high == 14);
}
END_TEST

static const char GOOD[] =
    "MemTotal:       16384 kB\nMemFree:         1 kB\nMemAvailable:    8192 kB\nBuffers: 3 kB\n";

START_TEST(meminfo_text) {
    struct mem_info m = {1, 2};
    static const char *const bad[] = {
        "",
        "MemTotal: 5 kB\n",
        "MemAvailable: 5 kB\n",
        "MemTotal: 5 kB\nMemAvailable: x kB\n",
        "MemTotal: 5 kB\nMemAvailable: 5 MB\n",
        "MemTotal: 5 kB\nMemAvailable: 5\n",
        "MemTotal: 5 kB\nMemAvailable: -5 kB\n",
        "MemTotal: 5 kB\nMemAvailable: 18446744073709551615 kB\n",
        "MemTotal: 5 kB\nMemAvailable: 99999999999999999999999 kB\n",
        "MemTotal: 5 kB\n MemAvailable: 5 kB\n",
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_msg(mem_info_parse(bad[i], strlen(bad[i]), &m) == -EBADMSG, "%s", bad[i]);
        ck_assert_uint_eq(m.total_bytes, 1);
        ck_assert_uint_eq(m.available_bytes, 2);
    }
    ck_assert_int_eq(mem_info_parse(GOOD, sizeof GOOD - 1, &m), 0);
    ck_assert_uint_eq(m.total_bytes, 16384 * 1024);
    ck_assert_uint_eq(m.available_bytes, 8192 * 1024);
}
END_TEST

START_TEST(meminfo_files) {
    struct mem_info m;
    struct ckpt dir;

    ck_assert_msg(mem_info_read(NULL, &m, &err) == 0, "%s", err.msg);
    ck_assert_uint_gt(m.available_bytes, 0);
    ck_assert_uint_le(m.available_bytes, m.total_bytes);
    ckpt_empty(&dir);
    ckpt_expect("missing", mem_info_read(ckpt_path(&dir, "meminfo"), &m, &err), -ENOENT, &err,
                (const char *const[]){"meminfo", "cannot open", NULL});
    ckpt_expect("a directory", mem_info_read(dir.dir, &m, &err), -EISDIR, &err,
                (const char *const[]){"cannot read", NULL});
    ckpt_write(&dir, "meminfo", "nothing", 7);
    ckpt_expect("no lines", mem_info_read(ckpt_path(&dir, "meminfo"), &m, &err), -EBADMSG, &err,
                (const char *const[]){"meminfo", "MemAvailable", NULL});
    ckpt_write(&dir, "meminfo", GOOD, sizeof GOOD - 1);
    ck_assert_int_eq(mem_info_read(ckpt_path(&dir, "meminfo"), &m, &err), 0);
    ck_assert_uint_eq(m.available_bytes, 8192 * 1024);
    ckpt_remove(&dir);
}
END_TEST

START_TEST(plan_against_machine) {
    struct mem_info m = {.total_bytes = UINT64_C(100) << 20, .available_bytes = UINT64_C(64) << 20};

    ck_assert_int_eq(mem_account_plan(&a, MEM_WEIGHTS, 40 << 20), 0);
    ck_assert_int_eq(mem_account_plan(&a, MEM_PAGES, 8 << 20), 0);
    ck_assert_int_eq(mem_check(&a, &m, 16 << 20, &err), 0); /* exactly */
    ckpt_expect("one byte over", mem_check(&a, &m, (16 << 20) + 1, &err), -ENOMEM, &err,
                (const char *const[]){"found 64 MiB", "expected 48 MiB", "weights 40", "pages 8",
                                      "16 MiB kept free", NULL});
    ckpt_expect("a floor that wraps", mem_check(&a, &m, UINT64_MAX, &err), -ENOMEM, &err,
                (const char *const[]){NULL});
}
END_TEST

/* Whatever is free, in steps of 256 MiB: a plan is taken exactly when it and the reserve fit. */
START_TEST(sweep_of_free_memory) {
    const uint64_t step = UINT64_C(256) << 20, reserve = UINT64_C(5) << 30;
    unsigned taken = 0;

    ck_assert_int_eq(mem_account_plan(&a, MEM_WEIGHTS, UINT64_C(70) << 30), 0);
    ck_assert_int_eq(mem_account_plan(&a, MEM_PAGES, UINT64_C(11) << 30), 0);
    ck_assert_int_eq(mem_account_plan(&a, MEM_WORK, 123456789), 0);
    for (uint64_t free_bytes = 0; free_bytes <= UINT64_C(128) << 30; free_bytes += step) {
        struct mem_info m = {.total_bytes = UINT64_C(128) << 30, .available_bytes = free_bytes};
        bool fits = mem_account_total(&a).planned + reserve <= free_bytes;

        ck_assert_int_eq(mem_check(&a, &m, reserve, &err), fits ? 0 : -ENOMEM);
        taken += fits;
        if (!fits)
            ck_assert_msg(strstr(err.msg, "weights 71680") && strstr(err.msg, "pages 11264") &&
                              strstr(err.msg, "work 117") && strstr(err.msg, "5120 MiB kept free"),
                          "%s", err.msg);
    }
    ck_assert_uint_eq(taken, (128 - 86) * 4);
}
END_TEST

int main(void) {
    Suite *s = suite_create("mem_account");
    TCase *tc = tcase_create("account"), *ab = tcase_create("aborts");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, to_the_byte);
    tcase_add_test(tc, sums_that_wrap);
    tcase_add_test(tc, names);
    tcase_add_test(tc, mapping);
    tcase_add_test(tc, many_threads);
    tcase_add_test(tc, meminfo_text);
    tcase_add_test(tc, meminfo_files);
    tcase_add_test(tc, plan_against_machine);
    tcase_add_test(tc, sweep_of_free_memory);
    suite_add_tcase(s, tc);
    tcase_add_checked_fixture(ab, setup, NULL);
    tcase_add_test_raise_signal(ab, given_too_much, SIGABRT);
    suite_add_tcase(s, ab);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
