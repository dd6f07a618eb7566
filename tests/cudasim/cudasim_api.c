/* SPDX-License-Identifier: MIT */
/* cudasim_api.c: memory, errors and the device of the simulated runtime. Streams: cudasim_stream.c. */
#include "cudasim_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct cudasim_state cs = {.total = 16ull << 30};
static pthread_mutex_t turn;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread cudaError_t last;

/* ---- errors --------------------------------------------------------------------------------------------- */

static uint64_t env_number(const char *name, uint64_t other) {
    const char *v = getenv(name);
    return v ? strtoull(v, NULL, 0) : other;
}

static void start(void) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&turn, &a);
    pthread_mutexattr_destroy(&a);
    cs.order = (int)env_number("CUDASIM_ORDER", 0);
    cs.eager = env_number("CUDASIM_EAGER", 0) != 0;
    cs.total = env_number("CUDASIM_MEMORY", cs.total);
}

void cudasim_lock(void) {
    pthread_once(&once, start);
    pthread_mutex_lock(&turn);
}

cudaError_t cudasim_unlock(cudaError_t e) {
    if (e != cudaSuccess && e != cudaErrorNotReady) last = e;
    pthread_mutex_unlock(&turn);
    return e;
}

cudaError_t cudasim_begin(void) {
    cudasim_lock();
    cs.calls++;
    if (cs.lost) return cs.lost;
    if (cs.fail_in && !--cs.fail_in) {
        if (cs.fail_for_ever) cs.lost = cs.fail_with;
        return cs.fail_with;
    }
    return cudaSuccess;
}

void cudasim_fail(uint64_t n, cudaError_t e, bool for_ever) {
    cudasim_lock();
    cs.fail_in = n;
    cs.fail_with = e;
    cs.fail_for_ever = for_ever;
    cs.lost = cudaSuccess;
    cudasim_unlock(cudaSuccess);
}

uint64_t cudasim_calls(void) {
    return cs.calls;
}

uint64_t cudasim_launches(void) {
    return cs.launches;
}

void cudasim_order(int order) {
    cudasim_lock();
    cs.order = order;
    cudasim_unlock(cudaSuccess);
}

void cudasim_eager(bool eager) {
    cudasim_lock();
    cs.eager = eager;
    cudasim_unlock(cudaSuccess);
}

void cudasim_memory(uint64_t bytes) {
    cudasim_lock();
    cs.total = bytes;
    cudasim_unlock(cudaSuccess);
}

void cudasim_live(struct cudasim_live *ret) {
    cudasim_lock();
    *ret = cs.live;
    cudasim_unlock(cudaSuccess);
}

static const struct { cudaError_t e; const char *name, *text; } errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
};

static unsigned error_at(cudaError_t e) {
    for (unsigned i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (errors[i].e == e) return i;
    return (unsigned)(sizeof(errors) / sizeof(*errors));
}

const char *cudaGetErrorString(cudaError_t e) {
    unsigned i = error_at(e);
    return i < sizeof(errors) / sizeof(*errors) ? errors[i].text : "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t e) {
    unsigned i = error_at(e);
    return i < sizeof(errors) / sizeof(*errors) ? errors[i].name : "unrecognized error code";
}

cudaError_t cudaGetLastError(void) {
    cudaError_t e = last;
    last = cs.lost;
    return e;
}

cudaError_t cudaPeekAtLastError(void) {
    return last;
}

/* ---- device --------------------------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *v) {
    *v = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v) {
    *v = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n) {
    cudaError_t e = cudasim_begin();
    if (!e) *n = 1;
    return cudasim_unlock(e);
}

cudaError_t cudaGetDevice(int *dev) {
    cudaError_t e = cudasim_begin();
    if (!e) *dev = 0;
    return cudasim_unlock(e);
}

cudaError_t cudaSetDevice(int dev) {
    cudaError_t e = cudasim_begin();
    return cudasim_unlock(e ? e : dev ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaInitDevice(int dev, unsigned device_flags, unsigned flags) {
    (void)device_flags;
    (void)flags;
    return cudaSetDevice(dev);
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    (void)flags;
    return cudasim_unlock(cudasim_begin());
}

cudaError_t cudaDeviceReset(void) {
    return cudasim_unlock(cudasim_begin());
}

cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int dev) {
    /* of a small device of the kind glmd is for */
    static const struct { enum cudaDeviceAttr a; int v; } known[] = {
        {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxSharedMemoryPerBlock, CUDASIM_SMEM_STATIC},
        {cudaDevAttrWarpSize, CUDASIM_WARP}, {cudaDevAttrMultiProcessorCount, 48}, {cudaDevAttrIntegrated, 1},
        {cudaDevAttrCanMapHostMemory, 1}, {cudaDevAttrL2CacheSize, 24 << 20},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 1536}, {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrComputeCapabilityMajor, 12}, {cudaDevAttrComputeCapabilityMinor, 1},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 102400}, {cudaDevAttrManagedMemory, 1},
        {cudaDevAttrPageableMemoryAccess, 1}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, CUDASIM_SMEM_MAX},
        {cudaDevAttrPageableMemoryAccessUsesHostPageTables, 0}, {cudaDevAttrDirectManagedMemAccessFromHost, 0},
    };
    cudaError_t e = cudasim_begin();
    if (!e) e = dev ? cudaErrorInvalidDevice : cudaErrorInvalidValue;
    else return cudasim_unlock(e);
    for (unsigned i = 0; !dev && i < sizeof(known) / sizeof(*known); i++)
        if (known[i].a == a) {
            *v = known[i].v;
            e = cudaSuccess;
        }
    return cudasim_unlock(e);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int dev) {
    cudaError_t e = cudasim_begin();
    if (!e && dev) e = cudaErrorInvalidDevice;
    if (!e)
        *p = (struct cudaDeviceProp){
            .name = "simulated device", .totalGlobalMem = cs.total, .sharedMemPerBlock = CUDASIM_SMEM_STATIC,
            .sharedMemPerBlockOptin = CUDASIM_SMEM_MAX, .sharedMemPerMultiprocessor = 102400, .regsPerBlock = 65536,
            .warpSize = CUDASIM_WARP, .maxThreadsPerBlock = 1024, .maxThreadsPerMultiProcessor = 1536,
            .maxGridSize = {0x7fffffff, 65535, 65535}, .major = 12, .minor = 1, .multiProcessorCount = 48,
            .l2CacheSize = 24 << 20, .integrated = 1, .canMapHostMemory = 1, .unifiedAddressing = 1,
            .concurrentKernels = 1, .asyncEngineCount = 1};
    return cudasim_unlock(e);
}

/* ---- memory --------------------------------------------------------------------------------------------- */

enum { PAGE = 4096 };

const struct cudasim_range *cudasim_find(const void *p) {
    for (struct cudasim_range *r = cs.ranges; r; r = r->next)
        if ((const char *)p >= r->at && (const char *)p < r->at + r->bytes) return r;
    return NULL;
}

/* All n bytes at p are of one kind of memory; true also for host memory that CUDA does not know when host may be. */
bool cudasim_valid(const void *p, size_t n, bool device, bool host) {
    const struct cudasim_range *r = cudasim_find(p);
    if (!r) return host && p;
    if (n > r->bytes - (size_t)((const char *)p - r->at)) return false;
    return r->kind == CUDASIM_DEVICE ? device : true; /* pinned host memory is mapped: both may */
}

/* All of it, and of what lies behind 4 MiB one page in eight: pages that nobody touches cost nothing then. */
static void poison(char *p, size_t n, int value) {
    size_t whole = n < (4 << 20) ? n : 4 << 20;
    memset(p, value, whole);
    for (size_t at = whole; at < n; at += 8 * PAGE) memset(p + at, value, n - at < PAGE ? n - at : PAGE);
}

static cudaError_t make(void **p, size_t n, enum cudasim_kind kind) {
    if (!p || !n) {
        if (p) *p = NULL;
        return n ? cudaErrorInvalidValue : cudaSuccess;
    }
    uint64_t *live = kind == CUDASIM_DEVICE ? &cs.live.device_bytes : &cs.live.host_bytes;
    if (n > cs.total || (kind == CUDASIM_DEVICE && n > cs.total - *live)) return cudaErrorMemoryAllocation;
    struct cudasim_range *r = calloc(1, sizeof(*r));
    size_t used = (n + 255) / 256 * 256, room = (used + PAGE - 1) / PAGE * PAGE; /* 256: what CUDA aligns to */
    char *map = r ? mmap(NULL, room + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                  : MAP_FAILED;
    if (map == MAP_FAILED) {
        free(r);
        return cudaErrorMemoryAllocation;
    }
    mprotect(map + room, PAGE, PROT_NONE);
    /* Blocks of whole pages are page-aligned, as the device's are; others end at the guard page. */
    *r = (struct cudasim_range){.next = cs.ranges, .at = map + room - used, .bytes = n, .map = map,
                                .map_bytes = room + PAGE, .kind = kind};
    poison(r->at, used, kind == CUDASIM_DEVICE ? 0xff : 0xa5);
    cs.ranges = r;
    *live += n;
    cs.live.blocks++;
    *p = r->at;
    return cudaSuccess;
}

static cudaError_t unmake(void *p, enum cudasim_kind kind) {
    if (!p) return cudaSuccess;
    for (struct cudasim_range **at = &cs.ranges; *at; at = &(*at)->next) {
        struct cudasim_range *r = *at;
        if (r->at != p || r->kind != kind) continue;
        *at = r->next;
        *(kind == CUDASIM_DEVICE ? &cs.live.device_bytes : &cs.live.host_bytes) -= r->bytes;
        cs.live.blocks--;
        if (r->map) munmap(r->map, r->map_bytes);
        free(r);
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

cudaError_t cudaMalloc(void **p, size_t n) {
    cudaError_t e = cudasim_begin();
    if (!e && cs.capturing) e = cudaErrorStreamCaptureUnsupported;
    return cudasim_unlock(e ? e : make(p, n, CUDASIM_DEVICE));
}

cudaError_t cudaFree(void *p) {
    cudasim_lock();
    cudasim_flush(); /* freeing waits for the device */
    return cudasim_unlock(unmake(p, CUDASIM_DEVICE));
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) {
    (void)flags;
    cudaError_t e = cudasim_begin();
    return cudasim_unlock(e ? e : make(p, n, CUDASIM_PINNED));
}

cudaError_t cudaMallocHost(void **p, size_t n) {
    return cudaHostAlloc(p, n, 0);
}

cudaError_t cudaFreeHost(void *p) {
    cudasim_lock();
    cudasim_flush();
    return cudasim_unlock(unmake(p, CUDASIM_PINNED));
}

cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) {
    (void)flags;
    cudaError_t e = cudasim_begin();
    if (!e && (!p || !n)) e = cudaErrorInvalidValue;
    if (!e && cudasim_find(p)) e = cudaErrorHostMemoryAlreadyRegistered;
    struct cudasim_range *r = e ? NULL : calloc(1, sizeof(*r));
    if (!e && !r) e = cudaErrorMemoryAllocation;
    if (r) {
        *r = (struct cudasim_range){.next = cs.ranges, .at = p, .bytes = n, .kind = CUDASIM_REGISTERED};
        cs.ranges = r;
        cs.live.host_bytes += n;
        cs.live.blocks++;
    }
    return cudasim_unlock(e);
}

cudaError_t cudaHostUnregister(void *p) {
    cudasim_lock();
    cudasim_flush();
    return cudasim_unlock(unmake(p, CUDASIM_REGISTERED));
}

cudaError_t cudaHostGetDevicePointer(void **dev, void *host, unsigned flags) {
    cudaError_t e = cudasim_begin();
    const struct cudasim_range *r = cudasim_find(host);
    if (!e && (flags || !r || r->kind == CUDASIM_DEVICE)) e = cudaErrorInvalidValue;
    if (!e) *dev = host;
    return cudasim_unlock(e);
}

cudaError_t cudaMemGetInfo(size_t *avail, size_t *total) {
    cudaError_t e = cudasim_begin();
    if (!e) {
        *total = cs.total;
        *avail = cs.total > cs.live.device_bytes ? cs.total - cs.live.device_bytes : 0;
    }
    return cudasim_unlock(e);
}
