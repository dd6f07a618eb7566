/* SPDX-License-Identifier: MIT */
/* JSON rewriter: what is accepted, what is refused and where, normal form, depth, random round trips
 * against jansson. */
#include "jsonlite.h"
#include "texttest.h"
#include "utf8.h"

#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tbuf out;

static void setup(void) {
    tbuf_init(&out, 64 << 20);
}

static void teardown(void) {
    tbuf_done(&out);
}

static const struct {
    const char *in, *out;
    enum jl_type type;
} good[] = {
    {"{}", "{}", JL_OBJECT},
    {" [ ] ", "[]", JL_ARRAY},
    {"\t{ \"b\" :1 ,\"a\":[ 1,2 , {} ] }\n", "{\"b\": 1, \"a\": [1, 2, {}]}", JL_OBJECT},
    {"1.0", "1.0", JL_NUMBER},
    {"-0", "-0", JL_NUMBER},
    {"1E+5", "1E+5", JL_NUMBER},
    {"12345678901234567890123.4500", "12345678901234567890123.4500", JL_NUMBER},
    {"true", "true", JL_BOOL},
    {"null", "null", JL_NULL},
    {"\"<a>&/\"", "\"<a>&/\"", JL_STRING},
    {"\"\\u0141\\/\\u003c\\u00e9\"", "\"\xc5\x81/<\xc3\xa9\"", JL_STRING},
    {"\"\\ud83d\\ude42\"", "\"\xf0\x9f\x99\x82\"", JL_STRING},
    {"\"\\ud83d\\u0041\\ude42\\ud83d\"",
     "\"\xef\xbf\xbd"
     "A\xef\xbf\xbd\xef\xbf\xbd\"",
     JL_STRING},
    {"\"\\u0000\\u001f\\n\\b\\f\\r\\t\\\"\\\\\"", "\"\\u0000\\u001f\\n\\b\\f\\r\\t\\\"\\\\\"", JL_STRING},
    {"\"\\u000a\\u0008\\u007f\"", "\"\\n\\b\x7f\"", JL_STRING},
    {"{\"a\\u0022\": {\"\": [[[]]]}}", "{\"a\\\"\": {\"\": [[[]]]}}", JL_OBJECT},
    {"[\"a,b:c\",{\"x,:\":\"]}\"}]", "[\"a,b:c\", {\"x,:\": \"]}\"}]", JL_ARRAY},
};

START_TEST(rewritten) {
    struct tstr v;

    ck_assert_int_eq(jl_check(good[_i].in, strlen(good[_i].in), 8, &v, NULL), good[_i].type);
    jl_rewrite(v, &out);
    ck_assert_msg(out.n == strlen(good[_i].out) && memcmp(out.p, good[_i].out, out.n) == 0, "%s -> %.*s",
                  good[_i].in, (int)out.n, out.p);
    /* the normal form is stable */
    ck_assert_int_eq(jl_check(out.p, out.n, 8, &v, NULL), good[_i].type);
}
END_TEST

static const struct {
    const char *in;
    int code;
    size_t at;
} bad[] = {
    {"", -EINVAL, 0},
    {"  ", -EINVAL, 2},
    {"{", -EINVAL, 1},
    {"[1", -EINVAL, 2},
    {"[1,]", -EINVAL, 3},
    {"[,1]", -EINVAL, 1},
    {"{\"a\"}", -EINVAL, 4},
    {"{\"a\":}", -EINVAL, 5},
    {"{\"a\":1,}", -EINVAL, 7},
    {"{a:1}", -EINVAL, 1},
    {"{1:1}", -EINVAL, 1},
    {"[1 2]", -EINVAL, 3},
    {"{\"a\":1]", -EINVAL, 6},
    {"[1}", -EINVAL, 2},
    {"1 2", -EINVAL, 2},
    {"{}x", -EINVAL, 2},
    {"01", -EINVAL, 0},
    {"-", -EINVAL, 1},
    {"1.", -EINVAL, 2},
    {".5", -EINVAL, 0},
    {"1e", -EINVAL, 2},
    {"+1", -EINVAL, 0},
    {"0x10", -EINVAL, 1},
    {"NaN", -EINVAL, 0},
    {"Infinity", -EINVAL, 0},
    {"-Infinity", -EINVAL, 1},
    {"tru", -EINVAL, 0},
    {"True", -EINVAL, 0},
    {"\"a", -EINVAL, 2},
    {"\"\\x\"", -EINVAL, 2},
    {"\"\\u12g4\"", -EINVAL, 2},
    {"\"\\u12\"", -EINVAL, 2},
    {"\"\n\"", -EINVAL, 1},
    {"'a'", -EINVAL, 0},
    {"[1]//c", -EINVAL, 3},
    {"\"\\", -EINVAL, 2},
    {"\"\xff\"", -EILSEQ, 1},
    {"\"\xed\xa0\x80\"", -EILSEQ, 1},
    {"[[[[[[[[[]]]]]]]]]", -E2BIG, 8},
    {"[\"a\" \"b\"]", -EINVAL, 5},
};

START_TEST(refused) {
    struct jl_fault f = {99, NULL};
    struct tstr v = {"x", 1};

    ck_assert_int_eq(jl_check(bad[_i].in, strlen(bad[_i].in), 8, &v, &f), bad[_i].code);
    ck_assert_msg(f.at == bad[_i].at, "%s: at %zu, expected %zu (%s)", bad[_i].in, f.at, bad[_i].at, f.why);
    ck_assert(f.why && f.why[0]);
    ck_assert_str_eq(v.p, "x"); /* untouched */
}
END_TEST

START_TEST(depth_is_bounded) {
    size_t n = 2000000;
    char *s = malloc(n);
    struct jl_fault f;

    for (unsigned d = 1; d <= JL_MAX_DEPTH + 1; d++) {
        memset(s, '[', d);
        memset(s + d, ']', d);
        ck_assert_int_eq(jl_check(s, 2 * d, JL_MAX_DEPTH, NULL, NULL), d <= JL_MAX_DEPTH ? JL_ARRAY : -E2BIG);
        ck_assert_int_eq(jl_check(s, 2 * d, UINT32_MAX, NULL, NULL), d <= JL_MAX_DEPTH ? JL_ARRAY : -E2BIG);
    }
    memset(s, '[', n);
    ck_assert_int_eq(jl_check(s, n, JL_MAX_DEPTH, NULL, &f), -E2BIG);
    ck_assert_uint_eq(f.at, JL_MAX_DEPTH);
    free(s);
}
END_TEST

START_TEST(walking) {
    static const char text[] =
        " {\"a\": [1, {\"b\": \"]\"}], \"\\u0062\": -2.5e3 , \"a\" :\"last\", \"c\": {}}";
    struct jl_iter it;
    struct tstr v;
    unsigned n = 0;

    ck_assert_int_eq(jl_check(text, strlen(text), 8, &v, NULL), JL_OBJECT);
    for (bool more = jl_first(&it, v); more; more = jl_next(&it), n++) {
        static const char *const values[] = {"[1, {\"b\": \"]\"}]", "-2.5e3", "\"last\"", "{}"};

        ck_assert(tstr_is(it.value, values[n]));
        ck_assert(jl_str_is(it.key, n == 1 ? "b" : n == 3 ? "c" : "a", 1));
    }
    ck_assert_uint_eq(n, 4);
    ck_assert(!jl_next(&it));
    ck_assert(tstr_is(jl_get(v, "a"), "\"last\""));
    ck_assert(tstr_is(jl_get(v, "b"), "-2.5e3"));
    ck_assert_ptr_null(jl_get(v, "d").p);
    ck_assert(!jl_first(&it, jl_get(v, "c")));
    ck_assert(!jl_next(&it));
    ck_assert(jl_is_integer(tstr_of("-12")) && jl_is_integer(tstr_of("1.00")));
    ck_assert(!jl_is_integer(tstr_of("1.01")) && !jl_is_integer(tstr_of("1e2")) &&
              !jl_is_integer(tstr_of("1.0e2")));
    jl_unquote(tstr_of("\"x\\u0041\\n\\ud800\""), &out);
    ck_assert(out.n == 6 && memcmp(out.p, "xA\n\xef\xbf\xbd", 6) == 0);
    ck_assert(!jl_str_is(tstr_of("\"ab\""), "a", 1) && !jl_str_is(tstr_of("\"a\""), "ab", 2));
}
END_TEST

START_TEST(fixed_buffers_and_limits) {
    char mem[8];
    struct tbuf b;

    tbuf_init_fixed(&b, mem, sizeof mem);
    jl_rewrite(tstr_of("[1,2,3]"), &b);
    ck_assert_int_eq(b.err, -E2BIG);
    ck_assert_uint_le(b.n, sizeof mem);
    tbuf_putc(&b, 'x'); /* the failure sticks */
    ck_assert_int_eq(b.err, -E2BIG);
    tbuf_done(&b);
    tbuf_put(&b, "12345678", 8);
    ck_assert(b.err == 0 && b.n == 8);
    tbuf_init(&b, 300);
    for (unsigned i = 0; i < 300; i++)
        tbuf_putc(&b, 'y');
    ck_assert_int_eq(b.err, 0);
    tbuf_putc(&b, 'y');
    ck_assert_int_eq(b.err, -E2BIG);
    tbuf_done(&b);
}
END_TEST

/* Random values written by jansson: the rewriter's text must mean the same to jansson, key order included. */
static json_t *random_value(struct texttest_rng *rng, unsigned depth) {
    char text[64];
    size_t n;
    json_t *v;

    switch (texttest_below(rng, depth ? 8 : 5)) {
    case 0:
        return json_integer((json_int_t)texttest_rand(rng));
    case 1:
        return json_real((double)texttest_below(rng, 1000000) / 128);
    case 2:
        return texttest_below(rng, 2) ? json_true() : json_null();
    case 3:
    case 4:
        n = texttest_text(rng, text, texttest_below(rng, sizeof text));
        return json_stringn(text, n);
    case 5:
        v = json_array();
        for (uint32_t i = texttest_below(rng, 4); i > 0; i--)
            json_array_append_new(v, random_value(rng, depth - 1));
        return v;
    default:
        v = json_object();
        for (uint32_t i = texttest_below(rng, 4); i > 0; i--) {
            n = texttest_text(rng, text, texttest_below(rng, 12));
            if (!memchr(text, 0, n)) {
                text[n] = 0;
                json_object_set_new(v, text, random_value(rng, depth - 1));
            }
        }
        return v;
    }
}

START_TEST(random_round_trips) {
    struct texttest_rng rng = {31};

    for (unsigned i = 0; i < 4000; i++) {
        json_t *v = random_value(&rng, 5), *back;
        size_t flags = JSON_ENCODE_ANY | (i & 1 ? JSON_ENSURE_ASCII : 0) | (i & 2 ? JSON_INDENT(3) : 0) |
                       (i & 4 ? JSON_COMPACT : 0);
        char *text = json_dumps(v, flags);
        struct tstr s;

        ck_assert_ptr_nonnull(text);
        must(jl_check(text, strlen(text), 16, &s, NULL) > 0);
        out.n = 0;
        jl_rewrite(s, &out);
        back = json_loadb(out.p, out.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        ck_assert_msg(back && json_equal(v, back), "%s -> %.*s", text, (int)out.n, out.p);
        free(text);
        /* jansson's own one-line form differs from ours only in what it escapes */
        text = json_dumps(back, JSON_ENCODE_ANY);
        if (!strchr(text, '\\'))
            ck_assert_msg(strlen(text) == out.n && memcmp(text, out.p, out.n) == 0, "%s is not %.*s", text,
                          (int)out.n, out.p);
        free(text);
        json_decref(v);
        json_decref(back);
    }
}
END_TEST

/* Damaged text: accepted exactly when jansson accepts it (without duplicate rules, with lone surrogates
 * set aside). */
START_TEST(random_damage_agrees_with_jansson) {
    struct texttest_rng rng = {32};
    unsigned accepted = 0, refused_n = 0;

    for (unsigned i = 0; i < 30000; i++) {
        json_t *v = random_value(&rng, 3), *theirs;
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        size_t n = strlen(text);
        json_error_t je;
        int ours;

        for (uint32_t k = texttest_below(&rng, 3); n > 0 && k > 0; k--)
            text[texttest_below(&rng, (uint32_t)n)] =
                "{}[]\",:0123456789eE+-.\\untrf \n"[texttest_below(&rng, 30)];
        ours = jl_check(text, n, 100, NULL, NULL);
        theirs = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
        /* jansson also refuses numbers beyond its types, and lone surrogates */
        if (!strstr(text, "\\u") && (theirs || json_error_code(&je) != json_error_numeric_overflow) &&
            (ours > 0) != (theirs != NULL))
            ck_abort_msg("%s: %d", text, ours);
        accepted += ours > 0;
        refused_n += ours < 0;
        free(text);
        json_decref(v);
        json_decref(theirs);
    }
    ck_assert_uint_gt(accepted, 5000);
    ck_assert_uint_gt(refused_n, 5000);
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_json");
    TCase *tc = tcase_create("json");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 30 * texttest_slow());
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, rewritten, 0, (int)(sizeof good / sizeof *good));
    tcase_add_loop_test(tc, refused, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(tc, depth_is_bounded);
    tcase_add_test(tc, walking);
    tcase_add_test(tc, fixed_buffers_and_limits);
    tcase_add_test(tc, random_round_trips);
    tcase_add_test(tc, random_damage_agrees_with_jansson);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
