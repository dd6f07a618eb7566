/* SPDX-License-Identifier: MIT */
/* Inside of the grammar room: tables over the vocabulary, the compiled grammar, a sequence's state. The first
 * two are written by the functions called new and constant afterwards. */
#ifndef GLMD_GRAMPRIV_H
#define GLMD_GRAMPRIV_H

#include <stdatomic.h>

#include "grammar.h"

#define GRAM_NONE UINT32_MAX

/* ---- vocabulary ---- */

/* A node of a trie over token bytes, in preorder: children follow their parent, `skip` is where the subtree
 * ends. The tokens of a subtree are order[first .. node[skip].first). */
struct gnode {
    uint32_t skip, first;
    uint16_t n_here; /* tokens that end here; they are the first of the subtree's */
    uint8_t byte;
    uint8_t depth; /* bytes up to and with this one */
    uint8_t rest;  /* most bytes a token of the subtree has below */
    bool clean;    /* whatever follows below stays inside a JSON string: no quote, backslash or control
                    * character, and    UTF-8 that begins with a character and may be cut at the end */
};

struct gtrie {
    struct gnode *node; /* n of them and one that ends the last subtree */
    uint32_t n;
    uint32_t *order; /* ids sorted by bytes */
    uint32_t n_order;
};

enum { GRAM_CLEAN_STEPS = 32, GRAM_MAX_RESTS = (1 << 18) - 32 };

struct glong {
    uint32_t id, chars;
};

struct grammar_vocab {
    const struct vocab_view *view;
    uint32_t n_tokens, n_words;
    uint64_t bytes;
    struct gtrie all;   /* every token that is text */
    struct gtrie quote; /* those that begin as the inside of a string and hold a quote or backslash */
    /* What such a token has from its first quote or backslash on: many tokens share one. */
    struct gtrie rest; /* its order: numbers of rests */
    uint32_t
        *rest_of; /* for each place in quote.order the number of its rest; NULL when there are too many */
    uint32_t *is_text; /* bit set of ids */
    uint32_t
        *clean[GRAM_CLEAN_STEPS + 1]; /* ids that stay inside a string and begin at most so many characters */
    uint32_t *clean_all, *utf8_all; /* however many; utf8_all: control characters, quotes, backslashes too */
    struct glong *longer;           /* clean ones with more than GRAM_CLEAN_STEPS */
    uint32_t n_longer;
    uint32_t most_chars;    /* of any clean token */
    _Atomic uint64_t *live; /* bytes of all grammars */
};

/* ---- compiled grammar ---- */

enum {
    GRAM_SIDE = 32,  /* alternatives side by side at one level of nesting */
    GRAM_DEPTH = 64, /* levels of nesting */
    GRAM_POOL = 256, /* alternatives of all open levels */
    GRAM_MIN_DEPTH = GRAM_POOL / GRAM_SIDE,
    GRAM_NAMES = 128,   /* declared members of an object */
    GRAM_BLANKS = 32,   /* in a row */
    GRAM_ENDLESS = 255, /* height of what has no finite text */
};

enum gleaf_kind { LEAF_OBJECT, LEAF_ARRAY, LEAF_STRING, LEAF_NUMBER, LEAF_WORD };
enum gleaf_how { HOW_FREE, HOW_LIST, HOW_DFA };
enum { WORD_TRUE = 1, WORD_FALSE = 2, WORD_NULL = 4 };

struct gname {         /* sorted by bytes inside its list */
    uint32_t off, len; /* in text */
    uint32_t schema;   /* of the member; unused in a list of strings */
};

/* Values of one JSON type, of one branch of the schema. */
struct gleaf {
    uint8_t kind;   /* enum gleaf_kind */
    uint8_t how;    /* strings, numbers: enum gleaf_how */
    uint8_t height; /* levels of nesting it needs at least */
    uint8_t words;  /* WORD_… */
    bool integer;
    bool low_out, high_out; /* numbers: the bound itself is outside */
    bool has_low, has_high;
    uint32_t name0, n_names; /* members, or the strings or number texts of a list */
    uint32_t other; /* objects: schema of members that are not declared; arrays: of elements behind item0 */
    uint32_t item0, n_items; /* arrays: schemas of the first elements, in item */
    uint32_t dfa;            /* strings: number of the automaton; its starting state is start */
    uint32_t start;
    uint32_t min, max; /* characters, elements; max GRAM_NONE = no limit */
    int64_t low, high;
    uint64_t required[GRAM_NAMES / 64];
};

struct gschema {              /* what a place of the schema lets through: leaves sorted by kind */
    uint32_t leaf0, n_leaves; /* in closure */
    uint8_t height;
};

/* Over decoded bytes of a string. Every state can reach one that accepts. */
struct gstate {
    bool accepts;
    uint32_t wide; /* bit set of the clean tokens that may follow, in wide; or GRAM_NONE */
};
struct gdfa {
    uint8_t cls[256]; /* class of a byte */
    uint32_t n_cls, n_states;
    struct gstate *state;
    uint32_t *next; /* n_states x n_cls; GRAM_NONE = none */
};

struct grammar {
    const struct grammar_vocab *vocab;
    uint64_t bytes, max_bytes;
    char *text;
    struct gname *name;
    struct gleaf *leaf;
    struct gschema *schema;
    uint32_t *closure, *item;
    struct gdfa *dfa;
    uint32_t *wide; /* bit sets of vocab->n_words */
    uint32_t n_text, n_name, n_leaf, n_schema, n_closure, n_item, n_dfa, n_wide;
    uint32_t root;
    uint32_t depth; /* levels of nesting at most */
    uint32_t side;  /* alternatives side by side at most */
    bool counted;   /* in vocab->live */
    bool calls, many, required;
    uint32_t text_leaf; /* any text */
    uint32_t tools; /* leaf with the list of their names; the schema of a name is the leaf of its arguments */
};

/* ---- state of a sequence ---- */

enum gmode {
    MODE_VALUE,
    MODE_ELEMENT_OR_END, /* behind [ */
    MODE_KEY,
    MODE_KEY_OR_END, /* behind { */
    MODE_IN_KEY,
    MODE_COLON,
    MODE_STRING,
    MODE_NUMBER,
    MODE_WORD,
    MODE_AFTER, /* a value is complete */
    /* calls */
    MODE_SAY,      /* text before the first call */
    MODE_CALL,     /* blanks before a call, and behind one */
    MODE_TOOL,     /* inside a tool's name */
    MODE_ARGS,     /* behind the name or an argument */
    MODE_ARG_KEY,  /* inside an argument's name */
    MODE_ARG,      /* between name and value */
    MODE_ARG_TEXT, /* inside a value that is any text */
    MODE_ARG_RAW,  /* inside a value that is text the schema fixes */
};

enum gsub { SUB_PLAIN, SUB_CHAR, SUB_ESC, SUB_HEX, SUB_HIGH, SUB_HIGH_U, SUB_LOW };
enum gphase { NUM_MINUS, NUM_ZERO, NUM_INT, NUM_DOT, NUM_FRAC, NUM_E, NUM_SIGN, NUM_EXP };

/* An alternative of a value that is being written and is no container. */
struct gscalar {
    uint32_t leaf;
    uint32_t parents; /* bits: alternatives of the innermost level */
    uint32_t lo, hi;  /* list: what is still possible; automaton: lo is the state */
};

/* An alternative of an open container. */
struct gthread {
    uint32_t leaf;
    uint32_t parents; /* bits: alternatives of the level below */
    uint32_t lo, hi;  /* members whose name is still possible while one is written */
    uint32_t child;   /* schema of the value that follows */
    uint32_t member;  /* its number, GRAM_NONE = not declared */
    uint64_t seen[GRAM_NAMES / 64];
};

struct glevel {
    uint16_t first;
    uint8_t n;
    bool object;
    uint32_t alive; /* bits */
    uint32_t count; /* elements so far */
};

struct grammar_state {
    /* small things first: a walk over tokens saves and restores them byte by byte */
    uint8_t mode, sub, blanks, n_utf8, n_hex, n_scalars, depth, word, at, phase;
    bool negative, fraction; /* a digit other than 0 stands behind the point */
    uint8_t utf8[4];
    bool ended;
    uint32_t hex, high;
    uint32_t chars, len; /* of the string so far: characters, decoded bytes */
    uint64_t whole;      /* digits before the point */
    /* calls */
    uint32_t n_calls, tool, arg; /* tool: leaf of the arguments */
    uint64_t args_seen[GRAM_NAMES / 64];
    struct gscalar scalar[GRAM_SIDE];
    struct glevel level[GRAM_DEPTH + 1];
    struct gthread thread[GRAM_POOL + 1];
};

/* What one byte can change. */
struct gsaved {
    char small[offsetof(struct grammar_state, scalar)];
    struct gscalar scalar[GRAM_SIDE];
    struct glevel level[2];
    struct gthread thread[2 * GRAM_SIDE];
    int reach; /* how much of it is filled */
};

struct grammar_work {
    struct grammar_state copy;
    struct gsaved saved[GRAMMAR_MAX_TOKEN_BYTES + 1];
    uint32_t rests[GRAM_MAX_RESTS / 32 + 1]; /* bit set of those that may follow */
};

/* gstep.c. False: the byte may not follow, and s is spoilt. */
bool gram_byte(const struct grammar *g, struct grammar_state *s, uint8_t b);
void gram_value(struct grammar_state *s, uint32_t schema); /* a text of its own begins */
bool gram_value_complete(const struct grammar *g, const struct grammar_state *s);
bool gram_fits(const struct grammar *g, const struct grammar_state *s, uint32_t schema);
/* gstring.c */
/* 0: goes on, 1: the value is complete for *ret_parents; negative: the byte may not follow */
int gram_string_byte(const struct grammar *g, struct grammar_state *s, uint8_t b, uint32_t *ret_parents);
bool gram_raw_byte(const struct grammar *g, struct grammar_state *s, uint8_t b); /* no escapes, no end */
uint32_t gram_string_parents(const struct grammar *g,
                             const struct grammar_state *s);                  /* of those that may end */
bool gram_free_chars(const struct grammar *g, const struct grammar_state *s); /* any character may follow */
bool gram_key_begin(const struct grammar *g, struct grammar_state *s);
bool gram_member_possible(const struct grammar *g, const struct grammar_state *s, const struct gthread *t);
void gram_narrow(const struct grammar *g, uint32_t name0, uint32_t len, uint8_t b, uint32_t *lo,
                 uint32_t *hi);
static inline uint32_t gram_next(const struct gdfa *d, uint32_t state, uint8_t b) {
    return d->next[(uint64_t)state * d->n_cls + d->cls[b]];
}
/* gcalls.c: marks of calls */
void gram_calls_begin(const struct grammar *g, struct grammar_state *s);
bool gram_calls_complete(const struct grammar *g, const struct grammar_state *s);
bool gram_calls_mark(const struct grammar *g, struct grammar_state *s,
                     uint32_t id); /* false: s is unchanged */
void gram_calls_mask(const struct grammar *g, const struct grammar_state *s, uint32_t *words);
bool gram_arg_possible(const struct grammar *g, const struct grammar_state *s, uint32_t lo, uint32_t hi);
/* gnumber.c */
bool gram_number_begin(const struct grammar *g, struct grammar_state *s, uint8_t b);
/* 1: taken, 0: no part of the number, which may end here; negative: neither */
int gram_number_byte(const struct grammar *g, struct grammar_state *s, uint8_t b);
bool gram_number_possible(const struct gleaf *x); /* within its bounds there is one */
uint32_t gram_number_parents(const struct grammar *g, const struct grammar_state *s);

/* gwalk.c: the tokens that stay inside a string whose automaton is in `state`, into words (NULL: counted
 * only). Returns the nodes it saw, at most max_nodes + 1. */
uint32_t gram_walk_dfa(const struct gtrie *t, const struct gdfa *d, uint32_t state, uint32_t from,
                       uint32_t to, uint32_t max_nodes, uint32_t *words);
/* Every token of a part of the trie that may follow, into words. s has its old value afterwards. */
void gram_walk(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
               const struct gtrie *t, uint32_t from, uint32_t to, uint32_t *words);
/* The tokens that leave the string that s is in, or escape in it; s stands between two characters. */
void gram_walk_quote(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
                     uint32_t *words);
/* The tokens that stay inside the string that s is in; s stands between two characters. */
void gram_walk_clean(const struct grammar *g, const struct grammar_state *s, uint32_t *words);

static inline void gram_set(uint32_t *words, uint32_t id) {
    words[id / 32] |= UINT32_C(1) << id % 32;
}

static inline bool gram_has(const uint32_t *words, uint32_t id) {
    return words[id / 32] >> id % 32 & 1;
}

#endif
