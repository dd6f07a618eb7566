/* SPDX-License-Identifier: MIT */
/* Masks of grammars: exactly the tokens whose bytes may follow are let through, for every kind of place a
 * text can be in; a token that may not follow changes nothing; stop ids only at the end, marks never. A mask that
 * would take too many steps lets through shorter tokens alone, all of them, whatever the schema. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gramfix.h"
#include "grampriv.h"

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
    {"{\"anyOf\": [{\"type\": \"string\", \"minLength\": 5}, {\"type\": \"string\", \"maxLength\": 3}, {\"pattern\": "
     "\"^the[a-z ]*$\"}, {\"enum\": [\"then\", \"their \\\"x\"]}]}",
     "\"their \\\"x\""},
    {"{\"items\": {\"anyOf\": [{\"type\": \"object\", \"properties\": {\"the\": {\"type\": \"string\", "
     "\"minLength\": 4}}}, {\"type\": \"object\", \"properties\": {\"the\": {\"type\": \"string\", \"maxLength\": 2}, "
     "\"in\": {}}, "
     "\"additionalProperties\": false}, {\"type\": \"string\", \"minLength\": 3, \"maxLength\": 30}]}}",
     "[{\"the\":\"a\\n\",\"in\":[]},{\"the\":\"their \\ud83d\\ude00 \"},\"x\\ty\\\\\"]"},
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

static struct grammar *hard(size_t i) {
    char *text = gt_hard_schema(&vocab, i);
    struct grammar *g = compile(text);

    free(text);
    return g;
}

static bool wander(const struct grammar *g, struct texttest_rng *r) {
    uint32_t id = gt_pick(&vocab, r, mask);

    return id != UINT32_MAX && grammar_advance(g, work, state, id) == 0;
}

/* On ways that their own masks lead: random schemas, and those that were made to be slow. */
START_TEST(equals_advance_anywhere) {
    struct texttest_rng r = {5};

    for (size_t i = 0; gt_hard_name(i); i++) {
        struct grammar *g = hard(i);

        grammar_begin(g, state);
        for (int k = 0; k < 16; k++) {
            check_mask(g);
            if (grammar_mask_was_cut(work) || !wander(g, &r))
                break;
        }
        grammar_free(g);
    }
    for (int i = 0; i < 60; i++) {
        json_t *schema = gt_random_schema(&r);
        char *text = json_dumps(schema, 0);
        struct grammar *g = NULL;

        if (grammar_new_schema(vocab.tables, (struct grammar_text){text, strlen(text)}, 0, &g, NULL) == 0) {
            grammar_begin(g, state);
            for (int k = 0; k < 8; k++) {
                check_mask(g);
                ck_assert_msg(!grammar_mask_was_cut(work), "%s", text);
                if (!wander(g, &r))
                    break;
            }
        }
        grammar_free(g);
        free(text);
        json_decref(schema);
    }
}
END_TEST

/* What a mask without a bound says, of tokens with so many bytes at most. */
static void shorter(const struct grammar *g, uint32_t bytes, uint32_t *ret) {
    grammar_mask(g, work, state, ret, vocab.n_words);
    ck_assert(!grammar_mask_was_cut(work));
    for (uint32_t id = 0; id < vocab.mark0; id++)
        if (vocab.offsets[id + 1] - vocab.offsets[id] > bytes)
            ret[id / 32] &= ~(UINT32_C(1) << id % 32);
}

static void check_bound(const struct grammar *g, const char *name, int64_t steps, bool lists) {
    uint32_t *want = calloc(vocab.n_words, sizeof *want), *whole = calloc(vocab.n_words, sizeof *whole);
    uint32_t *again = calloc(vocab.n_words, sizeof *again), bytes;

    ck_assert(want && whole && again);
    work->steps = INT64_MAX / 2;
    shorter(g, GRAMMAR_MAX_TOKEN_BYTES, whole);
    work->steps = steps;
    grammar_mask(g, work, state, mask, vocab.n_words);
    bytes = grammar_mask_was_cut(work) ? work->most_bytes : GRAMMAR_MAX_TOKEN_BYTES;
    ck_assert(bytes == GRAMMAR_MAX_TOKEN_BYTES || bytes == 4 || bytes == 1);
    /* the last try has no bound of its own, and needs none */
    ck_assert_msg(bytes > 1 || INT64_MAX - work->left < GRAM_STEPS / 2, "%s: %lld steps", name,
                  (long long)(INT64_MAX - work->left));
    grammar_mask(g, work, state, again, vocab.n_words);
    ck_assert_msg(memcmp(mask, again, vocab.n_words * sizeof *mask) == 0, "%s: another mask", name);
    work->steps = INT64_MAX / 2;
    shorter(g, bytes, want);
    for (uint32_t i = 0; i < vocab.n_words; i++)
        ck_assert_msg(!(mask[i] & ~whole[i]) && !(want[i] & ~mask[i]) && (!lists || mask[i] == want[i]),
                      "%s: %lld steps, tokens of %u bytes: %08x, of all %08x, word %u is %08x", name,
                      (long long)steps, bytes, want[i], whole[i], i, mask[i]);
    work->steps = GRAM_STEPS;
    memcpy(mask, whole, vocab.n_words * sizeof *mask);
    free(want);
    free(whole);
    free(again);
}

START_TEST(steps_bound_a_mask) {
    static const int64_t steps[] = {0, 300, 2000, 9000, 40000, GRAM_STEPS};
    struct texttest_rng r = {9};
    unsigned n_cut = 0;

    for (size_t i = 0; gt_hard_name(i); i++) {
        struct grammar *g = hard(i);

        for (int walk = 0; walk < 4; walk++) {
            grammar_begin(g, state);
            for (int k = 0; k < 20; k++) {
                for (size_t x = 0; x < sizeof steps / sizeof *steps; x++)
                    check_bound(g, gt_hard_name(i), steps[x], false);
                work->steps = 300;
                grammar_mask(g, work, state, mask, vocab.n_words);
                n_cut += grammar_mask_was_cut(work);
                work->steps = GRAM_STEPS;
                if (!wander(g, &r))
                    break;
            }
        }
        grammar_free(g);
    }
    ck_assert_uint_gt(n_cut, 200);
}
END_TEST

/* What the first try found is thrown away: nothing favours the tokens that it came to first. */
START_TEST(a_cut_mask_is_even) {
    struct grammar *g = compile("{\"enum\": [\"the\", \"then there\", \"in their\", \"to the\", \"and\", \"onto\"]}");

    grammar_begin(g, state);
    for (int64_t steps = 0; steps < 6000; steps += 50)
        check_bound(g, "enum", steps, true);
    ck_assert_int_eq(grammar_advance(g, work, state, gt_token(&vocab, "\"", 1)), 0);
    for (int64_t steps = 0; steps < 6000; steps += 50)
        check_bound(g, "enum", steps, true);
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
    tcase_add_test(tc, equals_advance_anywhere);
    tcase_add_test(tc, steps_bound_a_mask);
    tcase_add_test(tc, a_cut_mask_is_even);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    bad = srunner_ntests_failed(sr);
    srunner_free(sr);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
