/* SPDX-License-Identifier: MIT */
/* Numbers into GGUF blocks: Q8_0, the K formats, the two block-scaled ones, and the dispatch; the formats
 * that choose from lattices are in host_quant_iq.c. Scales of sub-blocks are found by trying some and keeping
 * what has the smallest squared error; no weighting by activations. Pure functions; any thread; nothing is
 * allocated. */
#include "host_quant_priv.h"

static float amax_of(const float *w, uint32_t n) {
    float top = 0;
    for (uint32_t i = 0; i < n; i++)
        top = fmaxf(top, fabsf(w[i]));
    return top;
}

static int q8_0(const float *w, uint8_t *b) {
    float d = 0;
    int r = quant_put_f16(b, amax_of(w, 32) / 127, &d);
    float inverse = quant_inverse(d);
    for (uint32_t i = 0; r == 0 && i < 32; i++)
        b[2 + i] = (uint8_t)quant_near(w[i] * inverse, -127, 127);
    return r;
}

/* The factor f for whole numbers lo .. -lo-1, f * q near w: the extreme one at lo and a little to either side
 * of it, each corrected to the best factor for the numbers it gives. */
static float symmetric(const float *w, uint32_t n, int lo) {
    float extreme = 0, best = 0;
    double best_gain = -1;
    for (uint32_t i = 0; i < n; i++)
        if (fabsf(w[i]) > fabsf(extreme))
            extreme = w[i];
    if (extreme == 0)
        return 0;
    for (int step = -9; step <= 9; step++) {
        float inverse = ((float)lo + 0.1f * (float)step) / extreme;
        double wq = 0, qq = 0;
        if (!isfinite(inverse))
            return 0;
        for (uint32_t i = 0; i < n; i++) {
            double q = quant_near(w[i] * inverse, lo, -lo - 1);
            wq += (double)w[i] * q;
            qq += q * q;
        }
        /* the error is sum w^2 - wq^2 / qq */
        if (qq > 0 && wq * wq / qq > best_gain) {
            best_gain = wq * wq / qq;
            best = (float)(wq / qq);
        }
    }
    return best;
}

/* w near f * q - m, q in 0 .. hi, m >= 0. */
static void affine(const float *w, uint32_t n, int hi, float *ret_f, float *ret_m) {
    float low = w[0], high = w[0];
    double sum_w = 0, best = -1;
    for (uint32_t i = 0; i < n; i++) {
        low = fminf(low, w[i]);
        high = fmaxf(high, w[i]);
        sum_w += (double)w[i];
    }
    low = fminf(low, 0);
    *ret_f = 0;
    *ret_m = -low;
    if (!(high > low))
        return;
    for (int step = -5; step <= 15; step++) {
        float inverse = ((float)hi + 0.1f * (float)step) / (high - low);
        double sq = 0, sqq = 0, swq = 0, f, m, error = 0;
        if (!isfinite(inverse))
            return;
        for (uint32_t i = 0; i < n; i++) {
            double q = quant_near((w[i] - low) * inverse, 0, hi);
            sq += q;
            sqq += q * q;
            swq += q * (double)w[i];
        }
        double det = n * sqq - sq * sq;
        if (det <= 0)
            continue;
        f = (n * swq - sq * sum_w) / det;
        m = -(sqq * sum_w - sq * swq) / det;
        if (m < 0) {
            m = 0;
            f = swq / sqq;
        }
        for (uint32_t i = 0; i < n; i++) {
            double q = quant_near((w[i] - low) * inverse, 0, hi), e = f * q - m - (double)w[i];
            error += e * e;
        }
        if (f > 0 && (best < 0 || error < best)) {
            best = error;
            *ret_f = (float)f;
            *ret_m = (float)m;
        }
    }
}

static int q2_k(const float *w, uint8_t *b) {
    float f[16], m[16], d, dmin;
    for (uint32_t g = 0; g < 16; g++)
        affine(w + 16 * g, 16, 3, &f[g], &m[g]);
    if (quant_put_f16(b + 80, amax_of(f, 16) / 15, &d) < 0 ||
        quant_put_f16(b + 82, amax_of(m, 16) / 15, &dmin) < 0)
        return -ERANGE;
    memset(b + 16, 0, 64);
    for (uint32_t g = 0; g < 16; g++) {
        uint32_t s = (uint32_t)quant_near(f[g] * quant_inverse(d), 0, 15);
        uint32_t least = (uint32_t)quant_near(m[g] * quant_inverse(dmin), 0, 15);
        float inverse = quant_inverse(d * (float)s), low = dmin * (float)least;
        b[g] = (uint8_t)(s | least << 4);
        for (uint32_t i = 16 * g; i < 16 * g + 16; i++) {
            uint32_t v = (uint32_t)quant_near((w[i] + low) * inverse, 0, 3);
            b[16 + 32 * (i / 128) + i % 32] |= (uint8_t)(v << (2 * (i % 128 / 32)));
        }
    }
    return 0;
}

static int q3_k(const float *w, uint8_t *b) {
    uint8_t *s12 = b + 96;
    float f[16], d;
    for (uint32_t g = 0; g < 16; g++)
        f[g] = symmetric(w + 16 * g, 16, -4);
    if (quant_put_f16(b + 108, symmetric(f, 16, -32), &d) < 0)
        return -ERANGE;
    memset(b, 0, 108);
    for (uint32_t g = 0; g < 16; g++) {
        int s = quant_near(f[g] * quant_inverse(d), -32, 31);
        uint32_t code = (uint32_t)(s + 32);
        float inverse = quant_inverse(d * (float)s);
        s12[g % 8] |= (uint8_t)((code & 15) << (g / 8 * 4));
        s12[8 + g % 4] |= (uint8_t)(code >> 4 << (2 * (g / 4)));
        for (uint32_t i = 16 * g; i < 16 * g + 16; i++) {
            uint32_t v = (uint32_t)(quant_near(w[i] * inverse, -4, 3) + 4), h = i / 128, j = i % 128 / 32,
                     l = i % 32;
            b[32 + 32 * h + l] |= (uint8_t)((v & 3) << (2 * j));
            b[l] |= (uint8_t)(v >> 2 << (4 * h + j));
        }
    }
    return 0;
}

static void put_k_scale(uint8_t *s, uint32_t j, uint32_t scale, uint32_t least) {
    if (j < 4) {
        s[j] |= (uint8_t)scale;
        s[j + 4] |= (uint8_t)least;
    } else {
        s[j + 4] = (uint8_t)((scale & 15) | (least & 15) << 4);
        s[j - 4] |= (uint8_t)(scale >> 4 << 6);
        s[j] |= (uint8_t)(least >> 4 << 6);
    }
}

static int q45_k(const float *w, uint8_t *b, uint8_t *qh, uint8_t *q) {
    int hi = qh ? 31 : 15;
    float f[8], m[8], d, dmin;
    for (uint32_t j = 0; j < 8; j++)
        affine(w + 32 * j, 32, hi, &f[j], &m[j]);
    if (quant_put_f16(b, amax_of(f, 8) / 63, &d) < 0 || quant_put_f16(b + 2, amax_of(m, 8) / 63, &dmin) < 0)
        return -ERANGE;
    memset(b + 4, 0, 12);
    memset(q, 0, 128);
    if (qh)
        memset(qh, 0, 32);
    for (uint32_t j = 0; j < 8; j++) {
        uint32_t s = (uint32_t)quant_near(f[j] * quant_inverse(d), 0, 63);
        uint32_t least = (uint32_t)quant_near(m[j] * quant_inverse(dmin), 0, 63);
        float inverse = quant_inverse(d * (float)s), low = dmin * (float)least;
        put_k_scale(b + 4, j, s, least);
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t v = (uint32_t)quant_near((w[32 * j + l] + low) * inverse, 0, hi);
            q[32 * (j / 2) + l] |= (uint8_t)((v & 15) << (4 * (j & 1)));
            if (qh)
                qh[l] |= (uint8_t)(v >> 4 << j);
        }
    }
    return 0;
}
static int q4_k(const float *w, uint8_t *b) {
    return q45_k(w, b, NULL, b + 16);
}
static int q5_k(const float *w, uint8_t *b) {
    return q45_k(w, b, b + 16, b + 48);
}

static int q6_k(const float *w, uint8_t *b) {
    float f[16], d;
    for (uint32_t g = 0; g < 16; g++)
        f[g] = symmetric(w + 16 * g, 16, -32);
    if (quant_put_f16(b + 208, amax_of(f, 16) / 127, &d) < 0)
        return -ERANGE;
    memset(b, 0, 192);
    for (uint32_t g = 0; g < 16; g++) {
        int s = quant_near(f[g] * quant_inverse(d), -127, 127);
        float inverse = quant_inverse(d * (float)s);
        b[192 + g] = (uint8_t)s;
        for (uint32_t i = 16 * g; i < 16 * g + 16; i++) {
            uint32_t v = (uint32_t)(quant_near(w[i] * inverse, -32, 31) + 32), h = i / 128, p = i % 128 / 32,
                     l = i % 32;
            b[64 * h + l + 32 * (p & 1)] |= (uint8_t)((v & 15) << (p < 2 ? 0 : 4));
            b[128 + 32 * h + l] |= (uint8_t)(v >> 4 << (2 * p));
        }
    }
    return 0;
}

/* The code of these two formats has no -0. */
static uint32_t no_zero_sign(uint32_t code) {
    return code == 8 ? 0 : code;
}

static int mxfp4(const float *w, uint8_t *b) {
    float top = amax_of(w, 32), f;
    double best = -1;
    int e = 0, first;
    frexpf(top / 6, &first);
    for (int t = first - 1; t <= first; t++) {
        double error = 0;
        f = ldexpf(1, t < -126 ? -126 : t);
        for (uint32_t i = 0; i < 32; i++) {
            double x = (double)w[i] - (double)(host_e2m1_f32(quant_e2m1(w[i] / f)) * f);
            error += x * x;
        }
        if (best < 0 || error < best) {
            best = error;
            e = t < -126 ? -126 : t;
        }
    }
    f = ldexpf(1, e);
    b[0] = (uint8_t)(e + 127);
    memset(b + 1, 0, 16);
    for (uint32_t i = 0; i < 32; i++)
        b[1 + i % 16] |= (uint8_t)(no_zero_sign(quant_e2m1(w[i] / f)) << (i / 16 * 4));
    return 0;
}

static int nvfp4(const float *w, uint8_t *b) {
    memset(b, 0, 36);
    for (uint32_t g = 0; g < 4; g++) {
        float f = amax_of(w + 16 * g, 16) / 6;
        if (f > 449)
            return -ERANGE; /* a little more than 448 is what the matrix's factor was rounded by */
        b[g] = host_e4m3(f == 0 ? 1 : f < 0x1p-9f ? 0x1p-9f : f);
        f = host_e4m3_f32(b[g]);
        for (uint32_t i = 0; i < 16; i++)
            b[4 + 8 * g + i % 8] |= (uint8_t)(no_zero_sign(quant_e2m1(w[16 * g + i] / f)) << (i / 8 * 4));
    }
    return 0;
}

int host_quant_block(uint32_t format, const float *w, uint8_t *block) {
    static int (*const quant[])(const float *, uint8_t *) = {
        [KERN_Q8_0] = q8_0,           [KERN_Q2_K] = q2_k,           [KERN_Q3_K] = q3_k,
        [KERN_Q4_K] = q4_k,           [KERN_Q5_K] = q5_k,           [KERN_Q6_K] = q6_k,
        [KERN_IQ1_S] = quant_iq1_s,   [KERN_IQ1_M] = quant_iq1_m,   [KERN_IQ2_XXS] = quant_iq2_xxs,
        [KERN_IQ2_XS] = quant_iq2_xs, [KERN_IQ2_S] = quant_iq2_s,   [KERN_IQ3_XXS] = quant_iq3_xxs,
        [KERN_IQ3_S] = quant_iq3_s,   [KERN_IQ4_NL] = quant_iq4_nl, [KERN_IQ4_XS] = quant_iq4_xs,
        [KERN_GGUF_MXFP4] = mxfp4,    [KERN_GGUF_NVFP4] = nvfp4,
    };
    return quant[format](w, block);
}
