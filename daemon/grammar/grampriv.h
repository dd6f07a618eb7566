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

enum { GRAM_CLEAN_STEPS = 32, GRAM_MAX_RESTS = (1 << 18) - 32, GRAM_CLOSES = 0x8000 };

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
    /* And, for each place in quote.order, the characters it begins in a string, with GRAM_CLOSES when it ends it. */
    uint16_t *quote_chars;
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
    uint32_t free_string; /* leaf of any string */
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

/* The alternatives of one string or name along the bytes of a token: see ginside.c. */
enum galt_how { ALT_FREE, ALT_LIST, ALT_DFA, ALT_NAME };
struct gspan {
    const struct gleaf *leaf;
    uint8_t how;   /* enum galt_how */
    bool any;      /* any character may come: free strings, and names beside those declared */
    uint8_t which; /* number among the state's scalars, or threads of its level */
    uint32_t lo, hi; /* as in struct gscalar and struct gthread */
    uint32_t cur;    /* what lies before it goes on with less than the next sibling's byte */
    int next;        /* what cur goes on with; 256 behind the last */
};
struct gspot {
    uint32_t base;  /* bytes before the path begins; the state is that of its beginning */
    uint32_t chars; /* since then */
    uint32_t loose; /* bits of `which`: those that any character changes nothing for, without a span */
    bool any;       /* any character may come */
    uint8_t n, lists; /* lists: of n, those with declared texts, which lie far apart in memory */
    struct gspan span[GRAM_SIDE];
};
struct gpath {
    struct gspot at[GRAMMAR_MAX_TOKEN_BYTES + 1];
};

/* Which rests of tokens may follow inside the string that a mask is made for: behind a quote, behind a backslash, or
 * both. */
enum gmemo_kind { MEMO_END, MEMO_ESCAPE, MEMO_ALL };
enum { GRAM_MEMOS = 6 };
struct gmemo {
    uint8_t kind, n, which[GRAM_SIDE];
    uint32_t state[GRAM_SIDE]; /* of automata */
    uint32_t parents;          /* that the string ends for; behind a backslash those that nothing changes */
    uint32_t rests[GRAM_MAX_RESTS / 32 + 1]; /* bit set */
};

/* Work of a mask is counted in steps, about a nanosecond each, never in time: the same mask every time and
 * everywhere. When they are used up, the mask is made again of shorter tokens, with fewer steps; single bytes
 * are always all looked at. */
enum { GRAM_STEPS = 300000, GRAM_TRIES = 3 };

struct grammar_work {
    int64_t steps, left; /* steps: of the first try */
    uint32_t most_bytes; /* of a token, in this try */
    bool cut;            /* the last mask is not whole */
    uint32_t n_memo;
    struct grammar_state copy;
    struct gsaved saved[GRAMMAR_MAX_TOKEN_BYTES + 1];
    struct gpath path, inner;
    struct gmemo key; /* its rests are unused */
    struct gmemo memo[GRAM_MEMOS];
};

/* False: none are left, and what is being done must end. */
static inline bool gram_spend(struct grammar_work *w, int32_t steps) {
    w->left -= FAULT(grammar_steps_free) ? 0 : steps;
    return w->left >= 0;
}

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
static inline uint32_t gram_next(const struct gdfa *d, uint32_t at, uint8_t b) {
    return d->next[(uint64_t)at * d->n_cls + d->cls[b]];
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

/* gwalk.c: the tokens that stay inside a string whose automaton is in `start`, into words (NULL: counted
 * only). Returns the nodes it saw, at most max_nodes + 1. */
uint32_t gram_walk_dfa(const struct gtrie *t, const struct gdfa *d, uint32_t start, uint32_t from,
                       uint32_t to, uint32_t max_nodes, uint32_t *words);
/* Every token of a part of the trie that may follow, into words. s has its old value afterwards. */
void gram_walk(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
               const struct gtrie *t, uint32_t from, uint32_t to, uint32_t *words);
/* The tokens that stay inside the string that s is in; s stands between two characters. */
void gram_walk_clean(const struct grammar *g, struct grammar_work *w, const struct grammar_state *s,
                     uint32_t *words);
/* ginside.c */
/* Of all tokens those that stay inside the string or name that s is in, for the alternatives that neither take any
 * character nor have a set of such tokens; s stands between two characters. */
void gram_walk_inside(const struct grammar *g, struct grammar_work *w, const struct grammar_state *s,
                      uint32_t *words);
/* A path of its own: it begins before byte `depth` of a token, in a string or name between two characters; goes on
 * with a byte that stays inside, false: no alternative does; s behind the bytes of the path up to `depth`, for
 * *ret, which is a copy of s or s itself. */
void gram_path_begin(const struct grammar *g, const struct grammar_state *s, struct gpath *p, uint32_t depth);
bool gram_path_step(const struct grammar *g, const struct grammar_state *s, struct gpath *p, uint32_t depth,
                    uint8_t b);
void gram_path_put(const struct grammar_state *s, const struct gpath *p, uint32_t depth, struct grammar_state *ret);
static inline int32_t gram_path_cost(const struct gspot *at) {
    return 3 + 3 * at->n + 4 * at->lists;
}
/* The tokens that leave the string or name that s is in, or escape in it; s stands between two characters. */
void gram_walk_quote(const struct grammar *g, struct grammar_work *w, const struct grammar_state *s, uint32_t *words);

static inline void gram_set(uint32_t *words, uint32_t id) {
    words[id / 32] |= UINT32_C(1) << id % 32;
}

static inline bool gram_has(const uint32_t *words, uint32_t id) {
    return words[id / 32] >> id % 32 & 1;
}

#endif
