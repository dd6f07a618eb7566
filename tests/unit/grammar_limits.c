/* SPDX-License-Identifier: MIT */
/* Bounds of grammars: what is outside the subset is refused with its place, what would take too much time or
 * memory is refused soon, blanks and nesting end, and many threads may share one grammar. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gramfix.h"
#include "tbuf.h"

static struct tbuf text;

static void setup(void) {
    gramfix_setup(3000, 13);
    tbuf_init(&text, 4 << 20);
}

static void teardown(void) {
    tbuf_done(&text);
    gramfix_teardown();
}

static int compile(const char *schema, size_t n, struct grammar **ret, struct xerr *err) {
    *ret = NULL;
    return grammar_new_schema(vocab.tables, (struct grammar_text){schema, n}, 0, ret, err);
}

static const struct {
    const char *schema;
    int code;
    const char *says;
} refused[] = {
    {"", -EINVAL, "at its byte 0"},
    {"{\"a\": }", -EINVAL, "at its byte 6: no JSON value"},
    {"{\"a\": \"\xff\"}", -EILSEQ, "invalid UTF-8"},
    {"3", -EINVAL, "its top: expected a schema"},
    {"false", -EDOM, "nothing satisfies false"},
    {"{\"not\": {}}", -EOPNOTSUPP, "at /not: the keyword \"not\" is outside"},
    {"{\"properties\": {\"x\": {\"if\": true}}}", -EOPNOTSUPP, "at /properties/x/if: "},
    {"{\"anyOf\": [{}, {\"items\": {\"patternProperties\": {}}}]}", -EOPNOTSUPP,
     "at /anyOf/1/items/patternProperties: "},
    {"{\"type\": \"text\"}", -EINVAL, "at /type: found \"text\", expected the name of a JSON type"},
    {"{\"type\": [\"null\", 3]}", -EINVAL, "at /type/1: found 3"},
    {"{\"type\": \"object\", \"anyOf\": [{}]}", -EOPNOTSUPP, "at /type: beside"},
    {"{\"$ref\": \"#/$defs/x\", \"minLength\": 3, \"$defs\": {\"x\": {}}}", -EOPNOTSUPP,
     "at /minLength: beside"},
    {"{\"$ref\": \"#/$defs/y\"}", -EINVAL, "at /$ref: found \"#/$defs/y\", expected"},
    {"{\"$ref\": \"other.json\"}", -EINVAL, "at /$ref: found \"other.json\""},
    {"{\"anyOf\": []}", -EINVAL, "at /anyOf: expected a list of at least one schema"},
    {"{\"allOf\": [{}, {}]}", -EOPNOTSUPP, "at /allOf: allOf is possible with exactly one"},
    {"{\"enum\": 3}", -EINVAL, "at /enum: expected a list"},
    {"{\"enum\": [\"a\"], \"minLength\": 2}", -EOPNOTSUPP, "at /minLength: beside enum"},
    {"{\"minLength\": -1}", -EINVAL, "at /minLength: found -1, expected a whole number"},
    {"{\"maxItems\": 1.5}", -EINVAL, "at /maxItems: found 1.5"},
    {"{\"minimum\": 0.5}", -EOPNOTSUPP, "at /minimum: found 0.5, expected a whole number"},
    {"{\"exclusiveMaximum\": true}", -EOPNOTSUPP, "at /exclusiveMaximum: found true"},
    {"{\"type\": \"array\", \"uniqueItems\": true}", -EOPNOTSUPP, "at /uniqueItems: "},
    {"{\"properties\": [1]}", -EINVAL, "at /properties: expected an object"},
    {"{\"required\": [3]}", -EINVAL, "at /required/0: expected a name"},
    {"{\"pattern\": \"a(?=b)\"}", -EOPNOTSUPP,
     "at /pattern: the regular expression, at its byte 3: looking ahead"},
    {"{\"pattern\": \"(a\"}", -EOPNOTSUPP, "( without )"},
    {"{\"pattern\": \"a)\"}", -EOPNOTSUPP, ") without ("},
    {"{\"pattern\": \"[a\"}", -EOPNOTSUPP, "[ without ]"},
    {"{\"pattern\": \"\\\\bx\"}", -EOPNOTSUPP, "this escape"},
    {"{\"pattern\": \"(a)\\\\1\"}", -EOPNOTSUPP, "this escape"},
    {"{\"pattern\": \"*\"}", -EOPNOTSUPP, "nothing to repeat"},
    {"{\"pattern\": \"a{2,1}\"}", -EOPNOTSUPP, "the wrong way round"},
    {"{\"pattern\": \"a{20000}\"}", -EOPNOTSUPP, "a count above"},
    {"{\"pattern\": \"(a{5000}){5000}\"}", -E2BIG, "too large"},
    {"{\"pattern\": \"^(a|b)*a(a|b){14}$\"}", -E2BIG, "states"},
    {"{\"type\": \"string\", \"pattern\": \"a^b\"}", -EDOM, "no finite text"},
    {"{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", -EDOM, "no finite text"},
    {"{\"type\": \"integer\", \"exclusiveMinimum\": 3, \"exclusiveMaximum\": 4}", -EDOM, "no finite text"},
    {"{\"type\": \"array\", \"items\": false, \"minItems\": 1}", -EDOM, "no finite text"},
    {"{\"enum\": [1, 2], \"type\": \"string\"}", -EDOM, "no finite text"},
    {"{\"$ref\": \"#\"}", -EDOM, "no finite text"},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}", -EDOM,
     "no finite text"},
    {"{\"type\": \"object\", \"required\": [\"a\"], \"additionalProperties\": false}", -EDOM,
     "no finite text"},
};

START_TEST(refusals_say_where) {
    struct xerr err = {0};
    struct grammar *g;

    ck_assert_int_eq(compile(refused[_i].schema, strlen(refused[_i].schema), &g, &err), refused[_i].code);
    ck_assert_msg(strstr(err.msg, refused[_i].says) != NULL, "%s\n%s\nshould say %s", refused[_i].schema,
                  err.msg, refused[_i].says);
    ck_assert(strncmp(err.msg, "response schema", 15) == 0 && !g && err.code == refused[_i].code);
    ck_assert_int_eq(compile(refused[_i].schema, strlen(refused[_i].schema), &g, NULL), refused[_i].code);
}
END_TEST

/* Schemas that cost much: each is compiled or refused, soon and in bounded memory. */
static void nested(unsigned n, const char *open, const char *close) {
    for (unsigned i = 0; i < n; i++)
        tbuf_puts(&text, open);
    tbuf_puts(&text, "true");
    for (unsigned i = 0; i < n; i++)
        tbuf_puts(&text, close);
}

static void doubling(unsigned n) {
    char one[256];

    tbuf_puts(&text, "{\"$ref\": \"#/$defs/n0\", \"$defs\": {");
    for (unsigned i = 0; i < n; i++) {
        snprintf(one, sizeof one,
                 "\"n%u\": {\"anyOf\": [{\"$ref\": \"#/$defs/n%u\"}, {\"properties\": {\"a\": {\"$ref\": "
                 "\"#/$defs/n%u\"}}}, "
                 "{\"$ref\": \"#/$defs/n%u\"}]},",
                 i, i + 1, i + 1, i + 1);
        tbuf_puts(&text, one);
    }
    snprintf(one, sizeof one, "\"n%u\": {\"type\": \"string\"}}}", n);
    tbuf_puts(&text, one);
}

/* one, n times, with its number in place of each @ */
static void listed(unsigned n, const char *before, const char *one, const char *after) {
    char number[16];

    tbuf_puts(&text, before);
    for (unsigned i = 0; i < n; i++) {
        snprintf(number, sizeof number, "%u", i);
        tbuf_puts(&text, i ? "," : "");
        for (const char *p = one; *p; p++) {
            if (*p == '@')
                tbuf_puts(&text, number);
            else
                tbuf_putc(&text, *p);
        }
    }
    tbuf_puts(&text, after);
}

static const struct {
    int code;
    const char *says;
} costly[] = {
    {0, NULL},                   /* 0: 30 levels of arrays */
    {-E2BIG, "nested too deep"}, /* 1: 200 */
    {0, NULL},                   /* 2: every level refers twice to the next */
    {-E2BIG, "side by side"},    /* 3: the same, but each level begins alike */
    {0, NULL},                   /* 4: 4096 strings */
    {-E2BIG, "4096"},            /* 5: 5000 */
    {0, NULL},                   /* 6: 128 members */
    {-E2BIG, "128"},             /* 7: 129 */
    {0, NULL},                   /* 8: 32 objects that begin alike */
    {-E2BIG, "32 alternatives"}, /* 9: 33 */
    {-E2BIG, "work"},            /* 10: references over a large document */
    {-E2BIG, "bytes"},           /* 11: too large */
    {-E2BIG, "states"},          /* 12: counted repeats of anything */
    {0, NULL},                   /* 13: 1000 constants side by side are one list */
    {-E2BIG, "nests"},           /* 14: must nest deeper than is possible */
    {-E2BIG, "work"},            /* 15: patterns, each with many tokens to look at */
};

static void make_costly(int i) {
    switch (i) {
    case 0:
        nested(30, "{\"type\": \"array\", \"items\": ", "}");
        break;
    case 1:
        nested(200, "{\"items\": ", "}");
        break;
    case 2:
    case 3:
        doubling(i == 2 ? 12 : 60);
        break;
    case 4:
    case 5:
        listed(i == 4 ? 4096 : 5000, "{\"enum\": [", "\"item number @ of many\"", "]}");
        break;
    case 6:
    case 7:
        listed(i == 6 ? 128 : 129, "{\"type\": \"object\", \"properties\": {",
               "\"member@\": {\"type\": \"null\"}", "}}");
        break;
    case 8:
    case 9:
        listed(i == 8 ? 32 : 33, "{\"anyOf\": [",
               "{\"type\": \"object\", \"properties\": {\"k\": {\"const\": @}}}", "]}");
        break;
    case 10:
        listed(4000, "{\"anyOf\": [", "{\"$ref\": \"#/$defs/x@\"}", "], \"$defs\": {");
        listed(4000, "", "\"x@\": {\"const\": @}", "}}");
        break;
    case 11:
        listed(20000, "{\"enum\": [", "\"item number @ of many\"", "]}");
        break;
    case 12:
        tbuf_puts(&text, "{\"type\": \"string\", \"pattern\": \"^[ -?A-~]{1,2000}$\"}");
        break;
    case 13:
        listed(1000, "{\"anyOf\": [", "{\"const\": \"value @\"}", "]}");
        break;
    case 15:
        listed(1500, "{\"prefixItems\": [", "{\"pattern\": \"^[ -~]{0,60}$\"}", "]}");
        break;
    default: /* 32 arrays side by side leave 8 levels, ten are asked for */
        listed(32, "{\"type\": \"array\", \"minItems\": 2, \"items\": false, \"prefixItems\": [{\"anyOf\": [",
               "{\"type\": \"array\", \"items\": {\"const\": @}}", "]},");
        nested(10, "{\"type\": \"array\", \"minItems\": 1, \"items\": ", "}");
        tbuf_puts(&text, "]}");
        break;
    }
}

START_TEST(costly_schemas) {
    double begin = texttest_now();
    struct xerr err = {0};
    struct grammar *g;
    int r;

    make_costly(_i);
    ck_assert_int_eq(text.err, 0);
    r = compile(text.p, text.n, &g, &err);
    ck_assert_msg(r == costly[_i].code && (r == 0 || strstr(err.msg, costly[_i].says)), "%d, %s", r, err.msg);
    ck_assert_msg(texttest_now() - begin < 2.0 * texttest_slow(), "%f s", texttest_now() - begin);
    if (r == 0) {
        ck_assert_uint_le(grammar_bytes(g), GRAMMAR_DEFAULT_BYTES);
        grammar_begin(g, state);
        ck_assert(grammar_mask(g, work, state, mask, vocab.n_words));
    }
    grammar_free(g);
}
END_TEST

START_TEST(memory_is_bounded) {
    struct grammar *g = NULL;
    struct xerr err;

    make_costly(4);
    ck_assert_int_eq(
        grammar_new_schema(vocab.tables, (struct grammar_text){text.p, text.n}, 100000, &g, &err), -E2BIG);
    ck_assert_msg(strstr(err.msg, "100000 bytes") && !g, "%s", err.msg);
}
END_TEST

static bool feed(const struct grammar *g, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (grammar_advance(g, work, state, gt_token(&vocab, bytes + i, 1)) != 0)
            return false;
    return true;
}

START_TEST(blanks_and_nesting_end) {
    struct grammar *g;
    char many[40];

    memset(many, ' ', sizeof many);
    ck_assert_int_eq(compile("{}", 2, &g, NULL), 0);
    static const char *const before[] = {"",          "{", "{\"a\"", "{\"a\":", "{\"a\":1",
                                         "{\"a\":1,", "[", "[1",     "[1,"};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        grammar_begin(g, state);
        ck_assert(feed(g, before[i], strlen(before[i])));
        ck_assert(feed(g, many, 32));
        ck_assert(!feed(g, many, 1));
    }
    grammar_begin(g, state);
    ck_assert(feed(g, "[1]", 3) && !feed(g, " ", 1) && grammar_complete(g, state));
    /* 64 levels, and each can be closed */
    grammar_begin(g, state);
    for (unsigned i = 0; i < 64; i++)
        ck_assert(feed(g, "[", 1));
    ck_assert(!feed(g, "[", 1) && !feed(g, "{", 1) && feed(g, "1", 1));
    for (unsigned i = 0; i < 64; i++)
        ck_assert(feed(g, "]", 1));
    ck_assert(grammar_complete(g, state));
    grammar_free(g);
}
END_TEST

START_TEST(declared_members_come_once) {
    static const char schema[] = "{\"properties\": {\"a\": {}, \"ab\": {}}}";
    struct grammar *g;

    ck_assert_int_eq(compile(schema, sizeof schema - 1, &g, NULL), 0);
    grammar_begin(g, state);
    ck_assert(feed(g, "{\"a\":1,\"x\":2,\"x\":3,\"ab\":4,\"a", 28));
    ck_assert(!feed(g, "\"", 1) && feed(g, "c\":5}", 5) && grammar_complete(g, state));
    /* an escape does not hide the name */
    grammar_begin(g, state);
    ck_assert(feed(g, "{\"a\":1,\"\\u0061", 14) && !feed(g, "\"", 1));
    grammar_free(g);
}
END_TEST

START_TEST(utf8_and_surrogates) {
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {"\"\xc3\xa9\"", true},
        {"\"\xc3\"", false},
        {"\"\xa9\"", false},
        {"\"\xed\xa0\x80\"", false},
        {"\"\xf4\x90\x80\x80\"", false},
        {"\"\xc0\x80\"", false},
        {"\"\\ud83d\\ude00\"", true},
        {"\"\\ud83d\"", false},
        {"\"\\ud83dx\"", false},
        {"\"\\ude00\"", false},
        {"\"\\ud83d\\u0041\"", false},
        {"\"\\ud83d\\ud83d\"", false},
        {"\"\n\"", false},
        {"\"\\q\"", false},
        {"\"\\u00g0\"", false},
        {"\"\\u0000\"", true},
        {"{\"\\u0000\":1}", false},
        {"01", false},
        {"-", false},
        {"1.", false},
        {"1e+", false},
        {"NaN", false},
        {"tru", false},
        {"[1,]", false},
        {"{\"a\":1,}", false},
        {"{a:1}", false},
        {"[1 2]", false},
    };
    struct grammar *g;

    ck_assert_int_eq(compile("{}", 2, &g, NULL), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        grammar_begin(g, state);
        ck_assert_msg((feed(g, cases[i].text, strlen(cases[i].text)) && grammar_complete(g, state)) ==
                          cases[i].good,
                      "%s", cases[i].text);
    }
    grammar_free(g);
}
END_TEST

/* A state is flat memory: what was copied goes on as if nothing had happened to the other. */
START_TEST(states_are_copies) {
    static const char doc[] = "{\"a\": [{\"b\": [1, {\"c\": \"x\\u00e9\"}]}, null], \"d\": {\"a\": true}}";
    struct grammar_state *kept = malloc(grammar_state_bytes());
    struct grammar *g;

    ck_assert(kept);
    ck_assert_int_eq(compile("{}", 2, &g, NULL), 0);
    grammar_begin(g, state);
    for (size_t i = 0; i + 1 < sizeof doc; i++) {
        static const char *const drafts[] = {"]]}", "\"zz\": [[[[", "}", "{\"a\":{\"b\":{\"c\":[1,2,3",
                                             "5",   "\"\"]}"};

        grammar_copy(kept, state);
        for (size_t k = 0; k < sizeof drafts / sizeof *drafts; k++) {
            feed(g, drafts[k], strlen(drafts[k]));
            grammar_copy(state, kept);
        }
        ck_assert_msg(feed(g, doc + i, 1), "byte %zu", i);
    }
    ck_assert(grammar_complete(g, state));
    grammar_free(g);
    free(kept);
}
END_TEST

static struct grammar *shared;

static void *one_thread(void *ret) {
    static const char doc[] = "{\"name\": \"the end\", \"list\": [1, 2, 3], \"when\": \"2026-11-30\"}";
    struct grammar_work *w = NULL;
    struct grammar_state *s = malloc(grammar_state_bytes());
    uint32_t *m = calloc(vocab.n_words, sizeof *m);
    uint64_t h = 1;

    if (!s || !m || grammar_work_new(&w) < 0)
        return NULL;
    for (int round = 0; round < 5; round++) {
        grammar_begin(shared, s);
        for (size_t i = 0; i + 1 < sizeof doc; i++) {
            grammar_mask(shared, w, s, m, vocab.n_words);
            for (uint32_t k = 0; k < vocab.n_words; k++)
                h = (h ^ m[k]) * UINT64_C(0x100000001b3);
            h += (uint64_t)(grammar_advance(shared, w, s, gt_token(&vocab, doc + i, 1)) == 0);
        }
        h += grammar_complete(shared, s);
    }
    grammar_work_free(w);
    free(s);
    free(m);
    *(uint64_t *)ret = h;
    return ret;
}

START_TEST(threads_share) {
    static const char schema[] =
        "{\"properties\": {\"name\": {\"type\": \"string\"}, \"list\": {\"items\": {\"type\": \"integer\"}}, "
        "\"when\": {\"pattern\": \"^\\\\d{4}-\\\\d\\\\d-\\\\d\\\\d$\"}}, \"required\": [\"name\"]}";
    pthread_t thread[4];
    uint64_t h[5] = {0};

    ck_assert_int_eq(compile(schema, sizeof schema - 1, &shared, NULL), 0);
    ck_assert_ptr_nonnull(one_thread(&h[4]));
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, one_thread, &h[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        ck_assert_uint_eq(h[i], h[4]);
    }
    grammar_free(shared);
}
END_TEST

int main(void) {
    Suite *s = suite_create("grammar_limits");
    TCase *tc = tcase_create("limits");
    SRunner *sr;
    int bad;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, refusals_say_where, 0, sizeof refused / sizeof *refused);
    tcase_add_loop_test(tc, costly_schemas, 0, sizeof costly / sizeof *costly);
    tcase_add_test(tc, memory_is_bounded);
    tcase_add_test(tc, blanks_and_nesting_end);
    tcase_add_test(tc, declared_members_come_once);
    tcase_add_test(tc, utf8_and_surrogates);
    tcase_add_test(tc, states_are_copies);
    tcase_add_test(tc, threads_share);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    bad = srunner_ntests_failed(sr);
    srunner_free(sr);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
