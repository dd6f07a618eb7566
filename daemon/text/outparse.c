/* SPDX-License-Identifier: MIT */
/* The state machine over ids and the text channels. Emit thread: no allocation, no system call; the only
 * way out is the sink. */
#include "outpriv.h"

enum kind {
    K_TEXT,
    K_EOS,
    K_THINK,
    K_THINK_END,
    K_CALL,
    K_CALL_END,
    K_KEY,
    K_KEY_END,
    K_VALUE,
    K_VALUE_END,
    K_OTHER
};

struct token {
    enum kind kind;
    const uint8_t *bytes;
    size_t n;
};

void out_text(struct outparse *p, enum outparse_channel channel, const char *text, size_t n) {
    struct outparse_ev ev = {.kind = OUT_EV_TEXT, .channel = channel, .tool = -1, .text = text, .n = n};

    if (n > 0)
        p->req.sink(p->req.arg, &ev);
}

/* Content passes the stop strings; a match ends the reply. */
static void content_text(struct outparse *p, const char *text, size_t n) {
    struct stopstr_out o;

    if (!p->req.stop) {
        out_text(p, OUT_CONTENT, text, n);
        return;
    }
    stopstr_feed(p->req.stop, &p->stop, text, n, &o);
    out_text(p, OUT_CONTENT, o.early, o.early_bytes);
    out_text(p, OUT_CONTENT, text, o.fresh_bytes);
    if (o.hit >= 0) {
        detok_drop(&p->detok);
        p->result.finish = OUT_FINISH_STOP_STRING;
        p->result.stop_index = o.hit;
        p->state = ST_DONE;
    }
}

static bool is_blank_text(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (s[i] != ' ' && !(s[i] >= '\t' && s[i] <= '\r'))
            return false;
    }
    return true;
}

/* Whole characters of the text that the current state reads. */
static void state_text(struct outparse *p, const char *text, size_t n) {
    switch (p->state) {
    case ST_REASONING:
        out_text(p, OUT_REASONING, text, n);
        break;
    case ST_CONTENT:
    case ST_RAW:
        content_text(p, text, n);
        break;
    case ST_NAME:
        out_name_text(p, text, n);
        break;
    case ST_KEY:
        out_key_text(p, text, n);
        break;
    case ST_VALUE:
        out_value_text(p, text, n);
        break;
    case ST_BLOCK: /* the engine cannot know that this is no call, so stop strings do not count in it */
        out_text(p, p->home == ST_REASONING ? OUT_REASONING : OUT_CONTENT, text, n);
        break;
    case ST_BETWEEN:
    case ST_ARGS:
        if (!is_blank_text(text, n))
            p->result.flags |= OUT_CALL_REPAIRED;
        break;
    case ST_DROP:
    case ST_HOLD:
    case ST_DONE:
        break;
    }
}

static void token_text(struct outparse *p, const struct token *t) {
    size_t n;
    const char *text = detok_view(&p->detok, t->bytes, t->n, p->out, &n);

    state_text(p, text, n);
}

/* The text of the current state ends here: what was incomplete or held back goes out. */
static void end_text(struct outparse *p) {
    size_t n = detok_finish(&p->detok, p->out);
    const char *held;

    state_text(p, p->out, n);
    if (p->req.stop && (p->state == ST_CONTENT || p->state == ST_RAW)) {
        stopstr_flush(p->req.stop, &p->stop, &held, &n);
        out_text(p, OUT_CONTENT, held, n);
    }
}

static struct token look_up(const struct outparse *p, uint32_t id) {
    const struct outparse_vocab *v = p->req.vocab;
    struct token t = {.kind = K_TEXT};
    int flags = tok_bytes(v->tok, id, &t.bytes, &t.n);

    if (flags < 0)
        return t;
    for (size_t i = 0; i < v->n_eos; i++) {
        if (v->eos[i] == id)
            t.kind = K_EOS;
    }
    if (t.kind == K_EOS || !(flags & TOK_ADDED))
        return t;
    t.kind = id == v->think        ? K_THINK
             : id == v->think_end  ? K_THINK_END
             : id == v->call       ? K_CALL
             : id == v->call_end   ? K_CALL_END
             : id == v->key        ? K_KEY
             : id == v->key_end    ? K_KEY_END
             : id == v->value      ? K_VALUE
             : id == v->value_end  ? K_VALUE_END
             : flags & TOK_SPECIAL ? K_OTHER
                                   : K_TEXT;
    /* never markup in content, whatever the file's flag says */
    if (t.kind == K_TEXT && ((t.n == 15 && memcmp(t.bytes, "<tool_response>", 15) == 0) ||
                             (t.n == 16 && memcmp(t.bytes, "</tool_response>", 16) == 0)))
        t.kind = K_OTHER;
    return t;
}

static void begin_call(struct outparse *p, enum out_state home) {
    p->home = home;
    out_name_begin(p);
}

static void step_text_state(struct outparse *p, const struct token *t) {
    bool reasoning = p->state == ST_REASONING;

    switch (t->kind) {
    case K_TEXT:
        token_text(p, t);
        break;
    case K_THINK:
        if (!reasoning) {
            end_text(p);
            if (p->state != ST_DONE)
                p->state = ST_REASONING;
        }
        break;
    case K_THINK_END:
        if (reasoning) {
            end_text(p);
            p->state = ST_CONTENT;
        }
        break;
    case K_CALL:
        end_text(p);
        if (p->state == ST_DONE) /* the last bytes completed a stop string */
            return;
        if (reasoning && !p->committed) {
            p->n_ids = 0;
            p->state = ST_HOLD;
        } else if (!p->req.tools && !reasoning) {
            /* No tool was offered: there is no call to make of it, and nobody wants to see its tags. */
            p->result.flags |= OUT_CALL_AS_TEXT;
            p->home = p->state;
            p->state = ST_BLOCK;
        } else {
            begin_call(p, p->state);
        }
        break;
    default: /* stray closing tags and role markers are not text */
        break;
    }
}

static enum call_mark mark_of(enum kind k) {
    static const enum call_mark of[] = {[K_CALL] = CALL_MARK_OPEN,    [K_CALL_END] = CALL_MARK_CLOSE,
                                        [K_KEY] = CALL_MARK_KEY,      [K_KEY_END] = CALL_MARK_KEY_END,
                                        [K_VALUE] = CALL_MARK_VALUE,  [K_VALUE_END] = CALL_MARK_VALUE_END,
                                        [K_THINK] = CALL_MARK_THINK,  [K_THINK_END] = CALL_MARK_THINK,
                                        [K_OTHER] = CALL_MARK_NONE};

    return of[k];
}

/* A call of no known tool is text, and ends where a call would: the engine knows no names. */
static bool block_ends(struct outparse *p, const struct token *t) {
    enum call_place to;

    if (!p->req.tools || p->home == ST_REASONING || FAULT(outparse_block_unended))
        return false;
    to = call_step(p->place, mark_of(t->kind));
    if (to < CALL_OVER)
        p->place = to;
    return to == CALL_OVER && t->kind != K_CALL_END;
}

/* The call's first mark, behind a name that is none. */
static void name_mark_as_text(struct outparse *p, const struct token *t) {
    if (p->state == ST_BLOCK)
        (void)block_ends(p, t);
    token_text(p, t);
}

static void step_name(struct outparse *p, const struct token *t) {
    switch (t->kind) {
    case K_KEY:
        end_text(p);
        if (p->state == ST_NAME && out_name_end(p))
            out_key_begin(p);
        else
            name_mark_as_text(p, t);
        break;
    case K_KEY_END:
        end_text(p);
        if (p->state == ST_NAME && out_name_with_key(p))
            break;
        if (p->state == ST_NAME)
            out_call_as_text(p);
        name_mark_as_text(p, t);
        break;
    case K_VALUE:
        end_text(p);
        if (p->state == ST_NAME && out_name_end(p)) {
            p->result.flags |= OUT_PAIR_DROPPED;
            p->state = ST_DROP;
        } else {
            name_mark_as_text(p, t);
        }
        break;
    case K_CALL_END:
        end_text(p);
        if (p->state == ST_NAME && out_name_is_call(p))
            break;
        if (p->state == ST_NAME)
            out_call_as_text(p);
        token_text(p, t);
        p->state = p->home;
        break;
    case K_CALL:
        end_text(p);
        if (p->state == ST_NAME && out_name_is_call(p))
            p->result.flags |= OUT_CALL_REPAIRED;
        else if (p->state == ST_NAME)
            out_call_as_text(p);
        begin_call(p, p->home);
        break;
    default: /* text, and markers that have no meaning here: whatever it is, it will not be a known name */
        token_text(p, t);
        break;
    }
}

/* <tool_call> or </tool_call> inside a call that has begun: it is complete with the pairs it has. */
static void step_call_over(struct outparse *p, const struct token *t) {
    out_call_complete(p);
    if (t->kind == K_CALL) {
        p->result.flags |= OUT_CALL_REPAIRED;
        begin_call(p, p->home);
    }
}

static void step_key(struct outparse *p, const struct token *t) {
    switch (t->kind) {
    case K_KEY_END:
        end_text(p);
        p->state = ST_BETWEEN;
        break;
    case K_VALUE:
        end_text(p);
        p->result.flags |= OUT_CALL_REPAIRED;
        out_value_begin(p);
        break;
    case K_KEY:
    case K_VALUE_END:
    case K_CALL:
    case K_CALL_END:
        end_text(p);
        p->result.flags |= OUT_PAIR_DROPPED;
        if (t->kind == K_KEY)
            out_key_begin(p);
        else if (t->kind == K_VALUE_END)
            p->state = ST_ARGS;
        else
            step_call_over(p, t);
        break;
    default:
        token_text(p, t);
        break;
    }
}

/* Behind a key (ST_BETWEEN) or behind a pair (ST_ARGS). */
static void step_between(struct outparse *p, const struct token *t) {
    bool has_key = p->state == ST_BETWEEN;

    if (t->kind == K_TEXT) {
        token_text(p, t);
        return;
    }
    end_text(p);
    if (has_key && t->kind == K_VALUE) {
        out_value_begin(p);
        return;
    }
    if (t->kind == K_KEY_END || t->kind == K_OTHER || t->kind == K_EOS)
        return;
    if (has_key || t->kind == K_VALUE)
        p->result.flags |= OUT_PAIR_DROPPED;
    if (t->kind == K_KEY) {
        out_key_begin(p);
    } else if (t->kind == K_VALUE) {
        p->state = ST_DROP;
    } else if (t->kind == K_VALUE_END) {
        p->state = ST_ARGS;
    } else if (t->kind == K_CALL || t->kind == K_CALL_END) {
        step_call_over(p, t);
    } else { /* a think tag: the call's end is missing */
        p->result.flags |= OUT_CALL_REPAIRED;
        out_call_complete(p);
        step_text_state(p, t);
    }
}

/* ST_VALUE and ST_DROP. Only the closing id ends a value, and a call's border when it is missing; every
 * other marker is text of the value: it may be the source code of a parser like this one. */
static void step_value(struct outparse *p, const struct token *t) {
    bool drop = p->state == ST_DROP;

    if (t->kind != K_VALUE_END && t->kind != K_CALL && t->kind != K_CALL_END) {
        token_text(p, t);
        return;
    }
    end_text(p);
    if (drop)
        p->state = ST_ARGS;
    else
        out_value_end(p);
    if (t->kind != K_VALUE_END) {
        p->result.flags |= OUT_CALL_REPAIRED;
        step_call_over(p, t);
    }
}

static void step_block(struct outparse *p, const struct token *t) {
    bool tags = p->req.tools || p->home == ST_REASONING;

    if (t->kind == K_CALL) {
        end_text(p);
        if (tags)
            begin_call(p, p->home);
        return;
    }
    if (block_ends(p, t)) {
        end_text(p);
        p->state = p->home;
        step_text_state(p, t);
        return;
    }
    if (tags || t->kind == K_TEXT)
        token_text(p, t);
    if (t->kind == K_CALL_END) {
        end_text(p);
        p->state = p->home;
    }
}

/* Any state but ST_HOLD and ST_DONE. */
static void step(struct outparse *p, const struct token *t) {
    if (p->state == ST_REASONING)
        p->result.n_reasoning_tokens++;
    switch (p->state) {
    case ST_REASONING:
    case ST_CONTENT:
        step_text_state(p, t);
        break;
    case ST_NAME:
        step_name(p, t);
        break;
    case ST_KEY:
        step_key(p, t);
        break;
    case ST_BETWEEN:
    case ST_ARGS:
        step_between(p, t);
        break;
    case ST_VALUE:
    case ST_DROP:
        step_value(p, t);
        break;
    case ST_BLOCK:
        step_block(p, t);
        break;
    case ST_RAW:
        token_text(p, t);
        break;
    case ST_HOLD:
    case ST_DONE:
        break;
    }
}

/* The held calls count: they are read again, now for good. */
static void hold_commit(struct outparse *p) {
    size_t n = p->n_ids;

    p->committed = true;
    p->n_ids = 0;
    p->result.n_reasoning_tokens--; /* the first <tool_call> was counted when it came */
    begin_call(p, ST_REASONING);
    for (size_t i = 0; i < n; i++) {
        struct token t = look_up(p, p->ids[i]);

        step(p, &t);
    }
}

/* The held calls were a rehearsal: their text, tags and all, is reasoning. */
static void hold_return(struct outparse *p) {
    struct token tag = look_up(p, p->req.vocab->call);

    p->state = ST_REASONING;
    token_text(p, &tag);
    for (size_t i = 0; i < p->n_ids; i++) {
        struct token t = look_up(p, p->ids[i]);

        p->result.n_reasoning_tokens++;
        if (t.kind != K_OTHER)
            token_text(p, &t);
    }
    p->n_ids = 0;
}

static void step_hold(struct outparse *p, uint32_t id, const struct token *t) {
    if (t->kind == K_THINK_END) {
        hold_return(p);
        step(p, t);
        return;
    }
    if (t->kind == K_THINK)
        return;
    if (p->n_ids == p->lim.hold_tokens) {
        p->result.flags |= OUT_OVER_TOKENS;
        if (p->hold_in_call)
            hold_commit(p);
        else
            hold_return(p);
        step(p, t);
        p->hold_in_call = p->state == ST_HOLD;
        return;
    }
    p->ids[p->n_ids++] = id;
    if (t->kind == K_CALL)
        p->hold_in_call = true;
    else if (t->kind == K_CALL_END)
        p->hold_in_call = false;
}

static enum outparse_channel channel_of(enum out_state s) {
    switch (s) {
    case ST_REASONING:
    case ST_HOLD:
        return OUT_REASONING;
    case ST_NAME:
        return OUT_TOOL_NAME;
    case ST_KEY:
    case ST_BETWEEN:
    case ST_VALUE:
    case ST_DROP:
    case ST_ARGS:
        return OUT_TOOL_ARGS;
    default:
        return OUT_CONTENT;
    }
}

/* The reply ended inside a call. */
static void finish_call(struct outparse *p, bool length) {
    int tool;

    end_text(p);
    if (length) {
        out_call_void(p);
        return;
    }
    if (p->state == ST_NAME) {
        tool = out_name_tool(p);
        if ((tool < 0 || outtools_required(p->req.tools, tool) == 0) && out_name_is_call(p))
            p->result.flags |= OUT_CALL_REPAIRED;
        else
            out_call_as_text(p);
        return;
    }
    if (p->state == ST_BLOCK)
        return;
    if (p->state == ST_ARGS && out_has_required(p)) {
        p->result.flags |= OUT_CALL_REPAIRED;
        out_call_complete(p);
    } else {
        out_call_void(p);
    }
}

static void finish(struct outparse *p, bool length) {
    bool open, in_call;

    if (p->state == ST_HOLD) {
        if (length)
            hold_return(p);
        else
            hold_commit(p);
    }
    in_call = channel_of(p->state) == OUT_TOOL_NAME || channel_of(p->state) == OUT_TOOL_ARGS;
    open = p->state == ST_REASONING || ((in_call || p->state == ST_BLOCK) && p->home == ST_REASONING);
    if (in_call)
        finish_call(p, length);
    else
        end_text(p);
    if (p->state == ST_DONE) /* the last bytes completed a stop string */
        return;
    if (open && p->result.n_calls == 0)
        p->result.flags |= OUT_REASONING_OPEN;
    p->result.finish = length && !FAULT(outparse_calls_beat_length) ? OUT_FINISH_LENGTH
                       : p->result.n_calls > 0                      ? OUT_FINISH_TOOL_CALLS
                                                                    : OUT_FINISH_STOP;
    p->state = ST_DONE;
}

int outparse_push(struct outparse *p, uint32_t id) {
    enum outparse_channel before = channel_of(p->state), after;
    struct token t;

    if (p->state == ST_DONE)
        return (int)before;
    t = look_up(p, id);
    p->result.n_tokens++;
    if (!t.bytes) /* a padding row or a hole: there is nothing to show */
        return (int)before;
    if (t.kind == K_EOS) {
        if (!p->req.ignore_eos)
            finish(p, false);
    } else if (p->state == ST_HOLD) {
        step_hold(p, id, &t);
    } else {
        step(p, &t);
        if (p->state == ST_HOLD)
            p->hold_in_call = true;
    }
    p->result.n_replaced = p->detok.replaced;
    after = channel_of(p->state);
    return (int)(after == OUT_TOOL_NAME ? after : before);
}

void outparse_end(struct outparse *p, bool length) {
    if (p->state != ST_DONE)
        finish(p, length);
    p->result.n_replaced = p->detok.replaced;
}

const struct outparse_result *outparse_result(const struct outparse *p) {
    return &p->result;
}

bool outparse_in_content(const struct outparse *p) {
    return p->state == ST_CONTENT || p->state == ST_RAW;
}
