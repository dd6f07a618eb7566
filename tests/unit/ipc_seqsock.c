/* SPDX-License-Identifier: MIT */
/* Packets with descriptors: what arrives, what is refused, and that no descriptor is ever left behind.
 * The bells, because both are about descriptors shared with a peer that may be hostile. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bell.h"
#include "leakcheck.h"
#include "seqsock.h"

static int sk[2];
static struct seqsock_rx rx;

static void setup(void) {
    leakcheck_setup();
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sk), 0);
}
static void teardown(void) {
    for (int i = 0; i < 2; i++) {
        if (sk[i] >= 0)
            close(sk[i]);
    }
    leakcheck_teardown();
}

/* sendmsg without the limits of seqsock_send() */
static void send_raw(const void *data, size_t len, const int *fds, unsigned n_fds, unsigned n_headers) {
    struct {
        _Alignas(struct cmsghdr) char space[4096];
    } c = {{0}};
    struct iovec iov = {(void *)(uintptr_t)data, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.space, .msg_controllen = 0};
    for (unsigned i = 0; i < n_headers; i++) {
        struct cmsghdr *h = (struct cmsghdr *)(void *)(c.space + m.msg_controllen);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(h), fds, sizeof(int) * n_fds);
        m.msg_controllen += CMSG_SPACE(sizeof(int) * n_fds);
    }
    ck_assert_int_eq(sendmsg(sk[0], &m, 0), (ssize_t)len);
}

START_TEST(packets_keep_their_borders) {
    char big[GLMW_PACKET_MAX];
    memset(big, 'x', sizeof(big));
    ck_assert_int_eq(seqsock_send(sk[0], "one", 3, NULL, 0), 0);
    ck_assert_int_eq(seqsock_send(sk[0], big, sizeof(big), NULL, 0), 0);
    ck_assert_int_eq(seqsock_recv(sk[1], &rx), 0);
    ck_assert_uint_eq(rx.len, 3);
    ck_assert_mem_eq(rx.buf, "one", 3);
    ck_assert_uint_eq(rx.n_fds, 0);
    ck_assert_int_eq(seqsock_recv(sk[1], &rx), 0);
    ck_assert_uint_eq(rx.len, sizeof(big));
    ck_assert_int_eq(seqsock_recv(sk[1], &rx), -EAGAIN);
    ck_assert_int_eq(seqsock_send(sk[0], big, sizeof(big) + 1, NULL, 0), -EMSGSIZE);
    ck_assert_int_eq(seqsock_send(sk[0], big, 0, NULL, 0), -EMSGSIZE);
}
END_TEST

START_TEST(descriptors_arrive_in_order_and_close_on_exec) {
    int p[2], fds[4];
    ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
    for (int i = 0; i < 4; i++)
        fds[i] = p[i & 1];
    ck_assert_int_eq(seqsock_send(sk[0], "fds", 3, fds, 4), 0);
    ck_assert_int_eq(seqsock_send(sk[0], "fds", 3, fds, 5), -EMSGSIZE);
    ck_assert_int_eq(seqsock_recv(sk[1], &rx), 0);
    ck_assert_uint_eq(rx.n_fds, 4);
    for (int i = 0; i < 4; i++) {
        struct stat a, b;
        ck_assert(fcntl(rx.fds[i], F_GETFD) & FD_CLOEXEC);
        ck_assert_int_eq(fstat(rx.fds[i], &a) | fstat(p[i & 1], &b), 0);
        ck_assert_uint_eq(a.st_ino, b.st_ino);
        ck_assert_int_eq(fcntl(rx.fds[i], F_GETFL) & O_ACCMODE, i & 1 ? O_WRONLY : O_RDONLY);
    }
    seqsock_drop_fds(&rx);
    seqsock_drop_fds(&rx); /* harmless */
    close(p[0]);
    close(p[1]);
}
END_TEST

/* Five, eight (all the control buffer holds), and far more than it holds: refused, and all closed. */
START_TEST(too_many_descriptors_are_closed) {
    static const unsigned n[] = {5, 8, 9, 30, 253};
    int fds[253];
    for (int i = 0; i < 253; i++)
        fds[i] = sk[0];
    /* an emulator that translates control data loses descriptors that do not fit its own buffer */
    const size_t sizes = getenv("GLMD_EMULATED") ? 3 : sizeof(n) / sizeof(n[0]);
    for (size_t i = 0; i < sizes; i++) {
        struct leakcheck l;
        const char *what;
        leakcheck_begin(&l);
        send_raw("x", 1, fds, n[i], 1);
        ck_assert_int_eq(seqsock_recv(sk[1], &rx), -EPROTO);
        ck_assert_uint_eq(rx.n_fds, 0);
        ck_assert_msg(leakcheck_end(&l, &what) == 0, "with %u descriptors: %s", n[i], what);
    }
    /* the connection itself is still usable: refusing is the caller's decision */
    ck_assert_int_eq(seqsock_send(sk[0], "y", 1, NULL, 0), 0);
    ck_assert_int_eq(seqsock_recv(sk[1], &rx), 0);
}
END_TEST

START_TEST(long_packets_are_refused_with_their_descriptors) {
    static char big[GLMW_PACKET_MAX + 1];
    send_raw(big, sizeof(big), &sk[0], 1, 1);
    ck_assert_int_eq(seqsock_recv(sk[1], &rx), -EPROTO);
    ck_assert_uint_eq(rx.n_fds, 0);
}
END_TEST

START_TEST(end_of_connection) {
    send_raw("", 0, &sk[0], 1, 1); /* an empty packet counts as the end; its descriptor is closed */
    ck_assert_int_eq(seqsock_recv(sk[1], &rx), -EPIPE);
    ck_assert_int_eq(seqsock_send(sk[0], "last", 4, NULL, 0), 0);
    close(sk[0]);
    sk[0] = -1;
    ck_assert_int_eq(seqsock_recv(sk[1], &rx), 0); /* what was sent before still comes */
    ck_assert_int_eq(seqsock_recv(sk[1], &rx), -EPIPE);
    ck_assert_int_eq(seqsock_send(sk[1], "x", 1, NULL, 0), -EPIPE); /* and no SIGPIPE */
}
END_TEST

/* The reason for a hang-up must arrive although the peer's own packets were never read. */
START_TEST(last_words_survive_unread_packets) {
    int before = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(seqsock_send(sk[0], "hello", 5, &before, 1), 0);
    ck_assert_int_eq(seqsock_send(sk[0], "more", 4, NULL, 0), 0);
    ck_assert_int_eq(seqsock_send(sk[1], "refused", 7, NULL, 0), 0);
    seqsock_close(sk[1]);
    sk[1] = -1;
    ck_assert_int_eq(seqsock_recv(sk[0], &rx), 0);
    ck_assert_uint_eq(rx.len, 7);
    ck_assert_mem_eq(rx.buf, "refused", 7);
    ck_assert_int_eq(seqsock_send(sk[0], "late", 4, NULL, 0), -EPIPE);
    ck_assert_int_eq(seqsock_recv(sk[0], &rx), -EPIPE);
    close(before);
}
END_TEST

START_TEST(a_peer_that_does_not_read_cannot_block_us) {
    char packet[GLMW_PACKET_MAX] = {0};
    int r = 0, n = 0;
    ck_assert_int_eq(fcntl(sk[0], F_SETFL, 0), 0); /* even when the socket is blocking */
    while ((r = seqsock_send(sk[0], packet, sizeof(packet), NULL, 0)) == 0 && n < 100000)
        n++;
    ck_assert_int_eq(r, -EAGAIN);
    ck_assert_int_gt(n, 0);
}
END_TEST

START_TEST(credentials_are_ours) {
    struct ucred c;
    ck_assert_int_eq(seqsock_peer(sk[0], &c), 0);
    ck_assert_uint_eq(c.uid, getuid());
    ck_assert_uint_eq(c.gid, getgid());
    int p[2];
    ck_assert_int_eq(pipe(p), 0);
    ck_assert_int_eq(seqsock_peer(p[0], &c), -ENOTSOCK);
    close(p[0]);
    close(p[1]);
}
END_TEST

/* ---- bells --------------------------------------------------------------------------------------------- */

START_TEST(a_full_pipe_is_a_rung_bell) {
    struct bell b;
    struct pollfd pfd;
    char buf[70000];
    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(bell_open(&b), 0);
    pfd = (struct pollfd){.fd = b.pipe_r, .events = POLLIN};
    ck_assert_int_eq(poll(&pfd, 1, 0), 0);
    for (int i = 0; i < 200000; i++)
        ck_assert_int_eq(bell_ring(b.pipe_w), 0); /* never blocks, never fails */
    ck_assert_int_eq(poll(&pfd, 1, 0), 1);
    ssize_t n = read(b.pipe_r, buf, sizeof(buf));
    ck_assert_int_gt(n, 0);
    ck_assert_int_le(n, sysconf(_SC_PAGESIZE)); /* one page, however often it was rung */
    ck_assert_int_eq(poll(&pfd, 1, 0), 0);
    ck_assert_int_eq(bell_ring(b.pipe_w), 0);
    ck_assert_int_eq(poll(&pfd, 1, 0), 1);
    /* the client's end shares no flags with ours */
    ck_assert_int_eq(fcntl(b.pipe_r, F_SETFL, 0), 0);
    ck_assert(fcntl(b.pipe_w, F_GETFL) & O_NONBLOCK);
    ck_assert(fcntl(b.pipe_w, F_GETFD) & fcntl(b.pipe_r, F_GETFD) & fcntl(b.up_fd, F_GETFD) & FD_CLOEXEC);
    close(b.pipe_r);
    b.pipe_r = -1;
    ck_assert_int_eq(bell_ring(b.pipe_w), -EPIPE);
    bell_close(&b);
    bell_close(&b); /* harmless */
}
END_TEST

/* The daemon only polls the eventfd, edge-triggered: every write is a new edge although nobody reads, and a
 * client that makes it blocking and fills it hurts nobody but itself. */
START_TEST(eventfd_rings_without_being_read) {
    struct bell b;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET}, got;
    uint64_t one = 1, most = UINT64_MAX - 1;
    ck_assert_int_eq(bell_open(&b), 0);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    ck_assert_int_eq(epoll_ctl(ep, EPOLL_CTL_ADD, b.up_fd, &ev), 0);
    ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), 0);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(write(b.up_fd, &one, 8), 8);
        ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), 1);
        ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), 0);
    }
    most -= 5;
    ck_assert_int_eq(write(b.up_fd, &most, 8), 8);
    ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), 1);
    ck_assert_int_eq(write(b.up_fd, &one, 8), -1); /* full: its own loss */
    ck_assert_int_eq(errno, EAGAIN);
    close(ep);
    bell_close(&b);
}
END_TEST

START_TEST(publishing_counts_bells) {
    struct bell b;
    struct bell_counts n = {0};
    struct glmw_producer p;
    uint32_t tail = 0, head = 0, event = 0;
    uint8_t slots[64 * 8], rec[64] = {0};
    char buf[64];
    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(bell_open(&b), 0);
    glmw_producer_init(&p, slots, 3, &tail, &head, &event, 0);
    ck_assert_int_eq(bell_publish(&p, b.pipe_w, false, &n), 0); /* nothing to publish: not counted */
    for (int i = 0; i < 3; i++) {
        glmw_put(&p, rec);
        glmw_put(&p, rec);
        ck_assert_int_eq(bell_publish(&p, b.pipe_w, false, &n), 0);
    }
    ck_assert_uint_eq(n.sent, 1);
    ck_assert_uint_eq(n.suppressed, 2);
    ck_assert_uint_eq(n.records, 6);
    ck_assert_int_eq(read(b.pipe_r, buf, sizeof(buf)), 1);
    close(b.pipe_r);
    b.pipe_r = -1;
    event = 6;
    glmw_put(&p, rec);
    ck_assert_int_eq(bell_publish(&p, b.pipe_w, false, &n), -EPIPE);
    ck_assert_uint_eq(tail, 7); /* published all the same */
    bell_close(&b);
}
END_TEST

int main(void) {
    Suite *s = suite_create("ipc_seqsock");
    TCase *tc = tcase_create("packets");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, packets_keep_their_borders);
    tcase_add_test(tc, descriptors_arrive_in_order_and_close_on_exec);
    tcase_add_test(tc, too_many_descriptors_are_closed);
    tcase_add_test(tc, long_packets_are_refused_with_their_descriptors);
    tcase_add_test(tc, end_of_connection);
    tcase_add_test(tc, last_words_survive_unread_packets);
    tcase_add_test(tc, a_peer_that_does_not_read_cannot_block_us);
    tcase_add_test(tc, credentials_are_ours);
    suite_add_tcase(s, tc);
    tc = tcase_create("bells");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, a_full_pipe_is_a_rung_bell);
    tcase_add_test(tc, eventfd_rings_without_being_read);
    tcase_add_test(tc, publishing_counts_bells);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
