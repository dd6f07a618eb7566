/* SPDX-License-Identifier: MIT */
/* glmctl chat: a conversation, kept in memory and sent whole with every turn; the daemon finds what it has
 * read before by itself. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "ctl.h"

#define CHAT_BYTES (((size_t)4 << 20) - 65536) /* a long conversation, in an arena of 4 MiB */

struct turn {
    char *user;
    size_t user_len;
    struct ctl_kept answer;
};

struct chat {
    const struct ctl_args *args;
    glmd_conn *conn;
    uint64_t session;
    struct turn *turns;
    size_t n;
    bool interactive;
};

static void turn_done(struct turn *t) {
    free(t->user);
    ctl_buf_done(&t->answer.reasoning);
    ctl_buf_done(&t->answer.content);
}

static void clear(struct chat *h) {
    while (h->n)
        turn_done(&h->turns[--h->n]);
    free(h->turns);
    h->turns = NULL;
    /* a new conversation shares no prefix with the old one */
    if (getrandom(&h->session, sizeof h->session, 0) != (ssize_t)sizeof h->session || !h->session)
        h->session = 1;
}

/* One turn of the user: a line, and further ones while they end with a backslash.  1, 0 at the end of input,
 * or a negative errno. */
static int read_turn(const struct chat *h, char **ret, size_t *ret_len) {
    struct ctl_buf b = {0};
    char *line = NULL;
    size_t cap = 0;
    int r = 0;
    for (;;) {
        if (h->interactive) {
            fputs(b.len ? ". " : "> ", stdout);
            fflush(stdout);
            ctl_await(STDIN_FILENO); /* a terminal gives one line a read: nothing waits in stdin's buffer */
        }
        errno = 0;
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) {
            r = errno ? -errno : b.len > 0;
            break;
        }
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        bool more = n > 0 && line[n - 1] == '\\';
        ctl_buf_add(&b, line, (size_t)(more ? n - 1 : n));
        if (!more) {
            r = 1;
            break;
        }
        ctl_buf_str(&b, "\n");
    }
    free(line);
    if (r == 1 && b.failed)
        r = -ENOMEM;
    if (r != 1) {
        ctl_buf_done(&b);
        return r;
    }
    *ret = b.p;
    *ret_len = b.len;
    return 1;
}

static int put_history(struct chat *h, glmd_req *q) {
    int r = 0;
    if (h->args->system)
        r = glmd_req_message(q, GLMD_ROLE_SYSTEM, h->args->system, strlen(h->args->system));
    for (size_t i = 0; r == 0 && i < h->n; i++) {
        struct turn *t = &h->turns[i];
        r = glmd_req_message(q, GLMD_ROLE_USER, t->user, t->user_len);
        if (r || i + 1 == h->n)
            break;
        r = glmd_req_begin(q, GLMD_ROLE_ASSISTANT);
        if (r == 0 && t->answer.reasoning.len)
            r = glmd_req_part_reasoning(q, t->answer.reasoning.p, t->answer.reasoning.len);
        if (r == 0)
            r = glmd_req_part_text(q, t->answer.content.p, t->answer.content.len);
        if (r == 0)
            r = glmd_req_end(q);
    }
    return r == 0 ? glmd_req_set_u64(q, GLMD_KEY_SESSION, h->session) : r;
}

/* Takes text.  The turn stays in the history only if something was said. */
static int answer(struct chat *h, char *text, size_t len) {
    struct turn *p = realloc(h->turns, (h->n + 1) * sizeof *p);
    glmd_req *q;
    if (!p) {
        free(text);
        ctl_err("no memory for another turn");
        return CTL_EXIT_OUTPUT;
    }
    h->turns = p;
    struct turn *t = &p[h->n++];
    *t = (struct turn){.user = text, .user_len = len};
    int r = ctl_request(h->conn, h->args, &q);
    if (r == 0) {
        int e = put_history(h, q);
        if (e < 0) {
            ctl_err("the conversation cannot be sent: %s", glmd_strerror(e));
            glmd_req_free(q);
            r = CTL_EXIT_REQUEST;
        } else {
            r = ctl_answer(h->conn, q, h->args, &t->answer);
        }
    }
    if (t->answer.reasoning.failed || t->answer.content.failed) {
        ctl_err("no memory to keep the answer");
        r = CTL_EXIT_OUTPUT;
    }
    if (r != CTL_EXIT_OK && !(r == CTL_EXIT_CANCELLED && t->answer.content.len))
        turn_done(&h->turns[--h->n]);
    return r;
}

static const char help[] =
    "One line is one turn; a line that ends with \\ goes on. /clear forgets, /exit or Ctrl-D ends.\n"
    "Ctrl-C stops an answer.\n";

/* -1: not a command; else 0 to go on or 1 to end */
static int command(struct chat *h, const char *text, size_t len) {
    if (len == 0)
        return 0;
    if (text[0] != '/')
        return -1;
    if (len == 5 && !memcmp(text, "/exit", 5))
        return 1;
    if (len == 6 && !memcmp(text, "/clear", 6)) {
        clear(h);
        return 0;
    }
    if (!(len == 5 && !memcmp(text, "/help", 5)))
        ctl_err("no such command; begin with a blank to say something that starts with /");
    fputs(help, stderr);
    return 0;
}

static int converse(struct chat *h) {
    for (;;) {
        char *text = NULL;
        size_t len = 0;
        int r = read_turn(h, &text, &len);
        if (r <= 0) {
            if (h->interactive)
                fputs("\n", stdout);
            if (r < 0)
                ctl_err("standard input cannot be read: %s", glmd_strerror(r));
            return r < 0 ? CTL_EXIT_OUTPUT : CTL_EXIT_OK;
        }
        int k = command(h, text, len);
        if (k >= 0) {
            free(text);
            if (k)
                return CTL_EXIT_OK;
            continue;
        }
        r = answer(h, text, len);
        /* a refused or stopped turn does not end the conversation of a person */
        bool goes_on =
            r == CTL_EXIT_OK || (h->interactive && (r == CTL_EXIT_REQUEST || r == CTL_EXIT_CANCELLED));
        if (!goes_on)
            return r;
    }
}

int ctl_chat(const struct ctl_args *a) {
    struct chat h = {.args = a, .interactive = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !a->json};
    if (a->n_words) {
        ctl_err("chat takes no prompt: it reads its turns from standard input");
        return CTL_EXIT_USAGE;
    }
    ctl_sigint_install();
    int r = ctl_connect(a, CHAT_BYTES, &h.conn);
    if (r)
        return r;
    clear(&h);
    if (h.interactive)
        fputs(help, stderr);
    r = converse(&h);
    clear(&h);
    glmd_close(h.conn);
    return r;
}
