/* SPDX-License-Identifier: MIT */
/* Checkpoints for tests: a temporary directory that looks like a real one, to be spoilt file by file. Shards
 * are links to the originals, so a copy costs nothing; every write here replaces the link, never the
 * original. Every failure fails the running Check test. */
#ifndef GLMD_TEST_CKPT_H
#define GLMD_TEST_CKPT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "xerr.h"

struct ckpt {
    char dir[128];
};

/* $GLMD_MODELS/NAME or build/models/NAME; fails when it is not there. Static storage, overwritten by the
 * next. */
const char *ckpt_model(const char *name);

void ckpt_empty(struct ckpt *c);                   /* an empty directory */
void ckpt_copy(struct ckpt *c, const char *model); /* all files of a model, linked */
void ckpt_remove(struct ckpt *c);

/* Path inside; one of four static buffers in turn. */
const char *ckpt_path(const struct ckpt *c, const char *file);
void ckpt_write(const struct ckpt *c, const char *file, const void *bytes, size_t n);
void *ckpt_read(const struct ckpt *c, const char *file,
                size_t *ret_n); /* malloc'ed, one NUL behind the end */
json_t *ckpt_json(const struct ckpt *c, const char *file);
void ckpt_write_json(const struct ckpt *c, const char *file, const json_t *v);

/* A value by a path such as "text_config.layer_types.3"; NULL when there is none (borrowed). */
json_t *ckpt_get(json_t *root, const char *path);
/* Sets (takes v) or, with v NULL, deletes it. */
void ckpt_set(json_t *root, const char *path, json_t *v);

/* A safetensors file from header text and data (zeros when NULL). */
void ckpt_write_st(const struct ckpt *c, const char *file, const char *header, const void *data, size_t n);

/* The error has this code and its message contains each of the strings (NULL ends the list). */
void ckpt_expect(const char *label, int r, int code, const struct xerr *e, const char *const has[]);

struct ckpt_rng {
    uint64_t s;
};
uint64_t ckpt_rand(struct ckpt_rng *r);

#endif
