/* SPDX-License-Identifier: MIT */
/* One matrix in every published spelling. Not good quantisers, but exact ones: what is written means one
 * thing. */
#include "ckptset.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const ckpt_spelling_name[CKPT_SPELLINGS] = {
    "BF16",           "F16",          "F32",         "FP8 block",
    "FP8 block ct",   "FP8 block pb", "FP8 channel", "FP8 tensor",
    "NVFP4 modelopt", "NVFP4 ct",     "MXFP8",       "MXFP4 ct",
    "MXFP4 modelopt", "INT8",         "INT4",        "EXL3 mcg",
    "EXL3 signs",     "EXL3 3inst",
};

float ckpt_e4m3(unsigned char code) {
    int e = code >> 3 & 15, m = code & 7;
    float v = e ? ldexpf(1.0f + (float)m / 8.0f, e - 7) : ldexpf((float)m, -9);

    if ((code & 0x7f) == 0x7f)
        return NAN;
    return code & 0x80 ? -v : v;
}

/* The nearest of the codes, which are ordered as their values are; halfway the lower one. */
unsigned char ckpt_to_e4m3(float x) {
    static float value[0x7f];
    unsigned lo = 0, hi = 0x7e;
    float a = fabsf(x);

    for (unsigned c = 0x7f; c-- > 0 && value[c] == 0;)
        value[c] = ckpt_e4m3((unsigned char)c);
    while (hi - lo > 1) {
        unsigned mid = (lo + hi) / 2;

        if (value[mid] <= a)
            lo = mid;
        else
            hi = mid;
    }
    if (value[hi] - a < a - value[lo])
        lo = hi;
    return (unsigned char)(x < 0 ? lo | 0x80 : lo);
}

static unsigned char to_e2m1(float x) {
    static const float v[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    unsigned char best = 0;

    for (unsigned char c = 1; c < 8; c++)
        if (fabsf(v[c] - fabsf(x)) < fabsf(v[best] - fabsf(x)))
            best = c;
    return x < 0 ? best | 8 : best;
}

struct matrix {
    char base[150];
    uint64_t n, k;
    float *w;
};

static float amax(const struct matrix *m, uint64_t r0, uint64_t rn, uint64_t c0, uint64_t cn) {
    float a = 0;

    for (uint64_t r = r0; r < r0 + rn && r < m->n; r++)
        for (uint64_t c = c0; c < c0 + cn && c < m->k; c++)
            a = fmaxf(a, fabsf(m->w[r * m->k + c]));
    return a > 0 ? a : 1;
}

static const char *with(const struct matrix *m, const char *suffix) {
    static char buf[4][176];
    static unsigned turn;
    char *b = buf[turn++ % 4];

    snprintf(b, sizeof buf[0], "%s.%s", m->base, suffix);
    return b;
}

static void put_scale(const char *dtype, struct ckpt_tensor *t, uint64_t i, float v) {
    uint32_t u;

    memcpy(&u, &v, 4);
    if (strcmp(dtype, "F32") == 0) {
        memcpy(t->bytes + 4 * i, &v, 4);
    } else { /* BF16, cut */
        t->bytes[2 * i] = (unsigned char)(u >> 16);
        t->bytes[2 * i + 1] = (unsigned char)(u >> 24);
    }
}

static void fp8(struct ckpt_set *s, const struct matrix *m, uint64_t br, uint64_t bc, const char *suffix,
                const char *dtype, uint32_t n_dims) {
    uint64_t gr = (m->n + br - 1) / br, gc = (m->k + bc - 1) / bc;
    struct ckpt_tensor *t;
    unsigned char *codes = malloc(m->n * m->k);
    float *scale = malloc(gr * gc * sizeof *scale);

    for (uint64_t i = 0; i < gr * gc; i++)
        scale[i] = amax(m, i / gc * br, br, i % gc * bc, bc) / 448.0f;
    for (uint64_t i = 0; i < m->n * m->k; i++)
        codes[i] = ckpt_to_e4m3(m->w[i] / scale[i / m->k / br * gc + i % m->k / bc]);
    ckpt_set_put(s, with(m, "weight"), "F8_E4M3", codes, 2, m->n, m->k);
    if (n_dims == 4)
        t = ckpt_set_put(s, with(m, suffix), dtype, NULL, 4, gr, (uint64_t)1, gc, (uint64_t)1);
    else if (n_dims == 0)
        t = ckpt_set_put(s, with(m, suffix), dtype, NULL, 0);
    else
        t = ckpt_set_put(s, with(m, suffix), dtype, NULL, 2, gr, gc);
    for (uint64_t i = 0; i < gr * gc; i++)
        put_scale(dtype, t, i, scale[i]);
    free(codes);
    free(scale);
}

/* Codes two to a byte, one E4M3 factor for 16 and one F32 for all. */
static void nvfp4(struct ckpt_set *s, const struct matrix *m, int ct) {
    unsigned char *codes = calloc(m->n, m->k / 2), *scale = malloc(m->n * m->k / 16);
    float global = amax(m, 0, m->n, 0, m->k) / 2688.0f, stored = ct ? 1.0f / global : global, one = 1.0f;

    global = ct ? 1.0f / stored : global;
    for (uint64_t i = 0; i < m->n * m->k / 16; i++) {
        scale[i] = ckpt_to_e4m3(amax(m, i * 16 / m->k, 1, i * 16 % m->k, 16) / (6 * global));
        if (!scale[i])
            scale[i] = 0x38;
    }
    for (uint64_t i = 0; i < m->n * m->k; i++)
        codes[i / 2] |=
            (unsigned char)(to_e2m1(m->w[i] / (ckpt_e4m3(scale[i / 16]) * global)) << (i % 2 * 4));
    ckpt_set_put(s, with(m, ct ? "weight_packed" : "weight"), "U8", codes, 2, m->n, m->k / 2);
    ckpt_set_put(s, with(m, "weight_scale"), "F8_E4M3", scale, 2, m->n, m->k / 16);
    if (ct)
        ckpt_set_put(s, with(m, "weight_global_scale"), "F32", &stored, 1, (uint64_t)1);
    else
        ckpt_set_put(s, with(m, "weight_scale_2"), "F32", &stored, 0);
    if (!ct)
        ckpt_set_put(s, with(m, "input_scale"), "F32", &one, 0);
    free(codes);
    free(scale);
}

static void mx(struct ckpt_set *s, const struct matrix *m, int bits, int modelopt) {
    unsigned char *codes = calloc(m->n, m->k), *scale = malloc(m->n * m->k / 32);

    for (uint64_t i = 0; i < m->n * m->k / 32; i++) {
        float a = amax(m, i * 32 / m->k, 1, i * 32 % m->k, 32) / (bits == 8 ? 448.0f : 6.0f);

        scale[i] = (unsigned char)(127 + (int)ceilf(log2f(a)));
    }
    for (uint64_t i = 0; i < m->n * m->k; i++) {
        float x = ldexpf(m->w[i], 127 - scale[i / 32]);

        if (bits == 8)
            codes[i] = ckpt_to_e4m3(x);
        else
            codes[i / 2] |= (unsigned char)(to_e2m1(x) << (i % 2 * 4));
    }
    if (bits == 8)
        ckpt_set_put(s, with(m, "weight"), "F8_E4M3", codes, 2, m->n, m->k);
    else
        ckpt_set_put(s, with(m, modelopt ? "weight" : "weight_packed"), "U8", codes, 2, m->n, m->k / 2);
    ckpt_set_put(s, with(m, "weight_scale"), modelopt ? "U8" : "F8_E8M0", scale, 2, m->n, m->k / 32);
    free(codes);
    free(scale);
}

/* Words of 32 bits, the first field lowest, each q + 2^(bits-1). Groups of 128, or of the row when it is
 * none. */
static void ints(struct ckpt_set *s, const struct matrix *m, unsigned bits) {
    uint64_t g = m->k % 128 == 0 ? 128 : m->k, per = 32 / bits;
    uint32_t *words = calloc(m->n * m->k / per, 4);
    int64_t shape[2] = {(int64_t)m->n, (int64_t)m->k};
    struct ckpt_tensor *t = ckpt_set_put(s, with(m, "weight_scale"), "BF16", NULL, 2, m->n, m->k / g);

    for (uint64_t r = 0; r < m->n; r++)
        for (uint64_t c = 0; c < m->k; c++) {
            float top = (float)((1 << (bits - 1)) - 1), scale;
            uint64_t gi = r * (m->k / g) + c / g;
            uint32_t u;
            int q;

            if (c % g == 0)
                put_scale("BF16", t, gi, amax(m, r, 1, c, g) / top);
            u = (uint32_t)t->bytes[2 * gi] << 16 | (uint32_t)t->bytes[2 * gi + 1] << 24;
            memcpy(&scale, &u, 4);
            q = (int)rintf(fmaxf(-top, fminf(top, m->w[r * m->k + c] / scale)));
            words[r * (m->k / per) + c / per] |= (uint32_t)(q + (1 << (bits - 1))) << (c % per * bits);
        }
    ckpt_set_put(s, with(m, "weight_packed"), "I32", words, 2, m->n, m->k / per);
    ckpt_set_put(s, with(m, "weight_shape"), "I64", shape, 1, (uint64_t)2);
    free(words);
}

static void exl3(struct ckpt_set *s, const struct matrix *m, unsigned bits, const char *marker, int32_t value,
                 int signs) {
    struct ckpt_rng rng = {bits};
    struct ckpt_tensor *t;

    t = ckpt_set_put(s, with(m, "trellis"), "I16", NULL, 3, m->k / 16, m->n / 16, (uint64_t)16 * bits);
    for (size_t i = 0; i < t->n; i++)
        t->bytes[i] = (unsigned char)ckpt_rand(&rng);
    for (int side = 0; side < 2; side++) {
        uint64_t n = side ? m->n : m->k;

        if (signs)
            t = ckpt_set_put(s, with(m, side ? "sv" : "su"), "I16", NULL, 1, n / 16);
        else
            t = ckpt_set_put(s, with(m, side ? "svh" : "suh"), "F16", NULL, 1, n);
        for (size_t i = 0; i < t->n; i++) /* F16: between 0.06 and 0.12 in magnitude, any sign */
            t->bytes[i] = (unsigned char)(signs   ? ckpt_rand(&rng)
                                          : i % 2 ? 0x2c | (ckpt_rand(&rng) & 0x80)
                                                  : ckpt_rand(&rng));
    }
    if (marker)
        ckpt_set_put(s, with(m, marker), "I32", &value, 0);
}

static void plain(struct ckpt_set *s, const struct matrix *m, const char *dtype) {
    struct ckpt_tensor *t = ckpt_set_put(s, with(m, "weight"), dtype, NULL, 2, m->n, m->k);

    for (uint64_t i = 0; i < m->n * m->k; i++) {
        if (strcmp(dtype, "F32") == 0) {
            memcpy(t->bytes + 4 * i, &m->w[i], 4);
        } else { /* F16 by cutting: test weights are normal numbers of moderate size */
            int e;
            float f = frexpf(fabsf(m->w[i]), &e);
            unsigned h = f == 0 || e < -12 ? 0 : (unsigned)((e + 14) << 10 | ((unsigned)(f * 2048) & 1023));

            h |= m->w[i] < 0 ? 0x8000u : 0;
            t->bytes[2 * i] = (unsigned char)h;
            t->bytes[2 * i + 1] = (unsigned char)(h >> 8);
        }
    }
}

static int fits(const struct matrix *m, enum ckpt_spelling how) {
    if (how >= CKPT_EXL3)
        return m->n % 128 == 0 && m->k % 128 == 0;
    if (how == CKPT_INT8 || how == CKPT_INT4)
        return m->k % 8 == 0;
    if (how >= CKPT_MXFP8)
        return m->k % 32 == 0;
    return how < CKPT_NVFP4_MODELOPT || m->k % 16 == 0;
}

static void write_as(struct ckpt_set *s, const struct matrix *m, enum ckpt_spelling how) {
    switch (how) {
    case CKPT_FP8_BLOCK:
        fp8(s, m, 128, 128, "weight_scale_inv", "F32", 2);
        break;
    case CKPT_FP8_BLOCK_CT:
        fp8(s, m, 128, 128, "weight_scale", "BF16", 2);
        break;
    case CKPT_FP8_BLOCK_PB:
        fp8(s, m, 128, 128, "weight_scale", "F32", 4);
        break;
    case CKPT_FP8_CHANNEL:
        fp8(s, m, 1, m->k, "weight_scale", "F32", 2);
        break;
    case CKPT_FP8_TENSOR:
        fp8(s, m, m->n, m->k, "weight_scale", "F32", 0);
        break;
    case CKPT_NVFP4_MODELOPT:
    case CKPT_NVFP4_CT:
        nvfp4(s, m, how == CKPT_NVFP4_CT);
        break;
    case CKPT_MXFP8:
        mx(s, m, 8, 0);
        break;
    case CKPT_MXFP4_CT:
    case CKPT_MXFP4_MODELOPT:
        mx(s, m, 4, how == CKPT_MXFP4_MODELOPT);
        break;
    case CKPT_INT8:
        ints(s, m, 8);
        break;
    case CKPT_INT4:
        ints(s, m, 4);
        break;
    case CKPT_EXL3:
        exl3(s, m, 4, "mcg", -877912083, 0);
        break;
    case CKPT_EXL3_SIGNS:
        exl3(s, m, 3, "mul1", -2082680531, 1);
        break;
    case CKPT_EXL3_3INST:
        exl3(s, m, 2, NULL, 0, 0);
        break;
    default:
        plain(s, m, how == CKPT_F32 ? "F32" : "F16");
        break;
    }
}

int ckpt_spell(struct ckpt_set *s, const char *name, enum ckpt_spelling how) {
    struct ckpt_tensor *t = ckpt_set_get(s, name);
    struct matrix m = {.n = t->dim[0], .k = t->dim[1]};

    ck_assert_str_eq(t->dtype, "BF16");
    ck_assert_uint_eq(t->n_dims, 2);
    if (how == CKPT_BF16)
        return 0;
    if (!fits(&m, how))
        return -1;
    snprintf(m.base, sizeof m.base, "%.*s", (int)(strlen(name) - 7), name);
    m.w = malloc(m.n * m.k * sizeof *m.w);
    for (uint64_t i = 0; i < m.n * m.k; i++) {
        uint32_t u = (uint32_t)t->bytes[2 * i] << 16 | (uint32_t)t->bytes[2 * i + 1] << 24;

        memcpy(&m.w[i], &u, 4);
    }
    ckpt_set_drop(s, name);
    write_as(s, &m, how);
    free(m.w);
    return 0;
}

size_t ckpt_spell_all(struct ckpt_set *s, const char *part, enum ckpt_spelling how) {
    char(*names)[160] = calloc(s->n, sizeof *names);
    size_t n = 0, done = 0;

    for (size_t i = 0; i < s->n; i++) {
        size_t len = strlen(s->t[i].name);

        if (len > 11 && strcmp(s->t[i].name + len - 11, "proj.weight") == 0 && strstr(s->t[i].name, part) &&
            !strstr(s->t[i].name, "visual"))
            memcpy(names[n++], s->t[i].name, sizeof names[0]);
    }
    for (size_t i = 0; i < n; i++)
        done += ckpt_spell(s, names[i], how) == 0;
    free(names);
    return done;
}
