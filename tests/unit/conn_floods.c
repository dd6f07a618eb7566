/* SPDX-License-Identifier: MIT */
/* Clients that do too much of something, or take their descriptors apart: the table at the top of
 * conn_hostile.c says which test stands for which rule. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hostilefix.h"
#include "log.h"
#include "seqsock.h"

static uint64_t cpu_ns(clockid_t clock) {
    struct timespec ts;

    ck_assert_int_eq(clock_gettime(clock, &ts), 0);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* Rings as fast as it can until this has cost us a quarter of a second of processor time. The daemon takes
 * the descriptor out of its sight for most of the time and spends a fraction of that. */
START_TEST(bells_cost_their_sender) {
    const uint64_t mine = 250000000;
    uint64_t one = 1, began, theirs;
    clockid_t daemon;
    struct glmw_entry e;

    raw_open(&hf.c, hf.f.socket, NULL);
    ck_assert_int_eq(clock_getcpuclockid(hf.f.pid, &daemon), 0);
    theirs = cpu_ns(daemon);
    began = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    while (cpu_ns(CLOCK_THREAD_CPUTIME_ID) - began < mine)
        for (int i = 0; i < 100; i++)
            ck_assert_int_eq(write(hf.c.fds[GLMW_FD_BELL], &one, 8), 8);
    theirs = cpu_ns(daemon) - theirs;
    ck_assert_msg(theirs < mine / 6, "the daemon spent %llu ms on bells that cost us %llu ms",
                  (unsigned long long)theirs / 1000000, (unsigned long long)mine / 1000000);
    e = raw_request(&hf.c, 5); /* found by a timer at the latest */
    raw_submit(&hf.c, &e);
    ck_assert_int_eq(raw_until_end(&hf.c, 5, NULL), 0);
    raw_close(&hf.c);
}
END_TEST

static _Atomic bool stop_flood;

static void *flood_with_nops(void *arg) {
    static const struct glmw_entry nop = {.opcode = GLMW_OP_NOP};
    struct rawclient *c = arg;
    uint64_t one = 1;

    while (!stop_flood) {
        if (glmw_refresh(&c->sq) < 0)
            break;
        while (glmw_put(&c->sq, &nop) == 0)
            continue;
        if (glmw_publish(&c->sq, false) && write(c->fds[GLMW_FD_BELL], &one, 8) < 0)
            break;
    }
    return NULL;
}

/* The largest ring is kept full of entries all the time: 16 a turn are taken, and others have their turn. */
START_TEST(entries_without_end_stop_nobody) {
    struct hello_msg h = raw_hello();
    pthread_t t;

    h.u.hello.sq_log2 = 8;
    raw_open(&hf.c, hf.f.socket, &h);
    stop_flood = false;
    ck_assert_int_eq(pthread_create(&t, NULL, flood_with_nops, &hf.c), 0);
    for (uint64_t tag = 1; tag <= 20; tag++) {
        struct glmw_entry e = raw_request(&hf.honest, tag);
        uint32_t tokens;

        raw_submit(&hf.honest, &e);
        ck_assert_int_eq(raw_until_end(&hf.honest, tag, &tokens), 0);
        ck_assert_uint_eq(tokens, 10);
    }
    stop_flood = true;
    pthread_join(t, NULL);
    ck_assert_uint_gt(hf.c.sq.head, 1000); /* it was served too */
    raw_close(&hf.c);
}
END_TEST

/* Nobody reads the answers: the socket fills, the daemon goes on. It may end the connection for the flood. */
START_TEST(pings_nobody_reads) {
    struct hello_msg m = {.type = GLMW_PKT_PING, .u.ping = {"1234567"}};
    uint8_t packet[GLMW_PACKET_MAX];
    int n, r = 0, sent = 0;

    raw_open(&hf.c, hf.f.socket, NULL);
    n = hello_encode(&m, packet, sizeof packet);
    for (int i = 0; i < 20000 && (r == 0 || r == -EAGAIN); i++) {
        r = seqsock_send(hf.c.fd, packet, (size_t)n, NULL, 0);
        sent += r == 0;
    }
    ck_assert_msg(r == 0 || r == -EAGAIN || r == -EPIPE, "%d", r);
    ck_assert_int_gt(sent, 64);
    raw_close(&hf.c);
}
END_TEST

/* ---- descriptors -----------------------------------------------------------------------------------------
 */

/* One packet with any number of descriptors, beyond what our own sender allows. */
static void send_fds(int fd, const void *packet, size_t len, const int *fds, size_t n) {
    static _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)];
    struct iovec iov = {.iov_base = (void *)(uintptr_t)packet, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control};
    struct cmsghdr *c;

    msg.msg_controllen = CMSG_SPACE(sizeof(int) * n);
    c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * n);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    ck_assert_msg(sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)len, "%s", strerror(errno));
}

enum { KINDS = 8 };

static int make_fd(int kind) {
    switch (kind) {
    case 0:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 1:
        return open("/etc", O_PATH | O_CLOEXEC);
    case 2:
        return memfd_create("x", MFD_CLOEXEC);
    case 3:
        return epoll_create1(EPOLL_CLOEXEC);
    case 4:
        return dup(hf.c.fd); /* the connection itself */
    case 5:
        return dup(hf.c.fds[GLMW_FD_BELL]);
    case 6:
        return dup(hf.c.fds[GLMW_FD_U]);
    default:
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
}

/* Descriptors of every kind, with packets that have none, in any number: all are closed (the fixture counts),
 * and the connection ends, or goes on where the packet says that it may be skipped. */
START_TEST(unasked_descriptors_are_closed) {
    static const size_t count[] = {1, 4, 5, 253};
    struct {
        struct glmw_packet_hdr h;
        uint8_t body[8];
    } ping = {{GLMW_MAGIC_PACKET, GLMW_PKT_PING, 0, 8, 0}, {0}},
      unknown = {{GLMW_MAGIC_PACKET, 99, GLMW_PKTF_IGNORABLE, 8, 0}, {0}};
    struct hello_msg m;
    /* an emulator that translates control data loses descriptors that do not fit its own buffer */
    const size_t counts = getenv("GLMD_EMULATED") ? 3 : sizeof count / sizeof count[0];
    int fds[253];

    for (size_t k = 0; k < counts; k++) {
        raw_open(&hf.c, hf.f.socket, NULL);
        for (size_t i = 0; i < count[k]; i++)
            ck_assert_int_ge(fds[i] = make_fd((int)i % KINDS), 0);
        send_fds(hf.c.fd, &ping, sizeof ping, fds, count[k]);
        for (size_t i = 0; i < count[k]; i++)
            close(fds[i]);
        ck_assert_int_eq(raw_expect_close(hf.c.fd), -EPROTO);
        raw_close(&hf.c);
        daemonfix_expect_resources(&hf.f, hf.before);
    }
    raw_open(&hf.c, hf.f.socket, NULL);
    for (int k = 0; k < KINDS; k++) {
        for (int i = 0; i < 4; i++)
            ck_assert_int_ge(fds[i] = make_fd((k + i) % KINDS), 0);
        send_fds(hf.c.fd, &unknown, sizeof unknown, fds, 4);
        for (int i = 0; i < 4; i++)
            close(fds[i]);
    }
    m = (struct hello_msg){.type = GLMW_PKT_PING, .u.ping = {"abcdefg"}};
    raw_send(hf.c.fd, &m, NULL, 0);
    raw_expect(hf.c.fd, HELLO_CLIENT_OPEN, GLMW_PKT_PONG, &m);
    raw_close(&hf.c);
}
END_TEST

/* All 120 orders in which the five descriptors of a connection can go, with a stream on it. None is a fault:
 * the user is as welcome afterwards as before. */
START_TEST(descriptors_close_in_every_order) {
    uint32_t seen = 0;

    for (uint32_t code = 0; code < 3125; code++) {
        uint32_t mask = 0, order[5];

        for (uint32_t i = 0, x = code; i < 5; i++, x /= 5)
            mask |= 1u << (order[i] = x % 5);
        if (mask != 31)
            continue;
        seen++;
        raw_open(&hf.c, hf.f.socket, NULL);
        struct glmw_entry e = hostilefix_request(&hf.c, 1, HOSTILE_ENDLESS);
        glmw_arm(&hf.c.tq, 1);
        raw_submit(&hf.c, &e);
        for (uint32_t i = 0; i < 5; i++) {
            close(order[i] == 4 ? hf.c.fd : hf.c.fds[order[i]]);
            if (seen & 1)
                usleep(seen * 7 % 400);
        }
        shm_view_done(&hf.c.view);
        if (seen % 4 == 0) /* at most so many connections at once */
            daemonfix_expect_resources(&hf.f, hf.before);
    }
    ck_assert_uint_eq(seen, 120);
    ck_assert_ptr_null(strstr(daemonfix_log(&hf.f), "refused"));
    ck_assert_ptr_null(strstr(daemonfix_log(&hf.f), "<4>"));
}
END_TEST

START_TEST(half_closed_sockets) {
    static const int how[] = {SHUT_WR, SHUT_RDWR, SHUT_RD};

    for (int k = 0; k < 3; k++) {
        struct hello_msg m = {.type = GLMW_PKT_PING};
        struct glmw_entry e;
        uint32_t tokens;

        raw_open(&hf.c, hf.f.socket, NULL);
        e = k == 2 ? raw_request(&hf.c, 1) : hostilefix_request(&hf.c, 1, HOSTILE_ENDLESS);
        ck_assert_int_eq(shutdown(hf.c.fd, how[k]), 0);
        raw_submit(&hf.c, &e);
        if (k == 2) { /* what it does not hear is its own affair */
            raw_send(hf.c.fd, &m, NULL, 0);
            ck_assert_int_eq(raw_until_end(&hf.c, 1, &tokens), 0);
            ck_assert_uint_eq(tokens, 10);
        } else {
            ck_assert_int_eq(raw_expect_close(hf.c.fd), 0);
        }
        raw_close(&hf.c);
        daemonfix_expect_resources(&hf.f, hf.before);
    }
}
END_TEST

/* ---- the log ---------------------------------------------------------------------------------------------
 */

static uint32_t lines_with(const char *log, const char *text) {
    uint32_t n = 0;

    for (; (log = strstr(log, text)) != NULL; log += strlen(text))
        n++;
    return n;
}

/* Every way to be refused, hundreds of times: each kind of fault is named with its rule and the user, the
 * lines are as many as a user is allowed, and nothing that the client said is among them. */
START_TEST(floods_of_faults_are_few_lines) {
    static const char secret[] = "Zanzibar-Xylophon";
    const char *log;
    uint32_t lines;
    char uid[40];

    for (int i = 0; i < 300; i++) {
        struct hello_msg m = raw_hello();
        uint8_t packet[GLMW_PACKET_MAX] = {0};
        int fd = raw_socket(hf.f.socket), n;

        switch (i % 3) {
        case 0:
            snprintf((char *)m.u.hello.name, sizeof m.u.hello.name, "%s", secret);
            m.u.hello.wire_min = m.u.hello.wire_max = 77;
            n = hello_encode(&m, packet, sizeof packet);
            ck_assert_int_gt(n, 0);
            seqsock_send(fd, packet, (size_t)n, NULL, 0);
            break;
        case 1:
            seqsock_send(fd, secret, sizeof secret, NULL, 0);
            break;
        default:
            seqsock_send(fd, packet, 0x20, NULL, 0);
        }
        raw_expect_close(fd);
        close(fd);
        if (i == 3) { /* before the user is refused */
            struct glmw_entry e;

            raw_open(&hf.c, hf.f.socket, NULL);
            e = raw_request(&hf.c, 1);
            memcpy((uint8_t *)hf.c.view.u + hf.c.welcome.pay_off + 8, secret, 12);
            raw_submit(&hf.c, &e);
            ck_assert_int_lt(raw_until_end(&hf.c, 1, NULL), 0);
            memcpy(&e, secret, sizeof secret);
            e.opcode = 99;
            raw_submit(&hf.c, &e);
            hostilefix_cut_off("a submission entry with an unknown operation");
        }
    }
    log = daemonfix_log(&hf.f);
    lines = lines_with(log, "\n");
    /* start, the user's bucket of notices, that of debug lines, and the line about the refusal */
    ck_assert_msg(lines > 12 && lines <= 2 * LOG_RATE_BURST + 8, "%u lines", lines);
    ck_assert_ptr_null(strstr(log, "Zanzibar"));
    ck_assert_ptr_null(strstr(log, "Xylophon"));
    snprintf(uid, sizeof uid, " uid=%u\n", (unsigned)getuid());
    ck_assert_ptr_nonnull(strstr(log, "user refused for a minute"));
    /* every warning says whose it is */
    for (const char *l = log; (l = strstr(l, "<4>")) != NULL; l++) {
        const char *end = strchr(l, '\n');

        ck_assert_ptr_nonnull(end);
        ck_assert_msg((size_t)(end - l) > strlen(uid) && memcmp(end + 1 - strlen(uid), uid, strlen(uid)) == 0,
                      "%.*s", (int)(end - l), l);
    }
}
END_TEST

/* Root can be several users: one of them is refused, and only that one. */
START_TEST(a_refused_user_is_refused_alone) {
    struct hello_msg m;
    int status, fd;
    pid_t p;

    ck_assert_int_eq(chmod(hf.f.dir, 0755), 0);
    ck_assert_int_eq(chmod(hf.f.socket, 0666), 0);
    p = fork();
    ck_assert_int_ge(p, 0);
    if (p == 0) {
        if (setgid(31000) < 0 || setuid(31000) < 0)
            _exit(2);
        for (int i = 0; i < 10; i++) {
            fd = raw_socket(hf.f.socket);
            if (send(fd, "nonsense", 8, MSG_NOSIGNAL) != 8 || raw_expect_close(fd) != -EPROTO)
                _exit(3);
            close(fd);
        }
        fd = raw_socket(hf.f.socket);
        raw_expect(fd, HELLO_CLIENT_FIRST, GLMW_PKT_REJECT, &m);
        _exit(m.u.reject.error == -EACCES ? 0 : 4);
    }
    ck_assert_int_eq(waitpid(p, &status, 0), p);
    ck_assert_int_eq(status, 0);
    raw_open(&hf.c, hf.f.socket, NULL);
    struct glmw_entry e = raw_request(&hf.c, 1);
    raw_submit(&hf.c, &e);
    ck_assert_int_eq(raw_until_end(&hf.c, 1, NULL), 0);
    raw_close(&hf.c);
    daemonfix_expect_log(&hf.f, "user refused for a minute after repeated protocol faults conn=");
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&hf.f), "uid=31000"));
}
END_TEST

static void add_tests(TCase *tc) {
    tcase_add_test(tc, bells_cost_their_sender);
    tcase_add_test(tc, entries_without_end_stop_nobody);
    tcase_add_test(tc, pings_nobody_reads);
    tcase_add_test(tc, unasked_descriptors_are_closed);
    tcase_add_test(tc, descriptors_close_in_every_order);
    tcase_add_test(tc, half_closed_sockets);
    tcase_add_test(tc, floods_of_faults_are_few_lines);
    if (geteuid() == 0)
        tcase_add_test(tc, a_refused_user_is_refused_alone);
}

int main(void) {
    Suite *s = suite_create("conn_floods");
    SRunner *sr;
    int failed;

    hostilefix_cases(s, add_tests);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
