/* SPDX-License-Identifier: MIT */
/* cpu_ops_avx2.c: the arithmetic for AVX2 + FMA: a vector of 16 floats is two 256-bit registers.
 * Only reached when the processor has both (cpu_isa.c). */
#include <immintrin.h>
#include <stdint.h>

typedef struct {
    __m256 a, b;
} v16;

#define V16_NAME      "avx2"
#define V16_OPS       cpu_ops_avx2
#define V16_UNROLL    _Pragma("GCC unroll 8") /* accumulators must be registers */
#define V16_ROWS      6 /* rows at once */
/* Panels at once for 1, 2, 3, 4 to 6 and more rows: at least 8 chains, no more than the registers hold. */
#define V16_TILE_1    4
#define V16_TILE_2    2
#define V16_TILE_3    1
#define V16_TILE_4    1
#define V16_STEP      2 /* panels that stay in the first-level cache over several blocks of rows */

static inline v16 v_ld(const float *p) {
    return (v16){_mm256_load_ps(p), _mm256_load_ps(p + 8)};
}
static inline void v_st(float *p, v16 x) {
    _mm256_store_ps(p, x.a);
    _mm256_store_ps(p + 8, x.b);
}
static inline v16 v_set(float x) {
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline v16 v_add(v16 x, v16 y) {
    return (v16){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
static inline v16 v_sub(v16 x, v16 y) {
    return (v16){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
static inline v16 v_mul(v16 x, v16 y) {
    return (v16){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
static inline v16 v_div(v16 x, v16 y) {
    return (v16){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
static inline v16 v_fma(v16 x, v16 y, v16 z) {
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
/* Of two numbers the larger; a NaN in the second wins, as in every other table. */
static inline v16 v_max(v16 x, v16 y) {
    return (v16){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
static inline v16 v_min(v16 x, v16 y) {
    return (v16){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
/* x times 2 to the integer in the low bits of m (see v_exp). */
static inline v16 v_scale2(v16 x, v16 m) {
    return (v16){_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.a),
                                                      _mm256_slli_epi32(_mm256_castps_si256(m.a), 23))),
                 _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.b),
                                                      _mm256_slli_epi32(_mm256_castps_si256(m.b), 23)))};
}
/* 16 BF16 in pair order: word i holds element i below and element i + 8 above. */
static inline v16 v_ldw(const uint32_t *p) {
    __m256i w = _mm256_load_si256((const __m256i *)(const void *)p);
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)),
                 _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000u)))};
}
/* 16 BF16 in natural order. */
static inline v16 v_ldh(const uint16_t *p) {
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)));
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}
/* A 256th of 16 E4M3 numbers: moved by 7 bits they are half precision numbers with another bias. */
static inline v16 v_ld8(const uint8_t *p) {
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i h = _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x80)), 8),
                                _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x7f)), 7));
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
/* 16 bytes moved right by `shift` and masked, as numbers. */
static inline v16 v_ldu(const uint8_t *p, int shift, int mask) {
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p), m = _mm_set1_epi8((char)mask);
    b = _mm_and_si128(_mm_srl_epi16(b, _mm_cvtsi32_si128(shift)), m);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(b, b)))};
}
/* 16 signed bytes as numbers. */
static inline v16 v_lds(const uint8_t *p) {
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(b, b)))};
}
/* What a table says of four bits of each of 16 bytes. */
static inline __m256 lut8(__m256i i, const float *table) {
    __m256 lo = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), i);
    __m256 hi = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), i);
    return _mm256_blendv_ps(lo, hi, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
static inline v16 v_lut(const uint8_t *p, int shift, const float *table) {
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    b = _mm_and_si128(_mm_srl_epi16(b, _mm_cvtsi32_si128(shift)), _mm_set1_epi8(15));
    return (v16){lut8(_mm256_cvtepu8_epi32(b), table),
                 lut8(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(b, b)), table)};
}
/* 16 F16 numbers: in natural order, or as 16 low bytes and 16 high ones. */
static inline v16 v_ldf16(const uint8_t *p) {
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)))};
}
static inline v16 v_ldf16b(const uint8_t *p) {
    __m128i lo = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i hi = _mm_loadu_si128((const __m128i *)(const void *)(p + 16));
    return (v16){_mm256_cvtph_ps(_mm_unpacklo_epi8(lo, hi)), _mm256_cvtph_ps(_mm_unpackhi_epi8(lo, hi))};
}
/* Lanes added in the fixed tree (i, i+8), (i, i+4), (i, i+2), (0, 1). */
static inline float v_sum(v16 x) {
    __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

#include "cpu_body.h"
