/* SPDX-License-Identifier: MIT */
/* textfile.h: opens a file that a person names: a configuration, a script. Starting thread. Never waits: a FIFO in
 * the file's place would be waited for until somebody writes into it. */
#ifndef GLMD_TEXTFILE_H
#define GLMD_TEXTFILE_H

#include <stdio.h>

#include "xerr.h"

/* what: a word in front of the path in err, with a blank behind it, or "". Release with fclose(). */
int textfile_open(const char *path, const char *what, FILE **ret, struct xerr *err);

#endif
