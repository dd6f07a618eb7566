/* SPDX-License-Identifier: MIT */
/* The engine: one loaded model on one backend, the only caller of kern compute. It turns submitted requests
 * (token ids) into stream events (token ids). It knows no text, no sockets, no rings.
 *
 * Threads: engine_open, engine_load and engine_self_test run on the starting thread; engine_run is the
 * engine thread; engine_submit, engine_cancel, engine_kick, engine_stop and engine_get_stats may be called from
 * any thread at any time. After engine_load returns nothing is allocated. */
#ifndef GLMD_ENGINE_H
#define GLMD_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "numbers.h"
#include "sched_req.h"
#include "stream_event.h"
#include "vocab_view.h"
#include "xerr.h"

struct engine;
struct mem_account;
struct model_config;
struct model_directory;
struct model_findings;

/* How latents and pooled keys are stored; recurrent state is always F32. */
enum engine_cache { ENGINE_CACHE_F32 = 0, ENGINE_CACHE_BF16, ENGINE_CACHE_FP8 };

struct engine_options {
    const char *model;    /* checkpoint directory, "script:FILE", or "synthetic:SHAPE…" (synthetic.h) */
    const char *backend;  /* "cpu", "ref"; NULL = "cpu"; ignored for scripts */
    const char *isa;      /* NULL = best */
    uint32_t threads;     /* of all ranks; 0 = online CPUs */
    uint32_t ranks;       /* that compute the model together, each with its share of it; 0 = 1 */
    uint32_t rank_timeout_ms; /* a rank that is waited for longer is lost; 0 = 30 s */
    uint32_t vocab_tokens; /* ids the tokenizer knows: rows above are padding and never sampled; 0 = all rows */
    uint32_t context_tokens; /* 0 = min(the model's maximum, what the page pool takes) */
    uint32_t max_seqs;    /* sequences decoding at once; 0 = 8 */
    uint32_t max_streams; /* accepted requests at once, running or queued; 0 = 256 */
    uint32_t cache_slots; /* state slots beyond max_seqs: for sequences that are paused, and for checkpoints of the
                           * prefix cache; fewer when memory does not suffice; 0 = none of either */
    uint64_t cache_bytes; /* most that the prefix cache may hold of slots and pages; 0 = what they have */
    const char *spill_dir; /* checkpoints go there, too, and come back from there; NULL or "" = nowhere */
    uint64_t spill_bytes; /* of all its files */
    uint64_t spill_keep_free; /* bytes of its file system that stay free */
    uint32_t spill_min_tokens; /* shorter beginnings stay out of it */
    bool spill_survive;   /* what an earlier engine left is used, and ours is left behind */
    bool spill_plain;     /* no io_uring */
    uint32_t max_queued;  /* requests that may wait beyond those that run; 0 = as many as max_streams leaves */
    uint32_t target_gap_ms; /* between two tokens while prompts are read; 0 = 200 */
    uint32_t park_ms;     /* a stalled stream gives its seat to others after that; 0 = never */
    uint32_t patience_ms; /* a background request waits at most that much longer than others; 0 = no limit */
    uint32_t n_pages;     /* 0 = max_seqs contexts of context_tokens, bounded by memory */
    uint32_t prefill_tokens; /* rows of a prefill chunk, multiple of 64; 0 = 512 */
    uint64_t keep_free_bytes; /* refuse when less would stay available; 0 = none */
    uint64_t others_bytes; /* what the rest of the process will still touch: no part of the plan */
    bool plan_only; /* nothing will be loaded: what memory lacks is planned too, and engine_fits() says so */
    bool draft;           /* load the MTP layer, for evaluation (score.h) */
    bool score;           /* make room to score every row of a prefill chunk (score.h) */
    uint32_t cache;       /* enum engine_cache */
    bool allow_four_bit;  /* what traps.h in the model room refuses otherwise */
    const char *allow_low;
    const char *convert;  /* what is made smaller while it is loaded: model_smaller(); NULL or "" = nothing */
};

struct engine_info {
    char model_name[64];   /* directory's last component or the script's name */
    char model_dir[512];   /* where configuration and tokenizer lie; empty for a script without MODEL */
    char backend[32];
    char cache[8];         /* format of latents and pooled keys: "f32", "bf16", "fp8" */
    uint32_t vocab_tokens, context_tokens, max_seqs, n_pages, n_slots;
    uint32_t cache_slots; /* that memory sufficed for */
    uint64_t weight_bytes, page_bytes, slot_bytes, work_bytes; /* of all ranks together */
    uint64_t available_bytes; /* in the machine when it was planned */
    uint64_t device_bytes, device_free; /* of all that: in a device's own memory, and what that had free; 0: none has */
    uint32_t ranks;
    uint64_t rank_bytes[8]; /* what each has for itself: weights, pages, slots, work */
};

/* Counters a status block or a test may read at any time (relaxed atomics inside). */
struct engine_stats {
    uint64_t steps, prefill_tokens, sampled_tokens;
    uint32_t running, queued, free_slots, free_pages;
    uint64_t heartbeat_ns; /* engine thread's last sign of life */
    uint32_t retry_ms;     /* until a place in the queue is probably free; 0 = not known */
    uint32_t asleep;       /* 1: idle on purpose, an old heartbeat means nothing */
    uint64_t skips;        /* streams left out of a step for want of credit */
    uint64_t safety_wakes; /* times the 100 ms timer found credit that no kick had announced: should stay 0 */
    uint64_t sleeps;       /* times the engine thread went to sleep */
    uint64_t budget_closes; /* reasoning closed by its budget, in answers that have ended */
    uint64_t loop_closes;   /* reasoning closed and answers ended by the loop guard, the same */
};

/* The tier of checkpoints on disk. */
struct engine_tier {
    bool wanted, on;   /* wanted and not on: `text` says why */
    bool stopped;      /* writing failed again and again and is not tried any more */
    uint32_t error;    /* of the last writing, as errno; 0: it went well */
    char text[320];    /* on: how it reads and writes */
    uint64_t bytes, max_bytes;
    uint32_t blocks, checkpoints, foreign; /* foreign: blocks of another model or version */
    uint64_t written, read, refused, damaged, thrown_out; /* checkpoints since the start */
    uint64_t read_bytes;
};

typedef void (*engine_progress_fn)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);

/* Reads and checks the configuration, plans every byte, refuses before allocating. */
int engine_open(const struct engine_options *opt, struct engine **ret, struct xerr *err);
/* -ENOMEM and why when what options.plan_only asked for needs more than there is. */
int engine_fits(const struct engine *e, struct xerr *err);
/* Allocates, loads and packs the weights, captures the programs. -EINVAL after options.plan_only. */
int engine_load(struct engine *e, engine_progress_fn progress, void *ctx, struct xerr *err);
/* One real step whose token is known (or, for an unknown checkpoint, prefill and decode must agree). */
int engine_self_test(struct engine *e, struct xerr *err);
struct engine *engine_close(struct engine *e); /* NULL ok */
void engine_get_tier(const struct engine *e, struct engine_tier *ret); /* after engine_load, any thread */

void engine_set_vocab(struct engine *e, const struct vocab_view *v); /* borrowed; before engine_run */
void engine_set_sink(struct engine *e, const struct stream_sink *s); /* copied; before engine_run */

/* What the engine planned and holds. The rest of the process is not in it: options.others_bytes. */
struct mem_account *engine_account(struct engine *e);

void engine_get_info(const struct engine *e, struct engine_info *ret);
/* What the checkpoint holds, how many of its layers are loaded, and, once it is, what was odd about its scales; NULL:
 * a script. They live as long as e. */
const struct model_directory *engine_directory(const struct engine *e, const struct model_config **ret_cfg,
                                               uint32_t *ret_layers, const struct model_findings **ret_findings);
void engine_get_stats(const struct engine *e, struct engine_stats *ret);
/* As they were a moment ago; any thread. -EAGAIN: they are being written, ask again later. */
int engine_get_numbers(struct engine *e, struct numbers *ret);

/* The engine thread's body; returns when engine_stop was called and every stream has ended, or -EIO when
 * the device is lost (every live stream got its END). */
int engine_run(struct engine *e);

/* Takes req until its END event is handed to the sink. When an error is returned there will be no END and the
 * caller answers: -EOVERFLOW the prompt leaves no room in the context, -EINVAL an id, number or stop string
 * out of range, -E2BIG too many stop strings or biases, -EDQUOT the user has too many prompt tokens waiting,
 * -EFBIG more cache than the user may have, -EAGAIN queue full, -ESHUTDOWN stopping, -EIO the device is lost. */
int engine_submit(struct engine *e, struct sched_req *req);
/* Never fails; an unknown or ended stream is ignored. END(-ECANCELED) follows within a step and a slice. */
void engine_cancel(struct engine *e, struct stream_id id);
void engine_kick(struct engine *e); /* credit may have come back */
/* drain: live streams may finish until deadline_ns, then END(-ESHUTDOWN); new ones are refused at once. */
void engine_stop(struct engine *e, uint64_t deadline_ns);

#endif
