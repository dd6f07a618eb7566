/* SPDX-License-Identifier: MIT */
/* The engine object, seen inside the engine room only. Everything below `inbox` belongs to the engine thread
 * (the starting thread before engine_run); what other threads read is atomic.
 *
 * Life of a round (run.c): take what came in, end what must end, admit; plan and launch the decode step;
 * launch a slice of the prefill chunk; publish what the previous step produced; wait for the decode step and
 * decide over its tokens; wait for the slice. Both lanes are idle between rounds, so everything that frees a
 * slot or a page happens then. */
#ifndef GLMD_ENGINE_PRIV_H
#define GLMD_ENGINE_PRIV_H

#include <stdatomic.h>

#include "config.h"
#include "control.h"
#include "directory.h"
#include "watch.h"
#include "ecache.h"
#include "enumbers.h"
#include "engine.h"
#include "espill.h"
#include "governor.h"
#include "idpool.h"
#include "inbox.h"
#include "plan.h"
#include "progs.h"
#include "ranks.h"
#include "scheduler.h"
#include "seen.h"

enum {
    ENGINE_MAX_STOP_IDS = CONTROL_MAX_STOP_IDS,
    ENGINE_FILL_PROGS = KERN_MAX_LAYERS + 4,
    ENGINE_FILL_PARTS = 8, /* prompts in one chunk */
};

#define ENGINE_NONE UINT32_MAX

/* One accepted request, by stream index. */
struct eng_stream {
    struct sched_req *req; /* NULL = free */
    struct stream_id id;
    uint32_t seq;   /* ENGINE_NONE while queued */
    uint32_t place; /* last reported place in the queue */
    bool skipped;   /* credit short, left out of steps */
    uint32_t most_credit; /* records that its reader ever had room for */
    bool held;      /* waits for what another one is just reading (etwins.c): the sequence of the next */
    uint32_t held_by;
    bool fetching;  /* waits for what comes from the disk (espill.c) */
    bool told_hold; /* what the scheduler was told of both */
    uint32_t tier;  /* tokens of its prompt that are, or were, fetched from there */
    struct ecache_own fetched; /* the checkpoint that they became; serial 0: none */
    bool looked;    /* the next two: when the scheduler was told what it needs (ecache.c) */
    uint32_t looked_idle, looked_slots;
    uint64_t looked_at;
    bool hit_known; /* the next two: what the cache had of its prompt at that time (etwins.c) */
    uint32_t hit;
    uint64_t hit_at;
    uint64_t taken_ns;
};

/* How far the prompt of a queued stream and that of a sequence agree, compared once. */
struct eng_twin {
    uint32_t serial; /* of the sequence; 0 = not compared */
    uint32_t same;
};

/* One running sequence: it has a slot and pages. */
struct eng_seq {
    bool used, penalties;
    bool gone; /* ended; the chunk in flight still writes into its slot and pages */
    uint32_t stream;
    uint32_t serial; /* of its admission, not 0 */
    struct mem_slot slot;
    struct mem_page *pages; /* [pages of a whole context] */
    uint32_t n_pages;       /* reserved */
    uint32_t pos;           /* tokens in its state */
    uint32_t n_read;        /* tokens to be read before it answers, or goes on to */
    uint32_t n_seen;        /* leading tokens of the prompt that penalties know */
    bool answers;           /* what is read is an answer that goes on: no token comes out of it */
    bool away;              /* it has neither slot nor pages (eaway.c) */
    uint32_t token;         /* sampled last, to be fed at pos */
    uint64_t admitted_ns, first_ns, last_ns, longest_gap_ns;
    bool deferred; /* the prompt's sample came while the ring was full: `result` waits for credit */
    uint64_t deferred_ns;
    struct kern_result result;
    struct control control;
    struct ecache_seq cache;
    struct seen seen;
};

/* What a prefill chunk reads of one prompt. */
struct fill_part {
    uint32_t seq;
    uint32_t pos0, n_rows;
    bool last; /* the prompt's end: its last row is sampled */
};

/* A prefill chunk on its way through the layers. */
struct fill {
    bool active;
    bool head; /* some part is the last of its prompt */
    struct fill_part parts[ENGINE_FILL_PARTS];
    uint32_t n_parts, n_rows;
    uint32_t n_progs, next, launched; /* next: first program not yet done; launched: in flight from there */
    const struct kern_prog *progs[ENGINE_FILL_PROGS];
    uint64_t started_ns; /* of the chunk */
    uint64_t began_ns;   /* launch of the slice in flight */
};

struct engine {
    /* fixed by engine_open */
    struct engine_options opt;
    struct model_config cfg;
    bool has_cfg; /* false: a script with a bare vocabulary */
    bool is_script;
    char *script; /* text, owned */
    char dir[512], name[64], backend[32];
    struct model_index *index;
    struct model_directory directory;
    bool has_directory;
    struct kern_store *stores; /* kc.stores: how each matrix is stored, NULL for scripts */
    struct model_findings findings; /* engine_load */
    struct xerr lack; /* what memory lacks; code 0: nothing */
    uint64_t available_bytes; /* in the machine when that was found */
    uint32_t device_classes;  /* bit per enum kern_mem: lies in a device's own memory */
    uint64_t device_free;     /* there, at the same time */
    struct kern_config kc;
    struct plan_limits limits;
    uint32_t model_context; /* the longest the model allows */
    uint32_t pages_per_seq;
    uint32_t stop_ids[ENGINE_MAX_STOP_IDS], n_stop_ids;
    struct mem_account account;
    struct ranks ranks;
    uint64_t arena_bytes;

    /* made by engine_load */
    void *arena;
    struct grammar_work *grammar_work;
    struct kern *k; /* rank 0's: names, results, peeks */
    struct progs progs;
    struct plan plan;
    struct sched *sched;
    struct mem_page_pool pages;
    struct mem_slot_pool slots;
    bool has_pools;
    struct prefix *prefix; /* NULL: no prefix cache */
    uint32_t long_tokens;  /* ECACHE_LONG, in multiples of KERN_GRID */
    struct espill spill;
    struct eng_stream *streams; /* [opt.max_streams] */
    struct eng_seq *seqs;       /* [n_seqs]: those with a seat, those that are paused, and those that are away */
    uint32_t n_seqs;
    struct eng_twin *twins;     /* [opt.max_streams][n_seqs], NULL without a prefix cache */
    struct stream_event *events;
    uint32_t max_events;
    bool loaded;

    /* set before engine_run */
    struct vocab_view vocab; /* what it points to is borrowed */
    struct stream_sink sink;

    /* other threads */
    struct inbox inbox;
    _Atomic uint32_t live;     /* submitted, END not yet decided */
    _Atomic uint32_t stopping; /* 1 after engine_stop */
    _Atomic uint32_t lost;     /* 1 after a device error */
    _Atomic uint64_t stop_deadline_ns;

    /* the engine thread's */
    uint32_t n_events;
    uint32_t seen_cancels, seen_kicks;
    uint64_t step;
    uint64_t now_ns; /* at the start of the round */
    struct fill fill;
    uint32_t *batch; /* [opt.max_seqs] seqs of the decode step in flight */
    uint32_t n_batch;
    struct governor governor;
    bool queue_dirty;
    uint64_t places_ns; /* when queue places were last worked out */
    bool calm; /* with the two below: the next round may go straight to its step (run.c) */
    uint32_t calm_ticket;
    uint64_t calm_until_ns;
    uint32_t n_skipped;
    uint32_t n_rolling;   /* states of answers set aside */
    uint64_t cache_moves; /* counts whatever may change what a prompt finds */
    bool twins_dirty;
    uint32_t n_held;
    uint32_t admissions;  /* serial of the last one */
    uint64_t twin_ids;    /* compared so far */
    uint64_t safety_ns; /* when skipped streams are looked at again without a kick; 0 = no timer */

    struct enumbers numbers;

    struct {
        _Atomic uint64_t steps, prefill_tokens, sampled_tokens, heartbeat_ns, skips, safety_wakes, sleeps;
        _Atomic uint64_t budget_closes, loop_closes;
        _Atomic uint32_t running, queued, free_slots, free_pages, asleep, retry_ms;
    } stats;
};

static inline void stat_add(_Atomic uint64_t *c, uint64_t n) {
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n, memory_order_relaxed);
}

static inline struct eng_seq *stream_seq(struct engine *e, uint32_t stream) {
    uint32_t s = e->streams[stream].seq;

    return s == ENGINE_NONE ? NULL : &e->seqs[s];
}

/* streams.c: what happens to requests */
int request_check(const struct engine *e, const struct sched_req *req);
void streams_take(struct engine *e);   /* the inbox */
void streams_expire(struct engine *e); /* deadlines, drain */
void streams_admit(struct engine *e);
void streams_credit(struct engine *e); /* who can take a token; sets skips */
void streams_places(struct engine *e); /* PROGRESS of queued ones */
void stream_end(struct engine *e, uint32_t stream, enum stream_reason reason, int status, uint32_t token);
uint32_t stream_reserved(const struct engine *e, const struct sched_req *req); /* tokens: prompt and longest answer */
void seq_give(struct engine *e, uint32_t seq); /* its slot and pages go back */
void stream_hold(struct engine *e, uint32_t stream); /* tells the scheduler when held or fetching have changed */
void streams_end_all(struct engine *e, enum stream_reason reason, int status);

/* events.c */
struct stream_event *event_push(struct engine *e, struct stream_id id, enum stream_event_type type, uint64_t t_ns);
void events_publish(struct engine *e);
void event_progress(struct engine *e, uint32_t stream, uint32_t done, uint32_t place, uint64_t wait_ns);

/* step.c: the decode step */
int step_launch(struct engine *e); /* 1 launched, 0 nothing to decode */
int step_finish(struct engine *e);
void step_token(struct engine *e, uint32_t seq, const struct kern_result *r, uint64_t t_ns);
int step_sample(struct engine *e, const struct eng_seq *q, uint32_t row);

/* fill.c: the prefill lane */
int fill_start(struct engine *e, bool busy);  /* picks and plans a chunk; 1 there is one, 0 none */
int fill_launch(struct engine *e, bool busy); /* 1 launched; busy: decode steps wait between the slices */
int fill_finish(struct engine *e);            /* waits for the slice; the chunk's end when it was the last */
/* A sequence ends. false: the chunk in flight still needs what it has; it gives that back itself. */
bool fill_leave(struct engine *e, uint32_t seq);
/* Tokens of the sequence's prompt that have been read or are on their way through the layers. */
uint32_t fill_until(const struct engine *e, uint32_t seq);
/* The pieces evaluation shares: a chunk planned by hand, run to its end. */
void fill_programs(struct engine *e, struct fill *f, bool head, bool draft);
int fill_load(struct engine *e);

/* eaway.c */
/* A sequence of the background, or one whose reader stands still, gives way to one that waits for memory. false: none
 * did. */
bool away_one(struct engine *e);
uint32_t away_id(const struct engine *e, const struct eng_seq *q, uint32_t pos); /* of prompt and answer */

/* run.c */
/* 0, or the error that engine_fail was told. may_sleep: waits for a post when there was nothing to do. */
int engine_round(struct engine *e, bool may_sleep);
/* What runs and waits and what is free, for engine_get_stats(). */
void engine_count_stats(struct engine *e);
int engine_fail(struct engine *e, const char *what, int r); /* the device is lost; every stream ends */

/* size.c: how many tokens, pages and bytes */
uint64_t arena_layout(struct engine *e, char *base); /* places the tables into base; NULL: only their bytes */
int engine_size(struct engine *e, struct xerr *err);

/* load.c */
int engine_reopen(struct engine *e, struct xerr *err); /* a fresh backend in the same memory (scripts) */

#endif
