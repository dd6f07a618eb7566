/* SPDX-License-Identifier: MIT */
/* Turns the bytes of a payload into bounded views. Runs on the io thread over a private copy of what the
 * client wrote; pure, allocates nothing, and every limit is checked before anything is stored. */
#include "reqdec.h"

#include <errno.h>
#include <string.h>

#include "utf8chk.h"

enum state { ST_EMPTY, ST_TOKENS, ST_CHAT, ST_MSG, ST_PARTS, ST_RESULT };

struct dec {
    const uint8_t *base;
    const struct glmw_limits *limits;
    uint64_t features;
    enum state state;
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

static int fail(struct dec *d, const struct tlv *t, int code, const char *reason) {
    d->err = (struct reqdec_err){.code = code, .offset = t->off, .type = t->type, .reason = reason};
    return code;
}

static int check_utf8(struct dec *d, const struct tlv *t, struct reqdec_str s) {
    size_t n = utf8chk_prefix(s.ptr, s.len);
    if (n == s.len)
        return 0;
    fail(d, t, -EILSEQ, "text is not valid UTF-8");
    d->err.offset = (uint32_t)((const uint8_t *)s.ptr - d->base + (ptrdiff_t)n);
    return -EILSEQ;
}

/* Bytes [skip, skip + len) of the body; the caller has checked that they are inside. */
static struct reqdec_str view(const struct dec *d, const struct tlv *t, uint32_t skip, uint32_t len) {
    return (struct reqdec_str){.ptr = (const char *)d->base + t->body + skip, .len = len};
}

static bool all_zero(const uint8_t *p, size_t len) {
    uint8_t any = 0;
    for (size_t i = 0; i < len; i++)
        any |= p[i];
    return any == 0;
}

/* ---- messages and parts -------------------------------------------------------------------------------- */

static int msg_begin(struct dec *d, const struct tlv *t) {
    struct glmw_tlv_msg m;
    if (d->state != ST_EMPTY && d->state != ST_CHAT)
        return fail(d, t, -EBADMSG, d->state == ST_TOKENS ? "a message follows a raw token prompt"
                                                          : "MSG_BEGIN inside an open message");
    if (t->len != sizeof(m))
        return fail(d, t, -EBADMSG, "MSG_BEGIN has the wrong length");
    memcpy(&m, d->base + t->body, sizeof(m));
    if (m.role < GLMW_ROLE_SYSTEM || m.role > GLMW_ROLE_TOOL || m.zero != 0)
        return fail(d, t, -EBADMSG, "MSG_BEGIN has an unknown role or a reserved word that is not 0");
    if (d->out.n_msgs >= d->limits->max_messages)
        return fail(d, t, -EMSGSIZE, "more messages than this connection may send");
    d->msgs[d->out.n_msgs++] = (struct reqdec_msg){.role = m.role, .first_part = d->out.n_parts};
    d->has_reasoning = false;
    d->state = ST_MSG;
    return 0;
}

static int msg_end(struct dec *d, const struct tlv *t) {
    if (d->state < ST_MSG)
        return fail(d, t, -EBADMSG, "MSG_END without MSG_BEGIN");
    if (t->len != 0)
        return fail(d, t, -EBADMSG, "MSG_END is not empty");
    struct reqdec_msg *m = &d->msgs[d->out.n_msgs - 1];
    if (m->role == GLMW_ROLE_TOOL && d->state != ST_RESULT)
        return fail(d, t, -EBADMSG, "message of role tool without a tool result");
    m->n_parts = d->out.n_parts - m->first_part;
    d->state = ST_CHAT;
    return 0;
}

static int image_part(struct dec *d, const struct tlv *t, struct reqdec_part *p) {
    struct glmw_tlv_image i;
    if (!(d->features & GLMW_FEAT_IMAGES))
        return fail(d, t, -EOPNOTSUPP, "pictures are not offered on this connection");
    if (t->len < sizeof(i))
        return fail(d, t, -EBADMSG, "picture part is too short");
    memcpy(&i, d->base + t->body, sizeof(i));
    uint32_t rest = t->len - (uint32_t)sizeof(i);
    bool raw = i.format == GLMW_IMAGE_RGB8;
    bool bulk = i.source == GLMW_IMAGE_BULK;
    if (i.format < GLMW_IMAGE_PNG || i.format > GLMW_IMAGE_RGB8 || (i.source != GLMW_IMAGE_INLINE && !bulk) ||
        (raw && !bulk) || raw != (i.width != 0) || raw != (i.height != 0) || (!bulk && i.bulk_id != 0) ||
        bulk != (rest == 0))
        return fail(d, t, -EBADMSG, "picture part is malformed");
    if (bulk && !(d->features & GLMW_FEAT_BULK))
        return fail(d, t, -EOPNOTSUPP, "bulk objects are not offered on this connection");
    p->image_source = i.source;
    p->image_format = i.format;
    p->image_width = i.width;
    p->image_height = i.height;
    p->image_bulk_id = i.bulk_id;
    p->text = view(d, t, sizeof(i), rest);
    return 0;
}

static int call_part(struct dec *d, const struct tlv *t, struct reqdec_part *p) {
    struct glmw_tlv_call c;
    if (t->len < sizeof(c))
        return fail(d, t, -EBADMSG, "tool call is too short");
    memcpy(&c, d->base + t->body, sizeof(c));
    if ((uint64_t)c.id_len + c.name_len + c.args_len != t->len - sizeof(c) || c.zero != 0)
        return fail(d, t, -EBADMSG, "tool call: its lengths do not add up, or a reserved word is not 0");
    if (c.id_len > GLMW_CALL_ID_MAX || c.name_len == 0 || c.name_len > GLMW_TOOL_NAME_MAX)
        return fail(d, t, -EBADMSG, "tool call: the id is longer than 256 bytes or the name not 1 to 256");
    p->id = view(d, t, sizeof(c), c.id_len);
    p->name = view(d, t, (uint32_t)sizeof(c) + c.id_len, c.name_len);
    p->text = view(d, t, (uint32_t)sizeof(c) + c.id_len + c.name_len, c.args_len);
    int r = check_utf8(d, t, p->id);
    if (r == 0)
        r = check_utf8(d, t, p->name);
    return r < 0 ? r : check_utf8(d, t, p->text);
}

static int result_part(struct dec *d, const struct tlv *t, struct reqdec_part *p) {
    struct glmw_tlv_result c;
    if (t->len < sizeof(c))
        return fail(d, t, -EBADMSG, "tool result is too short");
    memcpy(&c, d->base + t->body, sizeof(c));
    if ((uint64_t)c.id_len + c.text_len != t->len - sizeof(c) || c.id_len > GLMW_CALL_ID_MAX)
        return fail(d, t, -EBADMSG, "tool result: lengths do not add up or the id is longer than 256 bytes");
    p->id = view(d, t, sizeof(c), c.id_len);
    p->text = view(d, t, (uint32_t)sizeof(c) + c.id_len, c.text_len);
    int r = check_utf8(d, t, p->id);
    return r < 0 ? r : check_utf8(d, t, p->text);
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

static int part(struct dec *d, const struct tlv *t) {
    if (d->state < ST_MSG)
        return fail(d, t, -EBADMSG, "message part outside a message");
    uint32_t role = d->msgs[d->out.n_msgs - 1].role;
    if (!role_allows(role, t->type))
        return fail(d, t, -EBADMSG, "this role cannot have a part of this type");
    if (role == GLMW_ROLE_TOOL && t->type != GLMW_TLV_PART_TOOL_RESULT && d->state != ST_RESULT)
        return fail(d, t, -EBADMSG, "part of role tool in front of the tool result it belongs to");
    if (d->out.n_parts >= d->limits->max_parts)
        return fail(d, t, -EMSGSIZE, "more message parts than this connection may send");

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
                return fail(d, t, -EBADMSG, "two reasoning parts in one message");
            d->has_reasoning = true;
        }
        p->text = view(d, t, 0, t->len);
        r = check_utf8(d, t, p->text);
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
        return fail(d, t, -EBADMSG, "a raw token prompt follows another prompt");
    if (t->len == 0 || t->len % 4 != 0)
        return fail(d, t, -EBADMSG, "raw token prompt is empty or not a whole number of ids");
    const uint32_t *ids = (const uint32_t *)(const void *)(d->base + t->body); /* TLVs are aligned to 8 */
    for (uint32_t i = 0; i < t->len / 4; i++) {
        if (ids[i] >= d->limits->vocab_tokens) {
            fail(d, t, -EINVAL, "raw token prompt has an id outside the vocabulary");
            d->err.offset = t->body + 4 * i;
            return -EINVAL;
        }
    }
    d->out.tokens = ids;
    d->out.n_tokens = t->len / 4;
    d->state = ST_TOKENS;
    return 0;
}

/* ---- options ------------------------------------------------------------------------------------------- */

/* NaN fails every comparison, so it is outside every range. */
static bool in_range(float v, float lo, float hi) {
    return v >= lo && v <= hi;
}

static const char *check_sampling(const struct glmw_sampling *s) {
    const struct {
        uint32_t bit;
        float value;
        float lo, hi;
        const char *reason;
    } floats[] = {
        {GLMW_HAS_TEMPERATURE, s->temperature, 0, 100, "temperature is not a number from 0 to 100"},
        {GLMW_HAS_TOP_P, s->top_p, 1e-9f, 1, "top_p is not a number above 0 and at most 1"},
        {GLMW_HAS_MIN_P, s->min_p, 0, 1, "min_p is not a number from 0 to 1"},
        {GLMW_HAS_REPETITION, s->repetition_penalty, 1e-3f, 100,
         "repetition_penalty is not a number from 0.001 to 100"},
        {GLMW_HAS_PRESENCE, s->presence_penalty, -100, 100,
         "presence_penalty is not a number from -100 to 100"},
        {GLMW_HAS_FREQUENCY, s->frequency_penalty, -100, 100,
         "frequency_penalty is not a number from -100 to 100"},
    };
    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++) {
        uint32_t raw;
        memcpy(&raw, &floats[i].value, sizeof(raw));
        if (s->has & floats[i].bit ? !in_range(floats[i].value, floats[i].lo, floats[i].hi) : raw != 0)
            return floats[i].reason;
    }
    if ((!(s->has & GLMW_HAS_TOP_K) && s->top_k) || (!(s->has & GLMW_HAS_SEED) && s->seed) ||
        (!(s->has & GLMW_HAS_N_ALTS) && s->n_alts) || (!(s->has & GLMW_HAS_MIN_TOKENS) && s->min_tokens) ||
        (!(s->has & GLMW_HAS_THINKING_BUDGET) && s->thinking_budget) ||
        (!(s->has & GLMW_HAS_LOOP_GUARD) && s->loop_guard))
        return "a sampling field is set without its bit";
    if (s->loop_guard > 1)
        return "loop_guard is neither 0 nor 1";
    return NULL;
}

/* Reads an append-only struct: size bytes are announced first, at least known_bytes, the rest must be 0. */
static int read_growing(struct dec *d, const struct tlv *t, void *dst, uint32_t known_bytes,
                        uint32_t *ret_size) {
    uint32_t size;
    if (t->len < known_bytes)
        return fail(d, t, -EBADMSG, "option struct is too short");
    memcpy(&size, d->base + t->body, sizeof(size));
    if (size < known_bytes || size > t->len || size % 8 != 0)
        return fail(d, t, -EBADMSG, "option struct: its size word is impossible");
    if (!all_zero(d->base + t->body + known_bytes, size - known_bytes))
        return fail(d, t, -EOPNOTSUPP, "option struct sets fields that this daemon does not know");
    memcpy(dst, d->base + t->body, known_bytes);
    *ret_size = size;
    return 0;
}

static int sampling(struct dec *d, const struct tlv *t) {
    struct glmw_sampling s;
    uint32_t size;
    int r = read_growing(d, t, &s, sizeof(s), &size);
    if (r < 0)
        return r;
    if (size != t->len)
        return fail(d, t, -EBADMSG, "SAMPLING: its size does not match");
    if ((s.has & ~GLMW_HAS_ALL) || (s.flags & ~GLMW_SAMP_FLAGS))
        return fail(d, t, -EOPNOTSUPP, "SAMPLING sets fields that this daemon does not know");
    const char *reason = check_sampling(&s);
    if (reason)
        return fail(d, t, -EINVAL, reason);
    if (s.n_alts > GLMW_ALTS_MAX || s.n_alts > d->limits->max_alts)
        return fail(d, t, -EMSGSIZE, "more alternatives than this connection may ask for");
    if (s.n_alts > 0 && !(d->features & GLMW_FEAT_ALTS))
        return fail(d, t, -EOPNOTSUPP, "alternatives are not offered on this connection");
    if ((s.flags & GLMW_SAMP_LOGPROBS) && !(d->features & GLMW_FEAT_LOGPROBS))
        return fail(d, t, -EOPNOTSUPP, "logprobs are not offered on this connection");
    d->out.sampling = s;
    d->out.has_sampling = true;
    return 0;
}

static bool is_word(struct reqdec_str s) {
    for (uint32_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '-' && c != '_')
            return false;
    }
    return true;
}

static int chat(struct dec *d, const struct tlv *t) {
    struct glmw_tlv_chat c;
    uint32_t size;
    int r = read_growing(d, t, &c, sizeof(c), &size);
    if (r < 0)
        return r;
    if (c.word_len != t->len - size || c.word_len > GLMW_EFFORT_WORD_MAX || c.zero != 0)
        return fail(d, t, -EBADMSG, "CHAT: its lengths do not add up, or a reserved word is not 0");
    if (c.effort > GLMW_EFFORT_WORD || c.thinking > GLMW_OFF || c.clear_thinking > GLMW_OFF ||
        c.add_generation_prompt > GLMW_OFF)
        return fail(d, t, -EINVAL, "CHAT: a value of effort, thinking or another switch is unknown");
    struct reqdec_str word = view(d, t, size, c.word_len);
    if (!is_word(word) || (c.effort == GLMW_EFFORT_WORD && word.len == 0))
        return fail(d, t, -EINVAL, "CHAT: the effort word is missing or is not one plain word");
    d->out.chat = c;
    d->out.effort_word = word;
    d->out.has_chat = true;
    return 0;
}

static int choice(struct dec *d, const struct tlv *t) {
    struct glmw_tlv_choice c;
    if (t->len < sizeof(c))
        return fail(d, t, -EBADMSG, "TOOL_CHOICE is too short");
    memcpy(&c, d->base + t->body, sizeof(c));
    struct reqdec_str name = view(d, t, sizeof(c), t->len - (uint32_t)sizeof(c));
    if (c.mode > GLMW_CHOICE_NAMED || (c.flags & ~GLMW_CHOICE_ONE_CALL))
        return fail(d, t, -EINVAL, "TOOL_CHOICE: mode or flags are unknown");
    if ((c.mode == GLMW_CHOICE_NAMED) != (name.len > 0) || name.len > GLMW_TOOL_NAME_MAX)
        return fail(d, t, -EBADMSG, "TOOL_CHOICE: a name of 1 to 256 bytes goes with mode NAMED only");
    d->out.choice = c;
    d->out.choice_name = name;
    d->out.has_choice = true;
    return check_utf8(d, t, name);
}

static int schema(struct dec *d, const struct tlv *t) {
    struct glmw_tlv_schema c;
    if (!(d->features & GLMW_FEAT_SCHEMA))
        return fail(d, t, -EOPNOTSUPP, "constrained output is not offered on this connection");
    if (t->len < sizeof(c))
        return fail(d, t, -EBADMSG, "SCHEMA is too short");
    memcpy(&c, d->base + t->body, sizeof(c));
    struct reqdec_str text = view(d, t, sizeof(c), t->len - (uint32_t)sizeof(c));
    if ((c.kind != GLMW_SCHEMA_JSON_OBJECT && c.kind != GLMW_SCHEMA_JSON_SCHEMA) || c.zero != 0 ||
        (c.kind == GLMW_SCHEMA_JSON_SCHEMA) != (text.len > 0))
        return fail(d, t, -EBADMSG, "SCHEMA: kind, text or reserved word is malformed");
    d->out.schema_kind = c.kind;
    d->out.schema = text;
    d->out.has_schema = true;
    return check_utf8(d, t, text);
}

static int logit_bias(struct dec *d, const struct tlv *t) {
    if (t->len == 0 || t->len % sizeof(struct glmw_bias) != 0)
        return fail(d, t, -EBADMSG, "LOGIT_BIAS is empty or not a whole number of pairs");
    uint32_t n = t->len / (uint32_t)sizeof(struct glmw_bias);
    if (n > d->limits->max_bias)
        return fail(d, t, -EMSGSIZE, "more logit biases than this connection may send");
    const struct glmw_bias *b = (const struct glmw_bias *)(const void *)(d->base + t->body);
    for (uint32_t i = 0; i < n; i++) {
        if (b[i].token >= d->limits->vocab_tokens || !in_range(b[i].bias, -1000, 1000)) {
            fail(d, t, -EINVAL, "LOGIT_BIAS: an id outside the vocabulary or a bias not -1000 to 1000");
            d->err.offset = t->body + i * (uint32_t)sizeof(struct glmw_bias);
            return -EINVAL;
        }
    }
    d->out.bias = b;
    d->out.n_bias = n;
    return 0;
}

static int label(struct dec *d, const struct tlv *t) {
    struct reqdec_str s = view(d, t, 0, t->len);
    if (s.len > GLMW_LABEL_MAX)
        return fail(d, t, -EMSGSIZE, "LABEL is longer than 64 bytes");
    for (uint32_t i = 0; i < s.len; i++) {
        if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == 0x7f)
            return fail(d, t, -EINVAL, "LABEL has control characters");
    }
    d->out.label = s;
    return check_utf8(d, t, s);
}

static int text_list(struct dec *d, const struct tlv *t, struct reqdec_str *list, uint32_t *n, uint32_t max,
                     const char *reason) {
    if (*n >= max)
        return fail(d, t, -EMSGSIZE, reason);
    if (t->len == 0)
        return fail(d, t, -EBADMSG, "a stop string or tool definition is empty");
    list[*n] = view(d, t, 0, t->len);
    return check_utf8(d, t, list[(*n)++]);
}

static int option(struct dec *d, const struct tlv *t) {
    if (d->state >= ST_MSG)
        return fail(d, t, -EBADMSG, "option inside an open message");
    if (t->type == GLMW_TLV_TOOL_DEF)
        return text_list(d, t, d->tools, &d->out.n_tools, d->limits->max_tools,
                         "more tools than this connection may send");
    if (t->type == GLMW_TLV_STOP) {
        if (t->len > d->limits->max_stop_bytes)
            return fail(d, t, -EMSGSIZE, "stop string is longer than this connection may send");
        return text_list(d, t, d->stops, &d->out.n_stops, d->limits->max_stops,
                         "more stop strings than this connection may send");
    }
    if (d->seen & (1u << t->type))
        return fail(d, t, -EBADMSG, "an option that may come once is repeated");
    d->seen |= 1u << t->type;
    switch (t->type) {
    case GLMW_TLV_TOOL_CHOICE:
        return choice(d, t);
    case GLMW_TLV_SAMPLING:
        return sampling(d, t);
    case GLMW_TLV_SCHEMA:
        return schema(d, t);
    case GLMW_TLV_LOGIT_BIAS:
        return logit_bias(d, t);
    case GLMW_TLV_LABEL:
        return label(d, t);
    default: /* GLMW_TLV_CHAT, see dispatch() */
        return chat(d, t);
    }
}

/* ---- the pass ------------------------------------------------------------------------------------------ */

static int dispatch(struct dec *d, const struct tlv *t) {
    if (t->flags & ~GLMW_TLVF_IGNORABLE)
        return fail(d, t, -EBADMSG, "unknown TLV flags");
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
            return option(d, t);
        return t->flags & GLMW_TLVF_IGNORABLE ? 0 : fail(d, t, -EBADMSG, "unknown TLV type");
    }
}

static int walk(struct dec *d, uint32_t len) {
    struct tlv t = {0};
    uint32_t off = 0;
    while (off < len) {
        struct glmw_tlv h;
        t = (struct tlv){.off = off};
        if (len - off < sizeof(h))
            return fail(d, &t, -EBADMSG, "payload ends inside a TLV header");
        memcpy(&h, d->base + off, sizeof(h));
        t = (struct tlv){h.type, h.flags, off, off + (uint32_t)sizeof(h), h.len};
        uint32_t room = len - t.body;
        if (h.len > room && !FAULT(reqdec_length_unchecked))
            return fail(d, &t, -EBADMSG, "TLV is longer than the payload");
        uint32_t pad = (uint32_t)(0u - h.len) & (GLMW_ALIGN - 1);
        if (pad > room - h.len || !all_zero(d->base + t.body + h.len, pad))
            return fail(d, &t, -EBADMSG, "TLV is not padded to 8 bytes with zeros");
        int r = dispatch(d, &t);
        if (r < 0)
            return r;
        off = t.body + h.len + pad;
    }
    t = (struct tlv){.off = len};
    if (d->state == ST_EMPTY)
        return fail(d, &t, -EBADMSG, "request has neither a message nor a raw token prompt");
    if (d->state >= ST_MSG && !FAULT(reqdec_open_message))
        return fail(d, &t, -EBADMSG, "payload ends inside a message");
    if (d->out.has_choice && d->out.choice.mode >= GLMW_CHOICE_REQUIRED && d->out.n_tools == 0)
        return fail(d, &t, -EBADMSG, "TOOL_CHOICE demands a tool call but no tool is defined");
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
        r = fail(&d, &none, -EMSGSIZE, "payload is larger than this connection may send");
    } else if (((uintptr_t)payload | (uintptr_t)mem) % GLMW_ALIGN != 0 ||
               mem_bytes < reqdec_mem_bytes(limits, len)) {
        r = fail(&d, &none, -ENOBUFS, "decoder was given too little memory");
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
