/* SPDX-License-Identifier: MIT */
/* Requests too large for the arena go to the daemon as a sealed memfd, which it reads in place.  The socket
 * carries the descriptor and the daemon's answer; the entry that names the object is pushed when the answer
 * has come, because the ring could be read before the socket.  Runs on the connection's thread; the daemon's
 * answer is never waited for. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clconn.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define ALL_SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

uint64_t cl_bulk_max(const glmd_conn *c) {
    return c->hello.features & GLMW_FEAT_BULK && c->hello.limits.max_bulk ? c->hello.limits.max_bulk_bytes
                                                                           : 0;
}

/* A larger file than the process may have would be answered by a signal, which is not ours to catch. */
static bool size_allowed(uint64_t bytes) {
    struct rlimit rl;
    return getrlimit(RLIMIT_FSIZE, &rl) < 0 || rl.rlim_cur == RLIM_INFINITY || bytes <= rl.rlim_cur;
}

static int write_parts(int fd, const struct cl_payload *p) {
    for (unsigned i = 0; i < 3; i++) {
        const char *at = p->part[i];
        size_t left = p->len[i];
        while (left) {
            ssize_t n = write(fd, at, left < INT_MAX ? left : INT_MAX);
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                return n < 0 ? -errno : -EIO;
            at += n;
            left -= (size_t)n;
        }
    }
    return 0;
}

/* Written, not mapped: every page exists then, as the daemon demands. */
static int make_object(const struct cl_payload *p, int *ret) {
    if (!size_allowed(p->total_bytes))
        return -EFBIG;
    int fd = memfd_create("glmd-request", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* not before Linux 6.3 */
        fd = memfd_create("glmd-request", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    int r = write_parts(fd, p);
    if (r == 0 && fcntl(fd, F_ADD_SEALS, ALL_SEALS) < 0)
        r = -errno;
    if (r < 0) {
        close(fd);
        return r;
    }
    *ret = fd;
    return 0;
}

int cl_bulk_send(glmd_conn *c, const struct cl_payload *p, struct cl_live *l) {
    int fd = -1, r;
    if (c->n_bulk >= c->hello.limits.max_bulk)
        return -ENOBUFS; /* an object is freed by the END of its request */
    r = make_object(p, &fd);
    if (r < 0)
        return r;
    struct glmw_bulk b = {.id = ++c->bulk_serial, .kind = GLMW_BULK_PAYLOAD, .bytes = p->total_bytes};
    r = cl_packet_send_fd(c, GLMW_PKT_BULK, &b, sizeof b, fd);
    close(fd); /* the packet has its own */
    if (r < 0)
        return r == -EAGAIN ? -ENOBUFS : r;
    l->bulk = CL_BULK_ASKED;
    l->entry.payload_off = b.id;
    c->n_bulk++;
    return 0;
}

static struct cl_live *find_asked(const glmd_conn *c, uint32_t id) {
    for (uint32_t i = 0; i < c->tags.n_slots; i++) {
        struct cl_live *l = c->tags.slots[i].live;
        if (l && l->bulk == CL_BULK_ASKED && l->entry.payload_off == id)
            return l;
    }
    return NULL;
}

void cl_bulk_answer(glmd_conn *c, const void *body, bool granted) {
    struct glmw_bulk_answer a;
    memcpy(&a, body, sizeof a);
    struct cl_live *l = find_asked(c, a.id);
    if (!l || (granted ? a.error != 0 : a.error >= 0 || a.error < -4095)) {
        cl_die(c, -EPROTO, "the daemon answered for memory %u, which it was not asked about", a.id);
        return;
    }
    if (!granted) {
        cl_bulk_end(c, l);
        l->refused = a.error;
        c->n_refused++;
        return;
    }
    l->bulk = CL_BULK_OWED;
    c->n_submit_owed++;
    cl_owed_push(c);
}

void cl_bulk_end(glmd_conn *c, struct cl_live *l) {
    if (l->bulk == CL_BULK_OWED)
        c->n_submit_owed--;
    if (l->bulk != CL_BULK_NONE)
        c->n_bulk--;
    l->bulk = CL_BULK_NONE;
}

const char *cl_bulk_text(int error) {
    switch (error) {
    case -EDQUOT:
        return "the request's memory was refused: this user has all that [Quota] MaxBulkBytesPerUid allows";
    case -EBUSY:
        return "the request's memory was refused: this connection has as many large requests as it may";
    case -EMSGSIZE:
        return "the request's memory was refused: it is larger than [IPC] MaxBulkBytes allows";
    case -ENOMEM:
        return "the request's memory was refused: the daemon has no room for it";
    default:
        return "the request's memory was refused; the daemon's log says why";
    }
}
