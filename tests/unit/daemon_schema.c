/* SPDX-License-Identifier: MIT */
/* Schemas from the client library to the sampled text: a daemon with the nano checkpoint writes what
 * satisfies the schema, from the first token behind the reasoning on; what cannot be followed is refused with
 * its place. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemonfix.h"
#include "gramtest.h"
#include "leakcheck.h"

static struct answer a;

static int patience(void) {
    return getenv("GLMD_EMULATED") ? 900000 : 120000;
}

static void begin(struct daemonfix *f, glmd_conn **c) {
    daemonfix_init(f);
    snprintf(f->model, sizeof f->model, "%s/nano", daemonfix_models());
    daemonfix_start(f, "[Model]\nContextTokens=4096\nThreads=1\n");
    *c = daemonfix_connect(f, NULL);
}

static void end(struct daemonfix *f, glmd_conn *c) {
    glmd_close(c);
    daemonfix_stop(f);
    daemonfix_done(f);
}

static const struct {
    const char *schema; /* NULL: any object */
    bool thinks;
} cases[] = {
    {NULL, false},
    {NULL, true},
    {"{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"minLength\": 1, "
     "\"maxLength\": 12}, "
     "\"age\": {\"type\": \"integer\", \"minimum\": 18, \"maximum\": 99}, \"tags\": {\"type\": \"array\", "
     "\"items\": "
     "{\"enum\": [\"red\", \"green\"]}, \"minItems\": 1, \"maxItems\": 3}}, \"required\": [\"name\", "
     "\"age\", \"tags\"], "
     "\"additionalProperties\": false}",
     false},
    {"{\"enum\": [\"north\", \"south\"]}", true},
    {"{\"type\": \"array\", \"prefixItems\": [{\"type\": \"boolean\"}, {\"type\": \"null\"}], \"items\": "
     "false, "
     "\"minItems\": 2}",
     true},
    {"{\"type\": \"string\", \"pattern\": \"^[0-9]{4}-[0-9]{2}$\"}", false},
};

START_TEST(answers_are_valid) {
    struct daemonfix f;
    glmd_conn *c;
    unsigned complete = 0;

    begin(&f, &c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *schema =
            cases[i].schema ? json_loads(cases[i].schema, 0, NULL) : json_pack("{s:s}", "type", "object");

        ck_assert_ptr_nonnull(schema);
        for (unsigned seed = 1; seed <= 3; seed++) {
            glmd_req *r = request_text(c, "Describe somebody.");
            json_t *v;

            ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_SEED, seed), 0);
            ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 160), 0);
            ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING, cases[i].thinks), 0);
            if (cases[i].thinks)
                ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING_BUDGET, 10), 0);
            if (cases[i].schema)
                ck_assert_int_eq(
                    glmd_req_set_str(r, GLMD_KEY_SCHEMA, cases[i].schema, strlen(cases[i].schema)), 0);
            else
                ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_JSON_OBJECT, 1), 0);
            answer_submit(c, &a, r);
            answers_wait(c, &a, 1, patience());
            ck_assert_msg(a.status == 0, "case %zu: %s", i, a.error);
            ck_assert(!cases[i].thinks || a.n_reasoning > 0);
            if (a.reason == GLMD_REASON_LENGTH)
                continue;
            ck_assert_uint_eq(a.reason, GLMD_REASON_STOP);
            v = gt_read(a.content, a.n_content);
            ck_assert_msg(v && gt_valid(schema, v), "case %zu: %.*s", i, (int)a.n_content, a.content);
            json_decref(v);
            complete++;
        }
        json_decref(schema);
    }
    ck_assert_uint_ge(complete, 12);
    end(&f, c);
}
END_TEST

START_TEST(refusals_reach_the_client) {
    static const struct {
        const char *schema;
        int status;
        const char *says;
    } bad[] = {
        {"{\"properties\": {\"a\": {\"not\": {}}}}", -95, "/properties/a/not"},
        {"{", -22, "response schema"},
        {"{\"$ref\": \"#\"}", -33, "no finite text"},
    };
    struct daemonfix f;
    glmd_conn *c;

    begin(&f, &c);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        glmd_req *r = request_text(c, "x");

        ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_SCHEMA, bad[i].schema, strlen(bad[i].schema)), 0);
        answer_submit(c, &a, r);
        answers_wait(c, &a, 1, patience());
        ck_assert_int_eq(a.status, bad[i].status);
        ck_assert_msg(strstr(a.error, bad[i].says) != NULL, "%s", a.error);
    }
    /* what contradicts a schema */
    for (int i = 0; i < 2; i++) {
        static const char tool[] = "{\"name\": \"move\"}";
        glmd_req *r = request_text(c, "x");

        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_JSON_OBJECT, 1), 0);
        ck_assert_int_eq(glmd_req_tool(r, tool, sizeof tool - 1), 0);
        if (i == 0)
            ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_TOOL_CHOICE, GLMD_TOOL_CHOICE_REQUIRED), 0);
        else
            ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_IGNORE_EOS, 1), 0);
        answer_submit(c, &a, r);
        answers_wait(c, &a, 1, patience());
        ck_assert_int_eq(a.status, -22);
        ck_assert_msg(strstr(a.error, i ? "ignore_eos" : "tool_choice") != NULL, "%s", a.error);
    }
    end(&f, c);
    /* a model without a tokenizer */
    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 100\nrequest\ntokens 1 2 3\n");
    daemonfix_start(&f, NULL);
    c = daemonfix_connect(&f, NULL);
    static const uint32_t ids[] = {5};
    glmd_req *r = request_tokens(c, ids, 1);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_JSON_OBJECT, 1), 0);
    answer_submit(c, &a, r);
    answers_wait(c, &a, 1, patience());
    ck_assert_int_eq(a.status, -95);
    ck_assert_msg(strstr(a.error, "no tokenizer") != NULL, "%s", a.error);
    end(&f, c);
}
END_TEST

/* A demanded call has arguments that satisfy the parameters. */
START_TEST(calls_are_valid) {
    static const char tool[] = "{\"name\": \"move\", \"parameters\": {\"type\": \"object\", \"properties\": "
                               "{\"steps\": {\"type\": \"integer\", "
                               "\"minimum\": 1, \"maximum\": 40}, \"where\": {\"enum\": [\"left\", "
                               "\"right\"]}, \"ok\": {\"type\": \"boolean\"}}, "
                               "\"required\": [\"steps\", \"where\"]}}";
    struct daemonfix f;
    glmd_conn *c;

    begin(&f, &c);
    for (unsigned seed = 1; seed <= 4; seed++) {
        glmd_req *r = request_text(c, "Go on.");
        json_t *v, *steps;
        const char *where;

        ck_assert_int_eq(glmd_req_tool(r, tool, sizeof tool - 1), 0);
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_TOOL_CHOICE, GLMD_TOOL_CHOICE_REQUIRED), 0);
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_PARALLEL_CALLS, 0), 0);
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_SEED, seed), 0);
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 200), 0);
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING, seed % 2), 0);
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING_BUDGET, 10), 0);
        answer_submit(c, &a, r);
        answers_wait(c, &a, 1, patience());
        ck_assert_msg(a.status == 0 && a.reason == GLMD_REASON_TOOL_CALLS, "%d, %u, %s", a.status, a.reason,
                      a.error);
        v = json_loadb(a.args, a.n_args, 0, NULL);
        ck_assert_msg(v != NULL, "%.*s", (int)a.n_args, a.args);
        steps = json_object_get(v, "steps");
        where = json_string_value(json_object_get(v, "where"));
        ck_assert_msg(json_is_integer(steps) && json_integer_value(steps) >= 1 &&
                          json_integer_value(steps) <= 40 && where &&
                          (!strcmp(where, "left") || !strcmp(where, "right")),
                      "%.*s", (int)a.n_args, a.args);
        json_decref(v);
    }
    end(&f, c);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_schema");
    TCase *tc = tcase_create("daemon");
    SRunner *sr;
    int bad;

    tcase_set_timeout(tc, 1800);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, answers_are_valid);
    tcase_add_test(tc, refusals_reach_the_client);
    tcase_add_test(tc, calls_are_valid);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    bad = srunner_ntests_failed(sr);
    srunner_free(sr);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
