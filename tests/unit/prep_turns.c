/* SPDX-License-Identifier: MIT */
/* Answers that come back as history stand in the next prompt in the ids that the model wrote, whatever a client
 * does to them on the way without editing them; edited ones, other users' and doubtful ones never do. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat.h"
#include "daemonfix.h"
#include "ipctest.h"
#include "leakcheck.h"
#include "prep.h"
#include "tokenizer.h"
#include "turns.h"

#define LONG_ID "call_9f8e7d6c5b4a3210"
#define TOOL    "{\"name\": \"wx\", \"parameters\": {}}"
#define CALL                                                                                                 \
    "<tool_call>wx<arg_key>city</arg_key><arg_value>\"Lima\xc3\xa9\"</arg_value><arg_key>days</arg_key>"      \
    "<arg_value>2</arg_value></tool_call>"
#define ARGS "{\"city\": \"\\\"Lima\xc3\xa9\\\"\", \"days\": 2}"

static struct tok *tok;
static struct chat *chat;
static struct turns *turns;
static struct prep_model model, bare; /* bare: the same, and remembers nothing */
static struct prep_scratch *scratch;
static struct tok_scratch *words;
static struct xerr err;
static uint32_t eos;

static void setup(void) {
    char dir[300];

    snprintf(dir, sizeof dir, "%s/nano", daemonfix_models());
    ck_assert_msg(tok_open(dir, &tok, &err) == 0, "%s", err.msg);
    ck_assert_msg(chat_open(dir, tok, &chat, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(turns_new(1 << 20, 1 << 18, &turns), 0);
    eos = (uint32_t)tok_id(tok, "<|user|>");
    bare = (struct prep_model){
        .tok = tok,
        .chat = chat,
        .vocab_tokens = tok_size(tok),
        .context_tokens = 20000,
        .max_prompt_bytes = 100000,
        .defaults = {.temperature = 1.0f, .top_p = 1.0f, .repetition = 1.0f},
        .eos = &eos,
        .n_eos = 1,
    };
    model = bare;
    model.turns = turns;
    ck_assert_int_eq(prep_scratch_new(&model, &scratch), 0);
    ck_assert_int_eq(tok_scratch_new(0, &words), 0);
}

static void teardown(void) {
    words = tok_scratch_free(words);
    scratch = prep_scratch_free(scratch);
    turns = turns_free(turns);
    chat = chat_free(chat);
    tok = tok_free(tok);
}

/* ---- requests -------------------------------------------------------------------------------------------
 */

static struct tlvbuf t;

static void begin(const char *user) {
    t.len = 0;
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_text(&t, GLMW_TLV_PART_TEXT, user);
    tlv_end(&t);
}

static void tool(void) {
    tlv_text(&t, GLMW_TLV_TOOL_DEF, TOOL);
}

static void assistant(const char *think, const char *content, const char *id, const char *args) {
    tlv_msg(&t, GLMW_ROLE_ASSISTANT);
    if (think)
        tlv_text(&t, GLMW_TLV_PART_REASONING, think);
    tlv_text(&t, GLMW_TLV_PART_TEXT, content);
    if (args)
        tlv_call(&t, id, "wx", args);
    tlv_end(&t);
}

static void user(const char *text) {
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_text(&t, GLMW_TLV_PART_TEXT, text);
    tlv_end(&t);
}

static void options(uint8_t effort, uint8_t thinking, uint8_t clear) {
    struct glmw_tlv_chat c = {.size = sizeof c, .effort = effort, .thinking = thinking, .clear_thinking = clear};

    tlv_put(&t, GLMW_TLV_CHAT, &c, sizeof c);
}

static bool no_cache; /* of requests made from now on */

static struct prep_req *made_by(const struct prep_model *m, uint32_t uid) {
    struct prep_req *r = calloc(1, sizeof *r);

    r->op = PREP_SUBMIT;
    r->uid = uid;
    r->no_cache = no_cache;
    r->limits = ipc_limits();
    r->limits.vocab_tokens = UINT32_MAX;
    r->limits.max_messages = r->limits.max_parts = 100;
    r->features = GLMW_FEAT_ALL;
    r->payload = malloc(t.len + 8);
    r->payload_len = (uint32_t)t.len;
    memcpy(r->payload, t.b, t.len);
    ck_assert_msg(prep_decode(r, &err) == 0, "%s", err.msg);
    ck_assert_msg(prep_make(m, scratch, r, &err) == 0, "%s", err.msg);
    return r;
}

static struct prep_req *made(void) {
    return made_by(&model, 1000);
}

/* ---- answers --------------------------------------------------------------------------------------------
 */

/* Ids that no tokenizer would choose: one for each byte or two, markers as they are. */
static uint32_t odd_ids(const char *text, uint32_t *ids, uint32_t cap) {
    uint32_t n = 0;

    for (size_t at = 0, len; text[at]; at += len) {
        int64_t marker = tok_marker_at(tok, text + at, strlen(text + at), &len);
        size_t got = 1;

        if (marker >= 0) {
            ids[n++] = (uint32_t)marker;
            continue;
        }
        for (len = 1; ((uint8_t)text[at + len] & 0xc0) == 0x80; len++)
            ;
        ck_assert_int_eq(tok_encode(tok, words, text + at, len, 0, ids + n, cap - n, &got), 0);
        n += (uint32_t)got;
    }
    return n;
}

/* The engine's part, and what a worker does when the request has ended. Returns what prep_remember says. */
static int answer_with(struct prep_req *r, const char *text, enum stream_reason why) {
    ck_assert_ptr_nonnull(r->answer);
    r->sched.n_answer = odd_ids(text, r->answer, r->sched.answer_cap);
    r->sched.ended = why;
    return prep_remember(&model, scratch, r);
}

/* The ids of r begin with those of first and its answer. */
static bool goes_on(const struct prep_req *r, const struct prep_req *first) {
    uint32_t n = first->sched.n_answer;

    return r->n_ids > first->n_ids + n && memcmp(r->ids, first->ids, first->n_ids * 4) == 0 &&
           memcmp(r->ids + first->n_ids, first->answer, n * 4) == 0;
}

static bool same_ids(const struct prep_req *a, const struct prep_req *b) {
    return a->n_ids == b->n_ids && memcmp(a->ids, b->ids, a->n_ids * 4) == 0;
}

/* Nothing of what was remembered is in it. */
static void is_rendered(uint32_t uid) {
    struct prep_req *r = made_by(&model, uid), *plain = made_by(&bare, uid);

    ck_assert(same_ids(r, plain));
    prep_req_free(r);
    prep_req_free(plain);
}

/* Whether the ids of text stand somewhere in it. */
static bool holds(const struct prep_req *r, const char *text) {
    uint32_t ids[1000], n = odd_ids(text, ids, 1000);

    for (uint32_t i = 0; i + n <= r->n_ids; i++)
        if (memcmp(r->ids + i, ids, n * 4) == 0)
            return true;
    return false;
}

/* User 1000 asks, and is answered with a call. */
static struct prep_req *asked(const char *question, const char *answer) {
    struct prep_req *r;

    begin(question);
    tool();
    r = made();
    ck_assert_int_eq(answer_with(r, answer, STREAM_END_STOP), 1);
    return r;
}

static const char ANSWER[] = "Need it.\n</think>Let me look. \n" CALL;

static const struct {
    const char *think, *content, *args;
} same[] = {
    {"Need it.\n", "Let me look. \n", ARGS},
    {"Need it.", "Let me look.", ARGS},
    {NULL, "\n Let me look.", ARGS},
    {NULL, "Let me look.", "{\"days\":2,\"city\":\"\\\"Lima\\u00e9\\\"\"}"},
    {NULL, "Let me look.", "{\"city\":\"\\u0022\\u004cima\xc3\xa9\\u0022\",\"days\":2.0}"},
    {NULL, "Let me look.", "{\"days\": 1, \"city\": \"\\\"Lima\xc3\xa9\\\"\", \"days\": 0.2e1}"},
    {NULL, "Let me look.", "\"{\\\"days\\\": 2e0, \\\"city\\\": \\\"\\\\\\\"Lima\xc3\xa9\\\\\\\"\\\"}\""},
    {NULL, "<think>Need it.</think>Let me look.", ARGS},
};

START_TEST(unedited_turns_keep_their_ids) {
    struct prep_req *first = asked("Weather?", ANSWER), *r;

    begin("Weather?");
    tool();
    assistant(same[_i].think, same[_i].content, "c1", same[_i].args);
    tlv_msg(&t, GLMW_ROLE_TOOL);
    tlv_result(&t, "c1", "18 C");
    tlv_end(&t);
    r = made();
    ck_assert(goes_on(r, first));
    ck_assert_int_eq(r->ids[first->n_ids + first->sched.n_answer], tok_id(tok, "<|observation|>"));
    prep_req_free(r);
    prep_req_free(first);
}
END_TEST

static const struct {
    const char *think, *content, *args;
    bool body; /* content and call are as they were, so they stand; the reasoning is what was sent */
} edited[] = {
    {NULL, "Let me see.", ARGS, false},
    {NULL, "Let me look.", "{\"city\": \"\\\"Lima\xc3\xa9\\\"\", \"days\": 3}", false},
    {NULL, "Let me look.", "{\"city\": \"\\\"Lima\xc3\xa9\\\"\", \"days\": \"2\"}", false},
    {NULL, "Let me look.", "{\"city\": \"\\\"Lima\xc3\xa9\\\"\", \"days\": 2, \"x\": null}", false},
    {NULL, "Let me look.", "{\"city\": \"\\\"Lima\xc3\xa9\\\"\"}", false},
    {NULL, "Let me look.", "{\"city\": \"\\\"lima\xc3\xa9\\\"\", \"days\": 2}", false},
    {NULL, "Let me look.", "{\"city\": \"\\\"Lima\xc3\xa9\\\"\", \"days\": 2.0000000000000000000000000001}", false},
    {NULL, "Let me look.", "[\"Lima\", 2]", false},
    {NULL, "Let me look.", "not JSON", false},
    {NULL, "Let me look.", NULL, false},
    {"Need something else.", "Let me look.", ARGS, true},
    {"", "Let me look.", ARGS, true},
};

START_TEST(edited_turns_are_rendered) {
    struct prep_req *first = asked("Weather?", ANSWER), *r, *plain;

    begin("Weather?");
    tool();
    assistant(edited[_i].think, edited[_i].content, "c1", edited[_i].args);
    user("go on");
    if (!edited[_i].body) {
        is_rendered(1000);
    } else {
        r = made();
        plain = made_by(&bare, 1000);
        ck_assert(!goes_on(r, first));
        ck_assert(!same_ids(r, plain));
        ck_assert(holds(r, "</think>Let me look. \n" CALL));
        ck_assert(!holds(r, "Need it"));
        prep_req_free(r);
        prep_req_free(plain);
    }
    prep_req_free(first);
}
END_TEST

/* The same words sent by somebody else, with the same ids of calls, are nothing that anybody knows. */
START_TEST(no_user_gets_what_another_was_told) {
    struct prep_req *first = asked("Weather?", ANSWER), *r;

    begin("Weather?");
    tool();
    assistant(NULL, "Let me look.", LONG_ID, ARGS);
    user("go on");
    r = made(); /* its owner: from now on the id is known */
    ck_assert(goes_on(r, first));
    is_rendered(1001);
    begin("Another question");
    tool();
    assistant(NULL, "Let me look.", LONG_ID, ARGS);
    user("what were you thinking?");
    is_rendered(1001);
    prep_req_free(r);
    prep_req_free(first);
}
END_TEST

/* In another conversation reasoning comes back under an id of a call that only one answer has. */
START_TEST(ids_of_calls_bring_reasoning_back) {
    static const char *const ids[] = {LONG_ID, "call_1", ""};
    struct prep_req *first = asked("Weather?", ANSWER), *r;

    for (int i = 0; i < 3; i++) {
        begin("Weather?");
        tool();
        assistant(NULL, "Let me look.", ids[i], ARGS);
        user("go on");
        r = made();
        ck_assert(goes_on(r, first));
        prep_req_free(r);
        begin("It is late. Weather?");
        tool();
        assistant(NULL, "Let me look.", ids[i], ARGS);
        user("go on");
        r = made();
        /* the first id was learnt, and stays when others are tried */
        ck_assert_int_eq(holds(r, "<think>Need it.\n</think>"), i == 0);
        ck_assert(holds(r, "</think>Let me look. \n" CALL));
        prep_req_free(r);
    }
    prep_req_free(first);
}
END_TEST

/* Two answers that look alike and got the same id: nobody knows whose the reasoning is. */
START_TEST(an_id_of_two_answers_tells_nothing) {
    struct prep_req *a = asked("Weather?", ANSWER), *b, *r;

    b = asked("Weather today?", "Something private.</think>Let me look. \n" CALL);
    for (int i = 0; i < 3; i++) {
        begin(i == 0 ? "Weather?" : i == 1 ? "Weather today?" : "Weather tomorrow?");
        tool();
        assistant(NULL, "Let me look.", LONG_ID, ARGS);
        user("go on");
        r = made();
        ck_assert_int_eq(goes_on(r, a), i == 0);
        ck_assert_int_eq(goes_on(r, b), i == 1);
        ck_assert(i < 2 || (!holds(r, "Need") && !holds(r, "private")));
        prep_req_free(r);
    }
    prep_req_free(a);
    prep_req_free(b);
}
END_TEST

/* Turn by turn: each prompt is the one before, its answer, and what is new. */
START_TEST(conversations_grow_at_their_end) {
    static const char *const answers[] = {"one</think>First. ", "two</think>" CALL, " three \n</think>\nThird\n",
                                          "four</think>\xf0\x9f\x98\x80 naive"};
    static const char *const shown[] = {"First.", "", "Third", "\xf0\x9f\x98\x80 naive"};
    struct prep_req *before = NULL, *r;

    for (int n = 0; n <= 4; n++) {
        begin("Question");
        tool();
        for (int i = 0; i < n; i++) {
            assistant(NULL, shown[i], "c", i == 1 ? ARGS : NULL);
            user("And?");
        }
        r = made();
        if (before)
            ck_assert_msg(goes_on(r, before), "turn %d", n);
        prep_req_free(before);
        before = r;
        if (n < 4)
            ck_assert_int_eq(answer_with(r, answers[n], STREAM_END_STOP), 1);
    }
    prep_req_free(before);
}
END_TEST

START_TEST(another_effort_changes_nothing_else) {
    struct prep_req *first = asked("Weather?", ANSWER), *r;

    begin("Weather?");
    tool();
    options(GLMW_EFFORT_LOW, GLMW_UNSET, GLMW_UNSET);
    assistant(NULL, "Let me look.", "c1", ARGS);
    user("go on");
    r = made();
    ck_assert(holds(r, "<think>Need it.\n</think>Let me look. \n" CALL "<|user|>"));
    prep_req_free(r);
    prep_req_free(first);
}
END_TEST

START_TEST(cleared_reasoning_stays_away) {
    struct prep_req *first = asked("Weather?", ANSWER), *r;

    begin("Weather?");
    tool();
    options(GLMW_EFFORT_DEFAULT, GLMW_UNSET, GLMW_ON);
    assistant("Need it.\n", "Let me look.", "c1", ARGS);
    user("go on");
    r = made();
    ck_assert(!holds(r, "Need it"));
    ck_assert(holds(r, "<|assistant|><think></think>Let me look. \n" CALL));
    prep_req_free(r);
    prep_req_free(first);
}
END_TEST

START_TEST(without_thinking) {
    struct prep_req *first, *r;

    begin("Say it.");
    options(GLMW_EFFORT_DEFAULT, GLMW_OFF, GLMW_UNSET);
    first = made();
    ck_assert(!first->thinking_open);
    ck_assert_int_eq(answer_with(first, "It is said.\n", STREAM_END_STOP), 1);
    begin("Say it.");
    options(GLMW_EFFORT_DEFAULT, GLMW_OFF, GLMW_UNSET);
    assistant(NULL, "It is said.", NULL, NULL);
    user("Again.");
    r = made();
    ck_assert(goes_on(r, first));
    prep_req_free(r);
    /* a model that thinks all the same is put back whole */
    ck_assert_int_eq(answer_with(first, "x<think>hm</think>y", STREAM_END_STOP), 1);
    begin("Say it.");
    options(GLMW_EFFORT_DEFAULT, GLMW_OFF, GLMW_UNSET);
    assistant("hm", "xy", NULL, NULL);
    user("Again.");
    r = made();
    ck_assert(goes_on(r, first));
    prep_req_free(r);
    prep_req_free(first);
}
END_TEST

/* Cut off while it thought: the block is closed where the next message begins. */
START_TEST(reasoning_that_was_cut_off) {
    struct prep_req *first, *r;
    uint32_t n;

    begin("Long?");
    first = made();
    ck_assert_int_eq(answer_with(first, "I wonder", STREAM_END_LENGTH), 1);
    n = first->sched.n_answer;
    begin("Long?");
    assistant("I wonder", "", NULL, NULL);
    user("Go on.");
    r = made();
    ck_assert(goes_on(r, first));
    ck_assert_int_eq(r->ids[first->n_ids + n], tok_id(tok, "</think>"));
    ck_assert_int_eq(r->ids[first->n_ids + n + 1], tok_id(tok, "<|user|>"));
    prep_req_free(r);
    prep_req_free(first);
}
END_TEST

START_TEST(what_is_not_remembered) {
    struct turns_stats st;
    struct prep_req *r;

    begin("x");
    tool();
    r = made();
    ck_assert_int_eq(answer_with(r, "a</think>b", STREAM_END_STOP_STRING), 0);
    ck_assert_int_eq(answer_with(r, "a</think>b", STREAM_END_ERROR), 0);
    ck_assert_int_eq(answer_with(r, "", STREAM_END_STOP), 0);
    ck_assert_int_eq(answer_with(r, "a</think>b<|system|>c", STREAM_END_STOP), 0);
    ck_assert_int_eq(answer_with(r, "a</think>b<tool_call>wx<arg_key>k</arg_key>", STREAM_END_LENGTH), 0);
    ck_assert_int_eq(answer_with(r, "a</think>b<tool_call>nothing</tool_call>", STREAM_END_STOP), 0);
    ck_assert_int_eq(answer_with(r, "a</think>b", STREAM_END_STOP), 1);
    r->sched.n_answer = r->sched.answer_cap + 1; /* longer than there was room */
    ck_assert_int_eq(prep_remember(&model, scratch, r), 0);
    r->answer[0] = tok_size(tok) + 3;
    r->sched.n_answer = 2;
    ck_assert_int_eq(prep_remember(&model, scratch, r), 0);
    prep_req_free(r);
    turns_get_stats(turns, &st);
    ck_assert_uint_eq(st.answers, 1);
    begin("x");
    ck_assert_ptr_null((r = made_by(&bare, 1000))->answer);
    prep_req_free(r);
    no_cache = true; /* nothing of it is to be kept for later prompts */
    ck_assert_ptr_null((r = made())->answer);
    prep_req_free(r);
}
END_TEST

/* ---- workers --------------------------------------------------------------------------------------------
 */

static _Atomic int submitted;

static int on_submit(void *ctx, struct sched_req *req) {
    (void)ctx;
    (void)req;
    submitted++;
    return 0;
}

static void on_bind(void *ctx, const struct prep_req *r) {
    (void)ctx;
    (void)r;
}

static struct prep_req *pushed(struct prep *p) {
    struct prep_req *r = calloc(1, sizeof *r);
    int want = submitted + 1;

    r->op = PREP_SUBMIT;
    r->uid = 1000;
    r->limits = ipc_limits();
    r->features = GLMW_FEAT_ALL;
    r->payload = malloc(t.len + 8);
    r->payload_len = (uint32_t)t.len;
    memcpy(r->payload, t.b, t.len);
    ck_assert_int_eq(prep_decode(r, &err), 0);
    prep_push(p, r);
    for (int i = 0; i < 20000 && submitted < want; i++)
        usleep(1000);
    ck_assert_int_eq(submitted, want);
    return r;
}

/* A client that sends the next turn the moment its answer has ended finds it remembered. */
START_TEST(the_next_turn_waits_for_the_last) {
    struct prep_options o = {.workers = 3, .turns = turns, .hooks = {.submit = on_submit, .bind = on_bind}};
    struct prep *p;

    ck_assert_int_eq(prep_new(&o, &p), 0);
    prep_set_model(p, &bare);
    for (int i = 0; i < 50; i++) {
        char question[32], text[64];
        struct prep_req *r, *q;
        uint32_t ids[64], n;

        snprintf(question, sizeof question, "question %d", i);
        snprintf(text, sizeof text, "hm %d</think>answer %d", i, i);
        begin(question);
        r = pushed(p);
        n = odd_ids(text, ids, 64);
        memcpy(r->answer, ids, n * 4);
        r->sched.n_answer = n;
        r->sched.ended = STREAM_END_STOP;
        prep_retire(p, r);
        snprintf(text, sizeof text, "answer %d", i);
        assistant(NULL, text, NULL, NULL);
        user("next");
        q = pushed(p);
        snprintf(text, sizeof text, "<think>hm %d</think>answer %d<|user|>", i, i);
        ck_assert_msg(holds(q, text), "turn %d", i);
        prep_req_free(q);
    }
    begin("the last one");
    for (int i = 0; i < 3; i++) { /* left behind at the end */
        struct prep_req *r = pushed(p);

        r->sched.n_answer = 1;
        r->answer[0] = 300;
        prep_retire(p, r);
    }
    prep_free(p);
}
END_TEST

int main(void) {
    Suite *s = suite_create("prep_turns");
    TCase *tc = tcase_create("turns");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, unedited_turns_keep_their_ids, 0, (int)(sizeof same / sizeof *same));
    tcase_add_loop_test(tc, edited_turns_are_rendered, 0, (int)(sizeof edited / sizeof *edited));
    tcase_add_test(tc, no_user_gets_what_another_was_told);
    tcase_add_test(tc, ids_of_calls_bring_reasoning_back);
    tcase_add_test(tc, an_id_of_two_answers_tells_nothing);
    tcase_add_test(tc, conversations_grow_at_their_end);
    tcase_add_test(tc, another_effort_changes_nothing_else);
    tcase_add_test(tc, cleared_reasoning_stays_away);
    tcase_add_test(tc, without_thinking);
    tcase_add_test(tc, reasoning_that_was_cut_off);
    tcase_add_test(tc, what_is_not_remembered);
    tcase_add_test(tc, the_next_turn_waits_for_the_last);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
