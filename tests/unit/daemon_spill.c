/* SPDX-License-Identifier: MIT */
/* The tier on disk behind a whole daemon: a prompt comes back after a restart and after a kill -9 at any moment, with
 * the answer it would have had; damaged files, a directory that is missing or somebody else's cost a line in the log
 * and a reading. */
#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "runprog.h"
#include "spilltest.h"

#define TOOL TEST_BUILD "/glmctl"

enum { N = 300, WAIT_MS = 120000 };

static struct spilltest t; /* its directory */
static struct daemonfix f;
static uint32_t ids[3][N];
static struct answer a, plain;
static char conf[500];

static void setup(void) {
    leakcheck_setup();
    spilltest_init(&t, NULL);
    for (uint32_t i = 0; i < 3; i++)
        spilltest_text(8 * i, ids[i], N);
    daemonfix_init(&f);
    snprintf(f.model, sizeof f.model, "%s/nano", daemonfix_models());
}

static void teardown(void) {
    daemonfix_done(&f);
    spilltest_done(&t);
    leakcheck_teardown();
}

static const char *config(const char *dir, const char *survive) {
    snprintf(conf, sizeof conf,
             "[Model]\nContextTokens=1024\nThreads=1\n[Cache]\nSpillDirectory=%s\nSpillMinTokens=128\n"
             "SpillKeepFree=1M\nSpillBytes=256M\nSpillSurvive=%s\n",
             dir, survive);
    return conf;
}

static void start(const char *dir, const char *survive) {
    unlink(f.log); /* the daemon before this one was ready, too */
    daemonfix_start(&f, config(dir, survive));
}

static void send_one(glmd_conn *c, struct answer *ret, uint32_t text, bool no_cache) {
    glmd_req *r = request_tokens(c, ids[text], N);

    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 4), 0);
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_TEMPERATURE, 0), 0);
    if (no_cache)
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_NO_CACHE, 1), 0);
    answer_submit(c, ret, r);
}

/* Tokens that came from the disk. The answer is that of a request that finds nothing. */
static uint32_t from_disk(glmd_conn *c, uint32_t text) {
    send_one(c, &a, text, false);
    answers_wait(c, &a, 1, WAIT_MS);
    send_one(c, &plain, text, true);
    answers_wait(c, &plain, 1, WAIT_MS);
    ck_assert_int_eq(a.status, 0);
    ck_assert_uint_eq(a.n_tokens, plain.n_tokens);
    ck_assert_mem_eq(a.tokens, plain.tokens, a.n_tokens * sizeof a.tokens[0]);
    ck_assert_uint_le(a.usage.tier_tokens, a.usage.cached_tokens);
    ck_assert_uint_eq(plain.usage.cached_tokens, 0);
    return a.usage.tier_tokens;
}

/* What glmctl top says of the tier. */
static void top_says(const char *state, json_int_t blocks, json_int_t read, const char *text) {
    static struct runprog p;
    const char *const json[] = {TOOL, "top", "--json", "--once", "--socket", f.socket, NULL};
    const char *const plain_text[] = {TOOL, "top", "--once", "--socket", f.socket, NULL};
    json_t *j, *tier;

    for (int i = 0;; i++) { /* the numbers are renewed once a second */
        ck_assert_int_eq(runprog(&p, json, NULL, false, NULL), 0);
        j = json_loads(p.out_text, 0, NULL);
        ck_assert_msg(j != NULL, "%s", p.out_text);
        tier = json_object_get(j, "tier");
        if (i == 30 || json_integer_value(json_object_get(tier, "read")) == read)
            break;
        json_decref(j);
        usleep(200000);
    }
    ck_assert_str_eq(json_string_value(json_object_get(tier, "state")), state);
    ck_assert_int_ge(json_integer_value(json_object_get(tier, "blocks")), blocks);
    ck_assert_int_eq(json_integer_value(json_object_get(tier, "read")), read);
    ck_assert_int_eq(json_integer_value(json_object_get(tier, "bytes")) > 0, blocks > 0);
    ck_assert(json_is_null(json_object_get(tier, "error")));
    ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(tier, "text")), text));
    json_decref(j);
    ck_assert_int_eq(runprog(&p, plain_text, NULL, false, NULL), 0);
    ck_assert_msg(strstr(p.out_text, blocks ? " MiB in " : "on disk   nothing: ") != NULL, "%s", p.out_text);
}

static void run_once(uint32_t text, uint32_t want) {
    glmd_conn *c;

    start(t.dir, "yes");
    c = daemonfix_connect(&f, NULL);
    ck_assert_uint_eq(from_disk(c, text), want);
    if (want)
        top_says("on", 2, 1, "");
    glmd_close(c);
    daemonfix_stop(&f);
}

START_TEST(over_a_restart_and_damaged) {
    char path[400];
    int fd;

    run_once(0, 0);
    run_once(0, 256);
    ck_assert(spilltest_first(&t, ".state", path, sizeof path));
    fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, "damaged", 7, 9000), 7);
    close(fd);
    run_once(0, 0);
    daemonfix_expect_log(&f, "is forgotten");
    run_once(0, 256);
    /* one that is not to survive takes nothing over and leaves nothing */
    start(t.dir, "no");
    ck_assert_uint_eq(spilltest_files(&t, ".state"), 0);
    daemonfix_stop(&f);
    ck_assert_uint_eq(spilltest_files(&t, ".page"), 0);
}
END_TEST

START_TEST(killed) {
    uint32_t found = 0;

    for (uint32_t round = 0; round < 4; round++) {
        glmd_conn *c;

        start(t.dir, "yes");
        c = daemonfix_connect(&f, NULL);
        found += from_disk(c, round % 3) > 0;
        send_one(c, &a, (round + 1) % 3, false);
        answers_wait(c, &a, 1, WAIT_MS);
        usleep(round * 3000); /* while it is written, and after */
        kill(f.pid, SIGKILL);
        daemonfix_wait(&f, 30000);
        glmd_close(c);
    }
    ck_assert_uint_gt(found, 0);
    run_once(0, 256);
    ck_assert_uint_eq(spilltest_files(&t, ".tmp"), 0);
}
END_TEST

START_TEST(directories_that_cannot_be_used) {
    char nowhere[100];
    struct sockaddr_un na = {.sun_family = AF_UNIX};
    struct spilltest other = t;
    char told[1000] = "";
    int manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    glmd_conn *c;

    snprintf(nowhere, sizeof nowhere, "%s/nowhere", t.dir);
    snprintf(f.notify, sizeof f.notify, "%s/notify", f.dir);
    snprintf(na.sun_path, sizeof na.sun_path, "%s", f.notify);
    ck_assert_int_eq(bind(manager, (struct sockaddr *)&na, sizeof na), 0);
    start(nowhere, "yes");
    while (!strstr(told, "READY=1")) /* Check ends a wait that is in vain */
        ck_assert_int_gt(recv(manager, told, sizeof told - 1, 0), 0);
    ck_assert_ptr_nonnull(strstr(told, "without its spill directory"));
    close(manager);
    f.notify[0] = 0;
    c = daemonfix_connect(&f, NULL);
    ck_assert_uint_eq(from_disk(c, 0), 0);
    top_says("off", 0, 0, "No such file or directory");
    daemonfix_expect_log(&f, "No such file or directory; create it");
    daemonfix_expect_log(&f, "going on without it");
    glmd_close(c);
    daemonfix_stop(&f);
    ck_assert_int_eq(spilltest_open(&other), 0);
    start(t.dir, "yes");
    daemonfix_expect_log(&f, "another glmd uses it");
    daemonfix_stop(&f);
    spilltest_close(&other);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_spill");
    TCase *tc = tcase_create("spill");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 600);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, over_a_restart_and_damaged);
    tcase_add_test(tc, killed);
    tcase_add_test(tc, directories_that_cannot_be_used);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
