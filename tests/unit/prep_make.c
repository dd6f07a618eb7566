/* SPDX-License-Identifier: MIT */
/* prep: messages become the ids the renderer gives for them, settings get the model's defaults, refusals say
 * what is wrong, and requests wait, are taken back and are cancelled. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat.h"
#include "clock.h"
#include "daemonfix.h"
#include "gramtest.h"
#include "ipctest.h"
#include "leakcheck.h"
#include "outtools.h"
#include "prep.h"
#include "tokenizer.h"

static struct tok *tok;
static struct chat *chat;
static struct prep_model model;
static struct prep_scratch *scratch;
static struct xerr err;

static void setup(void) {
    char dir[300];

    snprintf(dir, sizeof dir, "%s/nano", daemonfix_models());
    ck_assert_msg(tok_open(dir, &tok, &err) == 0, "%s", err.msg);
    ck_assert_msg(chat_open(dir, tok, &chat, &err) == 0, "%s", err.msg);
    model = (struct prep_model){
        .tok = tok,
        .chat = chat,
        .vocab_tokens = tok_size(tok),
        .context_tokens = 500,
        .think_open = (uint32_t)tok_id(tok, "<think>"),
        .think_close = (uint32_t)tok_id(tok, "</think>"),
        .tool_open = (uint32_t)tok_id(tok, "<tool_call>"),
        .max_prompt_bytes = 100000,
        .defaults = {.temperature = 0.75f, .top_p = 0.5f, .repetition = 1.0f},
    };
    ck_assert_int_eq(prep_scratch_new(&model, &scratch), 0);
    err = (struct xerr){0};
}

static void teardown(void) {
    scratch = prep_scratch_free(scratch);
    chat = chat_free(chat);
    tok = tok_free(tok);
}

static struct prep_req *decoded(const struct tlvbuf *t) {
    struct prep_req *r = calloc(1, sizeof *r);
    struct glmw_limits limits = ipc_limits();
    struct reqdec_err why = {0};
    size_t mem;
    int e;

    limits.vocab_tokens = UINT32_MAX;
    mem = reqdec_mem_bytes(&limits, t->len);
    r->op = PREP_SUBMIT;
    r->stream = (struct stream_id){3, 4};
    r->payload = malloc(t->len + 8);
    r->dec_mem = malloc(mem);
    memcpy(r->payload, t->b, t->len);
    e = reqdec_decode(r->payload, t->len, &limits, GLMW_FEAT_ALL, r->dec_mem, mem, &r->dec, &why);
    ck_assert_msg(e == 0, "decode: %s", why.reason);
    return r;
}

static void message(struct tlvbuf *t, uint32_t role, const char *text) {
    tlv_msg(t, role);
    tlv_text(t, GLMW_TLV_PART_TEXT, text);
    tlv_end(t);
}

static void options(struct tlvbuf *t, uint8_t effort, uint8_t thinking) {
    struct glmw_tlv_chat c = {.size = sizeof c, .effort = effort, .thinking = thinking};

    tlv_put(t, GLMW_TLV_CHAT, &c, sizeof c);
}

/* The ids, written out with every token's bytes. */
static const char *written(const struct prep_req *r) {
    static char text[20000];
    size_t n = 0;

    for (uint32_t i = 0; i < r->n_ids; i++) {
        const uint8_t *b;
        size_t len;

        ck_assert_int_ge(tok_bytes(tok, r->ids[i], &b, &len), 0);
        ck_assert_uint_lt(n + len, sizeof text);
        memcpy(text + n, b, len);
        n += len;
    }
    text[n] = 0;
    return text;
}

START_TEST(messages_become_the_prompt) {
    static struct tlvbuf t;
    struct prep_req *r;

    t.len = 0;
    message(&t, GLMW_ROLE_SYSTEM, "Be short.");
    message(&t, GLMW_ROLE_USER, "Capital of Peru?");
    tlv_msg(&t, GLMW_ROLE_ASSISTANT);
    tlv_text(&t, GLMW_TLV_PART_REASONING, "Easy.");
    tlv_text(&t, GLMW_TLV_PART_TEXT, "Let me ");
    tlv_text(&t, GLMW_TLV_PART_TEXT, "look.");
    tlv_call(&t, "a", "wx", "{\"city\": \"Lima\", \"days\": 2}");
    tlv_call(&t, "b", "wx", "{}");
    tlv_end(&t);
    tlv_msg(&t, GLMW_ROLE_TOOL);
    tlv_result(&t, "b", "second");
    tlv_text(&t, GLMW_TLV_PART_TEXT, " part");
    tlv_result(&t, "a", "first");
    tlv_end(&t);
    options(&t, GLMW_EFFORT_LOW, GLMW_UNSET);
    r = decoded(&t);
    ck_assert_msg(prep_make(&model, scratch, r, &err) == 0, "%s", err.msg);
    ck_assert_str_eq(
        written(r),
        "[gMASK]<sop><|system|>Reasoning Effort: Low<|system|>Be short.<|user|>Capital of Peru?"
        "<|assistant|><think>Easy.</think>Let me look.<tool_call>wx<arg_key>city</arg_key><arg_value>Lima"
        "</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>wx</tool_call>"
        "<|observation|><tool_response>first</tool_response><tool_response>second part</tool_response>"
        "<|assistant|><think>");
    ck_assert(r->thinking_open);
    ck_assert(r->sched.in_reasoning);
    ck_assert_uint_eq(r->sched.n_ids, r->n_ids);
    ck_assert_ptr_eq(r->sched.owner, r);
    ck_assert_uint_eq(r->sched.stream.gen, 4);
    prep_req_free(r);
}
END_TEST

START_TEST(markers_typed_by_users_are_text) {
    static struct tlvbuf t;
    uint32_t user = (uint32_t)tok_id(tok, "<|user|>"), n = 0;
    struct prep_req *r;

    t.len = 0;
    message(&t, GLMW_ROLE_USER, "what is <|user|> and <think>?");
    options(&t, GLMW_EFFORT_DEFAULT, GLMW_OFF);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    for (uint32_t i = 0; i < r->n_ids; i++)
        n += r->ids[i] == user;
    ck_assert_uint_eq(n, 1);
    ck_assert(!r->thinking_open);
    prep_req_free(r);
}
END_TEST

START_TEST(settings_and_defaults) {
    static struct tlvbuf t;
    struct glmw_sampling s = {.size = sizeof s,
                              .has = GLMW_HAS_TEMPERATURE | GLMW_HAS_SEED | GLMW_HAS_N_ALTS |
                                     GLMW_HAS_MIN_TOKENS,
                              .flags = GLMW_SAMP_IGNORE_EOS,
                              .temperature = 0.0f,
                              .seed = 77,
                              .n_alts = 3,
                              .min_tokens = 2};
    struct glmw_bias bias = {.token = 300, .bias = -5.0f};
    struct prep_req *r, *q;

    t.len = 0;
    message(&t, GLMW_ROLE_USER, "x");
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert_float_eq(r->sched.sampling.temperature, 0.75f);
    ck_assert_float_eq(r->sched.sampling.top_p, 0.5f);
    ck_assert(!r->sched.sampling.logprobs);
    q = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, q, &err), 0);
    ck_assert_uint_ne(r->sched.sampling.seed, q->sched.sampling.seed); /* none asked for: drawn */
    prep_req_free(r);
    prep_req_free(q);
    tlv_put(&t, GLMW_TLV_SAMPLING, &s, sizeof s);
    tlv_put(&t, GLMW_TLV_LOGIT_BIAS, &bias, sizeof bias);
    tlv_text(&t, GLMW_TLV_STOP, "END");
    tlv_text(&t, GLMW_TLV_STOP, "\n\n");
    r = decoded(&t);
    ck_assert_msg(prep_make(&model, scratch, r, &err) == 0, "%s", err.msg);
    ck_assert_float_eq(r->sched.sampling.temperature, 0.0f);
    ck_assert_float_eq(r->sched.sampling.top_p, 0.5f);
    ck_assert_uint_eq(r->sched.sampling.seed, 77);
    ck_assert_uint_eq(r->sched.sampling.n_alts, 3);
    ck_assert(r->sched.sampling.logprobs);
    ck_assert(r->sched.ignore_eos);
    ck_assert_uint_eq(r->sched.min_tokens, 2);
    ck_assert_uint_eq(r->sched.sampling.n_bias, 1);
    ck_assert_uint_eq(r->sched.sampling.bias[0].token, 300);
    ck_assert_uint_eq(r->sched.n_stops, 2);
    ck_assert_int_eq(memcmp(r->sched.stops[0].s, "END", 3), 0);
    ck_assert_ptr_nonnull(r->stop);
    prep_req_free(r);
}
END_TEST

START_TEST(tools_and_choice) {
    static const char tool[] =
        "{\"type\": \"function\", \"function\": {\"name\": \"wx\", \"parameters\": {}}}";
    static struct tlvbuf t;
    struct glmw_tlv_choice none = {.mode = GLMW_CHOICE_NONE}, must = {.mode = GLMW_CHOICE_REQUIRED},
                           named = {.mode = GLMW_CHOICE_NAMED, .flags = GLMW_CHOICE_ONE_CALL};
    static char long_name[400];
    struct prep_model bare = model;
    const struct sched_names *names;
    struct tok_scratch *ts;
    uint32_t ids[16];
    size_t n;
    struct prep_req *r;
    size_t len;

    ck_assert_int_eq(tok_scratch_new(0, &ts), 0);
    t.len = 0;
    message(&t, GLMW_ROLE_USER, "x");
    tlv_text(&t, GLMW_TLV_TOOL_DEF, tool);
    len = t.len;
    r = decoded(&t);
    ck_assert_msg(prep_make(&model, scratch, r, &err) == 0, "%s", err.msg);
    ck_assert_ptr_nonnull(strstr(written(r), "{\"name\": \"wx\", \"parameters\": {}}"));
    ck_assert_int_eq(outtools_find(r->tools, tstr_of("wx")), 0);
    prep_req_free(r);
    tlv_put(&t, GLMW_TLV_TOOL_CHOICE, &none, sizeof none);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert_uint_eq(r->sched.control.tools, SCHED_TOOLS_NONE);
    ck_assert_ptr_null(strstr(written(r), "wx"));
    ck_assert_ptr_null(r->tools);
    prep_req_free(r);
    t.len = len;
    tlv_text(&t, GLMW_TLV_TOOL_DEF, "{\"name\": \"get_time\"}");
    len = t.len;
    tlv_put(&t, GLMW_TLV_TOOL_CHOICE, &must, sizeof must);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert_uint_eq(r->sched.control.tools, SCHED_TOOLS_MUST);
    ck_assert(!r->sched.control.one_call);
    names = &r->sched.control.names;
    ck_assert_uint_eq(names->n, 2);
    for (uint32_t i = 0; i < 2; i++) { /* as the model would write it */
        const char *name = i ? "get_time" : "wx";

        ck_assert_int_eq(tok_encode(tok, ts, name, strlen(name), 0, ids, 16, &n), 0);
        ck_assert_uint_eq(n, names->offsets[i + 1] - names->offsets[i]);
        ck_assert_mem_eq(ids, names->ids + names->offsets[i], n * sizeof *ids);
    }
    prep_req_free(r);
    t.len = len; /* a named one is the only one the model sees */
    tlv_put2(&t, GLMW_TLV_TOOL_CHOICE, 0, &named, sizeof named, "get_time", 8);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert_ptr_null(strstr(written(r), "\"wx\""));
    ck_assert_ptr_nonnull(strstr(written(r), "{\"name\": \"get_time\"}"));
    ck_assert_int_lt(outtools_find(r->tools, tstr_of("wx")), 0);
    ck_assert_uint_eq(r->sched.control.names.n, 1);
    ck_assert(r->sched.control.one_call);
    prep_req_free(r);
    bare.tool_open = UINT32_MAX;
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&bare, scratch, r, &err), -EOPNOTSUPP);
    ck_assert_ptr_nonnull(strstr(err.msg, "use auto or none"));
    prep_req_free(r);
    memset(long_name, 'n', sizeof long_name);
    memcpy(long_name, "{\"name\": \"", 10);
    memcpy(long_name + sizeof long_name - 3, "\"}", 3);
    t.len = 0;
    message(&t, GLMW_ROLE_USER, "x");
    tlv_text(&t, GLMW_TLV_TOOL_DEF, long_name);
    tlv_put(&t, GLMW_TLV_TOOL_CHOICE, &must, sizeof must);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "at most 256"));
    prep_req_free(r);
    tok_scratch_free(ts);
}
END_TEST

START_TEST(budget_and_guard) {
    static struct tlvbuf t;
    static const uint32_t close[2] = {300, 301};
    struct glmw_sampling s = {.size = sizeof s, .has = GLMW_HAS_THINKING_BUDGET | GLMW_HAS_LOOP_GUARD};
    struct prep_model m = model;
    struct prep_req *r;
    size_t len;

    t.len = 0;
    message(&t, GLMW_ROLE_USER, "x");
    len = t.len;
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&m, scratch, r, &err), 0);
    ck_assert(!r->sched.control.has_budget && !r->sched.control.loop_guard && !r->sched.control.n_close);
    prep_req_free(r);
    m.thinking_budget = 70;
    m.loop_guard = true;
    m.close = close;
    m.n_close = 2;
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&m, scratch, r, &err), 0);
    ck_assert(r->sched.control.has_budget && r->sched.control.loop_guard);
    ck_assert_uint_eq(r->sched.control.budget, 70);
    ck_assert_uint_eq(r->sched.control.n_close, 2);
    prep_req_free(r);
    tlv_put(&t, GLMW_TLV_SAMPLING, &s, sizeof s);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&m, scratch, r, &err), 0);
    ck_assert(r->sched.control.has_budget && !r->sched.control.loop_guard);
    ck_assert_uint_eq(r->sched.control.budget, 0);
    prep_req_free(r);
    s.thinking_budget = 5;
    s.loop_guard = 1;
    t.len = len;
    tlv_put(&t, GLMW_TLV_SAMPLING, &s, sizeof s);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert(r->sched.control.has_budget && r->sched.control.loop_guard);
    ck_assert_uint_eq(r->sched.control.budget, 5);
    prep_req_free(r);
}
END_TEST

START_TEST(token_prompts) {
    static struct tlvbuf t;
    uint32_t ids[3] = {300, model.think_open, 301};
    struct prep_req *r;

    t.len = 0;
    tlv_put(&t, GLMW_TLV_TOKENS, ids, sizeof ids);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert(r->thinking_open);
    prep_req_free(r);
    ids[2] = model.think_close;
    t.len = 0;
    tlv_put(&t, GLMW_TLV_TOKENS, ids, sizeof ids);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert(!r->thinking_open);
    prep_req_free(r);
    ids[2] = model.vocab_tokens;
    t.len = 0;
    tlv_put(&t, GLMW_TLV_TOKENS, ids, sizeof ids);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "prompt token 2 is"));
    prep_req_free(r);
}
END_TEST

START_TEST(refusals_say_why) {
    static struct tlvbuf t;
    static char long_text[12000];
    struct prep_model bare = model;
    struct prep_req *r;

    t.len = 0;
    memset(long_text, 'a', sizeof long_text - 1);
    for (size_t i = 0; i < sizeof long_text - 1; i += 2)
        long_text[i] = ' ';
    message(&t, GLMW_ROLE_USER, long_text);
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), -EOVERFLOW);
    ck_assert_ptr_nonnull(strstr(err.msg, "the context of this daemon takes 500"));
    prep_req_free(r);
    model.max_prompt_bytes = 5000;
    r = decoded(&t);
    ck_assert_int_lt(prep_make(&model, scratch, r, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.msg, "5000 bytes"));
    prep_req_free(r);
    bare.tok = NULL;
    bare.chat = NULL;
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&bare, scratch, r, &err), -EOPNOTSUPP);
    ck_assert_ptr_nonnull(strstr(err.msg, "no tokenizer"));
    prep_req_free(r);
}
END_TEST

/* What all users' schemas may take together is more than one of them gets; it comes back with the request. */
START_TEST(schemas_of_one_user_are_bounded) {
    static const struct glmw_tlv_schema head = {.kind = GLMW_SCHEMA_JSON_SCHEMA};
    static struct gt_vocab vocab;
    static struct tlvbuf t;
    struct sched_usage usage = {0};
    struct prep_req *r[3];
    uint64_t one;

    gt_vocab_new(&vocab, 3000, 16, 13);
    model.grammar = vocab.tables;
    t.len = 0;
    message(&t, GLMW_ROLE_USER, "x");
    tlv_put2(&t, GLMW_TLV_SCHEMA, 0, &head, sizeof head, "{}", 2);
    for (int i = 0; i < 3; i++) {
        r[i] = decoded(&t);
        r[i]->usage = &usage;
    }
    ck_assert_int_eq(prep_make(&model, scratch, r[0], &err), 0);
    one = usage.grammar_bytes;
    ck_assert_uint_gt(one, 0);
    usage.grammar_bytes += GRAMMAR_USER_BYTES - 2 * one; /* of other requests */
    ck_assert_int_eq(prep_make(&model, scratch, r[1], &err), 0);
    ck_assert_int_eq(prep_make(&model, scratch, r[2], &err), -EDQUOT);
    ck_assert_ptr_nonnull(strstr(err.msg, "16 MiB"));
    ck_assert(!r[2]->grammar && !r[2]->sched.control.grammar);
    for (int i = 0; i < 3; i++)
        prep_req_free(r[i]);
    ck_assert_uint_eq(usage.grammar_bytes, GRAMMAR_USER_BYTES - 2 * one);
    gt_vocab_done(&vocab);
}
END_TEST

/* The end of the system block, and the last messages that no answer stands behind. */
START_TEST(marks_are_where_messages_begin) {
    static struct tlvbuf t;
    struct prep_req *r;
    uint32_t user = (uint32_t)tok_id(tok, "<|user|>");

    t.len = 0;
    message(&t, GLMW_ROLE_SYSTEM, "Be short.");
    message(&t, GLMW_ROLE_USER, "one");
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert_uint_eq(r->sched.n_marks, 1);
    ck_assert_uint_eq(r->ids[r->sched.marks[0]], user);
    prep_req_free(r);
    message(&t, GLMW_ROLE_ASSISTANT, "two");
    for (int i = 0; i < 4; i++)
        message(&t, GLMW_ROLE_USER, "three");
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert_uint_eq(r->sched.n_marks, 4);
    for (uint32_t i = 0, n = 0, at = 0; i < r->n_ids; i++) {
        bool marked = at < 4 && r->sched.marks[at] == i;

        n += r->ids[i] == user;
        at += marked;
        /* the first message and the last three of five */
        ck_assert_int_eq(marked, r->ids[i] == user && n != 2);
    }
    prep_req_free(r);
    t.len = 0; /* nothing but system messages: nowhere to part */
    message(&t, GLMW_ROLE_SYSTEM, "Be short.");
    r = decoded(&t);
    ck_assert_int_eq(prep_make(&model, scratch, r, &err), 0);
    ck_assert_uint_eq(r->sched.n_marks, 0);
    prep_req_free(r);
}
END_TEST

/* ---- the queue -------------------------------------------------------------------------------------------
 */

static _Atomic int submitted, done_n, bound;
static _Atomic enum prep_outcome last_outcome;
static _Atomic int submit_result;

static int on_submit(void *ctx, struct sched_req *req) {
    (void)ctx;
    (void)req;
    submitted++;
    return submit_result;
}

static void on_bind(void *ctx, const struct prep_req *r) {
    (void)ctx;
    (void)r;
    bound++;
}

static void on_done(void *ctx, struct prep_req *r, enum prep_outcome outcome) {
    (void)ctx;
    (void)r;
    last_outcome = outcome;
    done_n++;
}

static void wait_for(_Atomic int *n, int want) {
    for (int i = 0; i < 5000 && *n < want; i++)
        usleep(1000);
    ck_assert_int_eq(*n, want);
}

START_TEST(queue_waits_for_the_model) {
    struct prep_options o = {.workers = 2, .hooks = {.submit = on_submit, .bind = on_bind, .done = on_done}};
    static struct tlvbuf t;
    struct prep_req *r[6];
    struct prep *p;

    submitted = done_n = bound = submit_result = 0;
    t.len = 0;
    message(&t, GLMW_ROLE_USER, "x");
    for (int i = 0; i < 6; i++)
        r[i] = decoded(&t);
    ck_assert_int_eq(prep_new(&o, &p), 0);
    for (int i = 0; i < 4; i++)
        prep_push(p, r[i]);
    usleep(20000);
    ck_assert_int_eq(submitted, 0);
    ck_assert(prep_take_back(p, r[1]));
    ck_assert(!prep_take_back(p, r[1]));
    ck_assert(prep_take_back(p, r[3])); /* the last: the next push must still find the end of the queue */
    prep_push(p, r[3]);
    r[2]->cancelled = true;
    prep_set_model(p, &model);
    wait_for(&submitted, 2); /* 0 and 3 */
    wait_for(&done_n, 1);    /* 2 */
    ck_assert_int_eq(last_outcome, PREP_CANCELLED);
    ck_assert_int_eq(bound, 2);
    submit_result = -ESHUTDOWN;
    prep_push(p, r[4]);
    wait_for(&done_n, 2);
    ck_assert_int_eq(last_outcome, PREP_FAILED);
    ck_assert_ptr_nonnull(strstr(r[4]->error.msg, "shutting down"));
    r[5]->deadline_ns = clock_now_ns() - 1;
    prep_push(p, r[5]);
    wait_for(&done_n, 3);
    ck_assert_int_eq(r[5]->error.code, -ETIMEDOUT);
    ck_assert_int_eq(submitted, 3);
    prep_free(p);
    for (int i = 0; i < 6; i++)
        prep_req_free(r[i]);
}
END_TEST

int main(void) {
    Suite *s = suite_create("prep_make");
    TCase *tc = tcase_create("prep");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, messages_become_the_prompt);
    tcase_add_test(tc, markers_typed_by_users_are_text);
    tcase_add_test(tc, settings_and_defaults);
    tcase_add_test(tc, tools_and_choice);
    tcase_add_test(tc, budget_and_guard);
    tcase_add_test(tc, token_prompts);
    tcase_add_test(tc, refusals_say_why);
    tcase_add_test(tc, schemas_of_one_user_are_bounded);
    tcase_add_test(tc, marks_are_where_messages_begin);
    tcase_add_test(tc, queue_waits_for_the_model);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
