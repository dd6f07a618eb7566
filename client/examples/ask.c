/* SPDX-License-Identifier: MIT */
/* Options, requests and printing of the loop examples; see ask.h.  Knows nothing of any loop. */
#include "ask.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* as glmctl(1) has them */
enum { EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_NO_DAEMON = 3, EXIT_GONE = 4, EXIT_CANCELLED = 130 };

static int usage(const struct ask *a) {
    fprintf(stderr,
            "usage: %s [-s SOCKET]... [-n TOKENS] [-i MS] [-v] PROMPT...\n"
            "  -s SOCKET  of the daemon; given again: one more connection, prompts are dealt in turn\n"
            "  -n TOKENS  longest answer\n"
            "  -i MS      a timer in the same loop, which only counts\n"
            "  -v         say at the end what the loop did\n"
            "At most %d connections and %d prompts.  Ctrl-C cancels.\n",
            a->name, ASK_CONNS, ASK_ANSWERS);
    return EXIT_USAGE;
}

static bool number(const char *s, unsigned *ret) {
    char *end;
    unsigned long v = strtoul(s, &end, 10);
    if (*s < '0' || *s > '9' || *end || v > 1000000)
        return false;
    *ret = (unsigned)v;
    return true;
}

static int options(struct ask *a, int argc, char **argv) {
    int o;
    while ((o = getopt(argc, argv, "s:n:i:v")) >= 0) {
        if (o == 's' && a->n_conns < ASK_CONNS)
            a->socket[a->n_conns++] = optarg;
        else if (o == 'v')
            a->verbose = true;
        else if ((o != 'n' || !number(optarg, &a->max_tokens)) && (o != 'i' || !number(optarg, &a->tick_ms)))
            return usage(a);
    }
    if (optind == argc || argc - optind > ASK_ANSWERS)
        return usage(a);
    if (a->n_conns == 0)
        a->n_conns = 1; /* at the place where the library looks */
    for (; optind < argc; optind++)
        a->answer[a->n_answers++].prompt = argv[optind];
    return 0;
}

static int submit(struct ask *a, glmd_conn *c, struct ask_answer *w) {
    glmd_req *r;
    int e = glmd_req_new(c, &r);
    if (e < 0)
        return e;
    e = glmd_req_message(r, GLMD_ROLE_USER, w->prompt, strlen(w->prompt));
    if (e == 0 && a->max_tokens)
        e = glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, a->max_tokens);
    if (e == 0)
        e = glmd_submit(c, r, &w->tag); /* takes r when it succeeds */
    if (e < 0)
        glmd_req_free(r);
    return e;
}

static void answer_over(struct ask *a, struct ask_answer *w, int status) {
    w->over = true;
    w->status = status;
    a->n_over++;
    if (status < 0)
        fprintf(stderr, "%s: answer %d: %s\n", a->name, (int)(w - a->answer) + 1, glmd_strerror(status));
}

/* Submits what connection k has room for.  The rest waits until answers before it have ended. */
static void submit_more(struct ask *a, int k) {
    for (int i = k; i < a->n_answers && !a->lost[k]; i += a->n_conns) {
        struct ask_answer *w = &a->answer[i];
        int e;
        if (w->over || w->tag)
            continue;
        e = a->cancelled ? -ECANCELED : submit(a, a->conn[k], w);
        if (e == -ENOBUFS || e == -EBUSY)
            return;
        if (e < 0)
            answer_over(a, w, e);
    }
}

int ask_open(struct ask *a, const char *name, int argc, char **argv) {
    int e;
    memset(a, 0, sizeof *a);
    a->name = name;
    e = options(a, argc, argv);
    for (int k = 0; k < a->n_conns && e == 0; k++) {
        char error[256] = "no memory";
        struct glmd_options o = {.size = sizeof o, .error = error, .error_bytes = sizeof error};
        o.socket_path = a->socket[k];
        o.socket_path_len = a->socket[k] ? strlen(a->socket[k]) : 0;
        if (glmd_connect(&o, &a->conn[k]) < 0) {
            fprintf(stderr, "%s: %s\n", name, error);
            e = EXIT_NO_DAEMON;
        }
    }
    if (e) {
        for (int k = 0; k < a->n_conns; k++)
            glmd_close(a->conn[k]);
        return e;
    }
    for (int k = 0; k < a->n_conns; k++)
        submit_more(a, k);
    return 0;
}

static void print_line(struct ask *a, struct ask_answer *w) {
    printf("%d: %.*s\n", (int)(w - a->answer) + 1, (int)w->n_line, w->line);
    w->n_line = 0;
}

/* One answer is printed as it comes; of several, whole lines with the number of the answer in front. */
static void print(struct ask *a, struct ask_answer *w, const char *text, size_t n) {
    if (a->n_answers == 1) {
        fwrite(text, 1, n, stdout);
        return;
    }
    for (; n > 0; text++, n--) {
        if (*text == '\n' || w->n_line == sizeof w->line)
            print_line(a, w);
        if (*text != '\n')
            w->line[w->n_line++] = *text;
    }
}

static void take_event(struct ask *a, int k, const struct glmd_event *ev) {
    struct ask_answer *w = NULL;
    for (int i = k; i < a->n_answers; i += a->n_conns)
        if (a->answer[i].tag == ev->tag && !a->answer[i].over)
            w = &a->answer[i];
    if (!w) /* news of the daemon have no tag */
        return;
    switch (ev->type) {
    case GLMD_EV_TOKEN:
    case GLMD_EV_TEXT:
        /* ev->text lies in memory shared with the daemon: use it now or copy it */
        if (ev->channel == GLMD_CHANNEL_CONTENT)
            print(a, w, ev->text, ev->text_len);
        break;
    case GLMD_EV_ERROR:
        fprintf(stderr, "%s: %.*s\n", a->name, (int)ev->text_len, ev->text);
        break;
    case GLMD_EV_END:
        if (w->n_line)
            print_line(a, w);
        else if (a->n_answers == 1)
            putchar('\n');
        answer_over(a, w, ev->status);
        break;
    default: /* new kinds of events may come: ignore what you do not know */
        break;
    }
}

bool ask_take(struct ask *a, int k) {
    struct glmd_event ev = {.size = sizeof ev};
    glmd_conn *c = a->conn[k];
    const char *why;
    int r = glmd_dispatch(c); /* gives back what earlier events pointed to */
    a->takes++;
    /* Another call follows as long as there are events, because glmd_prepare() says so. */
    for (int n = 0; n < ASK_AT_ONCE && r >= 0 && (r = glmd_next(c, &ev)) == 1; n++)
        take_event(a, k, &ev);
    fflush(stdout);
    if (r < 0) {
        glmd_get_error(c, &why);
        fprintf(stderr, "%s: %s\n", a->name, why);
        a->lost[k] = true;
        for (int i = k; i < a->n_answers; i += a->n_conns)
            if (!a->answer[i].over)
                answer_over(a, &a->answer[i], r);
        return false;
    }
    submit_more(a, k);
    return true;
}

void ask_tick(struct ask *a) {
    a->ticks++;
}

void ask_cancel(struct ask *a) {
    if (a->cancelled)
        _exit(EXIT_CANCELLED);
    a->cancelled = true;
    for (int i = 0; i < a->n_answers; i++)
        if (a->answer[i].tag && !a->answer[i].over)
            glmd_cancel(a->conn[i % a->n_conns], a->answer[i].tag); /* its END still comes, with -ECANCELED */
    for (int k = 0; k < a->n_conns; k++)
        submit_more(a, k);
}

bool ask_over(const struct ask *a) {
    return a->n_over == a->n_answers;
}

int ask_close(struct ask *a) {
    int code = 0;
    for (int k = 0; k < a->n_conns; k++) {
        if (a->lost[k])
            code = EXIT_GONE;
        glmd_close(a->conn[k]);
    }
    for (int i = 0; i < a->n_answers && code == 0; i++)
        if (a->answer[i].status < 0)
            code = a->answer[i].status == -ECANCELED ? EXIT_CANCELLED : EXIT_REFUSED;
    if (a->verbose) {
        struct rusage u;
        getrusage(RUSAGE_SELF, &u);
        fprintf(stderr, "%s: %lu dispatches, %lu ticks, %ld ms of processor\n", a->name, a->takes, a->ticks,
                (long)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000 +
                    (long)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000);
    }
    return code;
}
