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
    bool optional; /* absent or null: nothing is stored */
};

#define U32(k, lo, hi)                                                                                       \
    { #k, CREAD_U32, offsetof(struct model_config, k), lo, hi, NULL, false }
#define U32_AS(k, m, lo, hi)                                                                                 \
    { #k, CREAD_U32, offsetof(struct model_config, m), lo, hi, NULL, false }
#define REAL(k, lo, hi)                                                                                      \
    { #k, CREAD_REAL, offsetof(struct model_config, k), lo, hi, NULL, false }
#define BOOL(k)                                                                                              \
    { #k, CREAD_BOOL, offsetof(struct model_config, k), 0, 0, NULL, false }
#define IS_TRUE(k)                                                                                           \
    { #k, CREAD_TRUE, 0, 0, 0, NULL, false }
#define IS_FALSE(k)                                                                                          \
    { #k, CREAD_FALSE, 0, 0, 0, NULL, false }
#define WORD(k, w)                                                                                           \
    { #k, CREAD_WORD, 0, 0, 0, w, false }
#define INERT(k)                                                                                             \
    { #k, CREAD_INERT, 0, 0, 0, NULL, true }

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
/* Two of them, for a model whose other lists say less. */
int cread_mlp_types(const struct cread *text, struct model_config *cfg);
int cread_indexer_types(const struct cread *text, struct model_config *cfg);

/* configcheck.c: what holds for every model of the family. */
int cread_numbers(const struct cread *text, const struct model_config *cfg);
int cread_no_bos(const struct cread *c);
int cread_quantization(const struct cread *c);
int cread_torch_dtype(const struct cread *c);
int cread_rope_type(const struct cread *text, const char *key, const char *expected);

/* config53.c: config.json of GLM-5.3, all of it. */
int cread_glm53(const struct cread *root, struct model_config *cfg);

#endif
