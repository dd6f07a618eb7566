/* SPDX-License-Identifier: MIT */
/* The FP8 cache: every code and every neighbourhood of codes, rows of any size, equal bits from every instruction
 * set and from the oracle's formula, and what the rounding does to a model. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_ops.h"
#include "host.h"
#include "kernmodel.h"
#include "kernnaive.h"

/* What the format says, by its definition. */
static double by_definition(uint32_t code) {
    uint32_t e = code >> 3 & 15, m = code & 7;
    double v = e ? ldexp(1 + m / 8.0, (int)e - 7) : ldexp(m, -9);
    return code & 0x80 ? -v : v;
}

START_TEST(every_code) {
    for (uint32_t c = 0; c < 256; c++) {
        if ((c & 0x7f) == 0x7f)
            continue; /* NaN: never written */
        float v = host_e4m3_f32((uint8_t)c);
        ck_assert_double_eq((double)v, by_definition(c));
        ck_assert_uint_eq(host_e4m3(v), c);
        ck_assert_int_eq(signbit(v) != 0, c >= 0x80);
    }
}
END_TEST

/* Between neighbours: the nearer one; in the middle the even one; one step of the float to either side decides. */
START_TEST(to_the_nearest) {
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t c = 0; c < 0x7e; c++) {
            float s = sign ? -1.0f : 1.0f, middle = (float)((by_definition(c) + by_definition(c + 1)) / 2);
            uint32_t even = c % 2 ? c + 1 : c;
            ck_assert_uint_eq(host_e4m3(s * middle), even | sign << 7);
            ck_assert_uint_eq(host_e4m3(s * nextafterf(middle, 0)), c | sign << 7);
            ck_assert_uint_eq(host_e4m3(s * nextafterf(middle, 1e9f)), (c + 1) | sign << 7);
        }
    const float large[] = {448, 449, 464, 465, 480, 1e9f, FLT_MAX, INFINITY, NAN};
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        ck_assert_uint_eq(host_e4m3(large[i]) & 0x7f, 0x7e);
        ck_assert_uint_eq(host_e4m3(-large[i]) & 0x7f, 0x7e);
    }
    /* no float gives a NaN, and larger never gives smaller */
    uint32_t before = 0;
    for (uint32_t u = 0; u < 0x80000000u; u += 0x1001) {
        float v;
        memcpy(&v, &u, sizeof(v));
        uint32_t c = host_e4m3(v);
        ck_assert_uint_le(c, 0x7e);
        ck_assert_uint_ge(c, before);
        before = c;
    }
}
END_TEST

/* ---- rows ---- */

enum { WIDTH = 512 };

static void fill(float *x, uint32_t n, struct km_rng *r, int kind) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = km_normal(r);
    for (uint32_t i = 0; i < n; i++)
        switch (kind) {
        case 0:
            break;
        case 1: /* one number towers: most of the others become subnormal codes or 0 */
            x[i] *= i ? 1e-4f : 300.0f;
            break;
        case 2:
            x[i] = i % 3 ? 0.0f : -0.0f;
            break;
        case 3:
            x[i] *= 1e37f;
            break;
        case 4:
            x[i] *= 1e-41f; /* subnormal floats */
            break;
        case 5:
            x[i] *= expf(8 * km_normal(r));
            break;
        default: /* not finite */
            x[i] = i == n / 2 ? (kind == 6 ? NAN : -INFINITY) : x[i];
        }
}

START_TEST(rows_on_every_instruction_set) {
    static const char *const isa[] = {"scalar", "avx2", "avx512", "neon"};
    _Alignas(64) float x[WIDTH], got[WIDTH];
    _Alignas(64) uint8_t row[WIDTH + 4];
    struct km_rng r = {3};
    uint32_t tables = 0;
    for (int t = 0; t < 4; t++) {
        const struct cpu_ops *ops = cpu_ops_find(isa[t]);
        if (!ops)
            continue; /* not on this machine */
        tables++;
        r.s = 3;
        for (int round = 0; round < 400; round++) {
            uint32_t n = 16 * (1 + km_below(&r, WIDTH / 16)), top = 0;
            int kind = round % 8;
            fill(x, n, &r, kind);
            ops->narrow8(row, x, n);
            ops->widen8(got, row, n);
            float scale, most = 0;
            memcpy(&scale, row + n, sizeof(scale));
            for (uint32_t i = 0; i < n; i++) {
                uint32_t u;
                memcpy(&u, &x[i], sizeof(u));
                top = (u & 0x7fffffff) > top ? u & 0x7fffffff : top;
                most = fmaxf(most, fabsf(x[i]));
            }
            float want = host_fp8_scale(top);
            ck_assert_mem_eq(&scale, &want, sizeof(scale));
            for (uint32_t i = 0; i < n; i++) {
                ck_assert_uint_le(row[i] & 0x7f, 0x7e);
                if (kind >= 6) {
                    ck_assert_float_nan(got[i]);
                    continue;
                }
                float value = host_e4m3_f32(row[i]) * scale;
                ck_assert_uint_eq(row[i], host_e4m3(x[i] / scale));
                ck_assert_mem_eq(&got[i], &value, sizeof(value));
                /* half a step: 2^-4 of the number, or 2^-10 of the factor */
                ck_assert_float_le(fabsf(got[i] - x[i]), fmaxf(fabsf(x[i]) * 0x1.001p-4f, scale * 0x1.001p-10f));
            }
            ck_assert(kind == 2 || kind >= 4 || fabsf(scale * 448 - most) <= most * 1e-6f);
        }
    }
    ck_assert_uint_ge(tables, 2);
}
END_TEST

START_TEST(bytes_of_a_row) {
    ck_assert_uint_eq(host_latent_bytes(KERN_CACHE_FP8, 512, 0), 528);
    ck_assert_uint_eq(host_key_bytes(KERN_CACHE_FP8, 128), 132);
    ck_assert_uint_eq(host_latent_bytes(KERN_CACHE_BF16, 512, 0), 1024);
    ck_assert_uint_eq(host_key_bytes(KERN_CACHE_F32, 128), 512);
    /* eleven layers of the release: what a token of context costs */
    ck_assert_uint_eq(11 * (host_latent_bytes(KERN_CACHE_FP8, 512, 0) + host_key_bytes(KERN_CACHE_FP8, 128) / 4), 6171);
    for (uint32_t n = 1; n < 100; n++) {
        ck_assert_uint_ge(host_latent_bytes(KERN_CACHE_FP8, n, 0), host_fp8_at(n) + 4);
        ck_assert_uint_eq(host_latent_bytes(KERN_CACHE_FP8, n, 0) % 16, 0);
        ck_assert_uint_eq(host_key_bytes(KERN_CACHE_FP8, n) % 4, 0);
    }
}
END_TEST

/* ---- a model over it ---- */

/* The answer moves by the rounding and no more: latents are off by 2^-4 of a number at most, 0.026 of a row's length
 * on average. Every pool is chosen, so that no choice can hide or make a difference. */
START_TEST(error_of_a_model) {
    static const char *const backends[] = {"ref", "cpu"};
    struct kern_config c;
    uint32_t ids[120];
    struct km_rng r = {501};
    km_config_small(&c);
    c.model.index_topk = 512;
    c.cache = KERN_CACHE_FP8;
    struct kernmodel *m = km_new(&c, 500);
    for (int i = 0; i < 120; i++)
        ids[i] = km_below(&r, c.model.vocab_tokens);
    struct naive *v = naive_new(m, ids, 120);
    struct km_inst *i = km_open(m, backends[_i], NULL);
    struct km_plan *p = km_plan_new(i);
    float logits[256];
    double sum = 0;
    km_prefill(i, p, 0, ids, 64, 64);
    for (uint32_t at = 64; at < 120; at++) {
        km_decode(i, p, 0, at, ids[at], logits);
        double e = naive_error(logits, v->logits + at * (uint64_t)c.model.vocab_rows, c.model.vocab_rows);
        ck_assert_msg(e > 1e-6, "position %u: %g", at, e);
        sum += e;
    }
    ck_assert_msg(sum / 56 < 0.06, "mean relative error %g", sum / 56);
    naive_free(v);
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_fp8");
    TCase *t = tcase_create("fp8");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, every_code);
    tcase_add_test(t, to_the_nearest);
    tcase_add_test(t, rows_on_every_instruction_set);
    tcase_add_test(t, bytes_of_a_row);
    tcase_add_loop_test(t, error_of_a_model, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
