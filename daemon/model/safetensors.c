/* SPDX-License-Identifier: MIT */
/* Opening and reading one safetensors file. Owns the descriptor (read-only), the header text (names live in
 * it) and the tensor list. Opened by the loading thread, read by any; never logs, never maps the file. */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "show.h"
#include "size.h"
#include "stfile.h"
#include "stheader.h"

static ssize_t plain_readv(void *ctx, int fd, const struct iovec *iov, int n_iov, off_t at) {
    (void)ctx;
    return preadv(fd, iov, n_iov, at);
}

/* Fills every entry of iov from byte `at` on, through short reads and signals; -ENODATA at the end of the
 * file. *ret_at is where it stopped. */
static int read_full(const struct st_file *f, uint64_t at, struct iovec *iov, int n_iov, uint64_t *ret_at) {
    for (;;) {
        ssize_t got;
        size_t left;

        while (n_iov > 0 && iov->iov_len == 0) {
            iov++;
            n_iov--;
        }
        *ret_at = at;
        if (n_iov == 0)
            return 0;
        got = f->io.readv_at(f->io.ctx, f->fd, iov, n_iov, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            return -ENODATA;
        if (FAULT(st_short_read))
            return 0;
        at += (uint64_t)got;
        for (left = (size_t)got; left > 0 && n_iov > 0;) {
            size_t step = left < iov->iov_len ? left : iov->iov_len;

            iov->iov_base = (char *)iov->iov_base + step;
            iov->iov_len -= step;
            left -= step;
            if (iov->iov_len == 0) {
                iov++;
                n_iov--;
            }
        }
    }
}

static int read_one(const struct st_file *f, uint64_t at, void *buf, uint64_t n, uint64_t *ret_at) {
    struct iovec iov = {buf, (size_t)n};

    return read_full(f, at, &iov, 1, ret_at);
}

static int read_header(struct st_file *f, const char *shown, struct xerr *e) {
    uint64_t size = (uint64_t)f->opened.st_size, n = 0, at;
    unsigned char le[8];
    int r;

    if (size < 8)
        return xerr_set(e, -EBADMSG, "%s: found %llu bytes, expected at least 8 (the header's length)", shown,
                        (unsigned long long)size);
    r = read_one(f, 0, le, sizeof le, &at);
    if (r < 0)
        goto io;
    if (memcmp(le, "version ", sizeof le) == 0)
        return xerr_set(e, -EBADMSG,
                        "%s: found the text \"version ...\", expected tensors: this is a Git LFS pointer, a note "
                        "where the file is; fetch the file itself (git lfs pull)",
                        shown);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | le[i];
    if (n > ST_MAX_HEADER_BYTES)
        return xerr_set(e, -EBADMSG, "%s: header length: found %llu, expected at most %d", shown,
                        (unsigned long long)n, ST_MAX_HEADER_BYTES);
    if (n > size - 8)
        return xerr_set(
            e, -EBADMSG,
            "%s: header length: found %llu, expected at most the %llu bytes left in the file: it is "
            "truncated, fetch it again",
            shown, (unsigned long long)n, (unsigned long long)(size - 8));
    f->header = malloc((size_t)n + 1);
    if (!f->header)
        return xerr_set(e, -ENOMEM, "%s: no memory for a header of %llu bytes", shown, (unsigned long long)n);
    r = read_one(f, 8, f->header, n, &at);
    if (r < 0)
        goto io;
    f->header[n] = 0;
    r = stheader_parse(shown, f->header, (size_t)n, 8 + n, size - 8 - n, &f->t, &f->n_t, e);
    if (r == 0)
        f->data_bytes = size - 8 - n;
    return r;
io:
    r = r == -ENODATA ? -EIO : r;
    return xerr_set(e, r, "%s: reading the header at byte %llu failed: %s", shown, (unsigned long long)at,
                    strerror(-r));
}

int stfile_open(struct st_file **ret, const char *path, const struct st_io *io, struct xerr *e) {
    static const struct st_io PLAIN = {plain_readv, NULL};
    struct st_file *f = calloc(1, sizeof *f);
    struct show p;
    int r = 0;

    show_path(&p, path);
    if (!f)
        return xerr_set(e, -ENOMEM, "%s: no memory", p.s);
    f->io = io ? *io : PLAIN;
    f->path = strdup(path);
    /* O_NONBLOCK: a FIFO in place of a shard must not hang the start; it means nothing on a regular file. */
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (f->fd < 0) {
        r = -errno;
        xerr_set(e, r, "%s: cannot open: %s", p.s, strerror(-r));
    } else if (!f->path) {
        r = xerr_set(e, -ENOMEM, "%s: no memory", p.s);
    } else if (fstat(f->fd, &f->opened) < 0) {
        r = -errno;
        xerr_set(e, r, "%s: cannot stat: %s", p.s, strerror(-r));
    } else if (!S_ISREG(f->opened.st_mode)) {
        r = xerr_set(e, -EINVAL, "%s: found something that is not a regular file, expected one", p.s);
    }
    if (r < 0) {
        st_close(f);
        return r;
    }
    *ret = f;
    return 0;
}

int stfile_read(const struct st_file *f, uint64_t at, void *buf, uint64_t n) {
    uint64_t stopped;
    int r = read_one(f, at, buf, n, &stopped);

    return r == -ENODATA ? -EIO : r;
}

int st_open(struct st_file **ret, const char *path, const struct st_io *io, struct xerr *e) {
    struct st_file *f;
    struct show p;
    int r = stfile_open(&f, path, io, e);

    if (r < 0)
        return r;
    r = read_header(f, show_path(&p, path), e);
    if (r < 0) {
        st_close(f);
        return r;
    }
    *ret = f;
    return 0;
}

struct st_file *st_close(struct st_file *f) {
    if (!f)
        return NULL;
    if (f->fd >= 0)
        close(f->fd);
    gguf_free(f->gguf);
    free(f->t);
    free(f->header);
    free(f->path);
    free(f);
    return NULL;
}

const char *st_path(const struct st_file *f) {
    return f->path;
}

uint64_t st_data_bytes(const struct st_file *f) {
    return f->data_bytes;
}

size_t st_count(const struct st_file *f) {
    return f->n_t;
}

const struct st_tensor *st_at(const struct st_file *f, size_t i) {
    return i < f->n_t ? &f->t[i] : NULL;
}

const struct st_tensor *st_find(const struct st_file *f, const char *name) {
    size_t lo = 0, hi = f->n_t;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, f->t[mid].name);

        if (c == 0)
            return &f->t[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

/* The tensor that holds a byte of the file, for messages. */
static const char *tensor_at(const struct st_file *f, uint64_t at) {
    for (size_t i = 0; i < f->n_t; i++)
        if (at >= f->t[i].offset && at - f->t[i].offset < f->t[i].bytes)
            return f->t[i].name;
    return "(none)";
}

int st_readv(const struct st_file *f, uint64_t at, struct iovec *iov, int n_iov, struct xerr *e) {
    struct show p, s;
    int r = read_full(f, at, iov, n_iov, &at);

    if (r == -ENODATA)
        return xerr_set(
            e, -EIO,
            "%s: tensor %s: found the end of the file at byte %llu, expected more: it shrank while "
            "being read",
            show_path(&p, f->path), show_str(&s, tensor_at(f, at)), (unsigned long long)at);
    if (r < 0)
        return xerr_set(e, r, "%s: tensor %s: reading at byte %llu failed: %s", show_path(&p, f->path),
                        show_str(&s, tensor_at(f, at)), (unsigned long long)at, strerror(-r));
    return 0;
}

int st_read(const struct st_file *f, const struct st_tensor *t, uint64_t offset, void *buf, uint64_t n,
            struct xerr *e) {
    struct iovec iov = {buf, (size_t)n};
    struct show p, s;

    if (!size_within(offset, n, t->bytes))
        return xerr_set(e, -ERANGE,
                        "%s: tensor %s: found a read of bytes %llu+%llu, expected inside its %llu",
                        show_path(&p, f->path), show_str(&s, t->name), (unsigned long long)offset,
                        (unsigned long long)n, (unsigned long long)t->bytes);
    return st_readv(f, t->offset + offset, &iov, 1, e);
}

int st_unchanged(const struct st_file *f, struct xerr *e) {
    struct show p;
    struct stat now;

    if (fstat(f->fd, &now) < 0) {
        int r = -errno;

        return xerr_set(e, r, "%s: cannot stat: %s", show_path(&p, f->path), strerror(-r));
    }
    if (now.st_size != f->opened.st_size || now.st_mtim.tv_sec != f->opened.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != f->opened.st_mtim.tv_nsec)
        return xerr_set(
            e, -ESTALE,
            "%s: found another size or modification time, expected those of a moment ago: the file "
            "changes while it is being read",
            show_path(&p, f->path));
    return 0;
}

const char *st_shape_text(const struct st_tensor *t, char *buf, size_t n) {
    size_t at = 0;

    for (uint32_t i = 0; i <= t->n_dims && at < n; i++) {
        int w = i < t->n_dims
                    ? snprintf(buf + at, n - at, "%s%llu", i ? "," : "[", (unsigned long long)t->shape[i])
                    : snprintf(buf + at, n - at, "%s]", i ? "" : "[");

        at += w > 0 ? (size_t)w : 0;
    }
    return buf;
}
