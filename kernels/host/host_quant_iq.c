/* SPDX-License-Identifier: MIT */
/* Numbers into the IQ formats. Under a given factor the nearest point of the lattice is found among all of
 * them; factors are tried: some around the root mean square for each group, then, under the factor of the
 * block they share, the two or three nearest steps. Simple, and therefore behind what weighting by
 * activations reaches. Pure functions; any thread; nothing is allocated. */
#include "host_lattice.h"
#include "host_quant_priv.h"

/* How a format chooses: F = d * (first + step * s) for a group of weights, a point for each `width` of them.
 */
struct shape {
    const uint16_t *points;
    uint32_t n_points, width, group, n_scales;
    float first, step;
    float level[8]; /* what the steps of a point are worth; no fourth step where there are three */
    float typical;  /* root mean square of usual points */
    bool parity;    /* signs come in eights with an even number of negatives */
    uint32_t
        delta; /* IQ1: weights that share the sign of the eighth that is added; there are no other signs */
};

/* What was chosen for a group of at most 32. */
struct choice {
    uint32_t point[8], signs, down; /* signs: a bit a weight; down: a bit a point, delta is negative */
};

static const struct shape XXS2 = {.points = host_iq2xxs,
                                  .n_points = 256,
                                  .width = 8,
                                  .group = 32,
                                  .n_scales = 16,
                                  .first = 0.125f,
                                  .step = 0.25f,
                                  .level = {8, 25, 43},
                                  .typical = 20,
                                  .parity = true};
static const struct shape XS2 = {.points = host_iq2xs,
                                 .n_points = 512,
                                 .width = 8,
                                 .group = 16,
                                 .n_scales = 16,
                                 .first = 0.125f,
                                 .step = 0.25f,
                                 .level = {8, 25, 43},
                                 .typical = 20,
                                 .parity = true};
static const struct shape S2 = {.points = host_iq2s,
                                .n_points = 1024,
                                .width = 8,
                                .group = 16,
                                .n_scales = 16,
                                .first = 0.125f,
                                .step = 0.25f,
                                .level = {8, 25, 43},
                                .typical = 20};
static const struct shape XXS3 = {.points = host_iq3xxs,
                                  .n_points = 256,
                                  .width = 4,
                                  .group = 32,
                                  .n_scales = 16,
                                  .first = 0.25f,
                                  .step = 0.5f,
                                  .level = {4, 12, 20, 28, 36, 44, 52, 62},
                                  .typical = 26,
                                  .parity = true};
static const struct shape S3 = {.points = host_iq3s,
                                .n_points = 512,
                                .width = 4,
                                .group = 32,
                                .n_scales = 16,
                                .first = 1,
                                .step = 2,
                                .level = {1, 3, 5, 7, 9, 11, 13, 15},
                                .typical = 6.5f};
static const struct shape S1 = {.points = host_iq1s,
                                .n_points = 2048,
                                .width = 8,
                                .group = 32,
                                .n_scales = 8,
                                .first = 1,
                                .step = 2,
                                .level = {-1, 0, 1},
                                .typical = 0.8f,
                                .delta = 32};
static const struct shape M1 = {.points = host_iq1s,
                                .n_points = 2048,
                                .width = 8,
                                .group = 16,
                                .n_scales = 8,
                                .first = 1,
                                .step = 2,
                                .level = {-1, 0, 1},
                                .typical = 0.8f,
                                .delta = 8};

/* The nearest point to x[0 .. width), squared distance returned: the cost of each half of a point's bits is
 * tabled. */
static float nearest(const struct shape *s, const float *x, uint32_t *ret_point) {
    float quarter[4][16], half[2][256], best = INFINITY;
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t v = 0; v < 16; v++) {
            float a = s->width == 8 ? x[2 * j] - s->level[v & 3] : x[j] - s->level[v & 7];
            float b = s->width == 8 ? x[2 * j + 1] - s->level[v >> 2] : 0;
            quarter[j][v] = a * a + b * b;
        }
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t v = 0; v < 256; v++)
            half[h][v] = quarter[2 * h][v & 15] + quarter[2 * h + 1][v >> 4];
    *ret_point = 0;
    for (uint32_t i = 0; i < s->n_points; i++) {
        float cost = half[0][s->points[i] & 255] + half[1][s->points[i] >> 8];
        if (cost < best) {
            best = cost;
            *ret_point = i;
        }
    }
    return best;
}

/* The signs of a group and its magnitudes; where the number of negatives must be even, the smallest one of
 * eight gives way: it counts as a magnitude below zero. */
static uint32_t take_signs(const struct shape *s, const float *w, float *mag) {
    uint32_t signs = 0;
    for (uint32_t i = 0; i < s->group; i++) {
        mag[i] = s->delta ? w[i] : fabsf(w[i]);
        if (!s->delta && w[i] < 0)
            signs |= 1u << i;
    }
    for (uint32_t i = 0; s->parity && i < s->group; i += 8) {
        uint32_t least = i;
        if (!__builtin_parity(signs >> i & 255))
            continue;
        for (uint32_t e = i; e < i + 8; e++)
            least = mag[e] < mag[least] ? e : least;
        mag[least] = -mag[least];
        signs ^= 1u << least;
    }
    return signs;
}

/* A group under factor f: squared error, and what was chosen. */
static double under(const struct shape *s, const float *mag, float f, struct choice *c) {
    float inverse = quant_inverse(f), x[32];
    double sum = 0;
    c->down = 0;
    if (!s->delta) {
        for (uint32_t i = 0; i < s->group; i++)
            x[i] = mag[i] * inverse;
        for (uint32_t i = 0; i < s->group; i += s->width)
            sum += (double)nearest(s, x + i, &c->point[i / s->width]);
        return sum * (double)f * (double)f;
    }
    for (uint32_t span = 0; span < s->group; span += s->delta) {
        double cost[2] = {0, 0};
        uint32_t point[2][4];
        for (uint32_t down = 0; down < 2; down++)
            for (uint32_t i = 0; i < s->delta; i += 8) {
                for (uint32_t e = 0; e < 8; e++)
                    x[e] = mag[span + i + e] * inverse - (down ? -0.125f : 0.125f);
                cost[down] += (double)nearest(s, x, &point[down][i / 8]);
            }
        uint32_t down = cost[1] < cost[0];
        sum += cost[down];
        for (uint32_t i = 0; i < s->delta; i += 8) {
            c->point[(span + i) / 8] = point[down][i / 8];
            c->down |= down << (span + i) / 8;
        }
    }
    return sum * (double)f * (double)f;
}

/* The best free factor of a group. */
static float free_factor(const struct shape *s, const float *mag) {
    static const float TRY[] = {0.6f, 0.7f, 0.8f, 0.9f, 1, 1.1f, 1.22f, 1.35f, 1.5f};
    struct choice c;
    double square = 0, least = INFINITY;
    float best = 0, rms;
    for (uint32_t i = 0; i < s->group; i++)
        square += (double)mag[i] * (double)mag[i];
    rms = (float)sqrt(square / s->group);
    for (size_t t = 0; rms > 0 && t < sizeof(TRY) / sizeof(TRY[0]); t++) {
        float f = rms / s->typical * TRY[t];
        double error = under(s, mag, f, &c);
        if (error < least) {
            least = error;
            best = f;
        }
    }
    return best;
}

/* All groups of a block of 256: the block's factor d, a scale and a choice for each group. */
static float choose(const struct shape *s, const float *w, uint32_t *scale, struct choice *c,
                    uint16_t *ret_d) {
    float mag[256], f[16], top = 0, d;
    uint32_t groups = 256 / s->group;
    for (uint32_t g = 0; g < groups; g++) {
        c[g].signs = take_signs(s, w + g * s->group, mag + g * s->group);
        f[g] = free_factor(s, mag + g * s->group);
        top = fmaxf(top, f[g]);
    }
    *ret_d = host_f16(top / (s->first + s->step * (float)(s->n_scales - 1)));
    d = host_f16_f32(*ret_d);
    for (uint32_t g = 0; g < groups; g++) {
        struct choice t = c[g];
        int middle = quant_near((f[g] * quant_inverse(d) - s->first) / s->step, 0, (int)s->n_scales - 1);
        double least = INFINITY;
        for (int i = middle - 1; i <= middle + 1; i++) {
            double error;
            if (i < 0 || i >= (int)s->n_scales)
                continue;
            error = under(s, mag + g * s->group, d * (s->first + s->step * (float)i), &t);
            if (error < least) {
                least = error;
                c[g] = t;
                scale[g] = (uint32_t)i;
            }
        }
    }
    return d;
}

int quant_iq2_xxs(const float *w, uint8_t *b) {
    struct choice c[8];
    uint32_t scale[8];
    uint16_t d;
    if (!isfinite(choose(&XXS2, w, scale, c, &d)))
        return -ERANGE;
    quant_put16(b, d);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t word = scale[g] << 28;
        for (uint32_t l = 0; l < 4; l++) {
            b[2 + 8 * g + l] = (uint8_t)c[g].point[l];
            word |= (c[g].signs >> (8 * l) & 127) << (7 * l);
        }
        quant_put32(b + 6 + 8 * g, word);
    }
    return 0;
}

int quant_iq2_xs(const float *w, uint8_t *b) {
    struct choice c[16];
    uint32_t scale[16];
    uint16_t d;
    if (!isfinite(choose(&XS2, w, scale, c, &d)))
        return -ERANGE;
    quant_put16(b, d);
    for (uint32_t i = 0; i < 32; i++)
        quant_put16(b + 2 + 2 * i, c[i / 2].point[i % 2] | (c[i / 2].signs >> (8 * (i % 2)) & 127) << 9);
    for (uint32_t g = 0; g < 8; g++)
        b[66 + g] = (uint8_t)(scale[2 * g] | scale[2 * g + 1] << 4);
    return 0;
}

int quant_iq2_s(const float *w, uint8_t *b) {
    struct choice c[16];
    uint32_t scale[16];
    uint16_t d;
    if (!isfinite(choose(&S2, w, scale, c, &d)))
        return -ERANGE;
    quant_put16(b, d);
    memset(b + 66, 0, 8);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t point = c[i / 2].point[i % 2];
        b[2 + i] = (uint8_t)point;
        b[34 + i] = (uint8_t)(c[i / 2].signs >> (8 * (i % 2)));
        b[66 + i / 4] |= (uint8_t)(point >> 8 << (2 * (i % 4)));
    }
    for (uint32_t g = 0; g < 8; g++)
        b[74 + g] = (uint8_t)(scale[2 * g] | scale[2 * g + 1] << 4);
    return 0;
}

int quant_iq3_xxs(const float *w, uint8_t *b) {
    struct choice c[8];
    uint32_t scale[8];
    uint16_t d;
    if (!isfinite(choose(&XXS3, w, scale, c, &d)))
        return -ERANGE;
    quant_put16(b, d);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t word = scale[g] << 28;
        for (uint32_t q = 0; q < 8; q++)
            b[2 + 8 * g + q] = (uint8_t)c[g].point[q];
        for (uint32_t l = 0; l < 4; l++)
            word |= (c[g].signs >> (8 * l) & 127) << (7 * l);
        quant_put32(b + 66 + 4 * g, word);
    }
    return 0;
}

int quant_iq3_s(const float *w, uint8_t *b) {
    struct choice c[8];
    uint32_t scale[8];
    uint16_t d;
    if (!isfinite(choose(&S3, w, scale, c, &d)))
        return -ERANGE;
    quant_put16(b, d);
    memset(b + 66, 0, 8);
    for (uint32_t g = 0; g < 8; g++) {
        for (uint32_t q = 0; q < 8; q++) {
            b[2 + 8 * g + q] = (uint8_t)c[g].point[q];
            b[66 + g] |= (uint8_t)(c[g].point[q] >> 8 << q);
        }
        quant_put32(b + 74 + 4 * g, c[g].signs);
    }
    for (uint32_t g = 0; g < 4; g++)
        b[106 + g] = (uint8_t)(scale[2 * g] | scale[2 * g + 1] << 4);
    return 0;
}

int quant_iq1_s(const float *w, uint8_t *b) {
    struct choice c[8];
    uint32_t scale[8];
    uint16_t d;
    if (!isfinite(choose(&S1, w, scale, c, &d)))
        return -ERANGE;
    quant_put16(b, d);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t h = scale[g] << 12 | (c[g].down & 1) << 15;
        for (uint32_t l = 0; l < 4; l++) {
            b[2 + 4 * g + l] = (uint8_t)c[g].point[l];
            h |= c[g].point[l] >> 8 << (3 * l);
        }
        quant_put16(b + 34 + 2 * g, h);
    }
    return 0;
}

int quant_iq1_m(const float *w, uint8_t *b) {
    struct choice c[16];
    uint32_t scale[16], word[4];
    uint16_t d;
    if (!isfinite(choose(&M1, w, scale, c, &d)))
        return -ERANGE;
    for (uint32_t i = 0; i < 4; i++)
        word[i] = ((uint32_t)d >> (4 * i) & 15u) << 12;
    for (uint32_t g = 0; g < 16; g++)
        word[g / 4] |= scale[g] << (3 * (g % 4));
    for (uint32_t i = 0; i < 4; i++)
        quant_put16(b + 48 + 2 * i, word[i]);
    memset(b + 32, 0, 16);
    for (uint32_t i = 0; i < 32; i++) {
        const struct choice *t = &c[i / 2];
        uint32_t h = t->point[i % 2] >> 8 | (t->down >> (i % 2) & 1) << 3;
        b[i] = (uint8_t)t->point[i % 2];
        b[32 + i / 2] |= (uint8_t)(h << (4 * (i & 1)));
    }
    return 0;
}

/* ---- IQ4: one level each ---- */

static uint32_t nearest_level(float x) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < 16; i++)
        if (fabsf(x - (float)host_iq4_level[i]) < fabsf(x - (float)host_iq4_level[best]))
            best = i;
    return best;
}

/* The factor of 32 numbers: the extreme one at either end of the levels and near it, corrected as in
 * host_quant_gguf.c. */
static float level_factor(const float *w) {
    float extreme = 0, best = 0;
    double gain = -1;
    for (uint32_t i = 0; i < 32; i++)
        if (fabsf(w[i]) > fabsf(extreme))
            extreme = w[i];
    for (int step = -7; extreme != 0 && step <= 7; step++) {
        float inverse = ((float)host_iq4_level[0] + 4 * (float)step) / extreme;
        double wq = 0, qq = 0;
        for (uint32_t i = 0; isfinite(inverse) && i < 32; i++) {
            double q = host_iq4_level[nearest_level(w[i] * inverse)];
            wq += (double)w[i] * q;
            qq += q * q;
        }
        if (qq > 0 && wq * wq / qq > gain) {
            gain = wq * wq / qq;
            best = (float)(wq / qq);
        }
    }
    return best;
}

static void put_levels(const float *w, float f, uint8_t *q) {
    float inverse = quant_inverse(f);
    memset(q, 0, 16);
    for (uint32_t i = 0; i < 32; i++)
        q[i % 16] |= (uint8_t)(nearest_level(w[i] * inverse) << (i / 16 * 4));
}

int quant_iq4_nl(const float *w, uint8_t *b) {
    float d;
    int r = quant_put_f16(b, level_factor(w), &d);
    if (r == 0)
        put_levels(w, d, b + 2);
    return r;
}

int quant_iq4_xs(const float *w, uint8_t *b) {
    float f[8], top = 0, d;
    uint32_t high = 0;
    int r;
    for (uint32_t g = 0; g < 8; g++) {
        f[g] = level_factor(w + 32 * g);
        top = fabsf(f[g]) > fabsf(top) ? f[g] : top;
    }
    if ((r = quant_put_f16(b, top / -32, &d)) < 0)
        return r;
    memset(b + 4, 0, 4);
    for (uint32_t g = 0; g < 8; g++) {
        int s = quant_near(f[g] * quant_inverse(d), -32, 31);
        uint32_t code = (uint32_t)(s + 32);
        b[4 + g / 2] |= (uint8_t)((code & 15) << (4 * (g & 1)));
        high |= code >> 4 << (2 * g);
        put_levels(w + 32 * g, d * (float)s, b + 8 + 16 * g);
    }
    quant_put16(b + 2, high);
    return 0;
}
