/* SPDX-License-Identifier: MIT */
/* cuda_layout.c: where everything lies in the five memory blocks, and which shapes and stores the kernels take. Pure
 * arithmetic on a checked configuration; kern_query() and kern_open() use the same function, so they cannot disagree.
 * How the bytes of a matrix lie inside is cuda_mat_layout()'s. */
#include "cuda_host.h"

#include <errno.h>
#include <stdio.h>

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t r = *at;
    *at = (r + bytes + 255) & ~255ull; /* 256: rows begin on a sector, and any vector load is aligned */
    return r;
}

/* ---- weights -------------------------------------------------------------------------------------------- */

struct placing {
    const struct kern_config *cfg;
    struct cuda_layout *l;
    uint64_t at;
    uint32_t layer;
    char *err;
    size_t err_len;
    int rc;
};

static struct kern_store store_of(const struct placing *w, uint32_t part, uint32_t expert) {
    const struct kern_tensor_id id = {.part = part, .layer = w->layer, .expert = expert};
    return kern_matrix_store(w->cfg, &id);
}

static void refuse(struct placing *w, uint32_t part, const char *why) {
    struct kern_part_info info = {0};
    char name[40];
    struct kern_store s = store_of(w, part, 0);
    if (w->rc)
        return;
    kern_part_info(&w->cfg->model, part, w->layer, &info);
    snprintf(w->err, w->err_len,
             "layer %u %s is stored as %s, [%llu, %llu]: %s; start with backend cpu, or pack it anew", w->layer,
             kern_part_name(part), kern_store_name(&s, name, sizeof(name)), (unsigned long long)info.rows,
             (unsigned long long)info.cols, why);
    w->rc = -EINVAL;
}

static void move(struct cuda_mat *m, uint64_t by) {
    m->codes += by;
    m->scale += m->scale ? by : 0;
    m->global += m->global ? by : 0;
    m->suh += m->suh ? by : 0;
    m->svh += m->svh ? by : 0;
}

/* A matrix as products read it: n outputs of k inputs, `heads` of them; experts: one after the other. */
static struct cuda_mat shaped(struct placing *w, uint32_t part, uint64_t n, uint64_t k, uint32_t heads,
                              uint32_t transposed) {
    struct cuda_mat m = {.heads = heads, .transposed = transposed};
    struct kern_part_info info = {0};
    const struct kern_store s = store_of(w, part, 0);
    uint64_t bytes = 0;
    kern_part_info(&w->cfg->model, part, w->layer, &info);
    for (uint32_t e = 1; e < info.experts; e++) {
        const struct kern_store other = store_of(w, part, e);
        if (memcmp(&other, &s, sizeof(s)))
            refuse(w, part, "the kernels want all experts of a layer stored alike");
    }
    if (cuda_mat_layout(&s, (uint32_t)n, (uint32_t)k, &m, &bytes))
        refuse(w, part, "the kernels do not compute this");
    if (w->rc)
        return m;
    m.stride = cuda_pad(bytes, 256);
    kern_store_bytes(&s, info.rows, info.cols, &m.bytes);
    move(&m, take(&w->at, info.experts > 1 ? m.stride * info.experts : bytes));
    return m;
}

static struct cuda_mat mat(struct placing *w, uint32_t part) {
    struct kern_part_info info;
    if (!kern_part_info(&w->cfg->model, part, w->layer, &info))
        return (struct cuda_mat){.n = 0};
    return shaped(w, part, info.rows, info.cols, 1, 0);
}

static uint64_t vec(struct placing *w, uint32_t part) {
    struct kern_part_info info;
    if (!kern_part_info(&w->cfg->model, part, w->layer, &info))
        return 0;
    return take(&w->at, info.rows * info.cols * sizeof(float));
}

static uint64_t piece_of(struct placing *w, uint32_t part, enum kern_piece piece) {
    struct kern_part_info info;
    struct kern_piece_info p = {0};
    const struct kern_store s = store_of(w, part, 0);
    if (!kern_part_info(&w->cfg->model, part, w->layer, &info) ||
        kern_store_piece(&s, info.rows, info.cols, piece, &p) || !p.rows)
        return 0;
    return take(&w->at, p.rows * p.row_bytes);
}

/* Rows as they are stored. */
static uint64_t plain(struct placing *w, uint32_t part, uint32_t *ret_format) {
    *ret_format = store_of(w, part, 0).format;
    return piece_of(w, part, KERN_PIECE_CODES);
}

static void place_kda(struct placing *w, struct cuda_layer *x) {
    const struct kern_model_desc *m = &w->cfg->model;
    x->q = mat(w, KERN_KDA_Q);
    x->k = mat(w, KERN_KDA_K);
    x->v = mat(w, KERN_KDA_V);
    x->fa = mat(w, KERN_KDA_FA);
    x->ga = mat(w, KERN_KDA_GA);
    x->b = mat(w, KERN_KDA_B);
    x->fb = mat(w, KERN_KDA_FB);
    x->gb = mat(w, KERN_KDA_GB);
    x->kda_o = mat(w, KERN_KDA_O);
    x->conv = take(&w->at, 3ull * m->kda_heads * m->kda_dim * m->conv_width * sizeof(float));
    x->a_log = vec(w, KERN_KDA_A_LOG);
    x->dt_bias = vec(w, KERN_KDA_DT_BIAS);
    x->o_norm = vec(w, KERN_KDA_O_NORM);
}

static void place_kvb(struct placing *w, struct cuda_layer *x) {
    const struct kern_model_desc *m = &w->cfg->model;
    bool split = m->layer[w->layer].kvb_split;
    x->uk = shaped(w, split ? KERN_MLA_KB : KERN_MLA_KVB, m->kv_rank, m->nope_dim, m->mla_heads, !split);
    x->uv = shaped(w, split ? KERN_MLA_VB : KERN_MLA_KVB, m->v_dim, m->kv_rank, m->mla_heads, 0);
    if (split)
        return;
    const uint64_t both = x->uk.bytes, rows = m->nope_dim + (uint64_t)m->v_dim;
    x->uk.bytes = both * m->nope_dim / rows;
    x->uv.bytes = both - x->uk.bytes;
}

static void place_mla(struct placing *w, struct cuda_layer *x) {
    x->qa = mat(w, KERN_MLA_QA);
    x->kva = mat(w, KERN_MLA_KVA);
    x->qb = mat(w, KERN_MLA_QB);
    x->mla_o = mat(w, KERN_MLA_O);
    x->qa_norm = vec(w, KERN_MLA_QA_NORM);
    x->kva_norm = vec(w, KERN_MLA_KVA_NORM);
    place_kvb(w, x);
    if (w->cfg->model.layer[w->layer].index != KERN_INDEX_FULL)
        return;
    x->idx_qb = mat(w, KERN_IDX_QB);
    x->idx_k = mat(w, KERN_IDX_K);
    x->idx_gate = mat(w, KERN_IDX_GATE);
    const struct kern_store s = store_of(w, KERN_IDX_W, 0);
    if (cuda_is_plain(&s)) {
        struct kern_part_info info = {0};
        kern_part_info(&w->cfg->model, KERN_IDX_W, w->layer, &info);
        x->idx_w = (struct cuda_mat){.store = s,
                                     .n = (uint32_t)info.rows,
                                     .k = (uint32_t)info.cols,
                                     .n_pad = (uint32_t)info.rows,
                                     .k_pad = (uint32_t)info.cols,
                                     .heads = 1};
        x->idx_w.codes = piece_of(w, KERN_IDX_W, KERN_PIECE_CODES);
        kern_store_bytes(&s, info.rows, info.cols, &x->idx_w.bytes);
    } else {
        x->idx_w = mat(w, KERN_IDX_W);
    }
    x->knorm_w = vec(w, KERN_IDX_KNORM_W);
    x->knorm_b = vec(w, KERN_IDX_KNORM_B);
    x->ape = vec(w, KERN_IDX_APE);
}

static void place_mlp(struct placing *w, struct cuda_layer *x) {
    bool moe = w->cfg->model.layer[w->layer].mlp == KERN_MLP_MOE;
    x->gate = mat(w, moe ? KERN_SH_GATE : KERN_MLP_GATE);
    x->up = mat(w, moe ? KERN_SH_UP : KERN_MLP_UP);
    x->down = mat(w, moe ? KERN_SH_DOWN : KERN_MLP_DOWN);
    if (!moe)
        return;
    x->router = plain(w, KERN_ROUTER, &x->router_format);
    x->router_bias = vec(w, KERN_ROUTER_BIAS);
    x->exp_gate = mat(w, KERN_EXP_GATE);
    x->exp_up = mat(w, KERN_EXP_UP);
    x->exp_down = mat(w, KERN_EXP_DOWN);
}

static void place_layer(struct placing *w, struct cuda_layer *x) {
    const struct kern_model_desc *m = &w->cfg->model;
    x->in_norm = vec(w, KERN_IN_NORM);
    x->post_norm = vec(w, KERN_POST_NORM);
    for (uint32_t s = 0; m->layer[w->layer].resid == KERN_RESID_MHC && s < 2; s++) {
        x->hc_fn[s] = plain(w, s ? KERN_HC_FFN_FN : KERN_HC_ATTN_FN, &x->hc_format[s]);
        x->hc_base[s] = vec(w, s ? KERN_HC_FFN_BASE : KERN_HC_ATTN_BASE);
        x->hc_scale[s] = vec(w, s ? KERN_HC_FFN_SCALE : KERN_HC_ATTN_SCALE);
    }
    x->enorm = vec(w, KERN_DRAFT_ENORM);
    x->hnorm = vec(w, KERN_DRAFT_HNORM);
    x->draft_norm = vec(w, KERN_DRAFT_NORM);
    x->eh = mat(w, KERN_DRAFT_EH);
    if (m->layer[w->layer].mix == KERN_MIX_KDA)
        place_kda(w, x);
    else
        place_mla(w, x);
    place_mlp(w, x);
}

static int place_weights(const struct kern_config *cfg, struct cuda_layout *l, char *err, size_t err_len) {
    struct placing w = {.cfg = cfg, .l = l, .at = 256, .err = err, .err_len = err_len}; /* an offset of 0 means none */
    for (w.layer = 0; w.layer < kern_total_layers(&cfg->model); w.layer++)
        place_layer(&w, &l->layer[w.layer]);
    w.layer = 0;
    l->final_norm = vec(&w, KERN_FINAL_NORM);
    l->head = mat(&w, KERN_HEAD);
    l->embed = piece_of(&w, KERN_EMBED, KERN_PIECE_CODES);
    l->embed_scale = piece_of(&w, KERN_EMBED, KERN_PIECE_SCALE);
    l->embed_global = piece_of(&w, KERN_EMBED, KERN_PIECE_GLOBAL);
    l->weight_bytes = w.at;
    return w.rc;
}

/* ---- shapes --------------------------------------------------------------------------------------------- */

static void place_dims(const struct kern_config *cfg, uint32_t vocab_rows, struct cuda_dims *d) {
    const struct kern_model_desc *m = &cfg->model;
    const uint32_t p = m->kda_heads * m->kda_dim, pools = m->index_kpool ? m->index_topk / m->index_kpool : 0;
    *d = (struct cuda_dims){
        .hidden = m->hidden,
        .hidden_pad = (uint32_t)cuda_pad(m->hidden, CUDA_PAD_K),
        .hc = m->hc_mult,
        .hc_rows = m->layer[0].resid == KERN_RESID_MHC ? m->hc_mult * (2 + m->hc_mult) : 0,
        .hc_iters = m->hc_iters,
        .hc_eps = m->hc_eps,
        .rms_eps = m->rms_eps,
        .kda_heads = m->kda_heads,
        .kda_dim = m->kda_dim,
        .kda_p = p,
        .conv_width = m->conv_width,
        .gate_bound = m->gate_bound,
        .pend_row = (uint32_t)cuda_pad(6ull * p + m->kda_heads, 4),
        .mla_heads = m->mla_heads,
        .q_rank = m->q_rank,
        .kv_rank = m->kv_rank,
        .nope = m->nope_dim,
        .rope = m->rope_dim,
        .v_dim = m->v_dim,
        .rope_theta = m->rope_theta,
        .index_heads = m->index_heads,
        .index_dim = m->index_dim,
        .index_kpool = m->index_kpool,
        .max_pools = m->index_kpool ? cfg->max_context / m->index_kpool + 1 : 1,
        .dense_width = m->dense_width,
        .expert_width = m->expert_width,
        .shared_width = m->n_shared * m->expert_width,
        .n_experts = m->n_experts,
        .n_top = m->n_top,
        .n_shared = m->n_shared,
        .routed_scale = m->routed_scale,
        .swiglu_limit = m->swiglu_limit,
        .vocab_rows = vocab_rows,
        .vocab_tokens = m->vocab_tokens,
        .own_vocab = m->vocab_rows,
        .cache = cfg->cache,
        .latent_bytes = (uint32_t)host_latent_bytes(cfg->cache, m->kv_rank, m->rope_dim),
        .key_bytes = (uint32_t)host_key_bytes(cfg->cache, m->index_dim),
        .rope_at = (uint32_t)host_rope_at(cfg->cache, m->kv_rank),
    };
    d->sel_pools = pools < d->max_pools ? pools : d->max_pools; /* more can never be there to choose from */
}

/* A slot: what counts as its content first (per KDA layer the state and the convolution window, per indexed layer the
 * ring of raw keys and gates, where pools have several tokens), then the pending rows. A page: per MLA layer latents,
 * then keys. */
static void place_state(const struct kern_config *cfg, struct cuda_layout *l) {
    const struct kern_model_desc *m = &cfg->model;
    struct cuda_dims *d = &l->d;
    uint64_t slot = 0, page = 0;
    for (uint32_t i = 0; i < kern_total_layers(m); i++) {
        struct cuda_layer *x = &l->layer[i];
        bool index = m->layer[i].index == KERN_INDEX_FULL;
        if (m->layer[i].mix == KERN_MIX_KDA) {
            x->state = take(&slot, (uint64_t)d->kda_p * d->kda_dim * sizeof(float));
            x->window = take(&slot, (d->conv_width - 1) * 3ull * d->kda_p * sizeof(float));
            continue;
        }
        x->latents = take(&page, (uint64_t)KERN_PAGE_TOKENS * d->latent_bytes);
        if (index)
            x->keys = take(&page, (uint64_t)KERN_PAGE_TOKENS / d->index_kpool * d->key_bytes);
        if (index && d->index_kpool > 1)
            x->ring = take(&slot, (uint64_t)KERN_TAIL_RING * 2 * d->index_dim * sizeof(float));
    }
    l->slot_bytes = slot;
    d->slot_committed = slot;
    for (uint32_t i = 0; i < kern_total_layers(m); i++)
        if (m->layer[i].mix == KERN_MIX_KDA)
            l->layer[i].pend = take(&slot, (uint64_t)KERN_MAX_WINDOW * d->pend_row * sizeof(float));
    d->slot_bytes = slot ? slot : 256; /* never 0: whoever divides memory by slots or pages finds something */
    d->page_bytes = page ? page : 256;
}

static void place_strides(const struct kern_config *cfg, struct cuda_layout *l) {
    const struct kern_model_desc *m = &cfg->model;
    bool moe = false;
    for (uint32_t i = 0; i < kern_total_layers(m); i++)
        moe = moe || m->layer[i].mlp == KERN_MLP_MOE;
    l->y_parts = moe ? l->d.n_top + 1 : 1;
    l->hc_splits = (l->d.hidden + CUDA_HC_SLICE - 1) / CUDA_HC_SLICE;
}

/* ---- work memory ---------------------------------------------------------------------------------------- */

/* EXL3's products need their inputs transformed. */
static bool has_exl3(const struct kern_config *cfg) {
    struct kern_tensor_id id = {0};
    struct kern_part_info info;
    for (id.layer = 0; id.layer < kern_total_layers(&cfg->model); id.layer++)
        for (id.part = 1; id.part < KERN_PART_END; id.part++)
            for (id.expert = 0; kern_part_info(&cfg->model, id.part, id.layer, &info) && id.expert < info.experts;
                 id.expert++)
                if (info.matrix && kern_matrix_store(cfg, &id).format == KERN_EXL3)
                    return true;
    return false;
}

struct work {
    char *base;
    uint64_t at;
};

static void *room(struct work *w, uint64_t n, uint64_t size) {
    uint64_t at = take(&w->at, n * size);
    return w->base ? w->base + at : NULL;
}

static void place_lane(const struct kern_config *cfg, const struct cuda_layout *l, uint64_t rows, struct work *w,
                       struct cuda_lane *x) {
    const struct cuda_dims *d = &l->d;
    const uint64_t f = sizeof(float), samples = cfg->max_samples, lat = d->kv_rank + (uint64_t)d->rope;
    const uint64_t nope_pad = cuda_pad(d->nope, CUDA_PAD_K), kv_pad = cuda_pad(d->kv_rank, CUDA_PAD_K);
    const uint64_t grams = d->hc * (d->hc + 1ull) / 2, drafts = cfg->model.n_draft ? rows : 0;
    const uint64_t group = rows < CUDA_GROUP ? rows : CUDA_GROUP;
    uint64_t had, raw;
    x->streams = room(w, rows * d->hc * d->hidden, f);
    x->plain = room(w, drafts * d->hidden, f);
    x->hidden_f = room(w, rows * d->hidden, f);
    x->draft_f = room(w, drafts * d->hidden, f);
    x->u_f = room(w, rows * d->hidden, f);
    x->u = room(w, rows * d->hidden_pad, sizeof(uint16_t));
    x->hc_part = room(w, rows * l->hc_splits * (d->hc_rows + grams), f);
    x->post = room(w, rows * d->hc, f);
    x->comb = room(w, rows * d->hc * d->hc, f);
    x->y = room(w, rows * l->y_parts * d->hidden, f);
    x->z = room(w, rows * l->mix.z.ld, f);
    x->mid = room(w, rows * l->mix.mid.ld, sizeof(uint16_t));
    x->wide = room(w, rows * l->mix.wide_ld, f);
    x->qa = room(w, rows * d->mla_heads * lat, f);
    x->q16 = room(w, rows * d->mla_heads * nope_pad, sizeof(uint16_t));
    x->attn_part = room(w, group * l->mix.attn_splits * d->mla_heads * (d->kv_rank + 2ull), f);
    x->ctx = room(w, rows * d->mla_heads * kv_pad, sizeof(uint16_t));
    x->omega = room(w, rows * d->index_heads, f);
    x->scores = room(w, group * d->max_pools, f);
    x->cand = room(w, group * d->max_pools, sizeof(uint32_t));
    x->hist = room(w, group * CUDA_HIST, sizeof(uint32_t));
    x->sel = room(w, rows * d->sel_pools, sizeof(uint32_t));
    x->n_sel = room(w, rows, sizeof(uint32_t));
    x->router = room(w, rows * d->n_experts, f);
    x->top_id = room(w, rows * d->n_top, sizeof(uint32_t));
    x->top_w = room(w, rows * d->n_top, f);
    x->items = room(w, 1 + 3 * rows * d->n_top, sizeof(uint32_t));
    x->item_rows = room(w, rows * d->n_top, sizeof(uint32_t));
    x->act = room(w, rows * d->n_top * cuda_pad(d->expert_width, CUDA_PAD_K), sizeof(uint16_t));
    cuda_around_room(d, rows > samples ? rows : samples, &had, &raw); /* the head has as many rows as samples */
    x->had = room(w, has_exl3(cfg) ? had : 0, 1);
    x->had_out = room(w, raw, 1);
    x->head_in = room(w, samples * d->hidden_pad, sizeof(uint16_t));
    x->logits = room(w, samples * d->vocab_rows, f);
    x->sampling = room(w, samples, cuda_sample_scratch(d->vocab_rows));
}

static void place_work(const struct kern_config *cfg, char *base, struct cuda_layout *l) {
    struct work w = {.base = base};
    for (uint32_t lane = 0; lane < KERN_LANES; lane++) {
        place_lane(cfg, l, cfg->max_rows[lane], &w, &l->lane[lane]);
        l->step[lane] = take(&w.at, l->step_bytes[lane]);
    }
    l->last = take(&w.at, cfg->n_slots * (uint64_t)sizeof(uint32_t));
    l->stage_dev = take(&w.at, (uint64_t)CUDA_STAGES * CUDA_STAGE_BYTES);
    l->work_bytes = w.at;
}

/* Header, both tables, the samples' lists, the plan. */
static uint64_t step_bytes(const struct kern_config *cfg, uint64_t rows) {
    uint64_t tables = 2 * (rows * sizeof(struct cuda_row) + cfg->max_seqs * (uint64_t)sizeof(struct cuda_seq));
    uint64_t lists = 2 * (uint64_t)cfg->max_samples * sizeof(uint32_t);
    return cuda_pad(sizeof(struct cuda_step) + tables + lists + 256 + cfg->max_plan_bytes, 256);
}

static void place_control(const struct kern_config *cfg, uint32_t vocab_rows, struct cuda_layout *l) {
    uint64_t at = cuda_pad(kern_ctl_bytes(cfg), 256);
    take(&at, sizeof(struct cuda));
    l->progs = take(&at, KERN_MAX_PROGS * sizeof(struct cuda_prog));
    l->reports = take(&at, KERN_LANES * sizeof(struct cuda_report));
    l->seen = take(&at, (vocab_rows + 7ull) / 8);
    for (uint32_t lane = 0; lane < KERN_LANES; lane++) {
        l->step_bytes[lane] = step_bytes(cfg, cfg->max_rows[lane]);
        l->upload[lane] = take(&at, l->step_bytes[lane]);
    }
    l->stage_host = take(&at, (uint64_t)CUDA_STAGES * CUDA_STAGE_BYTES);
    l->ctl_bytes = at;
}

int cuda_layout(const struct kern_config *cfg, uint32_t vocab_rows, char *work, struct cuda_layout *l, char *err,
                size_t err_len) {
    memset(l, 0, sizeof(*l));
    if (cfg->n_ranks > 1) {
        snprintf(err, err_len, "ranks: found %u, but backend cuda computes on one device: start with 1", cfg->n_ranks);
        return -EINVAL;
    }
    place_dims(cfg, vocab_rows, &l->d);
    int r = place_weights(cfg, l, err, err_len);
    if (r)
        return r;
    r = cuda_mix_shape(cfg, &l->d, &l->mix, err, err_len);
    if (r)
        return r;
    place_state(cfg, l);
    place_strides(cfg, l);
    place_control(cfg, vocab_rows, l);
    place_work(cfg, work, l);
    return 0;
}
