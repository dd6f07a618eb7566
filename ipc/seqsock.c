/* SPDX-License-Identifier: MIT */
/* Send and receive on the handshake socket. Called by the io thread; keeps no state.
 *
 * The rule that matters: every descriptor the kernel installed for us is either handed to the caller or
 * closed before we return, whatever else is wrong with the packet. */
#include "seqsock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void seqsock_prepare(struct seqsock_rx *rx) {
    rx->iov = (struct iovec){.iov_base = rx->buf, .iov_len = sizeof(rx->buf)};
    rx->msg = (struct msghdr){
        .msg_iov = &rx->iov,
        .msg_iovlen = 1,
        .msg_control = rx->control,
        .msg_controllen = sizeof(rx->control),
    };
    rx->len = 0;
    rx->n_fds = 0;
}

void seqsock_drop_fds(struct seqsock_rx *rx) {
    for (unsigned i = 0; i < rx->n_fds; i++)
        close(rx->fds[i]);
    rx->n_fds = 0;
}

/* Moves descriptors into rx->fds and closes what does not fit. False: some did not fit. */
static bool collect_fds(struct seqsock_rx *rx) {
    bool fits = true;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&rx->msg); c; c = CMSG_NXTHDR(&rx->msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (rx->n_fds < GLMW_PACKET_FDS_MAX) {
                rx->fds[rx->n_fds++] = fd;
            } else {
                close(fd);
                fits = false;
            }
        }
    }
    return fits;
}

int seqsock_parse(struct seqsock_rx *rx, ssize_t res) {
    if (res < 0)
        return res == -ECONNRESET ? -EPIPE : (int)res;
    bool fits = collect_fds(rx);
    int r = 0;
    if (!fits || (rx->msg.msg_flags & (MSG_CTRUNC | MSG_TRUNC)))
        r = -EPROTO;
    else if (res == 0)
        r = -EPIPE;
    if (r < 0) {
        seqsock_drop_fds(rx);
        return r;
    }
    rx->len = (size_t)res;
    return 0;
}

int seqsock_recv(int fd, struct seqsock_rx *rx) {
    ssize_t n;
    seqsock_prepare(rx);
    do
        n = recvmsg(fd, &rx->msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    return seqsock_parse(rx, n < 0 ? -errno : n);
}

int seqsock_send(int fd, const void *packet, size_t len, const int *fds, unsigned n_fds) {
    union {
        char space[CMSG_SPACE(sizeof(int) * GLMW_PACKET_FDS_MAX)];
        struct cmsghdr align;
    } control;
    if (len == 0 || len > GLMW_PACKET_MAX || n_fds > GLMW_PACKET_FDS_MAX)
        return -EMSGSIZE;

    struct iovec iov = {.iov_base = (void *)(uintptr_t)packet, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        memset(&control, 0, sizeof(control));
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    ssize_t n;
    do
        n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == ECONNRESET ? -EPIPE : -errno;
    return 0; /* a sequenced packet goes whole or not at all */
}

void seqsock_close(int fd) {
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1}; /* an emulator takes none for an error of ours */
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1}; /* no room for descriptors: the kernel drops them */
    if (!FAULT(seqsock_close_unread)) {
        shutdown(fd, SHUT_RD); /* from here on the peer cannot add to what lies here */
        for (;;) {
            ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
            if (n == 0 || (n < 0 && errno != EINTR && errno != ECONNRESET))
                break;
            msg = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1};
        }
    }
    /* whoever else still holds the file, a poll that is being cancelled for one: the peer sees the end now */
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

int seqsock_peer(int fd, struct ucred *ret) {
    struct ucred c;
    socklen_t len = sizeof(c);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &len) < 0)
        return -errno;
    if (len != sizeof(c))
        return -EIO;
    *ret = c;
    return 0;
}

int seqsock_peer_groups(int fd, uint32_t **ret, size_t *ret_n) {
    struct ucred c;
    uint32_t *ids = NULL;
    socklen_t len = 32 * sizeof(gid_t);
    int r = seqsock_peer(fd, &c);
    _Static_assert(sizeof(gid_t) == sizeof(uint32_t), "group ids have 32 bits");
    if (r < 0)
        return r;
    for (;;) { /* the kernel says how many there are when they do not fit; they cannot grow */
        uint32_t *grown = realloc(ids, len + sizeof(*ids));
        if (!grown) {
            free(ids);
            return -ENOMEM;
        }
        ids = grown;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, ids + 1, &len) == 0)
            break;
        if (errno != ERANGE) {
            r = -errno;
            free(ids);
            return r;
        }
    }
    ids[0] = c.gid;
    *ret = ids;
    *ret_n = 1 + len / sizeof(*ids);
    return 0;
}
