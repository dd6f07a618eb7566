/* SPDX-License-Identifier: MIT */
/* Weights made smaller while they are loaded: in memory they are, byte for byte, those of a pack that glm-pack wrote
 * in the same formats, on one rank and on several, which answer as one; the plan shows them; what must not be made
 * smaller is refused by name. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "engine.h"
#include "engine_priv.h"
#include "packtest.h"
#include "score.h"
#include "traps.h"

static const char *nano(void) {
    return ckpt_model("nano");
}

static struct engine *open_ranks(const char *dir, const char *convert, const char *backend, uint32_t ranks,
                                 bool four_bit, struct xerr *err, int *ret) {
    const struct engine_options opt = {.model = dir,
                                       .backend = backend,
                                       .threads = 2,
                                       .ranks = ranks,
                                       .score = true,
                                       .context_tokens = 512,
                                       .max_seqs = 1,
                                       .max_streams = 1,
                                       .draft = true,
                                       .allow_four_bit = four_bit,
                                       .convert = convert};
    struct engine *e = NULL;
    *ret = engine_open(&opt, &e, err);
    return e;
}

static struct engine *open_with(const char *dir, const char *convert, const char *backend, bool four_bit,
                                struct xerr *err, int *ret) {
    return open_ranks(dir, convert, backend, 1, four_bit, err, ret);
}

static struct engine *loaded(const char *dir, const char *convert, const char *backend, uint32_t ranks) {
    struct xerr err = {0};
    int r;
    struct engine *e = open_ranks(dir, convert, backend, ranks, true, &err, &r);
    ck_assert_msg(r >= 0 && (r = engine_load(e, NULL, NULL, &err)) >= 0, "%s: %s", dir, err.msg);
    return e;
}

/* ---- the same bytes ---- */

static const char *const FORMATS[] = {"int8", "int4", "mxfp8"};
static const char *const GROUPS[] = {"shared", "dense", "mla", "kda", "lm_head"};

/* Each rank has of matrices that were made smaller what it has of the same in a pack. */
static void same_weights(const char *pack, const char *convert, const char *backend, uint32_t ranks) {
    struct engine *a = loaded(pack, NULL, backend, ranks), *b = loaded(nano(), convert, backend, ranks);
    ck_assert_uint_eq(b->ranks.n, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        const struct mem_kern *of_a = &a->ranks.rank[r].mem, *of_b = &b->ranks.rank[r].mem;
        uint64_t bytes = of_a->bytes[KERN_MEM_WEIGHTS];
        ck_assert_uint_eq(of_b->bytes[KERN_MEM_WEIGHTS], bytes);
        ck_assert_msg(!memcmp(of_a->block[KERN_MEM_WEIGHTS].base, of_b->block[KERN_MEM_WEIGHTS].base, bytes),
                      "%s on %s, rank %u of %u: other weights than the pack's", convert, backend, r, ranks);
    }
    engine_close(a);
    engine_close(b);
}

START_TEST(bytes_of_a_pack) {
    const char *word = FORMATS[_i], *backend = _i ? "cpu" : "ref", *more[20] = {NULL};
    char rule[5][32], convert[160];
    int n = 0;
    for (int i = 0; i < 5; i++) {
        snprintf(rule[i], sizeof rule[i], "%s=%s", GROUPS[i], word);
        more[n++] = "--part";
        more[n++] = rule[i];
    }
    static const char *const kept[] = {"experts=bf16", "*.q_a_proj=bf16", "*.kv_a_proj_with_mqa=bf16"};
    for (int i = 0; i < 3; i++) {
        more[n++] = "--part";
        more[n++] = kept[i];
    }
    ck_assert_msg(packtest(nano(), packtest_out("pack"), word, more) == 0, "%s", packtest_prog.err_text);
    snprintf(convert, sizeof convert, "shared:%s,dense:%s, mla:%s kda_in:%s,kda_o:%s,lm_head:%s", word, word, word,
             word, word, word);
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2)
        if (ranks < 4 || _i == 2)
            same_weights(packtest_out("pack"), convert, backend, ranks);
    struct engine *a = loaded(packtest_out("pack"), NULL, backend, 1), *b = loaded(nano(), convert, backend, 1);
    uint64_t resident = 0; /* what the plan and the log say */
    for (size_t i = 0; i < b->directory.n_tensors; i++)
        resident += b->directory.tensor[i].bytes;
    ck_assert_uint_eq(b->directory.resident, resident);
    ck_assert_uint_eq(b->directory.resident, a->directory.resident);
    engine_close(a);
    engine_close(b);
}
END_TEST

/* ---- several ranks ---- */

enum { SCORED = 130 };

/* Logits of the last id and what each is followed by; ids are the same at every call. */
static void scores(uint32_t ranks, const char *backend, float *logits, uint32_t vocab, struct score_row row[SCORED]) {
    static const char convert[] = "shared:int8,dense:mxfp8,mla:int8,kda_in:mxfp8,kda_o:int8,lm_head:int8";
    uint32_t ids[SCORED];
    struct xerr err = {0};
    struct score_shape shape;
    struct engine *e = loaded(nano(), convert, backend, ranks);
    score_get_shape(e, &shape);
    ck_assert_uint_eq(shape.vocab_rows, vocab);
    for (uint32_t i = 0; i < SCORED; i++)
        ids[i] = (i * 37 + 11) % 4000;
    const struct score_query q = {.ids = ids, .n_ids = SCORED, .fed_tokens = 4};
    const struct score_out out = {.rows = row, .logits_last = logits};
    ck_assert_msg(score_prompt(e, &q, &out, &err) == 0, "%u ranks: %s", ranks, err.msg);
    engine_close(e);
}

START_TEST(ranks_agree_with_one) {
    enum { VOCAB = 4096 };
    static float one[VOCAB], many[VOCAB];
    static struct score_row row[2][SCORED];
    const char *backend = _i ? "ref" : "cpu";
    double largest = 0, worst = 0;
    scores(1, backend, one, VOCAB, row[0]);
    for (uint32_t i = 0; i < VOCAB; i++)
        largest = fmax(largest, fabs((double)one[i]));
    for (uint32_t ranks = 2; ranks <= 4; ranks *= 2) {
        scores(ranks, backend, many, VOCAB, row[1]);
        for (uint32_t i = 0; i < VOCAB; i++)
            worst = fmax(worst, fabs((double)many[i] - (double)one[i]));
        for (uint32_t i = 0; i + 1 < SCORED; i++)
            worst = fmax(worst, fabs((double)row[1][i].target - (double)row[0][i].target));
    }
    ck_assert_msg(largest > 1 && worst < 1e-4 * largest, "%s: %g apart, the largest is %g", backend, worst, largest);
}
END_TEST

/* ---- the plan ---- */

START_TEST(plan_shows_it) {
    struct model_summary_row row[MODEL_MAX_ROWS];
    const struct model_findings *f;
    const struct model_config *cfg;
    uint32_t layers, shared = 0, experts = 0;
    struct xerr err = {0};
    int r;
    struct engine *e = open_with(nano(), "shared:int8", "cpu", false, &err, &r);
    ck_assert_msg(r >= 0, "%s", err.msg);
    const struct model_directory *d = engine_directory(e, &cfg, &layers, &f);
    size_t n = model_summary(d, cfg, layers, row);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(row[i].group, "shared experts") == 0) {
            shared++;
            ck_assert_str_eq(row[i].format, "INT8 g128 (BF16)");
            /* seven layers of three matrices of 128 x 256: a byte each, and two for 128 */
            ck_assert_uint_eq(row[i].bytes, 7ull * 3 * 128 * 256 * 130 / 128);
        }
        experts += strcmp(row[i].group, "routed experts") == 0 && strcmp(row[i].format, "BF16") == 0;
    }
    ck_assert_uint_eq(shared, 1);
    ck_assert_uint_eq(experts, 1);
    engine_close(e);
}
END_TEST

/* ---- refusals ---- */

static const struct refusal {
    const char *convert;
    int errno_;
    const char *says;
} REFUSALS[] = {
    {"router:int8", -EINVAL, "found router, which stays"},
    {"shared:int8,kda_gates:int8", -EINVAL, "found kda_gates, which stays"},
    {"kv_b:int8", -EINVAL, "found kv_b, which stays"},
    {"embed:int8", -EINVAL, "found embed, which stays"},
    {"indexer:mxfp8", -EINVAL, "found indexer, which stays"},
    {"everything:int8", -EINVAL, "found \"everything\", expected words of: shared"},
    {"shared:nvfp4", -EINVAL, "found format \"nvfp4\", expected one of: int8"},
    {"shared", -EINVAL, "expected GROUP:FORMAT"},
    {"shared:int8,shared:mxfp8", -EINVAL, "found shared twice"},
    {"lm_head:int4", -EPERM, "AllowFourBitDense=yes"},
};

START_TEST(refused) {
    struct xerr err = {0};
    int r;
    struct engine *e = open_with(nano(), REFUSALS[_i].convert, "cpu", false, &err, &r);
    ck_assert_ptr_null(e);
    ck_assert_int_eq(r, REFUSALS[_i].errno_);
    ck_assert_msg(strstr(err.msg, REFUSALS[_i].says), "%s", err.msg);
}
END_TEST

/* The dense width of nano is 384, three groups of 128, which a checkpoint in BF16 does not have. */
START_TEST(refused_among_ranks) {
    struct xerr err = {0};
    int r;
    ck_assert_ptr_null(open_ranks(nano(), "kda_o:int8,dense:int8", _i ? "ref" : "cpu", 4, false, &err, &r));
    ck_assert_int_eq(r, -EINVAL);
    ck_assert_msg(strstr(err.msg, "layer 0 mlp.down_proj is stored as INT8 g128 (BF16)") &&
                      strstr(err.msg, "384 columns (dense_width 384) be cut into 4 parts; start with fewer ranks") &&
                      strstr(err.msg, "or make less smaller with [Model] Convert"),
                  "%s", err.msg);
}
END_TEST

START_TEST(refused_without_bf16) {
    static const char *const more[] = {"--part", "shared=int8", NULL};
    struct xerr err = {0};
    int r;
    ck_assert_int_eq(packtest(nano(), packtest_out("pack"), "int8", more), 0);
    struct engine *e = open_with(packtest_out("pack"), "shared:mxfp8", "cpu", false, &err, &r);
    ck_assert_ptr_null(e);
    ck_assert_msg(r == -EINVAL && strstr(err.msg, "no matrix of shared in BF16"), "%d %s", r, err.msg);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_convert");
    TCase *t = tcase_create("convert");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, packtest_setup, packtest_teardown);
    tcase_add_loop_test(t, bytes_of_a_pack, 0, 3);
    tcase_add_loop_test(t, ranks_agree_with_one, 0, 2);
    tcase_add_test(t, plan_shows_it);
    tcase_add_loop_test(t, refused, 0, sizeof REFUSALS / sizeof REFUSALS[0]);
    tcase_add_loop_test(t, refused_among_ranks, 0, 2);
    tcase_add_test(t, refused_without_bf16);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
