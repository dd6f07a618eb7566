/* SPDX-License-Identifier: MIT */
/* Child programs with their output; see runprog.h.  Test processes only. */
#include "runprog.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define MAX_ARGS 64

static void start_child(const char *const *argv, const char *const *env, bool native) {
    char *full[MAX_ARGS];
    char run[512];
    int n = 0;
    const char *how = native ? NULL : getenv("GLMD_TEST_RUN");
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; env && env[i]; i++) {
        const char *eq = strchr(env[i], '=');
        char *name = strndup(env[i], (size_t)(eq - env[i]));
        setenv(name, eq + 1, 1);
        free(name);
    }
    if (how) {
        strncpy(run, how, sizeof run - 1);
        run[sizeof run - 1] = 0;
        for (char *w = strtok(run, " "); w && n < MAX_ARGS / 2; w = strtok(NULL, " "))
            full[n++] = w;
    }
    for (int i = 0; argv[i] && n < MAX_ARGS - 1; i++)
        full[n++] = (char *)(size_t)argv[i];
    full[n] = NULL;
    execvp(full[0], full);
    _exit(127);
}

static void start_pipes(struct runprog *p, const char *const *argv, const char *const *env, bool native) {
    int in[2], out[2], err[2];
    ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(err, O_CLOEXEC), 0);
    p->pid = fork();
    ck_assert_int_ge(p->pid, 0);
    if (p->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        start_child(argv, env, native);
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    p->in = in[1];
    p->out = out[0];
    p->err = err[0];
}

static void start_tty(struct runprog *p, const char *const *argv, const char *const *env, bool native) {
    int master;
    struct termios t;
    p->pid = forkpty(&master, NULL, NULL, NULL);
    ck_assert_int_ge(p->pid, 0);
    if (p->pid == 0) {
        tcgetattr(0, &t);
        t.c_lflag &= ~(tcflag_t)ECHO;
        t.c_oflag &= ~(tcflag_t)OPOST;
        tcsetattr(0, TCSANOW, &t);
        start_child(argv, env, native);
    }
    fcntl(master, F_SETFD, FD_CLOEXEC);
    p->in = p->out = master;
    p->err = -1;
}

void runprog_start(struct runprog *p, const char *const *argv, const char *const *env, bool native,
                   bool tty) {
    memset(p, 0, sizeof *p);
    if (tty)
        start_tty(p, argv, env, native);
    else
        start_pipes(p, argv, env, native);
}

static void take(int *fd, int keep_open, char *text, size_t *len, size_t cap) {
    ssize_t n = read(*fd, text + *len, cap - 1 - *len);
    if (n < 0 && errno == EINTR)
        return;
    if (n <= 0) { /* a terminal whose program ended reads as EIO */
        if (!keep_open)
            close(*fd);
        *fd = -1;
        return;
    }
    *len += (size_t)n;
    text[*len] = 0;
    ck_assert_msg(*len < cap - 1, "the program printed more than %zu bytes", cap);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* One look at both outputs.  False: both have ended. */
static bool pump(struct runprog *p, int timeout_ms) {
    struct pollfd f[2] = {{.fd = p->out, .events = POLLIN}, {.fd = p->err, .events = POLLIN}};
    if (p->out < 0 && p->err < 0)
        return false;
    if (poll(f, 2, timeout_ms) <= 0)
        return true;
    if (f[0].revents)
        take(&p->out, p->in == f[0].fd, p->out_text, &p->out_len, sizeof p->out_text);
    if (f[1].revents)
        take(&p->err, 0, p->err_text, &p->err_len, sizeof p->err_text);
    return true;
}

void runprog_expect(struct runprog *p, const char *text) {
    int64_t until = now_ms() + 60000;
    while (!strstr(p->out_text, text)) {
        ck_assert_msg(now_ms() < until && pump(p, 100), "\"%s\" did not come; output so far: %s / %s", text,
                      p->out_text, p->err_text);
    }
}

void runprog_type(struct runprog *p, const char *text) {
    ck_assert_int_eq((int)write(p->in, text, strlen(text)), (int)strlen(text));
}

int runprog_finish(struct runprog *p) {
    int status, tty = p->in >= 0 && p->in == p->out;
    if (!tty && p->in >= 0)
        close(p->in);
    if (!tty)
        p->in = -1;
    int64_t until = now_ms() + 60000;
    while (pump(p, 1000)) {
        if (now_ms() < until)
            continue;
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &status, 0);
        ck_abort_msg("the program did not end; output so far: %s / %s", p->out_text, p->err_text);
    }
    if (p->in >= 0)
        close(p->in);
    p->in = -1;
    ck_assert_int_eq(waitpid(p->pid, &status, 0), p->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int runprog(struct runprog *p, const char *const *argv, const char *const *env, bool native,
            const char *input) {
    runprog_start(p, argv, env, native, false);
    if (input)
        runprog_type(p, input);
    return runprog_finish(p);
}
