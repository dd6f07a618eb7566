/* SPDX-License-Identifier: MIT */
/* A libglmd connection as a GLib source; see glmd_source.h.  Keeps one pointer and never waits. */
#include "glmd_source.h"

struct source {
    GSource base;
    glmd_conn *conn;
    gpointer fd; /* what GLib calls the descriptor */
};

/* Before GLib sleeps.  FALSE only if the library has nothing and will make the descriptor readable. */
static gboolean prepare(GSource *base, gint *ret_timeout) {
    struct source *s = (struct source *)base;
    *ret_timeout = -1; /* deadlines of the library make the descriptor readable, too */
    return glmd_prepare(s->conn) != 1;
}

static gboolean check(GSource *base) {
    struct source *s = (struct source *)base;
    return g_source_query_unix_fd(base, s->fd) != 0;
}

static gboolean dispatch(GSource *base, GSourceFunc callback, gpointer data) {
    struct source *s = (struct source *)base;
    if (!callback)
        return G_SOURCE_REMOVE; /* nobody would take what waits, and the loop would never sleep again */
    return ((GlmdSourceFunc)(void (*)(void))callback)(s->conn, data);
}

static GSourceFuncs functions = {prepare, check, dispatch, NULL, NULL, NULL};

GSource *glmd_source_new(glmd_conn *c) {
    GSource *base = g_source_new(&functions, sizeof(struct source));
    struct source *s = (struct source *)base;
    s->conn = c;
    s->fd = g_source_add_unix_fd(base, glmd_get_fd(c), G_IO_IN);
    g_source_set_name(base, "glmd");
    return base;
}
