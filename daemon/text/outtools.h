/* SPDX-License-Identifier: MIT */
/* The tools a request offers, compiled for the output parser: names, and per parameter which JSON types
 * its schema admits. Made by a text worker (allocates); read-only afterwards, read by the emit thread
 * without allocation. */
#ifndef GLMD_OUTTOOLS_H
#define GLMD_OUTTOOLS_H

#include "tbuf.h"
#include "xerr.h"

#include <stdint.h>

#define OUTTOOLS_MAX_TOOLS  1024
#define OUTTOOLS_MAX_PARAMS 512 /* per tool; further ones are treated as unknown keys */

struct outtools;

enum outtools_types {
    OUTTOOLS_STRING = 1,
    OUTTOOLS_INTEGER = 2,
    OUTTOOLS_NUMBER = 4, /* integers included */
    OUTTOOLS_BOOL = 8,
    OUTTOOLS_NULL = 16,
    OUTTOOLS_ARRAY = 32,
    OUTTOOLS_OBJECT = 64,
    OUTTOOLS_ALL = 127,
};

/* One JSON object text a tool, as the client sent it (inner "function" object used when present). Borrows
 * nothing. */
int outtools_new(const struct tstr *tools, size_t n, struct outtools **ret, struct xerr *err);
struct outtools *outtools_free(struct outtools *t);

int outtools_find(const struct outtools *t, struct tstr name); /* index or -ENOENT; t may be NULL */
struct tstr outtools_name(const struct outtools *t, int tool);
size_t outtools_count(const struct outtools *t);

/* Parameter index or -ENOENT, and the types its schema admits. For a key the schema does not name
 * *ret_types is what the tool admits for such keys: everything but strings unless additionalProperties
 * says more. */
int outtools_param(const struct outtools *t, int tool, struct tstr key, unsigned *ret_types);
size_t outtools_required(const struct outtools *t, int tool); /* number of required parameters */
bool outtools_is_required(const struct outtools *t, int tool, int param);

#endif
