/* SPDX-License-Identifier: MIT */
/* etwins.c: requests whose beginning somebody else is just reading. Reading it twice at once would cost twice the
 * time and give the same state; the later one waits in the queue until the mark that both share has been passed, or
 * the other one has gone. It holds up nobody: sched passes it over. Engine thread. */
#include <string.h>

#include "engine_priv.h"

enum { TWIN_LEAST = 256 }; /* tokens that waiting must save */

/* Prompts are long and looked at between two steps of everybody's, so a pair is compared once. */
static uint32_t common(struct engine *e, const struct eng_seq *q, uint32_t waiting) {
    const struct sched_req *a = e->streams[q->stream].req, *b = e->streams[waiting].req;
    struct eng_twin *t = &e->twins[(uint64_t)waiting * e->n_seqs + (uint64_t)(q - e->seqs)];
    uint32_t n = a->n_ids < b->n_ids ? a->n_ids : b->n_ids, i = 0;

    if (t->serial == q->serial && !FAULT(twins_compare_again))
        return t->same;
    while (i < n && a->ids[i] == b->ids[i])
        i++;
    e->twin_ids += i;
    *t = (struct eng_twin){ .serial = q->serial, .same = i };
    return i;
}

static uint32_t hit_of(struct engine *e, struct eng_stream *st) {
    const struct prefix_text x = { .ids = st->req->ids, .n_ids = st->req->n_ids };
    struct prefix_hit h;

    if (st->hit_known && st->hit_at == e->cache_moves)
        return st->hit;
    prefix_find(e->prefix, ecache_domain(st->req), &x, &h);
    st->hit_known = true;
    st->hit = h.pos;
    st->hit_at = e->cache_moves;
    return h.pos;
}

/* Whether the prompt of q has a mark ahead that the waiting one could start from. Where there is none but the two
 * have much in common, one is set where they part. */
static bool mark_ahead(struct engine *e, struct eng_seq *q, uint32_t waiting, uint32_t hit) {
    uint32_t same = common(e, q, waiting), n_ids = e->streams[waiting].req->n_ids;
    uint32_t most = same < n_ids ? same : n_ids - 1, at = q->pos;

    if (most < hit + TWIN_LEAST || most < q->pos)
        return false;
    for (uint32_t next; (next = ecache_next_mark(e, q, at)) <= most; at = next)
        if (next >= hit + TWIN_LEAST)
            return true;
    at = fill_until(e, (uint32_t)(q - e->seqs)); /* no mark can be set inside of what is on its way */
    return most >= at + KERN_GRID && most - at >= TWIN_LEAST &&
           ecache_fork(q, most, e->streams[q->stream].req->n_ids);
}

/* One that stands still, or has ended, would let others wait for no use. */
static bool is_reading(const struct engine *e, const struct eng_seq *q) {
    return q->used && !q->gone && q->cache.on && !e->streams[q->stream].skipped &&
           sched_job_state(e->sched, q->stream) == SCHED_FILL && !sched_job_paused(e->sched, q->stream);
}

/* A prompt of the background may be read very slowly. */
static bool is_as_soon(const struct sched_req *reading, const struct sched_req *waiting) {
    return !reading->background || waiting->background || FAULT(twins_wait_for_background);
}

/* The sequence whose mark the stream should wait for, or ENGINE_NONE. */
static uint32_t waits_for(struct engine *e, uint32_t waiting) {
    struct eng_stream *st = &e->streams[waiting];
    uint32_t hit = hit_of(e, st);

    for (uint32_t i = 0; i < e->n_seqs; i++) {
        struct eng_seq *q = &e->seqs[i];

        if (is_reading(e, q) && ecache_domain(e->streams[q->stream].req) == ecache_domain(st->req) &&
            is_as_soon(e->streams[q->stream].req, st->req) &&
            mark_ahead(e, q, waiting, hit))
            return i;
    }
    return ENGINE_NONE;
}

static bool is_reading_any(const struct engine *e) {
    for (uint32_t i = 0; i < e->n_seqs; i++)
        if (is_reading(e, &e->seqs[i]))
            return true;
    return false;
}

/* Comparing prompts costs their lengths: only when somebody came, went or passed a mark, or when one that others wait
 * for no longer reads. */
void ecache_twins(struct engine *e) {
    bool any;

    if (!e->prefix || (!e->twins_dirty && !e->n_held))
        return;
    for (uint32_t i = 0; i < e->opt.max_streams && !e->twins_dirty; i++)
        e->twins_dirty = e->streams[i].req && e->streams[i].held &&
                         !is_reading(e, &e->seqs[e->streams[i].held_by]);
    if (!e->twins_dirty)
        return;
    e->twins_dirty = false;
    any = is_reading_any(e);
    e->n_held = 0;
    for (uint32_t i = 0; i < e->opt.max_streams; i++) {
        struct eng_stream *st = &e->streams[i];

        if (!st->req || st->seq != ENGINE_NONE || st->req->no_cache)
            continue;
        st->held_by = any ? waits_for(e, i) : ENGINE_NONE;
        st->held = st->held_by != ENGINE_NONE;
        stream_hold(e, i);
        e->n_held += st->held;
    }
}

void ecache_twin_new(struct engine *e, uint32_t stream) {
    if (e->prefix)
        memset(&e->twins[(uint64_t)stream * e->n_seqs], 0, e->n_seqs * sizeof *e->twins);
    e->twins_dirty = true;
}

void ecache_changed(struct engine *e) {
    e->twins_dirty = true;
    e->cache_moves++;
}
