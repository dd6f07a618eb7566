/* SPDX-License-Identifier: MIT */
/* One safetensors file: opened strictly, its tensors listed, read by preadv. Used for checkpoint shards and
 * for any other file in the container (evaluation outputs). A GGUF file becomes the same (ggufile.h).
 *
 *     struct st_file *f;
 *     r = st_open(&f, "golden.safetensors", NULL, &err);
 *     t = st_find(f, "count.ids");
 *     if (t && t->dtype == ST_I32)
 *         r = st_read(f, t, 0, buf, t->bytes, &err);
 *     f = st_close(f);
 *
 * Opening and closing belong to one thread; the rest may be called from any thread at once. */
#ifndef GLMD_SAFETENSORS_H
#define GLMD_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "xerr.h"

enum {
    ST_MAX_DIMS = 8,
    ST_MAX_HEADER_BYTES = 100000000,
};

enum st_dtype {
    ST_BOOL = 1,
    ST_U8,
    ST_I8,
    ST_F8_E5M2,
    ST_F8_E4M3,
    ST_F8_E8M0,
    ST_F8_E4M3FNUZ,
    ST_F8_E5M2FNUZ,
    ST_F4,
    ST_F6_E2M3,
    ST_F6_E3M2,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_I64,
    ST_U64,
    ST_F64,
    ST_C64,
    /* only in GGUF files: blocks along the last dimension, of no whole number of bits a weight */
    ST_GGUF_Q8_0,
    ST_GGUF_Q2_K,
    ST_GGUF_Q3_K,
    ST_GGUF_Q4_K,
    ST_GGUF_Q5_K,
    ST_GGUF_Q6_K,
    ST_GGUF_IQ1_S,
    ST_GGUF_IQ1_M,
    ST_GGUF_IQ2_XXS,
    ST_GGUF_IQ2_XS,
    ST_GGUF_IQ2_S,
    ST_GGUF_IQ3_XXS,
    ST_GGUF_IQ3_S,
    ST_GGUF_IQ4_NL,
    ST_GGUF_IQ4_XS,
    ST_GGUF_MXFP4,
    ST_GGUF_NVFP4,
};

/* The bytes are [offset, offset + bytes) of the file, known to lie inside it when it was opened. offset has
 * no alignment beyond chance: copy before use. */
struct st_tensor {
    const char *name; /* UTF-8, no NUL inside; lives as long as the file */
    uint64_t offset, bytes;
    enum st_dtype dtype;
    uint32_t n_dims; /* 0 = scalar, one element */
    uint64_t shape[ST_MAX_DIMS];
};

/* Replaces preadv, so that tests (and other ways of reading) can stand in. Same contract as preadv. */
struct st_io {
    ssize_t (*readv_at)(void *ctx, int fd, const struct iovec *iov, int n_iov, off_t at);
    void *ctx;
};

struct st_file;

/* io NULL: preadv; else it is copied. -EBADMSG: the container is malformed (the message says how, with file
 * and tensor), -EINVAL: not a regular file, else the errno of the file system. */
int st_open(struct st_file **ret, const char *path, const struct st_io *io, struct xerr *e);
struct st_file *st_close(struct st_file *f); /* NULL ok; returns NULL */

const char *st_path(const struct st_file *f);
uint64_t st_data_bytes(const struct st_file *f); /* sum of all tensors */

/* Tensors in ascending order of name. */
size_t st_count(const struct st_file *f);
const struct st_tensor *st_at(const struct st_file *f, size_t i);
const struct st_tensor *st_find(const struct st_file *f, const char *name); /* NULL: none */

/* Bytes [offset, offset + n) of the tensor, all or -EIO (also when the file has shrunk) or -ERANGE. */
int st_read(const struct st_file *f, const struct st_tensor *t, uint64_t offset, void *buf, uint64_t n,
            struct xerr *e);
/* Consecutive bytes of the file from `at` on, scattered over iov (its entries are used up). Same errors. */
int st_readv(const struct st_file *f, uint64_t at, struct iovec *iov, int n_iov, struct xerr *e);
/* 0 while size and modification time are those st_open saw, -ESTALE otherwise. */
int st_unchanged(const struct st_file *f, struct xerr *e);

const char *st_dtype_name(enum st_dtype d); /* "BF16" */
uint32_t st_dtype_bits(enum st_dtype d);    /* 0: blocks */
/* "[4096,512]"; returns buf. */
const char *st_shape_text(const struct st_tensor *t, char *buf, size_t n);

#endif
