/* SPDX-License-Identifier: MIT */
/* packggufout.c: the GGUF file as it grows. What is written is told in the record of the directory, tensor by tensor,
 * and a command that is called again reads it back: what is there as it was written stays, the first tensor that is
 * not and all behind it are made anew. Nothing is trusted but digests: data need not be on the disk before the
 * record. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "packgguf.h"

/* A kill costs at most one of them, or a sixteenth of a smaller file. */
enum { STRIDE = 1 << 30 };

static int put(struct ggout *o, const void *bytes, uint64_t n, struct xerr *e) {
    const char *p = bytes;

    while (n) {
        ssize_t k = pwrite(o->fd, p, n < 1u << 30 ? n : 1u << 30, (off_t)o->at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return xerr_set(e, k < 0 ? -errno : -EIO, "%s: cannot write: %s", o->tmp, strerror(k < 0 ? errno : EIO));
        p += k;
        o->at += (uint64_t)k;
        n -= (uint64_t)k;
    }
    return 0;
}

static bool get(const struct ggout *o, void *bytes, uint64_t n, uint64_t at) {
    char *p = bytes;

    while (n) {
        ssize_t k = pread(o->fd, p, n < 1u << 30 ? n : 1u << 30, (off_t)at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        at += (uint64_t)k;
        n -= (uint64_t)k;
    }
    return true;
}

/* Whether these bytes stand at o->at. false also where they cannot be read. */
static bool is_there(const struct ggout *o, const void *want, const char *digest, uint64_t n) {
    char *found = malloc(n + 1), hex[33];
    bool same = found && get(o, found, n, o->at);

    if (same && want)
        same = memcmp(found, want, n) == 0;
    if (same && digest) {
        pack_hash(found, n, hex);
        same = strcmp(hex, digest) == 0 || FAULT(pack_gguf_trusts_record);
    }
    free(found);
    return same;
}

/* From here on everything is written. */
static int begin_anew(struct ggout *o, size_t from, struct xerr *e) {
    int r = 0;

    o->going_on = false;
    while (r == 0 && json_array_size(o->done) > from)
        r = json_array_remove(o->done, json_array_size(o->done) - 1);
    if (r < 0)
        return xerr_set(e, -EINVAL, "%s: the record cannot be shortened", o->tmp);
    if (ftruncate(o->fd, (off_t)o->at) < 0)
        return xerr_set(e, -errno, "%s: cannot be cut: %s", o->tmp, strerror(errno));
    return 0;
}

int ggout_open(struct ggout *o, struct pack_dir *d, const struct ggbuf *head, uint64_t all, struct xerr *e) {
    int r = 0;

    *o = (struct ggout){ .d = d, .fd = -1, .all = all, .going_on = true };
    snprintf(o->tmp, sizeof o->tmp, "%s/.model.gguf.part", d->path);
    snprintf(o->path, sizeof o->path, "%s/model.gguf", d->path);
    o->done = json_object_get(d->record, PACK_RECORD_TENSORS);
    if (!json_is_array(o->done)) {
        o->done = json_array();
        if (!o->done || json_object_set_new(d->record, PACK_RECORD_TENSORS, o->done) < 0)
            return xerr_set(e, -ENOMEM, "%s: no memory for the record", o->tmp);
    }
    /* it has its name, but the command that made it did not end */
    if (rename(o->path, o->tmp) < 0 && errno != ENOENT)
        return xerr_set(e, -errno, "%s: cannot rename to %s: %s", o->path, o->tmp, strerror(errno));
    o->fd = open(o->tmp, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (o->fd < 0)
        return xerr_set(e, -errno, "%s: cannot create: %s", o->tmp, strerror(errno));
    if (is_there(o, head->p, NULL, head->n)) {
        o->at = head->n;
    } else {
        r = begin_anew(o, 0, e);
        if (r >= 0)
            r = put(o, head->p, head->n, e);
    }
    o->saved = o->at;
    return r;
}

static uint64_t padding(uint64_t n) {
    return (GGUF_PACK_ALIGN - n % GGUF_PACK_ALIGN) % GGUF_PACK_ALIGN;
}

int ggout_has(struct ggout *o, size_t i, uint64_t bytes, uint8_t part, struct pack_totals *t, struct xerr *e) {
    static const char zeros[GGUF_PACK_ALIGN];
    const json_t *one = json_array_get(o->done, i);
    const char *digest = json_string_value(json_array_get(one, 0));
    int r;

    if (!o->going_on)
        return 0;
    if (!digest || !is_there(o, NULL, digest, bytes)) {
        r = begin_anew(o, i, e);
        return r < 0 ? r : 0;
    }
    o->at += bytes;
    if ((r = put(o, zeros, padding(bytes), e)) < 0)
        return r;
    t->from[part] += (uint64_t)json_integer_value(json_array_get(one, 1));
    t->to[part] += (uint64_t)json_integer_value(json_array_get(one, 2));
    t->diff[part] += json_number_value(json_array_get(one, 3));
    t->norm[part] += json_number_value(json_array_get(one, 4));
    o->saved = o->at;
    o->n_kept++;
    return 1;
}

static int save(struct ggout *o, struct xerr *e) {
    o->saved = o->at;
    return pack_put_json(o->d->path, "glm-pack.partial", o->d->record, e);
}

int ggout_put(struct ggout *o, const void *bytes, uint64_t n, uint8_t part, const struct pack_totals *own,
              struct xerr *e) {
    static const char zeros[GGUF_PACK_ALIGN];
    char digest[33];
    json_t *one;
    int r = put(o, bytes, n, e);

    if (r >= 0)
        r = put(o, zeros, padding(n), e);
    if (r < 0)
        return r;
    pack_hash(bytes, n, digest);
    one = json_pack("[s, I, I, f, f]", digest, (json_int_t)own->from[part], (json_int_t)own->to[part], own->diff[part],
                    own->norm[part]);
    if (!one || json_array_append_new(o->done, one) < 0)
        return xerr_set(e, -ENOMEM, "%s: no memory for the record", o->tmp);
    return o->at - o->saved >= STRIDE || o->at - o->saved > o->all / 16 ? save(o, e) : 0;
}

int ggout_finish(struct ggout *o, struct xerr *e) {
    int r = save(o, e);

    if (r >= 0 && fsync(o->fd) < 0)
        r = xerr_set(e, -errno, "%s: cannot write: %s", o->tmp, strerror(errno));
    if (r >= 0 && rename(o->tmp, o->path) < 0)
        r = xerr_set(e, -errno, "%s: cannot rename to %s: %s", o->tmp, o->path, strerror(errno));
    return r;
}

void ggout_done(struct ggout *o) {
    if (o->fd >= 0)
        close(o->fd);
    o->fd = -1;
}
