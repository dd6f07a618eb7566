/* SPDX-License-Identifier: MIT */
/* emit as the io thread and the text workers see it: connections come and go, streams are accepted, bound,
 * answered without the engine, and taken back when they are over. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "emit_impl.h"
#include "utf8.h"

enum { MIN_OPEN_SLOTS = 16 }; /* of a ring, beside what live streams keep back */

int emit_conn_new(struct emit *e, const struct shm_pair *shm, int pipe_w, struct emit_conn **ret) {
    struct emit_conn *c = calloc(1, sizeof *c);
    struct glmw_consumer unused;

    if (!c)
        return -ENOMEM;
    c->txt_after = calloc((size_t)1 << shm->geom.tq_log2, sizeof *c->txt_after);
    if (!c->txt_after) {
        free(c);
        return -ENOMEM;
    }
    c->e = e;
    shm_pair_rings(shm, &unused, &c->tq);
    c->u_base = shm->u;
    c->u_bytes = sizeof(struct glmw_u);
    c->d = shm->d;
    c->pipe_w = pipe_w;
    c->txt = (uint8_t *)shm->d + shm->geom.txt_off;
    c->txt_bytes = UINT64_C(1) << shm->geom.txt_log2;
    c->first = NO_STREAM;
    c->stall_since_ns = clock_now_ns();
    c->tool_events = shm->d->features & GLMW_FEAT_TOOL_EVENTS;
    *ret = c;
    return 0;
}

void emit_conn_close(struct emit_conn *c) {
    econn_lock(c);
    c->closing = true;
    econn_flush_all(c);
    econn_unlock(c);
    /* streams the engine skipped for this connection's sake must see their cancellation */
    c->e->opt.kick(c->e->opt.ctx);
}

void emit_conn_free(struct emit_conn *c) {
    if (!c)
        return;
    emit_quiesce(c->e); /* a stream may have left it while another thread was on its way to it */
    free(c->txt_after);
    free(c);
}

uint32_t emit_conn_live(const struct emit_conn *c) {
    return atomic_load_explicit(&((struct emit_conn *)(uintptr_t)c)->live, memory_order_relaxed);
}

int emit_conn_error(const struct emit_conn *c) {
    return atomic_load_explicit(&((struct emit_conn *)(uintptr_t)c)->error, memory_order_relaxed);
}

void emit_conn_resume(struct emit_conn *c) {
    bool kick;

    econn_lock(c);
    econn_refresh(c);
    kick = c->denied;
    c->denied = false;
    c->io_waits = false;
    if (!c->waiting || econn_flush_all(c)) {
        c->waiting = false;
        if (!econn_is_gone(c))
            glmw_credit_done(&c->d->credit_wanted);
    }
    econn_settle(c);
    econn_unlock(c);
    if (kick)
        c->e->opt.kick(c->e->opt.ctx);
}

bool emit_conn_rescue(struct emit_conn *c) {
    uint32_t before;
    bool moved;

    econn_lock(c);
    before = c->tq.head;
    if (c->waiting)
        econn_refresh(c);
    moved = c->waiting && c->tq.head != before;
    if (moved)
        c->safety_wakes++;
    econn_ring_owed(c);
    econn_unlock(c);
    if (moved)
        emit_conn_resume(c);
    return moved;
}

uint64_t emit_conn_stalled_ns(struct emit_conn *c, uint64_t now_ns) {
    uint64_t since;

    econn_lock(c);
    /* with an empty ring it is not the client who has to move */
    if (!c->waiting || c->tq.head != c->stall_head || c->tq.head == c->tq.published) {
        c->stall_head = c->tq.head;
        c->stall_since_ns = now_ns;
    }
    since = c->stall_since_ns;
    econn_unlock(c);
    return now_ns > since ? now_ns - since : 0;
}

uint32_t emit_conn_give_up(struct emit_conn *c) {
    uint32_t n = 0;

    econn_lock(c);
    for (uint32_t i = c->first, next; i != NO_STREAM; i = next, n++) {
        next = c->e->streams[i].next;
        estream_give_up(&c->e->streams[i]);
    }
    c->stall_since_ns = clock_now_ns();
    econn_settle(c);
    econn_unlock(c);
    return n;
}

void emit_conn_get_stats(struct emit_conn *c, struct emit_conn_stats *ret) {
    econn_lock(c);
    *ret = (struct emit_conn_stats){
        .bells = c->counts,
        .stalls = c->stalls,
        .safety_wakes = c->safety_wakes,
    };
    econn_unlock(c);
}

struct emit_stream *emit_take_slot(struct emit *e) {
    for (uint32_t n = 0; n < e->opt.max_streams; n++) {
        uint32_t i = (e->free_hint + n) % e->opt.max_streams;

        if (atomic_load_explicit(&e->streams[i].gen, memory_order_relaxed) ==
            0) { /* set by this thread only */
            e->free_hint = i + 1;
            return &e->streams[i];
        }
    }
    return NULL;
}

void emit_start_stream(struct emit_stream *s, struct emit_conn *c, const struct emit_accept *a) {
    s->conn = c;
    s->owner = a->owner;
    s->tag = a->tag;
    s->quiet = a->quiet;
    s->seq = 0;
    s->tool_events = c->tool_events;
    s->store = a->stream_id ? &c->e->stores[a->store] : NULL;
    s->replaying = s->held = false;
    s->bound = s->first_sent = s->overflow = s->given_up = s->has_error = s->open_token = false;
    s->rec_per_token = stream_token_records(0);
    atomic_store_explicit(&s->on_the_way, 0, memory_order_relaxed);
    s->out_head = s->out_tail = s->last_at = 0;
    s->ids = NULL;
    s->n_ids = s->ids_at = 0;
    memset(&s->usage, 0, sizeof s->usage);
    s->state = STREAM_OPEN;
    estream_link(s, c);
    if (s->next_gen == 0)
        s->next_gen = 1;
    atomic_store_explicit(&s->gen, s->next_gen++, memory_order_release);
    econn_live_more(c);
}

void emit_put_accepted(struct emit_conn *c, const struct emit_accept *a, uint32_t seq) {
    struct glmw_rec r;

    memset(&r, 0, sizeof r);
    r.type = GLMW_REC_ACCEPTED;
    r.seq = seq;
    r.tag = a->tag;
    r.token = GLMW_TOKEN_NONE;
    r.logprob = NAN;
    r.t_ns = clock_now_ns();
    r.u.accepted.client_ns = a->client_ns;
    r.u.accepted.stream_id = a->stream_id;
    econn_put(c, &r);
}

/* Room for io's own records, asking the client for it when there is none. */
static bool io_room(struct emit_conn *c, uint32_t n) {
    if (econn_room(c) >= n)
        return true;
    econn_refresh(c);
    if (econn_room(c) >= n)
        return true;
    c->waiting = c->io_waits = true;
    while (econn_ask(c))
        if (econn_room(c) >= n) {
            c->io_waits = false;
            return true;
        }
    return false;
}

bool emit_conn_is_full(const struct emit_conn *c) {
    return (uint64_t)(emit_conn_live(c) + 1) * GLMW_RESERVED_RECS + MIN_OPEN_SLOTS > c->tq.size;
}

int emit_admit(struct emit_conn *c) {
    if (econn_is_gone(c))
        return -EPIPE;
    return io_room(c, 1 + GLMW_RESERVED_RECS) ? 0 : -ENOBUFS;
}

int emit_conn_accept(struct emit_conn *c, const struct emit_accept *a, struct stream_id *ret) {
    struct emit_stream *s;
    int r;

    if (emit_conn_is_full(c))
        return -EBUSY;
    s = emit_take_slot(c->e);
    if (!s)
        return -EBUSY;
    econn_lock(c);
    r = emit_admit(c);
    if (r == 0) {
        emit_start_stream(s, c, a);
        /* the store begins behind it: whoever resumes gets an ACCEPTED of his own */
        if (s->store)
            estore_reset(s->store);
        emit_put_accepted(c, a, s->seq++);
        atomic_store_explicit(&c->e->credit[s->index].records, estream_credit(s), memory_order_relaxed);
        *ret = (struct stream_id){s->index, atomic_load_explicit(&s->gen, memory_order_relaxed)};
    }
    econn_settle(c);
    econn_unlock(c);
    return r;
}

int emit_conn_refuse(struct emit_conn *c, uint64_t tag, int status, const char *text) {
    struct glmw_rec r;
    size_t n = utf8_valid_prefix(text, strnlen(text, GLMW_SPAN_MAX));
    int ret = 0;

    econn_lock(c);
    if (econn_is_gone(c)) {
        ret = -EPIPE;
        goto out;
    }
    if (!io_room(c, 2)) {
        ret = -ENOBUFS;
        goto out;
    }
    memset(&r, 0, sizeof r);
    r.type = GLMW_REC_ERROR;
    r.tag = tag;
    r.token = (uint32_t)status;
    r.logprob = NAN;
    r.t_ns = clock_now_ns();
    if (n > GLMW_INLINE_BYTES && !econn_text(c, text, (uint32_t)n, &r.text_off))
        n = utf8_valid_prefix(text, GLMW_INLINE_BYTES);
    if (n <= GLMW_INLINE_BYTES) {
        r.flags = GLMW_RF_INLINE;
        memcpy(r.u.text, text, n);
    }
    r.text_len = (uint16_t)n;
    econn_put(c, &r);
    memset(&r.u, 0, sizeof r.u);
    r.type = GLMW_REC_END;
    r.flags = GLMW_RF_STEP_END;
    r.seq = 1;
    r.token = GLMW_TOKEN_NONE;
    r.text_off = 0;
    r.text_len = 0;
    r.u.end.status = status;
    r.u.end.reason = GLMW_END_NONE;
    econn_put(c, &r);
    c->urgent = true;
out:
    econn_settle(c);
    econn_unlock(c);
    return ret;
}

int emit_conn_notice(struct emit_conn *c, uint32_t what) {
    struct glmw_rec r;
    int ret = 0;

    econn_lock(c);
    econn_refresh(c);
    if (econn_is_gone(c)) {
        ret = -EPIPE;
    } else if (econn_room(c) < 1) {
        ret = -ENOBUFS;
    } else {
        memset(&r, 0, sizeof r);
        r.type = GLMW_REC_NOTICE;
        r.flags = GLMW_RF_IGNORABLE;
        r.token = what;
        r.logprob = NAN;
        r.t_ns = clock_now_ns();
        econn_put(c, &r);
        c->urgent = true;
    }
    econn_settle(c);
    econn_unlock(c);
    return ret;
}

void emit_stream_fail(struct emit *e, struct stream_id id, int status, const char *text) {
    struct emit_stream *s = estream_get(e, id);
    struct emit_conn *c;

    if (!s)
        return;
    c = s->conn;
    econn_lock(c);
    estream_fail(s, status, text);
    econn_settle(c);
    econn_unlock(c);
}

void emit_stream_ids(struct emit *e, struct stream_id id, const uint32_t *ids, uint32_t n_ids) {
    struct emit_stream *s = estream_get(e, id);
    struct emit_conn *c;

    if (!s)
        return;
    c = s->conn;
    econn_lock(c);
    s->ids = ids;
    s->n_ids = n_ids;
    s->ids_at = ids ? 0 : n_ids;
    estream_fail(s, 0, NULL);
    econn_settle(c);
    econn_unlock(c);
}

void emit_take_retired(struct emit *e, void (*fn)(void *ctx, void *owner), void *ctx) {
    uint32_t i = atomic_exchange_explicit(&e->retired, NO_STREAM, memory_order_acquire);

    while (i != NO_STREAM) {
        struct emit_stream *s = &e->streams[i];
        void *owner = s->owner;

        i = atomic_load_explicit(&s->next_retired, memory_order_relaxed);
        /* whoever retired it still holds the right until its END is published */
        econn_lock(s->conn);
        econn_unlock(s->conn);
        atomic_store_explicit(&s->gen, 0, memory_order_release);
        s->conn = NULL;
        s->owner = NULL;
        s->store = NULL;
        s->state = STREAM_FREE;
        fn(ctx, owner);
    }
}

void emit_stream_bind(struct emit *e, struct stream_id id, const struct emit_bind *b) {
    struct emit_stream *s = estream_get(e, id);
    struct outparse_req req;

    if (!s)
        return;
    pthread_mutex_lock(&e->moving); /* not under our hands, and not to a connection that goes away */
    econn_lock(s->conn);
    s->rec_per_token = stream_token_records(b->n_alts);
    if (s->parser) {
        req = (struct outparse_req){
            .vocab = &e->vocab,
            .tools = b->tools,
            .stop = b->stop,
            .thinking_open = b->thinking_open,
            .ignore_eos = b->ignore_eos,
            .sink = epiece_sink,
            .arg = s,
        };
        outparse_start(s->parser, &req);
        s->bound = true;
    }
    econn_unlock(s->conn);
    pthread_mutex_unlock(&e->moving);
}
