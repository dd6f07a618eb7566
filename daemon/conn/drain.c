/* SPDX-License-Identifier: MIT */
/* Takes submission entries out of a connection's ring: at most 16 a turn, each copied once into private
 * memory before anything of it is looked at, index pages read inside a SIGBUS guard. io thread. */
#include <errno.h>
#include <string.h>

#include "busguard.h"
#include "conn_impl.h"

enum { MAX_ENTRIES = 16 };

/* -EFAULT: the client took its memory away. */
static int look(struct conn *c, struct glmw_entry *ret, unsigned max) {
    size_t bytes = c->shm.geom.pay_off; /* index words and entries; payloads are read with pread */
    struct busguard g;
    int n, take;

    if (!busguard_enter(&g, glmw_address(c->shm.u), bytes))
        return -EFAULT;
    n = glmw_peek(&c->sq);
    take = n < 0 ? 0 : n > (int)max ? (int)max : n;
    for (int i = 0; i < take; i++) {
        glmw_take(&c->sq, &ret[i]);
        if (FAULT(conn_entry_read_twice)) {
            struct glmw_entry again;

            for (int k = 0; k < 500; k++) { /* as much later as the use is behind the check */
                c->sq.head--;
                glmw_take(&c->sq, &again);
            }
            ret[i].payload_len = again.payload_len;
        }
    }
    busguard_leave(&g);
    return n < 0 ? n : take;
}

/* Positive: entries are there after all. */
static int arm(struct conn *c, uint32_t ahead) {
    struct busguard g;
    int n;

    if (!busguard_enter(&g, glmw_address(c->shm.u), sizeof(struct glmw_u)))
        return -EFAULT;
    n = glmw_arm(&c->sq, ahead);
    busguard_leave(&g);
    return n;
}

static bool is_zero(const void *p, size_t n) {
    const uint8_t *b = p;

    for (size_t i = 0; i < n; i++)
        if (b[i])
            return false;
    return true;
}

/* NOP and both CANCELs are an opcode and perhaps a tag: the rest is reserved for them. */
static bool has_fields(const struct glmw_entry *e) {
    struct glmw_entry bare = {.opcode = e->opcode, .tag = e->tag};

    return memcmp(e, &bare, sizeof bare) != 0;
}

/* RESUME has the id, the number of a record and the time beside its tag. */
static bool has_more_than_resume(const struct glmw_entry *e) {
    struct glmw_entry all = {.opcode = e->opcode,
                             .tag = e->tag,
                             .payload_off = e->payload_off,
                             .session = e->session & UINT32_MAX,
                             .client_ns = e->client_ns};

    return memcmp(e, &all, sizeof all) != 0;
}

/* Static text naming the rule broken, NULL when the entry is well-formed. */
static const char *entry_fault(const struct conn *c, const struct glmw_entry *e) {
    uint64_t arena = UINT64_C(1) << c->shm.geom.pay_log2;

    if (e->opcode > GLMW_OP_EMBED)
        return "a submission entry with an unknown operation";
    if (e->flags & ~GLMW_ENT_FLAGS || e->zero0 || !is_zero(e->zero1, sizeof e->zero1))
        return "a submission entry with reserved bits set";
    switch (e->opcode) {
    case GLMW_OP_NOP:
    case GLMW_OP_CANCEL_ALL:
        if (e->tag)
            return "a submission entry with a tag where none belongs";
        return has_fields(e) ? "a submission entry with fields that its operation does not have" : NULL;
    case GLMW_OP_CANCEL:
        if (!e->tag)
            return "a submission entry without a tag";
        return has_fields(e) ? "a submission entry with fields that its operation does not have" : NULL;
    default:
        break;
    }
    if (!e->tag)
        return "a submission entry without a tag";
    if (e->opcode == GLMW_OP_RESUME)
        return has_more_than_resume(e) ? "a submission entry with fields that its operation does not have"
                                       : NULL;
    if (e->flags & (GLMW_ENT_KEEP | GLMW_ENT_BACKGROUND | GLMW_ENT_NO_CACHE) && e->opcode != GLMW_OP_SUBMIT)
        return "a submission entry with a flag that its operation does not have";
    if (e->flags & GLMW_ENT_BULK && e->payload_len)
        return "a submission entry with a bulk object and a payload in one";
    if (!(e->flags & GLMW_ENT_BULK) &&
        (e->payload_len > arena || e->payload_off > arena - e->payload_len || e->payload_off % GLMW_ALIGN))
        return "a submission entry whose payload lies outside the arena";
    return NULL;
}

/* 0: done; -ENOBUFS: keep it for later; -EPIPE: the connection is gone. */
static int handle(struct conn *c, const struct glmw_entry *e) {
    const char *fault = entry_fault(c, e);
    struct request *r;

    if (fault) {
        conn_fault(c, -EPROTO, fault);
        return -EPIPE;
    }
    switch (e->opcode) {
    case GLMW_OP_NOP:
        emit_conn_resume(c->out);
        return 0;
    case GLMW_OP_CANCEL:
        r = request_find(c, e->tag);
        if (FAULT(conn_cancel_reaches_others))
            for (struct conn *o = c->server->conns; o && !r; o = o->next)
                r = request_find(o, e->tag);
        if (r)
            request_cancel(r);
        return 0;
    case GLMW_OP_CANCEL_ALL:
        for (r = c->requests; r; r = r->next)
            request_cancel(r);
        return 0;
    case GLMW_OP_RESUME:
        return kept_resume(c, e);
    default:
        return request_submit(c, e);
    }
}

void conn_drain(struct conn *c) {
    struct glmw_entry e[MAX_ENTRIES];
    int n, done = 0, r = 0, left;

    if (c->state != CONN_OPEN)
        return;
    c->ready = false;
    /* whatever brought us here, the client may have read meanwhile; with a full submission ring it has no
     * NOP to say so, only the bell or the entries that are there */
    if (c->blocked ||
        (__atomic_load_n(&c->shm.d->credit_wanted, __ATOMIC_RELAXED) && !FAULT(conn_credit_only_by_nop)))
        emit_conn_resume(c->out);
    c->blocked = false;
    n = look(c, e, MAX_ENTRIES);
    if (n < 0) {
        conn_fault(c, n,
                   n == -EFAULT ? "the memory of the submission ring was taken away"
                                : "an impossible tail of the submission ring");
        return;
    }
    for (; done < n && r == 0; done++) {
        r = handle(c, &e[done]);
        if (r == -ENOBUFS)
            break;
        c->rate_paid = false;
    }
    if (c->state != CONN_OPEN)
        return;
    if (done > 0)
        c->edges = 0;
    /* entries that were not handled stay in the ring: they have only been copied */
    if (!FAULT(conn_blocked_entry_lost))
        c->sq.head -= (uint32_t)(n - done);
    glmw_give_back(&c->sq, NULL);
    if (r == -ENOBUFS) {
        /* credit_wanted is set: the client answers with a NOP behind what waits here, so the bell is asked
         * for at the first entry that is not there yet */
        uint32_t waiting = c->sq.tail - c->sq.head;

        c->blocked = true;
        left = arm(c, waiting + 1);
        if (left > (int)waiting)
            c->ready = c->server->any_ready = true;
    } else if (n == MAX_ENTRIES) {
        left = 1;
        c->ready = c->server->any_ready = true;
    } else {
        left = arm(c, 1);
        if (left > 0)
            c->ready = c->server->any_ready = true;
    }
    if (left < 0)
        conn_fault(c, left, "an impossible tail of the submission ring");
}
