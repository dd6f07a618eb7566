/* SPDX-License-Identifier: MIT */
/* A running engine for tests: opened over a script text or a checkpoint, its loop in a thread of its own, its
 * events recorded. Every failure of the set-up fails the running Check test. */
#ifndef GLMD_TEST_ENGRUN_H
#define GLMD_TEST_ENGRUN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine.h"

enum { ENGRUN_STREAMS = 64, ENGRUN_TOKENS = 4096 };

struct engrun_stream {
    uint32_t gen;
    uint32_t n_tokens, tokens[ENGRUN_TOKENS];
    uint64_t t_ns[ENGRUN_TOKENS];
    float logprob;  /* of the last token */
    float logprobs[ENGRUN_TOKENS]; /* of each; NaN where not asked for */
    uint32_t n_alts; /* of the last token */
    struct stream_alt alts[STREAM_MAX_ALTS];
    uint32_t n_forced;     /* tokens that control set */
    uint32_t firsts;       /* tokens marked as first */
    uint32_t ends;         /* END events of this generation */
    uint32_t late;         /* events after the END */
    struct stream_event end;
    uint32_t n_progress, max_place;
    struct stream_progress progress; /* last */
};

struct engrun {
    struct engine *e;
    pthread_t thread;
    bool running;
    int result; /* of engine_run */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct engrun_stream s[ENGRUN_STREAMS];
    uint32_t total_ends;
    uint64_t published; /* how often */
    bool metered; /* tokens use up credit */
    struct stream_credit credit[ENGRUN_STREAMS];
    uint32_t hidden_credit[ENGRUN_STREAMS]; /* what refresh gives */
    uint32_t refreshes;
    char path[64];
};

/* A script's text or, when it has no line break, a checkpoint directory. opt may be NULL; its model is
 * ignored. */
void engrun_open(struct engrun *r, const char *script, const struct engine_options *opt);
void engrun_attach(struct engrun *r); /* its events are recorded; the test drives the rounds by hand */
void engrun_start(struct engrun *r); /* the loop's thread */
/* Stops the loop (drain at once), joins it, closes the engine. Returns what engine_run returned. */
int engrun_close(struct engrun *r);

/* A request with neutral sampling: greedy, quiet. */
struct sched_req engrun_req(uint32_t stream, const uint32_t *ids, uint32_t n_ids, uint32_t max_tokens);
void engrun_submit(struct engrun *r, struct sched_req *req); /* must be taken */
/* Until the stream's END; fails when nothing at all has happened for minutes (SILENCE_S). */
const struct engrun_stream *engrun_wait_end(struct engrun *r, uint32_t stream);
/* The same of a stream's later generation. */
const struct engrun_stream *engrun_wait_gen(struct engrun *r, uint32_t stream, uint32_t gen);
/* Until the stream has n tokens. */
void engrun_wait_tokens(struct engrun *r, uint32_t stream, uint32_t n);
uint32_t engrun_tokens(struct engrun *r, uint32_t stream); /* so far */
void engrun_credit(struct engrun *r, uint32_t stream, uint32_t records); /* gives, and kicks */
/* Until the engine sleeps. Then whatever requests took is free again or the cache's, nothing is under way, and the tree
 * of the cache adds up. */
void engrun_settle(struct engrun *r);

uint64_t engrun_now_ns(void);
void engrun_sleep_ms(uint32_t ms);

#endif
