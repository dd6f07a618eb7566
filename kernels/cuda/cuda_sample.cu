/* SPDX-License-Identifier: MIT */
/* cuda_sample.cu: the sampler of kern.h over the logits of a head, four kernels for all samples of a source:
 *  scan:   many blocks a sample: whether all are finite, the best, the sum of exponentials; the mask
 *  adjust: one block: alternatives, bans, bias, penalties, the best of what is left, top_k; here greedy draws end
 *  weigh:  many blocks: whole weights for the nucleus, and each score (log p + noise) within a bound of its error
 *  draw:   one block: nucleus, min_p, and exact scores of those few that can be the best
 * Doubles are slow on small devices, so that they are kept to what decides. */
#include "cuda_sample.cuh"
#include "cuda_select.cuh"

/* The largest of the block's, for all threads; a multiple of 32 of them. */
__device__ static uint64_t block_best(uint64_t *room, uint64_t v) {
    for (int by = 16; by; by >>= 1) v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, v, by));
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? room[threadIdx.x] : 0;
        for (int by = 16; by; by >>= 1) v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, v, by));
        if (!threadIdx.x) room[32] = v;
    }
    __syncthreads();
    v = room[32];
    __syncthreads();
    return v;
}

__device__ static uint64_t block_total(uint64_t *room, uint64_t v) {
    for (int by = 16; by; by >>= 1) v += __shfl_xor_sync(0xffffffffu, v, by);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (uint32_t i = 0; i < blockDim.x / 32; i++) v += room[i];
    __syncthreads();
    return v;
}

/* In an order that depends on the block's size alone. */
__device__ static double block_sum(double *room, double v) {
    for (int by = 16; by; by >>= 1) v += __shfl_xor_sync(0xffffffffu, v, by);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (uint32_t i = 0; i < blockDim.x / 32; i++) v += room[i];
    __syncthreads();
    return v;
}

__device__ static bool draws(const struct kern_sample *s) {
    return s->mode == KERN_SAMPLE_DRAW && s->forced == KERN_NONE;
}

/* ---- scan -------------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(SAMPLE_CHUNK_THREADS) sample_scan(struct sample_args a) {
    enum { EACH = SAMPLE_CHUNK / SAMPLE_CHUNK_THREADS };
    __shared__ uint64_t room[33];
    __shared__ double sums[32];
    const struct kern_plan *p = sample_plan(a.step);
    if (!blockIdx.x && !blockIdx.y && !threadIdx.x) sample_of(a, 0).state->arrived = 0;
    for (uint32_t j = blockIdx.y; j < a.step->n_samples[a.source]; j += gridDim.y) {
        uint32_t index = sample_index(a, j), from = blockIdx.x * SAMPLE_CHUNK, bad = 0;
        const struct kern_sample *s = sample_entry(p, index);
        const uint32_t *mask = s->mask0 == KERN_NONE ? NULL : (const uint32_t *)((const char *)p + p->mask) + s->mask0;
        const float *logits = a.logits + (uint64_t)index * a.vocab_rows;
        struct sample_at at = sample_of(a, j);
        float v[EACH];
        uint64_t best = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            uint32_t id = from + i * SAMPLE_CHUNK_THREADS + threadIdx.x;
            v[i] = id < a.vocab_tokens ? logits[id] : -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            uint32_t id = from + i * SAMPLE_CHUNK_THREADS + threadIdx.x;
            if (id >= a.vocab_tokens) continue;
            bad |= (__float_as_uint(v[i]) & 0x7fffffff) >= 0x7f800000;
            best = max(best, sample_rank(v[i], id));
            if (draws(s)) at.z[id] = mask && !(mask[id / 32] >> id % 32 & 1) ? -INFINITY : v[i];
        }
        bad = __syncthreads_or((int)bad);
        best = block_best(room, best);
        float top = sample_rank_value(best), sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum += bad ? 0 : expf(v[i] - top);
        double all = block_sum(sums, (double)sum);
        if (!threadIdx.x) {
            at.part[blockIdx.x].rank = best;
            at.part[blockIdx.x].bad = bad;
            at.part[blockIdx.x].sum = all;
        }
        __syncthreads();
    }
}

/* ---- adjust ------------------------------------------------------------------------------------------------ */

__device__ static void sample_add(float *v, float d) {
    float r = __fadd_rn(*v, d);
    *v = r > FLT_MAX ? FLT_MAX : r; /* an infinite one would make differences NaN */
}

/* Bans, then bias, then penalties, each over all of its list before the next begins. */
__device__ static void adjust_lists(const struct kern_plan *p, const struct kern_sample *s, float *z, uint32_t n) {
    const uint32_t *ban = (const uint32_t *)((const char *)p + p->ban) + s->ban0;
    const struct kern_bias *bias = (const struct kern_bias *)((const char *)p + p->bias) + s->bias0;
    const struct kern_seen *seen = (const struct kern_seen *)((const char *)p + p->seen) + s->seen0;
    for (uint32_t i = threadIdx.x; i < s->n_ban; i += SAMPLE_THREADS)
        if (ban[i] < n) z[ban[i]] = -INFINITY;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->n_bias; i += SAMPLE_THREADS) {
        uint32_t token = bias[i].token, first = 0;
        while (bias[first].token != token) first++;
        if (first != i) continue; /* a token named twice: its first entry adds all, in their order */
        for (uint32_t k = i; k < s->n_bias; k++)
            if (bias[k].token == token) sample_add(&z[token], bias[k].bias);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->n_seen; i += SAMPLE_THREADS) {
        uint32_t token = seen[i].token, count = seen[i].count;
        if (token >= n) continue;
        float v = z[token];
        v = v > 0 ? __fdiv_rn(v, s->repetition) : __fmul_rn(v, s->repetition);
        sample_add(&v, count ? -__fadd_rn(s->presence, __fmul_rn(s->frequency, (float)count)) : 0.0f);
        z[token] = v;
    }
    __syncthreads();
}

__device__ static void report_alts(struct select_room *m, const float *z, uint32_t n, uint32_t want, uint64_t top,
                                   double logsumexp, struct kern_result *ret) {
    want = min(want, n);
    uint64_t last = select_rank(m, z, NULL, n, want, 0, top, n);
    if (!threadIdx.x) m->listed = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        uint64_t r = sample_rank(z[i], i);
        if (r >= last) m->rank[atomicAdd(&m->listed, 1u)] = r;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < want; i += SAMPLE_THREADS) {
        uint32_t place = 0;
        for (uint32_t k = 0; k < want; k++) place += m->rank[k] > m->rank[i];
        ret->alts[place].token = sample_rank_id(m->rank[i]);
        ret->alts[place].logprob = (float)((double)sample_rank_value(m->rank[i]) - logsumexp);
    }
    if (!threadIdx.x) ret->n_alts = want;
    __syncthreads();
}

__device__ static void finish(const struct sample_args &a, uint32_t index, struct sample_state *st, uint32_t token) {
    struct kern_result *ret = &a.results[index];
    st->token = token;
    st->drawing = 0;
    ret->token = token;
    if (token == KERN_NONE) ret->flags = KERN_RESULT_EMPTY;
    else ret->logprob = (float)((double)a.logits[(uint64_t)index * a.vocab_rows + token] - st->logsumexp);
}

/* What is left to draw from once z is adjusted. */
__device__ static void adjust_choice(const struct sample_args &a, const struct sample_at &at, uint32_t index,
                                     const struct kern_sample *s, struct select_room *m, uint64_t *room) {
    struct sample_state *st = at.state;
    uint32_t n = a.vocab_tokens;
    uint64_t best = 0, have = 0;
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        float v = at.z[i];
        if (!(v > -INFINITY)) continue;
        best = max(best, sample_rank(v, i));
        have++;
    }
    best = block_best(room, best);
    have = block_total(room, have);
    if (!have || s->temperature <= 0) {
        if (!threadIdx.x) finish(a, index, st, have ? sample_rank_id(best) : KERN_NONE);
        return;
    }
    uint64_t cut = SAMPLE_LOWEST;
    if (s->top_k && s->top_k < have) {
        cut = select_rank(m, at.z, NULL, n, s->top_k, cut, best, have);
        have = s->top_k;
    }
    if (!threadIdx.x) {
        st->top = best;
        st->top_z = at.z[sample_rank_id(best)];
        st->scale = __ddiv_rn(1.0, (double)s->temperature);
        st->cut = cut;
        st->kept = have;
        st->drawing = 1;
    }
}

__global__ void __launch_bounds__(SAMPLE_THREADS, 1) sample_adjust(struct sample_args a) {
    CUDA_SMEM(struct select_room, m);
    __shared__ uint64_t room[33];
    __shared__ double sums[32];
    const struct kern_plan *p = sample_plan(a.step);
    for (uint32_t j = blockIdx.x; j < a.step->n_samples[a.source]; j += gridDim.x) {
        uint32_t index = sample_index(a, j), bad = 0;
        const struct kern_sample *s = sample_entry(p, index);
        const float *logits = a.logits + (uint64_t)index * a.vocab_rows;
        struct kern_result *ret = &a.results[index];
        struct sample_at at = sample_of(a, j);
        uint64_t top = 0;
        for (uint32_t c = threadIdx.x; c < a.chunks; c += SAMPLE_THREADS) {
            bad |= at.part[c].bad;
            top = max(top, at.part[c].rank);
        }
        bad = __syncthreads_or((int)bad);
        top = block_best(room, top);
        double sum = 0, best = sample_rank_value(top);
        for (uint32_t c = threadIdx.x; c < a.chunks && !bad; c += SAMPLE_THREADS)
            sum += at.part[c].sum * exp((double)sample_rank_value(at.part[c].rank) - best);
        sum = block_sum(sums, sum);
        double logsumexp = bad ? (double)NAN : best + log(sum);
        for (uint32_t i = threadIdx.x; i < KERN_MAX_ALTS; i += SAMPLE_THREADS) {
            ret->alts[i].token = 0;
            ret->alts[i].logprob = 0;
        }
        if (!threadIdx.x) {
            ret->sample = index;
            ret->token = KERN_NONE;
            ret->top1 = bad ? KERN_NONE : sample_rank_id(top);
            ret->flags = bad ? KERN_RESULT_NONFINITE : 0;
            ret->logprob = NAN;
            ret->logsumexp = (float)logsumexp;
            ret->target = s->target == KERN_NONE ? NAN : logits[s->target];
            ret->n_alts = 0;
            at.state->logsumexp = logsumexp;
            at.state->token = KERN_NONE;
            at.state->drawing = 0;
        }
        __syncthreads();
        if (bad) continue;
        if (s->n_alts) report_alts(m, logits, a.vocab_tokens, s->n_alts, top, logsumexp, ret);
        if (draws(s)) {
            adjust_lists(p, s, at.z, a.vocab_tokens);
            adjust_choice(a, at, index, s, m, room);
        } else if (!threadIdx.x) {
            finish(a, index, at.state, s->mode == KERN_SAMPLE_SCORE ? sample_rank_id(top) : s->forced);
        }
        __syncthreads();
    }
}

/* ---- weigh ------------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(SAMPLE_CHUNK_THREADS) sample_weigh(struct sample_args a) {
    __shared__ uint64_t room[33];
    const struct kern_plan *p = sample_plan(a.step);
    for (uint32_t j = blockIdx.y; j < a.step->n_samples[a.source]; j += gridDim.y) {
        const struct kern_sample *s = sample_entry(p, sample_index(a, j));
        struct sample_at at = sample_of(a, j);
        const struct sample_state st = *at.state;
        if (!st.drawing) continue;
        uint32_t position = sample_row(p, s->row)->pos + (s->source == KERN_SOURCE_DRAFT ? 2 : 1);
        uint64_t key = sample_key(s->seed, position), weight = 0;
        float scale = (float)st.scale;
        int bits = sample_weight_bits(st.kept);
        for (uint32_t i = threadIdx.x; i < SAMPLE_CHUNK; i += SAMPLE_CHUNK_THREADS) {
            uint32_t id = blockIdx.x * SAMPLE_CHUNK + i;
            if (id >= a.vocab_tokens) break;
            float z = at.z[id], lp = sample_lp_near(z, st.top_z, scale);
            bool in = sample_rank(z, id) >= st.cut;
            uint64_t w = 0;
            if (s->top_p < 1) {
                /* e^lp below half a unit is nothing: 45 > 64 ln 2 */
                if (in && lp > -45.0f) w = sample_whole(sample_lp(z, st.top_z, st.scale), bits);
                at.weight[id] = w;
                weight += w;
            }
            if (in) at.score[id] = lp + sample_gumbel_near(sample_bits(key, id));
        }
        weight = block_total(room, weight);
        if (!threadIdx.x) at.part[blockIdx.x].weight = weight;
    }
}

/* ---- draw -------------------------------------------------------------------------------------------------- */

/* How far a score of weigh's may be off. */
__device__ static float score_error(float score) {
    return 1e-4f + 1e-6f * fabsf(score);
}

struct choice {
    float z_top, scale;
    double scale_d, min_p;
    float log_min; /* of min_p; what is this far below the best is out */
};

__device__ static bool stays(const struct choice &c, float z) {
    if (c.min_p <= 0) return true;
    float lp = sample_lp_near(z, c.z_top, c.scale), margin = 1e-4f + 1e-6f * fabsf(lp);
    if (lp > c.log_min + margin) return true;
    if (lp < c.log_min - margin) return false;
    return exp(sample_lp(z, c.z_top, c.scale_d)) >= c.min_p;
}

__device__ static uint32_t draw_one(const struct sample_args &a, const struct sample_at &at,
                                    const struct kern_plan *p, const struct kern_sample *s, struct select_room *m,
                                    uint64_t *room) {
    const struct sample_state st = *at.state;
    uint32_t n = a.vocab_tokens, position = sample_row(p, s->row)->pos + (s->source == KERN_SOURCE_DRAFT ? 2 : 1);
    uint64_t key = sample_key(s->seed, position), cut = st.cut;
    if (s->top_p < 1) {
        uint64_t total = 0;
        for (uint32_t c = threadIdx.x; c < a.chunks; c += SAMPLE_THREADS) total += at.part[c].weight;
        total = block_total(room, total);
        cut = select_rank(m, at.z, at.weight, n, sample_share(s->top_p, total), cut, st.top, st.kept);
    }
    struct choice c = {st.top_z, (float)st.scale, st.scale, (double)s->min_p, 0};
    if (c.min_p > 0) c.log_min = fmaxf(logf(s->min_p), -200.0f);
    /* A bound from below of the best score, in an order of whole numbers. */
    uint64_t bound = 0;
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        float z = at.z[i];
        if (sample_rank(z, i) < cut || !stays(c, z)) continue;
        float score = at.score[i];
        bound = max(bound, (uint64_t)sample_order(score - score_error(score)));
    }
    bound = block_best(room, bound);
    float least = sample_rank_value(bound << 32);
    double best = -INFINITY;
    uint32_t token = KERN_NONE;
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        float z = at.z[i];
        if (sample_rank(z, i) < cut || !stays(c, z)) continue;
        float score = at.score[i];
        if (score + score_error(score) < least) continue;
        double exact = __dadd_rn(sample_lp(z, c.z_top, c.scale_d), sample_gumbel(sample_bits(key, i)));
        if (exact > best) {
            best = exact;
            token = i;
        }
    }
    /* Doubles in the order of whole numbers, then the smaller id. */
    long long b = __double_as_longlong(__dadd_rn(best, 0.0));
    uint64_t order = b < 0 ? ~(uint64_t)b : (uint64_t)b | 1ull << 63;
    uint64_t first = block_best(room, token == KERN_NONE ? 0 : order);
    token = (uint32_t)block_best(room, token != KERN_NONE && order == first ? (uint64_t)~token : 0);
    return ~token;
}

/* What KERN_TOKEN_LAST means from now on: of a slot's samples the last one that drew. */
__device__ static void keep_tokens(const struct sample_args &a, const struct kern_plan *p) {
    for (uint32_t j = 0; j < a.step->n_samples[a.source]; j++) {
        const struct kern_sample *s = sample_entry(p, sample_index(a, j));
        uint32_t token = *(volatile uint32_t *)&sample_of(a, j).state->token;
        if (s->mode != KERN_SAMPLE_DRAW || token == KERN_NONE) continue;
        const struct kern_seq *seq = (const struct kern_seq *)((const char *)p + p->seqs) + sample_row(p, s->row)->seq;
        a.last[seq->slot] = token;
    }
}

__global__ void __launch_bounds__(SAMPLE_THREADS, 1) sample_draw(struct sample_args a) {
    CUDA_SMEM(struct select_room, m);
    __shared__ uint64_t room[33];
    const struct kern_plan *p = sample_plan(a.step);
    for (uint32_t j = blockIdx.x; j < a.step->n_samples[a.source]; j += gridDim.x) {
        uint32_t index = sample_index(a, j);
        struct sample_at at = sample_of(a, j);
        if (!at.state->drawing) continue;
        uint32_t token = draw_one(a, at, p, sample_entry(p, index), m, room);
        if (!threadIdx.x) finish(a, index, at.state, token);
        __syncthreads();
    }
    if (threadIdx.x || a.source != KERN_SOURCE_TRUNK) return;
    __threadfence();
    if (atomicAdd(&sample_of(a, 0).state->arrived, 1u) + 1 < gridDim.x) return;
    __threadfence();
    keep_tokens(a, p);
}

/* ---- host -------------------------------------------------------------------------------------------------- */

extern "C" uint64_t cuda_sample_scratch(uint32_t vocab_rows) {
    return (sample_offset(vocab_rows, 4) + 255) & ~255ull;
}

extern "C" cudaError_t cuda_sample(const struct cuda_run *r, uint32_t source) {
    struct sample_args a = {r->lane->step, r->lane->logits, (char *)r->lane->sampling,
                            cuda_sample_scratch(r->d->vocab_rows), r->lane->results, r->last, r->d->vocab_rows,
                            r->d->vocab_tokens, source, 0};
    uint32_t samples = min(r->max_samples, r->rows);
    a.chunks = (a.vocab_tokens + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
    samples = max(1u, min(samples, 65535u));
    cudaError_t e = CUDA_LAUNCH(sample_scan, dim3(a.chunks, samples), dim3(SAMPLE_CHUNK_THREADS), 0, r->stream, a);
    size_t room = sizeof(struct select_room);
    if (!e) e = CUDA_LAUNCH(sample_adjust, dim3(samples), dim3(SAMPLE_THREADS), room, r->stream, a);
    if (!e) e = CUDA_LAUNCH(sample_weigh, dim3(a.chunks, samples), dim3(SAMPLE_CHUNK_THREADS), 0, r->stream, a);
    if (!e) e = CUDA_LAUNCH(sample_draw, dim3(samples), dim3(SAMPLE_THREADS), room, r->stream, a);
    return e;
}
