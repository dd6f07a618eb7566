/* SPDX-License-Identifier: MIT */
/* Neutralising text for terminals and JSON; see ctl_text.h. */
#include "ctl_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ctl_buf_done(struct ctl_buf *b) {
    free(b->p);
    *b = (struct ctl_buf){0};
}

static int reserve(struct ctl_buf *b, size_t more) {
    if (b->failed)
        return -1;
    if (more <= b->cap - b->len)
        return 0;
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->len < more) {
        if (cap > SIZE_MAX / 2) {
            b->failed = 1;
            return -1;
        }
        cap *= 2;
    }
    char *p = realloc(b->p, cap);
    if (!p) {
        b->failed = 1;
        return -1;
    }
    b->p = p;
    b->cap = cap;
    return 0;
}

void ctl_buf_add(struct ctl_buf *b, const char *s, size_t len) {
    if (len && reserve(b, len) == 0) {
        memcpy(b->p + b->len, s, len);
        b->len += len;
    }
}

void ctl_buf_str(struct ctl_buf *b, const char *s) {
    ctl_buf_add(b, s, strlen(s));
}

void ctl_buf_fmt(struct ctl_buf *b, const char *fmt, ...) {
    char tmp[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(tmp, sizeof tmp, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof tmp)
        b->failed = 1; /* formats here are short; losing text silently would be worse */
    else
        ctl_buf_add(b, tmp, (size_t)n);
}

size_t ctl_utf8(const char *s, size_t len, uint32_t *ret_cp) {
    const unsigned char *u = (const unsigned char *)s;
    if (!len)
        return 0;
    if (u[0] < 0x80) {
        *ret_cp = u[0];
        return 1;
    }
    size_t n = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (u[0] < 0xc2 || u[0] > 0xf4 || n > len)
        return 0;
    uint32_t cp = u[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((u[i] & 0xc0) != 0x80)
            return 0;
        cp = cp << 6 | (u[i] & 0x3f);
    }
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (cp < least[n] || cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        return 0;
    *ret_cp = cp;
    return n;
}

static int turns_direction(uint32_t cp) {
    return (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069);
}

void ctl_text_tty(struct ctl_buf *b, const char *s, size_t len) {
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t n = ctl_utf8(s + i, len - i, &cp);
        if (!n) {
            ctl_buf_str(b, "\xef\xbf\xbd");
            i++;
            continue;
        }
        if (cp < 0x20 && cp != '\n' && cp != '\t')
            ctl_buf_fmt(b, "^%c", (int)(cp + 0x40));
        else if (cp == 0x7f)
            ctl_buf_str(b, "^?");
        else if (cp >= 0x80 && cp < 0xa0)
            ctl_buf_fmt(b, "<%02x>", cp);
        else if (turns_direction(cp))
            ctl_buf_fmt(b, "<u+%04x>", cp);
        else
            ctl_buf_add(b, s + i, n);
        i += n;
    }
}

void ctl_text_json(struct ctl_buf *b, const char *s, size_t len) {
    ctl_buf_str(b, "\"");
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t n = ctl_utf8(s + i, len - i, &cp);
        if (!n) {
            ctl_buf_str(b, "\\ufffd");
            i++;
            continue;
        }
        if (cp == '"' || cp == '\\')
            ctl_buf_fmt(b, "\\%c", (int)cp);
        else if (cp == '\n')
            ctl_buf_str(b, "\\n");
        else if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0))
            ctl_buf_fmt(b, "\\u%04x", cp);
        else
            ctl_buf_add(b, s + i, n);
        i += n;
    }
    ctl_buf_str(b, "\"");
}
