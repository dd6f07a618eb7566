/* SPDX-License-Identifier: MIT */
/* cuda_bandwidth: how fast products of packed matrices read their weights, against a kernel that only reads. On a
 * machine with a device and nvcc, from the repository's root:
 *
 *   nvcc -std=c++17 -O3 -arch=sm_90 -Ikernels -Ikernels/cuda -Ikernels/host '-DFAULT(name)=0' -o cuda_bandwidth \
 *       tests/gpu/cuda_bandwidth.cu kernels/cuda/cuda_prod*.cu kernels/cuda/cuda_tile.cu \
 *       kernels/cuda/cuda_exl3.cu kernels/kern_format.c && ./cuda_bandwidth
 *
 * Each line: so many matrices of one size that together are several times the second-level cache, one launch each
 * (EXL3: with the transforms around it, three), captured as a graph; the median of its replays. The share is of the
 * reading kernel with as many launches over the same bytes. "experts": gate and up of eight experts in one launch,
 * down in another. */
#include "cuda_prod_list.h"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        cudaError_t err_ = (call);                                                                                     \
        if (err_ != cudaSuccess) {                                                                                     \
            fprintf(stderr, "cuda_bandwidth: %s: %s\n", #call, cudaGetErrorString(err_));                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { ROWS = 16, WIDE = 4096, REPLAYS = 21, TOP = 8, EXPERT = 2048 };

static cudaStream_t stream;
static struct cuda_lane lane;
static struct cuda_dims dims;
static struct cuda_run run;
static char *weights;
static uint64_t room, spread;

/* ---- a kernel that reads ---------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(256) read_kernel(const char *p, uint64_t n, uint32_t *sink) {
    const uint64_t step = (uint64_t)gridDim.x * 256 * 16;
    uint32_t sum = 0;
    for (uint64_t at = ((uint64_t)blockIdx.x * 256 + threadIdx.x) * 16; at < n; at += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = at + i * step < n ? ptx_stream16(p + at + i * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x12345678)
        *sink = sum;
}

__global__ void noise_kernel(uint32_t *p, uint64_t n) {
    for (uint64_t i = (uint64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (uint64_t)gridDim.x * 256) {
        uint32_t x = (uint32_t)i * 2654435761u;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        p[i] = x & 0xbf7fbf7fu; /* numbers below 2, whatever they are read as */
    }
}

/* ---- measuring -------------------------------------------------------------------------------------------- */

/* Seconds of one pass over whatever `pass` launches. */
template <class F> static double seconds(F pass) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    std::vector<float> ms;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    pass();
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaEventCreate(&from));
    OK(cudaEventCreate(&to));
    for (int i = 0; i < REPLAYS + 3; i++) {
        float t;
        OK(cudaEventRecord(from, stream));
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaEventRecord(to, stream));
        OK(cudaEventSynchronize(to));
        OK(cudaEventElapsedTime(&t, from, to));
        if (i >= 3)
            ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    OK(cudaEventDestroy(from));
    OK(cudaEventDestroy(to));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    return ms[ms.size() / 2] / 1e3;
}

static double read_rate(uint64_t bytes, uint64_t n) {
    int sms;
    OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    double t = seconds([&]() {
        for (uint64_t i = 0; i < n; i++)
            read_kernel<<<sms * 8, 256, 0, stream>>>(weights + i * bytes, bytes, (uint32_t *)lane.had);
    });
    return (double)(bytes * n) / t / 1e9;
}

static void set_rows(uint32_t rows) {
    struct cuda_step s = {};
    s.n_rows[0] = rows;
    OK(cudaMemcpy(lane.step, &s, sizeof(s), cudaMemcpyHostToDevice));
    run.rows = rows;
}

static void print(const char *what, const char *name, double mb, uint32_t rows, double rate, double read) {
    printf("%-8s %-18s %6.1f MB %2u rows %7.0f GB/s  %5.1f %%\n", what, name, mb, rows, rate, 100 * rate / read);
    fflush(stdout);
}

/* ---- matrices --------------------------------------------------------------------------------------------- */

static struct cuda_mat matrix(const struct kern_store *s, uint32_t n, uint32_t k, uint64_t *bytes) {
    struct cuda_mat m = {};
    m.heads = 1;
    if (cuda_mat_layout(s, n, k, &m, bytes)) {
        fprintf(stderr, "cuda_bandwidth: no layout\n");
        exit(1);
    }
    return m;
}

static struct cuda_mat at(struct cuda_mat m, uint64_t by) {
    m.codes += by, m.scale += by, m.global += by, m.suh += by, m.svh += by;
    return m;
}

static void products(const struct kern_store *s, uint32_t megabytes, uint32_t rows) {
    uint64_t one, bytes;
    char name[64];
    matrix(s, 128, WIDE, &one);
    const uint32_t n = (uint32_t)(((uint64_t)megabytes << 20) / (one / 128)) / 128 * 128;
    const struct cuda_mat m = matrix(s, n, WIDE, &bytes);
    const uint64_t count = (spread + bytes - 1) / bytes;
    const double read = read_rate(bytes, count);
    set_rows(rows);
    double t = seconds([&]() {
        for (uint64_t i = 0; i < count; i++) {
            const struct cuda_mat here = at(m, i * bytes);
            struct cuda_prod p = {};
            p.m = &here;
            p.x = lane.u;
            p.ldx = WIDE;
            p.out = lane.y;
            p.ldo = n;
            OK(cuda_products(&run, &p, 1));
        }
    });
    print("product", kern_store_name(s, name, sizeof(name)), (double)bytes / 1e6, rows,
          (double)(bytes * count) / t / 1e9, read);
}

/* Eight experts of one row, as a layer has them: two products a side, then one. */
static void experts(const struct kern_store *s) {
    uint64_t up, down;
    char name[64];
    struct cuda_mat in = matrix(s, EXPERT, WIDE, &up), out = matrix(s, WIDE, EXPERT, &down);
    const uint64_t layer = TOP * (2 * up + down), count = (spread + layer - 1) / layer;
    const double read = read_rate(layer / 2, 2 * count);
    in.stride = up;
    out.stride = down;
    set_rows(1);
    double t = seconds([&]() {
        for (uint64_t i = 0; i < count; i++) {
            const struct cuda_mat gate = at(in, i * layer), both = at(in, i * layer + TOP * up),
                                  back = at(out, i * layer + 2 * TOP * up);
            struct prod_list a = {}, b = {};
            prod_gate_up(&a, &run, &gate, &both, lane.u, WIDE, lane.act, EXPERT);
            a.job[0].items = lane.items;
            a.job[0].item_rows = lane.item_rows;
            a.job[0].x_div = TOP;
            a.items = b.items = TOP;
            b.m[b.n++] = &back;
            prod_matrix(&b.job[0], run.weights, &back, NULL);
            b.job[0].items = lane.items;
            b.job[0].item_rows = lane.item_rows;
            b.job[0].x = lane.act;
            b.job[0].ldx = EXPERT;
            b.job[0].out = lane.y;
            b.job[0].ldo = WIDE;
            b.job[0].weight = lane.top_w;
            OK(prod_run(&run, &a));
            OK(prod_run(&run, &b));
        }
    });
    print("experts", kern_store_name(s, name, sizeof(name)), (double)layer / 1e6, 1, (double)(layer * count) / t / 1e9,
          read);
}

/* ---- all of it -------------------------------------------------------------------------------------------- */

template <class T> static T *device(uint64_t n, int byte) {
    T *p;
    OK(cudaMalloc((void **)&p, n * sizeof(T)));
    OK(cudaMemset(p, byte, n * sizeof(T)));
    return p;
}

static void prepare(void) {
    int l2;
    uint64_t had, raw;
    OK(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0));
    spread = std::max<uint64_t>(256ull << 20, 5ull * (uint64_t)l2);
    room = 2 * spread + (512ull << 20);
    OK(cudaStreamCreate(&stream));
    weights = device<char>(room, 0);
    noise_kernel<<<1024, 256, 0, stream>>>((uint32_t *)weights, room / 4);
    OK(cudaStreamSynchronize(stream));
    dims.hidden = dims.hidden_pad = WIDE;
    dims.expert_width = dims.shared_width = dims.dense_width = EXPERT;
    dims.n_top = TOP;
    cuda_around_room(&dims, ROWS, &had, &raw);
    lane.had = (uint16_t *)device<char>(had, 0);
    lane.had_out = (float *)device<char>(raw, 0);
    lane.step = (struct cuda_step *)device<char>(sizeof(struct cuda_step), 0);
    lane.u = device<uint16_t>(ROWS * WIDE, 0x3c);
    lane.act = device<uint16_t>(TOP * EXPERT, 0x3c);
    lane.y = device<float>((uint64_t)ROWS * 65536, 0);
    lane.top_w = device<float>(TOP, 0x3c);
    lane.top_id = device<uint32_t>(TOP, 0);
    lane.items = device<uint32_t>(1 + 3 * TOP, 0);
    lane.item_rows = device<uint32_t>(TOP, 0);
    uint32_t items[1 + 3 * TOP] = {TOP}, rows[TOP];
    for (uint32_t i = 0; i < TOP; i++) {
        items[1 + 3 * i] = items[2 + 3 * i] = rows[i] = i;
        items[3 + 3 * i] = 1;
    }
    OK(cudaMemcpy(lane.items, items, sizeof(items), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(lane.item_rows, rows, sizeof(rows), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(lane.top_id, rows, sizeof(rows), cudaMemcpyHostToDevice));
    run.stream = stream;
    run.weights = weights;
    run.d = &dims;
    run.lane = &lane;
    run.max_rows = ROWS;
}

int main(void) {
    static const struct kern_store stores[] = {
        {KERN_BF16, 0, 0, 0, 0, 0},
        {KERN_FP8, 0, KERN_SCALE_F32, 0, 128, 128},
        {KERN_INT8, 0, KERN_SCALE_BF16, 0, 1, 128},
        {KERN_NVFP4, 0, KERN_SCALE_E4M3, 0, 1, 16},
        {KERN_EXL3, 4, 0, KERN_CODEBOOK_MCG, 0, 0},
        {KERN_EXL3, 4, 0, KERN_CODEBOOK_MUL1, 0, 0},
        {KERN_EXL3, 3, 0, KERN_CODEBOOK_MUL1, 0, 0},
        {KERN_EXL3, 2, 0, KERN_CODEBOOK_MUL1, 0, 0},
    };
    static const uint32_t sizes[] = {16, 32, 64}, rows[] = {1, 8, 16};
    struct cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    prepare();
    printf("%s: %d multiprocessors, %d MB second-level cache, %.0f MB in rotation\n", prop.name,
           prop.multiProcessorCount, prop.l2CacheSize >> 20, (double)spread / 1e6);
    for (uint32_t s : {16u, 32u, 64u, 256u})
        printf("read     %4u MB a launch                 %7.0f GB/s\n", s,
               read_rate((uint64_t)s << 20, (spread + ((uint64_t)s << 20) - 1) / ((uint64_t)s << 20)));
    for (const struct kern_store &s : stores)
        for (uint32_t size : sizes)
            for (uint32_t r : rows)
                products(&s, size, r);
    for (const struct kern_store &s : stores)
        experts(&s);
    return 0;
}
