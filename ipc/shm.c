/* SPDX-License-Identifier: MIT */
/* Regions U and D and bulk memfds: create, preallocate, seal, map, verify.
 *
 * Called by the io thread (and by anyone for bulk). Holds no state but what the caller owns, never logs.
 * Seals are the whole protection: a peer holds the same open file as we do, so whatever is not sealed here it
 * can do later. */
#include "shm.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Newer than the C library of the oldest supported system. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static uint64_t align_region(uint64_t n) {
    return (n + GLMW_REGION_ALIGN - 1) & ~(uint64_t)(GLMW_REGION_ALIGN - 1);
}

int shm_geom_init(unsigned sq_log2, unsigned tq_log2, unsigned pay_log2, unsigned txt_log2,
                  struct shm_geom *ret) {
    if (sq_log2 < GLMW_SQ_LOG2_MIN || sq_log2 > GLMW_SQ_LOG2_MAX || tq_log2 < GLMW_TQ_LOG2_MIN ||
        tq_log2 > GLMW_TQ_LOG2_MAX || pay_log2 < GLMW_PAY_LOG2_MIN || pay_log2 > GLMW_PAY_LOG2_MAX ||
        txt_log2 < GLMW_TXT_LOG2_MIN || txt_log2 > GLMW_TXT_LOG2_MAX)
        return -EINVAL;

    struct shm_geom g = {
        .sq_log2 = (uint8_t)sq_log2,
        .tq_log2 = (uint8_t)tq_log2,
        .pay_log2 = (uint8_t)pay_log2,
        .txt_log2 = (uint8_t)txt_log2,
        .sq_off = align_region(sizeof(struct glmw_u)),
        .tq_off = align_region(sizeof(struct glmw_d)),
    };
    /* The limits above keep every sum below far under 2^32. */
    g.pay_off = align_region(g.sq_off + ((uint64_t)GLMW_SLOT_BYTES << sq_log2));
    g.u_bytes = align_region(g.pay_off + (UINT64_C(1) << pay_log2));
    g.txt_off = align_region(g.tq_off + ((uint64_t)GLMW_SLOT_BYTES << tq_log2));
    g.d_bytes = align_region(g.txt_off + (UINT64_C(1) << txt_log2));
    *ret = g;
    return 0;
}

/* A memfd with all its pages present, so that touching them later neither fails nor charges anyone. */
static int memfd_full(const char *name, uint64_t bytes) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;

    int r;
    do
        r = ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
    while (r == -EINTR);
    while (r == 0 && fallocate(fd, 0, 0, (off_t)bytes) < 0) {
        if (errno != EINTR)
            r = -errno;
    }
    if (r < 0) {
        if (!FAULT(shm_fd_leaked))
            close(fd);
        return r;
    }
    return fd;
}

static int write_all(int fd, size_t off, const void *buf, size_t len) {
    size_t done = 0;
    while (done < len) {
        ssize_t n = pwrite(fd, (const char *)buf + done, len - done, (off_t)(off + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

/* The words of U that the client writes, as it would find them at its own start. */
static int write_first_indices(int fd) {
    static const size_t at[] = {offsetof(struct glmw_u, sq_tail), offsetof(struct glmw_u, tq_head),
                                offsetof(struct glmw_u, tq_event)};
    const uint32_t first = GLMW_FIRST_INDEX;
    int r = 0;
    for (unsigned i = 0; i < 3 && r == 0; i++)
        r = write_all(fd, at[i], &first, sizeof(first));
    return r;
}

static int create_u(const struct shm_geom *g, const struct shm_ident *ident, struct shm_pair *p) {
    int fd = memfd_full("glmd-up", g->u_bytes);
    if (fd < 0)
        return fd;
    p->u_fd = fd;

    const uint32_t head[2] = {GLMW_MAGIC_U, ident->wire};
    int r = write_all(fd, 0, head, sizeof(head));
    if (r == 0 && GLMW_FIRST_INDEX != 0)
        r = write_first_indices(fd);
    if (r < 0)
        return r;
    void *m = mmap(NULL, (size_t)g->u_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (m == MAP_FAILED)
        return -errno;
    p->u = glmw_foreign(m);
    if (madvise(m, (size_t)g->u_bytes, MADV_DONTFORK) < 0)
        return -errno;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -errno;
    return 0;
}

static int create_d(const struct shm_geom *g, const struct shm_ident *ident, struct shm_pair *p) {
    int fd = memfd_full("glmd-down", g->d_bytes);
    if (fd < 0)
        return fd;
    p->d_fd = fd;

    void *m = mmap(NULL, (size_t)g->d_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m == MAP_FAILED)
        return -errno;
    p->d = m;
    if (madvise(m, (size_t)g->d_bytes, MADV_DONTFORK) < 0)
        return -errno;
    /* Our writable map exists already; from here on nobody gets another one. */
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    if (FAULT(shm_no_future_write))
        seals &= ~F_SEAL_FUTURE_WRITE;
    if (fcntl(fd, F_ADD_SEALS, seals) < 0)
        return -errno;

    struct glmw_d *d = p->d;
    d->magic = GLMW_MAGIC_D;
    d->wire = ident->wire;
    d->features = ident->features;
    d->generation = ident->generation;
    d->conn_id = ident->conn_id;
    d->u_bytes = g->u_bytes;
    d->d_bytes = g->d_bytes;
    d->sq_off = g->sq_off;
    d->pay_off = g->pay_off;
    d->tq_off = g->tq_off;
    d->txt_off = g->txt_off;
    d->sq_log2 = g->sq_log2;
    d->tq_log2 = g->tq_log2;
    d->pay_log2 = g->pay_log2;
    d->txt_log2 = g->txt_log2;
    d->sq_head = d->sq_event = d->tq_tail = GLMW_FIRST_INDEX;
    return 0;
}

int shm_pair_create(const struct shm_geom *geom, const struct shm_ident *ident, struct shm_pair *ret) {
    struct shm_pair p = {.geom = *geom, .u_fd = -1, .d_fd = -1};
    int r = create_u(geom, ident, &p);
    if (r == 0)
        r = create_d(geom, ident, &p);
    if (r < 0) {
        shm_pair_done(&p);
        return r;
    }
    *ret = p;
    return 0;
}

void shm_pair_done(struct shm_pair *p) {
    if (p->u)
        munmap(glmw_address(p->u), (size_t)p->geom.u_bytes);
    if (p->d)
        munmap(p->d, (size_t)p->geom.d_bytes);
    if (p->u_fd >= 0)
        close(p->u_fd);
    if (p->d_fd >= 0)
        close(p->d_fd);
    *p = (struct shm_pair){.u_fd = -1, .d_fd = -1};
}

void shm_pair_rings(const struct shm_pair *p, struct glmw_consumer *ret_sq, struct glmw_producer *ret_tq) {
    const uint8_t GLMW_FOREIGN *u = (const uint8_t GLMW_FOREIGN *)p->u;
    glmw_consumer_init(ret_sq, u + p->geom.sq_off, p->geom.sq_log2, &p->u->sq_tail, &p->d->sq_head,
                       &p->d->sq_event, GLMW_FIRST_INDEX);
    glmw_producer_init(ret_tq, (uint8_t *)p->d + p->geom.tq_off, p->geom.tq_log2, &p->d->tq_tail,
                       &p->u->tq_head, &p->u->tq_event, GLMW_FIRST_INDEX);
}

int shm_payload_read(const struct shm_pair *p, uint64_t off, uint32_t len, void *dst) {
    uint64_t arena = UINT64_C(1) << p->geom.pay_log2;
    if (len > arena || off > arena - len || off % GLMW_ALIGN != 0)
        return -EPROTO;
    size_t done = 0;
    while (done < len) {
        ssize_t n = pread(p->u_fd, (char *)dst + done, len - done, (off_t)(p->geom.pay_off + off + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO; /* sealed against shrinking: a short file is impossible */
        done += (size_t)n;
    }
    return 0;
}

static int check_size(int fd, uint64_t bytes) {
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    return S_ISREG(st.st_mode) && (uint64_t)st.st_size == bytes ? 0 : -EPROTO;
}

int shm_view_map(const struct glmw_welcome *w, int u_fd, int d_fd, struct shm_view *ret) {
    struct shm_view v = {0};
    int r = shm_geom_init(w->sq_log2, w->tq_log2, w->pay_log2, w->txt_log2, &v.geom);
    if (r < 0 || v.geom.u_bytes != w->u_bytes || v.geom.d_bytes != w->d_bytes || v.geom.sq_off != w->sq_off ||
        v.geom.pay_off != w->pay_off || v.geom.tq_off != w->tq_off || v.geom.txt_off != w->txt_off)
        return -EPROTO;
    r = check_size(u_fd, w->u_bytes);
    if (r == 0)
        r = check_size(d_fd, w->d_bytes);
    if (r < 0)
        return r;

    void *u = mmap(NULL, (size_t)w->u_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, u_fd, 0);
    if (u == MAP_FAILED)
        return -errno;
    v.u = u;
    void *d = mmap(NULL, (size_t)w->d_bytes, PROT_READ, MAP_SHARED, d_fd, 0);
    if (d == MAP_FAILED) {
        r = -errno;
        goto fail;
    }
    v.d = glmw_foreign(d);
    if (madvise(u, (size_t)w->u_bytes, MADV_DONTFORK) < 0 ||
        madvise(d, (size_t)w->d_bytes, MADV_DONTFORK) < 0) {
        r = -errno;
        goto fail;
    }
    struct glmw_d head;
    glmw_copy_words(&head, v.d, offsetof(struct glmw_d, pad0) / 4);
    if (head.magic != GLMW_MAGIC_D || head.wire != w->wire || head.generation != w->generation ||
        head.conn_id != w->conn_id || head.features != w->features) {
        r = -EPROTO;
        goto fail;
    }
    *ret = v;
    return 0;

fail:
    shm_view_done(&v);
    return r;
}

void shm_view_done(struct shm_view *v) {
    if (v->u)
        munmap(v->u, (size_t)v->geom.u_bytes);
    if (v->d)
        munmap(glmw_address(v->d), (size_t)v->geom.d_bytes);
    *v = (struct shm_view){0};
}

void shm_view_rings(const struct shm_view *v, struct glmw_producer *ret_sq, struct glmw_consumer *ret_tq) {
    glmw_producer_init(ret_sq, (uint8_t *)v->u + v->geom.sq_off, v->geom.sq_log2, &v->u->sq_tail,
                       &v->d->sq_head, &v->d->sq_event, GLMW_FIRST_INDEX);
    glmw_consumer_init(ret_tq, (const uint8_t GLMW_FOREIGN *)v->d + v->geom.tq_off, v->geom.tq_log2,
                       &v->d->tq_tail, &v->u->tq_head, &v->u->tq_event, GLMW_FIRST_INDEX);
}

/* 0, or a negative errno with the broken rule. The order matters: seals first, because only behind them do
 * size, blocks and holes stay as they are found. */
static int bulk_check(int fd, uint64_t bytes, const char **ret_reason) {
    const int want = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) { /* ordinary file, device, FUSE, socket, O_PATH */
        *ret_reason = "bulk descriptor is not a memfd that can carry seals";
        return -EINVAL;
    }
    if ((seals & want) != want && !FAULT(shm_bulk_any_seal)) {
        *ret_reason = "bulk memfd lacks one of the seals WRITE, SHRINK, GROW, SEAL";
        return -EINVAL;
    }
    struct stat st;
    struct statfs fs;
    int r;
    do
        r = fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 ? -errno : 0;
    while (r == -EINTR);
    if (r < 0)
        return r;
    if (!S_ISREG(st.st_mode) || fs.f_type != TMPFS_MAGIC) {
        *ret_reason = "bulk memfd is not a regular one of normal pages (huge pages are refused)";
        return -EINVAL;
    }
    if (st.st_size < 0 || (uint64_t)st.st_size != bytes) {
        *ret_reason = "bulk memfd does not have the length announced";
        return -EINVAL;
    }
    /* A hole would be filled, and paid for, by whoever reads it first. Blocks alone can lie (pages may be
     * preallocated behind the end), the hole search alone would trust one file system detail. */
    off_t hole = lseek(fd, 0, SEEK_HOLE);
    if (hole < 0)
        return -errno;
    if ((uint64_t)st.st_blocks < (bytes + 511) / 512 || (hole != st.st_size && !FAULT(shm_bulk_hole))) {
        *ret_reason = "bulk memfd has holes: write every byte before sealing";
        return -EINVAL;
    }
    return 0;
}

int shm_bulk_map(int fd, uint64_t bytes, uint64_t max_bytes, struct shm_bulk *ret,
                 const char **reterr_reason) {
    const char *reason = NULL;
    int r = 0;
    if (bytes == 0) {
        reason = "bulk object is empty";
        r = -EINVAL;
    } else if (bytes > max_bytes || bytes > SIZE_MAX) {
        reason = "bulk object is larger than this connection may send";
        r = -EMSGSIZE;
    } else {
        r = bulk_check(fd, bytes, &reason);
    }
    if (r == 0) {
        /* Private, not shared: before Linux 6.7 a shared map of a write-sealed file is refused even when it
         * is read-only. No page is copied, because nobody can write through either. */
        void *m = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (m != MAP_FAILED) {
            *ret = (struct shm_bulk){.data = m, .bytes = bytes};
            return 0;
        }
        r = -errno;
    }
    if (reterr_reason)
        *reterr_reason = reason ? reason : "bulk memfd could not be mapped";
    return r;
}

void shm_bulk_done(struct shm_bulk *b) {
    if (b->data)
        munmap((void *)(uintptr_t)b->data, (size_t)b->bytes);
    *b = (struct shm_bulk){0};
}
