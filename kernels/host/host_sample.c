/* SPDX-License-Identifier: MIT */
/* The sampler of kern.h over one row of logits. Nothing is sorted: top-k selects, the nucleus is found digit
 * by digit, and the draw skips every id whose noise cannot win. Weights that are summed are whole numbers, so
 * a cut does not depend on the order of the sum; noise depends on (seed, position, id) only. */
#include "host.h"

#include <float.h>
#include <math.h>

/* ---- noise ---- */

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t noise_key(uint64_t seed, uint32_t position) {
    return mix(mix(seed + 0x9e3779b97f4a7c15ull) + (position + 1ull) * 0xd1b54a32d192ed03ull);
}

static uint64_t keyed_bits(uint64_t key, uint32_t id) {
    return mix(key + (id + 1ull) * 0x9e3779b97f4a7c15ull) >> 12;
}

uint64_t host_noise_bits(uint64_t seed, uint32_t position, uint32_t id) {
    return keyed_bits(noise_key(seed, position), id);
}

double host_gumbel(uint64_t bits) {
    /* 53 significant bits: never 0, never 1 */
    double u = ((double)bits + 0.5) * 0x1p-52;
    return -log(-log(u));
}

/* Could these bits give G >= t? Never says no wrongly: G >= t needs -log u <= e^-t, hence 1 - u <= e^-t,
 * hence (2^52 - bits - 0.5) / 2^52 <= 2^-floor(t / ln 2). */
static bool may_reach(uint64_t bits, double t) {
    if (t < 1.0)
        return true;
    if (t >= 37.0) /* more than 53 halvings */
        return false;
    int halvings = (int)(t * 1.4426950408889634);
    uint64_t gap = (1ull << 52) - bits; /* 1 - u is (gap - 0.5) / 2^52 */
    return gap <= (1ull << 52 >> (halvings > 52 ? 52 : halvings)) + 1;
}

/* ---- raw logits ---- */

struct raw {
    uint32_t top1;
    double logsumexp;
    bool finite;
};

enum { BLOCK = 512 };

/* Sum of exp(z - best) in an order that depends on n only. */
static double sum_exp(const float *z, uint32_t n, double best) {
    double x[BLOCK], sum[4] = {0};
    for (uint32_t at = 0; at < n; at += BLOCK) {
        uint32_t m = n - at < BLOCK ? n - at : BLOCK;
        for (uint32_t i = 0; i < m; i++)
            x[i] = (double)z[at + i] - best;
        host_exp(x, m);
        for (uint32_t i = m; i % 4; i++)
            x[i] = 0;
        for (uint32_t i = 0; i < m; i += 4)
            for (uint32_t j = 0; j < 4; j++)
                sum[j] += x[i + j];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The first id of the largest number, KERN_NONE when none is above -infinity; no NaN. In whole numbers and block by
 * block: the compiler makes vector code of it, as it may not of float maxima, and one block is searched for the id. */
static uint32_t largest(const float *z, uint32_t n) {
    uint32_t best = host_order(-INFINITY), at = KERN_NONE;
    for (uint32_t first = 0; first < n; first += BLOCK) {
        uint32_t end = n - first < BLOCK ? n : first + BLOCK, top = 0;
        for (uint32_t i = first; i < end; i++) {
            uint32_t order = host_order(z[i]);
            top = order > top ? order : top;
        }
        if (top > best) {
            best = top;
            at = first;
        }
    }
    while (at != KERN_NONE && host_order(z[at]) != best)
        at++;
    return at;
}

static struct raw scan_raw(const float *z, uint32_t n) {
    struct raw r = {.finite = true};
    uint32_t bad = 0;
    for (uint32_t i = 0; i < n; i++) {
        int32_t u;
        memcpy(&u, &z[i], sizeof(u));
        bad |= (u & 0x7fffffff) >= 0x7f800000; /* NaN and both infinities */
    }
    if (bad) {
        r.finite = false;
        return r;
    }
    r.top1 = largest(z, n);
    float best = z[r.top1];
    double sum = sum_exp(z, n, (double)best);
    r.logsumexp = (double)best + log(sum);
    return r;
}

static void report_alts(const float *z, uint32_t n, uint32_t want, double logsumexp,
                        struct kern_result *ret) {
    uint64_t best[KERN_MAX_ALTS];
    uint32_t have = 0;
    for (uint32_t i = 0; i < n && want; i++) {
        uint64_t rank = host_rank(z[i], i);
        if (have == want && rank < best[have - 1])
            continue;
        uint32_t at = have < want ? have++ : have - 1;
        for (; at > 0 && best[at - 1] < rank; at--)
            best[at] = best[at - 1];
        best[at] = rank;
    }
    ret->n_alts = have;
    for (uint32_t i = 0; i < have; i++) {
        uint32_t id = host_rank_id(best[i]);
        ret->alts[i] = (struct kern_alt){.token = id, .logprob = (float)((double)z[id] - logsumexp)};
    }
}

/* ---- bans, bias, penalties ---- */

/* A huge finite logit must not become infinite and make the differences below NaN. */
static void add(float *v, float d) {
    *v += d;
    if (*v > FLT_MAX)
        *v = FLT_MAX;
}

/* 32 ids a word: masks are mostly all or nothing for long stretches, and a masked draw must not cost more than a plain
 * one (kernels/NOTES.md). */
static void mask_out(float *z, uint32_t n, const uint32_t *mask) {
    for (uint32_t at = 0; at < n; at += 32, z += 32) {
        uint32_t left = n - at < 32 ? n - at : 32;
        uint32_t off = ~mask[at / 32] & (left == 32 ? UINT32_MAX : (1u << left) - 1);
        if (off == UINT32_MAX)
            for (uint32_t i = 0; i < 32; i++)
                z[i] = -INFINITY;
        else
            for (; off; off &= off - 1)
                z[__builtin_ctz(off)] = -INFINITY;
    }
}

static bool is_adjusted(const struct kern_sample *s) {
    return s->mask0 != KERN_NONE || s->n_ban || s->n_bias || s->n_seen;
}

static void adjust(const struct kern_model_desc *m, const struct kern_plan *p, const struct kern_sample *s,
                   float *z) {
    const uint32_t n = m->vocab_tokens;
    if (s->mask0 != KERN_NONE)
        mask_out(z, n, plan_mask(p) + s->mask0);
    for (uint32_t i = 0; i < s->n_ban; i++)
        z[plan_ban(p)[s->ban0 + i]] = -INFINITY;
    for (uint32_t i = 0; i < s->n_bias; i++)
        add(&z[plan_bias(p)[s->bias0 + i].token], plan_bias(p)[s->bias0 + i].bias);
    for (uint32_t i = 0; i < s->n_seen; i++) {
        const struct kern_seen *t = &plan_seen(p)[s->seen0 + i];
        float *v = &z[t->token];
        *v = *v > 0 ? *v / s->repetition : *v * s->repetition;
        add(v, t->count ? -(s->presence + s->frequency * (float)t->count) : 0.0f);
    }
}

/* ---- cuts ---- */

/* Ranks of the surviving ids; -inf does not survive. */
static uint64_t gather(const float *z, uint32_t n, uint64_t *rank) {
    uint64_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        rank[have] = host_rank(z[i], i); /* have <= i */
        have += z[i] > -INFINITY;
    }
    return have;
}

struct cut {
    const float *z;
    double scale, top; /* 1 / temperature; the largest z */
};

static double weight(const struct cut *c, uint64_t rank) {
    return exp(((double)c->z[host_rank_id(rank)] - c->top) * c->scale);
}

/* Weights in units of 2^-bits of the largest one, to weight[0 .. n); returns their sum, which fits. */
static uint64_t whole_weights(const struct cut *c, const uint64_t *rank, uint64_t n, uint64_t *weight) {
    double x[BLOCK], one;
    uint64_t total = 0;
    int bits = 62;
    while (n >> (62 - bits))
        bits--;
    one = ldexp(1.0, bits);
    for (uint64_t at = 0; at < n; at += BLOCK) {
        uint32_t m = n - at < BLOCK ? (uint32_t)(n - at) : BLOCK;
        for (uint32_t i = 0; i < m; i++)
            x[i] = ((double)c->z[host_rank_id(rank[at + i])] - c->top) * c->scale;
        host_exp(x, m);
        for (uint32_t i = 0; i < m; i++)
            total += weight[at + i] = (uint64_t)(int64_t)(x[i] * one + 0.5);
    }
    return total;
}

/* The smallest whole number that is not below top_p * total. */
static uint64_t share(float top_p, uint64_t total) {
    int e;
    uint64_t m = (uint64_t)ldexp((double)frexpf(top_p, &e), 24); /* top_p = m * 2^(e - 24), 0 < top_p < 1 */
    unsigned __int128 product = (unsigned __int128)m * total, unit = (unsigned __int128)1 << (24 - e);
    uint64_t need = (uint64_t)((product + (unit - 1)) >> (24 - e));
    return need ? need : 1;
}

/* The lowest rank of the smallest set of best ranks whose weights reach `need` (1 .. their sum), its low bits
 * cleared where that changes nothing. From the top digit down: which value of the digit the sum crosses in;
 * only what has that value is looked at again. */
static uint64_t crossing(const uint64_t *rank, const uint64_t *weight, uint64_t n, uint64_t need) {
    enum { DIGIT = 11, VALUES = 1 << DIGIT };
    uint64_t prefix = 0, mask = 0, sum[VALUES];
    uint32_t count[VALUES];
    for (int shift = 64 - DIGIT;; shift = shift > DIGIT ? shift - DIGIT : 0) {
        memset(sum, 0, sizeof(sum));
        memset(count, 0, sizeof(count));
        for (uint64_t i = 0; i < n; i++)
            if ((rank[i] & mask) == prefix) {
                uint32_t d = rank[i] >> shift & (VALUES - 1);
                sum[d] += weight[i];
                count[d]++;
            }
        uint64_t d = VALUES - 1;
        for (; d > 0 && sum[d] < need + (FAULT(nucleus_reaches_past) ? 1u : 0u); d--)
            need -= sum[d];
        prefix |= d << shift;
        mask |= (uint64_t)(VALUES - 1) << shift;
        if (count[d] == 1 || shift == 0)
            return prefix;
    }
}

/* Leaves the smallest set of best ranks whose weights reach top_p of the sum, in the order they have. */
static uint64_t nucleus(const struct cut *c, uint64_t *rank, uint64_t n, float top_p, uint64_t *weight) {
    uint64_t total = whole_weights(c, rank, n, weight), kept = 0;
    uint64_t last = crossing(rank, weight, n, share(top_p, total));
    for (uint64_t i = 0; i < n; i++) {
        uint64_t r = rank[i];
        rank[kept] = r; /* kept <= i */
        kept += r >= last;
    }
    return kept;
}

static uint32_t draw(const struct cut *c, const struct kern_sample *s, uint32_t position,
                     const uint64_t *rank, uint64_t n) {
    const uint64_t key = noise_key(s->seed, position);
    double best = -INFINITY;
    uint32_t token = KERN_NONE;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t id = host_rank_id(rank[i]);
        double lp = ((double)c->z[id] - c->top) * c->scale;
        uint64_t bits = keyed_bits(key, id);
        /* the margin covers the rounding of lp + G below */
        if (token != KERN_NONE && !may_reach(bits, best - lp - 1e-9))
            continue;
        double score = lp + host_gumbel(bits);
        if (score > best || (score == best && id < token)) {
            best = score;
            token = id;
        }
    }
    return token;
}

static uint32_t choose(const struct kern_sample *s, uint32_t position, const float *z, uint32_t n,
                       uint64_t *rank, uint64_t *weights) {
    if (s->temperature <= 0)
        return largest(z, n);
    uint64_t have = gather(z, n, rank);
    if (!have)
        return KERN_NONE;
    uint64_t top = rank[0];
    for (uint64_t i = 1; i < have; i++)
        if (rank[i] > top)
            top = rank[i];
    const struct cut c = {.z = z, .scale = 1.0 / (double)s->temperature, .top = (double)z[host_rank_id(top)]};
    if (s->top_k && s->top_k < have) {
        host_select(rank, have, s->top_k);
        have = s->top_k;
    }
    if (s->top_p < 1)
        have = nucleus(&c, rank, have, s->top_p, weights);
    if (s->min_p > 0) {
        uint64_t kept = 0;
        for (uint64_t i = 0; i < have; i++)
            if (weight(&c, rank[i]) >= (double)s->min_p)
                rank[kept++] = rank[i];
        have = kept;
    }
    return draw(&c, s, position, rank, have);
}

/* ---- entry ---- */

void host_sample(const struct kern_model_desc *m, const struct kern_plan *p, uint32_t index,
                 const float *logits, void *scratch, struct kern_result *ret) {
    const struct kern_sample *s = &plan_samples(p)[index];
    const uint32_t n = m->vocab_tokens;
    *ret = (struct kern_result){.sample = index,
                                .token = KERN_NONE,
                                .top1 = KERN_NONE,
                                .logprob = NAN,
                                .logsumexp = NAN,
                                .target = s->target == KERN_NONE ? NAN : logits[s->target]};
    struct raw raw = scan_raw(logits, FAULT(padding_sampled) ? m->vocab_rows : n);
    if (!raw.finite) {
        ret->flags = KERN_RESULT_NONFINITE;
        return;
    }
    ret->top1 = raw.top1;
    ret->logsumexp = (float)raw.logsumexp;
    report_alts(logits, n, s->n_alts, raw.logsumexp, ret);
    if (s->mode == KERN_SAMPLE_SCORE) {
        ret->token = raw.top1;
    } else if (s->forced != KERN_NONE) {
        ret->token = s->forced;
    } else if (s->temperature <= 0 && !is_adjusted(s)) {
        ret->token = raw.top1;
    } else {
        uint64_t *rank = scratch, *weights = rank + m->vocab_rows;
        float *z = (float *)(void *)(weights + m->vocab_rows);
        uint32_t position = plan_rows(p)[s->row].pos + (s->source == KERN_SOURCE_DRAFT ? 2 : 1);
        memcpy(z, logits, m->vocab_rows * sizeof(*z));
        adjust(m, p, s, z);
        ret->token = choose(s, position, z, FAULT(padding_sampled) ? m->vocab_rows : n, rank, weights);
    }
    if (ret->token == KERN_NONE)
        ret->flags = KERN_RESULT_EMPTY;
    else
        ret->logprob = (float)((double)logits[ret->token] - raw.logsumexp);
}

void host_sample_keep(struct kern *k, const struct kern_plan *p, uint32_t index,
                      const struct kern_result *r) {
    const struct kern_sample *s = &plan_samples(p)[index];
    if (s->mode == KERN_SAMPLE_DRAW && s->source == KERN_SOURCE_TRUNK && r->token != KERN_NONE)
        k->slots[plan_seqs(p)[plan_rows(p)[s->row].seq].slot].last = r->token;
}
