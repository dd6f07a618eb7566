/* SPDX-License-Identifier: MIT */
/* How a model is cut among ranks: every byte of what is cut lies with one rank, what it keeps is a matrix of its own
 * with the numbers of the whole one, in every format; and what cannot be cut is refused by name. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernstores.h"
#include "shard.h"

static struct kern_shard plan(const struct kern_config *cfg, uint32_t ranks) {
    struct kern_config c = *cfg;
    struct kern_shard s;
    char err[256] = "";
    c.n_ranks = ranks;
    int r = kern_shard_plan(&c, &s, err, sizeof(err));
    ck_assert_msg(r == 0, "%u ranks: %s", ranks, err);
    return s;
}

static void refused(const struct kern_config *cfg, uint32_t ranks, const char *words[]) {
    struct kern_config c = *cfg;
    struct kern_shard s;
    char err[256] = "";
    c.n_ranks = ranks;
    ck_assert_int_eq(kern_shard_plan(&c, &s, err, sizeof(err)), -EINVAL);
    for (int i = 0; words[i]; i++)
        ck_assert_msg(strstr(err, words[i]) != NULL, "\"%s\" lacks \"%s\"", err, words[i]);
}

/* Widths that four ranks can cut in any format: 1024 = 4 blocks of 256. */
static void wide(struct kern_config *cfg) {
    km_config_small(cfg);
    struct kern_model_desc *m = &cfg->model;
    m->hidden = 256;
    m->vocab_rows = m->vocab_tokens = 512;
    m->dense_width = m->expert_width = 1024;
    m->n_experts = 2;
    m->n_top = 1;
    m->n_shared = 2;
    m->kda_heads = 8;
    m->kda_dim = 128;
    m->mla_heads = 4;
    m->nope_dim = m->v_dim = 256;
    m->q_rank = m->kv_rank = 256;
    m->rope_dim = 0;
    km_layers(m, "Km Fd", NULL);
}

/* ---- the numbers ---- */

/* A rank's bytes of a piece, gathered by runs of windows of any length. */
static uint8_t *gather(const struct kern_cut *c, const uint8_t *whole, uint64_t bytes, struct km_rng *rng) {
    uint8_t *own = calloc(1, c->rows * c->bytes + 1);
    ck_assert_ptr_nonnull(own);
    uint64_t kept = 0;
    for (uint64_t at = 0; at < bytes;) {
        uint64_t end = at + 1 + km_below(rng, 5000), from, to, n;
        for (end = end < bytes ? end : bytes; (n = kern_cut_next(c, at, end, &from, &to)); at = from + n) {
            ck_assert(from >= at && from + n <= end && to + n <= c->rows * c->bytes);
            memcpy(own + to, whole + from, n);
            kept += n;
        }
        at = end;
    }
    ck_assert_uint_eq(kept, c->rows * c->bytes);
    return own;
}

struct expect {
    uint32_t part, layer, axis, per;
    bool cols;
};
static const struct expect matrices[] = {
    {KERN_KDA_Q, 0, KERN_AXIS_KDA, 128, false},     {KERN_KDA_O, 0, KERN_AXIS_KDA, 128, true},
    {KERN_EXP_GATE, 0, KERN_AXIS_EXPERT, 1, false}, {KERN_EXP_DOWN, 0, KERN_AXIS_EXPERT, 1, true},
    {KERN_SH_GATE, 0, KERN_AXIS_EXPERT, 2, false},  {KERN_SH_DOWN, 0, KERN_AXIS_EXPERT, 2, true},
    {KERN_MLA_KVB, 1, KERN_AXIS_MLA, 512, false},   {KERN_MLA_O, 1, KERN_AXIS_MLA, 256, true},
    {KERN_HEAD, 0, KERN_AXIS_VOCAB, 1, false},      {KERN_IDX_QB, 1, KERN_AXIS_NONE, 0, false},
};

/* What rank r keeps, read as a matrix of its own, against its part of the whole. */
static void compare_share(const struct kern_config *cfg, const struct kern_shard *s, uint32_t r,
                          const struct expect *x, const struct kern_store *store, uint8_t *const piece[KERN_PIECES],
                          const float *whole, struct km_rng *rng) {
    struct kern_part_info info, own;
    struct kern_model_desc m;
    uint8_t *mine[KERN_PIECES] = {NULL};
    kern_shard_model(&cfg->model, s, r, &m);
    ck_assert(kern_part_info(&cfg->model, x->part, x->layer, &info) && kern_part_info(&m, x->part, x->layer, &own));
    for (uint32_t p = 0; p < KERN_PIECES; p++) {
        const struct kern_tensor_id id = {.part = x->part, .layer = x->layer, .piece = p};
        struct kern_piece_info whole_p, p_info;
        struct kern_cut c;
        ck_assert_int_eq(kern_store_piece(store, own.rows, own.cols, (enum kern_piece)p, &p_info), 0);
        if (kern_shard_piece(&cfg->model, s, r, &id, store, &c)) {
            ck_assert_uint_eq(p_info.rows, 0);
            continue;
        }
        ck_assert_int_eq(kern_store_piece(store, info.rows, info.cols, (enum kern_piece)p, &whole_p), 0);
        ck_assert_uint_eq(c.rows, p_info.rows);
        ck_assert_uint_eq(c.bytes, p_info.row_bytes);
        mine[p] = gather(&c, piece[p], whole_p.rows * whole_p.row_bytes, rng);
    }
    float *w = ks_numbers(store, own.rows, own.cols, mine);
    uint64_t lo = x->per * (uint64_t)kern_shard_at(s, (enum kern_axis)x->axis, r), bad = 0;
    for (uint64_t i = 0; i < own.rows; i++) {
        const float *from = whole + (i + (x->cols ? 0 : lo)) * info.cols + (x->cols ? lo : 0);
        bad += memcmp(w + i * own.cols, from, own.cols * sizeof(float)) != 0;
    }
    char name[40];
    ck_assert_msg(!bad, "%s as %s, rank %u of %u: %llu rows differ", kern_part_name(x->part),
                  kern_store_name(store, name, sizeof(name)), r, s->n_ranks, (unsigned long long)bad);
    for (uint32_t p = 0; p < KERN_PIECES; p++)
        free(mine[p]);
    free(w);
}

/* Every format, two or four ranks: _i is the format. */
START_TEST(numbers_of_every_format) {
    const struct kern_store *store = &ks_all[_i];
    struct kern_config cfg;
    struct km_rng rng = {77 + (uint64_t)_i};
    wide(&cfg);
    uint32_t used, ranks = _i % 2 ? 2 : 4;
    struct kern_store *stores = ks_stores(&cfg.model, store, &used);
    cfg.stores = stores;
    ck_assert_uint_gt(used, 0);
    if (store->format == KERN_FP8 && store->block_rows == 5) { /* blocks of 5 x 7 are no blocks of heads */
        static const char *words[] = {"FP8 5x7", "ranks", "cut", NULL};
        refused(&cfg, ranks, words);
        free(stores);
        return;
    }
    const struct kern_shard s = plan(&cfg, ranks);
    for (uint32_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        const struct expect *x = &matrices[i];
        const struct kern_tensor_id id = {.part = x->part, .layer = x->layer};
        const struct kern_store kept = kern_matrix_store(&cfg, &id);
        struct kern_part_info info;
        uint8_t *piece[KERN_PIECES];
        ck_assert(kern_part_info(&cfg.model, x->part, x->layer, &info));
        if (kept.format != store->format)
            continue;
        ks_random(&kept, info.rows, info.cols, 0.1f, &rng, piece);
        float *whole = ks_numbers(&kept, info.rows, info.cols, piece);
        for (uint32_t r = 0; r < ranks; r++)
            compare_share(&cfg, &s, r, x, &kept, piece, whole, &rng);
        free(whole);
        for (uint32_t p = 0; p < KERN_PIECES; p++)
            free(piece[p]);
    }
    free(stores);
}
END_TEST

/* ---- every part, every byte once ---- */

static bool is_whole(uint32_t part) {
    static const uint32_t whole[] = {
        KERN_FINAL_NORM, KERN_IN_NORM, KERN_POST_NORM, KERN_HC_ATTN_FN, KERN_HC_ATTN_BASE, KERN_HC_ATTN_SCALE,
        KERN_HC_FFN_FN, KERN_HC_FFN_BASE, KERN_HC_FFN_SCALE, KERN_KDA_FA, KERN_KDA_GA, KERN_KDA_O_NORM, KERN_MLA_QA,
        KERN_MLA_QA_NORM, KERN_MLA_KVA, KERN_MLA_KVA_NORM, KERN_IDX_QB, KERN_IDX_K, KERN_IDX_KNORM_W,
        KERN_IDX_KNORM_B, KERN_IDX_W, KERN_IDX_APE, KERN_IDX_GATE, KERN_ROUTER, KERN_ROUTER_BIAS, KERN_DRAFT_ENORM,
        KERN_DRAFT_HNORM, KERN_DRAFT_EH, KERN_DRAFT_NORM};
    for (uint32_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++)
        if (whole[i] == part)
            return true;
    return false;
}

static void count_part(const struct kern_config *cfg, const struct kern_shard *s, uint32_t part, uint32_t layer,
                       uint64_t shared[]) {
    struct kern_part_info info;
    if (!kern_part_info(&cfg->model, part, layer, &info))
        return;
    const struct kern_tensor_id id = {.part = part, .layer = layer, .expert = info.experts - 1};
    const struct kern_store store = kern_store_plain(info.matrix ? KERN_BF16 : KERN_F32);
    uint64_t bytes = info.rows * info.cols * (info.matrix ? 2 : 4), bad = 0;
    uint8_t *times = calloc(1, bytes);
    ck_assert_ptr_nonnull(times);
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        struct kern_cut c;
        uint64_t from, to, n, next = 0, at = 0;
        ck_assert_int_eq(kern_shard_piece(&cfg->model, s, r, &id, &store, &c), 0);
        for (; (n = kern_cut_next(&c, at, bytes, &from, &to)); at = from + n) {
            ck_assert_uint_eq(to, next); /* in order, without gaps */
            next = to + n;
            for (uint64_t i = 0; i < n; i++)
                times[from + i]++;
        }
        ck_assert_uint_eq(next, c.rows * c.bytes);
        shared[r] += next;
    }
    for (uint64_t i = 0; i < bytes; i++)
        bad += times[i] != (is_whole(part) ? s->n_ranks : 1);
    ck_assert_msg(!bad, "%s, %u ranks: %llu bytes", kern_part_name(part), s->n_ranks, (unsigned long long)bad);
    free(times);
}

START_TEST(every_part_once) {
    static const uint32_t counts[] = {1, 2, 3, 4, 8};
    struct kern_config cfg;
    km_config_small(&cfg);
    cfg.model.kda_heads = 8;
    cfg.model.mla_heads = 9;
    km_layers(&cfg.model, "Kd Fm Sms Km Fd", "Fm");
    const struct kern_shard s = plan(&cfg, counts[_i]);
    uint64_t shared[8] = {0};
    for (uint32_t l = 0; l < kern_total_layers(&cfg.model); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++)
            count_part(&cfg, &s, part, l, shared);
    for (uint32_t axis = KERN_AXIS_KDA; axis < KERN_AXIS_N; axis++) {
        uint32_t most = kern_shard_most(&s, (enum kern_axis)axis);
        for (uint32_t i = 0, r = 0; i < s.width[axis]; i++) {
            r += i >= kern_shard_at(&s, (enum kern_axis)axis, r + 1);
            ck_assert_uint_eq(kern_shard_owner(&s, (enum kern_axis)axis, i), r);
        }
        ck_assert_uint_le(most, s.width[axis] / counts[_i] + 1); /* as even as it can be */
        ck_assert_uint_eq(kern_shard_at(&s, (enum kern_axis)axis, counts[_i]), s.width[axis]);
    }
}
END_TEST

/* ---- the released sizes ---- */

static void real(struct kern_config *cfg) {
    km_config_small(cfg);
    struct kern_model_desc *m = &cfg->model;
    m->hidden = 4096;
    m->vocab_rows = 154880;
    m->vocab_tokens = 154856;
    m->dense_width = 12288;
    m->expert_width = 2048;
    m->n_experts = 288;
    m->n_top = 8;
    m->n_shared = 1;
    m->kda_heads = 64;
    m->kda_dim = 128;
    m->mla_heads = 64;
    m->nope_dim = m->v_dim = 256;
    m->q_rank = 1536;
    m->kv_rank = 512;
    m->index_heads = 32;
    m->index_dim = 128;
    km_layers(m, "Kd Fm Km Sms", "Fm");
}

START_TEST(released_sizes) {
    const struct kern_store *store = &ks_all[_i];
    struct kern_config cfg;
    uint32_t used;
    real(&cfg);
    struct kern_store *stores = ks_stores(&cfg.model, store, &used);
    cfg.stores = stores;
    for (uint32_t n = 1; n <= 8 && !(store->format == KERN_FP8 && store->block_rows == 5); n *= 2) {
        const struct kern_shard s = plan(&cfg, n);
        for (uint32_t axis = KERN_AXIS_KDA; axis < KERN_AXIS_N; axis++) /* even: but for 1,210 blocks of the head */
            ck_assert_uint_le(kern_shard_most(&s, (enum kern_axis)axis), (s.width[axis] + n - 1) / n + 128);
        ck_assert_uint_eq(kern_shard_most(&s, KERN_AXIS_KDA), 64 / n);
        ck_assert_uint_eq(kern_shard_most(&s, KERN_AXIS_EXPERT), 2048 / n);
    }
    free(stores);
}
END_TEST

/* ---- refusals, and what is not refused ---- */

START_TEST(more_ranks_than_heads) {
    static const char *kda[] = {"kda_heads is 3", "found 4", "3 at most", NULL},
                      *mla[] = {"mla_heads is 3", "found 4", NULL}, *width[] = {"expert_width is 7", "found 8", NULL};
    struct kern_config cfg;
    km_config_small(&cfg);
    refused(&cfg, 4, kda);
    cfg.model.kda_heads = 8;
    refused(&cfg, 4, mla);
    cfg.model.mla_heads = 8;
    cfg.model.expert_width = 7;
    refused(&cfg, 8, width);
    plan(&cfg, 7);
}
END_TEST

START_TEST(widths_that_cut_a_block) {
    static const char *k_quant[] = {"mlp.down_proj", "Q4_K", "512 columns", "3 parts", NULL},
                      *mx[] = {"mlp.down_proj", "MXFP4", "512 columns", "32 parts", NULL},
                      *exl3[] = {"mlp.gate_proj", "EXL3", "512 rows", "5 parts", NULL};
    struct kern_config cfg;
    wide(&cfg);
    cfg.model.dense_width = 512;
    cfg.model.kda_heads = cfg.model.mla_heads = 32;
    km_layers(&cfg.model, "Nd", NULL);
    struct kern_store *stores = calloc(kern_part_count(&cfg.model), sizeof(*stores));
    for (uint64_t i = 0; i < kern_part_count(&cfg.model); i++)
        stores[i] = kern_store_plain(KERN_BF16);
    cfg.stores = stores;
    struct kern_store *down = &stores[kern_part_slot(&cfg.model, &(struct kern_tensor_id){.part = KERN_MLP_DOWN})];
    struct kern_store *gate = &stores[kern_part_slot(&cfg.model, &(struct kern_tensor_id){.part = KERN_MLP_GATE})];
    *down = kern_store_plain(KERN_Q4_K);
    plan(&cfg, 2);
    refused(&cfg, 3, k_quant);
    *down = kern_store_plain(KERN_MXFP4);
    const struct kern_shard s = plan(&cfg, 3); /* 16 blocks: 5, 5 and 6 of them */
    ck_assert_uint_eq(kern_shard_at(&s, KERN_AXIS_DENSE, 1), 160);
    ck_assert_uint_eq(kern_shard_at(&s, KERN_AXIS_DENSE, 2), 320);
    refused(&cfg, 32, mx);
    *gate = (struct kern_store){.format = KERN_EXL3, .bits = 4, .codebook = KERN_CODEBOOK_MCG};
    plan(&cfg, 4);
    refused(&cfg, 5, exl3);
    free(stores);
}
END_TEST

/* A scale that serves all heads of a rank is kept by each of them: b_proj of FP8 in blocks of 128 has one row of
 * scales for 64 heads. */
/* The strictest of all matrices along an axis decides, whichever it is: a gate and an up of different formats, one
 * expert of many, the last layer; and the widest block that can be cut at all. */
START_TEST(strictest_matrix_decides) {
    static const struct {
        uint32_t part, layer, expert, axis;
    } odd[] = {
        {KERN_MLP_GATE, 0, 0, KERN_AXIS_DENSE}, {KERN_MLP_UP, 0, 0, KERN_AXIS_DENSE},
        {KERN_MLP_UP, 2, 0, KERN_AXIS_DENSE},   {KERN_EXP_GATE, 1, 0, KERN_AXIS_EXPERT},
        {KERN_EXP_UP, 1, 6, KERN_AXIS_EXPERT},  {KERN_EXP_DOWN, 1, 3, KERN_AXIS_EXPERT},
    };
    const struct kern_store fp8 = {
        .format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128};
    struct kern_config cfg;
    wide(&cfg);
    cfg.model.n_experts = 7;
    cfg.model.dense_width = cfg.model.expert_width = 384;
    km_layers(&cfg.model, "Kd Fm Kd", NULL);
    struct kern_store *stores = calloc(kern_part_count(&cfg.model), sizeof(*stores));
    const struct kern_tensor_id id = {.part = odd[_i].part, .layer = odd[_i].layer, .expert = odd[_i].expert};
    for (uint64_t i = 0; i < kern_part_count(&cfg.model); i++)
        stores[i] = kern_store_plain(KERN_BF16);
    cfg.stores = stores;
    ck_assert_uint_eq(plan(&cfg, 2).unit[odd[_i].axis], 1);
    stores[kern_part_slot(&cfg.model, &id)] = fp8;
    const struct kern_shard s = plan(&cfg, 2);
    ck_assert_uint_eq(kern_shard_at(&s, (enum kern_axis)odd[_i].axis, 1), 128);
    cfg.model.dense_width = cfg.model.expert_width = 255; /* a block and one that is not whole, two ranks */
    const struct kern_shard last = plan(&cfg, 2);
    ck_assert_uint_eq(kern_shard_at(&last, (enum kern_axis)odd[_i].axis, 1), 128);
    free(stores);
}
END_TEST

/* Widths of any number of whole blocks and one that is not: as many ranks as blocks can always be served, each with
 * something, none with more than a block more than another. */
START_TEST(last_blocks_that_are_not_whole) {
    static const struct kern_store of[] = {
        {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128},
        {.format = KERN_INT8, .scale = KERN_SCALE_F32, .block_rows = 1, .block_cols = 128},
        {.format = KERN_INT4, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128},
    };
    struct kern_config cfg;
    uint32_t used;
    wide(&cfg);
    cfg.model.kda_heads = cfg.model.mla_heads = 8;
    km_layers(&cfg.model, "Nd", NULL);
    struct kern_store *stores = ks_stores(&cfg.model, &of[_i], &used);
    cfg.stores = stores;
    ck_assert_uint_gt(used, 0);
    for (uint32_t n = 2; n <= 8; n += n < 4 ? 1 : 4)
        for (uint32_t w = (n - 1) * 128 + 2; w < 1100; w += 2) {
            cfg.model.dense_width = w;
            const struct kern_shard s = plan(&cfg, n);
            const uint32_t most = kern_shard_most(&s, KERN_AXIS_DENSE), unit = s.unit[KERN_AXIS_DENSE];
            for (uint32_t r = 0; r < n; r++) {
                uint32_t at = kern_shard_at(&s, KERN_AXIS_DENSE, r), end = kern_shard_at(&s, KERN_AXIS_DENSE, r + 1);
                ck_assert_msg(at < end && (at % 128 == 0 || at / 128 == (end - 1) / 128),
                              "%u columns, rank %u of %u: %u to %u", w, r, n, at, end);
                ck_assert(r + 1 == n || most <= end - at + unit); /* the last one's is what is left */
            }
            ck_assert_uint_eq(kern_shard_at(&s, KERN_AXIS_DENSE, n), w); /* and not the end of its block */
        }
    free(stores);
}
END_TEST

/* A head's rows of q_b are those without and those with a position. */
START_TEST(rotary_rows_go_with_their_head) {
    struct kern_config cfg;
    struct kern_cut c;
    const struct kern_tensor_id id = {.part = KERN_MLA_QB, .layer = 1};
    const struct kern_store bf16 = kern_store_plain(KERN_BF16);
    wide(&cfg);
    cfg.model.rope_dim = 64;
    cfg.model.rope_theta = 1000;
    const struct kern_shard s = plan(&cfg, 4);
    for (uint32_t r = 0; r < 4; r++) {
        ck_assert_int_eq(kern_shard_piece(&cfg.model, &s, r, &id, &bf16, &c), 0);
        ck_assert_uint_eq(c.row0, r * (256 + 64));
        ck_assert_uint_eq(c.rows, 256 + 64);
    }
}
END_TEST

START_TEST(scales_of_many_heads) {
    struct kern_config cfg;
    struct kern_cut c;
    real(&cfg);
    struct kern_store *stores = calloc(kern_part_count(&cfg.model), sizeof(*stores));
    const struct kern_store fp8 = {
        .format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128};
    for (uint64_t i = 0; i < kern_part_count(&cfg.model); i++)
        stores[i] = kern_store_plain(KERN_BF16);
    struct kern_tensor_id id = {.part = KERN_KDA_B};
    stores[kern_part_slot(&cfg.model, &id)] = fp8;
    cfg.stores = stores;
    const struct kern_shard s = plan(&cfg, 4);
    ck_assert_int_eq(kern_shard_piece(&cfg.model, &s, 3, &id, &fp8, &c), 0);
    ck_assert_uint_eq(c.row0, 48);
    ck_assert_uint_eq(c.rows, 16);
    id.piece = KERN_PIECE_SCALE;
    ck_assert_int_eq(kern_shard_piece(&cfg.model, &s, 3, &id, &fp8, &c), 0);
    ck_assert_uint_eq(c.row0, 0);
    ck_assert_uint_eq(c.rows, 1);
    id.piece = KERN_PIECE_GLOBAL;
    ck_assert_int_eq(kern_shard_piece(&cfg.model, &s, 3, &id, &fp8, &c), -ENOENT);
    id = (struct kern_tensor_id){.part = KERN_EXP_GATE, .expert = 288, .layer = 1};
    ck_assert_int_eq(kern_shard_piece(&cfg.model, &s, 3, &id, &fp8, &c), -ENOENT);
    free(stores);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("kern_shard");
    TCase *tc = tcase_create("shard");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, numbers_of_every_format, 0, (int)ks_count);
    tcase_add_loop_test(tc, every_part_once, 0, 5);
    tcase_add_loop_test(tc, released_sizes, 0, (int)ks_count);
    tcase_add_test(tc, more_ranks_than_heads);
    tcase_add_test(tc, widths_that_cut_a_block);
    tcase_add_loop_test(tc, strictest_matrix_decides, 0, 6);
    tcase_add_loop_test(tc, last_blocks_that_are_not_whole, 0, 3);
    tcase_add_test(tc, rotary_rows_go_with_their_head);
    tcase_add_test(tc, scales_of_many_heads);
    suite_add_tcase(s, tc);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
