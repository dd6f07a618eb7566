/* SPDX-License-Identifier: MIT */
/* Fixture: descriptors and child processes must be the same after a test as before it.
 *
 *     tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
 *
 * A test of one program can also mark and check a stretch of its own with leakcheck_begin/_end. */
#ifndef GLMD_LEAKCHECK_H
#define GLMD_LEAKCHECK_H

#include <stdint.h>

#define LEAKCHECK_MAX_FD 1024

struct leakcheck {
    int n_fds;
    int fds[LEAKCHECK_MAX_FD];
    int n_children;
};

void leakcheck_begin(struct leakcheck *l);

/* 0, or -1 with every difference named in a text of static storage */
int leakcheck_end(const struct leakcheck *l, const char **ret_text);

void leakcheck_setup(void);
void leakcheck_teardown(void); /* fails the running Check test on a difference */

#endif
