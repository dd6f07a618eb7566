/* SPDX-License-Identifier: MIT */
/* What the sampler and the indexer are made of: selection, sorting, number formats, exponentials. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"
#include "kernmodel.h"

static struct km_rng rng;

struct entry {
    float z;
    uint32_t id;
};

static int by_rank(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->z != y->z)
        return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

START_TEST(select_and_sort) {
    rng.s = 101;
    for (int round = 0; round < 400; round++) {
        uint32_t n = 1 + km_below(&rng, 600), k = km_below(&rng, n + 1), ids[600];
        float score[600];
        uint64_t a[600];
        for (uint32_t i = 0; i < n; i++)
            score[i] = round % 3 == 0   ? km_normal(&rng)
                       : round % 3 == 1 ? (float)km_below(&rng, 4) - 2 /* ties */
                                        : (i % 2 ? 0.0f : -0.0f) * (float)(i % 3);
        if (round % 10 == 9)
            score[km_below(&rng, n)] = NAN;
        host_topk(score, n, k, a, ids);
        struct entry e[600];
        for (uint32_t i = 0; i < n; i++)
            e[i] = (struct entry){isnan(score[i]) ? -INFINITY : score[i], i};
        qsort(e, n, sizeof(e[0]), by_rank);
        bool in[600] = {0};
        for (uint32_t i = 0; i < k; i++)
            in[e[i].id] = true;
        uint32_t at = 0;
        for (uint32_t i = 0; i < n; i++)
            if (in[i])
                ck_assert_uint_eq(ids[at++], i);
        ck_assert_uint_eq(at, k);
        for (uint32_t i = 0; i < n; i++)
            a[i] = km_u64(&rng) % 1000 * 1000 + i;
        host_sort(a, n);
        for (uint32_t i = 1; i < n; i++)
            ck_assert_uint_gt(a[i - 1], a[i]);
    }
    /* orders that make a naive quickselect quadratic */
    enum { BIG = 200000 };
    uint64_t *a = malloc(BIG * sizeof(*a));
    for (uint32_t i = 0; i < BIG; i++)
        a[i] = i;
    host_select(a, BIG, BIG / 2);
    for (uint32_t i = 0; i < BIG / 2; i++)
        ck_assert_uint_ge(a[i], BIG / 2);
    free(a);
}
END_TEST

START_TEST(bf16_rounds_to_even) {
    ck_assert_uint_eq(host_bf16(1.0f), 0x3f80);
    ck_assert_uint_eq(host_bf16(1.00390625f), 0x3f80);         /* half way: even below */
    ck_assert_uint_eq(host_bf16(1.01171875f), 0x3f82);         /* half way: even above */
    ck_assert_uint_eq(host_bf16(1.0039063692092896f), 0x3f81); /* just beyond */
    ck_assert_uint_eq(host_bf16(-0.0f), 0x8000);
    ck_assert_uint_eq(host_bf16(INFINITY), 0x7f80);
    ck_assert_uint_eq(host_bf16(3.4e38f), 0x7f80);
    ck_assert(isnan(host_f32(host_bf16(NAN))));
    for (uint32_t i = 0; i < 65536; i++)
        if (!isnan(host_f32((uint16_t)i)))
            ck_assert_uint_eq(host_bf16(host_f32((uint16_t)i)), i);
}
END_TEST

START_TEST(exponentials) {
    enum { N = 4003 };
    double x[N], y[N], other[N];
    rng.s = 121;
    for (int round = 0; round < 50; round++) {
        uint32_t n = km_below(&rng, 20) ? N - km_below(&rng, 9) : km_below(&rng, 9);
        for (uint32_t i = 0; i < N; i++)
            x[i] = y[i] = i == 0 ? 0.0 : -pow(10, 6.0 * (double)km_uniform(&rng) - 3.2);
        memcpy(other, y, sizeof(y));
        host_exp(y, n);
        host_exp_any(other, n);
        ck_assert_mem_eq(y, other, sizeof(y)); /* whatever the processor */
        for (uint32_t i = 0; i < N; i++)
            if (i >= n)
                ck_assert(y[i] == x[i]); /* not touched */
            else if (x[i] < -700)
                ck_assert(y[i] > 0 && y[i] < 1e-303);
            else
                ck_assert_msg(fabs(y[i] / exp(x[i]) - 1) < 1e-14, "e^%g is not %.17g", x[i], y[i]);
        if (n)
            ck_assert(y[0] == 1.0);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_host");
    TCase *t = tcase_create("host");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, select_and_sort);
    tcase_add_test(t, bf16_rounds_to_even);
    tcase_add_test(t, exponentials);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
