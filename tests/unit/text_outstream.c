/* SPDX-License-Identifier: MIT */
/* Output parser over time: streaming, broken characters, stop strings, limits, random replies and random
 * ids. */
#include "jsonlite.h"
#include "outtest.h"
#include "texttest.h"
#include "utf8.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

START_TEST(arguments_stream_as_they_come) {
    static struct outtest_heard h;
    uint32_t ids[128];
    size_t n = outtest_ids(CALL "wx" K("city") "<arg_value>one two three four", ids, 128);

    outtest_run(outtest_parser, ids, n, (struct outtest_options){0}, &h);
    ck_assert_str_eq(h.text, "wx{\"city\": \"one two three four");
    ck_assert_uint_ge(h.events, 7);
}
END_TEST

START_TEST(broken_characters_and_splits) {
    static struct outtest_heard h;
    uint32_t ids[64], got[64];
    size_t n = 0, g;
    const struct outparse_result *r;

    /* one character of four bytes, one id a byte; nothing may come out before the last */
    ck_assert_int_eq(tok_encode(outtest_tok, outtest_scratch, "\xf0\x9f\xa5\x9d", 4, 0, ids, 64, &n), 0);
    ck_assert_uint_eq(n, 4);
    outtest_run(outtest_parser, ids, 3, (struct outtest_options){0}, &h);
    ck_assert_uint_eq(h.events, 0);
    outtest_run(outtest_parser, ids, 4, (struct outtest_options){0}, &h);
    ck_assert_str_eq(h.text, "C(\xf0\x9f\xa5\x9d)");
    /* the same, cut by the end, by a tag, by a byte that does not fit */
    r = outtest_run(outtest_parser, ids, 3, (struct outtest_options){.end = 'L'}, &h);
    ck_assert_str_eq(h.text, "C(\xef\xbf\xbd)");
    ck_assert_uint_eq(r->n_replaced, 1);
    memcpy(got, ids, 2 * sizeof *ids);
    g = 2 + outtest_ids("<think>r" U, got + 2, 60);
    outtest_run(outtest_parser, got, g, (struct outtest_options){0}, &h);
    ck_assert_str_eq(h.text, "C(\xef\xbf\xbd)R(r)");
    g = 2 + outtest_ids("x" U, got + 2, 60);
    outtest_run(outtest_parser, got, g, (struct outtest_options){0}, &h);
    ck_assert_str_eq(h.text, "C(\xef\xbf\xbdx)");
    /* inside an argument */
    g = outtest_ids(CALL "wx" K("city") "<arg_value>", got, 60);
    memcpy(got + g, ids, 3 * sizeof *ids);
    g += 3;
    g += outtest_ids("</arg_value>" END OBS, got + g, 64 - g);
    outtest_run(outtest_parser, got, g, (struct outtest_options){0}, &h);
    ck_assert_str_eq(h.text, "wx{\"city\": \"\xef\xbf\xbd\"}.");
    /* padding rows and holes say nothing */
    got[0] = 4096;
    got[1] = UINT32_MAX;
    g = 2 + outtest_ids("x" U, got + 2, 60);
    outtest_run(outtest_parser, got, g, (struct outtest_options){0}, &h);
    ck_assert_str_eq(h.text, "C(x)");
}
END_TEST

/* Scripts whose characters take several ids, one id a byte in the worst case: what comes out, piece by piece
 * whole characters, is the text. */
static void whole_characters(void *arg, const struct outparse_ev *ev) {
    char **w = arg;

    must(ev->kind == OUT_EV_TEXT && utf8_is_valid(ev->text, ev->n));
    memcpy(*w, ev->text, ev->n);
    *w += ev->n;
}

START_TEST(scripts_byte_by_byte) {
    static const char *const texts[] = {
        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7\xf0\x9f\x8f\xbd", /* joined
                                                                                                     */
        "Za\xc5\xbc\xc3\xb3\xc5\x82\xc4\x87 g\xc4\x99\xc5\x9bl\xc4\x85 ja\xc5\xba\xc5\x84",
        "\xed\x95\x9c\xea\xb8\x80\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab",
        "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xf0\xa0\xae\xb7",
        "e\xcc\x81\xd8\xb9\xd9\x84\xd9\x89 \xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d",
        "\xef\xbf\xbd\xf4\x8f\xbf\xbf\xef\xbb\xbf",
    };
    uint32_t byte_id[256];

    for (uint32_t id = 0; id < tok_size(outtest_tok); id++) {
        const uint8_t *b;
        size_t n;

        if (tok_bytes(outtest_tok, id, &b, &n) == 0 && n == 1)
            byte_id[b[0]] = id;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (unsigned as_encoded = 0; as_encoded < 2; as_encoded++) {
            char got[128], *w = got;
            uint32_t ids[128];
            size_t n = 0, len = strlen(texts[i]);
            struct outparse_req req = {.vocab = &outtest_vocab, .sink = whole_characters, .arg = &w};

            if (as_encoded)
                ck_assert_int_eq(tok_encode(outtest_tok, outtest_scratch, texts[i], len, 0, ids, 128, &n), 0);
            else
                for (; n < len; n++)
                    ids[n] = byte_id[(uint8_t)texts[i][n]];
            outparse_start(outtest_parser, &req);
            for (size_t k = 0; k < n; k++)
                outparse_push(outtest_parser, ids[k]);
            outparse_end(outtest_parser, true);
            ck_assert_uint_eq((size_t)(w - got), len);
            ck_assert_mem_eq(got, texts[i], len);
            ck_assert_uint_eq(outparse_result(outtest_parser)->n_replaced, 0);
        }
}
END_TEST

/* Whatever thousand requests left behind, the next one is read as by a new parser. */
START_TEST(garbage_leaves_nothing) {
    static struct outtest_heard h;
    struct texttest_rng rng = {4321};
    uint32_t good[64], ids[64];
    size_t n = outtest_ids("a" CALL "wx" K("city") V("Lima") END OBS, good, 64);

    for (unsigned round = 0; round < 1000; round++) {
        size_t len = 1 + texttest_below(&rng, 64);

        for (size_t i = 0; i < len; i++)
            ids[i] = texttest_below(&rng, 2) ? 4060 + texttest_below(&rng, 36) : texttest_below(&rng, 4060);
        outtest_run(outtest_parser, ids, len,
                    (struct outtest_options){.open = round & 1, .end = round & 2 ? 'L' : 0}, &h);
        if (round % 10 && round != 999)
            continue;
        outtest_run(outtest_parser, good, n, (struct outtest_options){0}, &h);
        ck_assert_str_eq(h.text, "C(a)wx{\"city\": \"Lima\"}.");
    }
}
END_TEST

/* No added token of the file shows up as text that it should not: role and control markers never, in content,
 * reasoning or after a call. */
START_TEST(control_markers_never_show) {
    static struct outtest_heard h;
    unsigned n = 0;

    for (uint32_t id = 0; id < tok_size(outtest_tok); id++) {
        const uint8_t *b;
        size_t len, k, m;
        char marker[64];
        uint32_t ids[64];
        int flags = tok_bytes(outtest_tok, id, &b, &len);

        if (flags < 0 || !(flags & TOK_SPECIAL) || id == outtest_vocab.call)
            continue; /* a call begun inside reasoning is another test's */
        snprintf(marker, sizeof marker, "%.*s", (int)len, (const char *)b);
        for (unsigned where = 0; where < 3; where++) {
            k = outtest_ids(where == 2 ? CALL "ping" END "x" : "x", ids, 32);
            ids[k++] = id;
            m = outtest_ids(where == 1 ? "y</think>z" : "y", ids + k, 32);
            outtest_run(outtest_parser, ids, k + m, (struct outtest_options){.open = where == 1, .end = 'L'},
                        &h);
            ck_assert_msg(!strstr(h.text, marker) && strchr(h.text, 'x'), "%s: %s", marker, h.text);
        }
        n++;
    }
    ck_assert_uint_ge(n, 18);
}
END_TEST

START_TEST(stop_strings_in_content_only) {
    static const char *const strings[] = {"END", "two words"};
    static const size_t lens[] = {3, 9};
    static struct stopstr_set set;
    static struct outtest_heard h;
    static const struct {
        const char *in, *out;
        enum outparse_finish finish;
        int index;
        bool open;
    } cases[] = {
        {"it is the END of it" U, "C(it is the )", OUT_FINISH_STOP_STRING, 0, false},
        {"END</think>a two wordsx" U, "R(END)C(a )", OUT_FINISH_STOP_STRING, 1, true},
        {"a two" U, "C(a two)", STOP, -1, false},
        {"a E<think>ND</think>ND" U, "C(a E)R(ND)C(ND)", STOP, -1, false},
        {"E" CALL "ping" END "ND" OBS, "C(E)ping{}.C(ND)", CALLS, -1, false},
        {CALL "wx" K("city") V("END") END OBS, "wx{\"city\": \"END\"}.", CALLS, -1, false},
        {CALL "no END" END "xEND" U, "C(<tool_call>no END</tool_call>x)", OUT_FINISH_STOP_STRING, 0, false},
        {CALL "ping" END "END", "ping{}.", OUT_FINISH_STOP_STRING, 0, false},
    };

    ck_assert_int_eq(stopstr_set_init(&set, strings, lens, 2), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t ids[128];
        size_t n = outtest_ids(cases[i].in, ids, 128);
        const struct outparse_result *r = outtest_run(
            outtest_parser, ids, n, (struct outtest_options){.open = cases[i].open, .stop = &set}, &h);

        ck_assert_msg(strcmp(h.text, cases[i].out) == 0, "in:   %s\nout:  %s\nwant: %s", cases[i].in, h.text,
                      cases[i].out);
        ck_assert_int_eq(r->finish, cases[i].finish);
        ck_assert_int_eq(r->stop_index, cases[i].index);
    }
}
END_TEST

START_TEST(limits_are_reported) {
    static struct outtest_heard h;
    static const struct {
        const char *in, *out;
        unsigned flags;
        bool open;
    } cases[] = {
        {CALL "a name that is too long" END "b" U, "C(<tool_call>a name that is too long</tool_call>b)",
         OUT_OVER_HOLD | OUT_CALL_AS_TEXT, false},
        {CALL "any" K("arr") V("[1, 2, 3, 4, 5, 6, 7, 8]") K("i") V("1") END OBS,
         "any{\"arr\": \"[1, 2, 3, 4, 5, 6, 7, 8]\", \"i\": 1}.", OUT_OVER_HOLD, false},
        {CALL "ping" K("much too long a key") V("v") K("k") V("1") END OBS, "ping{\"k\": 1}.", OUT_OVER_KEY,
         false},
        {"r" CALL "wx" K("city") V("one two three four five") END "x</think>c" U,
         "R(r)wx{\"city\": \"one two three four five\"}.R(x)C(c)", OUT_OVER_TOKENS | OUT_CALL_IN_THINK, true},
        {"r" CALL "ping" END "one two three four five six seven</think>c" U,
         "R(r<tool_call>ping</tool_call>one two three four five six seven)C(c)", OUT_OVER_TOKENS, true},
    };
    void *mem;
    struct outparse *p =
        outtest_small((struct outparse_limits){.hold_bytes = 12, .key_bytes = 8, .hold_tokens = 8}, &mem);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t ids[128];
        size_t n = outtest_ids(cases[i].in, ids, 128);
        const struct outparse_result *r =
            outtest_run(p, ids, n, (struct outtest_options){.open = cases[i].open}, &h);

        ck_assert_msg(strcmp(h.text, cases[i].out) == 0, "in:   %s\nout:  %s\nwant: %s", cases[i].in, h.text,
                      cases[i].out);
        ck_assert_uint_eq(r->flags, cases[i].flags);
    }
    ck_assert_int_eq(outparse_init(mem, SIZE_MAX, &(struct outparse_limits){0, 1, 1}, outtest_tok, &p),
                     -EINVAL);
    ck_assert_uint_eq(outparse_bytes(&(struct outparse_limits){SIZE_MAX, 1, 1}, outtest_tok), SIZE_MAX);
    free(mem);
}
END_TEST

START_TEST(counts_of_tokens) {
    static struct outtest_heard h;
    uint32_t ids[128];
    size_t n = outtest_ids("<think>", ids, 1), k;
    const struct outparse_result *r;

    n = outtest_ids("\1aa bb\2", ids, 128);
    k = outtest_ids("</think>c" U, ids + n, 128 - n);
    r = outtest_run(outtest_parser, ids, n + k, (struct outtest_options){.open = true}, &h);
    ck_assert_uint_eq(r->n_reasoning_tokens, n + 1);
    ck_assert_uint_eq(r->n_tokens, n + k);
    n = outtest_ids("a" CALL "ping" END "b</think>c" U, ids, 128);
    r = outtest_run(outtest_parser, ids, n, (struct outtest_options){.open = true}, &h);
    ck_assert_uint_eq(r->n_reasoning_tokens, n - 2); /* a rehearsal: all but "c" and the end */
    n = outtest_ids("a" CALL "ping" END OBS, ids, 128);
    r = outtest_run(outtest_parser, ids, n, (struct outtest_options){.open = true}, &h);
    ck_assert_uint_eq(r->n_reasoning_tokens, 1);
}
END_TEST

/* Random well-formed replies whose meaning is known beforehand. */
static size_t random_word(struct texttest_rng *rng, char *out) {
    size_t n = 1 + texttest_below(rng, 12);

    for (size_t i = 0; i < n; i++)
        out[i] = "abcdefghij klmnop.,ZYX"[texttest_below(rng, 22)];
    out[n] = 0;
    return n;
}

START_TEST(random_replies_mean_what_they_say) {
    static struct outtest_heard h;
    static char in[1 << 14], want[1 << 14];
    static uint32_t ids[1 << 14];
    struct texttest_rng rng = {42};

    for (unsigned round = 0; round < 3000; round++) {
        size_t w = 0, v = 0, n, calls = texttest_below(&rng, 4);
        bool open = round & 1;
        char word[32];
        const struct outparse_result *r;

        if (open) {
            random_word(&rng, word);
            w += (size_t)sprintf(in + w, "%s</think>", word);
            v += (size_t)sprintf(want + v, "R(%s)", word);
        }
        random_word(&rng, word);
        w += (size_t)sprintf(in + w, "%s", word);
        v += (size_t)sprintf(want + v, "C(%s)", word);
        for (size_t i = 0; i < calls; i++) {
            size_t pairs = texttest_below(&rng, 4);

            w += (size_t)sprintf(in + w, CALL "any");
            v += (size_t)sprintf(want + v, "any{");
            for (size_t k = 0; k < pairs; k++) {
                v += (size_t)sprintf(want + v, "%s", k ? ", " : "");
                if (texttest_below(&rng, 2)) {
                    random_word(&rng, word);
                    w += (size_t)sprintf(in + w, K("x") V("%s"), word);
                    v += (size_t)sprintf(want + v, "\"x\": \"%s\"", word);
                } else {
                    uint32_t num = texttest_below(&rng, 100000);

                    w += (size_t)sprintf(in + w, K("i") V("%u"), num);
                    v += (size_t)sprintf(want + v, "\"i\": %u", num);
                }
            }
            w += (size_t)sprintf(in + w, END);
            v += (size_t)sprintf(want + v, "}.");
        }
        sprintf(in + w, calls ? OBS : U);
        n = outtest_ids(in, ids, 1 << 14);
        r = outtest_run(outtest_parser, ids, n, (struct outtest_options){.open = open}, &h);
        ck_assert_str_eq(h.text, want);
        ck_assert_int_eq(r->finish, calls ? CALLS : STOP);
        ck_assert_uint_eq(r->flags, 0);
    }
}
END_TEST

/* Any ids at all: no crash, every complete call's arguments are one JSON object, and the bytes do not
 * depend on how much the outtest_parser may hold, as long as nothing overflows. */
struct calls_seen {
    char args[1 << 15];
    size_t n;
    unsigned complete;
    uint64_t sum; /* of every byte of every event, by channel */
};

static void on_soup(void *arg, const struct outparse_ev *ev) {
    struct calls_seen *c = arg;

    must(ev->n == 0 || utf8_is_valid(ev->text, ev->n));
    for (size_t i = 0; i < ev->n; i++)
        c->sum = (c->sum + (uint8_t)ev->text[i] + 256u * ev->channel) * UINT64_C(0x100000001b3);
    if (ev->kind == OUT_EV_CALL) {
        c->n = 0;
    } else if (ev->kind == OUT_EV_ARGS) {
        must(c->n + ev->n < sizeof c->args);
        memcpy(c->args + c->n, ev->text, ev->n);
        c->n += ev->n;
    } else if (ev->kind == OUT_EV_CALL_END && ev->complete) {
        c->complete++;
        ck_assert_msg(jl_check(c->args, c->n, 64, NULL, NULL) == JL_OBJECT, "arguments: %.*s", (int)c->n,
                      c->args);
    }
}

START_TEST(token_soup) {
    static struct calls_seen a, b;
    struct texttest_rng rng = {1234};
    struct outparse_limits roomy = {1 << 20, 1 << 12, 1 << 16};
    void *mem;
    struct outparse *big = outtest_small(roomy, &mem);
    unsigned complete = 0, held = 0;
    uint32_t ids[320], bits[8][16];
    size_t n_bits[8];
    static const char *const likely[8] = {"wx", "ping", "city", "days", "12", "{\"city\": 1}", " ", "run_in"};

    for (size_t i = 0; i < 8; i++)
        n_bits[i] = outtest_ids(likely[i], bits[i], 16);
    for (unsigned round = 0; round < 12000; round++) {
        size_t n = 0, len = 1 + texttest_below(&rng, 250);
        struct outparse_req req = {.vocab = &outtest_vocab,
                                   .tools = outtest_tools,
                                   .thinking_open = round % 3 == 0,
                                   .sink = on_soup,
                                   .ignore_eos = round % 5 == 0};
        bool length = round & 1;

        while (n < len) {
            uint32_t k = texttest_below(&rng, 10);

            if (k < 6) {
                ids[n++] = 4081 + texttest_below(&rng, 10); /* the markers of the format */
            } else if (k < 9) {
                uint32_t w = texttest_below(&rng, 8);

                memcpy(ids + n, bits[w], n_bits[w] * sizeof *ids);
                n += n_bits[w];
            } else {
                ids[n++] = texttest_below(&rng, round % 7 ? 4060 : 4200);
            }
        }
        a.sum = b.sum = a.complete = b.complete = 0;
        req.arg = &a;
        outparse_start(outtest_parser, &req);
        for (size_t i = 0; i < n; i++)
            outparse_push(outtest_parser, ids[i]);
        outparse_end(outtest_parser, length);
        req.arg = &b;
        outparse_start(big, &req);
        for (size_t i = 0; i < n; i++)
            outparse_push(big, ids[i]);
        outparse_end(big, length);
        must(a.sum == b.sum);
        must(a.complete == b.complete);
        must(outparse_result(outtest_parser)->n_calls == a.complete);
        must(outparse_result(outtest_parser)->flags == outparse_result(big)->flags);
        must(outparse_result(outtest_parser)->finish != OUT_FINISH_NONE);
        complete += a.complete;
        held += (outparse_result(outtest_parser)->flags & OUT_CALL_IN_THINK) != 0;
    }
    must(complete > 1000);
    must(held > 30);
    free(mem);
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_outstream");
    TCase *tc = tcase_create("outparse");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60 * texttest_slow());
    tcase_add_checked_fixture(tc, outtest_setup, outtest_teardown);
    tcase_add_test(tc, arguments_stream_as_they_come);
    tcase_add_test(tc, broken_characters_and_splits);
    tcase_add_test(tc, scripts_byte_by_byte);
    tcase_add_test(tc, garbage_leaves_nothing);
    tcase_add_test(tc, control_markers_never_show);
    tcase_add_test(tc, stop_strings_in_content_only);
    tcase_add_test(tc, limits_are_reported);
    tcase_add_test(tc, counts_of_tokens);
    tcase_add_test(tc, random_replies_mean_what_they_say);
    tcase_add_test(tc, token_soup);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
