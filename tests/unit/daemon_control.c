/* SPDX-License-Identifier: MIT */
/* What decides besides the model, seen by a client of a daemon that serves nano: reasoning is closed at exactly the
 * budget and an answer follows, calls are made or not made as the request says, and without any of it, or with
 * what is never reached, the answer is the same. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "runprog.h"

static struct daemonfix f;
static glmd_conn *c;
static struct answer a, b;
static uint32_t flags_end, n_forced, forced_ids[64];

static void start(const char *conf, const char *script) {
    char whole[1000];

    daemonfix_init(&f);
    if (script)
        daemonfix_script(&f, script);
    else
        snprintf(f.model, sizeof f.model, "%s/nano", daemonfix_models());
    snprintf(whole, sizeof whole, "[Model]\nThreads=1\n%s", conf ? conf : "");
    daemonfix_start(&f, whole);
    c = daemonfix_connect(&f, NULL);
}

static void stop(void) {
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

static glmd_req *ask(const char *text, uint32_t max_tokens) {
    glmd_req *r = request_text(c, text);

    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_TEMPERATURE, 0.0), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, max_tokens), 0);
    return r;
}

static void set(glmd_req *r, int key, uint64_t value) {
    ck_assert_int_eq(glmd_req_set_u64(r, key, value), 0);
}

/* answers_wait() of one answer, which also keeps the flags. */
static void finish(struct answer *x, glmd_req *r) {
    struct glmd_event ev = {.size = sizeof ev};
    uint64_t until = test_now_ms() + 60000;
    int got;

    n_forced = flags_end = 0;
    answer_submit(c, x, r);
    while (!x->ended) {
        got = glmd_next(c, &ev);
        ck_assert_int_ge(got, 0);
        if (got == 0) {
            ck_assert_uint_lt(test_now_ms(), until);
            glmd_wait(c, 100);
            continue;
        }
        if (ev.type == GLMD_EV_TOKEN && ev.flags & GLMD_EVF_FORCED) {
            ck_assert_uint_lt(n_forced, 64);
            forced_ids[n_forced++] = ev.token;
        }
        if (ev.type == GLMD_EV_END)
            flags_end = ev.flags;
        answer_take(x, 1, &ev);
    }
}

static void same(const struct answer *x, const struct answer *y) {
    ck_assert_uint_eq(x->n_tokens, y->n_tokens);
    ck_assert_mem_eq(x->tokens, y->tokens, x->n_tokens * sizeof *x->tokens);
    ck_assert_uint_eq(x->reason, y->reason);
    ck_assert_uint_eq(x->usage.completion_tokens, y->usage.completion_tokens);
    ck_assert_uint_eq(x->usage.reasoning_tokens, y->usage.reasoning_tokens);
}

/* The status block is renewed once a second, and says how often something was stopped in answers that have ended. */
static void expect_closes(uint32_t budget, uint32_t loop) {
    struct glmd_info i = {.size = sizeof i};
    uint64_t until = test_now_ms() + 10000;

    for (;;) {
        ck_assert_int_eq(glmd_get_info(c, &i), 0);
        if (i.budget_closes == budget && i.loop_closes == loop)
            return;
        ck_assert_msg(test_now_ms() < until, "closed by budgets %u times, not %u; loops stopped %u times, not %u",
                      i.budget_closes, budget, i.loop_closes, loop);
        usleep(20000);
    }
}

static const char ask_text[] = "Count from 1 to 25.";

/* nano reasons in a few tokens: whatever the budget, the text before is the same and an answer follows. */
START_TEST(budget_closes_exactly) {
    uint32_t natural, close_ids, closed = 0;
    glmd_req *r;

    start(NULL, NULL);
    expect_closes(0, 0);
    finish(&a, ask(ask_text, 30));
    ck_assert_int_eq(a.status, 0);
    natural = a.usage.reasoning_tokens;
    ck_assert_uint_gt(natural, 3);
    ck_assert_uint_eq(n_forced, 0);
    ck_assert_uint_eq(flags_end & (GLMD_EVF_FORCED | GLMD_EVF_LOOP), 0);
    for (uint32_t n = natural - 1; n < natural + 2; n++) { /* its own mark is no reasoning */
        r = ask(ask_text, 30);
        set(r, GLMD_KEY_THINKING_BUDGET, n);
        set(r, GLMD_KEY_LOOP_GUARD, 1);
        finish(&b, r);
        closed += flags_end & GLMD_EVF_FORCED ? 1 : 0;
        if (n < natural)
            continue;
        same(&a, &b);
        ck_assert_uint_eq(n_forced, 0);
        ck_assert_uint_eq(flags_end & GLMD_EVF_FORCED, 0);
    }
    for (uint32_t n = 0; n + 1 < natural; n++) {
        r = ask(ask_text, 30);
        set(r, GLMD_KEY_THINKING_BUDGET, n);
        ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_STOP, "\n\n\n\n\n\n", 6), 0);
        finish(&b, r);
        closed++;
        ck_assert_int_eq(b.status, 0);
        ck_assert_mem_eq(a.tokens, b.tokens, n * sizeof *a.tokens);
        close_ids = n_forced;
        ck_assert_uint_eq(close_ids, n ? 2 : 1); /* a line break and the mark; the mark */
        ck_assert_mem_eq(b.tokens + n, forced_ids, close_ids * sizeof *forced_ids);
        ck_assert_uint_eq(b.usage.reasoning_tokens, n + close_ids);
        ck_assert_uint_gt(b.n_content, 0);
        ck_assert_uint_eq(b.n_reasoning > 0, n > 0);
        ck_assert_uint_eq(flags_end & (GLMD_EVF_FORCED | GLMD_EVF_LOOP), GLMD_EVF_FORCED);
    }
    r = ask(ask_text, 8); /* more than there is: room is kept */
    set(r, GLMD_KEY_THINKING_BUDGET, 100000);
    set(r, GLMD_KEY_MIN_TOKENS, 8);
    finish(&b, r);
    ck_assert_uint_gt(b.n_content, 0);
    ck_assert_uint_eq(b.n_tokens, 8);
    expect_closes(closed + (flags_end & GLMD_EVF_FORCED ? 1 : 0), 0);
    stop();
}
END_TEST

START_TEST(budget_without_thinking) {
    glmd_req *r;

    start("[Text]\nThinkingBudget=2\nThinkingCloseText=Enough.\n", NULL);
    r = ask(ask_text, 30);
    set(r, GLMD_KEY_THINKING, 0);
    finish(&a, r);
    ck_assert_uint_eq(n_forced, 0);
    ck_assert_uint_eq(a.usage.reasoning_tokens, 0);
    r = ask(ask_text, 30);
    set(r, GLMD_KEY_THINKING, 0);
    set(r, GLMD_KEY_THINKING_BUDGET, 0);
    finish(&b, r);
    same(&a, &b);
    finish(&b, ask(ask_text, 30)); /* the daemon's own budget and words */
    ck_assert_ptr_nonnull(strstr(b.reasoning, "\nEnough.\n"));
    ck_assert_uint_eq(b.usage.reasoning_tokens, 2 + n_forced);
    ck_assert_uint_gt(b.n_content, 0);
    r = ask(ask_text, 30);
    set(r, GLMD_KEY_THINKING_BUDGET, 50); /* the request's word counts */
    finish(&b, r);
    ck_assert_uint_eq(n_forced, 0);
    stop();
}
END_TEST

static const char wx[] = "{\"name\": \"get_weather\", \"description\": \"Get the weather in a city.\", "
                         "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": "
                         "\"string\"}}, \"required\": [\"city\"]}}";
static const char add[] = "{\"name\": \"add\", \"description\": \"Add two numbers.\", \"parameters\": {\"type\": "
                          "\"object\", \"properties\": {\"a\": {\"type\": \"number\"}, \"b\": {\"type\": "
                          "\"number\"}}, \"required\": [\"a\", \"b\"]}}";
static const char ask_weather[] = "What is the weather in Gda\u0144sk?";

static glmd_req *with_tools(const char *text) {
    glmd_req *r = ask(text, 200);

    ck_assert_int_eq(glmd_req_tool(r, wx, strlen(wx)), 0);
    ck_assert_int_eq(glmd_req_tool(r, add, strlen(add)), 0);
    return r;
}

START_TEST(calls_as_asked) {
    static const char *const names[] = {"get_weather", "add"};
    glmd_req *r;

    start(NULL, NULL);
    finish(&a, with_tools(ask_weather)); /* what it does by itself it does when it must, too */
    ck_assert_str_eq(a.name, names[0]);
    r = with_tools(ask_weather);
    set(r, GLMD_KEY_TOOL_CHOICE, GLMD_TOOL_CHOICE_REQUIRED);
    finish(&b, r);
    same(&a, &b);
    for (uint64_t think = 0; think < 2; think++) {
        r = with_tools(ask_weather);
        set(r, GLMD_KEY_TOOL_CHOICE, GLMD_TOOL_CHOICE_REQUIRED);
        set(r, GLMD_KEY_PARALLEL_CALLS, 0);
        set(r, GLMD_KEY_THINKING, think);
        finish(&a, r);
        ck_assert_msg(a.reason == GLMD_REASON_TOOL_CALLS, "%u, %s{%s}", a.reason, a.name, a.args);
        ck_assert_uint_eq(a.n_tools, 2);
        ck_assert_str_eq(a.name, names[0]);
        ck_assert_str_eq(a.args, "{\"city\": \"Gda\u0144sk\"}");
        for (int i = 0; i < 2; i++) { /* the one that is named, whatever the question */
            r = with_tools(ask_text);
            ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_TOOL_NAME, names[i], strlen(names[i])), 0);
            set(r, GLMD_KEY_PARALLEL_CALLS, 0);
            set(r, GLMD_KEY_THINKING, think);
            finish(&a, r);
            ck_assert_str_eq(a.name, names[i]);
            ck_assert_uint_eq(a.n_content, 0);
        }
    }
    r = with_tools(ask_weather);
    set(r, GLMD_KEY_TOOL_CHOICE, GLMD_TOOL_CHOICE_NONE);
    finish(&a, r);
    ck_assert_int_eq(a.status, 0);
    ck_assert_uint_eq(a.n_tools, 0);
    ck_assert_uint_eq(a.n_name, 0);
    r = with_tools(ask_text);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_TOOL_NAME, "fly", 3), 0);
    finish(&a, r);
    ck_assert_int_eq(a.status, -22);
    ck_assert_ptr_nonnull(strstr(a.error, "\"fly\""));
    stop();
}
END_TEST

static void glmctl_counts(unsigned budget, unsigned loop) {
    static struct runprog p;
    const char *const text[] = {TEST_BUILD "/glmctl", "status", "--socket", f.socket, NULL};
    const char *const json[] = {TEST_BUILD "/glmctl", "status", "--json", "--socket", f.socket, NULL};
    char line[128];

    snprintf(line, sizeof line, " reasoning closed by its budget %u times, loops stopped %u times\n", budget, loop);
    ck_assert_int_eq(runprog(&p, text, NULL, false, ""), 0);
    ck_assert_msg(strstr(p.out_text, line) != NULL, "%s", p.out_text);
    snprintf(line, sizeof line, ",\"budget_closes\":%u,\"loop_closes\":%u,", budget, loop);
    ck_assert_int_eq(runprog(&p, json, NULL, false, ""), 0);
    ck_assert_msg(strstr(p.out_text, line) != NULL, "%s", p.out_text);
}

/* A script that talks in circles: in its reasoning it is brought to an answer, in its answer it is ended. */
START_TEST(loops_end) {
    char script[5000], dir[4096];
    glmd_req *r;

    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    snprintf(script, sizeof script, "model %s/nano\nloop\nrequest\nrepeat\ntokens 300 301 302 303 304\n", dir);
    start("[Text]\nLoopGuard=on\n", script);
    finish(&a, ask(ask_text, 1000));
    ck_assert_int_eq(a.status, 0);
    ck_assert_uint_eq(a.reason, GLMD_REASON_LOOP);
    ck_assert_uint_eq(n_forced, 2);
    ck_assert_uint_eq(a.n_tokens, 256 + 2 + 256);
    ck_assert_uint_eq(a.usage.reasoning_tokens, 256 + 2);
    ck_assert_uint_eq(flags_end & (GLMD_EVF_FORCED | GLMD_EVF_LOOP), GLMD_EVF_FORCED | GLMD_EVF_LOOP);
    r = ask(ask_text, 1000);
    set(r, GLMD_KEY_LOOP_GUARD, 0);
    finish(&a, r);
    ck_assert_uint_eq(a.reason, GLMD_REASON_LENGTH);
    ck_assert_uint_eq(a.n_tokens, 1000);
    ck_assert_uint_eq(flags_end & (GLMD_EVF_FORCED | GLMD_EVF_LOOP), 0);
    expect_closes(0, 2); /* of the first answer: its reasoning and itself */
    glmctl_counts(0, 2);
    stop();
}
END_TEST

/* Marks that no client sees are not searched for stop strings: engine and client would see different ends. */
START_TEST(stops_are_not_found_in_marks) {
    char script[5000], dir[4096];
    glmd_req *r;

    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    snprintf(script, sizeof script, "model %s/nano\nloop\nrequest\ntokens 300 4062 301 4064 302\n", dir);
    start(NULL, script);
    r = ask(ask_text, 9);
    set(r, GLMD_KEY_THINKING, 0);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_STOP, "MASK", 4), 0);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_STOP, "sop", 3), 0);
    finish(&a, r);
    ck_assert_uint_eq(a.reason, GLMD_REASON_LENGTH);
    ck_assert_uint_eq(a.n_tokens, 9);
    stop();
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_control");
    TCase *tc = tcase_create("control");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, budget_closes_exactly);
    tcase_add_test(tc, budget_without_thinking);
    tcase_add_test(tc, calls_as_asked);
    tcase_add_test(tc, loops_end);
    tcase_add_test(tc, stops_are_not_found_in_marks);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
