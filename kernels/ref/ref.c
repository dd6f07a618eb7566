/* SPDX-License-Identifier: MIT */
/* The oracle's table entry: opening, the launch queue, slots, pages, peeks. A launch only queues the program;
 * the caller of kern_wait() runs everything queued, in launch order. */
#include <errno.h>

#include "ref.h"

static int ref_open(struct kern *k, char *err, size_t err_len) {
    (void)err;
    (void)err_len;
    uint64_t bytes[KERN_MEM_N];
    char *base[KERN_MEM_N];
    for (int i = 0; i < KERN_MEM_N; i++)
        base[i] = k->mem[i].base;
    struct ref *r = (struct ref *)(void *)(base[KERN_MEM_CTL] + kern_ctl_bytes(&k->cfg));
    memset(r, 0, sizeof(*r));
    ref_place(r, &k->cfg, k->whole.vocab_rows, base, bytes);
    r->k = k;
    if (!k->cfg.isa || strcmp(k->cfg.isa, "bf16"))
        r->rounded = NULL;
    r->m = &k->cfg.model;
    r->open = (struct ref_matrix){0}; /* memory may hold anything */
    k->impl = r;
    return 0;
}

static void ref_close(struct kern *k) {
    k->impl = NULL;
}

static char *slot_base(const struct kern *k, uint32_t slot) {
    const struct ref *r = k->impl;
    return r->slots + slot * r->slot_bytes;
}

static int ref_plan_load(struct kern *k, uint32_t lane) {
    struct ref *r = k->impl;
    const struct kern_plan *p = k->plan[lane];
    struct ref_lane *l = &r->lane[lane];
    l->err = 0;
    l->n_draft = 0;
    memset(l->draft, 0, p->n_rows);
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct kern_seq *s = &plan_seqs(p)[i];
        uint32_t n = host_draft_rows(p, s);
        /* all layers at once: a draft layer that is not run must not keep another sequence's ring */
        if (s->flags & KERN_SEQ_RESET)
            memset(slot_base(k, s->slot), 0, r->slot_committed);
        memset(l->draft + s->row0, 1, n);
        l->n_draft += n;
    }
    return 0;
}

static int ref_launch(struct kern *k, const struct kern_prog *prog) {
    struct ref *r = k->impl;
    if (r->queued == REF_QUEUE)
        return kern_error(k, "%d programs are waiting already", REF_QUEUE), -EAGAIN;
    r->queue[r->queued++] = prog;
    return 0;
}

static int run_stage(struct ref_ctx *x, const struct kern_stage *s) {
    x->stage = s;
    x->layer = s->layer;
    x->is_draft = s->layer >= x->r->m->n_layers;
    switch (s->op) {
    case KERN_OP_EMBED:
        return ref_embed(x);
    case KERN_OP_SITE_IN:
        ref_site_in(x, s->arg);
        return 0;
    case KERN_OP_MIX:
        if (x->r->m->layer[s->layer].mix == KERN_MIX_KDA)
            ref_kda(x);
        else
            return ref_mla(x);
        return 0;
    case KERN_OP_MLP:
        ref_mlp(x);
        return 0;
    case KERN_OP_SITE_OUT:
        return ref_site_out(x, s->arg);
    case KERN_OP_FINAL:
        ref_final(x);
        return 0;
    case KERN_OP_DRAFT_IN:
        return ref_draft_in(x);
    case KERN_OP_DRAFT_OUT:
        ref_draft_out(x);
        return 0;
    case KERN_OP_HEAD:
        return ref_head(x, s->arg);
    default:
        return -EINVAL;
    }
}

static int ref_wait(struct kern *k, uint32_t lane) {
    struct ref *r = k->impl;
    for (uint32_t i = 0; i < r->queued; i++) {
        const struct kern_prog *prog = r->queue[i];
        struct ref_lane *l = &r->lane[prog->lane];
        struct ref_ctx x = {.r = r,
                            .l = l,
                            .p = k->plan[prog->lane],
                            .c = &k->counters[prog->lane],
                            .n_rows = k->plan[prog->lane]->n_rows};
        /* after a failure the rest of that lane's step would compute on nothing */
        for (uint32_t s = 0; s < prog->n && !l->err; s++)
            l->err = run_stage(&x, &k->stages[prog->first + s]);
    }
    r->queued = 0;
    return r->lane[lane].err;
}

static uint64_t ref_slot_bytes(const struct kern *k) {
    return ((const struct ref *)k->impl)->slot_committed;
}
/* Of the tail rings only the incomplete pool belongs to the state; the rest is what older positions or
 * rejected drafts left behind, and would make equal states look different. */
static int ref_slot_read(struct kern *k, uint32_t slot, void *dst) {
    const struct ref *r = k->impl;
    const uint64_t two = 2 * (uint64_t)r->m->index_dim * sizeof(float);
    const uint32_t pos = k->slots[slot].pos;
    memcpy(dst, slot_base(k, slot), r->slot_committed);
    for (uint32_t l = 0; l < kern_total_layers(r->m); l++) {
        if (r->m->layer[l].index != KERN_INDEX_FULL || r->m->index_kpool == 1)
            continue;
        for (uint32_t i = 0; i < KERN_TAIL_RING; i++) {
            uint32_t age = (pos - 1 - i) % KERN_TAIL_RING; /* 0: the newest position */
            if (age >= pos % r->m->index_kpool)
                memset((char *)dst + r->ring_at[l] + i * two, 0, two);
        }
    }
    return 0;
}
static int ref_slot_write(struct kern *k, uint32_t slot, const void *src) {
    memcpy(slot_base(k, slot), src, ref_slot_bytes(k));
    return 0;
}
static int ref_slot_copy(struct kern *k, uint32_t dst, uint32_t src) {
    memcpy(slot_base(k, dst), slot_base(k, src), ref_slot_bytes(k));
    return 0;
}
static int ref_page_copy(struct kern *k, uint32_t dst, uint32_t src) {
    const struct ref *r = k->impl;
    memcpy(r->pages + dst * r->page_bytes, r->pages + src * r->page_bytes, r->page_bytes);
    return 0;
}
static uint64_t ref_page_bytes(const struct kern *k) {
    return ((const struct ref *)k->impl)->page_bytes;
}
static int ref_page_read(struct kern *k, uint32_t page, void *dst) {
    const struct ref *r = k->impl;
    memcpy(dst, r->pages + page * r->page_bytes, r->page_bytes);
    return 0;
}
static int ref_page_write(struct kern *k, uint32_t page, const void *src) {
    const struct ref *r = k->impl;
    memcpy(r->pages + page * r->page_bytes, src, r->page_bytes);
    return 0;
}

static int ref_peek(struct kern *k, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n,
                    float *dst) {
    const struct ref *r = k->impl;
    const struct ref_lane *l = &r->lane[lane];
    const float *from;
    uint64_t width = r->m->hidden;
    switch (what) {
    case KERN_PEEK_STREAMS:
        from = l->streams;
        width *= r->m->hc_mult;
        break;
    case KERN_PEEK_HIDDEN:
        from = l->hidden;
        break;
    case KERN_PEEK_DRAFT:
        from = l->dhidden;
        break;
    case KERN_PEEK_LOGITS:
        from = l->logits;
        width = k->whole.vocab_rows;
        break;
    default:
        return -EINVAL;
    }
    memcpy(dst, from + row0 * width, n * width * sizeof(float));
    return 0;
}

const struct kern_backend kern_ref_backend = {
    .name = "ref",
    .formats = (1u << KERN_FORMAT_END) - 2,
    .caller_computes = true,
    .query = ref_query,
    .open = ref_open,
    .close = ref_close,
    .pack = ref_pack,
    .pack_done = ref_pack_done,
    .plan_load = ref_plan_load,
    .launch = ref_launch,
    .wait = ref_wait,
    .slot_bytes = ref_slot_bytes,
    .slot_read = ref_slot_read,
    .slot_write = ref_slot_write,
    .slot_copy = ref_slot_copy,
    .page_copy = ref_page_copy,
    .page_bytes = ref_page_bytes,
    .page_read = ref_page_read,
    .page_write = ref_page_write,
    .peek = ref_peek,
};
