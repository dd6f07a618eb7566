/* SPDX-License-Identifier: MIT */
#include "benchlib.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "glmd.h"

uint64_t bench_now_ns(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_median(double *v, size_t n) {
    if (n == 0)
        return 0.0 / 0.0;
    qsort(v, n, sizeof *v, by_value);
    return n & 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double bench_quartile(double *v, size_t n) {
    if (n == 0)
        return 0.0 / 0.0;
    qsort(v, n, sizeof *v, by_value);
    return v[n / 4];
}

int bench_handicap(void) {
    const char *s = getenv("BENCH_HANDICAP");

    return s && strcmp(s, "1") == 0;
}

int bench_verdict(const char *name, double figure, const char *unit, double bar, enum bench_sense sense) {
    /* a figure that is not a number never holds */
    int holds = sense == BENCH_AT_MOST ? figure <= bar : figure >= bar;

    printf("%s %.3f %s bar %s %.3f %s %s\n", name, figure, unit, sense == BENCH_AT_MOST ? "<=" : ">=", bar, unit,
           holds ? "holds" : "misses");
    fflush(stdout);
    return !holds;
}

void bench_step_forward(void) {
    (void)setpriority(PRIO_PROCESS, 0, -15);
}

static int is_named(const char *names, const char *name, size_t n) {
    for (const char *at = names; (at = strstr(at, name)); at += n)
        if ((at == names || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return 1;
    return 0;
}

/* What the child prints: its notes, and of its verdicts those that are wished. Returns how many of these came. */
static int show_named(FILE *in, const char *lines) {
    char line[512], name[64];
    int n = 0;

    while (fgets(line, sizeof line, in)) {
        int verdict = line[0] != '#' && sscanf(line, "%63s", name) == 1;

        if (verdict && !is_named(lines, name, strlen(name)))
            continue;
        n += verdict;
        fputs(line, stdout);
    }
    return n;
}

static int handicapped(int (*run)(void), const struct bench_handicap *h) {
    int fds[2], status = 0, wished = 1, came;
    FILE *in;
    pid_t pid;

    printf("# with %s\n", h->fault);
    fflush(stdout);
    if (pipe(fds) < 0 || (pid = fork()) < 0)
        return 2;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        setenv("GLMD_FAULT", h->fault, 1);
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        close(fds[1]);
        exit(run());
    }
    close(fds[1]);
    in = fdopen(fds[0], "r");
    came = in ? show_named(in, h->lines) : 0;
    if (in)
        fclose(in);
    waitpid(pid, &status, 0);
    for (const char *at = h->lines; (at = strchr(at, ' ')); at++)
        wished++;
    if (came != wished)
        fprintf(stderr, "with %s: %d of the lines \"%s\"\n", h->fault, came, h->lines);
    return came == wished && WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

int bench_main(int (*run)(void), const struct bench_handicap *h, size_t n) {
    const char *only = getenv("GLMD_FAULT");
    int worst = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!bench_handicap())
        return run();
    for (size_t i = 0; i < n; i++) {
        int r = only && strcmp(only, h[i].fault) != 0 ? 0 : handicapped(run, &h[i]);

        worst = r > worst ? r : worst;
    }
    return worst;
}

static int write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    int r = f && fputs(text, f) >= 0 ? 0 : -errno;

    if (f && fclose(f) != 0)
        r = -errno;
    return r;
}

/* Ready when a connection says so; a daemon that exits first is reported with its log. */
static int await_ready(struct bench_daemon *d) {
    struct glmd_options opt = {.size = sizeof opt};

    opt.socket_path = d->socket;
    opt.socket_path_len = strlen(d->socket);
    for (int i = 0; i < 600; i++) {
        struct timespec ts = {.tv_nsec = 50000000};
        struct glmd_info info = {.size = sizeof info};
        glmd_conn *c;
        int ready = 0;

        if (glmd_connect(&opt, &c) == 0) {
            ready = glmd_get_info(c, &info) == 0 && info.state == GLMD_STATE_READY;
            glmd_close(c);
        }
        if (ready)
            return 0;
        if (waitpid(d->pid, NULL, WNOHANG) == d->pid) {
            d->pid = 0;
            return -ECHILD;
        }
        nanosleep(&ts, NULL);
    }
    return -ETIMEDOUT;
}

int bench_daemon_start(struct bench_daemon *d, const char *model, const char *fault, const char *conf) {
    const char *build = getenv("GLMD_BUILD");
    char exe[256], conf_path[96], log_path[96];
    int r;

    memset(d, 0, sizeof *d);
    snprintf(d->dir, sizeof d->dir, "/tmp/glmd-bench.XXXXXX");
    if (!mkdtemp(d->dir))
        return -errno;
    snprintf(d->socket, sizeof d->socket, "%s/s", d->dir);
    snprintf(conf_path, sizeof conf_path, "%s/glmd.conf", d->dir);
    snprintf(log_path, sizeof log_path, "%s/log", d->dir);
    snprintf(exe, sizeof exe, "%s%s/glmd", build ? build : "build", bench_handicap() ? "-fault" : "");
    r = write_file(conf_path, conf ? conf : "");
    if (r < 0)
        goto fail;
    d->pid = fork();
    if (d->pid < 0) {
        r = -errno;
        goto fail;
    }
    if (d->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* a bench that is killed leaves no daemon behind */
        bench_step_forward();
        if (bench_handicap())
            setenv("GLMD_FAULT", fault, 1);
        if (!freopen(log_path, "w", stderr))
            _exit(126);
        execl(exe, exe, "--model", model, "--socket", d->socket, "--config", conf_path, "--context", "4096", NULL);
        _exit(127);
    }
    r = await_ready(d);
    if (r == 0)
        return 0;
fail:
    fprintf(stderr, "%s: not ready: %s; its log:\n", exe, strerror(-r));
    FILE *f = fopen(log_path, "r");
    for (int ch; f && (ch = getc(f)) != EOF;)
        putc(ch, stderr);
    if (f)
        fclose(f);
    bench_daemon_stop(d);
    return r;
}

void bench_daemon_stop(struct bench_daemon *d) {
    const char *names[] = {"glmd.conf", "log", "s", "s.lock"};
    char path[128];

    if (d->pid > 0) {
        kill(d->pid, SIGTERM);
        waitpid(d->pid, NULL, 0);
        d->pid = 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", d->dir, names[i]);
        unlink(path);
    }
    rmdir(d->dir);
}
