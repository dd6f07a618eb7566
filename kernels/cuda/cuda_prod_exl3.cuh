/* SPDX-License-Identifier: MIT */
/* cuda_prod_exl3.cuh: products with EXL3's tiles. A tile's numbers lie in the order of two operands B; the same
 * registers in another order are one operand A with outputs as rows. Inputs are transformed already (cuda_exl3.cu). */
#ifndef GLMD_CUDA_PROD_EXL3_CUH
#define GLMD_CUDA_PROD_EXL3_CUH

#include "cuda_trellis.cuh"

/* Four bits: lane L's eight numbers end in word L of the tile, and begin in the one before. */
template <int BITS> struct trellis_words {
    enum { CHUNKS = 4, LANE = 16 };
    uint4 w[4];
    __device__ __forceinline__ void load(const char *codes, uint32_t, uint32_t c, uint32_t end) {
#pragma unroll
        for (int p = 0; p < 4; p++)
            w[p] = prod_stream16(codes + (size_t)(c + p) * 512, c + p < end);
    }
    __device__ __forceinline__ void states(int p, int m, uint32_t lane, uint32_t s[8]) const {
        const uint32_t now = prod_word(w[p], m), back = FAULT(cuda_trellis_no_tail) && !lane ? 0 : 31;
        const uint32_t before = __shfl_sync(0xffffffffu, now, (lane + back) & 31);
#pragma unroll
        for (int j = 0; j < 8; j++)
            s[j] = ptx_shf_r(now, before, 28 - 4 * j) & 0xffff;
    }
};

/* Any other number: the words that the window begins in, moved so that it begins at a word. */
template <int BITS> struct trellis_any {
    enum { CHUNKS = 1, LANE = 0, WINDOW = (7 * BITS + 16 + 31) / 32 };
    uint32_t w[4][WINDOW + 1];
    __device__ static __forceinline__ uint32_t start(uint32_t lane) {
        return (lane * 8 * BITS + 257 * BITS - 16) % (256 * BITS);
    }
    __device__ __forceinline__ void load(const char *codes, uint32_t lane, uint32_t c, uint32_t end) {
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int i = 0; i <= WINDOW; i++) {
                w[m][i] = 0;
                if (c < end)
                    w[m][i] = __ldg((const uint32_t *)(codes + (size_t)c * 128 * BITS + m * 32 * BITS) +
                                    (start(lane) / 32 + i) % (8 * BITS));
            }
    }
    __device__ __forceinline__ void states(int, int m, uint32_t lane, uint32_t s[8]) const {
        uint32_t v[WINDOW + 1];
#pragma unroll
        for (int i = 0; i < WINDOW; i++)
            v[i] = ptx_shf_l(w[m][i + 1], w[m][i], start(lane) % 32);
        v[WINDOW] = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            s[j] = ptx_shf_l(v[j * BITS / 32 + 1], v[j * BITS / 32], j * BITS % 32) >> 16;
    }
};

template <int BITS> struct trellis_of : trellis_any<BITS> {};
template <> struct trellis_of<4> : trellis_words<4> {};

template <int BITS, bool MUL1> struct prod_of_exl3 {
    enum { CHUNKS = trellis_of<BITS>::CHUNKS, ALIGN = 1, ZEROS = 0, SIDES = 2 };
    template <int NB> struct state {};
    struct batch {
        trellis_of<BITS> words;
        __device__ __forceinline__ void load(const struct prod_job &, const struct prod_tile &t, uint32_t c,
                                             uint32_t end) {
            words.load(t.codes, t.lane, c, end);
        }
    };
    __device__ static __forceinline__ size_t tile_at(const struct prod_job &j, uint32_t tile, uint32_t lane) {
        return (size_t)tile * j.chunks * 128 * BITS + lane * trellis_of<BITS>::LANE;
    }
    template <int NB>
    __device__ static __forceinline__ void multiply(const struct prod_job &j, const struct prod_tile &t, const batch &w,
                                                    int p, uint32_t, const prod_x<NB> &x, state<NB> &,
                                                    float acc[NB][4]) {
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t s[8];
            w.words.states(p, m, t.lane, s);
            const uint32_t a[4] = {
                trellis_pair<MUL1>(s[0], s[1], j.mul, j.add), trellis_pair<MUL1>(s[4], s[5], j.mul, j.add),
                trellis_pair<MUL1>(s[2], s[3], j.mul, j.add), trellis_pair<MUL1>(s[6], s[7], j.mul, j.add)};
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

template <int BITS, bool MUL1>
static cudaError_t prod_exl3_start(const struct prod_args &a, uint32_t blocks, int nb, cudaStream_t s) {
    typedef prod_of_exl3<BITS, MUL1> F;
    return nb == 1 ? CUDA_LAUNCH(prod_kernel<F, 1, 1>, dim3(blocks), dim3(PROD_THREADS), 0, s, a)
                   : CUDA_LAUNCH(prod_kernel<F, 2, 1>, dim3(blocks), dim3(PROD_THREADS), 0, s, a);
}

/* Both rules of a number of bits; one file each group of them, so that they compile beside each other. */
#define PROD_EXL3(bits)                                                                                                \
    cudaError_t prod_exl3_##bits(const struct prod_args &a, uint32_t blocks, int nb, bool mul1, cudaStream_t s) {      \
        return mul1 ? prod_exl3_start<bits, true>(a, blocks, nb, s) : prod_exl3_start<bits, false>(a, blocks, nb, s);  \
    }

typedef cudaError_t prod_exl3_fn(const struct prod_args &a, uint32_t blocks, int nb, bool mul1, cudaStream_t s);
prod_exl3_fn prod_exl3_1, prod_exl3_2, prod_exl3_3, prod_exl3_4, prod_exl3_5, prod_exl3_6, prod_exl3_7, prod_exl3_8;

#endif
