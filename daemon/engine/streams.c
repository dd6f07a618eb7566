/* SPDX-License-Identifier: MIT */
/* streams.c: what happens to requests outside of steps: checked, taken in, admitted, left out for want of
 * credit, ended. Engine thread, between rounds, when both lanes are idle; request_check and engine_submit run
 * on the submitting thread and touch only what is fixed or atomic. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "clock.h"
#include "engine_priv.h"

enum {
    SAFETY_NS = 100000000,
    PLACES_NS = 20000000,
    RETURN_TOKENS = 16, /* that a reader must have room for before its request is taken up again */
};

/* ---- submitting thread ---- */

static bool in_range(float v, float lo, float hi) {
    return isfinite(v) && v >= lo && v <= hi;
}

/* The bounds of kern.h's plan check: a plan is never refused for what a client asked. */
static int sampling_check(const struct engine *e, const struct sched_sampling *s) {
    if (!in_range(s->temperature, 0.0f, 1e4f) || !in_range(s->top_p, 1e-9f, 1.0f) ||
        !in_range(s->min_p, 0.0f, 1.0f) || !in_range(s->repetition, 1e-4f, 1e4f) ||
        !in_range(s->presence, -1e4f, 1e4f) || !in_range(s->frequency, -1e4f, 1e4f) ||
        s->n_alts > KERN_MAX_ALTS)
        return -EINVAL;
    if (s->n_bias > SCHED_MAX_BIAS)
        return -E2BIG;
    for (uint32_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].token >= e->kc.model.vocab_tokens || !in_range(s->bias[i].bias, -1e4f, 1e4f))
            return -EINVAL;
    return 0;
}

int request_check(const struct engine *e, const struct sched_req *req) {
    int r;

    if (req->stream.index >= e->opt.max_streams || !req->stream.gen || !req->n_ids)
        return -EINVAL;
    if (!control_limit(req->n_ids, 0, e->kc.max_context))
        return -EOVERFLOW;
    for (uint32_t i = 0; i < req->n_ids; i++)
        if (req->ids[i] >= e->kc.model.vocab_tokens)
            return -EINVAL;
    r = sampling_check(e, &req->sampling);
    return r < 0 ? r : control_check(req, e->kc.model.vocab_tokens);
}

/* ---- what users have, counted where it changes; relaxed, because nothing else depends on the numbers ---- */

uint32_t stream_reserved(const struct engine *e, const struct sched_req *req) {
    return req->n_ids + control_limit(req->n_ids, req->max_tokens, e->kc.max_context);
}

/* Requests are submitted by several workers, one at a time, and taken off by the engine. */
static int usage_queue(const struct engine *e, const struct sched_req *req) {
    uint64_t before;

    if (req->kv_quota && stream_reserved(e, req) > req->kv_quota)
        return -EFBIG;
    if (!req->usage)
        return 0;
    before = atomic_fetch_add_explicit(&req->usage->queued_tokens, req->n_ids, memory_order_relaxed);
    if (!req->queued_quota || before + req->n_ids <= req->queued_quota)
        return 0;
    atomic_fetch_sub_explicit(&req->usage->queued_tokens, req->n_ids, memory_order_relaxed);
    return -EDQUOT;
}

static void usage_unqueue(const struct sched_req *req) {
    if (req->usage && !FAULT(usage_not_released))
        atomic_fetch_sub_explicit(&req->usage->queued_tokens, req->n_ids, memory_order_relaxed);
}

/* Before the END event is published: afterwards the counters may be gone. */
static void usage_release(const struct engine *e, const struct sched_req *req, bool admitted) {
    if (!admitted)
        usage_unqueue(req);
    else if (req->usage)
        atomic_fetch_sub_explicit(&req->usage->kv_tokens, stream_reserved(e, req), memory_order_relaxed);
}

static void usage_admit(const struct engine *e, const struct sched_req *req) {
    usage_unqueue(req);
    if (req->usage)
        atomic_fetch_add_explicit(&req->usage->kv_tokens, stream_reserved(e, req), memory_order_relaxed);
}

/* Whoever is not running waits, so this bounds the queue, before any of the request has been promised. */
static uint32_t most_live(const struct engine *e) {
    uint64_t most = (uint64_t)e->opt.max_seqs + e->opt.max_queued;

    return !e->opt.max_queued || most > e->opt.max_streams || FAULT(engine_queue_unbounded) ? e->opt.max_streams
                                                                                            : (uint32_t)most;
}

/* Counting oneself in before looking at the flags, while the engine looks at them before the count, leaves no
 * moment in which a request is accepted after the engine decided that nobody is left. */
int engine_submit(struct engine *e, struct sched_req *req) {
    uint32_t before;
    int r = request_check(e, req);

    if (r == 0)
        r = usage_queue(e, req);
    if (r < 0)
        return r;
    before = atomic_fetch_add(&e->live, 1); /* L1: pairs with L2 in engine_run() */
    if (atomic_load(&e->stopping))
        r = -ESHUTDOWN;
    else if (atomic_load(&e->lost))
        r = -EIO;
    else if (before >= most_live(e))
        r = -EAGAIN;
    if (r < 0) {
        usage_unqueue(req);
        atomic_fetch_sub(&e->live, 1);
        inbox_wake(&e->inbox); /* the engine may have waited for this count */
        return r;
    }
    inbox_submit(&e->inbox, req);
    return 0;
}

void engine_cancel(struct engine *e, struct stream_id id) {
    inbox_cancel(&e->inbox, id);
}

void engine_kick(struct engine *e) {
    inbox_kick(&e->inbox);
}

void engine_stop(struct engine *e, uint64_t deadline_ns) {
    atomic_store(&e->stop_deadline_ns, deadline_ns);
    atomic_store(&e->stopping, 1);
    inbox_wake(&e->inbox);
}

/* ---- ends ---- */

void seq_give(struct engine *e, uint32_t seq) {
    struct eng_seq *q = &e->seqs[seq];

    if (!q->away) {
        mem_pages_give(&e->pages, q->n_pages, q->pages);
        mem_slot_give(&e->slots, q->slot);
    }
    seen_reset(&q->seen);
    q->used = q->gone = q->away = q->answers = false;
}

static void seq_release(struct engine *e, uint32_t seq) {
    if (fill_leave(e, seq)) {
        seq_give(e, seq);
    } else {
        e->seqs[seq].gone = true;
        e->seqs[seq].cache.on = false; /* nobody waits for a mark of it */
    }
}

static void usage_fill(const struct engine *e, const struct eng_stream *st, struct stream_usage *u,
                       uint64_t now_ns) {
    uint64_t since = st->req->received_ns ? st->req->received_ns : st->taken_ns;
    const struct eng_seq *q = st->seq == ENGINE_NONE ? NULL : &e->seqs[st->seq];
    uint64_t admitted = q ? q->admitted_ns : now_ns;

    u->prompt = st->req->n_ids;
    u->cached = q ? q->cache.cached : 0;
    u->tier = st->tier < u->cached ? st->tier : u->cached;
    u->queued_ns = admitted > since ? admitted - since : 0;
    if (!q)
        return;
    u->completion = q->control.n_out;
    u->reasoning = q->control.n_reasoning;
    u->budget_closed = q->control.budget_closed;
    u->loop_closed = q->control.loop_closed;
    u->prefill_ns = (q->first_ns ? q->first_ns : now_ns) - q->admitted_ns;
    u->decode_ns = q->first_ns ? q->last_ns - q->first_ns : 0;
    u->longest_gap_ns = q->longest_gap_ns;
}

/* The one place where a request ends. Its memory belongs to the caller again once the event is published;
 * nothing here looks at it afterwards. */
void stream_end(struct engine *e, uint32_t stream, enum stream_reason reason, int status, uint32_t token) {
    struct eng_stream *st = &e->streams[stream];
    struct stream_event *ev = event_push(e, st->id, STREAM_EV_END, e->now_ns);

    ev->reason = (uint16_t)reason;
    ev->status = status;
    ev->token = token;
    usage_fill(e, st, &ev->u.usage, e->now_ns);
    usage_release(e, st->req, st->seq != ENGINE_NONE);
    enumbers_end(e, st->req, st->seq != ENGINE_NONE, ev->u.usage.tier);
    st->req->ended = reason;
    if (st->seq != ENGINE_NONE) {
        if (!FAULT(engine_closes_uncounted)) {
            stat_add(&e->stats.budget_closes, e->seqs[st->seq].control.budget_closed);
            stat_add(&e->stats.loop_closes, e->seqs[st->seq].control.loop_closed);
        }
        ecache_end(e, &e->seqs[st->seq], reason != STREAM_END_ERROR);
        seq_release(e, st->seq);
    } else {
        e->queue_dirty = true;
    }
    espill_gone(e, stream);
    sched_remove(e->sched, stream);
    e->calm = false;
    if (st->skipped)
        e->n_skipped--;
    if (FAULT(engine_end_twice) && reason == STREAM_END_CANCELLED)
        *event_push(e, st->id, STREAM_EV_END, e->now_ns) = *ev;
    st->req = NULL;
    atomic_fetch_sub(&e->live, 1);
}

void stream_hold(struct engine *e, uint32_t stream) {
    struct eng_stream *st = &e->streams[stream];
    bool hold = st->held || st->fetching;

    if (hold != st->told_hold)
        sched_hold(e->sched, stream, hold);
    st->told_hold = hold;
}

void streams_end_all(struct engine *e, enum stream_reason reason, int status) {
    struct sched_req *next;

    for (uint32_t i = 0; i < e->opt.max_streams; i++)
        if (e->streams[i].req)
            stream_end(e, i, reason, status, UINT32_MAX);
    for (struct sched_req *req = inbox_take(&e->inbox); req; req = next) {
        struct stream_event *ev;

        next = req->next;
        usage_unqueue(req);
        ev = event_push(e, req->stream, STREAM_EV_END, e->now_ns);
        ev->reason = (uint16_t)reason;
        ev->status = status;
        ev->u.usage.prompt = req->n_ids;
        atomic_fetch_sub(&e->live, 1);
    }
}

/* ---- taking in ---- */

static void stream_open(struct engine *e, struct sched_req *req) {
    uint32_t i = req->stream.index;
    struct eng_stream *st = &e->streams[i];
    struct sched_job job = {
        .uid = req->uid,
        .prompt_tokens = req->n_ids,
        .budget_tokens = control_limit(req->n_ids, req->max_tokens, e->kc.max_context),
        .deadline_ns = req->deadline_ns ? req->deadline_ns : SCHED_NEVER,
        .user_tokens = req->kv_quota,
        .weight = req->weight > SCHED_WEIGHT_MAX ? SCHED_WEIGHT_MAX : req->weight,
        .background = req->background,
        .movable = !e->is_script,
    };
    struct stream_event *ev;
    int r;

    if (!st->req) {
        *st = (struct eng_stream){ .req = req, .id = req->stream, .seq = ENGINE_NONE, .taken_ns = e->now_ns };
        r = sched_add(e->sched, i, &job, e->now_ns);
        if (r >= 0) {
            e->queue_dirty = true;
            enumbers_open(e, req);
            ecache_look(e, i);
            ecache_twin_new(e, i);
            espill_look(e, i);
            return;
        }
        st->req = NULL;
    } else {
        r = -EEXIST; /* the caller used an index twice: its fault must not hurt the stream that has it */
    }
    usage_unqueue(req);
    ev = event_push(e, req->stream, STREAM_EV_END, e->now_ns);
    ev->reason = STREAM_END_ERROR;
    ev->status = r;
    ev->u.usage.prompt = req->n_ids;
    atomic_fetch_sub(&e->live, 1);
}

void streams_take(struct engine *e) {
    struct sched_req *next;
    uint32_t cancels;
    bool look = false;

    /* C2: the counter before the requests, so that a cancellation posted after its request is found with it
     * or makes the next round look again */
    cancels = atomic_load_explicit(&e->inbox.cancels, memory_order_acquire);
    for (struct sched_req *req = inbox_take(&e->inbox); req; req = next) {
        next = req->next; /* the request belongs to its owner again after an END */
        req->next = NULL;
        stream_open(e, req);
        look = true;
    }
    if ((cancels == e->seen_cancels && !look) || (FAULT(cancel_after_chunk) && e->fill.active))
        return;
    e->seen_cancels = cancels;
    for (uint32_t i = 0; i < e->opt.max_streams; i++)
        if (e->streams[i].req && inbox_cancelled(&e->inbox, e->streams[i].id))
            stream_end(e, i, STREAM_END_CANCELLED, -ECANCELED, UINT32_MAX);
}

void streams_expire(struct engine *e) {
    uint32_t stream;

    if (atomic_load_explicit(&e->stopping, memory_order_acquire) &&
        atomic_load_explicit(&e->stop_deadline_ns, memory_order_relaxed) <= e->now_ns)
        streams_end_all(e, STREAM_END_DRAIN, -ESHUTDOWN);
    if (FAULT(deadline_after_chunk) && e->fill.active)
        return;
    while (sched_pick_expired(e->sched, e->now_ns, &stream) == 0)
        stream_end(e, stream, STREAM_END_DEADLINE, -ETIMEDOUT, UINT32_MAX);
}

static uint32_t seq_free(const struct engine *e) {
    for (uint32_t i = 0; i < e->n_seqs; i++)
        if (!e->seqs[i].used)
            return i;
    return ENGINE_NONE;
}

static bool wants_penalties(const struct sched_sampling *s) {
    return s->repetition != 1.0f || s->presence != 0.0f || s->frequency != 0.0f;
}

/* Whose turn it is, and what it would take, before the scheduler decides. */
static void tell_sched(struct engine *e) {
    uint32_t pages, slots, stream;

    /* one that ended in a chunk that still runs keeps its place among the sequences too */
    sched_set_places(e->sched, seq_free(e) != ENGINE_NONE);
    if (sched_peek(e->sched, e->now_ns, &stream) == 0)
        ecache_look(e, stream);
    ecache_available(e, &pages, &slots);
    sched_available(e->sched, pages, slots);
}

/* A new sequence, or one that was away. -ENOBUFS: there is no room after all; another error is the device's. */
static int seq_begin(struct engine *e, uint32_t stream) {
    struct eng_stream *st = &e->streams[stream];
    bool fresh = st->seq == ENGINE_NONE;
    uint32_t i = fresh ? seq_free(e) : st->seq, n = mem_pages_for(stream_reserved(e, st->req));
    struct eng_seq *q = i == ENGINE_NONE ? NULL : &e->seqs[i];
    int r;

    if (!q || n > e->pages_per_seq)
        return -ENOBUFS;
    if (fresh) {
        q->stream = stream;
        e->admissions += e->admissions == UINT32_MAX ? 2 : 1;
        q->serial = e->admissions;
        q->pos = q->token = q->n_seen = 0;
        q->n_read = st->req->n_ids;
        q->answers = q->away = false;
        q->penalties = wants_penalties(&st->req->sampling);
    }
    r = ecache_begin(e, q, n);
    if (r < 0)
        return r;
    q->away = false;
    if (!fresh)
        return 0;
    q->used = true;
    q->admitted_ns = e->now_ns;
    q->first_ns = q->last_ns = q->longest_gap_ns = 0;
    q->deferred = false;
    control_begin(&q->control, &e->vocab, st->req, e->kc.max_context);
    st->seq = i;
    usage_admit(e, st->req);
    enumbers_admit(e, st->req);
    event_progress(e, stream, q->pos, 0, 0);
    return 0;
}

void streams_admit(struct engine *e) {
    uint32_t stream;
    int r;

    ecache_twins(e);
    for (;;) {
        tell_sched(e);
        if (sched_admit(e->sched, e->now_ns, &stream) < 0) {
            if (!away_one(e))
                return;
            continue;
        }
        r = seq_begin(e, stream);
        if (r < 0 && r != -ENOBUFS)
            return; /* the device is lost, and with it every stream */
        if (r < 0) {
            /* sched counts what the pools hold; a difference would be our own error */
            stream_end(e, stream, STREAM_END_ERROR, r, UINT32_MAX);
            continue;
        }
        e->queue_dirty = true;
        ecache_twins(e); /* whoever comes next may share a beginning with this one */
    }
}

static void place_report(void *ctx, uint32_t stream, uint32_t place, uint64_t wait_ns) {
    struct engine *e = ctx;
    if (e->streams[stream].place == place)
        return;
    e->streams[stream].place = place;
    event_progress(e, stream, 0, place, wait_ns);
}

/* Working the places out costs the square of the queue, so not more often than a reader could tell. */
void streams_places(struct engine *e) {
    uint64_t retry;

    if (!e->queue_dirty || (e->places_ns && e->now_ns - e->places_ns < PLACES_NS))
        return;
    e->queue_dirty = false;
    e->places_ns = e->now_ns;
    sched_positions(e->sched, e->now_ns, place_report, e);
    retry = (sched_retry_ns(e->sched) + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS;
    atomic_store_explicit(&e->stats.retry_ms, retry > UINT32_MAX ? UINT32_MAX : (uint32_t)retry,
                          memory_order_relaxed);
}

/* ---- credit ---- */

/* Records that a stream must have room for. back: it was set aside while its reader stood still. Coming back costs
 * others a seat, and perhaps all of its prompt again: that is not for one token. */
static uint32_t credit_wanted(const struct eng_stream *st, bool back) {
    uint32_t one = stream_token_records(st->req->sampling.n_alts), some = RETURN_TOKENS * one;

    if (!back || FAULT(credit_back_for_one))
        return one;
    some = some < st->most_credit / 2 ? some : st->most_credit / 2;
    return some > one ? some : one;
}

static bool credit_enough(struct engine *e, uint32_t stream, bool refresh, bool back) {
    struct eng_stream *st = &e->streams[stream];
    uint32_t need = credit_wanted(st, back);
    uint32_t have = atomic_load_explicit(&e->sink.credit[stream].records, memory_order_acquire);

    /* What the last step made is not published yet and not yet taken off the credit: when it could matter,
     * publishing goes before launching for once. */
    if (e->n_events && have < 2 * need + 2) {
        events_publish(e);
        have = atomic_load_explicit(&e->sink.credit[stream].records, memory_order_acquire);
    }
    if (have < need && refresh && e->sink.refresh)
        have = e->sink.refresh(e->sink.ctx, st->id, need);
    st->most_credit = have > st->most_credit ? have : st->most_credit;
    return have >= need;
}

/* Before a step is planned: a stream whose ring could not take a token stays out of it. The sink is asked
 * once when a stream falls short (it then promises a kick), and again after a kick or when the safety timer
 * has run out; the timer finding anything means that a kick was lost, which is counted. */
void streams_credit(struct engine *e) {
    uint32_t kicks = atomic_load_explicit(&e->inbox.kicks, memory_order_acquire);
    bool kicked = kicks != e->seen_kicks;
    bool timer = e->safety_ns && e->now_ns >= e->safety_ns, back = false;

    e->seen_kicks = kicks;
    if (!e->sink.credit)
        return;
    for (uint32_t i = 0; i < e->n_seqs; i++) {
        struct eng_seq *q = &e->seqs[i];
        struct eng_stream *st;
        bool ok, samples, aside;

        if (!q->used || q->gone)
            continue;
        st = &e->streams[q->stream];
        if (q->away && !st->skipped)
            continue;
        /* a prompt may be read without credit up to the chunk that samples */
        samples = q->away || sched_job_state(e->sched, q->stream) == SCHED_DECODE ||
                  (!q->answers && q->n_read - q->pos <= e->opt.prefill_tokens);
        aside = st->skipped && (q->away || sched_job_paused(e->sched, q->stream));
        ok = !samples || credit_enough(e, q->stream, !st->skipped || kicked || timer, aside);
        if (ok && st->skipped && timer && !kicked)
            stat_add(&e->stats.safety_wakes, 1);
        if (!ok)
            stat_add(&e->stats.skips, !st->skipped);
        if (ok == !st->skipped)
            continue;
        st->skipped = !ok;
        sched_skip(e->sched, q->stream, !ok, e->now_ns);
        e->n_skipped = ok ? e->n_skipped - 1 : e->n_skipped + 1;
        back |= ok && aside;
        if (ok && q->deferred) {
            q->deferred = false;
            step_token(e, i, &q->result, q->deferred_ns);
        }
    }
    if (!e->n_skipped)
        e->safety_ns = 0;
    else if (!e->safety_ns || timer)
        e->safety_ns = e->now_ns + SAFETY_NS;
    if (back && !FAULT(credit_forgets_seats))
        streams_admit(e); /* one that gave up its seat can go on: nobody else may wake this thread for it */
}
