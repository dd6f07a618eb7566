/* SPDX-License-Identifier: MIT */
/* What a model writes is not trusted: it could hold escape sequences that retitle a window, move the cursor
 * over earlier lines or make a terminal type for the user.  Everything printed goes through here.
 * Pure functions over caller memory. */
#ifndef GLMD_CTL_TEXT_H
#define GLMD_CTL_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Growable bytes; a failed allocation is remembered and makes everything after it a no-op. */
struct ctl_buf {
    char *p;
    size_t len;
    size_t cap;
    int failed;
};

void ctl_buf_done(struct ctl_buf *b);
void ctl_buf_add(struct ctl_buf *b, const char *s, size_t len);
void ctl_buf_str(struct ctl_buf *b, const char *s);
void ctl_buf_fmt(struct ctl_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Length of the valid UTF-8 sequence at s, 0 when there is none; *ret_cp is its code point. */
size_t ctl_utf8(const char *s, size_t len, uint32_t *ret_cp);

/* Appends s as a terminal may see it: newline and tab stay, other controls become visible (^[ for ESC,
 * <9b> for 8-bit controls, <u+202e> for marks that turn the writing direction), broken UTF-8 becomes U+FFFD.
 */
void ctl_text_tty(struct ctl_buf *b, const char *s, size_t len);

/* Appends s as a JSON string with its quotes; broken UTF-8 becomes U+FFFD. */
void ctl_text_json(struct ctl_buf *b, const char *s, size_t len);

#endif
