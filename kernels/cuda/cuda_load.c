/* SPDX-License-Identifier: MIT */
/* cuda_load.c: windows of the checkpoint on their way to the device. A window is copied into a piece of pinned memory,
 * from there into one of device memory, and a kernel puts its bytes in their places; several threads do so at once,
 * each waiting for the piece whose turn it is. Small things that no product reads go straight to their places. */
#include "cuda_host.h"

#include <errno.h>

/* Where the bytes of a tensor's piece go. */
struct target {
    const struct cuda_mat *m[2]; /* products; a matrix cut among heads has two */
    uint64_t at;                 /* otherwise: as they are, or one of vector */
    bool vector;
};

static uint64_t conv_at(const struct cuda *c, uint32_t part, uint64_t conv) {
    return conv + (uint64_t)(part - KERN_KDA_QCONV) * c->l.d.kda_p * c->l.d.conv_width * sizeof(float);
}

static struct target of_vector(const struct cuda *c, const struct cuda_layer *x, uint32_t part) {
    uint64_t at = 0;
    switch (part) {
    case KERN_FINAL_NORM: at = c->l.final_norm; break;
    case KERN_IN_NORM: at = x->in_norm; break;
    case KERN_POST_NORM: at = x->post_norm; break;
    case KERN_HC_ATTN_BASE: at = x->hc_base[0]; break;
    case KERN_HC_ATTN_SCALE: at = x->hc_scale[0]; break;
    case KERN_HC_FFN_BASE: at = x->hc_base[1]; break;
    case KERN_HC_FFN_SCALE: at = x->hc_scale[1]; break;
    case KERN_KDA_QCONV:
    case KERN_KDA_KCONV:
    case KERN_KDA_VCONV: at = conv_at(c, part, x->conv); break;
    case KERN_KDA_A_LOG: at = x->a_log; break;
    case KERN_KDA_DT_BIAS: at = x->dt_bias; break;
    case KERN_KDA_O_NORM: at = x->o_norm; break;
    case KERN_MLA_QA_NORM: at = x->qa_norm; break;
    case KERN_MLA_KVA_NORM: at = x->kva_norm; break;
    case KERN_IDX_KNORM_W: at = x->knorm_w; break;
    case KERN_IDX_KNORM_B: at = x->knorm_b; break;
    case KERN_IDX_APE: at = x->ape; break;
    case KERN_ROUTER_BIAS: at = x->router_bias; break;
    case KERN_DRAFT_ENORM: at = x->enorm; break;
    case KERN_DRAFT_HNORM: at = x->hnorm; break;
    case KERN_DRAFT_NORM: at = x->draft_norm; break;
    default: break;
    }
    return (struct target){.at = at, .vector = true};
}

static const struct cuda_mat *mat_of(const struct cuda *c, const struct cuda_layer *x, uint32_t part) {
    switch (part) {
    case KERN_HEAD: return &c->l.head;
    case KERN_KDA_Q: return &x->q;
    case KERN_KDA_K: return &x->k;
    case KERN_KDA_V: return &x->v;
    case KERN_KDA_FA: return &x->fa;
    case KERN_KDA_FB: return &x->fb;
    case KERN_KDA_GA: return &x->ga;
    case KERN_KDA_GB: return &x->gb;
    case KERN_KDA_B: return &x->b;
    case KERN_KDA_O: return &x->kda_o;
    case KERN_MLA_QA: return &x->qa;
    case KERN_MLA_QB: return &x->qb;
    case KERN_MLA_KVA: return &x->kva;
    case KERN_MLA_KVB:
    case KERN_MLA_KB: return &x->uk;
    case KERN_MLA_VB: return &x->uv;
    case KERN_MLA_O: return &x->mla_o;
    case KERN_IDX_QB: return &x->idx_qb;
    case KERN_IDX_K: return &x->idx_k;
    case KERN_IDX_W: return &x->idx_w;
    case KERN_IDX_GATE: return &x->idx_gate;
    case KERN_MLP_GATE:
    case KERN_SH_GATE: return &x->gate;
    case KERN_MLP_UP:
    case KERN_SH_UP: return &x->up;
    case KERN_MLP_DOWN:
    case KERN_SH_DOWN: return &x->down;
    case KERN_EXP_GATE: return &x->exp_gate;
    case KERN_EXP_UP: return &x->exp_up;
    case KERN_EXP_DOWN: return &x->exp_down;
    case KERN_DRAFT_EH: return &x->eh;
    default: return NULL;
    }
}

static struct target of_matrix(const struct cuda *c, const struct cuda_layer *x, const struct kern_tensor_id *id) {
    const uint64_t embed[KERN_PIECES] = {c->l.embed, c->l.embed_scale, c->l.embed_global};
    struct target t = {.m = {mat_of(c, x, id->part)}};
    if (id->part == KERN_MLA_KVB)
        t.m[1] = &x->uv;
    if (id->part == KERN_IDX_W && cuda_is_plain(&x->idx_w.store))
        return (struct target){.at = x->idx_w.codes};
    if (t.m[0])
        return t;
    switch (id->part) {
    case KERN_EMBED: return (struct target){.at = embed[id->piece]};
    case KERN_HC_ATTN_FN: return (struct target){.at = x->hc_fn[0]};
    case KERN_HC_FFN_FN: return (struct target){.at = x->hc_fn[1]};
    case KERN_ROUTER: return (struct target){.at = x->router};
    default: return t;
    }
}

/* ---- moving --------------------------------------------------------------------------------------------- */

struct window {
    const struct kern_tensor_id *id;
    const struct kern_tensor *t;
    struct target to;
    uint64_t offset;
    const uint8_t *bytes;
    uint64_t n;
};

/* Two bytes of a number that is kept as F32 are its upper half; a window may begin or end inside a number. From the
 * first byte's place on they lie so that one copy puts them right: the lower halves between them are zero. F16 waits
 * there for cuda_pack_done(). */
static uint64_t spread(const struct window *w, uint8_t *to, uint64_t *ret_at) {
    const uint64_t first = w->offset / 2 * 4 + 2 + w->offset % 2;
    uint64_t end = 0;
    for (uint64_t i = 0; i < w->n; i++) {
        uint64_t at = w->offset + i, place = at / 2 * 4 + 2 + at % 2 - first;
        while (end < place)
            to[end++] = 0;
        to[place] = w->bytes[i];
        end = place + 1;
    }
    *ret_at = first;
    return end;
}

static cudaError_t scatter(struct cuda *c, const struct window *w, cudaStream_t s, const uint8_t *from) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    cudaError_t e = cudaSuccess;
    for (uint32_t i = 0; i < 2 && w->to.m[i] && e == cudaSuccess; i++) {
        struct cuda_dest d = {.m = *w->to.m[i],
                              .rows = w->t->rows,
                              .cols = w->t->cols,
                              .piece = w->id->piece,
                              .expert = w->id->expert};
        if (w->id->part == KERN_MLA_KVB) {
            d.kvb_nope = m->nope_dim;
            d.kvb_v = m->v_dim;
        }
        e = cuda_scatter(s, c->weights, &d, w->offset, from, w->n);
    }
    return e;
}

/* What fits into a piece of staging. Its lock is held. */
static cudaError_t through(struct cuda *c, const struct window *w, uint32_t turn) {
    char *ctl = c->k->mem[KERN_MEM_CTL].base, *work = c->k->mem[KERN_MEM_WORK].base;
    struct cuda_stage *s = &c->stage[turn];
    uint8_t *host = (uint8_t *)ctl + c->l.stage_host + (uint64_t)turn * CUDA_STAGE_BYTES;
    char *dev = work + c->l.stage_dev + (uint64_t)turn * CUDA_STAGE_BYTES;
    cudaError_t e = cudaEventSynchronize(s->done);
    if (e != cudaSuccess)
        return e;
    if (w->to.m[0]) {
        memcpy(host, w->bytes, w->n);
        e = cudaMemcpyAsync(dev, host, w->n, cudaMemcpyHostToDevice, s->stream);
        if (e == cudaSuccess)
            e = scatter(c, w, s->stream, (const uint8_t *)dev);
    } else {
        uint64_t at = w->offset, n = w->n;
        if (w->to.vector && w->t->store.format != KERN_F32)
            n = spread(w, host, &at);
        else
            memcpy(host, w->bytes, n);
        e = cudaMemcpyAsync(c->weights + w->to.at + at, host, n, cudaMemcpyHostToDevice, s->stream);
    }
    return e == cudaSuccess ? cudaEventRecord(s->done, s->stream) : e;
}

int cuda_pack(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
              const void *bytes, uint64_t n) {
    struct cuda *c = k->impl;
    const struct cuda_layer *x = &c->l.layer[id->layer];
    struct kern_part_info info;
    if (!kern_part_info(&k->cfg.model, id->part, id->layer, &info))
        return -ENOENT;
    struct window w = {.id = id, .t = t, .to = info.matrix ? of_matrix(c, x, id) : of_vector(c, x, id->part)};
    while (n) {
        uint32_t turn = atomic_fetch_add_explicit(&c->stage_turn, 1, memory_order_relaxed) % CUDA_STAGES;
        w.offset = offset;
        w.bytes = bytes;
        w.n = n < CUDA_STAGE_BYTES / 2 ? n : CUDA_STAGE_BYTES / 2; /* twice as many when spread */
        pthread_mutex_lock(&c->stage[turn].lock);
        cudaError_t e = through(c, &w, turn);
        pthread_mutex_unlock(&c->stage[turn].lock);
        if (e != cudaSuccess)
            return kern_error(k, "layer %u %s: its way to the device: %s", id->layer, kern_part_name(id->part),
                              cudaGetErrorString(e)),
                   -EIO;
        offset += w.n;
        bytes = (const char *)bytes + w.n;
        n -= w.n;
    }
    return 0;
}

int cuda_pack_done(struct kern *k) {
    struct cuda *c = k->impl;
    const struct kern_model_desc *m = &k->cfg.model;
    cudaError_t e = cudaSuccess;
    for (uint32_t i = 0; i < CUDA_STAGES && e == cudaSuccess; i++)
        e = cudaStreamSynchronize(c->stage[i].stream);
    for (uint32_t l = 0; l < kern_total_layers(m); l++)
        for (uint32_t part = 1; part < KERN_PART_END && e == cudaSuccess; part++) {
            const struct kern_tensor_id id = {.part = part, .layer = l};
            struct kern_part_info info;
            if (!kern_part_info(m, part, l, &info) || info.matrix || kern_packed_format(k, &id) != KERN_F16)
                continue;
            e = cuda_widen_halves(c->stream,
                                  (float *)(void *)(c->weights + of_vector(c, &c->l.layer[l], part).at),
                                  info.rows * info.cols);
        }
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(c->stream);
    return e == cudaSuccess ? 0 : cuda_lost(k, "packing", e);
}
