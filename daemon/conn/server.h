/* SPDX-License-Identifier: MIT */
/* conn: the listening socket, every connection with its handshake, rings and quota, and every live request
 * until its stream is retired. io thread, except where said. */
#ifndef GLMD_SERVER_H
#define GLMD_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "conf.h"
#include "emit.h"
#include "loop.h"
#include "numbers.h"
#include "prep.h"
#include "wire.h"
#include "wire_num.h"
#include "xerr.h"

struct server;

struct server_options {
    struct loop *loop;
    struct emit *emit;
    struct prep *prep;
    const struct conf *conf; /* borrowed; reloadable keys may change between turns */
    void *ctx;
    void (*cancel)(void *ctx, struct stream_id id); /* tells the engine; may be called before it exists */
};

int server_new(const struct server_options *opt, struct server **ret);
/* Every connection must be gone (server_close_all, then turns until server_is_empty). NULL ok. */
struct server *server_free(struct server *s);

/* Creates and locks the socket. A second daemon on the same path is refused; a socket left by one that died
 * is removed. group "" leaves the process's group. The directory must be there already, but for own_dir, which is made
 * when it is missing and whose parent must be there. */
int server_listen_path(struct server *s, const char *path, const char *own_dir, const char *group, struct xerr *err);
int server_listen_fd(struct server *s, int fd, struct xerr *err); /* from the service manager; takes fd */

/* What new connections are offered, and what open ones are told by NOTICE. */
struct server_model {
    char name[64];
    uint32_t vocab_tokens, context_tokens;
    bool has_text; /* messages, TOKENIZE and COUNT are possible */
};
void server_set_model(struct server *s, const struct server_model *m);
void server_set_state(struct server *s, enum glmw_state state);

/* Numbers of the status block that conn does not know itself; written to every connection. */
struct server_status {
    uint64_t start_ns, kv_free_tokens, kv_total_tokens, tokens_out;
    uint64_t heartbeat_ns;
    uint32_t queued, running, slots_free, slots_total;
    uint32_t prefill_mtok_s, decode_mtok_s, load_permille;
    uint32_t budget_closes, loop_closes;
};
void server_write_status(struct server *s, const struct server_status *st);
/* For those who asked in the handshake. */
void server_write_numbers(struct server *s, const struct numbers *n);
/* What of it a reader may see: all, or what is its own. */
void numbers_show(const struct numbers *n, uint32_t uid, bool all, struct glmw_numbers *ret);
/* The configuration was read again. */
void server_reload(struct server *s);
/* Once a second: handshake and queue deadlines, safety nets. */
void server_tick(struct server *s);

/* One turn's work: prepared and retired requests, connections with entries left. True: there is more. */
bool server_turn(struct server *s);

/* Any thread: something for server_turn. */
void server_wake(struct server *s);
/* Text workers: hands a request back. */
void server_prepared(struct server *s, struct prep_req *r, enum prep_outcome outcome);

void server_stop_listening(struct server *s); /* and removes its socket */
/* Ends what no text worker has begun: the engine will never see it. */
void server_drop_queued(struct server *s, int status, const char *text);
void server_close_all(struct server *s);
bool server_is_empty(const struct server *s); /* no connection left, nor a kept stream that runs */
/* Requests since the start. */
void server_count(const struct server *s, uint64_t *ret_accepted, uint64_t *ret_ended);
uint32_t server_live(const struct server *s); /* accepted requests without END */
uint32_t server_connections(const struct server *s);

#endif
