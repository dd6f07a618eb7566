/* SPDX-License-Identifier: MIT */
/* cuda_launch.cuh: how kernels are started and get their dynamic shared memory; first include of every .cu file.
 *
 * Device code is compiled twice: by nvcc, and as host C++ (CUDA_SIM defined, tests/cudasim before the include path)
 * where a block's threads are fibers of one thread. So that both mean the same:
 *  - kernels start by CUDA_LAUNCH only, dynamic shared memory comes from CUDA_SMEM only;
 *  - warp collectives name the full mask and all 32 lanes reach them; __syncthreads() is reached by the whole block;
 *  - a PTX instruction has its function in cuda_ptx.cuh, whose simulated body stands beside it. */
#ifndef GLMD_CUDA_LAUNCH_CUH
#define GLMD_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

/* The only template a header may lay over C's: it is never seen by C. */
#ifdef CUDA_SIM

template <class K, class... A>
static inline cudaError_t cuda_launch(const char *name, K kernel, dim3 grid, dim3 block, size_t smem, cudaStream_t s,
                                      A... args) {
    if (smem > 48 * 1024) {
        cudaError_t err = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)smem);
        if (err != cudaSuccess) return err;
    }
    return cudasim_kernel(name, kernel, grid, block, smem, s, args...);
}
#define CUDA_SMEM(type, name) type *name = (type *)cudasim_smem()
/* The text is what the simulation names when it stops a kernel. */
#define CUDA_LAUNCH(...) cuda_launch(#__VA_ARGS__, __VA_ARGS__)

#else

/* Arguments are converted to the kernel's own types first: cudaLaunchKernel() takes addresses and no types. */
template <class... P, class... A>
static inline cudaError_t cuda_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, cudaStream_t s,
                                      A... args) {
    static_assert(sizeof...(P) == sizeof...(A), "a kernel is started with all of its arguments");
    if (smem > 48 * 1024) {
        cudaError_t err = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)smem);
        if (err != cudaSuccess) return err;
    }
    struct pack {
        static cudaError_t go(const void *fn, dim3 g, dim3 b, size_t n, cudaStream_t st, P... p) {
            void *at[] = {(void *)&p...};
            return cudaLaunchKernel(fn, g, b, at, n, st);
        }
    };
    return pack::go((const void *)kernel, grid, block, smem, s, args...);
}
#define CUDA_SMEM(type, name)                                                                                          \
    extern __shared__ __align__(16) unsigned char cuda_smem_bytes[];                                                   \
    type *name = (type *)cuda_smem_bytes
/* CUDA_LAUNCH(kernel, grid, block, smem_bytes, stream, args...): cudaError_t */
#define CUDA_LAUNCH(...) cuda_launch(__VA_ARGS__)

#endif

#endif
