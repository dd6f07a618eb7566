/* SPDX-License-Identifier: MIT */
/* eval.h: between the files of glm-eval. One thread; prints to standard output what was measured, to standard
 * error what went wrong. */
#ifndef GLMD_TOOL_EVAL_H
#define GLMD_TOOL_EVAL_H

#include <stdbool.h>
#include <stdint.h>

#include "xerr.h"

enum { EVAL_OK = 0, EVAL_DIFFERS = 1, EVAL_TROUBLE = 2 }; /* exit statuses */

struct eval_options {
    const char *model, *backend, *isa;
    const char *only;  /* one case, or NULL */
    double tolerance;
    uint32_t threads, ranks, chunk_tokens;
    uint32_t cache; /* enum engine_cache */
    bool json;
};

/* Each returns an exit status and has told why. */
int eval_golden(const struct eval_options *o, const char *golden);
int eval_tokens(const struct eval_options *o, const char *file);
int eval_chat(const struct eval_options *o, const char *file);

/* ---- numbers (evalnum.c) ---- */

double eval_rel_error(const float *a, const float *b, uint64_t n); /* ||a - b|| / ||b||; NaN when any is */
/* Largest |a - b| / max(1, |b|). NaN when any is. */
double eval_max_error(const float *a, const float *b, uint64_t n);
/* Not `err > tol`: a NaN must not pass. */
static inline bool eval_within(double err, double tol) {
    return err <= tol;
}

/* Whole file as a NUL-terminated text; NULL after a message. */
char *eval_read_file(const char *path, uint64_t *ret_bytes);

#endif
