/* SPDX-License-Identifier: MIT */
/* wake: from a record that is visible to the client's code running with it, the client asleep in poll() for 5 ms;
 * beside it the same with a pipe, a Unix socket and TCP loopback that carry 64 bytes. Sender and receiver are
 * processes on cores of their own, one receiver waits for all four, and the ways take turns message by message.
 * Ours is measured to the event in the client's hands, the others to the bytes in its buffer.
 *
 * A line to read, without a bar: the scheduler and the idle states of the machine are most of it. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "benchipc.h"
#include "fakedaemon.h"

enum { MESSAGES = 400, OTHERS = 3, WAYS = OTHERS + 1, BYTES = 64 };
#define GAP_NS UINT64_C(5000000)

struct shared {
    int client_fd;          /* of the handshake */
    int rx[OTHERS], tx[OTHERS]; /* pipe, Unix socket, TCP */
    _Atomic uint32_t count[WAYS];
    double us[WAYS][MESSAGES];
};
static const char *const name[WAYS] = {"ring", "pipe", "unix", "tcp"};

static void note(struct shared *sh, int way, uint64_t sent_ns) {
    uint32_t n = atomic_load(&sh->count[way]);

    if (n < MESSAGES)
        sh->us[way][n] = (double)(bench_now_ns() - sent_ns) / 1e3;
    atomic_store(&sh->count[way], n + 1);
}

static int read_ring(struct shared *sh, glmd_conn *c) {
    struct glmd_event ev = {.size = sizeof ev};
    int r = glmd_dispatch(c);

    while (r >= 0 && (r = glmd_next(c, &ev)) == 1) {
        if (ev.type == GLMD_EV_TOKEN)
            note(sh, 0, ev.t_sampled_ns);
        if (ev.type == GLMD_EV_END)
            return 1;
    }
    return r;
}

static int receive(struct shared *sh, glmd_conn *c) {
    struct pollfd p[WAYS] = {{.fd = glmd_get_fd(c), .events = POLLIN}};
    uint64_t tag, msg[BYTES / 8];
    glmd_req *q;
    int r = glmd_req_new(c, &q);

    if (r < 0 || (r = glmd_req_message(q, GLMD_ROLE_USER, "x", 1)) < 0 || (r = glmd_submit(c, q, &tag)) < 0 ||
        (r = read_ring(sh, c)) < 0)
        return r;
    for (int i = 0; i < OTHERS; i++)
        p[i + 1] = (struct pollfd){.fd = sh->rx[i], .events = POLLIN};
    for (;;) {
        if (poll(p, WAYS, 10000) <= 0)
            return -ETIMEDOUT;
        if (p[0].revents && (r = read_ring(sh, c)) != 0)
            return r < 0 ? r : 0;
        for (int i = 0; i < OTHERS; i++) {
            if (!p[i + 1].revents)
                continue;
            if (read(sh->rx[i], msg, sizeof msg) != (ssize_t)sizeof msg)
                return -EPIPE;
            note(sh, i + 1, msg[0]);
        }
    }
}

static int client(void *arg) {
    struct shared *sh = arg;
    struct glmd_options opt = {.size = sizeof opt};
    glmd_conn *c;
    int r = glmd_connect_fd(sh->client_fd, &opt, &c);

    if (r < 0)
        return r;
    r = receive(sh, c);
    if (r < 0)
        fprintf(stderr, "wake: the client: %s\n", glmd_strerror(r));
    glmd_close(c);
    return r;
}

static int open_others(struct shared *sh) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int pair[2], listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    if (pipe2(pair, O_CLOEXEC) < 0)
        return -errno;
    sh->rx[0] = pair[0];
    sh->tx[0] = pair[1];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    sh->rx[1] = pair[0];
    sh->tx[1] = pair[1];
    sh->tx[2] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || sh->tx[2] < 0 || bind(listener, (struct sockaddr *)&a, sizeof a) < 0 ||
        listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&a, &len) < 0 ||
        connect(sh->tx[2], (struct sockaddr *)&a, sizeof a) < 0 ||
        (sh->rx[2] = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0 ||
        setsockopt(sh->tx[2], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
        return -errno;
    close(listener);
    return 0;
}

static int send_all(struct shared *sh, struct fake *f, uint64_t tag) {
    uint64_t msg[BYTES / 8] = {0};

    fake_accept(f, tag);
    fake_flush(f, true);
    for (int i = 0; i < MESSAGES; i++) {
        for (int way = 0; way < WAYS; way++) {
            bench_sleep_ns(GAP_NS);
            if (way == 0) {
                struct glmw_rec r = fake_rec(f, GLMW_REC_TOKEN, tag);

                r.t_ns = bench_now_ns();
                glmw_refresh(&f->tq);
                glmw_put(&f->tq, &r);
                if (bell_publish(&f->tq, f->bell.pipe_w, false, &f->counts) < 0)
                    return -EPIPE;
                continue;
            }
            msg[0] = bench_now_ns();
            if (write(sh->tx[way - 1], msg, sizeof msg) != (ssize_t)sizeof msg)
                return -EPIPE;
        }
    }
    bench_sleep_ns(GAP_NS);
    fake_end(f, tag, 0, GLMW_END_LENGTH);
    fake_flush(f, true);
    return 0;
}

static int run(void) {
    struct shared *sh = bench_shared(sizeof *sh);
    struct fake f;
    struct glmw_entry e;
    uint64_t until = bench_now_ns() + UINT64_C(10000000000);
    pid_t pid;
    int r;

    if (!sh || open_others(sh) < 0)
        return 2;
    fake_open(&f, NULL, &sh->client_fd);
    pid = bench_child(client, sh, BENCH_RECEIVER);
    bench_pin(BENCH_SENDER);
    while (!fake_pop(&f, &e) && bench_now_ns() < until)
        bench_sleep_ns(1000000);
    r = send_all(sh, &f, e.tag);
    if (bench_child_end(pid) < 0 || r < 0)
        return 2;
    fake_close(&f);
    for (int way = 0; way < WAYS; way++) {
        uint32_t n = atomic_load(&sh->count[way]);

        if (n != MESSAGES) {
            fprintf(stderr, "wake: %s: %u messages of %d arrived\n", name[way], n, MESSAGES);
            return 2;
        }
        printf("wake %s p50 %.1f us p99 %.1f us\n", name[way], bench_percentile(sh->us[way], n, 50),
               bench_percentile(sh->us[way], n, 99));
    }
    return 0;
}

int main(void) {
    bench_step_forward();
    return bench_with_check(run);
}
