/* SPDX-License-Identifier: MIT */
/* script.h: a parsed script, between the parser and the backend. */
#ifndef GLMD_KERN_SCRIPT_H
#define GLMD_KERN_SCRIPT_H

#include "kern.h"

enum script_fail { SCRIPT_FAIL_NONE = 0, SCRIPT_FAIL_LOST, SCRIPT_FAIL_NAN };

struct script_block {
    uint32_t first; /* only for prompts that begin with this id; KERN_NONE: by order of arrival */
    uint32_t tok0, n_tok;
    uint32_t logit0, n_logit;
    uint32_t fail_at; /* output number */
    uint8_t fail;     /* enum script_fail */
    bool repeat;
};

struct script_logit {
    uint32_t at, token;
    float z;
};

struct script {
    struct kern_script_info info;
    uint64_t fill_ns;  /* device time of a prompt token */
    uint64_t step_ns;  /* of a decode step */
    uint64_t fail_step; /* decode step, from 1; 0 = none */
    uint8_t fail;
    bool loop;
    uint32_t n_blocks, n_toks, n_logits;
    /* NULL in a counting pass */
    struct script_block *blocks;
    uint32_t *toks;
    struct script_logit *logits;
};

/* s's arrays are either all NULL, then only the counts are made, or have room for the counts of an earlier
 * pass over the same text. vocab_tokens bounds every id; 0: the script's own number, or no bound when it
 * names a model. */
int script_parse(const char *text, uint32_t vocab_tokens, struct script *s, char *err, size_t err_len);

#endif
