/* SPDX-License-Identifier: MIT */
/* Grammars for constrained decoding: a JSON schema (a subset, below), any JSON object, or calls of offered
 * tools, as an automaton over the bytes of tokens. It says before a token is sampled which ids may follow,
 * and is told the token that was taken.
 *
 * struct grammar_vocab (once per model) and struct grammar (once per request, made by a text worker) never
 * change after they were made: any number of threads and sequences share them. A struct grammar_state is one
 * sequence's place in it: flat memory of the caller, without pointers, to be copied before drafts and put
 * back after them. Nothing here allocates but the two functions called new. A struct grammar_work is the
 * scratch of one thread.
 *
 * What is let through:
 *   schema   true, false and objects with: type (one or a list), enum, const, anyOf, oneOf (read as anyOf),
 * allOf of one, $ref to "#" and "#/...", also to itself, $defs, definitions; properties (at most 128),
 * required, additionalProperties; items, prefixItems, items as a list with additionalItems, minItems,
 * maxItems; minLength, maxLength, pattern (grammar_regex.h); minimum, maximum, exclusiveMinimum,
 *            exclusiveMaximum (whole numbers); nullable. Notes for people (title, description, default,
 * format and the like) are skipped. Any other keyword is refused, with its JSON pointer. objects  members in
 * any order, each declared one at most once; names that additionalProperties lets in may repeat. strings
 * valid UTF-8 without unpaired surrogates. Where the schema fixes characters (declared names, enum, const,
 *            pattern) they are written as they are, and only quote, backslash and control characters as
 * escapes, in their short form where there is one; elsewhere any escape is possible. numbers  integer: digits
 * alone, no fraction, no exponent. With bounds: no exponent. blanks   at most 32 between two parts of the
 * text and before the first; none behind the last. nesting  at most 64 levels; fewer, at least 8, where many
 * alternatives of the schema run side by side. From every state that can be reached an end can be reached, if
 * every byte is a token; stop ids are let through when the text is complete and never before; other ids that
 * are marks and not text, never. */
#ifndef GLMD_GRAMMAR_H
#define GLMD_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vocab_view.h"
#include "xerr.h"

struct grammar_vocab;
struct grammar;
struct grammar_state;
struct grammar_work;

enum {
    GRAMMAR_MAX_TOKEN_BYTES = 128, /* longer tokens are never let through */
    GRAMMAR_MAX_SCHEMA_BYTES = 256 << 10,
    GRAMMAR_DEFAULT_BYTES = 8 << 20, /* most memory of a compiled grammar */
    GRAMMAR_ALL_BYTES = 64 << 20,    /* of all that live on one vocabulary */
    GRAMMAR_USER_BYTES = 16 << 20,   /* of those of one user's requests; whoever knows users sees to it */
    GRAMMAR_VOCAB_BYTES = 80,        /* about, for each token of a vocabulary */
};

/* Tables over the bytes of the vocabulary; v is borrowed for ever. Starting thread. */
int grammar_vocab_new(const struct vocab_view *v, struct grammar_vocab **ret, struct xerr *err);
struct grammar_vocab *grammar_vocab_free(struct grammar_vocab *v); /* NULL ok; after every grammar */
size_t grammar_vocab_bytes(const struct grammar_vocab *v);

struct grammar_text {
    const char *p;
    size_t n;
};

/* Text workers. schema.p == NULL: any JSON object. max_bytes bounds the memory (0 = GRAMMAR_DEFAULT_BYTES).
 * -EINVAL, -EILSEQ: no JSON; -EOPNOTSUPP: outside the subset; -E2BIG: too large, too deep, too many
 * alternatives; -EDOM: no finite text satisfies it; -ENOBUFS: others take GRAMMAR_ALL_BYTES; -ENOMEM. err
 * says where (JSON pointer), what was found and expected. */
int grammar_new_schema(const struct grammar_vocab *v, struct grammar_text schema, size_t max_bytes,
                       struct grammar **ret, struct xerr *err);

enum grammar_calls {
    GRAMMAR_CALLS_AUTO = 1, /* text without marks, then calls or none */
    GRAMMAR_CALLS_REQUIRED, /* at least one call */
};

/* Calls in the model's own form. Each tool is one JSON object, as in the request. only >= 0: no tool but this
 * one may be called. many: further calls may follow the first. A parameter whose schema is outside the subset
 * takes any value of the types it admits: a tool list is never refused for it. */
int grammar_new_calls(const struct grammar_vocab *v, const struct grammar_text *tools, size_t n_tools,
                      enum grammar_calls how, int only, bool many, size_t max_bytes, struct grammar **ret,
                      struct xerr *err);
struct grammar *grammar_free(struct grammar *g); /* NULL ok */
size_t grammar_bytes(const struct grammar *g);

/* One per thread that asks for masks. */
int grammar_work_new(struct grammar_work **ret);
struct grammar_work *grammar_work_free(struct grammar_work *w); /* NULL ok */

/* The same for every grammar, aligned as malloc aligns. */
size_t grammar_state_bytes(void);
void grammar_begin(const struct grammar *g, struct grammar_state *ret);
void grammar_copy(struct grammar_state *ret,
                  const struct grammar_state *from); /* copies what is in use only */

/* Writes n_words words: bit i % 32 of word i / 32 is set when id i may follow. Words behind the vocabulary
 * become 0. s is used as scratch and has its old value afterwards. Returns true when anything may follow.
 * A schema that would take too long is cut short, the same way every time: tokens of more than four bytes, or
 * of more than one, are then left out, except some that stay inside a string. What the mask lets through always
 * may follow, and every text remains possible where every byte is a token. */
bool grammar_mask(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
                  uint32_t *ret_words, uint32_t n_words);

bool grammar_mask_was_cut(const struct grammar_work *w); /* the last mask of w */

/* Takes a token. 0: go on; 1: it was a stop id, the text is complete; -EINVAL: it may not follow, s is
 * unchanged. */
int grammar_advance(const struct grammar *g, struct grammar_work *w, struct grammar_state *s, uint32_t token);

bool grammar_complete(const struct grammar *g, const struct grammar_state *s); /* the text may end here */

#endif
