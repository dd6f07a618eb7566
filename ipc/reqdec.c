/* SPDX-License-Identifier: MIT */
/* Turns the bytes of a payload into bounded views. Runs on the io thread over a private copy of what the
 * client wrote; pure, allocates nothing, and every limit is checked before anything is stored. */
#include "reqdec_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "utf8chk.h"

int dec_fail(struct dec *d, const struct tlv *t, int code, const char *fmt, ...) {
    va_list ap;

    d->err = (struct reqdec_err){.code = code, .offset = t->off, .type = t->type};
    va_start(ap, fmt);
    vsnprintf(d->err.reason, sizeof(d->err.reason), fmt, ap);
    va_end(ap);
    return code;
}

int dec_utf8(struct dec *d, const struct tlv *t, struct reqdec_str s) {
    size_t n = utf8chk_prefix(s.ptr, s.len);
    if (n == s.len)
        return 0;
    dec_fail(d, t, -EILSEQ, "text is not valid UTF-8");
    d->err.offset = (uint32_t)((const uint8_t *)s.ptr - d->base + (ptrdiff_t)n);
    return -EILSEQ;
}

struct reqdec_str dec_view(const struct dec *d, const struct tlv *t, uint32_t skip, uint32_t len) {
    return (struct reqdec_str){.ptr = (const char *)d->base + t->body + skip, .len = len};
}

bool dec_all_zero(const uint8_t *p, size_t len) {
    uint8_t any = 0;
    for (size_t i = 0; i < len; i++)
        any |= p[i];
    return any == 0;
}

/* ---- messages and parts -------------------------------------------------------------------------------- */

static int msg_begin(struct dec *d, const struct tlv *t) {
    struct glmw_tlv_msg m;
    if (d->state != ST_EMPTY && d->state != ST_CHAT)
        return dec_fail(d, t, -EBADMSG, d->state == ST_TOKENS ? "a message follows a raw token prompt"
                                                          : "MSG_BEGIN inside an open message");
    if (t->len != sizeof(m))
        return dec_fail(d, t, -EBADMSG, "MSG_BEGIN has the wrong length: found %u bytes, expected %zu", t->len,
                        sizeof(m));
    memcpy(&m, d->base + t->body, sizeof(m));
    if (m.role < GLMW_ROLE_SYSTEM || m.role > GLMW_ROLE_TOOL)
        return dec_fail(d, t, -EBADMSG, "found role %u, expected 1 (system), 2 (user), 3 (assistant) or 4 (tool)",
                        m.role);
    if (m.zero != 0)
        return dec_fail(d, t, -EBADMSG, "MSG_BEGIN: found %u in its reserved word, expected 0", m.zero);
    if (d->out.n_msgs >= d->limits->max_messages)
        return dec_fail(d, t, -EMSGSIZE, "found more messages than the %u that this connection may send",
                        d->limits->max_messages);
    d->msgs[d->out.n_msgs++] = (struct reqdec_msg){.role = m.role, .first_part = d->out.n_parts};
    d->has_reasoning = false;
    d->state = ST_MSG;
    return 0;
}

static int msg_end(struct dec *d, const struct tlv *t) {
    if (d->state < ST_MSG)
        return dec_fail(d, t, -EBADMSG, "MSG_END without MSG_BEGIN");
    if (t->len != 0)
        return dec_fail(d, t, -EBADMSG, "MSG_END is not empty: found %u bytes, expected none", t->len);
    struct reqdec_msg *m = &d->msgs[d->out.n_msgs - 1];
    if (m->role == GLMW_ROLE_TOOL && d->state != ST_RESULT)
        return dec_fail(d, t, -EBADMSG, "message of role tool without a tool result");
    m->n_parts = d->out.n_parts - m->first_part;
    d->state = ST_CHAT;
    return 0;
}

static int image_part(struct dec *d, const struct tlv *t, struct reqdec_part *p) {
    struct glmw_tlv_image i;
    if (!(d->features & GLMW_FEAT_IMAGES))
        return dec_fail(d, t, -EOPNOTSUPP, "pictures are not offered on this connection");
    if (t->len < sizeof(i))
        return dec_fail(d, t, -EBADMSG, "picture part is too short: found %u bytes, expected %zu at least", t->len,
                        sizeof(i));
    memcpy(&i, d->base + t->body, sizeof(i));
    uint32_t rest = t->len - (uint32_t)sizeof(i);
    bool raw = i.format == GLMW_IMAGE_RGB8;
    bool bulk = i.source == GLMW_IMAGE_BULK;
    if (i.format < GLMW_IMAGE_PNG || i.format > GLMW_IMAGE_RGB8)
        return dec_fail(d, t, -EBADMSG, "picture: found format %u, expected 1 (PNG), 2 (JPEG) or 3 (RGB8)", i.format);
    if (i.source != GLMW_IMAGE_INLINE && !bulk)
        return dec_fail(d, t, -EBADMSG, "picture: found source %u, expected 1 (inline) or 2 (bulk)", i.source);
    if (raw && !bulk)
        return dec_fail(d, t, -EBADMSG, "picture: found RGB8 inline, expected it in a bulk object");
    if (raw != (i.width != 0) || raw != (i.height != 0))
        return dec_fail(d, t, -EBADMSG, "picture: found a size of %u x %u, expected %s", i.width, i.height,
                        raw ? "both above 0" : "0 x 0, because the file has it");
    if (!bulk && i.bulk_id != 0)
        return dec_fail(d, t, -EBADMSG, "picture: found bulk object %u with an inline one, expected 0", i.bulk_id);
    if (bulk != (rest == 0))
        return dec_fail(d, t, -EBADMSG, "picture: found %u bytes behind its header, expected %s", rest,
                        bulk ? "none, because it lies in a bulk object" : "the file");
    if (bulk && !(d->features & GLMW_FEAT_BULK))
        return dec_fail(d, t, -EOPNOTSUPP, "bulk objects are not offered on this connection");
    p->image_source = i.source;
    p->image_format = i.format;
    p->image_width = i.width;
    p->image_height = i.height;
    p->image_bulk_id = i.bulk_id;
    p->text = dec_view(d, t, sizeof(i), rest);
    return 0;
}

static int call_part(struct dec *d, const struct tlv *t, struct reqdec_part *p) {
    struct glmw_tlv_call c;
    if (t->len < sizeof(c))
        return dec_fail(d, t, -EBADMSG, "tool call is too short: found %u bytes, expected %zu at least", t->len,
                        sizeof(c));
    memcpy(&c, d->base + t->body, sizeof(c));
    if ((uint64_t)c.id_len + c.name_len + c.args_len != t->len - sizeof(c))
        return dec_fail(d, t, -EBADMSG,
                        "tool call: its lengths do not add up: found %u, %u and %u, expected %zu in all", c.id_len,
                        c.name_len, c.args_len, t->len - sizeof(c));
    if (c.zero != 0)
        return dec_fail(d, t, -EBADMSG, "tool call: found %u in its reserved word, expected 0", c.zero);
    if (c.id_len > GLMW_CALL_ID_MAX)
        return dec_fail(d, t, -EBADMSG, "tool call: found an id of %u bytes, expected at most %u", c.id_len,
                        GLMW_CALL_ID_MAX);
    if (c.name_len == 0 || c.name_len > GLMW_TOOL_NAME_MAX)
        return dec_fail(d, t, -EBADMSG, "tool call: found a name of %u bytes, expected 1 to %u", c.name_len,
                        GLMW_TOOL_NAME_MAX);
    p->id = dec_view(d, t, sizeof(c), c.id_len);
    p->name = dec_view(d, t, (uint32_t)sizeof(c) + c.id_len, c.name_len);
    p->text = dec_view(d, t, (uint32_t)sizeof(c) + c.id_len + c.name_len, c.args_len);
    int r = dec_utf8(d, t, p->id);
    if (r == 0)
        r = dec_utf8(d, t, p->name);
    return r < 0 ? r : dec_utf8(d, t, p->text);
}

static int result_part(struct dec *d, const struct tlv *t, struct reqdec_part *p) {
    struct glmw_tlv_result c;
    if (t->len < sizeof(c))
        return dec_fail(d, t, -EBADMSG, "tool result is too short: found %u bytes, expected %zu at least", t->len,
                        sizeof(c));
    memcpy(&c, d->base + t->body, sizeof(c));
    if ((uint64_t)c.id_len + c.text_len != t->len - sizeof(c))
        return dec_fail(d, t, -EBADMSG,
                        "tool result: its lengths do not add up: found %u and %u, expected %zu in all", c.id_len,
                        c.text_len, t->len - sizeof(c));
    if (c.id_len > GLMW_CALL_ID_MAX)
        return dec_fail(d, t, -EBADMSG, "tool result: found an id of %u bytes, expected at most %u", c.id_len,
                        GLMW_CALL_ID_MAX);
    p->id = dec_view(d, t, sizeof(c), c.id_len);
    p->text = dec_view(d, t, (uint32_t)sizeof(c) + c.id_len, c.text_len);
    int r = dec_utf8(d, t, p->id);
    return r < 0 ? r : dec_utf8(d, t, p->text);
}

/* Which parts a role may have. */
static bool role_allows(uint32_t role, uint16_t type) {
    switch (type) {
    case GLMW_TLV_PART_TEXT:
        return true;
    case GLMW_TLV_PART_IMAGE:
        return role == GLMW_ROLE_USER || role == GLMW_ROLE_TOOL;
    case GLMW_TLV_PART_TOOL_RESULT:
        return role == GLMW_ROLE_TOOL;
    default:
        return role == GLMW_ROLE_ASSISTANT;
    }
}

static const char *const role_name[] = {
    [GLMW_ROLE_SYSTEM] = "system", [GLMW_ROLE_USER] = "user", [GLMW_ROLE_ASSISTANT] = "assistant",
    [GLMW_ROLE_TOOL] = "tool"};

static int part(struct dec *d, const struct tlv *t) {
    if (d->state < ST_MSG)
        return dec_fail(d, t, -EBADMSG, "message part outside a message");
    uint32_t role = d->msgs[d->out.n_msgs - 1].role;
    if (!role_allows(role, t->type))
        return dec_fail(d, t, -EBADMSG, "found it in a message of role %s, expected %s", role_name[role],
                        t->type == GLMW_TLV_PART_IMAGE         ? "user or tool"
                        : t->type == GLMW_TLV_PART_TOOL_RESULT ? "tool"
                                                               : "assistant");
    if (role == GLMW_ROLE_TOOL && t->type != GLMW_TLV_PART_TOOL_RESULT && d->state != ST_RESULT)
        return dec_fail(d, t, -EBADMSG, "part of role tool in front of the tool result it belongs to");
    if (d->out.n_parts >= d->limits->max_parts)
        return dec_fail(d, t, -EMSGSIZE, "found more message parts than the %u that this connection may send",
                        d->limits->max_parts);

    struct reqdec_part *p = &d->parts[d->out.n_parts];
    *p = (struct reqdec_part){.type = t->type};
    int r;
    switch (t->type) {
    case GLMW_TLV_PART_IMAGE:
        r = image_part(d, t, p);
        break;
    case GLMW_TLV_PART_TOOL_CALL:
        r = call_part(d, t, p);
        break;
    case GLMW_TLV_PART_TOOL_RESULT:
        r = result_part(d, t, p);
        break;
    default:
        if (t->type == GLMW_TLV_PART_REASONING) {
            if (d->has_reasoning)
                return dec_fail(d, t, -EBADMSG, "two reasoning parts in one message");
            d->has_reasoning = true;
        }
        p->text = dec_view(d, t, 0, t->len);
        r = dec_utf8(d, t, p->text);
        break;
    }
    if (r < 0)
        return r;
    d->out.n_parts++;
    d->state = t->type == GLMW_TLV_PART_TOOL_RESULT || d->state == ST_RESULT ? ST_RESULT : ST_PARTS;
    return 0;
}

static int tokens(struct dec *d, const struct tlv *t) {
    if (d->state != ST_EMPTY)
        return dec_fail(d, t, -EBADMSG, "a raw token prompt follows another prompt");
    if (t->len == 0 || t->len % 4 != 0)
        return dec_fail(d, t, -EBADMSG, "raw token prompt is empty or not a whole number of ids: found %u bytes",
                        t->len);
    const uint32_t *ids = (const uint32_t *)(const void *)(d->base + t->body); /* TLVs are aligned to 8 */
    for (uint32_t i = 0; i < t->len / 4; i++) {
        if (ids[i] >= d->limits->vocab_tokens) {
            dec_fail(d, t, -EINVAL,
                     "raw token prompt: found id %u, expected at most %lld, the last of the vocabulary", ids[i],
                     (long long)d->limits->vocab_tokens - 1);
            d->err.offset = t->body + 4 * i;
            return -EINVAL;
        }
    }
    d->out.tokens = ids;
    d->out.n_tokens = t->len / 4;
    d->state = ST_TOKENS;
    return 0;
}

/* ---- the pass ------------------------------------------------------------------------------------------ */

static int dispatch(struct dec *d, const struct tlv *t) {
    if (t->flags & ~GLMW_TLVF_IGNORABLE)
        return dec_fail(d, t, -EBADMSG, "unknown TLV flags: found 0x%x, expected 0 or 1", t->flags);
    switch (t->type) {
    case GLMW_TLV_MSG_BEGIN:
        return msg_begin(d, t);
    case GLMW_TLV_MSG_END:
        return msg_end(d, t);
    case GLMW_TLV_TOKENS:
        return tokens(d, t);
    default:
        if (t->type >= GLMW_TLV_PART_TEXT && t->type <= GLMW_TLV_PART_TOOL_RESULT)
            return part(d, t);
        if (t->type >= GLMW_TLV_TOOL_DEF && t->type <= GLMW_TLV_CHAT)
            return dec_option(d, t);
        return t->flags & GLMW_TLVF_IGNORABLE ? 0 : dec_fail(d, t, -EBADMSG, "unknown TLV type %u", t->type);
    }
}

static int walk(struct dec *d, uint32_t len) {
    struct tlv t = {0};
    uint32_t off = 0;
    while (off < len) {
        struct glmw_tlv h;
        t = (struct tlv){.off = off};
        if (len - off < sizeof(h))
            return dec_fail(d, &t, -EBADMSG, "payload ends inside a TLV header");
        memcpy(&h, d->base + off, sizeof(h));
        t = (struct tlv){h.type, h.flags, off, off + (uint32_t)sizeof(h), h.len};
        uint32_t room = len - t.body;
        if (h.len > room && !FAULT(reqdec_length_unchecked))
            return dec_fail(d, &t, -EBADMSG, "TLV is longer than the payload: found %u bytes, expected at most %u",
                            h.len, room);
        uint32_t pad = (uint32_t)(0u - h.len) & (GLMW_ALIGN - 1);
        if (pad > room - h.len || !dec_all_zero(d->base + t.body + h.len, pad))
            return dec_fail(d, &t, -EBADMSG, "TLV is not padded to 8 bytes with zeros");
        int r = dispatch(d, &t);
        if (r < 0)
            return r;
        off = t.body + h.len + pad;
    }
    t = (struct tlv){.off = len};
    if (d->state == ST_EMPTY)
        return dec_fail(d, &t, -EBADMSG, "request has neither a message nor a raw token prompt");
    if (d->state >= ST_MSG && !FAULT(reqdec_open_message))
        return dec_fail(d, &t, -EBADMSG, "payload ends inside a message");
    if (d->out.has_choice && d->out.choice.mode >= GLMW_CHOICE_REQUIRED && d->out.n_tools == 0)
        return dec_fail(d, &t, -EBADMSG,
                        "tool_choice: found %u, which demands a call, but no tool is defined; expected 0 or 1",
                        d->out.choice.mode);
    return 0;
}

static size_t at_most(uint32_t limit, size_t by_length) {
    return limit < by_length ? limit : by_length;
}

/* Elements of each array: the connection's limit, or what fits a payload of len bytes if that is less. */
static void array_sizes(const struct glmw_limits *l, size_t len, size_t ret_n[4]) {
    size_t tlvs = len / sizeof(struct glmw_tlv);
    ret_n[0] = at_most(l->max_parts, tlvs);
    ret_n[1] = at_most(l->max_tools, tlvs);
    ret_n[2] = at_most(l->max_stops, tlvs);
    ret_n[3] = at_most(l->max_messages, tlvs);
}

size_t reqdec_mem_bytes(const struct glmw_limits *limits, size_t len) {
    size_t n[4];
    array_sizes(limits, len, n);
    return n[0] * sizeof(struct reqdec_part) + (n[1] + n[2]) * sizeof(struct reqdec_str) +
           n[3] * sizeof(struct reqdec_msg) + 8;
}

int reqdec_decode(const void *payload, size_t len, const struct glmw_limits *limits, uint64_t features,
                  void *mem, size_t mem_bytes, struct reqdec_req *ret, struct reqdec_err *reterr) {
    struct dec d = {.base = payload, .limits = limits, .features = features, .state = ST_EMPTY};
    const struct tlv none = {0};
    size_t n[4];
    int r;

    /* Bulk payloads have a limit of their own; the 32-bit offsets of this file need the second. */
    uint64_t max = limits->max_payload_bytes > limits->max_bulk_bytes ? limits->max_payload_bytes
                                                                      : limits->max_bulk_bytes;
    if (len > max || len > UINT32_MAX - 2 * GLMW_ALIGN) {
        r = dec_fail(&d, &none, -EMSGSIZE,
                     "payload is larger than this connection may send: found %zu bytes, expected at most %llu", len,
                     (unsigned long long)max);
    } else if (((uintptr_t)payload | (uintptr_t)mem) % GLMW_ALIGN != 0 ||
               mem_bytes < reqdec_mem_bytes(limits, len)) {
        r = dec_fail(&d, &none, -ENOBUFS, "decoder was given too little memory");
    } else {
        array_sizes(limits, len, n);
        d.parts = mem; /* the struct with the largest alignment first; every size is a multiple of it */
        d.tools = (struct reqdec_str *)(d.parts + n[0]);
        d.stops = d.tools + n[1];
        d.msgs = (struct reqdec_msg *)(d.stops + n[2]);
        r = walk(&d, (uint32_t)len);
    }
    if (r < 0) {
        if (reterr)
            *reterr = d.err;
        return r;
    }
    d.out.msgs = d.msgs;
    d.out.parts = d.parts;
    d.out.tools = d.tools;
    d.out.stops = d.stops;
    *ret = d.out;
    return 0;
}
