/* SPDX-License-Identifier: MIT */
/* cpu_stage.c: the stages around the sub-layers: embedding, hyper-connection sites, norms, drafts, the head.
 *
 * Every member of the team runs each stage function; between parts that depend on each other they meet at a
 * barrier, and every stage ends with one. Which member computes something never shows in the result. */
#include "cpu.h"
#include "host.h"

#include <math.h>

/* Ids come from a checked plan, but a slot may have drawn nothing (masks left no token): its rows then
 * compute something harmless. */
static uint32_t safe_token(const struct cpu_run *r, uint32_t token) {
    return token < r->c->k->whole.vocab_rows ? token : 0;
}

/* Bytes of distinct embedding rows: a bit per id in this member's scratch. */
static void count_embed(struct cpu_run *r, const struct cpu_rows *rows, bool next) {
    if (r->me)
        return;
    uint8_t *seen = (uint8_t *)r->scratch;
    memset(seen, 0, (r->c->k->whole.vocab_rows + 7) / 8);
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct kern_row *row = &plan_rows(r->plan)[rows->row[i]];
        const struct kern_seq *s = &plan_seqs(r->plan)[row->seq];
        if (!next && row->embed != KERN_NONE)
            continue;
        uint32_t t = safe_token(r, host_token(r->c->k, s, next ? row->next : row->token));
        if (kern_is_cut(r->c->k) && kern_vocab_owner(r->c->k, t) != r->c->k->cfg.rank)
            continue;
        if (!(seen[t / 8] >> t % 8 & 1))
            r->count->weight_bytes += cpu_embed_bytes(&r->c->l, &r->c->k->cfg);
        seen[t / 8] |= (uint8_t)(1u << t % 8);
    }
}

void cpu_stage_embed(struct cpu_run *r) {
    const struct cpu_dims *d = &r->c->l.d;
    struct cpu_rows *rows = &r->lane->rows[0];
    uint32_t hidden = r->c->k->cfg.model.hidden;
    bool cut = kern_is_cut(r->c->k);
    if (cut && !cpu_gather_embeddings(r, rows, false, r->lane->streams, (size_t)d->hc * d->e))
        return;
    for (uint32_t i = share_lo(r, rows->n), hi = share_hi(r, rows->n); i < hi; i++) {
        const struct kern_row *row = &plan_rows(r->plan)[i];
        float *s = r->lane->streams + (uint64_t)i * d->hc * d->e;
        if (row->embed != KERN_NONE) {
            memset(s, 0, d->e * sizeof(float));
            memcpy(s, plan_embeds(r->plan) + (uint64_t)row->embed * hidden, hidden * sizeof(float));
        } else if (!cut) {
            uint32_t t = host_token(r->c->k, &plan_seqs(r->plan)[row->seq], row->token);
            cpu_embed_row(r, safe_token(r, t), s);
        }
        for (uint32_t j = 1; j < d->hc; j++)
            memcpy(s + (uint64_t)j * d->e, s, d->e * sizeof(float));
    }
    cpu_rope_rows(r);
    count_embed(r, rows, false);
    run_barrier(r);
}

/* ---- hyper-connection sites -----------------------------------------------------------------------------
 */

enum { MIX_GROUP = 4 };

static float *mix_row(const struct cpu_run *r, uint32_t row) {
    return r->lane->hc_mix + row * pad16(r->c->l.d.hc_rows + 1ull);
}
static float *coef_row(const struct cpu_run *r, uint32_t row) {
    const struct cpu_dims *d = &r->c->l.d;
    return r->lane->hc_coef + row * (d->hc + (uint64_t)d->hc * d->hc);
}

static struct kern_store site_store(const struct cpu_run *r, uint32_t layer, uint32_t site) {
    return cpu_store(&r->c->k->cfg, site == KERN_SITE_ATTN ? KERN_HC_ATTN_FN : KERN_HC_FFN_FN, layer);
}

/* The raw products of the streams with the site's matrix, and the streams' sum of squares. */
static void site_products(struct cpu_run *r, const struct cpu_layer *l, uint32_t site, uint32_t rows) {
    const struct cpu_dims *d = &r->c->l.d;
    uint32_t groups = (d->hc_rows + MIX_GROUP - 1) / MIX_GROUP + 1, width = d->hc * d->e;
    const struct kern_store fn = site_store(r, (uint32_t)(l - r->c->l.layer), site);
    for (uint32_t u = share_lo(r, rows * groups), hi = share_hi(r, rows * groups); u < hi; u++) {
        uint32_t row = u / groups, g = u % groups;
        const float *s = r->lane->streams + (uint64_t)row * width;
        float *mix = mix_row(r, row);
        if (g + 1 == groups) {
            mix[d->hc_rows] = r->ops->sumsq(s, width);
            continue;
        }
        uint32_t i1 = (g + 1) * MIX_GROUP;
        r->ops->dots(cpu_words(r, l->hc_fn[site]), fn.format, width, g * MIX_GROUP,
                     i1 < d->hc_rows ? i1 : d->hc_rows, s, mix);
    }
}

static void site_inputs(struct cpu_run *r, const struct cpu_layer *l, uint32_t site, uint32_t rows,
                        const float *norm) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    float n = (float)(d->hc * m->hidden);
    for (uint32_t row = share_lo(r, rows), hi = share_hi(r, rows); row < hi; row++) {
        float pre[KERN_MAX_HC], *post = coef_row(r, row), *mix = mix_row(r, row);
        float *u = r->lane->u + (uint64_t)row * d->e;
        float rms = 1.0f / sqrtf(mix[d->hc_rows] / n + m->rms_eps);
        r->ops->hc_coeff(pre, post, post + d->hc, mix, rms, cpu_vec(r, l->hc_base[site]),
                         cpu_vec(r, l->hc_scale[site]), d->hc, m->hc_iters, m->hc_eps);
        r->ops->hc_collapse(u, r->lane->streams + (uint64_t)row * d->hc * d->e, pre, d->hc, d->e, d->e);
        r->ops->rms(u, u, norm, d->e, m->hidden, m->rms_eps);
    }
}

void cpu_stage_site_in(struct cpu_run *r, uint32_t layer, uint32_t site) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_layer *l = &r->c->l.layer[layer];
    uint32_t rows = rows_of(r, layer)->n;
    const float *norm = cpu_vec(r, site == KERN_SITE_ATTN ? l->in_norm : l->post_norm);
    if (m->layer[layer].resid == KERN_RESID_MHC) {
        site_products(r, l, site, rows);
        const struct kern_store fn = site_store(r, layer, site);
        if (rows)
            count_bytes(r, (uint64_t)d->hc_rows * d->hc * d->e * cpu_plain_size(&fn) +
                               (pad16(d->hc_rows) + 16 + d->e) * 4);
        if (r->me == 0)
            r->count->flops += 2ull * d->hc_rows * d->hc * m->hidden * rows;
        run_barrier(r);
        site_inputs(r, l, site, rows, norm);
    } else {
        const float *x = is_draft(r, layer) ? r->lane->plain : r->lane->streams;
        for (uint32_t i = share_lo(r, rows), hi = share_hi(r, rows); i < hi; i++)
            r->ops->rms(r->lane->u + (uint64_t)i * d->e, x + (uint64_t)i * d->e, norm, d->e, m->hidden,
                        m->rms_eps);
        if (rows)
            count_bytes(r, d->e * 4ull);
    }
    run_barrier(r);
}

void cpu_stage_site_out(struct cpu_run *r, uint32_t layer, uint32_t site) {
    const struct cpu_dims *d = &r->c->l.d;
    uint32_t rows = rows_of(r, layer)->n, pieces = d->e / 16;
    bool mhc = r->c->k->cfg.model.layer[layer].resid == KERN_RESID_MHC;
    (void)site;
    /* pieces of 16 columns, all rows: a single row is still shared by the whole team */
    uint64_t lo = (uint64_t)rows * pieces * r->me / r->n, hi = (uint64_t)rows * pieces * (r->me + 1) / r->n;
    if (kern_is_cut(r->c->k) && !cpu_sum_ranks(r, rows, lo, hi))
        return;
    while (lo < hi) {
        uint64_t row = lo / pieces, e = lo % pieces, n = pieces - e < hi - lo ? pieces - e : hi - lo;
        const float *y = r->lane->y + row * d->e + e * 16, *post = coef_row(r, (uint32_t)row);
        if (mhc)
            r->ops->hc_merge(r->lane->streams + row * d->hc * d->e + e * 16, y, post, post + d->hc, d->hc,
                             d->e, (uint32_t)n * 16);
        else
            r->ops->axpy((is_draft(r, layer) ? r->lane->plain : r->lane->streams) + row * d->e + e * 16, 1.0f,
                         y, (uint32_t)n * 16);
        lo += n;
    }
    run_barrier(r);
}

/* ---- the ends -------------------------------------------------------------------------------------------
 */

void cpu_stage_final(struct cpu_run *r) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    uint32_t rows = r->lane->rows[0].n;
    for (uint32_t i = share_lo(r, rows), hi = share_hi(r, rows); i < hi; i++) {
        float *h = r->lane->hidden + (uint64_t)i * d->e;
        r->ops->mean(h, r->lane->streams + (uint64_t)i * d->hc * d->e, d->hc, d->e, d->e);
        r->ops->rms(h, h, cpu_vec(r, r->c->l.final_norm), d->e, m->hidden, m->rms_eps);
    }
    if (rows)
        count_bytes(r, d->e * 4ull);
    run_barrier(r);
}

void cpu_stage_draft_in(struct cpu_run *r, uint32_t layer) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_layer *l = &r->c->l.layer[layer];
    const struct cpu_rows *rows = &r->lane->rows[1];
    bool cut = kern_is_cut(r->c->k);
    if (cut && !cpu_gather_embeddings(r, rows, true, r->lane->eh_in, 2 * (size_t)d->e))
        return;
    for (uint32_t i = share_lo(r, rows->n), hi = share_hi(r, rows->n); i < hi; i++) {
        const struct kern_row *row = &plan_rows(r->plan)[rows->row[i]];
        float *x = r->lane->eh_in + (uint64_t)i * 2 * d->e;
        if (!cut)
            cpu_embed_row(r, safe_token(r, host_token(r->c->k, &plan_seqs(r->plan)[row->seq], row->next)), x);
        r->ops->rms(x, x, cpu_vec(r, l->enorm), d->e, m->hidden, m->rms_eps);
        r->ops->rms(x + d->e, r->lane->hidden + (uint64_t)rows->row[i] * d->e, cpu_vec(r, l->hnorm), d->e,
                    m->hidden, m->rms_eps);
    }
    count_embed(r, rows, true);
    run_barrier(r);
    run_prod(r, &l->eh, r->lane->eh_in, 2ul * d->e, rows->n, r->lane->plain, d->e);
    count_mat(r, &l->eh, rows->n);
    if (rows->n)
        count_bytes(r, d->e * 8ull);
    run_barrier(r);
}

void cpu_stage_draft_out(struct cpu_run *r, uint32_t layer) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_rows *rows = &r->lane->rows[1];
    for (uint32_t i = share_lo(r, rows->n), hi = share_hi(r, rows->n); i < hi; i++)
        r->ops->rms(r->lane->draft + (uint64_t)rows->row[i] * d->e, r->lane->plain + (uint64_t)i * d->e,
                    cpu_vec(r, r->c->l.layer[layer].draft_norm), d->e, m->hidden, m->rms_eps);
    if (rows->n)
        count_bytes(r, d->e * 4ull);
    run_barrier(r);
}

/* ---- head -----------------------------------------------------------------------------------------------
 */

void cpu_stage_head(struct cpu_run *r, uint32_t source) {
    struct kern *k = r->c->k;
    const struct cpu_dims *d = &r->c->l.d;
    const struct kern_sample *samples = plan_samples(r->plan);
    const float *from = source == KERN_SOURCE_TRUNK ? r->lane->hidden : r->lane->draft;
    uint32_t first = source == KERN_SOURCE_TRUNK ? 0 : r->lane->n_trunk_samples, n = 0;
    for (uint32_t i = 0; i < r->plan->n_samples; i++) {
        if (samples[i].source != source)
            continue;
        if (n++ % r->n == r->me)
            memcpy(r->lane->gather + (uint64_t)r->lane->logits_at[i] * d->e,
                   from + (uint64_t)samples[i].row * d->e, d->e * sizeof(float));
    }
    run_barrier(r);
    run_prod(r, &r->c->l.head, r->lane->gather + (uint64_t)first * d->e, d->e, n,
             kern_is_cut(k) ? cpu_own_logits(r) : r->lane->logits + (uint64_t)first * d->logits, d->vocab);
    count_mat(r, &r->c->l.head, n);
    if (kern_is_cut(k) && !cpu_gather_logits(r, first, n))
        return;
    run_barrier(r);
    for (uint32_t i = 0, at = 0; i < r->plan->n_samples; i++)
        if (samples[i].source == source && at++ % r->n == r->me)
            host_sample(&k->whole, r->plan, i,
                        r->lane->logits + (uint64_t)r->lane->logits_at[i] * d->logits, r->scratch,
                        &k->results[r->lane_id][i]);
    run_barrier(r);
    for (uint32_t i = 0; r->me == 0 && i < r->plan->n_samples; i++)
        if (samples[i].source == source)
            host_sample_keep(k, r->plan, i, &k->results[r->lane_id][i]);
    run_barrier(r);
}
