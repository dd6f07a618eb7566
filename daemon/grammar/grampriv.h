/* SPDX-License-Identifier: MIT */
/* Inside of the grammar room: tables over the vocabulary, the compiled grammar, a sequence's state. The first two are
 * written by the functions called new and constant afterwards. */
#ifndef GLMD_GRAMPRIV_H
#define GLMD_GRAMPRIV_H

#include "grammar.h"

#define GRAM_NONE UINT32_MAX

/* ---- vocabulary ---- */

/* A node of a trie over token bytes, in preorder: children follow their parent, `skip` is where the subtree ends. The
 * tokens of a subtree are order[first .. node[skip].first). */
struct gnode {
    uint32_t skip, first;
    uint16_t n_here; /* tokens that end here; they are the first of the subtree's */
    uint8_t byte;
    uint8_t depth; /* bytes up to and with this one */
    uint8_t rest;  /* most bytes a token of the subtree has below */
    bool clean;    /* whatever follows below stays inside a JSON string: no quote, backslash or control character, and
                    * UTF-8 that begins with a character and may be cut at the end */
};

struct gtrie {
    struct gnode *node; /* n of them and one that ends the last subtree */
    uint32_t n;
    uint32_t *order; /* ids sorted by bytes */
    uint32_t n_order;
};

enum { GRAM_CLEAN_STEPS = 32 };

struct glong {
    uint32_t id, chars;
};

struct grammar_vocab {
    const struct vocab_view *view;
    uint32_t n_tokens, n_words;
    uint64_t bytes;
    struct gtrie all;   /* every token that is text */
    struct gtrie quote; /* those that begin as the inside of a string and hold a quote or backslash */
    uint32_t *is_text;  /* bit set of ids */
    uint32_t *clean[GRAM_CLEAN_STEPS + 1]; /* ids that stay inside a string and begin at most so many characters */
    uint32_t *clean_all, *utf8_all;        /* however many; utf8_all: control characters, quotes, backslashes too */
    struct glong *longer;                  /* clean ones with more than GRAM_CLEAN_STEPS */
    uint32_t n_longer;
    uint32_t most_chars; /* of any clean token */
};

static inline void gram_set(uint32_t *words, uint32_t id) {
    words[id / 32] |= UINT32_C(1) << id % 32;
}

static inline bool gram_has(const uint32_t *words, uint32_t id) {
    return words[id / 32] >> id % 32 & 1;
}

#endif
