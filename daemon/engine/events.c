/* SPDX-License-Identifier: MIT */
/* events.c: the events of a step, collected and handed to the sink in one call after the next step has been
 * launched. Engine thread; the buffer is fixed, a full one is published early. */
#include <math.h>
#include <string.h>

#include "engine_priv.h"

/* One token in four comes with the next one: the handicap of `make bench-sched`. */
static bool held_back(const struct engine *e) {
    return FAULT(events_in_pairs) && e->n_events == 1 && e->events[0].type == STREAM_EV_TOKEN &&
           atomic_load_explicit(&e->stats.steps, memory_order_relaxed) % 4 == 0;
}

void events_publish(struct engine *e) {
    uint32_t n = e->n_events;

    if (!n || held_back(e))
        return;
    e->n_events = 0;
    if (e->sink.publish)
        e->sink.publish(e->sink.ctx, e->events, n);
}

struct stream_event *event_push(struct engine *e, struct stream_id id, enum stream_event_type type,
                                uint64_t t_ns) {
    struct stream_event *ev;

    if (e->n_events == e->max_events)
        events_publish(e);
    ev = &e->events[e->n_events++];
    ev->stream = id;
    ev->type = (uint8_t)type;
    ev->first = 0;
    ev->reason = STREAM_END_NONE;
    ev->status = 0;
    ev->t_ns = t_ns;
    ev->token = UINT32_MAX;
    ev->logprob = NAN;
    ev->forced = false;
    ev->n_alts = 0;
    if (type != STREAM_EV_TOKEN)
        memset(&ev->u, 0, sizeof ev->u);
    return ev;
}

/* Progress is a courtesy: none when the client reads so slowly that a token would have to wait. */
void event_progress(struct engine *e, uint32_t stream, uint32_t done, uint32_t place, uint64_t wait_ns) {
    const struct eng_stream *st = &e->streams[stream];
    struct stream_event *ev;

    /* none behind the first token: one that was away reads its answer */
    if (st->req->quiet || (st->seq != ENGINE_NONE && e->seqs[st->seq].first_ns))
        return;
    if (e->sink.credit && atomic_load_explicit(&e->sink.credit[stream].records, memory_order_acquire) <=
                              stream_token_records(st->req->sampling.n_alts))
        return;
    ev = event_push(e, st->id, STREAM_EV_PROGRESS, e->now_ns);
    ev->u.progress = (struct stream_progress){ .done = done, .total = st->req->n_ids,
                                                .cached = st->seq == ENGINE_NONE ? 0 : e->seqs[st->seq].cache.cached,
                                                .queue_position = place,
                                                .wait_ms = wait_ns / 1000000u > UINT32_MAX
                                                               ? UINT32_MAX
                                                               : (uint32_t)((wait_ns + 999999u) / 1000000u) };
}
