/* SPDX-License-Identifier: MIT */
/* The payload of a request: types, structs and limits. Included by wire.h, never alone. */
#ifndef GLMW_WIRE_TLV_H
#define GLMW_WIRE_TLV_H

#ifndef GLMW_WIRE_H
#error "include wire.h"
#endif

/* ---- payload: flat TLV --------------------------------------------------------------------------------- */

/* 8-byte header, len bytes, zero bytes up to a multiple of 8. No nesting. The states (PROTOCOL.md 7.2):
 *   EMPTY   nothing of a prompt yet     option, TOKENS -> TOKENS, MSG_BEGIN -> MSG
 *   TOKENS  a raw prompt was given      option
 *   CHAT    between messages            option, MSG_BEGIN -> MSG
 *   MSG     in a message, no part yet   part -> PARTS, PART_TOOL_RESULT -> RESULT, MSG_END -> CHAT
 *   PARTS   in a message                part, MSG_END -> CHAT
 *   RESULT  in a message of role tool   PART_TEXT, PART_IMAGE, PART_TOOL_RESULT, MSG_END -> CHAT
 * "option" is every type from GLMW_TLV_TOOL_DEF on. A payload may end in TOKENS or CHAT. */
enum glmw_tlv_type {
    GLMW_TLV_MSG_BEGIN = 1,        /* struct glmw_tlv_msg */
    GLMW_TLV_MSG_END = 2,          /* empty */
    GLMW_TLV_PART_TEXT = 3,        /* UTF-8 */
    GLMW_TLV_PART_REASONING = 4,   /* UTF-8; role assistant, at most one in a message */
    GLMW_TLV_PART_IMAGE = 5,       /* struct glmw_tlv_image, then the file when inline */
    GLMW_TLV_PART_TOOL_CALL = 6,   /* struct glmw_tlv_call, then id, name, arguments (JSON text) */
    GLMW_TLV_PART_TOOL_RESULT = 7, /* struct glmw_tlv_result, then id, text */
    GLMW_TLV_TOKENS = 8,           /* u32 ids: a raw prompt instead of messages */
    GLMW_TLV_TOOL_DEF = 16,        /* the whole JSON object of one tool, as the client has it */
    GLMW_TLV_TOOL_CHOICE = 17,     /* struct glmw_tlv_choice, then the name when NAMED */
    GLMW_TLV_SAMPLING = 18,        /* struct glmw_sampling */
    GLMW_TLV_STOP = 19,            /* one stop string, UTF-8, not empty */
    GLMW_TLV_SCHEMA = 20,          /* struct glmw_tlv_schema, then the text */
    GLMW_TLV_LOGIT_BIAS = 21,      /* struct glmw_bias[] */
    GLMW_TLV_LABEL = 22,           /* UTF-8 without control characters, at most 64 bytes, for people */
    GLMW_TLV_CHAT = 23             /* struct glmw_tlv_chat, then the effort word */
};

#define GLMW_TLVF_IGNORABLE 0x0001u /* an unknown type with this flag is skipped; without it: -EBADMSG */

struct glmw_tlv {
    uint16_t type;
    uint16_t flags;
    uint32_t len; /* without this header and without the padding */
};
GLMW_SIZE(glmw_tlv, 8);
GLMW_AT(glmw_tlv, len, 4);

enum glmw_role { GLMW_ROLE_SYSTEM = 1, GLMW_ROLE_USER = 2, GLMW_ROLE_ASSISTANT = 3, GLMW_ROLE_TOOL = 4 };

struct glmw_tlv_msg {
    uint32_t role;
    uint32_t zero;
};
struct glmw_tlv_call {
    uint32_t id_len, name_len, args_len; /* id may be empty */
    uint32_t zero;
};
struct glmw_tlv_result {
    uint32_t id_len, text_len; /* id may be empty */
};

enum glmw_image_source { GLMW_IMAGE_INLINE = 1, GLMW_IMAGE_BULK = 2 };
enum glmw_image_format { GLMW_IMAGE_PNG = 1, GLMW_IMAGE_JPEG = 2, GLMW_IMAGE_RGB8 = 3 /* bulk only */ };
struct glmw_tlv_image {
    uint16_t source, format;
    uint32_t width, height; /* RGB8 only, else 0 */
    uint32_t bulk_id;       /* BULK only, else 0 */
};

enum glmw_choice_mode {
    GLMW_CHOICE_AUTO = 0,
    GLMW_CHOICE_NONE = 1,
    GLMW_CHOICE_REQUIRED = 2,
    GLMW_CHOICE_NAMED = 3
};
#define GLMW_CHOICE_ONE_CALL 0x1u /* at most one call per answer */
struct glmw_tlv_choice {
    uint32_t mode;
    uint32_t flags;
};

enum glmw_schema_kind { GLMW_SCHEMA_JSON_OBJECT = 1, GLMW_SCHEMA_JSON_SCHEMA = 2 };
struct glmw_tlv_schema {
    uint32_t kind;
    uint32_t zero;
};

struct glmw_bias {
    uint32_t token;
    float bias; /* finite, -1000 to 1000, added to the logit */
};

enum glmw_tri { GLMW_UNSET = 0, GLMW_ON = 1, GLMW_OFF = 2 };
enum glmw_effort {
    GLMW_EFFORT_DEFAULT = 0,
    GLMW_EFFORT_LOW = 1,
    GLMW_EFFORT_HIGH = 2,
    GLMW_EFFORT_MAX = 3,
    GLMW_EFFORT_WORD = 4 /* only the word: the daemon maps it */
};
#define GLMW_EFFORT_WORD_MAX 32u
struct glmw_tlv_chat { /* append-only */
    uint32_t size;     /* of the struct the sender knows, at least 16 */
    uint8_t effort;    /* enum glmw_effort */
    uint8_t thinking, clear_thinking, add_generation_prompt; /* enum glmw_tri; unset: on, off, on */
    uint32_t word_len; /* the effort word as the user wrote it, ASCII letters, follows the struct */
    uint32_t zero;
};

/* Append-only: new fields follow, each with its bit in has. A receiver takes the fields it knows, refuses
 * bits it does not know and wants every byte it does not know to be 0. A field without its bit is 0. */
#define GLMW_HAS_TEMPERATURE     0x0001u
#define GLMW_HAS_TOP_P           0x0002u
#define GLMW_HAS_MIN_P           0x0004u
#define GLMW_HAS_TOP_K           0x0008u
#define GLMW_HAS_REPETITION      0x0010u
#define GLMW_HAS_PRESENCE        0x0020u
#define GLMW_HAS_FREQUENCY       0x0040u
#define GLMW_HAS_SEED            0x0080u
#define GLMW_HAS_N_ALTS          0x0100u
#define GLMW_HAS_MIN_TOKENS      0x0200u
#define GLMW_HAS_THINKING_BUDGET 0x0400u
#define GLMW_HAS_LOOP_GUARD      0x0800u
#define GLMW_HAS_ALL             0x0fffu
#define GLMW_SAMP_LOGPROBS       0x1u /* needs FEAT_LOGPROBS; n_alts > 0 implies it */
#define GLMW_SAMP_IGNORE_EOS     0x2u
#define GLMW_SAMP_FLAGS          0x3u
struct glmw_sampling {
    uint32_t size; /* of the struct the sender knows, at least 64 */
    uint32_t has;
    uint32_t flags;
    float temperature; /* 0 to 100; 0 = greedy */
    float top_p;       /* above 0, to 1 */
    float min_p;       /* 0 to 1 */
    float repetition_penalty; /* above 0, to 100; 1 = off */
    float presence_penalty;   /* -100 to 100 */
    float frequency_penalty;  /* -100 to 100 */
    uint32_t top_k;           /* 0 = off */
    uint64_t seed;
    uint32_t n_alts; /* 0 to 20, needs FEAT_ALTS when above 0 */
    uint32_t min_tokens;
    uint32_t thinking_budget; /* reasoning tokens */
    uint32_t loop_guard;      /* 0 off, 1 on */
};
GLMW_SIZE(glmw_sampling, 64);
GLMW_AT(glmw_sampling, has, 4);
GLMW_AT(glmw_sampling, flags, 8);
GLMW_AT(glmw_sampling, temperature, 12);
GLMW_AT(glmw_sampling, top_p, 16);
GLMW_AT(glmw_sampling, min_p, 20);
GLMW_AT(glmw_sampling, repetition_penalty, 24);
GLMW_AT(glmw_sampling, presence_penalty, 28);
GLMW_AT(glmw_sampling, frequency_penalty, 32);
GLMW_AT(glmw_sampling, top_k, 36);
GLMW_AT(glmw_sampling, seed, 40);
GLMW_AT(glmw_sampling, n_alts, 48);
GLMW_AT(glmw_sampling, min_tokens, 52);
GLMW_AT(glmw_sampling, thinking_budget, 56);
GLMW_AT(glmw_sampling, loop_guard, 60);
GLMW_SIZE(glmw_tlv_msg, 8);
GLMW_SIZE(glmw_tlv_call, 16);
GLMW_SIZE(glmw_tlv_result, 8);
GLMW_SIZE(glmw_tlv_image, 16);
GLMW_AT(glmw_tlv_image, width, 4);
GLMW_AT(glmw_tlv_image, bulk_id, 12);
GLMW_SIZE(glmw_tlv_choice, 8);
GLMW_SIZE(glmw_tlv_schema, 8);
GLMW_SIZE(glmw_bias, 8);
GLMW_SIZE(glmw_tlv_chat, 16);
GLMW_AT(glmw_tlv_chat, effort, 4);
GLMW_AT(glmw_tlv_chat, thinking, 5);
GLMW_AT(glmw_tlv_chat, clear_thinking, 6);
GLMW_AT(glmw_tlv_chat, add_generation_prompt, 7);
GLMW_AT(glmw_tlv_chat, word_len, 8);

/* Lengths that do not depend on the connection. */
#define GLMW_LABEL_MAX     64u
#define GLMW_CALL_ID_MAX   256u
#define GLMW_TOOL_NAME_MAX 256u
#define GLMW_BULK_ADVISED  262144u /* larger payloads should go by BULK where it is granted */

#endif
