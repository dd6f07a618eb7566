/* SPDX-License-Identifier: MIT */
/* Output parser: generated ids in, events out (content, reasoning, tool calls). A state machine on ids, so
 * no tag can be split by chunking; one id at a time and any other grouping give the same bytes.
 *
 * All memory is given at init and bounded by struct outparse_limits: nothing is allocated afterwards (emit
 * thread). What does not fit is reported (flags of the result), never dropped silently. One object a
 * stream; outparse_start() makes it fresh for the next request, whatever the last one did. */
#ifndef GLMD_OUTPARSE_H
#define GLMD_OUTPARSE_H

#include "outtools.h"
#include "stopstr.h"
#include "tokenizer.h"

struct outparse_limits {
    size_t hold_bytes;  /* one call's name with its text, or one argument that is not a string */
    size_t key_bytes;   /* one argument's key */
    size_t hold_tokens; /* calls written inside an open think block, kept until the reply's end decides */
};
#define OUTPARSE_LIMITS_DEFAULT ((struct outparse_limits){64 << 10, 1 << 10, 8 << 10})

/* Ids of the format, looked up once per checkpoint. */
#define OUTPARSE_MAX_EOS 16
struct outparse_vocab {
    const struct tok *tok;
    uint32_t think, think_end, call, call_end, key, key_end, value, value_end;
    uint32_t eos[OUTPARSE_MAX_EOS]; /* the checkpoint's, and <|assistant|> */
    size_t n_eos;
};
int outparse_vocab_init(struct outparse_vocab *v, const struct tok *tok, const uint32_t *eos, size_t n_eos,
                        struct xerr *err);

enum outparse_channel { OUT_CONTENT = 0, OUT_REASONING = 1, OUT_TOOL_NAME = 2, OUT_TOOL_ARGS = 3 };

enum outparse_ev_kind {
    OUT_EV_TEXT = 1, /* text on a channel: content or reasoning */
    OUT_EV_CALL,     /* a call begins: text is the whole, checked name; tool its index */
    OUT_EV_ARGS,     /* piece of the call's arguments as JSON text */
    OUT_EV_CALL_END, /* complete: the pieces are one JSON object; otherwise the call is void */
};

struct outparse_ev {
    enum outparse_ev_kind kind;
    enum outparse_channel channel;
    uint32_t call; /* 0, 1, ... in order of appearance */
    int tool;
    bool complete;
    const char *text; /* whole UTF-8 characters, valid during the callback */
    size_t n;         /* at most hold_bytes, or 6 * DETOK_BOUND(tok_max_bytes()) when that is more */
};
typedef void outparse_sink(void *arg, const struct outparse_ev *ev);

enum outparse_finish {
    OUT_FINISH_NONE = 0, /* still running */
    OUT_FINISH_STOP,
    OUT_FINISH_STOP_STRING,
    OUT_FINISH_LENGTH,
    OUT_FINISH_TOOL_CALLS,
};

enum outparse_flags {
    OUT_REASONING_OPEN = 1, /* the reply ended inside its think block and made no call */
    OUT_CALL_CUT = 2,       /* a call had begun to go out and is void */
    OUT_CALL_AS_TEXT = 4,   /* a block that was no call of an offered tool was returned as content; without
                             * its tags when no tool was offered at all */
    OUT_CALL_REPAIRED = 8,  /* a malformed call was understood all the same */
    OUT_CALL_IN_THINK = 16, /* calls were written inside the think block and counted */
    OUT_OVER_HOLD = 32, /* hold_bytes did not suffice: name returned as text, or argument sent as a string */
    OUT_OVER_KEY = 64,  /* key_bytes did not suffice: the pair was left out */
    OUT_OVER_TOKENS = 128,  /* hold_tokens did not suffice: decided before the reply's end */
    OUT_PAIR_DROPPED = 256, /* key without value, or value without key */
};

struct outparse_result {
    enum outparse_finish finish;
    unsigned flags;
    int stop_index;   /* OUT_FINISH_STOP_STRING: which string */
    uint32_t n_calls; /* complete ones */
    uint64_t n_tokens, n_reasoning_tokens;
    uint64_t n_replaced; /* U+FFFD written for invalid bytes */
};

struct outparse_req {
    const struct outparse_vocab *vocab;
    const struct outtools *tools;   /* NULL: none offered */
    const struct stopstr_set *stop; /* NULL: none */
    bool thinking_open;             /* from chat_out: the prompt ended inside an open think block */
    bool ignore_eos;                /* end ids are swallowed, the reply goes on */
    bool raw; /* no parsing: everything is content, markers written out, stops on all text */
    outparse_sink *sink;
    void *arg;
};

struct outparse;
size_t outparse_bytes(const struct outparse_limits *lim, const struct tok *tok);
int outparse_init(void *mem, size_t bytes, const struct outparse_limits *lim, const struct tok *tok,
                  struct outparse **ret); /* mem aligned as from malloc; -EINVAL, -ENOSPC */

void outparse_start(struct outparse *p, const struct outparse_req *req);

/* Feeds one id. Returns the channel the id belongs to (markers: the channel they end or begin). After an
 * end id or a stop string, further ids are ignored; see outparse_result(). An id without a token (-ENOENT)
 * is ignored too. */
int outparse_push(struct outparse *p, uint32_t id);

/* The reply ended without an end id: at a token limit (`length`), or because somebody else decided so
 * (cancelled, engine-side stop: length = false, treated as an end id). No-op when the reply has ended
 * already. */
void outparse_end(struct outparse *p, bool length);

const struct outparse_result *outparse_result(const struct outparse *p);
/* Where the next id will be read: true while a stop string may match (content only). */
bool outparse_in_content(const struct outparse *p);

#endif
