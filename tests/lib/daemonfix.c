/* SPDX-License-Identifier: MIT */
/* Starts, watches and stops a real daemon for tests, and collects what a client receives. */
#include "daemonfix.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t test_now_ms(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void nap_ms(long ms) {
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&ts, NULL);
}

const char *daemonfix_models(void) {
    static char path[PATH_MAX]; /* what realpath() may write */
    const char *dir = getenv("GLMD_MODELS");

    dir = dir && *dir ? dir : "build/models";
    return realpath(dir, path) ? path : dir;
}

int daemonfix_loops(void) {
    return getenv("GLMD_EMULATED") ? 1 : 2;
}

void daemonfix_init(struct daemonfix *f) {
    memset(f, 0, sizeof *f);
    f->file_limit = -1;
    f->listen_fd = -1;
    snprintf(f->dir, sizeof f->dir, "/tmp/glmd-test-XXXXXX");
    ck_assert_msg(mkdtemp(f->dir) != NULL, "no temporary directory: %s", strerror(errno));
    snprintf(f->socket, sizeof f->socket, "%s/glmd.sock", f->dir);
    snprintf(f->log, sizeof f->log, "%s/log", f->dir);
    snprintf(f->conf, sizeof f->conf, "%s/glmd.conf", f->dir);
    snprintf(f->script, sizeof f->script, "%s/model.script", f->dir);
}

static void write_file(const char *path, const char *head, const char *text) {
    FILE *o = fopen(path, "we");

    ck_assert_msg(o != NULL, "%s: %s", path, strerror(errno));
    fputs(head, o);
    fputs(text, o);
    ck_assert_int_eq(fclose(o), 0);
}

void daemonfix_script(struct daemonfix *f, const char *text) {
    write_file(f->script, "glmd-script 1\n", text);
    snprintf(f->model, sizeof f->model, "script:%s", f->script);
}

static void run_child(const struct daemonfix *f) {
    const char *emulator = getenv("GLMD_TEST_RUN");
    static char words[1024];
    char *argv[32], *save = NULL;
    int n = 0, fd = open(f->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const char *const fixed[] = {f->fail[0] ? TEST_BUILD "/test/glmd-fail" : TEST_BUILD "/test/glmd",
                                 "--model",
                                 f->model,
                                 "--socket",
                                 f->socket,
                                 "--config",
                                 f->conf,
                                 "--log-level",
                                 f->level[0] ? f->level : "debug"};

    snprintf(words, sizeof words, "%s", emulator ? emulator : "");
    for (char *w = strtok_r(words, " ", &save); w && n < 8; w = strtok_r(NULL, " ", &save))
        argv[n++] = w;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        argv[n++] = (char *)(uintptr_t)fixed[i];
    if (fd < 0 || dup2(fd, 2) < 0 || dup2(fd, 1) < 0)
        _exit(97);
    if (f->backend[0]) {
        argv[n++] = "--io-backend";
        argv[n++] = (char *)(uintptr_t)f->backend;
    }
    argv[n] = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (f->file_limit >= 0) {
        struct rlimit rl = {(rlim_t)f->file_limit, (rlim_t)f->file_limit};

        setrlimit(RLIMIT_FSIZE, &rl);
    }
    if (f->uid && (setgid(f->uid) < 0 || setuid(f->uid) < 0))
        _exit(96);
    if (f->fail[0])
        setenv("GLMD_FAIL", f->fail, 1);
    if (f->notify[0])
        setenv("NOTIFY_SOCKET", f->notify, 1);
    if (f->listen_fd >= 0) {
        char pid[32];

        snprintf(pid, sizeof pid, "%d", (int)getpid());
        setenv("LISTEN_PID", pid, 1);
        setenv("LISTEN_FDS", "1", 1);
        if (dup2(f->listen_fd, 3) < 0)
            _exit(95);
    }
    for (int i = 0; f->no_stdio && i < 3; i++)
        close(i);
    execv(argv[0], argv);
    _exit(98);
}

void daemonfix_spawn(struct daemonfix *f, const char *conf) {
    write_file(f->conf, "[Memory]\nKeepFreeBytes=0\n", conf ? conf : "");
    f->pid = fork();
    ck_assert_int_ge(f->pid, 0);
    if (f->pid == 0)
        run_child(f);
}

/* The last lines, for failure messages. */
static const char *log_end(const struct daemonfix *f) {
    const char *log = daemonfix_log(f);
    size_t n = strlen(log);

    return n > 600 ? log + n - 600 : log;
}

void daemonfix_start(struct daemonfix *f, const char *conf) {
    uint64_t until = test_now_ms() + 60000;
    int status;

    daemonfix_spawn(f, conf);
    while (!strstr(daemonfix_log(f), "ready after")) {
        if (waitpid(f->pid, &status, WNOHANG) == f->pid) {
            f->pid = 0;
            ck_abort_msg("the daemon ended instead of becoming ready: %s", log_end(f));
        }
        ck_assert_msg(test_now_ms() < until, "the daemon does not become ready: %s", log_end(f));
        nap_ms(5);
    }
}

int daemonfix_wait(struct daemonfix *f, int timeout_ms) {
    uint64_t until = test_now_ms() + (uint64_t)timeout_ms;
    int status;

    while (waitpid(f->pid, &status, WNOHANG) != f->pid) {
        if (test_now_ms() > until) {
            kill(f->pid, SIGKILL);
            waitpid(f->pid, &status, 0);
            f->pid = 0;
            ck_abort_msg("the daemon does not end: %s", log_end(f));
        }
        nap_ms(5);
    }
    f->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void daemonfix_stop(struct daemonfix *f) {
    int r;

    kill(f->pid, SIGTERM);
    r = daemonfix_wait(f, 30000);
    ck_assert_msg(r == 0, "the daemon ended with %d: %s", r, log_end(f));
    ck_assert_msg(!strstr(daemonfix_log(f), "<3>stopped:"), "requests were lost: %s", log_end(f));
}

void daemonfix_done(struct daemonfix *f) {
    DIR *d = opendir(f->dir);
    struct dirent *e;

    ck_assert_int_eq(f->pid, 0);
    while (d && (e = readdir(d))) {
        char path[400];

        snprintf(path, sizeof path, "%s/%s", f->dir, e->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    ck_assert_msg(rmdir(f->dir) == 0, "%s: %s", f->dir, strerror(errno));
}

const char *daemonfix_log(const struct daemonfix *f) {
    static char text[1 << 20];
    FILE *o = fopen(f->log, "re");
    size_t n = o ? fread(text, 1, sizeof text - 1, o) : 0;

    text[n] = 0;
    if (o)
        fclose(o);
    return text;
}

void daemonfix_expect_log(const struct daemonfix *f, const char *text) {
    uint64_t until = test_now_ms() + 60000;

    while (!strstr(daemonfix_log(f), text)) {
        ck_assert_msg(test_now_ms() < until, "the log never said \"%s\": %s", text, log_end(f));
        nap_ms(5);
    }
}

int daemonfix_resources(const struct daemonfix *f) {
    char path[64];
    struct dirent *e;
    int n = 0, pid;
    DIR *d;
    FILE *o;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)f->pid);
    d = opendir(path);
    ck_assert_msg(d != NULL, "%s: %s", path, strerror(errno));
    while ((e = readdir(d)))
        if (e->d_name[0] != '.')
            n++;
    closedir(d);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)f->pid, (int)f->pid);
    o = fopen(path, "re");
    while (o && fscanf(o, "%d", &pid) == 1)
        n++;
    if (o)
        fclose(o);
    return n;
}

void daemonfix_expect_resources(const struct daemonfix *f, int want) {
    uint64_t until = test_now_ms() + 60000;
    int have;

    while ((have = daemonfix_resources(f)) != want) {
        ck_assert_msg(test_now_ms() < until, "descriptors and children of the daemon: %d before, %d after",
                      want, have);
        nap_ms(10);
    }
}

glmd_conn *daemonfix_connect(const struct daemonfix *f, const struct glmd_options *opt) {
    struct glmd_options o = {.size = sizeof o};
    char error[300] = "";
    glmd_conn *c = NULL;
    int r;

    if (opt)
        o = *opt;
    o.socket_path = f->socket;
    o.socket_path_len = strlen(f->socket);
    o.error = error;
    o.error_bytes = sizeof error;
    r = glmd_connect(&o, &c);
    ck_assert_msg(r == 0, "connect: %d %s", r, error);
    return c;
}

static void append(char *to, size_t cap, size_t *n, const struct glmd_event *ev) {
    ck_assert_uint_lt(*n + ev->text_len, cap);
    memcpy(to + *n, ev->text, ev->text_len);
    *n += ev->text_len;
    to[*n] = 0;
}

static void take_text(struct answer *a, const struct glmd_event *ev) {
    switch (ev->channel) {
    case GLMD_CHANNEL_REASONING:
        append(a->reasoning, sizeof a->reasoning, &a->n_reasoning, ev);
        break;
    case GLMD_CHANNEL_TOOL_NAME:
        append(a->name, sizeof a->name, &a->n_name, ev);
        break;
    case GLMD_CHANNEL_TOOL_ARGUMENTS:
        append(a->args, sizeof a->args, &a->n_args, ev);
        break;
    default:
        append(a->content, sizeof a->content, &a->n_content, ev);
    }
}

void answer_take(struct answer *a, size_t n, const struct glmd_event *ev) {
    for (size_t i = 0; i < n; i++, a++) {
        if (a->tag != ev->tag)
            continue;
        ck_assert_msg(!a->ended, "an event after END: type %u", ev->type);
        ck_assert_msg(ev->seq >= a->next_seq, "seq %u after %u", ev->seq, a->next_seq);
        a->next_seq = ev->seq + 1;
        switch (ev->type) {
        case GLMD_EV_ACCEPTED:
            ck_assert_uint_eq(ev->seq, 0);
            a->accepted = true;
            break;
        case GLMD_EV_PROGRESS:
            a->n_progress++;
            break;
        case GLMD_EV_TOKEN:
            if (ev->token != GLMD_NO_TOKEN) {
                ck_assert_uint_lt(a->n_tokens, 4096);
                a->tokens[a->n_tokens++] = ev->token;
            }
            take_text(a, ev);
            break;
        case GLMD_EV_TEXT:
            take_text(a, ev);
            break;
        case GLMD_EV_IDS:
            ck_assert_uint_le(a->n_tokens + ev->n_ids, 4096);
            memcpy(a->tokens + a->n_tokens, ev->ids, ev->n_ids * sizeof *ev->ids);
            a->n_tokens += ev->n_ids;
            break;
        case GLMD_EV_TOOL:
            a->n_tools++;
            break;
        case GLMD_EV_ERROR:
            snprintf(a->error, sizeof a->error, "%.*s", (int)ev->text_len, ev->text);
            break;
        case GLMD_EV_END:
            a->ended = true;
            a->status = ev->status;
            a->reason = ev->reason;
            if (ev->usage)
                memcpy(&a->usage, ev->usage, sizeof a->usage);
            break;
        default:
            break;
        }
        return;
    }
    ck_assert_msg(ev->tag == 0, "an event with an unknown tag %llu", (unsigned long long)ev->tag);
}

void answers_wait(glmd_conn *c, struct answer *a, size_t n, int timeout_ms) {
    uint64_t until = test_now_ms() + (uint64_t)timeout_ms;

    for (;;) {
        struct glmd_event ev = {.size = sizeof ev};
        size_t ended = 0;
        int r;

        while ((r = glmd_next(c, &ev)) == 1)
            answer_take(a, n, &ev);
        for (size_t i = 0; i < n; i++)
            ended += a[i].ended;
        if (ended == n)
            return;
        ck_assert_msg(r == 0, "the connection died: %d, %zu of %zu answers ended", r, ended, n);
        ck_assert_msg(test_now_ms() < until, "%zu of %zu answers ended in %d ms", ended, n, timeout_ms);
        r = glmd_wait(c, 100000000);
        ck_assert_msg(r >= 0 || r == -EINTR || r == -EPIPE, "wait: %d", r);
    }
}

void answer_submit(glmd_conn *c, struct answer *a, glmd_req *r) {
    int e;

    memset(a, 0, sizeof *a);
    e = glmd_submit(c, r, &a->tag);
    ck_assert_msg(e == 0, "submit: %d", e);
}

glmd_req *request_tokens(glmd_conn *c, const uint32_t *ids, size_t n) {
    glmd_req *r;

    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    ck_assert_int_eq(glmd_req_tokens(r, ids, n), 0);
    return r;
}

glmd_req *request_text(glmd_conn *c, const char *text) {
    glmd_req *r;

    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, text, strlen(text)), 0);
    return r;
}
