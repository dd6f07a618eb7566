/* SPDX-License-Identifier: MIT */
/* Records become events.  Region D is written by another process: every index, offset, length, type and tag
 * is checked on a private copy of the record before it is used, and one broken rule ends the connection with
 * -EPROTO; text is handed out where it lies.  Runs on the connection's thread, never blocks. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "clconn.h"

/* Bits of glmd_conn.notices */
static const uint32_t notice_code[] = {GLMD_NOTICE_STATE, GLMD_NOTICE_LIMITS, GLMD_NOTICE_MODEL,
                                       GLMD_NOTICE_HANG, GLMD_NOTICE_ALIVE};
#define N_NOTICES (sizeof notice_code / sizeof notice_code[0])

/* The public numbers that are passed through are those of the wire. */
#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #a)
SAME(GLMD_EVF_MORE, GLMW_RF_MORE);
SAME(GLMD_EVF_FIRST, GLMW_RF_FIRST);
SAME(GLMD_EVF_STEP_END, GLMW_RF_STEP_END);
SAME(GLMD_EVF_DRAFTED, GLMW_RF_DRAFTED);
SAME(GLMD_EVF_FORCED, GLMW_RF_FORCED);
SAME(GLMD_EVF_LOOP, GLMW_RF_LOOP);
SAME(GLMD_CHANNEL_CONTENT, GLMW_CH_CONTENT);
SAME(GLMD_CHANNEL_REASONING, GLMW_CH_REASONING);
SAME(GLMD_CHANNEL_TOOL_NAME, GLMW_CH_TOOL_NAME);
SAME(GLMD_CHANNEL_TOOL_ARGUMENTS, GLMW_CH_TOOL_ARGS);
SAME(GLMD_PHASE_QUEUED, GLMW_PHASE_QUEUED);
SAME(GLMD_PHASE_PREFILL, GLMW_PHASE_PREFILL);
SAME(GLMD_REASON_STOP, GLMW_END_STOP);
SAME(GLMD_REASON_STOP_TEXT, GLMW_END_STOP_STRING);
SAME(GLMD_REASON_LENGTH, GLMW_END_LENGTH);
SAME(GLMD_REASON_CONTEXT, GLMW_END_CONTEXT);
SAME(GLMD_REASON_TOOL_CALLS, GLMW_END_TOOL_CALLS);
SAME(GLMD_REASON_CANCELED, GLMW_END_CANCELED);
SAME(GLMD_REASON_DEADLINE, GLMW_END_DEADLINE);
SAME(GLMD_REASON_ERROR, GLMW_END_ERROR);
SAME(GLMD_REASON_LOOP, GLMW_END_LOOP);
SAME(GLMD_NOTICE_STATE, GLMW_NOTICE_STATE);
SAME(GLMD_NOTICE_LIMITS, GLMW_NOTICE_LIMITS);
SAME(GLMD_NOTICE_MODEL, GLMW_NOTICE_MODEL);
SAME(GLMD_STATE_READY, GLMW_STATE_READY);
SAME(GLMD_STATE_FAILED, GLMW_STATE_FAILED);
SAME(GLMD_FEATURE_LOGPROBS, GLMW_FEAT_LOGPROBS);
SAME(GLMD_FEATURE_ALTERNATIVES, GLMW_FEAT_ALTS);
SAME(GLMD_FEATURE_RESUME, GLMW_FEAT_RESUME);
SAME(GLMD_FEATURE_COALESCE, GLMW_FEAT_COALESCE);
SAME(GLMD_FEATURE_TOOL_EVENTS, GLMW_FEAT_TOOL_EVENTS);
SAME(GLMD_FEATURE_TOKENIZE, GLMW_FEAT_TOKENIZE);
SAME(GLMD_FEATURE_SCHEMA, GLMW_FEAT_SCHEMA);
SAME(GLMD_FEATURE_NUMBERS, GLMW_FEAT_NUMBERS);
SAME(GLMD_ROLE_SYSTEM, GLMW_ROLE_SYSTEM);
SAME(GLMD_ROLE_TOOL, GLMW_ROLE_TOOL);
SAME(GLMD_TOOL_CHOICE_REQUIRED, GLMW_CHOICE_REQUIRED);
SAME(GLMD_NO_TOKEN, GLMW_TOKEN_NONE);

/* What take() did */
enum taken { TAKEN_EVENT, TAKEN_NOTHING, TAKEN_WAIT, TAKEN_BROKEN };

/* The same notice twice before anybody looked is one notice: they say "look again", not what changed. */
void cl_notice(glmd_conn *c, uint32_t code) {
    for (uint32_t i = 0; i < N_NOTICES; i++)
        if (notice_code[i] == code)
            c->notices |= 1u << i;
}

static void blank_event(struct glmd_event *e) {
    *e = (struct glmd_event){.size = sizeof *e, .token = GLMD_NO_TOKEN, .text = "", .logprob = (float)NAN};
}

static enum taken broken(glmd_conn *c, const struct glmw_rec *r, const char *what) {
    cl_die(c, -EPROTO, "the daemon sent a record of type %u with a wrong %s (tag %llu, seq %u)", r->type,
           what, (unsigned long long)r->tag, r->seq);
    return TAKEN_BROKEN;
}

static const uint8_t GLMW_FOREIGN *slot_at(const glmd_conn *c, uint32_t index) {
    return c->tq.slots + (size_t)(index & (c->tq.size - 1)) * GLMW_SLOT_BYTES;
}

/* Text of a record copied from slot `at`; the pointer goes into shared memory. */
static int take_text(const glmd_conn *c, const struct glmw_rec *r, uint32_t at, struct glmd_event *e) {
    if (!r->text_len)
        return 0;
    if (r->flags & GLMW_RF_INLINE) {
        if (r->text_len > GLMW_INLINE_BYTES)
            return -EPROTO;
        e->text = glmw_lend(slot_at(c, at) + offsetof(struct glmw_rec, u));
    } else {
        if ((r->text_len > GLMW_SPAN_MAX || r->text_off > c->txt_bytes - r->text_len) &&
            !FAULT(client_span_unchecked))
            return -EPROTO;
        e->text = glmw_lend(c->txt + r->text_off);
    }
    e->text_len = r->text_len;
    return 0;
}

/* The ALTS records behind a TOKEN at slot `at`; the caller saw that they are all visible. */
static int take_alts(glmd_conn *c, const struct glmw_rec *tok, struct cl_tag *g, uint32_t at,
                     struct glmd_event *e) {
    struct glmd_alt *out = c->alts + (size_t)(at & (c->tq.size - 1)) * GLMW_ALTS_PER_REC;
    uint32_t done = 0;
    while (done < tok->n_alts) {
        struct glmw_alts a;
        glmw_take(&c->tq, &a);
        if (a.type != GLMW_REC_ALTS || a.tag != tok->tag || a.seq != g->next_seq)
            return -EPROTO;
        g->next_seq++;
        for (uint32_t i = 0; i < GLMW_ALTS_PER_REC && done < tok->n_alts; i++, done++)
            out[done] = (struct glmd_alt){a.alt[i].token, a.alt[i].logprob};
    }
    e->alts = out;
    e->n_alts = tok->n_alts;
    return 0;
}

static enum taken take_token(glmd_conn *c, const struct glmw_rec *r, struct cl_tag *g, uint32_t at,
                             struct glmd_event *e) {
    if (r->channel > GLMW_CH_TOOL_ARGS)
        return broken(c, r, "channel");
    if (take_text(c, r, at, e) < 0)
        return broken(c, r, "text span");
    e->type = r->type == GLMW_REC_TOKEN ? GLMD_EV_TOKEN : GLMD_EV_TEXT;
    e->channel = r->channel;
    e->token = r->type == GLMW_REC_TOKEN ? r->token : GLMD_NO_TOKEN;
    e->logprob = r->logprob;
    if ((r->flags & GLMW_RF_ALTS_FOLLOW) && take_alts(c, r, g, at, e) < 0)
        return broken(c, r, "list of alternatives");
    return TAKEN_EVENT;
}

static void payload_done(glmd_conn *c, struct cl_live *l) {
    if (l->has_payload)
        cl_arena_give(&c->arena, l->payload_off);
    l->has_payload = false;
}

/* False: a number that no daemon writes. */
static bool take_usage(struct cl_live *l, const struct glmw_rec *r) {
    struct glmw_usage u;
    memcpy(&u, r, sizeof u);
    if (u.time_shift > 32)
        return false;
    l->usage = (struct glmd_usage){.size = sizeof l->usage,
                                   .prompt_tokens = u.prompt_tokens,
                                   .cached_tokens = u.cached_tokens,
                                   .completion_tokens = u.completion_tokens,
                                   .reasoning_tokens = u.reasoning_tokens,
                                   .drafted_tokens = u.drafted_tokens,
                                   .accepted_tokens = u.accepted_tokens,
                                   .queued_ns = (uint64_t)u.queued << u.time_shift,
                                   .prefill_ns = (uint64_t)u.prefill << u.time_shift,
                                   .decode_ns = (uint64_t)u.decode << u.time_shift,
                                   .longest_gap_ns = (uint64_t)u.longest_gap << u.time_shift,
                                   .tier_tokens = u.tier_tokens};
    l->has_usage = true;
    return true;
}

/* The tag is free from here on; its entry stays readable until the caller gives its events back. */
static void end_tag(glmd_conn *c, struct cl_live *l) {
    payload_done(c, l);
    cl_bulk_end(c, l);
    if (l->refused)
        c->n_refused--;
    if (l->cancel_wanted)
        c->n_cancel_owed--;
    cl_tags_retire(&c->tags, l);
    if (!c->tags.n_live)
        c->pulse.check_ns = CL_NEVER;
}

static enum taken take_end(glmd_conn *c, const struct glmw_rec *r, const struct cl_tag *g, struct glmd_event *e) {
    const struct glmw_rec_end *n = &r->u.end;
    struct cl_live *l = g->live;
    if (n->status > 0 || n->status < -4095)
        return broken(c, r, "status");
    if (g->accepted && !l->has_usage) { /* an older daemon: END alone carries the counts */
        l->usage = (struct glmd_usage){.size = sizeof l->usage,
                                       .prompt_tokens = n->prompt_tokens,
                                       .cached_tokens = n->cached_tokens,
                                       .completion_tokens = n->completion_tokens,
                                       .accepted_tokens = n->accepted_tokens};
        l->has_usage = true;
    }
    e->type = GLMD_EV_END;
    e->status = n->status;
    e->reason = n->reason;
    e->detail = n->detail;
    e->token = r->token;
    e->usage = l->has_usage ? &l->usage : NULL;
    end_tag(c, l);
    return TAKEN_EVENT;
}

static enum taken take_error(glmd_conn *c, const struct glmw_rec *r, uint32_t at, struct glmd_event *e) {
    int32_t status = (int32_t)r->token;
    if (take_text(c, r, at, e) < 0)
        return broken(c, r, "text span");
    if (status >= 0 || status < -4095)
        return broken(c, r, "status");
    e->type = GLMD_EV_ERROR;
    e->status = status;
    return TAKEN_EVENT;
}

/* Tag 0 belongs to no request; its records are not counted. */
static enum taken take_untagged(glmd_conn *c, const struct glmw_rec *r, uint32_t at, struct glmd_event *e) {
    if (r->type != GLMW_REC_NOTICE)
        return r->flags & GLMW_RF_IGNORABLE ? TAKEN_NOTHING : broken(c, r, "tag");
    if (take_text(c, r, at, e) < 0)
        return broken(c, r, "text span");
    e->type = GLMD_EV_NOTICE;
    e->reason = r->token;
    return TAKEN_EVENT;
}

static enum taken take_progress(const struct glmw_rec *r, struct glmd_event *e) {
    e->type = GLMD_EV_PROGRESS;
    e->done = r->u.progress.done;
    e->total = r->u.progress.total;
    e->cached = r->u.progress.cached;
    e->queue_position = r->u.progress.queue_pos;
    e->wait_ms = r->u.progress.wait_ms;
    e->phase = r->u.progress.phase;
    return TAKEN_EVENT;
}

static enum taken take_tool(glmd_conn *c, const struct glmw_rec *r, struct glmd_event *e) {
    if (r->u.tool.phase < GLMW_TOOL_BEGIN || r->u.tool.phase > GLMW_TOOL_CUT)
        return broken(c, r, "phase");
    e->type = GLMD_EV_TOOL;
    e->phase = GLMD_PHASE_TOOL_BEGIN + (r->u.tool.phase - GLMW_TOOL_BEGIN);
    e->index = r->u.tool.index;
    return TAKEN_EVENT;
}

static enum taken take_ids(glmd_conn *c, const struct glmw_rec *r, uint32_t at, struct glmd_event *e) {
    struct glmw_ids n;
    memcpy(&n, r, sizeof n);
    if (n.count < 1 || n.count > GLMW_IDS_PER_REC)
        return broken(c, r, "count");
    e->type = GLMD_EV_IDS;
    e->ids = glmw_lend(slot_at(c, at) + offsetof(struct glmw_ids, id));
    e->n_ids = n.count;
    return TAKEN_EVENT;
}

static enum taken take_accepted(glmd_conn *c, const struct glmw_rec *r, struct cl_tag *g, struct glmd_event *e) {
    if (g->accepted)
        return broken(c, r, "place: it was accepted before");
    g->accepted = true;
    payload_done(c, g->live);
    e->type = GLMD_EV_ACCEPTED;
    e->stream_id = r->u.accepted.stream_id;
    return TAKEN_EVENT;
}

static enum taken take_tagged(glmd_conn *c, const struct glmw_rec *r, struct cl_tag *g, uint32_t at,
                              struct glmd_event *e) {
    bool refusal = r->type == GLMW_REC_ERROR || r->type == GLMW_REC_END || r->type == GLMW_REC_USAGE;
    if (!g->accepted && r->type != GLMW_REC_ACCEPTED && !refusal)
        return broken(c, r, "place: the request was not accepted");
    switch (r->type) {
    case GLMW_REC_ACCEPTED:
        return take_accepted(c, r, g, e);
    case GLMW_REC_PROGRESS:
        return take_progress(r, e);
    case GLMW_REC_TOKEN:
    case GLMW_REC_TEXT:
        return take_token(c, r, g, at, e);
    case GLMW_REC_TOOL:
        return take_tool(c, r, e);
    case GLMW_REC_USAGE:
        if (!take_usage(g->live, r))
            return broken(c, r, "unit of time");
        return TAKEN_NOTHING;
    case GLMW_REC_END:
        return take_end(c, r, g, e);
    case GLMW_REC_ERROR:
        return take_error(c, r, at, e);
    case GLMW_REC_IDS:
        return take_ids(c, r, at, e);
    default:
        return r->flags & GLMW_RF_IGNORABLE ? TAKEN_NOTHING : broken(c, r, "type");
    }
}

/* How many records make the event whose first record is r; 0: impossible. */
static uint32_t group(const glmd_conn *c, const struct glmw_rec *r) {
    if (r->type != GLMW_REC_TOKEN || !(r->flags & GLMW_RF_ALTS_FOLLOW))
        return 1;
    if (!c->alts || r->n_alts < 1 || r->n_alts > GLMW_ALTS_MAX)
        return 0;
    return 1 + (r->n_alts + GLMW_ALTS_PER_REC - 1u) / GLMW_ALTS_PER_REC;
}

/* The ACCEPTED of a resumed answer stands just before its first record: the one asked for, or the one behind
 * the alternatives that this is one of. */
static uint32_t expected_seq(const struct cl_tag *g, const struct glmw_rec *r) {
    const struct cl_live *l = g->live;
    uint32_t first, most = (GLMW_ALTS_MAX + GLMW_ALTS_PER_REC - 1) / GLMW_ALTS_PER_REC;
    if (g->accepted || r->type != GLMW_REC_ACCEPTED || !l->resumed)
        return g->next_seq;
    first = l->from_seq - 1;
    if (FAULT(client_resume_anywhere))
        return r->seq;
    return l->from_seq == 1 || r->seq - first > most ? first : r->seq;
}

/* One record, or one TOKEN with its alternatives, of `have` visible ones. */
static enum taken take(glmd_conn *c, uint32_t have, struct glmd_event *e) {
    struct glmw_rec r;
    uint32_t at = c->tq.head;
    if (FAULT(slow_take)) /* the handicap of `make bench-ipc` */
        for (uint64_t until = cl_now_ns() + 1000; cl_now_ns() < until;)
            ;
    glmw_copy_slot(&r, slot_at(c, at));
    uint32_t need = group(c, &r);
    if (!need)
        return broken(c, &r, "number of alternatives");
    if (need > have) {
        c->need = need;
        return TAKEN_WAIT;
    }
    c->tq.head++;
    c->need = 1;
    c->armed = false;
    c->flowing = true;
    blank_event(e);
    /* two of the layouts keep other things where most records have channel, token and t_ns */
    bool plain = r.type != GLMW_REC_USAGE && r.type != GLMW_REC_IDS;
    e->tag = r.tag;
    e->seq = r.seq;
    e->flags = r.flags & (GLMD_EVF_FIRST | GLMD_EVF_MORE | GLMD_EVF_STEP_END | GLMD_EVF_DRAFTED | GLMD_EVF_FORCED |
                          GLMD_EVF_LOOP);
    e->t_sampled_ns = plain ? r.t_ns : 0;
    if (!r.tag)
        return take_untagged(c, &r, at, e);
    struct cl_tag *g = cl_tags_find(&c->tags, r.tag);
    if (!g)
        return broken(c, &r, "tag: no such request is live");
    if (r.seq != expected_seq(g, &r) && !FAULT(client_seq_unchecked))
        return broken(c, &r, "sequence number");
    g->next_seq = r.seq + 1;
    return take_tagged(c, &r, g, at, e);
}

/* ---- ends that the daemon can no longer send ---- */

static bool take_synthetic(glmd_conn *c, struct glmd_event *e) {
    const struct cl_tag *g = cl_tags_any(&c->tags);
    if (!g)
        return false;
    struct cl_live *l = g->live;
    blank_event(e);
    e->type = GLMD_EV_END;
    e->tag = g->tag;
    e->seq = g->next_seq;
    e->status = c->error;
    e->usage = l->has_usage ? &l->usage : NULL;
    end_tag(c, l);
    return true;
}

/* The daemon did not take the object of a request, which it therefore never saw: why, then the end. */
static bool take_refused(glmd_conn *c, struct glmd_event *e) {
    for (uint32_t i = 0; c->n_refused && i < c->tags.n_slots; i++) {
        struct cl_tag *g = &c->tags.slots[i];
        struct cl_live *l = g->live;
        if (!l || !l->refused)
            continue;
        blank_event(e);
        e->tag = g->tag;
        e->seq = g->next_seq++;
        e->status = l->refused;
        e->type = l->told ? GLMD_EV_END : GLMD_EV_ERROR;
        if (l->told) {
            end_tag(c, l);
        } else {
            l->told = true;
            e->text = cl_bulk_text(l->refused);
            e->text_len = strlen(e->text);
        }
        return true;
    }
    return false;
}

static bool take_notice(glmd_conn *c, struct glmd_event *e) {
    if (!c->notices)
        return false;
    uint32_t i = (uint32_t)__builtin_ctz(c->notices);
    c->notices &= ~(1u << i);
    blank_event(e);
    e->type = GLMD_EV_NOTICE;
    e->reason = notice_code[i];
    return true;
}

/* ---- waiting ---- */

/* Records visible now; a tail that cannot be ends the connection. */
static uint32_t visible(glmd_conn *c) {
    if (c->ring_bad)
        return 0;
    int n = glmw_peek(&c->tq);
    if (n >= 0)
        return (uint32_t)n;
    cl_die(c, -EPROTO, "the daemon moved its record index backwards or past the ring");
    return 0;
}

bool cl_pending(glmd_conn *c) {
    return c->notices || c->n_refused || visible(c) >= c->need || (c->error && c->tags.n_live);
}

int cl_arm(glmd_conn *c) {
    if (c->armed)
        return cl_pending(c) ? 0 : 1;
    uint32_t ahead = c->need;
    uint32_t most = c->tq.size / 4; /* the ring must never be full before the bell */
    c->coalesce_at_ns = CL_NEVER;
    if (c->coalesce_tokens > 1 && c->flowing) {
        uint32_t k = c->coalesce_tokens < most ? c->coalesce_tokens : most;
        if (k > ahead) {
            ahead = k;
            c->coalesce_at_ns = cl_now_ns() + c->coalesce_ns;
        }
    }
    int n = glmw_arm(&c->tq, ahead);
    if (n < 0) {
        cl_die(c, -EPROTO, "the daemon moved its record index backwards or past the ring");
        return 0;
    }
    if ((uint32_t)n >= c->need && !FAULT(client_arm_no_recheck))
        return 0;
    c->armed = true;
    c->flowing = false;
    return 1;
}

/* ---- the calls ---- */

/* may_sleep: the caller holds no event of this call, so earlier ones can be given back. */
static int next_event(glmd_conn *c, bool may_sleep, struct glmd_event *e) {
    for (;;) {
        uint32_t have = (uint32_t)(c->tq.tail - c->tq.head);
        if (take_notice(c, e) || take_refused(c, e))
            return 1;
        if (have < c->need)
            have = visible(c);
        if (!c->ring_bad && have >= c->need && !(FAULT(client_error_before_records) && c->error)) {
            enum taken t = take(c, have, e);
            if (t == TAKEN_EVENT)
                return 1;
            continue; /* a skipped record, one that needs more, or a dead ring */
        }
        if (c->error)
            return take_synthetic(c, e) ? 1 : c->error;
        if (!may_sleep)
            return 0;
        /* before sleeping, or the daemon could wait for the room that the sleeper holds */
        if (!FAULT(client_sleep_on_held))
            cl_release(c);
        if (cl_arm(c) == 1) {
            cl_timer_plan(c);
            return 0;
        }
    }
}

static void give_event(struct glmd_event *ret, const struct glmd_event *e) {
    uint32_t size = ret->size;
    memcpy(ret, e, size < sizeof *e ? size : sizeof *e);
    ret->size = size;
}

static int next_checked(glmd_conn *c, bool may_sleep, struct glmd_event *ret) {
    struct glmd_event e;
    if (ret->size < offsetof(struct glmd_event, text))
        return -EINVAL;
    int r = next_event(c, may_sleep, &e);
    if (r == 1)
        give_event(ret, &e);
    return r;
}

int glmd_next(glmd_conn *c, struct glmd_event *ret) {
    int r = cl_check(c);
    return r < 0 ? r : next_checked(c, true, ret);
}

int glmd_next_n(glmd_conn *c, struct glmd_event *ret, size_t n) {
    int r = cl_check(c), got = 0;
    if (r < 0)
        return r;
    for (size_t i = 0; i < n && got < INT32_MAX; i++, got++) {
        r = next_checked(c, got == 0, &ret[i]);
        if (r != 1)
            return got ? got : r;
    }
    return got;
}

/* Hands slots and text back.  The daemon may have stopped a stream for want of room: then it asked to be
 * told, and an empty entry tells it (a half full ring can wait for the next time). */
void cl_release(glmd_conn *c) {
    cl_tags_recycle(&c->tags);
    if (c->ring_bad)
        return;
    bool asked = glmw_give_back(&c->tq, &c->d->credit_wanted);
    if (c->error || !asked || (uint32_t)(c->tq.tail - c->tq.given) >= c->tq.size / 2)
        return;
    if (FAULT(client_no_credit_answer))
        return;
    static const struct glmw_entry nop = {.opcode = GLMW_OP_NOP};
    if (cl_entry_push(c, &nop) == -ENOBUFS) {
        c->credit_owed = true;
        cl_bell_write(c->fd_bell); /* the daemon looks, and reads the entries that are in the way */
        cl_owed_push(c);           /* sets the time of the next attempt */
        cl_timer_plan(c);
    }
}

void glmd_release(glmd_conn *c) {
    if (cl_check(c) == 0)
        cl_release(c);
}
