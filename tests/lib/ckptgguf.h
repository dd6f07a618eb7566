/* SPDX-License-Identifier: MIT */
/* GGUF files for tests: metadata and tensors put together piece by piece, and whole models in that form, made
 * from the tensors of a checkpoint. Code of its own: nothing of the daemon's. Every failure fails the running
 * Check test. */
#ifndef GLMD_TEST_CKPTGGUF_H
#define GLMD_TEST_CKPTGGUF_H

#include "ckptset.h"

struct ckpt_buf {
    unsigned char *p;
    size_t n, cap;
};
void ckpt_buf_put(struct ckpt_buf *b, const void *bytes, size_t n);

struct ckpt_gguf_tensor {
    char name[80];
    uint32_t type, n_dims;
    uint64_t ne[4];
    unsigned char *bytes;
    size_t n;
};

struct ckpt_gguf {
    uint32_t version;
    uint32_t alignment; /* used for places; written only by whoever puts the key */
    uint64_t n_keys;
    struct ckpt_buf kv;
    struct ckpt_gguf_tensor *t;
    size_t n_t, cap_t;
};

void ckpt_gguf_init(struct ckpt_gguf *g);
void ckpt_gguf_done(struct ckpt_gguf *g);
void ckpt_gguf_uint(struct ckpt_gguf *g, const char *key, uint32_t v);
void ckpt_gguf_u16(struct ckpt_gguf *g, const char *key, unsigned v);
void ckpt_gguf_i32(struct ckpt_gguf *g, const char *key, int32_t v);
void ckpt_gguf_real(struct ckpt_gguf *g, const char *key, float v);
void ckpt_gguf_bool(struct ckpt_gguf *g, const char *key, int v);
void ckpt_gguf_text(struct ckpt_gguf *g, const char *key, const char *v);
void ckpt_gguf_uints(struct ckpt_gguf *g, const char *key, const uint32_t *v, uint64_t n);
void ckpt_gguf_i32s(struct ckpt_gguf *g, const char *key, const int32_t *v, uint64_t n);
void ckpt_gguf_reals(struct ckpt_gguf *g, const char *key, const float *v, uint64_t n);
void ckpt_gguf_texts(struct ckpt_gguf *g, const char *key, const char *const *v, uint64_t n);
/* ne: the fastest first, as in the file. bytes are copied, zeros when NULL. */
struct ckpt_gguf_tensor *ckpt_gguf_put(struct ckpt_gguf *g, const char *name, uint32_t type,
                                       const void *bytes, size_t n, uint32_t n_dims, ...);
struct ckpt_gguf_tensor *ckpt_gguf_find(struct ckpt_gguf *g, const char *name);
void ckpt_gguf_drop(struct ckpt_gguf *g, const char *name);
/* The whole file; free() it. Tensors from..to, or all with to = SIZE_MAX. */
unsigned char *ckpt_gguf_bytes(const struct ckpt_gguf *g, size_t from, size_t to, size_t *ret_n);
void ckpt_gguf_write(const struct ckpt_gguf *g, const struct ckpt *c, const char *file);

/* ckptggufmodel.c: a checkpoint of Hugging Face's layout as the GGUF converters write it: norms and vectors
 * in F32, matrices in BF16, experts stacked, kv_b in two, A_log as -exp. config: its config.json. */
void ckpt_gguf_model(struct ckpt_gguf *g, struct ckpt_set *s, json_t *config);
/* The tokenizer of tokenizer.json as metadata. */
void ckpt_gguf_tokenizer(struct ckpt_gguf *g, json_t *tokenizer, json_t *config);

/* ckptblocks.c: block types by code of the tests' own. */
struct ckpt_block {
    const char *name;
    uint32_t type, numbers, bytes;
};
extern const struct ckpt_block CKPT_BLOCKS[];
extern const size_t CKPT_N_BLOCKS;
void ckpt_block_write(const struct ckpt_block *b, const float *x, unsigned char *p);
void ckpt_block_read(const struct ckpt_block *b, const unsigned char *p, float *ret);
/* BF16 matrices of g whose names contain `part`, but none of hyper-connections, become blocks; the same ones of
 * `plain`, a copy of g, the F32 that those blocks mean. Returns how many. */
size_t ckpt_gguf_spell(struct ckpt_gguf *g, struct ckpt_gguf *plain, const char *part,
                       const struct ckpt_block *b);

#endif
