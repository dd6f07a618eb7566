/* SPDX-License-Identifier: MIT */
/* Fixture: a real glmd in a temporary directory, and a short client for it.
 *
 *     struct daemonfix f;
 *     daemonfix_init(&f);
 *     daemonfix_script(&f, "vocab 100\nrequest\ntokens 1 2 3\n");
 *     daemonfix_start(&f, NULL, NULL);
 *     ... glmd_connect through daemonfix_connect ...
 *     daemonfix_stop(&f);          (SIGTERM; must exit 0 within 30 s)
 *     daemonfix_done(&f);          (removes the directory)
 *
 * The daemon is the build with the allocation check, dies with the test process and writes to f.log. */
#ifndef GLMD_TEST_DAEMONFIX_H
#define GLMD_TEST_DAEMONFIX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "glmd.h"

struct daemonfix {
    char dir[64], socket[96], log[96], conf[96], script[96];
    char model[600];  /* what --model gets; the script by default */
    char backend[16]; /* --io-backend, empty = auto */
    char level[16];   /* --log-level, empty = debug */
    char fail[96];    /* $GLMD_FAIL of test/glmd-fail (failctl.h), which runs instead; empty = test/glmd */
    pid_t pid;
    uid_t uid;       /* run as; 0 = as we are */
    long file_limit; /* RLIMIT_FSIZE, -1 = none */
    int listen_fd;   /* passed as a service manager does, -1 = none */
    bool no_stdio;    /* started without descriptors 0, 1 and 2 */
    char notify[96]; /* NOTIFY_SOCKET, empty = none */
};

void daemonfix_init(struct daemonfix *f);
/* Writes the scripted model; the heading line is added. */
void daemonfix_script(struct daemonfix *f, const char *text);
/* Runs the daemon with these lines as its configuration; does not wait. */
void daemonfix_spawn(struct daemonfix *f, const char *conf);
/* The same and waits until it is ready. */
void daemonfix_start(struct daemonfix *f, const char *conf);
/* Waits for the end; the exit status, or 128 + signal; fails the test after timeout_ms. */
int daemonfix_wait(struct daemonfix *f, int timeout_ms);
void daemonfix_stop(struct daemonfix *f);
void daemonfix_done(struct daemonfix *f);

/* The whole log, valid until the next call. */
const char *daemonfix_log(const struct daemonfix *f);
/* Waits until the log holds text; fails the test after 10 s. */
void daemonfix_expect_log(const struct daemonfix *f, const char *text);
/* Descriptors plus children of the daemon. */
int daemonfix_resources(const struct daemonfix *f);
/* Waits until that number is back at want. */
void daemonfix_expect_resources(const struct daemonfix *f, int want);

glmd_conn *daemonfix_connect(const struct daemonfix *f, const struct glmd_options *opt);
/* Event loops to run a test with: 2 (0 epoll, 1 uring), or 1 under an emulator, which has no io_uring. */
int daemonfix_loops(void);
const char *daemonfix_models(void); /* directory with nano and twin-a, from the root */

/* What came for one tag. */
struct answer {
    uint64_t tag;
    uint32_t tokens[4096];
    uint32_t n_tokens;
    char content[65536], reasoning[65536], name[256], args[65536], error[1024];
    size_t n_content, n_reasoning, n_name, n_args;
    uint32_t next_seq;
    bool accepted, ended;
    uint32_t n_progress, n_tools;
    int32_t status;
    uint32_t reason;
    struct glmd_usage usage;
};

/* Takes one event into the answer with its tag; fails the test on a wrong order or an unknown tag. */
void answer_take(struct answer *a, size_t n, const struct glmd_event *ev);
/* Reads events of c until all n answers have ended. */
void answers_wait(glmd_conn *c, struct answer *a, size_t n, int timeout_ms);
/* Submits ids and fills a for it. */
void answer_submit(glmd_conn *c, struct answer *a, glmd_req *r);
glmd_req *request_tokens(glmd_conn *c, const uint32_t *ids, size_t n);
glmd_req *request_text(glmd_conn *c, const char *text);

uint64_t test_now_ms(void);

#endif
