/* SPDX-License-Identifier: MIT */
/* What the engine says about a stream, and what a stream may still take. These are the only words shared by
 * the engine and emit rooms, which do not include each other.
 *
 * A *stream* is one accepted request. It is named by index + generation, so that an event for a stream that
 * has been retired and reused is recognised and dropped. */
#ifndef GLMD_STREAM_EVENT_H
#define GLMD_STREAM_EVENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STREAM_MAX_ALTS = 20 };

struct stream_id {
    uint32_t index; /* 0 .. max streams - 1 */
    uint32_t gen;   /* changes whenever the index is reused; never 0 for a live stream */
};

enum stream_event_type {
    STREAM_EV_PROGRESS = 1, /* the prompt is queued or being read */
    STREAM_EV_TOKEN,
    STREAM_EV_END, /* exactly one per submitted request, the last event of the stream */
};

/* Why a stream ended; status is 0 or a negative errno beside it. */
enum stream_reason {
    STREAM_END_NONE = 0,
    STREAM_END_STOP,        /* a stop id (the model ended its turn) */
    STREAM_END_STOP_STRING, /* a client's stop string */
    STREAM_END_LENGTH,      /* max_tokens */
    STREAM_END_CONTEXT,     /* the end of the context, before max_tokens */
    STREAM_END_LOOP,        /* the loop guard */
    STREAM_END_CANCELLED,   /* status -ECANCELED */
    STREAM_END_DEADLINE,    /* status -ETIMEDOUT */
    STREAM_END_DRAIN,       /* status -ESHUTDOWN */
    STREAM_END_ERROR,       /* status: -EIO the device is lost; -EDOM the model produced a number that is not
                             * finite, nothing of that step is text; -ENODATA bans left no token to choose */
};

struct stream_alt {
    uint32_t token;
    float logprob;
};

struct stream_progress {
    uint32_t done, total, cached; /* prompt tokens */
    uint32_t queue_position;      /* 0 = running */
    uint32_t wait_ms;             /* until it will probably run; 0 = not known, or running */
};

struct stream_usage {
    uint32_t prompt, cached, completion, reasoning; /* tokens */
    uint32_t drafted, accepted;
    uint32_t tier; /* of cached, read back from the tier below the memory */
    bool budget_closed, loop_closed; /* who closed the reasoning or, for the latter, ended the answer */
    uint64_t queued_ns, prefill_ns, decode_ns; /* engine's clock */
    uint64_t longest_gap_ns;                   /* between two tokens */
};

struct stream_event {
    struct stream_id stream;
    uint8_t type;   /* enum stream_event_type */
    uint8_t first;  /* TOKEN: 1 for the stream's first */
    uint16_t reason; /* END: enum stream_reason */
    int32_t status; /* END: 0 or negative errno */
    uint64_t t_ns;  /* CLOCK_MONOTONIC when the sample reached the host */
    uint32_t token; /* TOKEN: the id; END by stop id: that id, which was not reported as TOKEN; else UINT32_MAX */
    float logprob;  /* NaN when not asked */
    bool forced;    /* TOKEN: control set it, the model had no choice */
    uint32_t n_alts;
    union {
        struct stream_alt alts[STREAM_MAX_ALTS]; /* TOKEN: n_alts of them, nothing behind */
        union {
            struct stream_progress progress;
            struct stream_usage usage; /* END */
        } u;
    };
};

/* How much of it says something: most are tokens without alternatives, 40 bytes of 200. */
static inline uint32_t stream_event_bytes(const struct stream_event *ev) {
    uint32_t n = ev->n_alts < STREAM_MAX_ALTS ? ev->n_alts : STREAM_MAX_ALTS;

    if (FAULT(emit_alts_left_behind))
        n /= 2;
    return offsetof(struct stream_event, alts) +
           (ev->type == STREAM_EV_TOKEN ? n * (uint32_t)sizeof ev->alts[0] : (uint32_t)sizeof ev->u);
}

/* Records a stream needs free before a step may produce a token for it: the token itself, up to two records
 * of text held back before it, and its alternatives at six a record. The END (and usage) record is emit's own
 * reserve and not counted. PROGRESS is sent only while at least this much is free; emit may drop one. */
static inline uint32_t stream_token_records(uint32_t n_alts) {
    return 3 + (n_alts + 5) / 6;
}

/* Records a stream's ring can still take, kept by emit, read by the engine before it plans a step. One cell
 * per stream index; a plain number on purpose: the scheduler knows nothing of rings. */
struct stream_credit {
    _Atomic uint32_t records;
};

/* Where the engine's events go; called on the engine thread only; publish() after the next step has been
 * launched, unless hands_over() says that others will do the work. */
struct stream_sink {
    void *ctx;
    /* events of one step, all streams; must not block, allocate or wait for a client */
    void (*publish)(void *ctx, const struct stream_event *ev, uint32_t n);
    /* true: publish() now only hands events to another thread; NULL: never. The engine then does it before it
     * launches the next step. */
    bool (*hands_over)(void *ctx);
    /* asks for fresh credit of a stream found short of `wanted` records; returns those available now. Fewer than that:
     * the engine is kicked when there may be more */
    uint32_t (*refresh)(void *ctx, struct stream_id id, uint32_t wanted);
    struct stream_credit *credit; /* [max streams] */
};

#endif
