/* SPDX-License-Identifier: MIT */
/* glmctl: ask the daemon from a terminal or a script.  Chooses the command; each lives in a file of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl.h"

static const char *const usage =
    "usage: glmctl COMMAND [OPTIONS]\n\n"
    "  run PROMPT   ask once\n"
    "  chat         a conversation\n"
    "  resume ID    go on with an answer that run --keep began\n"
    "  status       what the daemon is doing\n"
    "  top          the same, live: memory, queue, shares of users, prefix cache\n"
    "  probe        whether the model writes whole characters in other scripts\n\n"
    "glmctl COMMAND --help lists the options of a command; glmctl --version shows the version.\n"
    "Exit status: 0 done, 1 the request failed, 2 wrong usage, 3 no daemon, 4 the daemon went away,\n"
    "5 output could not be written, 130 cancelled.\n";

void ctl_err(const char *fmt, ...) {
    char line[1024];
    struct ctl_buf b = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    /* the line may quote the daemon, a file name or an argument */
    ctl_buf_str(&b, "glmctl: ");
    ctl_text_tty(&b, line, strlen(line));
    ctl_buf_str(&b, "\n");
    if (!b.failed)
        fwrite(b.p, 1, b.len, stderr);
    ctl_buf_done(&b);
}

/* 0 is the daemon's default, which is right for all but long prompts. */
static uint32_t payload_log2(size_t request_bytes) {
    uint32_t n = 20;
    while (n < 26 && ((size_t)1 << n) < request_bytes + 65536)
        n++;
    return n == 20 ? 0 : n;
}

int ctl_connect(const struct ctl_args *a, size_t request_bytes, glmd_conn **ret) {
    static const char name[] = "glmctl";
    char error[512] = "";
    struct glmd_options o = {.size = sizeof o,
                             .client_name = name,
                             .client_name_len = sizeof name - 1,
                             .error = error,
                             .error_bytes = sizeof error,
                             .payload_log2 = payload_log2(request_bytes),
                             .features = a->ask};
    if (a->socket) {
        o.socket_path = a->socket;
        o.socket_path_len = strlen(a->socket);
    }
    int r = glmd_connect(&o, ret);
    if (r < 0) {
        ctl_err("%s", error[0] ? error : glmd_strerror(r));
        return CTL_EXIT_NO_DAEMON;
    }
    return 0;
}

/* What the file itself lacks is the caller's mistake and said here; what the library refuses is returned. */
static int set_schema(glmd_req *q, const char *path, int *ret_error) {
    char *text = NULL;
    size_t len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC), r = fd < 0 ? -errno : 0;
    if (r == 0)
        r = ctl_read_all(fd, (size_t)1 << 20, &text, &len);
    if (fd >= 0)
        close(fd);
    if (r < 0 || !len) {
        free(text);
        ctl_err("--schema %s: %s", path, r < 0 ? glmd_strerror(r) : "the file is empty, expected a JSON schema");
        return CTL_EXIT_USAGE;
    }
    *ret_error = glmd_req_set_str(q, GLMD_KEY_SCHEMA, text, len);
    free(text);
    return 0;
}

/* Numbers out of range are all that the library refuses of a value. */
static int not_set(const struct ctl_set *s, int r) {
    bool from_1 = s->key == GLMD_KEY_MAX_TOKENS || s->key == GLMD_KEY_DEADLINE_MS;
    if (r == -ERANGE && s->key < GLMD_KEY_TEMPERATURE) {
        ctl_err("--%s %s: expected a whole number from %d to %" PRIu32, s->option, s->text ? s->text : "", from_1,
                UINT32_MAX);
        return CTL_EXIT_USAGE;
    }
    ctl_err("--%s%s%s cannot be sent: %s", s->option, s->text ? " " : "", s->text ? s->text : "",
            glmd_strerror(r));
    return CTL_EXIT_REQUEST;
}

int ctl_request(glmd_conn *c, const struct ctl_args *a, glmd_req **ret) {
    glmd_req *q;
    int r = glmd_req_new(c, &q), e = 0;
    for (unsigned i = 0; r >= 0 && i < a->n_set; i++) {
        const struct ctl_set *s = &a->set[i];
        if (s->key == GLMD_KEY_SCHEMA)
            e = set_schema(q, s->str, &r);
        else if (s->str)
            r = glmd_req_set_str(q, s->key, s->str, strlen(s->str));
        else if (s->key >= GLMD_KEY_TEMPERATURE)
            r = glmd_req_set_f64(q, s->key, s->f64);
        else
            r = glmd_req_set_u64(q, s->key, s->u64);
        if (r < 0)
            e = not_set(s, r);
        if (e) {
            glmd_req_free(q);
            return e;
        }
    }
    if (r < 0) {
        ctl_err("no request: %s", glmd_strerror(r));
        return CTL_EXIT_OUTPUT;
    }
    *ret = q;
    return 0;
}

void ctl_await(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, -1) < 0 && errno == EINTR) {
    }
}

int ctl_read_all(int fd, size_t max_bytes, char **ret_text, size_t *ret_len) {
    struct ctl_buf b = {0};
    char piece[16384];
    int r = 0;
    for (;;) {
        ctl_await(fd);
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            r = -errno;
            break;
        }
        if (n == 0)
            break;
        ctl_buf_add(&b, piece, (size_t)n);
        if (b.failed || b.len > max_bytes) {
            r = b.failed ? -ENOMEM : -EMSGSIZE;
            break;
        }
    }
    if (r < 0) {
        ctl_buf_done(&b);
        return r;
    }
    *ret_text = b.p;
    *ret_len = b.len;
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int cmd;
        int (*fn)(const struct ctl_args *);
    } commands[] = {{"run", CTL_RUN, ctl_run},
                    {"chat", CTL_CHAT, ctl_chat},
                    {"resume", CTL_RESUME, ctl_resume},
                    {"status", CTL_STATUS, ctl_status},
                    {"top", CTL_TOP, ctl_top},
                    {"probe", CTL_PROBE, ctl_probe}};
    struct ctl_args a;
    if (argc < 2) {
        fputs(usage, stderr);
        return CTL_EXIT_USAGE;
    }
    bool help = !strcmp(argv[1], "help");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || (help && argc == 2)) {
        fputs(usage, stdout);
        return CTL_EXIT_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("glmctl %s\n", GLMD_VERSION);
        return CTL_EXIT_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1 + help], commands[i].name))
            continue;
        if (help) {
            ctl_args_help(commands[i].cmd);
            return CTL_EXIT_OK;
        }
        int r = ctl_args_parse(commands[i].cmd, argc - 2, argv + 2, &a);
        if (r)
            return r;
        if (a.help) {
            ctl_args_help(commands[i].cmd);
            return CTL_EXIT_OK;
        }
        return commands[i].fn(&a);
    }
    if (argv[1][0] == '-') {
        ctl_err("%s: options follow the command: glmctl run|chat|resume|status|top|probe %s ...", argv[1], argv[1]);
        return CTL_EXIT_USAGE;
    }
    ctl_err("no command \"%s\": run, chat, resume, status, top or probe; glmctl --help says more", argv[1 + help]);
    return CTL_EXIT_USAGE;
}
