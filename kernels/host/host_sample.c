/* SPDX-License-Identifier: MIT */
/* The sampler of kern.h over one row of logits. No whole-vocabulary sort: cuts work on a selected prefix that
 * grows until it is long enough, and the draw skips every id whose noise cannot win. The result is the one of
 * the plain definition, to the bit: sums run in rank order, noise depends on (seed, position, id) only. */
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
    double halvings = floor(t * 1.4426950408889634);
    if (halvings > 53)
        return false;
    uint64_t gap = (1ull << 52) - bits; /* 1 - u is (gap - 0.5) / 2^52 */
    return gap <= (1ull << 52 >> (halvings > 52 ? 52 : (int)halvings)) + 1;
}

/* ---- raw logits ---- */

struct raw {
    uint32_t top1;
    double logsumexp;
    bool finite;
};

static struct raw scan_raw(const float *z, uint32_t n) {
    struct raw r = {.finite = true};
    float best = z[0];
    for (uint32_t i = 0; i < n; i++) {
        /* one comparison catches NaN and both infinities */
        if (!(fabsf(z[i]) <= FLT_MAX)) {
            r.finite = false;
            return r;
        }
        if (z[i] > best) {
            best = z[i];
            r.top1 = i;
        }
    }
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)z[i] - (double)best);
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

static void adjust(const struct kern_model_desc *m, const struct kern_plan *p, const struct kern_sample *s,
                   float *z) {
    const uint32_t n = m->vocab_tokens;
    if (s->mask0 != KERN_NONE) {
        const uint32_t *mask = plan_mask(p) + s->mask0;
        for (uint32_t i = 0; i < n; i++)
            if (!(mask[i / 32] >> (i % 32) & 1))
                z[i] = -INFINITY;
    }
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
    for (uint32_t i = 0; i < n; i++)
        if (z[i] > -INFINITY)
            rank[have++] = host_rank(z[i], i);
    return have;
}

struct cut {
    const float *z;
    double scale, top; /* 1 / temperature; the largest z */
};

static double weight(const struct cut *c, uint64_t rank) {
    return exp(((double)c->z[host_rank_id(rank)] - c->top) * c->scale);
}

/* How many of rank[0 .. n), best first, reach top_p of their sum. Sorts as much of the front as it needs. */
static uint64_t nucleus(const struct cut *c, uint64_t *rank, uint64_t n, double top_p) {
    double total = 0, sum = 0;
    for (uint64_t i = 0; i < n; i++)
        total += weight(c, rank[i]);
    for (uint64_t done = 0, step = 256; done < n; done += step, step *= 4) {
        if (step > n - done)
            step = n - done;
        host_select(rank + done, n - done, step);
        host_sort(rank + done, step);
        for (uint64_t i = done; i < done + step; i++) {
            sum += weight(c, rank[i]);
            if (sum >= top_p * total)
                return i + 1;
        }
    }
    return n;
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
                       uint64_t *rank) {
    uint64_t have = gather(z, n, rank);
    if (!have)
        return KERN_NONE;
    uint64_t top = rank[0];
    for (uint64_t i = 1; i < have; i++)
        if (rank[i] > top)
            top = rank[i];
    if (s->temperature <= 0)
        return host_rank_id(top);
    const struct cut c = {.z = z, .scale = 1.0 / (double)s->temperature, .top = (double)z[host_rank_id(top)]};
    if (s->top_k && s->top_k < have) {
        host_select(rank, have, s->top_k);
        have = s->top_k;
    }
    if (s->top_p < 1) {
        /* the sum of what remains must not depend on the order a selection left behind */
        if (s->top_k)
            host_sort(rank, have);
        have = nucleus(&c, rank, have, (double)s->top_p);
    }
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
    } else {
        uint64_t *rank = scratch;
        float *z = (float *)(void *)(rank + m->vocab_rows);
        uint32_t position = plan_rows(p)[s->row].pos + (s->source == KERN_SOURCE_DRAFT ? 2 : 1);
        memcpy(z, logits, m->vocab_rows * sizeof(*z));
        adjust(m, p, s, z);
        ret->token = choose(s, position, z, FAULT(padding_sampled) ? m->vocab_rows : n, rank);
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
