/* SPDX-License-Identifier: MIT */
/* libglmd in a program that has its own poll() loop.
 *
 * Asks one question and prints the answer; a line on standard input cancels it.  The connection is one more
 * descriptor in the loop.
 *
 *     cc -o poll poll.c $(pkg-config --cflags --libs glmd)
 *     ./poll "Why is the sky blue?"
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <glmd.h>

static int ask(glmd_conn *c, const char *question, uint64_t *ret_tag) {
    glmd_req *r;
    int e = glmd_req_new(c, &r);
    if (e < 0)
        return e;
    e = glmd_req_message(r, GLMD_ROLE_USER, question, strlen(question));
    if (e == 0)
        e = glmd_submit(c, r, ret_tag); /* takes r when it succeeds */
    if (e < 0)
        glmd_req_free(r);
    return e;
}

/* Everything that is there now.  1 when the answer is over, with its status in *ret_status. */
static int take_events(glmd_conn *c, int *ret_status) {
    struct glmd_event ev = {0};
    int r;
    ev.size = sizeof ev;
    while ((r = glmd_next(c, &ev)) == 1) {
        switch (ev.type) {
        case GLMD_EV_TOKEN:
        case GLMD_EV_TEXT:
            /* ev.text lies in memory shared with the daemon: use it now or copy it */
            if (ev.channel == GLMD_CHANNEL_CONTENT)
                fwrite(ev.text, 1, ev.text_len, stdout);
            break;
        case GLMD_EV_ERROR:
            fprintf(stderr, "%.*s\n", (int)ev.text_len, ev.text);
            break;
        case GLMD_EV_END:
            *ret_status = ev.status;
            return 1;
        default: /* new kinds of events may come: ignore what you do not know */
            break;
        }
    }
    fflush(stdout);
    if (r < 0) {
        *ret_status = r;
        return 1;
    }
    return 0;
}

static int run(glmd_conn *c, uint64_t tag) {
    struct pollfd fds[2];
    int status = 0, done = 0;
    fds[0].fd = glmd_get_fd(c);
    fds[0].events = POLLIN;
    fds[1].fd = STDIN_FILENO;
    fds[1].events = POLLIN;
    while (!done) {
        /* 1: safe to sleep.  0: events wait already, so only look at the other descriptors. */
        int timeout = glmd_prepare(c) == 1 ? -1 : 0;
        if (poll(fds, 2, timeout) < 0 && errno != EINTR)
            return -errno;
        if (fds[1].fd >= 0 && fds[1].revents) {
            char junk[256];
            if (read(STDIN_FILENO, junk, sizeof junk) > 0)
                glmd_cancel(c, tag); /* the END still comes, with -ECANCELED */
            fds[1].fd = -1;
        }
        if (timeout == 0 || fds[0].revents) {
            int r = glmd_dispatch(c); /* also gives back what earlier events pointed to */
            if (r < 0)
                return r;
            done = take_events(c, &status);
        }
    }
    return status;
}

int main(int argc, char **argv) {
    char error[256];
    struct glmd_options o = {0};
    glmd_conn *c;
    uint64_t tag;
    int r;
    if (argc != 2) {
        fprintf(stderr, "usage: poll QUESTION\n");
        return 2;
    }
    o.size = sizeof o;
    o.error = error;
    o.error_bytes = sizeof error;
    if (glmd_connect(&o, &c) < 0) {
        fprintf(stderr, "poll: %s\n", error);
        return 3;
    }
    r = ask(c, argv[1], &tag);
    if (r == 0)
        r = run(c, tag);
    if (r < 0)
        fprintf(stderr, "poll: %s\n", glmd_strerror(r));
    glmd_close(c);
    putchar('\n');
    return r < 0;
}
