/* SPDX-License-Identifier: MIT */
/* The 16-bit numbers of checkpoints, from their definitions: nothing here is shared with kernels/. */
#include <math.h>
#include <string.h>

#include "ckptset.h"

/* v to `bits` significant bits, ties to even; below 2^min the step stays that of 2^min. */
static double rounded(double v, int bits, int min) {
    double step;
    int e;

    if (v == 0 || isnan(v))
        return 0;
    frexp(v, &e); /* |v| in [2^(e-1), 2^e) */
    step = ldexp(1, (e - 1 < min ? min : e - 1) - (bits - 1));
    return nearbyint(v / step) * step;
}

uint16_t ckpt_to_bf16(double v) {
    float f = (float)rounded(v, 8, -126);
    uint32_t u;

    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

double ckpt_bf16(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;

    memcpy(&f, &u, 4);
    return f;
}

uint16_t ckpt_to_f16(double v) {
    double m = fabs(rounded(v, 11, -14));
    unsigned sign = signbit(v) ? 0x8000 : 0;
    int e;

    if (m > 65504)
        return (uint16_t)(sign | 0x7bff);
    if (m < ldexp(1, -14))
        return (uint16_t)(sign | (unsigned)ldexp(m, 24));
    frexp(m, &e);
    e -= 1; /* m in [2^e, 2^(e+1)) */
    return (uint16_t)(sign | (unsigned)(e + 15) << 10 | ((unsigned)ldexp(m, 10 - e) - 1024));
}

double ckpt_f16(uint16_t b) {
    int e = b >> 10 & 31, m = b & 1023;
    double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);

    if (e == 31)
        v = m ? NAN : INFINITY;
    return b & 0x8000 ? -v : v;
}
