/* SPDX-License-Identifier: MIT */
/* From the bytes of a payload to the decoded request. The io thread calls it for payloads of the arena, of
 * which it has made a private copy; a text worker for sealed objects, which may be large and cannot change
 * while they are read. Allocates the arrays that the request then owns; copies no text. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prep.h"

static const char *tlv_name(uint16_t type) {
    switch (type) {
    case GLMW_TLV_MSG_BEGIN:
    case GLMW_TLV_MSG_END:
        return "message";
    case GLMW_TLV_PART_TEXT:
        return "text of a message";
    case GLMW_TLV_PART_REASONING:
        return "reasoning of a message";
    case GLMW_TLV_PART_IMAGE:
        return "picture";
    case GLMW_TLV_PART_TOOL_CALL:
        return "tool call";
    case GLMW_TLV_PART_TOOL_RESULT:
        return "tool result";
    case GLMW_TLV_TOKENS:
        return "prompt tokens";
    case GLMW_TLV_TOOL_DEF:
        return "tool";
    case GLMW_TLV_TOOL_CHOICE:
        return "tool choice";
    case GLMW_TLV_SAMPLING:
        return "sampling settings";
    case GLMW_TLV_STOP:
        return "stop string";
    case GLMW_TLV_SCHEMA:
        return "schema";
    case GLMW_TLV_LOGIT_BIAS:
        return "logit bias";
    case GLMW_TLV_LABEL:
        return "label";
    case GLMW_TLV_CHAT:
        return "chat options";
    default:
        return "request";
    }
}

int prep_decode(struct prep_req *r, struct xerr *err) {
    const void *bytes = r->sealed ? r->sealed : r->payload;
    struct reqdec_err why = {0};
    size_t mem = reqdec_mem_bytes(&r->limits, r->payload_len);
    int ret;

    r->dec_mem = malloc(mem);
    if (!r->dec_mem)
        return xerr_set(err, -ENOMEM, "the daemon has no memory to decode a request of %u bytes",
                        r->payload_len);
    ret = reqdec_decode(bytes, r->payload_len, &r->limits, r->features, r->dec_mem, mem, &r->dec, &why);
    if (ret < 0)
        return xerr_set(err, ret, "%s at byte %u of the request: %s", tlv_name(why.type), why.offset,
                        why.reason[0] ? why.reason : strerror(-ret));
    return 0;
}
