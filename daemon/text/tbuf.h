/* SPDX-License-Identifier: MIT */
/* Byte buffer of the text room: over a caller's fixed memory (never allocates) or growing up to a limit (text
 * workers and tools only). The first failure sticks in err; later appends do nothing, so that writers need
 * one check at the end. */
#ifndef GLMD_TBUF_H
#define GLMD_TBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct tstr { /* borrowed bytes; p == NULL means "absent", which differs from empty */
    const char *p;
    size_t n;
};

struct tbuf {
    char *p;
    size_t n, cap;
    size_t max; /* growth limit; 0 = fixed memory */
    int err;    /* 0, -E2BIG (limit or fixed memory full) or -ENOMEM */
};

void tbuf_init(struct tbuf *b, size_t max_bytes);
void tbuf_init_fixed(struct tbuf *b, char *mem, size_t bytes);
void tbuf_done(struct tbuf *b); /* frees grown memory only; the buffer is empty and usable afterwards */
void tbuf_put(struct tbuf *b, const void *p, size_t n);
bool tbuf_reserve(struct tbuf *b, size_t more); /* room for `more` bytes behind n */

static inline void tbuf_puts(struct tbuf *b, const char *s) {
    tbuf_put(b, s, strlen(s));
}

static inline void tbuf_putc(struct tbuf *b, char c) {
    tbuf_put(b, &c, 1);
}

static inline struct tstr tstr_of(const char *s) {
    return (struct tstr){s, s ? strlen(s) : 0};
}

static inline bool tstr_is(struct tstr a, const char *s) {
    return a.p && a.n == strlen(s) && memcmp(a.p, s, a.n) == 0;
}

static inline bool tstr_eq(struct tstr a, struct tstr b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

#endif
