/* SPDX-License-Identifier: MIT */
/* What quantised tensors mean, spelling by spelling, from the formats' descriptions: slow and plain, and
 * nothing of kernels/ or of the daemon. The result is F32. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptset.h"

static struct ckpt_tensor *piece(struct ckpt_set *s, const char *base, const char *suffix) {
    char name[200];

    snprintf(name, sizeof name, "%s.%s", base, suffix);
    return ckpt_set_find(s, name);
}

/* Number i of a tensor of scales or of one global factor. */
static double number(const struct ckpt_tensor *t, uint64_t i) {
    float f;
    uint16_t h;

    if (strcmp(t->dtype, "F32") == 0) {
        memcpy(&f, t->bytes + 4 * i, 4);
        return (double)f;
    }
    if (strcmp(t->dtype, "BF16") == 0 || strcmp(t->dtype, "F16") == 0) {
        memcpy(&h, t->bytes + 2 * i, 2);
        return t->dtype[0] == 'B' ? ckpt_bf16(h) : ckpt_f16(h);
    }
    if (strcmp(t->dtype, "F8_E4M3") == 0)
        return (double)ckpt_e4m3(t->bytes[i]);
    if (strcmp(t->dtype, "U8") != 0 && strcmp(t->dtype, "F8_E8M0") != 0)
        ck_abort_msg("%s: %s", t->name, t->dtype); /* not an assertion: those cost a system call each */
    return ldexp(1, t->bytes[i] - 127);
}

/* Four bits with even numbers in the low half of a byte. */
static double e2m1(const unsigned char *bytes, uint64_t i) {
    static const double mag[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const unsigned code = bytes[i / 2] >> (i % 2 * 4) & 15;

    return code & 8 ? -mag[code & 7] : mag[code & 7];
}

struct plain {
    uint64_t n, k;
    float *w;
};

static struct plain plain_new(uint64_t n, uint64_t k) {
    struct plain p = {n, k, malloc(n * k * sizeof(float))};

    ck_assert_ptr_nonnull(p.w);
    return p;
}

/* Codes of one byte: a factor for the whole, for each row, for each block of 128 x 128, or (E8M0) for
 * each 32. */
static struct plain eight_bits(struct ckpt_set *s, const char *base, const struct ckpt_tensor *w) {
    const struct ckpt_tensor *sc = piece(s, base, "weight_scale_inv");
    struct plain p = plain_new(w->dim[0], w->dim[1]);
    uint64_t gr = 1, gc = 1;
    int mx;

    if (!sc)
        sc = piece(s, base, "weight_scale");
    ck_assert_msg(sc != NULL, "%s has no scales", base);
    mx = strcmp(sc->dtype, "F8_E8M0") == 0 || strcmp(sc->dtype, "U8") == 0;
    if (sc->n_dims == 2 || sc->n_dims == 4) {
        gr = sc->dim[0];
        gc = sc->dim[sc->n_dims / 2];
    }
    for (uint64_t r = 0; r < p.n; r++)
        for (uint64_t c = 0; c < p.k; c++) {
            uint64_t i = gr == p.n ? r : gr == 1 ? 0 : r / 128, j = gc == 1 ? 0 : c / (mx ? 32 : 128);

            p.w[r * p.k + c] = (float)((double)ckpt_e4m3(w->bytes[r * p.k + c]) * number(sc, i * gc + j));
        }
    return p;
}

/* Codes of four bits: groups of 16 with one more factor for all, or of 32. */
static struct plain four_bits(struct ckpt_set *s, const char *base, const struct ckpt_tensor *w) {
    const struct ckpt_tensor *sc = piece(s, base, "weight_scale"), *mul = piece(s, base, "weight_scale_2");
    const struct ckpt_tensor *div = piece(s, base, "weight_global_scale");
    const double all = mul ? number(mul, 0) : div ? 1 / number(div, 0) : 1;
    const uint64_t group = mul || div ? 16 : 32;
    struct plain p = plain_new(w->dim[0], w->dim[1] * 2);

    for (uint64_t i = 0; i < p.n * p.k; i++)
        p.w[i] = (float)(e2m1(w->bytes, i) * number(sc, i / group) * all);
    return p;
}

/* Words of fields, the lowest first; a field is the number and half of the range. */
static struct plain fields(struct ckpt_set *s, const char *base, const struct ckpt_tensor *w) {
    const struct ckpt_tensor *sc = piece(s, base, "weight_scale"), *shape = piece(s, base, "weight_shape");
    uint64_t dim[2], bits, per, groups = sc->dim[1];
    struct plain p;

    memcpy(dim, shape->bytes, sizeof dim);
    p = plain_new(dim[0], dim[1]);
    bits = w->dim[1] * 32 / p.k;
    per = 32 / bits;
    for (uint64_t r = 0; r < p.n; r++)
        for (uint64_t c = 0; c < p.k; c++) {
            uint32_t word;
            double q;

            memcpy(&word, w->bytes + 4 * (r * w->dim[1] + c / per), 4);
            q = (double)(word >> (c % per * bits) & ((1u << bits) - 1)) - (double)(1u << (bits - 1));
            p.w[r * p.k + c] = (float)(q * number(sc, r * groups + c / (p.k / groups)));
        }
    return p;
}

/* ---- EXL3 ---- */

enum book { BOOK_3INST, BOOK_MCG, BOOK_MUL1 };

/* The value of a state of 16 bits, with the roundings of half precision that the description names. */
static double book_value(enum book b, uint32_t state) {
    uint32_t x, sum = 0;

    if (b == BOOK_MUL1) {
        x = state * 0x83DCD12Du;
        for (int i = 0; i < 4; i++)
            sum += x >> (8 * i) & 255;
        return ckpt_f16(ckpt_to_f16((1024 + sum) * ckpt_f16(0x1eee) + ckpt_f16(0xc931)));
    }
    x = b == BOOK_MCG ? state * 0xCBAC1FEDu : state * 89226354u + 64248484u;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    return ckpt_f16(ckpt_to_f16(ckpt_f16((uint16_t)x) + ckpt_f16((uint16_t)(x >> 16))));
}

/* Bit i of a tile's stream: the highest bit of its first word comes first. */
static uint32_t stream_bit(const unsigned char *tile, uint32_t i) {
    uint32_t word;

    memcpy(&word, tile + i / 32 * 4, 4);
    return word >> (31 - i % 32) & 1;
}

/* The 256 numbers of one tile into w[k][n] (row length n). */
static void tile_values(const unsigned char *tile, uint32_t bits, const double *value, double *w,
                        uint64_t n) {
    const uint32_t all = 256 * bits;

    for (uint32_t t = 0; t < 256; t++) {
        uint32_t lane = t / 8, j = t % 8, state = 0, start = (t * bits + bits + all - 16) % all;

        for (uint32_t i = 0; i < 16; i++)
            state = state << 1 | stream_bit(tile, (start + i) % all);
        w[(2 * (lane % 4) + (j & 1) + 8 * (j >> 1 & 1)) * n + lane / 4 + 8 * (j >> 2)] = value[state];
    }
}

/* In place, over numbers `step` apart: a 128-point Hadamard transform, normalised. */
static void hadamard(double *v, uint64_t step) {
    for (uint32_t h = 1; h < 128; h *= 2)
        for (uint32_t i = 0; i < 128; i++)
            if (!(i & h)) {
                double a = v[i * step], b = v[(i + h) * step];

                v[i * step] = a + b;
                v[(i + h) * step] = a - b;
            }
    for (uint32_t i = 0; i < 128; i++)
        v[i * step] /= sqrt(128);
}

static double side_scale(struct ckpt_set *s, const char *base, int out, uint64_t i) {
    const struct ckpt_tensor *f = piece(s, base, out ? "svh" : "suh"), *b = piece(s, base, out ? "sv" : "su");
    uint16_t word;

    if (f)
        return number(f, i);
    memcpy(&word, b->bytes + i / 16 * 2, 2);
    return word >> (i % 16) & 1 ? -1 : 1;
}

static struct plain trellis(struct ckpt_set *s, const char *base, const struct ckpt_tensor *w) {
    const uint64_t k = w->dim[0] * 16, n = w->dim[1] * 16;
    const uint32_t bits = (uint32_t)w->dim[2] / 16;
    const enum book book = piece(s, base, "mcg") ? BOOK_MCG : piece(s, base, "mul1") ? BOOK_MUL1 : BOOK_3INST;
    double *v = malloc(k * n * sizeof *v), *value = malloc(65536 * sizeof *value);
    struct plain p = plain_new(n, k);

    for (uint32_t i = 0; i < 65536; i++)
        value[i] = book_value(book, i);
    for (uint64_t a = 0; a < w->dim[0]; a++)
        for (uint64_t b = 0; b < w->dim[1]; b++)
            tile_values(w->bytes + (a * w->dim[1] + b) * 32 * bits, bits, value, v + a * 16 * n + b * 16, n);
    for (uint64_t r = 0; r < k; r++)
        for (uint64_t b = 0; b < n; b += 128)
            hadamard(v + r * n + b, 1);
    for (uint64_t c = 0; c < n; c++)
        for (uint64_t b = 0; b < k; b += 128)
            hadamard(v + b * n + c, n);
    for (uint64_t c = 0; c < n; c++) {
        const double out = side_scale(s, base, 1, c);

        for (uint64_t r = 0; r < k; r++)
            p.w[c * k + r] = (float)(v[r * n + c] * out);
    }
    for (uint64_t r = 0; r < k; r++) {
        const float in = (float)side_scale(s, base, 0, r);

        for (uint64_t c = 0; c < n; c++)
            p.w[c * k + r] *= in;
    }
    free(v);
    free(value);
    return p;
}

/* ---- all ---- */

static void replace(struct ckpt_set *s, const char *base, struct plain p) {
    static const char *const suffix[] = {"weight",       "weight_packed",
                                         "weight_scale", "weight_scale_2",
                                         "weight_shape", "weight_global_scale",
                                         "input_scale",  "weight_scale_inv",
                                         "trellis",      "suh",
                                         "svh",          "su",
                                         "sv",           "mcg",
                                         "mul1"};
    char name[200];

    for (size_t i = 0; i < sizeof suffix / sizeof *suffix; i++)
        if (piece(s, base, suffix[i])) {
            snprintf(name, sizeof name, "%s.%s", base, suffix[i]);
            ckpt_set_drop(s, name);
        }
    snprintf(name, sizeof name, "%s.weight", base);
    ckpt_set_put(s, name, "F32", p.w, 2, p.n, p.k);
    free(p.w);
}

size_t ckpt_plain_all(struct ckpt_set *s) {
    size_t done = 0;

    for (size_t i = 0; i < s->n;) {
        const struct ckpt_tensor *t = &s->t[i];
        const char *dot = strrchr(t->name, '.');
        char base[160];
        struct plain p;

        snprintf(base, sizeof base, "%.*s", dot ? (int)(dot - t->name) : 0, t->name);
        if (dot && strcmp(dot, ".trellis") == 0)
            p = trellis(s, base, t);
        else if (dot && strcmp(dot, ".weight_packed") == 0 && strcmp(t->dtype, "I32") == 0)
            p = fields(s, base, t);
        else if (dot && (strcmp(dot, ".weight_packed") == 0 || strcmp(dot, ".weight") == 0) &&
                 strcmp(t->dtype, "U8") == 0)
            p = four_bits(s, base, t);
        else if (dot && strcmp(dot, ".weight") == 0 && strcmp(t->dtype, "F8_E4M3") == 0)
            p = eight_bits(s, base, t);
        else {
            i++;
            continue;
        }
        replace(s, base, p);
        done++;
        i = 0; /* tensors moved */
    }
    return done;
}
