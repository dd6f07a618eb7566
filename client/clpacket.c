/* SPDX-License-Identifier: MIT */
/* Packets on the control socket.  After the handshake the socket is nearly silent: notices, the question
 * whether the other side is alive, and the end.  Runs on the connection's thread and never blocks. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clconn.h"

void cl_fds_close(struct cl_fds *f) {
    while (f->n)
        close(f->fd[--f->n]);
}

int cl_packet_send_fd(glmd_conn *c, uint16_t type, const void *body, uint32_t len, int fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ctl;
    struct glmw_packet_hdr h = {.magic = GLMW_MAGIC_PACKET, .type = type, .len = len, .serial = c->serial};
    struct iovec iov[2] = {{&h, sizeof h}, {(void *)(uintptr_t)body, len}};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
    ssize_t n;
    if (fd >= 0) {
        memset(&ctl, 0, sizeof ctl);
        m.msg_control = &ctl;
        m.msg_controllen = sizeof ctl.bytes;
        struct cmsghdr *k = CMSG_FIRSTHDR(&m);
        k->cmsg_level = SOL_SOCKET;
        k->cmsg_type = SCM_RIGHTS;
        k->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(k), &fd, sizeof fd);
    }
    do {
        n = sendmsg(c->fd_sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EWOULDBLOCK ? -EAGAIN : -errno;
    c->serial++;
    return 0;
}

int cl_packet_send(glmd_conn *c, uint16_t type, const void *body, uint32_t len) {
    return cl_packet_send_fd(c, type, body, len, -1);
}

/* Keeps every descriptor that came, so that none can leak whatever is wrong with the packet. */
static int take_fds(struct msghdr *m, struct cl_fds *fds) {
    int r = 0;
    for (struct cmsghdr *k = CMSG_FIRSTHDR(m); k; k = CMSG_NXTHDR(m, k)) {
        if (k->cmsg_level != SOL_SOCKET || k->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (k->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(k) + i * sizeof fd, sizeof fd);
            if (fds && fds->n < GLMW_PACKET_FDS_MAX) {
                fds->fd[fds->n++] = fd;
            } else {
                close(fd);
                r = -EPROTO;
            }
        }
    }
    return r;
}

int cl_packet_recv(int fd, void *buf, size_t size, struct cl_fds *fds) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * (GLMW_PACKET_FDS_MAX + 1))];
    } ctl;
    struct iovec iov = {buf, size};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &ctl, .msg_controllen = sizeof ctl};
    if (fds)
        fds->n = 0;
    ssize_t n;
    bool reset = false;
    do {
        n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == ECONNRESET && !reset) {
            /* said once, and in front of what the daemon sent before it closed */
            reset = true;
            errno = EINTR;
        }
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EWOULDBLOCK ? -EAGAIN : errno == ECONNRESET ? 0 : -errno;
    int r = take_fds(&m, fds);
    struct glmw_packet_hdr h;
    if (n == 0 && r == 0)
        return 0;
    if (r == 0 && ((m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || (size_t)n < sizeof h))
        r = -EPROTO;
    if (r == 0) {
        memcpy(&h, buf, sizeof h);
        if (h.magic != GLMW_MAGIC_PACKET || h.len != (size_t)n - sizeof h || (h.flags & ~GLMW_PKTF_IGNORABLE))
            r = -EPROTO;
    }
    if (r < 0) {
        if (fds)
            cl_fds_close(fds);
        return r;
    }
    return (int)n;
}

static void on_notice(glmd_conn *c, const void *body) {
    struct glmw_notice_body b;
    memcpy(&b, body, sizeof b);
    c->hello.state = b.state;
    c->hello.limits = b.limits;
    memcpy(c->hello.model, b.model, sizeof b.model);
    cl_notice(c, b.what);
}

static void on_bye(glmd_conn *c, const void *body) {
    struct glmw_bye b;
    memcpy(&b, body, sizeof b);
    b.text[sizeof b.text - 1] = 0;
    c->socket_done = true;
    cl_die(c, b.error < 0 && b.error > -4096 ? b.error : -EPIPE, "the daemon ended the connection%s%s",
           b.text[0] ? ": " : "", b.text);
}

static void on_pong(glmd_conn *c, const void *body) {
    uint64_t v;
    memcpy(&v, body, sizeof v);
    if (c->pulse.state == CL_PULSE_OK || v != c->pulse.asked)
        return; /* an answer to an older question */
    if (c->pulse.state == CL_PULSE_HUNG)
        cl_notice(c, GLMD_NOTICE_ALIVE);
    c->pulse.state = CL_PULSE_OK;
    c->pulse.check_ns = cl_now_ns() + GLMW_STATUS_ALIVE_NS;
}

static void on_packet(glmd_conn *c, const struct glmw_packet_hdr *h, const void *body) {
    static const uint32_t want[] = {[GLMW_PKT_BULK_OK] = sizeof(struct glmw_bulk_answer),
                                    [GLMW_PKT_BULK_ERR] = sizeof(struct glmw_bulk_answer),
                                    [GLMW_PKT_NOTICE] = sizeof(struct glmw_notice_body),
                                    [GLMW_PKT_PING] = sizeof(struct glmw_ping),
                                    [GLMW_PKT_PONG] = sizeof(struct glmw_ping),
                                    [GLMW_PKT_BYE] = sizeof(struct glmw_bye)};
    bool unknown = h->type < GLMW_PKT_HELLO || h->type > GLMW_PKT_BYE;
    if (unknown && (h->flags & GLMW_PKTF_IGNORABLE))
        return;
    if (unknown || !want[h->type] || h->len != want[h->type]) {
        cl_die(c, -EPROTO, "the daemon sent a packet of type %u and %u bytes, which has no place here",
               h->type, h->len);
        return;
    }
    switch (h->type) {
    case GLMW_PKT_BULK_OK:
    case GLMW_PKT_BULK_ERR:
        cl_bulk_answer(c, body, h->type == GLMW_PKT_BULK_OK);
        break;
    case GLMW_PKT_NOTICE:
        on_notice(c, body);
        break;
    case GLMW_PKT_PING:
        cl_packet_send(c, GLMW_PKT_PONG, body, h->len);
        break;
    case GLMW_PKT_PONG:
        on_pong(c, body);
        break;
    default:
        on_bye(c, body);
        break;
    }
}

void cl_socket_read(glmd_conn *c) {
    union {
        struct glmw_packet_hdr h;
        char bytes[GLMW_PACKET_MAX];
    } p;
    /* a bound, so that a daemon that floods the socket cannot hold the caller */
    for (int i = 0; i < 16 && !c->socket_done; i++) {
        int n = cl_packet_recv(c->fd_sock, &p, sizeof p, NULL);
        if (n == -EAGAIN)
            return;
        if (n > 0) {
            on_packet(c, &p.h, p.bytes + sizeof p.h);
            if (c->error)
                c->socket_done = true;
            continue;
        }
        c->socket_done = true;
        if (n == 0)
            cl_die(c, -EPIPE, "the daemon closed the connection or ended");
        else
            cl_die(c, n == -EPROTO ? -EPROTO : -EPIPE, "the control socket failed: %s", glmd_strerror(n));
    }
}
