/* SPDX-License-Identifier: MIT */
/* The yardstick of cpu-vs-sse: what a server that streams chat tokens over HTTP must at least do for each of
 * them, and its reader. Nothing is computed, formatted, parsed or copied; a real server and a real reader do
 * all of that on top. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "benchipc.h"

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

int bench_sse_sender(void *streams) {
    struct bench_streams *s = streams;
    char frame[BENCH_SSE_BYTES];
    int fd[BENCH_MAX_STREAMS], one = 1;
    uint64_t next;

    make_frame(frame);
    for (uint32_t i = 0; i < s->n && s->listener >= 0; i++)
        if ((fd[i] = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC)) < 0 ||
            setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
            return -errno;
    next = bench_now_ns();
    while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        struct timespec ts;

        next += BENCH_STEP_NS;
        ts = (struct timespec){.tv_sec = (time_t)(next / 1000000000u), .tv_nsec = (long)(next % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
        if (s->listener < 0)
            atomic_fetch_add(&s->tokens, s->n);
        for (uint32_t i = 0; i < s->n && s->listener >= 0; i++)
            if (write(fd[i], frame, sizeof frame) != (ssize_t)sizeof frame)
                return -errno;
    }
    return 0;
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
        struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

        if (e.data.fd < 0 || connect(e.data.fd, (struct sockaddr *)&a, sizeof a) < 0 ||
            epoll_ctl(ep, EPOLL_CTL_ADD, e.data.fd, &e) < 0)
            return -errno;
    }
    while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        int n = epoll_wait(ep, ev, BENCH_MAX_STREAMS, 1000);

        for (int i = 0; i < n; i++) {
            ssize_t got;

            do { /* edge-triggered: a buffer that was not filled says that there is no more */
                got = read(ev[i].data.fd, buf, sizeof buf);
                if (got == 0) /* the sender has stopped */
                    return atomic_load(&s->stop) ? 0 : -EPIPE;
                if (got < 0 || got % BENCH_SSE_BYTES || memcmp(buf, "data: ", 6) != 0 ||
                    memcmp(buf + got - 3, "}\n\n", 3) != 0)
                    return -EBADMSG;
                tokens += (uint64_t)got / BENCH_SSE_BYTES;
            } while (got == (ssize_t)sizeof buf);
        }
        atomic_store_explicit(&s->tokens, tokens, memory_order_relaxed);
    }
    return 0;
}
