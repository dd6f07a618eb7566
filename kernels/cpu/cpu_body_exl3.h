/* SPDX-License-Identifier: MIT */
/* cpu_body_exl3.h: products with EXL3 over v16. The matrix is y = svh H T^T H suh x: inputs are transformed 256 at a
 * time for the rows at hand, tiles of the trellis are decoded into the first-level cache as other formats are, and
 * blocks of 128 sums are transformed at the end. A tile of 16 x 16 weights lies in its panel as words [bits][8], word
 * i of the 8 rows of outputs that the file has behind each other. Runs on the team. */
#ifndef GLMD_CPU_BODY_EXL3_H
#define GLMD_CPU_BODY_EXL3_H

enum { SIDE = 128 };

/* ---- tiles ---- */

/* 16 inputs of 16 outputs: weight t of the tile is 16 bits of its circular stream that end behind bit (t + 1) bits. */
static void exl3_tile(const uint8_t *tile, const int bits, const uint32_t codebook, float *dst) {
    _Alignas(64) uint32_t w[10][8]; /* word i of each row at [i + 1], before it the last word of the row before */
    const int few = bits > 5 ? 2 : 4;
    vi window = vi_zero();
    for (int i = 0; i < bits; i++)
        vi_row(w[i + 1], tile + 32 * (size_t)i);
    vi_row_before(w[0], tile + 32 * (size_t)(bits - 1));
    memset(w[bits + 1], 0, sizeof(w[0]));
    for (int l = 0; l < 4; l++)
        for (int j = 0; j < 4; j++) {
            int s = (8 * l + j + 1) * bits - 16 - (FAULT(cpu_exl3_late) ? bits : 0), back = j % few;
            if (!back)
                window = vi_window(w, s, s + 4 * bits);
            v_st(dst + 16 * (2 * l + j % 2 + 8 * (j / 2)), vi_value(window, 16 - back * bits, codebook));
        }
}

static void unpack_exl3(const struct panel *q, uint32_t c0, uint32_t c1, float *dst) {
    const struct kern_store *s = &q->m->s;
    for (uint32_t c = c0; c < c1; c += 16, dst += 256) {
        const uint8_t *tile = q->codes + (size_t)c * 2 * s->bits;
        if (s->codebook == KERN_CODEBOOK_MUL1)
            exl3_tile(tile, s->bits, KERN_CODEBOOK_MUL1, dst);
        else if (s->codebook == KERN_CODEBOOK_MCG)
            exl3_tile(tile, s->bits, KERN_CODEBOOK_MCG, dst);
        else
            exl3_tile(tile, s->bits, KERN_CODEBOOK_3INST, dst);
    }
}

/* ---- transforms ---- */

/* 128 numbers, 16-byte steps included: sums and differences at distance 1, 2, ... 64, over sqrt(128). */
static void hadamard128(float *x) {
    static const _Alignas(64) float sign[4][16] = {
        {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
        {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
        {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
        {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1},
    };
    v16 v[8];
    V16_FOR(i, 0, 8) {
        v[i] = v_ld(x + 16 * i);
        v[i] = v_fma(v[i], v_ld(sign[0]), v_swap(v[i], 1));
        v[i] = v_fma(v[i], v_ld(sign[1]), v_swap(v[i], 2));
        v[i] = v_fma(v[i], v_ld(sign[2]), v_swap(v[i], 4));
        v[i] = v_fma(v[i], v_ld(sign[3]), v_swap(v[i], 8));
    }
    for (int h = 1; h < 8; h *= 2)
        for (int i = 0; i < 8; i++)
            if (!(i & h)) {
                v16 a = v[i], b = v[i + h];
                v[i] = v_add(a, b);
                v[i + h] = v_sub(a, b);
            }
    V16_FOR(i, 0, 8) {
        v_st(x + 16 * i, v_mul(v[i], v_set(0.08838834764831845f)));
    }
}

ALWAYS v16 signs_at(const uint8_t *vector, uint32_t i) {
    return v_ldf16(vector + 2 * (size_t)i);
}

/* What a block of outputs is made of: inputs first .. first + n - 1 as the trellis counts them. */
struct exl3_feed {
    uint32_t first, n;
    uint32_t at, real; /* transposed: input i of the head is number at + i, for i < real; the others are zeros */
};

/* Inputs f->first + k0 .. of one row, scaled and transformed. n: a multiple of 128 */
static void exl3_inputs(const struct cpu_packed *m, const uint8_t *weights, const struct exl3_feed *f, uint32_t k0,
                        uint32_t n, const float *x, float *dst) {
    const uint8_t *scale = weights + (m->transposed ? m->svh : m->suh);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = f->first + k0 + i;
        if (m->transposed)
            dst[i] = c >= f->at && c - f->at < f->real ? x[c - f->at] : 0.0f;
        else
            dst[i] = m->cblock == m->cblock_pad ? x[c] : x[c / m->cblock * m->cblock_pad + c % m->cblock];
    }
    for (uint32_t i = 0; i < n; i += 16)
        v_st(dst + i, v_mul(v_ld(dst + i), signs_at(scale, f->first + k0 + i)));
    for (uint32_t i = 0; i < n; i += SIDE)
        hadamard128(dst + i);
}

/* ---- one block of 128 outputs ---- */

/* 32 inputs from k on of the block's eight panels, or, transposed, turned over. */
static void exl3_tiles(const struct cpu_packed *m, const uint8_t *weights, uint32_t block, uint32_t k, float *tile,
                       float *tmp) {
    for (uint32_t j = 0; !m->transposed && j < 8; j++) {
        const struct panel q = panel_open(m, weights, block * 8 + j);
        unpack_exl3(&q, k, k + 32, tile + j * 512);
    }
    for (uint32_t i = 0; m->transposed && i < 32; i += 16) {
        const struct panel q = panel_open(m, weights, (k + i) / 16);
        unpack_exl3(&q, block * SIDE, (block + 1) * SIDE, tmp);
        for (uint32_t c = 0; c < SIDE; c += 16) {
            v16 v[16];
            for (uint32_t j = 0; j < 16; j++)
                v[j] = v_ld(tmp + (size_t)(c + j) * 16);
            v_turn(v);
            for (uint32_t j = 0; j < 16; j++)
                v_st(tile + (size_t)(i + j) * SIDE + c, v[j]);
        }
    }
}

/* sums[nr][128] of a block of outputs for nr rows. */
static void exl3_block(const struct cpu_packed *m, const uint8_t *weights, const struct exl3_feed *f, uint32_t block,
                       const float *const *x, uint32_t nr, float *sums, float *room) {
    float *tmp = room + CPU_PACKED_TILE, *acc = tmp + CPU_PACKED_BLOCK, *in = acc + CPU_PACKED_SUMS;
    const float *xr[CPU_PACKED_SUMS / SIDE];
    for (uint32_t r = 0; r < nr; r++)
        xr[r] = in + (size_t)r * CPU_KB;
    for (uint32_t k0 = 0; k0 < f->n; k0 += CPU_KB) {
        uint32_t kn = f->n - k0 < CPU_KB ? f->n - k0 : CPU_KB;
        for (uint32_t r = 0; r < nr; r++)
            exl3_inputs(m, weights, f, k0, kn, x[r], in + (size_t)r * CPU_KB);
        for (uint32_t c = 0; c < kn; c += 32) {
            exl3_tiles(m, weights, block, f->first + k0 + c, room, tmp);
            tile_rows(room, m->transposed ? 16 : 512, m->transposed ? SIDE : 16, 8, 32, xr, c, nr, acc, c == 0);
        }
        for (uint32_t i = 0; i < nr * SIDE; i += 16)
            v_st(sums + i, k0 ? v_add(v_ld(sums + i), v_ld(acc + i)) : v_ld(acc + i));
    }
    const uint8_t *scale = weights + (m->transposed ? m->suh : m->svh);
    for (uint32_t r = 0; r < nr; r++, sums += SIDE) {
        if (!FAULT(cpu_exl3_no_output_transform))
            hadamard128(sums);
        for (uint32_t i = 0; i < SIDE; i += 16)
            v_st(sums + i, v_mul(v_ld(sums + i), signs_at(scale, block * SIDE + i)));
    }
}

/* ---- products ---- */

/* The row an output is, or, transposed, the column; KERN_NO_ROW: a padding. */
#define KERN_NO_ROW 0xffffffffu
static uint32_t exl3_row(const struct cpu_packed *m, uint32_t n) {
    if (m->transposed)
        return n % m->cols; /* a multiple of 128 */
    uint32_t i = n % m->rblock_pad, row = n / m->rblock_pad * m->rstride + m->roff + i;
    return i < m->rblock && row < m->rows ? row : KERN_NO_ROW;
}

static struct exl3_feed exl3_feed(const struct cpu_packed *m, uint32_t n) {
    if (!m->transposed)
        return (struct exl3_feed){.n = m->cols};
    uint32_t at = n / m->cols * m->rstride + m->roff, end = (at + m->k + SIDE - 1) / SIDE * SIDE;
    return (struct exl3_feed){.first = at / SIDE * SIDE, .n = end - at / SIDE * SIDE, .at = at, .real = m->k};
}

/* Blocks are computed whole and every member takes of them what is in its share. */
static void body_exl3(const struct cpu_packed *m, const uint8_t *weights, uint32_t p0, uint32_t p1,
                      const float *const *x, uint32_t nr, float *out, size_t ldo, uint32_t step, float *room) {
    float *sums = room + CPU_PACKED_ROOM - CPU_PACKED_SUMS;
    uint32_t have = KERN_NO_ROW;
    for (uint32_t p = p0; p < p1; p++, out += (size_t)step * 16)
        for (uint32_t l = 0; l < 16; l++) {
            uint32_t row = exl3_row(m, p * 16 + l), head = m->transposed ? p * 16 / m->cols : 0;
            uint32_t block = row == KERN_NO_ROW ? have : row / SIDE + head * (m->cols / SIDE);
            if (block != have) {
                const struct exl3_feed f = exl3_feed(m, p * 16);
                exl3_block(m, weights, &f, row / SIDE, x, nr, sums, room);
                have = block;
            }
            for (uint32_t r = 0; r < nr; r++)
                out[r * ldo + l] = row == KERN_NO_ROW ? 0.0f : sums[(size_t)r * SIDE + row % SIDE];
        }
}

#endif
