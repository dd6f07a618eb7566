/* SPDX-License-Identifier: MIT */
/* cuda_tile.cu: where a matrix's pieces lie, and the way of a checkpoint's bytes to their places. Bytes are moved and
 * never changed, so a window may begin and end anywhere and windows that do not overlap never meet. */
#include "cuda_launch.cuh"
#include "cuda_tile.h"

#include <errno.h>

/* ---- layout (host) ---------------------------------------------------------------------------------------- */

static uint64_t padded(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

/* Groups of factors that end between the sixteen numbers of a lane have no kernel. */
static bool groups_fit(const struct kern_store *s, uint32_t cols) {
    return s->block_cols % 16 == 0 || s->block_cols >= cols;
}

static bool readable(const struct cuda_mat *m) {
    const struct kern_store *s = &m->store;
    switch (s->format) {
    case KERN_BF16:
        return true;
    case KERN_FP8:
    case KERN_INT8:
        return groups_fit(s, m->transposed ? m->n : m->k);
    case KERN_NVFP4:
        return (m->transposed ? m->n : m->k) % 16 == 0;
    case KERN_EXL3:
        return m->n % 128 == 0 && m->k % 128 == 0;
    default:
        return false;
    }
}

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t here = *at;
    *at = padded(here + bytes, 256);
    return bytes ? here : 0;
}

extern "C" int cuda_mat_layout(const struct kern_store *s, uint32_t n, uint32_t k, struct cuda_mat *ret,
                               uint64_t *ret_bytes) {
    struct cuda_mat m = {};
    uint64_t rows = ret->transposed ? k : n, at = 0;
    m.store = *s;
    m.n = n;
    m.k = k;
    m.n_pad = (uint32_t)padded(n, CUDA_PAD_N);
    m.k_pad = (uint32_t)padded(k, CUDA_PAD_K);
    m.heads = ret->heads ? ret->heads : 1;
    m.transposed = ret->transposed;
    m.stride = ret->stride;
    int err = kern_store_bytes(s, rows * m.heads, m.transposed ? n : k, &m.bytes);
    if (err)
        return err;
    if (!readable(&m))
        return -EINVAL;
    m.codes = take(&at, m.heads * tile_code_bytes(&m));
    m.scale = take(&at, m.heads * tile_scale_bytes(&m));
    if (s->format == KERN_NVFP4)
        m.global = take(&at, 4);
    if (s->format == KERN_EXL3) { /* the vector that runs along kv_b's rows is a head's own */
        m.suh = take(&at, 2ull * k * (m.transposed ? m.heads : 1));
        m.svh = take(&at, 2ull * n * (m.transposed ? 1 : m.heads));
    }
    *ret = m;
    *ret_bytes = at;
    return 0;
}

/* ---- places ----------------------------------------------------------------------------------------------- */

struct scatter {
    struct cuda_dest d;
    char *to; /* the expert's first byte */
    const uint8_t *from;
    uint64_t offset, n;
    uint32_t per, first; /* rows of the file a head has, and the first of them that is this half's */
};

/* The head a row of the file belongs to, and which of the head's rows it is; false: the other half's. */
__device__ static bool row_of(const struct scatter &s, uint64_t row, uint32_t *ret_head, uint32_t *ret_in) {
    const struct cuda_mat &m = s.d.m;
    uint32_t head = (uint32_t)(row / s.per), in = (uint32_t)(row % s.per);
    if (in < s.first || in - s.first >= (m.transposed ? m.k : m.n) || head >= m.heads)
        return false;
    *ret_head = head;
    *ret_in = in - s.first;
    return true;
}

__device__ static bool has(const struct scatter &s, uint64_t at) {
    return at >= s.offset && at - s.offset < s.n;
}

__device__ static uint8_t byte_at(const struct scatter &s, uint64_t at) {
    return s.from[at - s.offset];
}

/* Byte b of a row of codes. */
__device__ static uint64_t code_byte(const struct cuda_mat &m, uint32_t in, uint32_t b) {
    uint32_t col = m.store.format == KERN_BF16 ? b / 2 : m.store.format == KERN_NVFP4 ? 2 * b : b;
    uint32_t sub = m.store.format == KERN_BF16 ? b & 1 : 0;
    return m.transposed ? tile_code_at(&m, col, in, sub) : tile_code_at(&m, in, col, sub);
}

/* Four bytes of a row, which are a word of the tile with its bytes in another order. */
__global__ static void scatter_codes(const __grid_constant__ struct scatter s, uint64_t row_bytes, uint64_t first_row,
                                     uint64_t n_words) {
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, per_row = (row_bytes + 3) / 4;
    const struct cuda_mat &m = s.d.m;
    uint32_t head, in;
    if (i >= n_words || !row_of(s, first_row + i / per_row, &head, &in))
        return;
    const uint64_t row_at = (first_row + i / per_row) * row_bytes;
    const uint32_t b = (uint32_t)(i % per_row) * 4, end = b + 4 < row_bytes ? b + 4 : (uint32_t)row_bytes;
    char *to = s.to + m.codes + head * tile_code_bytes(&m);
    if (end - b == 4 && !m.transposed && has(s, row_at + b) && has(s, row_at + b + 3)) {
        uint32_t w = 0, pair = m.store.format == KERN_BF16 ? 0 : 1;
        for (uint32_t j = 0; j < 4; j++)
            w |= (uint32_t)byte_at(s, row_at + b + j) << 8 * (pair ? (j & 2 ? 0 : 1) + 2 * (j & 1) : j);
        *(uint32_t *)(to + code_byte(m, in, b) - pair) = w;
        return;
    }
    for (uint32_t j = b; j < end; j++)
        if (has(s, row_at + j))
            to[code_byte(m, in, j)] = (char)byte_at(s, row_at + j);
}

/* Words of EXL3's trellis: [k / 16][n / 16][8 bits words]. */
__global__ static void scatter_trellis(const __grid_constant__ struct scatter s, uint64_t first, uint64_t n_words) {
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, at = first + i;
    const struct cuda_mat &m = s.d.m;
    const uint32_t words = 8u * m.store.bits;
    uint32_t head, in, w = (uint32_t)(at % words);
    uint64_t tile = at / words, tiles = s.d.rows / 16, kt = tile / tiles;
    if (i >= n_words || !row_of(s, tile % tiles * 16, &head, &in))
        return;
    char *to = s.to + m.codes + head * tile_code_bytes(&m);
    if (m.transposed)
        to += (kt * (m.k_pad / 16) + in / 16) * words * 4 + w * 4;
    else
        to += ((uint64_t)(in / 16) * (m.k_pad / 64) + kt / 4) * tile_chunk_bytes(&m.store) +
              (m.store.bits == 4 ? w * 16 + kt % 4 * 4 : kt % 4 * words * 4 + w * 4);
    for (uint32_t j = 0; j < 4; j++)
        if (has(s, at * 4 + j))
            to[j] = (char)byte_at(s, at * 4 + j);
}

/* One byte of the scales; one that serves several rows goes to each of them where rows have their own. */
__global__ static void scatter_scales(const __grid_constant__ struct scatter s) {
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= s.n)
        return;
    const struct cuda_mat &m = s.d.m;
    const uint32_t unit = tile_scale_unit(&m.store), groups = tile_groups(&m.store, (uint32_t)s.d.cols);
    const uint64_t element = (s.offset + i) / unit, sub = (s.offset + i) % unit, band = element / groups;
    const uint32_t group = (uint32_t)(element % groups);
    char *to = s.to + m.scale + sub;
    if (!tile_scale_rows(&m)) {
        to[element * unit] = (char)s.from[i];
        return;
    }
    uint64_t tall = m.store.block_rows ? m.store.block_rows : s.d.rows, row = band * tall;
    for (uint64_t end = row + tall < s.d.rows ? row + tall : s.d.rows; row < end; row++) {
        uint32_t head, in;
        if (!row_of(s, row, &head, &in))
            continue;
        uint64_t at = m.transposed ? (uint64_t)group * m.k_pad + in : tile_scale_at(&m, in, group);
        to[head * tile_scale_bytes(&m) + at * unit] = (char)s.from[i];
    }
}

/* A factor of the whole, or a vector of EXL3 along columns or rows of the file. */
__global__ static void scatter_vector(const __grid_constant__ struct scatter s) {
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= s.n)
        return;
    const struct cuda_mat &m = s.d.m;
    const uint64_t at = s.offset + i;
    uint32_t head, in;
    if (s.d.piece == KERN_PIECE_GLOBAL)
        s.to[m.global + at] = (char)s.from[i];
    else if (s.d.piece == KERN_PIECE_SUH)
        s.to[(m.transposed ? m.svh : m.suh) + at] = (char)s.from[i];
    else if (row_of(s, at / 2, &head, &in))
        s.to[(m.transposed ? m.suh + (uint64_t)(head * m.k + in) * 2 : m.svh + (uint64_t)(head * m.n + in) * 2) +
             (at & 1)] = (char)s.from[i];
}

static uint64_t row_bytes_of(const struct cuda_dest *d) {
    switch (d->m.store.format) {
    case KERN_BF16:
        return 2 * d->cols;
    case KERN_NVFP4:
        return d->cols / 2;
    default:
        return d->cols;
    }
}

extern "C" cudaError_t cuda_scatter(cudaStream_t stream, char *weights, const struct cuda_dest *d, uint64_t offset,
                                    const uint8_t *from, uint64_t n) {
    struct scatter s = {*d, weights + d->expert * d->m.stride, from, offset, n, 0, 0};
    const bool halves = d->kvb_nope + d->kvb_v > 0;
    const uint32_t threads = 256;
    if (!n)
        return cudaSuccess;
    s.per = halves ? d->kvb_nope + d->kvb_v : (uint32_t)(d->rows / d->m.heads);
    s.first = halves && !d->m.transposed && !FAULT(cuda_halves_mixed) ? d->kvb_nope : 0;
    if (d->piece == KERN_PIECE_SCALE)
        return CUDA_LAUNCH(scatter_scales, dim3((uint32_t)((n + threads - 1) / threads)), dim3(threads), 0, stream, s);
    if (d->piece != KERN_PIECE_CODES)
        return CUDA_LAUNCH(scatter_vector, dim3((uint32_t)((n + threads - 1) / threads)), dim3(threads), 0, stream, s);
    if (d->m.store.format == KERN_EXL3) {
        uint64_t first = offset / 4, words = (offset + n + 3) / 4 - first;
        return CUDA_LAUNCH(scatter_trellis, dim3((uint32_t)((words + threads - 1) / threads)), dim3(threads), 0, stream,
                           s, first, words);
    }
    uint64_t row_bytes = row_bytes_of(d), first = offset / row_bytes, rows = (offset + n - 1) / row_bytes + 1 - first;
    uint64_t words = rows * ((row_bytes + 3) / 4);
    return CUDA_LAUNCH(scatter_codes, dim3((uint32_t)((words + threads - 1) / threads)), dim3(threads), 0, stream, s,
                       row_bytes, first, words);
}
