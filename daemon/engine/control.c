/* SPDX-License-Identifier: MIT */
/* control.c: stop ids, stop strings, limits, reasoning state. Engine thread; control_check_stops runs on the
 * submitting thread. */
#include "control.h"

#include <errno.h>
#include <string.h>

uint32_t control_limit(uint32_t n_ids, uint32_t max_tokens, uint32_t context_tokens) {
    uint32_t room = n_ids < context_tokens ? context_tokens - n_ids : 0;

    if (FAULT(engine_context_end))
        room++;
    return max_tokens && max_tokens < room ? max_tokens : room;
}

/* The same bounds as stopstr_set_init, without building its table. */
int control_check_stops(const struct sched_req *req) {
    size_t total = 0;

    if (req->n_stops > STOPSTR_MAX_STRINGS)
        return -E2BIG;
    for (uint32_t i = 0; i < req->n_stops; i++) {
        if (!req->stops[i].len || !req->stops[i].s)
            return -EINVAL;
        total += req->stops[i].len;
        if (total > STOPSTR_MAX_TOTAL_BYTES)
            return -E2BIG;
    }
    return 0;
}

void control_begin(struct control *c, const struct vocab_view *vocab, const struct sched_req *req,
                   uint32_t context_tokens) {
    const char *strings[STOPSTR_MAX_STRINGS];
    size_t lens[STOPSTR_MAX_STRINGS];

    c->vocab = vocab;
    c->limit_tokens = control_limit(req->n_ids, req->max_tokens, context_tokens);
    c->min_tokens = req->min_tokens;
    c->ignore_eos = req->ignore_eos;
    c->reasoning = req->in_reasoning;
    c->tool = false;
    c->n_out = c->n_reasoning = 0;
    for (uint32_t i = 0; i < req->n_stops && i < STOPSTR_MAX_STRINGS; i++) {
        strings[i] = req->stops[i].s;
        lens[i] = req->stops[i].len;
    }
    c->has_stops = req->n_stops && stopstr_set_init(&c->stops, strings, lens, req->n_stops) == 0;
    stopstr_begin(&c->cursor);
}

void control_next(const struct control *c, struct control_next *ret) {
    bool ban = c->ignore_eos || c->n_out < c->min_tokens;

    *ret = (struct control_next){ .ban = ban ? c->vocab->stop_ids : NULL,
                                  .n_ban = ban ? c->vocab->n_stop_ids : 0 };
}

static bool is_stop_id(const struct vocab_view *v, uint32_t token) {
    for (uint32_t i = 0; i < v->n_stop_ids; i++)
        if (v->stop_ids[i] == token)
            return true;
    return false;
}

/* True when the token is a mark between channels: no byte of it is content, and a stop string cannot reach
 * across it. */
static bool channel_mark(struct control *c, uint32_t token) {
    const struct vocab_view *v = c->vocab;

    if (token == UINT32_MAX)
        return false;
    if (token == v->think_open)
        c->reasoning = true;
    else if (token == v->think_close)
        c->reasoning = false;
    else if (token == v->tool_open)
        c->tool = !c->reasoning;
    else if (token == v->tool_close)
        c->tool = false;
    else
        return false;
    stopstr_begin(&c->cursor);
    return true;
}

static bool stop_string_ends(struct control *c, uint32_t token) {
    const struct vocab_view *v = c->vocab;
    struct stopstr_out out;
    uint32_t a, b;

    if (!c->has_stops || token >= v->n_tokens)
        return false;
    if ((c->reasoning && !FAULT(engine_stop_in_reasoning)) || c->tool)
        return false;
    a = v->offsets[token];
    b = v->offsets[token + 1];
    if (a == b)
        return false;
    stopstr_feed(&c->stops, &c->cursor, (const char *)v->bytes + a, b - a, &out);
    return out.hit >= 0;
}

enum control_verdict control_token(struct control *c, uint32_t token) {
    bool was_reasoning = c->reasoning;
    bool mark;

    c->n_out++;
    if (is_stop_id(c->vocab, token))
        return CONTROL_STOP_ID;
    mark = channel_mark(c, token);
    if (was_reasoning || c->reasoning)
        c->n_reasoning++;
    if (!mark && stop_string_ends(c, token))
        return CONTROL_STOP_STRING;
    return c->n_out >= c->limit_tokens ? CONTROL_LENGTH : CONTROL_GO;
}
