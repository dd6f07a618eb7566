/* SPDX-License-Identifier: MIT */
/* A conversation with a real daemon: what a client sends back as history is read in the ids that the daemon
 * streamed, also by the request that comes the moment the answer ends; and only while it is told to remember. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "tokenizer.h"

enum { TURNS = 4 };

static struct tok *tok;
static struct tok_scratch *words;
static struct answer a[TURNS], ids;

/* Seconds for an answer of a real model. */
static int patience(void) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return 430;
#else
    return getenv("GLMD_EMULATED") ? 900 : 120;
#endif
}

/* One token for each character, as no tokenizer would do it, and markers as they are. */
static size_t put_odd(const char *text, char *to, size_t cap) {
    size_t n = 0;

    for (size_t at = 0, len; text[at]; at += len) {
        int64_t marker = tok_marker_at(tok, text + at, strlen(text + at), &len);
        uint32_t id[16];
        size_t got = 1;

        if (marker >= 0) {
            id[0] = (uint32_t)marker;
        } else {
            len = 1;
            ck_assert_int_eq(tok_encode(tok, words, text + at, 1, 0, id, 16, &got), 0);
        }
        for (size_t i = 0; i < got; i++)
            n += (size_t)snprintf(to + n, cap - n, " %u", id[i]);
    }
    return n;
}

static void script(struct daemonfix *f) {
    static const char *const answers[TURNS] = {
        "Think of it.\n</think>The first answer. ", "</think>\nA second one",
        "I need weather.</think>Look:<tool_call>wx<arg_key>city</arg_key><arg_value>Lima</arg_value><arg_key>days"
        "</arg_key><arg_value>2</arg_value></tool_call>",
        "done</think>18 degrees."};
    static char text[16384];
    char dir[300];
    struct xerr err;
    size_t n;

    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    strcat(dir, "/nano");
    ck_assert_msg(tok_open(dir, &tok, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(tok_scratch_new(0, &words), 0);
    n = (size_t)snprintf(text, sizeof text, "model %s\nloop\n", dir);
    for (int i = 0; i < TURNS; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "request\ntokens");
        n += put_odd(answers[i], text + n, sizeof text - n);
        n += put_odd("<|observation|>", text + n, sizeof text - n);
        n += (size_t)snprintf(text + n, sizeof text - n, "\n");
    }
    daemonfix_script(f, text);
}

/* The conversation after n answers, as an agent sends it that keeps no reasoning and writes JSON its own way. */
static glmd_req *conversation(glmd_conn *c, int n) {
    static const char *const shown[TURNS] = {"The first answer.", "A second one", "Look:", "18 degrees."};
    static const char tool[] = "{\"name\": \"wx\", \"parameters\": {}}";
    static const char args[] = "{\"days\":2.0,\"city\":\"\\u004cima\"}";
    glmd_req *r;

    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    ck_assert_int_eq(glmd_req_tool(r, tool, strlen(tool)), 0);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, "Begin.", 6), 0);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(glmd_req_begin(r, GLMD_ROLE_ASSISTANT), 0);
        ck_assert_int_eq(glmd_req_part_text(r, shown[i], strlen(shown[i])), 0);
        if (i == 2)
            ck_assert_int_eq(glmd_req_part_tool_call(r, "c1", 2, "wx", 2, args, strlen(args)), 0);
        ck_assert_int_eq(glmd_req_end(r), 0);
        if (i == 2) {
            ck_assert_int_eq(glmd_req_begin(r, GLMD_ROLE_TOOL), 0);
            ck_assert_int_eq(glmd_req_part_tool_result(r, "c1", 2, "18 C", 4), 0);
            ck_assert_int_eq(glmd_req_end(r), 0);
        } else {
            ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, "Go on.", 6), 0);
        }
    }
    return r;
}

static void tokenize(glmd_conn *c, int n) {
    glmd_req *r = conversation(c, n);

    memset(&ids, 0, sizeof ids);
    ck_assert_int_eq(glmd_tokenize(c, r, &ids.tag), 0);
    answers_wait(c, &ids, 1, 20000);
    ck_assert_int_eq(ids.status, 0);
}

static void run(bool remember) {
    static uint32_t want[4096];
    struct daemonfix f;
    uint32_t n;
    glmd_conn *c;

    daemonfix_init(&f);
    script(&f);
    daemonfix_start(&f, remember ? "[Text]\nWorkers=3\n" : "[Text]\nRememberBytes=0\n");
    c = daemonfix_connect(&f, NULL);
    for (int i = 0; i < TURNS; i++) {
        answer_submit(c, &a[i], conversation(c, i));
        answers_wait(c, &a[i], 1, 20000);
        ck_assert_int_eq(a[i].status, 0);
        ck_assert_uint_gt(a[i].n_tokens, 10);
    }
    ck_assert_str_eq(a[2].args, "{\"city\": \"Lima\", \"days\": 2}");
    for (int i = 0; i < TURNS; i++) {
        tokenize(c, i);
        n = ids.n_tokens;
        ck_assert_uint_eq(n, a[i].usage.prompt_tokens); /* what was submitted then */
        memcpy(want, ids.tokens, n * 4);
        memcpy(want + n, a[i].tokens, a[i].n_tokens * 4);
        tokenize(c, i + 1);
        ck_assert_uint_gt(ids.n_tokens, n + a[i].n_tokens * (remember ? 1 : 0));
        ck_assert_msg((memcmp(ids.tokens, want, (n + a[i].n_tokens) * 4) == 0) == remember, "turn %d", i);
    }
    ck_assert_ptr_null(strstr(daemonfix_log(&f), "first answer"));
    glmd_close(c);
    tok_scratch_free(words);
    tok_free(tok);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

START_TEST(history_keeps_its_ids) {
    run(true);
}
END_TEST

START_TEST(nothing_is_remembered_unasked) {
    run(false);
}
END_TEST

/* What it is for: the next turn of a real model begins where its answer ended, although the client dropped the
 * reasoning; and without memory of the answer only where the first prompt did. */
static void next_turn(bool remember) {
    static char question[300];
    struct daemonfix f;
    glmd_conn *c;
    glmd_req *r;
    uint32_t said;

    for (size_t i = 0; i + 4 < sizeof question; i += 4)
        snprintf(question + i, 5, "%03zu ", i * 37 % 997);
    daemonfix_init(&f);
    snprintf(f.model, sizeof f.model, "%s/nano", daemonfix_models());
    daemonfix_start(&f, remember ? "[Model]\nContextTokens=4096\nThreads=1\n"
                                 : "[Model]\nContextTokens=4096\nThreads=1\n[Text]\nRememberBytes=0\n");
    c = daemonfix_connect(&f, NULL);
    for (int turn = 0; turn < 2; turn++) {
        ck_assert_int_eq(glmd_req_new(c, &r), 0);
        ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, question, strlen(question)), 0);
        if (turn) {
            ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_ASSISTANT, a[0].content, a[0].n_content), 0);
            ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, "Go on.", 6), 0);
        }
        ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_TEMPERATURE, 0), 0);
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, turn ? 2 : 140), 0);
        answer_submit(c, &a[turn], r);
        answers_wait(c, &a[turn], 1, patience() * 1000);
        ck_assert_int_eq(a[turn].status, 0);
    }
    said = a[0].usage.prompt_tokens + a[0].n_tokens;
    ck_assert_uint_gt(a[0].n_reasoning, 0);
    ck_assert_uint_gt(a[0].n_tokens, 128); /* two steps of the cache's grid */
    if (remember)
        ck_assert_uint_ge(a[1].usage.cached_tokens, said - 64);
    else
        ck_assert_uint_le(a[1].usage.cached_tokens, a[0].usage.prompt_tokens);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

START_TEST(the_next_turn_begins_at_the_answers_end) {
    next_turn(true);
}
END_TEST

START_TEST(without_memory_it_begins_at_the_first_prompts) {
    next_turn(false);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_turns");
    TCase *tc = tcase_create("turns");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 2 * patience());
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, history_keeps_its_ids);
    tcase_add_test(tc, nothing_is_remembered_unasked);
    tcase_add_test(tc, the_next_turn_begins_at_the_answers_end);
    tcase_add_test(tc, without_memory_it_begins_at_the_first_prompts);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
