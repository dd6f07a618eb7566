/* SPDX-License-Identifier: MIT */
/* cuda_prod_turned.cu: products with a matrix that the file has the other way round: kv_b's key half, which multiplies
 * queries. Scales run along its outputs, so that every input has one of its own: numbers are made in F32 and enter
 * as two BF16, which lose nothing that counts. Few bytes of a model; one kernel reads all formats. */
#include "cuda_trellis.cuh"

struct prod_of_turned {
    enum { CHUNKS = 1, ALIGN = 1, ZEROS = 0, SIDES = 2 };
    template <int NB> struct state {};
    struct batch {
        uint4 w[2];
        __device__ __forceinline__ void load(const struct prod_job &j, const struct prod_tile &t, uint32_t c,
                                             uint32_t end) {
            if (c >= end)
                return;
            const bool half = j.format == KERN_NVFP4;
            const char *at = t.codes + (size_t)c * (half ? 512 : 1024);
            w[0] = ptx_stream16(at);
            w[1] = ptx_stream16(at + (half ? 256 : 512));
        }
    };
    __device__ static __forceinline__ size_t tile_at(const struct prod_job &j, uint32_t tile, uint32_t lane) {
        return j.format == KERN_NVFP4 ? (size_t)tile * j.chunks * 512 + lane / 8 * 64 + lane % 4 * 16
                                      : (size_t)tile * j.chunks * 1024 + lane * 16;
    }
    /* The lane's number i of 16 in row g or g + 8, without its scale. */
    __device__ static __forceinline__ float code(const struct prod_job &j, const batch &w, uint32_t lane, int hi,
                                                 int i) {
        if (j.format == KERN_NVFP4) {
            const uint32_t byte = prod_word(w.w[hi], i >> 2) >> 8 * (i & 3) & 0xff;
            const uint32_t c = lane / 4 & 1 ? byte >> 4 : byte & 15;
            return ptx_bits_f32((c & 7) << 22 | (c & 8) << 28) * 0x1p126f;
        }
        const int at = (i & 2 ? 0 : 1) + 2 * (i & 1);
        const uint32_t byte = prod_word(w.w[i >> 3], 2 * (i >> 2 & 1) + hi) >> 8 * at & 0xff;
        return j.format == KERN_INT8 ? (float)((int)byte - 128) : ptx_f16_f32(ptx_e4m3x2_f16x2(byte));
    }
    __device__ static __forceinline__ float scale(const struct prod_job &j, const struct prod_tile &t, uint32_t k) {
        const uint32_t group = j.block_cols && !FAULT(cuda_turned_first_scale) ? t.tile * 16 / j.block_cols : 0;
        const uint64_t at = (uint64_t)group * j.k_pad + k;
        if (j.scale_kind == KERN_SCALE_E4M3)
            return ptx_f16_f32(ptx_e4m3x2_f16x2(((const uint8_t *)t.scale)[at]));
        return prod_scale(t.scale + at * (j.scale_kind == KERN_SCALE_F32 ? 4 : 2), j.scale_kind);
    }
    template <int NB>
    __device__ static __forceinline__ void multiply(const struct prod_job &j, const struct prod_tile &t, const batch &w,
                                                    int, uint32_t chunk, const prod_x<NB> &x, state<NB> &,
                                                    float acc[NB][4]) {
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t a[4], rest[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int hi = i & 1, n = 4 * m + (i & 2);
                const uint32_t k = chunk * TILE_CHUNK + 16 * (t.lane % 4) + n;
                const float u = code(j, w, t.lane, hi, n) * scale(j, t, k);
                const float v = code(j, w, t.lane, hi, n + 1) * scale(j, t, k + 1);
                a[i] = ptx_f32x2_bf16x2(u, v);
                rest[i] = ptx_f32x2_bf16x2(u - ptx_bf16_f32(a[i] & 0xffff), v - ptx_bf16_f32(a[i] >> 16));
            }
#pragma unroll
            for (int b = 0; b < NB; b++) {
                ptx_mma_bf16(acc[b], a, x.w[b][2 * m], x.w[b][2 * m + 1]);
                ptx_mma_bf16(acc[b], rest, x.w[b][2 * m], x.w[b][2 * m + 1]);
            }
        }
    }
    __device__ static __forceinline__ void begin(const struct prod_job &, struct prod_tile *) {}
    template <int NB> __device__ static __forceinline__ void finish(const state<NB> &, float[NB][4]) {}
    __device__ static __forceinline__ float factor(const struct prod_job &j, int, uint32_t, uint32_t, uint32_t) {
        return j.format == KERN_NVFP4 ? *j.side[0].global : 1.0f;
    }
};

/* EXL3: tiles [outputs / 16][inputs / 16] as in the file, where a tile's rows are what is an output here. Each lane
 * takes the states of its eight numbers where they are. */
struct prod_of_exl3_turned {
    enum { CHUNKS = 1, ALIGN = 1, ZEROS = 0, SIDES = 2 };
    template <int NB> struct state {};
    struct batch {
        __device__ __forceinline__ void load(const struct prod_job &, const struct prod_tile &, uint32_t, uint32_t) {}
    };
    __device__ static __forceinline__ size_t tile_at(const struct prod_job &j, uint32_t tile, uint32_t) {
        return (size_t)tile * j.chunks * 128 * j.bits;
    }
    /* Of the number in row r (the file's input) and column c of a tile. */
    __device__ static __forceinline__ uint32_t state_at(const struct prod_job &j, const uint32_t *words, uint32_t r,
                                                        uint32_t c) {
        const uint32_t t = 8 * (4 * (c & 7) + (r >> 1 & 3)) + (r & 1) + 2 * (r >> 3) + 4 * (c >> 3);
        const uint32_t at = (t * j.bits + 257 * j.bits - 16) % (256 * j.bits), w = at / 32;
        return ptx_shf_l(__ldg(words + (w + 1) % (8 * j.bits)), __ldg(words + w), at % 32) >> 16;
    }
    template <int NB>
    __device__ static __forceinline__ void multiply(const struct prod_job &j, const struct prod_tile &t, const batch &,
                                                    int, uint32_t chunk, const prod_x<NB> &x, state<NB> &,
                                                    float acc[NB][4]) {
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint32_t *words = (const uint32_t *)t.codes + (size_t)(chunk * 4 + m) * 8 * j.bits;
            uint32_t a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t r = t.lane / 4 + 8 * (i & 1), c = 2 * (t.lane % 4) + 8 * (i >> 1);
                const uint32_t u = state_at(j, words, r, c), v = state_at(j, words, r, c + 1);
                a[i] = j.mul1 ? trellis_pair<true>(u, v, j.mul, j.add) : trellis_pair<false>(u, v, j.mul, j.add);
            }
#pragma unroll
            for (int b = 0; b < NB; b++)
                ptx_mma_f16(acc[b], a, x.w[b][2 * m], x.w[b][2 * m + 1]);
        }
    }
    __device__ static __forceinline__ void begin(const struct prod_job &, struct prod_tile *) {}
    template <int NB> __device__ static __forceinline__ void finish(const state<NB> &, float[NB][4]) {}
    __device__ static __forceinline__ float factor(const struct prod_job &j, int, uint32_t, uint32_t entry,
                                                   uint32_t head) {
        return trellis_factor(j, entry, head);
    }
};

template <class F> static cudaError_t start(const struct prod_args &a, uint32_t blocks, int nb, cudaStream_t s) {
    return nb == 1 ? CUDA_LAUNCH(prod_kernel<F, 1, 1>, dim3(blocks), dim3(PROD_THREADS), 0, s, a)
                   : CUDA_LAUNCH(prod_kernel<F, 2, 1>, dim3(blocks), dim3(PROD_THREADS), 0, s, a);
}

cudaError_t prod_turned(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s) {
    return t == 1 ? start<prod_of_turned>(a, blocks, nb, s) : cudaErrorInvalidValue;
}

cudaError_t prod_exl3_turned(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s) {
    return t == 1 ? start<prod_of_exl3_turned>(a, blocks, nb, s) : cudaErrorInvalidValue;
}
