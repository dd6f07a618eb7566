/* SPDX-License-Identifier: MIT */
/* Sections of users and groups: what is refused, what holds for whom, what drop-ins and reloads change, and
 * that what is printed reads back as it was. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conftest.h"
#include "leakcheck.h"

static void load(const char *text) {
    struct xerr err = {0};

    cf_put(cf_file, text);
    ck_assert_msg(conf_load(&cf, cf_file, &err) == 0, "%s", err.msg);
    ck_assert_msg(conf_check(&cf, &err) == 0, "%s", err.msg);
}

static struct conf_quota quota(uint32_t uid, uint32_t gid1, uint32_t gid2) {
    uint32_t gids[] = {gid1, gid2};
    struct conf_quota q;

    conf_quota_for(&cf, uid, gids, 2, &q);
    return q;
}

static const struct {
    const char *text, *want;
} bad[] = {
    {"\n[Quota uid:no-such-user-here]\n", "glmd.conf:2: [Quota uid:no-such-user-here]: there is no such user"},
    {"[Quota gid:no-such-group-here]\n", "glmd.conf:1: [Quota gid:no-such-group-here]: there is no such group"},
    {"[Quota uid:]\n", "there is no such user"},
    {"[Quota uid:4294967295]\n", "no user has that number"},
    {"[Quota uid:99999999999999999999]\n", "no user has that number"},
    {"[Quota gid:-1]\n", "there is no such group"},
    {"[Quota pid:1]\n", "glmd.conf:1: unknown section [Quota pid:1]"},
    {"[Quota uid:1000]\nThreads=1\n", "unknown key Threads in [Quota uid:1000]; is [Model] Threads meant?"},
    {"[Quota uid:1000]\nmaxkvtokensperuid=1\n",
     "glmd.conf:2: unknown key maxkvtokensperuid in [Quota uid:1000]; is MaxKVTokensPerUid meant? See"},
    {"[Quota gid:1000]\nMaxBulk=1\n", "in [Quota gid:1000]; is MaxBulkBytesPerUid meant?"},
    {"[Quota gid:1000]\nNothingLikeIt=1\n", "unknown key NothingLikeIt in [Quota gid:1000]; see"},
    {"[Quota uid:1000]\nMaxRequestsPerUid=0\n", "glmd.conf:2: [Quota] MaxRequestsPerUid=0 is out of range"},
    {"[Quota uid:1000]\nMaxRequestsPerUid\n", "glmd.conf:2: expected Key=Value"},
    {"[Quota uid:1000]\nSubmitRateLimit=1\nSubmitRateLimit=2\n",
     "glmd.conf:3: [Quota uid:1000] SubmitRateLimit was set in line 2 already"},
    {"[Quota uid:0]\nSubmitRateLimit=1\n[Quota uid:root]\nSubmitRateLimit=2\n", "was set in line 2 already"},
};

START_TEST(refusals_name_file_and_line) {
    struct xerr err = {0};

    cf_put(cf_file, bad[_i].text);
    ck_assert_int_lt(conf_load(&cf, cf_file, &err), 0);
    ck_assert_msg(strstr(err.msg, bad[_i].want) != NULL, "\"%s\" does not hold \"%s\"", err.msg, bad[_i].want);
    ck_assert_msg(strstr(err.msg, cf_dir) != NULL, "no file in \"%s\"", err.msg);
}
END_TEST

START_TEST(too_many_sections) {
    struct xerr err = {0};
    FILE *f = fopen(cf_file, "we");

    for (int i = 0; i <= CONF_MAX_RULES; i++)
        fprintf(f, "[Quota uid:%d]\nSubmitRateLimit=5\n", 1000 + i);
    fclose(f);
    ck_assert_int_eq(conf_load(&cf, cf_file, &err), -E2BIG);
    ck_assert_ptr_nonnull(strstr(err.msg, "more than 256 sections"));
}
END_TEST

START_TEST(user_before_group_before_all) {
    load("[Quota]\nMaxRequestsPerUid=10\nMaxConnectionsPerUid=11\nSubmitRateLimit=12\nMaxKVTokensPerUid=13\n"
         "[Quota gid:70]\nMaxRequestsPerUid=20\nMaxConnectionsPerUid=21\n"
         "[Quota gid:71]\nMaxRequestsPerUid=30\nSubmitRateLimit=32\n"
         "[Quota uid:1000]\nMaxRequestsPerUid=5\n");
    ck_assert_uint_eq(quota(2000, 1, 2).requests_per_uid, 10);
    ck_assert_uint_eq(quota(2000, 1, 70).requests_per_uid, 20);
    ck_assert_uint_eq(quota(2000, 70, 71).requests_per_uid, 30); /* of several groups the largest */
    ck_assert_uint_eq(quota(2000, 71, 70).requests_per_uid, 30);
    ck_assert_uint_eq(quota(2000, 71, 70).connections_per_uid, 21); /* key by key */
    ck_assert_uint_eq(quota(2000, 71, 70).submit_rate, 32);
    ck_assert_uint_eq(quota(2000, 71, 70).kv_tokens_per_uid, 13);
    /* a user's own section holds although it is less */
    ck_assert_uint_eq(quota(1000, 71, 70).requests_per_uid, 5);
    ck_assert_uint_eq(quota(1000, 71, 70).connections_per_uid, 21);
    ck_assert_uint_eq(quota(71, 1, 2).requests_per_uid, 10); /* the number of a group is no user */
}
END_TEST

/* Of two groups the one without a limit gives more. */
START_TEST(no_limit_is_the_largest) {
    load("[Quota]\nMaxKVTokensPerUid=100\n"
         "[Quota gid:70]\nMaxKVTokensPerUid=0\nMaxBulkBytesPerUid=0\n"
         "[Quota gid:71]\nMaxKVTokensPerUid=7000\nMaxBulkBytesPerUid=5\n");
    ck_assert_uint_eq(quota(9, 70, 71).kv_tokens_per_uid, 0);
    ck_assert_uint_eq(quota(9, 71, 70).kv_tokens_per_uid, 0);
    ck_assert_uint_eq(quota(9, 71, 1).kv_tokens_per_uid, 7000);
    ck_assert_uint_eq(quota(9, 70, 71).bulk_bytes_per_uid, 5); /* here 0 is nothing at all */
    ck_assert_uint_eq(quota(9, 70, 1).bulk_bytes_per_uid, 0);
}
END_TEST

START_TEST(names_are_looked_up) {
    load("[Quota uid:root]\nMaxRequestsPerUid=77\n[Quota gid:root]\nMaxRequestsPerUid=66\n");
    ck_assert_uint_eq(quota(0, 1, 2).requests_per_uid, 77); /* root is no exception, only another user */
    ck_assert_uint_eq(quota(1, 0, 2).requests_per_uid, 66);
}
END_TEST

START_TEST(dropins_change_keys) {
    char path[160];

    snprintf(path, sizeof path, "%s/10-a.conf", cf_dropins);
    cf_put(path, "[Quota uid:1000]\nMaxRequestsPerUid=6\nSubmitRateLimit=\n");
    load("[Quota uid:1000]\nMaxRequestsPerUid=5\nSubmitRateLimit=50\nMaxConnectionsPerUid=3\n");
    ck_assert_uint_eq(cf.n_rules, 1);
    ck_assert_uint_eq(quota(1000, 1, 2).requests_per_uid, 6);
    ck_assert_uint_eq(quota(1000, 1, 2).connections_per_uid, 3);
    ck_assert_uint_eq(quota(1000, 1, 2).submit_rate, cf.quota.submit_rate); /* set back */
}
END_TEST

START_TEST(printed_as_read) {
    static const char text[] = "[Quota uid:1000]\nMaxRequestsPerUid=5\nMaxBulkBytesPerUid=1M\n"
                               "[Quota gid:root]\nSubmitRateLimit=7\n";
    struct xerr err = {0};
    char *out = NULL;
    struct conf d;
    size_t n;
    FILE *f = open_memstream(&out, &n);

    load(text);
    conf_print_merged(&cf, f);
    fclose(f);
    ck_assert_ptr_nonnull(strstr(out, "[Quota uid:1000]\n"));
    ck_assert_ptr_nonnull(strstr(out, "glmd.conf:2\nMaxRequestsPerUid=5\n"));
    ck_assert_ptr_nonnull(strstr(out, "[Quota gid:root]\n"));
    cf_put(cf_file, out);
    free(out);
    conf_init(&d);
    ck_assert_msg(conf_load(&d, cf_file, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(d.n_rules, 2);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(d.rules[i].id, cf.rules[i].id);
        ck_assert_int_eq(memcmp(&d.rules[i].quota, &cf.rules[i].quota, sizeof d.rules[i].quota), 0);
        ck_assert_int_eq(memcmp(d.rules[i].set, cf.rules[i].set, sizeof d.rules[i].set), 0);
    }
    conf_done(&d);
}
END_TEST

START_TEST(reload_takes_the_sections) {
    struct xerr err = {0};
    char restart[100];
    struct conf d;

    load("[Quota uid:1000]\nMaxRequestsPerUid=5\nSubmitRateLimit=7\n[Quota uid:1001]\nSubmitRateLimit=9\n");
    cf_put(cf_file, "[Quota uid:1000]\nMaxRequestsPerUid=6\nSubmitRateLimit=7\n[Quota gid:5]\nSubmitRateLimit=8\n");
    conf_init(&d);
    ck_assert_msg(conf_load(&d, cf_file, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(conf_reload(&cf, &d, restart, sizeof restart), 3);
    conf_done(&d);
    ck_assert_str_eq(restart, "");
    ck_assert_uint_eq(quota(1000, 1, 2).requests_per_uid, 6);
    ck_assert_uint_eq(quota(1001, 1, 2).submit_rate, cf.quota.submit_rate);
    ck_assert_uint_eq(quota(1001, 1, 5).submit_rate, 8);
}
END_TEST

START_TEST(checked_against_the_ring) {
    struct xerr err = {0};

    cf_put(cf_file, "[Quota uid:1000]\nMaxRequestsPerConnection=8000\n");
    ck_assert_int_eq(conf_load(&cf, cf_file, &err), 0);
    ck_assert_int_eq(conf_check(&cf, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "[Quota uid:1000] MaxRequestsPerConnection=8000"));
}
END_TEST

int main(void) {
    Suite *s = suite_create("base_quota");
    TCase *tc = tcase_create("quota");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, cf_setup, cf_teardown);
    tcase_add_loop_test(tc, refusals_name_file_and_line, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(tc, too_many_sections);
    tcase_add_test(tc, user_before_group_before_all);
    tcase_add_test(tc, no_limit_is_the_largest);
    tcase_add_test(tc, names_are_looked_up);
    tcase_add_test(tc, dropins_change_keys);
    tcase_add_test(tc, printed_as_read);
    tcase_add_test(tc, reload_takes_the_sections);
    tcase_add_test(tc, checked_against_the_ring);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
