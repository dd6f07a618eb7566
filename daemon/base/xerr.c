/* SPDX-License-Identifier: MIT */
#include "xerr.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int xerr_set(struct xerr *e, int code, const char *fmt, ...) {
    va_list ap;
    int n;

    if (!e)
        return code;
    e->code = code;
    va_start(ap, fmt);
    n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof e->msg) {
        size_t at = sizeof e->msg - 4;

        /* never cut inside a UTF-8 sequence */
        while (at > 0 && ((unsigned char)e->msg[at] & 0xc0) == 0x80)
            at--;
        memcpy(e->msg + at, "\xe2\x80\xa6", 4);
    }
    return code;
}
