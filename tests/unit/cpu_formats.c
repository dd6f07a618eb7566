/* SPDX-License-Identifier: MIT */
/* The CPU backend with stored weights: each product bit for bit the one of the numbers they stand for, on every
 * instruction set, for any number of rows; whole models against the oracle; any windows into any memory. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_ops.h"
#include "host_unpack.h"
#include "kernstores.h"

static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};

static const char *name_of(const struct kern_store *s) {
    static char name[40];
    return kern_store_name(s, name, sizeof(name));
}

/* ---- one product ------------------------------------------------------------------------------------------ */

/* Rows of any tensor in panels, written once more: unit u of row n of a piece at [n / 16][u][n % 16]. */
static void to_panels(uint8_t *dst, const uint8_t *src, uint64_t rows, uint64_t row_bytes, uint32_t unit) {
    for (uint64_t n = 0; n < rows; n++)
        for (uint64_t b = 0; b < row_bytes; b++)
            dst[(n / 16 * row_bytes / unit + b / unit) * 16 * unit + n % 16 * unit + b % unit] = src[n * row_bytes + b];
}

struct product {
    struct cpu_packed m;
    uint8_t *weights; /* codes, scales, factor */
    float *w;         /* [rows][cols] */
};

static uint64_t align(uint64_t n) {
    return (n + 63) & ~63ull;
}

/* block: inputs come in heads of so many, 0: not */
static void make_product(struct product *p, const struct kern_store *s, uint32_t rows, uint32_t cols, uint32_t block,
                         struct km_rng *rng) {
    uint8_t *piece[KERN_PIECES];
    struct kern_piece_info c, g = {0}, f = {0};
    uint32_t whole = 1u << 30, panels = (rows + 15) / 16;
    ks_random(s, rows, cols, 0.5f, rng, piece);
    p->w = ks_numbers(s, rows, cols, piece);
    ck_assert_int_eq(kern_store_piece(s, rows, cols, KERN_PIECE_CODES, &c), 0);
    ck_assert_int_eq(kern_store_piece(s, rows, cols, KERN_PIECE_SCALE, &g), 0);
    ck_assert_int_eq(kern_store_piece(s, rows, cols, KERN_PIECE_GLOBAL, &f), 0);
    uint64_t codes = align(panels * 16 * c.row_bytes), scales = align((g.rows + 16) * g.row_bytes);
    p->weights = aligned_alloc(64, codes + scales + 64);
    ck_assert_ptr_nonnull(p->weights);
    memset(p->weights, 0, codes + scales + 64);
    to_panels(p->weights, piece[KERN_PIECE_CODES], rows, c.row_bytes, c.unit);
    if (g.rows && s->block_rows == 1)
        to_panels(p->weights + codes, piece[KERN_PIECE_SCALE], rows, g.row_bytes, g.unit);
    else if (g.rows)
        memcpy(p->weights + codes, piece[KERN_PIECE_SCALE], g.rows * g.row_bytes);
    if (f.rows)
        memcpy(p->weights + codes + scales, piece[KERN_PIECE_GLOBAL], 4);
    p->m = (struct cpu_packed){.s = *s,
                               .has_global = f.rows != 0,
                               .scale_unit = (uint16_t)g.unit,
                               .scale = codes,
                               .global = codes + scales,
                               .rows = rows,
                               .cols = cols,
                               .row_bytes = (uint32_t)c.row_bytes,
                               .scale_cols = g.unit ? (uint32_t)(g.row_bytes / g.unit) : 0,
                               .cblock = block ? block : whole,
                               .cblock_pad = block ? (block + 15) / 16 * 16 : whole,
                               .rblock = whole,
                               .rblock_pad = whole};
    p->m.k = block ? cols / block * p->m.cblock_pad : cols;
    for (int i = 0; i < KERN_PIECES; i++)
        free(piece[i]);
}

/* The promise of cpu_ops.h: chains of fused multiply-adds over 256 inputs, their sums added in order. */
static float chain_sum(const struct product *p, uint32_t row, const float *x) {
    const struct cpu_packed *m = &p->m;
    float sum = 0;
    for (uint32_t k0 = 0; k0 < m->k; k0 += CPU_KB) {
        float a = 0;
        for (uint32_t k = k0; k < m->k && k < k0 + CPU_KB; k++)
            if (k % m->cblock_pad < m->cblock)
                a = fmaf(x[k], p->w[(uint64_t)row * m->cols + k / m->cblock_pad * m->cblock + k % m->cblock_pad], a);
        sum = k0 ? sum + a : a;
    }
    return sum;
}

enum { MOST_ROWS = 67, STEP = 2 };

static void check_product(const struct cpu_ops *ops, const struct product *p, uint32_t rows, const float *x,
                          const uint32_t *idx, const float *want, float *room) {
    uint32_t panels = (p->m.rows + 15) / 16, ldo = panels * 16 * STEP, bad = 0;
    float *out = aligned_alloc(64, align((uint64_t)rows * ldo * sizeof(float)));
    ck_assert_ptr_nonnull(out);
    memset(out, 0xa5, (uint64_t)rows * ldo * sizeof(float));
    memset(room, 0xff, CPU_PACKED_ROOM * sizeof(float));
    /* in two parts, as two members would */
    uint32_t cut = panels / 3;
    ops->packed(&p->m, p->weights, 0, cut, x, p->m.k, idx, rows, out, ldo, STEP, room);
    ops->packed(&p->m, p->weights, cut, panels, x, p->m.k, idx, rows, out + cut * 16 * STEP, ldo, STEP, room);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t n = 0; n < p->m.rows; n++) {
            const float *o = out + (uint64_t)r * ldo + n / 16 * 16 * STEP + n % 16;
            bad += memcmp(o, want + (uint64_t)(idx ? idx[r] : r) * p->m.rows + n, 4) != 0;
        }
    ck_assert_msg(!bad, "%s, %s, %u rows: %u of %u outputs differ", name_of(&p->m.s), ops->isa, rows, bad,
                  rows * p->m.rows);
    free(out);
}

static void products_of(const struct kern_store *s, uint32_t rows, uint32_t cols, uint32_t block, uint64_t seed) {
    static const uint32_t counts[] = {1, 2, 3, 5, 6, 8, 9, MOST_ROWS};
    struct km_rng rng = {seed};
    struct product p;
    make_product(&p, s, rows, cols, block, &rng);
    float *x = aligned_alloc(64, align((uint64_t)MOST_ROWS * p.m.k * sizeof(float)));
    float *want = malloc((uint64_t)MOST_ROWS * rows * sizeof(float));
    float *room = aligned_alloc(64, CPU_PACKED_ROOM * sizeof(float));
    uint32_t idx[MOST_ROWS];
    ck_assert(x && want && room);
    for (uint64_t i = 0; i < (uint64_t)MOST_ROWS * p.m.k; i++)
        x[i] = i % p.m.k % p.m.cblock_pad < p.m.cblock ? km_normal(&rng) : 0.0f;
    for (uint32_t r = 0; r < MOST_ROWS; r++) {
        idx[r] = (r * 7 + 3) % MOST_ROWS;
        for (uint32_t n = 0; n < rows; n++)
            want[(uint64_t)r * rows + n] = chain_sum(&p, n, x + (uint64_t)r * p.m.k);
    }
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        const struct cpu_ops *ops = cpu_ops_find(isas[i]);
        for (size_t c = 0; ops && c < sizeof(counts) / sizeof(counts[0]); c++)
            check_product(ops, &p, counts[c], x, c % 2 ? idx : NULL, want, room);
    }
    free(room);
    free(want);
    free(x);
    free(p.w);
    free(p.weights);
}

START_TEST(product_bits) {
    const struct kern_store s = _i < (int)ks_count ? ks_all[_i] : kern_store_plain(KERN_BF16);
    if (s.format == KERN_EXL3)
        return;
    products_of(&s, 49, 768, 0, 900 + (uint64_t)_i);
    uint64_t bytes;
    if (kern_store_bytes(&s, 19, 100, &bytes) == 0) /* heads of 20 inputs, padded */
        products_of(&s, 19, 100, 20, 1900 + (uint64_t)_i);
    products_of(&s, 21, 256 * 5, 20, 2900 + (uint64_t)_i); /* borders of heads inside blocks */
}
END_TEST

/* The transpose of each head's rows: two heads of 48 rows, of which 32 are kept, as kv_b's keys are. The shares cross
 * from one head to the next. */
enum { HEAD_ROWS = 48, KEPT = 32, KEY_COLS = 512 };

static void keep_keys(struct product *p) {
    const uint64_t panel = 16ull * p->m.row_bytes, scales = 16ull * p->m.scale_cols * p->m.scale_unit;
    memmove(p->weights + 2 * panel, p->weights + 3 * panel, 2 * panel);
    if (p->m.s.block_rows == 1)
        memmove(p->weights + p->m.scale + 2 * scales, p->weights + p->m.scale + 3 * scales, 2 * scales);
    p->m.transposed = 1;
    p->m.rstride = HEAD_ROWS;
    p->m.rblock = p->m.rblock_pad = p->m.k = KEPT;
}

START_TEST(transposed_bits) {
    static const uint32_t counts[] = {1, 3, 9};
    const struct kern_store s = _i < (int)ks_count ? ks_all[_i] : kern_store_plain(KERN_BF16);
    enum { OUT = 2 * KEY_COLS, CUT = 20 };
    struct km_rng rng = {3900 + (uint64_t)_i};
    struct product p;
    if (s.format == KERN_EXL3)
        return;
    make_product(&p, &s, 2 * HEAD_ROWS, KEY_COLS, 0, &rng);
    keep_keys(&p);
    float *x = aligned_alloc(64, 9 * KEPT * sizeof(float)), *out = aligned_alloc(64, 9 * OUT * sizeof(float));
    float *room = aligned_alloc(64, CPU_PACKED_ROOM * sizeof(float));
    ck_assert(x && out && room);
    for (int i = 0; i < 9 * KEPT; i++)
        x[i] = km_normal(&rng);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        const struct cpu_ops *ops = cpu_ops_find(isas[i]);
        for (size_t c = 0; ops && c < 3; c++) {
            uint32_t bad = 0;
            ops->packed(&p.m, p.weights, 0, CUT, x, KEPT, NULL, counts[c], out, OUT, 1, room);
            ops->packed(&p.m, p.weights, CUT, OUT / 16, x, KEPT, NULL, counts[c], out + CUT * 16, OUT, 1, room);
            for (uint32_t n = 0; n < counts[c] * OUT; n++) {
                const float *w = p.w + (uint64_t)(n % OUT / KEY_COLS) * HEAD_ROWS * KEY_COLS + n % KEY_COLS;
                float a = 0;
                for (uint32_t k = 0; k < KEPT; k++)
                    a = fmaf(x[n / OUT * KEPT + k], w[(uint64_t)k * KEY_COLS], a);
                bad += memcmp(&out[n], &a, sizeof(a)) != 0;
            }
            ck_assert_msg(!bad, "%s, %s, %u rows: %u outputs differ", name_of(&s), ops->isa, counts[c], bad);
        }
    }
    free(room);
    free(out);
    free(x);
    free(p.w);
    free(p.weights);
}
END_TEST

/* ---- models ------------------------------------------------------------------------------------------------- */

/* Widths that every format can hold: 256 inputs for the K formats, 128 outputs for EXL3. */
static void wide(struct kern_config *c) {
    km_config_small(c);
    c->threads = 3; /* shares of panels that end inside a head */
    c->model.hidden = 256;
    c->model.dense_width = c->model.expert_width = 256;
    c->model.n_experts = 3;
    c->model.n_top = 2;
    c->model.vocab_rows = c->model.vocab_tokens = 256;
    c->model.kda_heads = 2;
    c->model.kda_dim = 128;
    c->model.mla_heads = 2;
    c->model.q_rank = c->model.kv_rank = c->model.nope_dim = 256;
    c->model.v_dim = 128;
    c->model.index_dim = 128;
    c->model.index_topk = 512; /* everything is chosen: no choice that a last bit could turn */
    c->model.swiglu_limit = 0;
    km_layers(&c->model, "Kd Fms Nm", "Fm");
}

static void peek_near(struct km_inst *a, struct km_inst *b, uint32_t lane, enum kern_peek what, uint32_t n,
                      uint64_t width, const char *where) {
    float *x = malloc(n * width * sizeof(float)), *y = malloc(n * width * sizeof(float));
    double d = 0, w = 0;
    ck_assert(x && y);
    km_peek(a, lane, what, 0, n, x);
    km_peek(b, lane, what, 0, n, y);
    for (uint64_t i = 0; i < n * width; i++) {
        d += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        w += (double)x[i] * x[i];
    }
    ck_assert_msg(w > 0 && sqrt(d) <= 3e-5 * sqrt(w), "%s: relative error %g", where, sqrt(d / w));
    free(x);
    free(y);
}

/* Rows pos0 .. of slot 1 on both, everything that can be seen compared. */
static void step_both(struct km_inst *a, struct km_inst *b, struct km_plan *p, uint32_t lane, const uint32_t *ids,
                      uint32_t pos0, uint32_t n, const char *name) {
    const struct kern_model_desc *m = &a->cfg.model;
    struct kern_counters ca, cb;
    char where[96];
    km_plan_clear(p, lane);
    km_plan_seq(p, 1, pos0, 0,
                KERN_SEQ_COMMIT | (lane ? KERN_SEQ_PREFILL : 0u) | (pos0 ? 0u : KERN_SEQ_RESET) |
                    (m->n_draft ? KERN_SEQ_DRAFT : 0u),
                ids + pos0, n, m->n_draft ? ids + pos0 + 1 : NULL);
    for (uint32_t j = 0; j < n; j++)
        km_plan_sample(p, j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
    struct kern_plan *plan = km_plan_build(p);
    ck_assert_int_eq(kern_plan_load(a->k, plan, plan->bytes), 0);
    ck_assert_int_eq(kern_plan_load(b->k, plan, plan->bytes), 0);
    km_launch_wait(a, lane, a->embed[lane]);
    km_launch_wait(b, lane, b->embed[lane]);
    for (uint32_t h = 0; h <= 2 * m->n_layers; h++) {
        snprintf(where, sizeof(where), "%s, rows %u+%u, half layer %u", name, pos0, n, h);
        if (h) {
            km_launch_wait(a, lane, a->half[lane][(h - 1) / 2][(h - 1) % 2]);
            km_launch_wait(b, lane, b->half[lane][(h - 1) / 2][(h - 1) % 2]);
        }
        peek_near(a, b, lane, KERN_PEEK_STREAMS, n, m->hc_mult * m->hidden, where);
    }
    struct km_inst *both[] = {a, b};
    for (int i = 0; i < 2; i++) {
        km_launch_wait(both[i], lane, both[i]->final[lane]);
        km_launch_wait(both[i], lane, both[i]->head[lane]);
        if (m->n_draft)
            km_launch_wait(both[i], lane, both[i]->draft[lane]);
    }
    snprintf(where, sizeof(where), "%s, rows %u+%u, the ends", name, pos0, n);
    peek_near(a, b, lane, KERN_PEEK_LOGITS, n, m->vocab_rows, where);
    if (m->n_draft)
        peek_near(a, b, lane, KERN_PEEK_DRAFT, n, m->hidden, where);
    ck_assert_int_eq(kern_counters(a->k, lane, &ca), 0);
    ck_assert_int_eq(kern_counters(b->k, lane, &cb), 0);
    ck_assert_uint_eq(ca.experts, cb.experts);
    ck_assert_msg(cb.expert_bytes >= ca.expert_bytes, "%s: %llu bytes of experts, %llu stored", where,
                  (unsigned long long)cb.expert_bytes, (unsigned long long)ca.expert_bytes);
}

static void compare_model(struct kern_config *c, const struct kern_store *stores, const char *name, uint64_t seed) {
    enum { N = 9 };
    uint32_t ids[N + 1];
    struct km_rng rng = {seed + 1};
    c->stores = stores;
    struct kernmodel *m = km_new(c, seed);
    struct km_inst *a = km_open(m, "ref", NULL), *b = km_open(m, "cpu", NULL);
    struct km_plan *p = km_plan_new(a);
    for (int i = 0; i <= N; i++)
        ids[i] = km_below(&rng, c->model.vocab_tokens);
    step_both(a, b, p, KERN_LANE_PREFILL, ids, 0, 5, name);
    step_both(a, b, p, KERN_LANE_DECODE, ids, 5, 1, name);
    step_both(a, b, p, KERN_LANE_DECODE, ids, 6, 3, name);
    km_plan_free(p);
    km_close(a);
    km_close(b);
    km_free(m);
}

START_TEST(each_format) {
    struct kern_config c;
    uint32_t used;
    wide(&c);
    struct kern_store *stores = ks_stores(&c.model, &ks_all[_i], &used);
    ck_assert_uint_ge(used, 40);
    compare_model(&c, stores, name_of(&ks_all[_i]), 1100 + (uint64_t)_i);
    free(stores);
}
END_TEST

/* What odd shapes can be stored as. */
static const struct kern_store odd[] = {
    {.format = KERN_F16},
    {.format = KERN_F32},
    {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 16, .block_cols = 16},
    {.format = KERN_FP8, .scale = KERN_SCALE_BF16, .block_rows = 1},
    {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 32},
    {.format = KERN_INT4, .scale = KERN_SCALE_F32, .block_rows = 1, .block_cols = 32},
};

START_TEST(odd_shapes) {
    struct kern_config c;
    uint32_t used;
    km_config_small(&c);
    c.model.index_topk = 512;
    struct kern_store *stores = ks_stores(&c.model, &odd[_i], &used);
    ck_assert_uint_ge(used, 10);
    compare_model(&c, stores, name_of(&odd[_i]), 1200 + (uint64_t)_i);
    free(stores);
}
END_TEST

/* Every tensor by itself, every expert too. */
START_TEST(mixtures) {
    struct kern_config c;
    struct km_rng rng = {1300 + (uint64_t)_i};
    _i % 2 ? km_config_small(&c) : wide(&c);
    c.model.index_topk = 512;
    const struct kern_model_desc *m = &c.model;
    struct kern_store *stores = calloc(kern_part_count(m), sizeof(*stores));
    ck_assert_ptr_nonnull(stores);
    for (uint32_t i = 0; i < ks_count; i++) {
        uint32_t used;
        struct kern_store *all = ks_stores(m, &ks_all[i], &used);
        for (uint64_t t = 0; t < kern_part_count(m); t++)
            if (all[t].format && (!stores[t].format || (all[t].format != KERN_BF16 && !km_below(&rng, 1 + i / 2))))
                stores[t] = all[t];
        free(all);
    }
    compare_model(&c, stores, "mixture", 1300 + (uint64_t)_i);
    free(stores);
}
END_TEST

/* ---- packing ------------------------------------------------------------------------------------------------ */

static void open_filled(struct km_inst *i, const struct kernmodel *m, int pattern) {
    uint64_t bytes[KERN_MEM_N];
    memset(i, 0, sizeof(*i));
    i->model = m;
    i->cfg = m->cfg;
    ck_assert_msg(kern_query("cpu", &i->cfg, bytes) == 0, "%s", kern_open_error());
    for (int c = 0; c < KERN_MEM_N; c++) {
        ck_assert_int_eq(kern_mem_alloc("cpu", (enum kern_mem)c, bytes[c], &i->mem[c]), 0);
        memset(i->mem[c].base, pattern, bytes[c]);
    }
    ck_assert_int_eq(kern_open("cpu", &i->cfg, i->mem, &i->k), 0);
}

static void close_filled(struct km_inst *i) {
    kern_close(i->k);
    for (int c = 0; c < KERN_MEM_N; c++)
        kern_mem_free("cpu", (enum kern_mem)c, &i->mem[c]);
}

/* Windows that begin and end anywhere, in any order, into memory that held anything. */
START_TEST(any_windows) {
    static const uint64_t most[] = {1 << 20, 1, 7, 400};
    struct kern_config c;
    uint32_t used;
    uint64_t bytes[KERN_MEM_N];
    km_config_small(&c);
    km_layers(&c.model, "Kd Fm Nms", NULL);
    struct kern_store *stores = ks_stores(&c.model, &odd[_i], &used);
    c.stores = stores;
    struct kernmodel *m = km_new(&c, 1400 + (uint64_t)_i);
    ck_assert_int_eq(kern_query("cpu", &c, bytes), 0);
    char *want = malloc(bytes[KERN_MEM_WEIGHTS]);
    ck_assert_ptr_nonnull(want);
    for (int round = 0; round < 4; round++) {
        struct km_inst i;
        open_filled(&i, m, 0x5a); /* the same gaps between areas each time */
        km_pack_shuffled(m, i.k, most[round], (uint64_t)round);
        if (!round)
            memcpy(want, i.mem[KERN_MEM_WEIGHTS].base, bytes[KERN_MEM_WEIGHTS]);
        ck_assert(memcmp(want, i.mem[KERN_MEM_WEIGHTS].base, bytes[KERN_MEM_WEIGHTS]) == 0);
        close_filled(&i);
    }
    free(want);
    km_free(m);
    free(stores);
}
END_TEST

/* What is not a number in the paddings would show in the results. */
START_TEST(any_memory) {
    static const int pattern[] = {0xff, 0x7f, 0xa5};
    struct kern_config c;
    uint32_t used;
    float logits[2][221], *got;
    km_config_small(&c);
    struct kern_store *stores = ks_stores(&c.model, &odd[_i], &used);
    c.stores = stores;
    struct kernmodel *m = km_new(&c, 1500 + (uint64_t)_i);
    for (int round = 0; round < 3; round++) {
        struct km_inst i;
        struct kern_prog *prog;
        uint32_t ids[3] = {5, 6, 7};
        open_filled(&i, m, pattern[round]);
        i.pages_per_slot = i.cfg.n_pages / i.cfg.n_slots;
        km_pack_shuffled(m, i.k, 4000, 1);
        ck_assert_int_eq(kern_capture_begin(i.k, 0), 0);
        kern_embed(i.k);
        for (uint32_t l = 0; l < c.model.n_layers; l++)
            for (int s = 0; s < 2; s++) {
                kern_site_in(i.k, l, (enum kern_site)s);
                s ? kern_mlp(i.k, l) : kern_mix(i.k, l);
                kern_site_out(i.k, l, (enum kern_site)s);
            }
        kern_final(i.k);
        kern_head(i.k, KERN_SOURCE_TRUNK);
        ck_assert_int_eq(kern_capture_end(i.k, &prog), 0);
        struct km_plan *p = km_plan_new(&i);
        km_plan_clear(p, 0);
        km_plan_seq(p, 0, 0, 0, KERN_SEQ_COMMIT | KERN_SEQ_RESET, ids, 3, NULL);
        km_plan_sample(p, 2, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
        struct kern_plan *b = km_plan_build(p);
        ck_assert_int_eq(kern_plan_load(i.k, b, b->bytes), 0);
        km_launch_wait(&i, 0, prog);
        got = logits[round ? 1 : 0];
        km_peek(&i, 0, KERN_PEEK_LOGITS, 0, 1, got);
        ck_assert(isfinite(got[0]) && memcmp(logits[0], got, sizeof(logits[0])) == 0);
        km_plan_free(p);
        close_filled(&i);
    }
    km_free(m);
    free(stores);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cpu_formats");
    TCase *t = tcase_create("formats");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, product_bits, 0, (int)ks_count + 1);
    tcase_add_loop_test(t, transposed_bits, 0, (int)ks_count + 1);
    tcase_add_loop_test(t, each_format, 0, (int)ks_count);
    tcase_add_loop_test(t, odd_shapes, 0, 6);
    tcase_add_loop_test(t, mixtures, 0, 2);
    tcase_add_loop_test(t, any_windows, 0, 6);
    tcase_add_loop_test(t, any_memory, 0, 6);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
