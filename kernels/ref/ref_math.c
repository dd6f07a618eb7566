/* SPDX-License-Identifier: MIT */
/* Products, norms and scalar functions of the oracle: double inside, F32 outside. */
#include <math.h>

#include "ref.h"

const uint16_t *ref_matrix(const struct ref *r, uint32_t part, uint32_t layer, uint32_t expert) {
    const struct kern_tensor_id id = {.part = part, .layer = layer, .expert = expert};
    return (const uint16_t *)(const void *)(r->weights + r->offset[kern_part_slot(r->m, &id)]);
}

const float *ref_vector(const struct ref *r, uint32_t part, uint32_t layer) {
    return (const float *)(const void *)ref_matrix(r, part, layer, 0);
}

/* Eight chains in a fixed pattern: the order depends on n only, and the adds need not wait for each other. */
#define DOT(widen)                                                                                           \
    double a[8] = {0};                                                                                       \
    uint64_t i = 0;                                                                                          \
    for (; i + 8 <= n; i += 8)                                                                               \
        for (int j = 0; j < 8; j++)                                                                          \
            a[j] += (double)widen(w[i + (uint64_t)j]) * (double)x[i + (uint64_t)j];                          \
    for (int j = 0; i < n; i++, j++)                                                                         \
        a[j] += (double)widen(w[i]) * (double)x[i];                                                          \
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]))

double ref_dot_bf16(const uint16_t *w, const float *x, uint64_t n) {
    DOT(host_f32);
}
double ref_dot(const float *w, const float *x, uint64_t n) {
    DOT();
}

double ref_sigmoid(double z) {
    /* exp of a negative number only */
    return z >= 0 ? 1.0 / (1.0 + exp(-z)) : exp(z) / (1.0 + exp(z));
}
double ref_silu(double z) {
    return z * ref_sigmoid(z);
}

void ref_linear(struct ref_ctx *x, uint32_t part, uint32_t expert, const float *in, float *out) {
    struct kern_part_info info = {0};
    uint32_t layer = x->layer;
    if (!kern_part_info(x->r->m, part, layer, &info))
        return;
    const uint16_t *w = ref_matrix(x->r, part, layer, expert);
    for (uint64_t o = 0; o < info.rows; o++)
        out[o] = (float)ref_dot_bf16(w + o * info.cols, in, info.cols);
    x->c->flops += 2 * info.rows * info.cols;
}

void ref_count(struct ref_ctx *x, uint32_t part, uint32_t layer) {
    struct kern_part_info info;
    if (kern_part_info(x->r->m, part, layer, &info))
        x->c->weight_bytes += info.rows * info.cols * (info.matrix ? 2 : 4);
}

void ref_rmsnorm(const float *in, const float *w, uint64_t n, float eps, float *out) {
    double s = 1.0 / sqrt(ref_dot(in, in, n) / (double)n + (double)eps);
    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)((double)in[i] * s * (double)w[i]);
}
