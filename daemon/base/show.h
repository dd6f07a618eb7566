/* SPDX-License-Identifier: MIT */
/* Makes text from files fit for an error message: bounded, and without bytes that could act on a terminal.
 * Pure functions, any thread. */
#ifndef GLMD_SHOW_H
#define GLMD_SHOW_H

#include <stddef.h>

/* Short enough that a file, a tensor and the fault fit one xerr message. */
struct show {
    char s[88];
};

/* Keeps the end of a long path: the directory is known to the reader, the file name is not. */
const char *show_path(struct show *s, const char *path);

/* Keeps the start of a long name. name need not be NUL-terminated. */
const char *show_name(struct show *s, const char *name, size_t len);
const char *show_str(struct show *s, const char *name);

#endif
