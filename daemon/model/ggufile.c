/* SPDX-License-Identifier: MIT */
/* Opens a GGUF file and lists its tensors as struct st_tensor. Loading thread; never logs. */
#include "ggufile.h"

#include <errno.h>
#include <stdlib.h>

#include "show.h"
#include "stfile.h"

static int read_header(void *ctx, uint64_t at, void *buf, uint64_t n) {
    return stfile_read(ctx, at, buf, n);
}

static enum st_dtype dtype_of(uint32_t ggml) {
    switch (ggml) {
    case 0:
        return ST_F32;
    case 1:
        return ST_F16;
    case 30:
        return ST_BF16;
    case 8:
        return ST_GGUF_Q8_0;
    case 10:
        return ST_GGUF_Q2_K;
    case 11:
        return ST_GGUF_Q3_K;
    case 12:
        return ST_GGUF_Q4_K;
    case 13:
        return ST_GGUF_Q5_K;
    case 14:
        return ST_GGUF_Q6_K;
    case 16:
        return ST_GGUF_IQ2_XXS;
    case 17:
        return ST_GGUF_IQ2_XS;
    case 18:
        return ST_GGUF_IQ3_XXS;
    case 19:
        return ST_GGUF_IQ1_S;
    case 20:
        return ST_GGUF_IQ4_NL;
    case 21:
        return ST_GGUF_IQ3_S;
    case 22:
        return ST_GGUF_IQ2_S;
    case 23:
        return ST_GGUF_IQ4_XS;
    case 29:
        return ST_GGUF_IQ1_M;
    case 39:
        return ST_GGUF_MXFP4;
    default:
        return ST_GGUF_NVFP4; /* 40: the header has refused all others */
    }
}

int st_open_gguf(struct st_file **ret, const char *path, const struct st_io *io, struct xerr *e) {
    struct st_file *f;
    struct show p;
    int r = stfile_open(&f, path, io, e);

    if (r < 0)
        return r;
    show_path(&p, path);
    r = gguf_read(read_header, f, (uint64_t)f->opened.st_size, p.s, &f->gguf, e);
    if (r == 0) {
        f->n_t = gguf_tensors(f->gguf);
        f->t = calloc(f->n_t ? f->n_t : 1, sizeof *f->t);
        if (!f->t)
            r = xerr_set(e, -ENOMEM, "%s: no memory for %zu tensors", p.s, f->n_t);
    }
    if (r < 0) {
        st_close(f);
        return r;
    }
    for (size_t i = 0; i < f->n_t; i++) {
        const struct gguf_tensor *g = gguf_tensor_at(f->gguf, i);
        struct st_tensor *t = &f->t[i];

        *t = (struct st_tensor){.name = g->name,
                                .offset = g->offset,
                                .bytes = g->bytes,
                                .dtype = dtype_of(g->type),
                                .n_dims = g->n_dims};
        for (uint32_t d = 0; d < g->n_dims; d++)
            t->shape[d] = g->ne[g->n_dims - 1 - d];
        f->data_bytes += t->bytes;
    }
    *ret = f;
    return 0;
}

const struct gguf *st_gguf(const struct st_file *f) {
    return f->gguf;
}
