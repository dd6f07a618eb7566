/* SPDX-License-Identifier: MIT */
/* The control automaton: stop ids, bans, stop strings over tokens and channels, limits, reasoning and its
 * budget, the loop guard, calls. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "controltest.h"
#include "leakcheck.h"

static const struct sched_text STOP_STOP = { .s = "STOP", .len = 4 };

static struct control *begin(struct sched_req *q, const struct sched_text *stops, uint32_t n_stops) {
    static struct control c;

    q->stops = stops;
    q->n_stops = n_stops;
    if (!q->n_ids)
        q->n_ids = 10;
    ck_assert_int_eq(control_check(q, T_N), 0);
    control_begin(&c, &controltest_vocab, q, 1000);
    return &c;
}

/* Feeds tokens (ended by UINT32_MAX); returns the verdict of the last and demands GO before it. */
static enum control_verdict feed(struct control *c, const uint32_t *t) {
    enum control_verdict v = CONTROL_GO;

    for (; *t != UINT32_MAX; t++) {
        ck_assert_int_eq(v, CONTROL_GO);
        v = control_token(c, *t);
    }
    return v;
}
#define FEED(c, ...) feed(c, (const uint32_t[]){ __VA_ARGS__, UINT32_MAX })

START_TEST(test_limit) {
    ck_assert_uint_eq(control_limit(10, 0, 100), 90);
    ck_assert_uint_eq(control_limit(10, 5, 100), 5);
    ck_assert_uint_eq(control_limit(10, 500, 100), 90);
    ck_assert_uint_eq(control_limit(99, 0, 100), 1);
    ck_assert_uint_eq(control_limit(100, 0, 100), 0);
    ck_assert_uint_eq(control_limit(UINT32_MAX, 1, 100), 0);
}
END_TEST

START_TEST(test_stop_ids) {
    struct sched_req q = { .min_tokens = 2 };
    struct control *c = begin(&q, NULL, 0);
    struct control_next next;

    control_next(c, &next);
    ck_assert_uint_eq(next.n_ban, 2);
    ck_assert_int_eq(control_token(c, 0), CONTROL_GO);
    control_next(c, &next);
    ck_assert_uint_eq(next.n_ban, 2);
    ck_assert_int_eq(control_token(c, 0), CONTROL_GO);
    control_next(c, &next);
    ck_assert_uint_eq(next.n_ban, 0);
    ck_assert_int_eq(control_token(c, T_ASSIST), CONTROL_STOP_ID);
    ck_assert_uint_eq(c->n_out, 3);
    q = (struct sched_req){ .ignore_eos = true, .max_tokens = 3 };
    c = begin(&q, NULL, 0);
    ck_assert_int_eq(FEED(c, 0, 1, 2), CONTROL_LENGTH);
    control_next(c, &next);
    ck_assert_uint_eq(next.n_ban, 2);
}
END_TEST

START_TEST(test_stop_strings) {
    struct sched_req q = { 0 };
    struct sched_text two[2] = { { .s = "zz", .len = 2 }, { .s = "abc", .len = 3 } };

    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STOP), CONTROL_STOP_STRING); /* inside one token */
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), 0, T_STO, T_P), CONTROL_STOP_STRING); /* over two */
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STO, T_EMPTY, T_P), CONTROL_STOP_STRING);
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STO, 0, T_P), CONTROL_GO);
    ck_assert_int_eq(FEED(begin(&q, two, 2), 0, 1, 25, 25), CONTROL_STOP_STRING);
    ck_assert_int_eq(FEED(begin(&q, two, 2), 0, 0, 1, 2), CONTROL_STOP_STRING);
    ck_assert_int_eq(FEED(begin(&q, two, 2), 0, 1, 0, 2), CONTROL_GO);
    q.max_tokens = 1; /* the string wins over the limit */
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STOP), CONTROL_STOP_STRING);
    ck_assert_int_eq(FEED(begin(&q, &STOP_STOP, 1), T_STO), CONTROL_LENGTH);
}
END_TEST

/* Asleep while a think block is open, awake right after it, also within the first token; not across marks. */
START_TEST(test_channels) {
    struct sched_req q = { .in_reasoning = true };
    struct control *c = begin(&q, &STOP_STOP, 1);

    ck_assert_int_eq(FEED(c, T_STOP, T_STO, T_P, T_NOTHINK), CONTROL_GO);
    ck_assert_uint_eq(c->n_reasoning, 4);
    ck_assert_int_eq(FEED(c, T_STOP), CONTROL_STOP_STRING);
    ck_assert_uint_eq(c->n_reasoning, 4);
    c = begin(&q, &STOP_STOP, 1);
    ck_assert_int_eq(FEED(c, T_STO, T_NOTHINK, T_P), CONTROL_GO); /* half of it was thought */
    q.in_reasoning = false;
    c = begin(&q, &STOP_STOP, 1);
    ck_assert_int_eq(FEED(c, 0, T_THINK, T_STOP, T_NOTHINK, T_STO, T_THINK, T_NOTHINK, T_P), CONTROL_GO);
    ck_assert_uint_eq(c->n_reasoning, 5);
    c = begin(&q, &STOP_STOP, 1);
    ck_assert_int_eq(FEED(c, T_CALL, T_STOP, T_NOCALL, T_STO, T_CALL, T_NOCALL, T_P), CONTROL_GO);
    ck_assert_int_eq(FEED(c, T_STOP), CONTROL_STOP_STRING);
}
END_TEST

START_TEST(test_no_marks) {
    struct vocab_view bare = controltest_vocab;
    struct sched_req q = { .n_ids = 1 };
    struct control c;

    bare.think_open = bare.think_close = bare.tool_open = bare.tool_close = UINT32_MAX;
    bare.key_open = bare.key_close = bare.value_open = bare.value_close = bare.text_end = UINT32_MAX;
    bare.n_tokens = 3; /* ids above have no bytes */
    control_begin(&c, &bare, &q, 10);
    ck_assert_int_eq(control_token(&c, T_THINK), CONTROL_GO);
    ck_assert_int_eq(c.where, CONTROL_CONTENT);
    q.stops = &STOP_STOP;
    q.n_stops = 1;
    control_begin(&c, &bare, &q, 10);
    ck_assert_int_eq(control_token(&c, T_STOP), CONTROL_GO);
}
END_TEST

/* A mark is one only where the parser takes it for one: in an argument it is text of the argument. */
START_TEST(test_marks_in_calls) {
    struct sched_req q = { .control.tools_offered = true };
    struct control *c = begin(&q, &STOP_STOP, 1);

    ck_assert_int_eq(FEED(c, T_CALL, 0, T_THINK, T_KEY, T_NOTHINK, T_NOKEY, T_VALUE, T_THINK, T_STOP, T_KEY, T_NOVALUE),
                     CONTROL_GO);
    ck_assert_int_eq(c->where, CONTROL_ARGS);
    ck_assert_int_eq(FEED(c, T_NOCALL, T_STOP), CONTROL_STOP_STRING);
    ck_assert_uint_eq(c->n_reasoning, 0);
    ck_assert_uint_eq(c->n_calls_done, 1);
    c = begin(&q, &STOP_STOP, 1); /* behind a pair it ends the call, whose end is missing */
    ck_assert_int_eq(FEED(c, T_CALL, 0, T_KEY, 1, T_NOKEY, T_VALUE, 2, T_NOVALUE, T_THINK, T_STOP), CONTROL_GO);
    ck_assert_int_eq(c->where, CONTROL_REASONING);
    ck_assert_int_eq(FEED(c, T_NOTHINK, T_STOP), CONTROL_STOP_STRING);
    c = begin(&q, &STOP_STOP, 1); /* strays are not searched, and what stands before them goes on */
    ck_assert_int_eq(FEED(c, T_STO, T_NOTHINK, T_NOCALL, T_NOVALUE, T_P), CONTROL_STOP_STRING);
    q.control.tools_offered = false;
    c = begin(&q, &STOP_STOP, 1);
    ck_assert_int_eq(FEED(c, T_CALL, T_THINK, T_STOP, T_NOCALL, T_STOP), CONTROL_STOP_STRING);
}
END_TEST

static bool banned(const struct control *c, uint32_t id);

/* A thought does not end in another speaker's turn, unless a call was made in it. */
START_TEST(test_no_turn_in_thought) {
    struct sched_req q = { .in_reasoning = true, .control.tools_offered = true };
    struct control *c = begin(&q, NULL, 0);

    ck_assert(banned(c, T_ASSIST) && !banned(c, T_EOS));
    FEED(c, 0, T_CALL);
    ck_assert(!banned(c, T_ASSIST));
    FEED(c, 1, T_NOCALL);
    ck_assert(!banned(c, T_ASSIST) && !banned(c, T_EOS));
    FEED(c, T_NOTHINK);
    ck_assert(!banned(c, T_ASSIST));
    FEED(c, 0, T_THINK);
    ck_assert(banned(c, T_ASSIST));
    q.min_tokens = 100;
    c = begin(&q, NULL, 0);
    ck_assert(banned(c, T_ASSIST) && banned(c, T_EOS));
}
END_TEST

static const uint32_t CLOSE[2] = { 13, 11 };

/* Takes what is forced until nothing is; returns how many. */
static uint32_t forced(struct control *c, enum control_verdict want) {
    struct control_next next;
    uint32_t n = 0;

    for (control_next(c, &next); next.forced != CONTROL_NONE; control_next(c, &next), n++) {
        enum control_verdict v = control_token(c, next.forced);

        ck_assert(c->forced);
        ck_assert_uint_lt(n, 64);
        if (v != CONTROL_GO) {
            ck_assert_int_eq(v, want);
            return n + 1;
        }
    }
    return n;
}

static bool banned(const struct control *c, uint32_t id) {
    struct control_next next;

    control_next(c, &next);
    for (uint32_t i = 0; i < next.n_ban; i++)
        if (next.ban[i] == id)
            return true;
    return false;
}

START_TEST(test_budget) {
    struct sched_req q = { .in_reasoning = true,
                           .control = { .has_budget = true, .budget = 5, .close = CLOSE, .n_close = 2 } };
    struct control *c;
    struct control_next next;

    for (uint32_t n = 0; n < 9; n++) {
        q.control.budget = n;
        c = begin(&q, &STOP_STOP, 1);
        for (uint32_t i = 0; i < n; i++) {
            control_next(c, &next);
            ck_assert_uint_eq(next.forced, CONTROL_NONE);
            ck_assert_int_eq(control_token(c, T_STOP), CONTROL_GO);
            ck_assert(!c->forced);
        }
        control_next(c, &next); /* an empty block is closed without words */
        ck_assert_uint_eq(next.forced, n ? CLOSE[0] : T_NOTHINK);
        ck_assert_uint_eq(forced(c, CONTROL_GO), n ? 3 : 1);
        ck_assert_int_eq(c->where, CONTROL_CONTENT);
        ck_assert(c->budget_closed && !c->loop_closed);
        ck_assert_uint_eq(c->n_reasoning, n + (n ? 3 : 1));
        ck_assert(banned(c, T_THINK)); /* spent */
        ck_assert_int_eq(control_token(c, T_STOP), CONTROL_STOP_STRING);
    }
    c = begin(&q, NULL, 0); /* closed by the model itself: nothing is forced, the rest counts for the next block */
    ck_assert_int_eq(FEED(c, 0, 1, 2, T_NOTHINK, 0, T_THINK, 0, 1, 2, 3), CONTROL_GO);
    ck_assert(!banned(c, T_THINK) && !c->budget_closed);
    ck_assert_uint_eq(forced(c, CONTROL_GO), 0);
    ck_assert_int_eq(FEED(c, 4), CONTROL_GO);
    ck_assert_uint_eq(forced(c, CONTROL_GO), 3);
    ck_assert_uint_eq(c->n_thought, 8);
    q.in_reasoning = false; /* thinking is off: nothing to close until the model opens a block */
    q.control.budget = 1;
    c = begin(&q, NULL, 0);
    ck_assert_int_eq(FEED(c, 0, 1, 2), CONTROL_GO);
    ck_assert_uint_eq(forced(c, CONTROL_GO), 0);
    ck_assert_int_eq(FEED(c, T_THINK, 1), CONTROL_GO);
    ck_assert_uint_eq(forced(c, CONTROL_GO), 3);
}
END_TEST

/* However large the budget, an answer finds room. */
START_TEST(test_budget_leaves_room) {
    struct sched_req q = { .in_reasoning = true, .max_tokens = 40,
                           .control = { .has_budget = true, .budget = 1000, .close = CLOSE, .n_close = 2 } };
    struct control *c = begin(&q, NULL, 0);
    enum control_verdict v = CONTROL_GO;

    ck_assert_uint_eq(control_budget(1000, 2, 40), 27);
    ck_assert_uint_eq(control_budget(20, 2, 40), 20);
    ck_assert_uint_eq(control_budget(100000, 2, 100000), 100000 - 1024 - 3);
    ck_assert_uint_eq(control_budget(1000, 2, 4), 0);
    ck_assert_uint_eq(control_budget(1000, 2, 3), 0);
    for (uint32_t i = 0; i < 27; i++)
        ck_assert_int_eq(control_token(c, i % 20), CONTROL_GO);
    ck_assert_uint_eq(forced(c, CONTROL_GO), 3);
    for (uint32_t i = 0; i < 10; i++) {
        ck_assert_int_eq(v, CONTROL_GO);
        v = control_token(c, i);
    }
    ck_assert_int_eq(v, CONTROL_LENGTH);
    for (q.max_tokens = 1; q.max_tokens < 8; q.max_tokens++) { /* none too short */
        c = begin(&q, NULL, 0);
        for (v = CONTROL_GO; v == CONTROL_GO;) {
            struct control_next next;

            control_next(c, &next);
            v = control_token(c, next.forced == CONTROL_NONE ? 1 : next.forced);
        }
        ck_assert_int_eq(v, CONTROL_LENGTH);
        ck_assert_uint_eq(c->n_out, q.max_tokens);
        ck_assert_int_eq(c->where, CONTROL_CONTENT);
    }
}
END_TEST

/* A cycle of p tokens that has held for 256, wherever it began; and no text with a longer cycle. */
START_TEST(test_loop_guard) {
    struct sched_req q = { .in_reasoning = true, .control = { .loop_guard = true, .close = CLOSE, .n_close = 2 } };
    struct control *c;

    for (uint32_t p = 1; p <= 26; p++) {
        for (uint32_t lead = 0; lead < 30; lead += 7) {
            c = begin(&q, NULL, 0);
            for (uint32_t i = 0; i < lead; i++)
                ck_assert_int_eq(control_token(c, 20 + i % 2 * 5), CONTROL_GO);
            for (uint32_t i = 0; i < 255; i++)
                ck_assert_int_eq(control_token(c, i % p), CONTROL_GO);
            /* one of two tokens makes half of the last 256 as soon as there are so many */
            ck_assert_msg(c->closing == (p <= 2 && lead), "period %u, lead %u", p, lead);
            ck_assert_int_eq(control_token(c, 255 % p), CONTROL_GO);
            ck_assert_msg(c->closing == (p <= 16), "period %u, lead %u", p, lead);
            if (p > 16)
                continue;
            if (p > 2 || !lead)
                ck_assert_uint_eq(forced(c, CONTROL_GO), 3);
            ck_assert(c->loop_closed && !c->budget_closed);
            ck_assert(banned(c, T_THINK) == (c->where == CONTROL_CONTENT));
        }
    }
    for (uint32_t other = 0; other < 2; other++) { /* one token: half of the last 256, or one less */
        c = begin(&q, NULL, 0);
        for (uint32_t i = 0; i < 256; i++)
            control_token(c, i % 2 == 0 && (i || !other) ? 25 : (i * i / 7 + i) % 19);
        ck_assert_int_eq(c->closing, !other);
    }
    q.in_reasoning = false; /* the answer itself: it ends */
    q.n_ids = 1;
    c = begin(&q, NULL, 0);
    for (uint32_t i = 0; i < 255; i++)
        ck_assert_int_eq(control_token(c, i % 3), CONTROL_GO);
    ck_assert_int_eq(control_token(c, 0), CONTROL_LOOP);
    c = begin(&q, NULL, 0); /* a mark begins anew */
    for (uint32_t i = 0; i < 600; i++)
        ck_assert_int_eq(control_token(c, i % 250 == 249 ? T_CALL : i % 250 == 248 ? T_NOCALL : i % 3), CONTROL_GO);
    q.control.loop_guard = false;
    c = begin(&q, NULL, 0);
    for (uint32_t i = 0; i < 900; i++)
        ck_assert_int_eq(control_token(c, 7), CONTROL_GO);
}
END_TEST

/* ab, abc, b and bd as names: 0 = a ... */
static const uint32_t NAME_IDS[] = { 0, 1, 0, 1, 2, 1, 1, 3 };
static const uint32_t NAME_OFFS[] = { 0, 2, 5, 6, 8 };

static uint64_t allowed(const struct control *c) {
    uint32_t words[2] = { 0, 0 };
    struct control_next next;

    control_next(c, &next);
    ck_assert_uint_eq(next.forced, CONTROL_NONE);
    if (!next.masked)
        return 0;
    control_mask(c, words, T_N);
    return words[0] | (uint64_t)words[1] << 32;
}
#define BIT(t) (UINT64_C(1) << (t))

/* Text that repeats much and is no loop: tables, lists, code, numbers in columns. */
START_TEST(test_no_false_loop) {
    static const char *const texts[] = {
        "| a | % | c |\n", "    x[%] = y[%] + z[%];\n", "%. item %\n", "<tr><td>%</td><td>%</td></tr>\n",
        "0, 0, 0, 0, 0, 1, 0, 0, 0, 0, %, 0, 0, 0, 0, 0, 1\n", "if (a == %) return b(%);\n", "- [ ] task number %\n",
    };
    struct sched_req q = { .control.loop_guard = true };

    for (uint32_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct control *c = begin(&q, NULL, 0);

        /* a token a byte, as the worst tokenizer would have it; the numbers count up */
        for (uint32_t line = 0, n = 0; n < 900; line++)
            for (const char *at = texts[i]; *at && n < 900; at++, n++) {
                uint32_t id = *at == '%' ? 17 + line * 7 % 9 : (uint32_t)(uint8_t)*at % 17;
                enum control_verdict v = control_token(c, id);

                ck_assert_msg(v == CONTROL_GO, "text %u, token %u", i, n);
            }
    }
}
END_TEST

START_TEST(test_must_call) {
    struct sched_req q = { .in_reasoning = true,
                           .control = { .tools = SCHED_TOOLS_MUST, .tools_offered = true,
                                        .names = { .ids = NAME_IDS, .offsets = NAME_OFFS, .n = 4 } } };
    struct control *c = begin(&q, NULL, 0);

    ck_assert(banned(c, T_EOS) && banned(c, T_ASSIST) && banned(c, T_CALL));
    ck_assert_int_eq(FEED(c, 5, 6), CONTROL_GO);
    ck_assert_uint_eq(forced(c, CONTROL_GO), 0);
    ck_assert_int_eq(FEED(c, T_NOTHINK), CONTROL_GO);
    ck_assert_uint_eq(forced(c, CONTROL_GO), 1);
    ck_assert_int_eq(c->where, CONTROL_NAME);
    ck_assert_uint_eq(allowed(c), BIT(0) | BIT(1));
    ck_assert_int_eq(control_token(c, 0), CONTROL_GO);
    ck_assert_uint_eq(forced(c, CONTROL_GO), 1); /* a: only b can follow */
    ck_assert_uint_eq(allowed(c), BIT(2) | BIT(T_KEY) | BIT(T_NOCALL));
    ck_assert(banned(c, T_EOS));
    ck_assert_int_eq(FEED(c, T_KEY, 7, T_NOKEY, T_VALUE, 8, T_NOVALUE), CONTROL_GO);
    ck_assert_uint_eq(allowed(c), 0);
    ck_assert(banned(c, T_EOS) && banned(c, T_CALL));
    ck_assert_int_eq(FEED(c, T_NOCALL), CONTROL_GO);
    ck_assert(!banned(c, T_EOS) && !banned(c, T_CALL));
    ck_assert_uint_eq(forced(c, CONTROL_GO), 0);
    ck_assert_int_eq(FEED(c, T_CALL, 9), CONTROL_GO); /* a second one is the model's own affair */
    ck_assert_uint_eq(allowed(c), 0);
    ck_assert_int_eq(control_token(c, T_EOS), CONTROL_STOP_ID);
    c = begin(&q, NULL, 0);
    FEED(c, T_NOTHINK, T_CALL, 1, 3);
    ck_assert_uint_eq(allowed(c), BIT(T_KEY) | BIT(T_NOCALL));
    q.control.names.n = 1; /* a single name has no choice at all */
    q.in_reasoning = false;
    c = begin(&q, NULL, 0);
    ck_assert_uint_eq(forced(c, CONTROL_GO), 3);
    ck_assert_uint_eq(allowed(c), BIT(T_KEY) | BIT(T_NOCALL));
    q.control.one_call = true;
    ck_assert_int_eq(FEED(begin(&q, NULL, 0), T_CALL, 0, 1, T_NOCALL), CONTROL_CALLED);
}
END_TEST

START_TEST(test_no_call_and_one_call) {
    struct sched_req q = { .control.tools = SCHED_TOOLS_NONE };
    struct control *c = begin(&q, NULL, 0);

    ck_assert(banned(c, T_CALL) && !banned(c, T_EOS));
    q.control = (struct sched_control){ .one_call = true, .tools_offered = true };
    q.in_reasoning = true;
    c = begin(&q, NULL, 0);
    ck_assert(!banned(c, T_CALL));
    FEED(c, T_CALL); /* counts only if the block is never closed */
    ck_assert(banned(c, T_CALL));
    FEED(c, 0, T_NOCALL, T_NOTHINK);
    ck_assert(!banned(c, T_CALL));
    FEED(c, T_CALL, 0);
    ck_assert(banned(c, T_CALL)); /* not inside of it either */
    ck_assert_int_eq(FEED(c, T_NOCALL), CONTROL_CALLED);
    q.ignore_eos = true; /* goes on, without a second one, also not in reasoning */
    q.in_reasoning = false;
    c = begin(&q, NULL, 0);
    ck_assert_int_eq(FEED(c, T_CALL, 0, T_NOCALL, 0), CONTROL_GO);
    ck_assert(banned(c, T_CALL) && banned(c, T_EOS));
    FEED(c, T_THINK);
    ck_assert(banned(c, T_CALL));
}
END_TEST

START_TEST(test_check) {
    uint32_t offs[3] = { 0, 2, 2 }, ids[2] = { 1, T_N };
    struct sched_req q = { .control = { .tools = SCHED_TOOLS_MUST } };

    ck_assert_int_eq(control_check(&q, T_N), -EINVAL); /* no name */
    q.control.names = (struct sched_names){ .ids = NAME_IDS, .offsets = offs, .n = 2 };
    ck_assert_int_eq(control_check(&q, T_N), -EINVAL); /* an empty one */
    q.control.names.n = 1;
    ck_assert_int_eq(control_check(&q, T_N), 0);
    q.control.names.ids = ids;
    ck_assert_int_eq(control_check(&q, T_N), -EINVAL); /* an id that is none */
    q.control.names = (struct sched_names){ .ids = NAME_IDS, .offsets = offs, .n = SCHED_MAX_NAMES + 1 };
    ck_assert_int_eq(control_check(&q, T_N), -E2BIG);
    offs[1] = SCHED_MAX_NAME_IDS + 1;
    q.control.names.n = 1;
    ck_assert_int_eq(control_check(&q, T_N), -E2BIG);
    q.control = (struct sched_control){ .close = ids, .n_close = 2 };
    ck_assert_int_eq(control_check(&q, T_N), -EINVAL);
    q.control.n_close = SCHED_MAX_CLOSE_IDS + 1;
    ck_assert_int_eq(control_check(&q, T_N), -E2BIG);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_control");
    TCase *tc = tcase_create("control");
    SRunner *sr;
    int failed;

    controltest_setup();
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_limit);
    tcase_add_test(tc, test_stop_ids);
    tcase_add_test(tc, test_stop_strings);
    tcase_add_test(tc, test_channels);
    tcase_add_test(tc, test_no_marks);
    tcase_add_test(tc, test_marks_in_calls);
    tcase_add_test(tc, test_no_turn_in_thought);
    tcase_add_test(tc, test_budget);
    tcase_add_test(tc, test_budget_leaves_room);
    tcase_add_test(tc, test_loop_guard);
    tcase_add_test(tc, test_no_false_loop);
    tcase_add_test(tc, test_must_call);
    tcase_add_test(tc, test_no_call_and_one_call);
    tcase_add_test(tc, test_check);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
