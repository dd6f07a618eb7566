/* SPDX-License-Identifier: MIT */
/* run.c: the engine thread's body: one round after another, asleep when there is nothing to do. No timer runs
 * while the engine is idle; the ones that exist are deadlines somebody set. */
#include <errno.h>
#include <string.h>

#include "clock.h"
#include "engine_priv.h"
#include "log.h"

int engine_fail(struct engine *e, const char *what, int r) {
    struct log_fields f = { .event = LOG_EV_DEVICE_LOST, .uid = LOG_NO_UID };

    log_full(LOG_LEVEL_ERROR, &f, NULL, "engine stops: %s failed (%s): %s", what, strerror(-r),
             ranks_error(&e->ranks));
    e->fill.active = false;
    atomic_store(&e->lost, 1);
    streams_end_all(e, STREAM_END_ERROR, -EIO);
    return r < 0 ? r : -EIO;
}

void engine_count_stats(struct engine *e) {
    struct sched_counts c;
    uint32_t pages, slots;

    ecache_available(e, &pages, &slots);
    sched_get_counts(e->sched, &c);
    atomic_store_explicit(&e->stats.running, c.running, memory_order_relaxed);
    atomic_store_explicit(&e->stats.queued, c.queued, memory_order_relaxed);
    atomic_store_explicit(&e->stats.free_slots, slots, memory_order_relaxed);
    atomic_store_explicit(&e->stats.free_pages, pages, memory_order_relaxed);
    enumbers_round(e, false);
}

static void earlier(uint64_t *t, uint64_t other) {
    if (other < *t)
        *t = other;
}

/* Until somebody posts, or the next moment at which something must happen by itself. */
static void engine_sleep(struct engine *e, uint32_t ticket) {
    uint64_t at = sched_next_event(e->sched), now;

    if (e->spill.more)
        return;
    earlier(&at, espill_next_event(e));
    if (e->safety_ns)
        earlier(&at, e->safety_ns);
    if (e->queue_dirty)
        earlier(&at, e->places_ns + CLOCK_NS_PER_MS * 20);
    if (atomic_load(&e->stopping)) {
        if (!atomic_load(&e->live))
            return; /* this very round ended the last one: nobody will post */
        earlier(&at, atomic_load(&e->stop_deadline_ns));
    }
    now = clock_now_ns();
    if (at <= now)
        return;
    stat_add(&e->stats.sleeps, 1);
    /* who reads it sees what was done before */
    atomic_store_explicit(&e->stats.asleep, 1, memory_order_release);
    inbox_wait(&e->inbox, ticket, at == UINT64_MAX ? UINT64_MAX : at - now);
    atomic_store_explicit(&e->stats.asleep, 0, memory_order_relaxed);
}

/* Nothing can have changed who decodes: nobody posted, no time has come, nothing ended or waits, and every
 * ring has room for the token not yet published and the next. Then a step costs only itself, which matters
 * because whatever runs here lies between a token and its publication. */
static bool round_is_calm(const struct engine *e, uint32_t ticket) {
    if (!e->calm || (ticket != e->calm_ticket && !FAULT(calm_misses_posts)) ||
        (e->now_ns >= e->calm_until_ns && !FAULT(calm_misses_time)))
        return false;
    for (uint32_t i = 0; e->sink.credit && i < e->n_batch && !FAULT(calm_misses_credit); i++) {
        uint32_t stream = e->seqs[e->batch[i]].stream;
        uint32_t need = stream_token_records(e->streams[stream].req->sampling.n_alts);

        if (atomic_load_explicit(&e->sink.credit[stream].records, memory_order_acquire) < 2 * need + 2)
            return false;
    }
    return true;
}

static void keep_house(struct engine *e, uint32_t ticket) {
    struct sched_counts c;

    streams_take(e);
    streams_expire(e);
    if (espill_round(e) < 0)
        return;
    streams_admit(e);
    streams_credit(e);
    streams_places(e);
    sched_get_counts(e->sched, &c);
    e->calm = c.decoding && !c.queued && !c.filling && !c.paused && !e->fill.active && !e->n_skipped &&
              !e->queue_dirty && !e->spill.more && !atomic_load_explicit(&e->stopping, memory_order_acquire);
    e->calm_ticket = ticket;
    e->calm_until_ns = sched_next_event(e->sched);
}

int engine_round(struct engine *e, bool may_sleep) {
    uint32_t ticket = inbox_ticket(&e->inbox);
    int decoding, filling = 0, r = 0;
    bool calm;

    e->now_ns = clock_now_ns();
    atomic_store_explicit(&e->stats.heartbeat_ns, e->now_ns, memory_order_relaxed);
    calm = round_is_calm(e, ticket);
    if (!calm)
        keep_house(e, ticket);

    if ((r = ecache_roll(e)) < 0)
        return r;
    decoding = step_launch(e);
    if (decoding < 0)
        return decoding;
    if (!calm)
        filling = fill_start(e, decoding > 0);
    if (filling > 0)
        filling = fill_launch(e, decoding > 0);
    if (filling < 0)
        return filling;
    /* the device works: now there is time to tell what the last step made */
    events_publish(e);
    engine_count_stats(e);
    if (decoding) {
        r = step_finish(e);
        if (r < 0)
            return r;
        if (filling)
            events_publish(e);
    }
    if (filling)
        r = fill_finish(e);
    if (r < 0 || decoding || filling)
        return r;
    if (e->fill.active)
        return 0;
    events_publish(e);
    enumbers_round(e, true);
    if (may_sleep)
        engine_sleep(e, ticket);
    return 0;
}

int engine_run(struct engine *e) {
    for (;;) {
        bool stopping = atomic_load(&e->stopping), lost = atomic_load(&e->lost);
        uint32_t ticket = inbox_ticket(&e->inbox);

        if ((stopping || lost) && !atomic_load(&e->live)) /* L2: pairs with L1 in engine_submit() */
            break;
        if (!lost) {
            engine_round(e, true);
            continue;
        }
        /* only requests that were on their way when the device was lost */
        e->now_ns = clock_now_ns();
        streams_end_all(e, STREAM_END_ERROR, -EIO);
        events_publish(e);
        if (atomic_load(&e->live))
            inbox_wait(&e->inbox, ticket, UINT64_MAX);
    }
    events_publish(e);
    if (!atomic_load(&e->lost))
        espill_flush(e);
    engine_count_stats(e);
    return atomic_load(&e->lost) ? -EIO : 0;
}
