/* SPDX-License-Identifier: MIT */
/* cpu_ops_avx512.c: the arithmetic for AVX-512 (F, BW, VL, DQ): a vector of 16 floats is one register.
 * Only reached when the processor and the system have all of them (cpu_isa.c). */
#include <immintrin.h>
#include <stdint.h>

#include "format.h"

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
#define V16_TILE_8    2
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
/* 16 E4M3 numbers; what the two codes of NaN become is not defined. */
static inline v16 v_e4m3(const uint8_t *p) {
    const __m512i small = _mm512_castps_si512(_mm512_setr_ps(0, 0x1p-9f, 0x2p-9f, 0x3p-9f, 0x4p-9f, 0x5p-9f, 0x6p-9f,
                                                             0x7p-9f, 0, 0, 0, 0, 0, 0, 0, 0));
    __m512i s = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), t = _mm512_slli_epi32(s, 20);
    __m512i v = _mm512_add_epi32(_mm512_and_si512(t, _mm512_set1_epi32(0x7f << 20)), _mm512_set1_epi32(120 << 23));
    __mmask16 no_exponent = _mm512_testn_epi32_mask(s, _mm512_set1_epi32(0x78));
    v = _mm512_mask_permutexvar_epi32(v, no_exponent, s, small);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(v, t, _mm512_set1_epi32((int)0x80000000u), 0xf8));
}
/* Two times 16. */
static inline void v_e4m3_2(const uint8_t *p, v16 *a, v16 *b) {
    *a = v_e4m3(p);
    *b = v_e4m3(p + 16);
}
/* 16 powers of two: 0 is 2^-127, half of the smallest normal number, and 255 is NaN. */
static inline v16 v_e8m0(const uint8_t *p) {
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __mmask16 odd = _mm512_cmpeq_epi32_mask(e, _mm512_setzero_si512()) |
                    _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
    __m512i v = _mm512_slli_epi32(e, 23);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(v, odd, v, _mm512_set1_epi32(1 << 22)));
}
/* 16 bytes as numbers. */
static inline v16 v_ldu(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
static inline __m512i bytes_right(const uint8_t *p, int shift) {
    __m512i w = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return shift ? _mm512_srlv_epi32(w, _mm512_set1_epi32(shift)) : w;
}
/* Some bits of each of 16 bytes: (byte >> shift & mask) * mul + add, all of it small integers. */
#define V_BITS(i) ((float)((i) & mask) * mul + add)
static inline __attribute__((always_inline)) v16 v_bits(const uint8_t *p, int shift, const int mask, const float mul,
                                                        const float add) {
    __m512i w = bytes_right(p, shift);
    if (mask > 15) {
        __m512 v = _mm512_cvtepi32_ps(_mm512_and_si512(w, _mm512_set1_epi32(mask)));
        return _mm512_add_ps(_mm512_mul_ps(v, _mm512_set1_ps(mul)), _mm512_set1_ps(add));
    }
    return _mm512_permutexvar_ps(w, _mm512_setr_ps(V_BITS(0), V_BITS(1), V_BITS(2), V_BITS(3), V_BITS(4), V_BITS(5),
                                                   V_BITS(6), V_BITS(7), V_BITS(8), V_BITS(9), V_BITS(10), V_BITS(11),
                                                   V_BITS(12), V_BITS(13), V_BITS(14), V_BITS(15)));
}
/* What a table says of the lowest four bits of 16 words moved right by `shift`; it repeats where fewer count. */
static inline v16 v_steps(const uint32_t *w, int shift, const float *table) {
    __m512i v = _mm512_srlv_epi32(_mm512_load_si512(w), _mm512_set1_epi32(shift));
    return _mm512_permutexvar_ps(v, _mm512_loadu_ps(table));
}
/* x, negative where this bit of its word is set. */
static inline v16 v_flip(v16 x, const uint32_t *w, int bit) {
    __m512i s = _mm512_sllv_epi32(_mm512_load_si512(w), _mm512_set1_epi32(31 - bit));
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(x), s, _mm512_set1_epi32((int)0x80000000u), 0x78));
}
/* 16 signed bytes as numbers. */
static inline v16 v_lds(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
/* What a table says of four bits of each of 16 bytes. */
static inline v16 v_lut(const uint8_t *p, int shift, const float *table) {
    return _mm512_permutexvar_ps(bytes_right(p, shift), _mm512_loadu_ps(table));
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

/* Each number in the place of its neighbour at distance h: 1, 2, 4 or 8. */
static inline v16 v_swap(v16 x, const int h) {
    return h == 1   ? _mm512_permute_ps(x, 0xb1)
           : h == 2 ? _mm512_permute_ps(x, 0x4e)
           : h == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                    : _mm512_shuffle_f32x4(x, x, 0x4e);
}

/* 16 words of an EXL3 tile: of each of its 8 rows 32 bits from bit s on, then from bit t on. w[1] is word 0. */
typedef __m512i vi;
static inline vi vi_zero(void) {
    return _mm512_setzero_si512();
}
/* A row of eight words; the same, each word in the place of the next one, the last one first. Written and read as
 * vectors: words that were written by themselves would have to reach the cache first. */
static inline void vi_row(uint32_t *to, const uint8_t *p) {
    _mm256_store_si256((__m256i *)(void *)to, _mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline void vi_row_before(uint32_t *to, const uint8_t *p) {
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
    v = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6));
    _mm256_store_si256((__m256i *)(void *)to, v);
}
static inline vi two_rows(const uint32_t *a, const uint32_t *b) {
    __m256i lo = _mm256_load_si256((const __m256i *)(const void *)a);
    return _mm512_inserti64x4(_mm512_castsi256_si512(lo), _mm256_load_si256((const __m256i *)(const void *)b), 1);
}
static inline vi vi_window(const uint32_t (*w)[8], int s, int t) {
    int i = (s + 32) / 32, j = (t + 32) / 32;
    vi by = _mm512_mask_mov_epi32(_mm512_set1_epi32((s + 32) % 32), 0xff00, _mm512_set1_epi32((t + 32) % 32));
    return _mm512_or_si512(
        _mm512_sllv_epi32(two_rows(w[i], w[j]), by),
        _mm512_srlv_epi32(two_rows(w[i + 1], w[j + 1]), _mm512_sub_epi32(_mm512_set1_epi32(32), by)));
}
static inline v16 f16_rounded(v16 x) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* What the states in 16 bits of the words stand for, those from bit `right` on. */
static inline v16 vi_value(vi w, int right, const uint32_t codebook) {
    vi s = _mm512_and_si512(_mm512_srlv_epi32(w, _mm512_set1_epi32(right)), _mm512_set1_epi32(0xffff)), x, y;
    if (codebook == KERN_CODEBOOK_MUL1) {
        x = _mm512_mullo_epi32(s, _mm512_set1_epi32((int)0x83DCD12Du));
        y = _mm512_madd_epi16(_mm512_maddubs_epi16(x, _mm512_set1_epi8(1)), _mm512_set1_epi16(1));
        v16 n = _mm512_cvtepi32_ps(_mm512_add_epi32(y, _mm512_set1_epi32(1024)));
        return f16_rounded(_mm512_fmadd_ps(n, _mm512_set1_ps(0.00676727294921875f), _mm512_set1_ps(-10.3828125f)));
    }
    if (codebook == KERN_CODEBOOK_MCG)
        x = _mm512_mullo_epi32(s, _mm512_set1_epi32((int)0xCBAC1FEDu));
    else
        x = _mm512_add_epi32(_mm512_mullo_epi32(s, _mm512_set1_epi32(89226354)), _mm512_set1_epi32(64248484));
    y = _mm512_ternarylogic_epi32(x, _mm512_set1_epi32((int)0x8fff8fffu), _mm512_set1_epi32(0x3b603b60), 0x6a);
    return f16_rounded(_mm512_add_ps(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(y)),
                                     _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(y, 16)))));
}

/* 16 vectors as the columns of a matrix, to be its rows. */
static inline void v_turn(v16 m[16]) {
    v16 t[16];
    _Pragma("GCC unroll 8") for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 2]);
        __m512d c = _mm512_castps_pd(t[i + 1]), d = _mm512_castps_pd(t[i + 3]);
        m[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        m[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        m[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
        m[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
        v16 a = _mm512_shuffle_f32x4(m[i], m[i + 4], 0x88), b = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0x88);
        v16 c = _mm512_shuffle_f32x4(m[i], m[i + 4], 0xdd), d = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0xdd);
        t[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        t[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        t[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) m[i] = t[i];
}

/* Vectors of bytes for packing: four lanes of 16. */
typedef __m512i vb;
enum { VB_BYTES = 64 };

static inline vb vb_ld(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}
/* Has one of n codes of E4M3 all bits but the sign? n: a multiple of 16 */
static inline int vb_e4m3_nan(const uint8_t *p, size_t n) {
    const vb seven = _mm512_set1_epi8(0x7f);
    vb most = _mm512_setzero_si512();
    for (; n >= 64; n -= 64, p += 64)
        most = _mm512_max_epu8(most, _mm512_and_si512(_mm512_loadu_si512(p), seven));
    most = _mm512_max_epu8(most, _mm512_and_si512(_mm512_maskz_loadu_epi8((1ull << n) - 1, p), seven));
    return _mm512_cmpeq_epi8_mask(most, seven) != 0;
}
/* Elements of `unit` bytes of both, one after the other, lane by lane. */
static inline vb vb_zip_lo(vb a, vb b, const uint32_t unit) {
    return unit == 1   ? _mm512_unpacklo_epi8(a, b)
           : unit == 2 ? _mm512_unpacklo_epi16(a, b)
                       : _mm512_unpacklo_epi32(a, b);
}
static inline vb vb_zip_hi(vb a, vb b, const uint32_t unit) {
    return unit == 1   ? _mm512_unpackhi_epi8(a, b)
           : unit == 2 ? _mm512_unpackhi_epi16(a, b)
                       : _mm512_unpackhi_epi32(a, b);
}
/* A line that is written whole need not be read first. */
static inline void vb_line(uint8_t *p, vb v) {
    if ((uintptr_t)p % 64)
        _mm512_storeu_si512(p, v);
    else
        _mm512_stream_si512((__m512i *)(void *)p, v);
}
/* The first lane of four vectors at p, the second 256 bytes behind it, ... */
static inline void vb_put(uint8_t *p, const vb *v) {
    vb a = _mm512_shuffle_i64x2(v[0], v[1], 0x44), b = _mm512_shuffle_i64x2(v[2], v[3], 0x44);
    vb c = _mm512_shuffle_i64x2(v[0], v[1], 0xee), d = _mm512_shuffle_i64x2(v[2], v[3], 0xee);
    vb_line(p, _mm512_shuffle_i64x2(a, b, 0x88));
    vb_line(p + 256, _mm512_shuffle_i64x2(a, b, 0xdd));
    vb_line(p + 512, _mm512_shuffle_i64x2(c, d, 0x88));
    vb_line(p + 768, _mm512_shuffle_i64x2(c, d, 0xdd));
}
static inline void vb_fence(void) {
    _mm_sfence();
}

#include "cpu_body.h"
