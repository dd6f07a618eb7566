/* SPDX-License-Identifier: MIT */
/* glmd: start-up order and tear-down. The loop runs before the model is loaded, so that clients can connect,
 * queue requests and ask for the state at once. This thread is the io thread. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "busguard.h"
#include "daemon.h"
#include "log.h"
#include "synthetic.h"

/* ---- what rooms that do not know each other say to each other -------------------------------------------
 */

static void hook_kick(void *ctx) {
    struct engine *e = atomic_load_explicit(&((struct daemon *)ctx)->engine, memory_order_acquire);

    if (e)
        engine_kick(e);
}

static void hook_cancel(void *ctx, struct stream_id id) {
    struct engine *e = atomic_load_explicit(&((struct daemon *)ctx)->engine, memory_order_acquire);

    /* before there is an engine every request still waits in prep's queue and is taken back there */
    if (e)
        engine_cancel(e, id);
}

static void hook_wake_io(void *ctx) {
    server_wake(((struct daemon *)ctx)->server);
}

static int hook_submit(void *ctx, struct sched_req *req) {
    struct engine *e = atomic_load_explicit(&((struct daemon *)ctx)->engine, memory_order_acquire);

    return e ? engine_submit(e, req) : -ESHUTDOWN;
}

static uint32_t hook_retry_ms(void *ctx) {
    struct engine *e = atomic_load_explicit(&((struct daemon *)ctx)->engine, memory_order_acquire);
    struct engine_stats st = {0};

    if (e)
        engine_get_stats(e, &st);
    return st.retry_ms;
}

static void hook_bind(void *ctx, const struct prep_req *r) {
    struct emit_bind b = {
        .tools = r->tools,
        .stop = r->stop,
        .thinking_open = r->thinking_open,
        .ignore_eos = r->sched.ignore_eos,
        .n_alts = r->sched.sampling.n_alts,
    };

    emit_stream_bind(((struct daemon *)ctx)->emit, r->stream, &b);
}

static void hook_done(void *ctx, struct prep_req *r, enum prep_outcome outcome) {
    server_prepared(((struct daemon *)ctx)->server, r, outcome);
}

/* A descriptor of ours must never get the number that log lines are written to, nor one that a library takes
 * for its standard input. */
static int fill_standard_fds(void) {
    int fd;

    do {
        fd = open("/dev/null", O_RDWR);
        if (fd < 0)
            return -errno;
    } while (fd <= 2);
    close(fd);
    return 0;
}

/* Every connection takes four descriptors; the usual soft limit is meant for programs that use select(). */
static void raise_file_limit(void) {
    struct rlimit rl;

    if (getrlimit(RLIMIT_NOFILE, &rl) < 0 || rl.rlim_cur == rl.rlim_max)
        return;
    rl.rlim_cur = rl.rlim_max;
    setrlimit(RLIMIT_NOFILE, &rl);
}

/* ---- start ----------------------------------------------------------------------------------------------
 */

static int make_loop(struct daemon *d, struct xerr *err) {
    static const enum loop_want wants[] = {
        [CONF_IO_AUTO] = LOOP_AUTO, [CONF_IO_URING] = LOOP_URING, [CONF_IO_EPOLL] = LOOP_EPOLL};
    struct log_fields f = {.event = LOG_EV_IO_FALLBACK, .uid = LOG_NO_UID};
    int why = 0, r = loop_new(wants[d->conf.io_backend], &d->loop, &why);

    if (r < 0)
        return xerr_set(err, r, "[IPC] IOBackend=%s is not available: %s",
                        d->conf.io_backend == CONF_IO_URING ? "uring" : "epoll", strerror(-r));
    if (why)
        log_full(LOG_LEVEL_NOTICE, &f, NULL, "io_uring is not available (%s), using epoll", strerror(-why));
    return 0;
}

static int make_rooms(struct daemon *d, struct xerr *err) {
    struct emit_options eo = {
        .max_streams = d->conf.max_requests,
        .inline_conns = d->conf.inline_connections,
        .max_kept = d->conf.max_kept,
        .ctx = d,
        .kick = hook_kick,
        .wake_io = hook_wake_io,
        .cancel = hook_cancel,
    };
    struct prep_options po = {
        .workers = d->conf.text_workers,
        .hooks = {.ctx = d, .submit = hook_submit, .retry_ms = hook_retry_ms, .bind = hook_bind, .done = hook_done},
    };
    struct server_options so = {.loop = d->loop, .conf = &d->conf, .ctx = d, .cancel = hook_cancel};
    int r = emit_new(&eo, &d->emit);

    if (r == 0 && d->conf.remember_bytes)
        r = turns_new(d->conf.remember_bytes, d->conf.remember_bytes_per_uid, &d->turns);
    po.turns = d->turns;
    if (r == 0)
        r = prep_new(&po, &d->prep);
    so.emit = d->emit;
    so.prep = d->prep;
    if (r == 0)
        r = server_new(&so, &d->server);
    if (r == 0)
        r = emit_start(d->emit);
    if (r < 0)
        return xerr_set(err, r, "the daemon cannot be set up for %u requests: %s", d->conf.max_requests,
                        strerror(-r));
    return 0;
}

static int listen_somewhere(struct daemon *d, struct xerr *err) {
    int n = sd_listen_fds(1);
    bool has_fd = n == 1;

    if (n < 0)
        return xerr_set(err, n, "the sockets of the service manager cannot be taken: %s", strerror(-n));
    if (n > 1)
        return xerr_set(err, -EINVAL, "the service manager passed %d sockets, expected one", n);
    if (n == 1)
        n = server_listen_fd(d->server, SD_LISTEN_FDS_START, err);
    else
        n = server_listen_path(d->server, d->conf.socket_path, d->own_dir, d->conf.socket_group, err);
    /* a large model loads for minutes; who waits wants to know for what and where */
    if (n >= 0)
        log_notice("listening on %s, loading %s",
                   has_fd ? "the service manager's socket" : d->conf.socket_path, d->conf.model_path);
    return n;
}

/* What a typing error costs is one clear line, before anything is listened on or read. */
static int look_for_model(const char *path, struct xerr *err) {
    struct stat st;

    if (strncmp(path, "script:", 7) == 0 || model_is_synthetic(path))
        return 0;
    if (stat(path, &st) < 0)
        return xerr_set(err, -errno, "the checkpoint directory %s: %s; see --model and [Model] Path", path,
                        strerror(errno));
    if (!S_ISDIR(st.st_mode) && strlen(path) > 5 && strcmp(path + strlen(path) - 5, ".gguf") == 0)
        return xerr_set(err, -ENOTDIR,
                        "the checkpoint %s is no directory; --model and [Model] Path name the directory that a "
                        "GGUF model lies in, alone, in one file or in parts",
                        path);
    if (!S_ISDIR(st.st_mode))
        return xerr_set(err, -ENOTDIR,
                        "the checkpoint %s is no directory; --model and [Model] Path name the directory that "
                        "holds config.json, tokenizer.json and the weights",
                        path);
    return 0;
}

static int start(struct daemon *d, struct xerr *err) {
    int r;

    r = look_for_model(d->conf.model_path, err);
    if (r < 0)
        return r;
    /* a client may close its pipe at any time, and a file size limit must be an error, not a death */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    raise_file_limit();
    r = busguard_install();
    if (r < 0)
        return xerr_set(err, r, "no handler for SIGBUS: %s", strerror(-r));
    r = make_loop(d, err);
    if (r == 0)
        r = life_start(d, err);
    if (r == 0)
        r = make_rooms(d, err);
    if (r == 0)
        r = listen_somewhere(d, err);
    if (r == 0) {
        r = loader_start(d);
        if (r < 0)
            xerr_set(err, r, "no thread for the engine: %s", strerror(-r));
    }
    return r;
}

static void tear_down(struct daemon *d) {
    if (d->has_thread)
        pthread_join(d->engine_thread, NULL);
    if (d->emit)
        emit_stop(d->emit);
    d->prep = prep_free(d->prep);
    d->turns = turns_free(d->turns);
    if (d->server)
        life_done(d);
    d->server = server_free(d->server);
    loader_done(d);
    d->emit = emit_free(d->emit);
    d->loop = loop_free(d->loop);
    if (d->signal_fd >= 0)
        close(d->signal_fd);
    conf_done(&d->conf);
}

int main(int argc, char **argv) {
    static struct daemon d = {.signal_fd = -1};
    struct xerr err = {0};
    int r;

    r = fill_standard_fds();
    log_init(2, NULL);
    if (r < 0) {
        log_error("/dev/null cannot be opened: %s",
                  strerror(-r)); /* into the void when descriptor 2 is missing */
        return 1;
    }
    r = options_parse(&d, argc, argv);
    if (r != 0)
        return r > 0 ? 0 : 2;
    r = options_load_conf(&d, &d.conf, &err);
    if (r < 0) {
        log_error("%s", err.msg);
        conf_done(&d.conf);
        return 2;
    }
    log_set_level((enum log_level)d.conf.log_level);
    if (!d.conf.model_path[0]) {
        log_error("no model is named; give --model DIR, or set [Model] Path in the configuration");
        conf_done(&d.conf);
        return 2;
    }
    if (d.plan) {
        r = look_for_model(d.conf.model_path, &err);
        if (r == 0)
            r = plan_print(&d, d.json, &err);
        if (r < 0)
            log_error("%s", err.msg);
        loader_done(&d);
        conf_done(&d.conf);
        return r < 0;
    }
    r = start(&d, &err);
    if (r < 0) {
        log_error("%s", err.msg);
        d.exit_code = 1;
    } else {
        r = loop_run(d.loop);
        if (r < 0) {
            log_error("the event loop failed: %s", strerror(-r));
            _exit(1); /* the engine cannot be told any more; the service manager starts afresh */
        }
    }
    tear_down(&d);
    return d.exit_code;
}
