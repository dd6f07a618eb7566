/* SPDX-License-Identifier: MIT */
/* Tokenizer against the golden files, both ways, and against a naive merge loop; markers; speed of ugly
 * input. */
#include "detok.h"
#include "split.h"
#include "texttest.h"
#include "tokenizer.h"
#include "utf8.h"

#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tok *tok;
static struct tok_scratch *scratch;

static void setup(void) {
    struct xerr err = {0};

    ck_assert_msg(tok_open(texttest_model("nano"), &tok, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(tok_scratch_new(0, &scratch), 0);
}

static void teardown(void) {
    tok = tok_free(tok);
    scratch = tok_scratch_free(scratch);
}

/* ids -> text through the incremental detokeniser */
static char *decode(const uint32_t *ids, size_t n, size_t *ret_n) {
    struct detok d;
    size_t w = 0, cap = 16;
    char *out;

    for (size_t i = 0; i < n; i++) {
        const uint8_t *b;
        size_t len;

        must(tok_bytes(tok, ids[i], &b, &len) >= 0);
        cap += DETOK_BOUND(len);
    }
    out = malloc(cap);
    detok_init(&d);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *b;
        size_t len;

        tok_bytes(tok, ids[i], &b, &len);
        w += detok_push(&d, b, len, out + w);
        must(utf8_is_valid(out, w));
    }
    w += detok_finish(&d, out + w);
    must(d.replaced == 0);
    *ret_n = w;
    return out;
}

static void check_golden(const char *name, size_t at_least) {
    size_t n_file, i;
    char *text = texttest_golden(name, &n_file);
    json_error_t je;
    json_t *all = json_loadb(text, n_file, JSON_ALLOW_NUL, &je), *pair;

    ck_assert_msg(json_is_array(all), "%s: %s", name, je.text);
    ck_assert_uint_ge(json_array_size(all), at_least);
    json_array_foreach(all, i, pair) {
        json_t *t = json_object_get(pair, "text"), *want = json_object_get(pair, "ids");
        size_t n = json_string_length(t), got, back_n;
        uint32_t *ids = malloc((n + 1) * sizeof *ids);
        char *back;

        ck_assert_int_eq(tok_encode(tok, scratch, json_string_value(t), n, TOK_MARKERS, ids, n, &got), 0);
        for (size_t k = 0; k < got && k < json_array_size(want); k++)
            ck_assert_msg(ids[k] == json_integer_value(json_array_get(want, k)),
                          "%s[%zu]: id %zu is %u, expected %lld", name, i, k, ids[k],
                          (long long)json_integer_value(json_array_get(want, k)));
        ck_assert_uint_eq(got, json_array_size(want));
        back = decode(ids, got, &back_n);
        ck_assert_msg(back_n == n && memcmp(back, json_string_value(t), n) == 0,
                      "%s[%zu]: ids do not give the text back", name, i);
        free(back);
        free(ids);
    }
    json_decref(all);
    free(text);
}

START_TEST(golden_pairs) {
    check_golden("tokenizer-golden.json", 17);
}
END_TEST

START_TEST(random_pairs) {
    check_golden("tokenizer-random.json", 300);
}
END_TEST

/* The slowest possible way: all pairs looked at again for every merge, ranks read from the file itself. */
static json_t *merge_ranks(void) {
    char path[4200];
    json_t *root, *ranks = json_object(), *m;
    size_t i;

    snprintf(path, sizeof path, "%s/tokenizer.json", texttest_model("nano"));
    root = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(root);
    json_array_foreach(json_object_get(json_object_get(root, "model"), "merges"), i, m) {
        char key[512];

        snprintf(key, sizeof key, "%s %s", json_string_value(json_array_get(m, 0)),
                 json_string_value(json_array_get(m, 1)));
        json_object_set_new(ranks, key, json_integer((json_int_t)i));
    }
    json_decref(root);
    return ranks;
}

static size_t naive(json_t *ranks, const char *letters, size_t n, char (*sym)[256]) {
    for (size_t i = 0; i < n; i++)
        snprintf(sym[i], 256, "%c", letters[i]);
    for (;;) {
        json_int_t best = -1;
        size_t at = 0, len;
        char joined[256];

        for (size_t i = 0; i + 1 < n; i++) {
            char key[516];
            json_t *r;

            snprintf(key, sizeof key, "%s %s", sym[i], sym[i + 1]);
            r = json_object_get(ranks, key);
            if (r && (best < 0 || json_integer_value(r) < best)) {
                best = json_integer_value(r);
                at = i;
            }
        }
        if (best < 0)
            return n;
        len = strlen(sym[at]);
        memcpy(joined, sym[at], len);
        snprintf(joined + len, sizeof joined - len, "%s", sym[at + 1]);
        memcpy(sym[at], joined, sizeof joined);
        n--;
        memmove(sym + at + 1, sym + at + 2, (n - at - 1) * sizeof *sym);
    }
}

/* Runs of plain letters, short and long, so that both merge loops are met; letters chosen from few so that
 * equal pairs, overlaps and stale pairs are common. */
START_TEST(both_merge_loops_equal_the_naive_one) {
    static const char *const alphabets[] = {
        "abcdefghijklmnopqrstuvwxyz", "etaoinshr", "aein", "st", "e", "xq"};
    json_t *ranks = merge_ranks();
    struct texttest_rng rng = {7};
    char(*sym)[256] = malloc(400 * sizeof *sym);

    for (unsigned round = 0; round < 700; round++) {
        const char *alpha = alphabets[round % 6];
        size_t n = 2 + texttest_below(&rng, round % 3 ? 60 : 300), want, got;
        char text[400];
        uint32_t ids[400];

        for (size_t i = 0; i < n; i++)
            text[i] = alpha[texttest_below(&rng, (uint32_t)strlen(alpha))];
        want = naive(ranks, text, n, sym);
        ck_assert_int_eq(tok_encode(tok, scratch, text, n, 0, ids, 400, &got), 0);
        ck_assert_msg(got == want, "%.*s: %zu ids, expected %zu", (int)n, text, got, want);
        for (size_t i = 0; i < got; i++) {
            const uint8_t *b;
            size_t len;

            ck_assert_int_ge(tok_bytes(tok, ids[i], &b, &len), 0);
            ck_assert_msg(len == strlen(sym[i]) && memcmp(b, sym[i], len) == 0,
                          "%.*s: id %zu is %.*s, expected %s", (int)n, text, i, (int)len, (const char *)b,
                          sym[i]);
        }
    }
    json_decref(ranks);
    free(sym);
}
END_TEST

START_TEST(markers_are_text_unless_asked) {
    static const char text[] = "a<|user|>b/nothink<think";
    uint32_t with[64], without[64];
    size_t n_with, n_without, n;
    char *back;

    ck_assert_int_eq(tok_encode(tok, scratch, text, strlen(text), 0, without, 64, &n_without), 0);
    for (size_t i = 0; i < n_without; i++) {
        const uint8_t *b;
        size_t len;

        ck_assert_int_eq(tok_bytes(tok, without[i], &b, &len) & TOK_ADDED, 0);
    }
    back = decode(without, n_without, &n);
    ck_assert(n == strlen(text) && memcmp(back, text, n) == 0);
    free(back);
    ck_assert_int_eq(tok_encode(tok, scratch, text, strlen(text), TOK_MARKERS, with, 64, &n_with), 0);
    ck_assert_uint_lt(n_with, n_without);
    ck_assert_int_eq(with[1], tok_id(tok, "<|user|>"));
    ck_assert_int_eq(with[3], tok_id(tok, "/nothink"));
    ck_assert_int_eq(tok_marker_at(tok, "</tool_call>x", 13, &n), tok_id(tok, "</tool_call>"));
    ck_assert_uint_eq(n, 12);
    ck_assert_int_eq(tok_marker_at(tok, "</tool_call", 11, &n), -ENOENT);
    ck_assert_int_eq(tok_id(tok, "<think"), -ENOENT);
    ck_assert_int_eq(tok_id(tok, ""), -ENOENT);
}
END_TEST

START_TEST(counts_limits_and_padding_rows) {
    uint32_t ids[16];
    size_t n = 77;
    const uint8_t *b;
    size_t len;

    ck_assert_uint_eq(tok_size(tok), 4096);
    ck_assert_uint_eq(tok_count(tok), 4096);
    for (uint32_t id = 4096; id < 4096 + 24; id++) /* rows that only pad the head */
        ck_assert_int_eq(tok_bytes(tok, id, &b, &len), -ENOENT);
    ck_assert_int_eq(tok_bytes(tok, UINT32_MAX, &b, &len), -ENOENT);
    ck_assert_int_eq(tok_encode(tok, scratch, "Hello, world!", 13, 0, ids, 6, &n), -ENOSPC);
    ck_assert_uint_eq(n, 77);
    ck_assert_int_eq(tok_encode(tok, scratch, "Hello, world!", 13, 0, NULL, 0, &n), 0);
    ck_assert_uint_eq(n, 7);
    ck_assert_int_eq(tok_encode(tok, scratch, "Hello, world!", 13, 0, ids, 7, &n), 0);
    ck_assert_int_eq(tok_encode(tok, scratch, "", 0, 0, ids, 0, &n), 0);
    ck_assert_uint_eq(n, 0);
}
END_TEST

START_TEST(invalid_utf8_is_refused) {
    static const char *const bad[] = {"a\xff",  "\xc3",    "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80",
                                      "x\x80y", "\xe2\x82"};
    uint32_t ids[16];
    size_t n = 5;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(tok_encode(tok, scratch, bad[i], strlen(bad[i]), 0, ids, 16, &n), -EILSEQ);
        ck_assert_int_eq(tok_encode(tok, scratch, bad[i], strlen(bad[i]), TOK_MARKERS, ids, 16, &n), -EILSEQ);
    }
    ck_assert_uint_eq(n, 5);
}
END_TEST

static double time_encode(const char *text, size_t n, unsigned flags) {
    uint32_t *ids = malloc(n * sizeof *ids);
    size_t got;
    double t = texttest_now();

    ck_assert_int_eq(tok_encode(tok, scratch, text, n, flags, ids, n, &got), 0);
    ck_assert(got > 0 && got <= n);
    t = texttest_now() - t;
    free(ids);
    return t;
}

/* The bounds are wide: a quadratic loop would need minutes. */
START_TEST(long_texts_stay_fast) {
    size_t mega = (size_t)1 << 20, ten = (size_t)10 << 20, at = 0;
    struct texttest_rng rng = {3};
    char *text = malloc(ten);
    double t;

    for (size_t i = 0; i < mega; i++)
        text[i] = (char)('a' + texttest_below(&rng, 26));
    t = time_encode(text, mega, 0);
    ck_assert_msg(t < 4 * texttest_slow(), "1 MiB of random letters without a break: %.1f s", t);
    memset(text, 'e', mega);
    t = time_encode(text, mega, 0);
    ck_assert_msg(t < 4 * texttest_slow(), "1 MiB of one letter: %.1f s", t);
    memset(text, '<', mega);
    t = time_encode(text, mega, TOK_MARKERS);
    ck_assert_msg(t < 4 * texttest_slow(), "1 MiB of marker beginnings: %.1f s", t);
    memset(text, ' ', mega);
    t = time_encode(text, mega, 0);
    ck_assert_msg(t < 4 * texttest_slow(), "1 MiB of spaces: %.1f s", t);
    while (ten - at > 16)
        at += texttest_text(&rng, text + at, ten - at < 4096 ? ten - at : 4096);
    t = time_encode(text, at, TOK_MARKERS);
    ck_assert_msg(t < 10 * texttest_slow(), "10 MiB of mixed text: %.1f s", t);
    free(text);
}
END_TEST

START_TEST(scratch_limit_is_an_error) {
    struct tok_scratch *small;
    size_t n = 1 << 16, got = 9;
    char *text = malloc(n);

    memset(text, 'q', n);
    ck_assert_int_eq(tok_scratch_new(1 << 20, &small), 0);
    ck_assert_int_eq(tok_encode(tok, small, text, n, 0, NULL, 0, &got), -E2BIG);
    ck_assert_uint_eq(got, 9);
    ck_assert_int_eq(tok_encode(tok, small, text, 1 << 14, 0, NULL, 0, &got),
                     0); /* usable after the refusal */
    ck_assert_ptr_null(tok_scratch_free(small));
    free(text);
}
END_TEST

START_TEST(random_text_round_trips) {
    struct texttest_rng rng = {99};
    char buf[600];
    uint32_t ids[600];

    for (unsigned i = 0; i < 3000; i++) {
        size_t n = texttest_text(&rng, buf, texttest_below(&rng, sizeof buf)), got, back_n;
        char *back;

        ck_assert_int_eq(tok_encode(tok, scratch, buf, n, i & 1 ? TOK_MARKERS : 0, ids, 600, &got), 0);
        back = decode(ids, got, &back_n);
        ck_assert(back_n == n && memcmp(back, buf, n) == 0);
        free(back);
    }
}
END_TEST

struct worker {
    pthread_t thread;
    uint64_t seed, sum;
};

static void *encode_much(void *arg) {
    struct worker *w = arg;
    struct texttest_rng rng = {w->seed};
    struct tok_scratch *mine;
    static const size_t sizes[] = {100, 3000};
    char *buf = malloc(3000);
    uint32_t *ids = malloc(3000 * sizeof *ids);

    w->sum = 0;
    if (tok_scratch_new(0, &mine) == 0) {
        for (unsigned i = 0; i < 60; i++) {
            size_t n = texttest_text(&rng, buf, sizes[i & 1]), got = 0;

            if (i % 3 == 0)
                memset(buf, 'a' + (int)(i % 26), n);
            if (tok_encode(tok, mine, buf, n, TOK_MARKERS, ids, 3000, &got) == 0) {
                for (size_t k = 0; k < got; k++)
                    w->sum = (w->sum + ids[k]) * UINT64_C(0x100000001b3);
            }
        }
        tok_scratch_free(mine);
    }
    free(buf);
    free(ids);
    return NULL;
}

/* One tokenizer, several threads with a scratch each: the same ids as alone. */
START_TEST(threads_share_a_tokenizer) {
    struct worker w[4];
    uint64_t alone[4];

    for (unsigned i = 0; i < 4; i++) {
        w[i].seed = 1000 + i;
        encode_much(&w[i]);
        alone[i] = w[i].sum;
        ck_assert(alone[i] != 0);
    }
    for (unsigned i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, encode_much, &w[i]), 0);
    for (unsigned i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_join(w[i].thread, NULL), 0);
        ck_assert(w[i].sum == alone[i]);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_tok");
    TCase *tc = tcase_create("tok");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120 * texttest_slow());
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, golden_pairs);
    tcase_add_test(tc, random_pairs);
    tcase_add_test(tc, both_merge_loops_equal_the_naive_one);
    tcase_add_test(tc, markers_are_text_unless_asked);
    tcase_add_test(tc, counts_limits_and_padding_rows);
    tcase_add_test(tc, invalid_utf8_is_refused);
    tcase_add_test(tc, long_texts_stay_fast);
    tcase_add_test(tc, scratch_limit_is_an_error);
    tcase_add_test(tc, random_text_round_trips);
    tcase_add_test(tc, threads_share_a_tokenizer);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
