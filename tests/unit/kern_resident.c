/* SPDX-License-Identifier: MIT */
/* What weights take in memory: for every part and every format it can have, what a backend asks for beyond the same
 * model in BF16 is what the format's own bytes are beyond BF16's, within a hundredth; mixtures too. Shapes are those of
 * the release, with fewer layers and experts; nothing is allocated. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernstores.h"

static const char *const backends[] = {"ref", "cpu"};

static void release(struct kern_config *c, bool split) {
    km_config_small(c);
    struct kern_model_desc *m = &c->model;
    m->vocab_rows = m->vocab_tokens = 154880;
    m->hidden = 4096;
    m->dense_width = 12288;
    m->expert_width = 2048;
    m->n_experts = 8;
    m->n_top = 8;
    m->mla_heads = m->kda_heads = 64;
    m->q_rank = 1536;
    m->kv_rank = 512;
    m->nope_dim = m->v_dim = 256;
    m->index_heads = 32;
    m->index_dim = 128;
    m->index_topk = 2048;
    m->kda_dim = 128;
    km_layers(m, split ? "Kd Fms Km" : "Kd Fm Km", "Fm");
}

static uint64_t weights(const char *backend, struct kern_config *c, const struct kern_store *stores) {
    uint64_t bytes[KERN_MEM_N];
    c->stores = stores;
    ck_assert_msg(kern_query(backend, c, bytes) == 0, "%s: %s", backend, kern_open_error());
    return bytes[KERN_MEM_WEIGHTS];
}

/* Of every tensor of one part in all layers, or, KERN_PART_END, of all matrices. */
static uint64_t of_formats(const struct kern_config *c, uint32_t part, const struct kern_store *stores) {
    uint64_t sum = 0;
    for (uint32_t l = 0; l < kern_total_layers(&c->model); l++)
        for (uint32_t p = 1; p < KERN_PART_END; p++) {
            struct kern_part_info info;
            if ((part != KERN_PART_END && p != part) || !kern_part_info(&c->model, p, l, &info) || !info.matrix)
                continue;
            for (uint32_t e = 0; e < info.experts; e++) {
                const struct kern_tensor_id id = {.part = p, .layer = l, .expert = e};
                const struct kern_store s = stores[kern_part_slot(&c->model, &id)];
                uint64_t bytes;
                ck_assert_int_eq(kern_store_bytes(&s, info.rows, info.cols, &bytes), 0);
                sum += bytes;
            }
        }
    return sum;
}

/* dst: as from, but for one part. false: the part has it in no layer. */
static bool one_part(const struct kern_model_desc *m, uint32_t part, const struct kern_store *from,
                     const struct kern_store *to, struct kern_store *dst) {
    bool any = false;
    memcpy(dst, from, kern_part_count(m) * sizeof(*dst));
    for (uint32_t l = 0; l < kern_total_layers(m); l++) {
        struct kern_part_info info;
        if (!kern_part_info(m, part, l, &info) || !info.matrix)
            continue;
        for (uint32_t e = 0; e < info.experts; e++) {
            const struct kern_tensor_id id = {.part = part, .layer = l, .expert = e};
            uint64_t slot = kern_part_slot(m, &id);
            any = any || memcmp(&dst[slot], &to[slot], sizeof(*dst)) != 0;
            dst[slot] = to[slot];
        }
    }
    return any;
}

START_TEST(each_part) {
    const struct kern_store *s = &ks_all[_i / 2];
    struct kern_config c;
    uint32_t used, parts = 0;
    char name[40];
    release(&c, _i % 2);
    const struct kern_store bf16 = kern_store_plain(KERN_BF16);
    struct kern_store *plain = ks_stores(&c.model, &bf16, &used), *all = ks_stores(&c.model, s, &used);
    struct kern_store *mixed = malloc(kern_part_count(&c.model) * sizeof(*mixed));
    ck_assert_ptr_nonnull(mixed);
    for (uint32_t part = 1; part < KERN_PART_END; part++) {
        if (!one_part(&c.model, part, plain, all, mixed))
            continue;
        parts++;
        for (int b = 0; b < 2; b++) {
            int64_t took = (int64_t)weights(backends[b], &c, mixed) - (int64_t)weights(backends[b], &c, plain);
            uint64_t format = of_formats(&c, part, mixed);
            int64_t want = (int64_t)format - (int64_t)of_formats(&c, part, plain);
            ck_assert_msg(llabs(took - want) <= (int64_t)(format / 100 + 256),
                          "%s, %s as %s: %lld bytes more, the format %lld", backends[b], kern_part_name(part),
                          kern_store_name(s, name, sizeof(name)), (long long)took, (long long)want);
        }
    }
    ck_assert_uint_ge(parts, 15);
    free(mixed);
    free(all);
    free(plain);
}
END_TEST

/* Every tensor in a format of its own: the whole is the sum. Vectors are F32 and few. */
START_TEST(mixtures) {
    struct kern_config c;
    struct km_rng rng = {500 + (uint64_t)_i};
    release(&c, _i % 2);
    struct kern_store *stores = calloc(kern_part_count(&c.model), sizeof(*stores));
    ck_assert_ptr_nonnull(stores);
    for (uint32_t i = 0; i < ks_count; i++) {
        uint32_t used;
        struct kern_store *all = ks_stores(&c.model, &ks_all[i], &used);
        for (uint64_t t = 0; t < kern_part_count(&c.model); t++)
            if (all[t].format && (!stores[t].format || !km_below(&rng, 1 + i / 2)))
                stores[t] = all[t];
        free(all);
    }
    uint64_t format = of_formats(&c, KERN_PART_END, stores);
    for (int b = 0; b < 2; b++) {
        uint64_t took = weights(backends[b], &c, stores);
        ck_assert_msg(took >= format && took <= format + format / 100, "%s: %llu bytes, the formats %llu", backends[b],
                      (unsigned long long)took, (unsigned long long)format);
    }
    free(stores);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_resident");
    TCase *tc = tcase_create("bytes");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, each_part, 0, 2 * (int)ks_count);
    tcase_add_loop_test(tc, mixtures, 0, 8);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
