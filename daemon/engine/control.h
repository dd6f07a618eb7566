/* SPDX-License-Identifier: MIT */
/* The control automaton: everything that decides over the next token of one sequence before it is sampled,
 * and over the end of the sequence after it was. It lives in the engine because a recurrent state cannot be
 * cut back later: once a token after the stop has been fed, the sequence is spoilt.
 *
 * One object per running sequence, used by the engine thread only. It knows tokens and their bytes; what the
 * client is shown is decided elsewhere, from the same events. */
#ifndef GLMD_ENGINE_CONTROL_H
#define GLMD_ENGINE_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "sched_req.h"
#include "stopstr.h"
#include "vocab_view.h"

struct control {
    const struct vocab_view *vocab;
    uint32_t limit_tokens; /* output at most: max_tokens and what the context takes */
    uint32_t min_tokens;
    bool ignore_eos;
    bool reasoning; /* a think block is open */
    bool tool;      /* a tool call is open */
    bool has_stops;
    uint32_t n_out, n_reasoning;
    struct stopstr cursor;
    struct stopstr_set stops;
};

enum control_verdict {
    CONTROL_GO = 0,      /* report the token and go on */
    CONTROL_STOP_ID,     /* the model ended its turn; the token is no text */
    CONTROL_STOP_STRING, /* report the token, then end */
    CONTROL_LENGTH,      /* report the token, then end */
};

/* What the next sample must respect. */
struct control_next {
    const uint32_t *ban; /* ids that may not be sampled */
    uint32_t n_ban;
};

/* Output tokens a prompt of n_ids leaves in a context, cut to max_tokens (0 = no wish); 0 when the prompt
 * leaves nothing. */
uint32_t control_limit(uint32_t n_ids, uint32_t max_tokens, uint32_t context_tokens);

/* The request's stop strings and limits were checked at submit. vocab is borrowed. */
void control_begin(struct control *c, const struct vocab_view *vocab, const struct sched_req *req,
                   uint32_t context_tokens);
void control_next(const struct control *c, struct control_next *ret);
enum control_verdict control_token(struct control *c, uint32_t token);

/* 0, or -EINVAL / -E2BIG as stopstr_set_init. */
int control_check_stops(const struct sched_req *req);

#endif
