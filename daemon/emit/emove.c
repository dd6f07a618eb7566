/* SPDX-License-Identifier: MIT */
/* Kept streams on the move: away from a client that is gone, to the tag that resumes them, and the replay of
 * those that have ended. io thread; it holds one right at a time, because the emit thread takes several in
 * any order. */
#include <errno.h>
#include <sched.h>

#include "emit_impl.h"

static bool is_live(const struct stream_id id) {
    return id.gen != 0;
}

int emit_store_check(struct emit *e, uint32_t store, struct stream_id live, uint32_t from_seq) {
    struct emit_stream *s = is_live(live) ? estream_get(e, live) : NULL;
    struct estore *st = &e->stores[store];
    struct estore_at at;
    bool found, something;

    if (s)
        econn_lock(s->conn);
    found = estore_find(st, from_seq, &at);
    /* behind the END of one that is over nothing can come */
    something =
        found && (at.seq < st->next_seq || (s && s->state != STREAM_DONE && s->state != STREAM_REPLAY));
    if (s)
        econn_unlock(s->conn);
    return something ? 0 : -ENODATA;
}

/* The stream goes where nobody reads. What waits in its outbox goes to its store there. */
static void to_depot(struct emit_stream *s) {
    struct emit *e = s->e;

    econn_lock(e->depot);
    if (s->state != STREAM_DONE) {
        estream_link(s, e->depot);
        estream_flush(s);
        atomic_store_explicit(&e->credit[s->index].records, estream_credit(s), memory_order_relaxed);
    }
    econn_unlock(e->depot);
    e->opt.kick(e->opt.ctx);
}

bool emit_stream_detach(struct emit *e, struct stream_id id, int status, const char *text) {
    struct emit_stream *s = estream_get(e, id);
    struct emit_conn *c;
    bool goes_on = false;

    if (!s)
        return false;
    if (s->conn == e->depot)
        return true;
    c = s->conn;
    pthread_mutex_lock(&e->moving);
    econn_lock(c);
    if (s->state != STREAM_DONE) {
        if (status && !econn_is_gone(c) && !FAULT(resume_no_last_word))
            estream_farewell(s, status, text);
        s->replaying = false;
        goes_on = s->state != STREAM_REPLAY;
        if (goes_on) {
            estream_unlink(s);
            econn_live_less(c);
            econn_live_more(e->depot);
            s->conn = e->depot;
        } else {
            estream_retire(s);
        }
    }
    econn_settle(c);
    econn_unlock(c);
    pthread_mutex_unlock(&e->moving);
    if (goes_on)
        to_depot(s);
    return goes_on;
}

/* What is on the way when a stream is held, or comes to a connection without room, stays in its outbox. Its credit in
 * the depot bounds that; what the connection before had room for may be more, until the emit thread has put it into
 * the store, for which it waits for nobody. */
static void await_few_on_the_way(const struct emit_stream *s) {
    uint32_t most = CREDIT_UNSEEN / s->rec_per_token;

    while (atomic_load_explicit(&((struct emit_stream *)(uintptr_t)s)->on_the_way, memory_order_relaxed) > most &&
           !FAULT(resume_outbox_overrun))
        sched_yield();
}

/* Stops what leaves the outbox, so that nothing falls out of the store meanwhile. */
static int hold(struct emit_stream *s, uint32_t from_seq, struct estore_at *ret) {
    struct emit_conn *c = s->conn;
    int r = 0;

    econn_lock(c);
    if (s->state == STREAM_DONE)
        r = -ESTALE;
    else if (!estore_find(s->store, from_seq, ret))
        r = -ENODATA;
    else
        s->held = true;
    econn_unlock(c);
    return r;
}

static void release(struct emit_stream *s) {
    struct emit_conn *c = s->conn;

    econn_lock(c);
    s->held = false;
    if (!estream_flush(s))
        c->waiting = true;
    atomic_store_explicit(&s->e->credit[s->index].records, estream_credit(s), memory_order_relaxed);
    econn_settle(c);
    econn_unlock(c);
    s->e->opt.kick(s->e->opt.ctx);
}

/* ACCEPTED, and the place for the last words. */
static int promise(struct emit_conn *c, const struct emit_accept *a, uint32_t seq) {
    int r;

    if (emit_conn_is_full(c))
        return -EBUSY;
    econn_lock(c);
    r = emit_admit(c);
    if (r == 0) {
        emit_put_accepted(c, a, seq);
        econn_live_more(c);
    }
    econn_settle(c);
    econn_unlock(c);
    return r;
}

int emit_stream_attach(struct emit_conn *c, struct stream_id id, const struct emit_accept *a,
                       uint32_t from_seq) {
    struct emit *e = c->e;
    struct emit_stream *s = estream_get(e, id);
    struct estore_at at;
    int r;

    if (!s)
        return -ESTALE;
    await_few_on_the_way(s);
    r = hold(s, from_seq, &at);
    if (r < 0)
        return r;
    r = promise(c, a, at.seq - 1);
    if (r < 0) {
        release(s);
        return r;
    }
    pthread_mutex_lock(&e->moving);
    econn_lock(e->depot);
    estream_unlink(s);
    econn_live_less(e->depot);
    s->conn = c;
    econn_unlock(e->depot);
    pthread_mutex_unlock(&e->moving);
    econn_lock(c);
    s->tag = a->tag;
    s->replay = at;
    s->replaying = true;
    estream_link(s, c);
    econn_unlock(c);
    release(s);
    return 0;
}

int emit_conn_replay(struct emit_conn *c, const struct emit_accept *a, uint32_t from_seq,
                     struct stream_id *ret) {
    struct estore *st = &c->e->stores[a->store];
    struct emit_stream *s;
    struct estore_at at;
    int r;

    if (!estore_find(st, from_seq, &at) || at.seq >= st->next_seq)
        return -ENODATA;
    if (emit_conn_is_full(c))
        return -EBUSY;
    s = emit_take_slot(c->e);
    if (!s)
        return -EBUSY;
    econn_lock(c);
    r = emit_admit(c);
    if (r == 0) {
        emit_put_accepted(c, a, at.seq - 1);
        emit_start_stream(s, c, a);
        s->state = STREAM_REPLAY;
        s->replay = at;
        s->replaying = true;
        *ret = (struct stream_id){s->index, atomic_load_explicit(&s->gen, memory_order_relaxed)};
        if (!estream_flush(s))
            c->waiting = true;
    }
    econn_settle(c);
    econn_unlock(c);
    return r;
}
