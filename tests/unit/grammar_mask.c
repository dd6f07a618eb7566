/* SPDX-License-Identifier: MIT */
/* Masks of grammars: exactly the tokens whose bytes may follow are let through, for every kind of place a
 * text can be in; a token that may not follow changes nothing; stop ids only at the end, marks never. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gramfix.h"

static void setup(void) {
    gramfix_setup(6000, 7);
}

static struct grammar *compile(const char *schema) {
    struct grammar *g = NULL;
    struct xerr err = {0};

    ck_assert_msg(
        grammar_new_schema(vocab.tables, (struct grammar_text){schema, strlen(schema)}, 0, &g, &err) == 0,
        "%s: %s", schema, err.msg);
    return g;
}

/* The mask is what advancing says, id by id. */
static uint32_t check_mask(const struct grammar *g) {
    uint32_t n = 0;

    grammar_copy(other, state);
    must(grammar_mask(g, work, state, mask, vocab.n_words));
    for (uint32_t id = 0; id < vocab.view.n_tokens; id++) {
        bool has = mask[id / 32] >> id % 32 & 1;
        int r;

        grammar_copy(state, other);
        r = grammar_advance(g, work, state, id);
        if (has != (r >= 0))
            ck_abort_msg("token %u \"%.*s\": mask %d, advance %d", id,
                         (int)(vocab.offsets[id + 1] - vocab.offsets[id]), vocab.bytes + vocab.offsets[id],
                         has, r);
        n += has;
    }
    for (uint32_t id = vocab.view.n_tokens; id < vocab.n_words * 32; id++)
        must(!(mask[id / 32] >> id % 32 & 1));
    grammar_copy(state, other);
    return n;
}

static const struct {
    const char *schema, *text;
} walks[] = {
    {"{\"properties\": {\"the\": {\"type\": \"integer\"}, \"then\": {\"type\": \"string\"}, \"in\": {}}}",
     "{\"the\":1,\"there\":2,\"then\":\"x\",\"a\":[]}"},
    {"{\"anyOf\": [{\"properties\": {\"the\": {\"type\": \"integer\"}}, \"additionalProperties\": false}, "
     "{\"properties\": {\"in\": {\"maxLength\": 3}}, \"additionalProperties\": {\"type\": \"string\"}}]}",
     "{\"in\":\"ab\",\"the\":\"x\"}"},
    {"{}", "{\"a\": [1, -2.5e+3, true, null, \"x\\n\\u00e9\\ud83d\\ude00y\"], \"b\\\"c\": {}}"},
    {"{\"type\": \"string\", \"maxLength\": 12, \"minLength\": 3}",
     "\"the \\u0041n\xc3\xa9\xe4\xb8\xad io\""},
    {"{\"enum\": [\"the\", \"then\", \"there\", \"in\\nto\", 1, 12, 120, true, null, {\"a\": 1}]}",
     "\"then\""},
    {"{\"enum\": [\"the\", \"then\", \"there\", \"in\\nto\", 1, 12, 120, true, null, {\"a\": 1}]}",
     "\"in\\nto\""},
    {"{\"enum\": [\"the\", \"then\", \"there\", \"in\\nto\", 1, 12, 120, true, null, {\"a\": 1}]}", "120"},
    {"{\"type\": \"string\", \"pattern\": \"^[a-z]+ [0-9]{2,3}$\"}", "\"there 123\""},
    {"{\"type\": \"string\", \"pattern\": \"[^x]{2}\"}", "\"\xe4\xb8\xadtheir \\\"q\\\"\""},
    {"{\"type\": \"object\", \"properties\": {\"the\": {\"type\": \"integer\", \"minimum\": -5, \"maximum\": "
     "1000}, "
     "\"then\": {\"anyOf\": [{\"type\": \"string\", \"maxLength\": 5}, {\"type\": \"array\", \"items\": "
     "{\"type\": "
     "\"boolean\"}, \"minItems\": 1, \"maxItems\": 2}]}}, \"required\": [\"the\"], \"additionalProperties\": "
     "false}",
     "{ \"then\" : [true,\n false], \"the\": 999}"},
    {"{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"a\"}, \"x\": {\"type\": "
     "\"number\"}}, "
     "\"required\": [\"kind\", \"x\"], \"additionalProperties\": false}, {\"type\": \"object\", "
     "\"properties\": {\"kind\": "
     "{\"const\": \"b\"}, \"x\": {\"type\": \"string\"}}, \"required\": [\"kind\", \"x\"], "
     "\"additionalProperties\": false}]}",
     "{\"x\":\"the\", \"kind\":\"b\"}"},
    {"{\"$ref\": \"#/$defs/n\", \"$defs\": {\"n\": {\"type\": \"object\", \"properties\": {\"v\": {\"type\": "
     "\"number\"}, "
     "\"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/n\"}, {\"type\": \"null\"}]}}, \"required\": [\"v\"]}}}",
     "{\"v\":0.25,\"next\":{\"v\":-1E2,\"next\":null,\"more\":[[]]}}"},
};

START_TEST(equals_advance) {
    struct grammar *g = compile(walks[_i].schema);
    struct texttest_rng r = {100 + (uint64_t)_i};
    uint32_t ids[512];
    size_t n = gt_pieces(&vocab, &r, walks[_i].text, strlen(walks[_i].text), ids);

    grammar_begin(g, state);
    for (size_t i = 0; i < n; i++) {
        ck_assert(check_mask(g) > 0);
        ck_assert_msg(grammar_advance(g, work, state, ids[i]) == 0, "%s: token %zu of %zu", walks[_i].text, i,
                      n);
    }
    ck_assert(grammar_complete(g, state));
    ck_assert(check_mask(g) >= 2);
    ck_assert_int_eq(grammar_advance(g, work, state, vocab.stops[1]), 1);
    ck_assert(!grammar_mask(g, work, state, mask, vocab.n_words));
    ck_assert_int_eq(grammar_advance(g, work, state, vocab.stops[0]), -EINVAL);
    grammar_free(g);
}
END_TEST

int main(void) {
    Suite *s = suite_create("grammar_mask");
    TCase *tc = tcase_create("masks");
    SRunner *sr;
    int bad;

    tcase_add_checked_fixture(tc, setup, gramfix_teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, equals_advance, 0, sizeof walks / sizeof *walks);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    bad = srunner_ntests_failed(sr);
    srunner_free(sr);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
