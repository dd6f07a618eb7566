/* SPDX-License-Identifier: MIT */
/* The server object: the turn, the tick, state and status for every connection. io thread, except server_wake
 * and server_prepared. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "conn_impl.h"
#include "random.h"

static void on_resume_listen(void *ctx) {
    struct server *s = ctx;

    if (!s->listener)
        return;
    /* Resuming looks at the queue afresh. Where the pause itself found no memory, that takes another one
     * first; and as long as one of both fails, nobody could connect any more. */
    if (FAULT(conn_resumes_once)) {
        loop_pause(s->opt.loop, s->listener, false);
        return;
    }
    if (loop_pause(s->opt.loop, s->listener, true) < 0 || loop_pause(s->opt.loop, s->listener, false) < 0)
        listen_pause(s);
}

static void on_resume_bells(void *ctx) {
    struct server *s = ctx;
    uint64_t now = clock_now_ns(), next = 0;

    for (struct conn *c = s->conns; c; c = c->next) {
        if (!c->paused_until_ns || c->state != CONN_OPEN)
            continue;
        if (c->paused_until_ns > now) {
            if (!next || c->paused_until_ns < next)
                next = c->paused_until_ns;
            continue;
        }
        c->paused_until_ns = 0;
        c->ready = s->any_ready = true;
        if (loop_pause(s->opt.loop, c->bell_source, false) < 0) {
            c->paused_until_ns = now + 10 * CLOCK_NS_PER_MS;
            next = next && next < c->paused_until_ns ? next : c->paused_until_ns;
        }
    }
    s->resume_bells_at_ns = next;
    loop_timer_set(s->resume_bells, next);
}

/* Never later than planned: whoever is paused next would keep the others out of sight. */
void server_plan_bells(struct server *s, uint64_t at_ns) {
    if (s->resume_bells_at_ns && s->resume_bells_at_ns <= at_ns && !FAULT(conn_bells_put_off))
        return;
    s->resume_bells_at_ns = at_ns;
    loop_timer_set(s->resume_bells, at_ns);
}

int server_new(const struct server_options *opt, struct server **ret) {
    struct server *s = calloc(1, sizeof *s);
    int r;

    if (!s)
        return -ENOMEM;
    s->owner = geteuid();
    s->opt = *opt;
    s->listen_fd = s->lock_fd = -1;
    s->max_kept = opt->conf->max_kept;
    s->kept = s->max_kept ? calloc(s->max_kept, sizeof *s->kept) : NULL;
    if (s->max_kept && !s->kept) {
        free(s);
        return -ENOMEM;
    }
    s->state = GLMW_STATE_LOADING;
    do
        r = random_u64(&s->generation);
    while (r == 0 && s->generation == 0);
    if (r < 0) {
        free(s->kept);
        free(s);
        return r;
    }
    r = loop_timer_new(opt->loop, on_resume_listen, s, &s->resume_listen);
    if (r == 0)
        r = loop_timer_new(opt->loop, on_resume_bells, s, &s->resume_bells);
    if (r < 0) {
        server_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

struct server *server_free(struct server *s) {
    if (!s)
        return NULL;
    server_stop_listening(s);
    loop_timer_free(s->opt.loop, s->resume_listen);
    loop_timer_free(s->opt.loop, s->resume_bells);
    while (s->users) {
        struct user *u = s->users;

        s->users = u->next;
        free(u);
    }
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s->kept);
    free(s);
    return NULL;
}

void server_wake(struct server *s) {
    /* the exchange is a full barrier: what was written before is seen by the turn that clears the word */
    if (!atomic_exchange(&s->woken, true))
        loop_kick(s->opt.loop);
}

void server_prepared(struct server *s, struct prep_req *r, enum prep_outcome outcome) {
    struct prep_req *head = atomic_load_explicit(&s->prepared, memory_order_relaxed);

    r->outcome = outcome;
    do
        r->next = head;
    while (!atomic_compare_exchange_weak_explicit(&s->prepared, &head, r, memory_order_release,
                                                  memory_order_relaxed));
    server_wake(s);
}

static void take_prepared(struct server *s) {
    struct prep_req *r = atomic_exchange_explicit(&s->prepared, NULL, memory_order_acquire), *first = NULL;

    while (r) { /* oldest first */
        struct prep_req *next = r->next;

        r->next = first;
        first = r;
        r = next;
    }
    while (first) {
        r = first;
        first = r->next;
        request_outcome(s, r); /* may free it */
    }
}

/* What broke the connection on the publisher's side: the client, or want of memory for its bell, which is not
 * its fault and not held against its user. */
static void ring_broke(struct conn *c, int error) {
    static const char no_reader[] = "the read end of the notify pipe was closed";

    /* no breach: a process that is killed loses its descriptors in any order, the pipe perhaps first */
    if (error == -EPIPE && !FAULT(conn_death_is_a_fault)) {
        conn_log(c, LOG_LEVEL_NOTICE, LOG_EV_NONE, no_reader);
        conn_close(c, error, no_reader);
        return;
    }
    if (error != -EFAULT && error != -EPROTO && error != -EPIPE) {
        conn_log(c, LOG_LEVEL_WARNING, LOG_EV_NONE, "connection ended: its client could not be woken");
        conn_close(c, error, "the daemon could not wake this client");
        return;
    }
    conn_fault(c, error,
               error == -EFAULT ? "the memory of the token ring was taken away"
                                : "an impossible head of the token ring");
}

bool server_turn(struct server *s) {
    if (atomic_exchange(&s->woken, false)) {
        take_prepared(s);
        emit_take_retired(s->opt.emit, request_retired, s);
        for (struct conn *c = s->conns, *next; c; c = next) {
            next = c->next;
            if (c->state == CONN_OPEN && emit_conn_error(c->out))
                ring_broke(c, emit_conn_error(c->out));
            conn_finish_if_done(c);
        }
    }
    if (s->any_ready) {
        s->any_ready = false;
        for (struct conn *c = s->conns; c; c = c->next)
            while (c->ready) {
                conn_drain(c);
                if (!FAULT(conn_drains_without_end))
                    break;
            }
    }
    return s->any_ready || atomic_load_explicit(&s->woken, memory_order_relaxed);
}

static void expire_queued(struct server *s, struct request *first, uint64_t now) {
    for (struct request *r = first, *next; r; r = next) {
        next = r->next;
        if (!r->with_worker || !r->prep->deadline_ns || r->prep->deadline_ns > now)
            continue;
        /* begun ones are the worker's and the engine's to end */
        if (!prep_take_back(s->opt.prep, r->prep))
            continue;
        r->with_worker = false;
        emit_stream_fail(s->opt.emit, r->prep->stream, -ETIMEDOUT, NULL);
    }
}

/* A client that is stopped or has forgotten its answers must not keep a place in the batch for ever. */
static void end_stalled(struct server *s, struct conn *c, uint64_t now) {
    uint64_t limit_ns = s->opt.conf->stall_timeout_sec * CLOCK_NS_PER_SEC;

    if (FAULT(conn_waits_for_ever) || emit_conn_stalled_ns(c->out, now) < limit_ns)
        return;
    if (c->n_live == 0)
        return;
    for (struct request *r = c->requests, *next; r; r = next) {
        next = r->next;
        if (r->kept)
            kept_detach(r, -ETIMEDOUT, "nobody read the answer for too long; it can be resumed");
    }
    emit_conn_give_up(c->out);
    conn_log(c, LOG_LEVEL_NOTICE, LOG_EV_STALLED, "requests ended: the client does not read its answers");
    for (struct request *r = c->requests; r; r = r->next)
        request_cancel(r);
}

void server_tick(struct server *s) {
    uint64_t now = clock_now_ns();

    for (struct conn *c = s->conns; c; c = c->next) {
        if (c->state == CONN_HELLO && c->hello_by_ns <= now) {
            conn_log(c, LOG_LEVEL_NOTICE, LOG_EV_CONN_REJECTED, "connection closed: no hello in time");
            conn_close(c, -ETIMEDOUT, "no hello in time");
            continue;
        }
        if (c->state != CONN_OPEN)
            continue;
        expire_queued(s, c->requests, now);
        emit_conn_rescue(c->out);
        end_stalled(s, c, now);
        if (c->blocked)
            c->ready = s->any_ready = true;
    }
    expire_queued(s, s->adrift, now);
    kept_tick(s, now);
    users_sweep(s);
}

void server_reload(struct server *s) {
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->state != CONN_CLOSING)
            quota_resolve(s, c->user, c->fd, &c->quota);
}

void server_set_model(struct server *s, const struct server_model *m) {
    s->model = *m;
    s->has_model = true;
    for (struct conn *c = s->conns; c; c = c->next)
        conn_send_notice(c, GLMW_NOTICE_MODEL);
}

void server_set_state(struct server *s, enum glmw_state state) {
    if (s->state == state)
        return;
    s->state = state;
    for (struct conn *c = s->conns; c; c = c->next) {
        if (c->state != CONN_OPEN)
            continue;
        conn_send_notice(c, GLMW_NOTICE_STATE);
        emit_conn_notice(c->out, GLMW_NOTICE_STATE);
    }
}

void server_write_conn_status(struct server *s, struct conn *c) {
    const struct server_status *st = &s->status;
    const struct conf_quota *q = &c->quota;
    struct emit_conn_stats own;
    struct glmw_status w;

    emit_conn_get_stats(c->out, &own);
    w = (struct glmw_status){
        .state = s->state,
        .heartbeat_ns = st->heartbeat_ns,
        .start_ns = st->start_ns,
        .kv_free_tokens = st->kv_free_tokens,
        .kv_total_tokens = st->kv_total_tokens,
        .tokens_out = st->tokens_out,
        .queued = st->queued,
        .running = st->running,
        .slots_free = st->slots_free,
        .slots_total = st->slots_total,
        .prefill_mtok_s = st->prefill_mtok_s,
        .decode_mtok_s = st->decode_mtok_s,
        .connections = s->n_conns,
        .load_permille = st->load_permille,
        .my_live = c->n_live,
        .my_live_max = c->limits.max_live,
        .my_bulk_bytes = bulk_bytes(c),
        .my_stalls = own.stalls,
        .my_bells_sent = own.bells.sent,
        .my_bells_suppressed = own.bells.suppressed,
        .my_safety_wakes = own.safety_wakes,
        .my_records = own.bells.records,
        .requests_accepted = s->n_accepted,
        .requests_ended = s->n_ended,
        .user_live = c->user->live,
        .user_live_max = q->requests_per_uid,
        .user_connections = c->user->connections,
        .user_connections_max = q->connections_per_uid,
        .user_kept = c->user->kept,
        .user_submits_max = q->submit_rate,
        .user_region_bytes = c->user->region_bytes,
        .user_region_max = q->region_bytes_per_uid,
        .user_bulk_bytes = c->user->bulk_bytes,
        .user_bulk_max = q->bulk_bytes_per_uid,
        .user_queued_tokens = atomic_load_explicit(&c->user->usage.queued_tokens, memory_order_relaxed),
        .user_queued_max = q->queued_tokens_per_uid,
        .user_kv_tokens = atomic_load_explicit(&c->user->usage.kv_tokens, memory_order_relaxed),
        .user_kv_max = q->kv_tokens_per_uid,
        .user_refused = c->user->refused,
        .budget_closes = st->budget_closes,
        .loop_closes = st->loop_closes,
    };
    glmw_status_write(&c->shm.d->status, &w);
}

void server_write_status(struct server *s, const struct server_status *st) {
    s->status = *st;
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->state == CONN_OPEN)
            server_write_conn_status(s, c);
}

static void drop_queued(struct server *s, struct request *first, int status, const char *text) {
    for (struct request *r = first; r; r = r->next)
        if (r->with_worker && prep_take_back(s->opt.prep, r->prep)) {
            r->with_worker = false;
            emit_stream_fail(s->opt.emit, r->prep->stream, status, text);
        }
}

void server_drop_queued(struct server *s, int status, const char *text) {
    for (struct conn *c = s->conns; c; c = c->next)
        drop_queued(s, c->requests, status, text);
    drop_queued(s, s->adrift, status, text);
}

void server_close_all(struct server *s) {
    for (struct request *r = s->adrift; r; r = r->next)
        request_cancel(r);
    for (struct conn *c = s->conns; c; c = c->next)
        conn_close(c, s->state == GLMW_STATE_FAILED ? -EIO : -ESHUTDOWN, "the daemon has stopped");
}

bool server_is_empty(const struct server *s) {
    return s->n_conns == 0 && s->adrift == NULL;
}

void server_count(const struct server *s, uint64_t *ret_accepted, uint64_t *ret_ended) {
    *ret_accepted = s->n_accepted;
    *ret_ended = s->n_ended;
}

uint32_t server_live(const struct server *s) {
    return s->n_live;
}

uint32_t server_connections(const struct server *s) {
    return s->n_conns;
}
