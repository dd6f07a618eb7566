/* SPDX-License-Identifier: MIT */
/* Shared by the tests of the grammar room: generated vocabularies, random schemas and documents, a
 * validator to compare with. One thread. */
#ifndef GLMD_TEST_GRAMTEST_H
#define GLMD_TEST_GRAMTEST_H

#include <jansson.h>

#include "grammar.h"
#include "texttest.h"

enum {
    GT_STOP = 0, /* distances from the first mark */
    GT_STOP2,
    GT_THINK,
    GT_CALL,
    GT_CALL_END,
    GT_KEY,
    GT_KEY_END,
    GT_VALUE,
    GT_VALUE_END,
    GT_OTHER_MARK,
    GT_MARKS
};

struct gt_vocab {
    struct vocab_view view;
    struct grammar_vocab *tables;
    uint8_t *bytes;
    uint32_t *offsets, stops[2], marks[64];
    uint32_t mark0; /* id of the first mark */
    uint32_t n_words;
    uint32_t *by_text, hash_mask; /* open addressing: id + 1 */
};

/* n tokens in all, of them `marks` added ones behind the others: every byte, then pieces as byte-pair
 * encoding finds them in text: words with and without a space before, digits, runs of blanks, punctuation as
 * programs and JSON have it, characters of several scripts whole and cut in the middle. The same for the same
 * seed. */
void gt_vocab_new(struct gt_vocab *v, uint32_t n, uint32_t marks, uint64_t seed);
void gt_vocab_done(struct gt_vocab *v);
uint32_t gt_token(const struct gt_vocab *v, const char *text, size_t n); /* UINT32_MAX: none */
/* Pieces text into tokens: a random one of those that fit, longer ones more often. Returns how many. */
size_t gt_pieces(const struct gt_vocab *v, struct texttest_rng *r, const char *text, size_t n, uint32_t *ret);

/* gramjson.c, gramtext.c: a validator on jansson's tree and libpcre2, without anything of the code under
 * test. */
bool gt_valid(const json_t *schema, const json_t *value); /* references are looked up in schema itself */
json_t *gt_random_schema(struct texttest_rng *r); /* inside the subset, but perhaps without a finite text */
/* A random valid value, NULL when none was found. */
json_t *gt_random_value(struct texttest_rng *r, const json_t *schema);
/* Text of a value as the grammar lets it through: random blanks; escapes: of 100 characters so many are
 * escaped that need not be. */
char *gt_write(struct texttest_rng *r, const json_t *value, unsigned escapes, size_t *ret_n);
json_t *gt_read(const char *text,
                size_t n);       /* numbers too long for jansson are cut; NULL when it is no JSON */
/* gramhard.c: schemas made to be slow. */
const char *gt_hard_name(size_t i);                            /* NULL behind the last */
char *gt_hard_schema(const struct gt_vocab *v, size_t i);      /* free() it */
/* One of the ids of a mask, signs of JSON more often than others; UINT32_MAX when it is empty. */
uint32_t gt_pick(const struct gt_vocab *v, struct texttest_rng *r, const uint32_t *mask);
const char *gt_name(uint32_t i); /* of the names random schemas declare; NULL behind the last */

#endif
