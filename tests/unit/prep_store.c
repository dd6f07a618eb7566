/* SPDX-License-Identifier: MIT */
/* The store of answers: bounded for each user and for all, what is used stays, look-alikes are few. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "leakcheck.h"
#include "turns.h"

static struct turns *turns;

static void setup(void) {
    ck_assert_int_eq(turns_new(1 << 20, 1 << 18, &turns), 0);
}

static void teardown(void) {
    turns = turns_free(turns);
}

static void add(uint32_t uid, uint32_t number, uint32_t n_ids) {
    static uint32_t ids[TURNS_MAX_ANSWER];
    char text[32];
    struct turn x = {.before = {{number, uid}}, .ids = ids, .n_ids = n_ids};
    int n = snprintf(text, sizeof text, "answer %u", number);

    x.body = (struct tstr){text, (size_t)n};
    ids[0] = number;
    ck_assert_int_eq(turns_add(turns, uid, &x), 0);
}

static bool find(uint32_t uid, uint32_t number) {
    struct turn_query q = {0};
    struct turn_found f;
    uint32_t *ids = NULL, cap = 0;
    char text[32];
    int n = snprintf(text, sizeof text, "answer %u", number);
    bool found;

    q.body = (struct tstr){text, (size_t)n};
    found = turns_find(turns, uid, &q, UINT32_MAX, &ids, &cap, &f);
    ck_assert(!found || ids[0] == number);
    free(ids);
    return found;
}

START_TEST(memory_is_bounded) {
    struct turns_stats st;
    static uint32_t many[70000];
    struct turn big = {.ids = many, .n_ids = 70000};

    for (uint32_t i = 0; i < 2000; i++) {
        add(1, i, 1000);
        ck_assert(i < 10 || find(1, 5)); /* what is used stays */
        turns_get_stats(turns, &st);
        ck_assert_uint_le(st.bytes, 1 << 18);
    }
    ck_assert_uint_gt(st.bytes, (1 << 18) - 5000);
    ck_assert_uint_eq(st.added, 2000);
    ck_assert_uint_eq(st.evicted, 2000 - st.answers);
    ck_assert(find(1, 1999));
    ck_assert(!find(1, 1000));
    ck_assert_int_eq(turns_add(turns, 1, &big), -E2BIG);
    add(2, 7, 1000); /* who has little keeps it, however many fill the rest */
    for (uint32_t uid = 3; uid < 12; uid++)
        for (uint32_t i = 0; i < 200; i++)
            add(uid, i, 1000);
    turns_get_stats(turns, &st);
    ck_assert_uint_le(st.bytes, 1 << 20);
    ck_assert_uint_eq(st.users, 11);
    ck_assert(find(2, 7));
}
END_TEST

/* The same words over and over: not a chain that grows, and the newest prompt's is found. */
START_TEST(look_alikes_are_few) {
    struct turns_stats st;
    struct turn x = {.think = {"t", 1}, .body = {"yes", 3}, .open = true, .n_ids = 1};
    struct turn_query q = {.body = x.body};
    struct turn_found f;
    uint32_t *ids = NULL, cap = 0, id;

    x.ids = &id;
    for (id = 0; id < 100; id++) {
        x.before.h[0] = id;
        ck_assert_int_eq(turns_add(turns, 1, &x), 0);
        ck_assert_int_eq(turns_add(turns, 1, &x), 0); /* not twice */
    }
    turns_get_stats(turns, &st);
    ck_assert_uint_eq(st.answers, 32);
    ck_assert_uint_eq(st.added, 100);
    for (id = 60; id < 100; id++) {
        q.after_open.h[0] = id;
        ck_assert_int_eq(turns_find(turns, 1, &q, 9, &ids, &cap, &f) && f.whole, id >= 68);
        ck_assert(id < 68 || ids[0] == id);
    }
    ck_assert(!turns_find(turns, 1, &q, 0, &ids, &cap, &f)); /* no more than asked for */
    free(ids);
}
END_TEST

int main(void) {
    Suite *s = suite_create("prep_store");
    TCase *tc = tcase_create("store");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, memory_is_bounded);
    tcase_add_test(tc, look_alikes_are_few);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
