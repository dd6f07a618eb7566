/* SPDX-License-Identifier: MIT */
/* A configuration file, its drop-in directory and what was read of them: the fixture of the tests of conf. */
#ifndef GLMD_TEST_CONFTEST_H
#define GLMD_TEST_CONFTEST_H

#include "conf.h"

extern char cf_dir[64], cf_file[96], cf_dropins[112];
extern struct conf cf;

void cf_put(const char *path, const char *text);
void cf_dropin(const char *name, const char *text);
void cf_setup(void);
void cf_teardown(void); /* removes the directory */

#endif
