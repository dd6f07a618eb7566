/* SPDX-License-Identifier: MIT */
/* Room-private: one object of config.json while it is read, and the table-driven field reader. */
#ifndef GLMD_MODEL_CONFIGREAD_H
#define GLMD_MODEL_CONFIGREAD_H

#include <stddef.h>

#include "config.h"
#include "modeljson.h"

struct cread {
    const char *file;   /* shown in messages */
    const char *prefix; /* "text_config." or "" */
    const json_t *obj;
    struct xerr *e;
};

enum cread_kind {
    CREAD_U32,   /* integer in [lo, hi], stored as uint32_t */
    CREAD_REAL,  /* finite number in [lo, hi], stored as double */
    CREAD_BOOL,  /* any bool, stored */
    CREAD_TRUE,  /* must be true */
    CREAD_FALSE, /* must be false */
    CREAD_WORD,  /* must be the string `word` */
    CREAD_INERT, /* optional; a number, bool or null that cannot reach the forward pass */
};

struct cread_field {
    const char *key;
    enum cread_kind kind;
    size_t at; /* offset in struct model_config */
    double lo, hi;
    const char *word;
};

/* "FILE: PREFIXkey: found X, expected Y"; returns code. */
int cread_refuse(const struct cread *c, int code, const char *key, const json_t *found, const char *expected,
                 ...) __attribute__((format(printf, 5, 6)));
int cread_missing(const struct cread *c, const char *key, const char *expected);

int cread_fields(const struct cread *c, const struct cread_field *f, size_t n, void *base);
/* A list of exactly n entries, or -EINVAL. */
int cread_list(const struct cread *c, const char *key, uint32_t n, const char *n_from, const json_t **ret);
/* eos_token_id: one id or a list, below vocab; ascending in ids. */
int cread_eos(const struct cread *c, uint32_t vocab, uint32_t ids[MODEL_MAX_EOS], uint32_t *ret_n);

/* Refuses keys that are in no table but belong to a family that steers the text forward pass. */
int cread_unknown(const struct cread *c, const struct cread_field *const tables[], const size_t sizes[],
                  size_t n_tables, const char *const other[]);

/* configlayers.c: the per-layer lists, against each other. */
int cread_layers(const struct cread *text, const struct cread *linear, struct model_config *cfg);

#endif
