/* SPDX-License-Identifier: MIT */
/* A GLib source for one libglmd connection, for every program with a GMainContext (GTK has one).
 *
 *     GSource *s = glmd_source_new(c);
 *     g_source_set_callback(s, G_SOURCE_FUNC(on_events), data, NULL);
 *     g_source_attach(s, NULL);
 *     g_source_unref(s);
 *
 * The callback calls glmd_dispatch() and then glmd_next(); it may stop before that returns 0 and is called
 * again, after other sources of the same priority.  It returns G_SOURCE_REMOVE when one of the two was
 * negative: the connection is dead.
 * The source does not own the connection.  Destroy it before glmd_close().  Both belong to the thread that
 * runs the context. */
#ifndef GLMD_EXAMPLE_SOURCE_H
#define GLMD_EXAMPLE_SOURCE_H

#include <glib.h>
#include <glmd.h>

typedef gboolean (*GlmdSourceFunc)(glmd_conn *c, gpointer data);

GSource *glmd_source_new(glmd_conn *c);

#endif
