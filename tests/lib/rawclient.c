/* SPDX-License-Identifier: MIT */
/* The wire by hand, for hostile tests; see rawclient.h. */
#include "rawclient.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "seqsock.h"

int raw_socket(const char *path) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
    ck_assert_int_ge(fd, 0);
    ck_assert_msg(connect(fd, (struct sockaddr *)&sa, sizeof sa) == 0, "%s: %s", path, strerror(errno));
    return fd;
}

void raw_send(int fd, struct hello_msg *msg, const int *fds, unsigned n_fds) {
    uint8_t packet[GLMW_PACKET_MAX];
    int n = hello_encode(msg, packet, sizeof packet);

    ck_assert_int_gt(n, 0);
    ck_assert_int_eq(seqsock_send(fd, packet, (size_t)n, fds, n_fds), 0);
}

static int receive(int fd, struct seqsock_rx *rx) {
    struct pollfd p = {.fd = fd, .events = POLLIN};

    ck_assert_msg(poll(&p, 1, 10000) == 1, "nothing comes from the daemon");
    return seqsock_recv(fd, rx);
}

void raw_expect(int fd, enum hello_phase phase, uint16_t type, struct hello_msg *ret) {
    static struct seqsock_rx rx;
    const char *why = "";
    int r;

    do {
        r = receive(fd, &rx);
        ck_assert_msg(r == 0, "the daemon hung up: %d", r);
        r = hello_decode(rx.buf, rx.len, rx.n_fds, phase, ret, &why);
        ck_assert_msg(r == 0, "packet: %s", why);
        seqsock_drop_fds(&rx);
    } while (ret->type == GLMW_PKT_NOTICE && type != GLMW_PKT_NOTICE);
    ck_assert_uint_eq(ret->type, type);
}

int raw_expect_close(int fd) {
    static struct seqsock_rx rx;
    struct hello_msg m;
    const char *why;
    int error = 0, r;

    while ((r = receive(fd, &rx)) == 0) {
        if (hello_decode(rx.buf, rx.len, rx.n_fds, HELLO_CLIENT_OPEN, &m, &why) == 0 &&
            m.type == GLMW_PKT_BYE)
            error = m.u.bye.error;
        seqsock_drop_fds(&rx);
    }
    ck_assert_int_ne(r, -EAGAIN);
    return error;
}

struct hello_msg raw_hello(void) {
    struct hello_msg m = {.type = GLMW_PKT_HELLO};

    m.u.hello.wire_min = m.u.hello.wire_max = GLMW_WIRE_MAX;
    m.u.hello.features_wanted = GLMW_FEAT_ALL;
    m.u.hello.page_size = (uint32_t)sysconf(_SC_PAGESIZE);
    return m;
}

void raw_open(struct rawclient *c, const char *path, const struct hello_msg *hello) {
    struct hello_msg m = hello ? *hello : raw_hello();
    int fd = raw_socket(path);

    raw_send(fd, &m, NULL, 0);
    raw_welcome(c, fd);
}

void raw_welcome(struct rawclient *c, int fd) {
    static struct seqsock_rx rx;
    struct hello_msg m;
    const char *why = "";

    memset(c, 0, sizeof *c);
    c->fd = fd;
    ck_assert_int_eq(receive(c->fd, &rx), 0);
    ck_assert_msg(hello_decode(rx.buf, rx.len, rx.n_fds, HELLO_CLIENT_FIRST, &m, &why) == 0, "%s", why);
    ck_assert_msg(m.type == GLMW_PKT_WELCOME, "%s",
                  m.type == GLMW_PKT_REJECT ? m.u.reject.text : "no WELCOME");
    memcpy(c->fds, rx.fds, sizeof c->fds);
    c->welcome = m.u.welcome;
    ck_assert_int_eq(shm_view_map(&c->welcome, c->fds[GLMW_FD_U], c->fds[GLMW_FD_D], &c->view), 0);
    shm_view_rings(&c->view, &c->sq, &c->tq);
}

void raw_close(struct rawclient *c) {
    shm_view_done(&c->view);
    for (int i = 0; i < (int)GLMW_FD_COUNT; i++)
        close(c->fds[i]);
    close(c->fd);
}

void raw_bell(struct rawclient *c) {
    uint64_t one = 1;

    ck_assert_int_eq(write(c->fds[GLMW_FD_BELL], &one, 8), 8);
}

void raw_submit(struct rawclient *c, const struct glmw_entry *e) {
    glmw_refresh(&c->sq);
    ck_assert_int_eq(glmw_put(&c->sq, e), 0);
    glmw_publish(&c->sq, true);
    raw_bell(c);
}

struct glmw_entry raw_request(struct rawclient *c, uint64_t tag) {
    static const uint32_t ids[4] = {5, 6, 7, 0};
    struct glmw_tlv t = {.type = GLMW_TLV_TOKENS, .len = 12};
    uint8_t *pay = (uint8_t *)c->view.u + c->welcome.pay_off;

    memcpy(pay, &t, sizeof t);
    memcpy(pay + sizeof t, ids, sizeof ids);
    return (struct glmw_entry){.opcode = GLMW_OP_SUBMIT, .payload_len = 24, .tag = tag};
}

bool raw_record(struct rawclient *c, struct glmw_rec *ret, int timeout_ms, bool keep) {
    struct pollfd p = {.fd = c->fds[GLMW_FD_PIPE], .events = POLLIN};
    char drain[256];
    int r;

    for (;;) {
        r = glmw_arm(&c->tq, 1);
        ck_assert_int_ge(r, 0);
        if (r > 0)
            break;
        if (poll(&p, 1, timeout_ms) != 1)
            return false;
        if (read(p.fd, drain, sizeof drain) == 0)
            return false;
    }
    glmw_take(&c->tq, ret);
    if (!keep)
        glmw_give_back(&c->tq, &c->view.d->credit_wanted);
    return true;
}

int raw_until_end(struct rawclient *c, uint64_t tag, uint32_t *ret_tokens) {
    struct glmw_rec r;
    uint32_t tokens = 0, seq = 0;

    for (;;) {
        ck_assert_msg(raw_record(c, &r, 10000, false), "no END of tag %llu", (unsigned long long)tag);
        if (r.tag != tag)
            continue;
        ck_assert_msg(r.seq == seq, "record type %u has seq %u, expected %u", r.type, r.seq, seq);
        seq++;
        tokens += r.type == GLMW_REC_TOKEN;
        if (r.type == GLMW_REC_END) {
            if (ret_tokens)
                *ret_tokens = tokens;
            return r.u.end.status;
        }
    }
}
