/* SPDX-License-Identifier: MIT */
/* JSON lines; see ctl_json.h. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ctl_json.h"

#define NAME(table, i) ((i) < sizeof(table) / sizeof((table)[0]) && (table)[i] ? (table)[i] : "unknown")

const char *ctl_reason_name(uint32_t reason) {
    static const char *const names[] = {"none",       "stop",      "stop string", "length", "context",
                                        "tool calls", "cancelled", "deadline",    "error",  "loop"};
    return NAME(names, reason);
}

const char *ctl_state_name(uint32_t state) {
    static const char *const names[] = {NULL, "loading", "ready", "draining", "failed"};
    return NAME(names, state);
}

static const char *channel_name(uint32_t channel) {
    static const char *const names[] = {"content", "reasoning", "tool_name", "tool_arguments"};
    return NAME(names, channel);
}

static const char *phase_name(uint32_t phase) {
    static const char *const names[] = {
        [GLMD_PHASE_QUEUED] = "queued",   [GLMD_PHASE_PREPARING] = "preparing",
        [GLMD_PHASE_PREFILL] = "prefill", [GLMD_PHASE_TOOL_BEGIN] = "begin",
        [GLMD_PHASE_TOOL_END] = "end",    [GLMD_PHASE_TOOL_CUT] = "cut"};
    return NAME(names, phase);
}

static const char *notice_name(uint32_t code) {
    switch (code) {
    case GLMD_NOTICE_STATE:
        return "state";
    case GLMD_NOTICE_LIMITS:
        return "limits";
    case GLMD_NOTICE_MODEL:
        return "model";
    case GLMD_NOTICE_HANG:
        return "hang";
    case GLMD_NOTICE_ALIVE:
        return "alive";
    default:
        return "unknown";
    }
}

/* JSON has no NaN and no infinities. */
static void number(struct ctl_buf *b, double v) {
    if (isfinite(v))
        ctl_buf_fmt(b, "%.9g", v);
    else
        ctl_buf_str(b, "null");
}

static void text_field(struct ctl_buf *b, const struct glmd_event *e) {
    ctl_buf_fmt(b, ",\"channel\":\"%s\",\"text\":", channel_name(e->channel));
    ctl_text_json(b, e->text, e->text_len);
}

static void token_fields(struct ctl_buf *b, const struct glmd_event *e) {
    ctl_buf_fmt(b, ",\"token\":%" PRIu32, e->token);
    text_field(b, e);
    if (e->flags & GLMD_EVF_FORCED)
        ctl_buf_str(b, ",\"forced\":true");
    if (!isnan(e->logprob)) {
        ctl_buf_str(b, ",\"logprob\":");
        number(b, e->logprob);
    }
    if (!e->n_alts)
        return;
    ctl_buf_str(b, ",\"alternatives\":[");
    for (uint32_t i = 0; i < e->n_alts; i++) {
        ctl_buf_fmt(b, "%s{\"token\":%" PRIu32 ",\"logprob\":", i ? "," : "", e->alts[i].token);
        number(b, e->alts[i].logprob);
        ctl_buf_str(b, "}");
    }
    ctl_buf_str(b, "]");
}

void ctl_json_event(struct ctl_buf *b, const struct glmd_event *e) {
    static const char *const names[] = {NULL,   "accepted", "progress", "token",  "text",
                                        "tool", "end",      "error",    "notice", "ids"};
    ctl_buf_fmt(b, "{\"event\":\"%s\"", NAME(names, e->type));
    switch (e->type) {
    case GLMD_EV_ACCEPTED:
        if (e->stream_id) /* text: the numbers of many JSON readers end at 2^53 */
            ctl_buf_fmt(b, ",\"stream_id\":\"%016" PRIx64 "\"", e->stream_id);
        break;
    case GLMD_EV_PROGRESS:
        ctl_buf_fmt(b,
                    ",\"phase\":\"%s\",\"done\":%" PRIu32 ",\"total\":%" PRIu32 ",\"cached\":%" PRIu32
                    ",\"queue_position\":%" PRIu32 ",\"wait_ms\":%" PRIu32,
                    phase_name(e->phase), e->done, e->total, e->cached, e->queue_position, e->wait_ms);
        break;
    case GLMD_EV_TOKEN:
        token_fields(b, e);
        break;
    case GLMD_EV_TEXT:
        text_field(b, e);
        break;
    case GLMD_EV_TOOL:
        ctl_buf_fmt(b, ",\"phase\":\"%s\",\"index\":%" PRIu32, phase_name(e->phase), e->index);
        break;
    case GLMD_EV_ERROR:
        ctl_buf_fmt(b, ",\"status\":%d,\"text\":", e->status);
        ctl_text_json(b, e->text, e->text_len);
        break;
    case GLMD_EV_NOTICE:
        ctl_buf_fmt(b, ",\"notice\":\"%s\"", notice_name(e->reason));
        break;
    case GLMD_EV_END:
        ctl_buf_fmt(b, ",\"status\":%d,\"reason\":\"%s\",\"detail\":%" PRIu32, e->status,
                    ctl_reason_name(e->reason), e->detail);
        if (e->token != GLMD_NO_TOKEN)
            ctl_buf_fmt(b, ",\"token\":%" PRIu32, e->token);
        if (e->flags & GLMD_EVF_FORCED)
            ctl_buf_str(b, ",\"reasoning_closed\":true");
        if (e->flags & GLMD_EVF_LOOP)
            ctl_buf_str(b, ",\"loop\":true");
        break;
    default:
        break;
    }
    if (e->tag)
        ctl_buf_fmt(b, ",\"seq\":%" PRIu32, e->seq);
    ctl_buf_str(b, "}\n");
}

void ctl_json_usage(struct ctl_buf *b, const struct glmd_usage *u, const struct ctl_times *t, int status,
                    uint32_t reason) {
    ctl_buf_fmt(b,
                "{\"event\":\"usage\",\"status\":%d,\"reason\":\"%s\",\"prompt_tokens\":%" PRIu32
                ",\"cached_tokens\":%" PRIu32 ",\"completion_tokens\":%" PRIu32
                ",\"reasoning_tokens\":%" PRIu32,
                status, ctl_reason_name(reason), u->prompt_tokens, u->cached_tokens, u->completion_tokens,
                u->reasoning_tokens);
    ctl_buf_fmt(b,
                ",\"drafted_tokens\":%" PRIu32 ",\"accepted_tokens\":%" PRIu32 ",\"queued_ns\":%" PRIu64
                ",\"prefill_ns\":%" PRIu64 ",\"decode_ns\":%" PRIu64 ",\"longest_gap_ns\":%" PRIu64
                ",\"tier_tokens\":%" PRIu32,
                u->drafted_tokens, u->accepted_tokens, u->queued_ns, u->prefill_ns, u->decode_ns, u->longest_gap_ns,
                u->tier_tokens);
    ctl_buf_str(b, ",\"first_token_ms\":");
    number(b, ctl_first_token_ms(t));
    ctl_buf_str(b, ",\"tokens_per_second\":");
    number(b, ctl_tokens_per_second(t));
    ctl_buf_str(b, "}\n");
}
