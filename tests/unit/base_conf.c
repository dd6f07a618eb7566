/* SPDX-License-Identifier: MIT */
/* Configuration: every refusal names file and line, drop-ins merge in order, the default file and the manual
 * page are the table, and reloading takes what it may. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conftest.h"
#include "leakcheck.h"
#include "log.h"
#include "textfile.h"

START_TEST(values_and_suffixes) {
    struct xerr err = {0};

    cf_put(cf_file, "# comment\n; another\n\n[Memory]\n  KeepFreeBytes = 3G "
              "\n[IPC]\r\nTextBytes=1M\nTokenRingRecords=8192\n"
              "IOBackend=epoll\n[Model]\nPath=/a dir/with # and = inside\nThreads=7");
    ck_assert_msg(conf_load(&cf, cf_file, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(cf.keep_free_bytes, UINT64_C(3) << 30);
    ck_assert_uint_eq(cf.text_bytes, 1u << 20);
    ck_assert_uint_eq(cf.tq_records, 8192);
    ck_assert_uint_eq(cf.io_backend, CONF_IO_EPOLL);
    ck_assert_uint_eq(cf.threads, 7);
    ck_assert_str_eq(cf.model_path, "/a dir/with # and = inside");
    ck_assert_int_eq(conf_check(&cf, &err), 0);
}
END_TEST

static const struct {
    const char *text, *want;
} bad[] = {
    {"[IPC]\n\nNoSuchKey=1\n", "glmd.conf:3: unknown key NoSuchKey in [IPC]"},
    {"[Quota]\nmaxkvtokensperuid=1\n", "in [Quota]; is [Quota] MaxKVTokensPerUid meant?"},
    {"[Quota]\nMaxConnections=1\n", "in [Quota]; is [IPC] MaxConnections meant?"},
    {"[Model]\nContext=1\n", "in [Model]; is [Model] ContextTokens meant?"},
    {"[Model]\nContextTokensX=1\n", "in [Model]; see glmd.conf(5)"},
    {"[Nowhere]\n", "glmd.conf:1: unknown section [Nowhere]"},
    {"Threads=1\n", "glmd.conf:1: key Threads stands before the first section"},
    {"[Model]\nThreads\n", "glmd.conf:2: expected Key=Value"},
    {"[Model\nThreads=1\n", "glmd.conf:1: the section's name is not closed"},
    {"[Model]\nThreads=1\nThreads=2\n", "glmd.conf:3: [Model] Threads was set in line 2 already"},
    {"[Model]\nThreads=1025\n", "glmd.conf:2: [Model] Threads=1025 is out of range: expected 0 to 1024"},
    {"[Model]\nThreads=-1\n", "Threads=-1 is not a whole number from 0 to 1024"},
    {"[Model]\nThreads=1x\n", "Threads=1x is not a whole number"},
    {"[Model]\nThreads=99999999999999999999\n", "Threads=99999999999999999999 is not a whole number"},
    {"[Memory]\nKeepFreeBytes=1T\n", "is not a whole number of bytes (suffixes: K, M, G) from 0 to "},
    {"[Memory]\nKeepFreeBytes=99999999999G\n", "KeepFreeBytes=99999999999G is not a whole number"},
    {"[IPC]\nTextBytes=100000\n", "TextBytes=100000 is not a power of two"},
    {"[IPC]\nSocket=relative/path\n", "Socket=relative/path is not an absolute path"},
    {"[IPC]\nIOBackend=kqueue\n", "IOBackend=kqueue is not known: expected one of auto, uring, epoll"},
    {"[model]\nThreads=1\n", "glmd.conf:1: unknown section [model]"},
};

START_TEST(refusals_name_file_and_line) {
    struct xerr err = {0};

    cf_put(cf_file, bad[_i].text);
    ck_assert_int_lt(conf_load(&cf, cf_file, &err), 0);
    ck_assert_msg(strstr(err.msg, bad[_i].want) != NULL, "\"%s\" does not hold \"%s\"", err.msg,
                  bad[_i].want);
    ck_assert_msg(strstr(err.msg, cf_dir) != NULL, "no file in \"%s\"", err.msg);
}
END_TEST

START_TEST(files_that_are_none) {
    struct xerr err = {0};
    FILE *f;

    ck_assert_int_eq(conf_load(&cf, "/nonexistent/glmd.conf", &err), -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.msg, "/nonexistent/glmd.conf"));
    f = fopen(cf_file, "we");
    fwrite("[Model]\n\0Threads=1\n", 1, 19, f);
    fclose(f);
    ck_assert_int_eq(conf_load(&cf, cf_file, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "NUL"));
    f = fopen(cf_file, "we");
    for (int i = 0; i < 40000; i++)
        fputs("# a comment that takes some room\n", f);
    fclose(f);
    ck_assert_int_eq(conf_load(&cf, cf_file, &err), -EFBIG);
}
END_TEST

/* Nobody waits for a writer: not for the file, not for a drop-in, not for a script (which is opened likewise). */
START_TEST(fifos_are_not_waited_for) {
    struct xerr err = {0};
    char path[sizeof cf_dropins + 20];
    FILE *f = NULL;

    alarm(10);
    unlink(cf_file);
    ck_assert_int_eq(mkfifo(cf_file, 0600), 0);
    ck_assert_int_eq(conf_load(&cf, cf_file, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "found a FIFO, expected a file"));
    ck_assert_int_eq(textfile_open(cf_file, "script ", &f, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "script /"));
    ck_assert_ptr_null(f);
    ck_assert_int_eq(unlink(cf_file), 0);
    cf_put(cf_file, "");
    mkdir(cf_dropins, 0700);
    snprintf(path, sizeof path, "%s/10-a.conf", cf_dropins);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(conf_load(&cf, cf_file, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "10-a.conf: found a FIFO"));
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

START_TEST(dropins_in_order_of_name) {
    struct xerr err = {0};
    char out[20000];
    FILE *f = fmemopen(out, sizeof out, "w");

    cf_put(cf_file, "[Model]\nThreads=1\nContextTokens=100\n");
    cf_dropin("20-b.conf", "[Model]\nThreads=3\n");
    cf_dropin("10-a.conf", "[Model]\nThreads=2\nContextTokens=\n[Quota]\nMaxRequestsPerUid=9\n");
    cf_dropin("30-c.conf.bak", "[Model]\nThreads=4\n");
    cf_dropin(".hidden.conf", "[Model]\nThreads=5\n");
    ck_assert_msg(conf_load(&cf, cf_file, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(cf.threads, 3);
    ck_assert_uint_eq(cf.context_tokens, 0); /* an empty value gives the default back */
    ck_assert_uint_eq(cf.quota.requests_per_uid, 9);
    ck_assert_int_eq(conf_set(&cf, "Model", "Threads", "5", "--threads", &err), 0);
    ck_assert_int_eq(conf_set(&cf, "Model", "Nothing", "5", "--threads", &err), -EINVAL);
    conf_print_merged(&cf, f);
    fclose(f);
    ck_assert_ptr_nonnull(strstr(out, "# --threads\nThreads=5\n"));
    ck_assert_ptr_nonnull(strstr(out, "10-a.conf:5\nMaxRequestsPerUid=9\n"));
    ck_assert_ptr_nonnull(strstr(out, "# default\nContextTokens=0\n"));
}
END_TEST

/* What is printed as default, with every key switched on, reads back as the default. */
/* Only the same name hides a cf_file, not one that ends in it. */
START_TEST(similar_names_of_dropins) {
    static const char *const names[] = {"9-local.conf", "19-local.conf", "local.conf",
                                        "a-long-name-local.conf"};
    static const char *const lines[] = {"Threads=5\n", "ContextTokens=6\n", "Backend=ref\n",
                                        "Path=/seven\n"};
    struct xerr err = {0};
    char text[100];

    cf_put(cf_file, "");
    /* whatever the order in which the directory gives them */
    for (int i = 0; i < 8; i++) {
        snprintf(text, sizeof text, "[Model]\n%s", lines[i % 4]);
        cf_dropin(names[i < 4 ? 3 - i : i % 4], "");
        cf_dropin(names[i % 4], text);
    }
    ck_assert_msg(conf_load(&cf, cf_file, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(cf.threads, 5);
    ck_assert_uint_eq(cf.context_tokens, 6);
    ck_assert_uint_eq(cf.backend, CONF_BACKEND_REF);
    ck_assert_str_eq(cf.model_path, "/seven");
}
END_TEST

START_TEST(default_file_is_the_table) {
    struct xerr err = {0};
    struct conf d;
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    conf_print_default(f);
    fclose(f);
    for (char *s = text; (s = strstr(s, "\n#")); s++)
        if (s[2] != ' ')
            memmove(s + 1, s + 2, strlen(s + 2) + 1);
    cf_put(cf_file, text);
    free(text);
    ck_assert_msg(conf_load(&cf, cf_file, &err) == 0, "%s", err.msg);
    conf_init(&d);
    memset(cf.origin, 0, sizeof cf.origin);
    memset(cf.origin_line, 0, sizeof cf.origin_line);
    ck_assert_int_eq(memcmp(&cf, &d, offsetof(struct conf, files)), 0);
    ck_assert_int_eq(conf_check(&cf, &err), 0);
    conf_done(&d);
}
END_TEST

static char *slurp(const char *path) {
    static char text[200000];
    FILE *f = fopen(path, "re");
    size_t n;

    ck_assert_msg(f != NULL, "%s is missing", path);
    n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    return text;
}

static void contains_print(const char *path, void (*print)(FILE *f), const char *how) {
    char *want = NULL;
    size_t n;
    FILE *f = open_memstream(&want, &n);

    print(f);
    fclose(f);
    ck_assert_msg(strstr(slurp(path), want) != NULL, "%s is not what the table says; paste the output of %s",
                  path, how);
    free(want);
}

START_TEST(man_page_and_default_file_are_current) {
    contains_print("daemon/man/glmd.conf.5", conf_print_mdoc, "glmd --print-config-man");
    contains_print("units/glmd.conf", conf_print_default, "glmd --print-default-config");
}
END_TEST

START_TEST(checks_between_keys) {
    struct xerr err = {0};

    cf.prefill_tokens = 100;
    ck_assert_int_eq(conf_check(&cf, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "PrefillTokens"));
    cf.prefill_tokens = 128;
    cf.max_requests = 4;
    ck_assert_int_eq(conf_check(&cf, &err), -EINVAL);
    cf.max_requests = 256;
    cf.tq_records = 64;
    ck_assert_int_eq(conf_check(&cf, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "TokenRingRecords"));
}
END_TEST

START_TEST(reload_takes_some) {
    struct conf n;
    char restart[200];

    conf_init(&n);
    n.drain_timeout_sec = 5;
    n.log_level = LOG_LEVEL_DEBUG;
    n.threads = 3;
    n.max_connections = 2;
    ck_assert_int_eq(conf_reload(&cf, &n, restart, sizeof restart), 2);
    ck_assert_str_eq(restart, "Threads, MaxConnections");
    ck_assert_uint_eq(cf.drain_timeout_sec, 5);
    ck_assert_uint_eq(cf.threads, 0);
    conf_done(&n);
}
END_TEST

int main(void) {
    Suite *s = suite_create("base_conf");
    TCase *tc = tcase_create("conf");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, cf_setup, cf_teardown);
    tcase_add_test(tc, values_and_suffixes);
    tcase_add_loop_test(tc, refusals_name_file_and_line, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(tc, files_that_are_none);
    tcase_add_test(tc, fifos_are_not_waited_for);
    tcase_add_test(tc, dropins_in_order_of_name);
    tcase_add_test(tc, similar_names_of_dropins);
    tcase_add_test(tc, default_file_is_the_table);
    tcase_add_test(tc, man_page_and_default_file_are_current);
    tcase_add_test(tc, checks_between_keys);
    tcase_add_test(tc, reload_takes_some);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
