/* SPDX-License-Identifier: MIT */
/* The daemon as a whole: what main, the loader thread and the life cycle share. */
#ifndef GLMD_DAEMON_H
#define GLMD_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "conf.h"
#include "emit.h"
#include "engine.h"
#include "loop.h"
#include "prep.h"
#include "server.h"
#include "turns.h"

enum { MAX_OVERRIDES = 16, DAEMON_MAX_EOS = 16 };

struct override { /* from the command line; applied again after every reload */
    const char *section, *key, *origin;
    char value[CONF_PATH_MAX];
};

enum load_phase { LOAD_RUNNING = 0, LOAD_DONE, LOAD_FAILED, ENGINE_ENDED };

struct daemon {
    struct conf conf;
    const char *conf_file;
    struct override overrides[MAX_OVERRIDES];
    uint32_t n_overrides;
    char own_dir[CONF_PATH_MAX]; /* of the socket that is used when none is named */
    bool plan, json; /* --plan, --json: print what would be loaded, and exit */

    struct loop *loop;
    struct loop_source *signals;
    struct loop_timer *tick, *drain;
    int signal_fd;
    int exit_code;

    struct emit *emit;
    struct turns *turns;
    struct prep *prep;
    struct server *server;

    /* loader.c: written by the loader thread, which becomes the engine thread */
    uint64_t first_max_prompt_bytes; /* as it was when the thread started; reloads go to prep directly */
    pthread_t engine_thread;
    bool has_thread;
    _Atomic(struct engine *) engine; /* set once the engine can be cancelled, kicked and asked */
    _Atomic int phase;               /* enum load_phase; what is below is stable before it is stored */
    _Atomic uint32_t load_permille;
    struct xerr load_error;
    int engine_result;
    struct tok *tok;
    struct chat *chat;
    struct engine_info info;
    struct vocab_view vocab;
    struct grammar_vocab *grammar;
    uint8_t *vocab_bytes;
    uint32_t *vocab_offsets, *vocab_marks;
    uint32_t eos[DAEMON_MAX_EOS];
    uint32_t n_eos;
    bool has_text;
    uint32_t *close_ids; /* the words that end reasoning */
    uint32_t n_close;

    /* life.c: io thread */
    bool ready, draining, stopping, emit_stopped;
    uint64_t start_ns, ready_ns;
    uint64_t last_tick_ns, last_decode, last_prefill;
    uint32_t decode_mtok_s, prefill_mtok_s;
    struct numbers numbers;
};

/* options.c: 0 go on; 1 all is done (help, version, …); negative: exit with a message already printed */
int options_parse(struct daemon *d, int argc, char **argv);
int options_load_conf(struct daemon *d, struct conf *ret, struct xerr *err);

/* loader.c */
int loader_start(struct daemon *d);
void loader_done(struct daemon *d); /* after the thread was joined */
/* Tokenizer, template and engine, with nothing loaded yet. */
int loader_open(struct daemon *d, struct engine **ret, struct xerr *err);

/* plan.c */
void plan_log(const struct engine *e);
void plan_log_findings(const struct engine *e);
int plan_print(struct daemon *d, bool json, struct xerr *err);

/* life.c */
int life_start(struct daemon *d, struct xerr *err);
bool life_turn(void *ctx);
void life_done(struct daemon *d);

#endif
