/* SPDX-License-Identifier: MIT */
/* The daemon's end of one connection's token ring: the publishing right, the slots, the text arena. Called by
 * io, engine and emit thread, each while holding the right. Every read of the client's memory is one checked
 * fetch inside a SIGBUS guard. No allocation but in econn's constructor in emit.c. */
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "busguard.h"
#include "emit_impl.h"

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* For io and emit. The holder works for microseconds; should it lose the processor meanwhile, yielding lets
 * it finish. */
void econn_lock(struct emit_conn *c) {
    for (unsigned spins = 0;; spins++) {
        uint32_t free_now = RIGHT_FREE;

        if (atomic_compare_exchange_weak_explicit(&c->right, &free_now, RIGHT_HELD, memory_order_acquire,
                                                  memory_order_relaxed))
            return;
        if (spins % 64 == 63)
            sched_yield();
        else
            cpu_relax();
    }
}

/* For the engine: it never waits. Being turned away is written down, and the holder kicks the engine when it
 * lets go, so that a stream the engine skipped for this reason is looked at again. */
bool econn_trylock(struct emit_conn *c) {
    for (;;) {
        uint32_t now = RIGHT_FREE;

        if (atomic_compare_exchange_strong_explicit(&c->right, &now, RIGHT_HELD, memory_order_acquire,
                                                    memory_order_relaxed))
            return true;
        if (now == RIGHT_HELD_KICK)
            return false;
        if (atomic_compare_exchange_strong_explicit(&c->right, &now, RIGHT_HELD_KICK, memory_order_relaxed,
                                                    memory_order_relaxed))
            return false;
    }
}

void econn_unlock(struct emit_conn *c) {
    struct emit *e = c->e;

    if (atomic_exchange_explicit(&c->right, RIGHT_FREE, memory_order_release) == RIGHT_HELD_KICK)
        e->opt.kick(e->opt.ctx);
}

/* A client sleeps at its bell; nobody does at the depot. */
static bool has_bell(const struct emit_conn *c) {
    return c != c->e->depot;
}

void econn_live_more(struct emit_conn *c) {
    uint32_t before = atomic_fetch_add_explicit(&c->live, 1, memory_order_relaxed);
    bool first = before == 0 && has_bell(c);

    atomic_fetch_add_explicit(&c->e->step_ns, TOKEN_NS + (first ? BELL_NS : 0), memory_order_relaxed);
    atomic_fetch_add_explicit(&c->e->n_busy, first, memory_order_relaxed);
}

void econn_live_less(struct emit_conn *c) {
    uint32_t before = atomic_fetch_sub_explicit(&c->live, 1, memory_order_relaxed);
    bool last = before == 1 && has_bell(c);

    if (FAULT(emit_load_leaks))
        return;
    atomic_fetch_sub_explicit(&c->e->step_ns, TOKEN_NS + (last ? BELL_NS : 0), memory_order_relaxed);
    atomic_fetch_sub_explicit(&c->e->n_busy, last, memory_order_relaxed);
}

static void set_error(struct emit_conn *c, int error) {
    int none = 0;

    if (atomic_compare_exchange_strong(&c->error, &none, error))
        c->e->opt.wake_io(c->e->opt.ctx);
}

/* Spans end where the record after which they were written ends; the numbers are our own. */
static void free_text(struct emit_conn *c, uint32_t old_head) {
    if (c->tq.head != old_head)
        c->txt_head =
            FAULT(emit_text_freed_early) ? c->txt_tail : c->txt_after[(c->tq.head - 1) & (c->tq.size - 1)];
}

void econn_refresh(struct emit_conn *c) {
    uint32_t old = c->tq.head;
    struct busguard g;
    int r;

    if (econn_is_gone(c))
        return;
    if (!busguard_enter(&g, glmw_address(c->u_base), c->u_bytes)) {
        set_error(c, -EFAULT);
        return;
    }
    r = glmw_refresh(&c->tq);
    busguard_leave(&g);
    if (r < 0)
        set_error(c, r);
    else
        free_text(c, old);
}

bool econn_ask(struct emit_conn *c) {
    uint32_t old = c->tq.head;
    struct busguard g;
    int r;

    if (econn_is_gone(c))
        return false;
    if (!busguard_enter(&g, glmw_address(c->u_base), c->u_bytes)) {
        set_error(c, -EFAULT);
        return false;
    }
    r = glmw_credit_ask(&c->tq, &c->d->credit_wanted);
    busguard_leave(&g);
    if (r < 0) {
        set_error(c, r);
        return false;
    }
    free_text(c, old);
    return c->tq.head != old;
}

void econn_publish(struct emit_conn *c) {
    struct busguard g;
    int r;

    if (c->tq.tail == c->tq.published || econn_is_gone(c))
        return;
    if (!busguard_enter(&g, glmw_address(c->u_base), c->u_bytes)) {
        set_error(c, -EFAULT);
        return;
    }
    r = bell_publish(&c->tq, c->pipe_w, c->urgent, &c->counts);
    busguard_leave(&g);
    c->urgent = false;
    if (r == -ENOMEM && !FAULT(emit_bell_forgotten))
        c->bell_owed = true;
    else if (r < 0)
        set_error(c, r);
    else
        econn_ring_owed(c);
}

/* A pipe takes memory for its first byte, and when there is none the client sleeps beside what was published.
 * Nothing is lost: the next publication, or io's timer, rings again. */
void econn_ring_owed(struct emit_conn *c) {
    int r;

    if (!c->bell_owed || econn_is_gone(c))
        return;
    r = bell_ring(c->pipe_w);
    c->bell_owed = r == -ENOMEM;
    if (r < 0 && !c->bell_owed)
        set_error(c, r);
}

bool econn_text(struct emit_conn *c, const void *text, uint32_t len, uint32_t *ret_off) {
    uint64_t at = c->txt_tail & (c->txt_bytes - 1);
    uint64_t skip = at + len > c->txt_bytes ? c->txt_bytes - at : 0;

    if (skip + len > econn_text_room(c))
        return false;
    c->txt_tail += skip;
    at = c->txt_tail & (c->txt_bytes - 1);
    memcpy(c->txt + at, text, len);
    c->txt_tail += len;
    *ret_off = (uint32_t)at;
    return true;
}

void econn_put(struct emit_conn *c, const void *slot64) {
    int r;

    if (FAULT(emit_trusts_region_d) && c->tq.tail == c->tq.published)
        c->tq.tail = c->tq.published = *c->tq.tail_word;
    c->txt_after[c->tq.tail & (c->tq.size - 1)] = c->txt_tail;
    r = glmw_put(&c->tq, slot64);
    /* the caller counted: room for it, or one of the slots kept back for this stream */
    assert(r == 0);
    if (r < 0)
        set_error(c, -EPROTO);
    if (FAULT(bell_per_record)) /* the handicap of `make bench-ipc` */
        econn_publish(c);
}

/* Publishes, and when a stream still waits for room asks the client to say when there is some. The client may
 * give records back between our look and our question, so after asking everything is tried once more. */
void econn_settle(struct emit_conn *c) {
    econn_publish(c);
    while (c->waiting && econn_ask(c)) {
        if (econn_flush_all(c)) {
            c->waiting = false;
            glmw_credit_done(&c->d->credit_wanted);
        }
        econn_publish(c);
    }
}

bool econn_flush_all(struct emit_conn *c) {
    bool all = true;

    for (uint32_t i = c->first, next; i != NO_STREAM; i = next) {
        struct emit_stream *s = &c->e->streams[i];

        next = s->next;
        all = estream_flush(s) && all;
    }
    return all && !c->io_waits && !c->denied;
}
