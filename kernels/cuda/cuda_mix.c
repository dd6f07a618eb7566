/* SPDX-License-Identifier: MIT */
/* cuda_mix.c: widths of what KDA, MLA and the indexer keep of a row between their kernels, and the shapes those kernels
 * can take. Pure arithmetic over a checked configuration. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "cuda_dev.h"

enum {
    MAX_SPLITS = 64,        /* of a row's list; partial sums of all of them are kept */
    MAX_KDA_DIM = 128,      /* a head's state lies in the registers of one block */
    MAX_LATENT = 2048,      /* a head group's queries lie in shared memory: 16 x 2 bytes a number */
    MAX_ROPE = 128,         /* frequencies are arguments of the kernels */
    MAX_INDEX_WORK = 32768, /* index heads x width: a row's queries as BF16 in shared memory */
};

static int refuse(char *err, size_t err_len, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int refuse(char *err, size_t err_len, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err, err_len, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static uint32_t pad(uint32_t n, uint32_t to) {
    return (n + to - 1) / to * to;
}
static uint32_t take(uint32_t *at, uint32_t n, uint32_t to) {
    uint32_t r = *at;
    *at += pad(n, to);
    return r;
}

static int check(const struct cuda_dims *d, char *err, size_t err_len) {
    const struct {
        const char *name;
        uint64_t value, most;
    } limit[] = {
        {"kda_dim", d->kda_dim, MAX_KDA_DIM},
        {"kv_rank and rope_dim together", (uint64_t)d->kv_rank + d->rope, MAX_LATENT},
        {"rope_dim", d->rope, MAX_ROPE},
        {"index_heads times index_dim", (uint64_t)pad(d->index_heads, 8) * pad(d->index_dim, 32), MAX_INDEX_WORK},
    };
    for (size_t i = 0; i < sizeof(limit) / sizeof(limit[0]); i++)
        if (limit[i].value > limit[i].most)
            return refuse(err, err_len, "%s: found %llu, but backend cuda computes at most %llu", limit[i].name,
                          (unsigned long long)limit[i].value, (unsigned long long)limit[i].most);
    return 0;
}

/* Positions that a row attends to at most. */
static uint32_t longest(const struct kern_config *cfg, const struct cuda_dims *d) {
    const struct kern_model_desc *m = &cfg->model;
    uint32_t most = 0;
    for (uint32_t l = 0; l < m->n_layers + m->n_draft; l++) {
        uint32_t n = cfg->max_context;
        if (m->layer[l].mix != KERN_MIX_MLA)
            continue;
        if (m->layer[l].index != KERN_INDEX_NONE) {
            uint64_t chosen = (uint64_t)d->sel_pools * d->index_kpool + d->index_kpool - 1;
            n = chosen < n ? (uint32_t)chosen : n;
        }
        most = n > most ? n : most;
    }
    return most;
}

int cuda_mix_shape(const struct kern_config *cfg, const struct cuda_dims *d, struct cuda_mix *ret, char *err,
                   size_t err_len) {
    struct cuda_mix x = {0};
    uint32_t kda = 0, mla = 0;
    int r = check(d, err, err_len);
    if (r)
        return r;
    x.z.q = take(&kda, d->kda_p, CUDA_PAD_N);
    x.z.k = take(&kda, d->kda_p, CUDA_PAD_N);
    x.z.v = take(&kda, d->kda_p, CUDA_PAD_N);
    x.z.fa = take(&kda, d->kda_dim, CUDA_PAD_N);
    x.z.ga = take(&kda, d->kda_dim, CUDA_PAD_N);
    x.z.b = take(&kda, d->kda_heads, CUDA_PAD_N);
    x.z.qa = take(&mla, d->q_rank, CUDA_PAD_N);
    x.z.kva = take(&mla, d->kv_rank + d->rope, CUDA_PAD_N);
    x.z.key = take(&mla, d->index_dim, CUDA_PAD_N);
    x.z.gate = take(&mla, d->index_dim, CUDA_PAD_N);
    x.z.w = take(&mla, d->index_heads, CUDA_PAD_N);
    x.z.ld = kda > mla ? kda : mla;

    x.mid.fa = take(&x.mid.ld, d->kda_dim, CUDA_PAD_K);
    x.mid.ga = take(&x.mid.ld, d->kda_dim, CUDA_PAD_K);
    x.mid.o = take(&x.mid.ld, d->kda_p, CUDA_PAD_K);
    x.mid.cq = take(&x.mid.ld, d->q_rank, CUDA_PAD_K);
    x.mid.attn = take(&x.mid.ld, d->mla_heads * d->v_dim, CUDA_PAD_K);
    x.mid.dense = take(&x.mid.ld, d->dense_width, CUDA_PAD_K);
    x.mid.shared = take(&x.mid.ld, d->shared_width, CUDA_PAD_K);
    x.mid.eh = take(&x.mid.ld, cfg->model.n_draft ? 2 * d->hidden : 0, CUDA_PAD_K);

    mla = pad(d->mla_heads * (d->nope + d->rope) + d->index_heads * d->index_dim, CUDA_PAD_N);
    x.wide_ld = mla > 2 * d->kda_p ? mla : pad(2 * d->kda_p, CUDA_PAD_N);

    const uint32_t tiles = (longest(cfg, d) + CUDA_ATTN_TILE - 1) / CUDA_ATTN_TILE;
    x.attn_tile = CUDA_ATTN_TILE * ((tiles + MAX_SPLITS - 1) / MAX_SPLITS);
    x.attn_splits = x.attn_tile ? (tiles * CUDA_ATTN_TILE + x.attn_tile - 1) / x.attn_tile : 0;
    *ret = x;
    return 0;
}
