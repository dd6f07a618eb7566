/* SPDX-License-Identifier: MIT */
/* cpu_ops.h: the arithmetic of the CPU backend as a table of functions, one table per instruction set.
 *
 * Every table computes the same bits: all code is written over vectors of 16 floats (cpu_body.h) whose
 * operations are IEEE single operations with the same order on every machine, so a table is chosen for speed
 * alone. A product's element is one chain of fused multiply-adds over blocks of CPU_KB inputs, the block sums
 * added in order: it depends on the weight's shape only, never on how many rows or threads there are.
 *
 * Rows of activations are padded to 16 floats with zeros and every array handed in is 64-byte aligned. */
#ifndef GLMD_CPU_OPS_H
#define GLMD_CPU_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "format.h"

enum {
    CPU_KB = 256,       /* inputs in one accumulation chain */
    CPU_ROW_BLOCK = 64, /* rows of one sequence a KDA head works on at a time */
    CPU_KEY_TILE = 32,  /* latent rows of one softmax step */
    CPU_HEAD_BLOCK = 4, /* query heads that share a gathered key */
    CPU_MAX_CONV = 16,
    /* Floats of scratch of a product with stored weights: unpacked tiles, blocks that begin before them, sums. */
    CPU_PACKED_TILE = 4096,
    CPU_PACKED_BLOCK = 8192,
    CPU_PACKED_SUMS = 4096,
    CPU_PACKED_INPUTS = 8192, /* EXL3: transformed ones, and finished sums */
    CPU_PACKED_ROOM = CPU_PACKED_TILE + CPU_PACKED_BLOCK + CPU_PACKED_SUMS + CPU_PACKED_INPUTS + CPU_PACKED_SUMS,
};

/* A stored matrix as it lies in memory, offsets from the weights. Panels of 16 outputs: of each unit of a row (a byte
 * of blocks, a code, a number) those of 16 rows side by side, scales of single rows alike; grids of scales that serve
 * several rows stay as on disk.
 * Transposed: the panels are of each head's rows all the same, and the product is with the transpose: output n is
 * column n % pad16(cols) of head n / pad16(cols). */
struct cpu_packed {
    struct kern_store s;
    uint8_t transposed, has_global;
    uint16_t scale_unit;
    uint64_t codes, scale, global, suh, svh;
    uint32_t rows, cols;           /* as stored */
    uint32_t row_bytes;            /* of codes */
    uint32_t scale_cols;           /* scales along a row */
    uint32_t k;                    /* inputs with paddings */
    uint32_t cblock, cblock_pad;   /* inputs come in blocks (heads) of so many, padded to so many */
    uint32_t rblock, rblock_pad;   /* outputs alike */
    uint32_t rstride, roff;        /* output n is row n / rblock_pad * rstride + roff + n % rblock_pad */
};

/* A KDA head of one sequence, rows in order. Strides in floats. All slices point at the head's own channels.
 */
struct cpu_kda_head {
    uint32_t n_rows, keep; /* keep: pending rows applied to the state first */
    uint32_t dim, dimp;    /* head width, and padded to 16 */
    uint32_t taps;         /* convolution width */
    int commit;            /* the state after the last row is stored; otherwise rows are left pending */
    float bound, a_log, eps;
    float q_scale; /* dim^-0.5 */

    const float *conv; /* [3][taps][...]: q, k, v taps of this head; conv_part and conv_tap strides */
    size_t conv_part, conv_tap;
    const float *dt_bias, *o_norm; /* [dimp] */
    const uint32_t *fb, *gb;       /* panels [dimp/16][dim][8]; NULL: stored otherwise */
    const struct cpu_packed *fb_stored, *gb_stored;
    const uint8_t *weights; /* of these two */
    uint32_t panel;         /* the head's first */
    float *room;            /* CPU_PACKED_ROOM floats */
    float *fb_out, *gb_out;        /* [n_rows][dimp]: their products with fa and ga; NULL: not made yet */

    const float *z; /* first row's projections */
    size_t ldz;
    size_t part;          /* distance of the q, k and v parts within a row of z, win and pend_z */
    const float *fa, *ga; /* first row's low-rank gate inputs, stride ldz */
    const float *beta;    /* first row's raw beta, stride ldz */

    float *state; /* [dimp/16][dimp][16]: value panels, key rows */
    float *win;   /* [taps - 1][ld_win] raw inputs before the committed position */
    size_t ld_win;
    float *pend_k, *pend_v, *pend_a, *pend_b, *pend_z; /* pending rows, stride ld_pend */
    size_t ld_pend;

    float *out; /* first row's output, stride ldo */
    size_t ldo;
    float *scratch; /* cpu_kda_scratch() floats */
};

static inline size_t cpu_kda_scratch(size_t dimp) {
    /* q k v a e ak per row of a block, beta, one value tile of the state */
    return CPU_ROW_BLOCK * (6 * dimp + 1) + dimp * 32 + 64;
}
/* Behind it: fb_out and gb_out of the rows of several short sequences. */
static inline size_t cpu_kda_gates(size_t dimp) {
    return 2 * CPU_ROW_BLOCK * dimp;
}

/* Attention of one row: up to CPU_HEAD_BLOCK heads over a list of selected positions. */
struct cpu_attn {
    uint32_t n_heads;
    uint32_t rank;  /* floats of a latent, padded */
    uint32_t width; /* of a key and a query: the latent, then rotary numbers, which only count in the scores */
    float scale;
    const float *q;         /* [n_heads][width] */
    float *out;             /* [n_heads][width]: the weighted mean of the latents in the first `rank`; may be q */
    float *scratch;         /* cpu_attn_scratch() floats */
    float *acc, *max, *sum; /* in scratch, between calls */
    /* Stored rows of the next tile, which the caller will want: asked for while this one is worked on. */
    const char *const *next;
    uint32_t n_next, row_bytes;
};

static inline size_t cpu_attn_scratch(size_t width) {
    return (CPU_HEAD_BLOCK + CPU_KEY_TILE) * width + CPU_HEAD_BLOCK * (CPU_KEY_TILE + 2) + 64;
}

struct cpu_ops {
    const char *isa;

    /* 16 rows of `bytes` bytes, `stride` apart, as one panel: of each unit (1, 2 or 4 bytes) those of the 16 rows side
     * by side. pairs: units of two bytes in pair order, as BF16 weights have it. dst is 16-byte aligned; the panel can
     * be seen by other threads when it returns. */
    void (*panel)(uint8_t *dst, const uint8_t *src, size_t stride, size_t bytes, uint32_t unit, int pairs);
    /* out[r][16p .. 16p+15] = panel p of w times x[r], for panels p0 .. p1-1 and all rows; rows of x are
     * taken through idx when it is given. Columns are written at out + 16 * (p - p0). */
    void (*prod)(const uint32_t *w, uint32_t k, uint32_t p0, uint32_t p1, const float *x, size_t ldx,
                 const uint32_t *idx, uint32_t rows, float *out, size_t ldo);
    /* The same with weights of another format, bit for bit what prod gives on their numbers. Panel p is written at
     * out + 16 * step * (p - p0); room: CPU_PACKED_ROOM floats. */
    void (*packed)(const struct cpu_packed *m, const uint8_t *weights, uint32_t p0, uint32_t p1, const float *x,
                   size_t ldx, const uint32_t *idx, uint32_t rows, float *out, size_t ldo, uint32_t step, float *room);
    /* out[i] = row i of w times x, rows i0 .. i1-1; k a multiple of 16. BF16 rows lie in 16-groups in pair order, F16
     * and F32 in natural order. */
    void (*dots)(const void *w, uint32_t format, uint32_t k, uint32_t i0, uint32_t i1, const float *x, float *out);
    float (*sumsq)(const float *x, uint32_t n);
    void (*axpy)(float *y, float a, const float *x, uint32_t n); /* y += a x */
    void (*rms)(float *out, const float *x, const float *w, uint32_t n, uint32_t n_real, float eps);
    void (*layer_norm)(float *out, const float *x, const float *w, const float *b, uint32_t n_real,
                       float eps);
    /* out = silu(min(gate, limit)) * clamp(up, limit); gu holds 16 gates, 16 ups, 16 gates, …; limit 0: none
     */
    void (*swiglu)(float *out, const float *gu, uint32_t n, float limit);
    void (*sigmoid)(float *out, const float *x, uint32_t n);
    void (*widen)(float *out, const uint16_t *x, uint32_t n); /* BF16 in natural order */
    void (*narrow)(uint16_t *out, const float *x, uint32_t n);
    /* An FP8 row: n codes, the factor behind them. */
    void (*widen8)(float *out, const uint8_t *x, uint32_t n);
    void (*narrow8)(uint8_t *out, const float *x, uint32_t n);

    /* mHC: mix holds the raw products, hc*(2+hc) of them; r = 1/rms of the streams. */
    void (*hc_coeff)(float *pre, float *post, float *comb, const float *mix, float r, const float *base,
                     const float *scale, uint32_t hc, uint32_t iters, float eps);
    void (*hc_collapse)(float *x, const float *streams, const float *pre, uint32_t hc, size_t ld, uint32_t n);
    void (*hc_merge)(float *streams, const float *y, const float *post, const float *comb, uint32_t hc,
                     size_t ld, uint32_t n);
    void (*mean)(float *x, const float *streams, uint32_t hc, size_t ld, uint32_t n);

    void (*kda)(const struct cpu_kda_head *h);

    void (*attn_begin)(struct cpu_attn *a);
    void (*attn_tile)(struct cpu_attn *a, const float *const *keys, uint32_t n);
    void (*attn_end)(struct cpu_attn *a);

    /* out[c] = softmax over j of (gate[j][c] + ape[j][c]), weighting key[j][c] */
    void (*pool)(float *out, const float *const *key, const float *const *gate, const float *ape,
                 size_t ld_ape, uint32_t kpool, uint32_t n);
    /* scores[i] = sum over h of omega[h] * scale * relu(q[h] . keys[i]) */
    void (*index_scores)(float *scores, const float *q, size_t ldq, const float *omega, float scale,
                         uint32_t heads, uint32_t dim, const float *const *keys, uint32_t n);
};

extern const struct cpu_ops cpu_ops_scalar, cpu_ops_avx2, cpu_ops_avx512, cpu_ops_neon;

/* The table for a name, or the best this machine runs when name is NULL; NULL when it cannot run it. */
const struct cpu_ops *cpu_ops_find(const char *name);

#endif
