/* SPDX-License-Identifier: MIT */
/* glmctl probe against a real daemon whose model is a script: characters that several tokens make are whole, one that
 * is broken is found and shown, one that --max-tokens cut is not held against the model, and silence proves nothing. */
#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "runprog.h"
#include "tokenizer.h"

static struct daemonfix f;
static struct runprog prog;
static struct tok *tok;
static uint32_t byte[256]; /* the tokens of what is served */

/* The token that is this one byte. */
static uint32_t byte_token(unsigned char want) {
    for (uint32_t id = 0; id < 4060; id++) {
        const uint8_t *bytes;
        size_t len;
        if (tok_bytes(tok, id, &bytes, &len) == 0 && len == 1 && bytes[0] == want)
            return id;
    }
    ck_abort_msg("no token for byte %02x", want);
}

/* A daemon that answers every request with these bytes, a token each. */
static void serve(const char *bytes) {
    char script[2048], dir[600];
    snprintf(dir, sizeof dir, "%s/nano", daemonfix_models());
    struct xerr err = {0};
    ck_assert_msg(tok_open(dir, &tok, &err) == 0, "%s", err.msg);
    int n = snprintf(script, sizeof script, "model %s\nstop 4060\nrequest\ntokens", dir);
    for (const char *s = bytes; *s; s++)
        n += snprintf(script + n, sizeof script - (size_t)n, " %u",
                      byte[(unsigned char)*s] = byte_token((unsigned char)*s));
    snprintf(script + n, sizeof script - (size_t)n, " 4060\n");
    daemonfix_init(&f);
    daemonfix_script(&f, script);
    daemonfix_start(&f, "");
    tok_free(tok);
}

static int probe(const char *const *more) {
    const char *argv[16] = {TEST_BUILD "/glmctl", "probe", "--socket", f.socket, "--chars", "100"};
    int n = 6;
    while (*more)
        argv[n++] = *more++;
    argv[n] = NULL;
    return runprog(&prog, argv, NULL, false, NULL);
}

static void stop(void) {
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

START_TEST(whole_characters) {
    static const char *const args[] = {"--languages", "polish,korean", NULL};
    serve("za\xc5\xbc\xc3\xb3\xc5\x82\xc4\x87 \xed\x95\x9c\xea\xb5\xad \xf0\x9f\x91\xa9 ");
    ck_assert_msg(probe(args) == 0, "%s%s", prog.out_text, prog.err_text);
    ck_assert_msg(strstr(prog.out_text, "polish") && strstr(prog.out_text, "korean"), "%s", prog.out_text);
    ck_assert_msg(!strstr(prog.out_text, "czech"), "not asked for: %s", prog.out_text);
    ck_assert_msg(strstr(prog.out_text, ", 0 broken"), "%s", prog.out_text);
    ck_assert_msg(strstr(prog.out_text, "58.3 % beyond ASCII"), "%s", prog.out_text); /* 7 of 12 */
    stop();
}
END_TEST

/* Of each of them the ids of the question and of the answer up to the space, with which it is known that no more bytes
 * of the character come. */
static void places_are(const json_t *doc) {
    static const char want[] = "ab\xc5 ";
    const json_t *places = json_object_get(doc, "places");
    json_int_t broken = json_integer_value(json_object_get(doc, "broken"));
    size_t first = 0, longest = 0;
    ck_assert_uint_eq(json_array_size(places), (size_t)(broken < 16 ? broken : 16));
    for (size_t i = 0; i < json_array_size(places); i++) {
        const json_t *answer = json_object_get(json_array_get(places, i), "answer");
        size_t n = json_array_size(json_object_get(json_array_get(places, i), "prompt"));
        first = i ? first : n;
        longest = n > longest ? n : longest;
        ck_assert_uint_gt(n, 20);
        ck_assert_uint_eq(json_array_size(answer), sizeof want - 1);
        for (size_t k = 0; k < sizeof want - 1; k++)
            ck_assert_int_eq(json_integer_value(json_array_get(answer, k)), byte[(unsigned char)want[k]]);
    }
    ck_assert_msg(longest > first, "the later questions have the answer in them: %zu, %zu", first, longest);
}

START_TEST(broken_character) {
    static const char *const args[] = {"--languages", "czech", "--json", NULL};
    serve("ab\xc5 cd");
    ck_assert_msg(probe(args) == 1, "%s%s", prog.out_text, prog.err_text);
    json_t *doc = json_loads(prog.out_text, 0, NULL);
    ck_assert_msg(doc != NULL, "%s", prog.out_text);
    json_int_t answers = json_integer_value(json_object_get(doc, "answers"));
    ck_assert_int_ge(answers, 17); /* of 6 characters */
    ck_assert_int_eq(json_integer_value(json_object_get(doc, "broken")), answers);
    ck_assert_int_eq(json_integer_value(json_object_get(doc, "characters")), 6 * answers);
    ck_assert_int_eq(json_integer_value(json_object_get(doc, "cut")), 0);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(doc, "samples"), 0)), "ab\xef\xbf\xbd cd");
    ck_assert_msg(strstr(prog.err_text, "broken characters"), "%s", prog.err_text);
    places_are(doc);
    json_decref(doc);
    stop();
}
END_TEST

/* The third token is half a character, and --max-tokens ends there: the model is not to blame. */
START_TEST(cut_character) {
    static const char *const args[] = {"--languages", "czech", "--json", "--max-tokens", "3", NULL};
    serve("ab\xc5\xbc d");
    ck_assert_msg(probe(args) == 0, "%s%s", prog.out_text, prog.err_text);
    json_t *doc = json_loads(prog.out_text, 0, NULL);
    ck_assert_int_eq(json_integer_value(json_object_get(doc, "broken")), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(doc, "cut")),
                     json_integer_value(json_object_get(doc, "answers")));
    json_decref(doc);
    stop();
}
END_TEST

START_TEST(silence_proves_nothing) {
    static const char *const args[] = {"--languages", "emoji", NULL};
    serve("");
    ck_assert_msg(probe(args) == 1, "%s%s", prog.out_text, prog.err_text);
    ck_assert_msg(strstr(prog.err_text, "nothing is proven"), "%s", prog.err_text);
    stop();
}
END_TEST

/* One seat for several conversations at a time: asked again until there is room, and no endless asking. */
START_TEST(few_seats) {
    static const char *const args[] = {"--languages", "czech", NULL};
    char script[600];
    daemonfix_init(&f);
    snprintf(script, sizeof script, "model %s/nano\nstop 4060\nstep-us 300\nrequest\ntokens 39 334 593 4060\n",
             daemonfix_models());
    daemonfix_script(&f, script);
    daemonfix_start(&f, "[Quota]\nMaxRequestsPerUid=1\n");
    ck_assert_msg(probe(args) == 0, "%s%s", prog.out_text, prog.err_text);
    stop();
}
END_TEST

static json_int_t user_of(const char *key) {
    const char *argv[] = {TEST_BUILD "/glmctl", "status", "--json", "--socket", f.socket, NULL};
    ck_assert_msg(runprog(&prog, argv, NULL, false, NULL) == 0, "%s", prog.err_text);
    json_t *doc = json_loads(prog.out_text, 0, NULL), *v = json_object_get(json_object_get(doc, "user"), key);
    ck_assert_msg(json_is_integer(v), "no %s in %s", key, prog.out_text);
    json_int_t n = json_integer_value(v);
    json_decref(doc);
    return n;
}

/* All the room is somebody else's for three seconds: asked for now and then, not as often as the daemon can refuse, and
 * said once. */
START_TEST(waits_for_room) {
    static const char *const args[] = {"--languages", "czech", NULL};
    const char *other[] = {TEST_BUILD "/glmctl", "run", "--socket", f.socket, "--max-tokens", "100000", "x", NULL};
    char script[600];
    daemonfix_init(&f);
    snprintf(script, sizeof script, "model %s/nano\nstop 4060\nstep-us 2000\nloop\nrequest\ntokens 39\nrepeat\n",
             daemonfix_models());
    daemonfix_script(&f, script);
    daemonfix_start(&f, "[Quota]\nMaxRequestsPerUid=1\n");
    pid_t holder = fork();
    if (holder == 0) {
        if (freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr))
            execv(other[0], (char *const *)(uintptr_t)other);
        _exit(127);
    }
    for (int i = 0; i < 200 && user_of("requests") < 1; i++)
        usleep(20000);
    pid_t killer = fork();
    if (killer == 0) {
        sleep(3);
        kill(holder, SIGTERM);
        _exit(0);
    }
    int r = probe(args);
    waitpid(killer, NULL, 0);
    waitpid(holder, NULL, 0);
    ck_assert_msg(r == 0, "%s%s", prog.out_text, prog.err_text);
    const char *said = strstr(prog.err_text, "waiting for room: ");
    ck_assert_msg(said && strstr(said, "MaxRequestsPerUid"), "%s", prog.err_text);
    ck_assert_msg(!strstr(said + 1, "waiting"), "said twice: %s", prog.err_text);
    json_int_t refused = user_of("refused");
    ck_assert_msg(refused >= 3 && refused < 60, "refused %lld times", (long long)refused);
    stop();
}
END_TEST

START_TEST(wrong_usage) {
    static const char *const language[] = {"--languages", "polish,klingon", NULL};
    static const char *const zero[] = {"--chars", "0", NULL}, *const word[] = {"polish", NULL};
    serve("a");
    ck_assert_int_eq(probe(language), 2);
    ck_assert_msg(strstr(prog.err_text, "\"klingon\""), "%s", prog.err_text);
    ck_assert_int_eq(probe(zero), 2);
    ck_assert_int_eq(probe(word), 2);
    ck_assert_msg(strstr(prog.err_text, "no further words"), "%s", prog.err_text);
    stop();
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_probe");
    TCase *t = tcase_create("probe");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, whole_characters);
    tcase_add_test(t, broken_character);
    tcase_add_test(t, cut_character);
    tcase_add_test(t, silence_proves_nothing);
    tcase_add_test(t, few_seats);
    tcase_add_test(t, waits_for_room);
    tcase_add_test(t, wrong_usage);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
