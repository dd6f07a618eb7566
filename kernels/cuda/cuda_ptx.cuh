/* SPDX-License-Identifier: MIT */
/* cuda_ptx.cuh: every instruction that has no name in CUDA C++, one inline function each, and beside it what the
 * simulation computes in its place. Numbers narrower than F32 are bits in integers: bf16x2 and f16x2 keep the first
 * (lower address, lower k) number in the low half. All roundings are to nearest even. */
#ifndef GLMD_CUDA_PTX_CUH
#define GLMD_CUDA_PTX_CUH

#include "cuda_launch.cuh"

#ifdef CUDA_SIM
#include <math.h>
#include <string.h>
#endif

/* ---- plain bits ------------------------------------------------------------------------------------------- */

__device__ static __forceinline__ float ptx_bits_f32(uint32_t b) {
#ifdef CUDA_SIM
    float f;
    memcpy(&f, &b, 4);
    return f;
#else
    return __uint_as_float(b);
#endif
}

__device__ static __forceinline__ uint32_t ptx_f32_bits(float f) {
#ifdef CUDA_SIM
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
#else
    return __float_as_uint(f);
#endif
}

/* Bytes of b:a picked by four selectors, as PRMT. */
__device__ static __forceinline__ uint32_t ptx_prmt(uint32_t a, uint32_t b, uint32_t sel) {
#ifdef CUDA_SIM
    uint64_t v = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = sel >> 4 * i & 15, byte = (uint32_t)(v >> 8 * (s & 7)) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
#else
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sel));
    return r;
#endif
}

/* (hi:lo >> n) truncated to 32 bits, n taken modulo 32. */
__device__ static __forceinline__ uint32_t ptx_shf_r(uint32_t lo, uint32_t hi, uint32_t n) {
#ifdef CUDA_SIM
    return (uint32_t)(((uint64_t)hi << 32 | lo) >> (n & 31));
#else
    return __funnelshift_r(lo, hi, n);
#endif
}

/* The upper word of hi:lo << n, n taken modulo 32. */
__device__ static __forceinline__ uint32_t ptx_shf_l(uint32_t lo, uint32_t hi, uint32_t n) {
#ifdef CUDA_SIM
    return (uint32_t)(((uint64_t)hi << 32 | lo) << (n & 31) >> 32);
#else
    return __funnelshift_l(lo, hi, n);
#endif
}

/* 1 / v within 1 ulp; denormal v and results are zeros' (infinity, zero). */
__device__ static __forceinline__ float ptx_rcp(float v) {
#ifdef CUDA_SIM
    return 1 / v;
#else
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
#endif
}

/* ---- narrow numbers --------------------------------------------------------------------------------------- */

__device__ static __forceinline__ float ptx_bf16_f32(uint32_t b) {
    return ptx_bits_f32(b << 16);
}

#ifdef CUDA_SIM
static inline uint16_t ptx_sim_bf16(float f) {
    uint32_t u = ptx_f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline uint16_t ptx_sim_f16(double f) { /* one rounding, also from the exact sum or product of two numbers */
    uint16_t s = signbit(f) ? 0x8000 : 0;
    double a = fabs(f);
    if (a != a) return 0x7fff;
    if (a >= 65520) return s | 0x7c00;
    if (a < 0x1p-14) return s | (uint16_t)nearbyint(a * 0x1p24); /* a carry makes it the first normal number */
    int e;
    double m = frexp(a, &e); /* a = m 2^e, m in [0.5, 1) */
    uint32_t q = (uint32_t)nearbyint(m * 2048);
    return s | (uint16_t)(((uint32_t)(e + 14) << 10) + (q - 1024));
}
static inline float ptx_sim_f16_f32(uint32_t h) {
    uint32_t e = h >> 10 & 31, m = h & 1023;
    float a = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(m + 1024), (int)e - 25) : ldexpf((float)m, -24);
    return h & 0x8000 ? -a : a;
}
static inline uint32_t ptx_sim_bf16_mul(uint32_t a, uint32_t b) {
    return ptx_sim_bf16(ptx_bf16_f32(a & 0xffff) * ptx_bf16_f32(b & 0xffff)); /* the F32 product is exact */
}
#endif

__device__ static __forceinline__ float ptx_f16_f32(uint32_t h) {
#ifdef CUDA_SIM
    return ptx_sim_f16_f32(h & 0xffff);
#else
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)h));
    return f;
#endif
}

__device__ static __forceinline__ uint32_t ptx_f32x2_bf16x2(float lo, float hi) {
#ifdef CUDA_SIM
    return (uint32_t)ptx_sim_bf16(hi) << 16 | ptx_sim_bf16(lo);
#else
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#endif
}

__device__ static __forceinline__ uint16_t ptx_f32_bf16(float f) {
#ifdef CUDA_SIM
    return ptx_sim_bf16(f);
#else
    uint16_t r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(f));
    return r;
#endif
}

__device__ static __forceinline__ uint32_t ptx_f32x2_f16x2(float lo, float hi) {
#ifdef CUDA_SIM
    return (uint32_t)ptx_sim_f16(hi) << 16 | ptx_sim_f16(lo);
#else
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#endif
}

__device__ static __forceinline__ uint16_t ptx_f32_f16(float f) {
#ifdef CUDA_SIM
    return ptx_sim_f16(f);
#else
    uint16_t r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(f));
    return r;
#endif
}

/* Two E4M3 bytes (low byte first) as f16x2: exact. */
__device__ static __forceinline__ uint32_t ptx_e4m3x2_f16x2(uint32_t two) {
#ifdef CUDA_SIM
    uint32_t r = 0;
    for (int i = 0; i < 2; i++) {
        uint32_t b = two >> 8 * i & 255, e = b >> 3 & 15, m = b & 7;
        float a = e ? ldexpf((float)(8 + m), (int)e - 10) : ldexpf((float)m, -9);
        uint32_t h = (b & 127) == 127 ? 0x7fff : ptx_sim_f16(b & 128 ? -a : a);
        r |= h << 16 * i;
    }
    return r;
#else
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((uint16_t)two));
    return r;
#endif
}

/* Two numbers to E4M3, saturating at 448; the first in the low byte. */
__device__ static __forceinline__ uint32_t ptx_f32x2_e4m3x2(float lo, float hi) {
#ifdef CUDA_SIM
    uint32_t r = 0;
    for (int i = 0; i < 2; i++) {
        float f = i ? hi : lo, a = fabsf(f);
        uint32_t s = signbit(f) ? 128 : 0, c;
        if (a != a) c = 127;
        else if (a >= 448) c = 126;
        else if (a < 0x1p-6f) c = (uint32_t)nearbyintf(a * 512);
        else {
            int e;
            float m = frexpf(a, &e);
            c = ((uint32_t)(e + 6) << 3) + (uint32_t)nearbyintf(m * 16) - 8;
            if (c > 126) c = 126;
        }
        r |= (s | c) << 8 * i;
    }
    return r;
#else
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    return r;
#endif
}

__device__ static __forceinline__ uint32_t ptx_bf16x2_mul(uint32_t a, uint32_t b) {
#ifdef CUDA_SIM
    return ptx_sim_bf16_mul(a >> 16, b >> 16) << 16 | ptx_sim_bf16_mul(a, b);
#else
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
#endif
}

__device__ static __forceinline__ uint32_t ptx_bf16x2_sub(uint32_t a, uint32_t b) {
#ifdef CUDA_SIM
    uint32_t lo = ptx_sim_bf16(ptx_bf16_f32(a & 0xffff) - ptx_bf16_f32(b & 0xffff));
    return (uint32_t)ptx_sim_bf16(ptx_bf16_f32(a >> 16) - ptx_bf16_f32(b >> 16)) << 16 | lo;
#else
    uint32_t r;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
#endif
}

__device__ static __forceinline__ uint32_t ptx_f16x2_mul(uint32_t a, uint32_t b) {
#ifdef CUDA_SIM
    uint32_t lo = ptx_sim_f16((double)ptx_f16_f32(a) * ptx_f16_f32(b));
    return (uint32_t)ptx_sim_f16((double)ptx_f16_f32(a >> 16) * ptx_f16_f32(b >> 16)) << 16 | lo;
#else
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
#endif
}

__device__ static __forceinline__ uint32_t ptx_f16x2_add(uint32_t a, uint32_t b) {
#ifdef CUDA_SIM
    uint32_t lo = ptx_sim_f16((double)ptx_f16_f32(a) + ptx_f16_f32(b));
    return (uint32_t)ptx_sim_f16((double)ptx_f16_f32(a >> 16) + ptx_f16_f32(b >> 16)) << 16 | lo;
#else
    uint32_t r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
#endif
}

__device__ static __forceinline__ uint32_t ptx_f16x2_fma(uint32_t a, uint32_t b, uint32_t c) {
#ifdef CUDA_SIM
    uint32_t lo = ptx_sim_f16((double)ptx_f16_f32(a) * ptx_f16_f32(b) + ptx_f16_f32(c));
    double hi = (double)ptx_f16_f32(a >> 16) * ptx_f16_f32(b >> 16) + ptx_f16_f32(c >> 16);
    return (uint32_t)ptx_sim_f16(hi) << 16 | lo;
#else
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
#endif
}

/* a + the sum of the four bytes of v */
__device__ static __forceinline__ uint32_t ptx_byte_sum(uint32_t v, uint32_t a) {
#ifdef CUDA_SIM
    return a + (v & 255) + (v >> 8 & 255) + (v >> 16 & 255) + (v >> 24);
#else
    uint32_t r;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(v), "r"(0x01010101u), "r"(a));
    return r;
#endif
}

/* ---- matrix products -------------------------------------------------------------------------------------- */

#ifdef CUDA_SIM
struct ptx_sim_mma {
    float *d;
    uint32_t a[4], b[2];
};
/* One product of 16 x 16 by 16 x 8: products and their sum exactly, then one rounding. */
template <bool bf16> static inline void ptx_sim_mma_all(void *const lane[32]) {
    static thread_local float A[16][16], B[16][8];
    for (int l = 0; l < 32; l++) {
        const struct ptx_sim_mma *m = (const struct ptx_sim_mma *)lane[l];
        int g = l >> 2, q = l & 3;
        for (int i = 0; i < 8; i++) {
            uint32_t h = m->a[i >> 1] >> 16 * (i & 1) & 0xffff;
            A[g + 8 * (i >> 1 & 1)][2 * q + (i & 1) + 8 * (i >> 2)] = bf16 ? ptx_bf16_f32(h) : ptx_f16_f32(h);
        }
        for (int i = 0; i < 4; i++) {
            uint32_t h = m->b[i >> 1] >> 16 * (i & 1) & 0xffff;
            B[2 * q + (i & 1) + 8 * (i >> 1)][g] = bf16 ? ptx_bf16_f32(h) : ptx_f16_f32(h);
        }
    }
    for (int l = 0; l < 32; l++) {
        float *d = ((const struct ptx_sim_mma *)lane[l])->d;
        int g = l >> 2, q = l & 3;
        for (int i = 0; i < 4; i++) {
            double sum = d[i];
            for (int k = 0; k < 16; k++) sum += (double)A[g + 8 * (i >> 1)][k] * B[k][2 * q + (i & 1)];
            d[i] = (float)sum;
        }
    }
}
#endif

/* d += A B: A 16 x 16 by rows, B 16 x 8 by columns. With g = lane / 4, q = lane % 4: a[0] is row g, columns 2q and
 * 2q + 1; a[1] row g + 8; a[2], a[3] the same rows eight columns on; b[0] column g, rows 2q and 2q + 1, b[1] eight rows
 * on; d[0], d[1] row g, columns 2q and 2q + 1; d[2], d[3] row g + 8. */
__device__ static __forceinline__ void ptx_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#ifdef CUDA_SIM
    struct ptx_sim_mma m = {d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    cudasim_warp_all(&m, ptx_sim_mma_all<true>);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

__device__ static __forceinline__ void ptx_mma_f16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#ifdef CUDA_SIM
    struct ptx_sim_mma m = {d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    cudasim_warp_all(&m, ptx_sim_mma_all<false>);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

/* Weights are read once a step, past the first-level cache. Addresses are multiples of the access; what is read is not
 * written by the same launch. */
__device__ static __forceinline__ uint4 ptx_stream16(const void *p) {
#ifdef CUDA_SIM
    uint4 v;
    memcpy(&v, p, 16);
    return v;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#endif
}

__device__ static __forceinline__ uint2 ptx_stream8(const void *p) {
#ifdef CUDA_SIM
    uint2 v;
    memcpy(&v, p, 8);
    return v;
#else
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
#endif
}

__device__ static __forceinline__ uint32_t ptx_stream4(const void *p) {
#ifdef CUDA_SIM
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
#else
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
#endif
}

/* The line of a global address into the second-level cache. */
__device__ static __forceinline__ void ptx_prefetch_l2(const void *p) {
#ifdef CUDA_SIM
    (void)p;
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

/* 16 bytes from global to shared memory, done when ptx_cp_wait() says so; then __syncwarp() or __syncthreads(). */
__device__ static __forceinline__ void ptx_cp16(void *shared, const void *global) {
#ifdef CUDA_SIM
    memcpy(shared, global, 16);
#else
    uint32_t s = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(s), "l"(global));
#endif
}

__device__ static __forceinline__ void ptx_cp_commit(void) {
#ifndef CUDA_SIM
    asm volatile("cp.async.commit_group;");
#endif
}

/* Until at most `left` of the thread's groups are on their way. */
template <int left> __device__ static __forceinline__ void ptx_cp_wait(void) {
#ifndef CUDA_SIM
    asm volatile("cp.async.wait_group %0;" ::"n"(left));
#endif
}

#endif
