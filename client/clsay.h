/* SPDX-License-Identifier: MIT */
/* The one line for people that tells why connecting failed.  Any thread; memory of the caller. */
#ifndef GLMD_CLSAY_H
#define GLMD_CLSAY_H

#include <stddef.h>

struct cl_say {
    char *text; /* the caller's buffer, may be NULL */
    size_t bytes;
    const char *where; /* how the socket is called in messages */
};

/* Writes the line and returns error, so that a failure is one statement. */
int cl_say(struct cl_say *s, int error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
