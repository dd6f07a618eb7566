/* SPDX-License-Identifier: MIT */
/* emit: construction, the engine's sink, the emit thread, and what io and text workers ask for. Which thread
 * runs a function is said in emit.h. After emit_set_text nothing is allocated on the engine and emit
 * threads. */
#include "emit.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "emit_impl.h"
#include "seal.h"
#include "size.h"

enum {
    OUTBOX_DEFAULT = 128 << 10,
    STORE_DEFAULT = 64 << 10,
    BATCH = 64,
    HANDOVER_MIN = 4096,
    /* Of the engine's time, for a step, beside one bell. Handing over wakes a thread as a bell does, so that much it
     * costs either way, and the thread's own way to its core comes on top: one client is told directly on any
     * machine. */
    INLINE_STEP_NS = 11000,
    PACE_FIRST = PACE_ONE * 3 / 4,
    PACE_FROM_NS = 4000, /* what is estimated at less says little */
    PROBE_STEPS = 64,    /* one in so many that are handed over is published all the same, to see what that costs now */
    PROBE_STEP_NS = 3 * INLINE_STEP_NS /* unless it is far too much by any account */
};

static uint32_t pow2_at_least(uint64_t n) {
    uint32_t p = HANDOVER_MIN;

    while (p < n && p < (1u << 20))
        p <<= 1;
    return p;
}

static int make_stores(struct emit *e) {
    uint32_t n = e->opt.max_kept, each = e->opt.store_bytes ? e->opt.store_bytes : STORE_DEFAULT;
    uint64_t bytes;

    e->opt.store_bytes = each;
    e->depot = calloc(1, sizeof *e->depot);
    if (!e->depot)
        return -ENOMEM;
    e->depot->e = e;
    e->depot->closing = true;
    e->depot->first = NO_STREAM;
    if (n == 0)
        return 0;
    e->stores = calloc(n, sizeof *e->stores);
    if (size_mul(n, each, &bytes))
        e->store_mem = calloc(1, bytes);
    if (!e->stores || !e->store_mem)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        e->stores[i] = (struct estore){.buf = e->store_mem + (size_t)i * each, .cap = each};
    return 0;
}

int emit_new(const struct emit_options *opt, struct emit **ret) {
    struct emit *e = calloc(1, sizeof *e);
    uint64_t bytes;

    if (!e)
        return -ENOMEM;
    e->opt = *opt;
    if (!e->opt.outbox_bytes)
        e->opt.outbox_bytes = OUTBOX_DEFAULT;
    e->pace = opt->inline_step_ns ? PACE_ONE : PACE_FIRST;
    if (!e->opt.inline_step_ns)
        e->opt.inline_step_ns = INLINE_STEP_NS;
    else
        e->only_estimates = true;
    atomic_init(&e->retired, NO_STREAM);
    pthread_mutex_init(&e->moving, NULL);
    if (size_mul(opt->max_streams, sizeof *e->streams, &bytes) && (e->streams = aligned_alloc(64, bytes)))
        memset(e->streams, 0, bytes);
    e->credit = calloc(opt->max_streams, sizeof *e->credit);
    if (size_mul(opt->max_streams, e->opt.outbox_bytes, &bytes))
        e->outboxes = calloc(1, bytes);
    for (unsigned i = 0; i < 2; i++)
        e->desk[i] = calloc(1, e->opt.outbox_bytes);
    if (!e->streams || !e->credit || !e->outboxes || !e->desk[0] || !e->desk[1] || make_stores(e) < 0 ||
        spsc_init(&e->handover, pow2_at_least(4 * (uint64_t)opt->max_streams), sizeof(struct stream_event)) <
            0) {
        emit_free(e);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < opt->max_streams; i++) {
        e->streams[i].e = e;
        e->streams[i].index = i;
        e->streams[i].next_gen = 1;
        e->streams[i].outbox = e->outboxes + (size_t)i * e->opt.outbox_bytes;
    }
    *ret = e;
    return 0;
}

struct emit *emit_free(struct emit *e) {
    if (!e)
        return NULL;
    spsc_done(&e->handover);
    pthread_mutex_destroy(&e->moving);
    free(e->store_mem);
    free(e->stores);
    free(e->depot);
    free(e->parser_mem);
    free(e->outboxes);
    free(e->desk[0]);
    free(e->desk[1]);
    free(e->credit);
    free(e->streams);
    free(e);
    return NULL;
}

static uint64_t parser_bytes(const struct tok *tok) {
    const struct outparse_limits lim = OUTPARSE_LIMITS_DEFAULT;

    return tok ? (outparse_bytes(&lim, tok) + 63) & ~(uint64_t)63 : 0;
}

uint64_t emit_text_bytes(const struct emit *e, const struct tok *tok) {
    uint64_t all = 0, more = (uint64_t)e->opt.max_kept * e->opt.store_bytes + 2 * (uint64_t)e->opt.outbox_bytes;

    if (!size_mul(parser_bytes(tok) + e->opt.outbox_bytes, e->opt.max_streams, &all) || !size_add(all, more, &all))
        return UINT64_MAX;
    return all;
}

int emit_set_text(struct emit *e, const struct tok *tok, const uint32_t *eos, size_t n_eos,
                  struct xerr *err) {
    const struct outparse_limits lim = OUTPARSE_LIMITS_DEFAULT;
    uint64_t each, all;
    int r;

    if (!tok)
        return 0;
    r = outparse_vocab_init(&e->vocab, tok, eos, n_eos, err);
    if (r < 0)
        return r;
    each = parser_bytes(tok);
    if (!size_mul(each, e->opt.max_streams, &all) || !(e->parser_mem = aligned_alloc(64, all)))
        return xerr_set(err, -ENOMEM,
                        "no memory for the output parsers of %u requests; lower [Memory] MaxRequests",
                        e->opt.max_streams);
    for (uint32_t i = 0; i < e->opt.max_streams && r == 0; i++)
        r = outparse_init((uint8_t *)e->parser_mem + i * each, each, &lim, tok, &e->streams[i].parser);
    if (r < 0)
        return xerr_set(err, r, "the output parsers could not be set up: %s", strerror(-r));
    e->tok = tok;
    return 0;
}

/* ---- connections come and go under the other threads ----------------------------------------------------
 */

/* Sequentially consistent, as are stores of emit_stream.conn: either the thread that enters sees where the
 * stream is now, or emit_quiesce sees that it is in. */
void emit_enter(_Atomic uint32_t *in) {
    atomic_fetch_add(in, 1);
}

void emit_leave(_Atomic uint32_t *in) {
    atomic_fetch_add(in, 1);
}

/* Both threads are in for a step's worth of records at most, and wait for no client. */
void emit_quiesce(struct emit *e) {
    _Atomic uint32_t *in[] = {&e->engine_in, &e->emit_in};

    for (unsigned i = 0; i < 2; i++) {
        uint32_t was = atomic_load(in[i]);

        while ((was & 1) && atomic_load(in[i]) == was)
            sched_yield();
    }
}

/* ---- the engine's sink ----------------------------------------------------------------------------------
 */

static void set_credit(struct emit_stream *s, uint32_t records) {
    atomic_store_explicit(&s->e->credit[s->index].records, records, memory_order_relaxed);
}

/* The emit thread never waits for a client, so a full ring empties within its time slice. */
static void hand_over(struct emit *e, const struct stream_event *ev) {
    struct emit_stream *s = estream_get(e, ev->stream);

    if (!s)
        return;
    if (ev->type == STREAM_EV_TOKEN)
        atomic_fetch_add_explicit(&s->on_the_way, 1, memory_order_relaxed);
    while (!spsc_push_part(&e->handover, ev, stream_event_bytes(ev))) {
        spsc_wake(&e->handover);
        sched_yield();
    }
    if (ev->type == STREAM_EV_TOKEN) {
        _Atomic uint32_t *credit = &e->credit[s->index].records;
        uint32_t now = atomic_load_explicit(credit, memory_order_relaxed);

        /* not over what another thread has just said: the stream may have come to a connection without room
         */
        while (!atomic_compare_exchange_weak_explicit(credit, &now,
                                                      now > s->rec_per_token ? now - s->rec_per_token : 0,
                                                      memory_order_relaxed, memory_order_relaxed))
            ;
    }
}

uint32_t emit_pace_next(uint32_t pace, uint64_t measured_ns, uint64_t estimate_ns) {
    uint64_t now = measured_ns * PACE_ONE / estimate_ns;

    if (now > 4 * PACE_ONE)
        now = 4 * PACE_ONE;
    if (now < PACE_ONE / 4)
        now = PACE_ONE / 4;
    return (uint32_t)((15 * (uint64_t)pace + now + 8) / 16);
}

static bool is_cheap(const struct emit *e) {
    uint64_t ns = atomic_load_explicit(&((struct emit *)(uintptr_t)e)->step_ns, memory_order_relaxed);

    if (!FAULT(emit_bell_counts_twice))
        ns -= ns < BELL_NS ? ns : BELL_NS;
    if (ns * e->pace / PACE_ONE <= e->opt.inline_step_ns)
        return true;
    return !e->only_estimates && ns <= PROBE_STEP_NS && e->publish_calls % PROBE_STEPS == 0;
}

/* The answer is the same until the next publication, unless connections and streams come and go. */
static bool publishes_itself(struct emit *e) {
    uint32_t most = e->opt.inline_conns;

    if (FAULT(emit_conns_unbounded))
        most = UINT32_MAX;
    return most && atomic_load_explicit(&e->n_busy, memory_order_relaxed) <= most && is_cheap(e) &&
           spsc_is_drained(&e->handover);
}

static bool sink_hands_over(void *ctx) {
    return !publishes_itself(ctx);
}

/* The right of the connection the stream is at; NULL: not now. */
static struct emit_conn *hold_conn(struct emit_stream *s, uint64_t call, struct emit_conn **held) {
    for (;;) {
        struct emit_conn *c = s->conn;

        if (!c->engine_holds) {
            if (c->turned_away == call)
                return NULL;
            if (!econn_trylock(c)) {
                c->turned_away = call;
                return NULL;
            }
            c->engine_holds = true;
            c->next_held = *held;
            *held = c;
            econn_refresh(c);
        }
        if (s->conn == c) /* it cannot move any more */
            return c;
    }
}

static void sink_publish(void *ctx, const struct stream_event *ev, uint32_t n) {
    struct emit *e = ctx;
    bool direct = publishes_itself(e);
    struct emit_conn *held = NULL, *next;
    bool handed = false;
    uint64_t call = ++e->publish_calls, began = direct ? clock_now_ns() : 0, estimate = (uint64_t)n * TOKEN_NS;

    emit_enter(&e->engine_in);
    if (FAULT(slow_publish)) /* the handicap of `make bench` */
        for (uint64_t until = clock_now_ns() + 200 * CLOCK_NS_PER_US; clock_now_ns() < until;)
            ;
    for (uint32_t i = 0; i < n; i++) {
        struct emit_stream *s = estream_get(e, ev[i].stream);

        if (!s)
            continue;
        /* once one event went the other way the later ones follow it, even if the stream moved meanwhile */
        if (!direct || s->handed_over == call || !hold_conn(s, call, &held)) {
            s->handed_over = call;
            hand_over(e, &ev[i]);
            handed = true;
            continue;
        }
        estream_event(s, &ev[i], e->desk[0]);
        set_credit(s, estream_credit(s));
    }
    for (struct emit_conn *c = held; c; c = next) {
        uint64_t bells = c->counts.sent;

        next = c->next_held;
        c->engine_holds = false;
        econn_settle(c);
        estimate += (c->counts.sent - bells) * BELL_NS;
        econn_unlock(c);
    }
    emit_leave(&e->engine_in);
    if (handed)
        spsc_wake(&e->handover);
    else if (direct && estimate >= PACE_FROM_NS && !e->only_estimates && !FAULT(emit_pace_fixed))
        e->pace = emit_pace_next(e->pace, clock_now_ns() - began, estimate);
}

static uint32_t refresh_stream(struct emit_stream *s, uint32_t wanted) {
    struct emit_conn *c = s->conn;
    uint32_t credit;

    if (!econn_trylock(c))
        return 0;
    if (s->conn != c || s->held) { /* on the move: io kicks the engine when it has arrived */
        econn_unlock(c);
        return 0;
    }
    econn_refresh(c);
    estream_flush(s);
    credit = estream_credit(s);
    wanted = wanted > s->rec_per_token && !FAULT(emit_token_is_enough) ? wanted : s->rec_per_token;
    if (credit < wanted && econn_is_gone(c)) {
        c->denied = true; /* the emit thread kicks the engine when it has caught up */
    } else if (credit < wanted) {
        c->stalls++;
        c->denied = true;
        c->waiting = true;
        econn_settle(c);
        credit = estream_credit(s);
        if (credit >= wanted)
            c->denied = false;
    }
    set_credit(s, credit);
    econn_settle(c);
    econn_unlock(c);
    return credit;
}

static uint32_t sink_refresh(void *ctx, struct stream_id id, uint32_t wanted) {
    struct emit *e = ctx;
    struct emit_stream *s = estream_get(e, id);
    uint32_t credit;

    if (!s)
        return UINT32_MAX;
    emit_enter(&e->engine_in);
    credit = refresh_stream(s, wanted);
    emit_leave(&e->engine_in);
    return credit;
}

void emit_get_sink(struct emit *e, struct stream_sink *ret) {
    *ret = (struct stream_sink){
        .ctx = e,
        .publish = sink_publish,
        .hands_over = sink_hands_over,
        .refresh = sink_refresh,
        .credit = e->credit,
    };
}

/* ---- the emit thread ------------------------------------------------------------------------------------
 */

/* The right of the connection the stream is at, once per batch. */
static struct emit_conn *batch_conn(struct emit_stream *s, struct emit_conn **held) {
    for (;;) {
        struct emit_conn *c = s->conn, *h;

        for (h = *held; h && h != c; h = h->next_batch)
            ;
        if (!h) {
            econn_lock(c);
            c->next_batch = *held;
            *held = c;
            econn_refresh(c);
        }
        if (s->conn == c)
            return c;
    }
}

/* One batch: everything that is there, at most BATCH events. The records count as consumed only after all of
 * them were published, because the engine takes an empty ring as leave to publish itself. */
static uint32_t publish_batch(struct emit *e) {
    struct emit_conn *held = NULL, *next;
    const struct stream_event *ev;
    uint32_t n = 0;
    bool kick = false;

    emit_enter(&e->emit_in);
    while (n < BATCH && (ev = spsc_peek_at(&e->handover, n))) {
        struct emit_stream *s = estream_get(e, ev->stream);
        struct emit_conn *c;

        n++;
        if (!s)
            continue;
        c = batch_conn(s, &held);
        estream_event(s, ev, e->desk[1]);
        if (ev->type == STREAM_EV_TOKEN)
            atomic_fetch_sub_explicit(&s->on_the_way, 1, memory_order_relaxed);
        set_credit(s, estream_credit(s));
        kick = kick || c->denied;
        if (econn_is_gone(c))
            c->denied = false; /* nobody gives credit there */
    }
    for (struct emit_conn *c = held; c; c = next) {
        next = c->next_batch;
        econn_settle(c);
        econn_unlock(c);
    }
    emit_leave(&e->emit_in);
    spsc_advance(&e->handover, n);
    if (kick)
        e->opt.kick(e->opt.ctx);
    return n;
}

static void *emit_main(void *ctx) {
    struct emit *e = ctx;

    pthread_setname_np(pthread_self(), "glmd-emit");
    seal_this_thread();
    for (;;) {
        while (publish_batch(e))
            ;
        if (atomic_load_explicit(&e->stop, memory_order_acquire) && !spsc_peek(&e->handover))
            return NULL;
        spsc_wait(&e->handover, &e->stop, 0);
    }
}

int emit_start(struct emit *e) {
    sigset_t all, old;
    int r;

    /* signals belong to the io thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = pthread_create(&e->thread, NULL, emit_main, e);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r)
        return -r;
    e->running = true;
    return 0;
}

void emit_stop(struct emit *e) {
    if (!e->running)
        return;
    atomic_store_explicit(&e->stop, 1, memory_order_release);
    spsc_wake(&e->handover);
    pthread_join(e->thread, NULL);
    e->running = false;
}
