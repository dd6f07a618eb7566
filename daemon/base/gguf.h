/* SPDX-License-Identifier: MIT */
/* The header of a GGUF file: its metadata and where its tensors lie. Strict: what is accepted covers the file
 * from its first byte to its last. Read by the model room (weights, configuration) and the text room
 * (tokenizer), which do not know each other.
 *
 *     r = gguf_read(read_at, ctx, file_bytes, "model.gguf", &g, &err);
 *     v = gguf_find(g, "tokenizer.ggml.tokens");
 *     while (gguf_next_string(v, &at, &s, &n)) …
 *     g = gguf_free(g);
 *
 * Immutable once read; any thread. */
#ifndef GLMD_GGUF_H
#define GLMD_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xerr.h"

enum {
    GGUF_MAX_HEADER_BYTES = 256 << 20,
    GGUF_MAX_KEYS = 1 << 16,
    GGUF_MAX_TENSORS = 1 << 20,
    GGUF_MAX_DIMS = 4,
    GGUF_MAX_NAME = 63,
};

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

/* A scalar is an array of one: n is 1. */
struct gguf_value {
    const char *key;
    bool is_array;
    uint32_t type; /* of the elements */
    uint64_t n;
    const uint8_t *p; /* the first element; strings with their lengths in front */
    uint64_t bytes;
};

struct gguf_tensor {
    const char *name; /* UTF-8 */
    uint32_t type;    /* ggml's number */
    uint32_t n_dims;
    uint64_t ne[GGUF_MAX_DIMS]; /* the fastest first */
    uint64_t offset, bytes;     /* of the file */
};

struct gguf;

/* All n bytes from `at` on, or negative errno. */
typedef int gguf_read_fn(void *ctx, uint64_t at, void *buf, uint64_t n);

/* shown: the file's name for messages. -EBADMSG: malformed, -ENOTSUP: a version or tensor type that is not
 * read. */
int gguf_read(gguf_read_fn *read, void *ctx, uint64_t file_bytes, const char *shown, struct gguf **ret,
              struct xerr *e);
struct gguf *gguf_free(struct gguf *g); /* NULL ok; returns NULL */

const struct gguf_value *gguf_find(const struct gguf *g, const char *key); /* NULL: none */
size_t gguf_keys(const struct gguf *g);
const struct gguf_value *gguf_key_at(const struct gguf *g, size_t i); /* ascending by key */
size_t gguf_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i); /* ascending by name */

/* Element i as what is asked for; false: it is not of that kind (or negative, or there are fewer). v may be
 * NULL. */
bool gguf_uint(const struct gguf_value *v, uint64_t i, uint64_t *ret);
bool gguf_real(const struct gguf_value *v, uint64_t i, double *ret); /* integers too */
bool gguf_bool(const struct gguf_value *v, bool *ret);
bool gguf_string(const struct gguf_value *v, const char **ret, size_t *ret_n); /* of a scalar */
/* The next string of an array; *at starts at 0. */
bool gguf_next_string(const struct gguf_value *v, uint64_t *at, const char **ret, size_t *ret_n);

/* Weights and bytes of a block of ggml's type number; false: not one that is read. */
bool gguf_block(uint32_t type, uint32_t *ret_weights, uint32_t *ret_bytes);
const char *gguf_type_name(uint32_t type); /* "Q4_K", "?" */

#endif
