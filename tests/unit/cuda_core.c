/* SPDX-License-Identifier: MIT */
/* The host half of the CUDA backend: programs as graphs, plans on their way, what a slot drew last, bytes of slots and
 * pages, and every call into CUDA that can fail. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "cuda_dev.h"
#include "cudasim.h"
#include "kernmodel.h"

static uint32_t ids[512];

static struct km_inst *begin(struct kern_config *cfg, struct kernmodel **ret_m) {
    struct km_rng r = {11};
    for (uint32_t i = 0; i < 512; i++)
        ids[i] = km_below(&r, cfg->model.vocab_tokens);
    *ret_m = km_new(cfg, 5);
    return km_open(*ret_m, "cuda", NULL);
}

static void end(struct km_inst *i, struct kernmodel *m) {
    struct cudasim_live live;
    km_close(i);
    km_free(m);
    cudasim_live(&live);
    ck_assert_uint_eq(live.device_bytes + live.host_bytes, 0);
    ck_assert_uint_eq(live.blocks + live.streams + live.events + live.graphs + live.execs, 0);
}

static void small(struct kern_config *cfg) {
    km_config_small(cfg);
    km_layers(&cfg->model, "Kd Fm Sd", "Fm");
}

/* A site's end makes the partial products of the begin behind it where both are in one program; where a slice of a
 * prompt ends between them, they are made from the stored streams. */
START_TEST(slices_have_the_bits_of_whole_programs) {
    struct kern_config cfg;
    struct kernmodel *m;
    small(&cfg);
    struct km_inst *i = begin(&cfg, &m);
    struct km_plan *p = km_plan_new(i);
    const uint64_t n = 5ull * cfg.model.hc_mult * cfg.model.hidden;
    float *whole = malloc(n * sizeof(float)), *sliced = malloc(n * sizeof(float));
    km_plan_clear(p, KERN_LANE_DECODE);
    km_plan_seq(p, 0, 0, 0, KERN_SEQ_COMMIT | KERN_SEQ_RESET, ids, 5, NULL);
    km_run(i, p);
    km_peek(i, KERN_LANE_DECODE, KERN_PEEK_STREAMS, 0, 5, whole);
    struct kern_plan *b = km_plan_build(p);
    ck_assert_int_eq(kern_plan_load(i->k, b, b->bytes), 0);
    km_launch_wait(i, KERN_LANE_DECODE, i->embed[KERN_LANE_DECODE]);
    for (uint32_t l = 0; l < cfg.model.n_layers; l++)
        for (int s = 0; s < 2; s++)
            km_launch_wait(i, KERN_LANE_DECODE, i->half[KERN_LANE_DECODE][l][s]);
    km_peek(i, KERN_LANE_DECODE, KERN_PEEK_STREAMS, 0, 5, sliced);
    ck_assert_mem_eq(whole, sliced, n * sizeof(float));
    free(whole);
    free(sliced);
    km_plan_free(p);
    end(i, m);
}
END_TEST

/* Rows of other sequences make the class larger, and stand before it in the plan. */
START_TEST(alone_and_in_a_batch_of_any_class) {
    struct kern_config cfg;
    struct kernmodel *m;
    small(&cfg);
    cfg.n_slots = 24;
    cfg.n_pages = 48;
    cfg.max_seqs = 24;
    cfg.max_rows[KERN_LANE_DECODE] = 24;
    cfg.max_samples = 24;
    cfg.max_plan_bytes = 1 << 20;
    struct km_inst *i = begin(&cfg, &m);
    struct km_plan *p = km_plan_new(i);
    const uint32_t width = cfg.model.vocab_rows;
    float *alone = malloc(width * sizeof(float)), *beside = malloc(width * sizeof(float));
    km_decode(i, p, 0, 0, ids[0], NULL);
    km_decode(i, p, 0, 1, ids[1], alone);
    for (uint32_t n = 2; n <= 24; n += 11) {
        for (uint32_t pos = 0; pos < 2; pos++) {
            km_plan_clear(p, KERN_LANE_DECODE);
            for (uint32_t s = 0; s < n; s++) {
                uint32_t t = s + 1 == n ? ids[pos] : ids[100 + 2 * s + pos];
                km_plan_seq(p, s, pos, 0, KERN_SEQ_COMMIT | (pos ? 0u : KERN_SEQ_RESET), &t, 1, NULL);
                km_plan_sample(p, s, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
            }
            km_run(i, p);
        }
        km_peek(i, KERN_LANE_DECODE, KERN_PEEK_LOGITS, n - 1, 1, beside);
        ck_assert_msg(!memcmp(alone, beside, width * sizeof(float)), "%u sequences", n);
    }
    free(alone);
    free(beside);
    km_plan_free(p);
    end(i, m);
}
END_TEST

static void draw_plan(struct km_plan *p, uint32_t lane, uint32_t slot, uint32_t pos, uint32_t token, uint32_t flags) {
    km_plan_clear(p, lane);
    km_plan_seq(p, slot, pos, 0, flags | KERN_SEQ_COMMIT, &token, 1, NULL);
    km_plan_sample(p, 0, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
}

static uint32_t draw(struct km_inst *i, struct km_plan *p, uint32_t slot, uint32_t pos, uint32_t token,
                     uint32_t flags) {
    draw_plan(p, KERN_LANE_DECODE, slot, pos, token, flags);
    km_run(i, p);
    return km_results(i, KERN_LANE_DECODE)[0].token;
}

/* What a slot drew last is on the device: whether the draw was waited for, copied with its slot, or written. */
START_TEST(last_tokens_follow_their_slots) {
    struct kern_config cfg;
    struct kernmodel *m;
    small(&cfg);
    struct km_inst *i = begin(&cfg, &m);
    struct km_plan *p = km_plan_new(i), *q = km_plan_new(i);
    uint32_t first = draw(i, p, 0, 0, ids[0], KERN_SEQ_RESET), second = draw(i, p, 0, 1, first, 0);
    ck_assert_uint_eq(draw(i, p, 0, 0, ids[0], KERN_SEQ_RESET), first);
    uint64_t bytes = kern_slot_bytes(i->k), page = kern_page_bytes(i->k);
    void *slot = malloc(bytes), *pages = malloc(page);
    ck_assert_int_eq(kern_slot_read(i->k, 0, slot, bytes), 0);
    ck_assert_int_eq(kern_page_read(i->k, 0, pages, page), 0);
    ck_assert_uint_eq(draw(i, p, 0, 1, KERN_TOKEN_LAST, 0), second);
    /* by way of bytes; page 0 of slot 1 is pages_per_slot */
    ck_assert_int_eq(kern_slot_write(i->k, 1, slot, bytes), 0);
    ck_assert_int_eq(kern_page_write(i->k, i->pages_per_slot, pages, page), 0);
    ck_assert_int_eq(kern_slot_copy(i->k, 0, 1), 0);
    ck_assert_int_eq(kern_page_copy(i->k, 0, i->pages_per_slot), 0);
    ck_assert_uint_eq(draw(i, p, 1, 1, KERN_TOKEN_LAST, 0), second);
    ck_assert_uint_eq(draw(i, p, 0, 1, KERN_TOKEN_LAST, 0), second);
    /* both lanes under way at once: the decode lane's row is what the prefill lane's head draws before it */
    draw_plan(p, KERN_LANE_PREFILL, 0, 0, ids[0], KERN_SEQ_RESET | KERN_SEQ_PREFILL);
    draw_plan(q, KERN_LANE_DECODE, 0, 1, KERN_TOKEN_LAST, 0);
    struct kern_plan *a = km_plan_build(p), *b = km_plan_build(q);
    ck_assert_int_eq(kern_plan_load(i->k, a, a->bytes), 0);
    ck_assert_int_eq(kern_launch(i->k, i->trunk[KERN_LANE_PREFILL]), 0);
    ck_assert_int_eq(kern_launch(i->k, i->head[KERN_LANE_PREFILL]), 0);
    ck_assert_int_eq(kern_plan_load(i->k, b, b->bytes), 0);
    ck_assert_int_eq(kern_launch(i->k, i->trunk[KERN_LANE_DECODE]), 0);
    ck_assert_int_eq(kern_launch(i->k, i->head[KERN_LANE_DECODE]), 0);
    ck_assert_int_eq(kern_wait(i->k, KERN_LANE_DECODE), 0);
    ck_assert_uint_eq(km_results(i, KERN_LANE_DECODE)[0].token, second);
    ck_assert_int_eq(kern_wait(i->k, KERN_LANE_PREFILL), 0);
    ck_assert_uint_eq(km_results(i, KERN_LANE_PREFILL)[0].token, first);
    free(slot);
    free(pages);
    km_plan_free(p);
    km_plan_free(q);
    end(i, m);
}
END_TEST

/* A plan that is loaded again before anything ran is the one that runs. */
START_TEST(a_plan_loaded_over_another) {
    struct kern_config cfg;
    struct kernmodel *m;
    small(&cfg);
    struct km_inst *i = begin(&cfg, &m);
    struct km_plan *p = km_plan_new(i);
    uint32_t want = draw(i, p, 0, 0, ids[7], KERN_SEQ_RESET);
    for (uint32_t t = 5; t <= 7; t++) {
        draw_plan(p, KERN_LANE_DECODE, 0, 0, ids[t], KERN_SEQ_RESET);
        struct kern_plan *b = km_plan_build(p);
        ck_assert_int_eq(kern_plan_load(i->k, b, b->bytes), 0);
    }
    km_launch_wait(i, KERN_LANE_DECODE, i->trunk[KERN_LANE_DECODE]);
    km_launch_wait(i, KERN_LANE_DECODE, i->head[KERN_LANE_DECODE]);
    ck_assert_uint_eq(km_results(i, KERN_LANE_DECODE)[0].token, want);
    km_plan_free(p);
    end(i, m);
}
END_TEST

START_TEST(refusals_name_value_and_limit) {
    struct kern_config cfg;
    uint64_t bytes[KERN_MEM_N];
    km_config_small(&cfg);
    ck_assert_int_eq(kern_query("cuda", &cfg, bytes), 0);
    cfg.n_ranks = 2;
    cfg.model.kda_heads = cfg.model.mla_heads = cfg.model.index_heads = 2;
    ck_assert_int_eq(kern_query("cuda", &cfg, bytes), -EINVAL);
    ck_assert_ptr_nonnull(strstr(kern_open_error(), "one device"));
    km_config_small(&cfg);
    cfg.model.kda_dim = 500;
    ck_assert_int_eq(kern_query("cuda", &cfg, bytes), -EINVAL);
    ck_assert_ptr_nonnull(strstr(kern_open_error(), "kda_dim: found 500"));
    /* one expert in another format than its neighbours */
    km_config_small(&cfg);
    uint64_t n = kern_part_count(&cfg.model);
    struct kern_store *s = malloc(n * sizeof(*s));
    for (uint64_t i = 0; i < n; i++)
        s[i] = kern_store_plain(KERN_BF16);
    for (uint32_t l = 0; l < cfg.model.n_layers; l++)
        if (cfg.model.layer[l].mlp == KERN_MLP_MOE)
            s[kern_part_slot(&cfg.model, &(struct kern_tensor_id){.part = KERN_EXP_UP, .layer = l, .expert = 1})] =
                (struct kern_store){
                    .format = KERN_INT8, .scale = KERN_SCALE_F32, .block_rows = 1, .block_cols = 16};
    cfg.stores = s;
    ck_assert_int_eq(kern_query("cuda", &cfg, bytes), -EINVAL);
    ck_assert_ptr_nonnull(strstr(kern_open_error(), "mlp.experts.up_proj"));
    free(s);
}
END_TEST

/* ---- what can fail ---- */

static const struct {
    cudaError_t e;
    const char *word;
} none[] = {{cudaErrorNoDevice, "found none"}, {cudaErrorInsufficientDriver, "driver"}, {cudaErrorUnknown, "failed"}};

START_TEST(no_device_is_said) {
    struct kern_config cfg;
    struct kern_block b;
    uint64_t bytes[KERN_MEM_N], left;
    km_config_small(&cfg);
    cudasim_fail(1, none[_i].e, true);
    ck_assert_int_eq(kern_query("cuda", &cfg, bytes), -ENODEV);
    ck_assert_ptr_nonnull(strstr(kern_open_error(), none[_i].word));
    ck_assert_int_eq(kern_mem_where("cuda", KERN_MEM_WEIGHTS, &left), -ENODEV);
    ck_assert_int_eq(kern_mem_alloc("cuda", KERN_MEM_WEIGHTS, 4096, &b), -ENODEV);
    cudasim_fail(0, cudaSuccess, false);
}
END_TEST

START_TEST(too_little_memory_is_said) {
    struct kern_block b;
    cudasim_memory(64 << 20);
    ck_assert_int_eq(kern_mem_alloc("cuda", KERN_MEM_WEIGHTS, 100 << 20, &b), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(kern_open_error(), "weights: asked for 100 MiB, 64 of 64 MiB"));
    cudasim_memory(16ull << 30);
}
END_TEST

/* One step from its load to its wait; the first refusal, or 0. */
static int step(struct km_inst *i, struct km_plan *p) {
    struct kern_plan *b = km_plan_build(p);
    int r = kern_plan_load(i->k, b, b->bytes);
    if (!r)
        r = kern_launch(i->k, i->trunk[KERN_LANE_DECODE]);
    if (!r)
        r = kern_launch(i->k, i->head[KERN_LANE_DECODE]);
    return r ? r : kern_wait(i->k, KERN_LANE_DECODE);
}

/* The device is lost at any call of a step: that call says so, and everything after it; closing gives all back. */
START_TEST(a_device_lost_at_any_call) {
    struct kern_config cfg;
    struct kernmodel *m;
    bool through = false;
    km_config_small(&cfg);
    km_layers(&cfg.model, "Kd Nd", NULL);
    for (uint64_t n = 1; !through; n++) {
        struct km_inst *i = begin(&cfg, &m);
        struct km_plan *p = km_plan_new(i);
        draw_plan(p, KERN_LANE_DECODE, 0, 0, ids[0], KERN_SEQ_RESET);
        cudasim_fail(n, cudaErrorIllegalAddress, true);
        int r = step(i, p);
        through = r == 0;
        if (!through) {
            ck_assert_int_eq(r, -EIO);
            ck_assert_ptr_nonnull(strstr(kern_last_error(i->k), "the device is lost"));
            ck_assert_int_eq(step(i, p), -EIO);
        } else {
            ck_assert_uint_gt(n, 4); /* plan, two launches, the wait */
        }
        cudasim_fail(0, cudaSuccess, false);
        km_plan_free(p);
        end(i, m);
    }
}
END_TEST

/* Each call of opening fails once: a sentence, and nothing is left behind. */
START_TEST(opening_fails_at_any_call) {
    struct kern_config cfg;
    struct kern_block mem[KERN_MEM_N];
    uint64_t bytes[KERN_MEM_N];
    struct cudasim_live live;
    struct kern *k = NULL;
    km_config_small(&cfg);
    km_layers(&cfg.model, "Kd Nd", NULL);
    ck_assert_int_eq(kern_query("cuda", &cfg, bytes), 0);
    for (int c = 0; c < KERN_MEM_N; c++)
        ck_assert_int_eq(kern_mem_alloc("cuda", (enum kern_mem)c, bytes[c], &mem[c]), 0);
    for (uint64_t n = 1; !k; n++) {
        cudasim_fail(n, cudaErrorUnknown, false);
        int r = kern_open("cuda", &cfg, mem, &k);
        cudasim_fail(0, cudaSuccess, false);
        ck_assert_msg(r == 0 || kern_open_error()[0], "call %llu", (unsigned long long)n);
        ck_assert(r == 0 || !k);
        if (!r)
            kern_close(k);
        cudasim_live(&live);
        ck_assert_uint_eq(live.streams + live.events + live.graphs + live.execs, 0);
    }
    for (int c = 0; c < KERN_MEM_N; c++)
        kern_mem_free("cuda", (enum kern_mem)c, &mem[c]);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cuda_core");
    TCase *t = tcase_create("all");
    SRunner *r;
    tcase_set_timeout(t, 60);
    tcase_add_test(t, slices_have_the_bits_of_whole_programs);
    tcase_add_test(t, alone_and_in_a_batch_of_any_class);
    tcase_add_test(t, last_tokens_follow_their_slots);
    tcase_add_test(t, a_plan_loaded_over_another);
    tcase_add_test(t, refusals_name_value_and_limit);
    tcase_add_loop_test(t, no_device_is_said, 0, (int)(sizeof(none) / sizeof(none[0])));
    tcase_add_test(t, too_little_memory_is_said);
    tcase_add_test(t, a_device_lost_at_any_call);
    tcase_add_test(t, opening_fails_at_any_call);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
