/* SPDX-License-Identifier: MIT */
/* The engine's control automaton and the output parser read the same ids and must agree on where a reply
 * stands: when they do not, a stop string ends what the client sees and the engine goes on, or reasoning is
 * counted and closed that the client sees as an argument. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "leakcheck.h"
#include "outtest.h"
#include "texttest.h"

enum { IDS = 200, ROUNDS = 4000 };

static uint8_t *bytes;
static uint32_t *offsets;
static struct vocab_view view;
static struct outtools *tools_p;

static void setup(void) {
    uint32_t n, at = 0;
    const uint8_t *b;
    size_t len;

    outtest_setup();
    ck_assert_int_eq(outtools_new(&(struct tstr){ "{\"name\": \"p\"}", 13 }, 1, &tools_p, NULL), 0);
    n = tok_size(outtest_tok);
    offsets = calloc(n + 1, sizeof *offsets);
    bytes = malloc(n * tok_max_bytes(outtest_tok));
    for (uint32_t i = 0; i < n; i++) {
        if (tok_bytes(outtest_tok, i, &b, &len) >= 0) {
            memcpy(bytes + at, b, len);
            at += (uint32_t)len;
        }
        offsets[i + 1] = at;
    }
    view = (struct vocab_view){ .bytes = bytes, .offsets = offsets, .n_tokens = n,
                                .stop_ids = outtest_vocab.eos, .n_stop_ids = (uint32_t)outtest_vocab.n_eos,
                                .think_open = outtest_vocab.think, .think_close = outtest_vocab.think_end,
                                .tool_open = outtest_vocab.call, .tool_close = outtest_vocab.call_end,
                                .key_open = outtest_vocab.key, .key_close = outtest_vocab.key_end,
                                .value_open = outtest_vocab.value, .value_close = outtest_vocab.value_end,
                                .text_end = UINT32_MAX };
}

static void teardown(void) {
    outtools_free(tools_p);
    free(bytes);
    free(offsets);
    outtest_teardown();
}

static void nothing(void *arg, const struct outparse_ev *ev) {
    (void)arg;
    (void)ev;
}

static uint32_t letter(const char *text) {
    uint32_t id;

    must(outtest_ids(text, &id, 1) == 1);
    return id;
}

/* Marks and the letters of the stop string; a call has the name of a tool, or of none, in front of its first mark. */
static uint32_t pick(struct texttest_rng *r, const struct control *c, uint32_t before, uint32_t name) {
    const uint32_t marks[] = { view.key_open,   view.key_close,  view.value_open, view.tool_close, view.tool_open,
                               view.think_open, view.think_close, view.value_close };
    uint32_t one = texttest_below(r, 20);

    if (c->where == CONTROL_NAME)
        return before == view.tool_open ? name : marks[one % 8];
    return one < 8 ? marks[one] : one < 14 ? letter("a") : one < 18 ? letter("b") : letter("c");
}

START_TEST(the_same_places) {
    static const char stop[] = "abb";
    const char *strings[1] = { stop };
    const size_t lens[1] = { 3 };
    const struct sched_text text = { .s = stop, .len = 3 };
    static struct stopstr_set set;
    struct texttest_rng rng = { .s = 7 };
    uint32_t ends = 0, name, nobody;

    name = letter("p");
    nobody = letter("q");
    ck_assert_int_eq(stopstr_set_init(&set, strings, lens, 1), 0);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        bool open = texttest_below(&rng, 2), tools = texttest_below(&rng, 4);
        struct outparse_req q = { .vocab = &outtest_vocab, .tools = tools ? tools_p : NULL, .stop = &set,
                                  .thinking_open = open, .sink = nothing };
        struct sched_req req = { .n_ids = 1, .in_reasoning = open, .stops = &text, .n_stops = 1,
                                 .control.tools_offered = tools };
        static struct control c;
        uint32_t before = UINT32_MAX;

        outparse_start(outtest_parser, &q);
        control_begin(&c, &view, &req, 100000);
        for (uint32_t i = 0; i < IDS; i++) {
            uint32_t id = pick(&rng, &c, before, texttest_below(&rng, 3) ? name : nobody);
            enum control_verdict v = control_token(&c, id);
            const struct outparse_result *res = outparse_result(outtest_parser);
            bool ended;

            outparse_push(outtest_parser, id);
            ended = res->finish != OUT_FINISH_NONE;
            if ((v == CONTROL_STOP_STRING) != ended)
                ck_abort_msg("round %u, id %u: %d, %d", round, i, (int)v, (int)res->finish);
            if (ended)
                break;
            must((c.where == CONTROL_CONTENT) == outparse_in_content(outtest_parser));
            before = id;
        }
        ends += outparse_result(outtest_parser)->finish != OUT_FINISH_NONE;
    }
    ck_assert_uint_gt(ends, ROUNDS / 4); /* otherwise the test would say little */
    ck_assert_uint_lt(ends, ROUNDS);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_channels");
    TCase *tc = tcase_create("channels");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_same_places);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
