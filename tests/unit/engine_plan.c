/* SPDX-License-Identifier: MIT */
/* The plan builder: what it builds passes the plan check, the same step is the same bytes whatever was built
 * before, limits are kept; the table of seen tokens counts and forgets. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "leakcheck.h"
#include "plan.h"
#include "seen.h"

static struct kern_config config;
static const struct plan_limits limits = { .rows = 128, .seqs = 4, .samples = 8, .pages = 16, .bias = 6,
                                           .seen = 40, .ban = 5 };

static void build_config(void) {
    config = (struct kern_config){ .n_ranks = 1, .n_pages = 64, .n_slots = 4, .max_seqs = 4,
                                   .max_rows = { 128, 128 }, .max_samples = 8, .max_context = 1024 };
    config.model.vocab_rows = 1000;
    config.model.vocab_tokens = 990;
    config.model.hidden = 4;
    config.model.n_layers = 1;
    config.max_plan_bytes = plan_max_bytes(&config, &limits);
    ck_assert_uint_gt(config.max_plan_bytes, 0);
}

static void *new_plan(struct plan *p) {
    uint64_t bytes = 0;
    void *mem = NULL;

    ck_assert_int_eq(plan_mem_bytes(&config, &limits, &bytes), 0);
    ck_assert_int_eq(posix_memalign(&mem, 64, bytes), 0);
    memset(mem, 0, bytes);
    ck_assert_int_eq(plan_init(p, &config, &limits, mem, bytes), 0);
    ck_assert_int_eq(plan_init(p, &config, &limits, mem, bytes - 1), -EINVAL);
    return mem;
}

/* A random decode step that must be legal. */
static uint64_t build(struct plan *p, unsigned seed, const struct kern_plan **ret) {
    static const struct kern_seen seen[5] = { { 1, 0 }, { 7, 2 }, { 9, 1 }, { 0, 0 }, { 989, 5 } };
    static const struct kern_bias bias[3] = { { 4, 1.5f }, { 5, -2 }, { 6, 0 } };
    static const uint32_t ban[3] = { 1, 2, 999 };
    uint32_t n = 1 + (uint32_t)rand_r(&seed) % 4;
    uint64_t bytes = 0;

    plan_begin(p, KERN_LANE_DECODE, 77);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = (uint32_t)rand_r(&seed) % 1000, np = mem_pages_for(pos + 1);
        struct mem_page pages[4] = { { 4 * i }, { 4 * i + 1 }, { 4 * i + 2 }, { 4 * i + 3 } };
        struct kern_sample *s;
        int row;

        ck_assert_int_eq(plan_seq(p, (struct mem_slot){ i }, pos, 0, KERN_SEQ_COMMIT, pages, np), 0);
        row = plan_row(p, (uint32_t)rand_r(&seed) % 1000, KERN_NONE);
        ck_assert_int_eq(row, (int)i);
        s = plan_sample(p, (uint32_t)row, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
        ck_assert_ptr_nonnull(s);
        if (rand_r(&seed) % 2)
            ck_assert_int_eq(plan_seen(p, s, seen, (uint32_t)rand_r(&seed) % 6), 0);
        if (i < 2) /* 3 each, 6 at most */
            ck_assert_int_eq(plan_bias(p, s, bias, (uint32_t)rand_r(&seed) % 4), 0);
        if (i == 0)
            ck_assert_int_eq(plan_ban(p, s, ban, (uint32_t)rand_r(&seed) % 4), 0);
    }
    ck_assert_int_eq(plan_end(p, ret, &bytes), 0);
    return bytes;
}

START_TEST(test_legal_and_same) {
    struct plan a, b;
    void *ma, *mb;

    build_config();
    ma = new_plan(&a);
    mb = new_plan(&b);
    for (unsigned seed = 1; seed < 500; seed++) {
        const struct kern_plan *pa, *pb;
        uint64_t na = build(&a, seed, &pa), nb;

        memset(b.out, (int)seed, 4096); /* whatever an earlier plan left */
        nb = build(&b, seed, &pb);
        ck_assert_int_eq(kern_plan_check(&config, pa, na), 0);
        ck_assert_uint_eq(na, nb);
        ck_assert(memcmp(pa, pb, na) == 0);
    }
    free(ma);
    free(mb);
}
END_TEST

START_TEST(test_limits) {
    const struct mem_page pages[17] = { { 0 } };
    const struct kern_bias bias[7] = { { 0, 0 } };
    const struct kern_plan *out;
    struct kern_sample *s;
    struct plan p;
    uint64_t n;
    void *mem;

    build_config();
    mem = new_plan(&p);
    plan_begin(&p, KERN_LANE_PREFILL, 1);
    ck_assert_int_eq(plan_row(&p, 1, KERN_NONE), -ENOSPC); /* no sequence to belong to */
    ck_assert_int_eq(plan_seq(&p, (struct mem_slot){ 0 }, 0, 0, 0, pages, 17), -ENOSPC);
    ck_assert_int_eq(plan_seq(&p, (struct mem_slot){ 0 }, 0, 0, KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | KERN_SEQ_RESET,
                              pages, 1), 0);
    for (int i = 0; i < 128; i++)
        ck_assert_int_eq(plan_row(&p, 1, KERN_NONE), i);
    ck_assert_int_eq(plan_row(&p, 1, KERN_NONE), -ENOSPC);
    s = plan_sample(&p, 127, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
    ck_assert_int_eq(plan_bias(&p, s, bias, 7), -ENOSPC);
    ck_assert_int_eq(plan_bias(&p, s, bias, 1), 0);
    for (int i = 1; i < 8; i++)
        ck_assert_ptr_nonnull(plan_sample(&p, 0, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK));
    ck_assert_ptr_null(plan_sample(&p, 0, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK));
    ck_assert_int_eq(plan_end(&p, &out, &n), 0);
    ck_assert_int_eq(kern_plan_check(&config, out, n), 0);
    free(mem);
}
END_TEST

START_TEST(test_seen) {
    struct seen s;
    void *mem = calloc(1, seen_bytes(50));

    ck_assert_ptr_nonnull(mem);
    seen_init(&s, mem, 50);
    for (int round = 0; round < 2; round++) {
        seen_add(&s, 7, 0);
        seen_add(&s, 9, 1);
        seen_add(&s, 7, 1);
        seen_add(&s, 7, 1);
        seen_add(&s, 50, 1); /* no such token */
        ck_assert_uint_eq(s.n, 2);
        ck_assert_uint_eq(s.list[0].token, 7);
        ck_assert_uint_eq(s.list[0].count, 2);
        ck_assert_uint_eq(s.list[1].count, 1);
        seen_reset(&s);
        ck_assert_uint_eq(s.n, 0);
    }
    for (uint32_t t = 0; t < 50; t++)
        seen_add(&s, t, 1);
    ck_assert_uint_eq(s.n, 50);
    free(mem);
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_plan");
    TCase *tc = tcase_create("plan");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_legal_and_same);
    tcase_add_test(tc, test_limits);
    tcase_add_test(tc, test_seen);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
