/* SPDX-License-Identifier: MIT */
/* A daemon made of the ipc room and a script, for tests of the client.
 *
 * Step by step (struct fake): one connection over a socket pair, driven by the test itself, so that every
 * interleaving is exact and no thread is needed.  It can lie in every field.
 *
 *     struct fake f;
 *     glmd_conn *c = fake_connect(&f, NULL);
 *     ... glmd_submit(c, r, &tag);
 *     fake_pop(&f, &entry); fake_accept(&f, tag); fake_text(&f, tag, 5, "hi"); fake_end(&f, tag, 0, 1);
 *     fake_flush(&f, false);
 *
 * Served (struct fakeserver): a thread behind a listening socket that plays the same script for every request
 * of every connection. */
#ifndef GLMD_FAKEDAEMON_H
#define GLMD_FAKEDAEMON_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "bell.h"
#include "glmd.h"
#include "hello.h"
#include "shm.h"
#include "wire.h"

#define FAKE_MAX_TAGS 256
#define FAKE_FEATURES                                                                                        \
    (GLMW_FEAT_LOGPROBS | GLMW_FEAT_ALTS | GLMW_FEAT_COALESCE | GLMW_FEAT_TOOL_EVENTS | GLMW_FEAT_TOKENIZE)

struct fake_options {
    uint64_t features;                            /* 0: FAKE_FEATURES */
    uint8_t sq_log2, tq_log2, pay_log2, txt_log2; /* 0: the default of the wire */
    struct glmw_limits limits;
    uint32_t live; /* limits.max_live, 0: 64 */
    /* called before WELCOME leaves: may change it, or the packet, or what lies in region D */
    void (*spoil)(struct glmw_welcome *w, struct glmw_d *d, void *arg);
    void *spoil_arg;
    int n_fds;      /* descriptors sent with WELCOME, 0: all four, -1: none */
    bool swap_pipe; /* sends the bell in place of the pipe */
    bool unsealed;  /* sends regions that may shrink */
};

struct fake_tag {
    uint64_t tag;
    uint32_t seq;
};

struct fake {
    int sock; /* our end; -1 after fake_die() */
    struct shm_pair shm;
    struct bell bell;
    struct glmw_consumer sq;
    struct glmw_producer tq;
    struct glmw_welcome welcome;
    struct bell_counts counts;
    struct fake_tag tags[FAKE_MAX_TAGS];
    uint32_t txt_at;
    uint32_t serial;
};

/* Opens both ends; *ret_client is for glmd_connect_fd(), to which WELCOME is already on its way. */
void fake_open(struct fake *f, const struct fake_options *o, int *ret_client);
/* The daemon's end over a socket that is already connected. */
void fake_start_on(struct fake *f, const struct fake_options *o, int sock);
void fake_close(struct fake *f);
/* fake_open() and glmd_connect_fd() in one; the connection must succeed. */
glmd_conn *fake_connect(struct fake *f, const struct fake_options *o);
/* The daemon's process ends: its descriptors close, what it wrote stays. */
void fake_die(struct fake *f);

/* Next entry; false: none. */
bool fake_pop(struct fake *f, struct glmw_entry *ret);
/* The next entry must be a SUBMIT; returns its tag. */
uint64_t fake_pop_submit(struct fake *f);
/* Bells rung by the client since the last call, without waiting. */
uint64_t fake_bells(struct fake *f);

/* Records; put without publishing.  Each takes the next sequence number of its tag. */
void fake_put(struct fake *f, const void *rec64);
struct glmw_rec fake_rec(struct fake *f, uint8_t type, uint64_t tag); /* a filled head */
void fake_accept(struct fake *f, uint64_t tag);
void fake_progress(struct fake *f, uint64_t tag, uint32_t done, uint32_t total, uint32_t queue_pos);
void fake_text(struct fake *f, uint64_t tag, uint32_t token, const char *text);
void fake_piece(struct fake *f, uint64_t tag, uint8_t channel, uint32_t token, const char *text,
                uint32_t len);
void fake_usage(struct fake *f, uint64_t tag, uint32_t prompt, uint32_t completion);
void fake_error(struct fake *f, uint64_t tag, int status, const char *text);
void fake_end(struct fake *f, uint64_t tag, int status, uint16_t reason);
void fake_flush(struct fake *f, bool urgent);

/* A packet on the socket, or anything that should not be one. */
void fake_packet(struct fake *f, const struct hello_msg *m);
void fake_packet_raw(struct fake *f, const void *p, size_t len, const int *fds, unsigned n_fds);
/* The client's next packet of this type must have arrived within a second; others are skipped. */
void fake_expect(struct fake *f, uint16_t type, struct hello_msg *ret);

/* ---- served ---- */

struct fake_token {
    uint8_t channel;
    const char *text;
};

struct fake_script {
    const struct fake_token *tokens;
    uint32_t n_tokens;
    uint32_t repeat;         /* times the tokens are played, 0: once */
    uint32_t progress_steps; /* PROGRESS records before the first token */
    uint32_t delay_us;       /* before each token */
    uint32_t notice_ms;      /* between notices to every connection, 0: none */
    int status;              /* of END; with error_text an ERROR comes first and nothing else */
    const char *error_text;
    uint16_t reason;
    uint32_t die_after; /* the server closes the connection after so many tokens, 0: never */
    bool deaf;          /* cancels are counted and not obeyed */
    bool echo;          /* the text of the last user message is the answer, in pieces of 3 bytes */
};

struct fakeserver {
    char dir[64];
    char path[96];
    int listener;
    int stop_fd;
    pthread_t thread;
    struct fake_options options;
    struct fake_script script;
    /* read after fakeserver_stop() */
    uint32_t n_connections;
    uint32_t n_submits;
    uint32_t n_cancels;
    uint32_t n_ends;
    uint32_t n_nops;
    struct glmw_entry last_submit;
    uint8_t last_payload[8192];
};

/* Makes a temporary directory with a socket; both are removed by fakeserver_stop(). */
void fakeserver_start(struct fakeserver *s, const struct fake_script *script, const struct fake_options *o);
void fakeserver_stop(struct fakeserver *s);

#endif
