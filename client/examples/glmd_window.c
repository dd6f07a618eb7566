/* SPDX-License-Identifier: MIT */
/* A window that streams answers: GTK 3 on the source of glmd_source.c.
 *
 *     cc -o glmd_window glmd_window.c glmd_source.c $(pkg-config --cflags --libs glmd gtk+-3.0)
 *     ./glmd_window
 *
 * Everything runs on the thread of the main loop, but for glmd_connect(): that one may wait, so a GTask
 * thread calls it and hands the connection over.  The source has a lower priority than GTK's drawing: however
 * fast an answer comes, the window is painted and its buttons work. */
#include <errno.h>
#include <gtk/gtk.h>
#include <string.h>

#include "glmd_source.h"

#define AT_ONCE  64   /* events taken before the loop looks at its other sources */
#define RETRY_MS 1000 /* between attempts to reach a daemon */

struct turn {
    int role; /* enum glmd_role */
    GString *text;
};

struct app {
    GtkWidget *window, *view, *entry, *ask, *stop, *status;
    GtkTextBuffer *text;
    GtkTextMark *end;
    char *socket;
    glmd_conn *conn; /* NULL: none yet, or lost */
    GSource *source;
    GPtrArray *turns; /* the conversation so far */
    GString *answer;
    gboolean live; /* an answer is coming, with this tag */
    guint64 tag;
    guint channel;
    guint tokens;
    guint64 first_ns, last_ns;
    gboolean told; /* that no daemon can be reached */
    /* what the demonstration needs */
    char *demo, *snapshot;
    int stop_after, snapshot_at, exit_status;
    gsize typed;
    gboolean snapshot_due;
    guint frames; /* painted since the first token */
};

static void connect_soon(struct app *a);

/* ------------------------------------------------------------------------------------------------------ */
/* What is shown                                                                                          */

static void show(struct app *a, const char *tag, const char *s, gsize n) {
    GtkTextIter at;
    char *valid = memchr(s, 0, n) ? g_utf8_make_valid(s, (gssize)n) : NULL; /* GTK takes no NUL */
    gtk_text_buffer_get_end_iter(a->text, &at);
    gtk_text_buffer_insert_with_tags_by_name(a->text, &at, valid ? valid : s, valid ? -1 : (int)n, tag, NULL);
    g_free(valid);
    gtk_text_view_scroll_mark_onscreen(GTK_TEXT_VIEW(a->view), a->end);
}

/* On a line of its own. */
static void show_line(struct app *a, const char *tag, const char *s) {
    if (gtk_text_buffer_get_char_count(a->text) > 0)
        show(a, tag, "\n", 1);
    show(a, tag, s, strlen(s));
}

static void set_status(struct app *a, const char *format, ...) G_GNUC_PRINTF(2, 3);
static void set_status(struct app *a, const char *format, ...) {
    va_list args;
    char *s;
    va_start(args, format);
    s = g_strdup_vprintf(format, args);
    va_end(args);
    gtk_label_set_text(GTK_LABEL(a->status), s);
    g_free(s);
}

static void set_buttons(struct app *a) {
    gtk_widget_set_sensitive(a->ask, a->conn != NULL && !a->live);
    gtk_widget_set_sensitive(a->stop, a->live);
}

static void show_speed(struct app *a, const char *what) {
    double s = (double)(a->last_ns - a->first_ns) / 1e9;
    if (a->tokens > 1 && s > 0)
        set_status(a, "%s   %u tokens   %.1f tokens/s", what, a->tokens, (a->tokens - 1) / s);
    else
        set_status(a, "%s   %u tokens", what, a->tokens);
}

/* ------------------------------------------------------------------------------------------------------ */
/* The demonstration: types by itself, and leaves when the answer is over                                 */

static gboolean save_snapshot(gpointer data) {
    struct app *a = data;
    int w = gtk_widget_get_allocated_width(a->window), h = gtk_widget_get_allocated_height(a->window);
    cairo_surface_t *s = cairo_image_surface_create(CAIRO_FORMAT_RGB24, w, h);
    cairo_t *cr = cairo_create(s);
    gtk_widget_draw(a->window, cr);
    cairo_destroy(cr);
    if (cairo_surface_write_to_png(s, a->snapshot) != CAIRO_STATUS_SUCCESS) {
        g_printerr("glmd_window: %s cannot be written\n", a->snapshot);
        a->exit_status = 1;
    }
    cairo_surface_destroy(s);
    return G_SOURCE_REMOVE;
}

static gboolean demo_leave(gpointer data) {
    struct app *a = data;
    GtkTextIter from, to;
    char *all;
    if (a->snapshot && !a->snapshot_at)
        save_snapshot(a);
    gtk_text_buffer_get_bounds(a->text, &from, &to);
    all = gtk_text_buffer_get_text(a->text, &from, &to, TRUE);
    g_print("%s\n[%s]\n[%u frames]\n", all, gtk_label_get_text(GTK_LABEL(a->status)), a->frames);
    g_free(all);
    gtk_main_quit();
    return G_SOURCE_REMOVE;
}

static gboolean demo_type(gpointer data) {
    struct app *a = data;
    if (!a->conn)
        return G_SOURCE_CONTINUE; /* as a person would wait */
    a->typed += (gsize)(g_utf8_next_char(a->demo + a->typed) - (a->demo + a->typed));
    char *so_far = g_strndup(a->demo, a->typed);
    gtk_entry_set_text(GTK_ENTRY(a->entry), so_far);
    g_free(so_far);
    if (a->demo[a->typed])
        return G_SOURCE_CONTINUE;
    gtk_widget_activate(a->entry);
    return G_SOURCE_REMOVE;
}

static void demo_token(struct app *a) {
    if (a->demo && a->tokens == (guint)a->stop_after)
        gtk_button_clicked(GTK_BUTTON(a->stop));
    if (a->demo && a->snapshot && a->tokens == (guint)a->snapshot_at)
        a->snapshot_due = TRUE; /* once this token is painted */
}

static gboolean on_painted(GtkWidget *w, cairo_t *cr, gpointer data) {
    struct app *a = data;
    (void)w;
    (void)cr;
    a->frames += a->live && a->tokens > 0;
    if (a->snapshot_due)
        g_idle_add_full(G_PRIORITY_HIGH, save_snapshot, a, NULL); /* before anything changes again */
    a->snapshot_due = FALSE;
    return FALSE;
}

/* ------------------------------------------------------------------------------------------------------ */
/* Requests and events                                                                                    */

static void add_turn(struct app *a, int role, const char *s, gsize n) {
    struct turn *t = g_new(struct turn, 1);
    t->role = role;
    t->text = g_string_new_len(s, (gssize)n);
    g_ptr_array_add(a->turns, t);
}

static void free_turn(gpointer p) {
    struct turn *t = p;
    g_string_free(t->text, TRUE);
    g_free(t);
}

static int submit(struct app *a) {
    glmd_req *r;
    int e = glmd_req_new(a->conn, &r);
    if (e < 0)
        return e;
    for (guint i = 0; i < a->turns->len && e == 0; i++) {
        const struct turn *t = g_ptr_array_index(a->turns, i);
        e = glmd_req_message(r, t->role, t->text->str, t->text->len);
    }
    if (e == 0)
        e = glmd_submit(a->conn, r, &a->tag); /* takes r when it succeeds */
    if (e < 0)
        glmd_req_free(r);
    return e;
}

static void answer_over(struct app *a, int status) {
    a->live = FALSE;
    if (status < 0) {
        g_ptr_array_set_size(a->turns,
                             (int)a->turns->len - 1); /* a question without an answer is not repeated */
        show_line(a, "note", status == -ECANCELED ? "Stopped." : glmd_strerror(status));
    } else {
        add_turn(a, GLMD_ROLE_ASSISTANT, a->answer->str, a->answer->len);
    }
    show_speed(a, status < 0 ? "Ended." : "Done.");
    set_buttons(a);
    gtk_widget_grab_focus(a->entry);
    if (a->demo) {
        a->exit_status = status < 0;
        g_timeout_add(200, demo_leave, a); /* after the last frame */
    }
}

static void on_ask(GtkWidget *w, gpointer data) {
    struct app *a = data;
    const char *question = gtk_entry_get_text(GTK_ENTRY(a->entry));
    int e;
    (void)w;
    if (!a->conn || a->live || !*question)
        return;
    show_line(a, "question", question);
    add_turn(a, GLMD_ROLE_USER, question, strlen(question));
    g_string_truncate(a->answer, 0);
    a->tokens = 0;
    a->first_ns = a->last_ns = 0;
    a->channel = GLMD_CHANNEL_CONTENT;
    a->live = TRUE;
    show(a, "answer", "\n", 1);
    e = submit(a);
    if (e < 0) {
        answer_over(a, e);
        return;
    }
    gtk_entry_set_text(GTK_ENTRY(a->entry), "");
    set_status(a, "Asked.");
    set_buttons(a);
}

static void on_stop(GtkWidget *w, gpointer data) {
    struct app *a = data;
    (void)w;
    if (a->live)
        glmd_cancel(a->conn, a->tag); /* the END still comes */
}

static void take_text(struct app *a, const struct glmd_event *ev) {
    if (ev->type == GLMD_EV_TOKEN) {
        if (a->tokens++ == 0)
            a->first_ns = ev->t_sampled_ns;
        a->last_ns = ev->t_sampled_ns;
        demo_token(a);
    }
    if (ev->text_len == 0 || ev->channel > GLMD_CHANNEL_REASONING)
        return;
    if (ev->channel != a->channel && a->channel == GLMD_CHANNEL_REASONING)
        show(a, "answer", "\n", 1);
    a->channel = ev->channel;
    /* ev->text lies in memory shared with the daemon: both calls copy it */
    show(a, ev->channel == GLMD_CHANNEL_REASONING ? "reasoning" : "answer", ev->text, ev->text_len);
    if (ev->channel == GLMD_CHANNEL_CONTENT)
        g_string_append_len(a->answer, ev->text, (gssize)ev->text_len);
}

static void take_event(struct app *a, const struct glmd_event *ev) {
    if (!a->live || ev->tag != a->tag)
        return;
    switch (ev->type) {
    case GLMD_EV_PROGRESS:
        if (ev->phase == GLMD_PHASE_QUEUED)
            set_status(a, "Waiting, %u in front.", ev->queue_position);
        else if (ev->phase == GLMD_PHASE_PREFILL)
            set_status(a, "Reading, %u of %u tokens.", ev->done, ev->total);
        break;
    case GLMD_EV_TOKEN:
    case GLMD_EV_TEXT:
        take_text(a, ev);
        break;
    case GLMD_EV_ERROR: {
        char *s = g_strndup(ev->text, ev->text_len);
        show_line(a, "note", s);
        g_free(s);
        break;
    }
    case GLMD_EV_END:
        answer_over(a, ev->status);
        break;
    default: /* new kinds of events may come: ignore what you do not know */
        break;
    }
}

static void lose_connection(struct app *a) {
    const char *why = "";
    glmd_get_error(a->conn, &why);
    show_line(a, "note", why);
    g_source_unref(a->source); /* the caller removes it from the loop */
    a->source = NULL;
    a->conn = glmd_close(a->conn);
    a->told = FALSE;
    set_status(a, "The daemon is gone. Trying again.");
    set_buttons(a);
    connect_soon(a);
}

static gboolean on_events(glmd_conn *c, gpointer data) {
    struct glmd_event ev = {.size = sizeof ev};
    struct app *a = data;
    int r = glmd_dispatch(c);
    for (int n = 0; n < AT_ONCE && r >= 0 && (r = glmd_next(c, &ev)) == 1; n++)
        take_event(a, &ev);
    if (a->live && a->tokens)
        show_speed(a, a->channel == GLMD_CHANNEL_REASONING ? "Thinking." : "Answering.");
    if (r >= 0)
        return G_SOURCE_CONTINUE;
    lose_connection(a);
    return G_SOURCE_REMOVE;
}

/* ------------------------------------------------------------------------------------------------------ */
/* Connecting                                                                                             */

struct attempt {
    char *socket;
    char error[256];
    glmd_conn *conn;
};

static void free_attempt(gpointer p) {
    struct attempt *t = p;
    glmd_close(t->conn);
    g_free(t->socket);
    g_free(t);
}

/* Runs on a thread of its own; nobody else knows the attempt meanwhile. */
static void attempt_thread(GTask *task, gpointer source, gpointer data, GCancellable *cancel) {
    struct attempt *t = data;
    struct glmd_options o = {.size = sizeof o, .error = t->error, .error_bytes = sizeof t->error};
    (void)source;
    (void)cancel;
    o.socket_path = t->socket;
    o.socket_path_len = t->socket ? strlen(t->socket) : 0;
    o.client_name = "glmd_window";
    o.client_name_len = strlen(o.client_name);
    g_task_return_boolean(task, glmd_connect(&o, &t->conn) == 0);
}

static void on_attempt(GObject *source, GAsyncResult *result, gpointer data) {
    struct attempt *t = g_task_get_task_data(G_TASK(result));
    struct glmd_info info = {.size = sizeof info};
    struct app *a = data;
    (void)source;
    if (!g_task_propagate_boolean(G_TASK(result), NULL)) {
        if (!a->told) {
            show_line(a, "note", t->error);
            if (a->demo)
                g_print("[%s; trying again every second]\n", t->error);
        }
        a->told = TRUE;
        set_status(a, "No daemon. Trying again every second.");
        connect_soon(a);
        return;
    }
    a->conn = t->conn;
    t->conn = NULL;
    glmd_get_info(a->conn, &info);
    gtk_header_bar_set_subtitle(GTK_HEADER_BAR(gtk_window_get_titlebar(GTK_WINDOW(a->window))), info.model);
    glmd_set_coalesce(a->conn, 32, 16000); /* a screen shows no more than some 60 pictures a second */
    a->source = glmd_source_new(a->conn);
    g_source_set_priority(a->source, GDK_PRIORITY_REDRAW + 10);
    g_source_set_callback(a->source, G_SOURCE_FUNC(on_events), a, NULL);
    g_source_attach(a->source, NULL);
    set_status(a, info.state == GLMD_STATE_LOADING ? "Connected; the model is loading." : "Connected.");
    set_buttons(a);
}

static gboolean attempt(gpointer data) {
    struct app *a = data;
    struct attempt *t = g_new0(struct attempt, 1);
    GTask *task = g_task_new(NULL, NULL, on_attempt, a);
    t->socket = g_strdup(a->socket);
    g_strlcpy(t->error, "no memory", sizeof t->error);
    g_task_set_task_data(task, t, free_attempt);
    g_task_run_in_thread(task, attempt_thread);
    g_object_unref(task);
    return G_SOURCE_REMOVE;
}

static void connect_soon(struct app *a) {
    g_timeout_add(RETRY_MS, attempt, a);
}

/* ------------------------------------------------------------------------------------------------------ */
/* The window                                                                                             */

static void make_text(struct app *a) {
    GtkTextView *v;
    GtkTextIter at;
    a->view = gtk_text_view_new();
    v = GTK_TEXT_VIEW(a->view);
    gtk_text_view_set_editable(v, FALSE);
    gtk_text_view_set_cursor_visible(v, FALSE);
    gtk_text_view_set_wrap_mode(v, GTK_WRAP_WORD_CHAR);
    gtk_text_view_set_left_margin(v, 16);
    gtk_text_view_set_right_margin(v, 16);
    gtk_text_view_set_top_margin(v, 8);
    gtk_text_view_set_bottom_margin(v, 12);
    gtk_text_view_set_pixels_inside_wrap(v, 2);
    a->text = gtk_text_view_get_buffer(v);
    gtk_text_buffer_create_tag(a->text, "question", "weight", PANGO_WEIGHT_BOLD, "pixels-above-lines", 10,
                               "pixels-below-lines", 4, NULL);
    gtk_text_buffer_create_tag(a->text, "reasoning", "foreground", "#8a8a8a", "pixels-below-lines", 6, NULL);
    gtk_text_buffer_create_tag(a->text, "answer", "pixels-above-lines", 2, NULL);
    gtk_text_buffer_create_tag(a->text, "note", "foreground", "#a03c28", "pixels-above-lines", 6, NULL);
    gtk_text_buffer_get_end_iter(a->text, &at);
    a->end = gtk_text_buffer_create_mark(a->text, NULL, &at, FALSE);
    g_signal_connect_after(a->view, "draw", G_CALLBACK(on_painted), a);
}

static GtkWidget *make_row(struct app *a) {
    GtkWidget *row = gtk_box_new(GTK_ORIENTATION_HORIZONTAL, 6);
    a->entry = gtk_entry_new();
    gtk_entry_set_placeholder_text(GTK_ENTRY(a->entry), "Ask something");
    g_signal_connect(a->entry, "activate", G_CALLBACK(on_ask), a);
    a->ask = gtk_button_new_with_mnemonic("_Ask");
    g_signal_connect(a->ask, "clicked", G_CALLBACK(on_ask), a);
    a->stop = gtk_button_new_with_mnemonic("_Stop");
    g_signal_connect(a->stop, "clicked", G_CALLBACK(on_stop), a);
    gtk_box_pack_start(GTK_BOX(row), a->entry, TRUE, TRUE, 0);
    gtk_box_pack_start(GTK_BOX(row), a->ask, FALSE, FALSE, 0);
    gtk_box_pack_start(GTK_BOX(row), a->stop, FALSE, FALSE, 0);
    g_object_set(row, "margin-start", 12, "margin-end", 12, "margin-top", 10, NULL);
    return row;
}

static void make_window(struct app *a) {
    GtkWidget *bar = gtk_header_bar_new(), *box = gtk_box_new(GTK_ORIENTATION_VERTICAL, 0);
    GtkWidget *scroll = gtk_scrolled_window_new(NULL, NULL);
    a->window = gtk_window_new(GTK_WINDOW_TOPLEVEL);
    gtk_header_bar_set_title(GTK_HEADER_BAR(bar), "glmd");
    gtk_header_bar_set_show_close_button(GTK_HEADER_BAR(bar), TRUE);
    gtk_window_set_titlebar(GTK_WINDOW(a->window), bar);
    gtk_window_set_default_size(GTK_WINDOW(a->window), 640, 420);
    make_text(a);
    gtk_container_add(GTK_CONTAINER(scroll), a->view);
    gtk_box_pack_start(GTK_BOX(box), scroll, TRUE, TRUE, 0);
    gtk_box_pack_start(GTK_BOX(box), make_row(a), FALSE, FALSE, 0);
    a->status = gtk_label_new("Connecting.");
    gtk_label_set_xalign(GTK_LABEL(a->status), 0);
    g_object_set(a->status, "margin", 10, "margin-start", 14, NULL);
    gtk_box_pack_start(GTK_BOX(box), a->status, FALSE, FALSE, 0);
    gtk_container_add(GTK_CONTAINER(a->window), box);
    g_signal_connect(a->window, "destroy", G_CALLBACK(gtk_main_quit), NULL);
    set_buttons(a);
    gtk_widget_show_all(a->window);
    gtk_widget_grab_focus(a->entry);
}

int main(int argc, char **argv) {
    static struct app a;
    const GOptionEntry options[] = {
        {"socket", 's', 0, G_OPTION_ARG_FILENAME, &a.socket, "Socket of the daemon", "PATH"},
        {"demo", 0, 0, G_OPTION_ARG_STRING, &a.demo, "Ask this, print what the window shows, and leave",
         "PROMPT"},
        {"stop-after", 0, 0, G_OPTION_ARG_INT, &a.stop_after, "In a demo: press Stop at this token", "N"},
        {"snapshot", 0, 0, G_OPTION_ARG_FILENAME, &a.snapshot, "At the end of a demo: save a picture", "PNG"},
        {"snapshot-at", 0, 0, G_OPTION_ARG_INT, &a.snapshot_at, "Save it at this token instead", "N"},
        {NULL, 0, 0, G_OPTION_ARG_NONE, NULL, NULL, NULL}};
    GError *error = NULL;
    if (!gtk_init_with_args(&argc, &argv, "- a window that streams answers of glmd", options, NULL, &error)) {
        g_printerr("glmd_window: %s\n", error ? error->message : "no display");
        g_clear_error(&error);
        return 2;
    }
    if (argc > 1) {
        g_printerr("glmd_window: unexpected argument \"%s\": type the question in the window, or see --help\n",
                   argv[1]);
        return 2;
    }
    a.turns = g_ptr_array_new_with_free_func(free_turn);
    a.answer = g_string_new(NULL);
    make_window(&a);
    attempt(&a);
    if (a.demo && *a.demo)
        g_timeout_add(25, demo_type, &a);
    gtk_main();
    if (a.source) {
        g_source_destroy(a.source);
        g_source_unref(a.source);
    }
    glmd_close(a.conn);
    g_ptr_array_free(a.turns, TRUE);
    g_string_free(a.answer, TRUE);
    g_free(a.socket);
    g_free(a.demo);
    g_free(a.snapshot);
    return a.exit_status;
}
