/* SPDX-License-Identifier: MIT */
/* Fixture of the grammar room's test programs: a vocabulary, memory for walks, two states and a mask. */
#ifndef GLMD_TEST_GRAMFIX_H
#define GLMD_TEST_GRAMFIX_H

#include <check.h>
#include <stdlib.h>

#include "gramtest.h"

static struct gt_vocab vocab;
static struct grammar_work *work;
static struct grammar_state *state, *other;
static uint32_t *mask; /* of vocab.n_words */

static inline void gramfix_setup(uint32_t tokens, uint64_t seed) {
    gt_vocab_new(&vocab, tokens, 16, seed);
    ck_assert_int_eq(grammar_work_new(&work), 0);
    state = malloc(grammar_state_bytes());
    other = malloc(grammar_state_bytes());
    mask = calloc(vocab.n_words, sizeof *mask);
    ck_assert(state && other && mask);
}

static inline void gramfix_teardown(void) {
    grammar_work_free(work);
    free(state);
    free(other);
    free(mask);
    gt_vocab_done(&vocab);
}

#endif
