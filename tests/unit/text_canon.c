/* SPDX-License-Identifier: MIT */
/* Canonical JSON: every spelling of a value is one text, and no two values share one; random values against
 * jansson, and the hash that tells prompts apart against its published vectors. */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jlcanon.h"
#include "leakcheck.h"
#include "siphash.h"
#include "texttest.h"

static void canon(const char *text, struct tbuf *out) {
    struct tstr v;

    ck_assert_msg(jl_check(text, strlen(text), 64, &v, NULL) > 0, "%s", text);
    tbuf_init(out, 1 << 20);
    jl_canon(v, out);
    ck_assert_int_eq(out->err, 0);
}

static bool equal(const char *a, const char *b) {
    struct tbuf x, y;
    bool r;

    canon(a, &x);
    canon(b, &y);
    r = x.n == y.n && memcmp(x.p, y.p, x.n) == 0;
    tbuf_done(&x);
    tbuf_done(&y);
    return r;
}

static const struct {
    const char *a, *b;
    bool same;
} pairs[] = {
    {"1", "1.0", true},
    {"1", "10e-1", true},
    {"1", "0.001E3", true},
    {"120", "1.2e+2", true},
    {"-0", "0.000", true},
    {"0e5", "0", true},
    {"100", "1e2", true},
    {"0.0012", "12e-4", true},
    {"102.030", "10203e-2", true},
    {"123456789012345678901234567890", "123456789012345678901234567890.000", true},
    {"1e000000000000000000005", "100000", true},
    {"1e99999999999999999999", "1e99999999999999999999", true},
    {"1e99999999999999999999", "1e99999999999999999998", false},
    {"1", "-1", false},
    {"1", "10", false},
    {"1", "0.1", false},
    {"0.1", "0.10000000000000000001", false},
    {"9007199254740993", "9007199254740992", false},
    {"12", "1.2", false},
    {"1", "\"1\"", false},
    {"1", "true", false},
    {"null", "\"null\"", false},
    {"{}", "[]", false},
    {"{\"a\": 1, \"b\": [1, {\"x\": 2, \"y\": 3}]}", "{\"b\":[1.0,{\"y\":3,\"x\":2}],\"a\":1e0}", true},
    {"{\"a\": 1, \"a\": 2}", "{\"a\": 2}", true},
    {"{\"a\": 1, \"a\": 2}", "{\"a\": 1}", false},
    {"{\"a\": 1, \"\\u0061\": 2, \"a\": 3}", "{\"a\": 3}", true},
    {"{\"\": 1}", "{\"\":1.0}", true},
    {"{\"a\": 1}", "{\"a\": 1, \"b\": null}", false},
    {"{\"ab\": 1}", "{\"a\": 1}", false},
    {"[1, 2]", "[2, 1]", false},
    {"[1, 2]", "[12]", false},
    {"[[1], 2]", "[1, [2]]", false},
    {"\"\\u00e9\\/\\n\"", "\"\xc3\xa9/\\u000a\"", true},
    {"\"\\ud83d\\ude42\"", "\"\xf0\x9f\x99\x82\"", true},
    {"\"a\"", "\"A\"", false},
    {"\"\\\"\"", "\"\\\\\"", false},
    {"\"a,b\"", "[\"a\",\"b\"]", false},
};

START_TEST(spellings) {
    ck_assert_msg(equal(pairs[_i].a, pairs[_i].b) == pairs[_i].same, "%s and %s", pairs[_i].a, pairs[_i].b);
    ck_assert(equal(pairs[_i].b, pairs[_i].a) == pairs[_i].same);
}
END_TEST

static json_t *random_value(struct texttest_rng *r, uint32_t depth) {
    char text[24];
    json_t *v;

    switch (texttest_below(r, depth ? 8 : 5)) {
    case 0:
        return json_integer((json_int_t)texttest_below(r, 2000) - 1000);
    case 1:
        return json_boolean(texttest_below(r, 2));
    case 2:
        return json_null();
    case 3:
        /* never a whole number: jansson tells 1 from 1.0 */
        return json_real((texttest_below(r, 4000) + 0.5) / 4 - 500);
    case 4:
        return json_stringn(text, texttest_text(r, text, sizeof text));
    case 5:
        v = json_array();
        for (uint32_t i = texttest_below(r, 4); i > 0; i--)
            json_array_append_new(v, random_value(r, depth - 1));
        return v;
    default:
        v = json_object();
        for (uint32_t i = texttest_below(r, 5); i > 0; i--)
            json_object_setn_new(v, text, texttest_text(r, text, 1 + texttest_below(r, 12)),
                                 random_value(r, depth - 1));
        return v;
    }
}

/* One place of the value becomes another; sometimes what it was. */
static void mutate(struct texttest_rng *r, json_t *v) {
    if (json_is_array(v) && json_array_size(v)) {
        uint32_t i = texttest_below(r, (uint32_t)json_array_size(v));
        json_t *at = json_array_get(v, i);

        if (texttest_below(r, 2) && (json_is_array(at) || json_is_object(at)))
            mutate(r, at);
        else if (texttest_below(r, 4))
            json_array_set_new(v, i, random_value(r, 1));
        else
            json_array_remove(v, i);
    } else if (json_is_object(v) && json_object_size(v)) {
        void *it = json_object_iter(v);
        json_t *at;

        for (uint32_t i = texttest_below(r, (uint32_t)json_object_size(v)); i > 0; i--)
            it = json_object_iter_next(v, it);
        at = json_object_iter_value(it);
        if (texttest_below(r, 2) && (json_is_array(at) || json_is_object(at)))
            mutate(r, at);
        else
            json_object_iter_set_new(v, it, random_value(r, 1));
    }
}

START_TEST(random_values_agree_with_jansson) {
    struct texttest_rng rng = {77};
    unsigned same = 0, other = 0;

    for (unsigned i = 0; i < 20000; i++) {
        json_t *a = random_value(&rng, 4), *b = json_deep_copy(a);
        char *x, *y;
        bool want;

        mutate(&rng, b);
        x = json_dumps(a, JSON_ENCODE_ANY | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
        y = json_dumps(b, JSON_ENCODE_ANY | JSON_INDENT(2) | JSON_ESCAPE_SLASH);
        want = json_equal(a, b);
        must(equal(x, y) == want);
        same += want;
        other += !want;
        free(x);
        free(y);
        json_decref(a);
        json_decref(b);
    }
    ck_assert_uint_gt(same, 2000);
    ck_assert_uint_gt(other, 2000);
}
END_TEST

START_TEST(hash_vectors) {
    struct siphash key = {{0x0706050403020100u, 0x0f0e0d0c0b0a0908u}}, h;
    static const uint8_t empty[16] = {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6,
                                      0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93};
    uint8_t bytes[64];

    h = siphash(key, NULL, 0);
    ck_assert_int_eq(memcmp(&h, empty, 16), 0);
    /* every bit of a text counts, and its length */
    memset(bytes, 0, sizeof bytes);
    h = siphash(key, bytes, 40);
    for (unsigned i = 0; i < 320; i++) {
        struct siphash o;

        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        o = siphash(key, bytes, 40);
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        must(!siphash_eq(h, o));
    }
    for (unsigned n = 0; n < 64; n++)
        must(n == 40 || !siphash_eq(h, siphash(key, bytes, n)));
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_canon");
    TCase *tc = tcase_create("canon");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60 * texttest_slow());
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, spellings, 0, (int)(sizeof pairs / sizeof *pairs));
    tcase_add_test(tc, random_values_agree_with_jansson);
    tcase_add_test(tc, hash_vectors);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
