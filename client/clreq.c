/* SPDX-License-Identifier: MIT */
/* Building a request: messages, tools and options become flat TLVs (wire_tlv.h) in private memory.  Messages
 * go to one buffer and options to another, because an option may be set while a message is open and may not
 * stand inside one.  Order and roles are checked here so that a mistake is found where it is made; values
 * are the daemon's to judge.  No connection is touched. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clconn.h"

/* A bound for callers that append for ever; no daemon takes more, by the arena or in a memfd. */
#define REQ_MAX_BYTES ((size_t)1 << 30)

struct bytes {
    uint8_t *p;
    size_t len;
    size_t cap;
};

struct glmd_req {
    int error; /* -ENOMEM, sticky */
    int role;  /* of the open message, 0 outside */
    bool has_messages;
    bool has_tokens;
    bool has_result; /* in the open message */
    bool has_reasoning;
    struct bytes prompt;
    struct bytes options;
    struct bytes tail; /* rebuilt by every cl_req_seal() */
    struct bytes bias;
    struct glmw_sampling sampling;
    struct glmw_tlv_chat chat;
    bool has_chat;
    char effort[GLMW_EFFORT_WORD_MAX];
    struct glmw_tlv_choice choice;
    bool has_choice;
    char tool_name[GLMW_TOOL_NAME_MAX];
    uint32_t tool_name_len;
    struct glmw_tlv_schema schema; /* kind 0: none */
    struct bytes schema_text;
    char label[GLMW_LABEL_MAX];
    uint32_t label_len;
    uint64_t session;
    uint32_t max_tokens;
    uint32_t deadline_ms;
    bool quiet;
    bool background, no_cache;
    bool keep;
};

static int room(glmd_req *r, struct bytes *b, size_t more) {
    if (more > REQ_MAX_BYTES || b->len > REQ_MAX_BYTES - more)
        return -EMSGSIZE;
    if (more <= b->cap - b->len)
        return 0;
    size_t cap = b->cap ? b->cap : 512;
    while (cap - b->len < more)
        cap *= 2;
    uint8_t *p = realloc(b->p, cap);
    if (!p)
        return r->error = -ENOMEM;
    b->p = p;
    b->cap = cap;
    return 0;
}

/* One TLV from a fixed head and up to three pieces. */
struct piece {
    const void *p;
    size_t len;
};

static int put_tlv(glmd_req *r, struct bytes *b, uint16_t type, const struct piece *pieces, unsigned n) {
    size_t len = 0;
    for (unsigned i = 0; i < n; i++) {
        if (pieces[i].len > REQ_MAX_BYTES || len > REQ_MAX_BYTES - pieces[i].len)
            return -EMSGSIZE;
        if (pieces[i].len && !pieces[i].p)
            return -EINVAL;
        len += pieces[i].len;
    }
    size_t padded = (len + GLMW_ALIGN - 1) & ~(size_t)(GLMW_ALIGN - 1);
    int e = room(r, b, sizeof(struct glmw_tlv) + padded);
    if (e < 0)
        return e;
    struct glmw_tlv h = {.type = type, .len = (uint32_t)len};
    uint8_t *at = b->p + b->len;
    memcpy(at, &h, sizeof h);
    at += sizeof h;
    for (unsigned i = 0; i < n; i++) {
        if (pieces[i].len)
            memcpy(at, pieces[i].p, pieces[i].len);
        at += pieces[i].len;
    }
    memset(at, 0, padded - len);
    b->len += sizeof h + padded;
    return 0;
}

static int put_text(glmd_req *r, struct bytes *b, uint16_t type, const char *text, size_t len) {
    struct piece p = {text, len};
    return put_tlv(r, b, type, &p, 1);
}

int glmd_req_new(glmd_conn *c, glmd_req **ret) {
    int e = cl_check(c);
    if (e < 0)
        return e;
    glmd_req *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->sampling.size = sizeof r->sampling;
    r->chat.size = sizeof r->chat;
    *ret = r;
    return 0;
}

glmd_req *glmd_req_free(glmd_req *r) {
    if (r) {
        free(r->prompt.p);
        free(r->options.p);
        free(r->tail.p);
        free(r->bias.p);
        free(r->schema_text.p);
        free(r);
    }
    return NULL;
}

/* ---- messages ---- */

int glmd_req_begin(glmd_req *r, int role) {
    if (r->error)
        return r->error;
    if (role < GLMD_ROLE_SYSTEM || role > GLMD_ROLE_TOOL)
        return -EINVAL;
    if (r->role || r->has_tokens)
        return -EBADMSG;
    struct glmw_tlv_msg m = {.role = (uint32_t)role};
    struct piece p = {&m, sizeof m};
    int e = put_tlv(r, &r->prompt, GLMW_TLV_MSG_BEGIN, &p, 1);
    if (e < 0)
        return e;
    r->role = role;
    r->has_messages = true;
    r->has_result = r->has_reasoning = false;
    return 0;
}

int glmd_req_end(glmd_req *r) {
    if (r->error)
        return r->error;
    if (!r->role || (r->role == GLMD_ROLE_TOOL && !r->has_result))
        return -EBADMSG;
    int e = put_tlv(r, &r->prompt, GLMW_TLV_MSG_END, NULL, 0);
    if (e == 0)
        r->role = 0;
    return e;
}

int glmd_req_part_text(glmd_req *r, const char *text, size_t len) {
    if (r->error)
        return r->error;
    if (!r->role || (r->role == GLMD_ROLE_TOOL && !r->has_result))
        return -EBADMSG;
    return put_text(r, &r->prompt, GLMW_TLV_PART_TEXT, text, len);
}

int glmd_req_message(glmd_req *r, int role, const char *text, size_t len) {
    size_t mark = r->prompt.len;
    bool had = r->has_messages;
    int e = glmd_req_begin(r, role);
    if (e < 0)
        return e;
    e = role == GLMD_ROLE_TOOL ? glmd_req_part_tool_result(r, NULL, 0, text, len)
                               : glmd_req_part_text(r, text, len);
    if (e == 0)
        e = glmd_req_end(r);
    if (e < 0) { /* all or nothing */
        r->prompt.len = mark;
        r->role = 0;
        r->has_messages = had;
    }
    return e;
}

int glmd_req_part_reasoning(glmd_req *r, const char *text, size_t len) {
    if (r->error)
        return r->error;
    if (r->role != GLMD_ROLE_ASSISTANT || r->has_reasoning)
        return -EBADMSG;
    int e = put_text(r, &r->prompt, GLMW_TLV_PART_REASONING, text, len);
    if (e == 0)
        r->has_reasoning = true;
    return e;
}

int glmd_req_part_tool_call(glmd_req *r, const char *id, size_t id_len, const char *name, size_t name_len,
                            const char *arguments, size_t arguments_len) {
    if (r->error)
        return r->error;
    if (r->role != GLMD_ROLE_ASSISTANT)
        return -EBADMSG;
    if (id_len > GLMW_CALL_ID_MAX || name_len > GLMW_TOOL_NAME_MAX || arguments_len > REQ_MAX_BYTES)
        return -EMSGSIZE;
    struct glmw_tlv_call h = {
        .id_len = (uint32_t)id_len, .name_len = (uint32_t)name_len, .args_len = (uint32_t)arguments_len};
    struct piece p[] = {{&h, sizeof h}, {id, id_len}, {name, name_len}, {arguments, arguments_len}};
    return put_tlv(r, &r->prompt, GLMW_TLV_PART_TOOL_CALL, p, 4);
}

int glmd_req_part_tool_result(glmd_req *r, const char *id, size_t id_len, const char *text, size_t len) {
    if (r->error)
        return r->error;
    if (r->role != GLMD_ROLE_TOOL)
        return -EBADMSG;
    if (id_len > GLMW_CALL_ID_MAX || len > REQ_MAX_BYTES)
        return -EMSGSIZE;
    struct glmw_tlv_result h = {.id_len = (uint32_t)id_len, .text_len = (uint32_t)len};
    struct piece p[] = {{&h, sizeof h}, {id, id_len}, {text, len}};
    int e = put_tlv(r, &r->prompt, GLMW_TLV_PART_TOOL_RESULT, p, 3);
    if (e == 0)
        r->has_result = true;
    return e;
}

int glmd_req_tokens(glmd_req *r, const uint32_t *ids, size_t n) {
    if (r->error)
        return r->error;
    if (r->has_messages || r->has_tokens)
        return -EBADMSG;
    if (n > REQ_MAX_BYTES / sizeof *ids)
        return -EMSGSIZE;
    struct piece p = {ids, n * sizeof *ids};
    int e = put_tlv(r, &r->prompt, GLMW_TLV_TOKENS, &p, 1);
    if (e == 0)
        r->has_tokens = true;
    return e;
}

/* ---- options ---- */

int glmd_req_tool(glmd_req *r, const char *json, size_t len) {
    if (r->error)
        return r->error;
    return put_text(r, &r->options, GLMW_TLV_TOOL_DEF, json, len);
}

int glmd_req_bias(glmd_req *r, uint32_t token, double bias) {
    if (r->error)
        return r->error;
    struct glmw_bias b = {.token = token, .bias = (float)bias};
    int e = room(r, &r->bias, sizeof b);
    if (e < 0)
        return e;
    memcpy(r->bias.p + r->bias.len, &b, sizeof b);
    r->bias.len += sizeof b;
    return 0;
}

static int set_flag(uint32_t *flags, uint32_t bit, uint64_t value) {
    if (value > 1)
        return -ERANGE;
    *flags = value ? *flags | bit : *flags & ~bit;
    return 0;
}

static int set_tri(glmd_req *r, uint8_t *field, uint64_t value) {
    if (value > 1)
        return -ERANGE;
    *field = value ? GLMW_ON : GLMW_OFF;
    r->has_chat = true;
    return 0;
}

static int set_sampled(glmd_req *r, uint32_t *field, uint32_t has, uint64_t value) {
    if (value > UINT32_MAX)
        return -ERANGE;
    *field = (uint32_t)value;
    r->sampling.has |= has;
    return 0;
}

static int set_choice(glmd_req *r, int key, uint64_t value) {
    if (key == GLMD_KEY_PARALLEL_CALLS) {
        int e = set_flag(&r->choice.flags, GLMW_CHOICE_ONE_CALL, value ^ 1);
        if (e < 0)
            return e;
    } else {
        if (value > GLMD_TOOL_CHOICE_REQUIRED)
            return -ERANGE;
        r->choice.mode = (uint32_t)value;
        r->tool_name_len = 0;
    }
    r->has_choice = true;
    return 0;
}

int glmd_req_set_u64(glmd_req *r, int key, uint64_t value) {
    if (r->error)
        return r->error;
    struct glmw_sampling *s = &r->sampling;
    switch (key) {
    case GLMD_KEY_MAX_TOKENS:
        if (!value || value > UINT32_MAX) /* 0 on the wire means the daemon's limit */
            return -ERANGE;
        r->max_tokens = (uint32_t)value;
        return 0;
    case GLMD_KEY_DEADLINE_MS:
        if (!value || value > UINT32_MAX)
            return -ERANGE;
        r->deadline_ms = (uint32_t)value;
        return 0;
    case GLMD_KEY_SESSION:
        r->session = value;
        return 0;
    case GLMD_KEY_QUIET:
        if (value > 1)
            return -ERANGE;
        r->quiet = value == 1;
        return 0;
    case GLMD_KEY_BACKGROUND:
        if (value > 1)
            return -ERANGE;
        r->background = value == 1;
        return 0;
    case GLMD_KEY_NO_CACHE:
        if (value > 1)
            return -ERANGE;
        r->no_cache = value == 1;
        return 0;
    case GLMD_KEY_KEEP:
        if (value > 1)
            return -ERANGE;
        r->keep = value == 1;
        return 0;
    case GLMD_KEY_SEED:
        s->seed = value;
        s->has |= GLMW_HAS_SEED;
        return 0;
    case GLMD_KEY_MIN_TOKENS:
        return set_sampled(r, &s->min_tokens, GLMW_HAS_MIN_TOKENS, value);
    case GLMD_KEY_TOP_K:
        return set_sampled(r, &s->top_k, GLMW_HAS_TOP_K, value);
    case GLMD_KEY_ALTERNATIVES:
        return set_sampled(r, &s->n_alts, GLMW_HAS_N_ALTS, value);
    case GLMD_KEY_THINKING_BUDGET:
        return set_sampled(r, &s->thinking_budget, GLMW_HAS_THINKING_BUDGET, value);
    case GLMD_KEY_LOOP_GUARD:
        if (value > 1)
            return -ERANGE;
        return set_sampled(r, &s->loop_guard, GLMW_HAS_LOOP_GUARD, value);
    case GLMD_KEY_IGNORE_EOS:
        return set_flag(&s->flags, GLMW_SAMP_IGNORE_EOS, value);
    case GLMD_KEY_LOGPROBS:
        return set_flag(&s->flags, GLMW_SAMP_LOGPROBS, value);
    case GLMD_KEY_THINKING:
        return set_tri(r, &r->chat.thinking, value);
    case GLMD_KEY_CLEAR_THINKING:
        return set_tri(r, &r->chat.clear_thinking, value);
    case GLMD_KEY_GENERATION_PROMPT:
        return set_tri(r, &r->chat.add_generation_prompt, value);
    case GLMD_KEY_TOOL_CHOICE:
    case GLMD_KEY_PARALLEL_CALLS:
        return set_choice(r, key, value);
    case GLMD_KEY_JSON_OBJECT:
        if (value > 1)
            return -ERANGE;
        r->schema.kind = value ? GLMW_SCHEMA_JSON_OBJECT : 0;
        return 0;
    default:
        return -EINVAL;
    }
}

int glmd_req_set_f64(glmd_req *r, int key, double value) {
    if (r->error)
        return r->error;
    struct glmw_sampling *s = &r->sampling;
    float *field;
    uint32_t has;
    switch (key) {
    case GLMD_KEY_TEMPERATURE:
        field = &s->temperature, has = GLMW_HAS_TEMPERATURE;
        break;
    case GLMD_KEY_TOP_P:
        field = &s->top_p, has = GLMW_HAS_TOP_P;
        break;
    case GLMD_KEY_MIN_P:
        field = &s->min_p, has = GLMW_HAS_MIN_P;
        break;
    case GLMD_KEY_REPETITION_PENALTY:
        field = &s->repetition_penalty, has = GLMW_HAS_REPETITION;
        break;
    case GLMD_KEY_PRESENCE_PENALTY:
        field = &s->presence_penalty, has = GLMW_HAS_PRESENCE;
        break;
    case GLMD_KEY_FREQUENCY_PENALTY:
        field = &s->frequency_penalty, has = GLMW_HAS_FREQUENCY;
        break;
    default:
        return -EINVAL;
    }
    *field = (float)value;
    s->has |= has;
    return 0;
}

static int set_effort(glmd_req *r, const char *value, size_t len) {
    static const char *const names[] = {"low", "high", "max"};
    if (len > sizeof r->effort)
        return -EMSGSIZE;
    r->chat.effort = len ? GLMW_EFFORT_WORD : GLMW_EFFORT_DEFAULT;
    r->chat.word_len = (uint32_t)len;
    if (len)
        memcpy(r->effort, value, len);
    for (unsigned i = 0; i < 3; i++) {
        if (strlen(names[i]) == len && !memcmp(names[i], value, len)) {
            r->chat.effort = (uint8_t)(GLMW_EFFORT_LOW + i);
            r->chat.word_len = 0;
        }
    }
    r->has_chat = true;
    return 0;
}

static int set_schema(glmd_req *r, const char *value, size_t len) {
    int e;
    if (!len)
        return -EINVAL;
    r->schema_text.len = 0;
    r->schema.kind = 0;
    e = room(r, &r->schema_text, len);
    if (e < 0)
        return e;
    memcpy(r->schema_text.p, value, len);
    r->schema_text.len = len;
    r->schema.kind = GLMW_SCHEMA_JSON_SCHEMA;
    return 0;
}

int glmd_req_set_str(glmd_req *r, int key, const char *value, size_t len) {
    if (r->error)
        return r->error;
    if (len && !value)
        return -EINVAL;
    switch (key) {
    case GLMD_KEY_STOP:
        return put_text(r, &r->options, GLMW_TLV_STOP, value, len);
    case GLMD_KEY_EFFORT:
        return set_effort(r, value, len);
    case GLMD_KEY_TOOL_NAME:
        if (len > sizeof r->tool_name)
            return -EMSGSIZE;
        if (!len)
            return -EINVAL;
        memcpy(r->tool_name, value, len);
        r->tool_name_len = (uint32_t)len;
        r->choice.mode = GLMW_CHOICE_NAMED;
        r->has_choice = true;
        return 0;
    case GLMD_KEY_SCHEMA:
        return set_schema(r, value, len);
    case GLMD_KEY_LABEL:
        if (len > sizeof r->label)
            return -EMSGSIZE;
        if (len)
            memcpy(r->label, value, len);
        r->label_len = (uint32_t)len;
        return 0;
    default:
        return -EINVAL;
    }
}

/* ---- finishing ---- */

static int seal_tail(glmd_req *r) {
    int e = 0;
    r->tail.len = 0;
    if (r->sampling.has || r->sampling.flags) {
        struct piece p = {&r->sampling, sizeof r->sampling};
        e = put_tlv(r, &r->tail, GLMW_TLV_SAMPLING, &p, 1);
    }
    if (e == 0 && r->has_chat) {
        struct piece p[] = {{&r->chat, sizeof r->chat}, {r->effort, r->chat.word_len}};
        e = put_tlv(r, &r->tail, GLMW_TLV_CHAT, p, 2);
    }
    if (e == 0 && r->has_choice) {
        struct piece p[] = {{&r->choice, sizeof r->choice}, {r->tool_name, r->tool_name_len}};
        e = put_tlv(r, &r->tail, GLMW_TLV_TOOL_CHOICE, p, 2);
    }
    if (e == 0 && r->schema.kind) {
        bool text = r->schema.kind == GLMW_SCHEMA_JSON_SCHEMA;
        struct piece p[] = {{&r->schema, sizeof r->schema}, {r->schema_text.p, text ? r->schema_text.len : 0}};
        e = put_tlv(r, &r->tail, GLMW_TLV_SCHEMA, p, 2);
    }
    if (e == 0 && r->bias.len) {
        struct piece p = {r->bias.p, r->bias.len};
        e = put_tlv(r, &r->tail, GLMW_TLV_LOGIT_BIAS, &p, 1);
    }
    if (e == 0 && r->label_len)
        e = put_text(r, &r->tail, GLMW_TLV_LABEL, r->label, r->label_len);
    return e;
}

int cl_req_seal(glmd_req *r, struct cl_payload *ret) {
    if (r->error)
        return r->error;
    if (r->role)
        return -EBADMSG;
    int e = seal_tail(r);
    if (e < 0)
        return e;
    *ret = (struct cl_payload){
        .part = {r->prompt.p, r->options.p, r->tail.p},
        .len = {r->prompt.len, r->options.len, r->tail.len},
        .total_bytes = (uint64_t)r->prompt.len + r->options.len + r->tail.len,
        .session = r->session,
        .max_tokens = r->max_tokens,
        .deadline_ms = r->deadline_ms,
        .quiet = r->quiet,
        .keep = r->keep,
        .background = r->background,
        .no_cache = r->no_cache,
        .schema = r->schema.kind != 0,
    };
    return 0;
}
