/* SPDX-License-Identifier: MIT */
/* EXL3: states of a trellis, the values they stand for, tiles, and whole rows of the matrix that tiles,
 * Hadamard transforms and the two scale vectors stand for. Pure functions; any thread; nothing is allocated.
 */
#include "host_unpack_priv.h"

/* F16 sums and products of few bits: exact, or rounded once, in F32. */
static uint16_t pair_value(uint32_t x) {
    uint32_t y = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    return host_f16(host_f16_f32((uint16_t)y) + host_f16_f32((uint16_t)(y >> 16)));
}

uint16_t host_exl3_value(uint32_t codebook, uint16_t state) {
    uint32_t x;
    switch (codebook) {
    case KERN_CODEBOOK_3INST:
        return pair_value(state * 89226354u + 64248484u);
    case KERN_CODEBOOK_MCG:
        return pair_value(state * 0xCBAC1FEDu);
    default:
        x = state * 0x83DCD12Du;
        x = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24);
        /* 0x1eee and 0xc931 as F16; the sum has 23 bits at most */
        return host_f16((float)(1024 + x) * 0.00676727294921875f + -10.3828125f);
    }
}

/* Stream bit i, the highest bit of a word first. */
static uint32_t stream_bit(const uint8_t *words, uint32_t i) {
    uint32_t at = 31 - i % 32;
    return (uint32_t)words[i / 32 * 4 + at / 8] >> (at % 8) & 1u;
}

uint16_t host_exl3_state(const uint8_t *words, uint32_t bits, uint32_t t) {
    uint32_t n = 256 * bits, at = (t * bits + (FAULT(exl3_no_tail) ? 0 : bits) + n - 16) % n, state = 0;
    for (uint32_t i = 0; i < 16; i++)
        state = state << 1 | stream_bit(words, (at + i) % n);
    return (uint16_t)state;
}

void host_exl3_tile(uint32_t codebook, uint32_t bits, const uint8_t *words, uint16_t ret[256]) {
    uint32_t state = host_exl3_state(words, bits, 255);
    for (uint32_t t = 0, at = 0; t < 256; t++) {
        for (uint32_t i = 0; i < bits; i++)
            state = state << 1 | stream_bit(words, at++);
        ret[16 * host_exl3_row(t) + host_exl3_col(t)] = host_exl3_value(codebook, (uint16_t)state);
    }
}

/* Every value of the three codebooks is a multiple of 2^-18 below 4, so sums of 2^14 of them are exact in 64 bits, and
 * sums of 128 in 32. */
enum { SIDE = 128, TILE = 16, EXACT_BITS = 18 };

/* Transform of 128 points. */
static void hadamard(int64_t *v) {
    for (uint32_t h = 1; h < SIDE; h *= 2)
        for (uint32_t i = 0; i < SIDE; i++)
            if (!(i & h)) {
                int64_t a = v[i], b = v[i + h];
                v[i] = a + b;
                v[i + h] = a - b;
            }
}

/* The same along the outputs, for the sixteen inputs of a row of tiles. */
static void hadamard_tiles(int32_t w[SIDE][TILE]) {
    for (uint32_t h = 1; h < SIDE; h *= 2)
        for (uint32_t i = 0; i < SIDE; i++)
            for (uint32_t k = 0; !(i & h) && k < TILE; k++) {
                int32_t a = w[i][k], b = w[i + h][k];
                w[i][k] = a + b;
                w[i + h][k] = a - b;
            }
}

/* Outputs [n0 ..) of a row of tiles, transformed along the outputs: each sum lies where its number will, as an
 * integer. out: the block's first number, rows cols apart. */
static void tile_row(const struct kern_store *s, uint64_t rows, const uint8_t *trellis, uint64_t n0, uint64_t kt,
                     uint64_t cols, float *out) {
    int32_t w[SIDE][TILE];
    uint16_t tile[TILE * TILE];
    for (uint32_t nt = 0; nt < SIDE / TILE; nt++) {
        uint64_t at = kt * (rows / TILE) + n0 / TILE + nt;
        host_exl3_tile(s->codebook, s->bits, trellis + at * 32 * s->bits, tile);
        for (uint32_t i = 0; i < TILE * TILE; i++)
            w[TILE * nt + i % TILE][i / TILE] = (int32_t)(host_f16_f32(tile[i]) * (float)(1 << EXACT_BITS));
    }
    hadamard_tiles(w);
    for (uint32_t n = 0; n < SIDE; n++)
        memcpy(out + n * cols, w[n], sizeof(w[n]));
}

/* One row of the block, from those sums to numbers. */
static void block_row(float svh, const uint8_t *suh, float *row) {
    int32_t sums[SIDE];
    int64_t w[SIDE];
    memcpy(sums, row, sizeof(sums));
    for (uint32_t k = 0; k < SIDE; k++)
        w[k] = sums[k];
    hadamard(w);
    for (uint32_t k = 0; k < SIDE; k++) {
        /* both transforms' factor is 1/128; the scales' product has 22 bits: exact */
        double f = (double)svh * (double)host_f16_f32(host_le16(suh + 2 * (size_t)k));
        row[k] = (float)((double)w[k] / (double)((int64_t)SIDE << EXACT_BITS) * f);
    }
}

void unpack_exl3(const struct kern_store *s, uint64_t rows, uint64_t cols,
                 const void *const piece[KERN_PIECES], uint64_t row0, uint64_t n, float *out) {
    const uint8_t *suh = piece[KERN_PIECE_SUH], *svh = piece[KERN_PIECE_SVH];
    for (uint64_t n0 = row0; n0 < row0 + n; n0 += SIDE, out += SIDE * cols)
        for (uint64_t k0 = 0; k0 < cols; k0 += SIDE) {
            for (uint32_t kt = 0; kt < SIDE / TILE; kt++)
                tile_row(s, rows, piece[KERN_PIECE_CODES], n0, k0 / TILE + kt, cols, out + k0 + (uint64_t)TILE * kt);
            for (uint32_t i = 0; i < SIDE; i++)
                block_row(host_f16_f32(host_le16(svh + 2 * (n0 + i))), suh + 2 * k0, out + i * cols + k0);
        }
}
