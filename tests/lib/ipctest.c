/* SPDX-License-Identifier: MIT */
#include "ipctest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hello.h"
#include "reqdec.h"

uint64_t ipc_rand(struct ipc_rng *r) {
    r->s ^= r->s >> 12;
    r->s ^= r->s << 25;
    r->s ^= r->s >> 27;
    return r->s * UINT64_C(2685821657736338717);
}

uint32_t ipc_below(struct ipc_rng *r, uint32_t n) {
    return (uint32_t)((ipc_rand(r) >> 32) * n >> 32);
}

static void need(int ok, const char *what, int line) {
    if (!ok) {
        fprintf(stderr, "ipctest.c:%d: %s\n", line, what);
        abort();
    }
}
#define NEED(cond) need(!!(cond), #cond, __LINE__)

/* ---- payload builder ----------------------------------------------------------------------------------- */

void tlv_put2(struct tlvbuf *t, uint16_t type, uint16_t flags, const void *a, size_t a_len, const void *b,
              size_t b_len) {
    struct glmw_tlv h = {.type = type, .flags = flags, .len = (uint32_t)(a_len + b_len)};
    size_t padded = (a_len + b_len + 7) / 8 * 8;
    NEED(t->len + sizeof(h) + padded <= sizeof(t->b));
    memcpy(t->b + t->len, &h, sizeof(h));
    t->len += sizeof(h);
    memset(t->b + t->len, 0, padded);
    if (a_len)
        memcpy(t->b + t->len, a, a_len);
    if (b_len)
        memcpy(t->b + t->len + a_len, b, b_len);
    t->len += padded;
}

void tlv_put(struct tlvbuf *t, uint16_t type, const void *body, size_t len) {
    tlv_put2(t, type, 0, body, len, NULL, 0);
}

void tlv_text(struct tlvbuf *t, uint16_t type, const char *text) {
    tlv_put(t, type, text, strlen(text));
}

void tlv_msg(struct tlvbuf *t, uint32_t role) {
    struct glmw_tlv_msg m = {.role = role};
    tlv_put(t, GLMW_TLV_MSG_BEGIN, &m, sizeof(m));
}

void tlv_end(struct tlvbuf *t) {
    tlv_put(t, GLMW_TLV_MSG_END, NULL, 0);
}

void tlv_call(struct tlvbuf *t, const char *id, const char *name, const char *args) {
    char text[1024];
    struct glmw_tlv_call c = {.id_len = (uint32_t)strlen(id),
                              .name_len = (uint32_t)strlen(name),
                              .args_len = (uint32_t)strlen(args)};
    int n = snprintf(text, sizeof(text), "%s%s%s", id, name, args);
    NEED(n >= 0 && (size_t)n < sizeof(text));
    tlv_put2(t, GLMW_TLV_PART_TOOL_CALL, 0, &c, sizeof(c), text, (size_t)n);
}

void tlv_result(struct tlvbuf *t, const char *id, const char *result) {
    char text[1024];
    struct glmw_tlv_result c = {.id_len = (uint32_t)strlen(id), .text_len = (uint32_t)strlen(result)};
    int n = snprintf(text, sizeof(text), "%s%s", id, result);
    NEED(n >= 0 && (size_t)n < sizeof(text));
    tlv_put2(t, GLMW_TLV_PART_TOOL_RESULT, 0, &c, sizeof(c), text, (size_t)n);
}

struct glmw_sampling ipc_sampling(void) {
    return (struct glmw_sampling){
        .size = sizeof(struct glmw_sampling),
        .has = GLMW_HAS_ALL,
        .flags = GLMW_SAMP_LOGPROBS | GLMW_SAMP_IGNORE_EOS,
        .temperature = 0.75f,
        .top_p = 0.5f,
        .min_p = 0.25f,
        .repetition_penalty = 1.125f,
        .presence_penalty = -1.5f,
        .frequency_penalty = 1.5f,
        .top_k = 40,
        .seed = 0x1122334455667788ull,
        .n_alts = 5,
        .min_tokens = 3,
        .thinking_budget = 100,
        .loop_guard = 1,
    };
}

struct glmw_limits ipc_limits(void) {
    return (struct glmw_limits){
        .max_live = 8,
        .max_context_tokens = 4096,
        .max_output_tokens = 2048,
        .vocab_tokens = 1000,
        .max_payload_bytes = 65536,
        .max_messages = 8,
        .max_parts = 16,
        .max_tools = 3,
        .max_stops = 4,
        .max_stop_bytes = 32,
        .max_bias = 4,
        .max_alts = 20,
        .max_bulk = 2,
        .max_bulk_bytes = 1 << 20,
    };
}

void ipc_full_chat(struct tlvbuf *t) {
    const struct glmw_sampling s = ipc_sampling();
    const struct glmw_tlv_choice choice = {.mode = GLMW_CHOICE_NAMED, .flags = GLMW_CHOICE_ONE_CALL};
    const struct glmw_tlv_schema schema = {.kind = GLMW_SCHEMA_JSON_SCHEMA};
    const struct glmw_bias bias[2] = {{7, -100}, {999, 2.5f}};
    const struct glmw_tlv_chat chat = {.size = 16,
                                       .effort = GLMW_EFFORT_HIGH,
                                       .thinking = GLMW_ON,
                                       .clear_thinking = GLMW_OFF,
                                       .add_generation_prompt = GLMW_ON,
                                       .word_len = 6};
    const struct glmw_tlv_image inl = {.source = GLMW_IMAGE_INLINE, .format = GLMW_IMAGE_PNG};
    const struct glmw_tlv_image blk = {
        .source = GLMW_IMAGE_BULK, .format = GLMW_IMAGE_RGB8, .width = 4, .height = 2, .bulk_id = 77};
    t->len = 0;
    tlv_text(t, GLMW_TLV_TOOL_DEF, "{\"name\": \"weather\"}");
    tlv_text(t, GLMW_TLV_TOOL_DEF, "{\"name\": \"time\"}");
    tlv_put2(t, GLMW_TLV_TOOL_CHOICE, 0, &choice, sizeof(choice), "weather", 7);
    tlv_msg(t, GLMW_ROLE_SYSTEM);
    tlv_text(t, GLMW_TLV_PART_TEXT, "Be brief. \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
    tlv_end(t);
    tlv_put(t, GLMW_TLV_SAMPLING, &s, sizeof(s)); /* options may stand between messages */
    tlv_msg(t, GLMW_ROLE_USER);
    tlv_put2(t, GLMW_TLV_PART_IMAGE, 0, &inl, sizeof(inl), "\x89PNG", 4);
    tlv_put(t, GLMW_TLV_PART_IMAGE, &blk, sizeof(blk));
    tlv_text(t, GLMW_TLV_PART_TEXT, "What is it like in Lima?");
    tlv_end(t);
    tlv_msg(t, GLMW_ROLE_ASSISTANT);
    tlv_text(t, GLMW_TLV_PART_REASONING, "I need the tool.");
    tlv_text(t, GLMW_TLV_PART_TEXT, "");
    tlv_call(t, "call-1", "weather", "{\"city\": \"Lima\"}");
    tlv_call(t, "", "time", "{}");
    tlv_end(t);
    tlv_msg(t, GLMW_ROLE_TOOL);
    tlv_result(t, "call-1", "18 C");
    tlv_text(t, GLMW_TLV_PART_TEXT, " and dry");
    tlv_result(t, "", "");
    tlv_end(t);
    tlv_msg(t, GLMW_ROLE_ASSISTANT);
    tlv_end(t);
    tlv_text(t, GLMW_TLV_STOP, "\n\nUser:");
    tlv_text(t, GLMW_TLV_STOP, "END");
    tlv_put2(t, GLMW_TLV_SCHEMA, 0, &schema, sizeof(schema), "{}", 2);
    tlv_put(t, GLMW_TLV_LOGIT_BIAS, bias, sizeof(bias));
    tlv_text(t, GLMW_TLV_LABEL, "nightly job");
    tlv_put2(t, GLMW_TLV_CHAT, 0, &chat, sizeof(chat), "High-2", 6);
    tlv_put2(t, 999, GLMW_TLVF_IGNORABLE, "future", 6, NULL, 0);
}

/* ---- fuzz bodies --------------------------------------------------------------------------------------- */

int ipc_fuzz_hello(const uint8_t *data, size_t size) {
    if (size < 1)
        return 0;
    enum hello_phase phase = data[0] & 3;
    unsigned n_fds = (data[0] >> 2) & 7;
    struct hello_msg m, untouched;
    const char *reason = NULL;
    memset(&untouched, 0xa5, sizeof(untouched));
    m = untouched;
    int r = hello_decode(data + 1, size - 1, n_fds, phase, &m, &reason);
    if (r != 0) {
        NEED(r == 1 || (r == -EPROTO && reason && reason[0]));
        NEED(memcmp(&m, &untouched, sizeof(m)) == 0);
        return 0;
    }
    NEED(hello_fds(m.type) == n_fds);
    /* what was accepted can be written again, and is the same, but for what a longer HELLO or REJECT adds */
    uint8_t out[GLMW_PACKET_MAX];
    int n = hello_encode(&m, out, sizeof(out));
    NEED(n > 0 && (size_t)n <= size - 1);
    NEED(memcmp(out + 16, data + 1 + 16, (size_t)n - 16) == 0);
    if (m.type == GLMW_PKT_HELLO) {
        struct hello_offer offer = {.wire_min = 1,
                                    .wire_max = 3,
                                    .features = 0x5,
                                    .sq_log2_max = 8,
                                    .tq_log2_max = 12,
                                    .pay_log2_max = 20,
                                    .txt_log2_max = 18,
                                    .state = 2,
                                    .generation = 9,
                                    .conn_id = 4,
                                    .limits = ipc_limits(),
                                    .model = "m"};
        struct glmw_welcome w;
        struct shm_geom g;
        struct glmw_reject rej;
        r = hello_negotiate(&offer, &m.u.hello, &w, &g, &rej);
        NEED(r == 0 || (r == rej.error && rej.text[0]));
        /* either answer must be one that the peer's decoder takes */
        struct hello_msg a = {.type = r == 0 ? GLMW_PKT_WELCOME : GLMW_PKT_REJECT}, b;
        if (r == 0)
            a.u.welcome = w;
        else
            a.u.reject = rej;
        n = hello_encode(&a, out, sizeof(out));
        NEED(n > 0);
        NEED(hello_decode(out, (size_t)n, hello_fds(a.type), HELLO_CLIENT_FIRST, &b, NULL) == 0);
        NEED(r != 0 || (w.wire >= m.u.hello.wire_min && w.wire <= m.u.hello.wire_max && w.wire <= 3));
    }
    return 0;
}

static void inside(struct reqdec_str s, const uint8_t *base, size_t len) {
    const uint8_t *p = (const uint8_t *)s.ptr;
    if (s.len > 0)
        NEED(p >= base && p <= base + len && s.len <= (size_t)(base + len - p));
}

int ipc_fuzz_reqdec(const uint8_t *data, size_t size) {
    if (size < 1 || size > (1u << 20))
        return 0;
    const struct glmw_limits l = ipc_limits();
    uint64_t features = data[0] & 1 ? GLMW_FEAT_ALL : 0;
    size_t len = size - 1, mem_bytes = reqdec_mem_bytes(&l, len);
    /* exact sizes, so that the address sanitizer sees one byte too many */
    uint8_t *payload = malloc(len ? len : 1), *mem = malloc(mem_bytes);
    NEED(payload && mem);
    memcpy(payload, data + 1, len);
    struct reqdec_req q, untouched;
    struct reqdec_err e = {0};
    memset(&untouched, 0xa5, sizeof(untouched));
    q = untouched;
    int r = reqdec_decode(payload, len, &l, features, mem, mem_bytes, &q, &e);
    if (r < 0) {
        NEED(e.code == r && e.reason[0] && memchr(e.reason, 0, sizeof e.reason) && e.offset <= len);
        NEED(memcmp(&q, &untouched, sizeof(q)) == 0);
        goto out;
    }
    NEED(r == 0 && (q.tokens ? q.n_tokens > 0 && q.n_msgs == 0 : q.n_msgs > 0));
    NEED(q.n_msgs <= l.max_messages && q.n_parts <= l.max_parts && q.n_tools <= l.max_tools &&
         q.n_stops <= l.max_stops && q.n_bias <= l.max_bias);
    for (uint32_t i = 0, next = 0; i < q.n_msgs; i++) {
        NEED(q.msgs[i].first_part == next && q.msgs[i].role >= 1 && q.msgs[i].role <= 4);
        next += q.msgs[i].n_parts;
        NEED(next <= q.n_parts && (i + 1 < q.n_msgs || next == q.n_parts));
    }
    for (uint32_t i = 0; i < q.n_parts; i++) {
        inside(q.parts[i].text, payload, len);
        inside(q.parts[i].id, payload, len);
        inside(q.parts[i].name, payload, len);
    }
    for (uint32_t i = 0; i < q.n_tools; i++)
        inside(q.tools[i], payload, len);
    for (uint32_t i = 0; i < q.n_stops; i++)
        inside(q.stops[i], payload, len);
    inside(q.effort_word, payload, len);
    inside(q.choice_name, payload, len);
    inside(q.schema, payload, len);
    inside(q.label, payload, len);
    for (uint32_t i = 0; i < q.n_tokens; i++)
        NEED(q.tokens[i] < l.vocab_tokens);
    for (uint32_t i = 0; i < q.n_bias; i++)
        NEED(q.bias[i].token < l.vocab_tokens && q.bias[i].bias >= -1000 && q.bias[i].bias <= 1000);
out:
    free(payload);
    free(mem);
    return 0;
}
