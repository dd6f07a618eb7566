/* SPDX-License-Identifier: MIT */
/* Evaluation on a loaded engine that is not running: prompts scored row by row, activations shown, greedy
 * continuations. It is made of the pieces serving is made of: the same plan builder, the same programs, the
 * same loop. For tools, tests and the self-test; one thread; may allocate. */
#ifndef GLMD_ENGINE_SCORE_H
#define GLMD_ENGINE_SCORE_H

#include "engine.h"
#include "kern.h"

struct score_shape {
    uint32_t n_layers, n_draft, hc_mult, hidden, vocab_rows, vocab_tokens, context_tokens;
};
void score_get_shape(const struct engine *e, struct score_shape *ret);

struct score_query {
    const uint32_t *ids;
    uint32_t n_ids;
    uint32_t chunk_tokens; /* rows of a prefill chunk, multiple of 64; 0 = the engine's */
    uint32_t fed_tokens;   /* this many last ids go through decode steps instead of prefill */
    /* Activations entering trunk layer `layer` as [n][hc][E], and with layer == n_layers the final hidden as
     * [n][E], of prefilled rows row0 ..; NULL = not wanted. */
    void (*show)(void *ctx, uint32_t layer, uint32_t row0, uint32_t n, const float *v);
    /* The trunk's logits of every row that rows are asked for, [vocab_rows] each; NULL = not wanted. */
    void (*logits)(void *ctx, uint32_t pos, const float *v);
    void *ctx;
};

struct score_row {
    uint32_t top1;
    float logsumexp;
    float target; /* logit of the id that follows; NaN for the last */
    uint32_t flags; /* enum kern_result_flags */
};

/* Each pointer may be NULL. rows and draft need engine_options.score, draft also .draft. */
struct score_out {
    struct score_row *rows;   /* [n_ids] */
    struct score_row *draft;  /* [n_ids - 1]; prefilled rows only */
    float *logits_last;       /* [vocab_rows] of the last id */
    float *draft_logits_last; /* [vocab_rows] of row n_ids - 2 */
    struct kern_counters *counters; /* of the last chunk or decode step */
};

int score_prompt(struct engine *e, const struct score_query *q, const struct score_out *out, struct xerr *err);

/* Continues greedily through the ordinary serving loop, the stop id included. *ret_n: how many of at most cap
 * were made. */
int score_greedy(struct engine *e, const uint32_t *ids, uint32_t n_ids, uint32_t *ret_ids, uint32_t cap,
                 uint32_t *ret_n, struct xerr *err);

#endif
