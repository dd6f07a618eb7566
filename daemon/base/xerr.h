/* SPDX-License-Identifier: MIT */
/* An error with a sentence for a human: what, where, found, expected, what to do. Used where a person
 * will read it (configuration, checkpoint, handshake, request); everything else returns a bare code. */
#ifndef GLMD_XERR_H
#define GLMD_XERR_H

struct xerr {
    int code;      /* negative errno, 0 when nothing was set */
    char msg[320]; /* NUL-terminated, truncated with "…" when longer */
};

/* Fills e (NULL allowed) and returns code, so that callers can write `return xerr_set(e, -EINVAL, …)`. */
int xerr_set(struct xerr *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
