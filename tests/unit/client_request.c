/* SPDX-License-Identifier: MIT */
/* What the request builder writes, read back with the daemon's own decoder. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clienttest.h"
#include "fakedaemon.h"
#include "reqback.h"

static glmd_req *fresh(glmd_conn *c) {
    glmd_req *r;
    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    return r;
}

static void is(struct reqdec_str s, const char *want) {
    ck_assert_uint_eq(s.len, strlen(want));
    ck_assert(s.len == 0 || memcmp(s.ptr, want, s.len) == 0);
}

#define S(text) text, sizeof(text) - 1

START_TEST(conversation) {
    struct fake f;
    const struct fake_options o = {.limits = reqback_limits};
    glmd_conn *c = fake_connect(&f, &o);
    glmd_req *r = fresh(c);
    struct reqback d;
    uint64_t tag;
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_SYSTEM, S("be kind")), 0);
    ck_assert_int_eq(glmd_req_begin(r, GLMD_ROLE_USER), 0);
    ck_assert_int_eq(glmd_req_part_text(r, S("weather ")), 0);
    /* options may be set while a message is open */
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_STOP, S("END")), 0);
    ck_assert_int_eq(glmd_req_tool(r, S("{\"name\":\"wx\"}")), 0);
    ck_assert_int_eq(glmd_req_part_text(r, S("in L\xc3\xbc"
                                             "beck?")),
                     0);
    ck_assert_int_eq(glmd_req_end(r), 0);
    ck_assert_int_eq(glmd_req_begin(r, GLMD_ROLE_ASSISTANT), 0);
    ck_assert_int_eq(glmd_req_part_reasoning(r, S("need the tool")), 0);
    ck_assert_int_eq(glmd_req_part_tool_call(r, S("c1"), S("wx"), S("{\"city\":\"L\"}")), 0);
    ck_assert_int_eq(glmd_req_end(r), 0);
    ck_assert_int_eq(glmd_req_begin(r, GLMD_ROLE_TOOL), 0);
    ck_assert_int_eq(glmd_req_part_tool_result(r, S("c1"), S("18 C")), 0);
    ck_assert_int_eq(glmd_req_part_tool_result(r, NULL, 0, S("")), 0);
    ck_assert_int_eq(glmd_req_end(r), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    reqback_ok(&f, &d);
    ck_assert_uint_eq(d.e.tag, tag);
    ck_assert_uint_eq(d.q.n_msgs, 4);
    is(d.q.parts[d.q.msgs[0].first_part].text, "be kind");
    ck_assert_uint_eq(d.q.msgs[1].role, GLMW_ROLE_USER);
    ck_assert_uint_eq(d.q.msgs[1].n_parts, 2);
    is(d.q.parts[d.q.msgs[1].first_part + 1].text, "in L\xc3\xbc"
                                                   "beck?");
    const struct reqdec_part *p = &d.q.parts[d.q.msgs[2].first_part];
    ck_assert_uint_eq(p[0].type, GLMW_TLV_PART_REASONING);
    is(p[0].text, "need the tool");
    is(p[1].id, "c1");
    is(p[1].name, "wx");
    is(p[1].text, "{\"city\":\"L\"}");
    p = &d.q.parts[d.q.msgs[3].first_part];
    is(p[0].id, "c1");
    is(p[0].text, "18 C");
    is(p[1].id, "");
    ck_assert_uint_eq(d.q.n_tools, 1);
    is(d.q.tools[0], "{\"name\":\"wx\"}");
    ck_assert_uint_eq(d.q.n_stops, 1);
    is(d.q.stops[0], "END");
    ck_assert(!d.q.has_sampling && !d.q.has_chat && !d.q.has_choice);
    reqback_drop(&d);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(every_option) {
    struct fake f;
    const struct fake_options o = {.limits = reqback_limits};
    glmd_conn *c = fake_connect(&f, &o);
    glmd_req *r = fresh(c);
    struct reqback d;
    uint64_t tag;
    static const uint32_t ids[] = {5, 17, 999};
    ck_assert_int_eq(glmd_req_tokens(r, ids, 3), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 77), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MIN_TOKENS, 3), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_TOP_K, 40), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_SEED, 0xfedcba9876543210u), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_IGNORE_EOS, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_LOGPROBS, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_ALTERNATIVES, 5), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING, 0), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING_BUDGET, 12), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_LOOP_GUARD, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_CLEAR_THINKING, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_GENERATION_PROMPT, 0), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_DEADLINE_MS, 1500), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_SESSION, 1ull << 40), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_QUIET, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_BACKGROUND, 2), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_BACKGROUND, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_NO_CACHE, 2), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_NO_CACHE, 1), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_PARALLEL_CALLS, 0), 0);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_TOOL_NAME, S("wx")), 0);
    ck_assert_int_eq(glmd_req_tool(r, S("{}")), 0);
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_TEMPERATURE, 0.5), 0);
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_TOP_P, 0.25), 0);
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_MIN_P, 0.125), 0);
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_REPETITION_PENALTY, 1.5), 0);
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_PRESENCE_PENALTY, -2.0), 0);
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_FREQUENCY_PENALTY, 2.0), 0);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_EFFORT, S("medium")), 0);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_LABEL, S("web:alice")), 0);
    ck_assert_int_eq(glmd_req_bias(r, 7, -1.5), 0);
    ck_assert_int_eq(glmd_req_bias(r, 8, 100), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    reqback_ok(&f, &d);
    ck_assert_uint_eq(d.e.flags, GLMW_ENT_QUIET | GLMW_ENT_BACKGROUND | GLMW_ENT_NO_CACHE);
    ck_assert_uint_eq(d.e.max_tokens, 77);
    ck_assert_uint_eq(d.e.deadline_ms, 1500);
    ck_assert_uint_eq(d.e.session, 1ull << 40);
    ck_assert(d.e.client_ns != 0);
    ck_assert_uint_eq(d.q.n_tokens, 3);
    ck_assert_mem_eq(d.q.tokens, ids, sizeof ids);
    const struct glmw_sampling *s = &d.q.sampling;
    ck_assert_uint_eq(s->has, GLMW_HAS_ALL);
    ck_assert_uint_eq(s->flags, GLMW_SAMP_LOGPROBS | GLMW_SAMP_IGNORE_EOS);
    ck_assert(s->temperature == 0.5f && s->top_p == 0.25f && s->min_p == 0.125f);
    ck_assert(s->repetition_penalty == 1.5f && s->presence_penalty == -2.0f && s->frequency_penalty == 2.0f);
    ck_assert_uint_eq(s->top_k, 40);
    ck_assert_uint_eq(s->seed, 0xfedcba9876543210u);
    ck_assert_uint_eq(s->n_alts, 5);
    ck_assert_uint_eq(s->min_tokens, 3);
    ck_assert_uint_eq(s->thinking_budget, 12);
    ck_assert_uint_eq(s->loop_guard, 1);
    ck_assert_uint_eq(d.q.chat.effort, GLMW_EFFORT_WORD);
    is(d.q.effort_word, "medium");
    ck_assert_uint_eq(d.q.chat.thinking, GLMW_OFF);
    ck_assert_uint_eq(d.q.chat.clear_thinking, GLMW_ON);
    ck_assert_uint_eq(d.q.chat.add_generation_prompt, GLMW_OFF);
    ck_assert_uint_eq(d.q.choice.mode, GLMW_CHOICE_NAMED);
    ck_assert_uint_eq(d.q.choice.flags, GLMW_CHOICE_ONE_CALL);
    is(d.q.choice_name, "wx");
    is(d.q.label, "web:alice");
    ck_assert_uint_eq(d.q.n_bias, 2);
    ck_assert_uint_eq(d.q.bias[0].token, 7);
    ck_assert(d.q.bias[1].bias == 100.0f);
    reqback_drop(&d);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(effort_words) {
    static const struct {
        const char *word;
        uint8_t effort;
    } cases[] = {{"low", GLMW_EFFORT_LOW},  {"high", GLMW_EFFORT_HIGH}, {"max", GLMW_EFFORT_MAX},
                 {"", GLMW_EFFORT_DEFAULT}, {"lo", GLMW_EFFORT_WORD},   {"maximum", GLMW_EFFORT_WORD}};
    struct fake f;
    const struct fake_options o = {.limits = reqback_limits};
    glmd_conn *c = fake_connect(&f, &o);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        glmd_req *r = fresh(c);
        struct reqback d;
        uint64_t tag;
        ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, S("x")), 0);
        ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_EFFORT, cases[i].word, strlen(cases[i].word)), 0);
        ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
        reqback_ok(&f, &d);
        ck_assert_uint_eq(d.q.chat.effort, cases[i].effort);
        is(d.q.effort_word, cases[i].effort == GLMW_EFFORT_WORD ? cases[i].word : "");
        reqback_drop(&d);
    }
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* A wrong order is found where it is made, and the request stays as it was. */
START_TEST(order_and_roles) {
    struct fake f;
    const struct fake_options o = {.limits = reqback_limits};
    glmd_conn *c = fake_connect(&f, &o);
    glmd_req *r = fresh(c);
    struct reqback d;
    uint64_t tag = 0;
    static const uint32_t id = 5;
    ck_assert_int_eq(glmd_req_part_text(r, S("x")), -EBADMSG);
    ck_assert_int_eq(glmd_req_end(r), -EBADMSG);
    ck_assert_int_eq(glmd_req_begin(r, 0), -EINVAL);
    ck_assert_int_eq(glmd_req_begin(r, 5), -EINVAL);
    ck_assert_int_eq(glmd_req_begin(r, GLMD_ROLE_USER), 0);
    ck_assert_int_eq(glmd_req_begin(r, GLMD_ROLE_USER), -EBADMSG);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, S("x")), -EBADMSG);
    ck_assert_int_eq(glmd_req_part_reasoning(r, S("x")), -EBADMSG);
    ck_assert_int_eq(glmd_req_part_tool_call(r, S(""), S("n"), S("{}")), -EBADMSG);
    ck_assert_int_eq(glmd_req_part_tool_result(r, S(""), S("x")), -EBADMSG);
    ck_assert_int_eq(glmd_req_tokens(r, &id, 1), -EBADMSG);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -EBADMSG);
    ck_assert_uint_eq(tag, 0);
    ck_assert_int_eq(glmd_req_part_text(r, S("only this")), 0);
    ck_assert_int_eq(glmd_req_end(r), 0);
    ck_assert_int_eq(glmd_req_part_text(r, NULL, 1), -EBADMSG);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, NULL, 1), -EINVAL);
    ck_assert_int_eq(glmd_req_begin(r, GLMD_ROLE_TOOL), 0);
    ck_assert_int_eq(glmd_req_part_text(r, S("first")), -EBADMSG);
    ck_assert_int_eq(glmd_req_end(r), -EBADMSG);
    ck_assert_int_eq(glmd_req_part_tool_result(r, S(""), S("x")), 0);
    ck_assert_int_eq(glmd_req_part_text(r, S("behind it")), 0);
    ck_assert_int_eq(glmd_req_end(r), 0);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_TOOL, S("result")), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    reqback_ok(&f, &d);
    ck_assert_uint_eq(d.q.n_msgs, 3);
    is(d.q.parts[0].text, "only this");
    ck_assert_uint_eq(d.q.parts[3].type, GLMW_TLV_PART_TOOL_RESULT);
    is(d.q.parts[3].text, "result");
    reqback_drop(&d);
    r = fresh(c);
    ck_assert_int_eq(glmd_req_tokens(r, &id, 1), 0);
    ck_assert_int_eq(glmd_req_tokens(r, &id, 1), -EBADMSG);
    ck_assert_int_eq(glmd_req_begin(r, GLMD_ROLE_USER), -EBADMSG);
    ck_assert_ptr_null(glmd_req_free(r));
    ck_assert_ptr_null(glmd_req_free(NULL));
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(keys_and_ranges) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    glmd_req *r = fresh(c);
    char big[300];
    memset(big, 'a', sizeof big);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_TEMPERATURE, 1), -EINVAL);
    ck_assert_int_eq(glmd_req_set_u64(r, 0, 1), -EINVAL);
    ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_SEED, 1), -EINVAL);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_SEED, S("x")), -EINVAL);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_STOP, NULL, 3), -EINVAL);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 0), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 1ull << 32), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_DEADLINE_MS, 0), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_TOP_K, 1ull << 32), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_THINKING, 2), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_IGNORE_EOS, 2), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_QUIET, 2), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_PARALLEL_CALLS, 2), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_LOOP_GUARD, 2), -ERANGE);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_TOOL_CHOICE, 3), -ERANGE);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_EFFORT, big, 33), -EMSGSIZE);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_LABEL, big, 65), -EMSGSIZE);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_TOOL_NAME, big, 257), -EMSGSIZE);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_TOOL_NAME, big, 0), -EINVAL);
    glmd_req_free(r);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* Bad numbers are carried to the daemon, which names them. */
START_TEST(values_are_the_daemons_to_judge) {
    static const double bad[] = {NAN, -1.0, INFINITY, 1e300};
    struct fake f;
    const struct fake_options o = {.limits = reqback_limits};
    glmd_conn *c = fake_connect(&f, &o);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        glmd_req *r = fresh(c);
        struct reqback d;
        struct reqdec_err err = {0};
        uint64_t tag;
        ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, S("x")), 0);
        ck_assert_int_eq(glmd_req_set_f64(r, GLMD_KEY_TEMPERATURE, bad[i]), 0);
        ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
        ck_assert_int_eq(reqback(&f, &d, &err), -EINVAL);
        reqback_drop(&d);
    }
    /* no message at all, and text that is not UTF-8 */
    for (int i = 0; i < 2; i++) {
        glmd_req *r = fresh(c);
        struct reqback d;
        struct reqdec_err err = {0};
        uint64_t tag;
        if (i)
            ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, S("\xff")), 0);
        ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
        ck_assert_int_eq(reqback(&f, &d, &err), i ? -EILSEQ : -EBADMSG);
        reqback_drop(&d);
    }
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(too_large) {
    struct fake f;
    const struct fake_options o = {.pay_log2 = GLMW_PAY_LOG2_MIN};
    glmd_conn *c = fake_connect(&f, &o);
    struct glmd_info info = {.size = sizeof info};
    ck_assert_int_eq(glmd_get_info(c, &info), 0);
    ck_assert_uint_eq(info.max_request_bytes, 1u << GLMW_PAY_LOG2_MIN);
    size_t len = 10u << 20;
    char *text = malloc(len);
    memset(text, 'a', len);
    glmd_req *r = fresh(c);
    uint64_t tag = 0;
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, text, len), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -EMSGSIZE);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, text, SIZE_MAX), -EMSGSIZE);
    ck_assert_int_eq(glmd_req_tokens(r, (const uint32_t *)(void *)text, SIZE_MAX / 2), -EBADMSG);
    glmd_req_free(r);
    r = fresh(c);
    ck_assert_int_eq(glmd_req_tokens(r, (const uint32_t *)(void *)text, SIZE_MAX / 2), -EMSGSIZE);
    /* exactly the largest that fits: headers are three of 8 bytes and the role */
    size_t most = (size_t)info.max_request_bytes - 3 * 8 - 8;
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, text, most + 1), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -EMSGSIZE);
    glmd_req_free(r);
    r = fresh(c);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, text, most), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    /* the arena is full until the daemon has read it */
    r = fresh(c);
    uint64_t t2 = 0;
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, "y", 1), 0);
    ck_assert_int_eq(glmd_submit(c, r, &t2), -ENOBUFS);
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    ck_assert_int_eq(glmd_submit(c, r, &t2), 0);
    free(text);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* Payloads of live requests never overlap, in whatever order they end. */
START_TEST(arena_reuse) {
    struct fake f;
    const struct fake_options o = {.pay_log2 = GLMW_PAY_LOG2_MIN, .live = 60};
    glmd_conn *c = fake_connect(&f, &o);
    struct {
        uint64_t tag, off;
        uint32_t len;
        uint8_t fill;
    } live[64];
    int n = 0;
    srand(5);
    char text[4000];
    for (int round = 0; round < 2000; round++) {
        if (n < 40 && rand() % 2) {
            size_t len = (size_t)(rand() % 3000) + 1;
            uint8_t fill = (uint8_t)('a' + round % 26);
            memset(text, fill, len);
            glmd_req *r = fresh(c);
            uint64_t tag;
            ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, text, len), 0);
            int e = glmd_submit(c, r, &tag);
            if (e < 0) {
                ck_assert_int_eq(e, -ENOBUFS);
                glmd_req_free(r);
                continue;
            }
            struct glmw_entry w;
            ck_assert(fake_pop(&f, &w));
            ck_assert_uint_eq(w.tag, tag);
            ck_assert_uint_eq(w.payload_off % GLMW_ALIGN, 0);
            ck_assert_uint_le(w.payload_off + w.payload_len, 1u << GLMW_PAY_LOG2_MIN);
            for (int i = 0; i < n; i++)
                ck_assert(w.payload_off + w.payload_len <= live[i].off ||
                          live[i].off + live[i].len <= w.payload_off);
            live[n].tag = tag;
            live[n].off = w.payload_off;
            live[n].len = w.payload_len;
            live[n++].fill = fill;
        } else if (n) {
            int i = rand() % n;
            uint8_t p[4000];
            struct glmd_event e = {.size = sizeof e};
            ck_assert_int_eq(shm_payload_read(&f.shm, live[i].off, live[i].len, p), 0);
            ck_assert_int_eq(p[24], live[i].fill);
            if (rand() % 2)
                fake_accept(&f, live[i].tag);
            fake_end(&f, live[i].tag, 0, 1);
            fake_flush(&f, true);
            ck_assert_int_eq(glmd_dispatch(c), 1);
            while (glmd_next(c, &e) == 1) {
            }
            live[i] = live[--n];
        }
    }
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(services) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmw_entry e;
    uint64_t tag;
    glmd_req *r = fresh(c);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, S("x")), 0);
    ck_assert_int_eq(glmd_count(c, r, &tag), 0);
    ck_assert(fake_pop(&f, &e));
    ck_assert_int_eq(e.opcode, GLMW_OP_COUNT);
    fake_accept(&f, tag);
    fake_usage(&f, tag, 9, 0);
    fake_end(&f, tag, 0, GLMW_END_STOP);
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    struct glmd_event ev = ct_next(c, GLMD_EV_END, tag);
    ck_assert_uint_eq(ev.usage->prompt_tokens, 9);
    r = fresh(c);
    ck_assert_int_eq(glmd_tokenize(c, r, &tag), 0);
    ck_assert(fake_pop(&f, &e));
    ck_assert_int_eq(e.opcode, GLMW_OP_TOKENIZE);
    glmd_close(c);
    fake_close(&f);
    const struct fake_options bare = {.features = GLMW_FEAT_LOGPROBS};
    c = fake_connect(&f, &bare);
    r = fresh(c);
    ck_assert_int_eq(glmd_count(c, r, &tag), -EOPNOTSUPP);
    ck_assert_int_eq(glmd_tokenize(c, r, &tag), -EOPNOTSUPP);
    ck_assert_int_eq(glmd_set_coalesce(c, 4, 1000), -EOPNOTSUPP);
    ck_assert_int_eq(glmd_set_coalesce(c, 0, 0), 0);
    glmd_req_free(r);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* An ACCEPTED under the number just before the first record; the library goes on from there and wants it. */
static int resumed(uint32_t asked, uint32_t accepted, uint32_t next, struct glmd_event *ret) {
    const struct fake_options with = {.features = FAKE_FEATURES | GLMW_FEAT_RESUME};
    struct fake f;
    struct glmw_entry n;
    struct glmw_rec r;
    glmd_conn *c = fake_connect(&f, &with);
    uint64_t tag;
    int got;
    ck_assert_int_eq(glmd_resume(c, 0x1122334455667788, asked, &tag), 0);
    ck_assert(fake_pop(&f, &n));
    ck_assert_int_eq(n.opcode, GLMW_OP_RESUME);
    ck_assert_uint_eq(n.tag, tag);
    ck_assert_uint_eq(n.payload_off, 0x1122334455667788);
    ck_assert_uint_eq(n.session, asked);
    r = fake_rec(&f, GLMW_REC_ACCEPTED, tag);
    r.seq = accepted;
    r.u.accepted.stream_id = 0x1122334455667788;
    fake_put(&f, &r);
    r = fake_rec(&f, GLMW_REC_TOKEN, tag);
    r.seq = next;
    fake_put(&f, &r);
    fake_flush(&f, true);
    *ret = (struct glmd_event){.size = sizeof *ret};
    ck_assert_int_ge(glmd_dispatch(c), -EPROTO);
    got = glmd_next(c, ret);
    if (got == 1 && ret->type == GLMD_EV_ACCEPTED) {
        ck_assert_uint_eq(ret->stream_id, 0x1122334455667788);
        ck_assert_uint_eq(ret->seq, accepted);
        got = glmd_next(c, ret);
    }
    glmd_close(c);
    fake_close(&f);
    return got == 1 && ret->type == GLMD_EV_TOKEN ? 0 : got == 1 ? ret->status : got;
}

START_TEST(resume_goes_on_where_it_was_told) {
    static const struct {
        uint32_t asked, accepted, next;
        int want;
    } row[] = {
        {0, 0, 1, 0},
        {1, 0, 1, 0},
        {7, 6, 7, 0},
        {7, 10, 11, 0},
        {7, 11, 12, -EPROTO},
        {7, 5, 6, -EPROTO},
        {7, 6, 8, -EPROTO},
        {7, 6, 6, -EPROTO},
        {0, 1, 2, -EPROTO},
        {7, 0, 1, -EPROTO},
        {7, UINT32_MAX, 0, -EPROTO},
    };
    struct glmd_event e;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int r = resumed(row[i].asked, row[i].accepted, row[i].next, &e);
        ck_assert_msg(r == row[i].want, "row %zu: %d, not %d", i, r, row[i].want);
    }
}
END_TEST

/* Neither leaves the library when the daemon does not offer it, and then the request is still the caller's.
 */
START_TEST(keep_and_resume_need_the_feature) {
    const struct fake_options with = {.features = FAKE_FEATURES | GLMW_FEAT_RESUME};
    struct glmw_entry n;
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    glmd_req *r = fresh(c);
    uint64_t tag = 99;
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_KEEP, 1), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -EOPNOTSUPP);
    ck_assert_int_eq(glmd_resume(c, 1, 0, &tag), -EOPNOTSUPP);
    ck_assert_uint_eq(tag, 99);
    ck_assert(!fake_pop(&f, &n));
    ck_assert_int_eq(glmd_count(c, r, &tag), 0); /* counting keeps nothing */
    ck_assert(fake_pop(&f, &n));
    ck_assert_uint_eq(n.flags, 0);
    glmd_close(c);
    fake_close(&f);
    c = fake_connect(&f, &with);
    r = fresh(c);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_KEEP, 1), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    ck_assert(fake_pop(&f, &n));
    ck_assert_uint_eq(n.flags, GLMW_ENT_KEEP);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("client_request");
    TCase *t = ct_case(s, "request", 20);
    tcase_add_test(t, conversation);
    tcase_add_test(t, every_option);
    tcase_add_test(t, effort_words);
    tcase_add_test(t, order_and_roles);
    tcase_add_test(t, keys_and_ranges);
    tcase_add_test(t, values_are_the_daemons_to_judge);
    tcase_add_test(t, too_large);
    tcase_add_test(t, arena_reuse);
    tcase_add_test(t, services);
    tcase_add_test(t, resume_goes_on_where_it_was_told);
    tcase_add_test(t, keep_and_resume_need_the_feature);
    return ct_main(s);
}
