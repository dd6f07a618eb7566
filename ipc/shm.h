/* SPDX-License-Identifier: MIT */
/* The two shared memories of a connection and the sealed memfds a client sends. */
#ifndef GLMD_SHM_H
#define GLMD_SHM_H

#include <stdint.h>

#include "ringops.h"
#include "wire.h"

/* Where everything lies; one computation for daemon, WELCOME and region header. */
struct shm_geom {
    uint8_t sq_log2, tq_log2, pay_log2, txt_log2;
    uint64_t u_bytes, d_bytes;
    uint64_t sq_off, pay_off; /* region U */
    uint64_t tq_off, txt_off; /* region D */
};

/* -EINVAL: a size lies outside GLMW_*_LOG2_MIN/MAX. */
int shm_geom_init(unsigned sq_log2, unsigned tq_log2, unsigned pay_log2, unsigned txt_log2,
                  struct shm_geom *ret);

/* What the header of region D says beside the geometry. */
struct shm_ident {
    uint32_t wire;
    uint64_t features;
    uint64_t generation;
    uint64_t conn_id;
};

/* The daemon's end. u is written by the client at any time: read it only through glmw_fetch*(). */
struct shm_pair {
    struct shm_geom geom;
    int u_fd; /* also needed for shm_payload_read() */
    int d_fd; /* may be closed (and set to -1) once it has been sent */
    const struct glmw_u GLMW_FOREIGN *u;
    struct glmw_d *d;
};

/* Creates, preallocates, maps and seals both regions, zero-filled but for their headers. On failure nothing
 * is left: -ENOMEM, -ENOSPC, -EMFILE, -ENFILE, or -EFBIG (file size limit; the process ignores SIGXFSZ). */
int shm_pair_create(const struct shm_geom *geom, const struct shm_ident *ident, struct shm_pair *ret);
/* Unmaps and closes; safe on a zeroed-with-fds=-1 or already finished pair. */
void shm_pair_done(struct shm_pair *p);

/* Rings of the daemon's end, from index 0. */
void shm_pair_rings(const struct shm_pair *p, struct glmw_consumer *ret_sq, struct glmw_producer *ret_tq);

/* Copies a payload out of region U with pread: the client may have punched holes, and a hole reads as zeros
 * here instead of raising SIGBUS or allocating a page. -EPROTO: outside the arena or not aligned. */
int shm_payload_read(const struct shm_pair *p, uint64_t off, uint32_t len, void *dst);

/* The client's end, for programs of this tree that speak the wire without libglmd (tests, tools). */
struct shm_view {
    struct shm_geom geom;
    struct glmw_u *u;
    const struct glmw_d GLMW_FOREIGN *d;
};
/* Borrows the descriptors. -EPROTO: WELCOME and the memory disagree, or a region is too small. */
int shm_view_map(const struct glmw_welcome *w, int u_fd, int d_fd, struct shm_view *ret);
void shm_view_done(struct shm_view *v);
void shm_view_rings(const struct shm_view *v, struct glmw_producer *ret_sq, struct glmw_consumer *ret_tq);

/* A client's sealed memfd, mapped read-only. Its content cannot change or shrink, so it is read in place. */
struct shm_bulk {
    const void *data;
    uint64_t bytes;
};
/* Borrows fd. -EINVAL with *reterr_reason (static text, may be NULL) naming the rule broken; -EMSGSIZE over
 * max_bytes; -ENOMEM. */
int shm_bulk_map(int fd, uint64_t bytes, uint64_t max_bytes, struct shm_bulk *ret,
                 const char **reterr_reason);
void shm_bulk_done(struct shm_bulk *b);

#endif
