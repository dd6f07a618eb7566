/* SPDX-License-Identifier: MIT */
/* evalgold.h: one case of a golden file: read, run, compared. */
#ifndef GLMD_TOOL_EVALGOLD_H
#define GLMD_TOOL_EVALGOLD_H

#include "eval.h"
#include "safetensors.h"
#include "score.h"

enum { GOLD_MAX_NAME = 64 };

/* What a golden file says about one case; arrays are owned, NULL where the file has none. */
struct gold {
    char name[GOLD_MAX_NAME];
    bool picture; /* a picture case: nothing below is read */
    uint32_t n_ids, *ids;
    uint32_t vocab; /* width of the logits */
    float *logits_last;
    uint32_t *top1; /* [n_ids] */
    float *logsumexp; /* [n_ids] */
    float *next_logit; /* [n_ids - 1] */
    uint32_t *mtp_top1; /* [n_ids - 1] */
    float *mtp_logits_last;
    uint32_t n_greedy, *greedy;
    uint32_t n_hidden; /* hidden.0 .. hidden.n-1 are there */
    float *hidden[KERN_MAX_LAYERS + 1];
    uint64_t hidden_floats[KERN_MAX_LAYERS + 1];
};

/* How many parts of a comparison a case had, and what came out; -1 where it had none. */
struct gold_result {
    double logits, logsumexp, next_logit, mtp_logits;
    double hidden[KERN_MAX_LAYERS + 1];
    uint32_t n_hidden;
    uint32_t n_top1, top1_same;
    uint32_t n_mtp, mtp_same;
    uint32_t n_greedy, greedy_same; /* equal from the start */
    bool within;
};

/* Names of the cases, sorted; *ret_names is one block to free. */
int gold_list(const struct st_file *f, char (**ret_names)[GOLD_MAX_NAME], uint32_t *ret_n, struct xerr *e);
int gold_read(const struct st_file *f, const char *name, struct gold *ret, struct xerr *e);
void gold_done(struct gold *g);
int gold_run(struct engine *e, const struct gold *g, const struct eval_options *o, struct gold_result *ret,
             struct xerr *err);

#endif
