/* SPDX-License-Identifier: MIT */
/* cpu_ops_avx2.c: the arithmetic for AVX2 + FMA: a vector of 16 floats is two 256-bit registers.
 * Only reached when the processor has both (cpu_isa.c). */
#include <immintrin.h>
#include <stdint.h>

#include "format.h"

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
/* 16 E4M3 numbers; what the two codes of NaN become is not defined. */
static inline __m256 e4m3_half(__m128i b) {
    const __m256 small = _mm256_setr_ps(0, 0x1p-9f, 0x2p-9f, 0x3p-9f, 0x4p-9f, 0x5p-9f, 0x6p-9f, 0x7p-9f);
    __m256i s = _mm256_cvtepi8_epi32(b), t = _mm256_slli_epi32(s, 20);
    __m256i v = _mm256_add_epi32(_mm256_and_si256(t, _mm256_set1_epi32(0x7f << 20)), _mm256_set1_epi32(120 << 23));
    __m256i low = _mm256_cmpeq_epi32(_mm256_and_si256(s, _mm256_set1_epi32(0x78)), _mm256_setzero_si256());
    __m256 x = _mm256_blendv_ps(_mm256_castsi256_ps(v), _mm256_permutevar8x32_ps(small, s), _mm256_castsi256_ps(low));
    return _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_and_si256(t, _mm256_set1_epi32((int)0x80000000u))));
}
static inline v16 v_e4m3(const uint8_t *p) {
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (v16){e4m3_half(b), e4m3_half(_mm_unpackhi_epi64(b, b))};
}
static inline __m256 widened(__m128i bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
}
/* Two times 16: all of them are BF16 numbers, whose two bytes are looked up, those without an exponent apart. */
static inline void v_e4m3_2(const uint8_t *p, v16 *a, v16 *b) {
#define TWICE(...) _mm256_setr_epi8(__VA_ARGS__, __VA_ARGS__)
    const __m256i high = TWICE(0x3c, 0x3d, 0x3e, 0x3f, 0x40, 0x41, 0x42, 0x43, -0x44, -0x43, -0x42, -0x41, -0x40, -0x3f,
                               -0x3e, -0x3d);
    const __m256i high_small = TWICE(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i low_small = TWICE(0, 0, -0x80, -0x40, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, 0);
#undef TWICE
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p), f = _mm256_set1_epi8(15);
    __m256i is_small = _mm256_cmpeq_epi8(_mm256_and_si256(x, _mm256_set1_epi8(0x78)), _mm256_setzero_si256());
    __m256i i = _mm256_and_si256(x, f), sign = _mm256_and_si256(x, _mm256_set1_epi8(-0x80));
    __m256i hi = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(x, 4), f));
    __m256i lo = _mm256_slli_epi16(i, 4);
    hi = _mm256_blendv_epi8(hi, _mm256_or_si256(_mm256_shuffle_epi8(high_small, i), sign), is_small);
    lo = _mm256_blendv_epi8(lo, _mm256_shuffle_epi8(low_small, i), is_small);
    __m256i y = _mm256_unpacklo_epi8(lo, hi), z = _mm256_unpackhi_epi8(lo, hi);
    *a = (v16){widened(_mm256_castsi256_si128(y)), widened(_mm256_castsi256_si128(z))};
    *b = (v16){widened(_mm256_extracti128_si256(y, 1)), widened(_mm256_extracti128_si256(z, 1))};
}
/* 16 powers of two: 0 is 2^-127, half of the smallest normal number, and 255 is NaN. */
static inline __m256 e8m0_half(__m128i b) {
    __m256i e = _mm256_cvtepu8_epi32(b);
    __m256i odd = _mm256_or_si256(_mm256_cmpeq_epi32(e, _mm256_setzero_si256()),
                                  _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
    odd = _mm256_and_si256(odd, _mm256_set1_epi32(1 << 22));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(e, 23), odd));
}
static inline v16 v_e8m0(const uint8_t *p) {
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (v16){e8m0_half(b), e8m0_half(_mm_unpackhi_epi64(b, b))};
}
/* 16 bytes as numbers. */
static inline v16 v_ldu(const uint8_t *p) {
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(b, b)))};
}
/* Some bits of each of 16 bytes: (byte >> shift & mask) * mul + add, all of it small integers. */
#define V_BITS(i) ((float)((i) & mask) * mul + add)
static inline __attribute__((always_inline)) v16 v_bits(const uint8_t *p, int shift, const int mask, const float mul,
                                                        const float add) {
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    b = _mm_and_si128(_mm_srl_epi16(b, _mm_cvtsi32_si128(shift)), _mm_set1_epi8((char)mask));
    __m256i lo = _mm256_cvtepu8_epi32(b), hi = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(b, b));
    if (mask <= 7) {
        const __m256 t = _mm256_setr_ps(V_BITS(0), V_BITS(1), V_BITS(2), V_BITS(3), V_BITS(4), V_BITS(5), V_BITS(6),
                                        V_BITS(7));
        return (v16){_mm256_permutevar8x32_ps(t, lo), _mm256_permutevar8x32_ps(t, hi)};
    }
    v16 v = {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)};
    if (mul != 1)
        v = v_mul(v, v_set(mul));
    return add != 0 ? v_add(v, v_set(add)) : v;
}
/* What a table says of the lowest four bits of 16 words moved right by `shift`; it repeats where fewer count. */
static inline __m256 lut8(__m256i i, const float *table) {
    __m256 lo = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), i);
    __m256 hi = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), i);
    return _mm256_blendv_ps(lo, hi, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
static inline v16 v_steps(const uint32_t *w, int shift, const float *table) {
    const __m256i *p = (const __m256i *)(const void *)w;
    __m256i n = _mm256_set1_epi32(shift);
    return (v16){lut8(_mm256_srlv_epi32(_mm256_load_si256(p), n), table),
                 lut8(_mm256_srlv_epi32(_mm256_load_si256(p + 1), n), table)};
}
/* x, negative where this bit of its word is set. */
static inline __m256 flip8(__m256 x, const uint32_t *w, int bit) {
    __m256i s = _mm256_sllv_epi32(_mm256_load_si256((const __m256i *)(const void *)w), _mm256_set1_epi32(31 - bit));
    return _mm256_xor_ps(x, _mm256_castsi256_ps(_mm256_and_si256(s, _mm256_set1_epi32((int)0x80000000u))));
}
static inline v16 v_flip(v16 x, const uint32_t *w, int bit) {
    return (v16){flip8(x.a, w, bit), flip8(x.b, w + 8, bit)};
}
/* 16 signed bytes as numbers. */
static inline v16 v_lds(const uint8_t *p) {
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(b, b)))};
}
/* What a table says of four bits of each of 16 bytes. */
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

/* Each number in the place of its neighbour at distance h: 1, 2, 4 or 8. */
static inline v16 v_swap(v16 x, const int h) {
    return h == 1   ? (v16){_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)}
           : h == 2 ? (v16){_mm256_permute_ps(x.a, 0x4e), _mm256_permute_ps(x.b, 0x4e)}
           : h == 4 ? (v16){_mm256_permute2f128_ps(x.a, x.a, 1), _mm256_permute2f128_ps(x.b, x.b, 1)}
                    : (v16){x.b, x.a};
}

/* 16 words of an EXL3 tile: of each of its 8 rows 32 bits from bit s on, then from bit t on. w[1] is word 0. */
typedef struct {
    __m256i a, b;
} vi;
static inline vi vi_zero(void) {
    return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()};
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
static inline __m256i row_window(const uint32_t (*w)[8], int s) {
    const uint32_t *p = w[(s + 32) / 32];
    int by = (s + 32) % 32;
    __m256i x = _mm256_load_si256((const __m256i *)(const void *)p);
    __m256i y = _mm256_load_si256((const __m256i *)(const void *)(p + 8));
    return _mm256_or_si256(_mm256_sll_epi32(x, _mm_cvtsi32_si128(by)), _mm256_srl_epi32(y, _mm_cvtsi32_si128(32 - by)));
}
static inline vi vi_window(const uint32_t (*w)[8], int s, int t) {
    return (vi){row_window(w, s), row_window(w, t)};
}
static inline __m256 f16_rounded(__m256 x) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* The lower 16 bits as F16 with one of the four exponents the codebooks use. */
static inline __m256 low_f16(__m256i y) {
    __m256i v = _mm256_and_si256(_mm256_slli_epi32(y, 13), _mm256_set1_epi32(0x7fff << 13));
    __m256i s = _mm256_and_si256(_mm256_slli_epi32(y, 16), _mm256_set1_epi32((int)0x80000000u));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_add_epi32(v, _mm256_set1_epi32(112 << 23)), s));
}
static inline __m256 half_value(__m256i w, int right, const uint32_t codebook) {
    __m256i s = _mm256_and_si256(_mm256_srl_epi32(w, _mm_cvtsi32_si128(right)), _mm256_set1_epi32(0xffff)), x, y;
    if (codebook == KERN_CODEBOOK_MUL1) {
        x = _mm256_mullo_epi32(s, _mm256_set1_epi32((int)0x83DCD12Du));
        y = _mm256_madd_epi16(_mm256_maddubs_epi16(x, _mm256_set1_epi8(1)), _mm256_set1_epi16(1));
        __m256 n = _mm256_cvtepi32_ps(_mm256_add_epi32(y, _mm256_set1_epi32(1024)));
        return f16_rounded(_mm256_fmadd_ps(n, _mm256_set1_ps(0.00676727294921875f), _mm256_set1_ps(-10.3828125f)));
    }
    if (codebook == KERN_CODEBOOK_MCG)
        x = _mm256_mullo_epi32(s, _mm256_set1_epi32((int)0xCBAC1FEDu));
    else
        x = _mm256_add_epi32(_mm256_mullo_epi32(s, _mm256_set1_epi32(89226354)), _mm256_set1_epi32(64248484));
    y = _mm256_xor_si256(_mm256_and_si256(x, _mm256_set1_epi32((int)0x8fff8fffu)), _mm256_set1_epi32(0x3b603b60));
    return f16_rounded(_mm256_add_ps(low_f16(y), low_f16(_mm256_srli_epi32(y, 16))));
}
/* What the states in 16 bits of the words stand for, those from bit `right` on. */
static inline v16 vi_value(vi w, int right, const uint32_t codebook) {
    return (v16){half_value(w.a, right, codebook), half_value(w.b, right, codebook)};
}

/* 8 x 8 numbers turned. */
static inline void turn8(const __m256 in[8], __m256 out[8]) {
    __m256 t[8], u[8];
    _Pragma("GCC unroll 4") for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        out[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}
/* 16 vectors as the columns of a matrix, to be its rows. */
static inline void v_turn(v16 m[16]) {
    __m256 in[4][8], out[4][8];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {
        in[0][i] = m[i].a;
        in[1][i] = m[i].b;
        in[2][i] = m[i + 8].a;
        in[3][i] = m[i + 8].b;
    }
    _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++) turn8(in[q], out[q]);
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {
        m[i] = (v16){out[0][i], out[2][i]};
        m[i + 8] = (v16){out[1][i], out[3][i]};
    }
}

/* Vectors of bytes for packing: two lanes of 16. */
typedef __m256i vb;
enum { VB_BYTES = 32 };

static inline vb vb_ld(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
/* Has one of n codes of E4M3 all bits but the sign? n: a multiple of 16 */
static inline int vb_e4m3_nan(const uint8_t *p, size_t n) {
    const vb seven = _mm256_set1_epi8(0x7f);
    vb most = _mm256_setzero_si256();
    for (; n >= 32; n -= 32, p += 32)
        most = _mm256_max_epu8(most, _mm256_and_si256(vb_ld(p), seven));
    if (n)
        most = _mm256_max_epu8(
            most, _mm256_and_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)), seven));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, seven)) != 0;
}
/* Elements of `unit` bytes of both, one after the other, lane by lane. */
static inline vb vb_zip_lo(vb a, vb b, const uint32_t unit) {
    return unit == 1   ? _mm256_unpacklo_epi8(a, b)
           : unit == 2 ? _mm256_unpacklo_epi16(a, b)
                       : _mm256_unpacklo_epi32(a, b);
}
static inline vb vb_zip_hi(vb a, vb b, const uint32_t unit) {
    return unit == 1   ? _mm256_unpackhi_epi8(a, b)
           : unit == 2 ? _mm256_unpackhi_epi16(a, b)
                       : _mm256_unpackhi_epi32(a, b);
}
/* A line that is written whole need not be read first. */
static inline void vb_line(uint8_t *p, vb v, vb w) {
    if ((uintptr_t)p % 64) {
        _mm256_storeu_si256((__m256i *)(void *)p, v);
        _mm256_storeu_si256((__m256i *)(void *)(p + 32), w);
    } else {
        _mm256_stream_si256((__m256i *)(void *)p, v);
        _mm256_stream_si256((__m256i *)(void *)(p + 32), w);
    }
}
/* The first lane of four vectors at p, the second 256 bytes behind it. */
static inline void vb_put(uint8_t *p, const vb *v) {
    vb_line(p, _mm256_permute2x128_si256(v[0], v[1], 0x20), _mm256_permute2x128_si256(v[2], v[3], 0x20));
    vb_line(p + 256, _mm256_permute2x128_si256(v[0], v[1], 0x31), _mm256_permute2x128_si256(v[2], v[3], 0x31));
}
static inline void vb_fence(void) {
    _mm_sfence();
}

#include "cpu_body.h"
