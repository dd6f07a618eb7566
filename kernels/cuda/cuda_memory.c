/* SPDX-License-Identifier: MIT */
/* cuda_memory.c: the device as memory: is there one that can run this, blocks of it, and what is said when there is not
 * enough, or when it is lost. Called before READY but for cuda_lost(). */
#include "cuda_host.h"

#include <errno.h>
#include <stdio.h>

enum { CUDA_BLOCK_ALIGN = 2 << 20 }; /* blocks of this size begin on it, hence on 4096 */

/* Versions as people write them: 13000 is 13.0. */
static void name_version(int v, char *buf, size_t len) {
    snprintf(buf, len, "%d.%d", v / 1000, v % 1000 / 10);
}

int cuda_device_check(char *err, size_t err_len) {
    int n = 0, driver = 0, runtime = 0;
    char have[16], want[16];
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver) {
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        name_version(driver, have, sizeof(have));
        name_version(runtime, want, sizeof(want));
        if (driver)
            snprintf(err, err_len, "driver: found one for CUDA %s, expected %s or newer: update the NVIDIA driver",
                     have, want);
        else
            snprintf(err, err_len,
                     "driver: found none (libcuda.so.1), expected one for CUDA %s: install the NVIDIA driver", want);
        return -ENODEV;
    }
    if (e == cudaErrorNoDevice || (e == cudaSuccess && n < 1)) {
        snprintf(err, err_len, "device: found none, expected an NVIDIA GPU that this process may use: see nvidia-smi "
                               "and CUDA_VISIBLE_DEVICES, or start with backend cpu");
        return -ENODEV;
    }
    if (e != cudaSuccess) {
        snprintf(err, err_len, "device: counting them failed: %s", cudaGetErrorString(e));
        return -ENODEV;
    }
    return 0;
}

static cudaError_t alloc(enum kern_mem cls, uint64_t bytes, void **ret) {
    if (cls == KERN_MEM_CTL)
        return cudaHostAlloc(ret, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    return cudaMalloc(ret, bytes);
}

int cuda_mem_alloc(enum kern_mem cls, uint64_t bytes, struct kern_block *ret, char *err, size_t err_len) {
    static const char *const name[KERN_MEM_N] = {"control", "weights", "pages", "slots", "work"};
    const uint64_t size = cls == KERN_MEM_CTL ? cuda_pad(bytes, 4096) : cuda_pad(bytes, CUDA_BLOCK_ALIGN);
    size_t left = 0, all = 0;
    void *p = NULL;
    int r = cuda_device_check(err, err_len);
    if (r)
        return r;
    if (!bytes) {
        *ret = (struct kern_block){0};
        return 0;
    }
    if (size < bytes || size > SIZE_MAX / 2)
        return -ENOMEM;
    cudaError_t e = cudaMemGetInfo(&left, &all);
    if (e == cudaSuccess)
        e = alloc(cls, size, &p);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* nothing is lost by it */
        snprintf(err, err_len, "memory of the %s for %s: asked for %llu MiB, %llu of %llu MiB of the device are free",
                 cls == KERN_MEM_CTL ? "host, pinned," : "device", name[cls], (unsigned long long)(size >> 20),
                 (unsigned long long)(left >> 20), (unsigned long long)(all >> 20));
        return -ENOMEM;
    }
    if (e != cudaSuccess) {
        snprintf(err, err_len, "memory of the device for %s: %s", name[cls], cudaGetErrorString(e));
        return -EIO;
    }
    *ret = (struct kern_block){.base = p, .bytes = size};
    return 0;
}

void cuda_mem_free(enum kern_mem cls, struct kern_block *block) {
    if (block->base && cls == KERN_MEM_CTL)
        (void)cudaFreeHost(block->base);
    else if (block->base)
        (void)cudaFree(block->base);
    *block = (struct kern_block){0};
}

/* A device with unified memory takes from the machine's what it takes. */
int cuda_mem_where(enum kern_mem cls, uint64_t *ret_free, char *err, size_t err_len) {
    int unified = 0, r = cuda_device_check(err, err_len);
    size_t left = 0, all = 0;
    if (r)
        return r;
    cudaError_t e = cudaDeviceGetAttribute(&unified, cudaDevAttrIntegrated, 0);
    if (e == cudaSuccess && (unified || cls == KERN_MEM_CTL))
        return 0;
    if (e == cudaSuccess)
        e = cudaMemGetInfo(&left, &all);
    if (e != cudaSuccess) {
        snprintf(err, err_len, "device: how much of its memory is free: %s", cudaGetErrorString(e));
        return -ENODEV;
    }
    *ret_free = left;
    return 1;
}

int cuda_lost(struct kern *k, const char *what, cudaError_t e) {
    kern_error(k, "the device is lost: %s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
    k->lost = true;
    return -EIO;
}
