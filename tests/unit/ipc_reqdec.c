/* SPDX-License-Identifier: MIT */
/* The request decoder: what a good payload becomes, and one check for each way its structure can be wrong. */
#include <errno.h>

#include "reqtest.h"

START_TEST(full_chat) {
    ipc_full_chat(&t);
    int r = decode();
    ck_assert_msg(r == 0, "%d at %u: %s", r, err.offset, err.reason);
    ck_assert(q.tokens == NULL && q.n_msgs == 5 && q.n_parts == 11 && q.n_tools == 2 && q.n_stops == 2);
    static const uint32_t roles[] = {1, 2, 3, 4, 3}, first[] = {0, 1, 4, 8, 11}, count[] = {1, 3, 4, 3, 0};
    for (int i = 0; i < 5; i++)
        ck_assert(q.msgs[i].role == roles[i] && q.msgs[i].first_part == first[i] &&
                  q.msgs[i].n_parts == count[i]);
    const struct reqdec_part *p = q.parts;
    IS(p[0].text, "Be brief. \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
    ck_assert(p[1].type == GLMW_TLV_PART_IMAGE && p[1].image_source == 1 && p[1].image_format == 1);
    IS(p[1].text, "\x89PNG");
    ck_assert(p[2].image_source == 2 && p[2].image_format == 3 && p[2].image_bulk_id == 77);
    ck_assert(p[2].image_width == 4 && p[2].image_height == 2 && p[2].text.len == 0);
    IS(p[3].text, "What is it like in Lima?");
    ck_assert(p[4].type == GLMW_TLV_PART_REASONING);
    IS(p[4].text, "I need the tool.");
    ck_assert(p[5].type == GLMW_TLV_PART_TEXT && p[5].text.len == 0);
    ck_assert(p[6].type == GLMW_TLV_PART_TOOL_CALL);
    IS(p[6].id, "call-1");
    IS(p[6].name, "weather");
    IS(p[6].text, "{\"city\": \"Lima\"}");
    IS(p[7].id, "");
    IS(p[7].name, "time");
    ck_assert(p[8].type == GLMW_TLV_PART_TOOL_RESULT);
    IS(p[8].id, "call-1");
    IS(p[8].text, "18 C");
    IS(p[9].text, " and dry");
    IS(p[10].text, "");
    IS(q.tools[0], "{\"name\": \"weather\"}");
    IS(q.tools[1], "{\"name\": \"time\"}");
    IS(q.stops[0], "\n\nUser:");
    IS(q.stops[1], "END");
    ck_assert(q.has_choice && q.choice.mode == 3 && q.choice.flags == 1);
    IS(q.choice_name, "weather");
    ck_assert(q.has_schema && q.schema_kind == 2);
    IS(q.schema, "{}");
    ck_assert(q.n_bias == 2 && q.bias[0].token == 7 && q.bias[0].bias == -100.f && q.bias[1].bias == 2.5f);
    IS(q.label, "nightly job");
    ck_assert(q.has_chat && q.chat.effort == 2 && q.chat.thinking == 1 && q.chat.clear_thinking == 2 &&
              q.chat.add_generation_prompt == 1);
    IS(q.effort_word, "High-2");
    struct glmw_sampling s = ipc_sampling();
    ck_assert(q.has_sampling && memcmp(&q.sampling, &s, sizeof(s)) == 0);
}
END_TEST

START_TEST(raw_tokens) {
    const uint32_t ids[3] = {0, 999, 5};
    tlv_text(&t, GLMW_TLV_STOP, "x");
    tlv_put(&t, GLMW_TLV_TOKENS, ids, sizeof(ids));
    tlv_text(&t, GLMW_TLV_LABEL, "");
    ck_assert_int_eq(decode(), 0);
    ck_assert(q.n_tokens == 3 && q.tokens[1] == 999 && q.n_msgs == 0 && !q.has_sampling && !q.has_chat);
    t.len = 0;
    tlv_put(&t, GLMW_TLV_TOKENS, ids, 0);
    REFUSED_AT(-EBADMSG, GLMW_TLV_TOKENS, 0, "empty");
    tlv_put(&t, GLMW_TLV_TOKENS, ids, 7);
    REFUSED_AT(-EBADMSG, GLMW_TLV_TOKENS, 0, "whole number");
    limits.vocab_tokens = 999;
    tlv_put(&t, GLMW_TLV_TOKENS, ids, 12);
    REFUSED_AT(-EINVAL, GLMW_TLV_TOKENS, 12, "found id 999, expected at most 998"); /* the offset of the id itself */
    limits = ipc_limits();
    tlv_put(&t, GLMW_TLV_TOKENS, ids, 4);
    tlv_put(&t, GLMW_TLV_TOKENS, ids, 4);
    REFUSED_AT(-EBADMSG, GLMW_TLV_TOKENS, 16, "another prompt");
    tlv_put(&t, GLMW_TLV_TOKENS, ids, 4);
    user("x");
    REFUSED_AT(-EBADMSG, GLMW_TLV_MSG_BEGIN, 16, "raw token prompt");
    user("x");
    tlv_put(&t, GLMW_TLV_TOKENS, ids, 4);
    REFUSED(-EBADMSG, GLMW_TLV_TOKENS, "another prompt");
}
END_TEST

START_TEST(no_prompt) {
    REFUSED_AT(-EBADMSG, 0, 0, "neither a message nor");
    tlv_text(&t, GLMW_TLV_STOP, "x");
    REFUSED_AT(-EBADMSG, 0, 16, "neither a message nor");
}
END_TEST

START_TEST(truncated_anywhere) {
    struct tlvbuf whole;
    ipc_full_chat(&whole);
    unsigned good = 0;
    for (size_t n = 0; n < whole.len; n++) {
        memcpy(t.b, whole.b, n);
        memset(t.b + n, 0xff, 64);
        t.len = n;
        int r = decode();
        ck_assert_msg(r <= 0, "cut at %zu", n);
        good += r == 0;
        ck_assert(r == 0 || err.offset <= n);
    }
    /* only cuts between options behind the last message leave a whole request */
    ck_assert_uint_eq(good, 12);
    t.len = 0;
    /* inside a message it is always incomplete */
    tlv_msg(&t, GLMW_ROLE_USER);
    t.len = sizeof(struct glmw_tlv) + 8;
    REFUSED_AT(-EBADMSG, 0, 16, "ends inside a message");
}
END_TEST

START_TEST(lengths_and_padding) {
    uint32_t v;
    user("abc");
    t.b[t.len - 8 - 1] = 1; /* padding of the text in front of MSG_END */
    REFUSED_AT(-EBADMSG, GLMW_TLV_PART_TEXT, 16, "padded");
    static const uint32_t lens[] = {17, 24, 0x7fffffff, 0xfffffff0, 0xfffffff8, 0xffffffff};
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        user("abc");
        v = lens[i];
        memcpy(t.b + 16 + 4, &v, 4);
        REFUSED_AT(-EBADMSG, GLMW_TLV_PART_TEXT, 16, v == 24 ? "longer than" : "");
    }
    user("abc");
    t.len -= 4;
    REFUSED(-EBADMSG, 0, "TLV header");
    user("abc");
    t.len -= 8 + 4; /* the text's padding is cut off */
    REFUSED_AT(-EBADMSG, GLMW_TLV_PART_TEXT, 16, "padded");
    user("abc");
    t.b[2] = 2;
    REFUSED_AT(-EBADMSG, GLMW_TLV_MSG_BEGIN, 0, "flags");
    tlv_put2(&t, 999, 0, "x", 1, NULL, 0);
    REFUSED_AT(-EBADMSG, 999, 0, "unknown TLV type");
    tlv_msg(&t, GLMW_ROLE_USER); /* an ignorable one is skipped in any state */
    tlv_put2(&t, 999, GLMW_TLVF_IGNORABLE, "x", 1, NULL, 0);
    tlv_end(&t);
    ck_assert_int_eq(decode(), 0);
    ck_assert_uint_eq(q.n_parts, 0);
}
END_TEST

START_TEST(message_structure) {
    tlv_end(&t);
    REFUSED_AT(-EBADMSG, GLMW_TLV_MSG_END, 0, "without MSG_BEGIN");
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_msg(&t, GLMW_ROLE_USER);
    REFUSED_AT(-EBADMSG, GLMW_TLV_MSG_BEGIN, 16, "inside an open");
    tlv_text(&t, GLMW_TLV_PART_TEXT, "x");
    REFUSED(-EBADMSG, GLMW_TLV_PART_TEXT, "outside a message");
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_text(&t, GLMW_TLV_STOP, "x");
    REFUSED(-EBADMSG, GLMW_TLV_STOP, "inside an open");
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_put(&t, GLMW_TLV_MSG_END, "12345678", 8);
    REFUSED(-EBADMSG, GLMW_TLV_MSG_END, "not empty");
    static const uint32_t roles[] = {0, 5, 0xffffffff};
    for (size_t i = 0; i < 3; i++) {
        tlv_msg(&t, roles[i]);
        REFUSED(-EBADMSG, GLMW_TLV_MSG_BEGIN, ", expected 1 (system), 2 (user), 3 (assistant) or 4 (tool)");
    }
    tlv_put(&t, GLMW_TLV_MSG_BEGIN, "\2\0\0\0\1\0\0\0", 8);
    REFUSED(-EBADMSG, GLMW_TLV_MSG_BEGIN, "reserved");
    tlv_put(&t, GLMW_TLV_MSG_BEGIN, "\2\0\0\0", 4);
    REFUSED(-EBADMSG, GLMW_TLV_MSG_BEGIN, "length");
    tlv_msg(&t, GLMW_ROLE_TOOL);
    tlv_end(&t);
    REFUSED(-EBADMSG, GLMW_TLV_MSG_END, "without a tool result");
    tlv_msg(&t, GLMW_ROLE_TOOL);
    tlv_text(&t, GLMW_TLV_PART_TEXT, "x");
    REFUSED(-EBADMSG, GLMW_TLV_PART_TEXT, "in front of the tool result");
    tlv_msg(&t, GLMW_ROLE_ASSISTANT);
    tlv_text(&t, GLMW_TLV_PART_REASONING, "x");
    tlv_text(&t, GLMW_TLV_PART_REASONING, "x");
    REFUSED(-EBADMSG, GLMW_TLV_PART_REASONING, "two reasoning");
}
END_TEST

START_TEST(roles_and_parts) {
    /* rows: text, reasoning, image, call, result; columns: system, user, assistant, tool */
    static const char ok[5][5] = {"1111", "0010", "0101", "0010", "0001"};
    const struct glmw_tlv_image img = {.source = GLMW_IMAGE_INLINE, .format = GLMW_IMAGE_JPEG};
    for (uint32_t role = 1; role <= 4; role++) {
        for (int part = 0; part < 5; part++) {
            t.len = 0;
            tlv_msg(&t, role);
            if (role == GLMW_ROLE_TOOL)
                tlv_result(&t, "id", "");
            if (part < 2)
                tlv_text(&t, part == 0 ? GLMW_TLV_PART_TEXT : GLMW_TLV_PART_REASONING, "x");
            else if (part == 2)
                tlv_put2(&t, GLMW_TLV_PART_IMAGE, 0, &img, sizeof(img), "x", 1);
            else if (part == 3)
                tlv_call(&t, "id", "name", "{}");
            else
                tlv_result(&t, "id", "x");
            tlv_end(&t);
            ck_assert_int_eq(decode(), ok[part][role - 1] == '1' ? 0 : -EBADMSG);
        }
    }
}
END_TEST

START_TEST(calls_and_results) {
    struct glmw_tlv_call c = {.id_len = 2, .name_len = 2, .args_len = 2};
    struct glmw_tlv_result r = {.id_len = 2, .text_len = 2};
    static const uint32_t lens[] = {1, 3, 0xfffffffe, 0xffffffff, 0x80000000};
    for (size_t i = 0; i < 5; i++) { /* each of the three, also with sums that wrap */
        struct glmw_tlv_call b = c;
        if (i % 3 == 0)
            b.id_len = lens[i];
        else if (i % 3 == 1)
            b.name_len = lens[i];
        else
            b.args_len = lens[i];
        tlv_msg(&t, GLMW_ROLE_ASSISTANT);
        tlv_put2(&t, GLMW_TLV_PART_TOOL_CALL, 0, &b, sizeof(b), "idnm{}", 6);
        REFUSED(-EBADMSG, GLMW_TLV_PART_TOOL_CALL, "add up");
        struct glmw_tlv_result s = r;
        if (i & 1)
            s.id_len = lens[i];
        else
            s.text_len = lens[i];
        tlv_msg(&t, GLMW_ROLE_TOOL);
        tlv_put2(&t, GLMW_TLV_PART_TOOL_RESULT, 0, &s, sizeof(s), "idtx", 4);
        REFUSED(-EBADMSG, GLMW_TLV_PART_TOOL_RESULT, "add up");
    }
    tlv_msg(&t, GLMW_ROLE_ASSISTANT);
    tlv_put(&t, GLMW_TLV_PART_TOOL_CALL, &c, 12);
    REFUSED(-EBADMSG, GLMW_TLV_PART_TOOL_CALL, "short");
    tlv_msg(&t, GLMW_ROLE_TOOL);
    tlv_put(&t, GLMW_TLV_PART_TOOL_RESULT, &r, 4);
    REFUSED(-EBADMSG, GLMW_TLV_PART_TOOL_RESULT, "short");
    tlv_msg(&t, GLMW_ROLE_ASSISTANT);
    tlv_call(&t, "id", "", "{}");
    REFUSED(-EBADMSG, GLMW_TLV_PART_TOOL_CALL, "name");
    char long_id[258];
    memset(long_id, 'i', 257);
    long_id[257] = '\0';
    tlv_msg(&t, GLMW_ROLE_ASSISTANT);
    tlv_call(&t, long_id, "n", "{}");
    REFUSED(-EBADMSG, GLMW_TLV_PART_TOOL_CALL, "256");
    tlv_msg(&t, GLMW_ROLE_ASSISTANT);
    tlv_call(&t, "", long_id, "{}");
    REFUSED(-EBADMSG, GLMW_TLV_PART_TOOL_CALL, "256");
    tlv_msg(&t, GLMW_ROLE_TOOL);
    tlv_result(&t, long_id, "");
    REFUSED(-EBADMSG, GLMW_TLV_PART_TOOL_RESULT, "256");
}
END_TEST

START_TEST(invalid_utf8_is_located) {
    static const char bad[] = "ok\xc0\x80";
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_put(&t, GLMW_TLV_PART_TEXT, bad, 4);
    REFUSED_AT(-EILSEQ, GLMW_TLV_PART_TEXT, 16 + 8 + 2, "UTF-8");
    static const uint16_t types[] = {GLMW_TLV_TOOL_DEF, GLMW_TLV_STOP, GLMW_TLV_LABEL};
    for (size_t i = 0; i < 3; i++) {
        tlv_put(&t, types[i], bad, 4);
        REFUSED_AT(-EILSEQ, types[i], 8 + 2, "UTF-8");
    }
    for (int i = 0; i < 3; i++) {
        tlv_msg(&t, GLMW_ROLE_ASSISTANT);
        tlv_call(&t, i == 0 ? "\xff" : "i", i == 1 ? "\xff" : "n", i == 2 ? "\xff" : "{}");
        REFUSED_AT(-EILSEQ, GLMW_TLV_PART_TOOL_CALL, 16 + 8 + 16 + (uint32_t)i, "UTF-8");
    }
    tlv_msg(&t, GLMW_ROLE_TOOL);
    tlv_result(&t, "i", "\xed\xa0\x80");
    REFUSED_AT(-EILSEQ, GLMW_TLV_PART_TOOL_RESULT, 16 + 8 + 8 + 1, "UTF-8");
    const struct glmw_tlv_choice c = {.mode = GLMW_CHOICE_NAMED};
    tlv_put2(&t, GLMW_TLV_TOOL_CHOICE, 0, &c, 8, "\xf5", 1);
    REFUSED(-EILSEQ, GLMW_TLV_TOOL_CHOICE, "UTF-8");
    const struct glmw_tlv_schema s = {.kind = GLMW_SCHEMA_JSON_SCHEMA};
    tlv_put2(&t, GLMW_TLV_SCHEMA, 0, &s, 8, "\xf5", 1);
    REFUSED(-EILSEQ, GLMW_TLV_SCHEMA, "UTF-8");
}
END_TEST

/* Whatever byte of a request is wrong, its refusal repeats nothing of what people wrote, and ends. */
START_TEST(refusals_hold_no_text) {
    static const char *const texts[] = {"brief", "Lima", "weather", "tool.", "call-1", "18 C", "dry", "User",
                                        "nightly", "High"};
    static const uint8_t flips[] = {1, 0x80, 0xff};
    unsigned refused = 0;
    ipc_full_chat(&t);
    for (size_t i = 0; i < t.len; i++)
        for (size_t k = 0; k < sizeof(flips); k++) {
            t.b[i] ^= flips[k];
            if (decode() < 0) {
                refused++;
                ck_assert(err.reason[0] && memchr(err.reason, 0, sizeof(err.reason)));
                for (size_t j = 0; j < sizeof(texts) / sizeof(texts[0]); j++)
                    ck_assert_msg(!strstr(err.reason, texts[j]), "byte %zu: %s", i, err.reason);
            }
            t.b[i] ^= flips[k];
        }
    ck_assert_uint_gt(refused, 500);
}
END_TEST

START_TEST(images) {
    static const struct {
        struct glmw_tlv_image i;
        const char *says;
    } bad[] = {
        {{0, 1, 0, 0, 0}, "picture: found source 0, expected 1 (inline) or 2 (bulk)"},
        {{3, 1, 0, 0, 0}, "picture: found source 3"},
        {{1, 0, 0, 0, 0}, "picture: found format 0, expected 1 (PNG), 2 (JPEG) or 3 (RGB8)"},
        {{1, 4, 0, 0, 0}, "picture: found format 4"},
        {{1, 3, 1, 1, 0}, "picture: found RGB8 inline"},
        {{1, 1, 1, 0, 0}, "picture: found a size of 1 x 0, expected 0 x 0"},
        {{1, 1, 0, 1, 0}, "picture: found a size of 0 x 1, expected 0 x 0"},
        {{1, 1, 0, 0, 5}, "picture: found bulk object 5 with an inline one, expected 0"},
        {{2, 1, 0, 0, 5}, "picture: found 1 bytes behind its header, expected none"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tlv_msg(&t, GLMW_ROLE_USER);
        tlv_put2(&t, GLMW_TLV_PART_IMAGE, 0, &bad[i].i, sizeof(bad[i].i), "x", 1);
        REFUSED(-EBADMSG, GLMW_TLV_PART_IMAGE, bad[i].says);
    }
    static const struct glmw_tlv_image bare[] = {{1, 1, 0, 0, 0}, {2, 3, 0, 4, 5}, {2, 3, 4, 0, 5}};
    for (size_t i = 0; i < 3; i++) {
        tlv_msg(&t, GLMW_ROLE_USER);
        tlv_put(&t, GLMW_TLV_PART_IMAGE, &bare[i], sizeof(bare[i]));
        REFUSED(-EBADMSG, GLMW_TLV_PART_IMAGE,
                i ? "expected both above 0" : "picture: found 0 bytes behind its header, expected the file");
    }
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_put(&t, GLMW_TLV_PART_IMAGE, "1234567", 8);
    REFUSED(-EBADMSG, GLMW_TLV_PART_IMAGE, "short");
}
END_TEST

START_TEST(limits_hold) {
    struct glmw_bias b[5] = {{0, 0}};
    char long_text[80];
    memset(long_text, 'l', sizeof(long_text));
    for (unsigned i = 0; i <= limits.max_messages; i++)
        user("x");
    REFUSED(-EMSGSIZE, GLMW_TLV_MSG_BEGIN, "found more messages than the ");
    tlv_msg(&t, GLMW_ROLE_USER);
    for (unsigned i = 0; i <= limits.max_parts; i++)
        tlv_text(&t, GLMW_TLV_PART_TEXT, "x");
    REFUSED(-EMSGSIZE, GLMW_TLV_PART_TEXT, "found more message parts than the ");
    for (unsigned i = 0; i <= limits.max_tools; i++)
        tlv_text(&t, GLMW_TLV_TOOL_DEF, "{}");
    REFUSED(-EMSGSIZE, GLMW_TLV_TOOL_DEF, "tool: found more than 3, ");
    for (unsigned i = 0; i <= limits.max_stops; i++)
        tlv_text(&t, GLMW_TLV_STOP, "x");
    REFUSED(-EMSGSIZE, GLMW_TLV_STOP, "stop: found more than ");
    tlv_put(&t, GLMW_TLV_STOP, long_text, limits.max_stop_bytes + 1);
    REFUSED(-EMSGSIZE, GLMW_TLV_STOP, "bytes, expected at most ");
    tlv_put(&t, GLMW_TLV_STOP, long_text, 0);
    REFUSED(-EBADMSG, GLMW_TLV_STOP, "empty");
    tlv_put(&t, GLMW_TLV_TOOL_DEF, long_text, 0);
    REFUSED(-EBADMSG, GLMW_TLV_TOOL_DEF, "empty");
    tlv_put(&t, GLMW_TLV_LOGIT_BIAS, b, sizeof(b));
    REFUSED(-EMSGSIZE, GLMW_TLV_LOGIT_BIAS, "logit_bias: found 5, expected at most 4");
    tlv_put(&t, GLMW_TLV_LABEL, long_text, 65);
    REFUSED(-EMSGSIZE, GLMW_TLV_LABEL, "label: found 65 bytes, expected at most 64");
    for (uint16_t type = GLMW_TLV_TOOL_CHOICE; type <= GLMW_TLV_CHAT; type++) {
        /* what may come once is refused the second time */
        struct tlvbuf whole;
        if (type == GLMW_TLV_STOP)
            continue;
        ipc_full_chat(&whole);
        for (size_t off = 0; off < whole.len;) {
            struct glmw_tlv h;
            memcpy(&h, whole.b + off, 8);
            size_t n = 8 + (h.len + 7) / 8 * 8;
            for (int k = 0; k < (h.type == type ? 2 : 1); k++) {
                memcpy(t.b + t.len, whole.b + off, n);
                t.len += n;
            }
            off += n;
        }
        REFUSED(-EBADMSG, type, "found a second time, expected once");
    }
    limits.max_payload_bytes = 32;
    limits.max_bulk_bytes = 0;
    user("a text over the limit of the payload");
    REFUSED(-EMSGSIZE, 0, "payload is larger");
}
END_TEST

START_TEST(memory_is_the_callers) {
    ipc_full_chat(&t);
    size_t need = reqdec_mem_bytes(&limits, t.len);
    uint8_t *m = malloc(need);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(reqdec_decode(t.b, t.len, &limits, features, m, need, &q, NULL), 0);
    ck_assert_int_eq(reqdec_decode(t.b, t.len, &limits, features, m, need - 1, &q, &err), -ENOBUFS);
    ck_assert_int_eq(reqdec_decode(t.b + 4, t.len - 4, &limits, features, m, need, &q, &err), -ENOBUFS);
    free(m);
    /* the bound follows the payload, not only the limits */
    limits.max_messages = limits.max_parts = limits.max_tools = limits.max_stops = UINT32_MAX;
    ck_assert_uint_lt(reqdec_mem_bytes(&limits, 1000), 1000 * 32);
}
END_TEST

int main(void) {
    Suite *s = suite_create("ipc_reqdec");
    TCase *tc = tcase_create("decoder");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, leakcheck_teardown);
    tcase_add_test(tc, full_chat);
    tcase_add_test(tc, raw_tokens);
    tcase_add_test(tc, no_prompt);
    tcase_add_test(tc, truncated_anywhere);
    tcase_add_test(tc, lengths_and_padding);
    tcase_add_test(tc, message_structure);
    tcase_add_test(tc, roles_and_parts);
    tcase_add_test(tc, calls_and_results);
    tcase_add_test(tc, invalid_utf8_is_located);
    tcase_add_test(tc, refusals_hold_no_text);
    tcase_add_test(tc, images);
    tcase_add_test(tc, limits_hold);
    tcase_add_test(tc, memory_is_the_callers);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
