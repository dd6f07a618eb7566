/* SPDX-License-Identifier: MIT */
/* What the files of emit share. Everything in struct emit_conn and struct emit_stream is touched only while
 * holding the connection's publishing right, except where a field says otherwise. */
#ifndef GLMD_EMIT_IMPL_H
#define GLMD_EMIT_IMPL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>

#include "emit.h"
#include "outparse.h"
#include "spsc.h"

enum { NO_STREAM = UINT32_MAX };
/* Measured by `make bench-ipc` on a guest of two cores, with caches gone cold: a token from its event to its record,
 * and a bell for a client that sleeps. The estimate is made of them, and measuring corrects it. */
enum { TOKEN_NS = 220, BELL_NS = 8000, PACE_ONE = 256 };
enum { CREDIT_UNSEEN = 1024 }; /* records, of a stream that nobody reads */

enum right { RIGHT_FREE = 0, RIGHT_HELD = 1, RIGHT_HELD_KICK = 2 /* the engine was turned away */ };

struct emit_conn {
    struct emit *e;
    _Atomic uint32_t right;
    _Atomic int error;     /* first fault of the client; readable without the right */
    _Atomic uint32_t live; /* readable without the right */
    bool closing;
    bool bell_owed;               /* memory for a bell was short; what it tells of is published */
    bool urgent;                  /* something put since the last publish must wake the client */
    bool waiting;                 /* something below waits for room, and credit_wanted is set */
    bool denied;                  /* the engine was refused credit for a stream */
    bool io_waits;                /* io could not put an ACCEPTED or a refusal */
    bool engine_holds;            /* engine thread only: it holds the right in this publish call */
    uint64_t turned_away;         /* engine thread only: the publish call in which it did not get the right */
    struct emit_conn *next_held;  /* engine thread only */
    struct emit_conn *next_batch; /* emit thread only */
    struct glmw_producer tq;
    const void GLMW_FOREIGN *u_base;
    size_t u_bytes;
    struct glmw_d *d;
    int pipe_w;
    uint8_t *txt;
    uint64_t txt_bytes, txt_head, txt_tail; /* free-running; a span never wraps */
    uint64_t *txt_after; /* [ring slots] txt_tail when the slot was filled; private, the client cannot lie */
    uint32_t first;      /* stream list */
    struct bell_counts counts;
    uint64_t stalls, safety_wakes;
    uint32_t stall_head; /* where the client was when it last moved, or nothing waited */
    uint64_t stall_since_ns;
    bool tool_events; /* granted in the handshake */
};

enum stream_state {
    STREAM_FREE = 0,
    STREAM_OPEN,   /* accepted; prepared by a text worker or running */
    STREAM_ENDING, /* the last words wait for room */
    STREAM_REPLAY, /* nothing but the store of a stream that has ended, for a tag that came later */
    STREAM_DONE,   /* END was put; on the retired list */
};

/* A record to be: followed by n_alts alternatives, then len bytes of text, padded to 8. */
struct piece {
    uint64_t t_ns;
    uint32_t token;
    uint32_t len, off; /* off: bytes already in the ring */
    float logprob;
    uint16_t flags;
    uint8_t type, channel;
    uint16_t n_alts;
    uint16_t tool_phase;
    uint32_t tool_index;
};

/* The last records of a kept stream, the text behind each; see estore.c. */
struct estore {
    uint8_t *buf;
    size_t cap;          /* a multiple of 8 */
    uint64_t head, tail; /* bytes, free-running */
    uint32_t first_seq, next_seq;
};

struct estore_at { /* a record in it */
    uint64_t pos;
    uint32_t seq;
};

/* Every token touches the first two cache lines, and most touch no other: at each step all streams' lines come from
 * far away, because the model had the caches since the last. */
struct emit_stream {
    alignas(64) struct emit *e;
    /* Changes while a kept stream moves (emove.c), by io, with the right of the old connection. Who is not io
     * reads it inside emit_enter(), takes that right and reads it again. */
    struct emit_conn *_Atomic conn;
    _Atomic uint32_t gen; /* 0 = free */
    uint32_t index;
    uint64_t tag;
    uint32_t seq;
    enum stream_state state;
    _Atomic uint32_t on_the_way; /* tokens handed to the emit thread that it has not seen yet */
    uint32_t rec_per_token;
    struct outparse *parser;
    bool quiet, bound, first_sent, overflow;
    bool given_up;   /* its reader did not read for too long: only the last words are still shown */
    bool open_token; /* the TOKEN piece of the event being read may still take text */
    bool replaying;  /* records of the store go first, from `replay` on */
    bool held;       /* io is moving it: nothing leaves the outbox */

    alignas(64) uint8_t *outbox; /* its own, or for one event of a stream that waits for nothing the thread's */
    uint32_t out_head, out_tail, last_at; /* last_at: the newest piece */
    uint32_t open_at;                     /* the TOKEN piece's offset in the outbox */
    uint64_t event_ns;
    struct estore *store;   /* NULL: not kept */
    uint64_t handed_over;   /* engine thread only: the publish call in which an event went to the other thread */
    uint32_t n_ids, ids_at; /* answer of TOKENIZE */

    alignas(64) void *owner;
    uint32_t next_gen;   /* io */
    uint32_t prev, next; /* on the connection's list */
    bool linked;         /* it is on it */
    bool tool_events;    /* granted to the connection it was submitted on */
    _Atomic uint32_t next_retired;
    struct estore_at replay;
    const uint32_t *ids;
    struct glmw_usage usage;
    struct glmw_rec_end end;
    uint32_t end_token;
    uint16_t end_flags; /* GLMW_RF_ of the END beside STEP_END */
    uint64_t end_ns;
    char error_text[320];
    int error_status;
    bool has_error;
};
_Static_assert(offsetof(struct emit_stream, owner) == 128, "what a token touches grew out of two cache lines");

struct emit {
    struct emit_options opt;
    struct emit_stream *streams;
    struct stream_credit *credit;
    uint8_t *outboxes;
    uint8_t *desk[2]; /* outboxes of the engine thread and of the emit thread: one event's pieces, gone again before
                       * the next, so that the memory is at hand and a stream's own stays untouched */
    void *parser_mem;
    const struct tok *tok;
    struct outparse_vocab vocab;
    struct estore *stores; /* [max_kept] */
    uint8_t *store_mem;
    struct emit_conn *depot; /* kept streams without a client: a connection that is closed and never freed */
    pthread_mutex_t moving;  /* io moves a stream, a text worker binds one */
    _Atomic uint32_t engine_in, emit_in; /* odd while that thread may hold a connection's address */
    uint32_t free_hint;                  /* io: where to look for a free slot */
    _Atomic uint32_t n_busy;             /* connections with live streams */
    /* What a step in which every live stream gets a token would cost the engine if it published that itself: an
     * estimate from the numbers of streams and of connections that have any (econn_live_more). */
    _Atomic uint32_t step_ns;
    bool only_estimates;
    uint32_t pace; /* engine thread: what it costs on this machine, now, over the estimate; PACE_ONE = as estimated */
    _Atomic uint32_t retired; /* newest first, NO_STREAM = none */

    uint64_t publish_calls; /* engine thread */
    struct spsc handover;   /* engine thread -> emit thread: struct stream_event */
    pthread_t thread;
    bool running;
    _Atomic uint32_t stop;
};

/* emit.c: the pace after one more publication; no single one counts for much, because somebody else may have had the
 * core for a moment */
uint32_t emit_pace_next(uint32_t pace, uint64_t measured_ns, uint64_t estimate_ns);

/* emit.c: between the two a connection seen in a stream is not freed, though the stream may move away */
void emit_enter(_Atomic uint32_t *in);
void emit_leave(_Atomic uint32_t *in);
void emit_quiesce(struct emit *e); /* io: what the other threads saw before is forgotten */

/* econn.c: the right, the ring, the text arena */
void econn_lock(struct emit_conn *c);
bool econn_trylock(struct emit_conn *c); /* false: the holder will kick the engine */
void econn_unlock(struct emit_conn *c);
void econn_refresh(struct emit_conn *c);
void econn_publish(struct emit_conn *c);
void econn_ring_owed(struct emit_conn *c); /* now and then, until it worked */
/* Closing or broken: put nothing. This and the next two are asked several times for every token. */
static inline bool econn_is_gone(const struct emit_conn *c) {
    return c->closing ||
           atomic_load_explicit(&((struct emit_conn *)(uintptr_t)c)->error, memory_order_relaxed);
}
/* Slots that may be used without touching what is kept back for the live streams. */
static inline uint32_t econn_room(const struct emit_conn *c) {
    uint32_t slots = glmw_free_slots(&c->tq);
    uint32_t live = atomic_load_explicit(&((struct emit_conn *)(uintptr_t)c)->live, memory_order_relaxed);
    uint32_t kept = FAULT(emit_no_reserve) ? 0 : live * GLMW_RESERVED_RECS;

    return slots > kept ? slots - kept : 0;
}
static inline uint64_t econn_text_room(const struct emit_conn *c) {
    return c->txt_bytes - (c->txt_tail - c->txt_head);
}
/* A stream more or less that may put records there. */
void econn_live_more(struct emit_conn *c);
void econn_live_less(struct emit_conn *c);
/* Copies text into the arena. False: no room. */
bool econn_text(struct emit_conn *c, const void *text, uint32_t len, uint32_t *ret_off);
void econn_put(struct emit_conn *c, const void *slot64); /* the caller checked the room */
/* Sets credit_wanted and looks once more; true when the client has given something back meanwhile. */
bool econn_ask(struct emit_conn *c);
void econn_settle(struct emit_conn *c);    /* last thing before the right is given up */
bool econn_flush_all(struct emit_conn *c); /* true: nothing waits any more */

/* estream.c: pieces, outbox, records of a stream */
struct emit_stream *estream_get(struct emit *e, struct stream_id id); /* NULL: stale */
/* desk: an outbox of the calling thread, which is empty before and after */
void estream_event(struct emit_stream *s, const struct stream_event *ev, uint8_t *desk);
bool estream_flush(struct emit_stream *s); /* true: nothing waits any more */
void estream_fail(struct emit_stream *s, int status, const char *text);
void estream_give_up(struct emit_stream *s);
void estream_retire(struct emit_stream *s);
uint32_t estream_credit(const struct emit_stream *s);
void estream_link(struct emit_stream *s, struct emit_conn *c);
void estream_unlink(struct emit_stream *s);
/* ERROR, USAGE and END of a tag whose stream goes on without it; they are not of the stream's own record. */
void estream_farewell(struct emit_stream *s, int status, const char *text);

/* estore.c: the last records of a kept stream */
void estore_reset(struct estore *st);
void estore_add(struct estore *st, const void *slot64, const void *text);
/* Where to go on: seq, or behind the alternatives that it is one of. False: fallen out, or never said. */
bool estore_find(const struct estore *st, uint32_t seq, struct estore_at *ret);
/* The record at pos and its text, of at most GLMW_SPAN_MAX bytes; returns how far the next is. */
size_t estore_read(const struct estore *st, uint64_t pos, void *ret_slot64, void *ret_text);

/* emit_io.c: what io's ways to a stream have in common */
struct emit_stream *emit_take_slot(struct emit *e);
void emit_start_stream(struct emit_stream *s, struct emit_conn *c, const struct emit_accept *a);
/* Whether a new stream may begin now: 0, -EPIPE: the connection ends, -ENOBUFS: no room, and the client was asked for
 * it. The right is held. */
int emit_admit(struct emit_conn *c);
bool emit_conn_is_full(const struct emit_conn *c); /* no further stream can be promised its last words */
void emit_put_accepted(struct emit_conn *c, const struct emit_accept *a, uint32_t seq);

/* epiece.c: from parser events to pieces in the outbox */
void epiece_sink(void *arg, const struct outparse_ev *ev);
bool epiece_put(struct emit_stream *s, const struct piece *p, const struct stream_alt *alts,
                const char *text);
void epiece_token(struct emit_stream *s, const struct stream_event *ev);
void epiece_mark_step_end(struct emit_stream *s);

#endif
