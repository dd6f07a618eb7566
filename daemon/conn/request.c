/* SPDX-License-Identifier: MIT */
/* A request from its submission entry to its retirement: quota, private copy of the payload, decoding,
 * acceptance, hand-over to the text workers, cancellation. io thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "conn_impl.h"

struct request *request_find(struct conn *c, uint64_t tag) {
    for (struct request *r = c->requests; r; r = r->next)
        if (r->tag == tag)
            return r;
    return NULL;
}

/* 0, or a refusal with its text. */
static int check_allowed(struct conn *c, const struct glmw_entry *e, const struct bulk *b, struct xerr *err) {
    const struct server *s = c->server;

    if (s->state == GLMW_STATE_DRAINING)
        return xerr_set(err, -ESHUTDOWN, "the daemon is shutting down and takes no new requests");
    if (s->state == GLMW_STATE_FAILED)
        return xerr_set(err, -EIO, "the daemon has failed and is about to exit");
    if (e->flags & GLMW_ENT_KEEP && !(c->features & GLMW_FEAT_RESUME))
        return xerr_set(err, -EOPNOTSUPP, "keeping a stream was not granted in the handshake");
    if (e->opcode == GLMW_OP_EMBED)
        return xerr_set(err, -EOPNOTSUPP, "embeddings were not granted by this daemon");
    if (e->flags & GLMW_ENT_BULK && !(c->features & GLMW_FEAT_BULK))
        return xerr_set(err, -EOPNOTSUPP, "bulk payloads were not asked for in the handshake");
    if (e->opcode != GLMW_OP_SUBMIT && !(c->features & GLMW_FEAT_TOKENIZE))
        return xerr_set(err, -EOPNOTSUPP, "tokenizing was not asked for in the handshake");
    if (c->n_live >= c->limits.max_live)
        return xerr_set(err, -EBUSY, "this connection has %u live requests, which is its limit", c->n_live);
    if (b)
        return b->kind == GLMW_BULK_PAYLOAD
                   ? 0
                   : xerr_set(err, -EINVAL, "the bulk object with the request is a picture, not a payload");
    if (e->payload_len > c->limits.max_payload_bytes)
        return xerr_set(err, -EMSGSIZE, "the request has %u bytes, at most %u are possible", e->payload_len,
                        c->limits.max_payload_bytes);
    if (e->payload_len == 0)
        return xerr_set(err, -EBADMSG, "the request is empty: it has neither messages nor tokens");
    return 0;
}

/* The payload by its private copy. Sealed objects are decoded by a text worker: they may be large, and every
 * connection waits for this thread. */
static int take_payload(struct conn *c, const struct glmw_entry *e, struct bulk *b, struct prep_req *p,
                        struct xerr *err) {
    int r;

    p->limits = c->limits;
    p->features = c->features;
    /* while the model is loading its numbers are not known; the text worker checks against them later */
    if (!c->model_known)
        p->limits.vocab_tokens = UINT32_MAX;
    if (b) {
        p->payload_len = (uint32_t)b->map.bytes;
        if (FAULT(bulk_copied) && (p->payload = malloc(p->payload_len))) {
            memcpy(p->payload, b->map.data, p->payload_len);
            return prep_decode(p, err);
        }
        p->sealed = b->map.data;
        return 0;
    }
    p->payload_len = e->payload_len;
    p->payload = malloc((size_t)e->payload_len + 8);
    if (!p->payload)
        return xerr_set(err, -ENOMEM, "the daemon has no memory for a request of %u bytes", e->payload_len);
    r = shm_payload_read(&c->shm, e->payload_off, e->payload_len, p->payload);
    if (r < 0)
        return xerr_set(err, r, "the request could not be read: %s", strerror(-r));
    return prep_decode(p, err);
}

/* How long it takes nobody can say; how many are in front, one can. */
static void no_room(const struct server *s, struct xerr *err) {
    xerr_set(err, -EBUSY,
             "the daemon has no room for another request now: %u are live ([Memory] MaxRequests), %u run and %u "
             "wait for their turn; try again when some have ended",
             s->n_live, s->status.running, s->status.queued);
}

static void insert(struct request *r) {
    struct request **first = r->conn ? &r->conn->requests : &r->server->adrift;

    r->prev = NULL;
    r->next = *first;
    if (r->next)
        r->next->prev = r;
    *first = r;
    if (r->conn)
        r->conn->n_live++;
}

static void take_out(struct request *r) {
    *(r->prev ? &r->prev->next : r->conn ? &r->conn->requests : &r->server->adrift) = r->next;
    if (r->next)
        r->next->prev = r->prev;
    if (r->conn)
        r->conn->n_live--;
}

void request_link(struct server *s, struct conn *c, struct request *r) {
    r->server = s;
    r->conn = c;
    r->user = c->user;
    insert(r);
    r->user->live++;
    s->n_live++;
    s->n_accepted++;
}

void request_move(struct request *r, struct conn *to) {
    take_out(r);
    bulk_detach(r->bulk); /* its id was a word between the client and the connection that is left */
    r->conn = to;
    insert(r);
}

static void unlink_request(struct request *r) {
    take_out(r);
    r->user->live--;
    r->server->n_live--;
    r->server->n_ended++;
}

static enum prep_op op_of(uint8_t opcode) {
    return opcode == GLMW_OP_TOKENIZE ? PREP_TOKENIZE : opcode == GLMW_OP_COUNT ? PREP_COUNT : PREP_SUBMIT;
}

static int accept_request(struct conn *c, const struct glmw_entry *e, struct request *r) {
    struct prep_req *p = r->prep;
    struct emit_accept a = {
        .tag = e->tag, .client_ns = e->client_ns, .quiet = e->flags & GLMW_ENT_QUIET, .owner = r};
    struct kept *k = e->flags & GLMW_ENT_KEEP ? kept_place(c, &a.stream_id) : NULL;
    int ret;

    p->owner = r;
    p->op = op_of(e->opcode);
    p->uid = c->user->uid;
    p->usage = &c->user->usage;
    p->queued_quota = c->quota.queued_tokens_per_uid;
    p->kv_quota = c->quota.kv_tokens_per_uid;
    p->weight = c->quota.weight;
    p->background = e->flags & GLMW_ENT_BACKGROUND;
    p->no_cache = e->flags & GLMW_ENT_NO_CACHE;
    p->cache_group = c->quota.cache_group;
    p->quiet = a.quiet;
    p->max_tokens = e->max_tokens;
    p->received_ns = clock_now_ns();
    p->deadline_ns = e->deadline_ms ? p->received_ns + e->deadline_ms * CLOCK_NS_PER_MS : 0;
    if (k)
        a.store = kept_store(c->server, k);
    ret = emit_conn_accept(c->out, &a, &p->stream);
    if (ret < 0)
        return ret;
    if (k)
        kept_begin(c, k, a.stream_id, r);
    r->stream = p->stream;
    if (r->bulk)
        r->bulk->by = r;
    r->tag = e->tag;
    r->with_worker = true;
    request_link(c->server, c, r);
    prep_push(c->server->opt.prep, p);
    if (FAULT(bulk_unmapped_early) && r->bulk)
        shm_bulk_done(&r->bulk->map);
    return 0;
}

int request_submit(struct conn *c, const struct glmw_entry *e) {
    struct xerr err = {0};
    struct request *r = NULL;
    struct bulk *b = NULL;
    int ret;

    /* requests that ended free their tags here, so that a client may reuse one as soon as it saw the END */
    emit_take_retired(c->server->opt.emit, request_retired, c->server);
    if (request_find(c, e->tag)) {
        conn_fault(c, -EPROTO, "a submission entry with a tag that is live");
        return -EPIPE;
    }
    if (e->flags & GLMW_ENT_BULK && c->features & GLMW_FEAT_BULK) {
        b = bulk_find(c, e->payload_off);
        if (!b || (b->by && !FAULT(bulk_named_by_two))) {
            conn_fault(c, -EPROTO, b ? "a submission entry with the bulk object of another request"
                                     : "a submission entry with a bulk id that is not alive");
            return -EPIPE;
        }
    }
    ret = check_allowed(c, e, b, &err);
    if (ret == 0)
        ret = quota_check_submit(c, e->tag, &err);
    if (ret == 0) {
        r = calloc(1, sizeof *r);
        if (r)
            r->prep = calloc(1, sizeof *r->prep);
        if (!r || !r->prep)
            ret = xerr_set(&err, -ENOMEM, "the daemon has no memory for another request");
    }
    if (ret == 0)
        ret = take_payload(c, e, b, r->prep, &err);
    if (ret == 0) {
        r->bulk = b;
        ret = accept_request(c, e, r);
        if (ret == 0)
            return 0;
        if (ret == -EBUSY)
            no_room(c->server, &err);
    }
    if (r)
        prep_req_free(r->prep);
    free(r);
    if (ret == -ENOBUFS && err.code == 0)
        return ret; /* the entry stays, and so does its bulk object */
    ret = request_refuse(c, e->tag, ret, &err);
    if (ret == 0)
        bulk_drop(b);
    return ret;
}

int request_refuse(struct conn *c, uint64_t tag, int ret, struct xerr *err) {
    /* room is missing, or the connection has just broken: server_turn sees to that */
    if (ret == -ENOBUFS && err->code == 0)
        return ret;
    if (ret == -EPIPE && err->code == 0)
        return 0;
    ret = emit_conn_refuse(c->out, tag, ret, err->msg);
    return ret == -ENOBUFS ? ret : 0;
}

void request_cancel(struct request *r) {
    struct server *s = r->server;
    struct prep_req *p = r->prep;

    if (!r->with_worker || atomic_exchange(&p->cancelled, true))
        return;
    if (prep_take_back(s->opt.prep, p)) {
        r->with_worker = false;
        emit_stream_fail(s->opt.emit, p->stream, -ECANCELED, NULL);
        return;
    }
    s->opt.cancel(s->opt.ctx, p->stream);
}

/* Its END is published, or its connection is gone: nobody else refers to it. */
void request_retired(void *ctx, void *owner) {
    struct request *r = owner;
    struct conn *c = r->conn;
    struct server *s = r->server;
    struct user *u = r->user;

    (void)ctx;
    unlink_request(r);
    kept_ended(r);
    bulk_drop(r->bulk);
    if (!FAULT(conn_request_leaked))
        prep_retire(s->opt.prep, r->prep);
    free(r);
    if (!c)
        user_put(s, u);
    if (!c || c->state == CONN_CLOSING)
        server_wake(s);
}

void request_outcome(struct server *s, struct prep_req *p) {
    struct request *r = p->owner;

    r->with_worker = false;
    switch (p->outcome) {
    case PREP_IDS:
        emit_stream_ids(s->opt.emit, p->stream, p->op == PREP_TOKENIZE ? p->ids : NULL, p->n_ids);
        break;
    case PREP_CANCELLED:
        emit_stream_fail(s->opt.emit, p->stream, -ECANCELED, NULL);
        break;
    case PREP_FAILED:
        if (p->over_quota && r->conn)
            quota_refuse(r->conn, r->tag, p->over_quota);
        emit_stream_fail(s->opt.emit, p->stream, p->error.code, p->error.msg);
        break;
    }
}
