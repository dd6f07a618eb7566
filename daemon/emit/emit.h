/* SPDX-License-Identifier: MIT */
/* emit: from engine events (token ids) to records in the clients' token rings. It keeps, per stream, the
 * output parser and an outbox of pieces that did not fit the ring yet; per connection, the producer end of
 * the ring and the text arena.
 *
 * Who publishes: a connection has one publishing right (a word, held for microseconds). The io thread and
 * the emit thread wait for it; the engine thread only tries, and hands what it could not publish to the emit
 * thread, as it does with everything when more than `inline_conns` connections have live streams, when a step's
 * records and bells would take it some 10 us more than one bell, or when the emit thread still has work: so records
 * of a stream keep their order whoever writes them, and the engine never waits.
 *
 * A *kept* stream has a store: the last of its records stay there, so that another tag, on another connection
 * as a rule, can get them again and go on from there. Its client gone, it goes on and fills the store.
 *
 * Lifetime of a stream: accepted by io, bound by a text worker, fed by the engine, ended by the END event or
 * by io; then it is *retired*: io takes it from the retired list and only then reuses slot and memory. */
#ifndef GLMD_EMIT_H
#define GLMD_EMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "bell.h"
#include "shm.h"
#include "stream_event.h"
#include "xerr.h"

struct emit;
struct emit_conn;
struct tok; /* text room; conn and main see only pointers */
struct outtools;
struct stopstr_set;

struct emit_options {
    uint32_t max_streams;
    uint32_t inline_conns; /* up to so many connections with live streams the engine thread publishes itself */
    uint32_t outbox_bytes; /* per stream; 0 = 128 KiB. Touched only when a client is slow */
    uint32_t max_kept;     /* stores for streams that can be resumed */
    uint32_t store_bytes;  /* of each; 0 = 64 KiB */
    uint32_t inline_step_ns; /* what costs the engine so much more than a bell a step is handed over; 0 = 11 us,
                              * measured; else, for tests, as estimated */
    void *ctx;
    void (*kick)(void *ctx);                        /* credit may have come back: tell the engine */
    void (*wake_io)(void *ctx);                     /* something waits for emit_take_retired or _is_broken */
    void (*cancel)(void *ctx, struct stream_id id); /* the stream cannot be shown any further */
};

int emit_new(const struct emit_options *opt, struct emit **ret);
struct emit *emit_free(struct emit *e); /* after emit_stop; NULL ok; returns NULL */

/* Allocates the parsers. Before the engine runs, after the tokenizer was read. tok == NULL: records carry
 * ids and no text. Both are borrowed for the life of e. */
int emit_set_text(struct emit *e, const struct tok *tok, const uint32_t *eos, size_t n_eos, struct xerr *err);
/* What the above and the text of slow clients take at most, touched or not. */
uint64_t emit_text_bytes(const struct emit *e, const struct tok *tok);
void emit_get_sink(struct emit *e, struct stream_sink *ret);

int emit_start(struct emit *e); /* the emit thread */
void emit_stop(struct emit *e); /* after the engine thread has returned: what was handed over is published */

/* ---- io thread ---- */

/* Borrows the mapping and the descriptor until emit_conn_free. */
int emit_conn_new(struct emit *e, const struct shm_pair *shm, int pipe_w, struct emit_conn **ret);
/* Nothing is published any more; streams that wait only for room are retired. */
void emit_conn_close(struct emit_conn *c);
void emit_conn_free(struct emit_conn *c); /* no live stream may be left */
uint32_t emit_conn_live(const struct emit_conn *c);
/* The client broke the rules of the ring (-EPROTO), its memory faulted (-EFAULT), it closed the pipe
 * (-EPIPE); 0 while all is well. */
int emit_conn_error(const struct emit_conn *c);
/* The client gave records back: flushes what waited and kicks the engine. */
void emit_conn_resume(struct emit_conn *c);
/* The safety net behind it, for a timer: true when something had waited although there was room, which is
 * counted and should never happen. */
bool emit_conn_rescue(struct emit_conn *c);
/* For how long something has waited for room while the client gave nothing back. Measured between calls, so
 * for a timer, right after emit_conn_rescue. */
uint64_t emit_conn_stalled_ns(struct emit_conn *c, uint64_t now_ns);
/* The client will not read: what waits of its streams is dropped, and each ends with -ETIMEDOUT, those the
 * engine has as soon as it is told to cancel them. Returns how many there are. */
uint32_t emit_conn_give_up(struct emit_conn *c);

struct emit_conn_stats {
    struct bell_counts bells;
    uint64_t stalls;
    uint64_t safety_wakes;
};
void emit_conn_get_stats(struct emit_conn *c, struct emit_conn_stats *ret);

struct emit_accept {
    uint64_t tag, client_ns;
    uint64_t stream_id; /* told in ACCEPTED; 0 = not kept */
    uint32_t store;     /* with stream_id: which one, below max_kept; not in use */
    bool quiet;
    void *owner; /* given back by emit_take_retired */
};
/* Publishes ACCEPTED. -EBUSY: no stream slot; -ENOBUFS: the ring has no room now, try after a resume (the
 * client has been asked for it). */
int emit_conn_accept(struct emit_conn *c, const struct emit_accept *a, struct stream_id *ret);
/* Publishes ERROR and END of a tag that was not accepted. -ENOBUFS as above. */
int emit_conn_refuse(struct emit_conn *c, uint64_t tag, int status, const char *text);
int emit_conn_notice(struct emit_conn *c, uint32_t what); /* -ENOBUFS: left out */

/* Ends an accepted stream that the engine never got: ERROR (when text is not NULL), USAGE, END. */
void emit_stream_fail(struct emit *e, struct stream_id id, int status, const char *text);
/* Answers TOKENIZE (ids, which stay until the stream is retired) and COUNT (ids == NULL). */
void emit_stream_ids(struct emit *e, struct stream_id id, const uint32_t *ids, uint32_t n_ids);

/* ---- kept streams: io thread ---- */

/* 0 when a tag can go on from there, -ENODATA when those records are gone or were never said. */
int emit_store_check(struct emit *e, uint32_t store, struct stream_id live, uint32_t from_seq);
/* Takes a kept stream from its tag, which gets ERROR, USAGE and END when status is not 0. It goes on without
 * a client. One that only replays is retired. Nothing happens to one that has ended meanwhile. False for both:
 * the stream is, or soon will be, on the retired list, and its connection must stay until it is taken. */
bool emit_stream_detach(struct emit *e, struct stream_id id, int status, const char *text);
/* Gives a detached stream the tag in a: ACCEPTED, its records from from_seq on, then what comes. -ESTALE: it
 * has ended meanwhile, take what is retired; otherwise as emit_conn_accept and emit_store_check. */
int emit_stream_attach(struct emit_conn *c, struct stream_id id, const struct emit_accept *a,
                       uint32_t from_seq);
/* The same for one that has ended: a stream of its own, that has nothing but its store. */
int emit_conn_replay(struct emit_conn *c, const struct emit_accept *a, uint32_t from_seq,
                     struct stream_id *ret);

/* Calls fn for every retired stream, whose slot is free afterwards. */
void emit_take_retired(struct emit *e, void (*fn)(void *ctx, void *owner), void *ctx);

/* ---- text workers ---- */

struct emit_bind {
    const struct outtools *tools;
    const struct stopstr_set *stop;
    bool thinking_open, ignore_eos;
    uint32_t n_alts;
};
/* Before engine_submit. Everything stays until the stream is retired. */
void emit_stream_bind(struct emit *e, struct stream_id id, const struct emit_bind *b);

#endif
