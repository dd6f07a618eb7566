/* SPDX-License-Identifier: MIT */
/* The options of a request, value by value; of the decoder in reqdec.c, and bound by what is said there. */
#include <string.h>

#include "reqdec_impl.h"

/* NaN fails every comparison, so it is outside every range. */
static bool in_range(float v, float lo, float hi) {
    return v >= lo && v <= hi;
}

static int check_floats(struct dec *d, const struct tlv *t, const struct glmw_sampling *s) {
    const struct {
        const char *name;
        uint32_t bit;
        float value, lo, hi;
        const char *range;
    } of[] = {
        {"temperature", GLMW_HAS_TEMPERATURE, s->temperature, 0, 100, "0 to 100"},
        {"top_p", GLMW_HAS_TOP_P, s->top_p, 1e-9f, 1, "above 0, at most 1"},
        {"min_p", GLMW_HAS_MIN_P, s->min_p, 0, 1, "0 to 1"},
        {"repetition_penalty", GLMW_HAS_REPETITION, s->repetition_penalty, 1e-3f, 100, "0.001 to 100"},
        {"presence_penalty", GLMW_HAS_PRESENCE, s->presence_penalty, -100, 100, "-100 to 100"},
        {"frequency_penalty", GLMW_HAS_FREQUENCY, s->frequency_penalty, -100, 100, "-100 to 100"},
    };
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        uint32_t raw;
        memcpy(&raw, &of[i].value, sizeof(raw));
        if (!(s->has & of[i].bit) && raw != 0)
            return dec_fail(d, t, -EINVAL, "%s: found %g without its bit 0x%04x, expected 0", of[i].name,
                            (double)of[i].value, of[i].bit);
        if (s->has & of[i].bit && !in_range(of[i].value, of[i].lo, of[i].hi))
            return dec_fail(d, t, -EINVAL, "%s: found %g, expected %s", of[i].name, (double)of[i].value, of[i].range);
    }
    return 0;
}

static int check_numbers(struct dec *d, const struct tlv *t, const struct glmw_sampling *s) {
    const struct {
        const char *name;
        uint32_t bit;
        uint64_t value;
    } of[] = {
        {"top_k", GLMW_HAS_TOP_K, s->top_k},
        {"seed", GLMW_HAS_SEED, s->seed},
        {"alternatives", GLMW_HAS_N_ALTS, s->n_alts},
        {"min_tokens", GLMW_HAS_MIN_TOKENS, s->min_tokens},
        {"thinking_budget", GLMW_HAS_THINKING_BUDGET, s->thinking_budget},
        {"loop_guard", GLMW_HAS_LOOP_GUARD, s->loop_guard},
    };
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
        if (!(s->has & of[i].bit) && of[i].value)
            return dec_fail(d, t, -EINVAL, "%s: found %llu without its bit 0x%04x, expected 0", of[i].name,
                            (unsigned long long)of[i].value, of[i].bit);
    if (s->loop_guard > 1)
        return dec_fail(d, t, -EINVAL, "loop_guard: found %u, expected 0 or 1", s->loop_guard);
    return 0;
}

/* Reads an append-only struct: size bytes are announced first, at least known_bytes, the rest must be 0. */
static int read_growing(struct dec *d, const struct tlv *t, void *dst, uint32_t known_bytes,
                        uint32_t *ret_size) {
    uint32_t size;
    if (t->len < known_bytes)
        return dec_fail(d, t, -EBADMSG, "option struct is too short: found %u bytes, expected %u at least", t->len,
                        known_bytes);
    memcpy(&size, d->base + t->body, sizeof(size));
    if (size < known_bytes || size > t->len || size % 8 != 0)
        return dec_fail(d, t, -EBADMSG,
                        "option struct: its size word is impossible: found %u, expected a multiple of 8, %u to %u",
                        size, known_bytes, t->len);
    if (!dec_all_zero(d->base + t->body + known_bytes, size - known_bytes))
        return dec_fail(d, t, -EOPNOTSUPP,
                        "option struct of %u bytes sets fields that this daemon does not know, expected 0 "
                        "from byte %u on",
                        size, known_bytes);
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
        return dec_fail(d, t, -EBADMSG, "option struct: its size word is impossible: found %u, expected %u", size,
                        t->len);
    if ((s.has & ~GLMW_HAS_ALL) || (s.flags & ~GLMW_SAMP_FLAGS))
        return dec_fail(d, t, -EOPNOTSUPP,
                        "sets fields that this daemon does not know: found bits 0x%x and flags 0x%x, "
                        "expected some of 0x%x and 0x%x",
                        s.has, s.flags, GLMW_HAS_ALL, GLMW_SAMP_FLAGS);
    if ((r = check_floats(d, t, &s)) < 0 || (r = check_numbers(d, t, &s)) < 0)
        return r;
    const uint32_t most = d->limits->max_alts < GLMW_ALTS_MAX ? d->limits->max_alts : GLMW_ALTS_MAX;
    if (s.n_alts > most)
        return dec_fail(d, t, -EMSGSIZE, "alternatives: found %u, expected at most %u", s.n_alts, most);
    if (s.n_alts > 0 && !(d->features & GLMW_FEAT_ALTS))
        return dec_fail(d, t, -EOPNOTSUPP, "alternatives: found %u, expected 0, for they are not offered on this "
                        "connection", s.n_alts);
    if ((s.flags & GLMW_SAMP_LOGPROBS) && !(d->features & GLMW_FEAT_LOGPROBS))
        return dec_fail(d, t, -EOPNOTSUPP,
                        "logprobs: found 1, expected 0, for they are not offered on this connection");
    d->out.sampling = s;
    d->out.has_sampling = true;
    return 0;
}

/* The first byte that no word has; the length: none. */
static uint32_t odd_byte(struct reqdec_str s) {
    for (uint32_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '-' && c != '_')
            return i;
    }
    return s.len;
}

static int check_switch(struct dec *d, const struct tlv *t, const char *name, uint8_t v) {
    return v <= GLMW_OFF ? 0 : dec_fail(d, t, -EINVAL, "%s: found %u, expected 0 (unset), 1 (on) or 2 (off)", name,
                                        v);
}

static int chat(struct dec *d, const struct tlv *t) {
    struct glmw_tlv_chat c;
    uint32_t size;
    int r = read_growing(d, t, &c, sizeof(c), &size);
    if (r < 0)
        return r;
    if (c.word_len != t->len - size)
        return dec_fail(d, t, -EBADMSG, "effort: found a word of %u bytes, expected the %u that follow", c.word_len,
                        t->len - size);
    if (c.word_len > GLMW_EFFORT_WORD_MAX)
        return dec_fail(d, t, -EBADMSG, "effort: found a word of %u bytes, expected at most %u", c.word_len,
                        GLMW_EFFORT_WORD_MAX);
    if (c.zero != 0)
        return dec_fail(d, t, -EBADMSG, "found %u in a reserved word, expected 0", c.zero);
    if (c.effort > GLMW_EFFORT_WORD)
        return dec_fail(d, t, -EINVAL, "effort: found %u, expected 0 to %u", c.effort, GLMW_EFFORT_WORD);
    if ((r = check_switch(d, t, "thinking", c.thinking)) < 0 ||
        (r = check_switch(d, t, "clear_thinking", c.clear_thinking)) < 0 ||
        (r = check_switch(d, t, "generation_prompt", c.add_generation_prompt)) < 0)
        return r;
    struct reqdec_str word = dec_view(d, t, size, c.word_len);
    uint32_t odd = odd_byte(word);
    if (odd < word.len)
        return dec_fail(d, t, -EINVAL, "effort: found the byte 0x%02x in its word, expected letters, digits, - and _",
                        (unsigned char)word.ptr[odd]);
    if (c.effort == GLMW_EFFORT_WORD && word.len == 0)
        return dec_fail(d, t, -EINVAL, "effort: found %u without a word, expected a word of 1 to %u bytes", c.effort,
                        GLMW_EFFORT_WORD_MAX);
    d->out.chat = c;
    d->out.effort_word = word;
    d->out.has_chat = true;
    return 0;
}

static int choice(struct dec *d, const struct tlv *t) {
    struct glmw_tlv_choice c;
    if (t->len < sizeof(c))
        return dec_fail(d, t, -EBADMSG, "tool_choice is too short: found %u bytes, expected %zu at least", t->len,
                        sizeof(c));
    memcpy(&c, d->base + t->body, sizeof(c));
    struct reqdec_str name = dec_view(d, t, sizeof(c), t->len - (uint32_t)sizeof(c));
    if (c.mode > GLMW_CHOICE_NAMED)
        return dec_fail(d, t, -EINVAL,
                        "tool_choice: found %u, expected 0 (auto), 1 (none), 2 (required) or 3 (named)", c.mode);
    if (c.flags & ~GLMW_CHOICE_ONE_CALL)
        return dec_fail(d, t, -EINVAL, "tool_choice: found flags 0x%x, expected 0 or 1 (one call)", c.flags);
    if ((c.mode == GLMW_CHOICE_NAMED) != (name.len > 0) || name.len > GLMW_TOOL_NAME_MAX)
        return dec_fail(d, t, -EBADMSG, "tool_name: found %u bytes with tool_choice %u, expected %s", name.len,
                        c.mode, c.mode == GLMW_CHOICE_NAMED ? "1 to 256" : "none, a name goes with 3 alone");
    d->out.choice = c;
    d->out.choice_name = name;
    d->out.has_choice = true;
    return dec_utf8(d, t, name);
}

static int schema(struct dec *d, const struct tlv *t) {
    struct glmw_tlv_schema c;
    if (!(d->features & GLMW_FEAT_SCHEMA))
        return dec_fail(d, t, -EOPNOTSUPP, "schema: constrained output is not offered on this connection");
    if (t->len < sizeof(c))
        return dec_fail(d, t, -EBADMSG, "schema is too short: found %u bytes, expected %zu at least", t->len,
                        sizeof(c));
    memcpy(&c, d->base + t->body, sizeof(c));
    struct reqdec_str text = dec_view(d, t, sizeof(c), t->len - (uint32_t)sizeof(c));
    if (c.kind != GLMW_SCHEMA_JSON_OBJECT && c.kind != GLMW_SCHEMA_JSON_SCHEMA)
        return dec_fail(d, t, -EBADMSG, "schema: found kind %u, expected 1 (json_object) or 2 (a schema)", c.kind);
    if (c.zero != 0)
        return dec_fail(d, t, -EBADMSG, "schema: found %u in its reserved word, expected 0", c.zero);
    if ((c.kind == GLMW_SCHEMA_JSON_SCHEMA) != (text.len > 0))
        return dec_fail(d, t, -EBADMSG, "%s: found %u bytes of text, expected %s",
                        c.kind == GLMW_SCHEMA_JSON_SCHEMA ? "schema" : "json_object", text.len,
                        c.kind == GLMW_SCHEMA_JSON_SCHEMA ? "a schema" : "none");
    d->out.schema_kind = c.kind;
    d->out.schema = text;
    d->out.has_schema = true;
    return dec_utf8(d, t, text);
}

static int logit_bias(struct dec *d, const struct tlv *t) {
    if (t->len == 0 || t->len % sizeof(struct glmw_bias) != 0)
        return dec_fail(d, t, -EBADMSG,
                        "logit_bias is empty or not a whole number of pairs: found %u bytes, expected a "
                        "multiple of %zu",
                        t->len, sizeof(struct glmw_bias));
    uint32_t n = t->len / (uint32_t)sizeof(struct glmw_bias);
    if (n > d->limits->max_bias)
        return dec_fail(d, t, -EMSGSIZE, "logit_bias: found %u, expected at most %u", n, d->limits->max_bias);
    const struct glmw_bias *b = (const struct glmw_bias *)(const void *)(d->base + t->body);
    for (uint32_t i = 0; i < n; i++) {
        bool known = b[i].token < d->limits->vocab_tokens;
        if (!known || !in_range(b[i].bias, -1000, 1000)) {
            if (known)
                dec_fail(d, t, -EINVAL, "logit_bias: found %g for token %u, expected -1000 to 1000",
                         (double)b[i].bias, b[i].token);
            else
                dec_fail(d, t, -EINVAL,
                         "logit_bias: found token %u, expected at most %lld, the last of the vocabulary", b[i].token,
                         (long long)d->limits->vocab_tokens - 1);
            d->err.offset = t->body + i * (uint32_t)sizeof(struct glmw_bias);
            return -EINVAL;
        }
    }
    d->out.bias = b;
    d->out.n_bias = n;
    return 0;
}

static int label(struct dec *d, const struct tlv *t) {
    struct reqdec_str s = dec_view(d, t, 0, t->len);
    if (s.len > GLMW_LABEL_MAX)
        return dec_fail(d, t, -EMSGSIZE, "label: found %u bytes, expected at most %u", s.len, GLMW_LABEL_MAX);
    for (uint32_t i = 0; i < s.len; i++) {
        if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == 0x7f)
            return dec_fail(d, t, -EINVAL, "label: found the control character 0x%02x, expected none",
                            (unsigned char)s.ptr[i]);
    }
    d->out.label = s;
    return dec_utf8(d, t, s);
}

static int text_list(struct dec *d, const struct tlv *t, struct reqdec_str *list, uint32_t *n, uint32_t max,
                     const char *name) {
    if (*n >= max)
        return dec_fail(d, t, -EMSGSIZE, "%s: found more than %u, the most that this connection may send", name, max);
    if (t->len == 0)
        return dec_fail(d, t, -EBADMSG, "%s: found an empty text, expected a byte at least", name);
    list[*n] = dec_view(d, t, 0, t->len);
    return dec_utf8(d, t, list[(*n)++]);
}

/* Of those that may come once. */
static const char *option_name(uint16_t type) {
    switch (type) {
    case GLMW_TLV_TOOL_CHOICE:
        return "tool_choice";
    case GLMW_TLV_SAMPLING:
        return "sampling settings";
    case GLMW_TLV_SCHEMA:
        return "schema";
    case GLMW_TLV_LOGIT_BIAS:
        return "logit_bias";
    case GLMW_TLV_LABEL:
        return "label";
    default: /* GLMW_TLV_CHAT */
        return "chat options";
    }
}

int dec_option(struct dec *d, const struct tlv *t) {
    if (d->state >= ST_MSG)
        return dec_fail(d, t, -EBADMSG, "option inside an open message");
    if (t->type == GLMW_TLV_TOOL_DEF)
        return text_list(d, t, d->tools, &d->out.n_tools, d->limits->max_tools, "tool");
    if (t->type == GLMW_TLV_STOP) {
        if (t->len > d->limits->max_stop_bytes)
            return dec_fail(d, t, -EMSGSIZE, "stop: found %u bytes, expected at most %u", t->len,
                            d->limits->max_stop_bytes);
        return text_list(d, t, d->stops, &d->out.n_stops, d->limits->max_stops, "stop");
    }
    if (d->seen & (1u << t->type))
        return dec_fail(d, t, -EBADMSG, "%s: found a second time, expected once", option_name(t->type));
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
