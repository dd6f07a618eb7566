/* SPDX-License-Identifier: MIT */
/* Checkpoint -> staging buffer -> sink. Runs on the loading thread, before READY; allocates nothing; never
 * maps a file (page cache faults would be charged to the reader, and a shrinking file would be SIGBUS).
 *
 * Tensors that lie next to each other are read with one call, scattered so that each begins on 64 bytes in
 * memory: on disk a tensor starts wherever the one before it ended.
 *
 * A weight that is no number makes every answer noise, or hides where one comparison drops it; while the
 * bytes are at hand looking for one costs next to nothing. */
#include "loader.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "modelshow.h"

enum {
    WINDOW_IOVS = 64,
    WINDOW_ALIGN = 64,
};

struct window {
    uint64_t at; /* of the file */
    uint32_t file;
    int n;
    struct iovec iov[WINDOW_IOVS];
    struct {
        const struct model_item *it;
        uint64_t offset;
        void *bytes;
        uint64_t n;
    } piece[WINDOW_IOVS];
};

/* Fills w from item *i, byte *offset of it on, as far as the items are contiguous and the buffer lasts, and
 * moves *i and *offset behind it. */
static void plan_window(const struct model_directory *d, const struct model_load *l, size_t *i,
                        uint64_t *offset, struct window *w) {
    uint64_t used = 0, next;

    w->n = 0;
    w->file = d->item[*i].file;
    next = w->at = d->item[*i].t->offset + *offset;
    while (*i < d->n_items && w->n < WINDOW_IOVS) {
        const struct model_item *it = &d->item[*i];
        uint64_t left = it->t->bytes - *offset, room = l->staging_bytes - used;
        uint64_t n = left < room ? left : room;

        if (it->file != w->file || it->t->offset + *offset != next)
            break;
        /* A cut inside a tensor is made at a multiple of the alignment, so the next window starts aligned
         * in terms of the tensor too. */
        if (n < left)
            n &= ~(uint64_t)(WINDOW_ALIGN - 1);
        if (n == 0 && left > 0)
            break;
        w->piece[w->n].it = it;
        w->piece[w->n].offset = *offset;
        w->piece[w->n].bytes = (char *)l->staging + used;
        w->piece[w->n].n = n;
        w->iov[w->n].iov_base = w->piece[w->n].bytes;
        w->iov[w->n].iov_len = (size_t)n;
        w->n++;
        next += n;
        used += (n + WINDOW_ALIGN - 1) & ~(uint64_t)(WINDOW_ALIGN - 1);
        used = used < l->staging_bytes ? used : l->staging_bytes;
        if (n < left) {
            *offset += n;
            break;
        }
        ++*i;
        *offset = 0;
    }
}

/* Index of the first number of n bytes (whole numbers of `size` bytes) that is NaN or infinite, or -1: its
 * exponent is all ones, so that adding one to the exponent alone reaches the sign bit, in every lane of a
 * word at once. */
static int64_t not_finite(const void *bytes, uint64_t n, uint32_t size) {
    const uint64_t exponent = size == 4 ? UINT64_C(0x7f8000007f800000) : UINT64_C(0x7f807f807f807f80);
    const uint64_t one = size == 4 ? UINT64_C(0x0080000000800000) : UINT64_C(0x0080008000800080);
    const uint64_t sign = size == 4 ? UINT64_C(0x8000000080000000) : UINT64_C(0x8000800080008000);
    const char *p = bytes;
    uint64_t hit = 0, w;

    for (uint64_t i = 0; i < n; i += sizeof w) {
        w = 0;
        memcpy(&w, p + i, n - i < sizeof w ? (size_t)(n - i) : sizeof w);
        hit |= (w & exponent) + one;
    }
    if (!(hit & sign))
        return -1;
    for (uint64_t i = 0;; i += size) {
        w = 0;
        memcpy(&w, p + i, size);
        if (((w & exponent) + one) & sign)
            return (int64_t)(i / size);
    }
}

static int deliver(const struct model_index *index, const struct model_load *l, const struct window *w,
                   struct xerr *e) {
    struct show f, s;

    for (int i = 0; i < w->n; i++) {
        const struct model_item *it = w->piece[i].it;
        uint64_t offset = FAULT(loader_window_offset) && w->piece[i].offset ? 0 : w->piece[i].offset;
        uint32_t size = it->k.store.format == KERN_F32 ? 4 : 2;
        int64_t bad = not_finite(w->piece[i].bytes, w->piece[i].n, size);
        int r;

        if (bad >= 0)
            return xerr_set(
                e, -EBADMSG,
                "%s: tensor %s: found NaN or infinity as number %llu, expected finite numbers: the "
                "file is damaged, fetch it again",
                show_path(&f, st_path(model_index_file(index, w->file))), show_str(&s, it->t->name),
                (unsigned long long)(w->piece[i].offset / size + (uint64_t)bad));
        r = l->sink(l->sink_ctx, &it->id, &it->k, offset, w->piece[i].bytes, w->piece[i].n);
        if (r < 0)
            return xerr_set(e, r, "%s: tensor %s: bytes %llu+%llu could not be stored: %s",
                            show_path(&f, st_path(model_index_file(index, w->file))),
                            show_str(&s, it->t->name), (unsigned long long)w->piece[i].offset,
                            (unsigned long long)w->piece[i].n, strerror(-r));
    }
    return 0;
}

int model_load(const struct model_index *index, const struct model_directory *d, const struct model_load *l,
               struct xerr *e) {
    uint64_t offset = 0, done = 0;
    struct window w;
    struct show s;
    size_t i = 0;
    int r;

    if (l->staging_bytes < MODEL_MIN_STAGING || (uintptr_t)l->staging % WINDOW_ALIGN != 0)
        return xerr_set(e, -EINVAL, "staging buffer: found %llu bytes, expected at least %d, aligned to %d",
                        (unsigned long long)l->staging_bytes, MODEL_MIN_STAGING, WINDOW_ALIGN);
    while (i < d->n_items) {
        plan_window(d, l, &i, &offset, &w);
        r = st_readv(model_index_file(index, w.file), w.at, w.iov, w.n, e);
        if (r == 0)
            r = deliver(index, l, &w, e);
        if (r < 0)
            return r;
        for (int p = 0; p < w.n; p++)
            done += w.piece[p].n;
        if (l->progress && l->progress(l->progress_ctx, done, d->bytes) != 0)
            return xerr_set(e, -ECANCELED, "%s: loading was stopped after %llu of %llu bytes",
                            show_path(&s, model_index_dir(index)), (unsigned long long)done,
                            (unsigned long long)d->bytes);
    }
    for (uint32_t f = 0; f < model_index_files(index); f++) {
        r = st_unchanged(model_index_file(index, f), e);
        if (r < 0)
            return r;
    }
    return 0;
}
