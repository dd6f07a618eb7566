/* SPDX-License-Identifier: MIT */
/* cuda_graph.c: programs as graphs. A program is captured once for each row class of its lane, before the first launch;
 * a plan of few rows launches the graph that was made for few. Kernels read the true number of rows, so what a row
 * gives does not depend on the class. */
#include "cuda_host.h"

#include <errno.h>

/* Decode: doubling from 8, because a step of few rows must not pay for the blocks of many. Prefill: by fours. A class
 * bounds the samples of a source, too. */
void cuda_classes(struct cuda *c) {
    for (uint32_t lane = 0; lane < KERN_LANES; lane++) {
        const struct kern_config *cfg = &c->k->cfg;
        const uint32_t most = cfg->max_rows[lane] > cfg->max_samples ? cfg->max_rows[lane] : cfg->max_samples;
        uint32_t rows = lane == KERN_LANE_DECODE ? 8 : KERN_GRID, n = 0;
        while (rows < most && n < CUDA_CLASSES - 1) {
            c->class_rows[lane][n++] = rows;
            rows *= lane == KERN_LANE_DECODE ? 2 : 4;
        }
        c->class_rows[lane][n++] = most;
        c->n_classes[lane] = n;
    }
}

uint32_t cuda_class_of(const struct cuda *c, uint32_t lane, uint32_t rows) {
    uint32_t i = 0;
    while (c->class_rows[lane][i] < rows)
        i++;
    return i;
}

struct cuda_run cuda_run_of(const struct cuda *c, uint32_t lane, uint32_t rows) {
    return (struct cuda_run){.stream = c->stream,
                             .weights = c->weights,
                             .slots = c->slots,
                             .pages = c->pages,
                             .last = c->last,
                             .d = &c->l.d,
                             .z = &c->l.mix.z,
                             .mid = &c->l.mix.mid,
                             .lane = &c->l.lane[lane],
                             .rows = rows,
                             .max_rows = c->k->cfg.max_rows[lane],
                             .max_samples = c->k->cfg.max_samples,
                             .attn_splits = c->l.mix.attn_splits,
                             .attn_tile = c->l.mix.attn_tile,
                             .hc_splits = c->l.hc_splits,
                             .y_parts = c->l.y_parts,
                             .wide_ld = c->l.mix.wide_ld};
}

/* ---- stages --------------------------------------------------------------------------------------------- */

static const struct kern_store *embed_store(const struct cuda *c, struct kern_store *buf) {
    const struct kern_tensor_id id = {.part = KERN_EMBED};
    *buf = kern_matrix_store(&c->k->cfg, &id);
    return buf;
}

/* How many parts of y the site adds up. */
static uint32_t parts_of(const struct cuda *c, const struct kern_stage *s) {
    if (s->arg == KERN_SITE_ATTN || c->k->cfg.model.layer[s->layer].mlp != KERN_MLP_MOE)
        return 1;
    return c->l.d.n_top + (c->l.d.n_shared > 0);
}

/* Does s, a site's end, lie right before the begin of another, whose products can be made while the streams are at
 * hand? */
static bool feeds(const struct cuda *c, const struct kern_stage *s, const struct kern_stage *next) {
    const uint32_t trunk = c->k->cfg.model.n_layers;
    return next && s->op == KERN_OP_SITE_OUT && next->op == KERN_OP_SITE_IN &&
           (s->layer < trunk) == (next->layer < trunk);
}

/* next: the stage behind it in the program, or NULL; fed: the one before has made its partial products. */
static cudaError_t enqueue(struct cuda *c, struct cuda_run *r, const struct kern_stage *s,
                           const struct kern_stage *next, bool fed) {
    struct kern_store buf;
    r->layer = &c->l.layer[s->layer];
    r->desc = &c->k->cfg.model.layer[s->layer];
    r->is_draft = s->layer >= c->k->cfg.model.n_layers;
    switch ((enum kern_stage_op)s->op) {
    case KERN_OP_EMBED:
        return cuda_embed(r, c->l.embed, embed_store(c, &buf), c->l.embed_scale, c->l.embed_global);
    case KERN_OP_SITE_IN:
        return cuda_site_in(r, s->arg, fed);
    case KERN_OP_MIX:
        return r->desc->mix == KERN_MIX_KDA ? cuda_kda(r) : cuda_mla(r);
    case KERN_OP_MLP:
        return r->desc->mlp == KERN_MLP_MOE ? cuda_moe(r) : cuda_dense(r);
    case KERN_OP_SITE_OUT:
        return feeds(c, s, next) ? cuda_site_out(r, parts_of(c, s), &c->l.layer[next->layer], next->arg)
                                 : cuda_site_out(r, parts_of(c, s), NULL, 0);
    case KERN_OP_FINAL:
        return cuda_final(r, c->l.final_norm);
    case KERN_OP_DRAFT_IN:
        return cuda_draft_in(r, c->l.embed, embed_store(c, &buf), c->l.embed_scale, c->l.embed_global);
    case KERN_OP_DRAFT_OUT:
        return cuda_draft_out(r);
    case KERN_OP_HEAD:
        return cuda_head(r, &c->l.head, s->arg);
    }
    return cudaErrorInvalidValue;
}

/* ---- capture -------------------------------------------------------------------------------------------- */

static cudaError_t record(struct cuda *c, const struct kern_prog *prog, uint32_t rows,
                          const struct kern_stage **ret_at) {
    const struct kern_stage *first = &c->k->stages[prog->first];
    struct cuda_run r = cuda_run_of(c, prog->lane, rows);
    cudaError_t e = cudaSuccess;
    for (uint32_t i = 0; i < prog->n && e == cudaSuccess; i++) {
        *ret_at = &first[i];
        e = enqueue(c, &r, &first[i], i + 1 < prog->n ? &first[i + 1] : NULL,
                    i > 0 && feeds(c, &first[i - 1], &first[i]));
    }
    return e;
}

static cudaError_t make(struct cuda *c, const struct kern_prog *prog, uint32_t rows, cudaGraphExec_t *ret,
                        const struct kern_stage **ret_at) {
    cudaGraph_t graph = NULL;
    /* relaxed: the first use of a kernel loads it, which is no call of ours */
    cudaError_t e = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed), end;
    if (e != cudaSuccess)
        return e;
    e = record(c, prog, rows, ret_at);
    end = cudaStreamEndCapture(c->stream, &graph);
    e = e == cudaSuccess ? end : e;
    if (e == cudaSuccess)
        e = cudaGraphInstantiate(ret, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    /* its way to the device is part of capturing: a launch must find it there */
    return e == cudaSuccess ? cudaGraphUpload(*ret, c->stream) : e;
}

int cuda_capture(struct kern *k, const struct kern_prog *prog) {
    struct cuda *c = k->impl;
    struct cuda_prog *x = &c->progs[prog - k->progs];
    const struct kern_stage *at = NULL;
    memset(x, 0, sizeof(*x));
    for (uint32_t i = 0; i < prog->n; i++)
        cuda_cost_stage(c, &k->stages[prog->first + i], &x->cost);
    for (uint32_t i = 0; i < c->n_classes[prog->lane]; i++) {
        cudaError_t e = make(c, prog, c->class_rows[prog->lane][i], &x->exec[i], &at);
        if (e == cudaSuccess)
            continue;
        kern_error(k, "a program of lane %u for %u rows cannot be captured: stage %u of layer %u: %s", prog->lane,
                   c->class_rows[prog->lane][i], at ? at->op : 0u, at ? at->layer : 0u, cudaGetErrorString(e));
        (void)cudaGetLastError();
        for (; i + 1 > 0 && i < CUDA_CLASSES; i--)
            if (x->exec[i])
                (void)cudaGraphExecDestroy(x->exec[i]);
        memset(x->exec, 0, sizeof(x->exec));
        return e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
    }
    return 0;
}
