/* SPDX-License-Identifier: MIT */
/* libglmd in a libuv loop: per connection a poll handle and a prepare handle.
 *
 *     cc -o glmd_uv glmd_uv.c ask.c $(pkg-config --cflags --libs glmd libuv)
 *     ./glmd_uv "Why is the sky blue?" "Count from 1 to 12."
 *
 * Everything runs on the loop's thread. */
#include <signal.h>
#include <stdio.h>
#include <uv.h>

#include "ask.h"

struct link {
    struct ask *ask;
    int k; /* which connection */
    uv_poll_t poll;
    uv_prepare_t prepare;
    uv_idle_t idle;
};

static uv_signal_t interrupt, terminate;
static uv_timer_t timer;

static void take(struct link *l) {
    if (!ask_take(l->ask, l->k)) {
        uv_poll_stop(&l->poll); /* the descriptor is closed by ask_close(), after this */
        uv_prepare_stop(&l->prepare);
        uv_idle_stop(&l->idle);
    }
    if (ask_over(l->ask))
        uv_stop(l->poll.loop);
}

static void on_readable(uv_poll_t *h, int status, int events) {
    (void)status; /* whatever it is, the library finds out and says it better */
    (void)events;
    take(h->data);
}

static void on_idle(uv_idle_t *h) {
    take(h->data);
}

/* Runs before the loop sleeps.  While events wait in the ring, which the descriptor need not tell, an idle
 * handle keeps the loop from sleeping; timers and other handles have their turn in between. */
static void on_prepare(uv_prepare_t *h) {
    struct link *l = h->data;
    if (glmd_prepare(l->ask->conn[l->k]) == 1)
        uv_idle_stop(&l->idle);
    else
        uv_idle_start(&l->idle, on_idle);
}

static void on_signal(uv_signal_t *h, int number) {
    struct ask *a = h->data;
    (void)number;
    ask_cancel(a);
    if (ask_over(a))
        uv_stop(h->loop);
}

static void on_timer(uv_timer_t *h) {
    ask_tick(h->data);
}

static int start_link(uv_loop_t *loop, struct link *l) {
    int r = uv_poll_init(loop, &l->poll, glmd_get_fd(l->ask->conn[l->k]));
    if (r < 0)
        return r;
    uv_prepare_init(loop, &l->prepare);
    uv_idle_init(loop, &l->idle);
    l->poll.data = l->prepare.data = l->idle.data = l;
    uv_prepare_start(&l->prepare, on_prepare);
    return uv_poll_start(&l->poll, UV_READABLE, on_readable);
}

static int start_others(uv_loop_t *loop, struct ask *a) {
    int r;
    uv_signal_init(loop, &interrupt);
    uv_signal_init(loop, &terminate);
    uv_timer_init(loop, &timer);
    interrupt.data = terminate.data = timer.data = a;
    r = uv_signal_start(&interrupt, on_signal, SIGINT);
    if (r == 0)
        r = uv_signal_start(&terminate, on_signal, SIGTERM);
    if (r == 0 && a->tick_ms)
        r = uv_timer_start(&timer, on_timer, a->tick_ms, a->tick_ms);
    return r;
}

static void close_handle(uv_handle_t *h, void *unused) {
    (void)unused;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

int main(int argc, char **argv) {
    static struct link links[ASK_CONNS];
    static struct ask a;
    uv_loop_t loop;
    int code, r;
    code = ask_open(&a, "glmd_uv", argc, argv);
    if (code)
        return code;
    r = uv_loop_init(&loop);
    if (r < 0) {
        fprintf(stderr, "glmd_uv: %s\n", uv_strerror(r));
        ask_close(&a);
        return 1;
    }
    r = start_others(&loop, &a);
    for (int k = 0; k < a.n_conns && r == 0; k++) {
        links[k].ask = &a;
        links[k].k = k;
        r = start_link(&loop, &links[k]);
    }
    if (r == 0 && !ask_over(&a))
        uv_run(&loop, UV_RUN_DEFAULT);
    if (r < 0)
        fprintf(stderr, "glmd_uv: %s\n", uv_strerror(r));
    uv_walk(&loop, close_handle, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    code = ask_close(&a); /* the descriptors, after the loop has let go of them */
    return r < 0 ? 1 : code;
}
