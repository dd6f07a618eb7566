/* SPDX-License-Identifier: MIT */
/* Offered tools compiled for the output parser: wrong definitions are named, hostile schemas cost bounded
 * time, and what is not understood admits everything. */
#include "outtools.h"
#include "texttest.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned types(const char *schema, const char *key) {
    char text[1024];
    struct outtools *t;
    struct xerr err = {0};
    struct tstr one = {text, 0};
    unsigned ret = 0;

    one.n = (size_t)snprintf(text, sizeof text, "{\"name\": \"f\", \"parameters\": %s}", schema);
    ck_assert_msg(outtools_new(&one, 1, &t, &err) == 0, "%s", err.msg);
    outtools_param(t, outtools_find(t, tstr_of("f")), tstr_of(key), &ret);
    outtools_free(t);
    return ret;
}

START_TEST(masks) {
    static const unsigned no_string = OUTTOOLS_ALL & ~(unsigned)OUTTOOLS_STRING,
                          number = OUTTOOLS_INTEGER | OUTTOOLS_NUMBER;
    static const struct {
        const char *schema;
        unsigned want;
    } cases[] = {
        {"{\"properties\": {\"a\": {\"type\": \"number\"}}}", number},
        {"{\"properties\": {\"a\": {\"type\": \"number\", \"nullable\": true}}}", number | OUTTOOLS_NULL},
        {"{\"properties\": {\"a\": {\"type\": [\"integer\", \"object\"]}}}",
         OUTTOOLS_INTEGER | OUTTOOLS_OBJECT},
        {"{\"properties\": {\"a\": {\"type\": \"number\", \"enum\": [1, 2]}}}", OUTTOOLS_INTEGER},
        {"{\"properties\": {\"a\": {\"enum\": [1.5, null, \"x\"]}}}",
         number | OUTTOOLS_NULL | OUTTOOLS_STRING},
        {"{\"properties\": {\"a\": {\"const\": []}}}", OUTTOOLS_ARRAY},
        {"{\"properties\": {\"a\": {\"type\": \"integer\", \"enum\": [\"x\"]}}}",
         OUTTOOLS_ALL}, /* contradiction */
        {"{\"properties\": {\"a\": {\"type\": \"martian\"}}}", OUTTOOLS_ALL},
        {"{\"properties\": {\"a\": {\"type\": 5}}}", OUTTOOLS_ALL},
        {"{\"properties\": {\"a\": true}}", OUTTOOLS_ALL},
        {"{\"properties\": {\"a\": {\"anyOf\": [{\"type\": \"null\"}, {\"allOf\": [{\"type\": "
         "\"array\"}]}]}}}",
         OUTTOOLS_NULL | OUTTOOLS_ARRAY},
        {"{\"properties\": {\"a\": {\"anyOf\": [{\"type\": \"null\"}, {}]}}}", OUTTOOLS_ALL},
        {"{\"$defs\": {\"D\": {\"properties\": {\"q\": {\"type\": \"null\"}}}}, \"properties\": {\"a\": "
         "{\"$ref\": "
         "\"#/$defs/D/properties/q\"}}}",
         OUTTOOLS_NULL},
        {"{\"properties\": {\"a\": {\"$ref\": \"other.json\"}}}", OUTTOOLS_ALL},
        {"{\"properties\": {\"a\": {\"$ref\": \"#/properties/a\"}}}", OUTTOOLS_ALL}, /* itself */
        {"{\"properties\": {\"a\": {\"$ref\": \"#\"}}, \"type\": \"object\"}", OUTTOOLS_OBJECT},
        {"{\"properties\": {\"a\": {\"type\": \"null\"}, \"\\u0061\": {\"type\": \"object\"}}}",
         OUTTOOLS_OBJECT},
        {"{\"properties\": []}", no_string},
        {"[]", no_string},
        {"{\"additionalProperties\": {\"type\": \"string\"}}", OUTTOOLS_STRING},
        {"{\"additionalProperties\": false}", no_string},
        {"{\"required\": [\"a\"]}", no_string},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(types(cases[i].schema, "a") == cases[i].want, "%s: %u, expected %u", cases[i].schema,
                      types(cases[i].schema, "a"), cases[i].want);
}
END_TEST

START_TEST(wrong_definitions) {
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"{\"name\": \"g\"", -EINVAL, "tools[1]: not JSON: object without its end at byte 12"},
        {"[]", -EINVAL, "tools[1].name"},
        {"{}", -EINVAL, "tools[1].name: missing"},
        {"{\"name\": \"\"}", -EINVAL, "tools[1].name"},
        {"{\"name\": 5}", -EINVAL, "tools[1].name"},
        {"{\"function\": {\"description\": \"x\"}, \"name\": \"outer\"}", -EINVAL, "tools[1].name"},
        {"{\"name\": \"\xff\"}", -EILSEQ, "tools[1]"},
    };
    static struct tstr many[OUTTOOLS_MAX_TOOLS + 1];
    struct outtools *t;
    struct xerr err = {0};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tstr two[2] = {tstr_of("{\"name\": \"f\"}"), tstr_of(cases[i].text)};

        ck_assert_int_eq(outtools_new(two, 2, &t, &err), cases[i].code);
        ck_assert_msg(strstr(err.msg, cases[i].says), "%s", err.msg);
    }
    for (size_t i = 0; i <= OUTTOOLS_MAX_TOOLS; i++)
        many[i] = tstr_of("{\"name\": \"f\"}");
    ck_assert_int_eq(outtools_new(many, OUTTOOLS_MAX_TOOLS + 1, &t, &err), -E2BIG);
    ck_assert_int_eq(outtools_new(many, OUTTOOLS_MAX_TOOLS, &t, &err), 0);
    ck_assert_uint_eq(outtools_count(t), OUTTOOLS_MAX_TOOLS);
    ck_assert_int_eq(outtools_find(t, tstr_of("ff")), -ENOENT);
    ck_assert_int_eq(outtools_find(NULL, tstr_of("f")), -ENOENT);
    ck_assert_ptr_null(outtools_free(t));
    ck_assert_int_eq(outtools_new(NULL, 0, &t, &err), 0);
    ck_assert_uint_eq(outtools_count(t), 0);
    outtools_free(t);
}
END_TEST

START_TEST(many_parameters_and_required_ones) {
    size_t n = 700, w = 0;
    char *text = malloc(n * 64);
    struct tstr one = {text, 0};
    struct outtools *t;
    unsigned mask;

    w += (size_t)sprintf(text, "{\"name\": \"f\", \"parameters\": {\"required\": [\"p1\", \"p1\", 5, \"p2\", "
                               "\"q\"], \"properties\": {");
    for (size_t i = 0; i < n; i++)
        w += (size_t)sprintf(text + w, "%s\"p%zu\": {\"type\": \"null\"}", i ? ", " : "", i);
    w += (size_t)sprintf(text + w, "}}}");
    one.n = w;
    ck_assert_int_eq(outtools_new(&one, 1, &t, NULL), 0);
    ck_assert_int_eq(outtools_param(t, 0, tstr_of("p511"), &mask), OUTTOOLS_MAX_PARAMS - 1);
    ck_assert_uint_eq(mask, OUTTOOLS_NULL);
    ck_assert_int_eq(outtools_param(t, 0, tstr_of("p512"), &mask), -ENOENT); /* as an unknown key */
    ck_assert_uint_eq(outtools_required(t, 0), 2);
    ck_assert(outtools_is_required(t, 0, 1) && !outtools_is_required(t, 0, 3));
    outtools_free(t);
    free(text);
}
END_TEST

/* Every level names the next one twenty times: 20^12 steps without a budget. */
START_TEST(multiplying_references) {
    static char text[1 << 16];
    struct tstr one = {text, 0};
    struct outtools *t;
    unsigned mask;
    size_t w = (size_t)sprintf(text, "{\"name\": \"f\", \"parameters\": {\"d\": {");
    double took;

    for (unsigned i = 0; i < 30; i++) {
        w += (size_t)sprintf(text + w, "%s\"l%u\": {\"anyOf\": [", i ? ", " : "", i);
        for (unsigned k = 0; k < 20; k++)
            w += (size_t)sprintf(text + w, "%s{\"$ref\": \"#/d/l%u\"}", k ? ", " : "", (i + 1) % 30);
        w += (size_t)sprintf(text + w, "]}");
    }
    w += (size_t)sprintf(text + w,
                         "}, \"properties\": {\"a\": {\"$ref\": \"#/d/l0\"}, \"b\": {\"type\": \"null\"}}}}");
    one.n = w;
    took = texttest_now();
    ck_assert_int_eq(outtools_new(&one, 1, &t, NULL), 0);
    took = texttest_now() - took;
    ck_assert_msg(took < 2 * texttest_slow(), "%.1f s", took);
    ck_assert_int_eq(outtools_param(t, 0, tstr_of("a"), &mask), 0);
    ck_assert_uint_eq(mask, OUTTOOLS_ALL);
    outtools_free(t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_outtools");
    TCase *tc = tcase_create("outtools");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 20 * texttest_slow());
    tcase_add_test(tc, masks);
    tcase_add_test(tc, wrong_definitions);
    tcase_add_test(tc, many_parameters_and_required_ones);
    tcase_add_test(tc, multiplying_references);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
