/* SPDX-License-Identifier: MIT */
/* One weight that is no number, anywhere in the model, reaches the logits and is said: no comparison, clamp
 * or selection on the way may hide it. (Loading refuses such weights; here they stand for whatever goes wrong
 * in a forward pass.) */
#include <check.h>
#include <math.h>
#include <string.h>

#include "backend.h"
#include "kernmodel.h"

/* cuda_nonfinite.c is this file for another backend. */
#ifndef BACKENDS
#define BACKENDS "ref", "cpu"
#endif
static const char *const backends[] = {BACKENDS};
enum { N_BACKENDS = sizeof(backends) / sizeof(backends[0]) };

/* The indexer only chooses rows, the router's bias only experts: their numbers never enter the result. Rows
 * of the embedding matter when their token is used, experts when they are chosen: those get the NaN in every
 * row, or in every expert. */
static bool is_chooser(uint32_t part) {
    return part == KERN_ROUTER_BIAS || (part >= KERN_IDX_QB && part <= KERN_IDX_GATE);
}

static void poison(struct kernmodel *m, uint32_t part, uint32_t layer, const struct kern_part_info *info) {
    for (uint32_t e = 0; e < info->experts; e++) {
        float *w = (float *)(uintptr_t)km_weight(m, part, layer, e);
        bool every_row = part == KERN_EMBED || part == KERN_ROUTER;

        for (uint64_t r = 0; r < (every_row ? info->rows : 1); r++)
            w[r * info->cols] = NAN;
    }
}

static void run(const char *backend, const struct kern_config *cfg, uint32_t part, uint32_t layer) {
    static const uint32_t ids[] = {5, 9, 11, 3, 7, 20};
    struct kernmodel *m = km_new(cfg, 77);
    struct kern_part_info info;
    struct km_inst *i;
    struct km_plan *p;
    const struct kern_result *r;

    if (part) {
        ck_assert(kern_part_info(&cfg->model, part, layer, &info));
        poison(m, part, layer, &info);
    }
    i = km_open(m, backend, NULL);
    p = km_plan_new(i);
    for (uint32_t lane = 0; lane < KERN_LANES; lane++) {
        km_plan_clear(p, lane);
        km_plan_seq(p, lane, 0, 0, KERN_SEQ_RESET | KERN_SEQ_COMMIT | (lane ? KERN_SEQ_PREFILL : 0u), ids,
                    lane ? 6 : 4, NULL);
        km_plan_sample(p, lane ? 5 : 3, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
        km_run(i, p);
        r = km_results(i, lane);
        ck_assert_msg(r->flags == (part ? KERN_RESULT_NONFINITE : 0),
                      "%s: layer %u %s, lane %u: flags %u, token %u", backend, layer, kern_part_name(part),
                      lane, r->flags, r->token);
        ck_assert(part == 0 || r->token == KERN_NONE);
    }
    km_plan_free(p);
    km_close(i);
    km_free(m);
}

START_TEST(no_number_is_hidden) {
    struct kern_config c;
    uint32_t n = 0;

    km_config_small(&c);
    c.cache = KERN_CACHE_F32 + (uint32_t)_i / N_BACKENDS;
    km_layers(&c.model, "Kd Fm", NULL);
    run(backends[_i % N_BACKENDS], &c, 0, 0);
    for (uint32_t part = 1; part < KERN_PART_END; part++)
        for (uint32_t layer = 0; layer < 2; layer++) {
            struct kern_part_info info;

            if (!kern_part_info(&c.model, part, layer, &info) || is_chooser(part))
                continue;
            run(backends[_i % N_BACKENDS], &c, part, layer);
            n++;
        }
    ck_assert_uint_gt(n, 40);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_nonfinite");
    TCase *t = tcase_create("weights");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, no_number_is_hidden, 0, 3 * N_BACKENDS);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
