/* SPDX-License-Identifier: MIT */
/* The part of the loop that does not depend on the kernel interface: sources, timers, the turn. Runs on the
 * io thread; loop_kick alone may run elsewhere. */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "loop_impl.h"

static void on_kick(void *ctx, unsigned events) {
    struct loop *l = ctx;
    uint64_t n;

    (void)events;
    while (read(l->kick_fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
    /* Cleared after the read: the other way round the read could swallow the write of a kick that came in
     * between, and the word would stay set without a write to go with it. A kick between the two does not
     * write, but this turn has still to do its work, and the exchange makes what the kicker did visible. */
    atomic_exchange(&l->kicked, false);
}

static int try_open(struct loop *l, const struct loop_ops *ops) {
    l->ops = ops;
    return ops->open(l);
}

int loop_new(enum loop_want want, struct loop **ret, int *ret_why) {
    struct loop *l = calloc(1, sizeof *l);
    int r, why = 0;

    if (!l)
        return -ENOMEM;
    l->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->kick_fd < 0) {
        r = -errno;
        free(l);
        return r;
    }
    r = try_open(l, want == LOOP_EPOLL ? &loop_ops_epoll : &loop_ops_uring);
    if (r < 0 && want == LOOP_AUTO) {
        why = r;
        r = try_open(l, &loop_ops_epoll);
    }
    if (r < 0) {
        close(l->kick_fd);
        free(l);
        return r;
    }
    r = loop_add(l, l->kick_fd, on_kick, l, &l->kick);
    if (r < 0) {
        loop_free(l);
        return r;
    }
    if (ret_why)
        *ret_why = why;
    *ret = l;
    return 0;
}

struct loop *loop_free(struct loop *l) {
    if (!l)
        return NULL;
    l->ops->close(l);
    while (l->sources) {
        struct loop_source *s = l->sources;

        l->sources = s->next;
        free(s);
    }
    while (l->timers) {
        struct loop_timer *t = l->timers;

        l->timers = t->next;
        free(t);
    }
    close(l->kick_fd);
    free(l);
    return NULL;
}

const char *loop_name(const struct loop *l) {
    return l->ops->name;
}

static int add_source(struct loop *l, struct loop_source init, struct loop_source **ret) {
    struct loop_source *s = malloc(sizeof *s);
    int r;

    if (!s)
        return -ENOMEM;
    *s = init;
    r = l->ops->add(l, s);
    if (r < 0) {
        free(s);
        return r;
    }
    s->next = l->sources;
    if (s->next)
        s->next->prev = s;
    l->sources = s;
    *ret = s;
    return 0;
}

int loop_add(struct loop *l, int fd, loop_io_fn fn, void *ctx, struct loop_source **ret) {
    return add_source(l, (struct loop_source){.fd = fd, .io = fn, .ctx = ctx}, ret);
}

int loop_add_accept(struct loop *l, int fd, loop_accept_fn fn, void *ctx, struct loop_source **ret) {
    return add_source(l, (struct loop_source){.fd = fd, .accept = fn, .ctx = ctx}, ret);
}

void loop_del(struct loop *l, struct loop_source *s) {
    if (!s || s->dead)
        return;
    s->dead = true;
    l->sweep = true;
    l->ops->del(l, s);
}

int loop_pause(struct loop *l, struct loop_source *s, bool pause) {
    int r;

    if (s->paused == pause)
        return 0;
    r = l->ops->pause(l, s, pause);
    if (r == 0)
        s->paused = pause;
    return r;
}

void loop_accept_all(struct loop_source *s) {
    while (!s->dead && !s->paused) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0 && errno == EAGAIN)
            return;
        s->accept(s->ctx, fd < 0 ? -errno : fd);
        if (fd < 0)
            return;
    }
}

int loop_timer_new(struct loop *l, loop_fn fn, void *ctx, struct loop_timer **ret) {
    struct loop_timer *t = calloc(1, sizeof *t);

    if (!t)
        return -ENOMEM;
    t->fn = fn;
    t->ctx = ctx;
    t->next = l->timers;
    if (t->next)
        t->next->prev = t;
    l->timers = t;
    *ret = t;
    return 0;
}

void loop_timer_set(struct loop_timer *t, uint64_t at_ns) {
    t->at_ns = at_ns;
}

void loop_timer_free(struct loop *l, struct loop_timer *t) {
    if (!t)
        return;
    t->dead = true;
    t->at_ns = 0;
    l->sweep = true;
}

void loop_set_turn(struct loop *l, bool (*fn)(void *ctx), void *ctx) {
    l->turn_fn = fn;
    l->turn_ctx = ctx;
}

void loop_kick(struct loop *l) {
    uint64_t one = 1;

    /* one write however many kicks come before the loop looks */
    if (atomic_exchange_explicit(&l->kicked, true, memory_order_seq_cst))
        return;
    while (write(l->kick_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* Sources and timers are freed only here, between turns: a turn may still hold pointers to them. */
static void sweep(struct loop *l) {
    if (!l->sweep)
        return;
    l->sweep = false;
    for (struct loop_source *s = l->sources, *next; s; s = next) {
        next = s->next;
        if (!s->dead)
            continue;
        if (s->ops) {
            l->sweep = true;
            continue;
        }
        *(s->prev ? &s->prev->next : &l->sources) = s->next;
        if (s->next)
            s->next->prev = s->prev;
        free(s);
    }
    for (struct loop_timer *t = l->timers, *next; t; t = next) {
        next = t->next;
        if (!t->dead)
            continue;
        *(t->prev ? &t->prev->next : &l->timers) = t->next;
        if (t->next)
            t->next->prev = t->prev;
        free(t);
    }
}

/* In order of time, so that one that is due may still switch off a later one. */
static void run_timers(struct loop *l) {
    uint64_t now = clock_now_ns();

    for (;;) {
        struct loop_timer *due = NULL;

        for (struct loop_timer *t = l->timers; t; t = t->next)
            if (!t->dead && t->at_ns && t->at_ns <= now && (!due || t->at_ns < due->at_ns))
                due = t;
        if (!due)
            return;
        due->at_ns = 0;
        due->fn(due->ctx);
    }
}

static uint64_t next_timeout(const struct loop *l) {
    uint64_t at = UINT64_MAX, now;

    for (const struct loop_timer *t = l->timers; t; t = t->next)
        if (t->at_ns && t->at_ns < at)
            at = t->at_ns;
    if (at == UINT64_MAX)
        return at;
    now = clock_now_ns();
    return at > now ? at - now : 0;
}

int loop_run(struct loop *l) {
    bool busy = false;
    int r;

    l->stop = false;
    while (!l->stop) {
        r = l->ops->turn(l, busy ? 0 : next_timeout(l));
        if (r < 0)
            return r;
        run_timers(l);
        busy = l->turn_fn && l->turn_fn(l->turn_ctx);
        sweep(l);
    }
    return 0;
}

void loop_stop(struct loop *l) {
    l->stop = true;
}
