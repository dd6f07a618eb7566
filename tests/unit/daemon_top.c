/* SPDX-License-Identifier: MIT */
/* The numbers for people: what the daemon counts, who may see what of it, and glmctl top on a terminal, in a pipe
 * and when the daemon goes away. */
#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemonfix.h"
#include "fakedaemon.h"
#include "leakcheck.h"
#include "runprog.h"
#include "server.h"
#include "wire_num.h"

#define TOOL TEST_BUILD "/glmctl"

enum { OTHER_UID = 65534 };

static struct daemonfix f;
static struct runprog p;
static struct answer a;

/* Seconds for an answer of a real model. */
static int patience(void) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return 430;
#else
    return getenv("GLMD_EMULATED") ? 900 : 120;
#endif
}
static char long_text[1000];

static void start_with(const char *quotas) {
    char conf[300];

    for (size_t i = 0; i + 6 < sizeof long_text; i += 6)
        snprintf(long_text + i, 7, "%05zu ", i * 7919 % 99991);
    daemonfix_init(&f);
    snprintf(f.model, sizeof f.model, "%s/nano", daemonfix_models());
    snprintf(conf, sizeof conf, "[Model]\nContextTokens=4096\nThreads=1\n%s", quotas);
    daemonfix_start(&f, conf);
}

static void start(void) {
    start_with("");
}

static void stop(void) {
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

static glmd_conn *connect_for_numbers(void) {
    struct glmd_options o = {.size = sizeof o, .features = GLMD_FEATURE_NUMBERS};
    glmd_conn *c = daemonfix_connect(&f, &o);
    struct glmd_info i = {.size = sizeof i};

    ck_assert_int_eq(glmd_get_info(c, &i), 0);
    ck_assert(i.features & GLMD_FEATURE_NUMBERS);
    return c;
}

static void ask(glmd_conn *c, const char *text) {
    glmd_req *r = request_text(c, text);

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 2), 0);
    answer_submit(c, &a, r);
    answers_wait(c, &a, 1, patience() * 1000);
    ck_assert_int_eq(a.status, 0);
}

/* The numbers once so many prompts were looked up and all have ended; they are up to a second old. */
static struct glmd_numbers numbers_at(glmd_conn *c, uint64_t lookups) {
    struct glmd_numbers n = {.size = sizeof n};

    for (int i = 0; i < 1000; i++) {
        int r = glmd_get_numbers(c, &n);

        ck_assert_msg(r == 0 || r == -EAGAIN, "%d", r);
        if (r == 0 && n.lookups == lookups && n.running == 0 && n.queued == 0)
            return n;
        glmd_wait(c, 20000000);
    }
    ck_abort_msg("%llu lookups, %u running, expected %llu", (unsigned long long)n.lookups, n.running,
                 (unsigned long long)lookups);
}

START_TEST(counts_of_a_user) {
    struct glmd_numbers n;
    glmd_conn *c, *plain;

    start();
    c = connect_for_numbers();
    ask(c, long_text);
    ask(c, long_text);
    ask(c, "hi");
    n = numbers_at(c, 3);
    ck_assert_uint_eq(n.all_users, 1);
    ck_assert_uint_eq(n.hits, 1);
    ck_assert_uint_gt(n.cached_tokens, n.prompt_tokens / 4);
    ck_assert_uint_eq(n.misses, 2);
    ck_assert_uint_eq(n.n_misses, 2);
    ck_assert_uint_lt(n.miss[0].prompt_tokens, 64); /* the newest first */
    ck_assert_uint_eq(n.miss[1].why, GLMD_WHY_NEW);
    ck_assert_uint_gt(n.miss[1].prompt_tokens, 200);
    ck_assert_uint_gt(n.miss[1].age_ns, 0);
    ck_assert_uint_eq(n.n_users, 1);
    ck_assert_uint_eq(n.users[0].uid, geteuid());
    ck_assert_uint_eq(n.users[0].weight, 100);
    ck_assert_uint_eq(n.users[0].running, 0);
    ck_assert_uint_eq(n.users[0].queued, 0);
    ck_assert_uint_eq(n.users[0].lookups, 3);
    ck_assert_uint_eq(n.users[0].cached_tokens, n.cached_tokens);
    ck_assert_uint_gt(n.users[0].served_tokens, 200);
    ck_assert_uint_eq(n.page_tokens, 256);
    ck_assert_uint_gt(n.pages_cached, 0);
    ck_assert_uint_eq(n.pages_free + n.pages_cached, n.pages_total);
    ck_assert_uint_ge(n.pages_high, n.pages_cached);
    ck_assert_uint_gt(n.slots_cached, 0);
    ck_assert_uint_eq(n.slots_free + n.slots_cached, n.slots_total);
    ck_assert_uint_gt(n.cache_bytes, 0);
    ck_assert_uint_ge(n.kept, n.slots_cached);
    ck_assert_uint_eq(n.seats, 8);
    plain = daemonfix_connect(&f, NULL);
    ck_assert_int_eq(glmd_get_numbers(plain, &n), -EOPNOTSUPP);
    glmd_close(plain);
    glmd_close(c);
    stop();
}
END_TEST

/* As another user; its exit status says whether all was well. */
static int other_user(void) {
    struct glmd_numbers n;
    glmd_conn *c;

    if (setgid(OTHER_UID) < 0 || setuid(OTHER_UID) < 0)
        return 2;
    c = connect_for_numbers();
    ask(c, long_text); /* what root has just asked */
    ask(c, long_text);
    n = numbers_at(c, 2);
    if (n.all_users || n.n_users != 1 || n.users[0].uid != OTHER_UID || n.hits != 1)
        return 3;
    if (n.cache_bytes || n.kept || n.evicted)
        return 4;
    /* that somebody else's prompt begins like its own is nothing that it may learn */
    if (n.misses != 1 || n.n_misses != 1 || n.miss[0].why != GLMD_WHY_NEW || n.miss[0].same_tokens ||
        n.miss[0].found_tokens || n.miss[0].uid != OTHER_UID)
        return 5;
    glmd_close(c);
    return 0;
}

START_TEST(others_see_their_own) {
    struct glmd_numbers n;
    glmd_conn *c;
    bool found = false;
    int status;
    pid_t pid;

    if (geteuid() != 0) /* only root can be another user; numbers_of_one_user holds for all */
        return;
    start();
    ck_assert_int_eq(chmod(f.dir, 0755), 0);
    ck_assert_int_eq(chmod(f.socket, 0666), 0);
    c = connect_for_numbers();
    ask(c, long_text);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(other_user());
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", (unsigned)status);
    n = numbers_at(c, 3);
    ck_assert_uint_eq(n.n_users, 2);
    for (uint32_t i = 0; i < n.n_misses; i++)
        found = found || (n.miss[i].uid == OTHER_UID && n.miss[i].why == GLMD_WHY_OTHER_USER);
    ck_assert(found); /* root sees why */
    glmd_close(c);
    stop();
}
END_TEST

/* Exit status of another user who sends what root has sent: 0 nothing of it was found, 1 some was. */
static int found_by(uid_t uid) {
    int status;
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        glmd_conn *c;

        if (setgid(uid) < 0 || setuid(uid) < 0)
            _exit(2);
        c = connect_for_numbers();
        ask(c, long_text);
        glmd_close(c);
        _exit(a.usage.cached_tokens > 0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status), "status %#x", (unsigned)status);
    return WEXITSTATUS(status);
}

/* Whoever is in the group finds what root left there, and nobody else does. */
START_TEST(a_group_shares_its_beginnings) {
    glmd_conn *c;

    if (geteuid() != 0) /* only root can be other users; engine_cache: users_are_apart holds for all */
        return;
    start_with("[Quota uid:0]\nCacheGroup=7\n[Quota uid:65534]\nCacheGroup=7\n[Quota uid:65532]\nCacheGroup=8\n");
    ck_assert_int_eq(chmod(f.dir, 0755), 0);
    ck_assert_int_eq(chmod(f.socket, 0666), 0);
    c = connect_for_numbers();
    ask(c, long_text);
    ck_assert_uint_eq(a.usage.cached_tokens, 0);
    ck_assert_int_eq(found_by(65533), 0); /* in none */
    ck_assert_int_eq(found_by(65532), 0); /* in another */
    ck_assert_int_eq(found_by(OTHER_UID), 1);
    glmd_close(c);
    stop();
}
END_TEST

/* The same by itself, for readers that are not root. */
START_TEST(numbers_of_one_user) {
    static struct numbers n;
    struct glmw_number_user u;
    struct glmw_number_miss m;
    struct glmw_numbers w;

    n = (struct numbers){.n_users = 2, .cache_bytes = 7, .kept = 8, .evicted = 9, .misses = 14};
    n.tier = (struct numbers_tier){.state = NUMBERS_TIER_READS, .error = 28, .blocks = 5, .bytes = 6, .read = 7,
                                   .thrown_out = 8, .text = "io_uring"};
    n.found.lookups = 40;
    for (uint32_t i = 0; i < 14; i++)
        n.miss[i % NUMBERS_MISSES] = (struct numbers_miss){.uid = i % 2, .why = NUMBERS_WHY_OTHER_USER, .prompt = i};
    for (uint32_t k = 0; k < 2; k++) {
        n.user[k] = (struct numbers_user){.uid = k + 100, .misses = 12};
        n.user[k].found.lookups = 20 + k;
        for (uint32_t i = 0; i < 12; i++)
            n.user[k].miss[i % NUMBERS_MISSES] = (struct numbers_miss){
                .uid = k + 100, .why = i % 2 ? NUMBERS_WHY_OTHER_USER : NUMBERS_WHY_SHORT, .prompt = i};
    }
    numbers_show(&n, 101, false, &w);
    ck_assert_uint_eq(w.scope, 1);
    ck_assert_uint_eq(w.n_users, 1);
    memcpy(&u, w.users, sizeof u);
    ck_assert_uint_eq(u.uid, 101);
    ck_assert_uint_eq(w.lookups, 21);
    ck_assert_uint_eq(w.cache_bytes + w.kept + w.evicted, 0);
    ck_assert_uint_eq(w.tier_state, GLMW_TIER_READS);
    ck_assert_uint_eq(w.tier_error + w.tier_blocks + w.tier_bytes + w.tier_read + w.tier_thrown_out, 0);
    ck_assert_uint_eq(w.tier_text[0], 0);
    ck_assert_uint_eq(w.misses, 12);
    ck_assert_uint_eq(w.n_misses, 10);
    for (uint32_t i = 0; i < 10; i++) {
        memcpy(&m, w.miss_list + i * sizeof m, sizeof m);
        ck_assert_uint_eq(m.prompt_tokens, 11 - i);
        ck_assert_uint_eq(m.uid, 101);
        ck_assert_uint_eq(m.why, (11 - i) % 2 ? GLMW_WHY_NEW : GLMW_WHY_SHORT);
    }
    numbers_show(&n, 5, false, &w); /* who was never here */
    ck_assert_uint_eq(w.n_users + w.n_misses + w.lookups + w.misses, 0);
    numbers_show(&n, 0, true, &w);
    ck_assert_uint_eq(w.scope, 2);
    ck_assert_uint_eq(w.n_users, 2);
    ck_assert_uint_eq(w.lookups, 40);
    ck_assert_uint_eq(w.tier_state, GLMW_TIER_READS);
    ck_assert_uint_eq(w.tier_error, 28);
    ck_assert_uint_eq(w.tier_blocks, 5);
    ck_assert_uint_eq(w.tier_bytes, 6);
    ck_assert_uint_eq(w.tier_read, 7);
    ck_assert_uint_eq(w.tier_thrown_out, 8);
    ck_assert_str_eq((const char *)w.tier_text, "io_uring");
    memcpy(&m, w.miss_list, sizeof m);
    ck_assert_uint_eq(m.prompt_tokens, 13);
    ck_assert_uint_eq(m.why, GLMW_WHY_OTHER_USER);
}
END_TEST

static int top(bool tty, const char *option, const char *second) {
    const char *argv[] = {TOOL, "top", "--socket", f.socket, option, option ? second : NULL, NULL};

    if (!option && !tty)
        return runprog(&p, argv, NULL, false, NULL);
    if (option)
        return runprog(&p, argv, NULL, false, NULL);
    runprog_start(&p, argv, NULL, false, true);
    return 0;
}

START_TEST(top_shows_it) {
    json_t *j, *users, *misses;
    glmd_conn *c;

    start();
    c = connect_for_numbers();
    ask(c, long_text);
    ask(c, long_text);
    numbers_at(c, 2);
    glmd_close(c);
    ck_assert_int_eq(top(false, "--once", NULL), 0);
    ck_assert_ptr_nonnull(strstr(p.out_text, "0 running of 8 seats, 0 paused, 0 waiting\n"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "in 1 of 2 prompts"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "last misses"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "  new\n"));
    ck_assert_ptr_nonnull(strstr(p.out_text, " 100 % "));
    ck_assert_ptr_null(strchr(p.out_text, '\033'));
    ck_assert_int_eq(top(false, "--json", "--once"), 0);
    j = json_loads(p.out_text, 0, NULL);
    ck_assert_msg(j != NULL, "%s", p.out_text);
    ck_assert_str_eq(json_string_value(json_object_get(j, "scope")), "all");
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(j, "cache"), "lookups")), 2);
    ck_assert_int_gt(json_integer_value(json_object_get(json_object_get(j, "pages"), "cached")), 0);
    users = json_object_get(j, "users");
    ck_assert_uint_eq(json_array_size(users), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(json_array_get(users, 0), "uid")), geteuid());
    misses = json_object_get(j, "last_misses");
    ck_assert_uint_eq(json_array_size(misses), 1);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(misses, 0), "why")), "new");
    json_decref(j);
    ck_assert_int_eq(top(false, "--once", "again"), 2);
    /* on a terminal one picture takes the place of the other */
    top(true, NULL, NULL);
    runprog_expect(&p, "\033[H\033[2J");
    runprog_expect(&p, "last misses");
    p.out_len = 0;
    p.out_text[0] = 0;
    runprog_expect(&p, "\033[H\033[2J");
    ck_assert_int_eq(kill(p.pid, SIGINT), 0);
    ck_assert_int_eq(runprog_finish(&p), -SIGINT);
    stop();
}
END_TEST

START_TEST(top_ends_with_the_daemon) {
    const char *const argv[] = {TOOL, "top", "--socket", f.socket, NULL};

    start();
    runprog_start(&p, argv, NULL, false, false);
    runprog_expect(&p, "seats");
    p.out_len = 0;
    p.out_text[0] = 0;
    runprog_expect(&p, "seats"); /* a second later, behind the first */
    daemonfix_stop(&f);
    ck_assert_int_eq(runprog_finish(&p), 4);
    ck_assert_ptr_nonnull(strstr(p.err_text, "the daemon went away"));
    daemonfix_done(&f);
    ck_assert_int_eq(top(false, "--once", NULL), 3);
}
END_TEST

static void some_numbers(struct glmw_welcome *w, struct glmw_d *d, void *arg) {
    struct glmw_numbers n = {.scope = 2, .seats = 8};

    (void)w, (void)arg;
    glmw_block_write((uint8_t *)d + GLMW_NUMBERS_OFF, &n, sizeof n);
}

/* Whatever the daemon says meanwhile. */
START_TEST(top_draws_by_the_clock) {
    static const struct fake_options numbers = {.features = FAKE_FEATURES | GLMW_FEAT_NUMBERS, .spoil = some_numbers};
    static const struct fake_script talkative = {.notice_ms = 20};
    struct timespec from, to;
    struct fakeserver s;
    int pictures = 0;
    const char *const argv[] = {TOOL, "top", "--socket", s.path, NULL};

    fakeserver_start(&s, &talkative, &numbers);
    clock_gettime(CLOCK_MONOTONIC, &from);
    runprog_start(&p, argv, NULL, false, false);
    do {
        runprog_expect(&p, "seats");
        p.out_len = 0;
        p.out_text[0] = 0;
        pictures++;
        clock_gettime(CLOCK_MONOTONIC, &to);
    } while (pictures < 3);
    ck_assert_int_eq(kill(p.pid, SIGINT), 0);
    ck_assert_int_eq(runprog_finish(&p), -SIGINT);
    fakeserver_stop(&s);
    ck_assert_int_ge((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000, 1500);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_top");
    TCase *tc = tcase_create("top");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 2 * patience());
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, counts_of_a_user);
    tcase_add_test(tc, others_see_their_own);
    tcase_add_test(tc, a_group_shares_its_beginnings);
    tcase_add_test(tc, numbers_of_one_user);
    tcase_add_test(tc, top_shows_it);
    tcase_add_test(tc, top_ends_with_the_daemon);
    tcase_add_test(tc, top_draws_by_the_clock);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
