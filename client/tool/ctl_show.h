/* SPDX-License-Identifier: MIT */
/* An answer on a terminal or in a pipe: what is dimmed, what is left out, the progress and the closing line.
 */
#ifndef GLMD_CTL_SHOW_H
#define GLMD_CTL_SHOW_H

#include "ctl.h"

struct ctl_times {
    uint64_t submit_ns;     /* 0: not known, another program submitted it */
    uint64_t first_seen_ns; /* when this program had the first token */
    uint64_t first_ns;      /* when the daemon had the first and the last */
    uint64_t last_ns;
    uint64_t n_tokens;
    bool no_usage; /* no count came from the daemon, which went away */
};

struct ctl_show {
    struct ctl_buf out; /* for standard output, written once a wake-up */
    bool tty;           /* standard output is a terminal */
    bool err_tty;       /* standard error is one */
    bool quiet;
    bool reasoning; /* print it */
    bool progress;  /* a progress line stands on standard error */
    bool hidden;    /* reasoning was left out */
    int channel;    /* of the text before, -1 at the start */
    bool content;   /* some content was printed */
    char last;      /* last byte printed */
    uint32_t flags; /* of the END */
};

void ctl_show_init(struct ctl_show *s, const struct ctl_args *a);
void ctl_show_done(struct ctl_show *s);
void ctl_show_text(struct ctl_show *s, const struct glmd_event *e);
void ctl_show_progress(struct ctl_show *s, const struct glmd_event *e);
/* Ends the last line and all attributes. */
void ctl_show_end(struct ctl_show *s);
/* Negative errno when standard output or memory failed. */
int ctl_show_flush(struct ctl_show *s);
void ctl_show_closing(struct ctl_show *s, const struct glmd_usage *u, const struct ctl_times *t, int status,
                      uint32_t reason);

double ctl_first_token_ms(const struct ctl_times *t);
/* Tokens after the first by the time between first and last; 0 when there is nothing to divide. */
double ctl_tokens_per_second(const struct ctl_times *t);

#endif
