/* SPDX-License-Identifier: MIT */
/* The request decoder: options of a request, value by value. */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "reqtest.h"

/* What was found and what was expected, said of the option by its name; a value that is good has no words. */
static void with_sampling(struct glmw_sampling s, size_t len, int code, const char *word, int line) {
    static const uint64_t beyond[4];
    t.len = 0;
    tlv_put2(&t, GLMW_TLV_SAMPLING, 0, &s, len < 64 ? len : 64, beyond, len < 64 ? 0 : len - 64);
    user("x");
    if (code == 0)
        ck_assert_msg(decode() == 0, "line %d: %s", line, err.reason);
    else
        refused_at(line, code, GLMW_TLV_SAMPLING, 0, word);
}
#define SAMPLING(field, value, code, word)                                                                   \
    do {                                                                                                     \
        struct glmw_sampling s_ = ipc_sampling();                                                            \
        s_.field = (value);                                                                                  \
        with_sampling(s_, 64, code, word, __LINE__);                                                         \
    } while (0)

static const char *said(const char *name, float found, const char *range) {
    static char text[120];
    snprintf(text, sizeof(text), "%s: found %g, expected %s", name, (double)found, range);
    return text;
}

static const char *without_bit(unsigned bit) {
    static const char *const name[12] = {"temperature: found 0.75", "top_p: found 0.5", "min_p: found 0.25",
                                         "top_k: found 40", "repetition_penalty: found 1.125",
                                         "presence_penalty: found -1.5", "frequency_penalty: found 1.5",
                                         "seed: found 1234605616436508552", "alternatives: found 5",
                                         "min_tokens: found 3", "thinking_budget: found 100", "loop_guard: found 1"};
    static char text[120];
    snprintf(text, sizeof(text), "%s without its bit 0x%04x, expected 0", name[bit], 1u << bit);
    return text;
}

START_TEST(sampling_values) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, -0.5f};
    for (size_t i = 0; i < 4; i++) {
        SAMPLING(temperature, odd[i], -EINVAL, said("temperature", odd[i], "0 to 100"));
        SAMPLING(top_p, odd[i], -EINVAL, said("top_p", odd[i], "above 0, at most 1"));
        SAMPLING(min_p, odd[i], -EINVAL, said("min_p", odd[i], "0 to 1"));
        SAMPLING(repetition_penalty, odd[i], -EINVAL, said("repetition_penalty", odd[i], "0.001 to 100"));
        SAMPLING(presence_penalty, i == 3 ? -101.f : odd[i], -EINVAL,
                 said("presence_penalty", i == 3 ? -101.f : odd[i], "-100 to 100"));
        SAMPLING(frequency_penalty, i == 3 ? 101.f : odd[i], -EINVAL,
                 said("frequency_penalty", i == 3 ? 101.f : odd[i], "-100 to 100"));
    }
    SAMPLING(temperature, 0.f, 0, "");
    SAMPLING(temperature, 100.f, 0, "");
    SAMPLING(temperature, 100.5f, -EINVAL, "temperature");
    SAMPLING(top_p, 0.f, -EINVAL, "top_p");
    SAMPLING(top_p, 1.f, 0, "");
    SAMPLING(top_p, 1.0001f, -EINVAL, "top_p");
    SAMPLING(min_p, 1.5f, -EINVAL, "min_p");
    SAMPLING(repetition_penalty, 0.f, -EINVAL, "repetition_penalty");
    SAMPLING(repetition_penalty, 1e-3f, 0, ""); /* as a checkpoint may ask for; the engine takes less */
    SAMPLING(repetition_penalty, 9e-4f, -EINVAL, "repetition_penalty");
    SAMPLING(n_alts, 20, 0, "");
    SAMPLING(n_alts, 21, -EMSGSIZE, "alternatives: found 21, expected at most 20");
    SAMPLING(has, 0x1000 | GLMW_HAS_ALL, -EOPNOTSUPP, "does not know: found bits 0x1fff");
    SAMPLING(flags, 4, -EOPNOTSUPP, "does not know");
    SAMPLING(loop_guard, 2, -EINVAL, "loop_guard: found 2, expected 0 or 1");
    for (unsigned bit = 0; bit < 12; bit++) /* a field without its bit must be 0 */
        SAMPLING(has, GLMW_HAS_ALL & ~(1u << bit), -EINVAL, without_bit(bit));
    /* sizes: the struct may grow by zeros only */
    SAMPLING(size, 60, -EBADMSG, "size word");
    SAMPLING(size, 72, -EBADMSG, "size word");
    struct glmw_sampling s = ipc_sampling();
    with_sampling(s, 56, -EBADMSG, "short", __LINE__);
    with_sampling(s, 72, -EBADMSG, "size", __LINE__);
    s.size = 72;
    with_sampling(s, 72, 0, "", __LINE__);
    ck_assert_uint_eq(q.sampling.size, 72);
    t.b[8 + 64] = 1;
    REFUSED(-EOPNOTSUPP, GLMW_TLV_SAMPLING, "does not know");
}
END_TEST

START_TEST(features_not_granted) {
    struct glmw_sampling s = ipc_sampling();
    const struct glmw_tlv_image img = {.source = 1, .format = 1},
                                blk = {.source = 2, .format = 1, .bulk_id = 1};
    const struct glmw_tlv_schema sch = {.kind = 1};
    features = GLMW_FEAT_ALL & ~GLMW_FEAT_ALTS;
    with_sampling(s, 64, -EOPNOTSUPP, "alternatives", __LINE__);
    s.n_alts = 0;
    with_sampling(s, 64, 0, "", __LINE__);
    features = GLMW_FEAT_ALL & ~GLMW_FEAT_LOGPROBS;
    with_sampling(s, 64, -EOPNOTSUPP, "logprobs", __LINE__);
    features = GLMW_FEAT_ALL & ~GLMW_FEAT_IMAGES;
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_put2(&t, GLMW_TLV_PART_IMAGE, 0, &img, sizeof(img), "x", 1);
    REFUSED(-EOPNOTSUPP, GLMW_TLV_PART_IMAGE, "pictures");
    features = GLMW_FEAT_ALL & ~GLMW_FEAT_BULK;
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_put(&t, GLMW_TLV_PART_IMAGE, &blk, sizeof(blk));
    REFUSED(-EOPNOTSUPP, GLMW_TLV_PART_IMAGE, "bulk");
    features = GLMW_FEAT_ALL & ~GLMW_FEAT_SCHEMA;
    tlv_put(&t, GLMW_TLV_SCHEMA, &sch, sizeof(sch));
    REFUSED(-EOPNOTSUPP, GLMW_TLV_SCHEMA, "constrained");
}
END_TEST

START_TEST(chat_options) {
    const struct glmw_tlv_chat good = {.size = 16};
    struct glmw_tlv_chat c;
    for (uint8_t effort = 0; effort <= 5; effort++) {
        c = good;
        c.effort = effort;
        c.word_len = effort == 4 ? 6 : 0;
        tlv_put2(&t, GLMW_TLV_CHAT, 0, &c, 16, "medium", c.word_len);
        user("x");
        if (effort > 4) {
            REFUSED(-EINVAL, GLMW_TLV_CHAT, "effort: found 5, expected 0 to 4");
            continue;
        }
        ck_assert_int_eq(decode(), 0);
        ck_assert(q.chat.effort == effort && q.effort_word.len == c.word_len);
        t.len = 0;
    }
    c = good;
    c.effort = 4; /* without a word */
    tlv_put(&t, GLMW_TLV_CHAT, &c, 16);
    REFUSED(-EINVAL, GLMW_TLV_CHAT, "effort: found 4 without a word, expected a word of 1 to 32 bytes");
    c = good;
    c.word_len = 3;
    tlv_put2(&t, GLMW_TLV_CHAT, 0, &c, 16, "a b", 3);
    REFUSED(-EINVAL, GLMW_TLV_CHAT, "effort: found the byte 0x20 in its word");
    c.word_len = 2; /* lengths differ */
    tlv_put2(&t, GLMW_TLV_CHAT, 0, &c, 16, "abc", 3);
    REFUSED(-EBADMSG, GLMW_TLV_CHAT, "effort: found a word of 2 bytes, expected the 3 that follow");
    c.word_len = 33;
    tlv_put2(&t, GLMW_TLV_CHAT, 0, &c, 16, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 33);
    REFUSED(-EBADMSG, GLMW_TLV_CHAT, "effort: found a word of 33 bytes, expected at most 32");
    for (int i = 0; i < 3; i++) {
        c = good;
        *(i == 0 ? &c.thinking : i == 1 ? &c.clear_thinking : &c.add_generation_prompt) = 3;
        tlv_put(&t, GLMW_TLV_CHAT, &c, 16);
        REFUSED(-EINVAL, GLMW_TLV_CHAT,
                i == 0   ? "thinking: found 3, expected 0 (unset), 1 (on) or 2 (off)"
                : i == 1 ? "clear_thinking: found 3, expected 0 (unset), 1 (on) or 2 (off)"
                         : "generation_prompt: found 3, expected 0 (unset)");
    }
    c = good;
    c.zero = 1;
    tlv_put(&t, GLMW_TLV_CHAT, &c, 16);
    REFUSED(-EBADMSG, GLMW_TLV_CHAT, "reserved");
    c = good;
    c.size = 24; /* a later client: fields it leaves at zero are fine, and the word comes behind them */
    c.word_len = 3;
    tlv_put2(&t, GLMW_TLV_CHAT, 0, &c, 16, "\0\0\0\0\0\0\0\0Max", 11);
    user("x");
    ck_assert_int_eq(decode(), 0);
    IS(q.effort_word, "Max");
    t.len = 0;
    tlv_put2(&t, GLMW_TLV_CHAT, 0, &c, 16, "\1\0\0\0\0\0\0\0Max", 11);
    REFUSED(-EOPNOTSUPP, GLMW_TLV_CHAT, "does not know");
}
END_TEST

START_TEST(choices_schemas_biases_labels) {
    static const struct {
        uint32_t mode, flags;
        const char *name;
        int code;
        const char *says;
    } ch[] = {{0, 0, "", 0, ""},
              {1, 1, "", 0, ""},
              {2, 0, "", 0, ""},
              {3, 0, "f", 0, ""},
              {4, 0, "", -EINVAL, "tool_choice: found 4, expected 0 (auto), 1 (none), 2 (required) or 3 (named)"},
              {0, 2, "", -EINVAL, "tool_choice: found flags 0x2, expected 0 or 1 (one call)"},
              {3, 0, "", -EBADMSG, "tool_name: found 0 bytes with tool_choice 3, expected 1 to 256"},
              {0, 0, "f", -EBADMSG, "tool_name: found 1 bytes with tool_choice 0, expected none"},
              {2, 0, "f", -EBADMSG, "tool_name: found 1 bytes with tool_choice 2, expected none"}};
    for (size_t i = 0; i < sizeof(ch) / sizeof(ch[0]); i++) {
        struct glmw_tlv_choice c = {.mode = ch[i].mode, .flags = ch[i].flags};
        t.len = 0;
        tlv_text(&t, GLMW_TLV_TOOL_DEF, "{}");
        tlv_put2(&t, GLMW_TLV_TOOL_CHOICE, 0, &c, 8, ch[i].name, strlen(ch[i].name));
        user("x");
        if (ch[i].code)
            REFUSED(ch[i].code, GLMW_TLV_TOOL_CHOICE, ch[i].says);
        else
            ck_assert_int_eq(decode(), 0);
    }
    struct glmw_tlv_choice required = {.mode = GLMW_CHOICE_REQUIRED};
    t.len = 0;
    tlv_put(&t, GLMW_TLV_TOOL_CHOICE, &required, 8);
    user("x");
    REFUSED(-EBADMSG, 0, "tool_choice: found 2, which demands a call, but no tool is defined");
    static const struct {
        uint32_t kind, zero;
        const char *text, *says;
    } sc[] = {{0, 0, "", "schema: found kind 0, expected 1 (json_object) or 2 (a schema)"},
              {3, 0, "x", "schema: found kind 3"},
              {1, 0, "x", "json_object: found 1 bytes of text, expected none"},
              {2, 0, "", "schema: found 0 bytes of text, expected a schema"},
              {1, 1, "", "schema: found 1 in its reserved word, expected 0"}};
    for (size_t i = 0; i < sizeof(sc) / sizeof(sc[0]); i++) {
        struct glmw_tlv_schema c = {sc[i].kind, sc[i].zero};
        tlv_put2(&t, GLMW_TLV_SCHEMA, 0, &c, 8, sc[i].text, strlen(sc[i].text));
        REFUSED(-EBADMSG, GLMW_TLV_SCHEMA, sc[i].says);
    }
    struct glmw_bias b[5] = {{1, 1000}, {1, -1000}, {1, NAN}, {1, 1001}, {1000, 0}};
    tlv_put(&t, GLMW_TLV_LOGIT_BIAS, b, 16);
    user("x");
    ck_assert_int_eq(decode(), 0);
    for (int i = 2; i < 5; i++) {
        t.len = 0;
        tlv_put(&t, GLMW_TLV_LOGIT_BIAS, b + i, 8);
        REFUSED_AT(-EINVAL, GLMW_TLV_LOGIT_BIAS, 8,
                   i == 2   ? "logit_bias: found nan for token 1, expected -1000 to 1000"
                   : i == 3 ? "logit_bias: found 1001 for token 1, expected -1000 to 1000"
                            : "logit_bias: found token 1000, expected at most 999");
    }
    tlv_put(&t, GLMW_TLV_LOGIT_BIAS, b, 0);
    REFUSED(-EBADMSG, GLMW_TLV_LOGIT_BIAS, "empty");
    tlv_put(&t, GLMW_TLV_LOGIT_BIAS, b, 12);
    REFUSED(-EBADMSG, GLMW_TLV_LOGIT_BIAS, "whole number");
    tlv_put(&t, GLMW_TLV_LABEL, "a\nb", 3);
    REFUSED(-EINVAL, GLMW_TLV_LABEL, "label: found the control character 0x0a");
}
END_TEST

int main(void) {
    Suite *s = suite_create("ipc_reqopt");
    TCase *tc = tcase_create("decoder");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, leakcheck_teardown);
    tcase_add_test(tc, sampling_values);
    tcase_add_test(tc, features_not_granted);
    tcase_add_test(tc, chat_options);
    tcase_add_test(tc, choices_schemas_biases_labels);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
