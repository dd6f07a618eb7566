/* SPDX-License-Identifier: MIT */
/* The life of the daemon on the io thread: readiness, the one-second tick, signals, draining, the end. The
 * service manager is told through sd_notify, which does nothing without one. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "clock.h"
#include "daemon.h"
#include "log.h"
#include "wire.h"

static struct engine *get_engine(struct daemon *d) {
    return atomic_load_explicit(&d->engine, memory_order_acquire);
}

/* ---- the tick -------------------------------------------------------------------------------------------
 */

static uint32_t rate(uint32_t mean, uint64_t tokens, uint64_t ns) {
    double now = ns ? (double)tokens * 1e12 / (double)ns : 0.0;

    return (uint32_t)(0.7 * mean + 0.3 * (now < 4e9 ? now : 4e9));
}

/* The engine shows life by its own counter; a timer of ours would only prove that the io thread lives. */
static void feed_watchdog(const struct engine_stats *st, uint64_t now) {
    uint64_t limit_us = 0;

    if (sd_watchdog_enabled(0, &limit_us) <= 0)
        return;
    /* the engine may have shown life after `now` was read */
    if (st->asleep || st->heartbeat_ns >= now || now - st->heartbeat_ns < limit_us * CLOCK_NS_PER_US / 2)
        sd_notify(0, "WATCHDOG=1");
}

static void put_tier(const struct engine *e, struct numbers_tier *ret) {
    struct engine_tier t;

    engine_get_tier(e, &t);
    *ret = (struct numbers_tier){
        .state = !t.wanted  ? NUMBERS_TIER_NONE
                 : !t.on    ? NUMBERS_TIER_OFF
                 : t.stopped ? NUMBERS_TIER_READS
                             : NUMBERS_TIER_ON,
        .error = t.error, .blocks = t.blocks, .checkpoints = t.checkpoints, .foreign = t.foreign, .bytes = t.bytes,
        .max_bytes = t.max_bytes, .written = t.written, .read = t.read, .refused = t.refused, .damaged = t.damaged,
        .thrown_out = t.thrown_out };
    memcpy(ret->text, t.text, sizeof ret->text);
}

static void write_status(struct daemon *d, uint64_t now) {
    struct server_status s = {
        .start_ns = d->start_ns,
        .heartbeat_ns = now,
        .load_permille = atomic_load_explicit(&d->load_permille, memory_order_relaxed),
    };
    struct engine *e = get_engine(d);
    struct engine_stats st;

    if (e && d->ready) {
        engine_get_stats(e, &st);
        d->decode_mtok_s = rate(d->decode_mtok_s, st.sampled_tokens - d->last_decode, now - d->last_tick_ns);
        d->prefill_mtok_s =
            rate(d->prefill_mtok_s, st.prefill_tokens - d->last_prefill, now - d->last_tick_ns);
        d->last_decode = st.sampled_tokens;
        d->last_prefill = st.prefill_tokens;
        s.heartbeat_ns = st.asleep ? now : st.heartbeat_ns;
        s.kv_free_tokens = (uint64_t)st.free_pages * 256;
        s.kv_total_tokens = (uint64_t)d->info.n_pages * 256;
        s.tokens_out = st.sampled_tokens;
        s.budget_closes = (uint32_t)st.budget_closes; /* they begin anew at 2^32, as the wire says */
        s.loop_closes = (uint32_t)st.loop_closes;
        s.queued = st.queued;
        s.running = st.running;
        s.slots_free = st.free_slots;
        s.slots_total = d->info.n_slots;
        s.decode_mtok_s = d->decode_mtok_s;
        s.prefill_mtok_s = d->prefill_mtok_s;
        s.load_permille = 1000;
        feed_watchdog(&st, now);
    }
    d->last_tick_ns = now;
    server_write_status(d->server, &s);
    if (e && d->ready && engine_get_numbers(e, &d->numbers) == 0) {
        put_tier(e, &d->numbers.tier);
        server_write_numbers(d->server, &d->numbers);
    }
}

static void on_tick(void *ctx) {
    struct daemon *d = ctx;
    uint64_t now = clock_now_ns();

    if (!d->ready && !d->draining)
        sd_notifyf(0, "STATUS=Loading the model, %u%%\nEXTEND_TIMEOUT_USEC=30000000",
                   atomic_load_explicit(&d->load_permille, memory_order_relaxed) / 10);
    write_status(d, now);
    server_tick(d->server);
    /* the other is the handicap of `make bench-ipc` */
    loop_timer_set(d->tick, now + (FAULT(fast_tick) ? 200 * CLOCK_NS_PER_US : CLOCK_NS_PER_SEC));
}

/* ---- readiness ------------------------------------------------------------------------------------------
 */

/* What became of [Cache] Slots: an option that does nothing, or less than it says, is said. */
static void say_cache(const struct daemon *d) {
    uint32_t want = d->conf.cache_slots, got = d->info.cache_slots;
    unsigned long long mib = (unsigned long long)d->info.slot_bytes >> 20;

    if (!want)
        log_notice("prefix cache: off ([Cache] Slots=0): every prompt is read from its first token");
    else if (strncmp(d->conf.model_path, "script:", 7) == 0)
        log_notice("prefix cache: off: a scripted model has no state to keep");
    else if (got < want)
        log_warning("prefix cache: found memory for %u states of %llu MiB, expected %u as [Cache] Slots says; a "
                    "shorter [Model] ContextTokens or a smaller [Memory] KeepFreeBytes leaves more", got, mib, want);
    else
        log_notice("prefix cache: %u states of %llu MiB", got, mib);
}

/* Said for as long as it is so; the log has the reason. */
static const char *without_tier(struct daemon *d) {
    struct engine_tier t;

    engine_get_tier(get_engine(d), &t);
    return t.wanted && !t.on ? ", without its spill directory" : "";
}

static void become_ready(struct daemon *d) {
    struct log_fields f = {.event = LOG_EV_READY, .uid = LOG_NO_UID};
    char ranks[32] = "";
    struct server_model m = {
        .vocab_tokens = d->info.vocab_tokens,
        .context_tokens = d->info.context_tokens,
        .has_text = d->has_text,
    };

    memcpy(m.name, d->info.model_name, sizeof m.name);
    d->ready = true;
    d->ready_ns = clock_now_ns();
    prep_set_max_prompt(d->prep, d->conf.max_prompt_bytes); /* a reload may have come while loading */
    server_set_model(d->server, &m);
    if (d->draining)
        return;
    if (d->info.ranks > 1)
        snprintf(ranks, sizeof ranks, " in %u ranks", d->info.ranks);
    server_set_state(d->server, GLMW_STATE_READY);
    write_status(d, d->ready_ns);
    log_full(LOG_LEVEL_NOTICE, &f, NULL,
             "ready after %.1f s: %s on %s%s, context %u tokens, cache %s, %u sequences, loop %s",
             (double)(d->ready_ns - d->start_ns) / 1e9, d->info.model_name, d->info.backend, ranks,
             d->info.context_tokens, d->info.cache, d->info.max_seqs, loop_name(d->loop));
    say_cache(d);
    sd_notifyf(0, "READY=1\nSTATUS=Serving %s%s", d->info.model_name, without_tier(d));
}

/* ---- the end --------------------------------------------------------------------------------------------
 */

/* Loading cannot be interrupted and holds nothing that outlives the process, so an early end does not wait
 * for it. */
static _Noreturn void end_while_loading(struct daemon *d) {
    server_close_all(d->server);
    log_notice("stopped while loading");
    life_done(d);
    _exit(d->exit_code);
}

static void stop_engine(struct daemon *d) {
    struct engine *e = get_engine(d);

    if (d->stopping)
        return;
    d->stopping = true;
    server_drop_queued(d->server, -ESHUTDOWN, "the daemon is shutting down");
    /* without an engine nobody would end what is left: answers that their clients do not read */
    if (!e)
        end_while_loading(d);
    engine_stop(e, clock_now_ns());
}

static void on_drain_over(void *ctx) {
    struct daemon *d = ctx;

    if (!d->stopping)
        log_warning("drain time is over: %u requests are ended", server_live(d->server));
    stop_engine(d);
}

static void begin_drain(struct daemon *d) {
    struct log_fields f = {.event = LOG_EV_DRAINING, .uid = LOG_NO_UID};

    d->draining = true;
    log_full(LOG_LEVEL_NOTICE, &f, NULL, "draining: %u requests may go on for %u s", server_live(d->server),
             d->conf.drain_timeout_sec);
    sd_notifyf(0, "STOPPING=1\nSTATUS=Finishing %u requests", server_live(d->server));
    server_set_state(d->server, GLMW_STATE_DRAINING);
    write_status(d, clock_now_ns());
    server_stop_listening(d->server);
    loop_timer_set(d->drain, clock_now_ns() + d->conf.drain_timeout_sec * CLOCK_NS_PER_SEC + 1);
    if (!d->ready) /* nothing runs yet, and the queue would wait for a model that nobody will use */
        server_drop_queued(d->server, -ESHUTDOWN, "the daemon is shutting down");
}

/* After the engine thread has ended, or before it ever ran: the last words are in the rings, where clients
 * can read them after the socket is closed. */
static void finish(struct daemon *d) {
    if (!d->emit_stopped) {
        emit_stop(d->emit);
        d->emit_stopped = true;
    }
    server_stop_listening(d->server);
    server_close_all(d->server);
    if (server_is_empty(d->server)) {
        uint64_t accepted, ended;

        server_count(d->server, &accepted, &ended);
        log_full(accepted == ended ? LOG_LEVEL_NOTICE : LOG_LEVEL_ERROR, NULL, NULL,
                 "stopped: %" PRIu64 " requests accepted, %" PRIu64 " ended", accepted, ended);
        loop_stop(d->loop);
    }
}

static void load_failed(struct daemon *d) {
    log_error("%s", d->load_error.msg);
    sd_notifyf(0, "STATUS=%s\nERRNO=%d", d->load_error.msg, -d->load_error.code);
    d->exit_code = 1;
    server_set_state(d->server, GLMW_STATE_FAILED);
    server_drop_queued(d->server, -EIO, "the model could not be loaded; see the daemon's log");
}

static void engine_ended(struct daemon *d) {
    struct log_fields f = {.event = LOG_EV_DEVICE_LOST, .uid = LOG_NO_UID};

    if (d->engine_result < 0) {
        log_full(LOG_LEVEL_ERROR, &f, NULL, "the engine stopped: %s; all requests were ended",
                 strerror(-d->engine_result));
        d->exit_code = 1;
        server_set_state(d->server, GLMW_STATE_FAILED);
    }
    server_drop_queued(d->server, -ESHUTDOWN, "the daemon is shutting down");
}

bool life_turn(void *ctx) {
    struct daemon *d = ctx;
    bool more = server_turn(d->server);
    int phase = atomic_load_explicit(&d->phase, memory_order_acquire);

    if (phase != LOAD_RUNNING && !d->ready && phase != LOAD_FAILED)
        become_ready(d);
    if (phase == LOAD_FAILED && !d->stopping) {
        d->stopping = true;
        load_failed(d);
    }
    if (phase == ENGINE_ENDED && !d->emit_stopped)
        engine_ended(d);
    if (d->draining && phase == LOAD_RUNNING && server_live(d->server) == 0)
        end_while_loading(d);
    if (d->draining && !d->stopping && server_live(d->server) == 0)
        stop_engine(d);
    if (phase == LOAD_FAILED || phase == ENGINE_ENDED)
        finish(d);
    return more;
}

/* ---- signals --------------------------------------------------------------------------------------------
 */

static void reload(struct daemon *d) {
    struct xerr err = {0};
    char restart[256];
    struct conf *c = calloc(1, sizeof *c);
    int changed;

    if (!c) {
        log_error("configuration not taken over: no memory to read it");
        return;
    }
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_now_ns() / CLOCK_NS_PER_US);
    if (options_load_conf(d, c, &err) < 0) {
        log_error("configuration not taken over: %s", err.msg);
    } else {
        changed = conf_reload(&d->conf, c, restart, sizeof restart);
        log_set_level((enum log_level)d->conf.log_level);
        prep_set_max_prompt(d->prep, d->conf.max_prompt_bytes);
        server_reload(d->server);
        log_notice("configuration read again: %d values changed", changed);
        if (restart[0])
            log_warning("these keys need a restart to change: %s", restart);
    }
    conf_done(c);
    free(c);
    if (d->ready)
        sd_notify(0, "READY=1");
}

static void on_signal(void *ctx, unsigned events) {
    struct daemon *d = ctx;
    struct signalfd_siginfo si;

    (void)events;
    for (;;) {
        ssize_t n = read(d->signal_fd, &si, sizeof si);

        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof si)
            return;
        if (si.ssi_signo == SIGHUP)
            reload(d);
        else if (d->draining)
            stop_engine(d);
        else
            begin_drain(d);
    }
}

int life_start(struct daemon *d, struct xerr *err) {
    sigset_t set;
    int r;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (d->signal_fd < 0)
        return xerr_set(err, -errno, "signals cannot be received: %s", strerror(errno));
    r = loop_add(d->loop, d->signal_fd, on_signal, d, &d->signals);
    if (r == 0)
        r = loop_timer_new(d->loop, on_tick, d, &d->tick);
    if (r == 0)
        r = loop_timer_new(d->loop, on_drain_over, d, &d->drain);
    if (r < 0)
        return xerr_set(err, r, "the event loop cannot be set up: %s", strerror(-r));
    loop_set_turn(d->loop, life_turn, d);
    d->start_ns = d->last_tick_ns = clock_now_ns();
    loop_timer_set(d->tick, d->start_ns + 1);
    return 0;
}

void life_done(struct daemon *d) {
    sd_notify(0, "STATUS=Stopped");
    server_stop_listening(d->server);
}
