/* SPDX-License-Identifier: MIT */
/* Every fuzz target, without clang: each file of tests/fuzz/corpus/NAME, among them every input that once
 * crashed, and seeded mutations of them. The bodies abort when a promise is broken. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "leakcheck.h"
#include "texttest.h"

#ifdef TEST_EMULATED
enum { MAX_FILES = 512, FEWER = 10 }; /* an emulated processor is slow */
#else
enum { MAX_FILES = 512, FEWER = 1 };
#endif

static struct seed {
    char name[256];
    uint8_t *data;
    size_t n;
} seeds[MAX_FILES];
static size_t n_seeds;

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct seed *)a)->name, ((const struct seed *)b)->name);
}

static void load(const struct fuzz_target *t) {
    char path[4200];
    struct dirent *e;
    DIR *d;

    snprintf(path, sizeof path, "tests/fuzz/corpus/%s", t->name);
    d = opendir(path);
    ck_assert_msg(d != NULL, "%s is missing: tests run from the top of the source tree", path);
    while ((e = readdir(d))) {
        struct seed *s = &seeds[n_seeds];

        if (e->d_name[0] == '.')
            continue;
        ck_assert_uint_lt(n_seeds, MAX_FILES);
        snprintf(path, sizeof path, "tests/fuzz/corpus/%s/%s", t->name, e->d_name);
        snprintf(s->name, sizeof s->name, "%s", e->d_name);
        s->data = (uint8_t *)texttest_file(path, &s->n);
        ck_assert_msg(s->n <= t->max_bytes, "%s has %zu bytes, %zu at most", path, s->n, t->max_bytes);
        n_seeds++;
    }
    closedir(d);
    ck_assert_msg(n_seeds >= 2, "%s holds %zu seeds", t->name, n_seeds);
    qsort(seeds, n_seeds, sizeof seeds[0], by_name); /* the same run everywhere */
}

START_TEST(corpus_and_mutations) {
    const struct fuzz_target *t = &fuzz_targets[_i];
    struct ipc_rng r = {.s = UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)_i};
    uint8_t *buf = malloc(t->max_bytes + 1);

    ck_assert_ptr_nonnull(buf);
    load(t);
    for (size_t i = 0; i < n_seeds; i++)
        t->run(seeds[i].data, seeds[i].n);
    for (unsigned i = 0; i < t->rounds / FEWER; i++) {
        const struct seed *s = &seeds[ipc_below(&r, (uint32_t)n_seeds)];
        size_t n;

        memcpy(buf, s->data, s->n);
        n = fuzz_mutate(&r, buf, s->n, t->max_bytes);
        t->run(buf, n);
    }
    fuzz_cleanup();
    for (size_t i = 0; i < n_seeds; i++)
        free(seeds[i].data);
    free(buf);
}
END_TEST

int main(void) {
    Suite *s = suite_create("fuzz_corpus");
    TCase *tc = tcase_create("targets");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, corpus_and_mutations, 0, (int)fuzz_n_targets);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
