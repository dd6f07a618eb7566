/* SPDX-License-Identifier: MIT */
/* cpu_body_prod.h: products of BF16 weights with float rows over v16.
 *
 * A panel holds 16 outputs, input by input, each input's 16 weights in one 32-byte word group. One tile
 * computes R rows of P panels; its accumulators are the chains of at most CPU_KB inputs that the numerics
 * promise, so which tile serves a row cannot be seen in the result. Up to V16_ROWS rows take one pass over the
 * weights: that is what eight streams share. Which R and P are fast: kernels/NOTES.md. */
#ifndef GLMD_CPU_BODY_PROD_H
#define GLMD_CPU_BODY_PROD_H

/* R rows of P panels over k inputs. Weights come from far away and the machine's own reading ahead leaves
 * gaps: the panels at `ask`, which are next, are asked for meanwhile (kernels/NOTES.md). A line holds two
 * inputs: where a step loads from many panels, only every second input asks. */
ALWAYS void tile(const int R, const int P, const uint32_t *w, size_t panel, uint32_t k, const float *const *x,
                 float *const *out, int first, const uint32_t *ask) {
    v16 acc[8][8], wv[8];
    V16_FOR(r, 0, R) {
        V16_FOR(p, 0, P) {
            acc[r][p] = v_set(0.0f);
        }
    }
    for (uint32_t i = 0; i < k; i++) {
        v16 x0 = v_set(x[0][i]);
        if (P < 4 || i % 2 == 0) {
            V16_FOR(p, 0, P) {
                __builtin_prefetch(ask + (size_t)p * panel + (size_t)i * 8, 0, 3);
            }
        }
        V16_FOR(p, 0, P) {
            wv[p] = v_ldw(w + (size_t)p * panel + (size_t)i * 8);
            acc[0][p] = v_fma(x0, wv[p], acc[0][p]);
        }
        V16_FOR(r, 1, R) {
            v16 xr = v_set(x[r][i]);
            V16_FOR(p, 0, P) {
                acc[r][p] = v_fma(xr, wv[p], acc[r][p]);
            }
        }
    }
    V16_FOR(r, 0, R) {
        V16_FOR(p, 0, P) {
            v_st(out[r] + 16 * p, first ? acc[r][p] : v_add(v_ld(out[r] + 16 * p), acc[r][p]));
        }
    }
}

#define HALF(P) ((P) >= 4 ? (P) / 2 : 1)

/* What follows n panels at w, of which `left` are still to come in this call; at its end the same ones. */
ALWAYS const uint32_t *panels_next(const uint32_t *w, size_t panel, uint32_t n, uint32_t left) {
    return left > n ? w + n * panel : w;
}

/* One block of R rows over n panels and one chain of inputs, P panels at a time, the last ones fewer; `left`
 * panels are to come in the whole product, these included. */
#define PROD_ROWS(R, P)                                                                                      \
    static void prod_##R(const uint32_t *w, size_t panel, uint32_t n, uint32_t left, uint32_t k,             \
                         const float *const *x, float *const *out, int first) {                              \
        for (uint32_t p = 0; p < n;) {                                                                       \
            const uint32_t *at = w + p * panel;                                                              \
            float *o[R];                                                                                     \
            for (int r = 0; r < R; r++)                                                                      \
                o[r] = out[r] + 16 * (size_t)p;                                                              \
            if (n - p >= P) {                                                                                \
                tile(R, P, at, panel, k, x, o, first, panels_next(at, panel, P, left - p));                  \
                p += P;                                                                                      \
            } else if (n - p >= HALF(P)) {                                                                   \
                tile(R, HALF(P), at, panel, k, x, o, first, panels_next(at, panel, HALF(P), left - p));      \
                p += HALF(P);                                                                                \
            } else {                                                                                         \
                tile(R, 1, at, panel, k, x, o, first, panels_next(at, panel, 1, left - p));                  \
                p++;                                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }
PROD_ROWS(1, V16_TILE_1)
PROD_ROWS(2, V16_TILE_2)
PROD_ROWS(3, V16_TILE_3)
PROD_ROWS(4, V16_TILE_4)
PROD_ROWS(5, V16_TILE_4)
PROD_ROWS(6, V16_TILE_4)
#if V16_ROWS == 8
PROD_ROWS(7, V16_TILE_8)
PROD_ROWS(8, V16_TILE_8)
#define PROD_MANY prod_7, prod_8
#else
#define PROD_MANY NULL, NULL
#endif

/* Blocks of at most V16_ROWS rows; a few more than that make two blocks of similar size instead of one and a rest. */
ALWAYS uint32_t prod_block(uint32_t left) {
    return left >= 2 * V16_ROWS ? V16_ROWS : left > V16_ROWS ? (left + 1) / 2 : left;
}

static void body_prod(const uint32_t *w, uint32_t k, uint32_t p0, uint32_t p1, const float *x, size_t ldx,
                      const uint32_t *idx, uint32_t rows, float *out, size_t ldo) {
    static void (*const by_rows[9])(const uint32_t *, size_t, uint32_t, uint32_t, uint32_t,
                                    const float *const *, float *const *, int) = {
        NULL, prod_1, prod_2, prod_3, prod_4, prod_5, prod_6, PROD_MANY};
    size_t panel = (size_t)k * 8;
    /* A few panels and one chain of inputs at a time, all rows over them: weights come from memory once, in
     * order, and stay in the first-level cache for the remaining row blocks. */
    uint32_t step = rows <= V16_ROWS ? V16_TILE_1 : V16_STEP;
    for (uint32_t p = p0; p < p1; p += step) {
        uint32_t n = p1 - p < step ? p1 - p : step;
        for (uint32_t k0 = 0; k0 < k; k0 += CPU_KB) {
            uint32_t kn = k - k0 < CPU_KB ? k - k0 : CPU_KB;
            for (uint32_t r0 = 0; r0 < rows;) {
                uint32_t b = prod_block(rows - r0);
                const float *xr[8];
                float *o[8];
                for (uint32_t r = 0; r < b; r++) {
                    xr[r] = x + (idx ? idx[r0 + r] : r0 + r) * ldx + k0;
                    o[r] = out + (r0 + r) * ldo + (size_t)(p - p0) * 16;
                }
                by_rows[b](w + p * panel + (size_t)k0 * 8, panel, n, p1 - p, kn, xr, o, k0 == 0);
                r0 += b;
            }
        }
    }
}

/* ---- rows stored as rows: few outputs over long inputs ---- */

ALWAYS v16 dot_weights(const uint8_t *row, uint32_t format, uint32_t i) {
    switch (format) {
    case KERN_F32:
        return v_ld((const float *)(const void *)row + i);
    case KERN_F16:
        return v_ldf16(row + 2 * (size_t)i);
    default:
        return v_ldw((const uint32_t *)(const void *)row + i / 2);
    }
}

ALWAYS void dot_rows(const int R, const uint8_t *w, const uint32_t format, uint32_t k, const float *x, float *out) {
    v16 acc[4];
    size_t row = k * (format == KERN_F32 ? 4ul : 2ul);
    V16_FOR(r, 0, R) {
        acc[r] = v_set(0.0f);
    }
    for (uint32_t i = 0; i < k; i += 16) {
        v16 xv = v_ld(x + i);
        V16_FOR(r, 0, R) {
            acc[r] = v_fma(dot_weights(w + (size_t)r * row, format, i), xv, acc[r]);
        }
    }
    V16_FOR(r, 0, R) {
        out[r] = v_sum(acc[r]);
    }
}

ALWAYS void dots_of(const uint8_t *w, const uint32_t format, uint32_t k, uint32_t i0, uint32_t i1, const float *x,
                    float *out) {
    size_t row = k * (format == KERN_F32 ? 4ul : 2ul);
    uint32_t i = i0;
    for (; i + 4 <= i1; i += 4)
        dot_rows(4, w + i * row, format, k, x, out + i);
    for (; i < i1; i++)
        dot_rows(1, w + i * row, format, k, x, out + i);
}

static void body_dots(const void *w, uint32_t format, uint32_t k, uint32_t i0, uint32_t i1, const float *x,
                      float *out) {
    if (format == KERN_F32)
        dots_of(w, KERN_F32, k, i0, i1, x, out);
    else if (format == KERN_F16)
        dots_of(w, KERN_F16, k, i0, i1, x, out);
    else
        dots_of(w, KERN_BF16, k, i0, i1, x, out);
}

#endif
