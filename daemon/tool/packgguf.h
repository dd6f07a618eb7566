/* SPDX-License-Identifier: MIT */
/* packgguf.h: between the files that write GGUF. One thread. */
#ifndef GLMD_TOOL_PACKGGUF_H
#define GLMD_TOOL_PACKGGUF_H

#include "config.h"
#include "gguf.h"
#include "pack.h"

enum { GGML_F32 = 0, GGML_F16 = 1, GGML_BF16 = 30, GGML_NONE = 1000, GGUF_PACK_ALIGN = 32 };

/* Grows; once it failed it stays so and takes nothing more. */
struct ggbuf {
    char *p;
    size_t n, cap;
    bool failed;
};

void ggbuf_put(struct ggbuf *b, const void *bytes, size_t n);
void ggbuf_u32(struct ggbuf *b, uint32_t v);
void ggbuf_u64(struct ggbuf *b, uint64_t v);
void ggbuf_string(struct ggbuf *b, const char *s, size_t n);

/* Keys and values for this model and its tokenizer; *ret_n: how many. */
int gguf_metadata(struct ggbuf *b, const char *dir, const struct model_config *c, uint64_t *ret_n,
                  struct xerr *e);

#endif
