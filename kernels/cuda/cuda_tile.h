/* SPDX-License-Identifier: MIT */
/* cuda_tile.h: where the bytes of a matrix lie in device memory, so that a warp's load is 512 bytes in a row and each
 * lane's 16 of them are whole operands of mma.m16n8k16.
 *
 * A matrix is [n_pad / 16] tiles of 16 outputs, each [k_pad / 64] chunks of 64 inputs. Inputs may be numbered as one
 * likes if both operands agree: of a chunk, the four lanes q of a group own inputs 16q .. 16q + 15, which are one run
 * of 32 bytes of an activation and one scale of NVFP4; the chunk's product m of four takes 16q + 4m .. 16q + 4m + 3 of
 * each. Lane 4g + q has rows g and g + 8. A chunk has
 *
 *   BF16   2048 bytes: [m][lane][row g: k 0 1 | row g + 8: k 0 1 | row g: k 2 3 | row g + 8: k 2 3]
 *   FP8    1024 bytes: [m / 2][lane][m % 2][row g, row g + 8][4 bytes: k 2, 0, 3, 1]
 *   INT8   the same
 *   NVFP4  512 bytes: [lane][row g, row g + 8][m / 2][4 bytes of two codes: m odd's first, m even's first, m odd's
 *          second, m even's second]. A byte is the file's: the even k in its low half
 *   EXL3   128 bits bytes: the four trellis tiles [16 inputs, 16 outputs] of the chunk. 4 bits: [word of the tile]
 *          [tile]; otherwise [tile][word]. Here inputs keep their order, product m takes 16m .. 16m + 15, and
 *          activations lie as cuda_exl3_at() says
 *
 * Scales, in the store's own unit:
 *   NVFP4  [n_pad / 16][k_pad / 256, rounded up][lane][chunk of 4][row g, row g + 8]
 *   FP8, INT8 with a scale a row: [n_pad / 16][groups][16]; FP8 with one for several rows: as the file has them
 *
 * Heads lie behind each other, each padded by itself, and have a scale a row. kv_b's key half is read transposed, as
 * [kv_rank, nope] a head: its codes lie as above (NVFP4, whose bytes hold two outputs then: [pair of outputs][k]), its
 * scales, which run along the outputs, [heads][groups of outputs][k_pad]. EXL3 read transposed keeps the file's tiles,
 * [n_pad / 16][k_pad / 16] with n and k as they are read. */
#ifndef GLMD_CUDA_TILE_H
#define GLMD_CUDA_TILE_H

#include "cuda_dev.h"

#if defined(__CUDACC__) || defined(CUDA_SIM)
#define CUDA_BOTH __host__ __device__
#else
#define CUDA_BOTH
#endif

enum { TILE_CHUNK = 64, TILE_SCALE_CHUNKS = 4 };

/* Bytes of 16 outputs x 64 inputs. */
CUDA_BOTH static inline uint32_t tile_chunk_bytes(const struct kern_store *s) {
    switch (s->format) {
    case KERN_BF16:
        return 2048;
    case KERN_FP8:
    case KERN_INT8:
        return 1024;
    case KERN_NVFP4:
        return 512;
    default:
        return 128u * s->bits;
    }
}

CUDA_BOTH static inline uint32_t tile_scale_unit(const struct kern_store *s) {
    return s->scale == KERN_SCALE_F32 ? 4 : s->scale == KERN_SCALE_BF16 || s->scale == KERN_SCALE_F16 ? 2 : 1;
}

/* Scales along a row of the file. */
CUDA_BOTH static inline uint32_t tile_groups(const struct kern_store *s, uint32_t cols) {
    return s->block_cols && s->block_cols < cols ? (cols + s->block_cols - 1) / s->block_cols : 1;
}

/* One scale for each row, or the file's grid? */
CUDA_BOTH static inline bool tile_scale_rows(const struct cuda_mat *m) {
    return m->heads > 1 || m->store.block_rows == 1;
}

/* Bytes of the scales of one head; of the whole matrix where the grid is the file's. */
CUDA_BOTH static inline uint64_t tile_scale_bytes(const struct cuda_mat *m) {
    uint64_t unit = tile_scale_unit(&m->store);
    if (m->store.scale == KERN_SCALE_NONE)
        return 0;
    if (m->transposed)
        return (uint64_t)tile_groups(&m->store, m->n) * m->k_pad * unit;
    if (m->store.format == KERN_NVFP4)
        return (uint64_t)(m->n_pad / 16) * ((m->k_pad + 255) / 256) * 256;
    if (tile_scale_rows(m))
        return (uint64_t)m->n_pad * tile_groups(&m->store, m->k) * unit;
    uint32_t br = m->store.block_rows;
    return (uint64_t)(br ? (m->n + br - 1) / br : 1) * tile_groups(&m->store, m->k) * unit;
}

CUDA_BOTH static inline uint64_t tile_code_bytes(const struct cuda_mat *m) { /* of one head */
    return (uint64_t)(m->n_pad / 16) * (m->k_pad / 64) * tile_chunk_bytes(&m->store);
}

/* Codes: byte b of number k of output n of a head, from the head's first byte on. NVFP4: k even, both codes;
 * transposed: n even. */
CUDA_BOTH static inline uint64_t tile_code_at(const struct cuda_mat *m, uint32_t n, uint32_t k, uint32_t b) {
    const uint32_t g = n & 7, hi = n >> 3 & 1, q = k >> 4 & 3, r = k & 15, lane = 4 * g + q;
    const uint64_t chunk =
        ((uint64_t)(n >> 4) * (m->k_pad / 64) + (k >> 6)) * tile_chunk_bytes(&m->store);
    switch (m->store.format) {
    case KERN_BF16:
        return chunk + (r >> 2) * 512 + lane * 16 + (hi + 2 * (r >> 1 & 1)) * 4 + (r & 1) * 2 + b;
    case KERN_NVFP4:
        if (m->transposed)
            return chunk + (n >> 1 & 7) * 64 + (k & 63);
        return chunk + lane * 16 + hi * 8 + (r >> 3) * 4 + (r >> 2 & 1 ? 0 : 1) + (r >> 1 & 1) * 2;
    default: /* FP8, INT8 */
        return chunk + (r >> 3) * 512 + lane * 16 + (r >> 2 & 1) * 8 + hi * 4 + (r & 2 ? 0 : 1) + (r & 1) * 2;
    }
}

/* Scales: element of (output n, group) of a head, counted in units from the head's first on. Not transposed. */
CUDA_BOTH static inline uint64_t tile_scale_at(const struct cuda_mat *m, uint32_t n, uint32_t group) {
    if (m->store.format == KERN_NVFP4) {
        uint32_t chunk = group >> 2, lane = 4 * (n & 7) + (group & 3);
        return ((uint64_t)(n >> 4) * ((m->k_pad + 255) / 256) + (chunk >> 2)) * 256 + lane * 8 + (chunk & 3) * 2 +
               (n >> 3 & 1);
    }
    uint32_t groups = tile_groups(&m->store, m->k), br = m->store.block_rows;
    if (tile_scale_rows(m))
        return ((uint64_t)(n >> 4) * groups + group) * 16 + (n & 15);
    return (uint64_t)(br ? n / br : 0) * groups + group;
}

/* Where input k of an EXL3 product lies among its activations: as the lanes that multiply with it read them. */
CUDA_BOTH static inline uint32_t cuda_exl3_at(uint32_t k) {
    uint32_t i = k & 15;
    return (k & ~63u) + 16 * (i >> 1 & 3) + 4 * (k >> 4 & 3) + (i & 1) + 2 * (i >> 3);
}

/* Warps that share the inputs of an output, as a power of two: at least eight loads of 16 bytes are left for each. By
 * the shape alone, since it says where sums are cut. */
CUDA_BOTH static inline uint32_t tile_split_log(const struct kern_store *s, uint32_t k_pad) {
    uint32_t loads = k_pad / 64 * tile_chunk_bytes(s) / 512, log = 0;
    while (log < 3 && loads >> log >= 16)
        log++;
    return log;
}

#endif
