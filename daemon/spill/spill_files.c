/* SPDX-License-Identifier: MIT */
/* The directory of blocks: opened and locked; names; files opened, brought to the disk, renamed, removed. See
 * spill_io.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "spill_io.h"
#include "spill_io_priv.h"
#include "size.h"

enum { PATH_BYTES = SPILL_DIR_MAX + SPILL_NAME_MAX + 8 };

/* ---- names ---- */

void spill_name(char ret[SPILL_NAME_MAX], uint8_t kind, const struct spill_id *id) {
    snprintf(ret, SPILL_NAME_MAX, "%016llx%016llx.%s", (unsigned long long)id->hi, (unsigned long long)id->lo,
             kind == SPILL_STATE ? "state" : "page");
}

bool spill_name_parse(const char *name, uint8_t *ret_kind, struct spill_id *ret_id) {
    uint64_t v[2] = { 0, 0 };

    for (int i = 0; i < 32; i++) {
        char c = name[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        v[i / 16] = v[i / 16] << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (strcmp(name + 32, ".state") != 0 && strcmp(name + 32, ".page") != 0)
        return false;
    *ret_kind = name[33] == 's' ? SPILL_STATE : SPILL_PAGE;
    *ret_id = (struct spill_id){ .hi = v[0], .lo = v[1] };
    return true;
}

static void make_path(const struct spill_io *io, char ret[PATH_BYTES], const char *name, const char *more) {
    snprintf(ret, PATH_BYTES, "%s/%s%s", io->dir, name, more);
}

/* ---- the directory ---- */

/* Whoever can put files here decides what the model remembers. */
static int check_owner(const struct spill_io *io, struct xerr *err) {
    struct stat st;

    if (fstat(io->dir_fd, &st) < 0)
        return xerr_set(err, -errno, "spill directory %s: %s", io->dir, strerror(errno));
    if ((st.st_uid != geteuid() && st.st_uid != 0) || st.st_mode & 022)
        return xerr_set(err, -EPERM,
                        "spill directory %s: found mode %03o and owner %u, expected one that only user %u can write "
                        "to; chown and chmod 700 it",
                        io->dir, st.st_mode & 0777, (unsigned)st.st_uid, (unsigned)geteuid());
    return 0;
}

static int take_lock(struct spill_io *io, struct xerr *err) {
    char path[PATH_BYTES];
    int r;

    make_path(io, path, "lock", "");
    io->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (io->lock_fd < 0)
        return xerr_set(err, -errno, "spill directory %s: nothing can be written there: %s", io->dir,
                        strerror(errno));
    if (flock(io->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    r = -errno;
    if (r == -EWOULDBLOCK)
        return xerr_set(err, -EBUSY, "spill directory %s: another glmd uses it; give each a directory of its own",
                        io->dir);
    return xerr_set(err, r, "spill directory %s: its lock file cannot be locked: %s", io->dir, strerror(-r));
}

/* Can a file here be opened for transfers past the page cache? */
static bool try_direct(const struct spill_io *io) {
    char path[PATH_BYTES];
    int fd;

    make_path(io, path, "probe", ".tmp");
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        close(fd);
    unlink(path);
    return fd >= 0;
}

int spill_io_open(const struct spill_io_options *o, struct spill_io **ret, struct xerr *err) {
    struct spill_io *io;
    int r;

    if (strlen(o->dir) >= SPILL_DIR_MAX)
        return xerr_set(err, -ENAMETOOLONG, "spill directory: found a path of %zu bytes, expected fewer than %d",
                        strlen(o->dir), SPILL_DIR_MAX);
    io = calloc(1, sizeof *io);
    if (!io)
        return xerr_set(err, -ENOMEM, "spill directory %s: no memory", o->dir);
    io->keep_free = o->keep_free;
    io->shape = o->shape;
    io->lock_fd = -1;
    snprintf(io->dir, sizeof io->dir, "%s", o->dir);
    io->dir_fd = open(io->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (io->dir_fd < 0)
        r = xerr_set(err, -errno, "spill directory %s: %s%s", io->dir, strerror(errno),
                     errno == ENOENT ? "; create it, with mode 700 and the daemon's user as its owner" : "");
    else if ((r = check_owner(io, err)) == 0)
        r = take_lock(io, err);
    if (r < 0) {
        spill_io_close(io);
        return r;
    }
    io->direct = try_direct(io);
    if (!o->plain)
        spill_ring_open(io); /* without one the plain calls serve */
    snprintf(io->name, sizeof io->name, "%s, %s", io->uring ? "io_uring" : "plain calls",
             io->direct ? "direct" : "through the page cache");
    *ret = io;
    return 0;
}

struct spill_io *spill_io_close(struct spill_io *io) {
    if (!io)
        return NULL;
    spill_ring_close(io);
    if (io->lock_fd >= 0)
        close(io->lock_fd);
    if (io->dir_fd >= 0)
        close(io->dir_fd);
    free(io);
    return NULL;
}

const char *spill_io_name(const struct spill_io *io) {
    return io->name;
}

const char *spill_io_dir(const struct spill_io *io) {
    return io->dir;
}

/* ---- files ---- */

void spill_io_remove(struct spill_io *io, const char *name) {
    char path[PATH_BYTES];

    make_path(io, path, name, "");
    unlink(path);
}

/* A file of ours and nobody else's. Negative: an error of the system, or -EBADMSG. */
static int open_block(struct spill_io *io, const char *name, bool direct, uint64_t *ret_bytes) {
    char path[PATH_BYTES];
    struct stat st;
    int fd, r = 0;

    make_path(io, path, name, "");
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (direct ? O_DIRECT : 0));
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        r = -errno;
    else if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077 || st.st_size < 0)
        r = -EBADMSG;
    if (r < 0) {
        close(fd);
        return r;
    }
    *ret_bytes = (uint64_t)st.st_size;
    return fd;
}

int spill_io_head(struct spill_io *io, const char *name, struct spill_head *ret, uint64_t *ret_bytes) {
    uint64_t bytes = 0;
    int fd = open_block(io, name, false, &bytes), r = 0;
    size_t at = 0;

    if (fd < 0)
        return fd;
    while (at < sizeof *ret && r == 0) {
        ssize_t n = pread(fd, (char *)ret + at, sizeof *ret - at, (off_t)at);

        if (n > 0)
            at += (size_t)n;
        else if (n == 0 || errno != EINTR)
            r = n == 0 ? -EBADMSG : -errno;
    }
    close(fd);
    *ret_bytes = bytes;
    return r < 0 ? r : spill_head_check(ret, &io->shape, bytes);
}

static int begin_read(struct spill_io *io, struct spill_op *op) {
    char name[SPILL_NAME_MAX];
    uint64_t bytes = 0;
    int r;

    spill_name(name, op->kind, &op->id);
    op->fd = open_block(io, name, io->direct, &bytes);
    if (op->fd < 0)
        r = op->fd;
    else
        r = bytes == op->file_bytes ? 0 : -EBADMSG;
    return r;
}

static int end_read(struct spill_io *io, const struct spill_op *op) {
    const struct spill_head *h = op->image;
    int r = op->bytes < op->file_bytes ? spill_ids_check(op->image, op->bytes, op->file_bytes, &io->shape)
                                       : spill_block_check(op->image, op->bytes, &io->shape);

    if (r < 0)
        return r;
    return h->kind == op->kind && h->id.hi == op->id.hi && h->id.lo == op->id.lo ? 0 : -EBADMSG;
}

static void temporary_path(const struct spill_io *io, const struct spill_op *op, char ret[PATH_BYTES]) {
    char name[SPILL_NAME_MAX];

    spill_name(name, op->kind, &op->id);
    make_path(io, ret, name, ".tmp");
}

/* Space is asked for before anything is written, so that a full disk is met at once. */
static int begin_write(struct spill_io *io, struct spill_op *op) {
    char path[PATH_BYTES];
    struct statvfs v;
    uint64_t room = 0;

    if (fstatvfs(io->dir_fd, &v) < 0)
        return -errno;
    if (!size_mul(v.f_bavail, v.f_frsize, &room))
        room = UINT64_MAX;
    if (room < op->bytes || room - op->bytes < io->keep_free)
        return -ENOSPC;
    spill_block_seal(op->image);
    temporary_path(io, op, path);
    op->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | (io->direct ? O_DIRECT : 0), 0600);
    if (op->fd < 0)
        return -errno;
    if (fallocate(op->fd, 0, 0, (off_t)op->bytes) < 0 && errno != EOPNOTSUPP && errno != EINTR)
        return -errno;
    return 0;
}

static int end_write(struct spill_io *io, const struct spill_op *op) {
    char from[PATH_BYTES], to[PATH_BYTES], name[SPILL_NAME_MAX];
    int r = op->result;

    temporary_path(io, op, from);
    spill_name(name, op->kind, &op->id);
    make_path(io, to, name, "");
    if (r == 0 && fdatasync(op->fd) < 0)
        r = -errno;
    if (r == 0 && !io->direct)
        posix_fadvise(op->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (r == 0 && rename(from, to) < 0)
        r = -errno;
    if (r == 0) {
        /* a state makes everything before it of use: the names too are brought to the disk */
        if (op->kind == SPILL_STATE && fsync(io->dir_fd) < 0)
            r = -errno;
        return r;
    }
    unlink(from);
    return r;
}

static void begin(struct spill_io *io, struct spill_op *op) {
    char name[SPILL_NAME_MAX];

    op->fd = -1;
    op->result = 0;
    if (op->type == SPILL_OP_READ) {
        op->result = begin_read(io, op);
    } else if (op->type == SPILL_OP_WRITE) {
        op->result = begin_write(io, op);
    } else {
        for (uint8_t kind = SPILL_PAGE; kind <= SPILL_STATE; kind++) {
            spill_name(name, kind, &op->id);
            if (op->kind == kind || op->kind == SPILL_FOREIGN)
                spill_io_remove(io, name);
        }
    }
}

void spill_io_run(struct spill_io *io, struct spill_op *ops, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (ops[i].type == SPILL_OP_REMOVE)
            begin(io, &ops[i]);
    for (uint32_t i = 0; i < n; i++)
        if (ops[i].type != SPILL_OP_REMOVE)
            begin(io, &ops[i]);
    spill_transfer(io, ops, n);
    for (uint32_t i = 0; i < n; i++) {
        struct spill_op *op = &ops[i];

        if (op->type == SPILL_OP_READ && op->result == 0)
            op->result = end_read(io, op);
        else if (op->type == SPILL_OP_WRITE && op->fd >= 0)
            op->result = end_write(io, op);
        if (op->fd >= 0)
            close(op->fd);
        op->fd = -1;
    }
}
