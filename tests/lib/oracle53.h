/* SPDX-License-Identifier: MIT */
/* A scalar oracle for GLM-5.3, for tests: double precision, plain loops, every token of a sequence computed
 * anew at every call. No cache, no pages, no program and nothing of kernels/ stands behind it: written from
 * the model's description, so that what a backend computes can be compared with something that shares no line
 * with it. Any thread. Failures of memory end the program. */
#ifndef GLMD_TEST_ORACLE53_H
#define GLMD_TEST_ORACLE53_H

#include <stdint.h>

/* Names as in config.json where it has one. */
struct o53_dims {
    uint32_t vocab, hidden, layers, heads;
    uint32_t q_lora, kv_lora, nope, rope, v;
    uint32_t index_heads, index_dim, index_topk, index_freq, index_offset;
    uint32_t dense_layers, dense_width;
    uint32_t experts, active, moe_width;
    double theta, eps, routed_scale;
};

struct o53_tensor {
    char name[104];
    uint32_t rows, cols; /* a vector has one row */
    double *v;           /* what the stored numbers mean, row-major */
};

struct o53_model {
    struct o53_dims d;
    struct o53_tensor *t;
    uint32_t n;
};

/* What one sequence of n ids gives. Whoever gets it calls oracle53_done(). */
struct o53_out {
    uint32_t n;
    double *logits; /* [n][vocab] */
    double *draft;  /* [n-1][vocab]: entry i is made of position i and id i+1, and speaks of id i+2 */
    double *hidden; /* [layers+1][n][hidden]: what enters each layer; last the head's normalised input */
    /* How far the nearest decision was from going the other way: the smallest distance between the last
     * chosen and the first refused, over the largest score of the row. Two correct programs may differ below
     * about 1e-5. Equal scores (no head of the index sees anything: exactly 0) count as far apart: a rule
     * decides. */
    double index_gap, router_gap;
    uint32_t sparse_rows; /* rows of a full layer for which something was refused */
};

const struct o53_tensor *oracle53_find(const struct o53_model *m, const char *name); /* ends the program */
void oracle53_run(const struct o53_model *m, const int32_t *ids, uint32_t n, struct o53_out *ret);
void oracle53_done(struct o53_out *o);

/* True when trunk layer i makes its own list. */
int oracle53_full(const struct o53_dims *d, uint32_t i);

/* The pieces with answers known in closed form. */
void oracle53_rope(double *x, uint32_t dim, uint32_t pos, double theta);
void oracle53_rmsnorm(const double *x, const double *w, uint32_t n, double eps, double *ret);
/* ret[i] = 1 for the chosen of n scores; returns the gap described above, 1 when all are chosen. */
double oracle53_select(const double *score, uint32_t n, uint32_t topk, uint8_t *ret);
double oracle53_route(const struct o53_dims *d, const double *logit, const double *bias, uint32_t *ret_id,
                      double *ret_weight);

#endif
