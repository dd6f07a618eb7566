/* SPDX-License-Identifier: MIT */
/* Calls of tools as grammars: names, arguments once each, required ones always, values as their schemas say;
 * masks are what advancing says, and random walks end in complete calls. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gramfix.h"

static void setup(void) {
    gramfix_setup(3000, 17);
}

static const char *const tools[] = {
    "{\"name\": \"move\", \"parameters\": {\"properties\": {\"steps\": {\"type\": \"integer\", \"minimum\": "
    "1}, \"where\": "
    "{\"enum\": [\"left\", \"right\", \"le\"]}, \"why\": {\"type\": \"string\"}}, \"required\": "
    "[\"steps\"]}}",
    "{\"type\": \"function\", \"function\": {\"name\": \"mov\", \"parameters\": {\"type\": \"object\"}}}",
    "{\"name\": \"odd\", \"input_schema\": {\"properties\": {\"x\": {\"type\": \"array\", \"contains\": "
    "{\"not\": 3}}, \"y\": "
    "{\"type\": \"string\", \"format\": \"uri\", \"propertyNames\": {}}, \"z\": {\"$ref\": \"#/$defs/p\"}}, "
    "\"$defs\": {\"p\": "
    "{\"type\": \"object\", \"properties\": {\"q\": {\"$ref\": \"#/$defs/p\"}}, \"additionalProperties\": "
    "false}}, "
    "\"required\": [\"x\", \"z\"]}}",
};

static struct grammar *compile(enum grammar_calls how, int only, bool many) {
    struct grammar_text t[3];
    struct grammar *g = NULL;
    struct xerr err = {0};

    for (int i = 0; i < 3; i++)
        t[i] = (struct grammar_text){tools[i], strlen(tools[i])};
    ck_assert_msg(grammar_new_calls(vocab.tables, t, 3, how, only, many, 0, &g, &err) == 0, "%s", err.msg);
    grammar_begin(g, state);
    return g;
}

/* Text with marks: ( ) for a call, k K for a key, v V for a value; ! a stop id. Returns how many characters
 * went through. */
static size_t feed(const struct grammar *g, const char *text) {
    static const struct {
        char c;
        uint32_t mark;
    } marks[] = {{'(', GT_CALL},  {')', GT_CALL_END},  {'<', GT_KEY},  {'>', GT_KEY_END},
                 {'^', GT_VALUE}, {'$', GT_VALUE_END}, {'!', GT_STOP}, {'?', GT_OTHER_MARK}};
    size_t n = 0;

    for (; text[n]; n++) {
        uint32_t id = gt_token(&vocab, text + n, 1);

        for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
            if (text[n] == marks[k].c)
                id = vocab.mark0 + marks[k].mark;
        if (grammar_advance(g, work, state, id) < 0)
            break;
    }
    return n;
}

static const struct {
    const char *text;
    int only;
    bool auto_calls, one;
    const char *stops_at; /* what is left when it is refused; "" when all goes through */
} cases[] = {
    {"(move<steps>^12$)!", -1, false, false, ""},
    {" \n(move<where>^left$<steps>^3$)!", -1, false, false, ""},
    {"(mov)!", -1, false, false, ""},
    {"(mov)\n(move<steps>^1$)!", -1, false, false, ""},
    {"(mov)(mov)!", -1, false, true, "(mov)!"},
    {"!", -1, false, false, "!"},
    {"x", -1, false, false, "x"},
    {"x\n\"{ (mov)!", -1, true, false, ""},
    {"just text!", -1, true, false, ""},
    {"(mov)x", -1, true, false, "x"},
    {"(move)!", -1, false, false, ")!"},
    {"(move<where>^le$)", -1, false, false, ")"},
    {"(move<where>^lef$", -1, false, false, "$"},
    {"(move<steps>^0", -1, false, false, "0"},
    {"(move<steps>^-", -1, false, false, "-"},
    {"(move<steps>^2$<ste", -1, false, false, "ste"},
    {"(move<steps>$", -1, false, false, "$"},
    {"(move<steps>^$", -1, false, false, "$"},
    {"(move<why>^any \"text\" {\xc3\xa9\n$<steps>^1$)!", -1, false, false, ""},
    {"(move<why>^?", -1, false, false, "?"},
    {"(move<why>^\xc3$", -1, false, false, "$"},
    {"(moved", -1, false, false, "d"},
    {"(m<", -1, false, false, "<"},
    {"(mov<", -1, false, false, "<"},
    {"(mov", 0, false, false, ""},
    {"(mov)", 0, false, false, ")"},
    {"(odd", 1, false, false, "odd"},
    {"(odd<x>^[1, {\"a\": null}]$<z>^{\"q\": {\"q\": {}}}$<y>^{$)!", -1, false, false, ""},
    {"(odd<x>^{", -1, false, false, "{"},
    {"(odd<z>^{\"p", -1, false, false, "p"},
};

START_TEST(calls) {
    struct grammar *g = compile(cases[_i].auto_calls ? GRAMMAR_CALLS_AUTO : GRAMMAR_CALLS_REQUIRED,
                                cases[_i].only, !cases[_i].one);
    size_t n = feed(g, cases[_i].text);

    ck_assert_msg(strcmp(cases[_i].text + n, cases[_i].stops_at) == 0, "%s: left \"%s\", expected \"%s\"",
                  cases[_i].text, cases[_i].text + n, cases[_i].stops_at);
    grammar_free(g);
}
END_TEST

START_TEST(masks_and_walks) {
    struct texttest_rng r = {5000};
    unsigned ended = 0;

    for (int round = 0; round < 60; round++) {
        struct grammar *g =
            compile(round % 3 ? GRAMMAR_CALLS_REQUIRED : GRAMMAR_CALLS_AUTO, round % 5 ? -1 : 0, round % 2);
        bool done = false;

        for (int steps = 0; !done && steps < 150; steps++) {
            uint32_t pick = UINT32_MAX, n = 0, n_marks = 0, mark = UINT32_MAX;

            must(grammar_mask(g, work, state, mask, vocab.n_words));
            grammar_copy(other, state);
            for (uint32_t id = 0; id < vocab.view.n_tokens; id++) {
                bool has = mask[id / 32] >> id % 32 & 1;

                if (steps % 8 == 0) {
                    int got = grammar_advance(g, work, state, id);

                    if (has != (got >= 0))
                        ck_abort_msg("round %d, step %d, token %u: mask %d, advance %d", round, steps, id,
                                     has, got);
                    grammar_copy(state, other);
                }
                if (has && texttest_below(&r, ++n) == 0)
                    pick = id;
                if (has && id >= vocab.mark0 && texttest_below(&r, ++n_marks) == 0)
                    mark = id;
            }
            pick = mark != UINT32_MAX && texttest_below(&r, 3) ? mark : pick;
            done = grammar_advance(g, work, state, pick) == 1;
        }
        ended += done;
        grammar_free(g);
    }
    ck_assert_uint_ge(ended, 40);
}
END_TEST

/* A parameter outside the subset takes whatever its types admit; a list is never refused for it. */
START_TEST(degraded) {
    static const char *const odd[] = {"{\"not\": {}}",
                                      "{\"type\": \"boolean\", \"if\": true}",
                                      "3",
                                      "{\"$ref\": \"#/nowhere\"}",
                                      "{\"$ref\": \"#/properties/p\"}",
                                      "false",
                                      "{\"type\": \"array\", \"items\": {\"unevaluatedItems\": 1}}"};
    static const char *const takes[] = {"any text", "true", "text", "text", "text", "text", "[{}]"};
    char tool[256], call[64];

    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        struct grammar_text t = {tool, 0};
        struct grammar *g = NULL;
        struct xerr err = {0};

        t.n = (size_t)snprintf(tool, sizeof tool,
                               "{\"name\": \"f\", \"parameters\": {\"properties\": {\"p\": %s}}}", odd[i]);
        ck_assert_msg(grammar_new_calls(vocab.tables, &t, 1, GRAMMAR_CALLS_REQUIRED, -1, true, 0, &g, &err) ==
                          0,
                      "%s: %s", odd[i], err.msg);
        grammar_begin(g, state);
        snprintf(call, sizeof call, "(f<p>^%s$)!", takes[i]);
        ck_assert_msg(feed(g, call) == strlen(call), "%s: %s", odd[i], call + feed(g, call));
        grammar_free(g);
    }
    struct grammar *g;
    struct xerr err;
    struct grammar_text none = {"{}", 2};
    ck_assert_int_eq(grammar_new_calls(vocab.tables, NULL, 0, GRAMMAR_CALLS_AUTO, -1, true, 0, &g, &err),
                     -EINVAL);
    ck_assert_int_lt(grammar_new_calls(vocab.tables, &none, 1, GRAMMAR_CALLS_AUTO, -1, true, 0, &g, &err), 0);
}
END_TEST

int main(void) {
    Suite *s = suite_create("grammar_calls");
    TCase *tc = tcase_create("calls");
    SRunner *sr;
    int bad;

    tcase_add_checked_fixture(tc, setup, gramfix_teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, calls, 0, sizeof cases / sizeof *cases);
    tcase_add_test(tc, masks_and_walks);
    tcase_add_test(tc, degraded);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    bad = srunner_ntests_failed(sr);
    srunner_free(sr);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
