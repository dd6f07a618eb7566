/* SPDX-License-Identifier: MIT */
/* See conftest.h. */
#include "conftest.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

char cf_dir[64], cf_file[96], cf_dropins[112];
struct conf cf;

void cf_put(const char *path, const char *text) {
    FILE *f = fopen(path, "we");

    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

void cf_dropin(const char *name, const char *text) {
    char path[256];

    snprintf(path, sizeof path, "%s/%s", cf_dropins, name);
    cf_put(path, text);
}

void cf_setup(void) {
    snprintf(cf_dir, sizeof cf_dir, "/tmp/glmd-conf-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(cf_dir));
    snprintf(cf_file, sizeof cf_file, "%s/glmd.conf", cf_dir);
    snprintf(cf_dropins, sizeof cf_dropins, "%s.d", cf_file);
    ck_assert_int_eq(mkdir(cf_dropins, 0700), 0);
    conf_init(&cf);
}

void cf_teardown(void) {
    char cmd[200];

    conf_done(&cf);
    snprintf(cmd, sizeof cmd, "rm -rf %s", cf_dir);
    ck_assert_int_eq(system(cmd), 0);
}
