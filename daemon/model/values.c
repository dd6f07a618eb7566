/* SPDX-License-Identifier: MIT */
/* Which numbers a checkpoint may hold. A weight that is no number makes every answer noise, or hides where
 * one comparison drops it; a scale of another sign or a factor that is really a divisor gives a model that
 * runs. While the bytes are at hand looking costs next to nothing: eight at a time, and one by one only where
 * one is suspicious. */
#include "values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MCG = -877912083,   /* 0xCBAC1FED */
    MUL1 = -2082680531, /* 0x83DCD12D */
};

/* Where a GGUF block has its F16 factors; 0xff: none. IQ1_M has the bits of one strewn over its scales. */
struct block {
    uint8_t d, dmin;
};

static const struct block BLOCK[KERN_FORMAT_END] = {
    [KERN_Q8_0] = {0, 0xff},
    [KERN_Q2_K] = {80, 82},
    [KERN_Q3_K] = {108, 0xff},
    [KERN_Q4_K] = {0, 2},
    [KERN_Q5_K] = {0, 2},
    [KERN_Q6_K] = {208, 0xff},
    [KERN_IQ1_S] = {0, 0xff},
    [KERN_IQ2_XXS] = {0, 0xff},
    [KERN_IQ2_XS] = {0, 0xff},
    [KERN_IQ2_S] = {0, 0xff},
    [KERN_IQ3_XXS] = {0, 0xff},
    [KERN_IQ3_S] = {0, 0xff},
    [KERN_IQ4_NL] = {0, 0xff},
    [KERN_IQ4_XS] = {0, 0xff},
    [KERN_IQ1_M] = {0xff, 0xff},
    [KERN_GGUF_MXFP4] = {0xff, 0xff},
    [KERN_GGUF_NVFP4] = {0xff, 0xff},
};

static bool is_blocks(const struct model_item *it) {
    return it->number == MODEL_NUM_BYTES && it->k.store.format >= KERN_Q8_0;
}

static uint32_t size_of(uint8_t number) {
    switch (number) {
    case MODEL_NUM_I64:
        return 8;
    case MODEL_NUM_F32:
    case MODEL_NUM_I32:
        return 4;
    case MODEL_NUM_BF16:
    case MODEL_NUM_F16:
        return 2;
    default:
        return 1;
    }
}

uint32_t model_number_unit(const struct model_item *it) {
    uint32_t weights, bytes;

    if (is_blocks(it) && kern_store_block(&it->k.store, &weights, &bytes) == 0)
        return bytes;
    return 64;
}

/* ---- one number ---- */

static uint64_t le(const unsigned char *p, uint32_t n) {
    uint64_t v = 0;

    while (n--)
        v = v << 8 | p[n];
    return v;
}

static float of_bits(uint32_t u) {
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static float of_f16(uint32_t h) {
    uint32_t e = h >> 10 & 31, m = h & 1023;
    float v = e == 31 ? (m ? NAN : INFINITY)
              : e     ? ldexpf((float)(1024 + m), (int)e - 25)
                      : ldexpf((float)m, -24);

    return h & 0x8000 ? -v : v;
}

static float of_e4m3(uint32_t b) {
    uint32_t e = b >> 3 & 15, m = b & 7;
    float v = (b & 0x7f) == 0x7f ? NAN : e ? ldexpf((float)(8 + m), (int)e - 10) : ldexpf((float)m, -9);

    return b & 0x80 ? -v : v;
}

float model_number_at(uint8_t number, const void *bytes, uint64_t i) {
    uint32_t size = size_of(number), u = (uint32_t)le((const unsigned char *)bytes + i * size, size);

    switch (number) {
    case MODEL_NUM_F32:
        return of_bits(u);
    case MODEL_NUM_BF16:
        return of_bits(u << 16);
    case MODEL_NUM_F16:
        return of_f16(u);
    case MODEL_NUM_E4M3:
        return of_e4m3(u);
    case MODEL_NUM_E8M0:
        return u == 255 ? NAN : ldexpf(1.0f, (int)u - 127);
    default:
        return (float)u;
    }
}

static bool breaks_integer(const struct model_item *it, int64_t v, uint64_t i) {
    switch ((enum model_rule)it->rule) {
    case MODEL_RULE_MCG:
        return v != MCG;
    case MODEL_RULE_MUL1:
        return v != MUL1;
    case MODEL_RULE_SHAPE:
        return v < 0 || (uint64_t)v != (i == 0 ? it->k.rows : it->k.cols);
    default:
        return false;
    }
}

static bool breaks(const struct model_item *it, const void *bytes, uint64_t i) {
    float v;

    if (it->number == MODEL_NUM_I32)
        return breaks_integer(it, (int32_t)le((const unsigned char *)bytes + 4 * i, 4), i);
    if (it->number == MODEL_NUM_I64)
        return breaks_integer(it, (int64_t)le((const unsigned char *)bytes + 8 * i, 8), i);
    v = model_number_at(it->number, bytes, i);
    if (!isfinite(v))
        return true;
    switch ((enum model_rule)it->rule) {
    case MODEL_RULE_SCALE:
        return v < 0;
    case MODEL_RULE_FACTOR:
        return v <= 0;
    case MODEL_RULE_SMALL:
        return v <= 0 || v > 1;
    case MODEL_RULE_LARGE:
        return v < 1;
    case MODEL_RULE_BELOW_0:
        return v >= 0;
    default:
        return false;
    }
}

/* ---- many ---- */

/* Bits set where a number of w may break the rule; whether it does is looked at again. */
static uint64_t suspicious(uint8_t number, uint8_t rule, uint64_t w) {
    const uint64_t ones8 = UINT64_C(0x0101010101010101), top8 = UINT64_C(0x8080808080808080);
    const uint64_t top16 = UINT64_C(0x8000800080008000), top32 = UINT64_C(0x8000000080000000);
    uint64_t sign = 0, bad = 0;

    /* An exponent of all ones reaches the sign bit when one is added to it, in every lane at once. */
    switch (number) {
    case MODEL_NUM_F32:
        bad = ((w & UINT64_C(0x7f8000007f800000)) + UINT64_C(0x0080000000800000)) & top32;
        sign = w & top32;
        break;
    case MODEL_NUM_BF16:
        bad = ((w & UINT64_C(0x7f807f807f807f80)) + UINT64_C(0x0080008000800080)) & top16;
        sign = w & top16;
        break;
    case MODEL_NUM_F16:
        bad = ((w & UINT64_C(0x7c007c007c007c00)) + UINT64_C(0x0400040004000400)) & top16;
        sign = w & top16;
        break;
    case MODEL_NUM_E4M3:
        bad = ((w & ~top8) + ones8) & top8;
        sign = w & top8;
        break;
    case MODEL_NUM_E8M0: /* 255, the byte whose complement is 0 */
        bad = (~w - ones8) & w & top8;
        break;
    default:
        break;
    }
    return rule == MODEL_RULE_ANY ? bad : rule == MODEL_RULE_SCALE ? bad | sign : ~UINT64_C(0);
}

static int64_t bad_block(const struct model_item *it, const unsigned char *p, uint64_t n) {
    const struct block *b = &BLOCK[it->k.store.format];
    uint32_t unit = model_number_unit(it);
    const uint32_t exponent = 0x7c00;

    for (uint64_t i = 0; i + unit <= n; i += unit) {
        const unsigned char *q = p + i;
        bool bad = false;

        if (b->d != 0xff)
            bad = (le(q + b->d, 2) & exponent) == exponent ||
                  (b->dmin != 0xff && (le(q + b->dmin, 2) & exponent) == exponent);
        else if (it->k.store.format ==
                 KERN_IQ1_M) /* d's upper bits are the top nibbles of the last two of sc[4] */
            bad = ((le(q + 54, 2) & 0xf000) | (le(q + 52, 2) >> 4 & 0x0f00 & exponent)) ==
                  (exponent | (q[55] & 0x80u) << 8);
        else if (it->k.store.format == KERN_GGUF_MXFP4)
            bad = q[0] == 255;
        if (bad)
            return (int64_t)(i / unit);
    }
    return -1;
}

int64_t model_bad_number(const struct model_item *it, const void *bytes, uint64_t n) {
    const unsigned char *p = bytes;
    uint32_t size = size_of(it->number);

    if (is_blocks(it))
        return bad_block(it, p, n);
    if (it->number == MODEL_NUM_BYTES)
        return -1;
    for (uint64_t i = 0; i < n; i += sizeof(uint64_t)) {
        uint64_t w = 0, end = n - i < sizeof w ? n - i : sizeof w;

        memcpy(&w, p + i, (size_t)end);
        if (!suspicious(it->number, it->rule, w))
            continue;
        for (uint64_t j = i / size; j < (i + end) / size; j++)
            if (breaks(it, p, j))
                return (int64_t)j;
    }
    return -1;
}

const char *model_rule_text(const struct model_item *it) {
    if (is_blocks(it))
        return "blocks whose factor is finite";
    switch ((enum model_rule)it->rule) {
    case MODEL_RULE_SCALE:
        return "scales that are finite and not negative";
    case MODEL_RULE_FACTOR:
        return "a finite factor above 0";
    case MODEL_RULE_SMALL:
        return "a factor above 0 and at most 1: a larger one divides, and then its name is "
               "weight_global_scale";
    case MODEL_RULE_LARGE:
        return "a divisor of at least 1: a smaller one multiplies, and then its name is weight_scale_2";
    case MODEL_RULE_BELOW_0:
        return "finite numbers below 0, -exp(A_log)";
    case MODEL_RULE_MCG:
        return "-877912083, the marker of the codebook mcg";
    case MODEL_RULE_MUL1:
        return "-2082680531, the marker of the codebook mul1";
    case MODEL_RULE_SHAPE:
        return "the rows and columns of the matrix";
    case MODEL_RULE_ANY:
        break;
    }
    return "finite numbers";
}

const char *model_number_text(const struct model_item *it, const void *bytes, uint64_t i, char *buf,
                              size_t len) {
    float v;

    if (is_blocks(it))
        snprintf(buf, len, "a block without one");
    else if (it->number == MODEL_NUM_I32)
        snprintf(buf, len, "%d", (int32_t)le((const unsigned char *)bytes + 4 * i, 4));
    else if (it->number == MODEL_NUM_I64)
        snprintf(buf, len, "%lld", (long long)le((const unsigned char *)bytes + 8 * i, 8));
    else if (!isfinite(v = model_number_at(it->number, bytes, i)))
        snprintf(buf, len, "NaN or infinity");
    else
        snprintf(buf, len, "%g", (double)v);
    return buf;
}

/* Not below 0, they are ordered as their bits are, but for the sign of a -0, which is looked past. */
float model_largest_scale(uint8_t number, const void *bytes, uint64_t n) {
    const unsigned char *p = bytes;
    uint32_t size = size_of(number);
    uint64_t best = 0, at = 0, bits = number == MODEL_NUM_E8M0 ? UINT64_MAX : (UINT64_C(1) << (8 * size - 1)) - 1;
    uint8_t top = 0;

    if (FAULT(values_minus_zero))
        bits = UINT64_MAX;
    if (n < size)
        return 0;
    if (size == 1) {
        for (uint64_t i = 0; i < n; i++)
            top = (p[i] & bits) > top ? (uint8_t)(p[i] & bits) : top;
        return model_number_at(number, &top, 0);
    }
    for (uint64_t i = 0; i < n / size; i++)
        if ((le(p + i * size, size) & bits) >= best) {
            best = le(p + i * size, size) & bits;
            at = i;
        }
    return model_number_at(number, bytes, at);
}

/* ---- conversions ---- */

void model_convert(uint8_t conv, void *bytes, uint64_t n) {
    unsigned char *p = bytes;

    for (uint64_t i = 0; conv != MODEL_CONV_NONE && i + sizeof(float) <= n; i += sizeof(float)) {
        float v;

        memcpy(&v, p + i, sizeof v);
        v = conv == MODEL_CONV_RECIPROCAL ? 1.0f / v : conv == MODEL_CONV_A_LOG ? (float)log(-(double)v) : v;
        memcpy(p + i, &v, sizeof v);
    }
}

void model_convert_signs(const void *words, uint64_t n, void *ret) {
    const unsigned char *p = words;
    unsigned char *out = ret;

    for (uint64_t i = 0; i < 16 * n; i++) {
        out[2 * i] = 0;
        out[2 * i + 1] = p[i / 8] >> (i % 8) & 1 ? 0xbc : 0x3c; /* -1 and 1 */
    }
}
