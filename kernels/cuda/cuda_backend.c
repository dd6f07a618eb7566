/* SPDX-License-Identifier: MIT */
/* cuda_backend.c: the CUDA backend behind kern.h: opening, launches and waits, slots, pages, peeks. One thread calls
 * everything but pack. A launch enqueues a graph; the wait sleeps on the event behind it. Nothing is allocated or
 * captured after the first launch. */
#include "cuda_host.h"

#include <errno.h>
#include <stdio.h>

static int query(const struct kern_config *cfg, uint32_t vocab_rows, uint64_t bytes[KERN_MEM_N], char *err,
                 size_t err_len) {
    struct cuda_layout l;
    int r = cuda_device_check(err, err_len);
    if (!r)
        r = cuda_layout(cfg, vocab_rows, NULL, &l, err, err_len);
    if (r)
        return r;
    bytes[KERN_MEM_CTL] = l.ctl_bytes;
    bytes[KERN_MEM_WEIGHTS] = l.weight_bytes;
    bytes[KERN_MEM_PAGES] = l.d.page_bytes * cfg->n_pages;
    bytes[KERN_MEM_SLOTS] = l.d.slot_bytes * cfg->n_slots;
    bytes[KERN_MEM_WORK] = l.work_bytes;
    return 0;
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static cudaError_t make_stream(struct cuda *c, cudaStream_t *ret) {
    cudaError_t e = cudaStreamCreateWithFlags(ret, cudaStreamNonBlocking);
    c->streams_made += e == cudaSuccess;
    return e;
}

static cudaError_t make_event(cudaEvent_t *ret) {
    return cudaEventCreateWithFlags(ret, cudaEventBlockingSync | cudaEventDisableTiming);
}

/* Streams and events, in the order in which close gives them back. */
static cudaError_t make_things(struct cuda *c) {
    cudaError_t e = make_stream(c, &c->stream);
    for (uint32_t i = 0; i < KERN_LANES && e == cudaSuccess; i++) {
        e = make_event(&c->done[i]);
        c->events_made += e == cudaSuccess;
    }
    for (uint32_t i = 0; i < CUDA_STAGES && e == cudaSuccess; i++) {
        e = make_stream(c, &c->stage[i].stream);
        if (e == cudaSuccess)
            e = make_event(&c->stage[i].done);
        c->stages_made += e == cudaSuccess;
    }
    return e;
}

static void give_back(struct cuda *c) {
    for (uint32_t i = 0; i < c->stages_made; i++)
        (void)cudaEventDestroy(c->stage[i].done);
    for (uint32_t i = 0; i + 1 < c->streams_made; i++)
        (void)cudaStreamDestroy(c->stage[i].stream);
    for (uint32_t i = 0; i < c->events_made; i++)
        (void)cudaEventDestroy(c->done[i]);
    if (c->streams_made)
        (void)cudaStreamDestroy(c->stream);
}

/* The paddings of weights and activations are zero from here on; states and pages hold no numbers of others. */
static cudaError_t clear(struct cuda *c) {
    const struct kern *k = c->k;
    const struct cuda_layout *l = &c->l;
    cudaError_t e = cudaMemsetAsync(c->weights, 0, l->weight_bytes, c->stream);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(c->pages, 0, l->d.page_bytes * k->cfg.n_pages, c->stream);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(c->slots, 0, l->d.slot_bytes * k->cfg.n_slots, c->stream);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(k->mem[KERN_MEM_WORK].base, 0, l->work_bytes, c->stream);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(c->last, 0xff, k->cfg.n_slots * sizeof(uint32_t), c->stream); /* KERN_NONE */
    return e == cudaSuccess ? cudaStreamSynchronize(c->stream) : e;
}

/* Pinned memory has an address on the device of its own where the two do not share one. */
static cudaError_t map_results(struct cuda *c) {
    cudaError_t e = cudaSuccess;
    for (uint32_t i = 0; i < KERN_LANES && e == cudaSuccess; i++) {
        void *results = NULL, *report = NULL;
        e = cudaHostGetDevicePointer(&results, c->k->results[i], 0);
        if (e == cudaSuccess)
            e = cudaHostGetDevicePointer(&report, c->report[i], 0);
        c->l.lane[i].results = results;
        c->l.lane[i].report = report;
    }
    return e;
}

static void place(struct cuda *c) {
    char *ctl = c->k->mem[KERN_MEM_CTL].base, *work = c->k->mem[KERN_MEM_WORK].base;
    c->weights = c->k->mem[KERN_MEM_WEIGHTS].base;
    c->pages = c->k->mem[KERN_MEM_PAGES].base;
    c->slots = c->k->mem[KERN_MEM_SLOTS].base;
    c->last = (uint32_t *)(void *)(work + c->l.last);
    c->progs = (struct cuda_prog *)(void *)(ctl + c->l.progs);
    c->seen = (uint8_t *)ctl + c->l.seen;
    for (uint32_t i = 0; i < KERN_LANES; i++) {
        c->upload[i] = (struct cuda_step *)(void *)(ctl + c->l.upload[i]);
        c->report[i] = (struct cuda_report *)(void *)(ctl + c->l.reports) + i;
        c->l.lane[i].step = (struct cuda_step *)(void *)(work + c->l.step[i]);
    }
    cuda_classes(c);
}

static int open_cuda(struct kern *k, char *err, size_t err_len) {
    char *work = k->mem[KERN_MEM_WORK].base;
    char *ctl = k->mem[KERN_MEM_CTL].base;
    struct cuda *c = (struct cuda *)(void *)(ctl + cuda_pad(kern_ctl_bytes(&k->cfg), 256));
    struct cudaDeviceProp prop;
    memset(c, 0, sizeof(*c));
    c->k = k;
    int r = cuda_layout(&k->cfg, k->whole.vocab_rows, work, &c->l, err, err_len);
    if (r)
        return r;
    place(c);
    cudaError_t e = make_things(c);
    if (e == cudaSuccess)
        e = map_results(c);
    if (e == cudaSuccess)
        e = clear(c);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&prop, 0);
    if (e != cudaSuccess) {
        snprintf(err, err_len, "device: opening it failed: %s", cudaGetErrorString(e));
        give_back(c);
        return -EIO;
    }
    for (uint32_t i = 0; i < CUDA_STAGES; i++)
        pthread_mutex_init(&c->stage[i].lock, NULL);
    snprintf(k->name, sizeof(k->name), "cuda/sm_%d%d", prop.major, prop.minor);
    k->impl = c;
    return 0;
}

static void close_cuda(struct kern *k) {
    struct cuda *c = k->impl;
    (void)cudaStreamSynchronize(c->stream); /* the blocks are given back next */
    for (uint32_t i = 0; i < CUDA_STAGES; i++) {
        (void)cudaStreamSynchronize(c->stage[i].stream);
        pthread_mutex_destroy(&c->stage[i].lock);
    }
    for (uint32_t i = 0; i < k->n_progs; i++)
        for (uint32_t j = 0; j < CUDA_CLASSES; j++)
            if (c->progs[i].exec[j])
                (void)cudaGraphExecDestroy(c->progs[i].exec[j]);
    give_back(c);
    k->impl = NULL;
}

static char *slot_of(const struct cuda *c, uint32_t slot) {
    return c->slots + slot * c->l.d.slot_bytes;
}

/* ---- running -------------------------------------------------------------------------------------------- */

/* All layers at once: a draft layer that is not run must not keep another sequence's ring. */
static cudaError_t reset_slot(struct cuda *c, uint32_t slot) {
    cudaError_t e = cudaMemsetAsync(c->last + slot, 0xff, sizeof(uint32_t), c->stream);
    if (e == cudaSuccess && c->l.slot_bytes)
        e = cudaMemsetAsync(slot_of(c, slot), 0, c->l.slot_bytes, c->stream);
    return e;
}

static int plan_load(struct kern *k, uint32_t lane) {
    struct cuda *c = k->impl;
    const struct kern_plan *p = k->plan[lane];
    cudaError_t e = cudaSuccess;
    if (c->uploading[lane]) /* a plan that was never waited for may still be on its way */
        e = cudaStreamSynchronize(c->stream);
    c->uploading[lane] = true;
    *c->report[lane] = (struct cuda_report){.experts = 0};
    c->moe_bytes[lane] = 0;
    c->moe_stages[lane] = 0;
    uint64_t bytes = cuda_step_make(c, lane);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(c->l.lane[lane].step, c->upload[lane], bytes, cudaMemcpyHostToDevice, c->stream);
    for (uint32_t i = 0; i < p->n_seqs && e == cudaSuccess; i++)
        if (plan_seqs(p)[i].flags & KERN_SEQ_RESET)
            e = reset_slot(c, plan_seqs(p)[i].slot);
    return e == cudaSuccess ? 0 : cuda_lost(k, "loading a plan", e);
}

static int launch(struct kern *k, const struct kern_prog *prog) {
    struct cuda *c = k->impl;
    const struct kern_plan *p = k->plan[prog->lane];
    const uint32_t class = cuda_class_of(c, prog->lane, p->n_rows > p->n_samples ? p->n_rows : p->n_samples);
    cudaError_t e = cudaGraphLaunch(c->progs[prog - k->progs].exec[class], c->stream);
    if (e == cudaSuccess)
        e = cudaEventRecord(c->done[prog->lane], c->stream);
    if (e != cudaSuccess)
        return cuda_lost(k, "launching a program", e);
    cuda_count_launch(c, prog);
    return 0;
}

static int wait_lane(struct kern *k, uint32_t lane) {
    struct cuda *c = k->impl;
    const struct kern_plan *p = k->plan[lane];
    cudaError_t e = cudaEventSynchronize(c->done[lane]);
    if (e != cudaSuccess)
        return cuda_lost(k, lane == KERN_LANE_DECODE ? "a decode step" : "a piece of a prompt", e);
    c->uploading[lane] = false;
    for (uint32_t i = 0; i < p->n_samples; i++)
        host_sample_keep(k, p, i, &k->results[lane][i]);
    cuda_count_done(c, lane);
    return 0;
}

/* ---- state ---------------------------------------------------------------------------------------------- */

/* Copies and waits: the caller's memory is not pinned, and it may do with it what it likes afterwards. */
static int copy(struct kern *k, const char *what, void *dst, const void *src, uint64_t n, enum cudaMemcpyKind kind) {
    struct cuda *c = k->impl;
    cudaError_t e = cudaMemcpyAsync(dst, src, n, kind, c->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(c->stream);
    return e == cudaSuccess ? 0 : cuda_lost(k, what, e);
}

static uint64_t slot_bytes(const struct kern *k) {
    return ((const struct cuda *)k->impl)->l.slot_bytes;
}

/* Of the tail rings only the incomplete pool belongs to the state; the rest is what older positions or rejected drafts
 * left behind, and would make equal states look different. */
static int slot_read(struct kern *k, uint32_t slot, void *dst) {
    const struct cuda *c = k->impl;
    const struct kern_model_desc *m = &k->cfg.model;
    const uint64_t two = 2 * (uint64_t)m->index_dim * sizeof(float);
    const uint32_t pos = k->slots[slot].pos;
    int r = c->l.slot_bytes
                ? copy(k, "reading a slot", dst, slot_of(c, slot), c->l.slot_bytes, cudaMemcpyDeviceToHost)
                : 0;
    for (uint32_t l = 0; l < kern_total_layers(m) && !r; l++) {
        if (m->layer[l].index != KERN_INDEX_FULL || m->index_kpool == 1)
            continue;
        for (uint32_t i = 0; i < KERN_TAIL_RING; i++) {
            uint32_t age = (pos - 1 - i) % KERN_TAIL_RING; /* 0: the newest position */
            if (age >= pos % m->index_kpool)
                memset((char *)dst + c->l.layer[l].ring + i * two, 0, two);
        }
    }
    return r;
}

static int slot_write(struct kern *k, uint32_t slot, const void *src) {
    const struct cuda *c = k->impl;
    int r = c->l.slot_bytes
                ? copy(k, "writing a slot", slot_of(c, slot), src, c->l.slot_bytes, cudaMemcpyHostToDevice)
                : 0;
    return r ? r
             : copy(k, "writing a slot", c->last + slot, &k->slots[slot].last, sizeof(uint32_t),
                    cudaMemcpyHostToDevice);
}

static int slot_copy(struct kern *k, uint32_t dst, uint32_t src) {
    const struct cuda *c = k->impl;
    cudaError_t e = c->l.slot_bytes ? cudaMemcpyAsync(slot_of(c, dst), slot_of(c, src), c->l.slot_bytes,
                                                      cudaMemcpyDeviceToDevice, c->stream)
                                    : cudaSuccess;
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(c->last + dst, c->last + src, sizeof(uint32_t), cudaMemcpyDeviceToDevice, c->stream);
    return e == cudaSuccess ? 0 : cuda_lost(k, "copying a slot", e);
}

static char *page_of(const struct kern *k, uint32_t page) {
    const struct cuda *c = k->impl;
    return c->pages + page * c->l.d.page_bytes;
}

static uint64_t page_bytes(const struct kern *k) {
    return ((const struct cuda *)k->impl)->l.d.page_bytes;
}

static int page_copy(struct kern *k, uint32_t dst, uint32_t src) {
    const struct cuda *c = k->impl;
    cudaError_t e =
        cudaMemcpyAsync(page_of(k, dst), page_of(k, src), page_bytes(k), cudaMemcpyDeviceToDevice, c->stream);
    return e == cudaSuccess ? 0 : cuda_lost(k, "copying a page", e);
}

static int page_read(struct kern *k, uint32_t page, void *dst) {
    return copy(k, "reading a page", dst, page_of(k, page), page_bytes(k), cudaMemcpyDeviceToHost);
}

static int page_write(struct kern *k, uint32_t page, const void *src) {
    return copy(k, "writing a page", page_of(k, page), src, page_bytes(k), cudaMemcpyHostToDevice);
}

static int peek(struct kern *k, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n, float *dst) {
    const struct cuda *c = k->impl;
    const struct cuda_lane *x = &c->l.lane[lane];
    uint64_t width = c->l.d.hidden;
    const float *from = NULL;
    switch (what) {
    case KERN_PEEK_STREAMS:
        from = x->streams;
        width *= c->l.d.hc;
        break;
    case KERN_PEEK_HIDDEN:
        from = x->hidden_f;
        break;
    case KERN_PEEK_DRAFT:
        from = x->draft_f;
        break;
    case KERN_PEEK_LOGITS:
        from = x->logits;
        width = c->l.d.vocab_rows;
        break;
    }
    if (!from)
        return -EINVAL;
    return n ? copy(k, "reading activations", dst, from + row0 * width, n * width * sizeof(float),
                    cudaMemcpyDeviceToHost)
             : 0;
}

const struct kern_backend kern_cuda_backend = {
    .name = "cuda",
    .formats = 1u << KERN_F32 | 1u << KERN_BF16 | 1u << KERN_F16 | 1u << KERN_FP8 | 1u << KERN_NVFP4 |
               1u << KERN_INT8 | 1u << KERN_EXL3,
    .query = query,
    .open = open_cuda,
    .close = close_cuda,
    .pack = cuda_pack,
    .pack_done = cuda_pack_done,
    .capture = cuda_capture,
    .plan_load = plan_load,
    .launch = launch,
    .wait = wait_lane,
    .slot_bytes = slot_bytes,
    .slot_read = slot_read,
    .slot_write = slot_write,
    .slot_copy = slot_copy,
    .page_copy = page_copy,
    .page_bytes = page_bytes,
    .page_read = page_read,
    .page_write = page_write,
    .peek = peek,
    .mem_alloc = cuda_mem_alloc,
    .mem_free = cuda_mem_free,
    .mem_where = cuda_mem_where,
};
