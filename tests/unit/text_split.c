/* SPDX-License-Identifier: MIT */
/* The hand-written splitter against PCRE2 running the pattern itself, and its cases one by one. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "split.h"
#include "texttest.h"
#include "unicode_table.h"
#include "utf8.h"

#include <check.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pcre2_code *compile(const char *pattern) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);

    ck_assert_msg(re != NULL, "pattern does not compile: error %d at %zu", code, at);
    return re;
}

static bool matches(pcre2_code *re, pcre2_match_data *md, uint32_t cp) {
    char s[4];
    size_t n = utf8_put(cp, s);

    return pcre2_match(re, (PCRE2_SPTR)s, n, 0, PCRE2_ANCHORED, md, NULL) > 0;
}

/* PCRE2's \s also takes U+180E, which lost the property White_Space in Unicode 6.3; everything else must
 * agree, but for code points that one side's Unicode version does not know yet. */
START_TEST(classes_agree_with_pcre2) {
    pcre2_code *letter = compile("\\p{L}"), *number = compile("\\p{N}"), *space = compile("\\s");
    pcre2_code *unassigned = compile("\\p{Cn}");
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    char version[32];
    unsigned newer_here = 0, newer_there = 0, letters = 0;

    ck_assert_int_gt(pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version), 0);
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        enum uctab_class_id want, got = uctab_of(cp);

        if (cp >= 0xd800 && cp < 0xe000)
            continue;
        want = matches(letter, md, cp)                  ? UC_LETTER
               : matches(number, md, cp)                ? UC_NUMBER
               : matches(space, md, cp) && cp != 0x180e ? UC_SPACE
                                                        : UC_OTHER;
        letters += got == UC_LETTER;
        if (got == want)
            continue;
        if (want == UC_OTHER && matches(unassigned, md, cp)) {
            newer_here++;
        } else if (got == UC_OTHER && atof(version) > atof(uctab_unicode_version)) {
            newer_there++;
        } else {
            ck_abort_msg("U+%04X: class %d here (Unicode %s), %d in PCRE2 (Unicode %s)", cp, got,
                         uctab_unicode_version, want, version);
        }
    }
    ck_assert_uint_gt(letters, 130000);
    ck_assert_uint_lt(newer_here, 10000);
    ck_assert_uint_lt(newer_there, 20000);
    pcre2_match_data_free(md);
    pcre2_code_free(letter);
    pcre2_code_free(number);
    pcre2_code_free(space);
    pcre2_code_free(unassigned);
}
END_TEST

static void dump(const char *s, size_t n, char *out, size_t cap) {
    size_t w = 0;

    for (size_t i = 0; i < n && w + 5 < cap; i++)
        w +=
            (size_t)snprintf(out + w, cap - w,
                             (uint8_t)s[i] >= 0x21 && (uint8_t)s[i] < 0x7f ? "%c" : "\\x%02x", (uint8_t)s[i]);
}

static bool known_to_both(pcre2_code *unassigned, pcre2_match_data *md, const char *s, size_t n) {
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        int len = utf8_next((const uint8_t *)s + at, n - at, &cp);

        must(len > 0);
        if (cp == 0x180e || matches(unassigned, md, cp))
            return false;
        at += (size_t)len;
    }
    return true;
}

START_TEST(pieces_agree_with_pcre2) {
    pcre2_code *re = compile(split_pattern), *unassigned = compile("\\p{Cn}");
    pcre2_match_data *md = pcre2_match_data_create(8, NULL);
    struct texttest_rng rng = {20250901};
    unsigned compared = 0;
    char buf[160], shown[700];

    for (unsigned i = 0; i < 60000; i++) {
        size_t n = texttest_text(&rng, buf, 1 + texttest_below(&rng, sizeof buf));

        if (!known_to_both(unassigned, md, buf, n))
            continue;
        compared++;
        for (size_t at = 0; at < n;) {
            size_t got = split_next((const uint8_t *)buf + at, n - at);
            PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);

            must(pcre2_match(re, (PCRE2_SPTR)buf, n, at, 0, md, NULL) > 0);
            must(ov[0] == at); /* the pattern leaves no gaps */
            if (got != ov[1] - at) {
                dump(buf, n, shown, sizeof shown);
                ck_abort_msg("text %u, offset %zu: piece of %zu bytes, PCRE2 finds %zu; text %s", i, at, got,
                             ov[1] - at, shown);
            }
            at += got;
        }
    }
    must(compared > 20000);
    pcre2_match_data_free(md);
    pcre2_code_free(re);
    pcre2_code_free(unassigned);
}
END_TEST

static const struct {
    const char *text, *pieces; /* pieces joined by | */
} cases[] = {
    {"Hello, world!", "Hello|,| world|!"},
    {"I'm we'LL they'RE", "I|'m| we|'LL| they|'RE"},
    {"'\xc5\xbf", "'\xc5\xbf"},
    {"1234567", "123|456|7"},
    {"a  b", "a| | b"},
    {"a   ", "a|   "},
    {"x \n\n y", "x| \n\n| y"},
    {" .\r\n\r\nz", " .\r\n\r\n|z"},
    {"\n \n  z", "\n \n| | z"},
    {"\tz\xc2\xa0q", "\tz|\xc2\xa0q"},
    {" 12", " |12"},
    {"\xc2\xbd\xe2\x85\xa3"
     "9x",
     "\xc2\xbd\xe2\x85\xa3"
     "9|x"},
    {"\r", "\r"},
    {"'", "'"},
    {"'r", "'r"},
};

START_TEST(cases_one_by_one) {
    const char *s = cases[_i].text;
    size_t n = strlen(s), w = 0;
    char got[64];

    for (size_t at = 0; at < n;) {
        size_t len = split_next((const uint8_t *)s + at, n - at);

        ck_assert(len > 0 && len <= n - at && w + len + 1 < sizeof got);
        if (w > 0)
            got[w++] = '|';
        memcpy(got + w, s + at, len);
        w += len;
        at += len;
    }
    got[w] = 0;
    ck_assert_str_eq(got, cases[_i].pieces);
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_split");
    TCase *tc = tcase_create("split");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120 * texttest_slow());
    tcase_add_test(tc, classes_agree_with_pcre2);
    tcase_add_test(tc, pieces_agree_with_pcre2);
    tcase_add_loop_test(tc, cases_one_by_one, 0, (int)(sizeof cases / sizeof *cases));
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
