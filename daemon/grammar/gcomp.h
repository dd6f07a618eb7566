/* SPDX-License-Identifier: MIT */
/* Inside of the grammar compiler. One struct gcomp a compilation, on one text worker; everything it allocates
 * is either part of the grammar or freed by gcomp_done. */
#ifndef GLMD_GCOMP_H
#define GLMD_GCOMP_H

#include "grampriv.h"
#include "jsonlite.h"

enum {
    GCOMP_JSON_DEPTH = 64,
    GCOMP_MAX_PLACES = 1 << 14, /* schemas */
    GCOMP_MAX_SETS = 4096,      /* sets of alternatives that are looked at */
    GCOMP_MAX_DFA_STATES = 1024,
    GCOMP_MAX_WIDE = 128,
    GCOMP_NARROW_NODES = 20000, /* of the trie: what may be walked for every token */
    GCOMP_MAX_LIST = 4096,      /* strings of an enum */
};
#define GCOMP_WORK (UINT64_C(64) << 20) /* bytes read, names compared, references followed */

enum { /* JSON types, as bits */
       T_OBJECT = 1,
       T_ARRAY = 2,
       T_STRING = 4,
       T_NUMBER = 8,
       T_INTEGER = 16,
       T_BOOL = 32,
       T_NULL = 64,
       T_ALL = 127,
};

/* While compiling a schema has leaves of its own and the places it is the union of. */
struct gplace {
    struct tstr text; /* .p NULL: made here */
    bool literal;     /* text is a value, not a schema */
    uint32_t leaf0, n_leaves;
    uint32_t alt0, n_alts; /* in alt */
};

struct gcomp {
    struct grammar *g;
    struct xerr *err, nobody;
    const char *what; /* "response schema" */
    struct tstr root;
    uint64_t work;
    struct gplace *place;
    uint32_t n_place, cap_place, n_done;
    uint32_t *alt, n_alt, cap_alt;
    uint32_t *memo; /* open addressing: place + 1 by text and kind */
    uint32_t memo_size;
    uint32_t any; /* the place that lets any value through */
    uint32_t cap_text, cap_name, cap_leaf, cap_item, cap_dfa, cap_wide, cap_schema, cap_closure;
};

/* Room for one more element behind n. False: over the limit or no memory (err is set). */
bool gcomp_room(struct gcomp *c, void *array, uint32_t n, uint32_t more, uint32_t *cap, size_t size);
bool gcomp_work(struct gcomp *c, uint64_t work); /* false: too much; err is set */
int gcomp_fail(struct gcomp *c, int code, struct tstr at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int64_t gcomp_place(struct gcomp *c, struct tstr text, bool literal); /* its number */
int64_t gcomp_leaf(struct gcomp *c, enum gleaf_kind kind);            /* its number */
int gcomp_put_name(struct gcomp *c, struct tstr quoted, uint32_t schema);
int gcomp_put_text(struct gcomp *c, const char *p, size_t n, uint32_t schema);
uint32_t gcomp_sort_names(struct gcomp *c, uint32_t name0,
                          uint32_t n); /* sorted, of equal ones the last; how many */

int gcomp_begin(struct gcomp *c, const struct grammar_vocab *v, uint64_t max_bytes, struct xerr *err);
int gcomp_keep(struct gcomp *c, struct grammar **ret); /* takes c->g */
void gcomp_done(struct gcomp *c);
int gcomp_alt(struct gcomp *c, uint32_t self, uint32_t other); /* self is a union with other; GRAM_NONE ok */
/* gschema.c: the schema of one place into leaves; every place until none is left. */
int gcomp_schemas(struct gcomp *c);
int gcomp_root(struct gcomp *c, struct tstr schema, uint32_t *ret); /* the place of a text of its own */
/* gliteral.c: values of enum and const */
int gcomp_literal(struct gcomp *c, uint32_t place);
int gcomp_enum(struct gcomp *c, uint32_t place, struct tstr list, unsigned types, bool single);
/* gclose.c: leaves of every schema, heights, alternatives side by side. roots: schemas that begin a text. */
int gcomp_close(struct gcomp *c, const uint32_t *roots, uint32_t n_roots);
/* gregex.c: pattern to g->dfa; *ret_empty: no string matches */
int gcomp_pattern(struct gcomp *c, struct tstr quoted, uint32_t min, uint32_t max, uint32_t *ret_dfa,
                  uint32_t *ret_start, bool *ret_empty);

#endif
