/* SPDX-License-Identifier: MIT */
/* cpu_ops_avx512.c: the arithmetic for AVX-512 (F, BW, VL, DQ): a vector of 16 floats is one register.
 * Only reached when the processor and the system have all of them (cpu_isa.c). */
#include <immintrin.h>
#include <stdint.h>

typedef __m512 v16;

#define V16_NAME      "avx512"
#define V16_OPS       cpu_ops_avx512
#define V16_UNROLL    _Pragma("GCC unroll 8") /* accumulators must be registers */
#define V16_ROWS      8 /* rows at once */
/* Panels at once for 1, 2, 3, 4 to 6 and more rows: at least 8 chains, no more than the registers hold. */
#define V16_TILE_1    8
#define V16_TILE_2    8
#define V16_TILE_3    4
#define V16_TILE_4    4
#define V16_TILE_8    1
#define V16_STEP      4 /* panels that stay in the first-level cache over several blocks of rows */

static inline v16 v_ld(const float *p) {
    return _mm512_load_ps(p);
}
static inline void v_st(float *p, v16 x) {
    _mm512_store_ps(p, x);
}
static inline v16 v_set(float x) {
    return _mm512_set1_ps(x);
}
static inline v16 v_add(v16 x, v16 y) {
    return _mm512_add_ps(x, y);
}
static inline v16 v_sub(v16 x, v16 y) {
    return _mm512_sub_ps(x, y);
}
static inline v16 v_mul(v16 x, v16 y) {
    return _mm512_mul_ps(x, y);
}
static inline v16 v_div(v16 x, v16 y) {
    return _mm512_div_ps(x, y);
}
static inline v16 v_fma(v16 x, v16 y, v16 z) {
    return _mm512_fmadd_ps(x, y, z);
}
/* Of two numbers the larger; a NaN in the second wins, as in every other table. */
static inline v16 v_max(v16 x, v16 y) {
    return _mm512_max_ps(x, y);
}
static inline v16 v_min(v16 x, v16 y) {
    return _mm512_min_ps(x, y);
}
/* x times 2 to the integer in the low bits of m (see v_exp). */
static inline v16 v_scale2(v16 x, v16 m) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(m), 23)));
}
/* 16 BF16 in pair order: word i holds element i below and element i + 8 above. */
static inline v16 v_ldw(const uint32_t *p) {
    const __m512i half = _mm512_set_epi16(15, 0, 13, 0, 11, 0, 9, 0, 7, 0, 5, 0, 3, 0, 1, 0, 14, 0, 12, 0, 10, 0, 8,
                                          0, 6, 0, 4, 0, 2, 0, 0, 0);
    __m256i w = _mm256_load_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, half, _mm512_castsi256_si512(w)));
}
/* 16 BF16 in natural order. */
static inline v16 v_ldh(const uint16_t *p) {
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
/* A 256th of 16 E4M3 numbers: moved by 7 bits they are half precision numbers with another bias. */
static inline v16 v_ld8(const uint8_t *p) {
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm512_cvtph_ps(
        _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x80)), 8),
                        _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x7f)), 7)));
}
/* 16 bytes moved right by `shift` and masked, as numbers. */
static inline v16 v_ldu(const uint8_t *p, int shift, int mask) {
    __m512i w = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm512_cvtepi32_ps(
        _mm512_and_si512(_mm512_srl_epi32(w, _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(mask)));
}
/* 16 signed bytes as numbers. */
static inline v16 v_lds(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
/* What a table says of four bits of each of 16 bytes. */
static inline v16 v_lut(const uint8_t *p, int shift, const float *table) {
    __m512i w = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm512_permutexvar_ps(_mm512_srl_epi32(w, _mm_cvtsi32_si128(shift)), _mm512_loadu_ps(table));
}
/* 16 F16 numbers: in natural order, or as 16 low bytes and 16 high ones. */
static inline v16 v_ldf16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline v16 v_ldf16b(const uint8_t *p) {
    __m128i lo = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i hi = _mm_loadu_si128((const __m128i *)(const void *)(p + 16));
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_unpackhi_epi8(lo, hi), _mm_unpacklo_epi8(lo, hi)));
}
/* Lanes added in the fixed tree (i, i+8), (i, i+4), (i, i+2), (0, 1). */
static inline float v_sum(v16 x) {
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

#include "cpu_body.h"
