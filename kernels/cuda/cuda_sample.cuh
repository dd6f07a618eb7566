/* SPDX-License-Identifier: MIT */
/* cuda_sample.cuh: what the sampler's kernels share: the numbers of kernels/host/host_sample.c on the device. What
 * decides about a token (ranks, noise, whole weights, cuts) has the host's bits: every step is rounded as written,
 * never contracted. The logarithms of the noise may differ in their last bit, which a draw would notice only where two
 * scores agree in 15 digits. */
#ifndef GLMD_CUDA_SAMPLE_CUH
#define GLMD_CUDA_SAMPLE_CUH

#include "cuda_launch.cuh"

#include <float.h>
#include <math.h>

#include "cuda_dev.h"

enum {
    SAMPLE_THREADS = 256,
    SAMPLE_EACH = 4, /* ids of a thread, behind each other */
    SAMPLE_CHUNK = SAMPLE_THREADS * SAMPLE_EACH,
    SAMPLE_RUN = 16, /* bins of a thread, where a block adds them up */
    SAMPLE_BINS = SAMPLE_THREADS * SAMPLE_RUN,
    SAMPLE_CUTS = 7, /* places a selection looks at in one pass */
};

/* What is drawn from: all that is above -inf, a nucleus, or what top_k leaves. */
enum { SAMPLE_NOTHING, SAMPLE_ALL, SAMPLE_NUCLEUS, SAMPLE_TOP_K };

/* A sample's beginnings; what lies behind it: sample_of(). */
struct sample_state {
    /* the plan's entry, from scan on */
    uint64_t key; /* of its noise */
    double scale; /* 1 / temperature */
    float temperature, top_p, min_p;
    uint32_t index, top_k, n_alts, target, forced;
    uint32_t draws, scores, adjusted; /* adjusted: z is not the logits */
    /* from weigh on */
    uint32_t what, token;
    double logsumexp;
    float top_z, per_z; /* of the best adjusted logit; bins a unit of z */
    uint32_t kept, cut; /* ids above -inf; the bin that the cut lies in */
    uint64_t above, need; /* weight of the bins before it; of all that stays */
    /* how many blocks are through, or entries listed */
    uint32_t weighed, drawn, listed, listed_alts;
    uint32_t closed; /* of the first sample: samples that are through */
};

/* Of a chunk. */
struct sample_part {
    uint64_t raw, best; /* ranks, before and after masks, lists and so on */
    double sum;         /* of e^(z - the best), raw */
    uint32_t bad, kept;
    float low;          /* the least above -inf */
    uint32_t zero;
};

struct sample_best {
    uint64_t order; /* of the best score; 0: none */
    uint32_t id, zero;
};

struct sample_args {
    const struct cuda_step *step;
    const float *logits;
    char *scratch;
    uint64_t stride;
    struct kern_result *results;
    uint32_t *last;
    uint32_t vocab_rows, vocab_tokens, source, chunks;
};

struct sample_at {
    struct sample_state *state;
    struct sample_part *part;
    struct sample_best *best;
    uint64_t *hist; /* weights by bin, in the order of sample_slot() */
    float *z;
    uint64_t *list; /* ranks */
};

__host__ __device__ static inline uint64_t sample_offset(uint32_t vocab_rows, int what) {
    uint64_t chunks = (vocab_rows + (uint64_t)SAMPLE_CHUNK - 1) / SAMPLE_CHUNK, n = (vocab_rows + 3ull) & ~3ull;
    uint64_t at = 256;
    static_assert(sizeof(struct sample_state) <= 256, "what lies behind a state begins there");
    if (what > 0) at += chunks * sizeof(struct sample_part);
    if (what > 1) at += chunks * sizeof(struct sample_best);
    at = (at + 15) & ~15ull; /* z is read in 16 bytes */
    if (what > 2) at += SAMPLE_BINS * sizeof(uint64_t);
    if (what > 3) at += n * sizeof(float);
    if (what > 4) at += n * sizeof(uint64_t);
    return at;
}

__device__ static inline struct sample_at sample_of(const struct sample_args &a, uint32_t j) {
    char *base = a.scratch + j * a.stride;
    struct sample_at r;
    r.state = (struct sample_state *)base;
    r.part = (struct sample_part *)(base + sample_offset(a.vocab_rows, 0));
    r.best = (struct sample_best *)(base + sample_offset(a.vocab_rows, 1));
    r.hist = (uint64_t *)(base + sample_offset(a.vocab_rows, 2));
    r.z = (float *)(base + sample_offset(a.vocab_rows, 3));
    r.list = (uint64_t *)(base + sample_offset(a.vocab_rows, 4));
    return r;
}

__device__ static inline const char *sample_bytes(const struct cuda_step *s, uint32_t offset) {
    return (const char *)s + offset;
}
__device__ static inline const struct kern_plan *sample_plan(const struct cuda_step *s) {
    return (const struct kern_plan *)sample_bytes(s, s->plan);
}
__device__ static inline uint32_t sample_index(const struct sample_args &a, uint32_t j) {
    return ((const uint32_t *)sample_bytes(a.step, a.step->samples[a.source]))[j];
}
__device__ static inline const struct kern_sample *sample_entry(const struct kern_plan *p, uint32_t index) {
    return (const struct kern_sample *)((const char *)p + p->samples) + index;
}
__device__ static inline const struct kern_row *sample_row(const struct kern_plan *p, uint32_t row) {
    return (const struct kern_row *)((const char *)p + p->rows) + row;
}

/* ---- order ------------------------------------------------------------------------------------------------ */

__device__ static inline uint32_t sample_order(float v) {
    uint32_t u = __float_as_uint(__fadd_rn(v, 0.0f)); /* -0 becomes +0 */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ static inline uint64_t sample_rank(float v, uint32_t id) {
    return (uint64_t)sample_order(v) << 32 | (uint32_t)~id;
}
__device__ static inline uint32_t sample_rank_id(uint64_t rank) {
    return ~(uint32_t)rank;
}
__device__ static inline float sample_rank_value(uint64_t rank) {
    uint32_t u = (uint32_t)(rank >> 32);
    return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

/* Bins go down from the best: a number is never in an earlier bin than a larger one. The last holds all the rest. */
__device__ static inline uint32_t sample_bin(float z, float top, float per_z) {
    float at = __fmul_rn(__fsub_rn(top, z), per_z);
    return at < SAMPLE_BINS - 1 ? (uint32_t)at : (uint32_t)SAMPLE_BINS - 1;
}
/* Where a bin lies, so that threads with SAMPLE_RUN bins behind each other read side by side. */
__device__ static inline uint32_t sample_slot(uint32_t bin) {
    return bin % SAMPLE_RUN * SAMPLE_THREADS + bin / SAMPLE_RUN;
}

/* ---- noise ------------------------------------------------------------------------------------------------ */

__device__ static inline uint64_t sample_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
__device__ static inline uint64_t sample_key(uint64_t seed, uint32_t position) {
    return sample_mix(sample_mix(seed + 0x9e3779b97f4a7c15ull) + (position + 1ull) * 0xd1b54a32d192ed03ull);
}
__device__ static inline uint64_t sample_bits(uint64_t key, uint32_t id) {
    return sample_mix(key + (id + 1ull) * 0x9e3779b97f4a7c15ull) >> 12;
}
__device__ static inline double sample_gumbel(uint64_t bits) {
    return -log(-log(__dmul_rn(__dadd_rn((double)bits, 0.5), 0x1p-52)));
}
/* The same within 2e-5: near 1 the distance from it is what has digits. */
__device__ static inline float sample_gumbel_near(uint64_t bits) {
    uint64_t gap = (1ull << 52) - bits;
    float l = gap <= 1ull << 51 ? -log1pf(-(((float)gap - 0.5f) * 0x1p-52f)) : -logf(((float)bits + 0.5f) * 0x1p-52f);
    return -logf(l);
}

/* ---- weights ---------------------------------------------------------------------------------------------- */

/* host_exp() of one number, x <= 0. */
__device__ static inline double sample_exp(double x) {
    const double to_integer = 0x1.8p52;
    double v = x > -700.0 ? x : -700.0;
    double t = __dadd_rn(__dmul_rn(v, 0x1.71547652b82fep0), to_integer), k = __dsub_rn(t, to_integer);
    double r = __dsub_rn(__dsub_rn(v, __dmul_rn(k, 0x1.62e42fefa0000p-1)), __dmul_rn(k, 0x1.cf79abc9e3b3ap-40));
    double p = 1.0 / 39916800;
    p = __dadd_rn(__dmul_rn(p, r), 1.0 / 3628800);
    p = __dadd_rn(__dmul_rn(p, r), 1.0 / 362880);
    p = __dadd_rn(__dmul_rn(p, r), 1.0 / 40320);
    p = __dadd_rn(__dmul_rn(p, r), 1.0 / 5040);
    p = __dadd_rn(__dmul_rn(p, r), 1.0 / 720);
    p = __dadd_rn(__dmul_rn(p, r), 1.0 / 120);
    p = __dadd_rn(__dmul_rn(p, r), 1.0 / 24);
    p = __dadd_rn(__dmul_rn(p, r), 1.0 / 6);
    p = __dadd_rn(__dmul_rn(p, r), 0.5);
    p = __dadd_rn(__dmul_rn(p, r), 1.0);
    p = __dadd_rn(__dmul_rn(p, r), 1.0);
    return __dmul_rn(p, __longlong_as_double((long long)(((uint64_t)__double_as_longlong(t) + 1023) << 52)));
}

__device__ static inline double sample_lp(float z, float top, double scale) {
    return __dmul_rn(__dsub_rn((double)z, (double)top), scale);
}
/* The same within 4e-7 of itself, finite. */
__device__ static inline float sample_lp_near(float z, float top, float scale) {
    return z == top ? 0.0f : fmaxf((z - top) * scale, -3e38f);
}

/* Weights are whole numbers in units of 2^-bits of the largest, so that n of them can be summed. */
__device__ static inline int sample_weight_bits(uint64_t n) {
    int bits = 62;
    while (n >> (62 - bits)) bits--;
    return bits;
}
__device__ static inline uint64_t sample_whole(double lp, int bits) {
    double one = __longlong_as_double((long long)(1023 + bits) << 52);
    return (uint64_t)(long long)__dadd_rn(__dmul_rn(sample_exp(lp), one), 0.5);
}

/* The smallest whole number that is not below top_p * total; 0 < top_p < 1, a normal number. */
__device__ static inline uint64_t sample_share(float top_p, uint64_t total) {
    uint32_t u = __float_as_uint(top_p), shift = 24 - ((u >> 23) - 126); /* top_p = m * 2^-shift */
    uint64_t m = (u & 0x7fffff) | 0x800000, unit = (1ull << shift) - 1;
    uint64_t lo = m * total, hi = __umul64hi(m, total), sum = lo + unit;
    hi += sum < lo;
    uint64_t need = hi << (64 - shift) | sum >> shift;
    return need ? need : 1;
}

/* ---- scores ----------------------------------------------------------------------------------------------- */

/* How far a score of sample_gumbel_near() may be off. */
__device__ static inline float score_error(float score) {
    return 1e-4f + 1e-6f * fabsf(score);
}

struct choice {
    uint64_t key;
    float z_top, scale;
    double scale_d, min_p;
    float log_min; /* of min_p; what is this far below the best is out */
};

__device__ static inline bool stays(const struct choice &c, float z) {
    if (c.min_p <= 0) return true;
    float lp = sample_lp_near(z, c.z_top, c.scale), margin = 1e-4f + 1e-6f * fabsf(lp);
    if (lp > c.log_min + margin) return true;
    if (lp < c.log_min - margin) return false;
    return exp(sample_lp(z, c.z_top, c.scale_d)) >= c.min_p;
}

__device__ static inline float score_near(const struct choice &c, float z, uint32_t id) {
    return sample_lp_near(z, c.z_top, c.scale) + sample_gumbel_near(sample_bits(c.key, id));
}

/* Doubles in the order of whole numbers; none is 0. */
__device__ static inline uint64_t score_order(const struct choice &c, float z, uint32_t id) {
    double exact = __dadd_rn(sample_lp(z, c.z_top, c.scale_d), sample_gumbel(sample_bits(c.key, id)));
    long long b = __double_as_longlong(__dadd_rn(exact, 0.0));
    return b < 0 ? ~(uint64_t)b : (uint64_t)b | 1ull << 63;
}

#endif
