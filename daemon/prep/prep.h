/* SPDX-License-Identifier: MIT */
/* prep: text workers. A decoded request goes in; messages are rendered and tokenized, sampling settings get
 * their defaults, the output parser is bound, and the engine gets token ids. This room knows ipc's decoded
 * request and the text room, but neither emit nor the engine: both are reached through struct prep_hooks.
 *
 * A request has one owner at a time: io until prep_push, a worker until hooks.submit succeeded or hooks.done
 * was called, then the engine or io. io frees it when its stream is retired. */
#ifndef GLMD_PREP_H
#define GLMD_PREP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "reqdec.h"
#include "sched_req.h"
#include "siphash.h"
#include "stopstr.h"
#include "xerr.h"

struct prep;
struct tok; /* text room; conn sees only pointers */
struct chat;
struct outtools;
struct grammar;
struct grammar_vocab;
struct turns;

enum { PREP_MAX_TOOLS = 1024 };

enum prep_op { PREP_SUBMIT = 1, PREP_TOKENIZE, PREP_COUNT };

enum prep_outcome {
    PREP_FAILED = 1, /* status and error say why */
    PREP_IDS,        /* TOKENIZE, COUNT: ids, n_ids */
    PREP_CANCELLED,
};

struct prep_req {
    struct prep_req *next; /* queue: prep_queue.h */
    uint64_t start;
    void *owner;           /* conn's */
    enum prep_op op;
    struct stream_id stream;
    uint32_t uid;
    struct sched_usage *usage; /* of the user */
    uint64_t queued_quota, kv_quota; /* tokens of the user; 0 = no limit */
    uint32_t weight;                 /* of the user */
    bool quiet, background, no_cache;
    uint32_t cache_group;            /* users with the same one share the prefix cache; 0 = nobody */
    uint32_t max_tokens; /* 0 = no wish */
    uint64_t received_ns, deadline_ns;
    _Atomic bool cancelled;

    /* What the client sent: a private copy, or a sealed object that cannot change and that conn keeps mapped
     * until the stream is retired; a worker decodes that one. Then the arrays that point into it. */
    void *payload;
    const void *sealed;
    uint32_t payload_len;
    struct glmw_limits limits; /* of the connection when the request came */
    uint64_t features;
    void *dec_mem;
    struct reqdec_req dec;

    /* made by the worker */
    uint32_t *ids;
    uint32_t n_ids;
    struct outtools *tools;
    struct stopstr_set *stop;
    struct sched_text *stops;
    struct sched_bias *bias;
    struct grammar *grammar;
    uint32_t *names; /* ids of the tools that may be called, behind n + 1 offsets */
    bool thinking_open;
    uint32_t marks[4];
    /* The answer, when it shall be known again: sched.answer, with room for one id more than it takes, and what
     * prompt it is to. */
    uint32_t *answer;
    struct siphash before;
    uint64_t after; /* answers that had ended before it was pushed */
    struct sched_req sched;

    enum prep_outcome outcome;
    struct xerr error;
    const char *over_quota; /* the key of [Quota] that refused it */
};

struct prep_req *prep_req_free(struct prep_req *r); /* NULL ok; frees payload and everything made */

struct prep_hooks {
    void *ctx;
    /* any worker, one at a time */
    int (*submit)(void *ctx, struct sched_req *req);
    /* any worker; milliseconds after which one that was not taken for want of room may come again; NULL, 0: not
     * known */
    uint32_t (*retry_ms)(void *ctx);
    /* any worker; before submit */
    void (*bind)(void *ctx, const struct prep_req *r);
    /* any worker: hands the request back to io */
    void (*done)(void *ctx, struct prep_req *r, enum prep_outcome outcome);
};

struct prep_options {
    uint32_t workers;
    struct turns *turns; /* borrowed; NULL: answers are not known again when they come back as history */
    struct prep_hooks hooks;
};

int prep_new(const struct prep_options *opt, struct prep **ret); /* starts the workers */
struct prep *prep_free(struct prep *p); /* stops them; what is still queued is not touched; NULL ok */

/* What workers need and only a loaded model has. Until then requests queue. Borrowed for the life of p. */
struct prep_model {
    const struct tok *tok;   /* NULL: only prompts of token ids */
    const struct chat *chat; /* NULL: the same */
    uint32_t vocab_tokens, context_tokens;
    uint32_t think_open, think_close; /* ids, UINT32_MAX = none */
    uint32_t tool_open; /* the same */
    uint64_t max_prompt_bytes;
    struct sched_sampling defaults; /* of generation_config.json */
    const struct grammar_vocab *grammar; /* NULL: no schema can be followed */
    const uint32_t *eos; /* of the output parser */
    size_t n_eos;
    struct turns *turns; /* set by prep_set_model from the options */
    uint32_t thinking_budget;       /* of requests that say nothing of it; 0 = none */
    bool loop_guard;                /* the same */
    const uint32_t *close; /* what stands before the mark that closes a block of reasoning */
    uint32_t n_close;
};
int prep_set_model(struct prep *p, const struct prep_model *m);
void prep_set_max_prompt(struct prep *p, uint64_t bytes); /* io, on a reload */

/* Fills r->dec from the payload. Refusals name the part of the request and where it lies. io thread for a
 * private copy, before prep_push; the workers do it for sealed objects. */
int prep_decode(struct prep_req *r, struct xerr *err);

void prep_push(struct prep *p, struct prep_req *r);
/* Takes a request back that no worker has begun. False: it is on its way. */
bool prep_take_back(struct prep *p, struct prep_req *r);

/* io: the request has ended and nobody else refers to it. Takes it: workers remember its answer before they begin
 * any request that is pushed later. */
void prep_retire(struct prep *p, struct prep_req *r);

/* One request against a model; the worker's body, for tests. 0: r->sched is filled (SUBMIT) or r->ids. */
struct prep_scratch;
int prep_scratch_new(const struct prep_model *m, struct prep_scratch **ret);
struct prep_scratch *prep_scratch_free(struct prep_scratch *s);
/* The first of the queue on this thread, for tests that have no workers. False: nothing is queued. */
bool prep_work_now(struct prep *p, struct prep_scratch *s);
int prep_make(const struct prep_model *m, struct prep_scratch *s, struct prep_req *r, struct xerr *err);
/* What the worker does with one that has ended; 1 when its answer was worth remembering, else 0. */
int prep_remember(const struct prep_model *m, struct prep_scratch *s, struct prep_req *r);

#endif
