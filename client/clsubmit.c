/* SPDX-License-Identifier: MIT */
/* Entries to the daemon.  A payload is copied into the arena before its entry is published and stays there
 * until ACCEPTED, ERROR or END says that the daemon has read it; a large one goes by clbulk.c.  Runs on the
 * connection's thread, except glmd_cancel_async(). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clconn.h"

#define RETRY_NS (5 * CL_NS_PER_MS)

static int sq_room(glmd_conn *c) {
    if (glmw_free_slots(&c->sq) > 0)
        return 0;
    if (glmw_refresh(&c->sq) < 0) {
        cl_die(c, -EPROTO, "the daemon moved its entry index backwards or past the ring");
        return -EPROTO;
    }
    return glmw_free_slots(&c->sq) > 0 ? 0 : -ENOBUFS;
}

int cl_entry_push(glmd_conn *c, const struct glmw_entry *e) {
    int r = sq_room(c);
    if (r < 0)
        return r;
    r = glmw_put(&c->sq, e);
    if (r < 0)
        return r;
    if (glmw_publish(&c->sq, false))
        cl_bell_write(c->fd_bell);
    return 0;
}

static void owe(glmd_conn *c) {
    c->retry_at_ns = c->credit_owed || c->n_cancel_owed || c->n_submit_owed ? cl_now_ns() + RETRY_NS : CL_NEVER;
}

static int push_cancel(glmd_conn *c, uint64_t tag) {
    struct glmw_entry e = {.opcode = GLMW_OP_CANCEL, .tag = tag};
    return cl_entry_push(c, &e);
}

/* Requests whose object the daemon has taken; a cancel asked meanwhile follows its entry. */
static void push_submits(glmd_conn *c) {
    for (uint32_t i = 0; c->n_submit_owed && i < c->tags.n_slots; i++) {
        struct cl_live *l = c->tags.slots[i].live;
        if (!l || l->bulk != CL_BULK_OWED)
            continue;
        if (cl_entry_push(c, &l->entry) < 0)
            return;
        l->bulk = CL_BULK_NAMED;
        c->n_submit_owed--;
        if (l->cancel_late && !FAULT(client_cancel_forgotten)) {
            l->cancel_wanted = true;
            c->n_cancel_owed++;
        }
    }
}

void cl_owed_push(glmd_conn *c) {
    static const struct glmw_entry nop = {.opcode = GLMW_OP_NOP};
    if (c->credit_owed && cl_entry_push(c, &nop) != -ENOBUFS)
        c->credit_owed = false;
    push_submits(c);
    for (uint32_t i = 0; c->n_cancel_owed && i < c->tags.n_slots; i++) {
        struct cl_live *l = c->tags.slots[i].live;
        if (!l || !l->cancel_wanted)
            continue;
        if (push_cancel(c, l->tag) == -ENOBUFS)
            break;
        l->cancel_wanted = false;
        c->n_cancel_owed--;
    }
    owe(c);
}

static bool fits_arena(const glmd_conn *c, uint64_t bytes) {
    uint32_t max = c->hello.limits.max_payload_bytes;
    return bytes <= UINT32_MAX && bytes <= c->arena.size_bytes && (!max || bytes <= max);
}

static int can_submit(glmd_conn *c, uint64_t bytes, bool *ret_bulk) {
    const struct glmw_limits *l = &c->hello.limits;
    bool fits = fits_arena(c, bytes), may_bulk = bytes <= cl_bulk_max(c);
    if (c->error)
        return c->error;
    if (!fits && !may_bulk)
        return -EMSGSIZE;
    if (l->max_live && c->tags.n_live >= l->max_live)
        return -EBUSY;
    *ret_bulk = may_bulk && (!fits || bytes > GLMW_BULK_ADVISED);
    return *ret_bulk ? 0 : sq_room(c);
}

static uint8_t flags_of(uint8_t opcode, const struct cl_payload *p) {
    return (uint8_t)((p->quiet ? GLMW_ENT_QUIET : 0) |
                     (p->keep && opcode == GLMW_OP_SUBMIT ? GLMW_ENT_KEEP : 0) |
                     (p->background && opcode == GLMW_OP_SUBMIT ? GLMW_ENT_BACKGROUND : 0) |
                     (p->no_cache && opcode == GLMW_OP_SUBMIT ? GLMW_ENT_NO_CACHE : 0));
}

/* The daemon is watched from now on. */
static void watch(glmd_conn *c, uint64_t now_ns) {
    if (c->pulse.check_ns != CL_NEVER)
        return;
    c->pulse.check_ns = now_ns + GLMW_STATUS_ALIVE_NS;
    cl_timer_plan(c);
}

static void copy_payload(glmd_conn *c, uint64_t off, const struct cl_payload *p) {
    uint8_t *at = c->pay + off;
    for (unsigned i = 0; i < 3; i++) {
        if (p->len[i])
            memcpy(at, p->part[i], p->len[i]);
        at += p->len[i];
    }
}

static int send_by_arena(glmd_conn *c, const struct cl_payload *p, struct cl_live *l) {
    uint64_t off;
    int e = cl_arena_take(&c->arena, p->total_bytes, &off);
    if (e < 0)
        return e;
    copy_payload(c, off, p);
    l->entry.payload_len = (uint32_t)p->total_bytes;
    l->entry.payload_off = off;
    e = cl_entry_push(c, &l->entry);
    if (e < 0) {
        cl_arena_give(&c->arena, off);
        return e;
    }
    l->payload_off = off;
    l->has_payload = true;
    return 0;
}

static int submit(glmd_conn *c, glmd_req *r, uint8_t opcode, uint64_t *ret_tag) {
    struct cl_payload p;
    struct cl_live *l;
    bool bulk;
    int e = cl_check(c);
    if (e < 0)
        return e;
    e = cl_req_seal(r, &p);
    if (e < 0)
        return e;
    if (flags_of(opcode, &p) & GLMW_ENT_KEEP && !(c->hello.features & GLMW_FEAT_RESUME))
        return -EOPNOTSUPP;
    if (p.schema && !(c->hello.features & GLMW_FEAT_SCHEMA))
        return -EOPNOTSUPP;
    e = can_submit(c, p.total_bytes, &bulk);
    if (e < 0)
        return e;
    e = cl_tags_add(&c->tags, &l);
    if (e < 0)
        return e;
    l->entry = (struct glmw_entry){.opcode = opcode,
                                   .flags = flags_of(opcode, &p) | (bulk ? GLMW_ENT_BULK : 0),
                                   .tag = l->tag,
                                   .session = p.session,
                                   .max_tokens = p.max_tokens,
                                   .deadline_ms = p.deadline_ms,
                                   .client_ns = cl_now_ns()};
    e = bulk ? cl_bulk_send(c, &p, l) : send_by_arena(c, &p, l);
    if (e < 0) {
        cl_tags_drop(&c->tags, l);
        return e;
    }
    watch(c, l->entry.client_ns);
    *ret_tag = l->tag;
    glmd_req_free(r);
    return 0;
}

int glmd_submit(glmd_conn *c, glmd_req *r, uint64_t *ret_tag) {
    return submit(c, r, GLMW_OP_SUBMIT, ret_tag);
}

int glmd_resume(glmd_conn *c, uint64_t stream_id, uint32_t from_seq, uint64_t *ret_tag) {
    struct cl_live *l;
    bool bulk;
    int r = cl_check(c);
    if (r == 0 && !(c->hello.features & GLMW_FEAT_RESUME))
        r = -EOPNOTSUPP;
    if (r == 0)
        r = can_submit(c, 0, &bulk);
    if (r == 0)
        r = cl_tags_add(&c->tags, &l);
    if (r < 0)
        return r;
    l->resumed = true;
    l->from_seq = from_seq ? from_seq : 1; /* 0 is the ACCEPTED of the tag it was submitted under */
    struct glmw_entry n = {.opcode = GLMW_OP_RESUME,
                           .tag = l->tag,
                           .payload_off = stream_id,
                           .session = from_seq,
                           .client_ns = cl_now_ns()};
    r = cl_entry_push(c, &n);
    if (r < 0) {
        cl_tags_drop(&c->tags, l);
        return r;
    }
    watch(c, n.client_ns);
    *ret_tag = l->tag;
    return 0;
}

static int service(glmd_conn *c, glmd_req *r, uint8_t opcode, uint64_t *ret_tag) {
    int e = cl_check(c);
    if (e == 0 && !(c->hello.features & GLMW_FEAT_TOKENIZE))
        e = -EOPNOTSUPP;
    return e < 0 ? e : submit(c, r, opcode, ret_tag);
}

int glmd_count(glmd_conn *c, glmd_req *r, uint64_t *ret_tag) {
    return service(c, r, GLMW_OP_COUNT, ret_tag);
}

int glmd_tokenize(glmd_conn *c, glmd_req *r, uint64_t *ret_tag) {
    return service(c, r, GLMW_OP_TOKENIZE, ret_tag);
}

int glmd_cancel(glmd_conn *c, uint64_t tag) {
    int r = cl_check(c);
    if (r < 0)
        return r;
    struct cl_tag *g = cl_tags_find(&c->tags, tag);
    struct cl_live *l = g ? g->live : NULL;
    if (!l || l->cancel_wanted || l->refused || c->error)
        return 0; /* ended, asked before, or its synthetic END is on the way */
    if (l->bulk == CL_BULK_ASKED || l->bulk == CL_BULK_OWED) {
        l->cancel_late = true; /* the daemon does not know the tag yet */
        return 0;
    }
    r = push_cancel(c, tag);
    if (r == -ENOBUFS) {
        l->cancel_wanted = true;
        c->n_cancel_owed++;
        owe(c);
        cl_timer_plan(c);
        r = 0;
    }
    return r;
}

int glmd_cancel_async(glmd_conn *c, uint64_t tag) {
    struct cl_async *a = &c->async;
    int r = cl_check(c);
    if (r < 0 || !tag)
        return r;
    pthread_mutex_lock(&a->lock);
    if (a->n == a->cap) {
        uint32_t cap = a->cap ? a->cap * 2 : 16;
        uint64_t *p = cap > CL_TAG_SLOTS * 4 ? NULL : realloc(a->tags, cap * sizeof *p);
        if (p) {
            a->tags = p;
            a->cap = cap;
        } else {
            r = -ENOMEM;
        }
    }
    if (r == 0)
        a->tags[a->n++] = tag;
    pthread_mutex_unlock(&a->lock);
    return r == 0 ? glmd_wakeup(c) : r;
}
