/* SPDX-License-Identifier: MIT */
/* cuda_kda.cu: the KDA sub-layer. One block has one head of one sequence: it keeps the head's state in registers, which
 * is read once and written at most once a step, and takes the sequence's rows one after another.
 *
 * A state is committed only when that is asked for. Factors of rows that may be cut back stay in the slot; the next
 * step first applies those that were kept, in order, by the same instructions as a plain step, so that kept rows give
 * the bits of plain decoding.
 *
 * Registers. A warp has eight value columns, which need nothing of other columns: lanes 2g and 2g + 1 have four each,
 * of the key channels g, g + 16, ... Sums over channels are eight terms in a lane and then four exchanges. */
#include "cuda_mix.cuh"

enum {
    KDA_DIM = 128, /* channels at most; rows in shared memory are so long */
    KDA_KEYS = KDA_DIM / 16,
    KDA_ROWS = KERN_MAX_WINDOW, /* whose factors lie in shared memory at once */
    KDA_ARRAY = KDA_ROWS * KDA_DIM,
};

struct kda_args {
    const struct cuda_step *step;
    char *slots;
    const float *z, *gates; /* gates: fb's and gb's outputs, P each */
    uint16_t *out;
    const float *conv, *a_log, *dt_bias, *o_norm;
    uint64_t slot_bytes, state, window, pend;
    uint32_t ldz, zq, zk, zv, zb, ld_gates, ldo, pend_row;
    uint32_t heads, dim, p, taps;
    float bound, eps, q_scale;
};

/* The shared memory of a block. */
struct kda_room {
    float q[KDA_ARRAY], k[KDA_ARRAY], v[KDA_ARRAY], a[KDA_ARRAY]; /* [KDA_ROWS][KDA_DIM]; v becomes the read-out */
    float beta[KDA_ROWS];
    float hist[1]; /* [taps - 1][3][KDA_DIM] raw inputs before the first row */
};

/* A head of a sequence. */
struct kda_head {
    char *slot;
    const float *z; /* of its first row */
    struct kda_room *m;
    uint32_t head, row0, n, keep;
    bool commit;
};

/* DIM: the head's width, where it is known while this is compiled; 0: any. */
template <uint32_t DIM> __device__ static __forceinline__ uint32_t kda_dim(const struct kda_args &a) {
    return DIM ? DIM : a.dim;
}
template <uint32_t DIM>
__device__ static __forceinline__ float *kda_state(const struct kda_args &a, const struct kda_head &h) {
    return (float *)(h.slot + a.state) + h.head * kda_dim<DIM>(a) * kda_dim<DIM>(a);
}
template <uint32_t DIM>
__device__ static __forceinline__ float *kda_pend(const struct kda_args &a, const struct kda_head &h, uint32_t row) {
    return (float *)(h.slot + a.pend) + row * a.pend_row + h.head * kda_dim<DIM>(a);
}
__device__ static __forceinline__ float *kda_pend_beta(const struct kda_args &a, const struct kda_head &h,
                                                       uint32_t row) {
    return (float *)(h.slot + a.pend) + row * a.pend_row + 6 * a.p + h.head;
}
__device__ static __forceinline__ uint32_t kda_column(const struct kda_args &a, uint32_t part) {
    return part == 0 ? a.zq : part == 1 ? a.zk : a.zv;
}

template <uint32_t DIM>
__device__ static __forceinline__ void kda_load(const struct kda_args &a, const struct kda_head &h,
                                                float s[KDA_KEYS][4]) {
    const uint32_t lane = threadIdx.x % 32, col = threadIdx.x / 32 * 8 + lane % 2 * 4;
#pragma unroll
    for (int i = 0; i < KDA_KEYS; i++) {
        const uint32_t c = lane / 2 + 16 * i;
        const float *from = kda_state<DIM>(a, h) + c * kda_dim<DIM>(a) + col;
        if (DIM) {
            const float4 v = *(const float4 *)from;
            s[i][0] = v.x, s[i][1] = v.y, s[i][2] = v.z, s[i][3] = v.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[i][j] = c < a.dim && col + j < a.dim ? from[j] : 0.0f;
        }
    }
}

template <uint32_t DIM>
__device__ static __forceinline__ void kda_store(const struct kda_args &a, const struct kda_head &h,
                                                 const float s[KDA_KEYS][4]) {
    const uint32_t lane = threadIdx.x % 32, col = threadIdx.x / 32 * 8 + lane % 2 * 4;
#pragma unroll
    for (int i = 0; i < KDA_KEYS; i++) {
        const uint32_t c = lane / 2 + 16 * i;
        float *to = kda_state<DIM>(a, h) + c * kda_dim<DIM>(a) + col;
        if (DIM)
            *(float4 *)to = float4{s[i][0], s[i][1], s[i][2], s[i][3]};
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (!DIM && c < a.dim && col + j < a.dim)
                to[j] = s[i][j];
    }
}

/* Four columns summed over the 16 lanes that have them; this lane gets the sum of column lane / 8. */
__device__ static __forceinline__ float kda_sum(const float v[4]) {
    const uint32_t lane = threadIdx.x % 32;
    const bool up = lane & 16, odd = lane & 8;
    const float a = __shfl_xor_sync(MIX_ALL, up ? v[0] : v[2], 16), b = __shfl_xor_sync(MIX_ALL, up ? v[1] : v[3], 16);
    const float x = (up ? v[2] : v[0]) + a, y = (up ? v[3] : v[1]) + b;
    float r = (odd ? y : x) + __shfl_xor_sync(MIX_ALL, odd ? x : y, 8);
    r += __shfl_xor_sync(MIX_ALL, r, 4);
    return r + __shfl_xor_sync(MIX_ALL, r, 2);
}

/* One row of the recurrence. */
template <uint32_t DIM>
__device__ static __forceinline__ void kda_step(const struct kda_args &a, const struct kda_head &h, uint32_t row,
                                                bool has_q, float s[KDA_KEYS][4]) {
    const uint32_t lane = threadIdx.x % 32, col = threadIdx.x / 32 * 8 + lane % 2 * 4, at = row * KDA_DIM;
    const float *const of = (const float *)h.m + row * KDA_DIM + lane / 2; /* this lane's first channel of q */
    float p[4] = {0, 0, 0, 0}, d[4];
#pragma unroll
    for (int i = 0; i < KDA_KEYS; i++) {
        const float decay = of[3 * KDA_ARRAY + 16 * i], k = of[KDA_ARRAY + 16 * i];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            s[i][j] = mix_mul(decay, s[i][j]);
            p[j] = fmaf(k, s[i][j], p[j]);
        }
    }
    const float sum = kda_sum(p), beta = h.m->beta[row];
#pragma unroll
    for (int j = 0; j < 4; j++)
        d[j] = mix_mul(beta, mix_sub(h.m->v[at + col + j], __shfl_sync(MIX_ALL, sum, 8 * j + lane % 2)));
    float o[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < KDA_KEYS; i++) {
        const float k = of[KDA_ARRAY + 16 * i], q = has_q ? of[16 * i] : 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            s[i][j] = fmaf(k, d[j], s[i][j]);
            o[j] = fmaf(q, s[i][j], o[j]);
        }
    }
    const float r = kda_sum(o);
    const uint32_t own = threadIdx.x / 32 * 8 + lane % 2 * 4 + lane / 8; /* the column whose sum this lane has */
    /* a column's value is read by its own lanes only, and the exchanges above came after that */
    if (has_q && lane % 8 < 2 && own < kda_dim<DIM>(a))
        h.m->v[at + own] = r;
}

/* Raw inputs before the first row, and the factors of kept rows. */
template <uint32_t DIM> __device__ static void kda_before(const struct kda_args &a, const struct kda_head &h) {
    const uint32_t dim = kda_dim<DIM>(a), w = a.taps - 1;
    float *window = (float *)(h.slot + a.window) + h.head * dim;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < w * 3 * dim; i += blockDim.x) {
        const uint32_t j = i / (3 * dim), part = i / dim % 3, c = i % dim, from = j + h.keep;
        h.m->hist[(j * 3 + part) * KDA_DIM + c] = from < w ? window[(from * 3 + part) * a.p + c]
                                                            : kda_pend<DIM>(a, h, from - w)[part * a.p + c];
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < h.keep * dim; i += blockDim.x) {
        const uint32_t r = i / dim, c = i % dim;
        const float *pend = kda_pend<DIM>(a, h, r) + c;
        h.m->k[r * KDA_DIM + c] = pend[3 * a.p];
        h.m->v[r * KDA_DIM + c] = pend[4 * a.p];
        h.m->a[r * KDA_DIM + c] = expf(pend[5 * a.p]);
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < h.keep; i += blockDim.x)
        h.m->beta[i] = *kda_pend_beta(a, h, i);
}

/* The last raw inputs among those before the first row and n rows of this step. */
template <uint32_t DIM>
__device__ static void kda_window(const struct kda_args &a, const struct kda_head &h, uint32_t n) {
    const uint32_t dim = kda_dim<DIM>(a), w = a.taps - 1;
    float *window = (float *)(h.slot + a.window) + h.head * dim;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < w * 3 * dim; i += blockDim.x) {
        const uint32_t j = i / (3 * dim), part = i / dim % 3, c = i % dim, from = FAULT(cuda_window_stays) ? j : j + n;
        const uint32_t column = kda_column(a, part) + h.head * dim + c;
        window[(j * 3 + part) * a.p + c] = from < w ? h.m->hist[(from * 3 + part) * KDA_DIM + c]
                                                      : h.z[(uint64_t)(from - w) * a.ldz + column];
    }
}

/* Convolution, gates and norms of rows r0 .. r0 + m - 1, which are rows `to` and so on of the shared memory; ends with
 * a barrier. */
template <uint32_t DIM>
__device__ static void kda_inputs(const struct kda_args &a, const struct kda_head &h, uint32_t r0, uint32_t m,
                                  uint32_t to) {
    const uint32_t dim = kda_dim<DIM>(a), w = a.taps - 1, lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < m * 3 * dim; i += blockDim.x) {
        const uint32_t r = i / (3 * dim), part = i / dim % 3, c = i % dim, row = r0 + r;
        const uint32_t column = kda_column(a, part) + h.head * dim + c;
        const float *tap = a.conv + (uint64_t)(part * a.p + h.head * dim + c) * a.taps;
        float y = 0, raw = 0;
#pragma unroll 1
        for (uint32_t j = 0; j <= w; j++) {
            raw = row + j < w ? h.m->hist[((row + j) * 3 + part) * KDA_DIM + c]
                              : h.z[(uint64_t)(row + j - w) * a.ldz + column];
            y = fmaf(tap[j], raw, y);
        }
        (part == 0 ? h.m->q : part == 1 ? h.m->k : h.m->v)[(to + r) * KDA_DIM + c] = y * mix_sigmoid(y);
        if (!h.commit)
            kda_pend<DIM>(a, h, row)[part * a.p + c] = raw;
    }
    const float rate = expf(a.a_log[h.head]);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < m * dim; i += blockDim.x) {
        const uint32_t r = i / dim, c = i % dim;
        const float fb = a.gates[(uint64_t)(h.row0 + r0 + r) * a.ld_gates + h.head * dim + c];
        const float g = mix_mul(a.bound, mix_sigmoid(rate * (fb + a.dt_bias[h.head * dim + c])));
        h.m->a[(to + r) * KDA_DIM + c] = expf(g);
        if (!h.commit)
            kda_pend<DIM>(a, h, r0 + r)[5 * a.p + c] = g;
    }
#pragma unroll 1
    for (uint32_t r = threadIdx.x; r < m; r += blockDim.x) {
        const float beta = mix_sigmoid(h.z[(uint64_t)(r0 + r) * a.ldz + a.zb + h.head]);
        h.m->beta[to + r] = beta;
        if (!h.commit)
            *kda_pend_beta(a, h, r0 + r) = beta;
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t u = threadIdx.x / 32; u < 2 * m; u += blockDim.x / 32) {
        float *x = (u % 2 ? h.m->k : h.m->q) + (to + u / 2) * KDA_DIM, sum = 0;
#pragma unroll 1
        for (uint32_t c = lane; c < dim; c += 32)
            sum = fmaf(x[c], x[c], sum);
        const float scale = (u % 2 ? 1.0f : a.q_scale) / sqrtf(mix_warp_sum(sum) + 1e-6f);
#pragma unroll 1
        for (uint32_t c = lane; c < dim; c += 32) {
            x[c] *= scale;
            if (!h.commit && u % 2) {
                kda_pend<DIM>(a, h, r0 + u / 2)[3 * a.p + c] = x[c];
                kda_pend<DIM>(a, h, r0 + u / 2)[4 * a.p + c] = h.m->v[(to + u / 2) * KDA_DIM + c];
            }
        }
    }
    __syncthreads();
}

/* Norm and gate of the read-outs. */
template <uint32_t DIM>
__device__ static void kda_outputs(const struct kda_args &a, const struct kda_head &h, uint32_t r0, uint32_t m,
                                   uint32_t from) {
    const uint32_t lane = threadIdx.x % 32, dim = kda_dim<DIM>(a), at = h.head * dim;
#pragma unroll 1
    for (uint32_t r = threadIdx.x / 32; r < m; r += blockDim.x / 32) {
        const float *o = h.m->v + (from + r) * KDA_DIM;
        const float *e = a.gates + (uint64_t)(h.row0 + r0 + r) * a.ld_gates + a.p + at;
        uint16_t *out = a.out + (uint64_t)(h.row0 + r0 + r) * a.ldo + at;
        float sum = 0;
#pragma unroll 1
        for (uint32_t c = lane; c < dim; c += 32)
            sum = fmaf(o[c], o[c], sum);
        const float scale = 1.0f / sqrtf(mix_warp_sum(sum) / (float)dim + a.eps);
#pragma unroll 1
        for (uint32_t c = lane; c < dim; c += 32)
            out[c] = ptx_f32_bf16(o[c] * scale * a.o_norm[c] * mix_sigmoid(e[c]));
    }
}

/* The state's lines on their way to the second-level cache while the rows' inputs are made: both at once are too much
 * for the registers. */
template <uint32_t DIM>
__device__ static __forceinline__ void kda_ask(const struct kda_args &a, const struct kda_head &h) {
    const char *state = (const char *)kda_state<DIM>(a, h);
    for (uint32_t i = threadIdx.x * 128; DIM > 0 && i < DIM * DIM * 4; i += blockDim.x * 128)
        ptx_prefetch_l2(state + i);
}

/* In passes of KDA_ROWS rows: kept rows and all rows of the step in one, where they fit; otherwise kept rows have a
 * pass of their own, so that what is not committed is never in a state that the next pass needs. */
template <uint32_t DIM> __device__ static void kda_sequence(const struct kda_args &a, const struct kda_head &h) {
    uint32_t kept = h.keep, r0 = 0;
    kda_ask<DIM>(a, h);
    kda_before<DIM>(a, h);
    __syncthreads();
    if (h.keep && !h.commit)
        kda_window<DIM>(a, h, 0);
    do {
        uint32_t m = h.n - r0 < KDA_ROWS ? h.n - r0 : (uint32_t)KDA_ROWS;
        float s[KDA_KEYS][4];
        if (kept + m > KDA_ROWS)
            m = 0;
        kda_inputs<DIM>(a, h, r0, m, kept);
        kda_load<DIM>(a, h, s);
#pragma unroll 1
        for (uint32_t r = 0; r < kept + m; r++) {
            kda_step<DIM>(a, h, r, r >= kept, s);
            if (r + 1 == kept && !h.commit)
                kda_store<DIM>(a, h, s);
        }
        if (h.commit)
            kda_store<DIM>(a, h, s);
        __syncthreads();
        kda_outputs<DIM>(a, h, r0, m, kept);
        __syncthreads();
        kept = 0;
        r0 += m;
    } while (r0 < h.n);
    if (h.commit)
        kda_window<DIM>(a, h, h.n);
}

static uint32_t kda_smem(uint32_t taps) {
    return (uint32_t)offsetof(struct kda_room, hist) + (taps - 1) * 3 * KDA_DIM * (uint32_t)sizeof(float);
}

/* Two blocks of the usual width share a multiprocessor: one waits for a state while the other computes. */
template <uint32_t DIM> __global__ void __launch_bounds__(512, DIM ? 2 : 1) kda_heads(struct kda_args a) {
    CUDA_SMEM(struct kda_room, room);
    const struct cuda_seq *seqs = mix_seqs(a.step, 0);
    /* channels a head does not have add nothing to a sum */
    for (uint32_t i = threadIdx.x; !DIM && i < 4 * KDA_ARRAY; i += blockDim.x)
        ((float *)room)[i] = 0;
    for (uint32_t i = blockIdx.y; i < a.step->n_seqs[0]; i += gridDim.y) {
        const struct cuda_seq *q = &seqs[i];
        struct kda_head h;
        h.slot = a.slots + q->slot * a.slot_bytes;
        h.z = a.z + (uint64_t)q->row0 * a.ldz;
        h.m = room;
        h.head = blockIdx.x;
        h.row0 = q->row0;
        h.n = q->n_rows;
        h.keep = FAULT(cuda_keep_one_less) && q->keep > 1 ? q->keep - 1 : q->keep;
        h.commit = (q->flags & KERN_SEQ_COMMIT) != 0;
        __syncthreads(); /* the sequence before is done with the shared memory */
        kda_sequence<DIM>(a, h);
    }
}

static cudaError_t kda_products(const struct cuda_run *r) {
    const struct cuda_layer *l = r->layer;
    const struct cuda_lane *w = r->lane;
    const uint32_t hidden = r->d->hidden_pad, ldz = r->z->ld, ldm = r->mid->ld;
    const struct cuda_prod in[] = {
        {&l->q, w->u, hidden, 0, w->z, ldz, r->z->q, 0, NULL},
        {&l->k, w->u, hidden, 0, w->z, ldz, r->z->k, 0, NULL},
        {&l->v, w->u, hidden, 0, w->z, ldz, r->z->v, 0, NULL},
        {&l->fa, w->u, hidden, 0, NULL, ldm, r->mid->fa, 0, w->mid},
        {&l->ga, w->u, hidden, 0, NULL, ldm, r->mid->ga, 0, w->mid},
        {&l->b, w->u, hidden, 0, w->z, ldz, r->z->b, 0, NULL},
    };
    const struct cuda_prod gates[] = {
        {&l->fb, w->mid + r->mid->fa, ldm, 0, w->wide, r->wide_ld, 0, 0, NULL},
        {&l->gb, w->mid + r->mid->ga, ldm, 0, w->wide, r->wide_ld, r->d->kda_p, 0, NULL},
    };
    cudaError_t e = cuda_products(r, in, sizeof(in) / sizeof(in[0]));
    return e == cudaSuccess ? cuda_products(r, gates, 2) : e;
}

extern "C" cudaError_t cuda_kda(const struct cuda_run *r) {
    const struct cuda_layer *l = r->layer;
    const struct cuda_dims *d = r->d;
    const struct cuda_lane *w = r->lane;
    struct kda_args a;
    cudaError_t e = kda_products(r);
    if (e != cudaSuccess)
        return e;
    a.step = w->step;
    a.slots = r->slots;
    a.z = w->z;
    a.gates = w->wide;
    a.out = w->mid + r->mid->o;
    a.conv = (const float *)(r->weights + l->conv);
    a.a_log = (const float *)(r->weights + l->a_log);
    a.dt_bias = (const float *)(r->weights + l->dt_bias);
    a.o_norm = (const float *)(r->weights + l->o_norm);
    a.slot_bytes = d->slot_bytes;
    a.state = l->state;
    a.window = l->window;
    a.pend = l->pend;
    a.ldz = r->z->ld;
    a.zq = r->z->q;
    a.zk = r->z->k;
    a.zv = r->z->v;
    a.zb = r->z->b;
    a.ld_gates = r->wide_ld;
    a.ldo = r->mid->ld;
    a.pend_row = d->pend_row;
    a.heads = d->kda_heads;
    a.dim = d->kda_dim;
    a.p = d->kda_p;
    a.taps = d->conv_width;
    a.bound = d->gate_bound;
    a.eps = d->rms_eps;
    a.q_scale = 1.0f / sqrtf((float)d->kda_dim);
    /* sequences without rows count too, so a block may have several */
    const dim3 grid(d->kda_heads, r->rows < 64 ? r->rows : 64);
    const uint32_t threads = 32 * ((d->kda_dim + 7) / 8);
    const bool usual = d->kda_dim == KDA_DIM && l->state % 16 == 0 && d->slot_bytes % 16 == 0;
    e = usual ? CUDA_LAUNCH(kda_heads<KDA_DIM>, grid, dim3(threads), kda_smem(a.taps), r->stream, a)
              : CUDA_LAUNCH(kda_heads<0>, grid, dim3(threads), kda_smem(a.taps), r->stream, a);
    if (e != cudaSuccess)
        return e;
    const struct cuda_prod out = {&l->kda_o, w->mid + r->mid->o, r->mid->ld, 0,   w->y,
                                  r->y_parts * d->hidden, 0,     0,          NULL};
    return cuda_products(r, &out, 1);
}
