/* SPDX-License-Identifier: MIT */
/* format.h: how one weight matrix is stored. Part of kern.h's outward face; plain C, no code but kern_format.c's
 * arithmetic on sizes.
 *
 * A matrix W [rows = outputs, cols = inputs] is stored as one to four *pieces*: its codes, and what they are multiplied
 * by. A store says which, so that checkpoint reader, loader, backends, packer and memory plan agree on every byte:
 *
 *   format       CODES (row-major)                 SCALE                        GLOBAL    meaning of W[n][k]
 *   F32 BF16 F16 the number                        -                            -         itself
 *   FP8          E4M3 byte                         [ceil(N/br)][ceil(K/bc)]     -         e4m3(code) * scale
 *   NVFP4        nibbles, even k low: [N][K/2]     E4M3 [N][K/16]               F32 [1]   e2m1(code) * (scale * global)
 *   MXFP8        E4M3 byte                         E8M0 [N][K/32]               -         e4m3(code) * 2^(scale-127)
 *   MXFP4        nibbles, even k low: [N][K/2]     E8M0 [N][K/32]               -         e2m1(code) * 2^(scale-127)
 *   INT8         byte q + 128                      [N][ceil(K/bc)]              -         (code - 128) * scale
 *   INT4         nibble q + 8, even k low          [N][ceil(K/bc)]              -         (code - 8) * scale
 *   EXL3         trellis [K/16][N/16][16*bits] u16 SUH f16 [K], SVH f16 [N]     -         see below
 *   Q8_0 ...     GGUF blocks along K, bytes as in the file                                the block's own rule
 *
 * br x bc: block_rows x block_cols of the store; 0 means the whole axis (FP8: 1 x 0 per channel, 0 x 0 per tensor,
 * 128 x 128 as released). Scales of FP8, INT8 and INT4 are F32, BF16 or F16 as the store says. A global is always the
 * factor to multiply with: who writes it as a divisor has its reciprocal taken, once, in F32, while it is read.
 * EXL3: y = diag(svh) H (T^T (H diag(suh) x)), T the decoded tiles [K][N], H Hadamard matrices of 128 points over
 * sqrt(128) along the axis; N and K are multiples of 128.
 * The rules, bit for bit, and their check vectors: kernels/host/host_unpack.h and tests/unit/format_*. */
#ifndef GLMD_KERN_FORMAT_H
#define GLMD_KERN_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kern_format {
    KERN_F32 = 1,
    KERN_BF16,
    KERN_F16,
    KERN_FP8,
    KERN_NVFP4,
    KERN_MXFP8,
    KERN_MXFP4,
    KERN_INT8,
    KERN_INT4,
    KERN_EXL3,
    KERN_Q8_0, /* the GGUF formats: one piece, blocks as in the file */
    KERN_Q2_K,
    KERN_Q3_K,
    KERN_Q4_K,
    KERN_Q5_K,
    KERN_Q6_K,
    KERN_IQ1_S,
    KERN_IQ1_M,
    KERN_IQ2_XXS,
    KERN_IQ2_XS,
    KERN_IQ2_S,
    KERN_IQ3_XXS,
    KERN_IQ3_S,
    KERN_IQ4_NL,
    KERN_IQ4_XS,
    KERN_GGUF_MXFP4,
    KERN_GGUF_NVFP4, /* scale F32: the file has a factor for the matrix, which is GLOBAL; scale none: it has not */
    KERN_FORMAT_END
};

enum kern_scale { KERN_SCALE_NONE, KERN_SCALE_F32, KERN_SCALE_BF16, KERN_SCALE_F16, KERN_SCALE_E4M3, KERN_SCALE_E8M0 };
enum kern_codebook { KERN_CODEBOOK_NONE, KERN_CODEBOOK_3INST, KERN_CODEBOOK_MCG, KERN_CODEBOOK_MUL1 };
enum kern_piece { KERN_PIECE_CODES, KERN_PIECE_SCALE, KERN_PIECE_GLOBAL, KERN_PIECE_SUH, KERN_PIECE_SVH, KERN_PIECES };

/* Eight bytes without padding, so that stores may be compared and digested as bytes. What a format does not use
 * is 0. */
struct kern_store {
    uint8_t format;   /* enum kern_format */
    uint8_t bits;     /* EXL3: bits per weight, 1 .. 8 */
    uint8_t scale;    /* enum kern_scale */
    uint8_t codebook; /* enum kern_codebook, EXL3 */
    uint16_t block_rows, block_cols; /* weights that share a scale; 0: the whole axis */
};

/* The store of a format that leaves nothing to choose: the plain numbers, NVFP4 and the MX formats (whose scales'
 * kind and blocks are the format's), GGUF's. FP8, INT8, INT4 and EXL3 want the rest filled in. */
static inline struct kern_store kern_store_plain(enum kern_format f) {
    struct kern_store s = {.format = (uint8_t)f};
    if (f == KERN_NVFP4 || f == KERN_MXFP8 || f == KERN_MXFP4) {
        s.scale = f == KERN_NVFP4 ? KERN_SCALE_E4M3 : KERN_SCALE_E8M0;
        s.block_rows = 1;
        s.block_cols = f == KERN_NVFP4 ? 16 : 32;
    }
    return s;
}

/* One piece as bytes: `rows` rows of row_bytes each, little-endian elements of `unit` bytes (1, 2, 4; blocks count as
 * bytes). rows 0: the store has no such piece. */
struct kern_piece_info {
    uint64_t rows, row_bytes;
    uint32_t unit;
};

/* -EINVAL: the store is no valid combination, or cannot hold this shape (EXL3 off the 128 grid, a GGUF block that does
 * not divide cols, nibbles of an odd row); -EOVERFLOW. Any thread. */
int kern_store_piece(const struct kern_store *s, uint64_t rows, uint64_t cols, enum kern_piece piece,
                     struct kern_piece_info *ret);
/* Bytes of all pieces of a matrix of this shape: what the format itself takes, without any backend's paddings. */
int kern_store_bytes(const struct kern_store *s, uint64_t rows, uint64_t cols, uint64_t *ret);
/* Weights and bytes of one block of codes along a row (1 and 4 for F32, 2 and 1 for nibbles, 256 and 144 for Q4_K).
 * -EINVAL: EXL3 has none. */
int kern_store_block(const struct kern_store *s, uint32_t *ret_weights, uint32_t *ret_bytes);
/* "BF16", "FP8 128x128", "INT8 g128 (BF16)", "EXL3 4 bits mcg", "Q4_K": for people. */
const char *kern_store_name(const struct kern_store *s, char *buf, size_t len);
/* The word configuration and programs use ("bf16", "fp8", "nvfp4", "int8", "q4_k"), and back; NULL / 0: unknown. */
const char *kern_format_word(uint32_t format);
uint32_t kern_format_find(const char *word);

#endif
