/* SPDX-License-Identifier: MIT */
/* Regular expressions of `pattern`, as ECMAScript writes them and searched for anywhere in the string:
 * characters, ".", classes with ranges and \d \w \s \D \W \S, escapes \t \n \v \f \r \0 \xHH \uHHHH \u{H},
 * groups (with and without a name, never referred to), |, * + ? {n} {n,} {n,m} also lazy, ^ and $. Not:
 * looking ahead or behind, back references, \b, \B, \p{…}, flags. Text workers only; allocates. */
#ifndef GLMD_GREGEX_H
#define GLMD_GREGEX_H

#include "gcomp.h"

enum rx_kind { RX_EMPTY, RX_SET, RX_CAT, RX_ALT, RX_REPEAT, RX_BEGIN, RX_END };

enum { RX_INFINITE = UINT16_MAX, RX_DEPTH = 32 };

struct rx_range {
    uint32_t lo, hi; /* code points */
};

struct rx_node {
    uint8_t kind;
    uint32_t a, b;     /* CAT, ALT: two nodes; REPEAT: a; SET: ranges a .. a + b */
    uint16_t min, max; /* REPEAT */
};

struct rx {
    struct gcomp *c;
    struct tstr pattern; /* as it stands in the schema */
    struct rx_node *node;
    struct rx_range *range; /* of a set: sorted, apart, no surrogates */
    uint32_t n_node, cap_node, n_range, cap_range;
    const uint8_t *text; /* decoded */
    size_t n, at;
    unsigned depth;
};

/* gregex.c: the number of the node of the whole, or an error that is set. */
int64_t rx_parse(struct rx *x);
/* gdfa.c */
int rx_compile(struct rx *x, uint32_t root, uint32_t min, uint32_t max, uint32_t *ret_dfa,
               uint32_t *ret_start, bool *ret_empty);

#endif
