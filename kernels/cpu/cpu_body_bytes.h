/* SPDX-License-Identifier: MIT */
/* cpu_body_bytes.h: vectors of 16 bytes without instructions of their own, for the tables that have no wider ones
 * (scalar, neon). Pure functions. */
#ifndef GLMD_CPU_BODY_BYTES_H
#define GLMD_CPU_BODY_BYTES_H

#include <stdint.h>
#include <string.h>

typedef uint8_t vb __attribute__((vector_size(16)));
typedef uint16_t vb_16 __attribute__((vector_size(16)));
typedef uint32_t vb_32 __attribute__((vector_size(16)));
enum { VB_BYTES = 16 };

static inline vb vb_ld(const uint8_t *p) {
    vb v;
    memcpy(&v, p, sizeof(v));
    return v;
}
/* Has one of n codes of E4M3 all bits but the sign? n: a multiple of 16 */
static inline int vb_e4m3_nan(const uint8_t *p, size_t n) {
    const uint64_t ones = 0x0101010101010101u;
    uint64_t any = 0, w;
    for (size_t i = 0; i < n; i += sizeof(w)) {
        memcpy(&w, p + i, sizeof(w));
        any |= (w & 0x7f * ones) + ones;
    }
    return (any & 0x80 * ones) != 0;
}
/* Elements of `unit` bytes of both, one after the other; the lower halves, or the higher ones. */
static inline vb vb_zip_lo(vb a, vb b, const uint32_t unit) {
    if (unit == 1)
        return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    if (unit == 2)
        return (vb)__builtin_shufflevector((vb_16)a, (vb_16)b, 0, 8, 1, 9, 2, 10, 3, 11);
    return (vb)__builtin_shufflevector((vb_32)a, (vb_32)b, 0, 4, 1, 5);
}
static inline vb vb_zip_hi(vb a, vb b, const uint32_t unit) {
    if (unit == 1)
        return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    if (unit == 2)
        return (vb)__builtin_shufflevector((vb_16)a, (vb_16)b, 4, 12, 5, 13, 6, 14, 7, 15);
    return (vb)__builtin_shufflevector((vb_32)a, (vb_32)b, 2, 6, 3, 7);
}
/* Four vectors behind each other. */
static inline void vb_put(uint8_t *p, const vb *v) {
    memcpy(p, v, 4 * sizeof(*v));
}
static inline void vb_fence(void) {
}

#endif
