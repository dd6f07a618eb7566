/* SPDX-License-Identifier: MIT */
/* The control automaton: everything that decides over the next token of one sequence before it is sampled,
 * and over the end of the sequence after it was. It lives in the engine because a recurrent state cannot be
 * cut back later: once a token after the stop has been fed, the sequence is spoilt. It depends on the tokens
 * before and on nothing else, so drafting and batching cannot change what it decides.
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

enum {
    CONTROL_MAX_STOP_IDS = 16,
    CONTROL_MAX_BANS = CONTROL_MAX_STOP_IDS + 2, /* and the marks that open a block or a call */
    CONTROL_LOOP_PERIOD = 16, /* the guard: a cycle of at most so many tokens ... */
    CONTROL_LOOP_SPAN = 256,  /* ... that held for so many, or a token that makes half of the last so many */
};
#define CONTROL_NONE UINT32_MAX

/* Where the next token stands: the output parser's states, as far as tokens alone tell them. */
enum control_where {
    CONTROL_CONTENT = 0,
    CONTROL_REASONING,
    CONTROL_NAME, /* of a call */
    CONTROL_KEY,
    CONTROL_BETWEEN, /* behind a key */
    CONTROL_VALUE,
    CONTROL_ARGS,  /* behind a pair */
    CONTROL_BLOCK, /* a call though no tool was offered: its text is content, stop strings sleep */
};

struct grammar_state;
struct grammar_work;

struct control_guard {
    uint32_t n; /* tokens since the text began, those before the last CONTROL_LOOP_SPAN forgotten */
    uint32_t last[CONTROL_LOOP_SPAN];
    uint32_t same[CONTROL_LOOP_PERIOD]; /* [p - 1]: so many tokens in a row were equal to the one p before */
};

struct control {
    const struct vocab_view *vocab;
    const struct sched_control *rules; /* of the request, which stays until END */
    struct grammar_work *work;   /* the engine's; both are set once */
    struct grammar_state *state; /* of grammar_state_bytes() */
    bool began;                  /* the grammar has taken a token */
    uint32_t limit_tokens; /* output at most: max_tokens and what the context takes */
    uint32_t min_tokens;
    bool ignore_eos;
    bool has_stops;
    uint8_t where; /* enum control_where */
    bool closing;  /* the open block is being closed: no choice until it is */
    bool forced;   /* the last token was control's */
    uint32_t budget_closed, loop_closed; /* how often: blocks; for the latter also the answer */
    uint32_t budget;       /* reasoning tokens; CONTROL_NONE = no limit */
    uint32_t n_out, n_reasoning;
    uint32_t n_thought;    /* of n_reasoning: the model's own, without marks */
    uint32_t n_block;      /* of the open block */
    uint32_t close_at;     /* next of rules->close */
    uint32_t n_calls;      /* that have begun outside of reasoning */
    uint32_t n_calls_done;
    uint32_t n_calls_thought; /* begun in the open block: they count only if the answer ends inside it */
    uint32_t name_at;         /* MUST: ids of the name that stand */
    uint64_t names[SCHED_MAX_NAMES / 64]; /* MUST: which names they can still become */
    struct stopstr cursor;
    struct control_guard guard;
    struct stopstr_set stops;
};

enum control_verdict {
    CONTROL_GO = 0,      /* report the token and go on */
    CONTROL_STOP_ID,     /* the model ended its turn; the token is no text */
    CONTROL_STOP_STRING, /* report the token, then end */
    CONTROL_LENGTH,      /* report the token, then end */
    CONTROL_LOOP,        /* report the token, then end */
    CONTROL_BROKEN,      /* a token that the grammar forbids: an error of ours */
    CONTROL_CALLED,      /* report the token, then end: the one call is complete */
};

/* What the next sample must respect. */
struct control_next {
    uint32_t forced; /* the token, whatever the model says, or CONTROL_NONE */
    bool masked;     /* only what control_mask() allows */
    uint32_t n_ban;
    uint32_t ban[CONTROL_MAX_BANS]; /* ids that may not be sampled */
};

/* Output tokens a prompt of n_ids leaves in a context, cut to max_tokens (0 = no wish); 0 when the prompt
 * leaves nothing. */
uint32_t control_limit(uint32_t n_ids, uint32_t max_tokens, uint32_t context_tokens);
/* The thinking budget that counts: of the longest answer a quarter, but no more than 1024 tokens, and the
 * closing are kept free for what follows the reasoning. */
uint32_t control_budget(uint32_t budget, uint32_t n_close, uint32_t limit_tokens);

/* The request was checked at submit. vocab and the request are borrowed. */
void control_begin(struct control *c, const struct vocab_view *vocab, const struct sched_req *req,
                   uint32_t context_tokens);
void control_next(const struct control *c, struct control_next *ret);
/* The ids that may come next, one bit each, in zeroed words. */
void control_mask(const struct control *c, uint32_t *words, uint32_t n_words);
enum control_verdict control_token(struct control *c, uint32_t token);

/* 0, -EINVAL: a stop string or name is empty, an id is none, or -E2BIG: too many or too long. */
int control_check(const struct sched_req *req, uint32_t vocab_tokens);

#endif
