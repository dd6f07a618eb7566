/* SPDX-License-Identifier: MIT */
/* cuda_runtime.h of the simulation: the device side of CUDA C++ as far as glmd's kernels use it, for g++ (see
 * cudasim.h). Functions with a device's approximation (__expf, rsqrtf) are as exact as the host's. */
#ifndef CUDASIM_CUDA_RUNTIME_H
#define CUDASIM_CUDA_RUNTIME_H

#include "cudasim.h"

#ifdef __cplusplus

#include <assert.h>
#include <math.h>
#include <string.h>
#include <type_traits>

#define __host__
#define __device__
#define __global__ __attribute__((noinline))
#define __constant__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

extern "C" {
extern uint3 cudasim_thread, cudasim_block;
extern dim3 cudasim_block_dim, cudasim_grid_dim;
}
#define threadIdx cudasim_thread
#define blockIdx cudasim_block
#define blockDim cudasim_block_dim
#define gridDim cudasim_grid_dim
static const int warpSize = CUDASIM_WARP;

/* ---- launches --------------------------------------------------------------------------------------------- */

template <class F> static void cudasim_body(const void *f) {
    (*(const F *)f)();
}

/* body is run by every thread; copied, like a launch's arguments: it must own no memory. */
template <class F>
static inline cudaError_t cudasim_launch_body(const char *name, const void *key, dim3 grid, dim3 block, size_t smem,
                                              cudaStream_t s, F body) {
    static_assert(std::is_trivially_copyable<F>::value, "a kernel's arguments are copied as bytes");
    static_assert(alignof(F) <= 16, "arguments are aligned to 16 bytes at most");
    return cudasim_launch_raw(name, key, grid, block, smem, s, cudasim_body<F>, &body, sizeof(body));
}

template <class F>
static inline cudaError_t cudasim_launch(dim3 grid, dim3 block, size_t smem, cudaStream_t s, F body) {
    return cudasim_launch_body(__PRETTY_FUNCTION__, nullptr, grid, block, smem, s, body);
}

template <class... P> struct cudasim_call {
    static cudaError_t go(const char *name, void (*k)(P...), dim3 grid, dim3 block, size_t smem, cudaStream_t s,
                          P... p) {
        return cudasim_launch_body(name, (const void *)k, grid, block, smem, s, [=]() { k(p...); });
    }
};

/* Arguments become the kernel's own types before they are kept. */
template <class... P, class... A>
static inline cudaError_t cudasim_kernel(const char *name, void (*k)(P...), dim3 grid, dim3 block, size_t smem,
                                         cudaStream_t s, A... a) {
    static_assert(sizeof...(P) == sizeof...(A), "a kernel is started with all of its arguments");
    return cudasim_call<P...>::go(name, k, grid, block, smem, s, a...);
}

template <class... P> static inline cudaError_t cudaFuncSetAttribute(void (*k)(P...), enum cudaFuncAttribute a, int v) {
    return cudaFuncSetAttribute((const void *)k, a, v);
}

/* ---- barriers and collectives ----------------------------------------------------------------------------- */

static inline void __syncthreads(void) { cudasim_barrier(0, 0, false); }
static inline int __syncthreads_count(int v) { return (int)cudasim_barrier(0, 0, v != 0); }
static inline int __syncthreads_or(int v) { return cudasim_barrier(0, 0, v != 0) != 0; }
static inline int __syncthreads_and(int v) { return cudasim_barrier(0, 0, v == 0) == 0; }
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}
static inline void __threadfence_system(void) {}
static inline void __nanosleep(unsigned) {}
static inline void __trap(void) { cudasim_die("__trap()"); }

static inline void cudasim_full(unsigned mask) {
    if (mask != 0xffffffffu) cudasim_die("a collective of a warp with a mask that is not full");
}

static void cudasim_nothing(void *const[CUDASIM_WARP]) {}
static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    cudasim_full(mask);
    cudasim_warp_all(nullptr, cudasim_nothing);
}

enum cudasim_shuffle { CUDASIM_IDX, CUDASIM_UP, CUDASIM_DOWN, CUDASIM_XOR };
template <class T> struct cudasim_shfl_arg {
    T in, out;
    unsigned by, width;
};
template <class T, cudasim_shuffle kind> static void cudasim_shfl_all(void *const lane[CUDASIM_WARP]) {
    for (unsigned i = 0; i < CUDASIM_WARP; i++) {
        cudasim_shfl_arg<T> *a = (cudasim_shfl_arg<T> *)lane[i];
        unsigned base = i / a->width * a->width, from = i;
        if (kind == CUDASIM_IDX) from = base + a->by % a->width;
        if (kind == CUDASIM_UP && i - base >= a->by) from = i - a->by;
        if (kind == CUDASIM_DOWN && a->by < base + a->width - i) from = i + a->by;
        if (kind == CUDASIM_XOR && (i ^ a->by) < base + a->width) from = i ^ a->by;
        a->out = ((cudasim_shfl_arg<T> *)lane[from])->in;
    }
}
template <class T, cudasim_shuffle kind> static inline T cudasim_shfl(unsigned mask, T v, unsigned by, int width) {
    cudasim_full(mask);
    cudasim_shfl_arg<T> a = {v, v, by, (unsigned)width};
    cudasim_warp_all(&a, cudasim_shfl_all<T, kind>);
    return a.out;
}
template <class T> static inline T __shfl_sync(unsigned m, T v, int lane, int width = 32) {
    return cudasim_shfl<T, CUDASIM_IDX>(m, v, (unsigned)lane, width);
}
template <class T> static inline T __shfl_up_sync(unsigned m, T v, unsigned by, int width = 32) {
    return cudasim_shfl<T, CUDASIM_UP>(m, v, by, width);
}
template <class T> static inline T __shfl_down_sync(unsigned m, T v, unsigned by, int width = 32) {
    return cudasim_shfl<T, CUDASIM_DOWN>(m, v, by, width);
}
template <class T> static inline T __shfl_xor_sync(unsigned m, T v, int by, int width = 32) {
    return cudasim_shfl<T, CUDASIM_XOR>(m, v, (unsigned)by, width);
}

enum cudasim_reduction { CUDASIM_ADD, CUDASIM_MIN, CUDASIM_MAX, CUDASIM_AND, CUDASIM_OR, CUDASIM_EOR, CUDASIM_BALLOT };
template <class T, cudasim_reduction kind> static void cudasim_reduce_all(void *const lane[CUDASIM_WARP]) {
    T r = kind == CUDASIM_BALLOT ? (T)0 : *(T *)lane[0];
    for (unsigned i = kind == CUDASIM_BALLOT ? 0 : 1; i < CUDASIM_WARP; i++) {
        T v = *(T *)lane[i];
        if (kind == CUDASIM_ADD) r = (T)(r + v);
        if (kind == CUDASIM_MIN) r = v < r ? v : r;
        if (kind == CUDASIM_MAX) r = v > r ? v : r;
        if (kind == CUDASIM_AND) r = (T)(r & v);
        if (kind == CUDASIM_OR) r = (T)(r | v);
        if (kind == CUDASIM_EOR) r = (T)(r ^ v);
        if (kind == CUDASIM_BALLOT) r = (T)(r | (T)(v != 0) << i);
    }
    for (unsigned i = 0; i < CUDASIM_WARP; i++) *(T *)lane[i] = r;
}
template <class T, cudasim_reduction kind> static inline T cudasim_reduce(unsigned mask, T v) {
    cudasim_full(mask);
    cudasim_warp_all(&v, cudasim_reduce_all<T, kind>);
    return v;
}
static inline unsigned __ballot_sync(unsigned m, int v) { return cudasim_reduce<unsigned, CUDASIM_BALLOT>(m, v != 0); }
static inline int __any_sync(unsigned m, int v) { return __ballot_sync(m, v) != 0; }
static inline int __all_sync(unsigned m, int v) { return __ballot_sync(m, v) == 0xffffffffu; }
static inline unsigned __reduce_add_sync(unsigned m, unsigned v) { return cudasim_reduce<unsigned, CUDASIM_ADD>(m, v); }
static inline unsigned __reduce_min_sync(unsigned m, unsigned v) { return cudasim_reduce<unsigned, CUDASIM_MIN>(m, v); }
static inline unsigned __reduce_max_sync(unsigned m, unsigned v) { return cudasim_reduce<unsigned, CUDASIM_MAX>(m, v); }
static inline int __reduce_add_sync(unsigned m, int v) { return (int)__reduce_add_sync(m, (unsigned)v); }
static inline int __reduce_min_sync(unsigned m, int v) { return cudasim_reduce<int, CUDASIM_MIN>(m, v); }
static inline int __reduce_max_sync(unsigned m, int v) { return cudasim_reduce<int, CUDASIM_MAX>(m, v); }
static inline unsigned __reduce_and_sync(unsigned m, unsigned v) { return cudasim_reduce<unsigned, CUDASIM_AND>(m, v); }
static inline unsigned __reduce_or_sync(unsigned m, unsigned v) { return cudasim_reduce<unsigned, CUDASIM_OR>(m, v); }
static inline unsigned __reduce_xor_sync(unsigned m, unsigned v) { return cudasim_reduce<unsigned, CUDASIM_EOR>(m, v); }

template <class T> static void cudasim_match_all(void *const lane[CUDASIM_WARP]) {
    unsigned r[CUDASIM_WARP] = {};
    for (unsigned i = 0; i < CUDASIM_WARP; i++)
        for (unsigned j = 0; j < CUDASIM_WARP; j++) r[i] |= (unsigned)(*(T *)lane[i] == *(T *)lane[j]) << j;
    for (unsigned i = 0; i < CUDASIM_WARP; i++) *(T *)lane[i] = (T)r[i];
}
static inline unsigned __match_any_sync(unsigned m, unsigned v) {
    cudasim_full(m);
    cudasim_warp_all(&v, cudasim_match_all<unsigned>);
    return v;
}

/* ---- atomics: integers only, so that results do not depend on an order ------------------------------------ */

#define CUDASIM_ATOMIC(name, expr)                                                                                     \
    template <class T, class V> static inline T name(T *p, V value) {                                                  \
        static_assert(std::is_integral<T>::value, "an atomic on floats makes results depend on the order");            \
        T v = (T)value, old = *p;                                                                                      \
        *p = (T)(expr);                                                                                                \
        return old;                                                                                                    \
    }
CUDASIM_ATOMIC(atomicAdd, old + v)
CUDASIM_ATOMIC(atomicSub, old - v)
CUDASIM_ATOMIC(atomicMax, v > old ? v : old)
CUDASIM_ATOMIC(atomicMin, v < old ? v : old)
CUDASIM_ATOMIC(atomicOr, old | v)
CUDASIM_ATOMIC(atomicAnd, old & v)
CUDASIM_ATOMIC(atomicXor, old ^ v)
CUDASIM_ATOMIC(atomicExch, v)
CUDASIM_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
#undef CUDASIM_ATOMIC
template <class T, class U, class V> static inline T atomicCAS(T *p, U expected, V v) {
    T old = *p;
    if (old == (T)expected) *p = (T)v;
    return old;
}

/* ---- loads and stores with a cache's advice ---------------------------------------------------------------- */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline T __ldlu(const T *p) { return *p; }
template <class T> static inline T __ldcv(const T *p) { return *(const volatile T *)p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stwb(T *p, T v) { *p = v; }
template <class T> static inline void __stwt(T *p, T v) { *p = v; }

/* ---- numbers ------------------------------------------------------------------------------------------------ */

template <class T, class F> static inline T cudasim_bits(F f) {
    static_assert(sizeof(T) == sizeof(F), "as many bits");
    T t;
    memcpy(&t, &f, sizeof(t));
    return t;
}
static inline unsigned __float_as_uint(float f) { return cudasim_bits<unsigned>(f); }
static inline int __float_as_int(float f) { return cudasim_bits<int>(f); }
static inline float __uint_as_float(unsigned u) { return cudasim_bits<float>(u); }
static inline float __int_as_float(int u) { return cudasim_bits<float>(u); }
static inline long long __double_as_longlong(double d) { return cudasim_bits<long long>(d); }
static inline double __longlong_as_double(long long l) { return cudasim_bits<double>(l); }

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return (float)(1 / sqrt((double)a)); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float rsqrtf(float a) { return 1 / sqrtf(a); }
static inline double rsqrt(double a) { return 1 / sqrt(a); }
/* The host's library has these names for itself. */
#define __expf(a) expf(a)
#define __exp10f(a) exp10f(a)
#define __logf(a) logf(a)
#define __log2f(a) log2f(a)
#define __log10f(a) log10f(a)
#define __powf(a, b) powf(a, b)
#define __sinf(a) sinf(a)
#define __cosf(a) cosf(a)
static inline float __saturatef(float a) { return a > 0 ? a < 1 ? a : 1 : 0; }
static inline float __int2float_rn(int a) { return (float)a; }
static inline float __uint2float_rn(unsigned a) { return (float)a; }
static inline int __float2int_rn(float a) { return (int)nearbyintf(a); }
static inline int __float2int_rz(float a) { return (int)a; }
static inline unsigned __float2uint_rn(float a) { return (unsigned)nearbyintf(a); }
static inline unsigned __float2uint_rz(float a) { return (unsigned)a; }

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) << (n & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (n & 31));
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned sel) {
    unsigned long long v = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned s = sel >> 4 * i & 15, byte = (unsigned)(v >> 8 * (s & 7)) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}

#define CUDASIM_MINMAX(t)                                                                                              \
    static inline t min(t a, t b) { return b < a ? b : a; }                                                            \
    static inline t max(t a, t b) { return b > a ? b : a; }
CUDASIM_MINMAX(int)
CUDASIM_MINMAX(unsigned)
CUDASIM_MINMAX(long)
CUDASIM_MINMAX(unsigned long)
CUDASIM_MINMAX(long long)
CUDASIM_MINMAX(unsigned long long)
#undef CUDASIM_MINMAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

#define CUDASIM_MAKE(t, name)                                                                                          \
    static inline name##1 make_##name##1(t x) { return name##1{x}; }                                                   \
    static inline name##2 make_##name##2(t x, t y) { return name##2{x, y}; }                                           \
    static inline name##3 make_##name##3(t x, t y, t z) { return name##3{x, y, z}; }                                   \
    static inline name##4 make_##name##4(t x, t y, t z, t w) { return name##4{x, y, z, w}; }
CUDASIM_MAKE(signed char, char)
CUDASIM_MAKE(unsigned char, uchar)
CUDASIM_MAKE(short, short)
CUDASIM_MAKE(unsigned short, ushort)
CUDASIM_MAKE(int, int)
CUDASIM_MAKE(unsigned, uint)
CUDASIM_MAKE(float, float)
CUDASIM_MAKE(long long, longlong)
CUDASIM_MAKE(unsigned long long, ulonglong)
CUDASIM_MAKE(double, double)
#undef CUDASIM_MAKE

#endif
#endif
