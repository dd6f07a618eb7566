/* SPDX-License-Identifier: MIT */
/* The submit header of sched: what a request is once it is token ids. conn and prep fill it, the engine
 * reads it; everything it points to lies in the request's arena and stays until the stream is retired. */
#ifndef GLMD_SCHED_REQ_H
#define GLMD_SCHED_REQ_H

#include <stdbool.h>
#include <stdint.h>

#include "stream_event.h"

/* Most a request may carry; engine_submit answers -E2BIG beyond. Stop strings: STOPSTR_MAX_* of stopstr.h. */
enum { SCHED_MAX_BIAS = 1024 };

struct sched_bias {
    uint32_t token;
    float bias;
};

struct sched_text {
    const char *s;
    uint32_t len; /* bytes */
};

struct sched_sampling {
    float temperature, top_p, min_p;
    float repetition, presence, frequency;
    uint32_t top_k;
    uint32_t n_alts;   /* 0 .. STREAM_MAX_ALTS */
    bool logprobs;
    uint64_t seed;
    const struct sched_bias *bias;
    uint32_t n_bias;
};

/* Token sequences one after the other: sequence i is ids[offsets[i]] .. ids[offsets[i + 1]]. */
struct sched_names {
    const uint32_t *ids;
    const uint32_t *offsets; /* n + 1 */
    uint32_t n;
};

enum { SCHED_MAX_NAMES = 1024, SCHED_MAX_NAME_IDS = 1 << 18, SCHED_MAX_CLOSE_IDS = 256 };

enum sched_tools {
    SCHED_TOOLS_FREE = 0, /* the model decides */
    SCHED_TOOLS_NONE,     /* no call can begin */
    SCHED_TOOLS_MUST,     /* the answer begins with a call of one of the names and cannot end before its end */
};

struct grammar; /* opaque here */

/* What decides over the tokens of an answer besides the model. All zero decides nothing: the answer is then the
 * same, bit for bit, as without this struct. */
struct sched_control {
    bool has_budget;
    bool loop_guard;
    bool one_call;       /* the answer ends with its first call */
    bool tools_offered;  /* the parser knows tools: a call is a call and not text */
    uint8_t tools;       /* enum sched_tools */
    uint32_t budget;     /* reasoning tokens of the model's own choice; then the block is closed */
    const uint32_t *close; /* ids in front of the mark that closes a block in which something stands */
    uint32_t n_close;
    struct sched_names names; /* MUST: tools that may be called */
    /* What stands behind the reasoning, or NULL. With MUST it is one of calls and takes the place of the names; else it
     * is one of text, and where tools are offered the model may make calls instead. */
    const struct grammar *grammar;
};

/* What one user has with the engine, in tokens: prompts that wait to be read, and cache reserved by requests
 * that run. The engine counts, anybody may look; conn owns it for as long as a request of the user lives. The text
 * workers count the bytes of its grammars. */
struct sched_usage {
    _Atomic uint64_t queued_tokens, kv_tokens;
    _Atomic uint64_t grammar_bytes;
};

struct sched_req {
    struct stream_id stream;
    uint32_t uid;
    struct sched_usage *usage; /* of the user; NULL = nobody counts */
    uint64_t queued_quota;     /* most tokens of it; 0 = no limit */
    uint64_t kv_quota;
    uint32_t weight; /* of the user among the others; 0 = the usual one */
    bool background; /* others go first */
    bool no_cache;   /* finds nothing in the prefix cache and leaves nothing there */
    uint32_t share;  /* users with the same number, not 0, find each other's beginnings; 0 = nobody else's */
    const uint32_t *ids; /* the prompt */
    uint32_t n_ids;
    /* Where messages begin in it, rising: the end of the system and tools block, then the last few messages.
     * Places where another prompt may go a way of its own. */
    const uint32_t *marks;
    uint32_t n_marks;
    uint32_t max_tokens; /* 0 = what the context still takes */
    uint32_t min_tokens; /* stop ids cannot be sampled before */
    bool ignore_eos;
    bool in_reasoning;   /* the prompt ends with an open think block: stop strings sleep until it closes */
    bool quiet;          /* no PROGRESS */
    const struct sched_text *stops;
    uint32_t n_stops;
    struct sched_sampling sampling;
    struct sched_control control;
    uint64_t received_ns; /* CLOCK_MONOTONIC at receipt */
    uint64_t deadline_ns; /* absolute CLOCK_MONOTONIC, 0 = none */
    /* What the engine leaves here until END: the sampled ids without the stop id, and why it ended. More ids
     * than answer_cap are counted and not written. */
    uint32_t *answer;
    uint32_t answer_cap, n_answer;
    enum stream_reason ended;
    /* owned by the engine between submit and END */
    struct sched_req *next;
    void *owner; /* opaque to sched and engine */
};

#endif
