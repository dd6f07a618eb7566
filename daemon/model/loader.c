/* SPDX-License-Identifier: MIT */
/* Checkpoint -> staging buffer -> sink. Runs on the loading thread, before READY; never maps a file (page
 * cache faults would be charged to the reader, and a shrinking file would be SIGBUS).
 *
 * Tensors that lie next to each other are read with one call, scattered so that each begins on 64 bytes in
 * memory: on disk a tensor starts wherever the one before it ended. */
#include "loader.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "show.h"
#include "values.h"

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
    next = w->at = d->item[*i].at + *offset;
    while (*i < d->n_items && w->n < WINDOW_IOVS) {
        const struct model_item *it = &d->item[*i];
        uint64_t left = it->bytes - *offset, room = l->staging_bytes - used;
        uint64_t n = left < room ? left : room;

        if (it->file != w->file || it->at + *offset != next)
            break;
        /* A cut inside a tensor is made between two blocks of numbers, so that each is looked at whole. */
        if (n < left)
            n -= n % model_number_unit(it);
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

/* Words of signs become sixteen times as many bytes: a few at a time. */
static int deliver_signs(const struct model_load *l, const struct model_item *it, uint64_t offset,
                         const void *bytes, uint64_t n) {
    _Alignas(WINDOW_ALIGN) unsigned char f16[MODEL_CONV_WORDS * 16 * 2];
    int r = 0;

    for (uint64_t at = 0; at < n && r == 0; at += 2 * MODEL_CONV_WORDS) {
        uint64_t words = (n - at < 2 * MODEL_CONV_WORDS ? n - at : 2 * MODEL_CONV_WORDS) / 2;

        model_convert_signs((const char *)bytes + at, words, f16);
        r = l->sink(l->sink_ctx, &it->id, &it->k, 16 * (offset + at), f16, words * 32);
    }
    return r;
}

static int deliver_one(const struct model_index *index, const struct model_load *l,
                       const struct model_item *it, uint64_t offset, void *bytes, uint64_t n,
                       struct model_watch *watch, struct xerr *e) {
    const char *file = st_path(model_index_file(index, it->file));
    int64_t bad = model_bad_number(it, bytes, n);
    struct show f, s;
    char found[40];
    uint32_t unit;
    int r = 0;

    if (bad >= 0) {
        unit =
            it->number == MODEL_NUM_BYTES ? model_number_unit(it) : (uint32_t)st_dtype_bits(it->t->dtype) / 8;
        return xerr_set(e, -EBADMSG,
                        "%s: tensor %s: found %s as number %llu, expected %s: the file is damaged or its "
                        "writer wrong",
                        show_path(&f, file), show_str(&s, it->t->name),
                        model_number_text(it, bytes, (uint64_t)bad, found, sizeof found),
                        (unsigned long long)((it->at - it->t->offset + offset) / unit + (uint64_t)bad),
                        model_rule_text(it));
    }
    if (it->id.piece == MODEL_PIECE_NONE)
        return 0;
    if (it->conv == MODEL_CONV_SIGNS) {
        r = deliver_signs(l, it, offset, bytes, n);
    } else {
        model_convert(it->conv, bytes, n);
        if (watch)
            model_watch_see(watch, it, bytes, n);
        r = l->sink(l->sink_ctx, &it->id, &it->k, FAULT(loader_window_offset) && offset ? 0 : offset, bytes,
                    n);
    }
    if (r < 0)
        return xerr_set(e, r, "%s: tensor %s: bytes %llu+%llu could not be stored: %s", show_path(&f, file),
                        show_str(&s, it->t->name), (unsigned long long)offset, (unsigned long long)n,
                        strerror(-r));
    return 0;
}

static int deliver(const struct model_index *index, const struct model_load *l, const struct window *w,
                   struct model_watch *watch, struct xerr *e) {
    int r = 0;

    for (int i = 0; i < w->n && r == 0; i++)
        r = deliver_one(index, l, w->piece[i].it, w->piece[i].offset, w->piece[i].bytes, w->piece[i].n, watch,
                        e);
    return r;
}

static int unchanged(const struct model_index *index, struct xerr *e) {
    int r = 0;

    for (uint32_t f = 0; f < model_index_files(index) && r == 0; f++)
        r = st_unchanged(model_index_file(index, f), e);
    return r;
}

static int load_all(const struct model_index *index, const struct model_directory *d,
                    const struct model_load *l, struct model_watch *watch, struct xerr *e) {
    uint64_t offset = 0, done = 0;
    struct window w;
    struct show s;
    size_t i = 0;
    int r;

    while (i < d->n_items) {
        plan_window(d, l, &i, &offset, &w);
        r = st_readv(model_index_file(index, w.file), w.at, w.iov, w.n, e);
        if (r == 0)
            r = deliver(index, l, &w, watch, e);
        if (r < 0)
            return r;
        for (int p = 0; p < w.n; p++)
            done += w.piece[p].n;
        if (l->progress && l->progress(l->progress_ctx, done, d->bytes) != 0)
            return xerr_set(e, -ECANCELED, "%s: loading was stopped after %llu of %llu bytes",
                            show_path(&s, model_index_dir(index)), (unsigned long long)done,
                            (unsigned long long)d->bytes);
    }
    return unchanged(index, e);
}

int model_load(const struct model_index *index, const struct model_directory *d, const struct model_load *l,
               struct xerr *e) {
    struct model_watch *watch = NULL;
    int r;

    if (l->staging_bytes < MODEL_MIN_STAGING || (uintptr_t)l->staging % WINDOW_ALIGN != 0)
        return xerr_set(e, -EINVAL, "staging buffer: found %llu bytes, expected at least %d, aligned to %d",
                        (unsigned long long)l->staging_bytes, MODEL_MIN_STAGING, WINDOW_ALIGN);
    if (l->findings && !(watch = model_watch_new(d)))
        return xerr_set(e, -ENOMEM, "no memory for the scales of %zu tensors", d->n_tensors);
    r = load_all(index, d, l, watch, e);
    if (r == 0 && watch)
        model_watch_report(watch, l->findings);
    model_watch_free(watch);
    return r;
}
