/* SPDX-License-Identifier: MIT */
/* cudasim_stream.c: streams, events and graphs. A stream is a list of operations that run when somebody waits. */
#include "cudasim_api.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cudasim_fiber.h"

enum op_kind { OP_KERNEL, OP_COPY, OP_SET, OP_RECORD, OP_WAIT, OP_HOST };

struct op {
    struct op *next;
    enum op_kind kind;
    const char *name;
    dim3 grid, block;
    size_t smem, n, pitch[2], rows; /* copies: rows of n bytes */
    void (*fn)(const void *);
    cudaHostFn_t host;
    void *dst;
    const void *src;
    int value;
    cudaEvent_t event;
    uint64_t number; /* of the event's recording that is meant */
    _Alignas(16) unsigned char args[]; /* a kernel's, or the bytes of a copy from pageable memory */
};

struct CUstream_st {
    struct CUstream_st *next;
    struct op *first, **last;
    struct CUgraph_st *graph; /* being captured into */
    bool origin, blocking;
};

struct CUevent_st {
    uint64_t asked, done; /* recordings enqueued, and run */
    cudaStream_t stream;
    struct CUgraph_st *graph; /* recorded in a capture */
    struct timespec at;
    bool timing;
};

struct CUgraph_st {
    struct op *first, **last;
    size_t n;
};

struct CUgraphExec_st {
    struct CUgraph_st ops;
};

static struct { const void *fn; int smem; } opted[256]; /* cudaFuncSetAttribute() */
static unsigned n_opted;
static struct CUstream_st null_stream = {.last = &null_stream.first, .blocking = true};

static struct CUstream_st *of(cudaStream_t s) {
    return s ? s : &null_stream;
}

/* ---- running ---------------------------------------------------------------------------------------------- */

static bool step(struct CUstream_st *s);

static void until(cudaEvent_t e, uint64_t number) {
    while (e->done < number && e->stream && step(e->stream)) continue;
}

static void run_op(const struct op *o) {
    switch (o->kind) {
    case OP_KERNEL:
        cs.launches++;
        cudasim_grid(o->name, o->grid, o->block, o->smem, o->fn, o->args, cs.order);
        break;
    case OP_COPY:
        for (size_t i = 0; i < o->rows; i++)
            memmove((char *)o->dst + i * o->pitch[0], (const char *)o->src + i * o->pitch[1], o->n);
        break;
    case OP_SET: memset(o->dst, o->value, o->n); break;
    case OP_RECORD:
        clock_gettime(CLOCK_MONOTONIC, &o->event->at);
        o->event->done = o->number;
        break;
    case OP_WAIT: until(o->event, o->number); break;
    case OP_HOST: o->host(o->dst); break;
    }
}

/* Runs the oldest operation; false: there is none. */
static bool step(struct CUstream_st *s) {
    struct op *o = s->first;
    if (!o) return false;
    s->first = o->next;
    if (!s->first) s->last = &s->first;
    run_op(o);
    free(o);
    return true;
}

static void drain(struct CUstream_st *s) {
    while (step(s)) continue;
}

void cudasim_flush(void) {
    drain(&null_stream);
    for (struct CUstream_st *s = cs.streams; s; s = s->next) drain(s);
}

/* The null stream waits for blocking streams, and they for it. */
static void before(struct CUstream_st *s) {
    if (s == &null_stream) {
        for (struct CUstream_st *o = cs.streams; o; o = o->next)
            if (o->blocking) drain(o);
    } else if (s->blocking) {
        drain(&null_stream);
    }
}

static void append(struct op ***last, struct op *o) {
    o->next = NULL;
    **last = o;
    *last = &o->next;
}

static struct op *make_op(enum op_kind kind, const void *args, size_t n) {
    struct op *o = calloc(1, sizeof(*o) + n);
    if (!o) abort();
    o->kind = kind;
    if (args && n) memcpy(o->args, args, n);
    return o;
}

/* Into the stream's graph, or behind what it has to do. */
static void enqueue(cudaStream_t stream, struct op *o) {
    struct CUstream_st *s = of(stream);
    if (s->graph) {
        append(&s->graph->last, o);
        s->graph->n++;
        return;
    }
    before(s);
    append(&s->last, o);
    if (cs.eager) drain(s);
}

cudaError_t cudasim_launch_raw(const char *name, const void *key, dim3 grid, dim3 block, size_t smem, cudaStream_t s,
                               void (*fn)(const void *args), const void *args, size_t n) {
    cudaError_t e = cudasim_begin();
    if (e) return cudasim_unlock(e);
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || !threads ||
        threads > 1024 || block.z > 64)
        return cudasim_unlock(cudaErrorInvalidConfiguration);
    size_t limit = CUDASIM_SMEM_STATIC;
    for (unsigned i = 0; i < n_opted; i++)
        if (opted[i].fn == key) limit = (size_t)opted[i].smem;
    if (smem > (key ? limit : (size_t)CUDASIM_SMEM_MAX)) return cudasim_unlock(cudaErrorInvalidValue);
    struct op *o = make_op(OP_KERNEL, args, n);
    o->name = name;
    o->grid = grid;
    o->block = block;
    o->smem = smem;
    o->n = n;
    o->fn = fn;
    enqueue(s, o);
    return cudasim_unlock(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute a, int v) {
    cudaError_t e = cudasim_begin();
    if (e || a != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudasim_unlock(e);
    if (v < 0 || v > CUDASIM_SMEM_MAX) return cudasim_unlock(cudaErrorInvalidValue);
    unsigned i = 0;
    while (i < n_opted && opted[i].fn != fn) i++;
    if (i == sizeof(opted) / sizeof(*opted)) abort();
    if (i == n_opted) n_opted++;
    opted[i].fn = fn;
    opted[i].smem = v;
    return cudasim_unlock(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *fn) {
    cudaError_t e = cudasim_begin();
    if (!e) {
        *a = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .ptxVersion = 90, .binaryVersion = 121,
                                         .maxDynamicSharedSizeBytes = CUDASIM_SMEM_STATIC};
        for (unsigned i = 0; i < n_opted; i++)
            if (opted[i].fn == fn) a->maxDynamicSharedSizeBytes = opted[i].smem;
    }
    return cudasim_unlock(e);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *fn, int threads, size_t smem) {
    (void)fn;
    cudaError_t e = cudasim_begin();
    if (!e && (threads < 1 || threads > 1024)) e = cudaErrorInvalidValue;
    if (!e) {
        int by_threads = 1536 / threads, by_smem = (int)(102400 / (smem + 1024));
        *n = by_threads < by_smem ? by_threads : by_smem;
    }
    return cudasim_unlock(e);
}

/* ---- copies ----------------------------------------------------------------------------------------------- */

static cudaError_t copy(void *dst, size_t dpitch, const void *src, size_t spitch, size_t n, size_t rows,
                        enum cudaMemcpyKind k, cudaStream_t s, bool wait) {
    if (!n || !rows) return cudaSuccess;
    if (dpitch < n || spitch < n) return cudaErrorInvalidValue;
    if (wait && cs.capturing && !of(s)->graph) return cudaErrorStreamCaptureUnsupported;
    bool to_dev = k == cudaMemcpyHostToDevice || k == cudaMemcpyDeviceToDevice || k == cudaMemcpyDefault;
    bool to_host = k == cudaMemcpyDeviceToHost || k == cudaMemcpyHostToHost || k == cudaMemcpyDefault;
    bool from_dev = k == cudaMemcpyDeviceToHost || k == cudaMemcpyDeviceToDevice || k == cudaMemcpyDefault;
    bool from_host = k == cudaMemcpyHostToDevice || k == cudaMemcpyHostToHost || k == cudaMemcpyDefault;
    if (!cudasim_valid(dst, (rows - 1) * dpitch + n, to_dev, to_host)) return cudaErrorInvalidValue;
    if (!cudasim_valid(src, (rows - 1) * spitch + n, from_dev, from_host)) return cudaErrorInvalidValue;
    /* Pageable memory: what is read was read when the call returns, what is written was written. */
    bool staged = !of(s)->graph && !cudasim_find(src) && rows == 1;
    struct op *o = make_op(OP_COPY, src, staged ? n : 0);
    o->dst = dst;
    o->src = staged ? o->args : src;
    o->n = n;
    o->rows = rows;
    o->pitch[0] = dpitch;
    o->pitch[1] = spitch;
    enqueue(s, o);
    if (!of(s)->graph && (wait || !cudasim_find(dst) || (!staged && !cudasim_find(src)))) drain(of(s));
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind k) {
    cudaError_t e = cudasim_begin();
    return cudasim_unlock(e ? e : copy(dst, n, src, n, n, 1, k, NULL, true));
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind k, cudaStream_t s) {
    cudaError_t e = cudasim_begin();
    return cudasim_unlock(e ? e : copy(dst, n, src, n, n, 1, k, s, false));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind k, cudaStream_t s) {
    cudaError_t e = cudasim_begin();
    return cudasim_unlock(e ? e : copy(dst, dpitch, src, spitch, width, height, k, s, false));
}

static cudaError_t set(void *p, int v, size_t n, cudaStream_t s) {
    if (!n) return cudaSuccess;
    if (!cudasim_valid(p, n, true, false)) return cudaErrorInvalidValue;
    struct op *o = make_op(OP_SET, NULL, 0);
    o->dst = p;
    o->value = v;
    o->n = n;
    enqueue(s, o);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int v, size_t n) {
    cudaError_t e = cudasim_begin();
    return cudasim_unlock(e ? e : set(p, v, n, NULL));
}

cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) {
    cudaError_t e = cudasim_begin();
    return cudasim_unlock(e ? e : set(p, v, n, s));
}

/* ---- streams ---------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags) {
    cudaError_t e = cudasim_begin();
    if (!e) {
        struct CUstream_st *s = calloc(1, sizeof(*s));
        if (!s) abort();
        s->last = &s->first;
        s->blocking = !(flags & cudaStreamNonBlocking);
        s->next = cs.streams;
        cs.streams = s;
        cs.live.streams++;
        *ret = s;
    }
    return cudasim_unlock(e);
}

cudaError_t cudaStreamCreate(cudaStream_t *s) {
    return cudaStreamCreateWithFlags(s, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    (void)priority;
    return cudaStreamCreateWithFlags(s, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    cudaError_t e = cudasim_begin();
    if (!e) {
        *least = 0;
        *greatest = -5;
    }
    return cudasim_unlock(e);
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    cudasim_lock();
    struct CUstream_st **at = &cs.streams;
    while (*at && *at != s) at = &(*at)->next;
    if (!s || !*at) return cudasim_unlock(cudaErrorInvalidResourceHandle);
    if (s->graph && s->origin) {
        cs.capturing--;
        cudaGraphDestroy(s->graph);
    }
    drain(s);
    *at = s->next;
    cs.live.streams--;
    free(s);
    return cudasim_unlock(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    cudaError_t e = cudasim_begin();
    if (!e && of(s)->graph) e = cudaErrorStreamCaptureUnsupported;
    if (!e) {
        before(of(s));
        drain(of(s));
    }
    return cudasim_unlock(e);
}

cudaError_t cudaDeviceSynchronize(void) {
    cudaError_t e = cudasim_begin();
    if (!e && cs.capturing) e = cudaErrorStreamCaptureUnsupported;
    if (!e) cudasim_flush();
    return cudasim_unlock(e);
}

cudaError_t cudaStreamQuery(cudaStream_t s) {
    cudaError_t e = cudasim_begin();
    if (!e && of(s)->graph) e = cudaErrorStreamCaptureUnsupported;
    if (!e) e = step(of(s)) ? cudaErrorNotReady : cudaSuccess;
    return cudasim_unlock(e);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg) {
    cudaError_t e = cudasim_begin();
    if (!e) {
        struct op *o = make_op(OP_HOST, NULL, 0);
        o->host = fn;
        o->dst = arg;
        enqueue(s, o);
    }
    return cudasim_unlock(e);
}

/* ---- events ----------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags) {
    cudaError_t e = cudasim_begin();
    if (!e) {
        *ret = calloc(1, sizeof(**ret));
        if (!*ret) abort();
        (*ret)->timing = !(flags & cudaEventDisableTiming);
        cs.live.events++;
    }
    return cudasim_unlock(e);
}

cudaError_t cudaEventCreate(cudaEvent_t *e) {
    return cudaEventCreateWithFlags(e, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t v) {
    cudasim_lock();
    if (!v) return cudasim_unlock(cudaErrorInvalidResourceHandle);
    cudasim_flush(); /* whoever waits for it has it still */
    cs.live.events--;
    free(v);
    return cudasim_unlock(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t v, cudaStream_t s) {
    cudaError_t e = cudasim_begin();
    if (!e && !v) e = cudaErrorInvalidResourceHandle;
    if (!e && of(s)->graph) {
        v->graph = of(s)->graph;
    } else if (!e) {
        v->graph = NULL;
        v->stream = of(s);
        struct op *o = make_op(OP_RECORD, NULL, 0);
        o->event = v;
        o->number = ++v->asked;
        enqueue(s, o);
    }
    return cudasim_unlock(e);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t v, unsigned flags) {
    (void)flags;
    cudaError_t e = cudasim_begin();
    if (!e && !v) e = cudaErrorInvalidResourceHandle;
    if (!e && v->graph) {
        if (!of(s)->graph) cs.capturing++;
        of(s)->graph = v->graph; /* the order of calls is one that the graph allows */
    } else if (!e) {
        struct op *o = make_op(OP_WAIT, NULL, 0);
        o->event = v;
        o->number = v->asked;
        enqueue(s, o);
    }
    return cudasim_unlock(e);
}

cudaError_t cudaEventQuery(cudaEvent_t v) {
    cudaError_t e = cudasim_begin();
    if (!e && v->graph) e = cudaErrorStreamCaptureUnsupported;
    if (!e && v->done < v->asked) {
        step(v->stream);
        e = cudaErrorNotReady;
    }
    return cudasim_unlock(e);
}

cudaError_t cudaEventSynchronize(cudaEvent_t v) {
    cudaError_t e = cudasim_begin();
    if (!e && v->graph) e = cudaErrorStreamCaptureUnsupported;
    if (!e) until(v, v->asked);
    return cudasim_unlock(e);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    cudaError_t e = cudasim_begin();
    if (!e && (!a->timing || !b->timing || !a->asked || !b->asked)) e = cudaErrorInvalidResourceHandle;
    if (!e && (a->done < a->asked || b->done < b->asked)) e = cudaErrorNotReady;
    if (!e)
        *ms = (float)((double)(b->at.tv_sec - a->at.tv_sec) * 1e3 + (double)(b->at.tv_nsec - a->at.tv_nsec) * 1e-6);
    return cudasim_unlock(e);
}

/* ---- graphs ----------------------------------------------------------------------------------------------- */

cudaError_t cudaGraphCreate(cudaGraph_t *g, unsigned flags) {
    cudaError_t e = cudasim_begin();
    if (!e && flags) e = cudaErrorInvalidValue;
    if (!e) {
        *g = calloc(1, sizeof(**g));
        if (!*g) abort();
        (*g)->last = &(*g)->first;
        cs.live.graphs++;
    }
    return cudasim_unlock(e);
}

static void free_ops(struct op *o) {
    while (o) {
        struct op *n = o->next;
        free(o);
        o = n;
    }
}

cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    cudasim_lock();
    if (!g) return cudasim_unlock(cudaErrorInvalidValue);
    free_ops(g->first);
    free(g);
    cs.live.graphs--;
    return cudasim_unlock(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    (void)mode;
    cudaError_t e = cudasim_begin();
    if (!e && !s) e = cudaErrorStreamCaptureUnsupported;
    if (!e && s->graph) e = cudaErrorIllegalState;
    if (e) return cudasim_unlock(e);
    struct CUgraph_st *g = calloc(1, sizeof(*g));
    if (!g) abort();
    g->last = &g->first;
    cs.live.graphs++;
    s->graph = g;
    s->origin = true;
    cs.capturing++;
    return cudasim_unlock(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *ret) {
    cudaError_t e = cudasim_begin();
    *ret = NULL;
    if (!s || !s->graph || !s->origin) return cudasim_unlock(e ? e : cudaErrorIllegalState);
    struct CUgraph_st *g = s->graph;
    for (struct CUstream_st *o = cs.streams; o; o = o->next)
        if (o->graph == g) {
            o->graph = NULL;
            cs.capturing--;
        }
    s->origin = false;
    if (e) cudaGraphDestroy(g);
    else *ret = g;
    return cudasim_unlock(e);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
    cudaError_t e = cudasim_begin();
    if (!e) *status = of(s)->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudasim_unlock(e);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    static __thread enum cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal;
    enum cudaStreamCaptureMode old = now;
    now = *mode;
    *mode = old;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n) {
    cudaError_t e = cudasim_begin();
    if (!e && (!g || nodes)) e = cudaErrorInvalidValue; /* the number only */
    if (!e) *n = g->n;
    return cudasim_unlock(e);
}

static struct op *copy_op(const struct op *o) {
    size_t n = o->kind == OP_KERNEL ? o->n : 0;
    struct op *c = make_op(o->kind, NULL, n);
    memcpy(c, o, sizeof(*o) + n);
    return c;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags) {
    (void)flags;
    cudaError_t e = cudasim_begin();
    if (!e && !g) e = cudaErrorInvalidValue;
    if (e) return cudasim_unlock(e);
    *x = calloc(1, sizeof(**x));
    if (!*x) abort();
    (*x)->ops.last = &(*x)->ops.first;
    for (const struct op *o = g->first; o; o = o->next) append(&(*x)->ops.last, copy_op(o));
    cs.live.execs++;
    return cudasim_unlock(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s) {
    (void)s;
    cudaError_t e = cudasim_begin();
    return cudasim_unlock(e ? e : x ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) {
    cudaError_t e = cudasim_begin();
    if (!e && !x) e = cudaErrorInvalidValue;
    for (const struct op *o = e ? NULL : x->ops.first; o; o = o->next) enqueue(s, copy_op(o));
    return cudasim_unlock(e);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) {
    cudasim_lock();
    if (!x) return cudasim_unlock(cudaErrorInvalidValue);
    free_ops(x->ops.first);
    free(x);
    cs.live.execs--;
    return cudasim_unlock(cudaSuccess);
}
