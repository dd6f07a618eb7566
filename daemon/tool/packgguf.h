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

/* ---- the file as it grows (packggufout.c) ---- */

struct ggout {
    struct pack_dir *d;
    char tmp[4200], path[4200];
    int fd;
    json_t *done;        /* of the record: digest, bytes before and after, squares, of every finished tensor */
    uint64_t at, saved;  /* where the next byte goes; where it went when the record was last written */
    uint64_t all;        /* bytes of all tensors */
    bool going_on;       /* every tensor so far was there */
    size_t n_kept;
};

/* Makes the file with this head, or goes on with the one that lies there. ggout_done() also after an error. */
int ggout_open(struct ggout *o, struct pack_dir *d, const struct ggbuf *head, uint64_t all, struct xerr *e);
/* Tensors in the order of the file, each with ggout_has() and, when that says 0, ggout_put(). 1: the next one is there
 * as it was written, and what it counts is added to *t. */
int ggout_has(struct ggout *o, size_t i, uint64_t bytes, uint8_t part, struct pack_totals *t, struct xerr *e);
int ggout_put(struct ggout *o, const void *bytes, uint64_t n, uint8_t part, const struct pack_totals *own,
              struct xerr *e);
/* On the disk, under its name. */
int ggout_finish(struct ggout *o, struct xerr *e);
void ggout_done(struct ggout *o);

#endif
