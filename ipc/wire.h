/* SPDX-License-Identifier: MIT */
/* The wire between a glmd daemon and its clients: every layout, number and limit. PROTOCOL.md is the text.
 *
 * The payload of a request is in wire_tlv.h, included at the end. C99 and C++, no dependency but <stddef.h>
 * and <stdint.h>; holds no code. Both peers run on one kernel, so integers are in host order (little-endian
 * on every supported machine; a foreign order is refused by the magic numbers) and floats are IEEE-754
 * binary32. A field called `zero` or `zeroN` is written 0 and checked to be 0, so that it can get a meaning
 * later; `padN` keeps words apart, is written 0 and not read. Status words are 0 or a negative Linux errno
 * (asm-generic numbers). */
#ifndef GLMW_WIRE_H
#define GLMW_WIRE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#define GLMW_ASSERT(cond, name) static_assert(cond, #name)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define GLMW_ASSERT(cond, name) _Static_assert(cond, #name)
#else
#define GLMW_ASSERT(cond, name) typedef char glmw_assert_##name[(cond) ? 1 : -1]
#endif
#define GLMW_AT(type, field, off) GLMW_ASSERT(offsetof(struct type, field) == (off), type##_##field)
#define GLMW_SIZE(type, bytes) GLMW_ASSERT(sizeof(struct type) == (bytes), type##_size)

/* ---- versions, magic numbers, units ------------------------------------------------------------------- */

#define GLMW_WIRE_MIN 1u /* lowest and highest wire version this header describes */
#define GLMW_WIRE_MAX 1u

#define GLMW_MAGIC_PACKET 0x504d4c47u /* "GLMP": every packet on the socket */
#define GLMW_MAGIC_U      0x554d4c47u /* "GLMU": first word of region U */
#define GLMW_MAGIC_D      0x444d4c47u /* "GLMD": first word of region D */

#define GLMW_SLOT_BYTES   64u      /* one submission entry, one record */
#define GLMW_LINE_BYTES   128u     /* distance between words of different writers */
#define GLMW_REGION_ALIGN 65536u   /* offsets of rings and arenas; fits 4, 16 and 64 KiB pages */
#define GLMW_ALIGN        8u       /* payload offsets and TLVs */

/* Ring and arena sizes are powers of two; 0 in HELLO asks for the default. */
#define GLMW_SQ_LOG2_MIN      4u
#define GLMW_SQ_LOG2_DEFAULT  8u
#define GLMW_SQ_LOG2_MAX      12u
#define GLMW_TQ_LOG2_MIN      6u
#define GLMW_TQ_LOG2_DEFAULT  12u
#define GLMW_TQ_LOG2_MAX      16u
#define GLMW_PAY_LOG2_MIN     16u
#define GLMW_PAY_LOG2_DEFAULT 20u
#define GLMW_PAY_LOG2_MAX     26u
#define GLMW_TXT_LOG2_MIN     16u
#define GLMW_TXT_LOG2_DEFAULT 18u
#define GLMW_TXT_LOG2_MAX     24u

#define GLMW_PACKET_MAX     4096u /* header + body */
#define GLMW_BODY_MAX       4080u
#define GLMW_PACKET_FDS_MAX 4u

#define GLMW_TOKEN_NONE 0xffffffffu
#define GLMW_STATUS_ALIVE_NS 5000000000ull /* an older heartbeat plus a missing PONG means: it hangs */

/* ---- features: bits of the 64-bit sets in HELLO, WELCOME and region D ---------------------------------- */

#define GLMW_FEAT_LOGPROBS    (1ull << 0)  /* TOKEN.logprob on request */
#define GLMW_FEAT_ALTS        (1ull << 1)  /* ALTS records on request */
#define GLMW_FEAT_BULK        (1ull << 2)  /* BULK packets and entries with GLMW_ENT_BULK */
#define GLMW_FEAT_RESUME      (1ull << 3)  /* GLMW_OP_RESUME and GLMW_ENT_KEEP */
#define GLMW_FEAT_COALESCE    (1ull << 4)  /* urgent records ring an event index that lies ahead */
#define GLMW_FEAT_TOOL_EVENTS (1ull << 5)  /* TOOL records around every tool call */
#define GLMW_FEAT_IMAGES      (1ull << 6)  /* PART_IMAGE */
#define GLMW_FEAT_FUTEX_BELL  (1ull << 7)  /* the daemon also futex-wakes tq_tail */
#define GLMW_FEAT_EMBEDDINGS  (1ull << 8)  /* GLMW_OP_EMBED */
#define GLMW_FEAT_TOKENIZE    (1ull << 9)  /* GLMW_OP_TOKENIZE and GLMW_OP_COUNT */
#define GLMW_FEAT_SCHEMA      (1ull << 10) /* SCHEMA: constrained decoding */
#define GLMW_FEAT_NUMBERS     (1ull << 11) /* the block of wire_num.h */
#define GLMW_FEAT_ALL         ((1ull << 12) - 1)

/* ---- packets on the SOCK_SEQPACKET socket -------------------------------------------------------------- */

enum glmw_packet {
    GLMW_PKT_HELLO = 1,    /* client -> daemon, first packet */
    GLMW_PKT_WELCOME = 2,  /* daemon -> client, 4 descriptors in the order of enum glmw_welcome_fd */
    GLMW_PKT_REJECT = 3,   /* daemon -> client, then the daemon closes */
    GLMW_PKT_BULK = 4,     /* client -> daemon, 1 descriptor */
    GLMW_PKT_BULK_OK = 5,  /* daemon -> client */
    GLMW_PKT_BULK_ERR = 6, /* daemon -> client */
    GLMW_PKT_NOTICE = 7,   /* daemon -> client */
    GLMW_PKT_PING = 8,     /* both */
    GLMW_PKT_PONG = 9,     /* both, repeats the 8 bytes of the PING */
    GLMW_PKT_BYE = 10      /* both, last packet of its sender */
};

#define GLMW_PKTF_IGNORABLE 0x0001u /* an unknown type with this flag is skipped; without it: -EPROTO */

struct glmw_packet_hdr {
    uint32_t magic; /* GLMW_MAGIC_PACKET */
    uint16_t type;
    uint16_t flags;
    uint32_t len;    /* bytes of the body: packet length - 16 */
    uint32_t serial; /* sender's counter from 0; for logs, an answer is not matched by it */
};
GLMW_SIZE(glmw_packet_hdr, 16);
GLMW_AT(glmw_packet_hdr, type, 4);
GLMW_AT(glmw_packet_hdr, flags, 6);
GLMW_AT(glmw_packet_hdr, len, 8);
GLMW_AT(glmw_packet_hdr, serial, 12);

/* HELLO and REJECT cross before a version is agreed: a receiver accepts a longer body and ignores the rest.
 * Every other body has exactly the length of its struct. */
struct glmw_hello {
    uint32_t wire_min;
    uint32_t wire_max;
    uint64_t features_wanted;
    uint64_t features_required; /* a bit the daemon lacks is refused */
    uint8_t sq_log2, tq_log2, pay_log2, txt_log2; /* wanted sizes, 0 = default; the daemon may grant less */
    uint32_t page_size;                           /* the client's, a power of two up to 65536 */
    char name[32];     /* program name for people: printable ASCII, NUL-padded, may fill all 32 bytes */
    uint8_t zero[32];
};
GLMW_SIZE(glmw_hello, 96);
GLMW_AT(glmw_hello, wire_max, 4);
GLMW_AT(glmw_hello, features_wanted, 8);
GLMW_AT(glmw_hello, features_required, 16);
GLMW_AT(glmw_hello, sq_log2, 24);
GLMW_AT(glmw_hello, txt_log2, 27);
GLMW_AT(glmw_hello, page_size, 28);
GLMW_AT(glmw_hello, name, 32);
GLMW_AT(glmw_hello, zero, 64);

/* What a connection may use; numbers of this connection, not of the machine. 0 = not offered. */
struct glmw_limits {
    uint32_t max_live;           /* live tags on this connection */
    uint32_t max_context_tokens; /* prompt + completion */
    uint32_t max_output_tokens;
    uint32_t vocab_tokens;       /* token ids are below this */
    uint32_t max_payload_bytes;  /* payload inside the arena */
    uint32_t max_messages;
    uint32_t max_parts;
    uint32_t max_tools;
    uint32_t max_stops;
    uint32_t max_stop_bytes;
    uint32_t max_bias;
    uint32_t max_alts;
    uint32_t max_bulk;           /* bulk ids alive at once */
    uint32_t zero;
    uint64_t max_bulk_bytes;     /* of one bulk object */
};
GLMW_SIZE(glmw_limits, 64);
GLMW_AT(glmw_limits, max_payload_bytes, 16);
GLMW_AT(glmw_limits, max_stops, 32);
GLMW_AT(glmw_limits, max_bulk, 48);
GLMW_AT(glmw_limits, max_bulk_bytes, 56);

enum glmw_state {
    GLMW_STATE_LOADING = 1,
    GLMW_STATE_READY = 2,
    GLMW_STATE_DRAINING = 3,
    GLMW_STATE_FAILED = 4
};

enum glmw_welcome_fd {
    GLMW_FD_U = 0,    /* memfd of region U, map read-write */
    GLMW_FD_D = 1,    /* memfd of region D, can only be mapped read-only */
    GLMW_FD_BELL = 2, /* eventfd: write 8 bytes to wake the daemon */
    GLMW_FD_PIPE = 3, /* read end of a pipe: readable when the daemon wakes the client */
    GLMW_FD_COUNT = 4
};

struct glmw_welcome {
    uint32_t wire;  /* the version both speak from here on */
    uint32_t state; /* enum glmw_state */
    uint64_t features;
    uint64_t generation; /* random per daemon start, never 0 */
    uint64_t conn_id;
    uint64_t u_bytes, d_bytes;
    uint64_t sq_off, pay_off; /* in region U */
    uint64_t tq_off, txt_off; /* in region D */
    uint8_t sq_log2, tq_log2, pay_log2, txt_log2;
    uint32_t zero;
    struct glmw_limits limits;
    char model[64]; /* model id for people and for requests, UTF-8, NUL-padded */
};
GLMW_SIZE(glmw_welcome, 216);
GLMW_AT(glmw_welcome, state, 4);
GLMW_AT(glmw_welcome, features, 8);
GLMW_AT(glmw_welcome, generation, 16);
GLMW_AT(glmw_welcome, conn_id, 24);
GLMW_AT(glmw_welcome, u_bytes, 32);
GLMW_AT(glmw_welcome, d_bytes, 40);
GLMW_AT(glmw_welcome, sq_off, 48);
GLMW_AT(glmw_welcome, pay_off, 56);
GLMW_AT(glmw_welcome, tq_off, 64);
GLMW_AT(glmw_welcome, txt_off, 72);
GLMW_AT(glmw_welcome, sq_log2, 80);
GLMW_AT(glmw_welcome, txt_log2, 83);
GLMW_AT(glmw_welcome, limits, 88);
GLMW_AT(glmw_welcome, model, 152);

struct glmw_reject {
    int32_t error; /* negative errno */
    uint32_t retry_after_ms; /* 0: trying again does not help */
    uint32_t wire_min, wire_max; /* the daemon's range */
    char text[240]; /* for people, UTF-8, NUL-padded, may be empty */
};
GLMW_SIZE(glmw_reject, 256);
GLMW_AT(glmw_reject, wire_min, 8);
GLMW_AT(glmw_reject, text, 16);

enum glmw_bulk_kind { GLMW_BULK_PAYLOAD = 1, GLMW_BULK_IMAGE = 2 };

struct glmw_bulk {
    uint32_t id;   /* client's choice, not alive */
    uint32_t kind; /* enum glmw_bulk_kind */
    uint64_t bytes;
    uint8_t zero[16];
};
GLMW_SIZE(glmw_bulk, 32);
GLMW_AT(glmw_bulk, bytes, 8);

struct glmw_bulk_answer { /* BULK_OK (error 0) and BULK_ERR */
    uint32_t id;
    int32_t error;
    uint8_t zero[8];
};
GLMW_SIZE(glmw_bulk_answer, 16);

enum glmw_notice { /* NOTICE packets and NOTICE records */
    GLMW_NOTICE_STATE = 1,  /* state changed: loaded, draining … */
    GLMW_NOTICE_LIMITS = 2, /* limits changed */
    GLMW_NOTICE_MODEL = 3   /* model changed: model and limits */
};

struct glmw_notice_body {
    uint32_t what;  /* enum glmw_notice */
    uint32_t state; /* enum glmw_state, always valid, as are limits and model */
    struct glmw_limits limits;
    char model[64];
};
GLMW_SIZE(glmw_notice_body, 136);
GLMW_AT(glmw_notice_body, limits, 8);
GLMW_AT(glmw_notice_body, model, 72);

struct glmw_ping {
    uint8_t opaque[8];
};
GLMW_SIZE(glmw_ping, 8);

struct glmw_bye {
    int32_t error; /* 0: orderly end */
    uint32_t zero;
    char text[120]; /* for people, NUL-padded, may be empty */
};
GLMW_SIZE(glmw_bye, 128);
GLMW_AT(glmw_bye, text, 8);

/* ---- region U: written by the client, read by the daemon ----------------------------------------------- */

struct glmw_u {
    uint32_t magic; /* GLMW_MAGIC_U; both words are written by the daemon before it seals the memfd */
    uint32_t wire;
    uint8_t pad0[120];
    uint32_t sq_tail; /* next entry the client will write */
    uint8_t pad1[124];
    uint32_t tq_head; /* next record the client will read; everything before is given back */
    uint8_t pad2[124];
    uint32_t tq_event; /* record index at which the client wants the pipe written */
    uint8_t pad3[124];
    uint32_t sleeping; /* 0 or 1, for statistics only */
    uint32_t pad4;
    uint64_t last_awake_ns; /* CLOCK_MONOTONIC at the last wake, for statistics only */
    uint8_t pad5[112];
};
GLMW_SIZE(glmw_u, 0x280);
GLMW_AT(glmw_u, sq_tail, 0x080);
GLMW_AT(glmw_u, tq_head, 0x100);
GLMW_AT(glmw_u, tq_event, 0x180);
GLMW_AT(glmw_u, sleeping, 0x200);
GLMW_AT(glmw_u, last_awake_ns, 0x208);

/* ---- region D: written by the daemon, read by the client ----------------------------------------------- */

/* Published under a sequence counter: odd while being written (ringops.h has the one reader and writer). */
struct glmw_status {
    uint32_t seq;
    uint32_t state;          /* enum glmw_state */
    uint64_t heartbeat_ns;   /* CLOCK_MONOTONIC, at least once a second */
    uint64_t start_ns;       /* CLOCK_MONOTONIC when the daemon started */
    uint64_t kv_free_tokens; /* totals of the daemon */
    uint64_t kv_total_tokens;
    uint64_t tokens_out; /* sampled since start */
    uint32_t queued;     /* requests waiting */
    uint32_t running;    /* sequences in the batch */
    uint32_t slots_free; /* recurrent-state slots */
    uint32_t slots_total;
    uint32_t prefill_mtok_s; /* thousandths of a token per second, moving mean */
    uint32_t decode_mtok_s;
    uint32_t connections;
    uint32_t load_permille; /* while LOADING: how much of the model is in */
    /* this connection only */
    uint32_t my_live;
    uint32_t my_live_max;
    uint64_t my_bulk_bytes;
    uint64_t my_stalls;         /* times a stream of this connection was skipped for want of credit */
    uint64_t my_bells_sent;     /* pipe writes */
    uint64_t my_bells_suppressed; /* publications that needed none */
    uint64_t my_safety_wakes;   /* skipped streams found by the timer instead of the hand-back: stays 0 */
    uint64_t my_records;        /* records published */
    /* the whole daemon again */
    uint64_t requests_accepted; /* since start; those refused are not among them */
    uint64_t requests_ended;    /* of the accepted; the difference is what lives */
    /* every connection of this user together, with the quotas that hold for it */
    uint32_t user_live;
    uint32_t user_live_max;
    uint32_t user_connections;
    uint32_t user_connections_max;
    uint32_t user_kept;
    uint32_t user_submits_max; /* requests a second; 0 = no limit */
    uint64_t user_region_bytes;
    uint64_t user_region_max;
    uint64_t user_bulk_bytes;
    uint64_t user_bulk_max;
    uint64_t user_queued_tokens; /* prompts that wait to be read */
    uint64_t user_queued_max;    /* 0 = no limit */
    uint64_t user_kv_tokens;     /* reserved by requests that run */
    uint64_t user_kv_max;        /* 0 = no limit */
    uint64_t user_refused;       /* requests and bulk objects refused for want of quota */
    uint32_t budget_closes, loop_closes; /* of the whole daemon, in answers that have ended; modulo 2^32 */
};
GLMW_SIZE(glmw_status, 256);
GLMW_AT(glmw_status, heartbeat_ns, 8);
GLMW_AT(glmw_status, tokens_out, 40);
GLMW_AT(glmw_status, queued, 48);
GLMW_AT(glmw_status, my_live, 80);
GLMW_AT(glmw_status, my_bulk_bytes, 88);
GLMW_AT(glmw_status, my_records, 128);
GLMW_AT(glmw_status, user_live, 152);
GLMW_AT(glmw_status, user_region_bytes, 176);
GLMW_AT(glmw_status, loop_closes, 252);

struct glmw_d {
    uint32_t magic; /* GLMW_MAGIC_D */
    uint32_t wire;
    uint64_t features;
    uint64_t generation;
    uint64_t conn_id;
    uint64_t u_bytes, d_bytes;
    uint64_t sq_off, pay_off; /* in region U */
    uint64_t tq_off, txt_off; /* in region D */
    uint8_t sq_log2, tq_log2, pay_log2, txt_log2;
    uint8_t pad0[44];
    uint32_t sq_head; /* next entry the daemon will read */
    uint8_t pad1[124];
    uint32_t sq_event; /* entry index at which the daemon wants the eventfd written */
    uint8_t pad2[124];
    uint32_t tq_tail;       /* next record the daemon will write */
    uint32_t credit_wanted; /* 1: a stream waits for record slots or text bytes */
    uint8_t pad3[120];
    struct glmw_status status;
};
GLMW_SIZE(glmw_d, 0x300);
GLMW_AT(glmw_d, features, 0x008);
GLMW_AT(glmw_d, generation, 0x010);
GLMW_AT(glmw_d, conn_id, 0x018);
GLMW_AT(glmw_d, u_bytes, 0x020);
GLMW_AT(glmw_d, d_bytes, 0x028);
GLMW_AT(glmw_d, sq_off, 0x030);
GLMW_AT(glmw_d, pay_off, 0x038);
GLMW_AT(glmw_d, tq_off, 0x040);
GLMW_AT(glmw_d, txt_off, 0x048);
GLMW_AT(glmw_d, sq_log2, 0x050);
GLMW_AT(glmw_d, sq_head, 0x080);
GLMW_AT(glmw_d, sq_event, 0x100);
GLMW_AT(glmw_d, tq_tail, 0x180);
GLMW_AT(glmw_d, credit_wanted, 0x184);
GLMW_AT(glmw_d, status, 0x200);

/* ---- submission entries -------------------------------------------------------------------------------- */

enum glmw_op {
    GLMW_OP_NOP = 0,        /* answers credit_wanted; every field but the opcode is 0 */
    GLMW_OP_SUBMIT = 1,     /* payload: prompt and options */
    GLMW_OP_CANCEL = 2,     /* tag; an unknown tag is no error */
    GLMW_OP_CANCEL_ALL = 3, /* every live tag of this connection */
    GLMW_OP_RESUME = 4,     /* FEAT_RESUME; payload_off = stream id, session = first seq wanted */
    GLMW_OP_TOKENIZE = 5,   /* FEAT_TOKENIZE; payload as SUBMIT; answered by IDS records */
    GLMW_OP_COUNT = 6,      /* FEAT_TOKENIZE; payload as SUBMIT; answered by USAGE.prompt_tokens */
    GLMW_OP_EMBED = 7       /* FEAT_EMBEDDINGS */
};

#define GLMW_ENT_BULK  0x01u /* payload_off is a bulk id, payload_len is 0 */
#define GLMW_ENT_QUIET 0x02u /* no PROGRESS records */
#define GLMW_ENT_KEEP  0x04u /* SUBMIT: keep the stream for RESUME */
#define GLMW_ENT_BACKGROUND 0x08u /* SUBMIT: others go first */
#define GLMW_ENT_NO_CACHE 0x10u /* SUBMIT: find nothing in the prefix cache, leave nothing there */
#define GLMW_ENT_FLAGS 0x1fu

struct glmw_entry {
    uint8_t opcode;
    uint8_t flags;
    uint16_t zero0;
    uint32_t payload_len;
    uint64_t tag; /* client's number, non-zero, not live; 0 for NOP and CANCEL_ALL */
    uint64_t payload_off; /* from pay_off, multiple of 8 */
    uint64_t session;     /* affinity hint for prefix reuse, 0 = none */
    uint32_t max_tokens;  /* 0 = the daemon's limit */
    uint32_t deadline_ms; /* from receipt, 0 = none */
    uint64_t client_ns;   /* echoed in ACCEPTED */
    uint8_t zero1[16];
};
GLMW_SIZE(glmw_entry, 64);
GLMW_AT(glmw_entry, flags, 1);
GLMW_AT(glmw_entry, payload_len, 4);
GLMW_AT(glmw_entry, tag, 8);
GLMW_AT(glmw_entry, payload_off, 16);
GLMW_AT(glmw_entry, session, 24);
GLMW_AT(glmw_entry, max_tokens, 32);
GLMW_AT(glmw_entry, deadline_ms, 36);
GLMW_AT(glmw_entry, client_ns, 40);
GLMW_AT(glmw_entry, zero1, 48);

/* ---- records ------------------------------------------------------------------------------------------- */

enum glmw_rec_type {
    GLMW_REC_ACCEPTED = 1, /* first record of an accepted tag; the payload bytes may be reused */
    GLMW_REC_PROGRESS = 2,
    GLMW_REC_TOKEN = 3, /* one sampled token and the text that became complete with it */
    GLMW_REC_TEXT = 4,  /* text that belongs to no single token; token = GLMW_TOKEN_NONE */
    GLMW_REC_ALTS = 5,  /* alternatives of the TOKEN before it */
    GLMW_REC_TOOL = 6,  /* a tool call begins or ends */
    GLMW_REC_USAGE = 7, /* precedes END of every accepted tag */
    GLMW_REC_END = 8,   /* exactly once per tag, its last record; then the tag is free */
    GLMW_REC_ERROR = 9, /* why the request failed, in words; END follows */
    GLMW_REC_NOTICE = 10, /* tag 0, token = enum glmw_notice */
    GLMW_REC_IDS = 11     /* up to 12 token ids: answer to TOKENIZE */
};

enum glmw_channel {
    GLMW_CH_CONTENT = 0,
    GLMW_CH_REASONING = 1,
    GLMW_CH_TOOL_NAME = 2,
    GLMW_CH_TOOL_ARGS = 3 /* the pieces of one call concatenate to one JSON object */
};

#define GLMW_RF_INLINE      0x0001u /* the text is in u.text, not in the arena */
#define GLMW_RF_MORE        0x0002u /* the next record of this tag continues the same text */
#define GLMW_RF_FIRST       0x0004u /* first TOKEN or TEXT of the tag; on channel tool-name: of each call */
#define GLMW_RF_STEP_END    0x0008u /* last record of this tag in its engine step */
#define GLMW_RF_ALTS_FOLLOW 0x0010u /* ALTS records follow at once: (n_alts + 5) / 6 of them */
#define GLMW_RF_DRAFTED     0x0020u /* the token was proposed by the draft and accepted */
#define GLMW_RF_FORCED      0x0040u /* TOKEN: set by a rule, not chosen by the model; END: the reasoning was closed */
#define GLMW_RF_LOOP        0x0080u /* END: the loop guard closed the reasoning or ended the answer */
#define GLMW_RF_IGNORABLE   0x8000u /* an unknown type with this flag is skipped; without it: -EPROTO */

enum glmw_reason { /* END.reason */
    GLMW_END_NONE = 0,        /* never started: see status */
    GLMW_END_STOP = 1,        /* the model ended its turn; END.token is the id that did */
    GLMW_END_STOP_STRING = 2, /* END.detail: which STOP of the payload, from 0 */
    GLMW_END_LENGTH = 3,      /* max_tokens */
    GLMW_END_CONTEXT = 4,     /* the context is full */
    GLMW_END_TOOL_CALLS = 5,  /* the turn ended in tool calls */
    GLMW_END_CANCELED = 6,
    GLMW_END_DEADLINE = 7,
    GLMW_END_ERROR = 8,
    GLMW_END_LOOP = 9 /* the loop guard closed it */
};

enum glmw_tool_phase { GLMW_TOOL_BEGIN = 1, GLMW_TOOL_END = 2, GLMW_TOOL_CUT = 3 /* ended incomplete */ };
enum glmw_phase { GLMW_PHASE_QUEUED = 1, GLMW_PHASE_PREPARING = 2, GLMW_PHASE_PREFILL = 3 };

struct glmw_rec_progress {
    uint32_t done, total, cached; /* prompt tokens */
    uint32_t queue_pos;           /* requests in front */
    uint32_t phase;               /* enum glmw_phase */
    uint32_t wait_ms; /* QUEUED: until it will probably begin, 0 = not known; else 0 */
};
struct glmw_rec_end {
    int32_t status;  /* 0 or negative errno */
    uint16_t reason; /* enum glmw_reason */
    uint16_t detail;
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    uint32_t accepted_tokens; /* drafted and accepted */
};
struct glmw_rec_accepted {
    uint64_t client_ns; /* of the entry */
    uint64_t stream_id; /* for RESUME, 0 when not kept */
    uint64_t zero;
};
struct glmw_rec_tool {
    uint32_t index; /* of the call in this answer, from 0 */
    uint32_t phase; /* enum glmw_tool_phase */
    uint8_t zero[16];
};
GLMW_SIZE(glmw_rec_progress, 24);
GLMW_SIZE(glmw_rec_end, 24);
GLMW_SIZE(glmw_rec_accepted, 24);
GLMW_SIZE(glmw_rec_tool, 24);
GLMW_AT(glmw_rec_end, reason, 4);
GLMW_AT(glmw_rec_end, detail, 6);
GLMW_AT(glmw_rec_end, prompt_tokens, 8);
GLMW_AT(glmw_rec_end, accepted_tokens, 20);

#define GLMW_INLINE_BYTES 24u
#define GLMW_SPAN_MAX     4096u /* longest text_len; longer text is split with MORE */
struct glmw_rec {
    uint8_t type;
    uint8_t channel;
    uint16_t flags;
    uint32_t seq; /* per tag, from 0 (RESUME: from where it goes on), no gaps, every type counts */
    uint64_t tag;
    uint32_t token; /* TOKEN, END: id; ERROR: status as int32; NOTICE: code; else GLMW_TOKEN_NONE */
    float logprob;  /* NaN when not asked for */
    uint32_t text_off; /* in the text arena; 0 with INLINE or without text */
    uint16_t text_len; /* whole UTF-8 sequences, never wraps; TOKEN, TEXT, ERROR, NOTICE */
    uint16_t n_alts;
    uint64_t t_ns; /* CLOCK_MONOTONIC when the sample reached the host, or when the event happened */
    union {
        uint8_t text[24];
        struct glmw_rec_progress progress;
        struct glmw_rec_end end;
        struct glmw_rec_accepted accepted;
        struct glmw_rec_tool tool;
    } u;
};
GLMW_SIZE(glmw_rec, 64);
GLMW_AT(glmw_rec, channel, 1);
GLMW_AT(glmw_rec, flags, 2);
GLMW_AT(glmw_rec, seq, 4);
GLMW_AT(glmw_rec, tag, 8);
GLMW_AT(glmw_rec, token, 16);
GLMW_AT(glmw_rec, logprob, 20);
GLMW_AT(glmw_rec, text_off, 24);
GLMW_AT(glmw_rec, text_len, 28);
GLMW_AT(glmw_rec, n_alts, 30);
GLMW_AT(glmw_rec, t_ns, 32);
GLMW_AT(glmw_rec, u, 40);

#define GLMW_ALTS_PER_REC 6u
#define GLMW_ALTS_MAX     20u
#define GLMW_IDS_PER_REC  12u
struct glmw_alt {
    uint32_t token; /* GLMW_TOKEN_NONE fills the rest of the last record */
    float logprob;
};
struct glmw_alts { /* best first */
    uint8_t type, channel;
    uint16_t flags;
    uint32_t seq;
    uint64_t tag;
    struct glmw_alt alt[GLMW_ALTS_PER_REC];
};
GLMW_SIZE(glmw_alts, 64);
GLMW_AT(glmw_alts, tag, 8);
GLMW_AT(glmw_alts, alt, 16);

struct glmw_ids {
    uint8_t type;
    uint8_t count; /* 1 to 12; the rest is GLMW_TOKEN_NONE */
    uint16_t flags;
    uint32_t seq;
    uint64_t tag;
    uint32_t id[GLMW_IDS_PER_REC];
};
GLMW_SIZE(glmw_ids, 64);
GLMW_AT(glmw_ids, count, 1);
GLMW_AT(glmw_ids, tag, 8);
GLMW_AT(glmw_ids, id, 16);

#define GLMW_USAGE_VERSION 1u
struct glmw_usage {
    uint8_t type;
    uint8_t version; /* a higher version keeps the meaning of every field of a lower one */
    uint16_t time_shift; /* 0 to 32: the times below are in units of 2^time_shift ns */
    uint32_t seq;
    uint64_t tag;
    uint32_t prompt_tokens;
    uint32_t cached_tokens;     /* of prompt_tokens, taken from the prefix cache */
    uint32_t completion_tokens; /* sampled, reasoning and the ending id included */
    uint32_t reasoning_tokens;  /* of completion_tokens */
    uint32_t drafted_tokens;
    uint32_t accepted_tokens;   /* of drafted_tokens */
    uint32_t tier_tokens;       /* of cached_tokens, read back from the tier below the memory */
    uint32_t zero;
    uint32_t queued;            /* from receipt to the first prefill step */
    uint32_t prefill;           /* from there to the first sample */
    uint32_t decode;            /* from there to the last sample */
    uint32_t longest_gap;       /* between two samples */
};
GLMW_SIZE(glmw_usage, 64);
GLMW_AT(glmw_usage, version, 1);
GLMW_AT(glmw_usage, tag, 8);
GLMW_AT(glmw_usage, prompt_tokens, 16);
GLMW_AT(glmw_usage, tier_tokens, 40);
GLMW_AT(glmw_usage, queued, 48);
GLMW_AT(glmw_usage, longest_gap, 60);

/* Record slots the daemon keeps back for every live tag: ERROR, USAGE and END always fit. */
#define GLMW_RESERVED_RECS 3u

#include "wire_tlv.h"

#endif
