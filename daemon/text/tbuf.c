/* SPDX-License-Identifier: MIT */
/* Allocates only for a growing buffer (text workers, tools); never for a fixed one (emit thread). */
#include "tbuf.h"

#include <errno.h>
#include <stdlib.h>

void tbuf_init(struct tbuf *b, size_t max_bytes) {
    *b = (struct tbuf){.max = max_bytes ? max_bytes : 1};
}

void tbuf_init_fixed(struct tbuf *b, char *mem, size_t bytes) {
    *b = (struct tbuf){.p = mem, .cap = bytes};
}

void tbuf_done(struct tbuf *b) {
    if (b->max) {
        free(b->p);
        b->p = NULL;
        b->cap = 0;
    }
    b->n = 0;
    b->err = 0;
}

bool tbuf_reserve(struct tbuf *b, size_t more) {
    size_t cap;
    char *p;

    if (b->err)
        return false;
    if (more <= b->cap - b->n)
        return true;
    if (!b->max || more > b->max - b->n) {
        b->err = -E2BIG;
        return false;
    }
    cap = b->cap < 256 ? 256 : b->cap;
    while (cap - b->n < more)
        cap = cap > b->max / 2 ? b->max : cap * 2;
    p = realloc(b->p, cap);
    if (!p) {
        b->err = -ENOMEM;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void tbuf_put(struct tbuf *b, const void *p, size_t n) {
    if (n == 0 || !tbuf_reserve(b, n))
        return;
    memcpy(b->p + b->n, p, n);
    b->n += n;
}
