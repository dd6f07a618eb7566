/* SPDX-License-Identifier: MIT */
/* A checkpoint from its files into a backend's own layout: planned, allocated, packed, given back. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "kernmem.h"
#include "leakcheck.h"
#include "loader.h"
#include "meminfo.h"

static struct mem_account a;
static struct xerr err;
static struct model_config cfg;
static struct model_index *x;
static struct model_directory d;
static struct kern_config kc;

static void setup(void) {
    leakcheck_setup();
    mem_account_init(&a);
    memset(&err, 0, sizeof err);
}

static void teardown(void) {
    model_directory_done(&d);
    x = model_index_close(x);
    leakcheck_teardown();
}

static void open_model(const char *name) {
    const char *path = ckpt_model(name);

    ck_assert_msg(model_config_read(path, &cfg, &err) == 0, "%s", err.msg);
    ck_assert_msg(model_index_open(&x, path, NULL, &err) == 0, "%s", err.msg);
    ck_assert_msg(model_directory_build(&d, &cfg, x, &err) == 0, "%s", err.msg);
    memset(&kc, 0, sizeof kc);
    ck_assert_msg(model_config_describe(&cfg, cfg.vocab_size, d.has_draft, &kc.model, &err) == 0, "%s",
                  err.msg);
    kc.n_ranks = 1;
    kc.threads = 1;
    kc.cache = KERN_CACHE_F32;
    kc.n_pages = 8;
    kc.n_slots = 2;
    kc.max_seqs = 2;
    kc.max_rows[KERN_LANE_DECODE] = 2;
    kc.max_rows[KERN_LANE_PREFILL] = 64;
    kc.max_samples = 2;
    kc.max_context = 1024;
    kc.max_plan_bytes = 1 << 16;
}

/* All but the item with this number go to the backend. */
struct skipping {
    struct mem_pack pack;
    const struct model_item *skip;
};

static int skip_one(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                    const void *bytes, uint64_t n) {
    struct skipping *s = ctx;

    if (s->skip && memcmp(&s->skip->id, id, sizeof *id) == 0)
        return 0;
    return mem_pack_window(&s->pack, id, t, offset, bytes, n);
}

static const struct {
    const char *model, *backend;
} PAIRS[] = {{"nano", "ref"}, {"nano", "cpu"}, {"twin-a", "ref"}, {"twin-a", "cpu"}};

static void pack(const char *model, const char *backend, size_t skip) {
    struct skipping s = {.skip = NULL};
    struct mem_kern m;
    struct kern *k;
    void *staging;
    uint64_t planned = 0;
    struct model_load l = {.staging_bytes = 100000, .sink = skip_one, .sink_ctx = &s};
    struct mem_info info = {.total_bytes = UINT64_MAX, .available_bytes = UINT64_MAX};
    int r;

    open_model(model);
    if (skip < d.n_items)
        s.skip = &d.item[skip];
    ck_assert_msg(mem_kern_plan(&m, &a, backend, &kc, &err) == 0, "%s", err.msg);
    for (int c = 0; c < KERN_MEM_N; c++)
        planned += m.bytes[c];
    ck_assert_uint_eq(mem_account_total(&a).planned, planned);
    ck_assert_uint_eq(mem_account_total(&a).used, 0); /* nothing before the check */
    ck_assert_uint_ge(m.bytes[KERN_MEM_WEIGHTS], d.bytes / 2);
    ck_assert_int_eq(mem_check(&a, &info, 0, &err), 0);

    ck_assert_int_eq(mem_account_plan(&a, MEM_STAGING, l.staging_bytes), 0);
    ck_assert_int_eq(mem_map(&a, MEM_STAGING, l.staging_bytes, &staging), 0);
    l.staging = staging;
    ck_assert_msg(mem_kern_alloc(&m, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(mem_account_total(&a).used, planned + l.staging_bytes);
    r = kern_open(backend, &kc, m.block, &k);
    ck_assert_msg(r == 0, "%d: %s", r, kern_open_error());
    s.pack.k = k;
    ck_assert_msg(model_load(x, &d, &l, &err) == 0, "%s: %s", err.msg, kern_last_error(k));
    r = mem_pack_done(&s.pack, &err);
    if (s.skip) {
        ckpt_expect("one part missing", r, -ENODATA, &err,
                    (const char *const[]){"weights: found an incomplete set", NULL});
        ck_assert_uint_eq(atomic_load(&s.pack.bytes), d.bytes - s.skip->t->bytes);
    } else {
        ck_assert_msg(r == 0, "%s", err.msg);
        ck_assert_uint_eq(atomic_load(&s.pack.bytes), d.bytes);
    }
    kern_close(k);
    mem_kern_free(&m);
    mem_kern_free(&m);
    mem_unmap(&a, MEM_STAGING, staging, l.staging_bytes);
    ck_assert_uint_eq(mem_account_total(&a).used, 0);
    ck_assert_uint_eq(mem_account_read(&a, MEM_WEIGHTS).high, m.bytes[KERN_MEM_WEIGHTS]);
}

START_TEST(every_part) {
    pack(PAIRS[_i].model, PAIRS[_i].backend, SIZE_MAX);
}
END_TEST

/* The backend misses what the loader did not bring. */
START_TEST(one_part_missing) {
    static const size_t SKIP[] = {0, 57, 140, 197};

    pack("twin-a", "ref", SKIP[_i]);
}
END_TEST

START_TEST(refusals) {
    struct mem_kern m;

    open_model("twin-a");
    ckpt_expect("unknown backend", mem_kern_plan(&m, &a, "abacus", &kc, &err), -ENOENT, &err,
                (const char *const[]){"backend abacus", "known are", NULL});
    ckpt_expect("long name", mem_kern_plan(&m, &a, "a-backend-with-a-name-of-forty-characters", &kc, &err),
                -ENOENT, &err, (const char *const[]){"backend", "expected", NULL});
    kc.max_rows[KERN_LANE_PREFILL] = 65; /* not on the grid */
    ck_assert_int_lt(mem_kern_plan(&m, &a, "ref", &kc, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.msg, "backend ref"));
    ck_assert_uint_eq(mem_account_total(&a).planned, 0);
}
END_TEST

/* A plan that another class has eaten: nothing stays allocated. */
START_TEST(no_room_in_the_plan) {
    struct mem_kern m;

    open_model("twin-a");
    ck_assert_msg(mem_kern_plan(&m, &a, "ref", &kc, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(mem_account_take(&a, MEM_WORK, 1), 0);
    ckpt_expect("no room", mem_kern_alloc(&m, &err), -ENOMEM, &err,
                (const char *const[]){"memory: work", NULL});
    ck_assert_uint_eq(mem_account_total(&a).used, 1);
}
END_TEST

int main(void) {
    Suite *s = suite_create("mem_kern");
    TCase *tc = tcase_create("kern");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, every_part, 0, (int)(sizeof PAIRS / sizeof *PAIRS));
    tcase_add_loop_test(tc, one_part_missing, 0, 4);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, no_room_in_the_plan);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
