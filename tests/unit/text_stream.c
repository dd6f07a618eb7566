/* SPDX-License-Identifier: MIT */
/* Bytes to characters and stop strings: UTF-8, the incremental detokeniser, the stop string matcher, each
 * against a slow and obvious way of doing the same on the whole text. */
#include "detok.h"
#include "stopstr.h"
#include "texttest.h"
#include "utf8.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Decodes by arithmetic: value and shortest length, then the forbidden ranges. */
static int slow_next(const uint8_t *s, size_t n) {
    size_t need = s[0] < 0x80                   ? 1
                  : s[0] >= 0xc0 && s[0] < 0xe0 ? 2
                  : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                  : s[0] >= 0xf0 && s[0] < 0xf8 ? 4
                                                : 0;
    uint32_t v, lowest;

    if (need <= 1)
        return need == 1 ? 1 : -1;
    for (size_t have = 1;; have++) {
        /* can `have` bytes still become valid? lowest and highest value that any continuation gives */
        v = s[0] & (0xffu >> (need + 1));
        for (size_t i = 1; i < have; i++)
            v = v << 6 | (s[i] & 0x3f);
        lowest = need == 2 ? 0x80 : need == 3 ? 0x800 : 0x10000;
        for (uint32_t lo = v << 6 * (need - have), hi = lo + (1u << 6 * (need - have)) - 1;;) {
            bool possible = hi >= lowest && lo <= 0x10ffff && !(lo >= 0xd800 && hi <= 0xdfff);

            if (!possible)
                return -(int)(have > 1 ? have - 1 : 1);
            break;
        }
        if (have == need)
            return (int)need;
        if (have == n)
            return 0;
        if ((s[have] & 0xc0) != 0x80)
            return -(int)have;
    }
}

START_TEST(utf8_against_arithmetic) {
    struct texttest_rng rng = {1};
    static const uint8_t edges[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0,
                                    0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef,
                                    0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf7, 0xf8, 0xff};
    uint8_t s[4];

    for (unsigned i = 0; i < 400000; i++) {
        size_t n = 1 + texttest_below(&rng, 4);

        for (size_t k = 0; k < n; k++)
            s[k] = i & 1 ? edges[texttest_below(&rng, sizeof edges)] : (uint8_t)texttest_below(&rng, 256);
        if (utf8_next(s, n, NULL) != slow_next(s, n))
            ck_abort_msg("%02x %02x %02x %02x (%zu): %d, expected %d", s[0], s[1], s[2], s[3], n,
                         utf8_next(s, n, NULL), slow_next(s, n));
    }
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char out[4];
        uint32_t back = 0;
        size_t n = utf8_put(cp, out);

        must(utf8_next((const uint8_t *)out, n, &back) == (int)n);
        must(back == (cp >= 0xd800 && cp < 0xe000 ? 0xfffd : cp));
    }
    must(utf8_valid_prefix("abcdefgh\xc5\x81xyz\xff", 14) == 13);
    must(utf8_is_valid("", 0));
}
END_TEST

/* The whole text at once: one U+FFFD per maximal invalid part. */
static size_t whole(const uint8_t *s, size_t n, char *out, uint64_t *ret_replaced) {
    size_t w = 0;

    *ret_replaced = 0;
    for (size_t at = 0; at < n;) {
        int len = utf8_next(s + at, n - at, NULL);

        if (len > 0) {
            memcpy(out + w, s + at, (size_t)len);
            w += (size_t)len;
            at += (size_t)len;
        } else {
            memcpy(out + w, UTF8_REPLACEMENT, 3);
            w += 3;
            ++*ret_replaced;
            at += len < 0 ? (size_t)-len : n - at;
        }
    }
    return w;
}

START_TEST(detok_on_byte_soup) {
    struct texttest_rng rng = {2};

    for (unsigned round = 0; round < 60000; round++) {
        uint8_t s[64];
        char want[256], got[DETOK_BOUND(64) * 4];
        size_t n = texttest_below(&rng, sizeof s), w = 0, want_n;
        uint64_t replaced;
        struct detok d;

        if (round & 1) {
            n = texttest_text(&rng, (char *)s, n);
            for (uint32_t k = texttest_below(&rng, 3); n > 0 && k > 0; k--)
                s[texttest_below(&rng, (uint32_t)n)] = (uint8_t)texttest_below(&rng, 256);
        } else {
            static const uint8_t some[] = {'a',  0x80, 0x9f, 0xa0, 0xbf, 0xc2, 0xe0, 0xe1,
                                           0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};

            for (size_t i = 0; i < n; i++)
                s[i] = some[texttest_below(&rng, sizeof some)];
        }
        want_n = whole(s, n, want, &replaced);
        detok_init(&d);
        for (size_t at = 0; at < n;) {
            size_t k = 1 + texttest_below(&rng, 5), add;

            if (k > n - at)
                k = n - at;
            if (round & 2) { /* with or without a copy: the same */
                const char *seen = detok_view(&d, s + at, k, got + w, &add);

                if (seen != got + w)
                    memcpy(got + w, seen, add);
            } else {
                add = detok_push(&d, s + at, k, got + w);
            }
            must(add <= DETOK_BOUND(k));
            must(utf8_is_valid(got + w, add)); /* whole characters only, in every piece */
            must(d.tail_bytes <= 3);
            w += add;
            at += k;
            /* nothing that is already whole is kept back */
            must(d.tail_bytes == 0 || utf8_next(d.tail, d.tail_bytes, NULL) == 0);
        }
        w += detok_finish(&d, got + w);
        ck_assert_msg(w == want_n && memcmp(got, want, w) == 0, "round %u", round);
        must(d.replaced == replaced);
        must(detok_finish(&d, got) == 0);
    }
}
END_TEST

START_TEST(detok_cases) {
    char out[64];
    struct detok d;

    detok_init(&d);
    ck_assert_uint_eq(detok_push(&d, (const uint8_t *)"\xe2\x82", 2, out), 0);
    ck_assert_uint_eq(detok_push(&d, (const uint8_t *)" x", 2, out),
                      5); /* broken by a space: replaced at once */
    ck_assert(memcmp(out, "\xef\xbf\xbd x", 5) == 0);
    ck_assert_uint_eq(detok_push(&d, (const uint8_t *)"\xf0\x9f", 2, out), 0);
    ck_assert_uint_eq(detok_push(&d, (const uint8_t *)"\xf0\x9f\x99\x82", 4, out),
                      7); /* broken by a new beginning */
    ck_assert(memcmp(out, "\xef\xbf\xbd\xf0\x9f\x99\x82", 7) == 0);
    ck_assert_uint_eq(detok_push(&d, (const uint8_t *)"\xef\xbf\xbd", 3, out), 3); /* U+FFFD itself is text */
    ck_assert_uint_eq(d.replaced, 2);
    ck_assert_uint_eq(detok_push(&d, (const uint8_t *)"\xe2", 1, out), 0);
    detok_drop(&d);
    ck_assert_uint_eq(detok_finish(&d, out), 0);
    ck_assert_uint_eq(detok_push(&d, (const uint8_t *)"\xe2", 1, out), 0);
    ck_assert_uint_eq(detok_finish(&d, out), 3);
}
END_TEST

/* First end of any match in text, the longest string ending there; -1 for none. */
static int slow_find(const char *const *s, const size_t *len, size_t k, const char *text, size_t n,
                     size_t *ret_from, size_t *ret_end) {
    for (size_t end = 1; end <= n; end++) {
        int hit = -1;

        for (size_t i = 0; i < k; i++) {
            if (len[i] <= end && memcmp(text + end - len[i], s[i], len[i]) == 0 &&
                (hit < 0 || len[i] > len[hit]))
                hit = (int)i;
        }
        if (hit >= 0) {
            *ret_from = end - len[hit];
            *ret_end = end;
            return hit;
        }
    }
    return -1;
}

static size_t slow_held(const char *const *s, const size_t *len, size_t k, const char *text, size_t n) {
    size_t held = 0;

    for (size_t i = 0; i < k; i++) {
        for (size_t m = len[i] - 1; m > held; m--) {
            if (m <= n && memcmp(text + n - m, s[i], m) == 0)
                held = m;
        }
    }
    return held;
}

START_TEST(stop_strings_against_search) {
    struct texttest_rng rng = {3};
    static struct stopstr_set set;
    unsigned hits = 0, misses = 0;

    for (unsigned round = 0; round < 60000; round++) {
        char strings[4][8], text[64], shown[96];
        const char *s[4];
        size_t len[4], k = texttest_below(&rng, 5), n = texttest_below(&rng, 60), w = 0, from = 0, end = 0,
                       at = 0;
        struct stopstr cur;
        struct stopstr_out o = {.hit = -1};
        int want;

        for (size_t i = 0; i < k; i++) { /* few letters: borders, prefixes and overlaps everywhere */
            len[i] = 1 + texttest_below(&rng, 7);
            for (size_t c = 0; c < len[i]; c++)
                strings[i][c] = "aab"[texttest_below(&rng, 3)];
            s[i] = strings[i];
        }
        for (size_t c = 0; c < n; c++)
            text[c] = "aaabc"[texttest_below(&rng, 5)];
        must(stopstr_set_init(&set, s, len, k) == 0);
        want = slow_find(s, len, k, text, n, &from, &end);
        stopstr_begin(&cur);
        while (at < n && o.hit < 0) {
            size_t piece = 1 + texttest_below(&rng, 6);

            if (piece > n - at)
                piece = n - at;
            stopstr_feed(&set, &cur, text + at, piece, &o);
            memcpy(shown + w, o.early, o.early_bytes);
            w += o.early_bytes;
            memcpy(shown + w, text + at, o.fresh_bytes);
            w += o.fresh_bytes;
            at += o.used_bytes;
            if (o.hit < 0) { /* exactly the longest possible beginning is kept back */
                must(cur.held_bytes == slow_held(s, len, k, text, at));
                must(w == at - cur.held_bytes);
            }
            must(memcmp(shown, text, w) == 0);
        }
        must((o.hit < 0) == (want < 0));
        if (want >= 0) {
            must(len[o.hit] == len[want] && memcmp(s[o.hit], s[want], len[want]) == 0);
            must(at == end);
            must(w == from);
            must(cur.held_bytes == 0);
            hits++;
        } else {
            const char *rest;
            size_t rest_n;

            stopstr_flush(&set, &cur, &rest, &rest_n);
            must(w + rest_n == n);
            must(memcmp(rest, text + w, rest_n) == 0);
            misses++;
        }
    }
    must(hits > 5000);
    ck_assert_uint_gt(misses, 5000);
}
END_TEST

START_TEST(stop_string_limits) {
    static struct stopstr_set set;
    static char big[STOPSTR_MAX_TOTAL_BYTES + 1];
    const char *s[STOPSTR_MAX_STRINGS + 1];
    size_t len[STOPSTR_MAX_STRINGS + 1];
    struct stopstr cur;
    struct stopstr_out o;

    memset(big, 'a', sizeof big);
    for (size_t i = 0; i <= STOPSTR_MAX_STRINGS; i++) {
        s[i] = big;
        len[i] = 1;
    }
    ck_assert_int_eq(stopstr_set_init(&set, s, len, STOPSTR_MAX_STRINGS), 0);
    ck_assert_int_eq(stopstr_set_init(&set, s, len, STOPSTR_MAX_STRINGS + 1), -E2BIG);
    len[0] = sizeof big;
    ck_assert_int_eq(stopstr_set_init(&set, s, len, 1), -E2BIG);
    len[0] = 0;
    ck_assert_int_eq(stopstr_set_init(&set, s, len, 1), -EINVAL);
    len[0] = STOPSTR_MAX_TOTAL_BYTES;
    ck_assert_int_eq(stopstr_set_init(&set, s, len, 1), 0);
    stopstr_begin(&cur);
    stopstr_feed(&set, &cur, big, STOPSTR_MAX_TOTAL_BYTES - 1, &o);
    ck_assert(o.hit == -1 && o.fresh_bytes == 0);
    stopstr_feed(&set, &cur, "b", 1, &o);
    ck_assert(o.hit == -1 && o.early_bytes == STOPSTR_MAX_TOTAL_BYTES - 1 && o.fresh_bytes == 1);
    stopstr_feed(&set, &cur, big, sizeof big, &o);
    ck_assert(o.hit == 0 && o.fresh_bytes == 0 && o.used_bytes == STOPSTR_MAX_TOTAL_BYTES);
    ck_assert_int_eq(stopstr_set_init(&set, s, len, 0), 0); /* no strings: everything passes */
    stopstr_begin(&cur);
    stopstr_feed(&set, &cur, "abc", 3, &o);
    ck_assert(o.hit == -1 && o.fresh_bytes == 3 && o.used_bytes == 3);
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_stream");
    TCase *tc = tcase_create("stream");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 30 * texttest_slow());
    tcase_add_test(tc, utf8_against_arithmetic);
    tcase_add_test(tc, detok_on_byte_soup);
    tcase_add_test(tc, detok_cases);
    tcase_add_test(tc, stop_strings_against_search);
    tcase_add_test(tc, stop_string_limits);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
