/* SPDX-License-Identifier: MIT */
/* cpu_body_kda.h: one KDA head of one sequence over v16: convolution, gates, the recurrence, the output norm.
 *
 * The recurrence is run row by row for decode and prefill alike. Per state element and row it costs a
 * multiply and three fused multiply-adds in one pass over a tile of 32 value columns that stays in the
 * first-level cache, at nine tenths of the machine's peak. Chunked forms were measured against it
 * (kernels/NOTES.md): 1.05 to 1.1 times as fast with chunks of 16, slower with chunks of 64. That buys less
 * than it costs: this way a row's bits do not depend on chunks at all. */
#ifndef GLMD_CPU_BODY_KDA_H
#define GLMD_CPU_BODY_KDA_H

/* Row i of the raw inputs, i >= -(taps-1): what the slot holds, the kept pending rows, the rows of this step.
 */
ALWAYS const float *kda_raw(const struct cpu_kda_head *h, int64_t i) {
    if (i >= 0)
        return h->z + (size_t)i * h->ldz;
    int64_t j = i + (int64_t)(h->taps - 1) + h->keep;
    if (j < (int64_t)(h->taps - 1))
        return h->win + (size_t)j * h->ld_win;
    return h->pend_z + (size_t)(j - (int64_t)(h->taps - 1)) * h->ld_pend;
}

/* Convolution and SiLU of row i; q and k to unit length, q scaled. */
static void kda_conv(const struct cpu_kda_head *h, int64_t i, float *const qkv[3]) {
    const float *raw[CPU_MAX_CONV];
    for (uint32_t j = 0; j < h->taps; j++)
        raw[j] = kda_raw(h, i - (int64_t)(h->taps - 1) + j);
    for (int part = 0; part < 3; part++) {
        const float *w = h->conv + (size_t)part * h->conv_part;
        size_t off = (size_t)part * h->part;
        for (uint32_t c = 0; c < h->dimp; c += 16) {
            v16 s = v_mul(v_ld(w + c), v_ld(raw[0] + off + c));
            for (uint32_t j = 1; j < h->taps; j++)
                s = v_fma(v_ld(w + j * h->conv_tap + c), v_ld(raw[j] + off + c), s);
            v_st(qkv[part] + c, v_silu(s));
        }
        if (part == 2)
            break;
        float r = 1.0f / sqrtf(body_sumsq(qkv[part], h->dimp) + 1e-6f);
        v16 vr = v_set(part == 0 ? r * h->q_scale : r);
        for (uint32_t c = 0; c < h->dimp; c += 16)
            v_st(qkv[part] + c, v_mul(v_ld(qkv[part] + c), vr));
    }
}

/* a: raw decay inputs of a row, turned into the decay factors. */
ALWAYS void kda_decay(const struct cpu_kda_head *h, float *a, v16 rate) {
    for (uint32_t c = 0; c < h->dimp; c += 16) {
        v16 g = v_sigmoid(v_mul(rate, v_add(v_ld(a + c), v_ld(h->dt_bias + c))));
        v_st(a + c, v_exp(v_mul(v_set(h->bound), g)));
    }
}

struct kda_row {
    const float *k, *v, *a, *q; /* q NULL: only the state moves */
    float beta;
    float *out;
};

/* p = S^T (a k) for the first row of a run: later rows get theirs from the pass before. */
ALWAYS void kda_first(const int P, const float *s, size_t panel, uint32_t dim, const float *a, const float *k,
                      v16 *p) {
    V16_FOR(j, 0, P) {
        p[j] = v_set(0.0f);
    }
    for (uint32_t i = 0; i < dim; i++) {
        v16 ak = v_set(a[i] * k[i]);
        V16_FOR(j, 0, P) {
            p[j] = v_fma(ak, v_ld(s + (size_t)j * panel + (size_t)i * 16), p[j]);
        }
    }
}

/* One row: d = beta (v - p); S = a S + k d^T; o = S^T q; and p of the next row. `store` 0 leaves dst alone. In a
 * decode step a state comes from far away: the last row's pass asks for the tile after its own. */
ALWAYS void kda_pass(const int P, const int HAS_Q, const int HAS_NEXT, const int STORE, const float *src,
                     float *dst, size_t panel, uint32_t dim, const struct kda_row *row, const float *next_ak,
                     size_t v0, v16 *p) {
    v16 d[2], o[2], pn[2];
    V16_FOR(j, 0, P) {
        d[j] = v_mul(v_set(row->beta), v_sub(v_ld(row->v + v0 + 16 * (size_t)j), p[j]));
        o[j] = v_set(0.0f);
        pn[j] = v_set(0.0f);
    }
    for (uint32_t i = 0; i < dim; i++) {
        v16 a = v_set(row->a[i]), k = v_set(row->k[i]);
        v16 q = v_set(HAS_Q ? row->q[i] : 0.0f), ak = v_set(HAS_NEXT ? next_ak[i] : 0.0f);
        V16_FOR(j, 0, P) {
            size_t at = (size_t)j * panel + (size_t)i * 16;
            v16 s = v_fma(k, d[j], v_mul(a, v_ld(src + at)));
            if (!HAS_NEXT)
                __builtin_prefetch(src + at + 2 * panel, 1, 2); /* past the last tile: not ours, and harmless */
            if (STORE)
                v_st(dst + at, s);
            if (HAS_Q)
                o[j] = v_fma(q, s, o[j]);
            if (HAS_NEXT)
                pn[j] = v_fma(ak, s, pn[j]);
        }
    }
    V16_FOR(j, 0, P) {
        if (HAS_Q)
            v_st(row->out + v0 + 16 * (size_t)j, o[j]);
        p[j] = pn[j];
    }
}

/* Rows r0 .. r1-1 over P value panels. What precedes `settle` is stored to the state; a later row works on
 * tmp. ak: scratch for the products a k of all rows, filled by the caller. */
ALWAYS void kda_rows(const int P, float *state, float *tmp, size_t panel, uint32_t dim,
                     const struct kda_row *row, uint32_t n, uint32_t settle, const float *ak, size_t ld_ak,
                     size_t v0) {
    v16 p[2];
    const float *src = state;
    if (!n)
        return;
    kda_first(P, src, panel, dim, row[0].a, row[0].k, p);
    for (uint32_t r = 0; r < n; r++) {
        float *dst = r < settle ? state : tmp;
        const float *next = ak + (size_t)(r + 1) * ld_ak;
        int last = r + 1 == n;
        if (!row[r].q && !last)
            kda_pass(P, 0, 1, 1, src, dst, panel, dim, &row[r], next, v0, p);
        else if (!row[r].q)
            kda_pass(P, 0, 0, 1, src, dst, panel, dim, &row[r], NULL, v0, p);
        else if (!last)
            kda_pass(P, 1, 1, 1, src, dst, panel, dim, &row[r], next, v0, p);
        else if (r < settle)
            kda_pass(P, 1, 0, 1, src, dst, panel, dim, &row[r], NULL, v0, p);
        else
            kda_pass(P, 1, 0, 0, src, dst, panel, dim, &row[r], NULL, v0, p);
        src = dst;
    }
}

/* The recurrence of a list of rows over the whole head. */
static void kda_state(const struct cpu_kda_head *h, const struct kda_row *row, uint32_t n, uint32_t settle,
                      float *ak, float *tmp) {
    size_t panel = (size_t)h->dimp * 16, v0 = 0;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < h->dimp; c += 16)
            v_st(ak + (size_t)r * h->dimp + c, v_mul(v_ld(row[r].a + c), v_ld(row[r].k + c)));
    for (; v0 + 32 <= h->dimp; v0 += 32)
        kda_rows(2, h->state + v0 * h->dimp, tmp, panel, h->dim, row, n, settle, ak, h->dimp, v0);
    if (v0 < h->dimp)
        kda_rows(1, h->state + v0 * h->dimp, tmp, panel, h->dim, row, n, settle, ak, h->dimp, v0);
}

/* out = o / rms(o) * w * sigmoid(e) */
static void kda_gate(const struct cpu_kda_head *h, float *out, const float *e) {
    v16 r = v_set(1.0f / sqrtf(body_sumsq(out, h->dimp) / (float)h->dim + h->eps));
    for (uint32_t c = 0; c < h->dimp; c += 16) {
        v16 o = v_mul(v_mul(v_ld(out + c), r), v_ld(h->o_norm + c));
        v_st(out + c, v_mul(o, v_sigmoid(v_ld(e + c))));
    }
}

static void copy_floats(float *dst, const float *src, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 16)
        v_st(dst + i, v_ld(src + i));
}

/* Raw inputs of the last taps-1 committed rows move into the window. Ascending order: a source row never lies
 * before its destination. */
static void kda_window(const struct cpu_kda_head *h) {
    int64_t committed = h->commit ? h->n_rows : 0; /* rows of this step that count */
    for (uint32_t j = 0; j + 1 < h->taps; j++) {
        const float *src = kda_raw(h, committed - (int64_t)(h->taps - 1) + j);
        float *dst = h->win + j * h->ld_win;
        for (int part = 0; part < 3 && src != dst; part++)
            copy_floats(dst + (size_t)part * h->part, src + (size_t)part * h->part, h->dimp);
    }
}

static void kda_keep_pending(const struct cpu_kda_head *h, const struct kda_row *row) {
    for (uint32_t i = 0; i < h->n_rows; i++) {
        size_t at = i * h->ld_pend;
        copy_floats(h->pend_k + at, row[i].k, h->dimp);
        copy_floats(h->pend_v + at, row[i].v, h->dimp);
        copy_floats(h->pend_a + at, row[i].a, h->dimp);
        h->pend_b[at] = row[i].beta;
        for (int part = 0; part < 3; part++)
            copy_floats(h->pend_z + at + (size_t)part * h->part, h->z + i * h->ldz + (size_t)part * h->part,
                        h->dimp);
    }
}

struct kda_scratch {
    float *q, *k, *v, *a, *e, *ak, *beta, *tmp;
};

/* Rows i0 .. i0+n-1: everything but the state. */
static void kda_inputs(const struct cpu_kda_head *h, uint32_t i0, uint32_t n, const struct kda_scratch *s) {
    const float *fa = h->fa + i0 * h->ldz, *ga = h->ga + i0 * h->ldz;
    if (!h->fb_out) {
        const uint32_t p0 = h->panel, p1 = p0 + h->dimp / 16;
        if (h->fb)
            body_prod(h->fb, h->dim, 0, h->dimp / 16, fa, h->ldz, NULL, n, s->a, h->dimp);
        else
            body_packed(h->fb_stored, h->weights, p0, p1, fa, h->ldz, NULL, n, s->a, h->dimp, 1, h->room);
        if (h->gb)
            body_prod(h->gb, h->dim, 0, h->dimp / 16, ga, h->ldz, NULL, n, s->e, h->dimp);
        else
            body_packed(h->gb_stored, h->weights, p0, p1, ga, h->ldz, NULL, n, s->e, h->dimp, 1, h->room);
    }
    _Alignas(64) float b[CPU_ROW_BLOCK];
    v16 rate = v_exp(v_set(h->a_log));
    for (uint32_t i = 0; i < n; i++) {
        size_t at = (size_t)i * h->dimp;
        kda_conv(h, (int64_t)i0 + i, (float *const[3]){s->q + at, s->k + at, s->v + at});
        kda_decay(h, s->a + at, rate);
        b[i] = h->beta[(i0 + i) * h->ldz];
    }
    for (uint32_t i = n; i % 16; i++)
        b[i] = 0.0f;
    body_sigmoid(s->beta, b, (n + 15) & ~15u);
}

static void body_kda(const struct cpu_kda_head *h) {
    size_t block = CPU_ROW_BLOCK * (size_t)h->dimp;
    float *m = h->scratch;
    const struct kda_scratch s = {.q = m,
                                  .k = m + block,
                                  .v = m + 2 * block,
                                  .a = h->fb_out ? h->fb_out : m + 3 * block,
                                  .e = h->fb_out ? h->gb_out : m + 4 * block,
                                  .ak = m + 5 * block,
                                  .beta = m + 6 * block,
                                  .tmp = m + 6 * block + CPU_ROW_BLOCK};
    struct kda_row row[CPU_ROW_BLOCK];
    uint32_t n = 0;
    for (size_t i = 0; i < 2 * 16 * (size_t)h->dimp && i < (size_t)h->dimp * h->dimp; i += 16)
        __builtin_prefetch(h->state + i, 1, 2); /* the first tile */
    /* Kept rows first, in order, from the factors saved when they ran: the same passes over the same numbers.
     */
    for (uint32_t j = 0; j < h->keep; j++) {
        size_t at = j * h->ld_pend;
        row[n++] = (struct kda_row){
            .k = h->pend_k + at, .v = h->pend_v + at, .a = h->pend_a + at, .beta = h->pend_b[at]};
    }
    if (n && (h->commit || !h->n_rows)) {
        kda_state(h, row, n, n, s.ak, s.tmp);
        n = 0;
    }
    for (uint32_t i0 = 0; i0 < h->n_rows; i0 += CPU_ROW_BLOCK) {
        uint32_t b = h->n_rows - i0 < CPU_ROW_BLOCK ? h->n_rows - i0 : CPU_ROW_BLOCK, kept = n;
        kda_inputs(h, i0, b, &s);
        for (uint32_t i = 0; i < b; i++) {
            size_t at = (size_t)i * h->dimp;
            row[n++] = (struct kda_row){.k = s.k + at,
                                        .v = s.v + at,
                                        .a = s.a + at,
                                        .q = s.q + at,
                                        .beta = s.beta[i],
                                        .out = h->out + (i0 + i) * h->ldo};
        }
        kda_state(h, row, n, h->commit ? n : kept, s.ak, s.tmp);
        for (uint32_t i = 0; i < b; i++)
            kda_gate(h, h->out + (i0 + i) * h->ldo, s.e + (size_t)i * h->dimp);
        n = 0;
        if (!h->commit) { /* a window: one block, which stays pending */
            kda_window(h);
            kda_keep_pending(h, row + kept);
        }
    }
    if (h->commit)
        kda_window(h);
}

#endif
