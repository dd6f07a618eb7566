/* SPDX-License-Identifier: MIT */
/* Packing: any windows in any order into memory that held anything give the same results; nothing is larger
 * than the format by more than a hundredth; weights nobody packed are refused. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "cpu_ops.h"
#include "kernmodel.h"

static const uint32_t tokens[] = {3, 77, 41, 5, 190, 8, 120, 33, 1};
enum { N = sizeof(tokens) / sizeof(tokens[0]) };

struct opened {
    struct km_inst inst;
    uint64_t bytes[KERN_MEM_N];
};

/* Like km_open, but into memory full of a pattern. */
static void open_poisoned(struct opened *o, const struct kernmodel *m, int pattern) {
    memset(o, 0, sizeof(*o));
    o->inst.model = m;
    o->inst.cfg = m->cfg;
    strcpy(o->inst.backend, "cpu");
    o->inst.pages_per_slot = m->cfg.n_pages / m->cfg.n_slots;
    ck_assert_int_eq(kern_query("cpu", &o->inst.cfg, o->bytes), 0);
    for (int c = 0; c < KERN_MEM_N; c++) {
        ck_assert_int_eq(kern_mem_alloc("cpu", (enum kern_mem)c, o->bytes[c], &o->inst.mem[c]), 0);
        memset(o->inst.mem[c].base, pattern, o->bytes[c]);
    }
    ck_assert_int_eq(kern_open("cpu", &o->inst.cfg, o->inst.mem, &o->inst.k), 0);
}

static void close_opened(struct opened *o) {
    kern_close(o->inst.k);
    for (int c = 0; c < KERN_MEM_N; c++)
        kern_mem_free("cpu", (enum kern_mem)c, &o->inst.mem[c]);
}

/* One tensor in windows of 1 to `most` bytes, in random order. */
static void pack_shuffled(struct kern *k, const struct kern_tensor_id *id, const struct kern_part_info *info,
                          const float *w, uint64_t most, bool vectors_bf16, struct km_rng *rng) {
    bool half = info->matrix || vectors_bf16;
    uint64_t n = info->rows * info->cols, bytes = n * (half ? 2 : 4), n_cuts = 0;
    struct kern_tensor t = {
        .store = kern_store_plain(half ? KERN_BF16 : KERN_F32), .rows = info->rows, .cols = info->cols};
    char *src = malloc(bytes);
    uint64_t *cut = malloc((bytes + 1) * sizeof(*cut));
    ck_assert(src && cut);
    for (uint64_t i = 0; i < n; i++) {
        if (half)
            memcpy(src + 2 * i, (const char *)&w[i] + 2, 2); /* little-endian: the upper half */
        else
            memcpy(src + 4 * i, &w[i], 4);
    }
    for (uint64_t at = 0; at < bytes; at += 1 + km_below(rng, (uint32_t)most))
        cut[n_cuts++] = at;
    cut[n_cuts] = bytes;
    uint32_t *order = malloc(n_cuts * sizeof(*order));
    ck_assert_ptr_nonnull(order);
    for (uint32_t i = 0; i < n_cuts; i++) {
        uint32_t j = km_below(rng, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < n_cuts; i++) {
        uint64_t from = cut[order[i]], to = cut[order[i] + 1];
        ck_assert_int_eq(kern_pack(k, id, &t, from, src + from, to - from), 0);
    }
    free(order);
    free(cut);
    free(src);
}

static void pack_model(struct opened *o, const struct kernmodel *m, uint64_t most, bool vectors_bf16) {
    struct km_rng rng = {most};
    for (uint32_t l = 0; l < kern_total_layers(&m->cfg.model); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (!kern_part_info(&m->cfg.model, part, l, &info))
                continue;
            for (uint32_t e = 0; e < info.experts; e++) {
                struct kern_tensor_id id = {.part = part, .layer = l, .expert = e};
                pack_shuffled(o->inst.k, &id, &info, km_weight(m, part, l, e), most, vectors_bf16, &rng);
            }
        }
    ck_assert_msg(kern_pack_done(o->inst.k) == 0, "%s", kern_last_error(o->inst.k));
}

static void run_text(struct km_inst *i, float *streams, float *logits) {
    struct kern *k = i->k;
    const struct kern_model_desc *m = &i->cfg.model;
    struct kern_prog *prog;
    struct km_plan *p = km_plan_new(i);
    ck_assert_int_eq(kern_capture_begin(k, 0), 0);
    kern_embed(k);
    for (uint32_t l = 0; l < m->n_layers; l++)
        for (int s = 0; s < 2; s++) {
            kern_site_in(k, l, (enum kern_site)s);
            s ? kern_mlp(k, l) : kern_mix(k, l);
            kern_site_out(k, l, (enum kern_site)s);
        }
    kern_final(k);
    kern_head(k, KERN_SOURCE_TRUNK);
    ck_assert_int_eq(kern_capture_end(k, &prog), 0);
    km_plan_clear(p, 0);
    km_plan_seq(p, 0, 0, 0, KERN_SEQ_COMMIT | KERN_SEQ_RESET, tokens, N, NULL);
    for (uint32_t j = 0; j < N; j++)
        km_plan_sample(p, j, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
    struct kern_plan *b = km_plan_build(p);
    ck_assert_int_eq(kern_plan_load(k, b, b->bytes), 0);
    km_launch_wait(i, 0, prog);
    km_peek(i, 0, KERN_PEEK_STREAMS, 0, N, streams);
    km_peek(i, 0, KERN_PEEK_LOGITS, 0, N, logits);
    km_plan_free(p);
}

START_TEST(any_windows_into_any_memory) {
    struct kern_config cfg;
    float want_s[N * 4 * 60], want_l[N * 221], got_s[N * 4 * 60], got_l[N * 221];
    km_config_small(&cfg);
    struct kernmodel *m = km_new(&cfg, 3);
    for (int round = 0; round < 4; round++) {
        static const uint64_t most[] = {1 << 20, 1, 7, 400};
        static const int pattern[] = {0, 0xff, 0x7f, 0xa5}; /* NaNs of both kinds, large and small numbers */
        struct opened o;
        open_poisoned(&o, m, pattern[round]);
        pack_model(&o, m, most[round], false);
        run_text(&o.inst, round ? got_s : want_s, round ? got_l : want_l);
        close_opened(&o);
        if (!round)
            continue;
        ck_assert_mem_eq(want_s, got_s, sizeof(want_s));
        ck_assert_mem_eq(want_l, got_l, sizeof(want_l));
    }
    km_free(m);
}
END_TEST

/* Vectors given as BF16 are widened: the same numbers given as F32 compute the same. */
START_TEST(vectors_in_both_formats) {
    struct kern_config cfg;
    float s[2][N * 4 * 60], l[2][N * 221];
    km_config_small(&cfg);
    struct kernmodel *m = km_new(&cfg, 4);
    for (uint32_t layer = 0; layer < kern_total_layers(&cfg.model); layer++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            struct kern_tensor_id id = {.part = part, .layer = layer};
            if (!kern_part_info(&cfg.model, part, layer, &info) || info.matrix)
                continue;
            float *w = m->weight[kern_part_slot(&cfg.model, &id)];
            for (uint64_t i = 0; i < info.rows * info.cols; i++)
                memset(&w[i], 0, 2); /* a number that BF16 holds */
        }
    for (int half = 0; half < 2; half++) {
        struct opened o;
        open_poisoned(&o, m, 0xff);
        pack_model(&o, m, 33, half);
        run_text(&o.inst, s[half], l[half]);
        close_opened(&o);
    }
    ck_assert_mem_eq(s[0], s[1], sizeof(s[0]));
    ck_assert_mem_eq(l[0], l[1], sizeof(l[0]));
    km_free(m);
}
END_TEST

START_TEST(incomplete_is_refused) {
    struct kern_config cfg;
    km_config_small(&cfg);
    struct kernmodel *m = km_new(&cfg, 5);
    struct opened o;
    open_poisoned(&o, m, 0);
    ck_assert_int_eq(kern_pack_done(o.inst.k), -ENODATA);
    close_opened(&o);
    km_free(m);
}
END_TEST

/* The small checkpoint's widths, and those of the large models with fewer layers: at most 1 % over the
 * format. */
static void check_size(const struct kern_config *cfg) {
    uint64_t bytes[KERN_MEM_N], format = 0;
    ck_assert_msg(kern_query("cpu", cfg, bytes) == 0, "%s", kern_open_error());
    for (uint32_t l = 0; l < kern_total_layers(&cfg->model); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (kern_part_info(&cfg->model, part, l, &info))
                format += info.rows * info.cols * info.experts * 2;
        }
    ck_assert_msg(bytes[KERN_MEM_WEIGHTS] <= format + format / 100, "%llu bytes packed, %llu in the format",
                  (unsigned long long)bytes[KERN_MEM_WEIGHTS], (unsigned long long)format);
}

START_TEST(size_is_the_formats) {
    struct kern_config cfg;
    km_config_small(&cfg);
    struct kern_model_desc *m = &cfg.model;
    m->vocab_rows = m->vocab_tokens = 4096;
    m->hidden = 256;
    m->dense_width = 384;
    m->expert_width = 128;
    m->n_experts = 8;
    m->n_top = 2;
    m->mla_heads = 4;
    m->q_rank = 128;
    m->kv_rank = 512;
    m->nope_dim = m->v_dim = 256;
    m->index_heads = 4;
    m->index_dim = 128;
    m->index_topk = 128;
    m->kda_heads = 4;
    m->kda_dim = 128;
    km_layers(m, "Kd Kd Kd Fm Km Km Km Fm Km", "Fm");
    check_size(&cfg);
    m->vocab_rows = m->vocab_tokens = 154880;
    m->hidden = 4096;
    m->dense_width = 12288;
    m->expert_width = 2048;
    m->n_experts = 288;
    m->n_top = 8;
    m->mla_heads = m->kda_heads = 64;
    m->q_rank = 1536;
    m->index_heads = 32;
    m->index_topk = 2048;
    km_layers(m, "Kd Kd Kd Fm Km Km Km Fm Km", "Fm");
    check_size(&cfg);
}
END_TEST

/* Where byte b of row n of a panel lies, said once more: units side by side, BF16 as words of rows i and i + 8. */
static size_t panel_place(size_t n, size_t b, uint32_t unit, int pairs) {
    size_t slot = pairs ? n % 8 * 2 + n / 8 : n;
    return b / unit * 16 * unit + slot * unit + b % unit;
}

/* Rows of any length, any distance apart, to the end of the panel and no further, on every table. */
START_TEST(panels_of_every_table) {
    static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};
    static const size_t lengths[] = {4, 8, 12, 16, 28, 64, 100, 128, 144, 512, 1028};
    enum { STRIDE = 1033, GUARD = 64 };
    uint8_t src[16 * STRIDE + 3], want[16 * 1028 + GUARD];
    uint8_t *dst = aligned_alloc(64, 16 * 1028 + 64 + GUARD);
    struct km_rng rng = {77};
    ck_assert_ptr_nonnull(dst);
    for (size_t i = 0; i < sizeof(src); i++)
        src[i] = (uint8_t)(km_u64(&rng) >> 32);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        const struct cpu_ops *ops = cpu_ops_find(isas[i]);
        for (size_t c = 0; ops && c < 8 * sizeof(lengths) / sizeof(lengths[0]); c++) {
            size_t bytes = lengths[c / 8], skip = c & 4 ? 16 : 0; /* in and out of step with a line */
            int pairs = (c & 3) == 3;
            uint32_t unit = pairs ? 2 : 1u << (c & 3);
            memset(want, 0x5a, bytes * 16 + GUARD);
            memset(dst, 0x5a, 16 * 1028 + 64 + GUARD);
            for (size_t n = 0; n < 16; n++)
                for (size_t b = 0; b < bytes; b++)
                    want[panel_place(n, b, unit, pairs)] = src[3 + n * STRIDE + b];
            ops->panel(dst + skip, src + 3, STRIDE, bytes, unit, pairs);
            ck_assert_msg(!memcmp(want, dst + skip, bytes * 16 + GUARD), "%s: rows of %zu bytes, units of %u%s",
                          isas[i], bytes, unit, pairs ? ", pairs" : "");
        }
    }
    free(dst);
}
END_TEST

START_TEST(what_it_cannot_compute_is_named) {
    struct kern_config cfg;
    uint64_t bytes[KERN_MEM_N];
    km_config_small(&cfg);
    cfg.isa = "sparkle";
    ck_assert_int_eq(kern_query("cpu", &cfg, bytes), -EINVAL);
    ck_assert_ptr_nonnull(strstr(kern_open_error(), "sparkle"));
}
END_TEST

int main(void) {
    Suite *s = suite_create("cpu_pack");
    TCase *tc = tcase_create("pack");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, any_windows_into_any_memory);
    tcase_add_test(tc, vectors_in_both_formats);
    tcase_add_test(tc, incomplete_is_refused);
    tcase_add_test(tc, size_is_the_formats);
    tcase_add_test(tc, panels_of_every_table);
    tcase_add_test(tc, what_it_cannot_compute_is_named);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
