/* SPDX-License-Identifier: MIT */
/* Pieces: what a stream has to say, in order, in its outbox, from where estream.c moves it into the ring. A
 * piece is a header, its alternatives and its text, padded to 8 bytes. Called by whoever holds the
 * connection's right; memory is fixed. */
#include <math.h>
#include <string.h>

#include "emit_impl.h"

static size_t align8(size_t n) {
    return (n + 7) & ~(size_t)7;
}

/* Pieces begin at multiples of eight. */
static struct piece *piece_at(const struct emit_stream *s, size_t at) {
    return (struct piece *)(void *)(s->outbox + at);
}

/* Makes room for n bytes at the end of the outbox by moving what waits to its front. */
static bool make_room(struct emit_stream *s, size_t n) {
    size_t cap = s->e->opt.outbox_bytes;

    if (cap - s->out_tail >= n)
        return true;
    if (s->out_head) {
        memmove(s->outbox, s->outbox + s->out_head, s->out_tail - s->out_head);
        if (s->open_token)
            s->open_at -= s->out_head;
        s->last_at -= s->out_head;
        s->out_tail -= s->out_head;
        s->out_head = 0;
    }
    return cap - s->out_tail >= n;
}

bool epiece_put(struct emit_stream *s, const struct piece *p, const struct stream_alt *alts,
                const char *text) {
    size_t alt_bytes = p->n_alts * sizeof *alts, total = align8(sizeof *p + alt_bytes + p->len);
    uint8_t *at;

    if (s->given_up)
        return false;
    if (s->overflow || !make_room(s, total)) {
        s->overflow = true;
        return false;
    }
    at = s->outbox + s->out_tail;
    memcpy(at, p, sizeof *p);
    if (alt_bytes)
        memcpy(at + sizeof *p, alts, alt_bytes);
    if (p->len)
        memcpy(at + sizeof *p + alt_bytes, text, p->len);
    s->last_at = s->out_tail;
    s->out_tail += (uint32_t)total;
    return true;
}

/* Text that became complete with the token goes into the token's own record as long as it stays on one
 * channel and nothing stands between. */
static bool extend_token(struct emit_stream *s, uint8_t channel, const char *text, size_t n) {
    struct piece *p;
    size_t text_at;

    if (!s->open_token || s->overflow)
        return false;
    p = piece_at(s, s->open_at);
    if (p->len && p->channel != channel)
        return false;
    text_at = sizeof *p + p->n_alts * sizeof(struct stream_alt) + p->len;
    if (!make_room(s, n + 8))
        return false;
    p = piece_at(s, s->open_at); /* it may have moved */
    memcpy((uint8_t *)p + text_at, text, n);
    p->channel = channel;
    p->len += (uint32_t)n;
    s->out_tail = s->open_at + (uint32_t)align8(text_at + n);
    return true;
}

static void put_text(struct emit_stream *s, uint8_t channel, uint16_t flags, const char *text, size_t n) {
    if (n == 0 || extend_token(s, channel, text, n))
        return;
    s->open_token = false;
    epiece_put(s,
               &(struct piece){
                   .t_ns = s->event_ns,
                   .token = GLMW_TOKEN_NONE,
                   .logprob = NAN,
                   .len = (uint32_t)n,
                   .flags = flags,
                   .type = GLMW_REC_TEXT,
                   .channel = channel,
               },
               NULL, text);
}

static void put_tool(struct emit_stream *s, uint32_t call, uint16_t phase) {
    struct piece p = {
        .t_ns = s->event_ns,
        .token = GLMW_TOKEN_NONE,
        .logprob = NAN,
        .type = GLMW_REC_TOOL,
        .channel = GLMW_CH_TOOL_NAME,
        .tool_index = call,
        .tool_phase = phase,
    };

    s->open_token = false;
    if (s->tool_events || FAULT(emit_tool_records_ungranted))
        epiece_put(s, &p, NULL, NULL);
}

void epiece_sink(void *arg, const struct outparse_ev *ev) {
    struct emit_stream *s = arg;

    switch (ev->kind) {
    case OUT_EV_TEXT:
        put_text(s, ev->channel == OUT_REASONING ? GLMW_CH_REASONING : GLMW_CH_CONTENT, 0, ev->text, ev->n);
        break;
    case OUT_EV_CALL:
        put_tool(s, ev->call, GLMW_TOOL_BEGIN);
        put_text(s, GLMW_CH_TOOL_NAME, GLMW_RF_FIRST, ev->text, ev->n);
        break;
    case OUT_EV_ARGS:
        put_text(s, GLMW_CH_TOOL_ARGS, 0, ev->text, ev->n);
        break;
    case OUT_EV_CALL_END:
        put_tool(s, ev->call, ev->complete ? GLMW_TOOL_END : GLMW_TOOL_CUT);
        break;
    }
}

/* One sampled token: its record, with the text that it completed and whatever else follows from it. */
void epiece_token(struct emit_stream *s, const struct stream_event *ev) {
    struct piece p = {
        .t_ns = ev->t_ns,
        .token = ev->token,
        .logprob = ev->logprob,
        .flags = ev->forced ? GLMW_RF_FORCED : 0,
        .type = GLMW_REC_TOKEN,
        .n_alts = (uint16_t)(ev->n_alts < STREAM_MAX_ALTS ? ev->n_alts : STREAM_MAX_ALTS),
    };

    s->event_ns = ev->t_ns;
    if (!epiece_put(s, &p, ev->alts, NULL))
        return;
    s->open_at = s->last_at;
    s->open_token = true;
    if (s->parser) {
        int channel = outparse_push(s->parser, ev->token);

        if (s->open_token && channel >= 0 && piece_at(s, s->open_at)->len == 0)
            piece_at(s, s->open_at)->channel = (uint8_t)channel;
    }
    s->open_token = false;
}

void epiece_mark_step_end(struct emit_stream *s) {
    if (s->out_head < s->out_tail)
        piece_at(s, s->last_at)->flags |= GLMW_RF_STEP_END;
}
