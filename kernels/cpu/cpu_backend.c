/* SPDX-License-Identifier: MIT */
/* cpu_backend.c: the CPU backend behind kern.h: memory, programs, plans, slots and pages.
 *
 * One thread calls everything but pack; a launched program is run by the whole team, to which the caller
 * belongs while it waits. Allocates nothing: the object lies behind kern.c's part of KERN_MEM_CTL. */
#include "cpu.h"
#include "host.h"

#include <errno.h>
#include <stdio.h>

static uint64_t ctl_at(const struct kern_config *cfg) {
    return (kern_ctl_bytes(cfg) + 127) & ~127ull;
}

static uint64_t segs_at(const struct kern_config *cfg) {
    return (ctl_at(cfg) + sizeof(struct cpu) + 63) & ~63ull;
}

static int query(const struct kern_config *cfg, uint32_t vocab_rows, uint64_t bytes[KERN_MEM_N], char *err,
                 size_t err_len) {
    if (cfg->isa && !cpu_ops_find(cfg->isa)) {
        snprintf(err, err_len, "isa is \"%.16s\", which this machine cannot run", cfg->isa);
        return -EINVAL;
    }
    struct cpu_layout l;
    cpu_layout(cfg, vocab_rows, cpu_threads(cfg), NULL, &l);
    bytes[KERN_MEM_CTL] = segs_at(cfg) + l.n_segs * sizeof(struct cpu_seg);
    bytes[KERN_MEM_WEIGHTS] = l.weight_bytes;
    bytes[KERN_MEM_PAGES] = l.page_bytes * cfg->n_pages;
    bytes[KERN_MEM_SLOTS] = l.slot_stride * cfg->n_slots;
    bytes[KERN_MEM_WORK] = l.work_bytes;
    return 0;
}

/* ---- programs -------------------------------------------------------------------------------------------
 */

static void run_stage(struct cpu_run *r, const struct kern_stage *s) {
    const struct kern_layer_desc *d = &r->c->k->cfg.model.layer[s->layer];
    switch ((enum kern_stage_op)s->op) {
    case KERN_OP_EMBED:
        cpu_stage_embed(r);
        break;
    case KERN_OP_SITE_IN:
        cpu_stage_site_in(r, s->layer, s->arg);
        break;
    case KERN_OP_MIX:
        if (d->mix == KERN_MIX_KDA)
            cpu_stage_kda(r, s->layer);
        else
            cpu_stage_mla(r, s->layer);
        break;
    case KERN_OP_MLP:
        if (d->mlp == KERN_MLP_MOE)
            cpu_stage_moe(r, s->layer);
        else
            cpu_stage_dense(r, s->layer);
        break;
    case KERN_OP_SITE_OUT:
        cpu_stage_site_out(r, s->layer, s->arg);
        break;
    case KERN_OP_FINAL:
        cpu_stage_final(r);
        break;
    case KERN_OP_DRAFT_IN:
        cpu_stage_draft_in(r, s->layer);
        break;
    case KERN_OP_DRAFT_OUT:
        cpu_stage_draft_out(r, s->layer);
        break;
    case KERN_OP_HEAD:
        cpu_stage_head(r, s->arg);
        break;
    }
}

/* One program, as one member of the team. */
static void run_program(void *arg, uint32_t job, uint32_t member) {
    struct cpu *c = arg;
    const struct kern_prog *p = &c->k->progs[job];
    float *scratch = cpu_scratch(c, member);
    struct cpu_run r = {.c = c,
                        .ops = c->ops,
                        .lane = &c->lane[p->lane],
                        .lane_id = p->lane,
                        .plan = c->k->plan[p->lane],
                        .count = &c->k->counters[p->lane],
                        .me = member,
                        .n = c->n_threads,
                        .scratch = scratch,
                        .group = (uint32_t *)(void *)((char *)scratch + c->l.thread_group),
                        .room = (float *)(void *)((char *)scratch + c->l.thread_room)};
    if (kern_is_cut(c->k)) {
        r.failed = c->failed; /* written between this barrier and the program's last: all members read the same */
        run_barrier(&r);
    }
    for (uint32_t i = 0; i < p->n && !r.failed; i++) {
        r.stage = &c->k->stages[p->first + i];
        run_stage(&r, r.stage);
    }
}

static int launch(struct kern *k, const struct kern_prog *prog) {
    struct cpu *c = k->impl;
    if (pool_full(&c->pool))
        return kern_error(k, "%d programs are waiting already", POOL_JOBS), -EAGAIN;
    pool_post(&c->pool, (uint32_t)(prog - k->progs));
    return 0;
}

static int wait_lane(struct kern *k, uint32_t lane) {
    struct cpu *c = k->impl;
    uint32_t n = 0; /* jobs to finish: up to the last one of the lane */
    for (uint32_t i = 0; i < pool_pending(&c->pool); i++)
        if (k->progs[c->pool.job[(c->pool.joined + i) % POOL_JOBS]].lane == lane)
            n = i + 1;
    while (n--)
        pool_join(&c->pool);
    return c->failed;
}

/* ---- opening --------------------------------------------------------------------------------------------
 */

static void place_rows(struct cpu_rows *x, char **at, uint32_t max_rows, uint32_t max_seqs) {
    x->seq = (struct cpu_seq *)(void *)*at;
    *at += max_seqs * sizeof(struct cpu_seq);
    x->row = (uint32_t *)(void *)*at;
    x->seq_of = x->row + max_rows;
    x->pos = x->seq_of + max_rows;
    *at += 3 * (uint64_t)max_rows * sizeof(uint32_t);
}

static void place_lane(struct cpu *c, uint32_t lane) {
    const struct cpu_lane_layout *l = &c->l.lane[lane];
    char *b = c->work + c->l.lane_at[lane];
    struct cpu_lane *x = &c->lane[lane];
#define PLACE(field, type) x->field = (type *)(void *)(b + l->field)
    PLACE(streams, float);
    PLACE(plain, float);
    PLACE(u, float);
    PLACE(y, float);
    PLACE(z, float);
    PLACE(hc_mix, float);
    PLACE(hc_coef, float);
    PLACE(wide, float);
    PLACE(qa, float);
    PLACE(attn_out, float);
    PLACE(sel, uint32_t);
    PLACE(n_sel, uint32_t);
    PLACE(act, float);
    PLACE(router, float);
    PLACE(top_id, uint32_t);
    PLACE(top_w, float);
    PLACE(expert_act, float);
    PLACE(hidden, float);
    PLACE(draft, float);
    PLACE(gather, float);
    PLACE(eh_in, float);
    PLACE(logits, float);
    PLACE(logits_at, uint32_t);
    PLACE(turn, float);
#undef PLACE
    char *at = b + l->plan_rows;
    for (int i = 0; i < 2; i++)
        place_rows(&x->rows[i], &at, c->k->cfg.max_rows[lane], c->k->cfg.max_seqs);
}

static int open_cpu(struct kern *k, char *err, size_t err_len) {
    struct cpu *c = (struct cpu *)(void *)((char *)k->mem[KERN_MEM_CTL].base + ctl_at(&k->cfg));
    memset(c, 0, sizeof(*c));
    k->impl = c;
    c->k = k;
    c->ops = cpu_ops_find(k->cfg.isa);
    c->n_threads = cpu_threads(&k->cfg);
    cpu_layout(&k->cfg, k->whole.vocab_rows, c->n_threads,
               (struct cpu_seg *)(void *)((char *)k->mem[KERN_MEM_CTL].base + segs_at(&k->cfg)), &c->l);
    c->weights = k->mem[KERN_MEM_WEIGHTS].base;
    c->slots = k->mem[KERN_MEM_SLOTS].base;
    c->pages = k->mem[KERN_MEM_PAGES].base;
    c->work = k->mem[KERN_MEM_WORK].base;
    for (uint32_t i = 0; i < KERN_LANES; i++)
        place_lane(c, i);
    cpu_clear_paddings(c);
    cpu_rope_open(c);
    snprintf(k->name, sizeof(k->name), "cpu/%s", c->ops->isa);
    int r = pool_start(&c->pool, c->n_threads, run_program, c);
    if (r)
        snprintf(err, err_len, "%u threads cannot be started: %s", c->n_threads - 1, strerror(-r));
    return r;
}

static void close_cpu(struct kern *k) {
    struct cpu *c = k->impl;
    pool_stop(&c->pool);
}

/* ---- plans ----------------------------------------------------------------------------------------------
 */

/* The rows of one group of stages: the trunk's are all, the drafts' the first ones of some sequences. */
static void fill_rows(const struct kern_plan *p, struct cpu_rows *x, bool draft) {
    const struct kern_seq *seqs = plan_seqs(p);
    x->n = 0;
    x->n_seqs = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct kern_seq *s = &seqs[i];
        uint32_t n = draft ? host_draft_rows(p, s) : s->n_rows;
        if (draft && !n)
            continue;
        x->seq[x->n_seqs] = (struct cpu_seq){.slot = s->slot,
                                             .row0 = x->n,
                                             .n_rows = n,
                                             .pos0 = s->pos0,
                                             .keep = s->keep,
                                             .flags = s->flags,
                                             .pages = plan_pages(p) + s->page0};
        for (uint32_t j = 0; j < n; j++, x->n++) {
            x->row[x->n] = s->row0 + j;
            x->seq_of[x->n] = x->n_seqs;
            x->pos[x->n] = s->pos0 + j;
        }
        x->n_seqs++;
    }
}

static int plan_load(struct kern *k, uint32_t lane) {
    struct cpu *c = k->impl;
    fill_rows(k->plan[lane], &c->lane[lane].rows[0], false);
    fill_rows(k->plan[lane], &c->lane[lane].rows[1], true);
    const struct kern_plan *p = k->plan[lane];
    struct cpu_lane *x = &c->lane[lane];
    x->n_trunk_samples = 0;
    for (uint32_t i = 0; i < p->n_samples; i++)
        if (plan_samples(p)[i].source == KERN_SOURCE_TRUNK)
            x->logits_at[i] = x->n_trunk_samples++;
    for (uint32_t i = 0, at = x->n_trunk_samples; i < p->n_samples; i++)
        if (plan_samples(p)[i].source != KERN_SOURCE_TRUNK)
            x->logits_at[i] = at++;
    return 0;
}

/* ---- state ----------------------------------------------------------------------------------------------
 */

static uint64_t slot_bytes(const struct kern *k) {
    return ((const struct cpu *)k->impl)->l.slot_bytes;
}

static char *slot_of(const struct cpu *c, uint32_t slot) {
    return c->slots + slot * c->l.slot_stride;
}

static int slot_read(struct kern *k, uint32_t slot, void *dst) {
    struct cpu *c = k->impl;
    memcpy(dst, slot_of(c, slot), c->l.slot_bytes);
    return 0;
}

static int slot_write(struct kern *k, uint32_t slot, const void *src) {
    struct cpu *c = k->impl;
    memcpy(slot_of(c, slot), src, c->l.slot_bytes);
    return 0;
}

static int slot_copy(struct kern *k, uint32_t dst, uint32_t src) {
    struct cpu *c = k->impl;
    memcpy(slot_of(c, dst), slot_of(c, src), c->l.slot_bytes);
    return 0;
}

static int page_copy(struct kern *k, uint32_t dst, uint32_t src) {
    struct cpu *c = k->impl;
    memcpy(c->pages + dst * c->l.page_bytes, c->pages + src * c->l.page_bytes, c->l.page_bytes);
    return 0;
}

static uint64_t page_bytes(const struct kern *k) {
    return ((const struct cpu *)k->impl)->l.page_bytes;
}

static int page_read(struct kern *k, uint32_t page, void *dst) {
    struct cpu *c = k->impl;
    memcpy(dst, c->pages + page * c->l.page_bytes, c->l.page_bytes);
    return 0;
}

static int page_write(struct kern *k, uint32_t page, const void *src) {
    struct cpu *c = k->impl;
    memcpy(c->pages + page * c->l.page_bytes, src, c->l.page_bytes);
    return 0;
}

static int peek(struct kern *k, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n, float *dst) {
    struct cpu *c = k->impl;
    const struct kern_model_desc *m = &k->whole;
    const struct cpu_dims *d = &c->l.d;
    const struct cpu_lane *x = &c->lane[lane];
    for (uint32_t i = row0; i < row0 + n; i++) {
        if (what == KERN_PEEK_STREAMS) {
            for (uint32_t j = 0; j < d->hc; j++, dst += m->hidden)
                memcpy(dst, x->streams + ((uint64_t)i * d->hc + j) * d->e, m->hidden * sizeof(float));
        } else if (what == KERN_PEEK_LOGITS) {
            memcpy(dst, x->logits + (uint64_t)x->logits_at[i] * d->logits, m->vocab_rows * sizeof(float));
            dst += m->vocab_rows;
        } else {
            const float *from = what == KERN_PEEK_HIDDEN ? x->hidden : x->draft;
            memcpy(dst, from + (uint64_t)i * d->e, m->hidden * sizeof(float));
            dst += m->hidden;
        }
    }
    return 0;
}

const struct kern_backend kern_cpu_backend = {
    .name = "cpu",
    .formats = (1u << KERN_FORMAT_END) - 2,
    .caller_computes = true,
    .query = query,
    .open = open_cpu,
    .close = close_cpu,
    .pack = cpu_pack,
    .pack_done = cpu_pack_done,
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
};
