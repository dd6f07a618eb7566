/* SPDX-License-Identifier: MIT */
/* Answers for people; see ctl_show.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl_json.h"
#include "ctl_show.h"

#define DIM   "\033[2m"
#define PLAIN "\033[22m"
#define CLEAR "\r\033[K"

void ctl_show_init(struct ctl_show *s, const struct ctl_args *a) {
    *s = (struct ctl_show){
        .tty = isatty(STDOUT_FILENO), .err_tty = isatty(STDERR_FILENO), .quiet = a->quiet, .channel = -1};
    s->reasoning = a->reasoning == CTL_REASONING_SHOW || (a->reasoning == CTL_REASONING_AUTO && s->tty);
}

void ctl_show_done(struct ctl_show *s) {
    ctl_buf_done(&s->out);
}

static void unprogress(struct ctl_show *s) {
    if (s->progress)
        fputs(CLEAR, stderr);
    s->progress = false;
}

void ctl_show_progress(struct ctl_show *s, const struct glmd_event *e) {
    if (s->quiet || !s->err_tty || s->channel >= 0)
        return;
    s->progress = true;
    if (e->phase == GLMD_PHASE_QUEUED && e->wait_ms)
        fprintf(stderr, CLEAR "waiting: %u in front, about %u s", e->queue_position, (e->wait_ms + 999) / 1000);
    else if (e->phase == GLMD_PHASE_QUEUED)
        fprintf(stderr, CLEAR "waiting: %u in front", e->queue_position);
    else if (e->phase == GLMD_PHASE_PREPARING)
        fputs(CLEAR "preparing the prompt", stderr);
    else if (e->cached)
        fprintf(stderr, CLEAR "reading the prompt: %u of %u tokens, %u known", e->done, e->total, e->cached);
    else
        fprintf(stderr, CLEAR "reading the prompt: %u of %u tokens", e->done, e->total);
    fflush(stderr);
}

static void newline(struct ctl_show *s) {
    if (s->last && s->last != '\n') {
        ctl_buf_str(&s->out, "\n");
        s->last = '\n';
    }
}

/* Reasoning and answer stand apart; a tool call gets a line of its own. */
static void change(struct ctl_show *s, int channel) {
    if (s->channel == GLMD_CHANNEL_REASONING && s->tty)
        ctl_buf_str(&s->out, PLAIN);
    if (s->channel == GLMD_CHANNEL_REASONING && channel != GLMD_CHANNEL_REASONING && s->last) {
        newline(s);
        ctl_buf_str(&s->out, "\n");
    } else if (channel == GLMD_CHANNEL_TOOL_NAME) {
        newline(s);
    }
    if (channel == GLMD_CHANNEL_REASONING && s->tty)
        ctl_buf_str(&s->out, DIM);
    if (channel == GLMD_CHANNEL_TOOL_NAME)
        ctl_buf_str(&s->out, "tool call: ");
    if (channel == GLMD_CHANNEL_TOOL_ARGUMENTS)
        ctl_buf_str(&s->out, " ");
    s->channel = channel;
}

void ctl_show_text(struct ctl_show *s, const struct glmd_event *e) {
    if (!e->text_len)
        return;
    unprogress(s);
    if (e->channel == GLMD_CHANNEL_REASONING && !s->reasoning) {
        s->hidden = true;
        return;
    }
    if ((int)e->channel != s->channel)
        change(s, (int)e->channel);
    if (s->tty)
        ctl_text_tty(&s->out, e->text, e->text_len);
    else
        ctl_buf_add(&s->out, e->text, e->text_len);
    s->last = e->text[e->text_len - 1];
    s->content = s->content || e->channel != GLMD_CHANNEL_REASONING;
}

void ctl_show_end(struct ctl_show *s) {
    unprogress(s);
    if (s->channel == GLMD_CHANNEL_REASONING && s->tty)
        ctl_buf_str(&s->out, PLAIN);
    newline(s);
}

int ctl_show_flush(struct ctl_show *s) {
    size_t at = 0;
    if (s->out.failed)
        return -ENOMEM;
    while (at < s->out.len) {
        ssize_t n = write(STDOUT_FILENO, s->out.p + at, s->out.len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        at += (size_t)n;
    }
    s->out.len = 0;
    return 0;
}

double ctl_first_token_ms(const struct ctl_times *t) {
    return t->n_tokens && t->submit_ns ? (double)(t->first_seen_ns - t->submit_ns) / 1e6 : 0.0;
}

double ctl_tokens_per_second(const struct ctl_times *t) {
    if (t->n_tokens < 2 || t->last_ns <= t->first_ns)
        return 0.0;
    return (double)(t->n_tokens - 1) * 1e9 / (double)(t->last_ns - t->first_ns);
}

void ctl_show_closing(struct ctl_show *s, const struct glmd_usage *u, const struct ctl_times *t, int status,
                      uint32_t reason) {
    const char *on = s->err_tty ? DIM : "", *off = s->err_tty ? PLAIN : "";
    fputs(on, stderr);
    if (t->no_usage) {
        fprintf(stderr, "%" PRIu64 " output tokens arrived", t->n_tokens);
    } else {
        fprintf(stderr, "%u prompt tokens", u->prompt_tokens);
        if (u->cached_tokens)
            fprintf(stderr, " (%u cached)", u->cached_tokens);
        fprintf(stderr, ", %u output tokens", u->completion_tokens);
        if (u->reasoning_tokens)
            fprintf(stderr, " (%u reasoning%s)", u->reasoning_tokens,
                    !(s->flags & GLMD_EVF_FORCED) ? ""
                    : s->flags & GLMD_EVF_LOOP    ? ", closed early"
                                                  : ", closed by its budget");
    }
    if (t->n_tokens && t->submit_ns)
        fprintf(stderr, ", first token after %.0f ms", ctl_first_token_ms(t));
    double rate = ctl_tokens_per_second(t);
    if (rate > 0)
        fprintf(stderr, ", %.1f tokens/s", rate);
    if (status < 0 || (reason != GLMD_REASON_STOP && reason != GLMD_REASON_TOOL_CALLS))
        fprintf(stderr, ", ended by: %s", status < 0 ? glmd_strerror(status) : ctl_reason_name(reason));
    fprintf(stderr, "%s\n", off);
    if (s->hidden && !s->content && status == 0)
        fputs("glmctl: the answer holds only reasoning; --reasoning show prints it\n", stderr);
}
