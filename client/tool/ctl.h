/* SPDX-License-Identifier: MIT */
/* glmctl: what its commands share.  One thread; the only handler is the one for SIGINT in ctl_answer.c. */
#ifndef GLMD_CTL_H
#define GLMD_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ctl_text.h"
#include "glmd.h"

/* Exit statuses, as documented in glmctl(1) */
enum ctl_exit {
    CTL_EXIT_OK = 0,
    CTL_EXIT_REQUEST = 1, /* the daemon refused the request or ended it with an error */
    CTL_EXIT_USAGE = 2,
    CTL_EXIT_NO_DAEMON = 3,  /* no connection could be made */
    CTL_EXIT_LOST = 4,       /* the daemon went away during the request */
    CTL_EXIT_OUTPUT = 5,     /* standard output could not be written, or no memory */
    CTL_EXIT_CANCELLED = 130 /* Ctrl-C */
};

enum ctl_cmd { CTL_RUN = 1, CTL_CHAT = 2, CTL_STATUS = 4, CTL_RESUME = 8, CTL_TOP = 16, CTL_PROBE = 32 };
enum ctl_reasoning { CTL_REASONING_AUTO, CTL_REASONING_SHOW, CTL_REASONING_HIDE };

#define CTL_MAX_SET   64
#define CTL_MAX_TOOLS 64

/* A value for glmd_req_set_*, kept until a request exists. */
struct ctl_set {
    int key;
    const char *option; /* its name on the command line */
    const char *text;   /* its value there, NULL for a flag */
    uint64_t u64;
    double f64;
    const char *str;
};

struct ctl_args {
    const char *socket;
    bool json;
    bool quiet;
    bool help;
    bool once;    /* top */
    uint64_t chars;        /* probe: of each language, 0: the default */
    const char *languages; /* probe: a list, NULL: all */
    uint64_t ask; /* GLMD_FEATURE_* besides the usual */
    int reasoning; /* enum ctl_reasoning */
    const char *system;
    const char *tokens;
    struct ctl_set set[CTL_MAX_SET];
    unsigned n_set;
    const char *tools[CTL_MAX_TOOLS]; /* files */
    unsigned n_tools;
    const char *words[2]; /* what is not an option */
    unsigned n_words;
    uint64_t stream_id; /* resume: which answer, from which record on */
    uint32_t from_seq;
};

/* Fills args from the words after the command; on failure prints why and returns CTL_EXIT_USAGE. */
int ctl_args_parse(int cmd, int argc, char **argv, struct ctl_args *ret);
void ctl_args_help(int cmd);

/* Prints "glmctl: " and one line to standard error. */
void ctl_err(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Connects with room for a request of so many bytes, as far as the daemon grants it; prints why not and
 * returns an exit status. */
int ctl_connect(const struct ctl_args *a, size_t request_bytes, glmd_conn **ret);

/* A request with the options of the command line set, no prompt yet. */
int ctl_request(glmd_conn *c, const struct ctl_args *a, glmd_req **ret);

/* The text of an answer, kept by chat. */
struct ctl_kept {
    struct ctl_buf reasoning;
    struct ctl_buf content;
};

/* Submits r (taken), or with NULL resumes what args say; prints the stream and the closing line.  Returns an
 * exit status. */
int ctl_answer(glmd_conn *c, glmd_req *r, const struct ctl_args *a, struct ctl_kept *kept);

/* Ctrl-C: while ctl_answer() runs the first cancels and the second ends the program; else the first does. */
int ctl_sigint_install(void);

/* Until fd can be read.  A signal's handler runs here at once in every build: the thread sanitizer holds it
 * back in calls that it does not know to block, read() among them. */
void ctl_await(int fd);

/* Everything on a descriptor; *ret_text is malloced.  Negative errno. */
int ctl_read_all(int fd, size_t max_bytes, char **ret_text, size_t *ret_len);

int ctl_run(const struct ctl_args *a);
int ctl_chat(const struct ctl_args *a);
int ctl_resume(const struct ctl_args *a);
int ctl_status(const struct ctl_args *a);
int ctl_top(const struct ctl_args *a);
int ctl_probe(const struct ctl_args *a);

#endif
