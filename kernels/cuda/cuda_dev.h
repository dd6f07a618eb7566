/* SPDX-License-Identifier: MIT */
/* cuda_dev.h: what the host half (C) and the device half (CUDA C++) of the backend share: where everything lies, the
 * tables of a step, and the launch functions of the stages. Plain structs, passed to kernels by value or read in device
 * memory; no pointer in here belongs to the host unless it says so.
 *
 * Numbers. Weights stay packed in device memory and are widened in registers, one fragment at a time. All products of
 * weights are mma.m16n8k16 with the weights as A (16 outputs) and the rows of the step as B (8 rows); one row and
 * sixteen take the same instructions, and where the sum over k is cut depends on the matrix's shape alone, so that a
 * row's bits depend on nothing beside it. Activations enter them as BF16 (EXL3: F16 after its Hadamard transform) and
 * leave as F32. F32 throughout: streams, mHC, router, index head weights, KDA state and gates, norms, softmax.
 *
 * Rows. A stage runs over the rows of a table (struct cuda_rows): all of the plan's, or those of the draft layers.
 * Buffers [rows] below are indexed by the table's row, except where they say plan row. Widths are padded: inputs of
 * products to CUDA_PAD_K numbers, outputs to 16; paddings of inputs are zero from kern_open() on and nobody writes
 * them. */
#ifndef GLMD_CUDA_DEV_H
#define GLMD_CUDA_DEV_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kern.h"

enum {
    CUDA_PAD_N = 16,  /* outputs of a tile */
    CUDA_PAD_K = 64,  /* inputs of a lane's 16 bytes of four-bit codes */
    CUDA_GROUP = 16,  /* rows of one pass over the weights */
    CUDA_MAX_GROUP_MATS = 8,
    CUDA_HC_SLICE = 32,   /* columns of one partial sum of the streams' products */
    CUDA_ATTN_TILE = 128, /* selected positions of one split of the attention, on the list's own grid */
    CUDA_HIST = 2048 + 32, /* words: counts of scores by their first bits, then counters */
};

/* ---- weights -------------------------------------------------------------------------------------------- */

/* A matrix, or the same part of all experts of a layer, as products read it. Offsets are bytes into the weights; the
 * order of bytes inside is cuda_tile.h's. n == 0: the layer has no such matrix. */
struct cuda_mat {
    uint64_t codes;      /* tiles of 16 outputs: [n_pad / 16][k_pad / 64][..] */
    uint64_t scale;      /* in the order the tiles are read; 0: none */
    uint64_t global;     /* F32; 0: none */
    uint64_t suh, svh;   /* EXL3: F16 [k], [n] */
    uint64_t stride;     /* bytes from an expert to the next; all five move together */
    struct kern_store store;
    uint32_t n, k;       /* as the model has them */
    uint32_t n_pad, k_pad;
    uint32_t transposed; /* kv_b's key half, read as [kv_rank, nope] a head: see cuda_tile.h */
    uint32_t heads;      /* matrices [n, k] behind each other, one a head (kv_b's halves); otherwise 1 */
    uint64_t bytes;      /* of one expert, all pieces, as the format counts them (kern_store_bytes) */
};

/* Vectors: byte offsets of F32 numbers; matrices that choose (router, mHC's fn, index head weights) also lie as plain
 * rows [n][k] in their store's format (F32, BF16, F16; other stores of idx_w are products like any). */
struct cuda_layer {
    uint64_t in_norm, post_norm;
    uint64_t hc_fn[2], hc_base[2], hc_scale[2];
    uint32_t hc_format[2]; /* enum kern_format of fn */
    /* KDA */
    struct cuda_mat q, k, v, fa, ga, fb, gb, b, kda_o;
    uint64_t conv; /* [3P][conv_width]: q, k, v */
    uint64_t a_log, dt_bias, o_norm;
    /* MLA and indexer */
    struct cuda_mat qa, kva, qb, uk, uv, mla_o; /* uk, uv: a head's [kv_rank, nope] and [v, kv_rank] */
    uint64_t qa_norm, kva_norm;
    struct cuda_mat idx_qb, idx_k, idx_gate, idx_w; /* idx_w as F32, BF16 or F16: codes are plain rows [n][k] */
    uint64_t knorm_w, knorm_b, ape; /* ape: [kpool][index_dim] */
    /* feed-forward; shared: gate, up, down of the shared expert, or of the dense layer */
    struct cuda_mat gate, up, down;
    struct cuda_mat exp_gate, exp_up, exp_down;
    uint64_t router, router_bias;
    uint32_t router_format;
    /* draft layer */
    uint64_t enorm, hnorm, draft_norm;
    struct cuda_mat eh;
    /* state */
    uint64_t state, window; /* bytes into a slot: [heads][key][value] F32; [conv_width - 1][3P] F32, oldest first */
    uint64_t pend;          /* bytes into a slot: KERN_MAX_WINDOW rows of cuda_dims.pend_row floats */
    uint64_t ring;          /* bytes into a slot: [KERN_TAIL_RING][key | gate][index_dim] F32 */
    uint64_t latents, keys; /* bytes into a page: [256] rows of latent_bytes; [256 / kpool] rows of key_bytes */
};

/* ---- shapes --------------------------------------------------------------------------------------------- */

/* Of this rank's share, numbers without paddings unless named _pad. Passed to kernels by value. */
struct cuda_dims {
    uint32_t hidden, hidden_pad; /* hidden_pad: multiple of CUDA_PAD_K */
    uint32_t hc, hc_rows, hc_iters;
    float hc_eps, rms_eps;
    uint32_t kda_heads, kda_dim, kda_p, conv_width; /* kda_p = heads x dim */
    float gate_bound;
    uint32_t pend_row; /* floats: raw q|k|v 3P, key P, value P, log decay P, beta heads, to a multiple of 4 */
    uint32_t mla_heads, q_rank, kv_rank, nope, rope, v_dim;
    float rope_theta;
    uint32_t index_heads, index_dim, index_kpool, sel_pools; /* sel_pools: pools a row selects at most */
    uint32_t max_pools; /* of one sequence */
    uint32_t dense_width, expert_width, shared_width, n_experts, n_top, n_shared;
    float routed_scale, swiglu_limit;
    uint32_t vocab_rows, vocab_tokens; /* of the whole model */
    uint32_t own_vocab;                /* this rank's rows of embedding and head */
    uint32_t cache;                    /* enum kern_cache */
    uint32_t latent_bytes, key_bytes, rope_at; /* host_latent_bytes(), host_key_bytes(), host_rope_at() */
    uint64_t page_bytes, slot_bytes, slot_committed; /* strides; committed: without the pending rows */
};

/* ---- a step --------------------------------------------------------------------------------------------- */

struct cuda_seq {
    uint32_t slot, row0, n_rows, pos0; /* row0: in the table this sequence belongs to */
    uint32_t keep, flags;              /* enum kern_seq_flags */
    uint32_t page0, n_pages;           /* slice of the step's page table */
};

struct cuda_row {
    uint32_t plan_row, seq; /* seq: index into the table's sequences */
    uint32_t pos;
    uint32_t token; /* trunk: the row's token; draft: the next one. May be KERN_TOKEN_LAST */
    uint32_t embed; /* row of the embeddings area, or KERN_NONE */
    uint32_t zero[3];
};

/* Built by the host at kern_plan_load() beside the plan, uploaded with it; offsets are bytes from this header. */
struct cuda_step {
    uint32_t n_rows[2], n_seqs[2]; /* trunk, draft */
    uint32_t rows[2], seqs[2];     /* struct cuda_row, struct cuda_seq */
    uint32_t pages;                /* uint32_t[] */
    uint32_t plan;                 /* the struct kern_plan itself, for samples and what they refer to */
    uint32_t n_samples[2];         /* by source */
    uint32_t samples[2];           /* uint32_t[]: the plan's entries of a source, in plan order */
    uint32_t bytes;
    uint32_t zero;
};

/* Written by the device, read by the host after it waited. Lies in pinned host memory. */
struct cuda_report {
    uint64_t experts;     /* distinct experts touched, summed over layers */
    uint64_t latent_rows, pooled_keys; /* read, summed over rows and layers */
    uint32_t zero[2];
};

/* ---- a lane's work memory ------------------------------------------------------------------------------- */

/* Device pointers. R: the lane's max_rows; G: at most CUDA_GROUP of them, which the stage takes one group of rows
 * after another through. */
struct cuda_lane {
    struct cuda_step *step; /* header and tables of the loaded plan */
    struct cuda_report *report;  /* device view of pinned memory */
    struct kern_result *results; /* device view of the lane's result block: [max_samples] */
    float *streams;   /* [R][hc][hidden]; of the plan's rows */
    float *plain;     /* [R][hidden] the draft layer's one stream */
    float *hidden_f;  /* [R][hidden] after the final norm; plan rows */
    float *draft_f;   /* [R][hidden] after the draft norm; plan rows */
    float *u_f;       /* [R][hidden] normalised input of the sub-layer, F32: router and index head weights */
    uint16_t *u;      /* [R][hidden_pad] the same as BF16 */
    float *hc_part;   /* [R][hc_rows + hc * (hc + 1) / 2][hc_splits] partial products and Gram matrix of the streams */
    float *post, *comb; /* [R][hc], [R][hc][hc] source, destination */
    float *y;         /* [R][y_parts][hidden]: what site_out adds up, in order; y_parts is n_top + 1 in MoE layers */
    float *z;         /* [R][z_ld] raw products of the layer's input, see struct cuda_z */
    uint16_t *mid;    /* [R][mid_ld] BF16: products' inputs made inside a mixer or feed-forward, see struct cuda_mid */
    float *wide;      /* [R][wide_ld] F32 products of mid: MLA q | index q; KDA fb's | gb's */
    float *qa;        /* [R][mla_heads][kv_rank + rope] absorbed queries */
    uint16_t *q16;    /* [R][mla_heads][nope_pad] BF16 queries for the absorbing product */
    float *attn_part; /* [G][attn_splits][mla_heads * (kv_rank + 2)]: all heads' sums, then their maxima and weights */
    uint16_t *ctx;    /* [R][mla_heads][kv_pad] BF16: attended latents */
    float *omega;     /* [R][index_heads] */
    float *scores;    /* [G][max_pools] */
    uint32_t *cand;   /* [G][max_pools] pools that the last choice is among */
    uint32_t *hist;   /* [G][CUDA_HIST]; zero between steps */
    uint32_t *sel, *n_sel; /* [R][sel_pools] ascending, [R]: KERN_NONE: everything the row may see */
    float *router;    /* [R][n_experts] scores (sigmoid) */
    uint32_t *top_id; /* [R][n_top] ascending */
    float *top_w;     /* [R][n_top] */
    uint32_t *items;  /* [1 + 3 * R * n_top] n, then per item: expert, first, rows; see item_rows */
    uint32_t *item_rows; /* [R * n_top] entries row * n_top + place, grouped by expert, ascending */
    uint16_t *act;    /* [R * n_top][expert_pad] BF16: activations of the routed experts, by entry */
    uint16_t *had;    /* cuda_around_room(): EXL3's transformed inputs, F16 */
    float *had_out;   /* cuda_around_room(): products before the transform of outputs, or before the gate */
    uint16_t *head_in; /* [max_samples][hidden_pad] BF16 */
    float *logits;    /* [max_samples][vocab_rows]; by plan sample */
    void *sampling;   /* [max_samples] x cuda_sample_scratch() */
};

/* Columns of mid, each with its paddings, so that nobody writes another's. */
struct cuda_mid {
    uint32_t ld;
    uint32_t fa, ga, o;    /* KDA */
    uint32_t cq, attn;     /* MLA */
    uint32_t dense, shared; /* feed-forward: the dense layers', the shared experts' */
    uint32_t eh;           /* draft layer: the next token's embedding, then the trunk's hidden */
};

/* Columns of z. */
struct cuda_z {
    uint32_t ld;
    uint32_t q, k, v, fa, ga, b;      /* KDA */
    uint32_t qa, kva, key, gate, w;   /* MLA: w only where idx_w is no plain matrix */
};

/* What every launch function is handed. Host memory; kernels get parts of it by value. */
struct cuda_run {
    cudaStream_t stream; /* being captured, or not */
    const char *weights; /* device */
    char *slots, *pages; /* device */
    uint32_t *last;      /* device: [n_slots] token last drawn, KERN_NONE */
    const struct cuda_dims *d;
    const struct cuda_z *z;
    const struct cuda_mid *mid;
    const struct cuda_lane *lane;
    const struct cuda_layer *layer; /* of the stage, NULL for those of the ends */
    const struct kern_layer_desc *desc;
    uint32_t is_draft;  /* which table: 0 trunk, 1 draft */
    uint32_t rows;      /* bound of this graph's class: the launch is made for so many rows; kernels read the number.
                         * Bounds the samples of each source, too. */
    uint32_t max_rows, max_samples, attn_splits, hc_splits, y_parts, wide_ld;
    uint32_t attn_tile; /* list entries of a split; a multiple of CUDA_ATTN_TILE */
};

/* ---- stages: device side -------------------------------------------------------------------------------- */
/* Each enqueues its kernels on run->stream; the CUDA error of the first that failed, cudaSuccess otherwise. No
 * allocation, no synchronisation; all may be captured. */

/* cuda_site.cu, cuda_ends.cu */
cudaError_t cuda_embed(const struct cuda_run *r, uint64_t table, const struct kern_store *store, uint64_t scale,
                       uint64_t global);
cudaError_t cuda_site_in(const struct cuda_run *r, uint32_t site, int partials_done);
/* fn of the next site, when the caller knows that site_in of it follows at once: its partial products are made here. */
cudaError_t cuda_site_out(const struct cuda_run *r, uint32_t y_parts, const struct cuda_layer *next,
                          uint32_t next_site);
cudaError_t cuda_final(const struct cuda_run *r, uint64_t norm);
cudaError_t cuda_draft_in(const struct cuda_run *r, uint64_t table, const struct kern_store *store, uint64_t scale,
                          uint64_t global);
cudaError_t cuda_draft_out(const struct cuda_run *r);
/* n numbers whose upper half is an F16 become F32 in place: vectors that came as F16. */
cudaError_t cuda_widen_halves(cudaStream_t s, float *at, uint64_t n);

/* cuda_prod.cu and its instantiations. One product: out[row][out_at + i] for the rows of the table. */
struct cuda_prod {
    const struct cuda_mat *m;
    const uint16_t *x; /* BF16 [rows][ldx]; with heads: head h reads columns h * head_ldx .. */
    uint32_t ldx, head_ldx;
    float *out;
    uint32_t ldo, out_at;
    uint32_t head_ldo; /* with heads: numbers from a head's outputs to the next one's; 0: n */
    uint16_t *out16;   /* not NULL: outputs go here as BF16, and not to out; same ldo, out_at, head_ldo */
    const uint32_t *count; /* device: how many rows; NULL: the table's */
    const uint32_t *place; /* device: the row of out that each row goes to; NULL: the same */
};
/* Several products of the same rows; those of one format share a launch. */
cudaError_t cuda_products(const struct cuda_run *r, const struct cuda_prod *p, uint32_t n);
/* Bytes of had and had_out for a lane of so many rows. had: where a matrix is EXL3; had_out: there, and where a gate
 * and what it multiplies are stored differently. */
void cuda_around_room(const struct cuda_dims *d, uint64_t rows, uint64_t *ret_had, uint64_t *ret_raw);
/* act[row][i] = silu(min(gate x, limit)) * clamp(up x) as BF16 */
cudaError_t cuda_gate_up(const struct cuda_run *r, const struct cuda_mat *gate, const struct cuda_mat *up,
                         const uint16_t *x, uint32_t ldx, uint16_t *act, uint32_t ld_act);

/* cuda_moe.cu: router, top-k, grouping, experts, shared expert; y parts 0 .. n_top-1 ascending by expert id with
 * weights applied, part n_top the shared expert's. */
cudaError_t cuda_moe(const struct cuda_run *r);
cudaError_t cuda_dense(const struct cuda_run *r); /* y part 0 */

/* cuda_mix.c: columns of z, mid and wide, and how the attention is cut. -EINVAL and a sentence: a shape that KDA, MLA
 * or indexer cannot take. */
struct cuda_mix {
    struct cuda_z z;
    struct cuda_mid mid;
    uint32_t wide_ld, attn_splits, attn_tile;
};
int cuda_mix_shape(const struct kern_config *cfg, const struct cuda_dims *d, struct cuda_mix *ret, char *err,
                   size_t err_len);

/* cuda_kda.cu, cuda_mla.cu, cuda_index.cu: y part 0 */
cudaError_t cuda_kda(const struct cuda_run *r);
cudaError_t cuda_mla(const struct cuda_run *r);
/* After the index queries were made and this step's pools written: scores, selection. */
cudaError_t cuda_index(const struct cuda_run *r);

/* cuda_head.cu, cuda_sample.cu */
cudaError_t cuda_head(const struct cuda_run *r, const struct cuda_mat *head, uint32_t source);
cudaError_t cuda_sample(const struct cuda_run *r, uint32_t source);
uint64_t cuda_sample_scratch(uint32_t vocab_rows);

/* cuda_tile.cu: n bytes of a piece, lying at `from` (device), go to their places. offset: of the piece. For a matrix
 * cut among heads (kv_b) both halves are written, one call each. */
struct cuda_dest {
    struct cuda_mat m;
    uint64_t rows, cols;     /* of the tensor this piece belongs to, as stored */
    uint32_t piece;          /* enum kern_piece */
    uint32_t expert;
    uint32_t kvb_nope, kvb_v; /* kv_b: m is uk (transposed) or uv; rows of the other half are skipped */
};
cudaError_t cuda_scatter(cudaStream_t s, char *weights, const struct cuda_dest *d, uint64_t offset, const uint8_t *from,
                         uint64_t n);
/* Where the pieces of a matrix [n, k] lie from its beginning on, and what it takes, paddings included. ret comes with
 * heads and transposed set (n, k: of one head, as it is read). Host arithmetic. -EINVAL: a store no product reads. */
int cuda_mat_layout(const struct kern_store *s, uint32_t n, uint32_t k, struct cuda_mat *ret, uint64_t *ret_bytes);

#ifdef __cplusplus
}
#endif
#endif
