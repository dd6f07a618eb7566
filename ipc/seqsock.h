/* SPDX-License-Identifier: MIT */
/* Packets with descriptors over a connected SOCK_SEQPACKET Unix socket. */
#ifndef GLMD_SEQSOCK_H
#define GLMD_SEQSOCK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "wire.h"

/* One received packet. buf and the descriptors are valid after seqsock_parse() returned 0; whoever gets them
 * closes them (seqsock_drop_fds) or takes them out by setting n_fds to 0. */
struct seqsock_rx {
    struct msghdr msg; /* for an asynchronous recvmsg; flags MSG_CMSG_CLOEXEC */
    struct iovec iov;
    size_t len;
    unsigned n_fds;
    int fds[GLMW_PACKET_FDS_MAX];
    /* Room for more than the limit, so that a packet with too many is seen as such and all are closed. */
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * (GLMW_PACKET_FDS_MAX + 4)) + 64];
    _Alignas(8) uint8_t buf[GLMW_PACKET_MAX];
};

/* Prepares rx for one recvmsg(&rx->msg). */
void seqsock_prepare(struct seqsock_rx *rx);

/* Looks at what recvmsg returned (res: bytes or negative errno). 0: one packet with at most
 * GLMW_PACKET_FDS_MAX descriptors. -EPIPE: the peer is gone (or sent an empty packet). -EPROTO: too long,
 * truncated control data, too many descriptors. Otherwise res. Unless 0 is returned no descriptor is left. */
int seqsock_parse(struct seqsock_rx *rx, ssize_t res);

/* recvmsg and the two above in one. -EAGAIN when nothing is there and fd is non-blocking. */
int seqsock_recv(int fd, struct seqsock_rx *rx);
void seqsock_drop_fds(struct seqsock_rx *rx);

/* Sends one packet, never raises SIGPIPE, never blocks: -EAGAIN when the peer does not read. Borrows fds. */
int seqsock_send(int fd, const void *packet, size_t len, const int *fds, unsigned n_fds);

/* Closes fd so that the peer can still read what was sent to it: what it sent meanwhile is taken and dropped,
 * because a close with packets unread makes the peer's next read fail with ECONNRESET. */
void seqsock_close(int fd);

/* Credentials as they were at connect. */
int seqsock_peer(int fd, struct ucred *ret);
/* The peer's groups as they were at connect, its own first; to be freed. -ENOMEM, or what the kernel says. */
int seqsock_peer_groups(int fd, uint32_t **ret, size_t *ret_n);

#endif
