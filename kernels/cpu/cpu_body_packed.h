/* SPDX-License-Identifier: MIT */
/* cpu_body_packed.h: products with stored weights over v16: a few panels and a piece of a chain of inputs are
 * unpacked into the first-level cache, then all rows go over them. The chains are those of cpu_body_prod.h, so the
 * result is bit for bit the one of the same numbers kept as BF16. */
#ifndef GLMD_CPU_BODY_PACKED_H
#define GLMD_CPU_BODY_PACKED_H

/* Weights as floats: panels ps apart, inputs is apart. */
ALWAYS void tile_floats(const int R, const int P, const float *w, size_t ps, size_t is, uint32_t k,
                        const float *const *x, float *const *out, int first) {
    v16 acc[8][8], wv[8];
    V16_FOR(r, 0, R) {
        V16_FOR(p, 0, P) {
            acc[r][p] = first ? v_set(0.0f) : v_ld(out[r] + 16 * p);
        }
    }
    for (uint32_t i = 0; i < k; i++) {
        V16_FOR(p, 0, P) {
            wv[p] = v_ld(w + (size_t)p * ps + (size_t)i * is);
        }
        V16_FOR(r, 0, R) {
            v16 xr = v_set(x[r][i]);
            V16_FOR(p, 0, P) {
                acc[r][p] = v_fma(xr, wv[p], acc[r][p]);
            }
        }
    }
    V16_FOR(r, 0, R) {
        V16_FOR(p, 0, P) {
            v_st(out[r] + 16 * p, acc[r][p]);
        }
    }
}

#define FLOAT_ROWS(R, P)                                                                                     \
    static void floats_##R(const float *w, size_t ps, size_t is, uint32_t n, uint32_t k, const float *const *x, \
                           float *const *out, int first) {                                                   \
        for (uint32_t p = 0; p < n;) {                                                                       \
            float *o[R];                                                                                     \
            for (int r = 0; r < R; r++)                                                                      \
                o[r] = out[r] + 16 * (size_t)p;                                                              \
            if (n - p >= P) {                                                                                \
                tile_floats(R, P, w + p * ps, ps, is, k, x, o, first);                                       \
                p += P;                                                                                      \
            } else {                                                                                         \
                tile_floats(R, 1, w + p * ps, ps, is, k, x, o, first);                                       \
                p++;                                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }
FLOAT_ROWS(1, V16_TILE_1)
FLOAT_ROWS(2, V16_TILE_2)
FLOAT_ROWS(3, V16_TILE_3)
FLOAT_ROWS(4, V16_TILE_4)
FLOAT_ROWS(5, V16_TILE_4)
FLOAT_ROWS(6, V16_TILE_4)
#if V16_ROWS == 8
FLOAT_ROWS(7, V16_TILE_8)
FLOAT_ROWS(8, V16_TILE_8)
#define FLOATS_MANY floats_7, floats_8
#else
#define FLOATS_MANY NULL, NULL
#endif

/* How a product walks: panels at once, inputs at once (both bounded by the tile), rows at once (by the sums). Few rows
 * want many panels, each of which is a chain by itself; many want to share what was unpacked. */
struct walk {
    uint32_t wide, deep, rows, grain; /* grain: columns that are unpacked together */
};

static struct walk walk_of(const struct cpu_packed *m, uint32_t rows) {
    struct walk w = {.wide = 8, .deep = 32, .grain = unpack_grain(&m->s)};
    if (rows > V16_ROWS && !m->transposed && m->s.format != KERN_EXL3) {
        w.wide = 4;
        w.deep = 64;
    }
    w.rows = CPU_PACKED_SUMS / (16 * w.wide);
    return w;
}

/* n columns from c0 on, at any border: whole blocks go through tmp. */
static void unpack_range(const struct panel *q, uint32_t c0, uint32_t n, uint32_t grain, float *dst, float *tmp) {
    uint32_t a = c0 / grain * grain, b = (c0 + n + grain - 1) / grain * grain;
    if (a == c0 && b == c0 + n) {
        unpack_cols(q, a, b, dst);
        return;
    }
    unpack_cols(q, a, b, tmp);
    memcpy(dst, tmp + (size_t)(c0 - a) * 16, (size_t)n * 64);
}

/* Inputs k0 .. k0+n-1 with the paddings of heads, which are zeros. */
static void unpack_inputs(const struct panel *q, uint32_t k0, uint32_t n, uint32_t grain, float *dst, float *tmp) {
    const struct cpu_packed *m = q->m;
    while (n) {
        uint32_t at = k0 % m->cblock_pad, done;
        if (at < m->cblock) {
            done = m->cblock - at < n ? m->cblock - at : n;
            unpack_range(q, k0 / m->cblock_pad * m->cblock + at, done, grain, dst, tmp);
        } else {
            done = m->cblock_pad - at < n ? m->cblock_pad - at : n;
            memset(dst, 0, (size_t)done * 64);
        }
        dst += (size_t)done * 16;
        k0 += done;
        n -= done;
    }
}

/* Transposed: output n of a head is a column, input i one of the head's rows. Panels of rows are unpacked, 16 rows of
 * some columns, and turned: [n inputs][wide * 16]. p: the first panel of outputs, wide of them in one head. */
static void unpack_rows_of(const struct cpu_packed *m, const uint8_t *weights, uint32_t p, uint32_t wide, uint32_t k0,
                           uint32_t n, uint32_t grain, float *dst, float *tmp) {
    uint32_t per = (m->cols + 15) / 16, head = p / per, c0 = p % per * 16, width = wide * 16;
    uint32_t real = m->cols - c0 < width ? m->cols - c0 : width;
    float *cols = tmp + CPU_PACKED_BLOCK / 2;
    memset(cols + (size_t)real * 16, 0, (size_t)(width - real) * 64);
    for (uint32_t i = 0; i < n; i += 16) {
        const struct panel q = panel_open(m, weights, (head * m->rblock_pad + k0 + i) / 16);
        unpack_range(&q, c0, real, grain, cols, tmp);
        for (uint32_t c = 0; c < width; c += 16) {
            v16 v[16];
            for (uint32_t j = 0; j < 16; j++)
                v[j] = v_ld(cols + (size_t)(c + j) * 16);
            v_turn(v);
            for (uint32_t j = 0; j < 16 && i + j < n; j++)
                v_st(dst + (size_t)(i + j) * width + c, v[j]);
        }
    }
}

/* All rows over one unpacked tile: n panels, k inputs from x[row][at] on; sums to acc[row][n * 16]. */
static void tile_rows(const float *tile, size_t ps, size_t is, uint32_t n, uint32_t k, const float *const *x,
                      uint32_t at, uint32_t nr, float *acc, int first) {
    static void (*const by_rows[9])(const float *, size_t, size_t, uint32_t, uint32_t, const float *const *,
                                    float *const *, int) = {NULL,     floats_1, floats_2, floats_3,
                                                            floats_4, floats_5, floats_6, FLOATS_MANY};
    for (uint32_t r = 0, b; r < nr; r += b) {
        const float *xr[8];
        float *o[8];
        b = prod_block(nr - r);
        for (uint32_t i = 0; i < b; i++) {
            xr[i] = x[r + i] + at;
            o[i] = acc + (size_t)(r + i) * n * 16;
        }
        by_rows[b](tile, ps, is, n, k, xr, o, first);
    }
}

/* One pass: n panels, rows r0 .. r0+nr-1, all inputs. */
static void packed_pass(const struct cpu_packed *m, const uint8_t *weights, const struct walk *w, uint32_t p,
                        uint32_t n, const float *const *x, uint32_t nr, float *out, size_t ldo, uint32_t step,
                        float *room) {
    float *tmp = room + CPU_PACKED_TILE, *acc = tmp + CPU_PACKED_BLOCK;
    struct panel q[8];
    for (uint32_t j = 0; !m->transposed && j < n; j++)
        q[j] = panel_open(m, weights, p + j);
    /* F32 needs no unpacking, and its inputs lie as the product wants them where heads have no paddings. */
    bool direct = m->s.format == KERN_F32 && !m->transposed && m->cblock == m->cblock_pad;
    for (uint32_t k0 = 0; k0 < m->k; k0 += CPU_KB) {
        uint32_t kn = m->k - k0 < CPU_KB ? m->k - k0 : CPU_KB;
        for (uint32_t c = 0; c < kn; c += w->deep) {
            uint32_t cn = kn - c < w->deep ? kn - c : w->deep;
            size_t ps = m->transposed ? 16 : direct ? m->row_bytes * 4ul : cn * 16ul;
            size_t is = m->transposed ? (size_t)n * 16 : 16;
            const float *tile = direct ? (const float *)(const void *)q[0].codes + (size_t)(k0 + c) * 16 : room;
            if (m->transposed)
                unpack_rows_of(m, weights, p, n, k0 + c, cn, w->grain, room, tmp);
            for (uint32_t j = 0; !m->transposed && !direct && j < n; j++)
                unpack_inputs(&q[j], k0 + c, cn, w->grain, room + j * ps, tmp);
            tile_rows(tile, ps, is, n, cn, x, k0 + c, nr, acc, c == 0);
        }
        for (uint32_t r = 0; r < nr; r++)
            for (uint32_t j = 0; j < n; j++) {
                float *o = out + r * ldo + (size_t)j * step * 16;
                v16 sum = v_ld(acc + ((size_t)r * n + j) * 16);
                v_st(o, k0 ? v_add(v_ld(o), sum) : sum);
            }
    }
}

#include "cpu_body_exl3.h"

static void body_packed(const struct cpu_packed *m, const uint8_t *weights, uint32_t p0, uint32_t p1, const float *x,
                        size_t ldx, const uint32_t *idx, uint32_t rows, float *out, size_t ldo, uint32_t step,
                        float *room) {
    const struct walk w = walk_of(m, rows);
    for (uint32_t p = p0, n; p < p1; p += n) {
        n = p1 - p < w.wide ? p1 - p : w.wide;
        if (m->s.format == KERN_EXL3) /* blocks are kept from one panel to the next */
            n = p1 - p;
        else if (m->transposed) { /* no further than the head */
            uint32_t per = (m->cols + 15) / 16, left = per - p % per;
            n = n < left || FAULT(cpu_past_the_head) ? n : left;
        }
        for (uint32_t r0 = 0; r0 < rows; r0 += w.rows) {
            uint32_t nr = rows - r0 < w.rows ? rows - r0 : w.rows;
            const float *xr[CPU_PACKED_SUMS / 16];
            for (uint32_t r = 0; r < nr; r++)
                xr[r] = x + (idx ? idx[r0 + r] : r0 + r) * ldx;
            float *o = out + r0 * ldo + (size_t)(p - p0) * step * 16;
            if (m->s.format == KERN_EXL3)
                body_exl3(m, weights, p, p + n, xr, nr, o, ldo, step, room);
            else
                packed_pass(m, weights, &w, p, n, xr, nr, o, ldo, step, room);
        }
    }
}

#endif
