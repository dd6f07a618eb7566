/* SPDX-License-Identifier: MIT */
/* The command line, and configuration files beneath it. Starting thread, and the io thread on a reload. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon.h"
#include "log.h"
#include "smaller.h"
#include "synthetic.h"
#include "traps.h"

static const char usage[] =
    "Usage: glmd [OPTION]...\n"
    "Keeps a language model resident and serves local programs through shared memory.\n"
    "\n"
    "  --model DIR|script:FILE  checkpoint to serve, or a scripted model; or synthetic:SHAPE, random\n"
    "                           weights of a published shape, to measure a machine with\n"
    "  --socket PATH            listening socket\n"
    "  --config FILE            read FILE and FILE.d/*.conf instead of the system's configuration\n"
    "  --backend NAME           cpu, cuda or ref\n"
    "  --threads N              compute threads, 0 = one per processor\n"
    "  --ranks N                shares the model is cut into, each with its part of the threads\n"
    "  --context N              longest prompt plus answer in tokens, 0 = the model's\n"
    "  --io-backend NAME        auto, uring or epoll\n"
    "  --log-level NAME         error, warning, notice, info or debug\n"
    "  --foreground             stay in the foreground (the default; nothing else exists)\n"
    "  --plan [--json]          print what the checkpoint holds and what memory it takes, and exit\n"
    "  --check-config           print the merged configuration with its origins and exit\n"
    "  --print-default-config   print a configuration file with every key and exit\n"
    "  --print-config-man       print the list of keys for the manual page and exit\n"
    "  --help, --version\n"
    "\n"
    "SIGTERM and SIGINT let running requests finish (a second one does not), SIGHUP reads the\n"
    "configuration again. Exit status: 0 stopped as asked, 1 failed, 2 wrong options or configuration.\n"
    "See glmd(8) and glmd.conf(5).\n";

enum {
    OPT_MODEL = 256,
    OPT_SOCKET,
    OPT_CONFIG,
    OPT_BACKEND,
    OPT_THREADS,
    OPT_RANKS,
    OPT_CONTEXT,
    OPT_IO,
    OPT_LEVEL,
    OPT_FOREGROUND,
    OPT_CHECK,
    OPT_PLAN,
    OPT_JSON,
    OPT_PRINT_DEFAULT,
    OPT_PRINT_MAN,
    OPT_HELP,
    OPT_VERSION
};

static const struct option options[] = {
    {"model", required_argument, NULL, OPT_MODEL},
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"config", required_argument, NULL, OPT_CONFIG},
    {"backend", required_argument, NULL, OPT_BACKEND},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"ranks", required_argument, NULL, OPT_RANKS},
    {"context", required_argument, NULL, OPT_CONTEXT},
    {"io-backend", required_argument, NULL, OPT_IO},
    {"log-level", required_argument, NULL, OPT_LEVEL},
    {"foreground", no_argument, NULL, OPT_FOREGROUND},
    {"plan", no_argument, NULL, OPT_PLAN},
    {"json", no_argument, NULL, OPT_JSON},
    {"check-config", no_argument, NULL, OPT_CHECK},
    {"print-default-config", no_argument, NULL, OPT_PRINT_DEFAULT},
    {"print-config-man", no_argument, NULL, OPT_PRINT_MAN},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static void add_override(struct daemon *d, const char *section, const char *key, const char *origin,
                         const char *value) {
    struct override *o = &d->overrides[d->n_overrides++];

    o->section = section;
    o->key = key;
    o->origin = origin;
    snprintf(o->value, sizeof o->value, "%s", value);
}

static int wrong(const char *text) {
    fprintf(stderr, "glmd: %s\nTry 'glmd --help'.\n", text);
    return -EINVAL;
}

/* A second value behind a first one is a mistake somewhere, and must not quietly win. */
static int check_once(uint32_t *given, int opt) {
    uint32_t bit = 1u << (opt - OPT_MODEL);
    char text[80] = "";

    if (*given & bit && !FAULT(option_last_wins)) {
        for (const struct option *o = options; o->name; o++)
            if (o->val == opt)
                snprintf(text, sizeof text, "option --%s is there twice; give it once", o->name);
        return wrong(text);
    }
    *given |= bit;
    return 0;
}

static int no_directory(const char *path, int error) {
    fprintf(stderr,
            "glmd: %s cannot be followed, because the current directory has no name: %s; give a path that "
            "begins with /\n",
            path, strerror(error));
    return -EINVAL;
}

/* Paths on the command line are meant from where the user stands. */
static int add_path(struct daemon *d, const char *section, const char *key, const char *origin,
                    const char *prefix, const char *path) {
    char cwd[CONF_PATH_MAX], value[2 * CONF_PATH_MAX + 16];

    if (path[0] == '/' || !path[0]) /* an empty one is refused as such, not taken for the current directory */
        snprintf(value, sizeof value, "%s%s", prefix, path);
    else if (!getcwd(cwd, sizeof cwd))
        return no_directory(path, errno);
    else
        snprintf(value, sizeof value, "%s%s/%s", prefix, cwd, path);
    if (strlen(value) >= CONF_PATH_MAX)
        return wrong("a path on the command line is too long");
    add_override(d, section, key, origin, value);
    return 0;
}

/* Words that the room of models knows: their sentences, behind the place they stand at. */
static int check_words(const struct conf *c, struct xerr *err) {
    struct xerr why = {0};
    char where[CONF_PATH_MAX + 16];
    const char *key = "Convert";
    int r = FAULT(conf_words_unseen) ? 0 : model_smaller_words(c->convert, c->allow_four_bit_dense == 1, &why);

    if (r == 0) {
        key = "AllowLowPrecision";
        r = model_allowed_words(c->allow_low_precision, &why);
    }
    return r < 0 ? xerr_set(err, r, "%s: %s", conf_where(c, "Model", key, where, sizeof where), why.msg) : 0;
}

int options_load_conf(struct daemon *d, struct conf *ret, struct xerr *err) {
    const char *run = getenv("XDG_RUNTIME_DIR");
    int r;

    conf_init(ret);
    /* an ordinary user cannot write to /run; a file or an option still wins */
    if (geteuid() != 0 && run && run[0] == '/')
        snprintf(ret->socket_path, sizeof ret->socket_path, "%.900s/glmd/glmd.sock", run);
    snprintf(d->own_dir, sizeof d->own_dir, "%s", ret->socket_path);
    *strrchr(d->own_dir, '/') = 0;
    r = conf_load(ret, d->conf_file, err);
    for (uint32_t i = 0; i < d->n_overrides && r == 0; i++)
        r = conf_set(ret, d->overrides[i].section, d->overrides[i].key, d->overrides[i].value,
                     d->overrides[i].origin, err);
    if (r == 0)
        r = conf_check(ret, err);
    return r < 0 ? r : check_words(ret, err);
}

static int check_config(struct daemon *d) {
    struct xerr err = {0};

    if (options_load_conf(d, &d->conf, &err) < 0) {
        fprintf(stderr, "glmd: %s\n", err.msg);
        return -EINVAL;
    }
    conf_print_merged(&d->conf, stdout);
    return fflush(stdout) == 0 ? 1 : -EIO;
}

static int set_option(struct daemon *d, int opt) {
    if (d->n_overrides == MAX_OVERRIDES)
        return wrong("too many options");
    switch (opt) {
    case OPT_MODEL:
        if (strncmp(optarg, "script:", 7) == 0)
            return add_path(d, "Model", "Path", "--model", "script:", optarg + 7);
        if (model_is_synthetic(optarg)) {
            add_override(d, "Model", "Path", "--model", optarg);
            return 0;
        }
        return add_path(d, "Model", "Path", "--model", "", optarg);
    case OPT_SOCKET:
        return add_path(d, "IPC", "Socket", "--socket", "", optarg);
    case OPT_CONFIG:
        d->conf_file = optarg;
        return 0;
    case OPT_BACKEND:
        add_override(d, "Model", "Backend", "--backend", optarg);
        return 0;
    case OPT_THREADS:
        add_override(d, "Model", "Threads", "--threads", optarg);
        return 0;
    case OPT_RANKS:
        add_override(d, "Model", "Ranks", "--ranks", optarg);
        return 0;
    case OPT_CONTEXT:
        add_override(d, "Model", "ContextTokens", "--context", optarg);
        return 0;
    case OPT_IO:
        add_override(d, "IPC", "IOBackend", "--io-backend", optarg);
        return 0;
    case OPT_LEVEL:
        add_override(d, "Service", "LogLevel", "--log-level", optarg);
        return 0;
    default:
        return 0;
    }
}

int options_parse(struct daemon *d, int argc, char **argv) {
    uint32_t given = 0;
    char text[160];
    bool check = false;
    int opt, r;

    while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (opt) {
        case 'h':
        case OPT_HELP:
            fputs(usage, stdout);
            return fflush(stdout) == 0 ? 1 : -EIO;
        case OPT_VERSION:
            puts("glmd " GLMD_VERSION);
            return fflush(stdout) == 0 ? 1 : -EIO;
        case OPT_PRINT_DEFAULT:
            conf_print_default(stdout);
            return fflush(stdout) == 0 ? 1 : -EIO;
        case OPT_PRINT_MAN:
            conf_print_mdoc(stdout);
            return fflush(stdout) == 0 ? 1 : -EIO;
        case OPT_CHECK:
            check = true;
            break;
        case OPT_PLAN:
            d->plan = true;
            break;
        case OPT_JSON:
            d->json = true;
            break;
        case OPT_FOREGROUND:
            break;
        case '?':
            fputs("Try 'glmd --help'.\n", stderr);
            return -EINVAL;
        default:
            r = check_once(&given, opt);
            if (r == 0)
                r = set_option(d, opt);
            if (r < 0)
                return r;
        }
    }
    if (optind < argc) {
        snprintf(text, sizeof text, "unexpected argument \"%.60s\": every setting is an option, as in --model DIR",
                 argv[optind]);
        return wrong(text);
    }
    if (d->json && !d->plan)
        return wrong("--json is a form of --plan: give both");
    return check ? check_config(d) : 0;
}
