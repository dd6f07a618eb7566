/* SPDX-License-Identifier: MIT */
/* cudaprod.h: what tests of the CUDA backend's products share: a lane for products alone, the way of a matrix's bytes
 * to the device, and numbers to compare with. One includer a program; everything aborts the test on failure. */
#ifndef GLMD_TEST_CUDAPROD_H
#define GLMD_TEST_CUDAPROD_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_dev.h"
#include "host.h"
#include "kernstores.h"

#define OK(call) ck_assert_msg((call) == cudaSuccess, "%s", #call)

enum { MOST = 21, PAD = 64 };

static struct km_rng rng;
static struct cuda_dims dims;
static struct cuda_lane lane;
static struct cuda_run run;
static struct cuda_layer layer;
static struct cuda_mid mid;
static char *weights;

static inline uint32_t padded(uint32_t n, uint32_t to) {
    return (n + to - 1) / to * to;
}

static inline void *device(uint64_t bytes) {
    void *p;
    OK(cudaMalloc(&p, bytes ? bytes : 1));
    OK(cudaMemset(p, 0, bytes ? bytes : 1));
    return p;
}

static inline void *back(const void *p, uint64_t bytes) {
    void *h = malloc(bytes);
    ck_assert_ptr_nonnull(h);
    OK(cudaMemcpy(h, p, bytes, cudaMemcpyDeviceToHost));
    return h;
}

static inline void set_rows(uint32_t bound, uint32_t n) {
    struct cuda_step s = {.n_rows = {n, 0}};
    OK(cudaMemcpy(lane.step, &s, sizeof(s), cudaMemcpyHostToDevice));
    run.rows = bound;
}

/* A lane for products alone: a step, and room for transforms. */
static inline void begin(uint64_t seed) {
    uint64_t had, raw;
    rng.s = seed;
    memset(&dims, 0, sizeof(dims));
    memset(&lane, 0, sizeof(lane));
    memset(&run, 0, sizeof(run));
    dims.hidden = 1024;
    dims.mla_heads = 8;
    dims.nope = dims.kv_rank = dims.v_dim = 128;
    dims.dense_width = dims.expert_width = dims.shared_width = 256;
    dims.n_top = 3;
    cuda_around_room(&dims, MOST, &had, &raw);
    lane.step = device(sizeof(struct cuda_step));
    lane.had = device(had);
    lane.had_out = device(raw);
    run.d = &dims;
    run.lane = &lane;
    run.layer = &layer;
    run.mid = &mid;
    run.max_rows = MOST;
}

static inline void end(void) {
    OK(cudaFree(lane.step));
    OK(cudaFree(lane.had));
    OK(cudaFree(lane.had_out));
}

/* ---- matrices --------------------------------------------------------------------------------------------- */

/* One piece, in windows that begin and end anywhere, last ones first. */
static inline void scatter(char *to, const struct cuda_dest *d, const uint8_t *bytes, uint64_t n) {
    uint8_t *from = device(n + 16);
    for (uint64_t at = n; at > 0;) {
        uint64_t size = 1 + km_below(&rng, 5000), shift = km_below(&rng, 16);
        size = size < at ? size : at;
        at -= size;
        OK(cudaMemcpy(from + shift, bytes + at, size, cudaMemcpyHostToDevice));
        OK(cuda_scatter(NULL, to, d, at, from + shift, size));
        OK(cudaStreamSynchronize(NULL));
    }
    OK(cudaFree(from));
}

/* All pieces of a tensor [rows, cols] to a matrix at `to`; nope, v: kv_b, of which m is one half. */
static inline void pack(char *to, const struct cuda_mat *m, uint32_t expert, uint32_t nope, uint32_t v, uint64_t rows,
                 uint64_t cols, uint8_t *const piece[KERN_PIECES]) {
    for (uint32_t i = 0; i < KERN_PIECES; i++) {
        struct kern_piece_info p;
        ck_assert_int_eq(kern_store_piece(&m->store, rows, cols, (enum kern_piece)i, &p), 0);
        const struct cuda_dest d = {
            .m = *m, .rows = rows, .cols = cols, .piece = i, .expert = expert, .kvb_nope = nope, .kvb_v = v};
        if (p.rows)
            scatter(to, &d, piece[i], p.rows * p.row_bytes);
    }
}

static inline void free_pieces(uint8_t *piece[KERN_PIECES]) {
    for (uint32_t i = 0; i < KERN_PIECES; i++)
        free(piece[i]);
}

/* A matrix at an offset of the weights. */
static inline void move(struct cuda_mat *m, uint64_t by) {
    m->codes += by;
    m->scale += by;
    m->global += by;
    m->suh += by;
    m->svh += by;
}

static inline uint16_t *rows_of(uint32_t rows, uint32_t ld, uint32_t k, float dev) {
    uint16_t *x = calloc((size_t)rows * ld, sizeof(*x));
    ck_assert_ptr_nonnull(x);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < k; i++)
            x[(size_t)r * ld + i] = host_bf16(dev * km_normal(&rng));
    return x;
}

/* Of two vectors: the length of the difference to the length of what it should be. */
struct error {
    double diff, norm;
};
static inline void count(struct error *e, double got, double want) {
    e->diff += (got - want) * (got - want);
    e->norm += want * want;
}
static inline void small(const struct error *e, double most, const char *what) {
    double r = sqrt(e->diff / e->norm);
    ck_assert_msg(r <= most, "%s: relative error %g, at most %g", what, r, most);
}

static inline double dot(const float *w, const uint16_t *x, uint32_t k) {
    double sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += (double)w[i] * (double)host_f32(x[i]);
    return sum;
}

#endif
