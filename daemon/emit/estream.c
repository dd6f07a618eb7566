/* SPDX-License-Identifier: MIT */
/* One stream: engine events become pieces, pieces become records as the ring takes them, and the last words
 * (ERROR, USAGE, END) go out when nothing of the stream waits any more. Called by whoever holds the
 * connection's right (io, engine or emit thread); allocates nothing. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "clock.h"
#include "emit_impl.h"
#include "utf8.h"

struct emit_stream *estream_get(struct emit *e, struct stream_id id) {
    struct emit_stream *s;

    if (id.index >= e->opt.max_streams || id.gen == 0)
        return NULL;
    s = &e->streams[id.index];
    return atomic_load_explicit(&s->gen, memory_order_acquire) == id.gen ? s : NULL;
}

static size_t piece_bytes(const struct piece *p) {
    size_t n = sizeof *p + p->n_alts * sizeof(struct stream_alt) + p->len;

    return (n + 7) & ~(size_t)7;
}

/* Bytes of text for the next record: whole characters, at most a span. The text is valid UTF-8. */
static uint32_t span(const uint8_t *text, uint32_t left) {
    uint32_t n = left;

    if (n <= GLMW_SPAN_MAX)
        return n;
    n = GLMW_SPAN_MAX;
    while (n > 0 && (text[n] & 0xc0) == 0x80)
        n--;
    return n;
}

static struct glmw_rec record(struct emit_stream *s, uint8_t type, uint64_t t_ns) {
    struct glmw_rec r;

    memset(&r, 0, sizeof r);
    r.type = type;
    r.seq = s->seq++;
    r.tag = s->tag;
    r.token = GLMW_TOKEN_NONE;
    r.logprob = NAN;
    r.t_ns = t_ns;
    return r;
}

/* A kept stream whose client is gone is not short of room: it only fills its store. */
static uint32_t room(const struct emit_stream *s) {
    return econn_is_gone(s->conn) ? UINT32_MAX : econn_room(s->conn);
}

static void put(struct emit_stream *s, const void *slot64, const void *text) {
    if (s->store)
        estore_add(s->store, slot64, text);
    if (!econn_is_gone(s->conn))
        econn_put(s->conn, slot64);
}

/* False: the arena is full. */
static bool set_text(struct emit_conn *c, struct glmw_rec *r, const void *text, uint32_t len) {
    if (len <= GLMW_INLINE_BYTES) {
        r->flags |= GLMW_RF_INLINE;
        memcpy(r->u.text, text, len);
    } else if (!econn_is_gone(c) && !econn_text(c, text, len, &r->text_off)) {
        return false;
    }
    r->text_len = (uint16_t)len;
    return true;
}

static void put_alts(struct emit_stream *s, const struct stream_alt *alts, uint32_t n) {
    for (uint32_t i = 0; i < n; i += GLMW_ALTS_PER_REC) {
        struct glmw_alts a;

        memset(&a, 0, sizeof a);
        a.type = GLMW_REC_ALTS;
        a.seq = s->seq++;
        a.tag = s->tag;
        for (uint32_t j = 0; j < GLMW_ALTS_PER_REC; j++) {
            a.alt[j].token = i + j < n ? alts[i + j].token : GLMW_TOKEN_NONE;
            a.alt[j].logprob = i + j < n ? alts[i + j].logprob : NAN;
        }
        put(s, &a, NULL);
    }
}

static bool put_tool(struct emit_stream *s, const struct piece *p) {
    struct glmw_rec r;

    if (room(s) < 1)
        return false;
    r = record(s, GLMW_REC_TOOL, p->t_ns);
    r.channel = p->channel;
    r.flags = p->flags;
    r.u.tool.index = p->tool_index;
    r.u.tool.phase = p->tool_phase;
    put(s, &r, NULL);
    return true;
}

/* One piece: a record per span of its text, alternatives behind the first. False: no room; p->off says how
 * far it came. */
static bool put_piece(struct emit_stream *s, struct piece *p, const uint8_t *body) {
    const uint8_t *text = body + p->n_alts * sizeof(struct stream_alt);
    struct emit_conn *c = s->conn;

    if (p->type == GLMW_REC_TOOL)
        return put_tool(s, p);
    do {
        uint32_t n = span(text + p->off, p->len - p->off), alts = p->off == 0 ? p->n_alts : 0;
        bool last = p->off + n == p->len;
        struct glmw_rec r;

        if (room(s) < 1 + (alts + GLMW_ALTS_PER_REC - 1) / GLMW_ALTS_PER_REC)
            return false;
        r = record(s, p->off == 0 ? p->type : GLMW_REC_TEXT, p->t_ns);
        r.channel = p->channel;
        r.flags = (uint16_t)(last ? p->flags : (p->flags & ~GLMW_RF_STEP_END) | GLMW_RF_MORE);
        if (!set_text(c, &r, text + p->off, n)) {
            s->seq--;
            return false;
        }
        if (p->off == 0) {
            r.token = p->token;
            r.logprob = p->logprob;
            r.n_alts = (uint16_t)alts;
            if (alts)
                r.flags |= GLMW_RF_ALTS_FOLLOW;
            if (!s->first_sent) {
                r.flags |= GLMW_RF_FIRST;
                s->first_sent = true;
                c->urgent = true;
            }
        }
        put(s, &r, text + p->off);
        if (alts)
            put_alts(s, (const void *)body, alts);
        p->off += n;
    } while (p->off < p->len);
    return true;
}

static bool put_ids(struct emit_stream *s) {
    while (s->ids_at < s->n_ids) {
        struct glmw_ids r;

        if (room(s) < 1)
            return false;
        memset(&r, 0, sizeof r);
        r.type = GLMW_REC_IDS;
        r.seq = s->seq++;
        r.tag = s->tag;
        for (uint32_t i = 0; i < GLMW_IDS_PER_REC; i++)
            r.id[i] = s->ids_at + i < s->n_ids ? s->ids[s->ids_at + i] : GLMW_TOKEN_NONE;
        r.count =
            (uint8_t)(s->n_ids - s->ids_at < GLMW_IDS_PER_REC ? s->n_ids - s->ids_at : GLMW_IDS_PER_REC);
        s->ids_at += r.count;
        put(s, &r, NULL);
    }
    return true;
}

/* An error's text must not wait for room in the arena: without any, its beginning goes inline. */
static void error_record(struct emit_conn *c, struct glmw_rec *r, int status, const char *text) {
    size_t n = strlen(text);

    r->token = (uint32_t)status;
    if (!set_text(c, r, text, (uint32_t)n)) {
        n = utf8_valid_prefix(text, GLMW_INLINE_BYTES);
        set_text(c, r, text, (uint32_t)n);
    }
}

static void put_error(struct emit_stream *s) {
    struct glmw_rec r = record(s, GLMW_REC_ERROR, s->end_ns);

    error_record(s->conn, &r, s->error_status, s->error_text);
    put(s, &r, s->error_text);
}

/* Three slots were kept back for this when the stream was accepted. The stream is on the retired list before
 * its END becomes visible: a client that reuses the tag at once finds it free. */
static void put_last_words(struct emit_stream *s) {
    struct emit_conn *c = s->conn;
    struct glmw_rec r;

    if (s->has_error)
        put_error(s);
    s->usage.type = GLMW_REC_USAGE;
    s->usage.version = GLMW_USAGE_VERSION;
    s->usage.seq = s->seq++;
    s->usage.tag = s->tag;
    put(s, &s->usage, NULL);
    r = record(s, GLMW_REC_END, s->end_ns);
    r.flags = GLMW_RF_STEP_END | s->end_flags;
    r.token = s->end_token;
    r.u.end = s->end;
    put(s, &r, NULL);
    c->urgent = true;
    estream_retire(s);
}

void estream_farewell(struct emit_stream *s, int status, const char *text) {
    uint32_t seq = s->replaying ? s->replay.seq : s->seq;
    struct glmw_usage u = s->usage;
    struct glmw_rec r = {
        .type = GLMW_REC_ERROR, .seq = seq, .tag = s->tag, .logprob = NAN, .t_ns = clock_now_ns()};

    error_record(s->conn, &r, status, text);
    econn_put(s->conn, &r);
    u.type = GLMW_REC_USAGE;
    u.version = GLMW_USAGE_VERSION;
    u.seq = seq + 1;
    u.tag = s->tag;
    econn_put(s->conn, &u);
    r = (struct glmw_rec){.type = GLMW_REC_END,
                          .flags = GLMW_RF_STEP_END,
                          .seq = seq + 2,
                          .tag = s->tag,
                          .token = GLMW_TOKEN_NONE,
                          .logprob = NAN,
                          .t_ns = r.t_ns};
    r.u.end.status = status;
    r.u.end.reason = status == -ECANCELED ? GLMW_END_CANCELED : GLMW_END_ERROR;
    r.u.end.prompt_tokens = u.prompt_tokens;
    r.u.end.cached_tokens = u.cached_tokens;
    r.u.end.completion_tokens = u.completion_tokens;
    r.u.end.accepted_tokens = u.accepted_tokens;
    econn_put(s->conn, &r);
    s->conn->urgent = true;
}

/* The slots kept back for the tag are for these: nothing of an ended stream comes behind them. */
static bool is_last_word(const struct emit_stream *s, const struct glmw_rec *r) {
    return s->state == STREAM_REPLAY &&
           (r->type == GLMW_REC_ERROR || r->type == GLMW_REC_USAGE || r->type == GLMW_REC_END);
}

/* The alternatives of a token follow it at once, so all of them need room with it. */
static uint32_t group(const struct glmw_rec *r) {
    if (r->type != GLMW_REC_TOKEN || !(r->flags & GLMW_RF_ALTS_FOLLOW))
        return 1;
    return 1 + (r->n_alts + GLMW_ALTS_PER_REC - 1) / GLMW_ALTS_PER_REC;
}

/* False: no room. A record and its text are read out of the store and shown under the tag of today. */
static bool put_replay(struct emit_stream *s) {
    struct emit_conn *c = s->conn;
    uint8_t text[GLMW_SPAN_MAX];

    while (s->replay.seq < s->store->next_seq) {
        struct glmw_rec r;
        size_t bytes = estore_read(s->store, s->replay.pos, &r, text);

        if (!is_last_word(s, &r) && econn_room(c) < group(&r))
            return false;
        if (bytes > sizeof r && !econn_text(c, text, r.text_len, &r.text_off))
            return false;
        r.tag = s->tag;
        econn_put(c, &r);
        s->replay.pos += bytes;
        s->replay.seq++;
        c->urgent = true;
    }
    s->replaying = false;
    return true;
}

static void drop_unseen(struct emit_stream *s) {
    s->out_head = s->out_tail = 0;
    if (s->state == STREAM_ENDING)
        estream_retire(s);
}

/* What comes before anything new. 1: nothing, go on; 0: no room; 2: the stream is done with. */
static int flush_old(struct emit_stream *s) {
    bool gone = econn_is_gone(s->conn);

    if (s->held)
        return 2;
    if (gone && !s->store) {
        drop_unseen(s);
        return 2;
    }
    if (gone)
        s->replaying = false;
    if (s->replaying && !put_replay(s) && !FAULT(resume_new_before_old))
        return 0;
    if (s->state != STREAM_REPLAY)
        return 1;
    estream_retire(s);
    return 2;
}

bool estream_flush(struct emit_stream *s) {
    int old = flush_old(s);

    if (old != 1)
        return old;
    while (s->out_head < s->out_tail) {
        struct piece p;
        bool done;

        if (FAULT(emit_end_before_text) && s->state == STREAM_ENDING)
            break;
        memcpy(&p, s->outbox + s->out_head, sizeof p);
        done = put_piece(s, &p, s->outbox + s->out_head + sizeof p);
        if (!done) {
            memcpy(s->outbox + s->out_head, &p, sizeof p);
            return false;
        }
        s->out_head += (uint32_t)piece_bytes(&p);
    }
    s->out_head = s->out_tail = s->last_at = 0;
    if (!put_ids(s))
        return false;
    if (s->state == STREAM_ENDING)
        put_last_words(s);
    return true;
}

void estream_link(struct emit_stream *s, struct emit_conn *c) {
    s->prev = NO_STREAM;
    s->next = c->first;
    if (s->next != NO_STREAM)
        s->e->streams[s->next].prev = s->index;
    c->first = s->index;
    s->linked = true;
}

void estream_unlink(struct emit_stream *s) {
    struct emit *e = s->e;

    if (!s->linked)
        return;
    *(s->prev == NO_STREAM ? &s->conn->first : &e->streams[s->prev].next) = s->next;
    if (s->next != NO_STREAM)
        e->streams[s->next].prev = s->prev;
    s->linked = false;
}

void estream_retire(struct emit_stream *s) {
    struct emit *e = s->e;
    struct emit_conn *c = s->conn;
    uint32_t head = atomic_load_explicit(&e->retired, memory_order_relaxed);

    s->state = STREAM_DONE;
    estream_unlink(s);
    econn_live_less(c);
    do
        atomic_store_explicit(&s->next_retired, head, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&e->retired, &head, s->index, memory_order_release,
                                                  memory_order_relaxed));
    e->opt.wake_io(e->opt.ctx);
}

uint32_t estream_credit(const struct emit_stream *s) {
    const struct emit_conn *c = s->conn;
    uint32_t on_the_way =
        atomic_load_explicit(&((struct emit_stream *)(uintptr_t)s)->on_the_way, memory_order_relaxed);
    uint64_t room, taken = ((uint64_t)on_the_way + 1) * s->rec_per_token; /* and one step is in flight */

    if (s->held)
        return 0;
    /* A stream that nobody reads goes on until its cancellation arrives, or into its store. No more of it may
     * be on the way than its outbox takes, should it come to a connection without room. */
    if (econn_is_gone(c))
        room = CREDIT_UNSEEN;
    else if (s->replaying || s->out_head < s->out_tail || econn_text_room(c) < 2 * GLMW_SPAN_MAX)
        return 0;
    else
        room = econn_room(c);
    return room > taken ? (uint32_t)(room - taken) : 0;
}

static void put_progress(struct emit_stream *s, const struct stream_event *ev) {
    const struct stream_progress *g = &ev->u.progress;
    struct glmw_rec r;

    /* news that are old by the time there is room are worth nothing */
    if (s->quiet || s->held || s->replaying || s->out_head < s->out_tail || room(s) < 1)
        return;
    if (econn_is_gone(s->conn) && !s->store)
        return;
    r = record(s, GLMW_REC_PROGRESS, ev->t_ns);
    r.u.progress.done = g->done;
    r.u.progress.total = g->total;
    r.u.progress.cached = g->cached;
    r.u.progress.queue_pos = g->queue_position;
    r.u.progress.phase = g->queue_position ? GLMW_PHASE_QUEUED : GLMW_PHASE_PREFILL;
    r.u.progress.wait_ms = g->queue_position ? g->wait_ms : 0;
    put(s, &r, NULL);
}

static uint16_t end_reason(const struct emit_stream *s, const struct stream_event *ev, uint16_t *ret_detail) {
    const struct outparse_result *res = s->parser && s->bound ? outparse_result(s->parser) : NULL;

    switch (ev->reason) {
    case STREAM_END_STOP:
        return res && res->finish == OUT_FINISH_TOOL_CALLS ? GLMW_END_TOOL_CALLS : GLMW_END_STOP;
    case STREAM_END_STOP_STRING:
        if (res && res->stop_index >= 0)
            *ret_detail = (uint16_t)res->stop_index;
        return GLMW_END_STOP_STRING;
    case STREAM_END_LENGTH:
        return GLMW_END_LENGTH;
    case STREAM_END_CONTEXT:
        return FAULT(emit_context_is_length) ? GLMW_END_LENGTH : GLMW_END_CONTEXT;
    case STREAM_END_LOOP:
        return GLMW_END_LOOP;
    case STREAM_END_CANCELLED:
        return GLMW_END_CANCELED;
    case STREAM_END_DEADLINE:
        return GLMW_END_DEADLINE;
    case STREAM_END_DRAIN:
    case STREAM_END_ERROR:
    default:
        return GLMW_END_ERROR;
    }
}

static void set_end_error(struct emit_stream *s, int status, const char *text) {
    size_t n = utf8_valid_prefix(text, strnlen(text, sizeof s->error_text - 1));

    memcpy(s->error_text, text, n);
    s->error_text[n] = 0;
    s->error_status = status;
    s->has_error = true;
}

static const char *why_ended(const struct emit_stream *s, const struct stream_event *ev) {
    if (s->overflow)
        return "the answer did not fit the daemon's memory for text that waits for its reader";
    if (ev->reason == STREAM_END_DRAIN)
        return "the daemon is shutting down and its drain time is over";
    if (ev->reason != STREAM_END_ERROR)
        return NULL;
    switch (ev->status) {
    case -EIO:
        return "the device that computes was lost";
    case -EDOM:
        return "the model produced a number that is not finite; nothing of that step is shown";
    case -ENODATA:
        return "what this answer may not or must say left no token to choose: see its logit biases, its schema and "
               "its tools";
    case -EBADMSG:
        return "a token came that the schema does not allow: an error of the daemon";
    default:
        return "the engine ended the request";
    }
}

static void end_given_up(struct emit_stream *s) {
    s->end.status = -ETIMEDOUT;
    s->end.reason = GLMW_END_ERROR;
    s->end.detail = 0;
    s->end_token = GLMW_TOKEN_NONE;
    s->ids_at = s->n_ids;
    set_end_error(s, -ETIMEDOUT, "nobody read the answer for too long; the rest of it was dropped");
}

/* Four times of any length in 32 bits each: what is lost is less than 2^-31 of the longest. */
static void set_times(struct glmw_usage *w, const struct stream_usage *u) {
    uint64_t all = u->queued_ns | u->prefill_ns | u->decode_ns | u->longest_gap_ns;
    uint16_t shift = 0;

    while (all >> shift > UINT32_MAX && !FAULT(emit_times_cut))
        shift++;
    w->time_shift = shift;
    w->queued = (uint32_t)(u->queued_ns >> shift);
    w->prefill = (uint32_t)(u->prefill_ns >> shift);
    w->decode = (uint32_t)(u->decode_ns >> shift);
    w->longest_gap = (uint32_t)(u->longest_gap_ns >> shift);
}

static void take_end(struct emit_stream *s, const struct stream_event *ev) {
    const struct stream_usage *u = &ev->u.usage;
    const char *why;

    s->event_ns = ev->t_ns;
    s->open_token = false;
    if (s->parser && s->bound)
        outparse_end(s->parser, ev->reason != STREAM_END_STOP && ev->reason != STREAM_END_STOP_STRING);
    memset(&s->end, 0, sizeof s->end);
    s->end_flags = (uint16_t)((u->budget_closed || u->loop_closed ? GLMW_RF_FORCED : 0) |
                              (u->loop_closed ? GLMW_RF_LOOP : 0));
    s->end.reason = s->overflow ? GLMW_END_ERROR : end_reason(s, ev, &s->end.detail);
    s->end.status = s->overflow ? -ENOBUFS : ev->status;
    s->end.prompt_tokens = u->prompt;
    s->end.cached_tokens = u->cached;
    s->end.completion_tokens = u->completion;
    s->end.accepted_tokens = u->accepted;
    s->end_token = ev->reason == STREAM_END_STOP ? ev->token : GLMW_TOKEN_NONE;
    s->end_ns = ev->t_ns;
    s->usage.prompt_tokens = u->prompt;
    s->usage.cached_tokens = u->cached;
    s->usage.completion_tokens = u->completion;
    s->usage.reasoning_tokens = u->reasoning;
    s->usage.drafted_tokens = u->drafted;
    s->usage.accepted_tokens = u->accepted;
    s->usage.tier_tokens = u->tier;
    set_times(&s->usage, u);
    why = why_ended(s, ev);
    if (why)
        set_end_error(s, s->end.status, why);
    if (s->given_up)
        end_given_up(s);
    s->state = STREAM_ENDING;
}

static void take_event(struct emit_stream *s, const struct stream_event *ev) {
    struct emit_conn *c = s->conn;

    if (ev->type == STREAM_EV_END) {
        take_end(s, ev);
    } else if ((!econn_is_gone(c) || s->store) && !s->given_up) {
        bool overflowed = s->overflow;

        epiece_token(s, ev);
        epiece_mark_step_end(s);
        if (s->overflow && !overflowed) {
            struct stream_id id = {s->index, atomic_load_explicit(&s->gen, memory_order_relaxed)};

            s->e->opt.cancel(s->e->opt.ctx, id);
        }
    }
    if (!estream_flush(s)) {
        econn_refresh(c);
        if (!estream_flush(s))
            c->waiting = true;
    }
}

void estream_event(struct emit_stream *s, const struct stream_event *ev, uint8_t *desk) {
    uint8_t *own = s->outbox;

    if (s->state != STREAM_OPEN)
        return;
    if (ev->type == STREAM_EV_PROGRESS) {
        put_progress(s, ev);
        return;
    }
    if (s->out_tail == 0)
        s->outbox = desk;
    take_event(s, ev);
    if (s->outbox == own)
        return;
    if (s->out_tail && !FAULT(emit_left_on_the_desk))
        memcpy(own + s->out_head, desk + s->out_head, s->out_tail - s->out_head);
    s->outbox = own;
}

void estream_fail(struct emit_stream *s, int status, const char *text) {
    if (s->state != STREAM_OPEN)
        return;
    s->end_ns = clock_now_ns();
    memset(&s->end, 0, sizeof s->end);
    s->end_flags = 0;
    s->end.status = status;
    switch (status) {
    case 0:
        s->end.reason = GLMW_END_STOP;
        s->end.prompt_tokens = s->n_ids;
        s->usage.prompt_tokens = s->n_ids;
        break;
    case -ECANCELED:
        s->end.reason = GLMW_END_CANCELED;
        break;
    case -ETIMEDOUT:
        s->end.reason = GLMW_END_DEADLINE;
        break;
    default:
        s->end.reason = GLMW_END_ERROR;
    }
    s->end_token = GLMW_TOKEN_NONE;
    if (text)
        set_end_error(s, status, text);
    if (s->given_up)
        end_given_up(s);
    s->state = STREAM_ENDING;
    if (!estream_flush(s))
        s->conn->waiting = true;
}

/* What is left are the last words, for which slots were kept back. */
void estream_give_up(struct emit_stream *s) {
    s->given_up = true;
    s->open_token = false;
    s->out_head = s->out_tail = s->last_at = 0;
    if (s->state == STREAM_ENDING) {
        end_given_up(s);
        estream_flush(s);
    }
}
