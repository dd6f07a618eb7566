/* SPDX-License-Identifier: MIT */
/* shard.h: which part of every tensor a rank keeps. Part of kern.h's outward face; pure functions on descriptions,
 * any thread.
 *
 * A rank's share of a model is a model itself, with fewer heads, narrower feed-forwards and fewer vocabulary rows, so
 * that a backend computes it with the code that computes the whole. Five axes are cut, each into consecutive ranges:
 *
 *   axis              rows of                                                columns of
 *   KDA heads         q, k, v, their convolutions, f_b, g_b, b, A_log, dt    o
 *   MLA heads         q_b, kv_b (k_b, v_b)                                   o
 *   dense width       gate, up                                               down
 *   expert width      gate, up of experts and shared experts                 down
 *   vocabulary        embedding, head
 *
 * Everything else (norms, hyper-connections, router, q_a, kv_a, f_a, g_a, indexer, the drafts' eh_proj) is on every
 * rank, and so are latents and pooled keys; recurrent states and convolution windows follow the KDA heads.
 *
 * A cut never divides what a format keeps together: codes that share a block (two of NVFP4, MXFP4 and INT4, 16 or 32
 * with a scale of those, GGUF's blocks, EXL3's 128) stay whole. A scale that serves more weights than a rank keeps
 * (FP8 by tensor or channel, INT8 and INT4 alike, a grid's block that holds the whole share) is kept by each of them;
 * otherwise cuts lie between scales. The ranges are as even as that allows and may differ by one block; where there
 * are fewer blocks or heads than ranks the start is refused. */
#ifndef GLMD_KERN_SHARD_H
#define GLMD_KERN_SHARD_H

#include "kern.h"

enum kern_axis {
    KERN_AXIS_NONE = 0, /* on every rank */
    KERN_AXIS_KDA,
    KERN_AXIS_MLA,
    KERN_AXIS_DENSE,
    KERN_AXIS_EXPERT,
    KERN_AXIS_VOCAB,
    KERN_AXIS_N
};

/* How each axis is cut: rank r has kern_shard_at(r) up to kern_shard_at(r + 1). */
struct kern_shard {
    uint32_t n_ranks;
    uint32_t width[KERN_AXIS_N], unit[KERN_AXIS_N]; /* heads, columns or rows in all; and what stays together */
};

/* cfg: checked but for its ranks. -EINVAL: the model cannot be cut into cfg->n_ranks; err says which tensor, its
 * format and width, and what to do. */
int kern_shard_plan(const struct kern_config *cfg, struct kern_shard *ret, char *err, size_t err_len);
uint32_t kern_shard_at(const struct kern_shard *s, enum kern_axis axis, uint32_t rank);
/* The most that any rank has of an axis. */
uint32_t kern_shard_most(const struct kern_shard *s, enum kern_axis axis);
/* The rank that has head, column or row i. */
uint32_t kern_shard_owner(const struct kern_shard *s, enum kern_axis axis, uint32_t i);
/* A rank's share of the model, to compute like any other. */
void kern_shard_model(const struct kern_model_desc *whole, const struct kern_shard *s, uint32_t rank,
                      struct kern_model_desc *ret);

/* What a rank keeps of one piece: `rows` of the piece's rows from row0 on, of each `bytes` from at on. */
struct kern_cut {
    uint64_t row_bytes; /* of the whole piece */
    uint64_t row0, rows, at, bytes;
};
/* store: the whole tensor's. -ENOENT: no such tensor or piece. */
int kern_shard_piece(const struct kern_model_desc *whole, const struct kern_shard *s, uint32_t rank,
                     const struct kern_tensor_id *id, const struct kern_store *store, struct kern_cut *ret);
/* The next run of bytes that is kept, in [offset, end) of the piece: where it begins there, and in what the rank keeps.
 * Returns its length; 0: no more. A loader reads these and no others. */
uint64_t kern_cut_next(const struct kern_cut *c, uint64_t offset, uint64_t end, uint64_t *ret_from, uint64_t *ret_to);

#endif
