/* SPDX-License-Identifier: MIT */
/* EXL3: states of a trellis, the values they stand for, tiles, and whole rows of the matrix that tiles,
 * Hadamard transforms and the two scale vectors stand for. Pure functions; any thread; nothing is allocated.
 * */
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

enum { SIDE = 128 };

/* 128-point transform over v[0], v[step], ... */
static void hadamard(double *v, uint32_t step) {
    for (uint32_t h = 1; h < SIDE; h *= 2)
        for (uint32_t i = 0; i < SIDE; i++)
            if (!(i & h)) {
                double a = v[i * step], b = v[(i + h) * step];
                v[i * step] = a + b;
                v[(i + h) * step] = a - b;
            }
}

/* The 128 x 128 block of outputs [n0 ..) and inputs [k0 ..): w[output][input] before scales. Values have 11
 * bits and sums 2^14 of them, so all of this is exact. */
static void block(const struct kern_store *s, uint64_t rows, const uint8_t *trellis, uint64_t n0, uint64_t k0,
                  double w[SIDE][SIDE]) {
    uint16_t tile[256];
    for (uint32_t kt = 0; kt < SIDE / 16; kt++)
        for (uint32_t nt = 0; nt < SIDE / 16; nt++) {
            uint64_t at = (k0 / 16 + kt) * (rows / 16) + n0 / 16 + nt;
            host_exl3_tile(s->codebook, s->bits, trellis + at * 32 * s->bits, tile);
            for (uint32_t i = 0; i < 256; i++)
                w[16 * nt + i % 16][16 * kt + i / 16] = (double)host_f16_f32(tile[i]);
        }
    for (uint32_t n = 0; n < SIDE; n++)
        hadamard(w[n], 1);
    for (uint32_t k = 0; k < SIDE; k++)
        hadamard(&w[0][k], SIDE);
}

void unpack_exl3(const struct kern_store *s, uint64_t rows, uint64_t cols,
                 const void *const piece[KERN_PIECES], uint64_t row0, uint64_t n, float *out) {
    const uint8_t *suh = piece[KERN_PIECE_SUH], *svh = piece[KERN_PIECE_SVH];
    double w[SIDE][SIDE];
    for (uint64_t n0 = row0; n0 < row0 + n; n0 += SIDE)
        for (uint64_t k0 = 0; k0 < cols; k0 += SIDE) {
            block(s, rows, piece[KERN_PIECE_CODES], n0, k0, w);
            for (uint32_t i = 0; i < SIDE; i++)
                for (uint32_t k = 0; k < SIDE; k++) {
                    /* both transforms' factor is 1/128; the scales' product has 22 bits: exact */
                    double f = (double)host_f16_f32(host_le16(svh + 2 * (n0 + i))) *
                               (double)host_f16_f32(host_le16(suh + 2 * (k0 + k)));
                    out[(n0 - row0 + i) * cols + k0 + k] = (float)(w[i][k] / SIDE * f);
                }
        }
}
