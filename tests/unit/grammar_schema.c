/* SPDX-License-Identifier: MIT */
/* JSON schemas as grammars, against a validator of another kind: random schemas, valid documents are let
 * through, invalid ones are not, and whatever a mask lets through ends in a valid document. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gramfix.h"

enum { SCHEMAS = 600, MOST_IDS = 1 << 16 };

static uint32_t ids[MOST_IDS];

static void setup(void) {
    gramfix_setup(4000, 11);
}

/* NULL: outside the limits or (*ret_none) without a finite text. */
static struct grammar *compile(const json_t *schema, bool *ret_none) {
    char *text = json_dumps(schema, 0);
    struct grammar *g = NULL;
    struct xerr err = {0};
    int r = grammar_new_schema(vocab.tables, (struct grammar_text){text, strlen(text)}, 0, &g, &err);

    if (r != 0 && r != -EDOM && r != -E2BIG)
        ck_abort_msg("%s: %s", text, err.msg);
    *ret_none = r == -EDOM;
    free(text);
    return g;
}

/* All of text goes through and may end there. */
static bool accepts(struct texttest_rng *r, const struct grammar *g, const char *text, size_t n) {
    size_t count;

    must(n < MOST_IDS);
    count = gt_pieces(&vocab, r, text, n, ids);
    grammar_begin(g, state);
    for (size_t i = 0; i < count; i++)
        if (grammar_advance(g, work, state, ids[i]) < 0)
            return false;
    return grammar_complete(g, state);
}

START_TEST(valid_and_invalid) {
    struct texttest_rng r = {1000};
    unsigned n_valid = 0, n_invalid = 0, n_grammars = 0;
    bool none;

    for (int i = 0; i < SCHEMAS; i++) {
        json_t *schema = gt_random_schema(&r), *stranger = gt_random_schema(&r);
        struct grammar *g = compile(schema, &none);

        n_grammars += g != NULL;
        for (int k = 0; k < 12; k++) {
            json_t *v = gt_random_value(&r, k % 3 ? schema : stranger);
            bool valid = v && gt_valid(schema, v);
            size_t n;
            char *text;

            if (!v)
                continue;
            text = gt_write(&r, v, 0, &n);
            if (g && accepts(&r, g, text, n) != valid) {
                char *s = json_dumps(schema, 0);

                ck_abort_msg("%d: %s\n%.*s\nis %s", i, s, (int)n, text, valid ? "valid" : "invalid");
            }
            must(!none || !valid);
            n_valid += valid;
            n_invalid += !valid;
            free(text);
            json_decref(v);
        }
        grammar_free(g);
        json_decref(schema);
        json_decref(stranger);
    }
    ck_assert_msg(n_valid > 3000 && n_invalid > 800 && n_grammars > 500, "%u valid, %u invalid, %u grammars",
                  n_valid, n_invalid, n_grammars);
}
END_TEST

struct walk {
    char text[8192];
    size_t n;
};

static bool take(const struct grammar *g, struct walk *w, uint32_t id) {
    uint32_t n = vocab.offsets[id + 1] - vocab.offsets[id];

    if (w->n + n > sizeof w->text || grammar_advance(g, work, state, id) != 0)
        return false;
    memcpy(w->text + w->n, vocab.bytes + vocab.offsets[id], n);
    w->n += n;
    return true;
}

/* All of text, byte by byte, or nothing. */
static bool take_text(const struct grammar *g, struct walk *w, const char *text, size_t n) {
    size_t had = w->n;

    grammar_copy(other, state);
    for (size_t i = 0; i < n; i++)
        if (!take(g, w, gt_token(&vocab, text + i, 1))) {
            grammar_copy(state, other);
            w->n = had;
            return false;
        }
    return true;
}

static bool in_string(const struct walk *w) {
    bool in = false;

    for (size_t i = 0; i < w->n; i++) {
        if (in && w->text[i] == '\\')
            i++;
        else if (w->text[i] == '"')
            in = !in;
    }
    return in;
}

/* A step towards the end: what closes first, then the names schemas ask for, then the shortest values. */
static bool hurry(const struct grammar *g, struct walk *w, struct texttest_rng *r) {
    static const char *const ends[] = {"}", "]"}, *const values[] = {"\"", "0", "1", "null", "true",
                                                                     ":",  ",", "[", "{"};
    char text[64];

    if (in_string(w))
        return take_text(g, w, "\"", 1);
    for (size_t i = 0; i < 2; i++)
        if (take_text(g, w, ends[i], 1))
            return true;
    for (uint32_t i = 0, from = texttest_below(r, 13); i < 13; i++) {
        static const char *const written[] = {"q\\\"", "n\\n"};
        const char *name = gt_name((i + from) % 13);

        name = strcmp(name, "q\"") == 0 ? written[0] : strcmp(name, "n\n") == 0 ? written[1] : name;
        snprintf(text, sizeof text, ",\"%s\":", name);
        if (take_text(g, w, text + 1, strlen(text) - 1) || take_text(g, w, text, strlen(text)))
            return true;
    }
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (take_text(g, w, values[i], strlen(values[i])))
            return true;
    return false;
}

static bool any_token(const struct grammar *g, struct walk *w, struct texttest_rng *r) {
    uint32_t n = 0, id = UINT32_MAX;

    for (uint32_t i = 0; i < vocab.mark0; i++)
        if (mask[i / 32] >> i % 32 & 1 && texttest_below(r, ++n) == 0)
            id = i;
    return id != UINT32_MAX && take(g, w, id);
}

START_TEST(walks_end_valid) {
    struct texttest_rng r = {2000};
    unsigned n_walks = 0, n_long = 0, n_copies = 0;
    bool none;

    for (int i = 0; i < SCHEMAS; i++) {
        json_t *schema = gt_random_schema(&r), *v;
        struct grammar *g = compile(schema, &none);
        struct walk w = {.n = 0};
        uint32_t budget = 5 + texttest_below(&r, 40), steps;
        bool ended = false;

        if (g)
            grammar_begin(g, state);
        for (steps = 0; g && !ended && steps < 400 && w.n < 6000; steps++) {
            bool any = grammar_mask(g, work, state, mask, vocab.n_words);

            /* never a dead end */
            if (!any)
                ck_abort_msg("schema %d: nothing may follow %.*s", i, (int)w.n, w.text);
            if (grammar_complete(g, state) && (steps > budget || texttest_below(&r, 3) == 0))
                ended = grammar_advance(g, work, state, vocab.stops[0]) == 1;
            else if (steps <= budget || !hurry(g, &w, &r))
                must(any_token(g, &w, &r) || grammar_complete(g, state));
        }
        if (ended) {
            v = gt_read(w.text, w.n);
            if (!v || !gt_valid(schema, v)) {
                char *s = json_dumps(schema, 0);

                ck_abort_msg("%d: %s\nlet through: %.*s", i, s, (int)w.n, w.text);
            }
            n_walks++;
            n_long += steps > 20;
            json_decref(v);
        }
        n_copies += g && !ended;
        grammar_free(g);
        json_decref(schema);
    }
    ck_assert_msg(n_walks > 450 && n_long > 100 && n_copies < 40, "%u walks, %u long, %u without an end",
                  n_walks, n_long, n_copies);
}
END_TEST

/* Any escape, any blank, where the schema fixes nothing. */
START_TEST(free_text) {
    struct texttest_rng r = {3000};
    struct grammar *g = NULL;

    ck_assert_int_eq(grammar_new_schema(vocab.tables, (struct grammar_text){0}, 0, &g, NULL), 0);
    for (int i = 0; i < 400; i++) {
        json_t *schema = json_object(), *v = gt_random_value(&r, schema);
        size_t n;
        char *text = v ? gt_write(&r, v, 20, &n) : NULL;

        if (v && accepts(&r, g, text, n) != json_is_object(v))
            ck_abort_msg("%.*s", (int)n, text);
        free(text);
        json_decref(v);
        json_decref(schema);
    }
    grammar_free(g);
}
END_TEST

int main(void) {
    Suite *s = suite_create("grammar_schema");
    TCase *tc = tcase_create("documents");
    SRunner *sr;
    int bad;

    tcase_add_checked_fixture(tc, setup, gramfix_teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, valid_and_invalid);
    tcase_add_test(tc, walks_end_valid);
    tcase_add_test(tc, free_text);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    bad = srunner_ntests_failed(sr);
    srunner_free(sr);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
