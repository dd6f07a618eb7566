/* SPDX-License-Identifier: MIT */
/* The plan check: good plans pass, every planted fault is refused, and random corruption neither crashes nor
 * slips through unsealed. Run under the sanitizers this shows that nothing is read outside the plan. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernmodel.h"

static struct kern_config cfg;
static struct km_plan *plan;

static void setup(void) {
    km_config_small(&cfg);
    cfg.n_pages = 32;
    plan = km_plan_new_cfg(&cfg);
}
static void teardown(void) {
    km_plan_free(plan);
}

/* One of everything: a prefill with drafts and a picture, a decode window, a commit, all lists. */
static float picture[4 * 60];
static struct kern_plan *good(uint32_t lane) {
    static const uint32_t ids[70] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const uint32_t next[3] = {7, KERN_TOKEN_LAST, KERN_NONE};
    km_plan_clear(plan, lane);
    km_plan_seq(plan, 2, 17, 2, KERN_SEQ_DRAFT, ids, 3, next);
    km_plan_seq(plan, 0, 0, 0, KERN_SEQ_COMMIT | KERN_SEQ_RESET, ids, 16, NULL);
    km_plan_seq(plan, 3, 300, 4, KERN_SEQ_COMMIT, ids, 0, NULL);
    if (lane == KERN_LANE_PREFILL)
        km_plan_seq(plan, 4, 256, 0, KERN_SEQ_PREFILL | KERN_SEQ_COMMIT, ids, 70, NULL);
    plan->row[4].embed = 3;
    plan->embed = picture;
    plan->head.n_embeds = 4;
    struct kern_sample *s = km_plan_sample(plan, 2, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
    *s = (struct kern_sample){.row = 2,
                              .mode = KERN_SAMPLE_DRAW,
                              .target = 5,
                              .forced = KERN_NONE,
                              .temperature = 1,
                              .top_p = 0.5f,
                              .min_p = 0.1f,
                              .repetition = 1.5f,
                              .presence = -1,
                              .frequency = 1,
                              .top_k = 9,
                              .n_alts = 20,
                              .bias0 = 1,
                              .n_bias = 2,
                              .seen0 = 0,
                              .n_seen = 3,
                              .ban0 = 2,
                              .n_ban = 2,
                              .mask0 = 1};
    km_plan_sample(plan, 0, KERN_SAMPLE_SCORE, KERN_SOURCE_DRAFT);
    plan->head.n_bias = 3;
    plan->head.n_seen = 3;
    plan->head.n_ban = 4;
    plan->head.n_mask_words = 1 + (cfg.model.vocab_rows + 31) / 32;
    for (uint32_t i = 0; i < 3; i++) {
        plan->bias[i] = (struct kern_bias){i, 1.5f};
        plan->seen[i] = (struct kern_seen){i, i};
        plan->ban[i] = 9 + i;
    }
    return km_plan_build(plan);
}

static int check(struct kern_plan *p) {
    p->digest = kern_plan_digest(p);
    return kern_plan_check(&cfg, p, p->bytes);
}

START_TEST(good_plans_pass) {
    for (uint32_t lane = 0; lane < KERN_LANES; lane++) {
        struct kern_plan *p = good(lane);
        ck_assert_int_eq(kern_plan_check(&cfg, p, p->bytes), 0);
        ck_assert_int_eq(kern_plan_check(&cfg, p, p->bytes + 8), 0);
        ck_assert_int_eq(kern_plan_check(&cfg, p, p->bytes - 8), -EINVAL);
        ck_assert_int_eq(kern_plan_check(&cfg, p, 0), -EINVAL);
    }
}
END_TEST

START_TEST(layout_fits_or_refuses) {
    struct kern_plan p = {.n_rows = 3, .n_seqs = 1, .n_ban = 1}, before = p;
    ck_assert_uint_eq(kern_plan_layout(&cfg, &p, sizeof(p) + 3 * sizeof(struct kern_row)), 0);
    ck_assert_int_eq(memcmp(&p, &before, sizeof(p)), 0);
    uint64_t n = kern_plan_layout(&cfg, &p, 1 << 16);
    ck_assert_uint_eq(n, sizeof(p) + 3 * sizeof(struct kern_row) + sizeof(struct kern_seq) + 8);
    p.n_rows = UINT32_MAX;
    ck_assert_uint_eq(kern_plan_layout(&cfg, &p, UINT64_MAX), 0);
}
END_TEST

/* Every single bit is covered by the digest, its own field included. */
START_TEST(digest_sees_every_bit) {
    struct kern_plan *p = good(KERN_LANE_DECODE);
    for (uint64_t bit = 0; bit < p->bytes * 8; bit += 5) {
        uint64_t bytes = p->bytes;
        ((char *)p)[bit / 8] ^= (char)(1 << bit % 8);
        ck_assert_msg(kern_plan_check(&cfg, p, bytes) != 0, "bit %llu", (unsigned long long)bit);
        ((char *)p)[bit / 8] ^= (char)(1 << bit % 8);
    }
    ck_assert_int_eq(kern_plan_check(&cfg, p, p->bytes), 0);
}
END_TEST

/* ---- planted faults ---- */

struct fault {
    const char *what;
    void (*plant)(struct kern_plan *p);
    int code;
};

#define ROW(i)    ((struct kern_row *)(uintptr_t)plan_rows(p))[i]
#define SEQ(i)    ((struct kern_seq *)(uintptr_t)plan_seqs(p))[i]
#define SAMPLE(i) ((struct kern_sample *)(uintptr_t)plan_samples(p))[i]
#define PAGE(i)   ((uint32_t *)(uintptr_t)plan_pages(p))[i]
#define F(name, statement)                                                                                   \
    static void name(struct kern_plan *p) {                                                                  \
        statement;                                                                                           \
    }

F(bad_magic, p->magic ^= 1)
F(bad_version, p->version = 2)
F(bad_zero, p->zero = 1)
F(bad_lane, p->lane = 2)
F(no_seqs, p->n_seqs = 0)
F(odd_bytes, p->bytes -= 4)
F(many_rows, p->n_rows = 513)
F(many_seqs, p->n_seqs = 9)
F(many_samples, p->n_samples = 513)
F(many_embeds, p->n_embeds = 513)
F(area_unaligned, p->samples += 4)
F(area_outside, p->pages = (uint32_t)p->bytes)
F(area_in_header, p->ban = 8)
F(area_overlaps, p->seen = p->bias)
F(areas_swap_over, p->rows = p->seqs)
F(huge_pages, p->n_pages = UINT32_MAX)
F(huge_mask, p->n_mask_words = UINT32_MAX)
F(huge_ban, p->n_ban = 0x40000001)
F(slot_range, SEQ(0).slot = 8)
F(slot_twice, SEQ(0).slot = 0)
F(rows_gap, SEQ(1).row0 = 4)
F(rows_overlap, SEQ(1).row0 = 2)
F(rows_beyond, SEQ(3).n_rows = 71)
F(rows_short, SEQ(3).n_rows = 69)
F(rows_wrap, SEQ(3).n_rows = UINT32_MAX)
F(window_wide, (SEQ(3).flags = KERN_SEQ_COMMIT))
F(keep_range, SEQ(0).keep = 17)
F(keep_before_start, (SEQ(0).keep = 16, SEQ(0).pos0 = 15, ROW(0).pos = 15, ROW(1).pos = 16, ROW(2).pos = 17))
F(reset_not_zero, SEQ(0).flags |= KERN_SEQ_RESET)
F(flag_unknown, SEQ(0).flags |= 16)
F(prefill_off_grid, SEQ(3).pos0 = 250)
F(prefill_pending, SEQ(3).flags = KERN_SEQ_PREFILL)
F(empty_pending, SEQ(2).flags = 0)
F(empty_no_keep, SEQ(2).keep = 0)
F(context, SEQ(2).pos0 = 513)
F(context_wrap, SEQ(2).pos0 = UINT32_MAX)
F(pages_short, SEQ(3).n_pages = 1)
F(pages_beyond, SEQ(3).n_pages = 100)
F(pages_wrap, SEQ(3).page0 = UINT32_MAX)
F(pages_shared_range, (SEQ(2).page0 = SEQ(3).page0))
F(page_range, PAGE(0) = 32)
F(page_written_twice, PAGE(0) = PAGE(1))
F(page_written_read, PAGE(2) = PAGE(0))
F(row_seq, ROW(5).seq = 0)
F(row_pos, ROW(5).pos++)
F(row_zero, ROW(5).zero = 1)
F(row_token, ROW(5).token = 221)
F(row_next, ROW(1).next = 221)
F(row_next_hole, ROW(0).next = KERN_NONE)
F(row_embed, ROW(5).embed = 4)
F(sample_row, SAMPLE(0).row = 89)
F(sample_mode, SAMPLE(0).mode = 0)
F(sample_source, SAMPLE(0).source = 2)
F(sample_draft_no_next, SAMPLE(1).row = 2)
F(sample_draft_no_flag, SAMPLE(1).row = 5)
F(sample_target_padding, SAMPLE(0).target = 197)
F(sample_forced_padding, SAMPLE(0).forced = 197)
F(temperature_nan, SAMPLE(0).temperature = NAN)
F(temperature_negative, SAMPLE(0).temperature = -0.5f)
F(temperature_inf, SAMPLE(0).temperature = INFINITY)
F(top_p_zero, SAMPLE(0).top_p = 0)
F(top_p_high, SAMPLE(0).top_p = 1.5f)
F(min_p_high, SAMPLE(0).min_p = 1.5f)
F(min_p_nan, SAMPLE(0).min_p = NAN)
F(repetition_zero, SAMPLE(0).repetition = 0)
F(presence_inf, SAMPLE(0).presence = -INFINITY)
F(frequency_nan, SAMPLE(0).frequency = NAN)
F(alts_many, SAMPLE(0).n_alts = 21)
F(bias_slice, SAMPLE(0).n_bias = 3)
F(seen_slice, SAMPLE(0).seen0 = 1)
F(ban_slice_wrap, SAMPLE(0).ban0 = UINT32_MAX)
F(mask_slice, SAMPLE(0).mask0 = 2)
F(sample_zero, SAMPLE(0).zero = 1)
F(bias_token, ((struct kern_bias *)(uintptr_t)plan_bias(p))[0].token = 197)
F(bias_inf, ((struct kern_bias *)(uintptr_t)plan_bias(p))[0].bias = -INFINITY)
F(seen_token, ((struct kern_seen *)(uintptr_t)plan_seen(p))[0].token = 221)
F(seen_count, ((struct kern_seen *)(uintptr_t)plan_seen(p))[0].count = 600)
F(ban_token, ((uint32_t *)(uintptr_t)plan_ban(p))[3] = 221)
F(embed_nan, ((float *)(uintptr_t)plan_embeds(p))[100] = NAN)

#define P(name)                                                                                              \
    { #name, name, -EINVAL }
#define O(name)                                                                                              \
    { #name, name, -EOVERFLOW }
static const struct fault faults[] = {
    P(bad_magic),
    P(bad_version),
    P(bad_zero),
    P(bad_lane),
    P(no_seqs),
    P(odd_bytes),
    O(many_rows),
    O(many_seqs),
    O(many_samples),
    O(many_embeds),
    P(area_unaligned),
    P(area_outside),
    P(area_in_header),
    P(area_overlaps),
    P(areas_swap_over),
    P(huge_pages),
    P(huge_mask),
    P(huge_ban),
    P(slot_range),
    P(slot_twice),
    P(rows_gap),
    P(rows_overlap),
    P(rows_beyond),
    P(rows_short),
    P(rows_wrap),
    P(window_wide),
    P(keep_range),
    P(keep_before_start),
    P(reset_not_zero),
    P(flag_unknown),
    P(prefill_off_grid),
    P(prefill_pending),
    P(empty_pending),
    P(empty_no_keep),
    O(context),
    O(context_wrap),
    P(pages_short),
    P(pages_beyond),
    P(pages_wrap),
    P(pages_shared_range),
    P(page_range),
    P(page_written_twice),
    P(page_written_read),
    P(row_seq),
    P(row_pos),
    P(row_zero),
    P(row_token),
    P(row_next),
    P(row_next_hole),
    P(row_embed),
    P(sample_row),
    P(sample_mode),
    P(sample_source),
    P(sample_draft_no_next),
    P(sample_draft_no_flag),
    P(sample_target_padding),
    P(sample_forced_padding),
    P(temperature_nan),
    P(temperature_negative),
    P(temperature_inf),
    P(top_p_zero),
    P(top_p_high),
    P(min_p_high),
    P(min_p_nan),
    P(repetition_zero),
    P(presence_inf),
    P(frequency_nan),
    P(alts_many),
    P(bias_slice),
    P(seen_slice),
    P(ban_slice_wrap),
    P(mask_slice),
    P(sample_zero),
    P(bias_token),
    P(bias_inf),
    P(seen_token),
    P(seen_count),
    P(ban_token),
    P(embed_nan),
};
enum { N_FAULTS = sizeof(faults) / sizeof(faults[0]) };

START_TEST(planted_faults_are_refused) {
    struct kern_plan *p = good(KERN_LANE_PREFILL);
    uint64_t bytes = p->bytes;
    faults[_i].plant(p);
    if (p->bytes == bytes)
        p->digest = kern_plan_digest(p);
    int r = kern_plan_check(&cfg, p, bytes);
    ck_assert_msg(r == faults[_i].code, "%s: %d, expected %d", faults[_i].what, r, faults[_i].code);
}
END_TEST

START_TEST(prefill_only_on_its_lane) {
    static const uint32_t ids[4] = {1, 2, 3, 4};
    km_plan_clear(plan, KERN_LANE_DECODE);
    km_plan_seq(plan, 0, 0, 0, KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | KERN_SEQ_RESET, ids, 4, NULL);
    ck_assert_int_eq(check(km_plan_build(plan)), -EINVAL);
    plan->head.lane = KERN_LANE_PREFILL;
    ck_assert_int_eq(check(km_plan_build(plan)), 0);
    cfg.max_plan_bytes = plan->built->bytes - 8;
    ck_assert_int_eq(check(plan->built), -EOVERFLOW);
}
END_TEST

/* ---- random corruption ---- */

/* A sealed corruption may be a valid plan; then everything it names must be in range, which is checked here
 * once more in the plainest way. */
static void touch_everything(const struct kern_plan *p) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct kern_seq *s = &plan_seqs(p)[i];
        ck_assert_uint_lt(s->slot, cfg.n_slots);
        ck_assert_uint_le(s->row0 + s->n_rows, p->n_rows);
        for (uint32_t j = 0; j < s->n_rows; j++) {
            const struct kern_row *r = &plan_rows(p)[s->row0 + j];
            ck_assert_uint_lt(r->pos, cfg.max_context);
            ck_assert_uint_lt(plan_pages(p)[s->page0 + r->pos / KERN_PAGE_TOKENS], cfg.n_pages);
            if (r->embed != KERN_NONE)
                ck_assert(isfinite(plan_embeds(p)[(r->embed + 1) * cfg.model.hidden - 1]));
        }
    }
    for (uint32_t i = 0; i < p->n_samples; i++) {
        const struct kern_sample *s = &plan_samples(p)[i];
        ck_assert_uint_lt(s->row, p->n_rows);
        for (uint32_t j = 0; j < s->n_bias; j++)
            sum += plan_bias(p)[s->bias0 + j].token;
        for (uint32_t j = 0; j < s->n_seen; j++)
            sum += plan_seen(p)[s->seen0 + j].token;
        for (uint32_t j = 0; j < s->n_ban; j++)
            sum += plan_ban(p)[s->ban0 + j];
        for (uint32_t j = 0; s->mask0 != KERN_NONE && j < (cfg.model.vocab_rows + 31) / 32; j++)
            sum += plan_mask(p)[s->mask0 + j];
    }
    ck_assert_uint_ne(sum, UINT64_MAX);
}

START_TEST(random_corruption) {
    static const uint32_t edges[] = {0,         1,          2,          7,          8,
                                     15,        16,         17,         63,         64,
                                     255,       256,        0x7fffffff, 0x80000000, KERN_TOKEN_LAST,
                                     KERN_NONE, 0x7f800000, 0x7fc00000, 0x3f800000};
    struct km_rng r = {77 + (uint64_t)_i};
    uint32_t accepted = 0;
    for (int round = 0; round < 4000; round++) {
        struct kern_plan *p = good(km_below(&r, 2));
        /* an exact copy, so that the sanitizer sees one byte too many */
        uint64_t bytes = p->bytes;
        struct kern_plan *copy = malloc(bytes);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, p, bytes);
        uint32_t *words = (uint32_t *)(void *)copy;
        for (uint32_t n = 1 + km_below(&r, 3); n--;) {
            /* half of the hits go into the header, where most of the danger is */
            uint32_t at = km_below(&r, (uint32_t)(km_below(&r, 2) ? sizeof(*p) : bytes) / 4);
            switch (km_below(&r, 4)) {
            case 0:
                words[at] = edges[km_below(&r, sizeof(edges) / sizeof(edges[0]))];
                break;
            case 1:
                words[at] ^= 1u << km_below(&r, 32);
                break;
            case 2:
                words[at] += km_below(&r, 9) - 4;
                break;
            default:
                words[at] = (uint32_t)km_u64(&r);
                break;
            }
        }
        if (copy->bytes == bytes)
            copy->digest = kern_plan_digest(copy);
        if (kern_plan_check(&cfg, copy, bytes) == 0) {
            accepted++;
            touch_everything(copy);
        }
        free(copy);
    }
    /* seeds, digests and tokens are free to change, so some must pass: the check is not refusing everything
     */
    ck_assert_uint_gt(accepted, 100);
    ck_assert_uint_lt(accepted, 3000);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_plan");
    TCase *t = tcase_create("check");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, good_plans_pass);
    tcase_add_test(t, layout_fits_or_refuses);
    tcase_add_test(t, digest_sees_every_bit);
    tcase_add_loop_test(t, planted_faults_are_refused, 0, N_FAULTS);
    tcase_add_test(t, prefill_only_on_its_lane);
    tcase_add_loop_test(t, random_corruption, 0, 3);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
