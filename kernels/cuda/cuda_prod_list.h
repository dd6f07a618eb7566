/* SPDX-License-Identifier: MIT */
/* cuda_prod_list.h: lists of products inside the backend, C++; host code. A list holds plain products (up all NULL), or
 * gates with what they are multiplied by. */
#ifndef GLMD_CUDA_PROD_LIST_H
#define GLMD_CUDA_PROD_LIST_H

#include "cuda_prod.cuh"

struct prod_list {
    uint32_t n, gated, items; /* items: bound of the items of jobs that have them */
    struct prod_job job[PROD_JOBS];
    const struct cuda_mat *m[PROD_JOBS], *up[PROD_JOBS];
};

/* What a job needs to know of its matrix, or two; the rest of it is the caller's. */
void prod_matrix(struct prod_job *j, const char *weights, const struct cuda_mat *m, const struct cuda_mat *second);
/* The table's rows through a gate, added to a list. */
void prod_gate_up(struct prod_list *l, const struct cuda_run *r, const struct cuda_mat *gate, const struct cuda_mat *up,
                  const uint16_t *x, uint32_t ldx, uint16_t *act, uint32_t ld_act);
/* One launch for each kind of kernel among the jobs. EXL3: x is transformed already, and outputs are not yet. */
cudaError_t prod_launch(const struct cuda_run *r, struct prod_list *l);
/* The products of a list, whatever their formats: transforms of EXL3 around them. */
cudaError_t prod_run(const struct cuda_run *r, struct prod_list *l);

/* ---- EXL3 (cuda_exl3.cu) ---- */

/* One matrix's inputs: x by entry, times suh, transformed, as F16, to had[entry][head]; behind each row of k_pad
 * numbers is the F32 factor that products of it are multiplied by. */
struct exl3_in {
    const uint16_t *x;
    uint32_t ldx, head_ldx, x_div, k, heads, head_suh; /* head_suh: numbers from a head's suh to the next one's */
    const uint16_t *suh;
    uint64_t stride; /* bytes, by expert */
    uint16_t *had;
};

/* Raw sums to outputs: sides are transformed where they have svh, gated where there are two. */
struct exl3_out {
    const float *raw[2]; /* [entry][heads][n]; NULL: where the outputs go */
    const uint16_t *svh[2]; /* NULL: no transform */
    uint64_t stride[2];
    uint32_t n, heads, head_svh, gated;
    float *out;
    uint16_t *out16;
    uint32_t ldo, ld_place, out_div, out_at, head_ldo;
    const uint32_t *place;
    const float *weight;
    float limit;
};

/* Entries: the table's rows, *count, or rows x n_top with their experts in top_id. */
struct exl3_rows {
    const struct cuda_step *step;
    uint32_t is_draft, per_row; /* entries of a row of the table */
    const uint32_t *count, *expert;
};

cudaError_t exl3_inputs(cudaStream_t s, const struct exl3_rows *rows, uint32_t bound, const struct exl3_in *in,
                        uint32_t n);
cudaError_t exl3_outputs(cudaStream_t s, const struct exl3_rows *rows, uint32_t bound, const struct exl3_out *out,
                         uint32_t n);

/* Numbers from a row of had to the next one. */
static inline uint32_t exl3_had_ld(uint32_t k) {
    return k + 8;
}

#endif
