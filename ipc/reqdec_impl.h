/* SPDX-License-Identifier: MIT */
/* reqdec_impl.h: between the files of the request decoder: reqdec.c has the pass, messages and parts, reqopt.c the
 * options. Runs wherever the decoder does. */
#ifndef GLMD_REQDEC_IMPL_H
#define GLMD_REQDEC_IMPL_H

#include <errno.h>

#include "reqdec.h"

enum dec_state { ST_EMPTY, ST_TOKENS, ST_CHAT, ST_MSG, ST_PARTS, ST_RESULT };

struct dec {
    const uint8_t *base;
    const struct glmw_limits *limits;
    uint64_t features;
    enum dec_state state;
    uint32_t seen; /* option types that may come once, bit = type */
    bool has_reasoning; /* in the open message */
    struct reqdec_msg *msgs;
    struct reqdec_part *parts;
    struct reqdec_str *tools, *stops;
    struct reqdec_req out;
    struct reqdec_err err;
};

/* One TLV: header, and body at d->base + body. */
struct tlv {
    uint16_t type, flags;
    uint32_t off, body, len;
};

/* Fills d->err and returns code. The words name an option as libglmd does, what was found and what was expected; of
 * prompts they have lengths and places, never a byte. */
int dec_fail(struct dec *d, const struct tlv *t, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int dec_utf8(struct dec *d, const struct tlv *t, struct reqdec_str s);
/* Bytes [skip, skip + len) of the body; the caller has checked that they are inside. */
struct reqdec_str dec_view(const struct dec *d, const struct tlv *t, uint32_t skip, uint32_t len);
bool dec_all_zero(const uint8_t *p, size_t len);
/* A TLV of type GLMW_TLV_TOOL_DEF to GLMW_TLV_CHAT. */
int dec_option(struct dec *d, const struct tlv *t);

#endif
