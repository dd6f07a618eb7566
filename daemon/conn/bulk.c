/* SPDX-License-Identifier: MIT */
/* Bulk objects: sealed memfds that clients send for payloads too large for the arena. The table of a
 * connection, its quota, and the answers. An object is mapped read-only and read in place; the descriptor is
 * closed at once. io thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conn_impl.h"

struct bulk *bulk_find(struct conn *c, uint64_t id) {
    for (int i = 0; i < BULK_MAX; i++)
        if (c->bulk[i] && c->bulk[i]->id == id)
            return c->bulk[i];
    return NULL;
}

void bulk_detach(struct bulk *b) {
    for (int i = 0; b && b->conn && i < BULK_MAX; i++)
        if (b->conn->bulk[i] == b) {
            b->conn->bulk[i] = NULL;
            b->conn = NULL;
        }
}

void bulk_drop(struct bulk *b) {
    if (!b)
        return;
    bulk_detach(b);
    b->user->bulk_bytes -= b->map.bytes;
    if (!FAULT(bulk_stays_mapped))
        shm_bulk_done(&b->map);
    free(b);
}

void bulk_drop_unnamed(struct conn *c) {
    for (int i = 0; i < BULK_MAX; i++)
        if (c->bulk[i] && !c->bulk[i]->by)
            bulk_drop(c->bulk[i]);
}

uint64_t bulk_bytes(const struct conn *c) {
    uint64_t n = 0;

    for (int i = 0; i < BULK_MAX; i++)
        if (c->bulk[i])
            n += c->bulk[i]->map.bytes;
    return n;
}

static struct bulk **free_place(struct conn *c) {
    for (int i = 0; i < BULK_MAX; i++)
        if (!c->bulk[i])
            return &c->bulk[i];
    return NULL;
}

static void log_refusal(const struct conn *c, const char *why) {
    struct log_fields f = {.event = LOG_EV_PROTOCOL, .conn = c->id, .uid = c->user->uid};

    log_full(LOG_LEVEL_NOTICE, &f, &c->user->quota_rate, "bulk object refused: %s (process %u)", why, c->pid);
}

/* What costs nothing is looked at before the file itself, whose pages have to be walked. */
static int take(struct conn *c, const struct glmw_bulk *m, int fd, const char **ret_why) {
    uint64_t limit = c->quota.bulk_bytes_per_uid;
    struct bulk **place = free_place(c), *b;
    int r;

    if (!place) {
        *ret_why = "the connection has as many as it may";
        return -EBUSY;
    }
    if (m->bytes <= c->limits.max_bulk_bytes &&
        (c->user->bulk_bytes > limit || m->bytes > limit - c->user->bulk_bytes) && !FAULT(bulk_no_quota)) {
        return quota_refuse(c, 0, "MaxBulkBytesPerUid");
    }
    b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    r = shm_bulk_map(fd, m->bytes, c->limits.max_bulk_bytes, &b->map, ret_why);
    if (r < 0) {
        free(b);
        return r;
    }
    b->conn = c;
    b->user = c->user;
    b->id = m->id;
    b->kind = m->kind;
    b->user->bulk_bytes += m->bytes;
    *place = b;
    return 0;
}

void bulk_receive(struct conn *c, const struct glmw_bulk *m, int fd) {
    struct hello_msg msg = {.type = GLMW_PKT_BULK_OK, .u.bulk_answer.id = m->id};
    const char *why = NULL;
    int r;

    /* requests that ended free their objects here, so that a client may count on it as soon as it saw END */
    emit_take_retired(c->server->opt.emit, request_retired, c->server);
    if (bulk_find(c, m->id)) {
        conn_fault(c, -EPROTO, "a bulk object with an id that is alive");
        return;
    }
    r = take(c, m, fd, &why);
    if (r < 0) {
        if (r != -EDQUOT)
            log_refusal(c, why ? why : strerror(-r));
        /* to find out takes a walk over the pages: it is not done for ever for who does not learn */
        if (r == -EINVAL && ++c->bulk_refused > BULK_MAX && !FAULT(bulk_refused_for_ever)) {
            conn_fault(c, -EPROTO, "bulk objects that break the rules, again and again");
            return;
        }
        msg.type = GLMW_PKT_BULK_ERR;
        msg.u.bulk_answer.error = r;
    }
    /* a client that does not read its answers would wait for this one for ever */
    r = conn_send(c, &msg, NULL, 0);
    if (r == -EAGAIN)
        conn_fault(c, -EPROTO, "answers to bulk objects are not read from the socket");
    else if (r < 0)
        conn_close(c, 0, NULL);
}
