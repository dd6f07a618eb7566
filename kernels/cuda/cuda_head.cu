/* SPDX-License-Identifier: MIT */
/* cuda_head.cu: the rows that the plan samples, their product with the head, then the sampler (cuda_sample.cu). */
#include "cuda_launch.cuh"

#include "cuda_dev.h"
#include "cuda_ptx.cuh"

/* A block a row: to[j] = the hidden state of the source's j-th sample, place[j] its number in the plan. Columns behind
 * `hidden` stay zero. */
__global__ void __launch_bounds__(256) head_gather(const struct cuda_step *step, const float *from, uint16_t *to,
                                                   uint32_t *place, uint32_t hidden, uint32_t ld, uint32_t source) {
    const struct kern_plan *p = (const struct kern_plan *)((const char *)step + step->plan);
    const struct kern_sample *all = (const struct kern_sample *)((const char *)p + p->samples);
    const uint32_t *index = (const uint32_t *)((const char *)step + step->samples[source]);
    for (uint32_t j = blockIdx.x; j < step->n_samples[source]; j += gridDim.x) {
        if (!threadIdx.x) place[j] = index[j];
        const float *row = from + (uint64_t)all[index[j]].row * hidden;
        for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x) to[(uint64_t)j * ld + i] = ptx_f32_bf16(row[i]);
    }
}

extern "C" cudaError_t cuda_head(const struct cuda_run *r, const struct cuda_mat *head, uint32_t source) {
    const struct cuda_lane *l = r->lane;
    struct cuda_run run = *r;
    uint32_t *place = (uint32_t *)l->sampling; /* nothing of it is alive before the sampler */
    run.rows = min(r->rows, r->max_samples);
    if (!run.rows) return cudaSuccess;
    const float *from = source == KERN_SOURCE_DRAFT ? l->draft_f : l->hidden_f;
    cudaError_t e = CUDA_LAUNCH(head_gather, dim3(run.rows), dim3(256), 0, r->stream, l->step, from, l->head_in, place,
                                r->d->hidden, r->d->hidden_pad, source);
    if (e) return e;
    struct cuda_prod p = {};
    p.m = head;
    p.x = l->head_in;
    p.ldx = r->d->hidden_pad;
    p.out = l->logits;
    p.ldo = r->d->vocab_rows;
    p.count = &l->step->n_samples[source];
    p.place = place;
    e = cuda_products(&run, &p, 1);
    return e ? e : cuda_sample(r, source);
}
