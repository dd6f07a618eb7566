/* SPDX-License-Identifier: MIT */
/* Rotary positions against their closed form, how they are kept in pages of each format, and what they change of a
 * page's identity. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "kernmodel.h"
#include "ref.h"

static void model_of(struct kern_model_desc *m, uint32_t dim, float theta) {
    memset(m, 0, sizeof(*m));
    m->rope_dim = dim;
    m->rope_theta = theta;
}

/* One vector at a position, by either backend's own function. */
static void turn(int backend, const struct kern_model_desc *m, uint32_t pos, const float *x, float *out) {
    static struct kern k;
    static struct cpu c;
    static struct cpu_lane lane;
    float table[2 * CPU_MAX_ROPE];
    uint32_t at[2] = {7, pos};
    if (backend == 0) {
        memcpy(out, x, m->rope_dim * sizeof(float));
        ref_rope(m, out, pos);
        return;
    }
    k.cfg.model = *m;
    c.k = &k;
    lane.turn = table;
    lane.rows[0].n = 2; /* the second row's angles: a row reads its own */
    lane.rows[0].pos = at;
    struct cpu_run r = {.c = &c, .lane = &lane, .n = 1};
    cpu_rope_open(&c);
    cpu_rope_rows(&r);
    cpu_rope_turn(&r, 1, x, out);
}

/* theta 16 over 8 numbers: the pairs' frequencies are 1, 1/2, 1/4, 1/8. A unit vector shows where it goes. */
START_TEST(neighbours_are_pairs) {
    struct kern_model_desc m;
    model_of(&m, 8, 16);
    for (uint32_t i = 0; i < 8; i++) {
        float x[8] = {0}, out[8];
        x[i] = 1;
        turn(_i, &m, 3, x, out);
        double a = 3.0 / (1 << i / 2);
        for (uint32_t j = 0; j < 8; j++) {
            double want = j == i ? cos(a) : j != (i ^ 1) ? 0 : i % 2 ? -sin(a) : sin(a);
            ck_assert_msg(fabs((double)out[j] - want) < 1e-7, "e%u at 3: number %u is %g, not %g", i, j,
                          (double)out[j], want);
        }
    }
}
END_TEST

/* GLM-5.3's pairs up to the last position it knows, in long double; and what the score sees of two positions is
 * their distance alone. */
START_TEST(angles_stay_exact) {
    static const uint32_t pos[] = {0, 1, 63, 4097, 131071, 1048575};
    struct kern_model_desc m;
    struct km_rng rng = {61};
    float x[64], y[64], out[64], other[64];
    model_of(&m, 64, 8e6f);
    for (int i = 0; i < 64; i++) {
        x[i] = km_normal(&rng);
        y[i] = km_normal(&rng);
    }
    for (size_t p = 0; p < sizeof(pos) / sizeof(pos[0]); p++) {
        turn(_i, &m, pos[p], x, out);
        for (int i = 0; i < 32; i++) {
            long double a = pos[p] * powl(8e6L, -i / 32.0L);
            double re = (double)(x[2 * i] * cosl(a) - x[2 * i + 1] * sinl(a)),
                   im = (double)(x[2 * i + 1] * cosl(a) + x[2 * i] * sinl(a));
            ck_assert_msg(fabs((double)out[2 * i] - re) < 1e-6 && fabs((double)out[2 * i + 1] - im) < 1e-6,
                          "position %u, pair %d", pos[p], i);
        }
        if (pos[p] < 63)
            continue;
        double far = 0, near = 0;
        turn(_i, &m, pos[p] - 41, y, other);
        for (int i = 0; i < 64; i++)
            far += (double)out[i] * (double)other[i];
        turn(_i, &m, 41, x, out);
        for (int i = 0; i < 64; i++)
            near += (double)out[i] * (double)y[i];
        ck_assert_msg(fabs(far - near) < 1e-5, "41 apart at %u: %g, not %g", pos[p], far, near);
    }
}
END_TEST

/* ---- in pages ---- */

enum { RANK = 48, ROPE = 16, N = 70 };

static struct km_inst *rows_in(const struct kernmodel *m, const char *backend, uint32_t cache, const uint32_t *ids) {
    struct kern_config c = m->cfg;
    c.cache = cache;
    struct km_inst *i = km_open(m, backend, &c);
    struct km_plan *p = km_plan_new(i);
    km_prefill(i, p, 0, ids, N, 64);
    km_plan_free(p);
    return i;
}

/* Number i of a stored row's rotary part: the first layer's latents stand at the start of a page. */
static float rotary(const struct km_inst *i, uint32_t pos, uint32_t at) {
    uint32_t cache = i->cfg.cache;
    const char *row = (const char *)i->mem[KERN_MEM_PAGES].base + pos * host_latent_bytes(cache, RANK, ROPE) +
                      host_rope_at(cache, RANK);
    float f;
    uint16_t half;
    if (cache == KERN_CACHE_F32) {
        memcpy(&f, row + 4 * at, 4);
        return f;
    }
    memcpy(&half, row + 2 * at, 2);
    return host_f32(half);
}

/* They keep BF16 in BF16 and in FP8 pages: nothing of them depends on how large the latent beside them is. */
START_TEST(rotary_numbers_keep_their_precision) {
    static const char *const backends[] = {"ref", "cpu"};
    struct kern_config c;
    struct km_rng rng = {62};
    uint32_t ids[N];
    km_config_glm53(&c);
    c.model.kv_rank = RANK;
    c.model.rope_dim = ROPE;
    for (int i = 0; i < N; i++)
        ids[i] = km_below(&rng, c.model.vocab_tokens);
    struct kernmodel *m = km_new(&c, 63);
    struct km_inst *full = rows_in(m, backends[_i], KERN_CACHE_F32, ids);
    for (uint32_t cache = KERN_CACHE_BF16; cache <= KERN_CACHE_FP8; cache++) {
        struct km_inst *i = rows_in(m, backends[_i], cache, ids);
        for (uint32_t t = 0; t < N; t++)
            for (uint32_t j = 0; j < ROPE; j++)
                ck_assert_msg(rotary(i, t, j) == host_f32(host_bf16(rotary(full, t, j))), "position %u, number %u: %g",
                              t, j, (double)rotary(i, t, j));
        km_close(i);
    }
    ck_assert_uint_eq(host_latent_bytes(KERN_CACHE_FP8, 512, 64), 656);
    ck_assert_uint_eq(host_latent_bytes(KERN_CACHE_BF16, 512, 64), 1152);
    ck_assert_uint_eq(host_latent_bytes(KERN_CACHE_F32, 512, 64), 2304);
    km_close(full);
    km_free(m);
}
END_TEST

/* A page turned by other angles is another model's page. */
START_TEST(pages_of_another_base_are_refused) {
    static const char *const backends[] = {"ref", "cpu"};
    struct kern_config c;
    km_config_glm53(&c);
    struct kernmodel *one = km_new(&c, 64);
    c.model.rope_theta = 301;
    struct kernmodel *two = km_new(&c, 64);
    struct km_inst *a = km_open(one, backends[_i], NULL), *b = km_open(two, backends[_i], NULL),
                   *again = km_open(one, backends[_i], NULL);
    uint64_t n = kern_page_bytes(a->k);
    void *page = malloc(n);
    ck_assert_ptr_nonnull(page);
    ck_assert_int_eq(kern_page_read(a->k, 0, page, n), 0);
    ck_assert_int_eq(kern_page_write(b->k, 0, page, n), -EBADMSG);
    ck_assert_int_eq(kern_page_write(again->k, 0, page, n), 0);
    free(page);
    km_close(a);
    km_close(b);
    km_close(again);
    km_free(one);
    km_free(two);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_rope");
    TCase *t = tcase_create("rope");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, neighbours_are_pairs, 0, 2);
    tcase_add_loop_test(t, angles_stay_exact, 0, 2);
    tcase_add_loop_test(t, rotary_numbers_keep_their_precision, 0, 2);
    tcase_add_loop_test(t, pages_of_another_base_are_refused, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
