/* SPDX-License-Identifier: MIT */
/* cuda_head.cu: the rows that the plan samples, their product with the head, then the sampler (cuda_sample.cu). */
#include "cuda_launch.cuh"

#include "cuda_dev.h"
#include "cuda_ptx.cuh"

enum { HEAD_THREADS = 256, HEAD_EACH = 4 };

/* Blocks of a row take HEAD_THREADS x HEAD_EACH columns each: to[j] = the hidden state of the source's j-th sample,
 * place[j] its number in the plan. Columns behind `hidden` stay zero. The way to a number goes over three others, so
 * each thread goes it once. */
__global__ void __launch_bounds__(HEAD_THREADS) head_gather(const struct cuda_step *step, const float *from,
                                                            uint16_t *to, uint32_t *place, uint32_t hidden, uint32_t ld,
                                                            uint32_t source) {
    const struct kern_plan *p = (const struct kern_plan *)((const char *)step + step->plan);
    const struct kern_sample *all = (const struct kern_sample *)((const char *)p + p->samples);
    const uint32_t *index = (const uint32_t *)((const char *)step + step->samples[source]);
    const uint32_t first = blockIdx.x * HEAD_THREADS * HEAD_EACH + threadIdx.x;
    for (uint32_t j = blockIdx.y; j < step->n_samples[source]; j += gridDim.y) {
        const uint32_t at = index[j];
        if (!first) place[j] = at;
        const float *row = from + (uint64_t)all[at].row * hidden;
        float v[HEAD_EACH];
#pragma unroll
        for (uint32_t i = 0; i < HEAD_EACH; i++)
            v[i] = first + i * HEAD_THREADS < hidden ? row[first + i * HEAD_THREADS] : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < HEAD_EACH; i++)
            if (first + i * HEAD_THREADS < hidden) to[(uint64_t)j * ld + first + i * HEAD_THREADS] = ptx_f32_bf16(v[i]);
    }
}

extern "C" cudaError_t cuda_head(const struct cuda_run *r, const struct cuda_mat *head, uint32_t source) {
    const struct cuda_lane *l = r->lane;
    struct cuda_run run = *r;
    uint32_t *place = (uint32_t *)l->sampling; /* nothing of it is alive before the sampler */
    run.rows = min(r->rows, r->max_samples);
    if (!run.rows) return cudaSuccess;
    const float *from = source == KERN_SOURCE_DRAFT ? l->draft_f : l->hidden_f;
    const dim3 grid((r->d->hidden + HEAD_THREADS * HEAD_EACH - 1) / (HEAD_THREADS * HEAD_EACH), min(run.rows, 65535u));
    cudaError_t e = CUDA_LAUNCH(head_gather, grid, dim3(HEAD_THREADS), 0, r->stream, l->step, from, l->head_in, place,
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
