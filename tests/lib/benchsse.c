/* SPDX-License-Identifier: MIT */
/* The yardstick of cpu-vs-sse: what a server that streams chat tokens over HTTP must at least do for each of
 * them, and its reader. Nothing is formatted, parsed or copied; a real server and a real reader do all of that on
 * top. And the least that anything does which wakes its reader. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "benchipc.h"
#include "stream_event.h"

enum { BUFFER = 16 << 10 };

/* A chat token as such servers send it, 256 bytes on the wire. */
static void make_frame(char frame[BENCH_SSE_BYTES]) {
    static const char head[] = "data: {\"id\":\"chatcmpl-5f0c27a1b9e84d36\",\"object\":\"chat.completion.chunk\","
                               "\"created\":1764500000,\"model\":\"glm\",\"choices\":[{\"index\":0,"
                               "\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]";

    memset(frame, ' ', BENCH_SSE_BYTES);
    memcpy(frame, head, sizeof head - 1);
    memcpy(frame + BENCH_SSE_BYTES - 3, "}\n\n", 3);
}

int bench_sse_listen(struct bench_streams *s) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    if (s->n > BENCH_MAX_STREAMS)
        return -EINVAL;
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&a, sizeof a) < 0 || listen(s->listener, 64) < 0)
        return -errno;
    return 0;
}

static char frame[BENCH_SSE_BYTES];
static int to[BENCH_MAX_STREAMS];

static int write_frames(struct bench_streams *s, const struct stream_event *ev, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (ev[i].type != STREAM_EV_TOKEN)
            continue;
        if (ev[i].stream.index >= s->n)
            return -EPROTO;
        if (write(to[ev[i].stream.index], frame, sizeof frame) != (ssize_t)sizeof frame)
            return -errno;
    }
    return 0;
}

int bench_sse_sender(void *streams) {
    struct bench_streams *s = streams;
    int one = 1;

    make_frame(frame);
    for (uint32_t i = 0; i < s->n; i++)
        if ((to[i] = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC)) < 0 ||
            setsockopt(to[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
            return -errno;
    return bench_streams_engine(s, write_frames);
}

int bench_sse_receiver(void *streams) {
    struct bench_streams *s = streams;
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    struct epoll_event ev[BENCH_MAX_STREAMS];
    static char buf[BUFFER];
    uint64_t tokens = 0;
    int ep = epoll_create1(EPOLL_CLOEXEC);

    if (ep < 0 || getsockname(s->listener, (struct sockaddr *)&a, &len) < 0)
        return -errno;
    for (uint32_t i = 0; i < s->n; i++) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET,
                                .data.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

        if (e.data.fd < 0 || connect(e.data.fd, (struct sockaddr *)&a, sizeof a) < 0 ||
            epoll_ctl(ep, EPOLL_CTL_ADD, e.data.fd, &e) < 0)
            return -errno;
    }
    for (;;) {
        int n = epoll_wait(ep, ev, BENCH_MAX_STREAMS, -1);

        for (int i = 0; i < n; i++) {
            ssize_t got;

            do { /* edge-triggered: a buffer that was not filled says that there is no more but the end */
                got = read(ev[i].data.fd, buf, sizeof buf);
                if (got == 0) /* the sender has stopped */
                    return atomic_load(&s->stop) ? 0 : -EPIPE;
                if (got < 0 || got % BENCH_SSE_BYTES || memcmp(buf, "data: ", 6) != 0 ||
                    memcmp(buf + got - 3, "}\n\n", 3) != 0)
                    return -EBADMSG;
                tokens += (uint64_t)got / BENCH_SSE_BYTES;
            } while (got == (ssize_t)sizeof buf || (ev[i].events & EPOLLRDHUP));
        }
        atomic_store_explicit(&s->tokens, tokens, memory_order_relaxed);
    }
}

/* ---- the bare wake ---- */

int bench_bare_open(struct bench_streams *s) {
    return pipe2(s->pipe, O_CLOEXEC) < 0 ? -errno : 0;
}

static int write_byte(struct bench_streams *s, const struct stream_event *ev, uint32_t n) {
    (void)ev;
    (void)n;
    return write(s->pipe[1], "", 1) == 1 ? 0 : -errno;
}

int bench_bare_sender(void *streams) {
    return bench_streams_engine(streams, write_byte);
}

int bench_bare_receiver(void *streams) {
    struct bench_streams *s = streams;
    static char buf[BUFFER];
    ssize_t got;

    close(s->pipe[1]);
    while ((got = read(s->pipe[0], buf, sizeof buf)) > 0)
        atomic_fetch_add_explicit(&s->tokens, (uint64_t)got * s->n, memory_order_relaxed);
    return got == 0 && atomic_load(&s->stop) ? 0 : -EPIPE;
}
