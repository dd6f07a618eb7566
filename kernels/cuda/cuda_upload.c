/* SPDX-License-Identifier: MIT */
/* cuda_upload.c: a loaded plan as the stages read it, and what a step costs. The device gets tables of its own for the
 * trunk and for the draft layers, whose rows are the first ones of some sequences; behind them the plan itself, for
 * pages, samples and what they refer to. Host code of the engine's thread; nothing is allocated. */
#include "cuda_host.h"

/* ---- tables --------------------------------------------------------------------------------------------- */

struct cursor {
    char *base;
    uint32_t at;
};

static void *next(struct cursor *w, uint64_t bytes, uint32_t *ret_at) {
    *ret_at = w->at;
    w->at += (uint32_t)cuda_pad(bytes, 16);
    return w->base + *ret_at;
}

static void fill_table(const struct kern_plan *p, struct cursor *w, struct cuda_step *s, uint32_t draft) {
    struct cuda_row *rows = next(w, p->n_rows * sizeof(struct cuda_row), &s->rows[draft]);
    struct cuda_seq *seqs = next(w, p->n_seqs * sizeof(struct cuda_seq), &s->seqs[draft]);
    uint32_t n = 0, n_seqs = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct kern_seq *q = &plan_seqs(p)[i];
        const uint32_t own = draft ? host_draft_rows(p, q) : q->n_rows;
        if (draft && !own)
            continue;
        seqs[n_seqs] = (struct cuda_seq){.slot = q->slot,
                                         .row0 = n,
                                         .n_rows = own,
                                         .pos0 = q->pos0,
                                         .keep = q->keep,
                                         .flags = q->flags,
                                         .page0 = q->page0,
                                         .n_pages = q->n_pages};
        for (uint32_t j = 0; j < own; j++) {
            const struct kern_row *r = &plan_rows(p)[q->row0 + j];
            rows[n++] = (struct cuda_row){.plan_row = q->row0 + j,
                                          .seq = n_seqs,
                                          .pos = r->pos,
                                          .token = draft ? r->next : r->token,
                                          .embed = draft ? KERN_NONE : r->embed};
        }
        n_seqs++;
    }
    s->n_rows[draft] = n;
    s->n_seqs[draft] = n_seqs;
}

static void fill_lists(const struct kern_plan *p, struct cursor *w, struct cuda_step *s) {
    for (uint32_t source = 0; source < 2; source++) {
        uint32_t *list = next(w, p->n_samples * sizeof(uint32_t), &s->samples[source]);
        for (uint32_t i = 0; i < p->n_samples; i++)
            if (plan_samples(p)[i].source == source)
                list[s->n_samples[source]++] = i;
    }
}

/* Distinct rows of the embedding: each is read once from memory. What was drawn last is not known here and counts as
 * one id of its own. */
static uint32_t distinct(struct cuda *c, const struct cuda_row *rows, uint32_t n) {
    bool last = false;
    uint32_t found = 0;
    memset(c->seen, 0, (c->l.d.vocab_rows + 7ull) / 8);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t t = rows[i].token;
        if (rows[i].embed != KERN_NONE)
            continue;
        if (t == KERN_TOKEN_LAST) {
            found += !last;
            last = true;
        } else {
            found += !(c->seen[t / 8] >> t % 8 & 1);
            c->seen[t / 8] |= (uint8_t)(1u << t % 8);
        }
    }
    return found;
}

uint64_t cuda_step_make(struct cuda *c, uint32_t lane) {
    const struct kern_plan *p = c->k->plan[lane];
    struct cuda_step *s = c->upload[lane];
    struct cursor w = {.base = (char *)s};
    uint32_t self;
    *s = (struct cuda_step){.n_rows = {0}};
    (void)next(&w, sizeof(*s), &self);
    for (uint32_t t = 0; t < 2; t++) {
        fill_table(p, &w, s, t);
        c->embeds[lane][t] = distinct(c, (const struct cuda_row *)(const void *)(w.base + s->rows[t]), s->n_rows[t]);
    }
    fill_lists(p, &w, s);
    memcpy(next(&w, p->bytes, &s->plan), p, p->bytes);
    s->pages = s->plan + p->pages;
    s->bytes = w.at;
    c->state_uses[lane] = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++)
        c->state_uses[lane] += plan_seqs(p)[i].flags & KERN_SEQ_COMMIT || plan_seqs(p)[i].keep ? 2 : 1;
    return s->bytes;
}

/* ---- costs ---------------------------------------------------------------------------------------------- */

/* Bytes as the format has them; flops of one row. */
static uint64_t part_bytes(const struct cuda *c, uint32_t layer, uint32_t part, uint64_t *flops) {
    const struct kern_config *cfg = &c->k->cfg;
    const struct kern_tensor_id id = {.part = part, .layer = layer};
    struct kern_part_info info;
    uint64_t bytes = 0;
    if (!kern_part_info(&cfg->model, part, layer, &info))
        return 0;
    const struct kern_store s = info.matrix ? kern_matrix_store(cfg, &id) : kern_store_plain(KERN_F32);
    kern_store_bytes(&s, info.rows, info.cols, &bytes);
    *flops += info.matrix ? 2 * info.rows * info.cols : 0;
    return bytes;
}

static void add_parts(const struct cuda *c, uint32_t layer, uint32_t from, uint32_t to, struct cuda_cost *cost) {
    const uint32_t table = layer >= c->k->cfg.model.n_layers;
    for (uint32_t part = from; part <= to; part++)
        cost->weight_bytes[table] += part_bytes(c, layer, part, &cost->flops[table]);
}

static void add_moe(const struct cuda *c, uint32_t layer, struct cuda_cost *cost) {
    const uint32_t table = layer >= c->k->cfg.model.n_layers;
    uint64_t flops = 0;
    add_parts(c, layer, KERN_ROUTER, KERN_ROUTER_BIAS, cost);
    add_parts(c, layer, KERN_SH_GATE, KERN_SH_DOWN, cost);
    for (uint32_t part = KERN_EXP_GATE; part <= KERN_EXP_DOWN; part++)
        cost->expert_bytes += part_bytes(c, layer, part, &flops);
    cost->flops[table] += flops * c->l.d.n_top;
    cost->moe++;
}

void cuda_cost_stage(const struct cuda *c, const struct kern_stage *s, struct cuda_cost *cost) {
    const struct kern_layer_desc *desc = &c->k->cfg.model.layer[s->layer];
    const struct cuda_dims *d = &c->l.d;
    switch ((enum kern_stage_op)s->op) {
    case KERN_OP_EMBED:
        cost->embeds[0]++;
        break;
    case KERN_OP_SITE_IN:
        add_parts(c, s->layer, s->arg ? KERN_POST_NORM : KERN_IN_NORM, s->arg ? KERN_POST_NORM : KERN_IN_NORM, cost);
        add_parts(c, s->layer, s->arg ? KERN_HC_FFN_FN : KERN_HC_ATTN_FN,
                  s->arg ? KERN_HC_FFN_SCALE : KERN_HC_ATTN_SCALE, cost);
        break;
    case KERN_OP_MIX:
        add_parts(c, s->layer, KERN_KDA_Q, KERN_IDX_GATE, cost);
        add_parts(c, s->layer, KERN_MLA_KB, KERN_MLA_VB, cost);
        if (desc->mix == KERN_MIX_KDA)
            cost->state_bytes += (uint64_t)d->kda_p * d->kda_dim * sizeof(float);
        break;
    case KERN_OP_MLP:
        if (desc->mlp == KERN_MLP_MOE)
            add_moe(c, s->layer, cost);
        else
            add_parts(c, s->layer, KERN_MLP_GATE, KERN_MLP_DOWN, cost);
        break;
    case KERN_OP_FINAL:
        add_parts(c, 0, KERN_FINAL_NORM, KERN_FINAL_NORM, cost);
        break;
    case KERN_OP_DRAFT_IN:
        add_parts(c, s->layer, KERN_DRAFT_ENORM, KERN_DRAFT_EH, cost);
        cost->embeds[1]++;
        break;
    case KERN_OP_DRAFT_OUT:
        add_parts(c, s->layer, KERN_DRAFT_NORM, KERN_DRAFT_NORM, cost);
        break;
    case KERN_OP_HEAD:
        cost->heads[s->arg]++;
        break;
    case KERN_OP_SITE_OUT:
        break;
    }
}

void cuda_count_launch(struct cuda *c, const struct kern_prog *prog) {
    const uint32_t lane = prog->lane;
    const struct cuda_cost *x = &c->progs[prog - c->k->progs].cost;
    const struct cuda_step *s = c->upload[lane];
    struct kern_counters *n = &c->k->counters[lane];
    uint64_t flops = 0, head = part_bytes(c, 0, KERN_HEAD, &flops), ignored = 0;
    const uint64_t row = part_bytes(c, 0, KERN_EMBED, &ignored) / c->l.d.own_vocab;
    for (uint32_t t = 0; t < 2; t++) {
        n->weight_bytes += s->n_rows[t] ? x->weight_bytes[t] : 0;
        n->weight_bytes += x->embeds[t] * c->embeds[lane][t] * row;
        n->weight_bytes += s->n_samples[t] ? x->heads[t] * head : 0;
        n->flops += x->flops[t] * s->n_rows[t] + x->heads[t] * flops * s->n_samples[t];
    }
    n->state_bytes += x->state_bytes * c->state_uses[lane];
    c->moe_bytes[lane] += x->expert_bytes;
    c->moe_stages[lane] += x->moe;
}

/* Experts of a model are of a size mostly; where they are not, the mean of the layers that ran. */
void cuda_count_done(struct cuda *c, uint32_t lane) {
    const struct cuda_report *r = c->report[lane];
    struct kern_counters *n = &c->k->counters[lane];
    const uint64_t bytes = c->moe_stages[lane] ? r->experts * c->moe_bytes[lane] / c->moe_stages[lane] : 0;
    n->weight_bytes = n->weight_bytes - n->expert_bytes + bytes;
    n->expert_bytes = bytes;
    n->experts = r->experts;
    n->latent_rows = r->latent_rows;
    n->pooled_keys = r->pooled_keys;
    n->cache_bytes = r->latent_rows * c->l.d.latent_bytes + r->pooled_keys * c->l.d.key_bytes;
}
