/* SPDX-License-Identifier: MIT */
/* The outer form of tokenizer.json: reads the file and refuses every setting that the encoder does not
 * implement. Private to the tokenizer's loader. */
#ifndef GLMD_TOKREAD_H
#define GLMD_TOKREAD_H

#include "tokpriv.h"

#include <jansson.h>

#define TOKREAD_ALPHABET 0x144 /* code points below this may be symbols of the byte-level alphabet */

struct tokread {
    struct xerr *err;
    char *path;
    json_t *root;
    struct tok *t;                     /* being filled */
    int16_t byte_of[TOKREAD_ALPHABET]; /* -1: not a symbol */
    size_t blob_bytes;
    uint8_t *word; /* two merge operands, decoded */
    char shown[64];
};

int tokread_open(struct tokread *l, const char *dir); /* reads and parses; l->err set */
void tokread_close(struct tokread *l);
int tokread_check(struct tokread *l); /* everything but the tables' contents */

int tokread_nomem(struct tokread *l);
int tokread_bad(struct tokread *l, const char *where, const char *key, json_t *found, const char *expected);
int tokread_bad_at(struct tokread *l, const char *array, size_t i, const char *key, json_t *found,
                   const char *expected);
/* Refuses members that are not named in known (NULL-terminated): an unknown setting may change the result. */
int tokread_only(struct tokread *l, json_t *object, const char *where, const char *const *known);
const char *tokread_kind(json_t *v); /* "a string", "null", "nothing" ... */
const char *tokread_show(struct tokread *l,
                         const char *s); /* printable and short; valid until the next call */

#endif
