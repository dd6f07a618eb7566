/* SPDX-License-Identifier: MIT */
/* packtest.c: runs glm-pack for tests. */
#include "packtest.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ckpt packtest_dir;
struct runprog packtest_prog;

void packtest_setup(void) {
    ckpt_empty(&packtest_dir);
}
void packtest_teardown(void) {
    char cmd[256];
    snprintf(cmd, sizeof cmd, "rm -rf %s", packtest_dir.dir);
    ck_assert_int_eq(system(cmd), 0);
}

const char *packtest_out(const char *name) {
    return ckpt_path(&packtest_dir, name);
}

int packtest(const char *in, const char *to, const char *format, const char *const *more) {
    const char *argv[32] = { TEST_BUILD "/glm-pack", in, to, "--format", format };
    for (int i = 5; more && *more; i++)
        argv[i] = *more++;
    return runprog(&packtest_prog, argv, NULL, false, NULL);
}

void *packtest_load(const struct model_index *x, const char *module, const char *suffix,
                    uint64_t *ret_bytes) {
    char name[320];
    struct xerr err = { 0 };
    snprintf(name, sizeof name, "%s.%s", module, suffix);
    const struct model_entry *en = model_index_find(x, name);
    if (!en)
        return NULL;
    void *p = malloc(en->t->bytes + 1);
    ck_assert_int_eq(st_read(model_index_file(x, en->file), en->t, 0, p, en->t->bytes, &err), 0);
    *ret_bytes = en->t->bytes;
    return p;
}
