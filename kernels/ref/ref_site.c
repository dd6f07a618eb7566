/* SPDX-License-Identifier: MIT */
/* Embedding, residual sites (hyper-connections or plain), final mean and norm, the draft layer's ends, head.
 */
#include <errno.h>
#include <math.h>

#include "ref.h"

/* Distinct ids among the plan's first n rows, for the counter of embedding rows read. */
static bool first_use(const struct kern_row *rows, uint32_t i) {
    for (uint32_t j = 0; j < i; j++)
        if (rows[j].token == rows[i].token && rows[j].embed == KERN_NONE)
            return false;
    return true;
}

/* The id of a row's embedding. */
static int token_of(struct ref_ctx *x, const struct kern_row *row, uint32_t token, uint32_t *ret) {
    uint32_t id = host_token(x->r->k, &plan_seqs(x->p)[row->seq], token);
    if (id >= x->r->k->whole.vocab_rows) {
        kern_error(x->r->k, "position %u wants the slot's last token, but nothing could be drawn", row->pos);
        return -ENODATA;
    }
    *ret = id;
    return 0;
}

/* Embeddings of the plan's rows, or of their next tokens, gathered: each rank sends those it has, at their rows. */
static int exchange_embeddings(struct ref_ctx *x, bool next, const void *ret_part[COMM_MAX_RANKS]) {
    struct kern *k = x->r->k;
    const uint64_t e = x->r->m->hidden;
    float *own = kern_part_slot_of(k);
    uint32_t id;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const struct kern_row *row = &plan_rows(x->p)[i];
        if (next ? !x->l->draft[i] : row->embed != KERN_NONE)
            continue;
        int r = token_of(x, row, next ? row->next : row->token, &id);
        if (r)
            return r;
        if (kern_vocab_owner(k, id) == k->cfg.rank)
            memcpy(own + i * e, ref_row(x->r, KERN_EMBED, 0, 0, id - kern_vocab_at(k, k->cfg.rank)), e * sizeof(float));
    }
    return kern_exchange(k, x->p->lane, x->stage, x->n_rows * e * sizeof(float), ret_part);
}

/* Embedding of row i; part: what the ranks sent, where there is more than one. */
static int embedding_of(struct ref_ctx *x, uint32_t i, uint32_t token, const void *const part[], float *out) {
    struct kern *k = x->r->k;
    const uint64_t e = x->r->m->hidden;
    uint32_t id;
    int r = token_of(x, &plan_rows(x->p)[i], token, &id);
    if (r)
        return r;
    if (kern_is_cut(k))
        memcpy(out, (const float *)part[FAULT(ranks_embed_of_first) ? 0 : kern_vocab_owner(k, id)] + i * e,
               e * sizeof(float));
    else
        memcpy(out, ref_row(x->r, KERN_EMBED, 0, 0, id), e * sizeof(float));
    return 0;
}

/* Is it this rank that reads the row? */
static bool reads_row(const struct ref_ctx *x, uint32_t i, uint32_t token) {
    struct kern *k = x->r->k;
    return kern_vocab_owner(k, host_token(k, &plan_seqs(x->p)[plan_rows(x->p)[i].seq], token)) == k->cfg.rank;
}

int ref_embed(struct ref_ctx *x) {
    const struct kern_model_desc *m = x->r->m;
    const uint64_t e = m->hidden;
    const void *part[COMM_MAX_RANKS] = {NULL};
    int r = kern_is_cut(x->r->k) ? exchange_embeddings(x, false, part) : 0;
    for (uint32_t i = 0; !r && i < x->n_rows; i++) {
        const struct kern_row *row = &plan_rows(x->p)[i];
        float *s = x->l->streams + i * m->hc_mult * e;
        if (row->embed != KERN_NONE) {
            memcpy(s, plan_embeds(x->p) + row->embed * e, e * sizeof(float));
        } else {
            r = embedding_of(x, i, row->token, part, s);
            if (!r && first_use(plan_rows(x->p), i) && reads_row(x, i, row->token))
                ref_count_row(x, KERN_EMBED);
        }
        for (uint32_t h = 1; h < m->hc_mult; h++)
            memcpy(s + h * e, s, e * sizeof(float));
    }
    return r;
}

static void sinkhorn(double *c, uint32_t n, uint32_t passes, double eps) {
    for (uint32_t pass = 0; pass < 2 * passes - 1; pass++) {
        bool columns = pass % 2 == 0; /* columns first, columns last */
        for (uint32_t a = 0; a < n; a++) {
            double sum = eps;
            for (uint32_t b = 0; b < n; b++)
                sum += columns ? c[b * n + a] : c[a * n + b];
            for (uint32_t b = 0; b < n; b++)
                *(columns ? &c[b * n + a] : &c[a * n + b]) /= sum;
        }
    }
}

/* From the streams of one row: the mixed input (to out) and what site_out will need. */
static void mhc_in(struct ref_ctx *x, uint32_t site, uint32_t row, float *out) {
    const struct kern_model_desc *m = x->r->m;
    const uint32_t n = m->hc_mult;
    const uint64_t e = m->hidden;
    const uint32_t fn = site ? KERN_HC_FFN_FN : KERN_HC_ATTN_FN;
    const float *base = ref_vector(x->r, site ? KERN_HC_FFN_BASE : KERN_HC_ATTN_BASE, x->layer);
    const float *scale = ref_vector(x->r, site ? KERN_HC_FFN_SCALE : KERN_HC_ATTN_SCALE, x->layer);
    const float *f = x->l->streams + row * n * e;
    const double eps = (double)m->hc_eps;
    const double norm_eps = FAULT(mhc_eps) ? eps : (double)m->rms_eps;
    double r = 1.0 / sqrt(ref_dot(f, f, n * e) / (double)(n * e) + norm_eps);
    double mapped[KERN_MAX_HC * (2 + KERN_MAX_HC)], pre[KERN_MAX_HC], c[KERN_MAX_HC * KERN_MAX_HC];
    for (uint32_t i = 0; i < n * (2 + n); i++) {
        uint32_t group = i < n ? 0 : i < 2 * n ? 1 : 2;
        mapped[i] = ref_dot(ref_row(x->r, fn, x->layer, 0, i), f, n * e) * r * (double)scale[group] + (double)base[i];
    }
    x->c->flops += 2 * n * (2 + n) * n * e;
    for (uint32_t i = 0; i < n; i++) {
        pre[i] = ref_sigmoid(mapped[i]) + eps;
        x->l->post[row * n + i] = (float)(2.0 * ref_sigmoid(mapped[n + i]));
        double top = mapped[2 * n + i * n], sum = 0;
        for (uint32_t j = 1; j < n; j++)
            top = fmax(top, mapped[2 * n + i * n + j]);
        for (uint32_t j = 0; j < n; j++)
            sum += c[i * n + j] = exp(mapped[2 * n + i * n + j] - top);
        for (uint32_t j = 0; j < n; j++)
            c[i * n + j] = c[i * n + j] / sum + eps;
    }
    sinkhorn(c, n, FAULT(sinkhorn_short) && m->hc_iters > 1 ? m->hc_iters - 1 : m->hc_iters, eps);
    for (uint32_t i = 0; i < n * n; i++)
        x->l->comb[row * n * n + i] = (float)c[i];
    for (uint64_t d = 0; d < e; d++) {
        double s = 0;
        for (uint32_t i = 0; i < n; i++)
            s += pre[i] * (double)f[i * e + d];
        out[d] = (float)s;
    }
}

static bool is_mhc(const struct ref_ctx *x) {
    return x->r->m->layer[x->layer].resid == KERN_RESID_MHC;
}
static float *plain_stream(const struct ref_ctx *x, uint32_t row) {
    return (x->is_draft ? x->l->dstream : x->l->streams) + (uint64_t)row * x->r->m->hidden;
}

void ref_site_in(struct ref_ctx *x, uint32_t site) {
    const struct kern_model_desc *m = x->r->m;
    const float *w = ref_vector(x->r, site ? KERN_POST_NORM : KERN_IN_NORM, x->layer);
    ref_count(x, site ? KERN_POST_NORM : KERN_IN_NORM, x->layer);
    if (is_mhc(x)) {
        ref_count(x, site ? KERN_HC_FFN_FN : KERN_HC_ATTN_FN, x->layer);
        ref_count(x, site ? KERN_HC_FFN_BASE : KERN_HC_ATTN_BASE, x->layer);
        ref_count(x, site ? KERN_HC_FFN_SCALE : KERN_HC_ATTN_SCALE, x->layer);
    }
    for (uint32_t i = 0; i < x->n_rows; i++) {
        if (!ref_active(x, i))
            continue;
        float *out = x->l->x + (uint64_t)i * m->hidden;
        const float *in = out;
        if (is_mhc(x))
            mhc_in(x, site, i, out);
        else
            in = plain_stream(x, i);
        ref_rmsnorm(in, w, m->hidden, m->rms_eps, out);
    }
}

static void mhc_out(struct ref_ctx *x, uint32_t row) {
    const uint32_t n = x->r->m->hc_mult;
    const uint64_t e = x->r->m->hidden;
    float *f = x->l->streams + row * n * e;
    const float *y = x->l->y + row * e, *post = x->l->post + row * n, *c = x->l->comb + row * n * n;
    for (uint64_t d = 0; d < e; d++) {
        double out[KERN_MAX_HC];
        for (uint32_t j = 0; j < n; j++) {
            out[j] = (double)post[j] * (double)y[d];
            for (uint32_t i = 0; i < n; i++)
                out[j] +=
                    (double)(FAULT(comb_transposed) ? c[j * n + i] : c[i * n + j]) * (double)f[i * e + d];
        }
        for (uint32_t j = 0; j < n; j++)
            f[j * e + d] = (float)out[j];
    }
}

/* y becomes the sum of all ranks' y, in rank order. */
static int sum_ranks(struct ref_ctx *x) {
    struct kern *k = x->r->k;
    const uint64_t n = x->n_rows * (uint64_t)x->r->m->hidden;
    const void *part[COMM_MAX_RANKS];
    if (!kern_is_cut(k))
        return 0;
    memcpy(kern_part_slot_of(k), x->l->y, n * sizeof(float));
    int r = kern_exchange(k, x->p->lane, x->stage, n * sizeof(float), part);
    for (uint64_t i = 0; !r && i < n; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < k->cfg.n_ranks; j++)
            sum += (double)((const float *)part[j])[i];
        x->l->y[i] = (float)sum;
    }
    return r;
}

int ref_site_out(struct ref_ctx *x, uint32_t site) {
    const uint64_t e = x->r->m->hidden;
    (void)site; /* what the site's entry computed is still in post and comb */
    int r = sum_ranks(x);
    if (r)
        return r;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        if (!ref_active(x, i))
            continue;
        if (is_mhc(x)) {
            mhc_out(x, i);
            continue;
        }
        float *s = plain_stream(x, i);
        for (uint64_t d = 0; d < e; d++)
            s[d] = x->l->y[i * e + d] + (FAULT(residual_missing) ? 0.0f : s[d]);
    }
    return 0;
}

void ref_final(struct ref_ctx *x) {
    const struct kern_model_desc *m = x->r->m;
    const uint64_t e = m->hidden;
    ref_count(x, KERN_FINAL_NORM, 0);
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const float *f = x->l->streams + i * m->hc_mult * e;
        float *out = x->l->hidden + i * e;
        for (uint64_t d = 0; d < e; d++) {
            double s = 0;
            for (uint32_t h = 0; h < m->hc_mult; h++)
                s += (double)f[h * e + d];
            out[d] = (float)(s / m->hc_mult);
        }
        ref_rmsnorm(out, ref_vector(x->r, KERN_FINAL_NORM, 0), e, m->rms_eps, out);
    }
}

int ref_draft_in(struct ref_ctx *x) {
    const struct kern_model_desc *m = x->r->m;
    const uint64_t e = m->hidden;
    float *both = x->r->tmp[0]; /* the next token's embedding, then the trunk's hidden */
    const void *part[COMM_MAX_RANKS] = {NULL};
    int r = kern_is_cut(x->r->k) ? exchange_embeddings(x, true, part) : 0;
    if (r)
        return r;
    if (x->l->n_draft) {
        ref_count(x, KERN_DRAFT_ENORM, x->layer);
        ref_count(x, KERN_DRAFT_HNORM, x->layer);
        ref_count(x, KERN_DRAFT_EH, x->layer);
    }
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const struct kern_row *row = &plan_rows(x->p)[i];
        if (!x->l->draft[i])
            continue;
        r = embedding_of(x, i, row->next, part, both);
        if (r)
            return r;
        if (reads_row(x, i, row->next))
            ref_count_row(x, KERN_EMBED);
        ref_rmsnorm(both, ref_vector(x->r, KERN_DRAFT_ENORM, x->layer), e, m->rms_eps, both);
        ref_rmsnorm(x->l->hidden + i * e, ref_vector(x->r, KERN_DRAFT_HNORM, x->layer), e, m->rms_eps,
                    both + e);
        ref_linear(x, KERN_DRAFT_EH, 0, both, x->l->dstream + i * e);
    }
    return 0;
}

void ref_draft_out(struct ref_ctx *x) {
    const struct kern_model_desc *m = x->r->m;
    if (x->l->n_draft)
        ref_count(x, KERN_DRAFT_NORM, x->layer);
    for (uint32_t i = 0; i < x->n_rows; i++)
        if (x->l->draft[i])
            ref_rmsnorm(x->l->dstream + (uint64_t)i * m->hidden, ref_vector(x->r, KERN_DRAFT_NORM, x->layer),
                        m->hidden, m->rms_eps, x->l->dhidden + (uint64_t)i * m->hidden);
}

/* Logits of the plan's entries of a source: this rank's rows of the head, then all ranks'. */
static int exchange_logits(struct ref_ctx *x, uint32_t source, const float *from) {
    struct kern *k = x->r->k;
    const uint64_t rows = x->r->m->vocab_rows, all = k->whole.vocab_rows;
    const void *part[COMM_MAX_RANKS];
    float *own = kern_part_slot_of(k);
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->p->n_samples; i++)
        if (plan_samples(x->p)[i].source == source)
            ref_linear(x, KERN_HEAD, 0, from + (uint64_t)plan_samples(x->p)[i].row * x->r->m->hidden, own + n++ * rows);
    int r = kern_exchange(k, x->p->lane, x->stage, n * rows * sizeof(float), part);
    for (uint32_t i = 0, at = 0; !r && i < x->p->n_samples; i++) {
        if (plan_samples(x->p)[i].source != source)
            continue;
        for (uint32_t rank = 0; rank < k->cfg.n_ranks; rank++) {
            uint64_t first = kern_vocab_at(k, rank), width = kern_vocab_at(k, rank + 1) - first;
            memcpy(x->l->logits + i * all + (FAULT(ranks_vocab_unmoved) ? 0 : first),
                   (const float *)part[rank] + at * width, width * sizeof(float));
        }
        at++;
    }
    return r;
}

int ref_head(struct ref_ctx *x, uint32_t source) {
    struct kern *k = x->r->k;
    const float *from = source == KERN_SOURCE_DRAFT ? x->l->dhidden : x->l->hidden;
    bool used = false;
    x->layer = 0; /* the head is a global part */
    int r = kern_is_cut(k) ? exchange_logits(x, source, from) : 0;
    for (uint32_t i = 0; !r && i < x->p->n_samples; i++) {
        const struct kern_sample *s = &plan_samples(x->p)[i];
        float *logits = x->l->logits + (uint64_t)i * k->whole.vocab_rows;
        struct kern_result *result = &k->results[x->p->lane][i];
        if (s->source != source)
            continue;
        used = true;
        if (!kern_is_cut(k))
            ref_linear(x, KERN_HEAD, 0, from + (uint64_t)s->row * x->r->m->hidden, logits);
        host_sample(&k->whole, x->p, i, logits, x->r->sampling, result);
        host_sample_keep(k, x->p, i, result);
    }
    if (used)
        ref_count(x, KERN_HEAD, 0);
    return r;
}
