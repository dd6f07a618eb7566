/* SPDX-License-Identifier: MIT */
/* Body of host_exp() and of its variants: included once a file, which sets HOST_EXP to the function's name.
 * Nothing but additions, multiplications and shifts, each rounded once (contraction is off): every variant
 * and every processor gives the same bits. */
#include "host.h"

/* The compiler's own vectors, of whatever width the processor has. */
typedef double vec __attribute__((vector_size(32)));
typedef uint64_t bits __attribute__((vector_size(32)));
enum { LANES = sizeof(vec) / sizeof(double) };

static const double TERMS[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                               1.0 / 24,      1.0 / 6,      0.5,         1.0,        1.0};

static inline void four(double *x) {
    /* adding it leaves the nearest whole number in the low bits of the sum */
    const double to_integer = 0x1.8p52;
    const vec low = (vec){0} - 700.0;
    vec v, t, k, r, p = {0};
    bits inside, b;
    memcpy(&v, x, sizeof(v));
    /* below, 2^k would leave the normal range; e^-700 is nothing beside 1 */
    inside = (bits)(v > low);
    v = (vec)(((bits)v & inside) | ((bits)low & ~inside));
    t = v * 0x1.71547652b82fep0 + to_integer;
    k = t - to_integer;
    /* ln 2 in two parts: k times the first is exact */
    r = (v - k * 0x1.62e42fefa0000p-1) - k * 0x1.cf79abc9e3b3ap-40;
    p += 1.0 / 39916800; /* |r| <= ln 2 / 2: the first term left out is below 1e-14 */
    for (size_t i = 0; i < sizeof(TERMS) / sizeof(TERMS[0]); i++)
        p = p * r + TERMS[i];
    b = ((bits)t + 1023) << 52;
    p *= (vec)b;
    memcpy(x, &p, sizeof(p));
}

void HOST_EXP(double *x, uint32_t n) {
    double rest[LANES] = {0};
    uint32_t at = 0;
    for (; n - at >= LANES; at += LANES)
        four(x + at);
    if (at == n)
        return;
    memcpy(rest, x + at, (n - at) * sizeof(*x));
    four(rest);
    memcpy(x + at, rest, (n - at) * sizeof(*x));
}
