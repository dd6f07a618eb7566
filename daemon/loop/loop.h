/* SPDX-License-Identifier: MIT */
/* The event loop of the io thread: one interface over io_uring and epoll. Everything runs on the thread that
 * calls loop_run; only loop_kick may be called from elsewhere.
 *
 * All readiness is edge-triggered on both backends: a callback runs after something new arrived and must
 * read until -EAGAIN (a bell, which is never read, simply fires again at the next write). */
#ifndef GLMD_LOOP_H
#define GLMD_LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct loop;
struct loop_source;
struct loop_timer;

enum loop_want { LOOP_AUTO = 0, LOOP_URING, LOOP_EPOLL };

enum loop_events {
    LOOP_IN = 1,
    LOOP_HUP = 2, /* the other end is gone, or an error is pending: read to learn which */
};

/* res of an accept callback: a descriptor (non-blocking, close-on-exec; taken by the callback) or a negative
 * errno such as -EMFILE. */
typedef void (*loop_io_fn)(void *ctx, unsigned events);
typedef void (*loop_accept_fn)(void *ctx, int res);
typedef void (*loop_fn)(void *ctx);

/* AUTO tries io_uring first and falls back to epoll; *ret_why is then the errno of the attempt (negative), 0
 * when nothing went wrong. A forced backend that is not available is an error. */
int loop_new(enum loop_want want, struct loop **ret, int *ret_why);
struct loop *loop_free(struct loop *l);      /* frees every source and timer left; NULL ok; returns NULL */
const char *loop_name(const struct loop *l); /* "uring" or "epoll" */

/* fd is borrowed and must be non-blocking; it stays open until loop_del returned. */
int loop_add(struct loop *l, int fd, loop_io_fn fn, void *ctx, struct loop_source **ret);
/* A listening socket: fn gets every new connection. */
int loop_add_accept(struct loop *l, int fd, loop_accept_fn fn, void *ctx, struct loop_source **ret);
/* No callback of this source runs any more, also not one that was already pending. NULL ok. */
void loop_del(struct loop *l, struct loop_source *s);
/* A paused source does not fire; resuming looks at the descriptor afresh. */
int loop_pause(struct loop *l, struct loop_source *s, bool pause);

int loop_timer_new(struct loop *l, loop_fn fn, void *ctx, struct loop_timer **ret);
void loop_timer_set(struct loop_timer *t, uint64_t at_ns);  /* CLOCK_MONOTONIC; 0 = off; fires once */
void loop_timer_free(struct loop *l, struct loop_timer *t); /* NULL ok */

/* fn runs at the end of every turn; while it returns true the loop does not sleep. One per loop. */
void loop_set_turn(struct loop *l, bool (*fn)(void *ctx), void *ctx);

/* Makes the loop take a turn. Any thread; a write to a private eventfd. */
void loop_kick(struct loop *l);

int loop_run(struct loop *l); /* until loop_stop; 0, or a negative errno when the backend broke */
void loop_stop(struct loop *l);

#endif
