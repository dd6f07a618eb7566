/* SPDX-License-Identifier: MIT */
/* vector_types.h: CUDA's small vectors with its alignments, for host compilers (see cudasim.h). */
#ifndef CUDASIM_VECTOR_TYPES_H
#define CUDASIM_VECTOR_TYPES_H

#define CUDASIM_VEC(t, name, a1, a2, a3, a4)                                                                           \
    typedef struct name##1 { t x; } name##1;                                                                          \
    typedef struct name##2 { t x, y; } __attribute__((aligned(a2))) name##2;                                          \
    typedef struct name##3 { t x, y, z; } name##3;                                                                    \
    typedef struct name##4 { t x, y, z, w; } __attribute__((aligned(a4))) name##4;
CUDASIM_VEC(signed char, char, 1, 2, 1, 4)
CUDASIM_VEC(unsigned char, uchar, 1, 2, 1, 4)
CUDASIM_VEC(short, short, 2, 4, 2, 8)
CUDASIM_VEC(unsigned short, ushort, 2, 4, 2, 8)
CUDASIM_VEC(int, int, 4, 8, 4, 16)
CUDASIM_VEC(unsigned, uint, 4, 8, 4, 16)
CUDASIM_VEC(float, float, 4, 8, 4, 16)
CUDASIM_VEC(long long, longlong, 8, 16, 8, 16)
CUDASIM_VEC(unsigned long long, ulonglong, 8, 16, 8, 16)
CUDASIM_VEC(double, double, 8, 16, 8, 16)
#undef CUDASIM_VEC

#ifdef __cplusplus
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};
#else
typedef struct dim3 { unsigned x, y, z; } dim3;
#endif

#endif
