/* SPDX-License-Identifier: MIT */
/* Runs on the emit thread: no allocation, no state outside struct detok. */
#include "detok.h"

#include "utf8.h"

#include <string.h>

void detok_init(struct detok *d) {
    *d = (struct detok){0};
}

static size_t replacement(struct detok *d, char *out) {
    d->replaced++;
    memcpy(out, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
    return UTF8_REPLACEMENT_BYTES;
}

size_t detok_push(struct detok *d, const uint8_t *bytes, size_t n, char *out) {
    size_t at = 0, w = 0;

    /* The kept tail is completed byte by byte: what decides is never more than the next one. */
    while (d->tail_bytes > 0 && at < n) {
        int len;

        d->tail[d->tail_bytes++] = bytes[at++];
        len = utf8_next(d->tail, d->tail_bytes, NULL);
        if (len == 0)
            continue;
        if (len > 0) {
            memcpy(out + w, d->tail, (size_t)len);
            w += (size_t)len;
        } else {
            /* Only the byte just added can have broken it; it starts anew. */
            w += replacement(d, out + w);
            at--;
        }
        d->tail_bytes = 0;
    }
    while (at < n) {
        size_t good = utf8_valid_prefix(bytes + at, n - at);
        int len;

        memcpy(out + w, bytes + at, good);
        w += good;
        at += good;
        if (at == n)
            break;
        len = utf8_next(bytes + at, n - at, NULL);
        if (len == 0) {
            d->tail_bytes = (uint8_t)(n - at);
            memcpy(d->tail, bytes + at, n - at);
            break;
        }
        w += replacement(d, out + w);
        at += FAULT(detok_skip_byte) ? 1u : (size_t)-len;
    }
    return w;
}

const char *detok_view(struct detok *d, const uint8_t *bytes, size_t n, char *out, size_t *ret_n) {
    if ((d->tail_bytes == 0 || FAULT(detok_view_forgets)) && utf8_valid_prefix(bytes, n) == n) {
        *ret_n = n;
        return (const char *)bytes;
    }
    *ret_n = detok_push(d, bytes, n, out);
    return out;
}

size_t detok_finish(struct detok *d, char *out) {
    if (d->tail_bytes == 0)
        return 0;
    d->tail_bytes = 0;
    return replacement(d, out);
}

void detok_drop(struct detok *d) {
    d->tail_bytes = 0;
}
