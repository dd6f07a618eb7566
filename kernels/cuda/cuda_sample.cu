/* SPDX-License-Identifier: MIT */
/* cuda_sample.cu: the sampler of kern.h over the logits of a head, three kernels for all samples of a source.
 * Each has a block for every 1,024 ids of a sample, and what asks for nothing more leaves at once:
 *  scan:  masks, bans, bias, penalties; of each chunk whether all are finite, the best, the sum of exponentials
 *  weigh: greedy and forced draws end; weights (nucleus) or counts (top_k) by bins of z, and the block that is through
 *         last finds the bin in which they reach what is asked for. Ids that can be among the alternatives
 *  draw:  of ids before that bin the best score (log p + noise); those in it are listed, and the block that is through
 *         last cuts the list exactly. With top_k all that may be left is listed
 * Doubles are slow on small devices, so that they are kept to what decides. */
#include "cuda_sample.cuh"
#include "cuda_select.cuh"

/* Whether this is the last of n blocks that come here; it sees what the others wrote. */
__device__ static bool arrive(uint32_t *counter, uint32_t n) {
    __shared__ uint32_t is_last;
    __syncthreads();
    if (!threadIdx.x) {
        __threadfence();
        is_last = atomicAdd(counter, 1u) + 1 == n;
        __threadfence();
    }
    __syncthreads();
    return is_last;
}

__device__ static uint32_t first_id(void) {
    return blockIdx.x * SAMPLE_CHUNK + threadIdx.x * SAMPLE_EACH;
}

/* A thread's ids of a chunk; what is behind the vocabulary is -inf. */
__device__ static __forceinline__ void load_chunk(const struct sample_args &a, const float *from,
                                                  float (&v)[SAMPLE_EACH]) {
    uint32_t id = first_id();
    if (a.vocab_rows % SAMPLE_EACH == 0 && id < a.vocab_rows) {
        float4 all = *(const float4 *)(from + id);
        v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
#pragma unroll
        for (int i = 0; i < SAMPLE_EACH; i++) v[i] = id + i < a.vocab_tokens ? v[i] : -INFINITY;
        return;
    }
#pragma unroll
    for (int i = 0; i < SAMPLE_EACH; i++) v[i] = id + i < a.vocab_tokens ? from[id + i] : -INFINITY;
}

/* ---- scan -------------------------------------------------------------------------------------------------- */

__device__ static void sample_add(float *v, float d) {
    float r = __fadd_rn(*v, d);
    *v = r > FLT_MAX ? FLT_MAX : r; /* an infinite one would make differences NaN */
}

/* Mask, bans, then bias, then penalties, each over all of its list before the next begins: of the chunk in z. */
__device__ static void adjust_chunk(const struct kern_plan *p, const struct kern_sample *s, float *z) {
    const uint32_t *ban = (const uint32_t *)((const char *)p + p->ban) + s->ban0;
    const struct kern_bias *bias = (const struct kern_bias *)((const char *)p + p->bias) + s->bias0;
    const struct kern_seen *seen = (const struct kern_seen *)((const char *)p + p->seen) + s->seen0;
    uint32_t from = blockIdx.x * SAMPLE_CHUNK;
    for (uint32_t i = threadIdx.x; i < s->n_ban; i += SAMPLE_THREADS)
        if (ban[i] - from < SAMPLE_CHUNK) z[ban[i] - from] = -INFINITY;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->n_bias; i += SAMPLE_THREADS) {
        uint32_t token = bias[i].token, first = 0;
        if (token - from >= SAMPLE_CHUNK) continue;
        while (bias[first].token != token) first++;
        if (first != i) continue; /* a token named twice: its first entry adds all, in their order */
        for (uint32_t k = i; k < s->n_bias; k++)
            if (bias[k].token == token) sample_add(&z[token - from], bias[k].bias);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->n_seen; i += SAMPLE_THREADS) {
        uint32_t at = seen[i].token - from, count = seen[i].count;
        if (at >= SAMPLE_CHUNK) continue;
        float v = z[at];
        v = v > 0 ? __fdiv_rn(v, s->repetition) : __fmul_rn(v, s->repetition);
        sample_add(&v, count ? -__fadd_rn(s->presence, __fmul_rn(s->frequency, (float)count)) : 0.0f);
        z[at] = v;
    }
    __syncthreads();
}

__device__ static bool draws(const struct kern_sample *s) {
    return s->mode == KERN_SAMPLE_DRAW && s->forced == KERN_NONE;
}
__device__ static bool adjusts(const struct kern_sample *s) {
    return draws(s) && (s->mask0 != KERN_NONE || s->n_ban || s->n_bias || s->n_seen);
}

__device__ static void begin_sample(const struct kern_plan *p, const struct kern_sample *s, uint32_t index,
                                    struct sample_state *ret) {
    struct sample_state st = {};
    uint32_t position = sample_row(p, s->row)->pos + (s->source == KERN_SOURCE_DRAFT ? 2 : 1);
    st.key = sample_key(s->seed, position);
    st.scale = __ddiv_rn(1.0, (double)s->temperature);
    st.temperature = s->temperature;
    st.top_p = s->top_p;
    st.min_p = s->min_p;
    st.index = index;
    st.top_k = s->top_k;
    st.n_alts = s->n_alts;
    st.target = s->target;
    st.forced = s->forced;
    st.draws = draws(s);
    st.scores = s->mode == KERN_SAMPLE_SCORE;
    st.adjusted = adjusts(s);
    st.token = KERN_NONE;
    *ret = st;
}

/* Parts of a chunk: v its logits, z what is drawn from. */
__device__ static void scan_chunk(const float (&v)[SAMPLE_EACH], const float (&z)[SAMPLE_EACH], uint32_t n,
                                  struct sample_part *ret) {
    __shared__ struct sample_part room[SAMPLE_WARPS];
    uint32_t id = first_id(), bad = 0, kept = 0, low = 0xffffffffu, lane = threadIdx.x % 32;
    uint64_t raw = 0, best = 0;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < SAMPLE_EACH; i++) {
        if (id + i >= n) continue;
        bad |= (__float_as_uint(v[i]) & 0x7fffffff) >= 0x7f800000;
        raw = max(raw, sample_rank(v[i], id + i));
        if (!(z[i] > -INFINITY)) continue;
        best = max(best, sample_rank(z[i], id + i));
        low = min(low, sample_order(z[i]));
        kept++;
    }
    raw = warp_best(raw);
    float top = sample_rank_value(raw);
#pragma unroll
    for (int i = 0; i < SAMPLE_EACH; i++) sum += id + i < n ? expf(v[i] - top) : 0.0f;
    for (int by = 16; by; by >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    best = warp_best(best);
    bad = __reduce_or_sync(0xffffffffu, bad);
    kept = __reduce_add_sync(0xffffffffu, kept);
    low = __reduce_min_sync(0xffffffffu, low);
    struct sample_part mine = {raw, best, (double)sum, bad, kept, sample_rank_value((uint64_t)low << 32), 0};
    if (!lane) room[threadIdx.x / 32] = mine;
    __syncthreads();
    if (!threadIdx.x) {
        for (int w = 1; w < SAMPLE_WARPS; w++) {
            mine.raw = max(mine.raw, room[w].raw);
            mine.best = max(mine.best, room[w].best);
            mine.bad |= room[w].bad;
            mine.low = room[w].kept && (!mine.kept || room[w].low < mine.low) ? room[w].low : mine.low;
            mine.kept += room[w].kept;
        }
        float all = sample_rank_value(mine.raw);
        mine.sum = 0;
        for (int w = 0; w < SAMPLE_WARPS; w++)
            if (room[w].raw) mine.sum += room[w].sum * (double)expf(sample_rank_value(room[w].raw) - all);
        *ret = mine;
    }
    __syncthreads();
}

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_scan(struct sample_args a) {
    __shared__ float room[SAMPLE_CHUNK];
    const struct kern_plan *p = sample_plan(a.step);
    for (uint32_t j = blockIdx.y; j < a.step->n_samples[a.source]; j += gridDim.y) {
        uint32_t index = sample_index(a, j), id = first_id();
        const struct kern_sample *s = sample_entry(p, index);
        struct sample_at at = sample_of(a, j);
        float v[SAMPLE_EACH], z[SAMPLE_EACH];
        load_chunk(a, a.logits + (uint64_t)index * a.vocab_rows, v);
        for (uint32_t i = blockIdx.x * SAMPLE_THREADS + threadIdx.x; i < SAMPLE_BINS; i += gridDim.x * SAMPLE_THREADS)
            at.hist[i] = 0;
        if (!blockIdx.x && !threadIdx.x) begin_sample(p, s, index, at.state);
        bool adjusted = adjusts(s);
        if (adjusted) {
            const uint32_t *mask = (const uint32_t *)((const char *)p + p->mask) + s->mask0;
#pragma unroll
            for (int i = 0; i < SAMPLE_EACH; i++) {
                bool out = s->mask0 != KERN_NONE && id + i < a.vocab_tokens &&
                           !(mask[(id + i) / 32] >> (id + i) % 32 & 1);
                room[threadIdx.x * SAMPLE_EACH + i] = out ? -INFINITY : v[i];
            }
            __syncthreads();
            adjust_chunk(p, s, room);
        }
#pragma unroll
        for (int i = 0; i < SAMPLE_EACH; i++) {
            z[i] = adjusted ? room[threadIdx.x * SAMPLE_EACH + i] : v[i];
            if (adjusted && id + i < a.vocab_tokens) at.z[id + i] = z[i];
        }
        scan_chunk(v, z, a.vocab_tokens, &at.part[blockIdx.x]);
    }
}

/* ---- weigh ------------------------------------------------------------------------------------------------- */

struct sample_sums {
    uint64_t raw, best;
    uint32_t bad, kept;
    float low;
};

/* Of all chunks, for every thread. */
__device__ static struct sample_sums sum_parts(const struct sample_args &a, const struct sample_at &at) {
    __shared__ struct sample_sums room[SAMPLE_WARPS];
    struct sample_sums s = {};
    uint32_t low = 0xffffffffu;
    for (uint32_t c = threadIdx.x; c < a.chunks; c += SAMPLE_THREADS) {
        struct sample_part part = at.part[c];
        s.raw = max(s.raw, part.raw);
        s.best = max(s.best, part.best);
        s.bad |= part.bad;
        s.kept += part.kept;
        if (part.kept) low = min(low, sample_order(part.low));
    }
    s.raw = warp_best(s.raw);
    s.best = warp_best(s.best);
    s.bad = __reduce_or_sync(0xffffffffu, s.bad);
    s.kept = __reduce_add_sync(0xffffffffu, s.kept);
    s.low = __uint_as_float(__reduce_min_sync(0xffffffffu, low)); /* an order by now */
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = s;
    __syncthreads();
    s = room[0];
    low = __float_as_uint(s.low);
#pragma unroll
    for (int w = 1; w < SAMPLE_WARPS; w++) {
        s.raw = max(s.raw, room[w].raw);
        s.best = max(s.best, room[w].best);
        s.bad |= room[w].bad;
        s.kept += room[w].kept;
        low = min(low, __float_as_uint(room[w].low));
    }
    s.low = sample_rank_value((uint64_t)low << 32);
    __syncthreads();
    return s;
}

/* In an order that depends on the number of chunks alone; every thread gets it. */
__device__ static double log_sum(const struct sample_args &a, const struct sample_at &at, const struct sample_sums &t) {
    __shared__ double room[SAMPLE_WARPS];
    double best = sample_rank_value(t.raw), sum = 0;
    for (uint32_t c = threadIdx.x; c < a.chunks; c += SAMPLE_THREADS)
        sum += at.part[c].sum * exp((double)sample_rank_value(at.part[c].raw) - best);
    for (int by = 16; by; by >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < SAMPLE_WARPS; w++) sum += room[w];
    __syncthreads();
    return best + log(sum);
}

__device__ static void finish(const struct sample_args &a, struct sample_state *st, double logsumexp, uint32_t token) {
    struct kern_result *ret = &a.results[st->index];
    st->token = token;
    ret->token = token;
    if (token == KERN_NONE) ret->flags = KERN_RESULT_EMPTY;
    else ret->logprob = (float)((double)a.logits[(uint64_t)st->index * a.vocab_rows + token] - logsumexp);
}

/* A block of its own makes the result but for what is yet to be drawn. */
__device__ static void weigh_head(const struct sample_args &a, const struct sample_at &at, const struct sample_sums &t,
                                  uint32_t what, float per_z) {
    struct sample_state *st = at.state;
    uint32_t index = st->index;
    struct kern_result *ret = &a.results[index];
    double logsumexp = t.bad ? (double)NAN : log_sum(a, at, t);
    bool alts = st->n_alts && !t.bad;
    for (uint32_t i = threadIdx.x; i < KERN_MAX_ALTS && !alts; i += SAMPLE_THREADS) {
        ret->alts[i].token = 0;
        ret->alts[i].logprob = 0;
    }
    if (threadIdx.x) return;
    ret->sample = index;
    ret->token = KERN_NONE;
    ret->top1 = t.bad ? KERN_NONE : sample_rank_id(t.raw);
    ret->flags = t.bad ? KERN_RESULT_NONFINITE : 0;
    ret->logprob = NAN;
    ret->logsumexp = (float)logsumexp;
    ret->target = st->target == KERN_NONE ? NAN : a.logits[(uint64_t)index * a.vocab_rows + st->target];
    if (!alts) ret->n_alts = 0;
    st->logsumexp = logsumexp;
    st->what = what;
    st->kept = t.kept;
    st->top_z = sample_rank_value(t.best);
    st->per_z = per_z;
    if (t.bad || what != SAMPLE_NOTHING) return;
    if (!st->draws) finish(a, st, logsumexp, st->scores ? sample_rank_id(t.raw) : st->forced);
    else finish(a, st, logsumexp, t.kept ? sample_rank_id(t.best) : KERN_NONE);
}

/* Adds the chunk's weights to their bins. Where a warp has one bin only, one thread adds; the last bin, far below the
 * best, has most of the vocabulary, and a block adds to it once a warp. */
__device__ static void weigh_chunk(const struct sample_at &at, const float (&z)[SAMPLE_EACH],
                                   const struct sample_state &st, float top, float per_z, uint32_t what, int bits) {
    uint64_t rest = 0;
#pragma unroll
    for (int i = 0; i < SAMPLE_EACH; i++) {
        bool in = z[i] > -INFINITY;
        uint32_t bin = in ? sample_bin(z[i], top, per_z) : (uint32_t)SAMPLE_BINS - 1;
        uint64_t w = in;
        if (in && what == SAMPLE_NUCLEUS) {
            double lp = sample_lp(z[i], top, st.scale);
            w = lp > -45.0 ? sample_whole(lp, bits) : 0; /* below half a unit is nothing: 45 > 64 ln 2 */
        }
        bool last = bin == SAMPLE_BINS - 1;
        if (__reduce_min_sync(0xffffffffu, bin) == __reduce_max_sync(0xffffffffu, bin) && !last) {
            w = warp_total(w);
            if (threadIdx.x % 32) w = 0;
        }
        if (last) rest += w;
        else if (w) atomicAdd((unsigned long long *)&at.hist[sample_slot(bin)], (unsigned long long)w);
    }
    rest = warp_total(rest);
    if (threadIdx.x % 32 == 0 && rest)
        atomicAdd((unsigned long long *)&at.hist[sample_slot(SAMPLE_BINS - 1)], (unsigned long long)rest);
}

/* The bin in which the weights from the best on reach what is asked for. */
__device__ static void find_cut(const struct sample_at &at, const struct sample_state &st, uint32_t what) {
    __shared__ uint64_t room[SAMPLE_WARPS];
    uint64_t own[SAMPLE_RUN], sum = 0, before, total = 0;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < SAMPLE_RUN; i++) own[i] = at.hist[i * SAMPLE_THREADS + threadIdx.x];
#pragma unroll
    for (int i = 0; i < SAMPLE_RUN; i++) sum += own[i];
    before = sum;
    for (int by = 1; by < 32; by *= 2) {
        uint64_t x = __shfl_up_sync(0xffffffffu, before, by);
        before += lane >= (uint32_t)by ? x : 0;
    }
    if (lane == 31) room[warp] = before;
    __syncthreads();
    before -= sum;
    for (uint32_t w = 0; w < SAMPLE_WARPS; w++) {
        before += w < warp ? room[w] : 0;
        total += room[w];
    }
    uint64_t need = what == SAMPLE_TOP_K ? st.top_k : sample_share(st.top_p, total);
    if (before >= need || before + sum < need) return;
    uint32_t cut = SAMPLE_RUN;
    uint64_t above = 0;
#pragma unroll
    for (int i = 0; i < SAMPLE_RUN; i++) {
        if (cut == SAMPLE_RUN && before + own[i] >= need) {
            cut = i;
            above = before;
        }
        before += own[i];
    }
    at.state->cut = threadIdx.x * SAMPLE_RUN + cut;
    at.state->above = above;
    at.state->need = need;
}

/* No rank below it is among the `want` best: so many chunks have a better one. */
__device__ static uint64_t alts_bound(const struct sample_args &a, const struct sample_at &at, uint32_t want) {
    __shared__ uint64_t bound;
    if (!threadIdx.x) bound = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.chunks; i += SAMPLE_THREADS) {
        uint64_t r = at.part[i].raw;
        uint32_t better = 0;
        for (uint32_t c = 0; c < a.chunks; c++) better += at.part[c].raw > r;
        if (better == want - 1) bound = r;
    }
    __syncthreads();
    return bound;
}

__device__ static void report_alts(struct select_room *m, const struct sample_args &a, const struct sample_at &at,
                                   const struct sample_state &st, uint32_t want, double logsumexp) {
    struct kern_result *ret = &a.results[st.index];
    uint32_t n = __ldcg(&at.state->listed_alts);
    uint64_t last = select_rank(m, at.list, n, select_ones(), want);
    __syncthreads();
    if (!threadIdx.x) m->listed = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS)
        if (at.list[i] >= last) m->rank[atomicAdd(&m->listed, 1u)] = at.list[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < KERN_MAX_ALTS; i += SAMPLE_THREADS) {
        uint32_t place = i < want ? 0 : i;
        for (uint32_t k = 0; k < want && i < want; k++) place += m->rank[k] > m->rank[i];
        ret->alts[place].token = i < want ? sample_rank_id(m->rank[i]) : 0;
        ret->alts[place].logprob = i < want ? (float)((double)sample_rank_value(m->rank[i]) - logsumexp) : 0.0f;
    }
    if (!threadIdx.x) ret->n_alts = want;
    __syncthreads();
}

/* How fine the bins are: a nucleus needs none for what would not fill what it leaves out if all ids had as much. */
__device__ static float bins_per_z(const struct sample_state &st, const struct sample_sums &t, uint32_t what) {
    float range = sample_rank_value(t.best) - t.low;
    if (what == SAMPLE_NUCLEUS) {
        float most = logf((float)t.kept / (1.0f - st.top_p)) + 0.5f;
        range = fminf(range, fminf(most, 45.0f) * st.temperature);
    }
    return (float)(SAMPLE_BINS - 1) / fmaxf(range, 1e-30f);
}

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_weigh(struct sample_args a) {
    __shared__ struct select_room m;
    for (uint32_t j = blockIdx.y; j < a.step->n_samples[a.source]; j += gridDim.y) {
        struct sample_at at = sample_of(a, j);
        const struct sample_state st = *at.state;
        const struct sample_sums t = sum_parts(a, at);
        uint32_t what = SAMPLE_ALL, want = min(st.n_alts, a.vocab_tokens);
        if (!st.draws || t.bad || !t.kept || st.temperature <= 0) what = SAMPLE_NOTHING;
        else if (st.top_k && st.top_k < t.kept) what = SAMPLE_TOP_K;
        else if (st.top_p < 1) what = SAMPLE_NUCLEUS;
        bool binned = what == SAMPLE_TOP_K || what == SAMPLE_NUCLEUS, alts = want && !t.bad;
        float per_z = bins_per_z(st, t, what), v[SAMPLE_EACH];
        if (blockIdx.x == a.chunks) {
            weigh_head(a, at, t, what, per_z);
            continue;
        }
        if (!binned && !alts) continue;
        const float *logits = a.logits + (uint64_t)st.index * a.vocab_rows;
        load_chunk(a, st.adjusted ? at.z : logits, v);
        if (binned)
            weigh_chunk(at, v, st, sample_rank_value(t.best), per_z, what, sample_weight_bits(t.kept));
        if (alts) {
            uint64_t bound = a.chunks > want ? alts_bound(a, at, want) : 0;
            load_chunk(a, logits, v);
#pragma unroll
            for (int i = 0; i < SAMPLE_EACH; i++) {
                uint64_t r = sample_rank(v[i], first_id() + i);
                list_add(at.list, &at.state->listed_alts, first_id() + i < a.vocab_tokens && r >= bound, r);
            }
        }
        if (!arrive(&at.state->weighed, a.chunks)) continue;
        if (binned) find_cut(at, st, what);
        if (alts) report_alts(&m, a, at, st, want, log_sum(a, at, t));
    }
}

/* ---- draw -------------------------------------------------------------------------------------------------- */

/* The better of two: the larger score, then the smaller id. */
__device__ static void better(struct sample_best *b, uint64_t order, uint32_t id) {
    if (order < b->order || (order == b->order && id >= b->id)) return;
    b->order = order;
    b->id = id;
}

/* The block's best, for all threads. */
__device__ static struct sample_best block_choice(struct select_room *m, struct sample_best b) {
    uint64_t order = block_best(m->best, b.order);
    uint32_t id = ~(uint32_t)block_best(m->best, b.order == order ? (uint64_t)~b.id : 0);
    return {order, id, 0};
}

/* A bound from below of the best score; the exact ones are made of those alone that may be above it. */
__device__ static float block_bound(struct select_room *m, float near) {
    uint64_t order = sample_order(near - score_error(near));
    return sample_rank_value(block_best(m->best, near > -INFINITY ? order << 32 : 0));
}

/* The best of the list's ranks from `cut` on. */
__device__ static struct sample_best draw_list(struct select_room *m, const struct choice &c, const uint64_t *list,
                                               uint32_t n, uint64_t cut) {
    struct sample_best b = {0, KERN_NONE, 0};
    float top = -INFINITY;
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        float z = sample_rank_value(list[i]);
        if (list[i] >= cut && stays(c, z)) top = fmaxf(top, score_near(c, z, sample_rank_id(list[i])));
    }
    float bound = block_bound(m, top);
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        float z = sample_rank_value(list[i]);
        uint32_t id = sample_rank_id(list[i]);
        if (list[i] < cut || !stays(c, z)) continue;
        float near = score_near(c, z, id);
        if (near + score_error(near) >= bound) better(&b, score_order(c, z, id), id);
    }
    return b;
}

/* Where the list ends. */
__device__ static uint64_t cut_list(struct select_room *m, const struct sample_at &at, const struct sample_state &st,
                                    uint32_t n) {
    struct select_weights w = {st.scale, 0, st.top_z, sample_weight_bits(st.kept)};
    if (st.what == SAMPLE_NUCLEUS) return select_rank(m, at.list, n, w, st.need - st.above);
    uint64_t cut = select_rank(m, at.list, n, select_ones(), st.top_k), total = 0;
    if (st.top_p >= 1) return cut;
    w.from = cut;
    w.bits = sample_weight_bits(st.top_k);
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) total += w(at.list[i]);
    return select_rank(m, at.list, n, w, sample_share(st.top_p, block_total(m->best, total)));
}

/* What KERN_TOKEN_LAST means from now on: of a slot's samples the last one that drew. */
__device__ static void keep_tokens(const struct sample_args &a) {
    __shared__ uint32_t slot[SAMPLE_THREADS];
    const struct kern_plan *p = sample_plan(a.step);
    uint32_t n = a.step->n_samples[a.source];
    for (uint32_t from = 0; from < n; from += SAMPLE_THREADS) {
        uint32_t j = from + threadIdx.x, token = KERN_NONE;
        slot[threadIdx.x] = KERN_NONE;
        if (j < n) {
            const struct kern_sample *s = sample_entry(p, sample_index(a, j));
            const struct kern_row *row = sample_row(p, s->row);
            token = __ldcg(&sample_of(a, j).state->token);
            const struct kern_seq *seq = (const struct kern_seq *)((const char *)p + p->seqs) + row->seq;
            if (s->mode == KERN_SAMPLE_DRAW && token != KERN_NONE) slot[threadIdx.x] = seq->slot;
        }
        __syncthreads();
        uint32_t mine = slot[threadIdx.x];
        for (uint32_t k = threadIdx.x + 1; k < SAMPLE_THREADS && from + k < n && mine != KERN_NONE; k++)
            if (slot[k] == mine) mine = KERN_NONE;
        if (mine != KERN_NONE) a.last[mine] = token;
        __syncthreads();
    }
}

/* A sample is through. */
__device__ static void close_sample(const struct sample_args &a) {
    if (a.source == KERN_SOURCE_TRUNK && arrive(&sample_of(a, 0).state->closed, a.step->n_samples[a.source]))
        keep_tokens(a);
}

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_draw(struct sample_args a) {
    __shared__ struct select_room m;
    for (uint32_t j = blockIdx.y; j < a.step->n_samples[a.source]; j += gridDim.y) {
        struct sample_at at = sample_of(a, j);
        const struct sample_state st = *at.state;
        if (st.what == SAMPLE_NOTHING) {
            if (!blockIdx.x) close_sample(a);
            continue;
        }
        struct choice c = {st.key, st.top_z, (float)st.scale, st.scale, (double)st.min_p, 0};
        if (c.min_p > 0) c.log_min = fmaxf(logf(st.min_p), -200.0f);
        struct sample_best b = {0, KERN_NONE, 0};
        float z[SAMPLE_EACH], near[SAMPLE_EACH], top = -INFINITY;
        load_chunk(a, st.adjusted ? at.z : a.logits + (uint64_t)st.index * a.vocab_rows, z);
#pragma unroll
        for (int i = 0; i < SAMPLE_EACH; i++) {
            bool in = z[i] > -INFINITY, listed = false;
            if (st.what != SAMPLE_ALL) {
                uint32_t bin = sample_bin(z[i], st.top_z, st.per_z);
                listed = in && (st.what == SAMPLE_TOP_K ? bin <= st.cut : bin == st.cut);
                in = in && st.what == SAMPLE_NUCLEUS && bin < st.cut;
                list_add(at.list, &at.state->listed, listed, sample_rank(z[i], first_id() + i));
            }
            near[i] = in && stays(c, z[i]) ? score_near(c, z[i], first_id() + i) : -INFINITY;
            top = fmaxf(top, near[i]);
        }
        float bound = block_bound(&m, top);
#pragma unroll
        for (int i = 0; i < SAMPLE_EACH; i++)
            if (near[i] > -INFINITY && near[i] + score_error(near[i]) >= bound)
                better(&b, score_order(c, z[i], first_id() + i), first_id() + i);
        b = block_choice(&m, b);
        if (!threadIdx.x) at.best[blockIdx.x] = b;
        if (!arrive(&at.state->drawn, a.chunks)) continue;
        uint32_t n = st.what == SAMPLE_ALL ? 0 : __ldcg(&at.state->listed);
        uint64_t cut = n ? cut_list(&m, at, st, n) : 0;
        b = draw_list(&m, c, at.list, n, cut);
        for (uint32_t i = threadIdx.x; i < a.chunks; i += SAMPLE_THREADS) better(&b, at.best[i].order, at.best[i].id);
        b = block_choice(&m, b);
        if (!threadIdx.x) finish(a, at.state, st.logsumexp, b.id);
        close_sample(a);
    }
}

/* ---- host -------------------------------------------------------------------------------------------------- */

extern "C" uint64_t cuda_sample_scratch(uint32_t vocab_rows) {
    return (sample_offset(vocab_rows, 5) + 255) & ~255ull;
}

extern "C" cudaError_t cuda_sample(const struct cuda_run *r, uint32_t source) {
    struct sample_args a = {r->lane->step, r->lane->logits, (char *)r->lane->sampling,
                            cuda_sample_scratch(r->d->vocab_rows), r->lane->results, r->last, r->d->vocab_rows,
                            r->d->vocab_tokens, source, 0};
    uint32_t samples = min(r->max_samples, r->rows);
    a.chunks = (a.vocab_tokens + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
    samples = max(1u, min(samples, 65535u));
    const dim3 grid(a.chunks, samples), threads(SAMPLE_THREADS);
    cudaError_t e = CUDA_LAUNCH(sample_scan, grid, threads, 0, r->stream, a);
    /* one block more: it makes the results, beside those that weigh */
    if (!e) e = CUDA_LAUNCH(sample_weigh, dim3(a.chunks + 1, samples), threads, 0, r->stream, a);
    if (!e) e = CUDA_LAUNCH(sample_draw, grid, threads, 0, r->stream, a);
    return e;
}
