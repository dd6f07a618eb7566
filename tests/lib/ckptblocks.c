/* SPDX-License-Identifier: MIT */
/* GGUF's block types, written and read by code of the tests' own, from their description: not good
 * quantisers, but what is written means one thing, and ckpt_block_read() says what. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckptgguf.h"

const struct ckpt_block CKPT_BLOCKS[] = {
    {"Q8_0", 8, 32, 34},    {"Q4_K", 12, 256, 144}, {"Q5_K", 13, 256, 176},
    {"Q6_K", 14, 256, 210}, {"IQ4_NL", 20, 32, 18}, {"MXFP4", 39, 32, 17},
};
const size_t CKPT_N_BLOCKS = sizeof CKPT_BLOCKS / sizeof *CKPT_BLOCKS;

static void put16(unsigned char *p, double v) {
    uint16_t h = ckpt_to_f16(v);

    memcpy(p, &h, 2);
}

static double get16(const unsigned char *p) {
    uint16_t h;

    memcpy(&h, p, 2);
    return ckpt_f16(h);
}

static double largest(const float *x, unsigned n) {
    float a = 0; /* in double, gcc 12 for aarch64 breaks down over this loop */

    for (unsigned i = 0; i < n; i++)
        a = fmaxf(a, fabsf(x[i]));
    return (double)a;
}

static int within(double v, int lo, int hi) {
    return v < lo ? lo : v > hi ? hi : (int)rint(v);
}

static int ratio(double v, double scale, int lo, int hi) {
    return scale > 0 || scale < 0 ? within(v / scale, lo, hi) : within(0, lo, hi);
}

/* ---- 32 numbers and one factor ---- */

static void q8_0_write(const float *x, unsigned char *p) {
    put16(p, largest(x, 32) / 127);
    for (int i = 0; i < 32; i++)
        p[2 + i] = (unsigned char)ratio((double)x[i], get16(p), -127, 127);
}

static void q8_0_read(const unsigned char *p, double *y) {
    for (int i = 0; i < 32; i++)
        y[i] = get16(p) * (signed char)p[2 + i];
}

static const int NL[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const double E2M1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/* First halves of bytes are numbers 0..15, second ones 16..31. */
static unsigned nibble(const unsigned char *q, int i) {
    return i < 16 ? q[i] & 15u : q[i - 16] >> 4;
}

static void iq4_nl_write(const float *x, unsigned char *p) {
    memset(p, 0, 18);
    put16(p, largest(x, 32) / 120);
    for (int i = 0; i < 32; i++) {
        unsigned best = 0;

        for (unsigned c = 1; c < 16; c++)
            if (fabs((double)x[i] - get16(p) * NL[c]) < fabs((double)x[i] - get16(p) * NL[best]))
                best = c;
        p[2 + i % 16] |= (unsigned char)(best << (i < 16 ? 0 : 4));
    }
}

static void iq4_nl_read(const unsigned char *p, double *y) {
    for (int i = 0; i < 32; i++)
        y[i] = get16(p) * NL[nibble(p + 2, i)];
}

static void mxfp4_write(const float *x, unsigned char *p) {
    double a = largest(x, 32);
    int e = a > 0 ? (int)ceil(log2(a / 6)) : 0;

    memset(p, 0, 17);
    p[0] = (unsigned char)(127 + e);
    for (int i = 0; i < 32; i++) {
        unsigned best = 0;

        for (unsigned c = 1; c < 8; c++)
            if (fabs(fabs((double)x[i]) - ldexp(E2M1[c], e)) <
                fabs(fabs((double)x[i]) - ldexp(E2M1[best], e)))
                best = c;
        p[1 + i % 16] |= (unsigned char)((best | (best && x[i] < 0 ? 8 : 0)) << (i < 16 ? 0 : 4));
    }
}

static void mxfp4_read(const unsigned char *p, double *y) {
    for (int i = 0; i < 32; i++) {
        unsigned c = nibble(p + 1, i);

        y[i] = ldexp(c & 8 ? -E2M1[c & 7] : E2M1[c & 7], p[0] - 127);
    }
}

/* ---- 256 numbers; groups with factors of their own ---- */

/* Factor and offset of group j, six bits each, in 12 bytes. */
static void put_group(unsigned char *s, int j, unsigned scale, unsigned min) {
    if (j < 4) {
        s[j] |= (unsigned char)scale;
        s[j + 4] |= (unsigned char)min;
    } else {
        s[j + 4] |= (unsigned char)((scale & 15) | (min & 15) << 4);
        s[j - 4] |= (unsigned char)(scale >> 4 << 6);
        s[j] |= (unsigned char)(min >> 4 << 6);
    }
}

static unsigned group_scale(const unsigned char *s, int j) {
    return j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | (unsigned)(s[j - 4] >> 6) << 4;
}

static unsigned group_min(const unsigned char *s, int j) {
    return j < 4 ? s[j + 4] & 63u : (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;
}

/* Eight groups of 32 with codes from 0 to top; code of number i goes to out[i]. */
static void k_groups(const float *x, int top, unsigned char *p, unsigned char *out) {
    double lo[8], step[8], d = 0, m = 0;

    for (int j = 0; j < 8; j++) {
        double hi = 0;

        lo[j] = 0;
        for (int i = 32 * j; i < 32 * j + 32; i++) {
            lo[j] = fmin(lo[j], (double)x[i]);
            hi = fmax(hi, (double)x[i]);
        }
        step[j] = (hi - lo[j]) / top;
        d = fmax(d, step[j] / 63);
        m = fmax(m, -lo[j] / 63);
    }
    memset(p, 0, 16);
    put16(p, d);
    put16(p + 2, m);
    for (int j = 0; j < 8; j++)
        put_group(p + 4, j, (unsigned)ratio(step[j], get16(p), 0, 63),
                  (unsigned)ratio(-lo[j], get16(p + 2), 0, 63));
    for (int i = 0; i < 256; i++) {
        const double s = get16(p) * group_scale(p + 4, i / 32), off = get16(p + 2) * group_min(p + 4, i / 32);

        out[i] = (unsigned char)ratio((double)x[i] + off, s, 0, top);
    }
}

static void q4_5_write(const float *x, unsigned char *p, int five) {
    unsigned char code[256], *q = p + (five ? 48 : 16);

    k_groups(x, five ? 31 : 15, p, code);
    memset(p + 16, 0, five ? 160 : 128);
    for (int i = 0; i < 256; i++) {
        q[i / 64 * 32 + i % 32] |= (unsigned char)((code[i] & 15) << (i / 32 % 2 * 4));
        if (five)
            p[16 + i % 32] |= (unsigned char)(code[i] >> 4 << (i / 32));
    }
}

static void q4_5_read(const unsigned char *p, double *y, int five) {
    const unsigned char *q = p + (five ? 48 : 16);

    for (int i = 0; i < 256; i++) {
        int v = q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;

        v += five ? 16 * (p[16 + i % 32] >> (i / 32) & 1) : 0;
        y[i] = get16(p) * group_scale(p + 4, i / 32) * v - get16(p + 2) * group_min(p + 4, i / 32);
    }
}

/* Low four bits [128], high two [64], sixteen factors, d. Number i: half h, quarter k of it, place l. */
static void q6_k_write(const float *x, unsigned char *p) {
    double d = 0;

    memset(p, 0, 210);
    for (int j = 0; j < 16; j++)
        d = fmax(d, largest(x + 16 * j, 16) / 31 / 127);
    put16(p + 208, d);
    for (int j = 0; j < 16; j++)
        p[192 + j] = (unsigned char)ratio(largest(x + 16 * j, 16) / 31, get16(p + 208), 0, 127);
    for (int i = 0; i < 256; i++) {
        const int h = i / 128, k = i % 128 / 32, l = i % 32;
        const int code = ratio((double)x[i], get16(p + 208) * (signed char)p[192 + i / 16], -32, 31) + 32;

        p[64 * h + l + 32 * (k & 1)] |= (unsigned char)((code & 15) << (k < 2 ? 0 : 4));
        p[128 + 32 * h + l] |= (unsigned char)(code >> 4 << (2 * k));
    }
}

static void q6_k_read(const unsigned char *p, double *y) {
    for (int i = 0; i < 256; i++) {
        const int h = i / 128, k = i % 128 / 32, l = i % 32;
        const int low = p[64 * h + l + 32 * (k & 1)] >> (k < 2 ? 0 : 4) & 15;
        const int high = p[128 + 32 * h + l] >> (2 * k) & 3;

        y[i] = get16(p + 208) * (signed char)p[192 + 8 * h + 2 * k + l / 16] * ((low | high << 4) - 32);
    }
}

void ckpt_block_write(const struct ckpt_block *b, const float *x, unsigned char *p) {
    if (b->type == 8)
        q8_0_write(x, p);
    else if (b->type == 12 || b->type == 13)
        q4_5_write(x, p, b->type == 13);
    else if (b->type == 14)
        q6_k_write(x, p);
    else if (b->type == 20)
        iq4_nl_write(x, p);
    else
        mxfp4_write(x, p);
}

void ckpt_block_read(const struct ckpt_block *b, const unsigned char *p, float *ret) {
    double y[256];

    if (b->type == 8)
        q8_0_read(p, y);
    else if (b->type == 12 || b->type == 13)
        q4_5_read(p, y, b->type == 13);
    else if (b->type == 14)
        q6_k_read(p, y);
    else if (b->type == 20)
        iq4_nl_read(p, y);
    else
        mxfp4_read(p, y);
    for (uint32_t i = 0; i < b->numbers; i++)
        ret[i] = (float)y[i];
}

size_t ckpt_gguf_spell(struct ckpt_gguf *g, struct ckpt_gguf *plain, const char *part,
                       const struct ckpt_block *b) {
    size_t done = 0;

    for (size_t t = 0; t < g->n_t; t++) {
        struct ckpt_gguf_tensor *x = &g->t[t], *y = &plain->t[t];
        const size_t n = x->n / 2, blocks = n / b->numbers;
        unsigned char *codes;
        float *w, in[256];

        ck_assert_str_eq(x->name, y->name);
        if (x->type != 30 || !strstr(x->name, part) || strstr(x->name, "hc_") || x->ne[0] % b->numbers != 0)
            continue;
        codes = malloc(blocks * b->bytes);
        w = malloc(n * sizeof *w);
        for (size_t i = 0; i < blocks; i++) {
            for (size_t k = 0; k < b->numbers; k++) {
                uint16_t h;

                memcpy(&h, x->bytes + 2 * (i * b->numbers + k), 2);
                in[k] = (float)ckpt_bf16(h);
            }
            ckpt_block_write(b, in, codes + i * b->bytes);
            ckpt_block_read(b, codes + i * b->bytes, w + i * b->numbers);
        }
        free(x->bytes);
        free(y->bytes);
        x->bytes = codes;
        x->n = blocks * b->bytes;
        x->type = b->type;
        y->bytes = (unsigned char *)w;
        y->n = n * sizeof *w;
        y->type = 0;
        done++;
    }
    return done;
}
