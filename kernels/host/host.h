/* SPDX-License-Identifier: MIT */
/* host.h: what every backend that runs on the host shares: number formats, addressing of pages, exact top-k,
 * the counter-based noise and the sampler. Pure functions over the caller's memory; any thread. */
#ifndef GLMD_HOST_H
#define GLMD_HOST_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "backend.h"

/* ---- number formats ---- */

static inline float host_f32(uint16_t bf16) {
    uint32_t u = (uint32_t)bf16 << 16;
    float v;
    memcpy(&v, &u, sizeof(v));
    return v;
}

/* nearest even; NaN stays NaN */
static inline uint16_t host_bf16(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof(u));
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

/* E4M3 without infinities: sign, four bits of exponent with bias 7, three of fraction. To the nearest, ties to even;
 * what is too large becomes 448. A NaN becomes 448 too: the row's factor has to carry it. */
static inline uint8_t host_e4m3(float v) {
    const float tiny = 0x1p-6f, step = 0x1p14f; /* the smallest normal; numbers above `step` are 2^-9 apart */
    uint32_t u, sign, normal, small, base;
    memcpy(&u, &v, sizeof(u));
    sign = u >> 24 & 0x80;
    u &= 0x7fffffff;
    normal = ((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120u << 3);
    memcpy(&v, &u, sizeof(v));
    float low = (v < tiny ? v : tiny) + step;
    memcpy(&small, &low, sizeof(small));
    memcpy(&base, &step, sizeof(base));
    u = v < tiny ? small - base : v < 448.0f ? normal : 0x7e;
    return (uint8_t)(sign | u);
}

static inline float host_e4m3_f32(uint8_t b) {
    uint32_t u = (b & 0x7fu) << 20;
    float v;
    if (b & 0x78) {
        u += 120u << 23;
        memcpy(&v, &u, sizeof(v));
    } else {
        v = (float)(b & 7) * 0x1p-9f;
    }
    return b & 0x80 ? -v : v;
}

/* ---- rows of the cache ---- */

/* The factor of an FP8 row from the bits of its largest magnitude: never 0, and NaN when a number of the row is not
 * finite, so that the whole row is read as NaN. */
static inline float host_fp8_scale(uint32_t top_bits) {
    float top;
    memcpy(&top, &top_bits, sizeof(top));
    if (top_bits >= 0x7f800000u)
        return NAN;
    return top / 448.0f < FLT_MIN ? FLT_MIN : top / 448.0f;
}

/* Where the factor of a row of n codes lies, and the bytes of a stored row. */
static inline uint64_t host_fp8_at(uint64_t n) {
    return (n + 3) & ~3ull;
}
/* A latent's rotary numbers lie behind its n others; they keep BF16 where those are FP8. */
static inline uint64_t host_rope_at(uint32_t cache, uint64_t n) {
    return cache == KERN_CACHE_FP8 ? (host_fp8_at(n) + 19) & ~15ull : n * (cache == KERN_CACHE_BF16 ? 2 : 4);
}
static inline uint64_t host_latent_bytes(uint32_t cache, uint64_t n, uint64_t rope) {
    uint64_t r = rope * (cache == KERN_CACHE_F32 ? 4 : 2);
    return host_rope_at(cache, n) + (cache == KERN_CACHE_FP8 ? (r + 15) & ~15ull : r);
}
static inline uint64_t host_key_bytes(uint32_t cache, uint64_t n) {
    return cache == KERN_CACHE_FP8 ? host_fp8_at(n) + 4 : n * (cache == KERN_CACHE_BF16 ? 2 : 4);
}

/* A key whose unsigned order is the order of the numbers; -0 and +0 have the same key. NaN sorts outside. */
static inline uint32_t host_order(float v) {
    uint32_t u;
    v += 0.0f; /* -0 becomes +0 */
    memcpy(&u, &v, sizeof(u));
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Larger value first, then smaller id, as one unique number: the larger rank is the earlier one. */
static inline uint64_t host_rank(float v, uint32_t id) {
    return (uint64_t)host_order(v) << 32 | (uint32_t)~id;
}
static inline uint32_t host_rank_id(uint64_t rank) {
    return ~(uint32_t)rank;
}

/* ---- addressing ---- */

/* Page of the sequence that holds a position; the plan check has bounded both. */
static inline uint32_t host_page(const struct kern_plan *p, const struct kern_seq *s, uint32_t pos) {
    return plan_pages(p)[s->page0 + pos / KERN_PAGE_TOKENS];
}

/* Rows of a sequence that the draft stages run: the first ones, whose next token is known. */
uint32_t host_draft_rows(const struct kern_plan *p, const struct kern_seq *s);

/* The id behind a token field: KERN_TOKEN_LAST is what the slot last drew. KERN_NONE when it drew nothing. */
static inline uint32_t host_token(const struct kern *k, const struct kern_seq *s, uint32_t token) {
    return token == KERN_TOKEN_LAST ? k->slots[s->slot].last : token;
}

/* ---- top-k ---- */

/* Moves the k largest of a[0 .. n) to the front, in no order (all distinct). Expected O(n), deterministic. */
void host_select(uint64_t *a, uint64_t n, uint64_t k);
/* Descending. O(n log n) in every case, no recursion. */
void host_sort(uint64_t *a, uint64_t n);
/* Ids of the k best of score[0 .. n) (larger first, then smaller id), ascending by id. NaN counts as lowest.
 * scratch: n entries. k <= n. */
void host_topk(const float *score, uint32_t n, uint32_t k, uint64_t *scratch, uint32_t *ret_ids);

/* ---- sampling ---- */

/* x[i] becomes e^x[i] for x[i] <= 0, relative error below 1e-14; what is below -700 counts as -700. */
void host_exp(double *x, uint32_t n);
/* The same bits from any processor, and from one with AVX2; host_exp() chooses. */
void host_exp_any(double *x, uint32_t n);
void host_exp_avx2(double *x, uint32_t n); /* x86-64 only */

/* 52 bits, uniform, from nothing but the three numbers. */
uint64_t host_noise_bits(uint64_t seed, uint32_t position, uint32_t id);
/* G = -log(-log(u)), u = (bits + 0.5) / 2^52 */
double host_gumbel(uint64_t bits);

/* Scratch of one host_sample() call. */
static inline uint64_t host_sample_scratch(uint32_t vocab_rows) {
    return (uint64_t)vocab_rows * (2 * sizeof(uint64_t) + sizeof(float)) + 64;
}
/* Entry `index` of a checked plan over the raw logits of its row; fills *ret whole. The sampler as kern.h
 * documents it. scratch: 8-aligned, host_sample_scratch() bytes. */
void host_sample(const struct kern_model_desc *m, const struct kern_plan *p, uint32_t index,
                 const float *logits, void *scratch, struct kern_result *ret);
/* After a trunk entry was sampled: what KERN_TOKEN_LAST means from now on. */
void host_sample_keep(struct kern *k, const struct kern_plan *p, uint32_t index, const struct kern_result *r);

#endif
