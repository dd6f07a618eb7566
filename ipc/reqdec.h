/* SPDX-License-Identifier: MIT */
/* Decoder of a request's payload. */
#ifndef GLMD_REQDEC_H
#define GLMD_REQDEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* A view into the payload: valid as long as the payload's private copy is. Not NUL-terminated. */
struct reqdec_str {
    const char *ptr; /* never NULL in a decoded request when len > 0 */
    uint32_t len;
};

/* A part of a message. text: of TEXT, REASONING and TOOL_RESULT; the arguments (JSON text as sent, not looked
 * into) of TOOL_CALL; the file of an inline IMAGE. Parts behind a TOOL_RESULT, up to the next one, belong to
 * that result. */
struct reqdec_part {
    uint16_t type; /* GLMW_TLV_PART_* */
    uint16_t image_source, image_format;
    uint32_t image_width, image_height, image_bulk_id;
    struct reqdec_str text;
    struct reqdec_str id;   /* TOOL_CALL, TOOL_RESULT; may be empty */
    struct reqdec_str name; /* TOOL_CALL */
};

struct reqdec_msg {
    uint32_t role; /* enum glmw_role */
    uint32_t first_part, n_parts;
};

struct reqdec_req {
    const uint32_t *tokens; /* raw prompt, or NULL */
    uint32_t n_tokens;
    const struct reqdec_msg *msgs; /* at least one when tokens is NULL */
    const struct reqdec_part *parts;
    const struct reqdec_str *tools; /* JSON text as sent, not looked into */
    const struct reqdec_str *stops;
    const struct glmw_bias *bias;
    uint32_t n_msgs, n_parts, n_tools, n_stops, n_bias;
    bool has_sampling, has_chat, has_choice, has_schema;
    struct glmw_sampling sampling; /* checked; every field without its bit is 0 */
    struct glmw_tlv_chat chat;     /* size and word_len as decoded */
    struct reqdec_str effort_word;
    struct glmw_tlv_choice choice;
    struct reqdec_str choice_name;
    uint32_t schema_kind;
    struct reqdec_str schema;
    struct reqdec_str label; /* no control characters */
};

enum { REQDEC_REASON = 192 };
struct reqdec_err {
    int code;           /* as returned */
    uint32_t offset;    /* in the payload: of the TLV, or of the first bad byte of a text */
    uint16_t type;      /* of that TLV, 0 when there is none */
    /* For people, without full stop, cut when longer: which option, as libglmd names it, what was found and what was
     * expected. Nothing of a prompt but lengths and places. */
    char reason[REQDEC_REASON];
};

/* Bytes of scratch that are always enough for a payload of len bytes under these limits. */
size_t reqdec_mem_bytes(const struct glmw_limits *limits, size_t len);

/* Decodes len bytes at payload: private memory, aligned to 8, that outlives *ret. mem (aligned to 8) holds
 * the arrays of *ret. One pass, no recursion, no allocation; time is linear in len.
 *
 * 0, or -EBADMSG (structure), -EILSEQ (a text is not UTF-8), -EINVAL (a value out of range), -EMSGSIZE (a
 * limit of this connection), -EOPNOTSUPP (a feature that was not granted), -ENOBUFS (mem too small), with
 * *reterr (may be NULL) telling what and where. */
int reqdec_decode(const void *payload, size_t len, const struct glmw_limits *limits, uint64_t features,
                  void *mem, size_t mem_bytes, struct reqdec_req *ret, struct reqdec_err *reterr);

#endif
