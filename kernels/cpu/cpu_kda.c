/* SPDX-License-Identifier: MIT */
/* cpu_kda.c: the KDA sub-layer: one product for everything that reads the input, then one head after another
 * (convolution, gates, recurrence, output norm) with no barrier in between, then the output product. */
#include "cpu.h"

#include <math.h>
#include <string.h>

static float *pend_row(const struct cpu_run *r, const struct cpu_layer *l, uint32_t slot) {
    return (float *)(void *)slot_at(r, slot, l->pend);
}

/* One head of one sequence: where everything of it lies. */
static void head_of(const struct cpu_run *r, const struct cpu_layer *l, const struct cpu_seq *s,
                    uint32_t head, struct cpu_kda_head *h) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_pend *p = &r->c->l.pend;
    size_t at = (size_t)head * d->kda_dim;
    float *z = r->lane->z + (uint64_t)s->row0 * d->kda_z,
          *slot = (float *)(void *)slot_at(r, s->slot, l->slot);
    float *pend = pend_row(r, l, s->slot);
    size_t gate = (size_t)head * (d->kda_dim / 16) * m->kda_dim * 8;
    *h = (struct cpu_kda_head){
        .n_rows = s->n_rows,
        .keep = FAULT(cpu_skipped_keep) && s->keep ? s->keep - 1 : s->keep,
        .dim = m->kda_dim,
        .dimp = d->kda_dim,
        .taps = m->conv_width,
        .commit = (s->flags & KERN_SEQ_COMMIT) != 0,
        .bound = m->gate_bound,
        .a_log = cpu_vec(r, l->a_log)[head],
        .eps = m->rms_eps,
        .q_scale = 1.0f / sqrtf((float)m->kda_dim),
        .conv = cpu_vec(r, l->conv) + at,
        .conv_part = (size_t)m->conv_width * d->kda_all,
        .conv_tap = d->kda_all,
        .dt_bias = cpu_vec(r, l->dt_bias) + at,
        .o_norm = cpu_vec(r, l->o_norm),
        .fb = l->fb.n_segs ? NULL : cpu_words(r, l->fb.off) + gate,
        .gb = l->gb.n_segs ? NULL : cpu_words(r, l->gb.off) + gate,
        .fb_stored = l->fb.n_segs ? &r->c->l.seg[l->fb.first_seg].m : NULL,
        .gb_stored = l->gb.n_segs ? &r->c->l.seg[l->gb.first_seg].m : NULL,
        .weights = (const uint8_t *)r->c->weights,
        .panel = head * (d->kda_dim / 16),
        .room = r->room,
        .z = z + at,
        .ldz = d->kda_z,
        .part = d->kda_all,
        .fa = z + d->z_fa,
        .ga = z + d->z_ga,
        .beta = z + d->z_b + head,
        .state = slot + at * d->kda_dim,
        .win = slot + (size_t)d->kda_all * d->kda_dim + at,
        .ld_win = 3 * (size_t)d->kda_all,
        .pend_k = pend + p->k + at,
        .pend_v = pend + p->v + at,
        .pend_a = pend + p->a + at,
        .pend_z = pend + p->z + at,
        .pend_b = pend + p->b + head,
        .ld_pend = p->size,
        .out = r->lane->attn_out + (uint64_t)s->row0 * d->kda_all + at,
        .ldo = d->kda_all,
        .scratch = r->scratch,
    };
}

/* A sequence that starts over: nothing is remembered of what the slot held. */
static void reset_head(const struct kern_model_desc *m, const struct cpu_kda_head *h) {
    memset(h->state, 0, (size_t)h->dimp * h->dimp * sizeof(float));
    for (uint32_t j = 0; j + 1 < m->conv_width; j++)
        for (int part = 0; part < 3; part++)
            memset(h->win + j * h->ld_win + (size_t)part * h->part, 0, h->dimp * sizeof(float));
}

/* Sequences of a row or two each would read a head's gate matrices once each: their products are made for all rows
 * at once, into this member's scratch. */
static void head_gates(struct cpu_run *r, const struct cpu_layer *l, const struct cpu_rows *rows, uint32_t head,
                       float *fb_out, float *gb_out) {
    const struct cpu_dims *d = &r->c->l.d;
    uint32_t panels = d->kda_dim / 16, p0 = head * panels;
    cpu_prod(r, &l->fb, p0, p0 + panels, r->lane->z + d->z_fa, d->kda_z, NULL, rows->n, fb_out, d->kda_dim);
    cpu_prod(r, &l->gb, p0, p0 + panels, r->lane->z + d->z_ga, d->kda_z, NULL, rows->n, gb_out, d->kda_dim);
}

static void heads(struct cpu_run *r, const struct cpu_layer *l, const struct cpu_rows *rows) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    bool together = rows->n_seqs > 1 && rows->n <= CPU_ROW_BLOCK;
    float *fb_out = r->scratch + pad16(cpu_kda_scratch(d->kda_dim)), *gb_out = fb_out + cpu_kda_gates(d->kda_dim) / 2;
    /* The same heads in every step: a state that another member wrote lies in that one's caches, and may have to come
     * from another die (kernels/NOTES.md). */
    for (uint32_t head = share_lo(r, m->kda_heads), hi = share_hi(r, m->kda_heads); head < hi; head++) {
        if (together)
            head_gates(r, l, rows, head, fb_out, gb_out);
        for (uint32_t i = 0; i < rows->n_seqs; i++) {
            struct cpu_kda_head h;
            head_of(r, l, &rows->seq[i], head, &h);
            if (together) {
                h.fb_out = fb_out + (size_t)(FAULT(cpu_gates_of_first) ? 0 : rows->seq[i].row0) * d->kda_dim;
                h.gb_out = gb_out + (size_t)rows->seq[i].row0 * d->kda_dim;
            }
            if (rows->seq[i].flags & KERN_SEQ_RESET)
                reset_head(m, &h);
            r->ops->kda(&h);
        }
    }
}

static void count_state(struct cpu_run *r, const struct cpu_rows *rows) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    if (r->me)
        return;
    uint64_t state = (uint64_t)d->kda_all * d->kda_dim * 4, win = (m->conv_width - 1) * 12ull * d->kda_all;
    uint64_t pend = r->c->l.pend.size * 4ull;
    for (uint32_t i = 0; i < rows->n_seqs; i++) {
        const struct cpu_seq *s = &rows->seq[i];
        bool commit = s->flags & KERN_SEQ_COMMIT, moved = commit || s->keep;
        r->count->state_bytes +=
            (state + win) * (moved ? 2 : 1) + s->keep * pend + (commit ? 0 : s->n_rows * pend);
    }
}

void cpu_stage_kda(struct cpu_run *r, uint32_t layer) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_layer *l = &r->c->l.layer[layer];
    const struct cpu_rows *rows = rows_of(r, layer);
    run_prod(r, &l->in, r->lane->u, d->e, rows->n, r->lane->z, d->kda_z);
    count_mat(r, &l->in, rows->n);
    if (!FAULT(cpu_missing_barrier))
        run_barrier(r);
    heads(r, l, rows);
    count_mat(r, &l->fb, rows->n);
    count_mat(r, &l->gb, rows->n);
    if (rows->n_seqs)
        count_bytes(r,
                    (3ull * m->conv_width * d->kda_all + d->kda_all + d->kda_dim + pad16(m->kda_heads)) * 4);
    count_state(r, rows);
    run_barrier(r);
    run_prod(r, &l->out, r->lane->attn_out, d->kda_all, rows->n, r->lane->y, d->e);
    count_mat(r, &l->out, rows->n);
    run_barrier(r);
}
