/* SPDX-License-Identifier: MIT */
/* cpu_mlp.c: dense feed-forward, and router, routed experts and shared expert.
 *
 * Rows are grouped by expert, so that each touched expert is read once for all its rows; a row's experts are
 * summed in ascending id whatever else is in the step, then the shared expert is added. */
#include "cpu.h"
#include "host.h"

enum { FEW_ROWS = 16, OUT_PANELS = 8 };

static uint32_t act_width(const struct cpu_dims *d) {
    return d->dense > d->shared ? d->dense : d->shared;
}

/* act = swiglu(gate x, up x): members share pairs of panels. */
static void gate_up(struct cpu_run *r, const struct cpu_mat *m, const float *x, uint32_t rows) {
    const struct cpu_dims *d = &r->c->l.d;
    size_t ld = act_width(d);
    uint32_t lo = share_lo(r, m->panels / 2), hi = share_hi(r, m->panels / 2);
    size_t wide = d->cq_n > 2 * ld ? d->cq_n : 2 * ld;
    if (lo == hi || !rows)
        return;
    float *gu = r->lane->wide + 32 * (size_t)lo;
    cpu_prod(r, m, 2 * lo, 2 * hi, x, d->e, NULL, rows, gu, wide);
    for (uint32_t i = 0; i < rows; i++)
        r->ops->swiglu(r->lane->act + i * ld + 16 * (size_t)lo, gu + i * wide, 16 * (hi - lo),
                       r->c->k->cfg.model.swiglu_limit);
}

void cpu_stage_dense(struct cpu_run *r, uint32_t layer) {
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_layer *l = &r->c->l.layer[layer];
    uint32_t rows = rows_of(r, layer)->n;
    gate_up(r, &l->gate_up, r->lane->u, rows);
    count_mat(r, &l->gate_up, rows);
    run_barrier(r);
    run_prod(r, &l->down, r->lane->act, act_width(d), rows, r->lane->y, d->e);
    count_mat(r, &l->down, rows);
    run_barrier(r);
}

/* ---- experts --------------------------------------------------------------------------------------------
 */

/* Rows by expert, in this member's own memory. Entries of an expert stand together, rows ascending. */
struct groups {
    uint32_t *id; /* [rows][n_top] chosen experts, ascending */
    float *w;
    uint32_t *row;   /* [entries] */
    float *weight;   /* [entries] */
    uint32_t *start; /* [experts + 1] */
};

/* Router products: members share rows times groups of experts. */
static void router(struct cpu_run *r, const struct cpu_layer *l, uint32_t rows) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct kern_store s = cpu_store(&r->c->k->cfg, KERN_ROUTER, (uint32_t)(l - r->c->l.layer));
    uint32_t groups = (m->n_experts + 3) / 4;
    uint64_t lo = (uint64_t)rows * groups * r->me / r->n, hi = (uint64_t)rows * groups * (r->me + 1) / r->n;
    for (uint64_t u = lo; u < hi; u++) {
        uint64_t row = u / groups, g = u % groups;
        uint32_t i1 = (uint32_t)g * 4 + 4;
        r->ops->dots(cpu_words(r, l->router), s.format, d->e, (uint32_t)g * 4, i1 < m->n_experts ? i1 : m->n_experts,
                     r->lane->u + row * d->e, r->lane->router + row * m->n_experts);
    }
}

/* The best by score plus bias; their weights from the scores alone. */
static void choose(struct cpu_run *r, const struct cpu_layer *l, uint32_t row, uint32_t *id, float *w) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    uint32_t n = m->n_experts, np = (uint32_t)pad16(n);
    float *s = r->scratch, *biased = s + np;
    uint64_t *rank = (uint64_t *)(void *)(biased + np);
    const float *bias = cpu_vec(r, l->router_bias);
    memset(s, 0, np * sizeof(float));
    memcpy(s, r->lane->router + (uint64_t)row * n, n * sizeof(float));
    r->ops->sigmoid(s, s, np);
    for (uint32_t e = 0; e < n; e++)
        biased[e] = s[e] + bias[e];
    host_topk(biased, n, m->n_top, rank, id);
    float sum = 0.0f;
    for (uint32_t j = 0; j < m->n_top; j++)
        sum += s[id[j]];
    for (uint32_t j = 0; j < m->n_top; j++)
        w[j] = s[id[j]] / (sum + 1e-20f) * m->routed_scale;
}

static void group_rows(struct cpu_run *r, uint32_t rows, struct groups *g) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    uint32_t n = rows * m->n_top;
    memset(g->start, 0, (m->n_experts + 1ul) * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++)
        g->start[g->id[i] + 1]++;
    for (uint32_t e = 0; e < m->n_experts; e++)
        g->start[e + 1] += g->start[e];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = g->start[g->id[i]]++;
        g->row[at] = i / m->n_top;
        g->weight[at] = g->w[i];
    }
    for (uint32_t e = m->n_experts; e > 0; e--) /* the filling moved each start to the next one's */
        g->start[e] = g->start[e - 1];
    g->start[0] = 0;
}

/* Few rows: every member chooses for itself and nobody waits. Many: the choice is shared out. */
static void choose_rows(struct cpu_run *r, const struct cpu_layer *l, uint32_t rows, struct groups *g) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    uint64_t n = (uint64_t)rows * m->n_top;
    bool few = rows <= FEW_ROWS;
    uint32_t *p = r->group;
    g->row = p;
    g->weight = (float *)(void *)(p + n);
    g->id = few ? p + 2 * n : r->lane->top_id;
    g->w = few ? (float *)(void *)(p + 3 * n) : r->lane->top_w;
    g->start = p + 4 * n;
    uint32_t lo = few ? 0 : share_lo(r, rows), hi = few ? rows : share_hi(r, rows);
    for (uint32_t row = lo; row < hi; row++)
        choose(r, l, row, g->id + (uint64_t)row * m->n_top, g->w + (uint64_t)row * m->n_top);
    if (!few)
        run_barrier(r);
    group_rows(r, rows, g);
}

static struct cpu_mat expert(const struct cpu_layer *l, const struct cpu_mat *first, uint32_t e) {
    struct cpu_mat m = *first;
    m.off += e * l->exp_stride;
    m.first_seg += 3 * e;
    return m;
}

/* Gate, up and activation of all touched experts. Where members can share each expert's pairs of panels evenly they do,
 * so that a member reads the same ones in every step and has them in its own caches; else the pairs of all of them. */
static void expert_gate_up(struct cpu_run *r, const struct cpu_layer *l, const struct groups *g) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    uint32_t pairs = d->expert / 16, touched = 0, seen = 0;
    size_t ld = 3 * (size_t)d->expert;
    for (uint32_t e = 0; e < m->n_experts; e++)
        touched += g->start[e + 1] > g->start[e];
    const bool same = pairs % r->n == 0;
    uint32_t lo = share_lo(r, same ? pairs : touched * pairs), hi = share_hi(r, same ? pairs : touched * pairs);
    for (uint32_t e = 0; e < m->n_experts; e++) {
        uint32_t first = g->start[e], n = g->start[e + 1] - first;
        if (!n)
            continue;
        uint32_t base = same ? 0 : seen++ * pairs, a = lo > base ? lo - base : 0, b = hi > base ? hi - base : 0;
        b = b < pairs ? b : pairs;
        if (a >= b)
            continue;
        struct cpu_mat w = expert(l, &l->exp_gate_up, FAULT(cpu_wrong_expert) && e > 0 ? e - 1 : e);
        float *x = r->lane->expert_act + first * ld;
        cpu_prod(r, &w, 2 * a, 2 * b, r->lane->u, d->e, g->row + first, n, x + 32 * (size_t)a, ld);
        for (uint32_t i = 0; i < n; i++)
            r->ops->swiglu(x + i * ld + 2 * (size_t)d->expert + 16 * (size_t)a, x + i * ld + 32 * (size_t)a,
                           16 * (b - a), m->swiglu_limit);
    }
    if (r->me == 0)
        r->count->experts += touched;
    for (uint32_t e = 0; r->me == 0 && e < m->n_experts; e++) {
        const struct cpu_mat gu = expert(l, &l->exp_gate_up, e), down = expert(l, &l->exp_down, e);
        count_mat(r, &gu, g->start[e + 1] - g->start[e]);
        count_mat(r, &down, g->start[e + 1] - g->start[e]);
        if (g->start[e + 1] > g->start[e])
            r->count->expert_bytes += cpu_mat_bytes(&r->c->l, &gu) + cpu_mat_bytes(&r->c->l, &down);
    }
}

/* Down and sum over some output panels: experts ascending, then the shared one. */
static void expert_down(struct cpu_run *r, const struct cpu_layer *l, const struct groups *g, uint32_t rows,
                        uint32_t p0, uint32_t p1) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    uint32_t width = 16 * (p1 - p0);
    size_t ld = 3 * (size_t)d->expert;
    float *y = r->lane->y + 16 * (size_t)p0;
    for (uint32_t i = 0; i < rows; i++)
        memset(y + (uint64_t)i * d->e, 0, width * sizeof(float));
    for (uint32_t e = 0; e < m->n_experts; e++) {
        struct cpu_mat w = expert(l, &l->exp_down, e);
        for (uint32_t i0 = g->start[e]; i0 < g->start[e + 1]; i0 += CPU_ROW_BLOCK) {
            uint32_t n = g->start[e + 1] - i0 < CPU_ROW_BLOCK ? g->start[e + 1] - i0 : CPU_ROW_BLOCK;
            cpu_prod(r, &w, p0, p1, r->lane->expert_act + i0 * ld + 2 * (size_t)d->expert, ld, NULL, n, r->scratch,
                     width);
            for (uint32_t i = 0; i < n; i++)
                r->ops->axpy(y + (uint64_t)g->row[i0 + i] * d->e, g->weight[i0 + i],
                             r->scratch + (size_t)i * width, width);
        }
    }
    for (uint32_t i0 = 0; m->n_shared && i0 < rows; i0 += CPU_ROW_BLOCK) {
        uint32_t n = rows - i0 < CPU_ROW_BLOCK ? rows - i0 : CPU_ROW_BLOCK;
        size_t act = act_width(d);
        cpu_prod(r, &l->down, p0, p1, r->lane->act + i0 * act, act, NULL, n, r->scratch, width);
        for (uint32_t i = 0; i < n; i++)
            r->ops->axpy(y + (uint64_t)(i0 + i) * d->e, 1.0f, r->scratch + (size_t)i * width, width);
    }
}

void cpu_stage_moe(struct cpu_run *r, uint32_t layer) {
    const struct kern_model_desc *m = &r->c->k->cfg.model;
    const struct cpu_dims *d = &r->c->l.d;
    const struct cpu_layer *l = &r->c->l.layer[layer];
    uint32_t rows = rows_of(r, layer)->n;
    const struct kern_store store = cpu_store(&r->c->k->cfg, KERN_ROUTER, layer);
    struct groups g;
    router(r, l, rows);
    if (rows)
        count_bytes(r, (uint64_t)m->n_experts * d->e * cpu_plain_size(&store) + pad16(m->n_experts) * 4);
    if (r->me == 0)
        r->count->flops += 2ull * m->n_experts * m->hidden * rows;
    if (m->n_shared) {
        gate_up(r, &l->gate_up, r->lane->u, rows);
        count_mat(r, &l->gate_up, rows);
        count_mat(r, &l->down, rows);
    }
    run_barrier(r);
    choose_rows(r, l, rows, &g);
    expert_gate_up(r, l, &g);
    run_barrier(r);
    for (uint32_t p = share_lo(r, d->e / 16), hi = share_hi(r, d->e / 16); p < hi; p += OUT_PANELS)
        expert_down(r, l, &g, rows, p, hi - p < OUT_PANELS ? hi : p + OUT_PANELS);
    run_barrier(r);
}
