/* SPDX-License-Identifier: MIT */
/* One request from submit to END: events onto the terminal or as JSON lines, Ctrl-C, the closing line.
 * Everything runs on the main thread; the signal handler sets a counter and wakes the connection. While no
 * answer runs it ends the program itself: a flag would be looked at before a read that then blocks. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl.h"
#include "ctl_json.h"
#include "ctl_show.h"

static volatile sig_atomic_t n_sigint;
static glmd_conn *volatile sigint_conn; /* set while an answer runs on it */

static void on_sigint(int sig) {
    (void)sig;
    if (!sigint_conn || ++n_sigint >= 2) {
        static const char reset[] = "\033[0m\n";
        if (isatty(STDOUT_FILENO) && write(STDOUT_FILENO, reset, sizeof reset - 1) < 0)
            _exit(CTL_EXIT_OUTPUT);
        _exit(CTL_EXIT_CANCELLED);
    }
    glmd_wakeup(sigint_conn);
}

int ctl_sigint_install(void) {
    struct sigaction sa = {.sa_handler = on_sigint, .sa_flags = SA_RESTART};
    sigemptyset(&sa.sa_mask);
    return sigaction(SIGINT, &sa, NULL) < 0 ? -errno : 0;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct answer {
    const struct ctl_args *args;
    struct ctl_show show;
    struct ctl_kept *kept;
    struct ctl_buf error_text;
    struct ctl_times times;
    uint64_t tag;
    bool resumes;
    bool wants_keep;
    bool ended;
    bool cancelled;
    int status;
    uint32_t reason;
    struct glmd_usage usage;
};

static void keep(struct answer *a, const struct glmd_event *e) {
    if (!a->kept || !e->text_len)
        return;
    if (e->channel == GLMD_CHANNEL_REASONING)
        ctl_buf_add(&a->kept->reasoning, e->text, e->text_len);
    else if (e->channel == GLMD_CHANNEL_CONTENT)
        ctl_buf_add(&a->kept->content, e->text, e->text_len);
}

static void on_token(struct answer *a, const struct glmd_event *e) {
    if (e->type == GLMD_EV_TOKEN) {
        if (!a->times.n_tokens++) {
            a->times.first_seen_ns = now_ns();
            a->times.first_ns = e->t_sampled_ns;
        }
        a->times.last_ns = e->t_sampled_ns;
    }
    keep(a, e);
    if (!a->args->json)
        ctl_show_text(&a->show, e);
}

static void on_event(struct answer *a, const struct glmd_event *e) {
    if (e->tag && e->tag != a->tag)
        return;
    if (a->args->json)
        ctl_json_event(&a->show.out, e);
    switch (e->type) {
    case GLMD_EV_ACCEPTED:
        if (e->stream_id && !a->args->json && !a->resumes)
            ctl_err("the answer is kept: glmctl resume %016" PRIx64, e->stream_id);
        else if (a->wants_keep && !e->stream_id)
            ctl_err("the answer is not kept: the daemon keeps as many as it may already");
        break;
    case GLMD_EV_TOKEN:
    case GLMD_EV_TEXT:
        on_token(a, e);
        break;
    case GLMD_EV_PROGRESS:
        if (!a->args->json)
            ctl_show_progress(&a->show, e);
        break;
    case GLMD_EV_ERROR:
        ctl_buf_add(&a->error_text, e->text, e->text_len);
        break;
    case GLMD_EV_NOTICE:
        if (e->reason == GLMD_NOTICE_HANG)
            ctl_err("the daemon has shown no life for some seconds; still waiting (Ctrl-C gives up)");
        else if (e->reason == GLMD_NOTICE_ALIVE)
            ctl_err("the daemon is back");
        break;
    case GLMD_EV_END:
        a->ended = true;
        a->status = e->status;
        a->reason = e->reason;
        a->show.flags = e->flags;
        if (e->usage) {
            a->usage = *e->usage;
            a->times.no_usage = false;
        }
        break;
    default:
        break;
    }
}

/* One turn of the loop.  0, or an exit status when output failed. */
static int turn(glmd_conn *c, struct answer *a) {
    struct glmd_event e = {.size = sizeof e};
    int r = glmd_wait(c, -1);
    if (r < 0 && r != -EINTR) {
        a->ended = true;
        a->status = r;
        return 0;
    }
    if (n_sigint && !a->cancelled) {
        a->cancelled = true;
        glmd_cancel(c, a->tag);
    }
    while (!a->ended && glmd_next(c, &e) == 1)
        on_event(a, &e);
    return ctl_show_flush(&a->show) < 0 ? CTL_EXIT_OUTPUT : 0;
}

static int failed_submit(glmd_conn *c, int r) {
    struct glmd_info i = {.size = sizeof i};
    if (r == -EMSGSIZE && glmd_get_info(c, &i) == 0)
        ctl_err("the request is too large: this connection takes at most %llu bytes",
                (unsigned long long)i.max_request_bytes);
    else if (r == -EOPNOTSUPP)
        ctl_err("the daemon keeps no answers: [IPC] MaxKeptStreams is 0 in its configuration");
    else
        ctl_err("the request was not taken: %s", glmd_strerror(r));
    return r == -EPIPE || r == -EPROTO ? CTL_EXIT_LOST : CTL_EXIT_REQUEST;
}

static int verdict(glmd_conn *c, struct answer *a) {
    const char *why = "";
    if (glmd_get_error(c, &why) < 0) {
        ctl_err("the answer is not complete: %s", why);
        return CTL_EXIT_LOST;
    }
    if (a->cancelled && a->status == -ECANCELED)
        return CTL_EXIT_CANCELLED;
    if (a->status < 0) {
        if (a->error_text.len)
            ctl_err("%.*s", (int)a->error_text.len, a->error_text.p);
        else
            ctl_err("the request failed: %s", glmd_strerror(a->status));
        return CTL_EXIT_REQUEST;
    }
    return CTL_EXIT_OK;
}

static bool wants_keep(const struct ctl_args *a) {
    for (unsigned i = 0; i < a->n_set; i++)
        if (a->set[i].key == GLMD_KEY_KEEP)
            return true;
    return false;
}

static int start(glmd_conn *c, glmd_req *r, const struct ctl_args *a, uint64_t *ret_tag) {
    return r ? glmd_submit(c, r, ret_tag) : glmd_resume(c, a->stream_id, a->from_seq, ret_tag);
}

int ctl_answer(glmd_conn *c, glmd_req *r, const struct ctl_args *args, struct ctl_kept *kept) {
    struct answer a = {.args = args,
                       .kept = kept,
                       .resumes = r == NULL,
                       .wants_keep = r && wants_keep(args),
                       .usage = {.size = sizeof a.usage}};
    int e, out = 0;
    ctl_show_init(&a.show, args);
    n_sigint = 0;
    sigint_conn = c;
    a.times.submit_ns = r ? now_ns() : 0;
    a.times.no_usage = true;
    while ((e = start(c, r, args, &a.tag)) == -ENOBUFS && (e = glmd_wait(c, 10000000)) >= 0) {
    }
    if (e < 0) {
        glmd_req_free(r);
        sigint_conn = NULL;
        ctl_show_done(&a.show);
        return failed_submit(c, e);
    }
    while (!a.ended && !out)
        out = turn(c, &a);
    if (!out) {
        if (args->json)
            ctl_json_usage(&a.show.out, &a.usage, &a.times, a.status, a.reason);
        else
            ctl_show_end(&a.show);
        out = ctl_show_flush(&a.show) < 0 ? CTL_EXIT_OUTPUT : 0;
    }
    if (out) {
        ctl_err("standard output could not be written, or memory ran out");
    } else {
        out = verdict(c, &a);
        if (!args->json && !args->quiet && out != CTL_EXIT_REQUEST)
            ctl_show_closing(&a.show, &a.usage, &a.times, a.status, a.reason);
    }
    ctl_buf_done(&a.error_text);
    ctl_show_done(&a.show);
    sigint_conn = NULL; /* not earlier: the last lines of an answer are printed whole */
    return out;
}
