/* SPDX-License-Identifier: MIT */
/* ecache.c: hits at admission, checkpoints on the way, what an answer leaves behind. Engine thread. */
#include "ecache.h"

#include <errno.h>
#include <string.h>

#include "engine_priv.h"

enum {
    END_MARGIN = 8,  /* tokens: how a prompt's last ones are written often changes from turn to turn */
    FORK_LEAST = 64, /* tokens beyond the hit that a mark where prompts part must save */
};

static uint32_t grid(uint32_t pos) {
    return pos - pos % KERN_GRID;
}

/* Who may find what whom left: the user himself, or those of a group that was set up to share. */
uint64_t ecache_domain(const struct sched_req *req) {
    return req->share ? UINT64_C(1) << 32 | req->share : req->uid;
}

static bool takes_part(const struct engine *e, const struct sched_req *req) {
    return e->prefix && !req->no_cache;
}

/* What is to be read: the prompt, and of one that was away the answer so far, whose last token is fed and not read. */
static struct prefix_text text_of(const struct engine *e, uint32_t stream) {
    const struct sched_req *req = e->streams[stream].req;
    struct prefix_text x = { .ids = req->ids, .n_ids = req->n_ids };

    if (e->streams[stream].seq != ENGINE_NONE && e->seqs[e->streams[stream].seq].answers) {
        const struct eng_seq *q = &e->seqs[e->streams[stream].seq];

        x.more = q->cache.answer;
        x.n_more = q->n_read - req->n_ids;
    }
    return x;
}

static void find(const struct engine *e, uint32_t stream, struct prefix_hit *h) {
    const struct sched_req *req = e->streams[stream].req;
    const struct prefix_text x = text_of(e, stream);

    if (takes_part(e, req) && !FAULT(ecache_finds_nothing))
        prefix_find(e->prefix, ecache_domain(req), &x, h);
    else
        *h = (struct prefix_hit){ .checkpoint = PREFIX_NONE };
}

/* ---- what can be had ---- */

void ecache_available(const struct engine *e, uint32_t *ret_pages, uint32_t *ret_slots) {
    struct mem_pool_usage pages = mem_page_pool_read(&e->pages), slots = mem_slot_pool_read(&e->slots);
    struct prefix_counts c = { 0 };

    if (e->prefix)
        prefix_get_counts(e->prefix, &c);
    *ret_pages = pages.n - pages.used + pages.idle;
    *ret_slots = slots.n - slots.used + c.checkpoints - c.pinned + e->n_rolling;
}

/* The only slot that can be had is that of the hit itself: it goes, and the prompt is read whole. */
static bool hit_must_go(const struct engine *e, const struct prefix_hit *h, uint32_t slots) {
    struct prefix_info in;

    return h->pos && slots <= 1 && prefix_get(e->prefix, h->checkpoint, &in) && !in.pins;
}

void ecache_look(struct engine *e, uint32_t stream) {
    struct eng_stream *st = &e->streams[stream];
    struct mem_pool_usage u = mem_page_pool_read(&e->pages);
    uint32_t read = st->seq == ENGINE_NONE ? st->req->n_ids : e->seqs[st->seq].n_read;
    uint32_t total = mem_pages_for(stream_reserved(e, st->req)), need, pages, slots;
    struct prefix_hit h;

    ecache_available(e, &pages, &slots);
    if (!takes_part(e, st->req) || (st->looked && st->looked_at == e->cache_moves && st->looked_idle == u.idle &&
                                    st->looked_slots == slots))
        return;
    find(e, stream, &h);
    if (hit_must_go(e, &h, slots))
        h = (struct prefix_hit){ .checkpoint = PREFIX_NONE };
    st->looked = true;
    st->looked_slots = slots;
    st->looked_at = e->cache_moves;
    st->looked_idle = u.idle;
    /* pages that nobody else holds count among what can be had, so a hit on them takes them from there */
    need = total - h.full_pages + h.idle_pages;
    sched_set_need(e->sched, stream, need < total ? need : total, read - h.pos);
}

/* ---- slots ---- */

/* A state set aside for an answer that may still grow is worth less than a sequence that can run. */
static bool drop_rolling(struct engine *e) {
    for (uint32_t i = 0; i < e->n_seqs; i++) {
        struct ecache_seq *c = &e->seqs[i].cache;

        if (!e->seqs[i].used || !c->roll_pos)
            continue;
        mem_slot_give(&e->slots, c->roll);
        c->roll_pos = 0;
        e->n_rolling--;
        return true;
    }
    return false;
}

static int take_slot(struct engine *e, struct mem_slot *ret) {
    while (mem_slot_take(&e->slots, ret) < 0)
        if (!e->prefix ||
            (!prefix_evict(e->prefix, PREFIX_WANT_SLOT) && !drop_rolling(e) && !espill_give_way(e)))
            return -ENOBUFS;
    return 0;
}

/* For the cache itself: never one that a free seat will need. */
int ecache_spare_slot(struct engine *e, struct mem_slot *ret) {
    struct prefix_counts c;

    prefix_get_counts(e->prefix, &c);
    if (c.checkpoints + e->n_rolling < e->opt.cache_slots && mem_slot_take(&e->slots, ret) == 0)
        return 0;
    if (!prefix_evict(e->prefix, PREFIX_WANT_SLOT))
        return -ENOBUFS;
    e->cache_moves++;
    return mem_slot_take(&e->slots, ret);
}

int ecache_take_pages(struct engine *e, uint32_t n, struct mem_page *ret) {
    while (mem_pages_take(&e->pages, n, ret) < 0)
        if (!e->prefix || (!prefix_evict(e->prefix, PREFIX_WANT_PAGE) && !espill_give_way(e)))
            return -ENOBUFS;
    return 0;
}

/* ---- admission ---- */

/* Slot, pages and state after what was found. Nothing is kept when it fails with -ENOBUFS. */
static int take_all(struct engine *e, struct eng_seq *q, uint32_t total, const struct prefix_hit *h) {
    struct mem_page part = { 0 };
    uint32_t n_held = 0;
    int r;

    if (h->pos) {
        n_held = prefix_hold(e->prefix, h->checkpoint, q->pages);
        part = q->pages[n_held - 1];
    }
    r = take_slot(e, &q->slot);
    if (r == 0 && (r = ecache_take_pages(e, total - h->full_pages, q->pages + h->full_pages)) < 0)
        mem_slot_give(&e->slots, q->slot);
    if (r < 0) {
        mem_pages_give(&e->pages, h->full_pages, q->pages);
    } else if (h->pos) {
        r = ranks_slot_copy(&e->ranks, q->slot.id, h->slot.id);
        if (r == 0 && n_held > h->full_pages && !FAULT(ecache_page_not_copied))
            r = ranks_page_copy(&e->ranks, q->pages[h->full_pages].id, part.id);
        if (r < 0)
            r = engine_fail(e, "prefix cache's copy", r);
    }
    if (n_held > h->full_pages)
        mem_pages_give(&e->pages, 1, &part);
    if (h->pos)
        prefix_release(e->prefix, h->checkpoint);
    return r;
}

/* ---- marks ---- */

static const struct ecache_mark *mark_at(const struct ecache_seq *c, uint32_t pos) {
    for (uint32_t i = 0; i < c->n_marks; i++)
        if (c->marks[i].pos == pos)
            return &c->marks[i];
    return NULL;
}

static void mark_add(struct eng_seq *q, uint32_t pos, enum prefix_kind kind, uint32_t n_ids) {
    struct ecache_seq *c = &q->cache;

    pos = grid(pos);
    /* one of the four is for the answer */
    if (pos <= q->pos || pos >= n_ids || c->n_marks + c->n_kept >= ECACHE_MARKS - 1)
        return;
    for (uint32_t i = 0; i < c->n_marks; i++)
        if (c->marks[i].pos == pos)
            return;
    c->marks[c->n_marks++] = (struct ecache_mark){ pos, kind };
}

bool ecache_fork(struct eng_seq *q, uint32_t pos, uint32_t n_ids) {
    mark_add(q, pos, PREFIX_FORK, n_ids);
    return mark_at(&q->cache, grid(pos)) != NULL;
}

/* The system block's end, the prompt's end, where the last message begins, where another prompt parted, where the
 * messages before the last one begin: in that order, as long as there is room. */
static void marks_plan(struct eng_seq *q, const struct sched_req *req, const struct prefix_hit *h) {
    uint32_t n = req->n_ids;

    q->cache.n_marks = q->cache.n_kept = 0;
    if (req->n_marks)
        mark_add(q, req->marks[0], PREFIX_SYSTEM, n);
    if (n > END_MARGIN)
        mark_add(q, n - END_MARGIN, PREFIX_END, n);
    if (req->n_marks > 1)
        mark_add(q, req->marks[req->n_marks - 1], PREFIX_TURN, n);
    if (h->shared >= h->pos + FORK_LEAST)
        mark_add(q, h->shared, PREFIX_FORK, n);
    for (uint32_t i = req->n_marks; i > 2; i--)
        mark_add(q, req->marks[i - 2], PREFIX_TURN, n);
}

uint32_t ecache_next_mark(struct engine *e, struct eng_seq *q, uint32_t pos) {
    uint32_t next = UINT32_MAX, far, every = e->long_tokens;

    if (!e->prefix || !q->cache.on)
        return next;
    for (uint32_t i = 0; i < q->cache.n_marks; i++)
        if (q->cache.marks[i].pos > pos && q->cache.marks[i].pos < next)
            next = q->cache.marks[i].pos;
    far = pos - pos % every;
    far = far <= UINT32_MAX - every ? far + every : UINT32_MAX;
    return far < next && ecache_own_long(e, &q->cache) ? far : next;
}

/* ---- begin ---- */

int ecache_begin(struct engine *e, struct eng_seq *q, uint32_t total) {
    const struct sched_req *req = e->streams[q->stream].req;
    struct ecache_seq *c = &q->cache;
    struct prefix_text x = text_of(e, q->stream);
    struct prefix_hit h;
    int r;

    find(e, q->stream, &h);
    r = take_all(e, q, total, &h);
    if (r == -ENOBUFS && h.pos) {
        /* what it could share is what would have to go */
        h = (struct prefix_hit){ .checkpoint = PREFIX_NONE, .shared = h.shared };
        r = take_all(e, q, total, &h);
    }
    if (r < 0)
        return r;
    c->on = takes_part(e, req);
    q->pos = h.pos;
    c->exact = !h.pos || h.exact ? UINT32_MAX : h.exact_rows;
    c->roll_pos = 0;
    if (!q->away)
        ecache_own_first(c, &e->streams[q->stream].fetched);
    q->n_pages = total;
    sched_set_need(e->sched, q->stream, total - h.full_pages, q->n_read - h.pos);
    if (q->answers)
        c->n_marks = 0;
    else
        marks_plan(q, req, &h);
    for (; q->penalties && q->n_seen < h.pos && q->n_seen < req->n_ids; q->n_seen++)
        seen_add(&q->seen, req->ids[q->n_seen], 0);
    if (!q->away)
        c->cached = h.pos;
    if (!q->away)
        c->n_answer = 0;
    if (e->prefix && !q->away)
        enumbers_found(e, req, h.pos, h.shared,
                       prefix_count(e->prefix, ecache_domain(req), &x, &h, !c->on, e->now_ns));
    ecache_changed(e);
    return 0;
}

/* ---- checkpoints ---- */

/* The state in `slot` stands at pos; it is the cache's afterwards, or free. */
static void keep(struct engine *e, struct eng_seq *q, struct mem_slot slot, uint32_t pos, enum prefix_kind kind) {
    const struct sched_req *req = e->streams[q->stream].req;
    const struct prefix_new n = { .domain = ecache_domain(req), .text = { req->ids, req->n_ids, q->cache.answer,
                                  q->cache.n_answer }, .pos = pos, .exact = q->cache.exact, .kind = kind,
                                  .slot = slot, .pages = q->pages };

    if (prefix_insert(e->prefix, &n) < 0)
        mem_slot_give(&e->slots, slot);
    else
        ecache_own(e, &q->cache, pos, kind);
    ecache_changed(e);
}

void ecache_filled(struct engine *e, struct eng_seq *q) {
    const struct ecache_mark *m;
    enum prefix_kind kind = PREFIX_LONG;
    struct mem_slot slot;
    int r;

    if (!e->prefix || !q->cache.on)
        return;
    m = mark_at(&q->cache, q->pos);
    if (!m && !FAULT(ecache_keeps_all) &&
        (q->pos % e->long_tokens || q->pos >= e->streams[q->stream].req->n_ids || !ecache_own_long(e, &q->cache)))
        return;
    if (m) {
        kind = m->kind;
        q->cache.n_kept++;
        q->cache.n_marks--;
        q->cache.marks[m - q->cache.marks] = q->cache.marks[q->cache.n_marks];
    }
    if (ecache_spare_slot(e, &slot) < 0) {
        ecache_changed(e);
        return;
    }
    r = ranks_slot_copy(&e->ranks, slot.id, q->slot.id);
    if (r < 0) {
        mem_slot_give(&e->slots, slot);
        engine_fail(e, "checkpoint", r);
        return;
    }
    keep(e, q, slot, q->pos, kind);
}

void ecache_token(struct eng_seq *q, uint32_t token) {
    if (q->cache.answer)
        q->cache.answer[q->cache.n_answer++] = token;
}

static int roll_one(struct engine *e, struct eng_seq *q) {
    struct ecache_seq *c = &q->cache;
    int r;

    if (!c->roll_pos) {
        if (ecache_spare_slot(e, &c->roll) < 0)
            return 0;
        e->n_rolling++;
    }
    c->roll_pos = q->pos;
    r = ranks_slot_copy(&e->ranks, c->roll.id, q->slot.id);
    return r < 0 ? engine_fail(e, "answer's checkpoint", r) : 0;
}

int ecache_roll(struct engine *e) {
    int r = 0;

    for (uint32_t i = 0; e->prefix && i < e->n_seqs && r >= 0; i++) {
        struct eng_seq *q = &e->seqs[i];

        if (!q->used || !q->cache.on || !q->cache.n_answer || q->pos % KERN_GRID || q->pos <= q->cache.roll_pos)
            continue;
        if (sched_job_state(e->sched, q->stream) != SCHED_DECODE || q->pos <= e->streams[q->stream].req->n_ids)
            continue;
        r = roll_one(e, q);
    }
    return r;
}

void ecache_leave(struct engine *e, struct eng_seq *q) {
    struct ecache_seq *c = &q->cache;
    uint32_t n_ids = e->streams[q->stream].req->n_ids;

    if (c->exact > n_ids && q->pos > n_ids)
        c->exact = n_ids;
    if (c->roll_pos) {
        e->n_rolling--;
        keep(e, q, c->roll, c->roll_pos, PREFIX_REPLY);
        c->roll_pos = 0;
    }
    if (c->on && q->pos && q->pos % KERN_GRID == 0)
        keep(e, q, q->slot, q->pos, PREFIX_REPLY);
    else
        mem_slot_give(&e->slots, q->slot);
    ecache_changed(e);
}

void ecache_end(struct engine *e, struct eng_seq *q, bool finished) {
    struct ecache_seq *c = &q->cache;

    if (!e->prefix)
        return;
    if (c->roll_pos) {
        uint32_t n_ids = e->streams[q->stream].req->n_ids;

        e->n_rolling--;
        /* from the first fed token on nothing is as a cold run would have it */
        if (c->exact > n_ids && !FAULT(ecache_answer_exact))
            c->exact = n_ids;
        if (finished)
            keep(e, q, c->roll, c->roll_pos, PREFIX_REPLY);
        else
            mem_slot_give(&e->slots, c->roll);
        c->roll_pos = 0;
    }
    ecache_changed(e);
}
