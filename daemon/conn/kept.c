/* SPDX-License-Identifier: MIT */
/* Kept streams: who may resume which, for how long they wait, and how many there are. Their records lie in
 * the stores of emit, one for each place in server->kept. io thread. */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "clock.h"
#include "conn_impl.h"

/* Those that records of an answer may use. */
static const uint64_t KEPT_FEATURES = GLMW_FEAT_LOGPROBS | GLMW_FEAT_ALTS | GLMW_FEAT_TOOL_EVENTS;

uint64_t kept_features(const struct server *s) {
    return s->max_kept ? GLMW_FEAT_RESUME : 0;
}

uint32_t kept_store(const struct server *s, const struct kept *k) {
    return (uint32_t)(k - s->kept);
}

void kept_free(struct server *s, struct kept *k) {
    struct user *u;

    if (!k)
        return;
    u = k->user;
    *k = (struct kept){0};
    u->kept--;
    user_put(s, u);
}

/* One's own that ended first; those of others are never pushed out. */
static struct kept *oldest_ended(struct server *s, const struct user *u) {
    struct kept *oldest = NULL;

    for (uint32_t i = 0; i < s->max_kept; i++) {
        struct kept *k = &s->kept[i];

        if (k->id && k->user == u && !k->request && (!oldest || k->until_ns < oldest->until_ns))
            oldest = k;
    }
    return oldest;
}

static struct kept *free_place(struct server *s) {
    for (uint32_t i = 0; i < s->max_kept; i++)
        if (!s->kept[i].id)
            return &s->kept[i];
    return NULL;
}

static bool is_used(const struct server *s, uint64_t id) {
    for (uint32_t i = 0; i < s->max_kept; i++)
        if (s->kept[i].id == id)
            return true;
    return false;
}

struct kept *kept_place(struct conn *c, uint64_t *ret_id) {
    struct server *s = c->server;
    struct kept *k = c->user->kept < c->quota.kept_per_uid ? free_place(s) : NULL;
    uint64_t id = 0;

    if (!k && c->user->kept <= c->quota.kept_per_uid) /* it may be more: a reload made the quota smaller */
        k = oldest_ended(s, c->user);
    if (!k)
        return NULL;
    while (id == 0 || is_used(s, id))
        if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id)
            return NULL;
    *ret_id = id;
    if (FAULT(kept_dropped_early) && k->id)
        kept_free(s, k);
    return k;
}

void kept_begin(struct conn *c, struct kept *k, uint64_t id, struct request *r) {
    if (k->id)
        kept_free(c->server, k);
    *k = (struct kept){.id = id, .user = c->user, .features = c->features & KEPT_FEATURES, .request = r};
    c->user->kept++;
    r->kept = k;
}

static uint64_t patience(const struct server *s) {
    return clock_now_ns() + s->opt.conf->keep_disconnected_sec * CLOCK_NS_PER_SEC;
}

void kept_ended(struct request *r) {
    struct kept *k = r->kept;

    if (!k || k->request != r)
        return;
    k->request = NULL;
    if (r->prep) /* to look at it again makes it no younger */
        k->until_ns = patience(r->server);
}

void kept_detach(struct request *r, int status, const char *text) {
    struct server *s = r->server;

    /* over: it is taken from the list of the retired, and the connection it ended on stays until then */
    if (!emit_stream_detach(s->opt.emit, r->stream, status, text) && !(FAULT(kept_moves_ended) && r->prep))
        return;
    request_move(r, NULL);
    r->kept->until_ns = patience(s);
}

void kept_tick(struct server *s, uint64_t now) {
    for (uint32_t i = 0; i < s->max_kept; i++) {
        struct kept *k = &s->kept[i];

        if (!k->id || k->until_ns > now || FAULT(resume_kept_for_ever))
            continue;
        if (!k->request)
            kept_free(s, k);
        else if (!k->request->conn)
            request_cancel(k->request);
    }
}

/* ---- RESUME ---------------------------------------------------------------------------------------------
 */

static int check_allowed(struct conn *c, struct xerr *err) {
    const struct server *s = c->server;

    if (s->state == GLMW_STATE_FAILED)
        return xerr_set(err, -EIO, "the daemon has failed and is about to exit");
    if (!(c->features & GLMW_FEAT_RESUME))
        return xerr_set(err, -EOPNOTSUPP, "resuming a stream was not granted in the handshake");
    if (c->n_live >= c->limits.max_live)
        return xerr_set(err, -EBUSY, "this connection has %u live requests, which is its limit", c->n_live);
    return 0;
}

/* One answer for an id that never was, one that is over, one of somebody else and records that are gone:
 * nobody learns which numbers are in use. */
static int no_data(struct xerr *err) {
    return xerr_set(err, -ENODATA,
                    "no such stream can be resumed from there: it is unknown, over for too "
                    "long, or its records of that time are gone");
}

static struct kept *find(struct conn *c, uint64_t id) {
    struct server *s = c->server;

    for (uint32_t i = 0; i < s->max_kept; i++)
        if (kept_is(&s->kept[i], id, c->user->uid))
            return &s->kept[i];
    return NULL;
}

/* A stream that has ended: a request of its own shows what is left. */
static int replay(struct conn *c, struct kept *k, struct emit_accept *a, uint32_t from_seq) {
    struct request *r;
    int ret;

    if (c->user->live >= c->quota.requests_per_uid)
        return -EDQUOT;
    r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    a->owner = r;
    ret = emit_conn_replay(c->out, a, from_seq, &r->stream);
    if (ret < 0) {
        free(r);
        return ret;
    }
    r->kept = k;
    r->tag = a->tag;
    k->request = r;
    request_link(c->server, c, r);
    return 0;
}

static int attach(struct conn *c, struct kept *k, const struct glmw_entry *e) {
    struct server *s = c->server;
    uint32_t from_seq = e->session ? (uint32_t)e->session : 1; /* 0 was the ACCEPTED of another tag */
    struct emit_accept a = {
        .tag = e->tag, .client_ns = e->client_ns, .stream_id = k->id, .store = kept_store(s, k)};
    struct request *r = k->request;
    int ret;

    ret = emit_store_check(s->opt.emit, a.store, r ? r->stream : (struct stream_id){0}, from_seq);
    if (ret < 0)
        return ret;
    if (r && r->conn) {
        kept_detach(r, -ECANCELED, "the answer goes on under another tag: it was resumed");
        emit_take_retired(s->opt.emit, request_retired, s);
        r = k->request;
    }
    if (!r)
        return replay(c, k, &a, from_seq);
    ret = emit_stream_attach(c->out, r->stream, &a, from_seq);
    if (ret == -ESTALE) { /* it ended between two looks; then it is on the list */
        emit_take_retired(s->opt.emit, request_retired, s);
        return k->request ? -EAGAIN : replay(c, k, &a, from_seq);
    }
    if (ret == 0) {
        r->tag = e->tag;
        request_move(r, c);
    }
    return ret;
}

/* The number is not logged: somebody may have mistyped one that is in use. A refusal, which must not hide faults. */
static void log_unknown(struct conn *c) {
    struct log_fields f = {.conn = c->id, .uid = c->user->uid};
    struct log_rate *rate = FAULT(resume_hides_faults) ? &c->user->rate : &c->user->quota_rate;

    log_full(LOG_LEVEL_NOTICE, &f, rate, "a stream was asked for that is unknown or not this user's (process %u)",
             c->pid);
}

int kept_resume(struct conn *c, const struct glmw_entry *e) {
    struct xerr err = {0};
    struct kept *k;
    int ret;

    emit_take_retired(c->server->opt.emit, request_retired, c->server);
    if (request_find(c, e->tag)) {
        conn_fault(c, -EPROTO, "a submission entry with a tag that is live");
        return -EPIPE;
    }
    ret = check_allowed(c, &err);
    if (ret == 0)
        ret = quota_check_rate(c, e->tag, &err);
    if (ret == 0) {
        k = find(c, e->payload_off);
        if (!k) {
            log_unknown(c);
            ret = -ENODATA;
        } else if (k->features & ~c->features)
            ret = xerr_set(&err, -EOPNOTSUPP,
                           "the stream has records of features that this connection was not granted");
        else
            ret = attach(c, k, e);
    }
    if (ret == 0)
        return 0;
    if (ret == -ENODATA)
        no_data(&err);
    else if (ret == -EBUSY && err.code == 0)
        xerr_set(&err, ret, "the daemon has no room for another request now; try again later");
    else if (ret == -EDQUOT)
        xerr_set(&err, quota_refuse(c, e->tag, "MaxRequestsPerUid"),
                 "this user has %u live requests, which is the quota ([Quota] MaxRequestsPerUid)",
                 c->user->live);
    else if (ret == -ENOMEM)
        xerr_set(&err, ret, "the daemon has no memory for another request");
    return request_refuse(c, e->tag, ret, &err);
}
