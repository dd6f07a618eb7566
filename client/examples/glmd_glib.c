/* SPDX-License-Identifier: MIT */
/* libglmd in a GLib main loop, through the source of glmd_source.c.
 *
 *     cc -o glmd_glib glmd_glib.c glmd_source.c ask.c $(pkg-config --cflags --libs glmd glib-2.0)
 *     ./glmd_glib "Why is the sky blue?" "Count from 1 to 12."
 *
 * Everything runs on the main context's thread. */
#include <glib-unix.h>
#include <signal.h>

#include "ask.h"
#include "glmd_source.h"

struct program {
    struct ask ask;
    GMainLoop *loop;
};

static gboolean on_events(glmd_conn *c, gpointer data) {
    struct program *p = data;
    int k = 0;
    while (p->ask.conn[k] != c)
        k++;
    if (!ask_take(&p->ask, k)) {
        if (ask_over(&p->ask))
            g_main_loop_quit(p->loop);
        return G_SOURCE_REMOVE;
    }
    if (ask_over(&p->ask))
        g_main_loop_quit(p->loop);
    return G_SOURCE_CONTINUE;
}

static gboolean on_signal(gpointer data) {
    struct program *p = data;
    ask_cancel(&p->ask);
    if (ask_over(&p->ask))
        g_main_loop_quit(p->loop);
    return G_SOURCE_CONTINUE;
}

static gboolean on_timer(gpointer data) {
    struct program *p = data;
    ask_tick(&p->ask);
    return G_SOURCE_CONTINUE;
}

int main(int argc, char **argv) {
    static struct program p;
    GSource *source[ASK_CONNS];
    int code = ask_open(&p.ask, "glmd_glib", argc, argv);
    if (code)
        return code;
    p.loop = g_main_loop_new(NULL, FALSE);
    g_unix_signal_add(SIGINT, on_signal, &p);
    g_unix_signal_add(SIGTERM, on_signal, &p);
    if (p.ask.tick_ms)
        g_timeout_add(p.ask.tick_ms, on_timer, &p);
    for (int k = 0; k < p.ask.n_conns; k++) {
        source[k] = glmd_source_new(p.ask.conn[k]);
        g_source_set_callback(source[k], G_SOURCE_FUNC(on_events), &p, NULL);
        g_source_attach(source[k], NULL);
    }
    if (!ask_over(&p.ask))
        g_main_loop_run(p.loop);
    for (int k = 0; k < p.ask.n_conns; k++) {
        g_source_destroy(source[k]);
        g_source_unref(source[k]);
    }
    g_main_loop_unref(p.loop);
    return ask_close(&p.ask);
}
